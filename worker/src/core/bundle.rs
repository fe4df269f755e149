//! From the blocks of one step to frames: encodes each block behind the others of its shard, and
//! closes a part when it is full or when the shard's last block of the step is in it.

use crate::core::plan::Plan;
use slackline_common::codec::{CodecId, F32, PlainCodec};
use slackline_common::ids::{Incarnation, SeatId, ShardId, Step, TensorId, Version};
use slackline_common::layout::Block;
use slackline_common::limits::{BLOCK_ELEMENTS_MAX, FRAME_BLOCKS_MAX, FRAME_BODY_BYTES_MAX};
use slackline_common::wire::frame::{BlockEntry, Request, RequestKind};
use slackline_common::wire::pool::{BufferPool, PooledBuffer};
use std::collections::VecDeque;
use std::sync::Arc;

/// A part with so many elements is sent at once, however few bytes they have become: waiting for the
/// rest of the step would leave the link idle while the next gradients are computed.
const ELEMENTS_FULL: usize = BLOCK_ELEMENTS_MAX;

/// What makes bytes of a block. For each block [`prepare`](Self::prepare) comes first, then
/// [`encode`](Self::encode) with the same values.
pub trait EncodeBlock {
    /// The most bytes that the block will need.
    fn prepare(&mut self, block: &Block, values: &[f32]) -> usize;

    /// Appends the block to `out` and names the format that came out.
    fn encode(&mut self, block: &Block, values: &[f32], out: &mut Vec<u8>) -> CodecId;
}

/// Every block in `f32`: for first values, which are sent once and kept for ever.
#[derive(Clone, Copy, Debug)]
pub struct FullPrecision;

impl EncodeBlock for FullPrecision {
    fn prepare(&mut self, block: &Block, _: &[f32]) -> usize {
        F32.encoded_len_max(block.len)
    }

    fn encode(&mut self, _: &Block, values: &[f32], out: &mut Vec<u8>) -> CodecId {
        F32.encode(values, out);
        CodecId::F32
    }
}

/// Who sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sender {
    /// The seat.
    pub seat: SeatId,
    /// This life of the seat.
    pub incarnation: Incarnation,
}

impl Sender {
    /// A request of this sender without content.
    pub const fn request(&self, kind: RequestKind, shard: ShardId, step: Step) -> Request {
        Request {
            kind,
            last: false,
            shard,
            seat: self.seat,
            incarnation: self.incarnation,
            step,
            version: Version(0),
            samples: 0,
            part: 0,
            norms: Vec::new(),
            blocks: Vec::new(),
            body: bytes::Bytes::new(),
        }
    }
}

/// What is true of every part of a step.
#[derive(Clone, Debug)]
pub struct Head {
    /// Who sends.
    pub sender: Sender,
    /// The step.
    pub step: Step,
    /// Samples behind the gradients.
    pub samples: u32,
    /// The version of each shard that the gradients were computed on.
    pub versions: Vec<Version>,
    /// Squared gradient norm of every tensor at the last step; empty when the job does not clip or
    /// there was none. Travels in every part: `ssp` and `asp` apply each as it comes.
    pub norms: Vec<f64>,
}

/// One step's blocks on their way into frames.
#[derive(Debug)]
pub struct Bundler {
    plan: Arc<Plan>,
    pool: BufferPool,
    kind: RequestKind,
    head: Head,
    open: Vec<Open>,
    ready: VecDeque<Request>,
}

/// The part of one shard that is being filled.
#[derive(Debug, Default)]
struct Open {
    part: u32,
    /// Blocks still to come in this step.
    missing: usize,
    blocks: Vec<BlockEntry>,
    /// Elements of `blocks`.
    elements: usize,
    body: Option<PooledBuffer>,
}

impl Bundler {
    /// Begins the push of `tensors`, each of which must then come exactly once, in any order. Every
    /// shard gets at least one part, so that every shard's clock moves.
    pub fn push(plan: &Arc<Plan>, pool: &BufferPool, head: Head, tensors: &[TensorId]) -> Self {
        let mut bundler = Self::new(plan, pool, RequestKind::Push, head, tensors);
        for shard in plan.shards() {
            if bundler.open[shard.index()].missing == 0 {
                bundler.close(shard);
            }
        }
        bundler
    }

    /// Begins the staging of first values, for which there is [`FullPrecision`].
    pub fn init(plan: &Arc<Plan>, pool: &BufferPool, sender: Sender, tensors: &[TensorId]) -> Self {
        let head =
            Head { sender, step: Step(0), samples: 0, versions: Vec::new(), norms: Vec::new() };
        Self::new(plan, pool, RequestKind::Init, head, tensors)
    }

