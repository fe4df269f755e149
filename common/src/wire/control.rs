//! Control messages: membership, the job, leases, progress. Small, typed, rare; never gradients.
//!
//! The dialogue, each member on one control stream of its own connection to the coordinator:
//! * member: `Hello` → coordinator: `Welcome`, or `Refused` and the connection ends
//! * both, every quarter of the lease: `Heartbeat` / `Pulse`
//! * job submitted and enough members present → server: `Start`, answered `Ready`; worker: `Job`
//! * worker, its data opened: `DataReady`
//! * external job: worker `ProposeLayout`; the first proposal fixes the layout
//! * all servers ready → worker: `Start`; it connects to every server
//! * external job: worker stages its values on every shard, says `InitStaged`; the first to say so
//!   wins: servers `CheckInit` → `InitChecked`, or `InitRefused` and the next seat's turn; once all
//!   have checked, `CommitInit` → `InitCommitted`, everybody `Initialised`
//! * worker: `LeaseRequest` → `Lease`, `Idle` or `NoMoreWork`; `LeaseStarted` before its first push
//! * worker gone: servers `Depart` → `Departed` with its clocks; unfinished batches are leased again
//! * all work done: one worker `Evaluate` → `Evaluated`; the coordinator pulls the model from the
//!   servers with ordinary pull frames on their control connections; servers `Finish` → `Final`
//! * everybody: `Ended`

use crate::blame::Blame;
use crate::ids::{Incarnation, LeaseId, SeatId, ServerId, ShardId, Step, Term, Version};
use crate::job::Job;
use crate::layout::Layout;
use crate::lease::Lease;
use serde::{Deserialize, Serialize};

/// The seat number in pulls of the coordinator and of workers that have left: served at once.
pub const NO_SEAT: SeatId = SeatId(u16::MAX);

/// Where a member stands; shown by status and in "who is missing" lines.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Phase {
    /// Connected, waiting for a job or for others.
    #[default]
    Waiting,
    /// Reading data or making first values.
    Preparing,
    /// Computing a gradient.
    Computing,
    /// Sending gradients.
    Pushing,
    /// Waiting for parameters (for slower seats, or for the network).
    Pulling,
    /// Testing the model.
    Evaluating,
    /// A server at work.
    Serving,
    /// Nothing left to do.
    Finished,
}

/// First words of a member.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Hello {
    /// What people call it: host name and process id unless configured.
    pub name: String,
    /// Version of the program, for status and mismatch lines.
    pub build: String,
}

/// The coordinator's answer to a [`Hello`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Welcome {
    /// Name of this life of the coordinator.
    pub run_id: String,
    /// A member that is silent this long is gone.
    pub lease_millis: u64,
}

/// From a worker or raw client.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum FromWorker {
    /// First message.
    Hello {
        /// Who it is.
        hello: Hello,
        /// The seat it insists on.
        seat: Option<SeatId>,
    },
    /// Still here.
    Heartbeat(WorkerReport),
    /// The tensors a raw client brings.
    ProposeLayout(Layout),
    /// All its first values are staged on all shards.
    InitStaged,
    /// It has opened its training data, which has so many samples: after `Job`, before `Start`. All
    /// workers must agree, or the later one is refused. Not said in an external job.
    DataReady {
        /// Samples of one pass; at least 1.
        samples: u64,
    },
    /// It has no batch left.
    LeaseRequest,
    /// The first batch of a lease belongs to this step.
    LeaseStarted {
        /// Which lease.
        lease: LeaseId,
        /// The step of its first batch.
        at: Step,
    },
    /// Result of a test of the model.
    Evaluated(Evaluated),
    /// It waits until every live seat has said this number.
    Barrier(u64),
    /// It has left all shards and will push no more.
    Finished(WorkerReport),
    /// It gives up, with the sentence it prints. Its seat is free.
    Failed(String),
}

