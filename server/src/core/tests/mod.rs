//! One small cluster without a network, and the sentences that must hold for it.

#![allow(clippy::cast_possible_truncation)] // the numbers here are small

mod cases;
mod deltas;
mod publishes;
mod pushes;
mod random;
mod reads;
mod rounds;
mod sameness;

use super::{Effect, EngineSpec, Record, Token, Verdict};
use crate::shard::Shard;
use bytes::Bytes;
use slackline_common::codec::{CodecId, codec, plain};
use slackline_common::ids::{BlockId, Fingerprint, Incarnation, SeatId, ShardId, Step, Version};
use slackline_common::job::{
    Clip, Compress, Evaluate, Feedback, Job, Length, Mode, OptimizerSpec, Ramp, Reduce, Schedule,
    Wire,
};
use slackline_common::layout::{Init, Layout, TensorSpec};
use slackline_common::model::ModelSpec;
use slackline_common::placement::Placement;
use slackline_common::wire::frame::{BlockEntry, Refusal, Reply, ReplyKind, Request, RequestKind};
use std::sync::Arc;

pub(super) const LIFE: Incarnation = Incarnation(1);
pub(super) const ASP: Mode = Mode::Asp { scale_by_staleness: false };

pub(super) fn job(mode: Mode, workers: u16, optimizer: OptimizerSpec) -> Job {
    Job {
        name: "test".to_owned(),
        mode,
        workers,
        servers: 1,
        seed: 7,
        length: Length::Steps(u64::MAX),
        batch: 1,
        reduce: Reduce::Mean,
        model: ModelSpec::External,
        data: None,
        optimizer,
        schedule: Schedule::default(),
        clip: Clip::default(),
        wire: Wire::default(),
        compress: Compress::default(),
        feedback: Feedback::default(),
        ramp: Ramp::default(),
        local: None,
        in_flight: 1,
        evaluate: Evaluate::default(),
    }
}

pub(super) const fn sgd(learning_rate: f32) -> OptimizerSpec {
    OptimizerSpec::Sgd { learning_rate, weight_decay: 0.0 }
}

/// Tensors that start with one value each.
pub(super) fn layout(shapes: &[&[u64]], init: Init) -> Layout {
    let tensor = |(i, shape): (usize, &&[u64])| TensorSpec::parameter(format!("t{i}"), shape, init);
    Layout::new(shapes.iter().enumerate().map(tensor).collect()).unwrap()
}

/// All shards of a job on one bench.
pub(super) struct Cluster {
    pub(super) layout: Arc<Layout>,
    pub(super) placement: Placement,
    pub(super) shards: Vec<Shard>,
    pub(super) up: CodecId,
    /// Whether gradients go out one block to a part, or all blocks in one part.
    pub(super) block_per_part: bool,
    tokens: u64,
    pub(super) events: Vec<String>,
}

impl Cluster {
    pub(super) fn new(job: &Job, layout: &Layout, shards: u16) -> Self {
        let mut cluster = Self::without_values(job, layout, shards);
        for shard in &mut cluster.shards {
            assert_eq!(shard.handle_order(&Record::InitFromSeed, &mut vec![]), Verdict::Fresh);
        }
        cluster
    }

    pub(super) fn without_values(job: &Job, layout: &Layout, shards: u16) -> Self {
        let (job, layout) = (Arc::new(job.clone()), Arc::new(layout.clone()));
        let seats: Vec<_> = (0..job.workers).map(|seat| (SeatId(seat), LIFE)).collect();
        let spec = |shard| EngineSpec {
            job: Arc::clone(&job),
            layout: Arc::clone(&layout),
            shard: ShardId(shard),
            shards,
            seats: seats.clone(),
        };
        Self {
            placement: Placement::balance(&layout, shards),
            shards: (0..shards).map(|shard| Shard::new(spec(shard))).collect(),
            layout,
            up: CodecId::F32,
            block_per_part: true,
            tokens: 0,
            events: Vec::new(),
        }
    }

    /// The frames of one step of one seat: the same gradient as every machine would send it.
    pub(super) fn frames(
        &self,
        seat: u16,
        step: u64,
        samples: u32,
        gradient: &[f32],
    ) -> Vec<Request> {
        let mut frames = Vec::new();
        for shard in 0..self.placement.shards() {
            let mut parts: Vec<Vec<BlockId>> = self
                .placement
                .blocks_of(ShardId(shard))
                .iter()
                .filter(|_| !gradient.is_empty())
                .map(|id| vec![*id])
                .collect();
            if !self.block_per_part || parts.is_empty() {
                parts = vec![parts.concat()];
            }
            let last = parts.len() - 1;
            for (part, ids) in parts.into_iter().enumerate() {
                let mut request = request(RequestKind::Push, shard, seat, step);
                request.samples = samples;
                request.part = part as u32;
                request.last = part == last;
                self.fill(&mut request, &ids, gradient);
                frames.push(request);
            }
        }
        frames
    }

