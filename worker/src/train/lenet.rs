//! LeNet: convolution, pooling, convolution, pooling, dense, dense.

use super::Batch;
use super::activation::{relu, relu_backward};
use super::conv::Conv;
use super::cpu::{Mode, Network, numbers};
use super::dense::Dense;
use super::image::{Images, Shape, from_planes, to_planes};
use super::pool::MaxPool;
use super::tensors::{Gradients, Parameters, grown};
use slackline_common::layout::Layout;

pub(super) struct Lenet {
    stages: [Stage; 2],
    fc1: Dense,
    fc2: Dense,
    /// Output of the last pooling as channel, row, column, which is what `fc1` reads.
    flat: Vec<f32>,
    /// Output of `fc1` after ReLU.
    hidden: Vec<f32>,
    hidden_gradient: Vec<f32>,
    flat_gradient: Vec<f32>,
}

/// A convolution and the pooling after it.
struct Stage {
    conv: Conv,
    pool: MaxPool,
    x: Images,
    y: Images,
    /// Gradients of `y` and of the output of the pooling.
    dy: Images,
    pooled: Images,
}

impl Stage {
    fn new(layout: &Layout, name: &str, x: Shape) -> Self {
        let conv = Conv::new(layout, name, x, 1);
        let pool = MaxPool::new(conv.y, 0);
        Self {
            x: Images::new(x),
            y: Images::new(conv.y),
            dy: Images::new(conv.dy),
            pooled: Images::new(pool.y),
            conv,
            pool,
        }
    }

    /// From `self.x` to `out`.
    fn forward(&mut self, parameters: Parameters<'_>, samples: usize, out: &mut [f32]) {
        self.conv.forward(parameters, self.x.get(samples), self.y.room(samples));
        self.pool.forward(self.y.get(samples), out);
    }

    /// From `self.pooled` to `self.dy`, and hands over the gradients of the parameters.
    fn backward(&mut self, samples: usize, gradients: &mut Gradients<'_>) {
        self.pool.backward(self.pooled.get(samples), self.conv.dy, self.dy.room(samples));
        self.conv.backward_parameters(self.x.get(samples), self.dy.get(samples), gradients);
    }
}

impl Lenet {
    /// For images of that many channels, rows and columns.
    pub(super) fn new(layout: &Layout, [channels, height, width]: [usize; 3]) -> Self {
        let x = Shape { height, width, channels, border: 0 };
        let first = Stage::new(layout, "conv1", x);
        let second = Stage::new(layout, "conv2", first.pool.y);
        Self {
            stages: [first, second],
            fc1: Dense::new(layout, "fc1"),
            fc2: Dense::new(layout, "fc2"),
            flat: Vec::new(),
            hidden: Vec::new(),
            hidden_gradient: Vec::new(),
            flat_gradient: Vec::new(),
        }
    }
}

impl Network for Lenet {
    fn forward(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch,
        _mode: Mode,
        scores: &mut [f32],
    ) {
        let samples = batch.samples;
        let [first, second] = &mut self.stages;
        from_planes(numbers(batch), first.x.shape, first.x.room(samples));
        first.forward(parameters, samples, second.x.room(samples));
        let mut pooled = std::mem::replace(&mut second.pooled, Images::new(second.pool.y));
        second.forward(parameters, samples, pooled.room(samples));
        second.pooled = pooled;
        let flat = grown(&mut self.flat, samples * self.fc1.inputs);
        to_planes(second.pooled.get(samples), second.pool.y, flat);
        let hidden = grown(&mut self.hidden, samples * self.fc1.outputs);
        self.fc1.forward(parameters, flat, hidden);
        relu(hidden);
        self.fc2.forward(parameters, hidden, scores);
    }

    fn backward(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch,
        scores: &[f32],
        gradients: &mut Gradients<'_>,
    ) {
        let samples = batch.samples;
        let hidden = &self.hidden[..samples * self.fc1.outputs];
        self.fc2.backward_parameters(hidden, scores, gradients);
        let dy = grown(&mut self.hidden_gradient, hidden.len());
        self.fc2.backward_input(parameters, scores, dy);
        relu_backward(hidden, dy);
        let flat = &self.flat[..samples * self.fc1.inputs];
        self.fc1.backward_parameters(flat, dy, gradients);
        let dx = grown(&mut self.flat_gradient, flat.len());
        self.fc1.backward_input(parameters, dy, dx);
        let [first, second] = &mut self.stages;
        from_planes(dx, second.pool.y, second.pooled.room(samples));
        second.backward(samples, gradients);
        let dy = second.dy.get(samples);
        second.conv.backward_input(parameters, dy, first.pooled.room(samples), false);
        first.backward(samples, gradients);
    }
}
