//! `random_k`: elements that a seed chooses; no positions travel.
//!
//! ```text
//! byte     0      3         4      12
//!        +------+---------+------+--------+
//!        |  k   | format  | seed | values |
//!        +------+---------+------+--------+
//! ```
//!
//! Rules:
//! * the block is cut into `k` stretches as even as whole numbers allow, stretch `i` from
//!   `floor(i × elements / k)`; of each the element `floor(h × length / 2³²)` is sent, `h` being the
//!   upper 32 bits of `random::hash(seed, 0, i)`;
//! * values are sent as they are, not scaled by the density: error feedback keeps what is left out;
//! * formats of values as in `top_k`; bits behind them are zero; nothing follows;
//! * a sender chooses `f32` or `bf16` for the whole block when that is not longer.
//!
//! An element that is left out decodes to +0.

use super::sparse::{
    Drawn, Reader, are_finite, check_values, encode_values, format_byte, format_of, values_len,
};
use super::{Bf16, Codec, CodecError, CodecId, F32, PlainCodec, ValueFormat, top_k};

/// Elements that a seed chooses.
#[derive(Clone, Copy, Debug)]
pub struct RandomK;

const HEADER_BYTES: usize = 12;

/// Encodes a block: `k` elements of it, or all when that is not longer. `scratch` is for reuse.
pub(super) fn encode(
    (density, format): (f32, ValueFormat),
    seed: u64,
    block: &[f32],
    scratch: &mut Vec<f32>,
    out: &mut Vec<u8>,
) -> CodecId {
    let k = top_k::count(density, block.len());
    let drawn = Drawn { seed, k, elements: block.len() };
    let dense: &dyn PlainCodec = match format {
        ValueFormat::F32 => &F32,
        _ => &Bf16,
    };
    scratch.clear();
    if HEADER_BYTES + values_len(format, k) < dense.encoded_len_max(block.len()) {
        let count = u32::try_from(k).expect("at most BLOCK_ELEMENTS_MAX");
        out.extend_from_slice(&count.to_le_bytes()[..3]);
        out.push(format_byte(format));
        out.extend_from_slice(&seed.to_le_bytes());
        scratch.extend(drawn.positions().map(|at| block[at]));
        encode_values(format, scratch, out);
        return CodecId::RandomK;
    }
    scratch.resize(block.len(), 0.0);
    drawn.positions().for_each(|at| scratch[at] = block[at]);
    dense.encode(scratch, out);
    dense.id()
}

struct Parsed<'a> {
    format: ValueFormat,
    drawn: Drawn,
    values: &'a [u8],
}

fn parse(bytes: &[u8], elements: usize) -> Result<Parsed<'_>, &'static str> {
    let Some((header, values)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        return Err("it is shorter than its header");
    };
    let k = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
    if k > elements {
        return Err("it claims more elements than the block has");
    }
    let format = format_of(header[3]).ok_or("its value format is unknown")?;
    let (_, seed) = header.split_last_chunk::<8>().expect("the header ends with it");
    Ok(Parsed { format, drawn: Drawn { seed: u64::from_le_bytes(*seed), k, elements }, values })
}

impl RandomK {
    fn checked<'a>(self, bytes: &'a [u8], elements: usize) -> Result<Parsed<'a>, CodecError> {
        let broken = |rule| CodecError::Rule { codec: self.id(), elements, got: bytes.len(), rule };
        let parsed = parse(bytes, elements).map_err(broken)?;
        check_values(parsed.format, parsed.drawn.k, parsed.values).map_err(broken)?;
        Ok(parsed)
    }
}

impl Parsed<'_> {
    fn for_each(&self, mut visit: impl FnMut(usize, f32)) {
        let mut reader = Reader::new(self.format, self.values);
        self.drawn.positions().for_each(|at| visit(at, reader.next()));
    }
}

impl Codec for RandomK {
    fn id(&self) -> CodecId {
        CodecId::RandomK
    }

    fn validate(&self, bytes: &[u8], elements: usize) -> Result<(), CodecError> {
        self.checked(bytes, elements).map(|_| ())
    }

    fn is_finite(&self, bytes: &[u8]) -> bool {
        parse(bytes, usize::MAX)
            .is_ok_and(|parsed| are_finite(parsed.format, parsed.drawn.k, parsed.values))
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        let parsed = self.checked(bytes, out.len())?;
        out.fill(0.0);
        parsed.for_each(|at, value| out[at] = value);
        Ok(())
    }

    fn decode_add(&self, bytes: &[u8], scale: f32, sum: &mut [f32]) -> Result<(), CodecError> {
        let parsed = self.checked(bytes, sum.len())?;
        parsed.for_each(|at, value| sum[at] += scale * value);
        Ok(())
    }

    fn for_each_sent(&self, bytes: &[u8], elements: usize, visit: &mut dyn FnMut(usize)) {
        if let Ok(parsed) = parse(bytes, elements) {
            parsed.drawn.positions().for_each(visit);
        }
    }
}
