//! What a worker says of itself: written by the thread that trains, read by the one that reports.

use crate::net::servers::Servers;
use slackline_common::ids::Step;
use slackline_common::wire::control::{Fidelity, Phase, WorkerReport};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The figures behind a [`WorkerReport`].
#[derive(Debug, Default)]
pub struct Progress {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    clock: Step,
    samples: u64,
    loss_sum: f64,
    loss_count: u32,
    servers: Option<Servers>,
    rung: Option<u8>,
    fidelity: Option<Fidelity>,
}

impl Progress {
    fn state(&self) -> MutexGuard<'_, State> {
        // Plain figures: a panic elsewhere cannot leave them half written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the worker stands from now on.
    pub fn set_phase(&self, phase: Phase) {
        self.state().phase = phase;
    }

    /// Forgets everything: another job begins.
    pub fn reset(&self) {
        *self.state() = State::default();
    }

    /// The connections whose bytes are counted.
    pub fn set_servers(&self, servers: Servers) {
        self.state().servers = Some(servers);
    }

    /// A step has been pushed; `clock` steps are now. An empty step has no loss.
    pub fn step(&self, clock: Step, samples: u32, loss: Option<f32>) {
        let mut state = self.state();
        state.clock = clock;
        state.samples += u64::from(samples);
        if let Some(loss) = loss {
            state.loss_sum += f64::from(loss);
            state.loss_count += 1;
        }
    }

    /// How gradients are coded from now on, and what that does to them.
    pub fn set_coding(&self, rung: Option<u8>, fidelity: Option<Fidelity>) {
        let mut state = self.state();
        (state.rung, state.fidelity) = (rung, fidelity);
    }

    /// The figures now. The mean loss starts anew with each report.
    #[expect(clippy::cast_possible_truncation, reason = "a mean of f32 fits f32")]
    pub fn report(&self) -> WorkerReport {
        let mut state = self.state();
        let (sum, count) = (state.loss_sum, state.loss_count);
        (state.loss_sum, state.loss_count) = (0.0, 0);
        let mut report = WorkerReport {
            phase: state.phase,
            clock: state.clock,
            samples: state.samples,
            loss: if count == 0 { f32::NAN } else { (sum / f64::from(count)) as f32 },
            rung: state.rung,
            fidelity: state.fidelity,
            ..WorkerReport::default()
        };
        if let Some(servers) = &state.servers {
            servers.fill_report(&mut report);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_loss_is_of_the_steps_since_the_last_report() {
        let progress = Progress::default();
        assert!(progress.report().loss.is_nan());
        progress.step(Step(1), 16, Some(3.0));
        progress.step(Step(2), 16, Some(1.0));
        progress.step(Step(3), 0, None);
        let report = progress.report();
        assert_eq!((report.loss, report.clock, report.samples), (2.0, Step(3), 32));
        assert!(progress.report().loss.is_nan());
    }
}
