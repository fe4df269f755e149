//! What can go wrong between a seat and its peers.

use crate::core::pipeline::PipelineError;
use slackline_common::blame::Blame;
use slackline_common::quic::QuicError;
use slackline_common::wire::frame::{FrameError, Refusal};
use std::sync::Arc;

/// What can go wrong between a seat and its peers. Cheap to clone: one lost server fails many frames.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NetError {
    /// A socket, a handshake, a connection or a control stream.
    #[error("{0}")]
    Quic(Arc<QuicError>),
    /// A peer was lost and did not come back in time.
    #[error("{who} is missing: no connection for {seconds:.1} s ({owed}); last: {why}")]
    Missing {
        /// Role, number and address.
        who: String,
        /// How long it has been away.
        seconds: f64,
        /// What it owes.
        owed: String,
        /// The last failure.
        why: String,
    },
    /// A peer does not take us.
    #[error("{who} refuses this worker: {sentence}")]
    TurnedAway {
        /// Role, number and address.
        who: String,
        /// Its own words.
        sentence: String,
    },
    /// A shard refused a request.
    #[error("{who} refuses a request: {sentence}")]
    Refused {
        /// Server, number and address.
        who: String,
        /// The kind.
        refusal: Refusal,
        /// Its own words.
        sentence: String,
    },
    /// A reply that is no frame.
    #[error("{who} sent a broken reply: {why}")]
    Frame {
        /// Server, number and address.
        who: String,
        /// What is wrong.
        why: FrameError,
    },
    /// A reply that does not answer its request.
    #[error("{who} sent a wrong reply: {why}")]
    Reply {
        /// Server, number and address.
        who: String,
        /// What is wrong.
        why: PipelineError,
    },
    /// A message or reply that means nothing at this point.
    #[error("{who} {what}")]
    Unexpected {
        /// The peer.
        who: String,
        /// What it did, as the rest of a sentence.
        what: String,
    },
    /// The session was closed here.
    #[error("the session is closed")]
    Closed,
}

impl From<QuicError> for NetError {
    fn from(error: QuicError) -> Self {
        Self::Quic(Arc::new(error))
    }
}

impl NetError {
    /// Whose move it is. No wildcard arm: a new variant must choose.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Quic(error) => error.blame(),
            Self::Missing { .. } => Blame::Network,
            Self::TurnedAway { .. } => Blame::Config,
            Self::Refused { .. }
            | Self::Frame { .. }
            | Self::Reply { .. }
            | Self::Unexpected { .. } => Blame::Peer,
            Self::Closed => Blame::Us,
        }
    }
}
