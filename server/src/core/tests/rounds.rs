//! Steps in flight, rounds of local steps, momentum that lives with the workers.

use super::*;
use slackline_common::job::{Local, ScheduleShape};
use slackline_common::limits::STEPS_OPEN_MAX;

fn one(mode: Mode, workers: u16, optimizer: OptimizerSpec) -> (Job, Layout) {
    (job(mode, workers, optimizer), layout(&[&[1]], Init::Zeros))
}

const ADD: OptimizerSpec = OptimizerSpec::Add { learning_rate: 1.0 };

#[test]
fn with_steps_in_flight_pushes_may_run_ahead_of_the_bound_and_pulls_may_not() {
    for (mode, bound) in [(Mode::Bsp, 0), (Mode::Ssp { staleness: 2 }, 2)] {
        let (mut job, layout) = one(mode, 2, ADD);
        job.in_flight = 3;
        let mut cluster = Cluster::new(&job, &layout, 1);
        let furthest = bound + 2;
        (0..=furthest).for_each(|step| cluster.push(0, step, 1, &[1.0]));
        let beyond = cluster.frames(0, furthest + 1, 1, &[1.0]).remove(0);
        check_refused(&mut cluster, beyond, Refusal::TooFarAhead, "allows no more");
        let mut pull = request(RequestKind::Pull, 0, 0, bound + 1);
        pull.blocks = cluster.wanted(0, CodecId::F32);
        assert!(cluster.send(pull).is_empty());
        // The slower seat's step lets the pull go, and one more push.
        let frame = cluster.frames(1, 0, 1, &[1.0]).remove(0);
        assert_eq!(cluster.send(frame).len(), 2);
        cluster.push(0, furthest + 1, 1, &[1.0]);
        let report = cluster.shards[0].engine().report();
        assert_eq!(report.max_staleness, bound);
    }
    let (mut job, layout) = one(ASP, 2, ADD);
    job.in_flight = 100;
    let mut cluster = Cluster::new(&job, &layout, 1);
    let far = cluster.frames(0, STEPS_OPEN_MAX, 1, &[1.0]).remove(0);
    check_refused(&mut cluster, far, Refusal::TooFarAhead, "its own clock is 0");
}

/// Steps that ran ahead close one after the other, each with its own mean.
#[test]
fn steps_in_flight_close_in_order_with_the_numbers_of_one_at_a_time() {
    let run = |in_flight: u16| {
        let (mut job, layout) = one(Mode::Bsp, 2, sgd(0.3));
        job.in_flight = in_flight;
        let mut cluster = Cluster::new(&job, &layout, 1);
        let gradient = |seat: u16, step: u64| [f32::from(seat) + step as f32 * 0.7];
        for first in (0..8).step_by(in_flight.into()) {
            for seat in 0..2 {
                for step in first..first + u64::from(in_flight) {
                    cluster.push(seat, step, u32::from(seat) + 1, &gradient(seat, step));
                }
            }
        }
        (cluster.pull(0, 8), cluster.version(0))
    };
    assert_eq!(run(1), run(4));
    assert_eq!(run(1).1, 8);
}

fn local(steps: u32, fragments: u16) -> Local {
    Local { steps, inner: sgd(0.1), begin_step: 0, fragments, delay: 0, mix: 0.0, anchor: None }
}

#[test]
fn in_local_mode_the_schedule_is_not_the_servers() {
    for mode in [Mode::Bsp, ASP] {
        let (mut job, layout) = one(mode, 1, sgd(1.0));
        job.schedule.shape = ScheduleShape::Step { every_steps: 1, factor: 0.5 };
        let mut cluster = Cluster::new(&job, &layout, 1);
        (0..3).for_each(|step| cluster.push(0, step, 1, &[1.0]));
        assert_eq!(cluster.pull(0, 3), [-1.75]);
        job.local = Some(local(4, 1));
        let mut cluster = Cluster::new(&job, &layout, 1);
        (0..3).for_each(|step| cluster.push(0, step, 4, &[1.0]));
        assert_eq!(cluster.pull(0, 3), [-3.0]);
    }
}

/// A round of one step (post-local SGD before its begin) is as much a part of `workers` as one of four:
/// its difference is short already. Two workers, outer rate 1: the mean of the differences.
#[test]
fn on_arrival_a_round_counts_as_one_of_the_workers_whatever_its_length() {
    for samples in [1, 4] {
        let (mut job, layout) = one(Mode::Ssp { staleness: 1 }, 2, sgd(1.0));
        job.local = Some(local(4, 1));
        let mut cluster = Cluster::new(&job, &layout, 1);
        cluster.push(0, 0, samples, &[1.0]);
        assert_eq!(cluster.pull(0, 1), [-0.5]);
        cluster.push(1, 0, samples, &[3.0]);
        assert_eq!(cluster.pull(0, 1), [-2.0]);
    }
}

