//! The owner of the core: one task that takes inputs, lets the core decide, and does it.

use super::connection::{Input, Link, Outbox, Outgoing};
use super::fetch::{self, Source};
use crate::CoordinatorError;
use crate::core::effects::{Effect, Event, ModelSource, Outcome};
use crate::core::job::{Core, Settings};
use crate::core::membership::MemberId;
use crate::core::time::Millis;
use crate::run::RunFolder;
use crate::run::model::ModelFile;
use slackline_common::blame::Blame;
use slackline_common::config::{AfterJob, CoordinatorConfig};
use slackline_common::job::Job;
use slackline_common::quic::CloseCode;
use slackline_common::wire::control::{Ended, FromOperator, ToOperator};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often a watching operator is told how things stand.
const WATCH_PERIOD: Duration = Duration::from_millis(200);
/// How long everybody may take to hear that it is over.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long who has submitted the job may take to ask for its end; within [`FAREWELL`].
const ASKING: Duration = Duration::from_secs(2);

/// What writing the last files gave.
#[derive(Debug)]
pub(super) struct Written {
    /// None when the writer was lost.
    folder: Option<RunFolder>,
    summary: Option<String>,
    result: Result<(), String>,
}

/// How the last job ended.
#[derive(Clone, Debug)]
struct Last {
    ended: Ended,
    summary: Option<String>,
    run_dir: String,
}

#[derive(Debug)]
pub(super) struct Hub {
    core: Core,
    started: Instant,
    started_unix_millis: u64,
    lease: Duration,
    base: PathBuf,
    inputs: mpsc::Sender<Input>,
    links: BTreeMap<MemberId, Link>,
    watching: BTreeSet<MemberId>,
    /// Operators whose job is not over, or is and they have not been told.
    submitted: BTreeSet<MemberId>,
    folder: Option<RunFolder>,
    run_dir: String,
    model: Option<Vec<f32>>,
    summary: Option<String>,
    failure: Option<(String, Blame)>,
    last: Option<Last>,
}

