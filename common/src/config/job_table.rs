//! The keys of a job file.

use super::exchange_table::{COMPRESS, FEEDBACK, LOCAL, RAMP};
use super::table::Fallback::{Absent, Is, Required};
use super::table::{Key, Kind, Section, Variant, key};
use crate::limits::{
    EPOCHS_MAX, MODEL_LAYERS_MAX, MODEL_SIZE_MAX, PUSH_SAMPLES_MAX, SEATS_MAX, SERVERS_MAX,
    STALENESS_MAX, STEPS_MAX, STEPS_OPEN_MAX, TRANSFORMER_CONTEXT_MAX,
};
use std::ops::Bound::Excluded;

/// Number formats a job may name.
const DTYPES: &[&str] = &["f32", "bf16", "f16"];
/// One size of a model.
const SIZE: Kind = sized(1, MODEL_SIZE_MAX);
const CLASSES: Kind = sized(2, MODEL_SIZE_MAX);
pub(super) const STEPS: Kind = Kind::Integer { min: 1, max: STEPS_MAX };
pub(super) const STEPS_OR_NONE: Kind = Kind::Integer { min: 0, max: STEPS_MAX };

const fn sized(min: u64, max: u32) -> Kind {
    Kind::Integer { min, max: max as u64 }
}

const fn sizes(least: usize, most: usize) -> Kind {
    Kind::Integers { count: (least, most), min: 1, max: MODEL_SIZE_MAX as u64 }
}

pub(super) static JOB: Section = Section::file(
    "The job file: what is trained and how. Known to the coordinator alone and handed to everyone.",
    &[
        key("name", Kind::Name, Required, "name of the run and of its folder"),
        key(
            "mode",
            Kind::word(&["bsp", "ssp", "asp", "local"]),
            Required,
            "how far workers may drift apart: not at all, by `staleness` steps, without bound, or by \
             rounds of local steps",
        ),
        key(
            "staleness",
            Kind::Integer { min: 0, max: STALENESS_MAX },
            Absent,
            "steps a worker may be ahead of the slowest; needed for ssp; in local mode rounds, where \
             absent means none ahead; refused otherwise",
        ),
        key(
            "scale_by_staleness",
            Kind::Flag,
            Absent,
            "asp only: divide the rate by the versions a gradient is late; absent means false",
        ),
        key(
            "workers",
            Kind::Integer { min: 1, max: SEATS_MAX as u64 },
            Required,
            "seats; training starts when all are taken",
        ),
        key(
            "servers",
            Kind::Integer { min: 1, max: SERVERS_MAX as u64 },
            Required,
            "servers; training starts when all are there",
        ),
        key(
            "seed",
            Kind::Integer { min: 0, max: i64::MAX as u64 },
            Is("1"),
            "of the first values, the shuffles and all random rounding",
        ),
        key(
            "epochs",
            Kind::Integer { min: 1, max: EPOCHS_MAX },
            Absent,
            "passes over the training data; either this or `steps`",
        ),
        key(
            "steps",
            STEPS,
            Absent,
            "global steps; an external job may have neither: clients end it",
        ),
        key(
            "batch",
            Kind::Integer { min: 1, max: PUSH_SAMPLES_MAX as u64 },
            Absent,
            "samples per worker and step; needed unless the model is external, where it is 1",
        ),
        key(
            "reduce",
            Kind::word(&["mean", "sum"]),
            Is("\"mean\""),
            "how the contributions of one step become one update",
        ),
        key(
            "in_flight",
            Kind::Integer { min: 1, max: STEPS_OPEN_MAX },
            Is("1"),
            "steps of a worker under way at once: step c is computed on parameters that hold step \
             c - in_flight, so that a long round trip costs no throughput",
        ),
    ],
    &[
        &MODEL, &DATA, &OPTIMIZER, &SCHEDULE, &CLIP, &WIRE, &COMPRESS, &FEEDBACK, &RAMP, &LOCAL,
        &EVALUATE,
    ],
);

