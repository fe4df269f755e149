//! Parameters and optimizer state of one shard, and the arithmetic on them: one block at a time, with
//! one scratch buffer of the longest block.
//!
//! # The mean of a step (`bsp`)
//!
//! `g = (Σ cᵢ·gᵢ) / Σ cᵢ`, in seat order, where `cᵢ` are the declared samples divided by their
//! greatest common divisor: with equal counts the sum is plain, and a single contribution is taken as
//! it is. Products and sums are rounded to `f32` one after the other, so the bits depend on seats and
//! samples alone, not on arrival or placement. [`Reduce::Sum`] leaves out weights and division.

use super::ledger::Kept;
use slackline_common::codec::{PlainCodec, codec};
use slackline_common::ids::BlockId;
use slackline_common::job::{Job, OptimizerSpec, Reduce};
use slackline_common::kernels::sum_of_squares;
use slackline_common::layout::{Block, Init, Layout, TensorRole};
use slackline_common::model::initialise;
use slackline_common::optimizer::{self, BlockState, Update};

/// The numbers of one shard.
#[derive(Debug)]
pub(super) struct Store {
    blocks: Vec<Block>,
    /// Where each block starts in `values`; one more entry for the end.
    starts: Vec<usize>,
    values: Vec<f32>,
    states: Vec<BlockState>,
    /// Squared norm of each block's last gradient, before clipping.
    norms: Vec<f64>,
    scratch: Vec<f32>,
}

/// One seat's contribution to one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contribution<'a> {
    pub(super) kept: &'a Kept,
    pub(super) samples: u32,
}

/// What every update of a shard needs to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<'a> {
    pub(super) job: &'a Job,
    /// The job's, or what takes its place while workers correct for momentum themselves.
    pub(super) optimizer: &'a OptimizerSpec,
    pub(super) layout: &'a Layout,
}

/// One block and its parameters.
type Target<'a> = (&'a Block, &'a mut [f32]);

fn target<'a>(
    blocks: &'a [Block],
    starts: &[usize],
    values: &'a mut [f32],
    at: usize,
) -> Target<'a> {
    (&blocks[at], &mut values[starts[at]..starts[at + 1]])
}

impl Setting<'_> {
    fn role(&self, block: &Block) -> TensorRole {
        self.layout.tensors()[block.tensor.index()].role
    }

    fn apply(
        &self,
        (block, values): Target<'_>,
        state: &mut BlockState,
        norm: &mut f64,
        update: &Update,
        gradient: &[f32],
    ) {
        match self.role(block) {
            TensorRole::Statistic => optimizer::apply_statistic(values, gradient, update.share),
            TensorRole::Parameter => {
                if self.job.clip.is_on() {
                    *norm = sum_of_squares(gradient);
                }
                optimizer::apply(self.optimizer, state, update, values, gradient);
            }
        }
    }
}

impl Store {
    /// All zero, with room for everything that will ever be needed.
    pub(super) fn new(job: &Job, blocks: Vec<Block>) -> Self {
        let mut starts = vec![0];
        for block in &blocks {
            starts.push(starts[starts.len() - 1] + block.len);
        }
        let longest = blocks.iter().map(|block| block.len).max().unwrap_or(0);
        Self {
            values: vec![0.0; starts[blocks.len()]],
            states: blocks.iter().map(|b| BlockState::new(&job.optimizer, b.len)).collect(),
            norms: vec![0.0; blocks.len()],
            scratch: vec![0.0; longest],
            starts,
            blocks,
        }
    }

    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// A block's position in this shard.
    pub(super) fn find(&self, id: BlockId) -> Option<usize> {
        self.blocks.binary_search_by_key(&id, |block| block.id).ok()
    }

    /// Where a block lies in [`Store::all_values`].
    pub(super) fn range(&self, at: usize) -> std::ops::Range<usize> {
        self.starts[at]..self.starts[at + 1]
    }

    /// The parameters of all blocks, one after the other.
    pub(super) fn all_values(&self) -> &[f32] {
        &self.values
    }

    pub(super) fn values(&self, at: usize) -> &[f32] {
        &self.values[self.range(at)]
    }

    pub(super) fn norm(&self, at: usize) -> f64 {
        self.norms[at]
    }

