//! What a path carries, from when packets were sent and when they were acknowledged.
//!
//! Controllers that take every lost packet for a full queue (Reno, CUBIC) fall to a few Mbit/s on a
//! long link that loses one packet in a hundred by itself. This one follows the *delivery rate*
//! instead, as BBR does (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5),
//! 2016, "Characterizing the bottleneck"; a rate sample is that of
//! draft-cheng-iccrg-delivery-rate-estimation-02, section 3.1): the most that was delivered per second
//! in the last rounds, times the shortest round trip, is what the path holds without a queue. A
//! quarter more is kept on its way. While the path has room that quarter arrives too, and the model
//! grows by it every round; when it has none, the quarter is the whole queue.
//!
//! Pure: time is an input. The model gives a window; quinn paces a window over the round trip.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Rounds over which the largest rate counts: longer than one cycle of [`CYCLE`].
const RATE_ROUNDS: u64 = 10;
/// What is on its way, as a multiple of what the path holds, round after round. One round asks for
/// more, because flows that share a path give way to each other only while one of them does so; the
/// next lets the queue of that go.
const CYCLE: [f64; 8] = [1.5, 1.0, 1.25, 1.25, 1.25, 1.25, 1.25, 1.25];
/// The same where packets are lost and it may be our own queue that does not fit.
const CYCLE_CAREFUL: [f64; 8] = [1.15, 1.0, 1.05, 1.05, 1.05, 1.05, 1.05, 1.05];
/// Before the path is known to be full: twice per round.
const STARTUP_GAIN: f64 = 2.0;
/// The path is full when the rate has grown by less than a quarter in each of so many rounds.
const STARTUP_GROWTH: f64 = 1.25;
const STARTUP_ROUNDS: u32 = 3;
/// While the shortest round trip is measured anew.
const PROBE_GAIN: f64 = 0.5;
/// Age at which the shortest round trip is measured anew, and the rounds that takes: one for the queue
/// to go, one to look.
const ROUND_TRIP_AGE_MAX: Duration = Duration::from_secs(10);
const PROBE_ROUNDS: u64 = 2;
/// Time that timers and busy hosts add to a round trip without any queue.
const HOST_DELAY: Duration = Duration::from_millis(4);
/// Packets over which loss is judged: of fewer, a lossy link loses any share now and then.
const LOSS_PACKETS_MIN: u64 = 128;
/// Loss from which on less is asked for.
const LOSS_CAREFUL: f64 = 0.02;
/// Loss from which on the window shrinks, whatever the rate.
const LOSS_HEAVY: f64 = 0.10;
/// What heavy loss leaves of the window, and how the ceiling rises again: fast below where it was
/// last too much, slowly above.
const CEILING_CUT: f64 = 0.85;
const CEILING_RISE_FAST: f64 = 2.0;
const CEILING_RISE_SLOW: f64 = 1.05;
/// So far above, without heavy loss, whatever was too much is over.
const CEILING_PASSED: f64 = 1.25;
/// Packets that may always be on their way: below four, a lost one is only noticed by a timer.
const WINDOW_PACKETS_MIN: u64 = 4;
/// Sends remembered at once: 5 Gbit/s over 100 ms in batches of ten packets is a quarter of it.
const SENDS_MAX: usize = 16_384;

/// How things stood when packets were sent.
#[derive(Clone, Copy, Debug)]
struct Send {
    at: Instant,
    /// Bytes acknowledged until then, and when the last of them was.
    delivered: u64,
    delivered_at: Instant,
    /// When the packet was sent whose acknowledgement that was.
    basis: Instant,
    /// The sender had too little to send, so a low rate says nothing about the path.
    starved: bool,
}

/// A limit from heavy loss.
#[derive(Clone, Copy, Debug)]
struct Ceiling {
    bytes: f64,
    /// Where it was last too high.
    too_high: f64,
}

/// Follows one path and says how many bytes may be on their way.
#[derive(Clone, Debug)]
pub(super) struct RateModel {
    mtu: u64,
    initial_window: u64,
    sends: VecDeque<Send>,
    delivered: u64,
    delivered_at: Instant,
    basis: Instant,
    /// The newest send acknowledged in the running batch.
    newest: Option<Send>,
    /// Sends are starved until more bytes than this are delivered.
    starved_until: u64,
    idle: bool,

