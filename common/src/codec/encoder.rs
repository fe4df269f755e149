//! The sender's door: one encoder per thread, with the scratch memory that selection needs.

use super::{Bf16, CodecId, CodecSpec, F16, F32, PlainCodec};
use crate::ids::{BlockId, SeatId, Step};
use crate::random;

/// Which random numbers an encoding takes. Equal draws give equal bytes on every machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Draw {
    /// The stream of `random::hash`.
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

/// Encodes blocks, one after the other.
#[derive(Debug, Default)]
pub struct Encoder {}

impl Encoder {
    /// The most bytes [`encode`](Self::encode) appends for so many elements.
    pub fn encoded_len_max(spec: &CodecSpec, elements: usize) -> usize {
        match spec {
            CodecSpec::Bf16 => Bf16.encoded_len_max(elements),
            CodecSpec::F16 => F16.encoded_len_max(elements),
            _ => F32.encoded_len_max(elements),
        }
    }

    /// Appends one block to `out` and names the format that came out: a sparse spec may end in a dense
    /// format when that is smaller. The values need not be finite: what becomes of NaN and infinity
    /// is each format's rule.
    pub fn encode(
        &mut self,
        spec: &CodecSpec,
        draw: Draw,
        values: &[f32],
        out: &mut Vec<u8>,
    ) -> CodecId {
        let _ = draw;
        match spec {
            CodecSpec::F32 => F32.encode(values, out),
            CodecSpec::Bf16 => Bf16.encode(values, out),
            CodecSpec::F16 => F16.encode(values, out),
            other => unimplemented!("{other}"),
        }
        match spec {
            CodecSpec::Bf16 => CodecId::Bf16,
            CodecSpec::F16 => CodecId::F16,
            _ => CodecId::F32,
        }
    }
}
