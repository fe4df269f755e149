//! The oracle of local mode in `bsp` rounds: all seats in one process, one after the other.
//!
//! Whole vectors and plain loops; a push is the weighted mean of differences in double precision.
//! Shared with the real road: the engine, the data, the optimizer's arithmetic, which tensors a
//! fragment has, and when a seat is pulled towards its anchor.

use super::Setting;
use crate::core::local::{AnchorDraw, Fragments};
use crate::trainer::WorkerError;
use slackline_common::ids::{SeatId, TensorId};
use slackline_common::job::{Job, Local, OptimizerSpec};
use slackline_common::layout::{Layout, TensorRole};
use slackline_common::model::initialise_all;
use slackline_common::optimizer::{BlockState, Update, apply, apply_statistic, clip_factors};
use std::ops::Range;

/// Trains the job to its end and returns the servers' parameters.
pub(super) fn train(setting: &mut Setting<'_>, local: &Local) -> Result<Vec<f32>, WorkerError> {
    let layout = setting.layout.clone();
    let mut servers = Servers::new(setting.job, &layout);
    let mut seats = (0..setting.job.workers)
        .map(|seat| Seat::new(setting.job, local, &layout, SeatId(seat), &servers.parameters))
        .collect::<Result<Vec<_>, WorkerError>>()?;
    let fragments = Fragments::balance(&layout, local.fragments);
    let everything: Vec<TensorId> = tensors(&layout).collect();
    let every = u64::from(local.steps) / fragments.count() as u64;
    let mut long_pushes = 0;
    // What is pushed and not yet taken.
    let mut open: Option<(Vec<TensorId>, f32)> = None;
    for step in 0..setting.steps {
        for seat in &mut seats {
            seat.step(setting, local, step)?;
        }
        let is_last = step + 1 == setting.steps;
        let into = (step + 1).checked_sub(local.begin_step).filter(|into| *into > 0);
        let pushes = into.is_none_or(|into| (into + u64::from(local.delay)).is_multiple_of(every));
        let takes = into.is_none_or(|into| into.is_multiple_of(every));
        if is_last {
            take(&mut seats, &servers, open.take(), &layout);
            servers.update(setting.job, &layout, &mut seats, &everything);
        } else if pushes {
            let (part, mix) = match into {
                None => (everything.clone(), 0.0),
                Some(_) => {
                    long_pushes += 1;
                    let turn = (long_pushes - 1) % fragments.count();
                    (fragments.tensors(turn).to_vec(), local.mix)
                }
            };
            servers.update(setting.job, &layout, &mut seats, &part);
            open = Some((part, mix));
        }
        if takes {
            take(&mut seats, &servers, open.take(), &layout);
        }
    }
    Ok(servers.parameters)
}

/// Every seat takes what the servers have of a part: `mix × own + (1 - mix) × global`.
fn take(
    seats: &mut [Seat],
    servers: &Servers,
    open: Option<(Vec<TensorId>, f32)>,
    layout: &Layout,
) {
    let Some((part, mix)) = open else { return };
    for at in part.iter().flat_map(|tensor| layout.range(*tensor)) {
        for seat in &mut *seats {
            seat.anchor[at] = servers.parameters[at];
            seat.parameters[at] = mix * seat.parameters[at] + (1.0 - mix) * seat.anchor[at];
        }
    }
}

fn tensors(layout: &Layout) -> impl Iterator<Item = TensorId> + use<> {
    let count = u32::try_from(layout.tensors().len()).expect("at most TENSORS_MAX");
    (0..count).map(TensorId)
}

fn role(layout: &Layout, tensor: TensorId) -> TensorRole {
    layout.tensors()[tensor.index()].role
}

fn states(spec: &OptimizerSpec, layout: &Layout) -> Vec<BlockState> {
    tensors(layout).map(|tensor| BlockState::new(spec, layout.range(tensor).len())).collect()
}

struct Seat {
    id: SeatId,
    parameters: Vec<f32>,
    anchor: Vec<f32>,
    states: Vec<BlockState>,
    draw: Option<AnchorDraw>,
    /// Since the last push.
    samples: usize,
}

