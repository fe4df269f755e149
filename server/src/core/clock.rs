//! Clocks: who has finished what, and which pull may be answered now.
//!
//! A pull names the step its seat wants to start. It waits in two rooms: first until the seat's own
//! pushes are in (read-my-writes), then until the *floor* has come near enough. The floor is the
//! slowest live seat's clock in `ssp`, the number of closed steps in `bsp` (a step whose pushes are
//! all here but whose update is not made yet lets nobody go), and endlessly high in `asp`.

use slackline_common::ids::{Incarnation, SeatId, Step};
use slackline_common::job::Mode;
use std::collections::BTreeMap;

/// A waiting request's name, chosen by whoever drives the engine; never used twice.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Token(pub u64);

/// One seat, as a shard sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seat {
    /// Its life; pushes of any other are refused.
    pub incarnation: Incarnation,
    /// Steps that are complete here, without a gap: the next step is number `clock`.
    pub clock: Step,
    /// Whether it may push and others wait for it.
    pub state: SeatState,
}

/// Where a seat stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SeatState {
    /// It pushes, and others wait for it.
    Live,
    /// It said that it pushes no more.
    Left,
    /// It was taken out.
    Departed,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    token: Token,
    seat: SeatId,
    step: Step,
}

/// The clocks of one shard and the pulls that wait for them.
#[derive(Debug)]
pub struct Clocks {
    mode: Mode,
    seats: BTreeMap<SeatId, Seat>,
    closed: Step,
    /// Pulls ahead of their own seat's clock, by seat, step and arrival.
    own: BTreeMap<(SeatId, Step, u64), Token>,
    /// Pulls that wait for others, by the floor they need and arrival.
    parked: BTreeMap<(u64, u64), Waiter>,
    arrivals: u64,
    max_staleness: u64,
}

impl Clocks {
    /// All seats at step 0.
    pub fn new(mode: Mode, seats: &[(SeatId, Incarnation)]) -> Self {
        let seat = |incarnation| Seat { incarnation, clock: Step(0), state: SeatState::Live };
        Self {
            mode,
            seats: seats.iter().map(|(id, incarnation)| (*id, seat(*incarnation))).collect(),
            closed: Step(0),
            own: BTreeMap::new(),
            parked: BTreeMap::new(),
            arrivals: 0,
            max_staleness: 0,
        }
    }

    /// One seat, if there is such a seat in the job.
    pub fn seat(&self, id: SeatId) -> Option<&Seat> {
        self.seats.get(&id)
    }

    /// All seats ever, in order.
    pub fn seats(&self) -> impl Iterator<Item = (SeatId, &Seat)> {
        self.seats.iter().map(|(id, seat)| (*id, seat))
    }

    /// The live seats, in order.
    pub fn live(&self) -> impl Iterator<Item = (SeatId, &Seat)> {
        self.seats().filter(|(_, seat)| seat.state == SeatState::Live)
    }

    /// The slowest live seat's clock; when nobody is live, the furthest that anybody came.
    pub fn slowest(&self) -> Step {
        let live = self.live().map(|(_, seat)| seat.clock).min();
        live.unwrap_or_else(|| self.furthest())
    }

    fn furthest(&self) -> Step {
        self.seats.values().map(|seat| seat.clock).max().unwrap_or_default()
    }

    /// `bsp`: steps whose update has been made.
    pub const fn closed(&self) -> Step {
        self.closed
    }

    /// Largest `step - slowest` at the release of a pull.
    pub const fn max_staleness(&self) -> u64 {
        self.max_staleness
    }

    /// `bsp`: the step to close now, when every live seat has finished it. With nobody live, what was
    /// finished before still counts.
    pub fn closable(&self) -> Option<Step> {
        (self.mode == Mode::Bsp && self.slowest() > self.closed).then_some(self.closed)
    }

    /// Whether the mode lets a seat work on `step` now.
    pub fn allows(&self, step: Step) -> bool {
        self.needed_floor(step) <= self.floor()
    }

    fn floor(&self) -> u64 {
        match self.mode {
            Mode::Bsp => self.closed.0,
            Mode::Ssp { .. } => self.slowest().0,
            Mode::Asp { .. } => u64::MAX,
        }
    }

