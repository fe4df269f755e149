//! The job's state machine: who is seated, what stage it is in, what comes next.
//!
//! Inputs note what happened and then call `advance`, which moves on while the current stage's
//! condition holds: a condition reads the state and never the order in which things came.
//!
//! ```text
//! Gathering ⇄ Preparing → Starting → Initialising → Training → Evaluating → Fetching → Closing → Concluding
//!  members     data or     servers'    external       leases      last test   the model   last      files
//!  present     layout      shards      values only                                        figures
//! ```

mod finish;
mod join;
mod rules;
mod run;
mod start;
mod status;
mod train;

use self::run::{Occupant, Run, SeatPlace, ServerPlace, Stage, Standing};
use super::effects::{Effect, Event};
use super::membership::{MemberId, Members};
use super::time::{Millis, time_of_day};
use slackline_common::ids::{SeatId, Term};
use slackline_common::job::Job;
use slackline_common::wire::control::{Ended, FromServer, FromWorker, ToServer, ToWorker};
use std::collections::VecDeque;

/// Milliseconds between two lines that say who is missing, before the start timeout has passed.
const WAITING_LINE_MILLIS: u64 = 5000;
/// Members that left, kept for status.
const GONE_KEPT_MAX: usize = 64;

/// What the core must know of its process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Silence after which a member is gone.
    pub lease: Millis,
    /// Waiting after which who is missing becomes a warning.
    pub start_timeout: Millis,
    /// Whether members are told to wait for another job after one has ended.
    pub stay: bool,
    /// Name of this life of the coordinator.
    pub run_id: String,
    /// The moment [`Millis`] counts from, in milliseconds since 1970.
    pub started_unix_millis: u64,
}

/// Why a member is gone.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Cause {
    /// It said nothing for longer than the lease.
    Silent,
    /// Its connection ended; the text says how.
    Lost(String),
    /// It gave up, with its own sentence.
    Failed(String),
}

/// The coordinator's whole mind.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
    members: Members,
    run: Option<Run>,
    effects: VecDeque<Effect>,
    next_pulse: Millis,
    last_tick: Millis,
    over: bool,
}

