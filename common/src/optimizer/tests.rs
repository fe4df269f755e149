use super::*;
use crate::kernels::tests::{bits, lengths, values};

/// Every kind of optimizer with its usual hyperparameters.
fn spec(name: &str, learning_rate: f32, weight_decay: f32) -> OptimizerSpec {
    let epsilon = 1e-8;
    let (beta1, beta2) = (0.9, 0.999);
    match name {
        "add" => OptimizerSpec::Add { learning_rate },
        "sgd" => OptimizerSpec::Sgd { learning_rate, weight_decay },
        "momentum" | "nesterov" => OptimizerSpec::Momentum {
            learning_rate,
            momentum: 0.9,
            weight_decay,
            nesterov: name == "nesterov",
        },
        "adagrad" => OptimizerSpec::Adagrad { learning_rate, epsilon, weight_decay },
        "rmsprop" => OptimizerSpec::Rmsprop { learning_rate, alpha: 0.99, epsilon, weight_decay },
        "adam" => OptimizerSpec::Adam { learning_rate, beta1, beta2, epsilon, weight_decay },
        "adamw" => OptimizerSpec::Adamw { learning_rate, beta1, beta2, epsilon, weight_decay },
        _ => panic!("no optimizer {name}"),
    }
}

const NAMES: [&str; 8] =
    ["add", "sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw"];

/// Plays whole updates on a fresh state.
fn play(spec: &OptimizerSpec, start: &[f32], gradients: &[&[f32]]) -> Vec<f32> {
    let mut w = start.to_vec();
    let mut state = BlockState::new(spec, w.len());
    for g in gradients {
        apply(spec, &mut state, &Update::whole(spec.learning_rate()), &mut w, g);
    }
    w
}

fn assert_close(got: &[f32], expected: &[f32], relative: f32, what: &str) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        let error = (got - expected).abs();
        assert!(error <= relative * expected.abs(), "{what}: {got} is not {expected}");
    }
}

/// Made by `tests/oracles/optimizer_values.py` with torch 2.15: four parameters after 50 steps, by
/// name and weight decay.
#[rustfmt::skip]
const TORCH: [(&str, f32, [f32; 4]); 14] = [
    ("sgd", 0.0, [0.93640625, -0.56203127, 0.18953125, 1.9359375]),
    ("momentum", 0.0, [0.48659012, -1.0146202, -0.23736015, 1.4893512]),
    ("nesterov", 0.0, [0.47433737, -1.0251894, -0.24909288, 1.4763535]),
    ("adagrad", 0.0, [0.9197696, -0.58194214, 0.17860016, 1.9084493]),
    ("rmsprop", 0.0, [0.16194879, -1.3554243, -0.499207, 1.0471188]),
    ("adam", 0.0, [0.68611187, -0.8259579, -0.028663142, 1.6662668]),
    ("adamw", 0.0, [0.68611187, -0.8259579, -0.028663142, 1.6662668]),
    ("sgd", 0.1, [0.8891114, -0.5361367, 0.17871208, 1.8398217]),
    ("momentum", 0.1, [0.19794594, -0.76959944, -0.26589498, 0.8427134]),
    ("nesterov", 0.1, [0.18751864, -0.7721072, -0.27298746, 0.8273295]),
    ("adagrad", 0.1, [0.88390595, -0.5579303, 0.16877367, 1.8816699]),
    ("rmsprop", 0.1, [-0.046333194, -0.93804795, -0.45612565, 0.8693345]),
    ("adam", 0.1, [0.58894897, -0.7095728, -0.05229537, 1.549809]),
    ("adamw", 0.1, [0.6445757, -0.7937015, -0.03516399, 1.5767953]),
];