    fn needed_floor(&self, step: Step) -> u64 {
        self.mode.bound().map_or(0, |bound| step.0.saturating_sub(bound))
    }

    /// Input: a step of this seat is complete. Its clock goes up by one.
    pub fn handle_complete(&mut self, id: SeatId) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        seat.clock = seat.clock.next();
        let clock = seat.clock;
        let late = self.own.range((id, Step(0), 0)..=(id, clock, u64::MAX));
        let ready: Vec<_> = late.map(|(key, token)| (*key, *token)).collect();
        for (key, token) in ready {
            self.own.remove(&key);
            let (seat, step, arrival) = key;
            self.parked.insert((self.needed_floor(step), arrival), Waiter { token, seat, step });
        }
    }

    /// Input: the update of the oldest open step has been made.
    pub const fn handle_closed(&mut self) {
        self.closed = self.closed.next();
    }

    /// Input: a seat is live no more. Its waiting pulls are the caller's to answer.
    pub fn handle_gone(&mut self, id: SeatId, state: SeatState) {
        if let Some(seat) = self.seats.get_mut(&id) {
            seat.state = state;
        }
    }

    /// Input: a pull of this seat waits until the seat may start `step`.
    pub fn handle_wait(&mut self, token: Token, seat: SeatId, step: Step) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        if self.seats.get(&seat).is_some_and(|known| known.clock < step) {
            self.own.insert((seat, step, arrival), token);
        } else {
            self.parked.insert((self.needed_floor(step), arrival), Waiter { token, seat, step });
        }
    }

    /// Input: nobody waits for this answer any more.
    pub fn handle_cancel(&mut self, token: Token) {
        self.own.retain(|_, waiting| *waiting != token);
        self.parked.retain(|_, waiter| waiter.token != token);
    }

    /// The pulls that [`Clocks::poll_release`] would give now, in order.
    pub fn releasable(&self) -> impl Iterator<Item = Token> {
        let floor = self.floor();
        let ready = self.parked.iter().take_while(move |((needed, _), _)| *needed <= floor);
        ready.map(|(_, waiter)| waiter.token)
    }

    /// Output: one pull that may be answered now. Call until it returns `None`.
    pub fn poll_release(&mut self) -> Option<Token> {
        let ((needed, _), _) = self.parked.first_key_value()?;
        if *needed > self.floor() {
            return None;
        }
        let waiter = self.parked.pop_first()?.1;
        if self.seats.contains_key(&waiter.seat) {
            self.max_staleness =
                self.max_staleness.max(waiter.step.0.saturating_sub(self.slowest().0));
        }
        Some(waiter.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a script for two seats or more and compares who was released, in order. `p0` = seat 0
    /// pulls for its next step, `a0` = a step of seat 0 is complete, `l0` = seat 0 leaves, `P2.5` =
    /// seat 2 pulls for step 5 whatever its clock. Steps close as soon as they can.
    fn check(mode: Mode, seats: u16, script: &str, expected: &str) -> u64 {
        let ids: Vec<_> = (0..seats).map(|seat| (SeatId(seat), Incarnation(1))).collect();
        let mut clocks = Clocks::new(mode, &ids);
        let mut released = Vec::new();
        for word in script.split_whitespace() {
            let (verb, rest) = word.split_at(1);
            let (seat, step) = rest.split_once('.').unwrap_or((rest, ""));
            let seat = SeatId(seat.parse().unwrap());
            match verb {
                "p" => {
                    let step = clocks.seat(seat).unwrap().clock;
                    clocks.handle_wait(Token(seat.0.into()), seat, step);
                }
                "P" => {
                    let step = Step(step.parse().unwrap());
                    clocks.handle_wait(Token(seat.0.into()), seat, step);
                }
                "a" => clocks.handle_complete(seat),
                "l" => clocks.handle_gone(seat, SeatState::Left),
                "c" => clocks.handle_cancel(Token(seat.0.into())),
                other => panic!("no such verb: {other}"),
            }
            while clocks.closable().is_some() {
                clocks.handle_closed();
            }
            while let Some(token) = clocks.poll_release() {
                released.push(token.0.to_string());
            }
        }
        assert_eq!(released.join(" "), expected, "{mode:?} {script:?}");
        clocks.max_staleness()
    }

    const SSP2: Mode = Mode::Ssp { staleness: 2 };
    const ASP: Mode = Mode::Asp { scale_by_staleness: false };

    #[test]
    fn bulk_synchronous_waits_for_the_slowest() {
        check(Mode::Bsp, 2, "p0 a0 p0", "0"); // 1 has not finished step 0
        check(Mode::Bsp, 2, "p0 a0 p0 p1 a1", "0 1 0"); // now it has
        check(Mode::Bsp, 3, "a0 a1 p0 p1 p2 a2", "2 0 1");
    }

    #[test]
    fn stale_synchronous_lets_go_up_to_the_bound_and_no_further() {
        check(SSP2, 2, "p0 a0 p0 a0 p0 a0 p0", "0 0 0"); // step 3 would be 3 ahead
        check(SSP2, 2, "a0 a0 a0 p0 p1 a1", "1 0");
        check(SSP2, 2, "a0 a0 a0 a0 p0 a1 a1", "0");
    }

    #[test]
    fn asynchronous_waits_for_nobody() {
        assert_eq!(check(ASP, 2, "p0 a0 p0 a0 p0 a0 p0", "0 0 0 0"), 3);
    }

    #[test]
    fn nobody_reads_before_its_own_pushes_are_in() {
        for mode in [Mode::Bsp, SSP2, ASP] {
            check(mode, 1, "P0.1", "");
            check(mode, 1, "P0.1 a0", "0");
        }
        check(ASP, 2, "P0.2 P1.1 a0 a1 a0", "1 0");
    }

    #[test]
    fn a_seat_that_left_holds_nobody_back() {
        check(Mode::Bsp, 2, "a0 p0 l1", "0");
        check(SSP2, 3, "a0 a0 a0 a1 p0 l2", "0");
        check(Mode::Bsp, 2, "a0 l0 p1 a1 p1", "1 1");
    }

    #[test]
    fn a_cancelled_pull_is_never_released() {
        check(Mode::Bsp, 2, "a0 p0 c0 a1 p1", "1");
        check(Mode::Bsp, 2, "P0.1 c0 a0 a1", "");
    }

    #[test]
    fn a_step_whose_pushes_are_in_lets_nobody_go_before_it_is_closed() {
        let mut clocks = Clocks::new(Mode::Bsp, &[(SeatId(0), Incarnation(1))]);
        clocks.handle_complete(SeatId(0));
        clocks.handle_wait(Token(0), SeatId(0), Step(1));
        assert_eq!((clocks.poll_release(), clocks.allows(Step(1))), (None, false));
        assert_eq!(clocks.closable(), Some(Step(0)));
        clocks.handle_closed();
        assert_eq!((clocks.poll_release(), clocks.allows(Step(1))), (Some(Token(0)), true));
    }

    /// Hetu's SSP test (E20): with tolerance 0 no worker is ever more than 0 ahead.
    #[test]
    fn at_tolerance_zero_nobody_is_ever_ahead() {
        let ids: Vec<_> = (0..3).map(|seat| (SeatId(seat), Incarnation(1))).collect();
        let mut clocks = Clocks::new(Mode::Ssp { staleness: 0 }, &ids);
        let mut running = [true; 3];
        for turn in 0..30u64 {
            // Seat r works every r-th turn: some are always slower.
            for seat in (0..3u16).filter(|seat| turn % (u64::from(*seat) + 1) == 0) {
                if std::mem::take(&mut running[usize::from(seat)]) {
                    clocks.handle_complete(SeatId(seat));
                    let step = clocks.seat(SeatId(seat)).unwrap().clock;
                    clocks.handle_wait(Token(seat.into()), SeatId(seat), step);
                }
            }
            while let Some(token) = clocks.poll_release() {
                let seat = u16::try_from(token.0).unwrap();
                running[usize::from(seat)] = true;
                let clock = clocks.seat(SeatId(seat)).unwrap().clock;
                assert_eq!(clock, clocks.slowest());
            }
        }
        assert_eq!(clocks.max_staleness(), 0);
        assert!(clocks.slowest() >= Step(10));
    }
}
