//! The ordered tensors of a model, cut into blocks.
//!
//! The cut depends on the layout alone, never on the number of servers: per-block sums (gradient
//! norms) then have the same bits for any placement.

use crate::ids::{BlockId, Fingerprint, TensorId};
use crate::limits::{
    BLOCK_ELEMENTS_MAX, BLOCK_ELEMENTS_MIN, BLOCKS_PER_LAYOUT_TARGET, LAYOUT_ELEMENTS_MAX,
    TENSOR_DIMENSIONS_MAX, TENSOR_NAME_BYTES_MAX, TENSORS_MAX,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// The number format a front end holds a tensor in. Servers always keep `f32`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE 754 single precision.
    #[default]
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

/// What a push to a tensor means.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum TensorRole {
    /// A gradient: goes through clipping, weight decay and the optimizer.
    #[default]
    Parameter,
    /// A difference to a running statistic (batch-norm mean and variance): its weighted mean is
    /// added as it is, without rate, decay or clipping.
    Statistic,
}

/// How a tensor gets its first values, the same on every machine.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Uniform in `-bound..bound`, from the job's seed, the tensor's position and the element's.
    Uniform {
        /// Half the width of the range.
        bound: f32,
    },
    /// A client sends the values.
    External,
}

/// One tensor of a layout.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TensorSpec {
    /// Unique name, as PyTorch's `state_dict` would have it.
    pub name: String,
    /// Row-major shape; empty for a scalar. No dimension is 0.
    pub shape: Vec<u64>,
    /// What front ends hold it in.
    pub dtype: Dtype,
    /// What a push to it means.
    pub role: TensorRole,
    /// Where its first values come from.
    pub init: Init,
}

impl TensorSpec {
    /// A trainable `f32` tensor.
    pub fn parameter(name: impl Into<String>, shape: &[u64], init: Init) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            dtype: Dtype::F32,
            role: TensorRole::Parameter,
            init,
        }
    }

    /// A running statistic in `f32`.
    pub fn statistic(name: impl Into<String>, shape: &[u64], init: Init) -> Self {
        Self { role: TensorRole::Statistic, ..Self::parameter(name, shape, init) }
    }
}

/// Why a list of tensors is not a layout.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LayoutError {
    /// No tensor at all.
    #[error("the layout has no tensors: name at least one")]
    Empty,
    /// Too many tensors.
    #[error("the layout has {got} tensors; at most {TENSORS_MAX} are allowed")]
    TooManyTensors {
        /// How many there were.
        got: usize,
    },
    /// A name that is empty or too long.
    #[error(
        "tensor {position} has a name of {bytes} bytes; 1 to {TENSOR_NAME_BYTES_MAX} are allowed"
    )]
    Name {
        /// The tensor's position.
        position: usize,
        /// The length of its name.
        bytes: usize,
    },
    /// Two tensors with one name.
    #[error("tensor name {name:?} is used twice; names must be unique")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A dimension of 0, or too many dimensions.
    #[error(
        "tensor {name:?} has shape {shape:?}; at most {TENSOR_DIMENSIONS_MAX} dimensions, none of them 0"
    )]
    Shape {
        /// The tensor.
        name: String,
        /// The refused shape.
        shape: Vec<u64>,
    },
    /// More elements than the limit.
    #[error("the layout has more than {LAYOUT_ELEMENTS_MAX} elements")]
    TooLarge,
}

/// A contiguous range of one tensor: the unit of placement, version and coding.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Block {
    /// Its position in the layout.
    pub id: BlockId,
    /// The tensor it is cut from.
    pub tensor: TensorId,
    /// First element, counted within the tensor.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
    /// First element, counted within the flat parameter vector.
    pub offset: usize,
}

