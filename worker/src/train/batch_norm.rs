//! Batch norm over channels-last images, with the ReLU that follows it (Ioffe and Szegedy, "Batch
//! Normalization", 2015).
//!
//! All loops run over whole image rows with the per-channel factors repeated along the row, so that
//! they are flat and every lane keeps its own sum; lanes are added in `f64`.

use super::cpu::Mode;
use super::image::Shape;
use super::tensors::{Gradients, Parameters, tensor};
use multiversion::multiversion;
use slackline_common::ids::TensorId;
use slackline_common::layout::Layout;

/// Added to the variance.
const EPSILON: f64 = 1e-5;
/// How much of a batch's statistics goes into the running ones.
const MOMENTUM: f32 = 0.1;

/// A batch norm with weight, bias, running mean and running variance, `[channels]` each.
#[derive(Debug)]
pub(super) struct BatchNorm {
    /// The input, without border.
    x: Shape,
    weight: TensorId,
    bias: TensorId,
    running_mean: TensorId,
    running_variance: TensorId,
    /// Mean of the batch, and of its squared distance from that, per channel.
    mean: Vec<f64>,
    variance: Vec<f64>,
    samples: usize,
    /// Per-channel factors and sums, repeated along a row.
    rows: [Vec<f32>; 3],
}

impl BatchNorm {
    /// The layer `name` over images of shape `x`, without border.
    pub(super) fn new(layout: &Layout, name: &str, x: Shape) -> Self {
        let id = |part: &str| tensor(layout, &format!("{name}.{part}"));
        Self {
            x,
            weight: id("weight"),
            bias: id("bias"),
            running_mean: id("running_mean"),
            running_variance: id("running_var"),
            mean: vec![0.0; x.channels],
            variance: vec![0.0; x.channels],
            samples: 0,
            rows: std::array::from_fn(|_| vec![0.0; x.row_len()]),
        }
    }

    /// `y = relu(norm(x) + shortcut)`, to images of shape `y_shape` (the size of `x`, any border).
    /// The shortcut has the shape of `y`.
    pub(super) fn forward(
        &mut self,
        parameters: Parameters<'_>,
        mode: Mode,
        x: &[f32],
        shortcut: Shortcut<'_>,
        y_shape: Shape,
        y: &mut [f32],
    ) {
        self.samples = x.len() / self.x.len();
        if mode == Mode::Train {
            self.measure(x);
        } else {
            let widen = |to: &mut Vec<f64>, from: TensorId| {
                to.clear();
                to.extend(parameters.get(from).iter().map(|value| f64::from(*value)));
            };
            widen(&mut self.mean, self.running_mean);
            widen(&mut self.variance, self.running_variance);
        }
        let (weight, bias) = (parameters.get(self.weight), parameters.get(self.bias));
        let factor = |c: usize| f64::from(weight[c]) / (self.variance[c] + EPSILON).sqrt();
        let [factors, offsets, _] = &mut self.rows;
        repeat(factors, self.x.channels, factor);
        repeat(offsets, self.x.channels, |c| f64::from(bias[c]) - self.mean[c] * factor(c));
        let len = self.x.row_len();
        for (x, at) in x.chunks_exact(len).zip(y_shape.rows(self.samples)) {
            let y = &mut y[at..at + len];
            match shortcut {
                Shortcut::None => y.fill(0.0),
                Shortcut::Images(images) => y.copy_from_slice(&images[at..at + len]),
                Shortcut::InPlace => {}
            }
            scale_add_relu(x, factors, offsets, y);
        }
    }

    /// Mean and variance of the batch, in two passes: the second loses nothing to cancellation.
    fn measure(&mut self, x: &[f32]) {
        let channels = self.x.channels;
        let count = (x.len() / channels) as f64;
        let [sums, means, _] = &mut self.rows;
        sums.fill(0.0);
        x.chunks_exact(sums.len()).for_each(|x| add(sums, x));
        fold(sums, &mut self.mean);
        self.mean.iter_mut().for_each(|mean| *mean /= count);
        repeat(means, channels, |c| self.mean[c]);
        sums.fill(0.0);
        x.chunks_exact(sums.len()).for_each(|x| add_squares(sums, x, means));
        fold(sums, &mut self.variance);
        self.variance.iter_mut().for_each(|variance| *variance /= count);
    }

