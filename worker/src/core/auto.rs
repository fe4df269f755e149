//! `compress = "auto"`: which rung of the ladder to code with, from what the link and the computation
//! have taken so far.
//!
//! For every rung the time of a step is predicted: computation, encoding, and the transfer of what
//! that rung sends, one after the other with one step in flight, side by side with more. The answer is
//! the *least lossy* rung that is within [`SLACK`] of the fastest. So a fast link ends without
//! compression, and a slow one with as much as hides the transfer and no more.
//!
//! Goodput is what large pushes show: bytes over the time from their first byte to their last
//! acknowledgement, less a round trip. Rungs that send little say little about the link, so every
//! [`PROBE_EVERY`] steps one push is sent a rung less compressed; feedback makes that free of loss.

use slackline_common::codec::CodecSpec;
use slackline_common::job::LADDER;
use std::fmt;

/// A rung is fast enough within this share of the fastest.
pub const SLACK: f64 = 0.05;
/// Steps before the first choice: the first is slow for other reasons.
pub const STEPS_BEFORE_CHOICE: u64 = 3;
/// Steps between two choices.
pub const CHOOSE_EVERY: u64 = 25;
/// Steps between two pushes that are sent less compressed, to see the link again.
pub const PROBE_EVERY: u64 = 100;
/// A push of fewer bytes says nothing about goodput.
const TELLING_BYTES: u64 = 32 << 10;
/// Weight of a new measurement.
const GAIN: f64 = 0.25;
/// A rung must promise this much before the present one is left: two that are alike would take turns.
const WORTH_A_CHANGE: f64 = 0.03;
/// Seconds of encoding per element of each rung before any was measured: 4 bytes at 4 GB/s for formats
/// that send all, at 2 GB/s for those that select.
const ENCODE_SECONDS: [f64; LADDER.len()] = [0.25e-9, 1e-9, 1e-9, 1e-9, 2e-9, 2e-9, 2e-9];

/// What one step took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Seconds of gradient computation, without encoding and sending.
    pub compute_seconds: f64,
    /// Seconds of encoding.
    pub encode_seconds: f64,
    /// Bytes of the push.
    pub push_bytes: u64,
    /// Seconds from the first byte of the push to its last acknowledgement.
    pub push_seconds: f64,
    /// The path's round trip in seconds.
    pub round_trip_seconds: f64,
}

/// The rung in use, and why.
#[derive(Clone, Debug)]
pub struct Auto {
    elements: f64,
    in_flight: f64,
    level: usize,
    steps: u64,
    compute: Average,
    round_trip: Average,
    /// Bytes a second.
    goodput: Average,
    /// Seconds an element, by rung.
    encode: [f64; LADDER.len()],
}

/// A choice that changed something, in one line for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Position in [`LADDER`].
    pub level: usize,
    goodput: f64,
    round_trip: f64,
    compute: f64,
    predicted: f64,
    uncompressed: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Average(Option<f64>);

impl Average {
    fn add(&mut self, value: f64) {
        if value.is_finite() && value >= 0.0 {
            self.0 = Some(self.0.map_or(value, |before| before + GAIN * (value - before)));
        }
    }
}

impl Auto {
    /// Starts without compression, for a model of so many elements.
    pub fn new(elements: usize, in_flight: u16) -> Self {
        Self {
            elements: elements as f64,
            in_flight: f64::from(in_flight.max(1)),
            level: 0,
            steps: 0,
            compute: Average::default(),
            round_trip: Average::default(),
            goodput: Average::default(),
            encode: ENCODE_SECONDS,
        }
    }

    /// The rung the next push is coded with.
    pub const fn level(&self) -> usize {
        let probes = self.level > 0 && self.steps % PROBE_EVERY == PROBE_EVERY - 1;
        if probes { self.level - 1 } else { self.level }
    }

    /// The rung that parameters should come down with.
    pub const fn level_down(&self) -> usize {
        self.level
    }

