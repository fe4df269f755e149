//! No pull is let go further ahead of the slowest live seat than the mode's bound, by what the
//! simulator delivered and by what the shard says; the two agree.

use super::{Invariant, View};

pub(crate) struct StalenessIsBounded;

impl Invariant for StalenessIsBounded {
    fn name(&self) -> &'static str {
        "staleness is bounded"
    }

    fn check(&self, _: &View, after: &View) -> Result<(), String> {
        let bound = after.bound.unwrap_or(u64::MAX);
        if let Some(release) = after.releases.iter().find(|release| release.staleness > bound) {
            let super::Release { shard, seat, step, staleness, .. } = release;
            return Err(format!(
                "{shard} let {seat} start step {step}, {staleness} ahead of the slowest; the bound is {bound}"
            ));
        }
        for shard in &after.shards {
            let (said, seen) = (shard.report.max_staleness, shard.oracle.max_staleness);
            if said > bound || said != seen {
                return Err(format!(
                    "{} says its largest staleness is {said}; seen was {seen}, the bound is {bound}",
                    shard.report.shard
                ));
            }
        }
        Ok(())
    }
}
