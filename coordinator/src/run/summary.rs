//! `summary.json`: how a run went, for people and for comparing runs.

use crate::core::effects::Outcome;
use serde::Serialize;
use slackline_common::job::{Length, Mode};

/// The protocol's name as both ends agree on it in the handshake.
const PROTOCOL: &str = "slackline/1";

/// The fields of `summary.json`, in this order.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Whether the job ended as it should.
    pub ok: bool,
    /// How it ended, in one sentence.
    pub reason: String,
    /// The job's name.
    pub name: String,
    /// The job's hash: equal for equal jobs.
    pub job_hash: String,
    /// `bsp`, `ssp`, `asp` or `local`.
    pub mode: &'static str,
    /// How far ahead of the slowest a worker could be, in rounds in `local`; null in `asp`.
    pub staleness: Option<u64>,
    /// Seats.
    pub workers: u16,
    /// Servers.
    pub servers: u16,
    /// The job's seed.
    pub seed: u64,
    /// Passes over the data that were asked for; null for a length in steps.
    pub epochs: Option<u64>,
    /// Global steps: versions in `bsp`, otherwise samples over the global batch.
    pub steps: u64,
    /// Samples applied.
    pub samples: u64,
    /// Samples of one pass; 0 when raw clients brought their own.
    pub samples_per_epoch: u64,
    /// From the workers' start to the last one's end; the last test is not in it.
    pub wall_seconds: f64,
    /// Mean over the seats that were not lost of the last training loss each reported; null without.
    pub final_loss: Option<f64>,
    /// Share of right answers on the test part after the last step; null without a test.
    pub test_accuracy: Option<f64>,
    /// Mean loss on the test part after the last step; null without a test.
    pub test_loss: Option<f64>,
    /// Encoded gradients that all workers sent.
    pub payload_bytes_up: u64,
    /// Encoded parameters that all workers received.
    pub payload_bytes_down: u64,
    /// UDP payload from workers to servers.
    pub wire_bytes_up: u64,
    /// UDP payload from servers to workers.
    pub wire_bytes_down: u64,
    /// Largest staleness seen on any shard.
    pub max_staleness: u64,
    /// Whole pushes applied by the shard that applied most.
    pub pushes_applied: u64,
    /// Contributions refused for NaN or infinity, over all shards.
    pub contributions_refused: u64,
    /// Seats lost on the way.
    pub seats_lost: Vec<u16>,
    /// blake3 of the parameters, little-endian `f32` in layout order; null without a model.
    pub model_hash: Option<String>,
    /// What made it.
    pub versions: Versions,
}

/// What made a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Versions {
    /// The program.
    pub slackline: &'static str,
    /// The protocol.
    pub protocol: &'static str,
}

impl Summary {
    /// The summary of an outcome, without a model's hash.
    pub fn new(outcome: &Outcome) -> Self {
        let job = &outcome.job;
        Self {
            ok: outcome.ok,
            reason: outcome.reason.clone(),
            name: job.name.clone(),
            job_hash: outcome.job_hash.to_string(),
            mode: job.mode_name(),
            staleness: match job.mode {
                Mode::Bsp | Mode::Ssp { .. } => job.mode.bound(),
                Mode::Asp { .. } => None,
            },
            workers: job.workers,
            servers: job.servers,
            seed: job.seed,
            epochs: match job.length {
                Length::Epochs(epochs) => Some(epochs),
                Length::Steps(_) => None,
            },
            steps: outcome.steps,
            samples: outcome.samples,
            samples_per_epoch: outcome.samples_per_epoch,
            wall_seconds: outcome.training.seconds(),
            final_loss: Some(outcome.final_loss).filter(|loss| loss.is_finite()),
            test_accuracy: outcome.test.map(|test| test.accuracy).filter(|a| a.is_finite()),
            test_loss: outcome.test.map(|test| test.loss).filter(|loss| loss.is_finite()),
            payload_bytes_up: outcome.totals.payload_bytes_up,
            payload_bytes_down: outcome.totals.payload_bytes_down,
            wire_bytes_up: outcome.totals.wire_bytes_up,
            wire_bytes_down: outcome.totals.wire_bytes_down,
            max_staleness: outcome.max_staleness,
            pushes_applied: outcome.pushes_applied,
            contributions_refused: outcome.contributions_refused,
            seats_lost: outcome.seats_lost.iter().map(|seat| seat.0).collect(),
            model_hash: None,
            versions: Versions { slackline: env!("CARGO_PKG_VERSION"), protocol: PROTOCOL },
        }
    }

    /// The file's text.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self);
        text.expect("numbers and strings in a struct always serialise") + "\n"
    }
}
