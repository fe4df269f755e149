//! Sockets and tasks around the core: as little as possible.
//!
//! One task per connection moves messages between the network and the hub's queue
//! ([`connection`]); one task, the hub, owns the core and does what it decides ([`hub`]);
//! [`fetch`] pulls the model.

mod connection;
mod fetch;
mod hub;
#[cfg(test)]
mod tests;

use crate::core::membership::MemberId;
use crate::run::write_atomically;
use crate::{CoordinatorError, Listening};
use connection::Input;
use hub::Hub;
use slackline_common::config::CoordinatorConfig;
use slackline_common::limits::{CONTROL_QUEUE_MAX, HELLO_SECONDS_MAX};
use slackline_common::quic::{self, CloseCode, Credentials, Endpoint, TransportSettings};
use slackline_common::role::Role;
use std::future::Future;
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Closed connections may take this long to say so at the end.
const FAREWELL: Duration = Duration::from_secs(2);

impl Listening {
    /// Loads the certificates and listens. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// [`CoordinatorError::Certificate`], [`CoordinatorError::Quic`].
    pub fn bind(config: CoordinatorConfig) -> Result<Self, CoordinatorError> {
        let paths = &config.certificates;
        let credentials =
            Credentials::load(&paths.ca, &paths.certificate, &paths.key, Role::Coordinator)?;
        Self::bind_with(config, &credentials)
    }

    /// As [`bind`](Self::bind), with credentials that are in memory already.
    ///
    /// # Errors
    /// [`CoordinatorError::Quic`].
    pub fn bind_with(
        config: CoordinatorConfig,
        credentials: &Credentials,
    ) -> Result<Self, CoordinatorError> {
        let settings = TransportSettings::with_mtu(config.mtu).with_link(&config.link);
        let roles = &[Role::Worker, Role::Server, Role::Operator];
        let endpoint = quic::server_endpoint(config.listen, credentials, roles, &settings)?;
        let address =
            endpoint.local_addr().map_err(|source| CoordinatorError::Address { source })?;
        tracing::info!("listening on {address}");
        Ok(Self { config, endpoint, address })
    }

    /// Writes `host:port` into a file, all at once, for whoever started this process with port 0.
    ///
    /// # Errors
    /// [`CoordinatorError::AddressFile`].
    pub fn write_address(&self, path: &Path) -> Result<(), CoordinatorError> {
        let failed =
            |source| CoordinatorError::AddressFile { path: path.display().to_string(), source };
        write_atomically(path, [self.address.to_string().into_bytes()]).map_err(failed)
    }

    /// Serves until the job is over (or, where the configuration says to wait for another one, until
    /// `shutdown`). A shutdown stops the job as an operator would, keeps its model and ends.
    ///
    /// # Errors
    /// [`CoordinatorError::JobFailed`] when the last job did not end as it should and nobody had
    /// stopped it.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), CoordinatorError> {
        let (inputs, queue) = mpsc::channel(CONTROL_QUEUE_MAX);
        let hub = Hub::new(&self.config, inputs.clone());
        let accepting = tokio::spawn(accept(self.endpoint.clone(), inputs));
        let result = Box::pin(hub.run(queue, shutdown)).await;
        accepting.abort();
        self.endpoint.close(CloseCode::Done.to_wire(), b"the job is over");
        if tokio::time::timeout(FAREWELL, self.endpoint.wait_idle()).await.is_err() {
            tracing::debug!("connections are still closing");
        }
        result
    }
}

/// Takes callers, each in a task of its own: a slow one holds up nobody.
async fn accept(endpoint: Endpoint, inputs: mpsc::Sender<Input>) {
    let mut tasks = JoinSet::new();
    let mut next = 0;
    while let Some(incoming) = quic::accept(&endpoint).await {
        let (id, inputs) = (MemberId(next), inputs.clone());
        next += 1;
        tasks.spawn(async move {
            let deadline = Duration::from_secs(HELLO_SECONDS_MAX);
            match quic::handshake(incoming, deadline).await {
                Ok(connection) => connection::serve(id, connection, inputs).await,
                Err(error) => tracing::warn!("{error}"),
            }
        });
        while tasks.try_join_next().is_some() {}
    }
}
