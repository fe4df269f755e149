//! What is trained: a short description that every machine turns into the same layout and the same
//! first values. The arithmetic is the worker's (`worker/src/train/`).

use crate::layout::Layout;
use serde::{Deserialize, Serialize};

/// A model by name and sizes.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelSpec {
    /// Softmax regression: one dense layer. Tensors `fc.weight [classes, inputs]`, `fc.bias`.
    Softmax {
        /// Length of an input.
        inputs: u32,
        /// Number of classes.
        classes: u32,
    },
    /// Dense layers with ReLU between them. Tensors `fc1.weight [out, in]`, `fc1.bias`, `fc2…`.
    Mlp {
        /// Widths from the input to the classes; at least two.
        widths: Vec<u32>,
    },
    /// conv 5×5 – max-pool 2 – conv 5×5 – max-pool 2 – dense – dense, ReLU after the convolutions
    /// and the first dense layer, no padding (LeCun et al., 1998, with today's nonlinearities).
    Lenet {
        /// Channels, height and width of an input.
        input: [u32; 3],
        /// Channels after the two convolutions.
        channels: [u32; 2],
        /// Width of the first dense layer.
        hidden: u32,
        /// Number of classes.
        classes: u32,
    },
    /// ResNet-20 for small images (He et al., 2016, section 4.2): three groups of three basic
    /// blocks, batch norm, shortcut by stride and zero padding (option A).
    Resnet20 {
        /// Channels, height and width of an input.
        input: [u32; 3],
        /// Channels of the first group (16 in the paper), doubled in each next.
        width: u32,
        /// Number of classes.
        classes: u32,
    },
    /// A byte-level decoder-only transformer, pre-norm, learned positions, GELU (tanh form).
    Transformer {
        /// Bytes of context.
        context: u32,
        /// Width of the stream.
        width: u32,
        /// Attention heads; divides `width`.
        heads: u32,
        /// Blocks.
        layers: u32,
    },
    /// Tensors that clients bring: the first complete proposal fixes the layout.
    External,
}

impl ModelSpec {
    /// The model's tensors, or `None` for [`ModelSpec::External`].
    pub fn layout(&self) -> Option<Layout> {
        None
    }
}
