//! The choice of congestion controller, and ours behind quinn's trait.

use super::rate::RateModel;
use crate::config::Congestion;
use quinn::congestion::{BbrConfig, Controller, ControllerFactory, CubicConfig};
use quinn_proto::RttEstimator;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Below this round trip time is made by schedulers and timers, not by distance, and a window of rate
/// times round trip would follow their mood down. There CUBIC's window counts where it is larger: it
/// grows as long as nothing is lost.
const LOCAL_ROUND_TRIP: Duration = Duration::from_millis(2);
/// First window of the rate controller: it doubles each round trip, and a slow link's queue is often
/// not larger.
const RATE_INITIAL_WINDOW_BYTES: u64 = 64 << 10;

/// What makes the controllers of an endpoint's connections.
pub(super) fn factory(
    congestion: Congestion,
    initial_window_bytes: u64,
    mtu: u16,
) -> Arc<dyn ControllerFactory + Send + Sync> {
    match congestion {
        Congestion::Cubic => {
            let mut cubic = CubicConfig::default();
            cubic.initial_window(initial_window_bytes);
            Arc::new(cubic)
        }
        Congestion::Bbr => {
            let mut bbr = BbrConfig::default();
            bbr.initial_window(initial_window_bytes);
            Arc::new(bbr)
        }
        Congestion::Rate => {
            // Below ten packets the first flight may never leave.
            let initial_window = RATE_INITIAL_WINDOW_BYTES.max(10 * u64::from(mtu));
            let mut local = CubicConfig::default();
            local.initial_window(initial_window);
            Arc::new(RateFactory { initial_window, local: Arc::new(local) })
        }
    }
}

#[derive(Debug)]
struct RateFactory {
    initial_window: u64,
    local: Arc<CubicConfig>,
}

impl ControllerFactory for RateFactory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(RateController {
            initial_window: self.initial_window,
            model: RateModel::new(now, current_mtu, self.initial_window),
            local: Arc::clone(&self.local).build(now, current_mtu),
        })
    }
}

/// [`RateModel`], and CUBIC where the round trip is too short to mean anything.
struct RateController {
    initial_window: u64,
    model: RateModel,
    local: Box<dyn Controller>,
}

impl Controller for RateController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.model.sent(now);
        self.local.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.model.acked(now, sent, bytes);
        self.local.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.model.acks_done(now, in_flight, app_limited);
        self.local.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.model.lost(lost_bytes, is_persistent_congestion);
        self.local.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.model.set_mtu(new_mtu);
        self.local.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        let window = self.model.window();
        match self.model.round_trip() {
            Some(round_trip) if round_trip < LOCAL_ROUND_TRIP => window.max(self.local.window()),
            _ => window,
        }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            initial_window: self.initial_window,
            model: self.model.clone(),
            local: self.local.clone_box(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.initial_window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
