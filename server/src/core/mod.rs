//! The shard engine: a deterministic state machine fed by one ordered stream of records.
//!
//! In reading order: [`record`] (everything that changes a shard) → [`clock`] (who may go on) →
//! `ledger` (exactly once, part by part) → `store` (parameters, optimizer, one block at a time) →
//! `staging` (first values that clients bring) → [`engine`] (admit → record → apply → release).
//!
//! **Never here:** sockets, channels, runtimes, threads, clocks of the wall, unseeded randomness, hash
//! maps. The same records give the same bits: that is what a log, a standby and a replay rest on.

mod arrival;
mod check;
pub mod clock;
pub mod engine;
mod ledger;
mod publish;
mod reads;
pub mod record;
mod staging;
mod store;
#[cfg(test)]
mod tests;

pub use check::Verdict;
pub use clock::Token;
pub use engine::{Admission, Effect, Engine, EngineSpec};
pub use record::{Push, Record};
