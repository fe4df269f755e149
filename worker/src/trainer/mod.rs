//! The training worker: the network thread's half. It talks to the coordinator, connects to the
//! servers, and turns messages into orders for the compute thread (`compute`).

mod compute;
mod error;
#[cfg(test)]
mod tests;

pub use error::WorkerError;

use crate::core::bundle::Sender;
use crate::data::{self, Dataset};
use crate::net::coordinator::{Coordinator, Event};
use crate::net::progress::Progress;
use crate::net::seat::Seat;
use crate::net::servers::Servers;
use crate::net::{NetError, Patience};
use crate::train::{Engine, Evaluation, TrainError};
use compute::{Order, Pause, Setup};
use quinn::Endpoint;
use slackline_common::config::WorkerConfig;
use slackline_common::ids::SeatId;
use slackline_common::job::Job;
use slackline_common::model::ModelSpec;
use slackline_common::quic::{CloseCode, Credentials, TransportSettings, client_endpoint};
use slackline_common::role::Role;
use slackline_common::wire::control::{Ended, FromWorker, Hello, Phase, StartWorker, ToWorker};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Orders that may wait for the compute thread: the coordinator answers one question at a time.
const ORDERS_MAX: usize = 64;
/// How long closed connections may take to say so.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long a step in progress may take to end once the job has.
const COMPUTE_PATIENCE: Duration = Duration::from_secs(60);

/// Tests a model on all samples of `data`, in batches of `batch`.
///
/// # Errors
/// As [`Engine::evaluate`].
pub fn evaluate(
    engine: &mut dyn Engine,
    parameters: &[f32],
    data: &dyn Dataset,
    batch: u32,
) -> Result<Evaluation, TrainError> {
    let mut sums = Evaluation::default();
    for batch in data::test_batches(data, batch) {
        let part = engine.evaluate(parameters, &batch)?;
        sums.loss_sum += part.loss_sum;
        sums.correct += part.correct;
        sums.count += part.count;
    }
    Ok(sums)
}

/// Checks what can be checked before anybody is called: the certificates.
///
/// # Errors
/// [`WorkerError::Credentials`].
pub fn check(config: &WorkerConfig) -> Result<(), WorkerError> {
    credentials(config).map(drop)
}

fn credentials(config: &WorkerConfig) -> Result<Credentials, WorkerError> {
    let paths = &config.certificates;
    Ok(Credentials::load(&paths.ca, &paths.certificate, &paths.key, Role::Worker)?)
}

