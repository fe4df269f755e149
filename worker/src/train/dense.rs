//! Dense layer: `y = x Wᵀ + b` over rows.

use super::tensors::{Gradients, Parameters, tensor};
use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2};
use slackline_common::ids::TensorId;
use slackline_common::layout::Layout;

/// A dense layer with weight `[outputs, inputs]` and, if there is one, bias `[outputs]`.
#[derive(Debug)]
pub(super) struct Dense {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    weight: TensorId,
    bias: Option<TensorId>,
}

impl Dense {
    /// The layer `name`; its sizes are those of `name.weight`.
    pub(super) fn new(layout: &Layout, name: &str) -> Self {
        let weight = tensor(layout, &format!("{name}.weight"));
        let shape = &layout.tensors()[weight.index()].shape;
        let size = |i: usize| usize::try_from(shape[i]).expect("a checked layout fits memory");
        Self {
            inputs: size(1),
            outputs: size(0),
            weight,
            bias: layout.find(&format!("{name}.bias")),
        }
    }

    /// `x [rows, inputs]` → `y [rows, outputs]`.
    pub(super) fn forward(&self, parameters: Parameters<'_>, x: &[f32], y: &mut [f32]) {
        let rows = x.len() / self.inputs;
        let mut beta = 0.0;
        if let Some(bias) = self.bias {
            let bias = parameters.get(bias);
            y.chunks_exact_mut(self.outputs).for_each(|row| row.copy_from_slice(bias));
            beta = 1.0;
        }
        let weight = matrix(parameters.get(self.weight), self.outputs, self.inputs);
        let mut y = matrix_mut(y, rows, self.outputs);
        general_mat_mul(1.0, &matrix(x, rows, self.inputs), &weight.t(), beta, &mut y);
    }

    /// Hands over the gradients of bias and weight, given the input `x` and the gradient `dy` of the
    /// output.
    pub(super) fn backward_parameters(&self, x: &[f32], dy: &[f32], gradients: &mut Gradients<'_>) {
        let rows = x.len() / self.inputs;
        if let Some(bias) = self.bias {
            gradients.hand_over(bias, |sum| sum_rows(dy, sum));
        }
        gradients.hand_over(self.weight, |dw| {
            let mut dw = matrix_mut(dw, self.outputs, self.inputs);
            let dy = matrix(dy, rows, self.outputs);
            general_mat_mul(1.0, &dy.t(), &matrix(x, rows, self.inputs), 0.0, &mut dw);
        });
    }

    /// Writes the gradient `dx` of the input.
    pub(super) fn backward_input(&self, parameters: Parameters<'_>, dy: &[f32], dx: &mut [f32]) {
        let rows = dy.len() / self.outputs;
        let weight = matrix(parameters.get(self.weight), self.outputs, self.inputs);
        let mut dx = matrix_mut(dx, rows, self.inputs);
        general_mat_mul(1.0, &matrix(dy, rows, self.outputs), &weight, 0.0, &mut dx);
    }
}

/// Adds all rows of `values`, each as long as `sum`.
pub(super) fn sum_rows(values: &[f32], sum: &mut [f32]) {
    sum.fill(0.0);
    for row in values.chunks_exact(sum.len()) {
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
}

fn matrix(values: &[f32], rows: usize, columns: usize) -> ArrayView2<'_, f32> {
    ArrayView2::from_shape((rows, columns), values).expect("layers pass whole matrices")
}

fn matrix_mut(values: &mut [f32], rows: usize, columns: usize) -> ArrayViewMut2<'_, f32> {
    ArrayViewMut2::from_shape((rows, columns), values).expect("layers pass whole matrices")
}

#[cfg(test)]
mod tests {
    use super::super::differences::{Differentiable, check, layout};
    use super::*;

    impl Differentiable for Dense {
        fn forward(&mut self, parameters: Parameters<'_>, x: &[f32]) -> Vec<f32> {
            let mut y = vec![f32::NAN; x.len() / self.inputs * self.outputs];
            Self::forward(self, parameters, x, &mut y);
            y
        }

        fn backward(
            &mut self,
            parameters: Parameters<'_>,
            x: &[f32],
            dy: &[f32],
            gradients: &mut Gradients<'_>,
        ) -> Vec<f32> {
            self.backward_parameters(x, dy, gradients);
            let mut dx = vec![f32::NAN; x.len()];
            self.backward_input(parameters, dy, &mut dx);
            dx
        }
    }

    #[test]
    fn dense_gradients_are_those_of_finite_differences() {
        for (outputs, inputs) in [(3, 5), (17, 33), (9, 8)] {
            let with_bias = layout(&[("d.weight", &[outputs, inputs]), ("d.bias", &[outputs])]);
            let without = layout(&[("d.weight", &[outputs, inputs])]);
            for layout in [with_bias, without] {
                let mut layer = Dense::new(&layout, "d");
                let len = 4 * layer.inputs;
                // Linear in each argument: a wide step has no error but rounding.
                check(&layout, len, 0.5, &mut layer);
            }
        }
    }
}
