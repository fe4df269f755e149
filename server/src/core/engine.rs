//! The engine of one shard: admit a request, apply the record it became, release who may go on.
//!
//! ```text
//! request ─ admit ─▶ Record ─ (a log would write it here) ─ apply ─▶ effects
//!                └▶ Refused / Known / Waiting     poll_record ─▶ more records (bsp: Close)
//!                                                 poll_release ─▶ pulls to read
//! ```
//!
//! `admit` decides and changes nothing that lasts; `apply` changes and decides nothing that could be
//! refused later: what it is given again, or out of turn, it ignores. `shard::Shard` is the driver.
//!
//! # Rules that need saying
//!
//! * A push is acknowledged once it is kept (`bsp`) or applied (`ssp`, `asp`).
//! * A seat that goes: its complete steps count, its incomplete ones are dropped. Where pushes are
//!   applied on arrival, the parts of an incomplete step that have come have counted already.
//! * `ssp`, `asp`: a push moves the model by `samples / (workers × batch)` of the rate; with
//!   [`Reduce::Sum`] by the whole rate. Running statistics always move by the share.
//! * A version is a closed step, or a whole push, of which at least one contribution counted.
//! * Schedules run on closed steps, or on whole global batches of samples applied. In local mode they
//!   belong to the workers' inner rate, and a push moves the model by `1 / workers` however many samples
//!   its round had: a short round came less far already.
//! * A job that sends deltas publishes with every closed step, or, where pushes are applied on arrival,
//!   before a pull that would see something new.
//! * With momentum correction the workers' pushes carry the momentum from the start of the ramp on: the
//!   momentum optimizer then has momentum 0, which is plain gradient descent.

use super::arrival::{Arrival, share};
use super::check::Verdict;
use super::clock::{Clocks, SeatState, Token};
use super::ledger::{Kept, OpenSteps};
use super::publish::Publisher;
use super::reads::Pull;
use super::record::{Push, Record, payloads};
use super::staging::Staging;
use super::store::{Contribution, Setting, Store};
use slackline_common::codec::codec;
use slackline_common::ids::{Fingerprint, Incarnation, SeatId, ShardId, Step, Term, Version};
use slackline_common::job::{Job, Mode, OptimizerSpec, Reduce};
use slackline_common::layout::Layout;
use slackline_common::limits::REPLIES_ENCODED_PER_CONNECTION_MAX;
use slackline_common::optimizer::{Update, clip_factors, staleness_factor};
use slackline_common::placement::Placement;
use slackline_common::wire::control::ShardReport;
use slackline_common::wire::frame::{Reply, Request, RequestKind};
use slackline_common::wire::pool::BufferPool;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What an engine is made for.
#[derive(Clone, Debug)]
pub struct EngineSpec {
    /// The job.
    pub job: Arc<Job>,
    /// All tensors, those of other shards included.
    pub layout: Arc<Layout>,
    /// Which shard this is.
    pub shard: ShardId,
    /// Number of shards of the job.
    pub shards: u16,
    /// The live seats and their lives.
    pub seats: Vec<(SeatId, Incarnation)>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// Write it down, apply it, then answer [`Engine::ack`].
    Record(Record),
    /// Broke a rule; answer this.
    Refused(Reply),
    /// Was here before; answer this.
    Duplicate(Reply),
    /// A pull: [`Engine::poll_release`] names its token when it may be read.
    Waiting,
}

/// What the outside has to do after a record.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Answer a request that waited.
    Reply {
        /// Which.
        token: Token,
        /// With what.
        reply: Reply,
    },
    /// Tell people.
    Event(String),
}

