//! The loops that formats of 16 bits an element share: a format says how one value is rounded and
//! widened, both without a branch, so that the loops become vector code.

use super::CodecId;
use crate::kernels::FINITE_STRIDE;

pub(super) const WIDTH: usize = 2;

/// Values rounded in one go on their way to the output. Short, so that the processor copies one
/// stride while it already reads the next: with 1024 the two take turns and `benches/kernels.rs`
/// shows half the speed.
const STRIDE: usize = 256;

/// How one value becomes 16 bits and back.
pub(super) trait Sixteen {
    /// The format's byte on the wire.
    const ID: CodecId;
    /// The bits of infinity; a magnitude at or above it is infinite or NaN.
    const INFINITY: u16;

    /// Rounds the bits of an `f32`.
    fn narrow(bits: u32) -> u16;

    /// The bits of the `f32` with the same value.
    fn widen(bits: u16) -> u32;
}

#[inline(always)]
pub(super) fn encode<F: Sixteen>(values: &[f32], out: &mut Vec<u8>) {
    out.reserve(values.len() * WIDTH);
    let mut buffer = [[0u8; WIDTH]; STRIDE];
    for chunk in values.chunks(STRIDE) {
        let buffer = &mut buffer[..chunk.len()];
        for (raw, value) in buffer.iter_mut().zip(chunk) {
            *raw = F::narrow(value.to_bits()).to_le_bytes();
        }
        out.extend_from_slice(buffer.as_flattened());
    }
}

#[inline(always)]
pub(super) fn finite<F: Sixteen>(bytes: &[u8]) -> bool {
    for chunk in bytes.chunks(FINITE_STRIDE * WIDTH) {
        let mut special = false;
        for raw in chunk.as_chunks::<WIDTH>().0 {
            special |= u16::from_le_bytes(*raw) & 0x7fff >= F::INFINITY;
        }
        if special {
            return false;
        }
    }
    true
}

#[inline(always)]
pub(super) fn decode<F: Sixteen>(bytes: &[u8], out: &mut [f32]) {
    for (out, raw) in out.iter_mut().zip(bytes.as_chunks::<WIDTH>().0) {
        *out = f32::from_bits(F::widen(u16::from_le_bytes(*raw)));
    }
}

#[inline(always)]
pub(super) fn decode_add<F: Sixteen>(bytes: &[u8], scale: f32, sum: &mut [f32]) {
    for (sum, raw) in sum.iter_mut().zip(bytes.as_chunks::<WIDTH>().0) {
        *sum += scale * f32::from_bits(F::widen(u16::from_le_bytes(*raw)));
    }
}

/// Makes the codec of a [`Sixteen`] format: the doors to its loops and the [`Codec`](super::Codec)
/// that walks through them.
macro_rules! sixteen_codec {
    ($format:ident) => {
        $crate::kernels::dispatch! {
            fn encode(values: &[f32], out: &mut Vec<u8>) = $crate::codec::sixteen::encode::<$format>
        }
        $crate::kernels::dispatch! {
            fn finite(bytes: &[u8]) -> bool = $crate::codec::sixteen::finite::<$format>
        }
        $crate::kernels::dispatch! {
            fn decode(bytes: &[u8], out: &mut [f32]) = $crate::codec::sixteen::decode::<$format>
        }
        $crate::kernels::dispatch! {
            fn decode_add(bytes: &[u8], scale: f32, sum: &mut [f32])
                = $crate::codec::sixteen::decode_add::<$format>
        }

        impl $crate::codec::PlainCodec for $format {
            fn encoded_len_max(&self, elements: usize) -> usize {
                elements.saturating_mul($crate::codec::sixteen::WIDTH)
            }

            fn encode(&self, values: &[f32], out: &mut Vec<u8>) {
                encode(values, out);
            }
        }

        impl $crate::codec::Codec for $format {
            fn id(&self) -> CodecId {
                Self::ID
            }

            fn element_bytes(&self) -> Option<usize> {
                Some($crate::codec::sixteen::WIDTH)
            }

            fn validate(&self, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
                $crate::codec::check_length(
                    Self::ID,
                    bytes,
                    elements,
                    $crate::codec::sixteen::WIDTH,
                )
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

        #[cfg(test)]
        pub(super) const PORTABLE: $crate::codec::tests::Bodies = $crate::codec::tests::Bodies {
            encode: $crate::codec::sixteen::encode::<$format>,
            finite: $crate::codec::sixteen::finite::<$format>,
            decode: $crate::codec::sixteen::decode::<$format>,
            decode_add: $crate::codec::sixteen::decode_add::<$format>,
        };
    };
}
pub(super) use sixteen_codec;
