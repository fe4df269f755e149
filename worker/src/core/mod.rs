//! Decisions of a seat without their doing: which blocks travel in which frame ([`plan`],
//! [`bundle`]), what numbers become and come from ([`bundle`], [`answer`], [`pipeline`]), and who still owes an
//! answer ([`session`]), which batch is next ([`agenda`]).
//!
//! **Never here:** runtimes, sockets, clocks, channels. Time is an argument.

pub mod agenda;
pub mod answer;
pub mod auto;
pub mod bundle;
pub mod pipeline;
pub mod plan;
pub mod session;
