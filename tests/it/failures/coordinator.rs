//! The coordinator dies or is asked to go.

use super::{Busy, UNREACHABLE, ends_with};
use std::fs;
use tests::cluster::{Cluster, job_file};

#[test]
fn without_its_coordinator_training_goes_on_for_the_grace_and_then_ends() {
    for sets in [&[][..], &["mode=bsp"]] {
        let mut busy = Busy::without_end(sets);
        let coordinator = busy.cluster.coordinator_id();
        busy.cluster.kill(coordinator);
        for member in busy.members() {
            busy.cluster.wait_for_line(member, "training goes on");
        }
        let members = busy.members();
        for line in busy.all_end_with(&members, UNREACHABLE) {
            assert!(line.starts_with("slackline-"), "{line}");
            assert!(
                line.contains("coordinator") && line.contains(&busy.cluster.coordinator),
                "{line}"
            );
            assert!(line.contains("missing"), "{line}");
        }
    }
}

#[test]
fn a_coordinator_that_is_asked_to_go_stops_the_job_and_keeps_the_model() {
    for signal in ["TERM", "INT"] {
        let mut busy = Busy::without_end(&[]);
        let coordinator = busy.cluster.coordinator_id();
        busy.cluster.signal(coordinator, signal);
        let all = [vec![coordinator], busy.members()].concat();
        busy.all_end_with(&all, Some(0));
        let summary = busy.cluster.summary("digits");
        assert_eq!(summary["ok"], true, "{summary}");
        assert!(summary["reason"].as_str().unwrap().contains("stopped by a signal"), "{summary}");
        assert!(summary["test_accuracy"].is_f64(), "{summary}");
        assert!(busy.cluster.path("runs/digits/model.safetensors").exists());
    }
}

#[test]
fn a_job_that_an_operator_stops_keeps_its_model() {
    let mut busy = Busy::without_end(&[]);
    let output = busy.cluster.slackline("stop", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all = [vec![busy.cluster.coordinator_id()], busy.members()].concat();
    busy.all_end_with(&all, Some(0));
    let summary = busy.cluster.summary("digits");
    assert_eq!(summary["ok"], true, "{summary}");
    assert!(busy.cluster.path("runs/digits/model.safetensors").exists());
}

#[test]
fn a_coordinator_that_sleeps_for_less_than_the_grace_loses_nobody() {
    let busy = Busy::new(&[]);
    let coordinator = busy.cluster.coordinator_id();
    busy.cluster.signal(coordinator, "STOP");
    // Longer than the lease: the members have noticed.
    busy.cluster.wait_for_line(busy.servers[0], "training goes on");
    busy.cluster.signal(coordinator, "CONT");
    let members = busy.members();
    let summary = busy.finish(&members);
    assert_eq!(summary["samples"], super::EPOCHS * super::DIGITS);
    assert_eq!(summary["seats_lost"], serde_json::json!([]));
}

#[test]
fn a_job_stopped_while_it_gathers_is_no_failure_for_anybody() {
    let mut cluster = Cluster::new("");
    let (server, worker) = (cluster.server(""), cluster.worker(""));
    let submitter = cluster.submitter(&job_file("digits.toml"), &[]);
    let coordinator = cluster.coordinator_id();
    cluster.wait_for_line(submitter, "gathering");
    cluster.signal(coordinator, "TERM");
    for id in [coordinator, server, worker, submitter] {
        ends_with(&mut cluster, id, Some(0));
    }
    let words = cluster.log(submitter);
    assert!(words.contains("stopped by a signal before training began"), "{words}");
    assert_eq!(cluster.summary("digits")["ok"], false);
}

#[test]
fn a_model_that_cannot_be_written_gives_everybody_the_same_exit_code() {
    let mut cluster = Cluster::new("");
    let members = [cluster.server(""), cluster.server(""), cluster.worker(""), cluster.worker("")];
    let sets = ["workers=2", "epochs=1000000"];
    let submitter = cluster.submitter(&job_file("digits.toml"), &sets);
    let coordinator = cluster.coordinator_id();
    cluster.wait_for_line(coordinator, "training begins");
    // A folder in the file's place, which not even root may replace by a file.
    fs::create_dir_all(cluster.path("runs/digits/model.safetensors/taken")).unwrap();
    cluster.signal(coordinator, "TERM");
    for id in members.into_iter().chain([coordinator, submitter]) {
        let line = ends_with(&mut cluster, id, Some(70));
        assert!(line.contains("model.safetensors"), "{line}");
    }
}
