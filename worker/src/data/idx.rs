//! IDX, the format of the MNIST family (<http://yann.lecun.com/exdb/mnist/>, also Fashion-MNIST,
//! EMNIST, KMNIST). Big-endian:
//!
//! ```text
//! 00 00 | type (08 = unsigned byte) | dimensions D | D sizes, u32 each | data, row-major
//! ```
//!
//! One file of images (`[n, …]`), one of labels (`[n]`).

use super::error::DataError;
use super::source::DataFile;
use super::table::{Expect, Table, Values};
use slackline_common::job::DataSpec;
use slackline_common::limits::TENSOR_DIMENSIONS_MAX;

/// The type byte for unsigned bytes, the only type the family uses.
const UNSIGNED_BYTE: u8 = 0x08;

/// Reads images and labels and checks one against the other and both against the model.
pub(super) fn read(
    mut images: DataFile,
    mut labels: DataFile,
    expect: &Expect,
    spec: &DataSpec,
) -> Result<Table, DataError> {
    let (shape, pixels) = array(&mut images)?;
    let [samples, sample @ ..] = shape.as_slice() else { return Err(no_samples(&images)) };
    expect.check_shape(&images.name, sample)?;
    let (label_shape, classes) = array(&mut labels)?;
    let [label_count] = label_shape[..] else {
        let reason = format!("labels have one dimension, these have {}", label_shape.len());
        return Err(DataError::Header { file: labels.name, reason });
    };
    if label_count != *samples {
        return Err(DataError::Pairs {
            inputs_in: images.name,
            samples: *samples,
            labels_in: labels.name,
            labels: label_count,
        });
    }
    let targets = classes
        .iter()
        .zip(1..)
        .map(|(label, row)| expect.label(&labels.name, row, i64::from(*label)))
        .collect::<Result<Vec<_>, _>>()?;
    let inputs = pixels.len() / targets.len();
    Ok(Table::new(Values::Bytes(pixels), targets, inputs, spec))
}

/// One array: its sizes, none of them 0, and its bytes.
fn array(file: &mut DataFile) -> Result<(Vec<u64>, Vec<u8>), DataError> {
    let (magic, filled) = file.start::<4>()?;
    if filled == 0 {
        return Err(no_samples(file));
    }
    let dimensions = usize::from(magic[3]);
    if filled < 4 || magic[..3] != [0, 0, UNSIGNED_BYTE] || dimensions == 0 {
        return Err(DataError::Magic {
            file: file.name.clone(),
            got: magic[..filled].iter().map(|byte| format!("{byte:02x}")).collect(),
            rule: "an idx file of unsigned bytes starts with 000008 and the number of dimensions",
        });
    }
    let header =
        |file: &DataFile, reason| Err(DataError::Header { file: file.name.clone(), reason });
    if dimensions > TENSOR_DIMENSIONS_MAX {
        return header(file, format!("{dimensions} dimensions; at most {TENSOR_DIMENSIONS_MAX}"));
    }
    let mut shape = Vec::with_capacity(dimensions);
    for _ in 0..dimensions {
        let (size, filled) = file.start::<4>()?;
        if filled < 4 {
            return header(file, format!("the file ends within its {dimensions} sizes"));
        }
        shape.push(size.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte)));
    }
    if shape[0] == 0 {
        return Err(no_samples(file));
    }
    let Some(bytes) = shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size)) else {
        return header(file, format!("its sizes {shape:?} multiply to more than 64 bits"));
    };
    if bytes == 0 {
        return header(file, format!("its sizes {shape:?} hold nothing"));
    }
    let data = file.rest(bytes, "header")?;
    Ok((shape, data))
}

