//! Small files for the tests of this room.

use super::{DataError, Dataset, empty_batch, open_within};
use crate::train::Inputs;
use slackline_common::blame::Blame;
use slackline_common::job::{DataFormat, DataSource, DataSpec};
use slackline_common::model::ModelSpec;
use std::sync::Arc;

/// Largest file that these tests let through.
pub(super) const LIMIT_BYTES: u64 = 1 << 20;

/// A description with the identity as the transform.
pub(super) fn spec(format: DataFormat) -> DataSpec {
    let none = DataSource::Files(Vec::new());
    let (scale, mean, deviation) = (1.0, 0.0, 1.0);
    DataSpec { format, train: none, test: None, scale, mean, deviation, shuffle: false }
}

pub(super) const fn softmax(inputs: u32, classes: u32) -> ModelSpec {
    ModelSpec::Softmax { inputs, classes }
}

/// Writes the files and opens them.
pub(super) fn open_files(
    spec: &DataSpec,
    model: &ModelSpec,
    files: &[(&str, &[u8])],
) -> Result<Arc<dyn Dataset>, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let names = files.iter().map(|(name, bytes)| {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        (*name).to_owned()
    });
    let source = DataSource::Files(names.collect());
    open_within(LIMIT_BYTES, spec, &source, model, folder.path())
}

/// The files are refused and the message holds every one of `pieces`.
pub(super) fn check_refused(
    format: DataFormat,
    model: &ModelSpec,
    files: &[(&str, &[u8])],
    pieces: &[&str],
) {
    let error = open_files(&spec(format), model, files).expect_err("these files must be refused");
    let text = error.to_string();
    assert_eq!(error.blame(), Blame::Config, "{text}");
    for piece in pieces {
        assert!(text.contains(piece), "{piece:?} is not in: {text}");
    }
}

/// Inputs (tokens as numbers) and targets of the samples at `indices`.
pub(super) fn fill(dataset: &dyn Dataset, indices: &[u64]) -> (Vec<f32>, Vec<u32>) {
    let mut batch = empty_batch(dataset.sample());
    dataset.fill(indices, &mut batch);
    assert_eq!(batch.samples, indices.len());
    let inputs = match batch.inputs {
        Inputs::Dense(inputs) => inputs,
        Inputs::Tokens(tokens) => tokens.into_iter().map(|token| token as f32).collect(),
    };
    (inputs, batch.targets)
}

/// Packs bytes as gzip.
pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}
