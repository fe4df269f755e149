//! The job file to a checked [`Job`].

use super::ConfigErrors;
use super::environment::Override;
use super::job_table::{CLIP, DATA, EVALUATE, JOB, MODEL, OPTIMIZER, SCHEDULE, WIRE};
use super::reader::{Document, read_file};
use super::table::one_of;
use super::values::Values;
use crate::job::{
    Clip, Compress, DataFormat, DataSource, DataSpec, Evaluate, Feedback, Job, Length, Mode,
    OptimizerSpec, Ramp, Reduce, Schedule, ScheduleShape, Wire,
};
use crate::layout::Dtype;
use crate::model::ModelSpec;
use std::path::Path;

/// What a source that is built into the worker starts with.
const EMBEDDED_PREFIX: &str = "embedded:";
/// The sets that are built in; all of them are the digits: CSV, 64 inputs, 10 classes.
const EMBEDDED: &[&str] = &["digits-train", "digits-test"];
const EMBEDDED_INPUTS: usize = 64;
/// 3 × 32 × 32.
const CIFAR_INPUTS: usize = 3072;
/// Classes of both.
const TEN_CLASSES: u32 = 10;

/// Reads the text of a job file. `origin` names it in errors; each of `sets` is `key=value` or
/// `section.key=value`, laid over the file in order.
///
/// # Errors
/// Every fault of the file and of the overrides at once.
pub fn parse_job(text: &str, origin: &str, sets: &[String]) -> Result<Job, ConfigErrors> {
    let dropped = rivals_of(sets);
    let sets = dropped.iter().map(|key| format!("{key}=")).chain(sets.iter().cloned());
    let overrides = sets.map(|set| Override::from_set(&set)).collect();
    let mut document = Document::parse(text, origin, overrides)?;
    let job = read(&mut document);
    document.finish(job)
}

/// Keys of the file that an override's key replaces, so that `--set mode=bsp` and `--set steps=100`
/// say all they need: the file's rival of an overridden key goes unless it is overridden as well.
fn rivals_of(sets: &[String]) -> Vec<&'static str> {
    let pairs: Vec<_> = sets
        .iter()
        .filter_map(|set| set.split_once('='))
        .map(|(key, value)| (key.trim(), value.trim().trim_matches('"')))
        .collect();
    let mut rivals = Vec::new();
    for (key, value) in &pairs {
        match (*key, *value) {
            ("mode", "bsp") => rivals.extend(["staleness", "scale_by_staleness"]),
            ("mode", "asp") => rivals.push("staleness"),
            ("mode", "ssp") => rivals.push("scale_by_staleness"),
            ("steps", _) => rivals.push("epochs"),
            ("epochs", _) => rivals.push("steps"),
            _ => {}
        }
    }
    rivals.retain(|rival| pairs.iter().all(|(key, _)| key != rival));
    rivals
}

/// Reads a job file; see [`parse_job`].
///
/// # Errors
/// The file cannot be read, is too large or not UTF-8, or any fault of [`parse_job`].
pub fn load_job(path: &Path, sets: &[String]) -> Result<Job, ConfigErrors> {
    parse_job(&read_file(path)?, &path.display().to_string(), sets)
}

/// Builds a job even from a faulty file, so that every rule gets its turn.
fn read(document: &mut Document) -> Job {
    let root = document.section(&JOB);
    let model = model(document);
    let external = matches!(model, Some(ModelSpec::External));
    let data = data(document, model.as_ref());
    let optimizer = optimizer(document);
    let schedule = schedule(document, &root);
    let clip = clip(document);
    if matches!(optimizer, OptimizerSpec::Add { .. }) {
        check_add(document, schedule, clip);
    }
    let evaluate = evaluate(document, data.as_ref());
    if !root.given("batch") && model.is_some() && !external {
        document.refuse("batch", "missing: a job with a model of ours needs samples per step");
    }
    Job {
        name: root.string("name"),
        mode: mode(document, &root),
        workers: root.u16("workers"),
        servers: root.u16("servers"),
        seed: root.u64("seed"),
        length: length(document, &root, model.as_ref()),
        batch: if root.given("batch") { root.u32("batch") } else { 1 },
        reduce: if root.text("reduce") == Some("sum") { Reduce::Sum } else { Reduce::Mean },
        model: model.unwrap_or(ModelSpec::External),
        data,
        optimizer,
        schedule,
        clip,
        wire: wire(document),
        evaluate,
        compress: Compress::default(),
        feedback: Feedback::default(),
        ramp: Ramp::default(),
        local: None,
        in_flight: 1,
    }
}

