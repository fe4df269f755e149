//! Whole models through the door that workers use.
#![expect(clippy::cast_possible_truncation, reason = "small numbers of a test")]

use super::differences::numbers;
use super::{Batch, Engine, Inputs, TrainError, engine};
use slackline_common::ids::TensorId;
use slackline_common::layout::TensorRole;
use slackline_common::model::{ModelSpec, initialise_all};
use slackline_common::random;

/// One small model of every kind.
fn models() -> Vec<ModelSpec> {
    vec![
        ModelSpec::Softmax { inputs: 12, classes: 5 },
        ModelSpec::Mlp { widths: vec![9, 16, 11, 4] },
        ModelSpec::Lenet { input: [2, 17, 20], channels: [3, 9], hidden: 12, classes: 3 },
        ModelSpec::Resnet20 { input: [3, 9, 10], width: 4, classes: 3 },
        ModelSpec::Transformer { context: 7, width: 12, heads: 3, layers: 2 },
    ]
}

/// Numbers, or letters of a small alphabet so that there is something to learn.
fn batch(spec: &ModelSpec, samples: usize, seed: u64) -> Batch {
    let inputs = samples * spec.input_len().unwrap();
    let predictions = samples * spec.predictions();
    let number = |stream, i: usize, below: u32| {
        (random::hash(seed, stream, i as u64) % u64::from(below)) as u32
    };
    let classes = spec.classes().unwrap();
    Batch {
        samples,
        inputs: if spec.is_text() {
            Inputs::Tokens((0..inputs).map(|i| number(1, i, 9)).collect())
        } else {
            Inputs::Dense((0..inputs as u64).map(|i| random::symmetric_unit(seed, 2, i)).collect())
        },
        targets: (0..predictions).map(|i| number(3, i, classes.min(9))).collect(),
    }
}

/// Loss and flat gradient, statistics included.
fn gradient(engine: &mut dyn Engine, parameters: &[f32], batch: &Batch) -> (f32, Vec<f32>) {
    let layout = engine.layout().clone();
    let mut flat = vec![f32::NAN; parameters.len()];
    let loss = engine
        .gradient(parameters, batch, &mut |tensor, values| {
            flat[layout.range(tensor)].copy_from_slice(values);
        })
        .unwrap();
    (loss, flat)
}

fn norm(values: &[f32]) -> f32 {
    values.iter().map(|value| value * value).sum::<f32>().sqrt()
}

#[test]
fn gradients_of_whole_models_are_those_of_finite_differences() {
    const STEP: f32 = 0.001;
    for spec in models() {
        let mut engine = engine(&spec).unwrap();
        let layout = engine.layout().clone();
        let parameters = initialise_all(&layout, 3);
        let batch = batch(&spec, 5, 1);
        let (_, flat) = gradient(&mut *engine, &parameters, &batch);
        // Along a random direction in each tensor: every element takes part.
        for (tensor, tensor_spec) in (0..).map(TensorId).zip(layout.tensors()) {
            if tensor_spec.role == TensorRole::Statistic {
                continue;
            }
            let range = layout.range(tensor);
            let mut direction = numbers(100 + u64::from(tensor.0), range.len());
            let length = norm(&direction);
            direction.iter_mut().for_each(|d| *d /= length);
            let mut loss = |step: f32| {
                let mut moved = parameters.clone();
                moved[range.clone()].iter_mut().zip(&direction).for_each(|(p, d)| *p += step * d);
                f64::from(gradient(&mut *engine, &moved, &batch).0)
            };
            // Small, so that few kinks of ReLU and pooling are crossed; rounding leaves 1e-4.
            let expected = (loss(STEP) - loss(-STEP)) / (2.0 * f64::from(STEP));
            let gradient = &flat[range];
            let pairs = gradient.iter().zip(&direction);
            let got: f64 = pairs.map(|(g, d)| f64::from(*g) * f64::from(*d)).sum();
            let error = (got - expected).abs();
            assert!(
                error <= 0.02 * f64::from(norm(gradient)) + 3e-4,
                "{spec:?} {}: {got}, differences say {expected}",
                tensor_spec.name
            );
        }
    }
}

#[test]
fn tensors_come_last_first_each_exactly_once_with_all_its_elements() {
    for spec in models() {
        let mut engine = engine(&spec).unwrap();
        let layout = engine.layout().clone();
        let parameters = initialise_all(&layout, 3);
        let mut order = Vec::new();
        let batch = batch(&spec, 2, 1);
        engine
            .gradient(&parameters, &batch, &mut |tensor, values| {
                assert_eq!(values.len(), layout.range(tensor).len());
                order.push(tensor.0);
            })
            .unwrap();
        let expected: Vec<u32> = (0..layout.tensors().len() as u32).rev().collect();
        assert_eq!(order, expected, "{spec:?}");
    }
}

