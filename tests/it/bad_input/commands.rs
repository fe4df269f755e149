//! Commands given to nobody, too early, too late, or with a folder that cannot be written.

use super::{CONFIG, UNREACHABLE, run};
use safetensors::SafeTensors;
use std::fs;
use std::net::UdpSocket;
use tests::cluster::{Cluster, job_file};

#[test]
fn commands_to_nobody_say_where_they_looked() {
    let cluster = Cluster::new("");
    let deaf = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap().to_string();
    let certificates = cluster.certificates().display().to_string();
    let job = job_file("digits.toml").display().to_string();
    let job = job.as_str();
    let place = ["--coordinator", &address, "--certificates", &certificates];
    std::thread::scope(|scope| {
        for words in [&["status"][..], &["export"], &["submit", job]] {
            let arguments: Vec<_> = words.iter().copied().chain(place).collect();
            let folder = cluster.path("");
            scope.spawn(move || {
                let said = run(&folder, "slackline", &arguments);
                said.check(UNREACHABLE, &["nobody answered as coordinator at 127.0.0.1:", "UDP"]);
            });
        }
    });
    assert!(!cluster.path("model.safetensors").exists());
}

#[test]
fn the_model_can_be_saved_while_it_trains_and_a_second_job_waits_for_the_first() {
    let mut cluster = Cluster::new("after_job = \"wait\"");
    let early = cluster.slackline("export", &["--output", "never.safetensors"]);
    let words = String::from_utf8(early.stderr).unwrap();
    assert_eq!(early.status.code(), Some(CONFIG), "{words}");
    assert!(words.contains("there is no job, so there is no model"), "{words}");
    let members = [cluster.server(""), cluster.server(""), cluster.worker(""), cluster.worker("")];
    let job = job_file("digits.toml");
    let job = job.to_str().unwrap();
    let sets = ["--set", "workers=2", "--set", "epochs=100000"];
    cluster.submit(&job_file("digits.toml"), &["workers=2", "epochs=100000"]);
    cluster.wait_for_line(cluster.coordinator_id(), "training begins");
    let output = cluster.path("now.safetensors");
    let saved = cluster.slackline("export", &["--output", output.to_str().unwrap()]);
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    let bytes = fs::read(&output).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("fc1.weight").unwrap().shape(), [128, 64]);
    let arguments: Vec<_> = [job].into_iter().chain(sets).collect();
    let second = cluster.slackline("submit", &arguments);
    let words = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(CONFIG), "{words}");
    assert!(words.contains("job \"digits\" is not over"), "{words}");
    cluster.signal(cluster.coordinator_id(), "TERM");
    for id in [cluster.coordinator_id()].into_iter().chain(members) {
        assert!(cluster.wait_for_end(id).success(), "{}", cluster.logs());
    }
}

#[test]
fn after_a_job_the_next_one_is_taken_by_the_same_members() {
    let mut cluster = Cluster::new("after_job = \"wait\"");
    let members = [cluster.server(""), cluster.worker(""), cluster.worker("")];
    let job = job_file("digits.toml").display().to_string();
    for mode in ["mode=bsp", "mode=asp"] {
        let sets = ["--set", mode, "--set", "workers=2", "--set", "servers=1", "--set", "epochs=2"];
        let arguments: Vec<_> = [job.as_str()].into_iter().chain(sets).collect();
        let output = cluster.slackline("submit", &arguments);
        assert!(output.status.success(), "{}", cluster.logs());
        let late = cluster.slackline("export", &[]);
        let words = String::from_utf8(late.stderr).unwrap();
        assert_eq!(late.status.code(), Some(CONFIG), "{words}");
        assert!(words.contains("no job"), "{words}");
    }
    assert_eq!(cluster.summary("digits-2")["mode"], "asp");
    cluster.signal(cluster.coordinator_id(), "TERM");
    for id in [cluster.coordinator_id()].into_iter().chain(members) {
        assert!(cluster.wait_for_end(id).success(), "{}", cluster.logs());
    }
}

#[test]
fn a_folder_for_runs_that_cannot_be_made_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let job = job_file("digits.toml").display().to_string();
    let said = run(folder.path(), "slackline", &["run", &job, "--run-dir", "file/runs"]);
    said.check(CONFIG, &["file/runs: Not a directory"]);
}

#[test]
fn a_port_in_use_is_one_line_with_the_address() {
    let mut cluster = Cluster::new("");
    let address = cluster.coordinator.clone();
    let listen = format!("listen = \"{address}\"\n");
    let taken = format!("cannot listen on {address}: the port is in use by another process");
    let second = [
        cluster.start("second", "coordinator", &format!("{listen}run_dir = \"runs\"\n"), &[]),
        cluster.start("third", "server", &format!("{listen}coordinator = \"{address}\"\n"), &[]),
    ];
    for id in second {
        let status = cluster.wait_for_end(id);
        let log = cluster.log(id);
        assert_eq!(status.code(), Some(CONFIG), "{log}");
        assert!(log.lines().last().unwrap().ends_with(&taken), "{log}");
    }
}

#[test]
fn a_seat_that_is_taken_is_refused_with_its_holder() {
    let mut cluster = Cluster::new("");
    let first = cluster.worker("seat = 0\nname = \"anna\"");
    cluster.wait_for_line(cluster.coordinator_id(), "worker anna");
    let second = cluster.worker("seat = 0\nname = \"bert\"");
    let status = cluster.wait_for_end(second);
    let log = cluster.log(second);
    assert_eq!(status.code(), Some(CONFIG), "{log}");
    let line = log.lines().last().unwrap();
    assert!(line.contains("seat 0 is held by anna at") && line.contains(" UTC"), "{log}");
    cluster.signal(first, "TERM");
    assert!(cluster.wait_for_end(first).success());
}
