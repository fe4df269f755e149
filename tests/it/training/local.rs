//! Local mode: workers that walk by themselves, through real processes.

use slackline_worker::reference;
use tests::cluster::root;
use tests::run::{Plan, Run};

/// Samples of the embedded digits' training part.
const DIGITS: u64 = 1437;
/// Rounds as in `bsp`, and servers that go to the mean of where the workers are.
const AVERAGING: [&str; 3] =
    ["mode=local", "staleness=", r#"optimizer={kind="sgd", learning_rate=1.0}"#];
const MOMENTUM: &str =
    r#"local.inner={kind="momentum", learning_rate=0.1, momentum=0.5, nesterov=true}"#;
/// Nesterov momentum on the servers.
const OUTER: &str =
    r#"optimizer={kind="momentum", learning_rate=0.7, momentum=0.6, nesterov=true}"#;

fn averaging(sets: &[&str]) -> Plan {
    Plan::digits().set(&AVERAGING).set(sets)
}

/// The largest difference of a parameter.
fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The distributed run against the plain loop over all seats.
fn check(sets: &[&str]) -> Run {
    let run = averaging(&["steps=60"]).set(sets).run_well();
    let alone = reference::train(&run.job, &root()).unwrap();
    let far = worst(&run.parameters(), &alone);
    assert!(far <= 1e-5, "{sets:?}: the largest difference is {far}");
    let layout = run.job.model.layout().unwrap();
    let first = slackline_common::model::initialise_all(&layout, run.job.seed);
    let moved = worst(&alone, &first);
    assert!(moved > 1e-2, "{sets:?}: training moved nothing: {moved}");
    run
}

#[test]
fn eight_local_steps_learn_the_digits_with_an_eighth_of_the_pushes() {
    for (staleness, epochs) in [("staleness=", 60), ("staleness=2", 60)] {
        let epochs = format!("epochs={epochs}");
        let sets = ["local.steps=8", MOMENTUM, staleness, &epochs];
        let run = averaging(&sets).run_well();
        let summary = run.summary();
        assert_eq!(summary["mode"], "local");
        assert!(summary["test_accuracy"].as_f64().unwrap() >= 0.95, "{staleness} {summary}");
        assert_eq!(summary["samples"], 60 * DIGITS, "{staleness}: each sample once per epoch");
        let parameters = run.job.model.layout().unwrap().elements() as u64;
        let pushes = summary["payload_bytes_up"].as_u64().unwrap() / (4 * parameters);
        let steps = 60 * DIGITS.div_ceil(16);
        assert!(pushes <= steps / 8 + steps / 80, "{pushes} pushes of {steps} steps");
    }
}

#[test]
fn rounds_of_one_step_are_bsp() {
    let local = averaging(&["local.steps=1", r#"local.inner={kind="sgd", learning_rate=0.3}"#])
        .set(&["epochs=20"])
        .run_well();
    let bsp = Plan::digits()
        .set(&["mode=bsp", r#"optimizer={kind="sgd", learning_rate=0.3}"#, "epochs=20"])
        .run_well();
    let loss = |run: &Run| run.summary()["test_loss"].as_f64().unwrap();
    let (ours, theirs) = (loss(&local), loss(&bsp));
    assert!((ours - theirs).abs() <= 1e-4, "{ours} beside {theirs}");
    let accuracy = |run: &Run| run.summary()["test_accuracy"].as_f64().unwrap();
    assert!(accuracy(&bsp) > 0.9 && (accuracy(&local) - accuracy(&bsp)).abs() < 0.005);
}

#[test]
fn rounds_in_bsp_are_one_process_that_walks_every_seat() {
    check(&["local.steps=8", MOMENTUM]);
    check(&["local.steps=7", r#"local.inner={kind="adamw", learning_rate=0.002}"#, OUTER]);
}

#[test]
fn a_post_local_start_and_anchor_pulls_are_one_process_too() {
    check(&["local.steps=10", "local.begin_step=15", MOMENTUM]);
    check(&["local.steps=12", MOMENTUM, "local.anchor={probability=0.3, strength=0.05}"]);
}

#[test]
fn fragments_with_delay_and_mix_are_one_process_too() {
    let streaming = ["local.steps=8", "local.fragments=2", MOMENTUM];
    check(&streaming);
    check(&[&streaming[..], &["local.delay=2", "local.mix=0.5", OUTER]].concat());
}

#[test]
fn a_round_longer_than_the_job_is_pushed_as_far_as_it_came() {
    let run = check(&["local.steps=1000", MOMENTUM]);
    assert_eq!(run.summary()["pushes_applied"], 4);
}
