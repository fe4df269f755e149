//! What can go wrong between two processes, each in one plain line that says whose move it is.
//!
//! A refusal is told on both ends: the end that refuses raises a TLS alert, and QUIC carries the
//! alert's number and our own text to the other (RFC 9001 §4.8). With TLS 1.3 a client learns that
//! its certificate was refused only after its own handshake is complete, as the close of a
//! connection that seemed to stand: [`describe_close`] turns that close into the same sentence.

use super::close::{CloseCode, printable};
use crate::blame::Blame;
use crate::wire::message::MessageError;
use quinn::{ConnectionError, ReadError, TransportErrorCode, WriteError};
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Marks our own text inside the words of the TLS library.
pub(super) const MARK: &str = "slackline: ";

const ALERT_BAD_CERTIFICATE: u8 = 42;
const ALERT_UNSUPPORTED_CERTIFICATE: u8 = 43;
const ALERT_CERTIFICATE_EXPIRED: u8 = 45;
const ALERT_CERTIFICATE_UNKNOWN: u8 = 46;
const ALERT_UNKNOWN_CA: u8 = 48;
const ALERT_ACCESS_DENIED: u8 = 49;
const ALERT_DECRYPT_ERROR: u8 = 51;
const ALERT_CERTIFICATE_REQUIRED: u8 = 116;
const ALERT_NO_APPLICATION_PROTOCOL: u8 = 120;

/// Why one end does not take the other's certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// It is signed by another authority.
    Authority,
    /// There was none.
    Absent,
    /// Its role or its dates do not fit: what was seen and the rule, in our words.
    Told(String),
    /// Anything else the TLS library found.
    Other(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authority => f.write_str(
                "it is not signed by the same CA; both ends need certificates of one `slackline certs`",
            ),
            Self::Absent => f.write_str("none was shown"),
            Self::Told(detail) | Self::Other(detail) => f.write_str(detail),
        }
    }
}

/// What went wrong with a socket, a handshake, a connection or a control stream.
#[derive(Debug, thiserror::Error)]
pub enum QuicError {
    /// A transport setting is outside its range.
    #[error("transport setting {key} is {got}: {rule}")]
    Setting {
        /// The setting's name.
        key: &'static str,
        /// The value seen.
        got: u64,
        /// What it must be.
        rule: &'static str,
    },
    /// The address to listen on is taken.
    #[error("cannot listen on {address}: the port is in use by another process")]
    PortInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address to listen on cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The operating system or the TLS library refused our own set-up.
    #[error("cannot set up the endpoint: {0}")]
    Setup(String),
    /// An address to connect to is no `host:port`, or its host is not known.
    #[error("address {address} of the {role} does not resolve: {detail}")]
    Resolve {
        /// The address as configured.
        address: String,
        /// Who should be there.
        role: &'static str,
        /// Why.
        detail: String,
    },
    /// Nobody completed a handshake in time.
    #[error(
        "nobody answered as {who} in {seconds:.1} s: is it running, is UDP open to it, does the path carry the configured mtu?"
    )]
    Unanswered {
        /// Who should have.
        who: String,
        /// How long was waited.
        seconds: f32,
    },
    /// We refuse the peer's certificate.
    #[error("{who}: its certificate is refused here: {why}")]
    PeerCertificate {
        /// The peer.
        who: String,
        /// Why.
        why: Refusal,
        /// Whether we called it: then our configuration may be at fault.
        dialled: bool,
    },
    /// The peer refuses our certificate.
    #[error("{who} refused our certificate: {why}")]
    OurCertificate {
        /// The peer.
        who: String,
        /// Why.
        why: Refusal,
    },
    /// The two ends speak different protocol versions.
    #[error("{who} speaks {theirs}, this process speaks {ours}: run the same release on both")]
    Version {
        /// The peer.
        who: String,
        /// Our versions.
        ours: String,
        /// The peer's versions.
        theirs: String,
    },
    /// The peer has as many connections as it allows.
    #[error("{who} refuses more connections than it has; try again later")]
    Full {
        /// The peer.
        who: String,
    },
    /// Nothing was heard for the idle timeout.
    #[error("{who} was not heard for the idle timeout: the machine or the network is away")]
    Lost {
        /// The peer.
        who: String,
    },
    /// The peer does not know the connection any more.
    #[error("{who} restarted: it does not know this connection any more")]
    Reset {
        /// The peer.
        who: String,
    },
    /// The peer closed the connection.
    #[error("{who} closed the connection: {} ({reason})", code.reason())]
    Closed {
        /// The peer.
        who: String,
        /// The code it gave.
        code: CloseCode,
        /// Its own words.
        reason: String,
    },
    /// This process closed the connection.
    #[error("the connection to {who} was closed here")]
    ClosedHere {
        /// The peer.
        who: String,
    },
    /// QUIC itself failed.
    #[error("the connection to {who} failed: {detail}")]
    Transport {
        /// The peer.
        who: String,
        /// What QUIC says.
        detail: String,
    },
    /// A peer connected and then said nothing.
    #[error("{who} connected and sent no {what} for {seconds:.1} s")]
    Silent {
        /// The peer.
        who: String,
        /// What was due.
        what: &'static str,
        /// How long was waited.
        seconds: f32,
    },
    /// A peer does not take what is sent to it.
    #[error("{who} did not take a control message for {seconds:.1} s")]
    Stuck {
        /// The peer.
        who: String,
        /// How long was waited.
        seconds: f32,
    },
    /// A control message claims to be longer than any may be.
    #[error("{who} announced a control message of {got} bytes: at most {max} are allowed")]
    ControlLength {
        /// The peer.
        who: String,
        /// What it announced.
        got: u32,
        /// The limit.
        max: usize,
    },
    /// A control stream ended inside a message.
    #[error("{who} ended its control stream inside a message")]
    ControlCut {
        /// The peer.
        who: String,
    },
    /// A control message does not encode or decode.
    #[error("{who}: {source}")]
    Message {
        /// The peer.
        who: String,
        /// Why.
        source: MessageError,
    },
}

