//! One connection: its control stream to the hub's queue and back.

use crate::core::membership::MemberId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use slackline_common::limits::{CONTROL_QUEUE_MAX, HELLO_SECONDS_MAX};
use slackline_common::quic::{
    self, CloseCode, Connection, ControlReceiver, ControlSender, QuicError,
};
use slackline_common::role::Role;
use slackline_common::wire::control::{
    FromOperator, FromServer, FromWorker, ToOperator, ToServer, ToWorker,
};
use std::time::Duration;
use tokio::sync::mpsc;

/// Messages waiting for one operator: parts of a model are 1 MiB each.
const OPERATOR_QUEUE_MAX: usize = 16;
/// How long a peer may take to get its last messages before its connection is closed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What reaches the hub.
#[derive(Debug)]
pub(super) enum Input {
    /// A member or an operator has said its first words, which follow.
    Joined(MemberId, Link),
    Worker(MemberId, FromWorker),
    Server(MemberId, FromServer),
    Operator(MemberId, FromOperator),
    /// The connection ended; the sentence says how.
    Gone(MemberId, String),
    /// The model asked for by the core.
    Fetched(Result<Vec<f32>, String>),
    /// The run's last files are written.
    Concluded(Box<super::hub::Written>),
}

/// To the task that writes.
#[derive(Debug)]
pub(super) enum Outgoing<M> {
    Message(M),
    /// Nothing follows.
    Close(CloseCode, String),
}

#[derive(Clone, Debug)]
pub(super) enum Outbox {
    Worker(mpsc::Sender<Outgoing<ToWorker>>),
    Server(mpsc::Sender<Outgoing<ToServer>>),
    Operator(mpsc::Sender<Outgoing<ToOperator>>),
}

/// The hub's end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) outbox: Outbox,
    pub(super) connection: Connection,
    pub(super) address: String,
}

impl Link {
    /// Says the last words and closes; at once when the peer does not take what is queued already.
    pub(super) fn close(&self, code: CloseCode, detail: String) {
        let sent = match &self.outbox {
            Outbox::Worker(queue) => queue.try_send(Outgoing::Close(code, detail.clone())).is_ok(),
            Outbox::Server(queue) => queue.try_send(Outgoing::Close(code, detail.clone())).is_ok(),
            Outbox::Operator(queue) => {
                queue.try_send(Outgoing::Close(code, detail.clone())).is_ok()
            }
        };
        if !sent {
            quic::close(&self.connection, code, &detail);
        }
    }
}

/// Serves a connection to its end. The role is in the certificate and decides what may be said.
pub(super) async fn serve(id: MemberId, connection: Connection, inputs: mpsc::Sender<Input>) {
    match quic::peer_role(&connection) {
        Some(Role::Worker) => {
            let queue = CONTROL_QUEUE_MAX;
            let is_hello = |first: &FromWorker| matches!(first, FromWorker::Hello { .. });
            talk(id, connection, inputs, queue, is_hello, Outbox::Worker, Input::Worker).await;
        }
        Some(Role::Server) => {
            let queue = CONTROL_QUEUE_MAX;
            let is_hello = |first: &FromServer| matches!(first, FromServer::Hello { .. });
            talk(id, connection, inputs, queue, is_hello, Outbox::Server, Input::Server).await;
        }
        Some(Role::Operator) => {
            let queue = OPERATOR_QUEUE_MAX;
            // An operator begins with what it wants.
            talk(id, connection, inputs, queue, |_| true, Outbox::Operator, Input::Operator).await;
        }
        // The handshake admits no other role.
        Some(Role::Coordinator) | None => {
            quic::close(&connection, CloseCode::RoleRefused, "workers, servers and operators only");
        }
    }
}

async fn talk<Out, In>(
    id: MemberId,
    connection: Connection,
    inputs: mpsc::Sender<Input>,
    queue: usize,
    is_hello: impl Fn(&In) -> bool,
    outbox: impl Fn(mpsc::Sender<Outgoing<Out>>) -> Outbox,
    input: impl Fn(MemberId, In) -> Input,
) where
    Out: Serialize + Send + Sync + 'static,
    In: DeserializeOwned,
{
    let address = quic::peer_address(&connection).to_string();
    let deadline = Duration::from_secs(HELLO_SECONDS_MAX);
    let (sender, mut receiver, first) =
        match quic::accept_hello::<Out, In>(&connection, deadline).await {
            Ok(parts) => parts,
            Err(error) => return tracing::warn!("{error}"),
        };
    if !is_hello(&first) {
        // Nobody would ever hear from it again, nor miss it.
        let sentence = "the first message must be a hello";
        tracing::warn!("{address} is cut: {sentence}");
        return quic::close(&connection, CloseCode::ProtocolViolation, sentence);
    }
    let (to_writer, outgoing) = mpsc::channel(queue);
    let link = Link { outbox: outbox(to_writer), connection: connection.clone(), address };
    let writer = tokio::spawn(write(sender, outgoing, connection.clone()));
    // Sending fails only when the hub has ended, and with it the process.
    let _ = inputs.send(Input::Joined(id, link)).await;
    let _ = inputs.send(input(id, first)).await;
    let how = match read(id, &mut receiver, &inputs, input).await {
        Ok(()) => "it left".to_owned(),
        Err(error) => {
            quic::close(&connection, error.close_code(), &error.to_string());
            error.to_string()
        }
    };
    let _ = inputs.send(Input::Gone(id, how)).await;
    // The hub drops its end; what it had queued may still be on its way.
    drop(writer.await);
}

async fn read<In: DeserializeOwned>(
    id: MemberId,
    receiver: &mut ControlReceiver<In>,
    inputs: &mpsc::Sender<Input>,
    input: impl Fn(MemberId, In) -> Input,
) -> Result<(), QuicError> {
    while let Some(message) = receiver.recv().await? {
        if inputs.send(input(id, message)).await.is_err() {
            break;
        }
    }
    Ok(())
}

async fn write<Out: Serialize>(
    mut sender: ControlSender<Out>,
    mut outgoing: mpsc::Receiver<Outgoing<Out>>,
    connection: Connection,
) {
    while let Some(next) = outgoing.recv().await {
        match next {
            Outgoing::Message(message) => {
                if let Err(error) = sender.send(&message).await {
                    quic::close(&connection, error.close_code(), &error.to_string());
                    return;
                }
            }
            Outgoing::Close(code, detail) => {
                if let Err(error) = sender.deliver(LAST_WORDS).await {
                    tracing::debug!("last words did not arrive: {error}");
                }
                quic::close(&connection, code, &detail);
                return;
            }
        }
    }
    quic::close(&connection, CloseCode::Done, "");
}
