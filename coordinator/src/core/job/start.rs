//! From a submitted job to the first step: seats, layout, data, shards, first values.

use super::{Cause, Core, Occupant, ServerPlace, Stage, Standing};
use crate::core::effects::Effect;
use crate::core::leases::{LeaseBook, Plan, SAMPLES_MAX};
use crate::core::membership::MemberId;
use crate::core::time::Millis;
use slackline_common::ids::{Incarnation, SeatId, ServerId};
use slackline_common::job::Mode;
use slackline_common::layout::{Layout, TensorSpec};
use slackline_common::wire::control::{
    ServerReport, StartServer, StartWorker, ToServer, ToWorker, WorkerReport,
};

impl Core {
    /// Which member goes to which free seat: who insists first, then by arrival to the lowest.
    pub(super) fn seating(&self) -> Vec<(SeatId, MemberId)> {
        let Some(run) = &self.run else { return Vec::new() };
        let places = run.seats.iter().zip(0u16..);
        let mut free: Vec<SeatId> =
            places.filter(|(place, _)| place.occupant.is_none()).map(|(_, s)| SeatId(s)).collect();
        let unseated: Vec<_> =
            self.members.workers().iter().filter(|(id, _)| run.seat_of(**id).is_none()).collect();
        let mut pairs = Vec::new();
        for (id, worker) in &unseated {
            let place = free.iter().position(|seat| worker.wanted == Some(*seat));
            if let Some(place) = place {
                pairs.push((free.remove(place), **id));
            }
        }
        let any = unseated.iter().filter(|(_, worker)| worker.wanted.is_none());
        pairs.extend(free.into_iter().zip(any.map(|(id, _)| **id)));
        pairs.sort_unstable();
        pairs
    }

    pub(super) fn gather(&mut self, now: Millis) -> bool {
        let pairs = self.seating();
        let Some(run) = &mut self.run else { return false };
        let free = run.seats.iter().filter(|place| place.occupant.is_none()).count();
        let servers = self.members.servers().len();
        if pairs.len() < free || servers < usize::from(run.job.servers) {
            return false;
        }
        for (seat, id) in pairs {
            let Some(worker) = self.members.workers().get(&id) else { continue };
            let place = &mut run.seats[seat.index()];
            let incarnation = Incarnation(place.lives);
            place.lives += 1;
            place.occupant = Some(Occupant {
                member: Some(id),
                card: worker.card.clone(),
                incarnation,
                standing: Standing::Preparing,
                report: WorkerReport::default(),
                loss: f32::NAN,
                samples: None,
                barrier: None,
                told_no_more: false,
            });
            let job = run.job.clone();
            let message = ToWorker::Job { job, seat, incarnation };
            self.effects.push_back(Effect::ToWorker(id, message));
        }
        self.set_stage(now, Stage::Preparing);
        true
    }

    /// A worker names its tensors: the first proposal fixes the layout.
    pub(super) fn propose_layout(&mut self, now: Millis, id: MemberId, layout: Layout) {
        let Some(run) = &mut self.run else { return };
        let Some(seat) = run.seat_of(id) else { return };
        match &run.layout {
            Some(fixed) if fixed.fingerprint() != layout.fingerprint() => {
                let difference = first_difference(fixed, &layout);
                let refusal = format!(
                    "{seat} brings another layout ({}) than the job's ({}): {difference}",
                    layout.fingerprint().short(),
                    fixed.fingerprint().short()
                );
                return self.refuse_worker(now, id, refusal);
            }
            Some(_) => {}
            None => run.layout = Some(layout),
        }
        self.prepared(seat);
    }

    fn prepared(&mut self, seat: SeatId) {
        let occupant = self.run.as_mut().and_then(|run| {
            let waits_for_data = run.job.data.is_some();
            run.occupant_mut(seat).filter(|o| !waits_for_data || o.samples.is_some())
        });
        if let Some(occupant) = occupant
            && occupant.standing == Standing::Preparing
        {
            occupant.standing = Standing::Prepared;
        }
    }

    /// A worker has counted its samples: all must agree.
    pub(super) fn data_ready(&mut self, now: Millis, id: MemberId, samples: u64) {
        let Some(run) = &mut self.run else { return };
        let Some(seat) = run.seat_of(id).filter(|_| run.job.data.is_some()) else { return };
        let other = run
            .live()
            .find(|(other, o)| *other != seat && o.samples.is_some_and(|there| there != samples))
            .map(|(other, o)| (super::seat_words(other, o), o.samples.unwrap_or(0)));
        let refusal = if !(1..=SAMPLES_MAX).contains(&samples) {
            format!("{seat} has {samples} training samples; 1 to {SAMPLES_MAX} are allowed")
        } else if let Some((other, theirs)) = other {
            format!(
                "{seat} has {samples} training samples, {other} has {theirs}: give every worker the \
                 same files"
            )
        } else if let Some(occupant) = run.occupant_mut(seat) {
            occupant.samples = Some(samples);
            return self.prepared(seat);
        } else {
            return;
        };
        self.refuse_worker(now, id, refusal);
    }

