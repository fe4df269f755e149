//! In `bsp` every answer has, bit for bit, the parameters of a plain loop over steps that takes the
//! mean in seat order; whatever was late, lost, repeated or gone.

use super::{Invariant, View};

pub(crate) struct BspIsOneProcess;

impl Invariant for BspIsOneProcess {
    fn name(&self) -> &'static str {
        "bsp is one process"
    }

    fn check(&self, _: &View, after: &View) -> Result<(), String> {
        if after.is_bsp { super::sums_are_exact::same_bits(&after.reads) } else { Ok(()) }
    }
}
