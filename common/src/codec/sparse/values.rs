//! The values of the elements that a sparse block carries, in the order of their positions.
//!
//! `f32` and `bf16` are as in the formats of those names. The others come in groups of [`GROUP`]
//! values, the last one shorter:
//!
//! | format | a group is |
//! | --- | --- |
//! | `int8` | scale (`bf16`), then a byte a value, −127 to 127 in two's complement; value = scale × byte |
//! | `int4` | scale (`bf16`), then 4 bits a value, −7 to 7, the first in the lower half of a byte |
//! | 2 bits | small and large magnitude (`bf16` each), then 2 bits a value, the first in the lowest bits: bit 0 is the sign (1 is minus), bit 1 chooses the large one |
//!
//! The scale is the largest magnitude of the group divided by 127 or 7, cut off to `bf16`; levels are
//! chosen to the nearest, a tie to the even one. The two magnitudes are the means of the magnitudes up
//! to and above the group's mean (one step of Lloyd's quantiser), rounded to `bf16`. A group with NaN
//! or infinity has NaN for its scale or both magnitudes and zeros for its bits: all of it decodes to
//! NaN. Unused bits are zero.

use crate::codec::bf16::Bf16;
use crate::codec::sixteen::Sixteen;
use crate::codec::{Codec, F32, PlainCodec, ValueFormat};

/// Values that share a scale.
pub(super) const GROUP: usize = 128;

/// NaN in `bf16`.
const NAN: u16 = 0x7fc0;

/// The byte of a format in a payload.
pub(in crate::codec) const fn byte(format: ValueFormat) -> u8 {
    match format {
        ValueFormat::F32 => 0,
        ValueFormat::Bf16 => 1,
        ValueFormat::Int8 => 2,
        ValueFormat::Int4 => 3,
        ValueFormat::TwoBit => 4,
    }
}

/// The format of a byte.
pub(in crate::codec) const fn format(byte: u8) -> Option<ValueFormat> {
    match byte {
        0 => Some(ValueFormat::F32),
        1 => Some(ValueFormat::Bf16),
        2 => Some(ValueFormat::Int8),
        3 => Some(ValueFormat::Int4),
        4 => Some(ValueFormat::TwoBit),
        _ => None,
    }
}

/// Bytes of a group's scales and of so many values of it.
const fn group_bytes(format: ValueFormat, values: usize) -> (usize, usize) {
    match format {
        ValueFormat::F32 => (0, values * 4),
        ValueFormat::Bf16 => (0, values * 2),
        ValueFormat::Int8 => (2, values),
        ValueFormat::Int4 => (2, values.div_ceil(2)),
        ValueFormat::TwoBit => (4, values.div_ceil(4)),
    }
}

/// Bytes of so many values.
pub(in crate::codec) const fn len(format: ValueFormat, count: usize) -> usize {
    let (scales, whole) = group_bytes(format, GROUP);
    let rest = match count % GROUP {
        0 => 0,
        rest => scales + group_bytes(format, rest).1,
    };
    count / GROUP * (scales + whole) + rest
}

/// Appends values.
pub(in crate::codec) fn encode(format: ValueFormat, values: &[f32], out: &mut Vec<u8>) {
    match format {
        ValueFormat::F32 => F32.encode(values, out),
        ValueFormat::Bf16 => Bf16.encode(values, out),
        ValueFormat::Int8 => values.chunks(GROUP).for_each(|group| {
            let scale = put_scale(group, 127.0, out);
            out.extend(group.iter().map(|value| level(*value, scale, 127.0).to_le_bytes()[0]));
        }),
        ValueFormat::Int4 => values.chunks(GROUP).for_each(|group| {
            let scale = put_scale(group, 7.0, out);
            let nibble = |value: f32| level(value, scale, 7.0).to_le_bytes()[0] & 0x0f;
            out.extend(group.chunks(2).map(|pair| {
                nibble(pair[0]) | pair.get(1).map_or(0, |second| nibble(*second) << 4)
            }));
        }),
        ValueFormat::TwoBit => values.chunks(GROUP).for_each(|group| put_two_bits(group, out)),
    }
}

/// Writes a group's scale and returns it as the receiver reads it; 0 for a group without levels.
fn put_scale(group: &[f32], levels: f32, out: &mut Vec<u8>) -> f32 {
    let largest = group.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let is_finite = group.iter().all(|value| value.is_finite());
    let cut_off = (largest / levels).to_bits() >> 16;
    let bits = if is_finite { u16::try_from(cut_off).expect("16 bits") } else { NAN };
    // Below the smallest normal number its inverse would overflow.
    let bits = if bits < 0x0080 { 0 } else { bits };
    out.extend_from_slice(&bits.to_le_bytes());
    if is_finite { f32::from_bits(Bf16::widen(bits)) } else { 0.0 }
}

/// The nearest multiple of the scale.
#[expect(clippy::cast_possible_truncation, reason = "clamped to at most 127")]
fn level(value: f32, scale: f32, levels: f32) -> i8 {
    if scale == 0.0 {
        return 0;
    }
    (value / scale).round_ties_even().clamp(-levels, levels) as i8
}