/// One shard. Holds its parameters once and each optimizer slot once; beside them one block of
/// scratch, and by reference what pushes of open steps and staged first values hold.
#[derive(Debug)]
pub struct Engine {
    pub(super) job: Arc<Job>,
    pub(super) layout: Arc<Layout>,
    pub(super) shard: ShardId,
    pub(super) store: Store,
    pub(super) clocks: Clocks,
    pub(super) ledgers: BTreeMap<SeatId, OpenSteps>,
    pub(super) staging: Staging,
    pub(super) initialised: bool,
    pub(super) version: Version,
    pub(super) pulls: BTreeMap<Token, Pull>,
    pub(super) pool: BufferPool,
    /// Present in jobs that send deltas.
    pub(super) publisher: Option<Publisher>,
    /// `auto`: the rung of the ladder that each live seat wishes parameters to come down with.
    pub(super) wishes: BTreeMap<SeatId, u8>,
    sequence: u64,
    term: Term,
    samples: u64,
    pushes_applied: u64,
    contributions_refused: u64,
    duplicates: u64,
}

impl Engine {
    /// A shard without first values.
    ///
    /// # Panics
    /// If `spec.shards` is 0 or `spec.shard` is not below it: the caller numbers its shards.
    pub fn new(spec: EngineSpec) -> Self {
        let EngineSpec { job, layout, shard, shards, seats } = spec;
        let placement = Placement::balance(&layout, shards);
        let blocks = placement.blocks_of(shard).iter().map(|id| layout.blocks()[id.index()]);
        let store = Store::new(&job, blocks.collect());
        let publisher = job.sends_deltas().then(|| Publisher::new(&job, &layout, store.blocks()));
        Self {
            store,
            publisher,
            wishes: BTreeMap::new(),
            clocks: Clocks::new(job.mode, &seats),
            ledgers: seats.iter().map(|(seat, _)| (*seat, OpenSteps::new())).collect(),
            staging: Staging::default(),
            initialised: false,
            version: Version(0),
            pulls: BTreeMap::new(),
            pool: BufferPool::new(REPLIES_ENCODED_PER_CONNECTION_MAX),
            sequence: 0,
            term: Term(0),
            samples: 0,
            pushes_applied: 0,
            contributions_refused: 0,
            duplicates: 0,
            job,
            layout,
            shard,
        }
    }

    /// Decides what becomes of a request. Nothing that lasts changes: only the list of waiting pulls
    /// and the count of duplicates. A record must be applied before the next request is admitted.
    pub fn admit(&mut self, request: Request, token: Token) -> Admission {
        let record = match request.kind {
            RequestKind::Pull | RequestKind::PullDeltas => return self.admit_pull(request, token),
            RequestKind::Push => Record::Push(request.into()),
            RequestKind::Leave => {
                Record::Leave { seat: request.seat, incarnation: request.incarnation }
            }
            RequestKind::Init => {
                if let Err(verdict) = self.check_live(request.seat, request.incarnation) {
                    return refuse(verdict);
                }
                let Request { seat, blocks, body, .. } = request;
                Record::Stage { seat, blocks, body }
            }
        };
        match self.check(&record) {
            Verdict::Fresh => Admission::Record(record),
            Verdict::Known => {
                self.duplicates += u64::from(matches!(record, Record::Push(_)));
                Admission::Duplicate(self.ack())
            }
            refused @ Verdict::Refused(..) => refuse(refused),
        }
    }

    /// The plain acknowledgement of what was just applied.
    pub fn ack(&self) -> Reply {
        Reply::ack(self.version, self.clocks.slowest())
    }

