//! How things stand: what status shows, and who is missing.

use super::train::phase_words;
use super::{Core, Run, Stage, Standing, WAITING_LINE_MILLIS, seat_words, server_words};
use crate::core::effects::{Totals, mode_text};
use crate::core::membership::{Card, MemberId};
use crate::core::time::Millis;
use slackline_common::job::{LADDER, Mode};
use slackline_common::wire::control::{ClusterStatus, MemberStatus, Phase, ShardReport};

impl Core {
    /// How the cluster stands.
    pub fn status(&self, now: Millis) -> ClusterStatus {
        let mut status = ClusterStatus {
            phase: self.phase_word().to_owned(),
            loss: f64::NAN,
            accuracy: f64::NAN,
            members: self.member_statuses(now),
            missing: self.missing(now),
            ..ClusterStatus::default()
        };
        let Some(run) = &self.run else { return status };
        let since = |from: Millis| run.training_to.unwrap_or(now).since(from).seconds();
        let totals = self.totals();
        status.job.clone_from(&run.job.name);
        status.mode = mode_text(&run.job);
        status.seconds = run.training_from.map_or(0.0, since);
        status.samples = self.samples_applied();
        status.samples_total = run.samples_total;
        status.epoch = status.samples.checked_div(run.samples).unwrap_or(0);
        status.step = self.step();
        status.steps_per_second = self.steps_per_second();
        status.loss = self.mean_loss();
        status.accuracy = run.last_test.map_or(f64::NAN, |test| test.accuracy);
        status.payload_bytes_up = totals.payload_bytes_up;
        status.payload_bytes_down = totals.payload_bytes_down;
        status.max_staleness = self.max_staleness();
        status.pushes_applied = self.most(|shard| shard.pushes_applied);
        status
    }

