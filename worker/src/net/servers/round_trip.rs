//! One attempt at a request: a stream, the request, the reply.

use super::{Link, lock};
use crate::core::answer::{Answer, AnswerDecoder};
use crate::net::NetError;
use quinn::{Connection, ConnectionError, ReadError, WriteError};
use slackline_common::wire::frame::Request;
use std::time::Duration;
use tokio::time::timeout;

/// How long a connection may take to close after its streams have ended.
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);

/// How one attempt at a request ended without an answer.
pub(super) enum Cut {
    /// The connection is gone: dial and send again.
    Lost(ConnectionError),
    /// The peer is at fault; again would be the same.
    Wrong(NetError),
}

/// One request and its reply over one connection.
pub(super) async fn round_trip(
    connection: &Connection,
    request: &Request,
    priority: i32,
    link: &Link,
) -> Result<Answer, Cut> {
    let (mut send, mut recv) = connection.open_bi().await.map_err(Cut::Lost)?;
    // It fails only for a stream that is closed already, which the write reports.
    drop(send.set_priority(priority));
    let mut pieces = [request.encode_head().into(), request.body.clone()];
    match send.write_all_chunks(&mut pieces).await {
        Ok(()) => drop(send.finish()),
        // A refusal may come before the body has been taken.
        Err(WriteError::Stopped(_)) => {}
        Err(WriteError::ConnectionLost(error)) => return Err(Cut::Lost(error)),
        Err(WriteError::ClosedStream | WriteError::ZeroRttRejected) => {
            return Err(unexpected(link, "closed a request's stream"));
        }
    }
    let mut decoder = AnswerDecoder::default();
    let broken = |why| Cut::Wrong(NetError::Frame { who: link.name(), why });
    loop {
        match recv.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) => decoder.handle_chunk(chunk.bytes).map_err(broken)?,
            Ok(None) => match decoder.finish() {
                Ok(reply) => {
                    lock(&link.windows).follow(connection);
                    return Ok(reply);
                }
                // A server that closes the connection ends its streams first: its reason says more.
                Err(why) => {
                    let closed = timeout(CLOSE_PATIENCE, connection.closed()).await;
                    return Err(closed.map_or_else(|_| broken(why), Cut::Lost));
                }
            },
            Err(ReadError::ConnectionLost(error)) => return Err(Cut::Lost(error)),
            Err(ReadError::Reset(code)) => {
                return Err(unexpected(link, &format!("gave up a reply (code {code})")));
            }
            Err(
                ReadError::ClosedStream
                | ReadError::IllegalOrderedRead
                | ReadError::ZeroRttRejected,
            ) => return Err(unexpected(link, "closed a reply's stream")),
        }
    }
}

fn unexpected(link: &Link, what: &str) -> Cut {
    Cut::Wrong(NetError::Unexpected { who: link.name(), what: what.to_owned() })
}
