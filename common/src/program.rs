//! What every program of a cluster does around its `run`: flags, log, runtime, signals, exit code.
//! Behind the feature `program`, so that the crate without features stays pure.

#![allow(clippy::print_stderr)] // the last line of a process that ends

use crate::blame::{Blame, EXIT_CONFIG};
use crate::config::{Log, LogFormat};
use clap::Parser;
use std::fmt;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::LevelFilter;

/// Why a program ends early: whose move it is, and the one line it says.
pub type Failure = (Blame, String);

/// A failure of this process itself.
pub fn ours(doing: &str, error: &dyn fmt::Display) -> Failure {
    (Blame::Us, format!("cannot {doing}: {error}"))
}

/// Reads the flags and runs `body`; a failure becomes one line after `name` and an exit code.
pub fn main<Arguments: Parser>(
    name: &str,
    body: impl FnOnce(&Arguments) -> Result<(), Failure>,
) -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // It fails only when nobody reads.
            drop(error.print());
            return ExitCode::from(if error.use_stderr() { EXIT_CONFIG } else { 0 });
        }
    };
    match body(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err((blame, line)) => {
            eprintln!("{name}: {line}");
            ExitCode::from(blame.exit_code())
        }
    }
}

/// Starts logging to standard error as configured.
pub fn log(log: Log) {
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

/// The one runtime of a program: one thread for its network, computation has threads of its own.
///
/// # Errors
/// The system gives none.
pub fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ours("start the runtime", &error))
}

/// Completes at the next SIGTERM or SIGINT; from the call on, neither ends the process by itself.
///
/// # Errors
/// The system takes no handler.
pub fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    let on = |kind| signal(kind).map_err(|error| ours("take signals", &error));
    let mut terminate = on(SignalKind::terminate())?;
    let mut interrupt = on(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
