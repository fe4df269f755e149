//! Activations, in place and element by element.

use multiversion::multiversion;

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
const GELU_SLOPE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

/// `tanh(x)` as an odd polynomial over an even one, within 4e-7 of it; the coefficients are those of
/// Eigen and XLA. Unlike the library's it has no branches, so a loop of it uses all lanes.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    const ODD: [f32; 7] = [
        -2.760_768_5e-16,
        2.000_188e-13,
        -8.604_672e-11,
        5.122_297e-8,
        1.485_722_4e-5,
        6.372_619_3e-4,
        4.893_524_6e-3,
    ];
    const EVEN: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];
    // Beyond it the quotient is 1 to the last bit. NaN stays NaN.
    let x = x.clamp(-7.905_311, 7.905_311);
    let square = x * x;
    let mut odd = ODD[0];
    for coefficient in &ODD[1..] {
        odd = odd * square + coefficient;
    }
    let mut even = EVEN[0];
    for coefficient in &EVEN[1..] {
        even = even * square + coefficient;
    }
    x * odd / even
}

/// The hyperbolic tangent inside GELU.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    tanh(GELU_SLOPE * (x + GELU_CUBE * x * x * x))
}

/// GELU in its tanh form (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016).
#[multiversion(targets("x86_64+avx2+fma"))]
pub(super) fn gelu(x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = 0.5 * x * (1.0 + gelu_tanh(*x));
    }
}

/// Turns the gradient of [`gelu`]'s output into that of its input `x`.
#[multiversion(targets("x86_64+avx2+fma"))]
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
    fn the_tangent_is_within_a_few_units_of_the_last_place() {
        for i in -12_000..=12_000 {
            let x = i as f32 / 1000.0;
            let error = (f64::from(tanh(x)) - f64::from(x).tanh()).abs();
            assert!(error < 4e-7, "{x}: {}", tanh(x));
        }
        assert!(tanh(f32::NAN).is_nan() && tanh(f32::INFINITY) <= 1.0);
    }

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
