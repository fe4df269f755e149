//! The model against a simulated link: a bottleneck with a queue, a delay and seeded loss. The link is
//! the oracle: what it carries and holds is known.

use super::*;
use std::collections::BTreeMap;

const MTU: u64 = 1452;
const TICK: Duration = Duration::from_micros(100);
const MS: Duration = Duration::from_millis(1);

/// splitmix64, as a number in `[0, 1)`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A sender as quinn is one: a window, paced at 1.25 windows per smoothed round trip, and a packet is
/// lost when one sent three later is acknowledged.
struct Flow {
    model: RateModel,
    next: u64,
    on_way: BTreeMap<u64, Instant>,
    /// When which packet's acknowledgement arrives, in order.
    acks: VecDeque<(Instant, u64)>,
    tokens: f64,
    smoothed: f64,
    begins: Instant,
    heard: Instant,
    acked: u64,
    lost: u64,
    /// Bytes it has to send; without, it never ends.
    work: Option<u64>,
}

impl Flow {
    fn new(begins: Instant) -> Self {
        let model = RateModel::new(begins, 1452, 64 << 10);
        Self {
            model,
            next: 0,
            on_way: BTreeMap::new(),
            acks: VecDeque::new(),
            tokens: 0.0,
            smoothed: 0.1,
            begins,
            heard: begins,
            acked: 0,
            lost: 0,
            work: None,
        }
    }

    fn hear(&mut self, now: Instant) {
        let mut largest = None;
        while self.acks.front().is_some_and(|(at, _)| *at <= now) {
            let (_, number) = self.acks.pop_front().unwrap();
            let Some(sent) = self.on_way.remove(&number) else { continue };
            self.model.acked(now, sent, MTU);
            self.acked += 1;
            self.smoothed = 0.875 * self.smoothed + 0.125 * (now - sent).as_secs_f64();
            largest = Some(number);
        }
        let Some(largest) = largest else { return };
        self.heard = now;
        let starved = self.work == Some(0);
        self.model.acks_done(now, self.on_way.len() as u64 * MTU, starved);
        let lost: Vec<_> = self.on_way.range(..largest.saturating_sub(2)).map(|it| *it.0).collect();
        if !lost.is_empty() {
            self.on_way.retain(|number, _| !lost.contains(number));
            self.lost += lost.len() as u64;
            self.work = self.work.map(|work| work + lost.len() as u64 * MTU);
            self.model.lost(lost.len() as u64 * MTU, false);
        }
    }
}

struct Link {
    start: Instant,
    now: Instant,
    /// Bytes per second.
    rate: f64,
    queue_max: f64,
    round_trip: Duration,
    loss: f64,
    /// When the last byte of the queue leaves.
    free: Instant,
    random: Random,
    flows: Vec<Flow>,
    queue_seen: Vec<f64>,
}

impl Link {
    fn new(megabits: f64, round_trip: Duration, loss: f64) -> Self {
        let start = tokio::time::Instant::now().into_std();
        let rate = megabits * 1e6 / 8.0;
        Self {
            start,
            now: start,
            rate,
            queue_max: rate * 0.1,
            round_trip,
            loss,
            free: start,
            random: Random(7),
            flows: vec![Flow::new(start)],
            queue_seen: Vec::new(),
        }
    }

    fn queue(&self) -> f64 {
        self.free.saturating_duration_since(self.now).as_secs_f64() * self.rate
    }

    fn run(&mut self, seconds: f64) {
        let end = self.now + Duration::from_secs_f64(seconds);
        while self.now < end {
            self.now += TICK;
            for at in 0..self.flows.len() {
                if self.flows[at].begins <= self.now {
                    self.flows[at].hear(self.now);
                    self.send(at);
                }
            }
            self.queue_seen.push(self.queue());
        }
    }