    /// Applies the record with this number. A record that [`Engine::check`] does not call fresh does
    /// nothing, so a log may be read twice.
    pub fn apply(&mut self, sequence: u64, record: &Record, effects: &mut Vec<Effect>) {
        self.sequence = sequence;
        if self.check(record) != Verdict::Fresh {
            return;
        }
        match record {
            Record::InitFromSeed => self.commit_init(None),
            Record::CommitInit { seat } => self.commit_init(Some(*seat)),
            Record::Stage { seat, blocks, body } => {
                for (entry, bytes) in payloads(blocks, body) {
                    if let Some(at) = self.store.find(entry.block) {
                        self.staging.put(*seat, at, Kept { codec: entry.codec, bytes });
                    }
                }
            }
            Record::Push(push) => self.apply_push(push, effects),
            Record::Close { step } => self.close(*step),
            Record::Publish { .. } => self.publish(),
            Record::Down { level } => {
                if let Some(publisher) = &mut self.publisher {
                    publisher.set_level(*level, &self.layout, self.store.blocks());
                }
            }
            Record::Leave { seat, .. } => self.remove(*seat, SeatState::Left, effects),
            Record::Depart { seat, term, .. } => {
                self.term = self.term.max(*term);
                self.remove(*seat, SeatState::Departed, effects);
            }
        }
    }

    /// Output: the next record that follows from the state alone. Call until it returns `None`,
    /// applying each.
    pub fn poll_record(&self) -> Option<Record> {
        if let Some(step) = self.clocks.closable() {
            return Some(Record::Close { step });
        }
        let publisher = self.publisher.as_ref()?;
        if publisher.level().is_some() {
            let live = |seat: &SeatId| {
                self.clocks.seat(*seat).is_some_and(|seat| seat.state == SeatState::Live)
            };
            let wishes = self.wishes.iter().filter(|(seat, _)| live(seat));
            let wish = wishes.map(|(_, level)| *level).max();
            if let Some(level) = wish.filter(|level| Some(*level) != publisher.level()) {
                return Some(Record::Down { level });
            }
        }
        let waits = |token: Token| self.pulls.get(&token).is_some_and(|pull| pull.held.is_some());
        let is_due = publisher.is_due() && self.clocks.releasable().any(waits);
        is_due.then(|| Record::Publish { number: publisher.number() + 1 })
    }

    /// The number of the last record.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether pushes and pulls are taken.
    pub const fn is_initialised(&self) -> bool {
        self.initialised
    }

    /// What every worker at the last publish holds, block after block, and that publish's number; `None`
    /// in a job that sends no deltas.
    pub fn reference(&self) -> Option<(&[f32], u64)> {
        self.publisher.as_ref().map(|publisher| (publisher.reference(), publisher.number()))
    }

    /// A seat's clock on this shard.
    pub fn clock(&self, seat: SeatId) -> Option<Step> {
        self.clocks.seat(seat).map(|seat| seat.clock)
    }

    /// What the shard says of itself.
    pub fn report(&self) -> ShardReport {
        ShardReport {
            shard: self.shard,
            version: self.version,
            slowest: self.clocks.slowest(),
            clocks: self.clocks.live().map(|(id, seat)| (id, seat.clock)).collect(),
            pushes_applied: self.pushes_applied,
            contributions_refused: self.contributions_refused,
            duplicates: self.duplicates,
            max_staleness: self.clocks.max_staleness(),
            samples: self.samples,
        }
    }

    /// A hash of every bit that later records build on: parameters, optimizer state, clocks, open
    /// steps, version. Waiting pulls and the count of duplicates are not part of it.
    pub fn state_hash(&self) -> Fingerprint {
        let mut hash = blake3::Hasher::new();
        self.store.hash(&mut hash);
        for (id, seat) in self.clocks.seats() {
            hash.update(&id.0.to_le_bytes()).update(&seat.incarnation.0.to_le_bytes());
            hash.update(&seat.clock.0.to_le_bytes()).update(&[seat.state as u8]);
        }
        for (seat, steps) in &self.ledgers {
            for (step, open) in steps {
                hash.update(&seat.0.to_le_bytes()).update(&step.0.to_le_bytes());
                open.hash(&mut hash);
            }
        }
        self.staging.hash(&mut hash);
        if let Some(publisher) = &self.publisher {
            publisher.hash(&mut hash);
        }
        let numbers = [
            u64::from(self.initialised),
            self.version.0,
            self.clocks.closed().0,
            self.term.0,
            self.samples,
            self.pushes_applied,
            self.contributions_refused,
        ];
        numbers.iter().for_each(|number| {
            hash.update(&number.to_le_bytes());
        });
        Fingerprint(*hash.finalize().as_bytes())
    }

