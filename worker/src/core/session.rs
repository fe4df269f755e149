//! Who owes an answer since when: the book of every frame that is on its way.

use slackline_common::ids::{ServerId, ShardId, Step};
use slackline_common::wire::frame::{Reply, Request, RequestKind};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Names one frame until it is answered.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Ticket {
    server: ServerId,
    number: u64,
}

/// A frame without an answer.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    kind: RequestKind,
    shard: ShardId,
    step: Step,
    bytes: u64,
    since: Duration,
}

/// One server's open frames, oldest first.
#[derive(Debug, Default)]
struct Peer {
    waiting: BTreeMap<u64, Waiting>,
    /// The oldest frame a line was printed about, and the age at which the next is due.
    reported: Option<(u64, Duration)>,
}

/// Totals of a seat's life.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Totals {
    /// Encoded gradient bytes that were sent.
    pub payload_bytes_up: u64,
    /// Encoded parameter bytes that came.
    pub payload_bytes_down: u64,
    /// How far ahead of the slowest seat the last pulled step was.
    pub staleness: u64,
}

/// What a server owes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Overdue {
    /// Which server.
    pub server: ServerId,
    /// What the oldest frame asks.
    pub kind: RequestKind,
    /// Its step.
    pub step: Step,
    /// How long it has been waiting.
    pub age: Duration,
    /// Frames without an answer.
    pub frames: usize,
    /// Bytes sent or asked for and not answered.
    pub bytes: u64,
}

impl fmt::Display for Overdue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.kind {
            RequestKind::Push => "pushing",
            RequestKind::Pull | RequestKind::PullDeltas => "pulling for",
            RequestKind::Init => "staging first values at",
            RequestKind::Leave => "leaving after",
        };
        let (step, age, frames, bytes) =
            (self.step.0, self.age.as_secs_f64(), self.frames, self.bytes);
        write!(
            f,
            "no answer for {age:.1} s, {phase} step {step}, {bytes} bytes outstanding in {frames} frames"
        )
    }
}

/// The book of a seat's frames. Time is an argument: any clock that does not go back.
#[derive(Debug)]
pub struct Session {
    peers: Vec<Peer>,
    next: u64,
    /// Frames other than pulls that are not answered: what a flush waits for.
    unacknowledged: usize,
    /// The slowest live seat's clock, as each shard last told.
    slowest: BTreeMap<ShardId, Step>,
    totals: Totals,
}

impl Session {
    /// A book for so many servers.
    pub fn new(servers: usize) -> Self {
        let mut peers = Vec::new();
        peers.resize_with(servers, Peer::default);
        Self {
            peers,
            next: 0,
            unacknowledged: 0,
            slowest: BTreeMap::new(),
            totals: Totals::default(),
        }
    }

    /// Input: a frame is on its way. `reply_bytes` is what it asks for.
    pub fn handle_sent(
        &mut self,
        server: ServerId,
        request: &Request,
        reply_bytes: usize,
        now: Duration,
    ) -> Ticket {
        let number = self.next;
        self.next += 1;
        let body = request.body.len() as u64;
        let waiting = Waiting {
            kind: request.kind,
            shard: request.shard,
            step: request.step,
            bytes: body + reply_bytes as u64,
            since: now,
        };
        self.peers[server.index()].waiting.insert(number, waiting);
        match request.kind {
            RequestKind::Pull | RequestKind::PullDeltas => {}
            RequestKind::Push => {
                self.unacknowledged += 1;
                self.totals.payload_bytes_up += body;
            }
            RequestKind::Init | RequestKind::Leave => self.unacknowledged += 1,
        }
        Ticket { server, number }
    }

    /// Input: the answer to a frame came.
    pub fn handle_reply(&mut self, ticket: Ticket, reply: &Reply) {
        let Some(waiting) = self.close(ticket) else { return };
        let slowest = self.slowest.entry(waiting.shard).or_default();
        *slowest = reply.slowest.max(*slowest);
        if waiting.kind.is_pull() {
            self.totals.payload_bytes_down +=
                reply.blocks.iter().map(|entry| u64::from(entry.bytes)).sum::<u64>();
            self.totals.staleness = waiting.step.0.saturating_sub(reply.slowest.0);
        }
    }

    /// Input: nobody waits for the frame's answer any more.
    pub fn handle_given_up(&mut self, ticket: Ticket) {
        self.close(ticket);
    }

    fn close(&mut self, ticket: Ticket) -> Option<Waiting> {
        let waiting = self.peers[ticket.server.index()].waiting.remove(&ticket.number)?;
        if !waiting.kind.is_pull() {
            self.unacknowledged -= 1;
        }
        Some(waiting)
    }

    /// The slowest live seat's clock on a shard, as far as is known: it may be further by now.
    pub fn slowest(&self, shard: ShardId) -> Step {
        self.slowest.get(&shard).copied().unwrap_or_default()
    }

    /// Frames other than pulls that are not answered.
    pub const fn unacknowledged(&self) -> usize {
        self.unacknowledged
    }

