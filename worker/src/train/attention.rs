//! Causal self-attention (Vaswani et al., "Attention Is All You Need", 2017): the part between the
//! two dense layers.

use super::tensors::grown;
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, ShapeBuilder};

/// Attention of `heads` heads over a stream of `width`, `context` positions at a time.
#[derive(Debug)]
pub(super) struct Attention {
    context: usize,
    width: usize,
    heads: usize,
    /// Attention weights of the last `forward`: sample, head, query, key; 0 for later keys.
    weights: Vec<f32>,
    /// Gradient of one head's weights.
    gradient: Vec<f32>,
}

/// Which third of a row of queries, keys and values.
#[derive(Clone, Copy)]
enum Part {
    Query,
    Key,
    Value,
}

impl Attention {
    /// `heads` divides `width`.
    pub(super) const fn new(context: usize, width: usize, heads: usize) -> Self {
        Self { context, width, heads, weights: Vec::new(), gradient: Vec::new() }
    }

    fn head_width(&self) -> usize {
        self.width / self.heads
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_width() as f32).sqrt()
    }

    /// `qkv [samples × context, 3 × width]` (queries, keys, values) → `y [samples × context, width]`.
    pub(super) fn forward(&mut self, qkv: &[f32], y: &mut [f32]) {
        let (context, square) = (self.context, self.context * self.context);
        let samples = qkv.len() / (3 * self.width * context);
        let scale = self.scale();
        let mut weights = std::mem::take(&mut self.weights);
        let all = grown(&mut weights, samples * self.heads * square);
        for (i, weights) in all.chunks_exact_mut(square).enumerate() {
            let (sample, head) = (i / self.heads, i % self.heads);
            let part = |part| self.part(qkv, sample, head, part);
            let mut scores = matrix_mut(weights, context, context, context);
            let keys = part(Part::Key);
            general_mat_mul(scale, &part(Part::Query), &keys.t(), 0.0, &mut scores);
            for (query, row) in weights.chunks_exact_mut(context).enumerate() {
                softmax(&mut row[..=query]);
                row[query + 1..].fill(0.0);
            }
            let weights = matrix(weights, context, context, context);
            let start = sample * context * self.width + head * self.head_width();
            let mut y = matrix_mut(&mut y[start..], context, self.head_width(), self.width);
            general_mat_mul(1.0, &weights, &part(Part::Value), 0.0, &mut y);
        }
        self.weights = weights;
    }

    /// Writes the gradient of `qkv` of the last `forward`, given that of its output.
    pub(super) fn backward(&mut self, qkv: &[f32], dy: &[f32], dqkv: &mut [f32]) {
        let (context, square) = (self.context, self.context * self.context);
        let samples = qkv.len() / (3 * self.width * context);
        let scale = self.scale();
        let mut gradient = std::mem::take(&mut self.gradient);
        for i in 0..samples * self.heads {
            let (sample, head) = (i / self.heads, i % self.heads);
            let part = |part| self.part(qkv, sample, head, part);
            let weights = &self.weights[i * square..][..square];
            let start = sample * context * self.width + head * self.head_width();
            let dy = matrix(&dy[start..], context, self.head_width(), self.width);

            let w = matrix(weights, context, context, context);
            let mut dv = self.part_mut(dqkv, sample, head, Part::Value);
            general_mat_mul(1.0, &w.t(), &dy, 0.0, &mut dv);

            let gradient = grown(&mut gradient, square);
            let mut dw = matrix_mut(gradient, context, context, context);
            general_mat_mul(1.0, &dy, &part(Part::Value).t(), 0.0, &mut dw);
            let rows = gradient.chunks_exact_mut(context).zip(weights.chunks_exact(context));
            rows.for_each(|(gradient, weights)| softmax_backward(weights, gradient));

            let ds = matrix(gradient, context, context, context);
            let mut dq = self.part_mut(dqkv, sample, head, Part::Query);
            general_mat_mul(scale, &ds, &part(Part::Key), 0.0, &mut dq);
            let mut dk = self.part_mut(dqkv, sample, head, Part::Key);
            general_mat_mul(scale, &ds.t(), &part(Part::Query), 0.0, &mut dk);
        }
        self.gradient = gradient;
    }

    /// Where one head's part of one sample starts.
    fn start(&self, sample: usize, head: usize, part: Part) -> usize {
        sample * self.context * 3 * self.width
            + part as usize * self.width
            + head * self.head_width()
    }

    fn part<'a>(
        &self,
        qkv: &'a [f32],
        sample: usize,
        head: usize,
        part: Part,
    ) -> ArrayView2<'a, f32> {
        let qkv = &qkv[self.start(sample, head, part)..];
        matrix(qkv, self.context, self.head_width(), 3 * self.width)
    }

    fn part_mut<'a>(
        &self,
        qkv: &'a mut [f32],
        sample: usize,
        head: usize,
        part: Part,
    ) -> ArrayViewMut2<'a, f32> {
        let qkv = &mut qkv[self.start(sample, head, part)..];
        matrix_mut(qkv, self.context, self.head_width(), 3 * self.width)
    }
}