/// `local(1)` with an outer rate of 1: a worker's difference after one step of plain descent is its rate
/// times its gradient. The same model as `bsp` with that rate, up to a rounding of the product.
#[test]
fn a_round_of_one_step_is_a_step_of_bsp() {
    let layout = layout(&[&[50]], Init::Uniform { bound: 0.5 });
    let bsp = job(Mode::Bsp, 3, sgd(0.1));
    let mut rounds = job(Mode::Bsp, 3, sgd(1.0));
    rounds.local = Some(local(1, 1));
    let mut clusters = [Cluster::new(&bsp, &layout, 1), Cluster::new(&rounds, &layout, 2)];
    for step in 0..10 {
        for seat in 0..3u16 {
            let value = |i: u16| f32::from(i * 7 % 13 + seat) - 6.0 + step as f32;
            let gradient: Vec<f32> = (0..50).map(value).collect();
            let difference: Vec<f32> = gradient.iter().map(|g| 0.1 * g).collect();
            clusters[0].push(seat, step, u32::from(seat) + 1, &gradient);
            clusters[1].push(seat, step, u32::from(seat) + 1, &difference);
        }
        let [bsp, rounds] = clusters.each_mut().map(|cluster| cluster.pull(0, step + 1));
        for (bsp, rounds) in bsp.iter().zip(&rounds) {
            assert!((bsp - rounds).abs() <= 1e-5 * bsp.abs().max(1.0), "{bsp} {rounds}");
        }
    }
}

/// Fragments are pushed at different times: a block that nobody pushes stays as it is.
#[test]
fn a_fragment_moves_its_own_blocks_and_makes_a_version() {
    for mode in [Mode::Bsp, Mode::Ssp { staleness: 0 }] {
        let layout = layout(&[&[2], &[3]], Init::Zeros);
        let momentum = OptimizerSpec::Momentum {
            learning_rate: 1.0,
            momentum: 0.5,
            weight_decay: 0.0,
            nesterov: false,
        };
        let mut job = job(mode, 2, momentum);
        job.local = Some(local(4, 2));
        let mut cluster = Cluster::new(&job, &layout, 1);
        for step in 0..4 {
            for seat in 0..2 {
                let mut frame = cluster.frames(seat, step, 2, &[1.0; 5]).remove(step as usize % 2);
                (frame.part, frame.last) = (0, true);
                assert_eq!(cluster.ask(frame).kind, ReplyKind::Ack);
            }
            assert_eq!(cluster.version(0), if mode == Mode::Bsp { step + 1 } else { 2 * step + 2 });
        }
        // v = 1, then 1.5: the other fragment's rounds do not decay it.
        let close = |value: f32| (value + 2.5).abs() < 1e-6;
        assert!(cluster.pull(0, 4).into_iter().all(close), "{mode:?}");
    }
}

/// Paddle's momentum for top-k (E34): before the ramp `v = μv + g/W, w -= lr·v`; from its first step on
/// plain `w -= lr·g/W`.
#[test]
fn from_the_ramp_on_the_momentum_is_the_workers() {
    let momentum = OptimizerSpec::Momentum {
        learning_rate: 0.1,
        momentum: 0.9,
        weight_decay: 0.0,
        nesterov: true,
    };
    for (mode, nesterov) in [(Mode::Bsp, false), (Mode::Bsp, true), (ASP, false)] {
        let (mut job, layout) = one(mode, 4, momentum);
        if let OptimizerSpec::Momentum { nesterov: look_ahead, .. } = &mut job.optimizer {
            *look_ahead = nesterov;
        }
        job.feedback.momentum_correction = true;
        job.ramp.begin_step = 3;
        let mut cluster = Cluster::new(&job, &layout, 1);
        let (mut weight, mut velocity) = (0.0f64, 0.0f64);
        for step in 0..8 {
            let gradient = 1.0 + step as f64;
            (0..4).for_each(|seat| cluster.push(seat, step, 1, &[gradient as f32]));
            if step < 3 {
                velocity = 0.9 * velocity + gradient;
                weight -= 0.1 * if nesterov { gradient + 0.9 * velocity } else { velocity };
            } else {
                weight -= 0.1 * gradient;
            }
            let got = f64::from(cluster.pull(0, step + 1)[0]);
            assert!((got - weight).abs() <= 1e-5, "{mode:?} step {step}: {got}, not {weight}");
        }
    }
}