    fn send(&mut self, at: usize) {
        let window = self.flows[at].model.window() as f64;
        let per_tick = 1.25 * window / self.flows[at].smoothed * TICK.as_secs_f64();
        let most = (20.0 * per_tick).max((10 * MTU) as f64);
        self.flows[at].tokens = (self.flows[at].tokens + per_tick).min(most);
        loop {
            let queue = self.queue();
            let flow = &mut self.flows[at];
            // A packet that nothing was heard after is followed by a probe, whatever the window.
            let silent = !flow.on_way.is_empty() && self.now - flow.heard > 300 * MS;
            if silent {
                (flow.heard, flow.tokens) = (self.now, MTU as f64);
            }
            let full = !silent && (flow.on_way.len() as u64 + 1) * MTU >= flow.model.window();
            if full || flow.tokens < MTU as f64 || flow.work.is_some_and(|work| work < MTU) {
                if flow.work.is_some_and(|work| work < MTU) {
                    flow.work = Some(0);
                }
                return;
            }
            flow.work = flow.work.map(|work| work - MTU);
            flow.tokens -= MTU as f64;
            flow.model.sent(self.now);
            flow.on_way.insert(flow.next, self.now);
            flow.next += 1;
            let lost = self.random.next() < self.loss;
            if queue + MTU as f64 <= self.queue_max {
                let takes = Duration::from_secs_f64(MTU as f64 / self.rate);
                self.free = self.free.max(self.now) + takes;
                if !lost {
                    flow.acks.push_back((self.free + self.round_trip, flow.next - 1));
                }
            }
        }
    }

    /// Runs on and gives each flow's Mbit/s in that time.
    fn measure(&mut self, seconds: f64) -> Vec<f64> {
        let before: Vec<_> = self.flows.iter().map(|flow| flow.acked).collect();
        self.queue_seen.clear();
        self.run(seconds);
        let bits = |(flow, before): (&Flow, u64)| ((flow.acked - before) * MTU * 8) as f64;
        self.flows.iter().zip(before).map(|pair| bits(pair) / seconds / 1e6).collect()
    }

    /// Mean and largest queue of the last measurement, in seconds of the link.
    fn queue_seconds(&self) -> (f64, f64) {
        let mean = self.queue_seen.iter().sum::<f64>() / self.queue_seen.len() as f64;
        let largest = self.queue_seen.iter().copied().fold(0.0, f64::max);
        (mean / self.rate, largest / self.rate)
    }
}

#[test]
fn a_long_link_without_loss_is_filled_and_its_queue_stays_short() {
    for (megabits, round_trip) in [(100.0, 50 * MS), (20.0, 20 * MS), (100.0, 20 * MS)] {
        let mut link = Link::new(megabits, round_trip, 0.0);
        link.run(2.0);
        let reached = link.measure(20.0)[0];
        let (mean, largest) = link.queue_seconds();
        assert!(reached >= 0.96 * megabits, "{reached:.1} of {megabits} Mbit/s");
        let quarter = 0.25 * round_trip.as_secs_f64();
        assert!(mean < quarter + 0.005, "mean queue of {mean:.4} s");
        assert!(largest < 0.9 * round_trip.as_secs_f64(), "queue of {largest:.4} s");
        assert_eq!(link.flows[0].lost, 0, "the queue of 100 ms was overrun");
    }
}

#[test]
fn lost_packets_alone_do_not_slow_it_down() {
    for (loss, least) in [(0.01, 90.0), (0.03, 88.0), (0.05, 82.0)] {
        let mut link = Link::new(100.0, 50 * MS, loss);
        link.run(2.0);
        let reached = link.measure(20.0)[0];
        assert!(reached >= least, "{reached:.1} Mbit/s with loss of {loss}");
    }
}

#[test]
fn the_first_two_seconds_reach_half_of_a_long_fast_link() {
    let mut link = Link::new(1000.0, 100 * MS, 0.0);
    let reached = link.measure(2.0)[0];
    assert!(reached >= 500.0, "{reached:.1} Mbit/s");
}

