//! What is trained, and on what.

use crate::config::job_table::{DATA, EVALUATE, MODEL};
use crate::config::reader::Document;
use crate::config::table::one_of;
use crate::config::values::Values;
use crate::job::{DataFormat, DataSource, DataSpec, Evaluate};
use crate::model::ModelSpec;

/// What a source that is built into the worker starts with.
const EMBEDDED_PREFIX: &str = "embedded:";
/// The sets that are built in; all of them are the digits: CSV, 64 inputs, 10 classes.
const EMBEDDED: &[&str] = &["digits-train", "digits-test"];
const EMBEDDED_INPUTS: usize = 64;
/// 3 × 32 × 32.
const CIFAR_INPUTS: usize = 3072;
/// Classes of both.
const TEN_CLASSES: u32 = 10;

/// `None` when the description was refused, so that rules which depend on it stay silent.
pub(super) fn model(document: &mut Document) -> Option<ModelSpec> {
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

pub(super) fn data(document: &mut Document, model: Option<&ModelSpec>) -> Option<DataSpec> {
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

pub(super) fn evaluate(document: &mut Document, data: Option<&DataSpec>) -> Evaluate {
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
