//! The lease book: which seat works on which samples, each position exactly once per epoch.
//!
//! In `bsp` the leases are planned: the seats' batches interleave so that step `c` of an epoch is the
//! positions `c·B..(c+1)·B` in seat order (`B = seats × batch`), and the n-th request of a seat gets
//! the same lease whatever the timing. In `ssp` and `asp` they are cut on demand, first come, first
//! served, small enough that a seat that dies loses little and the tail is even.
//!
//! A seat that is gone gives its unfinished batches back ([`LeaseBook::release`]); they go to the
//! next seats that ask. The one gap: batches that were pushed after a `LeaseStarted` that never
//! arrived are worked on twice.

use slackline_common::ids::{LeaseId, SeatId, Step};
use slackline_common::job::Length;
use slackline_common::lease::Lease;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Most batches of one planned lease.
const PLANNED_BATCHES_MAX: u64 = 64;
/// Most batches of a lease cut on demand: what a dying seat may lose.
const DEMAND_BATCHES_MAX: u32 = 8;
/// Most samples of a data set: keeps sums of positions far inside 64 bits.
pub const SAMPLES_MAX: u64 = 1 << 40;

/// The answer to a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Grant {
    /// Work on these.
    Lease(Lease),
    /// Nothing now; another answer comes from [`LeaseBook::poll_grant`].
    Idle,
    /// Everything is done.
    Done,
}

/// What decides the leases of a job.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Interleaved (`bsp`) or on demand.
    pub interleaved: bool,
    /// Samples per worker and step; at least 1.
    pub batch: u32,
    /// Samples of one pass; 1 to [`SAMPLES_MAX`].
    pub samples: u64,
    /// How long the job runs. Steps are closed steps in `bsp`, otherwise `workers × batch` samples.
    pub length: Length,
    /// Seats of the job.
    pub workers: u16,
}

impl Plan {
    /// Samples of the whole job while all seats live; `None` when it has no end.
    pub fn samples_total(&self) -> Option<u64> {
        let global = u64::from(self.workers) * u64::from(self.batch);
        let total = match self.length {
            Length::Epochs(epochs) => self.samples.checked_mul(epochs),
            Length::Steps(u64::MAX) => None,
            Length::Steps(steps) if self.interleaved => {
                let per_epoch = self.samples.div_ceil(global);
                let rest = (steps % per_epoch * global).min(self.samples);
                (steps / per_epoch).checked_mul(self.samples).and_then(|sum| sum.checked_add(rest))
            }
            Length::Steps(steps) => steps.checked_mul(global),
        };
        total.filter(|total| *total < u64::MAX)
    }
}

/// A lease in somebody's hands.
#[derive(Clone, Copy, Debug)]
struct Held {
    lease: Lease,
    /// The step of its first batch, once the seat has said it.
    at: Option<Step>,
}

/// One seat of the book.
#[derive(Clone, Debug, Default)]
struct Holder {
    /// Leases that are not known to be applied whole.
    held: Vec<Held>,
    /// Has a lease and has not asked for another since.
    busy: bool,
    /// `bsp`: the next epoch and step of its own plan.
    epoch: u64,
    step: u64,
}

/// One planned pass: these seats interleave for so many steps.
#[derive(Clone, Debug)]
struct Pass {
    seats: Vec<SeatId>,
    steps: u64,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct LeaseBook {
    plan: Plan,
    next_id: u64,
    /// Seats at work.
    live: BTreeMap<SeatId, Holder>,
    /// Seats that are gone, until the servers have said how far they came.
    leaving: BTreeMap<SeatId, Holder>,
    /// Seats told [`Grant::Idle`], in the order they asked.
    idle: VecDeque<SeatId>,
    orphans: VecDeque<Lease>,
    /// `bsp`: the passes somebody has begun, from epoch `passes_from`.
    passes: VecDeque<Pass>,
    passes_from: u64,
    /// `bsp` with a length in steps: steps not planned yet. Otherwise epochs not planned yet.
    unplanned: u64,
    /// On demand: the next position, and how many samples may still be cut.
    next: (u64, u64),
    uncut: u64,
    stopped: bool,
}

impl LeaseBook {
    /// A book with everything still to do.
    pub fn new(plan: Plan, seats: impl IntoIterator<Item = SeatId>) -> Self {
        let length = match plan.length {
            Length::Epochs(n) | Length::Steps(n) => n,
        };
        Self {
            plan,
            next_id: 0,
            live: seats.into_iter().map(|seat| (seat, Holder::default())).collect(),
            leaving: BTreeMap::new(),
            idle: VecDeque::new(),
            orphans: VecDeque::new(),
            passes: VecDeque::new(),
            passes_from: 0,
            unplanned: length,
            next: (0, 0),
            uncut: plan.samples_total().unwrap_or(u64::MAX),
            stopped: false,
        }
    }