#[test]
fn fifty_whole_updates_give_what_torch_gives() {
    for (name, weight_decay, expected) in TORCH {
        let spec = spec(name, 0.01, weight_decay);
        let start = [1.0f32, -0.5, 0.25, 2.0];
        let mut w = start;
        let mut state = BlockState::new(&spec, w.len());
        for step in 1..=50 {
            let gradient: [f32; 4] =
                std::array::from_fn(|i| ((step * 7 + i * 13) % 33) as f32 / 64.0 - 0.125);
            apply(&spec, &mut state, &Update::whole(0.01), &mut w, &gradient);
        }
        for i in 0..4 {
            // Relative to the larger end of the way: some parameters pass close to zero.
            let size = expected[i].abs().max(start[i].abs());
            let error = (w[i] - expected[i]).abs() / size;
            assert!(error < 1e-6, "{name}, decay {weight_decay}: {w:?} is not {expected:?}");
        }
        assert_eq!(state.updates(), 50.0);
    }
}

/// E15 (ElasticDL, asynchronous): two tensors, rate 0.1, each push applied as a whole update.
#[test]
fn pushes_applied_on_arrival_move_the_model_one_after_the_other() {
    let sgd = spec("sgd", 0.1, 0.0);
    let check = |start: &[f32], gradients: &[&[f32]], expected: &[f32]| {
        assert_close(&play(&sgd, start, gradients), expected, 1e-6, "sgd");
    };
    check(&[10.0, 20.0, 30.0], &[&[1.0, 2.0, 3.0]], &[9.9, 19.8, 29.7]);
    check(&[20.0, 40.0, 60.0], &[&[2.0, 4.0, 6.0]], &[19.8, 39.6, 59.4]);
    check(&[10.0, 20.0, 30.0], &[&[1.0, 2.0, 3.0], &[0.0, 0.0, 7.0]], &[9.9, 19.8, 29.0]);
    check(&[20.0, 40.0, 60.0], &[&[2.0, 4.0, 6.0], &[9.0, 9.0, 6.0]], &[18.9, 38.7, 58.8]);
}

/// E16 (ElasticDL, synchronous): the same pushes, applied as one mean. Two pushes on arrival with
/// share 1/2 each reach the same values.
#[test]
fn the_mean_of_two_pushes_is_one_update_and_so_are_two_half_shares() {
    let sgd = spec("sgd", 0.1, 0.0);
    let check = |start: &[f32], pushes: [&[f32]; 2], expected: &[f32]| {
        let mut mean = vec![0.0; start.len()];
        pushes.iter().for_each(|push| kernels::scale_add(&mut mean, 0.5, push));
        assert_close(&play(&sgd, start, &[&mean]), expected, 1e-6, "mean");

        let mut w = start.to_vec();
        let mut state = BlockState::new(&sgd, w.len());
        for push in pushes {
            let half = Update { share: 0.5, ..Update::whole(0.1) };
            apply(&sgd, &mut state, &half, &mut w, push);
        }
        assert_close(&w, expected, 1e-6, "half shares");
        assert_eq!(state.updates(), 1.0);
    };
    check(&[10.0, 20.0, 30.0], [&[1.0, 2.0, 3.0], &[0.0, 0.0, 7.0]], &[9.95, 19.9, 29.5]);
    check(&[20.0, 40.0, 60.0], [&[2.0, 4.0, 6.0], &[9.0, 9.0, 6.0]], &[19.45, 39.35, 59.4]);
}

/// E18 (ElasticDL, staleness): the rate is divided by `max(1, staleness)`; with plain descent the
/// change shrinks by the same ratio.
#[test]
fn a_stale_gradient_moves_the_model_in_proportion_to_its_factor() {
    let sgd = spec("sgd", 0.5, 0.0);
    for (staleness, expected) in [(0, 2.0), (1, 2.0), (2, 3.0), (4, 3.5)] {
        let rate = 0.5 * staleness_factor(staleness);
        let mut w = [4.0];
        apply(&sgd, &mut BlockState::new(&sgd, 1), &Update::whole(rate), &mut w, &[4.0]);
        assert_eq!(w, [expected], "staleness {staleness}");
    }
}

#[test]
fn add_accumulates_with_the_sign_of_the_push() {
    // E05 (MXNet): start 1, rate 2, seven workers pushing rank + 1: +56 a round.
    let add = spec("add", 2.0, 0.0);
    let mut w = [1.0];
    let mut state = BlockState::new(&add, 1);
    for round in 1u8..=7 {
        for rank in 0u8..7 {
            apply(&add, &mut state, &Update::whole(2.0), &mut w, &[f32::from(rank) + 1.0]);
        }
        assert_eq!(w, [1.0 + 56.0 * f32::from(round)]);
    }
}

