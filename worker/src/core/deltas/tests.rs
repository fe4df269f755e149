//! Two blocks, whose deltas are powers of two: what is held can be read off the bits.

use super::*;
use bytes::Bytes;
use slackline_common::codec::{F32, PlainCodec};
use slackline_common::job::Wire;
use slackline_common::layout::{Init, Layout, TensorSpec};
use slackline_common::wire::frame::BlockEntry;

fn plan() -> Plan {
    let tensor = |name: &str| TensorSpec::parameter(name, &[1], Init::Zeros);
    Plan::new(Layout::new(vec![tensor("a"), tensor("b")]).unwrap(), 1, 1, Wire::default())
}

/// A reply whose entries are `(block, publish offset, value)`.
fn reply(kind: ReplyKind, publish: u64, slowest: u64, entries: &[(u32, u32, f32)]) -> Answer {
    let mut body = Vec::new();
    let blocks = entries.iter().map(|(block, publish_offset, value)| {
        F32.encode(&[*value], &mut body);
        let entry = BlockEntry::new(BlockId(*block), 4, CodecId::F32);
        BlockEntry { publish_offset: *publish_offset, ..entry }
    });
    let blocks = blocks.collect();
    let ack = Reply::ack(Version(publish.saturating_add(100)), Step(slowest));
    Reply { kind, publish, blocks, body: Bytes::from(body), ..ack }.into()
}

struct Bench {
    plan: Plan,
    group: Group,
    holding: Holding,
    values: Vec<f32>,
}

impl Bench {
    fn new(publish: Option<u64>) -> Self {
        let plan = plan();
        let group = plan.delta_groups(|_| true).remove(0);
        Self { holding: Holding::new(2, publish), plan, group, values: vec![0.0; 2] }
    }

    fn deltas(&mut self, publish: u64, slowest: u64, entries: &[(u32, u32, f32)]) {
        let answer = reply(ReplyKind::Deltas, publish, slowest, entries);
        self.holding.handle_answer(&self.group, answer).unwrap();
    }

    fn reference(&mut self, publish: u64, slowest: u64, values: [f32; 2]) {
        let entries = [(0, 0, values[0]), (1, 0, values[1])];
        let answer = reply(ReplyKind::Reference, publish, slowest, &entries);
        self.holding.handle_answer(&self.group, answer).unwrap();
    }

    fn add(&mut self, step: Option<u64>) -> [f32; 2] {
        let out = self.values.as_mut_slice();
        self.holding.add(&self.plan, &self.group, step.map(Step), out).unwrap();
        [self.values[0], self.values[1]]
    }

    fn refused(&mut self, answer: Answer, part: &str) {
        let error = self.holding.handle_answer(&self.group, answer).unwrap_err();
        assert!(error.to_string().contains(part), "{error} does not say {part:?}");
    }
}

#[test]
fn publishes_are_added_once_and_no_earlier_than_their_step() {
    let mut bench = Bench::new(Some(0));
    assert_eq!(bench.holding.held(), Version(0));
    // Three publishes in one reply; the second changed one block only.
    let entries = [(0, 1, 1.0), (1, 1, 1.0), (1, 2, 2.0), (0, 3, 4.0), (1, 3, 4.0)];
    bench.deltas(3, 3, &entries);
    assert_eq!(bench.holding.held(), Version(3));
    assert_eq!(bench.add(Some(1)), [1.0, 1.0]);
    assert_eq!(bench.holding.version(), Version(101), "the parameters are older than the reply");
    assert_eq!(bench.add(Some(1)), [1.0, 1.0]);
    bench.deltas(4, 4, &[(0, 1, 8.0)]);
    assert_eq!(bench.add(Some(2)), [1.0, 3.0]);
    assert_eq!(bench.add(Some(4)), [13.0, 7.0]);
    assert_eq!((bench.holding.version(), bench.add(None)), (Version(104), [13.0, 7.0]));
}

#[test]
fn without_a_step_all_that_came_is_added() {
    let mut bench = Bench::new(Some(5));
    bench.deltas(7, 9, &[(0, 1, 1.0), (0, 2, 2.0)]);
    bench.deltas(7, 9, &[]);
    bench.deltas(8, 9, &[(1, 1, 4.0)]);
    assert_eq!(bench.add(None), [3.0, 4.0]);
}

