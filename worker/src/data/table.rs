//! Labelled samples in memory, kept as small as the file has them and turned into inputs when a batch
//! is filled.

use super::error::DataError;
use super::{Dataset, Sample};
use crate::train::{Batch, Inputs};
use slackline_common::job::DataSpec;
use slackline_common::model::ModelSpec;
use std::fmt;

/// What the model demands of the data; `None` is a rule that does not apply.
#[derive(Clone, Debug)]
pub(super) struct Expect {
    /// Shape of an input.
    pub(super) shape: Option<Vec<u64>>,
    /// Number of classes.
    pub(super) classes: Option<u32>,
}

impl Expect {
    /// Reads the model; `None` for one that takes tokens.
    pub(super) fn of(model: &ModelSpec) -> Option<Self> {
        let image = |input: &[u32; 3]| input.iter().map(|size| u64::from(*size)).collect();
        let (shape, classes) = match model {
            ModelSpec::Softmax { inputs, classes } => {
                (Some(vec![u64::from(*inputs)]), Some(*classes))
            }
            ModelSpec::Mlp { widths } => {
                (widths.first().map(|width| vec![u64::from(*width)]), widths.last().copied())
            }
            ModelSpec::Lenet { input, classes, .. }
            | ModelSpec::Resnet20 { input, classes, .. } => (Some(image(input)), Some(*classes)),
            ModelSpec::Transformer { .. } => return None,
            ModelSpec::External => (None, None),
        };
        Some(Self { shape, classes })
    }

    /// Length of an input.
    pub(super) fn inputs(&self) -> Option<u64> {
        Some(self.shape.as_ref()?.iter().product())
    }

    /// Checks the shape of a sample. Where both sides have more than one dimension these must agree
    /// too, apart from dimensions of 1: channels-last images are not taken for channels-first ones.
    pub(super) fn check_shape(&self, file: &str, got: &[u64]) -> Result<(), DataError> {
        let Some(want) = &self.shape else { return Ok(()) };
        let solid =
            |shape: &[u64]| shape.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
        let product =
            |shape: &[u64]| shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
        let fits = product(got).is_some_and(|got| Some(got) == product(want))
            && (got.len() < 2 || want.len() < 2 || solid(got) == solid(want));
        if fits {
            Ok(())
        } else {
            Err(DataError::Shape { file: file.to_owned(), got: got.to_vec(), want: want.clone() })
        }
    }

    /// Checks a label. `row` counts from 1.
    pub(super) fn label(&self, file: &str, row: u64, label: i64) -> Result<u32, DataError> {
        let largest = self.classes.map_or(u32::MAX, |classes| classes.saturating_sub(1));
        u32::try_from(label)
            .ok()
            .filter(|label| *label <= largest)
            .ok_or_else(|| DataError::Label { file: file.to_owned(), row, label, largest })
    }
}

/// Samples in the number format of their file.
pub(super) enum Values {
    /// `inputs` bytes each.
    Bytes(Vec<u8>),
    /// `inputs` numbers each.
    Floats(Vec<f32>),
    /// Sample `i` has the entries `ends[i - 1]..ends[i]`; everything else is 0. Positions count from 0.
    Sparse {
        /// Where each sample's entries end.
        ends: Vec<usize>,
        /// Positions within the input, rising within a sample.
        positions: Vec<u32>,
        /// What stands there.
        values: Vec<f32>,
    },
}

/// Labelled samples of one length.
pub(super) struct Table {
    values: Values,
    labels: Vec<u32>,
    inputs: usize,
    transform: Transform,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("samples", &self.labels.len())
            .field("inputs", &self.inputs)
            .finish_non_exhaustive()
    }
}

impl Table {
    /// Puts values and labels together; the readers have checked that they fit.
    pub(super) fn new(values: Values, labels: Vec<u32>, inputs: usize, spec: &DataSpec) -> Self {
        let samples = match &values {
            Values::Bytes(values) => values.len() / inputs.max(1),
            Values::Floats(values) => values.len() / inputs.max(1),
            Values::Sparse { ends, .. } => ends.len(),
        };
        assert_eq!(samples, labels.len(), "readers give one label per sample");
        Self { values, labels, inputs, transform: Transform::new(spec) }
    }
}

impl Dataset for Table {
    fn len(&self) -> u64 {
        self.labels.len() as u64
    }

    fn sample(&self) -> Sample {
        Sample::Dense { inputs: self.inputs }
    }

    fn labels_max(&self) -> u32 {
        self.labels.iter().copied().max().unwrap_or(0)
    }

    fn fill(&self, indices: &[u64], batch: &mut Batch) {
        batch.samples = indices.len();
        batch.targets.clear();
        batch.targets.extend(indices.iter().map(|index| self.labels[position(*index)]));
        if !matches!(batch.inputs, Inputs::Dense(_)) {
            batch.inputs = Inputs::Dense(Vec::new());
        }
        let Inputs::Dense(out) = &mut batch.inputs else { return };
        out.clear();
        let range =
            |index: &u64| position(*index) * self.inputs..(position(*index) + 1) * self.inputs;
        let transform = &self.transform;
        match &self.values {
            Values::Bytes(bytes) => indices.iter().for_each(|index| {
                out.extend(
                    bytes[range(index)].iter().map(|byte| transform.bytes[usize::from(*byte)]),
                );
            }),
            Values::Floats(floats) => indices.iter().for_each(|index| {
                out.extend(floats[range(index)].iter().map(|value| transform.apply(*value)));
            }),
            Values::Sparse { ends, positions, values } => {
                out.resize(indices.len() * self.inputs, transform.bytes[0]);
                for (index, row) in indices.iter().zip(out.chunks_exact_mut(self.inputs)) {
                    let index = position(*index);
                    let entries =
                        index.checked_sub(1).map_or(0, |before| ends[before])..ends[index];
                    for (at, value) in positions[entries.clone()].iter().zip(&values[entries]) {
                        row[*at as usize] = transform.apply(*value);
                    }
                }
            }
        }
    }
}

/// `(x × scale - mean) / deviation`, with the 256 results for bytes worked out once.
struct Transform {
    scale: f32,
    mean: f32,
    deviation: f32,
    bytes: Box<[f32; 256]>,
}

impl Transform {
    fn new(spec: &DataSpec) -> Self {
        let mut transform = Self {
            scale: spec.scale,
            mean: spec.mean,
            deviation: spec.deviation,
            bytes: Box::new([0.0; 256]),
        };
        for byte in 0..=u8::MAX {
            transform.bytes[usize::from(byte)] = transform.apply(f32::from(byte));
        }
        transform
    }

    fn apply(&self, value: f32) -> f32 {
        (value * self.scale - self.mean) / self.deviation
    }
}

/// An index as a position in memory; what is in memory has fewer than `usize::MAX` samples.
pub(super) fn position(index: u64) -> usize {
    usize::try_from(index).expect("an index below the number of samples in memory")
}
