//! Data frames: a fixed little-endian header, a block table, norms, and raw bytes.
//!
//! One bidirectional QUIC stream carries one [`Request`] and its one [`Reply`]. The body rides as
//! [`Bytes`] and is never re-encoded. Every length is checked before anything is buffered for it.

use crate::codec::CodecId;
use crate::ids::{BlockId, Incarnation, SeatId, ShardId, Step, Version};
use crate::limits::{FRAME_BLOCKS_MAX, FRAME_BODY_BYTES_MAX, PUSH_SAMPLES_MAX, TENSORS_MAX};
use crate::wire::pool::{BufferPool, PooledBuffer};
use bytes::{Buf, BufMut, Bytes};

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
    /// Push: the version the gradients were computed on. Pull: the version the seat holds.
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
    /// Parameters, when the job clips: squared norm of the last gradient of each block in `blocks`.
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
        out.put_u64_le(0);
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
        out.put_slice(&[0; 3]);
    }
    norms.iter().for_each(|norm| out.put_f64_le(*norm));
}

/// A frame type the [`Decoder`] can read: its header, then a tail of blocks and norms, then a body.
pub trait Frame: Sized {
    /// Bytes of the fixed header.
    const HEADER_BYTES: usize;

    /// Reads the fixed header. Returns the frame without tail and body, and their sizes.
    ///
    /// # Errors
    /// The first rule the header breaks.
    fn parse_header(header: &[u8]) -> Result<(Self, Sizes), FrameError>;

    /// Fills in what follows the header.
    fn finish(&mut self, blocks: Vec<BlockEntry>, norms: Vec<f64>, body: Bytes);

    /// Whether the table's byte counts add up to the body.
    fn body_is_blocks(&self) -> bool;
}

/// What follows a header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sizes {
    /// Entries of the block table.
    pub blocks: usize,
    /// Number of norms.
    pub norms: usize,
    /// Bytes of the body.
    pub body: usize,
}

impl Sizes {
    fn check(blocks: u32, norms: u32, body: u32) -> Result<Self, FrameError> {
        let within = |what, got: u32, limit: usize| {
            let got = got as usize;
            (got <= limit).then_some(got).ok_or(FrameError::TooLarge {
                what,
                got: got as u64,
                limit: limit as u64,
            })
        };
        Ok(Self {
            blocks: within("blocks", blocks, FRAME_BLOCKS_MAX)?,
            norms: within("norms", norms, TENSORS_MAX)?,
            body: within("body bytes", body, FRAME_BODY_BYTES_MAX)?,
        })
    }

    const fn tail_bytes(self) -> usize {
        self.blocks * BLOCK_ENTRY_BYTES + self.norms * 8
    }
}

fn parse_magic(header: &mut &[u8]) -> Result<(), FrameError> {
    let got = [header.get_u8(), header.get_u8()];
    if got == MAGIC { Ok(()) } else { Err(FrameError::Magic { got }) }
}

const fn unknown<T>(field: &'static str, got: u64) -> Result<T, FrameError> {
    Err(FrameError::Unknown { field, got })
}

impl Frame for Request {
    const HEADER_BYTES: usize = REQUEST_HEADER_BYTES;

    fn parse_header(mut header: &[u8]) -> Result<(Self, Sizes), FrameError> {
        parse_magic(&mut header)?;
        let kind = match header.get_u8() {
            1 => RequestKind::Push,
            2 => RequestKind::Pull,
            3 => RequestKind::Init,
            4 => RequestKind::Leave,
            got => return unknown("kind", got.into()),
        };
        let last = match header.get_u8() {
            0 => false,
            1 => true,
            got => return unknown("last flag", got.into()),
        };
        let shard = ShardId(header.get_u16_le());
        let seat = SeatId(header.get_u16_le());
        let incarnation = Incarnation(header.get_u32_le());
        let blocks = header.get_u32_le();
        let step = Step(header.get_u64_le());
        let version = Version(header.get_u64_le());
        let samples = header.get_u32_le();
        if samples > PUSH_SAMPLES_MAX {
            let (what, limit) = ("samples", PUSH_SAMPLES_MAX.into());
            return Err(FrameError::TooLarge { what, got: samples.into(), limit });
        }
        let part = header.get_u32_le();
        let sizes = Sizes::check(blocks, header.get_u32_le(), header.get_u32_le())?;
        let (norms, blocks, body) = (Vec::new(), Vec::new(), Bytes::new());
        let frame = Self {
            kind,
            last,
            shard,
            seat,
            incarnation,
            step,
            version,
            samples,
            part,
            norms,
            blocks,
            body,
        };
        Ok((frame, sizes))
    }

