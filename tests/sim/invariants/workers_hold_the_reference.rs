//! Where parameters come down as deltas, every worker at a publish holds the bits of the shard's
//! reference at that publish; whatever it missed, and however often it asked.

use super::{Hold, Invariant, View};

pub(crate) struct WorkersHoldTheReference;

impl Invariant for WorkersHoldTheReference {
    fn name(&self) -> &'static str {
        "workers hold the reference"
    }

    fn check(&self, _: &View, after: &View) -> Result<(), String> {
        for Hold { shard, seat, held, published } in &after.holds {
            let publish = held.publish;
            let Some(published) = published else {
                return Err(format!("{seat} holds publish {publish} of {shard}: there was none"));
            };
            let mut pairs = held.values.iter().zip(published).enumerate();
            if let Some((at, (got, expected))) =
                pairs.find(|(_, (got, expected))| got.to_bits() != expected.to_bits())
            {
                return Err(format!(
                    "{seat} holds {got:e} in element {at} of publish {publish} of {shard}; it is {expected:e}"
                ));
            }
        }
        Ok(())
    }
}