#[test]
fn steps_that_changed_nothing_have_no_publish() {
    let mut bench = Bench::new(Some(0));
    // Of steps 0 to 4 the third changed nothing.
    bench.deltas(4, 5, &[(0, 1, 1.0), (0, 2, 2.0), (0, 3, 4.0), (0, 4, 8.0)]);
    assert_eq!(bench.add(Some(5)), [15.0, 0.0]);
    bench.deltas(6, 7, &[(0, 1, 16.0), (0, 2, 32.0)]);
    assert_eq!(bench.add(Some(6)), [31.0, 0.0], "publish 5 is that of step 5");
    assert_eq!(bench.add(Some(7)), [63.0, 0.0]);
}

#[test]
fn a_reference_overwrites_when_it_is_needed() {
    let mut bench = Bench::new(None);
    assert_eq!(bench.holding.held(), Version(u64::MAX));
    bench.reference(2, 2, [3.0, 5.0]);
    assert_eq!(bench.holding.held(), Version(2));
    assert_eq!(bench.add(Some(0)), [3.0, 5.0], "there is nothing else");
    bench.deltas(3, 3, &[(0, 1, 1.0)]);
    bench.reference(6, 6, [9.0, 9.0]);
    assert_eq!(bench.add(Some(3)), [4.0, 5.0], "the deltas before it are enough");
    bench.deltas(7, 7, &[(1, 1, 1.0)]);
    assert_eq!(bench.add(Some(4)), [9.0, 9.0]);
    assert_eq!(bench.add(Some(7)), [9.0, 10.0]);
}

#[test]
fn a_reply_that_cannot_be_is_refused() {
    let deltas = |publish, entries: &[_]| reply(ReplyKind::Deltas, publish, 0, entries);
    let mut bench = Bench::new(None);
    bench.refused(deltas(1, &[(0, 1, 1.0)]), "with publish 1");
    let mut bench = Bench::new(Some(5));
    bench.refused(deltas(4, &[]), "after publish 5 with publish 4");
    bench.refused(deltas(5 + (1 << 24), &[]), "after publish 5");
    bench.refused(deltas(6, &[(0, 2, 1.0)]), "block 0 for publish 7");
    bench.refused(deltas(6, &[(2, 1, 1.0)]), "block 2, which is none of the 2 asked for");
    bench.refused(deltas(7, &[(0, 1, 1.0), (0, 1, 1.0)]), "sent before");
    let reference = |publish, entries: &[_]| reply(ReplyKind::Reference, publish, 0, entries);
    bench.refused(reference(4, &[(0, 0, 1.0), (1, 0, 1.0)]), "with publish 4");
    bench.refused(reference(u64::MAX, &[(0, 0, 1.0), (1, 0, 1.0)]), "after publish 5");
    bench.refused(reference(6, &[(0, 0, 1.0)]), "a pull of 2 blocks with 1 others");
    let mut lossy = reference(6, &[(0, 0, 1.0), (1, 0, 1.0)]);
    lossy.head.blocks[1].codec = CodecId::Bf16;
    bench.refused(lossy, "a reference of block 1 in bf16");
    // Numbers at their end are refused like others.
    let mut bench = Bench::new(Some(u64::MAX - 2));
    bench.refused(deltas(u64::MAX, &[(0, 1, 1.0)]), "with publish");
    bench.refused(deltas(u64::MAX - 1, &[(0, 9, 1.0)]), "block 0 for publish");
}

#[test]
fn a_delta_that_does_not_decode_is_named() {
    let mut bench = Bench::new(Some(0));
    let mut answer = reply(ReplyKind::Deltas, 1, 1, &[(1, 1, 1.0)]);
    answer.head.blocks[0].codec = CodecId::Bf16;
    bench.holding.handle_answer(&bench.group, answer).unwrap();
    let out = bench.values.as_mut_slice();
    let error = bench.holding.add(&bench.plan, &bench.group, None, out).unwrap_err();
    assert!(error.to_string().contains("block 1 does not decode"), "{error}");
}
