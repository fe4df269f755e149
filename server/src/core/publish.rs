//! What every worker holds, and how it learns of what has changed.
//!
//! A shard keeps a *reference*: the parameters as every worker at the last publish holds them. A publish
//! encodes the difference of parameters and reference once, block by block, adds what was encoded to the
//! reference, and keeps the bytes in a ring. A worker that holds an earlier publish gets the bytes of
//! those since, the same for all. What encoding left out stays in the difference for the next publish:
//! nothing is lost, and all workers at one publish hold the same bits. (After Tang et al.,
//! "DoubleSqueeze", ICML 2019, with one compressed difference in place of a compressed gradient.)
//!
//! # Rules that need saying
//!
//! * A publish covers the blocks that had a contribution since it last covered them. What encoding left
//!   out of a block that nobody touches waits until somebody does: with fragments, a publish of one does
//!   not pay for the others.
//! * The density of a sparse format is that of a whole global step. Each block takes as much of it as was
//!   applied of such a step to that block, so that many small publishes cost what one large one does.
//! * A difference that is not finite, or is not so in its format (`f16` ends at 65504), goes in `f32`: what
//!   once is infinite in the reference never comes back.

use super::store::Store;
use bytes::Bytes;
use slackline_common::codec::{CodecId, CodecSpec, Draw, Encoder, F32, PlainCodec, codec};
use slackline_common::ids::BlockId;
use slackline_common::job::{Compress, Job, rung_coding};
use slackline_common::layout::{Block, Layout};
use slackline_common::limits::{FRAME_BLOCKS_MAX, FRAME_BODY_BYTES_MAX, PUBLISHES_KEPT_MAX};
use slackline_common::wire::frame::{BLOCK_ENTRY_BYTES, BlockEntry, PUBLISH_OFFSET_MAX, ReplyKind};
use slackline_common::wire::pool::BufferPool;
use std::collections::VecDeque;

/// The publish a puller holds when it holds none.
pub(super) const NONE_HELD: u64 = u64::MAX;

/// The reference of one shard and its last publishes.
#[derive(Debug)]
pub(super) struct Publisher {
    reference: Vec<f32>,
    /// How each block's differences are coded, by position in the shard.
    specs: Vec<CodecSpec>,
    seed: u64,
    number: u64,
    ring: VecDeque<Publish>,
    ring_bytes: usize,
    /// Of each block, how much of a global step was applied to it since a publish covered it.
    pending: Vec<f32>,
    /// Blocks with anything pending.
    touched: usize,
    /// `compress = "auto"`: the rung of the ladder, the same for all blocks.
    level: Option<u8>,
    encoder: Encoder,
    scratch: Vec<f32>,
}

/// One publish.
#[derive(Debug, Default)]
struct Publish {
    /// Blocks that changed, in order.
    deltas: Vec<Delta>,
    bytes: Bytes,
}

#[derive(Clone, Copy, Debug)]
struct Delta {
    at: usize,
    codec: CodecId,
    start: usize,
    end: usize,
}

impl Publish {
    fn cost(&self) -> usize {
        self.bytes.len() + self.deltas.len() * BLOCK_ENTRY_BYTES
    }

    fn delta(&self, at: usize) -> Option<&Delta> {
        let place = self.deltas.binary_search_by_key(&at, |delta| delta.at).ok()?;
        Some(&self.deltas[place])
    }
}

/// What a pull of deltas is answered with.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) kind: ReplyKind,
    pub(super) blocks: Vec<BlockEntry>,
    pub(super) publish: u64,
    pub(super) body: Bytes,
}

impl Publisher {
    /// Of a shard with these blocks; all zero until [`Publisher::restart`].
    pub(super) fn new(job: &Job, layout: &Layout, blocks: &[Block]) -> Self {
        let codings = job.codings(layout);
        let elements = blocks.iter().map(|block| block.len).sum();
        Self {
            reference: vec![0.0; elements],
            specs: blocks.iter().map(|block| codings[block.tensor.index()].down).collect(),
            seed: job.seed,
            number: 0,
            ring: VecDeque::new(),
            ring_bytes: 0,
            pending: vec![0.0; blocks.len()],
            touched: 0,
            level: (job.compress == Compress::Auto).then_some(0),
            encoder: Encoder::default(),
            scratch: vec![0.0; blocks.iter().map(|block| block.len).max().unwrap_or(0)],
        }
    }

