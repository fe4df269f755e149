//! A reply with its body in the pieces the network made. Values are decoded from the pieces straight
//! to where they belong: putting them together first would be a pass over memory for nothing.

use bytes::Bytes;
use slackline_common::codec::{Codec, CodecError, codec};
use slackline_common::wire::frame::{BlockEntry, Decoder, FrameError, Reply};
use slackline_common::wire::pool::BufferPool;

/// A whole reply.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Everything but the body.
    pub head: Reply,
    body: Vec<Bytes>,
}

impl Answer {
    /// The body in one piece: for a refusal's sentence.
    pub fn sentence(&self) -> String {
        String::from_utf8_lossy(&self.body.concat()).into_owned()
    }

    /// The values of the blocks, one after the other.
    pub fn values(&self) -> Values<'_> {
        Values { pieces: self.body.iter(), piece: &[], whole: Vec::new() }
    }
}

impl From<Reply> for Answer {
    fn from(mut head: Reply) -> Self {
        let body = vec![std::mem::take(&mut head.body)];
        Self { head, body }
    }
}

/// Reads one reply from a stream, however the network cuts it.
#[derive(Debug)]
pub struct AnswerDecoder {
    head: Head,
    body: Vec<Bytes>,
    /// Bytes of the body that are still to come.
    missing: usize,
}

#[derive(Debug)]
enum Head {
    Coming(Box<Decoder<Reply>>),
    Here(Reply),
}

impl Default for AnswerDecoder {
    fn default() -> Self {
        // The head's decoder never gets to a body, so it needs no buffers.
        let head = Head::Coming(Box::new(Decoder::new(&BufferPool::new(0))));
        Self { head, body: Vec::new(), missing: 0 }
    }
}

impl AnswerDecoder {
    /// Input: the next bytes of the stream.
    ///
    /// # Errors
    /// The first rule the bytes break; the stream is then useless.
    pub fn handle_chunk(&mut self, mut chunk: Bytes) -> Result<(), FrameError> {
        while let Head::Coming(decoder) = &mut self.head {
            let wanted = decoder.head_missing();
            if wanted > 0 && chunk.is_empty() {
                return Ok(());
            }
            decoder.handle_bytes(&chunk.split_to(wanted.min(chunk.len())))?;
            if let Some((head, body)) = decoder.take_head() {
                (self.head, self.missing) = (Head::Here(head), body);
            }
        }
        self.missing = self.missing.checked_sub(chunk.len()).ok_or(FrameError::TrailingBytes)?;
        if !chunk.is_empty() {
            self.body.push(chunk);
        }
        Ok(())
    }

    /// Output: the reply, once the stream has ended.
    ///
    /// # Errors
    /// [`FrameError::Short`] when the stream ended inside it.
    pub fn finish(self) -> Result<Answer, FrameError> {
        match self.head {
            Head::Here(head) if self.missing == 0 => Ok(Answer { head, body: self.body }),
            Head::Here(_) => {
                let got = self.body.iter().map(Bytes::len).sum::<usize>() as u64;
                Err(FrameError::Short { got, want: got + self.missing as u64 })
            }
            Head::Coming(decoder) => match decoder.finish() {
                Ok(reply) => Ok(reply.into()),
                Err(error) => Err(error),
            },
        }
    }
}

/// Reads values from pieces.
#[derive(Debug)]
pub struct Values<'a> {
    pieces: std::slice::Iter<'a, Bytes>,
    /// What is left of the piece that is being read.
    piece: &'a [u8],
    /// A block that lies in several pieces, put together.
    whole: Vec<u8>,
}

/// What becomes of the numbers that are there already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Onto {
    Replace,
    Add,
}

