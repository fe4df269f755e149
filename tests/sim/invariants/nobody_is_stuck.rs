//! When nothing is left to happen, every worker that lives has finished its steps.

use super::{Invariant, View};
use crate::worker::Phase;

pub(crate) struct NobodyIsStuck;

impl Invariant for NobodyIsStuck {
    fn name(&self) -> &'static str {
        "nobody is stuck"
    }

    fn check(&self, _: &View, after: &View) -> Result<(), String> {
        if !after.is_over {
            return Ok(());
        }
        let workers = after.workers.iter().enumerate();
        let stuck: Vec<_> = workers
            .filter(|(_, worker)| !matches!(worker.phase, Phase::Done | Phase::Dead))
            .map(|(seat, worker)| {
                format!("seat {seat}, {:?} at step {}: {}", worker.phase, worker.step, worker.why)
            })
            .collect();
        if stuck.is_empty() { Ok(()) } else { Err(stuck.join("; ")) }
    }
}