pub(super) static MODEL: Section = Section {
    kinds: &[
        Variant {
            name: "softmax",
            doc: "softmax regression",
            keys: &[
                key("inputs", SIZE, Required, "length of an input"),
                key("classes", CLASSES, Required, "number of classes"),
            ],
        },
        Variant {
            name: "mlp",
            doc: "dense layers with ReLU between them",
            keys: &[key(
                "widths",
                sizes(2, MODEL_LAYERS_MAX as usize),
                Required,
                "from the inputs to the classes",
            )],
        },
        Variant {
            name: "lenet",
            doc: "two convolutions, two dense layers",
            keys: &[
                key("input", sizes(3, 3), Required, "channels, height, width of an input"),
                key("channels", sizes(2, 2), Is("[20, 50]"), "channels after each convolution"),
                key("hidden", SIZE, Is("500"), "width of the first dense layer"),
                key("classes", CLASSES, Required, "number of classes"),
            ],
        },
        Variant {
            name: "resnet20",
            doc: "ResNet-20 for small images",
            keys: &[
                key("input", sizes(3, 3), Required, "channels, height, width of an input"),
                key("width", SIZE, Is("16"), "channels of the first group; even"),
                key("classes", CLASSES, Required, "number of classes"),
            ],
        },
        Variant {
            name: "transformer",
            doc: "byte-level decoder-only transformer",
            keys: &[
                key("context", sized(1, TRANSFORMER_CONTEXT_MAX), Required, "bytes of context"),
                key("width", SIZE, Required, "width of the stream"),
                key("heads", SIZE, Required, "attention heads; divides `width`"),
                key("layers", sized(1, MODEL_LAYERS_MAX), Required, "blocks"),
            ],
        },
        Variant { name: "external", doc: "tensors that clients bring", keys: &[] },
    ],
    ..Section::plain("model", "What is trained.", true, &[])
};

pub(super) static DATA: Section = Section::plain(
    "data",
    "What it is trained on; needed unless the model is external, refused then.",
    false,
    &[
        key(
            "format",
            Kind::word(&["idx", "cifar", "csv", "libsvm", "npz", "text"]),
            Required,
            "file format of both parts",
        ),
        key(
            "train",
            Kind::Texts,
            Required,
            "`embedded:digits-train`, or files relative to the worker's data_dir; for idx two: \
             images, labels",
        ),
        key("test", Kind::Texts, Absent, "as `train`; absent means no test accuracy"),
        key("scale", Kind::NonZero, Is("1.0"), "inputs become (x × scale - mean) / deviation"),
        key("mean", Kind::FINITE, Is("0.0"), "see `scale`"),
        key("deviation", Kind::POSITIVE, Is("1.0"), "see `scale`"),
        key("shuffle", Kind::Flag, Is("true"), "a new seeded order each epoch"),
    ],
);

const RATE: Key = key("learning_rate", Kind::POSITIVE, Required, "base rate, times the schedule");
const DECAY: Key =
    key("weight_decay", Kind::NOT_NEGATIVE, Is("0.0"), "added to the gradient as weight_decay × w");
const EPSILON: Key = key("epsilon", Kind::POSITIVE, Is("1e-8"), "added to the root");
const BETA1: Key = key("beta1", Kind::DECAY, Is("0.9"), "decay of the mean");
const BETA2: Key = key("beta2", Kind::DECAY, Is("0.999"), "decay of the mean square");

pub(super) const SGD: Variant =
    Variant { name: "sgd", doc: "plain gradient descent", keys: &[RATE, DECAY] };
