//! Whether compression is still honest: what was sent of a sampled block against its true gradient.
//!
//! One block per step is measured, another each time, in an order of its own seed. Measured are the
//! cosine and the ratio of norms of sent and true, the residual's norm in gradients, and how many
//! steps an element waits between two sends if all take turns. Smoothed over about
//! `1 / GAIN` samples. A residual that is far larger than the format explains, many times in a row,
//! is an alarm: it grows without bound, and the model does not follow its gradients any more.

use slackline_common::codec::CodecSpec;
use slackline_common::ids::BlockId;
use slackline_common::random::Permutation;
use std::fmt;

/// Weight of a new sample.
const GAIN: f64 = 0.1;
/// Feedback holds the residual to a few gradients of those that an element waits for (Karimireddy et
/// al., ICML 2019, lemma 3: twice the inverse of the share a format keeps). So many times that is
/// growth without bound.
const RESIDUAL_LIMIT: f64 = 10.0;
/// Steps a format without a density may hold an element back before it counts: one bit and two bits
/// send small elements seldom.
const COARSE_STEPS: f64 = 100.0;
/// Samples in a row beyond the limit that make an alarm.
const ALARM_SAMPLES: u32 = 16;

/// One measurement of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Cosine of sent and true gradient; 1 when both are 0.
    pub cosine: f64,
    /// Norm of what was sent over that of the gradient.
    pub norm_ratio: f64,
    /// Norm of what is held back over that of the gradient.
    pub residual_ratio: f64,
    /// Elements of the block over elements sent: steps between two sends of an element.
    pub age: f64,
}

impl Sample {
    /// Measures a block. All slices are as long as the block; `count` elements were sent.
    pub fn measure(gradient: &[f32], sent: &[f32], residual: &[f32], count: usize) -> Self {
        let square = slackline_common::kernels::sum_of_squares;
        let dot: f64 = gradient.iter().zip(sent).map(|(g, s)| f64::from(*g) * f64::from(*s)).sum();
        let norm = square(gradient).sqrt();
        let sent_norm = square(sent).sqrt();
        let ratio = |above: f64| match (above, norm) {
            (0.0, _) => 0.0,
            (_, 0.0) => f64::INFINITY,
            _ => above / norm,
        };
        let cosine = match norm * sent_norm {
            0.0 => f64::from(u8::from(norm == sent_norm)),
            product => dot / product,
        };
        Self {
            cosine,
            norm_ratio: ratio(sent_norm),
            residual_ratio: ratio(square(residual).sqrt()),
            age: gradient.len() as f64 / count.max(1) as f64,
        }
    }
}

/// A residual that grows without bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Alarm {
    /// The last block it was seen in.
    pub block: BlockId,
    /// Its residual in gradients.
    pub residual_ratio: f64,
    /// What the format explains.
    pub limit: f64,
    /// How the block is coded.
    pub spec: CodecSpec,
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "what {} holds back has grown to {:.0} gradients of {} (at most {:.0} are usual), {} \
             samples in a row: choose a less lossy codec or a lower feedback.decay",
            self.spec, self.residual_ratio, self.block, self.limit, ALARM_SAMPLES
        )
    }
}

/// The samples of a seat's life.
#[derive(Debug)]
pub struct Guard {
    seed: u64,
    /// Blocks in lossy formats.
    blocks: Vec<BlockId>,
    /// 1 / (1 - momentum) when momentum is corrected: a velocity is so many gradients.
    gradients: f64,
    figures: Option<Sample>,
    in_a_row: u32,
    alarm: Option<Alarm>,
}

impl Guard {
    /// Watches `blocks`; what is sent of one is at most `gradients` times its gradient.
    pub const fn new(seed: u64, blocks: Vec<BlockId>, gradients: f64) -> Self {
        Self { seed, blocks, gradients, figures: None, in_a_row: 0, alarm: None }
    }

    /// Watches other blocks from now on.
    pub fn watch(&mut self, blocks: Vec<BlockId>) {
        self.blocks = blocks;
    }

    /// The block to measure at a step. In every so many steps as there are blocks, each once.
    pub fn sampled(&self, step: u64) -> Option<BlockId> {
        let count = self.blocks.len() as u64;
        let position = step.checked_rem(count)?;
        let order = Permutation::new(count, self.seed.wrapping_add(step / count));
        let at = usize::try_from(order.get(position)).expect("below the number of blocks");
        Some(self.blocks[at])
    }

    /// Input: a measurement of a block that was coded so. Samples that are not finite say nothing.
    pub fn handle_sample(&mut self, block: BlockId, spec: CodecSpec, sample: Sample) {
        let Sample { cosine, norm_ratio, residual_ratio, age } = sample;
        if !(cosine.is_finite() && norm_ratio.is_finite() && residual_ratio.is_finite()) {
            return;
        }
        let before = self.figures.unwrap_or(sample);
        let smooth = |before: f64, now: f64| before + GAIN * (now - before);
        self.figures = Some(Sample {
            cosine: smooth(before.cosine, cosine),
            norm_ratio: smooth(before.norm_ratio, norm_ratio),
            residual_ratio: smooth(before.residual_ratio, residual_ratio),
            age: smooth(before.age, age),
        });
        let limit = RESIDUAL_LIMIT * self.gradients * waiting_steps(&spec);
        self.in_a_row = if residual_ratio > limit { self.in_a_row + 1 } else { 0 };
        if self.in_a_row == ALARM_SAMPLES {
            self.alarm = Some(Alarm { block, residual_ratio, limit, spec });
        }
    }

