//! Pooling over channels-last images.

use super::image::Shape;
use multiversion::multiversion;

/// The place in the window that gave a maximum, 0 to 3, or this: every value was at most 0. As wide
/// as the values, so that both fit the same lanes.
const NONE: u32 = 4;

/// Maximum over 2×2 windows, cut off at 0: max-pooling and ReLU at once, in whichever order. A last
/// odd row or column is left out.
#[derive(Debug)]
pub(super) struct MaxPool {
    pub(super) x: Shape,
    pub(super) y: Shape,
    /// For every output, which of its four inputs it is, or [`NONE`].
    winners: Vec<u32>,
}

impl MaxPool {
    /// From images of shape `x` to images with that border.
    pub(super) const fn new(x: Shape, border: usize) -> Self {
        let y = Shape { height: x.height / 2, width: x.width / 2, channels: x.channels, border };
        Self { x, y, winners: Vec::new() }
    }

    /// Images of shape `self.x` → images of shape `self.y`.
    pub(super) fn forward(&mut self, x: &[f32], y: &mut [f32]) {
        let samples = x.len() / self.x.len();
        let len = self.y.height * self.y.row_len();
        self.winners.resize(samples * len, NONE);
        let images = x.chunks_exact(self.x.len()).zip(y.chunks_exact_mut(self.y.len()));
        for ((x, y), winners) in images.zip(self.winners.chunks_exact_mut(len)) {
            for (row, winners) in winners.chunks_exact_mut(self.y.row_len()).enumerate() {
                let y = &mut y[self.y.pixel(row, 0)..][..self.y.row_len()];
                let x = [0, 1].map(|i| &x[self.x.pixel(2 * row + i, 0)..][..2 * y.len()]);
                largest_of_four(x, self.x.channels, y, winners);
            }
        }
    }

    /// Writes the gradient of the input to images of the same size as `self.x` with the border of
    /// `dx_shape`; `dy` has no border.
    pub(super) fn backward(&self, dy: &[f32], dx_shape: Shape, dx: &mut [f32]) {
        let (channels, row_len) = (self.x.channels, self.y.row_len());
        let len = self.y.height * row_len;
        let samples = dy.chunks_exact(len).zip(dx.chunks_exact_mut(dx_shape.len()));
        for ((dy, dx), winners) in samples.zip(self.winners.chunks_exact(len)) {
            let rows = dy.chunks_exact(row_len).zip(winners.chunks_exact(row_len));
            for (row, (dy, winners)) in rows.enumerate() {
                for below in 0..2 {
                    let dx = &mut dx[dx_shape.pixel(2 * row + below as usize, 0)..];
                    let dx = &mut dx[..dx_shape.row_len()];
                    spread(dy, winners, channels, 2 * below, &mut dx[..2 * row_len]);
                    dx[2 * row_len..].fill(0.0);
                }
            }
            for row in 2 * self.y.height..dx_shape.height {
                dx[dx_shape.pixel(row, 0)..][..dx_shape.row_len()].fill(0.0);
            }
        }
    }
}

/// One row of outputs from two rows of inputs.
#[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN included; one instruction, not two")]
#[multiversion(targets("x86_64+avx2+fma"))]
fn largest_of_four(x: [&[f32]; 2], channels: usize, y: &mut [f32], winners: &mut [u32]) {
    let outputs = y.chunks_exact_mut(channels).zip(winners.chunks_exact_mut(channels));
    let upper = x[0].chunks_exact(2 * channels);
    let lower = x[1].chunks_exact(2 * channels);
    for ((y, winners), (upper, lower)) in outputs.zip(upper.zip(lower)) {
        let (a, b) = upper.split_at(channels);
        let (c, d) = lower.split_at(channels);
        let window = a.iter().zip(b).zip(c.iter().zip(d));
        for ((y, winner), ((a, b), (c, d))) in y.iter_mut().zip(winners).zip(window) {
            let (mut most, mut place) = (0.0, NONE);
            for (i, x) in [(0, *a), (1, *b), (2, *c), (3, *d)] {
                // A NaN wins and stays: a broken parameter shows in the loss.
                let more = !(x <= most);
                most = if more { x } else { most };
                place = if more { i } else { place };
            }
            (*y, *winner) = (most, place);
        }
    }
}

