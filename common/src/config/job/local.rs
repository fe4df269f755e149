//! Local steps, and what they rule out.

use super::descent::{STAND_IN, optimizer};
use crate::config::exchange_table::{LOCAL, LOCAL_ANCHOR, LOCAL_INNER};
use crate::config::reader::Document;
use crate::config::values::Values;
use crate::job::{AnchorPull, Local, OptimizerSpec};

/// Reads `[local]`; the rules between it and other sections are [`check`]'s.
pub(super) fn local(document: &mut Document, root: &Values) -> Option<Local> {
    match (root.text("mode"), document.has(&LOCAL)) {
        (Some("local"), false) => {
            let rule = "missing section [local]: mode = \"local\" needs the steps of a round and the \
                        workers' optimizer";
            document.refuse(LOCAL.name, rule);
            return None;
        }
        (Some(mode), true) if mode != "local" => {
            let rule = format!("contradicts mode = {mode:?}: remove it, or use mode = \"local\"");
            document.refuse(LOCAL.name, rule);
            return None;
        }
        (_, false) => return None,
        (_, true) => {}
    }
    let values = document.section(&LOCAL);
    let inner = optimizer(document, &LOCAL_INNER).unwrap_or(STAND_IN);
    let anchor = anchor(document);
    if let (Some(steps), Some(fragments)) = (values.integer("steps"), values.integer("fragments")) {
        let between = steps / fragments;
        if steps % fragments != 0 {
            document.refuse("local.fragments", format!("must divide local.steps, {steps}"));
        } else if values.integer("delay").is_some_and(|delay| delay >= between) {
            let rule = format!(
                "must be below {between}, the local steps from one push to the next: steps / fragments"
            );
            document.refuse("local.delay", rule);
        }
    }
    Some(Local {
        steps: values.u32("steps"),
        inner,
        begin_step: values.u64("begin_step"),
        fragments: values.u16("fragments"),
        delay: values.u32("delay"),
        mix: values.f32("mix"),
        anchor,
    })
}

fn anchor(document: &mut Document) -> Option<AnchorPull> {
    if !document.has(&LOCAL_ANCHOR) {
        return None;
    }
    let values = document.section(&LOCAL_ANCHOR);
    // A number that was refused is absent, and its fault is named.
    if values.number("probability").is_none() || values.number("strength").is_none() {
        return None;
    }
    let pull =
        AnchorPull { probability: values.f32("probability"), strength: values.f32("strength") };
    let share = pull.strength / pull.probability;
    if share >= 1.0 {
        let rule = format!(
            "one pull would move the worker all the way or past the anchor: strength / probability \
             is {share}; it must be below 1"
        );
        document.refuse("local.anchor.strength", rule);
    }
    Some(pull)
}

/// What cannot stand beside `mode = "local"`.
pub(super) fn check(
    document: &mut Document,
    root: &Values,
    outer: Option<&OptimizerSpec>,
    external: bool,
    momentum_correction: bool,
    is_auto: bool,
) {
    let mut refuse = |path: &str, why: &str| {
        document.refuse(path, format!("contradicts mode = \"local\": {why}"));
    };
    if external {
        refuse("model.kind", "clients of an external model take no local steps");
    }
    if matches!(outer, Some(OptimizerSpec::Add { .. })) {
        refuse("optimizer.kind", "what is pushed is a gradient, to be walked against; use \"sgd\"");
    }
    if root.text("reduce") == Some("sum") {
        refuse("reduce", "a round moves the model by the mean of how far the workers came");
    }
    if root.u64("in_flight") > 1 {
        refuse(
            "in_flight",
            "a round is long enough to hide a round trip; local.delay overlaps the two",
        );
    }
    if is_auto {
        refuse("compress", "\"auto\" weighs single steps; name a codec for rounds");
    }
    if momentum_correction {
        refuse("feedback.momentum_correction", "the workers' momentum is local.inner's");
    }
}
