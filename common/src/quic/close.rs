//! Why a connection is closed: the application codes of our protocol.

use crate::blame::Blame;
use quinn::{Connection, VarInt};

/// Longest reason that is sent or shown.
pub const REASON_BYTES_MAX: usize = 400;

/// The code of an orderly close. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u32)]
pub enum CloseCode {
    /// The work is finished, or the member left in good order.
    Done = 0,
    /// The request cannot be granted; the reason says why.
    Refused = 1,
    /// The peer sent what the protocol does not allow.
    ProtocolViolation = 2,
    /// The peer's role may not do this.
    RoleRefused = 3,
    /// This process is ending; come back later.
    Shutdown = 4,
    /// The peer did not send or take what was due in time.
    StuckPeer = 5,
    /// The two ends have no protocol version in common.
    VersionRefused = 6,
    /// Job, layout or build differ between the two ends.
    Mismatch = 7,
    /// The peer speaks for an old term or incarnation; another life took its place.
    Fenced = 8,
    /// There are as many connections as are allowed.
    Full = 9,
    /// A fault of the end that closed.
    Internal = 10,
}

impl CloseCode {
    /// Every code, in the order of the numbers.
    pub const ALL: [Self; 11] = [
        Self::Done,
        Self::Refused,
        Self::ProtocolViolation,
        Self::RoleRefused,
        Self::Shutdown,
        Self::StuckPeer,
        Self::VersionRefused,
        Self::Mismatch,
        Self::Fenced,
        Self::Full,
        Self::Internal,
    ];

    /// What the code says, for people.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::ProtocolViolation => "protocol violation",
            Self::RoleRefused => "role refused",
            Self::Shutdown => "shutting down",
            Self::StuckPeer => "silent or stuck peer",
            Self::VersionRefused => "protocol version refused",
            Self::Mismatch => "job, layout or build differ",
            Self::Fenced => "replaced by a newer life",
            Self::Full => "too many connections",
            Self::Internal => "internal fault",
        }
    }

    /// Whose move it is when the *peer* closed with this code.
    pub const fn blame(self) -> Blame {
        match self {
            Self::Refused | Self::RoleRefused | Self::VersionRefused | Self::Mismatch => {
                Blame::Config
            }
            Self::ProtocolViolation => Blame::Us,
            Self::Internal => Blame::Peer,
            Self::Done | Self::Shutdown | Self::StuckPeer | Self::Fenced | Self::Full => {
                Blame::Network
            }
        }
    }

    /// The code on the wire.
    pub const fn to_wire(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }

    /// The code a peer sent, if it is one of ours.
    pub fn from_wire(code: VarInt) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.to_wire() == code)
    }
}

/// Closes a connection; `detail` travels with the code and is shown on the other end.
pub fn close(connection: &Connection, code: CloseCode, detail: &str) {
    connection.close(code.to_wire(), printable(detail.as_bytes()).as_bytes());
}

/// What a peer wrote, made safe for a terminal and a log: one line, no control characters, of
/// the first [`REASON_BYTES_MAX`] bytes.
pub(super) fn printable(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(REASON_BYTES_MAX)];
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_part_of_the_protocol() {
        for (number, code) in (0u32..).zip(CloseCode::ALL) {
            assert_eq!(code.to_wire(), VarInt::from_u32(number));
            assert_eq!(CloseCode::from_wire(VarInt::from_u32(number)), Some(code));
        }
        assert_eq!(CloseCode::from_wire(VarInt::from_u32(11)), None);
        assert_eq!(CloseCode::from_wire(VarInt::MAX), None);
    }

    #[test]
    fn a_peers_text_cannot_drive_a_terminal() {
        assert_eq!(printable(b"a\x1b[31m\nb\x00"), "a [31m b ");
        assert_eq!(printable(&[b'x'; 5000]).len(), REASON_BYTES_MAX);
        assert_eq!(printable(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    }
}
