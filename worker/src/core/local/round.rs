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

    /// The number of the next step if the round ended here: a push counts for all the steps it might
    /// have had.
    pub fn step_if_closed(&self) -> u64 {
        if self.samples > 0 { self.local.steps_in(self.push + 1) } else { self.step() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slackline_common::job::OptimizerSpec;

    fn local(steps: u32, fragments: u16, delay: u32, begin_step: u64) -> Local {
        let inner = OptimizerSpec::Sgd { learning_rate: 1.0, weight_decay: 0.0 };
        Local { steps, inner, begin_step, fragments, delay, mix: 0.5, anchor: None }
    }

    /// Does everything that is due and names it: `push` or `take` and the part.
    fn act(rounds: &mut Rounds, outlook: Outlook) -> Vec<(&'static str, Option<Part>)> {
        let mut done = Vec::new();
        while let Some(action) = rounds.poll(outlook) {
            match action {
                Action::Push { part, is_last, .. } => {
                    rounds.handle_pushed(part, is_last);
                    done.push(("push", part));
                }
                Action::Take(part) => {
                    rounds.handle_taken();
                    done.push(("take", Some(part)));
                }
            }
        }
        done
    }

    /// What is done after each of so many full steps.
    fn walk(rounds: &mut Rounds, steps: u64) -> Vec<(u64, &'static str, Option<Part>)> {
        let step = |step| {
            rounds.handle_step(16);
            act(rounds, Outlook::More).into_iter().map(move |(what, part)| (step, what, part))
        };
        (1..=steps).flat_map(step).collect()
    }

    #[test]
    fn the_beat_is_that_of_the_picture() {
        let (first, second) = (Some(Part::Fragment(0)), Some(Part::Fragment(1)));
        let expected = [
            (2, "push", first),
            (3, "take", first),
            (5, "push", second),
            (6, "take", second),
            (8, "push", first),
            (9, "take", first),
            (11, "push", second),
            (12, "take", second),
        ];
        assert_eq!(walk(&mut Rounds::new(local(6, 2, 1, 0), Step(0)), 12), expected);
    }

    #[test]
    fn a_last_push_holds_every_fragment_and_waits_until_it_is_known_to_be_the_last() {
        let mut rounds = Rounds::new(local(4, 2, 0, 0), Step(0));
        walk(&mut rounds, 1);
        rounds.handle_step(16);
        assert_eq!(rounds.poll(Outlook::Unknown), None);
        let whole = ("push", Some(Part::Whole));
        assert_eq!(act(&mut rounds.clone(), Outlook::Nothing), [whole]);
        assert_eq!(act(&mut rounds, Outlook::More)[0], ("push", Some(Part::Fragment(0))));
        // One fragment is the whole model: nothing to wait for.
        let mut rounds = Rounds::new(local(2, 1, 0, 0), Step(0));
        rounds.handle_step(16);
        rounds.handle_step(16);
        assert_eq!(act(&mut rounds, Outlook::Unknown), [whole, ("take", Some(Part::Whole))]);
        assert_eq!(act(&mut rounds, Outlook::Nothing), []);
    }

    #[test]
    fn an_answer_under_way_is_taken_before_the_last_push() {
        let mut rounds = Rounds::new(local(6, 1, 4, 0), Step(0));
        assert_eq!(walk(&mut rounds, 3), [(2, "push", Some(Part::Whole))]);
        let whole = Some(Part::Whole);
        assert_eq!(act(&mut rounds, Outlook::Nothing), [("take", whole), ("push", whole)]);
    }

    #[test]
    fn without_samples_a_clock_moves_and_what_moved_before_is_kept_for_its_turn() {
        // One step per push: the empty step is the second fragment's, which moved in the first.
        let mut rounds = Rounds::new(local(2, 2, 0, 0), Step(0));
        walk(&mut rounds, 1);
        rounds.handle_step(0);
        assert_eq!(act(&mut rounds, Outlook::More), [("push", None)]);
        walk(&mut rounds, 1);
        rounds.handle_step(16);
        assert_eq!(act(&mut rounds, Outlook::More)[0], ("push", Some(Part::Fragment(1))));
        // Whole rounds have nothing left from before: the answer is that of the others.
        let mut rounds = Rounds::new(local(1, 1, 0, 0), Step(0));
        rounds.handle_step(0);
        assert_eq!(act(&mut rounds, Outlook::More), [("push", None), ("take", Some(Part::Whole))]);
    }

    #[test]
    fn a_round_that_ends_early_counts_for_all_its_steps() {
        let mut rounds = Rounds::new(local(8, 1, 0, 0), Step(0));
        walk(&mut rounds, 11);
        assert_eq!((rounds.step(), rounds.step_if_closed()), (11, 16));
        act(&mut rounds, Outlook::Nothing);
        assert_eq!((rounds.step(), rounds.step_if_closed()), (16, 16));
    }

    proptest! {
        #[test]
        fn each_push_holds_the_steps_that_a_lease_is_counted_by(
            every in 1u32..6, fragments in 1u16..4, delay in 0u32..6, begin in 0u64..5
        ) {
            let local = local(every * u32::from(fragments), fragments, delay % every, begin);
            let mut pushes = 0;
            for (step, what, part) in walk(&mut Rounds::new(local, Step(0)), 40) {
                if what == "push" {
                    pushes += 1;
                    prop_assert_eq!(local.steps_in(pushes), step);
                    let is_cut = pushes > begin && fragments > 1;
                    prop_assert_eq!(part == Some(Part::Whole), !is_cut);
                }
            }
            prop_assert!(pushes >= 40 / u64::from(every));
        }
    }
}
