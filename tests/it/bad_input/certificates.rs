//! Certificates that are wrong, found before the network is used where that is possible.

use super::{CONFIG, run};
use slackline_common::quic::Authority;
use slackline_common::role::Role;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tests::cluster::Cluster;

fn config(folder: &Path, role: &str, certificate: &str, key: &str, coordinator: &str) {
    let listen = if role == "worker" { "" } else { "listen = \"127.0.0.1:0\"\n" };
    let coordinator = match role {
        "coordinator" => "run_dir = \"runs\"\n".to_owned(),
        _ => format!("coordinator = \"{coordinator}\"\n"),
    };
    let text = format!(
        "{listen}{coordinator}[certificates]\nca = \"ca.pem\"\ncertificate = \"{certificate}\"\n\
         key = \"{key}\"\n"
    );
    fs::write(folder.join("x.toml"), text).unwrap();
}

#[test]
fn a_certificate_that_cannot_be_used_is_one_line_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::create("ours").unwrap();
    authority.write(folder).unwrap();
    for role in Role::ALL {
        authority.issue(role, "test", 1).unwrap().write(folder).unwrap();
    }
    fs::write(folder.join("garbage.pem"), "no certificate at all\n").unwrap();
    let stranger = Authority::create("theirs").unwrap().issue(Role::Worker, "test", 1).unwrap();
    fs::write(folder.join("stranger.pem"), &stranger.cert_pem).unwrap();
    fs::write(folder.join("stranger.key"), &stranger.key_pem).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let old = authority
        .issue_between(Role::Worker, "test", then, then + Duration::from_secs(60))
        .unwrap();
    fs::write(folder.join("old.pem"), &old.cert_pem).unwrap();
    fs::write(folder.join("old.key"), &old.key_pem).unwrap();
    let check = |role: &str, certificate: &str, key: &str, parts: &[&str]| {
        config(folder, role, certificate, key, "127.0.0.1:1");
        for flags in [&["--config", "x.toml"][..], &["--config", "x.toml", "--check-config"]] {
            let said = run(folder, &format!("slackline-{role}"), flags);
            said.check(CONFIG, parts);
            assert_eq!(said.stderr.lines().count(), 1, "{said:?}");
        }
    };
    for role in ["worker", "server", "coordinator"] {
        let key = format!("{role}.key");
        check(role, "none.pem", &key, &["none.pem does not exist", "slackline certs"]);
        check(role, "garbage.pem", &key, &["garbage.pem is not PEM"]);
        check(role, &format!("{role}.pem"), "operator.key", &["operator.key does not belong to"]);
    }
    check(
        "worker",
        "server.pem",
        "server.key",
        &["server.pem is a server's, a worker's is needed"],
    );
    check(
        "server",
        "worker.pem",
        "worker.key",
        &["worker.pem is a worker's, a server's is needed"],
    );
    check("worker", "old.pem", "old.key", &["old.pem expired on 2001-09-09"]);
    check("worker", "stranger.pem", "stranger.key", &["stranger.pem is not signed by the CA in"]);
}

#[test]
fn members_of_another_authority_are_refused_on_both_ends() {
    let cluster = Cluster::new("");
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create("theirs").unwrap();
    authority.write(folder.path()).unwrap();
    for role in Role::ALL {
        authority.issue(role, "test", 1).unwrap().write(folder.path()).unwrap();
    }
    for role in ["worker", "server"] {
        let (pem, key) = (format!("{role}.pem"), format!("{role}.key"));
        config(folder.path(), role, &pem, &key, &cluster.coordinator);
        let said = run(folder.path(), &format!("slackline-{role}"), &["--config", "x.toml"]);
        said.check(CONFIG, &[&cluster.coordinator, "not signed by the same CA", "slackline certs"]);
    }
    let certificates = folder.path().display().to_string();
    let flags = ["status", "--coordinator", &cluster.coordinator, "--certificates", &certificates];
    run(folder.path(), "slackline", &flags).check(CONFIG, &["not signed by the same CA"]);
    let coordinator = cluster.coordinator_id();
    cluster.wait_for_line(coordinator, "refused our certificate: it is not signed by the same CA");
}