fn mode(document: &mut Document, root: &Values) -> Mode {
    let mode = root.text("mode");
    match mode {
        Some("ssp") if !root.given("staleness") => document.refuse(
            "staleness",
            "missing: mode = \"ssp\" needs the steps a worker may be ahead of the slowest",
        ),
        Some(mode @ ("bsp" | "asp")) if root.given("staleness") => {
            let what = if mode == "bsp" { "always waits" } else { "never waits" };
            let rule = format!(
                "contradicts mode = {mode:?}, which {what}: remove it (or --set staleness=), or use \
                 mode = \"ssp\""
            );
            document.refuse("staleness", rule);
        }
        _ => {}
    }
    if let Some(mode @ ("bsp" | "ssp")) = mode
        && root.given("scale_by_staleness")
    {
        let rule = format!("contradicts mode = {mode:?}: only \"asp\" has it");
        document.refuse("scale_by_staleness", rule);
    }
    match mode {
        Some("ssp") => Mode::Ssp { staleness: root.u64("staleness") },
        Some("asp") => Mode::Asp { scale_by_staleness: root.flag("scale_by_staleness") },
        _ => Mode::Bsp,
    }
}

fn length(document: &mut Document, root: &Values, model: Option<&ModelSpec>) -> Length {
    let external = matches!(model, Some(ModelSpec::External));
    match (root.given("epochs"), root.given("steps")) {
        (true, true) => document.refuse("epochs", "contradicts steps: write one of the two"),
        (true, false) if external => document.refuse(
            "epochs",
            "contradicts model.kind = \"external\", which has no data to pass over: use steps",
        ),
        (false, false) if model.is_some() && !external => {
            document.refuse("epochs", "missing: write epochs or steps");
        }
        _ => {}
    }
    match (root.integer("epochs"), root.integer("steps")) {
        (Some(epochs), _) => Length::Epochs(epochs),
        (None, Some(steps)) => Length::Steps(steps),
        (None, None) => Length::Steps(u64::MAX),
    }
}

/// `None` when the description was refused, so that rules which depend on it stay silent.
fn model(document: &mut Document) -> Option<ModelSpec> {
    let values = document.section(&MODEL);
    let sound = |keys: &[&str]| keys.iter().all(|key| values.integer(key).is_some());
    let triple = |key: &str| <[u32; 3]>::try_from(values.sizes(key)).ok();
    let spec = match values.kind? {
        "softmax" if sound(&["inputs", "classes"]) => {
            ModelSpec::Softmax { inputs: values.u32("inputs"), classes: values.u32("classes") }
        }
        "mlp" if !values.sizes("widths").is_empty() => {
            ModelSpec::Mlp { widths: values.sizes("widths") }
        }
        "lenet" if sound(&["hidden", "classes"]) => ModelSpec::Lenet {
            input: triple("input")?,
            channels: values.sizes("channels").try_into().ok()?,
            hidden: values.u32("hidden"),
            classes: values.u32("classes"),
        },
        "resnet20" if sound(&["width", "classes"]) => ModelSpec::Resnet20 {
            input: triple("input")?,
            width: values.u32("width"),
            classes: values.u32("classes"),
        },
        "transformer" if sound(&["context", "width", "heads", "layers"]) => {
            ModelSpec::Transformer {
                context: values.u32("context"),
                width: values.u32("width"),
                heads: values.u32("heads"),
                layers: values.u32("layers"),
            }
        }
        "external" => ModelSpec::External,
        _ => return None,
    };
    let faults = spec.check();
    let sound = faults.is_empty();
    faults.into_iter().for_each(|fault| document.refuse("model", fault));
    sound.then_some(spec)
}

