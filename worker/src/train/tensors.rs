//! How layers see the flat parameter vector, and how they hand gradients over.

use slackline_common::ids::TensorId;
use slackline_common::layout::Layout;

/// The parameters of a step, tensor by tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters<'a> {
    layout: &'a Layout,
    flat: &'a [f32],
}

impl<'a> Parameters<'a> {
    /// `flat` is as long as the layout.
    pub(super) fn new(layout: &'a Layout, flat: &'a [f32]) -> Self {
        assert_eq!(flat.len(), layout.elements());
        Self { layout, flat }
    }

    /// One tensor's values, row-major.
    pub(super) fn get(&self, tensor: TensorId) -> &'a [f32] {
        &self.flat[self.layout.range(tensor)]
    }
}

/// Where finished gradients go. They share one buffer, as long as the largest tensor, so that a
/// gradient is still in the cache when the receiver reads it.
pub(super) struct Gradients<'a> {
    pub(super) layout: &'a Layout,
    pub(super) buffer: &'a mut Vec<f32>,
    pub(super) ready: &'a mut dyn FnMut(TensorId, &[f32]),
}

impl Gradients<'_> {
    /// Hands over the gradient that `write` leaves in its argument, which starts with stale numbers.
    pub(super) fn hand_over(&mut self, tensor: TensorId, write: impl FnOnce(&mut [f32])) {
        let len = self.layout.range(tensor).len();
        if self.buffer.len() < len {
            self.buffer.resize(len, 0.0);
        }
        let gradient = &mut self.buffer[..len];
        write(gradient);
        (self.ready)(tensor, gradient);
    }

    /// Hands over a gradient that lies in a layer's own buffer.
    pub(super) fn hand_over_slice(&mut self, tensor: TensorId, gradient: &[f32]) {
        assert_eq!(gradient.len(), self.layout.range(tensor).len());
        (self.ready)(tensor, gradient);
    }
}

/// The tensor of that name in a layout made from the same description.
pub(super) fn tensor(layout: &Layout, name: &str) -> TensorId {
    layout
        .find(name)
        .unwrap_or_else(|| panic!("a model's layout has every tensor it needs: {name}"))
}

/// The first `len` elements of a buffer that is grown when needed and never shrunk.
pub(super) fn grown(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}
