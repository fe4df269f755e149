//! Connections of a seat: to the coordinator ([`coordinator`]), to every server ([`servers`]), and
//! the seat that pushes and pulls over them ([`seat`]), and the parameters that are asked for ahead
//! ([`flow`]). The raw client and the training worker both stand on [`seat`].
//!
//! Everything here runs on whatever tokio runtime calls it. The training worker drives one
//! current-thread runtime on a thread of its own and calls in from the compute thread with
//! `Handle::block_on`; a raw client uses its caller's.

pub mod coordinator;
mod dial;
mod error;
pub mod flow;
pub mod progress;
pub mod seat;
pub mod servers;
#[cfg(test)]
mod tests;

pub use error::NetError;

use std::time::Duration;

/// How long a seat waits for others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Patience {
    /// One attempt to connect.
    pub connect: Duration,
    /// Without the coordinator, before the seat ends.
    pub coordinator: Duration,
    /// Without a lost server, before the seat ends.
    pub server: Duration,
    /// Before a line says who owes an answer; said again each time the wait has doubled.
    pub report: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            coordinator: Duration::from_secs(60),
            server: Duration::from_secs(30),
            report: Duration::from_secs(10),
        }
    }
}
