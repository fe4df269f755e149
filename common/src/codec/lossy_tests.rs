//! The same sentences for every lossy format, and what is special about each.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // the numbers here are small

use super::*;
use crate::kernels::tests::{bits, values};
use crate::random;
use proptest::prelude::*;

/// The input that other systems' codecs are compared on.
const SAMPLE: [f32; 6] = [0.5, -1.5, 0.0, -0.0, 2.0, -0.25];
const DRAW: Draw = Draw { seed: 0x0123_4567_89ab_cdef };

const NEAREST: Rounding = Rounding::Nearest;
const CHANCE: Rounding = Rounding::Stochastic;
const VALUES: [ValueFormat; 5] = [
    ValueFormat::F32,
    ValueFormat::Bf16,
    ValueFormat::Int8,
    ValueFormat::Int4,
    ValueFormat::TwoBit,
];

const fn top_k(density: f32, values: ValueFormat) -> CodecSpec {
    CodecSpec::TopK { density, select: Select::Exact, values }
}

fn specs() -> Vec<CodecSpec> {
    let mut specs = vec![
        CodecSpec::F32,
        CodecSpec::Bf16,
        CodecSpec::F16,
        CodecSpec::Int8 { rounding: NEAREST },
        CodecSpec::Int8 { rounding: CHANCE },
        CodecSpec::Int4 { rounding: NEAREST },
        CodecSpec::Int4 { rounding: CHANCE },
        CodecSpec::Sign,
        CodecSpec::TwoBit { threshold: 0.5 },
    ];
    for values in VALUES {
        for density in [0.01, 0.3, 1.0] {
            specs.push(top_k(density, values));
            specs.push(CodecSpec::TopK { density, select: Select::Threshold, values });
            specs.push(CodecSpec::RandomK { density, values });
        }
    }
    specs
}

fn encoded(spec: &CodecSpec, values: &[f32]) -> (CodecId, Vec<u8>) {
    let mut out = vec![0xee; 3];
    let id = Encoder::default().encode(spec, DRAW, values, &mut out);
    assert_eq!(out[..3], [0xee; 3], "{spec} appends");
    (id, out.split_off(3))
}

fn decoded(id: CodecId, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; elements];
    codec(id).decode(bytes, &mut out).unwrap();
    out
}

fn through(spec: &CodecSpec, values: &[f32]) -> Vec<f32> {
    let (id, bytes) = encoded(spec, values);
    decoded(id, &bytes, values.len())
}

/// What is held back, as every caller computes it.
fn held_back(spec: &CodecSpec, values: &[f32]) -> Vec<f32> {
    let (id, bytes) = encoded(spec, values);
    let mut residual = values.to_vec();
    codec(id).decode_add(&bytes, -1.0, &mut residual).unwrap();
    residual
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const LENGTHS: [usize; 12] = [0, 1, 2, 7, 16, 127, 128, 129, 255, 257, 1000, 5000];

#[test]
fn every_format_takes_its_own_bytes_and_says_the_same_through_every_door() {
    for spec in specs() {
        for elements in LENGTHS {
            let x = values(elements, 3);
            let (id, bytes) = encoded(&spec, &x);
            let place = format!("{spec}, {elements} elements");
            assert!(bytes.len() <= Encoder::encoded_len_max(&spec, elements), "{place}");
            let format = codec(id);
            assert_eq!(format.validate(&bytes, elements), Ok(()), "{place}");
            assert!(format.is_finite(&bytes), "{place}");
            let out = decoded(id, &bytes, elements);
            let mut sum = vec![0.0; elements];
            format.decode_add(&bytes, 1.0, &mut sum).unwrap();
            assert!(out.iter().zip(&sum).all(|(a, b)| a == b), "{place}");
            let mut sent = vec![false; elements];
            format.for_each_sent(&bytes, elements, &mut |at| sent[at] = true);
            assert!(out.iter().zip(&sent).all(|(v, sent)| *sent || v.to_bits() == 0), "{place}");
            let again = Encoder::default();
            drop(again);
            assert_eq!(encoded(&spec, &x), (id, bytes), "equal draws give equal bytes: {place}");
        }
    }
}

#[test]
fn an_encoder_that_was_used_gives_the_bytes_of_a_new_one() {
    let mut encoder = Encoder::default();
    for spec in specs() {
        for elements in [5000, 3, 700] {
            let x = values(elements, elements);
            let mut out = Vec::new();
            let id = encoder.encode(&spec, DRAW, &x, &mut out);
            assert_eq!((id, out), encoded(&spec, &x), "{spec}");
        }
    }
}

#[test]
fn nan_and_infinity_reach_the_receiver_wherever_they_are() {
    for spec in specs() {
        let is_random = matches!(spec, CodecSpec::RandomK { density, .. } if density < 1.0);
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            for elements in [1usize, 40, 700] {
                for at in [0, elements / 2, elements - 1] {
                    let mut x = values(elements, 9);
                    x[at] = special;
                    let (id, bytes) = encoded(&spec, &x);
                    let mut is_sent = false;
                    codec(id).for_each_sent(&bytes, elements, &mut |sent| is_sent |= sent == at);
                    assert!(is_sent || is_random, "{spec}: {special} at {at} of {elements}");
                    // bf16 and f16 round large numbers to infinity, never a special one to a number.
                    let is_seen = !codec(id).is_finite(&bytes);
                    assert_eq!(is_seen, is_sent, "{spec}: {special} at {at} of {elements}");
                    assert_eq!(codec(id).validate(&bytes, elements), Ok(()), "{spec}");
                    let out = decoded(id, &bytes, elements);
                    assert_eq!(out.iter().any(|v| !v.is_finite()), is_seen, "{spec}");
                }
            }
        }
    }
}

