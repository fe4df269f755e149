//! A raw client's dealings with the coordinator: joining, first values, barriers, leaving.

use crate::client::{ClientConfig, ClientError, ClientIdentity};
use crate::core::bundle::Sender;
use crate::net::coordinator::{Coordinator, Event};
use crate::net::progress::Progress;
use crate::net::seat::Seat;
use crate::net::servers::Servers;
use crate::net::{NetError, Patience};
use quinn::Endpoint;
use slackline_common::ids::{Incarnation, SeatId};
use slackline_common::job::Job;
use slackline_common::layout::Layout;
use slackline_common::model::ModelSpec;
use slackline_common::quic::{Credentials, TransportSettings, client_endpoint};
use slackline_common::role::Role;
use slackline_common::wire::control::{FromWorker, Hello, Phase, StartWorker, ToWorker};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// How long closed connections may take to say so.
const FAREWELL: Duration = Duration::from_secs(2);

/// A client that has a job and a seat.
#[derive(Debug)]
pub(super) struct Membership {
    endpoint: Endpoint,
    coordinator: Coordinator,
    progress: Arc<Progress>,
    hello: Hello,
    job: Box<Job>,
    sender: Sender,
    patience: Patience,
    wait: Duration,
    proposed: bool,
    start: Option<StartWorker>,
    winner: Option<SeatId>,
    /// The last number every live seat has said.
    passed: u64,
    ended: Option<String>,
    /// The job was stopped: no call but leaving has a point any more.
    stopping: bool,
}

/// The name of a member that has none: host and process.
pub(crate) fn default_name() -> String {
    let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "worker" } else { host };
    format!("{host}-{}", std::process::id())
}

impl Membership {
    pub(super) async fn join(config: ClientConfig) -> Result<Self, ClientError> {
        let credentials = match config.identity {
            ClientIdentity::Loaded(credentials) => credentials,
            ClientIdentity::Files(paths) => {
                Credentials::load(&paths.ca, &paths.certificate, &paths.key, Role::Worker)?
            }
        };
        let settings = TransportSettings::with_mtu(config.mtu).with_link(&config.link);
        let endpoint = client_endpoint(&credentials, &settings).map_err(NetError::from)?;
        let hello = Hello {
            name: config.name.unwrap_or_else(default_name),
            build: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let progress = Arc::new(Progress::default());
        let (seat, patience) = (config.seat.map(SeatId), config.patience);
        let shared = Arc::clone(&progress);
        let mut coordinator = Coordinator::connect(
            &endpoint,
            &config.coordinator,
            hello.clone(),
            seat,
            shared,
            patience,
        )
        .await?;
        let (job, sender) =
            within(config.wait, "a job", coordinator.who().to_owned(), job(&mut coordinator))
                .await??;
        if job.model != ModelSpec::External {
            let failed = "a raw client cannot train a built-in model".to_owned();
            coordinator.outbox().send(FromWorker::Failed(failed)).await?;
            coordinator.outbox().deliver().await;
            return Err(ClientError::NotExternal { job: job.name });
        }
        progress.set_phase(Phase::Preparing);
        Ok(Self {
            endpoint,
            coordinator,
            progress,
            hello,
            job,
            sender,
            patience,
            wait: config.wait,
            proposed: false,
            start: None,
            winner: None,
            passed: 0,
            ended: None,
            stopping: false,
        })
    }

    pub(super) const fn job(&self) -> &Job {
        &self.job
    }

    pub(super) const fn seat(&self) -> SeatId {
        self.sender.seat
    }

    pub(super) const fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Proposes the layout, waits for the servers and connects to them.
    pub(super) async fn start(&mut self, layout: &Layout) -> Result<Seat, ClientError> {
        self.go_on()?;
        if !self.proposed {
            let proposal = FromWorker::ProposeLayout(layout.clone());
            self.coordinator.outbox().send(proposal).await?;
            self.proposed = true;
        }
        self.until("the servers and the other clients", |it| it.start.is_some()).await.map_err(
            |error| match error {
                // The coordinator found the difference first, and named it.
                ClientError::Net(NetError::TurnedAway { sentence, .. })
                    if sentence.contains("layout") =>
                {
                    ClientError::LayoutMismatch { difference: sentence }
                }
                other => other,
            },
        )?;
        self.drain()?;
        let start = self.start.clone().ok_or(ClientError::NotInitialised)?;
        if start.layout.fingerprint() != layout.fingerprint() {
            return Err(ClientError::mismatch(layout, &start.layout));
        }
        let (hello, patience) = (self.hello.clone(), self.patience);
        let connecting =
            Seat::connect(&self.endpoint, &self.job, start, self.sender, hello, patience);
        let seat = Box::pin(connecting).await?;
        self.progress.set_servers(seat.servers().clone());
        Ok(seat)
    }

    /// Whether the first values have been chosen already.
    pub(super) const fn has_winner(&self) -> bool {
        self.winner.is_some()
    }

    /// Says that the values are staged and waits for the choice.
    pub(super) async fn winner(&mut self) -> Result<SeatId, ClientError> {
        self.go_on()?;
        if !self.has_winner() {
            self.coordinator.outbox().send(FromWorker::InitStaged).await?;
        }
        self.until("the choice of first values", |it| it.winner.is_some()).await?;
        self.winner.ok_or(ClientError::NotInitialised)
    }

    pub(super) async fn barrier(&mut self, number: u64) -> Result<(), ClientError> {
        self.go_on()?;
        self.coordinator.outbox().send(FromWorker::Barrier(number)).await?;
        self.until("every live seat at the barrier", |it| it.passed >= number).await
    }

    /// Takes messages until `done`.
    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), ClientError> {
        let (wait, who) = (self.wait, self.coordinator.who().to_owned());
        let taking = async {
            while !done(self) {
                let event = self.coordinator.next().await;
                self.handle(event)?;
                if self.stopping {
                    return Err(ClientError::Stopping);
                }
            }
            Ok(())
        };
        within(wait, what, format!("{who} has not said so; see `slackline status`"), taking).await?
    }

