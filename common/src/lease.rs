//! Ranges of samples that the coordinator hands out: each sample exactly once per epoch.
//!
//! A position counts in the epoch's own order (a seeded permutation of the samples, or the file's
//! order), which every machine computes by itself.

use crate::ids::LeaseId;
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
    /// The positions of batch `k`, empty when it lies past the end of the epoch.
    pub fn positions(&self, k: u32) -> Range<u64> {
        let start = (self.first + u64::from(k) * self.stride).min(self.samples);
        start..(start + u64::from(self.batch)).min(self.samples)
    }

    /// What is left after `done` batches; `None` when nothing is.
    #[must_use]
    pub fn remainder(&self, done: u32) -> Option<Self> {
        (done < self.batches).then(|| Self {
            first: self.first + u64::from(done) * self.stride,
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