#[test]
fn numbers_at_the_ends_of_the_range_stay_numbers() {
    let ends = [f32::MAX, -f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), -0.0, 0.0, 1e-37, 3e38];
    for spec in specs() {
        if matches!(spec, CodecSpec::F32 | CodecSpec::Bf16 | CodecSpec::F16) {
            continue; // these have their own rule: too large becomes infinity
        }
        for scale in [1.0, 1e-38, 1e-45] {
            let x: Vec<f32> = ends.iter().cycle().take(300).map(|end| end * scale).collect();
            let (id, bytes) = encoded(&spec, &x);
            if matches!(id, CodecId::Bf16)
                || matches!(
                    spec,
                    CodecSpec::TopK { values: ValueFormat::Bf16, .. }
                        | CodecSpec::RandomK { values: ValueFormat::Bf16, .. }
                )
            {
                continue;
            }
            assert_eq!(codec(id).validate(&bytes, 300), Ok(()), "{spec} × {scale}");
            assert!(codec(id).is_finite(&bytes), "{spec} × {scale}");
            let out = decoded(id, &bytes, 300);
            assert!(out.iter().all(|value| value.is_finite()), "{spec} × {scale}");
        }
    }
}

/// The bytes of a few values in every format: they never change under a number.
#[test]
fn golden_bytes_are_pinned() {
    let golden = |spec: CodecSpec, values: &[f32]| {
        let (id, bytes) = encoded(&spec, values);
        format!("{id} {}", hex(&bytes))
    };
    let long: Vec<f32> =
        (0u8..64).map(|at| if at % 9 == 4 { f32::from(at) } else { 0.0 }).collect();
    let specs = [
        CodecSpec::Int8 { rounding: NEAREST },
        CodecSpec::Int8 { rounding: CHANCE },
        CodecSpec::Int4 { rounding: NEAREST },
        CodecSpec::Int4 { rounding: CHANCE },
        CodecSpec::Sign,
        CodecSpec::TwoBit { threshold: 0.5 },
    ];
    let sparse =
        VALUES.map(|values| [top_k(0.09, values), CodecSpec::RandomK { density: 0.09, values }]);
    let dense = specs.map(|spec| golden(spec, &SAMPLE));
    let sparse = sparse.concat().into_iter().map(|spec| golden(spec, &long));
    let expected = [
        "int8 0402813c20a100007ff0",
        "int8 0402813c20a100007ff0",
        "int4 2549923e027bf0",
        "int4 2549923e027bf0",
        "sign 5555353f22",
        "two_bit 0000003fe0c00000",
        "top_k 060000100335841002000050410000b0410000f841000020420000444200006842",
        "random_k 06000000efcdab8967452301000000000000000000000000000000000000000000000000",
        "top_k 0600001103358410025041b041f841204244426842",
        "random_k 06000001efcdab8967452301000000000000000000000000",
        "top_k 060000120335841002e93e1d3044586c7f",
        "random_k 06000002efcdab89674523010000000000000000",
        "top_k 0600001303358410020441325476",
        "random_k 06000003efcdab89674523010000000000",
        "top_k 060000140335841002b0414442800a",
        "random_k 06000004efcdab8967452301000000000000",
    ];
    assert_eq!(dense.into_iter().chain(sparse).collect::<Vec<_>>(), expected);
    // The parameter follows the gaps there are, not the length of the block.
    let near: Vec<f32> = (0u8..64).map(|at| if at < 3 { 1.0 } else { 0.0 }).collect();
    let bytes = "0300001000000000803f0000803f0000803f";
    assert_eq!(golden(top_k(0.5, ValueFormat::F32), &near), format!("top_k {bytes}"));
}

