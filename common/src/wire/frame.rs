//! Data frames: a fixed little-endian header, a block table, norms, and raw bytes.
//!
//! One bidirectional QUIC stream carries one [`Request`] and its one [`Reply`]. The body rides as
//! [`Bytes`] and is never re-encoded. [`Decoder`] reads them.

mod decoder;

pub use self::decoder::{Decoder, Frame, Sizes};

use crate::codec::CodecId;
use crate::ids::{BlockId, Incarnation, SeatId, ShardId, Step, Version};
use bytes::{BufMut, Bytes};

/// Publishes one reply may reach over: an entry has 24 bits for it.
pub const PUBLISH_OFFSET_MAX: u32 = (1 << 24) - 1;
/// The first two bytes of every frame: "SL".
pub const MAGIC: [u8; 2] = *b"SL";
/// Bytes of a request's fixed header.
pub const REQUEST_HEADER_BYTES: usize = 48;
/// Bytes of a reply's fixed header.
pub const REPLY_HEADER_BYTES: usize = 40;
/// Bytes of one entry of the block table.
pub const BLOCK_ENTRY_BYTES: usize = 12;

/// What a request asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum RequestKind {
    /// Take these gradients; answered by [`ReplyKind::Ack`] once the shard has applied or kept them.
    Push = 1,
    /// Send these blocks once this seat may start `step`; answered by [`ReplyKind::Parameters`].
    Pull = 2,
    /// Stage these first values; answered by [`ReplyKind::Ack`].
    Init = 3,
    /// This seat pushes no more: hold nobody back for it. Answered by [`ReplyKind::Ack`].
    Leave = 4,
    /// Send what was published of these blocks since the publish that the seat holds, once it may
    /// start `step`; answered by [`ReplyKind::Deltas`] or [`ReplyKind::Reference`]. Only in jobs that
    /// publish deltas ([`Job::sends_deltas`](crate::job::Job::sends_deltas)).
    PullDeltas = 5,
}

impl RequestKind {
    /// Whether it asks for numbers and changes nothing.
    pub const fn is_pull(self) -> bool {
        matches!(self, Self::Pull | Self::PullDeltas)
    }
}

/// What a reply says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum ReplyKind {
    /// Done.
    Ack = 1,
    /// The blocks asked for.
    Parameters = 2,
    /// Not done; the body is a sentence in UTF-8 and `refusal` its kind.
    Refused = 3,
    /// What to add to the blocks asked for, publish after publish: every entry names its publish by
    /// its distance from the one held, in rising order. A block without an entry has not changed.
    Deltas = 4,
    /// All of the blocks asked for as every seat holds them at `publish`, in `f32`.
    Reference = 5,
}

/// Why a shard refused a request. The words of the sentence may change; these numbers may not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Refusal {
    /// Nothing is refused.
    None = 0,
    /// The seat has been taken over or given up; its incarnation is old.
    StaleIncarnation = 1,
    /// The step is further ahead than the mode allows.
    TooFarAhead = 2,
    /// The step was already applied. A push again is acknowledged instead; this is for a push that
    /// names a closed step with new content (a part that never came).
    StepClosed = 3,
    /// A block that this shard does not own, or twice in one step.
    UnknownBlock = 4,
    /// A block whose bytes do not fit its codec and length.
    BadPayload = 5,
    /// The parameters have no first values yet.
    NotInitialised = 6,
    /// The shard is not on this server.
    WrongShard = 7,
    /// The server is shutting down.
    ShuttingDown = 8,
    /// More parts of a step are outstanding than allowed.
    TooManyParts = 9,
}

/// A block's place in a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockEntry {
    /// Which block.
    pub block: BlockId,
    /// Bytes in the body; 0 in a pull.
    pub bytes: u32,
    /// How they are coded; in a pull, the codec wanted.
    pub codec: CodecId,
    /// Deltas: how many publishes after the one held this is, from 1; below 2²⁴. Else 0.
    pub publish_offset: u32,
}

impl BlockEntry {
    /// An entry outside of deltas.
    pub const fn new(block: BlockId, bytes: u32, codec: CodecId) -> Self {
        Self { block, bytes, codec, publish_offset: 0 }
    }
}

/// What a seat asks of a shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What it asks.
    pub kind: RequestKind,
    /// Push only: no further part of this step follows for this shard (`part + 1` is their number).
    pub last: bool,
    /// The shard asked.
    pub shard: ShardId,
    /// The seat asking.
    pub seat: SeatId,
    /// The life of that seat.
    pub incarnation: Incarnation,
    /// Push: the step the gradients belong to. Pull: the step the seat wants to start.
    pub step: Step,
    /// Push: the version the gradients were computed on. Pull: the version the seat holds. A pull of
    /// deltas: the publish the seat holds; `u64::MAX` for none.
    pub version: Version,
    /// Push: samples behind the gradients; the same in every part of a step.
    pub samples: u32,
    /// Push: this part's number, from 0.
    pub part: u32,
    /// Push: squared gradient norm of every tensor at the last step, when the job clips.
    pub norms: Vec<f64>,
    /// The blocks, in body order.
    pub blocks: Vec<BlockEntry>,
    /// The blocks' bytes, one after the other.
    pub body: Bytes,
}

