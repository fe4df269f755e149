use super::*;
use crate::wire::pool::BufferPool;
use proptest::prelude::*;

fn push() -> Request {
    let entry = |block, bytes| BlockEntry::new(BlockId(block), bytes, CodecId::F32);
    Request {
        kind: RequestKind::Push,
        last: true,
        shard: ShardId(1),
        seat: SeatId(2),
        incarnation: Incarnation(3),
        step: Step(4),
        version: Version(5),
        samples: 16,
        part: 6,
        norms: vec![0.25],
        blocks: vec![entry(7, 4), entry(9, 8)],
        body: Bytes::from_static(&[0, 0, 128, 63, 1, 2, 3, 4, 5, 6, 7, 8]),
    }
}

fn reply() -> Reply {
    Reply {
        kind: ReplyKind::Parameters,
        refusal: Refusal::None,
        version: Version(8),
        slowest: Step(7),
        publish: 0,
        norms: vec![1.0, 2.0],
        blocks: push().blocks,
        body: push().body,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode<F: Frame>(parts: &[&[u8]]) -> Result<F, FrameError> {
    let mut decoder = Decoder::new(&BufferPool::new(1));
    for part in parts {
        decoder.handle_bytes(part)?;
    }
    decoder.finish()
}

/// Golden bytes: if this fails the protocol changed. Bump its version and docs/PROTOCOL.md.
#[test]
fn push_frame_bytes_are_pinned() {
    let head = [
        "534c",
        "01",
        "01",
        "0100",
        "0200",
        "03000000",
        "02000000",
        "0400000000000000",
        "0500000000000000",
        "10000000",
        "06000000",
        "01000000",
        "0c000000",
        "07000000",
        "04000000",
        "01",
        "000000",
        "09000000",
        "08000000",
        "01",
        "000000",
        "000000000000d03f",
    ];
    assert_eq!(hex(&push().encode_head()), head.concat());
}

#[test]
fn parameters_frame_bytes_are_pinned() {
    let head = [
        "534c",
        "02",
        "00",
        "02000000",
        "0800000000000000",
        "0700000000000000",
        "02000000",
        "0c000000",
        "0000000000000000",
        "07000000",
        "04000000",
        "01",
        "000000",
        "09000000",
        "08000000",
        "01",
        "000000",
        "000000000000f03f",
        "0000000000000040",
    ];
    assert_eq!(hex(&reply().encode_head()), head.concat());
}

/// Two publishes of one block and none of another.
fn deltas() -> Reply {
    let entry = |publish_offset| BlockEntry { publish_offset, ..reply().blocks[0] };
    let (kind, blocks) = (ReplyKind::Deltas, vec![entry(1), entry(0x01_0203)]);
    Reply { kind, publish: 300_000, blocks, body: push().body.slice(..8), ..reply() }
}

#[test]
fn deltas_frame_bytes_are_pinned() {
    let head = [
        "534c",
        "04",
        "00",
        "02000000",
        "0800000000000000",
        "0700000000000000",
        "02000000",
        "08000000",
        "e093040000000000",
        "07000000",
        "04000000",
        "01",
        "010000",
        "07000000",
        "04000000",
        "01",
        "030201",
        "000000000000f03f",
        "0000000000000040",
    ];
    assert_eq!(hex(&deltas().encode_head()), head.concat());
    let bytes = [deltas().encode_head(), deltas().body.to_vec()].concat();
    assert_eq!(decode::<Reply>(&[&bytes]), Ok(deltas()));
}

#[test]
fn publishes_out_of_place_or_order_are_refused() {
    let with = |kind, offsets: [u32; 2]| {
        let entries = deltas().blocks.into_iter().zip(offsets);
        let blocks = entries.map(|(e, publish_offset)| BlockEntry { publish_offset, ..e });
        let reply = Reply { kind, publish: 0, blocks: blocks.collect(), ..deltas() };
        decode::<Reply>(&[&reply.encode_head(), &reply.body])
    };
    let refused = |got| Err(FrameError::Unknown { field: "publish of a block", got });
    assert!(with(ReplyKind::Deltas, [1, 1]).is_ok());
    assert_eq!(with(ReplyKind::Deltas, [2, 1]), refused(1));
    assert_eq!(with(ReplyKind::Deltas, [0, 1]), refused(0));
    assert_eq!(with(ReplyKind::Parameters, [0, 1]), refused(1));
    let error = decode::<Reply>(&[&Reply { publish: 9, ..reply() }.encode_head()]).unwrap_err();
    let field = "publish of a reply without deltas";
    assert_eq!(error, FrameError::Unknown { field, got: 9 });
}

#[test]
fn a_frame_survives_every_cut() {
    let bytes = [push().encode_head(), push().body.to_vec()].concat();
    for cut in 0..=bytes.len() {
        assert_eq!(decode::<Request>(&[&bytes[..cut], &bytes[cut..]]), Ok(push()));
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(decode::<Request>(&single), Ok(push()));
    let bytes = [reply().encode_head(), reply().body.to_vec()].concat();
    for cut in 0..=bytes.len() {
        assert_eq!(decode::<Reply>(&[&bytes[..cut], &bytes[cut..]]), Ok(reply()));
    }
}

#[test]
fn a_frame_without_tail_and_body_is_complete_after_its_header() {
    let ack = Reply::ack(Version(3), Step(2));
    assert_eq!(decode::<Reply>(&[&ack.encode_head()]), Ok(ack));
}

#[test]
fn a_refusal_carries_its_sentence() {
    let refused = Reply::refused(Refusal::UnknownBlock, "no block 9".to_owned());
    let read: Reply = decode(&[&refused.encode_head(), &refused.body]).unwrap();
    assert_eq!((read.refusal, read.sentence().as_str()), (Refusal::UnknownBlock, "no block 9"));
}

#[test]
fn a_frame_cut_short_says_how_much_was_missing() {
    let bytes = [push().encode_head(), push().body.to_vec()].concat();
    for cut in 0..bytes.len() {
        let got = cut as u64;
        assert!(
            matches!(decode::<Request>(&[&bytes[..cut]]), Err(FrameError::Short { got: g, .. }) if g == got)
        );
    }
}

#[test]
fn each_broken_rule_is_named() {
    let check = |at: usize, value: u8, part: &str| {
        let mut bytes = [push().encode_head(), push().body.to_vec()].concat();
        bytes[at] = value;
        let message = decode::<Request>(&[&bytes]).unwrap_err().to_string();
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    };
    check(0, b'X', "starts with");
    check(2, 9, "kind is 9");
    check(3, 2, "last flag is 2");
    check(15, 255, "blocks; at most");
    check(35, 255, "samples; at most");
    check(43, 255, "norms; at most");
    check(47, 255, "body bytes; at most");
    check(44, 11, "12 bytes together, its body 11");
    check(56, 200, "codec is 200");
    check(57, 1, "publish of a block is 1");
    let mut long = [push().encode_head(), push().body.to_vec()].concat();
    long.push(0);
    assert_eq!(decode::<Request>(&[&long]), Err(FrameError::TrailingBytes));
}

proptest! {
    #[test]
    fn random_and_damaged_bytes_never_panic(
        noise in proptest::collection::vec(any::<u8>(), 0..400),
        at in 0usize..92, value in any::<u8>(),
    ) {
        let _ = decode::<Request>(&[&noise]);
        let _ = decode::<Reply>(&[&noise]);
        let mut bytes = [push().encode_head(), push().body.to_vec()].concat();
        bytes[at] = value;
        let _ = decode::<Request>(&[&bytes]);
    }
}
