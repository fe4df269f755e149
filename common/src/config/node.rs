//! Where am I: one file per binary, with addresses, certificates, folders and patience.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The three PEM files of a member. Relative paths in a file are relative to that file's folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CertificatePaths {
    /// The cluster's own authority; nobody else is trusted.
    pub ca: PathBuf,
    /// This member's certificate; the role is in it.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

/// What is logged and how.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Log {
    /// Lowest level that is written.
    pub level: LogLevel,
    /// Lines for people or for machines.
    pub format: LogFormat,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum LogLevel {
    /// A human must look.
    Error,
    /// Something is not as it should be.
    Warn,
    /// What an operator wants to know.
    #[default]
    Info,
    /// What a developer wants to know.
    Debug,
    /// Everything.
    Trace,
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        })
    }
}

/// Shape of a log line.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// What the coordinator does when a job has ended.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum AfterJob {
    /// Ends, and with it the whole cluster.
    #[default]
    Exit,
    /// Waits for the next job.
    Wait,
}

/// `coordinator.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct CoordinatorConfig {
    /// Address the members and the operator connect to.
    pub listen: SocketAddr,
    /// Who the coordinator is.
    pub certificates: CertificatePaths,
    /// Folder that gets one folder per run; relative to the working directory.
    pub run_dir: PathBuf,
    /// Seconds of silence after which a member is lost.
    pub lease_seconds: f64,
    /// Seconds a submitted job waits for its members before it says, and says again after as many
    /// more, who is missing.
    pub start_timeout_seconds: f64,
    /// What follows a job.
    pub after_job: AfterJob,
    /// What is logged.
    pub log: Log,
    /// Largest UDP payload in bytes that the path to every member is known to carry.
    pub mtu: u16,
}

/// `server.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Address the workers connect to; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// `host:port` that the workers are told; absent means the address listened on.
    pub advertise: Option<String>,
    /// `host:port` of the coordinator.
    pub coordinator: String,
    /// Who this server is.
    pub certificates: CertificatePaths,
    /// Shards, each with a thread of its own.
    pub shards: u16,
    /// Seconds the server goes on without its coordinator before it ends.
    pub coordinator_grace_seconds: f64,
    /// What is logged.
    pub log: Log,
    /// Largest UDP payload in bytes that the path is known to carry.
    pub mtu: u16,
}

/// `worker.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerConfig {
    /// `host:port` of the coordinator.
    pub coordinator: String,
    /// Who this worker is.
    pub certificates: CertificatePaths,
    /// Seat it asks for; absent takes any that is free.
    pub seat: Option<u16>,
    /// Name in logs and events; absent takes the seat's.
    pub name: Option<String>,
    /// Folder that relative data paths of a job start from; relative to the working directory.
    pub data_dir: PathBuf,
    /// Seconds the worker goes on without its coordinator before it ends.
    pub coordinator_grace_seconds: f64,
    /// Seconds the worker waits for a lost server before it ends.
    pub server_grace_seconds: f64,
    /// Threads of the linear algebra; more workers beat more threads.
    pub threads: u16,
    /// At least 1: after each step the worker waits until the step has taken so many times as long,
    /// which emulates a slower machine.
    pub slowdown: Option<f64>,
    /// What is logged.
    pub log: Log,
    /// Largest UDP payload in bytes that the path is known to carry.
    pub mtu: u16,
}
