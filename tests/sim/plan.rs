//! What a seed decides before the run: the job, the model, the machines, the network and who dies.

use crate::random::Random;
use slackline_common::codec::{CodecId, CodecSpec, Rounding, Select, ValueFormat};
use slackline_common::ids::{Incarnation, SeatId, ShardId};
use slackline_common::job::{
    Clip, Compress, CompressRule, Direction, Evaluate, Feedback, Job, Length, Mode, OptimizerSpec,
    Ramp, Reduce, Schedule, Wire,
};
use slackline_common::layout::{Init, Layout, TensorSpec};
use slackline_common::model::ModelSpec;
use slackline_common::placement::Placement;
use slackline_common::random::{hash, symmetric_unit};
use slackline_server::core::EngineSpec;
use std::fmt;
use std::sync::Arc;

/// Every seat has one life: a worker that is killed does not come back.
pub(crate) const LIFE: Incarnation = Incarnation(1);

/// The modes a seed chooses from: consecutive seeds take turns.
pub(crate) const MODES: [(&str, Mode); 6] = [
    ("bsp", Mode::Bsp),
    ("ssp 0", Mode::Ssp { staleness: 0 }),
    ("ssp 1", Mode::Ssp { staleness: 1 }),
    ("ssp 3", Mode::Ssp { staleness: 3 }),
    ("ssp 8", Mode::Ssp { staleness: 8 }),
    ("asp", Mode::Asp { scale_by_staleness: false }),
];

/// What one seat does.
#[derive(Clone, Debug)]
pub(crate) struct SeatPlan {
    /// Steps until it leaves.
    pub(crate) steps: u64,
    /// Shortest and longest computation of a step, in ticks.
    pub(crate) compute: (u64, u64),
    /// When it is killed, if it is.
    pub(crate) dies_at: Option<u64>,
    /// Whether it pulls for the next step before its pushes are acknowledged.
    pub(crate) is_eager: bool,
}

/// What the network does to a message. Delays are drawn one by one, so messages overtake each other.
#[derive(Clone, Debug)]
pub(crate) struct NetworkPlan {
    pub(crate) delay_max: u64,
    /// Messages in a hundred that take ten times as long.
    pub(crate) late_percent: u64,
    pub(crate) loss_percent: u64,
    pub(crate) duplicate_percent: u64,
    /// Released pulls in a hundred that are read some time after.
    pub(crate) slow_read_percent: u64,
    /// Workers ask again for what is slow. Otherwise they do so only for what the network lost: a
    /// shard that forgets a pull then cannot hide behind the repetition.
    pub(crate) is_impatient: bool,
    /// Ticks from a death until the coordinator knows.
    pub(crate) lease: u64,
}

/// One schedule.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// The mode's name in a summary.
    pub(crate) label: &'static str,
    pub(crate) job: Arc<Job>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) placement: Placement,
    pub(crate) seats: Vec<SeatPlan>,
    pub(crate) network: NetworkPlan,
    pub(crate) blocks_per_part: usize,
    /// How gradients are coded.
    pub(crate) up: CodecId,
    /// Gradients are whole numbers, summed: parameters are exact. Otherwise they are fractions whose
    /// sum depends on the order of the additions (`bsp` alone).
    pub(crate) is_exact: bool,
    /// Pushes in a hundred that have no samples.
    pub(crate) empty_percent: u64,
}

impl Plan {
    pub(crate) fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let (label, mode) = MODES[(seed % MODES.len() as u64) as usize];
        let workers = random.between(2, 6) as u16;
        let shards = random.between(1, 3) as u16;
        let is_exact = mode != Mode::Bsp || random.chance(25);
        let layout = layout(&mut random);
        let up = if is_exact { CodecId::PLAIN[random.below(3) as usize] } else { CodecId::F32 };
        Self {
            seed,
            label,
            job: Arc::new(Job {
                compress: compress(&mut Random::new(seed, 1)),
                ..job(mode, workers, shards, is_exact)
            }),
            placement: Placement::balance(&layout, shards),
            layout: Arc::new(layout),
            seats: seats(&mut random, workers),
            network: network(&mut random),
            blocks_per_part: random.between(1, 3) as usize,
            up,
            is_exact,
            empty_percent: if random.chance(30) { 15 } else { 0 },
        }
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        (0..self.placement.shards()).map(ShardId)
    }

    /// What one shard is made for.
    pub(crate) fn spec(&self, shard: ShardId) -> EngineSpec {
        EngineSpec {
            job: Arc::clone(&self.job),
            layout: Arc::clone(&self.layout),
            shard,
            shards: self.placement.shards(),
            seats: (0..self.job.workers).map(|seat| (SeatId(seat), LIFE)).collect(),
        }
    }

    /// The samples behind a seat's step.
    pub(crate) fn samples(&self, seat: SeatId, step: u64) -> u32 {
        let luck = hash(self.seed, 1 + u64::from(seat.0), step);
        if luck % 100 < self.empty_percent { 0 } else { 1 + (luck >> 32) as u32 % 6 }
    }

    /// One element of the gradient of a seat's step.
    pub(crate) fn gradient(&self, seat: SeatId, step: u64, element: usize) -> f32 {
        let stream = (1 + u64::from(seat.0)) << 32 | step;
        if self.is_exact {
            // -8..=8 is exact in every codec, and so is any sum of a run of them in f32.
            (hash(self.seed, stream, element as u64) % 17) as f32 - 8.0
        } else {
            symmetric_unit(self.seed, stream, element as u64)
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<_> = self.seats.iter().map(|seat| seat.steps).collect();
        let deaths: Vec<_> = self.seats.iter().map(|seat| seat.dies_at).collect();
        write!(
            f,
            "seed {}: {}, {} workers with steps {steps:?}, {} shards, {} blocks, {:?}, deaths {deaths:?}",
            self.seed,
            self.label,
            self.seats.len(),
            self.placement.shards(),
            self.layout.blocks().len(),
            self.network,
        )
    }
}

