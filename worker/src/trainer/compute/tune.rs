//! `compress = "auto"` on the compute thread: measures steps, and codes as [`Auto`] says.

use crate::core::auto::{Auto, Measured};
use crate::net::seat::Seat;
use slackline_common::codec::CodecSpec;
use slackline_common::job::{Compress, Job, rung_coding};
use slackline_common::wire::control::Fidelity;
use std::time::Duration;

/// What the compute thread measures and changes.
#[derive(Debug)]
pub(super) struct Tuner {
    auto: Auto,
    /// The rung that the seat codes with.
    applied: usize,
}

impl Tuner {
    /// Of a job that wants it.
    pub(super) fn new(job: &Job, seat: &Seat) -> Option<Self> {
        (job.compress == Compress::Auto).then(|| Self {
            auto: Auto::new(seat.plan().layout().elements(), job.in_flight),
            applied: 0,
        })
    }

    /// The rung that counts; a probe of another rung is none.
    pub(super) fn rung(&self) -> Option<u8> {
        u8::try_from(self.auto.level_down()).ok()
    }

    /// Input: a step was computed in `computing`, and encoded and handed over in `coding`.
    pub(super) fn handle_step(&mut self, seat: &mut Seat, computing: Duration, coding: Duration) {
        let (push_bytes, pushing) = seat.servers().take_pushed();
        let choice = self.auto.handle_step(&Measured {
            compute_seconds: computing.as_secs_f64(),
            encode_seconds: coding.as_secs_f64(),
            push_bytes,
            push_seconds: pushing.as_secs_f64(),
            round_trip_seconds: seat.servers().round_trip().as_secs_f64(),
        });
        if let Some(choice) = choice {
            tracing::info!("{} at step {}: {choice}", seat.seat(), seat.clock().0);
            seat.set_wish(u32::from(self.rung().unwrap_or_default()));
        }
        let rung = self.auto.level();
        if rung != self.applied {
            self.applied = rung;
            let tensors = seat.plan().layout().tensors().iter();
            let specs: Vec<CodecSpec> = tensors.map(|tensor| rung_coding(tensor, rung)).collect();
            seat.uplink_mut().set_specs(specs);
        }
    }
}

/// The guard's figures for people.
#[expect(clippy::cast_possible_truncation, reason = "figures for people")]
pub(super) fn fidelity(seat: &Seat) -> Option<Fidelity> {
    let figures = seat.uplink().figures()?;
    Some(Fidelity {
        cosine: figures.cosine as f32,
        norm_ratio: figures.norm_ratio as f32,
        residual_ratio: figures.residual_ratio as f32,
        age_steps: figures.age as f32,
    })
}