    /// Takes the first values: every worker makes the same, or pulls all of them.
    pub(super) fn restart(&mut self, store: &Store) {
        self.reference.copy_from_slice(store.all_values());
    }

    /// The last publish.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Whether parameters have changed since the last publish.
    pub(super) const fn is_due(&self) -> bool {
        self.touched > 0
    }

    /// `auto`: the rung in use.
    pub(super) const fn level(&self) -> Option<u8> {
        self.level
    }

    /// `auto`: another rung from the next publish on.
    pub(super) fn set_level(&mut self, level: u8, layout: &Layout, blocks: &[Block]) {
        self.level = Some(level);
        for (spec, block) in self.specs.iter_mut().zip(blocks) {
            *spec = rung_coding(&layout.tensors()[block.tensor.index()], level.into());
        }
    }

    /// Input: this part of a global step, above 0, was applied to a block.
    pub(super) fn handle_applied(&mut self, at: usize, share: f32) {
        self.touched += usize::from(self.pending[at] == 0.0);
        self.pending[at] += share;
    }

    /// Makes a publish of everything that has changed.
    pub(super) fn publish(&mut self, store: &Store) {
        self.number += 1;
        self.touched = 0;
        if self.level == Some(0) {
            // Without compression all of it is sent anyway.
            self.reference.copy_from_slice(store.all_values());
            self.pending.fill(0.0);
            self.ring.clear();
            self.ring_bytes = 0;
            return;
        }
        let mut publish = Publish::default();
        let mut bytes = Vec::new();
        for (at, block) in store.blocks().iter().enumerate() {
            let share = std::mem::take(&mut self.pending[at]).min(1.0);
            if share == 0.0 {
                continue;
            }
            let reference = &mut self.reference[store.range(at)];
            let difference = &mut self.scratch[..block.len];
            let mut changed = false;
            for ((difference, value), known) in
                difference.iter_mut().zip(store.values(at)).zip(reference.iter())
            {
                *difference = value - known;
                changed |= *difference != 0.0;
            }
            if !changed {
                continue;
            }
            let spec = self.specs[at];
            let spec = spec.with_density(spec.density() * share);
            let draw = Draw::down(self.seed, self.number, block.id);
            let start = bytes.len();
            let codec_id = encode(&mut self.encoder, &spec, draw, difference, &mut bytes);
            codec(codec_id)
                .decode_add(&bytes[start..], 1.0, reference)
                .expect("our own encoder keeps the rules");
            publish.deltas.push(Delta { at, codec: codec_id, start, end: bytes.len() });
        }
        // Without the room that the bytes grew into: the ring's bound counts bytes.
        publish.bytes = bytes.into_boxed_slice().into();
        self.ring_bytes += publish.cost();
        self.ring.push_back(publish);
        // What costs more than all of the reference is never sent.
        while self.ring.len() > PUBLISHES_KEPT_MAX || self.ring_bytes > self.reference.len() * 4 {
            let Some(oldest) = self.ring.pop_front() else { break };
            self.ring_bytes -= oldest.cost();
        }
    }

    /// Why a puller cannot hold this publish.
    pub(super) fn check_held(&self, held: u64) -> Result<(), String> {
        if held == NONE_HELD || held <= self.number {
            return Ok(());
        }
        Err(format!("it holds publish {held}, but {} is the last there is", self.number))
    }

    /// Answers a pull of the blocks `asked`, by rising position, from a worker at publish `held`.
    pub(super) fn answer(
        &self,
        store: &Store,
        asked: &[(BlockId, usize)],
        held: u64,
        pool: &BufferPool,
    ) -> Answer {
        let publish = self.number;
        if let Some((blocks, body)) = self.deltas(store, asked, held, pool) {
            return Answer { kind: ReplyKind::Deltas, blocks, publish, body };
        }
        let mut buffer = pool.take(bytes_of(store, asked));
        let blocks = asked.iter().map(|(block, at)| {
            let values = &self.reference[store.range(*at)];
            F32.encode(values, &mut buffer.bytes);
            let bytes = u32::try_from(values.len() * 4).expect("a block has at most 1 MiB");
            BlockEntry::new(*block, bytes, CodecId::F32)
        });
        let blocks = blocks.collect();
        Answer { kind: ReplyKind::Reference, blocks, publish, body: buffer.freeze() }
    }