fn put_two_bits(group: &[f32], out: &mut Vec<u8>) {
    let is_finite = group.iter().all(|value| value.is_finite());
    let mean_of = |wanted: &dyn Fn(f64) -> bool| {
        let chosen = group.iter().map(|value| f64::from(value.abs())).filter(|m| wanted(*m));
        let (count, sum) = chosen.fold((0u32, 0.0), |(n, sum), magnitude| (n + 1, sum + magnitude));
        if count == 0 { 0.0 } else { sum / f64::from(count) }
    };
    let mean = mean_of(&|_| true);
    let (small, large) = (mean_of(&|m| m <= mean), mean_of(&|m| m > mean));
    for magnitude in [small, large] {
        #[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
        let narrow = Bf16::narrow((magnitude as f32).to_bits());
        // Rounding up may reach infinity; the largest finite number is as near.
        let narrow = if is_finite { narrow.min(0x7f7f) } else { NAN };
        out.extend_from_slice(&narrow.to_le_bytes());
    }
    out.extend(group.chunks(4).map(|four| {
        let codes = four.iter().enumerate().map(|(place, value)| {
            let is_large = is_finite && f64::from(value.abs()) > mean;
            let is_minus = is_finite && *value < 0.0;
            (u8::from(is_minus) | u8::from(is_large) << 1) << (2 * place)
        });
        codes.fold(0, |byte, code| byte | code)
    }));
}

/// One group's scales and codes.
fn groups(
    format: ValueFormat,
    count: usize,
    bytes: &[u8],
) -> impl Iterator<Item = (&[u8], &[u8], usize)> {
    let (scales, codes) = group_bytes(format, GROUP);
    bytes.chunks(scales + codes).enumerate().map(move |(group, bytes)| {
        let (scales, codes) = bytes.split_at(scales);
        (scales, codes, GROUP.min(count - group * GROUP))
    })
}

const fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])
}

/// Whether `bytes`, as long as [`len`] says, keep the rules: no scale below zero or so large that a
/// value would overflow, no level out of range, no unused bit set.
pub(in crate::codec) fn are_valid(format: ValueFormat, count: usize, bytes: &[u8]) -> bool {
    let special = |bits: u16| bits & 0x7fff >= 0x7f80;
    let is_scale = |bits: u16, levels: f32| {
        let scale = f32::from_bits(Bf16::widen(bits));
        special(bits) || (bits < 0x8000 && scale * levels < f32::INFINITY)
    };
    match format {
        ValueFormat::F32 | ValueFormat::Bf16 => true,
        ValueFormat::Int8 => groups(format, count, bytes)
            .all(|(scales, codes, _)| is_scale(half(scales, 0), 127.0) && !codes.contains(&0x80)),
        ValueFormat::Int4 => groups(format, count, bytes).all(|(scales, codes, values)| {
            let levels = codes.iter().all(|byte| byte & 0x0f != 8 && byte >> 4 != 8);
            let padding = values % 2 == 0 || codes.last().is_none_or(|last| last >> 4 == 0);
            is_scale(half(scales, 0), 7.0) && levels && padding
        }),
        ValueFormat::TwoBit => groups(format, count, bytes).all(|(scales, codes, values)| {
            let unused = match values % 4 {
                0 => 0,
                used => codes.last().map_or(0, |last| last >> (2 * used)),
            };
            // NaN for one magnitude and a number for the other would be half a value.
            let (small, large) = (half(scales, 0), half(scales, 1));
            let ordered = small < 0x8000 && large < 0x8000 && special(small) == special(large);
            ordered && unused == 0
        }),
    }
}

/// Whether every value is finite.
pub(in crate::codec) fn are_finite(format: ValueFormat, count: usize, bytes: &[u8]) -> bool {
    let finite = |bits: u16| bits & 0x7fff < 0x7f80;
    if bytes.len() != len(format, count) {
        return false;
    }
    match format {
        ValueFormat::F32 => F32.is_finite(bytes),
        ValueFormat::Bf16 => Bf16.is_finite(bytes),
        ValueFormat::Int8 | ValueFormat::Int4 | ValueFormat::TwoBit => groups(format, count, bytes)
            .all(|(scales, _, _)| (0..scales.len() / 2).all(|at| finite(half(scales, at)))),
    }
}

/// Reads values one by one.
#[derive(Debug)]
pub(in crate::codec) struct Reader<'a> {
    format: ValueFormat,
    bytes: &'a [u8],
    at: usize,
    scale: f32,
    large: f32,
}

impl<'a> Reader<'a> {
    pub(in crate::codec) const fn new(format: ValueFormat, bytes: &'a [u8]) -> Self {
        Self { format, bytes, at: 0, scale: 0.0, large: 0.0 }
    }

    /// The next value. Only as many as there are.
    #[inline]
    pub(in crate::codec) fn next(&mut self) -> f32 {
        let at = self.at;
        self.at += 1;
        match self.format {
            ValueFormat::F32 => {
                let raw = &self.bytes[4 * at..4 * at + 4];
                f32::from_le_bytes(raw.try_into().expect("4 bytes"))
            }
            ValueFormat::Bf16 => f32::from_bits(Bf16::widen(half(self.bytes, at))),
            ValueFormat::Int8 | ValueFormat::Int4 | ValueFormat::TwoBit => self.next_of_group(at),
        }
    }

    fn next_of_group(&mut self, at: usize) -> f32 {
        let within = at % GROUP;
        let (scales, codes) = group_bytes(self.format, GROUP);
        let group = &self.bytes[at / GROUP * (scales + codes)..];
        if within == 0 {
            self.scale = f32::from_bits(Bf16::widen(half(group, 0)));
            if scales == 4 {
                self.large = f32::from_bits(Bf16::widen(half(group, 1)));
            }
        }
        let codes = &group[scales..];
        match self.format {
            ValueFormat::Int8 => f32::from(i8::from_le_bytes([codes[within]])) * self.scale,
            ValueFormat::Int4 => {
                let nibble = codes[within / 2] >> (4 * (within % 2)) << 4;
                f32::from(i8::from_le_bytes([nibble]) >> 4) * self.scale
            }
            _ => {
                let code = codes[within / 4] >> (2 * (within % 4));
                let magnitude = if code & 2 == 0 { self.scale } else { self.large };
                if code & 1 == 0 { magnitude } else { -magnitude }
            }
        }
    }
}
