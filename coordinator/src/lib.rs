//! Membership, the job, data leases: what decides who works on what. Never on the gradient's road.

pub mod core;
pub mod run;
