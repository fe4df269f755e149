//! What a seat holds of one group of blocks when parameters come down as deltas: publish after
//! publish, each to be added once and in order.
//!
//! A reply may bring more publishes than the step that is awaited may see. They wait here: in `bsp` a
//! gradient is then computed on the parameters of exactly its step, however early the reply came. A
//! publish is a closed step that changed something, so the publish of a step is known from the last
//! reply's clock and publish. Two things make it uncertain, and then more may be seen than was due,
//! never less: a step that changed nothing (every seat had no samples, or every contribution was
//! refused), until all publishes of the reply that told of it are added; and a reference, which cannot
//! be taken apart.

use crate::core::answer::Answer;
use crate::core::pipeline::{Destination, PipelineError, check_blocks, decode};
use crate::core::plan::{Group, Plan};
use slackline_common::codec::CodecId;
use slackline_common::ids::{BlockId, Step, Version};
use slackline_common::wire::frame::{PUBLISH_OFFSET_MAX, Reply, ReplyKind};
use std::collections::VecDeque;

/// One group's publishes.
#[derive(Debug)]
pub struct Holding {
    /// The publish that the parameters hold; `None` before the first reference.
    added: Option<u64>,
    /// The last publish that has come.
    received: Option<u64>,
    /// The shard's version at `received`.
    version: Version,
    /// Closed steps without a publish, as of the last reply that is added entirely.
    unpublished: u64,
    waiting: VecDeque<Waiting>,
    /// The last publish each block of the group was named in.
    named: Vec<u64>,
}

/// A reply that is not added entirely.
#[derive(Debug)]
struct Waiting {
    answer: Answer,
    /// The publish that the replies before it end with.
    base: Option<u64>,
    /// Entries that have been added.
    done: usize,
}

impl Holding {
    /// Of a group of so many blocks; `publish` is what the seat made by itself, if it could.
    pub fn new(blocks: usize, publish: Option<u64>) -> Self {
        Self {
            added: publish,
            received: publish,
            version: Version(0),
            unpublished: 0,
            waiting: VecDeque::new(),
            named: vec![0; blocks],
        }
    }

    /// What a pull of deltas names: the publish after which the next reply begins; `u64::MAX` for
    /// none.
    pub fn held(&self) -> Version {
        Version(self.received.unwrap_or(u64::MAX))
    }

    /// The version that the parameters of this group have.
    pub fn version(&self) -> Version {
        let missing = self.received.zip(self.added).map_or(0, |(received, added)| received - added);
        Version(self.version.0.saturating_sub(missing))
    }

    /// Input: the reply to a pull that named [`held`](Self::held). It waits for [`add`](Self::add).
    ///
    /// # Errors
    /// [`PipelineError`]: what the reply says is not believed, and nothing of it is used.
    pub fn handle_answer(&mut self, group: &Group, answer: Answer) -> Result<(), PipelineError> {
        let reply = &answer.head;
        match reply.kind {
            ReplyKind::Reference => self.check_reference(group, reply)?,
            _ => self.check_deltas(group, reply)?,
        }
        let base = self.received.replace(reply.publish);
        self.version = reply.version;
        self.waiting.push_back(Waiting { answer, base, done: 0 });
        Ok(())
    }

    fn check_reference(&self, group: &Group, reply: &Reply) -> Result<(), PipelineError> {
        let held = self.received.unwrap_or_default();
        if reply.publish < held || reply.publish == u64::MAX {
            return Err(PipelineError::Publish { held, got: reply.publish });
        }
        check_blocks(&group.blocks, &reply.blocks)?;
        match reply.blocks.iter().find(|entry| entry.codec != CodecId::F32) {
            Some(entry) => Err(PipelineError::Reference { block: entry.block, codec: entry.codec }),
            None => Ok(()),
        }
    }

    fn check_deltas(&mut self, group: &Group, reply: &Reply) -> Result<(), PipelineError> {
        let publishes = self.received.and_then(|held| reply.publish.checked_sub(held));
        let held = self.received.unwrap_or(u64::MAX);
        let is_too_far = |publishes| publishes > u64::from(PUBLISH_OFFSET_MAX);
        // The largest number stands for no publish at all.
        if publishes.is_none_or(is_too_far) || reply.publish == u64::MAX {
            return Err(PipelineError::Publish { held, got: reply.publish });
        }
        for entry in &reply.blocks {
            let publish = held.saturating_add(entry.publish_offset.into());
            let at = position(group, entry.block)?;
            if publish > reply.publish || publish <= self.named[at].max(held) {
                let (block, until) = (entry.block, reply.publish);
                return Err(PipelineError::Delta { block, publish, held, until });
            }
            // A fault later in the table ends the connection's worker: nobody asks again.
            self.named[at] = publish;
        }
        Ok(())
    }

    /// Adds what has come, up to what `step` may see; all of it without a step.
    ///
    /// # Errors
    /// [`PipelineError::Payload`]; what was added before the fault stays.
    pub fn add(
        &mut self,
        plan: &Plan,
        group: &Group,
        step: Option<Step>,
        out: &mut (impl Destination + ?Sized),
    ) -> Result<(), PipelineError> {
        while let Some(waiting) = self.waiting.front_mut() {
            let last = waiting.answer.head.publish;
            let due = step.map_or(last, |step| step.0.saturating_sub(self.unpublished)).min(last);
            if waiting.answer.head.kind == ReplyKind::Reference {
                // Needed only when the deltas before it do not reach as far.
                if step.is_some() && waiting.base.is_some_and(|base| base >= due) {
                    break;
                }
                decode(plan, &group.blocks, &waiting.answer, out)?;
                self.added = Some(last);
            } else {
                waiting.add(plan, due, out)?;
                self.added = self.added.map(|added| added.max(due));
                if due < last {
                    break;
                }
            }
            self.unpublished = waiting.answer.head.slowest.0.saturating_sub(last);
            self.waiting.pop_front();
        }
        Ok(())
    }
}

impl Waiting {
    fn add(
        &mut self,
        plan: &Plan,
        due: u64,
        out: &mut (impl Destination + ?Sized),
    ) -> Result<(), PipelineError> {
        let entries = &self.answer.head.blocks;
        let base = self.base.unwrap_or_default();
        let mut values = self.answer.values();
        entries[..self.done].iter().for_each(|entry| values.skip(entry));
        for entry in &entries[self.done..] {
            if base + u64::from(entry.publish_offset) > due {
                break;
            }
            let block = &plan.layout().blocks()[entry.block.index()];
            values
                .decode_add(entry, out.of(block))
                .map_err(|why| PipelineError::Payload { block: entry.block, why })?;
            self.done += 1;
        }
        Ok(())
    }
}

/// Where a block is in a group; groups are in rising order.
fn position(group: &Group, block: BlockId) -> Result<usize, PipelineError> {
    let found = group.blocks.binary_search_by_key(&block, |entry| entry.block);
    found.map_err(|_| PipelineError::Stranger { block, asked: group.blocks.len() })
}

#[cfg(test)]
mod tests;
