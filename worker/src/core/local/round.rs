//! When a walking worker pushes, what, and when it takes the answer.
//!
//! ```text
//! H = 6 steps, F = 2 fragments, delay 1          . a step   p push   t take
//!
//! step        1   2   3   4   5   6   7   8   9   10  11  12
//! fragment 0  .   .p  .t  .   .   .   .   .p  .t  .   .   .
//! fragment 1  .   .   .   .   .p  .t  .   .   .   .   .p  .t
//! push            0           1           2           3
//! ```
//!
//! Every `H / F` steps there is a push, of the fragments in turn. The answer is taken on the beat, and
//! asked for `delay` steps before. The first `begin_step` pushes have one step each and hold the whole
//! model.
//!
//! A seat that runs out of batches pushes what it has, the whole model, and may go on later as if the
//! round had been a full one: the fragment of a push follows from its number alone, so seats of one
//! round push the same.

use slackline_common::ids::Step;
use slackline_common::job::Local;

/// What is pushed at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// Every tensor.
    Whole,
    /// Those of one fragment.
    Fragment(usize),
}

/// Whether there will be another step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outlook {
    /// Yes.
    More,
    /// Nobody has said so far.
    Unknown,
    /// Not for now, or not at all.
    Nothing,
}

/// What a worker does between two steps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Pushes its progress.
    Push {
        /// Of what; `None` is a push without content, which keeps the clocks together.
        part: Option<Part>,
        /// Samples behind the steps since the last push.
        samples: u32,
        /// Whether the answer is of interest once there is more work, and not before.
        is_last: bool,
    },
    /// Takes the answer to its last push.
    Take(Part),
}

/// The beat of one seat.
#[derive(Clone, Debug)]
pub struct Rounds {
    local: Local,
    /// The number of the next push: the seat's clock.
    push: u64,
    /// Since the last push.
    steps: u64,
    samples: u32,
    /// An answer that is still to be taken, in so many steps.
    waiting: Option<(Part, u64)>,
    /// Whether each fragment has moved since it was pushed.
    moved: Vec<bool>,
}

impl Rounds {
    /// The beat of a seat with this clock.
    pub fn new(local: Local, clock: Step) -> Self {
        let moved = vec![false; usize::from(local.fragments.max(1))];
        Self { local, push: clock.0, steps: 0, samples: 0, waiting: None, moved }
    }

    /// The number of the next step, from 0. In `bsp` rounds all seats count alike.
    pub fn step(&self) -> u64 {
        self.local.steps_in(self.push) + self.steps
    }

    /// Input: a step was made, with so many samples.
    pub fn handle_step(&mut self, samples: u32) {
        self.steps += 1;
        self.samples = self.samples.saturating_add(samples);
        if samples > 0 {
            self.moved.fill(true);
        }
        if let Some((_, steps)) = &mut self.waiting {
            *steps = steps.saturating_sub(1);
        }
    }

    /// Output: what to do before the next step. Call until it returns `None`, doing each.
    pub fn poll(&self, outlook: Outlook) -> Option<Action> {
        if let Some((part, steps)) = self.waiting {
            let is_due = steps == 0 || outlook == Outlook::Nothing;
            return is_due.then_some(Action::Take(part));
        }
        let samples = self.samples;
        if outlook == Outlook::Nothing {
            let part = Some(Part::Whole);
            return (samples > 0).then_some(Action::Push { part, samples, is_last: true });
        }
        // The last push of all holds all fragments: whether this is it decides what is in it.
        if self.steps < self.steps_due() || self.is_cut() && outlook == Outlook::Unknown {
            return None;
        }
        let part = self.part();
        // Without samples a push has no weight. A fragment that moved in steps before keeps its
        // progress for its next turn; one that did not takes what the others made of it.
        Some(Action::Push { part: (samples > 0).then_some(part), samples, is_last: false })
    }

    /// Input: the push that [`poll`](Self::poll) asked for is on its way.
    pub fn handle_pushed(&mut self, part: Option<Part>, is_last: bool) {
        let turn = self.part();
        let delay = if self.is_long() { self.local.delay.into() } else { 0 };
        let moved = |part| match part {
            Part::Whole => self.moved.contains(&true),
            Part::Fragment(fragment) => self.moved[fragment],
        };
        let taken = part.or_else(|| (!moved(turn)).then_some(turn));
        self.waiting = taken.filter(|_| !is_last).map(|part| (part, delay));
        if let Some(part) = part {
            self.settle(part);
        }
        self.handle_nothing_pushed();
    }

    /// Input: a push without content went out while there was nothing to do.
    pub const fn handle_nothing_pushed(&mut self) {
        self.push += 1;
        self.steps = 0;
        self.samples = 0;
    }

    /// Input: the answer was taken. Returns the share of its own parameters that the worker keeps.
    pub const fn handle_taken(&mut self) -> f32 {
        self.waiting = None;
        // The push before the next one: that of a short round is taken whole.
        if self.push > self.local.begin_step { self.local.mix } else { 0.0 }
    }

    /// Input: the worker goes on from the global parameters as they are.
    pub fn handle_restart(&mut self) {
        self.settle(Part::Whole);
        self.waiting = None;
    }

    fn settle(&mut self, part: Part) {
        match part {
            Part::Whole => self.moved.fill(false),
            Part::Fragment(fragment) => self.moved[fragment] = false,
        }
    }

    /// Whether the next push is one of a long round.
    const fn is_long(&self) -> bool {
        self.push >= self.local.begin_step
    }

    /// Whether the next push holds a part of the model only.
    const fn is_cut(&self) -> bool {
        self.is_long() && self.moved.len() > 1
    }

    /// Steps from the last push to the next.
    fn steps_due(&self) -> u64 {
        self.local.steps_in(self.push + 1) - self.local.steps_in(self.push)
    }

    fn part(&self) -> Part {
        if !self.is_cut() {
            return Part::Whole;
        }
        let turn = (self.push - self.local.begin_step) % self.moved.len() as u64;
        Part::Fragment(usize::try_from(turn).expect("below the number of fragments"))
    }
}
