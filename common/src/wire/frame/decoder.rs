//! Frames from bytes: the fixed header first, then the tail, then the body, however the network cuts
//! them. Every length is checked before anything is buffered for it.

use super::{
    BLOCK_ENTRY_BYTES, BlockEntry, FrameError, MAGIC, PUBLISH_OFFSET_MAX, REPLY_HEADER_BYTES,
    REQUEST_HEADER_BYTES, Refusal, Reply, ReplyKind, Request, RequestKind,
};
use crate::codec::CodecId;
use crate::ids::{BlockId, Incarnation, SeatId, ShardId, Step, Version};
use crate::limits::{FRAME_BLOCKS_MAX, FRAME_BODY_BYTES_MAX, PUSH_SAMPLES_MAX, TENSORS_MAX};
use crate::wire::pool::{BufferPool, PooledBuffer};
use bytes::{Buf, Bytes};

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

    /// Whether entries may name publishes: 1 and up, in rising order.
    fn has_publishes(&self) -> bool;
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
            5 => RequestKind::PullDeltas,
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

    fn has_publishes(&self) -> bool {
        false
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
            4 => ReplyKind::Deltas,
            5 => ReplyKind::Reference,
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
        let publish = header.get_u64_le();
        if publish != 0 && !matches!(kind, ReplyKind::Deltas | ReplyKind::Reference) {
            return unknown("publish of a reply without deltas", publish);
        }
        let (norms, blocks, body) = (Vec::new(), Vec::new(), Bytes::new());
        Ok((Self { kind, refusal, version, slowest, publish, norms, blocks, body }, sizes))
    }

    fn finish(&mut self, blocks: Vec<BlockEntry>, norms: Vec<f64>, body: Bytes) {
        (self.blocks, self.norms, self.body) = (blocks, norms, body);
    }

    fn body_is_blocks(&self) -> bool {
        self.kind != ReplyKind::Refused
    }

    fn has_publishes(&self) -> bool {
        self.kind == ReplyKind::Deltas
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
        let least = u32::from(frame.has_publishes());
        for _ in 0..sizes.blocks {
            let entry = parse_entry(&mut head)?;
            let before = blocks.last().map_or(least, |entry: &BlockEntry| entry.publish_offset);
            let most = if frame.has_publishes() { PUBLISH_OFFSET_MAX } else { 0 };
            if !(before..=most).contains(&entry.publish_offset) {
                return unknown("publish of a block", entry.publish_offset.into());
            }
            blocks.push(entry);
        }
        let norms = (0..sizes.norms).map(|_| head.get_f64_le()).collect();
        let total: u64 = blocks.iter().map(|entry| u64::from(entry.bytes)).sum();
        if frame.body_is_blocks() && total != sizes.body as u64 {
            return Err(FrameError::BodyLength { blocks: total, body: sizes.body as u64 });
        }
        self.tail = Some((blocks, norms));
        Ok(())
    }

    /// Bytes until header and tail are complete: for a reader that keeps the body in the pieces the
    /// network makes, hands over so many bytes and then calls [`Decoder::take_head`].
    pub fn head_missing(&self) -> usize {
        match (&self.frame, &self.tail) {
            (None, _) => F::HEADER_BYTES - self.head.len(),
            (Some((_, sizes)), None) => sizes.tail_bytes() - self.head.len(),
            (Some(_), Some(_)) => 0,
        }
    }

    /// Output: the frame without its body, once header and tail are complete, and how many bytes of
    /// body follow. Once, and only if no byte of the body has been handed over.
    pub fn take_head(&mut self) -> Option<(F, usize)> {
        let (blocks, norms) = self.tail.take()?;
        let (mut frame, sizes) = self.frame.take()?;
        frame.finish(blocks, norms, Bytes::new());
        Some((frame, sizes.body))
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
    let publish_offset = u32::from_le_bytes([head.get_u8(), head.get_u8(), head.get_u8(), 0]);
    Ok(BlockEntry { block, bytes, codec, publish_offset })
}
