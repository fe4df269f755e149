//! Why a coordinator ended otherwise than in good order.

use slackline_common::blame::Blame;
use slackline_common::quic::{CertError, QuicError};
use std::io;

/// Why a coordinator ended otherwise than in good order.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// A certificate or key is missing or wrong.
    #[error(transparent)]
    Certificate(#[from] CertError),
    /// The address cannot be listened on, or the transport's settings are wrong.
    #[error(transparent)]
    Quic(#[from] QuicError),
    /// The socket has no address.
    #[error("read the address listened on: {source}")]
    Address {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file that tells the address cannot be written.
    #[error("write {path}: {source}")]
    AddressFile {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The last job did not end as it should.
    #[error("{reason}")]
    JobFailed {
        /// One sentence: who is missing, or what broke.
        reason: String,
        /// Whose move it is.
        blame: Blame,
    },
}

impl CoordinatorError {
    /// Whose move it is: decides the exit code.
    pub const fn blame(&self) -> Blame {
        match self {
            Self::Certificate(_) | Self::AddressFile { .. } => Blame::Config,
            Self::Quic(error) => error.blame(),
            Self::Address { .. } => Blame::Us,
            Self::JobFailed { blame, .. } => *blame,
        }
    }
}
