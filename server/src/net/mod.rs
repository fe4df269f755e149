//! Sockets of a server: the line to the coordinator ([`control`]), the workers ([`connection`]), and
//! what both know of the job ([`home`]).

pub mod connection;
pub mod control;
pub mod home;
pub mod stream;
