use super::*;

/// Lengths around one, two and four vectors of 8, the 16 partial sums and one stride.
pub(crate) fn lengths() -> impl Iterator<Item = usize> {
    (0..=70).chain([127, 128, 129, 1023, 1024, 1025, 2047, 2048, 2100])
}

/// Values of many magnitudes and both signs, the same on every machine.
pub(crate) fn values(len: usize, seed: usize) -> Vec<f32> {
    let mut state = u32::try_from(seed).unwrap().wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let mantissa = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            mantissa * 2.0f32.powi((state & 15) as i32 - 8)
        })
        .collect()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_cpu_with_avx2_runs_the_fast_bodies() {
    #[cfg(target_arch = "x86_64")]
    let expected = std::arch::is_x86_feature_detected!("avx")
        && std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c");
    #[cfg(not(target_arch = "x86_64"))]
    let expected = false;
    assert_eq!(fast_body(), expected);
}

#[test]
fn both_bodies_give_the_same_bits_at_every_length_and_misalignment() {
    for len in lengths() {
        for offset in 0..9 {
            let all = values(len + offset, len);
            let x = &all[offset..];
            let mut fast = values(len + offset, 7);
            let mut slow = fast.clone();
            scale_add(&mut fast[offset..], 0.3, x);
            portable::scale_add(&mut slow[offset..], 0.3, x);
            assert_eq!(bits(&fast), bits(&slow), "scale_add of {len} at {offset}");
            let squares = (sum_of_squares(x).to_bits(), portable::sum_of_squares(x).to_bits());
            assert_eq!(squares.0, squares.1, "sum_of_squares of {len} at {offset}");
            assert!(is_finite(x) && portable::is_finite(x));
        }
    }
}

#[test]
fn scale_add_rounds_the_product_and_then_the_sum() {
    // 1 + 2⁻¹² squared is 1 + 2⁻¹¹ + 2⁻²⁴: a fused multiply-add would keep the last bit here.
    let x = 1.0 + 2.0f32.powi(-12);
    for len in [1, 8, 33] {
        let mut sum = vec![-1.0 - 2.0f32.powi(-11); len];
        scale_add(&mut sum, x, &vec![x; len]);
        assert_eq!(sum, vec![0.0; len]);
    }
}

#[test]
fn one_special_value_anywhere_is_seen() {
    for len in lengths().skip(1) {
        let mut x = values(len, 3);
        for at in [0, len / 2, len - 1] {
            let kept = x[at];
            for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0xff80_0001)]
            {
                x[at] = special;
                assert!(!is_finite(&x) && !portable::is_finite(&x), "{special} at {at} of {len}");
            }
            for plain in [f32::MAX, f32::MIN, f32::from_bits(1), -0.0] {
                x[at] = plain;
                assert!(is_finite(&x) && portable::is_finite(&x), "{plain} at {at} of {len}");
            }
            x[at] = kept;
        }
    }
}

#[test]
fn sum_of_squares_is_right_and_has_the_documented_order() {
    assert_eq!(sum_of_squares(&[]), 0.0);
    assert_eq!(sum_of_squares(&[3.0, -4.0]), 25.0);
    assert_eq!(sum_of_squares(&[f32::MAX; 2]), 2.0 * f64::from(f32::MAX).powi(2));
    // An independent walk of the documented order, one scalar at a time.
    for len in lengths() {
        let x = values(len, 11);
        let mut partial = vec![0.0f64; 16];
        for (i, value) in x.iter().enumerate() {
            partial[i % 16] += f64::from(*value).powi(2);
        }
        while partial.len() > 1 {
            let half = partial.len() / 2;
            partial = (0..half).map(|j| partial[j] + partial[j + half]).collect();
        }
        assert_eq!(sum_of_squares(&x).to_bits(), partial[0].to_bits(), "{len} values");
    }
}
