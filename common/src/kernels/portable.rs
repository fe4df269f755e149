//! The meaning of each kernel.

/// Values between two looks at the answer of [`is_finite`]: 4 KiB of `f32`.
pub(crate) const FINITE_STRIDE: usize = 1024;

/// Partial sums of [`sum_of_squares`] and [`sum_of_magnitudes`].
const LANES: usize = 16;

#[inline(always)]
pub(super) fn scale_add(sum: &mut [f32], scale: f32, values: &[f32]) {
    assert_eq!(sum.len(), values.len(), "scale_add needs as many values as sums");
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += scale * value;
    }
}

/// Whether the exponent bits say infinity or NaN.
#[inline(always)]
pub(crate) fn is_special(bits: u32) -> bool {
    bits & 0x7fff_ffff >= f32::INFINITY.to_bits()
}

#[inline(always)]
pub(super) fn is_finite(values: &[f32]) -> bool {
    values.chunks(FINITE_STRIDE).all(
        #[inline(always)]
        |chunk| {
            let mut special = false;
            for value in chunk {
                special |= is_special(value.to_bits());
            }
            !special
        },
    )
}

#[inline(always)]
pub(super) fn sum_of_squares(values: &[f32]) -> f64 {
    sum(
        values,
        #[inline(always)]
        |value| f64::from(value) * f64::from(value),
    )
}

#[inline(always)]
pub(super) fn sum_of_magnitudes(values: &[f32]) -> f64 {
    sum(
        values,
        #[inline(always)]
        |value| f64::from(value.abs()),
    )
}

#[inline(always)]
fn sum(values: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    let mut partial = [0.0f64; LANES];
    let (whole, rest) = values.as_chunks::<LANES>();
    for chunk in whole {
        for (partial, value) in partial.iter_mut().zip(chunk) {
            *partial += term(*value);
        }
    }
    for (partial, value) in partial.iter_mut().zip(rest) {
        *partial += term(*value);
    }
    for width in [8, 4, 2, 1] {
        let (low, high) = partial.split_at_mut(width);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
    }
    partial[0]
}
