//! A seat at work: pushes its steps to all shards and pulls parameters back, step by step. The one
//! implementation behind the raw client and the training worker.

use crate::core::answer::Answer;
use crate::core::bundle::{Bundler, FullPrecision, Head, Sender};
use crate::core::pipeline::{Destination, Norms, PipelineError, decode};
use crate::core::plan::{Group, Plan};
use crate::core::uplink::Uplink;
use crate::net::servers::{Pull, Servers};
use crate::net::{NetError, Patience};
use quinn::Endpoint;
use slackline_common::ids::{Incarnation, SeatId, ShardId, Step, TensorId, Version};
use slackline_common::job::{Job, Mode};
use slackline_common::limits::FRAMES_IN_FLIGHT_MAX;
use slackline_common::wire::control::{DataHello, Hello, NO_SEAT, StartWorker};
use slackline_common::wire::frame::{Reply, ReplyKind, RequestKind};
use slackline_common::wire::pool::BufferPool;
use std::sync::Arc;

/// After a part of so many bytes the sender lets the network run: on a runtime with one thread,
/// encoding would otherwise hold back what is encoded.
const YIELD_BYTES: usize = 128 << 10;

/// The oldest version among the replies of each shard.
#[derive(Debug)]
pub struct Oldest {
    versions: Vec<Option<Version>>,
}

impl Oldest {
    /// No reply yet.
    pub fn new(plan: &Plan) -> Self {
        Self { versions: vec![None; plan.shard_count()] }
    }

    /// Input: the version of some blocks of a shard.
    pub fn handle(&mut self, shard: ShardId, version: Version) {
        let oldest = &mut self.versions[shard.index()];
        *oldest = Some(oldest.map_or(version, |oldest| oldest.min(version)));
    }
}

/// A seat with connections to all servers.
#[derive(Debug)]
pub struct Seat {
    plan: Arc<Plan>,
    servers: Servers,
    sender: Sender,
    bodies: BufferPool,
    uplink: Uplink,
    mode: Mode,
    /// `auto`: the rung of the ladder that parameters should come down with.
    wish: u32,
    /// Steps that a gradient may lag behind what is pushed: one less than are in flight.
    delay: u64,
    clock: Step,
    versions: Vec<Version>,
    /// What to pull when only the release of a step is of interest.
    smallest: Vec<Group>,
    /// Present when the job clips.
    norms: Option<Norms>,
}

impl Seat {
    /// Connects to every server that `start` names.
    ///
    /// # Errors
    /// As [`Servers::connect`]; [`NetError::Unexpected`] when `start` names no server or shard.
    pub async fn connect(
        endpoint: &Endpoint,
        job: &Job,
        start: StartWorker,
        sender: Sender,
        hello: Hello,
        patience: Patience,
    ) -> Result<Self, NetError> {
        let servers = u16::try_from(start.servers.len()).unwrap_or(0);
        if servers == 0 || start.shards == 0 {
            let who = "the coordinator".to_owned();
            let what = format!(
                "names {} servers and {} shards; at least one of each is needed",
                start.servers.len(),
                start.shards
            );
            return Err(NetError::Unexpected { who, what });
        }
        let hello = DataHello {
            hello,
            seat: sender.seat,
            incarnation: sender.incarnation,
            term: start.term,
            layout: start.layout.fingerprint(),
            job: job.hash(),
        };
        let plan = Arc::new(Plan::new(start.layout, start.shards, servers, job.wire));
        let servers = Servers::connect(endpoint, &start.servers, hello, patience).await?;
        Ok(Self {
            norms: job.clip.is_on().then(|| Norms::new(&plan)),
            versions: vec![Version::default(); plan.shard_count()],
            bodies: BufferPool::new(FRAMES_IN_FLIGHT_MAX * start.servers.len()),
            smallest: plan.smallest_groups(),
            uplink: Uplink::new(job, plan.layout(), sender.seat),
            mode: job.mode,
            wish: 0,
            delay: u64::from(job.in_flight.max(1)) - 1,
            plan,
            servers,
            sender,
            clock: Step(0),
        })
    }

    /// What lives where.
    pub const fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The connections.
    pub const fn servers(&self) -> &Servers {
        &self.servers
    }

    /// Steps pushed: the number of the next one.
    pub const fn clock(&self) -> Step {
        self.clock
    }

    /// The oldest version among the shards' last answers.
    pub fn version(&self) -> Version {
        self.versions.iter().copied().min().unwrap_or_default()
    }

