//! Connections to every server: a stream per request, a bounded number of them on their way, and a
//! lost connection dialled again within the grace, with what it owed sent again.
//!
//! Sending again is safe: a shard knows each part by seat, incarnation, step and part, and
//! acknowledges what it already has.

mod round_trip;

use self::round_trip::{Cut, round_trip};
use crate::core::answer::Answer;
use crate::core::session::{Overdue, Session, Ticket};
use crate::net::dial::{Dial, is_final};
use crate::net::{NetError, Patience};
use quinn::{Connection, ConnectionError, Endpoint};
use slackline_common::ids::{ServerId, ShardId, Step};
use slackline_common::limits::FRAMES_IN_FLIGHT_MAX;
use slackline_common::placement::server_of;
use slackline_common::quic::{self, CloseCode, Windows, describe_close_from};
use slackline_common::wire::control::{DataHello, WorkerReport};
use slackline_common::wire::frame::{ReplyKind, Request, RequestKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::Instant;

/// How often the book is searched for servers that owe something.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// Pushes go in the order they were made.
const PUSH_PRIORITY: i32 = 0;

/// Connections to all servers of a job. Clones share them.
#[derive(Clone, Debug)]
pub struct Servers {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    hello: DataHello,
    patience: Patience,
    links: Vec<Link>,
    book: Mutex<Book>,
    /// Rings when a frame was answered or given up.
    answered: Notify,
    closing: watch::Sender<bool>,
    began: Instant,
}

#[derive(Debug)]
struct Book {
    session: Session,
    /// The first failure of a frame that nobody waits for by name.
    failure: Option<NetError>,
    pushing: Pushing,
}

/// The time in which pushes were on their way, and what they carried.
#[derive(Debug, Default)]
struct Pushing {
    since: Option<Duration>,
    time: Duration,
    bytes: u64,
}

#[derive(Debug)]
struct Link {
    id: ServerId,
    address: String,
    permits: Arc<Semaphore>,
    line: Mutex<Line>,
    /// Held by whoever dials again.
    redial: tokio::sync::Mutex<()>,
    /// What replies need of the receive window.
    windows: Mutex<Windows>,
}

/// The connection that is in use.
#[derive(Clone, Debug)]
struct Line {
    connection: Connection,
    /// How many connections there were before it.
    generation: u64,
    /// UDP bytes of those.
    earlier: (u64, u64),
    /// Why it will never come back.
    dead: Option<NetError>,
}

/// Requests whose replies are waited for by name.
#[derive(Debug)]
pub struct Pull {
    replies: mpsc::Receiver<(usize, Result<Answer, NetError>)>,
}

impl Pull {
    /// The next reply, in the order of arrival, with the position of its request; `None` after the
    /// last. Dropping the pull gives up what is still missing.
    pub async fn next(&mut self) -> Option<(usize, Result<Answer, NetError>)> {
        self.replies.recv().await
    }

    /// The next reply if it has come already.
    pub fn try_next(&mut self) -> Option<(usize, Result<Answer, NetError>)> {
        self.replies.try_recv().ok()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Guarded values are replaced whole or are counters: no panic leaves them half written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Servers {
    /// Connects to every server, each within the patience for servers.
    ///
    /// # Errors
    /// [`NetError::TurnedAway`] when a server finds another layout, job, term or incarnation;
    /// [`NetError::Missing`]; other refusals of [`NetError::Quic`].
    pub async fn connect(
        endpoint: &Endpoint,
        addresses: &[String],
        hello: DataHello,
        patience: Patience,
    ) -> Result<Self, NetError> {
        let mut links = Vec::with_capacity(addresses.len());
        let (closing, closed) = watch::channel(false);
        for (id, address) in (0u16..).map(ServerId).zip(addresses) {
            let dial = Dial { endpoint, id, address, hello: &hello, patience };
            let connection = dial.until(closed.clone(), "first connection").await?;
            let line = Line { connection, generation: 0, earlier: (0, 0), dead: None };
            links.push(Link {
                id,
                address: address.clone(),
                permits: Arc::new(Semaphore::new(FRAMES_IN_FLIGHT_MAX)),
                line: Mutex::new(line),
                redial: tokio::sync::Mutex::new(()),
                windows: Mutex::default(),
            });
        }
        let inner = Arc::new(Inner {
            endpoint: endpoint.clone(),
            hello,
            patience,
            book: Mutex::new(Book {
                session: Session::new(links.len()),
                failure: None,
                pushing: Pushing::default(),
            }),
            links,
            answered: Notify::new(),
            closing,
            began: Instant::now(),
        });
        tokio::spawn(report_overdue(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    /// Sends a push, first values or a leave: waits for a permit, not for the answer. What goes
    /// wrong later is told by [`Servers::flush`] and [`Servers::check`].
    ///
    /// # Errors
    /// [`NetError::Closed`].
    pub async fn send(&self, request: Request) -> Result<(), NetError> {
        let index = self.index(&request);
        let permits = Arc::clone(&self.inner.links[index].permits);
        let permit = permits.acquire_owned().await.map_err(|_| NetError::Closed)?;
        let ticket = self.inner.enter(&request, 0);
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move {
            let answer = inner.exchange(index, &request, PUSH_PRIORITY).await;
            drop(permit);
            inner.settle(index, ticket, answer);
        });
        Ok(())
    }

    /// Sends pulls, each with the most bytes its reply can have; their replies come from
    /// [`Pull::next`]. They are tiny and what comes back is waited for, so they overtake pushes, and
    /// the first of them the others.
    pub fn pull(&self, requests: Vec<(Request, usize)>) -> Pull {
        let count = requests.len();
        let (sender, replies) = mpsc::channel(FRAMES_IN_FLIGHT_MAX);
        for (position, (request, reply_bytes)) in requests.into_iter().enumerate() {
            let (inner, sender) = (Arc::clone(&self.inner), sender.clone());
            let index = self.index(&request);
            let ticket = inner.enter(&request, reply_bytes);
            tokio::spawn(async move {
                let priority = i32::try_from(count - position).unwrap_or(i32::MAX);
                let asked = inner.ask(index, &request, priority);
                let answer = tokio::select! {
                    biased;
                    () = sender.closed() => None,
                    answer = asked => Some(answer),
                };
                match &answer {
                    Some(Ok(reply)) => lock(&inner.book).session.handle_reply(ticket, &reply.head),
                    _ => lock(&inner.book).session.handle_given_up(ticket),
                }
                if let Some(answer) = answer {
                    // It fails only when nobody waits any more.
                    drop(sender.send((position, answer)).await);
                }
            });
        }
        Pull { replies }
    }

    /// Waits until every frame of [`Servers::send`] is answered.
    ///
    /// # Errors
    /// The first failure among them; the others are then answered or given up all the same.
    pub async fn flush(&self) -> Result<(), NetError> {
        loop {
            let answered = self.inner.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            if lock(&self.inner.book).session.unacknowledged() == 0 {
                return self.check();
            }
            answered.await;
        }
    }

    /// Whether every frame of [`Servers::send`] that is answered was answered well. Tells a failure
    /// once.
    ///
    /// # Errors
    /// The first failure since the last call.
    pub fn check(&self) -> Result<(), NetError> {
        lock(&self.inner.book).failure.take().map_or(Ok(()), Err)
    }

    /// Bytes pushed since the last call, and the time in which some were not acknowledged yet.
    pub fn take_pushed(&self) -> (u64, Duration) {
        let now = self.inner.began.elapsed();
        let mut book = lock(&self.inner.book);
        let under_way = book.pushing.since.map_or(Duration::ZERO, |since| now - since);
        let since = book.pushing.since.map(|_| now);
        let Pushing { time, bytes, .. } =
            std::mem::replace(&mut book.pushing, Pushing { since, ..Pushing::default() });
        (bytes, time + under_way)
    }

    /// The longest round trip among the connections.
    pub fn round_trip(&self) -> Duration {
        let links = self.inner.links.iter();
        links.map(|link| lock(&link.line).connection.rtt()).max().unwrap_or_default()
    }

    /// The slowest live seat's clock on a shard, as far as is known.
    pub fn slowest(&self, shard: ShardId) -> Step {
        lock(&self.inner.book).session.slowest(shard)
    }

    fn index(&self, request: &Request) -> usize {
        let servers = u16::try_from(self.inner.links.len()).expect("at most SERVERS_MAX");
        server_of(request.shard, servers).index()
    }

    /// Role, number and address of a server.
    pub fn name(&self, server: ServerId) -> String {
        self.inner.links[server.index()].name()
    }

    /// Everything that is owed, for a line about a wait that took too long.
    pub fn owed(&self) -> String {
        let now = self.inner.began.elapsed();
        let book = lock(&self.inner.book);
        let lines: Vec<String> = self
            .inner
            .links
            .iter()
            .filter_map(|link| {
                let overdue = book.session.outstanding(link.id, now)?;
                Some(format!("{}: {overdue}", link.name()))
            })
            .collect();
        if lines.is_empty() { "nothing is outstanding".to_owned() } else { lines.join("; ") }
    }

    /// Adds the bytes of all connections to a report.
    pub fn fill_report(&self, report: &mut WorkerReport) {
        for link in &self.inner.links {
            let line = lock(&link.line).clone();
            let (up, down) = line.bytes();
            report.wire_bytes_up += up;
            report.wire_bytes_down += down;
        }
        let book = lock(&self.inner.book);
        let totals = book.session.totals();
        report.payload_bytes_up = totals.payload_bytes_up;
        report.payload_bytes_down = totals.payload_bytes_down;
        report.staleness = totals.staleness;
        report.bytes_outstanding = book.session.bytes_outstanding();
    }

    /// Ends every wait with [`NetError::Closed`] and closes the connections.
    pub fn close(&self, code: CloseCode, why: &str) {
        self.inner.closing.send_replace(true);
        for link in &self.inner.links {
            link.permits.close();
            quic::close(&lock(&link.line).connection, code, why);
        }
    }
}

impl Line {
    fn bytes(&self) -> (u64, u64) {
        let stats = self.connection.stats();
        (self.earlier.0 + stats.udp_tx.bytes, self.earlier.1 + stats.udp_rx.bytes)
    }
}

impl Link {
    fn name(&self) -> String {
        format!("{} at {}", self.id, self.address)
    }
}

impl Inner {
    fn enter(&self, request: &Request, reply_bytes: usize) -> Ticket {
        let now = self.began.elapsed();
        let servers = u16::try_from(self.links.len()).expect("at most SERVERS_MAX");
        let server = server_of(request.shard, servers);
        let mut book = lock(&self.book);
        if request.kind == RequestKind::Push {
            book.pushing.since.get_or_insert(now);
            book.pushing.bytes += request.body.len() as u64;
        }
        book.session.handle_sent(server, request, reply_bytes, now)
    }

    /// Books the answer to a frame that nobody waits for by name.
    fn settle(&self, index: usize, ticket: Ticket, answer: Result<Answer, NetError>) {
        let mut book = lock(&self.book);
        let failure = match answer {
            Ok(reply) => {
                book.session.handle_reply(ticket, &reply.head);
                (reply.head.kind != ReplyKind::Ack).then(|| NetError::Unexpected {
                    who: self.links[index].name(),
                    what: "answered a push with parameters".to_owned(),
                })
            }
            Err(error) => {
                book.session.handle_given_up(ticket);
                Some(error)
            }
        };
        if book.session.unacknowledged() == 0
            && let Some(since) = book.pushing.since.take()
        {
            book.pushing.time += self.began.elapsed().saturating_sub(since);
        }
        if book.failure.is_none() {
            book.failure = failure;
        }
        drop(book);
        self.answered.notify_waiters();
    }

    /// A permit, then [`Inner::exchange`].
    async fn ask(
        &self,
        index: usize,
        request: &Request,
        priority: i32,
    ) -> Result<Answer, NetError> {
        let permit = self.links[index].permits.acquire().await.map_err(|_| NetError::Closed)?;
        let answer = self.exchange(index, request, priority).await;
        drop(permit);
        answer
    }

    /// Sends a request until it is answered, over as many connections as that takes.
    async fn exchange(
        &self,
        index: usize,
        request: &Request,
        priority: i32,
    ) -> Result<Answer, NetError> {
        let link = &self.links[index];
        loop {
            let Line { connection, generation, dead, .. } = lock(&link.line).clone();
            if let Some(dead) = dead {
                return Err(dead);
            }
            match round_trip(&connection, request, priority, link).await {
                Ok(reply) if reply.head.kind == ReplyKind::Refused => {
                    let (who, refusal) = (link.name(), reply.head.refusal);
                    return Err(NetError::Refused { who, refusal, sentence: reply.sentence() });
                }
                Ok(reply) => return Ok(reply),
                Err(Cut::Wrong(error)) => return Err(error),
                Err(Cut::Lost(error)) => self.revive(link, generation, &error).await?,
            }
        }
    }

    /// Returns when the link has a newer connection than `generation`.
    async fn revive(
        &self,
        link: &Link,
        generation: u64,
        lost: &ConnectionError,
    ) -> Result<(), NetError> {
        let _dialling = link.redial.lock().await;
        if *self.closing.borrow() {
            return Err(NetError::Closed);
        }
        let before = lock(&link.line).clone();
        if let Some(dead) = before.dead {
            return Err(dead);
        }
        if before.generation != generation {
            return Ok(());
        }
        let error = describe_close_from(&link.name(), lost);
        tracing::warn!(
            "{error}; {}; trying again for {:.0} s",
            self.owed(link.id),
            self.patience.server.as_secs_f64()
        );
        let dial = Dial {
            endpoint: &self.endpoint,
            id: link.id,
            address: &link.address,
            hello: &self.hello,
            patience: self.patience,
        };
        let outcome = match is_final(&error) {
            true => Err(error.into()),
            false => dial.until(self.closing.subscribe(), &self.owed(link.id)).await,
        };
        let mut line = lock(&link.line);
        match outcome {
            Ok(connection) => {
                tracing::info!("{} is back", link.name());
                let earlier = line.bytes();
                *line = Line { connection, generation: generation + 1, earlier, dead: None };
                Ok(())
            }
            Err(error) => {
                line.dead = Some(error.clone());
                Err(error)
            }
        }
    }

    fn owed(&self, server: ServerId) -> String {
        let owed = lock(&self.book).session.outstanding(server, self.began.elapsed());
        owed.map_or_else(|| "nothing outstanding".to_owned(), |overdue| overdue.to_string())
    }

    fn report(&self, overdue: &Overdue) {
        let link = &self.links[overdue.server.index()];
        let reason = match (lock(&link.line).connection.close_reason(), overdue.kind) {
            (Some(error), _) => describe_close_from("it", &error).to_string(),
            (None, RequestKind::Pull | RequestKind::PullDeltas) => {
                "its connection is alive: slower seats hold the step back, see `slackline status`"
                    .to_owned()
            }
            (None, _) => "its connection is alive".to_owned(),
        };
        tracing::warn!("{}: {overdue} ({reason})", link.name());
    }
}

/// Says who owes an answer, as long as there is anybody to say it for.
async fn report_overdue(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        if *inner.closing.borrow() {
            return;
        }
        let now = inner.began.elapsed();
        loop {
            let overdue = lock(&inner.book).session.poll_overdue(now, inner.patience.report);
            let Some(overdue) = overdue else { break };
            inner.report(&overdue);
        }
    }
}
