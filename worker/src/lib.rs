//! The house of gradients: computes them, pushes them, pulls parameters back.
//!
//! In the order a gradient travels: [`data`] (samples to batches) → [`train`] (batch to gradient) →
//! [`core`] (gradient to frames, and who owes an answer) → [`net`] (frames to servers). [`trainer`]
//! drives all of it for a job with a built-in model; [`client`] gives the second half to callers who
//! compute gradients themselves. [`reference`](mod@reference) is the one-process oracle of both.
//!
//! **Never here:** optimizers (the reference aside), membership decisions, the job's rules.

pub mod client;
pub mod core;
pub mod data;
pub mod net;
pub mod reference;
#[cfg(test)]
mod testing;
pub mod train;
pub mod trainer;

pub use trainer::{WorkerError, check, run};