/// The sample through our formats, beside what other systems make of it.
#[test]
fn the_shared_sample_decodes_to_known_values() {
    // BytePS' scaled sign: mean magnitude .708333, and like ours zero and -0 are plus. (DeepSpeed scales
    // by the root of the mean square, MXNet's 1-bit sends zero as minus, Psyche -0 as minus.)
    let scale = 4.25f32 / 6.0;
    let sign = through(&CodecSpec::Sign, &SAMPLE);
    assert_eq!(bits(&sign), bits(&[scale, -scale, scale, scale, scale, -scale]));
    // MXNet's two bits, with the bytes it has after the threshold.
    let two_bit = CodecSpec::TwoBit { threshold: 0.5 };
    assert_eq!(through(&two_bit, &SAMPLE), [0.5, -0.5, 0.0, 0.0, 0.5, 0.0]);
    assert_eq!(held_back(&two_bit, &SAMPLE), [0.0, -1.0, 0.0, 0.0, 1.5, -0.25]);
    assert_eq!(encoded(&two_bit, &SAMPLE).1[4..], [0xe0, 0xc0, 0, 0]);
    // Bagua's 8 bits run from the smallest to the largest value; ours are symmetric, so 0 stays 0.
    let int8 = through(&CodecSpec::Int8 { rounding: NEAREST }, &SAMPLE);
    let step = 2.0f32 / 127.0;
    let levels = [32.0, -95.0, 0.0, 0.0, 127.0, -16.0];
    assert_eq!(int8, levels.map(|level| step * level));
    let int4 = through(&CodecSpec::Int4 { rounding: NEAREST }, &SAMPLE);
    assert_eq!(int4, [2.0, -5.0, 0.0, 0.0, 7.0, -1.0].map(|level| 2.0f32 / 7.0 * level));
    assert_eq!(through(&top_k(0.5, ValueFormat::F32), &SAMPLE), [0.5, -1.5, 0.0, 0.0, 2.0, 0.0]);
}

/// MXNet's test of its 2-bit compression over the wire (E23), for one worker: what is sent is a multiple
/// of the threshold, what is held back is carried on.
#[test]
fn two_bits_send_a_threshold_when_enough_has_gathered() {
    let t = 0.5f32;
    let spec = CodecSpec::TwoBit { threshold: t };
    for sign in [1.0f32, -1.0] {
        let (mut residual, mut total) = (vec![0.0f32; 33], 0.0);
        let pushes = [0.0, 0.4, t - 0.4, 0.2, t - 0.2, t];
        let expected = [0.0, 0.0, t, t, 2.0 * t, 3.0 * t];
        for (push, expected) in pushes.into_iter().zip(expected) {
            residual.iter_mut().for_each(|residual| *residual += sign * push);
            let sent = through(&spec, &residual);
            residual = held_back(&spec, &residual);
            total += sent[32];
            assert!(sent.iter().all(|value| *value == sent[0]));
            assert_eq!(total, sign * expected, "after a push of {push}");
        }
    }
    for elements in [6, 1211 * 1211, 1200 * 1200] {
        let mut residual = vec![0.0f32; elements];
        let mut oracle = residual.clone();
        for round in 0..3u64 {
            for at in 0..elements {
                let drawn = random::symmetric_unit(123, round, at as u64).abs();
                residual[at] += drawn;
                oracle[at] += drawn;
            }
            let sent = through(&spec, &residual);
            residual = held_back(&spec, &residual);
            for (at, sent) in sent.iter().enumerate() {
                let expected = if oracle[at] >= t { t } else { 0.0 };
                assert_eq!(*sent, expected);
                oracle[at] -= expected;
            }
            assert_eq!(bits(&residual), bits(&oracle));
        }
    }
}

