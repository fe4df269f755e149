//! Membership, the job, data leases: what decides who works on what. Never on the gradient's road.
//!
//! [`core`] decides and knows no socket, file or clock → `net` moves messages and does what was
//! decided → [`mod@run`] keeps what is left of a job. Train a job: [`run()`], or [`Listening`] for who
//! must know the address first.

pub mod core;
mod error;
mod net;
pub mod run;

pub use error::CoordinatorError;
use slackline_common::config::CoordinatorConfig;
use slackline_common::quic::Endpoint;
use std::future::Future;
use std::net::SocketAddr;

/// A coordinator that listens and does not yet serve.
#[derive(Debug)]
pub struct Listening {
    config: CoordinatorConfig,
    endpoint: Endpoint,
    address: SocketAddr,
}

impl Listening {
    /// The address it listens on; its port is the real one where the configuration says 0.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listens and serves until the job is over or `shutdown` resolves, which stops the job, keeps its
/// model and ends. Call it inside a tokio runtime.
///
/// # Errors
/// [`CoordinatorError`]; its `blame` gives the exit code.
pub async fn run(
    config: CoordinatorConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), CoordinatorError> {
    Listening::bind(config)?.serve(shutdown).await
}
