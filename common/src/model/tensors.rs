//! The tensors of every model kind, named and shaped as a PyTorch module of the same structure has
//! them, with the bounds of their first values.

use super::ModelSpec;
use crate::layout::{Init, TensorSpec};

/// Bytes: the alphabet of the transformer.
pub(super) const VOCABULARY: u64 = 256;
/// Standard deviation of embeddings (Radford et al., "Language Models are Unsupervised Multitask
/// Learners", 2019).
const EMBEDDING_DEVIATION: f64 = 0.02;

/// The tensors of a checked spec; empty for [`ModelSpec::External`].
pub(super) fn of(spec: &ModelSpec) -> Vec<TensorSpec> {
    let mut list = Tensors(Vec::new());
    match spec {
        ModelSpec::Softmax { inputs, classes } => {
            list.dense("fc", u64::from(*inputs), u64::from(*classes));
        }
        ModelSpec::Mlp { widths } => {
            for (i, ends) in widths.windows(2).enumerate() {
                list.dense(&format!("fc{}", i + 1), u64::from(ends[0]), u64::from(ends[1]));
            }
        }
        ModelSpec::Lenet { input, channels, hidden, classes } => {
            let [first, second] = channels.map(u64::from);
            list.conv_with_bias("conv1", u64::from(input[0]), first, 5);
            list.conv_with_bias("conv2", first, second, 5);
            let [height, width] = super::lenet_pooled(input).unwrap_or([1, 1]).map(u64::from);
            list.dense("fc1", second * height * width, u64::from(*hidden));
            list.dense("fc2", u64::from(*hidden), u64::from(*classes));
        }
        ModelSpec::Resnet20 { input, width, classes } => {
            list.resnet20(u64::from(input[0]), u64::from(*width), u64::from(*classes));
        }
        ModelSpec::Transformer { context, width, layers, .. } => {
            list.transformer(u64::from(*context), u64::from(*width), *layers);
        }
        ModelSpec::External => {}
    }
    list.0
}

struct Tensors(Vec<TensorSpec>);

impl Tensors {
    fn parameter(&mut self, name: String, shape: &[u64], init: Init) {
        self.0.push(TensorSpec::parameter(name, shape, init));
    }

    /// Weight `[outputs, inputs]` and bias within `1 / sqrt(inputs)`, as `torch.nn.Linear` does.
    fn dense(&mut self, name: &str, inputs: u64, outputs: u64) {
        let init = uniform((1.0 / inputs as f64).sqrt());
        self.parameter(format!("{name}.weight"), &[outputs, inputs], init);
        self.parameter(format!("{name}.bias"), &[outputs], init);
    }

    /// Weight `[outputs, inputs, kernel, kernel]` and bias, as `torch.nn.Conv2d` does.
    fn conv_with_bias(&mut self, name: &str, inputs: u64, outputs: u64, kernel: u64) {
        let init = uniform((1.0 / (inputs * kernel * kernel) as f64).sqrt());
        self.parameter(format!("{name}.weight"), &[outputs, inputs, kernel, kernel], init);
        self.parameter(format!("{name}.bias"), &[outputs], init);
    }

    /// A 3×3 convolution without bias and the batch norm after it. The weights have the variance
    /// `2 / fan-in` that ReLU needs (He et al., "Delving Deep into Rectifiers", 2015).
    fn conv_with_norm(&mut self, conv: &str, norm: &str, inputs: u64, outputs: u64) {
        let init = uniform((6.0 / (inputs * 9) as f64).sqrt());
        self.parameter(format!("{conv}.weight"), &[outputs, inputs, 3, 3], init);
        self.norm(norm, outputs);
        for (name, init) in [("running_mean", Init::Zeros), ("running_var", Init::Ones)] {
            self.0.push(TensorSpec::statistic(format!("{norm}.{name}"), &[outputs], init));
        }
    }

    fn norm(&mut self, name: &str, width: u64) {
        self.parameter(format!("{name}.weight"), &[width], Init::Ones);
        self.parameter(format!("{name}.bias"), &[width], Init::Zeros);
    }

    fn resnet20(&mut self, channels: u64, width: u64, classes: u64) {
        self.conv_with_norm("conv1", "bn1", channels, width);
        let mut inputs = width;
        for (group, outputs) in [width, 2 * width, 4 * width].into_iter().enumerate() {
            for block in 0..3 {
                let name = format!("layer{}.{block}", group + 1);
                for (conv, inputs) in [(1, inputs), (2, outputs)] {
                    let (conv, norm) = (format!("{name}.conv{conv}"), format!("{name}.bn{conv}"));
                    self.conv_with_norm(&conv, &norm, inputs, outputs);
                }
                inputs = outputs;
            }
        }
        self.dense("fc", inputs, classes);
    }

    fn transformer(&mut self, context: u64, width: u64, layers: u32) {
        // A uniform distribution within b has the standard deviation b / sqrt(3).
        let embedding = uniform(EMBEDDING_DEVIATION * 3f64.sqrt());
        self.parameter("tok_emb.weight".into(), &[VOCABULARY, width], embedding);
        self.parameter("pos_emb.weight".into(), &[context, width], embedding);
        for layer in 0..layers {
            let name = format!("blocks.{layer}");
            self.norm(&format!("{name}.ln1"), width);
            self.dense(&format!("{name}.attn.qkv"), width, 3 * width);
            self.dense(&format!("{name}.attn.proj"), width, width);
            self.norm(&format!("{name}.ln2"), width);
            self.dense(&format!("{name}.mlp.fc1"), width, 4 * width);
            self.dense(&format!("{name}.mlp.fc2"), 4 * width, width);
        }
        self.norm("ln_f", width);
        let head = uniform((1.0 / width as f64).sqrt());
        self.parameter("head.weight".into(), &[VOCABULARY, width], head);
    }
}

/// The bound is worked out in `f64` and rounded once: square root and division are exact to the
/// last bit by IEEE 754, so it is the same everywhere.
#[expect(clippy::cast_possible_truncation, reason = "rounded to f32 on purpose")]
const fn uniform(bound: f64) -> Init {
    Init::Uniform { bound: bound as f32 }
}
