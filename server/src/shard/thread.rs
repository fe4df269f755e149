//! One OS thread per shard, fed by a bounded queue.
//!
//! The thread waits for a message, hands it to the [`Shard`], and sends what comes out. A released
//! pull is encoded at once while its connection has room for encoded frames; otherwise the connection
//! is told and asks again when it has. So encoded parameters never pile up for a slow reader.

use super::Shard;
use crate::core::{Effect, EngineSpec, Record, Token, Verdict};
use slackline_common::ids::{SeatId, ShardId, Step};
use slackline_common::limits::SHARD_QUEUE_MAX;
use slackline_common::wire::control::ShardReport;
use slackline_common::wire::frame::{Refusal, Reply, Request};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// The thread is gone: the process is ending, or it panicked.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0} takes no more requests: its server is ending")]
pub struct Gone(pub ShardId);

/// A reply and, when it holds parameters, the room it takes.
#[derive(Debug)]
pub struct Answered {
    /// What to send.
    pub reply: Reply,
    /// Held until the reply is on its way.
    pub room: Option<OwnedSemaphorePermit>,
}

/// What an order did.
#[derive(Clone, Debug, PartialEq)]
pub struct Ordered {
    /// Whether it was fresh.
    pub verdict: Verdict,
    /// The clock of the seat the order is about.
    pub clock: Option<Step>,
}

enum Answer {
    Ready(Reply, Option<OwnedSemaphorePermit>),
    Released,
}

enum Message {
    Request {
        request: Request,
        token: Token,
        room: Arc<Semaphore>,
        answer: oneshot::Sender<Answer>,
    },
    Read {
        token: Token,
        answer: oneshot::Sender<Answer>,
    },
    Cancel {
        token: Token,
    },
    Order {
        record: Record,
        done: oneshot::Sender<Ordered>,
    },
    Check {
        record: Record,
        done: oneshot::Sender<Verdict>,
    },
    Report {
        done: oneshot::Sender<ShardReport>,
    },
}

/// A way to a shard's thread. When the last one is dropped the thread ends.
#[derive(Clone, Debug)]
pub struct ShardHandle {
    shard: ShardId,
    inbox: mpsc::Sender<Message>,
    tokens: Arc<AtomicU64>,
}

impl ShardHandle {
    /// Starts the thread. It makes the shard itself: allocation takes a while for large models.
    /// Sentences for people go to `events` and are dropped when nobody keeps up; a thread that panics
    /// says so on `panicked`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn spawn(
        spec: EngineSpec,
        events: mpsc::Sender<String>,
        panicked: mpsc::Sender<ShardId>,
    ) -> io::Result<Self> {
        let shard = spec.shard;
        let (inbox, outbox) = mpsc::channel(SHARD_QUEUE_MAX);
        thread::Builder::new().name(format!("shard-{}", shard.0)).spawn(move || {
            let _alarm = Alarm { shard, panicked };
            Driver { shard: Shard::new(spec), waiting: BTreeMap::new(), events }.run(outbox);
        })?;
        Ok(Self { shard, inbox, tokens: Arc::new(AtomicU64::new(0)) })
    }

    /// Sends a request and waits for its answer, however long the clocks take. Encoded parameters
    /// take a permit of `room`. When the future is dropped, a waiting pull is cancelled.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn ask(&self, request: Request, room: &Arc<Semaphore>) -> Result<Answered, Gone> {
        let gone = Gone(self.shard);
        let token = Token(self.tokens.fetch_add(1, Ordering::Relaxed));
        let (answer, answered) = oneshot::channel();
        let message = Message::Request { request, token, room: Arc::clone(room), answer };
        let mut asked = Asked { inbox: &self.inbox, token, is_open: true };
        self.inbox.send(message).await.map_err(|_| gone)?;
        match answered.await.map_err(|_| gone)? {
            Answer::Ready(reply, room) => {
                asked.is_open = false;
                Ok(Answered { reply, room })
            }
            Answer::Released => {
                let permit = Arc::clone(room).acquire_owned().await.map_err(|_| gone)?;
                let (answer, answered) = oneshot::channel();
                self.inbox.send(Message::Read { token, answer }).await.map_err(|_| gone)?;
                asked.is_open = false;
                match answered.await.map_err(|_| gone)? {
                    Answer::Ready(reply, _) => Ok(Answered { reply, room: Some(permit) }),
                    Answer::Released => Err(gone),
                }
            }
        }
    }

    /// Orders a record and waits until it is applied.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn order(&self, record: Record) -> Result<Ordered, Gone> {
        let (done, ordered) = oneshot::channel();
        let gone = |_| Gone(self.shard);
        self.inbox.send(Message::Order { record, done }).await.map_err(|_| Gone(self.shard))?;
        ordered.await.map_err(gone)
    }

    /// What an order would do now; changes nothing.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn check(&self, record: Record) -> Result<Verdict, Gone> {
        let (done, verdict) = oneshot::channel();
        self.inbox.send(Message::Check { record, done }).await.map_err(|_| Gone(self.shard))?;
        verdict.await.map_err(|_| Gone(self.shard))
    }

    /// What the shard says of itself, once it has done what was asked before.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn report(&self) -> Result<ShardReport, Gone> {
        let (done, report) = oneshot::channel();
        self.inbox.send(Message::Report { done }).await.map_err(|_| Gone(self.shard))?;
        report.await.map_err(|_| Gone(self.shard))
    }
}

