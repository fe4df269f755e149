//! Where pushes are whole numbers that are added on arrival, every answer, and so the last one, has
//! the exact sum of all that was delivered until then.

use super::{Invariant, Read, View};

pub(crate) struct SumsAreExact;

impl Invariant for SumsAreExact {
    fn name(&self) -> &'static str {
        "sums are exact"
    }

    fn check(&self, _: &View, after: &View) -> Result<(), String> {
        if after.is_exact && !after.is_bsp { same_bits(&after.reads) } else { Ok(()) }
    }
}

/// The first element that differs.
pub(super) fn same_bits(reads: &[Read]) -> Result<(), String> {
    for Read { shard, seat, step, got, expected } in reads {
        if got.len() != expected.len() {
            let (got, expected) = (got.len(), expected.len());
            return Err(format!("{shard} sent {got} parameters; it has {expected}"));
        }
        let mut pairs = got.iter().zip(expected).enumerate();
        // Equal floats have equal bits, but for the sign of zero: a sum does not say which.
        let differs = |(_, (got, expected)): &(usize, (&f32, &f32))| got != expected;
        if let Some((element, (got, expected))) = pairs.find(differs) {
            return Err(format!(
                "{shard} sent {seat} at step {step} {got:e} in element {element}; it is {expected:e}"
            ));
        }
    }
    Ok(())
}
