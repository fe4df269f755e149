//! Pulls towards the last answer between pushes.
//!
//! After Naganuma et al., "Pseudo-Asynchronous Local SGD" (2025), whose workers stay near each other
//! without sending anything: with probability `p` a worker moves by `strength / p` of the way towards
//! the global parameters it last saw. There such a pull takes the place of the optimizer's step, and
//! the steps in between are longer by `1 / (1 - p)`, so that both have their mean. Here a pull comes
//! on top of the step, whose length stays as it is: the mean movement is the same, every gradient
//! counts, and the inner learning rate means what it means without pulls.
//!
//! A pull of the whole way or more would throw away the round's work, or swing past the anchor, so
//! `strength / p` must stay below 1.

use super::LocalError;
use slackline_common::ids::SeatId;
use slackline_common::job::AnchorPull;
use slackline_common::random::hash;

/// Separates these draws from all others of a job's seed.
const STREAM: u64 = 0x616e_6368_6f72_0000;

/// When a seat is pulled, and how far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AnchorDraw {
    probability: f64,
    weight: f32,
    seed: u64,
    stream: u64,
}

impl AnchorDraw {
    /// Draws of one seat. Equal seeds, seats and steps draw alike on every machine.
    ///
    /// # Errors
    /// [`LocalError::Pull`] for numbers with which a pull would not stay short of the anchor.
    pub fn new(pull: AnchorPull, seed: u64, seat: SeatId) -> Result<Self, LocalError> {
        let AnchorPull { probability, strength } = pull;
        let weight = strength / probability;
        // Written so that NaN is refused as well.
        let is_sound = probability > 0.0 && probability <= 1.0 && (0.0..1.0).contains(&weight);
        if !is_sound {
            return Err(LocalError::Pull { probability, strength });
        }
        let stream = STREAM | u64::from(seat.0);
        Ok(Self { probability: probability.into(), weight, seed, stream })
    }

    /// The share of the way to the anchor that the seat moves after this step of its own, if it
    /// is pulled at all.
    pub fn weight(&self, step: u64) -> Option<f32> {
        // The upper 53 bits are exact in f64: a uniform number in 0..1.
        let unit = (hash(self.seed, self.stream, step) >> 11) as f64 / (1u64 << 53) as f64;
        (unit < self.probability).then_some(self.weight)
    }
}

/// `parameters += weight × (anchor - parameters)`.
pub(super) fn pull(parameters: &mut [f32], anchor: &[f32], weight: f32) {
    parameters.iter_mut().zip(anchor).for_each(|(w, anchor)| *w += weight * (anchor - *w));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(probability: f32, strength: f32, seed: u64, seat: u16) -> AnchorDraw {
        AnchorDraw::new(AnchorPull { probability, strength }, seed, SeatId(seat)).unwrap()
    }

    #[test]
    fn a_seat_is_pulled_as_often_as_the_probability_says_and_by_the_strength_on_average() {
        for probability in [0.05f32, 0.3, 1.0] {
            let draw = draw(probability, 0.02, 7, 3);
            let steps = 100_000u32;
            let pulls: Vec<f32> = (0..steps).filter_map(|step| draw.weight(step.into())).collect();
            let (n, p) = (f64::from(steps), f64::from(probability));
            // Four standard deviations of a binomial count.
            let slack = 4.0 * (n * p * (1.0 - p)).sqrt();
            assert!((pulls.len() as f64 - n * p).abs() <= slack, "{probability}: {}", pulls.len());
            let mean = pulls.iter().map(|weight| f64::from(*weight)).sum::<f64>() / n;
            assert!((mean - 0.02).abs() <= 0.02 * slack / (n * p) + 1e-6, "{mean}");
        }
    }

    #[test]
    fn draws_depend_on_seed_seat_and_step_alone() {
        let of = |seed, seat| -> Vec<bool> {
            let draw = draw(0.5, 0.1, seed, seat);
            (0..64).map(|step| draw.weight(step).is_some()).collect()
        };
        assert_eq!(of(1, 0), of(1, 0));
        assert_ne!(of(1, 0), of(2, 0));
        assert_ne!(of(1, 0), of(1, 1));
    }

    #[test]
    fn a_pull_that_reaches_the_anchor_is_refused_with_the_numbers() {
        for (probability, strength) in [(0.1, 0.1), (0.1, 0.5), (0.0, 0.0), (1.5, 0.1), (0.5, -0.1)]
        {
            let pull = AnchorPull { probability, strength };
            let error = AnchorDraw::new(pull, 1, SeatId(0)).unwrap_err();
            assert!(error.to_string().contains(&format!("strength {strength}")), "{error}");
        }
        let nan = AnchorPull { probability: 0.5, strength: f32::NAN };
        AnchorDraw::new(nan, 1, SeatId(0)).unwrap_err();
    }

    #[test]
    fn a_pull_goes_its_share_of_the_way() {
        let mut parameters = [4.0, -1.0];
        pull(&mut parameters, &[2.0, -1.0], 0.25);
        assert_eq!(parameters, [3.5, -1.0]);
    }
}
