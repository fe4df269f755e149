//! `slackline-server`: flags → config → runtime → exit code.

#![allow(clippy::print_stderr, clippy::print_stdout)] // the last line of a process that ends

use clap::Parser;
use slackline_common::config::{ServerConfig, process_environment};
use slackline_common::program::{self, Failure};
use std::path::PathBuf;
use std::process::ExitCode;

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
    program::main("slackline-server", start)
}

fn start(arguments: &Arguments) -> Result<(), Failure> {
    let config = ServerConfig::load(&arguments.config, process_environment())
        .map_err(|errors| (errors.blame(), errors.to_string()))?;
    if arguments.check_config {
        slackline_server::check(&config).map_err(|error| (error.blame(), error.to_string()))?;
        println!("{}: no faults", arguments.config.display());
        return Ok(());
    }
    program::log(config.log);
    program::runtime()?.block_on(async {
        slackline_server::run(config, program::stop_signal()?)
            .await
            .map_err(|error| (error.blame(), error.to_string()))
    })
}
