//! Shared helpers of the whole-system tests: clusters of real programs, waiting with a deadline.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::missing_panics_doc)]

pub mod clock;
pub mod cluster;
pub mod frames;
pub mod player;
pub mod relay;
pub mod run;
pub mod script;
