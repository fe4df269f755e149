//! Parameters on their way down, asked for before they are needed.
//!
//! Step `c` is computed on parameters that hold step `c - in_flight`: those as of the start of step
//! [`Seat::due`]. One pull of every group is under way at a time. With one step in flight it is sent
//! when a step has been pushed, and waited for. With more, the next is sent as soon as the one before has
//! been answered, also in the middle of a gradient ([`Flow::poll`]), and waited for only when the
//! parameters in hand are too old. A push is in the parameters a round trip after it was sent, so
//! `in_flight - 1` steps of computation hide a round trip and the transfers as long as that is not
//! longer than one step; a round trip of several steps needs twice as many, because an answer says
//! what was there when the pull came.
//!
//! Whole values overwrite: they are as new as the reply that brought them. Deltas add up, so in `bsp`
//! they wait until their step is due ([`deltas`](crate::core::deltas)) and the bits do not depend on
//! the network.

use crate::core::answer::Answer;
use crate::core::deltas::Holding;
use crate::core::plan::{Group, Plan};
use crate::net::NetError;
use crate::net::seat::{Oldest, Seat};
use crate::net::servers::Pull;
use slackline_common::ids::{Step, TensorId};
use slackline_common::job::{Job, Mode};
use slackline_common::model::ModelSpec;
use slackline_common::wire::frame::{Reply, ReplyKind};

/// What a pull of deltas may be answered with.
const PUBLISHES: [ReplyKind; 2] = [ReplyKind::Deltas, ReplyKind::Reference];

/// The road of a seat's parameters.
#[derive(Debug)]
pub struct Flow {
    groups: Vec<Group>,
    /// One per group when the job sends deltas.
    holdings: Option<Vec<Holding>>,
    is_bsp: bool,
    asked: Option<Asked>,
    /// Whole values that have all come and are not in the parameters yet.
    ready: Vec<(usize, Answer)>,
    /// What has come holds every step before this one; `None` before the first values.
    holds: Option<Step>,
}

/// A pull under way.
#[derive(Debug)]
struct Asked {
    step: Step,
    pull: Pull,
    missing: usize,
    /// The slowest seat's clock, over the replies that have come.
    slowest: Step,
    /// Whole values that have come.
    come: Vec<(usize, Answer)>,
}

impl Asked {
    fn handle(&mut self, reply: &Reply) {
        self.missing -= 1;
        self.slowest = self.slowest.min(reply.slowest);
    }
}

impl Flow {
    /// The flow of a job whose worker has made the first values by itself, when that is possible.
    pub fn new(job: &Job, plan: &Plan) -> Self {
        Self::of(job, plan, |_| true)
    }

    /// As [`Flow::new`], of some tensors.
    pub fn of(job: &Job, plan: &Plan, wanted: impl FnMut(TensorId) -> bool) -> Self {
        let makes_first = makes_first_values(job);
        let groups =
            if job.sends_deltas() { plan.delta_groups(wanted) } else { plan.groups(wanted) };
        let publish = makes_first.then_some(0);
        let holding = |group: &Group| Holding::new(group.blocks.len(), publish);
        Self {
            holdings: job.sends_deltas().then(|| groups.iter().map(holding).collect()),
            groups,
            is_bsp: job.mode == Mode::Bsp,
            asked: None,
            ready: Vec::new(),
            holds: makes_first.then_some(Step(0)),
        }
    }

    /// Asks for newer parameters unless that has been done or there can be none.
    pub fn ask(&mut self, seat: &Seat) {
        // In `bsp` a reply brings every closed step whatever it was asked for, so no seat is waited for
        // longer than must be. Elsewhere only a seat's own pushes tell how new a reply is.
        let step = match self.holds {
            Some(holds) if self.is_bsp => seat.due().max(holds.next()),
            None if self.is_bsp => seat.due(),
            _ => seat.clock(),
        };
        let is_new = self.holds.is_none_or(|holds| holds < step);
        if self.asked.is_some() || !is_new || step > seat.clock() {
            return;
        }
        let pull = match &self.holdings {
            Some(holdings) => {
                let held = holdings.iter().map(Holding::held);
                seat.request_deltas(step, self.groups.iter().zip(held))
            }
            None => seat.request_for(step, &self.groups),
        };
        let (missing, slowest) = (self.groups.len(), Step(u64::MAX));
        self.asked = Some(Asked { step, pull, missing, slowest, come: Vec::new() });
    }

