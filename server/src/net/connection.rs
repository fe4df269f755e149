//! A worker's connection: greeting, then a stream for every request.

use crate::net::home::{Guest, Home};
use crate::net::stream::{self, Caller, StreamError};
use quinn::{Connection, Endpoint, Incoming};
use slackline_common::ids::{Incarnation, SeatId};
use slackline_common::limits::{
    FRAMES_IN_FLIGHT_MAX, HELLO_SECONDS_MAX, REPLIES_ENCODED_PER_CONNECTION_MAX,
};
use slackline_common::quic::{
    self, CloseCode, ControlSender, Windows, accept_hello, close, describe_close_from, handshake,
};
use slackline_common::wire::control::{DataHello, DataWelcome};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, timeout};

const HELLO_DEADLINE: Duration = Duration::from_secs(HELLO_SECONDS_MAX);
/// How long the connection that speaks for a seat has to show that it lives, when another comes.
const PROOF_OF_LIFE: Duration = Duration::from_secs(1);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a refusal may take to reach the worker.
const FAREWELL: Duration = Duration::from_secs(1);

impl Caller {
    /// The room of one connection.
    pub(super) fn new(seat: Option<(SeatId, Incarnation)>) -> Self {
        Self {
            seat,
            frames: Arc::new(Semaphore::new(FRAMES_IN_FLIGHT_MAX)),
            replies: Arc::new(Semaphore::new(REPLIES_ENCODED_PER_CONNECTION_MAX)),
        }
    }
}

/// Takes in workers until the endpoint is closed. Every connection has a task of its own, so none
/// can hold up another.
pub async fn accept_workers(home: Arc<Home>, endpoint: Endpoint) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            incoming = quic::accept(&endpoint) => match incoming {
                Some(incoming) => drop(connections.spawn(worker(Arc::clone(&home), incoming))),
                None => return,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn worker(home: Arc<Home>, incoming: Incoming) {
    let connection = match handshake(incoming, HELLO_DEADLINE).await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!("{error}"),
    };
    let peer = quic::peer_address(&connection);
    let greeting = accept_hello::<DataWelcome, DataHello>(&connection, HELLO_DEADLINE).await;
    let (mut sender, _receiver, hello) = match greeting {
        Ok(greeting) => greeting,
        Err(error) => return tracing::info!("{error}"),
    };
    let name = format!("worker {:?} at {peer}", hello.hello.name);
    let guest = match admit(&home, &hello, &connection).await {
        Ok(guest) => guest,
        Err((code, sentence)) => {
            tracing::info!("{name} is refused: {sentence}");
            return refuse(&connection, &mut sender, code, &sentence).await;
        }
    };
    if let Err(error) = sender.send(&DataWelcome::Accepted).await {
        return tracing::info!("{name}: {error}");
    }
    tracing::info!("{name} speaks for {}", guest.seat);
    let caller = Caller::new(Some((guest.seat, guest.incarnation)));
    match streams(&home, &connection, &caller).await {
        Some(error) => {
            tracing::debug!("{name} is cut: {error}");
        }
        None => {
            if let Some(reason) = connection.close_reason() {
                tracing::info!("{} is gone: {}", guest.seat, describe_close_from(&name, &reason));
            }
        }
    }
}

/// Serves a connection's streams until it ends (`None`) or the peer breaks a rule, for which it is
/// closed.
pub(super) async fn streams(
    home: &Arc<Home>,
    connection: &Connection,
    caller: &Caller,
) -> Option<StreamError> {
    // Dropped with this function: what still waits for an answer is cancelled.
    let mut tasks = JoinSet::new();
    let mut windows = Windows::default();
    loop {
        tokio::select! {
            stream = connection.accept_bi() => {
                let (mut send, recv) = stream.ok()?;
                windows.follow(connection);
                let (home, caller) = (Arc::clone(home), caller.clone());
                tasks.spawn(async move {
                    let served = stream::serve(&home, &caller, &mut send, recv).await;
                    served.map_err(|error| (error, send))
                });
            }
            Some(ended) = tasks.join_next() => {
                if let Ok(Err((error, unanswered))) = ended {
                    // Closed before the stream goes, whose end would look like an empty reply.
                    close(connection, error.close_code(), &error.to_string());
                    drop(unanswered);
                    return Some(error);
                }
            }
        }
    }
}

/// Lets a worker in. Where another connection speaks for the same life of the seat, the newer one is
/// refused, unless the older shows no sign of life: then it is a worker that came back before we
/// noticed that it was gone.
async fn admit(
    home: &Arc<Home>,
    hello: &DataHello,
    connection: &Connection,
) -> Result<Guest, (CloseCode, String)> {
    home.check(hello)?;
    if let Some(older) = home.guest(hello.seat) {
        if is_alive(&older).await {
            let sentence = format!(
                "{} in {} speaks over another connection already",
                hello.seat, hello.incarnation
            );
            return Err((CloseCode::Fenced, sentence));
        }
        close(&older, CloseCode::StuckPeer, "the worker came back over another connection");
        home.check(hello)?;
    }
    Ok(home.enter(hello, connection))
}

/// Whether anything comes from the peer after something was sent that it must acknowledge.
async fn is_alive(connection: &Connection) -> bool {
    let deadline = Instant::now() + PROOF_OF_LIFE;
    let before = connection.stats().udp_rx.datagrams;
    // An empty stream of a kind that the protocol has no use for: peers acknowledge it and drop it.
    match timeout(PROOF_OF_LIFE, connection.open_uni()).await {
        Ok(Ok(mut probe)) => drop(probe.finish()),
        // Lost, or earlier looks have used up every such stream: whoever lives has dropped them.
        Ok(Err(_)) | Err(_) => return false,
    }
    let mut looks = interval(LOOK_EVERY);
    while Instant::now() < deadline {
        looks.tick().await;
        if connection.close_reason().is_some() {
            return false;
        }
        if connection.stats().udp_rx.datagrams > before {
            return true;
        }
    }
    false
}

async fn refuse(
    connection: &Connection,
    sender: &mut ControlSender<DataWelcome>,
    code: CloseCode,
    sentence: &str,
) {
    let told = sender.send(&DataWelcome::Refused(sentence.to_owned())).await.is_ok()
        && sender.deliver(FAREWELL).await.is_ok();
    if !told {
        tracing::debug!("the refusal did not reach the worker");
    }
    close(connection, code, sentence);
}
