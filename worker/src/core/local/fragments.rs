//! Which tensors are pushed together.

use slackline_common::ids::TensorId;
use slackline_common::layout::Layout;
use std::cmp::Reverse;

/// The parts of a model that are pushed at different times: whole tensors, about equal in elements.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fragments {
    tensors: Vec<Vec<TensorId>>,
}

impl Fragments {
    /// Cuts a layout into `count` parts, from 1 to the number of its tensors: each tensor, the largest
    /// first, goes to the part with the fewest elements so far (Graham, "Bounds on Multiprocessing
    /// Timing Anomalies", 1969). Of equal tensors and of equal parts the first comes first, so that
    /// every machine cuts alike, and no part stays empty.
    pub fn balance(layout: &Layout, count: u16) -> Self {
        let count = usize::from(count.max(1));
        let mut by_size: Vec<TensorId> = all(layout).collect();
        by_size.sort_by_key(|tensor| Reverse(layout.range(*tensor).len()));
        let mut tensors = vec![Vec::new(); count];
        let mut elements = vec![0; count];
        for tensor in by_size {
            let lightest = (0..count).min_by_key(|part| elements[*part]).unwrap_or(0);
            elements[lightest] += layout.range(tensor).len();
            tensors[lightest].push(tensor);
        }
        tensors.iter_mut().for_each(|part| part.sort_unstable());
        Self { tensors }
    }

    /// How many there are.
    pub const fn count(&self) -> usize {
        self.tensors.len()
    }

    /// The tensors of one, in the layout's order.
    pub fn tensors(&self, fragment: usize) -> &[TensorId] {
        &self.tensors[fragment]
    }
}

/// Every tensor of a layout, in order.
pub(super) fn all(layout: &Layout) -> impl Iterator<Item = TensorId> + use<> {
    let count = u32::try_from(layout.tensors().len()).expect("at most TENSORS_MAX");
    (0..count).map(TensorId)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slackline_common::layout::{Init, TensorSpec};

    fn layout(sizes: &[u64]) -> Layout {
        let tensors = sizes.iter().enumerate();
        let spec = |(at, size): (usize, &u64)| {
            TensorSpec::parameter(format!("t{at}"), &[*size], Init::Zeros)
        };
        Layout::new(tensors.map(spec).collect()).unwrap()
    }

    fn numbers(fragments: &Fragments) -> Vec<Vec<u32>> {
        (0..fragments.count())
            .map(|part| fragments.tensors(part).iter().map(|tensor| tensor.0).collect())
            .collect()
    }

    #[test]
    fn tensors_go_to_the_lightest_fragment_the_largest_first() {
        let fragments = Fragments::balance(&layout(&[5, 100, 60, 45, 5]), 2);
        // 100 | 60; 60 + 45; 100 + 5; 105 each, so the last 5 goes to the first.
        assert_eq!(numbers(&fragments), [vec![0, 1, 4], vec![2, 3]]);
        assert_eq!(numbers(&Fragments::balance(&layout(&[1, 1]), 2)), [[0], [1]]);
        assert_eq!(numbers(&Fragments::balance(&layout(&[1, 2, 3]), 1)), [[0, 1, 2]]);
    }

    proptest! {
        #[test]
        fn every_tensor_is_in_one_fragment_and_none_is_empty(
            sizes in proptest::collection::vec(1u64..50, 1..20), count in 1u16..8
        ) {
            let count = count.min(u16::try_from(sizes.len()).unwrap());
            let fragments = Fragments::balance(&layout(&sizes), count);
            let mut seen: Vec<u32> = numbers(&fragments).concat();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..u32::try_from(sizes.len()).unwrap()).collect::<Vec<_>>());
            prop_assert!(numbers(&fragments).iter().all(|part| !part.is_empty()));
            // Two parts differ by one tensor at most.
            let weights: Vec<u64> = numbers(&fragments)
                .iter()
                .map(|part| part.iter().map(|at| sizes[*at as usize]).sum())
                .collect();
            let (low, high) = (weights.iter().min().unwrap(), weights.iter().max().unwrap());
            prop_assert!(high - low <= *sizes.iter().max().unwrap());
        }
    }
}