impl Values<'_> {
    /// Decodes the next block into `out`.
    ///
    /// # Errors
    /// As [`Codec::decode`] for the block's bytes.
    pub fn decode(&mut self, entry: &BlockEntry, out: &mut [f32]) -> Result<(), CodecError> {
        self.read(entry, Onto::Replace, out)
    }

    /// Adds the next block to `sum`.
    ///
    /// # Errors
    /// As [`Codec::decode_add`] for the block's bytes.
    pub fn decode_add(&mut self, entry: &BlockEntry, sum: &mut [f32]) -> Result<(), CodecError> {
        self.read(entry, Onto::Add, sum)
    }

    /// Passes over the next block.
    pub fn skip(&mut self, entry: &BlockEntry) {
        let mut rest = entry.bytes as usize;
        while rest > 0 {
            rest -= self.take(rest).len();
        }
    }

    fn read(&mut self, entry: &BlockEntry, onto: Onto, out: &mut [f32]) -> Result<(), CodecError> {
        let format = codec(entry.codec);
        match format.element_bytes() {
            Some(each) => self.read_elements(format, each, entry, onto, out),
            None => self.read_whole(format, entry.bytes as usize, onto, out),
        }
    }

    /// A block whose elements are coded each by itself: piece by piece.
    fn read_elements(
        &mut self,
        format: &dyn Codec,
        each: usize,
        entry: &BlockEntry,
        onto: Onto,
        out: &mut [f32],
    ) -> Result<(), CodecError> {
        let (got, expected) = (entry.bytes as usize, out.len() * each);
        if got != expected {
            let (codec, elements) = (entry.codec, out.len());
            return Err(CodecError::Length { codec, elements, got, expected });
        }
        let mut rest = out;
        while !rest.is_empty() {
            let whole = (self.piece.len() / each).min(rest.len());
            if whole == 0 {
                // An element that lies across the border of two pieces, or the border itself.
                let mut element = [0; 4];
                self.gather(&mut element[..each]);
                let (first, others) = rest.split_at_mut(1);
                onto.run(format, &element[..each], first)?;
                rest = others;
                continue;
            }
            let (bytes, piece) = self.piece.split_at(whole * each);
            let (values, others) = rest.split_at_mut(whole);
            onto.run(format, bytes, values)?;
            (self.piece, rest) = (piece, others);
        }
        Ok(())
    }

    /// A block that makes sense as a whole: where it lies when that is in one piece, else put
    /// together. It is part of a body, so it is at most a frame.
    fn read_whole(
        &mut self,
        format: &dyn Codec,
        bytes: usize,
        onto: Onto,
        out: &mut [f32],
    ) -> Result<(), CodecError> {
        let first = self.take(bytes);
        if first.len() == bytes {
            return onto.run(format, first, out);
        }
        let mut whole = std::mem::take(&mut self.whole);
        whole.clear();
        whole.extend_from_slice(first);
        while whole.len() < bytes {
            whole.extend_from_slice(self.take(bytes - whole.len()));
        }
        let outcome = onto.run(format, &whole, out);
        self.whole = whole;
        outcome
    }

    fn gather(&mut self, element: &mut [u8]) {
        let mut rest = element;
        while !rest.is_empty() {
            let bytes = self.take(rest.len());
            let (filled, others) = rest.split_at_mut(bytes.len());
            filled.copy_from_slice(bytes);
            rest = others;
        }
    }
}

impl<'a> Values<'a> {
    /// The next bytes, at most so many and at least one unless none are asked for.
    fn take(&mut self, most: usize) -> &'a [u8] {
        if most == 0 {
            return &[];
        }
        while self.piece.is_empty() {
            self.piece = self.pieces.next().expect("a body is as long as its table says");
        }
        let (taken, piece) = self.piece.split_at(most.min(self.piece.len()));
        self.piece = piece;
        taken
    }
}

