//! `slackline export`: the model as it is now, as one safetensors file.

use crate::args::ExportArguments;
use crate::error::CliError;
use crate::operator::{Operator, unexpected};
use slackline_common::quic::Credentials;
use slackline_common::role::Role;
use slackline_common::wire::control::{FromOperator, ToOperator};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Streams the model into a file beside the target, then puts it in place.
pub(crate) async fn export(arguments: &ExportArguments) -> Result<(), CliError> {
    let credentials = Credentials::load_from(&arguments.cluster.certificates, Role::Operator)?;
    let mut operator = Operator::connect(&arguments.cluster.coordinator, &credentials).await?;
    operator.send(&FromOperator::Export).await?;
    let partial = partial_path(&arguments.output);
    let written = receive(&mut operator, &partial).await;
    match written {
        Ok(bytes) => {
            std::fs::rename(&partial, &arguments.output)
                .map_err(|source| CliError::Write { path: arguments.output.clone(), source })?;
            println!("{}: {bytes} bytes", arguments.output.display());
            Ok(())
        }
        Err(error) => {
            let _ = std::fs::remove_file(&partial); // the first error is the one to tell
            Err(error)
        }
    }
}

async fn receive(operator: &mut Operator, path: &Path) -> Result<u64, CliError> {
    let failed = |source| CliError::Write { path: path.to_owned(), source };
    let mut file = File::create(path).map_err(failed)?;
    let mut bytes = 0;
    loop {
        match operator.next().await? {
            ToOperator::ExportChunk(chunk) => {
                file.write_all(&chunk).map_err(failed)?;
                bytes += chunk.len() as u64;
            }
            ToOperator::ExportEnd => {
                file.sync_all().map_err(failed)?;
                return Ok(bytes);
            }
            ToOperator::Refused(sentence) => return Err(CliError::Refused(sentence)),
            _ => return Err(unexpected("export")),
        }
    }
}

fn partial_path(output: &Path) -> PathBuf {
    let mut name = output.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    output.with_file_name(name)
}
