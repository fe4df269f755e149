//! Activations, in place and element by element.

/// `max(x, 0)`. NaN stays NaN, so that a broken parameter shows in the loss.
pub(super) fn relu(values: &mut [f32]) {
    for value in values {
        *value = if *value <= 0.0 { 0.0 } else { *value };
    }
}

/// Clears the gradient where the output of [`relu`] was 0.
pub(super) fn relu_backward(output: &[f32], gradient: &mut [f32]) {
    for (gradient, output) in gradient.iter_mut().zip(output) {
        *gradient = if *output <= 0.0 { 0.0 } else { *gradient };
    }
}

/// `sqrt(2 / π)`.
const GELU_SLOPE: f32 = 0.797_884_56;
const GELU_CUBE: f32 = 0.044_715;

/// The hyperbolic tangent inside GELU.
fn gelu_tanh(x: f32) -> f32 {
    (GELU_SLOPE * (x + GELU_CUBE * x * x * x)).tanh()
}

/// GELU in its tanh form (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016).
pub(super) fn gelu(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = 0.5 * x * (1.0 + gelu_tanh(*x));
    }
}

/// Turns the gradient of [`gelu`]'s output into that of its input `x`.
pub(super) fn gelu_backward(x: &[f32], gradient: &mut [f32]) {
    for (gradient, x) in gradient.iter_mut().zip(x) {
        let tanh = gelu_tanh(*x);
        let inner = GELU_SLOPE * (1.0 + 3.0 * GELU_CUBE * x * x);
        *gradient *= 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_of_gelu_is_its_slope() {
        for i in -40..40 {
            let x = i as f32 / 8.0;
            let at = |x: f32| {
                let mut y = [0.0];
                gelu(&[x], &mut y);
                f64::from(y[0])
            };
            let mut gradient = [1.0];
            gelu_backward(&[x], &mut gradient);
            let expected = (at(x + 0.01) - at(x - 0.01)) / 0.02;
            assert!(
                (f64::from(gradient[0]) - expected).abs() < 2e-4,
                "{x}: {gradient:?} {expected}"
            );
        }
    }

    #[test]
    fn relu_lets_gradients_through_where_its_output_is_positive() {
        let mut values = [-1.0, 0.0, 2.0, f32::NAN];
        relu(&mut values);
        assert_eq!(values[..3], [0.0, 0.0, 2.0]);
        assert!(values[3].is_nan());
        let mut gradient = [1.0, 2.0, 3.0, 4.0];
        relu_backward(&values, &mut gradient);
        assert_eq!(gradient, [0.0, 0.0, 3.0, 4.0]);
    }
}
