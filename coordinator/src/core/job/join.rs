//! First words: who is taken in and who is refused.

use super::{Cause, Core};
use crate::core::effects::Effect;
use crate::core::membership::{MemberId, card, seat_is_held};
use crate::core::time::{Millis, time_of_day};
use slackline_common::ids::SeatId;
use slackline_common::wire::control::{Hello, ToServer, ToWorker, Welcome};

impl Core {
    pub(super) fn worker_hello(
        &mut self,
        now: Millis,
        id: MemberId,
        address: &str,
        hello: &Hello,
        seat: Option<SeatId>,
    ) {
        let card = card(&hello.name, address, now);
        let epoch = self.settings.started_unix_millis;
        let clock = move |at: Millis| time_of_day(epoch + at.0);
        let held = seat.and_then(|seat| {
            let (_, occupant) = self.run.as_ref()?.live().find(|(held, _)| *held == seat)?;
            let since = clock(occupant.card.joined);
            Some(seat_is_held(seat, &occupant.card, &since))
        });
        let text = format!("worker {card} joined");
        let added = match held {
            Some(refusal) => Err(refusal),
            None => self.members.add_worker(id, card, seat, clock),
        };
        match added {
            Ok(()) => {
                self.effects.push_back(Effect::ToWorker(id, ToWorker::Welcome(self.welcome())));
                self.event(now, false, "joined", text);
            }
            Err(refusal) => self.refuse_worker(now, id, refusal),
        }
    }

    pub(super) fn server_hello(
        &mut self,
        now: Millis,
        id: MemberId,
        address: &str,
        hello: &Hello,
        advertise: String,
        shards: u16,
    ) {
        let card = card(&hello.name, address, now);
        let epoch = self.settings.started_unix_millis;
        let clock = move |at: Millis| time_of_day(epoch + at.0);
        let text = format!("server {card} joined, reached at {advertise}, shards: {shards}");
        match self.members.add_server(id, card, advertise, shards, clock) {
            Ok(()) => {
                self.effects.push_back(Effect::ToServer(id, ToServer::Welcome(self.welcome())));
                self.event(now, false, "joined", text);
            }
            Err(refusal) => {
                self.event(now, true, "refused", refusal.clone());
                self.effects.push_back(Effect::ToServer(id, ToServer::Refused(refusal.clone())));
                self.effects.push_back(Effect::Close(id, refusal));
            }
        }
    }

    pub(super) fn welcome(&self) -> Welcome {
        Welcome { run_id: self.settings.run_id.clone(), lease_millis: self.settings.lease.0 }
    }

    /// Tells a worker why it cannot take part; it is no member any more.
    pub(super) fn refuse_worker(&mut self, now: Millis, id: MemberId, refusal: String) {
        self.event(now, true, "refused", refusal.clone());
        self.effects.push_back(Effect::ToWorker(id, ToWorker::Refused(refusal.clone())));
        self.effects.push_back(Effect::Close(id, refusal.clone()));
        self.leave(now, id, Cause::Failed(refusal));
    }
}
