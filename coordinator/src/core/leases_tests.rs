#![allow(clippy::cast_possible_truncation)] // small numbers of the tests' own

use super::*;
use proptest::prelude::*;

/// A worker that applies what it pushes at once and asks when it has nothing left.
#[derive(Clone, Debug, Default)]
struct Worker {
    clock: u64,
    work: Option<(Lease, u32)>,
    told: Option<Grant>,
    dead: bool,
}

/// A cluster around a book, counting how often each position of each epoch was worked on.
struct World {
    book: LeaseBook,
    workers: Vec<Worker>,
    counts: BTreeMap<u64, Vec<u32>>,
    /// The positions each seat's pushes had, in order.
    pushed: Vec<Vec<(u64, Range<u64>)>>,
}

impl World {
    fn new(plan: Plan) -> Self {
        let seats = usize::from(plan.workers);
        Self {
            book: LeaseBook::new(plan, (0..plan.workers).map(SeatId)),
            workers: vec![Worker::default(); seats],
            counts: BTreeMap::new(),
            pushed: vec![Vec::new(); seats],
        }
    }

    fn give(&mut self, seat: usize, grant: Grant) {
        self.workers[seat].told = Some(grant);
        if let Grant::Lease(lease) = grant {
            self.workers[seat].work = Some((lease, 0));
        }
    }

