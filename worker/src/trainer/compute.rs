//! The compute thread: batch → gradient → push, pull → parameters, step after step.
//!
//! It owns the engine, the data and the seat. Sending and receiving happen on the network thread's
//! runtime; this thread only waits there for a permit to send or for a reply, with
//! `Handle::block_on`. A tensor's gradient is encoded and handed over as soon as it is final, so
//! that pushes overlap with the rest of the backward pass. With several steps in flight parameters come
//! meanwhile too, and are waited for only when those in hand are too old (`net::flow`).

mod tune;
mod walk;

use self::tune::Tuner;
use crate::core::agenda::{Agenda, Next};
use crate::data::order::{BatchOrder, Order as EpochsOrder};
use crate::data::prefetch::Prefetch;
use crate::data::{self, Dataset};
use crate::net::NetError;
use crate::net::coordinator::Outbox;
use crate::net::flow::{Flow, makes_first_values};
use crate::net::progress::Progress;
use crate::net::seat::Seat;
use crate::train::{self, Batch, Engine};
use crate::trainer::{WorkerError, evaluate};
use slackline_common::ids::{SeatId, TensorId, Version};
use slackline_common::job::{DataSpec, Job, Mode};
use slackline_common::lease::Lease;
use slackline_common::model::initialise_all;
use slackline_common::wire::control::{Evaluated, FromWorker, Phase};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// How long reading one batch may take.
const READ_PATIENCE: Duration = Duration::from_secs(300);

/// What the network thread tells the compute thread.
#[derive(Debug)]
pub(super) enum Order {
    /// Servers are connected: train.
    Start(Box<Seat>),
    /// Samples to work on.
    Lease(Lease),
    /// Nothing to do, for now.
    Idle,
    /// Leave.
    NoMoreWork,
    /// Test the model as it is now.
    Evaluate,
    /// The process is to end: finish the step and leave.
    Stop,
}

/// Waits that end early when the worker does.
#[derive(Debug, Default)]
pub(super) struct Pause {
    over: Mutex<bool>,
    bell: Condvar,
}

impl Pause {
    /// Ends every wait, now and later.
    pub(super) fn end(&self) {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }

    fn wait(&self, time: Duration) {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        // A poisoned or early end is an end all the same.
        drop(self.bell.wait_timeout_while(over, time, |over| !*over));
    }
}

/// What the compute thread is made with.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) job: Box<Job>,
    pub(super) data_dir: PathBuf,
    pub(super) threads: u16,
    pub(super) slowdown: Option<f64>,
    pub(super) handle: Handle,
    pub(super) outbox: Outbox,
    pub(super) progress: Arc<Progress>,
    pub(super) orders: mpsc::Receiver<Order>,
    pub(super) pause: Arc<Pause>,
}

/// The whole compute thread: returns when it was told to stop and has left, or when nobody is left
/// to give orders.
pub(super) fn run(setup: Setup) -> Result<(), WorkerError> {
    let mut compute = Compute::prepare(setup)?;
    let samples = compute.train_data.len();
    compute.tell(FromWorker::DataReady { samples })?;
    compute.setup.progress.set_phase(Phase::Waiting);
    let seat = loop {
        match compute.setup.orders.blocking_recv() {
            Some(Order::Start(seat)) => break seat,
            Some(Order::Stop) | None => return Ok(()),
            Some(_) => {}
        }
    };
    let mut seat = *seat;
    let leaves = match compute.setup.job.local {
        Some(local) => compute.walk(&mut seat, local)?,
        None => compute.train(&mut seat)?,
    };
    if !leaves {
        return Ok(());
    }
    compute.leave(&seat)?;
    compute.afterwards(&mut seat)
}

struct Compute {
    setup: Setup,
    engine: Box<dyn Engine>,
    train_data: Arc<dyn Dataset>,
    test_data: Option<Arc<dyn Dataset>>,
    prefetch: Prefetch,
    agenda: Agenda,
    parameters: Vec<f32>,
    stopped: bool,
    tests_due: bool,
    /// Present in jobs that compress as the link asks for.
    tuner: Option<Tuner>,
}

