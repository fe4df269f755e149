//! stub

pub mod core;
pub mod data;
pub mod train;