    /// Input: a seat has no batch left. Returns what it gets; a seat that is not at work is told
    /// that everything is done.
    pub fn request(&mut self, seat: SeatId) -> Grant {
        let Some(holder) = self.live.get_mut(&seat) else { return Grant::Done };
        holder.busy = false;
        self.idle.retain(|other| *other != seat);
        if let Some(lease) = self.take_for(seat) {
            return Grant::Lease(lease);
        }
        if self.is_done() {
            return Grant::Done;
        }
        self.idle.push_back(seat);
        Grant::Idle
    }

    /// Output: an answer to a seat that was told to wait. Call after every input until it returns
    /// `None`.
    pub fn poll_grant(&mut self) -> Option<(SeatId, Grant)> {
        if self.is_done() {
            return self.idle.pop_front().map(|seat| (seat, Grant::Done));
        }
        let seat = *self.idle.front()?;
        let lease = self.take_for(seat)?;
        self.idle.pop_front();
        Some((seat, Grant::Lease(lease)))
    }

    /// Input: the first batch of a lease belongs to this step. Says whether the seat holds it.
    pub fn handle_started(&mut self, seat: SeatId, lease: LeaseId, at: Step) -> bool {
        let held = self.live.get_mut(&seat).into_iter().flat_map(|holder| &mut holder.held);
        match held.into_iter().find(|held| held.lease.id == lease) {
            Some(held) => {
                held.at = Some(at);
                true
            }
            None => false,
        }
    }

    /// Input: a shard has applied `clock` batches of this seat (`Job::batches_in` its clock); leases that end before are forgotten.
    pub fn handle_clock(&mut self, seat: SeatId, clock: Step) {
        if let Some(holder) = self.live.get_mut(&seat) {
            holder.held.retain(|held| done_batches(held, clock) < held.lease.batches);
        }
    }

    /// Input: a seat is gone. Nobody is told that everything is done until
    /// [`release`](Self::release) says how far it came.
    pub fn depart(&mut self, seat: SeatId) {
        self.idle.retain(|other| *other != seat);
        if let Some(holder) = self.live.remove(&seat) {
            self.leaving.insert(seat, holder);
        }
    }

    /// Input: the largest clock any shard has for a seat that is gone, in batches. Its other batches go to the
    /// next seats that ask. Returns how many samples those are.
    pub fn release(&mut self, seat: SeatId, clock: Step) -> u64 {
        self.depart(seat);
        let Some(holder) = self.leaving.remove(&seat) else { return 0 };
        let mut rest: Vec<Lease> = holder
            .held
            .iter()
            .filter_map(|held| held.lease.remainder(done_batches(held, clock)))
            .collect();
        rest.extend(self.planned_rest(seat, &holder));
        let samples = rest.iter().map(samples_of).sum();
        for lease in rest {
            self.orphan(lease);
        }
        samples
    }

    /// Input: the job is to end early: nothing more is handed out.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Whether every batch has been handed out and its seat has asked for more, or the job was
    /// stopped.
    pub fn is_done(&self) -> bool {
        self.stopped
            || (self.orphans.is_empty()
                && self.leaving.is_empty()
                && !self.live.values().any(|holder| holder.busy)
                && !self.has_fresh())
    }

