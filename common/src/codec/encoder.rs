//! The sender's door: one encoder per thread, with the scratch memory that selection needs.

use super::top_k::Selection;
use super::{
    Bf16, CodecId, CodecSpec, F16, F32, Int4, Int8, PlainCodec, Sign, TwoBit, ValueFormat, random_k,
};
use crate::ids::{BlockId, SeatId, Step};
use crate::random;

/// Which random numbers an encoding takes. Equal draws give equal bytes on every machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Draw {
    /// What every number is a function of.
    pub seed: u64,
}

impl Draw {
    /// Of one block of one push.
    pub const fn up(seed: u64, seat: SeatId, step: Step, block: BlockId) -> Self {
        let place = (seat.0 as u64) << 32 | block.0 as u64;
        Self { seed: random::hash(seed, place, step.0) }
    }

    /// Of one block of one publish.
    pub const fn down(seed: u64, publish: u64, block: BlockId) -> Self {
        let place = (1 << 63) | block.0 as u64;
        Self { seed: random::hash(seed, place, publish) }
    }
}

/// Encodes blocks, one after the other. Allocates nothing once it has seen the longest block.
#[derive(Debug, Default)]
pub struct Encoder {
    selection: Selection,
    chosen: Vec<f32>,
}

impl Encoder {
    /// The most bytes [`encode`](Self::encode) appends for so many elements.
    pub fn encoded_len_max(spec: &CodecSpec, elements: usize) -> usize {
        match spec {
            CodecSpec::F32 => F32.encoded_len_max(elements),
            CodecSpec::Bf16 => Bf16.encoded_len_max(elements),
            CodecSpec::F16 => F16.encoded_len_max(elements),
            CodecSpec::Int8 { .. } => Int8::encoded_len(elements),
            CodecSpec::Int4 { .. } => Int4::encoded_len(elements),
            CodecSpec::Sign => Sign::encoded_len(elements),
            CodecSpec::TwoBit { .. } => TwoBit::encoded_len(elements),
            // A sparse block that is not shorter goes out dense.
            CodecSpec::TopK { values, .. } | CodecSpec::RandomK { values, .. } => match values {
                ValueFormat::F32 => F32.encoded_len_max(elements),
                _ => Bf16.encoded_len_max(elements),
            },
        }
    }

    /// Appends one block to `out` and names the format that came out: a sparse spec may end in a dense
    /// format when that is not longer. NaN and infinity come out so that the receiver's
    /// [`is_finite`](super::Codec::is_finite) sees them.
    pub fn encode(
        &mut self,
        spec: &CodecSpec,
        draw: Draw,
        values: &[f32],
        out: &mut Vec<u8>,
    ) -> CodecId {
        match *spec {
            CodecSpec::F32 => F32.encode(values, out),
            CodecSpec::Bf16 => Bf16.encode(values, out),
            CodecSpec::F16 => F16.encode(values, out),
            CodecSpec::Int8 { rounding } => Int8::encode(values, rounding, draw.seed, out),
            CodecSpec::Int4 { rounding } => Int4::encode(values, rounding, draw.seed, out),
            CodecSpec::Sign => Sign::encode(values, out),
            CodecSpec::TwoBit { threshold } => TwoBit::encode(threshold, values, out),
            CodecSpec::TopK { density, select, values: format } => {
                return self.selection.encode((density, select, format), values, out);
            }
            CodecSpec::RandomK { density, values: format } => {
                let kind = (density, format);
                return random_k::encode(kind, draw.seed, values, &mut self.chosen, out);
            }
        }
        match spec {
            CodecSpec::F32 => CodecId::F32,
            CodecSpec::Bf16 => CodecId::Bf16,
            CodecSpec::F16 => CodecId::F16,
            CodecSpec::Int8 { .. } => CodecId::Int8,
            CodecSpec::Int4 { .. } => CodecId::Int4,
            CodecSpec::Sign => CodecId::Sign,
            CodecSpec::TwoBit { .. } => CodecId::TwoBit,
            CodecSpec::TopK { .. } | CodecSpec::RandomK { .. } => unreachable!("returned above"),
        }
    }
}