#[test]
fn the_clip_factor_scales_the_gradient_before_the_weight_decay() {
    for name in NAMES {
        let spec = spec(name, 0.01, 0.1);
        let (mut clipped, mut plain) = ([1.0, -2.0], [1.0, -2.0]);
        let (mut left, mut right) = (BlockState::new(&spec, 2), BlockState::new(&spec, 2));
        for _ in 0..3 {
            let quarter = Update { clip_factor: 0.25, ..Update::whole(0.01) };
            apply(&spec, &mut left, &quarter, &mut clipped, &[2.0, 4.0]);
            apply(&spec, &mut right, &Update::whole(0.01), &mut plain, &[0.5, 1.0]);
        }
        assert_eq!((clipped, left), (plain, right), "{name}");
    }
}

#[test]
fn a_velocity_carries_a_unit_of_gradient_equally_far_for_every_share() {
    // One push, then silence: the model must end `rate × share / (1 - momentum)` lower.
    for name in ["momentum", "nesterov"] {
        let spec = spec(name, 0.5, 0.0);
        for share in [1.0, 0.5, 0.25, 0.1] {
            let mut w = [0.0];
            let mut state = BlockState::new(&spec, 1);
            let update = Update { share, ..Update::whole(0.5) };
            apply(&spec, &mut state, &update, &mut w, &[1.0]);
            (0..4000).for_each(|_| apply(&spec, &mut state, &update, &mut w, &[0.0]));
            assert_close(&w, &[-0.5 * share / 0.1], 1e-4, &format!("{name}, share {share}"));
        }
    }
}

/// Plays 100 steps on a gradient that is steady, turns slowly and jumps, as whole updates and as
/// `parts` equal shares, and gives the largest distance between the two, measured in `rate`s.
fn largest_distance(spec: &OptimizerSpec, parts: u8, steps: std::ops::Range<u16>) -> f32 {
    let rate = spec.learning_rate();
    let (mut whole, mut shared) = ([1.0f32, -0.5, 2.0], [1.0f32, -0.5, 2.0]);
    let (mut left, mut right) = (BlockState::new(spec, 3), BlockState::new(spec, 3));
    let mut largest = 0.0f32;
    for step in 0..steps.end {
        let phase = f32::from(step) / 15.0;
        let gradient = [0.5, phase.cos() + 0.3, if step % 2 == 0 { 1.5 } else { 0.5 }];
        apply(spec, &mut left, &Update::whole(rate), &mut whole, &gradient);
        for _ in 0..parts {
            let part = Update { share: 1.0 / f32::from(parts), ..Update::whole(rate) };
            apply(spec, &mut right, &part, &mut shared, &gradient);
        }
        if steps.contains(&step) {
            let apart = whole.iter().zip(&shared).map(|(a, b)| (a - b).abs());
            largest = apart.fold(largest, f32::max);
        }
    }
    assert!((left.updates() - right.updates()).abs() < 1e-5);
    largest / rate
}

#[test]
fn four_quarter_pushes_track_one_whole_push() {
    // The bounds are in units of the rate; the ways are 40 to 1000 of them long. Weight decay reads
    // parameters that move within a step; roots of Adagrad and RMSprop grow within the first steps.
    let check = |name, weight_decay, parts, bound| {
        let apart = largest_distance(&spec(name, 0.01, weight_decay), parts, 0..100);
        assert!(apart < bound, "{name}, decay {weight_decay}, {parts} parts: {apart} steps apart");
    };
    for name in ["add", "sgd", "momentum", "nesterov"] {
        check(name, 0.0, 4, 0.005);
        check(name, 0.0, 16, 0.01);
        check(name, 0.1, 4, 3.0);
    }
    for name in ["adam", "adamw"] {
        for (parts, bound) in [(2, 0.3), (4, 0.3), (16, 0.3)] {
            check(name, 0.0, parts, bound);
            check(name, 0.1, parts, bound);
        }
    }
    for (name, bound) in [("adagrad", 0.6), ("rmsprop", 4.0)] {
        check(name, 0.0, 4, bound);
        check(name, 0.1, 16, bound);
    }
}