    round: u64,
    /// A round ends with the first acknowledgement of what was sent after this was delivered.
    round_end: u64,
    /// Round and bytes per second, rates falling: the first is the largest of the last rounds.
    rates: VecDeque<(u64, f64)>,
    round_trip: Option<Duration>,
    round_trip_at: Instant,
    /// While it is measured anew: the last round of that, and the shortest so far.
    probe: Option<(u64, Option<Duration>)>,

    /// While the path is not known to be full: the rate it must exceed, and rounds without.
    startup: Option<(f64, u32)>,
    careful: bool,
    ceiling: Option<Ceiling>,
    acked_packets: u64,
    lost_packets: u64,
    judged_round: u64,
}

impl RateModel {
    pub(super) fn new(now: Instant, mtu: u16, initial_window: u64) -> Self {
        Self {
            mtu: u64::from(mtu),
            initial_window,
            sends: VecDeque::new(),
            delivered: 0,
            delivered_at: now,
            basis: now,
            newest: None,
            starved_until: 0,
            idle: true,
            round: 0,
            round_end: 0,
            rates: VecDeque::new(),
            round_trip: None,
            round_trip_at: now,
            probe: None,
            startup: Some((0.0, 0)),
            careful: false,
            ceiling: None,
            acked_packets: 0,
            lost_packets: 0,
            judged_round: 0,
        }
    }

