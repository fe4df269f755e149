//! `slackline submit`: gives a job to a cluster that somebody started.

use crate::args::SubmitArguments;
use crate::display::Display;
use crate::error::CliError;
use crate::operator::{Operator, unexpected};
use slackline_common::config::load_job;
use slackline_common::quic::Credentials;
use slackline_common::role::Role;
use slackline_common::wire::control::{FromOperator, ToOperator};

/// Submits, and watches until the job has ended unless told to detach.
pub(crate) async fn submit(arguments: &SubmitArguments) -> Result<(), CliError> {
    let job = load_job(&arguments.job, &arguments.sets)?;
    let credentials = Credentials::load_from(&arguments.cluster.certificates, Role::Operator)?;
    let mut operator = Operator::connect(&arguments.cluster.coordinator, &credentials).await?;
    operator.submit(&job).await?;
    if arguments.detach {
        return Ok(());
    }
    operator.send(&FromOperator::Watch).await?;
    let mut display = Display::new(arguments.json);
    loop {
        match operator.next().await? {
            ToOperator::Status(status) => display.show(&status),
            ToOperator::Ended { ended, summary, run_dir } => {
                display.finish(&ended, summary.as_deref(), &run_dir);
                return CliError::of_end(ended);
            }
            ToOperator::Refused(sentence) => return Err(CliError::Refused(sentence)),
            _ => return Err(unexpected("watch")),
        }
    }
}
