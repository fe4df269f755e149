//! `slackline stop`: ends the running job early; the model is kept.

use crate::args::StopArguments;
use crate::error::CliError;
use crate::operator::Operator;
use slackline_common::quic::Credentials;
use slackline_common::role::Role;

/// Asks once. The job ends when every worker has finished its step.
pub(crate) async fn stop(arguments: &StopArguments) -> Result<(), CliError> {
    let credentials = Credentials::load_from(&arguments.cluster.certificates, Role::Operator)?;
    let mut operator = Operator::connect(&arguments.cluster.coordinator, &credentials).await?;
    operator.stop().await?;
    println!("stopping: every worker finishes its step, the model is kept");
    Ok(())
}
