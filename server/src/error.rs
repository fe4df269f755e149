//! Why a server ends.

use slackline_common::blame::Blame;
use slackline_common::ids::ShardId;
use slackline_common::quic::{CertError, QuicError};
use std::io;

/// Why a server ends otherwise than in good order.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A certificate or key is wrong.
    #[error(transparent)]
    Certificate(#[from] CertError),
    /// A socket or a connection failed.
    #[error(transparent)]
    Quic(#[from] QuicError),
    /// Nobody answers where the coordinator should be.
    #[error("coordinator {address}: nobody answers (waited {waited:.0} s): {last}")]
    CoordinatorUnreachable {
        /// Where it should be.
        address: String,
        /// Seconds.
        waited: f64,
        /// What the last attempt met.
        last: String,
    },
    /// The coordinator was there and is not any more.
    #[error("coordinator {address} is missing: last heard {silent:.1} s ago; {detail}")]
    CoordinatorLost {
        /// Where it was.
        address: String,
        /// Seconds.
        silent: f64,
        /// What is known about the reason.
        detail: String,
    },
    /// The coordinator does not want this server.
    #[error("coordinator {address} refused this server: {sentence}")]
    Refused {
        /// Who.
        address: String,
        /// Its own words.
        sentence: String,
    },
    /// The coordinator said what cannot be.
    #[error("coordinator {address} {what}")]
    Unexpected {
        /// Who.
        address: String,
        /// What it did.
        what: String,
    },
    /// The job ended otherwise than it should.
    #[error("the job ended: {reason}")]
    JobFailed {
        /// The coordinator's words.
        reason: String,
        /// Whose move it is, as the coordinator sees it.
        blame: Blame,
    },
    /// A shard's thread broke one of our own rules.
    #[error("{shard} stopped by a fault of its own: see the lines before this one")]
    ShardPanicked {
        /// Which.
        shard: ShardId,
    },
    /// The system gives no thread.
    #[error("cannot start a thread for {shard}: {source}")]
    Thread {
        /// For which shard.
        shard: ShardId,
        /// Why.
        source: io::Error,
    },
}

impl ServerError {
    /// Whose move it is. No wildcard arm: a new variant must choose.
    pub const fn blame(&self) -> Blame {
        match self {
            Self::Quic(error) => error.blame(),
            Self::Certificate(_) | Self::Refused { .. } => Blame::Config,
            Self::JobFailed { blame, .. } => *blame,
            Self::CoordinatorUnreachable { .. } | Self::CoordinatorLost { .. } => Blame::Network,
            Self::Unexpected { .. } => Blame::Peer,
            Self::ShardPanicked { .. } | Self::Thread { .. } => Blame::Us,
        }
    }
}
