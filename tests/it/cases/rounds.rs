//! Steps whose values can be told beforehand: synchronous rounds (E05), trainer steps (E08),
//! asynchronous and late pushes (E15, E18), weighted means (E22).

use super::*;

/// MXNet's synchronous rounds (E05). Seven workers, two servers, everything starts at 1, the server
/// adds twice the sum. In each round every worker pushes rank + 1 and reads back; after round i that
/// is 1 + 2·28·i, which `f16` holds as well. The larger tensor is cut into blocks on both servers.
fn check_rounds(dtype: Dtype) {
    const WORKERS: u16 = 7;
    const EXPECTED: [f32; 7] = [57.0, 113.0, 169.0, 225.0, 281.0, 337.0, 393.0];
    let add = "kind = \"add\"\nlearning_rate = 2.0";
    let mut case = Case::new(&job("mode = \"bsp\"\nreduce = \"sum\"", WORKERS, 2, add), 2);
    for rank in 0..WORKERS {
        let init = Op::Init(vec![
            declared("small", &[2, 3], dtype, 1.0),
            declared("large", &[1200, 1200], dtype, 1.0),
        ]);
        let round = Op::PushPull(filled(&["small", "large"], f32::from(rank) + 1.0), 1);
        let rounds = EXPECTED.map(|_| round.clone());
        case.client(rank, [init].into_iter().chain(rounds).collect());
    }
    let ending = case.finish();
    for rank in 0..WORKERS {
        let expected = EXPECTED.map(|value| [Values::Fill(value), Values::Fill(value)]);
        assert_eq!(ending.pulls(rank), expected, "rank {rank}");
    }
    assert_eq!((ending.number("steps"), ending.number("max_staleness")), (7, 0));
    assert_eq!(ending.number("pushes_applied"), 49);
    ending.check_model((0..6 + 1200 * 1200).map(|_| 393.0));
}

#[test]
fn synchronous_rounds_give_the_exact_integers_in_f32() {
    check_rounds(Dtype::F32);
}

#[test]
fn synchronous_rounds_give_the_exact_integers_in_f16() {
    check_rounds(Dtype::F16);
}

/// MXNet's trainer step (E08): x = 1, rate 1, gradient rank + 1, summed over seven workers:
/// 1 − 28 = −27. Their sparse twin has no equivalent: every push here is dense.
#[test]
fn a_summed_gradient_step_of_seven_workers_gives_minus_27() {
    let mut case = Case::new(&job("mode = \"bsp\"\nreduce = \"sum\"", 7, 2, SGD), 2);
    for rank in 0..7 {
        case.client(
            rank,
            vec![
                Op::Init(vec![declared("x", &[4], Dtype::F32, 1.0)]),
                Op::PushPull(filled(&["x"], f32::from(rank) + 1.0), 1),
            ],
        );
    }
    let ending = case.finish();
    (0..7).for_each(|rank| assert_eq!(ending.pulls(rank), [[Values::Fill(-27.0)]]));
    ending.check_model([-27.0; 4]);
}

/// ElasticDL's parameters and gradients, of E15 and E16.
fn elastic() -> Op {
    Op::Init(vec![
        Declared::new("p0", &[3], Values::List(vec![10.0, 20.0, 30.0])),
        Declared::new("p1", &[3], Values::List(vec![20.0, 40.0, 60.0])),
    ])
}

pub(super) fn first_gradient() -> Named {
    [named("p0", &[1.0, 2.0, 3.0]), named("p1", &[2.0, 4.0, 6.0])].concat()
}

pub(super) fn second_gradient() -> Named {
    [named("p0", &[0.0, 0.0, 7.0]), named("p1", &[9.0, 9.0, 6.0])].concat()
}

/// The script's first line in E16, for the frames made by hand.
pub(super) fn elastic_init() -> Op {
    elastic()
}

