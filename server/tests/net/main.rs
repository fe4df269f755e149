//! The server over real sockets on loopback: what workers, a coordinator and strangers see of it.

mod bench;

use bench::{Bench, LIFE, PATIENCE, TERM, ask, credentials, start, value};
use slackline_common::blame::Blame;
use slackline_common::ids::{Fingerprint, Incarnation, SeatId, Step, Term};
use slackline_common::job::Mode;
use slackline_common::quic::{Authority, connect, open_control};
use slackline_common::role::Role;
use slackline_common::wire::control::{
    DataHello, DataWelcome, Ended, FromServer, NO_SEAT, Phase, ToServer,
};
use slackline_common::wire::frame::{Refusal, ReplyKind, RequestKind};
use slackline_server::ServerError;
use std::time::Duration;
use tokio::time::timeout;

fn ended(ok: bool, stay: bool) -> ToServer {
    let blame = (!ok).then_some(Blame::Us);
    ToServer::Ended(Ended { ok, blame, reason: "the end".to_owned(), stay })
}

#[tokio::test]
async fn a_step_goes_up_and_the_sum_comes_down() {
    let mut bench = Bench::started(Mode::Bsp).await;
    let workers = [bench.worker(0).await, bench.worker(1).await];
    for step in 0..3 {
        for shard in [0, 1] {
            for (worker, gradient) in workers.iter().zip([1.0, 2.0]) {
                let push = worker.frame(RequestKind::Push, shard, step, gradient);
                let reply = worker.ask(&push).await;
                assert_eq!(reply.kind, ReplyKind::Ack, "{}", reply.sentence());
            }
        }
        for worker in &workers {
            let pull = worker.frame(RequestKind::Pull, 1, step + 1, 0.0);
            assert_eq!(value(&worker.ask(&pull).await), 3.0 * (step as f32 + 1.0));
        }
    }
    // The coordinator fetches the model over its own connection, without a seat.
    let mut pull = workers[0].frame(RequestKind::Pull, 0, 0, 0.0);
    pull.seat = NO_SEAT;
    assert_eq!(value(&ask(&bench.connection, &pull).await), 9.0);
    let push = workers[0].frame(RequestKind::Push, 0, 3, 1.0);
    let refused = ask(&bench.connection, &push).await;
    assert!(refused.sentence().contains("may only pull"), "{}", refused.sentence());
    bench.tell(ToServer::Finish).await;
    let FromServer::Final(report) = bench.hear().await else { panic!("no last figures") };
    assert_eq!(report.phase, Phase::Finished);
    let pushes: Vec<_> = report.shards.iter().map(|s| (s.version.0, s.pushes_applied)).collect();
    assert_eq!(pushes, [(3, 6), (3, 6)]);
    bench.tell(ended(true, false)).await;
    bench.outcome().await.unwrap();
}

#[tokio::test]
async fn a_pull_waits_for_the_slower_seat_and_a_departure_sets_it_free() {
    let mut bench = Bench::started(Mode::Bsp).await;
    let (fast, slow) = (bench.worker(0).await, bench.worker(1).await);
    for shard in [0, 1] {
        fast.ask(&fast.frame(RequestKind::Push, shard, 0, 5.0)).await;
    }
    let pull = fast.frame(RequestKind::Pull, 0, 1, 0.0);
    let (reply, ()) = tokio::join!(fast.ask(&pull), async {
        slow.leave().await;
        let term = Term(TERM.0 + 1);
        bench.tell(ToServer::Depart { seat: SeatId(1), incarnation: LIFE, term }).await;
    });
    assert_eq!(value(&reply), 5.0);
    let departed = FromServer::Departed { seat: SeatId(1), incarnation: LIFE, clock: Step(0) };
    assert_eq!(bench.hear().await, departed);
    let again = bench.greet(Bench::hello(1)).await.err().unwrap();
    assert!(again.contains("taken out"), "{again}");
    // A worker that knows the first term of the job only is still let in.
    fast.leave().await;
    bench.worker(0).await;
}

#[tokio::test]
async fn the_connection_of_a_seat_that_is_taken_out_is_closed_with_a_sentence() {
    let mut bench = Bench::started(Mode::Bsp).await;
    let (out, other) = (bench.worker(1).await, bench.worker(0).await);
    let term = Term(TERM.0 + 1);
    bench.tell(ToServer::Depart { seat: SeatId(1), incarnation: LIFE, term }).await;
    assert!(matches!(bench.hear().await, FromServer::Departed { .. }));
    let closed = timeout(PATIENCE, out.connection.closed()).await.unwrap().to_string();
    assert!(closed.contains("took seat 1 out of the job"), "{closed}");
    let reply = other.ask(&other.frame(RequestKind::Push, 0, 0, 1.0)).await;
    assert_eq!(reply.kind, ReplyKind::Ack);
}

