//! While it trains: leases, reports, members that go.

use super::{Cause, Core, GONE_KEPT_MAX, Stage, Standing, seat_words, server_words};
use crate::core::effects::{Effect, Progress};
use crate::core::leases::Grant;
use crate::core::membership::MemberId;
use crate::core::time::Millis;
use slackline_common::blame::Blame;
use slackline_common::ids::{Incarnation, LeaseId, SeatId, Step};
use slackline_common::wire::control::{
    Evaluated, MemberStatus, Phase, ServerReport, ToServer, ToWorker, WorkerReport,
};

/// Points kept for the speed over the last seconds.
const POINTS_MAX: usize = 5;

impl Core {
    pub(super) fn worker_report(&mut self, id: MemberId, report: WorkerReport) {
        if let Some(worker) = self.members.worker_mut(id) {
            worker.report = report;
        }
        let Some(run) = &mut self.run else { return };
        if let Some(occupant) = run.seat_of(id).and_then(|seat| run.occupant_mut(seat)) {
            occupant.report = report;
            if report.loss.is_finite() {
                occupant.loss = report.loss;
            }
        }
    }

    pub(super) fn server_report(&mut self, now: Millis, id: MemberId, report: ServerReport) {
        if let Some(server) = self.members.server_mut(id) {
            server.report.clone_from(&report);
        }
        let Some(run) = &mut self.run else { return };
        let Some(number) = run.server_of(id) else { return };
        if let Some(book) = &mut run.book {
            for (seat, clock) in report.shards.iter().flat_map(|shard| &shard.clocks) {
                book.handle_clock(*seat, Step(run.job.batches_in(*clock)));
            }
        }
        run.servers[number.index()].report = report;
        if number.0 == 0 && run.stage == Stage::Training {
            let step = self.step();
            if let Some(run) = &mut self.run {
                run.points.push_back((now, step));
                while run.points.len() > POINTS_MAX {
                    run.points.pop_front();
                }
            }
            let progress = self.progress(now, None);
            self.effects.push_back(Effect::Progress(progress));
        }
    }

    pub(super) fn progress(&self, at: Millis, test: Option<Evaluated>) -> Progress {
        Progress {
            at,
            step: self.step(),
            samples: self.samples_applied(),
            loss: self.mean_loss(),
            test,
            steps_per_second: self.steps_per_second(),
            totals: self.totals(),
            max_staleness: self.max_staleness(),
        }
    }

    /// A seat has no batch left.
    pub(super) fn lease_request(&mut self, id: MemberId) {
        let Some(run) = &mut self.run else { return };
        let Some(seat) = run.seat_of(id) else { return };
        if run.stage != Stage::Training {
            // Before: the request is a mistake of the worker and is answered when training begins
            // by the next one. After: nothing is left.
            if run.stage > Stage::Training {
                self.tell_seat(seat, ToWorker::NoMoreWork);
            }
            return;
        }
        // A job without data has no leases: raw clients bring their own samples.
        let grant = run.book.as_mut().map_or(Grant::Done, |book| book.request(seat));
        self.give(seat, grant);
        self.settle();
    }

    fn give(&mut self, seat: SeatId, grant: Grant) {
        let message = match grant {
            Grant::Lease(lease) => ToWorker::Lease(lease),
            Grant::Idle => ToWorker::Idle,
            Grant::Done => {
                if let Some(occupant) = self.run.as_mut().and_then(|run| run.occupant_mut(seat)) {
                    occupant.told_no_more = true;
                }
                ToWorker::NoMoreWork
            }
        };
        self.tell_seat(seat, message);
    }

    /// Answers whom the book can answer now.
    fn settle(&mut self) {
        while let Some((seat, grant)) =
            self.run.as_mut().and_then(|run| run.book.as_mut()?.poll_grant())
        {
            self.give(seat, grant);
        }
    }

    /// The job was stopped: every seat is told.
    pub(super) fn no_more_work_for_all(&mut self) {
        let Some(run) = &mut self.run else { return };
        if let Some(book) = &mut run.book {
            book.stop();
            while book.poll_grant().is_some() {}
        }
        let seats: Vec<SeatId> = run.live().map(|(seat, _)| seat).collect();
        seats.into_iter().for_each(|seat| self.give(seat, Grant::Done));
    }

    /// A seat that has not left within a lease of the stop is taken out: raw clients decide by
    /// themselves when to call again, and nobody may keep a stopped job alive.
    pub(super) fn end_stop(&mut self, now: Millis) {
        let Some(run) = &self.run else { return };
        let Some(by) = run.stopped.as_ref().filter(|_| run.stop_by.is_some_and(|at| now > at))
        else {
            return;
        };
        if run.stage != Stage::Training {
            return;
        }
        let lease = self.settings.lease;
        let late: Vec<_> = run
            .live()
            .filter_map(|(seat, occupant)| {
                let sentence = format!(
                    "the job was stopped by {by} and {} did not leave within {lease}: it is taken \
                     out",
                    seat_words(seat, occupant)
                );
                Some((occupant.member?, sentence))
            })
            .collect();
        late.into_iter().for_each(|(id, sentence)| self.refuse_worker(now, id, sentence));
    }

