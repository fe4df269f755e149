//! From replies to numbers: checks that a reply holds what was asked, decodes it in place, and keeps
//! the gradient norms that the next push carries.

use crate::core::answer::Answer;
use crate::core::plan::Plan;
use slackline_common::codec::{CodecError, CodecId};
use slackline_common::ids::{BlockId, TensorId};
use slackline_common::layout::Block;
use slackline_common::wire::frame::BlockEntry;

/// Why a reply is not the answer to its request. The server's fault, always.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PipelineError {
    /// Other blocks than asked for.
    #[error("the server answered a pull of {asked} blocks with {got} others")]
    Blocks {
        /// Blocks asked for.
        asked: usize,
        /// Blocks in the reply.
        got: usize,
    },
    /// A publish before the one held, or too far behind it.
    #[error("the server answered a pull of what came after publish {held} with publish {got}")]
    Publish {
        /// What the seat said it holds.
        held: u64,
        /// What the reply says.
        got: u64,
    },
    /// A delta of a publish that the reply is not about, or a second one of the same.
    #[error(
        "the server sent a delta of {block} for publish {publish} that is outside of publishes \
         {held} (not included) to {until} or was sent before"
    )]
    Delta {
        /// Which block.
        block: BlockId,
        /// The publish named.
        publish: u64,
        /// What the seat said it holds.
        held: u64,
        /// The last publish of the reply.
        until: u64,
    },
    /// A delta of a block that was not asked for.
    #[error("the server sent a delta of {block}, which is none of the {asked} asked for")]
    Stranger {
        /// Which block.
        block: BlockId,
        /// Blocks asked for.
        asked: usize,
    },
    /// A reference in a lossy format.
    #[error("the server sent a reference of {block} in {codec}; a reference is in f32")]
    Reference {
        /// Which block.
        block: BlockId,
        /// The format.
        codec: CodecId,
    },
    /// A block's bytes do not decode.
    #[error("the server's {block} does not decode: {why}")]
    Payload {
        /// Which block.
        block: BlockId,
        /// What is wrong.
        why: CodecError,
    },
}

/// Where decoded values go.
pub trait Destination {
    /// The place of a block's values, as long as the block.
    fn of(&mut self, block: &Block) -> &mut [f32];
}

/// The flat parameter vector of the whole layout.
impl Destination for [f32] {
    fn of(&mut self, block: &Block) -> &mut [f32] {
        &mut self[block.range()]
    }
}

/// Some tensors, each in a buffer of its own.
#[derive(Debug)]
pub struct Tensors<'a> {
    /// Position in `buffers` of each tensor of the layout that is wanted.
    position: Vec<Option<usize>>,
    buffers: Vec<&'a mut [f32]>,
}

impl<'a> Tensors<'a> {
    /// A destination of the given tensors of `plan`.
    ///
    /// # Panics
    /// When a buffer is not as long as its tensor.
    pub fn new(plan: &Plan, wanted: impl IntoIterator<Item = (TensorId, &'a mut [f32])>) -> Self {
        let mut position = vec![None; plan.layout().tensors().len()];
        let mut buffers = Vec::new();
        for (tensor, buffer) in wanted {
            assert_eq!(buffer.len(), plan.layout().range(tensor).len(), "a buffer fits its tensor");
            position[tensor.index()] = Some(buffers.len());
            buffers.push(buffer);
        }
        Self { position, buffers }
    }
}

impl Destination for Tensors<'_> {
    fn of(&mut self, block: &Block) -> &mut [f32] {
        let position = self.position[block.tensor.index()].expect("only wanted tensors are asked");
        &mut self.buffers[position][block.range_in_tensor()]
    }
}

/// Checks that a reply holds the blocks asked for, in their order.
///
/// # Errors
/// [`PipelineError::Blocks`].
pub fn check_blocks(asked: &[BlockEntry], got: &[BlockEntry]) -> Result<(), PipelineError> {
    let same = asked.len() == got.len() && asked.iter().zip(got).all(|(a, b)| a.block == b.block);
    if same {
        return Ok(());
    }
    Err(PipelineError::Blocks { asked: asked.len(), got: got.len() })
}

/// Decodes the reply to a pull of `asked` into `out`.
///
/// # Errors
/// [`PipelineError`]; what was decoded before the fault stays in `out`.
pub fn decode(
    plan: &Plan,
    asked: &[BlockEntry],
    answer: &Answer,
    out: &mut (impl Destination + ?Sized),
) -> Result<(), PipelineError> {
    let reply = &answer.head;
    check_blocks(asked, &reply.blocks)?;
    let mut values = answer.values();
    for entry in &reply.blocks {
        let block = &plan.layout().blocks()[entry.block.index()];
        values
            .decode(entry, out.of(block))
            .map_err(|why| PipelineError::Payload { block: entry.block, why })?;
    }
    Ok(())
}

