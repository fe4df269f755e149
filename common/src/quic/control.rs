//! The control stream: typed messages in order, one stream per connection.
//!
//! A message is a little-endian `u32` length and so many bytes of [`crate::wire::message`]. A length
//! is checked before anything is kept for it, and memory grows only with bytes that came.

use super::close::{CloseCode, close};
use super::endpoint::{canonical, peer_role};
use super::error::{QuicError, describe_close_from, describe_read, describe_write};
use crate::limits::CONTROL_BYTES_MAX;
use crate::wire::message::{decode, encode};
use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Seconds a peer has to take one control message before it counts as stuck.
pub const CONTROL_SEND_SECONDS_MAX: u64 = 30;
/// Control messages overtake frames.
const PRIORITY: i32 = 1 << 20;
const LENGTH_BYTES: usize = 4;
/// Most bytes taken from the stream at once.
const CHUNK_BYTES_MAX: usize = 64 << 10;

/// Sends messages of type `M`.
pub struct ControlSender<M> {
    stream: SendStream,
    who: String,
    /// Bytes of the message that is on its way, and how many of them are gone.
    pending: Vec<u8>,
    sent: usize,
    message: PhantomData<fn(&M)>,
}

impl<M> fmt::Debug for ControlSender<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlSender").field("who", &self.who).finish_non_exhaustive()
    }
}

impl<M: Serialize> ControlSender<M> {
    /// Sends one message: it is on its way when this returns.
    ///
    /// When the future is dropped, the message may or may not go out, but never a part of it
    /// followed by something else: the next call sends the rest first.
    ///
    /// # Errors
    /// [`QuicError::Stuck`] when the peer does not take it within [`CONTROL_SEND_SECONDS_MAX`];
    /// [`QuicError::Message`]; why the connection was lost.
    pub async fn send(&mut self, message: &M) -> Result<(), QuicError> {
        let deadline = Duration::from_secs(CONTROL_SEND_SECONDS_MAX);
        timeout(deadline, self.send_now(message)).await.unwrap_or_else(|_| {
            Err(QuicError::Stuck { who: self.who.clone(), seconds: deadline.as_secs_f32() })
        })
    }

    async fn send_now(&mut self, message: &M) -> Result<(), QuicError> {
        self.flush().await?;
        let failed = |source| QuicError::Message { who: self.who.clone(), source };
        let body = encode(message).map_err(failed)?;
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        if body.len() > CONTROL_BYTES_MAX {
            let (who, max) = (self.who.clone(), CONTROL_BYTES_MAX);
            return Err(QuicError::ControlLength { who, got: length, max });
        }
        self.sent = 0;
        self.pending.clear();
        self.pending.extend_from_slice(&length.to_le_bytes());
        self.pending.extend_from_slice(&body);
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), QuicError> {
        while self.sent < self.pending.len() {
            let written = self.stream.write(&self.pending[self.sent..]).await;
            self.sent += written.map_err(|error| describe_write(&self.who, &error))?;
        }
        Ok(())
    }

    /// Tells the peer that no message follows. Fails only when the stream is closed already.
    pub fn finish(&mut self) {
        drop(self.stream.finish());
    }

    /// As [`ControlSender::finish`], and waits until the peer's machine has everything: closing the
    /// connection sooner would take the last messages back.
    ///
    /// # Errors
    /// [`QuicError::Stuck`] when that takes longer than `deadline`.
    pub async fn deliver(&mut self, deadline: Duration) -> Result<(), QuicError> {
        self.finish();
        // A stream the peer stopped or lost needs nothing more.
        timeout(deadline, self.stream.stopped()).await.map(drop).map_err(|_| QuicError::Stuck {
            who: self.who.clone(),
            seconds: deadline.as_secs_f32(),
        })
    }
}

/// Receives messages of type `M`.
pub struct ControlReceiver<M> {
    stream: RecvStream,
    who: String,
    length: [u8; LENGTH_BYTES],
    length_got: usize,
    body: Vec<u8>,
    message: PhantomData<fn() -> M>,
}

impl<M> fmt::Debug for ControlReceiver<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlReceiver").field("who", &self.who).finish_non_exhaustive()
    }
}

impl<M: DeserializeOwned> ControlReceiver<M> {
    /// The next message, or `None` when the peer ended the stream between two messages or closed
    /// the connection with [`CloseCode::Done`].
    ///
    /// Cancellation-safe: what has arrived is kept for the next call.
    ///
    /// # Errors
    /// [`QuicError::ControlLength`], [`QuicError::ControlCut`], [`QuicError::Message`] (the stream
    /// is then useless: close with [`QuicError::close_code`]); why the connection was lost.
    pub async fn recv(&mut self) -> Result<Option<M>, QuicError> {
        loop {
            let want = self.want()?;
            if want == 0 {
                return self.take().map(Some);
            }
            match self.stream.read_chunk(want.min(CHUNK_BYTES_MAX), true).await {
                Ok(Some(chunk)) => self.keep(&chunk.bytes),
                Ok(None) if self.length_got == 0 => return Ok(None),
                Ok(None) => return Err(QuicError::ControlCut { who: self.who.clone() }),
                Err(ReadError::ConnectionLost(ConnectionError::ApplicationClosed(closed)))
                    if CloseCode::from_wire(closed.error_code) == Some(CloseCode::Done) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(describe_read(&self.who, &error)),
            }
        }
    }

