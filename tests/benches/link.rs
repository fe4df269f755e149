//! Bulk push over one connection of ours: a sender process, a receiver process, and a link between.
//!
//! Run: `cargo bench -p tests --bench link`, which puts the relay of `tests::relay` between two
//! processes and goes through the links and controllers of docs/BENCHMARKS.md, or, where the link is
//! made by something else (network namespaces), each end by itself with the program that
//! `cargo bench -p tests --bench link --no-run` names:
//!
//! ```text
//! link certificates FOLDER
//! link receive FOLDER 10.77.0.1:7000
//! link send FOLDER 10.77.0.1:7000 rate 10 [EGRESS_MBIT]
//! ```
//!
//! The sender pushes frames of 1 MiB, each on a stream of its own and 32 on their way, as a worker
//! does, for so many seconds. Counted is what was read by the receiver, from its first byte on.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use bytes::Bytes;
use quinn::{Connection, Endpoint};
use slackline_common::config::{Congestion, Link};
use slackline_common::limits::FRAMES_IN_FLIGHT_MAX;
use slackline_common::quic::{
    self, Authority, Credentials, TransportSettings, Windows, client_endpoint, server_endpoint,
};
use slackline_common::role::Role;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path as Folder;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::report;
use tests::relay::{Path, Relay};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

const FRAME_BYTES: usize = 1 << 20;
const DEADLINE: Duration = Duration::from_secs(10);
/// Seconds of one measurement.
const SECONDS: f64 = 12.0;
/// Megabits, round trip in milliseconds, loss of the way up, and the goal for the default controller.
const LINKS: [(f64, u64, f64, f64); 3] =
    [(100.0, 20, 0.0, 92.0), (100.0, 50, 0.01, 80.0), (20.0, 20, 0.0, 18.4)];
const CONTROLLERS: [&str; 3] = ["cubic", "bbr", "rate"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["certificates", folder] => certificates(Folder::new(folder)),
        ["receive", folder, address] => {
            runtime().block_on(receive(Folder::new(folder), address.parse().unwrap()));
        }
        ["send", folder, address, congestion, seconds, ref cap @ ..] => {
            let egress_megabits = cap.first().map(|cap| cap.parse().unwrap());
            let link = Link { congestion: controller(congestion), egress_megabits };
            let seconds = Duration::from_secs_f64(seconds.parse().unwrap());
            let folder = Folder::new(folder);
            println!("{}", runtime().block_on(send(folder, address, link, seconds)));
        }
        _ => measure_all(if support::quick() { 1.0 } else { SECONDS }),
    }
}