    /// One action of a seat: ask, or push a batch, or (idle) push an empty one.
    fn act(&mut self, seat: usize) {
        let id = SeatId(seat as u16);
        let worker = &mut self.workers[seat];
        if worker.dead || worker.told == Some(Grant::Done) {
            return;
        }
        match worker.work {
            Some((lease, k)) => {
                if k == 0 {
                    assert!(self.book.handle_started(id, lease.id, Step(worker.clock)));
                }
                worker.clock += 1;
                worker.work = (k + 1 < lease.batches).then_some((lease, k + 1));
                let positions = lease.positions(k);
                let counts = self.counts.entry(lease.epoch).or_default();
                counts.resize(lease.samples as usize, 0);
                positions.clone().for_each(|position| counts[position as usize] += 1);
                self.pushed[seat].push((lease.epoch, positions));
            }
            None if worker.told == Some(Grant::Idle) => worker.clock += 1,
            None => {
                let grant = self.book.request(id);
                self.give(seat, grant);
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        while let Some((seat, grant)) = self.book.poll_grant() {
            self.give(seat.index(), grant);
        }
        for worker in &mut self.workers {
            if worker.work.is_none() && matches!(worker.told, Some(Grant::Lease(_))) {
                worker.told = None;
            }
        }
    }

    fn die(&mut self, seat: usize) {
        self.workers[seat].dead = true;
        self.book.depart(SeatId(seat as u16));
        self.settle();
    }

    fn release(&mut self, seat: usize) {
        self.book.release(SeatId(seat as u16), Step(self.workers[seat].clock));
        self.settle();
    }

    fn run_to_the_end(&mut self) {
        for _ in 0..1_000_000 {
            if self.workers.iter().all(|w| w.dead || w.told == Some(Grant::Done)) {
                return;
            }
            (0..self.workers.len()).for_each(|seat| self.act(seat));
        }
        panic!("the job does not end: {:?}", self.book);
    }

    fn each_position_once(&self, epochs: u64) {
        assert_eq!(self.counts.len() as u64, epochs, "epochs begun");
        for (epoch, counts) in &self.counts {
            assert!(counts.iter().all(|times| *times == 1), "epoch {epoch}: {counts:?}");
        }
    }
}

fn plan(interleaved: bool, workers: u16, batch: u32, samples: u64, length: Length) -> Plan {
    Plan { interleaved, batch, samples, length, workers }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_position_is_worked_on_once_per_epoch_whoever_dies(
        interleaved: bool,
        workers in 1u16..6,
        batch in 1u32..9,
        samples in 1u64..400,
        epochs in 1u64..4,
        script in proptest::collection::vec((0usize..6, 0u8..40), 0..400),
    ) {
        let mut world = World::new(plan(interleaved, workers, batch, samples, Length::Epochs(epochs)));
        let mut leaving = Vec::new();
        for (seat, what) in script {
            let seat = seat % usize::from(workers);
            let alive = world.workers.iter().filter(|w| !w.dead).count();
            match what {
                0 if alive > 1 && !world.workers[seat].dead => {
                    world.die(seat);
                    leaving.push(seat);
                }
                1 => leaving.drain(..).for_each(|seat| world.release(seat)),
                2 => world.book.handle_clock(SeatId(seat as u16), Step(world.workers[seat].clock)),
                _ => world.act(seat),
            }
        }
        leaving.drain(..).for_each(|seat| world.release(seat));
        world.run_to_the_end();
        world.each_position_once(epochs);
        prop_assert_eq!(world.book.samples_abandoned(), 0);
    }

    #[test]
    fn bsp_leases_do_not_depend_on_timing_and_a_step_is_contiguous(
        workers in 1u16..6,
        batch in 1u32..9,
        samples in 1u64..900,
        epochs in 1u64..3,
        order in proptest::collection::vec(0usize..6, 0..500),
    ) {
        let plan = plan(true, workers, batch, samples, Length::Epochs(epochs));
        let mut world = World::new(plan);
        order.iter().for_each(|seat| world.act(seat % usize::from(workers)));
        world.run_to_the_end();
        let global = u64::from(workers) * u64::from(batch);
        let per_epoch = samples.div_ceil(global);
        for step in 0..epochs * per_epoch {
            for seat in 0..u64::from(workers) {
                let from = (step % per_epoch * global + seat * u64::from(batch)).min(samples);
                let to = (from + u64::from(batch)).min(samples);
                prop_assert_eq!(
                    &world.pushed[seat as usize][step as usize],
                    &(step / per_epoch, from..to)
                );
            }
        }
        prop_assert!(world.pushed.iter().all(|p| p.len() as u64 == epochs * per_epoch));
    }

    #[test]
    fn a_length_in_steps_is_kept_in_every_mode(
        interleaved: bool,
        workers in 1u16..5,
        batch in 1u32..9,
        samples in 1u64..300,
        steps in 0u64..60,
        order in proptest::collection::vec(0usize..6, 0..300),
    ) {
        let plan = plan(interleaved, workers, batch, samples, Length::Steps(steps));
        let mut world = World::new(plan);
        order.iter().for_each(|seat| world.act(seat % usize::from(workers)));
        world.run_to_the_end();
        let worked: u64 = world.counts.values().flatten().map(|times| u64::from(*times)).sum();
        prop_assert_eq!(Some(worked), plan.samples_total());
        prop_assert!(world.counts.values().flatten().all(|times| *times <= 1));
        if interleaved {
            prop_assert!(world.pushed.iter().all(|p| p.len() as u64 == steps));
        } else {
            prop_assert_eq!(worked, steps * u64::from(workers) * u64::from(batch));
        }
    }
}

#[test]
fn a_seat_waits_while_others_hold_unfinished_work_and_then_gets_it() {
    let mut book = LeaseBook::new(plan(false, 2, 4, 8, Length::Epochs(1)), [SeatId(0), SeatId(1)]);
    let Grant::Lease(first) = book.request(SeatId(0)) else { panic!("no lease") };
    let Grant::Lease(second) = book.request(SeatId(1)) else { panic!("no lease") };
    assert_eq!((first.positions(0), second.positions(0)), (0..4, 4..8));
    book.handle_started(SeatId(1), second.id, Step(0));
    assert_eq!(book.request(SeatId(0)), Grant::Idle);
    book.depart(SeatId(1));
    assert_eq!(book.poll_grant(), None); // nobody knows yet how far it came
    assert_eq!(book.release(SeatId(1), Step(0)), 4);
    let Some((SeatId(0), Grant::Lease(again))) = book.poll_grant() else { panic!("no lease") };
    assert_eq!((again.positions(0), again.id), (4..8, LeaseId(2)));
    assert_eq!(book.request(SeatId(0)), Grant::Done);
}

#[test]
fn a_stopped_job_has_nothing_more_to_hand_out() {
    let endless = plan(false, 1, 4, 100, Length::Steps(u64::MAX));
    assert_eq!(endless.samples_total(), None);
    let mut book = LeaseBook::new(endless, [SeatId(0)]);
    for _ in 0..1000 {
        assert!(matches!(book.request(SeatId(0)), Grant::Lease(_)));
    }
    book.stop();
    assert_eq!(book.request(SeatId(0)), Grant::Done);
}

#[test]
fn the_samples_of_a_lease_are_those_of_its_batches() {
    for (first, stride, batches, batch, samples) in [
        (0, 4, 3, 4, 12),
        (0, 4, 3, 4, 11),
        (0, 8, 5, 4, 13),
        (4, 8, 5, 4, 13),
        (12, 8, 5, 4, 13),
        (13, 8, 5, 4, 13),
        (40, 8, 5, 4, 13),
        (0, 1, 7, 1, 3),
    ] {
        let lease = Lease { id: LeaseId(0), epoch: 0, first, stride, batches, batch, samples };
        let counted: u64 = (0..batches).map(|k| lease.positions(k).count() as u64).sum();
        assert_eq!(samples_of(&lease), counted, "{lease:?}");
    }
}

#[test]
fn a_seat_lost_from_an_enormous_plan_costs_little() {
    let plan = plan(true, 2, 1, SAMPLES_MAX, Length::Epochs(1));
    let mut book = LeaseBook::new(plan, [SeatId(0), SeatId(1)]);
    assert!(matches!(book.request(SeatId(0)), Grant::Lease(_)));
    assert_eq!(book.release(SeatId(1), Step(0)), SAMPLES_MAX / 2);
    assert!(book.orphans.len() <= 1024);
    assert!(matches!(book.request(SeatId(0)), Grant::Lease(lease) if lease.batches == 8));
}
