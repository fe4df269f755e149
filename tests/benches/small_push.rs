//! The round trip of one small step on loopback: a push of one 4 KiB tensor and the pull of it,
//! through a real server.
//!
//! Run: `cargo build --release --workspace --bins && cargo bench -p tests --bench small_push`.
//!
//! `push` is until the shard has applied and acknowledged; `push + pull` sends both at once and ends
//! when the values that contain the push are here.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use slackline_common::role::Role;
use slackline_worker::client::{Client, ClientConfig, ClientIdentity, Tensor};
use std::time::Instant;
use support::{median, quantile, report};
use tests::cluster::{Cluster, job_file};

/// Elements of the tensor: 4 KiB.
const ELEMENTS: usize = 1024;
const ROUNDS: usize = 2000;
/// Rounds before those that count.
const WARM_UP: usize = 200;

fn main() {
    let rounds = if support::quick() { 20 } else { ROUNDS };
    for mode in ["asp", "bsp"] {
        let (push, both) = measure(mode, rounds);
        show(&format!("small push of 4 KiB, {mode}"), &push);
        show(&format!("small push + pull of 4 KiB, {mode}"), &both);
    }
}

fn show(what: &str, micros: &[f64]) {
    let at = |share| quantile(micros, share);
    let reached = format!(
        "median {:.0} us, best {:.0}, p90 {:.0}, p99 {:.0}",
        median(micros),
        at(0.0),
        at(0.9),
        at(0.99)
    );
    report(what, "median <= 300 us", &reached, Some(median(micros) <= 300.0));
}

/// Microseconds of every push, and of every push with a pull.
fn measure(mode: &str, rounds: usize) -> (Vec<f64>, Vec<f64>) {
    let mut cluster = Cluster::new("");
    cluster.server("");
    let mode = format!("mode={mode}");
    cluster.submit(&job_file("raw.toml"), &["workers=1", "servers=1", &mode]);
    let identity = ClientIdentity::Loaded(cluster.credentials(Role::Worker));
    let mut config = ClientConfig::new(cluster.coordinator.clone(), identity);
    config.mtu = 6500;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = Client::connect(config).await.unwrap();
        let gradient = vec![1.0; ELEMENTS];
        client.init(&[Tensor::new("w", &[ELEMENTS as u64], &gradient)]).await.unwrap();
        let (mut pushes, mut both) = (Vec::new(), Vec::new());
        for round in 0..WARM_UP + rounds {
            let start = Instant::now();
            client.push(&[("w", &gradient)], 1).await.unwrap();
            let push = start.elapsed();
            let start = Instant::now();
            client.push_pull(&[("w", &gradient)], 1).await.unwrap();
            let push_pull = start.elapsed();
            if round >= WARM_UP {
                pushes.push(push.as_secs_f64() * 1e6);
                both.push(push_pull.as_secs_f64() * 1e6);
            }
        }
        client.leave().await.unwrap();
        (pushes, both)
    })
}
