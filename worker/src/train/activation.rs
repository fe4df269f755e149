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

#[cfg(test)]
mod tests {
    use super::*;

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
