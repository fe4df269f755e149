//! Every kind of model takes a few steps through a real cluster, on files that a test can write.

use slackline_common::random::hash;
use slackline_worker::reference;
use std::fmt::Write as _;
use tests::run::{Plan, Run};

/// Pseudo-random bytes, the same on every machine.
fn noise(stream: u64, count: u64) -> Vec<u8> {
    (0..count).map(|at| hash(7, stream, at).to_le_bytes()[0]).collect()
}

/// A job of two workers and two servers.
fn job(model: &str, data: &str, steps: u32) -> String {
    format!(
        "name = \"few\"\nmode = \"bsp\"\nworkers = 2\nservers = 2\nseed = 3\nsteps = {steps}\n\
         batch = 4\n\n[model]\n{model}\n\n[data]\n{data}\n\n[optimizer]\nkind = \"momentum\"\n\
         learning_rate = 0.02\n"
    )
}

/// The run against the plain loop in one process.
fn check(run: &Run, data_dir: &std::path::Path) {
    let alone = reference::train(&run.job, data_dir).unwrap();
    let together = run.parameters();
    let worst = together.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-4, "the largest difference is {worst}");
}

/// Runs to the end; without batch norm the result is that of one process.
fn trains(plan: Plan, is_exact: bool) {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(plan.data_dir()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let run = plan.run_well();
    let summary = run.summary();
    assert!(summary["test_accuracy"].is_f64() && summary["final_loss"].is_f64(), "{summary}");
    assert!(run.parameters().iter().all(|value| value.is_finite()));
    if is_exact {
        check(&run, copy.path());
    }
}

/// Images and labels in the MNIST family's format; sizes are stored big end first.
fn idx(sizes: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, u8::try_from(sizes.len()).unwrap()];
    bytes.extend(sizes.iter().flat_map(|size| [0, 0, 0, *size]));
    bytes.extend(data);
    bytes
}

fn labels(count: u64) -> Vec<u8> {
    noise(2, count).into_iter().map(|byte| byte % 10).collect()
}

#[test]
fn softmax_trains_on_csv() {
    let data = "format = \"csv\"\ntrain = \"embedded:digits-train\"\ntest = \"embedded:digits-test\"\n\
                scale = 0.0625";
    trains(Plan::of_text(&job("kind = \"softmax\"\ninputs = 64\nclasses = 10", data, 10)), true);
}

#[test]
fn lenet_trains_on_idx() {
    let data = "format = \"idx\"\ntrain = [\"images\", \"labels\"]\ntest = [\"images\", \"labels\"]\n\
                scale = 0.003921569";
    let model =
        "kind = \"lenet\"\ninput = [1, 28, 28]\nchannels = [4, 8]\nhidden = 20\nclasses = 10";
    let plan = Plan::of_text(&job(model, data, 6))
        .with_data("images", &idx(&[40, 28, 28], &noise(1, 40 * 28 * 28)))
        .with_data("labels", &idx(&[40], &labels(40)));
    trains(plan, true);
}

#[test]
fn resnet20_trains_on_cifar() {
    let data =
        "format = \"cifar\"\ntrain = \"batch.bin\"\ntest = \"batch.bin\"\nscale = 0.003921569";
    let model = "kind = \"resnet20\"\ninput = [3, 32, 32]\nwidth = 4\nclasses = 10";
    let pixels = noise(1, 20 * 3072);
    let records = labels(20).into_iter().zip(pixels.chunks(3072));
    let file: Vec<u8> = records.flat_map(|(label, image)| [&[label], image].concat()).collect();
    trains(Plan::of_text(&job(model, data, 4)).with_data("batch.bin", &file), false);
}

#[test]
fn a_transformer_trains_on_text() {
    let data = "format = \"text\"\ntrain = \"train.txt\"\ntest = \"test.txt\"";
    let model = "kind = \"transformer\"\ncontext = 16\nwidth = 16\nheads = 2\nlayers = 2";
    let mut text = String::new();
    for number in 0..200 {
        let _ = writeln!(text, "{number} bottles and then {}", number + 1);
    }
    let plan = Plan::of_text(&job(model, data, 6))
        .with_data("train.txt", text.as_bytes())
        .with_data("test.txt", &text.as_bytes()[..400]);
    trains(plan, true);
}

#[test]
fn libsvm_and_its_sparse_lines_train_too() {
    let data = "format = \"libsvm\"\ntrain = \"train.svm\"\ntest = \"train.svm\"";
    let mut lines = String::new();
    for row in 0..30u64 {
        let _ = writeln!(lines, "{} {}:0.5 {}:{}", row % 3, 1 + row % 4, 6 + row % 3, row);
    }
    let plan = Plan::of_text(&job("kind = \"mlp\"\nwidths = [8, 6, 3]", data, 8));
    trains(plan.with_data("train.svm", lines.as_bytes()), true);
}