/// What a worker says of itself. Counters are totals of its life.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct WorkerReport {
    /// Where it stands.
    pub phase: Phase,
    /// Steps pushed.
    pub clock: Step,
    /// Samples pushed.
    pub samples: u64,
    /// Mean training loss since the last report; NaN when there was no step.
    pub loss: f32,
    /// Encoded gradient bytes sent.
    pub payload_bytes_up: u64,
    /// Encoded parameter bytes received.
    pub payload_bytes_down: u64,
    /// UDP payload bytes sent to servers.
    pub wire_bytes_up: u64,
    /// UDP payload bytes received from servers.
    pub wire_bytes_down: u64,
    /// How far ahead of the slowest seat its last step started.
    pub staleness: u64,
    /// Bytes asked for or sent and not yet answered.
    pub bytes_outstanding: u64,
    /// `compress = "auto"`: the rung of `job::LADDER` it codes with.
    pub rung: Option<u8>,
    /// What lossy coding does to its gradients, where there is any.
    pub fidelity: Option<Fidelity>,
}

/// How what was sent compares with the true gradient, on sampled blocks, smoothed.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Fidelity {
    /// Cosine of the angle between them; 1 is the same direction.
    pub cosine: f32,
    /// Norm of what was sent divided by the gradient's.
    pub norm_ratio: f32,
    /// Norm of what is owed divided by the gradient's.
    pub residual_ratio: f32,
    /// Steps that an element waits until it is sent, on average.
    pub age_steps: f32,
}

/// One test of the model.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Evaluated {
    /// The version of the parameters tested.
    pub version: Version,
    /// Mean loss.
    pub loss: f64,
    /// Share of right answers, 0 to 1.
    pub accuracy: f64,
    /// Whether it answers [`ToWorker::Evaluate`].
    pub is_final: bool,
}

/// To a worker or raw client.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ToWorker {
    /// Accepted.
    Welcome(Welcome),
    /// Not accepted, or thrown out: one sentence, whose move it is.
    Refused(String),
    /// The coordinator is still here.
    Pulse,
    /// What will be trained, and the seat to do it in.
    Job {
        /// The job.
        job: Box<Job>,
        /// The seat.
        seat: SeatId,
        /// This life of the seat.
        incarnation: Incarnation,
    },
    /// All servers are ready.
    Start(StartWorker),
    /// The parameters have their first values; `winner` brought them.
    Initialised {
        /// Whose values they are.
        winner: SeatId,
    },
    /// Samples to work on.
    Lease(Lease),
    /// Nothing to hand out now, but unfinished work may come back: keep the clock moving with empty
    /// pushes (`bsp`, `ssp`) or wait (`asp`); the next message is `Lease` or `NoMoreWork`.
    Idle,
    /// All samples are done (or the job was stopped): leave the shards and say `Finished`.
    NoMoreWork,
    /// Pull everything and test it.
    Evaluate,
    /// Every live seat has said this number.
    BarrierPassed(u64),
    /// The job is over.
    Ended(Ended),
}

/// What a worker needs to reach the parameters.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct StartWorker {
    /// The tensors, in order.
    pub layout: Layout,
    /// Addresses (`host:port`) in the order of [`ServerId`].
    pub servers: Vec<String>,
    /// Number of shards; shard `i` lives on server `i % servers`.
    pub shards: u16,
    /// Membership generation.
    pub term: Term,
}

/// The last message of a job.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Ended {
    /// Whether it ended as it should, with a model; otherwise `reason` says who is missing or what
    /// broke.
    pub ok: bool,
    /// Whose move it is when it failed: decides everybody's exit code. None when it ended as it
    /// should, and when somebody stopped it before there was anything to keep.
    pub blame: Option<Blame>,
    /// One sentence.
    pub reason: String,
    /// Whether to wait for another job instead of ending.
    pub stay: bool,
}