impl Hub {
    pub(super) fn new(config: &CoordinatorConfig, inputs: mpsc::Sender<Input>) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_unix_millis = millis(since_1970).0;
        let millis = |seconds: f64| millis(Duration::from_secs_f64(seconds));
        let settings = Settings {
            lease: millis(config.lease_seconds),
            start_timeout: millis(config.start_timeout_seconds),
            stay: config.after_job == AfterJob::Wait,
            run_id: format!("{started_unix_millis:x}-{}", std::process::id()),
            started_unix_millis,
        };
        Self {
            core: Core::new(settings),
            started: Instant::now(),
            started_unix_millis,
            lease: Duration::from_secs_f64(config.lease_seconds),
            base: config.run_dir.clone(),
            inputs,
            links: BTreeMap::new(),
            watching: BTreeSet::new(),
            submitted: BTreeSet::new(),
            folder: None,
            run_dir: String::new(),
            model: None,
            summary: None,
            failure: None,
            last: None,
        }
    }

    /// Runs to the end. See [`crate::Listening::serve`].
    pub(super) async fn run(
        mut self,
        mut queue: mpsc::Receiver<Input>,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), CoordinatorError> {
        // Fine enough that a lease ends on time, coarse enough to cost nothing.
        let tick = (self.lease / 20).clamp(Duration::from_millis(5), Duration::from_millis(100));
        let mut tick = interval(tick);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = interval(WATCH_PERIOD);
        watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shutdown = std::pin::pin!(shutdown);
        let mut asked_to_end = false;
        while !self.core.is_over() {
            tokio::select! {
                input = queue.recv() => match input {
                    Some(input) => self.handle(input),
                    None => break,
                },
                _ = tick.tick() => self.core.handle_tick(self.now()),
                _ = watch.tick() => self.tell_watchers(),
                () = &mut shutdown, if !asked_to_end => {
                    asked_to_end = true;
                    tracing::info!("asked to end: the job is stopped, its model kept");
                    self.core.handle_shutdown(self.now(), "a signal");
                }
            }
            self.settle();
        }
        let farewell = self.part_from_all(&mut queue);
        if timeout(FAREWELL, farewell).await.is_err() {
            tracing::warn!("some members did not take their last message");
        }
        match self.failure {
            Some((reason, blame)) => Err(CoordinatorError::JobFailed { reason, blame }),
            None => Ok(()),
        }
    }

    fn now(&self) -> Millis {
        millis(self.started.elapsed())
    }

    fn handle(&mut self, input: Input) {
        let now = self.now();
        match input {
            Input::Joined(id, link) => {
                self.links.insert(id, link);
            }
            Input::Worker(id, message) => {
                if let Some(link) = self.links.get(&id) {
                    self.core.handle_worker(now, id, &link.address, message);
                }
            }
            Input::Server(id, message) => {
                if let Some(link) = self.links.get(&id) {
                    self.core.handle_server(now, id, &link.address, message);
                }
            }
            Input::Operator(id, message) => self.operator(now, id, message),
            Input::Gone(id, how) => {
                self.forget(id);
                self.core.handle_gone(now, id, how);
            }
            Input::Fetched(fetched) => {
                let result = fetched.map(|values| self.model = Some(values));
                self.core.handle_model(now, result);
            }
            Input::Concluded(written) => {
                let Written { folder, summary, result } = *written;
                self.folder = folder;
                self.summary = summary;
                self.core.handle_concluded(now, result);
            }
        }
    }

    fn forget(&mut self, id: MemberId) {
        self.links.remove(&id);
        self.watching.remove(&id);
        self.submitted.remove(&id);
    }

    fn operator(&mut self, now: Millis, id: MemberId, message: FromOperator) {
        match message {
            FromOperator::Submit(job) => {
                let answer = match self.submit(now, job) {
                    Ok(()) => {
                        self.submitted.insert(id);
                        ToOperator::Accepted
                    }
                    Err(refusal) => ToOperator::Refused(refusal),
                };
                self.tell(id, answer);
            }
            FromOperator::Status => {
                let status = ToOperator::Status(Box::new(self.core.status(now)));
                self.tell(id, status);
            }
            FromOperator::Watch => match self.last.clone() {
                // Its job ended before it could ask.
                Some(last) if self.submitted.contains(&id) && self.core.job_name().is_none() => {
                    self.tell_ended(id, &last);
                }
                _ => {
                    self.watching.insert(id);
                }
            },
            FromOperator::Stop => {
                let answer = match self.core.handle_stop(now, "the operator") {
                    Ok(()) => ToOperator::Accepted,
                    Err(refusal) => ToOperator::Refused(refusal),
                };
                self.tell(id, answer);
            }
            FromOperator::Export => match self.core.model_source() {
                Ok(source) => self.export(id, source),
                Err(refusal) => self.tell(id, ToOperator::Refused(refusal)),
            },
        }
    }

    fn submit(&mut self, now: Millis, job: Box<Job>) -> Result<(), String> {
        self.core.check_submit(&job)?;
        let folder = RunFolder::create(&self.base, &job.name, self.started_unix_millis)
            .map_err(|error| error.to_string())?;
        self.run_dir = folder.dir().display().to_string();
        tracing::info!("job {:?} runs in {}", job.name, self.run_dir);
        (self.folder, self.model, self.summary) = (Some(folder), None, None);
        (self.failure, self.last) = (None, None);
        self.core.handle_submit(now, job);
        Ok(())
    }

    /// Does what the core decided.
    fn settle(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::ToWorker(id, message) => self.send(id, |outbox| match outbox {
                    Outbox::Worker(queue) => queue.try_send(Outgoing::Message(message)).is_ok(),
                    Outbox::Server(_) | Outbox::Operator(_) => true,
                }),
                Effect::ToServer(id, message) => self.send(id, |outbox| match outbox {
                    Outbox::Server(queue) => queue.try_send(Outgoing::Message(message)).is_ok(),
                    Outbox::Worker(_) | Outbox::Operator(_) => true,
                }),
                Effect::Close(id, reason) => {
                    if let Some(link) = self.links.get(&id) {
                        link.close(CloseCode::Refused, reason);
                    }
                    self.forget(id);
                }
                Effect::Event(event) => self.event(&event),
                Effect::Progress(progress) => {
                    if let Some(folder) = &mut self.folder {
                        folder.progress(&progress);
                    }
                }
                Effect::FetchModel(source) => self.fetch(source),
                Effect::Conclude(outcome) => self.conclude(*outcome),
                Effect::Ended(ended) => self.ended(ended),
            }
        }
    }

    fn event(&mut self, event: &Event) {
        if event.warning {
            tracing::warn!("{}", event.text);
        } else {
            tracing::info!("{}", event.text);
        }
        if let Some(folder) = &mut self.folder {
            folder.event(event);
        }
    }

    /// Queues a message; a member that does not take what is queued is cut off.
    fn send(&mut self, id: MemberId, queue: impl FnOnce(&Outbox) -> bool) {
        let Some(link) = self.links.get(&id) else { return };
        if !queue(&link.outbox) {
            let reason = "it does not take its messages".to_owned();
            tracing::warn!("{} is cut off: {reason}", link.address);
            slackline_common::quic::close(&link.connection, CloseCode::StuckPeer, &reason);
            self.forget(id);
            self.core.handle_gone(self.now(), id, reason);
        }
    }

    fn tell(&mut self, id: MemberId, message: ToOperator) {
        self.send(id, |outbox| match outbox {
            Outbox::Operator(queue) => queue.try_send(Outgoing::Message(message)).is_ok(),
            Outbox::Worker(_) | Outbox::Server(_) => true,
        });
    }

    fn tell_ended(&mut self, id: MemberId, last: &Last) {
        self.submitted.remove(&id);
        let (ended, summary) = (last.ended.clone(), last.summary.clone());
        self.tell(id, ToOperator::Ended { ended, summary, run_dir: last.run_dir.clone() });
    }

    fn tell_watchers(&mut self) {
        if self.watching.is_empty() {
            return;
        }
        let status = self.core.status(self.now());
        for id in self.watching.iter().filter_map(|id| self.links.get(id)) {
            if let Outbox::Operator(queue) = &id.outbox {
                // A slow watcher misses some; the next is newer anyway.
                drop(
                    queue.try_send(Outgoing::Message(ToOperator::Status(Box::new(status.clone())))),
                );
            }
        }
    }

    /// The connections of a model's servers.
    fn sources(&self, source: &ModelSource) -> Result<Vec<Source>, String> {
        let link = |(id, words): &(MemberId, String)| {
            let link = self.links.get(id).ok_or_else(|| format!("{words} is not connected"))?;
            Ok((link.connection.clone(), words.clone()))
        };
        source.servers.iter().map(link).collect()
    }

    fn fetch(&self, source: ModelSource) {
        let (inputs, servers) = (self.inputs.clone(), self.sources(&source));
        tokio::spawn(async move {
            let fetching = tokio::spawn(async move {
                fetch::fetch(&source.layout, source.shards, &servers?).await
            });
            let fetched = end_of(fetching, "fetching the model").await.flatten();
            // It fails only when the hub has ended.
            let _ = inputs.send(Input::Fetched(fetched)).await;
        });
    }

    /// Streams the model to an operator, as fast as it takes it.
    fn export(&self, id: MemberId, source: ModelSource) {
        let servers = self.sources(&source);
        let Some(Outbox::Operator(queue)) = self.links.get(&id).map(|link| link.outbox.clone())
        else {
            return;
        };
        tokio::spawn(async move {
            let last = match stream_model(servers, &source, &queue).await {
                Ok(()) => ToOperator::ExportEnd,
                Err(refusal) => ToOperator::Refused(refusal),
            };
            // It fails only when the operator is gone.
            let _ = queue.send(Outgoing::Message(last)).await;
        });
    }

    fn conclude(&mut self, outcome: Outcome) {
        // A failed job has no model: what was fetched before is not its end.
        let values = self.model.take().filter(|_| outcome.ok);
        let (folder, inputs) = (self.folder.take(), self.inputs.clone());
        tokio::spawn(async move {
            let writing = tokio::task::spawn_blocking(move || {
                let Some(mut folder) = folder else {
                    let result = Err("the run has no folder to write its files to".to_owned());
                    return Written { folder: None, summary: None, result };
                };
                let (summary, result) = folder.conclude(&outcome, values.as_deref());
                Written { folder: Some(folder), summary, result }
            });
            let written = end_of(writing, "writing the run's files").await;
            let written = written.unwrap_or_else(|fault| Written {
                folder: None,
                summary: None,
                result: Err(fault),
            });
            // It fails only when the hub has ended.
            let _ = inputs.send(Input::Concluded(Box::new(written))).await;
        });
    }

    fn ended(&mut self, ended: Ended) {
        self.failure = ended.blame.map(|blame| (ended.reason.clone(), blame));
        let summary = self.summary.take();
        let last = Last { ended, summary, run_dir: self.run_dir.clone() };
        for id in std::mem::take(&mut self.watching) {
            self.tell_ended(id, &last);
        }
        self.last = Some(last);
        self.folder = None;
    }

    fn close_done(&self, id: MemberId) {
        if let Some(link) = self.links.get(&id) {
            link.close(CloseCode::Done, "the job is over".to_owned());
        }
    }

    /// Closes every connection in good order and waits until they are closed.
    async fn part_from_all(&mut self, queue: &mut mpsc::Receiver<Input>) {
        // Who has submitted the job may be about to ask how it ended: closed once it knows.
        for (id, link) in &self.links {
            if !self.submitted.contains(id) {
                link.close(CloseCode::Done, "the job is over".to_owned());
            }
        }
        let mut asking = std::pin::pin!(tokio::time::sleep(ASKING));
        while !self.links.is_empty() {
            let input = tokio::select! {
                input = queue.recv() => input,
                () = &mut asking, if !self.submitted.is_empty() => {
                    for id in std::mem::take(&mut self.submitted) {
                        self.close_done(id);
                    }
                    continue;
                }
            };
            match input {
                Some(Input::Gone(id, _)) => self.forget(id),
                Some(Input::Joined(_, link)) => {
                    link.close(CloseCode::Shutdown, "the coordinator is ending".to_owned());
                }
                Some(Input::Operator(id, FromOperator::Watch)) if self.submitted.contains(&id) => {
                    if let Some(last) = self.last.clone() {
                        self.tell_ended(id, &last);
                    }
                    self.close_done(id);
                }
                Some(_) => {}
                None => return,
            }
        }
    }
}

