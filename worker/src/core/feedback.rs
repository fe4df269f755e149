//! Error feedback: what a lossy format held back is kept here and owed to the next push.
//!
//! Per tensor, so that it does not matter how a tensor is cut into blocks: [`Feedback::export`] and
//! [`Feedback::import`] hand over any range of it by name. One push of a block is two calls:
//! [`accumulate`](Feedback::accumulate) makes the sum that is encoded, [`settle`](Feedback::settle)
//! subtracts what the bytes say from it and keeps the rest. Sent and kept are then the sum: bit for bit
//! in formats whose decoded values are the encoded ones or 0, and up to one rounding of the difference
//! elsewhere.
//!
//! Plain (Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
//! ICML 2019): `sum = decay·residual + factor·gradient`.
//!
//! With momentum correction, from [`Ramp::begin_step`](slackline_common::job::Ramp) on (Lin et al.,
//! "Deep Gradient Compression", ICLR 2018, sections 3.1 and 3.2; `factor` is its local clipping):
//! `velocity = momentum·velocity + factor·gradient`, `sum = decay·residual + velocity`. Where a sparse
//! format sent an element its velocity becomes 0 as well (momentum factor masking). A format that sends
//! every element of every push is not masked: it would be plain descent, and unmasked it *is* momentum.
//! So with a lossless dense format and equal shares of samples the servers' plain descent on these
//! sums walks as their momentum would on the gradients, up to rounding and but for weight decay, which
//! they add after the momentum. At density 1 a sparse format masks all, and that is plain descent.
//!
//! **NaN and infinity.** A sum that is not finite is not sent: the gradient goes as it is, the server
//! refuses that contribution, and what is kept here stays as it was. So it does when the format made an
//! infinity of a finite sum.

use multiversion::multiversion;
use slackline_common::codec::{CodecError, CodecId, codec};
use slackline_common::ids::TensorId;
use slackline_common::job::{Job, OptimizerSpec};
use slackline_common::layout::{Block, Layout};
use std::ops::Range;

/// What is owed, tensor by tensor.
#[derive(Debug)]
pub struct Feedback {
    decay: f32,
    /// The factor of momentum correction, and the first step it is used at.
    momentum: Option<(f32, u64)>,
    tensors: Vec<Option<Owed>>,
    /// The sum and the velocity of the block in hand.
    sum: Vec<f32>,
    velocity: Vec<f32>,
    corrects: bool,
}

/// One tensor's accumulators, as long as the tensor.
#[derive(Debug)]
struct Owed {
    residual: Vec<f32>,
    /// Empty without momentum correction.
    velocity: Vec<f32>,
}

/// A range of one tensor's accumulators on its way to another keeper.
#[derive(Clone, Debug, PartialEq)]
pub struct Portion {
    /// The tensor's name.
    pub tensor: String,
    /// Elements of that tensor.
    pub range: Range<usize>,
    /// What is owed of them.
    pub residual: Vec<f32>,
    /// Their velocity; empty without momentum correction.
    pub velocity: Vec<f32>,
}

/// Why a portion cannot be taken over. Whoever handed it over has another model or job.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PortionError {
    /// No such tensor, or none that owes anything.
    #[error("what is owed of tensor {tensor:?} was handed over, of which nothing is kept here")]
    Tensor {
        /// Its name.
        tensor: String,
    },
    /// Elements beyond the tensor, or numbers that are not one per element.
    #[error(
        "{residual} residuals and {velocity} velocities were handed over for elements {range:?} of \
         tensor {tensor:?}, which has {elements}: one of each kept kind per element is needed"
    )]
    Length {
        /// The tensor's name.
        tensor: String,
        /// Elements named.
        range: Range<usize>,
        /// Elements there are.
        elements: usize,
        /// Residuals in the portion.
        residual: usize,
        /// Velocities in the portion.
        velocity: usize,
    },
}

impl Feedback {
    /// Nothing is owed, and nothing kept before [`keep`](Self::keep).
    pub fn new(job: &Job, layout: &Layout) -> Self {
        let momentum = match job.optimizer {
            OptimizerSpec::Momentum { momentum, .. } if job.feedback.momentum_correction => {
                Some((momentum, job.ramp.begin_step))
            }
            _ => None,
        };
        let mut tensors = Vec::new();
        tensors.resize_with(layout.tensors().len(), || None);
        let longest = layout.blocks().iter().map(|block| block.len).max().unwrap_or(0);
        Self {
            decay: job.feedback.decay,
            momentum,
            tensors,
            sum: vec![0.0; longest],
            velocity: if momentum.is_some() { vec![0.0; longest] } else { Vec::new() },
            corrects: false,
        }
    }

    /// Keeps what is owed of a tensor from now on. Once kept it stays, whatever the format.
    pub fn keep(&mut self, layout: &Layout, tensor: TensorId) {
        let elements = layout.range(tensor).len();
        let has_velocity = self.momentum.is_some();
        self.tensors[tensor.index()].get_or_insert_with(|| Owed {
            residual: vec![0.0; elements],
            velocity: if has_velocity { vec![0.0; elements] } else { Vec::new() },
        });
    }

    /// Whether anything is kept of a tensor.
    pub fn keeps(&self, tensor: TensorId) -> bool {
        self.tensors[tensor.index()].is_some()
    }