/// What rounding by chance gives on average is the value, within three standard errors over 10⁵ draws.
/// (BytePS' dithering, E27, has 2, 4 or 8 levels; ours are the levels of `int4` and `int8`.)
#[test]
fn rounding_by_chance_is_unbiased() {
    const DRAWS: u32 = 100_000;
    for (spec, levels) in
        [(CodecSpec::Int4 { rounding: CHANCE }, 7.0), (CodecSpec::Int8 { rounding: CHANCE }, 127.0)]
    {
        // The first fixes the scale at one level per unit.
        let x: Vec<f32> =
            [levels, 0.1, -0.1, 0.5, -2.75, 3.96, 0.003, levels - 0.3].into_iter().collect();
        let mut sums = vec![0.0f64; x.len()];
        let mut encoder = Encoder::default();
        let (mut bytes, mut out) = (Vec::new(), vec![0.0; x.len()]);
        for draw in 0..DRAWS {
            bytes.clear();
            let draw = Draw { seed: random::hash(7, 7, draw.into()) };
            let id = encoder.encode(&spec, draw, &x, &mut bytes);
            codec(id).decode(&bytes, &mut out).unwrap();
            sums.iter_mut().zip(&out).for_each(|(sum, out)| *sum += f64::from(*out));
        }
        for (sum, x) in sums.iter().zip(&x) {
            let part = f64::from(*x) - f64::from(*x).floor();
            let error = (part * (1.0 - part) / f64::from(DRAWS)).sqrt();
            let off = (sum / f64::from(DRAWS) - f64::from(*x)).abs();
            assert!(off <= 3.0 * error + 1e-6, "{spec}, {x}: off by {off}, error {error}");
        }
    }
}

/// Every element apart gets its own chance.
#[test]
fn chances_differ_between_elements_groups_and_draws() {
    let x = vec![0.5f32; 4096];
    let x = [vec![7.0], x].concat();
    let spec = CodecSpec::Int4 { rounding: CHANCE };
    let up = |values: &[f32]| values.iter().filter(|value| **value > 0.5).count();
    let out = through(&spec, &x[..256]);
    assert!((80..176).contains(&up(&out)), "{} of 256 went up", up(&out));
    let mut other = Vec::new();
    Encoder::default().encode(&spec, Draw { seed: 1 }, &x[..256], &mut other);
    assert_ne!(encoded(&spec, &x[..256]).1, other);
}

proptest! {
    /// For these formats nothing is lost to rounding: what was sent and what is held back add up to what
    /// went in, bit for bit. (−0 comes back as +0 where nothing or zero was sent with it.)
    #[test]
    fn sent_and_held_back_add_up_bit_for_bit(
        x in proptest::collection::vec(-1000.0f32..1000.0, 0..700),
        which in 0usize..9,
    ) {
        let spec = [
            CodecSpec::F32,
            CodecSpec::Bf16,
            CodecSpec::F16,
            CodecSpec::Int8 { rounding: NEAREST },
            CodecSpec::Int4 { rounding: NEAREST },
            top_k(0.1, ValueFormat::F32),
            top_k(0.1, ValueFormat::Bf16),
            CodecSpec::RandomK { density: 0.2, values: ValueFormat::Bf16 },
            CodecSpec::TopK { density: 0.5, select: Select::Threshold, values: ValueFormat::Bf16 },
        ][which];
        let (sent, held) = (through(&spec, &x), held_back(&spec, &x));
        for ((sent, held), x) in sent.iter().zip(&held).zip(&x) {
            prop_assert_eq!(sent + held, *x, "{}: sent {}, held back {}", spec, sent, held);
        }
    }

    /// For the others the sum is right to half a unit of what is held back.
    #[test]
    fn sent_and_held_back_add_up_to_rounding_elsewhere(
        x in proptest::collection::vec(-1000.0f32..1000.0, 1..700),
        which in 0usize..6,
    ) {
        let spec = [
            CodecSpec::Int8 { rounding: CHANCE },
            CodecSpec::Int4 { rounding: CHANCE },
            CodecSpec::Sign,
            CodecSpec::TwoBit { threshold: 0.3 },
            top_k(0.1, ValueFormat::Int4),
            top_k(0.1, ValueFormat::TwoBit),
        ][which];
        let (sent, held) = (through(&spec, &x), held_back(&spec, &x));
        for ((sent, held), x) in sent.iter().zip(&held).zip(&x) {
            let off = f64::from(*sent) + f64::from(*held) - f64::from(*x);
            prop_assert!(off.abs() <= f64::from(held.abs()) * 6e-8, "{spec}: {sent} {held} {x}");
        }
    }

    /// Damaged bytes are refused or mean the same through every door; nothing panics, and refused bytes
    /// leave no mark.
    #[test]
    fn damage_is_refused_or_harmless(
        which in 0usize..54,
        elements in 0usize..400,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
        more in proptest::collection::vec(any::<u8>(), 0..3),
    ) {
        let spec = specs()[which % specs().len()];
        let (id, mut bytes) = encoded(&spec, &values(elements, 5));
        if let Some(cut) = cut.filter(|_| !bytes.is_empty()) {
            bytes.truncate(cut.index(bytes.len()));
        }
        bytes.extend(more);
        for (at, flip) in flips {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
            }
        }
        check_doors(id, &bytes, elements)?;
    }

    #[test]
    fn random_bytes_are_refused_or_harmless(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        id in 0usize..9,
        elements in 0usize..2000,
    ) {
        check_doors(CodecId::ALL[id], &bytes, elements)?;
        codec(CodecId::ALL[id]).for_each_sent(&bytes, elements, &mut |at| assert!(at < elements));
    }
}

