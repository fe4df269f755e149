//! How the blocks of a seat's gradients become bytes: the format of each tensor at each step, with
//! what is owed added ([`feedback`](crate::core::feedback)), clipped, and sampled
//! ([`guard`](crate::core::guard)).
//!
//! Without compression in the job this is the format of the wire and nothing else: no residual, no copy.

use crate::core::bundle::EncodeBlock;
use crate::core::feedback::Feedback;
use crate::core::guard::{Alarm, Guard, Sample};
use slackline_common::codec::{CodecId, CodecSpec, Draw, Encoder, codec};
use slackline_common::ids::{BlockId, SeatId, Step, TensorId};
use slackline_common::job::{Compress, Job, OptimizerSpec, Ramp};
use slackline_common::kernels;
use slackline_common::layout::{Block, Layout, TensorRole};
use std::sync::Arc;

/// Encodes the pushes of one seat.
#[derive(Debug)]
pub struct Uplink {
    layout: Arc<Layout>,
    seed: u64,
    seat: SeatId,
    step: Step,
    ramp: Ramp,
    /// One per tensor, at full ramp.
    specs: Vec<CodecSpec>,
    encoder: Encoder,
    /// Present when the job keeps residuals.
    feedback: Option<Feedback>,
    clip: Clip,
    guard: Guard,
    /// The decoded values of a sampled block.
    sent: Vec<f32>,
    /// What was decided about the block in hand.
    now: Now,
}

/// Local clipping by the norm of the step before.
#[derive(Debug)]
struct Clip {
    /// 0 is off.
    limit: f32,
    square: f64,
    factor: f32,
}

/// How the block in hand is encoded.
#[derive(Clone, Copy, Debug)]
struct Now {
    spec: CodecSpec,
    /// Whether the sum with what is owed is sent, or the gradient as it is.
    is_sum: bool,
}

impl Uplink {
    /// The codings of a job for a seat.
    pub fn new(job: &Job, layout: &Layout, seat: SeatId) -> Self {
        let specs: Vec<_> = job.codings(layout).iter().map(|coding| coding.up).collect();
        let momentum = match job.optimizer {
            OptimizerSpec::Momentum { momentum, .. } if job.feedback.momentum_correction => {
                f64::from(momentum)
            }
            _ => 0.0,
        };
        let mut uplink = Self {
            layout: Arc::new(layout.clone()),
            seed: job.seed,
            seat,
            step: Step(0),
            ramp: job.ramp,
            encoder: Encoder::default(),
            feedback: job.keeps_residuals().then(|| Feedback::new(job, layout)),
            clip: Clip { limit: 0.0, square: 0.0, factor: 1.0 },
            guard: Guard::new(job.seed, Vec::new(), 1.0 / (1.0 - momentum).max(1e-3)),
            sent: Vec::new(),
            now: Now { spec: CodecSpec::F32, is_sum: false },
            specs,
        };
        if uplink.feedback.is_some() {
            uplink.clip.limit = job.feedback.local_clip;
        }
        if job.compress != Compress::Off {
            uplink.watch(layout);
        }
        let keeps_all = job.feedback.momentum_correction || job.feedback.local_clip > 0.0;
        uplink.keep(keeps_all);
        uplink
    }

    /// The guard watches every block that travels in a lossy format.
    fn watch(&mut self, layout: &Layout) {
        let lossy = |block: &&Block| self.is_gradient(block.tensor) && self.is_lossy(block.tensor);
        let blocks: Vec<BlockId> =
            layout.blocks().iter().filter(lossy).map(|block| block.id).collect();
        let longest = layout.blocks().iter().map(|block| block.len).max().unwrap_or(0);
        self.sent.resize(if blocks.is_empty() { 0 } else { longest }, 0.0);
        self.guard.watch(blocks);
    }

    /// Keeps what is owed of every tensor in a lossy format. Momentum and clipping are of the whole
    /// model: with them, of `all` others too. Running sums are no gradients and owe nothing.
    fn keep(&mut self, all: bool) {
        let tensors = (0u32..).map(TensorId).take(self.specs.len());
        let kept: Vec<_> = tensors
            .filter(|tensor| self.is_gradient(*tensor) && (all || self.is_lossy(*tensor)))
            .collect();
        let Some(feedback) = &mut self.feedback else { return };
        kept.into_iter().for_each(|tensor| feedback.keep(&self.layout, tensor));
    }

    fn is_gradient(&self, tensor: TensorId) -> bool {
        self.layout.tensors()[tensor.index()].role == TensorRole::Parameter
    }

    fn is_lossy(&self, tensor: TensorId) -> bool {
        !self.specs[tensor.index()].is_lossless()
    }

