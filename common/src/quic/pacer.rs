//! The egress cap: when the next datagram may go.
//!
//! A token bucket kept as one instant: the time until which the line is paid for. Whoever sends moves
//! it on by the time its bytes take at the cap; whoever comes while it lies ahead waits for it. Time
//! that nobody used is kept for a moment only, because timers are late, never for a burst.
//!
//! Counted are UDP payloads plus IP and UDP headers; what the link puts around them (14 bytes and more
//! of Ethernet) is not.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Unused time that is kept: what a timer may be late by on a busy host.
const CREDIT: Duration = Duration::from_millis(20);
/// Time on the line of one batch of segments, at most: beyond it the sending would be uneven.
const BATCH: Duration = Duration::from_millis(5);
/// Headers of UDP in IPv4 and in IPv6.
const HEADER_BYTES_V4: usize = 28;
const HEADER_BYTES_V6: usize = 48;

/// Paces what is sent to a rate.
#[derive(Clone, Debug)]
pub(super) struct Pacer {
    bytes_per_second: f64,
    /// The line is paid for until then; `None` before the first send.
    paid_until: Option<Instant>,
}

impl Pacer {
    /// `megabits`: 10⁶ bits per second, above 0.
    pub(super) fn new(megabits: f64) -> Self {
        Self { bytes_per_second: megabits * 1e6 / 8.0, paid_until: None }
    }

    /// When something may be sent: now, if not later.
    pub(super) fn ready_at(&self, now: Instant) -> Instant {
        self.paid_until.map_or(now, |paid| paid.max(now))
    }

    /// Pays for `bytes`.
    ///
    /// # Errors
    /// When they may not go yet: the time at which they may.
    pub(super) fn take(&mut self, now: Instant, bytes: usize) -> Result<(), Instant> {
        let ready = self.ready_at(now);
        if ready > now {
            return Err(ready);
        }
        let oldest = now.checked_sub(CREDIT).unwrap_or(now);
        let from = self.paid_until.map_or(now, |paid| paid.max(oldest));
        self.paid_until = Some(from + self.time_of(bytes));
        Ok(())
    }

    /// Segments of `mtu` bytes that may go in one batch.
    pub(super) fn segments(&self, mtu: u16) -> usize {
        let bytes = self.bytes_per_second * BATCH.as_secs_f64();
        // At most 1e6 Mbit/s for 5 ms.
        #[allow(clippy::cast_possible_truncation)]
        let bytes = bytes as usize;
        (bytes / usize::from(mtu)).max(1)
    }

    fn time_of(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second)
    }
}

/// What a send of `bytes` of payload in segments of `segment_bytes` counts for.
pub(super) fn counted(bytes: usize, segment_bytes: Option<usize>, to: SocketAddr) -> usize {
    let datagrams = segment_bytes.map_or(1, |segment| bytes.div_ceil(segment.max(1)));
    let header = if to.ip().to_canonical().is_ipv4() { HEADER_BYTES_V4 } else { HEADER_BYTES_V6 };
    bytes + datagrams * header
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Sends datagrams whenever they may go, woken `late` after each time it was told to wait for, and
    /// gives the bytes that went within `seconds`.
    fn send(pacer: &mut Pacer, start: Instant, seconds: u32, late: Duration) -> usize {
        let (mut now, mut bytes) = (start, 0);
        while now < start + seconds * SECOND {
            match pacer.take(now, 1480) {
                Ok(()) => bytes += 1480,
                Err(ready) => now = ready + late,
            }
        }
        bytes
    }

    #[test]
    fn what_goes_out_stays_within_one_percent_of_the_cap() {
        for megabits in [1.0, 20.0, 100.0, 1000.0] {
            for late in [0, 1, 5, 15].map(Duration::from_millis) {
                let sent = send(
                    &mut Pacer::new(megabits),
                    tokio::time::Instant::now().into_std(),
                    10,
                    late,
                );
                let share = sent as f64 * 8.0 / 10.0 / (megabits * 1e6);
                assert!(
                    (0.99..1.01).contains(&share),
                    "{share} of {megabits} Mbit/s, {late:?} late"
                );
            }
        }
    }

    #[test]
    fn a_pause_earns_no_burst() {
        let (mut pacer, start) = (Pacer::new(8.0), tokio::time::Instant::now().into_std());
        send(&mut pacer, start, 1, Duration::ZERO);
        // After an hour: 20 ms at 1 MB/s, and the one that goes into debt.
        let later = start + 3600 * SECOND;
        let sent = std::iter::from_fn(|| pacer.take(later, 1000).ok()).count();
        assert_eq!(sent, 21);
        assert_eq!(pacer.take(later, 1), Err(later + Duration::from_millis(1)));
    }

    #[test]
    fn headers_count_for_each_datagram() {
        let v4 = SocketAddr::from(([10, 0, 0, 1], 1));
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:1".parse().unwrap();
        let v6: SocketAddr = "[2001:db8::1]:1".parse().unwrap();
        assert_eq!(counted(1000, None, v4), 1028);
        assert_eq!(counted(2500, Some(1000), v4), 2500 + 3 * 28);
        assert_eq!(counted(2000, Some(1000), mapped), 2000 + 2 * 28);
        assert_eq!(counted(1000, None, v6), 1048);
    }

    #[test]
    fn a_slow_line_sends_small_batches() {
        assert_eq!(Pacer::new(1.0).segments(1452), 1);
        assert_eq!(Pacer::new(20.0).segments(1452), 8);
        assert_eq!(Pacer::new(1000.0).segments(6500), 96);
    }
}
