//! A net that never caught a fish is not a net: every invariant, alone, finds a shard that is wrong.

use crate::invariants::named;
use crate::plan::Plan;
use crate::server::Fault;
use crate::world::run;
use std::sync::Arc;

/// Schedules in which a fault has to show.
const SEEDS_MAX: u64 = 200;

/// The named invariant alone catches the fault in some schedule.
fn check(fault: Fault, invariant: &str) {
    let caught = (0..SEEDS_MAX).any(|seed| {
        let plan = Arc::new(Plan::from_seed(seed));
        run(&plan, fault, &[named(invariant)], false).result.is_err()
    });
    assert!(caught, "{SEEDS_MAX} schedules with {fault:?} and {invariant:?} saw nothing");
}

#[test]
fn a_release_that_is_one_step_early_is_seen() {
    check(Fault::ReleasesEarly, "staleness is bounded");
    check(Fault::ReleasesEarly, "own pushes are in");
}

#[test]
fn a_push_that_is_applied_twice_is_seen() {
    check(Fault::AppliesDuplicates, "exactly once");
    check(Fault::AppliesDuplicates, "clocks follow deliveries");
    check(Fault::AppliesDuplicates, "sums are exact");
}

#[test]
fn a_push_that_is_acknowledged_and_not_applied_is_seen() {
    check(Fault::LosesPushes, "exactly once");
    check(Fault::LosesPushes, "nobody is stuck");
}

/// Workers that ask again for what was not lost would hide it.
#[test]
fn a_pull_that_is_forgotten_is_seen() {
    check(Fault::ForgetsPulls, "nobody is stuck");
}

#[test]
fn a_block_that_is_left_out_is_seen() {
    check(Fault::DropsBlocks, "bsp is one process");
    check(Fault::DropsBlocks, "sums are exact");
}

#[test]
fn a_seat_that_left_and_is_waited_for_is_seen() {
    check(Fault::ForgetsLeaves, "nobody is stuck");
    check(Fault::ForgetsLeaves, "clocks follow deliveries");
}

#[test]
fn a_seat_that_was_taken_out_and_is_waited_for_is_seen() {
    check(Fault::ForgetsDepartures, "nobody is stuck");
}

#[test]
fn a_shard_that_starts_again_from_nothing_is_seen() {
    check(Fault::LosesItsMemory, "clocks follow deliveries");
    check(Fault::LosesItsMemory, "exactly once");
}

#[test]
fn a_good_push_that_is_refused_is_seen() {
    check(Fault::RefusesGoodPushes, "nobody is refused");
}
