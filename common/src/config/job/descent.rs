//! How the model moves: optimizer, schedule, clipping.

use crate::config::job_table::{CLIP, SCHEDULE};
use crate::config::reader::Document;
use crate::config::table::Section;
use crate::config::values::Values;
use crate::job::{Clip, OptimizerSpec, Schedule, ScheduleShape};

/// Stands for an optimizer that was refused.
pub(super) const STAND_IN: OptimizerSpec =
    OptimizerSpec::Sgd { learning_rate: 0.0, weight_decay: 0.0 };

/// Reads the section of an optimizer; `None` when nobody knows which it is.
pub(super) fn optimizer(
    document: &mut Document,
    section: &'static Section,
) -> Option<OptimizerSpec> {
    let values = document.section(section);
    let learning_rate = values.f32("learning_rate");
    let weight_decay = values.f32("weight_decay");
    let epsilon = values.f32("epsilon");
    let (beta1, beta2) = (values.f32("beta1"), values.f32("beta2"));
    Some(match values.kind? {
        "add" => OptimizerSpec::Add { learning_rate },
        "momentum" => {
            let (momentum, nesterov) = (values.f32("momentum"), values.flag("nesterov"));
            if nesterov && values.number("momentum") == Some(0.0) {
                let rule = "contradicts momentum = 0: there is nothing to look ahead along";
                document.refuse(&values.path("nesterov"), rule);
            }
            OptimizerSpec::Momentum { learning_rate, momentum, weight_decay, nesterov }
        }
        "adagrad" => OptimizerSpec::Adagrad { learning_rate, epsilon, weight_decay },
        "rmsprop" => {
            let alpha = values.f32("alpha");
            OptimizerSpec::Rmsprop { learning_rate, alpha, epsilon, weight_decay }
        }
        "adam" => OptimizerSpec::Adam { learning_rate, beta1, beta2, epsilon, weight_decay },
        "adamw" => OptimizerSpec::Adamw { learning_rate, beta1, beta2, epsilon, weight_decay },
        _ => OptimizerSpec::Sgd { learning_rate, weight_decay },
    })
}

pub(super) fn schedule(document: &mut Document, root: &Values) -> Schedule {
    let values = document.section(&SCHEDULE);
    let warmup_steps = values.u64("warmup_steps");
    let shape = match values.kind {
        Some("step") => ScheduleShape::Step {
            every_steps: values.u64("every_steps"),
            factor: values.f32("factor"),
        },
        Some("cosine") => {
            let given = values.integer("total_steps");
            let total_steps = given.or_else(|| root.integer("steps"));
            if !values.given("total_steps") && !root.given("steps") {
                let rule = "missing: a cosine needs its length, here or as the job's steps";
                document.refuse("schedule.total_steps", rule);
            }
            if total_steps.is_some_and(|total| total <= warmup_steps) {
                let rule = format!(
                    "must be below the {} steps of the whole cosine",
                    total_steps.unwrap_or_default()
                );
                document.refuse("schedule.warmup_steps", rule);
            }
            ScheduleShape::Cosine {
                total_steps: total_steps.unwrap_or_default(),
                floor: values.f32("floor"),
            }
        }
        _ => ScheduleShape::Constant,
    };
    Schedule { shape, warmup_steps }
}

pub(super) fn clip(document: &mut Document) -> Clip {
    let values = document.section(&CLIP);
    Clip { per_tensor: values.f32("per_tensor"), global_norm: values.f32("global_norm") }
}

/// Accumulation promises that every push counts in full.
pub(super) fn check_add(document: &mut Document, schedule: Schedule, clip: Clip) {
    let rule = "contradicts optimizer.kind = \"add\", which counts every push in full: remove it";
    if schedule != Schedule::default() {
        document.refuse("schedule", rule);
    }
    if clip.is_on() {
        document.refuse("clip", rule);
    }
}
