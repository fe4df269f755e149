//! Every whole push counts once, every repetition is known for one, and nothing else is applied.

use super::{Invariant, View};

pub(crate) struct ExactlyOnce;

impl Invariant for ExactlyOnce {
    fn name(&self) -> &'static str {
        "exactly once"
    }

    fn check(&self, _: &View, after: &View) -> Result<(), String> {
        for shard in &after.shards {
            let (said, seen) = (&shard.report, &shard.oracle);
            let pairs = [
                ("pushes applied", said.pushes_applied, seen.pushes),
                ("samples applied", said.samples, seen.samples),
                ("repetitions", said.duplicates, seen.duplicates),
                ("contributions refused", said.contributions_refused, 0),
            ];
            if let Some((what, said, seen)) = pairs.iter().find(|(_, said, seen)| said != seen) {
                let id = shard.report.shard;
                return Err(format!("{id} counts {said} {what}; delivered were {seen}"));
            }
        }
        Ok(())
    }
}