fn no_samples(file: &DataFile) -> DataError {
    DataError::Empty { file: file.name.clone() }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_refused, fill, gzip, open_files, softmax, spec};
    use slackline_common::job::DataFormat;
    use slackline_common::model::ModelSpec;

    const FORMAT: DataFormat = DataFormat::Idx;

    /// An array of unsigned bytes.
    fn idx(sizes: &[u32], data: &[u8]) -> Vec<u8> {
        let mut file = vec![0, 0, 8, u8::try_from(sizes.len()).unwrap()];
        for size in sizes {
            file.extend(size.to_le_bytes().into_iter().rev());
        }
        file.extend(data);
        file
    }

    fn images() -> Vec<u8> {
        idx(&[3, 2, 2], &[0, 1, 2, 3, 10, 11, 12, 13, 252, 253, 254, 255])
    }

    fn labels() -> Vec<u8> {
        idx(&[3], &[2, 0, 1])
    }

    #[test]
    fn plain_and_gzip_files_hold_the_same_samples() {
        let mut spec = spec(FORMAT);
        (spec.scale, spec.mean, spec.deviation) = (1.0 / 255.0, 0.25, 0.5);
        for packed in [false, true] {
            let pack = |bytes: Vec<u8>| if packed { gzip(&bytes) } else { bytes };
            let (x, y) = (pack(images()), pack(labels()));
            let data = open_files(&spec, &softmax(4, 3), &[("x", &x), ("y", &y)]).unwrap();
            assert_eq!((data.len(), data.labels_max()), (3, 2));
            let (inputs, targets) = fill(&*data, &[2, 0]);
            assert_eq!(targets, [1, 2]);
            let raw = [252.0, 253.0, 254.0, 255.0, 0.0, 1.0, 2.0, 3.0f32];
            let expected = raw.map(|pixel| (pixel * (1.0 / 255.0) - 0.25) / 0.5);
            assert_eq!(inputs, expected);
        }
    }

    #[test]
    fn files_cut_short_or_continued_are_refused_with_both_lengths() {
        let (x, y) = (images(), labels());
        let model = softmax(4, 3);
        for cut in 16..x.len() {
            let found = format!("it has {cut}");
            let short = [("x", &x[..cut]), ("y", &*y)];
            check_refused(FORMAT, &model, &short, &["should have 28 bytes", &found]);
            let packed = gzip(&x[..cut]);
            check_refused(FORMAT, &model, &[("x", &packed), ("y", &y)], &["28 bytes", &found]);
        }
        for cut in 0..16 {
            check_refused(FORMAT, &model, &[("x", &x[..cut]), ("y", &y)], &["data file", "x"]);
        }
        let mut packed = gzip(&x);
        packed.truncate(packed.len() - 12);
        check_refused(FORMAT, &model, &[("x", &packed), ("y", &y)], &["should have 28 bytes"]);
        let longer = [&*x, &[0]].concat();
        check_refused(FORMAT, &model, &[("x", &longer), ("y", &y)], &["28 bytes", "it has 29"]);
        let packed = gzip(&longer);
        check_refused(FORMAT, &model, &[("x", &packed), ("y", &y)], &["more than 28"]);
    }

    #[test]
    fn headers_that_cannot_be_meant_are_refused_before_memory_is_taken() {
        let (y, model) = (labels(), softmax(4, 3));
        let check = |x: &[u8], pieces: &[&str]| {
            check_refused(FORMAT, &model, &[("x", x), ("y", &y)], pieces);
        };
        check(&idx(&[u32::MAX, 2, 2], &[]), &["should have 17179869196 bytes", "it has 16"]);
        let packed = gzip(&idx(&[u32::MAX, 2, 2], &[]));
        check(&packed, &["should have 17179869196 bytes", "at most"]);
        check(&idx(&[u32::MAX; 3], &[]), &["multiply to more than 64 bits"]);
        check(&idx(&[3, 0, 2], &[]), &["hold nothing"]);
        check(&idx(&[0, 2, 2], &[]), &["no samples"]);
        check(&idx(&[1; 9], &[0]), &["9 dimensions; at most 8"]);
        check(b"", &["no samples"]);
        check(b"\x00\x00\x0d\x03", &["starts with 00000d03"]);
        check(b"PK\x03\x04", &["starts with 504b0304", "000008"]);
        check(&[0, 0, 8, 0], &["00000800"]);
    }

    #[test]
    fn images_and_labels_must_fit_each_other_and_the_model() {
        let (x, y, model) = (images(), labels(), softmax(4, 3));
        let check = |model: &ModelSpec, x: &[u8], y: &[u8], pieces: &[&str]| {
            check_refused(FORMAT, model, &[("x", x), ("y", y)], pieces);
        };
        check(&model, &x, &idx(&[2], &[0, 0]), &["3 samples in", "2 labels in"]);
        check(&model, &x, &idx(&[3, 1], &[0; 3]), &["labels have one dimension"]);
        check(&softmax(5, 3), &x, &y, &["shape [2, 2]", "takes [5]"]);
        check(&softmax(4, 2), &x, &y, &["row 1 of", "label 2", "classes 0 to 1"]);
        check_refused(FORMAT, &model, &[("x", &x)], &["1 data files", "images, then labels"]);
        let wide = ModelSpec::Lenet { input: [1, 1, 4], channels: [1, 1], hidden: 1, classes: 3 };
        check(&wide, &x, &y, &["shape [2, 2]", "takes [1, 1, 4]"]);
        let square = ModelSpec::Lenet { input: [1, 2, 2], channels: [1, 1], hidden: 1, classes: 3 };
        open_files(&spec(FORMAT), &square, &[("x", &x), ("y", &y)]).unwrap();
    }
}
