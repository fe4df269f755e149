//! What a shard must say, worked out from nothing but the messages that the simulator delivered to it
//! and the gradients that the plan gave them: a plain loop that shares no line with the engine.

use crate::plan::{LEARNING_RATE, Plan};
use slackline_common::ids::{SeatId, ShardId, Step};
use slackline_common::job::Mode;
use slackline_common::wire::frame::{Request, RequestKind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// One step of one seat as far as it was delivered.
#[derive(Clone, Debug, Default)]
struct Delivered {
    parts: BTreeSet<u32>,
    count: Option<usize>,
    samples: u32,
    has_blocks: bool,
}

impl Delivered {
    fn is_whole(&self) -> bool {
        self.count == Some(self.parts.len())
    }
}

#[derive(Clone, Debug)]
struct Seat {
    is_live: bool,
    clock: u64,
    steps: BTreeMap<u64, Delivered>,
}

/// The numbers an engine also reports.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Tally {
    /// Clocks of the live seats.
    pub(crate) clocks: Vec<(SeatId, Step)>,
    pub(crate) version: u64,
    pub(crate) pushes: u64,
    pub(crate) samples: u64,
    /// Parts that were delivered again.
    pub(crate) duplicates: u64,
    /// Largest distance of a released step from the slowest live seat.
    pub(crate) max_staleness: u64,
}

/// One shard's bookkeeping.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    plan: Arc<Plan>,
    /// Where this shard's blocks lie in the flat vector, in order.
    ranges: Vec<(u32, Range<usize>)>,
    seats: Vec<Seat>,
    closed: u64,
    /// All parameters, at the places of the flat vector; those of other shards stay as they were.
    values: Vec<f32>,
    /// The same in whole numbers, when the plan is exact.
    integers: Vec<i64>,
    tally: Tally,
}

impl Oracle {
    pub(crate) fn new(plan: &Arc<Plan>, shard: ShardId) -> Self {
        let blocks = plan.placement.blocks_of(shard).iter();
        let seat = Seat { is_live: true, clock: 0, steps: BTreeMap::new() };
        Self {
            ranges: blocks.map(|id| (id.0, plan.layout.blocks()[id.index()].range())).collect(),
            seats: vec![seat; plan.seats.len()],
            closed: 0,
            values: vec![1.0; plan.layout.elements()],
            integers: vec![1; plan.layout.elements()],
            tally: Tally::default(),
            plan: Arc::clone(plan),
        }
    }

    /// Input: a request reaches the shard.
    pub(crate) fn handle_request(&mut self, request: &Request) {
        match request.kind {
            RequestKind::Push => self.handle_push(request),
            RequestKind::Leave => self.handle_gone(request.seat),
            RequestKind::Pull | RequestKind::PullDeltas | RequestKind::Init => {}
        }
    }

    /// Input: the seat holds nobody back from now on. What it has delivered whole still counts.
    pub(crate) fn handle_gone(&mut self, seat: SeatId) {
        let seat = &mut self.seats[seat.index()];
        seat.is_live = false;
        seat.steps.retain(|_, step| step.is_whole());
        self.close();
    }

    /// Input: a pull of a live seat was let go.
    pub(crate) fn handle_release(&mut self, step: Step) -> u64 {
        let staleness = step.0.saturating_sub(self.slowest());
        self.tally.max_staleness = self.tally.max_staleness.max(staleness);
        staleness
    }

    fn handle_push(&mut self, request: &Request) {
        let is_bsp = self.plan.job.mode == Mode::Bsp;
        let (id, step) = (request.seat, request.step.0);
        let seat = &mut self.seats[id.index()];
        let known = seat.steps.get(&step).is_some_and(|step| step.parts.contains(&request.part));
        if step < seat.clock || known {
            self.tally.duplicates += 1;
            return;
        }
        if !seat.is_live {
            return;
        }
        let delivered = seat.steps.entry(step).or_default();
        delivered.parts.insert(request.part);
        delivered.samples = request.samples;
        delivered.has_blocks |= !request.blocks.is_empty();
        if request.last {
            delivered.count = Some(request.part as usize + 1);
        }
        let (is_whole, counts) =
            (delivered.is_whole(), delivered.samples > 0 && delivered.has_blocks);
        if is_whole && !is_bsp {
            self.tally.pushes += u64::from(counts);
            self.tally.version += u64::from(counts);
            self.tally.samples += u64::from(request.samples);
        }
        while seat.steps.get(&seat.clock).is_some_and(Delivered::is_whole) {
            seat.clock += 1;
        }
        if is_bsp {
            self.close();
        } else if request.samples > 0 {
            for entry in &request.blocks {
                let range = self.plan.layout.blocks()[entry.block.index()].range();
                self.add(id, step, range);
            }
        }
    }