    /// As [`ControlReceiver::recv`], but a peer that says nothing for `deadline` is an error; `what`
    /// names what was due.
    ///
    /// # Errors
    /// [`QuicError::Silent`], and as [`ControlReceiver::recv`].
    pub async fn recv_within(
        &mut self,
        deadline: Duration,
        what: &'static str,
    ) -> Result<Option<M>, QuicError> {
        match timeout(deadline, self.recv()).await {
            Ok(result) => result,
            Err(_) => Err(silent(&self.who, what, deadline)),
        }
    }

    /// Bytes that are missing from the length, then from the body. Refuses the length when it is
    /// complete and too large, before anything is kept for it.
    fn want(&self) -> Result<usize, QuicError> {
        if self.length_got < LENGTH_BYTES {
            return Ok(LENGTH_BYTES - self.length_got);
        }
        let got = u32::from_le_bytes(self.length);
        match usize::try_from(got) {
            Ok(length) if length <= CONTROL_BYTES_MAX => Ok(length - self.body.len()),
            _ => {
                let (who, max) = (self.who.clone(), CONTROL_BYTES_MAX);
                Err(QuicError::ControlLength { who, got, max })
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.length_got < LENGTH_BYTES {
            let end = self.length_got + bytes.len();
            self.length[self.length_got..end].copy_from_slice(bytes);
            self.length_got = end;
        } else {
            self.body.extend_from_slice(bytes);
        }
    }

    fn take(&mut self) -> Result<M, QuicError> {
        self.length_got = 0;
        let message = decode(&self.body);
        self.body.clear();
        self.body.shrink_to(CHUNK_BYTES_MAX);
        message.map_err(|source| QuicError::Message { who: self.who.clone(), source })
    }
}

/// Opens the control stream of a connection. The peer sees it with the first message.
///
/// # Errors
/// Why the connection was lost.
pub async fn open_control<Out: Serialize, In: DeserializeOwned>(
    connection: &Connection,
) -> Result<(ControlSender<Out>, ControlReceiver<In>), QuicError> {
    let who = name(connection);
    let streams = connection.open_bi().await;
    streams.map(|pair| halves(pair, &who)).map_err(|error| describe_close_from(&who, &error))
}

/// Waits for the peer's control stream. A peer that opens none within `deadline` is closed.
///
/// # Errors
/// [`QuicError::Silent`]; why the connection was lost.
pub async fn accept_control<Out: Serialize, In: DeserializeOwned>(
    connection: &Connection,
    deadline: Duration,
) -> Result<(ControlSender<Out>, ControlReceiver<In>), QuicError> {
    let who = name(connection);
    match timeout(deadline, connection.accept_bi()).await {
        Ok(Ok(pair)) => Ok(halves(pair, &who)),
        Ok(Err(error)) => Err(describe_close_from(&who, &error)),
        Err(_) => Err(give_up(connection, silent(&who, "control stream", deadline))),
    }
}

/// As [`accept_control`], and waits for the first message too, all within `deadline`. A peer that
/// stays silent, or whose first message is not one, is closed.
///
/// # Errors
/// [`QuicError::Silent`], and as [`ControlReceiver::recv`].
pub async fn accept_hello<Out: Serialize, In: DeserializeOwned>(
    connection: &Connection,
    deadline: Duration,
) -> Result<(ControlSender<Out>, ControlReceiver<In>, In), QuicError> {
    let until = Instant::now() + deadline;
    let (sender, mut receiver) = accept_control(connection, deadline).await?;
    match timeout_at(until, receiver.recv()).await {
        Ok(Ok(Some(hello))) => Ok((sender, receiver, hello)),
        Ok(Ok(None)) => {
            let error = QuicError::ControlCut { who: receiver.who };
            Err(give_up(connection, error))
        }
        Ok(Err(error)) => Err(give_up(connection, error)),
        Err(_) => Err(give_up(connection, silent(&receiver.who, "hello", deadline))),
    }
}

fn give_up(connection: &Connection, error: QuicError) -> QuicError {
    close(connection, error.close_code(), &error.to_string());
    error
}

fn silent(who: &str, what: &'static str, deadline: Duration) -> QuicError {
    QuicError::Silent { who: who.to_owned(), what, seconds: deadline.as_secs_f32() }
}

/// `worker at 10.0.0.7:40112`.
fn name(connection: &Connection) -> String {
    let address = canonical(connection.remote_address());
    peer_role(connection)
        .map_or_else(|| format!("peer at {address}"), |role| format!("{role} at {address}"))
}

fn halves<Out, In>(
    (send, recv): (SendStream, RecvStream),
    who: &str,
) -> (ControlSender<Out>, ControlReceiver<In>) {
    // It fails only for a stream that is closed already, which the first send reports.
    drop(send.set_priority(PRIORITY));
    let sender = ControlSender {
        stream: send,
        who: who.to_owned(),
        pending: Vec::new(),
        sent: 0,
        message: PhantomData,
    };
    let receiver = ControlReceiver {
        stream: recv,
        who: who.to_owned(),
        length: [0; LENGTH_BYTES],
        length_got: 0,
        body: Vec::new(),
        message: PhantomData,
    };
    (sender, receiver)
}
