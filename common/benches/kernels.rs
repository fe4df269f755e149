//! How close optimizers and codecs come to the memory of this machine, on one core.
//!
//! Run: `cargo bench -p slackline-common --bench kernels` on a quiet machine. Arrays of 64 MiB are
//! worked through in blocks of 1 MiB, as a shard does. All measures take turns within a round, so
//! that a change of the machine's mood meets all of them; best and median of the rounds are printed.
//! Without `--bench`, or with `--test`, one round on small arrays checks that everything runs.
//!
//! Traffic is counted as STREAM does: bytes the loop names, once per read and once per write. Held
//! to (DESIGN, performance): optimizers at least 0.7 of triad; codecs at least 0.8 of memcpy, both as
//! bytes of `f32` per second.
#![expect(clippy::print_stdout, reason = "a table is what this program is for")]

use slackline_common::codec::{
    CodecSpec, Draw, Encoder, Rounding, Select, ValueFormat, codec, index_bytes,
};
use slackline_common::job::OptimizerSpec;
use slackline_common::kernels;
use slackline_common::limits::BLOCK_ELEMENTS_MAX;
use slackline_common::optimizer::{BlockState, Update, apply};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Elements of an array: 64 MiB of `f32`, twice the last-level cache of the largest machine meant.
const ELEMENTS: usize = 16 << 20;
const ROUNDS: usize = 21;

/// One line of the table.
struct Measure {
    name: String,
    /// What 1.00 is in the last columns: the name of another line.
    against: &'static str,
    bytes_per_element: usize,
    run: Box<dyn FnMut()>,
    times: Vec<Duration>,
}

impl Measure {
    fn new(
        name: impl Into<String>,
        against: &'static str,
        bytes_per_element: usize,
        run: impl FnMut() + 'static,
    ) -> Self {
        let (name, run) = (name.into(), Box::new(run));
        Self { name, against, bytes_per_element, run, times: Vec::new() }
    }

