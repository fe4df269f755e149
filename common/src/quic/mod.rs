//! Sockets and TLS: certificates, endpoints, close codes and the framed control stream.
//!
//! The impure room of this crate (a socket, a clock, a runtime), behind the feature `quic`.
//! Certificates → [`certs`]; an endpoint and its connections → [`endpoint`]; what went wrong, in one
//! plain line on both ends → [`error`]; control messages → [`control`].
//!
//! There is no unencrypted and no one-sided mode: both ends show a certificate of the same private
//! authority, and the role in it is checked inside the handshake.

pub mod certs;
pub mod close;
mod congestion;
pub mod control;
pub mod credentials;
pub mod endpoint;
pub mod error;
mod offload;
mod pacer;
mod rate;
mod socket;
mod tls;
mod windows;

pub use certs::{Authority, CertError, Identity};
pub use close::{CloseCode, close};
pub use control::{ControlReceiver, ControlSender, accept_control, accept_hello, open_control};
pub use credentials::Credentials;
pub use endpoint::{
    TransportSettings, accept, client_endpoint, connect, handshake, peer_address, peer_role,
    server_endpoint,
};
pub use error::{QuicError, describe_close, describe_close_from};
pub use quinn::{Connection, Endpoint};
pub use socket::Egress;
pub use windows::Windows;

#[cfg(test)]
mod tests;