/// What a task gave, or one sentence about `doing` when it was lost: nobody waits for it in vain.
async fn end_of<T>(task: JoinHandle<T>, doing: &str) -> Result<T, String> {
    task.await.map_err(|error| format!("{doing} failed by a fault of our own: {error}"))
}

fn millis(duration: Duration) -> Millis {
    Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

async fn stream_model(
    servers: Result<Vec<Source>, String>,
    source: &ModelSource,
    queue: &mpsc::Sender<Outgoing<ToOperator>>,
) -> Result<(), String> {
    let values = fetch::fetch(&source.layout, source.shards, &servers?).await?;
    let file = ModelFile::new(&source.layout, &values, &source.job_hash, source.step);
    for chunk in file.map_err(|error| error.to_string())?.chunks() {
        let part = Outgoing::Message(ToOperator::ExportChunk(chunk));
        queue.send(part).await.map_err(|_| "the operator is gone".to_owned())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_an_error_that_says_what_it_did() {
        let lost: JoinHandle<()> = tokio::task::spawn_blocking(|| panic!("the disk is odd"));
        let line = end_of(lost, "writing the run's files").await.unwrap_err();
        assert!(line.starts_with("writing the run's files failed"), "{line}");
        assert!(line.contains("the disk is odd"), "{line}");
        assert_eq!(end_of(tokio::spawn(async { 3 }), "counting").await, Ok(3));
    }
}
