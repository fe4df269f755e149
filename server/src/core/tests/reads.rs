//! Pulls: what they contain, when they come, what they may ask.

use super::*;
use slackline_common::ids::Term;
use slackline_common::limits::PULLS_WAITING_PER_SEAT_MAX;
use slackline_common::wire::control::NO_SEAT;

fn cluster(mode: Mode, workers: u16, clip: f32) -> Cluster {
    let layout = layout(&[&[700], &[2]], Init::Zeros);
    let mut job = job(mode, workers, OptimizerSpec::Add { learning_rate: 1.0 });
    job.clip = Clip { per_tensor: clip, global_norm: 0.0 };
    Cluster::new(&job, &layout, 1)
}

fn pull(cluster: &Cluster, seat: SeatId, step: u64) -> Request {
    let mut pull = request(RequestKind::Pull, 0, seat.0, step);
    pull.blocks = cluster.wanted(0, CodecId::F32);
    pull
}

#[test]
fn a_pull_without_a_seat_is_answered_at_once() {
    let mut cluster = cluster(Mode::Bsp, 2, 0.0);
    let request = pull(&cluster, NO_SEAT, 1_000_000);
    let reply = cluster.ask(request);
    assert_eq!((reply.kind, reply.blocks.len()), (ReplyKind::Parameters, 4));
    assert_eq!(cluster.shards[0].engine().report().max_staleness, 0);
}

#[test]
fn a_pull_is_answered_in_the_format_it_asks_for() {
    let mut cluster = cluster(ASP, 1, 0.0);
    cluster.push(0, 0, 1, &vec![2.0; 702]);
    let mut request = pull(&cluster, SeatId(0), 1);
    request.blocks = cluster.wanted(0, CodecId::Bf16);
    let reply = cluster.ask(request);
    assert_eq!(reply.body.len(), 702 * 2);
    assert!(reply.body.chunks(2).all(|pair| pair == [0x00, 0x40])); // 2.0 in bf16
}

#[test]
fn pulls_that_ask_too_much_are_refused() {
    let mut cluster = cluster(ASP, 1, 0.0);
    let mut unknown = pull(&cluster, SeatId(0), 0);
    unknown.blocks[0].block = BlockId(4);
    check_refused(&mut cluster, unknown, Refusal::UnknownBlock, "block 4");
    let mut huge = pull(&cluster, SeatId(0), 0);
    huge.blocks = vec![huge.blocks[0]; 2000];
    check_refused(&mut cluster, huge, Refusal::BadPayload, "split it");
    let far = pull(&cluster, SeatId(0), 1000);
    check_refused(&mut cluster, far, Refusal::TooFarAhead, "clock 0");
    for _ in 0..PULLS_WAITING_PER_SEAT_MAX {
        let waiting = pull(&cluster, SeatId(0), 1);
        assert!(cluster.send(waiting).is_empty());
    }
    let one_more = pull(&cluster, SeatId(0), 1);
    check_refused(&mut cluster, one_more, Refusal::TooManyParts, "64 pulls waiting");
    let frames = cluster.frames(0, 0, 1, &[1.0; 702]);
    let released: usize = frames.into_iter().map(|frame| cluster.send(frame).len() - 1).sum();
    assert_eq!(released, PULLS_WAITING_PER_SEAT_MAX);
}

#[test]
fn a_cancelled_pull_is_gone() {
    let mut cluster = cluster(ASP, 1, 0.0);
    let waiting = pull(&cluster, SeatId(0), 1);
    assert!(cluster.send(waiting).is_empty());
    cluster.shards[0].cancel(Token(1));
    cluster.push(0, 0, 1, &[1.0; 702]);
    assert_eq!(cluster.shards[0].read(Token(1)), None);
}

#[test]
fn the_pulls_of_a_seat_that_departs_are_refused() {
    let mut cluster = cluster(Mode::Bsp, 2, 0.0);
    let waiting = pull(&cluster, SeatId(0), 1);
    assert!(cluster.send(waiting).is_empty());
    let mut effects = Vec::new();
    let depart = Record::Depart { seat: SeatId(0), incarnation: LIFE, term: Term(2) };
    cluster.shards[0].handle_order(&depart, &mut effects);
    assert!(matches!(&effects[..], [Effect::Reply { token: Token(1), reply }]
        if reply.refusal == Refusal::StaleIncarnation));
    let again = pull(&cluster, SeatId(0), 0);
    check_refused(&mut cluster, again, Refusal::StaleIncarnation, "taken out");
}

#[test]
fn with_clipping_a_reply_has_the_norms_of_the_last_mean_gradient() {
    let mut cluster = cluster(Mode::Bsp, 2, 100.0);
    let mut gradient = vec![1.0; 702];
    gradient[700..].fill(3.0);
    cluster.push(0, 0, 1, &gradient);
    cluster.push(1, 0, 1, &vec![1.0; 702]);
    let request = pull(&cluster, SeatId(0), 1);
    assert_eq!(cluster.ask(request).norms, [256.0, 256.0, 188.0, 2.0 * 2.0 * 2.0]);
}

#[test]
fn clipping_uses_the_norms_that_the_lowest_seat_sent() {
    let mut cluster = cluster(Mode::Bsp, 2, 2.0);
    for (seat, norms) in [(1, [1.0, 1.0]), (0, [16.0, 1.0])] {
        for mut frame in cluster.frames(seat, 0, 1, &[1.0; 702]) {
            frame.norms = norms.to_vec();
            cluster.ask(frame);
        }
    }
    let values = cluster.pull(0, 1);
    assert_eq!((values[0], values[701]), (0.5, 1.0)); // 2 / √16 for the first tensor
}