#[test]
fn workers_in_lockstep_on_arrival_descend_as_in_bsp() {
    // f(w) = w²/2, every push computed at the step's first parameters. At these rates four whole
    // pushes a step would leave the valley, and so would a velocity that lags.
    for (name, rate) in [("sgd", 0.6), ("momentum", 0.6), ("nesterov", 0.6), ("adam", 0.05)] {
        let spec = spec(name, rate, 0.0);
        let (mut bulk, mut arrival) = ([5.0f32], [5.0f32]);
        let (mut left, mut right) = (BlockState::new(&spec, 1), BlockState::new(&spec, 1));
        for step in 0..150 {
            let (at_bulk, at_arrival) = (bulk, arrival);
            apply(&spec, &mut left, &Update::whole(rate), &mut bulk, &at_bulk);
            for _ in 0..4 {
                let quarter = Update { share: 0.25, ..Update::whole(rate) };
                apply(&spec, &mut right, &quarter, &mut arrival, &at_arrival);
            }
            let apart = (bulk[0] - arrival[0]).abs();
            assert!(apart < 0.02, "{name}, step {step}: {bulk:?} and {arrival:?}");
        }
        assert!(arrival[0].abs() < 0.5, "{name} ends at {arrival:?}");
    }
}

#[test]
fn a_momentum_of_one_is_the_limit_of_momenta_below() {
    let play = |momentum| {
        let spec = |nesterov| OptimizerSpec::Momentum {
            learning_rate: 0.5,
            momentum,
            weight_decay: 0.0,
            nesterov,
        };
        [false, true].map(|nesterov| {
            let mut w = [0.0];
            let mut state = BlockState::new(&spec(nesterov), 1);
            for share in [1.0, 0.25, 0.25, 0.5, 1.0] {
                let update = Update { share, ..Update::whole(0.5) };
                apply(&spec(nesterov), &mut state, &update, &mut w, &[1.0]);
            }
            w[0]
        })
    };
    // 1 + 2 + 3 and 2 + 3 + 4, at rate ½.
    assert_eq!(play(1.0), [-3.0, -4.5]);
    assert_close(&play(0.9999), &[-3.0, -4.5], 1e-3, "momentum 0.9999");
    assert_close(&play(0.0), &[-1.5, -1.5], 1e-6, "no momentum");
}

#[test]
fn statistics_take_their_share_of_a_difference() {
    let mut w = [1.0, -1.0];
    apply_statistic(&mut w, &[4.0, 2.0], 0.25);
    assert_eq!(w, [2.0, -0.5]);
}

#[test]
fn a_state_is_restored_from_its_parts_and_goes_on_with_the_same_bits() {
    for name in NAMES {
        let spec = spec(name, 0.01, 0.1);
        let update = Update { share: 0.3, ..Update::whole(0.01) };
        let mut w = values(50, 1);
        let mut state = BlockState::new(&spec, 50);
        for seed in 0..5 {
            apply(&spec, &mut state, &update, &mut w, &values(50, seed));
        }
        let slots = state.slots().to_vec();
        let mut restored = BlockState::from_parts(&spec, 50, slots, state.updates()).unwrap();
        let mut again = w.clone();
        apply(&spec, &mut state, &update, &mut w, &values(50, 9));
        apply(&spec, &mut restored, &update, &mut again, &values(50, 9));
        assert_eq!((bits(&w), state), (bits(&again), restored), "{name}");
    }
}

#[test]
fn parts_that_are_no_state_are_refused_with_the_rule() {
    let adam = spec("adam", 0.01, 0.0);
    let check = |slots: Vec<Vec<f32>>, updates, part: &str| {
        let text = BlockState::from_parts(&adam, 2, slots, updates).unwrap_err().to_string();
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    };
    check(vec![vec![0.0; 2]], 1.0, "has 1 slots; this optimizer keeps 2");
    check(vec![vec![0.0; 2], vec![0.0; 3]], 1.0, "\"square_mean\" has 3 values; the block has 2");
    for updates in [f64::NAN, f64::INFINITY, -1.0] {
        check(vec![vec![0.0; 2]; 2], updates, "must be finite and not negative");
    }
}

