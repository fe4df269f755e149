//! Against arithmetic written out here, with formats of the test's own where none of ours fits.

use super::*;
use proptest::prelude::*;
use slackline_common::codec::{CodecSpec, Draw, Encoder, Rounding, Select, ValueFormat};
use slackline_common::job::{CompressRule, Direction};
use slackline_common::layout::{Init, TensorSpec};

const TEXT: &str = include_str!("../../../../configs/jobs/digits.toml");

fn job(sets: &[&str]) -> Job {
    crate::testing::job(TEXT, sets)
}

fn layout(elements: u64) -> Layout {
    Layout::new(vec![TensorSpec::parameter("w", &[elements], Init::Zeros)]).unwrap()
}

const W: TensorId = TensorId(0);

/// A feedback of one tensor, its first block and an encoder.
struct Bench {
    layout: Layout,
    feedback: Feedback,
    encoder: Encoder,
    spec: CodecSpec,
}

impl Bench {
    fn new(job: &Job, elements: u64, spec: CodecSpec) -> Self {
        let layout = layout(elements);
        let mut feedback = Feedback::new(job, &layout);
        feedback.keep(&layout, W);
        Self { layout, feedback, encoder: Encoder::default(), spec }
    }

    /// Pushes a gradient of the whole tensor; returns what the server decodes.
    fn push(&mut self, gradient: &[f32], step: u64) -> Vec<f32> {
        let mut sent = vec![0.0; gradient.len()];
        for block in self.layout.blocks() {
            let range = block.range_in_tensor();
            assert!(self.feedback.accumulate(block, &gradient[range.clone()], 1.0, step));
            let (mut bytes, draw) = (Vec::new(), Draw { seed: step });
            let sum = self.feedback.sum(block);
            let id = self.encoder.encode(&self.spec, draw, sum, &mut bytes);
            codec(id).decode(&bytes, &mut sent[range]).unwrap();
            let is_sparse = self.spec.is_sparse();
            self.feedback.settle(block, id, &bytes, is_sparse).unwrap().unwrap();
        }
        sent
    }

    fn owed(&self) -> Portion {
        let elements = self.layout.range(W).len();
        self.feedback.export(&self.layout, W, 0..elements).unwrap()
    }
}

fn noise(seed: u64, elements: usize) -> Vec<f32> {
    (0..elements as u64).map(|i| slackline_common::random::symmetric_unit(seed, 0, i)).collect()
}

const fn top_k(density: f32, values: ValueFormat) -> CodecSpec {
    CodecSpec::TopK { density, select: Select::Exact, values }
}

/// Formats whose decoded values are the sum, its upper half, or 0.
const EXACT: [CodecSpec; 5] = [
    CodecSpec::F32,
    CodecSpec::Bf16,
    top_k(0.05, ValueFormat::F32),
    top_k(0.05, ValueFormat::Bf16),
    CodecSpec::RandomK { density: 0.1, values: ValueFormat::Bf16 },
];
const COARSE: [CodecSpec; 5] = [
    CodecSpec::Int8 { rounding: Rounding::Stochastic },
    CodecSpec::Int4 { rounding: Rounding::Nearest },
    CodecSpec::Sign,
    CodecSpec::TwoBit { threshold: 0.5 },
    top_k(0.05, ValueFormat::Int8),
];

proptest! {
    /// A half with the same exponent or above is subtracted exactly (Sterbenz), so nothing is lost.
    #[test]
    fn sent_and_kept_are_the_sum_bit_for_bit(seed in 0u64..1000, pushes in 1u64..6) {
        for spec in EXACT {
            let mut bench = Bench::new(&job(&[]), 700, spec);
            for step in 0..pushes {
                let before = bench.owed().residual;
                let gradient = noise(seed * 10 + step, 700);
                let sent = bench.push(&gradient, step);
                let after = bench.owed().residual;
                for i in 0..700 {
                    let sum = before[i] + gradient[i];
                    prop_assert_eq!((sent[i] + after[i]).to_bits(), sum.to_bits(), "{}", spec);
                }
            }
        }
    }
}

/// Over many pushes what was sent and is owed comes to what went in, whatever the format.
#[test]
fn nothing_is_lost_for_good() {
    for spec in EXACT.into_iter().chain(COARSE) {
        let mut bench = Bench::new(&job(&[]), 700, spec);
        let (mut went_in, mut went_out) = (vec![0f64; 700], vec![0f64; 700]);
        for step in 0..50 {
            let gradient = noise(step, 700);
            let sent = bench.push(&gradient, step);
            went_in.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += f64::from(*g));
            went_out.iter_mut().zip(&sent).for_each(|(sum, s)| *sum += f64::from(*s));
        }
        for ((went_in, went_out), owed) in went_in.iter().zip(went_out).zip(bench.owed().residual) {
            // Fifty roundings of numbers that may be some tens.
            let off = (went_in - went_out - f64::from(owed)).abs();
            assert!(off < 1e-4, "{spec}: {off}");
        }
    }
}

