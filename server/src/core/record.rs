//! Everything that changes a shard, as values that can be written down and read again.

use bytes::Bytes;
use slackline_common::ids::{Incarnation, SeatId, Step, Term, Version};
use slackline_common::wire::frame::{BlockEntry, Request};

/// One change of a shard. `Engine::apply` is a function of its state and these, and of nothing else.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The first values of a built-in model, from the job's seed.
    InitFromSeed,
    /// First values that a seat brings; nothing is visible until [`Record::CommitInit`].
    Stage {
        /// Whose values.
        seat: SeatId,
        /// The blocks, in body order.
        blocks: Vec<BlockEntry>,
        /// Their bytes.
        body: Bytes,
    },
    /// The staged values of this seat become the first values; all others are dropped.
    CommitInit {
        /// Whose values.
        seat: SeatId,
    },
    /// One part of one step of one seat.
    Push(Push),
    /// `bsp`: every live seat has finished this step; its update is made.
    Close {
        /// The step.
        step: Step,
    },
    /// What has changed since the last publish is encoded for the workers. Where steps are closed a
    /// publish is part of the close.
    Publish {
        /// The publish that this makes: known by it when a log is read again.
        number: u64,
    },
    /// `compress = "auto"`: publishes are coded with this rung of the ladder from now on.
    Down {
        /// Position in `job::LADDER`.
        level: u8,
    },
    /// A seat pushes no more and holds nobody back.
    Leave {
        /// Which seat.
        seat: SeatId,
        /// Its life.
        incarnation: Incarnation,
    },
    /// A seat was taken out by the coordinator.
    Depart {
        /// Which seat.
        seat: SeatId,
        /// Its life.
        incarnation: Incarnation,
        /// The membership generation that begins with this.
        term: Term,
    },
}

/// One part of one step: what a push frame says, without the shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Push {
    /// Whose gradients.
    pub seat: SeatId,
    /// The life of that seat.
    pub incarnation: Incarnation,
    /// The step they belong to.
    pub step: Step,
    /// The version they were computed on.
    pub version: Version,
    /// Samples behind them; the same in every part of a step. 0 makes the push empty.
    pub samples: u32,
    /// This part's number, from 0.
    pub part: u32,
    /// No part with a higher number follows.
    pub last: bool,
    /// Squared gradient norm of every tensor at the last step, or none.
    pub norms: Vec<f64>,
    /// The blocks, in body order.
    pub blocks: Vec<BlockEntry>,
    /// Their bytes.
    pub body: Bytes,
}

impl From<Request> for Push {
    fn from(request: Request) -> Self {
        let Request { seat, incarnation, step, version, samples, part, last, .. } = request;
        let Request { norms, blocks, body, .. } = request;
        Self { seat, incarnation, step, version, samples, part, last, norms, blocks, body }
    }
}

/// Each block of a table with its bytes. The table adds up to the body: `fits` said so.
pub(super) fn payloads<'a>(
    blocks: &'a [BlockEntry],
    body: &'a Bytes,
) -> impl Iterator<Item = (BlockEntry, Bytes)> + 'a {
    let mut at = 0;
    blocks.iter().map(move |entry| {
        let end = at + entry.bytes as usize;
        let bytes = body.slice(at..end);
        at = end;
        (*entry, bytes)
    })
}

/// Whether the table's byte counts add up to the body. A frame decoder has checked that already; a
/// record that somebody made by hand has not been through one.
pub(super) fn fits(blocks: &[BlockEntry], body: &Bytes) -> bool {
    blocks.iter().map(|entry| u64::from(entry.bytes)).sum::<u64>() == body.len() as u64
}
