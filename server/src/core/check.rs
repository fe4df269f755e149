//! What an engine takes, what it has already, and what it refuses with which sentence. Looks only.

use super::clock::SeatState;
use super::engine::Engine;
use super::publish::Publisher;
use super::record::{Push, Record, fits, payloads};
use bytes::Bytes;
use slackline_common::codec::codec;
use slackline_common::ids::{Incarnation, SeatId, Step};
use slackline_common::job::LADDER;
use slackline_common::limits::STEPS_OPEN_MAX;
use slackline_common::wire::frame::{BlockEntry, Refusal};

/// What a record would do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It changes the state.
    Fresh,
    /// The state has it already.
    Known,
    /// It breaks a rule; the sentence says which.
    Refused(Refusal, String),
}

use Verdict::{Fresh, Known, Refused};

impl Engine {
    /// What `record` would do now. Applying a record that is not [`Verdict::Fresh`] does nothing.
    pub fn check(&self, record: &Record) -> Verdict {
        match record {
            Record::InitFromSeed => known_if(self.initialised),
            Record::Stage { seat, blocks, body } => self.check_stage(*seat, blocks, body),
            Record::CommitInit { seat } => self.check_commit(*seat),
            Record::Push(push) => self.check_push(push),
            Record::Close { step } => known_if(self.clocks.closable() != Some(*step)),
            Record::Publish { number } => {
                let is_next = |made: &Publisher| made.is_due() && made.number() + 1 == *number;
                known_if(!self.publisher.as_ref().is_some_and(is_next))
            }
            Record::Down { level } => {
                let now = self.publisher.as_ref().and_then(Publisher::level);
                let is_rung = usize::from(*level) < LADDER.len();
                known_if(!is_rung || now.is_none_or(|now| now == *level))
            }
            Record::Leave { seat, incarnation } => match self.check_seat(*seat, *incarnation) {
                Err(refused) => refused,
                Ok(state) => known_if(state != SeatState::Live),
            },
            Record::Depart { seat, incarnation, .. } => {
                match self.check_seat(*seat, *incarnation) {
                    Err(refused) => refused,
                    Ok(state) => known_if(state == SeatState::Departed),
                }
            }
        }
    }

    /// Where the seat stands, when this is its life.
    pub(super) fn check_seat(
        &self,
        id: SeatId,
        incarnation: Incarnation,
    ) -> Result<SeatState, Verdict> {
        match self.clocks.seat(id) {
            None => Err(stale(format!("{id} is not a seat of this job"))),
            Some(seat) if seat.incarnation != incarnation => Err(stale(format!(
                "{id} is in {} now, the sender in {incarnation}: somebody else works in this seat",
                seat.incarnation
            ))),
            Some(seat) => Ok(seat.state),
        }
    }

    /// As [`Engine::check_seat`], and the seat is still in the job.
    pub(super) fn check_live(&self, id: SeatId, incarnation: Incarnation) -> Result<(), Verdict> {
        match self.check_seat(id, incarnation)? {
            SeatState::Live => Ok(()),
            SeatState::Left => Err(stale(format!("{id} sent first values after it had left"))),
            SeatState::Departed => {
                Err(stale(format!("{id} was taken out of the job before it sent first values")))
            }
        }
    }

    fn check_push(&self, push: &Push) -> Verdict {
        let Push { seat: id, step, part, .. } = push;
        let state = match self.check_seat(*id, push.incarnation) {
            Ok(state) => state,
            Err(refused) => return refused,
        };
        if !self.initialised {
            return self.not_initialised();
        }
        let clock = self.clocks.seat(*id).map_or(Step(0), |seat| seat.clock);
        let open = self.ledgers.get(id).and_then(|steps| steps.get(step));
        if *step < clock || open.is_some_and(|open| open.has_part(*part)) {
            return Known;
        }
        match state {
            SeatState::Live => {}
            SeatState::Left => return stale(format!("{id} pushed {step} after it had left")),
            SeatState::Departed => {
                return stale(format!("{id} was taken out of the job before its push of {step}"));
            }
        }
        if let Err(refused) = self.check_ahead(*id, *step, clock) {
            return refused;
        }
        // A part has at least one block, or is the one empty part of its step.
        let parts_max = self.store.blocks().len() + 1;
        if *part as usize >= parts_max {
            let sentence = format!(
                "{id} pushed part {part} of {step}; {} takes at most {parts_max} parts",
                self.shard
            );
            return Refused(Refusal::TooManyParts, sentence);
        }
        if let Some(Err((refusal, sentence))) = open.map(|open| open.check_part(push)) {
            return Refused(refusal, sentence);
        }
        if let Err(refused) = self.check_norms(push) {
            return refused;
        }
        let seen = |at: usize| open.is_some_and(|open| open.blocks.contains_key(&at));
        match self.check_blocks(*id, &push.blocks, &push.body, seen) {
            Ok(()) => Fresh,
            Err(refused) => refused,
        }
    }