    /// Waits until every shard lets this seat push its next step. After a pull of everything that is
    /// known already; otherwise it takes a round trip, and as long as slower seats do.
    ///
    /// # Errors
    /// As [`Seat::receive`].
    pub async fn released(&mut self) -> Result<(), NetError> {
        let Some(bound) = self.mode.bound() else { return Ok(()) };
        let due = self.due();
        let is_held = |shard| self.servers.slowest(shard).0.saturating_add(bound) < due.0;
        let held: Vec<Group> =
            self.smallest.iter().filter(|group| is_held(group.shard)).cloned().collect();
        let mut pull = self.request_for(due, &held);
        while let Some((position, reply)) = pull.next().await {
            self.check(&held[position], &reply?.head, &[ReplyKind::Parameters])?;
        }
        Ok(())
    }

    /// Begins the push of the next step, with `tensors` in it; [`Seat::released`] says when it may.
    ///
    /// # Errors
    /// The failure of an earlier push, told once: nothing of this step has been sent then.
    pub fn begin(&mut self, tensors: &[TensorId], samples: u32) -> Result<Bundler, NetError> {
        self.servers.check()?;
        self.uplink.begin(self.clock);
        let norms = self.norms.as_ref().map(|norms| norms.per_tensor(&self.plan));
        let head = Head {
            sender: self.sender,
            step: self.clock,
            samples,
            versions: self.versions.clone(),
            norms: norms.unwrap_or_default(),
        };
        Ok(Bundler::push(&self.plan, &self.bodies, head, tensors))
    }

    /// Encodes a tensor's gradient and sends every part that it completes.
    ///
    /// # Errors
    /// As [`Servers::send`].
    pub async fn push_tensor(
        &mut self,
        bundler: &mut Bundler,
        tensor: TensorId,
        values: &[f32],
    ) -> Result<(), NetError> {
        let plan = Arc::clone(&self.plan);
        for block in plan.layout().blocks_of(tensor) {
            bundler.handle_block(block, &values[block.range_in_tensor()], &mut self.uplink);
            self.send_ready(bundler).await?;
        }
        Ok(())
    }

