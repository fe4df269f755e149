//! A cluster in one thread: real engines, virtual workers, a virtual network. One seed decides it all.

use crate::invariants::{Hold, Invariant, Read, Release, ShardView, View, WorkerView};
use crate::network::Network;
use crate::oracle::Oracle;
use crate::plan::{LIFE, Plan};
use crate::report::{Summary, Violation};
use crate::server::{Fault, Server};
use crate::worker::{AskId, Phase, Wish, Worker, request, wanted};
use slackline_common::codec::codec;
use slackline_common::ids::{SeatId, ShardId, Step, Term};
use slackline_common::wire::control::NO_SEAT;
use slackline_common::wire::frame::{Reply, ReplyKind, Request, RequestKind};
use slackline_server::core::{Effect, Record, Token};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Ticks until a worker asks again, or until it knows that a message was lost; doubled each time.
const PATIENCE: u64 = 400;
/// How often a worker asks before it gives up. The last wait is 400 × 2¹⁵ ticks: no run is that long.
const ATTEMPTS_MAX: u32 = 16;
/// Events after which a run is taken for one that never ends; a long one has a fiftieth of them.
const EVENTS_MAX: u64 = 1_000_000;

/// Something that happens.
#[derive(Clone, Debug)]
enum Event {
    /// A request reaches its shard.
    Request { ask: AskId, token: Token, request: Request },
    /// The stream of a request was reset before its answer.
    Cancel { shard: ShardId, token: Token },
    /// A connection has room for the answer of a pull that was let go.
    Read { shard: ShardId, token: Token },
    /// An answer reaches its worker.
    Reply { seat: SeatId, ask: AskId, reply: Reply },
    /// A worker looks whether its request was answered.
    Timer { seat: SeatId, ask: AskId },
    /// A gradient is ready.
    Computed { seat: SeatId },
    /// A machine is gone.
    Die { seat: SeatId },
    /// The coordinator takes the seat out: its lease has passed.
    Expire { seat: SeatId },
    /// A shard hears of it.
    Depart { shard: ShardId, seat: SeatId },
}

/// A request as a shard knows it.
#[derive(Clone, Copy, Debug)]
struct Caller {
    seat: SeatId,
    ask: AskId,
    step: Step,
    /// It waits for other seats: a pull of a live seat.
    is_bound: bool,
    attempt: u32,
}

/// One run.
pub(crate) struct World {
    plan: Arc<Plan>,
    network: Network<Event>,
    servers: Vec<Server>,
    oracles: Vec<Oracle>,
    workers: Vec<Worker>,
    callers: BTreeMap<Token, Caller>,
    /// References of shards as they were sent out.
    published: BTreeMap<(ShardId, u64), Vec<f32>>,
    tokens: u64,
    terms: u64,
    view: View,
    /// What happened, one line each, when somebody wants to read it.
    trace: Option<Vec<String>>,
}

/// How a run went.
pub(crate) struct Outcome {
    pub(crate) result: Result<Summary, Violation>,
    pub(crate) trace: Vec<String>,
    /// What all shards hold at the end, as text.
    pub(crate) state: String,
}

/// Runs a plan to its end or to the first broken invariant.
pub(crate) fn run(
    plan: &Arc<Plan>,
    fault: Fault,
    invariants: &[&dyn Invariant],
    is_traced: bool,
) -> Outcome {
    let mut world = World::new(plan, fault, is_traced);
    let result = world.run(invariants);
    let state = world.servers.iter().map(Server::state).collect();
    Outcome { result, trace: world.trace.unwrap_or_default(), state }
}

