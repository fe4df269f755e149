//! What a model description must fulfil before anything is sized by it.

use super::{LENET_KERNEL, ModelSpec, lenet_pooled};
use crate::limits::{
    LAYOUT_ELEMENTS_MAX, MODEL_LAYERS_MAX, MODEL_SIZE_MAX, SAMPLE_ELEMENTS_MAX,
    TRANSFORMER_CONTEXT_MAX,
};

/// Every rule the spec breaks, each as one sentence with the value seen.
pub(super) fn check(spec: &ModelSpec) -> Vec<String> {
    let mut faults = Faults(Vec::new());
    match spec {
        ModelSpec::Softmax { inputs, classes } => {
            faults.size("inputs", *inputs);
            faults.classes(*classes);
        }
        ModelSpec::Mlp { widths } => faults.mlp(widths),
        ModelSpec::Lenet { input, channels, hidden, classes } => {
            faults.image(input);
            channels.iter().for_each(|size| faults.size("channels", *size));
            faults.size("hidden", *hidden);
            faults.classes(*classes);
            if lenet_pooled(input).is_none() {
                faults.add(format!(
                    "input is {}x{}; two 5x5 convolutions and two poolings need at least {least}x{least}",
                    input[1],
                    input[2],
                    // 16 → 12 → 6 → 2 → 1
                    least = 4 * LENET_KERNEL - 4,
                ));
            }
        }
        ModelSpec::Resnet20 { input, width, classes } => {
            faults.image(input);
            faults.size("width", *width);
            faults.classes(*classes);
            if *width % 2 != 0 {
                faults.add(format!(
                    "width is {width}; it must be even, half of it pads each side of a shortcut"
                ));
            }
        }
        ModelSpec::Transformer { context, width, heads, layers } => {
            faults.range("context", *context, TRANSFORMER_CONTEXT_MAX);
            faults.size("width", *width);
            faults.size("heads", *heads);
            faults.range("layers", *layers, MODEL_LAYERS_MAX);
            if *heads > 0 && *width % *heads != 0 {
                faults.add(format!("heads is {heads}; it must divide width, which is {width}"));
            }
        }
        ModelSpec::External => {}
    }
    if faults.0.is_empty() {
        faults.total(spec);
    }
    faults.0
}

struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, fault: String) {
        self.0.push(fault);
    }

    fn range(&mut self, name: &str, got: u32, most: u32) {
        if !(1..=most).contains(&got) {
            self.add(format!("{name} is {got}; 1 to {most} are allowed"));
        }
    }

    fn size(&mut self, name: &str, got: u32) {
        self.range(name, got, MODEL_SIZE_MAX);
    }

    fn classes(&mut self, got: u32) {
        if !(2..=MODEL_SIZE_MAX).contains(&got) {
            self.add(format!("classes is {got}; 2 to {MODEL_SIZE_MAX} are allowed"));
        }
    }

    fn image(&mut self, input: &[u32; 3]) {
        for (name, size) in ["input channels", "input height", "input width"].iter().zip(input) {
            self.size(name, *size);
        }
        let elements = input.iter().try_fold(1u64, |n, size| n.checked_mul(u64::from(*size)));
        if elements.is_none_or(|n| n > SAMPLE_ELEMENTS_MAX) {
            self.add(format!("input is {input:?}; at most {SAMPLE_ELEMENTS_MAX} elements"));
        }
    }

    fn mlp(&mut self, widths: &[u32]) {
        if widths.len() < 2 {
            self.add(format!(
                "widths is {widths:?}; it must name at least two, the inputs and the classes"
            ));
        }
        if widths.len() > MODEL_LAYERS_MAX as usize {
            self.add(format!("widths names {}; at most {MODEL_LAYERS_MAX}", widths.len()));
            return;
        }
        if let [inner @ .., classes] = widths {
            inner.iter().for_each(|size| self.size("widths", *size));
            self.classes(*classes);
        }
    }

    /// Called when every size is within its own range, so that the tensors can be listed.
    fn total(&mut self, spec: &ModelSpec) {
        let size = |shape: &[u64]| {
            shape.iter().try_fold(1u64, |product, dimension| product.checked_mul(*dimension))
        };
        let mut tensors = super::tensors::of(spec).into_iter();
        let total = tensors.try_fold(0u64, |sum, tensor| sum.checked_add(size(&tensor.shape)?));
        if total.is_none_or(|total| total > LAYOUT_ELEMENTS_MAX) {
            self.add(format!("the model has more than {LAYOUT_ELEMENTS_MAX} parameters"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_faults(spec: &ModelSpec, expected: &[&str]) {
        assert_eq!(check(spec), expected, "{spec:?}");
        assert_eq!(spec.layout().is_some(), expected.is_empty() && *spec != ModelSpec::External);
    }

    #[test]
    fn a_sound_model_has_no_faults() {
        check_faults(&ModelSpec::Softmax { inputs: 64, classes: 10 }, &[]);
        check_faults(&ModelSpec::Mlp { widths: vec![1, 2] }, &[]);
        check_faults(
            &ModelSpec::Lenet { input: [1, 16, 16], channels: [1, 1], hidden: 1, classes: 2 },
            &[],
        );
        check_faults(&ModelSpec::Resnet20 { input: [3, 1, 1], width: 2, classes: 10 }, &[]);
        check_faults(&ModelSpec::Transformer { context: 8, width: 6, heads: 3, layers: 1 }, &[]);
        check_faults(&ModelSpec::External, &[]);
    }

    #[test]
    fn an_mlp_needs_inputs_and_classes() {
        let rule = "it must name at least two, the inputs and the classes";
        check_faults(&ModelSpec::Mlp { widths: vec![] }, &[&format!("widths is []; {rule}")]);
        check_faults(&ModelSpec::Mlp { widths: vec![9] }, &[&format!("widths is [9]; {rule}")]);
        check_faults(
            &ModelSpec::Mlp { widths: vec![0, 3, 1] },
            &["widths is 0; 1 to 1048576 are allowed", "classes is 1; 2 to 1048576 are allowed"],
        );
    }

    #[test]
    fn heads_divide_the_width() {
        check_faults(
            &ModelSpec::Transformer { context: 8, width: 8, heads: 3, layers: 1 },
            &["heads is 3; it must divide width, which is 8"],
        );
    }

    #[test]
    fn an_image_must_survive_two_convolutions_and_two_poolings() {
        check_faults(
            &ModelSpec::Lenet { input: [1, 15, 28], channels: [2, 3], hidden: 4, classes: 10 },
            &["input is 15x28; two 5x5 convolutions and two poolings need at least 16x16"],
        );
    }

    #[test]
    fn a_shortcut_is_padded_on_both_sides() {
        check_faults(
            &ModelSpec::Resnet20 { input: [3, 8, 8], width: 3, classes: 10 },
            &["width is 3; it must be even, half of it pads each side of a shortcut"],
        );
    }

    #[test]
    fn sizes_that_would_exhaust_memory_are_refused_before_anything_is_listed() {
        let huge = u32::MAX;
        check_faults(
            &ModelSpec::Transformer { context: 8, width: 8, heads: 1, layers: huge },
            &["layers is 4294967295; 1 to 1024 are allowed"],
        );
        assert_eq!(check(&ModelSpec::Mlp { widths: vec![1 << 20, 1 << 20, 2] }).len(), 1);
        let image = ModelSpec::Resnet20 { input: [huge; 3], width: huge, classes: huge };
        assert_eq!(check(&image).len(), 7);
        assert_eq!(image.input_len(), None);
    }
}