/// Cancels a pull that nobody waits for any more.
struct Asked<'a> {
    inbox: &'a mpsc::Sender<Message>,
    token: Token,
    is_open: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let (inbox, token) = (self.inbox.clone(), self.token);
        if let Err(mpsc::error::TrySendError::Full(message)) =
            inbox.try_send(Message::Cancel { token })
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            // At most one per open stream. It fails only when the thread is gone.
            runtime.spawn(async move { drop(inbox.send(message).await) });
        }
    }
}

/// Says that a thread panicked: a broken invariant of ours must end the process, not hang it.
struct Alarm {
    shard: ShardId,
    panicked: mpsc::Sender<ShardId>,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            // Room for one is enough: the first ends the process.
            let _ = self.panicked.try_send(self.shard);
        }
    }
}

struct Waiting {
    room: Arc<Semaphore>,
    answer: oneshot::Sender<Answer>,
}

/// The whole impure half of a shard: wait, hand over, send.
struct Driver {
    shard: Shard,
    waiting: BTreeMap<Token, Waiting>,
    events: mpsc::Sender<String>,
}

impl Driver {
    fn run(mut self, mut inbox: mpsc::Receiver<Message>) {
        let mut effects = Vec::new(); // reused: no allocation per message
        while let Some(message) = inbox.blocking_recv() {
            self.handle(message, &mut effects);
            for effect in effects.drain(..) {
                match effect {
                    Effect::Reply { token, reply } => {
                        if let Some(Waiting { answer, .. }) = self.waiting.remove(&token) {
                            // It fails only when nobody waits any more.
                            drop(answer.send(Answer::Ready(reply, None)));
                        }
                    }
                    Effect::Event(line) => {
                        tracing::warn!("{line}");
                        if self.events.try_send(line).is_err() {
                            tracing::debug!("an event is not passed on: too many wait already");
                        }
                    }
                }
            }
            while let Some(token) = self.shard.poll_release() {
                self.release(token);
            }
        }
    }

    fn handle(&mut self, message: Message, effects: &mut Vec<Effect>) {
        match message {
            Message::Request { request, token, room, answer } => {
                self.waiting.insert(token, Waiting { room, answer });
                self.shard.handle_request(request, token, effects);
            }
            Message::Read { token, answer } => {
                let reply = self.shard.read(token).unwrap_or_else(|| {
                    let sentence = "the pull was given up: its seat is live no more".to_owned();
                    Reply::refused(Refusal::StaleIncarnation, sentence)
                });
                drop(answer.send(Answer::Ready(reply, None)));
            }
            Message::Cancel { token } => {
                self.waiting.remove(&token);
                self.shard.cancel(token);
            }
            Message::Order { record, done } => {
                let verdict = self.shard.handle_order(&record, effects);
                let clock = seat_of(&record).and_then(|seat| self.shard.engine().clock(seat));
                drop(done.send(Ordered { verdict, clock }));
            }
            Message::Check { record, done } => {
                drop(done.send(self.shard.engine().check(&record)));
            }
            Message::Report { done } => drop(done.send(self.shard.engine().report())),
        }
    }

    /// Answers a released pull, or tells its connection that it may ask for the answer.
    fn release(&mut self, token: Token) {
        let Some(Waiting { room, answer }) = self.waiting.remove(&token) else {
            return self.shard.cancel(token);
        };
        if answer.is_closed() {
            return self.shard.cancel(token);
        }
        match room.try_acquire_owned() {
            Ok(permit) => {
                if let Some(reply) = self.shard.read(token) {
                    drop(answer.send(Answer::Ready(reply, Some(permit))));
                }
            }
            Err(_) => {
                if answer.send(Answer::Released).is_err() {
                    self.shard.cancel(token);
                }
            }
        }
    }
}

const fn seat_of(record: &Record) -> Option<SeatId> {
    match record {
        Record::Depart { seat, .. }
        | Record::Leave { seat, .. }
        | Record::CommitInit { seat }
        | Record::Stage { seat, .. } => Some(*seat),
        Record::Push(push) => Some(push.seat),
        Record::InitFromSeed
        | Record::Close { .. }
        | Record::Publish { .. }
        | Record::Down { .. } => None,
    }
}
