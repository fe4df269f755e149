//! What lives where and travels how: a layout, its placement, and the number format of each tensor.

use slackline_common::codec::{CodecId, plain};
use slackline_common::ids::{ServerId, ShardId, TensorId};
use slackline_common::job::Wire;
use slackline_common::layout::{Dtype, Layout};
use slackline_common::limits::{FRAME_BLOCKS_MAX, FRAME_BODY_BYTES_MAX};
use slackline_common::placement::{Placement, server_of};
use slackline_common::wire::frame::BlockEntry;

/// Everything about frames that does not change during a job.
#[derive(Clone, Debug)]
pub struct Plan {
    layout: Layout,
    placement: Placement,
    servers: u16,
    down: Vec<CodecId>,
}

/// Blocks of one shard that are pulled with one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Whose blocks.
    pub shard: ShardId,
    /// Which, with the codec wanted; `bytes` is 0, as in a pull.
    pub blocks: Vec<BlockEntry>,
    /// The most bytes the reply's body can have.
    pub bytes: usize,
}

impl Plan {
    /// Places `layout` on `shards` shards of `servers` servers.
    ///
    /// # Panics
    /// If `shards` or `servers` is 0: who receives a start message checks that.
    pub fn new(layout: Layout, shards: u16, servers: u16, wire: Wire) -> Self {
        assert!(servers > 0, "a plan needs at least one server");
        let placement = Placement::balance(&layout, shards);
        let down = layout.tensors().iter().map(|tensor| format(tensor.dtype, wire.down)).collect();
        Self { layout, placement, servers, down }
    }

    /// The tensors.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Who owns which block.
    pub const fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Every shard, in order.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.placement.shards()).map(ShardId)
    }

    /// Number of shards.
    pub fn shard_count(&self) -> usize {
        usize::from(self.placement.shards())
    }

    /// Number of servers.
    pub const fn servers(&self) -> u16 {
        self.servers
    }

    /// The server a shard lives on.
    pub const fn server_of(&self, shard: ShardId) -> ServerId {
        server_of(shard, self.servers)
    }

    /// The format a tensor's values come back in when they come whole.
    pub fn down(&self, tensor: TensorId) -> CodecId {
        self.down[tensor.index()]
    }

    /// The wanted tensors' blocks as pull groups, early layers first over all shards so that every
    /// server works from the start. Each group's reply fits one frame.
    pub fn groups(&self, wanted: impl FnMut(TensorId) -> bool) -> Vec<Group> {
        self.groups_as(wanted, |tensor| self.down(tensor))
    }

    /// A fixed partition of the wanted tensors' blocks for pulls of deltas, in the order of
    /// [`groups`](Self::groups): each group fits one frame as a reference, in `f32`.
    pub fn delta_groups(&self, wanted: impl FnMut(TensorId) -> bool) -> Vec<Group> {
        self.groups_as(wanted, |_| CodecId::F32)
    }

    fn groups_as(
        &self,
        mut wanted: impl FnMut(TensorId) -> bool,
        format: impl Fn(TensorId) -> CodecId,
    ) -> Vec<Group> {
        let mut groups = Vec::new();
        let mut open: Vec<Option<Group>> = vec![None; self.shard_count()];
        for block in self.layout.blocks() {
            if !wanted(block.tensor) {
                continue;
            }
            let id = format(block.tensor);
            let (entry, bytes) = (
                BlockEntry::new(block.id, 0, id),
                plain(id).expect("a format without parameters").encoded_len_max(block.len),
            );
            let shard = self.placement.shard_of(block.id);
            let slot = &mut open[shard.index()];
            match slot {
                Some(group)
                    if group.bytes + bytes <= FRAME_BODY_BYTES_MAX
                        && group.blocks.len() < FRAME_BLOCKS_MAX =>
                {
                    group.blocks.push(entry);
                    group.bytes += bytes;
                }
                _ => groups.extend(slot.replace(Group { shard, blocks: vec![entry], bytes })),
            }
        }
        groups.extend(open.into_iter().flatten());
        groups.sort_by_key(|group| group.blocks[0].block);
        groups
    }

    /// The cheapest thing to pull from every shard that owns something: its smallest block. Waiting
    /// for these is waiting for the release of a step and little else.
    pub fn smallest_groups(&self) -> Vec<Group> {
        let smallest = |shard: ShardId| {
            let blocks = self.placement.blocks_of(shard).iter();
            let id = blocks.min_by_key(|id| self.layout.blocks()[id.index()].len)?;
            let block = &self.layout.blocks()[id.index()];
            let format = self.down(block.tensor);
            let entry = BlockEntry::new(block.id, 0, format);
            let bytes =
                plain(format).expect("a format without parameters").encoded_len_max(block.len);
            Some(Group { shard, blocks: vec![entry], bytes })
        };
        self.shards().filter_map(smallest).collect()
    }
}

/// The format of the wire, but never more than the tensor itself has.
fn format(tensor: Dtype, wire: Dtype) -> CodecId {
    match tensor {
        Dtype::F32 => wire.into(),
        Dtype::F16 | Dtype::Bf16 => tensor.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline_common::layout::{Init, TensorSpec};

    fn plan(sizes: &[u64], shards: u16) -> Plan {
        let tensors = sizes.iter().enumerate();
        let tensors = tensors
            .map(|(i, n)| TensorSpec::parameter(format!("t{i}"), &[*n], Init::Zeros))
            .collect();
        Plan::new(Layout::new(tensors).unwrap(), shards, shards, Wire::default())
    }

    #[test]
    fn groups_cover_every_wanted_block_once_and_fit_a_frame() {
        for shards in 1..=3 {
            let plan = plan(&[3_000_000, 5, 700_000, 1], shards);
            let groups = plan.groups(|tensor| tensor != TensorId(2));
            let mut seen: Vec<_> = groups
                .iter()
                .flat_map(|group| {
                    assert!(group.bytes <= FRAME_BODY_BYTES_MAX);
                    group.blocks.iter().map(|entry| {
                        assert_eq!(plan.placement().shard_of(entry.block), group.shard);
                        entry.block
                    })
                })
                .collect();
            seen.sort_unstable();
            let all = plan.layout().blocks().iter().filter(|block| block.tensor != TensorId(2));
            assert_eq!(seen, all.map(|block| block.id).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_small_model_is_pulled_with_one_request_per_shard() {
        let plan = plan(&[640, 10], 2);
        let shards: Vec<_> = plan.groups(|_| true).iter().map(|group| group.shard.0).collect();
        assert_eq!(shards, [0, 1]);
        assert_eq!(plan.smallest_groups().len(), 2);
    }

    #[test]
    fn a_tensor_held_in_half_precision_travels_in_half_precision() {
        let tensors = [Dtype::F32, Dtype::F16, Dtype::Bf16].map(|dtype| TensorSpec {
            dtype,
            ..TensorSpec::parameter(dtype.to_string(), &[4], Init::Zeros)
        });
        let plan = Plan::new(Layout::new(tensors.to_vec()).unwrap(), 1, 1, Wire::default());
        let down = [0, 1, 2].map(|tensor| plan.down(TensorId(tensor)));
        assert_eq!(down, [CodecId::F32, CodecId::F16, CodecId::Bf16]);
        // A reference is what every seat holds, bit for bit.
        let deltas = plan.delta_groups(|_| true).remove(0).blocks;
        assert!(deltas.iter().all(|entry| entry.codec == CodecId::F32));
    }
}