/// ElasticDL's asynchronous updates (E15), rate 0.1: each push counts in full as it comes. One worker
/// pushes, the other reads, pushes, and both read; a barrier stands between.
#[test]
fn asynchronous_pushes_are_applied_one_by_one() {
    let sgd = "kind = \"sgd\"\nlearning_rate = 0.1";
    let mut case = Case::new(&job("mode = \"asp\"\nreduce = \"sum\"", 2, 2, sgd), 2);
    let read = pull(&["p0", "p1"]);
    case.client(
        0,
        vec![elastic(), Op::Push(first_gradient(), 1), Op::Barrier, Op::Barrier, read.clone()],
    );
    case.client(
        1,
        vec![
            elastic(),
            Op::Barrier,
            read.clone(),
            Op::Push(second_gradient(), 1),
            read,
            Op::Barrier,
        ],
    );
    let ending = case.finish();
    let after_both: [&[f32]; 2] = [&[9.9, 19.8, 29.0], &[18.9, 38.7, 58.8]];
    let pulls = ending.pulls(1);
    assert_close(pulls[0], &[&[9.9, 19.8, 29.7], &[19.8, 39.6, 59.4]]);
    assert_close(pulls[1], &after_both);
    assert_close(ending.pulls(0)[0], &after_both);
    assert_eq!((ending.number("pushes_applied"), ending.number("samples")), (2, 2));
}

/// ElasticDL's staleness (E18): the rate is divided by max(1, versions since the gradient's
/// parameters). One worker reads version 0 and sleeps through `between` pushes of the other (of zeros,
/// so that only its own counts), then pushes a half; after reading again it is not late any more.
#[test]
fn a_late_gradient_moves_the_model_in_proportion_less() {
    let mode = "mode = \"asp\"\nscale_by_staleness = true\nreduce = \"sum\"";
    let laps = [0u16, 1, 2, 4];
    let mut case = Case::new(&job(mode, 2, 2, SGD), 2);
    let names = laps.map(|between| format!("late{between}"));
    let init =
        || Op::Init(names.iter().map(|name| declared(name, &[1], Dtype::F32, 1.0)).collect());
    let (mut late, mut other) = (vec![init()], vec![init()]);
    for (between, name) in laps.iter().zip(&names) {
        late.extend([pull(&[name]), Op::Barrier, Op::Barrier]);
        late.extend([Op::Push(filled(&[name], 0.5), 1), pull(&[name])]);
        late.extend([Op::Push(filled(&[name], 0.125), 1), pull(&[name])]);
        let zeros: Named = names.iter().map(|name| (name.clone(), Values::Fill(0.0))).collect();
        let pushes = Op::Repeat(u32::from(*between), vec![Op::Push(zeros, 1)]);
        other.extend([Op::Barrier, pushes, Op::Barrier]);
    }
    case.client(0, late);
    case.client(1, other);
    let ending = case.finish();
    for (pulls, divisor) in ending.pulls(0).chunks(3).zip([1.0, 1.0, 2.0, 4.0]) {
        let late = 1.0 - 0.5 / divisor;
        let expected = [[1.0, late, late - 0.125].map(Values::Fill)];
        let got = [[0, 1, 2].map(|at| pulls[at][0].clone())];
        assert_eq!(got, expected, "divisor {divisor}");
    }
}

