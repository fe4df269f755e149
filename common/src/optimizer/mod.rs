//! What a shard does with a gradient: one pass over a block's parameters and optimizer state.
//!
//! # Formulas
//!
//! `r` is the learning rate times the schedule's factor, `p` the share (below), `λ` the weight decay
//! and `g = clip_factor × gradient + λ·w` (without `λ·w` for `add` and `adamw`). State on the right
//! of an `=` is that before the update. With `p = 1` every line is what `torch.optim` computes.
//!
//! | kind | update |
//! | --- | --- |
//! | `add` | `w += r·p·g` |
//! | `sgd` | `w -= r·p·g` |
//! | `momentum` | `w -= r·(a·m + g·(p - a)/(1 - μ))`, `m = μᵖ·m + c·g`; `c = (1 - μᵖ)/(1 - μ)`, `a = μ·c` |
//! | `nesterov` | the same with `a = μ²·c` |
//! | `adagrad` | `w -= r·p·g / (√(s + g²) + ε)`, `s = s + p·g²` |
//! | `rmsprop` | `w -= r·p·g / (√(α·s + (1 - α)·g²) + ε)`, `s = αᵖ·s + (1 - αᵖ)·g²` |
//! | `adam` | `v = β₂ᵖ·v + (1 - β₂ᵖ)·g²`, `w -= r·d̂ / (√v̂ + ε)`, `d = a·m + (p - a)·g` with `a` as for momentum, `m = β₁ᵖ·m + (1 - β₁ᵖ)·g` |
//! | `adamw` | `w = (1 - r·p·λ)·w`, then as `adam` |
//!
//! For Adam, `t` is the sum of the shares before the update; `v̂ = v / (1 - β₂ᵗ⁺ᵖ)` and
//! `d̂ = d / (1 - (a/p)·β₁ᵗ)` undo the weight that zero, the first value, still has.
//!
//! # Shares
//!
//! In `bsp` a step is one update with `p = 1`. A push that is applied on arrival is only a part of a
//! global step, `p = samples / global batch`, and moves the model by that part, so that one job file
//! means the same learning rate in every mode. The coefficients follow from one demand: **as long as
//! the gradient does not change, `W` pushes of share `1/W` are one whole update.**
//!
//! * Momentum meets it exactly. For a constant `g` a whole update is a linear map of `(w, m)`, and
//!   the update of share `p` is its `p`-th power: `Wp = 1` of them decay `m` by `μ` and add `g`, and
//!   move `w` by `r·(μ·m + g)`. The obvious choice, `w -= r·p·m` with the new `m`, reaches as far in
//!   the long run (`r·p/(1 - μ)` per unit of gradient, as here), but later within a step, and such a
//!   lag turns into oscillation at rates that are stable in `bsp`.
//! * Adam's numerator meets it exactly for the same reason; its root moves within a step by
//!   `β₂` at most.
//! * The roots of `adagrad` and `rmsprop` are taken as if the whole step had this gradient. Those of
//!   the kept `s` would start from a part of a square, and the first push of a hundred workers
//!   would be ten times too long. As it is, the first step is up to a sixth short.
//!
//! Squares see each push's own gradient, whose noise is larger than that of a mean over workers: when
//! gradients differ a lot between workers, steps by roots are somewhat smaller than in `bsp`.
//!
//! # Same bits
//!
//! Coefficients are made in `f64` from `+ - × ÷ √` and `libm::pow`, a Rust port that does not ask
//! the system's mathematics library; the loops round where the formulas say. A replay on another
//! machine gives the same bits.

mod clip;
mod loops;
mod schedule;
#[cfg(test)]
mod tests;

pub use clip::{ClipFactors, clip_factors};
pub use schedule::staleness_factor;

use crate::job::OptimizerSpec;
use crate::kernels;

/// How one push or one closed step changes a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// The learning rate, times the schedule's factor, times [`staleness_factor`] where it applies.
    pub rate: f32,
    /// The part of a global step this is: 1 for a closed step, `samples / global batch` for a push
    /// applied on arrival. Above 0.
    pub share: f32,
    /// Multiplies the gradient before anything else: [`ClipFactors`].
    pub clip_factor: f32,
}

impl Update {
    /// A whole global step without clipping.
    pub const fn whole(rate: f32) -> Self {
        Self { rate, share: 1.0, clip_factor: 1.0 }
    }
}

impl OptimizerSpec {
    /// The base learning rate.
    pub const fn learning_rate(&self) -> f32 {
        match *self {
            Self::Add { learning_rate }
            | Self::Sgd { learning_rate, .. }
            | Self::Momentum { learning_rate, .. }
            | Self::Adagrad { learning_rate, .. }
            | Self::Rmsprop { learning_rate, .. }
            | Self::Adam { learning_rate, .. }
            | Self::Adamw { learning_rate, .. } => learning_rate,
        }
    }