impl Block {
    /// The block's elements in the flat parameter vector.
    pub const fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// The block's elements within its tensor.
    pub const fn range_in_tensor(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// The ordered tensors of a model. Parameters live in one flat vector in this order.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(try_from = "Vec<TensorSpec>", into = "Vec<TensorSpec>")]
pub struct Layout {
    tensors: Vec<TensorSpec>,
    offsets: Vec<usize>,
    blocks: Vec<Block>,
    first_block: Vec<usize>,
    by_name: BTreeMap<String, TensorId>,
}

impl From<Layout> for Vec<TensorSpec> {
    fn from(layout: Layout) -> Self {
        layout.tensors
    }
}

impl TryFrom<Vec<TensorSpec>> for Layout {
    type Error = LayoutError;

    fn try_from(tensors: Vec<TensorSpec>) -> Result<Self, LayoutError> {
        Self::new(tensors)
    }
}

impl Layout {
    /// Checks the tensors and cuts them into blocks.
    ///
    /// # Errors
    /// The first rule of [`LayoutError`] that the list breaks.
    pub fn new(tensors: Vec<TensorSpec>) -> Result<Self, LayoutError> {
        if tensors.is_empty() {
            return Err(LayoutError::Empty);
        }
        if tensors.len() > TENSORS_MAX {
            return Err(LayoutError::TooManyTensors { got: tensors.len() });
        }
        let mut by_name = BTreeMap::new();
        let mut offsets = Vec::with_capacity(tensors.len() + 1);
        let mut total = 0u64;
        for (position, tensor) in tensors.iter().enumerate() {
            let bytes = tensor.name.len();
            if !(1..=TENSOR_NAME_BYTES_MAX).contains(&bytes) {
                return Err(LayoutError::Name { position, bytes });
            }
            if by_name.insert(tensor.name.clone(), TensorId(to_u32(position))).is_some() {
                return Err(LayoutError::DuplicateName { name: tensor.name.clone() });
            }
            offsets.push(to_usize(total));
            total = checked_elements(tensor)?
                .checked_add(total)
                .filter(|sum| *sum <= LAYOUT_ELEMENTS_MAX)
                .ok_or(LayoutError::TooLarge)?;
        }
        offsets.push(to_usize(total));
        let (blocks, first_block) = cut(&offsets);
        Ok(Self { tensors, offsets, blocks, first_block, by_name })
    }

    /// The tensors in order.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Number of elements of all tensors together.
    pub fn elements(&self) -> usize {
        self.offsets[self.tensors.len()]
    }

    /// The blocks in order: tensor by tensor, each from its start.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The blocks of one tensor, in order.
    pub fn blocks_of(&self, tensor: TensorId) -> &[Block] {
        &self.blocks[self.first_block[tensor.index()]..self.first_block[tensor.index() + 1]]
    }

    /// One tensor's elements in the flat parameter vector.
    pub fn range(&self, tensor: TensorId) -> Range<usize> {
        self.offsets[tensor.index()]..self.offsets[tensor.index() + 1]
    }

    /// The tensor of that name.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.by_name.get(name).copied()
    }

    /// A hash of names, shapes, formats and roles: what both ends must agree on. The source of the
    /// first values is left out, so a client may say `External` for a tensor the server fills.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hash = blake3::Hasher::new();
        for tensor in &self.tensors {
            hash.update(&(tensor.name.len() as u64).to_le_bytes());
            hash.update(tensor.name.as_bytes());
            hash.update(&(tensor.shape.len() as u64).to_le_bytes());
            tensor.shape.iter().for_each(|dimension| {
                hash.update(&dimension.to_le_bytes());
            });
            hash.update(&[tensor.dtype as u8, tensor.role as u8]);
        }
        Fingerprint(*hash.finalize().as_bytes())
    }
}

/// Number of elements of one tensor, or why its shape is refused.
fn checked_elements(tensor: &TensorSpec) -> Result<u64, LayoutError> {
    let refuse = || LayoutError::Shape { name: tensor.name.clone(), shape: tensor.shape.clone() };
    if tensor.shape.len() > TENSOR_DIMENSIONS_MAX || tensor.shape.contains(&0) {
        return Err(refuse());
    }
    tensor
        .shape
        .iter()
        .try_fold(1u64, |product, dimension| product.checked_mul(*dimension))
        .ok_or(LayoutError::TooLarge)
}