#[tokio::test]
async fn garbage_closes_the_connection_it_came_over_and_no_other() {
    let bench = Bench::started(Mode::Bsp).await;
    let good = bench.worker(1).await;
    let mut frame = good.frame(RequestKind::Push, 0, 0, 1.0).encode_head();
    frame.extend_from_slice(&[0; 7]); // a body that is cut off
    for (bytes, word) in [
        (&b"GET / HTTP/1.1\r\nHost: example\r\n\r\n0123456789abcdef"[..], "47, 45"),
        (&[0xff; 100], "ff, ff"),
        (&frame, "ended after"),
    ] {
        let bad = bench.worker(0).await;
        bad.shout(bytes).await;
        let closed = timeout(PATIENCE, bad.connection.closed()).await.unwrap().to_string();
        assert!(closed.contains(word), "{closed:?} does not say {word:?}");
    }
    let reply = good.ask(&good.frame(RequestKind::Push, 0, 0, 1.0)).await;
    assert_eq!(reply.kind, ReplyKind::Ack);
    assert!(bench.connection.close_reason().is_none());
}

#[tokio::test]
async fn whoever_knows_another_job_layout_term_or_life_is_refused_with_one_sentence() {
    let bench = Bench::started(Mode::Bsp).await;
    let right = || Bench::hello(0);
    let other = Fingerprint::of(b"another");
    for (hello, words) in [
        (DataHello { term: Term(4), ..right() }, "the term differs: worker term 4, server term 5"),
        (DataHello { term: Term(6), ..right() }, "the term differs: worker term 6, server term 5"),
        (DataHello { layout: other, ..right() }, "the layout differs"),
        (DataHello { job: other, ..right() }, "the job differs"),
        (DataHello { incarnation: Incarnation(2), ..right() }, "in incarnation 3 now"),
        (DataHello { seat: SeatId(2), ..right() }, "seat 2 is not a seat of this job"),
    ] {
        let sentence = bench.greet(hello).await.err().unwrap();
        assert!(sentence.contains(words), "{sentence:?} does not say {words:?}");
    }
    bench.worker(0).await;
}

#[tokio::test]
async fn before_a_job_nobody_is_let_in() {
    let bench = Bench::new(Duration::from_secs(5), 30.0).await;
    let sentence = bench.greet(Bench::hello(0)).await.err().unwrap();
    assert!(sentence.contains("no job"), "{sentence}");
}

#[tokio::test]
async fn a_second_connection_of_a_living_worker_is_refused_and_of_a_dead_one_taken() {
    let bench = Bench::started(Mode::Bsp).await;
    let first = bench.worker(0).await;
    let sentence = bench.greet(Bench::hello(0)).await.err().unwrap();
    assert!(sentence.contains("another connection already"), "{sentence}");
    first.ask(&first.frame(RequestKind::Push, 0, 0, 1.0)).await;
    first.leave().await;
    bench.worker(0).await;
}

#[tokio::test]
async fn a_peer_that_connects_and_says_nothing_is_closed() {
    let bench = Bench::started(Mode::Bsp).await;
    let endpoint = bench.endpoint(Role::Worker);
    let silent = connect(&endpoint, &bench.address, Role::Server, PATIENCE).await.unwrap();
    let closed = timeout(PATIENCE, silent.closed()).await.unwrap().to_string();
    assert!(closed.contains("no control stream"), "{closed}");
}

#[tokio::test]
async fn a_peer_of_another_role_is_not_let_in() {
    let bench = Bench::started(Mode::Bsp).await;
    let endpoint = bench.endpoint(Role::Operator);
    if let Ok(connection) = connect(&endpoint, &bench.address, Role::Server, PATIENCE).await {
        let greeting = open_control::<DataHello, DataWelcome>(&connection).await;
        let Ok((mut sender, mut receiver)) = greeting else { return };
        drop(sender.send(&Bench::hello(0)).await);
        assert!(receiver.recv_within(PATIENCE, "welcome").await.is_err());
    }
}