    /// Makes the first values: those of the seat where it sent some, the seed's elsewhere.
    fn commit_init(&mut self, winner: Option<SeatId>) {
        let staged = winner.map(|seat| self.staging.take(seat)).unwrap_or_default();
        for at in 0..self.store.blocks().len() {
            match staged.get(&at) {
                Some(kept) => self.store.set(at, kept),
                None => self.store.initialise(&self.layout, self.job.seed, at),
            }
        }
        self.initialised = true;
        if let Some(publisher) = &mut self.publisher {
            publisher.restart(&self.store);
        }
    }

    fn publish(&mut self) {
        if let Some(publisher) = &mut self.publisher {
            publisher.publish(&self.store);
        }
    }

    /// The factor of the rate at a step.
    fn schedule_factor(&self, step: u64) -> f32 {
        if self.job.local.is_some() { 1.0 } else { self.job.schedule.factor(step) }
    }

    /// The optimizer at a step.
    fn optimizer_at(&self, step: u64) -> OptimizerSpec {
        match self.job.optimizer {
            OptimizerSpec::Momentum { learning_rate, weight_decay, nesterov, .. }
                if self.job.feedback.momentum_correction && step >= self.job.ramp.begin_step =>
            {
                OptimizerSpec::Momentum { learning_rate, momentum: 0.0, weight_decay, nesterov }
            }
            other => other,
        }
    }

    fn apply_push(&mut self, push: &Push, effects: &mut Vec<Effect>) {
        let arrival = (self.job.mode != Mode::Bsp).then(|| self.arrival(push));
        let open = self.ledgers.entry(push.seat).or_default().entry(push.step).or_default();
        open.take_part(push);
        let was_complete = open.is_complete();
        let mut told = None;
        for (entry, bytes) in payloads(&push.blocks, &push.body) {
            let Some(at) = self.store.find(entry.block) else { continue };
            if !codec(entry.codec).is_finite(&bytes) {
                open.blocks.insert(at, None);
                self.contributions_refused += 1;
                let tensor = self.store.blocks()[at].tensor;
                if told.replace(tensor) != Some(tensor) {
                    let name = &self.layout.tensors()[tensor.index()].name;
                    effects.push(Effect::Event(format!(
                        "{} pushed NaN or infinity in tensor {name:?} at {}: its contribution is left out, training goes on",
                        push.seat, push.step
                    )));
                }
                continue;
            }
            open.counted |= push.samples > 0;
            let kept = Kept { codec: entry.codec, bytes };
            match &arrival {
                _ if push.samples == 0 => drop(open.blocks.insert(at, None)),
                None => drop(open.blocks.insert(at, Some(kept))),
                Some(arrival) => {
                    open.blocks.insert(at, None);
                    let tensor = self.store.blocks()[at].tensor;
                    let update =
                        arrival.update(tensor.index(), self.layout.tensors()[tensor.index()].role);
                    let setting = Setting {
                        job: &self.job,
                        optimizer: &arrival.optimizer,
                        layout: &self.layout,
                    };
                    self.store.update(&setting, at, &update, &kept);
                    if let Some(publisher) = &mut self.publisher {
                        publisher.handle_applied(at, arrival.share);
                    }
                }
            }
        }
        if was_complete {
            self.complete(push.seat, push.step);
        }
    }

    /// All parts of a step are in.
    fn complete(&mut self, seat: SeatId, step: Step) {
        let Some(steps) = self.ledgers.get_mut(&seat) else { return };
        let is_bsp = self.job.mode == Mode::Bsp;
        if let Some(open) = steps.get(&step).filter(|_| !is_bsp) {
            self.version.0 += u64::from(open.counted);
            self.pushes_applied += u64::from(open.counted);
            self.samples += u64::from(open.samples);
        }
        loop {
            let Some(clock) = self.clocks.seat(seat).map(|seat| seat.clock) else { return };
            if !steps.get(&clock).is_some_and(super::ledger::OpenStep::is_complete) {
                return;
            }
            if !is_bsp {
                steps.remove(&clock);
            }
            self.clocks.handle_complete(seat);
        }
    }

