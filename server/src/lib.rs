//! The house of parameters: shards, their clocks, and the connections of workers to them.
//!
//! Read along the road of a push: [`net`] (a stream becomes a request) → [`directory`] (to the thread
//! of its shard) → [`shard`] (one thread, one queue) → [`core`] (a record, arithmetic, released
//! pulls), and the way back. [`run`] is the whole process; a simulator or a bench takes
//! [`shard::Shard`] or [`core::Engine`] alone.
//!
//! Connections and their tasks live on the one thread of the runtime that calls [`run`]; each shard
//! has a thread of its own.

pub mod core;
pub mod directory;
pub mod error;
pub mod net;
pub mod shard;

pub use error::ServerError;

use crate::net::connection::accept_workers;
use crate::net::control::{Identity, talk};
use crate::net::home::Home;
use slackline_common::config::ServerConfig;
use slackline_common::quic::{
    CloseCode, Credentials, Endpoint, TransportSettings, client_endpoint, server_endpoint,
};
use slackline_common::role::Role;
use slackline_common::wire::control::Hello;
use std::future::Future;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long the last packets may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// Runs a server until its coordinator sends it home, `shutdown` completes, or something is wrong.
/// Call it inside a current-thread tokio runtime.
///
/// # Errors
/// [`ServerError`], each one line that says whose move it is.
pub async fn run(
    config: ServerConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    let credentials = credentials(&config)?;
    run_with(config, &credentials, shutdown).await
}

/// What [`run`] would refuse before it uses the network.
///
/// # Errors
/// [`ServerError::Certificate`].
pub fn check(config: &ServerConfig) -> Result<(), ServerError> {
    credentials(config).map(drop)
}

fn credentials(config: &ServerConfig) -> Result<Credentials, ServerError> {
    let paths = &config.certificates;
    Ok(Credentials::load(&paths.ca, &paths.certificate, &paths.key, Role::Server)?)
}

/// As [`run`], with credentials that are in memory already.
///
/// # Errors
/// As [`run`].
pub async fn run_with(
    config: ServerConfig,
    credentials: &Credentials,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    let settings = TransportSettings::with_mtu(config.mtu).with_link(&config.link);
    let listener = server_endpoint(config.listen, credentials, &[Role::Worker], &settings)?;
    let dialler = client_endpoint(credentials, &settings)?;
    let address =
        listener.local_addr().map_or_else(|_| config.listen.to_string(), |a| a.to_string());
    tracing::info!("listening on {address}");
    let advertise = config.advertise.unwrap_or(address);
    let identity = Identity {
        coordinator: config.coordinator,
        hello: Hello { name: name(), build: env!("CARGO_PKG_VERSION").to_owned() },
        advertise,
        shards: config.shards,
        grace: Duration::from_secs_f64(config.coordinator_grace_seconds),
    };
    let (home, voices) = Home::new();
    // Dropped with this function, and with it every connection's task.
    let mut workers = JoinSet::new();
    workers.spawn(accept_workers(home.clone(), listener.clone()));
    let outcome = talk(&home, voices, &dialler, &identity, shutdown).await;
    let words = match &outcome {
        Ok(()) => "this server is done".to_owned(),
        Err(error) => error.to_string(),
    };
    home.finish(&words);
    for endpoint in [&listener, &dialler] {
        part(endpoint, &words).await;
    }
    outcome
}

/// Closes an endpoint and gives its last packets a moment.
async fn part(endpoint: &Endpoint, words: &str) {
    let reason: String = words.chars().take(100).collect();
    endpoint.close(CloseCode::Shutdown.to_wire(), reason.as_bytes());
    // A peer that does not answer any more is not waited for.
    drop(timeout(FAREWELL, endpoint.wait_idle()).await);
}

/// Host and process.
fn name() -> String {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "server" } else { host.trim() };
    format!("{host}-{}", std::process::id())
}
