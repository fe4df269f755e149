//! ResNet-20 for small images: a convolution, three groups of three basic blocks, the mean over all
//! pixels, a dense layer.

use super::Batch;
use super::batch_norm::{BatchNorm, Shortcut};
use super::conv::Conv;
use super::cpu::{Mode, Network, numbers};
use super::dense::Dense;
use super::image::{Images, Shape, from_planes};
use super::pool::{mean_backward, mean_forward};
use super::tensors::{Gradients, Parameters, grown};
use slackline_common::layout::Layout;

/// Padding of every convolution, so the border of everything a convolution reads.
const BORDER: usize = 1;

pub(super) struct Resnet20 {
    x: Images,
    stem: Normed,
    blocks: Vec<Block>,
    fc: Dense,
    /// Gradients in flight, one set per image size.
    flights: Vec<Flight>,
    features: Vec<f32>,
    features_gradient: Vec<f32>,
}

/// A convolution, the batch norm after it and the ReLU after that.
struct Normed {
    conv: Conv,
    norm: BatchNorm,
    /// Output of the convolution.
    middle: Images,
    /// Output of all.
    y: Images,
}

impl Normed {
    fn new(layout: &Layout, conv: &str, norm: &str, x: Shape, stride: usize) -> Self {
        let conv = Conv::new(layout, conv, x, stride);
        let norm = BatchNorm::new(layout, norm, conv.y);
        let (middle, y) = (Images::new(conv.y), Images::new(conv.y.with_border(BORDER)));
        Self { conv, norm, middle, y }
    }

    fn forward(&mut self, pass: Forward<'_>, x: &[f32], shortcut: Shortcut<'_>) {
        let Forward { parameters, samples, mode } = pass;
        self.conv.forward(parameters, x, self.middle.room(samples));
        let shape = self.y.shape;
        let y = self.y.room(samples);
        self.norm.forward(parameters, mode, self.middle.get(samples), shortcut, shape, y);
    }

    /// From the gradient of the output in `d`, which becomes that before the ReLU, to the gradient
    /// of the convolution's output in `dy`.
    fn backward(
        &mut self,
        (parameters, samples): (Parameters<'_>, usize),
        x: &[f32],
        d: &mut [f32],
        dy: &mut Images,
        gradients: &mut Gradients<'_>,
    ) {
        let dy = dy.room(samples);
        let y = (self.y.shape, self.y.get(samples));
        let dx = (self.conv.dy, &mut *dy);
        self.norm.backward(parameters, self.middle.get(samples), y, d, dx, gradients);
        self.conv.backward_parameters(x, dy, gradients);
    }
}

/// What every layer's forward pass needs.
#[derive(Clone, Copy)]
struct Forward<'a> {
    parameters: Parameters<'a>,
    samples: usize,
    mode: Mode,
}

/// Two convolutions and a shortcut.
struct Block {
    first: Normed,
    second: Normed,
    stride: usize,
    /// The index of its set of gradients.
    group: usize,
}

/// Gradients of one image size on their way down.
struct Flight {
    /// Of the stream between blocks.
    stream: Images,
    /// Of the output of a block's first half.
    inner: Images,
    /// Of a convolution's output, with the border its pass to the input needs.
    conv: Images,
}

impl Resnet20 {
    /// For images of that many channels, rows and columns.
    pub(super) fn new(layout: &Layout, [channels, height, width]: [usize; 3]) -> Self {
        let x = Shape { height, width, channels, border: BORDER };
        let stem = Normed::new(layout, "conv1", "bn1", x, 1);
        let mut shape = stem.y.shape;
        let mut blocks: Vec<Block> = Vec::new();
        let mut flights = Vec::new();
        for i in 0..9 {
            let (group, stride) = (i / 3, if i == 3 || i == 6 { 2 } else { 1 });
            let name = format!("layer{}.{}", group + 1, i % 3);
            let half = |half: usize, x, stride| {
                let (conv, norm) = (format!("{name}.conv{half}"), format!("{name}.bn{half}"));
                Normed::new(layout, &conv, &norm, x, stride)
            };
            let first = half(1, shape, stride);
            let second = half(2, first.y.shape, 1);
            shape = second.y.shape;
            if i % 3 == 0 {
                flights.push(Flight {
                    stream: Images::new(shape.with_border(0)),
                    inner: Images::new(shape.with_border(0)),
                    conv: Images::new(second.conv.dy),
                });
            }
            assert!(first.conv.dy == second.conv.dy, "one buffer serves both");
            blocks.push(Block { first, second, stride, group });
        }
        assert!(stem.conv.dy == blocks[0].first.conv.dy, "the stem shares the first group's");
        Self {
            x: Images::new(x),
            stem,
            blocks,
            fc: Dense::new(layout, "fc"),
            flights,
            features: Vec::new(),
            features_gradient: Vec::new(),
        }
    }
}