pub(super) const MOMENTUM: Variant = Variant {
    name: "momentum",
    doc: "heavy ball",
    keys: &[
        RATE,
        key("momentum", Kind::DECAY, Is("0.9"), "decay of the velocity"),
        DECAY,
        key("nesterov", Kind::Flag, Is("false"), "look ahead; needs momentum above 0"),
    ],
};
pub(super) const ADAM: Variant = Variant {
    name: "adam",
    doc: "Kingma and Ba, 2015",
    keys: &[RATE, BETA1, BETA2, EPSILON, DECAY],
};
pub(super) const ADAMW: Variant = Variant {
    name: "adamw",
    doc: "Loshchilov and Hutter, 2019",
    keys: &[
        RATE,
        BETA1,
        BETA2,
        EPSILON,
        key(
            "weight_decay",
            Kind::NOT_NEGATIVE,
            Is("0.01"),
            "w -= rate × weight_decay × w, apart from the gradient",
        ),
    ],
};

pub(super) static OPTIMIZER: Section = Section {
    kinds: &[
        Variant {
            name: "add",
            doc: "w += rate × push: accumulation, no gradient descent",
            keys: &[key("learning_rate", Kind::NonZero, Required, "factor of every push")],
        },
        SGD,
        MOMENTUM,
        Variant {
            name: "adagrad",
            doc: "Duchi et al., 2011",
            keys: &[RATE, key("epsilon", Kind::POSITIVE, Is("1e-10"), "added to the root"), DECAY],
        },
        Variant {
            name: "rmsprop",
            doc: "Tieleman and Hinton, 2012",
            keys: &[
                RATE,
                key("alpha", Kind::DECAY, Is("0.99"), "decay of the mean square"),
                EPSILON,
                DECAY,
            ],
        },
        ADAM,
        ADAMW,
    ],
    ..Section::plain(
        "optimizer",
        "The servers' optimizer; in local mode the outer one. Defaults are PyTorch's, momentum apart.",
        true,
        &[],
    )
};

pub(super) static SCHEDULE: Section = Section {
    kinds: &[
        Variant { name: "constant", doc: "always 1", keys: &[] },
        Variant {
            name: "step",
            doc: "times `factor` every `every_steps`",
            keys: &[
                key("every_steps", STEPS, Required, "steps between drops"),
                key(
                    "factor",
                    Kind::Number { low: Excluded(0.0), high: Excluded(1.0) },
                    Is("0.1"),
                    "factor of a drop",
                ),
            ],
        },
        Variant {
            name: "cosine",
            doc: "half a cosine from 1 to `floor`",
            keys: &[
                key(
                    "total_steps",
                    STEPS,
                    Absent,
                    "steps from 1 to `floor`, warm-up included; absent takes the job's `steps`",
                ),
                key("floor", Kind::FRACTION, Is("0.0"), "factor at the end and after"),
            ],
        },
    ],
    kind_fallback: Some("constant"),
    ..Section::plain(
        "schedule",
        "The factor of the learning rate at a global step; in local mode of the workers' rate: the \
         servers' stays as it is.",
        false,
        &[key(
            "warmup_steps",
            STEPS_OR_NONE,
            Is("0"),
            "steps of linear rise from 1 / warmup_steps to 1",
        )],
    )
};

pub(super) static CLIP: Section = Section::plain(
    "clip",
    "Gradient clipping by the norms of the last step; 0 is off.",
    false,
    &[
        key("per_tensor", Kind::NOT_NEGATIVE, Is("0.0"), "largest norm of one tensor's gradient"),
        key("global_norm", Kind::NOT_NEGATIVE, Is("0.0"), "largest norm of the whole gradient"),
    ],
);

pub(super) static WIRE: Section = Section::plain(
    "wire",
    "Number formats on the wire.",
    false,
    &[
        key("up", Kind::word(DTYPES), Is("\"f32\""), "gradients, worker to server"),
        key("down", Kind::word(DTYPES), Is("\"f32\""), "parameters, server to worker"),
    ],
);

pub(super) static EVALUATE: Section = Section::plain(
    "evaluate",
    "When the model is tested.",
    false,
    &[key(
        "every_steps",
        STEPS_OR_NONE,
        Is("0"),
        "every so many steps of the testing worker; 0 is only at the end",
    )],
);
