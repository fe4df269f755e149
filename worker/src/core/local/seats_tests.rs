//! Several seats in `bsp` rounds, against plain loops in double precision.

use super::*;
use slackline_common::job::AnchorPull;
use slackline_common::layout::{Init, TensorSpec};
use slackline_common::random::symmetric_unit;

const DIGITS: &str = include_str!("../../../../configs/jobs/digits.toml");
const SIZES: [usize; 3] = [5, 3, 1];
const ELEMENTS: usize = 9;

const fn sgd(learning_rate: f32) -> OptimizerSpec {
    OptimizerSpec::Sgd { learning_rate, weight_decay: 0.0 }
}

const fn nesterov(learning_rate: f32, momentum: f32) -> OptimizerSpec {
    OptimizerSpec::Momentum { learning_rate, momentum, weight_decay: 0.0, nesterov: true }
}

const fn local(steps: u32, inner: OptimizerSpec) -> Local {
    Local { steps, inner, begin_step: 0, fragments: 1, delay: 0, mix: 0.0, anchor: None }
}

/// Two parameters and a running statistic.
fn layout() -> Layout {
    let shape = |size: usize| [size as u64];
    Layout::new(vec![
        TensorSpec::parameter("a", &shape(SIZES[0]), Init::Zeros),
        TensorSpec::parameter("b", &shape(SIZES[1]), Init::Zeros),
        TensorSpec::statistic("running", &shape(SIZES[2]), Init::Zeros),
    ])
    .unwrap()
}

fn is_statistic(element: usize) -> bool {
    element >= SIZES[0] + SIZES[1]
}

/// The gradient of a bowl whose middle is elsewhere for each seat and step; of the statistic, the
/// difference to add.
fn gradient(value: f64, element: usize, seat: usize, step: u64) -> f64 {
    let middle = f64::from(symmetric_unit(9, (element * 100 + seat) as u64, step));
    if is_statistic(element) { 0.1 * (middle - value) } else { 2.0 * (value - middle) }
}

/// Samples of a seat's step: seats weigh differently.
const fn samples(seat: usize) -> u32 {
    [16, 8, 24][seat]
}

fn first(element: usize) -> f32 {
    1.0 + 0.25 * f32::from(u8::try_from(element).unwrap())
}

#[derive(Debug)]
struct Seat {
    number: usize,
    walker: Walker,
    parameters: Vec<f32>,
}

impl Seat {
    /// A seat that comes when `clock` pushes are over.
    fn new(job: &Job, number: usize, clock: u64, global: &[f32]) -> Self {
        let id = SeatId(u16::try_from(number).unwrap());
        let mut walker = Walker::new(job, job.local.unwrap(), &layout(), id, Step(clock)).unwrap();
        walker.anchor_mut().copy_from_slice(global);
        let mut parameters = vec![0.0; ELEMENTS];
        walker.restart(&mut parameters);
        Self { number, walker, parameters }
    }

    fn step(&mut self, step: u64) {
        for tensor in fragments::all(&layout()) {
            let range = layout().range(tensor);
            #[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
            let values: Vec<f32> = range
                .map(|at| gradient(self.parameters[at].into(), at, self.number, step) as f32)
                .collect();
            self.walker.handle_gradient(tensor, &values);
        }
        assert!(self.walker.step(samples(self.number), &mut self.parameters));
    }
}

/// Seats in step, and servers that mean and apply.
struct World {
    job: Job,
    seats: Vec<Seat>,
    global: Vec<f32>,
    outer: Vec<BlockState>,
    steps: u64,
    pushes: u64,
}

impl World {
    fn new(seats: usize, local: Local, outer: OptimizerSpec) -> Self {
        let mut job = crate::testing::job(DIGITS, &[]);
        (job.local, job.optimizer) = (Some(local), outer);
        let global: Vec<f32> = (0..ELEMENTS).map(first).collect();
        Self {
            seats: (0..seats).map(|number| Seat::new(&job, number, 0, &global)).collect(),
            outer: SIZES.iter().map(|size| BlockState::new(&outer, *size)).collect(),
            global,
            job,
            steps: 0,
            pushes: 0,
        }
    }

    fn walk(&mut self, steps: u64) {
        for _ in 0..steps {
            self.seats.iter_mut().for_each(|seat| seat.step(self.steps));
            self.steps += 1;
            self.act(Outlook::More);
        }
    }

