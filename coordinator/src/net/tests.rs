//! Real endpoints on loopback, throw-away certificates, members that follow a script.

#![allow(clippy::cast_possible_truncation)] // small numbers of the tests' own

use crate::{CoordinatorError, Listening};
use serde::Serialize;
use serde::de::DeserializeOwned;
use slackline_common::blame::Blame;
use slackline_common::config::{AfterJob, CertificatePaths, CoordinatorConfig, Log};
use slackline_common::ids::{SeatId, ServerId, ShardId, Step, Version};
use slackline_common::job::{
    Clip, Compress, Evaluate, Feedback, Job, Length, Mode, OptimizerSpec, Ramp, Reduce, Schedule,
    Wire,
};
use slackline_common::layout::{Init, Layout, TensorSpec};
use slackline_common::model::ModelSpec;
use slackline_common::quic::{
    self, Authority, Connection, ControlReceiver, ControlSender, Credentials, Endpoint,
    TransportSettings,
};
use slackline_common::role::Role;
use slackline_common::wire::control::{
    Ended, FromOperator, FromServer, FromWorker, Hello, ServerReport, ShardReport, ToOperator,
    ToServer, ToWorker, WorkerReport,
};
use slackline_common::wire::frame::{BlockEntry, Decoder, Refusal, Reply, ReplyKind, Request};
use slackline_common::wire::pool::BufferPool;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const DEADLINE: Duration = Duration::from_secs(30);
const TENSOR_ELEMENTS: u64 = 700_000; // three blocks' worth of bytes: more than one frame

/// A running coordinator and what it takes to join it.
struct Bench {
    authority: Authority,
    folder: TempDir,
    address: String,
    running: JoinHandle<Result<(), CoordinatorError>>,
    shutdown: oneshot::Sender<()>,
}

/// A member at the other end of a control stream.
struct Peer<Out, In> {
    _endpoint: Endpoint,
    connection: Connection,
    sender: ControlSender<Out>,
    receiver: ControlReceiver<In>,
}

type Worker = Peer<FromWorker, ToWorker>;
type Server = Peer<FromServer, ToServer>;
type Operator = Peer<FromOperator, ToOperator>;

fn layout() -> Layout {
    let tensor = |name: &str, shape: &[u64]| TensorSpec::parameter(name, shape, Init::External);
    Layout::new(vec![tensor("w", &[TENSOR_ELEMENTS]), tensor("b", &[3])]).unwrap()
}

/// The value every fake server has at a place of the flat vector.
fn value_at(place: usize) -> f32 {
    place as f32 * 0.25
}

