//! What is trained and how: the job, known to the coordinator alone and handed to everyone.
//!
//! These types are the promise; `config::job` turns a TOML file into them and checks every rule, so
//! code that holds a [`Job`] never checks again. Their serde form is for the wire: bincode cannot
//! read internally tagged enums, so no type here is one.

mod exchange;

pub use self::exchange::{
    AnchorPull, Compress, CompressRule, Direction, Feedback, LADDER, Local, Ramp,
    SMALL_TENSOR_ELEMENTS, TensorCoding, matches, rung_coding,
};

use crate::ids::Fingerprint;
use crate::layout::Dtype;
use crate::model::ModelSpec;
use crate::wire::message;
use serde::{Deserialize, Serialize};

/// A checked job.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Job {
    /// Name of the run: letters, digits, `-`, `_` and `.`; it becomes a folder.
    pub name: String,
    /// How far workers may drift apart.
    pub mode: Mode,
    /// Seats. Training starts when this many workers are present.
    pub workers: u16,
    /// Servers. Training starts when this many are present.
    pub servers: u16,
    /// Seed of the first values, the shuffles and all random rounding.
    pub seed: u64,
    /// When to stop.
    pub length: Length,
    /// Samples per worker and step.
    pub batch: u32,
    /// How contributions of one step become one update.
    pub reduce: Reduce,
    /// What is trained.
    pub model: ModelSpec,
    /// What it is trained on; absent for a job that raw clients drive.
    pub data: Option<DataSpec>,
    /// The server's optimizer.
    pub optimizer: OptimizerSpec,
    /// The learning rate over time.
    pub schedule: Schedule,
    /// Gradient clipping.
    pub clip: Clip,
    /// Number formats on the wire.
    pub wire: Wire,
    /// When the model is tested.
    pub evaluate: Evaluate,
    /// How tensors are coded.
    pub compress: Compress,
    /// What becomes of what lossy codecs hold back.
    pub feedback: Feedback,
    /// The density of sparse codecs over time.
    pub ramp: Ramp,
    /// Present in `mode = "local"`: a step of the servers is then a round, and `mode` is how far apart
    /// rounds may drift.
    pub local: Option<Local>,
    /// Steps of a worker under way at once, from 1: step `c` is computed on parameters that hold step
    /// `c - in_flight`.
    pub in_flight: u16,
}

impl Job {
    /// Samples of one global step: `workers × batch`.
    pub fn global_batch(&self) -> u64 {
        u64::from(self.workers) * u64::from(self.batch)
    }

    /// Samples of one step of the servers: those of a global step, times the local steps from one
    /// push to the next.
    pub fn server_step_samples(&self) -> u64 {
        let steps = self.local.map_or(1, |local| local.steps / u32::from(local.fragments.max(1)));
        self.global_batch() * u64::from(steps.max(1))
    }

    /// The word in the job file.
    pub const fn mode_name(&self) -> &'static str {
        if self.local.is_some() { "local" } else { self.mode.name() }
    }

    /// A hash of every field (of the job's control-message bytes), for comparing runs and refusing
    /// mixed clusters.
    pub fn hash(&self) -> Fingerprint {
        Fingerprint::of(&message::encode(self).expect("a job is small plain data"))
    }
}

/// Consistency (docs/CONSISTENCY.md): when a worker at step `c` may start, and when a push counts.
/// In the job file: `mode = "bsp" | "ssp" | "asp" | "local"` with `staleness` beside it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// When every live seat has finished step `c - 1`; one mean per step, in seat order.
    Bsp,
    /// When the slowest live seat's clock is at least `c - staleness`; applied on arrival
    /// (Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    /// Server", NIPS 2013).
    Ssp {
        /// How many steps a worker may be ahead of the slowest.
        staleness: u64,
    },
    /// Always; applied on arrival.
    Asp {
        /// Divide the rate by `max(1, versions since the gradient's parameters)`.
        scale_by_staleness: bool,
    },
}

impl Mode {
    /// How far ahead of the slowest seat a worker may start a step; `None` is without bound.
    pub const fn bound(self) -> Option<u64> {
        match self {
            Self::Bsp => Some(0),
            Self::Ssp { staleness } => Some(staleness),
            Self::Asp { .. } => None,
        }
    }

    /// The word in the job file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bsp => "bsp",
            Self::Ssp { .. } => "ssp",
            Self::Asp { .. } => "asp",
        }
    }
}

/// How long a job runs.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// Whole passes over the training data.
    Epochs(u64),
    /// Global steps of `workers × batch` samples; `u64::MAX` for a job that its clients end.
    Steps(u64),
}

/// How one step's contributions become one update.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reduce {
    /// Mean weighted by declared sample counts. On arrival (`ssp`, `asp`) a push moves the model by
    /// its share `samples / (workers × batch)` of the rate.
    #[default]
    Mean,
    /// Plain sum. On arrival a push moves the model by the full rate.
    Sum,
}

