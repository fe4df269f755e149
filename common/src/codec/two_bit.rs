//! `two_bit`: two bits an element: plus the threshold, minus it, or nothing. The wire form of MXNet's
//! 2-bit compression, with its threshold in front.
//!
//! ```text
//! byte     0           4
//!        +-----------+--------------------------------------
//!        | threshold | bits 7-6 of byte 4: element 0, bits 5-4: element 1 …      threshold: f32
//!        +-----------+--------------------------------------
//! ```
//!
//! Rules:
//! * 11 is `+threshold`, for values from it up; 10 is `-threshold`, for values down from minus it;
//!   00 is 0, for all others, zero of either sign among them; 01 is refused;
//! * codes come in words of 16 elements, 4 bytes; those behind the last element are 00;
//! * the threshold is finite and above 0;
//! * with NaN or infinity in the block the threshold is NaN and all codes are 00: all of it decodes to
//!   NaN.
//!
//! What is held back is `value ∓ threshold` rounded to `f32`: exact up to twice the threshold, and
//! rounded to half a unit beyond.

use super::{Codec, CodecError, CodecId};
use crate::kernels::{self, dispatch};

/// Two bits an element.
#[derive(Clone, Copy, Debug)]
pub struct TwoBit;

const HEADER: usize = 4;
/// Elements of a word.
const WORD: usize = 16;

impl TwoBit {
    /// Bytes of a block.
    pub(super) const fn encoded_len(elements: usize) -> usize {
        HEADER + elements.div_ceil(WORD) * 4
    }

    /// Appends a block.
    pub(super) fn encode(threshold: f32, values: &[f32], out: &mut Vec<u8>) {
        let is_finite = kernels::is_finite(values);
        let sent = if is_finite { threshold } else { f32::NAN };
        out.extend_from_slice(&sent.to_le_bytes());
        if is_finite {
            encode(threshold, values, out);
        } else {
            out.resize(out.len() + Self::encoded_len(values.len()) - HEADER, 0);
        }
    }

    fn threshold(bytes: &[u8]) -> f32 {
        bytes.first_chunk::<HEADER>().map_or(f32::NAN, |threshold| f32::from_le_bytes(*threshold))
    }
}

impl Codec for TwoBit {
    fn id(&self) -> CodecId {
        CodecId::TwoBit
    }

    fn validate(&self, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
        let (got, expected) = (bytes.len(), Self::encoded_len(elements));
        if got != expected {
            return Err(CodecError::Length { codec: CodecId::TwoBit, elements, got, expected });
        }
        let broken = |rule| Err(CodecError::Rule { codec: CodecId::TwoBit, elements, got, rule });
        let threshold = Self::threshold(bytes);
        let codes = &bytes[HEADER..];
        if threshold.is_nan() {
            if codes.iter().any(|byte| *byte != 0) {
                return broken("it sends elements with NaN for a threshold");
            }
            return Ok(());
        }
        if !(threshold > 0.0 && threshold < f32::INFINITY) {
            return broken("its threshold is not a finite number above 0");
        }
        if !are_codes(codes) {
            return broken("a code is 01");
        }
        let mut unused = (elements..codes.len() * 4).map(|at| code(codes, at));
        if unused.any(|code| code != 0) { broken("an unused code is not 00") } else { Ok(()) }
    }

    fn is_finite(&self, bytes: &[u8]) -> bool {
        bytes.len() == HEADER || !Self::threshold(bytes).is_nan()
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        self.validate(bytes, out.len())?;
        out.fill(0.0);
        decode_add(1.0, Self::threshold(bytes), &bytes[HEADER..], out);
        Ok(())
    }

    fn decode_add(&self, bytes: &[u8], scale: f32, sum: &mut [f32]) -> Result<(), CodecError> {
        self.validate(bytes, sum.len())?;
        decode_add(scale, Self::threshold(bytes), &bytes[HEADER..], sum);
        Ok(())
    }

    fn for_each_sent(&self, bytes: &[u8], elements: usize, visit: &mut dyn FnMut(usize)) {
        let codes = bytes.get(HEADER..).unwrap_or_default();
        let all = !self.is_finite(bytes);
        (0..elements.min(codes.len() * 4))
            .filter(|at| all || code(codes, *at) != 0)
            .for_each(visit);
    }
}

const fn code(codes: &[u8], at: usize) -> u8 {
    codes[at / 4] >> (6 - 2 * (at % 4)) & 3
}

dispatch! { fn encode(threshold: f32, values: &[f32], out: &mut Vec<u8>) = portable::encode }
dispatch! { fn are_codes(codes: &[u8]) -> bool = portable::are_codes }
dispatch! {
    fn decode_add(scale: f32, threshold: f32, codes: &[u8], sum: &mut [f32])
        = portable::decode_add
}

/// The meaning of the loops above; lengths were checked.
mod portable {
    use super::WORD;

    #[inline(always)]
    pub(super) fn encode(threshold: f32, values: &[f32], out: &mut Vec<u8>) {
        out.reserve(values.len().div_ceil(WORD) * 4);
        for word in values.chunks(WORD) {
            let mut codes = 0u32;
            for (place, value) in word.iter().enumerate() {
                let is_plus = u32::from(*value >= threshold);
                let is_minus = u32::from(*value <= -threshold);
                codes |= (is_plus * 3 + is_minus * 2) << (30 - 2 * place);
            }
            out.extend_from_slice(&codes.swap_bytes().to_le_bytes());
        }
    }

    #[inline(always)]
    pub(super) fn are_codes(codes: &[u8]) -> bool {
        let mut wrong = 0;
        for byte in codes {
            wrong |= byte & 0x55 & !(byte >> 1);
        }
        wrong & 0x55 == 0
    }

    #[inline(always)]
    pub(super) fn decode_add(scale: f32, threshold: f32, codes: &[u8], sum: &mut [f32]) {
        // Zero times NaN is NaN: a special block needs no case of its own.
        let (whole, rest) = sum.as_chunks_mut::<4>();
        for (sum, byte) in whole.iter_mut().zip(codes) {
            for (place, sum) in sum.iter_mut().enumerate() {
                *sum += scale * element(threshold, *byte, place);
            }
        }
        for (place, sum) in rest.iter_mut().enumerate() {
            *sum += scale * element(threshold, codes[whole.len()], place);
        }
    }

    /// 3 is the threshold, 2 is minus it.
    #[inline(always)]
    fn element(threshold: f32, byte: u8, place: usize) -> f32 {
        let code = u32::from(byte) >> (6 - 2 * place);
        let sent = if code & 2 == 0 { 0.0 } else { 1.0 };
        let sign = if code & 1 == 0 { -threshold } else { threshold };
        sent * sign
    }
}

#[cfg(test)]
pub(super) fn portable_encoding(threshold: f32, values: &[f32]) -> Vec<u8> {
    let mut out = threshold.to_le_bytes().to_vec();
    portable::encode(threshold, values, &mut out);
    out
}