/// From a server.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum FromServer {
    /// First message.
    Hello {
        /// Who it is.
        hello: Hello,
        /// Where workers reach it.
        advertise: String,
        /// Shards it will run.
        shards: u16,
    },
    /// Still here.
    Heartbeat(ServerReport),
    /// Its shards exist and it accepts workers.
    Ready,
    /// The winner's values are in place.
    InitCommitted,
    /// A seat was taken out.
    Departed {
        /// Which seat.
        seat: SeatId,
        /// Its life.
        incarnation: Incarnation,
        /// The largest clock any of the server's shards had for it.
        clock: Step,
    },
    /// A worker broke a rule in a way people should know (a NaN in a push, for example).
    Event(String),
    /// Last figures, after [`ToServer::Finish`].
    Final(ServerReport),
    /// It gives up, with the sentence it prints.
    Failed(String),
    /// Answers [`ToServer::CheckInit`]: the seat's values are staged on all its shards.
    InitChecked {
        /// Whose.
        seat: SeatId,
    },
    /// Answers [`ToServer::CheckInit`] or [`ToServer::CommitInit`]: a shard cannot take the seat's
    /// values, and none has.
    InitRefused {
        /// Whose.
        seat: SeatId,
        /// What is missing.
        sentence: String,
    },
}

/// What a server says of itself. Counters are totals of the job.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ServerReport {
    /// Where it stands.
    pub phase: Phase,
    /// Its shards.
    pub shards: Vec<ShardReport>,
}

/// What one shard says of itself.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ShardReport {
    /// Which shard.
    pub shard: ShardId,
    /// Times its parameters were published.
    pub version: Version,
    /// The slowest live seat's clock.
    pub slowest: Step,
    /// Each live seat's clock.
    pub clocks: Vec<(SeatId, Step)>,
    /// Whole pushes applied, empty ones left out.
    pub pushes_applied: u64,
    /// Contributions refused for NaN or infinity.
    pub contributions_refused: u64,
    /// Pushes that came again and were acknowledged without being applied.
    pub duplicates: u64,
    /// Largest staleness at which a seat was let go.
    pub max_staleness: u64,
    /// Samples applied.
    pub samples: u64,
}

/// To a server.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ToServer {
    /// Accepted.
    Welcome(Welcome),
    /// Not accepted, or thrown out.
    Refused(String),
    /// The coordinator is still here.
    Pulse,
    /// Make these shards.
    Start(StartServer),
    /// The staged values of this seat are the first values.
    CommitInit {
        /// Whose.
        seat: SeatId,
    },
    /// A seat is gone; hold nobody back for it.
    Depart {
        /// Which seat.
        seat: SeatId,
        /// Its life.
        incarnation: Incarnation,
        /// The new membership generation.
        term: Term,
    },
    /// No more pushes will come: say [`FromServer::Final`].
    Finish,
    /// The job is over.
    Ended(Ended),
    /// Whether the staged values of this seat could be the first values. Committed only when every
    /// server has said so: a seat's word alone could split the model between two seats' values.
    CheckInit {
        /// Whose.
        seat: SeatId,
    },
}

/// What a server needs to make its shards.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct StartServer {
    /// The job.
    pub job: Box<Job>,
    /// The tensors, in order.
    pub layout: Layout,
    /// Its number.
    pub server: ServerId,
    /// Number of servers.
    pub servers: u16,
    /// Number of shards of all servers; it makes those with `shard % servers == server`.
    pub shards: u16,
    /// The live seats and their lives.
    pub seats: Vec<(SeatId, Incarnation)>,
    /// Membership generation.
    pub term: Term,
}

/// First frame of a worker's control stream to a server: what both must agree on.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct DataHello {
    /// Who it is.
    pub hello: Hello,
    /// The seat it works in.
    pub seat: SeatId,
    /// This life of the seat.
    pub incarnation: Incarnation,
    /// Membership generation it knows.
    pub term: Term,
    /// The layout it has.
    pub layout: crate::ids::Fingerprint,
    /// The job it has.
    pub job: crate::ids::Fingerprint,
}

