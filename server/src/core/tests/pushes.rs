//! Exactly once, bounds, refusals, members that go.

use super::*;
use slackline_common::ids::Term;
use slackline_common::limits::STEPS_OPEN_MAX;

fn small(mode: Mode, workers: u16) -> Cluster {
    // 700 elements are 3 blocks, 2 another one.
    let layout = layout(&[&[700], &[2]], Init::Zeros);
    Cluster::new(&job(mode, workers, OptimizerSpec::Add { learning_rate: 1.0 }), &layout, 1)
}

fn ones() -> Vec<f32> {
    vec![1.0; 702]
}

#[test]
fn a_part_that_comes_again_is_acknowledged_and_not_applied() {
    for mode in [Mode::Bsp, Mode::Ssp { staleness: 3 }, ASP] {
        let mut cluster = small(mode, 2);
        let frames = cluster.frames(0, 0, 1, &ones());
        assert_eq!(frames.len(), 4);
        for frame in &frames {
            let before = cluster.ask(frame.clone());
            let hashes = cluster.hashes();
            let again = cluster.ask(frame.clone());
            assert_eq!((before.kind, again.kind), (ReplyKind::Ack, ReplyKind::Ack));
            assert_eq!(hashes, cluster.hashes());
        }
        cluster.push(0, 0, 1, &ones());
        assert_eq!(cluster.shards[0].engine().report().duplicates, 8);
        cluster.push(1, 0, 1, &ones());
        let expected = vec![1.0; 702]; // one mean of two, or two halves
        assert_eq!(cluster.pull(0, 1), expected);
    }
}

#[test]
fn a_step_is_complete_only_when_every_part_is_in_whatever_the_order() {
    let mut cluster = small(Mode::Ssp { staleness: 1 }, 1);
    for (at, clock) in [(3, 0), (0, 0), (2, 0), (1, 1)] {
        let frame = cluster.frames(0, 0, 1, &ones()).remove(at);
        cluster.ask(frame);
        assert_eq!(cluster.shards[0].engine().clock(SeatId(0)), Some(Step(clock)));
    }
    assert_eq!(cluster.version(0), 1);
}

#[test]
fn steps_may_overtake_each_other_and_the_clock_waits_for_the_gap() {
    let mut cluster = small(ASP, 1);
    cluster.push(0, 1, 1, &ones());
    cluster.push(0, 2, 1, &ones());
    assert_eq!(cluster.shards[0].engine().clock(SeatId(0)), Some(Step(0)));
    cluster.push(0, 1, 1, &ones()); // known, though the clock is below it
    let mut new = cluster.frames(0, 1, 1, &ones()).remove(3);
    new.part = 4;
    check_refused(&mut cluster, new, Refusal::StepClosed, "complete with 4 parts");
    cluster.push(0, 0, 1, &ones());
    assert_eq!(cluster.shards[0].engine().clock(SeatId(0)), Some(Step(3)));
    assert_eq!(cluster.pull(0, 3), vec![3.0; 702]);
}

