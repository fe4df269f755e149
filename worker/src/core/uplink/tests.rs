//! What a server decodes of pushes, against the gradients that went in.

use super::*;
use slackline_common::layout::{Init, TensorSpec};

const TEXT: &str = include_str!("../../../../configs/jobs/digits.toml");

fn job(sets: &[&str]) -> Job {
    crate::testing::job(TEXT, &[&["optimizer.nesterov=false"], sets].concat())
}

fn layout() -> Layout {
    Layout::new(vec![
        TensorSpec::parameter("weight", &[100, 50], Init::Zeros),
        TensorSpec::parameter("bias", &[50], Init::Zeros),
        TensorSpec {
            role: TensorRole::Statistic,
            ..TensorSpec::parameter("mean", &[50], Init::Zeros)
        },
    ])
    .unwrap()
}

fn noise(seed: u64, elements: usize) -> Vec<f32> {
    (0..elements as u64).map(|i| slackline_common::random::symmetric_unit(seed, 0, i)).collect()
}

/// Pushes the flat gradient; returns what is decoded and the formats.
fn push(uplink: &mut Uplink, gradient: &[f32], step: u64) -> (Vec<f32>, Vec<CodecId>) {
    let layout = layout();
    uplink.begin(Step(step));
    let (mut sent, mut ids) = (vec![0.0; layout.elements()], Vec::new());
    for block in layout.blocks() {
        let (values, mut bytes) = (&gradient[block.range()], vec![7]);
        let most = uplink.prepare(block, values);
        let id = uplink.encode(block, values, &mut bytes);
        assert!(bytes.len() - 1 <= most && bytes[0] == 7, "it appends, and no more than it said");
        codec(id).decode(&bytes[1..], &mut sent[block.range()]).unwrap();
        ids.push(id);
    }
    (sent, ids)
}

#[test]
fn without_compression_the_wire_decides_and_nothing_is_owed() {
    let layout = layout();
    for (wire, id) in [("f32", CodecId::F32), ("bf16", CodecId::Bf16)] {
        let job = job(&[&format!("wire.up=\"{wire}\"")]);
        let mut uplink = Uplink::new(&job, &layout, SeatId(0));
        assert!(uplink.feedback().is_none());
        let gradient = noise(1, layout.elements());
        let (first, ids) = push(&mut uplink, &gradient, 0);
        assert!(ids.iter().all(|it| *it == id));
        assert_eq!(push(&mut uplink, &gradient, 1).0, first);
        assert_eq!(uplink.figures(), None);
    }
}

#[test]
fn what_is_lost_is_sent_later_and_running_sums_are_left_alone() {
    let layout = layout();
    let mut uplink = Uplink::new(&job(&["compress=\"bf16\""]), &layout, SeatId(0));
    let feedback = uplink.feedback().unwrap();
    let kept = [0, 1, 2].map(|tensor| feedback.keeps(TensorId(tensor)));
    assert_eq!(kept, [true, true, false]);
    // Over many pushes of one gradient the mean of what is sent comes to it: a bf16 alone is off by
    // up to 2^-9 of the value, always the same way.
    let gradient = noise(2, layout.elements());
    let mut sums = vec![0f64; layout.elements()];
    for step in 0..256 {
        let (sent, _) = push(&mut uplink, &gradient, step);
        sums.iter_mut().zip(&sent).for_each(|(sum, sent)| *sum += f64::from(*sent));
    }
    let off = |range: std::ops::Range<usize>| {
        let off = |at: usize| (sums[at] / 256.0 - f64::from(gradient[at])).abs();
        range.map(off).fold(0.0, f64::max)
    };
    assert!(off(0..5050) < 2e-5, "{}", off(0..5050));
    assert!(off(5050..5100) > 1e-4, "{}", off(5050..5100));
}

#[test]
fn a_block_with_nan_goes_as_it_is_and_the_next_push_is_whole_again() {
    let layout = layout();
    let mut uplink = Uplink::new(&job(&["compress=\"bf16\""]), &layout, SeatId(0));
    let gradient = noise(3, layout.elements());
    push(&mut uplink, &gradient, 0);
    let mut bad = gradient.clone();
    bad[17] = f32::NAN;
    let (sent, ids) = push(&mut uplink, &bad, 1);
    let block = layout.blocks()[0];
    assert_eq!(ids[0], CodecId::F32);
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&sent[block.range()]), bits(&bad[block.range()]));
    let (sent, ids) = push(&mut uplink, &gradient, 2);
    assert!(ids[0] == CodecId::Bf16 && sent.iter().all(|value| value.is_finite()));
}

