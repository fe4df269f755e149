//! A worker dies or is asked to go: the others finish its samples.

use super::{Busy, DIGITS, EPOCHS, tells_since_when};
use serde_json::{Value, json};

/// Samples of one step of one worker: whoever dies may have sent one step to some shards only.
const STEP: u64 = 16;

fn all_samples_are_in(summary: &Value, doubt: u64) {
    let samples = summary["samples"].as_u64().unwrap();
    let all = EPOCHS * DIGITS;
    assert!(samples.abs_diff(all) <= doubt, "{samples} samples of {all}: {summary}");
}

fn survives_a_killed_worker(sets: &[&str]) {
    let mut busy = Busy::new(sets);
    let dead = busy.workers.remove(2);
    busy.cluster.kill(dead);
    let coordinator = busy.cluster.coordinator_id();
    let line = busy.cluster.wait_for_line(coordinator, "seat 2 (");
    let gone = busy.cluster.wait_for_line(coordinator, "missing since");
    assert!(gone.contains("seat 2 (") && tells_since_when(&gone), "{line}\n{gone}");
    busy.cluster.wait_for_line(coordinator, "samples go to other seats");
    let survivors = busy.members();
    let summary = busy.finish(&survivors);
    all_samples_are_in(&summary, STEP);
    assert_eq!(summary["seats_lost"], json!([2]));
    assert!(summary["test_accuracy"].as_f64().unwrap() > 0.9, "{summary}");
}

#[test]
fn a_killed_worker_costs_a_lease_and_no_samples_in_ssp() {
    survives_a_killed_worker(&[]);
}

#[test]
fn a_killed_worker_costs_a_lease_and_no_samples_in_bsp() {
    survives_a_killed_worker(&["mode=bsp"]);
}

#[test]
fn a_worker_that_is_asked_to_go_leaves_in_good_order() {
    for sets in [&[][..], &["mode=bsp"], &["mode=asp"]] {
        let mut busy = Busy::new(sets);
        let leaver = busy.workers.remove(1);
        busy.cluster.signal(leaver, "TERM");
        busy.all_end_with(&[leaver], Some(0));
        let survivors = busy.members();
        let coordinator = busy.cluster.coordinator_id();
        busy.cluster.wait_for_line(coordinator, "seat 1 finished early");
        let summary = busy.finish(&survivors);
        all_samples_are_in(&summary, 0);
        assert_eq!(summary["seats_lost"], json!([]), "{sets:?}");
    }
}

#[test]
fn a_worker_that_was_only_asleep_is_out_and_says_so_when_it_wakes() {
    let mut busy = Busy::new(&[]);
    let sleeper = busy.workers.remove(3);
    busy.cluster.signal(sleeper, "STOP");
    let coordinator = busy.cluster.coordinator_id();
    let line = busy.cluster.wait_for_line(coordinator, "seat 3 (");
    busy.cluster.wait_for_line(coordinator, "samples go to other seats");
    busy.cluster.signal(sleeper, "CONT");
    let status = busy.cluster.wait_for_end(sleeper);
    let said = busy.cluster.log(sleeper);
    assert!(matches!(status.code(), Some(64 | 69)), "{status}: {said}\n{line}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("slackline-worker: "), "{said}");
    // Whoever reaches it first tells it: the coordinator, or a server that was told to cut it off.
    let told = ["silent for more than 1.0 s", "taken out", "took seat 3 out of the job"];
    assert!(told.iter().any(|words| last.contains(words)), "{said}");
    let survivors = busy.members();
    all_samples_are_in(&busy.finish(&survivors), STEP);
}

#[test]
fn when_every_worker_is_gone_the_job_ends_and_says_who_was_the_last() {
    let mut busy = Busy::without_end(&[]);
    for worker in std::mem::take(&mut busy.workers) {
        busy.cluster.kill(worker);
    }
    let coordinator = busy.cluster.coordinator_id();
    let all = [vec![coordinator], busy.servers.clone()].concat();
    for line in busy.all_end_with(&all, super::UNREACHABLE) {
        assert!(line.contains("no worker is left") && tells_since_when(&line), "{line}");
    }
    assert_eq!(busy.cluster.summary("digits")["ok"], false);
}
