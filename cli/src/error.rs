//! Why a command failed, and whose move it is.

use slackline_common::blame::Blame;
use slackline_common::config::ConfigErrors;
use slackline_common::quic::{CertError, QuicError};
use slackline_common::wire::control::Ended;
use std::path::PathBuf;

/// Everything that ends a command early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The job file or a flag is wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// A flag's value is wrong.
    #[error("{flag}: {rule}, got {got:?}")]
    Flag { flag: &'static str, rule: &'static str, got: String },
    /// A certificate is missing or wrong.
    #[error(transparent)]
    Certificate(#[from] CertError),
    /// The coordinator cannot be reached or broke the dialogue.
    #[error(transparent)]
    Network(#[from] QuicError),
    /// The coordinator hung up.
    #[error("the coordinator ended the conversation before it answered; its log says why")]
    Closed,
    /// The coordinator said no.
    #[error("the coordinator refused: {0}")]
    Refused(String),
    /// The coordinator answered something else.
    #[error("the coordinator answered a {request} with an unexpected message; are both {version}?")]
    Unexpected { request: &'static str, version: &'static str },
    /// The job ended badly.
    #[error("the job failed: {reason}")]
    JobFailed { reason: String, blame: Blame },
    /// A process of the local cluster could not be started.
    #[error("start {program}: {source}; build all programs first (make build)")]
    Start { program: String, source: std::io::Error },
    /// A process of the local cluster ended when it should not.
    #[error("{sentence}")]
    MemberEnded { sentence: String, blame: Blame },
    /// A file could not be written.
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// The process could not set itself up.
    #[error("start the runtime: {0}")]
    Runtime(std::io::Error),
}

impl CliError {
    /// What the end of a job is for who watched it.
    pub(crate) fn of_end(ended: Ended) -> Result<(), Self> {
        match ended.blame {
            Some(blame) => Err(Self::JobFailed { reason: ended.reason, blame }),
            None => Ok(()),
        }
    }

    /// Whose move it is. No wildcard: a new variant must choose.
    pub(crate) fn blame(&self) -> Blame {
        match self {
            Self::Config(_) | Self::Flag { .. } | Self::Certificate(_) | Self::Refused(_) => {
                Blame::Config
            }
            Self::Network(error) => error.blame(),
            Self::Closed | Self::Unexpected { .. } => Blame::Peer,
            Self::MemberEnded { blame, .. } | Self::JobFailed { blame, .. } => *blame,
            Self::Start { .. } | Self::Write { .. } | Self::Runtime(_) => Blame::Us,
        }
    }
}