    /// The names of the values kept beside each parameter, in the order of [`BlockState::slots`].
    pub const fn slot_names(&self) -> &'static [&'static str] {
        match self {
            Self::Add { .. } | Self::Sgd { .. } => &[],
            Self::Momentum { .. } => &["momentum"],
            Self::Adagrad { .. } => &["square_sum"],
            Self::Rmsprop { .. } => &["square_mean"],
            Self::Adam { .. } | Self::Adamw { .. } => &["mean", "square_mean"],
        }
    }

    /// How many values are kept beside each parameter.
    pub const fn slots(&self) -> usize {
        self.slot_names().len()
    }
}

/// Why stored values are not the state of a block.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StateError {
    /// Another number of slots than the optimizer has.
    #[error("the stored optimizer state has {got} slots; this optimizer keeps {expected}")]
    Slots {
        /// How many were stored.
        got: usize,
        /// How many there must be.
        expected: usize,
    },
    /// A slot of another length than the block.
    #[error("stored optimizer slot {name:?} has {got} values; the block has {expected} elements")]
    Length {
        /// The slot.
        name: &'static str,
        /// How many values it has.
        got: usize,
        /// How many it must have.
        expected: usize,
    },
    /// A sum of shares that no sequence of updates gives.
    #[error("the stored count of updates is {got}; it must be finite and not negative")]
    Updates {
        /// The value.
        got: f64,
    },
}

/// The optimizer's state of one block.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockState {
    slots: Vec<Vec<f32>>,
    updates: f64,
}

impl BlockState {
    /// The state before the first update: all zero.
    pub fn new(spec: &OptimizerSpec, elements: usize) -> Self {
        Self { slots: vec![vec![0.0; elements]; spec.slots()], updates: 0.0 }
    }

    /// The state that [`slots`](Self::slots) and [`updates`](Self::updates) once gave.
    ///
    /// # Errors
    /// The first rule of [`StateError`] that the parts break.
    pub fn from_parts(
        spec: &OptimizerSpec,
        elements: usize,
        slots: Vec<Vec<f32>>,
        updates: f64,
    ) -> Result<Self, StateError> {
        let names = spec.slot_names();
        if slots.len() != names.len() {
            return Err(StateError::Slots { got: slots.len(), expected: names.len() });
        }
        for (name, slot) in names.iter().zip(&slots) {
            if slot.len() != elements {
                return Err(StateError::Length { name, got: slot.len(), expected: elements });
            }
        }
        if !updates.is_finite() || updates.is_sign_negative() {
            return Err(StateError::Updates { got: updates });
        }
        Ok(Self { slots, updates })
    }

    /// The kept values, slot by slot, each as long as the block.
    pub fn slots(&self) -> &[Vec<f32>] {
        &self.slots
    }

    /// The kept values, to fill in place.
    pub fn slots_mut(&mut self) -> &mut [Vec<f32>] {
        &mut self.slots
    }

    /// How many whole updates the block has had: the sum of their shares.
    pub const fn updates(&self) -> f64 {
        self.updates
    }
}