    /// Input: a step is done, coded with [`level`](Self::level). Returns the choice when it changed.
    pub fn handle_step(&mut self, measured: &Measured) -> Option<Choice> {
        let level = self.level();
        self.steps += 1;
        self.compute.add(measured.compute_seconds);
        self.round_trip.add(measured.round_trip_seconds);
        let encode = measured.encode_seconds / self.elements.max(1.0);
        if encode.is_finite() && encode >= 0.0 {
            self.encode[level] += GAIN * (encode - self.encode[level]);
        }
        let moving = measured.push_seconds - measured.round_trip_seconds;
        if measured.push_bytes >= TELLING_BYTES {
            // Below a tenth of the whole the clock says nothing: the link is at least so fast.
            let moving = moving.max(measured.push_seconds * 0.1).max(1e-6);
            self.goodput.add(measured.push_bytes as f64 / moving);
        }
        let due = self.steps == STEPS_BEFORE_CHOICE || self.steps.is_multiple_of(CHOOSE_EVERY);
        if due { self.choose() } else { None }
    }

    fn choose(&mut self) -> Option<Choice> {
        let (compute, round_trip) = (self.compute.0?, self.round_trip.0?);
        let goodput = self.goodput.0?.max(1.0);
        let times: Vec<f64> = (0..LADDER.len())
            .map(|level| self.predict(level, compute, round_trip, goodput))
            .collect();
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        let level = times.iter().position(|time| *time <= best * (1.0 + SLACK))?;
        let gains = times[self.level] > times[level] * (1.0 + WORTH_A_CHANGE);
        let less_lossy = level < self.level && times[level] <= times[self.level];
        if level == self.level || !(gains || less_lossy) {
            return None;
        }
        self.level = level;
        let (predicted, uncompressed) = (times[level], times[0]);
        Some(Choice { level, goodput, round_trip, compute, predicted, uncompressed })
    }

    /// Seconds of a step on a rung.
    fn predict(&self, level: usize, compute: f64, round_trip: f64, goodput: f64) -> f64 {
        let work = compute + self.encode[level] * self.elements;
        let moving = 2.0 * bytes_per_element(&LADDER[level]) * self.elements / goodput;
        if self.in_flight > 1.0 {
            work.max(moving).max((work + moving + round_trip) / self.in_flight)
        } else {
            work + moving + round_trip
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "compression is now {}: {:.1} Mbit/s, {:.0} ms round trip and {:.0} ms of computation make \
             a step of {:.0} ms; without compression it would take {:.0} ms",
            LADDER[self.level],
            self.goodput * 8e-6,
            self.round_trip * 1e3,
            self.compute * 1e3,
            self.predicted * 1e3,
            self.uncompressed * 1e3,
        )
    }
}