    /// The smoothed figures; `None` before the first sample.
    pub const fn figures(&self) -> Option<Sample> {
        self.figures
    }

    /// Output: an alarm, once for each time that a row of samples is beyond the limit.
    pub const fn poll_alarm(&mut self) -> Option<Alarm> {
        self.alarm.take()
    }
}

/// Steps that a format lets an element wait.
fn waiting_steps(spec: &CodecSpec) -> f64 {
    match spec {
        CodecSpec::TopK { density, .. } | CodecSpec::RandomK { density, .. } => {
            1.0 / f64::from(*density)
        }
        CodecSpec::Sign | CodecSpec::TwoBit { .. } => COARSE_STEPS,
        CodecSpec::F32
        | CodecSpec::Bf16
        | CodecSpec::F16
        | CodecSpec::Int8 { .. }
        | CodecSpec::Int4 { .. } => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BF16: CodecSpec = CodecSpec::Bf16;

    #[test]
    fn a_sample_is_the_geometry_of_its_vectors() {
        // A 3-4-5 triangle: sent is the 4 alone, held back the 3.
        let sample = Sample::measure(&[3.0, 4.0], &[0.0, 4.0], &[3.0, 0.0], 1);
        let right = Sample { cosine: 0.8, norm_ratio: 0.8, residual_ratio: 0.6, age: 2.0 };
        assert_eq!(sample, right);
        let all = Sample::measure(&[3.0, 4.0], &[3.0, 4.0], &[0.0, 0.0], 2);
        assert_eq!(all, Sample { cosine: 1.0, norm_ratio: 1.0, residual_ratio: 0.0, age: 1.0 });
        let nothing = Sample::measure(&[0.0], &[0.0], &[0.0], 0);
        assert_eq!((nothing.cosine, nothing.norm_ratio), (1.0, 0.0));
    }

    #[test]
    fn every_block_has_its_turn_in_an_order_of_the_seed() {
        let blocks: Vec<_> = (3..10).map(BlockId).collect();
        let guard = Guard::new(5, blocks.clone(), 1.0);
        let round = |guard: &Guard, first: u64| {
            (first..first + 7).map(|step| guard.sampled(step).unwrap()).collect::<Vec<_>>()
        };
        let (mut first, second) = (round(&guard, 0), round(&guard, 7));
        assert_ne!(first, second);
        assert_ne!(first, round(&Guard::new(6, blocks.clone(), 1.0), 0));
        first.sort_unstable();
        assert_eq!(first, blocks);
        assert_eq!(Guard::new(5, Vec::new(), 1.0).sampled(3), None);
    }

    #[test]
    fn figures_are_smoothed_and_broken_samples_left_out() {
        let mut guard = Guard::new(1, vec![BlockId(0)], 1.0);
        assert_eq!(guard.figures(), None);
        let sample = |cosine| Sample { cosine, norm_ratio: 1.0, residual_ratio: 2.0, age: 1.0 };
        guard.handle_sample(BlockId(0), BF16, sample(0.5));
        guard.handle_sample(BlockId(0), BF16, sample(f64::NAN));
        guard.handle_sample(BlockId(0), BF16, sample(1.0));
        let cosine = guard.figures().unwrap().cosine;
        assert!((cosine - 0.55).abs() < 1e-12, "{cosine}");
    }

    #[test]
    fn a_residual_that_grows_without_bound_is_told_once_and_one_that_does_not_never() {
        let sample = |residual_ratio| Sample { residual_ratio, ..Sample::default() };
        // A residual of one gradient more each step, as when two bits say less than the gradient.
        let mut guard = Guard::new(1, vec![BlockId(7)], 1.0);
        let mut told = Vec::new();
        for step in 0..3000 {
            guard.handle_sample(
                BlockId(7),
                CodecSpec::TwoBit { threshold: 0.1 },
                sample(f64::from(step)),
            );
            told.extend(guard.poll_alarm().map(|alarm| (step, alarm)));
        }
        let [(1016, alarm)] = &told[..] else { panic!("{told:?}") };
        let line = alarm.to_string();
        assert!(line.contains("block 7") && line.contains("1016 gradients"), "{line}");

        // One percent holds back a hundred steps' worth: usual.
        let top_k = CodecSpec::TopK {
            density: 0.01,
            select: slackline_common::codec::Select::Exact,
            values: slackline_common::codec::ValueFormat::F32,
        };
        let mut guard = Guard::new(1, vec![BlockId(7)], 1.0);
        (0..3000).for_each(|_| guard.handle_sample(BlockId(7), top_k, sample(200.0)));
        assert_eq!(guard.poll_alarm(), None);
        // Nor is it an alarm while it comes back under the limit now and then.
        let mut guard = Guard::new(1, vec![BlockId(7)], 1.0);
        for step in 0..3000 {
            let ratio = if step % ALARM_SAMPLES == 0 { 0.0 } else { 1e9 };
            guard.handle_sample(BlockId(7), BF16, sample(ratio));
        }
        assert_eq!(guard.poll_alarm(), None);
    }
}
