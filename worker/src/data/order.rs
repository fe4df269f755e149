//! Which sample lies at which position of an epoch. A function of the job alone: every worker computes
//! the same order, and the coordinator only ever speaks of positions.

use slackline_common::job::{DataSpec, Job};
use slackline_common::lease::Lease;
use slackline_common::random::{Permutation, hash};
use std::ops::Range;

/// The stream of random bits that seeds the epochs' orders.
const SHUFFLE_STREAM: u64 = u64::from_le_bytes(*b"shuffle\0");

/// How a job orders its samples.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// As the files have them.
    AsStored,
    /// A new permutation each epoch.
    Shuffled {
        /// The job's seed.
        seed: u64,
    },
}

impl Order {
    /// The order that the job asks for.
    pub const fn of(job: &Job, data: &DataSpec) -> Self {
        if data.shuffle { Self::Shuffled { seed: job.seed } } else { Self::AsStored }
    }

    /// The order of one epoch of `samples` samples.
    pub const fn epoch(self, epoch: u64, samples: u64) -> EpochOrder {
        EpochOrder(match self {
            Self::AsStored => None,
            Self::Shuffled { seed } => {
                Some(Permutation::new(samples, hash(seed, SHUFFLE_STREAM, epoch)))
            }
        })
    }
}

/// The order of one epoch.
#[derive(Clone, Copy, Debug)]
pub struct EpochOrder(Option<Permutation>);

impl EpochOrder {
    /// The sample at `position`, which is below the number of samples.
    pub const fn get(&self, position: u64) -> u64 {
        match &self.0 {
            None => position,
            Some(permutation) => permutation.get(position),
        }
    }
}

/// One batch to fill: a run of positions of one epoch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BatchOrder {
    /// Which pass over the data.
    pub epoch: u64,
    /// The positions; an empty run gives a batch without samples.
    pub positions: Range<u64>,
}

impl BatchOrder {
    /// Batch `k` of a lease.
    pub fn of(lease: &Lease, k: u32) -> Self {
        Self { epoch: lease.epoch, positions: lease.positions(k) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_common::ids::LeaseId;

    fn samples(order: Order, epoch: u64, len: u64) -> Vec<u64> {
        let order = order.epoch(epoch, len);
        (0..len).map(|position| order.get(position)).collect()
    }

    #[test]
    fn without_shuffling_every_epoch_has_the_order_of_the_files() {
        assert_eq!(samples(Order::AsStored, 3, 5), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn each_epoch_has_every_sample_once_in_an_order_of_its_own() {
        let shuffled = Order::Shuffled { seed: 7 };
        let (first, second) = (samples(shuffled, 0, 1437), samples(shuffled, 1, 1437));
        assert_ne!(first, second);
        assert_ne!(first, samples(Order::Shuffled { seed: 8 }, 0, 1437), "another seed");
        assert_eq!(first, samples(shuffled, 0, 1437), "the same on every machine");
        for mut epoch in [first, second] {
            epoch.sort_unstable();
            assert!(epoch.into_iter().eq(0..1437));
        }
    }

    #[test]
    fn the_batches_of_all_leases_together_read_each_sample_once() {
        let (seats, batch, len) = (3u64, 16u32, 100u64);
        let stride = seats * u64::from(batch);
        let order = Order::Shuffled { seed: 1 }.epoch(4, len);
        let mut read = Vec::new();
        for seat in 0..seats {
            let first = seat * u64::from(batch);
            let id = LeaseId(seat);
            let lease = Lease { id, epoch: 4, first, stride, batches: 3, batch, samples: len };
            for k in 0..lease.batches {
                read.extend(BatchOrder::of(&lease, k).positions.map(|at| order.get(at)));
            }
        }
        read.sort_unstable();
        assert!(read.into_iter().eq(0..len));
    }
}
