//! Samples: from files to batches, in the order that leases name.
//!
//! [`open`] reads one part of a job's data into memory and checks it against the model, so that what
//! comes later cannot fail: [`order`] says which sample lies at a position of an epoch, [`prefetch`]
//! fills batches ahead of the computation, [`test_batches`] goes once over a test part.
//!
//! One file per format (`idx`, `cifar`, `csv`, `libsvm`, `npz`, `text`); `source` is the only one that
//! opens files, `table` holds labelled samples, `embedded` the data built into the worker.
//!
//! **Never here:** the network, the model's arithmetic.

mod cifar;
mod csv;
mod embedded;
mod error;
mod idx;
mod libsvm;
mod npz;
pub mod order;
pub mod prefetch;
mod source;
mod table;
#[cfg(test)]
mod testing;
mod text;

pub use error::DataError;

use crate::train::{Batch, Inputs};
use slackline_common::job::{DataFormat, DataSource, DataSpec};
use slackline_common::limits::DATA_FILE_BYTES_MAX;
use slackline_common::model::ModelSpec;
use source::DataFile;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use table::Expect;

/// What one sample is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sample {
    /// `inputs` numbers and one label.
    Dense {
        /// Length of an input.
        inputs: usize,
    },
    /// `context` tokens and as many targets, each the token after.
    Tokens {
        /// Tokens of an input.
        context: usize,
    },
}

/// One part of the data, checked and in memory.
pub trait Dataset: Debug + Send + Sync {
    /// Number of samples; never 0.
    fn len(&self) -> u64;

    /// Always false: an empty part is refused when it is opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What one sample is.
    fn sample(&self) -> Sample;

    /// The largest label (or byte of text) that occurs.
    fn labels_max(&self) -> u32;

    /// Replaces the contents of `batch` by the samples at `indices`, in that order, reusing its memory.
    ///
    /// # Panics
    /// When an index is not below [`Dataset::len`].
    fn fill(&self, indices: &[u64], batch: &mut Batch);
}

/// Reads one part of a job's data. `source` is `spec.train` or `spec.test`; paths count from `data_dir`.
///
/// # Errors
/// The first rule of [`DataError`] that the files break, by themselves or against the model.
pub fn open(
    spec: &DataSpec,
    source: &DataSource,
    model: &ModelSpec,
    data_dir: &Path,
) -> Result<Arc<dyn Dataset>, DataError> {
    open_within(DATA_FILE_BYTES_MAX, spec, source, model, data_dir)
}

/// [`open`] with a limit on the bytes of one file, unpacked.
fn open_within(
    limit_bytes: u64,
    spec: &DataSpec,
    source: &DataSource,
    model: &ModelSpec,
    data_dir: &Path,
) -> Result<Arc<dyn Dataset>, DataError> {
    let format = spec.format;
    let paths = source::paths(source, format)?;
    let expect = Expect::of(model);
    let expect = match (format, &expect, model) {
        (DataFormat::Text, _, ModelSpec::Transformer { context: context @ 1.., .. }) => {
            let files = open_files(paths, source, format, data_dir, limit_bytes)?;
            return Ok(Arc::new(text::read(files, *context)?));
        }
        (DataFormat::Text, ..) => {
            let rule = "text goes with a transformer that has a context of at least 1";
            return Err(DataError::Model { format, rule });
        }
        (_, None, _) => {
            let rule = "a transformer reads data of format text";
            return Err(DataError::Model { format, rule });
        }
        (_, Some(expect), _) => expect,
    };
    if format == DataFormat::Npz && matches!(source, DataSource::Files(_)) {
        return Ok(Arc::new(npz::read(data_dir, paths, limit_bytes, expect, spec)?));
    }
    let mut files = open_files(paths, source, format, data_dir, limit_bytes)?;
    Ok(Arc::new(match format {
        DataFormat::Cifar => cifar::read(files, expect, spec)?,
        DataFormat::Libsvm => libsvm::read(files, expect, spec)?,
        DataFormat::Idx if files.len() == 2 => {
            let (labels, images) = (files.remove(1), files.remove(0));
            idx::read(images, labels, expect, spec)?
        }
        DataFormat::Csv => csv::read(files, expect, spec)?,
        DataFormat::Idx | DataFormat::Npz | DataFormat::Text => {
            unreachable!("`paths` counted the files, the others returned above")
        }
    }))
}

