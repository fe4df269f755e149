//! The house of parameters.

pub mod core;
pub mod shard;
