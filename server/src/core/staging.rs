//! First values that clients bring: each seat's apart, until the coordinator says whose count.

use super::ledger::Kept;
use slackline_common::ids::SeatId;
use std::collections::BTreeMap;

/// At most one set of values per seat, one entry per block; dropped whole at the commit.
#[derive(Debug, Default)]
pub(super) struct Staging {
    seats: BTreeMap<SeatId, BTreeMap<usize, Kept>>,
}

impl Staging {
    /// Keeps one block's values; values sent again replace the first.
    pub(super) fn put(&mut self, seat: SeatId, at: usize, kept: Kept) {
        self.seats.entry(seat).or_default().insert(at, kept);
    }

    pub(super) fn has(&self, seat: SeatId, at: usize) -> bool {
        self.seats.get(&seat).is_some_and(|blocks| blocks.contains_key(&at))
    }

    /// Gives up everything but one seat's values.
    pub(super) fn take(&mut self, seat: SeatId) -> BTreeMap<usize, Kept> {
        std::mem::take(&mut self.seats).remove(&seat).unwrap_or_default()
    }

    pub(super) fn forget(&mut self, seat: SeatId) {
        self.seats.remove(&seat);
    }

    pub(super) fn hash(&self, hash: &mut blake3::Hasher) {
        for (seat, blocks) in &self.seats {
            hash.update(&seat.0.to_le_bytes());
            for (at, kept) in blocks {
                hash.update(&(*at as u64).to_le_bytes()).update(&[kept.codec as u8]);
                hash.update(&kept.bytes);
            }
        }
    }
}
