//! What ends a worker.

use crate::core::local::LocalError;
use crate::data::DataError;
use crate::data::prefetch::PrefetchError;
use crate::net::NetError;
use crate::train::TrainError;
use slackline_common::blame::Blame;
use slackline_common::quic::{CertError, QuicError};
use std::io;

/// What ends a worker.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The certificate files are not usable.
    #[error(transparent)]
    Credentials(#[from] CertError),
    /// The network or a peer.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The training or test data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The thread that reads ahead.
    #[error(transparent)]
    Prefetch(#[from] PrefetchError),
    /// A step could not be computed.
    #[error("the step cannot be computed: {0}")]
    Train(#[from] TrainError),
    /// The job is for raw clients.
    #[error("job {job:?} has an external model, which raw clients train, not workers")]
    External {
        /// The job's name.
        job: String,
    },
    /// The job has a model but nothing to train it on.
    #[error("job {job:?} names no data to train on")]
    NoData {
        /// The job's name.
        job: String,
    },
    /// The job's local mode does not fit its model.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The coordinator's layout is not that of the model.
    #[error("the coordinator's layout differs from the model's: run the same release on both")]
    Layout,
    /// The operating system gave no thread, or the thread died.
    #[error("the compute thread: {0}")]
    Thread(io::Error),
    /// The job ended badly.
    #[error("the job failed: {reason}")]
    Ended {
        /// The coordinator's words.
        reason: String,
        /// Whose move it is, as the coordinator sees it.
        blame: Blame,
    },
}

impl From<QuicError> for WorkerError {
    fn from(error: QuicError) -> Self {
        Self::Net(error.into())
    }
}

impl WorkerError {
    /// Whose move it is. No wildcard arm: a new variant must choose.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Credentials(_)
            | Self::Local(_)
            | Self::External { .. }
            | Self::NoData { .. }
            | Self::Layout => Blame::Config,
            Self::Net(error) => error.blame(),
            Self::Data(error) => error.blame(),
            Self::Prefetch(error) => error.blame(),
            Self::Train(_) | Self::Thread(_) => Blame::Us,
            Self::Ended { blame, .. } => *blame,
        }
    }
}
