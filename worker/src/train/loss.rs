//! Softmax with cross entropy, in nats, over rows of one score per class.

use super::Evaluation;

/// Returns the mean loss and turns `scores [targets, classes]` into the gradient of it. Targets are
/// below `classes`.
pub(super) fn cross_entropy(scores: &mut [f32], targets: &[u32]) -> f32 {
    let classes = scores.len() / targets.len();
    let share = 1.0 / targets.len() as f32;
    let mut loss = 0.0;
    for (row, target) in scores.chunks_exact_mut(classes).zip(targets) {
        let target = *target as usize;
        let score = row[target];
        let (highest, sum) = exponentials(row);
        loss += row_loss(score, highest, sum);
        let scale = share / sum;
        row.iter_mut().for_each(|value| *value *= scale);
        row[target] -= share;
    }
    #[expect(clippy::cast_possible_truncation, reason = "summed in f64, reported in f32")]
    {
        (loss / targets.len() as f64) as f32
    }
}

/// Sums losses and counts right answers; `scores` holds stale numbers afterwards.
pub(super) fn evaluate(scores: &mut [f32], targets: &[u32]) -> Evaluation {
    let classes = scores.len() / targets.len();
    let mut evaluation = Evaluation { count: targets.len() as u64, ..Evaluation::default() };
    for (row, target) in scores.chunks_exact_mut(classes).zip(targets) {
        let target = *target as usize;
        evaluation.correct += u64::from(largest(row) == Some(target));
        let score = row[target];
        let (highest, sum) = exponentials(row);
        evaluation.loss_sum += row_loss(score, highest, sum);
    }
    evaluation
}

/// Replaces each score by `exp(score - highest)`; returns the highest score and the sum.
fn exponentials(row: &mut [f32]) -> (f32, f32) {
    let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row {
        *value = (*value - highest).exp();
        sum += *value;
    }
    (highest, sum)
}

fn row_loss(score: f32, highest: f32, sum: f32) -> f64 {
    f64::from(sum).ln() + f64::from(highest) - f64::from(score)
}

/// Position of the largest number, the first of equals; `None` when there is none but NaN.
fn largest(row: &[f32]) -> Option<usize> {
    let mut best = None;
    let mut most = f32::NEG_INFINITY;
    for (i, value) in row.iter().enumerate() {
        if *value > most {
            (best, most) = (Some(i), *value);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::differences::numbers;
    use super::*;

    #[test]
    fn the_gradient_is_that_of_the_loss() {
        let scores: Vec<f32> = numbers(4, 4 * 7).iter().map(|v| 3.0 * v).collect();
        let targets = [0, 6, 3, 3];
        let mut gradient = scores.clone();
        cross_entropy(&mut gradient, &targets);
        for i in 0..scores.len() {
            let side = |step: f32| {
                let mut moved = scores.clone();
                moved[i] += step;
                f64::from(cross_entropy(&mut moved, &targets))
            };
            let expected = (side(0.01) - side(-0.01)) / 0.02;
            assert!((f64::from(gradient[i]) - expected).abs() < 3e-5, "{} {expected}", gradient[i]);
        }
    }

    #[test]
    fn equal_scores_cost_the_logarithm_of_the_classes() {
        let loss = cross_entropy(&mut [5.0; 20], &[3, 9]);
        assert!((loss - 10f32.ln()).abs() < 1e-6, "{loss}");
    }

    #[test]
    fn huge_scores_neither_overflow_nor_lose_the_loss() {
        let loss = cross_entropy(&mut [1e4, -1e4], &[1]);
        assert_eq!(loss, 2e4);
        assert!(cross_entropy(&mut [f32::NAN, 0.0], &[1]).is_nan());
    }

    #[test]
    fn an_evaluation_counts_the_first_of_the_largest() {
        let mut scores = [1.0, 2.0, 2.0, 0.0, 5.0, 0.0, f32::NAN, f32::NAN, f32::NAN];
        let evaluation = evaluate(&mut scores, &[1, 2, 0]);
        assert_eq!((evaluation.correct, evaluation.count), (1, 3));
        assert!(evaluation.loss_sum.is_nan());
    }
}
