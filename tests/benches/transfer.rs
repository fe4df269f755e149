//! 64 MiB of `f32` pushed to a real server and pulled back, against bare quinn moving the same bytes
//! with the same certificates, settings and kind of streams, in turns within one run.
//!
//! Run: `cargo build --release --workspace --bins && cargo bench -p tests --bench transfer`.
//!
//! Both sides are two processes with one network thread each. Ours also encodes, checks, adds (the
//! optimizer is `add`), encodes and decodes; bare quinn sends memory that is there and drops what it
//! receives. `bare + copy` copies what it receives into memory that is there, as any program must
//! that wants to have the numbers.
//!
//! A turn with `asp` reads what it has pushed (its own writes), with `bsp` what the closed step has
//! made, so both wait for the whole push before the first byte comes back; bare quinn has the same
//! order: up, acknowledged, down.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use bytes::Bytes;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use slackline_common::quic::{
    self, Authority, Credentials, TransportSettings, client_endpoint, server_endpoint,
};
use slackline_common::role::Role;
use slackline_worker::client::{Client, ClientConfig, ClientIdentity, Tensor};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::{cpu_time, median, report};
use tests::cluster::{Cluster, MemberId, job_file};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

/// Elements of the tensor: 64 MiB.
const ELEMENTS: usize = 16 << 20;
/// Bytes of one request or reply: what our frames have.
const PIECE_BYTES: usize = 1 << 20;
const PIECES: usize = ELEMENTS * 4 / PIECE_BYTES;
/// Requests on their way, as `FRAMES_IN_FLIGHT_MAX`.
const IN_FLIGHT: usize = 32;
const ROUNDS: usize = 15;
/// Bytes of a request or reply without a body.
const HEAD_BYTES: usize = 48;
const DEADLINE: Duration = Duration::from_secs(10);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, certificates, mtu] = &arguments[..]
        && role == "bare-server"
    {
        return runtime().block_on(bare_server(Path::new(certificates), mtu.parse().unwrap()));
    }
    for mtu in [6500, 1452] {
        measure(mtu, if support::quick() { 1 } else { ROUNDS });
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// One of the things that take turns.
struct Contender {
    name: &'static str,
    turns: Vec<Turn>,
}

/// One push and one pull.
struct Turn {
    seconds: f64,
    /// The part of `seconds` until the push was acknowledged.
    up_seconds: f64,
    cpu_seconds: f64,
}

impl Contender {
    const fn new(name: &'static str) -> Self {
        Self { name, turns: Vec::new() }
    }

    /// Times `work`, which pushes, says that it has, and pulls.
    fn turn(&mut self, peer: u32, work: impl FnOnce(&mut dyn FnMut())) {
        let me = std::process::id();
        let before = cpu_time(me) + cpu_time(peer);
        let mut up_seconds = 0.0;
        let start = Instant::now();
        work(&mut || up_seconds = start.elapsed().as_secs_f64());
        let seconds = start.elapsed().as_secs_f64();
        let cpu_seconds = (cpu_time(me) + cpu_time(peer) - before).as_secs_f64();
        self.turns.push(Turn { seconds, up_seconds, cpu_seconds });
    }

    /// Bytes up and down per second of the median turn, in 10⁶.
    fn rate(&self) -> f64 {
        gigabytes() * 1e3 / self.median(|turn| turn.seconds)
    }

    fn median(&self, of: impl Fn(&Turn) -> f64) -> f64 {
        median(&self.turns.iter().map(of).collect::<Vec<_>>())
    }

    /// CPU seconds of both processes per 10⁹ bytes, over all turns.
    fn cpu(&self) -> f64 {
        let seconds: f64 = self.turns.iter().map(|turn| turn.cpu_seconds).sum();
        seconds / (gigabytes() * self.turns.len() as f64)
    }

    /// How fast this is against `other`: the median of the rounds' ratios.
    fn against(&self, other: &Self) -> f64 {
        let pairs = self.turns.iter().zip(&other.turns);
        median(&pairs.map(|(ours, theirs)| theirs.seconds / ours.seconds).collect::<Vec<_>>())
    }
}

fn gigabytes() -> f64 {
    (2 * ELEMENTS * 4) as f64 / 1e9
}

fn measure(mtu: u16, rounds: usize) {
    let runtime = runtime();
    let mut bare = Bare::start(&runtime, mtu);
    let mut asp = Ours::start(&runtime, mtu, &["mode=asp", "optimizer.kind=add"]);
    let mut bsp = Ours::start(&runtime, mtu, &["mode=bsp", "optimizer.kind=add"]);
    let mut contenders =
        ["bare quinn", "bare + copy", "slackline asp", "slackline bsp"].map(Contender::new);
    for round in 0..=rounds {
        let [plain, copying, ours_asp, ours_bsp] = &mut contenders;
        let peer = bare.child.id();
        plain.turn(peer, |up| runtime.block_on(bare.turn(false, up)));
        copying.turn(peer, |up| runtime.block_on(bare.turn(true, up)));
        ours_asp.turn(asp.server_pid(), |up| runtime.block_on(asp.turn(up)));
        ours_bsp.turn(bsp.server_pid(), |up| runtime.block_on(bsp.turn(up)));
        if round == 0 {
            // The first round brings the pages in and opens the windows.
            contenders.iter_mut().for_each(|contender| contender.turns.clear());
        }
    }
    println!("mtu {mtu}, 64 MiB up and 64 MiB down, {rounds} rounds, medians");
    for contender in &contenders {
        println!(
            "  {:<14} {:>6.0} MB/s ({:>3.0} + {:>3.0} ms) {:>6.2} CPU s/GB {:>6.2} of bare, {:.2} of \
             bare + copy",
            contender.name,
            contender.rate(),
            contender.median(|turn| turn.up_seconds) * 1e3,
            contender.median(|turn| turn.seconds - turn.up_seconds) * 1e3,
            contender.cpu(),
            contender.against(&contenders[0]),
            contender.against(&contenders[1]),
        );
    }
    for contender in &contenders[2..] {
        let ratio = contender.against(&contenders[0]);
        let reached = format!(
            "{ratio:.2}x: {:.0} MB/s against {:.0} ({:.2} of bare quinn that also copies into place, {:.0} MB/s)",
            contender.rate(),
            contenders[0].rate(),
            contender.against(&contenders[1]),
            contenders[1].rate(),
        );
        let met = (mtu == 6500).then_some(ratio >= 0.8);
        let what = format!("push + pull of 64 MiB, {}, mtu {mtu}", contender.name);
        report(&what, ">= 0.8x bare quinn", &reached, met);
    }
}

/// A cluster with one server, and this process as its one worker.
struct Ours {
    cluster: Cluster,
    server: MemberId,
    client: Client,
    gradient: Vec<f32>,
    values: Vec<f32>,
}

impl Ours {
    fn start(runtime: &Runtime, mtu: u16, sets: &[&str]) -> Self {
        let mut cluster = Cluster::with_mtu(mtu, "");
        let server = cluster.server("");
        let sets: Vec<_> = ["workers=1", "servers=1"].iter().chain(sets).copied().collect();
        cluster.submit(&job_file("raw.toml"), &sets);
        let identity = ClientIdentity::Loaded(cluster.credentials(Role::Worker));
        let mut config = ClientConfig::new(cluster.coordinator.clone(), identity);
        config.mtu = mtu;
        let values = vec![0.0; ELEMENTS];
        let client = runtime.block_on(async {
            let mut client = Client::connect(config).await.unwrap();
            client.init(&[Tensor::new("w", &[ELEMENTS as u64], &values)]).await.unwrap();
            client
        });
        Self { cluster, server, client, gradient: vec![1.0; ELEMENTS], values }
    }

    fn server_pid(&self) -> u32 {
        self.cluster.pid(self.server)
    }

    async fn turn(&mut self, up: &mut dyn FnMut()) {
        self.client.push(&[("w", &self.gradient)], 1).await.unwrap();
        up();
        self.client.pull_into(&mut [("w", &mut self.values)]).await.unwrap();
        // The learning rate of the file; every turn adds the same.
        let steps = self.client.clock().0 as f32;
        assert!((self.values[ELEMENTS - 1] - 0.1 * steps).abs() < 1e-3 * steps);
    }
}

/// Bare quinn to a process of its own.
struct Bare {
    child: Child,
    connection: Connection,
    _endpoint: Endpoint,
    _folder: tempfile::TempDir,
    source: Bytes,
    /// Where what comes is copied to, piece by piece.
    memory: Vec<Vec<u8>>,
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill(); // already over is fine
        let _ = self.child.wait();
    }
}

