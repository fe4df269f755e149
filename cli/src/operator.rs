//! A connection to the coordinator in the operator's role: one request, its answers.

use crate::error::CliError;
use slackline_common::job::Job;
use slackline_common::quic::control::{ControlReceiver, ControlSender, open_control};
use slackline_common::quic::{Credentials, TransportSettings, client_endpoint, connect};
use slackline_common::role::Role;
use slackline_common::wire::control::{FromOperator, ToOperator};
use std::time::Duration;

/// How long the coordinator may take to answer the handshake and a request.
pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_secs(10);

/// A live connection. Dropping it closes it.
pub(crate) struct Operator {
    sender: ControlSender<FromOperator>,
    receiver: ControlReceiver<ToOperator>,
    // Kept so that the endpoint outlives the streams.
    _endpoint: quinn::Endpoint,
}

impl Operator {
    /// Connects to `coordinator` (`host:port`).
    ///
    /// # Errors
    /// When nobody answers, or the certificates do not fit.
    pub(crate) async fn connect(
        coordinator: &str,
        credentials: &Credentials,
    ) -> Result<Self, CliError> {
        let endpoint = client_endpoint(credentials, &TransportSettings::default())?;
        let connection =
            connect(&endpoint, coordinator, Role::Coordinator, ANSWER_DEADLINE).await?;
        let (sender, receiver) = open_control(&connection).await?;
        Ok(Self { sender, receiver, _endpoint: endpoint })
    }

    /// Sends a request.
    pub(crate) async fn send(&mut self, request: &FromOperator) -> Result<(), CliError> {
        Ok(self.sender.send(request).await?)
    }

    /// The answer to the last request, or who owes it after [`ANSWER_DEADLINE`].
    pub(crate) async fn answer(&mut self) -> Result<ToOperator, CliError> {
        let answer = self.receiver.recv_within(ANSWER_DEADLINE, "an answer").await?;
        answer.ok_or(CliError::Closed)
    }

    /// The next message of a watched job; cancellation-safe. They come several times a second while
    /// the coordinator lives, and a dead one ends the connection after the idle timeout.
    pub(crate) async fn next(&mut self) -> Result<ToOperator, CliError> {
        self.receiver.recv().await?.ok_or(CliError::Closed)
    }

    /// Hands the job over.
    pub(crate) async fn submit(&mut self, job: &Job) -> Result<(), CliError> {
        self.send(&FromOperator::Submit(Box::new(job.clone()))).await?;
        self.accepted("submit").await
    }

    /// Ends the job early; the model is kept.
    pub(crate) async fn stop(&mut self) -> Result<(), CliError> {
        self.send(&FromOperator::Stop).await?;
        self.accepted("stop").await
    }

    async fn accepted(&mut self, request: &'static str) -> Result<(), CliError> {
        match self.answer().await? {
            ToOperator::Accepted => Ok(()),
            ToOperator::Refused(sentence) => Err(CliError::Refused(sentence)),
            _ => Err(unexpected(request)),
        }
    }
}

/// The error for an answer that does not belong to the request.
pub(crate) const fn unexpected(request: &'static str) -> CliError {
    CliError::Unexpected { request, version: env!("CARGO_PKG_VERSION") }
}
