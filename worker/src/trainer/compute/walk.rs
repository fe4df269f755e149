//! Local mode on the compute thread: steps by itself, a push of how far it came, and the answer when
//! it is due. What happens when is decided in [`core::local`](crate::core::local); this does it.

use super::tune::fidelity;
use super::{Compute, READ_PATIENCE};
use crate::core::agenda::Next;
use crate::core::local::{Action, Outlook, Part, Walker};
use crate::data::prefetch::Filled;
use crate::net::flow::{Flow, makes_first_values};
use crate::net::seat::Seat;
use crate::trainer::WorkerError;
use slackline_common::ids::{SeatId, Step, TensorId};
use slackline_common::job::Local;
use slackline_common::wire::control::{FromWorker, Phase};
use std::time::Instant;

/// A walk and the roads of its answers.
struct Walk {
    walker: Walker,
    /// One per fragment: an answer to a push has only the tensors of that push in it.
    flows: Vec<Flow>,
    /// Nothing was done for a while: the next step starts from the global parameters.
    rests: bool,
    /// The model is to be tested when it is next known as a whole.
    tests: bool,
}

impl Walk {
    fn flows_of(&mut self, part: Part) -> (&mut [Flow], &mut Walker) {
        let flows = match part {
            Part::Whole => &mut self.flows[..],
            Part::Fragment(fragment) => &mut self.flows[fragment..=fragment],
        };
        (flows, &mut self.walker)
    }
}

impl Compute {
    /// All of a job in local mode, up to the leave. Returns `false` when nobody is left to give orders.
    pub(super) fn walk(&mut self, seat: &mut Seat, local: Local) -> Result<bool, WorkerError> {
        let job = &self.setup.job;
        let plan = std::sync::Arc::clone(seat.plan());
        let mut walker = Walker::new(job, local, plan.layout(), seat.seat(), seat.clock())?;
        let flows = (0..walker.fragments().count()).map(|fragment| {
            let tensors = walker.fragments().tensors(fragment);
            Flow::of(job, &plan, |tensor| tensors.contains(&tensor))
        });
        let flows = flows.collect();
        if makes_first_values(job) {
            walker.anchor_mut().copy_from_slice(&self.parameters);
        }
        let mut walk = Walk { walker, flows, rests: true, tests: false };
        self.ask()?;
        loop {
            self.take_orders()?;
            if self.stopped {
                break;
            }
            match self.agenda.poll_next() {
                Next::Batch { begins } => {
                    if walk.rests {
                        self.return_to_anchor(seat, &mut walk)?;
                    }
                    self.act(seat, &mut walk, Outlook::More)?;
                    if let Some(lease) = begins {
                        let at = Step(walk.walker.rounds().step());
                        self.tell(FromWorker::LeaseStarted { lease, at })?;
                    }
                    self.walk_step(seat, &mut walk)?;
                }
                Next::Done => break,
                Next::Idle if self.setup.job.mode.bound().is_some() => {
                    self.act(seat, &mut walk, Outlook::Nothing)?;
                    walk.rests = true;
                    self.setup.progress.set_phase(Phase::Waiting);
                    self.setup.handle.block_on(seat.push_nothing())?;
                    walk.walker.rounds_mut().handle_nothing_pushed();
                    self.setup.progress.step(seat.clock(), 0, None);
                }
                next => {
                    let is_idle = next == Next::Idle;
                    let outlook = if is_idle { Outlook::Nothing } else { Outlook::Unknown };
                    self.act(seat, &mut walk, outlook)?;
                    walk.rests |= is_idle;
                    self.setup.progress.set_phase(Phase::Waiting);
                    match self.setup.orders.blocking_recv() {
                        Some(order) => self.handle(order)?,
                        None => return Ok(false),
                    }
                }
            }
        }
        // What is left of the round counts like any other, also when the process is to end. A push that
        // ends early holds fewer batches than its number says, so the coordinator is told before it
        // where the lease would have to begin for that to be right.
        if let Some((lease, taken)) = self.agenda.unfinished() {
            let at = walk.walker.rounds().step_if_closed().saturating_sub(u64::from(taken));
            self.tell(FromWorker::LeaseStarted { lease, at: Step(at) })?;
        }
        self.act(seat, &mut walk, Outlook::Nothing)?;
        Ok(true)
    }