    async fn send_ready(&self, bundler: &mut Bundler) -> Result<(), NetError> {
        while let Some(part) = bundler.poll_part() {
            let bytes = part.body.len();
            self.servers.send(part).await?;
            if bytes >= YIELD_BYTES {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Ends the step that `bundler` holds: the clock moves.
    ///
    /// # Errors
    /// As [`Servers::send`].
    ///
    /// # Panics
    /// When an announced tensor has not been pushed.
    pub async fn end(&mut self, mut bundler: Bundler) -> Result<(), NetError> {
        self.send_ready(&mut bundler).await?;
        assert!(bundler.is_done(), "a step ends with every announced tensor in it");
        if let Some(alarm) = self.uplink.poll_alarm() {
            tracing::warn!("{} at step {}: {alarm}", self.sender.seat, self.clock.0);
        }
        self.clock = self.clock.next();
        Ok(())
    }

    /// Pushes a step without content, to keep the clocks moving, as soon as that is allowed.
    ///
    /// # Errors
    /// As [`Seat::released`] and [`Servers::send`].
    pub async fn push_nothing(&mut self) -> Result<(), NetError> {
        self.released().await?;
        let bundler = self.begin(&[], 0)?;
        self.end(bundler).await
    }

    /// Stages first values of every tensor and waits until all shards have them.
    ///
    /// # Errors
    /// As [`Servers::flush`].
    pub async fn stage<'a>(&self, values: impl Fn(TensorId) -> &'a [f32]) -> Result<(), NetError> {
        let tensors: Vec<_> = self.tensors().collect();
        let mut bundler = Bundler::init(&self.plan, &self.bodies, self.sender, &tensors);
        for tensor in tensors {
            for block in self.plan.layout().blocks_of(tensor) {
                let values = &values(tensor)[block.range_in_tensor()];
                bundler.handle_block(block, values, &mut FullPrecision);
                self.send_ready(&mut bundler).await?;
            }
        }
        self.servers.flush().await
    }

    /// Every tensor, in order.
    pub fn tensors(&self) -> impl Iterator<Item = TensorId> + use<> {
        let tensors = self.plan.layout().tensors().len();
        (0..u32::try_from(tensors).expect("at most TENSORS_MAX")).map(TensorId)
    }

    /// The step whose start the parameters of the next step must be as of: its own with one step in
    /// flight, an earlier one with more.
    pub const fn due(&self) -> Step {
        Step(self.clock.0.saturating_sub(self.delay))
    }

    /// Asks for `groups` as this seat may see them at its next step.
    pub fn request(&self, groups: &[Group]) -> Pull {
        self.request_for(self.clock, groups)
    }

    /// Asks for `groups` as this seat may see them at `step`.
    pub fn request_for(&self, step: Step, groups: &[Group]) -> Pull {
        self.request_as(self.sender, step, groups)
    }

    /// Asks for `groups` as they are now, whatever the mode: for tests of the model.
    pub fn request_unbound(&self, groups: &[Group]) -> Pull {
        let nobody = Sender { seat: NO_SEAT, incarnation: Incarnation(0) };
        self.request_as(nobody, self.clock, groups)
    }

    fn request_as(&self, sender: Sender, step: Step, groups: &[Group]) -> Pull {
        let requests = groups.iter().map(|group| {
            let mut request = sender.request(RequestKind::Pull, group.shard, step);
            request.version = self.versions[group.shard.index()];
            request.blocks.clone_from(&group.blocks);
            (request, group.bytes)
        });
        self.servers.pull(requests.collect())
    }

    /// Asks for what was published of each group since the publish beside it, as this seat may see
    /// it at `step`.
    pub fn request_deltas<'a>(
        &self,
        step: Step,
        groups: impl Iterator<Item = (&'a Group, Version)>,
    ) -> Pull {
        let requests = groups.map(|(group, held)| {
            let mut request = self.sender.request(RequestKind::PullDeltas, group.shard, step);
            request.version = held;
            request.part = self.wish;
            request.blocks.clone_from(&group.blocks);
            (request, group.bytes)
        });
        self.servers.pull(requests.collect())
    }

    /// Waits for the replies to `groups` and decodes each into `out` as it comes.
    ///
    /// # Errors
    /// The first failure; what came before it stays in `out`.
    pub async fn receive(
        &mut self,
        groups: &[Group],
        mut pull: Pull,
        out: &mut (impl Destination + ?Sized),
    ) -> Result<(), NetError> {
        let mut versions = Oldest::new(&self.plan);
        while let Some((position, reply)) = pull.next().await {
            let (group, answer) = (&groups[position], reply?);
            self.take(group, &answer, out)?;
            versions.handle(group.shard, answer.head.version);
        }
        self.set_versions(versions);
        Ok(())
    }

    /// Decodes the reply to a pull of a group into `out`.
    ///
    /// # Errors
    /// [`NetError::Reply`], [`NetError::Unexpected`].
    pub fn take(
        &mut self,
        group: &Group,
        answer: &Answer,
        out: &mut (impl Destination + ?Sized),
    ) -> Result<(), NetError> {
        self.check(group, &answer.head, &[ReplyKind::Parameters])?;
        decode(&self.plan, &group.blocks, answer, out).map_err(|why| self.wrong(group, why))?;
        self.take_norms(group, &answer.head.norms);
        Ok(())
    }

    /// Keeps the gradient norms of a reply about a group for the next push.
    pub fn take_norms(&mut self, group: &Group, norms: &[f64]) {
        if let Some(kept) = &mut self.norms {
            kept.handle_reply(&group.blocks, norms);
        }
    }

    /// From now on gradients are computed on these versions.
    pub fn set_versions(&mut self, oldest: Oldest) {
        for (version, seen) in self.versions.iter_mut().zip(oldest.versions) {
            *version = seen.unwrap_or(*version);
        }
    }

    /// What to say of a server whose reply about `group` is not to be believed.
    pub fn wrong(&self, group: &Group, why: PipelineError) -> NetError {
        NetError::Reply { who: self.who(group), why }
    }

    fn who(&self, group: &Group) -> String {
        self.servers.name(self.plan.server_of(group.shard))
    }

    /// Checks that a reply is of one of these kinds.
    ///
    /// # Errors
    /// [`NetError::Unexpected`].
    pub fn check(&self, group: &Group, reply: &Reply, kinds: &[ReplyKind]) -> Result<(), NetError> {
        if kinds.contains(&reply.kind) {
            return Ok(());
        }
        let what = format!("answered a pull with {:?} in place of {kinds:?}", reply.kind);
        Err(NetError::Unexpected { who: self.who(group), what })
    }

    /// Waits until every push is acknowledged.
    ///
    /// # Errors
    /// As [`Servers::flush`].
    pub async fn flush(&self) -> Result<(), NetError> {
        self.servers.flush().await
    }

    /// Waits for the acknowledgements, then tells every shard that this seat pushes no more.
    ///
    /// # Errors
    /// As [`Servers::flush`].
    pub async fn leave(&self) -> Result<(), NetError> {
        self.servers.flush().await?;
        for shard in self.plan.shards() {
            self.servers.send(self.farewell(shard)).await?;
        }
        self.servers.flush().await
    }

    fn farewell(&self, shard: ShardId) -> slackline_common::wire::frame::Request {
        self.sender.request(RequestKind::Leave, shard, self.clock)
    }

    /// `auto`: asks for parameters coded on this rung of the ladder from now on.
    pub const fn set_wish(&mut self, rung: u32) {
        self.wish = rung;
    }

    /// How gradients become bytes.
    pub const fn uplink(&self) -> &Uplink {
        &self.uplink
    }

    /// How gradients become bytes, to change it.
    pub const fn uplink_mut(&mut self) -> &mut Uplink {
        &mut self.uplink
    }

    /// The seat this is.
    pub const fn seat(&self) -> SeatId {
        self.sender.seat
    }
}