    pub(super) fn lease_started(&mut self, now: Millis, id: MemberId, lease: LeaseId, at: Step) {
        let Some(run) = &mut self.run else { return };
        let Some(seat) = run.seat_of(id) else { return };
        if run.book.as_mut().is_some_and(|book| !book.handle_started(seat, lease, at)) {
            let text = format!("{seat} says it started {lease}, which it does not hold");
            self.event(now, true, "odd", text);
        }
    }

    /// A seat waits for all the others to say the same number, or one beyond it.
    pub(super) fn barrier(&mut self, id: MemberId, number: u64) {
        let Some(run) = &mut self.run else { return };
        let Some(seat) = run.seat_of(id) else { return };
        if let Some(occupant) = run.occupant_mut(seat) {
            occupant.barrier = Some(number);
        }
        self.pass_barriers();
    }

    /// Lets go every seat whose number all live seats have reached.
    fn pass_barriers(&mut self) {
        let Some(run) = &mut self.run else { return };
        let numbers: Option<Vec<u64>> = run.live().map(|(_, o)| o.barrier).collect();
        let Some(lowest) = numbers.and_then(|numbers| numbers.into_iter().min()) else { return };
        let seats: Vec<SeatId> =
            run.live().filter(|(_, o)| o.barrier == Some(lowest)).map(|(seat, _)| seat).collect();
        for seat in seats {
            if let Some(occupant) = self.run.as_mut().and_then(|run| run.occupant_mut(seat)) {
                occupant.barrier = None;
            }
            self.tell_seat(seat, ToWorker::BarrierPassed(lowest));
        }
    }

    pub(super) fn worker_finished(&mut self, now: Millis, id: MemberId, report: WorkerReport) {
        self.worker_report(id, report);
        let Some(run) = &mut self.run else { return };
        let Some(seat) = run.seat_of(id) else { return };
        let Some(occupant) = run.occupant_mut(seat) else { return };
        if occupant.standing != Standing::Working {
            return;
        }
        occupant.standing = Standing::Finished;
        occupant.report.phase = Phase::Finished;
        // Told to finish, it has applied all it was given. Otherwise it leaves early, and what its
        // clock does not cover goes to the others.
        if !occupant.told_no_more
            && let Some(book) = &mut run.book
        {
            let rest = book.release(seat, Step(run.job.batches_in(report.clock)));
            let words = format!("{seat} finished early; {rest} samples go to other seats");
            self.event(now, rest > 0, "finished", words);
            self.settle();
        }
        self.pass_barriers();
    }

    /// A member is gone, for whatever reason.
    pub(super) fn leave(&mut self, now: Millis, id: MemberId, cause: Cause) {
        let card = self.members.cards().find(|(member, _)| *member == id).map(|(_, card)| card);
        let Some(card) = card.cloned() else { return };
        let seat = self.run.as_ref().and_then(|run| run.seat_of(id));
        let server = self.run.as_ref().and_then(|run| run.server_of(id));
        let is_worker = self.members.workers().contains_key(&id);
        let line = self.gone_line(now, id, &cause);
        let in_order = self.run.as_ref().is_none_or(|run| run.stage == Stage::Concluding)
            || self.has_finished(seat);
        self.members.remove(id);
        if let Some(run) = &mut self.run
            && !(is_worker && in_order)
        {
            let (role, number) = match is_worker {
                true => ("worker", seat.map(|seat| seat.0)),
                false => ("server", server.map(|server| server.0)),
            };
            if run.gone.len() < GONE_KEPT_MAX {
                run.gone.push(MemberStatus {
                    role: role.to_owned(),
                    name: card.name,
                    address: card.address,
                    number,
                    silent_millis: now.since(card.heard).0,
                    gone: Some(line.clone()),
                    ..MemberStatus::default()
                });
            }
        }
        self.event(now, !in_order, "gone", line.clone());
        match (seat, server) {
            (Some(seat), _) => self.seat_lost(seat),
            (None, Some(_)) => self.server_lost(now, id, line),
            (None, None) => {}
        }
    }

    fn has_finished(&self, seat: Option<SeatId>) -> bool {
        self.run.as_ref().is_some_and(|run| {
            let mut finished = run.occupants().filter(|(_, o)| o.standing == Standing::Finished);
            finished.any(|(held, _)| Some(held) == seat)
        })
    }

    fn seat_lost(&mut self, seat: SeatId) {
        let Some(run) = &mut self.run else { return };
        let (stage, servers) = (run.stage, run.servers.len());
        let Some(occupant) = run.occupant_mut(seat) else { return };
        occupant.member = None;
        let incarnation = occupant.incarnation;
        match occupant.standing {
            _ if stage < Stage::Starting => self.free_seat(seat),
            Standing::Preparing | Standing::Prepared | Standing::Working => {
                let departed = vec![false; servers];
                occupant.standing = Standing::Departing { clock: Step(0), departed };
                run.term.0 += 1;
                run.lost.push(seat);
                run.staged.retain(|other| *other != seat);
                if run.winner == Some(seat) && stage == Stage::Initialising && !run.committing {
                    run.winner = None; // the servers forget its values with it
                }
                if let Some(book) = &mut run.book {
                    book.depart(seat);
                }
                let term = run.term;
                self.tell_servers(&ToServer::Depart { seat, incarnation, term });
                self.pass_barriers();
            }
            Standing::Departing { .. } | Standing::Gone | Standing::Finished => {}
        }
    }

