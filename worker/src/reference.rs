//! The oracle: the same job in one process, without network, blocks, codecs or shards.
//!
//! A plain loop over the same batches, with the same engine, and the optimizer on whole tensors. In
//! `bsp` the distributed run must end at the same parameters up to rounding: its update of a step is
//! the mean of the seats' gradients, ours the gradient of the seats' samples together. It shares no
//! code with the road of a gradient except the engine, the data and the optimizer's arithmetic.
//!
//! With `in_flight = K` a gradient is computed on the parameters of `K - 1` steps before.
//!
//! Local mode has an oracle of its own, which walks all seats (`local`).
//!
//! Two limits. Batch norm sees the whole batch here and each seat's part there. And `ssp` and `asp`
//! have no such oracle: their result depends on the timing.

mod local;

use crate::data::order::Order;
use crate::data::{self, Dataset};
use crate::train::{self, Batch, Engine, Inputs};
use crate::trainer::WorkerError;
use slackline_common::ids::TensorId;
use slackline_common::job::{Job, Length, Reduce};
use slackline_common::layout::{Layout, TensorRole};
use slackline_common::model::initialise_all;
use slackline_common::optimizer::{BlockState, Update, apply, apply_statistic, clip_factors};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Trains `job` to its end and returns the flat parameter vector. Step `c` of an epoch works on
/// positions `c·B..(c+1)·B`, `B = workers × batch`: the concatenation of the seats' batches. In local
/// mode seat `i` walks on the `i`-th of them.
///
/// # Errors
/// As opening the data and computing a step; [`WorkerError::External`] and [`WorkerError::NoData`].
pub fn train(job: &Job, data_dir: &Path) -> Result<Vec<f32>, WorkerError> {
    let mut setting = Setting::open(job, data_dir)?;
    if let Some(local) = &job.local {
        return local::train(&mut setting, local);
    }
    let layout = setting.layout.clone();
    let mut model = Model::new(job, &layout);
    for step in 0..setting.steps {
        let indices = setting.indices(step, 0..job.global_batch());
        model.step(&mut setting, &indices, step)?;
    }
    Ok(model.parameters)
}

/// A job with its engine and data.
struct Setting<'a> {
    job: &'a Job,
    engine: Box<dyn Engine>,
    layout: Layout,
    data: Arc<dyn Dataset>,
    order: Order,
    per_epoch: u64,
    /// Of the whole job.
    steps: u64,
}

impl<'a> Setting<'a> {
    fn open(job: &'a Job, data_dir: &Path) -> Result<Self, WorkerError> {
        let no_data = || WorkerError::NoData { job: job.name.clone() };
        let spec = job.data.as_ref().ok_or_else(no_data)?;
        let engine = train::engine(&job.model)
            .ok_or_else(|| WorkerError::External { job: job.name.clone() })?;
        let data = data::open(spec, &spec.train, &job.model, data_dir)?;
        let per_epoch = data.len().div_ceil(job.global_batch());
        let steps = match job.length {
            Length::Epochs(epochs) => epochs.saturating_mul(per_epoch),
            Length::Steps(steps) => steps,
        };
        let (layout, order) = (engine.layout().clone(), Order::of(job, spec));
        Ok(Self { job, engine, layout, data, order, per_epoch, steps })
    }

    /// The samples in these places of a global step; fewer, or none, at the end of an epoch.
    fn indices(&self, step: u64, places: Range<u64>) -> Vec<u64> {
        let (epoch, within) = (step / self.per_epoch, step % self.per_epoch);
        let (start, len) = (within * self.job.global_batch(), self.data.len());
        let positions = self.order.epoch(epoch, len);
        let (first, last) = (start + places.start, (start + places.end).min(len));
        (first..last).map(|at| positions.get(at)).collect()
    }

    fn batch(&self, indices: &[u64]) -> Batch {
        let mut batch = Batch { samples: 0, inputs: empty_inputs(self.job), targets: Vec::new() };
        self.data.fill(indices, &mut batch);
        batch
    }
}

struct Model<'a> {
    layout: &'a Layout,
    parameters: Vec<f32>,
    /// The parameters before the last `in_flight - 1` steps, oldest first.
    earlier: VecDeque<Vec<f32>>,
    gradient: Vec<f32>,
    states: Vec<BlockState>,
    /// Squared norms of the last step's gradient, one per tensor.
    norms: Vec<f64>,
}

impl<'a> Model<'a> {
    fn new(job: &Job, layout: &'a Layout) -> Self {
        let tensors = (0u32..).zip(layout.tensors()).map(|(tensor, _)| TensorId(tensor));
        let states = tensors
            .map(|tensor| BlockState::new(&job.optimizer, layout.range(tensor).len()))
            .collect();
        Self {
            layout,
            parameters: initialise_all(layout, job.seed),
            earlier: VecDeque::new(),
            gradient: vec![0.0; layout.elements()],
            states,
            norms: Vec::new(),
        }
    }

    fn step(
        &mut self,
        setting: &mut Setting<'_>,
        indices: &[u64],
        step: u64,
    ) -> Result<(), WorkerError> {
        let job = setting.job;
        self.gradient.fill(0.0);
        // A mean is one gradient of all samples; a sum is one gradient of each seat's.
        let share = match job.reduce {
            Reduce::Mean => indices.len(),
            Reduce::Sum => usize::try_from(job.batch).unwrap_or(usize::MAX),
        };
        let seen = self.earlier.front().unwrap_or(&self.parameters);
        for part in indices.chunks(share.max(1)) {
            let batch = setting.batch(part);
            let weight = part.len() as f32 / indices.len() as f32;
            let (layout, gradient) = (self.layout, &mut self.gradient);
            setting.engine.gradient(seen, &batch, &mut |tensor, values| {
                let role = layout.tensors()[tensor.index()].role;
                let weight = if role == TensorRole::Statistic { weight } else { 1.0 };
                let sums = &mut gradient[layout.range(tensor)];
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
            })?;
        }
        let delay = usize::from(job.in_flight.max(1)) - 1;
        if delay > 0 {
            self.earlier.push_back(self.parameters.clone());
        }
        self.update(job, step);
        if self.earlier.len() > delay {
            self.earlier.pop_front();
        }
        Ok(())
    }

    fn update(&mut self, job: &Job, step: u64) {
        let factors = clip_factors(&job.clip, &self.norms);
        let rate = job.optimizer.learning_rate() * job.schedule.factor(step);
        self.norms.clear();
        for (position, spec) in self.layout.tensors().iter().enumerate() {
            let tensor = TensorId(u32::try_from(position).expect("at most TENSORS_MAX"));
            let range = self.layout.range(tensor);
            let (values, gradient) = (&mut self.parameters[range.clone()], &self.gradient[range]);
            match spec.role {
                TensorRole::Statistic => {
                    apply_statistic(values, gradient, 1.0);
                    self.norms.push(0.0);
                }
                TensorRole::Parameter => {
                    let clip_factor = factors.factor(position);
                    let update = Update { rate, share: 1.0, clip_factor };
                    let state = &mut self.states[position];
                    apply(&job.optimizer, state, &update, values, gradient);
                    self.norms.push(gradient.iter().map(|g| f64::from(*g) * f64::from(*g)).sum());
                }
            }
        }
    }
}

fn empty_inputs(job: &Job) -> Inputs {
    if job.model.is_text() { Inputs::Tokens(Vec::new()) } else { Inputs::Dense(Vec::new()) }
}