impl QuicError {
    /// Whose move it is. No wildcard arm: a new variant must choose.
    pub const fn blame(&self) -> Blame {
        match self {
            Self::Setting { .. }
            | Self::PortInUse { .. }
            | Self::Bind { .. }
            | Self::OurCertificate { .. }
            | Self::Version { .. }
            | Self::PeerCertificate { dialled: true, .. } => Blame::Config,
            Self::PeerCertificate { dialled: false, .. }
            | Self::Silent { .. }
            | Self::ControlLength { .. }
            | Self::ControlCut { .. }
            | Self::Message { source: MessageError::Decode(_), .. }
            | Self::Message { source: MessageError::TrailingBytes { .. }, .. }
            | Self::Transport { .. } => Blame::Peer,
            Self::Resolve { .. }
            | Self::Unanswered { .. }
            | Self::Full { .. }
            | Self::Lost { .. }
            | Self::Reset { .. }
            | Self::Stuck { .. } => Blame::Network,
            Self::Closed { code, .. } => code.blame(),
            Self::Setup(_)
            | Self::ClosedHere { .. }
            | Self::Message { source: MessageError::Encode(_), .. } => Blame::Us,
        }
    }

    /// The code to close a connection with after this error, with the error's text as reason.
    pub const fn close_code(&self) -> CloseCode {
        match self {
            Self::ControlLength { .. }
            | Self::ControlCut { .. }
            | Self::Message {
                source: MessageError::Decode(_) | MessageError::TrailingBytes { .. },
                ..
            } => CloseCode::ProtocolViolation,
            Self::Silent { .. } | Self::Stuck { .. } => CloseCode::StuckPeer,
            Self::Version { .. } => CloseCode::VersionRefused,
            _ => CloseCode::Internal,
        }
    }
}

/// Turns the end of a connection into one plain line; the peer is called "the peer".
pub fn describe_close(error: &ConnectionError) -> QuicError {
    describe_close_from("the peer", error)
}

/// As [`describe_close`], with the peer's name: `server at 10.0.0.7:7002`.
pub fn describe_close_from(who: &str, error: &ConnectionError) -> QuicError {
    describe(who, error, true)
}

