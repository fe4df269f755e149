//! What travels between workers and servers, and how often: compression, error feedback, local steps,
//! steps in flight.

use crate::codec::{CodecSpec, Rounding, Select, ValueFormat};
use crate::ids::Step;
use crate::job::{Job, OptimizerSpec};
use crate::layout::{Layout, TensorRole, TensorSpec};
use serde::{Deserialize, Serialize};

/// Tensors below so many elements travel dense in `bf16` unless a rule asks for them: indices and
/// scales cost more than they save, and biases and norms are the tensors that suffer most.
pub const SMALL_TENSOR_ELEMENTS: u64 = 4096;

/// How tensors are coded.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub enum Compress {
    /// As `[wire]` says.
    #[default]
    Off,
    /// Chosen while the job runs, from none to top-k, by what the link and the computation take.
    Auto,
    /// By rules: the first that matches a tensor and a direction.
    Rules(Vec<CompressRule>),
}

/// One `[[compress]]` table.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct CompressRule {
    /// Tensor names; `*` stands for any characters, `?` for one.
    pub pattern: String,
    /// Which way.
    pub direction: Direction,
    /// Smaller tensors are not matched.
    pub elements_min: u64,
    /// How they are coded.
    pub codec: CodecSpec,
}

/// Which way numbers travel.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Direction {
    /// Both ways.
    #[default]
    Both,
    /// Gradients, worker to server.
    Up,
    /// Parameters, server to worker.
    Down,
}

/// What becomes of what a lossy codec holds back on its way up.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Feedback {
    /// Keep it and add it to the next push (Karimireddy et al., "Error Feedback Fixes SignSGD", ICML
    /// 2019). Off loses it.
    pub enabled: bool,
    /// What is kept is multiplied by this before the next push: 1 keeps all.
    pub decay: f32,
    /// Momentum on the worker before selection, in place of the server's (Lin et al., "Deep Gradient
    /// Compression", ICLR 2018, section 3.1): the factor is the optimizer's. The servers' optimizer is
    /// plain gradient descent once the ramp has begun.
    pub momentum_correction: bool,
    /// Largest norm of a worker's gradient of the whole model before it is accumulated (section 3.2),
    /// by the norm of its step before; 0 is off.
    pub local_clip: f32,
}

impl Default for Feedback {
    fn default() -> Self {
        Self { enabled: true, decay: 1.0, momentum_correction: false, local_clip: 0.0 }
    }
}

/// The share of elements that sparse codecs send over time: all before `begin_step`, then
/// exponentially from `from` to each rule's density over `steps`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Ramp {
    /// First step at which sparse codecs are sparse.
    pub begin_step: u64,
    /// Steps from `from` to the rule's density; 0 begins with the density.
    pub steps: u64,
    /// Share at `begin_step`.
    pub from: f32,
}

impl Default for Ramp {
    fn default() -> Self {
        Self { begin_step: 0, steps: 0, from: 0.25 }
    }
}

impl Ramp {
    /// The share of elements a sparse codec of this density sends at a step.
    pub fn density(&self, density: f32, step: u64) -> f32 {
        if step < self.begin_step {
            return 1.0;
        }
        let into = step - self.begin_step;
        if into >= self.steps || density >= self.from {
            return density;
        }
        let (from, to) = (f64::from(self.from), f64::from(density));
        #[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
        let now = (from * libm::pow(to / from, into as f64 / self.steps as f64)) as f32;
        now
    }
}

/// Local steps: a worker walks by itself and pushes how far it came.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Local {
    /// Local steps of a round (`H`), from 1.
    pub steps: u32,
    /// The workers' optimizer. The servers' is the outer one, whose gradient is the weighted mean of
    /// `parameters at the start of the round - parameters at its end`.
    pub inner: OptimizerSpec,
    /// Rounds of one step before longer ones begin, in global steps (Lin et al., "Don't Use Large
    /// Mini-Batches, Use Local SGD", ICLR 2020: post-local SGD).
    pub begin_step: u64,
    /// Parts of the model that are pushed at different times, each every `steps` (Douillard et al.,
    /// "Streaming DiLoCo", 2025); divides `steps`.
    pub fragments: u16,
    /// Local steps between the push of a round and the use of its answer; below `steps / fragments`.
    pub delay: u32,
    /// Share of its own parameters that a worker keeps when it takes the answer (the same paper's
    /// `alpha`); 0 takes the answer as it is.
    pub mix: f32,
    /// Pulls towards the last answer between rounds.
    pub anchor: Option<AnchorPull>,
}

