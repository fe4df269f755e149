//! What sparse formats share: positions, values, and the bytes around them.

mod bits;
mod index;
mod values;

use super::ValueFormat;
use index::Coding;

/// A payload that says itself where its elements are:
///
/// | offset | bytes | field |
/// | --- | --- | --- |
/// | 0 | 3 | `k`, the number of elements |
/// | 3 | 1 | lower half: value format; upper half: coding of the positions (0 all, 1 Rice) |
/// | 4 | 1 | parameter of the coding |
/// | 5 | | positions, then values |
const HEADER_BYTES: usize = 5;

/// A payload taken apart; the positions are not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed<'a> {
    k: usize,
    format: ValueFormat,
    coding: (Coding, u32),
    rest: &'a [u8],
}

/// Bytes of positions and values that are to be written.
pub(super) fn listed_len(positions: &[u32], elements: usize, format: ValueFormat) -> usize {
    let bits = index::plan(positions, elements).bits;
    HEADER_BYTES
        + usize::try_from(bits.div_ceil(8)).expect("at most a block")
        + values::len(format, positions.len())
}

/// Appends a payload. Positions rise and are below `elements`; one value each.
pub(super) fn write_listed(
    positions: &[u32],
    elements: usize,
    format: ValueFormat,
    sent: &[f32],
    out: &mut Vec<u8>,
) {
    let plan = index::plan(positions, elements);
    let count = u32::try_from(positions.len()).expect("at most BLOCK_ELEMENTS_MAX");
    let coding = match plan.coding {
        Coding::All => 0,
        Coding::Rice => 1,
    };
    out.extend_from_slice(&count.to_le_bytes()[..3]);
    out.push(values::byte(format) | coding << 4);
    out.push(u8::try_from(plan.parameter).expect("at most PARAMETER_MAX"));
    index::encode(&plan, positions, out);
    values::encode(format, sent, out);
}

/// Bytes that the positions take, without header and values: for measurements.
pub fn index_bytes(positions: &[u32], elements: usize) -> usize {
    listed_len(positions, elements, ValueFormat::F32) - HEADER_BYTES - 4 * positions.len()
}

impl<'a> Listed<'a> {
    /// Takes a payload apart; says which rule it breaks.
    pub(super) fn parse(bytes: &'a [u8], elements: usize) -> Result<Self, &'static str> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err("it is shorter than its header");
        };
        let k = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
        if k > elements {
            return Err("it claims more elements than the block has");
        }
        let format = values::format(header[3] & 0x0f).ok_or("its value format is unknown")?;
        let coding = match header[3] >> 4 {
            0 => Coding::All,
            1 => Coding::Rice,
            _ => return Err("the coding of its positions is unknown"),
        };
        Ok(Self { k, format, coding: (coding, u32::from(header[4])), rest })
    }

    /// Checks everything and returns the values' bytes.
    pub(super) fn check(&self, elements: usize) -> Result<&'a [u8], &'static str> {
        let used = index::decode(self.coding, self.k, elements, self.rest, |_| {})
            .ok_or("its positions do not rise within the block")?;
        check_values(self.format, self.k, &self.rest[used..])
    }

    /// Calls `visit` with every position and value of a payload that [`check`](Self::check) took.
    pub(super) fn for_each(
        &self,
        elements: usize,
        values: &'a [u8],
        mut visit: impl FnMut(usize, f32),
    ) {
        let mut reader = Reader::new(self.format, values);
        index::decode(self.coding, self.k, elements, self.rest, |at| visit(at, reader.next()));
    }

    /// Calls `visit` with every position.
    pub(super) fn for_each_position(&self, elements: usize, visit: impl FnMut(usize)) {
        index::decode(self.coding, self.k, elements, self.rest, visit);
    }

    /// Whether the values are finite.
    pub(super) fn is_finite(&self) -> bool {
        let len = values::len(self.format, self.k);
        let Some(start) = self.rest.len().checked_sub(len) else { return false };
        are_finite(self.format, self.k, &self.rest[start..])
    }
}

/// Checks the bytes of `count` values.
pub(super) fn check_values(
    format: ValueFormat,
    count: usize,
    bytes: &[u8],
) -> Result<&[u8], &'static str> {
    if bytes.len() != values::len(format, count) {
        return Err("its values are too few or too many bytes");
    }
    if !values::are_valid(format, count, bytes) {
        return Err("its values break the rules of their format");
    }
    Ok(bytes)
}

/// Positions that both ends derive: the block is cut into `k` stretches as even as can be, and the
/// seed chooses one element of each. Every element has the chance `k / elements`, or one beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    pub(super) seed: u64,
    pub(super) k: usize,
    pub(super) elements: usize,
}

impl Drawn {
    /// Every position, rising.
    pub(super) fn positions(self) -> impl Iterator<Item = usize> {
        let Self { seed, k, elements } = self;
        (0..k).map(move |stretch| {
            // In 64 bits: the product of two numbers below 2^24 fits no machine word of 32.
            let cut = |at: usize| at as u64 * elements as u64 / k as u64;
            let (start, end) = (cut(stretch), cut(stretch + 1));
            let random = crate::random::hash(seed, 0, stretch as u64) >> 32;
            let within = (random * (end - start)) >> 32;
            usize::try_from(start + within).expect("below the length of a block")
        })
    }
}

pub(super) use values::{
    Reader, are_finite, byte as format_byte, encode as encode_values, format as format_of,
    len as values_len,
};