#[tokio::test]
async fn pulls_of_a_closed_connection_are_cancelled() {
    let bench = Bench::started(Mode::Bsp).await;
    // More than a seat may have waiting, if the old ones stayed.
    for _ in 0..4 {
        let worker = bench.worker(0).await;
        for _ in 0..30 {
            let pull = worker.frame(RequestKind::Pull, 0, 1, 0.0);
            worker.shout(&pull.encode_head()).await;
        }
        // Streams come in order: when this is answered, the pulls wait.
        let reply = worker.ask(&worker.frame(RequestKind::Push, 1, 0, 1.0)).await;
        assert_eq!(reply.kind, ReplyKind::Ack, "{}", reply.sentence());
        worker.leave().await;
    }
    let worker = bench.worker(0).await;
    let far = worker.ask(&worker.frame(RequestKind::Pull, 0, 100, 0.0)).await;
    assert_eq!(far.refusal, Refusal::TooFarAhead); // asked before the number of waiting ones
    let other = bench.worker(1).await;
    let pull = worker.frame(RequestKind::Pull, 0, 1, 0.0);
    let (reply, ()) = tokio::join!(worker.ask(&pull), async {
        for worker in [&worker, &other] {
            worker.ask(&worker.frame(RequestKind::Push, 0, 0, 1.0)).await;
        }
    });
    assert_eq!(value(&reply), 2.0);
}

#[tokio::test]
async fn many_released_pulls_of_one_worker_all_arrive() {
    let mode = Mode::Asp { scale_by_staleness: false };
    let mut bench = Bench::new(Duration::from_secs(5), 30.0).await;
    bench.tell(ToServer::Start(start(mode))).await;
    assert_eq!(bench.hear().await, FromServer::Ready);
    let worker = bench.worker_in(0, mode).await;
    for shard in [0, 1] {
        worker.ask(&worker.frame(RequestKind::Init, shard, 0, 4.0)).await;
    }
    bench.tell(ToServer::CommitInit { seat: SeatId(0) }).await;
    assert_eq!(bench.hear().await, FromServer::InitCommitted);
    let mut pulls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (connection, pull) =
            (worker.connection.clone(), worker.frame(RequestKind::Pull, 0, 0, 0.0));
        pulls.spawn(async move { ask(&connection, &pull).await });
    }
    while let Some(reply) = pulls.join_next().await {
        assert_eq!(value(&reply.unwrap()), 4.0);
    }
}

#[tokio::test]
async fn a_nan_is_told_to_the_coordinator_by_name() {
    let mut bench = Bench::started(Mode::Bsp).await;
    let worker = bench.worker(1).await;
    let reply = worker.ask(&worker.frame(RequestKind::Push, 0, 0, f32::NAN)).await;
    assert_eq!(reply.kind, ReplyKind::Ack);
    let FromServer::Event(line) = bench.hear().await else { panic!("no event") };
    assert!(line.contains("seat 1") && line.contains("\"w\"") && line.contains("step 0"), "{line}");
}

#[tokio::test]
async fn a_frame_for_another_seat_is_refused() {
    let bench = Bench::started(Mode::Bsp).await;
    let worker = bench.worker(0).await;
    let mut push = worker.frame(RequestKind::Push, 0, 0, 1.0);
    push.seat = SeatId(1);
    let reply = worker.ask(&push).await;
    assert_eq!(reply.refusal, Refusal::StaleIncarnation);
    let mut lost = worker.frame(RequestKind::Push, 0, 0, 1.0);
    lost.shard = slackline_common::ids::ShardId(7);
    assert_eq!(worker.ask(&lost).await.refusal, Refusal::WrongShard);
}

#[tokio::test]
async fn heartbeats_carry_clocks() {
    let mut bench = Bench::new(Duration::from_millis(200), 30.0).await;
    bench.start(Mode::Bsp).await;
    let worker = bench.worker(0).await;
    worker.ask(&worker.frame(RequestKind::Push, 0, 0, 1.0)).await;
    let clocks = [(SeatId(0), Step(1)), (SeatId(1), Step(0))];
    timeout(PATIENCE, async {
        loop {
            let FromServer::Heartbeat(report) = bench.heartbeat().await else { continue };
            if report.phase == Phase::Serving && report.shards[0].clocks == clocks {
                return;
            }
        }
    })
    .await
    .expect("a heartbeat with the new clock");
}