impl Onto {
    fn run(self, format: &dyn Codec, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        match self {
            Self::Replace => format.decode(bytes, out),
            Self::Add => format.decode_add(bytes, 1.0, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slackline_common::codec::{
        Bf16, CodecId, CodecSpec, Draw, Encoder, F32, PlainCodec, Rounding,
    };
    use slackline_common::ids::{BlockId, Step, Version};
    use slackline_common::wire::frame::{Refusal, ReplyKind};

    /// Two blocks in different formats and their values.
    fn reply() -> (Reply, Vec<f32>) {
        let values: Vec<f32> = (0u8..20).map(f32::from).collect();
        let mut body = Vec::new();
        F32.encode(&values[..13], &mut body);
        Bf16.encode(&values[13..], &mut body);
        let entry = |block, bytes, codec| BlockEntry::new(BlockId(block), bytes, codec);
        let blocks = vec![entry(3, 52, CodecId::F32), entry(8, 14, CodecId::Bf16)];
        let base = Reply::ack(Version(2), Step(1));
        let kind = ReplyKind::Parameters;
        (Reply { kind, norms: vec![0.5, 0.25], blocks, body: body.into(), ..base }, values)
    }

    fn bytes(reply: &Reply) -> Vec<u8> {
        [reply.encode_head(), reply.body.to_vec()].concat()
    }

    /// Feeds `bytes` in pieces that end at `cuts`.
    fn read(bytes: &[u8], cuts: &[usize]) -> Result<Answer, FrameError> {
        let mut decoder = AnswerDecoder::default();
        let mut at = 0;
        for end in cuts.iter().copied().chain([bytes.len()]) {
            decoder.handle_chunk(Bytes::copy_from_slice(&bytes[at..end]))?;
            at = end;
        }
        decoder.finish()
    }

    fn values(answer: &Answer) -> Vec<f32> {
        let mut out = vec![f32::NAN; 20];
        let mut values = answer.values();
        let (first, second) = out.split_at_mut(13);
        values.decode(&answer.head.blocks[0], first).unwrap();
        values.decode(&answer.head.blocks[1], second).unwrap();
        out
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_values_are_the_same(
            cuts in proptest::collection::vec(0usize..140, 0..12)
        ) {
            let (reply, expected) = reply();
            let bytes = bytes(&reply);
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let answer = read(&bytes, &cuts).unwrap();
            prop_assert_eq!(&answer.head, &Reply { body: Bytes::new(), ..reply });
            prop_assert_eq!(values(&answer), expected);
        }

        #[test]
        fn blocks_that_make_sense_as_a_whole_are_put_together(
            cuts in proptest::collection::vec(0usize..140, 0..12)
        ) {
            // A block of one byte an element and a scale between two in f32, and one that is passed over.
            let (ours, mut body) = ((0u8..30).map(f32::from).collect::<Vec<_>>(), Vec::new());
            let (mut encoder, draw) = (Encoder::default(), Draw { seed: 1 });
            let int8 = CodecSpec::Int8 { rounding: Rounding::Nearest };
            let specs = [(CodecSpec::F32, 3), (int8, 17), (int8, 5), (CodecSpec::F32, 5)];
            let (mut at, mut blocks, mut expected) = (0, Vec::new(), vec![100.0; 30]);
            for (id, (spec, len)) in (0u32..).zip(specs) {
                let (before, range) = (body.len(), at..at + len);
                let codec_id = encoder.encode(&spec, draw, &ours[range.clone()], &mut body);
                codec(codec_id).decode_add(&body[before..], 1.0, &mut expected[range]).unwrap();
                let bytes = u32::try_from(body.len() - before).unwrap();
                blocks.push(BlockEntry::new(BlockId(id), bytes, codec_id));
                at += len;
            }
            let base = Reply::ack(Version(2), Step(1));
            let kind = ReplyKind::Parameters;
            let bytes = bytes(&Reply { kind, blocks, body: body.into(), ..base });
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let answer = read(&bytes, &cuts).unwrap();
            let mut sums = vec![100.0; 30];
            let (mut values, entries) = (answer.values(), &answer.head.blocks);
            values.decode_add(&entries[0], &mut sums[..3]).unwrap();
            values.decode_add(&entries[1], &mut sums[3..20]).unwrap();
            values.skip(&entries[2]);
            values.decode_add(&entries[3], &mut sums[25..]).unwrap();
            expected[20..25].fill(100.0);
            prop_assert_eq!(sums, expected);
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(read(&bytes, &[]));
        }
    }

    #[test]
    fn a_cut_off_or_overlong_reply_is_refused() {
        let whole = bytes(&reply().0);
        for end in 0..whole.len() {
            let error = read(&whole[..end], &[]).unwrap_err();
            assert!(matches!(error, FrameError::Short { .. }), "{end}: {error}");
        }
        let long = [whole, vec![0]].concat();
        assert_eq!(read(&long, &[]).unwrap_err(), FrameError::TrailingBytes);
    }

    #[test]
    fn replies_without_a_body_and_refusals_are_read_too() {
        let ack = Reply::ack(Version(4), Step(2));
        assert_eq!(read(&bytes(&ack), &[7]).unwrap().head, ack);
        let refused = Reply::refused(Refusal::ShuttingDown, "come back later".to_owned());
        let answer = read(&bytes(&refused), &[45]).unwrap();
        assert_eq!(answer.sentence(), "come back later");
        assert_eq!(answer.head.refusal, Refusal::ShuttingDown);
    }

    #[test]
    fn a_block_of_another_length_is_refused() {
        let answer = Answer::from(reply().0);
        let mut short = [0.0; 12];
        let error = answer.values().decode(&answer.head.blocks[0], &mut short).unwrap_err();
        assert!(error.to_string().contains("52 bytes for 12 elements"), "{error}");
    }
}