fn controller(name: &str) -> Congestion {
    match name {
        "cubic" => Congestion::Cubic,
        "bbr" => Congestion::Bbr,
        "rate" => Congestion::Rate,
        other => panic!("no controller {other:?}: cubic, bbr or rate"),
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn certificates(folder: &Folder) {
    let authority = Authority::create("bench").unwrap();
    authority.write(folder).unwrap();
    for role in [Role::Server, Role::Worker] {
        authority.issue(role, "bench", 1).unwrap().write(folder).unwrap();
    }
}

fn measure_all(seconds: f64) {
    for (megabits, round_trip, loss, goal) in LINKS {
        let delay = Duration::from_millis(round_trip) / 2;
        // A queue of 50 ms.
        #[allow(clippy::cast_possible_truncation)]
        let queue_bytes = (megabits * 1e6 / 8.0 * 0.05) as usize;
        let up = Path { megabits: Some(megabits), queue_bytes, delay, loss, ..Path::default() };
        let down = Path { loss: 0.0, ..up };
        let link = format!("{megabits} Mbit/s, {round_trip} ms, {:.0} % loss", loss * 100.0);
        for name in CONTROLLERS {
            let (line, counts) = measure(up, down, &[name, &seconds.to_string()]);
            let reached = goodput(&line);
            let text = format!("{line}; the queue dropped {}", counts.overflowed);
            let met = (name == "rate").then_some(reached >= goal);
            report(&format!("bulk push, {link}, {name}"), &format!(">= {goal} Mbit/s"), &text, met);
        }
    }
    // Without a link between, what the relay counts is what left.
    let cap = 20.0;
    let (line, _) = measure(Path::default(), Path::default(), &["rate", "5", &cap.to_string()]);
    let left: f64 =
        line.split(" Mbit/s left").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    let met = Some((left / cap - 1.0).abs() <= 0.05);
    report("egress cap of 20 Mbit/s", "within 5 %", &line, met);
}

/// One sender through a relay to one receiver: what the sender prints.
fn measure(up: Path, down: Path, arguments: &[&str]) -> (String, tests::relay::Counts) {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let mut receiver = Process::start(&["receive", folder.path().to_str().unwrap(), "127.0.0.1:0"]);
    let relay = Relay::start(up, down, 1);
    relay.lead_to(receiver.line().parse().unwrap());
    let address = relay.address().to_string();
    let head = ["send", folder.path().to_str().unwrap(), &address];
    let line = Process::start(&[&head, arguments].concat()).line();
    (line, relay.counts().0)
}

fn goodput(line: &str) -> f64 {
    line.split(' ').next().unwrap().parse().unwrap()
}

/// This program with other arguments; it ends with the handle.
struct Process(Child);

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Self(command.args(arguments).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// The first line it says.
    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill(); // already over is fine
        let _ = self.0.wait();
    }
}

/// Says where it listens, then serves senders until it is ended.
async fn receive(folder: &Folder, listen: SocketAddr) {
    let credentials = Credentials::load_from(folder, Role::Server).unwrap();
    let settings = TransportSettings::default();
    let endpoint = server_endpoint(listen, &credentials, &[Role::Worker], &settings).unwrap();
    println!("{}", endpoint.local_addr().unwrap());
    while let Some(incoming) = quic::accept(&endpoint).await {
        let Ok(connection) = quic::handshake(incoming, DEADLINE).await else { continue };
        tokio::spawn(serve(connection));
    }
}

async fn serve(connection: Connection) {
    let read = Arc::new((AtomicU64::new(0), Mutex::new(None::<Instant>)));
    let mut windows = Windows::default();
    while let Ok((send, recv)) = connection.accept_bi().await {
        windows.follow(&connection);
        tokio::spawn(take(send, recv, Arc::clone(&read)));
    }
}

/// Reads a frame; an empty one is the question how much was read by now, and in what time.
async fn take(
    mut send: quinn::SendStream,
    mut recv: quinn::RecvStream,
    read: Arc<(AtomicU64, Mutex<Option<Instant>>)>,
) {
    let (mut bytes, (total, first)) = (0, &*read);
    while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX, true).await {
        first.lock().await.get_or_insert_with(Instant::now);
        bytes += chunk.bytes.len() as u64;
        total.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
    }
    let seconds = first.lock().await.map_or(0.0, |first| first.elapsed().as_secs_f64());
    let answer = if bytes == 0 {
        format!("{} {seconds}", total.load(Ordering::Relaxed))
    } else {
        String::new()
    };
    // The sender may be gone.
    drop(send.write_all(answer.as_bytes()).await);
    drop(send.finish());
}

async fn send(folder: &Folder, address: &str, link: Link, lasts: Duration) -> String {
    let credentials = Credentials::load_from(folder, Role::Worker).unwrap();
    let settings = TransportSettings::default().with_link(&link);
    let endpoint: Endpoint = client_endpoint(&credentials, &settings).unwrap();
    let connection = quic::connect(&endpoint, address, Role::Server, DEADLINE).await.unwrap();
    let start = Instant::now();
    // Ends in the middle of frames: the last ones of a slow link would take long.
    drop(timeout(lasts, push(&connection)).await);
    let stats = connection.stats();
    let seconds = start.elapsed().as_secs_f64();
    let (mut send, mut recv) = connection.open_bi().await.unwrap();
    send.finish().unwrap();
    let answer = recv.read_to_end(100).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (bytes, reading) = answer.split_once(' ').unwrap();
    let goodput = bytes.parse::<f64>().unwrap() * 8e-6 / reading.parse::<f64>().unwrap();
    let (packets, payload) = (stats.path.sent_packets, stats.udp_tx.bytes);
    // What the cap counts: IPv4 and UDP headers too.
    let left = (payload + 28 * stats.udp_tx.datagrams) as f64 * 8e-6 / seconds;
    let (round_trip, cwnd) = (connection.rtt().as_secs_f64() * 1e3, stats.path.cwnd >> 10);
    connection.close(0_u32.into(), b"measured");
    endpoint.wait_idle().await;
    format!(
        "{goodput:.1} Mbit/s read, {left:.1} Mbit/s left, {:.1} % of {packets} packets lost, round trip \
         {round_trip:.0} ms, window {cwnd} KiB",
        100.0 * stats.path.lost_packets as f64 / packets as f64,
    )
}

/// Frames for ever, so many at once.
async fn push(connection: &Connection) {
    let permits = Arc::new(Semaphore::new(FRAMES_IN_FLIGHT_MAX));
    let frame = Bytes::from(vec![1; FRAME_BYTES]);
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
        let (connection, frame) = (connection.clone(), frame.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            // The measurement may end meanwhile.
            if send.write_chunk(frame).await.is_ok() && send.finish().is_ok() {
                drop(recv.read_to_end(1).await);
            }
        });
    }
}
