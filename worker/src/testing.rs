//! One seat's world in one process, for tests: servers that keep the protocol for a single seat, and
//! a coordinator that says what a job of one worker needs. No timing, no liveness, no rules: the real
//! ones are tested with real processes.

mod coordinator;

pub(crate) use self::coordinator::{FakeCoordinator, STOP_AT_BARRIER};

use crate::core::plan::Plan;
use bytes::Bytes;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use slackline_common::codec::{CodecId, Draw, Encoder, codec, plain};
use slackline_common::ids::{ShardId, Step, Version};
use slackline_common::job::{Job, TensorCoding};
use slackline_common::layout::{Layout, TensorRole};
use slackline_common::model::initialise_all;
use slackline_common::optimizer::{BlockState, Update, apply, apply_statistic, clip_factors};
use slackline_common::quic::{self, Authority, CloseCode, Credentials, TransportSettings};
use slackline_common::role::Role;
use slackline_common::wire::control::{DataHello, DataWelcome, NO_SEAT};
use slackline_common::wire::frame::{
    BlockEntry, Decoder, Refusal, Reply, ReplyKind, Request, RequestKind,
};
use slackline_common::wire::pool::BufferPool;
use std::collections::BTreeSet;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);
const WORKERS: &[Role] = &[Role::Worker];

/// Runs a test; one that hangs fails instead.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(PATIENCE, test).await.expect("the test ends in time") })
}

/// A job from the text of a job file.
pub(crate) fn job(text: &str, sets: &[&str]) -> Job {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    slackline_common::config::parse_job(text, "test.toml", &sets).unwrap()
}

/// Certificates of one cluster.
pub(crate) struct World {
    authority: Authority,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { authority: Authority::create("test cluster").unwrap() }
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    pub(crate) fn credentials(&self, role: Role) -> Credentials {
        let identity = self.authority.issue(role, "node", 1).unwrap();
        Credentials::from_identity(self.authority.ca_pem(), &identity).unwrap()
    }

    pub(crate) fn dialler(&self) -> Endpoint {
        let settings = TransportSettings::loopback();
        quic::client_endpoint(&self.credentials(Role::Worker), &settings).unwrap()
    }

    pub(crate) fn listener(&self, role: Role) -> Endpoint {
        let local: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let settings = TransportSettings::loopback();
        quic::server_endpoint(local, &self.credentials(role), WORKERS, &settings).unwrap()
    }
}

/// What a fake server does wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Closes the connection instead of answering this many-th request.
    pub(crate) cut_at: Option<usize>,
    /// Refuses every push with this.
    pub(crate) refuses: Option<Refusal>,
    /// Answers a pull so many steps later than it could.
    pub(crate) late: u64,
    /// Answers pulls of deltas with the reference.
    pub(crate) references: bool,
}

/// One shard for one seat.
#[derive(Debug)]
pub(crate) struct Shard {
    plan: Plan,
    job: Job,
    id: ShardId,
    pub(crate) values: Vec<f32>,
    /// What a seat that has every publish holds.
    pub(crate) reference: Vec<f32>,
    publishes: Vec<Vec<(BlockEntry, Bytes)>>,
    codings: Vec<TensorCoding>,
    encoder: Encoder,
    /// Bytes of the replies that hold parameters.
    pub(crate) bytes_down: usize,
    /// The version that each push says its gradients were computed on, step by step.
    pub(crate) computed_on: Vec<u64>,
    gradient: Vec<f32>,
    states: Vec<BlockState>,
    norms: Vec<f64>,
    /// Parts that have come of the step that is open, and their number once known.
    parts: BTreeSet<u32>,
    parts_due: Option<u32>,
    touched: BTreeSet<usize>,
    pub(crate) clock: u64,
    /// The seat may start steps up to this one: beyond it somebody is slower.
    pub(crate) held_at: u64,
    pub(crate) samples: u64,
    /// Parts that came again.
    pub(crate) duplicates: usize,
    pub(crate) connections: usize,
    requests: usize,
    pub(crate) left: bool,
    faults: Faults,
}

pub(crate) struct FakeServer {
    pub(crate) address: String,
    pub(crate) shard: Arc<Mutex<Shard>>,
    pub(crate) moved: Arc<Notify>,
    pub(crate) endpoint: Endpoint,
}

