//! Embeddings of bytes and of their positions.

use super::tensors::{Gradients, Parameters, tensor};
use slackline_common::ids::TensorId;
use slackline_common::layout::Layout;

/// Weights `tok_emb.weight [256, width]` and `pos_emb.weight [context, width]`.
#[derive(Debug)]
pub(super) struct Embedding {
    pub(super) width: usize,
    pub(super) context: usize,
    token: TensorId,
    position: TensorId,
}

impl Embedding {
    pub(super) fn new(layout: &Layout) -> Self {
        let token = tensor(layout, "tok_emb.weight");
        let position = tensor(layout, "pos_emb.weight");
        let shape = &layout.tensors()[position.index()].shape;
        let size = |i: usize| usize::try_from(shape[i]).expect("a checked layout fits memory");
        Self { width: size(1), context: size(0), token, position }
    }

    /// `tokens [samples, context]` → `y [samples × context, width]`. Tokens are below 256.
    pub(super) fn forward(&self, parameters: Parameters<'_>, tokens: &[u32], y: &mut [f32]) {
        let (token, position) = (parameters.get(self.token), parameters.get(self.position));
        let positions = position.chunks_exact(self.width).cycle();
        for ((y, at), id) in y.chunks_exact_mut(self.width).zip(positions).zip(tokens) {
            let token = &token[*id as usize * self.width..][..self.width];
            y.iter_mut().zip(token).zip(at).for_each(|((y, token), at)| *y = token + at);
        }
    }

    /// Hands over the gradients of both tables, given that of the output.
    pub(super) fn backward(&self, tokens: &[u32], dy: &[f32], gradients: &mut Gradients<'_>) {
        gradients.hand_over(self.position, |sums| super::dense::sum_rows(dy, sums));
        gradients.hand_over(self.token, |sums| {
            sums.fill(0.0);
            for (dy, id) in dy.chunks_exact(self.width).zip(tokens) {
                let sums = &mut sums[*id as usize * self.width..][..self.width];
                sums.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::differences::{Differentiable, check, layout};
    use super::*;

    struct Fixed(Embedding, Vec<u32>);

    impl Differentiable for Fixed {
        fn forward(&mut self, parameters: Parameters<'_>, _: &[f32]) -> Vec<f32> {
            let mut y = vec![f32::NAN; self.1.len() * self.0.width];
            self.0.forward(parameters, &self.1, &mut y);
            y
        }

        fn backward(
            &mut self,
            _: Parameters<'_>,
            _: &[f32],
            dy: &[f32],
            gradients: &mut Gradients<'_>,
        ) -> Vec<f32> {
            self.0.backward(&self.1, dy, gradients);
            Vec::new()
        }
    }

    #[test]
    fn embedding_gradients_are_those_of_finite_differences() {
        let layout = layout(&[("tok_emb.weight", &[5, 3]), ("pos_emb.weight", &[4, 3])]);
        let tokens = vec![0, 4, 4, 1, 4, 0, 0, 2];
        check(&layout, 0, 0.5, &mut Fixed(Embedding::new(&layout), tokens));
    }
}