#[tokio::test]
async fn without_a_coordinator_training_goes_on_until_the_grace_is_over() {
    let mut bench = Bench::new(Duration::from_millis(200), 2.0).await;
    bench.start(Mode::Bsp).await;
    let worker = bench.worker(0).await;
    bench.alive.send_replace(false);
    let reply = worker.ask(&worker.frame(RequestKind::Push, 0, 0, 1.0)).await;
    assert_eq!(reply.kind, ReplyKind::Ack);
    let error = bench.outcome().await.unwrap_err();
    assert!(matches!(error, ServerError::CoordinatorLost { .. }), "{error}");
    assert_eq!(error.blame(), Blame::Network);
    assert!(error.to_string().contains("last heard"), "{error}");
    // The worker hears why.
    let closed = timeout(PATIENCE, worker.connection.closed()).await.unwrap().to_string();
    assert!(closed.contains("coordinator") && closed.contains("missing"), "{closed}");
}

#[tokio::test]
async fn a_coordinator_that_nobody_runs_is_named() {
    let authority = Authority::create("test").unwrap();
    let own = credentials(&authority, Role::Server);
    // Port 9 (discard) is nobody's here.
    let config = bench::config("127.0.0.1:9".to_owned(), 0.3);
    let error = slackline_server::run_with(config, &own, std::future::pending()).await.unwrap_err();
    assert_eq!(error.blame(), Blame::Network);
    let line = error.to_string();
    assert!(line.contains("coordinator 127.0.0.1:9: nobody answers (waited"), "{line}");
}

#[tokio::test]
async fn a_failed_job_ends_the_server_with_its_reason() {
    let bench = Bench::started(Mode::Bsp).await;
    bench.tell(ended(false, false)).await;
    let error = bench.outcome().await.unwrap_err();
    assert_eq!((error.blame(), error.to_string()), (Blame::Us, "the job ended: the end".into()));
}

#[tokio::test]
async fn a_server_that_stays_takes_the_next_job() {
    let mut bench = Bench::started(Mode::Bsp).await;
    let worker = bench.worker(0).await;
    bench.tell(ended(true, true)).await;
    timeout(PATIENCE, worker.connection.closed()).await.unwrap();
    bench.start(Mode::Bsp).await;
    let worker = bench.worker(1).await;
    let mut pull = worker.frame(RequestKind::Pull, 0, 0, 0.0);
    assert_eq!(value(&worker.ask(&pull).await), 0.0);
    pull.step = Step(1);
    bench.tell(ended(true, false)).await;
    bench.outcome().await.unwrap();
}

#[tokio::test]
async fn a_signal_is_told_to_the_coordinator_and_ends_in_good_order() {
    let mut bench = Bench::started(Mode::Bsp).await;
    bench.shutdown.take().unwrap().send(()).unwrap();
    assert_eq!(bench.hear().await, FromServer::Failed("server stopped by signal".to_owned()));
    bench.outcome().await.unwrap();
}

#[tokio::test]
async fn first_values_that_are_not_there_are_refused_and_another_seats_are_taken() {
    let mut bench = Bench::new(Duration::from_secs(5), 30.0).await;
    bench.tell(ToServer::Start(start(Mode::Bsp))).await;
    assert_eq!(bench.hear().await, FromServer::Ready);
    let workers = [bench.worker(0).await, bench.worker(1).await];
    // Seat 1 has staged on one of two shards, seat 0 on both.
    for (worker, shard) in [(1, 0), (0, 0), (0, 1)] {
        let init = workers[worker].frame(RequestKind::Init, shard, 0, worker as f32 + 3.0);
        assert_eq!(workers[worker].ask(&init).await.sentence(), "");
    }
    let seat = SeatId(1);
    for order in [ToServer::CheckInit { seat }, ToServer::CommitInit { seat }] {
        bench.tell(order).await;
        let FromServer::InitRefused { seat, sentence } = bench.hear().await else {
            panic!("not refused")
        };
        assert_eq!(seat, SeatId(1));
        assert!(sentence.contains("seat 1 never sent first values"), "{sentence}");
    }
    let seat = SeatId(0);
    bench.tell(ToServer::CheckInit { seat }).await;
    assert_eq!(bench.hear().await, FromServer::InitChecked { seat });
    // A seat that leaves meanwhile leaves its values.
    for shard in [0, 1] {
        workers[0].ask(&workers[0].frame(RequestKind::Leave, shard, 0, 0.0)).await;
    }
    bench.tell(ToServer::CommitInit { seat }).await;
    assert_eq!(bench.hear().await, FromServer::InitCommitted);
    for shard in [0, 1] {
        let pull = workers[1].frame(RequestKind::Pull, shard, 0, 0.0);
        assert_eq!(value(&workers[1].ask(&pull).await), 3.0);
    }
}