impl World {
    fn new(plan: &Arc<Plan>, fault: Fault, is_traced: bool) -> Self {
        let servers: Vec<_> = plan.shards().map(|id| Server::new(plan, id, fault)).collect();
        let oracles: Vec<_> = plan.shards().map(|id| Oracle::new(plan, id)).collect();
        let workers = (0..plan.job.workers).map(|seat| Worker::new(plan, SeatId(seat)));
        let workers: Vec<_> = workers.collect();
        let shard = |(server, oracle): (&Server, &Oracle)| ShardView {
            report: server.report(),
            oracle: oracle.tally(),
        };
        let view = View {
            event: 0,
            is_over: false,
            is_bsp: plan.label == "bsp",
            is_exact: plan.is_exact,
            bound: plan.job.mode.bound(),
            shards: servers.iter().zip(&oracles).map(shard).collect(),
            workers: workers.iter().map(look_at).collect(),
            releases: Vec::new(),
            reads: Vec::new(),
            holds: Vec::new(),
        };
        Self {
            network: Network::new(plan),
            plan: Arc::clone(plan),
            servers,
            oracles,
            workers,
            callers: BTreeMap::new(),
            published: BTreeMap::new(),
            tokens: 0,
            terms: 0,
            view,
            trace: is_traced.then(Vec::new),
        }
    }

    fn run(&mut self, invariants: &[&dyn Invariant]) -> Result<Summary, Violation> {
        let mut wishes = Vec::new();
        for seat in (0..self.plan.job.workers).map(SeatId) {
            self.workers[seat.index()].handle_start(&mut wishes);
            self.grant(seat, &mut wishes);
            if let Some(ticks) = self.plan.seats[seat.index()].dies_at {
                self.network.after(ticks, Event::Die { seat });
            }
        }
        let mut before = self.view.clone();
        while let Some(event) = self.network.poll_event().filter(|_| before.event < EVENTS_MAX) {
            self.view.event += 1;
            if let Some(trace) = &mut self.trace {
                trace.push(format!("{:>6} {}", self.network.now(), line(&event)));
            }
            self.handle(event);
            self.check(invariants, &before)?;
            self.view.reads.clear();
            self.view.holds.clear();
            self.view.releases.clear();
            before.clone_from(&self.view);
        }
        self.end();
        self.check(invariants, &before)?;
        Ok(self.summary())
    }

    fn check(&self, invariants: &[&dyn Invariant], before: &View) -> Result<(), Violation> {
        for invariant in invariants {
            invariant.check(before, &self.view).map_err(|sentence| Violation {
                seed: self.plan.seed,
                event: self.view.event,
                invariant: invariant.name(),
                sentence,
            })?;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Request { ask, token, request } => self.handle_request(ask, token, request),
            Event::Cancel { shard, token } => self.servers[shard.index()].cancel(token),
            Event::Read { shard, token } => self.read(shard, token),
            Event::Reply { seat, ask, reply } => {
                let mut wishes = Vec::new();
                let worker = &mut self.workers[seat.index()];
                let before = worker.holds.clone();
                worker.handle_reply(ask, &reply, &mut wishes);
                for (shard, (held, before)) in
                    self.plan.shards().zip(worker.holds.iter().zip(before))
                {
                    if *held != before {
                        let published = self.published.get(&(shard, held.publish)).cloned();
                        self.view.holds.push(Hold { shard, seat, held: held.clone(), published });
                    }
                }
                self.grant(seat, &mut wishes);
            }
            Event::Timer { seat, ask } => self.send(seat, ask),
            Event::Computed { seat } => {
                let mut wishes = Vec::new();
                self.workers[seat.index()].handle_computed(&mut wishes);
                self.grant(seat, &mut wishes);
            }
            Event::Die { seat } => {
                if !matches!(self.workers[seat.index()].phase, Phase::Done | Phase::Refused) {
                    self.workers[seat.index()].handle_death();
                    self.network.after(self.plan.network.lease, Event::Expire { seat });
                    self.look_at_worker(seat);
                }
            }
            Event::Expire { seat } => {
                for shard in self.plan.shards() {
                    for _ in 0..1 + u8::from(self.network.chance(20)) {
                        self.network.deliver(Event::Depart { shard, seat });
                    }
                }
            }
            Event::Depart { shard, seat } => {
                self.terms += 1;
                let record = Record::Depart { seat, incarnation: LIFE, term: Term(self.terms) };
                let mut effects = Vec::new();
                self.oracles[shard.index()].handle_gone(seat);
                self.servers[shard.index()].handle_order(&record, &mut effects);
                self.settle(shard, effects);
            }
        }
    }

