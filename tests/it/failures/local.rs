//! `slackline run` is asked to stop: everything it started stops, and the model is kept.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tests::clock::wait_for;
use tests::cluster::PATIENCE;
use tests::run::Plan;

/// The processes whose parent is `pid`.
fn children(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|child| parent(*child) == Some(pid)).collect()
}

/// The parent of a process that is not a zombie.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name in brackets: state and parent.
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    (words.next()? != "Z").then(|| words.next()?.parse().ok()).flatten()
}

fn start(plan: &Plan) -> Child {
    let mut command = plan.command();
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
}

fn wait_for_training(folder: &Path) {
    let began = || {
        let log = fs::read_to_string(folder.join("log.jsonl")).ok()?;
        log.contains("\"kind\":\"training\"").then_some(())
    };
    wait_for("training", PATIENCE, began, String::new);
}

fn wait_for_nobody(pids: &[u32]) {
    let alive = || pids.iter().filter(|pid| parent(**pid).is_some()).count();
    wait_for(
        "all processes to end",
        PATIENCE,
        || (alive() == 0).then_some(()),
        || format!("{} of {pids:?} are alive", alive()),
    );
}

#[test]
fn a_run_that_is_interrupted_keeps_its_model_and_leaves_no_process() {
    for name in ["INT", "TERM"] {
        let plan = Plan::digits().set(&["epochs=100000"]);
        let mut child = start(&plan);
        let folder = plan.run_dir().join("digits");
        wait_for_training(&folder);
        let pids = children(child.id());
        assert_eq!(pids.len(), 7, "a coordinator, two servers and four workers");
        signal(&child, name);
        let status =
            wait_for("the run to end", PATIENCE, || child.try_wait().unwrap(), String::new);
        wait_for_nobody(&pids);
        let summary = fs::read_to_string(folder.join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
        assert_eq!(status.code(), Some(0), "{summary}");
        assert_eq!(summary["ok"], true, "{summary}");
        assert!(summary["reason"].as_str().unwrap().contains("stopped by"), "{summary}");
        assert!(folder.join("model.safetensors").exists());
    }
}

#[test]
fn a_run_that_is_killed_leaves_no_process_for_longer_than_the_grace() {
    let plan = Plan::digits().set(&["epochs=100000"]);
    let mut child = start(&plan);
    wait_for_training(&plan.run_dir().join("digits"));
    let pids = children(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    // Nobody watches any more, and the job would take hours: the coordinator must notice.
    wait_for_nobody(&pids);
}
