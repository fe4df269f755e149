//! The training worker against servers of the test's own, and the oracle beside it.

use super::*;
use crate::reference;
use crate::testing::{FakeCoordinator, FakeServer, Faults, World, job, run as run_test};
use crate::train;
use slackline_common::config::{CertificatePaths, Log};
use slackline_common::layout::Layout;
use slackline_common::wire::control::FromWorker;
use std::path::{Path, PathBuf};

const DIGITS: &str = include_str!("../../../configs/jobs/digits.toml");
/// Formats for both ways, as in the job file.
const LOSSY: [&str; 4] = ["bf16", "int8", "int4", "top_k:0.1"];
const ALONE: [&str; 3] = ["mode=\"bsp\"", "workers=1", "batch=64"];

fn digits(sets: &[&str]) -> Job {
    job(DIGITS, &[&ALONE[..], sets].concat())
}

fn certificates(world: &World, dir: &Path) -> CertificatePaths {
    world.authority().write_public(dir).unwrap();
    world.authority().issue(Role::Worker, "node", 1).unwrap().write(dir).unwrap();
    let file = |name: &str| dir.join(name);
    CertificatePaths {
        ca: file("ca.pem"),
        certificate: file("worker.pem"),
        key: file("worker.key"),
    }
}

fn config(coordinator: &FakeCoordinator, certificates: CertificatePaths) -> WorkerConfig {
    WorkerConfig {
        coordinator: coordinator.address.clone(),
        certificates,
        seat: None,
        name: None,
        data_dir: PathBuf::from("."),
        coordinator_grace_seconds: 20.0,
        server_grace_seconds: 20.0,
        threads: 1,
        slowdown: None,
        log: Log::default(),
        mtu: 1452,
        link: slackline_common::config::Link::default(),
    }
}

struct Run {
    servers: Vec<FakeServer>,
    said: Vec<FromWorker>,
}

impl Run {
    fn parameters(&self, layout: &Layout) -> Vec<f32> {
        let plan = crate::core::plan::Plan::new(
            layout.clone(),
            u16::try_from(self.servers.len()).unwrap(),
            1,
            slackline_common::job::Wire::default(),
        );
        let mut values = vec![0.0; layout.elements()];
        for block in layout.blocks() {
            let shard = self.servers[plan.placement().shard_of(block.id).index()].shard.lock();
            values[block.range()].copy_from_slice(&shard.unwrap().values[block.range()]);
        }
        values
    }
}

/// Completes when the server has applied so many steps.
async fn reached(server: &FakeServer, clock: u64) {
    loop {
        let moved = server.moved.notified();
        if server.shard.lock().unwrap().clock >= clock {
            return;
        }
        moved.await;
    }
}

async fn train(job: &Job, servers: u16, stop_at: Option<u64>) -> Run {
    train_with(job, servers, stop_at, Faults::default()).await
}

async fn train_with(job: &Job, servers: u16, stop_at: Option<u64>, faults: Faults) -> Run {
    let world = World::new();
    let layout = job.model.layout().unwrap();
    let servers: Vec<_> = (0..servers)
        .map(|id| FakeServer::start(&world, job, &layout, (id, servers), faults))
        .collect();
    let addresses: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
    let coordinator = FakeCoordinator::start(&world, job, &layout, &addresses);
    let dir = tempfile::tempdir().unwrap();
    let shutdown = reached(&servers[0], stop_at.unwrap_or(u64::MAX));
    run(config(&coordinator, certificates(&world, dir.path())), shutdown).await.unwrap();
    let said = coordinator.said.lock().unwrap().clone();
    Run { servers, said }
}

#[test]
fn one_worker_ends_where_the_oracle_ends() {
    let adam = DIGITS.split("[optimizer]").next().unwrap().to_owned()
        + "[optimizer]\nkind = \"adam\"\nlearning_rate = 0.01\n";
    for text in [DIGITS, &adam] {
        let job = job(text, &[&ALONE[..], &["epochs=3"]].concat());
        let layout = job.model.layout().unwrap();
        let run = run_test(train(&job, 2, None));
        let expected = reference::train(&job, Path::new(".")).unwrap();
        assert_eq!(run.parameters(&layout), expected, "{:?}", job.optimizer);
    }
}