    /// All data is open and the layout is known: numbers the servers and has them make shards.
    pub(super) fn prepare(&mut self, now: Millis) -> bool {
        let Some(run) = &mut self.run else { return false };
        let servers = self.members.servers();
        let all_seated = run.seats.iter().all(|place| place.occupant.is_some());
        if !all_seated || servers.len() < usize::from(run.job.servers) {
            self.set_stage(now, Stage::Gathering);
            return true;
        }
        let Some(layout) = run.layout.clone() else { return false };
        if run.live().any(|(_, o)| o.standing != Standing::Prepared) {
            return false;
        }
        // Numbered by name and address, so that the same machines get the same numbers again.
        let mut order: Vec<_> = servers.iter().collect();
        order.sort_by_key(|(_, server)| (&server.card.name, &server.advertise));
        order.truncate(usize::from(run.job.servers));
        let each = order.iter().map(|(_, server)| server.shards).min().unwrap_or(1);
        run.shards = each * run.job.servers;
        run.servers = order
            .into_iter()
            .map(|(id, server)| ServerPlace {
                member: *id,
                card: server.card.clone(),
                advertise: server.advertise.clone(),
                ready: false,
                checked: false,
                committed: false,
                is_final: false,
                report: ServerReport::default(),
            })
            .collect();
        let samples = run.live().find_map(|(_, o)| o.samples);
        run.samples = samples.unwrap_or(0);
        let seats = run.live().map(|(seat, o)| (seat, o.incarnation)).collect();
        let start = StartServer {
            job: run.job.clone(),
            layout,
            server: ServerId(0),
            servers: run.job.servers,
            shards: run.shards,
            seats,
            term: run.term,
        };
        for (place, number) in run.servers.iter().zip(0u16..) {
            let start = StartServer { server: ServerId(number), ..start.clone() };
            self.effects.push_back(Effect::ToServer(place.member, ToServer::Start(start)));
        }
        self.set_stage(now, Stage::Starting);
        true
    }

    /// All shards exist: workers may connect to them.
    pub(super) fn start(&mut self, now: Millis) -> bool {
        if self.nobody_is_left(now) {
            return true;
        }
        let Some(run) = &mut self.run else { return false };
        let Some(layout) = run.layout.clone() else { return false };
        if !run.servers.iter().all(|place| place.ready) {
            return false;
        }
        let start = StartWorker {
            layout,
            servers: run.servers.iter().map(|place| place.advertise.clone()).collect(),
            shards: run.shards,
            term: run.term,
        };
        let seats: Vec<SeatId> = run.live().map(|(seat, _)| seat).collect();
        if run.job.data.is_some() {
            let plan = Plan {
                interleaved: run.job.mode == Mode::Bsp,
                batch: run.job.batch,
                samples: run.samples,
                length: run.job.length,
                workers: run.job.workers,
            };
            run.samples_total = plan.samples_total().unwrap_or(0);
            run.book = Some(LeaseBook::new(plan, seats.iter().copied()));
        }
        let external = run.is_external();
        for seat in seats {
            if let Some(occupant) = run.occupant_mut(seat) {
                occupant.standing = Standing::Working;
                let to = occupant.member.unwrap_or(MemberId(u64::MAX));
                self.effects.push_back(Effect::ToWorker(to, ToWorker::Start(start.clone())));
            }
        }
        if external {
            self.set_stage(now, Stage::Initialising);
        } else {
            self.training_begins(now);
        }
        true
    }

    fn training_begins(&mut self, now: Millis) {
        let Some(run) = &mut self.run else { return };
        run.training_from = Some(now);
        run.points.push_back((now, 0));
        let (workers, servers, shards) = (run.live().count(), run.servers.len(), run.shards);
        let text = format!(
            "training begins: {workers} workers, {servers} servers, {shards} shards, layout {}",
            run.layout.as_ref().map(|l| l.fingerprint().short()).unwrap_or_default()
        );
        self.event(now, false, "training", text);
        self.set_stage(now, Stage::Training);
    }

