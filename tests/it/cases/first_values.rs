//! Who brings the first values (E07).

use super::*;

const KEYS: u16 = 100;

fn key(number: u16) -> String {
    format!("key{number:02}")
}

/// 100 keys, half of them in `f16`, with what `value` says.
fn keys(value: impl Fn(u16) -> f32) -> Op {
    let one = |number: u16| {
        let dtype = if number < KEYS / 2 { Dtype::F32 } else { Dtype::F16 };
        declared(&key(number), &[2], dtype, value(number))
    };
    Op::Init((0..KEYS).map(one).collect())
}

fn read() -> Op {
    Op::Pull((0..KEYS).map(key).collect())
}

fn each(value: impl Fn(u16) -> f32) -> Vec<Values> {
    (0..KEYS).map(|number| Values::Fill(value(number))).collect()
}

/// MXNet: every worker brings the value k for key k, half of the keys in `f32`, half in `f16`; everybody
/// reads k. In ElasticDL a second read at the version the reader holds brings no tensors; ours
/// brings the same values again, because the caller's arrays are the only copy on its side and may
/// have been overwritten, and a pull is also how a seat waits for its turn.
#[test]
fn every_worker_reads_the_values_that_all_of_them_brought() {
    let mut case = Case::new(&job("mode = \"bsp\"", 3, 2, SGD), 2);
    (0..3).for_each(|seat| case.client(seat, vec![keys(f32::from), read(), read()]));
    let ending = case.finish();
    let expected = each(f32::from);
    (0..3).for_each(|seat| assert_eq!(ending.pulls(seat), [&expected[..], &expected[..]]));
    assert!(ending.winner() < 3);
    assert_eq!((ending.number("steps"), ending.number("pushes_applied")), (0, 0));
    ending.check_model((0..2 * KEYS).map(|at| f32::from(at / 2)));
}

/// The workers bring different values. Whoever is first, everybody has all of that worker's values and
/// none of the others', on both servers; the losers' change nothing, and neither does a second call
/// of `init` by a worker that has its values: it is an error that leaves the client as it was.
/// ElasticDL: the version stays that of the first.
#[test]
fn one_workers_first_values_win_whole_and_all_others_are_left_out() {
    let brought = |seat: u16, number: u16| f32::from(200 * (seat + 1) + number);
    let mut case = Case::new(&job("mode = \"ssp\"\nstaleness = 1", 3, 2, SGD), 2);
    for seat in 0..3 {
        let again = keys(|number| brought(7, number)).fails();
        case.client(seat, vec![keys(|number| brought(seat, number)), read(), again, read()]);
    }
    let ending = case.finish();
    let winner = ending.winner();
    let expected = each(|number| brought(winner, number));
    for seat in 0..3 {
        assert_eq!(ending.pulls(seat), [&expected[..], &expected[..]]);
        let failures = ending.failures(seat);
        assert_eq!(failures[0].0, "AlreadyInitialised");
    }
    assert_eq!((ending.number("steps"), ending.number("samples")), (0, 0));
    ending.check_model((0..2 * KEYS).map(|at| brought(winner, at / 2)));
}

/// ElasticDL's second `push_model`, by a peer that does not use our client: it stages other values
/// after the choice. The servers acknowledge and keep what they have, the coordinator repeats whose
/// values count.
#[test]
fn values_that_are_staged_after_the_choice_are_ignored() {
    let mut case = Case::new(&job("mode = \"bsp\"", 1, 2, SGD), 2);
    let tensors = |value| {
        vec![declared("a", &[3], Dtype::F32, value), declared("b", &[5], Dtype::F32, value)]
    };
    let read = Op::PullAs(0, vec!["a".to_owned(), "b".to_owned()]);
    case.hand(0, vec![Op::Init(tensors(4.0)), read.clone(), Op::StageAgain(tensors(9.0)), read]);
    let ending = case.finish();
    let expected = [Values::Fill(4.0), Values::Fill(4.0)];
    assert_eq!(ending.pulls(0), [&expected, &expected]);
    assert_eq!((ending.winner(), ending.number("steps")), (0, 0));
    ending.check_model([4.0; 8]);
}

/// Before the first values there is nothing to read or to push to, and the sentence says so. The
/// client is none the worse for it.
#[test]
fn reading_and_pushing_before_the_first_values_is_a_typed_error() {
    let mut case = Case::new(&job("mode = \"bsp\"", 1, 1, SGD), 1);
    let push = Op::Push(filled(&["x"], 1.0), 1);
    case.client(
        0,
        vec![
            pull(&["x"]).fails(),
            push.clone().fails(),
            Op::PushAsync(filled(&["x"], 1.0), 1).fails(),
            Op::Flush.fails(),
            Op::Check("x".to_owned(), vec![2], Dtype::F32).fails(),
            Op::Init(vec![declared("x", &[2], Dtype::F32, 1.0)]),
            push,
            pull(&["x"]),
        ],
    );
    let ending = case.finish();
    let failures = ending.failures(0);
    assert_eq!(failures.len(), 5);
    for (kind, text) in failures {
        assert_eq!(kind, "NotInitialised");
        assert!(text.contains("no first values yet"), "{text}");
    }
    assert_eq!(ending.pulls(0), [[Values::Fill(0.0)]]);
}

/// Two clients bring different tensors (Hetu: mismatched groups are an error). Whoever proposes first
/// fixes the layout; the other is refused with the first difference, and both layouts are named. Its
/// seat is free: a client that brings the right tensors takes it and the job goes on.
#[test]
fn a_client_with_another_layout_is_refused_and_its_seat_can_be_taken() {
    let mut case = Case::new(&job("mode = \"bsp\"", 2, 1, SGD), 1);
    let script = |seat: u16| {
        let shape = [2 + u64::from(seat)];
        vec![
            Op::Init(vec![declared("x", &shape, Dtype::F32, 1.0)]),
            Op::PushPull(filled(&["x"], 0.5), 1),
        ]
    };
    let pair: Vec<_> =
        (0..2).map(|seat| case.cluster.client(Driver::Client, &[(seat, script(seat))])).collect();
    let loser = case.cluster.first_to_end(&pair);
    let (out, seat) = if loser == pair[0] { (0, 1) } else { (1, 0) };
    let status = case.cluster.wait_for_end(loser);
    assert_eq!(status.code(), Some(70), "{}", case.cluster.logs());
    let said = case.cluster.log(loser);
    for part in
        ["another layout", &format!("\"x\" [{}]", 2 + out), &format!("\"x\" [{}]", 2 + seat)]
    {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
    case.clients.push(pair[usize::from(seat)]);
    // The right tensors, in the seat that is free now.
    case.client(out, script(seat));
    let ending = case.finish();
    (0..2).for_each(|seat| assert_eq!(ending.pulls(seat), [[Values::Fill(0.5)]]));
    assert_eq!(ending.number("steps"), 1);
}