    fn finish(&mut self, blocks: Vec<BlockEntry>, norms: Vec<f64>, body: Bytes) {
        (self.blocks, self.norms, self.body) = (blocks, norms, body);
    }

    fn body_is_blocks(&self) -> bool {
        true
    }
}

impl Frame for Reply {
    const HEADER_BYTES: usize = REPLY_HEADER_BYTES;

    fn parse_header(mut header: &[u8]) -> Result<(Self, Sizes), FrameError> {
        parse_magic(&mut header)?;
        let kind = match header.get_u8() {
            1 => ReplyKind::Ack,
            2 => ReplyKind::Parameters,
            3 => ReplyKind::Refused,
            got => return unknown("kind", got.into()),
        };
        let refusal = match header.get_u8() {
            0 => Refusal::None,
            1 => Refusal::StaleIncarnation,
            2 => Refusal::TooFarAhead,
            3 => Refusal::StepClosed,
            4 => Refusal::UnknownBlock,
            5 => Refusal::BadPayload,
            6 => Refusal::NotInitialised,
            7 => Refusal::WrongShard,
            8 => Refusal::ShuttingDown,
            9 => Refusal::TooManyParts,
            got => return unknown("refusal", got.into()),
        };
        let blocks = header.get_u32_le();
        let version = Version(header.get_u64_le());
        let slowest = Step(header.get_u64_le());
        let sizes = Sizes::check(blocks, header.get_u32_le(), header.get_u32_le())?;
        match header.get_u64_le() {
            0 => {}
            got => return unknown("reserved field", got),
        }
        let (norms, blocks, body) = (Vec::new(), Vec::new(), Bytes::new());
        Ok((Self { kind, refusal, version, slowest, norms, blocks, body }, sizes))
    }

    fn finish(&mut self, blocks: Vec<BlockEntry>, norms: Vec<f64>, body: Bytes) {
        (self.blocks, self.norms, self.body) = (blocks, norms, body);
    }

    fn body_is_blocks(&self) -> bool {
        self.kind != ReplyKind::Refused
    }
}

/// Reads one frame from a stream, however the network cuts it.
#[derive(Debug)]
pub struct Decoder<F> {
    pool: BufferPool,
    head: Vec<u8>,
    frame: Option<(F, Sizes)>,
    tail: Option<(Vec<BlockEntry>, Vec<f64>)>,
    body: Option<PooledBuffer>,
}

impl<F: Frame> Decoder<F> {
    /// A decoder that takes body buffers from `pool`.
    pub fn new(pool: &BufferPool) -> Self {
        let head = Vec::with_capacity(F::HEADER_BYTES + 64 * BLOCK_ENTRY_BYTES);
        Self { pool: pool.clone(), head, frame: None, tail: None, body: None }
    }

