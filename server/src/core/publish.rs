//! What every worker holds, and how it learns of what has changed.
//!
//! A shard keeps a *reference*: the parameters as every worker at the last publish holds them. A publish
//! encodes the difference of parameters and reference once, block by block, adds what was encoded to the
//! reference, and keeps the bytes in a ring. A worker that holds an earlier publish gets the bytes of
//! those since, the same for all. What encoding left out stays in the difference for the next publish:
//! nothing is lost, and all workers at one publish hold the same bits. (After Tang et al.,
//! "DoubleSqueeze", ICML 2019, with one compressed difference in place of a compressed gradient.)

use super::store::Store;
use bytes::Bytes;
use slackline_common::codec::{CodecId, CodecSpec, Draw, Encoder, codec};
use slackline_common::ids::BlockId;
use slackline_common::job::{Compress, Job, rung_coding};
use slackline_common::layout::{Block, Layout};
use slackline_common::limits::{FRAME_BLOCKS_MAX, FRAME_BODY_BYTES_MAX, PUBLISHES_KEPT_MAX};
use slackline_common::wire::frame::{BLOCK_ENTRY_BYTES, BlockEntry, PUBLISH_OFFSET_MAX, ReplyKind};
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
    /// Parts of a global step that were applied since the last publish.
    pending_share: f64,
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
            pending_share: 0.0,
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
    pub(super) fn is_due(&self) -> bool {
        self.pending_share > 0.0
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

    /// Input: a push, or a closed step, of this part of a global step was applied.
    pub(super) fn handle_applied(&mut self, share: f64) {
        self.pending_share += share;
    }

    /// Makes a publish of everything that has changed. Sparse formats send as much of it as was applied
    /// of a global step, so that many small publishes cost what one large one does.
    pub(super) fn publish(&mut self, store: &Store) {
        self.number += 1;
        let share = std::mem::take(&mut self.pending_share).min(1.0);
        if self.level == Some(0) {
            // Without compression all of it is sent anyway.
            self.reference.copy_from_slice(store.all_values());
            self.ring.clear();
            self.ring_bytes = 0;
            return;
        }
        let mut publish = Publish::default();
        let mut bytes = Vec::new();
        for (at, block) in store.blocks().iter().enumerate() {
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
            #[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
            let spec = spec.with_density((f64::from(spec.density()) * share) as f32);
            let draw = Draw::down(self.seed, self.number, block.id);
            let start = bytes.len();
            let codec_id = self.encoder.encode(&spec, draw, difference, &mut bytes);
            codec(codec_id)
                .decode_add(&bytes[start..], 1.0, reference)
                .expect("our own encoder keeps the rules");
            publish.deltas.push(Delta { at, codec: codec_id, start, end: bytes.len() });
        }
        publish.bytes = bytes.into();
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

    /// Answers a pull of the blocks `asked`, by position, from a worker at publish `held`: appends the
    /// bytes to `out`.
    pub(super) fn answer(
        &self,
        store: &Store,
        asked: &[(BlockId, usize)],
        held: u64,
        out: &mut Vec<u8>,
    ) -> Answer {
        let publish = self.number;
        if let Some(blocks) = self.deltas(store, asked, held, out) {
            return Answer { kind: ReplyKind::Deltas, blocks, publish };
        }
        out.clear();
        let blocks = asked.iter().map(|(block, at)| {
            let values = &self.reference[store.range(*at)];
            let format = slackline_common::codec::plain(CodecId::F32).expect("f32 is plain");
            format.encode(values, out);
            let bytes = u32::try_from(values.len() * 4).expect("a block has at most 1 MiB");
            BlockEntry::new(*block, bytes, CodecId::F32)
        });
        Answer { kind: ReplyKind::Reference, blocks: blocks.collect(), publish }
    }

    /// `None` when all of the reference is cheaper, or the ring does not reach back.
    fn deltas(
        &self,
        store: &Store,
        asked: &[(BlockId, usize)],
        held: u64,
        out: &mut Vec<u8>,
    ) -> Option<Vec<BlockEntry>> {
        let missing = self.number.checked_sub(held)?;
        let first = self.ring.len().checked_sub(usize::try_from(missing).ok()?)?;
        let whole: usize = asked.iter().map(|(_, at)| store.blocks()[*at].len * 4).sum();
        let mut entries = Vec::new();
        for (publish_offset, publish) in (1u32..).zip(self.ring.iter().skip(first)) {
            for (block, at) in asked {
                let Some(delta) = publish.delta(*at) else { continue };
                let bytes = &publish.bytes[delta.start..delta.end];
                out.extend_from_slice(bytes);
                let bytes = u32::try_from(bytes.len()).expect("a block has at most 1 MiB");
                entries.push(BlockEntry {
                    publish_offset,
                    ..BlockEntry::new(*block, bytes, delta.codec)
                });
            }
            let cost = out.len() + entries.len() * BLOCK_ENTRY_BYTES;
            let fits = entries.len() <= FRAME_BLOCKS_MAX
                && out.len() <= FRAME_BODY_BYTES_MAX
                && publish_offset <= PUBLISH_OFFSET_MAX;
            if !fits || cost > whole + asked.len() * BLOCK_ENTRY_BYTES {
                return None;
            }
        }
        Some(entries)
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
        hash.update(&self.number.to_le_bytes()).update(&self.pending_share.to_le_bytes());
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
