//! Layer norm over rows (Ba, Kiros and Hinton, "Layer Normalization", 2016).

use super::tensors::{Gradients, Parameters, grown, tensor};
use slackline_common::ids::TensorId;
use slackline_common::layout::Layout;

/// Added to the variance.
const EPSILON: f32 = 1e-5;

/// A layer norm with weight and bias `[width]`.
#[derive(Debug)]
pub(super) struct LayerNorm {
    width: usize,
    weight: TensorId,
    bias: TensorId,
    /// Mean and inverse deviation of each row of the last `forward`.
    statistics: Vec<(f32, f32)>,
    weight_gradient: Vec<f32>,
    bias_gradient: Vec<f32>,
}

impl LayerNorm {
    /// The layer `name`.
    pub(super) fn new(layout: &Layout, name: &str) -> Self {
        let weight = tensor(layout, &format!("{name}.weight"));
        Self {
            width: layout.range(weight).len(),
            weight,
            bias: tensor(layout, &format!("{name}.bias")),
            statistics: Vec::new(),
            weight_gradient: Vec::new(),
            bias_gradient: Vec::new(),
        }
    }

    /// `x [rows, width]` → `y [rows, width]`.
    pub(super) fn forward(&mut self, parameters: Parameters<'_>, x: &[f32], y: &mut [f32]) {
        let (weight, bias) = (parameters.get(self.weight), parameters.get(self.bias));
        let share = 1.0 / self.width as f32;
        self.statistics.clear();
        for (x, y) in x.chunks_exact(self.width).zip(y.chunks_exact_mut(self.width)) {
            let mean = x.iter().sum::<f32>() * share;
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() * share;
            let scale = 1.0 / (variance + EPSILON).sqrt();
            self.statistics.push((mean, scale));
            for (((y, x), weight), bias) in y.iter_mut().zip(x).zip(weight).zip(bias) {
                *y = (x - mean) * scale * weight + bias;
            }
        }
    }

    /// Hands over the gradients of bias and weight and adds that of the input to `dx`, given the
    /// input of the last `forward` and the gradient of its output.
    pub(super) fn backward(
        &mut self,
        parameters: Parameters<'_>,
        x: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        gradients: &mut Gradients<'_>,
    ) {
        let weight = parameters.get(self.weight);
        let share = 1.0 / self.width as f32;
        let weight_gradient = grown(&mut self.weight_gradient, self.width);
        let bias_gradient = grown(&mut self.bias_gradient, self.width);
        weight_gradient.fill(0.0);
        bias_gradient.fill(0.0);
        let rows = x.chunks_exact(self.width).zip(dy.chunks_exact(self.width));
        let rows = rows.zip(dx.chunks_exact_mut(self.width)).zip(&self.statistics);
        for (((x, dy), dx), (mean, scale)) in rows {
            let (mut sum, mut product) = (0.0, 0.0);
            for i in 0..self.width {
                let normed = (x[i] - mean) * scale;
                weight_gradient[i] += dy[i] * normed;
                bias_gradient[i] += dy[i];
                sum += dy[i] * weight[i];
                product += dy[i] * weight[i] * normed;
            }
            let (sum, product) = (sum * share, product * share);
            for i in 0..self.width {
                let normed = (x[i] - mean) * scale;
                dx[i] += scale * (dy[i] * weight[i] - sum - normed * product);
            }
        }
        gradients.hand_over_slice(self.bias, bias_gradient);
        gradients.hand_over_slice(self.weight, weight_gradient);
    }
}

#[cfg(test)]
mod tests {
    use super::super::differences::{Differentiable, check, layout};
    use super::*;

    impl Differentiable for LayerNorm {
        fn forward(&mut self, parameters: Parameters<'_>, x: &[f32]) -> Vec<f32> {
            let mut y = vec![f32::NAN; x.len()];
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
            let mut dx = vec![3.0; x.len()];
            Self::backward(self, parameters, x, dy, &mut dx, gradients);
            dx.iter().map(|added| added - 3.0).collect()
        }
    }

    #[test]
    fn layer_norm_gradients_are_those_of_finite_differences() {
        let layout = layout(&[("n.weight", &[7]), ("n.bias", &[7])]);
        check(&layout, 5 * 7, 0.01, &mut LayerNorm::new(&layout, "n"));
    }
}