/// At each local step, with this probability, the worker also moves towards the parameters of its
/// last answer (Naganuma et al., "Pseudo-Asynchronous Local SGD", 2025).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct AnchorPull {
    /// Of a pull at a step, above 0 and at most 1.
    pub probability: f32,
    /// Strength per step on average: one pull moves by `strength / probability` of the way, which must
    /// stay below 1.
    pub strength: f32,
}

impl Local {
    /// Local steps from one push to the next.
    pub fn steps_per_push(&self) -> u64 {
        u64::from((self.steps / u32::from(self.fragments.max(1))).max(1))
    }

    /// How many of its own steps a seat has behind it that its first `pushes` pushes contain, when
    /// none of them ended early: the first `begin_step` have one each, and of the others each
    /// has [`steps_per_push`](Self::steps_per_push), the first of them `delay` fewer.
    pub fn steps_in(&self, pushes: u64) -> u64 {
        match pushes.checked_sub(self.begin_step) {
            None | Some(0) => pushes,
            Some(long) => {
                let steps = long.saturating_mul(self.steps_per_push());
                self.begin_step.saturating_add(steps).saturating_sub(u64::from(self.delay))
            }
        }
    }
}

/// How one tensor travels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorCoding {
    /// Gradients.
    pub up: CodecSpec,
    /// Deltas when the job sends such, else whole values.
    pub down: CodecSpec,
}

impl Job {
    /// Batches of a seat that are in its first `clock` pushes: as many, but in local mode
    /// [`Local::steps_in`] of them. A lease's place in a seat's work is counted in these.
    pub fn batches_in(&self, clock: Step) -> u64 {
        self.local.map_or(clock.0, |local| local.steps_in(clock.0))
    }

    /// Whether parameters go down as deltas against what every worker holds. Else they go down whole
    /// in the format of `[wire]`.
    pub fn sends_deltas(&self) -> bool {
        match &self.compress {
            Compress::Off => false,
            Compress::Auto => true,
            Compress::Rules(rules) => rules.iter().any(|rule| rule.direction != Direction::Up),
        }
    }

    /// Whether gradients of some tensor may go up in a lossy format for which feedback is kept.
    pub fn keeps_residuals(&self) -> bool {
        self.feedback.enabled
            && match &self.compress {
                Compress::Off => false,
                Compress::Auto => true,
                Compress::Rules(rules) => {
                    rules.iter().any(|rule| rule.direction != Direction::Down)
                }
            }
    }

    /// How every tensor of the layout travels, in order, at full ramp; the start of `auto`.
    pub fn codings(&self, layout: &Layout) -> Vec<TensorCoding> {
        let tensors = layout.tensors().iter();
        tensors
            .map(|tensor| {
                let elements: u64 = tensor.shape.iter().product();
                let is_statistic = tensor.role == TensorRole::Statistic;
                let of = |direction: Direction, wire| {
                    let Compress::Rules(rules) = &self.compress else { return wire };
                    let other = match direction {
                        Direction::Up => Direction::Down,
                        _ => Direction::Up,
                    };
                    let mut rules = rules.iter().filter(|rule| rule.direction != other).peekable();
                    if rules.peek().is_none() {
                        return wire;
                    }
                    let matching = |rule: &&CompressRule| {
                        elements >= rule.elements_min && matches(&rule.pattern, &tensor.name)
                    };
                    match rules.find(matching) {
                        // Sums of statistics have no feedback: they are not gradients.
                        Some(rule) if !is_statistic => rule.codec,
                        _ if elements < SMALL_TENSOR_ELEMENTS && wire == CodecSpec::F32 => {
                            CodecSpec::Bf16
                        }
                        _ => wire,
                    }
                };
                let wire = |dtype| {
                    if tensor.dtype == crate::layout::Dtype::F32 { dtype } else { tensor.dtype }
                };
                TensorCoding {
                    up: of(Direction::Up, wire(self.wire.up).into()),
                    down: of(Direction::Down, wire(self.wire.down).into()),
                }
            })
            .collect()
    }
}

