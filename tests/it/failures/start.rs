//! Who never comes is named, by the programs and by `slackline status`.

use super::{ends_with, status};
use tests::cluster::{Cluster, job_file};

#[test]
fn a_job_without_enough_servers_says_how_many_are_missing() {
    let mut cluster = Cluster::new("lease_seconds = 1.0\nstart_timeout_seconds = 0.2");
    let server = cluster.server("");
    let workers: Vec<_> = (0..4).map(|_| cluster.worker("")).collect();
    cluster.submit(&job_file("digits.toml"), &["epochs=1"]);
    let coordinator = cluster.coordinator_id();
    let line = cluster.wait_for_line(coordinator, "waiting for 1 of 2 servers to join");
    assert!(!line.contains("worker"), "{line}");
    let seen = status(&cluster);
    assert_eq!(seen["phase"], "gathering");
    let missing = seen["missing"][0].as_str().unwrap();
    assert!(missing.starts_with("waiting for 1 of 2 servers to join"), "{missing}");
    let page = cluster.slackline("status", &[]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("missing: waiting for 1 of 2 servers to join"), "{page}");
    // It comes, and all is well.
    let late = cluster.server("");
    for id in [vec![coordinator, server, late], workers].concat() {
        ends_with(&mut cluster, id, Some(0));
    }
    assert_eq!(cluster.summary("digits")["ok"], true);
}

#[test]
fn a_member_that_dies_before_the_start_is_replaced() {
    let mut cluster = Cluster::new("lease_seconds = 1.0");
    let servers = [cluster.server(""), cluster.server("")];
    let doomed = cluster.worker("seat = 0");
    let coordinator = cluster.coordinator_id();
    cluster.submit(&job_file("digits.toml"), &["epochs=2", "workers=2"]);
    cluster.wait_for_line(coordinator, "waiting for 1 of 2 workers to join");
    cluster.kill(doomed);
    cluster.wait_for_line(coordinator, "missing since");
    let workers = [cluster.worker("seat = 0"), cluster.worker("seat = 1")];
    for id in [coordinator].into_iter().chain(servers).chain(workers) {
        ends_with(&mut cluster, id, Some(0));
    }
    let summary = cluster.summary("digits");
    assert_eq!(summary["samples"], 2 * super::DIGITS);
}

#[test]
fn members_that_find_no_coordinator_end_after_the_grace_and_say_where_they_looked() {
    let mut cluster = Cluster::new("");
    let coordinator = cluster.coordinator_id();
    cluster.kill(coordinator);
    let grace = "coordinator_grace_seconds = 1.0";
    for id in [cluster.server(grace), cluster.worker(grace)] {
        let line = ends_with(&mut cluster, id, super::UNREACHABLE);
        assert!(line.contains(&cluster.coordinator) && line.contains("answer"), "{line}");
    }
}
