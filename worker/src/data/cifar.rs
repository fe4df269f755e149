//! CIFAR-10's binary version (<https://www.cs.toronto.edu/~kriz/cifar.html>): records of one label byte
//! and 3 × 32 × 32 pixel bytes, channels first, without a header. Several files follow each other.

use super::error::DataError;
use super::source::DataFile;
use super::table::{Expect, Table, Values};
use slackline_common::job::DataSpec;

/// Channels, height and width of an image.
const SHAPE: [u64; 3] = [3, 32, 32];
/// Pixel bytes of an image.
const PIXELS: usize = 3 * 32 * 32;

/// Reads all files in order.
pub(super) fn read(
    files: Vec<DataFile>,
    expect: &Expect,
    spec: &DataSpec,
) -> Result<Table, DataError> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for mut file in files {
        expect.check_shape(&file.name, &SHAPE)?;
        let mut bytes = Vec::new();
        file.append_to(&mut bytes)?;
        let records = bytes.chunks_exact(1 + PIXELS);
        let torn = records.remainder().len();
        if torn > 0 {
            let whole = bytes.len() - torn + 1 + PIXELS;
            return Err(DataError::Length {
                file: file.name,
                promise: "records of 3073 bytes",
                expected: whole as u64,
                found: bytes.len().to_string(),
            });
        }
        if bytes.is_empty() {
            return Err(DataError::Empty { file: file.name });
        }
        pixels.reserve(records.len() * PIXELS);
        for (record, row) in records.zip(1..) {
            labels.push(expect.label(&file.name, row, i64::from(record[0]))?);
            pixels.extend_from_slice(&record[1..]);
        }
    }
    Ok(Table::new(Values::Bytes(pixels), labels, PIXELS, spec))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_refused, fill, open_files, softmax, spec};
    use slackline_common::job::DataFormat;
    use slackline_common::model::ModelSpec;

    const FORMAT: DataFormat = DataFormat::Cifar;

    /// A record whose red, green and blue planes have one value each.
    fn record(label: u8, colour: [u8; 3]) -> Vec<u8> {
        let planes = colour.iter().flat_map(|value| [*value; 1024]);
        [label].into_iter().chain(planes).collect()
    }

    #[test]
    fn records_of_several_files_follow_each_other_channels_first() {
        let first = [record(3, [1, 2, 3]), record(9, [4, 5, 6])].concat();
        let second = record(0, [7, 8, 9]);
        let model = ModelSpec::Resnet20 { input: [3, 32, 32], width: 16, classes: 10 };
        let files: [(&str, &[u8]); 2] = [("1", &first), ("2", &second)];
        let data = open_files(&spec(FORMAT), &model, &files).unwrap();
        let (inputs, targets) = fill(&*data, &[1, 2]);
        assert_eq!(targets, [9, 0]);
        for (plane, value) in inputs.chunks(1024).zip([4.0, 5.0, 6.0, 7.0, 8.0, 9.0]) {
            assert!(plane.iter().all(|pixel| *pixel == value));
        }
    }

    #[test]
    fn torn_records_wrong_labels_and_wrong_models_are_refused() {
        let whole = record(10, [0; 3]);
        let model = softmax(3072, 10);
        check_refused(FORMAT, &model, &[("a", &whole)], &["row 1 of", "label 10"]);
        let pieces = ["should have 3073 bytes", "it has 3072"];
        check_refused(FORMAT, &model, &[("a", &whole[..3072])], &pieces);
        check_refused(FORMAT, &model, &[("a", b"")], &["no samples"]);
        check_refused(FORMAT, &softmax(784, 10), &[("a", &whole)], &["[3, 32, 32]", "[784]"]);
        let swapped = ModelSpec::Resnet20 { input: [32, 32, 3], width: 16, classes: 11 };
        check_refused(FORMAT, &swapped, &[("a", &whole)], &["takes [32, 32, 3]"]);
    }
}