    /// Samples handed out that nobody will work on any more.
    pub fn samples_abandoned(&self) -> u64 {
        self.orphans.iter().map(samples_of).sum()
    }

    fn take_for(&mut self, seat: SeatId) -> Option<Lease> {
        if self.stopped {
            return None;
        }
        let mut lease = match self.take_orphan() {
            Some(lease) => lease,
            None if self.plan.interleaved => self.take_planned(seat)?,
            None => self.take_on_demand()?,
        };
        lease.id = LeaseId(self.next_id);
        self.next_id += 1;
        let holder = self.live.get_mut(&seat)?;
        holder.busy = true;
        holder.held.push(Held { lease, at: None });
        Some(lease)
    }

    fn has_fresh(&self) -> bool {
        if !self.plan.interleaved {
            return self.uncut > 0;
        }
        self.unplanned > 0 && !self.live.is_empty()
            || self.live.iter().any(|(seat, holder)| {
                self.passes.iter().zip(self.passes_from..).any(|(pass, epoch)| {
                    let from = match epoch.cmp(&holder.epoch) {
                        std::cmp::Ordering::Less => pass.steps,
                        std::cmp::Ordering::Equal => holder.step,
                        std::cmp::Ordering::Greater => 0,
                    };
                    from < pass.steps && pass.seats.contains(seat)
                })
            })
    }

    /// The next part of a seat's own plan.
    fn take_planned(&mut self, seat: SeatId) -> Option<Lease> {
        loop {
            let (epoch, step) = {
                let holder = self.live.get(&seat)?;
                (holder.epoch, holder.step)
            };
            let place = usize::try_from(epoch.checked_sub(self.passes_from)?).ok()?;
            if place >= self.passes.len() && !self.plan_pass() {
                return None;
            }
            let pass = self.passes.get(place)?;
            let rank = pass.seats.iter().position(|other| *other == seat);
            let lease = rank
                .filter(|_| step < pass.steps)
                .map(|rank| self.planned(epoch, pass, rank, step..pass.steps, PLANNED_BATCHES_MAX));
            let holder = self.live.get_mut(&seat)?;
            if let Some(lease) = lease {
                holder.step += u64::from(lease.batches);
                return Some(lease);
            }
            (holder.epoch, holder.step) = (epoch + 1, 0);
            self.forget_passes();
        }
    }

    fn planned(
        &self,
        epoch: u64,
        pass: &Pass,
        rank: usize,
        steps: Range<u64>,
        batches_max: u64,
    ) -> Lease {
        let batch = u64::from(self.plan.batch);
        let stride = pass.seats.len() as u64 * batch;
        let batches = (steps.end - steps.start).min(batches_max);
        Lease {
            id: LeaseId(0),
            epoch,
            first: steps.start * stride + rank as u64 * batch,
            stride,
            batches: u32::try_from(batches).expect("at most 32 bits of them"),
            batch: self.plan.batch,
            samples: self.plan.samples,
        }
    }

    /// Plans one more pass over the seats that live now; says whether there was one to plan.
    fn plan_pass(&mut self) -> bool {
        if self.unplanned == 0 {
            return false;
        }
        let seats: Vec<SeatId> = self.live.keys().copied().collect();
        let whole = self.plan.samples.div_ceil(seats.len() as u64 * u64::from(self.plan.batch));
        let steps = match self.plan.length {
            Length::Epochs(_) => {
                self.unplanned -= 1;
                whole
            }
            Length::Steps(_) => {
                let steps = whole.min(self.unplanned);
                self.unplanned -= steps;
                steps
            }
        };
        self.passes.push_back(Pass { seats, steps });
        true
    }

    /// Drops passes that every seat is through with.
    fn forget_passes(&mut self) {
        let slowest = self.live.values().chain(self.leaving.values()).map(|h| h.epoch).min();
        while self.passes.len() > 1 && slowest.is_some_and(|epoch| epoch > self.passes_from) {
            self.passes.pop_front();
            self.passes_from += 1;
        }
    }

