//! What the coordinator decides. Pure: no socket, no file, no clock; time is an argument, every
//! decision leaves as an effect.

pub mod leases;
pub mod time;
