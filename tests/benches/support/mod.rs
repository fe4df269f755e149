//! What the benches share: the clock, medians, one result per line, and runs of the real programs.
//!
//! A bench prints its table for people. With `BENCH_ROWS` naming a file, every result is also
//! appended there as one JSON line; `scripts/bench.sh` makes bench-out/results.json of them.
#![allow(dead_code, reason = "every bench uses its own part of this")]

use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tests::cluster::{program, root};

/// Whether this run only has to show that the bench works: without `--bench` (a plain start), or
/// with `--test`.
pub(crate) fn quick() -> bool {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    asked("--test") || !asked("--bench")
}

/// Runs `work`; its result and how long it took.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// The value that `share` of all are not above; 0.5 is the median.
///
/// # Panics
/// Without values.
#[expect(clippy::cast_possible_truncation, reason = "a share of a length that fits")]
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    sorted[((last as f64 * share).round() as usize).min(last)]
}

/// The median.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Prints a result and keeps it. `met` is absent where nothing was promised.
pub(crate) fn report(what: &str, goal: &str, reached: &str, met: Option<bool>) {
    let verdict = match met {
        Some(true) => "ok    ",
        Some(false) => "MISSED",
        None => "      ",
    };
    println!("{verdict} {what}: {reached} (goal {goal})");
    let Some(path) = std::env::var_os("BENCH_ROWS") else { return };
    let row = json!({
        "what": what, "goal": goal, "reached": reached, "met": met, "command": command(),
    });
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(file, "{row}").unwrap();
}

/// How to start the bench that runs.
fn command() -> String {
    let file = std::env::current_exe().unwrap();
    let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
    let name = stem.rsplit_once('-').map_or(stem.as_str(), |(name, _)| name);
    format!("cargo bench -p tests --bench {name}")
}

/// A finished run of `slackline run`.
#[derive(Debug)]
pub(crate) struct Run {
    /// `summary.json`.
    pub(crate) summary: Value,
    /// The run's folder.
    pub(crate) folder: PathBuf,
}

impl Run {
    /// The model's hash.
    pub(crate) fn hash(&self) -> String {
        self.summary["model_hash"].as_str().expect("a finished run has a model").to_owned()
    }

    /// A number of the summary.
    pub(crate) fn number(&self, key: &str) -> f64 {
        self.summary[key].as_f64().unwrap_or(f64::NAN)
    }
}

/// Trains a job of `configs/jobs` on a local cluster of the real programs, which keeps its results
/// under `run_dir`.
///
/// # Panics
/// When the run fails: with everything it said.
pub(crate) fn run_job(job: &str, sets: &[&str], flags: &[&str], run_dir: &Path) -> Run {
    let mut command = Command::new(program("slackline"));
    command.current_dir(root()).args(["run", &format!("configs/jobs/{job}.toml"), "--json"]);
    let output = command
        .args(sets.iter().flat_map(|set| ["--set", set]))
        .args(flags)
        .arg("--run-dir")
        .arg(run_dir)
        .stdin(Stdio::null())
        .output()
        .expect("the program was found");
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).next_back();
    let ended = last.filter(|value| value["ok"] == true && value["summary"].is_object());
    let Some(ended) = ended else {
        // The lines before are one status after the other.
        let last_words = said.lines().next_back().unwrap_or_default();
        let errors = String::from_utf8_lossy(&output.stderr);
        panic!("{command:?}: {}\n{last_words}\n{errors}", output.status);
    };
    let folder = PathBuf::from(ended["run_dir"].as_str().expect("a run has a folder"));
    Run { summary: ended["summary"].clone(), folder }
}

/// CPU time a process has used, from /proc; the kernel counts it in hundredths of a second.
///
/// # Panics
/// When there is no such process.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The second field is a name in brackets, which may hold blanks; utime and stime are fields 14
    // and 15 of all.
    let after_name = text.rsplit_once(')').unwrap().1;
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).map(|t| t.parse::<u64>().unwrap()).sum();
    Duration::from_millis(ticks * 10)
}

/// A memory figure of a process in bytes, for example `VmRSS`.
///
/// # Panics
/// When there is no such process or figure.
pub(crate) fn memory_bytes(pid: u32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}