fn job(name: &str, workers: u16, servers: u16) -> Box<Job> {
    Box::new(Job {
        name: name.to_owned(),
        mode: Mode::Bsp,
        workers,
        servers,
        seed: 1,
        length: Length::Steps(u64::MAX),
        batch: 1,
        reduce: Reduce::Mean,
        model: ModelSpec::External,
        data: None,
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

fn hello(name: &str) -> Hello {
    Hello { name: name.to_owned(), build: "test".to_owned() }
}

impl Bench {
    fn start(after_job: AfterJob) -> Self {
        let authority = Authority::create("test").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("none");
        let config = CoordinatorConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            certificates: CertificatePaths {
                ca: nowhere.clone(),
                certificate: nowhere.clone(),
                key: nowhere,
            },
            run_dir: folder.path().join("runs"),
            lease_seconds: 60.0,
            start_timeout_seconds: 60.0,
            after_job,
            log: Log::default(),
            mtu: 1452,
            link: slackline_common::config::Link::default(),
        };
        let credentials = credentials(&authority, Role::Coordinator);
        let listening = Listening::bind_with(config, &credentials).unwrap();
        let address_file = folder.path().join("address");
        listening.write_address(&address_file).unwrap();
        let address = std::fs::read_to_string(address_file).unwrap();
        assert_eq!(address, listening.address().to_string());
        let (shutdown, asked) = oneshot::channel();
        let running = tokio::spawn(listening.serve(async move {
            if asked.await.is_err() {
                std::future::pending::<()>().await;
            }
        }));
        Self { authority, folder, address, running, shutdown }
    }

    async fn join<Out: Serialize, In: DeserializeOwned>(&self, role: Role) -> Peer<Out, In> {
        let credentials = credentials(&self.authority, role);
        let endpoint = quic::client_endpoint(&credentials, &TransportSettings::default()).unwrap();
        let connection =
            quic::connect(&endpoint, &self.address, Role::Coordinator, DEADLINE).await.unwrap();
        let (sender, receiver) = quic::open_control(&connection).await.unwrap();
        Peer { _endpoint: endpoint, connection, sender, receiver }
    }

    async fn worker(&self, name: &str, seat: Option<u16>) -> Worker {
        let mut worker: Worker = self.join(Role::Worker).await;
        let hello = FromWorker::Hello { hello: hello(name), seat: seat.map(SeatId) };
        worker.say(hello).await;
        worker
    }

    async fn server(&self, name: &str) -> Server {
        let mut server: Server = self.join(Role::Server).await;
        let advertise = format!("{name}:7002");
        server.say(FromServer::Hello { hello: hello(name), advertise, shards: 1 }).await;
        server
    }

    async fn operator(&self) -> Operator {
        self.join(Role::Operator).await
    }

    /// Two workers and two servers at work on an external job, its first values in place.
    async fn training(&self, operator: &mut Operator) -> (Vec<Worker>, Vec<Server>) {
        let mut servers = vec![self.server("s0").await, self.server("s1").await];
        let mut workers = vec![self.worker("w0", Some(0)).await, self.worker("w1", Some(1)).await];
        operator.say(FromOperator::Submit(job("mine", 2, 2))).await;
        assert_eq!(operator.hear().await, ToOperator::Accepted);
        for worker in &mut workers {
            worker.until(|m| matches!(m, ToWorker::Job { .. })).await;
            worker.say(FromWorker::ProposeLayout(layout())).await;
        }
        for server in &mut servers {
            server.until(|m| matches!(m, ToServer::Start(_))).await;
            server.say(FromServer::Ready).await;
        }
        for worker in &mut workers {
            let start = worker.until(|m| matches!(m, ToWorker::Start(_))).await;
            let ToWorker::Start(start) = start else { unreachable!() };
            assert_eq!(start.servers, ["s0:7002", "s1:7002"]);
        }
        workers[1].say(FromWorker::InitStaged).await;
        for server in &mut servers {
            server.until(|m| *m == ToServer::CheckInit { seat: SeatId(1) }).await;
            server.say(FromServer::InitChecked { seat: SeatId(1) }).await;
        }
        for server in &mut servers {
            let commit = server.until(|m| matches!(m, ToServer::CommitInit { .. })).await;
            assert_eq!(commit, ToServer::CommitInit { seat: SeatId(1) });
            server.say(FromServer::InitCommitted).await;
        }
        for worker in &mut workers {
            let told = worker.until(|m| matches!(m, ToWorker::Initialised { .. })).await;
            assert_eq!(told, ToWorker::Initialised { winner: SeatId(1) });
        }
        (workers, servers)
    }
}

fn credentials(authority: &Authority, role: Role) -> Credentials {
    let identity = authority.issue(role, "test", 1).unwrap();
    Credentials::from_identity(authority.ca_pem(), &identity).unwrap()
}

impl<Out: Serialize, In: DeserializeOwned + std::fmt::Debug> Peer<Out, In> {
    async fn say(&mut self, message: Out) {
        self.sender.send(&message).await.unwrap();
    }

    async fn hear(&mut self) -> In {
        self.receiver.recv_within(DEADLINE, "next message").await.unwrap().expect("a message")
    }

    async fn until(&mut self, wanted: impl Fn(&In) -> bool) -> In {
        loop {
            let message = self.hear().await;
            if wanted(&message) {
                return message;
            }
        }
    }
}

/// Answers pulls of the model until the connection is gone.
fn answer_pulls(connection: Connection) {
    tokio::spawn(async move {
        let (layout, pool) = (layout(), BufferPool::new(1));
        while let Ok((mut send, mut receive)) = connection.accept_bi().await {
            let mut decoder = Decoder::<Request>::new(&pool);
            while let Some(chunk) = receive.read_chunk(1 << 16, true).await.unwrap() {
                decoder.handle_bytes(&chunk.bytes).unwrap();
            }
            let request = decoder.finish().unwrap();
            let mut body = Vec::new();
            let mut blocks = Vec::new();
            for entry in request.blocks {
                let range = layout.blocks()[entry.block.index()].range();
                let bytes = u32::try_from(range.len() * 4).unwrap();
                range.for_each(|place| body.extend_from_slice(&value_at(place).to_le_bytes()));
                blocks.push(BlockEntry { bytes, ..entry });
            }
            let reply = Reply {
                kind: ReplyKind::Parameters,
                refusal: Refusal::None,
                version: Version(1),
                slowest: Step(0),
                publish: 0,
                norms: Vec::new(),
                blocks,
                body: body.into(),
            };
            send.write_all(&reply.encode_head()).await.unwrap();
            send.write_all(&reply.body).await.unwrap();
            send.finish().unwrap();
        }
    });
}

fn expected_bytes() -> Vec<u8> {
    (0..layout().elements()).flat_map(|place| value_at(place).to_le_bytes()).collect()
}

fn figures(server: ServerId) -> ServerReport {
    let shard = ShardReport {
        shard: ShardId(server.0),
        version: Version(5),
        samples: 10,
        pushes_applied: 10,
        ..ShardReport::default()
    };
    ServerReport { shards: vec![shard], ..ServerReport::default() }
}

/// From the workers' last word to the end.
async fn finish(mut workers: Vec<Worker>, mut servers: Vec<Server>, stay: bool) {
    for server in &servers {
        answer_pulls(server.connection.clone());
    }
    for worker in &mut workers {
        let report = WorkerReport { payload_bytes_up: 100, ..WorkerReport::default() };
        worker.say(FromWorker::Finished(report)).await;
    }
    for (server, number) in servers.iter_mut().zip(0..) {
        server.until(|m| *m == ToServer::Finish).await;
        server.say(FromServer::Final(figures(ServerId(number)))).await;
    }
    let ended = Ended { ok: true, blame: None, reason: "done at step 5".to_owned(), stay };
    for worker in &mut workers {
        worker.until(|m| *m == ToWorker::Ended(ended.clone())).await;
    }
    for server in &mut servers {
        server.until(|m| *m == ToServer::Ended(ended.clone())).await;
    }
}

#[tokio::test]
async fn an_external_job_runs_from_submit_to_its_files() {
    let bench = Bench::start(AfterJob::Exit);
    let mut operator = bench.operator().await;
    let (workers, servers) = bench.training(&mut operator).await;
    operator.say(FromOperator::Watch).await;
    let ToOperator::Status(status) = operator.hear().await else { panic!("no status") };
    assert_eq!((status.phase.as_str(), status.members.len()), ("training", 4));
    finish(workers, servers, false).await;
    let ended = operator.until(|m| matches!(m, ToOperator::Ended { .. })).await;
    let ToOperator::Ended { ended, summary, run_dir } = ended else { unreachable!() };
    assert_eq!((ended.ok, ended.reason.as_str()), (true, "done at step 5"));
    bench.running.await.unwrap().unwrap();
    let run = bench.folder.path().join("runs/mine");
    assert_eq!(run_dir, run.display().to_string());
    let text = std::fs::read_to_string(run.join("summary.json")).unwrap();
    assert_eq!(Some(&text), summary.as_ref());
    let summary: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&summary["steps"], &summary["payload_bytes_up"]), (&5.into(), &200.into()));
    assert_eq!(summary["model_hash"], blake3::hash(&expected_bytes()).to_hex().as_str());
    let file = std::fs::read(run.join("model.safetensors")).unwrap();
    let model = safetensors::SafeTensors::deserialize(&file).unwrap();
    let w = TENSOR_ELEMENTS as usize * 4;
    assert!(model.tensor("w").unwrap().data() == &expected_bytes()[..w]);
    assert!(model.tensor("b").unwrap().data() == &expected_bytes()[w..]);
}

