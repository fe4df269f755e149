//! The line to the coordinator: hello, signs of life both ways, orders, reports, and the pulls with
//! which the coordinator fetches the model.
//!
//! Orders that wait for shards run beside the line, one after the other, so that signs of life never
//! wait for arithmetic. While the coordinator is silent, pushes and pulls go on; when it stays silent
//! for the grace, the server ends and says who was missing.

use crate::error::ServerError;
use crate::net::connection::streams;
use crate::net::home::{Home, Voices};
use crate::net::stream::Caller;
use quinn::{Connection, Endpoint};
use slackline_common::blame::Blame;
use slackline_common::ids::SeatId;
use slackline_common::limits::{CONTROL_QUEUE_MAX, HELLO_SECONDS_MAX, heartbeat_interval};
use slackline_common::quic::{self, CloseCode, ControlReceiver, ControlSender, QuicError, close};
use slackline_common::role::Role;
use slackline_common::wire::control::{FromServer, Hello, Phase, ServerReport, ToServer, Welcome};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// First and longest pause between two attempts to reach the coordinator.
const REDIAL_PAUSE: Duration = Duration::from_millis(250);
const REDIAL_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long one attempt may take.
const DIAL: Duration = Duration::from_secs(5);
/// How often the wait for an absent coordinator is told.
const TELL_EVERY: Duration = Duration::from_secs(4);
/// How long the last words may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// What an end of the line without words means.
const LINE_ENDED: &str =
    "it ended the line: its job is over, or this server was silent for too long";
/// A shorter lease would be kept by signs of life alone.
const LEASE_MIN: Duration = Duration::from_millis(40);

/// What the server is, for the line.
#[derive(Debug)]
pub struct Identity {
    /// `host:port` of the coordinator.
    pub coordinator: String,
    /// What people call this server.
    pub hello: Hello,
    /// Where workers reach it.
    pub advertise: String,
    /// Shards it will run.
    pub shards: u16,
    /// How long it goes on without its coordinator.
    pub grace: Duration,
}

/// Why talking ended, apart from errors.
#[derive(Debug, Eq, PartialEq)]
enum End {
    /// The job is over and nothing follows.
    Finished,
    /// The line was lost before a job: dial again.
    Again,
}

/// Talks to the coordinator until it sends the server home, `shutdown` says so, or it is lost.
///
/// # Errors
/// Everything in [`ServerError`] but certificates.
pub async fn talk(
    home: &Arc<Home>,
    mut voices: Voices,
    endpoint: &Endpoint,
    identity: &Identity,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let dialled = tokio::select! {
            dialled = dial(endpoint, identity) => dialled?,
            () = &mut shutdown => return Ok(()),
        };
        let (connection, sender, receiver, welcome) = dialled;
        tracing::info!(
            "coordinator {} takes this server as {} (run {})",
            identity.coordinator,
            identity.advertise,
            welcome.run_id
        );
        let line = Line {
            home: Arc::clone(home),
            identity,
            connection,
            sender,
            lease: Duration::from_millis(welcome.lease_millis).max(LEASE_MIN),
            heard: Instant::now(),
            told: false,
            lost: None,
            phase: Phase::Waiting,
            report: ServerReport::default(),
            gathering: false,
        };
        match line.run(receiver, &mut voices, shutdown.as_mut()).await? {
            End::Finished => return Ok(()),
            End::Again => {}
        }
    }
}

type Dialled = (Connection, ControlSender<FromServer>, ControlReceiver<ToServer>, Welcome);

/// Connects and is welcomed; tries again for as long as the grace lasts, for the coordinator may
/// start later than we.
async fn dial(endpoint: &Endpoint, identity: &Identity) -> Result<Dialled, ServerError> {
    let Identity { coordinator: address, grace, .. } = identity;
    let began = Instant::now();
    let mut pause = REDIAL_PAUSE;
    let mut told = began;
    loop {
        let last = match dial_once(endpoint, identity).await {
            Err(ServerError::Quic(error)) if error.blame() == Blame::Network => error.to_string(),
            outcome => return outcome,
        };
        let waited = began.elapsed();
        if waited >= *grace {
            let (address, waited) = (address.clone(), waited.as_secs_f64());
            return Err(ServerError::CoordinatorUnreachable { address, waited, last });
        }
        if told == began || told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            tracing::warn!(
                "coordinator {address}: nobody answers (waited {:.0} s of {:.0} s)",
                waited.as_secs_f64(),
                grace.as_secs_f64()
            );
            tracing::debug!("{last}");
        }
        sleep(pause.min(grace.saturating_sub(waited))).await;
        pause = (pause * 2).min(REDIAL_PAUSE_MAX);
    }
}