    /// Fills one block from the seed.
    pub(super) fn initialise(&mut self, layout: &Layout, seed: u64, at: usize) {
        let values = &mut self.values[self.starts[at]..self.starts[at + 1]];
        initialise(layout, seed, &self.blocks[at], values);
    }

    /// Whether a client has to bring the first values of this block.
    pub(super) fn is_external(&self, layout: &Layout, at: usize) -> bool {
        layout.tensors()[self.blocks[at].tensor.index()].init == Init::External
    }

    /// Overwrites one block with what a client brought.
    pub(super) fn set(&mut self, at: usize, kept: &Kept) {
        let values = &mut self.values[self.starts[at]..self.starts[at + 1]];
        codec(kept.codec).decode(&kept.bytes, values).expect("validated when it was staged");
    }

    /// Appends one block to `out` and says how many bytes it took.
    pub(super) fn encode(&self, at: usize, format: &dyn PlainCodec, out: &mut Vec<u8>) -> u32 {
        let before = out.len();
        format.encode(self.values(at), out);
        u32::try_from(out.len() - before).expect("a block has at most 1 MiB")
    }

    /// Applies a step's contributions to a block: their mean or sum, in seat order. At least one.
    pub(super) fn update_by(
        &mut self,
        setting: &Setting<'_>,
        at: usize,
        update: &Update,
        contributions: &[Contribution<'_>],
    ) {
        if let [Contribution { kept, .. }] = contributions {
            return self.update(setting, at, update, kept);
        }
        let reduce = match setting.role(&self.blocks[at]) {
            TensorRole::Parameter => setting.job.reduce,
            TensorRole::Statistic => Reduce::Mean,
        };
        self.reduce(at, reduce, contributions);
        let gradient = &self.scratch[..self.blocks[at].len];
        let target = target(&self.blocks, &self.starts, &mut self.values, at);
        setting.apply(target, &mut self.states[at], &mut self.norms[at], update, gradient);
    }

    /// Applies one contribution to a block, as it is.
    pub(super) fn update(
        &mut self,
        setting: &Setting<'_>,
        at: usize,
        update: &Update,
        kept: &Kept,
    ) {
        let format = codec(kept.codec);
        let gradient = match format.as_values(&kept.bytes) {
            Some(values) => values,
            None => {
                let scratch = &mut self.scratch[..self.blocks[at].len];
                format.decode(&kept.bytes, scratch).expect("validated when it was admitted");
                scratch
            }
        };
        let target = target(&self.blocks, &self.starts, &mut self.values, at);
        setting.apply(target, &mut self.states[at], &mut self.norms[at], update, gradient);
    }

    /// Adds up contributions in the scratch buffer.
    fn reduce(&mut self, at: usize, reduce: Reduce, contributions: &[Contribution<'_>]) {
        let gradient = &mut self.scratch[..self.blocks[at].len];
        let divisor = contributions.iter().fold(0, |divisor, c| gcd(divisor, c.samples)).max(1);
        gradient.fill(0.0);
        let mut total = 0.0;
        for Contribution { kept, samples } in contributions {
            let weight = match reduce {
                Reduce::Mean => small(samples / divisor),
                Reduce::Sum => 1.0,
            };
            total += weight;
            codec(kept.codec)
                .decode_add(&kept.bytes, weight, gradient)
                .expect("validated when it was admitted");
        }
        if reduce == Reduce::Mean && total > 1.0 {
            gradient.iter_mut().for_each(|value| *value /= total);
        }
    }

    /// Every bit that later updates depend on.
    pub(super) fn hash(&self, hash: &mut blake3::Hasher) {
        let mut bytes = Vec::new();
        let mut floats = |values: &[f32], hash: &mut blake3::Hasher| {
            bytes.clear();
            values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
            hash.update(&bytes);
        };
        for (at, state) in self.states.iter().enumerate() {
            floats(self.values(at), hash);
            state.slots().iter().for_each(|slot| floats(slot, hash));
            hash.update(&state.updates().to_le_bytes()).update(&self.norms[at].to_le_bytes());
        }
    }
}

const fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Samples are at most 2²⁴: exact as `f32`.
#[expect(clippy::cast_precision_loss, reason = "PUSH_SAMPLES_MAX is 2^24")]
const fn small(samples: u32) -> f32 {
    samples as f32
}
