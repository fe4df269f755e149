//! The job file to a checked [`Job`].

mod descent;
mod exchange;
mod local;
mod model;

use super::ConfigErrors;
use super::environment::Override;
use super::exchange_table::COMPRESS;
use super::job_table::{JOB, OPTIMIZER, WIRE};
use super::reader::{Document, read_file};
use super::values::Values;
use crate::job::{Compress, Job, Length, Mode, OptimizerSpec, Reduce, Wire};
use crate::layout::Dtype;
use crate::model::ModelSpec;
use std::path::Path;

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
            ("mode", "bsp") => rivals.extend(["staleness", "scale_by_staleness", "local"]),
            ("mode", "asp") => rivals.extend(["staleness", "local"]),
            ("mode", "ssp") => rivals.extend(["scale_by_staleness", "local"]),
            ("mode", "local") => {
                let momentum = "feedback.momentum_correction";
                rivals.extend(["scale_by_staleness", "in_flight", momentum]);
            }
            ("steps", _) => rivals.push("epochs"),
            ("epochs", _) => rivals.push("steps"),
            ("compress", value) => rivals.extend(rivals_of_compress(value)),
            _ => {}
        }
    }
    rivals.retain(|rival| pairs.iter().all(|(key, _)| key != rival));
    rivals
}

/// What needs a sparse codec goes with the file's rules when what replaces them has none.
fn rivals_of_compress(text: &str) -> &'static [&'static str] {
    let codec = text.split(':').next().unwrap_or_default();
    match codec {
        "auto" => &["feedback.momentum_correction"],
        "" | "off" => &["ramp", "feedback.momentum_correction"],
        "top_k" | "random_k" => &[],
        dense if COMPRESS.variant(dense).is_some() => &["ramp", "feedback.momentum_correction"],
        _ => &[],
    }
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
    let model = model::model(document);
    let external = matches!(model, Some(ModelSpec::External));
    let data = model::data(document, model.as_ref());
    let optimizer = descent::optimizer(document, &OPTIMIZER);
    let schedule = descent::schedule(document, &root);
    let clip = descent::clip(document);
    if matches!(optimizer, Some(OptimizerSpec::Add { .. })) {
        descent::check_add(document, schedule, clip);
    }
    let wire = wire(document);
    let compress = exchange::compress(document, external);
    let feedback = exchange::feedback(document, optimizer.as_ref(), compress.as_ref());
    let ramp = exchange::ramp(document, compress.as_ref());
    let local = local::local(document, &root);
    if local.is_some() {
        let is_auto = compress == Some(Compress::Auto);
        let corrects = feedback.momentum_correction;
        local::check(document, &root, optimizer.as_ref(), external, corrects, is_auto);
    }
    let evaluate = model::evaluate(document, data.as_ref());
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
        optimizer: optimizer.unwrap_or(descent::STAND_IN),
        schedule,
        clip,
        wire,
        evaluate,
        compress: compress.unwrap_or_default(),
        feedback,
        ramp,
        local,
        in_flight: root.u16("in_flight"),
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
    if let Some(mode @ ("bsp" | "ssp" | "local")) = mode
        && root.given("scale_by_staleness")
    {
        let rule = format!("contradicts mode = {mode:?}: only \"asp\" has it");
        document.refuse("scale_by_staleness", rule);
    }
    match mode {
        Some("ssp") => Mode::Ssp { staleness: root.u64("staleness") },
        Some("local") if root.given("staleness") => Mode::Ssp { staleness: root.u64("staleness") },
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

fn wire(document: &mut Document) -> Wire {
    let values = document.section(&WIRE);
    let dtype = |name: &str| match values.text(name) {
        Some("bf16") => Dtype::Bf16,
        Some("f16") => Dtype::F16,
        _ => Dtype::F32,
    };
    Wire { up: dtype("up"), down: dtype("down") }
}
