//! The data sets built into the worker; source and licence in `data/digits/README.md`.

/// The handwritten digits for training: 1,437 samples.
const DIGITS_TRAIN: &str = include_str!("../../../data/digits/train.csv");
/// The handwritten digits for testing: 360 samples.
const DIGITS_TEST: &str = include_str!("../../../data/digits/test.csv");

/// The CSV text of an embedded data set.
pub(super) fn find(name: &str) -> Option<&'static str> {
    match name {
        "digits-train" => Some(DIGITS_TRAIN),
        "digits-test" => Some(DIGITS_TEST),
        _ => None,
    }
}
