//! What a cluster does when something dies, is stopped or never comes: it goes on where it can, and
//! otherwise ends soon, everywhere, with one line that names who is missing and since when.

mod coordinator;
mod local;
mod servers;
mod start;
mod workers;

use serde_json::Value;
use tests::clock::wait_for;
use tests::cluster::{Cluster, MemberId, PATIENCE, job_file};

/// Samples of the embedded digits' training part.
const DIGITS: u64 = 1437;
/// Passes over them: long enough that whoever is hurt is hurt in the middle.
const EPOCHS: u64 = 60;
/// A member that says nothing for a second is gone.
const COORDINATOR: &str = "lease_seconds = 1.0";
/// Members end two seconds after they lost somebody they need.
const SERVER: &str = "coordinator_grace_seconds = 2.0";
const WORKER: &str = "coordinator_grace_seconds = 2.0\nserver_grace_seconds = 2.0";
/// Exit code of who lost a peer.
const UNREACHABLE: Option<i32> = Some(69);

/// Two servers and four workers in the middle of the digits job.
struct Busy {
    cluster: Cluster,
    servers: Vec<MemberId>,
    workers: Vec<MemberId>,
}

impl Busy {
    /// Starts them and waits until training is under way.
    fn new(sets: &[&str]) -> Self {
        Self::start(sets, EPOCHS)
    }

    /// As [`Busy::new`], with work for as long as the test needs.
    fn without_end(sets: &[&str]) -> Self {
        Self::start(sets, 100_000)
    }

    fn start(sets: &[&str], epochs: u64) -> Self {
        let mut cluster = Cluster::new(COORDINATOR);
        let servers: Vec<_> = (0..2).map(|_| cluster.server(SERVER)).collect();
        let workers: Vec<_> =
            (0..4).map(|seat| cluster.worker(&format!("seat = {seat}\n{WORKER}"))).collect();
        let epochs = format!("epochs={epochs}");
        let sets: Vec<_> = sets.iter().copied().chain([epochs.as_str()]).collect();
        cluster.submit(&job_file("digits.toml"), &sets);
        let busy = Self { cluster, servers, workers };
        busy.wait_for_samples(2000);
        busy
    }

    /// Everybody but the coordinator.
    fn members(&self) -> Vec<MemberId> {
        self.servers.iter().chain(&self.workers).copied().collect()
    }

    /// What `slackline status --json` says.
    fn status(&self) -> Value {
        status(&self.cluster)
    }

    /// Samples that all workers together have pushed.
    fn samples(&self) -> u64 {
        let status = self.status();
        let members = status["members"].as_array().unwrap();
        members.iter().map(|member| member["samples"].as_u64().unwrap()).sum()
    }

    fn wait_for_samples(&self, count: u64) {
        let reached = || (self.samples() >= count).then_some(());
        wait_for(&format!("{count} samples"), PATIENCE, reached, || self.cluster.logs());
    }

    /// Waits for all of `ids` to end with `code`; returns what each said last on its own behalf.
    fn all_end_with(&mut self, ids: &[MemberId], code: Option<i32>) -> Vec<String> {
        ids.iter().map(|id| ends_with(&mut self.cluster, *id, code)).collect()
    }

    /// Waits for a good end of the whole job and returns its summary.
    fn finish(mut self, survivors: &[MemberId]) -> Value {
        let coordinator = self.cluster.coordinator_id();
        let all: Vec<_> = [coordinator].into_iter().chain(survivors.iter().copied()).collect();
        self.all_end_with(&all, Some(0));
        let summary = self.cluster.summary("digits");
        assert_eq!(summary["ok"], true, "{summary}");
        summary
    }
}

fn status(cluster: &Cluster) -> Value {
    let output = cluster.slackline("status", &["--json"]);
    assert!(output.status.success(), "{}", cluster.logs());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Waits for a member's end and gives the last line of its log: its own sentence.
fn ends_with(cluster: &mut Cluster, id: MemberId, code: Option<i32>) -> String {
    let status = cluster.wait_for_end(id);
    let log = cluster.log(id);
    assert_eq!(status.code(), code, "{status}: {log}");
    log.lines().last().unwrap_or_default().to_owned()
}

/// Whether a line tells a time of day, as in `12:03:04 UTC`.
fn tells_since_when(line: &str) -> bool {
    line.contains("since ") && line.contains(" UTC")
}