fn data(document: &mut Document, model: Option<&ModelSpec>) -> Option<DataSpec> {
    let external = matches!(model, Some(ModelSpec::External));
    match (document.has(&DATA), model) {
        (true, _) if external => document.refuse(
            "data",
            "contradicts model.kind = \"external\", whose clients bring their own: remove it",
        ),
        (false, Some(_)) if !external => {
            document
                .refuse("data", "missing section [data]: this model needs something to train on");
        }
        _ => {}
    }
    if !document.has(&DATA) {
        return None;
    }
    let values = document.section(&DATA);
    let format = match values.text("format") {
        Some("idx") => DataFormat::Idx,
        Some("cifar") => DataFormat::Cifar,
        Some("csv") => DataFormat::Csv,
        Some("libsvm") => DataFormat::Libsvm,
        Some("npz") => DataFormat::Npz,
        Some("text") => DataFormat::Text,
        _ => return None,
    };
    let train = source(document, &values, "train", format);
    let test = source(document, &values, "test", format);
    if format == DataFormat::Text {
        let numbers = ["scale", "mean", "deviation"].into_iter();
        for name in numbers.filter(|name| values.given(name)) {
            let rule = "contradicts format = \"text\", whose inputs are bytes: remove it";
            document.refuse(&format!("data.{name}"), rule);
        }
    }
    let data = DataSpec {
        format,
        train: train?,
        test,
        scale: values.f32("scale"),
        mean: values.f32("mean"),
        deviation: values.f32("deviation"),
        shuffle: values.flag("shuffle"),
    };
    if let Some(model) = model.filter(|_| !external) {
        check_model_and_data(document, model, &data);
    }
    Some(data)
}

fn source(
    document: &mut Document,
    values: &Values,
    name: &str,
    format: DataFormat,
) -> Option<DataSource> {
    let files = values.texts(name)?;
    let path = format!("data.{name}");
    let embedded = files.iter().find_map(|file| file.strip_prefix(EMBEDDED_PREFIX));
    if let Some(set) = embedded {
        if files.len() > 1 {
            document.refuse(&path, "a set that is built in stands alone, not in a list");
        } else if !EMBEDDED.contains(&set) {
            let rule = format!("built in are {EMBEDDED_PREFIX} with {}", one_of(EMBEDDED));
            document.refuse(&path, rule);
        } else if format != DataFormat::Csv {
            document.refuse("data.format", format!("{EMBEDDED_PREFIX}{set} is \"csv\""));
        }
        return Some(DataSource::Embedded(set.to_owned()));
    }
    if format == DataFormat::Idx && files.len() != 2 {
        let rule = format!(
            "idx needs two files, images and labels, in this order; there are {}",
            files.len()
        );
        document.refuse(&path, rule);
    }
    Some(DataSource::Files(files.to_vec()))
}

fn check_model_and_data(document: &mut Document, model: &ModelSpec, data: &DataSpec) {
    let is_text = data.format == DataFormat::Text;
    if model.is_text() != is_text {
        let rule = if is_text {
            "contradicts model.kind: \"text\" trains a \"transformer\" only"
        } else {
            "contradicts model.kind = \"transformer\", which reads \"text\" only"
        };
        return document.refuse("data.format", rule);
    }
    let (what, inputs) = match (&data.train, data.format) {
        (DataSource::Embedded(_), _) => ("the built-in digits have", EMBEDDED_INPUTS),
        (_, DataFormat::Cifar) => ("cifar has", CIFAR_INPUTS),
        _ => return,
    };
    if let Some(len) = model.input_len().filter(|len| *len != inputs) {
        document.refuse("model", format!("reads {len} inputs, but {what} {inputs}"));
    }
    if let Some(classes) = model.classes().filter(|classes| *classes < TEN_CLASSES) {
        document
            .refuse("model", format!("tells {classes} classes apart, but {what} {TEN_CLASSES}"));
    }
}

