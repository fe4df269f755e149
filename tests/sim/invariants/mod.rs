//! What must hold between any two moments of a run: one file each, named after it.

mod bsp_is_one_process;
mod clocks_follow_deliveries;
mod exactly_once;
mod nobody_is_refused;
mod nobody_is_stuck;
mod own_pushes_are_in;
mod staleness_is_bounded;
mod sums_are_exact;
mod workers_hold_the_reference;

use crate::oracle::Tally;
use crate::worker::{Held, Phase};
use slackline_common::ids::{SeatId, ShardId};
use slackline_common::wire::control::ShardReport;

/// One moment of a run: what the shards say, what the simulator knows, what just happened.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The event's number.
    pub(crate) event: u64,
    /// No event is left.
    pub(crate) is_over: bool,
    pub(crate) is_bsp: bool,
    /// Parameters are whole numbers.
    pub(crate) is_exact: bool,
    /// How far ahead of the slowest a seat may be.
    pub(crate) bound: Option<u64>,
    pub(crate) shards: Vec<ShardView>,
    pub(crate) workers: Vec<WorkerView>,
    /// Pulls that this event let go.
    pub(crate) releases: Vec<Release>,
    /// Parameters that this event sent out.
    pub(crate) reads: Vec<Read>,
    /// What workers hold since this event.
    pub(crate) holds: Vec<Hold>,
}

/// One shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardView {
    /// What it says of itself.
    pub(crate) report: ShardReport,
    /// What follows from the messages delivered to it.
    pub(crate) oracle: Tally,
}

/// One worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerView {
    pub(crate) phase: Phase,
    pub(crate) step: u64,
    /// What it waits for, or what refused it.
    pub(crate) why: String,
}

/// A pull of a live seat that was let go.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) shard: ShardId,
    pub(crate) seat: SeatId,
    pub(crate) step: u64,
    /// Distance from the slowest live seat, by what was delivered.
    pub(crate) staleness: u64,
    /// Whole steps of this seat that were delivered to this shard.
    pub(crate) own_steps: u64,
}

/// Parameters as a shard sent them out.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) shard: ShardId,
    pub(crate) seat: SeatId,
    pub(crate) step: u64,
    pub(crate) got: Vec<f32>,
    /// What the deliveries until now make.
    pub(crate) expected: Vec<f32>,
}

/// What a worker holds of a shard after a reply.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) shard: ShardId,
    pub(crate) seat: SeatId,
    pub(crate) held: Held,
    /// The shard's reference at that publish.
    pub(crate) published: Option<Vec<f32>>,
}

/// A property. `Err` is a sentence with the numbers that break it.
pub(crate) trait Invariant {
    fn name(&self) -> &'static str;
    fn check(&self, before: &View, after: &View) -> Result<(), String>;
}

/// All of them.
pub(crate) const ALL: [&dyn Invariant; 9] = [
    &staleness_is_bounded::StalenessIsBounded,
    &clocks_follow_deliveries::ClocksFollowDeliveries,
    &exactly_once::ExactlyOnce,
    &own_pushes_are_in::OwnPushesAreIn,
    &bsp_is_one_process::BspIsOneProcess,
    &sums_are_exact::SumsAreExact,
    &workers_hold_the_reference::WorkersHoldTheReference,
    &nobody_is_refused::NobodyIsRefused,
    &nobody_is_stuck::NobodyIsStuck,
];

/// The one of that name.
pub(crate) fn named(name: &str) -> &'static dyn Invariant {
    *ALL.iter().find(|invariant| invariant.name() == name).expect("an invariant's name")
}
