//! The line to the coordinator: hello, signs of life both ways, and typed messages in order.
//!
//! One task owns the control stream. It never waits for whoever reads its events: a reader that
//! falls [`CONTROL_QUEUE_MAX`] messages behind is stuck, and the line ends.

use crate::net::progress::Progress;
use crate::net::{NetError, Patience};
use quinn::{Connection, Endpoint};
use slackline_common::blame::Blame;
use slackline_common::ids::SeatId;
use slackline_common::limits::{CONTROL_QUEUE_MAX, HELLO_SECONDS_MAX, heartbeat_interval};
use slackline_common::quic::{self, CloseCode, ControlReceiver, ControlSender, QuicError};
use slackline_common::role::Role;
use slackline_common::wire::control::{Ended, FromWorker, Hello, ToWorker, Welcome};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// Between two attempts to reach a coordinator that does not answer.
const REDIAL_PAUSE: Duration = Duration::from_millis(250);
/// How long the last words may take.
const FAREWELL: Duration = Duration::from_secs(5);
/// A lease shorter than this would be kept by signs of life alone.
const LEASE_MIN: Duration = Duration::from_millis(40);

/// The line to the coordinator. Dropping it closes the connection.
#[derive(Debug)]
pub struct Coordinator {
    outbox: Outbox,
    events: mpsc::Receiver<Event>,
    who: String,
}

/// What the coordinator said.
#[derive(Debug)]
pub enum Event {
    /// A message; `Pulse` and `Welcome` are kept here.
    Message(ToWorker),
    /// The line is gone for good. Nothing follows.
    Lost(NetError),
}

/// Sends to the coordinator, from any thread.
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: mpsc::Sender<Outgoing>,
}

#[derive(Debug)]
enum Outgoing {
    Message(Box<FromWorker>),
    Deliver(oneshot::Sender<()>),
}

impl Outbox {
    /// Queues a message. While the coordinator is away it is dropped: nobody is there to read it.
    ///
    /// # Errors
    /// [`NetError::Closed`] when the line is gone for good.
    pub async fn send(&self, message: FromWorker) -> Result<(), NetError> {
        let message = Outgoing::Message(Box::new(message));
        self.queue.send(message).await.map_err(|_| NetError::Closed)
    }

    /// Waits, not for long, until everything queued has reached the coordinator's machine; nothing
    /// can be sent after it.
    pub async fn deliver(&self) {
        let (done, delivered) = oneshot::channel();
        if self.queue.send(Outgoing::Deliver(done)).await.is_ok() {
            // It fails only when the task ended first, which is as good.
            drop(delivered.await);
        }
    }
}