impl Compute {
    fn prepare(setup: Setup) -> Result<Self, WorkerError> {
        let job = &setup.job;
        let engine = train::engine(&job.model)
            .ok_or_else(|| WorkerError::External { job: job.name.clone() })?;
        train::use_threads(setup.threads);
        let spec: &DataSpec =
            job.data.as_ref().ok_or_else(|| WorkerError::NoData { job: job.name.clone() })?;
        let open = |source| data::open(spec, source, &job.model, &setup.data_dir);
        let train_data = open(&spec.train)?;
        let test_data = spec.test.as_ref().map(open).transpose()?;
        let prefetch = Prefetch::start(Arc::clone(&train_data), EpochsOrder::of(job, spec))?;
        let parameters = match makes_first_values(job) {
            true => initialise_all(engine.layout(), job.seed),
            false => vec![0.0; engine.layout().elements()],
        };
        Ok(Self {
            agenda: Agenda::new(job.mode != Mode::Bsp),
            parameters,
            stopped: false,
            tests_due: false,
            tuner: None,
            engine,
            train_data,
            test_data,
            prefetch,
            setup,
        })
    }

    fn tell(&self, message: FromWorker) -> Result<(), NetError> {
        self.setup.handle.block_on(self.setup.outbox.send(message))
    }

    /// All of a job that pushes every step, up to the leave. A pull that is still under way ends with
    /// it: it would wait for seats that may push no more. Returns `false` when nobody is left to give
    /// orders.
    fn train(&mut self, seat: &mut Seat) -> Result<bool, WorkerError> {
        let mut flow = Flow::new(&self.setup.job, seat.plan());
        self.tuner = Tuner::new(&self.setup.job, seat);
        let tensors: Vec<TensorId> = seat.tensors().collect();
        self.ask()?;
        loop {
            self.take_orders()?;
            if self.stopped {
                break;
            }
            match self.agenda.poll_next() {
                Next::Batch { begins } => {
                    self.hold(seat, &mut flow)?;
                    if let Some(lease) = begins {
                        self.tell(FromWorker::LeaseStarted { lease, at: seat.clock() })?;
                    }
                    self.step(seat, &mut flow, &tensors)?;
                }
                Next::Done => break,
                Next::Idle if self.setup.job.mode.bound().is_some() => {
                    self.setup.progress.set_phase(Phase::Waiting);
                    self.setup.handle.block_on(seat.push_nothing())?;
                    self.setup.progress.step(seat.clock(), 0, None);
                }
                Next::Idle | Next::Wait => {
                    self.setup.progress.set_phase(Phase::Waiting);
                    match self.setup.orders.blocking_recv() {
                        Some(order) => self.handle(order)?,
                        None => return Ok(false),
                    }
                }
            }
        }
        Ok(true)
    }

