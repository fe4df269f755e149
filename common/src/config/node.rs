//! Where am I: one file per binary, with addresses, certificates, folders and patience.

use super::ConfigErrors;
use super::environment::Override;
use super::link::{Link, link};
use super::node_table::{CERTIFICATES, COORDINATOR, LOG, SERVER, WORKER};
use super::reader::{Document, read_file};
use super::values::Values;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

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
    /// How it sends.
    pub link: Link,
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
    /// How it sends.
    pub link: Link,
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
    /// How it sends.
    pub link: Link,
}

impl CoordinatorConfig {
    /// Reads the text of `coordinator.toml`, the environment laid over it. `origin` names the file
    /// in errors and is where relative certificate paths start.
    ///
    /// # Errors
    /// Every fault of the file and of the environment at once.
    pub fn parse(
        text: &str,
        origin: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let mut document = Document::parse(text, origin, Override::from_environment(environment))?;
        let root = document.section(&COORDINATOR);
        let config = Self {
            listen: socket(&root),
            certificates: certificates(&mut document, origin),
            run_dir: root.string("run_dir").into(),
            lease_seconds: root.f64("lease_seconds"),
            start_timeout_seconds: root.f64("start_timeout_seconds"),
            after_job: match root.text("after_job") {
                Some("wait") => AfterJob::Wait,
                _ => AfterJob::Exit,
            },
            log: log(&mut document),
            mtu: root.u16("mtu"),
            link: link(&mut document),
        };
        document.finish(config)
    }

    /// Reads `coordinator.toml`; see [`Self::parse`].
    ///
    /// # Errors
    /// The file cannot be read, is too large or not UTF-8, or any fault of [`Self::parse`].
    pub fn load(
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        Self::parse(&read_file(path)?, &path.display().to_string(), environment)
    }
}

impl ServerConfig {
    /// Reads the text of `server.toml`; see [`CoordinatorConfig::parse`].
    ///
    /// # Errors
    /// Every fault of the file and of the environment at once.
    pub fn parse(
        text: &str,
        origin: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let mut document = Document::parse(text, origin, Override::from_environment(environment))?;
        let root = document.section(&SERVER);
        if !root.given("advertise") && socket(&root).ip().is_unspecified() {
            let rule = "nobody can connect to \"every address\": say under advertise = \"host:port\" \
                        what the workers are told, or listen on one address";
            document.refuse("listen", rule);
        }
        let config = Self {
            listen: socket(&root),
            advertise: root.text("advertise").map(str::to_owned),
            coordinator: root.string("coordinator"),
            certificates: certificates(&mut document, origin),
            shards: root.u16("shards"),
            coordinator_grace_seconds: root.f64("coordinator_grace_seconds"),
            log: log(&mut document),
            mtu: root.u16("mtu"),
            link: link(&mut document),
        };
        document.finish(config)
    }

    /// Reads `server.toml`; see [`Self::parse`].
    ///
    /// # Errors
    /// The file cannot be read, is too large or not UTF-8, or any fault of [`Self::parse`].
    pub fn load(
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        Self::parse(&read_file(path)?, &path.display().to_string(), environment)
    }
}

impl WorkerConfig {
    /// Reads the text of `worker.toml`; see [`CoordinatorConfig::parse`].
    ///
    /// # Errors
    /// Every fault of the file and of the environment at once.
    pub fn parse(
        text: &str,
        origin: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        let mut document = Document::parse(text, origin, Override::from_environment(environment))?;
        let root = document.section(&WORKER);
        let config = Self {
            coordinator: root.string("coordinator"),
            certificates: certificates(&mut document, origin),
            seat: root.integer("seat").map(|_| root.u16("seat")),
            name: root.text("name").map(str::to_owned),
            data_dir: root.string("data_dir").into(),
            coordinator_grace_seconds: root.f64("coordinator_grace_seconds"),
            server_grace_seconds: root.f64("server_grace_seconds"),
            threads: root.u16("threads"),
            slowdown: root.number("slowdown"),
            log: log(&mut document),
            mtu: root.u16("mtu"),
            link: link(&mut document),
        };
        document.finish(config)
    }

    /// Reads `worker.toml`; see [`Self::parse`].
    ///
    /// # Errors
    /// The file cannot be read, is too large or not UTF-8, or any fault of [`Self::parse`].
    pub fn load(
        path: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigErrors> {
        Self::parse(&read_file(path)?, &path.display().to_string(), environment)
    }
}

/// The address to listen on, or a stand-in when it was refused.
fn socket(root: &Values) -> SocketAddr {
    root.socket("listen").unwrap_or_else(|| (Ipv4Addr::LOCALHOST, 0).into())
}

fn certificates(document: &mut Document, origin: &str) -> CertificatePaths {
    let values = document.section(&CERTIFICATES);
    let folder = Path::new(origin).parent().unwrap_or_else(|| Path::new(""));
    // Joining keeps an absolute path as it is.
    let path = |name: &str| folder.join(values.string(name));
    CertificatePaths { ca: path("ca"), certificate: path("certificate"), key: path("key") }
}

fn log(document: &mut Document) -> Log {
    let values = document.section(&LOG);
    Log {
        level: match values.text("level") {
            Some("error") => LogLevel::Error,
            Some("warn") => LogLevel::Warn,
            Some("debug") => LogLevel::Debug,
            Some("trace") => LogLevel::Trace,
            _ => LogLevel::Info,
        },
        format: if values.text("format") == Some("json") {
            LogFormat::Json
        } else {
            LogFormat::Text
        },
    }
}