/// A server's answer to a [`DataHello`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum DataWelcome {
    /// Go on: streams with frames follow.
    Accepted,
    /// One sentence: what differs, seen and expected.
    Refused(String),
}

/// From an operator (the command line).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum FromOperator {
    /// Train this; answered by `Accepted` or `Refused`.
    Submit(Box<Job>),
    /// One [`ToOperator::Status`].
    Status,
    /// A [`ToOperator::Status`] several times a second until [`ToOperator::Ended`].
    Watch,
    /// End the job early and keep the model; answered by `Accepted`.
    Stop,
    /// The model as it is now: `ExportChunk`s, then `ExportEnd`.
    Export,
}

/// To an operator.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ToOperator {
    /// Done.
    Accepted,
    /// Not done: one sentence.
    Refused(String),
    /// How things stand.
    Status(Box<ClusterStatus>),
    /// Next part of a safetensors file, at most 1 MiB.
    ExportChunk(Vec<u8>),
    /// The file is complete.
    ExportEnd,
    /// The job is over; `summary` is the text of `summary.json`.
    Ended {
        /// How.
        ended: Ended,
        /// `summary.json`, when there is one.
        summary: Option<String>,
        /// The run's folder on the coordinator's machine.
        run_dir: String,
    },
}

/// How the cluster stands: what `slackline status` and the progress bar show.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ClusterStatus {
    /// `idle`, `gathering`, `training`, `finishing` or `ended`.
    pub phase: String,
    /// The job's name.
    pub job: String,
    /// The job's mode, with its bound.
    pub mode: String,
    /// Seconds since training started.
    pub seconds: f64,
    /// Samples leased and finished.
    pub samples: u64,
    /// Samples of the whole job; 0 when it has no end.
    pub samples_total: u64,
    /// Passes over the data finished.
    pub epoch: u64,
    /// Global step: samples applied over the global batch.
    pub step: u64,
    /// Steps per second over the last seconds.
    pub steps_per_second: f64,
    /// Latest mean training loss; NaN before the first.
    pub loss: f64,
    /// Latest test accuracy; NaN before the first.
    pub accuracy: f64,
    /// Payload bytes of all workers, up.
    pub payload_bytes_up: u64,
    /// Payload bytes of all workers, down.
    pub payload_bytes_down: u64,
    /// Largest staleness seen on any shard.
    pub max_staleness: u64,
    /// Pushes applied by the shard that applied most.
    pub pushes_applied: u64,
    /// Everybody.
    pub members: Vec<MemberStatus>,
    /// Who is missing, since when, in which phase: one sentence each.
    pub missing: Vec<String>,
}

/// One member in a [`ClusterStatus`].
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct MemberStatus {
    /// `worker` or `server`.
    pub role: String,
    /// Its name.
    pub name: String,
    /// Its address, as the coordinator sees it.
    pub address: String,
    /// Seat or server number.
    pub number: Option<u16>,
    /// Where it stands.
    pub phase: Phase,
    /// Milliseconds since it was last heard.
    pub silent_millis: u64,
    /// Worker: steps pushed. Server: the slowest version of its shards.
    pub clock: u64,
    /// Worker: staleness of its last step.
    pub staleness: u64,
    /// Worker: samples pushed.
    pub samples: u64,
    /// Worker: payload bytes, up and down.
    pub payload_bytes: (u64, u64),
    /// Worker: bytes not yet answered.
    pub bytes_outstanding: u64,
    /// Worker, `compress = "auto"`: how it codes.
    pub coding: Option<String>,
    /// Worker: what lossy coding does to its gradients.
    pub fidelity: Option<Fidelity>,
    /// Whether it left, and how.
    pub gone: Option<String>,
}
