//! Whole-system tests: the source against the house rules, and real programs on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bad_input;
mod cases;
mod failures;
mod people;
mod tidy;
mod training;