/// A shard's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// What it says.
    pub kind: ReplyKind,
    /// Why not, in a refusal.
    pub refusal: Refusal,
    /// The shard's version.
    pub version: Version,
    /// The slowest live seat's clock when the reply was made.
    pub slowest: Step,
    /// Deltas and reference: the publish that the seat holds with this reply. Else 0.
    pub publish: u64,
    /// Parameters, when the job clips: squared norm of the last gradient of each block in `blocks`.
    /// Deltas and reference: of each block asked for, in that order.
    pub norms: Vec<f64>,
    /// The blocks, in body order.
    pub blocks: Vec<BlockEntry>,
    /// The blocks' bytes, or a refusal's sentence.
    pub body: Bytes,
}

/// Why bytes are not a frame. The peer's fault, always.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FrameError {
    /// Not our protocol.
    #[error("the frame starts with {got:02x?}; every frame starts with {MAGIC:02x?}")]
    Magic {
        /// What was there.
        got: [u8; 2],
    },
    /// A number no version of the protocol uses.
    #[error("the frame's {field} is {got}, which means nothing in this protocol version")]
    Unknown {
        /// Which field.
        field: &'static str,
        /// Its value.
        got: u64,
    },
    /// A count or length beyond its limit.
    #[error("the frame claims {got} {what}; at most {limit} are allowed")]
    TooLarge {
        /// What is counted.
        what: &'static str,
        /// The claim.
        got: u64,
        /// The limit.
        limit: u64,
    },
    /// The table and the body disagree.
    #[error("the frame's blocks have {blocks} bytes together, its body {body}")]
    BodyLength {
        /// Sum over the table.
        blocks: u64,
        /// The header's figure.
        body: u64,
    },
    /// The stream ended inside a frame.
    #[error("the stream ended after {got} bytes of a frame of at least {want}")]
    Short {
        /// Bytes received.
        got: u64,
        /// Bytes needed.
        want: u64,
    },
    /// Bytes after the frame's end.
    #[error("the stream goes on after the frame's end")]
    TrailingBytes,
}

impl Request {
    /// The header, table and norms; the body follows them on the stream as it is.
    pub fn encode_head(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(
            REQUEST_HEADER_BYTES + self.blocks.len() * BLOCK_ENTRY_BYTES + self.norms.len() * 8,
        );
        out.put_slice(&MAGIC);
        out.put_u8(self.kind as u8);
        out.put_u8(u8::from(self.last));
        out.put_u16_le(self.shard.0);
        out.put_u16_le(self.seat.0);
        out.put_u32_le(self.incarnation.0);
        out.put_u32_le(count(self.blocks.len()));
        out.put_u64_le(self.step.0);
        out.put_u64_le(self.version.0);
        out.put_u32_le(self.samples);
        out.put_u32_le(self.part);
        out.put_u32_le(count(self.norms.len()));
        out.put_u32_le(count(self.body.len()));
        put_tail(&mut out, &self.blocks, &self.norms);
        out
    }

    /// Each block with its bytes.
    pub fn payloads(&self) -> impl Iterator<Item = (BlockEntry, Bytes)> + '_ {
        payloads(&self.blocks, &self.body)
    }
}

impl Reply {
    /// A plain acknowledgement.
    pub const fn ack(version: Version, slowest: Step) -> Self {
        Self {
            kind: ReplyKind::Ack,
            refusal: Refusal::None,
            version,
            slowest,
            publish: 0,
            norms: Vec::new(),
            blocks: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// A refusal with its sentence.
    pub fn refused(refusal: Refusal, sentence: String) -> Self {
        Self {
            kind: ReplyKind::Refused,
            refusal,
            body: Bytes::from(sentence),
            ..Self::ack(Version(0), Step(0))
        }
    }

    /// The header, table and norms; the body follows them on the stream as it is.
    pub fn encode_head(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(
            REPLY_HEADER_BYTES + self.blocks.len() * BLOCK_ENTRY_BYTES + self.norms.len() * 8,
        );
        out.put_slice(&MAGIC);
        out.put_u8(self.kind as u8);
        out.put_u8(self.refusal as u8);
        out.put_u32_le(count(self.blocks.len()));
        out.put_u64_le(self.version.0);
        out.put_u64_le(self.slowest.0);
        out.put_u32_le(count(self.norms.len()));
        out.put_u32_le(count(self.body.len()));
        out.put_u64_le(self.publish);
        put_tail(&mut out, &self.blocks, &self.norms);
        out
    }

    /// Each block with its bytes.
    pub fn payloads(&self) -> impl Iterator<Item = (BlockEntry, Bytes)> + '_ {
        payloads(&self.blocks, &self.body)
    }

    /// A refusal's sentence.
    pub fn sentence(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn payloads<'a>(
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

fn count(value: usize) -> u32 {
    u32::try_from(value).expect("frames are built within FRAME_BODY_BYTES_MAX")
}

fn put_tail(out: &mut Vec<u8>, blocks: &[BlockEntry], norms: &[f64]) {
    for entry in blocks {
        out.put_u32_le(entry.block.0);
        out.put_u32_le(entry.bytes);
        out.put_u8(entry.codec as u8);
        out.put_slice(&entry.publish_offset.to_le_bytes()[..3]);
    }
    norms.iter().for_each(|norm| out.put_f64_le(*norm));
}

#[cfg(test)]
mod tests;
