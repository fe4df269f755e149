//! `sign`: one bit an element and the mean magnitude of the block.
//!
//! ```text
//! byte     0       4
//!        +-------+------------------
//!        | scale | bit 0 of byte 4: element 0, bit 1: element 1 …      scale: f32
//!        +-------+------------------
//! ```
//!
//! Rules:
//! * the scale is the mean magnitude: the magnitudes added in `f64` (element `i` to partial sum
//!   `i mod 16`, then sum `j` takes `j + 8`, `j + 4`, `j + 2`, `j + 1`), divided by their number,
//!   rounded to `f32`;
//! * **the sign of zero:** a set bit is minus. Only what is below zero is minus: +0 and −0 are both
//!   plus;
//! * an element is `+scale` or `-scale`; nothing is ever decoded to another value;
//! * with NaN or infinity in the block the scale is NaN and all bits are 0: all of it decodes to NaN;
//! * the scale is not below zero; bits behind the last element are 0.
//!
//! What is held back is `value - ±scale` rounded to `f32`: a value much smaller than the scale needs
//! more than 24 bits beside it, so the sum of sent and residual is the value to within half a unit of
//! the residual, not to the bit.

use super::{Codec, CodecError, CodecId};
use crate::kernels::{self, dispatch, is_special};

/// One bit an element.
#[derive(Clone, Copy, Debug)]
pub struct Sign;

const SCALE: usize = 4;
/// Elements of one word of bits.
const WORD: usize = 32;

const fn encoded_len(elements: usize) -> usize {
    SCALE + elements.div_ceil(8)
}

impl Sign {
    /// Bytes of a block.
    pub(super) const fn encoded_len(elements: usize) -> usize {
        encoded_len(elements)
    }

    /// Appends a block.
    pub(super) fn encode(values: &[f32], out: &mut Vec<u8>) {
        encode(values, out);
    }

    fn scale(bytes: &[u8]) -> f32 {
        bytes.first_chunk::<SCALE>().map_or(f32::NAN, |scale| f32::from_le_bytes(*scale))
    }
}

impl Codec for Sign {
    fn id(&self) -> CodecId {
        CodecId::Sign
    }

    fn validate(&self, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
        let got = bytes.len();
        let expected = encoded_len(elements);
        if got != expected {
            return Err(CodecError::Length { codec: CodecId::Sign, elements, got, expected });
        }
        let broken = |rule| CodecError::Rule { codec: CodecId::Sign, elements, got, rule };
        let scale = Self::scale(bytes);
        if scale.is_sign_negative() && !scale.is_nan() {
            return Err(broken("its scale is below zero"));
        }
        let unused = match elements % 8 {
            0 => 0,
            used => bytes[got - 1] >> used,
        };
        if unused == 0 { Ok(()) } else { Err(broken("an unused bit is set")) }
    }

    fn is_finite(&self, bytes: &[u8]) -> bool {
        // A block without elements holds no NaN, whatever its scale.
        bytes.len() == SCALE || !is_special(Self::scale(bytes).to_bits())
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        self.validate(bytes, out.len())?;
        decode(Self::scale(bytes), &bytes[SCALE..], out);
        Ok(())
    }

    fn decode_add(&self, bytes: &[u8], scale: f32, sum: &mut [f32]) -> Result<(), CodecError> {
        self.validate(bytes, sum.len())?;
        decode_add(scale * Self::scale(bytes), &bytes[SCALE..], sum);
        Ok(())
    }
}

dispatch! { fn encode(values: &[f32], out: &mut Vec<u8>) = portable::encode }
dispatch! { fn decode(scale: f32, bits: &[u8], out: &mut [f32]) = portable::decode }
dispatch! { fn decode_add(scale: f32, bits: &[u8], sum: &mut [f32]) = portable::decode_add }

/// The meaning of the loops above; lengths were checked.
mod portable {
    use super::{WORD, kernels};

    #[inline(always)]
    pub(super) fn encode(values: &[f32], out: &mut Vec<u8>) {
        let sum = kernels::sum_of_magnitudes(values);
        let is_finite = kernels::is_finite(values);
        #[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
        let mean = (sum / values.len().max(1) as f64) as f32;
        let scale = if is_finite { mean } else { f32::NAN };
        out.extend_from_slice(&scale.to_le_bytes());
        let start = out.len();
        let (words, rest) = values.as_chunks::<WORD>();
        out.reserve(values.len().div_ceil(8));
        for word in words {
            let mut bits = 0u32;
            for (place, value) in word.iter().enumerate() {
                bits |= u32::from(*value < 0.0) << place;
            }
            out.extend_from_slice(&bits.to_le_bytes());
        }
        for byte in rest.chunks(8) {
            let bits = byte.iter().enumerate();
            out.push(bits.fold(0, |bits, (place, value)| bits | u8::from(*value < 0.0) << place));
        }
        if !is_finite {
            out[start..].fill(0);
        }
    }

    /// Plus or minus the scale, by bit `place` of a byte.
    #[inline(always)]
    fn element(scale: f32, byte: u8, place: usize) -> f32 {
        f32::from_bits(scale.to_bits() ^ (u32::from(byte) >> place & 1) << 31)
    }

    #[inline(always)]
    pub(super) fn decode(scale: f32, bits: &[u8], out: &mut [f32]) {
        for (out, byte) in out.chunks_mut(8).zip(bits) {
            for (place, out) in out.iter_mut().enumerate() {
                *out = element(scale, *byte, place);
            }
        }
    }

    #[inline(always)]
    pub(super) fn decode_add(scale: f32, bits: &[u8], sum: &mut [f32]) {
        let (whole, rest) = sum.as_chunks_mut::<8>();
        for (sum, byte) in whole.iter_mut().zip(bits) {
            for (place, sum) in sum.iter_mut().enumerate() {
                *sum += element(scale, *byte, place);
            }
        }
        for (place, sum) in rest.iter_mut().enumerate() {
            *sum += element(scale, bits[bits.len() - 1], place);
        }
    }
}

#[cfg(test)]
pub(super) fn portable_encoding(values: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    portable::encode(values, &mut out);
    out
}