#[tokio::test]
async fn the_model_can_be_exported_while_it_trains() {
    let bench = Bench::start(AfterJob::Exit);
    let mut operator = bench.operator().await;
    operator.say(FromOperator::Export).await;
    let ToOperator::Refused(line) = operator.hear().await else { panic!("not refused") };
    assert_eq!(line, "there is no job, so there is no model");
    let (_workers, servers) = bench.training(&mut operator).await;
    servers.iter().for_each(|server| answer_pulls(server.connection.clone()));
    operator.say(FromOperator::Export).await;
    let mut file = Vec::new();
    loop {
        match operator.hear().await {
            ToOperator::ExportChunk(chunk) => file.extend(chunk),
            ToOperator::ExportEnd => break,
            other => panic!("{other:?}"),
        }
    }
    let model = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert!(model.tensor("w").unwrap().data() == &expected_bytes()[..TENSOR_ELEMENTS as usize * 4]);
}

#[tokio::test]
async fn a_second_worker_for_a_seat_is_refused_and_the_first_stays() {
    let bench = Bench::start(AfterJob::Exit);
    let mut first = bench.worker("anna", Some(3)).await;
    assert!(matches!(first.hear().await, ToWorker::Welcome(_)));
    let mut second = bench.worker("bert", Some(3)).await;
    let ToWorker::Refused(line) = second.hear().await else { panic!("not refused") };
    assert!(line.starts_with("seat 3 is held by anna at 127.0.0.1:"), "{line}");
    assert!(line.ends_with("UTC: choose another seat or stop it"), "{line}");
    let why = second.connection.closed().await.to_string();
    assert!(why.contains("seat 3 is held by anna"), "{why}");
    let mut operator = bench.operator().await;
    operator.say(FromOperator::Status).await;
    let ToOperator::Status(status) = operator.hear().await else { panic!("no status") };
    let names: Vec<_> = status.members.iter().map(|member| member.name.as_str()).collect();
    assert_eq!((status.phase.as_str(), names), ("idle", vec!["anna"]));
}