#[test]
fn a_short_queue_is_not_run_over_for_long() {
    for (milliseconds, least) in [(2.0, 75.0), (5.0, 85.0), (10.0, 90.0)] {
        let mut link = Link::new(100.0, 50 * MS, 0.0);
        link.queue_max = link.rate * milliseconds / 1e3;
        link.run(2.0);
        let (sent, lost) = (link.flows[0].next, link.flows[0].lost);
        let reached = link.measure(20.0)[0];
        let lost = (link.flows[0].lost - lost) as f64 / (link.flows[0].next - sent) as f64;
        assert!(reached >= least, "{reached:.1} Mbit/s with a queue of {milliseconds} ms");
        assert!(lost < 0.1, "{lost:.3} lost with a queue of {milliseconds} ms");
    }
}

#[test]
fn heavy_loss_makes_it_yield_and_its_end_lets_it_return() {
    let mut link = Link::new(100.0, 50 * MS, 0.0);
    link.run(3.0);
    link.loss = 0.4;
    link.run(10.0);
    let window = link.flows[0].model.window();
    assert!(window < 100 << 10, "{window} bytes after ten seconds of heavy loss");
    link.loss = 0.0;
    link.run(5.0);
    let reached = link.measure(5.0)[0];
    assert!(reached >= 80.0, "{reached:.1} Mbit/s five seconds after");
}

#[test]
fn a_link_that_becomes_slower_or_faster_is_followed() {
    let mut link = Link::new(100.0, 50 * MS, 0.0);
    link.run(3.0);
    (link.rate, link.queue_max) = (link.rate / 5.0, link.queue_max / 5.0);
    link.run(4.0);
    let reached = link.measure(10.0)[0];
    let (mean, _) = link.queue_seconds();
    assert!(reached >= 18.0 && mean < 0.03, "{reached:.1} Mbit/s, mean queue of {mean:.4} s");
    (link.rate, link.queue_max) = (link.rate * 5.0, link.queue_max * 5.0);
    link.run(4.0);
    let reached = link.measure(10.0)[0];
    assert!(reached >= 90.0, "{reached:.1} Mbit/s after the link was fast again");
}

#[test]
fn two_flows_share_a_link_whoever_came_first() {
    for loss in [0.0, 0.01] {
        let mut link = Link::new(100.0, 50 * MS, loss);
        link.flows.push(Flow::new(link.start + 5000 * MS));
        link.run(25.0);
        let reached = link.measure(30.0);
        let (less, more) = (reached[0].min(reached[1]), reached[0].max(reached[1]));
        assert!(more < 3.0 * less, "{reached:.1?} Mbit/s with loss of {loss}");
        assert!(less + more >= 85.0, "{reached:.1?} Mbit/s with loss of {loss}");
    }
}

/// A worker pushes, computes, pushes: what it sends in bursts says what the path carries, the pauses
/// between do not.
#[test]
fn pauses_do_not_make_it_forget_what_the_path_carries() {
    let mut link = Link::new(100.0, 50 * MS, 0.0);
    link.run(3.0);
    link.flows[0].work = Some(0);
    for _ in 0..30 {
        link.flows[0].work = Some(100 * MTU);
        link.run(0.5);
        assert_eq!(link.flows[0].work, Some(0));
    }
    let megabits = link.flows[0].model.rate().unwrap() * 8.0 / 1e6;
    assert!((80.0..130.0).contains(&megabits), "{megabits:.1} Mbit/s");
}

#[test]
fn silence_of_the_whole_path_starts_it_from_the_smallest_window() {
    let mut link = Link::new(100.0, 50 * MS, 0.0);
    link.run(3.0);
    link.flows[0].model.lost(10 * MTU, true);
    assert_eq!(link.flows[0].model.window(), 4 * MTU);
    link.run(4.0);
    let reached = link.measure(5.0)[0];
    assert!(reached >= 80.0, "{reached:.1} Mbit/s");
}

#[test]
fn before_anything_is_acknowledged_the_first_window_holds() {
    let model = RateModel::new(tokio::time::Instant::now().into_std(), 1452, 64 << 10);
    assert_eq!((model.window(), model.rate(), model.round_trip()), (64 << 10, None, None));
}