fn check_doors(id: CodecId, bytes: &[u8], elements: usize) -> Result<(), TestCaseError> {
    let format = codec(id);
    let verdict = format.validate(bytes, elements);
    let (mut out, mut sum) = (vec![7.0f32; elements], vec![0.0f32; elements]);
    prop_assert_eq!(format.decode(bytes, &mut out), verdict);
    prop_assert_eq!(format.decode_add(bytes, 1.0, &mut sum), verdict);
    let is_finite = format.is_finite(bytes);
    match verdict {
        Ok(()) => {
            prop_assert_eq!(out.iter().all(|value| value.is_finite()), is_finite);
            for (out, sum) in out.iter().zip(&sum) {
                prop_assert!(out == sum || out.is_nan() && sum.is_nan());
            }
        }
        Err(_) => {
            prop_assert!(out.iter().all(|value| *value == 7.0));
            prop_assert!(sum.iter().all(|value| *value == 0.0));
        }
    }
    Ok(())
}

/// An exact selection by sorting.
fn largest(x: &[f32], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|a, b| x[*b].abs().total_cmp(&x[*a].abs()).then(a.cmp(b)));
    order.truncate(k);
    order.retain(|at| x[*at] != 0.0);
    order.sort_unstable();
    order
}

fn sent(spec: &CodecSpec, x: &[f32]) -> Vec<usize> {
    let (id, bytes) = encoded(spec, x);
    let mut sent = Vec::new();
    codec(id).for_each_sent(&bytes, x.len(), &mut |at| sent.push(at));
    if id != CodecId::TopK && id != CodecId::RandomK {
        sent.retain(|at| through(spec, x)[*at] != 0.0);
    }
    sent
}

#[test]
fn the_k_largest_are_sent_and_of_equals_the_first() {
    for elements in [1usize, 5, 300, 4096, 20_000] {
        for density in [0.0001, 0.003, 0.01, 0.1, 0.45, 0.9] {
            let k = top_k::count(density, elements);
            let smooth = values(elements, 1);
            // Few different magnitudes, with zeros among them.
            let coarse: Vec<f32> = smooth.iter().map(|x| (x * 3.0).round() / 3.0).collect();
            for x in [smooth, coarse] {
                let spec = top_k(density, ValueFormat::F32);
                assert_eq!(sent(&spec, &x), largest(&x, k), "{density} of {elements}");
            }
        }
    }
    let heavy: Vec<f32> = (0..50_000).map(|i| 1.0 / (1.0 + i as f32).powi(3)).collect();
    assert_eq!(sent(&top_k(0.02, ValueFormat::F32), &heavy), (0..1000).collect::<Vec<_>>());
    let late: Vec<f32> = heavy.iter().rev().copied().collect();
    let last: Vec<_> = (49_000..50_000).collect();
    assert_eq!(sent(&top_k(0.02, ValueFormat::F32), &late), last);
    assert_eq!(sent(&top_k(0.5, ValueFormat::F32), &[0.0; 100]), [0usize; 0]);
}