/// What a rung sends for one element, scales and indices included.
fn bytes_per_element(spec: &CodecSpec) -> f64 {
    match spec {
        CodecSpec::F32 => 4.0,
        CodecSpec::Bf16 | CodecSpec::F16 => 2.0,
        CodecSpec::Int8 { .. } => 1.0 + 4.0 / 256.0,
        CodecSpec::Int4 { .. } => 0.5 + 4.0 / 256.0,
        CodecSpec::Sign => 0.125,
        CodecSpec::TwoBit { .. } => 0.25,
        CodecSpec::TopK { density, .. } | CodecSpec::RandomK { density, .. } => {
            let density = f64::from(*density);
            let rest = 1.0 - density;
            let entropy = -density * density.log2() - rest * rest.max(f64::MIN_POSITIVE).log2();
            density * 2.0 + entropy / 8.0
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::cast_possible_truncation, reason = "small made-up numbers")]

    use super::*;

    /// A machine and a link: what steps take on them.
    struct World {
        elements: usize,
        compute: f64,
        bytes_per_second: f64,
        round_trip: f64,
        in_flight: u16,
    }

    impl World {
        fn bytes(&self, level: usize) -> f64 {
            bytes_per_element(&LADDER[level]) * self.elements as f64
        }

        fn encode(&self, level: usize) -> f64 {
            ENCODE_SECONDS[level] * self.elements as f64 * 1.5
        }

        fn measure(&self, level: usize) -> Measured {
            Measured {
                compute_seconds: self.compute,
                encode_seconds: self.encode(level),
                push_bytes: self.bytes(level) as u64,
                push_seconds: self.round_trip + self.bytes(level) / self.bytes_per_second,
                round_trip_seconds: self.round_trip,
            }
        }

        /// A step with this rung, told apart from what the code under test predicts.
        fn step(&self, level: usize) -> f64 {
            let moving = 2.0 * self.bytes(level) / self.bytes_per_second;
            let work = self.compute + self.encode(level);
            match self.in_flight {
                1 => work + moving + self.round_trip,
                k => work.max(moving).max((work + moving + self.round_trip) / f64::from(k)),
            }
        }

        fn run(&self, steps: u64) -> (Auto, Vec<Choice>) {
            let mut auto = Auto::new(self.elements, self.in_flight);
            let mut choices = Vec::new();
            for _ in 0..steps {
                choices.extend(auto.handle_step(&self.measure(auto.level())));
            }
            (auto, choices)
        }
    }

    fn world(mbit: f64, round_trip: f64, in_flight: u16) -> World {
        let bytes_per_second = mbit * 1e6 / 8.0;
        World { elements: 1_863_690, compute: 0.1, bytes_per_second, round_trip, in_flight }
    }

    #[test]
    fn every_link_ends_within_a_tenth_of_the_best_fixed_rung() {
        for mbit in [5.0, 20.0, 100.0, 1000.0, 10_000.0] {
            for in_flight in [1, 2, 4] {
                for round_trip in [0.0002, 0.02, 0.1] {
                    let world = world(mbit, round_trip, in_flight);
                    let (auto, _) = world.run(200);
                    let best = (0..LADDER.len()).map(|l| world.step(l)).fold(f64::MAX, f64::min);
                    let got = world.step(auto.level);
                    let place = format!("{mbit} Mbit/s, {round_trip} s, {in_flight} in flight");
                    assert!(got <= 1.1 * best, "{place}: {got} against {best}");
                }
            }
        }
    }

    #[test]
    fn a_fast_link_stays_without_compression_and_a_slow_one_says_why_it_compresses() {
        let (auto, choices) = world(40_000.0, 0.0001, 1).run(500);
        assert_eq!((auto.level(), choices), (0, vec![]));
        let (auto, choices) = world(20.0, 0.02, 2).run(500);
        assert!(LADDER[auto.level_down()].is_sparse(), "{:?}", LADDER[auto.level]);
        let line = choices[0].to_string();
        assert!(line.contains("20.0 Mbit/s, 20 ms round trip and 100 ms of computation"), "{line}");
        assert_eq!(choices.len(), 1, "a steady link changes nothing: {choices:?}");
    }

    #[test]
    fn a_link_that_changes_is_noticed() {
        let mut world = world(20.0, 0.02, 1);
        let (mut auto, _) = world.run(100);
        let slow = auto.level;
        world.bytes_per_second = 40e9 / 8.0;
        world.round_trip = 0.0001;
        for _ in 0..4000 {
            auto.handle_step(&world.measure(auto.level()));
        }
        assert!(auto.level < slow, "{} after {slow}", auto.level);
    }

    #[test]
    fn nonsense_from_a_clock_changes_nothing() {
        let mut auto = Auto::new(1000, 1);
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            for _ in 0..50 {
                auto.handle_step(&Measured {
                    compute_seconds: bad,
                    encode_seconds: bad,
                    push_bytes: 1 << 20,
                    push_seconds: bad,
                    round_trip_seconds: bad,
                });
            }
        }
        assert_eq!(auto.level(), 0);
    }
}
