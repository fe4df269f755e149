//! A decoder-only transformer over bytes, pre-norm (Radford et al., 2019): each block adds attention
//! and then a dense pair with GELU to the stream.

use super::activation::{gelu, gelu_backward};
use super::attention::Attention;
use super::cpu::{Mode, Network};
use super::dense::Dense;
use super::embedding::Embedding;
use super::layer_norm::LayerNorm;
use super::tensors::{Gradients, Parameters, grown};
use super::{Batch, Inputs};
use slackline_common::layout::Layout;
use std::mem::{swap, take};

pub(super) struct Transformer {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Dense,
    /// The stream after the last block, and that normed.
    last: Vec<f32>,
    normed: Vec<f32>,
    /// Gradients of the stream and inside a block.
    stream_gradient: Vec<f32>,
    narrow_gradient: Vec<f32>,
    wide_gradient: Vec<f32>,
}

/// What a block computes on its way up is kept for the way down; every buffer is
/// `[samples × context, …]`.
struct Block {
    norm1: LayerNorm,
    qkv: Dense,
    attention: Attention,
    projection: Dense,
    norm2: LayerNorm,
    fc1: Dense,
    fc2: Dense,
    /// The stream before the block and between its halves.
    input: Vec<f32>,
    between: Vec<f32>,
    normed1: Vec<f32>,
    qkv_out: Vec<f32>,
    attended: Vec<f32>,
    normed2: Vec<f32>,
    fc1_out: Vec<f32>,
    activated: Vec<f32>,
}

impl Transformer {
    pub(super) fn new(layout: &Layout, layers: usize, heads: usize) -> Self {
        let embedding = Embedding::new(layout);
        let (context, width) = (embedding.context, embedding.width);
        let block = |i| Block::new(layout, &format!("blocks.{i}"), [context, width, heads]);
        Self {
            embedding,
            blocks: (0..layers).map(block).collect(),
            norm: LayerNorm::new(layout, "ln_f"),
            head: Dense::new(layout, "head"),
            last: Vec::new(),
            normed: Vec::new(),
            stream_gradient: Vec::new(),
            narrow_gradient: Vec::new(),
            wide_gradient: Vec::new(),
        }
    }
}

impl Block {
    fn new(layout: &Layout, name: &str, [context, width, heads]: [usize; 3]) -> Self {
        let norm = |part: &str| LayerNorm::new(layout, &format!("{name}.{part}"));
        let dense = |part: &str| Dense::new(layout, &format!("{name}.{part}"));
        Self {
            norm1: norm("ln1"),
            qkv: dense("attn.qkv"),
            attention: Attention::new(context, width, heads),
            projection: dense("attn.proj"),
            norm2: norm("ln2"),
            fc1: dense("mlp.fc1"),
            fc2: dense("mlp.fc2"),
            input: Vec::new(),
            between: Vec::new(),
            normed1: Vec::new(),
            qkv_out: Vec::new(),
            attended: Vec::new(),
            normed2: Vec::new(),
            fc1_out: Vec::new(),
            activated: Vec::new(),
        }
    }

    /// From `self.input` to `out`, both `[rows, width]`.
    fn forward(&mut self, parameters: Parameters<'_>, rows: usize, out: &mut [f32]) {
        let len = out.len();
        let input = &self.input[..len];
        let normed = grown(&mut self.normed1, len);
        self.norm1.forward(parameters, input, normed);
        let qkv = grown(&mut self.qkv_out, 3 * len);
        self.qkv.forward(parameters, normed, qkv);
        let attended = grown(&mut self.attended, len);
        self.attention.forward(qkv, attended);
        let between = grown(&mut self.between, len);
        self.projection.forward(parameters, attended, between);
        add(between, input);
        let normed = grown(&mut self.normed2, len);
        self.norm2.forward(parameters, between, normed);
        let wide = grown(&mut self.fc1_out, rows * self.fc1.outputs);
        self.fc1.forward(parameters, normed, wide);
        let activated = grown(&mut self.activated, wide.len());
        gelu(wide, activated);
        self.fc2.forward(parameters, activated, out);
        add(out, between);
    }

    /// Turns the gradient `stream` of the output into that of the input; `narrow` and `wide` are
    /// room for one and four widths.
    fn backward(
        &mut self,
        parameters: Parameters<'_>,
        stream: &mut [f32],
        narrow: &mut [f32],
        wide: &mut [f32],
        gradients: &mut Gradients<'_>,
    ) {
        let len = stream.len();
        self.fc2.backward_parameters(&self.activated[..wide.len()], stream, gradients);
        self.fc2.backward_input(parameters, stream, wide);
        gelu_backward(&self.fc1_out[..wide.len()], wide);
        self.fc1.backward_parameters(&self.normed2[..len], wide, gradients);
        self.fc1.backward_input(parameters, wide, narrow);
        self.norm2.backward(parameters, &self.between[..len], narrow, stream, gradients);

        self.projection.backward_parameters(&self.attended[..len], stream, gradients);
        self.projection.backward_input(parameters, stream, narrow);
        let dqkv = &mut wide[..3 * len];
        self.attention.backward(&self.qkv_out[..3 * len], narrow, dqkv);
        self.qkv.backward_parameters(&self.normed1[..len], dqkv, gradients);
        self.qkv.backward_input(parameters, dqkv, narrow);
        self.norm1.backward(parameters, &self.input[..len], narrow, stream, gradients);
    }
}

fn add(sum: &mut [f32], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

impl Network for Transformer {
    fn forward(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch,
        _mode: Mode,
        scores: &mut [f32],
    ) {
        let tokens = tokens(batch);
        let rows = tokens.len();
        let len = rows * self.embedding.width;
        let mut stream = take(&mut self.last);
        self.embedding.forward(parameters, tokens, grown(&mut stream, len));
        for block in &mut self.blocks {
            // The block keeps its input; its old buffer takes the output.
            swap(&mut block.input, &mut stream);
            block.forward(parameters, rows, grown(&mut stream, len));
        }
        let normed = grown(&mut self.normed, len);
        self.norm.forward(parameters, &stream[..len], normed);
        self.head.forward(parameters, normed, scores);
        self.last = stream;
    }

    fn backward(
        &mut self,
        parameters: Parameters<'_>,
        batch: &Batch,
        scores: &[f32],
        gradients: &mut Gradients<'_>,
    ) {
        let tokens = tokens(batch);
        let len = tokens.len() * self.embedding.width;
        let stream = grown(&mut self.stream_gradient, len);
        let narrow = grown(&mut self.narrow_gradient, len);
        let wide = grown(&mut self.wide_gradient, 4 * len);
        self.head.backward_parameters(&self.normed[..len], scores, gradients);
        self.head.backward_input(parameters, scores, narrow);
        stream.fill(0.0);
        self.norm.backward(parameters, &self.last[..len], narrow, stream, gradients);
        for block in self.blocks.iter_mut().rev() {
            block.backward(parameters, stream, narrow, wide, gradients);
        }
        self.embedding.backward(tokens, stream, gradients);
    }
}

fn tokens(batch: &Batch) -> &[u32] {
    match &batch.inputs {
        Inputs::Tokens(tokens) => tokens,
        Inputs::Dense(_) => unreachable!("the engine checked the kind of the inputs"),
    }
}
