//! What the coordinator decides. Pure: no socket, no file, no clock; time is an argument, every
//! decision leaves as an effect.
//!
//! Read [`membership`] (who is there) → [`leases`] (who works on what) → [`job`] (what comes next)
//! → [`effects`] (what is to be done about it).

pub mod effects;
pub mod job;
pub mod leases;
pub mod membership;
pub mod time;