#[test]
fn slots_start_at_zero_and_have_names() {
    for (name, slots) in NAMES.into_iter().zip([0, 0, 1, 1, 1, 1, 2, 2]) {
        let spec = spec(name, 0.5, 0.0);
        assert_eq!(
            (spec.slots(), spec.slot_names().len(), spec.learning_rate()),
            (slots, slots, 0.5)
        );
        let mut state = BlockState::new(&spec, 3);
        assert_eq!(state.slots(), vec![vec![0.0; 3]; slots]);
        state.slots_mut().iter_mut().for_each(|slot| slot[0] = 1.0);
        assert_eq!(state.slots(), vec![vec![1.0, 0.0, 0.0]; slots]);
    }
}

#[test]
fn both_bodies_give_the_same_bits_at_every_length_and_misalignment() {
    use loops::{Average, Direction, Moments, portable};
    let average = Average { decay: 0.9, gain: 0.1 };
    let ahead = Average { decay: 0.7, gain: 0.4 };
    let direction = Direction { of_past: 0.9, of_gradient: 1.1 };
    let (step, root, epsilon) = (0.1, 1.3, 1e-8);
    let moments = Moments { mean: ahead, direction, square: average, step, root, epsilon };
    type Run<'a> = &'a dyn Fn(&mut [f32], &[f32], &mut [f32], &mut [f32]);
    let check = |len: usize, offset: usize, what: &str, door: Run<'_>, body: Run<'_>| {
        let run = |run: Run<'_>| {
            let (mut w, g) = (values(len + offset, 1), values(len + offset, 2));
            let (mut m, mut v) = (values(len + offset, 3), values(len + offset, 4));
            v.iter_mut().for_each(|v| *v = v.abs());
            run(&mut w[offset..], &g[offset..], &mut m[offset..], &mut v[offset..]);
            (bits(&w), bits(&m), bits(&v))
        };
        assert_eq!(run(door), run(body), "{what} of {len} at {offset}");
    };
    for len in lengths() {
        for offset in 0..9 {
            check(
                len,
                offset,
                "descend",
                &|w, g, _, _| loops::descend(w, g, 0.7, 0.1, 0.3),
                &|w, g, _, _| {
                    portable::descend(w, g, 0.7, 0.1, 0.3);
                },
            );
            check(
                len,
                offset,
                "momentum",
                &|w, g, m, _| loops::momentum(w, g, m, 0.7, 0.1, average, direction, 0.3),
                &|w, g, m, _| portable::momentum(w, g, m, 0.7, 0.1, average, direction, 0.3),
            );
            check(
                len,
                offset,
                "by_root",
                &|w, g, _, v| loops::by_root(w, g, v, 0.7, 0.1, average, ahead, 0.3, 1e-8),
                &|w, g, _, v| portable::by_root(w, g, v, 0.7, 0.1, average, ahead, 0.3, 1e-8),
            );
            check(
                len,
                offset,
                "adam",
                &|w, g, m, v| loops::adam(w, g, m, v, 0.7, 0.1, 0.99, moments),
                &|w, g, m, v| portable::adam(w, g, m, v, 0.7, 0.1, 0.99, moments),
            );
        }
    }
}

#[test]
#[should_panic(expected = "a gradient has one value per parameter")]
fn mixed_up_blocks_panic() {
    let sgd = spec("sgd", 0.1, 0.0);
    apply(&sgd, &mut BlockState::new(&sgd, 2), &Update::whole(0.1), &mut [0.0; 2], &[0.0; 3]);
}

#[test]
#[should_panic(expected = "the state is that of another optimizer")]
fn a_state_of_another_optimizer_panics() {
    let (sgd, adam) = (spec("sgd", 0.1, 0.0), spec("adam", 0.1, 0.0));
    apply(&adam, &mut BlockState::new(&sgd, 2), &Update::whole(0.1), &mut [0.0; 2], &[0.0; 2]);
}
