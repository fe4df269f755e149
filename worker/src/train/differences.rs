//! Central differences: the oracle of every layer's backward pass.

use super::tensors::{Gradients, Parameters};
use slackline_common::layout::{Init, Layout, TensorRole, TensorSpec};
use slackline_common::random::symmetric_unit;

/// A layer as the check sees it. `backward` follows a `forward` at the same point and returns the
/// gradient of the input; empty when the layer has none.
pub(super) trait Differentiable {
    fn forward(&mut self, parameters: Parameters<'_>, x: &[f32]) -> Vec<f32>;

    fn backward(
        &mut self,
        parameters: Parameters<'_>,
        x: &[f32],
        dy: &[f32],
        gradients: &mut Gradients<'_>,
    ) -> Vec<f32>;
}

/// `len` numbers in `-1.0..1.0` that depend on `stream` alone.
pub(super) fn numbers(stream: u64, len: usize) -> Vec<f32> {
    (0..len as u64).map(|i| symmetric_unit(17, stream, i)).collect()
}

/// A layout of trainable tensors.
pub(super) fn layout(tensors: &[(&str, &[u64])]) -> Layout {
    let specs = tensors.iter().map(|(name, shape)| {
        if name.contains("running_") {
            TensorSpec::statistic(*name, shape, Init::Zeros)
        } else {
            TensorSpec::parameter(*name, shape, Init::Zeros)
        }
    });
    Layout::new(specs.collect()).unwrap()
}

/// Compares the layer's gradients of a random weighted sum of its outputs with central differences
/// of width `step`, for every parameter and every input.
pub(super) fn check(layout: &Layout, inputs: usize, step: f32, layer: &mut dyn Differentiable) {
    let mut flat = numbers(1, layout.elements());
    let mut x = numbers(2, inputs);
    let y = layer.forward(Parameters::new(layout, &flat), &x);
    let weights = numbers(3, y.len());
    let mut gradient = vec![f32::NAN; flat.len()];
    let dx = layer.backward(
        Parameters::new(layout, &flat),
        &x,
        &weights,
        &mut Gradients {
            layout,
            buffer: &mut vec![f32::NAN; 4], // stale numbers must not leak
            ready: &mut |tensor, values| gradient[layout.range(tensor)].copy_from_slice(values),
        },
    );
    let mut value = |flat: &[f32], x: &[f32]| -> f64 {
        let y = layer.forward(Parameters::new(layout, flat), x);
        y.iter().zip(&weights).map(|(y, w)| f64::from(*y) * f64::from(*w)).sum()
    };
    for (tensor, spec) in (0..).map(slackline_common::ids::TensorId).zip(layout.tensors()) {
        if spec.role == TensorRole::Statistic {
            continue;
        }
        for i in layout.range(tensor) {
            let expected = difference(&mut flat, i, step, &mut |flat| value(flat, &x));
            near(&format!("{} element {i}", spec.name), gradient[i], expected);
        }
    }
    if !dx.is_empty() {
        assert_eq!(dx.len(), x.len());
        for (i, got) in dx.into_iter().enumerate() {
            let expected = difference(&mut x, i, step, &mut |x| value(&flat, x));
            near(&format!("input {i}"), got, expected);
        }
    }
}

fn difference(at: &mut [f32], i: usize, step: f32, value: &mut dyn FnMut(&[f32]) -> f64) -> f64 {
    let middle = at[i];
    let mut side = |point: f32| {
        at[i] = point;
        value(at)
    };
    let (above, below) = (middle + step, middle - step);
    let rise = side(above) - side(below);
    at[i] = middle;
    rise / (f64::from(above) - f64::from(below))
}

/// One part in 500, or of 1 where the gradient is small: rounding leaves a hundredth of it.
fn near(what: &str, got: f32, expected: f64) {
    let error = (f64::from(got) - expected).abs();
    assert!(error <= 2e-3 * expected.abs().max(1.0), "{what}: {got}, differences say {expected}");
}
