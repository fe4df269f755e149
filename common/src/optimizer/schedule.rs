//! The factor of the learning rate at a global step.

use super::narrow;
use crate::job::{Schedule, ScheduleShape};
use std::f64::consts::PI;

impl Schedule {
    /// The factor for the global step `step`, counted from 0.
    ///
    /// During the warm-up the shape's value is multiplied by `(step + 1) / warmup_steps`: the first
    /// step has `1 / warmup_steps`, the last of the warm-up the whole value. The steps of a shape
    /// count from step 0 as well; the cosine starts to fall when the warm-up is over and reaches its
    /// floor at `total_steps`. Computed in `f64` without the system's mathematics library: the same
    /// bits on every machine.
    pub fn factor(&self, step: u64) -> f32 {
        let ramp = if step < self.warmup_steps {
            (step + 1) as f64 / self.warmup_steps as f64
        } else {
            1.0
        };
        let shape = match self.shape {
            ScheduleShape::Constant => 1.0,
            ScheduleShape::Step { every_steps, factor } => {
                whole_power(f64::from(factor), step / every_steps.max(1))
            }
            ScheduleShape::Cosine { total_steps, floor } => {
                let floor = f64::from(floor);
                let height = cosine_height(step, self.warmup_steps, total_steps);
                floor + (1.0 - floor) * height
            }
        };
        narrow(ramp * shape)
    }
}

/// How high half a cosine stands at `step` when it falls from 1 at `start` to 0 at `end`.
fn cosine_height(step: u64, start: u64, end: u64) -> f64 {
    if step >= end {
        return 0.0;
    }
    if step <= start {
        return 1.0;
    }
    let progress = (step - start) as f64 / (end - start) as f64;
    (1.0 + libm::cos(PI * progress)) / 2.0
}

/// `base^exponent` by squaring: only multiplications, in a fixed order.
fn whole_power(mut base: f64, mut exponent: u64) -> f64 {
    let mut power = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            power *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    power
}

/// The factor of the rate for a gradient that was computed `staleness` versions ago, where a job
/// asks for it: `1 / max(1, staleness)` (Zhang et al., "Staleness-aware Async-SGD for Distributed
/// Deep Learning", IJCAI 2016).
pub fn staleness_factor(staleness: u64) -> f32 {
    narrow(1.0 / staleness.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(shape: ScheduleShape, warmup_steps: u64, expected: &[(u64, f32)]) {
        let schedule = Schedule { shape, warmup_steps };
        for (step, factor) in expected {
            assert_eq!(schedule.factor(*step), *factor, "step {step} of {schedule:?}");
        }
    }

    #[test]
    fn a_constant_schedule_is_one_after_its_linear_warm_up() {
        check(ScheduleShape::Constant, 0, &[(0, 1.0), (1, 1.0), (u64::MAX, 1.0)]);
        check(ScheduleShape::Constant, 1, &[(0, 1.0), (1, 1.0)]);
        check(ScheduleShape::Constant, 4, &[(0, 0.25), (1, 0.5), (2, 0.75), (3, 1.0), (4, 1.0)]);
    }

    #[test]
    fn a_step_schedule_drops_every_so_many_steps_from_step_zero() {
        let shape = ScheduleShape::Step { every_steps: 10, factor: 0.5 };
        check(
            shape,
            0,
            &[(0, 1.0), (9, 1.0), (10, 0.5), (19, 0.5), (20, 0.25), (100, 1.0 / 1024.0)],
        );
        check(shape, 2, &[(0, 0.5), (1, 1.0), (2, 1.0), (10, 0.5)]);
        check(shape, 20, &[(9, 0.5), (10, 0.275), (19, 0.5), (20, 0.25)]);
        check(shape, 0, &[(u64::MAX, 0.0)]);
        check(ScheduleShape::Step { every_steps: 1, factor: 0.1 }, 0, &[(3, 1e-3)]);
    }

    #[test]
    fn a_cosine_schedule_falls_from_one_after_the_warm_up_to_its_floor() {
        let shape = ScheduleShape::Cosine { total_steps: 104, floor: 0.0 };
        // cos 45° = √½: (1 + √½) / 2 and (1 - √½) / 2; cos 60° = ½.
        let eighth = 0.853_553_4;
        check(
            shape,
            4,
            &[(0, 0.25), (3, 1.0), (4, 1.0), (29, eighth), (54, 0.5), (79, 0.146_446_61)],
        );
        check(shape, 4, &[(103, 0.000_246_719_8), (104, 0.0), (105, 0.0), (u64::MAX, 0.0)]);
        let raised = ScheduleShape::Cosine { total_steps: 90, floor: 0.2 };
        check(raised, 0, &[(0, 1.0), (30, 0.2 + 0.8 * 0.75), (45, 0.6), (90, 0.2), (91, 0.2)]);
    }

    #[test]
    fn a_cosine_that_ends_within_the_warm_up_is_the_ramp_and_then_the_floor() {
        let shape = ScheduleShape::Cosine { total_steps: 2, floor: 0.5 };
        check(shape, 4, &[(0, 0.25), (1, 0.5), (2, 0.375), (3, 0.5), (4, 0.5)]);
    }

    #[test]
    fn staleness_divides_the_rate() {
        for (staleness, factor) in
            [(0, 1.0), (1, 1.0), (2, 0.5), (4, 0.25), (u64::MAX, 5.421_011e-20)]
        {
            assert_eq!(staleness_factor(staleness), factor);
        }
    }
}
