//! From text to promises: the job file and one file per binary.
//!
//! A parsed configuration has been checked whole: code that holds one never checks again. All
//! errors of a file come at once ([`ConfigErrors`]), each with the file, the key, the value seen and
//! the rule. Unknown keys are refused, because a typo in `staleness` would silently be a different
//! experiment.
//!
//! Read in this order: `table` (what a key is) → `job_table`, `exchange_table`, `node_table` (all keys) → `reader`,
//! `values` (text and tables to checked values) → `environment` (values from outside the file) → `job`,
//! `node` (checked values to types, and the rules between keys).

mod environment;
mod errors;
mod exchange_table;
mod job;
mod job_table;
mod link;
mod node;
mod node_table;
mod reader;
mod table;
#[cfg(test)]
mod tests;
mod values;

pub use environment::{ENVIRONMENT_PREFIX, apply_set, process_environment};
pub use errors::{ConfigError, ConfigErrors};
pub use job::{load_job, parse_job};
pub use link::{Congestion, Link};
pub use node::{
    AfterJob, CertificatePaths, CoordinatorConfig, Log, LogFormat, LogLevel, ServerConfig,
    WorkerConfig,
};

/// Every key of every file with its rule, default and meaning, as Markdown, from the tables the
/// parser reads by.
pub fn reference() -> String {
    let files = [
        ("Job file", &job_table::JOB),
        ("Coordinator", &node_table::COORDINATOR),
        ("Server", &node_table::SERVER),
        ("Worker", &node_table::WORKER),
    ];
    let mut out = String::from("# Every key of every file\n");
    for (title, file) in files {
        out.push_str(&format!("\n## {title}\n\n"));
        file.describe(&mut out);
    }
    out
}