#[test]
fn clipping_uses_the_norms_of_the_step_before() {
    let job = digits(&["epochs=1", "clip.per_tensor=0.2", "clip.global_norm=0.3"]);
    let layout = job.model.layout().unwrap();
    let run = run_test(train(&job, 3, None));
    let clipped = reference::train(&job, Path::new(".")).unwrap();
    let free = reference::train(&digits(&["epochs=1"]), Path::new(".")).unwrap();
    assert_ne!(clipped, free);
    let far = run.parameters(&layout).into_iter().zip(&clipped).map(|(a, b)| (a - b).abs());
    let far = far.fold(0.0, f32::max);
    // Norms are summed block by block there and in one go here.
    assert!(far < 1e-6, "{far}");
}

#[test]
fn every_sample_is_pushed_once_per_epoch_and_the_model_learns() {
    let job = digits(&["epochs=12", "evaluate.every_steps=50"]);
    let run = run_test(train(&job, 1, None));
    let shard = run.servers[0].shard.lock().unwrap();
    let samples = data::open(
        job.data.as_ref().unwrap(),
        &job.data.as_ref().unwrap().train,
        &job.model,
        Path::new("."),
    )
    .unwrap()
    .len();
    assert_eq!(shard.samples, 12 * samples);
    assert_eq!(shard.clock, 12 * samples.div_ceil(64));
    let tests: Vec<_> = run
        .said
        .iter()
        .filter_map(|message| match message {
            FromWorker::Evaluated(test) => Some(*test),
            _ => None,
        })
        .collect();
    let last = tests.last().unwrap();
    assert!(last.is_final && last.accuracy > 0.9, "{last:?}");
    assert_eq!(tests.len() as u64, shard.clock / 50 + 1);
    // Each lease began at the step where the one before it ended.
    let mut step = 0;
    let per_epoch = samples.div_ceil(64);
    for message in &run.said {
        if let FromWorker::LeaseStarted { lease, at } = message {
            assert_eq!((lease.0, at.0), (step, step));
            step += (per_epoch - step % per_epoch).min(5);
        }
    }
    assert_eq!(step, shard.clock);
}

#[test]
fn asked_to_end_the_worker_finishes_its_step_and_leaves() {
    let job = digits(&["epochs=1000000"]);
    let run = run_test(train(&job, 2, Some(20)));
    let [a, b] = &run.servers[..] else { panic!("two servers") };
    let (a, b) = (a.shard.lock().unwrap(), b.shard.lock().unwrap());
    assert!(a.left && b.left && a.clock == b.clock && a.clock >= 20);
    let Some(FromWorker::Finished(report)) = run.said.last() else {
        panic!("{:?}", run.said.last())
    };
    assert_eq!((report.clock.0, report.bytes_outstanding), (a.clock, 0));
    assert_eq!(report.samples, a.samples);
}

/// The step that each step's gradient was computed at the start of.
fn computed_on(run: &Run) -> Vec<u64> {
    let steps = run.servers[0].shard.lock().unwrap().computed_on.clone();
    for server in &run.servers {
        assert_eq!(server.shard.lock().unwrap().computed_on, steps, "all shards are told the same");
    }
    steps
}

fn farthest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn with_more_steps_in_flight_whole_values_are_never_older_than_so_many_steps() {
    for in_flight in [2u64, 3, 5] {
        for mode in ["bsp", "asp"] {
            let (mode, in_flight_set) =
                (format!("mode=\"{mode}\""), format!("in_flight={in_flight}"));
            let run = run_test(train(&digits(&["epochs=2", &mode, &in_flight_set]), 2, None));
            for server in &run.servers {
                let steps = server.shard.lock().unwrap().computed_on.clone();
                for (step, on) in (0u64..).zip(steps) {
                    let oldest = (step + 1).saturating_sub(in_flight);
                    assert!((oldest..=step).contains(&on), "step {step} on {on}");
                }
            }
        }
    }
}

