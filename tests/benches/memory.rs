//! What a server needs to hold 256 MiB of parameters with Adam: by Linux's figures of the real
//! process, after first values from a client and from the seed, and after pushes and pulls.
//!
//! Run: `cargo build --release --workspace --bins && cargo bench -p tests --bench memory`.
//!
//! Needed are the parameters and two moments each: three times 256 MiB. The goal leaves a tenth and
//! 64 MiB for buffers and the program; a second copy of anything would not fit into it.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use slackline_common::role::Role;
use slackline_worker::client::{Client, ClientConfig, ClientIdentity, Tensor};
use support::{memory_bytes, report};
use tests::cluster::{Cluster, MemberId, job_file};

const MIB: usize = 1 << 20;
/// Steps, each of which moves everything up and down.
const STEPS: usize = 4;

fn main() {
    // 16 tensors of 4 Mi elements are 256 MiB.
    let elements = if support::quick() { MIB / 16 } else { 4 * MIB };
    for mode in ["asp", "bsp"] {
        measure(mode, 16, elements);
    }
}

fn measure(mode: &str, tensors: usize, elements: usize) {
    let mut cluster = Cluster::new("");
    let server = cluster.server("");
    let set = format!("mode={mode}");
    let sets = ["workers=1", "servers=1", &set, "optimizer.kind=adam"];
    cluster.submit(&job_file("raw.toml"), &sets);
    let identity = ClientIdentity::Loaded(cluster.credentials(Role::Worker));
    let mut config = ClientConfig::new(cluster.coordinator.clone(), identity);
    config.mtu = 6500;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let parameters_mib = tensors * elements * 4 / MIB;
    println!("{parameters_mib} MiB of parameters, adam, {mode}: VmRSS and VmHWM of the server");
    let peak_mib = runtime.block_on(async {
        look(&cluster, server, "without a job");
        let mut client = Client::connect(config).await.unwrap();
        let names: Vec<_> = (0..tensors).map(|tensor| format!("w{tensor}")).collect();
        let gradient = vec![0.5; elements];
        let shape = [elements as u64];
        let firsts: Vec<_> =
            names.iter().map(|name| Tensor::new(name, &shape, &gradient)).collect();
        client.init(&firsts).await.unwrap();
        look(&cluster, server, "after first values");
        let pushes: Vec<_> = names.iter().map(|name| (name.as_str(), &gradient[..])).collect();
        let mut values = vec![vec![0.0; elements]; tensors];
        for step in 1..=STEPS {
            client.push_async(&pushes, 1).await.unwrap();
            let mut wanted: Vec<_> = names
                .iter()
                .map(String::as_str)
                .zip(values.iter_mut().map(Vec::as_mut_slice))
                .collect();
            client.pull_into(&mut wanted).await.unwrap();
            client.flush().await.unwrap();
            look(&cluster, server, &format!("after step {step}"));
        }
        let peak = look(&cluster, server, "at the end");
        client.leave().await.unwrap();
        peak
    });
    let held = if mode == "bsp" {
        // A step's contributions are kept until the step closes: one worker's push is all of it.
        "; bsp keeps the open step's gradients as well"
    } else {
        ""
    };
    let goal_mib = parameters_mib as f64 * 3.0 * 1.1 + 64.0;
    report(
        &format!("server memory, {parameters_mib} MiB of parameters, adam, {mode}"),
        &format!("<= 3 x parameters + 10 % + 64 MiB = {goal_mib:.0} MiB"),
        &format!("VmHWM {peak_mib:.0} MiB{held}"),
        (mode == "asp").then_some(peak_mib <= goal_mib),
    );
}

/// Prints what a server has now and at most had; returns the latter in MiB.
fn look(cluster: &Cluster, server: MemberId, when: &str) -> f64 {
    let pid = cluster.pid(server);
    let [now, peak] = ["VmRSS:", "VmHWM:"].map(|key| memory_bytes(pid, key) as f64 / MIB as f64);
    println!("  {when:<20} VmRSS {now:>7.0} MiB  VmHWM {peak:>7.0} MiB");
    peak
}
