//! The staleness bound with one worker slowed tenfold: the largest staleness any server has seen, by
//! the run's own summary.
//!
//! Run: `cargo build --release --workspace --bins && cargo bench -p tests --bench staleness`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use support::{quick, report, run_job};

fn main() {
    let folder = tempfile::tempdir().unwrap();
    for staleness in [0, 1, 3, 8] {
        let bound = format!("staleness={staleness}");
        let mut sets = vec!["mode=ssp", &bound];
        if quick() {
            sets.push("steps=40");
        }
        let run = run_job("digits", &sets, &["--slow", "0:10"], folder.path());
        let seen = run.number("max_staleness");
        let reached = format!(
            "{seen:.0} in {:.0} steps; test accuracy {:.4}, {:.1} s",
            run.number("steps"),
            run.number("test_accuracy"),
            run.number("wall_seconds")
        );
        report(
            &format!("ssp({staleness}), digits, seat 0 ten times slower"),
            &format!("largest staleness seen <= {staleness}"),
            &reached,
            Some(seen <= f64::from(staleness)),
        );
    }
    let run = run_job("digits", &["mode=asp"], &["--slow", "0:10"], folder.path());
    report(
        "asp, digits, seat 0 ten times slower",
        "no bound, for comparison",
        &format!(
            "{:.0}; test accuracy {:.4}, {:.1} s",
            run.number("max_staleness"),
            run.number("test_accuracy"),
            run.number("wall_seconds")
        ),
        None,
    );
}