/// A step of [`check_means`]: a tensor, and the values and samples that each seat pushes to it.
type Weighted<'a> = (&'a str, [(&'a [f32], u32); 3]);

/// Pushes one step after the other, in `bsp` with the mean and an optimizer that adds it to zeros;
/// everybody reads the same at the end.
fn check_means(servers: u16, steps: &[Weighted<'_>]) -> (Vec<Values>, Ending) {
    let names: Vec<_> = steps.iter().map(|(name, _)| *name).collect();
    let mut case = Case::new(&job("mode = \"bsp\"", 3, servers, ADD), servers);
    for seat in 0..3u16 {
        let tensors = names.iter().map(|name| declared(name, &[3], Dtype::F32, 0.0)).collect();
        let pushes = steps.iter().map(|(name, seats)| {
            let (values, samples) = seats[usize::from(seat)];
            Op::Push(named(name, values), samples)
        });
        let script = [Op::Init(tensors)].into_iter().chain(pushes).chain([pull(&names)]);
        case.client(seat, script.collect());
    }
    let ending = case.finish();
    let pulled = ending.pulls(0)[0].to_vec();
    (1..3).for_each(|seat| assert_eq!(ending.pulls(seat), [&pulled[..]]));
    (pulled, ending)
}

/// Flower's aggregates (E22). Values with weights 1 and 2 stay what they are; to the bit when three
/// times the value is exact in `f32`, otherwise within one rounding, because products and sums are
/// rounded one after the other. With equal weights every value is exact. (n, l) = (1, 2), (2, 1), (1, 2)
/// gives 1.5. Weights without a common divisor give what a calculation in `f64` gives. A seat with
/// zero samples is not counted, whatever it pushes. A step in which nobody has a sample ("zero
/// successful clients") changes nothing and makes no version.
#[test]
fn means_are_weighted_by_samples_and_empty_steps_change_nothing() {
    let (even, odd) = ([1.0f32, -0.375, 3.0e6], [0.1f32, -7.3e-12, 1.9e9]);
    let general = [[1.5f32, -2.25, 1.0e-3], [4.0, 0.5, -3.0e-3], [-1.0, 8.0, 7.0e-3]];
    let weights = [5u32, 3, 11];
    let steps: [Weighted<'_>; 7] = [
        ("even", [(&even, 1), (&even, 2), (&odd, 0)]),
        ("odd", [(&odd, 1), (&odd, 2), (&even, 0)]),
        ("equal", [(&odd, 5), (&odd, 5), (&even, 0)]),
        ("losses", [(&[2.0; 3], 1), (&[1.0; 3], 2), (&[2.0; 3], 1)]),
        (
            "general",
            [(&general[0], weights[0]), (&general[1], weights[1]), (&general[2], weights[2])],
        ),
        ("uncounted", [(&[1.0; 3], 4), (&[100.0; 3], 0), (&[7.0; 3], 0)]),
        ("nobody", [(&[1.0; 3], 0), (&[2.0; 3], 0), (&[3.0; 3], 0)]),
    ];
    let mean = |at: usize| {
        let sum: f64 = (0..3).map(|i| f64::from(weights[i]) * f64::from(general[i][at])).sum();
        sum / f64::from(weights.iter().sum::<u32>())
    };
    for servers in [1, 2] {
        let (pulled, ending) = check_means(servers, &steps);
        let exact = [&pulled[0], &pulled[2], &pulled[3], &pulled[5], &pulled[6]];
        let [one_and_a_half, one, zero] = [1.5, 1.0, 0.0].map(Values::Fill);
        assert_eq!(exact, [&exactly(&even), &exactly(&odd), &one_and_a_half, &one, &zero]);
        assert_close(&pulled[1..2], &[&odd]);
        for (at, got) in pulled[4].expand(3).into_iter().enumerate() {
            // Each of five roundings by 2⁻²⁴ of the largest partial sum.
            let largest = (0..3).map(|i| f64::from(weights[i]) * f64::from(general[i][at]).abs());
            let allowed = 5.0 * largest.sum::<f64>() / 19.0 / f64::from(1 << 24);
            assert!((f64::from(got) - mean(at)).abs() <= allowed, "{got} is not {}", mean(at));
        }
        assert_eq!(ending.number("samples"), 3 + 3 + 10 + 4 + 19 + 4);
        // With one server, everything is on shard 0, whose versions and pushes these are.
        if servers == 1 {
            assert_eq!((ending.number("steps"), ending.number("pushes_applied")), (6, 13));
        }
    }
}