#[test]
fn the_same_step_gives_the_same_bits_also_after_other_batch_sizes() {
    for spec in models() {
        let mut engine_a = engine(&spec).unwrap();
        let mut engine_b = engine(&spec).unwrap();
        let parameters = initialise_all(engine_a.layout(), 9);
        let batches = [4, 7, 1, 4].map(|samples| batch(&spec, samples, samples as u64));
        let first = gradient(&mut *engine_a, &parameters, &batches[0]);
        gradient(&mut *engine_a, &parameters, &batches[1]);
        engine_a.evaluate(&parameters, &batches[1]).unwrap();
        gradient(&mut *engine_a, &parameters, &batches[2]);
        assert_eq!(first, gradient(&mut *engine_a, &parameters, &batches[3]), "{spec:?}");
        assert_eq!(first, gradient(&mut *engine_b, &parameters, &batches[0]), "{spec:?}");
    }
}

#[test]
fn the_loss_falls_on_a_batch_that_is_seen_again_and_again() {
    for spec in models() {
        let mut engine = engine(&spec).unwrap();
        let layout = engine.layout().clone();
        let mut parameters = initialise_all(&layout, 3);
        let batch = batch(&spec, 8, 1);
        let (first, _) = gradient(&mut *engine, &parameters, &batch);
        for _ in 0..100 {
            let (_, flat) = gradient(&mut *engine, &parameters, &batch);
            for (tensor, tensor_spec) in (0..).map(TensorId).zip(layout.tensors()) {
                let rate = if tensor_spec.role == TensorRole::Statistic { 1.0 } else { -0.2 };
                let range = layout.range(tensor);
                parameters[range.clone()]
                    .iter_mut()
                    .zip(&flat[range])
                    .for_each(|(p, g)| *p += rate * g);
            }
        }
        let (last, _) = gradient(&mut *engine, &parameters, &batch);
        assert!(last < 0.8 * first, "{spec:?}: from {first} to {last}");
        let evaluation = engine.evaluate(&parameters, &batch).unwrap();
        assert_eq!(evaluation.count, batch.targets.len() as u64);
        assert!(evaluation.correct > 0 && evaluation.loss_sum.is_finite(), "{spec:?}");
    }
}

#[test]
fn an_evaluation_has_the_loss_of_the_gradient() {
    for spec in models() {
        if matches!(spec, ModelSpec::Resnet20 { .. }) {
            continue; // batch norm uses other statistics there
        }
        let mut engine = engine(&spec).unwrap();
        let parameters = initialise_all(engine.layout(), 3);
        let batch = batch(&spec, 6, 1);
        let (loss, _) = gradient(&mut *engine, &parameters, &batch);
        let evaluation = engine.evaluate(&parameters, &batch).unwrap();
        let mean = evaluation.loss_sum / evaluation.count as f64;
        assert!((mean - f64::from(loss)).abs() < 1e-5, "{spec:?}: {mean} and {loss}");
    }
}

#[test]
fn a_batch_that_does_not_fit_is_refused_with_what_was_seen() {
    let spec = ModelSpec::Softmax { inputs: 12, classes: 5 };
    let good = batch(&spec, 3, 1);
    let check = |parameters: usize, change: &dyn Fn(&mut Batch), expected: &str| {
        let mut engine = engine(&spec).unwrap();
        let mut batch = good.clone();
        change(&mut batch);
        let parameters = vec![0.0; parameters];
        let error: TrainError = engine
            .gradient(&parameters, &batch, &mut |_, _| panic!("nothing may be handed over"))
            .unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(engine.evaluate(&parameters, &batch).unwrap_err(), error);
    };
    check(64, &|_| (), "the engine was given 64 parameters; the model has 65");
    check(65, &|b| b.samples = 0, "the batch has no samples; at least 1 is needed");
    check(65, &|b| b.samples = 4, "the batch has 36 inputs for 4 samples; 48 are needed");
    check(65, &|b| b.targets.truncate(2), "the batch has 2 targets for 3 samples; 3 are needed");
    check(65, &|b| b.targets[1] = 5, "target 1 of the batch is 5; the model has classes 0 to 4");
    check(
        65,
        &|b| b.inputs = Inputs::Tokens(vec![0; 36]),
        "the batch holds bytes of text; this model needs numbers",
    );
}

#[test]
fn there_is_no_engine_for_what_clients_bring_or_for_a_faulty_description() {
    assert!(engine(&ModelSpec::External).is_none());
    assert!(engine(&ModelSpec::Mlp { widths: vec![3] }).is_none());
}

#[test]
fn text_models_refuse_what_is_no_byte() {
    let spec = ModelSpec::Transformer { context: 7, width: 4, heads: 1, layers: 1 };
    let mut engine = engine(&spec).unwrap();
    let parameters = initialise_all(engine.layout(), 1);
    let mut batch = batch(&spec, 2, 1);
    batch.inputs = Inputs::Tokens(vec![256; 14]);
    let error = engine.evaluate(&parameters, &batch).unwrap_err();
    assert_eq!(error.to_string(), "input 0 of the batch is 256; bytes are 0 to 255");
    batch.inputs = Inputs::Dense(vec![0.0; 14]);
    let error = engine.evaluate(&parameters, &batch).unwrap_err();
    assert_eq!(error.to_string(), "the batch holds numbers; this model needs bytes of text");
}
