#![allow(clippy::cast_possible_truncation)] // small numbers of the tests' own

use super::*;
use crate::core::effects::Outcome;
use slackline_common::blame::Blame;
use slackline_common::codec::{CodecSpec, ValueFormat};
use slackline_common::ids::{Incarnation, ServerId, ShardId, Step, Version};
use slackline_common::job::{
    Clip, Compress, CompressRule, DataFormat, DataSource, DataSpec, Direction, Evaluate, Feedback,
    Length, Local, Mode, OptimizerSpec, Ramp, Reduce, Schedule, Wire,
};
use slackline_common::layout::{Init, Layout, TensorSpec};
use slackline_common::lease::Lease;
use slackline_common::model::ModelSpec;
use slackline_common::wire::control::{
    Evaluated, Hello, Phase, ServerReport, ShardReport, WorkerReport,
};

/// A coordinator, its members by name, and what each was told and not yet asked about.
struct World {
    core: Core,
    now: Millis,
    told: Vec<(MemberId, ToWorker)>,
    told_servers: Vec<(MemberId, ToServer)>,
    events: Vec<(bool, &'static str, String)>,
    closed: Vec<MemberId>,
    fetches: usize,
    outcome: Option<Outcome>,
    ended: Option<Ended>,
}

fn job(workers: u16, servers: u16, mode: Mode) -> Box<Job> {
    Box::new(Job {
        name: "test".to_owned(),
        mode,
        workers,
        servers,
        seed: 1,
        length: Length::Epochs(1),
        batch: 4,
        reduce: Reduce::Mean,
        model: ModelSpec::Softmax { inputs: 4, classes: 2 },
        data: Some(DataSpec {
            format: DataFormat::Idx,
            train: DataSource::Embedded("digits-train".to_owned()),
            test: Some(DataSource::Embedded("digits-test".to_owned())),
            scale: 1.0,
            mean: 0.0,
            deviation: 1.0,
            shuffle: true,
        }),
        optimizer: OptimizerSpec::Sgd { learning_rate: 0.1, weight_decay: 0.0 },
        schedule: Schedule::default(),
        clip: Clip::default(),
        wire: Wire::default(),
        compress: Compress::default(),
        feedback: Feedback::default(),
        ramp: Ramp::default(),
        local: None,
        in_flight: 1,
        evaluate: Evaluate::default(),
    })
}

fn external(workers: u16, servers: u16) -> Box<Job> {
    let job = job(workers, servers, Mode::Bsp);
    Box::new(Job { model: ModelSpec::External, data: None, ..*job })
}

fn layout(name: &str) -> Layout {
    Layout::new(vec![TensorSpec::parameter(name, &[2, 3], Init::External)]).unwrap()
}

impl World {
    fn new() -> Self {
        let settings = Settings {
            lease: Millis(5000),
            start_timeout: Millis(10_000),
            stay: false,
            run_id: "r".to_owned(),
            started_unix_millis: 1_796_040_180_000, // 12:03:00 UTC
        };
        Self {
            core: Core::new(settings),
            now: Millis(0),
            told: Vec::new(),
            told_servers: Vec::new(),
            events: Vec::new(),
            closed: Vec::new(),
            fetches: 0,
            outcome: None,
            ended: None,
        }
    }

