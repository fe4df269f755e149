//! A server dies: a part of the model is gone, so everybody ends and says which.

use super::{Busy, UNREACHABLE, tells_since_when};

#[test]
fn a_killed_server_ends_the_job_everywhere_with_its_name() {
    for sets in [&[][..], &["mode=bsp"]] {
        let mut busy = Busy::without_end(sets);
        let dead = busy.servers.remove(1);
        // A server without a name of its own is called by host and process.
        let name = format!("-{})", busy.cluster.pid(dead));
        busy.cluster.kill(dead);
        let coordinator = busy.cluster.coordinator_id();
        let line = busy.all_end_with(&[coordinator], UNREACHABLE).remove(0);
        let named = |line: &str| line.contains("server ") && line.contains(&name);
        assert!(named(&line) && tells_since_when(&line), "{line}");
        let members = busy.members();
        for line in busy.all_end_with(&members, UNREACHABLE) {
            assert!(line.starts_with("slackline-"), "{line}");
            assert!(named(&line) && tells_since_when(&line), "{line}");
        }
        let summary = busy.cluster.summary("digits");
        assert_eq!(summary["ok"], false);
        assert!(tells_since_when(summary["reason"].as_str().unwrap()), "{summary}");
        assert!(!busy.cluster.path("runs/digits/model.safetensors").exists());
    }
}

#[test]
fn a_server_that_is_stopped_is_named_by_those_who_wait_for_it() {
    let mut busy = Busy::without_end(&[]);
    let stopped = busy.servers[0];
    let name = format!("-{})", busy.cluster.pid(stopped));
    busy.cluster.signal(stopped, "STOP");
    let coordinator = busy.cluster.coordinator_id();
    let line = busy.all_end_with(&[coordinator], UNREACHABLE).remove(0);
    assert!(line.contains(&name) && tells_since_when(&line), "{line}");
    let others = [vec![busy.servers[1]], busy.workers.clone()].concat();
    for line in busy.all_end_with(&others, UNREACHABLE) {
        assert!(line.contains(&name) && tells_since_when(&line), "{line}");
    }
}

#[test]
fn a_server_that_is_asked_to_go_ends_the_job_with_its_words() {
    let mut busy = Busy::without_end(&[]);
    let leaver = busy.servers.remove(0);
    busy.cluster.signal(leaver, "TERM");
    busy.all_end_with(&[leaver], Some(0));
    let coordinator = busy.cluster.coordinator_id();
    let line = busy.all_end_with(&[coordinator], UNREACHABLE).remove(0);
    assert!(line.contains("server stopped by signal"), "{line}");
    let members = busy.members();
    for line in busy.all_end_with(&members, UNREACHABLE) {
        assert!(line.contains("server stopped by signal"), "{line}");
    }
}