/// Gives one row of inputs its gradients: those of the outputs whose winner lies in this row, at
/// `place` or the one after it.
#[multiversion(targets("x86_64+avx2+fma"))]
fn spread(dy: &[f32], winners: &[u32], channels: usize, place: u32, dx: &mut [f32]) {
    let outputs = dy.chunks_exact(channels).zip(winners.chunks_exact(channels));
    for ((dy, winners), dx) in outputs.zip(dx.chunks_exact_mut(2 * channels)) {
        let (left, right) = dx.split_at_mut(channels);
        let inputs = left.iter_mut().zip(right);
        for ((dy, winner), (left, right)) in dy.iter().zip(winners).zip(inputs) {
            *left = if *winner == place { *dy } else { 0.0 };
            *right = if *winner == place + 1 { *dy } else { 0.0 };
        }
    }
}

/// Mean over all pixels of each image: `y [samples, channels]`.
pub(super) fn mean_forward(shape: Shape, x: &[f32], y: &mut [f32]) {
    let share = 1.0 / (shape.height * shape.width) as f32;
    for (x, y) in x.chunks_exact(shape.len()).zip(y.chunks_exact_mut(shape.channels)) {
        y.fill(0.0);
        for start in shape.rows(1) {
            for pixel in x[start..][..shape.row_len()].chunks_exact(shape.channels) {
                y.iter_mut().zip(pixel).for_each(|(y, x)| *y += x);
            }
        }
        y.iter_mut().for_each(|y| *y *= share);
    }
}

/// The gradient of [`mean_forward`]'s input, to images of `shape`.
pub(super) fn mean_backward(shape: Shape, dy: &[f32], dx: &mut [f32]) {
    let share = 1.0 / (shape.height * shape.width) as f32;
    for (dy, dx) in dy.chunks_exact(shape.channels).zip(dx.chunks_exact_mut(shape.len())) {
        for start in shape.rows(1) {
            for pixel in dx[start..][..shape.row_len()].chunks_exact_mut(shape.channels) {
                pixel.iter_mut().zip(dy).for_each(|(dx, dy)| *dx = dy * share);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::differences::{Differentiable, check, layout};
    use super::super::tensors::{Gradients, Parameters};
    use super::*;

    impl Differentiable for MaxPool {
        fn forward(&mut self, _: Parameters<'_>, x: &[f32]) -> Vec<f32> {
            let mut y = vec![f32::NAN; x.len() / self.x.len() * self.y.len()];
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
            gradients.hand_over(slackline_common::ids::TensorId(0), |unused| unused.fill(0.0));
            let mut dx = vec![f32::NAN; x.len()];
            Self::backward(self, dy, self.x, &mut dx);
            dx
        }
    }

    struct Mean(Shape);

    impl Differentiable for Mean {
        fn forward(&mut self, _: Parameters<'_>, x: &[f32]) -> Vec<f32> {
            let mut y = vec![f32::NAN; x.len() / self.0.len() * self.0.channels];
            mean_forward(self.0, x, &mut y);
            y
        }

        fn backward(
            &mut self,
            _: Parameters<'_>,
            x: &[f32],
            dy: &[f32],
            gradients: &mut Gradients<'_>,
        ) -> Vec<f32> {
            gradients.hand_over(slackline_common::ids::TensorId(0), |unused| unused.fill(0.0));
            let mut dx = vec![f32::NAN; x.len()];
            mean_backward(self.0, dy, &mut dx);
            dx
        }
    }

    #[test]
    fn pooling_gradients_are_those_of_finite_differences() {
        let none = layout(&[("unused", &[1])]);
        for (height, width) in [(4, 6), (5, 3)] {
            let shape = Shape { height, width, channels: 3, border: 0 };
            // A step that no two of these numbers are within of each other.
            check(&none, 2 * shape.len(), 1e-3, &mut MaxPool::new(shape, 0));
            check(&none, 2 * shape.len(), 0.5, &mut Mean(shape));
        }
    }

    #[test]
    fn the_first_of_equal_values_gets_the_gradient_and_values_below_zero_get_none() {
        let shape = Shape { height: 2, width: 4, channels: 1, border: 0 };
        let mut pool = MaxPool::new(shape, 0);
        let mut y = [9.0; 2];
        pool.forward(&[3.0, 3.0, -1.0, -2.0, 1.0, 3.0, 0.0, -3.0], &mut y);
        assert_eq!(y, [3.0, 0.0]);
        let mut dx = [9.0; 8];
        pool.backward(&[5.0, 7.0], shape, &mut dx);
        assert_eq!(dx, [5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