fn softmax(row: &mut [f32]) {
    let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in &mut *row {
        *value = (*value - highest).exp();
        sum += *value;
    }
    let scale = 1.0 / sum;
    row.iter_mut().for_each(|value| *value *= scale);
}

/// Turns the gradient of a softmax's output into that of its input; keys with weight 0 get 0.
fn softmax_backward(weights: &[f32], gradient: &mut [f32]) {
    let mean: f32 = weights.iter().zip(&*gradient).map(|(weight, g)| weight * g).sum();
    gradient.iter_mut().zip(weights).for_each(|(g, weight)| *g = weight * (*g - mean));
}

/// A matrix whose rows are `stride` elements apart.
fn matrix(values: &[f32], rows: usize, columns: usize, stride: usize) -> ArrayView2<'_, f32> {
    ArrayView2::from_shape((rows, columns).strides((stride, 1)), values)
        .expect("heads lie inside the rows of the stream")
}

fn matrix_mut(
    values: &mut [f32],
    rows: usize,
    columns: usize,
    stride: usize,
) -> ArrayViewMut2<'_, f32> {
    ArrayViewMut2::from_shape((rows, columns).strides((stride, 1)), values)
        .expect("heads lie inside the rows of the stream")
}

#[cfg(test)]
mod tests {
    use super::super::differences::{Differentiable, check, layout, numbers};
    use super::super::tensors::{Gradients, Parameters};
    use super::*;

    impl Differentiable for Attention {
        fn forward(&mut self, _: Parameters<'_>, x: &[f32]) -> Vec<f32> {
            let mut y = vec![f32::NAN; x.len() / 3];
            Self::forward(self, x, &mut y);
            y
        }

        fn backward(
            &mut self,
            _: Parameters<'_>,
            x: &[f32],
            dy: &[f32],
            gradients: &mut Gradients<'_>,
        ) -> Vec<f32> {
            gradients.hand_over_slice(slackline_common::ids::TensorId(0), &[0.0]);
            let mut dx = vec![f32::NAN; x.len()];
            Self::backward(self, x, dy, &mut dx);
            dx
        }
    }

    #[test]
    fn attention_gradients_are_those_of_finite_differences() {
        let none = layout(&[("unused", &[1])]);
        for (context, width, heads) in [(5, 6, 2), (9, 8, 1), (1, 4, 4)] {
            let mut layer = Attention::new(context, width, heads);
            check(&none, 2 * context * 3 * width, 0.01, &mut layer);
        }
    }

    #[test]
    fn a_position_sees_itself_and_what_came_before() {
        let (context, width) = (6, 4);
        let mut layer = Attention::new(context, width, 2);
        let mut x = numbers(1, context * 3 * width);
        let mut before = vec![0.0; context * width];
        layer.forward(&x, &mut before);
        x[4 * 3 * width..].iter_mut().for_each(|value| *value += 1.0);
        let mut after = before.clone();
        layer.forward(&x, &mut after);
        assert_eq!(before[..4 * width], after[..4 * width]);
        assert!(before[4 * width..].iter().zip(&after[4 * width..]).all(|(b, a)| b != a));
    }
}
