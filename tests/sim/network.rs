//! What happens to messages on their way, and the order in which virtual time lets things happen.

use crate::plan::{NetworkPlan, Plan};
use crate::random::Random;
use std::collections::BTreeMap;

/// A message that was sent so often is not lost again: the faults stop, the run has to finish.
const LOSSES_MAX: u32 = 6;

/// The network and the clock: a queue of events by virtual time, then by the order they were made.
#[derive(Debug)]
pub(crate) struct Network<E> {
    plan: NetworkPlan,
    random: Random,
    queue: BTreeMap<(u64, u64), E>,
    now: u64,
    made: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
}

impl<E: Clone> Network<E> {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            plan: plan.network.clone(),
            random: Random::new(plan.seed, 1),
            queue: BTreeMap::new(),
            now: 0,
            made: 0,
            lost: 0,
            duplicated: 0,
        }
    }

    pub(crate) const fn now(&self) -> u64 {
        self.now
    }

    /// Something that happens so many ticks from now.
    pub(crate) fn after(&mut self, ticks: u64, event: E) {
        self.made += 1;
        self.queue.insert((self.now + ticks, self.made), event);
    }

    /// A message that surely comes, some time.
    pub(crate) fn deliver(&mut self, event: E) {
        let delay = self.random.between(1, self.plan.delay_max);
        let late = if self.random.chance(self.plan.late_percent) { 10 } else { 1 };
        self.after(delay * late, event);
    }

    /// A message that may be lost or come twice; says whether it comes. `attempt` is how often it was
    /// sent before.
    pub(crate) fn send(&mut self, attempt: u32, event: E) -> bool {
        if attempt < LOSSES_MAX && self.random.chance(self.plan.loss_percent) {
            self.lost += 1;
            return false;
        }
        if self.random.chance(self.plan.duplicate_percent) {
            self.duplicated += 1;
            self.deliver(event.clone());
        }
        self.deliver(event);
        true
    }

    /// Luck of the run that is not the network's alone.
    pub(crate) const fn chance(&mut self, percent: u64) -> bool {
        self.random.chance(percent)
    }

    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        self.random.between(low, high)
    }

    /// The next thing that happens; time goes there.
    pub(crate) fn poll_event(&mut self) -> Option<E> {
        let ((now, _), event) = self.queue.pop_first()?;
        self.now = now;
        Some(event)
    }
}
