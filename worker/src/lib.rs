//! stub

pub mod client;
pub mod core;
pub mod net;
pub mod data;
pub mod train;
