use super::*;
use crate::kernels::tests::{bits, lengths, values};
use proptest::prelude::*;

/// A format's portable loops, to hold the dispatched ones against.
#[derive(Debug)]
pub(super) struct Bodies {
    pub(super) encode: fn(&[f32], &mut Vec<u8>),
    pub(super) finite: fn(&[u8]) -> bool,
    pub(super) decode: fn(&[u8], &mut [f32]),
    pub(super) decode_add: fn(&[u8], f32, &mut [f32]),
}

fn portable(id: CodecId) -> &'static Bodies {
    match id {
        CodecId::F32 => &f32::PORTABLE,
        CodecId::Bf16 => &bf16::PORTABLE,
        CodecId::F16 => &f16::PORTABLE,
        other => unreachable!("{other} is not plain"),
    }
}

fn encoded(id: CodecId, values: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    plain(id).unwrap().encode(values, &mut out);
    out
}

fn decoded(id: CodecId, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; elements];
    codec(id).decode(bytes, &mut out).unwrap();
    out
}

/// What one value must become, by the `half` crate.
fn oracle(id: CodecId, value: f32) -> (Vec<u8>, f32) {
    match id {
        CodecId::F32 => (value.to_le_bytes().to_vec(), value),
        CodecId::Bf16 => {
            let narrow = half::bf16::from_f32(value);
            (narrow.to_le_bytes().to_vec(), narrow.to_f32())
        }
        CodecId::F16 => {
            let narrow = half::f16::from_f32(value);
            (narrow.to_le_bytes().to_vec(), narrow.to_f32())
        }
        other => unreachable!("{other} is not plain"),
    }
}

/// Bit patterns at which rounding, overflow and the special values turn over.
fn edge_values() -> Vec<f32> {
    let corners = [
        0x0000_0000,
        0x0000_0001,
        0x0000_8000,
        0x0000_8001,
        0x007f_ffff,
        0x0080_0000,
        0x3300_0000,
        0x3300_0001,
        0x3380_0000,
        0x33c0_0000,
        0x387f_c000,
        0x387f_e000,
        0x387f_f000,
        0x3880_0000,
        0x3f80_0000,
        0x3f80_1000,
        0x3f80_3000,
        0x3f80_8000,
        0x3f81_8000,
        0x477f_e000,
        0x477f_efff,
        0x477f_f000,
        0x4780_0000,
        0x7f7f_0000,
        0x7f7f_7fff,
        0x7f7f_8000,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7f80_0001,
        0x7f80_2000,
        0x7fa0_0000,
        0x7fc0_0000,
        0x7fff_ffff,
    ];
    let near = corners.iter().flat_map(|corner: &u32| {
        [corner.saturating_sub(1), *corner, corner.saturating_add(1).min(0x7fff_ffff)]
    });
    near.flat_map(|bits| [f32::from_bits(bits), f32::from_bits(bits | 0x8000_0000)]).collect()
}

#[test]
fn bytes_are_pinned() {
    // If this fails the wire format changed: bump the protocol version and docs/PROTOCOL.md.
    let check = |id, values: &[f32], hex: &str| {
        let got: String = encoded(id, values).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(got, hex.replace(' ', ""), "{id} of {values:?}");
    };
    let x = [0.5, -1.5, 0.0, -0.0, 2.0, -0.25];
    check(CodecId::F32, &x, "0000003f 0000c0bf 00000000 00000080 00000040 000080be");
    check(CodecId::Bf16, &x, "003f c0bf 0000 0080 0040 80be");
    check(CodecId::F16, &x, "0038 00be 0000 0080 0040 00b4");

    let special = [f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7fc0_0000)];
    check(CodecId::F32, &special, "0000807f 000080ff 0000c07f");
    check(CodecId::Bf16, &special, "807f 80ff c07f");
    check(CodecId::F16, &special, "007c 00fc 007e");

    // A tie goes to the even mantissa, down and up; just above a tie goes up.
    let ties = |unit: f32| [1.0 + 0.5 * unit, 1.0 + 1.5 * unit, 1.0 + 0.5 * unit + f32::EPSILON];
    check(CodecId::Bf16, &ties(2.0f32.powi(-7)), "803f 823f 813f");
    check(CodecId::F16, &ties(2.0f32.powi(-10)), "003c 023c 013c");

    // Largest finite, the tie above it, smallest subnormal, half of it, a little more than half.
    let tiny = 2.0f32.powi(-24);
    check(CodecId::F16, &[65504.0, 65519.0, 65520.0, -1e9], "ff7b ff7b 007c 00fc");
    check(
        CodecId::F16,
        &[tiny, -tiny, 0.5 * tiny, -0.5 * tiny, 0.6 * tiny],
        "0100 0180 0000 0080 0100",
    );
    check(CodecId::Bf16, &[f32::MAX, f32::from_bits(1), f32::from_bits(0x8001)], "807f 0000 0100");
    // A signalling NaN with a payload below the kept bits becomes quiet, not infinite.
    let signalling = [f32::from_bits(0x7f80_0001), f32::from_bits(0xffa0_0000)];
    check(CodecId::Bf16, &signalling, "c07f e0ff");
    check(CodecId::F16, &signalling, "007e 00ff");
    check(CodecId::F32, &signalling, "0100807f 0000a0ff");
}

