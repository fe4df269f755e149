//! What travels between processes. Control messages are small and typed ([`control`], encoded by
//! [`message`]); gradients and parameters travel as fixed headers with raw bytes ([`frame`]) that are
//! never re-encoded. docs/PROTOCOL.md has every byte.

pub mod control;
pub mod frame;
pub mod message;
pub mod pool;