async fn dial_once(endpoint: &Endpoint, identity: &Identity) -> Result<Dialled, ServerError> {
    let address = identity.coordinator.as_str();
    let deadline = DIAL.min(identity.grace.max(Duration::from_millis(100)));
    let connection = quic::connect(endpoint, address, Role::Coordinator, deadline).await?;
    let (mut sender, mut receiver) = quic::open_control(&connection).await?;
    let hello = FromServer::Hello {
        hello: identity.hello.clone(),
        advertise: identity.advertise.clone(),
        shards: identity.shards,
    };
    sender.send(&hello).await?;
    let deadline = Duration::from_secs(HELLO_SECONDS_MAX);
    match receiver.recv_within(deadline, "welcome").await? {
        Some(ToServer::Welcome(welcome)) => Ok((connection, sender, receiver, welcome)),
        Some(ToServer::Refused(sentence)) => {
            Err(ServerError::Refused { address: address.to_owned(), sentence })
        }
        Some(_) | None => Err(ServerError::Unexpected {
            address: address.to_owned(),
            what: "did not answer the hello with a welcome".to_owned(),
        }),
    }
}

/// What runs beside the line.
type Task = Pin<Box<dyn Future<Output = Result<FromServer, ServerError>> + Send>>;

/// The line while it stands, and after it broke until the grace is over.
struct Line<'a> {
    home: Arc<Home>,
    identity: &'a Identity,
    connection: Connection,
    sender: ControlSender<FromServer>,
    lease: Duration,
    heard: Instant,
    /// Whether the silence was told.
    told: bool,
    /// Why the connection is gone.
    lost: Option<String>,
    phase: Phase,
    report: ServerReport,
    /// Whether figures are on their way from the shards.
    gathering: bool,
}

/// What an order asks the line to do next.
enum Next {
    Go,
    End(End),
}