/// Case E23: pushes of a two-bit format with threshold t, and how many thresholds are sent.
#[test]
fn two_bits_send_a_threshold_when_so_much_has_come_together() {
    let t = 0.5f32;
    for sign in [1.0, -1.0] {
        let mut bench = Bench::new(&job(&[]), 5, CodecSpec::TwoBit { threshold: t });
        let pushes = [0.0, 0.4, t - 0.4, 0.2, t - 0.2, t];
        let sent: Vec<f32> = (0u64..)
            .zip(pushes)
            .map(|(step, value)| {
                let sent = bench.push(&[sign * value; 5], step);
                assert!(sent.iter().all(|it| *it == sent[0]));
                sign * sent[0]
            })
            .collect();
        assert_eq!(sent, [0.0, 0.0, t, 0.0, t, t]);
        assert!(bench.owed().residual.iter().all(|owed| *owed == 0.0));
    }
}

#[test]
fn a_lossless_format_owes_nothing() {
    let mut bench = Bench::new(&job(&[]), 300, CodecSpec::F32);
    let gradient = noise(1, 300);
    assert_eq!(bench.push(&gradient, 0), gradient);
    assert!(bench.owed().residual.iter().all(|owed| *owed == 0.0));
}

#[test]
fn what_is_owed_decays() {
    let mut job = job(&[]);
    job.feedback.decay = 0.5;
    let mut bench = Bench::new(&job, 1, CodecSpec::Bf16);
    // 1 + 2^-10 has two bits too many: 2^-10 is owed, then half of it, and so on.
    let owes = 2f32.powi(-10);
    bench.push(&[1.0 + owes], 0);
    assert_eq!(bench.owed().residual, [owes]);
    bench.push(&[1.0], 1);
    assert_eq!(bench.owed().residual, [owes / 2.0]);
}

#[test]
fn nan_and_infinity_leave_what_is_owed_as_it_was() {
    let mut bench = Bench::new(&job(&[]), 3, CodecSpec::Bf16);
    bench.push(&noise(3, 3), 0);
    let before = bench.owed();
    let block = bench.layout.blocks()[0];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(!bench.feedback.accumulate(&block, &[1.0, bad, 2.0], 1.0, 1));
        assert_eq!(bench.owed(), before);
    }
    bench.push(&noise(4, 3), 2);
    assert!(bench.owed().residual.iter().all(|owed| owed.is_finite()));
}

#[test]
fn a_format_that_overflows_leaves_what_is_owed_as_it_was() {
    let mut bench = Bench::new(&job(&[]), 2, CodecSpec::F16);
    bench.push(&[0.1, 0.2], 0);
    let (before, block) = (bench.owed(), bench.layout.blocks()[0]);
    assert!(bench.feedback.accumulate(&block, &[1e6, 1.0], 1.0, 1));
    let mut bytes = Vec::new();
    let draw = Draw { seed: 0 };
    let id = bench.encoder.encode(&CodecSpec::F16, draw, bench.feedback.sum(&block), &mut bytes);
    assert_eq!(bench.feedback.settle(&block, id, &bytes, false).unwrap(), None);
    assert_eq!(bench.owed(), before);
}

fn corrected(momentum: f32) -> Job {
    let mut job = job(&["optimizer.nesterov=false"]);
    let rule = CompressRule {
        pattern: "*".to_owned(),
        direction: Direction::Up,
        elements_min: 0,
        codec: CodecSpec::F32,
    };
    job.compress = slackline_common::job::Compress::Rules(vec![rule]);
    job.feedback.momentum_correction = true;
    let OptimizerSpec::Momentum { momentum: factor, .. } = &mut job.optimizer else {
        panic!("the digits are trained with momentum")
    };
    *factor = momentum;
    job
}

/// `w -= rate·sent` against `m = μ·m + g; w -= rate·m`, in f64.
#[test]
fn in_a_dense_lossless_format_corrected_momentum_is_momentum() {
    let mut bench = Bench::new(&corrected(0.9), 50, CodecSpec::F32);
    let (mut plain, mut velocity, mut right) = ([0f64; 50], [0f64; 50], [0f64; 50]);
    for step in 0..40 {
        let gradient = noise(100 + step, 50);
        let sent = bench.push(&gradient, step);
        for i in 0..50 {
            plain[i] -= 0.1 * f64::from(sent[i]);
            velocity[i] = 0.9 * velocity[i] + f64::from(gradient[i]);
            right[i] -= 0.1 * velocity[i];
        }
    }
    let far = plain.iter().zip(right).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(far < 1e-5 && right.iter().any(|w| w.abs() > 0.1), "{far}");
}

