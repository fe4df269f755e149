//! How far apart workers may drift (E20).

use super::*;

const STEPS: u64 = 10;

fn ssp(tolerance: u64, workers: u16) -> String {
    job(&format!("mode = \"ssp\"\nstaleness = {tolerance}\nreduce = \"sum\""), workers, 2, ADD)
}

fn init() -> Op {
    Op::Init(vec![declared("x", &[300], Dtype::F32, 0.0), declared("y", &[300], Dtype::F32, 0.0)])
}

fn push() -> Op {
    Op::Push(filled(&["x", "y"], 1.0), 1)
}

fn read() -> Op {
    pull(&["x", "y"])
}

/// Hetu's bounded staleness, with shorter naps: four workers make ten steps, worker r is busy r times
/// 20 ms in each. Nobody ever starts a step more than the tolerance ahead of the slowest, as each
/// worker sees it at its starts and as the servers saw it on every shard. In the end every push of
/// everybody is in, on both servers.
fn check_tolerance(tolerance: u64) {
    let mut case = Case::new(&ssp(tolerance, 4), 2);
    for rank in 0..4u16 {
        let mut script = vec![init()];
        for _ in 0..STEPS {
            script.extend([read(), Op::Work(20 * u64::from(rank)), push()]);
        }
        // Read once more when everybody has pushed.
        script.extend([Op::Barrier, read()]);
        case.client(rank, script);
    }
    let ending = case.finish();
    for rank in 0..4 {
        let seen = ending.staleness(rank);
        assert_eq!(seen.len() as u64, STEPS + 1);
        assert!(seen.iter().all(|ahead| *ahead <= tolerance), "rank {rank}: {seen:?}");
        let last = ending.pulls(rank)[10];
        assert_eq!(last, [Values::Fill(40.0), Values::Fill(40.0)], "rank {rank}");
        // A read holds at least what the bound demands: all pushes of everybody up to the slowest's
        // clock, and the reader's own.
        for (step, values) in (0u64..).zip(&ending.pulls(rank)[..10]) {
            let least = step + 3 * step.saturating_sub(tolerance);
            for value in values.iter().flat_map(|values| values.expand(300)) {
                assert!(f64::from(value) >= least as f64, "rank {rank}, step {step}: {value}");
            }
        }
    }
    let max = ending.number("max_staleness");
    assert!(max <= tolerance, "{max} ahead, {tolerance} allowed");
    assert_eq!((ending.number("steps"), ending.number("pushes_applied")), (STEPS, 4 * STEPS));
}

#[test]
fn with_tolerance_0_nobody_is_ever_ahead() {
    check_tolerance(0);
}

#[test]
fn with_tolerance_1_nobody_is_more_than_one_step_ahead() {
    check_tolerance(1);
}

#[test]
fn with_tolerance_3_nobody_is_more_than_three_steps_ahead() {
    check_tolerance(3);
}

/// The bound itself, without naps: while one worker has not pushed, the other may begin exactly
/// `tolerance` steps more, no less and no more. Its next read is held back until the first push of the
/// other, and no longer.
#[test]
fn a_worker_gets_exactly_as_far_ahead_as_the_tolerance_and_is_let_go_by_the_first_push() {
    for tolerance in [0u64, 1, 3] {
        let mut case = Case::new(&ssp(tolerance, 2), 2);
        let mut fast = vec![init()];
        for _ in 0..=tolerance {
            fast.extend([read(), push()]);
        }
        let held = Op::Held(vec!["x".to_owned(), "y".to_owned()], 300);
        fast.extend([held, Op::Barrier, read(), Op::Barrier]);
        case.client(0, fast);
        case.client(1, vec![init(), Op::Barrier, push(), Op::Barrier]);
        let ending = case.finish();
        let mut expected: Vec<u64> = (0..=tolerance).collect();
        expected.push(tolerance);
        assert_eq!(ending.staleness(0), expected);
        let held = ending.answers(0).iter().filter(|answer| **answer == Answer::Held).count();
        assert_eq!(held, 1, "tolerance {tolerance}");
        assert_eq!(ending.number("max_staleness"), tolerance);
    }
}

/// Without a bound one worker makes all its steps before the other makes one. This is also the proof
/// that the figures above would tell if the bound were broken.
#[test]
fn without_a_bound_a_worker_finishes_before_the_other_begins() {
    let mut case = Case::new(&job("mode = \"asp\"\nreduce = \"sum\"", 2, 2, ADD), 2);
    let steps = || (0..STEPS).flat_map(|_| [read(), push()]);
    case.client(0, [init()].into_iter().chain(steps()).chain([Op::Barrier]).collect());
    case.client(1, [init(), Op::Barrier].into_iter().chain(steps()).collect());
    let ending = case.finish();
    assert_eq!(ending.staleness(0), (0..STEPS).collect::<Vec<_>>());
    assert_eq!(ending.number("max_staleness"), STEPS - 1);
    assert_eq!(ending.number("pushes_applied"), 2 * STEPS);
}

/// A worker that leaves early holds nobody back: with tolerance 0 the other makes all its steps.
#[test]
fn a_worker_that_has_left_holds_nobody_back() {
    let mut case = Case::new(&ssp(0, 2), 2);
    case.client(0, vec![init(), read(), push()]);
    let steps = (0..STEPS).flat_map(|_| [read(), push()]);
    case.client(1, [init()].into_iter().chain(steps).chain([read()]).collect());
    let ending = case.finish();
    assert_eq!(ending.pulls(1)[10], [Values::Fill(11.0), Values::Fill(11.0)]);
    assert_eq!((ending.number("pushes_applied"), ending.number("max_staleness")), (11, 0));
    assert_eq!(ending.summary["seats_lost"], serde_json::json!([]));
}