/// As [`describe_close_from`]; `dialled` says which end we are.
pub(super) fn describe(who: &str, error: &ConnectionError, dialled: bool) -> QuicError {
    let who = who.to_owned();
    match error {
        ConnectionError::TransportError(error) => match alert_of(error.code) {
            Some(ALERT_NO_APPLICATION_PROTOCOL) => version(who),
            Some(alert) => match refusal(alert, &error.reason) {
                Some(why) => QuicError::PeerCertificate { who, why, dialled },
                None => QuicError::Transport { who, detail: error.to_string() },
            },
            None => QuicError::Transport { who, detail: error.to_string() },
        },
        ConnectionError::ConnectionClosed(close) => {
            let reason = printable(&close.reason);
            if close.error_code == TransportErrorCode::CONNECTION_REFUSED {
                return QuicError::Full { who };
            }
            match alert_of(close.error_code) {
                Some(ALERT_NO_APPLICATION_PROTOCOL) => version(who),
                Some(alert) => match refusal(alert, &reason) {
                    Some(why) => QuicError::OurCertificate { who, why },
                    None => QuicError::Transport { who, detail: reason },
                },
                None => {
                    QuicError::Transport { who, detail: printable(close.to_string().as_bytes()) }
                }
            }
        }
        ConnectionError::ApplicationClosed(close) => {
            let reason = printable(&close.reason);
            match CloseCode::from_wire(close.error_code) {
                Some(code) => QuicError::Closed { who, code, reason },
                None => {
                    let detail =
                        format!("closed with the unknown code {}: {reason}", close.error_code);
                    QuicError::Transport { who, detail }
                }
            }
        }
        ConnectionError::Reset => QuicError::Reset { who },
        ConnectionError::TimedOut => QuicError::Lost { who },
        ConnectionError::LocallyClosed => QuicError::ClosedHere { who },
        ConnectionError::VersionMismatch => QuicError::Version {
            who,
            ours: "QUIC version 1".to_owned(),
            theirs: "another QUIC version".to_owned(),
        },
        ConnectionError::CidsExhausted => {
            QuicError::Transport { who, detail: "no connection identifier is left".to_owned() }
        }
    }
}

/// The peer was not built from this project, or hides what it speaks.
fn version(who: String) -> QuicError {
    QuicError::Version {
        who,
        ours: super::tls::VERSION.to_owned(),
        theirs: "no protocol of slackline that we know".to_owned(),
    }
}

/// The TLS alert inside a QUIC error code: `0x100 + alert`, RFC 9001 §4.8.
fn alert_of(code: TransportErrorCode) -> Option<u8> {
    let code = u64::from(code);
    u8::try_from(code.checked_sub(0x100)?).ok()
}

/// What an alert means for the certificate of the end that receives it.
fn refusal(alert: u8, text: &str) -> Option<Refusal> {
    if let Some((_, told)) = text.split_once(MARK) {
        return Some(Refusal::Told(told.trim_end_matches(')').to_owned()));
    }
    let text = text.strip_prefix("invalid peer certificate: ").unwrap_or(text).to_owned();
    Some(match alert {
        // An authority of the same name with another key shows as a bad signature.
        ALERT_UNKNOWN_CA | ALERT_DECRYPT_ERROR => Refusal::Authority,
        ALERT_CERTIFICATE_REQUIRED => Refusal::Absent,
        ALERT_BAD_CERTIFICATE
        | ALERT_UNSUPPORTED_CERTIFICATE
        | ALERT_CERTIFICATE_EXPIRED
        | ALERT_CERTIFICATE_UNKNOWN
        | ALERT_ACCESS_DENIED => Refusal::Other(text),
        _ => return None,
    })
}

/// A failed write as a plain line.
pub(super) fn describe_write(who: &str, error: &WriteError) -> QuicError {
    match error {
        WriteError::ConnectionLost(lost) => describe_close_from(who, lost),
        WriteError::Stopped(_) | WriteError::ClosedStream | WriteError::ZeroRttRejected => {
            QuicError::Transport { who: who.to_owned(), detail: error.to_string() }
        }
    }
}

/// A failed read as a plain line.
pub(super) fn describe_read(who: &str, error: &ReadError) -> QuicError {
    match error {
        ReadError::ConnectionLost(lost) => describe_close_from(who, lost),
        ReadError::Reset(_)
        | ReadError::ClosedStream
        | ReadError::IllegalOrderedRead
        | ReadError::ZeroRttRejected => {
            QuicError::Transport { who: who.to_owned(), detail: error.to_string() }
        }
    }
}