impl Core {
    /// A coordinator without members and without a job.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            members: Members::default(),
            run: None,
            effects: VecDeque::new(),
            next_pulse: Millis(0),
            last_tick: Millis(0),
            over: false,
        }
    }

    /// Output: what to do next. Call after every input until it returns `None`.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Whether the last job has ended and no other is wanted: the process may end once the effects
    /// are done.
    pub const fn is_over(&self) -> bool {
        self.over
    }

    /// Who is there.
    pub const fn members(&self) -> &Members {
        &self.members
    }

    /// Input: a worker's message. The first must be a hello.
    pub fn handle_worker(&mut self, now: Millis, id: MemberId, address: &str, message: FromWorker) {
        if let FromWorker::Hello { hello, seat } = message {
            self.worker_hello(now, id, address, &hello, seat);
            return self.advance(now);
        }
        if self.members.worker_mut(id).is_none() {
            return;
        }
        self.members.heard(id, now);
        match message {
            FromWorker::Hello { .. } => {}
            FromWorker::Heartbeat(report) => self.worker_report(id, report),
            FromWorker::ProposeLayout(layout) => self.propose_layout(now, id, layout),
            FromWorker::DataReady { samples } => self.data_ready(now, id, samples),
            FromWorker::InitStaged => self.init_staged(id),
            FromWorker::LeaseRequest => self.lease_request(id),
            FromWorker::LeaseStarted { lease, at } => self.lease_started(now, id, lease, at),
            FromWorker::Evaluated(evaluated) => self.evaluated(now, id, evaluated),
            FromWorker::Barrier(number) => self.barrier(id, number),
            FromWorker::Finished(report) => self.worker_finished(now, id, report),
            FromWorker::Failed(sentence) => self.leave(now, id, Cause::Failed(sentence)),
        }
        self.advance(now);
    }

    /// Input: a server's message. The first must be a hello.
    pub fn handle_server(&mut self, now: Millis, id: MemberId, address: &str, message: FromServer) {
        if let FromServer::Hello { hello, advertise, shards } = message {
            self.server_hello(now, id, address, &hello, advertise, shards);
            return self.advance(now);
        }
        if self.members.server_mut(id).is_none() {
            return;
        }
        self.members.heard(id, now);
        match message {
            FromServer::Hello { .. } => {}
            FromServer::Heartbeat(report) => self.server_report(now, id, report),
            FromServer::Ready => self.on_server(id, |place| place.ready = true),
            FromServer::InitChecked { seat } => {
                if self.run.as_ref().is_some_and(|run| run.winner == Some(seat)) {
                    self.on_server(id, |place| place.checked = true);
                }
            }
            FromServer::InitRefused { seat, sentence } => {
                self.init_refused(now, id, seat, &sentence);
            }
            FromServer::InitCommitted => self.on_server(id, |place| place.committed = true),
            FromServer::Departed { seat, incarnation, clock } => {
                self.departed(now, id, seat, incarnation, clock);
            }
            FromServer::Event(text) => {
                let who = self.server_words(id);
                self.event(now, true, "server-event", format!("{who}: {text}"));
            }
            FromServer::Final(report) => {
                self.server_report(now, id, report);
                self.on_server(id, |place| place.is_final = true);
            }
            FromServer::Failed(sentence) => self.leave(now, id, Cause::Failed(sentence)),
        }
        self.advance(now);
    }

    /// Input: a member's connection ended.
    pub fn handle_gone(&mut self, now: Millis, id: MemberId, how: String) {
        self.leave(now, id, Cause::Lost(how));
        self.advance(now);
    }

    /// Input: time has passed. Call several times per quarter of the lease.
    pub fn handle_tick(&mut self, now: Millis) {
        // This process was away (stopped, asleep, starved), and what members said meanwhile is still
        // unread: nobody is given up for that.
        if now.since(self.last_tick).0 > self.settings.lease.0 / 2 {
            self.members.all_heard(now);
            if let Some(until) = self.run.as_mut().and_then(|run| run.stop_by.as_mut()) {
                *until = now.plus(self.settings.lease);
            }
        }
        self.last_tick = now;
        for id in self.members.silent(now, self.settings.lease) {
            self.leave(now, id, Cause::Silent);
            let lease = self.settings.lease;
            self.effects.push_back(Effect::Close(id, format!("silent for more than {lease}")));
        }
        self.end_stop(now);
        if now >= self.next_pulse {
            self.next_pulse = now.plus(Millis(self.settings.lease.0 / 4));
            let workers = self.members.workers().keys();
            self.effects.extend(workers.map(|id| Effect::ToWorker(*id, ToWorker::Pulse)));
            let servers = self.members.servers().keys();
            self.effects.extend(servers.map(|id| Effect::ToServer(*id, ToServer::Pulse)));
        }
        self.advance(now);
        self.waiting_line(now);
    }

    /// Whether a job could be submitted now.
    ///
    /// # Errors
    /// The sentence to refuse it with.
    pub fn check_submit(&self, job: &Job) -> Result<(), String> {
        if let Some(run) = &self.run {
            return Err(format!(
                "job {:?} is not over: wait for its end, or stop it with `slackline stop`",
                run.job.name
            ));
        }
        if self.over {
            return Err("the coordinator is ending".to_owned());
        }
        rules::check(job)
    }

    /// Input: a job that [`check_submit`](Self::check_submit) has let through.
    pub fn handle_submit(&mut self, now: Millis, job: Box<Job>) {
        let text = format!(
            "job {:?} submitted: {}, {} workers, {} servers",
            job.name,
            super::effects::mode_text(&job),
            job.workers,
            job.servers
        );
        self.run = Some(Run {
            hash: job.hash(),
            stage: Stage::Gathering,
            stage_since: now,
            next_line: now,
            training_from: None,
            training_to: None,
            layout: job.model.layout(),
            samples: 0,
            servers: Vec::new(),
            shards: 0,
            seats: vec![SeatPlace::default(); usize::from(job.workers)],
            term: Term(1),
            book: None,
            samples_total: 0,
            staged: Vec::new(),
            winner: None,
            committing: false,
            evaluator: None,
            last_test: None,
            stopped: None,
            stop_by: None,
            lost: Vec::new(),
            points: VecDeque::new(),
            gone: Vec::new(),
            result: None,
            job,
        });
        self.event(now, false, "submitted", text);
        self.advance(now);
        self.waiting_line(now);
    }

    /// Input: the job is to end early, its model kept; `by` says who wants it: `the operator`.
    ///
    /// # Errors
    /// The sentence to refuse it with: there is no job.
    pub fn handle_stop(&mut self, now: Millis, by: &str) -> Result<(), String> {
        let Some(run) = &mut self.run else {
            return Err("there is no job to stop".to_owned());
        };
        if run.stopped.is_some() || run.stage > Stage::Training {
            return Ok(());
        }
        run.stopped = Some(by.to_owned());
        run.stop_by = Some(now.plus(self.settings.lease));
        if run.stage < Stage::Training {
            let reason = format!("stopped by {by} before training began");
            self.end(now, false, reason, None);
            return Ok(());
        }
        self.event(now, false, "stopped", format!("{by} stops the job: workers finish their step"));
        self.no_more_work_for_all();
        self.advance(now);
        Ok(())
    }

    /// Input: this process is to end: the job is stopped, its model kept, nobody stays.
    pub fn handle_shutdown(&mut self, now: Millis, by: &str) {
        self.settings.stay = false;
        if self.handle_stop(now, by).is_err() {
            self.over = true;
            let reason = format!("the coordinator was ended by {by}");
            self.tell_ended(&Ended { ok: true, blame: None, reason, stay: false }, |_| true);
        }
    }

    /// The job's name, while there is one.
    pub fn job_name(&self) -> Option<&str> {
        self.run.as_ref().map(|run| run.job.name.as_str())
    }

    fn on_server(&mut self, id: MemberId, note: impl FnOnce(&mut ServerPlace)) {
        let place = self.run.as_mut().and_then(|run| {
            let server = run.server_of(id)?;
            run.servers.get_mut(server.index())
        });
        if let Some(place) = place {
            note(place);
        }
    }

    fn event(&mut self, at: Millis, warning: bool, kind: &'static str, text: String) {
        self.effects.push_back(Effect::Event(Event { at, warning, kind, text }));
    }

    fn clock(&self, at: Millis) -> String {
        time_of_day(self.settings.started_unix_millis + at.0)
    }

    fn tell_seat(&mut self, seat: SeatId, message: ToWorker) {
        let member = self
            .run
            .as_mut()
            .and_then(|run| run.occupant_mut(seat))
            .and_then(|occupant| occupant.member);
        if let Some(member) = member {
            self.effects.push_back(Effect::ToWorker(member, message));
        }
    }

    fn tell_servers(&mut self, message: &ToServer) {
        if let Some(run) = &self.run {
            let to = run.servers.iter();
            self.effects.extend(to.map(|s| Effect::ToServer(s.member, message.clone())));
        }
    }

    fn tell_ended(&mut self, ended: &Ended, is_told: impl Fn(MemberId) -> bool) {
        for id in self.members.workers().keys().filter(|id| is_told(**id)) {
            self.effects.push_back(Effect::ToWorker(*id, ToWorker::Ended(ended.clone())));
        }
        for id in self.members.servers().keys().filter(|id| is_told(**id)) {
            self.effects.push_back(Effect::ToServer(*id, ToServer::Ended(ended.clone())));
        }
        self.effects.push_back(Effect::Ended(ended.clone()));
    }

    fn set_stage(&mut self, now: Millis, stage: Stage) {
        if let Some(run) = &mut self.run {
            run.stage = stage;
            run.stage_since = now;
            run.next_line = now.plus(Millis(WAITING_LINE_MILLIS));
        }
    }

    /// Moves on while the current stage's condition holds.
    fn advance(&mut self, now: Millis) {
        loop {
            let Some(stage) = self.run.as_ref().map(|run| run.stage) else { return };
            let moved = match stage {
                Stage::Gathering => self.gather(now),
                Stage::Preparing => self.prepare(now),
                Stage::Starting => self.start(now),
                Stage::Initialising => self.initialise(now),
                Stage::Training => self.train(now),
                Stage::Evaluating => self.evaluate(now),
                Stage::Closing => self.close(now),
                Stage::Fetching | Stage::Concluding => false,
            };
            if !moved {
                return;
            }
        }
    }
}

/// `server 1 (127.0.0.1:4433, NAME)`.
fn server_words(number: usize, place: &ServerPlace) -> String {
    format!("server {number} ({}, {})", place.advertise, place.card.name)
}

/// `seat 2 (NAME at ADDRESS)`.
fn seat_words(seat: SeatId, occupant: &Occupant) -> String {
    format!("{seat} ({})", occupant.card)
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
