//! Dense layers with ReLU between them; softmax regression is the case of one layer.

use super::Batch;
use super::activation::{relu, relu_backward};
use super::cpu::{Mode, Network, numbers};
use super::dense::Dense;
use super::tensors::{Gradients, Parameters, grown};
use slackline_common::layout::Layout;
use std::mem::{swap, take};

pub(super) struct Mlp {
    layers: Vec<Dense>,
    /// Output of every layer but the last, after ReLU.
    hidden: Vec<Vec<f32>>,
    /// Gradient of the output of the layer at hand, and of the one below it.
    above: Vec<f32>,
    below: Vec<f32>,
}

impl Mlp {
    /// The layers of these names, first to last.
    pub(super) fn new(layout: &Layout, names: &[String]) -> Self {
        let layers: Vec<Dense> = names.iter().map(|name| Dense::new(layout, name)).collect();
        let hidden = vec![Vec::new(); layers.len() - 1];
        Self { layers, hidden, above: Vec::new(), below: Vec::new() }
    }

    /// The input of layer `i`.
    fn input<'a>(&'a self, batch: &'a Batch, i: usize) -> &'a [f32] {
        match i.checked_sub(1) {
            None => numbers(batch),
            Some(below) => &self.hidden[below][..batch.samples * self.layers[i].inputs],
        }
    }
}

impl Network for Mlp {
    fn forward(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch,
        _mode: Mode,
        scores: &mut [f32],
    ) {
        let last = self.layers.len() - 1;
        for i in 0..last {
            let mut y = take(&mut self.hidden[i]);
            let values = grown(&mut y, batch.samples * self.layers[i].outputs);
            self.layers[i].forward(parameters, self.input(batch, i), values);
            relu(values);
            self.hidden[i] = y;
        }
        self.layers[last].forward(parameters, self.input(batch, last), scores);
    }

    fn backward(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch,
        scores: &[f32],
        gradients: &mut Gradients<'_>,
    ) {
        let last = self.layers.len() - 1;
        let (mut above, mut below) = (take(&mut self.above), take(&mut self.below));
        grown(&mut above, scores.len()).copy_from_slice(scores);
        for i in (0..=last).rev() {
            let layer = &self.layers[i];
            let dy = &above[..batch.samples * layer.outputs];
            let x = self.input(batch, i);
            layer.backward_parameters(x, dy, gradients);
            if i > 0 {
                let dx = grown(&mut below, x.len());
                layer.backward_input(parameters, dy, dx);
                relu_backward(x, dx);
                swap(&mut above, &mut below);
            }
        }
        (self.above, self.below) = (above, below);
    }
}
