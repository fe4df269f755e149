//! How far ahead of its reader a peer may send: the product of bandwidth and delay, twice.
//!
//! A connection begins with a window below the socket's buffer, because on a short path a larger one
//! only lets a busy reader lose packets. Where bytes are long on their way that would be the limit: so
//! the window follows what arrives. A peer that fills its window in each round trip is seen to, and
//! gets twice as much.

use super::endpoint::{RECEIVE_WINDOW_BYTES_MIN, SOCKET_BUFFER_BYTES};
use crate::limits::RECEIVE_WINDOW_BYTES_MAX;
use quinn::{Connection, VarInt};
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// What a connection gets at least once it gets more: what a granted buffer gives from the start.
const RAISED_BYTES_MIN: u64 = SOCKET_BUFFER_BYTES as u64 / 4 * 3;

/// Follows a connection, one at a time. Call [`Windows::follow`] whenever something arrives on it.
#[derive(Debug, Default)]
pub struct Windows {
    /// Which connection that is: another one begins anew.
    connection: Option<usize>,
    /// When it was last looked at, and the bytes that had arrived by then.
    last: Option<(Instant, u64)>,
    /// What it has; 0 is what it began with.
    window: u64,
}

impl Windows {
    /// Widens the connection's receive window where what arrives asks for it. Looks a few times a
    /// second at most, however often it is called.
    pub fn follow(&mut self, connection: &Connection) {
        let now = tokio::time::Instant::now().into_std();
        let id = Some(connection.stable_id());
        if self.connection != id {
            *self = Self { connection: id, ..Self::default() };
        }
        if self.last.is_some_and(|(at, _)| now.saturating_duration_since(at) < LOOK) {
            return;
        }
        let bytes = connection.stats().udp_rx.bytes;
        if let Some(window) = self.look(now, bytes, connection.min_rtt())
            && let Ok(window) = VarInt::from_u64(window)
        {
            connection.set_receive_window(window);
        }
    }

    /// The new window, when it is to be another one.
    fn look(&mut self, now: Instant, bytes: u64, round_trip: Duration) -> Option<u64> {
        let (at, before) = self.last.replace((now, bytes))?;
        let seconds = now.saturating_duration_since(at).as_secs_f64();
        let rate = bytes.saturating_sub(before) as f64 / seconds.max(1e-3);
        let window = wanted(rate, round_trip)?;
        // It never shrinks: after a pause the next push would begin slowly.
        (window > self.window).then(|| {
            self.window = window;
            window
        })
    }
}

/// The window for `rate` bytes per second over the path's shortest round trip (the present one would
/// count a queue in), or `None` where what a connection begins with is enough.
fn wanted(rate: f64, round_trip: Duration) -> Option<u64> {
    // Below 2^53: a rate of bytes that were counted, and a round trip of seconds.
    #[allow(clippy::cast_possible_truncation)]
    let twice = (2.0 * rate * round_trip.as_secs_f64()) as u64;
    let needed = twice > RECEIVE_WINDOW_BYTES_MIN / 2 * 3;
    needed.then(|| twice.clamp(RAISED_BYTES_MIN, RECEIVE_WINDOW_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const GIGABIT: f64 = 1e9 / 8.0;

    #[test]
    fn a_short_path_keeps_the_window_it_began_with() {
        // 6.4 Gbit/s over loopback's 0.3 ms; a full 100 Mbit/s link of 50 ms.
        assert_eq!(wanted(6.4 * GIGABIT, MS * 3 / 10), None);
        assert_eq!(wanted(0.1 * GIGABIT, 50 * MS), None);
    }

    #[test]
    fn a_long_fast_path_gets_twice_what_is_on_its_way() {
        assert_eq!(wanted(5.0 * GIGABIT, 100 * MS), Some(125_000_000));
        assert_eq!(wanted(50.0 * GIGABIT, 100 * MS), Some(RECEIVE_WINDOW_BYTES_MAX));
        assert_eq!(wanted(0.1 * GIGABIT, 100 * MS), Some(RAISED_BYTES_MIN));
    }

    /// The peer sends a window per round trip, as it must, until the path is full.
    #[test]
    fn a_window_doubles_until_it_is_not_the_limit_and_stays_through_a_pause() {
        for begin in [RECEIVE_WINDOW_BYTES_MIN, RAISED_BYTES_MIN] {
            let (mut windows, mut now, mut bytes) =
                (Windows::default(), tokio::time::Instant::now().into_std(), 0);
            let mut window = begin;
            for _ in 0..10 {
                now += LOOK;
                bytes += (2 * window).min(125_000_000);
                window = windows.look(now, bytes, 100 * MS).unwrap_or(window);
            }
            assert!(window >= 124_000_000, "{window} from {begin}");
            assert_eq!(windows.look(now + 10 * LOOK, bytes, 100 * MS), None);
            assert_eq!(windows.look(now + 20 * LOOK, bytes + 1000, 100 * MS), None);
        }
    }
}
