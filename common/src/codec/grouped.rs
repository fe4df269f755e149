//! What formats of whole levels share: groups of [`GROUP`] elements with one scale each.
//!
//! ```text
//! byte     0       4
//!        +-------+--------+-------+--------
//!        | scale | levels | scale | levels …      scale: f32; the last group may be shorter
//!        +-------+--------+-------+--------
//! ```
//!
//! Rules:
//! * an element is `scale × level`; the scale is the largest magnitude of the group divided by the
//!   highest level, rounded to `f32`, and one unit less where `scale × highest level` would overflow;
//! * a group whose largest magnitude is below 2⁻¹⁰⁰ is sent as zeros with scale 0;
//! * rounding is to the nearest level, a tie to the even one; or by chance: to the level below
//!   `value / scale + u`, with `u` in 0..1 from the draw's seed and the element's place in the block;
//! * zero of either sign is level 0, which decodes to +0;
//! * a group with NaN or infinity has NaN for its scale and levels 0: all of it decodes to NaN;
//! * a scale is not below zero, and `scale × highest level` is finite, unless the scale is NaN or
//!   infinity; levels beyond the highest are refused.
//!
//! What rounding to the nearest holds back is exact in `f32`: the level is between half and twice the
//! value, so the difference needs no more bits (Sterbenz), or the level is 0. By chance a value just
//! above 0 may be sent as a whole level, and the difference needs more than 24 bits: it is rounded.

use super::{CodecError, CodecId, Rounding};
use crate::kernels::is_special;

/// Elements that share a scale.
pub(super) const GROUP: usize = GROUP_U32 as usize;
const GROUP_U32: u32 = 256;
/// Bytes of a scale.
const SCALE: usize = 4;
/// Below this largest magnitude (2⁻¹⁰⁰) the inverse of a scale comes near the end of `f32`.
const LEAST: u32 = 27 << 23;
/// Adding this rounds to a whole number, which is then in the lowest bits: 1.5 × 2²³.
const ROUNDER: f32 = 12_582_912.0;

/// A format of whole levels.
pub(super) trait Grouped {
    /// The format's byte on the wire.
    const ID: CodecId;
    /// The highest level.
    const HIGHEST: i8;

    /// Bytes of the levels of a group of `len`.
    fn packed_len(len: usize) -> usize;

    /// Writes a group's levels; `out` has [`packed_len`](Self::packed_len) bytes.
    fn pack(levels: &[i8], out: &mut [u8]);

    /// Reads a group's levels.
    fn unpack(packed: &[u8], levels: &mut [i8]);

    /// Whether a group's levels are in range and its unused bits zero.
    fn is_valid(packed: &[u8], len: usize) -> bool;
}

/// Bytes of a block.
pub(super) fn encoded_len<F: Grouped>(elements: usize) -> usize {
    let rest = match elements % GROUP {
        0 => 0,
        rest => SCALE + F::packed_len(rest),
    };
    (elements / GROUP).saturating_mul(SCALE + F::packed_len(GROUP)).saturating_add(rest)
}

/// A number between 0 and 2³² for one element, without a state so that many are made at once (two
/// multiplications with the constants of Chris Wellons' "lowbias32", 2018).
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower and the upper half, both used")]
const fn random(seed: u64, index: u32) -> u32 {
    let mut hash = index.wrapping_mul(0x9e37_79b9) ^ seed as u32;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x7feb_352d) ^ (seed >> 32) as u32;
    hash = (hash ^ (hash >> 15)).wrapping_mul(0x846c_a68b);
    hash ^ (hash >> 16)
}

/// The scale of a group as sent, and what to multiply with to get levels; 0 for a group of zeros.
#[inline(always)]
fn scale_of(group: &[f32], highest: f32) -> (f32, f32) {
    let mut largest = 0;
    for value in group {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    if is_special(largest) {
        return (f32::NAN, 0.0);
    }
    if largest < LEAST {
        return (0.0, 0.0);
    }
    let scale = f32::from_bits(largest) / highest;
    let scale = if scale * highest == f32::INFINITY { scale.next_down() } else { scale };
    (scale, 1.0 / scale)
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "clamped to at most 127")]
fn levels_of(group: &[f32], inverse: f32, highest: i8, draw: Option<(u64, u32)>, out: &mut [i8]) {
    let high = i32::from(highest);
    // The values of a special group must not become levels: NaN times 0 is NaN.
    let level = |value: f32, shift: f32| {
        let sum = value * inverse + shift + ROUNDER;
        let level = sum.to_bits() as i32 - ROUNDER.to_bits() as i32;
        level.clamp(-high, high) as i8
    };
    match draw {
        _ if inverse == 0.0 => out.fill(0),
        None => {
            for (out, value) in out.iter_mut().zip(group) {
                *out = level(*value, 0.0);
            }
        }
        Some((seed, first)) => {
            for ((out, value), index) in out.iter_mut().zip(group).zip(first..) {
                // In the middle of its 2⁻¹⁶: never a tie, and beside 127 still a number of its own.
                let chance = ((random(seed, index) >> 16) as f32 + 0.5) * (1.0 / 65_536.0);
                *out = level(*value, chance - 0.5);
            }
        }
    }
}

