//! Whatever a peer sends, the engine answers and keeps its promises.

use super::*;
use proptest::prelude::*;
use slackline_common::ids::Term;

fn any_request() -> impl Strategy<Value = Request> {
    let kind = prop_oneof![
        6 => Just(RequestKind::Push),
        3 => Just(RequestKind::Pull),
        1 => Just(RequestKind::Init),
        1 => Just(RequestKind::Leave)
    ];
    let small = |max: u64| prop_oneof![20 => 0..max, 1 => any::<u64>()];
    let entry = (0u32..6, prop_oneof![4 => Just(true), 1 => Just(false)], 0usize..3);
    let numbers = (small(4), small(6), 0u32..4, 0u32..5, any::<bool>(), any::<u8>());
    (
        kind,
        numbers,
        proptest::collection::vec(entry, 0..4),
        proptest::collection::vec(any::<f64>(), 0..3),
    )
        .prop_map(|(kind, (seat, step, samples, part, last, fill), entries, norms)| {
            let mut request = request(kind, 0, seat as u16, step);
            let lens = [256usize, 256, 188, 2, 0, 7];
            let mut body = Vec::new();
            for (block, fits, codec_at) in entries {
                let codec = CodecId::PLAIN[codec_at];
                let width = if codec == CodecId::F32 { 4 } else { 2 };
                let bytes = lens[block as usize] * width + usize::from(!fits);
                request.blocks.push(BlockEntry::new(BlockId(block), bytes as u32, codec));
                body.resize(body.len() + bytes, fill);
            }
            if fill % 7 == 0 {
                body.push(0);
            }
            request.body = body.into();
            (request.samples, request.part, request.last) = (samples, part, last);
            if fill % 3 == 0 {
                request.norms = norms;
            }
            request.incarnation = Incarnation(u32::from(fill % 9 != 0));
            request
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_requests_never_panic_and_refusals_change_nothing(
        requests in proptest::collection::vec(any_request(), 0..40),
        mode in prop_oneof![Just(Mode::Bsp), Just(Mode::Ssp { staleness: 1 }), Just(ASP)],
        depart in 0usize..40,
    ) {
        let layout = layout(&[&[700], &[2]], Init::Zeros);
        let mut cluster = Cluster::new(&job(mode, 3, sgd(0.1)), &layout, 1);
        let mut floor = 0;
        for (at, request) in requests.into_iter().enumerate() {
            if at == depart {
                cluster.order(&Record::Depart { seat: SeatId(0), incarnation: LIFE, term: Term(1) });
            }
            let before = cluster.hashes();
            let is_pull = request.kind == RequestKind::Pull;
            let replies = cluster.send(request);
            let own = cluster.tokens;
            let answer = replies.iter().find(|(token, _)| *token == Token(own)).map(|(_, r)| r);
            prop_assert!(is_pull || answer.is_some());
            if answer.is_some_and(|reply| reply.kind == ReplyKind::Refused) || is_pull {
                prop_assert_eq!(before, cluster.hashes());
            }
            let report = cluster.shards[0].engine().report();
            prop_assert!(report.slowest.0 >= floor || report.clocks.is_empty());
            if let Some(bound) = mode.bound() {
                prop_assert!(report.max_staleness <= bound);
                prop_assert!(report.clocks.iter().all(|(_, c)| c.0 <= report.slowest.0 + bound + 1));
            }
            floor = report.slowest.0.min(floor.max(report.slowest.0));
        }
    }
}
