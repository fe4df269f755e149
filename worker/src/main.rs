//! `slackline-worker`: flags → config → runtime → exit code.

#![allow(clippy::print_stderr, clippy::print_stdout)] // the last line of a process that ends

use clap::Parser;
use slackline_common::config::{WorkerConfig, process_environment};
use slackline_common::program::{self, Failure};
use slackline_worker::WorkerError;
use std::path::PathBuf;
use std::process::ExitCode;

/// Computes gradients of a job's model and pushes them.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The worker's own file: addresses, certificates, patience
    #[arg(long, default_value = "worker.toml")]
    config: PathBuf,
    /// The seat to ask for, whatever the file says
    #[arg(long)]
    seat: Option<u16>,
    /// Check the file and the certificates, then end
    #[arg(long)]
    check_config: bool,
}

fn main() -> ExitCode {
    program::main("slackline-worker", start)
}

fn start(arguments: &Arguments) -> Result<(), Failure> {
    let mut config = WorkerConfig::load(&arguments.config, process_environment())
        .map_err(|errors| (errors.blame(), errors.to_string()))?;
    config.seat = arguments.seat.or(config.seat);
    let failed = |error: WorkerError| (error.blame(), error.to_string());
    if arguments.check_config {
        slackline_worker::check(&config).map_err(failed)?;
        println!("{}: no faults", arguments.config.display());
        return Ok(());
    }
    program::log(config.log);
    let runtime = program::runtime()?;
    let outcome = runtime.block_on(async {
        slackline_worker::run(config, program::stop_signal()?).await.map_err(failed)
    });
    // A step that does not end may still hold a thread: it ends with the process.
    runtime.shutdown_background();
    outcome
}
