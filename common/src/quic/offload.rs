//! Whether this machine cuts a large send into segments by itself, tried out once.

use quinn::udp::{Transmit, UdpSocketState};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::OnceLock;
use std::time::Duration;

const SEGMENT_BYTES: usize = 1000;
const SEGMENTS: usize = 3;
/// Loopback delivers at once; who has nothing by then will get nothing.
const PATIENCE: Duration = Duration::from_millis(100);

/// Whether a batch sent with one call arrives as its segments. The first call tries it over loopback,
/// warns if it does not, and later ones know.
pub(super) fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let outcome = try_batch();
        if let Some(warning) = warning(&outcome) {
            tracing::warn!("{warning}");
        }
        matches!(outcome, Ok(SEGMENTS))
    })
}

/// Sends one batch and counts the datagrams of the right size that arrive.
fn try_batch() -> io::Result<usize> {
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    receiver.set_read_timeout(Some(PATIENCE))?;
    let state = UdpSocketState::new((&sender).into())?;
    if state.max_gso_segments() < SEGMENTS {
        return Ok(0);
    }
    let contents = [7; SEGMENTS * SEGMENT_BYTES];
    state.try_send(
        (&sender).into(),
        &Transmit {
            destination: receiver.local_addr()?,
            ecn: None,
            contents: &contents,
            segment_size: Some(SEGMENT_BYTES),
            src_ip: None,
        },
    )?;
    let mut bytes = [0; SEGMENTS * SEGMENT_BYTES + 1];
    let mut arrived = 0;
    while arrived < SEGMENTS && receiver.recv(&mut bytes)? == SEGMENT_BYTES {
        arrived += 1;
    }
    Ok(arrived)
}

fn warning(outcome: &io::Result<usize>) -> Option<String> {
    let why = match outcome {
        Ok(SEGMENTS) => return None,
        Ok(0) => "this host offers none".to_owned(),
        Ok(arrived) => format!("{arrived} of {SEGMENTS} segments of a batch arrived"),
        Err(error) => error.to_string(),
    };
    Some(format!(
        "no UDP segmentation offload ({why}): every packet is a system call of its own, and sending \
         costs about five times the CPU. Linux has it since 4.18"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_arrives_as_its_segments_or_the_warning_says_what_it_costs() {
        match try_batch() {
            Ok(SEGMENTS) => assert!(works()),
            outcome => assert!(warning(&outcome).unwrap().contains("five times the CPU")),
        }
    }

    #[test]
    fn the_warning_says_why() {
        assert_eq!(warning(&Ok(SEGMENTS)), None);
        let refused = io::Error::new(io::ErrorKind::InvalidInput, "EIO");
        for (outcome, words) in
            [(Ok(0), "(this host offers none)"), (Ok(2), "(2 of 3"), (Err(refused), "(EIO)")]
        {
            assert!(warning(&outcome).unwrap().contains(words));
        }
    }
}
