//! A cluster started by hand, word for word as README.md says, with the files of `configs/`.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;
use tests::clock::wait_for;
use tests::cluster::{Cluster, PATIENCE, job_file, program, root};

/// A clone of the repository, as far as a cluster needs it, and what runs in it.
struct Clone {
    folder: TempDir,
    port: String,
    children: Vec<Child>,
}

impl Drop for Clone {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill(); // already over is fine
            let _ = child.wait();
        }
    }
}

fn copy(from: &Path, to: &Path, port: &str) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target, port);
        } else {
            // The port of the files may be in use by somebody's real cluster.
            fs::write(target, fs::read_to_string(&path).unwrap().replace("7700", port)).unwrap();
        }
    }
}

impl Clone {
    fn new() -> Self {
        let folder = TempDir::with_prefix("slackline-test-").unwrap();
        let free = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port().to_string();
        copy(&root().join("configs"), &folder.path().join("configs"), &port);
        Self { folder, port, children: Vec::new() }
    }

    fn command(&self, line: &str) -> Command {
        let mut words = line.split_whitespace();
        let mut command = Command::new(program(words.next().unwrap()));
        command.args(words.map(|word| word.replace("7700", &self.port)));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Output {
        let output = self.command(line).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}: {words}");
        output
    }

    fn start(&mut self, line: &str) {
        let mut command = self.command(line);
        self.children.push(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    }
}

#[test]
fn a_cluster_started_by_hand_trains_as_the_readme_says() {
    let mut clone = Clone::new();
    clone.run("slackline certs");
    let certs = clone.folder.path().join("certs");
    for role in ["coordinator", "server", "worker"] {
        let line = format!("slackline-{role} --config configs/{role}.toml --check-config");
        let said = String::from_utf8(clone.run(&line).stdout).unwrap();
        assert_eq!(said, format!("configs/{role}.toml: no faults\n"));
    }
    assert!(certs.join("operator.pem").exists() && certs.join("ca.key").exists());
    clone.start("slackline-coordinator --config configs/coordinator.toml");
    for _ in 0..2 {
        clone.start("slackline-server --config configs/server.toml");
    }
    for seat in 0..4 {
        clone.start(&format!("slackline-worker --config configs/worker.toml --seat {seat}"));
    }
    let status = "slackline status --json --coordinator 127.0.0.1:7700";
    let all_here = || {
        let output = clone.command(status).output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        (status["members"].as_array()?.len() == 6).then_some(())
    };
    wait_for("six members", PATIENCE, all_here, String::new);
    let output =
        clone.run("slackline submit configs/jobs/digits.toml --coordinator 127.0.0.1:7700");
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(
        words.contains("test accuracy  0.9") && words.contains("run folder     runs/digits"),
        "{words}"
    );
    for mut child in std::mem::take(&mut clone.children) {
        let ended =
            wait_for("a program to end", PATIENCE, || child.try_wait().unwrap(), String::new);
        assert!(ended.success(), "{ended}");
    }
    assert!(clone.folder.path().join("runs/digits/model.safetensors").exists());
}

#[test]
fn a_coordinator_that_logs_json_says_nothing_else() {
    let mut cluster = Cluster::new("[log]\nformat = \"json\"");
    let coordinator = cluster.coordinator_id();
    cluster.submit(&job_file("digits.toml"), &[]);
    cluster.signal(coordinator, "TERM");
    assert!(cluster.wait_for_end(coordinator).success(), "{}", cluster.logs());
    let log = cluster.log(coordinator);
    assert!(log.lines().count() >= 3, "{log}");
    for line in log.lines() {
        let said: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(said["level"].is_string() && said["fields"]["message"].is_string(), "{line}");
    }
}