/// The published search starts at the mean magnitude and cannot find more than what lies above it.
#[test]
fn the_threshold_search_is_near_k_at_every_density() {
    let x = values(30_000, 2);
    for density in [0.001, 0.01, 0.1, 0.39, 0.41, 0.6, 0.8, 0.97] {
        let k = top_k::count(density, x.len());
        let spec = CodecSpec::TopK { density, select: Select::Threshold, values: ValueFormat::F32 };
        let found = sent(&spec, &x);
        let exact = largest(&x, found.len());
        assert_eq!(found, exact, "{density}");
        assert!((k..=k + k / 32).contains(&found.len()), "{density}: {} for {k}", found.len());
    }
    // All equal: a threshold takes all or none, so the first are taken.
    let spec =
        CodecSpec::TopK { density: 0.1, select: Select::Threshold, values: ValueFormat::F32 };
    assert_eq!(sent(&spec, &[3.0; 1000]).len(), 103);
}

#[test]
fn top_k_at_density_one_is_dense() {
    let mut x = values(3000, 4);
    (x[7], x[8]) = (0.0, -0.0);
    assert_eq!(bits(&through(&top_k(1.0, ValueFormat::F32), &x)), bits(&x));
    let bf16 = through(&CodecSpec::Bf16, &x);
    assert_eq!(bits(&through(&top_k(1.0, ValueFormat::Bf16), &x)), bits(&bf16));
    for values in [ValueFormat::F32, ValueFormat::Bf16] {
        let random = CodecSpec::RandomK { density: 1.0, values };
        assert_eq!(bits(&through(&random, &x)), bits(&through(&top_k(1.0, values), &x)));
    }
}

/// BytePS compares with compression applied twice (E25): coding what was decoded changes nothing.
#[test]
fn selection_is_idempotent() {
    for k in [1usize, 3, 5] {
        let x = values(50, k);
        let spec = top_k(k as f32 / 50.0, ValueFormat::F32);
        let once = through(&spec, &x);
        assert_eq!(once.iter().filter(|value| **value != 0.0).count(), k);
        assert_eq!(through(&spec, &once), once);
    }
    let once = through(&CodecSpec::Sign, &SAMPLE);
    assert_eq!(through(&CodecSpec::Sign, &once), once);
}

/// Paddle's test of deep gradient compression (E34): 102,400 elements, a quarter of them in the first
/// step.
#[test]
fn a_quarter_of_a_hundred_thousand_is_sent_and_only_that_is_held_back_no_more() {
    let x = values(102_400, 6);
    let spec = top_k(0.25, ValueFormat::F32);
    let positions = sent(&spec, &x);
    assert_eq!(positions.len(), 25_600);
    let held = held_back(&spec, &x);
    for (at, (held, x)) in held.iter().zip(&x).enumerate() {
        let expected = if positions.binary_search(&at).is_ok() { 0.0 } else { *x };
        assert_eq!(*held, expected);
    }
}

#[test]
fn random_k_sends_every_element_about_as_often_and_none_twice() {
    let mut counts = vec![0u32; 100];
    let x: Vec<f32> = (1..=100u8).map(f32::from).collect();
    let spec = CodecSpec::RandomK { density: 0.13, values: ValueFormat::F32 };
    for seed in 0..4000 {
        let mut bytes = Vec::new();
        let id = Encoder::default().encode(&spec, Draw { seed }, &x, &mut bytes);
        assert_eq!(id, CodecId::RandomK);
        let mut before = None;
        codec(id).for_each_sent(&bytes, 100, &mut |at| {
            assert!(before < Some(at), "positions rise");
            before = Some(at);
            counts[at] += 1;
        });
    }
    assert_eq!(counts.iter().sum::<u32>(), 13 * 4000);
    // 520 expected; the standard deviation is about 21, and stretches of 7 and 8 differ by an eighth.
    assert!(counts.iter().all(|count| (420..640).contains(count)), "{counts:?}");
}

