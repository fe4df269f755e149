//! How tensors are coded, and what becomes of what lossy codecs hold back.

use crate::codec::{CodecSpec, Rounding, Select, ValueFormat};
use crate::config::exchange_table::{COMPRESS, FEEDBACK, RAMP};
use crate::config::reader::{Document, Repeated, did_you_mean};
use crate::config::table::Fallback;
use crate::config::values::Values;
use crate::job::{
    Compress, CompressRule, Direction, Feedback, OptimizerSpec, Ramp, SMALL_TENSOR_ELEMENTS,
};
use toml::{Table, Value};

/// The texts that stand for no codec.
const OFF: &str = "off";
const AUTO: &str = "auto";
const EXTERNAL: &str = "contradicts model.kind = \"external\", whose clients pull whole values as [wire] says: use \
     [[compress]] with direction = \"up\"";

/// `None` when something was refused, so that rules which depend on it stay silent.
pub(super) fn compress(document: &mut Document, external: bool) -> Option<Compress> {
    let compress = match document.repeated(&COMPRESS) {
        Repeated::Absent => Compress::Off,
        Repeated::Refused => return None,
        Repeated::Text(text) => compress_of_text(document, &text)?,
        Repeated::Tables(tables) => {
            for values in tables.iter().filter(|_| external) {
                if direction(values) != Direction::Up {
                    document.refuse(&values.path("direction"), EXTERNAL);
                }
            }
            return tables.iter().map(rule).collect::<Option<_>>().map(Compress::Rules);
        }
    };
    if external && compress != Compress::Off {
        document.refuse(COMPRESS.name, EXTERNAL);
    }
    Some(compress)
}

/// `"off"`, `"auto"`, or one rule for everything: `"int8"`, `"top_k:0.01"`.
fn compress_of_text(document: &mut Document, text: &str) -> Option<Compress> {
    match text {
        OFF => return Some(Compress::Off),
        AUTO => return Some(Compress::Auto),
        _ => {}
    }
    let (codec, number) = match text.split_once(':') {
        Some((codec, number)) => (codec.trim(), Some(number.trim())),
        None => (text, None),
    };
    let refuse = |document: &mut Document, rule: String| document.refuse(COMPRESS.name, rule);
    let Some(variant) = COMPRESS.variant(codec) else {
        let codecs = COMPRESS.kinds.iter().map(|variant| variant.name);
        let known: Vec<_> = [OFF, AUTO].into_iter().chain(codecs).collect();
        let texts = COMPRESS.repeats.map(|repeats| repeats.text).unwrap_or_default();
        let rule = format!("must be {texts}{}", did_you_mean(codec, &known));
        refuse(document, rule);
        return None;
    };
    let mut table = Table::from_iter([("codec".to_owned(), Value::from(codec))]);
    let parameter = variant.keys.iter().find(|key| matches!(key.fallback, Fallback::Required));
    match (parameter, number) {
        (Some(key), Some(number)) => {
            let number = number.parse().map_or_else(|_| Value::from(number), Value::Float);
            table.insert(key.name.to_owned(), number);
        }
        (Some(key), None) => {
            let rule = format!("needs its {}: write \"{codec}:{}\"", key.name, key.name);
            refuse(document, rule);
            return None;
        }
        (None, Some(_)) => {
            refuse(document, format!("must be \"{codec}\" alone: it takes no number"));
            return None;
        }
        (None, None) => {}
    }
    let values = document.table(&COMPRESS, COMPRESS.name, &table);
    rule(&values).map(|rule| Compress::Rules(vec![rule]))
}

fn direction(values: &Values) -> Direction {
    match values.text("direction") {
        Some("up") => Direction::Up,
        Some("down") => Direction::Down,
        _ => Direction::Both,
    }
}