    fn settle(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::ToWorker(_, ToWorker::Pulse) | Effect::ToServer(_, ToServer::Pulse) => {}
                Effect::ToWorker(id, message) => self.told.push((id, message)),
                Effect::ToServer(id, message) => self.told_servers.push((id, message)),
                Effect::Close(id, _) => self.closed.push(id),
                Effect::Event(event) => self.events.push((event.warning, event.kind, event.text)),
                Effect::Progress(_) => {}
                Effect::FetchModel(_) => self.fetches += 1,
                Effect::Conclude(outcome) => self.outcome = Some(*outcome),
                Effect::Ended(ended) => self.ended = Some(ended),
            }
        }
    }

    fn say(&mut self, worker: u64, message: FromWorker) {
        self.core.handle_worker(self.now, MemberId(worker), "10.0.0.1:9", message);
        self.settle();
    }

    fn server_says(&mut self, server: u64, message: FromServer) {
        self.core.handle_server(self.now, MemberId(server), "10.0.0.2:9", message);
        self.settle();
    }

    fn submit(&mut self, job: Box<Job>) {
        self.core.check_submit(&job).unwrap();
        self.core.handle_submit(self.now, job);
        self.settle();
    }

    /// A worker called `w<id>`.
    fn worker(&mut self, id: u64, seat: Option<u16>) {
        let hello = Hello { name: format!("w{id}"), build: "b".to_owned() };
        self.say(id, FromWorker::Hello { hello, seat: seat.map(SeatId) });
    }

    /// A server called `s<id>` at port `id`.
    fn server(&mut self, id: u64) {
        let hello = Hello { name: format!("s{id}"), build: "b".to_owned() };
        let advertise = format!("127.0.0.1:{id}");
        self.server_says(id, FromServer::Hello { hello, advertise, shards: 1 });
    }

    fn pass(&mut self, millis: u64) {
        for part in (0..millis).step_by(500) {
            self.now = self.now.plus(Millis((millis - part).min(500)));
            self.core.handle_tick(self.now);
            self.settle();
        }
    }

    /// The next thing a worker was told.
    fn heard(&mut self, worker: u64) -> Option<ToWorker> {
        let at = self.told.iter().position(|(id, _)| *id == MemberId(worker))?;
        Some(self.told.remove(at).1)
    }

    fn server_heard(&mut self, server: u64) -> Option<ToServer> {
        let at = self.told_servers.iter().position(|(id, _)| *id == MemberId(server))?;
        Some(self.told_servers.remove(at).1)
    }

    fn lease(&mut self, worker: u64) -> Lease {
        self.say(worker, FromWorker::LeaseRequest);
        match self.heard(worker) {
            Some(ToWorker::Lease(lease)) => lease,
            other => panic!("no lease for {worker}: {other:?}"),
        }
    }

    /// Workers `1..=workers` and servers `101..`, training.
    fn training(&mut self, job: Box<Job>, samples: u64) {
        let (workers, servers) = (u64::from(job.workers), u64::from(job.servers));
        (101..101 + servers).for_each(|id| self.server(id));
        (1..=workers).for_each(|id| self.worker(id, None));
        self.submit(job);
        (1..=workers).for_each(|id| self.say(id, FromWorker::DataReady { samples }));
        (101..101 + servers).for_each(|id| self.server_says(id, FromServer::Ready));
        self.told.clear();
        self.told_servers.clear();
        assert_eq!(self.core.phase_word(), "training");
    }

    fn finished(&mut self, worker: u64, clock: u64) {
        let report = WorkerReport {
            clock: Step(clock),
            loss: worker as f32,
            payload_bytes_up: 10,
            wire_bytes_down: 7,
            ..WorkerReport::default()
        };
        self.say(worker, FromWorker::Finished(report));
    }

    fn last_event(&self, kind: &str) -> &str {
        let event = self.events.iter().rev().find(|(_, k, _)| *k == kind);
        event.map_or("", |(_, _, text)| text)
    }
}

fn figures(version: u64, samples: u64) -> ServerReport {
    let shard = ShardReport {
        shard: ShardId(0),
        version: Version(version),
        samples,
        pushes_applied: 9,
        max_staleness: 2,
        ..ShardReport::default()
    };
    ServerReport { phase: Phase::Serving, shards: vec![shard] }
}