    /// Takes every order that has come.
    fn take_orders(&mut self) -> Result<(), WorkerError> {
        loop {
            match self.setup.orders.try_recv() {
                Ok(order) => self.handle(order)?,
                Err(mpsc::error::TryRecvError::Empty) => return Ok(()),
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.stopped = true;
                    return Ok(());
                }
            }
        }
    }

    fn handle(&mut self, order: Order) -> Result<(), WorkerError> {
        match order {
            Order::Lease(lease) => {
                lease.check(self.train_data.len(), self.setup.job.batch).map_err(|why| {
                    let who = "the coordinator".to_owned();
                    NetError::Unexpected { who, what: format!("handed out a bad lease: {why}") }
                })?;
                self.agenda.handle_lease(lease);
                self.read_ahead()?;
                // A lease without a sample for us is used up already.
                self.ask()?;
            }
            Order::Idle => self.agenda.handle_idle(),
            Order::NoMoreWork => self.agenda.handle_no_more(),
            Order::Stop => self.stopped = true,
            Order::Evaluate => self.tests_due = true,
            Order::Start(_) => {}
        }
        Ok(())
    }

    /// Asks for a lease when there is nothing left to work on.
    fn ask(&mut self) -> Result<(), WorkerError> {
        if self.agenda.poll_request() {
            self.tell(FromWorker::LeaseRequest)?;
        }
        Ok(())
    }

    fn read_ahead(&mut self) -> Result<(), WorkerError> {
        while let Some((lease, batch)) = self.agenda.poll_order() {
            self.prefetch.order(BatchOrder::of(&lease, batch))?;
        }
        Ok(())
    }

    /// One step: gradient and push, question for more work, parameters for the next step.
    fn step(
        &mut self,
        seat: &mut Seat,
        flow: &mut Flow,
        tensors: &[TensorId],
    ) -> Result<(), WorkerError> {
        let filled = self.prefetch.next(READ_PATIENCE)?;
        self.read_ahead()?;
        let (samples, loss) = match filled.batch.samples {
            0 => {
                self.setup.handle.block_on(seat.push_nothing())?;
                (0, None)
            }
            samples => {
                let samples = u32::try_from(samples).expect("at most PUSH_SAMPLES_MAX");
                (samples, Some(self.gradient(seat, flow, tensors, &filled.batch, samples)?))
            }
        };
        self.prefetch.recycle(filled.batch);
        self.setup.progress.step(seat.clock(), samples, loss);
        self.ask()?;
        self.hold(seat, flow)?;
        // Tested is what the seat holds: pulling the whole model for it would cost a slow link more
        // than many steps. The last test, after training, pulls it.
        let every = self.setup.job.evaluate.every_steps;
        if every > 0 && seat.seat() == SeatId(0) && seat.clock().0.is_multiple_of(every) {
            self.test(seat.version(), false)?;
        }
        Ok(())
    }

    /// Computes the gradient and pushes it tensor by tensor, and takes parameters that come meanwhile.
    /// Returns the loss.
    fn gradient(
        &mut self,
        seat: &mut Seat,
        flow: &mut Flow,
        tensors: &[TensorId],
        batch: &Batch,
        samples: u32,
    ) -> Result<f32, WorkerError> {
        let Setup { handle, progress, pause, slowdown, .. } = &self.setup;
        progress.set_phase(Phase::Computing);
        let mut bundler = seat.begin(tensors, samples)?;
        let mut failure: Option<NetError> = None;
        let began = Instant::now();
        let mut sending = Duration::ZERO;
        let loss = self.engine.gradient(&self.parameters, batch, &mut |tensor, values| {
            let before = Instant::now();
            if failure.is_none() {
                let pushed = handle.block_on(seat.push_tensor(&mut bundler, tensor, values));
                failure = pushed.and_then(|()| handle.block_on(async { flow.poll(seat) })).err();
            }
            sending += before.elapsed();
        })?;
        if let Some(failure) = failure {
            return Err(failure.into());
        }
        let computing = began.elapsed().saturating_sub(sending);
        progress.set_phase(Phase::Pushing);
        if let Some(factor) = slowdown {
            pause.wait(computing.mul_f64((factor - 1.0).max(0.0)));
        }
        handle.block_on(seat.end(bundler))?;
        if let Some(tuner) = &mut self.tuner {
            tuner.handle_step(seat, computing, sending);
        }
        let rung = self.tuner.as_ref().and_then(Tuner::rung);
        progress.set_coding(rung, tune::fidelity(seat));
        if !loss.is_finite() {
            tracing::warn!("the loss at step {} is {loss}", seat.clock().0 - 1);
        }
        Ok(loss)
    }

    /// Sees to it that the parameters are as new as the next step needs.
    fn hold(&mut self, seat: &mut Seat, flow: &mut Flow) -> Result<(), WorkerError> {
        self.setup.progress.set_phase(Phase::Pulling);
        let out = self.parameters.as_mut_slice();
        Ok(self.setup.handle.block_on(flow.hold(seat, out))?)
    }

    /// Leaves all shards and says so.
    fn leave(&mut self, seat: &Seat) -> Result<(), WorkerError> {
        self.setup.handle.block_on(seat.leave())?;
        self.setup.progress.set_phase(Phase::Finished);
        self.tell(FromWorker::Finished(self.setup.progress.report()))?;
        Ok(())
    }

    /// Tests the model when asked to, until nobody is left to ask.
    fn afterwards(&mut self, seat: &mut Seat) -> Result<(), WorkerError> {
        let groups = seat.plan().groups(|_| true);
        while !self.stopped {
            if std::mem::take(&mut self.tests_due) {
                let out = self.parameters.as_mut_slice();
                self.setup.handle.block_on(async {
                    let pull = seat.request_unbound(&groups);
                    seat.receive(&groups, pull, out).await
                })?;
                self.test(seat.version(), true)?;
                self.setup.progress.set_phase(Phase::Finished);
            }
            match self.setup.orders.blocking_recv() {
                Some(order) => self.handle(order)?,
                None => break,
            }
        }
        Ok(())
    }

    fn test(&mut self, version: Version, is_final: bool) -> Result<(), WorkerError> {
        self.setup.progress.set_phase(Phase::Evaluating);
        let Some(data) = &self.test_data else {
            tracing::warn!("the job names no test data: there is nothing to test on");
            return Ok(());
        };
        let batch = self.setup.job.batch;
        let sums = evaluate(self.engine.as_mut(), &self.parameters, &**data, batch)?;
        let count = sums.count.max(1) as f64;
        let (loss, accuracy) = (sums.loss_sum / count, sums.correct as f64 / count);
        let evaluated = Evaluated { version, loss, accuracy, is_final };
        Ok(self.tell(FromWorker::Evaluated(evaluated))?)
    }
}
