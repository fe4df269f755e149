//! Whole-system tests: the source against the house rules, and real programs on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;
mod failures;
mod tidy;
mod training;
