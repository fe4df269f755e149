//! The loops of the optimizers. Coefficients are ready: no loop has a branch or a power in it.
//!
//! In all of them the gradient is first `clip × gradient + weight_decay × w`. The terms that are off
//! are multiplied by 0 or 1 instead of having a loop of their own: the loops wait for memory anyway.

use crate::kernels::dispatch;

/// A running average: `x = decay·x + gain·new`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    pub(super) decay: f32,
    pub(super) gain: f32,
}

/// `of_past·m + of_gradient·g`, with `m` as it was before the update.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direction {
    pub(super) of_past: f32,
    pub(super) of_gradient: f32,
}

/// Adam's averages and the step `step·direction / (√square·root + epsilon)`, with the corrections
/// of the bias in `step` and `root`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub(super) mean: Average,
    pub(super) direction: Direction,
    pub(super) square: Average,
    pub(super) step: f32,
    pub(super) root: f32,
    pub(super) epsilon: f32,
}

dispatch! {
    /// `w -= rate·g`.
    pub(super) fn descend(
        parameters: &mut [f32], gradient: &[f32], clip: f32, weight_decay: f32, rate: f32,
    ) = portable::descend
}

dispatch! {
    /// `w -= rate × direction`.
    #[expect(clippy::too_many_arguments, reason = "coefficients, each used once")]
    pub(super) fn momentum(
        parameters: &mut [f32], gradient: &[f32], velocity: &mut [f32],
        clip: f32, weight_decay: f32, kept: Average, direction: Direction, rate: f32,
    ) = portable::momentum
}

dispatch! {
    /// `w -= rate·g / (√ahead + epsilon)`, where `ahead` is the average that is not kept.
    #[expect(clippy::too_many_arguments, reason = "coefficients, each used once")]
    pub(super) fn by_root(
        parameters: &mut [f32], gradient: &[f32], squares: &mut [f32],
        clip: f32, weight_decay: f32, kept: Average, ahead: Average, rate: f32, epsilon: f32,
    ) = portable::by_root
}

dispatch! {
    /// `w = keep·w - step·direction / (√square·root + epsilon)`.
    #[expect(clippy::too_many_arguments, reason = "coefficients, each used once")]
    pub(super) fn adam(
        parameters: &mut [f32], gradient: &[f32], means: &mut [f32], squares: &mut [f32],
        clip: f32, weight_decay: f32, keep: f32, moments: Moments,
    ) = portable::adam
}

/// The meaning of the loops above. Slices have one length: `apply` checked it.
pub(super) mod portable {
    use super::{Average, Direction, Moments};

    #[inline(always)]
    pub(in super::super) fn descend(
        parameters: &mut [f32],
        gradient: &[f32],
        clip: f32,
        weight_decay: f32,
        rate: f32,
    ) {
        for (w, g) in parameters.iter_mut().zip(gradient) {
            let g = clip * g + weight_decay * *w;
            *w -= rate * g;
        }
    }

    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "coefficients, each used once")]
    pub(in super::super) fn momentum(
        parameters: &mut [f32],
        gradient: &[f32],
        velocity: &mut [f32],
        clip: f32,
        weight_decay: f32,
        kept: Average,
        direction: Direction,
        rate: f32,
    ) {
        for ((w, g), m) in parameters.iter_mut().zip(gradient).zip(velocity) {
            let g = clip * g + weight_decay * *w;
            *w -= rate * (direction.of_past * *m + direction.of_gradient * g);
            *m = kept.decay * *m + kept.gain * g;
        }
    }

    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "coefficients, each used once")]
    pub(in super::super) fn by_root(
        parameters: &mut [f32],
        gradient: &[f32],
        squares: &mut [f32],
        clip: f32,
        weight_decay: f32,
        kept: Average,
        ahead: Average,
        rate: f32,
        epsilon: f32,
    ) {
        for ((w, g), s) in parameters.iter_mut().zip(gradient).zip(squares) {
            let g = clip * g + weight_decay * *w;
            let square = g * g;
            let root = (ahead.decay * *s + ahead.gain * square).sqrt();
            *s = kept.decay * *s + kept.gain * square;
            *w -= rate * g / (root + epsilon);
        }
    }

    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "coefficients, each used once")]
    pub(in super::super) fn adam(
        parameters: &mut [f32],
        gradient: &[f32],
        means: &mut [f32],
        squares: &mut [f32],
        clip: f32,
        weight_decay: f32,
        keep: f32,
        moments: Moments,
    ) {
        let Moments { mean, direction, square, step, root, epsilon } = moments;
        for (((w, g), m), v) in parameters.iter_mut().zip(gradient).zip(means).zip(squares) {
            let g = clip * g + weight_decay * *w;
            let towards = direction.of_past * *m + direction.of_gradient * g;
            *m = mean.decay * *m + mean.gain * g;
            *v = square.decay * *v + square.gain * (g * g);
            *w = keep * *w - step * towards / (v.sqrt() * root + epsilon);
        }
    }
}