    /// Makes the sum of a block of a kept tensor, without changing what is kept. Says whether it is
    /// finite: otherwise the gradient is to be sent as it is, and nothing settled.
    ///
    /// # Panics
    /// When nothing is kept of the tensor or `gradient` is not as long as the block.
    pub fn accumulate(&mut self, block: &Block, gradient: &[f32], factor: f32, step: u64) -> bool {
        let owed = self.tensors[block.tensor.index()].as_ref().expect("a tensor that is kept");
        let range = block.range_in_tensor();
        let (residual, sum) = (&owed.residual[range.clone()], &mut self.sum[..block.len]);
        assert_eq!(gradient.len(), block.len, "one number per element of the block");
        self.corrects = false;
        match self.momentum {
            Some((momentum, begin_step)) if step >= begin_step => {
                self.corrects = true;
                let velocity = &mut self.velocity[..block.len];
                add_scaled(velocity, momentum, &owed.velocity[range], factor, gradient);
                add_scaled(sum, self.decay, residual, 1.0, velocity)
            }
            _ => add_scaled(sum, self.decay, residual, factor, gradient),
        }
    }

    /// What [`accumulate`](Self::accumulate) made, to be encoded.
    pub fn sum(&self, block: &Block) -> &[f32] {
        &self.sum[..block.len]
    }

    /// Keeps what `bytes`, the encoded sum, do not say; `is_sparse` is whether the format chose
    /// elements. Returns the new residual of the block, or `None` when the bytes are not finite:
    /// nothing has changed then.
    ///
    /// # Errors
    /// When the bytes are not a block of that format: our own encoder's fault.
    pub fn settle(
        &mut self,
        block: &Block,
        id: CodecId,
        bytes: &[u8],
        is_sparse: bool,
    ) -> Result<Option<&[f32]>, CodecError> {
        let format = codec(id);
        format.validate(bytes, block.len)?;
        if !format.is_finite(bytes) {
            return Ok(None);
        }
        let owed = self.tensors[block.tensor.index()].as_mut().expect("a tensor that is kept");
        let range = block.range_in_tensor();
        let residual = &mut owed.residual[range.clone()];
        residual.copy_from_slice(&self.sum[..block.len]);
        format.decode_add(bytes, -1.0, residual)?;
        if self.corrects {
            let velocity = &mut owed.velocity[range];
            velocity.copy_from_slice(&self.velocity[..block.len]);
            if is_sparse {
                format.for_each_sent(bytes, block.len, &mut |at| velocity[at] = 0.0);
            }
        }
        Ok(Some(residual))
    }

    /// A copy of what is owed of a range of a tensor; `None` when nothing is kept of it.
    ///
    /// # Panics
    /// When the range is beyond the tensor.
    pub fn export(
        &self,
        layout: &Layout,
        tensor: TensorId,
        range: Range<usize>,
    ) -> Option<Portion> {
        let owed = self.tensors[tensor.index()].as_ref()?;
        let velocity = if owed.velocity.is_empty() { &[] } else { &owed.velocity[range.clone()] };
        Some(Portion {
            tensor: layout.tensors()[tensor.index()].name.clone(),
            residual: owed.residual[range.clone()].to_vec(),
            velocity: velocity.to_vec(),
            range,
        })
    }

    /// Takes over a portion in place of what is kept of its range.
    ///
    /// # Errors
    /// [`PortionError`]; nothing has changed then.
    pub fn import(&mut self, layout: &Layout, portion: &Portion) -> Result<(), PortionError> {
        let Portion { tensor, range, residual, velocity } = portion;
        let position = layout.tensors().iter().position(|spec| spec.name == *tensor);
        let owed = position.and_then(|position| self.tensors[position].as_mut());
        let Some(owed) = owed else {
            return Err(PortionError::Tensor { tensor: tensor.clone() });
        };
        let elements = owed.residual.len();
        let velocities = if owed.velocity.is_empty() { 0 } else { range.len() };
        let fits = range.start <= range.end && range.end <= elements;
        if !fits || residual.len() != range.len() || velocity.len() != velocities {
            return Err(PortionError::Length {
                tensor: tensor.clone(),
                range: range.clone(),
                elements,
                residual: residual.len(),
                velocity: velocity.len(),
            });
        }
        owed.residual[range.clone()].copy_from_slice(residual);
        if velocities > 0 {
            owed.velocity[range.clone()].copy_from_slice(velocity);
        }
        Ok(())
    }
}

/// `out[i] = decay × kept[i] + factor × values[i]`, rounded after each product and after the sum.
/// Returns whether all of it is finite.
#[multiversion(targets("x86_64+avx2+fma"))]
fn add_scaled(out: &mut [f32], decay: f32, kept: &[f32], factor: f32, values: &[f32]) -> bool {
    // The largest exponent is that of NaN and infinity; one comparison for all, no branch in the loop.
    let mut special = 0;
    for ((out, kept), value) in out.iter_mut().zip(kept).zip(values) {
        let sum = decay * kept + factor * value;
        special |= u32::from(sum.to_bits() & 0x7f80_0000 == 0x7f80_0000);
        *out = sum;
    }
    special == 0
}

#[cfg(test)]
mod tests;
