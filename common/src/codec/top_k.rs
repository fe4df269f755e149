//! `top_k`: the elements with the largest magnitudes; all others count as zero.
//!
//! ```text
//! byte     0      3         4           5
//!        +------+---------+-----------+-----------+--------+
//!        |  k   | formats | parameter | positions | values |
//!        +------+---------+-----------+-----------+--------+
//! ```
//!
//! The fields, the coding of positions and the formats of values are described in `sparse`.
//!
//! Rules:
//! * `k = ceil(density × elements)`, at least 1, in blocks that have elements;
//! * of equal magnitudes the first is taken; NaN is the largest magnitude, then infinity, so that a
//!   receiver sees them;
//! * zeros of either sign are left out, unless `k` is the whole block: with density 1 the values are
//!   those of the dense format, −0 and all;
//! * positions rise; bits behind the positions and behind the values are zero; nothing follows;
//! * a sender chooses `f32` or `bf16` for the whole block when that is not longer.
//!
//! An element that is left out decodes to +0. What is held back is exact in `f32`: the element itself
//! where nothing was sent, and `value - sent` where something was, for `f32` and `bf16` values.

use super::sparse::{Listed, listed_len, write_listed};
use super::{Codec, CodecError, CodecId, PlainCodec, Select, ValueFormat};
use crate::kernels::dispatch;

/// The largest elements.
#[derive(Clone, Copy, Debug)]
pub struct TopK;

/// Elements that are looked at to guess where the largest begin.
const SAMPLE: usize = 1024;
/// Halvings of the threshold search: as many as a magnitude has bits.
const SEARCH_STEPS: u32 = 31;
/// The threshold search ends between `k` and this share more.
const SEARCH_TOLERANCE: f64 = 1.0 / 32.0;

/// Scratch memory of the selection.
#[derive(Debug, Default)]
pub(super) struct Selection {
    magnitudes: Vec<u32>,
    positions: Vec<u32>,
    values: Vec<f32>,
}

/// How many elements a density is. The density is known to 24 bits: what it is too large by must not
/// become one more element.
pub(super) fn count(density: f32, elements: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and a block's length, NaN becomes 0"
    )]
    let k = (f64::from(density) * (1.0 - 1e-7) * elements as f64).ceil() as usize;
    k.clamp(1.min(elements), elements)
}

impl Selection {
    /// Encodes a block: its `k` largest, or all of it when that is not longer.
    pub(super) fn encode(
        &mut self,
        (density, select, format): (f32, Select, ValueFormat),
        block: &[f32],
        out: &mut Vec<u8>,
    ) -> CodecId {
        let k = count(density, block.len());
        self.positions.clear();
        if k == block.len() {
            self.positions.extend(0..u32::try_from(k).expect("at most BLOCK_ELEMENTS_MAX"));
        } else {
            let least = match select {
                Select::Exact => self.least_of(block, k),
                Select::Threshold => search(block, k),
            };
            let most = match select {
                Select::Exact => k,
                Select::Threshold => allowed(k).min(block.len()),
            };
            self.take(block, least, most);
        }
        let Self { positions, values, .. } = self;
        values.clear();
        values.extend(positions.iter().map(|at| block[*at as usize]));
        finish(positions, values, block.len(), format, out)
    }

    /// The magnitude, as bits, of the `k`-th largest element: 0 < k < elements.
    fn least_of(&mut self, block: &[f32], k: usize) -> u32 {
        let bound = self.guess(block, k);
        self.magnitudes.clear();
        gather(block, bound, &mut self.magnitudes);
        if self.magnitudes.len() < k {
            // The sample was unlucky.
            self.magnitudes.clear();
            gather(block, 0, &mut self.magnitudes);
        }
        let place = self.magnitudes.len() - k;
        *self.magnitudes.select_nth_unstable(place).1
    }

    /// A magnitude that a little more than `k` elements should reach, by a sample.
    fn guess(&mut self, block: &[f32], k: usize) -> u32 {
        // Odd, so that it walks through all columns of a matrix whose rows are powers of two long.
        let stride = (block.len() / SAMPLE) | 1;
        if stride < 4 {
            return 0;
        }
        self.magnitudes.clear();
        self.magnitudes.extend(block.iter().step_by(stride).map(|value| magnitude(*value)));
        let sample = self.magnitudes.len();
        // The count of a sample spreads by its root: three times that, and some, is nearly certain.
        let expected = (k * sample).div_ceil(block.len());
        let wanted = expected + expected / 4 + 3 * expected.isqrt() + 8;
        if wanted >= sample {
            return 0;
        }
        *self.magnitudes.select_nth_unstable(sample - wanted).1
    }

    /// Takes the elements above `least`, and of those equal to it the first, `most` in all.
    fn take(&mut self, block: &[f32], least: u32, most: usize) {
        let Self { magnitudes, positions, .. } = self;
        // At least the smallest magnitude there is: zeros say nothing.
        let least = least.max(1);
        collect(block, least, positions);
        if positions.len() <= most {
            return;
        }
        let at = |position: &u32| magnitude(block[*position as usize]);
        magnitudes.clear();
        magnitudes.extend(positions.iter().map(at));
        let above = magnitudes.iter().filter(|magnitude| **magnitude > least).count();
        let mut equal = most.saturating_sub(above);
        positions.retain(|position| {
            let is_above = at(position) > least;
            let is_chosen = is_above || equal > 0;
            equal -= usize::from(!is_above && equal > 0);
            is_chosen
        });
        positions.truncate(most);
    }
}