    /// Adds whole numbers at once.
    fn add(&mut self, seat: SeatId, step: u64, range: Range<usize>) {
        for element in range {
            self.integers[element] += self.plan.gradient(seat, step, element) as i64;
        }
    }

    /// `bsp`: makes the update of every step that all live seats have delivered.
    fn close(&mut self) {
        while self.plan.job.mode == Mode::Bsp && self.slowest() > self.closed {
            let step = self.closed;
            let given = (0..).map(SeatId).zip(&self.seats);
            let given: Vec<_> = given
                .filter_map(|(id, seat)| Some((id, seat.steps.get(&step)?)))
                .filter(|(_, delivered)| delivered.is_whole() && delivered.samples > 0)
                .map(|(id, delivered)| (id, delivered.samples, delivered.has_blocks))
                .collect();
            self.update(step, &given);
            self.closed += 1;
        }
    }

    /// The loop that one process with all the gradients would run.
    fn update(&mut self, step: u64, given: &[(SeatId, u32, bool)]) {
        self.tally.pushes += given.iter().filter(|(.., has_blocks)| *has_blocks).count() as u64;
        self.tally.version += u64::from(given.iter().any(|(.., has_blocks)| *has_blocks));
        self.tally.samples += given.iter().map(|(_, samples, _)| u64::from(*samples)).sum::<u64>();
        if given.is_empty() {
            return;
        }
        let common = (1..=6).rev().find(|n| given.iter().all(|(_, samples, _)| samples % n == 0));
        let common = common.expect("1 divides everything");
        let total: u32 = given.iter().map(|(_, samples, _)| samples / common).sum();
        for (_, range) in self.ranges.clone() {
            for element in range.clone() {
                let mut sum = 0.0f32;
                for (seat, samples, _) in given {
                    let weight = (samples / common) as f32;
                    sum += weight * self.plan.gradient(*seat, step, element);
                }
                self.values[element] -= LEARNING_RATE * (sum / total as f32);
            }
            for (seat, ..) in given.iter().filter(|_| self.plan.is_exact) {
                for element in range.clone() {
                    self.integers[element] += self.plan.gradient(*seat, step, element) as i64;
                }
            }
        }
    }

    /// The slowest live seat's clock; with nobody live, the furthest that anybody came.
    fn slowest(&self) -> u64 {
        let live = self.seats.iter().filter(|seat| seat.is_live).map(|seat| seat.clock).min();
        live.unwrap_or_else(|| self.seats.iter().map(|seat| seat.clock).max().unwrap_or(0))
    }

    pub(crate) fn is_live(&self, seat: SeatId) -> bool {
        self.seats.get(seat.index()).is_some_and(|seat| seat.is_live)
    }

    /// The steps of a seat that were delivered whole, without a gap.
    pub(crate) fn clock(&self, seat: SeatId) -> u64 {
        self.seats[seat.index()].clock
    }

    /// Steps whose update is made.
    pub(crate) const fn closed(&self) -> u64 {
        self.closed
    }

    /// The shard's parameters now, block after block.
    pub(crate) fn expected(&self) -> Vec<f32> {
        let all = self.ranges.iter().flat_map(|(_, range)| range.clone());
        if self.plan.is_exact {
            all.map(|element| self.integers[element] as f32).collect()
        } else {
            all.map(|element| self.values[element]).collect()
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        let live = (0..).map(SeatId).zip(&self.seats).filter(|(_, seat)| seat.is_live);
        let clocks = live.map(|(id, seat)| (id, Step(seat.clock))).collect();
        Tally { clocks, ..self.tally.clone() }
    }
}
