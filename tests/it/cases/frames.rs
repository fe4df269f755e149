//! Frames that our client never sends: old labels, repeated parts, broken ones (E09, E16).

use super::rounds::{elastic_init, first_gradient, second_gradient};
use super::*;
use tests::script::Fault;

/// ElasticDL's synchronous updates, waiting for two (E16), rate 0.1. The first push alone changes
/// nothing; with the second the step is closed with the mean of both, version 1. A third push that is
/// still labelled with that step is refused there; here it looks like a push that comes again after a
/// lost answer (that is how we send again), so it is acknowledged and never applied. Their sparse
/// twin, with ids that occur twice in one push, has no equivalent: a block occurs once in a step.
#[test]
fn a_third_push_labelled_with_a_closed_step_is_not_applied() {
    let sgd = "kind = \"sgd\"\nlearning_rate = 0.1";
    let mut case = Case::new(&job("mode = \"bsp\"", 2, 2, sgd), 2);
    let names = vec!["p0".to_owned(), "p1".to_owned()];
    let read = |step| Op::PullAs(step, names.clone());
    case.hand(
        0,
        vec![
            elastic_init(),
            Op::PushAs(0, first_gradient(), 1),
            Op::Barrier,
            read(1),
            // The third push, with other values than the seat's first one.
            Op::PushAs(0, second_gradient(), 1),
            read(1),
            Op::Barrier,
        ],
    );
    case.hand(
        1,
        vec![
            elastic_init(),
            Op::Barrier,
            read(0),
            Op::PushAs(0, second_gradient(), 1),
            read(1),
            Op::Barrier,
        ],
    );
    let ending = case.finish();
    let start: [&[f32]; 2] = [&[10.0, 20.0, 30.0], &[20.0, 40.0, 60.0]];
    let mean: [&[f32]; 2] = [&[9.95, 19.9, 29.5], &[19.45, 39.35, 59.4]];
    let (first, second) = (ending.pulls(0), ending.pulls(1));
    assert_close(second[0], &start);
    for values in [first[0], first[1], second[1]] {
        assert_close(values, &mean);
    }
    assert_eq!(first[0], first[1]);
    assert_eq!((ending.number("steps"), ending.number("pushes_applied")), (1, 2));
}

/// Every push of a seat comes five times, in every mode: it counts once.
#[test]
fn a_push_that_comes_five_times_counts_once() {
    for mode in ["mode = \"bsp\"", "mode = \"ssp\"\nstaleness = 2", "mode = \"asp\""] {
        let mut case = Case::new(&job(&format!("{mode}\nreduce = \"sum\""), 1, 2, ADD), 2);
        let step = |step| Op::PushAs(step, filled(&["a", "b"], 1.0), 1);
        let mut script = vec![Op::Init(vec![
            declared("a", &[300], Dtype::F32, 0.0),
            declared("b", &[300], Dtype::F32, 0.0),
        ])];
        for number in 0..3 {
            script.extend((0..5).map(|_| step(number)));
        }
        // And once more the oldest.
        script.push(step(0));
        script.push(Op::PullAs(3, vec!["a".to_owned(), "b".to_owned()]));
        case.hand(0, script);
        let ending = case.finish();
        assert_eq!(ending.pulls(0), [[Values::Fill(3.0), Values::Fill(3.0)]], "{mode}");
        assert_eq!((ending.number("steps"), ending.number("pushes_applied")), (3, 3), "{mode}");
    }
}

/// A peer sends frames with one fault each. Every one is refused with the kind of its fault and changes
/// nothing; the servers stay alive, the seat itself can go on, and the other worker finishes with the
/// right numbers. Frames that
/// are none are the next test's.
#[test]
fn broken_frames_are_refused_one_by_one_and_change_nothing() {
    let mut case = Case::new(&job("mode = \"bsp\"\nreduce = \"sum\"", 2, 2, ADD), 2);
    let init = || Op::Init(vec![declared("x", &[1000], Dtype::F32, 0.0)]);
    let ones = || filled(&["x"], 1.0);
    let faults = [
        (Op::Broken(Fault::Incarnation, 0, ones()), "StaleIncarnation"),
        (Op::Broken(Fault::UnknownBlock, 0, ones()), "UnknownBlock"),
        (Op::Broken(Fault::ShortBlock, 0, ones()), "BadPayload"),
        (Op::Broken(Fault::Shard, 0, ones()), "WrongShard"),
        // bsp lets nobody begin step 2 while step 0 is open.
        (Op::PushAs(2, ones(), 1), "TooFarAhead"),
    ];
    let mut script = vec![init()];
    script.extend(faults.iter().map(|(op, _)| op.clone().fails()));
    script.push(Op::PushAs(0, ones(), 1));
    script.push(Op::PullAs(1, vec!["x".to_owned()]));
    case.hand(0, script);
    case.client(1, vec![init(), Op::PushPull(ones(), 1)]);
    let ending = case.finish();
    let kinds: Vec<_> = ending.failures(0).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, faults.map(|(_, kind)| kind));
    (0..2).for_each(|seat| assert_eq!(ending.pulls(seat), [[Values::Fill(2.0)]]));
    assert_eq!((ending.number("steps"), ending.number("pushes_applied")), (1, 2));
}

/// A peer sends bytes that are no frame: a table that promises more than the body has, more samples
/// than the protocol allows. The server closes the connection and says what was wrong; the peer's
/// process ends with that line, and its seat is lost. Nobody waits for it: the other workers make their
/// steps without it.
#[test]
fn a_peer_whose_bytes_are_no_frame_loses_its_seat_and_nobody_waits_for_it() {
    let faults = [(Fault::LyingTable, "bytes together"), (Fault::Samples, "samples")];
    for (fault, part) in faults {
        let mut case = Case::new(&job("mode = \"bsp\"\nreduce = \"sum\"", 3, 2, ADD), 2);
        let init = || Op::Init(vec![declared("x", &[1000], Dtype::F32, 0.0)]);
        let ones = || filled(&["x"], 1.0);
        let broken = Op::Broken(fault, 0, ones());
        let liar = case.cluster.client(Driver::Frames, &[(2, vec![init(), broken])]);
        for seat in 0..2 {
            case.client(seat, vec![init(), Op::PushPull(ones(), 1), Op::PushPull(ones(), 1)]);
        }
        let status = case.cluster.wait_for_end(liar);
        assert_eq!(status.code(), Some(70), "{}", case.cluster.logs());
        let said = case.cluster.log(liar);
        assert!(said.contains(part), "{part:?} is not in {said:?}");
        let ending = case.finish();
        for seat in 0..2 {
            assert_eq!(ending.pulls(seat), [[Values::Fill(2.0)], [Values::Fill(4.0)]]);
        }
        assert_eq!(ending.summary["seats_lost"], serde_json::json!([2]));
    }
}