    /// Totals so far.
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// Bytes sent or asked for and not answered, at all servers.
    pub fn bytes_outstanding(&self) -> u64 {
        self.peers.iter().flat_map(|peer| peer.waiting.values()).map(|waiting| waiting.bytes).sum()
    }

    /// What a server owes, if anything.
    pub fn outstanding(&self, server: ServerId, now: Duration) -> Option<Overdue> {
        let waiting = &self.peers[server.index()].waiting;
        let (_, oldest) = waiting.first_key_value()?;
        Some(Overdue {
            server,
            kind: oldest.kind,
            step: oldest.step,
            age: now.saturating_sub(oldest.since),
            frames: waiting.len(),
            bytes: waiting.values().map(|waiting| waiting.bytes).sum(),
        })
    }

    /// Output: a server whose oldest frame is older than `patience` and has not been spoken of, or
    /// is twice as old as when it last was. Call until it returns `None`.
    pub fn poll_overdue(&mut self, now: Duration, patience: Duration) -> Option<Overdue> {
        for server in 0..self.peers.len() {
            let id = ServerId(u16::try_from(server).expect("servers are numbered in u16"));
            let Some(overdue) = self.outstanding(id, now) else { continue };
            let peer = &mut self.peers[server];
            let oldest = peer.waiting.first_key_value().map_or(0, |(number, _)| *number);
            let due = match peer.reported {
                Some((number, next)) if number == oldest => next,
                _ => patience,
            };
            if overdue.age >= due {
                peer.reported = Some((oldest, overdue.age * 2));
                return Some(overdue);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::bundle::Sender;
    use bytes::Bytes;
    use slackline_common::codec::CodecId;
    use slackline_common::ids::{BlockId, Incarnation, SeatId, ShardId, Version};
    use slackline_common::wire::frame::BlockEntry;

    const SERVER: ServerId = ServerId(1);

    fn request(kind: RequestKind, step: u64, body: usize) -> Request {
        let sender = Sender { seat: SeatId(0), incarnation: Incarnation(1) };
        let base = sender.request(kind, ShardId(1), Step(step));
        Request { body: Bytes::from(vec![0; body]), ..base }
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_flush_waits_for_pushes_and_not_for_pulls() {
        let mut session = Session::new(2);
        let push = session.handle_sent(SERVER, &request(RequestKind::Push, 4, 100), 0, at(0));
        let pull = session.handle_sent(SERVER, &request(RequestKind::Pull, 5, 0), 300, at(0));
        assert_eq!((session.unacknowledged(), session.bytes_outstanding()), (1, 400));
        session.handle_reply(push, &Reply::ack(Version(1), Step(3)));
        assert_eq!((session.unacknowledged(), session.bytes_outstanding()), (0, 300));
        let entry = |bytes| BlockEntry::new(BlockId(0), bytes, CodecId::F32);
        let blocks = vec![entry(200), entry(50)];
        session.handle_reply(pull, &Reply { blocks, ..Reply::ack(Version(1), Step(3)) });
        assert_eq!(session.bytes_outstanding(), 0);
        let expected = Totals { payload_bytes_up: 100, payload_bytes_down: 250, staleness: 2 };
        assert_eq!(session.totals(), expected);
        assert_eq!((session.slowest(ShardId(1)), session.slowest(ShardId(0))), (Step(3), Step(0)));
    }

    #[test]
    fn a_frame_that_was_given_up_owes_nothing_and_counts_once() {
        let mut session = Session::new(2);
        let push = session.handle_sent(SERVER, &request(RequestKind::Push, 0, 9), 0, at(0));
        session.handle_given_up(push);
        session.handle_reply(push, &Reply::ack(Version(1), Step(1)));
        assert_eq!((session.unacknowledged(), session.outstanding(SERVER, at(9))), (0, None));
    }

    #[test]
    fn a_silent_server_is_named_once_and_again_when_twice_as_late() {
        let mut session = Session::new(2);
        let push = session.handle_sent(SERVER, &request(RequestKind::Push, 7, 64), 0, at(10));
        session.handle_sent(SERVER, &request(RequestKind::Pull, 8, 0), 36, at(12));
        assert_eq!(session.poll_overdue(at(14), at(5)), None);
        let line = session.poll_overdue(at(15), at(5)).unwrap();
        assert_eq!((line.server, line.frames, line.bytes, line.age), (SERVER, 2, 100, at(5)));
        assert_eq!(
            line.to_string(),
            "no answer for 5.0 s, pushing step 7, 100 bytes outstanding in 2 frames"
        );
        assert_eq!(session.poll_overdue(at(19), at(5)), None);
        assert_eq!(session.poll_overdue(at(20), at(5)).unwrap().age, at(10));
        assert_eq!(session.poll_overdue(at(20), at(5)), None);
        // The next frame has a patience of its own.
        session.handle_reply(push, &Reply::ack(Version(1), Step(8)));
        assert_eq!(session.poll_overdue(at(20), at(5)).unwrap().step, Step(8));
    }
}
