//! The open steps of one seat: which parts and blocks have come, and what is kept until the close.
//!
//! A step is parts `0..n` in any order; the one marked last tells `n`. A part is taken once: the same
//! part again is known by its number, a step below the clock by the clock.

use super::record::Push;
use bytes::Bytes;
use slackline_common::codec::CodecId;
use slackline_common::ids::Step;
use slackline_common::wire::frame::Refusal;
use std::collections::BTreeMap;

/// One block's contribution as it came, held by reference count into its frame.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) codec: CodecId,
    pub(super) bytes: Bytes,
}

/// A step of which some parts have come.
#[derive(Debug, Default)]
pub(super) struct OpenStep {
    /// Every part that has come, in order.
    parts: Vec<u32>,
    last: Option<u32>,
    /// Samples as declared by the first part that came; the others must agree.
    pub(super) samples: u32,
    /// Norms of the lowest part that has any.
    norms: Option<(u32, Vec<f64>)>,
    /// Blocks that have come, by position in the shard. `bsp` keeps what counts until the close;
    /// `None` is a block that was refused or has been applied.
    pub(super) blocks: BTreeMap<usize, Option<Kept>>,
    /// Whether any contribution counted.
    pub(super) counted: bool,
}

impl OpenStep {
    /// Whether all parts are in.
    pub(super) fn is_complete(&self) -> bool {
        self.last.is_some_and(|last| self.parts.len() == last as usize + 1)
    }

    pub(super) fn has_part(&self, part: u32) -> bool {
        self.parts.binary_search(&part).is_ok()
    }

    /// Norms of the last step as this seat knew them; empty when it sent none.
    pub(super) fn norms(&self) -> &[f64] {
        self.norms.as_ref().map_or(&[], |(_, norms)| norms)
    }

    /// Whether a part that has not come yet fits the parts that have.
    pub(super) fn check_part(&self, push: &Push) -> Result<(), (Refusal, String)> {
        let Push { seat, step, part, .. } = push;
        if self.is_complete() {
            let parts = self.parts.len();
            let sentence = format!(
                "{seat} pushed part {part} of {step}, which is complete with {parts} parts"
            );
            return Err((Refusal::StepClosed, sentence));
        }
        let beyond = self.last.is_some_and(|last| *part > last)
            || (push.last && self.parts.last().is_some_and(|highest| highest > part));
        if beyond || (push.last && self.last.is_some()) {
            let sentence = format!(
                "{seat} pushed part {part} of {step}, which does not fit the part marked last"
            );
            return Err((Refusal::BadPayload, sentence));
        }
        if !self.parts.is_empty() && push.samples != self.samples {
            let sentence = format!(
                "{seat} declares {} samples in part {part} of {step} and declared {} before: all parts of a step say the same",
                push.samples, self.samples
            );
            return Err((Refusal::BadPayload, sentence));
        }
        Ok(())
    }

    /// Notes a part that `check_part` let through.
    pub(super) fn take_part(&mut self, push: &Push) {
        if let Err(at) = self.parts.binary_search(&push.part) {
            self.parts.insert(at, push.part);
        }
        self.samples = push.samples;
        if push.last {
            self.last = Some(push.part);
        }
        let is_lowest = self.norms.as_ref().is_none_or(|(part, _)| push.part < *part);
        if !push.norms.is_empty() && is_lowest {
            self.norms = Some((push.part, push.norms.clone()));
        }
    }

    /// Everything that tells two open steps apart, for the state's hash.
    pub(super) fn hash(&self, hash: &mut blake3::Hasher) {
        let parts = self.parts.iter().flat_map(|part| part.to_le_bytes());
        hash.update(&parts.collect::<Vec<_>>());
        hash.update(&self.last.map_or(u64::MAX, u64::from).to_le_bytes());
        hash.update(&self.samples.to_le_bytes());
        self.norms().iter().for_each(|norm| {
            hash.update(&norm.to_le_bytes());
        });
        for (block, kept) in &self.blocks {
            hash.update(&(*block as u64).to_le_bytes());
            if let Some(kept) = kept {
                hash.update(&[kept.codec as u8]).update(&kept.bytes);
            }
        }
    }
}

/// The open steps of one seat.
pub(super) type OpenSteps = BTreeMap<Step, OpenStep>;