    /// Without a server a part of the model is lost, and with it the job.
    fn server_lost(&mut self, now: Millis, id: MemberId, line: String) {
        match self.run.as_ref().map(|run| run.stage) {
            Some(Stage::Closing) => self.on_server(id, |place| place.is_final = true),
            Some(Stage::Concluding) | None => {}
            Some(_) => self.fail(now, line, Blame::Network),
        }
    }

    /// A server says how far a seat came that is gone.
    pub(super) fn departed(
        &mut self,
        now: Millis,
        id: MemberId,
        seat: SeatId,
        incarnation: Incarnation,
        clock: Step,
    ) {
        let Some(run) = &mut self.run else { return };
        let Some(number) = run.server_of(id) else { return };
        let Some(occupant) = run.occupant_mut(seat).filter(|o| o.incarnation == incarnation) else {
            return;
        };
        let Standing::Departing { clock: furthest, departed } = &mut occupant.standing else {
            return;
        };
        *furthest = clock.max(*furthest);
        departed[number.index()] = true;
        if !departed.iter().all(|done| *done) {
            return;
        }
        let clock = *furthest;
        occupant.standing = Standing::Gone;
        let words = seat_words(seat, occupant);
        let batches = Step(run.job.batches_in(clock));
        let samples = run.book.as_mut().map_or(0, |book| book.release(seat, batches));
        let text =
            format!("{words} is out at step {}; {samples} samples go to other seats", clock.0);
        self.event(now, false, "departed", text);
        self.settle();
    }

    /// Whether everybody who could work has finished.
    pub(super) fn train(&mut self, now: Millis) -> bool {
        let Some(run) = &mut self.run else { return false };
        if run.live().next().is_some() || run.departing() {
            return false;
        }
        // A stopped job keeps its model, though all seats had to be taken out.
        let finished = run.occupants().any(|(_, o)| o.standing == Standing::Finished);
        if !finished && run.stopped.is_none() {
            self.fail_without_workers(now);
            return true;
        }
        run.training_to = Some(now);
        let abandoned = run.book.as_ref().map_or(0, |book| book.samples_abandoned());
        if abandoned > 0 && run.stopped.is_none() {
            let text = format!(
                "{abandoned} samples of lost seats were not trained again: all others \
                                had been told that the work was done"
            );
            self.event(now, true, "abandoned", text);
        }
        self.set_stage(now, Stage::Evaluating);
        true
    }

    pub(super) fn fail_without_workers(&mut self, now: Millis) {
        let Some(run) = &self.run else { return };
        let last = run.gone.iter().rev().find(|member| member.role == "worker");
        let last = last.and_then(|member| member.gone.clone()).unwrap_or_default();
        self.fail(now, format!("no worker is left; the last: {last}"), Blame::Network);
    }

    /// `server 1 (127.0.0.1:4433, NAME) missing since 12:03:04 UTC, last heard 5.2 s ago while
    /// serving; step 123`.
    fn gone_line(&self, now: Millis, id: MemberId, cause: &Cause) -> String {
        let cause = Self::cause_words(cause);
        let words = |heard: Millis, phase: Phase| {
            format!(
                "missing since {}, last heard {} ago while {}",
                self.clock(heard),
                now.since(heard),
                phase_words(phase)
            )
        };
        let run = self.run.as_ref().filter(|run| run.stage >= Stage::Starting);
        if let Some(worker) = self.members.workers().get(&id) {
            let line = words(worker.card.heard, worker.report.phase);
            let seated = self.run.as_ref().and_then(|run| run.seat_of(id));
            return match seated {
                Some(seat) if self.has_finished(Some(seat)) => {
                    format!("{seat} ({}) has finished and left", worker.card)
                }
                Some(seat) if run.is_some() => {
                    let step = worker.report.clock.0;
                    format!("{seat} ({}) {line}{cause}; step {step}", worker.card)
                }
                _ => format!("worker {} {line}{cause}", worker.card),
            };
        }
        let Some(server) = self.members.servers().get(&id) else { return String::new() };
        let line = words(server.card.heard, server.report.phase);
        let numbered = run.and_then(|run| {
            let number = run.server_of(id)?.index();
            Some(server_words(number, &run.servers[number]))
        });
        match numbered {
            Some(numbered) => format!("{numbered} {line}{cause}; step {}", self.step()),
            None => format!("server {} {line}{cause}", server.card),
        }
    }
}

pub(super) const fn phase_words(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Preparing => "preparing",
        Phase::Computing => "computing",
        Phase::Pushing => "pushing",
        Phase::Pulling => "pulling",
        Phase::Evaluating => "evaluating",
        Phase::Serving => "serving",
        Phase::Finished => "finished",
    }
}
