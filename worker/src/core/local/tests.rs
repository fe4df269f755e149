use super::*;
use slackline_common::job::AnchorPull;
use slackline_common::layout::{Init, TensorSpec};

const SGD: OptimizerSpec = OptimizerSpec::Sgd { learning_rate: 1.0, weight_decay: 0.0 };

fn local(steps: u32) -> Local {
    let (begin_step, fragments, delay, mix, anchor) = (0, 1, 0, 0.0, None);
    Local { steps, inner: SGD, begin_step, fragments, delay, mix, anchor }
}

fn layout(tensors: usize) -> Layout {
    let tensor = |at| TensorSpec::parameter(format!("t{at}"), &[1], Init::Ones);
    Layout::new((0..tensors).map(tensor).collect()).unwrap()
}

fn job(local: Local) -> Job {
    let text = r#"
        name = "walk"
        mode = "bsp"
        workers = 1
        servers = 1
        steps = 10
        batch = 1
        [model]
        kind = "softmax"
        inputs = 1
        classes = 2
        [data]
        format = "csv"
        train = ["none.csv"]
        [optimizer]
        kind = "sgd"
        learning_rate = 1.0
    "#;
    let mut job = slackline_common::config::parse_job(text, "test", &[]).unwrap();
    job.local = Some(local);
    job
}

/// A worker, and servers that hold `global` and move it against the pseudo-gradient.
struct World {
    walker: Walker,
    parameters: Vec<f32>,
    global: Vec<f32>,
    outer_rate: f32,
    pushes: Vec<(u64, Option<Part>, u32)>,
    steps: u64,
}

impl World {
    fn new(local: Local, tensors: usize, outer_rate: f32) -> Self {
        let mut walker =
            Walker::new(&job(local), local, &layout(tensors), SeatId(0), Step(0)).unwrap();
        let mut parameters = vec![0.0; tensors];
        walker.anchor_mut().fill(1.0);
        walker.restart(&mut parameters);
        let global = vec![1.0; tensors];
        Self { walker, parameters, global, outer_rate, pushes: Vec::new(), steps: 0 }
    }

    fn act(&mut self, outlook: Outlook) {
        while let Some(action) = self.walker.rounds().poll(outlook) {
            match action {
                Action::Push { part, samples, is_last } => {
                    self.pushes.push((self.steps, part, samples));
                    let tensors = part.map_or(vec![], |part| self.walker.tensors(part).to_vec());
                    for tensor in tensors {
                        let progress = self.walker.progress(tensor, &self.parameters)[0];
                        self.global[tensor.index()] -= self.outer_rate * progress;
                    }
                    self.walker.rounds_mut().handle_pushed(part, is_last);
                }
                Action::Take(part) => {
                    for tensor in self.walker.tensors(part).to_vec() {
                        self.walker.anchor_mut()[tensor.index()] = self.global[tensor.index()];
                    }
                    self.walker.take(part, &mut self.parameters);
                }
            }
        }
    }

    /// One step with the same gradient everywhere.
    fn step(&mut self, gradient: f32) {
        self.act(Outlook::More);
        for tensor in 0..self.parameters.len() {
            self.walker.handle_gradient(TensorId(u32::try_from(tensor).unwrap()), &[gradient]);
        }
        assert!(self.walker.step(1, &mut self.parameters));
        self.steps += 1;
    }
}

/// The fixture of torchft's DiLoCo (E40): start 1, gradient 2, inner rate 1, outer rate 2, two fragments
/// of a period of 6.
#[test]
fn two_fragments_with_delay_and_mix_follow_the_known_table() {
    for (delay, mix, first, second, first_global, second_global) in [
        (0, 0.0, [-11.0, -35.0, -59.0], [-23.0, -47.0], [-11.0, -35.0], [-23.0, -47.0]),
        (0, 0.5, [-8.0, -24.5, -40.25], [-17.0, -32.0], [-11.0, -29.0], [-23.0, -35.0]),
        (1, 0.5, [-6.0, -21.5, -35.75], [-15.0, -29.0], [-7.0, -25.0], [-19.0, -31.0]),
    ] {
        let mut world = World::new(Local { fragments: 2, delay, mix, ..local(6) }, 2, 2.0);
        let (mut own, mut global) = ([vec![], vec![]], [vec![], vec![]]);
        for step in 1..=15 {
            world.step(2.0);
            world.act(Outlook::More);
            if step % 3 == 0 {
                let fragment = (step / 3 + 1) % 2;
                own[fragment].push(world.parameters[fragment]);
                global[fragment].push(world.global[fragment]);
            }
        }
        let place = format!("delay {delay}, mix {mix}");
        assert_eq!((&own[0][..], &own[1][..]), (&first[..], &second[..]), "{place}");
        assert_eq!(global[0][..2], first_global, "{place}");
        assert_eq!(global[1], second_global, "{place}");
    }
}