/// Opens every file of a part, which for an embedded one is a single CSV.
fn open_files(
    paths: &[String],
    source: &DataSource,
    format: DataFormat,
    data_dir: &Path,
    limit_bytes: u64,
) -> Result<Vec<DataFile>, DataError> {
    match source {
        DataSource::Files(_) => {
            paths.iter().map(|path| DataFile::open(data_dir, path, limit_bytes)).collect()
        }
        DataSource::Embedded(name) => match embedded::find(name) {
            None => Err(DataError::Embedded { name: name.clone() }),
            Some(_) if format != DataFormat::Csv => {
                Err(DataError::EmbeddedFormat { name: name.clone(), format })
            }
            Some(text) => Ok(vec![DataFile::embedded(name, text)]),
        },
    }
}

/// All samples in order, once, in batches of `batch` (the last may be smaller).
///
/// # Panics
/// When `batch` is 0.
pub fn test_batches(dataset: &dyn Dataset, batch: u32) -> impl Iterator<Item = Batch> {
    assert!(batch > 0, "a batch holds at least one sample");
    let (len, mut next, mut indices) = (dataset.len(), 0, Vec::new());
    std::iter::from_fn(move || {
        let end = (next + u64::from(batch)).min(len);
        indices.clear();
        indices.extend(next..end);
        next = end;
        (!indices.is_empty()).then(|| {
            let mut filled = empty_batch(dataset.sample());
            dataset.fill(&indices, &mut filled);
            filled
        })
    })
}

/// A batch without samples, of the right kind.
fn empty_batch(sample: Sample) -> Batch {
    let inputs = match sample {
        Sample::Dense { .. } => Inputs::Dense(Vec::new()),
        Sample::Tokens { .. } => Inputs::Tokens(Vec::new()),
    };
    Batch { samples: 0, inputs, targets: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::testing::{fill, open_files, softmax, spec};
    use super::*;

    #[test]
    fn test_batches_go_over_every_sample_once_in_order() {
        let text: String = (0..10).map(|i| format!("{i},{}\n", i % 3)).collect();
        let files = [("a", text.as_bytes())];
        let data = open_files(&spec(DataFormat::Csv), &softmax(1, 3), &files).unwrap();
        let batches: Vec<Batch> = test_batches(&*data, 4).collect();
        assert_eq!(batches.iter().map(|batch| batch.samples).collect::<Vec<_>>(), [4, 4, 2]);
        let targets: Vec<u32> = batches.iter().flat_map(|batch| batch.targets.clone()).collect();
        let inputs: Vec<f32> = batches
            .into_iter()
            .flat_map(|batch| match batch.inputs {
                Inputs::Dense(inputs) => inputs,
                Inputs::Tokens(_) => panic!("numbers were stored"),
            })
            .collect();
        assert_eq!((inputs, targets), fill(&*data, &(0..10).collect::<Vec<_>>()));
    }

    /// The sums were taken from scikit-learn's copy with NumPy.
    #[test]
    fn the_embedded_digits_are_those_of_the_source() {
        let source = DataSource::Embedded("digits-train".to_owned());
        let data = open(&spec(DataFormat::Csv), &source, &softmax(64, 10), Path::new("/")).unwrap();
        let (inputs, targets) = fill(&*data, &(0..1437).collect::<Vec<_>>());
        assert_eq!(inputs.iter().map(|pixel| f64::from(*pixel)).sum::<f64>(), 449_120.0);
        assert_eq!(targets.iter().sum::<u32>(), 6426);
    }

    #[test]
    fn a_batch_of_another_kind_is_turned_into_the_right_one() {
        let files: [(&str, &[u8]); 1] = [("a", b"5,1\n")];
        let data = open_files(&spec(DataFormat::Csv), &softmax(1, 2), &files).unwrap();
        let inputs = Inputs::Tokens(vec![1, 2]);
        let mut batch = Batch { samples: 2, inputs, targets: vec![7, 8] };
        data.fill(&[0], &mut batch);
        assert_eq!(batch, Batch { samples: 1, inputs: Inputs::Dense(vec![5.0]), targets: vec![1] });
    }
}