#[test]
fn a_whole_job_goes_from_hello_to_ended() {
    let mut world = World::new();
    world.training(job(2, 1, Mode::Bsp), 12);
    for worker in [1, 2] {
        let lease = world.lease(worker);
        assert_eq!((lease.batches, lease.stride, lease.first), (2, 8, 4 * (worker - 1)));
        world.say(worker, FromWorker::LeaseStarted { lease: lease.id, at: Step(0) });
    }
    world.say(1, FromWorker::LeaseRequest);
    assert_eq!(world.heard(1), Some(ToWorker::Idle));
    world.say(2, FromWorker::LeaseRequest);
    assert_eq!(world.heard(1), Some(ToWorker::NoMoreWork));
    assert_eq!(world.heard(2), Some(ToWorker::NoMoreWork));
    world.finished(1, 2);
    world.pass(1000);
    world.finished(2, 2);
    assert_eq!(world.heard(1), Some(ToWorker::Evaluate));
    let test = Evaluated { version: Version(2), loss: 0.5, accuracy: 0.9, is_final: true };
    world.say(2, FromWorker::Evaluated(test)); // nobody asked it
    assert_eq!(world.fetches, 0);
    world.say(1, FromWorker::Evaluated(test));
    assert_eq!(world.fetches, 1);
    world.core.handle_model(world.now, Ok(()));
    world.settle();
    assert_eq!(world.server_heard(101), Some(ToServer::Finish));
    world.server_says(101, FromServer::Final(figures(2, 12)));
    let outcome = world.outcome.clone().unwrap();
    assert_eq!((outcome.ok, outcome.steps, outcome.samples), (true, 2, 12));
    assert_eq!((outcome.training, outcome.final_loss), (Millis(1000), 1.5));
    assert_eq!((outcome.totals.payload_bytes_up, outcome.totals.wire_bytes_down), (20, 14));
    assert_eq!((outcome.pushes_applied, outcome.max_staleness), (9, 2));
    assert_eq!(outcome.test, Some(test));
    world.core.handle_concluded(world.now, Ok(()));
    world.settle();
    let ended = Ended { ok: true, blame: None, reason: "done at step 2".to_owned(), stay: false };
    assert_eq!(world.heard(1), Some(ToWorker::Ended(ended.clone())));
    assert_eq!(world.server_heard(101), Some(ToServer::Ended(ended.clone())));
    assert_eq!((world.ended, world.core.is_over()), (Some(ended), true));
}

#[test]
fn nothing_starts_before_all_are_present_and_the_lines_say_who_is_missing() {
    let mut world = World::new();
    world.submit(job(4, 2, Mode::Bsp));
    assert_eq!(
        world.last_event("waiting"),
        "waiting for 2 of 2 servers and 4 of 4 workers to join (0 s)"
    );
    world.server(101);
    world.worker(1, None);
    world.worker(2, Some(9));
    for _ in 0..6 {
        world.pass(1000);
        world.say(1, FromWorker::Heartbeat(WorkerReport::default()));
        world.say(2, FromWorker::Heartbeat(WorkerReport::default()));
        world.server_says(101, FromServer::Heartbeat(ServerReport::default()));
    }
    let missing = world.core.missing(world.now);
    assert_eq!(
        missing,
        [
            "waiting for 1 of 2 servers and 3 of 4 workers to join (6 s)",
            "w2 at 10.0.0.1:9 insists on seat 9; the job has seats 0 to 3"
        ]
    );
    assert_eq!(world.core.status(world.now).missing, missing);
    assert_eq!(world.heard(2), Some(ToWorker::Welcome(world.core.welcome())));
    assert_eq!(world.heard(2), None);
    assert!(world.events.iter().all(|(warning, kind, _)| *kind != "waiting" || !warning));
    world.pass(3999);
    assert!(world.events.iter().all(|(warning, kind, _)| *kind != "waiting" || !warning));
    world.pass(1);
    assert!(world.events.iter().any(|(warning, kind, _)| *kind == "waiting" && *warning));
}