    /// Does what a worker wants.
    fn grant(&mut self, seat: SeatId, wishes: &mut Vec<Wish>) {
        for wish in wishes.drain(..) {
            match wish {
                Wish::Send(ask) => self.send(seat, ask),
                Wish::Compute => {
                    let (least, most) = self.plan.seats[seat.index()].compute;
                    let ticks = self.network.between(least, most);
                    self.network.after(ticks, Event::Computed { seat });
                }
            }
        }
        self.look_at_worker(seat);
    }

    /// Sends a request, the first time or again, unless it was answered.
    fn send(&mut self, seat: SeatId, id: AskId) {
        let Some(ask) = self.workers[seat.index()].asks.get_mut(&id) else { return };
        let attempt = ask.attempts;
        if attempt == ATTEMPTS_MAX {
            return;
        }
        self.tokens += 1;
        let token = Token(self.tokens);
        ask.attempts += 1;
        let given_up = ask.token.replace(token);
        let request = ask.request.clone();
        let shard = request.shard;
        if let Some(token) = given_up.filter(|_| self.network.chance(50)) {
            self.network.deliver(Event::Cancel { shard, token });
        }
        let comes = self.network.send(attempt, Event::Request { ask: id, token, request });
        if !comes || self.plan.network.is_impatient {
            self.network.after(PATIENCE << attempt, Event::Timer { seat, ask: id });
        }
    }

    fn handle_request(&mut self, ask: AskId, sent_as: Token, request: Request) {
        let Request { shard, seat, step, kind, .. } = request;
        let worker = &self.workers[seat.index()];
        if worker.phase == Phase::Dead && self.network.chance(50) {
            return; // it went down with its machine
        }
        // A copy that the network made is another stream; the first keeps the name it can be
        // cancelled by.
        let token = if self.callers.contains_key(&sent_as) {
            self.tokens += 1;
            Token(self.tokens)
        } else {
            sent_as
        };
        let oracle = &mut self.oracles[shard.index()];
        let is_bound = kind.is_pull() && oracle.is_live(seat);
        let attempt = worker.asks.get(&ask).map_or(0, |ask| ask.attempts);
        self.callers.insert(token, Caller { seat, ask, step, is_bound, attempt });
        oracle.handle_request(&request);
        let mut effects = Vec::new();
        self.servers[shard.index()].handle_request(request, token, &mut effects);
        self.settle(shard, effects);
    }

    /// Sends the answers that a record set free.
    fn settle(&mut self, shard: ShardId, effects: Vec<Effect>) {
        for effect in effects {
            if let Effect::Reply { token, reply } = effect {
                self.reply(token, reply);
            }
        }
        while let Some(token) = self.servers[shard.index()].poll_release() {
            let caller = self.callers[&token];
            if caller.is_bound {
                let oracle = &mut self.oracles[shard.index()];
                self.view.releases.push(Release {
                    shard,
                    seat: caller.seat,
                    step: caller.step.0,
                    staleness: oracle.handle_release(caller.step),
                    own_steps: oracle.clock(caller.seat),
                });
            }
            if self.network.chance(self.plan.network.slow_read_percent) {
                self.network.deliver(Event::Read { shard, token });
            } else {
                self.read(shard, token);
            }
        }
        self.look_at_shard(shard);
    }

    /// Reads a pull that was let go, unless it was cancelled meanwhile.
    fn read(&mut self, shard: ShardId, token: Token) {
        let Some(reply) = self.servers[shard.index()].read(token) else { return };
        let Caller { seat, step, .. } = self.callers[&token];
        if matches!(reply.kind, ReplyKind::Deltas | ReplyKind::Reference) {
            let (reference, publish) = self.servers[shard.index()].reference();
            self.published.insert((shard, publish), reference);
            return self.reply(token, reply);
        }
        let mut got = Vec::new();
        for (entry, bytes) in reply.payloads() {
            let mut values = vec![0.0; self.plan.layout.blocks()[entry.block.index()].len];
            codec(entry.codec).decode(&bytes, &mut values).expect("a shard sends whole blocks");
            got.append(&mut values);
        }
        let expected = self.oracles[shard.index()].expected();
        self.view.reads.push(Read { shard, seat, step: step.0, got, expected });
        if seat != NO_SEAT {
            self.reply(token, reply);
        }
    }

