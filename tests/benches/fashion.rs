//! Fashion-MNIST on four workers: test accuracy of the MLP and of LeNet in each mode.
//!
//! Run: `cargo build --release --workspace --bins && cargo bench -p tests --bench fashion`, with
//! the data where configs/jobs/fashion-mlp.toml says (Debian: dataset-fashion-mnist). Names of models
//! or modes after `--` run those alone: `… --bench fashion -- mlp bsp`. Ten epochs each, one run after
//! the other: half an hour on two cores.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::path::Path;
use support::{Run, quick, report, run_job};
use tests::cluster::root;

/// A model, what it must reach in bsp, and its job.
const MODELS: [(&str, f64, &str); 2] =
    [("mlp", 0.885, "fashion-mlp"), ("lenet", 0.90, "fashion-lenet")];
const MODES: [(&str, &[&str]); 3] =
    [("bsp", &["mode=bsp"]), ("ssp(3)", &["mode=ssp", "staleness=3"]), ("asp", &["mode=asp"])];
/// Points of accuracy (of 1) that another mode may be below bsp.
const SLACK: f64 = 0.005;

fn main() {
    let data = Path::new("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz");
    if !data.exists() {
        println!("SKIPPED 6: {} is not there (Debian: dataset-fashion-mnist)", data.display());
        return;
    }
    let asked: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wants = |name: &str, of: &[&str]| {
        let of_this_kind = asked.iter().any(|asked| of.contains(&asked.as_str()));
        !of_this_kind || asked.iter().any(|asked| asked == name)
    };
    let folder = root().join("bench-out/runs");
    std::fs::create_dir_all(&folder).unwrap();
    for (model, goal, job) in MODELS {
        if !wants(model, &MODELS.map(|(model, ..)| model)) {
            continue;
        }
        let mut bsp = None;
        for (mode, sets) in MODES {
            if !wants(mode, &MODES.map(|(mode, _)| mode)) {
                continue;
            }
            let mut sets = sets.to_vec();
            if quick() {
                sets.extend(["steps=20", "evaluate.every_steps=0"]);
            }
            let run = run_job(job, &sets, &[], &folder);
            let accuracy = run.number("test_accuracy");
            match mode {
                "bsp" => {
                    bsp = Some(accuracy);
                    show(model, mode, &run, &format!(">= {goal} in 10 epochs"), accuracy >= goal);
                }
                _ => {
                    let bound = bsp.unwrap_or(goal) - SLACK;
                    show(
                        model,
                        mode,
                        &run,
                        &format!(">= bsp - 0.005 = {bound:.4}"),
                        accuracy >= bound,
                    );
                }
            }
        }
    }
}

fn show(model: &str, mode: &str, run: &Run, goal: &str, met: bool) {
    let seconds = run.number("wall_seconds");
    let reached = format!(
        "{:.4} ({:.0} s, {:.0} samples/s, largest staleness {:.0})",
        run.number("test_accuracy"),
        seconds,
        run.number("samples") / seconds,
        run.number("max_staleness"),
    );
    report(&format!("Fashion-MNIST {model}, 4 workers, {mode}"), goal, &reached, Some(met));
}
