//! Invalid use (E09): typed errors, and nobody else notices.

use super::*;

/// Steps of the worker that does everything right.
const STEPS: u32 = 5;

/// One worker misspells a name, gets shape, number format and length wrong, names a tensor twice,
/// declares too many samples. Each is an error with a name of its own, found before anything is sent.
/// It then works on as if nothing had been, and so does the other worker, which never stopped.
///
/// Two of the peers' cases cannot be had here. Sparse gradients with an update on the worker: there are
/// no sparse gradients, and updates are always made on the servers. Asynchronous mode without an
/// optimizer: every job names one; the next test is about a file that does not.
#[test]
fn wrong_calls_are_typed_errors_and_the_job_goes_on() {
    let mut case = Case::new(&job("mode = \"bsp\"\nreduce = \"sum\"", 2, 2, ADD), 2);
    let init = || {
        Op::Init(vec![
            declared("fc1.weight", &[2, 3], Dtype::F32, 0.0),
            declared("fc1.bias", &[3], Dtype::F16, 0.0),
        ])
    };
    let both = ["fc1.weight", "fc1.bias"];
    let step = Op::PushPull(filled(&both, 1.0), 1);
    let check =
        |name: &str, shape: &[u64], dtype| Op::Check(name.to_owned(), shape.to_vec(), dtype);
    let twice = [named("fc1.bias", &[1.0; 3]), named("fc1.bias", &[2.0; 3])].concat();
    let wrong = [
        (pull(&["fc1.wieght"]), "UnknownTensor", "did you mean \"fc1.weight\"?"),
        (Op::Push(named("fc9.bias", &[1.0]), 1), "UnknownTensor", "did you mean \"fc1.bias\"?"),
        (check("fc1.weight", &[3, 2], Dtype::F32), "WrongShape", "has shape [2, 3]"),
        (check("fc1.bias", &[3], Dtype::F32), "WrongDtype", "declared as f16"),
        (Op::Push(named("fc1.weight", &[1.0; 5]), 1), "WrongLength", "has 6 elements"),
        (Op::Push(twice, 1), "TwiceNamed", "name each once"),
        (Op::Push(filled(&both, 1.0), u32::MAX), "TooManySamples", "at most 16777216"),
    ];
    let mut clumsy = vec![init()];
    clumsy.extend(wrong.iter().map(|(op, ..)| op.clone().fails()));
    clumsy.push(check("fc1.bias", &[3], Dtype::F16));
    clumsy.extend((0..STEPS).map(|_| step.clone()));
    case.client(0, clumsy);
    case.client(1, [init()].into_iter().chain((0..STEPS).map(|_| step.clone())).collect());
    let ending = case.finish();
    let failures = ending.failures(0);
    assert_eq!(failures.len(), wrong.len());
    for ((kind, text), (_, expected, part)) in failures.into_iter().zip(&wrong) {
        assert_eq!(kind, *expected);
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    for seat in 0..2 {
        let expected =
            [2.0, 4.0, 6.0, 8.0, 10.0].map(|value| [Values::Fill(value), Values::Fill(value)]);
        assert_eq!(ending.pulls(seat), expected);
        assert_eq!(ending.reports[&seat].clock, u64::from(STEPS));
    }
    assert_eq!(ending.number("pushes_applied"), 2 * u64::from(STEPS));
    assert_eq!(ending.number("contributions_refused"), 0);
}

/// MXNet: asynchronous mode without an optimizer is refused. Ours refuses the file: a job without one
/// never reaches a server.
#[test]
fn a_job_without_an_optimizer_is_refused_when_it_is_submitted() {
    let cluster = Cluster::new("");
    let path = cluster.path("job.toml");
    let text = job("mode = \"asp\"", 2, 1, "");
    fs::write(&path, text.split("[optimizer]").next().unwrap()).unwrap();
    let output = cluster.slackline("submit", &[path.to_str().unwrap(), "--detach"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("optimizer"), "{said}");
}

/// A NaN in a push is not an error of the protocol: that contribution to that block is left out and
/// counted, the others make the step, everybody goes on, and the coordinator's log names the seat.
#[test]
fn a_contribution_with_nan_is_left_out_and_counted() {
    let mut case = Case::new(&job("mode = \"bsp\"", 2, 2, ADD), 2);
    for seat in 0..2u16 {
        let nan =
            ("sick".to_owned(), if seat == 0 { Values::NotANumber } else { Values::Fill(3.0) });
        let fine = ("fine".to_owned(), Values::Fill(f32::from(seat) + 1.0));
        case.client(
            seat,
            vec![
                Op::Init(vec![
                    declared("sick", &[4], Dtype::F32, 0.0),
                    declared("fine", &[4], Dtype::F32, 0.0),
                ]),
                Op::PushPull(vec![nan, fine], 1),
                Op::PushPull(filled(&["sick", "fine"], 1.0), 1),
            ],
        );
    }
    let ending = case.finish();
    for seat in 0..2 {
        let expected = [[3.0, 1.5], [4.0, 2.5]].map(|step| step.map(Values::Fill));
        assert_eq!(ending.pulls(seat), expected);
    }
    assert_eq!(ending.number("contributions_refused"), 1);
    let names_it = |line: &str| line.contains("seat 0") && line.contains("NaN");
    assert!(ending.log.lines().any(names_it), "{}", ending.log);
}
