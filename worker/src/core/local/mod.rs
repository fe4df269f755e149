//! Local mode: a worker walks by itself for a round and pushes how far it came.
//!
//! One file per question: when and what ([`Rounds`]), which tensors together ([`Fragments`]), how
//! workers stay near each other in between ([`AnchorDraw`]), and here the numbers ([`Walker`]).
//!
//! The **anchor** is the global parameters of a worker's last answer, tensor by tensor. A push holds
//! `anchor - parameters`, the pseudo-gradient, which the servers' optimizer treats as any gradient;
//! with plain descent of rate 1 the new global parameters are the mean of the workers' (McMahan et
//! al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017;
//! with an outer Nesterov momentum Douillard et al., "DiLoCo", 2023). It takes the same road as a
//! gradient, so compression and error feedback apply to it. The pushes of a running statistic are
//! differences to add, and so is this one: `parameters - anchor`.
//!
//! The answer becomes the new anchor, and the worker goes on from `mix × own + (1 - mix) × anchor`.
//! What it had of its own at a mix above 0 is part of its next push again, as in Douillard et al.,
//! "Streaming DiLoCo" (2025), whose rule this is.
//!
//! The inner optimizer's state (momentum, Adam's moments) is kept from round to round, as DiLoCo
//! does: it belongs to the worker's own samples and is never sent.
//!
//! # What a crash costs
//!
//! A round that was not pushed is lost with its worker. Its samples are not: a lease counts as worked
//! on only as far as the seat's clock covers it (`Job::batches_in`), and the rest goes to the others.
//! One gap remains: who dies between its last question for work and its last push, when the others
//! have been told that everything is done, takes its last round along.

mod anchor;
mod fragments;
mod round;
#[cfg(test)]
mod seats_tests;
#[cfg(test)]
mod tests;

pub use self::anchor::AnchorDraw;
pub use self::fragments::Fragments;
pub use self::round::{Action, Outlook, Part, Rounds};

use slackline_common::ids::{SeatId, Step, TensorId};
use slackline_common::job::{Job, Local, OptimizerSpec, Schedule};
use slackline_common::kernels;
use slackline_common::layout::{Layout, TensorRole};
use slackline_common::limits::PUSH_SAMPLES_MAX;
use slackline_common::optimizer::{BlockState, Update, apply, apply_statistic};

/// Why a job's numbers are not those of a walk.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum LocalError {
    /// An anchor pull of the whole way or more, or one that never or always over-happens.
    #[error(
        "the job's anchor pulls have probability {probability} and strength {strength}: the \
         probability must be above 0 and at most 1, and strength / probability, the share of the way \
         of one pull, must be at least 0 and below 1"
    )]
    Pull {
        /// Of a pull at a step.
        probability: f32,
        /// Per step on average.
        strength: f32,
    },
    /// Fragments that do not divide a round, or are more than the tensors.
    #[error(
        "the job cuts {tensors} tensors into {fragments} fragments and rounds of {steps} steps: \
         fragments must divide the steps and be no more than the tensors, at least 1"
    )]
    Fragments {
        /// Number of fragments.
        fragments: u16,
        /// Steps of a round.
        steps: u32,
        /// Tensors of the model.
        tensors: usize,
    },
    /// An answer that would come after the next push.
    #[error(
        "the job takes answers {delay} steps after the push; there is one every {every} steps, and \
         the delay must be below that"
    )]
    Delay {
        /// Steps from push to use.
        delay: u32,
        /// Steps from push to push.
        every: u64,
    },
    /// A share outside 0 to 1.
    #[error(
        "the job mixes answers with {mix} of a worker's own; it must be at least 0 and below 1"
    )]
    Mix {
        /// The share.
        mix: f32,
    },
    /// More samples than a push can declare.
    #[error(
        "a push of the job has {samples} samples, {every} steps of a batch; at most \
         {PUSH_SAMPLES_MAX} can be declared"
    )]
    Samples {
        /// Samples of a push.
        samples: u64,
        /// Steps from push to push.
        every: u64,
    },
}

/// A worker's walk: its inner optimizer, its anchor and its beat. The parameters themselves belong to
/// the caller, as one flat vector in layout order.
#[derive(Debug)]
pub struct Walker {
    layout: Layout,
    inner: OptimizerSpec,
    schedule: Schedule,
    rounds: Rounds,
    fragments: Fragments,
    all: Vec<TensorId>,
    draw: Option<AnchorDraw>,
    /// The global parameters of the last answers.
    anchor: Vec<f32>,
    /// The gradient of a step, then the progress that is pushed: never both.
    scratch: Vec<f32>,
    states: Vec<BlockState>,
}

impl Walker {
    /// A walk of `seat` from its clock. First the anchor is to be filled, then
    /// [`restart`](Self::restart) called.
    ///
    /// # Errors
    /// The first rule of [`LocalError`] that the job breaks.
    pub fn new(
        job: &Job,
        local: Local,
        layout: &Layout,
        seat: SeatId,
        clock: Step,
    ) -> Result<Self, LocalError> {
        let every = check(job, &local, layout)?;
        debug_assert_eq!(every, local.steps_per_push());
        let draw = local.anchor.map(|pull| AnchorDraw::new(pull, job.seed, seat)).transpose()?;
        let all: Vec<TensorId> = fragments::all(layout).collect();
        let states = all.iter().map(|tensor| layout.range(*tensor).len());
        Ok(Self {
            inner: local.inner,
            schedule: job.schedule,
            fragments: Fragments::balance(layout, local.fragments),
            rounds: Rounds::new(local, clock),
            draw,
            anchor: vec![0.0; layout.elements()],
            scratch: vec![0.0; layout.elements()],
            states: states.map(|elements| BlockState::new(&local.inner, elements)).collect(),
            all,
            layout: layout.clone(),
        })
    }

