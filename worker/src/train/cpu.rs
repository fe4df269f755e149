//! Checks a batch, runs a network forwards and backwards, and works out the loss between.

use super::lenet::Lenet;
use super::mlp::Mlp;
use super::resnet::Resnet20;
use super::tensors::{Gradients, Parameters};
use super::transformer::Transformer;
use super::{Batch, Engine, Evaluation, Inputs, TrainError, blas, loss};
use slackline_common::ids::TensorId;
use slackline_common::layout::Layout;
use slackline_common::model::ModelSpec;

/// Which statistics batch norm uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Mode {
    /// Those of the batch; what the backward pass needs is kept.
    Train,
    /// The running ones.
    Test,
}

/// Layers in a row, from inputs to one score per class and prediction. Checked batches only.
pub(super) trait Network: Send {
    /// Writes the scores, `predictions × classes`.
    fn forward(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch,
        mode: Mode,
        scores: &mut [f32],
    );

    /// Hands over every gradient, last tensor first, given that of the scores. Follows a `forward`
    /// in [`Mode::Train`] with the same parameters and batch.
    fn backward(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch,
        scores: &[f32],
        gradients: &mut Gradients<'_>,
    );
}

struct Cpu {
    layout: Layout,
    network: Box<dyn Network>,
    input_len: usize,
    predictions: usize,
    classes: u32,
    text: bool,
    scores: Vec<f32>,
    buffer: Vec<f32>,
}

pub(super) fn engine(spec: &ModelSpec) -> Option<Box<dyn Engine>> {
    let layout = spec.layout()?;
    let network: Box<dyn Network> = match spec {
        ModelSpec::Softmax { .. } => Box::new(Mlp::new(&layout, &["fc".to_owned()])),
        ModelSpec::Mlp { widths } => {
            let names: Vec<String> = (1..widths.len()).map(|i| format!("fc{i}")).collect();
            Box::new(Mlp::new(&layout, &names))
        }
        ModelSpec::Lenet { input, .. } => Box::new(Lenet::new(&layout, input.map(to_usize))),
        ModelSpec::Resnet20 { input, .. } => Box::new(Resnet20::new(&layout, input.map(to_usize))),
        ModelSpec::Transformer { heads, layers, .. } => {
            Box::new(Transformer::new(&layout, to_usize(*layers), to_usize(*heads)))
        }
        ModelSpec::External => return None,
    };
    blas::use_one_thread();
    Some(Box::new(Cpu {
        layout,
        network,
        input_len: spec.input_len()?,
        predictions: spec.predictions(),
        classes: spec.classes()?,
        text: spec.is_text(),
        scores: Vec::new(),
        buffer: Vec::new(),
    }))
}

const fn to_usize(size: u32) -> usize {
    size as usize
}

impl Cpu {
    fn check(&self, parameters: &[f32], batch: &Batch) -> Result<(), TrainError> {
        let (got, expected) = (parameters.len(), self.layout.elements());
        if got != expected {
            return Err(TrainError::Parameters { got, expected });
        }
        let samples = batch.samples;
        if samples == 0 {
            return Err(TrainError::Empty);
        }
        let got = match (&batch.inputs, self.text) {
            (Inputs::Dense(values), false) => values.len(),
            (Inputs::Tokens(tokens), true) => tokens.len(),
            (Inputs::Dense(_), true) => {
                return Err(TrainError::Kind { got: "numbers", expected: "bytes of text" });
            }
            (Inputs::Tokens(_), false) => {
                return Err(TrainError::Kind { got: "bytes of text", expected: "numbers" });
            }
        };
        let expected = samples.saturating_mul(self.input_len);
        if got != expected {
            return Err(TrainError::Inputs { got, samples, expected });
        }
        let (got, expected) = (batch.targets.len(), samples.saturating_mul(self.predictions));
        if got != expected {
            return Err(TrainError::Targets { got, samples, expected });
        }
        let classes = self.classes;
        if let Some(position) = batch.targets.iter().position(|target| *target >= classes) {
            return Err(TrainError::Target { position, got: batch.targets[position], classes });
        }
        if let Inputs::Tokens(tokens) = &batch.inputs
            && let Some(position) = tokens.iter().position(|token| *token > 255)
        {
            return Err(TrainError::Token { position, got: tokens[position] });
        }
        Ok(())
    }

    fn forward(&mut self, parameters: &[f32], batch: &Batch, mode: Mode) {
        self.scores.resize(batch.targets.len() * self.classes as usize, 0.0);
        let parameters = Parameters::new(&self.layout, parameters);
        self.network.forward(parameters, batch, mode, &mut self.scores);
    }
}

impl Engine for Cpu {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn gradient(
        &mut self,
        parameters: &[f32],
        batch: &Batch,
        ready: &mut dyn FnMut(TensorId, &[f32]),
    ) -> Result<f32, TrainError> {
        self.check(parameters, batch)?;
        self.forward(parameters, batch, Mode::Train);
        let loss = loss::cross_entropy(&mut self.scores, &batch.targets);
        let mut gradients = Gradients { layout: &self.layout, buffer: &mut self.buffer, ready };
        let parameters = Parameters::new(&self.layout, parameters);
        self.network.backward(parameters, batch, &self.scores, &mut gradients);
        Ok(loss)
    }

    fn evaluate(&mut self, parameters: &[f32], batch: &Batch) -> Result<Evaluation, TrainError> {
        self.check(parameters, batch)?;
        self.forward(parameters, batch, Mode::Test);
        Ok(loss::evaluate(&mut self.scores, &batch.targets))
    }
}

/// The numbers of a batch whose kind was checked.
pub(super) fn numbers(batch: &Batch) -> &[f32] {
    match &batch.inputs {
        Inputs::Dense(values) => values,
        Inputs::Tokens(_) => unreachable!("the engine checked the kind of the inputs"),
    }
}