    fn new(
        plan: &Arc<Plan>,
        pool: &BufferPool,
        kind: RequestKind,
        head: Head,
        tensors: &[TensorId],
    ) -> Self {
        let mut open: Vec<Open> = Vec::new();
        open.resize_with(plan.shard_count(), Open::default);
        for block in tensors.iter().flat_map(|tensor| plan.layout().blocks_of(*tensor)) {
            open[plan.placement().shard_of(block.id).index()].missing += 1;
        }
        let (plan, pool) = (Arc::clone(plan), pool.clone());
        Self { plan, pool, kind, head, open, ready: VecDeque::new() }
    }

    /// Input: one block of a tensor that was announced, with its values.
    ///
    /// # Panics
    /// When `values` is not as long as the block, or more blocks come than were announced.
    pub fn handle_block(
        &mut self,
        block: &Block,
        values: &[f32],
        encoder: &mut (impl EncodeBlock + ?Sized),
    ) {
        assert_eq!(values.len(), block.len, "one value per element of the block");
        let shard = self.plan.placement().shard_of(block.id);
        let bytes_max = encoder.prepare(block, values);
        let open = &self.open[shard.index()];
        assert!(open.missing > 0, "a block comes once, and was announced");
        let filled = open.body.as_ref().map_or(0, |body| body.bytes.len());
        if filled + bytes_max > FRAME_BODY_BYTES_MAX || open.blocks.len() == FRAME_BLOCKS_MAX {
            self.close(shard);
        }
        let open = &mut self.open[shard.index()];
        let body = open.body.get_or_insert_with(|| self.pool.take(bytes_max));
        let before = body.bytes.len();
        let id = encoder.encode(block, values, &mut body.bytes);
        let bytes = body.bytes.len() - before;
        let bytes = u32::try_from(bytes).expect("one block is at most a frame");
        open.blocks.push(BlockEntry::new(block.id, bytes, id));
        open.missing -= 1;
        open.elements += block.len;
        if open.missing == 0 || open.elements >= ELEMENTS_FULL {
            self.close(shard);
        }
    }

    /// Output: a part that is complete. Call until it returns `None`.
    pub fn poll_part(&mut self) -> Option<Request> {
        self.ready.pop_front()
    }

    /// Whether every announced block has come and every part has been taken.
    pub fn is_done(&self) -> bool {
        self.ready.is_empty() && self.open.iter().all(|open| open.missing == 0)
    }

