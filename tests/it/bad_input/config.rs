//! Files that are wrong: every fault of a file at once, each with its line and its rule.

use super::{CONFIG, run};
use slackline_common::quic::Authority;
use slackline_common::role::Role;
use std::fs;
use tempfile::TempDir;
use tests::cluster::root;

/// A folder with certificates of all roles.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let certs = folder.path().join("certs");
    let authority = Authority::create("test").unwrap();
    authority.write(&certs).unwrap();
    for role in Role::ALL {
        authority.issue(role, "test", 1).unwrap().write(&certs).unwrap();
    }
    folder
}

fn certificates(role: &str) -> String {
    format!(
        "[certificates]\nca = \"certs/ca.pem\"\ncertificate = \"certs/{role}.pem\"\n\
         key = \"certs/{role}.key\"\n"
    )
}

/// The lines that a program says to a file, without its own name.
fn faults(role: &str, config: &str) -> Vec<String> {
    let folder = folder();
    fs::write(folder.path().join("x.toml"), format!("{config}\n{}", certificates(role))).unwrap();
    let name = format!("slackline-{role}");
    let mut both = Vec::new();
    for flags in [&["--config", "x.toml"][..], &["--config", "x.toml", "--check-config"]] {
        let said = run(folder.path(), &name, flags);
        assert_eq!(said.code, Some(CONFIG), "{said:?}");
        let text = said.stderr.strip_prefix(&format!("{name}: ")).unwrap().to_owned();
        both.push(text.lines().map(str::to_owned).collect::<Vec<_>>());
    }
    assert_eq!(both[0], both[1]);
    both.remove(0)
}

#[test]
fn every_fault_of_a_file_is_told_at_once_with_line_value_and_rule() {
    let worker = "coordinater = \"127.0.0.1:1\"\nmtu = 100\nthreads = \"two\"";
    assert_eq!(
        faults("worker", worker),
        [
            "x.toml:3: threads: \"two\" is refused: must be an integer in 1..=256, not a text",
            "x.toml:2: mtu: 100 is refused: must be an integer in 1200..=9000",
            "x.toml:1: coordinater: unknown key; did you mean \"coordinator\"?",
        ]
    );
    let server = faults("server", "listen = \"here\"\ncoordinator = \"127.0.0.1:1\"\nshards = 0");
    assert_eq!(server.len(), 2, "{server:?}");
    let coordinator = faults("coordinator", "listen = \"127.0.0.1:0\"\nlease_seconds = -1");
    assert!(coordinator[0].starts_with("x.toml:2: lease_seconds: "), "{coordinator:?}");
}

#[test]
fn a_file_that_is_none_is_told_with_its_line() {
    let broken = faults("worker", "coordinator = ");
    assert!(broken.len() == 1 && broken[0].starts_with("x.toml:1"), "{broken:?}");
}

#[test]
fn a_file_that_is_missing_is_named() {
    let folder = folder();
    for role in ["worker", "server", "coordinator"] {
        let said = run(folder.path(), &format!("slackline-{role}"), &["--config", "none.toml"]);
        said.check(CONFIG, &["none.toml: cannot be opened: No such file"]);
        assert_eq!(said.stderr.lines().count(), 1, "{said:?}");
    }
}

#[test]
fn a_file_without_faults_is_said_to_have_none() {
    let folder = folder();
    for (role, config) in [
        ("worker", "coordinator = \"127.0.0.1:1\""),
        ("server", "listen = \"127.0.0.1:0\"\ncoordinator = \"127.0.0.1:1\""),
        ("coordinator", "listen = \"127.0.0.1:0\"\nrun_dir = \"runs\""),
    ] {
        let path = folder.path().join("x.toml");
        fs::write(path, format!("{config}\n{}", certificates(role))).unwrap();
        let flags = ["--config", "x.toml", "--check-config"];
        let said = run(folder.path(), &format!("slackline-{role}"), &flags);
        assert_eq!((said.code, said.stdout.as_str()), (Some(0), "x.toml: no faults\n"), "{said:?}");
    }
}

#[test]
fn a_job_that_contradicts_itself_is_refused_before_anything_starts() {
    let job = root().join("configs/jobs/digits.toml");
    let job = job.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let refused = |sets: &[&str], lines: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let arguments: Vec<_> = ["run", job].into_iter().chain(sets).collect();
        let said = run(folder.path(), "slackline", &arguments);
        assert_eq!(said.code, Some(CONFIG), "{said:?}");
        assert_eq!(said.stderr.lines().count(), lines.len(), "{said:?}");
        for (line, part) in said.stderr.lines().zip(lines) {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
        assert!(!folder.path().join("runs").exists());
    };
    refused(&["mode=bsp", "staleness=3"], &["staleness"]);
    refused(&["steps=3", "epochs=3"], &["steps"]);
    refused(
        &["model.widths=[64,128,5]"],
        &["tells 5 classes apart, but the built-in digits have 10"],
    );
    refused(&["mode=bps"], &["did you mean \"bsp\"?"]);
    refused(&["batch=0", "stalenes=3"], &["batch: 0 is refused", "did you mean \"staleness\"?"]);
    let said = run(folder.path(), "slackline", &["run", job, "--slow", "9:2"]);
    said.check(CONFIG, &["--slow", "9:2", "a seat of the job"]);
    run(folder.path(), "slackline", &["run", "none.toml"]).check(CONFIG, &["none.toml", "opened"]);
}
