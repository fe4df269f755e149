//! Decisions of a seat without their doing: which blocks travel in which frame ([`plan`],
//! [`bundle`]), how gradients become bytes and what is owed of them ([`uplink`], [`feedback`],
//! [`guard`]), how replies become numbers ([`answer`], [`pipeline`], [`deltas`]), and who still owes an
//! answer ([`session`]), which batch is next ([`agenda`]), how a worker walks by itself ([`local`]), and how
//! much to compress ([`auto`]).
//!
//! **Never here:** runtimes, sockets, clocks, channels. Time is an argument.

pub mod agenda;
pub mod answer;
pub mod auto;
pub mod bundle;
pub mod deltas;
pub mod feedback;
pub mod guard;
pub mod local;
pub mod pipeline;
pub mod plan;
pub mod session;
pub mod uplink;