/// The largest of every block by magnitude, of equal ones the first, written out.
fn largest(block: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..block.len()).collect();
    order.sort_by(|a, b| block[*b].abs().total_cmp(&block[*a].abs()).then(a.cmp(b)));
    order.truncate(k);
    order
}

/// Lin et al., algorithm 1 of the appendix, and case E34: 102,400 elements of which a quarter is sent.
#[test]
fn where_an_element_was_sent_both_accumulators_are_zero() {
    let n = 102_400;
    let mut bench = Bench::new(&corrected(0.5), n as u64, top_k(0.25, ValueFormat::F32));
    let (mut u, mut v) = (vec![0f64; n], vec![0f64; n]);
    for step in 0..4 {
        let gradient = noise(30 + step, n);
        let sent = bench.push(&gradient, step);
        for i in 0..n {
            u[i] = 0.5 * u[i] + f64::from(gradient[i]);
            v[i] += u[i];
        }
        let mut expected = vec![0f64; n];
        for block in bench.layout.blocks() {
            let start = block.range().start;
            assert_eq!(block.len % 4, 0);
            for at in largest(&v[block.range()], block.len / 4) {
                expected[start + at] = v[start + at];
                (u[start + at], v[start + at]) = (0.0, 0.0);
            }
        }
        let count = sent.iter().filter(|sent| **sent != 0.0).count();
        assert_eq!(count, n / 4, "step {step}");
        let owed = bench.owed();
        for i in 0..n {
            assert!((f64::from(sent[i]) - expected[i]).abs() < 1e-5, "step {step}, element {i}");
            if sent[i] != 0.0 {
                assert_eq!([owed.residual[i], owed.velocity[i]], [0.0; 2]);
            }
            assert!((f64::from(owed.residual[i]) - v[i]).abs() < 1e-5);
            assert!((f64::from(owed.velocity[i]) - u[i]).abs() < 1e-5);
        }
    }
}

#[test]
fn before_the_ramp_gradients_are_sent_without_momentum() {
    let mut job = corrected(0.9);
    job.ramp.begin_step = 3;
    let mut bench = Bench::new(&job, 1, CodecSpec::F32);
    let sent: Vec<f32> = (0..6).map(|step| bench.push(&[1.0], step)[0]).collect();
    assert_eq!(sent, [1.0, 1.0, 1.0, 1.0, 1.9, 2.71]);
}

#[test]
fn what_is_owed_survives_another_cut() {
    let job = corrected(0.9);
    let elements = 600_000;
    let mut bench = Bench::new(&job, elements, CodecSpec::Bf16);
    assert!(bench.layout.blocks().len() > 2);
    let gradient = noise(8, 600_000);
    bench.push(&gradient, 0);
    let whole = bench.owed();
    assert!(whole.residual.iter().any(|owed| *owed != 0.0));
    // Handed over in pieces that cut no block where it is cut here.
    let mut other = Bench::new(&job, elements, CodecSpec::Bf16);
    for range in [0..7, 7..300_001, 300_001..600_000] {
        let portion = bench.feedback.export(&bench.layout, W, range).unwrap();
        other.feedback.import(&other.layout, &portion).unwrap();
    }
    assert_eq!(other.owed(), whole);
    assert_eq!(other.push(&gradient, 1), bench.push(&gradient, 1));
    assert_eq!(other.owed(), bench.owed());
}

#[test]
fn a_portion_that_does_not_fit_is_refused_and_changes_nothing() {
    let mut bench = Bench::new(&corrected(0.9), 10, CodecSpec::Bf16);
    bench.push(&noise(5, 10), 0);
    let before = bench.owed();
    let good = bench.feedback.export(&bench.layout, W, 2..5).unwrap();
    let mut check = |portion: Portion, part: &str| {
        let error = bench.feedback.import(&bench.layout, &portion).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    check(Portion { tensor: "v".to_owned(), ..good.clone() }, "tensor \"v\"");
    check(Portion { range: 8..11, ..good.clone() }, "elements 8..11 of tensor \"w\", which has 10");
    check(Portion { range: 2..4, ..good.clone() }, "3 residuals and 3 velocities");
    check(Portion { velocity: Vec::new(), ..good.clone() }, "3 residuals and 0 velocities");
    #[expect(clippy::reversed_empty_ranges, reason = "a peer may say so")]
    check(Portion { range: 5..2, ..good }, "5..2");
    assert_eq!(bench.owed(), before);
}