#[test]
fn deltas_lead_where_whole_values_lead_and_the_first_values_are_not_downloaded() {
    for in_flight in [1, 2, 3] {
        let sets = ["epochs=2", "compress=\"f32\"", &format!("in_flight={in_flight}")];
        let job = digits(&sets);
        let layout = job.model.layout().unwrap();
        let run = run_test(train(&job, 2, None));
        let expected = reference::train(&job, Path::new(".")).unwrap();
        let far = farthest(&run.parameters(&layout), &expected);
        // What a seat holds is a sum of differences: rounded at each publish, and never far away.
        assert!(far < 1e-4, "{far}");
        let steps = computed_on(&run);
        let expected = (0..steps.len() as u64).map(|step| (step + 1).saturating_sub(in_flight));
        assert_eq!(steps, expected.collect::<Vec<_>>());
        if in_flight == 1 {
            // Every publish once, and the whole model for the last test.
            let bytes: usize =
                run.servers.iter().map(|it| it.shard.lock().unwrap().bytes_down).sum();
            assert_eq!(bytes, (steps.len() + 1) * layout.elements() * 4);
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_how_publishes_arrive() {
    for codec in LOSSY {
        let compress = format!("compress=\"{codec}\"");
        let values = |in_flight: u16, faults: Faults| {
            let job = digits(&["epochs=1", &compress, &format!("in_flight={in_flight}")]);
            let layout = job.model.layout().unwrap();
            run_test(train_with(&job, 2, None, faults)).parameters(&layout)
        };
        // Two steps in flight, and replies that bring one publish more than is due.
        let late = Faults { late: 1, ..Faults::default() };
        assert_eq!(values(2, Faults::default()), values(2, late), "{codec}");
        // A reference is what the deltas add up to.
        let references = Faults { references: true, ..Faults::default() };
        assert_eq!(values(1, Faults::default()), values(1, references), "{codec}");
    }
}

#[test]
fn lossy_both_ways_the_model_learns() {
    for codec in LOSSY {
        let sets = ["epochs=12", &format!("compress=\"{codec}\""), "in_flight=2"];
        let run = run_test(train(&digits(&sets), 2, None));
        let last = run.said.iter().rev().find_map(|message| match message {
            FromWorker::Evaluated(test) => Some(*test),
            _ => None,
        });
        let last = last.unwrap();
        assert!(last.is_final && last.accuracy > 0.9, "{codec}: {last:?}");
    }
}

#[test]
fn a_walking_worker_ends_where_the_oracle_ends() {
    let inner = r#"local.inner={kind="momentum", learning_rate=0.1}"#;
    let walk = ["mode=local", "workers=1", "batch=64", "staleness=", "epochs=3", inner];
    for sets in [
        &["local.steps=8"][..],
        // Three epochs are 69 steps.
        &["local.steps=1000"],
        &["local.steps=6", "local.begin_step=10", "local.fragments=2"],
        &["local.steps=10", "local.fragments=2", "local.delay=3", "local.mix=0.5"],
    ] {
        let job = job(DIGITS, &[&walk[..], sets].concat());
        let run = run_test(train(&job, 2, None));
        let expected = reference::train(&job, Path::new(".")).unwrap();
        let values = run.parameters(&job.model.layout().unwrap());
        let far = values.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far <= 1e-6, "{sets:?}: {far}");
        assert_eq!(run.servers[0].shard.lock().unwrap().samples, 3 * 1437, "{sets:?}");
    }
}

#[test]
fn asked_to_end_in_the_middle_of_a_round_the_worker_says_how_much_of_its_lease_is_done() {
    let inner = r#"local.inner={kind="sgd", learning_rate=0.1}"#;
    let sets = ["mode=local", "workers=1", "batch=64", "staleness=", "epochs=100000", inner];
    let job = job(DIGITS, &[&sets[..], &["local.steps=64"]].concat());
    let run = run_test(train(&job, 1, Some(3)));
    let shard = run.servers[0].shard.lock().unwrap();
    let Some(FromWorker::Finished(report)) = run.said.last() else {
        panic!("{:?}", run.said.last())
    };
    assert_eq!((report.clock.0, report.samples), (shard.clock, shard.samples));
    let starts = run.said.iter().filter_map(|message| match message {
        FromWorker::LeaseStarted { lease, at } => Some((lease.0, at.0)),
        _ => None,
    });
    let starts: Vec<(u64, u64)> = starts.collect();
    let (lease, at) = *starts.last().unwrap();
    // Batches by the clock, and by the samples: an epoch is 22 batches of 64 and one of 29.
    let by_clock = job.batches_in(report.clock) - at;
    let batches = report.samples / 1437 * 23 + (report.samples % 1437).div_ceil(64);
    let of_lease = (23 - lease % 23).min(5);
    assert_eq!(by_clock.min(of_lease), batches - lease, "{starts:?}");
}

#[test]
fn the_oracle_learns_the_digits() {
    let job = digits(&["epochs=12"]);
    let parameters = reference::train(&job, Path::new(".")).unwrap();
    let spec = job.data.as_ref().unwrap();
    let test = data::open(spec, spec.test.as_ref().unwrap(), &job.model, Path::new(".")).unwrap();
    let mut engine = train::engine(&job.model).unwrap();
    let sums = evaluate(engine.as_mut(), &parameters, &*test, 64).unwrap();
    assert!(sums.correct as f64 > 0.9 * sums.count as f64, "{sums:?}");
}
