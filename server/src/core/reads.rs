//! Pulls: admitted at once, released by the clocks, encoded only when they are read.
//!
//! A released pull holds nothing but its list of blocks until somebody reads it, so that many seats
//! that are let go together do not make many encoded copies of the shard at once.

use super::check::Verdict;
use super::clock::{SeatState, Token};
use super::engine::{Admission, Effect, Engine, refuse};
use slackline_common::codec::{CodecId, F32, plain};
use slackline_common::ids::{SeatId, Step};
use slackline_common::job::LADDER;
use slackline_common::limits::{
    FRAME_BODY_BYTES_MAX, PULLS_WAITING_PER_SEAT_MAX, PULLS_WITHOUT_SEAT_MAX, STEPS_OPEN_MAX,
};
use slackline_common::wire::control::NO_SEAT;
use slackline_common::wire::frame::{BlockEntry, Refusal, Reply, ReplyKind, Request, RequestKind};

/// The end of the ladder: a wish beyond it is this.
#[expect(clippy::cast_possible_truncation, reason = "the ladder has a few rungs")]
const LAST_RUNG: u8 = LADDER.len() as u8 - 1;

/// A pull that has not been read yet.
#[derive(Debug)]
pub(super) struct Pull {
    seat: SeatId,
    blocks: Vec<BlockEntry>,
    /// A pull of deltas: the publish its seat holds.
    pub(super) held: Option<u64>,
}

impl Engine {
    /// Lines a pull up, or says why not.
    pub(super) fn admit_pull(&mut self, request: Request, token: Token) -> Admission {
        match self.check_pull(&request) {
            Ok((seat, step)) => {
                let held = (request.kind == RequestKind::PullDeltas).then_some(request.version.0);
                if held.is_some() && seat != NO_SEAT {
                    let wish = u8::try_from(request.part).unwrap_or(u8::MAX);
                    self.wishes.insert(seat, wish.min(LAST_RUNG));
                }
                self.pulls.insert(token, Pull { seat, blocks: request.blocks, held });
                self.clocks.handle_wait(token, seat, step);
                Admission::Waiting
            }
            Err(verdict) => refuse(verdict),
        }
    }

    /// For whom and for which step the pull waits. One without a seat, or of a seat that has left,
    /// waits for nobody.
    fn check_pull(&self, request: &Request) -> Result<(SeatId, Step), Verdict> {
        let (seat, step) = if request.seat == NO_SEAT {
            (NO_SEAT, Step(0))
        } else {
            match self.check_seat(request.seat, request.incarnation)? {
                SeatState::Live => (request.seat, request.step),
                SeatState::Left => (NO_SEAT, Step(0)),
                SeatState::Departed => {
                    let sentence = format!("{} was taken out of the job", request.seat);
                    return Err(Verdict::Refused(Refusal::StaleIncarnation, sentence));
                }
            }
        };
        if !self.initialised {
            return Err(self.not_initialised());
        }
        let clock = self.clock(seat).unwrap_or_default();
        if step.0.saturating_sub(clock.0) > STEPS_OPEN_MAX {
            let sentence = format!(
                "{seat} pulled for {step} with clock {}; at most {STEPS_OPEN_MAX} ahead of itself",
                clock.0
            );
            return Err(Verdict::Refused(Refusal::TooFarAhead, sentence));
        }
        let waiting = self.pulls.values().filter(|pull| pull.seat == seat).count();
        let waiting_max =
            if seat == NO_SEAT { PULLS_WITHOUT_SEAT_MAX } else { PULLS_WAITING_PER_SEAT_MAX };
        if waiting >= waiting_max {
            let sentence =
                format!("{seat} has {waiting} pulls waiting: {waiting_max} are the most");
            return Err(Verdict::Refused(Refusal::TooManyParts, sentence));
        }
        let is_deltas = request.kind == RequestKind::PullDeltas;
        if is_deltas {
            self.check_deltas(seat, request)?;
        }
        let mut bytes = 0;
        for entry in &request.blocks {
            let at = self.check_block(seat, *entry)?;
            // Deltas may turn into all of the reference.
            let wanted = if is_deltas { CodecId::F32 } else { entry.codec };
            let Some(format) = plain(wanted) else {
                let sentence = format!(
                    "{seat} asks for whole parameters in {wanted}: f32, bf16 and f16 can be asked for"
                );
                return Err(Verdict::Refused(Refusal::BadPayload, sentence));
            };
            bytes += format.encoded_len_max(self.store.blocks()[at].len);
            if bytes > FRAME_BODY_BYTES_MAX {
                let sentence = format!(
                    "{seat} asks for more than {FRAME_BODY_BYTES_MAX} bytes in one pull: split it"
                );
                return Err(Verdict::Refused(Refusal::BadPayload, sentence));
            }
        }
        Ok((seat, step))
    }