    /// Takes the replies that have come, without waiting, and asks for more.
    ///
    /// # Errors
    /// As [`Flow::hold`].
    pub fn poll(&mut self, seat: &mut Seat) -> Result<(), NetError> {
        while let Some(asked) = &mut self.asked {
            if asked.missing > 0 {
                let Some((position, reply)) = asked.pull.try_next() else { return Ok(()) };
                let answer = reply?;
                asked.handle(&answer.head);
                self.keep(seat, position, answer)?;
            } else {
                self.finish(seat);
                self.ask(seat);
            }
        }
        Ok(())
    }

    /// Waits until the parameters hold what the next step needs, and puts it into `out`, the flat
    /// parameter vector.
    ///
    /// # Errors
    /// What a server did wrong, or its loss; the first failure.
    pub async fn hold(&mut self, seat: &mut Seat, out: &mut [f32]) -> Result<(), NetError> {
        self.poll(seat)?;
        while self.holds.is_none_or(|holds| holds < seat.due()) {
            self.ask(seat);
            self.wait(seat, out).await?;
            self.finish(seat);
        }
        self.put(seat, out)?;
        self.ask_ahead(seat);
        Ok(())
    }

    /// With one step in flight there is nothing newer to ask for before the next push.
    fn ask_ahead(&mut self, seat: &Seat) {
        if seat.due() < seat.clock() {
            self.ask(seat);
        }
    }

    /// Waits for the replies that are missing. Whole values go to `out` as they come: they are
    /// overwritten as a whole, and nothing is computed before all are there.
    async fn wait(&mut self, seat: &mut Seat, out: &mut [f32]) -> Result<(), NetError> {
        let Some(mut asked) = self.asked.take() else { return Ok(()) };
        self.ready.clear();
        let mut versions = Oldest::new(seat.plan());
        loop {
            let (position, answer) = match asked.come.pop() {
                Some(come) => come,
                None if asked.missing == 0 => break,
                None => {
                    let Some((position, reply)) = asked.pull.next().await else {
                        return Err(NetError::Closed);
                    };
                    let answer = reply?;
                    asked.handle(&answer.head);
                    (position, answer)
                }
            };
            if self.holdings.is_some() {
                self.keep(seat, position, answer)?;
            } else {
                let group = &self.groups[position];
                seat.take(group, &answer, out)?;
                versions.handle(group.shard, answer.head.version);
            }
        }
        seat.set_versions(versions);
        self.asked = Some(asked);
        Ok(())
    }

    /// Keeps a reply until it is due.
    fn keep(&mut self, seat: &mut Seat, position: usize, answer: Answer) -> Result<(), NetError> {
        let group = &self.groups[position];
        match &mut self.holdings {
            Some(holdings) => {
                seat.check(group, &answer.head, &PUBLISHES)?;
                seat.take_norms(group, &answer.head.norms);
                holdings[position]
                    .handle_answer(group, answer)
                    .map_err(|why| seat.wrong(group, why))?;
            }
            None => self.asked.as_mut().expect("a pull under way").come.push((position, answer)),
        }
        Ok(())
    }

    /// Books a pull that has been answered.
    fn finish(&mut self, seat: &Seat) {
        let Some(asked) = self.asked.take() else { return };
        // The shard's clocks are in what it sends: every step of every seat before the slowest's.
        let holds = asked.step.max(asked.slowest.min(seat.clock()));
        self.holds = Some(self.holds.map_or(holds, |before| before.max(holds)));
        if !asked.come.is_empty() {
            self.ready = asked.come;
        }
    }

    /// Puts what is due of what has come into `out`.
    fn put(&mut self, seat: &mut Seat, out: &mut [f32]) -> Result<(), NetError> {
        let plan = std::sync::Arc::clone(seat.plan());
        let mut versions = Oldest::new(&plan);
        let due = self.is_bsp.then(|| seat.due());
        for (group, holding) in self.groups.iter().zip(self.holdings.iter_mut().flatten()) {
            holding.add(&plan, group, due, out).map_err(|why| seat.wrong(group, why))?;
            versions.handle(group.shard, holding.version());
        }
        for (position, answer) in std::mem::take(&mut self.ready) {
            let group = &self.groups[position];
            seat.take(group, &answer, out)?;
            versions.handle(group.shard, answer.head.version);
        }
        seat.set_versions(versions);
        Ok(())
    }
}

/// Whether a worker makes the first values that deltas are added to by itself: built-in models start
/// from the job's seed, with the same bits on every machine, so nothing is downloaded for it.
pub fn makes_first_values(job: &Job) -> bool {
    job.sends_deltas() && job.model != ModelSpec::External
}
