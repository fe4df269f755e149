//! `slackline run` as a person sees it: one command, its words, its exit code and what it leaves.

use crate::cluster::{job_file, program, root};
use safetensors::SafeTensors;
use slackline_common::config::load_job;
use slackline_common::job::Job;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// One run in a folder of its own, which goes with it.
#[derive(Debug)]
pub struct Run {
    folder: TempDir,
    /// The job as the programs saw it.
    pub job: Job,
    /// Exit code and words.
    pub output: Output,
}

/// A run that has not begun: its folder can be filled with data first.
#[derive(Debug)]
pub struct Plan {
    folder: TempDir,
    job: PathBuf,
    sets: Vec<String>,
    flags: Vec<String>,
}

impl Plan {
    /// A run of a job file from `configs/jobs/`.
    pub fn of_file(name: &str) -> Self {
        let folder = TempDir::with_prefix("slackline-test-").unwrap();
        Self { folder, job: job_file(name), sets: Vec::new(), flags: Vec::new() }
    }

    /// A run of the digits job with its defaults.
    pub fn digits() -> Self {
        Self::of_file("digits.toml")
    }

    /// A run of a job in words.
    pub fn of_text(job: &str) -> Self {
        let folder = TempDir::with_prefix("slackline-test-").unwrap();
        let path = folder.path().join("job.toml");
        fs::write(&path, job).unwrap();
        Self { folder, job: path, sets: Vec::new(), flags: Vec::new() }
    }

    /// Puts a data file into the folder that relative data paths start from.
    #[must_use]
    pub fn with_data(self, name: &str, bytes: &[u8]) -> Self {
        fs::write(self.folder.path().join(name), bytes).unwrap();
        self
    }

    /// Changes keys of the job: `mode=bsp`.
    #[must_use]
    pub fn set(mut self, sets: &[&str]) -> Self {
        self.sets.extend(sets.iter().map(|set| (*set).to_owned()));
        self
    }

    /// Adds other flags.
    #[must_use]
    pub fn flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// Where its data is.
    pub fn data_dir(&self) -> &Path {
        self.folder.path()
    }

    /// Where it leaves what it leaves.
    pub fn run_dir(&self) -> PathBuf {
        self.folder.path().join("runs")
    }

    /// The command, ready to be started.
    pub fn command(&self) -> Command {
        let mut command = Command::new(program("slackline"));
        command
            .arg("run")
            .arg(&self.job)
            .arg(format!("--run-dir={}", self.run_dir().display()))
            .arg(format!("--data-dir={}", self.data_dir().display()))
            .args(self.sets.iter().flat_map(|set| ["--set", set]))
            .args(&self.flags)
            .current_dir(root())
            .stdin(Stdio::null());
        command
    }

    /// The job as the programs will see it.
    pub fn job(&self) -> Job {
        let sizes = self.flags.iter().filter_map(|flag| flag.strip_prefix("--"));
        let sizes =
            sizes.filter(|size| size.starts_with("servers=") || size.starts_with("workers="));
        let sets: Vec<String> = self.sets.iter().cloned().chain(sizes.map(str::to_owned)).collect();
        load_job(&self.job, &sets).unwrap()
    }

    /// Runs it to its end.
    pub fn run(self) -> Run {
        let output = self.command().output().unwrap();
        let job = self.job();
        Run { folder: self.folder, job, output }
    }

    /// Runs it to its end, which must be a good one.
    pub fn run_well(self) -> Run {
        let run = self.run();
        assert!(run.output.status.success(), "{}", run.words());
        assert_eq!(run.summary()["ok"], true, "{}", run.words());
        run
    }
}

impl Run {
    /// Everything it said.
    pub fn words(&self) -> String {
        format!("{}{}", self.stdout(), String::from_utf8_lossy(&self.output.stderr))
    }

    /// What it said to standard output.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// The run's folder.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("runs").join(&self.job.name)
    }

    /// A file of the run's folder.
    pub fn read(&self, name: &str) -> Vec<u8> {
        let path = self.dir().join(name);
        fs::read(&path)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", path.display(), self.words()))
    }

    /// `summary.json`.
    pub fn summary(&self) -> serde_json::Value {
        serde_json::from_slice(&self.read("summary.json")).unwrap()
    }

    /// The model's hash in the summary.
    pub fn model_hash(&self) -> String {
        self.summary()["model_hash"].as_str().unwrap().to_owned()
    }

    /// The parameters in layout order, as another program would read them from the model file.
    pub fn parameters(&self) -> Vec<f32> {
        let bytes = self.read("model.safetensors");
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let layout = self.job.model.layout().unwrap();
        let mut values = Vec::with_capacity(layout.elements());
        for tensor in layout.tensors() {
            let data = file.tensor(&tensor.name).unwrap().data();
            let (words, rest) = data.as_chunks::<4>();
            assert!(rest.is_empty());
            values.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
        }
        values
    }

    /// One member's log.
    pub fn log(&self, member: &str) -> String {
        String::from_utf8(self.read(&format!("logs/{member}.log"))).unwrap()
    }
}