impl Bare {
    fn start(runtime: &Runtime, mtu: u16) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("bench").unwrap();
        authority.write(folder.path()).unwrap();
        for role in [Role::Server, Role::Worker] {
            authority.issue(role, "bench", 1).unwrap().write(folder.path()).unwrap();
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("bare-server")
            .arg(folder.path())
            .arg(mtu.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
        let credentials = Credentials::load_from(folder.path(), Role::Worker).unwrap();
        let (endpoint, connection) = runtime.block_on(async {
            let settings = TransportSettings::with_mtu(mtu);
            let endpoint = client_endpoint(&credentials, &settings).unwrap();
            let connection = quic::connect(&endpoint, address.trim(), Role::Server, DEADLINE);
            (endpoint.clone(), connection.await.unwrap())
        });
        let source = Bytes::from(vec![1; ELEMENTS * 4]);
        let memory = vec![vec![0; PIECE_BYTES]; PIECES];
        Self { child, connection, _endpoint: endpoint, _folder: folder, source, memory }
    }

    /// All pieces up, then all down. The request's first byte says which, the second whether what is
    /// received is copied.
    async fn turn(&mut self, copy: bool, up: &mut dyn FnMut()) {
        let permits = Arc::new(Semaphore::new(IN_FLIGHT));
        let mut pushes = tokio::task::JoinSet::new();
        for piece in 0..PIECES {
            let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
            let (connection, body) = (self.connection.clone(), self.piece(piece));
            pushes.spawn(async move {
                let _permit = permit;
                let (mut send, mut recv) = connection.open_bi().await.unwrap();
                send.write_all_chunks(&mut [head(b'u', copy, piece), body]).await.unwrap();
                send.finish().unwrap();
                while recv.read_chunk(usize::MAX, true).await.unwrap().is_some() {}
            });
            tokio::task::yield_now().await;
        }
        while pushes.join_next().await.is_some() {}
        up();

        let mut pulls = tokio::task::JoinSet::new();
        for (piece, mut place) in self.memory.drain(..).enumerate() {
            let (permits, connection) = (Arc::clone(&permits), self.connection.clone());
            pulls.spawn(async move {
                let _permit = permits.acquire().await.unwrap();
                let (mut send, mut recv) = connection.open_bi().await.unwrap();
                send.write_all_chunks(&mut [head(b'd', copy, piece)]).await.unwrap();
                send.finish().unwrap();
                recv.read_exact(&mut [0; HEAD_BYTES]).await.unwrap();
                assert_eq!(take(&mut recv, copy.then_some(&mut place)).await, PIECE_BYTES);
                place
            });
        }
        while let Some(place) = pulls.join_next().await {
            self.memory.push(place.unwrap());
        }
    }

    fn piece(&self, piece: usize) -> Bytes {
        self.source.slice(piece * PIECE_BYTES..(piece + 1) * PIECE_BYTES)
    }
}

fn head(kind: u8, copy: bool, piece: usize) -> Bytes {
    let mut head = vec![0; HEAD_BYTES];
    head[0] = kind;
    head[1] = u8::from(copy);
    head[2] = u8::try_from(piece).unwrap();
    head.into()
}

/// Reads a body to its end, dropping the chunks or copying them into `place`.
async fn take(recv: &mut RecvStream, mut place: Option<&mut Vec<u8>>) -> usize {
    let mut at = 0;
    while let Some(chunk) = recv.read_chunk(usize::MAX, true).await.unwrap() {
        if let Some(place) = &mut place {
            place[at..at + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
        }
        at += chunk.bytes.len();
    }
    at
}

/// The other process: says where it listens, then serves one connection until it is ended.
async fn bare_server(certificates: &Path, mtu: u16) {
    let credentials = Credentials::load_from(certificates, Role::Server).unwrap();
    let settings = TransportSettings::with_mtu(mtu);
    let listen = "127.0.0.1:0".parse().unwrap();
    let endpoint = server_endpoint(listen, &credentials, &[Role::Worker], &settings).unwrap();
    println!("{}", endpoint.local_addr().unwrap());
    let incoming = quic::accept(&endpoint).await.unwrap();
    let connection = quic::handshake(incoming, DEADLINE).await.unwrap();
    let memory = Arc::new(Mutex::new(vec![vec![0; PIECE_BYTES]; PIECES]));
    let source = Bytes::from(vec![2; ELEMENTS * 4]);
    while let Ok((send, recv)) = connection.accept_bi().await {
        tokio::spawn(bare_answer(send, recv, Arc::clone(&memory), source.clone()));
    }
}

async fn bare_answer(
    mut send: SendStream,
    mut recv: RecvStream,
    memory: Arc<Mutex<Vec<Vec<u8>>>>,
    source: Bytes,
) {
    let mut head = [0; HEAD_BYTES];
    recv.read_exact(&mut head).await.unwrap();
    let (copy, piece) = (head[1] == 1, usize::from(head[2]));
    let mut pieces = vec![Bytes::from(vec![0; HEAD_BYTES])];
    if head[0] == b'u' {
        let mut place = std::mem::take(&mut memory.lock().unwrap()[piece]);
        assert_eq!(take(&mut recv, copy.then_some(&mut place)).await, PIECE_BYTES);
        memory.lock().unwrap()[piece] = place;
    } else {
        pieces.push(source.slice(piece * PIECE_BYTES..(piece + 1) * PIECE_BYTES));
    }
    send.write_all_chunks(&mut pieces).await.unwrap();
    send.finish().unwrap();
}
