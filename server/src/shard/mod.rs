//! Drives one engine: [`Shard`] numbers the records and applies them; a thread of its own (`thread`)
//! waits for messages and sends answers, so that arithmetic never blocks the network.
//!
//! A simulator or a bench uses [`Shard`] (or `core::Engine`) directly: it has no thread and no clock.

mod thread;

pub use thread::{Answered, Gone, Ordered, ShardHandle};

use crate::core::{Admission, Effect, Engine, EngineSpec, Record, Token, Verdict};
use slackline_common::wire::frame::{Reply, Request};

/// An engine and the number of its last record: the road of a request without the network.
#[derive(Debug)]
pub struct Shard {
    engine: Engine,
}

impl Shard {
    /// A shard without first values: order [`Record::InitFromSeed`] or let clients stage some.
    pub fn new(spec: EngineSpec) -> Self {
        Self { engine: Engine::new(spec) }
    }

    /// The engine, to look at.
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Takes a request. Its answer, unless it is a pull that waits, and the answers it sets free are
    /// pushed to `effects`; released pulls come out of [`Shard::poll_release`].
    pub fn handle_request(&mut self, request: Request, token: Token, effects: &mut Vec<Effect>) {
        let reply = match self.engine.admit(request, token) {
            Admission::Waiting => return,
            Admission::Refused(reply) | Admission::Duplicate(reply) => reply,
            Admission::Record(record) => {
                self.commit(&record, effects);
                self.engine.ack()
            }
        };
        effects.push(Effect::Reply { token, reply });
    }

    /// Takes a record from the coordinator or from the shard's owner. The verdict is the engine's
    /// from before: only a fresh record changed anything.
    pub fn handle_order(&mut self, record: &Record, effects: &mut Vec<Effect>) -> Verdict {
        let verdict = self.engine.check(record);
        if verdict == Verdict::Fresh {
            self.commit(record, effects);
        }
        verdict
    }

    /// Output: a pull that may be answered now, by [`Shard::read`]. Call until it returns `None`.
    pub fn poll_release(&mut self) -> Option<Token> {
        // A publish may be due for the pull that is next; it tells nobody anything else.
        self.follow(&mut Vec::new());
        self.engine.poll_release()
    }

    /// Encodes a released pull's answer; `None` when it was cancelled.
    pub fn read(&mut self, token: Token) -> Option<Reply> {
        self.engine.read(token)
    }

    /// Nobody waits for this answer any more.
    pub fn cancel(&mut self, token: Token) {
        self.engine.cancel(token);
    }

    /// Applies a record and those that follow from it. A log goes here: `log.append(&record)` gives
    /// the sequence number, and the answer waits for what the job's durability asks.
    fn commit(&mut self, record: &Record, effects: &mut Vec<Effect>) {
        self.engine.apply(self.engine.sequence() + 1, record, effects);
        self.follow(effects);
    }

    /// Applies the records that follow from the state alone.
    fn follow(&mut self, effects: &mut Vec<Effect>) {
        while let Some(record) = self.engine.poll_record() {
            self.engine.apply(self.engine.sequence() + 1, &record, effects);
        }
    }
}