    /// Puts blocks of a flat vector into a frame.
    pub(super) fn fill(&self, request: &mut Request, ids: &[BlockId], values: &[f32]) {
        let mut body = Vec::new();
        for id in ids {
            let range = self.layout.blocks()[id.index()].range();
            let before = body.len();
            plain(self.up).unwrap().encode(&values[range], &mut body);
            let bytes = (body.len() - before) as u32;
            request.blocks.push(BlockEntry::new(*id, bytes, self.up));
        }
        request.body = Bytes::from(body);
    }

    /// Sends a frame and collects what it sets free: its own answer, and answers of waiting pulls.
    pub(super) fn send(&mut self, request: Request) -> Vec<(Token, Reply)> {
        self.tokens += 1;
        let shard = &mut self.shards[request.shard.index()];
        let mut effects = Vec::new();
        shard.handle_request(request, Token(self.tokens), &mut effects);
        let mut replies = Vec::new();
        for effect in effects {
            match effect {
                Effect::Reply { token, reply } => replies.push((token, reply)),
                Effect::Event(line) => self.events.push(line),
            }
        }
        while let Some(token) = shard.poll_release() {
            replies.push((token, shard.read(token).unwrap()));
        }
        replies
    }

    /// Sends a frame that is answered at once.
    pub(super) fn ask(&mut self, request: Request) -> Reply {
        let replies = self.send(request);
        let own = Token(self.tokens);
        replies.into_iter().find(|(token, _)| *token == own).expect("answered at once").1
    }

    /// Pushes a whole step of one seat.
    pub(super) fn push(&mut self, seat: u16, step: u64, samples: u32, gradient: &[f32]) {
        for frame in self.frames(seat, step, samples, gradient) {
            let reply = self.ask(frame);
            assert_eq!(reply.kind, ReplyKind::Ack, "{}", reply.sentence());
        }
    }

    pub(super) fn order(&mut self, record: &Record) -> Vec<Verdict> {
        let order = |shard: &mut Shard| shard.handle_order(record, &mut vec![]);
        self.shards.iter_mut().map(order).collect()
    }

    /// The whole model as a seat reads it at `step`.
    pub(super) fn pull(&mut self, seat: u16, step: u64) -> Vec<f32> {
        let mut values = vec![f32::NAN; self.layout.elements()];
        for shard in 0..self.placement.shards() {
            // 16 blocks of this cluster's models fit one frame.
            for blocks in self.wanted(shard, CodecId::F32).chunks(16) {
                let mut request = request(RequestKind::Pull, shard, seat, step);
                request.blocks = blocks.to_vec();
                let reply = self.ask(request);
                assert_eq!(reply.kind, ReplyKind::Parameters, "{}", reply.sentence());
                for (entry, bytes) in reply.payloads() {
                    let range = self.layout.blocks()[entry.block.index()].range();
                    codec(entry.codec).decode(&bytes, &mut values[range]).unwrap();
                }
            }
        }
        values
    }

    pub(super) fn wanted(&self, shard: u16, codec: CodecId) -> Vec<BlockEntry> {
        let blocks = self.placement.blocks_of(ShardId(shard));
        blocks.iter().map(|id| BlockEntry::new(*id, 0, codec)).collect()
    }

    pub(super) fn hashes(&self) -> Vec<Fingerprint> {
        self.shards.iter().map(|shard| shard.engine().state_hash()).collect()
    }

    pub(super) fn version(&self, shard: usize) -> u64 {
        self.shards[shard].engine().report().version.0
    }
}

pub(super) fn request(kind: RequestKind, shard: u16, seat: u16, step: u64) -> Request {
    Request {
        kind,
        last: false,
        shard: ShardId(shard),
        seat: SeatId(seat),
        incarnation: LIFE,
        step: Step(step),
        version: Version(0),
        samples: 1,
        part: 0,
        norms: Vec::new(),
        blocks: Vec::new(),
        body: Bytes::new(),
    }
}

/// Asserts a refusal with a word its sentence must have, and that no state changed.
pub(super) fn check_refused(cluster: &mut Cluster, request: Request, refusal: Refusal, word: &str) {
    let before = cluster.hashes();
    let reply = cluster.ask(request);
    assert_eq!((reply.kind, reply.refusal), (ReplyKind::Refused, refusal), "{}", reply.sentence());
    assert!(reply.sentence().contains(word), "{:?} does not say {word:?}", reply.sentence());
    assert_eq!(before, cluster.hashes());
}
