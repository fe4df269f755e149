//! What the connections know of the job: who may come in, and where the shards are.

use crate::core::{EngineSpec, Record, Verdict};
use crate::directory::Directory;
use crate::error::ServerError;
use crate::shard::ShardHandle;
use quinn::Connection;
use slackline_common::ids::{Fingerprint, Incarnation, SeatId, ShardId, Step, Term};
use slackline_common::limits::{CONTROL_QUEUE_MAX, IDLE_BUFFERS_MAX};
use slackline_common::model::ModelSpec;
use slackline_common::placement::server_of;
use slackline_common::quic::{CloseCode, close};
use slackline_common::wire::control::{DataHello, ShardReport, StartServer};
use slackline_common::wire::pool::BufferPool;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Shared by everything on the network side of one server.
#[derive(Debug)]
pub struct Home {
    /// The shards, once there is a job.
    pub directory: Directory,
    /// Buffers for frames on their way in.
    pub buffers: BufferPool,
    state: Mutex<State>,
    events: mpsc::Sender<String>,
    panicked: mpsc::Sender<ShardId>,
}

/// What the shards say on their own.
#[derive(Debug)]
pub struct Voices {
    /// Sentences for people.
    pub events: mpsc::Receiver<String>,
    /// A shard whose thread is gone by a fault of ours.
    pub panicked: mpsc::Receiver<ShardId>,
}

#[derive(Debug, Default)]
struct State {
    run: Option<Run>,
    guests: BTreeMap<SeatId, (Incarnation, Connection)>,
}

/// The job as connections have to know it.
#[derive(Debug)]
struct Run {
    job: Fingerprint,
    layout: Fingerprint,
    /// Workers learn the term at the start and no later one: every term of this job is theirs.
    first_term: Term,
    term: Term,
    seats: BTreeMap<SeatId, (Incarnation, bool)>,
}

/// Why a worker is not taken, with the code its connection is closed with.
pub(super) type Refused = (CloseCode, String);

/// A worker that may send frames; leaves the list of guests when it is dropped.
#[derive(Debug)]
pub(super) struct Guest {
    home: Arc<Home>,
    pub(super) seat: SeatId,
    pub(super) incarnation: Incarnation,
    connection: usize,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut state = self.home.lock();
        if state.guests.get(&self.seat).is_some_and(|(_, c)| c.stable_id() == self.connection) {
            state.guests.remove(&self.seat);
        }
    }
}