fn rule(values: &Values) -> Option<CompressRule> {
    let codec = codec(values)?;
    let plain = matches!(codec, CodecSpec::F32 | CodecSpec::Bf16 | CodecSpec::F16);
    let fallback = if plain { 0 } else { SMALL_TENSOR_ELEMENTS };
    Some(CompressRule {
        pattern: values.string("match"),
        direction: direction(values),
        elements_min: values.integer("min_elements").unwrap_or(fallback),
        codec,
    })
}

fn codec(values: &Values) -> Option<CodecSpec> {
    let rounding = match values.text("rounding") {
        Some("stochastic") => Rounding::Stochastic,
        _ => Rounding::Nearest,
    };
    let value_format = match values.text("values") {
        Some("f32") => ValueFormat::F32,
        Some("int8") => ValueFormat::Int8,
        Some("int4") => ValueFormat::Int4,
        Some("two_bit") => ValueFormat::TwoBit,
        _ => ValueFormat::Bf16,
    };
    let number = |name: &str| values.number(name).map(|_| values.f32(name));
    Some(match values.kind? {
        "f32" => CodecSpec::F32,
        "bf16" => CodecSpec::Bf16,
        "f16" => CodecSpec::F16,
        "int8" => CodecSpec::Int8 { rounding },
        "int4" => CodecSpec::Int4 { rounding },
        "sign" => CodecSpec::Sign,
        "two_bit" => CodecSpec::TwoBit { threshold: number("threshold")? },
        "top_k" => CodecSpec::TopK {
            density: number("density")?,
            select: match values.text("select") {
                Some("threshold") => Select::Threshold,
                _ => Select::Exact,
            },
            values: value_format,
        },
        "random_k" => CodecSpec::RandomK { density: number("density")?, values: value_format },
        _ => return None,
    })
}

/// Reads `[feedback]`; what was refused elsewhere is `None` and raises no further fault.
pub(super) fn feedback(
    document: &mut Document,
    optimizer: Option<&OptimizerSpec>,
    compress: Option<&Compress>,
) -> Feedback {
    let values = document.section(&FEEDBACK);
    let feedback = Feedback {
        enabled: values.flag("enabled"),
        decay: values.f32("decay"),
        momentum_correction: values.flag("momentum_correction"),
        local_clip: values.f32("local_clip"),
    };
    if !feedback.momentum_correction {
        return feedback;
    }
    let mut refuse = |rule: &str| document.refuse("feedback.momentum_correction", rule);
    if values.given("enabled") && !feedback.enabled {
        refuse("contradicts feedback.enabled = false: it accumulates what was not sent");
    }
    if !matches!(optimizer, None | Some(OptimizerSpec::Momentum { nesterov: false, .. })) {
        refuse(
            "needs optimizer.kind = \"momentum\" with nesterov = false: it is that momentum, moved \
             to the workers",
        );
    }
    let sparse_up =
        |rule: &CompressRule| rule.direction != Direction::Down && rule.codec.is_sparse();
    let selects = match compress {
        None => true,
        Some(Compress::Rules(rules)) => rules.iter().any(sparse_up),
        Some(Compress::Off | Compress::Auto) => false,
    };
    if !selects {
        refuse(
            "needs a [[compress]] table with codec = \"top_k\" or \"random_k\" on the way up: it acts \
             before elements are selected",
        );
    }
    feedback
}

/// Reads `[ramp]`; see [`feedback`] about `None`.
pub(super) fn ramp(document: &mut Document, compress: Option<&Compress>) -> Ramp {
    let values = document.section(&RAMP);
    let sparse = match compress {
        None | Some(Compress::Auto) => true,
        Some(Compress::Rules(rules)) => rules.iter().any(|rule| rule.codec.is_sparse()),
        Some(Compress::Off) => false,
    };
    if document.has(&RAMP) && !sparse {
        let rule = "contradicts compress, which has no sparse codec: remove it, or use \"top_k\" or \
                    \"random_k\"";
        document.refuse(RAMP.name, rule);
    }
    Ramp {
        begin_step: values.u64("begin_step"),
        steps: values.u64("steps"),
        from: values.f32("from"),
    }
}
