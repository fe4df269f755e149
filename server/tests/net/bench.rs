//! A real server process in this process, with a coordinator and workers that speak its protocol.

#![allow(clippy::unwrap_used)] // helpers of tests

use bytes::Bytes;
use quinn::{Connection, Endpoint};
use slackline_common::codec::{CodecId, F32, PlainCodec};
use slackline_common::config::{CertificatePaths, Log, ServerConfig};
use slackline_common::ids::{BlockId, Incarnation, SeatId, ServerId, ShardId, Step, Term, Version};
use slackline_common::job::{
    Clip, Compress, Evaluate, Feedback, Job, Length, Mode, OptimizerSpec, Ramp, Reduce, Schedule,
    Wire,
};
use slackline_common::layout::{Init, Layout, TensorSpec};
use slackline_common::model::ModelSpec;
use slackline_common::quic::{
    Authority, ControlReceiver, ControlSender, Credentials, QuicError, TransportSettings, accept,
    accept_hello, client_endpoint, connect, handshake, open_control, server_endpoint,
};
use slackline_common::role::Role;
use slackline_common::wire::control::{
    DataHello, DataWelcome, FromServer, Hello, StartServer, ToServer, Welcome,
};
use slackline_common::wire::frame::{BlockEntry, Decoder, Reply, ReplyKind, Request, RequestKind};
use slackline_common::wire::pool::BufferPool;
use slackline_server::ServerError;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

pub(crate) const LIFE: Incarnation = Incarnation(3);
pub(crate) const TERM: Term = Term(5);
/// Longer than any wait of a test on a busy machine; a test that meets it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn job(mode: Mode) -> Job {
    Job {
        name: "net".to_owned(),
        mode,
        workers: 2,
        servers: 1,
        seed: 1,
        length: Length::Steps(u64::MAX),
        batch: 1,
        reduce: Reduce::Sum,
        model: ModelSpec::External,
        data: None,
        optimizer: OptimizerSpec::Add { learning_rate: 1.0 },
        schedule: Schedule::default(),
        clip: Clip::default(),
        wire: Wire::default(),
        compress: Compress::default(),
        feedback: Feedback::default(),
        ramp: Ramp::default(),
        local: None,
        in_flight: 1,
        evaluate: Evaluate::default(),
    }
}

/// One block, of a megabyte: a frame as large as frames get.
pub(crate) fn layout() -> Layout {
    Layout::new(vec![TensorSpec::parameter("w", &[256, 1000], Init::External)]).unwrap()
}

pub(crate) fn start(mode: Mode) -> StartServer {
    StartServer {
        job: Box::new(job(mode)),
        layout: layout(),
        server: ServerId(0),
        servers: 1,
        shards: 2,
        seats: vec![(SeatId(0), LIFE), (SeatId(1), LIFE)],
        term: TERM,
    }
}

/// A server, its coordinator, and certificates for workers.
pub(crate) struct Bench {
    authority: Authority,
    line: mpsc::Sender<ToServer>,
    heard: mpsc::Receiver<FromServer>,
    /// Whether the coordinator gives signs of life.
    pub(crate) alive: watch::Sender<bool>,
    /// The coordinator's connection to the server.
    pub(crate) connection: Connection,
    /// Where workers reach the server.
    pub(crate) address: String,
    pub(crate) shutdown: Option<oneshot::Sender<()>>,
    pub(crate) server: JoinHandle<Result<(), ServerError>>,
    _coordinator: Endpoint,
}

pub(crate) fn credentials(authority: &Authority, role: Role) -> Credentials {
    let identity = authority.issue(role, "test", 1).unwrap();
    Credentials::from_identity(authority.ca_pem(), &identity).unwrap()
}

pub(crate) fn config(coordinator: String, grace: f64) -> ServerConfig {
    let nowhere = || "unused".into();
    ServerConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        coordinator,
        certificates: CertificatePaths { ca: nowhere(), certificate: nowhere(), key: nowhere() },
        shards: 2,
        coordinator_grace_seconds: grace,
        log: Log::default(),
        mtu: 1452,
        link: slackline_common::config::Link::default(),
    }
}

