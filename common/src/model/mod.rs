//! What is trained: a short description that every machine turns into the same layout and the same
//! first values. The arithmetic is the worker's (`worker/src/train/`).

mod init;
mod rules;
mod tensors;

pub use init::{initialise, initialise_all};

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

/// Side of LeNet's convolution kernels.
const LENET_KERNEL: u32 = 5;

/// Height and width after LeNet's two convolutions and poolings, or `None` where nothing is left.
fn lenet_pooled(input: &[u32; 3]) -> Option<[u32; 2]> {
    let halve = |size: u32| Some(size.checked_sub(LENET_KERNEL - 1)? / 2).filter(|n| *n > 0);
    let both = |size: u32| halve(size).and_then(halve);
    Some([both(input[1])?, both(input[2])?])
}

impl ModelSpec {
    /// Every rule the description breaks, one sentence each with the value seen; empty when it is
    /// sound.
    pub fn check(&self) -> Vec<String> {
        rules::check(self)
    }

    /// The model's tensors, or `None` for [`ModelSpec::External`] and for a description that
    /// [`ModelSpec::check`] finds fault with.
    pub fn layout(&self) -> Option<Layout> {
        if !self.check().is_empty() {
            return None;
        }
        Layout::new(tensors::of(self)).ok()
    }

    /// Shape of one input: `[inputs]`, `[channels, height, width]`, or `[context]` in bytes for a
    /// transformer; `None` for [`ModelSpec::External`].
    pub fn input_shape(&self) -> Option<Vec<u32>> {
        match self {
            Self::Softmax { inputs, .. } => Some(vec![*inputs]),
            Self::Mlp { widths } => widths.first().map(|inputs| vec![*inputs]),
            Self::Lenet { input, .. } | Self::Resnet20 { input, .. } => Some(input.to_vec()),
            Self::Transformer { context, .. } => Some(vec![*context]),
            Self::External => None,
        }
    }

    /// Number of elements of one input; `None` for [`ModelSpec::External`] and for a product that
    /// does not fit.
    pub fn input_len(&self) -> Option<usize> {
        self.input_shape()?
            .iter()
            .try_fold(1usize, |product, size| product.checked_mul(usize::try_from(*size).ok()?))
    }

    /// Number of classes a prediction chooses from: 256 bytes for a transformer; `None` for
    /// [`ModelSpec::External`].
    pub fn classes(&self) -> Option<u32> {
        match self {
            Self::Mlp { widths } => widths.last().copied(),
            Self::Softmax { classes, .. }
            | Self::Lenet { classes, .. }
            | Self::Resnet20 { classes, .. } => Some(*classes),
            Self::Transformer { .. } => Some(256),
            Self::External => None,
        }
    }

    /// Predictions per sample: one per byte of context for a transformer, otherwise one.
    pub const fn predictions(&self) -> usize {
        match self {
            Self::Transformer { context, .. } => *context as usize,
            _ => 1,
        }
    }

    /// Whether inputs are bytes of text and targets the bytes that follow.
    pub const fn is_text(&self) -> bool {
        matches!(self, Self::Transformer { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::TensorRole;

    /// Tensors as `name [shape]`, running statistics with a star.
    fn check(spec: &ModelSpec, elements: usize, expected: &[&str]) {
        let layout = spec.layout().unwrap();
        let lines: Vec<String> = layout
            .tensors()
            .iter()
            .map(|t| {
                let star = if t.role == TensorRole::Statistic { "*" } else { "" };
                format!("{}{star} {:?}", t.name, t.shape)
            })
            .collect();
        assert!(lines.len() >= expected.len());
        let missing: Vec<_> = expected.iter().filter(|e| !lines.iter().any(|l| l == *e)).collect();
        assert!(missing.is_empty(), "{missing:?} not in {lines:#?}");
        assert_eq!(layout.elements(), elements);
    }

    #[test]
    fn dense_models_have_the_tensors_of_their_twins() {
        check(
            &ModelSpec::Softmax { inputs: 64, classes: 10 },
            650,
            &["fc.weight [10, 64]", "fc.bias [10]"],
        );
        let spec = ModelSpec::Mlp { widths: vec![784, 300, 10] };
        check(
            &spec,
            238_510,
            &["fc1.weight [300, 784]", "fc1.bias [300]", "fc2.weight [10, 300]", "fc2.bias [10]"],
        );
        assert_eq!(
            (spec.input_len(), spec.classes(), spec.is_text()),
            (Some(784), Some(10), false)
        );
    }

    #[test]
    fn lenet_has_the_tensors_of_its_twin() {
        let spec =
            ModelSpec::Lenet { input: [1, 28, 28], channels: [20, 50], hidden: 500, classes: 10 };
        let expected = [
            "conv1.weight [20, 1, 5, 5]",
            "conv2.weight [50, 20, 5, 5]",
            "conv2.bias [50]",
            "fc1.weight [500, 800]",
            "fc2.bias [10]",
        ];
        check(&spec, 431_080, &expected);
    }

    #[test]
    fn resnet20_has_the_published_number_of_parameters() {
        // 0.27 M (He et al., 2016, table 6): 269,722 trainable ones and 2 × 688 statistics.
        check(
            &ModelSpec::Resnet20 { input: [3, 32, 32], width: 16, classes: 10 },
            269_722 + 1_376,
            &[
                "conv1.weight [16, 3, 3, 3]",
                "bn1.running_var* [16]",
                "layer1.0.conv1.weight [16, 16, 3, 3]",
                "layer2.0.conv1.weight [32, 16, 3, 3]",
                "layer3.2.bn2.bias [64]",
                "fc.weight [10, 64]",
            ],
        );
    }

    #[test]
    fn the_transformer_has_the_tensors_of_its_twin() {
        let spec = ModelSpec::Transformer { context: 32, width: 16, heads: 2, layers: 2 };
        check(
            &spec,
            256 * 16 + 32 * 16 + 2 * (12 * 16 * 16 + 13 * 16) + 2 * 16 + 256 * 16,
            &[
                "tok_emb.weight [256, 16]",
                "pos_emb.weight [32, 16]",
                "blocks.0.ln1.weight [16]",
                "blocks.1.attn.qkv.weight [48, 16]",
                "blocks.1.attn.qkv.bias [48]",
                "blocks.0.attn.proj.weight [16, 16]",
                "blocks.0.mlp.fc1.weight [64, 16]",
                "blocks.1.mlp.fc2.weight [16, 64]",
                "ln_f.bias [16]",
                "head.weight [256, 16]",
            ],
        );
        assert_eq!((spec.predictions(), spec.is_text(), spec.classes()), (32, true, Some(256)));
    }

    #[test]
    fn clients_bring_the_layout_of_an_external_model() {
        assert_eq!(ModelSpec::External.layout(), None);
        assert_eq!(ModelSpec::External.input_len(), None);
    }
}