impl Line<'_> {
    async fn run(
        mut self,
        mut receiver: ControlReceiver<ToServer>,
        voices: &mut Voices,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<End, ServerError> {
        let (orders, results) = mpsc::channel(CONTROL_QUEUE_MAX);
        let (home, connection) = (Arc::clone(&self.home), self.connection.clone());
        // Both end with this function.
        let mut beside = tokio::task::JoinSet::new();
        let (results_in, mut done) = mpsc::channel(CONTROL_QUEUE_MAX);
        beside.spawn(async move {
            // The coordinator pulls over streams of its own. What it breaks ends the connection.
            if let Some(error) = streams(&home, &connection, &Caller::new(None)).await {
                tracing::debug!("the coordinator is cut: {error}");
            }
        });
        beside.spawn(work(results, results_in));
        let mut tick = interval(heartbeat_interval(self.lease));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = receiver.recv(), if self.lost.is_none() => match message {
                    Ok(Some(message)) => {
                        self.hear();
                        match self.handle(message, &orders)? {
                            Next::Go => {}
                            Next::End(end) => return Ok(end),
                        }
                    }
                    Ok(None) => {
                        if let Some(end) = self.lose(None)? { return Ok(end) }
                    }
                    Err(error) => {
                        if let Some(end) = self.lose(Some(error))? { return Ok(end) }
                    }
                },
                Some(result) = done.recv() => {
                    let message = match result {
                        Ok(message) => message,
                        Err(error) => return Err(self.fail(error).await),
                    };
                    self.gathering &= !matches!(message, FromServer::Heartbeat(_));
                    self.say(&message).await?;
                }
                Some(event) = voices.events.recv() => self.say(&FromServer::Event(event)).await?,
                Some(shard) = voices.panicked.recv() => {
                    return Err(self.fail(ServerError::ShardPanicked { shard }).await);
                }
                _ = tick.tick() => {
                    self.watch()?;
                    self.beat(&orders).await?;
                }
                () = &mut shutdown => {
                    tracing::info!("stopping: a signal came");
                    self.farewell("server stopped by signal").await;
                    return Ok(End::Finished);
                }
            }
        }
    }

    /// A sign of life came.
    fn hear(&mut self) {
        if std::mem::take(&mut self.told) {
            let seconds = self.heard.elapsed().as_secs_f64();
            tracing::info!(
                "coordinator {} is back after {seconds:.1} s",
                self.identity.coordinator
            );
        }
        self.heard = Instant::now();
    }

    fn handle(
        &mut self,
        message: ToServer,
        orders: &mpsc::Sender<Task>,
    ) -> Result<Next, ServerError> {
        let home = Arc::clone(&self.home);
        let address = self.identity.coordinator.clone();
        let task: Task = match message {
            ToServer::Pulse | ToServer::Welcome(_) => return Ok(Next::Go),
            ToServer::Refused(sentence) => return Err(ServerError::Refused { address, sentence }),
            ToServer::Start(start) => {
                tracing::info!(
                    "job {:?}: this is {} of {}",
                    start.job.name,
                    start.server,
                    start.servers
                );
                self.phase = Phase::Preparing;
                Box::pin(async move {
                    home.start(&address, start).await?;
                    Ok(FromServer::Ready)
                })
            }
            ToServer::CheckInit { seat } => Box::pin(async move {
                Ok(refusal(&home, seat).await?.unwrap_or(FromServer::InitChecked { seat }))
            }),
            ToServer::CommitInit { seat } => Box::pin(commit_init(home, seat)),
            ToServer::Depart { seat, incarnation, term } => {
                tracing::info!("{seat} in {incarnation} is taken out of the job");
                Box::pin(async move {
                    home.depart(seat, incarnation, term);
                    let record = crate::core::Record::Depart { seat, incarnation, term };
                    let clock = home.order(&record).await?.unwrap_or_default();
                    Ok(FromServer::Departed { seat, incarnation, clock })
                })
            }
            ToServer::Finish => {
                self.phase = Phase::Finished;
                Box::pin(async move {
                    let shards = home.reports().await;
                    Ok(FromServer::Final(ServerReport { phase: Phase::Finished, shards }))
                })
            }
            ToServer::Ended(ended) => {
                self.home.finish(&ended.reason);
                self.phase = Phase::Waiting;
                self.report = ServerReport::default();
                match (ended.stay, ended.blame) {
                    (true, blame) => {
                        let how = if blame.is_none() { "is over" } else { "failed" };
                        tracing::info!("the job {how}: {}; waiting for the next", ended.reason);
                        return Ok(Next::Go);
                    }
                    (false, None) => {
                        tracing::info!("the job is over: {}", ended.reason);
                        close(&self.connection, CloseCode::Done, "the job is over");
                        return Ok(Next::End(End::Finished));
                    }
                    (false, Some(blame)) => {
                        close(&self.connection, CloseCode::Done, "the job is over");
                        return Err(ServerError::JobFailed { reason: ended.reason, blame });
                    }
                }
            }
        };
        orders.try_send(task).map_err(|_| ServerError::Unexpected {
            address: self.identity.coordinator.clone(),
            what: format!("gave more than {CONTROL_QUEUE_MAX} orders at once"),
        })?;
        Ok(Next::Go)
    }

    /// The connection is gone. With a job, training goes on until the grace is over; without one, the
    /// coordinator is dialled again. A coordinator that closed on purpose is not waited for.
    fn lose(&mut self, error: Option<QuicError>) -> Result<Option<End>, ServerError> {
        let address = self.identity.coordinator.clone();
        let silent = self.heard.elapsed().as_secs_f64();
        let detail = error.as_ref().map_or_else(|| LINE_ENDED.to_owned(), ToString::to_string);
        let on_purpose = match &error {
            None | Some(QuicError::Closed { .. }) => true,
            Some(error) => error.blame() != Blame::Network,
        };
        if on_purpose {
            return Err(ServerError::CoordinatorLost { address, silent, detail });
        }
        if !self.home.has_job() {
            tracing::warn!("coordinator {address} is lost: {detail}; dialling again");
            return Ok(Some(End::Again));
        }
        self.lost = Some(detail);
        self.tell();
        Ok(None)
    }

    /// Looks whether the coordinator is silent for longer than it may be.
    fn watch(&mut self) -> Result<(), ServerError> {
        let silent = self.heard.elapsed();
        if silent > self.lease && !self.told {
            self.tell();
        }
        // The grace begins where the lease ends: a coordinator is not missing before.
        if silent < self.lease + self.identity.grace {
            return Ok(());
        }
        Err(ServerError::CoordinatorLost {
            address: self.identity.coordinator.clone(),
            silent: silent.as_secs_f64(),
            detail: self.lost.clone().unwrap_or_else(|| "its connection is silent".to_owned()),
        })
    }

    fn tell(&mut self) {
        self.told = true;
        let silent = self.heard.elapsed();
        let left = (self.lease + self.identity.grace).saturating_sub(silent);
        tracing::warn!(
            "coordinator {} is missing, last heard {:.1} s ago; training goes on, waiting {:.0} s more{}",
            self.identity.coordinator,
            silent.as_secs_f64(),
            left.as_secs_f64(),
            self.lost.as_ref().map_or_else(String::new, |detail| format!(" ({detail})"))
        );
    }

    /// A sign of life with the last figures, at once; new figures follow when the shards have done what
    /// was asked of them before.
    async fn beat(&mut self, orders: &mpsc::Sender<Task>) -> Result<(), ServerError> {
        let report = ServerReport { phase: self.phase, ..self.report.clone() };
        self.say(&FromServer::Heartbeat(report)).await?;
        let is_free = !self.gathering && orders.capacity() == orders.max_capacity();
        if self.home.has_job() && is_free {
            let (home, phase) = (Arc::clone(&self.home), self.phase);
            let gather: Task = Box::pin(async move {
                Ok(FromServer::Heartbeat(ServerReport { phase, shards: home.reports().await }))
            });
            self.gathering = orders.try_send(gather).is_ok();
        }
        Ok(())
    }

    /// Sends a message while the line stands. A line that is found broken is seen by the receiver.
    async fn say(&mut self, message: &FromServer) -> Result<(), ServerError> {
        match message {
            FromServer::Heartbeat(report) => self.report.shards.clone_from(&report.shards),
            FromServer::Ready => self.phase = Phase::Serving,
            _ => {}
        }
        if self.lost.is_some() {
            return Ok(());
        }
        match self.sender.send(message).await {
            Ok(()) => Ok(()),
            Err(error) if error.blame() == Blame::Us => Err(error.into()),
            Err(error) => {
                tracing::debug!("{error}");
                Ok(())
            }
        }
    }

    /// Tells the coordinator that this server gives up, and why.
    async fn fail(&mut self, error: ServerError) -> ServerError {
        let error = match error {
            ServerError::Unexpected { what, .. } => {
                ServerError::Unexpected { address: self.identity.coordinator.clone(), what }
            }
            error => error,
        };
        self.farewell(&error.to_string()).await;
        error
    }

    async fn farewell(&mut self, sentence: &str) {
        self.home.finish(sentence);
        if self.lost.is_some() {
            return;
        }
        let told = self.sender.send(&FromServer::Failed(sentence.to_owned())).await.is_ok()
            && self.sender.deliver(FAREWELL).await.is_ok();
        if !told {
            tracing::debug!("the last words did not reach the coordinator");
        }
        close(&self.connection, CloseCode::Shutdown, sentence);
    }
}

/// What a shard has against a seat's values as the first ones.
async fn refusal(home: &Home, seat: SeatId) -> Result<Option<FromServer>, ServerError> {
    let checked = home.check_init(seat).await?;
    Ok(checked.err().map(|sentence| FromServer::InitRefused { seat, sentence }))
}

/// All shards are asked before the first one commits.
async fn commit_init(home: Arc<Home>, seat: SeatId) -> Result<FromServer, ServerError> {
    if let Some(refused) = refusal(&home, seat).await? {
        return Ok(refused);
    }
    home.order(&crate::core::Record::CommitInit { seat }).await?;
    Ok(FromServer::InitCommitted)
}

/// Does orders one after the other.
async fn work(
    mut orders: mpsc::Receiver<Task>,
    done: mpsc::Sender<Result<FromServer, ServerError>>,
) {
    while let Some(order) = orders.recv().await {
        if done.send(order.await).await.is_err() {
            return;
        }
    }
}
