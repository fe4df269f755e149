//! Which elements a sparse block carries: a rising list of positions below the block's length, as
//! gaps in a Rice code (Rice and Plaunt, "Adaptive Variable-Length Coding", 1971).
//!
//! With parameter `b` each gap, the number of elements left out since the position before, is
//! `gap >> b` ones, a zero, and the lower `b` bits of the gap. When all elements are carried there are
//! no bits at all.
//!
//! Elias–Fano, which codes `position >> b` by distances and keeps the lower `b` bits, is never shorter:
//! with the same parameter it spends `last >> b` bits on distances, this code the sum of `gap >> b`, and
//! rounded down one by one the gaps give no more than their sum. So there is one code.

use super::bits::{BitReader, BitWriter};

/// The largest parameter: positions are below 2¹⁸.
pub(super) const PARAMETER_MAX: u32 = 18;

/// How positions are coded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Coding {
    All,
    Rice,
}

/// A coding and what it takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Plan {
    pub(super) coding: Coding,
    pub(super) parameter: u32,
    pub(super) bits: u64,
}

/// The cheapest coding of these positions in a block of `elements`.
pub(super) fn plan(positions: &[u32], elements: usize) -> Plan {
    let k = positions.len() as u64;
    if positions.len() == elements {
        return Plan { coding: Coding::All, parameter: 0, bits: 0 };
    }
    if k == 0 {
        return Plan { coding: Coding::Rice, parameter: 0, bits: 0 };
    }
    // The best parameter lies beside the logarithm of the mean gap.
    let reach = u64::from(positions[positions.len() - 1]) + 1;
    let mean = (reach / k).max(1).ilog2();
    let near = mean.saturating_sub(2)..=(mean + 1).min(PARAMETER_MAX);
    let plans = near.map(|parameter| {
        let mut before = 0;
        let mut ones = 0;
        for position in positions {
            ones += u64::from((position - before) >> parameter);
            before = position + 1;
        }
        Plan { coding: Coding::Rice, parameter, bits: ones + k * (1 + u64::from(parameter)) }
    });
    plans.min_by_key(|plan| plan.bits).expect("a range of parameters")
}

/// Appends the positions as the plan says.
pub(super) fn encode(plan: &Plan, positions: &[u32], out: &mut Vec<u8>) {
    let mut bits = BitWriter::new(out);
    let b = plan.parameter;
    let low = |value: u32| u64::from(value & ((1 << b) - 1));
    match plan.coding {
        Coding::All => {}
        Coding::Rice => {
            let mut before = 0;
            for position in positions {
                let gap = position - before;
                bits.put_unary(u64::from(gap >> b));
                bits.put(low(gap), b);
                before = position + 1;
            }
        }
    }
    bits.finish();
}

/// Calls `visit` with every position, in order, and returns how many bytes the positions took; `None`
/// when they leave the block, do not rise, run off the bytes, or leave bits set behind them. Takes time
/// in proportion to `k` and the block's length at most.
pub(super) fn decode(
    (coding, parameter): (Coding, u32),
    k: usize,
    elements: usize,
    bytes: &[u8],
    mut visit: impl FnMut(usize),
) -> Option<usize> {
    if parameter > PARAMETER_MAX || k > elements {
        return None;
    }
    let used = match coding {
        Coding::All if k == elements && parameter == 0 => {
            (0..elements).for_each(visit);
            return Some(0);
        }
        Coding::All => return None,
        Coding::Rice => {
            let mut bits = BitReader::new(bytes);
            let mut next = 0;
            for _ in 0..k {
                let upper = bits.take_unary(elements >> parameter)?;
                let lower = usize::try_from(bits.take(parameter)).ok()?;
                let position = next + (upper << parameter | lower);
                if position >= elements {
                    return None;
                }
                visit(position);
                next = position + 1;
            }
            bits.position()
        }
    };
    let length = used.div_ceil(8);
    let padding = bytes.get(..length)?.last().map_or(0, |last| match used % 8 {
        0 => 0,
        bits => last >> bits,
    });
    (padding == 0).then_some(length)
}
