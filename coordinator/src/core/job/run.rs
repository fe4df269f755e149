//! What the coordinator knows of the job it has: its stage, its servers, who holds each seat.

use crate::core::leases::LeaseBook;
use crate::core::membership::{Card, MemberId};
use crate::core::time::Millis;
use slackline_common::blame::Blame;
use slackline_common::ids::{Fingerprint, Incarnation, SeatId, ServerId, Step, Term};
use slackline_common::job::Job;
use slackline_common::layout::Layout;
use slackline_common::model::ModelSpec;
use slackline_common::wire::control::{Evaluated, MemberStatus, ServerReport, WorkerReport};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Stage {
    Gathering,
    Preparing,
    Starting,
    Initialising,
    Training,
    Evaluating,
    Fetching,
    Closing,
    Concluding,
}

/// A numbered server of the job.
#[derive(Clone, Debug)]
pub(super) struct ServerPlace {
    pub(super) member: MemberId,
    pub(super) card: Card,
    pub(super) advertise: String,
    pub(super) ready: bool,
    pub(super) checked: bool,
    pub(super) committed: bool,
    pub(super) is_final: bool,
    pub(super) report: ServerReport,
}

/// How far a seat's holder is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Standing {
    /// Has the job, opens its data or names its tensors.
    Preparing,
    /// Has done so.
    Prepared,
    /// Was told to start.
    Working,
    /// Is gone; the servers still have to say how far it came.
    Departing { clock: Step, departed: Vec<bool> },
    /// Is gone.
    Gone,
    /// Has left in good order.
    Finished,
}

/// Who holds a seat, and what is known of them; stays when the connection goes.
#[derive(Clone, Debug)]
pub(super) struct Occupant {
    pub(super) member: Option<MemberId>,
    pub(super) card: Card,
    pub(super) incarnation: Incarnation,
    pub(super) standing: Standing,
    pub(super) report: WorkerReport,
    /// The last loss reported that is a number.
    pub(super) loss: f32,
    pub(super) samples: Option<u64>,
    pub(super) barrier: Option<u64>,
    pub(super) told_no_more: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SeatPlace {
    pub(super) lives: u32,
    pub(super) occupant: Option<Occupant>,
}

#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) job: Box<Job>,
    pub(super) hash: Fingerprint,
    pub(super) stage: Stage,
    pub(super) stage_since: Millis,
    pub(super) next_line: Millis,
    pub(super) training_from: Option<Millis>,
    pub(super) training_to: Option<Millis>,
    pub(super) layout: Option<Layout>,
    pub(super) samples: u64,
    pub(super) servers: Vec<ServerPlace>,
    pub(super) shards: u16,
    pub(super) seats: Vec<SeatPlace>,
    pub(super) term: Term,
    pub(super) book: Option<LeaseBook>,
    pub(super) samples_total: u64,
    /// Seats that say their first values are staged, in the order of their words.
    pub(super) staged: Vec<SeatId>,
    pub(super) winner: Option<SeatId>,
    /// Whether the winner's values are on every server and were ordered to be the first ones.
    pub(super) committing: bool,
    pub(super) evaluator: Option<SeatId>,
    pub(super) last_test: Option<Evaluated>,
    pub(super) stopped: Option<String>,
    /// When a stopped job waits for its seats no longer.
    pub(super) stop_by: Option<Millis>,
    pub(super) lost: Vec<SeatId>,
    pub(super) points: VecDeque<(Millis, u64)>,
    pub(super) gone: Vec<MemberStatus>,
    /// As in `Ended`: `ok`, the reason, whose move it is.
    pub(super) result: Option<(bool, String, Option<Blame>)>,
}

impl Run {
    pub(super) fn live(&self) -> impl Iterator<Item = (SeatId, &Occupant)> {
        self.occupants().filter(|(_, o)| {
            matches!(o.standing, Standing::Preparing | Standing::Prepared | Standing::Working)
        })
    }

    pub(super) fn occupants(&self) -> impl Iterator<Item = (SeatId, &Occupant)> {
        self.seats
            .iter()
            .zip(0u16..)
            .filter_map(|(place, seat)| Some((SeatId(seat), place.occupant.as_ref()?)))
    }

    pub(super) fn seat_of(&self, member: MemberId) -> Option<SeatId> {
        self.occupants().find(|(_, o)| o.member == Some(member)).map(|(seat, _)| seat)
    }

    pub(super) fn occupant_mut(&mut self, seat: SeatId) -> Option<&mut Occupant> {
        self.seats.get_mut(seat.index())?.occupant.as_mut()
    }

    pub(super) fn server_of(&self, member: MemberId) -> Option<ServerId> {
        let position = self.servers.iter().position(|place| place.member == member)?;
        u16::try_from(position).ok().map(ServerId)
    }

    pub(super) fn is_external(&self) -> bool {
        matches!(self.job.model, ModelSpec::External)
    }

    pub(super) fn departing(&self) -> bool {
        self.occupants().any(|(_, o)| matches!(o.standing, Standing::Departing { .. }))
    }
}