impl Coordinator {
    /// Connects, says hello and is welcomed; tries again for as long as the patience for
    /// coordinators lasts, for it may start later than we.
    ///
    /// # Errors
    /// [`NetError::TurnedAway`]; [`NetError::Quic`].
    pub async fn connect(
        endpoint: &Endpoint,
        address: &str,
        hello: Hello,
        seat: Option<SeatId>,
        progress: Arc<Progress>,
        patience: Patience,
    ) -> Result<Self, NetError> {
        let deadline = Instant::now() + patience.coordinator;
        loop {
            let (hello, progress) = (hello.clone(), Arc::clone(&progress));
            match Self::connect_once(endpoint, address, hello, seat, progress, patience).await {
                Err(NetError::Quic(error))
                    if error.blame() == Blame::Network && Instant::now() < deadline =>
                {
                    tracing::info!("{error}; trying again");
                    sleep(REDIAL_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn connect_once(
        endpoint: &Endpoint,
        address: &str,
        hello: Hello,
        seat: Option<SeatId>,
        progress: Arc<Progress>,
        patience: Patience,
    ) -> Result<Self, NetError> {
        let who = format!("the coordinator at {address}");
        let connection =
            quic::connect(endpoint, address, Role::Coordinator, patience.connect).await?;
        let (mut sender, mut receiver) = quic::open_control(&connection).await?;
        sender.send(&FromWorker::Hello { hello, seat }).await?;
        let deadline = Duration::from_secs(HELLO_SECONDS_MAX);
        let welcome: Welcome = match receiver.recv_within(deadline, "welcome").await? {
            Some(ToWorker::Welcome(welcome)) => welcome,
            Some(ToWorker::Refused(sentence)) => {
                return Err(NetError::TurnedAway { who, sentence });
            }
            Some(_) | None => {
                let what = "did not answer the hello with a welcome".to_owned();
                return Err(NetError::Unexpected { who, what });
            }
        };
        let (queue, outgoing) = mpsc::channel(CONTROL_QUEUE_MAX);
        let (events_in, events) = mpsc::channel(CONTROL_QUEUE_MAX + 1);
        let line = Line {
            who: who.clone(),
            connection,
            sender,
            outgoing,
            events: events_in,
            progress,
            lease: Duration::from_millis(welcome.lease_millis).max(LEASE_MIN),
            grace: patience.coordinator,
            ended: false,
        };
        tokio::spawn(line.run(receiver));
        Ok(Self { outbox: Outbox { queue }, events, who })
    }

    /// Sends from any thread.
    pub const fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Who is at the other end, for messages.
    pub fn who(&self) -> &str {
        &self.who
    }

    /// The next message. After [`Event::Lost`] it is that the session is closed.
    pub async fn next(&mut self) -> Event {
        self.events.recv().await.unwrap_or(Event::Lost(NetError::Closed))
    }

    /// A message that has come already, if there is one.
    pub fn try_next(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }
}

/// The task's side.
struct Line {
    who: String,
    connection: Connection,
    sender: ControlSender<FromWorker>,
    outgoing: mpsc::Receiver<Outgoing>,
    events: mpsc::Sender<Event>,
    progress: Arc<Progress>,
    lease: Duration,
    grace: Duration,
    /// It has said that the job is over and that no other follows: its end is no loss.
    ended: bool,
}

/// Why the task stops using the stream.
enum End {
    /// Everybody who could use it is gone.
    Unused,
    /// Last words are said.
    Delivered,
    /// It may not come back: at once, or after the grace.
    Lost { error: NetError, at_once: bool },
}

impl Line {
    async fn run(mut self, receiver: ControlReceiver<ToWorker>) {
        match self.talk(receiver).await {
            End::Unused | End::Delivered => {}
            End::Lost { error, at_once } => {
                if !at_once && !self.wait_out(&error).await {
                    return;
                }
                // Room is reserved for it; it fails only when nobody reads.
                drop(self.events.try_send(Event::Lost(error)));
            }
        }
        quic::close(&self.connection, CloseCode::Done, "the worker leaves");
    }

    async fn talk(&mut self, mut receiver: ControlReceiver<ToWorker>) -> End {
        let mut beat = interval(heartbeat_interval(self.lease));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        let mut silent = false;
        loop {
            tokio::select! {
                message = receiver.recv() => {
                    heard = Instant::now();
                    if std::mem::take(&mut silent) {
                        tracing::info!("{} is heard again", self.who);
                    }
                    if let Some(end) = self.handle(message) {
                        return end;
                    }
                }
                outgoing = self.outgoing.recv() => match outgoing {
                    None => return End::Unused,
                    Some(Outgoing::Message(message)) => {
                        if let Err(error) = self.sender.send(&message).await {
                            return lost(error);
                        }
                    }
                    Some(Outgoing::Deliver(done)) => {
                        if let Err(error) = self.sender.deliver(FAREWELL).await {
                            tracing::warn!("last words did not arrive: {error}");
                        }
                        // The asker may be gone.
                        let _ = done.send(());
                        return End::Delivered;
                    }
                },
                _ = beat.tick() => {
                    let report = self.progress.report();
                    if let Err(error) = self.sender.send(&FromWorker::Heartbeat(report)).await {
                        return lost(error);
                    }
                    let silence = heard.elapsed();
                    if silence > self.grace {
                        return End::Lost { error: self.missing(silence, "silence"), at_once: true };
                    }
                    if silence > self.lease && !std::mem::replace(&mut silent, true) {
                        tracing::warn!(
                            "{} has said nothing for {:.1} s; training goes on without it for {:.0} s",
                            self.who,
                            silence.as_secs_f64(),
                            self.grace.as_secs_f64()
                        );
                    }
                }
            }
        }
    }

    /// Hands a message on; the end of the line, if it is one.
    fn handle(&mut self, message: Result<Option<ToWorker>, QuicError>) -> Option<End> {
        if let Ok(Some(ToWorker::Ended(Ended { stay, .. }))) = &message {
            self.ended = !stay;
        }
        match message {
            Ok(Some(ToWorker::Pulse | ToWorker::Welcome(_))) => None,
            Ok(Some(ToWorker::Refused(sentence))) => {
                let error = NetError::TurnedAway { who: self.who.clone(), sentence };
                Some(End::Lost { error, at_once: true })
            }
            Ok(Some(message)) => {
                // One place stays free for the news that the line is gone.
                if self.events.capacity() > 1 {
                    return match self.events.try_send(Event::Message(message)) {
                        Ok(()) => None,
                        Err(_) => Some(End::Unused),
                    };
                }
                let what = format!("sent {CONTROL_QUEUE_MAX} messages that nobody took");
                let error = NetError::Unexpected { who: self.who.clone(), what };
                Some(End::Lost { error, at_once: true })
            }
            Ok(None) => {
                let what = "ended its control stream".to_owned();
                let error = NetError::Unexpected { who: self.who.clone(), what };
                Some(End::Lost { error, at_once: false })
            }
            Err(error) => Some(lost(error)),
        }
    }

    /// Goes on without a coordinator until the grace is over; false when nobody cares any more.
    async fn wait_out(&mut self, error: &NetError) -> bool {
        let grace = self.grace;
        if !self.ended {
            tracing::warn!(
                "{error}; training goes on without a coordinator for {:.0} s",
                grace.as_secs_f64()
            );
        }
        let over = sleep(grace);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return true,
                outgoing = self.outgoing.recv() => match outgoing {
                    None => return false,
                    Some(Outgoing::Message(_)) => {}
                    Some(Outgoing::Deliver(done)) => {
                        let _ = done.send(());
                    }
                },
            }
        }
    }

    fn missing(&self, silence: Duration, why: &str) -> NetError {
        NetError::Missing {
            who: self.who.clone(),
            seconds: silence.as_secs_f64(),
            owed: "leases and signs of life".to_owned(),
            why: why.to_owned(),
        }
    }
}

/// A lost line may have been a lost machine: only words of the coordinator end it at once.
fn lost(error: QuicError) -> End {
    let at_once = matches!(
        &error,
        QuicError::Closed { code, .. } if !matches!(code, CloseCode::Shutdown | CloseCode::Done)
    );
    End::Lost { error: error.into(), at_once }
}
