//! Which batch comes next: leases in, batches out, and when to ask for more.
//!
//! More is asked for when the last batch in hand has been pushed and not sooner: until then the
//! coordinator counts on this seat, and hands the rest on should it die. The answer travels while the
//! parameters of the next step do, so nothing waits for it.

use slackline_common::ids::LeaseId;
use slackline_common::lease::Lease;
use std::collections::VecDeque;

/// Batches that are read ahead of the computation.
const AHEAD_MAX: u32 = 3;

/// A seat's leases.
#[derive(Debug)]
pub struct Agenda {
    skips_empty: bool,
    leases: VecDeque<Work>,
    asked: bool,
    idle: bool,
    over: bool,
}

#[derive(Debug)]
struct Work {
    lease: Lease,
    /// Batches to work on.
    batches: u32,
    ordered: u32,
    taken: u32,
}

/// What a seat does next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// Works on the batch that was ordered first. With the first batch of a lease comes its name: the
    /// coordinator wants to know the step.
    Batch {
        /// The lease that begins.
        begins: Option<LeaseId>,
    },
    /// Waits for the coordinator's answer.
    Wait,
    /// Has nothing to do but must not hold others back.
    Idle,
    /// Leaves: there is no more work.
    Done,
}

impl Agenda {
    /// No leases yet. `skips_empty` leaves out batches past the end of an epoch; in `bsp` they are
    /// steps like any other.
    pub const fn new(skips_empty: bool) -> Self {
        Self { skips_empty, leases: VecDeque::new(), asked: false, idle: false, over: false }
    }

    /// Input: samples to work on.
    pub fn handle_lease(&mut self, lease: Lease) {
        (self.asked, self.idle) = (false, false);
        let batches = if self.skips_empty { filled(&lease) } else { lease.batches };
        if batches > 0 {
            self.leases.push_back(Work { lease, batches, ordered: 0, taken: 0 });
        }
    }

    /// Input: nothing now, but another answer will follow.
    pub const fn handle_idle(&mut self) {
        self.idle = true;
    }

    /// Input: everything is done, or is to stop.
    pub fn handle_no_more(&mut self) {
        self.over = true;
        self.leases.clear();
    }

    /// Output: whether to ask for a lease now. Call after each push; it answers `true` once per
    /// question.
    pub fn poll_request(&mut self) -> bool {
        let asks = self.leases.is_empty() && !self.asked && !self.over;
        self.asked |= asks;
        asks
    }

    /// Output: a batch to read ahead, as its lease and number. Call until it returns `None`.
    pub fn poll_order(&mut self) -> Option<(Lease, u32)> {
        let ahead: u32 = self.leases.iter().map(|work| work.ordered - work.taken).sum();
        let work = self.leases.iter_mut().find(|work| work.ordered < work.batches)?;
        if ahead >= AHEAD_MAX {
            return None;
        }
        work.ordered += 1;
        Some((work.lease, work.ordered - 1))
    }

    /// Output: what to do now. A batch counts as taken, and must have been ordered.
    pub fn poll_next(&mut self) -> Next {
        let Some(work) = self.leases.front_mut() else {
            return match (self.over, self.idle) {
                (true, _) => Next::Done,
                (false, true) => Next::Idle,
                (false, false) => Next::Wait,
            };
        };
        let begins = (work.taken == 0).then_some(work.lease.id);
        work.taken += 1;
        if work.taken == work.batches {
            self.leases.pop_front();
        }
        Next::Batch { begins }
    }

    /// The lease that was begun and has more batches, and how many of it were taken.
    pub fn unfinished(&self) -> Option<(LeaseId, u32)> {
        let begun = self.leases.front().filter(|work| work.taken > 0);
        begun.map(|work| (work.lease.id, work.taken))
    }
}

/// Batches that have samples: all at the start of a lease, for positions only grow.
fn filled(lease: &Lease) -> u32 {
    (0..lease.batches).find(|k| lease.positions(*k).is_empty()).unwrap_or(lease.batches)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn lease(id: u64, batches: u32, samples: u64) -> Lease {
        Lease { id: LeaseId(id), epoch: 0, first: 0, stride: 10, batches, batch: 10, samples }
    }

    const fn batch(begins: Option<u64>) -> Next {
        match begins {
            Some(id) => Next::Batch { begins: Some(LeaseId(id)) },
            None => Next::Batch { begins: None },
        }
    }

    fn orders(agenda: &mut Agenda) -> Vec<u32> {
        std::iter::from_fn(|| agenda.poll_order().map(|(_, k)| k)).collect()
    }

    #[test]
    fn more_is_asked_for_once_and_only_with_empty_hands() {
        let mut agenda = Agenda::new(false);
        assert_eq!(agenda.poll_next(), Next::Wait);
        assert!(agenda.poll_request() && !agenda.poll_request());
        agenda.handle_lease(lease(7, 2, 20));
        assert!(!agenda.poll_request());
        assert_eq!(orders(&mut agenda), [0, 1]);
        assert_eq!(agenda.poll_next(), batch(Some(7)));
        assert!(!agenda.poll_request());
        assert_eq!(agenda.poll_next(), batch(None));
        assert!(agenda.poll_request() && !agenda.poll_request());
        agenda.handle_no_more();
        assert_eq!((agenda.poll_next(), agenda.poll_request()), (Next::Done, false));
    }

    #[test]
    fn a_few_batches_are_read_ahead_and_no_more() {
        let mut agenda = Agenda::new(false);
        agenda.handle_lease(lease(0, 9, 90));
        assert_eq!(orders(&mut agenda), [0, 1, 2]);
        assert!(orders(&mut agenda).is_empty());
        agenda.poll_next();
        assert_eq!(orders(&mut agenda), [3]);
    }

    #[test]
    fn empty_batches_are_steps_in_bsp_and_skipped_elsewhere() {
        let count = |skips_empty| {
            let mut agenda = Agenda::new(skips_empty);
            agenda.handle_lease(lease(0, 5, 25));
            let mut batches = 0;
            loop {
                orders(&mut agenda);
                match agenda.poll_next() {
                    Next::Batch { .. } => batches += 1,
                    _ => return batches,
                }
            }
        };
        assert_eq!((count(false), count(true)), (5, 3));
    }

    #[test]
    fn an_idle_seat_goes_on_when_a_lease_comes_back() {
        let mut agenda = Agenda::new(true);
        assert!(agenda.poll_request());
        agenda.handle_idle();
        assert_eq!(agenda.poll_next(), Next::Idle);
        assert!(!agenda.poll_request(), "the answer to the first question is still to come");
        agenda.handle_lease(lease(3, 1, 10));
        orders(&mut agenda);
        assert_eq!(agenda.poll_next(), batch(Some(3)));
        assert!(agenda.poll_request());
    }

    #[test]
    fn a_job_that_is_stopped_drops_what_is_in_hand() {
        let mut agenda = Agenda::new(false);
        agenda.handle_lease(lease(0, 9, 90));
        orders(&mut agenda);
        agenda.handle_no_more();
        assert_eq!(agenda.poll_next(), Next::Done);
    }
}