    /// When to push and to take.
    pub const fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    /// The same, to tell it what was pushed.
    pub const fn rounds_mut(&mut self) -> &mut Rounds {
        &mut self.rounds
    }

    /// The fragments.
    pub const fn fragments(&self) -> &Fragments {
        &self.fragments
    }

    /// The tensors of a part, in order.
    pub fn tensors(&self, part: Part) -> &[TensorId] {
        match part {
            Part::Whole => &self.all,
            Part::Fragment(fragment) => self.fragments.tensors(fragment),
        }
    }

    /// The global parameters of the last answers.
    pub fn anchor(&self) -> &[f32] {
        &self.anchor
    }

    /// Where answers are written. Those to a push have only the tensors of that push in them: a new
    /// anchor under a tensor that has moved since would undo the progress of others.
    pub fn anchor_mut(&mut self) -> &mut [f32] {
        &mut self.anchor
    }

    /// Goes on from the anchor, all of which has just been pulled.
    pub fn restart(&mut self, parameters: &mut [f32]) {
        parameters.copy_from_slice(&self.anchor);
        self.rounds.handle_restart();
    }

    /// Input: a tensor's gradient at the parameters of this step.
    pub fn handle_gradient(&mut self, tensor: TensorId, gradient: &[f32]) {
        self.scratch[self.layout.range(tensor)].copy_from_slice(gradient);
    }

    /// Makes a step: with samples, the inner optimizer's with the gradients that came since the
    /// last one, of every tensor; and the anchor's pull if one is drawn. Returns `false`, and leaves
    /// the parameters, when the gradients hold NaN or infinity: they would stay in the optimizer's
    /// state for ever.
    pub fn step(&mut self, samples: u32, parameters: &mut [f32]) -> bool {
        let step = self.rounds.step();
        let is_sound = samples == 0 || kernels::is_finite(&self.scratch);
        if samples > 0 && is_sound {
            let rate = self.inner.learning_rate() * self.schedule.factor(step);
            for (at, tensor) in self.layout.tensors().iter().enumerate() {
                let range = self.layout.range(self.all[at]);
                let (values, gradient) =
                    (&mut parameters[range.clone()], &self.scratch[range.clone()]);
                if tensor.role == TensorRole::Statistic {
                    apply_statistic(values, gradient, 1.0);
                    continue;
                }
                apply(&self.inner, &mut self.states[at], &Update::whole(rate), values, gradient);
                if let Some(weight) = self.draw.and_then(|draw| draw.weight(step)) {
                    anchor::pull(values, &self.anchor[range], weight);
                }
            }
        }
        self.rounds.handle_step(samples);
        is_sound
    }

    /// What a push of this tensor holds: see the module's text.
    pub fn progress(&mut self, tensor: TensorId, parameters: &[f32]) -> &[f32] {
        let range = self.layout.range(tensor);
        let (here, anchor) = (&parameters[range.clone()], &self.anchor[range.clone()]);
        let out = &mut self.scratch[range];
        // Minus and plus one are exact factors: one loop serves both signs.
        let sign = match self.layout.tensors()[tensor.index()].role {
            TensorRole::Parameter => 1.0,
            TensorRole::Statistic => -1.0,
        };
        for ((out, anchor), here) in out.iter_mut().zip(anchor).zip(here) {
            *out = sign * (anchor - here);
        }
        out
    }

    /// Takes the answer that lies in the anchor.
    pub fn take(&mut self, part: Part, parameters: &mut [f32]) {
        let mix = self.rounds.handle_taken();
        for tensor in self.tensors(part) {
            let range = self.layout.range(*tensor);
            let (own, global) = (&mut parameters[range.clone()], &self.anchor[range]);
            // A walk into infinity ends here: nothing of it may be kept.
            if mix == 0.0 || !kernels::is_finite(own) {
                own.copy_from_slice(global);
                continue;
            }
            for (own, global) in own.iter_mut().zip(global) {
                *own = mix * *own + (1.0 - mix) * global;
            }
        }
    }
}

/// The rules of a walk. Returns the steps from push to push.
fn check(job: &Job, local: &Local, layout: &Layout) -> Result<u64, LocalError> {
    let Local { steps, fragments, delay, mix, .. } = *local;
    let tensors = layout.tensors().len();
    let divides = fragments > 0 && steps > 0 && steps.is_multiple_of(u32::from(fragments));
    if !divides || usize::from(fragments) > tensors {
        return Err(LocalError::Fragments { fragments, steps, tensors });
    }
    let every = local.steps_per_push();
    if u64::from(delay) >= every {
        return Err(LocalError::Delay { delay, every });
    }
    if !(0.0..1.0).contains(&mix) {
        return Err(LocalError::Mix { mix });
    }
    let samples = every.saturating_mul(job.batch.into());
    if samples > PUSH_SAMPLES_MAX.into() {
        return Err(LocalError::Samples { samples, every });
    }
    Ok(every)
}
