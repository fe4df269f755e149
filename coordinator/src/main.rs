//! `slackline-coordinator`: flags → config → runtime → exit code.

#![allow(clippy::print_stderr, clippy::print_stdout)] // the last line of a process that ends

use clap::Parser;
use slackline_common::blame::{Blame, EXIT_CONFIG};
use slackline_common::config::{CoordinatorConfig, Log, LogFormat, process_environment};
use slackline_common::quic::Credentials;
use slackline_common::role::Role;
use slackline_coordinator::{CoordinatorError, Listening};
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;

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
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // It fails only when nobody reads.
            drop(error.print());
            return ExitCode::from(if error.use_stderr() { EXIT_CONFIG } else { 0 });
        }
    };
    match start(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err((blame, line)) => {
            eprintln!("slackline-coordinator: {line}");
            ExitCode::from(blame.exit_code())
        }
    }
}

fn start(arguments: &Arguments) -> Result<(), (Blame, String)> {
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
    log(config.log);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| (Blame::Us, format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        let shutdown = stop(arguments.until_input_ends)
            .map_err(|error| (Blame::Us, format!("cannot take signals: {error}")))?;
        let listening = Listening::bind(config).map_err(failed)?;
        if let Some(path) = &arguments.address_file {
            listening.write_address(path).map_err(failed)?;
        }
        Box::pin(listening.serve(shutdown)).await.map_err(failed)
    })
}

/// Completes at the first SIGTERM or SIGINT, or when standard input ends; a second signal ends the
/// process at once.
fn stop(until_input_ends: bool) -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (ended, input_ended) = tokio::sync::oneshot::channel();
    if until_input_ends {
        // A thread of its own: a read of standard input cannot be taken back.
        std::thread::Builder::new().name("input".to_owned()).spawn(move || {
            drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
            // Nobody listens when a signal came first.
            let _ = ended.send(());
        })?;
    }
    Ok(async move {
        tokio::select! {
            () = either(&mut terminate, &mut interrupt) => {}
            Ok(()) = input_ended, if until_input_ends => {
                tracing::info!("stopping: whoever started this coordinator is gone");
            }
        }
        tokio::spawn(async move {
            either(&mut terminate, &mut interrupt).await;
            eprintln!("slackline-coordinator: asked twice to end: the model is not kept");
            std::process::exit(EXIT_INTERRUPTED);
        });
    })
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn log(log: Log) {
    let level: LevelFilter = log.level.to_string().parse().unwrap_or(LevelFilter::INFO);
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        // Colours are for people: a log file is read by programs too.
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
}