#[inline(always)]
pub(super) fn encode<F: Grouped>(values: &[f32], rounding: Rounding, seed: u64, out: &mut Vec<u8>) {
    out.reserve(encoded_len::<F>(values.len()));
    let mut levels = [0i8; GROUP];
    let mut packed = [0u8; GROUP];
    let mut first = 0u32;
    for group in values.chunks(GROUP) {
        let (scale, inverse) = scale_of(group, f32::from(F::HIGHEST));
        let levels = &mut levels[..group.len()];
        let draw = (rounding == Rounding::Stochastic).then_some((seed, first));
        levels_of(group, inverse, F::HIGHEST, draw, levels);
        let packed = &mut packed[..F::packed_len(group.len())];
        F::pack(levels, packed);
        out.extend_from_slice(&scale.to_le_bytes());
        out.extend_from_slice(packed);
        first = first.wrapping_add(GROUP_U32);
    }
}

/// Every group: its scale, its levels' bytes, its length.
#[inline(always)]
fn groups<F: Grouped>(bytes: &[u8], elements: usize) -> impl Iterator<Item = (f32, &[u8], usize)> {
    let starts = (0..elements).step_by(GROUP);
    starts.zip(bytes.chunks(SCALE + F::packed_len(GROUP))).map(move |(start, group)| {
        let (scale, packed) = group.split_first_chunk::<SCALE>().expect("the length was checked");
        (f32::from_le_bytes(*scale), packed, GROUP.min(elements - start))
    })
}

/// The length and every rule.
pub(super) fn validate<F: Grouped>(bytes: &[u8], elements: usize) -> Result<(), CodecError> {
    let (got, expected) = (bytes.len(), encoded_len::<F>(elements));
    if got != expected {
        return Err(CodecError::Length { codec: F::ID, elements, got, expected });
    }
    let highest = f32::from(F::HIGHEST);
    let broken = |rule| CodecError::Rule { codec: F::ID, elements, got, rule };
    for (scale, packed, len) in groups::<F>(bytes, elements) {
        let is_number = !is_special(scale.to_bits());
        if is_number && (scale.is_sign_negative() || scale * highest == f32::INFINITY) {
            return Err(broken("a scale is below zero or too large for its levels"));
        }
        if !F::is_valid(packed, len) {
            return Err(broken("a level is out of range or an unused bit set"));
        }
    }
    Ok(())
}

#[inline(always)]
pub(super) fn finite<F: Grouped>(bytes: &[u8]) -> bool {
    let mut groups = bytes.chunks(SCALE + F::packed_len(GROUP));
    groups.all(|group| match group.first_chunk::<SCALE>() {
        Some(scale) => !is_special(u32::from_le_bytes(*scale)),
        None => false,
    })
}

#[inline(always)]
pub(super) fn decode<F: Grouped>(bytes: &[u8], out: &mut [f32]) {
    let mut levels = [0i8; GROUP];
    let elements = out.len();
    for (out, (scale, packed, len)) in out.chunks_mut(GROUP).zip(groups::<F>(bytes, elements)) {
        F::unpack(packed, &mut levels[..len]);
        for (out, level) in out.iter_mut().zip(&levels) {
            *out = scale * f32::from(*level);
        }
    }
}

#[inline(always)]
pub(super) fn decode_add<F: Grouped>(bytes: &[u8], factor: f32, sum: &mut [f32]) {
    let mut levels = [0i8; GROUP];
    let elements = sum.len();
    for (sum, (scale, packed, len)) in sum.chunks_mut(GROUP).zip(groups::<F>(bytes, elements)) {
        F::unpack(packed, &mut levels[..len]);
        for (sum, level) in sum.iter_mut().zip(&levels) {
            *sum += factor * (scale * f32::from(*level));
        }
    }
}

/// Makes the codec of a [`Grouped`] format: the doors to its loops and the
/// [`Codec`](super::Codec) that walks through them.
macro_rules! grouped_codec {
    ($format:ident) => {
        $crate::kernels::dispatch! {
            fn encode_levels(values: &[f32], rounding: Rounding, seed: u64, out: &mut Vec<u8>)
                = grouped::encode::<$format>
        }
        $crate::kernels::dispatch! {
            fn finite(bytes: &[u8]) -> bool = grouped::finite::<$format>
        }
        $crate::kernels::dispatch! {
            fn decode(bytes: &[u8], out: &mut [f32]) = grouped::decode::<$format>
        }
        $crate::kernels::dispatch! {
            fn decode_add(bytes: &[u8], scale: f32, sum: &mut [f32])
                = grouped::decode_add::<$format>
        }

        impl $format {
            /// Bytes of a block.
            pub(super) fn encoded_len(elements: usize) -> usize {
                grouped::encoded_len::<Self>(elements)
            }

            /// Appends a block. `seed` is that of the chances.
            pub(super) fn encode(values: &[f32], rounding: Rounding, seed: u64, out: &mut Vec<u8>) {
                encode_levels(values, rounding, seed, out);
            }
        }

        impl Codec for $format {
            fn id(&self) -> CodecId {
                Self::ID
            }

            fn validate(&self, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
                grouped::validate::<Self>(bytes, elements)
            }

            fn is_finite(&self, bytes: &[u8]) -> bool {
                finite(bytes)
            }

            fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
                self.validate(bytes, out.len())?;
                decode(bytes, out);
                Ok(())
            }

            fn decode_add(
                &self,
                bytes: &[u8],
                scale: f32,
                sum: &mut [f32],
            ) -> Result<(), CodecError> {
                self.validate(bytes, sum.len())?;
                decode_add(bytes, scale, sum);
                Ok(())
            }
        }
    };
}
pub(super) use grouped_codec;