    /// Whether another step has a point, by what has come already.
    ///
    /// # Errors
    /// [`ClientError::Stopping`], [`ClientError::JobEnded`], or that the coordinator is lost.
    pub(super) fn go_on(&mut self) -> Result<(), ClientError> {
        self.drain()?;
        if self.stopping { Err(ClientError::Stopping) } else { Ok(()) }
    }

    /// Takes what has come already.
    fn drain(&mut self) -> Result<(), ClientError> {
        while let Some(event) = self.coordinator.try_next() {
            self.handle(event)?;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), ClientError> {
        match event {
            Event::Lost(error) => {
                return Err(match &self.ended {
                    Some(reason) => ClientError::JobEnded { reason: reason.clone() },
                    None if self.stopping => ClientError::Stopping,
                    None => error.into(),
                });
            }
            Event::Message(ToWorker::Start(start)) => self.start = Some(start),
            Event::Message(ToWorker::Initialised { winner }) => self.winner = Some(winner),
            Event::Message(ToWorker::BarrierPassed(number)) => {
                self.passed = self.passed.max(number);
            }
            Event::Message(ToWorker::Ended(ended)) => {
                self.ended = Some(ended.reason.clone());
                return Err(ClientError::JobEnded { reason: ended.reason });
            }
            Event::Message(ToWorker::NoMoreWork) => self.stopping = true,
            // Leases and tests are for workers that train by themselves.
            Event::Message(other) => tracing::debug!("message passed over: {other:?}"),
        }
        Ok(())
    }

    /// As [`Membership::wait`], for what slower seats may hold back: ends with the job.
    pub(super) async fn wait_for_others<T>(
        &mut self,
        what: &str,
        servers: &Servers,
        future: impl Future<Output = Result<T, NetError>>,
    ) -> Result<T, ClientError> {
        self.go_on()?;
        let wait = self.wait;
        let waiting = async {
            tokio::pin!(future);
            loop {
                tokio::select! {
                    biased;
                    outcome = &mut future => return outcome.map_err(ClientError::from),
                    event = self.coordinator.next() => {
                        self.handle(event)?;
                        if self.stopping {
                            return Err(ClientError::Stopping);
                        }
                    }
                }
            }
        };
        match timeout(wait, waiting).await {
            Ok(outcome) => outcome,
            Err(_) => Err(missing(wait, what, servers.owed())),
        }
    }

    /// Waits for servers, for as long as a call may take.
    pub(super) async fn wait_for<T>(
        &self,
        seat: &Seat,
        what: &str,
        future: impl Future<Output = Result<T, NetError>>,
    ) -> Result<T, ClientError> {
        self.wait(what, seat.servers(), future).await
    }

    /// Waits for servers, for as long as a call may take.
    pub(super) async fn wait<T>(
        &self,
        what: &str,
        servers: &Servers,
        future: impl Future<Output = Result<T, NetError>>,
    ) -> Result<T, ClientError> {
        match timeout(self.wait, future).await {
            Ok(outcome) => outcome.map_err(ClientError::from),
            Err(_) => Err(missing(self.wait, what, servers.owed())),
        }
    }

    /// Says goodbye and closes.
    pub(super) async fn finish(&self) {
        self.progress.set_phase(Phase::Finished);
        let outbox = self.coordinator.outbox();
        if outbox.send(FromWorker::Finished(self.progress.report())).await.is_ok() {
            outbox.deliver().await;
        }
        if timeout(FAREWELL, self.endpoint.wait_idle()).await.is_err() {
            tracing::debug!("connections are still closing");
        }
    }
}

fn missing(wait: Duration, what: &str, who: String) -> ClientError {
    ClientError::PeerMissing { what: what.to_owned(), who, seconds: wait.as_secs_f64() }
}

async fn within<T>(
    wait: Duration,
    what: &str,
    who: String,
    future: impl Future<Output = T>,
) -> Result<T, ClientError> {
    timeout(wait, future).await.map_err(|_| missing(wait, what, who))
}

async fn job(coordinator: &mut Coordinator) -> Result<(Box<Job>, Sender), ClientError> {
    loop {
        match coordinator.next().await {
            Event::Lost(error) => return Err(error.into()),
            Event::Message(ToWorker::Job { job, seat, incarnation }) => {
                return Ok((job, sender(seat, incarnation)));
            }
            Event::Message(ToWorker::Ended(ended)) => {
                return Err(ClientError::JobEnded { reason: ended.reason });
            }
            Event::Message(other) => tracing::debug!("message passed over: {other:?}"),
        }
    }
}

const fn sender(seat: SeatId, incarnation: Incarnation) -> Sender {
    Sender { seat, incarnation }
}