#[test]
fn a_push_beyond_the_bound_is_refused_with_the_numbers() {
    let check = |mode, step: u64, word: &str| {
        let mut cluster = small(mode, 2);
        let frame = cluster.frames(0, step, 1, &ones()).remove(0);
        check_refused(&mut cluster, frame, Refusal::TooFarAhead, word);
        cluster.push(0, 0, 1, &ones());
    };
    check(Mode::Bsp, 1, "bsp with bound 0");
    check(Mode::Ssp { staleness: 2 }, 3, "the slowest 0, and ssp with bound 2");
    check(ASP, STEPS_OPEN_MAX, "its own clock is 0");
    check(Mode::Ssp { staleness: 1 << 20 }, 1 << 19, "ssp with bound 1048576");
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let mut cluster = small(Mode::Bsp, 2);
    let good = cluster.frames(0, 0, 1, &ones());
    cluster.ask(good[0].clone());
    let mut check = |refusal, word: &str, change: &dyn Fn(&mut Request)| {
        let mut frame = good[1].clone();
        change(&mut frame);
        check_refused(&mut cluster, frame, refusal, word);
    };
    check(Refusal::StaleIncarnation, "incarnation 1 now", &|f| f.incarnation = Incarnation(0));
    check(Refusal::StaleIncarnation, "not a seat", &|f| f.seat = SeatId(2));
    check(Refusal::UnknownBlock, "block 9", &|f| f.blocks[0].block = BlockId(9));
    check(Refusal::UnknownBlock, "twice", &|f| f.blocks[0].block = BlockId(0));
    check(Refusal::BadPayload, "add up", &|f| f.blocks[0].bytes -= 1);
    check(Refusal::BadPayload, "block 1", &|f| f.blocks[0].codec = CodecId::F16);
    check(Refusal::BadPayload, "2 samples", &|f| f.samples = 2);
    check(Refusal::BadPayload, "1 norms", &|f| f.norms = vec![1.0]);
    check(Refusal::BadPayload, "2 norms", &|f| f.norms = vec![1.0, f64::NAN]);
    check(Refusal::TooManyParts, "at most 5 parts", &|f| f.part = 5);
    check(Refusal::UnknownBlock, "twice", &|f| {
        f.blocks.push(f.blocks[0]);
        f.body = [f.body.clone(), f.body.clone()].concat().into();
    });
    cluster.ask(good[3].clone());
    let mut beyond = good[1].clone();
    beyond.part = 4;
    check_refused(&mut cluster, beyond.clone(), Refusal::BadPayload, "marked last");
    cluster.ask(good[1].clone());
    cluster.ask(good[2].clone());
    let hashes = cluster.hashes();
    assert_eq!(cluster.ask(beyond).kind, ReplyKind::Ack); // the step is below the clock
    assert_eq!(hashes, cluster.hashes());
    cluster.push(1, 0, 1, &ones());
    assert_eq!(cluster.pull(1, 1), ones());
}

#[test]
fn nan_is_refused_block_by_block_and_the_round_goes_on() {
    for mode in [Mode::Bsp, ASP] {
        let mut cluster = small(mode, 2);
        let mut gradient = ones();
        gradient[701] = f32::NAN;
        gradient[3] = f32::NEG_INFINITY;
        cluster.push(0, 0, 1, &gradient);
        cluster.push(1, 0, 1, &ones());
        let values = cluster.pull(0, 1);
        let refused = if mode == Mode::Bsp { 1.0 } else { 0.5 };
        assert_eq!((values[0], values[300], values[701]), (refused, 1.0, refused));
        assert_eq!(cluster.shards[0].engine().report().contributions_refused, 2);
        assert_eq!(cluster.events.len(), 2);
        let line = cluster.events.concat();
        assert!(line.contains("seat 0") && line.contains("\"t1\"") && line.contains("step 0"));
    }
}

#[test]
fn in_bsp_a_seat_that_departs_lets_the_step_close_without_its_half_push() {
    let mut cluster = small(Mode::Bsp, 3);
    cluster.push(0, 0, 1, &ones());
    cluster.push(2, 0, 1, &vec![3.0; 702]);
    let half = cluster.frames(1, 0, 1, &vec![100.0; 702]).remove(0);
    cluster.ask(half);
    let mut pull = request(RequestKind::Pull, 0, 0, 1);
    pull.blocks = cluster.wanted(0, CodecId::F32);
    assert!(cluster.send(pull).is_empty());
    let depart = Record::Depart { seat: SeatId(1), incarnation: LIFE, term: Term(2) };
    assert_eq!(cluster.order(&depart), [Verdict::Fresh]);
    assert_eq!(cluster.order(&depart), [Verdict::Known]);
    assert!(cluster.shards[0].poll_release().is_some());
    assert_eq!(cluster.pull(0, 1), vec![2.0; 702]);
    let late = cluster.frames(1, 0, 1, &ones()).remove(1);
    check_refused(&mut cluster, late, Refusal::StaleIncarnation, "taken out");
}

