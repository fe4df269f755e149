//! A virtual worker: pull what is released → compute for a while → push parts to every shard → pull
//! again; leave at the end. It keeps all rules of the protocol and repeats what is not answered.

use crate::plan::{LIFE, Plan};
use bytes::Bytes;
use slackline_common::codec::{CodecId, codec, plain};
use slackline_common::ids::{BlockId, SeatId, ShardId, Step, Version};
use slackline_common::model::initialise;
use slackline_common::wire::frame::{BlockEntry, Reply, ReplyKind, Request, RequestKind};
use slackline_server::core::Token;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a worker stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Waits for parameters.
    Pulling,
    /// Computes a gradient.
    Computing,
    /// Waits for its pushes to be acknowledged.
    Pushing,
    /// Says that it pushes no more.
    Leaving,
    /// Has done all its steps.
    Done,
    /// Was killed.
    Dead,
    /// Was refused and gave up.
    Refused,
}

/// A request's name for the worker that sent it; the same for all its repetitions.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct AskId(pub(crate) u64);

/// A request that has no answer yet.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) request: Request,
    pub(crate) attempts: u32,
    /// The last repetition's name for the shard.
    pub(crate) token: Option<Token>,
}

/// What a worker wants done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wish {
    /// Send this request for the first time.
    Send(AskId),
    /// Wake it when the gradient is ready.
    Compute,
}

/// One seat's worker.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    plan: Arc<Plan>,
    pub(crate) seat: SeatId,
    pub(crate) phase: Phase,
    /// The step it works on.
    pub(crate) step: u64,
    pub(crate) asks: BTreeMap<AskId, Ask>,
    /// What the shard said that refused it.
    pub(crate) refusal: String,
    next_ask: u64,
    versions: Vec<Version>,
    /// In jobs that send deltas: what it holds of every shard.
    pub(crate) holds: Vec<Held>,
}

/// The blocks of a shard as a worker holds them, one after the other, and at which publish.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Held {
    pub(crate) publish: u64,
    pub(crate) values: Vec<f32>,
}

impl Worker {
    pub(crate) fn new(plan: &Arc<Plan>, seat: SeatId) -> Self {
        Self {
            versions: vec![Version(0); usize::from(plan.placement.shards())],
            holds: plan.shards().map(|shard| first_values(plan, shard)).collect(),
            plan: Arc::clone(plan),
            seat,
            phase: Phase::Pulling,
            step: 0,
            asks: BTreeMap::new(),
            refusal: String::new(),
            next_ask: 0,
        }
    }

    /// Input: the run begins.
    pub(crate) fn handle_start(&mut self, wishes: &mut Vec<Wish>) {
        self.pull(wishes);
    }

    /// Input: an answer. Answers to what is answered already are ignored.
    pub(crate) fn handle_reply(&mut self, id: AskId, reply: &Reply, wishes: &mut Vec<Wish>) {
        let Some(ask) = self.asks.remove(&id) else { return };
        if reply.kind == ReplyKind::Refused {
            self.refusal = format!("{:?}: {}", ask.request.kind, reply.sentence());
            self.phase = Phase::Refused;
            self.asks.clear();
            return;
        }
        if ask.request.kind == RequestKind::PullDeltas {
            self.take(ask.request.shard, reply);
        }
        if ask.request.kind.is_pull() {
            self.versions[ask.request.shard.index()] = reply.version;
        }
        let is_pull = |ask: &Ask| ask.request.kind.is_pull();
        match self.phase {
            Phase::Pulling if !self.asks.values().any(is_pull) => {
                self.phase = Phase::Computing;
                wishes.push(Wish::Compute);
            }
            Phase::Pushing if self.asks.is_empty() => {
                self.step += 1;
                if self.step < self.plan.seats[self.seat.index()].steps {
                    self.pull(wishes);
                } else {
                    self.leave(wishes);
                }
            }
            Phase::Leaving if self.asks.is_empty() => self.phase = Phase::Done,
            _ => {}
        }
    }

    /// Input: the gradient of this step is ready.
    pub(crate) fn handle_computed(&mut self, wishes: &mut Vec<Wish>) {
        if self.phase != Phase::Computing {
            return; // killed or refused meanwhile
        }
        self.phase = Phase::Pushing;
        let plan = Arc::clone(&self.plan);
        plan.shards().for_each(|shard| self.push(shard, wishes));
        let seat = &plan.seats[self.seat.index()];
        if seat.is_eager && self.step + 1 < seat.steps {
            self.step += 1;
            self.pull(wishes);
        }
    }

