//! Which shard owns which block: deterministic, balanced by bytes, the same on every machine.
//!
//! Largest block first to the lightest shard (Graham's LPT rule, "Bounds on Multiprocessing Timing
//! Anomalies", 1969); ties go to the lower number.

use crate::ids::{BlockId, ServerId, ShardId};
use crate::layout::Layout;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The owner of every block.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Placement {
    owner: Vec<ShardId>,
    blocks: Vec<Vec<BlockId>>,
}

impl Placement {
    /// Spreads the layout's blocks over `shards` shards.
    ///
    /// # Panics
    /// If `shards` is 0: the job's own check refuses that.
    pub fn balance(layout: &Layout, shards: u16) -> Self {
        assert!(shards > 0, "a placement needs at least one shard");
        let mut order: Vec<_> = layout.blocks().iter().collect();
        order.sort_by_key(|block| (Reverse(block.len), block.id));
        let mut lightest: BinaryHeap<_> = (0..shards).map(|shard| Reverse((0, shard))).collect();
        let mut owner = vec![ShardId(0); layout.blocks().len()];
        for block in order {
            let Reverse((load, shard)) = lightest.pop().expect("one entry per shard");
            owner[block.id.index()] = ShardId(shard);
            lightest.push(Reverse((load + block.len, shard)));
        }
        let mut blocks = vec![Vec::new(); usize::from(shards)];
        for (block, shard) in layout.blocks().iter().zip(&owner) {
            blocks[shard.index()].push(block.id);
        }
        Self { owner, blocks }
    }

    /// The shard that owns a block.
    pub fn shard_of(&self, block: BlockId) -> ShardId {
        self.owner[block.index()]
    }

    /// A shard's blocks in layout order.
    pub fn blocks_of(&self, shard: ShardId) -> &[BlockId] {
        &self.blocks[shard.index()]
    }

    /// Number of shards.
    pub fn shards(&self) -> u16 {
        u16::try_from(self.blocks.len()).expect("made from a u16")
    }
}

/// The server a shard lives on, with `servers` of them: round robin, so that the shards of a server
/// that runs several are spread.
pub const fn server_of(shard: ShardId, servers: u16) -> ServerId {
    ServerId(shard.0 % servers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Init, TensorSpec};

    /// Layers as (rows, columns), each with a bias of `rows`.
    fn dense(widths: &[u64]) -> Layout {
        let tensors = widths.windows(2).enumerate().flat_map(|(i, w)| {
            [
                TensorSpec::parameter(format!("fc{i}.weight"), &[w[1], w[0]], Init::Zeros),
                TensorSpec::parameter(format!("fc{i}.bias"), &[w[1]], Init::Zeros),
            ]
        });
        Layout::new(tensors.collect()).unwrap()
    }

    #[test]
    fn ten_differently_shaped_models_are_within_five_percent_of_even() {
        let models: [&[u64]; 10] = [
            &[784, 10],
            &[64, 128, 10],
            &[784, 1024, 1024, 10],
            &[784, 300, 100, 10],
            &[4096, 4096],
            &[10_000, 3],
            &[32; 20],
            &[256, 1000, 17, 1000, 256],
            &[1 << 20, 9],
            &[50_257, 768, 768],
        ];
        for widths in models {
            let layout = dense(widths);
            for shards in 1..=3 {
                let placement = Placement::balance(&layout, shards);
                let load = |shard| -> usize {
                    let blocks = placement.blocks_of(ShardId(shard));
                    blocks.iter().map(|block| layout.blocks()[block.index()].len).sum()
                };
                let heaviest = (0..shards).map(load).max().unwrap();
                let even = layout.elements() as f64 / f64::from(shards);
                let excess = heaviest as f64 / even - 1.0;
                assert!(excess <= 0.05, "{widths:?} over {shards}: {:.1} %", excess * 100.0);
            }
        }
    }

    #[test]
    fn one_large_tensor_is_spread_over_all_shards() {
        let layout =
            Layout::new(vec![TensorSpec::parameter("a", &[64 << 20], Init::Zeros)]).unwrap();
        let placement = Placement::balance(&layout, 3);
        assert!((0..3).all(|shard| placement.blocks_of(ShardId(shard)).len() >= 85));
    }

    #[test]
    fn every_block_has_one_owner_and_the_answer_repeats() {
        let layout = dense(&[784, 300, 10]);
        let placement = Placement::balance(&layout, 3);
        for block in layout.blocks() {
            let owner = placement.shard_of(block.id);
            let lists = (0..3).filter(|s| placement.blocks_of(ShardId(*s)).contains(&block.id));
            assert_eq!(lists.collect::<Vec<_>>(), [owner.0]);
        }
        assert_eq!(placement, Placement::balance(&layout, 3));
    }
}