/// One to five small tensors; one in eight is cut into two blocks.
fn layout(random: &mut Random) -> Layout {
    let tensors = random.between(1, 5);
    let tensor = |i| {
        let len = if random.chance(12) { random.between(257, 300) } else { random.between(1, 12) };
        TensorSpec::parameter(format!("t{i}"), &[len], Init::Ones)
    };
    Layout::new((0..tensors).map(tensor).collect()).unwrap()
}

fn job(mode: Mode, workers: u16, servers: u16, is_exact: bool) -> Job {
    let optimizer = if is_exact {
        OptimizerSpec::Add { learning_rate: 1.0 }
    } else {
        OptimizerSpec::Sgd { learning_rate: LEARNING_RATE, weight_decay: 0.0 }
    };
    Job {
        name: "simulated".to_owned(),
        mode,
        workers,
        servers,
        seed: 7,
        length: Length::Steps(u64::MAX),
        batch: 4,
        reduce: if is_exact { Reduce::Sum } else { Reduce::Mean },
        model: ModelSpec::External,
        data: None,
        optimizer,
        schedule: Schedule::default(),
        clip: Clip::default(),
        wire: Wire::default(),
        compress: Compress::default(),
        feedback: Feedback::default(),
        ramp: Ramp::default(),
        local: None,
        in_flight: 1,
        evaluate: Evaluate::default(),
    }
}

/// In a third of the plans parameters come down as deltas, in one of several formats.
fn compress(random: &mut Random) -> Compress {
    if !random.chance(33) {
        return Compress::Off;
    }
    let specs = [
        CodecSpec::Bf16,
        CodecSpec::Int8 { rounding: Rounding::Stochastic },
        CodecSpec::Sign,
        CodecSpec::TopK { density: 0.2, select: Select::Exact, values: ValueFormat::Int4 },
    ];
    let codec = specs[random.below(4) as usize];
    let (pattern, direction, elements_min) = ("*".to_owned(), Direction::Down, 0);
    Compress::Rules(vec![CompressRule { pattern, direction, elements_min, codec }])
}

/// The rate of plans that are not exact.
pub(crate) const LEARNING_RATE: f32 = 0.1;

/// One seat is ten times slower than the others; in a third of the runs each seat has its own number
/// of steps, in a third somebody is killed.
fn seats(random: &mut Random, workers: u16) -> Vec<SeatPlan> {
    let slow = random.below(workers.into()) as usize;
    let steps = random.between(5, 20);
    let own_steps = random.chance(33);
    let quickest = random.between(1, 40);
    let mut seats: Vec<_> = (0..usize::from(workers))
        .map(|seat| {
            let factor = if seat == slow { 10 } else { 1 };
            SeatPlan {
                steps: if own_steps { random.between(5, 20) } else { steps },
                compute: (quickest * factor, quickest * 3 * factor),
                dies_at: None,
                is_eager: random.chance(50),
            }
        })
        .collect();
    if random.chance(33) {
        // A run lasts about as long as its slowest seat computes.
        let end = steps * quickest * 20;
        for _ in 0..random.between(1, if workers > 3 { 2 } else { 1 }) {
            seats[random.below(workers.into()) as usize].dies_at = Some(random.between(1, end));
        }
    }
    seats
}

fn network(random: &mut Random) -> NetworkPlan {
    NetworkPlan {
        delay_max: random.between(2, 60),
        late_percent: random.below(10),
        loss_percent: if random.chance(50) { random.between(1, 25) } else { 0 },
        duplicate_percent: if random.chance(50) { random.between(1, 30) } else { 0 },
        slow_read_percent: if random.chance(30) { 40 } else { 0 },
        is_impatient: random.chance(40),
        lease: random.between(50, 2000),
    }
}