    /// `bsp`: makes the one update of a step, block by block.
    fn close(&mut self, step: Step) {
        // Live seats have completed the step, and who is gone left no incomplete one behind.
        let complete: Vec<_> = self
            .ledgers
            .values_mut()
            .filter_map(|steps| steps.remove(&step))
            .filter(|open| open.samples > 0)
            .collect();
        let norms = complete.iter().map(|open| open.norms()).find(|norms| !norms.is_empty());
        let factors = clip_factors(&self.job.clip, norms.unwrap_or_default());
        let rate = self.job.optimizer.learning_rate() * self.schedule_factor(step.0);
        let optimizer = self.optimizer_at(step.0);
        let mut contributions = Vec::with_capacity(complete.len());
        let mut any = false;
        for at in 0..self.store.blocks().len() {
            contributions.clear();
            contributions.extend(complete.iter().filter_map(|open| {
                let kept = open.blocks.get(&at)?.as_ref()?;
                Some(Contribution { kept, samples: open.samples })
            }));
            if contributions.is_empty() {
                continue;
            }
            any = true;
            let tensor = self.store.blocks()[at].tensor.index();
            let update = Update { rate, share: 1.0, clip_factor: factors.factor(tensor) };
            let setting = Setting { job: &self.job, optimizer: &optimizer, layout: &self.layout };
            self.store.update_by(&setting, at, &update, &contributions);
            if let Some(publisher) = &mut self.publisher {
                publisher.handle_applied(at, 1.0);
            }
        }
        for open in &complete {
            self.pushes_applied += u64::from(open.counted);
            self.samples += u64::from(open.samples);
        }
        self.version.0 += u64::from(any);
        self.clocks.handle_closed();
        if any {
            self.publish();
        }
    }

    /// How a push moves the model when it is applied on arrival.
    fn arrival(&self, push: &Push) -> Arrival {
        let global_batch = self.job.server_step_samples().max(1);
        let step = self.samples / global_batch;
        let mut rate = self.job.optimizer.learning_rate() * self.schedule_factor(step);
        if self.job.mode == (Mode::Asp { scale_by_staleness: true }) {
            rate *= staleness_factor(self.version.0.saturating_sub(push.version.0));
        }
        let share = match self.job.local {
            Some(_) => share(1, u64::from(self.job.workers)),
            None => share(push.samples, global_batch),
        };
        Arrival {
            rate,
            optimizer: self.optimizer_at(step),
            share,
            parameter_share: if self.job.reduce == Reduce::Sum { 1.0 } else { share },
            factors: clip_factors(&self.job.clip, &push.norms),
        }
    }

    /// Takes a seat out: complete steps stay, incomplete ones go, its waiting pulls are refused.
    fn remove(&mut self, seat: SeatId, state: SeatState, effects: &mut Vec<Effect>) {
        self.clocks.handle_gone(seat, state);
        self.wishes.remove(&seat);
        if state == SeatState::Departed {
            // Who leaves by itself may have been chosen already: its values stay until the commit.
            self.staging.forget(seat);
        }
        if let Some(steps) = self.ledgers.get_mut(&seat) {
            steps.retain(|_, open| open.is_complete());
        }
        self.refuse_pulls_of(seat, state, effects);
    }
}

pub(super) fn refuse(verdict: Verdict) -> Admission {
    match verdict {
        Verdict::Refused(refusal, sentence) => {
            Admission::Refused(Reply::refused(refusal, sentence))
        }
        Verdict::Fresh | Verdict::Known => unreachable!("only refusals are refused"),
    }
}
