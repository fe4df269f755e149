//! Fewer bytes, the same model: compression, error feedback, local rounds and steps in flight, through
//! real processes.

use slackline_common::job::Job;
use slackline_worker::reference;
use tests::cluster::root;
use tests::run::{Plan, Run};

/// Plain descent: `optimizer` as a whole, so that nothing of the file's is left.
const DESCENT: &str = r#"optimizer={kind="sgd", learning_rate=0.3}"#;
/// An outer optimizer that takes the mean of where the workers came.
const MEAN: &str = r#"optimizer={kind="sgd", learning_rate=1.0}"#;

fn local(more: &str) -> String {
    format!(r#"local={{inner={{kind="sgd", learning_rate=0.3}}, {more}}}"#)
}

fn bsp(sets: &[&str]) -> Run {
    run(&[&["epochs=30"], sets].concat())
}

fn run(sets: &[&str]) -> Run {
    let run = Plan::digits().set(&["mode=bsp", DESCENT]).set(sets).run_well();
    assert_eq!(run.summary()["contributions_refused"], 0);
    run
}

/// On the test part: the same for the same model, whenever progress was reported.
fn loss(run: &Run) -> f64 {
    run.summary()["test_loss"].as_f64().unwrap()
}

fn bytes(run: &Run) -> [u64; 2] {
    ["payload_bytes_up", "payload_bytes_down"].map(|key| run.summary()[key].as_u64().unwrap())
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// One element in a hundred is enough when what is left out is owed, and not when it is lost.
#[test]
fn with_feedback_a_hundredth_of_the_gradient_reaches_the_dense_loss_and_without_it_does_not() {
    let dense = bsp(&[]);
    let owed = bsp(&["compress=top_k:0.01"]);
    let lost = bsp(&["compress=top_k:0.01", "feedback.enabled=false"]);
    let (dense_loss, owed_loss, lost_loss) = (loss(&dense), loss(&owed), loss(&lost));
    let told = format!("dense {dense_loss}, with feedback {owed_loss}, without {lost_loss}");
    assert!((owed_loss / dense_loss - 1.0).abs() <= 0.05, "{told}");
    assert!(lost_loss >= 1.2 * dense_loss, "{told}");
    for (owed, dense) in bytes(&owed).into_iter().zip(bytes(&dense)) {
        assert!(owed * 10 < dense, "{owed} bytes of {dense}: small tensors are the rest");
    }
}

#[test]
fn compressed_runs_have_the_same_bits_for_any_number_of_servers() {
    for compress in ["compress=int8", "compress=top_k:0.05"] {
        let hash = |servers: &str| {
            let sets = ["mode=bsp", "steps=50", compress];
            Plan::digits().set(&sets).flags(&[servers]).run_well().model_hash()
        };
        assert_eq!(hash("--servers=1"), hash("--servers=3"), "{compress}");
    }
}

/// Every format, both ways, on links that need none: the model must not notice much.
#[test]
fn every_format_trains_the_digits() {
    for compress in [
        "int8",
        "int4",
        "sign",
        "random_k:0.2",
        r#"[{codec="top_k", density=0.05, values="two_bit", select="threshold"}]"#,
        r#"[{codec="int4", rounding="stochastic", direction="up"}]"#,
        r#"[{codec="two_bit", threshold=0.001, direction="up"}, {codec="bf16", direction="down"}]"#,
        "auto",
    ] {
        let run = bsp(&[&format!("compress={compress}")]);
        let accuracy = run.summary()["test_accuracy"].as_f64().unwrap();
        assert!(accuracy >= 0.94, "{compress}: {accuracy}");
    }
}

#[test]
fn rounds_of_one_step_are_bsp() {
    let together = run(&["steps=100"]);
    let rounds = run(&["steps=100", "mode=local", MEAN, &local("steps=1")]);
    let difference = largest_difference(&together.parameters(), &rounds.parameters());
    assert!(difference <= 1e-4, "{difference}");
}

#[test]
fn long_rounds_cost_a_fraction_of_the_bytes_and_reach_the_digits() {
    let dense = bytes(&bsp(&[]));
    for more in ["steps=8", "steps=8, fragments=2, delay=1, mix=0.5", "steps=8, begin_step=40"] {
        for staleness in ["", "staleness=2"] {
            let local = local(more);
            let mut sets = vec!["mode=local", MEAN, &local, "compress=top_k:0.1"];
            sets.extend(Some(staleness).filter(|set| !set.is_empty()));
            let run = bsp(&sets);
            let accuracy = run.summary()["test_accuracy"].as_f64().unwrap();
            assert!(accuracy >= 0.93, "{more} {staleness}: {accuracy}");
            for (bytes, dense) in bytes(&run).into_iter().zip(dense) {
                assert!(bytes * 15 < dense, "{more} {staleness}: {bytes} of {dense}");
            }
        }
    }
}

/// A gradient two steps late, in one process and in eight. (Publishes are taken one by one as long as
/// they are fewer bytes than the whole, which may be newer than a step needs: hence eight bits down.)
#[test]
fn steps_in_flight_are_a_delay_that_one_process_can_follow() {
    let calm = "optimizer={kind=\"sgd\", learning_rate=0.05}";
    let coded = r#"compress=[{codec="f32", direction="up"}, {codec="int8", direction="down", min_elements=0}]"#;
    let run = run(&["steps=50", "in_flight=3", coded, calm]);
    let alone = reference::train(&run.job, &root()).unwrap();
    let difference = largest_difference(&run.parameters(), &alone);
    let on_time = Job { in_flight: 1, ..run.job.clone() };
    let on_time = reference::train(&on_time, &root()).unwrap();
    let delayed = largest_difference(&on_time, &alone);
    // What eight bits hold back is little beside the delay.
    assert!(difference * 10.0 <= delayed, "{difference} from the delay, which makes {delayed}");
}