    /// Takes in `d` the gradient of the output, without border, and leaves there the gradient before
    /// the ReLU, which is also the shortcut's. Writes the gradient of the input to images of shape
    /// `dx_shape`, and hands over the parameters' gradients and the statistics' differences. `y` is
    /// the output of the last `forward`, in [`Mode::Train`], for the input `x`.
    pub(super) fn backward(
        &mut self,
        parameters: Parameters<'_>,
        x: &[f32],
        (y_shape, y): (Shape, &[f32]),
        d: &mut [f32],
        (dx_shape, dx): (Shape, &mut [f32]),
        gradients: &mut Gradients<'_>,
    ) {
        let (channels, len) = (self.x.channels, self.x.row_len());
        let [means, sums, products] = &mut self.rows;
        repeat(means, channels, |c| self.mean[c]);
        sums.fill(0.0);
        products.fill(0.0);
        for ((x, d), at) in
            x.chunks_exact(len).zip(d.chunks_exact_mut(len)).zip(y_shape.rows(self.samples))
        {
            mask_and_sum(x, &y[at..at + len], d, means, sums, products);
        }
        let (mut sum, mut product) = (vec![0.0; channels], vec![0.0; channels]);
        fold(sums, &mut sum);
        fold(products, &mut product);
        let scale = |c: usize| 1.0 / (self.variance[c] + EPSILON).sqrt();
        // dx = w s (d - mean(d) - s² (x - m) mean(d (x - m))), as a d + b x + c
        let count = (x.len() / channels) as f64;
        let weight = parameters.get(self.weight);
        let a = |c: usize| f64::from(weight[c]) * scale(c);
        let b = |c: usize| -a(c) * scale(c) * scale(c) * product[c] / count;
        repeat(means, channels, a);
        repeat(sums, channels, b);
        repeat(products, channels, |c| -a(c) * sum[c] / count - b(c) * self.mean[c]);
        for ((x, d), at) in
            x.chunks_exact(len).zip(d.chunks_exact(len)).zip(dx_shape.rows(self.samples))
        {
            combine(x, d, means, sums, products, &mut dx[at..at + len]);
        }
        self.hand_over(parameters, &sum, &product, count, gradients);
    }

    fn hand_over(
        &self,
        parameters: Parameters<'_>,
        sum: &[f64],
        product: &[f64],
        count: f64,
        gradients: &mut Gradients<'_>,
    ) {
        // The running variance is the unbiased one, as in PyTorch; one value has none.
        let unbiased = if count > 1.0 { count / (count - 1.0) } else { 1.0 };
        let variance = |c: usize| self.variance[c] * unbiased;
        for (tensor, value) in [
            (self.running_variance, &variance as &dyn Fn(usize) -> f64),
            (self.running_mean, &|c| self.mean[c]),
        ] {
            let running = parameters.get(tensor);
            gradients.hand_over(tensor, |difference| {
                for (c, difference) in difference.iter_mut().enumerate() {
                    *difference = MOMENTUM * (narrow(value(c)) - running[c]);
                }
            });
        }
        gradients.hand_over(self.bias, |db| repeat(db, self.x.channels, |c| sum[c]));
        gradients.hand_over(self.weight, |dw| {
            let scale = |c: usize| 1.0 / (self.variance[c] + EPSILON).sqrt();
            repeat(dw, self.x.channels, |c| product[c] * scale(c));
        });
    }
}

/// What is added before the ReLU.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shortcut<'a> {
    /// Nothing.
    None,
    /// These images.
    Images(&'a [f32]),
    /// What lies in the output's buffer.
    InPlace,
}

#[expect(clippy::cast_possible_truncation, reason = "worked out in f64, kept in f32")]
const fn narrow(value: f64) -> f32 {
    value as f32
}

/// Fills a row with one value per channel, again and again.
fn repeat(row: &mut [f32], channels: usize, value: impl Fn(usize) -> f64) {
    let (first, rest) = row.split_at_mut(channels);
    first.iter_mut().enumerate().for_each(|(c, to)| *to = narrow(value(c)));
    rest.chunks_exact_mut(channels).for_each(|pixel| pixel.copy_from_slice(first));
}

