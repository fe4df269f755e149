//! `bsp` is one process: the same bits for any number of servers, any order of arrival and any
//! repetition, and the same parameters as a plain loop without any of this.

use slackline_worker::reference;
use tests::cluster::root;
use tests::run::{Plan, Run};

/// Largest difference of a parameter that rounding explains: sums of 64 gradients in another order,
/// over 50 steps.
const ROUNDING: f32 = 1e-5;

fn bsp(sets: &[&str], flags: &[&str]) -> Run {
    let run = Plan::digits().set(&["mode=bsp", "steps=50"]).set(sets).flags(flags).run_well();
    assert_eq!(run.summary()["steps"], 50);
    assert_eq!(run.summary()["max_staleness"], 0);
    run
}

/// The distributed run against the plain loop.
fn check(sets: &[&str]) {
    let run = bsp(sets, &[]);
    assert_eq!((run.job.workers, run.job.batch), (4, 16));
    let alone = reference::train(&run.job, &root()).unwrap();
    let together = run.parameters();
    assert_eq!(together.len(), alone.len());
    let worst = together.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= ROUNDING, "{sets:?}: the largest difference is {worst}");
    let first =
        slackline_common::model::initialise_all(&run.job.model.layout().unwrap(), run.job.seed);
    let moved = alone.iter().zip(&first).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(moved > 100.0 * ROUNDING, "{sets:?}: training moved nothing: {moved}");
}

#[test]
fn bsp_gives_the_same_bits_for_any_number_of_servers_and_any_order_of_arrival() {
    let first = bsp(&[], &["--servers=2"]).model_hash();
    for flags in [
        &["--servers=2"][..],
        &["--servers=1"],
        &["--servers=3"],
        &["--servers=2", "--slow", "1:5"],
    ] {
        assert_eq!(bsp(&[], flags).model_hash(), first, "{flags:?}");
    }
}

#[test]
fn bsp_is_one_process_with_the_whole_batch() {
    check(&[]);
}

#[test]
fn bsp_is_one_process_also_when_it_clips() {
    check(&["clip.global_norm=0.5"]);
    check(&["clip.per_tensor=0.3"]);
}

#[test]
fn bsp_is_one_process_with_every_kind_of_memory() {
    check(&[
        "optimizer.kind=momentum",
        "optimizer.momentum=0.9",
        "optimizer.nesterov=false",
        "optimizer.learning_rate=0.05",
        "optimizer.weight_decay=0.001",
    ]);
    check(&[r#"optimizer={kind="adam", learning_rate=0.001}"#]);
}
