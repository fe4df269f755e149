//! A schedule's luck: every number of a run is a function of its seed.

use slackline_common::random::hash;

/// One stream of numbers. Two streams of a seed know nothing of each other, so a change in one part
/// of a schedule does not move the luck of another.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    seed: u64,
    stream: u64,
    drawn: u64,
}

impl Random {
    pub(crate) const fn new(seed: u64, stream: u64) -> Self {
        Self { seed, stream, drawn: 0 }
    }

    /// A number in `0..count`.
    pub(crate) const fn below(&mut self, count: u64) -> u64 {
        self.drawn += 1;
        hash(self.seed, self.stream, self.drawn) % count
    }

    /// A number in `low..=high`.
    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in so many of a hundred cases.
    pub(crate) const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