/// Where samples come from and how they are read.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct DataSpec {
    /// File format of both parts.
    pub format: DataFormat,
    /// Training part.
    pub train: DataSource,
    /// Test part; absent means no test accuracy.
    pub test: Option<DataSource>,
    /// Inputs become `(x × scale - mean) / deviation`.
    pub scale: f32,
    /// See `scale`.
    pub mean: f32,
    /// See `scale`; above 0.
    pub deviation: f32,
    /// New seeded order of the training samples each epoch.
    pub shuffle: bool,
}

/// A data file format.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataFormat {
    /// The MNIST family: one file of images, one of labels; plain or gzip.
    Idx,
    /// CIFAR-10 binary: one label byte and 3072 pixel bytes per record.
    Cifar,
    /// Numbers separated by commas, the class in the last column; a header line is allowed.
    Csv,
    /// `label index:value …`, indices from 1.
    Libsvm,
    /// NumPy archive with arrays `x` (`[n, …]`) and `y` (`[n]`).
    Npz,
    /// Raw bytes; a sample is a window of `context + 1` of them.
    Text,
}

/// Where one part of the data lies.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataSource {
    /// Built into the worker: `digits-train`, `digits-test`.
    Embedded(String),
    /// Files on each worker's disk, relative to its `data_dir`. For `idx`: images, then labels.
    Files(Vec<String>),
}

/// The server's optimizer. Formulas and sources: `optimizer`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerSpec {
    /// `w += rate × g`: key-value accumulation, no gradient descent.
    Add {
        /// Factor of every push.
        learning_rate: f32,
    },
    /// Plain gradient descent.
    Sgd {
        /// Base rate, scaled by the schedule.
        learning_rate: f32,
        /// Added to the gradient as `weight_decay × w`.
        weight_decay: f32,
    },
    /// Heavy-ball momentum as PyTorch has it: `m = momentum·m + g; w -= rate·m`.
    Momentum {
        /// Base rate.
        learning_rate: f32,
        /// Decay of the velocity.
        momentum: f32,
        /// Added to the gradient.
        weight_decay: f32,
        /// `w -= rate·(g + momentum·m)` instead.
        nesterov: bool,
    },
    /// Duchi et al., 2011.
    Adagrad {
        /// Base rate.
        learning_rate: f32,
        /// Added to the root.
        epsilon: f32,
        /// Added to the gradient.
        weight_decay: f32,
    },
    /// Tieleman and Hinton, 2012.
    Rmsprop {
        /// Base rate.
        learning_rate: f32,
        /// Decay of the mean square.
        alpha: f32,
        /// Added to the root.
        epsilon: f32,
        /// Added to the gradient.
        weight_decay: f32,
    },
    /// Kingma and Ba, 2015; weight decay added to the gradient.
    Adam {
        /// Base rate.
        learning_rate: f32,
        /// Decay of the mean.
        beta1: f32,
        /// Decay of the mean square.
        beta2: f32,
        /// Added to the root.
        epsilon: f32,
        /// Added to the gradient.
        weight_decay: f32,
    },
    /// Loshchilov and Hutter, 2019; weight decay apart from the gradient.
    Adamw {
        /// Base rate.
        learning_rate: f32,
        /// Decay of the mean.
        beta1: f32,
        /// Decay of the mean square.
        beta2: f32,
        /// Added to the root.
        epsilon: f32,
        /// `w -= rate·weight_decay·w`.
        weight_decay: f32,
    },
}

/// The factor of the base learning rate at a global step. Runs on the server, so it does not drift
/// with the number of workers.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Schedule {
    /// Shape after the warm-up.
    pub shape: ScheduleShape,
    /// Steps of linear rise from `1 / warmup_steps` to 1.
    pub warmup_steps: u64,
}

/// Shape of a schedule.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleShape {
    /// Always 1.
    #[default]
    Constant,
    /// Multiplied by `factor` every `every_steps`.
    Step {
        /// Steps between drops.
        every_steps: u64,
        /// Factor of a drop.
        factor: f32,
    },
    /// Half a cosine from 1 to `floor` over `total_steps` (Loshchilov and Hutter, SGDR, 2017).
    Cosine {
        /// Steps from 1 to `floor`, warm-up included.
        total_steps: u64,
        /// Factor at the end and after.
        floor: f32,
    },
}

/// Gradient clipping on the server, by the norms of the last step (the current step's norm is known
/// only after every shard has its part). 0 is off.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Clip {
    /// Largest norm of one tensor's gradient.
    pub per_tensor: f32,
    /// Largest norm of the whole gradient.
    pub global_norm: f32,
}

impl Clip {
    /// Whether pushes must carry the last step's norms.
    pub fn is_on(&self) -> bool {
        self.per_tensor > 0.0 || self.global_norm > 0.0
    }
}

/// Number formats on the wire. A tensor that front ends hold in `f16` or `bf16` uses that at most.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Wire {
    /// Gradients, worker to server.
    pub up: Dtype,
    /// Parameters, server to worker.
    pub down: Dtype,
}

/// When the model is tested on the test part, by the worker in the lowest live seat.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Evaluate {
    /// Every so many of its own steps; 0 is only at the end.
    pub every_steps: u64,
}