    fn act(&mut self, outlook: Outlook) {
        while let Some(action) = self.seats[0].walker.rounds().poll(outlook) {
            for seat in &self.seats {
                let theirs = seat.walker.rounds().poll(outlook).unwrap();
                let same = std::mem::discriminant(&theirs) == std::mem::discriminant(&action);
                assert!(same, "{theirs:?} beside {action:?}");
            }
            match action {
                Action::Push { part, is_last, .. } => self.push(part.unwrap(), outlook, is_last),
                Action::Take(part) => {
                    for Seat { walker, parameters, .. } in &mut self.seats {
                        for tensor in walker.tensors(part).to_vec() {
                            let range = walker.layout.range(tensor);
                            walker.anchor[range.clone()].copy_from_slice(&self.global[range]);
                        }
                        walker.take(part, parameters);
                    }
                }
            }
        }
    }

    fn push(&mut self, part: Part, outlook: Outlook, is_last: bool) {
        self.pushes += 1;
        for tensor in self.seats[0].walker.tensors(part).to_vec() {
            let range = layout().range(tensor);
            let mut mean = vec![0.0; range.len()];
            let mut total = 0.0;
            for seat in &mut self.seats {
                let Some(Action::Push { samples, .. }) = seat.walker.rounds().poll(outlook) else {
                    panic!("all push")
                };
                let weight = f64::from(samples);
                total += weight;
                let progress = seat.walker.progress(tensor, &seat.parameters);
                for (mean, value) in mean.iter_mut().zip(progress) {
                    *mean += weight * f64::from(*value);
                }
            }
            #[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
            let mean: Vec<f32> = mean.iter().map(|sum| (sum / total) as f32).collect();
            let values = &mut self.global[range];
            if layout().tensors()[tensor.index()].role == TensorRole::Statistic {
                apply_statistic(values, &mean, 1.0);
            } else {
                let update = Update::whole(self.job.optimizer.learning_rate());
                let state = &mut self.outer[tensor.index()];
                apply(&self.job.optimizer, state, &update, values, &mean);
            }
        }
        for seat in &mut self.seats {
            seat.walker.rounds_mut().handle_pushed(Some(part), is_last);
        }
    }

    /// The largest difference to other parameters, in parts of the largest of those.
    fn distance(&self, other: &[f64]) -> f64 {
        let largest = other.iter().map(|value| value.abs()).fold(0.0, f64::max);
        let pairs = self.global.iter().zip(other);
        pairs.map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max) / largest
    }
}

fn first_values() -> Vec<f64> {
    (0..ELEMENTS).map(|element| first(element).into()).collect()
}

/// Data-parallel descent: the mean of all gradients at the same parameters, step by step.
fn descend(values: &mut [f64], seats: usize, steps: std::ops::Range<u64>, rate: f64) {
    for step in steps {
        let weights: Vec<f64> = (0..seats).map(|seat| samples(seat).into()).collect();
        let total: f64 = weights.iter().sum();
        for (element, value) in values.iter_mut().enumerate() {
            let sum: f64 =
                (0..seats).map(|seat| weights[seat] * gradient(*value, element, seat, step)).sum();
            *value -= if is_statistic(element) { -sum / total } else { rate * sum / total };
        }
    }
}

#[test]
fn rounds_of_one_step_and_an_outer_rate_of_one_are_data_parallel_descent() {
    let mut world = World::new(3, local(1, sgd(0.1)), sgd(1.0));
    let mut expected = first_values();
    for step in 0..30 {
        world.walk(1);
        descend(&mut expected, 3, step..step + 1, 0.1);
        let far = world.distance(&expected);
        assert!(far <= 1e-6, "step {step}: {far}");
    }
    let moved = world.distance(&first_values());
    assert!(moved > 0.1, "training moved nothing: {moved}");
}

#[test]
fn a_post_local_run_is_data_parallel_until_it_begins_to_walk() {
    let mut world = World::new(3, Local { begin_step: 5, ..local(4, sgd(0.1)) }, sgd(1.0));
    let mut expected = first_values();
    world.walk(5);
    descend(&mut expected, 3, 0..5, 0.1);
    assert!(world.distance(&expected) <= 1e-6);
    assert_eq!(world.pushes, 5);
    let before = world.global.clone();
    world.walk(3);
    assert_eq!(world.global, before, "nothing is pushed within a round");
    world.walk(5);
    assert_eq!(world.pushes, 7);
    // Bowls of one curvature: descent is linear, so the mean of walks is the walk of the mean.
    descend(&mut expected, 3, 5..13, 0.1);
    assert!(world.distance(&expected) <= 1e-6);
}

