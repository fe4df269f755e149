//! Cases with known right values from the tests of other systems.

use super::*;

const ELEMENTS_SPLIT: u64 = 1200;

/// MXNet's synchronous rounds (E05): start at 1, every worker pushes (rank + 1)·ones, the server does
/// `w += 2·g` with the plain sum. After round i every value is 1 + 2·W(W+1)/2·i, exactly.
#[test]
fn synchronous_rounds_give_the_exact_integers() {
    for up in [CodecId::F32, CodecId::F16] {
        for shards in 1..=3 {
            let layout = layout(&[&[2, 3], &[ELEMENTS_SPLIT, ELEMENTS_SPLIT]], Init::Ones);
            let mut job = job(Mode::Bsp, 7, OptimizerSpec::Add { learning_rate: 2.0 });
            job.reduce = Reduce::Sum;
            let mut cluster = Cluster::new(&job, &layout, shards);
            cluster.up = up;
            let expected = [57.0, 113.0, 169.0, 225.0, 281.0, 337.0, 393.0];
            for (round, value) in (0..).zip(expected) {
                for seat in [3, 0, 6, 1, 5, 2, 4] {
                    let gradient = vec![f32::from(seat) + 1.0; layout.elements()];
                    cluster.push(seat, round, 1, &gradient);
                }
                let values = cluster.pull(6, round + 1);
                assert!(values.iter().all(|got| *got == value), "round {round}: {}", values[0]);
            }
        }
    }
}

/// MXNet's trainer step (E08): x = 1, rate 1, gradients rank + 1, summed: 1 − 28 = −27.
#[test]
fn a_summed_gradient_step_of_seven_workers_gives_minus_27() {
    let layout = layout(&[&[4]], Init::Ones);
    let mut job = job(Mode::Bsp, 7, sgd(1.0));
    job.reduce = Reduce::Sum;
    let mut cluster = Cluster::new(&job, &layout, 1);
    (0..7).for_each(|seat| cluster.push(seat, 0, 1, &[f32::from(seat) + 1.0; 4]));
    assert_eq!(cluster.pull(0, 1), [-27.0; 4]);
}

/// A cluster of two tensors of three, as ElasticDL's tests have it, with the values they start from.
fn elastic(mode: Mode, workers: u16, reduce: Reduce) -> Cluster {
    let layout = layout(&[&[3], &[3]], Init::External);
    let mut job = job(mode, workers, sgd(0.1));
    job.reduce = reduce;
    let mut cluster = Cluster::without_values(&job, &layout, 1);
    let mut init = request(RequestKind::Init, 0, 0, 0);
    cluster.fill(&mut init, &[BlockId(0), BlockId(1)], &[10.0, 20.0, 30.0, 20.0, 40.0, 60.0]);
    assert_eq!(cluster.ask(init).kind, ReplyKind::Ack);
    cluster.order(&Record::CommitInit { seat: SeatId(0) });
    cluster
}

const FIRST: [f32; 6] = [1.0, 2.0, 3.0, 2.0, 4.0, 6.0];
const SECOND: [f32; 6] = [0.0, 0.0, 7.0, 9.0, 9.0, 6.0];

fn assert_close(got: &[f32], expected: &[f32]) {
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= expected.abs() * 2e-7, "{got} is not {expected}");
    }
}

/// ElasticDL's asynchronous updates (E15): each push by the whole rate, versions 1 and 2.
#[test]
fn asynchronous_pushes_are_applied_one_by_one() {
    let mut cluster = elastic(ASP, 2, Reduce::Sum);
    cluster.push(0, 0, 1, &FIRST);
    assert_close(&cluster.pull(0, 1), &[9.9, 19.8, 29.7, 19.8, 39.6, 59.4]);
    assert_eq!(cluster.version(0), 1);
    cluster.push(1, 0, 1, &SECOND);
    assert_close(&cluster.pull(0, 1), &[9.9, 19.8, 29.0, 18.9, 38.7, 58.8]);
    assert_eq!(cluster.version(0), 2);
}

/// ElasticDL's synchronous updates, wait for two (E16): the mean of both; a third push that is still
/// labelled with the closed step is answered as the duplicate it looks like and never applied.
#[test]
fn a_push_labelled_with_a_closed_step_is_not_applied() {
    let mut cluster = elastic(Mode::Bsp, 2, Reduce::Mean);
    cluster.push(0, 0, 1, &FIRST);
    assert_eq!(cluster.version(0), 0);
    cluster.push(1, 0, 1, &SECOND);
    let expected = [9.95, 19.9, 29.5, 19.45, 39.35, 59.4];
    assert_close(&cluster.pull(0, 1), &expected);
    let before = cluster.hashes();
    cluster.push(1, 0, 1, &FIRST);
    assert_eq!((cluster.version(0), cluster.hashes()), (1, before));
    assert_close(&cluster.pull(1, 1), &expected);
}

/// ElasticDL's staleness (E18): the rate is divided by max(1, versions since the gradient's
/// parameters).
#[test]
fn a_stale_gradient_moves_the_model_in_proportion_less() {
    for (pushes_between, divisor) in [(0u16, 1.0), (1, 1.0), (2, 2.0), (4, 4.0)] {
        let layout = layout(&[&[1]], Init::Ones);
        let mode = Mode::Asp { scale_by_staleness: true };
        let mut job = job(mode, 8, sgd(1.0));
        job.reduce = Reduce::Sum;
        let mut cluster = Cluster::new(&job, &layout, 1);
        (1..=pushes_between).for_each(|seat| cluster.push(seat, 0, 1, &[0.0]));
        cluster.push(0, 0, 1, &[0.5]);
        assert_eq!(cluster.pull(0, 1), [1.0 - 0.5 / divisor]);
    }
}

