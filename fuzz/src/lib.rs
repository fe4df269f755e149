//! What every input must satisfy, for the fuzz targets: one small program per decoder.

use slackline_common::codec::{CodecId, codec};

/// Elements of the largest block a target decodes: small, so that inputs are tried fast.
const ELEMENTS_MAX: usize = 4096;

/// The first two bytes choose the length of the block, the rest is its payload. Refused bytes must
/// leave the output alone; accepted ones must decode, and mean the same in every door.
pub fn check_codec(id: CodecId, data: &[u8]) {
    let Some((length, payload)) = data.split_first_chunk::<2>() else { return };
    let elements = usize::from(u16::from_le_bytes(*length)) % (ELEMENTS_MAX + 1);
    let format = codec(id);
    let mut values = vec![7.0; elements];
    let mut sum = vec![0.0; elements];
    let verdict = format.validate(payload, elements);
    assert_eq!(format.decode(payload, &mut values), verdict);
    assert_eq!(format.decode_add(payload, 1.0, &mut sum), verdict);
    if verdict.is_err() {
        assert!(values.iter().all(|value| *value == 7.0), "a refused block is not decoded");
        assert!(sum.iter().all(|value| *value == 0.0), "a refused block is not added");
        return;
    }
    let is_finite = values.iter().all(|value| value.is_finite());
    assert_eq!(format.is_finite(payload), is_finite, "a receiver asks before it adds");
    let mut sent = vec![false; elements];
    let mut next = 0;
    format.for_each_sent(payload, elements, &mut |at| {
        assert!(at >= next, "positions rise");
        next = at + 1;
        sent[at] = true;
    });
    for ((value, sum), sent) in values.iter().zip(&sum).zip(&sent) {
        assert!(value == sum || value.is_nan() && sum.is_nan(), "{value} decoded, {sum} added");
        assert!(*sent || *value == 0.0, "{value} where nothing was sent");
    }
}
