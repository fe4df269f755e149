//! From text to promises: the job file and one file per binary.
//!
//! A parsed configuration has been checked whole: code that holds one never checks again. All
//! errors of a file come at once ([`ConfigErrors`]), each with the file, the key, the value seen and
//! the rule. Unknown keys are refused, because a typo in `staleness` would silently be a different
//! experiment.

mod errors;
mod node;

pub use errors::{ConfigError, ConfigErrors};
pub use node::{
    AfterJob, CertificatePaths, CoordinatorConfig, Log, LogFormat, LogLevel, ServerConfig,
    WorkerConfig,
};
