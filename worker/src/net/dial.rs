//! Dialling a server: both hellos, again until it answers, refuses, or the patience is over.

use crate::net::{NetError, Patience};
use quinn::{Connection, Endpoint};
use slackline_common::blame::Blame;
use slackline_common::ids::ServerId;
use slackline_common::limits::HELLO_SECONDS_MAX;
use slackline_common::quic::{self, CloseCode, QuicError};
use slackline_common::role::Role;
use slackline_common::wire::control::{DataHello, DataWelcome};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Between two attempts to reach a lost server.
const REDIAL_PAUSE: Duration = Duration::from_millis(250);

/// Whether a lost connection will not come back however often it is dialled.
pub(super) fn is_final(error: &QuicError) -> bool {
    match error {
        QuicError::Closed { code: CloseCode::Fenced, .. } => true,
        QuicError::Transport { .. } => false,
        other => other.blame() != Blame::Network,
    }
}

/// A server to be reached.
pub(super) struct Dial<'a> {
    pub(super) endpoint: &'a Endpoint,
    pub(super) id: ServerId,
    pub(super) address: &'a str,
    pub(super) hello: &'a DataHello,
    pub(super) patience: Patience,
}

impl Dial<'_> {
    /// Dials until the server takes us, refuses us, or the patience is over.
    pub(super) async fn until(
        &self,
        mut closing: watch::Receiver<bool>,
        owed: &str,
    ) -> Result<Connection, NetError> {
        let began = Instant::now();
        let deadline = began + self.patience.server;
        let mut why = "no attempt was finished".to_owned();
        loop {
            let attempt = async {
                let outcome = timeout_at(deadline, self.once()).await;
                if matches!(outcome, Ok(Err(_))) {
                    sleep_until(deadline.min(Instant::now() + REDIAL_PAUSE)).await;
                }
                outcome
            };
            let outcome = tokio::select! {
                outcome = attempt => outcome,
                _ = closing.wait_for(|closing| *closing) => return Err(NetError::Closed),
            };
            match outcome {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(NetError::Quic(error))) if !is_final(&error) => why = error.to_string(),
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
            if Instant::now() >= deadline {
                let who = format!("{} at {}", self.id, self.address);
                let seconds = began.elapsed().as_secs_f64();
                return Err(NetError::Missing { who, seconds, owed: owed.to_owned(), why });
            }
        }
    }

    /// One connection, with both hellos.
    async fn once(&self) -> Result<Connection, NetError> {
        let Patience { connect, .. } = self.patience;
        let connection = quic::connect(self.endpoint, self.address, Role::Server, connect).await?;
        let (mut sender, mut receiver) = quic::open_control(&connection).await?;
        sender.send(self.hello).await?;
        let deadline = Duration::from_secs(HELLO_SECONDS_MAX);
        let welcome = receiver.recv_within(deadline, "welcome").await?;
        let who = || format!("{} at {}", self.id, self.address);
        match welcome {
            Some(DataWelcome::Accepted) => {
                // The stream stays open as long as the connection: its end would say goodbye.
                let held = connection.clone();
                tokio::spawn(async move {
                    // A server that doubts that we live opens empty streams, which have to be taken
                    // from it: it may only have so many. The loop ends with the connection.
                    while held.accept_uni().await.is_ok() {}
                    drop((sender, receiver));
                });
                Ok(connection)
            }
            Some(DataWelcome::Refused(sentence)) => {
                Err(NetError::TurnedAway { who: who(), sentence })
            }
            None => Err(NetError::Unexpected {
                who: who(),
                what: "ended its control stream without a welcome".to_owned(),
            }),
        }
    }
}
