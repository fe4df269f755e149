//! Numbers to bytes and back: one file per format, one trait for all.
//!
//! A codec's bytes say nothing about themselves: the codec's id and the number of elements travel in
//! the frame's block entry, so both are arguments here. All formats are little-endian.
//!
//! A receiver needs nothing but the id: [`codec`]. A sender says how to code with a [`CodecSpec`], which
//! may have parameters, and [`Encoder`] names the id that came out.
//!
//! What a lossy codec holds back is the caller's to keep: after an encoding, the residual is
//! `decode_add(bytes, -1.0, values)` on the values that were encoded.

mod bf16;
mod encoder;
mod f16;
mod f32;
mod grouped;
mod int4;
mod int8;
#[cfg(test)]
mod lossy_tests;
mod random_k;
mod sign;
mod sixteen;
mod sparse;
mod spec;
#[cfg(test)]
mod tests;
mod top_k;
mod two_bit;

pub use self::bf16::Bf16;
pub use self::encoder::{Draw, Encoder};
pub use self::f16::F16;
pub use self::f32::F32;
pub use self::int4::Int4;
pub use self::int8::Int8;
pub use self::random_k::RandomK;
pub use self::sign::Sign;
pub use self::sparse::index_bytes;
pub use self::spec::{CodecSpec, Rounding, Select, ValueFormat};
pub use self::top_k::TopK;
pub use self::two_bit::TwoBit;

use crate::blame::Blame;
use crate::layout::Dtype;
use std::fmt;

/// A number format's byte on the wire. Never reuse a number.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum CodecId {
    /// 4 bytes an element, lossless.
    F32 = 1,
    /// 2 bytes an element: the upper half of an `f32`.
    Bf16 = 2,
    /// 2 bytes an element: IEEE 754 half precision.
    F16 = 3,
    /// A scale per 256 elements and a byte each.
    Int8 = 4,
    /// A scale per 256 elements and half a byte each.
    Int4 = 5,
    /// A scale and a bit an element.
    Sign = 6,
    /// A threshold and two bits an element.
    TwoBit = 7,
    /// The largest elements, with their positions.
    TopK = 8,
    /// Elements that a seed chooses.
    RandomK = 9,
}

impl CodecId {
    /// The formats that may be asked for by their id alone.
    pub const PLAIN: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];
    /// Every format, in the order of their bytes.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::Bf16,
        Self::F16,
        Self::Int8,
        Self::Int4,
        Self::Sign,
        Self::TwoBit,
        Self::TopK,
        Self::RandomK,
    ];
}

impl TryFrom<u8> for CodecId {
    type Error = CodecError;

    fn try_from(byte: u8) -> Result<Self, CodecError> {
        Self::ALL
            .into_iter()
            .find(|id| *id as u8 == byte)
            .ok_or(CodecError::UnknownId { got: byte })
    }
}

impl From<Dtype> for CodecId {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::Bf16 => Self::Bf16,
            Dtype::F16 => Self::F16,
        }
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Sign => "sign",
            Self::TwoBit => "two_bit",
            Self::TopK => "top_k",
            Self::RandomK => "random_k",
        })
    }
}

/// Why bytes are not a block in a format.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CodecError {
    /// A codec byte nobody knows.
    #[error("the sender names codec {got}; known are 1 (f32) to 9 (random_k)")]
    UnknownId {
        /// The byte.
        got: u8,
    },
    /// Too few or too many bytes.
    #[error(
        "the sender gives {got} bytes for {elements} elements in {codec}; the format needs {expected}"
    )]
    Length {
        /// The format.
        codec: CodecId,
        /// How many elements the block has.
        elements: usize,
        /// How many bytes there are.
        got: usize,
        /// How many there must be.
        expected: usize,
    },
    /// Bytes that break another rule of the format.
    #[error("the sender gives {got} bytes for {elements} elements in {codec}, but {rule}")]
    Rule {
        /// The format.
        codec: CodecId,
        /// How many elements the block has.
        elements: usize,
        /// How many bytes there are.
        got: usize,
        /// The rule and what breaks it.
        rule: &'static str,
    },
}