impl FakeServer {
    /// Starts shard `id` of `shards`, each on a server of its own.
    pub(crate) fn start(
        world: &World,
        job: &Job,
        layout: &Layout,
        (id, shards): (u16, u16),
        faults: Faults,
    ) -> Self {
        let endpoint = world.listener(Role::Server);
        let plan = Plan::new(layout.clone(), shards, shards, job.wire);
        let states = layout.blocks().iter().map(|block| BlockState::new(&job.optimizer, block.len));
        let shard = Shard {
            states: states.collect(),
            norms: vec![0.0; layout.blocks().len()],
            values: initialise_all(layout, job.seed),
            reference: initialise_all(layout, job.seed),
            publishes: Vec::new(),
            codings: job.codings(layout),
            encoder: Encoder::default(),
            bytes_down: 0,
            computed_on: Vec::new(),
            gradient: vec![0.0; layout.elements()],
            plan,
            job: job.clone(),
            id: ShardId(id),
            parts: BTreeSet::new(),
            parts_due: None,
            touched: BTreeSet::new(),
            clock: 0,
            held_at: u64::MAX,
            samples: 0,
            duplicates: 0,
            connections: 0,
            requests: 0,
            left: false,
            faults,
        };
        let server = Self {
            address: endpoint.local_addr().unwrap().to_string(),
            shard: Arc::new(Mutex::new(shard)),
            moved: Arc::new(Notify::new()),
            endpoint: endpoint.clone(),
        };
        let (shard, moved) = (Arc::clone(&server.shard), Arc::clone(&server.moved));
        tokio::spawn(async move {
            while let Some(incoming) = quic::accept(&endpoint).await {
                let connection = quic::handshake(incoming, PATIENCE).await.unwrap();
                shard.lock().unwrap().connections += 1;
                tokio::spawn(serve(connection, Arc::clone(&shard), Arc::clone(&moved)));
            }
        });
        server
    }
}

async fn serve(connection: Connection, shard: Arc<Mutex<Shard>>, moved: Arc<Notify>) {
    let hello = quic::accept_hello::<DataWelcome, DataHello>(&connection, PATIENCE).await;
    let (mut sender, _receiver, hello) = hello.unwrap();
    let ours = shard.lock().unwrap().plan.layout().fingerprint();
    if hello.layout != ours {
        let _ = sender.send(&DataWelcome::Refused("another layout".to_owned())).await;
        return;
    }
    sender.send(&DataWelcome::Accepted).await.unwrap();
    while let Ok((send, recv)) = connection.accept_bi().await {
        let (shard, moved) = (Arc::clone(&shard), Arc::clone(&moved));
        tokio::spawn(answer(connection.clone(), send, recv, shard, moved));
    }
}

async fn answer(
    connection: Connection,
    mut send: SendStream,
    mut recv: RecvStream,
    shard: Arc<Mutex<Shard>>,
    moved: Arc<Notify>,
) {
    let mut decoder = Decoder::<Request>::new(&BufferPool::new(1));
    while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX, true).await {
        decoder.handle_bytes(&chunk.bytes).unwrap();
    }
    let Ok(request) = decoder.finish() else { return };
    let cut = {
        let mut shard = shard.lock().unwrap();
        shard.requests += 1;
        shard.faults.cut_at == Some(shard.requests)
    };
    if cut {
        return quic::close(&connection, CloseCode::Shutdown, "cut by the test");
    }
    let reply = loop {
        let change = moved.notified();
        tokio::pin!(change);
        change.as_mut().enable();
        if let Some(reply) = shard.lock().unwrap().handle(&request) {
            break reply;
        }
        tokio::select! {
            () = change => {}
            _ = send.stopped() => return,
        }
    };
    moved.notify_waiters();
    let head = reply.encode_head();
    // The peer may be gone.
    let _ = send.write_all(&head).await;
    let _ = send.write_all(&reply.body).await;
    let _ = send.finish();
}

impl Shard {
    fn ack(&self) -> Reply {
        Reply::ack(Version(self.clock), Step(self.clock))
    }

    /// The answer, or `None` while the request has to wait.
    fn handle(&mut self, request: &Request) -> Option<Reply> {
        assert_eq!(request.shard, self.id);
        match request.kind {
            RequestKind::Push if self.faults.refuses.is_some() => {
                let refusal = self.faults.refuses.unwrap();
                Some(Reply::refused(refusal, "the test says no".to_owned()))
            }
            // With several steps in flight the parts of a step may come before the last of the one before.
            RequestKind::Push if request.step.0 > self.clock => {
                assert!(request.step.0 < self.clock + u64::from(self.job.in_flight));
                None
            }
            RequestKind::Push => {
                self.push(request);
                Some(self.ack())
            }
            RequestKind::Pull | RequestKind::PullDeltas => {
                let free = request.seat == NO_SEAT || self.left;
                let may = request.step.0 + self.faults.late <= self.clock
                    && request.step.0 <= self.held_at;
                if !free && !may {
                    return None;
                }
                let reply = match request.kind {
                    RequestKind::Pull => self.parameters(request),
                    _ if self.faults.references || request.version.0 == u64::MAX => {
                        self.reference(request)
                    }
                    _ => self.deltas(request),
                };
                self.bytes_down += reply.body.len();
                Some(reply)
            }
            RequestKind::Init => {
                for (entry, bytes) in request.payloads() {
                    let range = self.plan.layout().blocks()[entry.block.index()].range();
                    codec(entry.codec).decode(&bytes, &mut self.values[range]).unwrap();
                }
                Some(self.ack())
            }
            RequestKind::Leave => {
                assert_eq!(request.step.0, self.clock, "a seat leaves after its last step");
                self.left = true;
                Some(self.ack())
            }
        }
    }