fn optimizer(document: &mut Document) -> OptimizerSpec {
    let values = document.section(&OPTIMIZER);
    let learning_rate = values.f32("learning_rate");
    let weight_decay = values.f32("weight_decay");
    let epsilon = values.f32("epsilon");
    let (beta1, beta2) = (values.f32("beta1"), values.f32("beta2"));
    match values.kind {
        Some("add") => OptimizerSpec::Add { learning_rate },
        Some("momentum") => {
            let (momentum, nesterov) = (values.f32("momentum"), values.flag("nesterov"));
            if nesterov && values.number("momentum") == Some(0.0) {
                let rule = "contradicts momentum = 0: there is nothing to look ahead along";
                document.refuse("optimizer.nesterov", rule);
            }
            OptimizerSpec::Momentum { learning_rate, momentum, weight_decay, nesterov }
        }
        Some("adagrad") => OptimizerSpec::Adagrad { learning_rate, epsilon, weight_decay },
        Some("rmsprop") => {
            let alpha = values.f32("alpha");
            OptimizerSpec::Rmsprop { learning_rate, alpha, epsilon, weight_decay }
        }
        Some("adam") => OptimizerSpec::Adam { learning_rate, beta1, beta2, epsilon, weight_decay },
        Some("adamw") => {
            OptimizerSpec::Adamw { learning_rate, beta1, beta2, epsilon, weight_decay }
        }
        _ => OptimizerSpec::Sgd { learning_rate, weight_decay },
    }
}

fn schedule(document: &mut Document, root: &Values) -> Schedule {
    let values = document.section(&SCHEDULE);
    let warmup_steps = values.u64("warmup_steps");
    let shape = match values.kind {
        Some("step") => ScheduleShape::Step {
            every_steps: values.u64("every_steps"),
            factor: values.f32("factor"),
        },
        Some("cosine") => {
            let given = values.integer("total_steps");
            let total_steps = given.or_else(|| root.integer("steps"));
            if !values.given("total_steps") && !root.given("steps") {
                let rule = "missing: a cosine needs its length, here or as the job's steps";
                document.refuse("schedule.total_steps", rule);
            }
            if total_steps.is_some_and(|total| total <= warmup_steps) {
                let rule = format!(
                    "must be below the {} steps of the whole cosine",
                    total_steps.unwrap_or_default()
                );
                document.refuse("schedule.warmup_steps", rule);
            }
            ScheduleShape::Cosine {
                total_steps: total_steps.unwrap_or_default(),
                floor: values.f32("floor"),
            }
        }
        _ => ScheduleShape::Constant,
    };
    Schedule { shape, warmup_steps }
}

fn clip(document: &mut Document) -> Clip {
    let values = document.section(&CLIP);
    Clip { per_tensor: values.f32("per_tensor"), global_norm: values.f32("global_norm") }
}

/// Accumulation promises that every push counts in full.
fn check_add(document: &mut Document, schedule: Schedule, clip: Clip) {
    let rule = "contradicts optimizer.kind = \"add\", which counts every push in full: remove it";
    if schedule != Schedule::default() {
        document.refuse("schedule", rule);
    }
    if clip.is_on() {
        document.refuse("clip", rule);
    }
}

fn wire(document: &mut Document) -> Wire {
    let values = document.section(&WIRE);
    let dtype = |name: &str| match values.text(name) {
        Some("bf16") => Dtype::Bf16,
        Some("f16") => Dtype::F16,
        _ => Dtype::F32,
    };
    Wire { up: dtype("up"), down: dtype("down") }
}

fn evaluate(document: &mut Document, data: Option<&DataSpec>) -> Evaluate {
    let values = document.section(&EVALUATE);
    let every_steps = values.u64("every_steps");
    // Without data at all that is the fault to mend, and it has been named.
    let tests = document.has(&DATA) && data.is_none_or(|data| data.test.is_some());
    if every_steps > 0 && !tests {
        let rule = "contradicts data without a test part: add data.test or remove it";
        document.refuse("evaluate.every_steps", rule);
    }
    Evaluate { every_steps }
}
