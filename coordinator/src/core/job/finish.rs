//! From the last step to the end: the last test, the model, the last figures, the files.

use super::{Core, Stage, Standing, server_words};
use crate::core::effects::{Effect, ModelSource, Outcome};
use crate::core::membership::MemberId;
use crate::core::time::Millis;
use slackline_common::blame::Blame;
use slackline_common::ids::SeatId;
use slackline_common::job::Mode;
use slackline_common::wire::control::{Ended, Evaluated, ToServer, ToWorker};

impl Core {
    /// Has the lowest seat that is still here test the model; without one, goes on without a test.
    pub(super) fn evaluate(&mut self, now: Millis) -> bool {
        let Some(run) = &mut self.run else { return false };
        let wants_test = run.job.data.as_ref().is_some_and(|data| data.test.is_some());
        let tested = run.last_test.is_some_and(|test| test.is_final);
        if wants_test && !tested {
            let here =
                |seat: &SeatId| run.occupants().any(|(s, o)| s == *seat && o.member.is_some());
            if run.evaluator.as_ref().is_some_and(here) {
                return false;
            }
            let next = run
                .occupants()
                .find(|(_, o)| o.standing == Standing::Finished && o.member.is_some())
                .map(|(seat, _)| seat);
            if let Some(seat) = next {
                run.evaluator = Some(seat);
                self.tell_seat(seat, ToWorker::Evaluate);
                return false;
            }
            let text = "no worker is left to test the model: it is kept untested".to_owned();
            self.event(now, true, "untested", text);
        }
        self.set_stage(now, Stage::Fetching);
        match self.model_source() {
            Ok(source) => self.effects.push_back(Effect::FetchModel(source)),
            Err(reason) => self.fail(now, reason, Blame::Us),
        }
        true
    }

    pub(super) fn evaluated(&mut self, now: Millis, id: MemberId, mut evaluated: Evaluated) {
        let Some(run) = &mut self.run else { return };
        let Some(seat) = run.seat_of(id) else { return };
        // Only the test that was asked for is the last one, whatever a worker says.
        evaluated.is_final &= run.stage == Stage::Evaluating && run.evaluator == Some(seat);
        run.last_test = Some(evaluated);
        let (mode, workers) = (run.job.mode, u64::from(run.job.workers));
        let text = format!(
            "{seat} tested version {}: accuracy {:.4}, loss {:.4}",
            evaluated.version.0, evaluated.accuracy, evaluated.loss
        );
        self.event(now, false, "evaluated", text);
        // The servers' last report may be older than the parameters tested: a version is a step in
        // `bsp` and about a worker's share of one otherwise.
        let pushes_per_step = if mode == Mode::Bsp { 1 } else { workers.max(1) };
        let mut progress = self.progress(now, Some(evaluated));
        progress.step = progress.step.max(evaluated.version.0 / pushes_per_step);
        self.effects.push_back(Effect::Progress(progress));
    }

    /// The model's place, while servers hold one.
    ///
    /// # Errors
    /// The sentence to refuse with.
    pub fn model_source(&self) -> Result<ModelSource, String> {
        let run = self.run.as_ref().ok_or("there is no job, so there is no model")?;
        match (&run.layout, run.stage) {
            (Some(layout), Stage::Training | Stage::Evaluating | Stage::Fetching) => {
                Ok(ModelSource {
                    layout: layout.clone(),
                    servers: run
                        .servers
                        .iter()
                        .enumerate()
                        .map(|(i, place)| (place.member, server_words(i, place)))
                        .collect(),
                    shards: run.shards,
                    job_hash: run.hash,
                    step: self.step(),
                })
            }
            _ => Err(format!(
                "job {:?} is {}: the model has no values to export",
                run.job.name,
                self.phase_word()
            )),
        }
    }

    /// Input: the model asked for with [`Effect::FetchModel`] is here, or why it is not.
    pub fn handle_model(&mut self, now: Millis, fetched: Result<(), String>) {
        if self.run.as_ref().is_none_or(|run| run.stage != Stage::Fetching) {
            return;
        }
        match fetched {
            Ok(()) => {
                self.set_stage(now, Stage::Closing);
                self.tell_servers(&ToServer::Finish);
            }
            Err(reason) => self.fail(now, reason, Blame::Network),
        }
        self.advance(now);
    }