/// The squared gradient norms of the last step, gathered from replies.
#[derive(Clone, Debug, Default)]
pub struct Norms {
    blocks: Vec<f64>,
}

impl Norms {
    /// None known yet.
    pub fn new(plan: &Plan) -> Self {
        Self { blocks: vec![0.0; plan.layout().blocks().len()] }
    }

    /// Input: the norms of a reply to a pull of `asked`. Without norms it changes nothing.
    pub fn handle_reply(&mut self, asked: &[BlockEntry], norms: &[f64]) {
        for (entry, norm) in asked.iter().zip(norms) {
            // A server takes back finite norms only; 0 clips nothing.
            self.blocks[entry.block.index()] = if norm.is_finite() { *norm } else { 0.0 };
        }
    }

    /// One squared norm per tensor: its blocks' in block order, in `f64`, so that every worker sends
    /// the same bits whatever the placement.
    pub fn per_tensor(&self, plan: &Plan) -> Vec<f64> {
        let tensors = (0u32..).map(TensorId).take(plan.layout().tensors().len());
        tensors
            .map(|tensor| {
                let blocks = plan.layout().blocks_of(tensor).iter();
                blocks.map(|block| self.blocks[block.id.index()]).sum()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use slackline_common::ids::{Step, Version};
    use slackline_common::job::Wire;
    use slackline_common::layout::{Init, Layout, TensorSpec};
    use slackline_common::wire::frame::{Reply, ReplyKind};

    fn plan() -> Plan {
        let tensor = |name: &str, n| TensorSpec::parameter(name, &[n], Init::Zeros);
        let layout = Layout::new(vec![tensor("a", 300), tensor("b", 2)]).unwrap();
        Plan::new(layout, 1, 1, Wire::default())
    }

    /// A reply with every block, whose values count up from 0, and whose norms are 1, 2, 3.
    fn reply(plan: &Plan) -> (Vec<BlockEntry>, Answer) {
        let asked = plan.groups(|_| true).remove(0).blocks;
        let body: Vec<u8> = (0u16..302).flat_map(|i| f32::from(i).to_le_bytes()).collect();
        let bytes = |entry: &BlockEntry| {
            let elements = plan.layout().blocks()[entry.block.index()].len;
            u32::try_from(elements * 4).unwrap()
        };
        let blocks: Vec<_> =
            asked.iter().map(|entry| BlockEntry { bytes: bytes(entry), ..*entry }).collect();
        let norms = (1..=blocks.len()).map(|n| n as f64).collect();
        let base = Reply::ack(Version(1), Step(1));
        let body = Bytes::from(body);
        let reply = Reply { kind: ReplyKind::Parameters, norms, blocks, body, ..base };
        (asked, reply.into())
    }

    #[test]
    fn values_land_where_they_belong() {
        let plan = plan();
        let (asked, reply) = reply(&plan);
        let mut flat = vec![f32::NAN; 302];
        decode(&plan, &asked, &reply, flat.as_mut_slice()).unwrap();
        assert!(flat.iter().enumerate().all(|(i, value)| *value == i as f32));

        let (mut a, mut b) = (vec![0.0; 300], vec![0.0; 2]);
        let wanted = [(TensorId(1), b.as_mut_slice()), (TensorId(0), a.as_mut_slice())];
        decode(&plan, &asked, &reply, &mut Tensors::new(&plan, wanted)).unwrap();
        assert_eq!([a, b].concat(), flat);
    }

    #[test]
    fn another_answer_than_asked_for_is_refused() {
        let plan = plan();
        let (asked, good) = reply(&plan);
        let check = |asked: &[BlockEntry], reply: &Answer, part: &str| {
            let error = decode(&plan, asked, reply, vec![0.0; 302].as_mut_slice()).unwrap_err();
            assert!(error.to_string().contains(part), "{error} does not say {part:?}");
        };
        check(&asked[1..], &good, "pull of 2 blocks with 3 others");
        let mut swapped = good.clone();
        swapped.head.blocks.swap(0, 1);
        check(&asked, &swapped, "others");
        let mut wrong = good;
        wrong.head.blocks[0].codec = CodecId::Bf16;
        check(&asked, &wrong, "block 0 does not decode");
    }

    #[test]
    fn norms_are_summed_per_tensor_in_block_order() {
        let plan = plan();
        let mut norms = Norms::new(&plan);
        assert_eq!(norms.per_tensor(&plan), [0.0, 0.0]);
        let (asked, reply) = reply(&plan);
        norms.handle_reply(&asked, &reply.head.norms);
        assert_eq!(norms.per_tensor(&plan), [3.0, 3.0]);
    }
}
