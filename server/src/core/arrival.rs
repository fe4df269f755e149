//! How a push moves the model when it is applied on arrival.

use slackline_common::job::OptimizerSpec;
use slackline_common::layout::TensorRole;
use slackline_common::optimizer::{ClipFactors, Update};

/// The terms of one push that is applied on arrival.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) rate: f32,
    pub(super) optimizer: OptimizerSpec,
    pub(super) share: f32,
    pub(super) parameter_share: f32,
    pub(super) factors: ClipFactors,
}

impl Arrival {
    pub(super) fn update(&self, tensor: usize, role: TensorRole) -> Update {
        let share = match role {
            TensorRole::Parameter => self.parameter_share,
            TensorRole::Statistic => self.share,
        };
        Update { rate: self.rate, share, clip_factor: self.factors.factor(tensor) }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
pub(super) fn share(samples: u32, global_batch: u64) -> f32 {
    (f64::from(samples) / global_batch as f64) as f32
}