#[test]
fn every_edge_value_is_what_the_half_crate_says() {
    let x = edge_values();
    for id in CodecId::PLAIN {
        let bytes = encoded(id, &x);
        let width = bytes.len() / x.len();
        for (i, value) in x.iter().enumerate() {
            let one = &bytes[i * width..(i + 1) * width];
            assert_eq!(one, oracle(id, *value).0, "{id} of {:08x}", value.to_bits());
        }
    }
}

#[test]
fn all_65536_patterns_decode_as_the_half_crate_says_and_round_trip() {
    let patterns: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for id in [CodecId::Bf16, CodecId::F16] {
        let x = decoded(id, &patterns, 1 << 16);
        let again = encoded(id, &x);
        for (pattern, value) in (0..=u16::MAX).zip(&x) {
            let expected = match id {
                CodecId::F16 => half::f16::from_bits(pattern).to_f32(),
                _ => half::bf16::from_bits(pattern).to_f32(),
            };
            let at = usize::from(pattern) * 2;
            let back = u16::from_le_bytes([again[at], again[at + 1]]);
            if value.is_nan() {
                assert!(expected.is_nan(), "{id} {pattern:04x}");
                let quiet = if id == CodecId::F16 { 0x0200 } else { 0x0040 };
                assert_eq!(back, pattern | quiet, "{id} {pattern:04x}");
            } else {
                assert_eq!(value.to_bits(), expected.to_bits(), "{id} {pattern:04x}");
                assert_eq!(back, pattern, "{id} {pattern:04x}");
            }
        }
    }
}

#[test]
fn both_bodies_give_the_same_bits_at_every_length_and_misalignment() {
    let edges = edge_values();
    for id in CodecId::PLAIN {
        let (door, body) = (plain(id).unwrap(), portable(id));
        for len in lengths() {
            for offset in 0..9 {
                let mut all = values(len + offset, len);
                all.iter_mut().zip(&edges).step_by(3).for_each(|(x, edge)| *x = *edge);
                let x = &all[offset..];

                let mut fast = vec![0xaa; offset];
                let mut slow = fast.clone();
                door.encode(x, &mut fast);
                (body.encode)(x, &mut slow);
                assert_eq!(fast, slow, "{id}: encode of {len} at {offset}");

                let bytes = &fast[offset..];
                assert_eq!(door.is_finite(bytes), (body.finite)(bytes));
                let (mut left, mut right) = (vec![1.0; len], vec![1.0; len]);
                door.decode(bytes, &mut left).unwrap();
                (body.decode)(bytes, &mut right);
                assert_eq!(bits(&left), bits(&right), "{id}: decode of {len} at {offset}");
                if let Some(there) = door.as_values(bytes) {
                    assert_eq!(bits(there), bits(&right), "{id}: as_values of {len} at {offset}");
                }

                let (mut left, mut right) = (values(len, 5), values(len, 5));
                door.decode_add(bytes, 0.3, &mut left).unwrap();
                (body.decode_add)(bytes, 0.3, &mut right);
                let same = left.iter().zip(&right).all(|(a, b)| {
                    // Which NaN a sum gives is the processor's choice of operand, not ours.
                    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
                });
                assert!(same, "{id}: decode_add of {len} at {offset}");
            }
        }
    }
}

#[test]
fn only_f32_at_a_fitting_address_is_read_where_it_lies() {
    let buffer = [1.0f32, -2.0, f32::NAN];
    let bytes: &[u8] = bytemuck::cast_slice(&buffer);
    let there = |id, bytes| codec(id).as_values(bytes).map(|values: &[f32]| values.len());
    assert_eq!(there(CodecId::F32, bytes), cfg!(target_endian = "little").then_some(3));
    assert_eq!(there(CodecId::F32, &bytes[1..9]), None, "an odd address");
    assert_eq!(there(CodecId::F32, &bytes[..10]), None, "no whole number of values");
    assert_eq!(there(CodecId::Bf16, bytes), None);
    assert_eq!(there(CodecId::F16, bytes), None);
}

#[test]
fn damaged_lengths_are_refused_and_touch_nothing() {
    for id in CodecId::PLAIN {
        let door = plain(id).unwrap();
        for elements in [0usize, 1, 7, 64, 1000] {
            let good = encoded(id, &values(elements, 1));
            assert_eq!(door.validate(&good, elements), Ok(()));
            assert!(good.len() <= door.encoded_len_max(elements));
            let long = [&good[..], &[0]].concat();
            let short = &good[..good.len().saturating_sub(1)];
            for bad in [&long[..], short].into_iter().filter(|bad| bad.len() != good.len()) {
                let error = door.validate(bad, elements).unwrap_err();
                assert_eq!(error.blame(), Blame::Peer);
                let text = error.to_string();
                assert!(text.contains(&bad.len().to_string()) && text.contains(&id.to_string()));
                let mut out = vec![4.0; elements];
                assert_eq!(door.decode(bad, &mut out), Err(error));
                assert_eq!(door.decode_add(bad, 1.0, &mut out), Err(error));
                assert_eq!(out, vec![4.0; elements]);
            }
        }
        assert!(door.validate(&[], usize::MAX).is_err());
    }
}

