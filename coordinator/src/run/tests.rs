#![allow(clippy::cast_possible_truncation)] // small numbers of the tests' own

use super::*;
use crate::core::effects::Totals;
use crate::core::time::Millis;
use slackline_common::ids::Fingerprint;
use slackline_common::ids::{SeatId, Version};
use slackline_common::job::{
    Clip, Compress, Evaluate, Feedback, Job, Length, Mode, OptimizerSpec, Ramp, Reduce, Schedule,
    Wire,
};
use slackline_common::layout::{Init, Layout, TensorSpec};
use slackline_common::model::ModelSpec;

fn layout() -> Layout {
    let tensor = |name: &str, shape: &[u64]| TensorSpec::parameter(name, shape, Init::Zeros);
    Layout::new(vec![tensor("z.weight", &[2, 3]), tensor("a.bias", &[]), tensor("b", &[4])])
        .unwrap()
}

fn outcome() -> Outcome {
    let job = Job {
        name: "mine".to_owned(),
        mode: Mode::Ssp { staleness: 3 },
        workers: 2,
        servers: 1,
        seed: 7,
        length: Length::Epochs(5),
        batch: 4,
        reduce: Reduce::Mean,
        model: ModelSpec::External,
        data: None,
        optimizer: OptimizerSpec::Sgd { learning_rate: 0.1, weight_decay: 0.0 },
        schedule: Schedule::default(),
        clip: Clip::default(),
        wire: Wire::default(),
        compress: Compress::default(),
        feedback: Feedback::default(),
        ramp: Ramp::default(),
        local: None,
        in_flight: 1,
        evaluate: Evaluate::default(),
    };
    Outcome {
        ok: true,
        reason: "done at step 9".to_owned(),
        stopped: false,
        job_hash: job.hash(),
        job: Box::new(job),
        layout: Some(layout()),
        servers: 1,
        steps: 9,
        samples: 72,
        samples_per_epoch: 14,
        training: Millis(1500),
        final_loss: f64::NAN,
        test: Some(Evaluated { version: Version(9), loss: 0.5, accuracy: 0.75, is_final: true }),
        totals: Totals { payload_bytes_up: 1, payload_bytes_down: 2, ..Totals::default() },
        max_staleness: 3,
        pushes_applied: 18,
        contributions_refused: 0,
        seats_lost: vec![SeatId(1)],
    }
}

#[test]
fn a_second_run_of_a_name_gets_a_folder_of_its_own() {
    let base = tempfile::tempdir().unwrap();
    let runs = base.path().join("runs");
    let dirs: Vec<_> =
        (0..3).map(|_| RunFolder::create(&runs, "mine", 0).unwrap().dir().to_owned()).collect();
    assert_eq!(dirs, ["mine", "mine-2", "mine-3"].map(|name| runs.join(name)));
}

#[test]
fn the_model_file_is_read_back_by_the_safetensors_crate_as_it_was() {
    let base = tempfile::tempdir().unwrap();
    let mut folder = RunFolder::create(base.path(), "mine", 0).unwrap();
    let values: Vec<f32> = (0..11).map(|i| i as f32 * 0.1 - 0.5).collect();
    let (text, result) = folder.conclude(&outcome(), Some(&values));
    assert_eq!(result, Ok(()));
    let bytes = fs::read(folder.dir().join("model.safetensors")).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let about = metadata.metadata().clone().unwrap();
    assert_eq!(about["step"], "9");
    assert_eq!(about["job_hash"], outcome().job_hash.to_string());
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for (name, shape, range) in
        [("z.weight", vec![2, 3], 0..6), ("a.bias", vec![], 6..7), ("b", vec![4], 7..11)]
    {
        let tensor = read.tensor(name).unwrap();
        let expected: Vec<u8> = values[range].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!((tensor.shape(), tensor.data()), (&shape[..], &expected[..]), "{name}");
    }
    let all: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let summary: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
    assert_eq!(summary["model_hash"], blake3::hash(&all).to_hex().as_str());
    assert_eq!(summary["wall_seconds"], 1.5);
    assert_eq!(summary["final_loss"], serde_json::Value::Null);
    assert_eq!(summary["test_accuracy"], 0.75);
    assert_eq!(summary["staleness"], 3);
    assert_eq!(summary["seats_lost"], serde_json::json!([1]));
    let names: Vec<_> =
        fs::read_dir(folder.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().ends_with(".part")), "{names:?}");
}

#[test]
fn a_large_model_comes_in_chunks_of_at_most_one_mebibyte() {
    let layout =
        Layout::new(vec![TensorSpec::parameter("a", &[(1 << 18) + 5], Init::Zeros)]).unwrap();
    let values = vec![1.5f32; (1 << 18) + 5];
    let file = ModelFile::new(&layout, &values, &Fingerprint::of(b"job"), 1).unwrap();
    let sizes: Vec<usize> = file.chunks().map(|chunk| chunk.len()).collect();
    assert_eq!(sizes[1..], [model::CHUNK_BYTES, 20]);
    let all: Vec<u8> = file.chunks().flatten().collect();
    assert!(safetensors::SafeTensors::deserialize(&all).is_ok());
}

#[test]
fn a_model_that_cannot_be_written_leaves_a_summary_that_says_so() {
    let base = tempfile::tempdir().unwrap();
    let mut folder = RunFolder::create(base.path(), "mine", 0).unwrap();
    let in_the_way = folder.dir().join("model.safetensors");
    fs::create_dir(&in_the_way).unwrap();
    fs::write(in_the_way.join("x"), "x").unwrap();
    let (text, result) = folder.conclude(&outcome(), Some(&[0.0; 11]));
    let sentence = result.unwrap_err();
    assert!(sentence.starts_with(&format!("write {}: ", in_the_way.display())), "{sentence}");
    let summary: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
    assert_eq!((&summary["ok"], &summary["reason"]), (&false.into(), &sentence.into()));
}

#[test]
fn a_run_folder_that_cannot_be_made_is_an_error_that_names_it() {
    let base = tempfile::tempdir().unwrap();
    let file = base.path().join("file");
    fs::write(&file, "").unwrap();
    let error = RunFolder::create(&file.join("runs"), "mine", 0).unwrap_err().to_string();
    assert!(error.contains(&file.join("runs").display().to_string()), "{error}");
}

#[test]
fn the_log_has_one_json_object_per_line() {
    let base = tempfile::tempdir().unwrap();
    let mut folder = RunFolder::create(base.path(), "mine", 1_796_040_180_000).unwrap();
    let text = "a \"b\"\nc".to_owned();
    folder.event(&Event { at: Millis(4000), warning: false, kind: "joined", text });
    folder.progress(&Progress {
        at: Millis(5000),
        step: 3,
        samples: 24,
        loss: f64::NAN,
        test: None,
        steps_per_second: 2.0,
        totals: Totals::default(),
        max_staleness: 0,
    });
    let log = fs::read_to_string(folder.dir().join("log.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["time"], "2026-11-30T12:03:04.000Z");
    assert_eq!((&lines[0]["kind"], &lines[0]["text"]), (&"joined".into(), &"a \"b\"\nc".into()));
    assert_eq!((&lines[1]["step"], &lines[1]["loss"]), (&3.into(), &serde_json::Value::Null));
    assert_eq!(lines.len(), 2);
}