    /// Whether the job sends deltas, and the seat can hold what it says it holds.
    fn check_deltas(&self, seat: SeatId, request: &Request) -> Result<(), Verdict> {
        let refused = |sentence| Err(Verdict::Refused(Refusal::BadPayload, sentence));
        let Some(publisher) = &self.publisher else {
            return refused(format!("{seat} asks for deltas, which this job does not send"));
        };
        if let Err(why) = publisher.check_held(request.version.0) {
            return refused(format!("{seat} asks for deltas: {why}"));
        }
        let repeated = request.blocks.windows(2).find(|pair| pair[0].block >= pair[1].block);
        match repeated {
            None => Ok(()),
            Some(pair) => refused(format!(
                "{seat} asks for deltas of {} after {}: blocks must rise",
                pair[1].block, pair[0].block
            )),
        }
    }

    /// Output: a pull that may be read now. Call until it returns `None`.
    pub fn poll_release(&mut self) -> Option<Token> {
        self.clocks.poll_release()
    }

    /// Makes the answer of a released pull, with the parameters as they are, or were published, by now.
    /// `None` when it was cancelled.
    pub fn read(&mut self, token: Token) -> Option<Reply> {
        let Pull { mut blocks, held, .. } = self.pulls.remove(&token)?;
        let position = |entry: &BlockEntry| self.store.find(entry.block);
        let at: Vec<_> = blocks.iter().filter_map(position).collect();
        let norms = if self.job.clip.is_on() {
            at.iter().map(|at| self.store.norm(*at)).collect()
        } else {
            Vec::new()
        };
        if let (Some(held), Some(publisher)) = (held, &self.publisher) {
            let asked: Vec<_> = blocks.iter().map(|entry| entry.block).zip(at).collect();
            let answer = publisher.answer(&self.store, &asked, held, &self.pool);
            let super::publish::Answer { kind, blocks, publish, body } = answer;
            return Some(Reply { kind, norms, blocks, publish, body, ..self.ack() });
        }
        // Every format was looked at when the pull was admitted.
        let format = |entry: &BlockEntry| plain(entry.codec).unwrap_or(&F32);
        let bytes = |(entry, at): (&BlockEntry, &usize)| {
            format(entry).encoded_len_max(self.store.blocks()[*at].len)
        };
        let mut buffer = self.pool.take(blocks.iter().zip(&at).map(bytes).sum());
        for (entry, at) in blocks.iter_mut().zip(&at) {
            entry.bytes = self.store.encode(*at, format(entry), &mut buffer.bytes);
        }
        let ack = self.ack();
        Some(Reply { kind: ReplyKind::Parameters, norms, blocks, body: buffer.freeze(), ..ack })
    }

    /// Forgets a pull that nobody waits for any more.
    pub fn cancel(&mut self, token: Token) {
        if self.pulls.remove(&token).is_some() {
            self.clocks.handle_cancel(token);
        }
    }

    /// Refuses every waiting pull of a seat that is live no more.
    pub(super) fn refuse_pulls_of(
        &mut self,
        seat: SeatId,
        state: SeatState,
        effects: &mut Vec<Effect>,
    ) {
        let of_seat = self.pulls.iter().filter(|(_, pull)| pull.seat == seat);
        let tokens: Vec<_> = of_seat.map(|(token, _)| *token).collect();
        for token in tokens {
            self.cancel(token);
            let how = if state == SeatState::Left { "has left" } else { "was taken out of" };
            let sentence = format!("{seat} {how} the job while it pulled");
            let reply = Reply::refused(Refusal::StaleIncarnation, sentence);
            effects.push(Effect::Reply { token, reply });
        }
    }
}