    /// Does what is due between two steps.
    fn act(
        &mut self,
        seat: &mut Seat,
        walk: &mut Walk,
        outlook: Outlook,
    ) -> Result<(), WorkerError> {
        while let Some(action) = walk.walker.rounds().poll(outlook) {
            match action {
                Action::Push { part, samples, is_last } => {
                    self.push_progress(seat, walk, part, samples)?;
                    walk.walker.rounds_mut().handle_pushed(part, is_last);
                    if let Some(part) = part.filter(|_| !is_last) {
                        let (flows, _) = walk.flows_of(part);
                        // On the runtime: it asks from there.
                        self.setup.handle.block_on(async {
                            flows.iter_mut().for_each(|flow| flow.ask(seat));
                        });
                    }
                }
                Action::Take(part) => {
                    self.hold_anchor(seat, walk, part)?;
                    walk.walker.take(part, &mut self.parameters);
                    self.test_anchor(seat, walk)?;
                }
            }
        }
        Ok(())
    }

    /// Waits until the anchor holds the answers to all pushes of a part.
    fn hold_anchor(&self, seat: &mut Seat, walk: &mut Walk, part: Part) -> Result<(), WorkerError> {
        self.setup.progress.set_phase(Phase::Pulling);
        let (flows, walker) = walk.flows_of(part);
        for flow in flows {
            self.setup.handle.block_on(flow.hold(seat, walker.anchor_mut()))?;
        }
        Ok(())
    }

    fn return_to_anchor(&mut self, seat: &mut Seat, walk: &mut Walk) -> Result<(), WorkerError> {
        self.hold_anchor(seat, walk, Part::Whole)?;
        walk.walker.restart(&mut self.parameters);
        walk.rests = false;
        Ok(())
    }

    /// Pushes how far the tensors of a part have come; without a part, nothing but the clock.
    fn push_progress(
        &mut self,
        seat: &mut Seat,
        walk: &mut Walk,
        part: Option<Part>,
        samples: u32,
    ) -> Result<(), WorkerError> {
        let handle = &self.setup.handle;
        self.setup.progress.set_phase(Phase::Pushing);
        handle.block_on(seat.released())?;
        let tensors: Vec<TensorId> =
            part.map_or_else(Vec::new, |part| walk.walker.tensors(part).to_vec());
        let mut bundler = seat.begin(&tensors, samples)?;
        for tensor in tensors {
            let progress = walk.walker.progress(tensor, &self.parameters);
            handle.block_on(seat.push_tensor(&mut bundler, tensor, progress))?;
        }
        handle.block_on(seat.end(bundler))?;
        self.setup.progress.step(seat.clock(), 0, None);
        self.setup.progress.set_coding(None, fidelity(seat));
        Ok(())
    }

    /// One local step. Answers that come meanwhile are taken from the network, not yet used.
    fn walk_step(&mut self, seat: &mut Seat, walk: &mut Walk) -> Result<(), WorkerError> {
        let filled = self.prefetch.next(READ_PATIENCE)?;
        self.read_ahead()?;
        let samples = u32::try_from(filled.batch.samples).expect("at most PUSH_SAMPLES_MAX");
        let loss = match samples {
            0 => None,
            _ => Some(self.walk_gradient(walk, &filled)?),
        };
        if !walk.walker.step(samples, &mut self.parameters) {
            let step = walk.walker.rounds().step();
            tracing::warn!("the gradient of local step {step} holds NaN or infinity: left out");
        }
        self.prefetch.recycle(filled.batch);
        self.setup.progress.step(seat.clock(), samples, loss);
        self.ask()?;
        for flow in &mut walk.flows {
            self.setup.handle.block_on(async { flow.poll(seat) })?;
        }
        let (every, step) = (self.setup.job.evaluate.every_steps, walk.walker.rounds().step());
        walk.tests |= every > 0 && seat.seat() == SeatId(0) && step.is_multiple_of(every);
        Ok(())
    }

    /// Tests the global parameters, if that is due: this worker's own are of no interest to anybody.
    fn test_anchor(&mut self, seat: &Seat, walk: &mut Walk) -> Result<(), WorkerError> {
        if !std::mem::take(&mut walk.tests) {
            return Ok(());
        }
        self.parameters.swap_with_slice(walk.walker.anchor_mut());
        let tested = self.test(seat.version(), false);
        self.parameters.swap_with_slice(walk.walker.anchor_mut());
        tested
    }

    fn walk_gradient(&mut self, walk: &mut Walk, filled: &Filled) -> Result<f32, WorkerError> {
        self.setup.progress.set_phase(Phase::Computing);
        let began = Instant::now();
        let loss =
            self.engine.gradient(&self.parameters, &filled.batch, &mut |tensor, values| {
                walk.walker.handle_gradient(tensor, values);
            })?;
        if let Some(factor) = self.setup.slowdown {
            self.setup.pause.wait(began.elapsed().mul_f64((factor - 1.0).max(0.0)));
        }
        Ok(loss)
    }
}