    /// Whether every server has said its last figures.
    pub(super) fn close(&mut self, now: Millis) -> bool {
        let Some(run) = &self.run else { return false };
        if !run.servers.iter().all(|place| place.is_final) {
            return false;
        }
        let reason = match &run.stopped {
            Some(by) => format!("stopped by {by} at step {}", self.step()),
            None => format!("done at step {}", self.step()),
        };
        let progress = self.progress(now, None);
        self.effects.push_back(Effect::Progress(progress));
        self.end(now, true, reason, None);
        true
    }

    /// The job cannot go on; `blame` becomes everybody's exit code.
    pub(super) fn fail(&mut self, now: Millis, reason: String, blame: Blame) {
        self.end(now, false, reason, Some(blame));
    }

    /// The job is over; its files come next.
    pub(super) fn end(&mut self, now: Millis, ok: bool, reason: String, blame: Option<Blame>) {
        let Some(run) = &mut self.run else { return };
        if run.stage == Stage::Concluding {
            return;
        }
        if run.training_from.is_some() && run.training_to.is_none() {
            run.training_to = Some(now);
        }
        run.result = Some((ok, reason.clone(), blame));
        self.set_stage(now, Stage::Concluding);
        self.event(now, blame.is_some(), "ended", reason.clone());
        if let Some(outcome) = self.outcome(ok, reason) {
            self.effects.push_back(Effect::Conclude(Box::new(outcome)));
        }
    }

    fn outcome(&self, ok: bool, reason: String) -> Option<Outcome> {
        let run = self.run.as_ref()?;
        let first = run.training_from.unwrap_or_default();
        let shards = || run.servers.iter().flat_map(|place| &place.report.shards);
        Some(Outcome {
            ok,
            reason,
            stopped: run.stopped.is_some(),
            job: run.job.clone(),
            job_hash: run.hash,
            layout: run.layout.clone(),
            servers: u16::try_from(run.servers.len()).unwrap_or(u16::MAX),
            steps: self.step(),
            samples: self.samples_applied(),
            samples_per_epoch: run.samples,
            training: run.training_to.unwrap_or_default().since(first),
            final_loss: self.mean_loss(),
            test: run.last_test.filter(|test| test.is_final),
            totals: self.totals(),
            max_staleness: self.max_staleness(),
            pushes_applied: self.most(|shard| shard.pushes_applied),
            contributions_refused: shards()
                .fold(0, |sum: u64, shard| sum.saturating_add(shard.contributions_refused)),
            seats_lost: run.lost.clone(),
        })
    }

    /// Input: the files asked for with [`Effect::Conclude`] are written, or one sentence that names
    /// the file that could not be.
    pub fn handle_concluded(&mut self, now: Millis, written: Result<(), String>) {
        let Some(run) = &mut self.run else { return };
        let Some((mut ok, mut reason, mut blame)) = run.result.take() else { return };
        let stay = self.settings.stay;
        // With another job to come, who took no part just goes on waiting.
        let took_part: Vec<MemberId> = run
            .servers
            .iter()
            .map(|place| place.member)
            .chain(run.seats.iter().filter_map(|place| place.occupant.as_ref()?.member))
            .collect();
        if let Err(fault) = written {
            self.event(now, true, "unwritten", fault.clone());
            reason = if ok { fault } else { format!("{reason}; {fault}") };
            ok = false;
            blame = blame.or(Some(Blame::Us));
        }
        self.run = None;
        self.over = !stay;
        self.tell_ended(&Ended { ok, blame, reason, stay }, |id| !stay || took_part.contains(&id));
    }

    /// How a server is called in lines about it.
    pub(super) fn server_words(&self, id: MemberId) -> String {
        let numbered = self.run.as_ref().and_then(|run| {
            let number = run.server_of(id)?.index();
            Some(server_words(number, &run.servers[number]))
        });
        let card = || self.members.servers().get(&id).map(|server| server.card.to_string());
        numbered.or_else(card).unwrap_or_default()
    }
}
