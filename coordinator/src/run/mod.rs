//! A run's folder: what is left of a job. `summary.json`, `model.safetensors`, `log.jsonl` and
//! TensorBoard events.
//!
//! A file that cannot be written is one line that names it and never a panic: the log and the events
//! go quiet after it, the model and the summary make the job end as failed with that line.

pub mod model;
pub mod summary;
pub mod tensorboard;

use crate::core::effects::{Event, Outcome, Progress};
use crate::core::time::rfc3339;
use model::ModelFile;
use serde::Serialize;
use slackline_common::wire::control::Evaluated;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use summary::Summary;
use tensorboard::EventFile;

/// Runs of one name in one folder.
const RUNS_MAX: u32 = 100_000;

/// A file that could not be made or written. The move is the machine's owner's.
#[derive(Debug, thiserror::Error)]
#[error("write {path}: {source}")]
pub struct RunError {
    /// The file or folder.
    pub path: String,
    /// Why.
    #[source]
    pub source: io::Error,
}

impl RunError {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.display().to_string();
        move |source| Self { path, source }
    }
}

/// The folder of one run and its open files.
#[derive(Debug)]
pub struct RunFolder {
    dir: PathBuf,
    /// The moment [`crate::core::time::Millis`] counts from, in milliseconds since 1970.
    epoch_unix_millis: u64,
    log: Option<File>,
    board: Option<EventFile>,
}

/// One line of `log.jsonl`.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(flatten)]
    figures: Option<Figures>,
}

#[derive(Serialize)]
struct Figures {
    step: u64,
    samples: u64,
    loss: Option<f64>,
    steps_per_second: f64,
    payload_bytes_up: u64,
    payload_bytes_down: u64,
    max_staleness: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    test: Option<Evaluated>,
}

impl RunFolder {
    /// Makes `base/name`, or `base/name-2`, `base/name-3`, … when there is one, and opens its log.
    ///
    /// # Errors
    /// [`RunError`] with the folder or file that cannot be made.
    pub fn create(base: &Path, name: &str, epoch_unix_millis: u64) -> Result<Self, RunError> {
        fs::create_dir_all(base).map_err(RunError::at(base))?;
        let mut number = 1;
        let dir = loop {
            let dir = match number {
                1 => base.join(name),
                _ => base.join(format!("{name}-{number}")),
            };
            match fs::create_dir(&dir) {
                Ok(()) => break dir,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < RUNS_MAX => {
                    number += 1;
                }
                Err(error) => return Err(RunError::at(&dir)(error)),
            }
        };
        let path = dir.join("log.jsonl");
        let log = File::create_new(&path).map_err(RunError::at(&path))?;
        let board = dir.join("tensorboard");
        let board = EventFile::create(&board, epoch_unix_millis).map_err(RunError::at(&board))?;
        Ok(Self { dir, epoch_unix_millis, log: Some(log), board: Some(board) })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Adds an event to the log.
    pub fn event(&mut self, event: &Event) {
        let line = Line {
            time: rfc3339(self.epoch_unix_millis + event.at.0),
            kind: event.kind,
            warning: Some(event.warning),
            text: Some(&event.text),
            figures: None,
        };
        self.line(&line);
    }

    /// Adds figures to the log and to TensorBoard.
    pub fn progress(&mut self, progress: &Progress) {
        let figures = Figures {
            step: progress.step,
            samples: progress.samples,
            loss: Some(progress.loss).filter(|loss| loss.is_finite()),
            steps_per_second: progress.steps_per_second,
            payload_bytes_up: progress.totals.payload_bytes_up,
            payload_bytes_down: progress.totals.payload_bytes_down,
            max_staleness: progress.max_staleness,
            test: progress.test,
        };
        let unix_millis = self.epoch_unix_millis + progress.at.0;
        let time = rfc3339(unix_millis);
        let figures = Some(figures);
        self.line(&Line { time, kind: "progress", warning: None, text: None, figures });
        let mut scalars = Vec::new();
        if progress.loss.is_finite() {
            scalars.push(("train/loss", progress.loss));
        }
        if let Some(test) = progress.test {
            scalars.extend([("test/accuracy", test.accuracy), ("test/loss", test.loss)]);
        }
        scalars.extend([
            ("speed/steps_per_second", progress.steps_per_second),
            ("bytes/payload_up", progress.totals.payload_bytes_up as f64),
            ("bytes/payload_down", progress.totals.payload_bytes_down as f64),
            ("staleness/max", progress.max_staleness as f64),
        ]);
        if let Some(board) = &mut self.board
            && let Err(error) = board.scalars(unix_millis, progress.step, &scalars)
        {
            tracing::warn!("write {}: {error}; no more of it is kept", board.path().display());
            self.board = None;
        }
    }

    fn line(&mut self, line: &Line<'_>) {
        let Some(log) = &mut self.log else { return };
        let written = serde_json::to_vec(line).map_err(io::Error::other).and_then(|mut text| {
            text.push(b'\n');
            log.write_all(&text)
        });
        if let Err(error) = written {
            let path = self.dir.join("log.jsonl");
            tracing::warn!("write {}: {error}; no more of it is kept", path.display());
            self.log = None;
        }
    }

    /// Writes the last files: the model when there is one, then the summary. Returns the summary's
    /// text; it is written, with what went wrong in it, even when the model could not be.
    ///
    /// # Errors
    /// The sentence that names the file, beside the summary's text when that could be written.
    pub fn conclude(
        &mut self,
        outcome: &Outcome,
        values: Option<&[f32]>,
    ) -> (Option<String>, Result<(), String>) {
        let mut summary = Summary::new(outcome);
        let mut fault = None;
        if let (Some(layout), Some(values)) = (&outcome.layout, values) {
            let file = ModelFile::new(layout, values, &outcome.job_hash, outcome.steps);
            let path = self.dir.join("model.safetensors");
            let written = file.and_then(|file| {
                summary.model_hash = Some(file.values_hash().to_string());
                write_atomically(&path, file.chunks())
            });
            fault = written.map_err(RunError::at(&path)).err();
        }
        if let Some(fault) = &fault {
            summary.ok = false;
            summary.reason = fault.to_string();
        }
        let text = summary.to_json();
        let path = self.dir.join("summary.json");
        let written = write_atomically(&path, [text.clone().into_bytes()]);
        match (written.map_err(RunError::at(&path)), fault) {
            (Ok(()), None) => (Some(text), Ok(())),
            (Ok(()), Some(fault)) => (Some(text), Err(fault.to_string())),
            (Err(second), None) => (None, Err(second.to_string())),
            (Err(second), Some(first)) => (None, Err(format!("{first}; {second}"))),
        }
    }
}

/// Writes a file beside its place, makes it durable and puts it there: nobody ever sees half of it.
///
/// # Errors
/// What the file system says; nothing is left behind.
pub fn write_atomically(
    path: &Path,
    chunks: impl IntoIterator<Item = Vec<u8>>,
) -> Result<(), io::Error> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or_else(|| io::Error::other("the path names no file"))?;
    let beside = folder.join(format!(".{}.{}.part", name.to_string_lossy(), std::process::id()));
    let write = || {
        let mut file = File::create(&beside)?;
        chunks.into_iter().try_for_each(|chunk| file.write_all(&chunk))?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(folder)?.sync_all()
    };
    write().inspect_err(|_| {
        // It may not be there; the error that counts is the first.
        drop(fs::remove_file(&beside));
    })
}

#[cfg(test)]
mod tests;
