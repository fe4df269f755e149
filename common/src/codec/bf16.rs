//! `bf16`: the upper half of an `f32`.
//!
//! ```text
//! bit     15   14 … 7     6 … 0
//!       +----+---------+---------+
//!       |sign| exponent| mantissa|      one element, 2 bytes, little-endian
//!       +----+---------+---------+
//! ```
//!
//! Rules:
//! * rounding is to the nearest value, a tie to the one with the even mantissa;
//! * a finite value above the largest finite `bf16` by half a unit or more becomes infinity;
//! * −0 stays −0 and subnormals stay subnormal;
//! * infinities stay; NaN stays NaN, with its sign and the upper 7 bits of its mantissa, made quiet
//!   by setting the highest of them.
//!
//! Decoding is exact.

use super::sixteen::{Sixteen, sixteen_codec};
use super::{CodecError, CodecId};

/// The upper half of an `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Bf16;

impl Sixteen for Bf16 {
    const ID: CodecId = CodecId::Bf16;
    const INFINITY: u16 = 0x7f80;

    #[inline(always)]
    fn narrow(bits: u32) -> u16 {
        let quiet = bits | 0x0040_0000;
        // Adds just under half a unit, and the missing bit when the kept mantissa is odd. The carry
        // may run into the exponent, which is right: the next binade, or infinity.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
        ((if is_nan { quiet } else { rounded }) >> 16) as u16
    }

    #[inline(always)]
    fn widen(bits: u16) -> u32 {
        u32::from(bits) << 16
    }
}

sixteen_codec!(Bf16);
