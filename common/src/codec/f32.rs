//! `f32`: the values as they are.
//!
//! ```text
//! byte      0    1    2    3    4 …
//!         +----+----+----+----+---
//!         |    element 0      | element 1 …      IEEE 754 single, little-endian
//!         +----+----+----+----+---
//! ```
//!
//! Lossless for every bit pattern: the sign of zero, subnormals, infinities and the payload of a NaN
//! all survive.

use super::{Codec, CodecError, CodecId, PlainCodec, check_length};
use crate::kernels::{FINITE_STRIDE, dispatch, is_special};

/// The lossless format.
#[derive(Clone, Copy, Debug)]
pub struct F32;

const WIDTH: usize = 4;

impl PlainCodec for F32 {
    fn encoded_len_max(&self, elements: usize) -> usize {
        elements.saturating_mul(WIDTH)
    }

    fn encode(&self, values: &[f32], out: &mut Vec<u8>) {
        if cfg!(target_endian = "little") {
            out.extend_from_slice(bytemuck::cast_slice(values));
        } else {
            out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
    }
}

impl Codec for F32 {
    fn id(&self) -> CodecId {
        CodecId::F32
    }

    fn element_bytes(&self) -> Option<usize> {
        Some(WIDTH)
    }

    fn validate(&self, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
        check_length(CodecId::F32, bytes, elements, WIDTH)
    }

    fn is_finite(&self, bytes: &[u8]) -> bool {
        finite(bytes)
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        self.validate(bytes, out.len())?;
        widen(bytes, out);
        Ok(())
    }

    fn as_values<'a>(&self, bytes: &'a [u8]) -> Option<&'a [f32]> {
        // It fails for an odd address or length.
        bytemuck::try_cast_slice(bytes).ok().filter(|_| cfg!(target_endian = "little"))
    }

    fn decode_add(&self, bytes: &[u8], scale: f32, sum: &mut [f32]) -> Result<(), CodecError> {
        self.validate(bytes, sum.len())?;
        widen_add(bytes, scale, sum);
        Ok(())
    }
}

dispatch! { fn finite(bytes: &[u8]) -> bool = portable::finite }
dispatch! { fn widen(bytes: &[u8], out: &mut [f32]) = portable::widen }
dispatch! { fn widen_add(bytes: &[u8], scale: f32, sum: &mut [f32]) = portable::widen_add }

/// The meaning of the loops above; lengths were checked.
mod portable {
    use super::{FINITE_STRIDE, WIDTH, is_special};

    #[inline(always)]
    pub(super) fn finite(bytes: &[u8]) -> bool {
        for chunk in bytes.chunks(FINITE_STRIDE * WIDTH) {
            let mut special = false;
            for raw in chunk.as_chunks::<WIDTH>().0 {
                special |= is_special(u32::from_le_bytes(*raw));
            }
            if special {
                return false;
            }
        }
        true
    }

    #[inline(always)]
    pub(super) fn widen(bytes: &[u8], out: &mut [f32]) {
        for (out, raw) in out.iter_mut().zip(bytes.as_chunks::<WIDTH>().0) {
            *out = f32::from_bits(u32::from_le_bytes(*raw));
        }
    }

    #[inline(always)]
    pub(super) fn widen_add(bytes: &[u8], scale: f32, sum: &mut [f32]) {
        for (sum, raw) in sum.iter_mut().zip(bytes.as_chunks::<WIDTH>().0) {
            *sum += scale * f32::from_bits(u32::from_le_bytes(*raw));
        }
    }
}

#[cfg(test)]
pub(super) const PORTABLE: super::tests::Bodies = super::tests::Bodies {
    encode: |values, out| out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
    finite: portable::finite,
    decode: portable::widen,
    decode_add: portable::widen_add,
};
