//! The same models in PyTorch: `tests/oracles/model_values.py` wrote `pytorch.txt`.
#![expect(clippy::cast_possible_truncation, reason = "small numbers of a test")]

use super::{Batch, Inputs, engine};
use slackline_common::model::ModelSpec;

const VALUES: &str = include_str!("pytorch.txt");

/// The numbers both sides start from.
fn formula(count: usize, salt: usize, scale: f64) -> Vec<f32> {
    let unit = (scale / 1000.0) as f32;
    (0..count).map(|i| ((i * 7919 + salt) % 2001) as f32 - 1000.0).map(|n| n * unit).collect()
}

/// Compares loss, test loss and every tensor's gradient with what the file says.
fn check(name: &str, spec: &ModelSpec, samples: usize) {
    let mut engine = engine(spec).unwrap();
    let layout = engine.layout().clone();
    let mut parameters = formula(layout.elements(), 1, 0.5);
    for (i, tensor) in layout.tensors().iter().enumerate() {
        if tensor.name.ends_with("running_var") {
            let range = layout.range(slackline_common::ids::TensorId(i as u32));
            parameters[range].iter_mut().for_each(|value| *value = value.abs() + 1.0);
        }
    }
    let len = samples * spec.input_len().unwrap();
    let targets = samples * spec.predictions();
    let classes = spec.classes().unwrap();
    let batch = Batch {
        samples,
        inputs: if spec.is_text() {
            Inputs::Tokens((0..len as u32).map(|i| (i * 89 + 7) % 256).collect())
        } else {
            Inputs::Dense(formula(len, 77, 1.0))
        },
        targets: (0..targets as u32).map(|i| (i * 5 + 2) % classes).collect(),
    };
    let mut gradients = vec![Vec::new(); layout.tensors().len()];
    let loss = engine
        .gradient(&parameters, &batch, &mut |tensor, values| {
            gradients[tensor.index()] = values.to_vec();
        })
        .unwrap();
    let test = engine.evaluate(&parameters, &batch).unwrap();

    let mut lines = VALUES.lines().skip_while(|line| !line.starts_with(&format!("model {name} ")));
    let expected = floats(lines.next().unwrap(), 2);
    near(name, f64::from(loss), expected[0], 1e-5 * expected[0]);
    near(name, test.loss_sum, expected[1], 1e-5 * expected[1]);
    for (tensor, gradient) in layout.tensors().iter().zip(&gradients) {
        let line = lines.next().unwrap();
        assert_eq!(line.split(' ').next(), Some(&tensor.name[..]), "{name}");
        let [norm, picks @ ..] = &floats(line, 1)[..] else { panic!("{line}") };
        let what = format!("{name} {}", tensor.name);
        let square: f64 = gradient.iter().map(|g| f64::from(*g) * f64::from(*g)).sum();
        near(&what, square.sqrt(), *norm, 1e-4 * norm + 1e-6);
        for (at, pick) in [0, gradient.len() / 2, gradient.len() - 1].into_iter().zip(picks) {
            near(&what, f64::from(gradient[at]), *pick, 1e-4 * norm + 1e-6);
        }
    }
    assert!(lines.next().is_none_or(|line| line.starts_with("model ")));
}

fn floats(line: &str, skip: usize) -> Vec<f64> {
    line.split(' ').skip(skip).map(|word| word.parse().unwrap()).collect()
}

fn near(what: &str, got: f64, expected: f64, tolerance: f64) {
    assert!((got - expected).abs() <= tolerance, "{what}: {got}, PyTorch says {expected}");
}

#[test]
fn the_mlp_agrees_with_pytorch() {
    check("mlp", &ModelSpec::Mlp { widths: vec![9, 16, 11, 4] }, 5);
}

#[test]
fn lenet_agrees_with_pytorch() {
    let input = [2, 17, 20];
    check("lenet", &ModelSpec::Lenet { input, channels: [3, 9], hidden: 12, classes: 3 }, 5);
}

#[test]
fn resnet20_agrees_with_pytorch() {
    check("resnet20", &ModelSpec::Resnet20 { input: [3, 9, 10], width: 4, classes: 3 }, 5);
}

#[test]
fn the_transformer_agrees_with_pytorch() {
    let spec = ModelSpec::Transformer { context: 7, width: 12, heads: 3, layers: 2 };
    check("transformer", &spec, 3);
}
