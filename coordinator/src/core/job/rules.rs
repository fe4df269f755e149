//! What a job must be to be taken: it comes from an operator's process, which has checked the file,
//! but bytes from a peer are never trusted. The name becomes a folder.

use slackline_common::job::{Job, Mode};
use slackline_common::limits::{PUSH_SAMPLES_MAX, SEATS_MAX, SERVERS_MAX, STALENESS_MAX};
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
