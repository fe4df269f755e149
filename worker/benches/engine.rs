//! Training steps of the CPU engine: forward, backward and a plain gradient-descent update.
//!
//! `cargo bench -p slackline-worker --bench engine -- [MODEL [SECONDS]]` prints one JSON line per
//! model with the samples per second of CPU time, which is what a busy machine can be asked for.
//! `tests/oracles/bench_engine.py` runs it in turn with PyTorch.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use slackline_common::layout::Layout;
use slackline_common::model::{ModelSpec, initialise_all};
use slackline_common::random::symmetric_unit;
use slackline_worker::train::{Batch, Engine, Inputs, engine};

const BATCH: usize = 64;
const RATE: f32 = 0.01;
const WARM_UP_STEPS: usize = 3;

fn main() {
    // `cargo bench` adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let seconds = words.get(1).map_or(3.0, |word| word.parse().expect("SECONDS is a number"));
    for (name, spec) in models() {
        if words.first().is_none_or(|wanted| wanted == name) {
            let (rate, loss) = measure(&spec, seconds);
            println!(
                r#"{{"engine":"slackline","model":"{name}","batch":{BATCH},"samples_per_cpu_second":{rate:.1},"loss":{loss:.4}}}"#
            );
        }
    }
}

fn models() -> Vec<(&'static str, ModelSpec)> {
    vec![
        ("mlp", ModelSpec::Mlp { widths: vec![784, 1024, 1024, 10] }),
        (
            "lenet",
            ModelSpec::Lenet { input: [1, 28, 28], channels: [20, 50], hidden: 500, classes: 10 },
        ),
        ("resnet20", ModelSpec::Resnet20 { input: [3, 32, 32], width: 16, classes: 10 }),
        ("transformer", ModelSpec::Transformer { context: 64, width: 128, heads: 4, layers: 2 }),
    ]
}

/// Samples per CPU second over at least `seconds` of them, and the last loss.
fn measure(spec: &ModelSpec, seconds: f64) -> (f64, f32) {
    let mut engine = engine(spec).expect("the models above are sound");
    let layout = engine.layout().clone();
    let mut front = initialise_all(&layout, 1);
    let mut back = front.clone();
    let batch = batch(spec);
    for _ in 0..WARM_UP_STEPS {
        step(&mut *engine, &layout, &mut front, &mut back, &batch);
    }
    let start = cpu_seconds();
    let mut samples = 0;
    loop {
        let loss = step(&mut *engine, &layout, &mut front, &mut back, &batch);
        samples += BATCH;
        let passed = cpu_seconds() - start;
        if passed >= seconds {
            return (samples as f64 / passed, loss);
        }
    }
}

/// One step from `front` to `back`, then the two change places.
fn step(
    engine: &mut dyn Engine,
    layout: &Layout,
    front: &mut Vec<f32>,
    back: &mut Vec<f32>,
    batch: &Batch,
) -> f32 {
    let loss = engine
        .gradient(front, batch, &mut |tensor, gradient| {
            let range = layout.range(tensor);
            let weights = back[range.clone()].iter_mut().zip(&front[range]);
            weights.zip(gradient).for_each(|((to, from), g)| *to = from - RATE * g);
        })
        .expect("the batch fits");
    std::mem::swap(front, back);
    loss
}

fn batch(spec: &ModelSpec) -> Batch {
    let len = BATCH * spec.input_len().expect("not external");
    let predictions = BATCH * spec.predictions();
    let classes = spec.classes().expect("not external") as usize;
    let class = |i: usize| u32::try_from(i * 5 % classes).expect("few classes");
    Batch {
        samples: BATCH,
        inputs: if spec.is_text() {
            Inputs::Tokens((0..len).map(|i| class(i * 17)).collect())
        } else {
            Inputs::Dense((0..len as u64).map(|i| symmetric_unit(1, 1, i)).collect())
        },
        targets: (0..predictions).map(class).collect(),
    }
}

/// CPU time of this process's one thread: the kernel keeps it in nanoseconds.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux with schedstat");
    let nanoseconds = text.split(' ').next().and_then(|word| word.parse::<u64>().ok());
    nanoseconds.expect("the first number is the time on a CPU") as f64 / 1e9
}