impl CodecError {
    /// Whose move it is: bytes come from peers alone.
    pub const fn blame(&self) -> Blame {
        match self {
            Self::UnknownId { .. } | Self::Length { .. } | Self::Rule { .. } => Blame::Peer,
        }
    }
}

/// A number format for the values of one block.
///
/// Bytes may lie at any address and may come from anyone: no input makes a method panic or allocate.
/// Equal values give equal bytes on every machine.
pub trait Codec: Send + Sync + fmt::Debug {
    /// The format's byte on the wire.
    fn id(&self) -> CodecId;

    /// Checks the length and every other rule of the format. Whether the values are finite is asked
    /// separately: a sender of NaN is not a sender of damaged bytes.
    ///
    /// # Errors
    /// The first rule that `bytes` breaks as a block of `elements` elements.
    fn validate(&self, bytes: &[u8], elements: usize) -> Result<(), CodecError>;

    /// Whether the bytes hold no NaN and no infinity. Means nothing for bytes that
    /// [`validate`](Self::validate) refuses.
    fn is_finite(&self, bytes: &[u8]) -> bool;

    /// Overwrites `out`, one block, with the decoded values.
    ///
    /// # Errors
    /// As [`validate`](Self::validate) for `out.len()` elements; `out` is then untouched.
    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError>;

    /// Bytes of one element, in formats that code each element by itself and in order: a block may be
    /// decoded from pieces cut between elements.
    fn element_bytes(&self) -> Option<usize> {
        None
    }

    /// Calls `visit` with the position of every element that the bytes carry, in rising order: all of
    /// them in a dense format. For bytes that [`validate`](Self::validate) takes.
    fn for_each_sent(&self, bytes: &[u8], elements: usize, visit: &mut dyn FnMut(usize)) {
        let _ = bytes;
        (0..elements).for_each(visit);
    }

    /// The values where they lie, if this machine can read them there: the same bits as
    /// [`decode`](Self::decode), without the copy.
    fn as_values<'a>(&self, bytes: &'a [u8]) -> Option<&'a [f32]> {
        let _ = bytes;
        None
    }

    /// `sum[i] += scale × decoded[i]`, rounded after the product and after the sum.
    ///
    /// # Errors
    /// As [`validate`](Self::validate) for `sum.len()` elements; `sum` is then untouched.
    fn decode_add(&self, bytes: &[u8], scale: f32, sum: &mut [f32]) -> Result<(), CodecError>;
}

/// A format without parameters, that may be asked for by its id alone.
pub trait PlainCodec: Codec {
    /// The most bytes [`encode`](Self::encode) appends for so many elements.
    fn encoded_len_max(&self, elements: usize) -> usize;

    /// Appends the encoded `values` to `out`. Allocates nothing when `out` has room for
    /// [`encoded_len_max`](Self::encoded_len_max) more bytes.
    fn encode(&self, values: &[f32], out: &mut Vec<u8>);
}

/// The codec of an id that may be asked for by its id alone: `f32`, `bf16`, `f16`.
pub fn plain(id: CodecId) -> Option<&'static dyn PlainCodec> {
    match id {
        CodecId::F32 => Some(&F32),
        CodecId::Bf16 => Some(&Bf16),
        CodecId::F16 => Some(&F16),
        _ => None,
    }
}

/// The codec of an id.
pub fn codec(id: CodecId) -> &'static dyn Codec {
    match id {
        CodecId::F32 => &F32,
        CodecId::Bf16 => &Bf16,
        CodecId::F16 => &F16,
        CodecId::Int8 => &Int8,
        CodecId::Int4 => &Int4,
        CodecId::Sign => &Sign,
        CodecId::TwoBit => &TwoBit,
        CodecId::TopK => &TopK,
        CodecId::RandomK => &RandomK,
    }
}

/// The rule of formats that spend the same number of bytes on every element.
fn check_length(
    codec: CodecId,
    bytes: &[u8],
    elements: usize,
    bytes_per_element: usize,
) -> Result<(), CodecError> {
    let expected = elements.saturating_mul(bytes_per_element);
    if bytes.len() == expected {
        return Ok(());
    }
    Err(CodecError::Length { codec, elements, got: bytes.len(), expected })
}
