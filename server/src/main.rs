//! `slackline-server`: flags → config → runtime → exit code.

#![allow(clippy::print_stderr, clippy::print_stdout)] // the last line of a process that ends

use clap::Parser;
use slackline_common::blame::{Blame, EXIT_CONFIG};
use slackline_common::config::{Log, LogFormat, ServerConfig, process_environment};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;

/// Holds shards of a model and applies what workers push.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The server's own file: addresses, certificates, limits
    #[arg(long, default_value = "server.toml")]
    config: PathBuf,
    /// Check the file and the certificates, then end
    #[arg(long)]
    check_config: bool,
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
            eprintln!("slackline-server: {line}");
            ExitCode::from(blame.exit_code())
        }
    }
}

fn start(arguments: &Arguments) -> Result<(), (Blame, String)> {
    let config = ServerConfig::load(&arguments.config, process_environment())
        .map_err(|errors| (errors.blame(), errors.to_string()))?;
    if arguments.check_config {
        slackline_server::check(&config).map_err(|error| (error.blame(), error.to_string()))?;
        println!("{}: no faults", arguments.config.display());
        return Ok(());
    }
    log(config.log);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| (Blame::Us, format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        let shutdown =
            stop().map_err(|error| (Blame::Us, format!("cannot take signals: {error}")))?;
        slackline_server::run(config, shutdown)
            .await
            .map_err(|error| (error.blame(), error.to_string()))
    })
}

/// Completes at the first SIGTERM or SIGINT.
fn stop() -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn log(log: Log) {
    let level: LevelFilter = log.level.to_string().parse().unwrap_or(LevelFilter::INFO);
    let lines = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
}
