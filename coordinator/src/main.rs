//! `slackline-coordinator`: flags → config → runtime → exit code.

#![allow(clippy::print_stderr, clippy::print_stdout)] // the last line of a process that ends

use clap::Parser;
use slackline_common::config::{CoordinatorConfig, process_environment};
use slackline_common::program::{self, Failure};
use slackline_common::quic::Credentials;
use slackline_common::role::Role;
use slackline_coordinator::{CoordinatorError, Listening};
use std::path::PathBuf;
use std::process::ExitCode;

/// What a shell reports for a process that an interrupt ended.
const EXIT_INTERRUPTED: i32 = 130;

/// Keeps membership, the job and the leases; writes what is left of a run.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The coordinator's own file: address, certificates, folders
    #[arg(long, default_value = "coordinator.toml")]
    config: PathBuf,
    /// Check the file and the certificates, then end
    #[arg(long)]
    check_config: bool,
    /// Write the address listened on (`host:port`) into this file once there is one
    #[arg(long, value_name = "PATH")]
    address_file: Option<PathBuf>,
    /// Stop when standard input ends, as on SIGTERM: a cluster must not outlive who started it
    #[arg(long)]
    until_input_ends: bool,
}

fn main() -> ExitCode {
    program::main("slackline-coordinator", start)
}

fn start(arguments: &Arguments) -> Result<(), Failure> {
    let failed = |error: CoordinatorError| (error.blame(), error.to_string());
    let config = CoordinatorConfig::load(&arguments.config, process_environment())
        .map_err(|errors| (errors.blame(), errors.to_string()))?;
    if arguments.check_config {
        let paths = &config.certificates;
        Credentials::load(&paths.ca, &paths.certificate, &paths.key, Role::Coordinator)
            .map_err(|error| failed(error.into()))?;
        println!("{}: no faults", arguments.config.display());
        return Ok(());
    }
    program::log(config.log);
    program::runtime()?.block_on(async {
        let shutdown = stop(arguments.until_input_ends)?;
        let listening = Listening::bind(config).map_err(failed)?;
        if let Some(path) = &arguments.address_file {
            listening.write_address(path).map_err(failed)?;
        }
        Box::pin(listening.serve(shutdown)).await.map_err(failed)
    })
}

/// Completes at the first signal, or when standard input ends; a second signal ends the process at
/// once.
fn stop(until_input_ends: bool) -> Result<impl Future<Output = ()>, Failure> {
    let first = program::stop_signal()?;
    let (ended, input_ended) = tokio::sync::oneshot::channel();
    if until_input_ends {
        // A thread of its own: a read of standard input cannot be taken back.
        let read = move || {
            drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
            // Nobody listens when a signal came first.
            let _ = ended.send(());
        };
        std::thread::Builder::new()
            .name("input".to_owned())
            .spawn(read)
            .map_err(|error| program::ours("watch standard input", &error))?;
    }
    Ok(async move {
        tokio::select! {
            () = first => {}
            Ok(()) = input_ended, if until_input_ends => {
                tracing::info!("stopping: whoever started this coordinator is gone");
            }
        }
        tokio::spawn(async move {
            // Listened for only from now on: whoever listens hears every signal.
            let Ok(second) = program::stop_signal() else { return };
            second.await;
            eprintln!("slackline-coordinator: asked twice to end: the model is not kept");
            std::process::exit(EXIT_INTERRUPTED);
        });
    })
}
