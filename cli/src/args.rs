//! The command line, as types.

use clap::{Args, Parser, Subcommand};
use slackline_common::role::Role;
use std::path::PathBuf;

/// Train one model on many machines joined by slow links.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a local cluster of real processes, train a job on it, and wait
    Run(RunArguments),
    /// Give a job to a running cluster and watch it
    Submit(SubmitArguments),
    /// Show who is there and how far training is
    Status(StatusArguments),
    /// End the running job early and keep its model
    Stop(StopArguments),
    /// Save the model as it is now as a safetensors file
    Export(ExportArguments),
    /// Make a private certificate authority and the certificates of all roles
    Certs(CertsArguments),
}

#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    /// Job file
    pub job: PathBuf,
    /// Server processes, instead of the job's `servers`
    #[arg(long, value_name = "N")]
    pub servers: Option<u16>,
    /// Worker processes, instead of the job's `workers`
    #[arg(long, value_name = "N")]
    pub workers: Option<u16>,
    /// Change one key of the job, for example mode=bsp or optimizer.learning_rate=0.1
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Folder that gets one folder per run
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub run_dir: PathBuf,
    /// Folder that relative data paths start from
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data_dir: PathBuf,
    /// Make one seat slower by a factor, for example 2:10 (to try a straggler)
    #[arg(long, value_name = "SEAT:FACTOR")]
    pub slow: Vec<String>,
    /// Print JSON lines instead of a progress bar
    #[arg(long)]
    pub json: bool,
}

/// How to reach a cluster.
#[derive(Args, Debug)]
pub(crate) struct ClusterArguments {
    /// Coordinator's address
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700")]
    pub coordinator: String,
    /// Folder with ca.pem, operator.pem and operator.key
    #[arg(long, value_name = "DIR", default_value = "certs")]
    pub certificates: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct SubmitArguments {
    /// Job file
    pub job: PathBuf,
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Change one key of the job, for example mode=bsp
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Return as soon as the coordinator has accepted the job
    #[arg(long)]
    pub detach: bool,
    /// Print JSON lines instead of a progress bar
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StopArguments {
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

#[derive(Args, Debug)]
pub(crate) struct ExportArguments {
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// File to write
    #[arg(long, short, value_name = "FILE", default_value = "model.safetensors")]
    pub output: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct CertsArguments {
    /// Folder to write to (made if absent)
    #[arg(long, value_name = "DIR", default_value = "certs")]
    pub dir: PathBuf,
    /// Roles to issue, instead of all four
    #[arg(long = "role", value_name = "ROLE")]
    pub roles: Vec<Role>,
    /// Name written into the certificates
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub name: String,
    /// Days the certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub days: u32,
}