#[test]
fn in_bsp_a_complete_push_of_a_seat_that_left_still_counts() {
    let mut cluster = small(Mode::Bsp, 2);
    cluster.push(0, 0, 1, &vec![3.0; 702]);
    assert_eq!(cluster.ask(request(RequestKind::Leave, 0, 0, 0)).kind, ReplyKind::Ack);
    assert_eq!(cluster.ask(request(RequestKind::Leave, 0, 0, 0)).kind, ReplyKind::Ack);
    cluster.push(1, 0, 1, &ones());
    assert_eq!(cluster.pull(1, 1), vec![2.0; 702]);
    // Nobody is live any more: what is complete is closed, what is not is dropped.
    cluster.push(1, 1, 1, &ones());
    let half = cluster.frames(1, 2, 1, &ones()).remove(0);
    cluster.ask(half);
    cluster.ask(request(RequestKind::Leave, 0, 1, 0));
    assert_eq!((cluster.pull(0, 1), cluster.version(0)), (vec![3.0; 702], 2));
}

#[test]
fn when_the_last_seat_departs_the_complete_push_of_another_is_closed() {
    let mut cluster = small(Mode::Bsp, 2);
    cluster.push(0, 0, 1, &ones());
    cluster.ask(request(RequestKind::Leave, 0, 0, 0));
    assert_eq!(cluster.version(0), 0);
    cluster.order(&Record::Depart { seat: SeatId(1), incarnation: LIFE, term: Term(2) });
    assert_eq!((cluster.pull(0, 1), cluster.version(0)), (ones(), 1));
}

#[test]
fn a_shard_without_blocks_counts_steps_like_the_others() {
    let layout = layout(&[&[6]], Init::Zeros);
    let job = job(Mode::Bsp, 2, OptimizerSpec::Add { learning_rate: 1.0 });
    let mut cluster = Cluster::new(&job, &layout, 3);
    for step in 0..3 {
        cluster.push(0, step, 1, &[1.0; 6]);
        cluster.push(1, step, 1, &[1.0; 6]);
    }
    assert!(cluster.shards.iter().all(|s| s.engine().clock(SeatId(1)) == Some(Step(3))));
    assert_eq!((cluster.version(0), cluster.version(2)), (3, 0));
    assert_eq!(cluster.pull(0, 3), [3.0; 6]);
}

#[test]
fn running_statistics_move_by_their_mean_without_the_rate() {
    let layout = Layout::new(vec![
        TensorSpec::parameter("w", &[2], Init::Ones),
        TensorSpec::statistic("mean", &[2], Init::Zeros),
    ])
    .unwrap();
    for (mode, reduce) in [(Mode::Bsp, Reduce::Mean), (Mode::Bsp, Reduce::Sum), (ASP, Reduce::Mean)]
    {
        let mut job = job(mode, 2, sgd(0.25));
        job.reduce = reduce;
        let mut cluster = Cluster::new(&job, &layout, 1);
        cluster.push(0, 0, 1, &[1.0, 1.0, 8.0, 4.0]);
        cluster.push(1, 0, 1, &[1.0, 1.0, 4.0, 0.0]);
        let w = if reduce == Reduce::Sum { 0.5 } else { 0.75 };
        assert_eq!(cluster.pull(0, 1), [w, w, 6.0, 2.0]);
    }
}

#[test]
fn on_arrival_a_schedule_runs_on_whole_global_batches() {
    let layout = layout(&[&[1]], Init::Zeros);
    let mut job = job(ASP, 2, OptimizerSpec::Add { learning_rate: 1.0 });
    job.schedule.warmup_steps = 2; // factor 1/2 for the first global batch of two samples
    let mut cluster = Cluster::new(&job, &layout, 1);
    let mut values = Vec::new();
    for step in 0..2 {
        for seat in 0..2 {
            cluster.push(seat, step, 1, &[1.0]);
            values.push(cluster.pull(seat, step)[0]);
        }
    }
    assert_eq!(values, [0.25, 0.5, 1.0, 1.5]);
}
