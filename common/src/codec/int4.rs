//! `int4`: 256 elements with one scale, half a byte each: a level from −7 to 7 in two's complement.
//!
//! A group of `n` elements takes `ceil(n / 2)` bytes: byte `i` holds element `i` in its lower half and
//! element `i + ceil(n / 2)` in its upper one, so that neighbours stay neighbours and the halves are
//! taken apart many at a time. The last upper half of an odd group is 0. The other rules are in
//! `grouped`.

use super::grouped::{self, Grouped, grouped_codec};
use super::{Codec, CodecError, CodecId, Rounding};

/// 4 bits an element.
#[derive(Clone, Copy, Debug)]
pub struct Int4;

impl Grouped for Int4 {
    const ID: CodecId = CodecId::Int4;
    const HIGHEST: i8 = 7;

    #[inline(always)]
    fn packed_len(len: usize) -> usize {
        len.div_ceil(2)
    }

    #[inline(always)]
    fn pack(levels: &[i8], out: &mut [u8]) {
        let (lower, upper) = levels.split_at(levels.len().div_ceil(2));
        for (out, level) in out.iter_mut().zip(lower) {
            *out = *level as u8 & 0x0f;
        }
        for (out, level) in out.iter_mut().zip(upper) {
            *out |= (*level as u8) << 4;
        }
    }

    #[inline(always)]
    fn unpack(packed: &[u8], levels: &mut [i8]) {
        let (lower, upper) = levels.split_at_mut(levels.len().div_ceil(2));
        for (level, byte) in lower.iter_mut().zip(packed) {
            *level = (*byte << 4) as i8 >> 4;
        }
        for (level, byte) in upper.iter_mut().zip(packed) {
            *level = *byte as i8 >> 4;
        }
    }

    #[inline(always)]
    fn is_valid(packed: &[u8], len: usize) -> bool {
        let mut wrong = false;
        for byte in packed {
            wrong |= *byte & 0x0f == 0x08 || *byte & 0xf0 == 0x80;
        }
        let unused = len % 2 == 1 && packed.last().is_some_and(|last| last >> 4 != 0);
        !(wrong || unused)
    }
}

grouped_codec!(Int4);