    /// `None` when all of the reference is cheaper, or the ring does not reach back.
    fn deltas(
        &self,
        store: &Store,
        asked: &[(BlockId, usize)],
        held: u64,
        pool: &BufferPool,
    ) -> Option<(Vec<BlockEntry>, Bytes)> {
        let missing = self.number.checked_sub(held)?;
        let first = self.ring.len().checked_sub(usize::try_from(missing).ok()?)?;
        let whole = bytes_of(store, asked);
        let (mut entries, mut pieces, mut len) = (Vec::new(), Vec::new(), 0);
        for (publish_offset, publish) in (1u32..).zip(self.ring.iter().skip(first)) {
            for (block, at) in asked {
                let Some(delta) = publish.delta(*at) else { continue };
                let bytes = delta.end - delta.start;
                len += bytes;
                pieces.push((publish, delta));
                let bytes = u32::try_from(bytes).expect("a block has at most 1 MiB");
                entries.push(BlockEntry {
                    publish_offset,
                    ..BlockEntry::new(*block, bytes, delta.codec)
                });
            }
            let cost = len + entries.len() * BLOCK_ENTRY_BYTES;
            let fits = entries.len() <= FRAME_BLOCKS_MAX
                && len <= FRAME_BODY_BYTES_MAX
                && publish_offset <= PUBLISH_OFFSET_MAX;
            if !fits || cost > whole + asked.len() * BLOCK_ENTRY_BYTES {
                return None;
            }
        }
        Some((entries, join(&pieces, len, pool)))
    }

    /// The reference, to look at.
    pub(super) fn reference(&self) -> &[f32] {
        &self.reference
    }

    /// Every bit that later publishes and answers depend on.
    pub(super) fn hash(&self, hash: &mut blake3::Hasher) {
        for value in &self.reference {
            hash.update(&value.to_le_bytes());
        }
        for share in &self.pending {
            hash.update(&share.to_le_bytes());
        }
        hash.update(&self.number.to_le_bytes());
        hash.update(&[self.level.map_or(u8::MAX, |level| level)]);
        for publish in &self.ring {
            hash.update(&publish.bytes);
            for delta in &publish.deltas {
                hash.update(&(delta.at as u64).to_le_bytes()).update(&[delta.codec as u8]);
                hash.update(&(delta.end as u64).to_le_bytes());
            }
        }
    }
}

/// Bytes of these blocks in `f32`.
fn bytes_of(store: &Store, asked: &[(BlockId, usize)]) -> usize {
    asked.iter().map(|(_, at)| store.blocks()[*at].len * 4).sum()
}

/// Appends a difference in its format, or in `f32` where that cannot hold it.
fn encode(
    encoder: &mut Encoder,
    spec: &CodecSpec,
    draw: Draw,
    difference: &[f32],
    out: &mut Vec<u8>,
) -> CodecId {
    let start = out.len();
    if difference.iter().all(|value| value.is_finite()) {
        let id = encoder.encode(spec, draw, difference, out);
        if codec(id).is_finite(&out[start..]) {
            return id;
        }
        out.truncate(start);
    }
    F32.encode(difference, out);
    CodecId::F32
}

/// The bytes of these deltas, one after the other. Where they lie side by side in one publish, as for a
/// worker that missed one, they are sent from there.
fn join(pieces: &[(&Publish, &Delta)], len: usize, pool: &BufferPool) -> Bytes {
    let follow = |pair: &[(&Publish, &Delta)]| {
        std::ptr::eq(pair[0].0, pair[1].0) && pair[0].1.end == pair[1].1.start
    };
    if let [(publish, first), ..] = pieces
        && pieces.windows(2).all(follow)
    {
        return publish.bytes.slice(first.start..first.start + len);
    }
    let mut buffer = pool.take(len);
    for (publish, delta) in pieces {
        buffer.bytes.extend_from_slice(&publish.bytes[delta.start..delta.end]);
    }
    buffer.freeze()
}
