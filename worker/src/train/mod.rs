//! The CPU engine: a model description and a batch in, a loss and gradients out.
//!
//! Small layers on `ndarray` and OpenBLAS, one file per kind, each checked against finite
//! differences and against PyTorch. Images are kept channels-last inside, so that one tile of
//! register arithmetic (`tile`) serves every convolution without an unfolded copy of its input.
//! Buffers belong to the layers and are reused: after the first step nothing is allocated.
//!
//! Read [`Engine`], then a network (`mlp` is the shortest), then the layers it is made of.
//!
//! **Never here:** threads, sockets, clocks. One engine is one core; more workers use more cores.

mod activation;
mod attention;
mod batch_norm;
mod blas;
mod conv;
mod cpu;
mod dense;
#[cfg(test)]
mod differences;
mod embedding;
mod image;
mod layer_norm;
mod lenet;
mod loss;
mod mlp;
mod pool;
#[cfg(test)]
mod pytorch;
mod resnet;
mod tensors;
#[cfg(test)]
mod tests;
mod tile;
mod transformer;

use slackline_common::ids::TensorId;
use slackline_common::layout::Layout;
use slackline_common::model::ModelSpec;

/// Samples of one step. Buffers belong to the caller and may be reused.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Number of samples, at least 1. The last batch of a pass may be smaller than the others.
    pub samples: usize,
    /// What the model sees.
    pub inputs: Inputs,
    /// What it should answer: a class per sample, or for text the next byte of each position
    /// (`samples × context`).
    pub targets: Vec<u32>,
}

/// The inputs of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Inputs {
    /// `samples × input_len` numbers, row-major; images as channel, row, column.
    Dense(Vec<f32>),
    /// `samples × context` bytes of text, one per entry.
    Tokens(Vec<u32>),
}

/// Sums over predictions, so that parts can be added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Sum of the losses, in nats.
    pub loss_sum: f64,
    /// Predictions whose largest output is the target. The first of equal outputs counts.
    pub correct: u64,
    /// Predictions made.
    pub count: u64,
}

/// Computes gradients and evaluations of one model.
pub trait Engine: Send {
    /// The model's tensors.
    fn layout(&self) -> &Layout;

    /// Computes the mean loss of a batch and its gradient at `parameters`, the flat vector in
    /// layout order. Each tensor's gradient is handed to `ready` as soon as it is final, last tensor
    /// of the layout first, each tensor exactly once. For a running statistic the difference to add
    /// is handed over: `0.1 × (batch statistic - running)`.
    ///
    /// # Errors
    /// [`TrainError`] when the parameters or the batch do not fit the model; `ready` has then not
    /// been called. A loss that is not finite is not an error here.
    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        ready: &mut dyn FnMut(TensorId, &[f32]),
    ) -> Result<f32, TrainError>;

    /// Tests the model at `parameters` on a batch; batch norm uses its running statistics.
    ///
    /// # Errors
    /// As [`Engine::gradient`].
    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Evaluation, TrainError>;
}

/// The CPU engine of a model; `None` for [`ModelSpec::External`] and for a description that
/// [`ModelSpec::check`] finds fault with.
pub fn engine(spec: &ModelSpec) -> Option<Box<dyn Engine>> {
    cpu::engine(spec)
}

/// Lets the matrix products of this process use so many threads, for who asks for it by
/// configuration: [`engine`] sets one. On a machine that does anything else, more are slower.
pub fn use_threads(threads: u16) {
    blas::use_threads(threads);
}

/// Why a step cannot be computed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TrainError {
    /// The flat vector has another length than the layout.
    #[error("the engine was given {got} parameters; the model has {expected}")]
    Parameters {
        /// Length given.
        got: usize,
        /// Length of the layout.
        expected: usize,
    },
    /// A batch without samples.
    #[error("the batch has no samples; at least 1 is needed")]
    Empty,
    /// Numbers for a text model, or bytes for another.
    #[error("the batch holds {got}; this model needs {expected}")]
    Kind {
        /// What the batch holds.
        got: &'static str,
        /// What the model needs.
        expected: &'static str,
    },
    /// Inputs of another length than the samples need.
    #[error("the batch has {got} inputs for {samples} samples; {expected} are needed")]
    Inputs {
        /// Length given.
        got: usize,
        /// Samples declared.
        samples: usize,
        /// `samples × input length`.
        expected: usize,
    },
    /// Another number of targets than predictions.
    #[error("the batch has {got} targets for {samples} samples; {expected} are needed")]
    Targets {
        /// Number given.
        got: usize,
        /// Samples declared.
        samples: usize,
        /// Predictions of so many samples.
        expected: usize,
    },
    /// A target that is no class of the model.
    #[error("target {position} of the batch is {got}; the model has classes 0 to {}", classes - 1)]
    Target {
        /// Its position in the batch.
        position: usize,
        /// The target.
        got: u32,
        /// Number of classes.
        classes: u32,
    },
    /// An input entry that is no byte.
    #[error("input {position} of the batch is {got}; bytes are 0 to 255")]
    Token {
        /// Its position in the batch.
        position: usize,
        /// The entry.
        got: u32,
    },
}
