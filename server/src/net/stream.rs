//! One request, one reply, one stream.

use crate::net::home::Home;
use crate::shard::Answered;
use bytes::Bytes;
use quinn::{ReadError, RecvStream, SendStream, VarInt, WriteError};
use slackline_common::ids::{Incarnation, SeatId};
use slackline_common::limits::FRAME_SECONDS_MAX;
use slackline_common::quic::CloseCode;
use slackline_common::wire::control::NO_SEAT;
use slackline_common::wire::frame::{Decoder, FrameError, Refusal, Reply, Request, RequestKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Who asks over a connection, and the room it has.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The seat it speaks for; absent for the coordinator, which may only pull without a seat.
    pub seat: Option<(SeatId, Incarnation)>,
    /// Frames being read and pushes being applied.
    pub frames: Arc<Semaphore>,
    /// Encoded parameters on their way out.
    pub replies: Arc<Semaphore>,
}

/// What ends a whole connection. The peer's doing, always.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StreamError {
    /// Bytes that are no frame.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// A frame that did not come, or a reply that was not taken, in time.
    #[error("{what} took longer than {FRAME_SECONDS_MAX} s")]
    Stuck {
        /// What.
        what: &'static str,
    },
}

impl StreamError {
    /// The code the connection is closed with.
    pub const fn close_code(&self) -> CloseCode {
        match self {
            Self::Frame(_) => CloseCode::ProtocolViolation,
            Self::Stuck { .. } => CloseCode::StuckPeer,
        }
    }
}

const DEADLINE: Duration = Duration::from_secs(FRAME_SECONDS_MAX);

/// Reads a request, has it answered and writes the reply. A stream that the peer gives up ends
/// quietly, and with it a pull that waits.
///
/// # Errors
/// What must end the connection. `send` is still open then: its end would look like an empty reply,
/// so the connection is closed before it goes.
pub async fn serve(
    home: &Home,
    caller: &Caller,
    send: &mut SendStream,
    mut recv: RecvStream,
) -> Result<(), StreamError> {
    let Ok(permit) = Arc::clone(&caller.frames).acquire_owned().await else { return Ok(()) };
    let Some(request) = timeout(DEADLINE, read(home, &mut recv))
        .await
        .map_err(|_| StreamError::Stuck { what: "a request" })??
    else {
        return Ok(());
    };
    // A pull may wait long for slower seats: it must not take the place of a push.
    let _permit = (!request.kind.is_pull()).then_some(permit);
    let (reply, _room) = match check(caller, &request) {
        Err((refusal, sentence)) => (Reply::refused(refusal, sentence), None),
        Ok(()) => {
            let answered = tokio::select! {
                answered = ask(home, caller, request) => answered,
                _ = send.stopped() => return Ok(()),
            };
            match answered {
                Ok(Answered { reply, room }) => (reply, room),
                Err((refusal, sentence)) => (Reply::refused(refusal, sentence), None),
            }
        }
    };
    let mut pieces = [Bytes::from(reply.encode_head()), reply.body];
    match timeout(DEADLINE, send.write_all_chunks(&mut pieces)).await {
        Err(_) => Err(StreamError::Stuck { what: "taking a reply" }),
        Ok(Ok(())) => {
            // It fails only for a stream that the peer stopped.
            drop(send.finish());
            Ok(())
        }
        Ok(Err(
            WriteError::Stopped(_)
            | WriteError::ConnectionLost(_)
            | WriteError::ClosedStream
            | WriteError::ZeroRttRejected,
        )) => Ok(()),
    }
}

/// The request, or `None` when the peer gave the stream up.
async fn read(home: &Home, recv: &mut RecvStream) -> Result<Option<Request>, StreamError> {
    let mut decoder = Decoder::<Request>::new(&home.buffers);
    loop {
        match recv.read_chunk(usize::MAX, true).await {
            Ok(Some(chunk)) => {
                if let Err(error) = decoder.handle_bytes(&chunk.bytes) {
                    // It fails only for a stream that has ended.
                    drop(recv.stop(VarInt::from_u32(0)));
                    return Err(error.into());
                }
            }
            Ok(None) => return Ok(Some(decoder.finish()?)),
            Err(
                ReadError::Reset(_)
                | ReadError::ConnectionLost(_)
                | ReadError::ClosedStream
                | ReadError::IllegalOrderedRead
                | ReadError::ZeroRttRejected,
            ) => return Ok(None),
        }
    }
}

/// A connection speaks for its own seat, and anybody may pull without one.
fn check(caller: &Caller, request: &Request) -> Result<(), (Refusal, String)> {
    if request.seat == NO_SEAT && request.kind == RequestKind::Pull {
        return Ok(());
    }
    match caller.seat {
        Some(own) if own == (request.seat, request.incarnation) => Ok(()),
        Some((seat, incarnation)) => Err((
            Refusal::StaleIncarnation,
            format!(
                "this connection speaks for {seat} in {incarnation}, its frame for {} in {}",
                request.seat, request.incarnation
            ),
        )),
        None => Err((
            Refusal::StaleIncarnation,
            "this connection speaks for no seat: it may only pull".to_owned(),
        )),
    }
}

async fn ask(
    home: &Home,
    caller: &Caller,
    request: Request,
) -> Result<Answered, (Refusal, String)> {
    let shard = request.shard;
    let Some(handle) = home.directory.with(shard, Clone::clone) else {
        return Err(if home.has_job() {
            (Refusal::WrongShard, format!("{shard} is not on this server"))
        } else {
            (Refusal::ShuttingDown, "this server has no job any more".to_owned())
        });
    };
    handle
        .ask(request, &caller.replies)
        .await
        .map_err(|gone| (Refusal::ShuttingDown, gone.to_string()))
}