/// Works for the coordinator that `config` names, until it says that there is nothing more to do or
/// until `shutdown` completes: then it finishes its step, leaves and returns.
///
/// # Errors
/// What ended the worker; [`WorkerError::blame`] says whose move it is.
pub async fn run(
    config: WorkerConfig,
    shutdown: impl Future<Output = ()>,
) -> Result<(), WorkerError> {
    let mut shutdown = std::pin::pin!(shutdown);
    let paths = &config.certificates;
    let credentials = Credentials::load(&paths.ca, &paths.certificate, &paths.key, Role::Worker)?;
    let endpoint = client_endpoint(
        &credentials,
        &TransportSettings::with_mtu(config.mtu).with_link(&config.link),
    )?;
    let patience = Patience {
        coordinator: Duration::from_secs_f64(config.coordinator_grace_seconds),
        server: Duration::from_secs_f64(config.server_grace_seconds),
        ..Patience::default()
    };
    let hello = Hello {
        name: config.name.clone().unwrap_or_else(crate::client::default_name),
        build: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let progress = Arc::new(Progress::default());
    let coordinator = tokio::select! {
        coordinator = Coordinator::connect(
            &endpoint,
            &config.coordinator,
            hello.clone(),
            config.seat.map(SeatId),
            Arc::clone(&progress),
            patience,
        ) => coordinator?,
        () = &mut shutdown => return Ok(()),
    };
    tracing::info!("welcomed by {}", coordinator.who());
    let mut worker =
        Worker { config, endpoint: endpoint.clone(), patience, hello, progress, coordinator };
    let outcome = loop {
        match worker.one_job(shutdown.as_mut()).await {
            Ok(After::Stay) => {}
            Ok(After::Exit) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if let Err(error) = &outcome {
        // It fails only when the coordinator is gone, and then nobody can be told.
        let _ = worker.coordinator.outbox().send(FromWorker::Failed(error.to_string())).await;
    }
    worker.coordinator.outbox().deliver().await;
    drop(worker);
    if timeout(FAREWELL, endpoint.wait_idle()).await.is_err() {
        tracing::debug!("connections are still closing");
    }
    outcome
}

/// What follows a job.
enum After {
    /// The next job.
    Stay,
    /// The end of the process.
    Exit,
}

struct Worker {
    config: WorkerConfig,
    endpoint: Endpoint,
    patience: Patience,
    hello: Hello,
    progress: Arc<Progress>,
    coordinator: Coordinator,
}

/// The compute thread, seen from here.
struct Thread {
    orders: Option<mpsc::Sender<Order>>,
    outcome: oneshot::Receiver<Result<(), WorkerError>>,
    handle: Option<thread::JoinHandle<()>>,
    pause: Arc<Pause>,
    servers: Option<Servers>,
}

/// What the job's end was.
enum End {
    Ended(Ended),
    Lost(NetError),
    Computed(Result<(), WorkerError>),
    /// The step in progress did not end in time.
    TooSlow,
}

impl Worker {
    async fn one_job(
        &mut self,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<After, WorkerError> {
        self.progress.reset();
        let (job, sender) = tokio::select! {
            job = next_job(&mut self.coordinator) => match job? {
                Some(job) => job,
                None => return Ok(After::Exit),
            },
            () = shutdown.as_mut() => return Ok(After::Exit),
        };
        tracing::info!("job {:?}, {}", job.name, sender.seat);
        if job.model == ModelSpec::External {
            return Err(WorkerError::External { job: job.name });
        }
        self.progress.set_phase(Phase::Preparing);
        let mut thread = self.spawn(job.clone())?;
        let end = self.drive(&job, sender, &mut thread, shutdown).await;
        let end = match end {
            Ok(end) => end,
            Err(error) => {
                thread.stop("the worker ends").await;
                return Err(error);
            }
        };
        match end {
            End::Computed(outcome) => {
                thread.stop("the worker leaves").await;
                outcome.map(|()| After::Exit)
            }
            End::TooSlow => {
                thread.stop("the worker ends").await;
                tracing::warn!("the step in progress was given up");
                Ok(After::Exit)
            }
            End::Lost(error) => {
                thread.stop("the coordinator is lost").await;
                Err(error.into())
            }
            End::Ended(ended) => {
                thread.stop("the job is over").await;
                tracing::info!("the job is over: {}", ended.reason);
                match ended {
                    Ended { stay: true, .. } => Ok(After::Stay),
                    Ended { blame: None, .. } => Ok(After::Exit),
                    Ended { reason, blame: Some(blame), .. } => {
                        Err(WorkerError::Ended { reason, blame })
                    }
                }
            }
        }
    }

    fn spawn(&self, job: Box<Job>) -> Result<Thread, WorkerError> {
        let (orders, orders_in) = mpsc::channel(ORDERS_MAX);
        let (done, outcome) = oneshot::channel();
        let pause = Arc::new(Pause::default());
        let setup = Setup {
            job,
            data_dir: self.config.data_dir.clone(),
            threads: self.config.threads,
            slowdown: self.config.slowdown,
            handle: Handle::current(),
            outbox: self.coordinator.outbox().clone(),
            progress: Arc::clone(&self.progress),
            orders: orders_in,
            pause: Arc::clone(&pause),
        };
        let handle = thread::Builder::new()
            .name("compute".to_owned())
            .spawn(move || {
                // Whoever asked may be gone.
                let _ = done.send(compute::run(setup));
            })
            .map_err(WorkerError::Thread)?;
        Ok(Thread { orders: Some(orders), outcome, handle: Some(handle), pause, servers: None })
    }

    /// Turns messages into orders until the job ends one way or another.
    async fn drive(
        &mut self,
        job: &Job,
        sender: Sender,
        thread: &mut Thread,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<End, WorkerError> {
        loop {
            tokio::select! {
                event = self.coordinator.next() => {
                    let order = match event {
                        Event::Lost(error) => return Ok(End::Lost(error)),
                        Event::Message(ToWorker::Ended(ended)) => return Ok(End::Ended(ended)),
                        Event::Message(ToWorker::Start(start)) => {
                            let seat = self.connect(job, start, sender);
                            tokio::select! {
                                seat = seat => {
                                    let seat = seat?;
                                    thread.servers = Some(seat.servers().clone());
                                    Some(Order::Start(Box::new(seat)))
                                }
                                () = shutdown.as_mut() => return Ok(End::Computed(Ok(()))),
                            }
                        }
                        Event::Message(ToWorker::Lease(lease)) => Some(Order::Lease(lease)),
                        Event::Message(ToWorker::Idle) => Some(Order::Idle),
                        Event::Message(ToWorker::NoMoreWork) => Some(Order::NoMoreWork),
                        Event::Message(ToWorker::Evaluate) => Some(Order::Evaluate),
                        Event::Message(other) => {
                            tracing::debug!("message passed over: {other:?}");
                            None
                        }
                    };
                    if let Some(order) = order {
                        thread.order(order)?;
                    }
                }
                outcome = &mut thread.outcome => {
                    return Ok(End::Computed(outcome.unwrap_or_else(|_| Err(died()))));
                }
                () = shutdown.as_mut() => {
                    tracing::info!("asked to end: the step is finished first");
                    thread.order(Order::Stop)?;
                    thread.pause.end();
                    // From now on the compute thread's own end is all that is waited for.
                    let patience = self.patience.server;
                    return Ok(match timeout(patience, &mut thread.outcome).await {
                        Ok(outcome) => End::Computed(outcome.unwrap_or_else(|_| Err(died()))),
                        Err(_) => End::TooSlow,
                    });
                }
            }
        }
    }

    async fn connect(
        &self,
        job: &Job,
        start: StartWorker,
        sender: Sender,
    ) -> Result<Seat, WorkerError> {
        let ours = job.model.layout().map(|layout| layout.fingerprint());
        if ours != Some(start.layout.fingerprint()) {
            return Err(WorkerError::Layout);
        }
        let (hello, patience) = (self.hello.clone(), self.patience);
        let connecting = Seat::connect(&self.endpoint, job, start, sender, hello, patience);
        let seat = Box::pin(connecting).await?;
        self.progress.set_servers(seat.servers().clone());
        Ok(seat)
    }
}

impl Thread {
    fn order(&self, order: Order) -> Result<(), WorkerError> {
        let Some(orders) = &self.orders else { return Ok(()) };
        match orders.try_send(order) {
            // A thread that is gone says why through its outcome.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(NetError::Unexpected {
                who: "the coordinator".to_owned(),
                what: format!("gave {ORDERS_MAX} answers that nobody had asked for"),
            }
            .into()),
        }
    }

    /// Ends the thread: cuts its waits short and waits for it, as long as a step may take.
    async fn stop(&mut self, why: &str) {
        self.orders = None;
        self.pause.end();
        if let Some(servers) = &self.servers {
            servers.close(CloseCode::Done, why);
        }
        let Some(handle) = self.handle.take() else { return };
        let joined = tokio::task::spawn_blocking(move || handle.join());
        match timeout(COMPUTE_PATIENCE, joined).await {
            Ok(Ok(Ok(()))) => {}
            Ok(_) => tracing::error!("the compute thread panicked"),
            Err(_) => tracing::warn!("the compute thread is still busy and is left behind"),
        }
    }
}

fn died() -> WorkerError {
    WorkerError::Thread(io::Error::other("it died; its last words are above"))
}

/// The next job and the seat to do it in; `None` when there will be none.
async fn next_job(
    coordinator: &mut Coordinator,
) -> Result<Option<(Box<Job>, Sender)>, WorkerError> {
    loop {
        match coordinator.next().await {
            Event::Lost(error) => return Err(error.into()),
            Event::Message(ToWorker::Job { job, seat, incarnation }) => {
                return Ok(Some((job, Sender { seat, incarnation })));
            }
            Event::Message(ToWorker::Ended(Ended { stay: true, .. })) => {}
            Event::Message(ToWorker::Ended(Ended { blame: None, .. })) => return Ok(None),
            Event::Message(ToWorker::Ended(Ended { reason, blame: Some(blame), .. })) => {
                return Err(WorkerError::Ended { reason, blame });
            }
            Event::Message(other) => tracing::debug!("message passed over: {other:?}"),
        }
    }
}