/// Flower's aggregates (E22): equal values stay what they are under any weights, weights count, and a
/// step without contributions changes nothing.
#[test]
fn weighted_means_are_exact_for_equal_values_and_empty_steps_change_nothing() {
    let layout = layout(&[&[3]], Init::Zeros);
    let job = job(Mode::Bsp, 3, OptimizerSpec::Add { learning_rate: 1.0 });
    let odd = [0.1, -7.3e-12, 1.9e9];
    let mut cluster = Cluster::new(&job, &layout, 1);
    [5, 5, 0].into_iter().zip(0..).for_each(|(samples, seat)| cluster.push(seat, 0, samples, &odd));
    assert_eq!(cluster.pull(0, 1), odd);
    let even = [1.0, -0.375, 3.0e6];
    let mut cluster = Cluster::new(&job, &layout, 1);
    [1, 2, 4]
        .into_iter()
        .zip(0..)
        .for_each(|(samples, seat)| cluster.push(seat, 0, samples, &even));
    assert_eq!(cluster.pull(0, 1), even);
    // (n, l) = (1, 2), (2, 1), (1, 2) gives 1.5.
    let mut cluster = Cluster::new(&job, &layout, 1);
    let losses = [(1, 2.0), (2, 1.0), (1, 2.0)];
    losses.into_iter().zip(0..).for_each(|((n, l), seat)| cluster.push(seat, 0, n, &[l; 3]));
    assert_eq!(cluster.pull(0, 1), [1.5; 3]);
    // A seat without samples does not count, and nobody at all is no update.
    cluster.push(0, 1, 4, &[1.0; 3]);
    cluster.push(1, 1, 0, &[100.0; 3]);
    cluster.push(2, 1, 0, &[]);
    assert_eq!((cluster.pull(0, 2), cluster.version(0)), (vec![2.5; 3], 2));
    (0..3).for_each(|seat| cluster.push(seat, 2, 0, &[]));
    assert_eq!((cluster.pull(0, 3), cluster.version(0)), (vec![2.5; 3], 2));
}

#[test]
fn a_seat_that_is_out_stages_no_first_values() {
    let layout = layout(&[&[3]], Init::External);
    let mut cluster = Cluster::without_values(&job(ASP, 3, sgd(1.0)), &layout, 1);
    let init = |cluster: &Cluster, seat: u16| {
        let mut init = request(RequestKind::Init, 0, seat, 0);
        cluster.fill(&mut init, &[BlockId(0)], &[1.0; 3]);
        init
    };
    let term = slackline_common::ids::Term(2);
    cluster.order(&Record::Depart { seat: SeatId(1), incarnation: LIFE, term });
    assert_eq!(cluster.ask(request(RequestKind::Leave, 0, 2, 0)).kind, ReplyKind::Ack);
    let before = cluster.hashes();
    for (seat, word) in [(1, "taken out of the job"), (2, "after it had left")] {
        let frame = init(&cluster, seat);
        check_refused(&mut cluster, frame, Refusal::StaleIncarnation, word);
    }
    assert_eq!(cluster.hashes(), before);
    let frame = init(&cluster, 0);
    assert_eq!(cluster.ask(frame).kind, ReplyKind::Ack);
}

/// First init wins (E07): what was committed stands, whoever sends values later.
#[test]
fn the_first_committed_values_stand() {
    let layout = layout(&[&[3], &[2]], Init::External);
    let mut cluster = Cluster::without_values(&job(ASP, 2, sgd(1.0)), &layout, 1);
    let mut pull = request(RequestKind::Pull, 0, 0, 0);
    pull.blocks = cluster.wanted(0, CodecId::F32);
    check_refused(&mut cluster, pull, Refusal::NotInitialised, "no first values");
    let push = cluster.frames(0, 0, 1, &[1.0; 5]).remove(0);
    check_refused(&mut cluster, push, Refusal::NotInitialised, "no first values");
    let init = |cluster: &Cluster, seat: u16, ids: &[BlockId]| {
        let mut init = request(RequestKind::Init, 0, seat, 0);
        cluster.fill(&mut init, ids, &[f32::from(seat); 5]);
        init
    };
    for seat in [0, 1] {
        let frame = init(&cluster, seat, &[BlockId(0)]);
        assert_eq!(cluster.ask(frame).kind, ReplyKind::Ack);
    }
    let incomplete = cluster.order(&Record::CommitInit { seat: SeatId(1) });
    assert!(matches!(&incomplete[0], Verdict::Refused(_, line) if line.contains("block 1")));
    let frame = init(&cluster, 1, &[BlockId(1)]);
    assert_eq!(cluster.ask(frame).kind, ReplyKind::Ack);
    assert_eq!(cluster.order(&Record::CommitInit { seat: SeatId(1) }), [Verdict::Fresh]);
    assert_eq!(cluster.pull(0, 0), [1.0; 5]);
    let frame = init(&cluster, 0, &[BlockId(0), BlockId(1)]);
    assert_eq!(cluster.ask(frame).kind, ReplyKind::Ack);
    assert_eq!(cluster.order(&Record::CommitInit { seat: SeatId(0) }), [Verdict::Known]);
    assert_eq!((cluster.pull(0, 0), cluster.version(0)), (vec![1.0; 5], 0));
}