    /// A seat may push what the mode lets it start, and not too far beyond its own complete steps. A
    /// shard without blocks never holds a seat back with a pull, so it is as patient as it can be.
    fn check_ahead(&self, id: SeatId, step: Step, clock: Step) -> Result<(), Verdict> {
        let ahead = step.0 - clock.0;
        // Steps in flight were computed on parameters that the pull of an earlier step gave.
        let in_flight = u64::from(self.job.in_flight.max(1)) - 1;
        let reach = Step(step.0.saturating_sub(in_flight));
        let is_allowed = self.store.blocks().is_empty() || self.clocks.allows(reach);
        if ahead < STEPS_OPEN_MAX && is_allowed {
            return Ok(());
        }
        Err(Refused(
            Refusal::TooFarAhead,
            format!(
                "{id} pushed {step}; its own clock is {}, the slowest {}, and {} with bound {} allows no more",
                clock.0,
                self.clocks.slowest().0,
                self.job.mode_name(),
                self.job.mode.bound().map_or_else(|| STEPS_OPEN_MAX.to_string(), |b| b.to_string()),
            ),
        ))
    }

    fn check_norms(&self, push: &Push) -> Result<(), Verdict> {
        let tensors = self.layout.tensors().len();
        let got = push.norms.len();
        let is_norm = |norm: &f64| norm.is_finite() && *norm >= 0.0;
        if (got == 0 || got == tensors) && push.norms.iter().all(is_norm) {
            return Ok(());
        }
        let sentence = format!(
            "{} sent {got} norms with {}: none, or one finite number from 0 up for each of {tensors} tensors",
            push.seat, push.step
        );
        Err(Refused(Refusal::BadPayload, sentence))
    }

    /// Every block of a table: ours, once, and with bytes that fit its codec.
    fn check_blocks(
        &self,
        seat: SeatId,
        blocks: &[BlockEntry],
        body: &Bytes,
        seen: impl Fn(usize) -> bool,
    ) -> Result<(), Verdict> {
        if !fits(blocks, body) {
            let sentence = format!("{seat} sent a block table that does not add up to its body");
            return Err(Refused(Refusal::BadPayload, sentence));
        }
        let mut positions = Vec::with_capacity(blocks.len());
        for (entry, bytes) in payloads(blocks, body) {
            let at = self.check_block(seat, entry)?;
            if seen(at) {
                return Err(twice(seat, entry));
            }
            positions.push(at);
            let elements = self.store.blocks()[at].len;
            if let Err(error) = codec(entry.codec).validate(&bytes, elements) {
                let sentence = format!("{seat}, {}: {error}", entry.block);
                return Err(Refused(Refusal::BadPayload, sentence));
            }
        }
        positions.sort_unstable();
        match positions.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => {
                Err(twice(seat, BlockEntry { block: self.store.blocks()[pair[0]].id, ..blocks[0] }))
            }
            None => Ok(()),
        }
    }

    /// The block's position in this shard.
    pub(super) fn check_block(&self, seat: SeatId, entry: BlockEntry) -> Result<usize, Verdict> {
        self.store.find(entry.block).ok_or_else(|| {
            let sentence =
                format!("{seat} names {}, which {} does not own", entry.block, self.shard);
            Refused(Refusal::UnknownBlock, sentence)
        })
    }

    fn check_stage(&self, seat: SeatId, blocks: &[BlockEntry], body: &Bytes) -> Verdict {
        if self.initialised {
            return Known; // the first values that were committed stand
        }
        if let Err(refused) = self.check_blocks(seat, blocks, body, |_| false) {
            return refused;
        }
        let special =
            payloads(blocks, body).find(|(entry, bytes)| !codec(entry.codec).is_finite(bytes));
        match special {
            None => Fresh,
            Some((entry, _)) => Refused(
                Refusal::BadPayload,
                format!("{seat} sent first values with NaN or infinity in {}", entry.block),
            ),
        }
    }

    fn check_commit(&self, seat: SeatId) -> Verdict {
        if self.initialised {
            return Known;
        }
        let missing = (0..self.store.blocks().len())
            .find(|at| self.store.is_external(&self.layout, *at) && !self.staging.has(seat, *at));
        match missing {
            None => Fresh,
            Some(at) => Refused(
                Refusal::NotInitialised,
                format!("{seat} never sent first values for {}", self.store.blocks()[at].id),
            ),
        }
    }

    pub(super) fn not_initialised(&self) -> Verdict {
        let sentence = format!("the parameters of {} have no first values yet", self.shard);
        Refused(Refusal::NotInitialised, sentence)
    }
}

const fn known_if(known: bool) -> Verdict {
    if known { Known } else { Fresh }
}

const fn stale(sentence: String) -> Verdict {
    Refused(Refusal::StaleIncarnation, sentence)
}

fn twice(seat: SeatId, entry: BlockEntry) -> Verdict {
    Refused(Refusal::UnknownBlock, format!("{seat} sent {} twice in one step", entry.block))
}