    fn reply(&mut self, token: Token, reply: Reply) {
        let Caller { seat, ask, attempt, .. } = self.callers[&token];
        let comes = self.network.send(attempt, Event::Reply { seat, ask, reply });
        if !comes && !self.plan.network.is_impatient {
            self.network.after(PATIENCE << attempt, Event::Timer { seat, ask });
        }
    }

    /// The last look: all parameters, read without a seat, and who has not finished.
    fn end(&mut self) {
        self.view.is_over = true;
        for shard in self.plan.shards() {
            self.tokens += 1;
            let token = Token(self.tokens);
            let mut request = request(RequestKind::Pull, shard, NO_SEAT);
            request.blocks = wanted(&self.plan, shard);
            let step = Step(self.oracles[shard.index()].closed());
            let caller = Caller { seat: NO_SEAT, ask: AskId(0), step, is_bound: false, attempt: 0 };
            self.callers.insert(token, caller);
            let server = &mut self.servers[shard.index()];
            server.handle_request(request, token, &mut Vec::new());
            let released = server.poll_release();
            assert_eq!(released, Some(token), "a pull without a seat waits for nobody");
            self.read(shard, token);
        }
        for (worker, view) in self.workers.iter().zip(&mut self.view.workers) {
            let asks = worker.asks.values();
            let asks = asks.map(|ask| format!("{:?} of {}", ask.request.kind, ask.request.shard));
            view.why = format!("no answer to {}", asks.collect::<Vec<_>>().join(", "));
        }
    }

    fn look_at_shard(&mut self, shard: ShardId) {
        let view = &mut self.view.shards[shard.index()];
        view.report = self.servers[shard.index()].report();
        view.oracle = self.oracles[shard.index()].tally();
    }

    fn look_at_worker(&mut self, seat: SeatId) {
        self.view.workers[seat.index()] = look_at(&self.workers[seat.index()]);
    }

    fn summary(&self) -> Summary {
        let shards = || self.view.shards.iter().map(|shard| &shard.oracle);
        let dead = self.workers.iter().filter(|worker| worker.phase == Phase::Dead);
        let mut summary = Summary {
            schedules: 1,
            events: self.view.event,
            pushes: shards().map(|tally| tally.pushes).sum(),
            repetitions: shards().map(|tally| tally.duplicates).sum(),
            lost: self.network.lost,
            duplicated: self.network.duplicated,
            killed: dead.count() as u64,
            largest: BTreeMap::new(),
        };
        let largest = shards().map(|tally| tally.max_staleness).max().unwrap_or(0);
        summary.largest.insert(self.plan.label, (1, largest));
        summary
    }
}

fn look_at(worker: &Worker) -> WorkerView {
    WorkerView { phase: worker.phase, step: worker.step, why: worker.refusal.clone() }
}

/// An event in a line.
fn line(event: &Event) -> String {
    match event {
        Event::Request { request, .. } => {
            let Request { kind, shard, seat, step, part, last, samples, .. } = request;
            let part = match kind {
                RequestKind::Push if *last => format!(" part {part}, the last, {samples} samples"),
                RequestKind::Push => format!(" part {part}, {samples} samples"),
                _ => String::new(),
            };
            format!("{shard} <- {seat}: {kind:?} {step}{part}")
        }
        Event::Reply { seat, ask, reply } => {
            let Reply { kind, version, slowest, .. } = reply;
            let sentence = reply.sentence();
            let why = if sentence.is_ascii() && *kind as u8 == 3 { &sentence } else { "" };
            let (version, slowest) = (version.0, slowest.0);
            format!("{seat} <- {kind:?} to {}, version {version}, slowest {slowest} {why}", ask.0)
        }
        other => format!("{other:?}"),
    }
}
