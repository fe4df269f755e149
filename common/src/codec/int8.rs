//! `int8`: 256 elements with one scale, a byte each: a level from −127 to 127 in two's complement.
//! Rules in `grouped`.

use super::grouped::{self, Grouped, grouped_codec};
use super::{Codec, CodecError, CodecId, Rounding};

/// 8 bits an element.
#[derive(Clone, Copy, Debug)]
pub struct Int8;

impl Grouped for Int8 {
    const ID: CodecId = CodecId::Int8;
    const HIGHEST: i8 = 127;

    #[inline(always)]
    fn packed_len(len: usize) -> usize {
        len
    }

    #[inline(always)]
    fn pack(levels: &[i8], out: &mut [u8]) {
        for (out, level) in out.iter_mut().zip(levels) {
            *out = *level as u8;
        }
    }

    #[inline(always)]
    fn unpack(packed: &[u8], levels: &mut [i8]) {
        for (level, byte) in levels.iter_mut().zip(packed) {
            *level = *byte as i8;
        }
    }

    #[inline(always)]
    fn is_valid(packed: &[u8], _len: usize) -> bool {
        let mut wrong = false;
        for byte in packed {
            wrong |= *byte == 0x80;
        }
        !wrong
    }
}

grouped_codec!(Int8);
