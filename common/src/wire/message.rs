//! Control messages to bytes and back. The only file that names `bincode` (unmaintained,
//! RUSTSEC-2025-0141), so that replacing it is one commit.

use crate::limits::CONTROL_BYTES_MAX;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a control message could not be written or read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum MessageError {
    /// The value does not fit a message.
    #[error("a control message does not encode: {0}")]
    Encode(String),
    /// The bytes are no such message.
    #[error("the peer's control message does not decode: {0}")]
    Decode(String),
    /// Bytes were left over.
    #[error("the peer's control message has {extra} bytes too many")]
    TrailingBytes {
        /// How many.
        extra: usize,
    },
}

type Limited = bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<CONTROL_BYTES_MAX>,
>;

/// Little-endian, variable-length integers, and a limit: without one, 25 bytes that claim 2⁴⁰
/// elements abort the process.
const CONFIGURATION: Limited = bincode::config::standard().with_limit::<CONTROL_BYTES_MAX>();

/// Encodes one message.
///
/// # Errors
/// [`MessageError::Encode`] when it is larger than [`CONTROL_BYTES_MAX`].
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, MessageError> {
    bincode::serde::encode_to_vec(value, CONFIGURATION)
        .map_err(|error| MessageError::Encode(error.to_string()))
}

/// Decodes one message that fills `bytes` exactly.
///
/// # Errors
/// [`MessageError::Decode`] or [`MessageError::TrailingBytes`]; never a panic, never more memory
/// than [`CONTROL_BYTES_MAX`].
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageError> {
    let (value, used) = bincode::serde::decode_from_slice(bytes, CONFIGURATION)
        .map_err(|error| MessageError::Decode(error.to_string()))?;
    match bytes.len() - used {
        0 => Ok(value),
        extra => Err(MessageError::TrailingBytes { extra }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_that_lies_is_refused_without_allocating() {
        let mut bytes = vec![253];
        bytes.extend_from_slice(&(1u64 << 40).to_le_bytes());
        bytes.extend_from_slice(&[0; 16]);
        assert!(decode::<Vec<f32>>(&bytes).is_err());
    }

    #[test]
    fn bytes_left_over_are_refused() {
        let mut bytes = encode(&7u32).unwrap();
        bytes.push(0);
        assert_eq!(decode::<u32>(&bytes), Err(MessageError::TrailingBytes { extra: 1 }));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<crate::wire::control::FromWorker>(&bytes);
            let _ = decode::<crate::wire::control::ToWorker>(&bytes);
            let _ = decode::<crate::wire::control::FromServer>(&bytes);
            let _ = decode::<crate::wire::control::FromOperator>(&bytes);
        }
    }
}