impl Bench {
    /// A server that has been welcomed.
    pub(crate) async fn new(lease: Duration, grace: f64) -> Self {
        let authority = Authority::create("test").unwrap();
        let coordinator = server_endpoint(
            "127.0.0.1:0".parse().unwrap(),
            &credentials(&authority, Role::Coordinator),
            &[Role::Server],
            &TransportSettings::default(),
        )
        .unwrap();
        let config = config(coordinator.local_addr().unwrap().to_string(), grace);
        let own = credentials(&authority, Role::Server);
        let (shutdown, stop) = oneshot::channel::<()>();
        let server = tokio::spawn(async move {
            slackline_server::run_with(config, &own, async { drop(stop.await) }).await
        });
        let incoming = accept(&coordinator).await.unwrap();
        let connection = handshake(incoming, PATIENCE).await.unwrap();
        let (mut sender, receiver, hello) =
            accept_hello::<ToServer, FromServer>(&connection, PATIENCE).await.unwrap();
        let FromServer::Hello { advertise, shards: 2, .. } = hello else { panic!("{hello:?}") };
        let lease_millis = u64::try_from(lease.as_millis()).unwrap();
        let welcome = Welcome { run_id: "test".to_owned(), lease_millis };
        sender.send(&ToServer::Welcome(welcome)).await.unwrap();
        let (alive, is_alive) = watch::channel(true);
        let (line, orders) = mpsc::channel(16);
        let (words, heard) = mpsc::channel(1024);
        tokio::spawn(listen(receiver, words));
        tokio::spawn(speak(sender, orders, is_alive, lease / 4));
        let (shutdown, address) = (Some(shutdown), advertise);
        let _coordinator = coordinator;
        Self { authority, line, heard, alive, connection, address, shutdown, server, _coordinator }
    }

    /// A server with a job whose values are all 0.
    pub(crate) async fn started(mode: Mode) -> Self {
        let mut bench = Self::new(Duration::from_secs(5), 30.0).await;
        bench.start(mode).await;
        bench
    }

    pub(crate) async fn start(&mut self, mode: Mode) {
        self.tell(ToServer::Start(start(mode))).await;
        assert_eq!(self.hear().await, FromServer::Ready);
        let worker = self.worker(0).await;
        for shard in [0, 1] {
            let init = worker.frame(RequestKind::Init, shard, 0, 0.0);
            let reply = worker.ask(&init).await;
            assert_eq!(reply.sentence(), "");
        }
        self.tell(ToServer::CommitInit { seat: SeatId(0) }).await;
        assert_eq!(self.hear().await, FromServer::InitCommitted);
        worker.leave().await;
    }

    pub(crate) async fn tell(&self, message: ToServer) {
        self.line.send(message).await.unwrap();
    }

    /// The next message that is not a sign of life.
    pub(crate) async fn hear(&mut self) -> FromServer {
        timeout(PATIENCE, async {
            loop {
                match self.heard.recv().await.expect("the server went on talking") {
                    FromServer::Heartbeat(_) => {}
                    message => return message,
                }
            }
        })
        .await
        .expect("the server said something")
    }

    /// The next sign of life.
    pub(crate) async fn heartbeat(&mut self) -> FromServer {
        let waited = timeout(PATIENCE, async {
            loop {
                let message = self.heard.recv().await.expect("the server went on talking");
                if matches!(message, FromServer::Heartbeat(_)) {
                    return message;
                }
            }
        });
        waited.await.expect("the server gave a sign of life")
    }

    pub(crate) fn endpoint(&self, role: Role) -> Endpoint {
        let settings = TransportSettings::default();
        client_endpoint(&credentials(&self.authority, role), &settings).unwrap()
    }

    pub(crate) fn hello(seat: u16) -> DataHello {
        DataHello {
            hello: Hello { name: format!("worker-{seat}"), build: "test".to_owned() },
            seat: SeatId(seat),
            incarnation: LIFE,
            term: TERM,
            layout: layout().fingerprint(),
            job: job(Mode::Bsp).hash(),
        }
    }

    /// A worker that was let in. The job's hash is taken from what the test started.
    pub(crate) async fn worker(&self, seat: u16) -> Worker {
        self.worker_in(seat, Mode::Bsp).await
    }

    pub(crate) async fn worker_in(&self, seat: u16, mode: Mode) -> Worker {
        let hello = DataHello { job: job(mode).hash(), ..Self::hello(seat) };
        self.greet(hello).await.unwrap()
    }

    /// Says hello: a worker, or the sentence of the refusal.
    pub(crate) async fn greet(&self, hello: DataHello) -> Result<Worker, String> {
        let endpoint = self.endpoint(Role::Worker);
        let connection = connect(&endpoint, &self.address, Role::Server, PATIENCE).await.unwrap();
        let (mut sender, mut receiver) =
            open_control::<DataHello, DataWelcome>(&connection).await.unwrap();
        sender.send(&hello).await.unwrap();
        match receiver.recv_within(PATIENCE, "welcome").await {
            Ok(Some(DataWelcome::Accepted)) => {
                let seat = hello.seat;
                Ok(Worker { endpoint, connection, seat, _line: (sender, receiver) })
            }
            Ok(Some(DataWelcome::Refused(sentence))) => {
                // The connection is closed with the same sentence.
                let closed = timeout(PATIENCE, connection.closed()).await.unwrap().to_string();
                assert!(closed.contains(&sentence), "{closed:?} does not say {sentence:?}");
                Err(sentence)
            }
            other => panic!("{other:?}"),
        }
    }

