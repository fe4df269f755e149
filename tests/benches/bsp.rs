//! `bsp` against one process: four workers with 16 samples each on one, two and three servers, 50
//! steps, and the same 50 steps of 64 samples in a plain loop without any of our network, blocks or
//! shards (`slackline_worker::reference`).
//!
//! Run: `cargo build --release --workspace --bins && cargo bench -p tests --bench bsp`.
//!
//! Every run is repeated with one seat slowed, so that contributions arrive in other orders; the
//! model's hash must not notice.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use safetensors::SafeTensors;
use slackline_common::config::load_job;
use slackline_common::job::Job;
use slackline_worker::reference;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use support::{Run, report, run_job};
use tests::cluster::{job_file, root};

const JOBS: [(&str, &[&str]); 2] = [
    ("digits", &["mode=bsp", "workers=4", "batch=16", "steps=50"]),
    (
        "digits",
        &[
            "mode=bsp",
            "workers=4",
            "batch=16",
            "steps=50",
            "optimizer.kind=adam",
            "optimizer.momentum=",
            "optimizer.nesterov=",
            "optimizer.learning_rate=0.003",
        ],
    ),
];
const FLAGS: [&[&str]; 4] = [&[], &["--slow", "0:3"], &["--slow", "3:3"], &[]];

fn main() {
    let folder = tempfile::tempdir().unwrap();
    for (name, sets) in JOBS {
        let sets: Vec<_> = sets.to_vec();
        let owned: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let job = load_job(&job_file(&format!("{name}.toml")), &owned).unwrap();
        let expected = reference::train(&job, &root()).unwrap();
        let mut hashes = BTreeSet::new();
        let (mut runs, mut worst) = (0, 0.0_f64);
        for servers in ["1", "2", "3"] {
            for flags in FLAGS {
                let flags: Vec<_> = ["--servers", servers].iter().chain(flags).copied().collect();
                let run = run_job(name, &sets, &flags, folder.path());
                let off = worst_difference(&job, &run, &expected);
                println!(
                    "  {servers} servers {:<12} largest difference {off:.1e}  hash {}",
                    flags[2..].join(" "),
                    run.hash()
                );
                worst = worst.max(off);
                hashes.insert(run.hash());
                runs += 1;
            }
        }
        let what = format!("bsp, 4 workers x batch 16, 50 steps, {}", optimizer(&job));
        report(
            &format!("{what}: against one process x batch 64"),
            "parameters within 1e-5",
            &format!("{worst:.1e} at most, over {} parameters and {runs} runs", expected.len()),
            Some(worst <= 1e-5),
        );
        report(
            &format!("{what}: 1, 2, 3 servers, 3 orders of arrival, repeated"),
            "one model hash",
            &format!("{} in {runs} runs", hashes.len()),
            Some(hashes.len() == 1),
        );
    }
}

fn optimizer(job: &Job) -> String {
    let text = format!("{:?}", job.optimizer);
    text.split_whitespace().next().unwrap_or_default().to_lowercase()
}

/// The largest absolute difference of a parameter.
fn worst_difference(job: &Job, run: &Run, expected: &[f32]) -> f64 {
    let layout = job.model.layout().unwrap();
    let trained = read_model(&run.folder.join("model.safetensors"), |file| {
        let names = layout.tensors().iter().map(|tensor| tensor.name.as_str());
        names.flat_map(|name| floats(file.tensor(name).unwrap().data())).collect::<Vec<f32>>()
    });
    assert_eq!(trained.len(), expected.len());
    let pairs = trained.iter().zip(expected);
    pairs.map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
}

fn read_model<T>(path: &Path, look: impl FnOnce(&SafeTensors<'_>) -> T) -> T {
    let bytes = fs::read(path).unwrap();
    look(&SafeTensors::deserialize(&bytes).unwrap())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}