    /// Codes the tensors so from the next step on, one spec per tensor: a choice made while the job
    /// runs. What is owed stays owed. Where the wire is lossy by the job, as for running sums, the caller
    /// keeps the job's spec.
    ///
    /// # Panics
    /// When there is not one spec per tensor.
    pub fn set_specs(&mut self, specs: Vec<CodecSpec>) {
        assert_eq!(specs.len(), self.layout.tensors().len(), "one spec per tensor");
        self.specs = specs;
        let layout = Arc::clone(&self.layout);
        self.watch(&layout);
        self.keep(false);
    }

    /// How a tensor is coded at full ramp.
    pub fn spec(&self, tensor: TensorId) -> CodecSpec {
        self.specs[tensor.index()]
    }

    /// Begins a step: its density, its random numbers, and the norm of the step before are now known.
    pub fn begin(&mut self, step: Step) {
        self.step = step;
        if self.clip.limit > 0.0 {
            let norm = std::mem::take(&mut self.clip.square).sqrt();
            let limit = f64::from(self.clip.limit);
            // A norm that is not finite is that of a step which the servers refused.
            let is_beyond = norm.is_finite() && norm > limit;
            #[expect(clippy::cast_possible_truncation, reason = "below 1")]
            let factor = if is_beyond { (limit / norm) as f32 } else { 1.0 };
            self.clip.factor = factor;
        }
    }

    /// What is owed, when the job keeps that.
    pub const fn feedback(&self) -> Option<&Feedback> {
        self.feedback.as_ref()
    }

    /// What is owed, to take over portions of it.
    pub const fn feedback_mut(&mut self) -> Option<&mut Feedback> {
        self.feedback.as_mut()
    }

    /// Smoothed samples of sent against true gradients; `None` before the first.
    pub const fn figures(&self) -> Option<Sample> {
        self.guard.figures()
    }

    /// Output: an alarm of the guard.
    pub const fn poll_alarm(&mut self) -> Option<Alarm> {
        self.guard.poll_alarm()
    }

    fn spec_now(&self, tensor: TensorId) -> CodecSpec {
        let spec = self.specs[tensor.index()];
        if !spec.is_sparse() {
            return spec;
        }
        spec.with_density(self.ramp.density(spec.density(), self.step.0))
    }

    /// Keeps what the encoded block does not say, and measures it when it is its turn.
    fn settle(&mut self, block: &Block, values: &[f32], id: CodecId, bytes: &[u8]) {
        let Now { spec, is_sum } = self.now;
        let is_sampled = self.guard.sampled(self.step.0) == Some(block.id);
        let mut residual: Option<&[f32]> = None;
        if is_sum && let Some(feedback) = &mut self.feedback {
            let settled = feedback.settle(block, id, bytes, spec.is_sparse());
            residual = settled.expect("our own encoder's bytes decode");
        }
        if !is_sampled || (is_sum && residual.is_none()) {
            return;
        }
        let (format, sent) = (codec(id), &mut self.sent[..block.len]);
        if format.decode(bytes, sent).is_err() {
            return;
        }
        let mut count = 0;
        format.for_each_sent(bytes, block.len, &mut |_| count += 1);
        let sample = Sample::measure(values, sent, residual.unwrap_or_default(), count);
        self.guard.handle_sample(block.id, spec, sample);
    }
}

impl EncodeBlock for Uplink {
    fn prepare(&mut self, block: &Block, values: &[f32]) -> usize {
        let spec = self.spec_now(block.tensor);
        let is_gradient = self.is_gradient(block.tensor);
        if self.clip.limit > 0.0 && is_gradient {
            self.clip.square += kernels::sum_of_squares(values);
        }
        self.now = Now { spec, is_sum: false };
        if let Some(feedback) = &mut self.feedback
            && feedback.keeps(block.tensor)
        {
            self.now = match feedback.accumulate(block, values, self.clip.factor, self.step.0) {
                true => Now { spec, is_sum: true },
                // In full precision, so that no format hides what the server is to refuse.
                false => Now { spec: CodecSpec::F32, is_sum: false },
            };
        }
        Encoder::encoded_len_max(&self.now.spec, block.len)
    }

    fn encode(&mut self, block: &Block, values: &[f32], out: &mut Vec<u8>) -> CodecId {
        let draw = Draw::up(self.seed, self.seat, self.step, block.id);
        let before = out.len();
        let Now { spec, is_sum } = self.now;
        let numbers = match &self.feedback {
            Some(feedback) if is_sum => feedback.sum(block),
            _ => values,
        };
        let id = self.encoder.encode(&spec, draw, numbers, out);
        self.settle(block, values, id, &out[before..]);
        id
    }
}

#[cfg(test)]
mod tests;