    /// How the server ended.
    pub(crate) async fn outcome(self) -> Result<(), ServerError> {
        timeout(PATIENCE, self.server).await.expect("the server ended").unwrap()
    }
}

async fn listen(mut receiver: ControlReceiver<FromServer>, words: mpsc::Sender<FromServer>) {
    while let Ok(Some(message)) = receiver.recv().await {
        if words.send(message).await.is_err() {
            return;
        }
    }
}

async fn speak(
    mut sender: ControlSender<ToServer>,
    mut orders: mpsc::Receiver<ToServer>,
    alive: watch::Receiver<bool>,
    every: Duration,
) {
    let mut tick = interval(every);
    loop {
        let sent: Result<(), QuicError> = tokio::select! {
            order = orders.recv() => match order {
                Some(order) => sender.send(&order).await,
                None => return,
            },
            _ = tick.tick() => {
                if *alive.borrow() { sender.send(&ToServer::Pulse).await } else { Ok(()) }
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

/// A worker's connection.
pub(crate) struct Worker {
    endpoint: Endpoint,
    pub(crate) connection: Connection,
    seat: SeatId,
    _line: (ControlSender<DataHello>, ControlReceiver<DataWelcome>),
}

impl Worker {
    /// Blocks of the layout that live on a shard of two.
    fn blocks(shard: u16) -> Vec<BlockId> {
        let placement = slackline_common::placement::Placement::balance(&layout(), 2);
        placement.blocks_of(ShardId(shard)).to_vec()
    }

    /// A frame with all of a shard's blocks; in a push and an init every value is `value`.
    pub(crate) fn frame(&self, kind: RequestKind, shard: u16, step: u64, value: f32) -> Request {
        let mut request = Request {
            kind,
            last: true,
            shard: ShardId(shard),
            seat: self.seat,
            incarnation: LIFE,
            step: Step(step),
            version: Version(0),
            samples: 1,
            part: 0,
            norms: Vec::new(),
            blocks: Vec::new(),
            body: Bytes::new(),
        };
        let mut body = Vec::new();
        for block in Self::blocks(shard) {
            let before = body.len();
            if kind != RequestKind::Pull {
                let values = vec![value; layout().blocks()[block.index()].len];
                F32.encode(&values, &mut body);
            }
            let bytes = u32::try_from(body.len() - before).unwrap();
            request.blocks.push(BlockEntry::new(block, bytes, CodecId::F32));
        }
        request.body = body.into();
        request
    }

    /// Sends a request and waits for its reply.
    pub(crate) async fn ask(&self, request: &Request) -> Reply {
        ask(&self.connection, request).await
    }

    /// Sends raw bytes on a stream of their own.
    pub(crate) async fn shout(&self, bytes: &[u8]) {
        let (mut send, recv) = self.connection.open_bi().await.unwrap();
        send.write_all(bytes).await.unwrap();
        send.finish().unwrap();
        // Kept until the connection ends: dropping it would stop the reply.
        let held = self.connection.clone();
        tokio::spawn(async move {
            held.closed().await;
            drop(recv);
        });
    }

    /// Closes the connection and waits until the server's machine knows.
    pub(crate) async fn leave(self) {
        self.connection.close(0u8.into(), b"done");
        self.endpoint.wait_idle().await;
    }
}

pub(crate) async fn ask(connection: &Connection, request: &Request) -> Reply {
    timeout(PATIENCE, async {
        let (mut send, mut recv) = connection.open_bi().await.unwrap();
        let mut pieces = [request.encode_head().into(), request.body.clone()];
        send.write_all_chunks(&mut pieces).await.unwrap();
        send.finish().unwrap();
        let mut decoder = Decoder::<Reply>::new(&BufferPool::new(1));
        while let Some(chunk) = recv.read_chunk(usize::MAX, true).await.unwrap() {
            decoder.handle_bytes(&chunk.bytes).unwrap();
        }
        decoder.finish().unwrap()
    })
    .await
    .expect("an answer")
}

/// Every value of a parameters reply, when they are all the same.
pub(crate) fn value(reply: &Reply) -> f32 {
    assert_eq!(reply.kind, ReplyKind::Parameters, "{}", reply.sentence());
    let values: Vec<f32> =
        reply.body.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert!(values.iter().all(|value| *value == values[0]), "{:?}", &values[..4]);
    values[0]
}
