//! Whose move it is: decides close codes, log levels and exit codes in one place.

use serde::{Deserialize, Serialize};

/// Who has to act on an error.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Blame {
    /// The configuration or the command line: a person must change it. Exit code 64.
    Config,
    /// A peer broke the protocol: close with a reason, log at debug, carry on with the others.
    Peer,
    /// A peer is away or the network is: wait, reconnect, and say who is missing. Exit code 69.
    Network,
    /// A bug or a lost machine of ours: log at error, a human must look. Exit code 70.
    Us,
}

/// `EX_USAGE`: the configuration is wrong.
pub const EXIT_CONFIG: u8 = 64;
/// `EX_UNAVAILABLE`: a peer cannot be reached or was lost.
pub const EXIT_UNREACHABLE: u8 = 69;
/// `EX_SOFTWARE`: our own fault.
pub const EXIT_OURS: u8 = 70;

impl Blame {
    /// The process exit code when an error with this blame ends a binary. A peer that breaks the
    /// protocol with the only party we talk to leaves us without a peer, hence 69.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Config => EXIT_CONFIG,
            Self::Peer | Self::Network => EXIT_UNREACHABLE,
            Self::Us => EXIT_OURS,
        }
    }
}
