//! What a job must be to be taken: it comes from an operator's process, which has checked the file,
//! but bytes from a peer are never trusted. The name becomes a folder.

use slackline_common::codec::CodecSpec;
use slackline_common::job::{Compress, Job, Mode};
use slackline_common::limits::{
    COMPRESS_RULES_MAX, LOCAL_STEPS_MAX, PUSH_SAMPLES_MAX, SEATS_MAX, SERVERS_MAX, STALENESS_MAX,
    STEPS_OPEN_MAX,
};
use slackline_common::model::ModelSpec;

/// Longest name of a run in bytes: leaves room for a number in a file name of 255.
const NAME_BYTES_MAX: usize = 128;

/// The first rule the job breaks.
pub(super) fn check(job: &Job) -> Result<(), String> {
    let name_is_safe = !job.name.is_empty()
        && job.name.len() <= NAME_BYTES_MAX
        && !job.name.starts_with('.')
        && job.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !name_is_safe {
        let name: String = job.name.chars().take(NAME_BYTES_MAX).collect();
        return Err(format!(
            "the job's name {name:?} is refused: 1 to {NAME_BYTES_MAX} letters, digits, \"-\", \"_\" \
             and \".\", not starting with \".\""
        ));
    }
    let within = |what: &str, got: u64, limit: u64| {
        let ok = (1..=limit).contains(&got);
        if ok {
            Ok(())
        } else {
            Err(format!("the job's {what} is {got}; 1 to {limit} are allowed"))
        }
    };
    within("number of workers", job.workers.into(), SEATS_MAX as u64)?;
    within("number of servers", job.servers.into(), SERVERS_MAX as u64)?;
    within("batch", job.batch.into(), PUSH_SAMPLES_MAX.into())?;
    within("number of steps in flight", job.in_flight.into(), STEPS_OPEN_MAX)?;
    if let Compress::Rules(rules) = &job.compress {
        within("number of rules of compression", rules.len() as u64, COMPRESS_RULES_MAX as u64)?;
        for rule in rules {
            check_codec(&rule.codec)?;
        }
    }
    if let Some(local) = &job.local {
        within("local steps of a round", local.steps.into(), LOCAL_STEPS_MAX.into())?;
        let fragments = u32::from(local.fragments);
        let between = local.steps.checked_div(fragments).unwrap_or_default();
        if between * fragments != local.steps || local.delay >= between {
            return Err(format!(
                "the job's {} local steps are refused: {fragments} fragments must divide them, and \
                 the delay of {} must be below the steps from one push to the next",
                local.steps, local.delay
            ));
        }
    }
    if let Mode::Ssp { staleness } = job.mode
        && staleness > STALENESS_MAX
    {
        return Err(format!("the job's staleness is {staleness}; at most {STALENESS_MAX}"));
    }
    if let Some(fault) = job.model.check().into_iter().next() {
        return Err(fault);
    }
    match (&job.model, &job.data) {
        (ModelSpec::External, Some(_)) => {
            Err("the job names data, but its model is external: raw clients bring both".to_owned())
        }
        (ModelSpec::External, None) => Ok(()),
        (model, _) if model.layout().is_none() => {
            Err("the job's model has no layout; its sizes are too large".to_owned())
        }
        (_, None) => Err("the job names no data to train its model on".to_owned()),
        _ => Ok(()),
    }
}

fn check_codec(codec: &CodecSpec) -> Result<(), String> {
    let density = codec.density();
    if !(density > 0.0 && density <= 1.0) {
        return Err(format!("the job's density is {density}; above 0 and at most 1 is allowed"));
    }
    match codec {
        CodecSpec::TwoBit { threshold } if !(*threshold > 0.0 && threshold.is_finite()) => {
            Err(format!("the job's threshold is {threshold}; a finite number above 0 is allowed"))
        }
        _ => Ok(()),
    }
}
