//! A pull that is let go for a step contains all the seat's own pushes before that step. (That they
//! are also in the numbers, not just delivered, is what the invariants on parameters say.)

use super::{Invariant, View};

pub(crate) struct OwnPushesAreIn;

impl Invariant for OwnPushesAreIn {
    fn name(&self) -> &'static str {
        "own pushes are in"
    }

    fn check(&self, _: &View, after: &View) -> Result<(), String> {
        match after.releases.iter().find(|release| release.own_steps < release.step) {
            None => Ok(()),
            Some(release) => Err(format!(
                "{} let {} start step {} when only {} of its own steps had come",
                release.shard, release.seat, release.step, release.own_steps
            )),
        }
    }
}