#[tokio::test]
async fn a_wrong_role_and_garbage_close_their_own_connection_only() {
    let bench = Bench::start(AfterJob::Exit);
    let mut worker = bench.worker("anna", None).await;
    assert!(matches!(worker.hear().await, ToWorker::Welcome(_)));
    // A coordinator's certificate is not admitted at all.
    let credentials = credentials(&bench.authority, Role::Coordinator);
    let endpoint = quic::client_endpoint(&credentials, &TransportSettings::default()).unwrap();
    let refused = match quic::connect(&endpoint, &bench.address, Role::Coordinator, DEADLINE).await
    {
        Ok(connection) => connection.closed().await.to_string(),
        Err(error) => error.to_string(),
    };
    assert!(!refused.is_empty());
    // An operator that talks like a worker, and one that sends noise.
    for noise in [&[1u8, 0, 0, 0, 99][..], &[255; 64]] {
        let operator: Operator = bench.join(Role::Operator).await;
        let (mut send, _receive) = operator.connection.open_bi().await.unwrap();
        drop(operator.sender);
        send.write_all(noise).await.unwrap();
        let why = operator.connection.closed().await;
        assert!(matches!(why, quinn::ConnectionError::ApplicationClosed(_)), "{why}");
    }
    // The worker is still a member.
    let mut operator = bench.operator().await;
    operator.say(FromOperator::Status).await;
    let ToOperator::Status(status) = operator.hear().await else { panic!("no status") };
    assert_eq!(status.members.len(), 1);
    assert_eq!(worker.connection.close_reason(), None);
}

#[tokio::test]
async fn a_lost_server_ends_the_job_for_everybody_with_exit_code_69() {
    let bench = Bench::start(AfterJob::Exit);
    let mut operator = bench.operator().await;
    let (mut workers, mut servers) = bench.training(&mut operator).await;
    operator.say(FromOperator::Watch).await;
    let lost = servers.pop().unwrap();
    lost.connection.close(0u32.into(), b"");
    let ended = workers[0].until(|m| matches!(m, ToWorker::Ended(_))).await;
    let ToWorker::Ended(ended) = ended else { unreachable!() };
    assert!(!ended.ok && ended.reason.starts_with("server 1 (s1:7002, s1) missing since "));
    let told = operator.until(|m| matches!(m, ToOperator::Ended { .. })).await;
    let ToOperator::Ended { summary: Some(summary), .. } = told else { panic!("no summary") };
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((&summary["ok"], &summary["reason"]), (&false.into(), &ended.reason.clone().into()));
    let error = bench.running.await.unwrap().unwrap_err();
    assert_eq!((error.to_string(), error.blame()), (ended.reason, Blame::Network));
    assert!(!bench.folder.path().join("runs/mine/model.safetensors").exists());
}

#[tokio::test]
async fn members_stay_for_the_next_job_when_the_coordinator_waits() {
    let bench = Bench::start(AfterJob::Wait);
    let mut operator = bench.operator().await;
    let (workers, servers) = bench.training(&mut operator).await;
    finish(workers, servers, true).await;
    operator.say(FromOperator::Watch).await; // its own job: over already or soon
    operator.until(|m| matches!(m, ToOperator::Ended { .. })).await;
    let (workers, servers) = bench.training(&mut operator).await;
    finish(workers, servers, true).await;
    assert!(bench.folder.path().join("runs/mine-2/model.safetensors").exists());
    bench.shutdown.send(()).unwrap();
    bench.running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_shutdown_before_training_tells_the_members_and_ends_in_good_order() {
    let bench = Bench::start(AfterJob::Exit);
    let mut worker = bench.worker("anna", None).await;
    assert!(matches!(worker.hear().await, ToWorker::Welcome(_)));
    let mut operator = bench.operator().await;
    operator.say(FromOperator::Submit(job("mine", 2, 1))).await;
    assert_eq!(operator.hear().await, ToOperator::Accepted);
    operator.say(FromOperator::Submit(job("other", 1, 1))).await;
    let ToOperator::Refused(line) = operator.hear().await else { panic!("not refused") };
    assert!(line.starts_with("job \"mine\" is not over"), "{line}");
    bench.shutdown.send(()).unwrap();
    let ended = worker.until(|m| matches!(m, ToWorker::Ended(_))).await;
    let reason = "stopped by a signal before training began".to_owned();
    assert_eq!(ended, ToWorker::Ended(Ended { ok: false, blame: None, reason, stay: false }));
    bench.running.await.unwrap().unwrap();
}