    fn close(&mut self, shard: ShardId) {
        let open = &mut self.open[shard.index()];
        let is_push = self.kind == RequestKind::Push;
        let part = open.part;
        open.part += 1;
        open.elements = 0;
        let blocks = std::mem::take(&mut open.blocks);
        let body = open.body.take().map_or_else(bytes::Bytes::new, PooledBuffer::freeze);
        let last = is_push && open.missing == 0;
        let norms = self.head.norms.clone();
        self.ready.push_back(Request {
            last,
            version: self.head.versions.get(shard.index()).copied().unwrap_or_default(),
            samples: self.head.samples,
            part,
            norms,
            blocks,
            body,
            ..self.head.sender.request(self.kind, shard, self.head.step)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_common::codec::{codec, plain};
    use slackline_common::job::Wire;
    use slackline_common::layout::{Init, Layout, TensorSpec};

    const SENDER: Sender = Sender { seat: SeatId(3), incarnation: Incarnation(2) };

    /// Every block in one format.
    struct Only(CodecId);

    impl EncodeBlock for Only {
        fn prepare(&mut self, block: &Block, _: &[f32]) -> usize {
            plain(self.0).unwrap().encoded_len_max(block.len)
        }

        fn encode(&mut self, _: &Block, values: &[f32], out: &mut Vec<u8>) -> CodecId {
            plain(self.0).unwrap().encode(values, out);
            self.0
        }
    }

    fn plan(sizes: &[u64], shards: u16) -> Arc<Plan> {
        let tensors = sizes.iter().enumerate();
        let tensors = tensors
            .map(|(i, n)| TensorSpec::parameter(format!("t{i}"), &[*n], Init::Zeros))
            .collect();
        Arc::new(Plan::new(Layout::new(tensors).unwrap(), shards, 1, Wire::default()))
    }

    fn head(plan: &Plan) -> Head {
        let versions = (0..plan.shard_count() as u64).map(|shard| Version(10 + shard)).collect();
        Head { sender: SENDER, step: Step(7), samples: 32, versions, norms: vec![1.0, 2.0] }
    }

    /// Pushes the tensors, last first; returns the parts in the order they became ready.
    fn push(plan: &Arc<Plan>, tensors: &[u32], values: &[f32]) -> Vec<Request> {
        push_as(CodecId::F32, plan, tensors, values)
    }

    fn push_as(id: CodecId, plan: &Arc<Plan>, tensors: &[u32], values: &[f32]) -> Vec<Request> {
        let ids: Vec<_> = tensors.iter().map(|tensor| TensorId(*tensor)).collect();
        let mut bundler = Bundler::push(plan, &BufferPool::new(4), head(plan), &ids);
        let mut parts: Vec<_> = std::iter::from_fn(|| bundler.poll_part()).collect();
        for tensor in ids.iter().rev() {
            for block in plan.layout().blocks_of(*tensor) {
                bundler.handle_block(block, &values[block.range()], &mut Only(id));
                parts.extend(std::iter::from_fn(|| bundler.poll_part()));
            }
        }
        assert!(bundler.is_done());
        parts
    }

    /// Every shard has parts 0, 1, … of which exactly the last says so; returns what they decode to.
    fn check(plan: &Plan, parts: &[Request]) -> Vec<f32> {
        let mut values = vec![f32::NAN; plan.layout().elements()];
        for shard in plan.shards() {
            let of: Vec<_> = parts.iter().filter(|part| part.shard == shard).collect();
            let lasts: Vec<_> = of.iter().map(|part| part.last).collect();
            let expected: Vec<_> = (1..=of.len()).map(|n| n == of.len()).collect();
            assert_eq!(lasts, expected, "{shard}");
            for (number, part) in (0u32..).zip(of) {
                assert_eq!((part.part, part.step, part.samples), (number, Step(7), 32));
                assert_eq!(part.version, Version(10 + u64::from(shard.0)));
                assert_eq!(part.norms, [1.0, 2.0]);
                assert!(part.body.len() <= FRAME_BODY_BYTES_MAX);
                for (entry, bytes) in part.payloads() {
                    assert_eq!(plan.placement().shard_of(entry.block), shard);
                    let block = &plan.layout().blocks()[entry.block.index()];
                    codec(entry.codec).decode(&bytes, &mut values[block.range()]).unwrap();
                }
            }
        }
        values
    }

    #[test]
    fn a_small_step_is_one_part_per_shard() {
        let plan = plan(&[640, 10], 2);
        let values: Vec<f32> = (0..650).map(|i| i as f32).collect();
        let parts = push(&plan, &[0, 1], &values);
        assert_eq!(parts.len(), 2);
        assert_eq!(check(&plan, &parts), values);
    }

    #[test]
    fn a_large_step_is_cut_at_the_frame_limit_and_loses_nothing() {
        for id in [CodecId::F32, CodecId::Bf16] {
            for shards in 1..=3 {
                let plan = plan(&[2_000_000, 3, 900_000], shards);
                // Small whole numbers are exact in every format.
                let values: Vec<f32> =
                    (0..plan.layout().elements()).map(|i| (i % 200) as f32).collect();
                let parts = push_as(id, &plan, &[0, 1, 2], &values);
                assert!(parts.len() > 3 * usize::from(shards) / 2);
                assert_eq!(check(&plan, &parts), values);
            }
        }
    }

    #[test]
    fn shards_without_a_block_in_the_step_get_an_empty_part() {
        let plan = plan(&[1, 1, 1], 3);
        let parts = push(&plan, &[1], &[5.0, 6.0, 7.0]);
        assert_eq!(parts.len(), 3);
        let values = check(&plan, &parts);
        assert!(values[0].is_nan() && values[1] == 6.0 && values[2].is_nan());
        assert_eq!(check(&plan, &push(&plan, &[], &[])).len(), 3);
    }

    #[test]
    fn a_full_part_leaves_before_the_step_ends() {
        let plan = plan(&[1 << 20], 1);
        let mut bundler = Bundler::push(&plan, &BufferPool::new(4), head(&plan), &[TensorId(0)]);
        assert!(bundler.poll_part().is_none());
        let values = vec![0.0; 1 << 20];
        let blocks = plan.layout().blocks().len();
        let mut early = 0;
        for block in plan.layout().blocks() {
            bundler.handle_block(block, &values[block.range()], &mut Only(CodecId::F32));
            early += usize::from(bundler.poll_part().is_some());
        }
        assert!(blocks > 4 && early == 4, "{blocks} blocks, {early} parts");
    }

    #[test]
    fn first_values_always_travel_in_full_precision() {
        let plan = plan(&[5], 1);
        let mut bundler = Bundler::init(&plan, &BufferPool::new(1), SENDER, &[TensorId(0)]);
        let values = [0.1, 0.2, 0.3, 0.4, 0.5];
        bundler.handle_block(&plan.layout().blocks()[0], &values, &mut FullPrecision);
        let part = bundler.poll_part().unwrap();
        assert_eq!((part.kind, part.blocks[0].codec), (RequestKind::Init, CodecId::F32));
        assert_eq!(part.body[..4], 0.1f32.to_le_bytes());
        assert!(bundler.is_done());
    }
}