impl Home {
    /// A server without a job.
    pub fn new() -> (Arc<Self>, Voices) {
        let (events, events_out) = mpsc::channel(CONTROL_QUEUE_MAX);
        let (panicked, panicked_out) = mpsc::channel(1);
        let home = Self {
            directory: Directory::default(),
            buffers: BufferPool::new(IDLE_BUFFERS_MAX),
            state: Mutex::default(),
            events,
            panicked,
        };
        (Arc::new(home), Voices { events: events_out, panicked: panicked_out })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Fields are replaced whole: no panic leaves them half written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a job.
    pub fn has_job(&self) -> bool {
        self.lock().run.is_some()
    }

    /// Makes the shards of a job and lets its workers in. Built-in models have their first values
    /// when this returns; external ones wait for `CommitInit`.
    ///
    /// # Errors
    /// [`ServerError::Unexpected`] for numbers that do not fit; [`ServerError::Thread`];
    /// [`ServerError::ShardPanicked`].
    pub async fn start(&self, coordinator: &str, start: StartServer) -> Result<(), ServerError> {
        let StartServer { job, layout, server, servers, shards, seats, term } = start;
        if servers == 0 || server.0 >= servers || shards < servers {
            return Err(ServerError::Unexpected {
                address: coordinator.to_owned(),
                what: format!("started {server} of {servers} with {shards} shards"),
            });
        }
        let (job, layout) = (Arc::new(*job), Arc::new(layout));
        self.finish("another job starts");
        for shard in (0..shards).map(ShardId).filter(|shard| server_of(*shard, servers) == server) {
            let (job, layout, seats) = (Arc::clone(&job), Arc::clone(&layout), seats.clone());
            let spec = EngineSpec { job, layout, shard, shards, seats };
            let handle = ShardHandle::spawn(spec, self.events.clone(), self.panicked.clone())
                .map_err(|source| ServerError::Thread { shard, source })?;
            self.directory.insert(shard, handle);
        }
        if job.model != ModelSpec::External {
            self.order(&Record::InitFromSeed).await?;
        }
        let seats = seats.into_iter().map(|(seat, incarnation)| (seat, (incarnation, true)));
        let (job, layout) = (job.hash(), layout.fingerprint());
        let run = Run { job, layout, first_term: term, term, seats: seats.collect() };
        self.lock().run = Some(run);
        Ok(())
    }

    /// Orders a record on every shard. Returns the largest clock that any shard has for the seat the
    /// record is about.
    ///
    /// # Errors
    /// [`ServerError::Unexpected`] when a shard refuses it; [`ServerError::ShardPanicked`].
    pub async fn order(&self, record: &Record) -> Result<Option<Step>, ServerError> {
        let mut clock = None;
        for handle in self.directory.all() {
            let ordered = handle
                .order(record.clone())
                .await
                .map_err(|gone| ServerError::ShardPanicked { shard: gone.0 })?;
            if let Verdict::Refused(_, sentence) = ordered.verdict {
                let what = format!("ordered what cannot be done: {sentence}");
                return Err(ServerError::Unexpected { address: String::new(), what });
            }
            clock = clock.max(ordered.clock);
        }
        Ok(clock)
    }

    /// Whether every shard could take a seat's staged values as the first ones, and otherwise why not.
    ///
    /// # Errors
    /// [`ServerError::ShardPanicked`].
    pub async fn check_init(&self, seat: SeatId) -> Result<Result<(), String>, ServerError> {
        for handle in self.directory.all() {
            let verdict = handle
                .check(Record::CommitInit { seat })
                .await
                .map_err(|gone| ServerError::ShardPanicked { shard: gone.0 })?;
            if let Verdict::Refused(_, sentence) = verdict {
                return Ok(Err(sentence));
            }
        }
        Ok(Ok(()))
    }

    /// A seat is gone: its connection is closed, and it is let in no more.
    pub fn depart(&self, seat: SeatId, incarnation: Incarnation, term: Term) {
        let mut state = self.lock();
        let State { run, guests } = &mut *state;
        let Some(run) = run else { return };
        run.term = run.term.max(term);
        if let Some((known, live)) = run.seats.get_mut(&seat)
            && *known == incarnation
        {
            *live = false;
            if let Some((_, connection)) = guests.remove(&seat) {
                let sentence = format!("the coordinator took {seat} out of the job");
                close(&connection, CloseCode::Fenced, &sentence);
            }
        }
    }

    /// What every shard says of itself; a shard that is ending is left out.
    pub async fn reports(&self) -> Vec<ShardReport> {
        let mut reports = Vec::new();
        for handle in self.directory.all() {
            reports.extend(handle.report().await.ok());
        }
        reports
    }

    /// Ends the job: workers are sent away, shards are dropped.
    pub fn finish(&self, why: &str) {
        let mut state = self.lock();
        state.run = None;
        for (_, connection) in std::mem::take(&mut state.guests).into_values() {
            close(&connection, CloseCode::Done, why);
        }
        drop(state);
        self.directory.clear();
    }

    /// Checks what a worker says against what this server knows. One sentence says what differs.
    pub(super) fn check(&self, hello: &DataHello) -> Result<(), Refused> {
        let state = self.lock();
        let Some(run) = &state.run else {
            return Err((CloseCode::Refused, "this server has no job now".to_owned()));
        };
        let differs = |what, theirs: &dyn std::fmt::Display, ours: &dyn std::fmt::Display| {
            Err((CloseCode::Mismatch, format!("{what} differs: worker {theirs}, server {ours}")))
        };
        if hello.job != run.job {
            return differs("the job", &hello.job.short(), &run.job.short());
        }
        if hello.layout != run.layout {
            return differs("the layout", &hello.layout.short(), &run.layout.short());
        }
        if !(run.first_term..=run.term).contains(&hello.term) {
            return differs("the term", &hello.term, &run.term);
        }
        let seat = hello.seat;
        match run.seats.get(&seat) {
            None => Err((CloseCode::Fenced, format!("{seat} is not a seat of this job"))),
            Some((incarnation, _)) if *incarnation != hello.incarnation => Err((
                CloseCode::Fenced,
                format!("{seat} is in {incarnation} now, the worker in {}", hello.incarnation),
            )),
            Some((_, false)) => {
                Err((CloseCode::Fenced, format!("{seat} was taken out of the job")))
            }
            Some((_, true)) => Ok(()),
        }
    }

    /// The connection that speaks for a seat now.
    pub(super) fn guest(&self, seat: SeatId) -> Option<Connection> {
        let state = self.lock();
        let (_, connection) = state.guests.get(&seat)?;
        connection.close_reason().is_none().then(|| connection.clone())
    }

    /// Lets a worker in whose hello [`Home::check`] found right.
    pub(super) fn enter(self: &Arc<Self>, hello: &DataHello, connection: &Connection) -> Guest {
        let (seat, incarnation) = (hello.seat, hello.incarnation);
        self.lock().guests.insert(seat, (incarnation, connection.clone()));
        Guest { home: Arc::clone(self), seat, incarnation, connection: connection.stable_id() }
    }
}
