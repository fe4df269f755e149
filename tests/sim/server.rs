//! A shard on its virtual machine: the real one, or one that is wrong in a way we chose, to see that
//! the net catches it. The faults sit around the real engine; it has no hooks for them.

use crate::plan::Plan;
use slackline_common::ids::{SeatId, ShardId, Step};
use slackline_common::wire::control::{NO_SEAT, ShardReport};
use slackline_common::wire::frame::{Reply, Request, RequestKind};
use slackline_server::core::{Effect, Record, Token, Verdict};
use slackline_server::shard::Shard;
use std::collections::BTreeSet;
use std::sync::Arc;

/// How a shard is wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// Not at all.
    None,
    /// Lets every pull go one step too early.
    ReleasesEarly,
    /// Takes a part that came before for a new one.
    AppliesDuplicates,
    /// Acknowledges a push that it does not apply, now and then.
    LosesPushes,
    /// Never answers a pull, now and then.
    ForgetsPulls,
    /// Leaves out the last block of a push, now and then.
    DropsBlocks,
    /// Acknowledges a leave and goes on waiting for the seat.
    ForgetsLeaves,
    /// Goes on waiting for a seat that was taken out.
    ForgetsDepartures,
    /// Starts again from the first values without a log.
    LosesItsMemory,
    /// Refuses a push that keeps all rules, now and then.
    RefusesGoodPushes,
}

/// Every so many requests something goes wrong, where a fault is one of now and then.
const NOW_AND_THEN: u64 = 23;

/// One shard.
#[derive(Debug)]
pub(crate) struct Server {
    plan: Arc<Plan>,
    id: ShardId,
    shard: Shard,
    fault: Fault,
    requests: u64,
    seen: BTreeSet<(SeatId, Step, u32)>,
}

impl Server {
    pub(crate) fn new(plan: &Arc<Plan>, id: ShardId, fault: Fault) -> Self {
        Self {
            shard: start(plan, id),
            plan: Arc::clone(plan),
            id,
            fault,
            requests: 0,
            seen: BTreeSet::new(),
        }
    }

    /// A request arrives. Answers that are ready go to `effects`.
    pub(crate) fn handle_request(
        &mut self,
        mut request: Request,
        token: Token,
        effects: &mut Vec<Effect>,
    ) {
        self.requests += 1;
        let is_now = self.requests.is_multiple_of(NOW_AND_THEN);
        let is_push = request.kind == RequestKind::Push;
        if self.fault == Fault::ForgetsPulls
            && request.kind.is_pull()
            && is_now
            && request.seat != NO_SEAT
        {
            return;
        }
        let acknowledge_only = match self.fault {
            Fault::ForgetsLeaves => request.kind == RequestKind::Leave,
            Fault::LosesPushes => is_push && is_now,
            _ => false,
        };
        if acknowledge_only {
            effects.push(Effect::Reply { token, reply: self.shard.engine().ack() });
            return;
        }
        match self.fault {
            Fault::ReleasesEarly if request.kind.is_pull() => {
                request.step.0 = request.step.0.saturating_sub(1);
            }
            Fault::AppliesDuplicates
                if is_push && !self.seen.insert((request.seat, request.step, request.part)) =>
            {
                request.step = self.shard.engine().clock(request.seat).unwrap_or_default();
            }
            Fault::DropsBlocks if is_push && is_now => {
                if let Some(entry) = request.blocks.pop() {
                    request.body.truncate(request.body.len() - entry.bytes as usize);
                }
            }
            Fault::LosesItsMemory if is_now => self.shard = start(&self.plan, self.id),
            Fault::RefusesGoodPushes if is_push && is_now => request.incarnation.0 += 1,
            _ => {}
        }
        self.shard.handle_request(request, token, effects);
    }

    /// The coordinator's order arrives.
    pub(crate) fn handle_order(&mut self, record: &Record, effects: &mut Vec<Effect>) {
        if self.fault != Fault::ForgetsDepartures {
            self.shard.handle_order(record, effects);
        }
    }

    pub(crate) fn poll_release(&mut self) -> Option<Token> {
        self.shard.poll_release()
    }

    pub(crate) fn read(&mut self, token: Token) -> Option<Reply> {
        self.shard.read(token)
    }

    /// What every worker at the last publish should hold, and that publish's number.
    pub(crate) fn reference(&self) -> (Vec<f32>, u64) {
        let (values, publish) = self.shard.engine().reference().expect("the job sends deltas");
        (values.to_vec(), publish)
    }

    pub(crate) fn cancel(&mut self, token: Token) {
        self.shard.cancel(token);
    }

    pub(crate) fn report(&self) -> ShardReport {
        self.shard.engine().report()
    }

    /// Everything later records build on, as text.
    pub(crate) fn state(&self) -> String {
        self.shard.engine().state_hash().to_string()
    }
}

fn start(plan: &Plan, id: ShardId) -> Shard {
    let mut shard = Shard::new(plan.spec(id));
    assert_eq!(shard.handle_order(&Record::InitFromSeed, &mut Vec::new()), Verdict::Fresh);
    shard
}