/// Cuts every tensor into blocks of one length, which depends on the total alone.
fn cut(offsets: &[usize]) -> (Vec<Block>, Vec<usize>) {
    let total = offsets.last().copied().unwrap_or(0);
    let block_len = total
        .div_ceil(BLOCKS_PER_LAYOUT_TARGET)
        .next_multiple_of(64)
        .clamp(BLOCK_ELEMENTS_MIN, BLOCK_ELEMENTS_MAX);
    let mut blocks = Vec::new();
    let mut first_block = Vec::with_capacity(offsets.len());
    for (tensor, ends) in offsets.windows(2).enumerate() {
        first_block.push(blocks.len());
        let len = ends[1] - ends[0];
        for start in (0..len).step_by(block_len) {
            blocks.push(Block {
                id: BlockId(to_u32(blocks.len())),
                tensor: TensorId(to_u32(tensor)),
                start,
                len: block_len.min(len - start),
                offset: ends[0] + start,
            });
        }
    }
    first_block.push(blocks.len());
    (blocks, first_block)
}

fn to_u32(value: usize) -> u32 {
    u32::try_from(value).expect("bounded by TENSORS_MAX and LAYOUT_ELEMENTS_MAX")
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("bounded by LAYOUT_ELEMENTS_MAX on a 64-bit machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[u64]) -> TensorSpec {
        TensorSpec::parameter(name, shape, Init::Zeros)
    }

    #[test]
    fn blocks_cover_every_element_once_and_in_order() {
        let layout =
            Layout::new(vec![tensor("a", &[1000, 900]), tensor("b", &[]), tensor("c", &[3, 7])])
                .unwrap();
        let mut next = 0;
        for (position, block) in layout.blocks().iter().enumerate() {
            assert_eq!((block.id.index(), block.offset), (position, next));
            assert!((1..=BLOCK_ELEMENTS_MAX).contains(&block.len));
            assert_eq!(layout.range(block.tensor).start + block.start, block.offset);
            next += block.len;
        }
        assert_eq!(next, layout.elements());
        assert_eq!(next, 900_000 + 1 + 21);
    }

    #[test]
    fn one_huge_tensor_becomes_blocks_of_the_largest_length() {
        let layout = Layout::new(vec![tensor("a", &[64 << 20])]).unwrap();
        assert!(layout.blocks().iter().all(|block| block.len == BLOCK_ELEMENTS_MAX));
        assert_eq!(layout.blocks().len(), 256);
    }

    #[test]
    fn a_bad_list_is_refused_with_the_rule_it_breaks() {
        let check = |tensors: Vec<TensorSpec>, part: &str| {
            let message = Layout::new(tensors).unwrap_err().to_string();
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        };
        check(vec![], "no tensors");
        check(vec![tensor("", &[1])], "name of 0 bytes");
        check(vec![tensor("a", &[1]), tensor("a", &[2])], "used twice");
        check(vec![tensor("a", &[3, 0])], "[3, 0]");
        check(vec![tensor("a", &[1; 9])], "at most 8 dimensions");
        check(vec![tensor("a", &[u64::MAX, 2])], "more than");
        check(vec![tensor("a", &[1 << 34]), tensor("b", &[1])], "more than");
    }

    #[test]
    fn the_fingerprint_sees_names_shapes_formats_and_roles() {
        let print = |tensors| Layout::new(tensors).unwrap().fingerprint();
        let base = print(vec![tensor("a", &[2, 3])]);
        assert_eq!(base, print(vec![TensorSpec { init: Init::External, ..tensor("a", &[2, 3]) }]));
        assert_ne!(base, print(vec![tensor("b", &[2, 3])]));
        assert_ne!(base, print(vec![tensor("a", &[3, 2])]));
        assert_ne!(base, print(vec![TensorSpec { dtype: Dtype::F16, ..tensor("a", &[2, 3]) }]));
        assert_ne!(base, print(vec![TensorSpec::statistic("a", &[2, 3], Init::Zeros)]));
    }
}