/// Applies one gradient to one block. One pass over memory, no allocation.
///
/// # Panics
/// If `parameters`, `gradient` and the slots of `state` differ in length, or `state` is that of
/// another optimizer: the caller mixed up its blocks.
pub fn apply(
    spec: &OptimizerSpec,
    state: &mut BlockState,
    update: &Update,
    parameters: &mut [f32],
    gradient: &[f32],
) {
    assert_eq!(parameters.len(), gradient.len(), "a gradient has one value per parameter");
    assert_eq!(state.slots.len(), spec.slots(), "the state is that of another optimizer");
    let same = |slot: &Vec<f32>| slot.len() == parameters.len();
    assert!(state.slots.iter().all(same), "a slot has one value per parameter");

    let share = f64::from(update.share);
    let rate = f64::from(update.rate) * share;
    let before = state.updates;
    state.updates += share;
    let clip = update.clip_factor;
    match (*spec, &mut state.slots[..]) {
        (OptimizerSpec::Add { .. }, []) => {
            loops::descend(parameters, gradient, clip, 0.0, narrow(-rate));
        }
        (OptimizerSpec::Sgd { weight_decay, .. }, []) => {
            loops::descend(parameters, gradient, clip, weight_decay, narrow(rate));
        }
        (OptimizerSpec::Momentum { momentum, weight_decay, nesterov, .. }, [m]) => {
            let (kept, direction) = velocity(momentum, nesterov, share);
            let rate = update.rate;
            loops::momentum(parameters, gradient, m, clip, weight_decay, kept, direction, rate);
        }
        (OptimizerSpec::Adagrad { epsilon, weight_decay: decay, .. }, [s]) => {
            let kept = loops::Average { decay: 1.0, gain: update.share };
            let ahead = loops::Average { decay: 1.0, gain: 1.0 };
            let rate = narrow(rate);
            loops::by_root(parameters, gradient, s, clip, decay, kept, ahead, rate, epsilon);
        }
        (OptimizerSpec::Rmsprop { alpha, epsilon, weight_decay: decay, .. }, [s]) => {
            let (kept, ahead) = (average(alpha, share), average(alpha, 1.0));
            let rate = narrow(rate);
            loops::by_root(parameters, gradient, s, clip, decay, kept, ahead, rate, epsilon);
        }
        (OptimizerSpec::Adam { beta1, beta2, epsilon, weight_decay, .. }, [m, v]) => {
            let moments = moments((beta1, beta2), share, before, update.rate, epsilon);
            loops::adam(parameters, gradient, m, v, clip, weight_decay, 1.0, moments);
        }
        (OptimizerSpec::Adamw { beta1, beta2, epsilon, weight_decay, .. }, [m, v]) => {
            let moments = moments((beta1, beta2), share, before, update.rate, epsilon);
            let keep = narrow(1.0 - rate * f64::from(weight_decay));
            loops::adam(parameters, gradient, m, v, clip, 0.0, keep, moments);
        }
        _ => unreachable!("the number of slots was checked"),
    }
}

/// Moves running statistics by a push's difference: `parameters += share × delta`.
///
/// # Panics
/// If the lengths differ.
pub fn apply_statistic(parameters: &mut [f32], delta: &[f32], share: f32) {
    kernels::scale_add(parameters, share, delta);
}

/// `decay^share`, exactly `decay` for a whole update.
fn power(decay: f32, share: f64) -> f64 {
    let decay = f64::from(decay);
    if share == 1.0 { decay } else { libm::pow(decay, share) }
}

/// What a running average keeps of the past and takes of the new in an update of this share.
fn average(decay: f32, share: f64) -> loops::Average {
    let kept = power(decay, share);
    loops::Average { decay: narrow(kept), gain: narrow(1.0 - kept) }
}

/// `(1 - decay^share) / (1 - decay)`: what `share` of a whole update adds to a sum that decays.
fn gain(decay: f32, share: f64) -> f64 {
    let whole = 1.0 - f64::from(decay);
    // Where nothing decays, the limit is the share itself.
    if whole == 0.0 { share } else { (1.0 - power(decay, share)) / whole }
}

/// How the velocity changes, and the direction of an update, in units of the rate.
fn velocity(momentum: f32, nesterov: bool, share: f64) -> (loops::Average, loops::Direction) {
    let mu = f64::from(momentum);
    let gain = gain(momentum, share);
    let ahead = if nesterov { mu } else { 1.0 };
    let of_past = ahead * mu * gain;
    let whole = 1.0 - mu;
    let of_gradient = if share == 1.0 {
        if nesterov { 1.0 + mu } else { 1.0 }
    } else if whole == 0.0 {
        // The limit of the line below.
        if nesterov { share * (3.0 + share) / 2.0 } else { share * (1.0 + share) / 2.0 }
    } else {
        (share - of_past) / whole
    };
    let kept = loops::Average { decay: narrow(power(momentum, share)), gain: narrow(gain) };
    (kept, loops::Direction { of_past: narrow(of_past), of_gradient: narrow(of_gradient) })
}

/// Adam's coefficients for an update of this share after `before` whole ones.
fn moments(
    (beta1, beta2): (f32, f32),
    share: f64,
    before: f64,
    rate: f32,
    epsilon: f32,
) -> loops::Moments {
    let of_past = f64::from(beta1) * gain(beta1, share);
    let direction =
        loops::Direction { of_past: narrow(of_past), of_gradient: narrow(share - of_past) };
    let seen_mean = 1.0 - of_past / share * libm::pow(f64::from(beta1), before);
    let seen_square = 1.0 - libm::pow(f64::from(beta2), before + share);
    loops::Moments {
        mean: average(beta1, share),
        direction,
        square: average(beta2, share),
        step: narrow(f64::from(rate) / seen_mean),
        root: narrow(1.0 / seen_square.sqrt()),
        epsilon,
    }
}

/// Rounds a coefficient to the precision of the loops.
#[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
const fn narrow(coefficient: f64) -> f32 {
    coefficient as f32
}
