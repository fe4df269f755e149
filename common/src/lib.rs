//! The vocabulary and arithmetic both ends of slackline agree on.
//!
//! Read in the order a gradient travels: [`ids`] and [`limits`] (words and bounds) → [`job`] and
//! [`model`] (what is trained) → [`layout`] and [`placement`] (what lives where) → [`codec`]
//! (numbers to bytes) → [`wire`] (bytes to frames) → [`optimizer`] (what a shard does with them);
//! [`kernels`] are the loops below codecs and optimizers.
//!
//! **Never here:** sockets, threads, clocks, unseeded randomness. `quic` and `program`, behind the
//! features of the same names, are the exceptions; the crate without features depends on no runtime.

pub mod blame;
pub mod codec;
pub mod config;
pub mod ids;
pub mod job;
pub mod kernels;
pub mod layout;
pub mod lease;
pub mod limits;
pub mod model;
pub mod optimizer;
pub mod placement;
#[cfg(feature = "program")]
pub mod program;
#[cfg(feature = "quic")]
pub mod quic;
pub mod random;
pub mod role;
pub mod wire;
