//! `f16`: IEEE 754 half precision.
//!
//! ```text
//! bit     15   14 … 10    9 … 0
//!       +----+---------+---------+
//!       |sign| exponent| mantissa|      one element, 2 bytes, little-endian
//!       +----+---------+---------+
//! ```
//!
//! Rules:
//! * rounding is to the nearest value, a tie to the one with the even mantissa;
//! * a magnitude of 65520 or more becomes infinity (65504 is the largest finite value);
//! * a magnitude below 2⁻¹⁴ becomes a subnormal, a multiple of 2⁻²⁴; 2⁻²⁵ and less becomes zero;
//! * the sign is always kept, that of zero too;
//! * infinities stay; NaN stays NaN, with its sign and the upper 10 bits of its mantissa, made quiet
//!   by setting the highest of them.
//!
//! Decoding is exact; a signalling NaN comes out quiet.

use super::sixteen::{Sixteen, sixteen_codec};
use super::{CodecError, CodecId};

/// IEEE 754 half precision.
#[derive(Clone, Copy, Debug)]
pub struct F16;

/// Mantissa bits that `f32` has more than `f16`.
const SHIFT: u32 = 23 - 10;
/// What the biases of the exponents differ by, in the place of an `f32` exponent.
const REBIAS: u32 = (127 - 15) << 23;
/// Bits of the smallest `f32` that is infinite or NaN.
const SINGLE_INFINITY: u32 = 0x7f80_0000;
/// Bits of 2⁻¹⁴, the smallest normal `f16`, as an `f32`.
const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
/// Bits of 65536 as an `f32`: from here on the exponent does not fit.
const TOO_LARGE: u32 = (127 + 16) << 23;
/// 0.5 as an `f32`: one unit in its last place is 2⁻²⁴, that of a subnormal `f16`.
const SUBNORMAL_ANCHOR: f32 = 0.5;

impl Sixteen for F16 {
    const ID: CodecId = CodecId::F16;
    const INFINITY: u16 = 0x7c00;

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "each case leaves 16 bits")]
    fn narrow(bits: u32) -> u16 {
        let magnitude = bits & 0x7fff_ffff;
        let sign = (bits ^ magnitude) >> 16;
        // 65504 and its neighbours up to 65536 carry into infinity here, as they should.
        let normal = magnitude
            .wrapping_sub(REBIAS)
            .wrapping_add((1 << (SHIFT - 1)) - 1 + (magnitude >> SHIFT & 1))
            >> SHIFT;
        // The addition itself rounds to the nearest multiple of 2⁻²⁴, ties to even.
        let subnormal = (f32::from_bits(magnitude) + SUBNORMAL_ANCHOR)
            .to_bits()
            .wrapping_sub(SUBNORMAL_ANCHOR.to_bits());
        let nan = magnitude >> SHIFT & 0x03ff | 0x7e00;
        let finite = if magnitude < SMALLEST_NORMAL { subnormal } else { normal };
        let special = if magnitude > SINGLE_INFINITY { nan } else { u32::from(Self::INFINITY) };
        ((if magnitude >= TOO_LARGE { special } else { finite }) | sign) as u16
    }

    #[inline(always)]
    fn widen(bits: u16) -> u32 {
        let bits = u32::from(bits);
        let sign = (bits & 0x8000) << 16;
        let magnitude = (bits & 0x7fff) << SHIFT;
        let normal = magnitude + REBIAS;
        // With one more in the exponent, a subnormal's bits read 2⁻¹⁴ + value: take 2⁻¹⁴ off.
        let subnormal = (f32::from_bits(magnitude + SMALLEST_NORMAL)
            - f32::from_bits(SMALLEST_NORMAL))
        .to_bits();
        let is_nan = magnitude > 0x7c00 << SHIFT;
        let special = magnitude | SINGLE_INFINITY | u32::from(is_nan) << 22;
        let finite = if magnitude < 0x0400 << SHIFT { subnormal } else { normal };
        (if magnitude >= 0x7c00 << SHIFT { special } else { finite }) | sign
    }
}

sixteen_codec!(F16);
