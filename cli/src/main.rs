//! What people type. `main` is thin: flags → command → exit code.

#![allow(clippy::print_stdout, clippy::print_stderr)] // the one crate whose output is its purpose

mod args;
mod certs;
mod cluster;
mod display;
mod error;
mod export;
mod operator;
mod run;
mod status;
mod stop;
mod submit;

use crate::args::{Arguments, Command};
use crate::error::CliError;
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            let wrong = error.use_stderr();
            return ExitCode::from(if wrong { slackline_common::blame::EXIT_CONFIG } else { 0 });
        }
    };
    match execute(&arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slackline: {error}");
            ExitCode::from(error.blame().exit_code())
        }
    }
}

fn execute(command: &Command) -> Result<(), CliError> {
    if let Command::Certs(arguments) = command {
        return certs::certs(arguments);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::Runtime)?;
    runtime.block_on(async {
        match command {
            Command::Run(arguments) => run::run(arguments).await,
            Command::Submit(arguments) => submit::submit(arguments).await,
            Command::Status(arguments) => status::status(arguments).await,
            Command::Stop(arguments) => stop::stop(arguments).await,
            Command::Export(arguments) => export::export(arguments).await,
            Command::Certs(_) => unreachable!("handled above, without a runtime"),
        }
    })
}