/// DiLoCo in double precision: per seat `H` steps of Nesterov momentum whose velocity is never reset,
/// then one outer Nesterov step with the weighted mean of how far they came.
fn diloco(seats: usize, steps: u64, rounds: u64, inner: (f64, f64), outer: (f64, f64)) -> Vec<f64> {
    let mut global = first_values();
    let mut outer_velocity = [0.0; ELEMENTS];
    let mut velocities = vec![vec![0.0; ELEMENTS]; seats];
    let total: f64 = (0..seats).map(|seat| f64::from(samples(seat))).sum();
    for round in 0..rounds {
        let mut mean = [0.0; ELEMENTS];
        for (seat, velocity) in velocities.iter_mut().enumerate() {
            let mut own = global.clone();
            for step in round * steps..(round + 1) * steps {
                for element in 0..ELEMENTS {
                    let g = gradient(own[element], element, seat, step);
                    if is_statistic(element) {
                        own[element] += g;
                        continue;
                    }
                    velocity[element] = inner.1 * velocity[element] + g;
                    own[element] -= inner.0 * (g + inner.1 * velocity[element]);
                }
            }
            for element in 0..ELEMENTS {
                let weight = f64::from(samples(seat)) / total;
                mean[element] += weight * (global[element] - own[element]);
            }
        }
        for element in 0..ELEMENTS {
            if is_statistic(element) {
                global[element] -= mean[element];
                continue;
            }
            outer_velocity[element] = outer.1 * outer_velocity[element] + mean[element];
            global[element] -= outer.0 * (mean[element] + outer.1 * outer_velocity[element]);
        }
    }
    global
}

#[test]
fn diloco_is_a_plain_loop_over_seats_that_keep_their_velocity() {
    let (inner, outer) = ((0.02, 0.9), (0.7, 0.6));
    let mut world = World::new(3, local(6, nesterov(0.02, 0.9)), nesterov(0.7, 0.6));
    world.walk(6 * 8);
    let expected = diloco(3, 6, 8, inner, outer);
    let far = world.distance(&expected);
    assert!(far <= 1e-5, "{far}");
    // A velocity that starts anew each round ends elsewhere: the bound above can tell.
    let without = diloco(3, 6, 8, (0.02, 0.0), outer);
    assert!(world.distance(&without) > 1e-2);
}

#[test]
fn a_seat_that_returns_agrees_with_the_others_from_its_first_answers_on() {
    let streaming = Local { fragments: 2, ..local(6, sgd(0.1)) };
    let mut world = World::new(2, streaming, sgd(1.0));
    world.walk(2);
    // The second dies; the first goes on alone to the push of step 3; the second returns.
    world.seats.truncate(1);
    world.walk(1);
    world.seats.push(Seat::new(&world.job, 1, 1, &world.global));
    for _ in 0..12 {
        world.walk(1);
        let [a, b] = &world.seats[..] else { panic!("two seats") };
        if world.steps >= 6 {
            let pairs = a.walker.anchor().iter().zip(b.walker.anchor());
            let far = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(far <= 1e-5, "step {}: {far}", world.steps);
        }
        assert_eq!(a.walker.rounds().step(), b.walker.rounds().step());
    }
    assert_eq!(world.pushes, 5);
}

#[test]
fn a_round_longer_than_the_work_is_pushed_as_far_as_it_came() {
    let mut world = World::new(2, local(100, sgd(0.1)), sgd(1.0));
    world.walk(5);
    assert_eq!(world.pushes, 0);
    let own: Vec<Vec<f32>> = world.seats.iter().map(|seat| seat.parameters.clone()).collect();
    world.act(Outlook::Nothing);
    assert_eq!(world.pushes, 1);
    // An outer rate of 1: the mean of where the seats are, weighted 16 to 8.
    let mean: Vec<f64> = (0..ELEMENTS)
        .map(|at| (2.0 * f64::from(own[0][at]) + f64::from(own[1][at])) / 3.0)
        .collect();
    assert!(world.distance(&mean) <= 1e-6);
    world.act(Outlook::Nothing);
    assert_eq!(world.pushes, 1, "nothing is pushed twice");
}

#[test]
fn a_seed_decides_every_bit() {
    let anchor = Some(AnchorPull { probability: 0.3, strength: 0.05 });
    let run = |seed| {
        let walk = Local { fragments: 2, delay: 1, mix: 0.25, anchor, ..local(8, sgd(0.1)) };
        let mut world = World::new(3, walk, nesterov(0.7, 0.5));
        world.job.seed = seed;
        let seats = (0..3).map(|number| Seat::new(&world.job, number, 0, &world.global));
        world.seats = seats.collect();
        world.walk(40);
        world.global.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
