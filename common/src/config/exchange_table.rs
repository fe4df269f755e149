//! The keys of a job file that say what travels, and how often: compression, feedback, local steps.

use super::job_table::{ADAM, ADAMW, MOMENTUM, SGD, STEPS_OR_NONE};
use super::table::Fallback::{Absent, Is, Required};
use super::table::{Key, Kind, Repeats, Section, Variant, key};
use crate::limits::{COMPRESS_RULES_MAX, LAYOUT_ELEMENTS_MAX, LOCAL_STEPS_MAX};

const ROUNDING: Key = key(
    "rounding",
    Kind::word(&["nearest", "stochastic"]),
    Is("\"nearest\""),
    "of a value between two levels: to the nearest, or by chance so that the mean is right",
);
const DENSITY: Key = key("density", Kind::SHARE, Required, "share of the elements that travels");
const VALUES: Key = key(
    "values",
    Kind::word(&["f32", "bf16", "int8", "int4", "two_bit"]),
    Is("\"bf16\""),
    "how the values that travel are coded",
);

pub(super) static COMPRESS: Section = Section {
    selector: "codec",
    kinds: &[
        Variant { name: "f32", doc: "lossless", keys: &[] },
        Variant { name: "bf16", doc: "the upper half of an f32", keys: &[] },
        Variant { name: "f16", doc: "IEEE 754 half precision", keys: &[] },
        Variant { name: "int8", doc: "8 bits an element, a scale per group", keys: &[ROUNDING] },
        Variant { name: "int4", doc: "4 bits an element, a scale per group", keys: &[ROUNDING] },
        Variant { name: "sign", doc: "1 bit an element, the mean magnitude per block", keys: &[] },
        Variant {
            name: "two_bit",
            doc: "2 bits an element: +threshold, 0 or -threshold",
            keys: &[key(
                "threshold",
                Kind::POSITIVE,
                Required,
                "smallest magnitude that is sent, and what is sent for it",
            )],
        },
        Variant {
            name: "top_k",
            doc: "the largest elements by magnitude",
            keys: &[
                DENSITY,
                key(
                    "select",
                    Kind::word(&["exact", "threshold"]),
                    Is("\"exact\""),
                    "exactly as many as the density says, or all above a threshold found by a search",
                ),
                VALUES,
            ],
        },
        Variant {
            name: "random_k",
            doc: "elements drawn from a seed that both ends know: no indices travel",
            keys: &[DENSITY, VALUES],
        },
    ],
    repeats: Some(Repeats {
        most: COMPRESS_RULES_MAX,
        text: "\"off\", \"auto\" or a codec for every tensor both ways, like \"int8\", \"two_bit:0.001\" \
               (its threshold), \"top_k:0.01\" or \"random_k:0.01\" (its density)",
    }),
    ..Section::plain(
        "compress",
        "How tensors are coded: the first table that matches a tensor and a direction. Without any, as \
         [wire] says. A tensor that none matches travels as [wire] says, in bf16 where that is f32 and \
         the tensor has less than 4096 elements. \"auto\" chooses while the job runs, by what the link \
         and the computation take.",
        false,
        &[
            key("match", Kind::Text, Is("\"*\""), "tensor names: * is any characters, ? is one"),
            key(
                "direction",
                Kind::word(&["both", "up", "down"]),
                Is("\"both\""),
                "up: gradients to the servers; down: parameters to the workers",
            ),
            key(
                "min_elements",
                Kind::Integer { min: 0, max: LAYOUT_ELEMENTS_MAX },
                Absent,
                "smaller tensors are not matched; absent means 0 for f32, bf16 and f16, else 4096",
            ),
        ],
    )
};

pub(super) static FEEDBACK: Section = Section::plain(
    "feedback",
    "What becomes of what a lossy codec holds back on its way up.",
    false,
    &[
        key(
            "enabled",
            Kind::Flag,
            Is("true"),
            "keep it and add it to the next push; false loses it (Karimireddy et al., ICML 2019)",
        ),
        key("decay", Kind::FRACTION, Is("1.0"), "factor of what is kept before it is added"),
        key(
            "momentum_correction",
            Kind::Flag,
            Is("false"),
            "the optimizer's momentum works on the worker, before elements are selected (Deep \
             Gradient Compression, ICLR 2018, section 3.1)",
        ),
        key(
            "local_clip",
            Kind::NOT_NEGATIVE,
            Is("0.0"),
            "largest norm of a worker's whole gradient before it is accumulated; 0 is off (the same, \
             section 3.2)",
        ),
    ],
);

pub(super) static RAMP: Section = Section::plain(
    "ramp",
    "The density of sparse codecs over time: everything before `begin_step`, then exponentially from \
     `from` to each rule's density.",
    false,
    &[
        key("begin_step", STEPS_OR_NONE, Is("0"), "first step at which sparse codecs are sparse"),
        key("steps", STEPS_OR_NONE, Is("0"), "steps from `from` to the density; 0 is at once"),
        key("from", Kind::SHARE, Is("0.25"), "share at `begin_step`"),
    ],
);

pub(super) static LOCAL: Section = Section {
    sections: &[&LOCAL_INNER, &LOCAL_ANCHOR],
    ..Section::plain(
        "local",
        "Local steps: a worker walks by itself and pushes how far it came. Needed for mode = \"local\", \
         refused otherwise.",
        false,
        &[
            key(
                "steps",
                Kind::Integer { min: 1, max: LOCAL_STEPS_MAX as u64 },
                Required,
                "local steps of a round",
            ),
            key(
                "begin_step",
                STEPS_OR_NONE,
                Is("0"),
                "rounds of one step before this global step (post-local SGD, ICLR 2020)",
            ),
            key(
                "fragments",
                Kind::Integer { min: 1, max: u16::MAX as u64 },
                Is("1"),
                "parts of the model that are pushed at different times (Streaming DiLoCo, 2025); \
                 divides `steps`",
            ),
            key(
                "delay",
                Kind::Integer { min: 0, max: LOCAL_STEPS_MAX as u64 },
                Is("0"),
                "local steps between a push and the use of its answer; below steps / fragments",
            ),
            key(
                "mix",
                Kind::DECAY,
                Is("0.0"),
                "share of its own parameters that a worker keeps when it takes an answer",
            ),
        ],
    )
};

pub(super) static LOCAL_INNER: Section = Section {
    kinds: &[SGD, MOMENTUM, ADAM, ADAMW],
    ..Section::plain(
        "local.inner",
        "The workers' optimizer; its rate follows [schedule].",
        true,
        &[],
    )
};

pub(super) static LOCAL_ANCHOR: Section = Section::plain(
    "local.anchor",
    "Pulls towards the last answer between rounds (Pseudo-Asynchronous Local SGD, 2025).",
    false,
    &[
        key("probability", Kind::SHARE, Required, "of a pull at a local step"),
        key(
            "strength",
            Kind::POSITIVE,
            Required,
            "pull per step on average: one moves by strength / probability of the way, which must be \
             below 1",
        ),
    ],
);