    pub(super) fn phase_word(&self) -> &'static str {
        match self.run.as_ref().map(|run| run.stage) {
            None if self.over => "ended",
            None => "idle",
            Some(Stage::Gathering | Stage::Preparing | Stage::Starting) => "gathering",
            Some(Stage::Initialising | Stage::Training) => "training",
            Some(Stage::Evaluating | Stage::Fetching | Stage::Closing) => "finishing",
            Some(Stage::Concluding) => "ended",
        }
    }

    fn member_statuses(&self, now: Millis) -> Vec<MemberStatus> {
        let run = self.run.as_ref();
        let of = |role: &str, card: &Card, number: Option<u16>, phase: Phase| MemberStatus {
            role: role.to_owned(),
            name: card.name.clone(),
            address: card.address.clone(),
            number,
            phase,
            silent_millis: now.since(card.heard).0,
            ..MemberStatus::default()
        };
        let servers = self.members.servers().iter().map(|(id, server)| {
            let number = run.and_then(|run| run.server_of(*id)).map(|number| number.0);
            let slowest = server.report.shards.iter().map(|shard| shard.version.0).min();
            let status = of("server", &server.card, number, server.report.phase);
            MemberStatus { clock: slowest.unwrap_or(0), ..status }
        });
        let workers = self.members.workers().iter().map(|(id, worker)| {
            let seat = run.and_then(|run| run.seat_of(*id)).map(|seat| seat.0);
            let report = worker.report;
            MemberStatus {
                clock: report.clock.0,
                staleness: report.staleness,
                samples: report.samples,
                payload_bytes: (report.payload_bytes_up, report.payload_bytes_down),
                bytes_outstanding: report.bytes_outstanding,
                coding: report
                    .rung
                    .and_then(|rung| LADDER.get(usize::from(rung)))
                    .map(ToString::to_string),
                fidelity: report.fidelity,
                ..of("worker", &worker.card, seat, report.phase)
            }
        });
        let gone = run.map(|run| run.gone.clone()).unwrap_or_default();
        let mut all: Vec<_> = servers.chain(workers).chain(gone).collect();
        all.sort_by_key(|member| {
            (member.gone.is_some(), member.role != "server", member.number.is_none(), member.number)
        });
        all
    }

    /// The largest of a figure over all shards. Whoever trains whole models pushes to every shard
    /// alike; a raw client may push to some only, and then no fixed shard knows of all pushes.
    pub(super) fn most(&self, figure: impl Fn(&ShardReport) -> u64) -> u64 {
        let servers = self.run.iter().flat_map(|run| &run.servers);
        servers.flat_map(|place| &place.report.shards).map(figure).max().unwrap_or(0)
    }

    /// Global step: versions in `bsp`, otherwise samples over the global batch.
    pub(super) fn step(&self) -> u64 {
        let Some(run) = &self.run else { return 0 };
        match run.job.mode {
            Mode::Bsp => self.most(|shard| shard.version.0),
            Mode::Ssp { .. } | Mode::Asp { .. } => {
                self.samples_applied() / run.job.server_step_samples().max(1)
            }
        }
    }

    pub(super) fn samples_applied(&self) -> u64 {
        self.most(|shard| shard.samples)
    }

    pub(super) fn max_staleness(&self) -> u64 {
        self.most(|shard| shard.max_staleness)
    }

    /// Mean of the last training losses of the seats that were not lost; a lost one's is old.
    pub(super) fn mean_loss(&self) -> f64 {
        let Some(run) = &self.run else { return f64::NAN };
        let losses: Vec<f64> = run
            .occupants()
            .filter(|(seat, _)| !run.lost.contains(seat))
            .map(|(_, occupant)| f64::from(occupant.loss))
            .filter(|loss| loss.is_finite())
            .collect();
        losses.iter().sum::<f64>() / losses.len() as f64
    }

    pub(super) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for (_, occupant) in self.run.iter().flat_map(Run::occupants) {
            let report = occupant.report;
            for (sum, part) in [
                (&mut totals.payload_bytes_up, report.payload_bytes_up),
                (&mut totals.payload_bytes_down, report.payload_bytes_down),
                (&mut totals.wire_bytes_up, report.wire_bytes_up),
                (&mut totals.wire_bytes_down, report.wire_bytes_down),
            ] {
                *sum = sum.saturating_add(part);
            }
        }
        totals
    }

    pub(super) fn steps_per_second(&self) -> f64 {
        let points = self.run.as_ref().map(|run| &run.points);
        let ends = points.and_then(|points| Some((points.front()?, points.back()?)));
        let Some(((from, first), (to, last))) = ends else { return 0.0 };
        let seconds = to.since(*from).seconds();
        if seconds > 0.0 { last.saturating_sub(*first) as f64 / seconds } else { 0.0 }
    }

    /// Who is waited for, one sentence each; empty when nobody is.
    pub fn missing(&self, now: Millis) -> Vec<String> {
        let Some(run) = &self.run else { return Vec::new() };
        let waited = now.since(run.stage_since);
        let servers = |what: &str, missing: &dyn Fn(&super::ServerPlace) -> bool| {
            let places = run.servers.iter().enumerate().filter(|(_, place)| missing(place));
            places
                .map(|(i, place)| {
                    format!("waiting for {} to {what} ({waited})", server_words(i, place))
                })
                .collect::<Vec<_>>()
        };
        let mut lines = match run.stage {
            Stage::Gathering => self.missing_members(run, waited),
            Stage::Preparing => self.seats(run, now, waited, |standing| {
                let what = if run.is_external() { "name its tensors" } else { "open its data" };
                (*standing == Standing::Preparing).then_some(what)
            }),
            Stage::Starting => servers("make its shards", &|place| !place.ready),
            Stage::Initialising if run.winner.is_none() => {
                vec![format!("waiting for a worker to bring the first values ({waited})")]
            }
            Stage::Initialising => servers("take the first values", &|place| !place.committed),
            Stage::Training if run.stopped.is_some() => self.seats(run, now, waited, |standing| {
                (*standing == Standing::Working).then_some("finish")
            }),
            Stage::Training => self.silent_members(run, now),
            Stage::Evaluating => self.seats(run, now, waited, |standing| {
                (*standing == Standing::Finished).then_some("test the model")
            }),
            Stage::Fetching => vec![format!("waiting for the model ({waited})")],
            Stage::Closing => servers("say its last figures", &|place| !place.is_final),
            Stage::Concluding => vec![format!("writing the run's files ({waited})")],
        };
        lines.extend(run.occupants().filter_map(|(seat, occupant)| {
            let Standing::Departing { departed, .. } = &occupant.standing else { return None };
            let waits = departed.iter().position(|done| !done)?;
            let server = server_words(waits, run.servers.get(waits)?);
            Some(format!("waiting for {server} to take out {seat}"))
        }));
        lines
    }

    fn missing_members(&self, run: &Run, waited: Millis) -> Vec<String> {
        let free = run.seats.iter().filter(|place| place.occupant.is_none()).count();
        let workers = free - self.seating().len().min(free);
        let wanted = usize::from(run.job.servers);
        let servers = wanted.saturating_sub(self.members.servers().len());
        let part = |missing: usize, of: usize, what: &str| {
            let s = if of == 1 { "" } else { "s" };
            (missing > 0).then(|| format!("{missing} of {of} {what}{s}"))
        };
        let parts: Vec<String> =
            [part(servers, wanted, "server"), part(workers, run.seats.len(), "worker")]
                .into_iter()
                .flatten()
                .collect();
        if parts.is_empty() {
            return Vec::new();
        }
        let seconds = waited.0 / 1000;
        let mut lines = vec![format!("waiting for {} to join ({seconds} s)", parts.join(" and "))];
        let stuck = self
            .members
            .workers()
            .values()
            .filter(|worker| worker.wanted.is_some_and(|seat| seat.index() >= run.seats.len()));
        lines.extend(stuck.filter_map(|worker| {
            let (seat, last) = (worker.wanted?, run.seats.len() - 1);
            Some(format!("{} insists on {seat}; the job has seats 0 to {last}", worker.card))
        }));
        lines
    }

    fn seats(
        &self,
        run: &Run,
        now: Millis,
        waited: Millis,
        what: impl Fn(&Standing) -> Option<&'static str>,
    ) -> Vec<String> {
        let only = run.evaluator.filter(|_| run.stage == Stage::Evaluating);
        run.occupants()
            .filter(|(seat, _)| only.is_none_or(|only| only == *seat))
            .filter_map(|(seat, occupant)| {
                let what = what(&occupant.standing)?;
                let heard = self.heard(occupant.member, now)?;
                let phase = phase_words(occupant.report.phase);
                let words = seat_words(seat, occupant);
                Some(format!(
                    "waiting for {words} to {what} ({waited}; {phase}, last heard {heard} ago)"
                ))
            })
            .collect()
    }

    fn heard(&self, member: Option<MemberId>, now: Millis) -> Option<Millis> {
        Some(now.since(self.members.workers().get(&member?)?.card.heard))
    }

    /// Members that should have been heard by now and are not yet given up.
    fn silent_members(&self, run: &Run, now: Millis) -> Vec<String> {
        let late = |heard: &Millis| heard.0 > self.settings.lease.0 / 2;
        let seats = run.occupants().filter_map(|(seat, occupant)| {
            let heard = self.heard(occupant.member, now).filter(late)?;
            let phase = phase_words(occupant.report.phase);
            let bytes = occupant.report.bytes_outstanding;
            let words = seat_words(seat, occupant);
            Some(format!("{words} silent for {heard} while {phase}, {bytes} bytes outstanding"))
        });
        let servers = run.servers.iter().enumerate().filter_map(|(i, place)| {
            let server = self.members.servers().get(&place.member)?;
            let heard = Some(now.since(server.card.heard)).filter(late)?;
            Some(format!("{} silent for {heard}", server_words(i, place)))
        });
        seats.chain(servers).collect()
    }

    /// Says who is missing: at first, every few seconds, and as a warning each time the start
    /// timeout has passed once more.
    pub(super) fn waiting_line(&mut self, now: Millis) {
        let Some(run) = &self.run else { return };
        if now < run.next_line || (run.stage == Stage::Training && run.stopped.is_none()) {
            return;
        }
        let timeout = self.settings.start_timeout;
        let late = now.since(run.stage_since) >= timeout;
        let pause = if late { timeout.0.max(1) } else { WAITING_LINE_MILLIS.min(timeout.0.max(1)) };
        let lines = self.missing(now);
        if let Some(run) = &mut self.run {
            run.next_line = now.plus(Millis(pause));
        }
        for line in lines {
            self.event(now, late, "waiting", line);
        }
    }
}
