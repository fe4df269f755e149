//! Ranges of samples that the coordinator hands out: each sample exactly once per epoch.
//!
//! A position counts in the epoch's own order (a seeded permutation of the samples, or the file's
//! order), which every machine computes by itself.

use crate::ids::LeaseId;
use crate::limits::LEASE_BATCHES_MAX;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A strided run of batches of one epoch. In `bsp` the seats' leases interleave so that the union of
/// the batches of one step is contiguous, exactly what one process would have taken.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// Which pass over the data.
    pub epoch: u64,
    /// First position of the first batch.
    pub first: u64,
    /// Positions from one batch's start to the next's.
    pub stride: u64,
    /// Number of batches.
    pub batches: u32,
    /// Samples of a full batch.
    pub batch: u32,
    /// Positions in the epoch: a batch is cut off there and may be empty.
    pub samples: u64,
}

impl Lease {
    /// Whether it can be worked on by who has `samples` samples and a job with batches of `batch`.
    ///
    /// # Errors
    /// The first rule it breaks, as a sentence.
    pub fn check(&self, samples: u64, batch: u32) -> Result<(), String> {
        let id = self.id;
        if self.samples != samples {
            let theirs = self.samples;
            return Err(format!("{id} is about {theirs} samples; this worker has {samples}"));
        }
        if !(1..=batch).contains(&self.batch) {
            return Err(format!("{id} has batches of {}; 1 to {batch} are allowed", self.batch));
        }
        if self.stride < u64::from(self.batch) {
            let stride = self.stride;
            return Err(format!(
                "{id} has batches of {} every {stride} positions: they overlap",
                self.batch
            ));
        }
        if self.batches > LEASE_BATCHES_MAX {
            let batches = self.batches;
            return Err(format!(
                "{id} has {batches} batches; at most {LEASE_BATCHES_MAX} are allowed"
            ));
        }
        // In the last step of an epoch the last seats' batches may lie past its end.
        if self.first >= samples.saturating_add(self.stride) {
            let first = self.first;
            return Err(format!("{id} begins at position {first} of {samples}"));
        }
        Ok(())
    }

    /// The positions of batch `k`, empty when it lies past the end of the epoch.
    pub fn positions(&self, k: u32) -> Range<u64> {
        let start = self.start_of(k).min(self.samples);
        start..start.saturating_add(self.batch.into()).min(self.samples)
    }

    const fn start_of(&self, k: u32) -> u64 {
        self.first.saturating_add((k as u64).saturating_mul(self.stride))
    }

    /// What is left after `done` batches; `None` when nothing is.
    #[must_use]
    pub fn remainder(&self, done: u32) -> Option<Self> {
        (done < self.batches).then(|| Self {
            first: self.start_of(done),
            batches: self.batches - done,
            ..*self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_interleaved_leases_cover_an_epoch_once() {
        let lease = |seat: u64| Lease {
            id: LeaseId(seat),
            epoch: 0,
            first: seat * 16,
            stride: 64,
            batches: 23,
            batch: 16,
            samples: 1437,
        };
        let mut seen = vec![0; 1437];
        for seat in 0..4 {
            for k in 0..23 {
                for position in lease(seat).positions(k) {
                    seen[usize::try_from(position).unwrap()] += 1;
                }
            }
        }
        assert!(seen.iter().all(|times| *times == 1));
    }

    #[test]
    fn a_lease_that_cannot_be_worked_on_is_named_and_its_numbers_never_overflow() {
        let good = Lease {
            id: LeaseId(9),
            epoch: 0,
            first: 48,
            stride: 64,
            batches: 3,
            batch: 16,
            samples: 100,
        };
        let check = |lease: Lease, part: &str| {
            let sentence = lease.check(100, 16).err().unwrap_or_default();
            assert!(sentence.contains(part), "{sentence:?} does not say {part:?}");
            for k in [0, 1, lease.batches, u32::MAX] {
                let positions = lease.positions(k);
                assert!(positions.start <= positions.end && positions.end <= lease.samples);
            }
            assert!(lease.remainder(lease.batches - 1).is_some_and(|rest| rest.batches == 1));
        };
        assert_eq!(good.check(100, 16), Ok(()));
        assert_eq!(Lease { first: 163, ..good }.check(100, 16), Ok(()), "past the end: empty");
        check(Lease { samples: 101, ..good }, "101 samples; this worker has 100");
        check(Lease { samples: u64::MAX, first: u64::MAX, ..good }, "this worker has 100");
        check(Lease { batch: 0, ..good }, "batches of 0; 1 to 16");
        check(Lease { batch: 17, ..good }, "batches of 17; 1 to 16");
        check(Lease { stride: 0, ..good }, "every 0 positions: they overlap");
        check(Lease { batches: u32::MAX, ..good }, "4294967295 batches; at most");
        check(Lease { stride: u64::MAX, first: u64::MAX, ..good }, "begins at position");
        check(Lease { first: 164, ..good }, "begins at position 164 of 100");
    }

    #[test]
    fn the_remainder_starts_where_the_work_stopped() {
        let lease = Lease {
            id: LeaseId(1),
            epoch: 2,
            first: 10,
            stride: 8,
            batches: 3,
            batch: 4,
            samples: 100,
        };
        let rest = lease.remainder(2).unwrap();
        assert_eq!((rest.positions(0), rest.batches), (lease.positions(2), 1));
        assert_eq!(lease.remainder(3), None);
    }
}