#[test]
fn a_long_gradient_is_clipped_by_the_norm_of_the_step_before() {
    let layout = layout();
    let sets = ["compress=\"f32\"", "feedback.local_clip=2.0"];
    let mut uplink = Uplink::new(&job(&sets), &layout, SeatId(0));
    // 5050 elements of parameters and 50 of a running sum, which is no part of the gradient.
    let gradient = vec![0.125; layout.elements()];
    assert_eq!(push(&mut uplink, &gradient, 0).0, gradient, "nothing is known before the first");
    let (sent, _) = push(&mut uplink, &gradient, 1);
    let factor = 2.0 / (5050f64 * 0.125 * 0.125).sqrt();
    let right = 0.125 * factor;
    assert!(sent[..5050].iter().all(|sent| (f64::from(*sent) - right).abs() < 1e-7), "{}", sent[0]);
    assert!(sent[5050..].iter().all(|sent| *sent == 0.125));
    // A step that the servers refuse says nothing about the next one.
    push(&mut uplink, &vec![f32::NAN; layout.elements()], 2);
    assert_eq!(push(&mut uplink, &gradient, 3).0[..5050], gradient[..5050]);
    // Short ones are left alone.
    push(&mut uplink, &vec![0.001; layout.elements()], 4);
    assert_eq!(push(&mut uplink, &gradient, 5).0, gradient);
}

#[test]
fn a_ramp_goes_from_everything_to_the_density() {
    let layout = Layout::new(vec![TensorSpec::parameter("w", &[102_400], Init::Zeros)]).unwrap();
    let mut job = job(&["compress=\"top_k:0.015625\""]);
    job.ramp = Ramp { begin_step: 1, steps: 2, from: 0.25 };
    let mut uplink = Uplink::new(&job, &layout, SeatId(0));
    let gradient = noise(6, layout.elements());
    let mut counts = Vec::new();
    for step in 0..5 {
        uplink.begin(Step(step));
        let mut sent = 0;
        for block in layout.blocks() {
            let (values, mut bytes) = (&gradient[block.range()], Vec::new());
            uplink.prepare(block, values);
            let id = uplink.encode(block, values, &mut bytes);
            codec(id).for_each_sent(&bytes, block.len, &mut |_| sent += 1);
        }
        counts.push(sent);
    }
    // Then a quarter, a sixteenth, a sixty-fourth.
    assert_eq!(counts, [102_400, 25_600, 6_400, 1_600, 1_600]);
}

#[test]
fn nan_is_seen_by_the_receiver_in_every_format() {
    let layout = layout();
    for compress in ["int8", "int4", "sign", "two_bit:0.1", "top_k:0.01", "random_k:0.01"] {
        let mut uplink =
            Uplink::new(&job(&[&format!("compress=\"{compress}\"")]), &layout, SeatId(0));
        let gradient = noise(7, layout.elements());
        push(&mut uplink, &gradient, 0);
        let mut bad = gradient.clone();
        bad[4] = f32::INFINITY;
        let (sent, _) = push(&mut uplink, &bad, 1);
        assert!(sent.iter().any(|value| !value.is_finite()), "{compress}");
        let (sent, _) = push(&mut uplink, &gradient, 2);
        assert!(sent.iter().all(|value| value.is_finite()), "{compress}");
    }
}

#[test]
fn the_guard_sees_what_was_sent() {
    let layout = layout();
    let mut uplink = Uplink::new(&job(&["compress=\"bf16\""]), &layout, SeatId(0));
    let gradient = noise(4, layout.elements());
    (0..10).for_each(|step| drop(push(&mut uplink, &gradient, step)));
    let figures = uplink.figures().unwrap();
    assert!(figures.cosine > 0.9999 && figures.cosine <= 1.0, "{figures:?}");
    assert!((figures.norm_ratio - 1.0).abs() < 1e-2 && figures.residual_ratio < 1e-2);
    assert_eq!(figures.age, 1.0);
    assert_eq!(uplink.poll_alarm(), None);
}

#[test]
fn a_format_chosen_on_the_way_keeps_what_is_owed() {
    let layout = layout();
    let mut uplink = Uplink::new(&job(&["compress=\"bf16\""]), &layout, SeatId(0));
    let gradient = noise(5, layout.elements());
    let (first, _) = push(&mut uplink, &gradient, 0);
    uplink.set_specs(vec![CodecSpec::F32; 3]);
    let (second, ids) = push(&mut uplink, &gradient, 1);
    assert!(ids.iter().all(|id| *id == CodecId::F32));
    // The second push holds what the first left out, exactly: both together are twice the gradient.
    for i in 0..5050 {
        let both = f64::from(first[i]) + f64::from(second[i]);
        let off = (both - 2.0 * f64::from(gradient[i])).abs();
        assert!(off <= f64::from(gradient[i].abs()) * 2f64.powi(-24), "{off}");
    }
}