    /// Input: the next bytes of the stream.
    ///
    /// # Errors
    /// The first rule the bytes break; the stream is then useless.
    pub fn handle_bytes(&mut self, mut bytes: &[u8]) -> Result<(), FrameError> {
        while !bytes.is_empty() {
            let Some((_, sizes)) = &self.frame else {
                if take(&mut self.head, F::HEADER_BYTES, &mut bytes) {
                    self.frame = Some(F::parse_header(&self.head)?);
                    self.head.clear();
                    self.advance()?;
                }
                continue;
            };
            let sizes = *sizes;
            if self.tail.is_none() {
                if take(&mut self.head, sizes.tail_bytes(), &mut bytes) {
                    self.advance()?;
                }
                continue;
            }
            let body = self.body.get_or_insert_with(|| self.pool.take(sizes.body));
            let missing = sizes.body - body.bytes.len();
            if missing == 0 {
                return Err(FrameError::TrailingBytes);
            }
            let taken = missing.min(bytes.len());
            body.bytes.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Parses the tail once it is complete (at once when it is empty).
    fn advance(&mut self) -> Result<(), FrameError> {
        let Some((frame, sizes)) = &self.frame else { return Ok(()) };
        if self.tail.is_some() || self.head.len() < sizes.tail_bytes() {
            return Ok(());
        }
        let mut head = self.head.as_slice();
        let mut blocks = Vec::with_capacity(sizes.blocks);
        for _ in 0..sizes.blocks {
            blocks.push(parse_entry(&mut head)?);
        }
        let norms = (0..sizes.norms).map(|_| head.get_f64_le()).collect();
        let total: u64 = blocks.iter().map(|entry| u64::from(entry.bytes)).sum();
        if frame.body_is_blocks() && total != sizes.body as u64 {
            return Err(FrameError::BodyLength { blocks: total, body: sizes.body as u64 });
        }
        self.tail = Some((blocks, norms));
        Ok(())
    }

    /// Whether the frame is complete; [`Decoder::finish`] will then succeed.
    pub fn is_complete(&self) -> bool {
        match (&self.frame, &self.tail, &self.body) {
            (Some((_, sizes)), Some(_), body) => {
                body.as_ref().map_or(0, |body| body.bytes.len()) == sizes.body
            }
            _ => false,
        }
    }

    /// Output: the frame, once the stream has ended.
    ///
    /// # Errors
    /// [`FrameError::Short`] when the stream ended inside it.
    pub fn finish(self) -> Result<F, FrameError> {
        let (got, want) = self.progress();
        let complete = self.is_complete();
        match (complete, self.frame, self.tail) {
            (true, Some((mut frame, _)), Some((blocks, norms))) => {
                let body = self.body.map_or_else(Bytes::new, PooledBuffer::freeze);
                frame.finish(blocks, norms, body);
                Ok(frame)
            }
            _ => Err(FrameError::Short { got, want }),
        }
    }

    fn progress(&self) -> (u64, u64) {
        let body = self.body.as_ref().map_or(0, |body| body.bytes.len());
        let (got, want) = match (&self.frame, &self.tail) {
            (None, _) => (self.head.len(), F::HEADER_BYTES),
            (Some((_, sizes)), None) => {
                (F::HEADER_BYTES + self.head.len(), F::HEADER_BYTES + sizes.tail_bytes())
            }
            (Some((_, sizes)), Some(_)) => {
                let head = F::HEADER_BYTES + sizes.tail_bytes();
                (head + body, head + sizes.body)
            }
        };
        (got as u64, want as u64)
    }
}

/// Moves bytes into `head` until it has `want`; says whether it has.
fn take(head: &mut Vec<u8>, want: usize, bytes: &mut &[u8]) -> bool {
    let taken = (want - head.len()).min(bytes.len());
    head.extend_from_slice(&bytes[..taken]);
    *bytes = &bytes[taken..];
    head.len() == want
}

fn parse_entry(head: &mut &[u8]) -> Result<BlockEntry, FrameError> {
    let block = BlockId(head.get_u32_le());
    let bytes = head.get_u32_le();
    let codec = head.get_u8();
    let Ok(codec) = CodecId::try_from(codec) else {
        return unknown("codec", codec.into());
    };
    let padding = [head.get_u8(), head.get_u8(), head.get_u8()];
    if padding != [0; 3] {
        return unknown("padding", u64::from(padding[0].max(padding[1]).max(padding[2])));
    }
    Ok(BlockEntry { block, bytes, codec })
}

#[cfg(test)]
mod tests;