/// How a tensor is coded on a rung of the [`LADDER`], either way. Small tensors are never coded further
/// than `bf16`, and running statistics never at all.
pub fn rung_coding(tensor: &TensorSpec, rung: usize) -> CodecSpec {
    let elements: u64 = tensor.shape.iter().product();
    if rung == 0 || tensor.role == TensorRole::Statistic {
        CodecSpec::F32
    } else if elements < SMALL_TENSOR_ELEMENTS {
        CodecSpec::Bf16
    } else {
        LADDER[rung.min(LADDER.len() - 1)]
    }
}

/// Whether a pattern with `*` and `?` matches all of a name.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    // Where the last star was, and where in the name what it stands for ends: on a mismatch it
    // takes one more character.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => (p, n) = (p + 1, n + 1),
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                (p, n) = (at + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// What `auto` chooses from, from the most bytes to the fewest; the same ladder up and down.
pub const LADDER: [CodecSpec; 7] = [
    CodecSpec::F32,
    CodecSpec::Bf16,
    CodecSpec::Int8 { rounding: Rounding::Nearest },
    CodecSpec::Int4 { rounding: Rounding::Nearest },
    top_k(0.05),
    top_k(0.01),
    top_k(0.0025),
];

const fn top_k(density: f32) -> CodecSpec {
    CodecSpec::TopK { density, select: Select::Exact, values: ValueFormat::Bf16 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Init;

    #[test]
    fn patterns_match_whole_names() {
        let yes = [
            ("*", ""),
            ("*", "a.b"),
            ("*.bias", "fc1.bias"),
            ("fc?.*", "fc1.weight"),
            ("a*c*e", "abcde"),
            ("", ""),
        ];
        let no = [("*.bias", "fc1.weight"), ("fc", "fc1"), ("?", ""), ("a*c", "abd"), ("", "a")];
        yes.iter().for_each(|(pattern, name)| assert!(matches(pattern, name), "{pattern} {name}"));
        no.iter().for_each(|(pattern, name)| assert!(!matches(pattern, name), "{pattern} {name}"));
    }

    #[test]
    fn pushes_hold_one_step_until_rounds_begin_and_then_their_part_of_a_round() {
        let inner = OptimizerSpec::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
        let local = Local {
            steps: 6,
            inner,
            begin_step: 2,
            fragments: 2,
            delay: 1,
            mix: 0.0,
            anchor: None,
        };
        let steps: Vec<u64> = (0..6).map(|pushes| local.steps_in(pushes)).collect();
        assert_eq!(steps, [0, 1, 2, 4, 7, 10]);
        assert_eq!(local.steps_in(u64::MAX), u64::MAX - 1);
    }

    #[test]
    fn a_rung_codes_large_gradients_only() {
        let tensor = |elements| TensorSpec::parameter("t".to_owned(), &[elements], Init::Zeros);
        let (small, large) = (tensor(4095), tensor(4096));
        let codes = |tensor: &TensorSpec| [0, 1, 5, 99].map(|rung| rung_coding(tensor, rung));
        assert_eq!(codes(&large), [LADDER[0], LADDER[1], LADDER[5], LADDER[LADDER.len() - 1]]);
        let bf16 = CodecSpec::Bf16;
        assert_eq!(codes(&small), [CodecSpec::F32, bf16, bf16, bf16]);
        let statistic = TensorSpec { role: TensorRole::Statistic, ..large };
        assert_eq!(codes(&statistic), [CodecSpec::F32; 4]);
    }

    #[test]
    fn a_ramp_goes_from_everything_over_a_quarter_to_the_density() {
        let ramp = Ramp { begin_step: 10, steps: 4, from: 0.25 };
        let at = |step| ramp.density(0.0009765625, step);
        assert_eq!([at(0), at(9), at(10), at(12)], [1.0, 1.0, 0.25, 0.015625]);
        assert_eq!([at(14), at(1000)], [0.0009765625; 2]);
        assert_eq!(ramp.density(0.5, 11), 0.5);
        assert_eq!(Ramp::default().density(0.01, 0), 0.01);
    }
}
