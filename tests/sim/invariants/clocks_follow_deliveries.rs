//! A seat's clock never goes back, a shard's version neither, and both are what the deliveries make.

use super::{Invariant, View};

pub(crate) struct ClocksFollowDeliveries;

impl Invariant for ClocksFollowDeliveries {
    fn name(&self) -> &'static str {
        "clocks follow deliveries"
    }

    fn check(&self, before: &View, after: &View) -> Result<(), String> {
        for (was, is) in before.shards.iter().zip(&after.shards) {
            let id = is.report.shard;
            if is.report.version < was.report.version {
                let (from, to) = (was.report.version.0, is.report.version.0);
                return Err(format!("{id}: the version went back from {from} to {to}"));
            }
            for (seat, clock) in &is.report.clocks {
                let earlier = was.report.clocks.iter().find(|(other, _)| other == seat);
                if let Some((_, earlier)) = earlier.filter(|(_, earlier)| earlier > clock) {
                    let (from, to) = (earlier.0, clock.0);
                    return Err(format!("{id}: {seat}'s clock went back from {from} to {to}"));
                }
            }
            if is.report.clocks != is.oracle.clocks || is.report.version.0 != is.oracle.version {
                return Err(format!(
                    "{id} says version {} and clocks {:?}; delivered were version {} and clocks {:?}",
                    is.report.version.0, is.report.clocks, is.oracle.version, is.oracle.clocks
                ));
            }
        }
        Ok(())
    }
}