#[test]
fn positions_cost_little_more_than_their_entropy() {
    let elements = 262_144usize;
    for density in [0.001f64, 0.01, 0.1] {
        let mut positions: Vec<u32> = Vec::new();
        for at in 0..elements {
            if random::hash(5, 5, at as u64) as f64 / 2f64.powi(64) < density {
                positions.push(at as u32);
            }
        }
        let p = positions.len() as f64 / elements as f64;
        let entropy = -(p * p.log2() + (1.0 - p) * (1.0 - p).log2()) * elements as f64 / 8.0;
        let ratio = index_bytes(&positions, elements) as f64 / entropy;
        assert!(ratio <= 1.06, "{density}: {ratio}");
    }
}

#[test]
fn hostile_sparse_blocks_are_refused_with_the_rule_they_break() {
    let refused = |bytes: &[u8], elements| {
        codec(CodecId::TopK).validate(bytes, elements).unwrap_err().to_string()
    };
    let rising = "its positions do not rise within the block";
    for (bytes, rule) in [
        (vec![1, 0, 0, 0x10], "it is shorter than its header"),
        (vec![101, 0, 0, 0x10, 0], "it claims more elements than the block has"),
        (vec![255, 255, 255, 0x10, 0], "it claims more elements than the block has"),
        (vec![1, 0, 0, 0x1f, 0], "its value format is unknown"),
        (vec![1, 0, 0, 0x31, 0], "the coding of its positions is unknown"),
        (vec![1, 0, 0, 0x01, 0, 0, 0], rising), // "all" of one element in a block of a hundred
        (vec![1, 0, 0, 0x11, 200, 0, 0, 0], rising), // a Rice parameter beyond the block
        (vec![1, 0, 0, 0x11, 0, 255, 255, 255, 255], rising), // a gap that never ends
        (vec![2, 0, 0, 0x11, 7, 0xfe, 0, 0, 0, 0, 0], rising), // position 127
        (vec![1, 0, 0, 0x21, 0, 0, 0, 0], "the coding of its positions is unknown"),
        (vec![1, 0, 0, 0x11, 0, 0x02, 0, 0], rising), // a bit behind the positions
        (vec![1, 0, 0, 0x11, 0, 0, 0], "its values are too few or too many bytes"),
        (vec![1, 0, 0, 0x11, 0, 0, 0, 0, 0], "its values are too few or too many bytes"),
        (vec![1, 0, 0, 0x12, 0, 0, 0x80, 0xbf, 1], "its values break the rules of their format"),
        (vec![1, 0, 0, 0x12, 0, 0, 0x80, 0x3f, 0x80], "its values break the rules of their format"),
        (vec![1, 0, 0, 0x13, 0, 0, 0x80, 0x3f, 0x18], "its values break the rules of their format"),
    ] {
        assert!(refused(&bytes, 100).ends_with(rule), "{bytes:?}: {}", refused(&bytes, 100));
    }
    assert_eq!(codec(CodecId::TopK).validate(&[1, 0, 0, 0x11, 0, 0, 0, 0], 100), Ok(()));
}

/// AVX2 and the portable loops must not differ by a bit: only the first runs on most machines, and a
/// server and a worker need not have the same.
#[test]
fn dispatched_loops_give_the_bits_of_the_portable_ones() {
    for elements in LENGTHS {
        let x = values(elements, 8);
        for rounding in [NEAREST, CHANCE] {
            let mut slow = Vec::new();
            grouped::encode::<Int8>(&x, rounding, DRAW.seed, &mut slow);
            assert_eq!(encoded(&CodecSpec::Int8 { rounding }, &x).1, slow);
            let mut out = vec![0.0; elements];
            grouped::decode::<Int8>(&slow, &mut out);
            assert_eq!(bits(&decoded(CodecId::Int8, &slow, elements)), bits(&out));
            let mut slow = Vec::new();
            grouped::encode::<Int4>(&x, rounding, DRAW.seed, &mut slow);
            assert_eq!(encoded(&CodecSpec::Int4 { rounding }, &x).1, slow);
            let (mut sum, mut fast) = (x.clone(), x.clone());
            grouped::decode_add::<Int4>(&slow, 0.3, &mut sum);
            codec(CodecId::Int4).decode_add(&slow, 0.3, &mut fast).unwrap();
            assert_eq!(bits(&sum), bits(&fast));
        }
        for (spec, portable) in [
            (CodecSpec::Sign, sign::portable_encoding(&x)),
            (CodecSpec::TwoBit { threshold: 0.25 }, two_bit::portable_encoding(0.25, &x)),
        ] {
            assert_eq!(encoded(&spec, &x).1, portable, "{spec}, {elements}");
        }
    }
}