    pub(super) const fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu as u64;
    }

    /// Packets went out.
    pub(super) fn sent(&mut self, now: Instant) {
        if self.idle {
            // The pause before this says nothing about the path.
            (self.delivered_at, self.basis, self.idle) = (now, now, false);
        }
        let same = self.sends.back().is_some_and(|last| last.at >= now);
        if !same && self.sends.len() < SENDS_MAX {
            self.sends.push_back(Send {
                at: now,
                delivered: self.delivered,
                delivered_at: self.delivered_at,
                basis: self.basis,
                starved: self.delivered <= self.starved_until,
            });
        }
    }

    /// One packet of those sent at `sent` was acknowledged.
    pub(super) fn acked(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        self.acked_packets += 1;
        let after = self.sends.partition_point(|send| send.at <= sent);
        let Some(send) = after.checked_sub(1).map(|at| self.sends[at]) else { return };
        if self.newest.is_none_or(|newest| newest.at < send.at) {
            self.newest = Some(send);
        }
        self.take_round_trip(now, now.saturating_duration_since(sent));
    }

    /// The acknowledgements that came with one packet are all told. `in_flight` bytes are still on
    /// their way; `starved` says that there is nothing more to send.
    pub(super) fn acks_done(&mut self, now: Instant, in_flight: u64, starved: bool) {
        self.idle = in_flight == 0;
        if starved {
            self.starved_until = self.delivered + in_flight;
        }
        let Some(newest) = self.newest.take() else { return };
        if newest.delivered >= self.round_end {
            self.round += 1;
            self.round_end = self.delivered;
            self.end_round(now);
        }
        self.take_rate(now, newest);
        self.basis = newest.at;
        // A packet that was sent long before may still be acknowledged: keep some of the past.
        let old = self.sends.partition_point(|send| send.at < newest.at);
        let keep = 2 * self.sends.len().saturating_sub(old) + 64;
        self.sends.drain(..old.saturating_sub(keep));
    }

    /// Packets with so many bytes are lost, or (0 bytes) a router says that its queue grows.
    /// `everything`: nothing at all came through for several round trips.
    pub(super) fn lost(&mut self, bytes: u64, everything: bool) {
        if everything {
            let (window, floor) = (self.window() as f64, self.window_min() as f64);
            self.ceiling = Some(Ceiling { bytes: floor, too_high: window / 2.0 });
            self.rates.clear();
            self.startup = None;
        } else if bytes == 0 {
            self.lower_ceiling();
        } else {
            self.lost_packets += bytes.div_ceil(self.mtu);
        }
    }

    /// Bytes that may be on their way.
    pub(super) fn window(&self) -> u64 {
        let window = match (self.rate(), self.round_trip) {
            (Some(rate), Some(round_trip)) => {
                let held = rate * round_trip.as_secs_f64();
                let host = rate * HOST_DELAY.as_secs_f64();
                let asked = self.gain() * held + host;
                // Until the path is full the first window is a floor: acknowledgements of the
                // handshake come one by one and show nothing.
                let floor = if self.startup.is_some() { self.initial_window as f64 } else { 0.0 };
                asked.max(floor)
            }
            _ => self.initial_window as f64,
        };
        let window = self.ceiling.map_or(window, |ceiling| window.min(ceiling.bytes));
        // Far below 2^53, and not negative.
        #[allow(clippy::cast_possible_truncation)]
        let window = window as u64;
        window.max(self.window_min())
    }

    /// Bytes per second that the path is thought to carry.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rates.front().map(|(_, rate)| *rate)
    }

    /// The shortest round trip.
    pub(super) const fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    const fn window_min(&self) -> u64 {
        WINDOW_PACKETS_MIN * self.mtu
    }

    fn gain(&self) -> f64 {
        if self.startup.is_some() {
            return STARTUP_GAIN;
        }
        if self.probe.is_some() {
            return PROBE_GAIN;
        }
        let cycle = if self.careful { CYCLE_CAREFUL } else { CYCLE };
        // The remainder is below 8.
        #[allow(clippy::cast_possible_truncation)]
        let at = (self.round % cycle.len() as u64) as usize;
        cycle[at]
    }

    fn take_round_trip(&mut self, now: Instant, sample: Duration) {
        if let Some((_, shortest)) = &mut self.probe {
            *shortest = Some(shortest.map_or(sample, |shortest| shortest.min(sample)));
        }
        if self.round_trip.is_none_or(|shortest| sample <= shortest) {
            self.round_trip = Some(sample);
            self.round_trip_at = now;
        }
    }

    /// What was delivered since `newest` was sent, over the longer of the times it took to be sent and
    /// to be acknowledged: acknowledgements that come in a lump would look like a fast path.
    fn take_rate(&mut self, now: Instant, newest: Send) {
        let sending = newest.at.saturating_duration_since(newest.basis);
        let acknowledging = now.saturating_duration_since(newest.delivered_at);
        let interval = sending.max(acknowledging);
        if interval.is_zero() || self.round_trip.is_none_or(|shortest| interval < shortest) {
            return;
        }
        let rate = (self.delivered - newest.delivered) as f64 / interval.as_secs_f64();
        if newest.starved && self.rate().is_some_and(|largest| rate <= largest) {
            return;
        }
        while self.rates.back().is_some_and(|(_, last)| *last <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
        while self.rates.front().is_some_and(|(round, _)| round + RATE_ROUNDS < self.round) {
            self.rates.pop_front();
        }
    }

    fn end_round(&mut self, now: Instant) {
        let starved = self.delivered <= self.starved_until;
        if let (Some((before, rounds)), Some(rate), false) = (self.startup, self.rate(), starved) {
            self.startup = match rate >= before * STARTUP_GROWTH {
                true => Some((rate, 0)),
                false if rounds + 1 < STARTUP_ROUNDS => Some((before, rounds + 1)),
                false => None,
            };
        }
        self.judge_loss();
        match self.probe {
            Some((last, shortest)) if self.round > last => {
                self.probe = None;
                self.round_trip = shortest.or(self.round_trip);
                self.round_trip_at = now;
            }
            None if self.startup.is_none()
                && now.saturating_duration_since(self.round_trip_at) > ROUND_TRIP_AGE_MAX =>
            {
                self.probe = Some((self.round + PROBE_ROUNDS, None));
            }
            _ => {}
        }
    }

    fn judge_loss(&mut self) {
        let packets = self.acked_packets + self.lost_packets;
        if packets < LOSS_PACKETS_MIN {
            return;
        }
        let lost = self.lost_packets as f64 / packets as f64;
        (self.acked_packets, self.lost_packets) = (0, 0);
        let rounds = u32::try_from(self.round - self.judged_round).unwrap_or(1);
        self.judged_round = self.round;
        self.careful = lost > LOSS_CAREFUL;
        if lost > LOSS_HEAVY {
            self.lower_ceiling();
        } else if let Some(ceiling) = &mut self.ceiling {
            let fast = ceiling.bytes < CEILING_CUT * ceiling.too_high;
            let rise = if fast { CEILING_RISE_FAST } else { CEILING_RISE_SLOW };
            ceiling.bytes *= rise.powi(i32::try_from(rounds.min(8)).unwrap_or(8));
            if ceiling.bytes > CEILING_PASSED * ceiling.too_high {
                self.ceiling = None;
            }
        }
    }

    fn lower_ceiling(&mut self) {
        self.startup = None;
        let window = self.window() as f64;
        let bytes = (CEILING_CUT * window).max(self.window_min() as f64);
        self.ceiling = Some(Ceiling { bytes, too_high: window });
    }
}

#[cfg(test)]
#[path = "rate_tests.rs"]
mod tests;