    fn push(&mut self, request: &Request) {
        if request.step.0 < self.clock || self.parts.contains(&request.part) {
            self.duplicates += 1;
            return;
        }
        assert_eq!(request.step.0, self.clock, "one seat pushes one step after the other");
        self.parts.insert(request.part);
        if request.last {
            self.parts_due = Some(request.part + 1);
        }
        for (entry, bytes) in request.payloads() {
            let block = &self.plan.layout().blocks()[entry.block.index()];
            assert_eq!(self.plan.placement().shard_of(entry.block), self.id);
            codec(entry.codec).decode(&bytes, &mut self.gradient[block.range()]).unwrap();
            self.touched.insert(entry.block.index());
        }
        if self.parts_due == Some(u32::try_from(self.parts.len()).unwrap()) {
            self.close(request);
        }
    }

    fn close(&mut self, request: &Request) {
        let rate = self.job.optimizer.learning_rate() * self.job.schedule.factor(self.clock);
        let factors = clip_factors(&self.job.clip, &request.norms);
        for at in std::mem::take(&mut self.touched) {
            let block = self.plan.layout().blocks()[at];
            let gradient = &self.gradient[block.range()];
            let values = &mut self.values[block.range()];
            if self.plan.layout().tensors()[block.tensor.index()].role == TensorRole::Statistic {
                apply_statistic(values, gradient, 1.0);
                continue;
            }
            self.norms[at] = gradient.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
            let clip_factor = factors.factor(block.tensor.index());
            let update = Update { rate, share: 1.0, clip_factor };
            apply(&self.job.optimizer, &mut self.states[at], &update, values, gradient);
        }
        self.samples += u64::from(request.samples);
        self.computed_on.push(request.version.0);
        if self.job.sends_deltas() {
            self.publish();
        }
        self.clock += 1;
        self.parts.clear();
        self.parts_due = None;
    }

    /// Encodes what changed since the last publish, against what every seat holds.
    fn publish(&mut self) {
        let mut publish = Vec::new();
        let number = self.publishes.len() as u64 + 1;
        for block in self.plan.layout().blocks() {
            if self.plan.placement().shard_of(block.id) != self.id {
                continue;
            }
            let reference = &mut self.reference[block.range()];
            let values = self.values[block.range()].iter().zip(&*reference);
            let delta: Vec<f32> = values.map(|(x, r)| x - r).collect();
            let spec = &self.codings[block.tensor.index()].down;
            let draw = Draw::down(self.job.seed, number, block.id);
            let mut bytes = Vec::new();
            let id = self.encoder.encode(spec, draw, &delta, &mut bytes);
            codec(id).decode_add(&bytes, 1.0, reference).unwrap();
            let entry = BlockEntry::new(block.id, u32::try_from(bytes.len()).unwrap(), id);
            publish.push((entry, bytes.into()));
        }
        self.publishes.push(publish);
    }

    fn deltas(&self, request: &Request) -> Reply {
        let held = usize::try_from(request.version.0).unwrap();
        let (mut blocks, mut body) = (Vec::new(), Vec::new());
        for (offset, publish) in (1u32..).zip(&self.publishes[held..]) {
            for (entry, bytes) in publish {
                if request.blocks.iter().any(|asked| asked.block == entry.block) {
                    blocks.push(BlockEntry { publish_offset: offset, ..*entry });
                    body.extend_from_slice(bytes);
                }
            }
        }
        self.published(ReplyKind::Deltas, request, blocks, body)
    }

    fn reference(&self, request: &Request) -> Reply {
        let mut body = Vec::new();
        let mut blocks = request.blocks.clone();
        for entry in &mut blocks {
            let range = self.plan.layout().blocks()[entry.block.index()].range();
            let before = body.len();
            plain(CodecId::F32).unwrap().encode(&self.reference[range], &mut body);
            entry.bytes = u32::try_from(body.len() - before).unwrap();
        }
        self.published(ReplyKind::Reference, request, blocks, body)
    }

    fn published(
        &self,
        kind: ReplyKind,
        request: &Request,
        blocks: Vec<BlockEntry>,
        body: Vec<u8>,
    ) -> Reply {
        let norms = request.blocks.iter().map(|entry| self.norms[entry.block.index()]);
        let norms = if self.job.clip.is_on() { norms.collect() } else { Vec::new() };
        let publish = self.publishes.len() as u64;
        Reply { kind, publish, norms, blocks, body: body.into(), ..self.ack() }
    }

    fn parameters(&self, request: &Request) -> Reply {
        let mut body = Vec::new();
        let mut blocks = request.blocks.clone();
        let mut norms = Vec::new();
        for entry in &mut blocks {
            let range = self.plan.layout().blocks()[entry.block.index()].range();
            let before = body.len();
            plain(entry.codec).unwrap().encode(&self.values[range], &mut body);
            entry.bytes = u32::try_from(body.len() - before).unwrap();
            if self.job.clip.is_on() {
                norms.push(self.norms[entry.block.index()]);
            }
        }
        let kind = ReplyKind::Parameters;
        Reply { kind, norms, blocks, body: body.into(), ..self.ack() }
    }
}
