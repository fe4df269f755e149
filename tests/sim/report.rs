//! What a run tells people.

use std::collections::BTreeMap;
use std::fmt;

/// A broken invariant.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Violation {
    pub(crate) seed: u64,
    pub(crate) event: u64,
    pub(crate) invariant: &'static str,
    pub(crate) sentence: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, event, invariant, sentence } = self;
        write!(
            f,
            "{invariant}: not so at event {event}: {sentence}\n\
             SIM_SEED={seed} cargo test -p tests --test sim one_seed -- --nocapture"
        )
    }
}

/// What one run or many did.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Summary {
    pub(crate) schedules: u64,
    pub(crate) events: u64,
    /// Whole pushes applied, each on each shard.
    pub(crate) pushes: u64,
    /// Parts that came to a shard again.
    pub(crate) repetitions: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) killed: u64,
    /// Of each mode: schedules and largest staleness.
    pub(crate) largest: BTreeMap<&'static str, (u64, u64)>,
}

impl Summary {
    /// Takes another run in.
    pub(crate) fn add(&mut self, other: &Self) {
        self.schedules += other.schedules;
        self.events += other.events;
        self.pushes += other.pushes;
        self.repetitions += other.repetitions;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.killed += other.killed;
        for (label, (schedules, largest)) in &other.largest {
            let entry = self.largest.entry(label).or_default();
            *entry = (entry.0 + schedules, entry.1.max(*largest));
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schedules, events, pushes, repetitions, lost, duplicated, killed, largest } =
            self;
        write!(
            f,
            "{schedules} schedules, {events} events, {pushes} pushes, {repetitions} repeated parts, \
             {lost} messages lost, {duplicated} doubled, {killed} workers killed; largest staleness"
        )?;
        for (label, (_, largest)) in largest {
            write!(f, " [{label}] {largest}")?;
        }
        Ok(())
    }
}