impl Block {
    fn forward(&mut self, pass: Forward<'_>, x: &Images) {
        let samples = pass.samples;
        let shortcut = if self.stride == 1 {
            Shortcut::Images(x.get(samples))
        } else {
            let shape = self.second.y.shape;
            shrink(x.shape, x.get(samples), shape, self.second.y.room(samples));
            Shortcut::InPlace
        };
        self.first.forward(pass, x.get(samples), Shortcut::None);
        self.second.forward(pass, self.first.y.get(samples), shortcut);
    }

    /// From the gradient of the output in the block's own set to that of the input, in the same set
    /// or, if the block shrinks its images, in `outer`.
    fn backward(
        &mut self,
        (parameters, samples): (Parameters<'_>, usize),
        x: &Images,
        flight: &mut Flight,
        outer: Option<&mut Flight>,
        gradients: &mut Gradients<'_>,
    ) {
        let pass = (parameters, samples);
        let small = flight.stream.shape;
        let stream = flight.stream.room(samples);
        let middle = self.first.y.get(samples);
        self.second.backward(pass, middle, stream, &mut flight.conv, gradients);
        let inner = flight.inner.room(samples);
        let conv = flight.conv.get(samples);
        self.second.conv.backward_input(parameters, conv, inner, false);
        self.first.backward(pass, x.get(samples), inner, &mut flight.conv, gradients);
        let conv = flight.conv.get(samples);
        match outer {
            None => self.first.conv.backward_input(parameters, conv, stream, true),
            Some(outer) => {
                let shape = outer.stream.shape;
                let dx = outer.stream.room(samples);
                self.first.conv.backward_input(parameters, conv, dx, false);
                shrink_backward(shape, dx, small, stream);
            }
        }
    }
}

impl Network for Resnet20 {
    fn forward(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch,
        mode: Mode,
        scores: &mut [f32],
    ) {
        let samples = batch.samples;
        let pass = Forward { parameters, samples, mode };
        from_planes(numbers(batch), self.x.shape, self.x.room(samples));
        self.stem.forward(pass, self.x.get(samples), Shortcut::None);
        let mut y = &self.stem.y;
        for block in &mut self.blocks {
            block.forward(pass, y);
            y = &block.second.y;
        }
        let features = grown(&mut self.features, samples * self.fc.inputs);
        mean_forward(y.shape, y.get(samples), features);
        self.fc.forward(parameters, features, scores);
    }

    fn backward(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch,
        scores: &[f32],
        gradients: &mut Gradients<'_>,
    ) {
        let samples = batch.samples;
        let pass = (parameters, samples);
        let features = &self.features[..samples * self.fc.inputs];
        self.fc.backward_parameters(features, scores, gradients);
        let dy = grown(&mut self.features_gradient, features.len());
        self.fc.backward_input(parameters, scores, dy);
        let top = self.flights.len() - 1;
        let stream = &mut self.flights[top].stream;
        mean_backward(stream.shape, dy, stream.room(samples));
        for i in (0..self.blocks.len()).rev() {
            let (below, rest) = self.blocks.split_at_mut(i);
            let block = &mut rest[0];
            let x = below.last().map_or(&self.stem.y, |block| &block.second.y);
            let (outer, inner) = self.flights.split_at_mut(block.group);
            let outer = if block.stride == 1 { None } else { outer.last_mut() };
            block.backward(pass, x, &mut inner[0], outer, gradients);
        }
        let Flight { stream, conv, .. } = &mut self.flights[0];
        let stream = stream.room(samples);
        self.stem.backward(pass, self.x.get(samples), stream, conv, gradients);
    }
}

/// The shortcut of a shrinking block: every second pixel, with channels of zeros added in equal
/// parts before and behind.
fn shrink(x_shape: Shape, x: &[f32], y_shape: Shape, y: &mut [f32]) {
    let added = (y_shape.channels - x_shape.channels) / 2;
    for (x, y) in x.chunks_exact(x_shape.len()).zip(y.chunks_exact_mut(y_shape.len())) {
        for row in 0..y_shape.height {
            for column in 0..y_shape.width {
                let y = &mut y[y_shape.pixel(row, column)..][..y_shape.channels];
                y.fill(0.0);
                let x = &x[x_shape.pixel(2 * row, 2 * column)..][..x_shape.channels];
                y[added..added + x.len()].copy_from_slice(x);
            }
        }
    }
}

/// Adds the gradient of [`shrink`]'s output to that of its input.
fn shrink_backward(dx_shape: Shape, dx: &mut [f32], dy_shape: Shape, dy: &[f32]) {
    let added = (dy_shape.channels - dx_shape.channels) / 2;
    for (dx, dy) in dx.chunks_exact_mut(dx_shape.len()).zip(dy.chunks_exact(dy_shape.len())) {
        for row in 0..dy_shape.height {
            for column in 0..dy_shape.width {
                let dy = &dy[dy_shape.pixel(row, column) + added..][..dx_shape.channels];
                let dx = &mut dx[dx_shape.pixel(2 * row, 2 * column)..][..dx_shape.channels];
                dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy);
            }
        }
    }
}