#[test]
fn who_insists_gets_the_seat_and_more_workers_than_seats_wait() {
    let mut world = World::new();
    world.worker(1, None);
    world.worker(2, Some(0));
    world.worker(3, None);
    world.worker(4, Some(0));
    assert!(matches!(world.heard(4), Some(ToWorker::Refused(line)) if line.contains("held by w2")));
    assert_eq!(world.closed, [MemberId(4)]);
    world.server(101);
    world.submit(job(2, 1, Mode::Bsp));
    let seat = |world: &mut World, worker| {
        world.heard(worker); // welcome
        match world.heard(worker) {
            Some(ToWorker::Job { seat, .. }) => Some(seat.0),
            None => None,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        [seat(&mut world, 1), seat(&mut world, 2), seat(&mut world, 3)],
        [Some(1), Some(0), None]
    );
    // A seat that comes free before training goes to who waits.
    world.core.handle_gone(world.now, MemberId(1), "reset".to_owned());
    world.settle();
    assert!(matches!(
        world.heard(3),
        Some(ToWorker::Job { seat: SeatId(1), incarnation: Incarnation(1), .. })
    ));
}

#[test]
fn workers_with_different_data_are_refused_with_both_numbers() {
    let mut world = World::new();
    world.server(101);
    (1..=2).for_each(|id| world.worker(id, None));
    world.submit(job(2, 1, Mode::Bsp));
    world.say(1, FromWorker::DataReady { samples: 100 });
    world.told.clear();
    world.say(2, FromWorker::DataReady { samples: 99 });
    let Some(ToWorker::Refused(line)) = world.heard(2) else { panic!("not refused") };
    assert_eq!(
        line,
        "seat 1 has 99 training samples, seat 0 (w1 at 10.0.0.1:9) has 100: give every worker the \
         same files"
    );
    assert_eq!(world.core.phase_word(), "gathering");
    world.worker(3, None);
    world.say(3, FromWorker::DataReady { samples: 100 });
    assert!(matches!(world.server_heard(101), Some(ToServer::Welcome(_))));
    let Some(ToServer::Start(start)) = world.server_heard(101) else { panic!("no start") };
    assert_eq!(start.seats, [(SeatId(0), Incarnation(0)), (SeatId(1), Incarnation(1))]);
}

#[test]
fn a_lost_worker_is_taken_out_and_its_batches_go_to_the_others() {
    let mut world = World::new();
    world.training(job(2, 2, Mode::Ssp { staleness: 1 }), 16);
    let first = world.lease(1);
    let second = world.lease(2);
    world.say(1, FromWorker::LeaseStarted { lease: first.id, at: Step(0) });
    world.say(2, FromWorker::LeaseStarted { lease: second.id, at: Step(0) });
    let report = WorkerReport { loss: 9.0, payload_bytes_up: 3, ..WorkerReport::default() };
    world.say(2, FromWorker::Heartbeat(report));
    let third = world.lease(1);
    let fourth = world.lease(1);
    assert_eq!([first.first, second.first, third.first, fourth.first], [0, 4, 8, 12]);
    world.say(1, FromWorker::LeaseRequest);
    assert_eq!(world.heard(1), Some(ToWorker::Idle));
    world.core.handle_gone(world.now, MemberId(2), "reset".to_owned());
    world.settle();
    let depart = ToServer::Depart { seat: SeatId(1), incarnation: Incarnation(0), term: Term(2) };
    assert_eq!(world.server_heard(101), Some(depart.clone()));
    assert_eq!(world.server_heard(102), Some(depart));
    let departed =
        FromServer::Departed { seat: SeatId(1), incarnation: Incarnation(0), clock: Step(0) };
    world.server_says(101, departed.clone());
    assert_eq!(world.heard(1), None); // the other server may have seen more
    assert_eq!(
        world.core.missing(world.now),
        ["waiting for server 1 (127.0.0.1:102, s102) to take out seat 1"]
    );
    world.server_says(102, departed);
    assert!(matches!(world.heard(1), Some(ToWorker::Lease(lease)) if lease.first == 4));
    world.say(1, FromWorker::LeaseRequest);
    assert_eq!(world.heard(1), Some(ToWorker::NoMoreWork));
    // The loss of a seat that was lost is old; its bytes were sent all the same.
    world.finished(1, 5);
    let progress = world.core.progress(world.now, None);
    assert_eq!((progress.loss, progress.totals.payload_bytes_up), (1.0, 13));
}

#[test]
fn a_job_without_workers_left_fails_and_says_who_was_the_last() {
    let mut world = World::new();
    world.training(job(1, 1, Mode::Bsp), 16);
    world.pass(4000);
    world.server_says(101, FromServer::Heartbeat(figures(3, 9)));
    world.pass(1001);
    assert_eq!(world.closed, [MemberId(1)]);
    let clock = Step(0);
    world.server_says(
        101,
        FromServer::Departed { seat: SeatId(0), incarnation: Incarnation(0), clock },
    );
    let outcome = world.outcome.clone().unwrap();
    assert!(!outcome.ok);
    assert_eq!(
        outcome.reason,
        "no worker is left; the last: seat 0 (w1 at 10.0.0.1:9) missing since 12:03:00 UTC, last \
         heard 5.0 s ago while waiting; step 0"
    );
}

#[test]
fn a_lost_server_ends_the_job_with_its_number_address_and_last_phase() {
    let mut world = World::new();
    world.training(job(1, 2, Mode::Bsp), 16);
    world.server_says(
        102,
        FromServer::Heartbeat(ServerReport { phase: Phase::Serving, shards: Vec::new() }),
    );
    for _ in 0..6 {
        world.pass(1000);
        world.say(1, FromWorker::Heartbeat(WorkerReport::default()));
        world.server_says(101, FromServer::Heartbeat(figures(123, 9)));
    }
    let reason = "server 1 (127.0.0.1:102, s102) missing since 12:03:00 UTC, last heard 5.5 s ago \
                  while serving; step 123";
    assert_eq!(world.outcome.clone().unwrap().reason, reason);
    world.core.handle_concluded(world.now, Ok(()));
    world.settle();
    let ended =
        Ended { ok: false, blame: Some(Blame::Network), reason: reason.to_owned(), stay: false };
    assert_eq!(world.heard(1), Some(ToWorker::Ended(ended)));
}

#[test]
fn the_first_layout_wins_and_another_is_refused_at_its_first_difference() {
    let mut world = World::new();
    world.server(101);
    (1..=2).for_each(|id| world.worker(id, None));
    world.submit(external(2, 1));
    world.told.clear();
    world.say(1, FromWorker::ProposeLayout(layout("a")));
    world.say(2, FromWorker::ProposeLayout(layout("b")));
    let Some(ToWorker::Refused(line)) = world.heard(2) else { panic!("not refused") };
    assert!(
        line.ends_with(
            "tensor 0 is \"b\" [2, 3] f32 Parameter, expected \"a\" [2, 3] f32 Parameter"
        ),
        "{line}"
    );
}

#[test]
fn the_first_values_staged_win_and_everybody_hears_who_brought_them() {
    let mut world = World::new();
    world.server(102);
    world.server(101);
    (1..=2).for_each(|id| world.worker(id, None));
    world.submit(external(2, 2));
    world.told_servers.clear();
    (1..=2).for_each(|id| world.say(id, FromWorker::ProposeLayout(layout("a"))));
    let Some(ToServer::Start(start)) = world.server_heard(101) else { panic!("no start") };
    assert_eq!((start.server, start.servers, start.shards), (ServerId(0), 2, 2));
    world.told_servers.clear();
    world.told.clear();
    [101, 102].iter().for_each(|id| world.server_says(*id, FromServer::Ready));
    let Some(ToWorker::Start(start)) = world.heard(1) else { panic!("no start") };
    assert_eq!(start.servers, ["127.0.0.1:101", "127.0.0.1:102"]);
    world.heard(2);
    world.say(2, FromWorker::InitStaged);
    let check = ToServer::CheckInit { seat: SeatId(1) };
    for server in [101, 102] {
        assert_eq!(world.server_heard(server), Some(check.clone()));
        assert_eq!(world.server_heard(server), None);
        world.server_says(server, FromServer::InitChecked { seat: SeatId(1) });
    }
    let commit = ToServer::CommitInit { seat: SeatId(1) };
    assert_eq!(world.server_heard(101), Some(commit.clone()));
    assert_eq!(world.server_heard(102), Some(commit));
    world.say(1, FromWorker::InitStaged);
    world.server_says(101, FromServer::InitCommitted);
    assert_eq!(world.heard(1), None);
    world.server_says(102, FromServer::InitCommitted);
    let initialised = ToWorker::Initialised { winner: SeatId(1) };
    assert_eq!(world.heard(1), Some(initialised.clone()));
    assert_eq!(world.heard(2), Some(initialised));
    world.say(1, FromWorker::Barrier(1));
    assert_eq!(world.heard(1), None);
    world.say(2, FromWorker::Barrier(1));
    assert_eq!(world.heard(1), Some(ToWorker::BarrierPassed(1)));
    assert_eq!(world.heard(2), Some(ToWorker::BarrierPassed(1)));
    // A seat that finishes holds nobody at a barrier; the job ends with the last.
    world.say(1, FromWorker::Barrier(2));
    world.finished(2, 1);
    assert_eq!(world.heard(1), Some(ToWorker::BarrierPassed(2)));
    world.finished(1, 1);
    assert_eq!(world.fetches, 1);
}

#[test]
fn a_seat_whose_first_values_a_server_does_not_have_is_refused_and_the_next_ones_count() {
    let mut world = World::new();
    [101, 102].iter().for_each(|id| world.server(*id));
    (1..=3).for_each(|id| world.worker(id, None));
    world.submit(external(3, 2));
    (1..=3).for_each(|id| world.say(id, FromWorker::ProposeLayout(layout("a"))));
    [101, 102].iter().for_each(|id| world.server_says(*id, FromServer::Ready));
    world.told.clear();
    world.told_servers.clear();
    let check = |seat| Some(ToServer::CheckInit { seat: SeatId(seat) });
    world.say(1, FromWorker::InitStaged); // a false word
    world.say(1, FromWorker::InitStaged);
    assert_eq!((world.server_heard(101), world.server_heard(102)), (check(0), check(0)));
    world.server_says(101, FromServer::InitChecked { seat: SeatId(0) });
    let sentence = "seat 0 never sent first values for block 1".to_owned();
    world.server_says(102, FromServer::InitRefused { seat: SeatId(0), sentence });
    let Some(ToWorker::Refused(line)) = world.heard(1) else { panic!("not refused") };
    assert_eq!(
        line,
        "seat 0 (w1 at 10.0.0.1:9) says that its first values are staged, and server 1 \
         (127.0.0.1:102, s102) does not have them: seat 0 never sent first values for block 1"
    );
    for server in [101, 102] {
        let told = world.server_heard(server);
        assert!(matches!(told, Some(ToServer::Depart { seat: SeatId(0), .. })), "{told:?}");
        assert_eq!(world.server_heard(server), None, "nobody has staged");
    }
    // The next one goes before it is chosen for good, the one after it is chosen.
    world.say(2, FromWorker::InitStaged);
    world.say(3, FromWorker::InitStaged);
    assert_eq!((world.server_heard(101), world.server_heard(102)), (check(1), check(1)));
    world.core.handle_gone(world.now, MemberId(2), "reset".to_owned());
    world.settle();
    for server in [101, 102] {
        let told = world.server_heard(server);
        assert!(matches!(told, Some(ToServer::Depart { seat: SeatId(1), .. })), "{told:?}");
        assert_eq!(world.server_heard(server), check(2));
        world.server_says(server, FromServer::InitChecked { seat: SeatId(1) }); // of old
        world.server_says(server, FromServer::InitChecked { seat: SeatId(2) });
    }
    for server in [101, 102] {
        assert_eq!(world.server_heard(server), Some(ToServer::CommitInit { seat: SeatId(2) }));
        world.server_says(server, FromServer::InitCommitted);
    }
    assert_eq!(world.heard(3), Some(ToWorker::Initialised { winner: SeatId(2) }));
    assert_eq!((world.outcome.is_none(), world.core.phase_word()), (true, "training"));
}

#[test]
fn a_stop_lets_workers_finish_and_keeps_the_model() {
    let mut world = World::new();
    world.training(job(2, 1, Mode::Asp { scale_by_staleness: false }), 1000);
    world.lease(1);
    world.core.handle_stop(world.now, "the operator").unwrap();
    world.settle();
    assert_eq!(world.heard(1), Some(ToWorker::NoMoreWork));
    assert_eq!(world.heard(2), Some(ToWorker::NoMoreWork));
    assert_eq!(
        world.core.missing(world.now)[0],
        "waiting for seat 0 (w1 at 10.0.0.1:9) to finish (0.0 s; waiting, last heard 0.0 s ago)"
    );
    [1, 2].iter().for_each(|worker| world.finished(*worker, 3));
    world.core.handle_gone(world.now, MemberId(1), "done".to_owned());
    world.settle();
    assert_eq!(world.last_event("gone"), "seat 0 (w1 at 10.0.0.1:9) has finished and left");
    assert_eq!(world.heard(1), Some(ToWorker::Evaluate));
    assert_eq!(world.heard(2), Some(ToWorker::Evaluate)); // the first one is gone
    world.core.handle_gone(world.now, MemberId(2), "done".to_owned());
    world.settle();
    assert_eq!(world.fetches, 1);
    world.core.handle_model(world.now, Ok(()));
    world.server_says(101, FromServer::Final(figures(0, 16)));
    let outcome = world.outcome.clone().unwrap();
    assert_eq!((outcome.ok, outcome.stopped, outcome.steps), (true, true, 2));
    assert_eq!(outcome.reason, "stopped by the operator at step 2");
}

#[test]
fn a_stopped_job_ends_although_its_seats_never_leave() {
    let mut world = World::new();
    world.training(job(2, 1, Mode::Bsp), 1000);
    world.core.handle_stop(world.now, "the operator").unwrap();
    world.settle();
    for _ in 0..5 {
        world.pass(1000);
        world.say(1, FromWorker::Heartbeat(WorkerReport::default()));
        world.say(2, FromWorker::Heartbeat(WorkerReport::default()));
        world.server_says(101, FromServer::Heartbeat(figures(2, 16)));
    }
    assert_eq!(world.server_heard(101), None);
    world.pass(500);
    for (worker, seat) in [(1, 0), (2, 1)] {
        assert_eq!(world.heard(worker), Some(ToWorker::NoMoreWork));
        let Some(ToWorker::Refused(line)) = world.heard(worker) else { panic!("not taken out") };
        let expected = format!(
            "the job was stopped by the operator and seat {seat} (w{worker} at 10.0.0.1:9) did not \
             leave within 5.0 s: it is taken out"
        );
        assert_eq!(line, expected);
        assert!(matches!(world.server_heard(101), Some(ToServer::Depart { .. })));
    }
    for seat in [SeatId(0), SeatId(1)] {
        let (incarnation, clock) = (Incarnation(0), Step(2));
        world.server_says(101, FromServer::Departed { seat, incarnation, clock });
    }
    assert_eq!(world.fetches, 1);
    world.core.handle_model(world.now, Ok(()));
    world.server_says(101, FromServer::Final(figures(2, 16)));
    let outcome = world.outcome.clone().unwrap();
    assert_eq!((outcome.ok, outcome.stopped, outcome.steps), (true, true, 2));
}

#[test]
fn files_that_cannot_be_written_make_the_job_fail_with_their_sentence() {
    let mut world = World::new();
    world.core.settings.stay = true;
    world.submit(job(1, 1, Mode::Bsp));
    world.core.handle_stop(world.now, "the operator").unwrap();
    world.settle();
    world.core.handle_concluded(world.now, Err("summary.json: no space left".to_owned()));
    world.settle();
    let ended = world.ended.clone().unwrap();
    assert_eq!(
        (ended.ok, ended.reason.as_str()),
        (false, "stopped by the operator before training began; summary.json: no space left")
    );
    assert!(!world.core.is_over());
    assert_eq!(world.core.check_submit(&job(1, 1, Mode::Bsp)), Ok(()));
}

#[test]
fn a_job_that_breaks_a_rule_is_refused() {
    let world = World::new();
    let check = |change: &dyn Fn(&mut Job), part: &str| {
        let mut job = job(2, 1, Mode::Bsp);
        change(&mut job);
        let line = world.core.check_submit(&job).unwrap_err();
        assert!(line.contains(part), "{line:?} does not say {part:?}");
    };
    check(&|job| job.name = "../etc".to_owned(), "\"../etc\" is refused");
    check(&|job| job.name = String::new(), "1 to 128 letters");
    check(&|job| job.workers = 0, "workers is 0; 1 to 1024");
    check(&|job| job.servers = 999, "servers is 999; 1 to 256");
    check(&|job| job.batch = 0, "batch is 0");
    check(&|job| job.mode = Mode::Ssp { staleness: u64::MAX }, "staleness");
    check(&|job| job.in_flight = 0, "steps in flight is 0; 1 to 32");
    let sign = CompressRule {
        pattern: "*".to_owned(),
        direction: Direction::Both,
        elements_min: 0,
        codec: CodecSpec::Sign,
    };
    let compress = |job: &mut Job, codec| {
        job.compress = Compress::Rules(vec![CompressRule { codec, ..sign.clone() }]);
    };
    check(&|job| job.compress = Compress::Rules(vec![sign.clone(); 257]), "compression is 257");
    let values = ValueFormat::F32;
    check(&|job| compress(job, CodecSpec::RandomK { density: f32::NAN, values }), "density is NaN");
    check(&|job| compress(job, CodecSpec::TwoBit { threshold: 0.0 }), "threshold is 0");
    let local = |steps, fragments, delay| {
        let inner = OptimizerSpec::Sgd { learning_rate: 0.1, weight_decay: 0.0 };
        Some(Local { steps, inner, begin_step: 0, fragments, delay, mix: 0.0, anchor: None })
    };
    check(&|job| job.local = local(0, 1, 0), "local steps of a round is 0");
    check(&|job| job.local = local(32, 0, 0), "0 fragments must divide them");
    check(&|job| job.local = local(32, 3, 0), "3 fragments must divide them");
    check(&|job| job.local = local(32, 4, 8), "the delay of 8 must be below");
    check(&|job| job.model = ModelSpec::Softmax { inputs: 0, classes: 2 }, "");
    check(&|job| job.model = ModelSpec::External, "raw clients bring both");
}

#[test]
fn a_member_without_a_hello_changes_nothing() {
    let mut world = World::new();
    world.say(7, FromWorker::LeaseRequest);
    world.server_says(8, FromServer::Ready);
    world.core.handle_gone(world.now, MemberId(9), "reset".to_owned());
    world.settle();
    assert_eq!((world.told.len(), world.told_servers.len(), world.events.len()), (0, 0, 0));
}

#[test]
fn nobody_is_given_up_because_the_coordinator_itself_was_away() {
    let mut world = World::new();
    world.worker(1, None);
    world.core.handle_tick(Millis(60_000));
    world.settle();
    assert_eq!((world.core.members().workers().len(), world.closed.len()), (1, 0));
}

#[test]
fn a_built_in_model_without_data_is_refused() {
    let world = World::new();
    let job = Job { data: None, ..*job(1, 1, Mode::Bsp) };
    assert_eq!(
        world.core.check_submit(&job).unwrap_err(),
        "the job names no data to train its model on"
    );
}

#[test]
fn final_figures_are_those_of_the_shard_that_has_seen_most() {
    let mut world = World::new();
    world.training(job(1, 2, Mode::Bsp), 16);
    world.server_says(101, FromServer::Heartbeat(figures(3, 9)));
    let mut other = figures(5, 20);
    other.shards[0].shard = ShardId(1);
    other.shards[0].pushes_applied = 11;
    world.server_says(102, FromServer::Heartbeat(other));
    let status = world.core.status(world.now);
    assert_eq!((status.step, status.samples, status.pushes_applied), (5, 20, 11));
}

#[test]
fn while_the_files_are_written_the_status_says_so_and_a_fault_there_is_ours() {
    let mut world = World::new();
    world.submit(job(1, 1, Mode::Bsp));
    world.core.handle_stop(world.now, "the operator").unwrap();
    world.pass(1500);
    assert_eq!(world.core.missing(world.now), ["writing the run's files (1.5 s)"]);
    world.core.handle_concluded(world.now, Err("write x: no space".to_owned()));
    world.settle();
    let ended = world.ended.unwrap();
    assert_eq!((ended.ok, ended.blame), (false, Some(Blame::Us)));
    assert!(ended.reason.ends_with("before training began; write x: no space"), "{}", ended.reason);
}
