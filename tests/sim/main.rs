//! A whole cluster in one thread, with virtual time and a seed: real shard engines, virtual workers,
//! a network that delays, reorders, repeats and loses. After every event every invariant is checked
//! (`invariants/`, one file each); when nothing is left to happen, every live worker must have
//! finished.
//!
//! ```text
//! cargo test -p tests --test sim                       a quick set of schedules, the wrong shards
//! SIM_SEEDS=10000 cargo test -p tests --test sim many_seeds -- --nocapture    more, with a summary
//! SIM_SEED=3053 cargo test -p tests --test sim one_seed -- --nocapture        one, event by event
//! ```
//!
//! What happens to leases when workers die is `coordinator/src/core/leases_tests.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::cast_possible_truncation)]

mod faults;
mod invariants;
mod network;
mod oracle;
mod plan;
mod random;
mod report;
mod server;
mod worker;
mod world;

use plan::Plan;
use report::{Summary, Violation};
use server::Fault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use world::{Outcome, run};

/// Schedules of a test run when nobody asks for more: 200 of each mode, a second or two.
const QUICK_SEEDS: u64 = 1200;
/// Events shown before a violation.
const TRACE_LINES: usize = 60;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}; it must be a number")))
}

fn simulate(seed: u64, is_traced: bool) -> Outcome {
    run(&Arc::new(Plan::from_seed(seed)), Fault::None, &invariants::ALL, is_traced)
}

/// Runs the seeds below `count`, on every core; each run is one thread's own.
fn simulate_all(count: u64) -> Result<Summary, Violation> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut total = Summary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return Ok(total);
            }
            total.add(&simulate(seed, false).result?);
        }
    };
    let mut total = Summary::default();
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(16);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            match thread.join() {
                Ok(result) => total.add(&result?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    })?;
    Ok(total)
}

/// The staleness bound, exactly once, read-my-writes, the numbers and the end, over many schedules.
#[test]
fn many_seeds_keep_every_invariant() {
    let count = variable("SIM_SEEDS").unwrap_or(QUICK_SEEDS);
    let summary = simulate_all(count).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{summary}");
    if count < QUICK_SEEDS {
        return;
    }
    // A net with holes looks whole from afar: the schedules have to reach what they are for.
    let largest = |label| summary.largest[label].1;
    let reached = ["bsp", "ssp 0", "ssp 1", "ssp 3", "ssp 8"].map(largest);
    assert_eq!(reached, [0, 0, 1, 3, 8], "the bounds are reached and kept");
    assert!(largest("asp") > 8, "asp is bounded by nothing");
    let Summary { repetitions, lost, duplicated, killed, .. } = summary;
    assert!(repetitions > count && lost > count && duplicated > count && killed > count / 10);
}

/// With `SIM_SEED`, shows what happens in that run.
#[test]
fn one_seed() {
    let seed = variable("SIM_SEED");
    let Outcome { result, trace, .. } = simulate(seed.unwrap_or(0), seed.is_some());
    println!("{}", Plan::from_seed(seed.unwrap_or(0)));
    let from = if result.is_ok() { 0 } else { trace.len().saturating_sub(TRACE_LINES) };
    trace[from..].iter().for_each(|line| println!("{line}"));
    match result {
        Ok(summary) => println!("{summary}"),
        Err(violation) => panic!("{violation}"),
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..30 {
        let (one, two) = (simulate(seed, true), simulate(seed, true));
        assert_eq!(one.trace, two.trace, "seed {seed}");
        assert_eq!((one.result, one.state), (two.result, two.state), "seed {seed}");
    }
}
