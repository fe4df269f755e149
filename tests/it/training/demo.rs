//! The first run that anybody makes, and every file that it leaves.

use super::events;
use safetensors::SafeTensors;
use serde_json::Value;
use tests::run::{Plan, Run};

/// Samples of the embedded digits' training part.
const DIGITS: u64 = 1437;

fn model_file_is_the_layout(run: &Run) {
    let bytes = run.read("model.safetensors");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let layout = run.job.model.layout().unwrap();
    assert_eq!(file.len(), layout.tensors().len());
    for tensor in layout.tensors() {
        let view = file.tensor(&tensor.name).unwrap();
        let shape: Vec<u64> = view.shape().iter().map(|size| *size as u64).collect();
        assert_eq!(shape, tensor.shape, "{}", tensor.name);
        assert_eq!(view.dtype(), safetensors::Dtype::F32, "{}", tensor.name);
    }
    let flat: Vec<u8> = run.parameters().iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(run.model_hash(), blake3::hash(&flat).to_hex().as_str());
}

fn log_is_json_lines(run: &Run) {
    let log = String::from_utf8(run.read("log.jsonl")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
    assert!(lines.iter().all(|line| line["time"].is_string() && line["kind"].is_string()), "{log}");
    // Who joined before there was a run is not in its log.
    assert_eq!((of("submitted"), of("training"), of("ended")), (1, 1, 1), "{log}");
    assert!(of("joined") <= 6, "{log}");
    assert!(of("evaluated") >= 1 && of("progress") >= 1, "{log}");
}

fn events_tell_the_same(run: &Run, summary: &Value) {
    let folder = run.dir().join("tensorboard");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let events = events::read(&std::fs::read(&files[0]).unwrap());
    let last = |tag: &str| {
        let points = events.iter().flat_map(|event| &event.scalars);
        let mut points = points.filter(|(name, _)| name == tag);
        points.next_back().unwrap_or_else(|| panic!("no {tag}")).1
    };
    assert_eq!(events[0].version.as_deref(), Some("brain.Event:2"));
    let accuracy = summary["test_accuracy"].as_f64().unwrap();
    assert!((f64::from(last("test/accuracy")) - accuracy).abs() < 1e-6);
    let steps: Vec<u64> = events.iter().map(|event| event.step).collect();
    // Tests are told where they were made, not where the last report of a server was.
    let tests =
        events.iter().filter(|event| event.scalars.iter().any(|(tag, _)| tag == "test/loss"));
    let mut at: Vec<u64> = tests.map(|event| event.step).collect();
    let count = at.len();
    at.dedup();
    assert!(count >= 10 && at.len() == count && at.is_sorted(), "{at:?}");
    assert_eq!(steps.last().copied(), summary["steps"].as_u64());
}

#[test]
fn the_demo_learns_the_digits_and_leaves_everything_it_promises() {
    let run = Plan::digits().run_well();
    let summary = run.summary();
    let number = |key: &str| summary[key].as_u64().unwrap_or_else(|| panic!("{key}: {summary}"));
    let real = |key: &str| summary[key].as_f64().unwrap_or_else(|| panic!("{key}: {summary}"));
    assert!(real("test_accuracy") >= 0.96, "{summary}");
    assert!(real("final_loss") < 0.2 && real("wall_seconds") > 0.0, "{summary}");
    assert_eq!(summary["job_hash"], run.job.hash().to_string());
    assert_eq!(summary["mode"], "ssp");
    assert_eq!((number("workers"), number("servers"), number("seed")), (4, 2, 1));
    assert_eq!(number("samples"), 100 * DIGITS, "each sample once per epoch");
    assert_eq!(number("steps"), 100 * DIGITS / 64);
    assert!(number("pushes_applied") >= 100 * DIGITS / 16, "{summary}");
    assert!((1..=3).contains(&number("max_staleness")), "{summary}");
    // Each push carries every parameter once, in f32; the wire adds to it, not much.
    let parameters = run.job.model.layout().unwrap().elements() as u64;
    let payload = number("payload_bytes_up");
    assert_eq!(payload, number("pushes_applied") * parameters * 4);
    assert!(number("payload_bytes_down") >= payload, "{summary}");
    assert!((payload..payload * 5 / 4).contains(&number("wire_bytes_up")), "{summary}");
    assert!(number("wire_bytes_down") >= number("payload_bytes_down"), "{summary}");
    assert_eq!(number("contributions_refused"), 0);
    assert_eq!(summary["seats_lost"], serde_json::json!([]));
    assert_eq!(summary["versions"]["protocol"], "slackline/1");
    assert!(summary["versions"]["slackline"].is_string());
    model_file_is_the_layout(&run);
    log_is_json_lines(&run);
    events_tell_the_same(&run, &summary);
    for member in ["coordinator", "server-0", "server-1", "worker-0", "worker-3"] {
        assert!(!run.log(member).is_empty(), "{member}");
    }
    assert!(run.stdout().contains(&format!("model hash     {}", run.model_hash())));
}

#[test]
fn every_mode_trains_each_sample_once_per_epoch() {
    for (mode, workers) in [("bsp", 4), ("bsp", 3), ("ssp", 3), ("asp", 4), ("ssp", 1)] {
        let mode = format!("mode={mode}");
        let workers = format!("--workers={workers}");
        let run = Plan::digits().set(&[&mode, "epochs=3"]).flags(&[&workers]).run_well();
        assert_eq!(run.summary()["samples"], 3 * DIGITS, "{mode} {workers}");
        assert_eq!(run.summary()["seats_lost"], serde_json::json!([]), "{mode} {workers}");
    }
}

#[test]
fn a_length_in_steps_replaces_the_epochs_of_the_file() {
    for mode in ["mode=bsp", "mode=ssp", "mode=asp"] {
        let run = Plan::digits().set(&[mode, "steps=20"]).run_well();
        let summary = run.summary();
        assert_eq!(summary["steps"], 20, "{mode}");
        assert_eq!(summary["samples"], 20 * 64, "{mode}");
        assert_eq!(summary["epochs"], Value::Null, "{mode}");
    }
}

#[test]
fn json_lines_are_json_from_the_first_to_the_last() {
    let run = Plan::digits().set(&["epochs=10"]).flags(&["--json"]).run_well();
    let out = run.stdout();
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.last().unwrap();
    assert_eq!(
        (&last["ok"], &last["run_dir"]),
        (&true.into(), &run.dir().display().to_string().into())
    );
    assert_eq!(last["summary"], run.summary());
    assert!(lines.iter().any(|line| line["phase"] == "training"), "{out}");
    assert!(run.output.stderr.is_empty(), "{}", run.words());
}

#[test]
fn half_the_bytes_of_bf16_reach_the_same_accuracy() {
    let run = Plan::digits().set(&["wire.up=bf16", "wire.down=bf16", "epochs=60"]).run_well();
    let summary = run.summary();
    let parameters = run.job.model.layout().unwrap().elements() as u64;
    let pushes = summary["pushes_applied"].as_u64().unwrap();
    assert_eq!(summary["payload_bytes_up"], pushes * parameters * 2);
    assert!(summary["test_accuracy"].as_f64().unwrap() >= 0.96, "{summary}");
}