/// Writes chosen elements, or the whole block with zeros for the others when that is not longer.
pub(super) fn finish(
    positions: &[u32],
    values: &mut Vec<f32>,
    elements: usize,
    format: ValueFormat,
    out: &mut Vec<u8>,
) -> CodecId {
    let dense: &dyn PlainCodec = match format {
        ValueFormat::F32 => &super::F32,
        _ => &super::Bf16,
    };
    if listed_len(positions, elements, format) < dense.encoded_len_max(elements) {
        write_listed(positions, elements, format, values, out);
        return CodecId::TopK;
    }
    // From the back, so that no value is overwritten before it is moved.
    let sent = values.len();
    values.resize(elements, 0.0);
    if sent < elements {
        for (from, to) in positions.iter().enumerate().rev() {
            let value = std::mem::take(&mut values[from]);
            values[*to as usize] = value;
        }
    }
    dense.encode(values, out);
    dense.id()
}

/// As the threshold search may find.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a little more than a count"
)]
fn allowed(k: usize) -> usize {
    k + (k as f64 * SEARCH_TOLERANCE) as usize
}

/// A threshold that between `k` and a little more elements reach, as bits: halves the range of
/// magnitudes, as bits, until the count fits (after MSTopK: Shi et al., "Towards Scalable Distributed
/// Training of Deep Learning on Public Cloud Clusters", MLSys 2021). Their range begins at the mean
/// magnitude, above which no more than some 40 % of the elements are found; ours begins at zero.
fn search(block: &[f32], k: usize) -> u32 {
    let (mut low, mut high) = (0u32, 1 << 31);
    for _ in 0..SEARCH_STEPS {
        let middle = low + (high - low) / 2;
        let found = count_from(block, middle);
        if found < k {
            high = middle;
        } else {
            low = middle;
            if found <= allowed(k) {
                break;
            }
        }
    }
    low
}

#[inline(always)]
const fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

dispatch! { fn gather(block: &[f32], least: u32, out: &mut Vec<u32>) = portable::gather }
dispatch! { fn collect(block: &[f32], least: u32, out: &mut Vec<u32>) = portable::collect }
dispatch! { fn count_from(block: &[f32], least: u32) -> usize = portable::count_from }

/// The meaning of the loops above.
mod portable {
    use super::magnitude;

    /// Elements that are asked together whether any is large.
    const STRIDE: usize = STRIDE_U32 as usize;
    const STRIDE_U32: u32 = 32;

    #[inline(always)]
    fn any(chunk: &[f32], least: u32) -> bool {
        let mut any = false;
        for value in chunk {
            any |= magnitude(*value) >= least;
        }
        any
    }

    /// The magnitudes from `least` up.
    #[inline(always)]
    pub(super) fn gather(block: &[f32], least: u32, out: &mut Vec<u32>) {
        if least == 0 {
            out.extend(block.iter().map(|value| magnitude(*value)));
            return;
        }
        for chunk in block.chunks(STRIDE) {
            if any(chunk, least) {
                out.extend(chunk.iter().map(|value| magnitude(*value)).filter(|m| *m >= least));
            }
        }
    }

    /// The positions of the magnitudes from `least` up.
    #[inline(always)]
    pub(super) fn collect(block: &[f32], least: u32, out: &mut Vec<u32>) {
        let mut start = 0u32;
        for chunk in block.chunks(STRIDE) {
            if any(chunk, least) {
                let places = (start..).zip(chunk);
                out.extend(places.filter(|(_, v)| magnitude(**v) >= least).map(|(at, _)| at));
            }
            start += STRIDE_U32;
        }
    }

    /// How many magnitudes there are from `least` up.
    #[inline(always)]
    pub(super) fn count_from(block: &[f32], least: u32) -> usize {
        let mut count = 0usize;
        for chunk in block.chunks(4096) {
            let mut within = 0u32;
            for value in chunk {
                within += u32::from(magnitude(*value) >= least);
            }
            count += within as usize;
        }
        count
    }
}

impl TopK {
    fn checked<'a>(
        self,
        bytes: &'a [u8],
        elements: usize,
    ) -> Result<(Listed<'a>, &'a [u8]), CodecError> {
        let broken = |rule| CodecError::Rule { codec: self.id(), elements, got: bytes.len(), rule };
        let listed = Listed::parse(bytes, elements).map_err(broken)?;
        let values = listed.check(elements).map_err(broken)?;
        Ok((listed, values))
    }
}

impl Codec for TopK {
    fn id(&self) -> CodecId {
        CodecId::TopK
    }

    fn validate(&self, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
        self.checked(bytes, elements).map(|_| ())
    }

    fn is_finite(&self, bytes: &[u8]) -> bool {
        Listed::parse(bytes, usize::MAX).is_ok_and(|listed| listed.is_finite())
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        let (listed, values) = self.checked(bytes, out.len())?;
        out.fill(0.0);
        listed.for_each(out.len(), values, |at, value| out[at] = value);
        Ok(())
    }

    fn decode_add(&self, bytes: &[u8], scale: f32, sum: &mut [f32]) -> Result<(), CodecError> {
        let (listed, values) = self.checked(bytes, sum.len())?;
        listed.for_each(sum.len(), values, |at, value| sum[at] += scale * value);
        Ok(())
    }

    fn for_each_sent(&self, bytes: &[u8], elements: usize, visit: &mut dyn FnMut(usize)) {
        if let Ok(listed) = Listed::parse(bytes, elements) {
            listed.for_each_position(elements, visit);
        }
    }
}
