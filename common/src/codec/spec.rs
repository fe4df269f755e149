//! How a sender codes: a format and its parameters. A receiver needs the format's id alone.

use crate::layout::Dtype;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A number format and everything the sender chooses about it.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub enum CodecSpec {
    /// Lossless.
    F32,
    /// The upper half of an `f32`.
    Bf16,
    /// IEEE 754 half precision.
    F16,
    /// 8 bits an element and a scale per group.
    Int8 {
        /// How a value between two levels is rounded.
        rounding: Rounding,
    },
    /// 4 bits an element and a scale per group.
    Int4 {
        /// How a value between two levels is rounded.
        rounding: Rounding,
    },
    /// 1 bit an element and the mean magnitude of the block.
    Sign,
    /// 2 bits an element: `+threshold`, 0 or `-threshold`.
    TwoBit {
        /// Smallest magnitude that is sent, and what is sent for it. Above 0.
        threshold: f32,
    },
    /// The largest elements by magnitude.
    TopK {
        /// Share of the elements, above 0 and at most 1.
        density: f32,
        /// How they are found.
        select: Select,
        /// How their values are coded.
        values: ValueFormat,
    },
    /// Elements chosen by a seed that both ends share: no indices travel.
    RandomK {
        /// Share of the elements, above 0 and at most 1.
        density: f32,
        /// How their values are coded.
        values: ValueFormat,
    },
}

/// How a value between two levels is rounded.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Rounding {
    /// To the nearest level, a tie to the even one.
    #[default]
    Nearest,
    /// Up or down by chance, so that the mean of many draws is the value.
    Stochastic,
}

/// How the largest elements are found.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Select {
    /// Exactly `k` of them; of equal magnitudes the first.
    #[default]
    Exact,
    /// All above a threshold found by a search, about `k` of them.
    Threshold,
}

/// How the values of a sparse format are coded.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum ValueFormat {
    /// Lossless.
    F32,
    /// The upper half of an `f32`.
    #[default]
    Bf16,
    /// 8 bits and a scale per group.
    Int8,
    /// 4 bits and a scale per group.
    Int4,
    /// Sign and one of two magnitudes per group.
    TwoBit,
}

impl CodecSpec {
    /// Whether the decoded values are the encoded ones, bit for bit, whatever they are.
    pub const fn is_lossless(&self) -> bool {
        matches!(self, Self::F32)
    }

    /// Whether only some elements travel.
    pub const fn is_sparse(&self) -> bool {
        matches!(self, Self::TopK { .. } | Self::RandomK { .. })
    }

    /// The same format with another share of elements; formats that send all stay as they are.
    pub fn with_density(self, density: f32) -> Self {
        match self {
            Self::TopK { select, values, .. } => Self::TopK { density, select, values },
            Self::RandomK { values, .. } => Self::RandomK { density, values },
            dense => dense,
        }
    }

    /// The share of elements that travels.
    pub const fn density(&self) -> f32 {
        match *self {
            Self::TopK { density, .. } | Self::RandomK { density, .. } => density,
            _ => 1.0,
        }
    }
}

impl From<Dtype> for CodecSpec {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::Bf16 => Self::Bf16,
            Dtype::F16 => Self::F16,
        }
    }
}

impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.write_str("f32"),
            Self::Bf16 => f.write_str("bf16"),
            Self::F16 => f.write_str("f16"),
            Self::Int8 { rounding } => write!(f, "int8 ({rounding})"),
            Self::Int4 { rounding } => write!(f, "int4 ({rounding})"),
            Self::Sign => f.write_str("sign"),
            Self::TwoBit { threshold } => write!(f, "two_bit (threshold {threshold})"),
            Self::TopK { density, values, .. } => {
                write!(f, "top_k ({}% in {values})", density * 100.0)
            }
            Self::RandomK { density, values } => {
                write!(f, "random_k ({}% in {values})", density * 100.0)
            }
        }
    }
}

impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nearest => "nearest",
            Self::Stochastic => "stochastic",
        })
    }
}

impl fmt::Display for ValueFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::TwoBit => "2 bits",
        })
    }
}
