//! The first values of a model: a function of seed, tensor and element, so that a server makes its
//! own blocks alone and any placement gives the same model.

use crate::layout::{Block, Init, Layout};
use crate::random;

/// Writes the first values of one block. Tensors that clients bring ([`Init::External`]) are zero
/// until they do.
///
/// # Panics
/// When `out` is not as long as the block, or the block is not of this layout.
pub fn initialise(layout: &Layout, seed: u64, block: &Block, out: &mut [f32]) {
    assert_eq!(out.len(), block.len, "one value per element of the block");
    match layout.tensors()[block.tensor.index()].init {
        Init::Zeros | Init::External => out.fill(0.0),
        Init::Ones => out.fill(1.0),
        Init::Uniform { bound } => {
            let stream = u64::from(block.tensor.0);
            for (value, element) in out.iter_mut().zip(block.start as u64..) {
                *value = random::symmetric_unit(seed, stream, element) * bound;
            }
        }
    }
}

/// The first values of the whole model, in layout order.
pub fn initialise_all(layout: &Layout, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; layout.elements()];
    for block in layout.blocks() {
        initialise(layout, seed, block, &mut values[block.range()]);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::TensorSpec;

    fn layout() -> Layout {
        Layout::new(vec![
            TensorSpec::parameter("a", &[700, 3], Init::Uniform { bound: 0.25 }),
            TensorSpec::parameter("b", &[4], Init::Ones),
            TensorSpec::parameter("c", &[2], Init::External),
            TensorSpec::parameter("d", &[3], Init::Uniform { bound: 3.0 }),
        ])
        .unwrap()
    }

    /// Golden bits: if this fails, every seed means another run than before.
    #[test]
    fn the_first_values_of_a_seed_are_pinned() {
        let values = initialise_all(&layout(), 42);
        let bits = |range: std::ops::Range<usize>| -> Vec<u32> {
            values[range].iter().map(|value| value.to_bits()).collect()
        };
        assert_eq!(bits(0..3), [0xbdaafa34, 0xbe29a088, 0x3ce46730]);
        assert_eq!(bits(2106..2109), [0x3d9a87e0, 0x40188a66, 0x3ffb4bf4]);
        assert_eq!(values[2100..2106], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_block_alone_has_the_values_it_has_in_the_whole() {
        let layout = layout();
        let whole = initialise_all(&layout, 7);
        assert!(layout.blocks().len() > 5);
        for block in layout.blocks() {
            let mut alone = vec![f32::NAN; block.len];
            initialise(&layout, 7, block, &mut alone);
            assert_eq!(alone, whole[block.range()]);
        }
        assert_ne!(whole, initialise_all(&layout, 8));
    }

    #[test]
    fn uniform_values_fill_their_range_and_no_more() {
        let values = &initialise_all(&layout(), 1)[..2100];
        assert!(values.iter().all(|value| (-0.25..0.25).contains(value)));
        assert!(values.iter().any(|value| *value > 0.24) && values.iter().any(|v| *v < -0.24));
        let mean = values.iter().sum::<f32>() / 2100.0;
        assert!(mean.abs() < 0.01, "{mean}"); // standard error 0.003
    }
}