    /// A raw client has staged its values on every shard; the first to say so wins.
    pub(super) fn init_staged(&mut self, id: MemberId) {
        let Some(run) = &mut self.run else { return };
        let Some(seat) = run.seat_of(id) else { return };
        match (run.stage, run.winner) {
            (Stage::Initialising, _) if !run.staged.contains(&seat) => run.staged.push(seat),
            (Stage::Training, Some(winner)) => {
                self.tell_seat(seat, ToWorker::Initialised { winner });
            }
            _ => {}
        }
    }

    /// A server does not have the values that a seat says are staged: the seat is refused, and the
    /// next one's turn comes.
    pub(super) fn init_refused(&mut self, now: Millis, id: MemberId, seat: SeatId, sentence: &str) {
        let server = self.server_words(id);
        let Some(run) = &mut self.run else { return };
        if run.stage != Stage::Initialising || run.winner != Some(seat) {
            return;
        }
        if run.committing {
            // It has said that it had them: the fault is its own.
            return self.leave(now, id, Cause::Failed(sentence.to_owned()));
        }
        run.winner = None;
        let Some(occupant) = run.occupant_mut(seat) else { return };
        let words = super::seat_words(seat, occupant);
        let refusal = format!(
            "{words} says that its first values are staged, and {server} does not have them: \
             {sentence}"
        );
        match occupant.member {
            Some(member) => self.refuse_worker(now, member, refusal),
            None => self.event(now, true, "refused", refusal),
        }
    }

    /// Has the servers check the next seat that has staged its values.
    fn choose_winner(&mut self, now: Millis) {
        let Some(run) = &mut self.run else { return };
        if run.staged.is_empty() {
            return;
        }
        let seat = run.staged.remove(0);
        run.winner = Some(seat);
        run.servers.iter_mut().for_each(|place| place.checked = false);
        self.event(now, false, "initialising", format!("{seat} brings the first values"));
        self.tell_servers(&ToServer::CheckInit { seat });
    }

    /// The winner's values are in place on every server.
    pub(super) fn initialise(&mut self, now: Millis) -> bool {
        if self.nobody_is_left(now) {
            return true;
        }
        let Some(run) = &mut self.run else { return false };
        let Some(winner) = run.winner else {
            self.choose_winner(now);
            return false;
        };
        if !run.committing && run.servers.iter().all(|place| place.checked) {
            run.committing = true;
            self.tell_servers(&ToServer::CommitInit { seat: winner });
            return false;
        }
        if !run.servers.iter().all(|place| place.committed) {
            return false;
        }
        let seats: Vec<SeatId> = run.live().map(|(seat, _)| seat).collect();
        seats.into_iter().for_each(|seat| self.tell_seat(seat, ToWorker::Initialised { winner }));
        self.training_begins(now);
        true
    }

    /// A seat is free again before any server knew of it.
    pub(super) fn free_seat(&mut self, seat: SeatId) {
        let Some(run) = &mut self.run else { return };
        run.seats[seat.index()].occupant = None;
        if run.is_external() && !run.live().any(|(_, o)| o.standing == Standing::Prepared) {
            run.layout = None;
        }
    }

    /// Ends the job before training when no worker is left that could start.
    fn nobody_is_left(&mut self, now: Millis) -> bool {
        let Some(run) = &self.run else { return false };
        if run.live().next().is_some() || run.departing() {
            return false;
        }
        self.fail_without_workers(now);
        true
    }

    /// Why a worker left, as a cause for the lines about it.
    pub(super) fn cause_words(cause: &Cause) -> String {
        match cause {
            Cause::Silent => String::new(),
            Cause::Lost(how) => format!("; its connection ended: {how}"),
            Cause::Failed(sentence) => format!("; it gave up: {sentence}"),
        }
    }
}

/// The first tensor in which two layouts differ, as one clause.
fn first_difference(ours: &Layout, theirs: &Layout) -> String {
    let words = |t: &TensorSpec| format!("{:?} {:?} {} {:?}", t.name, t.shape, t.dtype, t.role);
    let same = |(a, b): (&TensorSpec, &TensorSpec)| {
        (&a.name, &a.shape, a.dtype, a.role) == (&b.name, &b.shape, b.dtype, b.role)
    };
    let (ours, theirs) = (ours.tensors(), theirs.tensors());
    let at = ours.iter().zip(theirs).position(|pair| !same(pair));
    match at {
        Some(at) => format!("tensor {at} is {}, expected {}", words(&theirs[at]), words(&ours[at])),
        None => format!("it has {} tensors, expected {}", theirs.len(), ours.len()),
    }
}
