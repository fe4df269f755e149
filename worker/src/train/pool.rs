//! Pooling over channels-last images.

use super::image::Shape;

/// The window that gave a maximum, or this: every value was at most 0.
const NONE: u8 = 4;

/// Maximum over 2×2 windows, cut off at 0: max-pooling and ReLU at once, in whichever order. A last
/// odd row or column is left out.
#[derive(Debug)]
pub(super) struct MaxPool {
    pub(super) x: Shape,
    pub(super) y: Shape,
    /// For every output, which of its four inputs it is, or [`NONE`].
    winners: Vec<u8>,
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
        let channels = self.x.channels;
        let len = self.y.height * self.y.row_len();
        let samples = dy.chunks_exact(len).zip(dx.chunks_exact_mut(dx_shape.len()));
        for ((dy, dx), winners) in samples.zip(self.winners.chunks_exact(len)) {
            (0..dx_shape.height)
                .for_each(|row| dx[dx_shape.pixel(row, 0)..][..dx_shape.row_len()].fill(0.0));
            for (i, (dy, winner)) in dy.iter().zip(winners).enumerate() {
                if *winner != NONE {
                    let (pixel, channel) = (i / channels, i % channels);
                    let row = 2 * (pixel / self.y.width) + usize::from(*winner / 2);
                    let column = 2 * (pixel % self.y.width) + usize::from(*winner % 2);
                    dx[dx_shape.pixel(row, column) + channel] = *dy;
                }
            }
        }
    }
}

/// One row of outputs from two rows of inputs.
fn largest_of_four(x: [&[f32]; 2], channels: usize, y: &mut [f32], winners: &mut [u8]) {
    let outputs = y.chunks_exact_mut(channels).zip(winners.chunks_exact_mut(channels));
    for (i, (y, winners)) in outputs.enumerate() {
        let at = 2 * i * channels;
        let window: [&[f32]; 4] =
            [0, 1, 2, 3].map(|w: usize| &x[w / 2][at + w % 2 * channels..][..channels]);
        for (channel, (y, winner)) in y.iter_mut().zip(winners).enumerate() {
            (*y, *winner) = (0.0, NONE);
            for (place, x) in (0..).zip(window) {
                // A NaN wins and stays: a broken parameter shows in the loss.
                if !(x[channel] <= *y) {
                    (*y, *winner) = (x[channel], place);
                }
            }
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
