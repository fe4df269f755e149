//! A worker that keeps the rules is refused nothing while it is alive.

use super::{Invariant, View};
use crate::worker::Phase;

pub(crate) struct NobodyIsRefused;

impl Invariant for NobodyIsRefused {
    fn name(&self) -> &'static str {
        "nobody is refused"
    }

    fn check(&self, _: &View, after: &View) -> Result<(), String> {
        let mut workers = after.workers.iter().enumerate();
        match workers.find(|(_, worker)| worker.phase == Phase::Refused) {
            None => Ok(()),
            Some((seat, worker)) => {
                Err(format!("seat {seat} at step {} was refused: {}", worker.step, worker.why))
            }
        }
    }
}