/// A round of one step with an outer rate of 1 is plain descent.
#[test]
fn rounds_of_one_step_are_descent() {
    let mut world = World::new(local(1), 3, 1.0);
    for step in 1..=20u8 {
        world.step(0.25);
        world.act(Outlook::More);
        let expected = 1.0 - 0.25 * f32::from(step);
        assert_eq!((world.global[1], world.parameters[1]), (expected, expected));
    }
    assert_eq!(world.pushes.len(), 20);
}

#[test]
fn rounds_begin_long_after_as_many_short_ones_as_the_job_says() {
    let mut world = World::new(Local { begin_step: 3, ..local(4) }, 1, 1.0);
    (0..12).for_each(|_| world.step(1.0));
    world.act(Outlook::More);
    let at: Vec<_> = world.pushes.iter().map(|(step, _, samples)| (*step, *samples)).collect();
    assert_eq!(at, [(1, 1), (2, 1), (3, 1), (7, 4), (11, 4)]);
    world.act(Outlook::Nothing);
    assert_eq!(world.pushes.last(), Some(&(12, Some(Part::Whole), 1)), "what is left is pushed");
    assert_eq!(world.global, [1.0 - 12.0]);
}

/// On average a pull moves by its strength a step, whatever its probability.
#[test]
fn anchor_pulls_move_by_their_strength_on_average() {
    for probability in [0.1f32, 0.5, 1.0] {
        let anchor = Some(AnchorPull { probability, strength: 0.01 });
        let mut world = World::new(Local { anchor, ..local(10_000) }, 1, 1.0);
        world.parameters[0] = 2.0;
        let mut drawn = 0;
        for _ in 0..2000 {
            let before = world.parameters[0];
            world.step(0.0);
            let moved = before - world.parameters[0];
            if moved != 0.0 {
                drawn += 1;
                let expected = 0.01 / probability * (before - 1.0);
                assert!((moved - expected).abs() <= 1e-6, "{moved} for {expected}");
            }
            world.parameters[0] = 2.0;
        }
        // Four standard deviations.
        let expected = 2000.0 * f64::from(probability);
        let spread = (expected * (1.0 - f64::from(probability))).sqrt();
        let off = (f64::from(drawn) - expected).abs();
        assert!(off <= 4.0 * spread, "{drawn} pulls at probability {probability}");
    }
}

#[test]
fn numbers_that_make_no_walk_are_refused_with_the_rule() {
    let refused = |local: Local| {
        Walker::new(&job(local), local, &layout(2), SeatId(0), Step(0)).unwrap_err().to_string()
    };
    let pull = |probability, strength| Some(AnchorPull { probability, strength });
    let whole = refused(Local { anchor: pull(0.1, 0.1), ..local(4) });
    assert!(whole.contains("strength 0.1") && whole.contains("below 1"), "{whole}");
    assert!(refused(Local { anchor: pull(0.0, 0.1), ..local(4) }).contains("probability 0"));
    assert!(refused(Local { fragments: 3, ..local(4) }).contains("must divide"));
    assert!(refused(Local { fragments: 4, ..local(4) }).contains("2 tensors into 4"));
    assert!(refused(Local { delay: 4, ..local(4) }).contains("below that"));
    assert!(refused(Local { mix: 1.0, ..local(4) }).contains("mixes"));
}

#[test]
fn a_gradient_with_nan_is_left_out_of_the_walk() {
    let mut world = World::new(local(4), 1, 1.0);
    world.step(1.0);
    world.walker.handle_gradient(TensorId(0), &[f32::NAN]);
    assert!(!world.walker.step(1, &mut world.parameters));
    assert_eq!(world.parameters, [0.0]);
}