    /// Bytes per second in the best and in the median round, in units of 10⁹.
    fn rates(&self, elements: usize) -> (f64, f64) {
        let mut times = self.times.clone();
        times.sort();
        let traffic = (elements * self.bytes_per_element) as f64 / 1e9;
        (traffic / times[0].as_secs_f64(), traffic / times[times.len() / 2].as_secs_f64())
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let asked = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let quick = asked("--test") || !asked("--bench");
    let (elements, rounds) = if quick { (1 << 20, 1) } else { (ELEMENTS, ROUNDS) };

    let mut measures = measures(elements);
    for round in 0..=rounds {
        for measure in &mut measures {
            let time = timed(&mut measure.run);
            // The first round only brings the pages in.
            if round > 0 {
                measure.times.push(time);
            }
        }
    }

    println!(
        "{} MiB arrays, {rounds} rounds, AVX2 bodies: {}",
        elements >> 18,
        kernels::fast_body()
    );
    println!("{:<24} {:>10} {:>10}   ratio (best, median)", "", "best GB/s", "median");
    for measure in &measures {
        let (best, median) = measure.rates(elements);
        print!("{:<24} {best:>10.2} {median:>10.2}", measure.name);
        match measures.iter().find(|other| other.name == measure.against) {
            Some(other) => {
                let (other_best, other_median) = other.rates(elements);
                let ratios = (best / other_best, median / other_median);
                println!("   {:.2} {:.2} of {}", ratios.0, ratios.1, other.name);
            }
            None => println!(),
        }
    }
    print_index_sizes();
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn timed(run: &mut dyn FnMut()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

fn measures(elements: usize) -> Vec<Measure> {
    let mut measures = vec![triad_measure(elements)];
    let (momentum, nesterov, weight_decay) = (0.9, false, 1e-4);
    let learning_rate = 1e-3;
    let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-8);
    for (name, bytes, spec) in [
        ("sgd", 12, OptimizerSpec::Sgd { learning_rate, weight_decay }),
        (
            "momentum",
            20,
            OptimizerSpec::Momentum { learning_rate, momentum, weight_decay, nesterov },
        ),
        (
            "rmsprop",
            20,
            OptimizerSpec::Rmsprop { learning_rate, alpha: 0.99, epsilon, weight_decay },
        ),
        ("adam", 28, OptimizerSpec::Adam { learning_rate, beta1, beta2, epsilon, weight_decay }),
    ] {
        measures.push(optimizer_measure(name, bytes, spec, elements));
    }
    // Both sides of a ratio to memcpy are in bytes of `f32`, so 4 a value.
    measures.push(memcpy_measure(elements));
    let (nearest, chance) = (Rounding::Nearest, Rounding::Stochastic);
    for spec in [
        CodecSpec::F32,
        CodecSpec::Bf16,
        CodecSpec::F16,
        CodecSpec::Int8 { rounding: nearest },
        CodecSpec::Int8 { rounding: chance },
        CodecSpec::Int4 { rounding: nearest },
        CodecSpec::Int4 { rounding: chance },
        CodecSpec::Sign,
        CodecSpec::TwoBit { threshold: 0.01 },
    ] {
        measures.extend(codec_measures(spec, elements));
    }
    for (density, block) in
        [(0.01, BLOCK_ELEMENTS_MAX), (0.01, 16 << 10), (0.001, BLOCK_ELEMENTS_MAX)]
    {
        measures.push(sparse_measure(density, block, elements));
    }
    let x = values(elements);
    measures.push(Measure::new("sum_of_squares", "memcpy", 4, move || {
        for block in x.chunks(BLOCK_ELEMENTS_MAX) {
            black_box(kernels::sum_of_squares(block));
        }
    }));
    measures
}

/// Values as gradients have them: small, both signs.
fn values(elements: usize) -> Vec<f32> {
    (0..elements).map(|i| ((i * 7919) % 2003) as f32 / 1e5 - 0.01).collect()
}

/// STREAM triad (McCalpin): `a[i] = b[i] + s·c[i]`.
#[multiversion::multiversion(targets("x86_64+avx+avx2+fma+f16c"))]
fn triad(a: &mut [f32], b: &[f32], s: f32, c: &[f32]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = b + s * c;
    }
}

fn triad_measure(elements: usize) -> Measure {
    let (mut a, b, c) = (vec![0.0; elements], values(elements), values(elements));
    Measure::new("triad", "", 12, move || {
        triad(&mut a, &b, black_box(0.5), &c);
        black_box(&mut a);
    })
}

fn memcpy_measure(elements: usize) -> Measure {
    let (mut to, from) = (vec![0.0; elements], values(elements));
    Measure::new("memcpy", "", 4, move || {
        let blocks = to.chunks_mut(BLOCK_ELEMENTS_MAX).zip(from.chunks(BLOCK_ELEMENTS_MAX));
        blocks.for_each(|(to, from)| to.copy_from_slice(from));
        black_box(&mut to);
    })
}

fn optimizer_measure(name: &str, bytes: usize, spec: OptimizerSpec, elements: usize) -> Measure {
    let (mut w, g) = (values(elements), values(elements));
    let mut states: Vec<BlockState> =
        w.chunks(BLOCK_ELEMENTS_MAX).map(|block| BlockState::new(&spec, block.len())).collect();
    Measure::new(name, "triad", bytes, move || {
        let blocks = w.chunks_mut(BLOCK_ELEMENTS_MAX).zip(g.chunks(BLOCK_ELEMENTS_MAX));
        for ((w, g), state) in blocks.zip(&mut states) {
            apply(&spec, state, &Update::whole(spec.learning_rate()), w, g);
        }
        black_box(&mut w);
    })
}

fn codec_measures(spec: CodecSpec, elements: usize) -> [Measure; 2] {
    let x = values(elements);
    let draw = Draw { seed: 1 };
    let mut encoder = Encoder::default();
    let (mut encoded, mut ends) = (Vec::new(), vec![0]);
    let mut id = None;
    for block in x.chunks(BLOCK_ELEMENTS_MAX) {
        id = Some(encoder.encode(&spec, draw, block, &mut encoded));
        ends.push(encoded.len());
    }
    let codec = codec(id.expect("at least one block"));
    let mut sum = vec![0.0; elements];
    let mut out = Vec::with_capacity(encoded.len());
    [
        Measure::new(format!("{spec} encode"), "memcpy", 4, move || {
            out.clear();
            for block in x.chunks(BLOCK_ELEMENTS_MAX) {
                encoder.encode(&spec, draw, block, &mut out);
            }
            black_box(&mut out);
        }),
        Measure::new(format!("{spec} decode_add"), "memcpy", 4, move || {
            for (sum, ends) in sum.chunks_mut(BLOCK_ELEMENTS_MAX).zip(ends.windows(2)) {
                let bytes = &encoded[ends[0]..ends[1]];
                codec.decode_add(bytes, 1e-3, sum).expect("encoded above with this length");
            }
            black_box(&mut sum);
        }),
    ]
}

/// What a worker does to a gradient: add it to the residual, select, code, keep the rest. The bytes go
/// back in afterwards, so that every round finds the same numbers.
fn sparse_measure(density: f32, block: usize, elements: usize) -> Measure {
    let spec = CodecSpec::TopK { density, select: Select::Exact, values: ValueFormat::Bf16 };
    let mut residual = values(elements);
    let mut encoder = Encoder::default();
    let mut out = Vec::new();
    let name = format!("top_k {}% of {}Ki", density * 100.0, block >> 10);
    Measure::new(name, "memcpy", 4, move || {
        for block in residual.chunks_mut(block) {
            out.clear();
            let id = encoder.encode(&spec, Draw { seed: 1 }, block, &mut out);
            codec(id).decode_add(&out, -1.0, block).expect("encoded with this length");
            codec(id).decode_add(&out, 1.0, block).expect("encoded with this length");
        }
        black_box(&mut residual);
    })
}

/// What positions cost against their entropy.
fn print_index_sizes() {
    let elements = BLOCK_ELEMENTS_MAX;
    for density in [0.001, 0.01, 0.1] {
        let chosen = |at: &u32| {
            slackline_common::random::hash(1, 1, u64::from(*at)) as f64 / 2f64.powi(64) < density
        };
        let positions: Vec<u32> = (0u32..).take(elements).filter(chosen).collect();
        let p = positions.len() as f64 / elements as f64;
        let bits = -(p * p.log2() + (1.0 - p) * (1.0 - p).log2()) * elements as f64;
        let bytes = index_bytes(&positions, elements);
        println!(
            "positions of {:.1} %: {bytes} bytes, {:.3} x their entropy",
            density * 100.0,
            bytes as f64 * 8.0 / bits
        );
    }
}
