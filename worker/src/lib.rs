//! stub

pub mod train;