#[test]
fn a_special_value_anywhere_in_the_bytes_is_seen() {
    for id in CodecId::PLAIN {
        for len in lengths().skip(1) {
            for at in [0, len / 2, len - 1] {
                for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = values(len, 2);
                    assert!(codec(id).is_finite(&encoded(id, &x)));
                    x[at] = special;
                    assert!(!codec(id).is_finite(&encoded(id, &x)), "{id}: {special} at {at}");
                }
            }
        }
    }
}

#[test]
fn encode_appends_and_does_not_allocate_when_there_is_room() {
    for id in CodecId::PLAIN {
        let x = values(3000, 9);
        let mut out = Vec::with_capacity(2 + plain(id).unwrap().encoded_len_max(x.len()));
        out.extend([1, 2]);
        let (pointer, capacity) = (out.as_ptr(), out.capacity());
        plain(id).unwrap().encode(&x, &mut out);
        assert_eq!((out.as_ptr(), out.capacity()), (pointer, capacity));
        assert_eq!((&out[..2], &out[2..]), (&[1, 2][..], &encoded(id, &x)[..]));
    }
}

#[test]
fn a_codec_byte_is_its_own_inverse_and_others_are_refused() {
    for byte in 0..=u8::MAX {
        match CodecId::try_from(byte) {
            Ok(id) => assert_eq!((id as u8, codec(id).id()), (byte, id)),
            Err(error) => assert!(error.to_string().contains(&format!("codec {byte};"))),
        }
    }
    assert_eq!(CodecId::ALL.map(|id| id as u8), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        assert_eq!(CodecId::from(dtype).to_string(), dtype.to_string());
    }
}

#[test]
fn decode_add_with_minus_one_leaves_the_residual() {
    for id in [CodecId::Bf16, CodecId::F16] {
        let x = values(100, 4);
        let bytes = encoded(id, &x);
        let mut residual = x.clone();
        codec(id).decode_add(&bytes, -1.0, &mut residual).unwrap();
        let sent = decoded(id, &bytes, x.len());
        for ((x, sent), residual) in x.iter().zip(sent).zip(residual) {
            assert_eq!(residual, x - sent);
            assert!(residual.abs() <= x.abs() / 256.0 + 2.0f32.powi(-25));
        }
    }
}

/// E22 (Flower aggregates): a weighted mean is one `decode_add` per contribution with the scale
/// `samples / total`, in a fixed order.
#[test]
fn contributions_scaled_by_their_part_of_the_samples_give_the_weighted_mean() {
    for id in CodecId::PLAIN {
        let check = |parts: &[(f32, f32)], expected: f32| {
            let total: f32 = parts.iter().map(|part| part.0).sum();
            let mut mean = [0.0];
            for (samples, value) in parts {
                let bytes = encoded(id, &[*value]);
                codec(id).decode_add(&bytes, samples / total, &mut mean).unwrap();
            }
            assert!((mean[0] - expected).abs() < 1e-6, "{id}: {mean:?} is not {expected}");
        };
        check(&[(1.0, 0.75), (2.0, 0.75)], 0.75);
        check(&[(1.0, 2.0), (2.0, 1.0), (1.0, 2.0)], 1.5);
    }
}

proptest! {
    #[test]
    fn any_bits_round_trip_as_the_half_crate_says(
        raw in prop::collection::vec(any::<u32>(), 0..70), pad in 0usize..9,
    ) {
        let x: Vec<f32> = raw.iter().map(|bits| f32::from_bits(*bits)).collect();
        for id in CodecId::PLAIN {
            let mut bytes = vec![0; pad];
            plain(id).unwrap().encode(&x, &mut bytes);
            let expected: Vec<u8> = x.iter().flat_map(|value| oracle(id, *value).0).collect();
            prop_assert_eq!(&bytes[pad..], &expected[..]);
            let back = decoded(id, &bytes[pad..], x.len());
            for (value, back) in x.iter().zip(back) {
                let expected = oracle(id, *value).1;
                prop_assert!(back.to_bits() == expected.to_bits() || back.is_nan() && expected.is_nan());
            }
            prop_assert_eq!(
                codec(id).is_finite(&bytes[pad..]),
                x.iter().all(|value| oracle(id, *value).1.is_finite())
            );
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused_and_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300), elements in 0usize..80,
    ) {
        for id in CodecId::PLAIN {
            let door = plain(id).unwrap();
            let mut out = vec![0.0; elements];
            let accepted = door.validate(&bytes, elements).is_ok();
            prop_assert_eq!(accepted, bytes.len() == door.encoded_len_max(elements));
            prop_assert_eq!(door.decode(&bytes, &mut out).is_ok(), accepted);
            prop_assert_eq!(door.decode_add(&bytes, 1.0, &mut out).is_ok(), accepted);
            door.is_finite(&bytes);
        }
    }
}
