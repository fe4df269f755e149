//! Names for positions and counts. An index, a count and a size are different types, so that a seat
//! can never be used where a shard was meant.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $label:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, " {}"), self.0)
            }
        }
    };
}

/// Gives the types whose numbers are positions in a `Vec` their index.
macro_rules! index {
    ($($name:ident),*) => {
        $(impl $name {
            /// The position in a `Vec` that has one entry per identifier.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        })*
    };
}

index!(SeatId, ServerId, ShardId, TensorId, BlockId);

id!(
    /// A worker's slot, `0..workers`.
    SeatId(u16), "seat"
);
id!(
    /// A server process, `0..servers`, numbered by the coordinator.
    ServerId(u16), "server"
);
id!(
    /// The blocks one engine owns; shard `i` lives on server `i % servers`.
    ShardId(u16), "shard"
);
id!(
    /// A tensor's position in the layout.
    TensorId(u32), "tensor"
);
id!(
    /// A block's position in the layout's list of blocks.
    BlockId(u32), "block"
);
id!(
    /// One life of a seat or a server process: grows each time somebody new takes it.
    Incarnation(u32), "incarnation"
);
id!(
    /// A membership generation. Grows with every change; fences the old.
    Term(u64), "term"
);
id!(
    /// One minibatch of one worker, counted from 0 in each seat.
    Step(u64), "step"
);
id!(
    /// How often a shard's parameters were published: steps closed in `bsp`, whole pushes applied
    /// otherwise.
    Version(u64), "version"
);
id!(
    /// A range of samples a worker must finish or lose.
    LeaseId(u64), "lease"
);

impl Step {
    /// The step after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A 32-byte blake3 hash that names a layout, a job or a set of parameters.
#[derive(Clone, Copy, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Hashes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The first 12 hexadecimal digits: enough for people to compare.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", self.short())
    }
}