impl Seat {
    fn new(
        job: &Job,
        local: &Local,
        layout: &Layout,
        id: SeatId,
        first: &[f32],
    ) -> Result<Self, WorkerError> {
        Ok(Self {
            id,
            parameters: first.to_vec(),
            anchor: first.to_vec(),
            states: states(&local.inner, layout),
            draw: local.anchor.map(|pull| AnchorDraw::new(pull, job.seed, id)).transpose()?,
            samples: 0,
        })
    }

    /// This seat's part of a global step; nothing where the epoch has no samples left for it.
    fn step(
        &mut self,
        setting: &mut Setting<'_>,
        local: &Local,
        step: u64,
    ) -> Result<(), WorkerError> {
        let batch = u64::from(setting.job.batch);
        let first = u64::from(self.id.0) * batch;
        let indices = setting.indices(step, first..first + batch);
        if indices.is_empty() {
            return Ok(());
        }
        self.samples += indices.len();
        let batch = setting.batch(&indices);
        let layout = setting.layout.clone();
        let mut gradient = vec![0.0; layout.elements()];
        setting.engine.gradient(&self.parameters, &batch, &mut |tensor, values| {
            gradient[layout.range(tensor)].copy_from_slice(values);
        })?;
        let rate = local.inner.learning_rate() * setting.job.schedule.factor(step);
        let pull = self.draw.and_then(|draw| draw.weight(step)).unwrap_or(0.0);
        for tensor in tensors(&layout) {
            let range = layout.range(tensor);
            let (values, gradient) =
                (&mut self.parameters[range.clone()], &gradient[range.clone()]);
            if role(&layout, tensor) == TensorRole::Statistic {
                apply_statistic(values, gradient, 1.0);
                continue;
            }
            let state = &mut self.states[tensor.index()];
            apply(&local.inner, state, &Update::whole(rate), values, gradient);
            for (value, anchor) in values.iter_mut().zip(&self.anchor[range]) {
                *value += pull * (anchor - *value);
            }
        }
        Ok(())
    }
}

/// What all servers together hold.
struct Servers {
    parameters: Vec<f32>,
    states: Vec<BlockState>,
    /// Squared norms of the last pseudo-gradients, one per tensor.
    norms: Vec<f64>,
}

impl Servers {
    fn new(job: &Job, layout: &Layout) -> Self {
        Self {
            parameters: initialise_all(layout, job.seed),
            states: states(&job.optimizer, layout),
            norms: Vec::new(),
        }
    }

    /// One outer step with the seats' progress in a part; a seat without samples has no weight.
    fn update(&mut self, job: &Job, layout: &Layout, seats: &mut [Seat], part: &[TensorId]) {
        let total: usize = seats.iter().map(|seat| seat.samples).sum();
        if total == 0 {
            return;
        }
        let factors = clip_factors(&job.clip, &self.norms);
        self.norms.resize(layout.tensors().len(), 0.0);
        for tensor in part {
            let range = layout.range(*tensor);
            let progress = progress(seats, range.clone(), total);
            let values = &mut self.parameters[range];
            if role(layout, *tensor) == TensorRole::Statistic {
                apply_statistic(values, &progress, -1.0);
                continue;
            }
            self.norms[tensor.index()] =
                progress.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
            let clip_factor = factors.factor(tensor.index());
            let rate = job.optimizer.learning_rate();
            let update = Update { rate, share: 1.0, clip_factor };
            let state = &mut self.states[tensor.index()];
            apply(&job.optimizer, state, &update, values, &progress);
        }
        seats.iter_mut().for_each(|seat| seat.samples = 0);
    }
}

/// The mean of `anchor - parameters` over the seats, weighted by samples.
fn progress(seats: &[Seat], range: Range<usize>, total: usize) -> Vec<f32> {
    let mean = |at: usize| {
        let of = |seat: &Seat| {
            seat.samples as f64 * (f64::from(seat.anchor[at]) - f64::from(seat.parameters[at]))
        };
        seats.iter().map(of).sum::<f64>() / total as f64
    };
    #[expect(clippy::cast_possible_truncation, reason = "rounding is what is wanted")]
    range.map(|at| mean(at) as f32).collect()
}