    /// Input: the machine is gone.
    pub(crate) fn handle_death(&mut self) {
        self.phase = Phase::Dead;
        self.asks.clear();
    }

    /// Asks every shard that has blocks for the parameters of the step.
    fn pull(&mut self, wishes: &mut Vec<Wish>) {
        self.phase = Phase::Pulling;
        let plan = Arc::clone(&self.plan);
        for shard in plan.shards() {
            let blocks = wanted(&plan, shard);
            if !blocks.is_empty() {
                let mut request = self.request(RequestKind::Pull, shard);
                if plan.job.sends_deltas() {
                    request.kind = RequestKind::PullDeltas;
                    request.version = Version(self.holds[shard.index()].publish);
                }
                request.blocks = blocks;
                self.ask(request, wishes);
            }
        }
    }

    /// Adds deltas, or takes over a reference.
    fn take(&mut self, shard: ShardId, reply: &Reply) {
        let held = &mut self.holds[shard.index()];
        let blocks = self.plan.placement.blocks_of(shard);
        let len = |id: &BlockId| self.plan.layout.blocks()[id.index()].len;
        for (entry, bytes) in reply.payloads() {
            let before = blocks.iter().take_while(|id| **id != entry.block);
            let start: usize = before.map(len).sum();
            let values = &mut held.values[start..start + len(&entry.block)];
            let format = codec(entry.codec);
            let taken = match reply.kind {
                ReplyKind::Deltas => format.decode_add(&bytes, 1.0, values),
                _ => format.decode(&bytes, values),
            };
            taken.expect("a shard sends whole blocks");
        }
        held.publish = reply.publish;
    }

    fn push(&mut self, shard: ShardId, wishes: &mut Vec<Wish>) {
        let plan = Arc::clone(&self.plan);
        let samples = plan.samples(self.seat, self.step);
        let blocks = if samples == 0 { &[] } else { plan.placement.blocks_of(shard) };
        let mut parts: Vec<_> = blocks.chunks(plan.blocks_per_part).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        for (part, blocks) in parts.iter().enumerate() {
            let mut request = self.request(RequestKind::Push, shard);
            request.samples = samples;
            request.part = part as u32;
            request.last = part + 1 == parts.len();
            let mut body = Vec::new();
            for id in *blocks {
                let range = plan.layout.blocks()[id.index()].range();
                let values: Vec<_> =
                    range.map(|element| plan.gradient(self.seat, self.step, element)).collect();
                let before = body.len();
                plain(plan.up).expect("a format without parameters").encode(&values, &mut body);
                let bytes = (body.len() - before) as u32;
                request.blocks.push(BlockEntry::new(*id, bytes, plan.up));
            }
            request.body = Bytes::from(body);
            self.ask(request, wishes);
        }
    }

    fn leave(&mut self, wishes: &mut Vec<Wish>) {
        self.phase = Phase::Leaving;
        for shard in self.plan.shards() {
            let request = self.request(RequestKind::Leave, shard);
            self.ask(request, wishes);
        }
    }

    fn request(&self, kind: RequestKind, shard: ShardId) -> Request {
        Request {
            step: Step(self.step),
            version: self.versions[shard.index()],
            ..request(kind, shard, self.seat)
        }
    }

    fn ask(&mut self, request: Request, wishes: &mut Vec<Wish>) {
        let id = AskId(self.next_ask);
        self.next_ask += 1;
        self.asks.insert(id, Ask { request, attempts: 0, token: None });
        wishes.push(Wish::Send(id));
    }
}

/// What every worker makes by itself.
fn first_values(plan: &Plan, shard: ShardId) -> Held {
    let mut values = Vec::new();
    for id in plan.placement.blocks_of(shard) {
        let block = &plan.layout.blocks()[id.index()];
        let start = values.len();
        values.resize(start + block.len, 0.0);
        initialise(&plan.layout, plan.job.seed, block, &mut values[start..]);
    }
    Held { publish: 0, values }
}

/// A request with nothing in it.
pub(crate) const fn request(kind: RequestKind, shard: ShardId, seat: SeatId) -> Request {
    Request {
        kind,
        last: false,
        shard,
        seat,
        incarnation: LIFE,
        step: Step(0),
        version: Version(0),
        samples: 0,
        part: 0,
        norms: Vec::new(),
        blocks: Vec::new(),
        body: Bytes::new(),
    }
}

/// All blocks of a shard, to be sent as they are.
pub(crate) fn wanted(plan: &Plan, shard: ShardId) -> Vec<BlockEntry> {
    let blocks = plan.placement.blocks_of(shard).iter();
    blocks.map(|id| BlockEntry::new(*id, 0, CodecId::F32)).collect()
}