/// Adds a row's pixels, channel by channel.
fn fold(row: &[f32], sums: &mut [f64]) {
    sums.fill(0.0);
    for pixel in row.chunks_exact(sums.len()) {
        sums.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += f64::from(*value));
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn add(sums: &mut [f32], x: &[f32]) {
    sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn add_squares(sums: &mut [f32], x: &[f32], means: &[f32]) {
    for ((sum, x), mean) in sums.iter_mut().zip(x).zip(means) {
        *sum += (x - mean) * (x - mean);
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn scale_add_relu(x: &[f32], factors: &[f32], offsets: &[f32], y: &mut [f32]) {
    for (((y, x), factor), offset) in y.iter_mut().zip(x).zip(factors).zip(offsets) {
        let value = x * factor + offset + *y;
        *y = if value <= 0.0 { 0.0 } else { value };
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn mask_and_sum(
    x: &[f32],
    y: &[f32],
    d: &mut [f32],
    means: &[f32],
    sums: &mut [f32],
    products: &mut [f32],
) {
    let sums = sums.iter_mut().zip(products);
    for ((((x, y), d), mean), (sum, product)) in x.iter().zip(y).zip(d).zip(means).zip(sums) {
        *d = if *y <= 0.0 { 0.0 } else { *d };
        *sum += *d;
        *product += *d * (x - mean);
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn combine(x: &[f32], d: &[f32], a: &[f32], b: &[f32], c: &[f32], dx: &mut [f32]) {
    let factors = a.iter().zip(b).zip(c);
    for (((dx, x), d), ((a, b), c)) in dx.iter_mut().zip(x).zip(d).zip(factors) {
        *dx = a * d + b * x + c;
    }
}

#[cfg(test)]
mod tests {
    use super::super::differences::{Differentiable, check, layout, numbers};
    use super::*;
    use std::collections::BTreeMap;

    const SHAPE: Shape = Shape { height: 3, width: 2, channels: 4, border: 0 };

    /// With a constant shortcut that keeps values away from the kink of ReLU, on either side.
    struct Normed(BatchNorm, Vec<f32>);

    fn shortcut(len: usize) -> Vec<f32> {
        (0..len).map(|i| if i % 3 == 0 { -20.0 } else { 20.0 }).collect()
    }

    impl Differentiable for Normed {
        fn forward(&mut self, parameters: Parameters<'_>, x: &[f32]) -> Vec<f32> {
            let mut y = shortcut(x.len());
            self.0.forward(parameters, Mode::Train, x, Shortcut::InPlace, SHAPE, &mut y);
            self.1.clone_from(&y);
            y
        }

        fn backward(
            &mut self,
            parameters: Parameters<'_>,
            x: &[f32],
            dy: &[f32],
            gradients: &mut Gradients<'_>,
        ) -> Vec<f32> {
            let (mut d, mut dx) = (dy.to_vec(), vec![f32::NAN; x.len()]);
            let y = (SHAPE, &self.1[..]);
            self.0.backward(parameters, x, y, &mut d, (SHAPE, &mut dx), gradients);
            let open = |i: usize| if i.is_multiple_of(3) { 0.0 } else { dy[i] };
            assert!(d.iter().enumerate().all(|(i, d)| *d == open(i)));
            dx
        }
    }

    fn tensors() -> Layout {
        layout(&[
            ("n.weight", &[4]),
            ("n.bias", &[4]),
            ("n.running_mean", &[4]),
            ("n.running_var", &[4]),
        ])
    }

    #[test]
    fn batch_norm_gradients_are_those_of_finite_differences() {
        let layout = tensors();
        let layer = BatchNorm::new(&layout, "n", SHAPE);
        check(&layout, 3 * SHAPE.len(), 0.01, &mut Normed(layer, Vec::new()));
    }

    /// Mean 2.5, squared distances 2.25 + 0.25 + 0.25 + 2.25 = 5: biased 1.25, unbiased 5/3.
    #[test]
    fn running_statistics_move_a_tenth_of_the_way_to_the_unbiased_ones() {
        let layout = layout(&[
            ("n.weight", &[1]),
            ("n.bias", &[1]),
            ("n.running_mean", &[1]),
            ("n.running_var", &[1]),
        ]);
        let shape = Shape { height: 1, width: 2, channels: 1, border: 0 };
        let mut layer = BatchNorm::new(&layout, "n", shape);
        let flat = [2.0, 10.0, 0.5, 1.0];
        let parameters = Parameters::new(&layout, &flat);
        let x = [1.0, 2.0, 3.0, 4.0];
        let mut y = [0.0; 4];
        layer.forward(parameters, Mode::Train, &x, Shortcut::None, shape, &mut y);
        let expected = x.map(|x| 10.0 + 2.0 * (x - 2.5) / (1.25f32 + 1e-5).sqrt());
        assert!(y.iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-5), "{y:?} {expected:?}");
        let mut handed = BTreeMap::new();
        let mut ready = |tensor: TensorId, values: &[f32]| {
            handed.insert(tensor.0, values[0]);
        };
        let mut gradients =
            Gradients { layout: &layout, buffer: &mut Vec::new(), ready: &mut ready };
        let dx = (shape, &mut [0.0; 4][..]);
        layer.backward(parameters, &x, (shape, &y), &mut [1.0; 4], dx, &mut gradients);
        assert!((handed[&2] - 0.1 * (2.5 - 0.5)).abs() < 1e-6);
        assert!((handed[&3] - 0.1 * (5.0 / 3.0 - 1.0)).abs() < 1e-6);
        // And a test uses the running ones: (x - 0.5) × 2 + 10 with variance 1.
        layer.forward(parameters, Mode::Test, &x, Shortcut::None, shape, &mut y);
        assert!(y.iter().zip([11.0, 13.0, 15.0, 17.0]).all(|(y, e)| (y - e).abs() < 1e-3));
    }

    #[test]
    fn a_large_mean_does_not_spoil_the_variance() {
        let layout = tensors();
        let mut layer = BatchNorm::new(&layout, "n", SHAPE);
        let x: Vec<f32> = numbers(5, 64 * SHAPE.len()).iter().map(|v| 1000.0 + v).collect();
        layer.measure(&x);
        for variance in &layer.variance {
            assert!((variance - 1.0 / 3.0).abs() < 0.05, "{variance}");
        }
    }
}
