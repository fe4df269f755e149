//! Gradient clipping by norm (Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent
//! neural networks", ICML 2013), with the norms of the step before.
//!
//! First each tensor's gradient is held to the norm it may have, then the whole gradient to its own.

use super::narrow;
use crate::job::Clip;

/// What each tensor's gradient is multiplied by. The default clips nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClipFactors {
    factors: Vec<f32>,
}

impl ClipFactors {
    /// The factor of the tensor at this position of the layout: at most 1, and 1 for a tensor whose
    /// norm was not known.
    pub fn factor(&self, tensor: usize) -> f32 {
        self.factors.get(tensor).copied().unwrap_or(1.0)
    }
}

/// The factors that `clip` asks for, from the squared norm of each tensor's gradient in the last
/// step, in the order of the layout.
///
/// A norm of 0, and one that is no number or not finite, clips nothing. No norms, as before the
/// first step, clip nothing either.
pub fn clip_factors(clip: &Clip, tensor_norms_squared: &[f64]) -> ClipFactors {
    if !clip.is_on() {
        return ClipFactors::default();
    }
    let mut total_squared = 0.0;
    let mut factors: Vec<f64> = Vec::with_capacity(tensor_norms_squared.len());
    for squared in tensor_norms_squared {
        let norm = squared.sqrt();
        let factor = bound(norm, clip.per_tensor);
        if norm.is_finite() {
            total_squared += (factor * norm) * (factor * norm);
        }
        factors.push(factor);
    }
    let whole = bound(total_squared.sqrt(), clip.global_norm);
    ClipFactors { factors: factors.into_iter().map(|factor| narrow(factor * whole)).collect() }
}

/// The factor that brings `norm` down to `max`, at most 1; a `max` of 0 is off.
fn bound(norm: f64, max: f32) -> f64 {
    let max = f64::from(max);
    if max > 0.0 && norm > max && norm.is_finite() { max / norm } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(per_tensor: f32, global_norm: f32, norms: &[f64], expected: &[f32]) {
        let squared: Vec<f64> = norms.iter().map(|norm| norm * norm).collect();
        let factors = clip_factors(&Clip { per_tensor, global_norm }, &squared);
        let got: Vec<f32> = (0..expected.len()).map(|tensor| factors.factor(tensor)).collect();
        assert_eq!(got, expected, "norms {norms:?} held to {per_tensor} and {global_norm}");
    }

    #[test]
    fn clipping_that_is_off_or_not_reached_changes_nothing() {
        check(0.0, 0.0, &[3.0, 400.0], &[1.0, 1.0]);
        check(5.0, 0.0, &[3.0, 5.0], &[1.0, 1.0]);
        check(0.0, 5.0, &[3.0, 4.0], &[1.0, 1.0]);
    }

    #[test]
    fn a_tensor_is_held_to_its_norm() {
        check(2.0, 0.0, &[4.0, 1.0, 2.0, 8.0], &[0.5, 1.0, 1.0, 0.25]);
    }

    #[test]
    fn the_whole_gradient_is_held_to_its_norm() {
        // √(3² + 4²) = 5.
        check(0.0, 1.0, &[3.0, 4.0], &[0.2, 0.2]);
        check(0.0, 2.5, &[3.0, 4.0, 0.0], &[0.5, 0.5, 0.5]);
    }

    #[test]
    fn the_global_norm_is_that_of_the_tensors_after_their_own_clipping() {
        // 6 becomes 3 by 1/2, 4 stays; √(3² + 4²) = 5 becomes 1 by 1/5.
        check(4.0, 0.0, &[8.0, 4.0], &[0.5, 1.0]);
        check(4.0, 1.0, &[3.0, 4.0], &[0.2, 0.2]);
        check(3.0, 1.5, &[6.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0], &[0.083_333_336]);
        check(3.0, 100.0, &[6.0, 4.0], &[0.5, 0.75]);
    }

    #[test]
    fn unknown_and_zero_norms_clip_nothing() {
        check(1.0, 1.0, &[], &[1.0, 1.0]);
        check(1.0, 1.0, &[0.0, 0.0], &[1.0, 1.0]);
        check(1.0, 0.0, &[f64::NAN, f64::INFINITY, 2.0], &[1.0, 1.0, 0.5, 1.0]);
        check(0.0, 1.0, &[f64::NAN, f64::INFINITY, 2.0], &[0.5, 0.5, 0.5]);
        assert_eq!(ClipFactors::default().factor(7), 1.0);
    }
}
