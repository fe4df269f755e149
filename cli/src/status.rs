//! `slackline status`: who is there, how far training is, who is missing.

use crate::args::StatusArguments;
use crate::display;
use crate::error::CliError;
use crate::operator::{Operator, unexpected};
use slackline_common::quic::Credentials;
use slackline_common::role::Role;
use slackline_common::wire::control::{FromOperator, ToOperator};

/// Asks once and prints.
pub(crate) async fn status(arguments: &StatusArguments) -> Result<(), CliError> {
    let credentials = Credentials::load_from(&arguments.cluster.certificates, Role::Operator)?;
    let mut operator = Operator::connect(&arguments.cluster.coordinator, &credentials).await?;
    operator.send(&FromOperator::Status).await?;
    match operator.answer().await? {
        ToOperator::Status(status) if arguments.json => {
            println!("{}", display::status_json(&status));
        }
        ToOperator::Status(status) => print!("{}", display::status_page(&status)),
        ToOperator::Refused(sentence) => return Err(CliError::Refused(sentence)),
        _ => return Err(unexpected("status")),
    }
    Ok(())
}
