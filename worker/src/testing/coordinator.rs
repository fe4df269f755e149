//! A coordinator that says what a job of one worker needs, and notes what the worker says.

use super::{PATIENCE, World};
use slackline_common::ids::{Incarnation, LeaseId, SeatId, Term};
use slackline_common::job::Job;
use slackline_common::layout::Layout;
use slackline_common::lease::Lease;
use slackline_common::quic::{self, ControlReceiver, ControlSender};
use slackline_common::role::Role;
use slackline_common::wire::control::{
    Ended, Evaluated, FromWorker, StartWorker, ToWorker, Welcome,
};
use std::sync::{Arc, Mutex};

/// A coordinator for one worker.
pub(crate) struct FakeCoordinator {
    pub(crate) address: String,
    /// What the worker said, heartbeats left out.
    pub(crate) said: Arc<Mutex<Vec<FromWorker>>>,
}

impl FakeCoordinator {
    pub(crate) fn start(world: &World, job: &Job, layout: &Layout, servers: &[String]) -> Self {
        let endpoint = world.listener(Role::Coordinator);
        let said = Arc::new(Mutex::new(Vec::new()));
        let coordinator =
            Self { address: endpoint.local_addr().unwrap().to_string(), said: Arc::clone(&said) };
        let start = StartWorker {
            layout: layout.clone(),
            servers: servers.to_vec(),
            shards: u16::try_from(servers.len()).unwrap(),
            term: Term(1),
        };
        let job = job.clone();
        tokio::spawn(async move {
            while let Some(incoming) = quic::accept(&endpoint).await {
                let connection = quic::handshake(incoming, PATIENCE).await.unwrap();
                let script = Script { job: job.clone(), start: start.clone(), leased: 0 };
                let said = Arc::clone(&said);
                tokio::spawn(async move {
                    let hello = quic::accept_hello::<ToWorker, FromWorker>(&connection, PATIENCE);
                    let (sender, receiver, _) = hello.await.unwrap();
                    script.run(sender, receiver, &said).await;
                });
            }
        });
        coordinator
    }
}

struct Script {
    job: Job,
    start: StartWorker,
    /// Batches handed out.
    leased: u64,
}

/// The barrier at which the coordinator stops the job.
pub(crate) const STOP_AT_BARRIER: u64 = 4;
/// Batches of one lease.
const LEASE_BATCHES: u64 = 5;

impl Script {
    async fn run(
        mut self,
        mut sender: ControlSender<ToWorker>,
        mut receiver: ControlReceiver<FromWorker>,
        said: &Mutex<Vec<FromWorker>>,
    ) {
        let welcome = Welcome { run_id: "test".to_owned(), lease_millis: 200 };
        sender.send(&ToWorker::Welcome(welcome)).await.unwrap();
        let job = Box::new(self.job.clone());
        let (seat, incarnation) = (SeatId(0), Incarnation(1));
        sender.send(&ToWorker::Job { job, seat, incarnation }).await.unwrap();
        let mut samples = 0;
        while let Ok(Some(message)) = receiver.recv().await {
            let answer = match &message {
                FromWorker::Heartbeat(_) => Some(ToWorker::Pulse),
                FromWorker::ProposeLayout(_) => Some(ToWorker::Start(self.start.clone())),
                FromWorker::DataReady { samples: ready } => {
                    samples = *ready;
                    Some(ToWorker::Start(self.start.clone()))
                }
                FromWorker::InitStaged => Some(ToWorker::Initialised { winner: seat }),
                FromWorker::Barrier(STOP_AT_BARRIER) => Some(ToWorker::NoMoreWork),
                FromWorker::Barrier(number) => Some(ToWorker::BarrierPassed(*number)),
                FromWorker::LeaseRequest => Some(self.lease(samples)),
                FromWorker::Finished(_) if self.job.data.is_some() => Some(ToWorker::Evaluate),
                FromWorker::Evaluated(Evaluated { is_final: true, .. }) => {
                    let reason = "done".to_owned();
                    Some(ToWorker::Ended(Ended { ok: true, blame: None, reason, stay: false }))
                }
                _ => None,
            };
            if !matches!(message, FromWorker::Heartbeat(_)) {
                said.lock().unwrap().push(message);
            }
            if let Some(answer) = answer {
                // The worker may be gone.
                let _ = sender.send(&answer).await;
            }
        }
    }

    /// The next batches, epoch by epoch.
    fn lease(&mut self, samples: u64) -> ToWorker {
        let batch = u64::from(self.job.batch);
        let per_epoch = samples.div_ceil(batch);
        let slackline_common::job::Length::Epochs(epochs) = self.job.length else {
            panic!("tests count epochs")
        };
        if self.leased == epochs * per_epoch {
            return ToWorker::NoMoreWork;
        }
        let (epoch, within) = (self.leased / per_epoch, self.leased % per_epoch);
        let batches = LEASE_BATCHES.min(per_epoch - within);
        let lease = Lease {
            id: LeaseId(self.leased),
            epoch,
            first: within * batch,
            stride: batch,
            batches: u32::try_from(batches).unwrap(),
            batch: self.job.batch,
            samples,
        };
        self.leased += batches;
        ToWorker::Lease(lease)
    }
}