    /// What a seat had not asked for yet of the passes that have begun.
    fn planned_rest(&self, seat: SeatId, holder: &Holder) -> Vec<Lease> {
        let mut rest = Vec::new();
        for (pass, epoch) in self.passes.iter().zip(self.passes_from..) {
            let Some(rank) = pass.seats.iter().position(|other| *other == seat) else { continue };
            let mut step = match epoch.cmp(&holder.epoch) {
                std::cmp::Ordering::Less => continue,
                std::cmp::Ordering::Equal => holder.step,
                std::cmp::Ordering::Greater => 0,
            };
            while step < pass.steps {
                let lease = self.planned(epoch, pass, rank, step..pass.steps, u32::MAX.into());
                step += u64::from(lease.batches);
                rest.push(lease);
            }
        }
        rest
    }

    /// The next few batches in order.
    fn take_on_demand(&mut self) -> Option<Lease> {
        if self.uncut == 0 {
            return None;
        }
        let batch = u64::from(self.plan.batch);
        let (epoch, first) = self.next;
        let to_end = self.plan.samples - first;
        let here = to_end.min(self.uncut);
        let share = self.uncut.div_ceil(batch) / (2 * self.live.len().max(1) as u64);
        let wanted = share.clamp(1, DEMAND_BATCHES_MAX.into());
        // The end of the epoch cuts its last batch by itself; the end of the job does not, so its
        // last batch is a lease of its own with a shorter batch.
        let (batches, batch) = match here / batch {
            _ if here == to_end => (wanted.min(here.div_ceil(batch)), batch),
            0 => (1, here),
            whole => (wanted.min(whole), batch),
        };
        let taken = (batches * batch).min(here);
        self.uncut -= if self.uncut == u64::MAX { 0 } else { taken };
        self.next = if taken == to_end { (epoch + 1, 0) } else { (epoch, first + taken) };
        Some(Lease {
            id: LeaseId(0),
            epoch,
            first,
            stride: batch,
            batches: u32::try_from(batches).expect("at most DEMAND_BATCHES_MAX"),
            batch: u32::try_from(batch).expect("at most the job's batch"),
            samples: self.plan.samples,
        })
    }

    /// Puts a lease back, without the empty batches at its end.
    fn orphan(&mut self, lease: Lease) {
        let (full, rest) = full_batches(&lease);
        let batches = full + u32::from(rest > 0);
        if batches > 0 {
            self.orphans.push_back(Lease { batches, ..lease });
        }
    }

    /// A seat's share of the first lease that was put back: the parts shrink towards its end, so
    /// that the seats are through with it at about the same time.
    fn take_orphan(&mut self) -> Option<Lease> {
        let seats = u32::try_from(self.live.len().max(1)).unwrap_or(u32::MAX);
        let first = self.orphans.front_mut()?;
        let batches = first.batches.div_ceil(seats).min(DEMAND_BATCHES_MAX);
        let lease = Lease { batches, ..*first };
        match first.remainder(batches) {
            Some(rest) => *first = rest,
            None => drop(self.orphans.pop_front()),
        }
        Some(lease)
    }
}

/// How many batches of a lease are applied once the seat's clock is `clock`.
fn done_batches(held: &Held, clock: Step) -> u32 {
    let done = held.at.map_or(0, |at| clock.0.saturating_sub(at.0));
    u32::try_from(done.min(u64::from(held.lease.batches))).expect("no more than the lease has")
}

/// How many batches of a lease are full, and how many samples the one after them has; those that
/// follow are empty, for batches do not overlap.
fn full_batches(lease: &Lease) -> (u32, u64) {
    let batch = u64::from(lease.batch);
    let room = lease.samples.checked_sub(lease.first + batch);
    let full = room.map_or(0, |room| room / lease.stride + 1).min(lease.batches.into());
    let full = u32::try_from(full).expect("no more than the lease has");
    let rest = if full < lease.batches { lease.positions(full) } else { 0..0 };
    (full, rest.end - rest.start)
}

fn samples_of(lease: &Lease) -> u64 {
    let (full, rest) = full_batches(lease);
    u64::from(full) * u64::from(lease.batch) + rest
}

#[cfg(test)]
#[path = "leases_tests.rs"]
mod tests;
