//! NumPy archives: a zip file with the arrays `x` (`[n, …]` of f32, f64 or u8) and `y` (`[n]` of whole
//! numbers), as `numpy.savez` and `numpy.savez_compressed` write them. Several files follow each other.
//!
//! The array header (numpy/lib/format.py) is read here and not by `ndarray-npy`, which takes memory for
//! whatever length the header claims.

use super::error::{DataError, quote};
use super::source::open_plain;
use super::table::{Expect, Table, Values};
use slackline_common::job::DataSpec;
use slackline_common::limits::{NPY_HEADER_BYTES_MAX, TENSOR_DIMENSIONS_MAX};
use std::io::{self, BufReader, Read};
use std::path::Path;
use zip::ZipArchive;
use zip::result::ZipError;

/// First bytes of a NumPy array.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// One array as it lies in the archive.
struct Array {
    kind: String,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

/// Reads all files in order.
pub(super) fn read(
    data_dir: &Path,
    paths: &[String],
    limit_bytes: u64,
    expect: &Expect,
    spec: &DataSpec,
) -> Result<Table, DataError> {
    let mut labels = Vec::new();
    let mut all: Option<(Values, Vec<u64>)> = None;
    for path in paths {
        let (file, name, _) = open_plain(data_dir, path, limit_bytes)?;
        let mut archive = ZipArchive::new(BufReader::new(file))
            .map_err(|fault| DataError::Read { file: name.clone(), source: fault.into() })?;
        let x = array(&mut archive, &name, "x", limit_bytes)?;
        let y = array(&mut archive, &name, "y", limit_bytes)?;
        let [samples, sample @ ..] = x.shape.as_slice() else {
            return Err(header(
                &name,
                "array \"x\" is a single number; it needs [n, …]".to_owned(),
            ));
        };
        let [label_count] = y.shape[..] else {
            let reason = format!("array \"y\" has shape {:?}; it needs [n]", y.shape);
            return Err(header(&name, reason));
        };
        if label_count != *samples {
            return Err(DataError::Pairs {
                inputs_in: format!("array \"x\" of {name}"),
                samples: *samples,
                labels_in: format!("array \"y\" of {name}"),
                labels: label_count,
            });
        }
        if x.bytes.is_empty() {
            return Err(DataError::Empty { file: name });
        }
        expect.check_shape(&name, sample)?;
        for (label, row) in classes(&name, &y)?.into_iter().zip(1..) {
            labels.push(expect.label(&name, row, label)?);
        }
        let (kind, sample, samples) = (x.kind, sample.to_vec(), *samples);
        let values = numbers(&name, &kind, x.bytes, samples)?;
        match &mut all {
            None => all = Some((values, sample)),
            Some((before, want)) => {
                if sample != *want {
                    return Err(DataError::Shape { file: name, got: sample, want: want.clone() });
                }
                append(before, values, &name, kind)?;
            }
        }
    }
    let (values, shape) = all.unwrap_or((Values::Bytes(Vec::new()), Vec::new()));
    let inputs = usize::try_from(shape.iter().product::<u64>()).unwrap_or(usize::MAX);
    Ok(Table::new(values, labels, inputs, spec))
}

/// Reads one array, whose bytes are exactly what its header promises.
fn array(
    archive: &mut ZipArchive<BufReader<std::fs::File>>,
    file: &str,
    name: &'static str,
    limit_bytes: u64,
) -> Result<Array, DataError> {
    let read = |source| DataError::Read { file: file.to_owned(), source };
    let mut entry = archive.by_name(&format!("{name}.npy")).map_err(|fault| match fault {
        ZipError::FileNotFound => DataError::Array { file: file.to_owned(), name },
        other => read(other.into()),
    })?;
    let size = entry.size();
    if size > limit_bytes {
        return Err(DataError::TooLarge { file: file.to_owned(), limit_bytes });
    }
    let (text, header_bytes) = header_text(file, name, &mut entry)?;
    let (kind, shape) = parse_header(file, name, &text)?;
    let width = kind.get(1..).and_then(|width| width.parse::<u64>().ok()).unwrap_or(0);
    let promised = shape.iter().try_fold(width, |all, size| all.checked_mul(*size));
    let Some(promised) = promised.filter(|_| shape.len() <= TENSOR_DIMENSIONS_MAX) else {
        return Err(header(
            file,
            format!("array {name:?} has shape {shape:?}, which is too large"),
        ));
    };
    let refuse = |found: String| DataError::Length {
        file: format!("{name}.npy in {file}"),
        promise: "header",
        expected: header_bytes.saturating_add(promised),
        found,
    };
    if size != header_bytes.saturating_add(promised) {
        return Err(refuse(size.to_string()));
    }
    let mut bytes = Vec::new();
    entry.take(promised.saturating_add(1)).read_to_end(&mut bytes).map_err(read)?;
    match bytes.len() as u64 {
        found if found == promised => Ok(Array { kind, shape, bytes }),
        found => Err(refuse((header_bytes + found).to_string())),
    }
}

/// The text of an array's header and the bytes up to its end.
fn header_text(
    file: &str,
    name: &'static str,
    entry: &mut impl Read,
) -> Result<(String, u64), DataError> {
    let cut = |source: io::Error| match source.kind() {
        io::ErrorKind::UnexpectedEof => header(file, format!("array {name:?} ends within it")),
        _ => DataError::Read { file: file.to_owned(), source },
    };
    let mut start = [0; 8];
    entry.read_exact(&mut start).map_err(cut)?;
    if !start.starts_with(MAGIC) {
        return Err(DataError::Magic {
            file: format!("{name}.npy in {file}"),
            got: start[..6].iter().map(|byte| format!("{byte:02x}")).collect(),
            rule: "a NumPy array starts with 934e554d5059",
        });
    }
    // Version 1 has a length of two bytes, the later ones of four.
    let wide = start[6] > 1;
    let mut len = [0; 4];
    entry.read_exact(&mut len[..if wide { 4 } else { 2 }]).map_err(cut)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > NPY_HEADER_BYTES_MAX {
        let reason = format!("it claims {len} bytes; at most {NPY_HEADER_BYTES_MAX} are read");
        return Err(header(file, reason));
    }
    let mut text = vec![0; len];
    entry.read_exact(&mut text).map_err(cut)?;
    let before = if wide { 12 } else { 10 };
    Ok((String::from_utf8_lossy(&text).into_owned(), before + len as u64))
}

/// Type (`f4`, `u1`, …) and shape of `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse_header(
    file: &str,
    name: &'static str,
    text: &str,
) -> Result<(String, Vec<u64>), DataError> {
    let after = |key: &str| {
        let at = text.find(&format!("'{key}'"))? + key.len() + 2;
        Some(text[at..].trim_start().strip_prefix(':')?.trim_start())
    };
    let parts = || {
        let descr = after("descr")?;
        let fortran = after("fortran_order")?.starts_with("True");
        let sizes = after("shape")?.strip_prefix('(')?.split(')').next()?;
        let sizes = sizes.split(',').map(str::trim).filter(|size| !size.is_empty());
        Some((descr, fortran, sizes.map(|size| size.parse().ok()).collect::<Option<Vec<u64>>>()?))
    };
    let Some((descr, fortran, shape)) = parts() else {
        let reason = format!("array {name:?} has {:?}", quote(text.as_bytes()));
        return Err(header(file, reason));
    };
    if fortran && shape.len() > 1 {
        let reason =
            format!("array {name:?} is in column order; save numpy.ascontiguousarray({name})");
        return Err(header(file, reason));
    }
    let rules: (&[&str], _) = match name {
        "x" => (&["f4", "f8", "u1"], "inputs are little-endian float32 or float64, or uint8"),
        _ => (
            &["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"],
            "labels are little-endian whole numbers",
        ),
    };
    let quoted = descr.strip_prefix('\'').and_then(|rest| rest.split('\'').next());
    let kind = quoted.map(|kind| kind.trim_start_matches(['<', '|', '=']));
    match kind.filter(|kind| rules.0.contains(kind)) {
        Some(kind) => Ok((kind.to_owned(), shape)),
        None => Err(DataError::ArrayType {
            file: file.to_owned(),
            name,
            got: quote(quoted.unwrap_or(descr).as_bytes()),
            rule: rules.1,
        }),
    }
}

/// The inputs, kept as bytes where they are bytes.
fn numbers(file: &str, kind: &str, bytes: Vec<u8>, samples: u64) -> Result<Values, DataError> {
    let floats: Vec<f32> = match kind {
        "u1" => return Ok(Values::Bytes(bytes)),
        "f4" => bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect(),
        _ => bytes.as_chunks().0.iter().map(|value| narrow(f64::from_le_bytes(*value))).collect(),
    };
    match floats.iter().position(|value| !value.is_finite()) {
        None => Ok(Values::Floats(floats)),
        Some(at) => Err(DataError::Number {
            file: file.to_owned(),
            place: "row",
            at: at as u64 / (floats.len() as u64 / samples) + 1,
            value: floats[at].to_string(),
            want: "a finite number within float32",
        }),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounds; what is too large becomes infinite")]
const fn narrow(value: f64) -> f32 {
    value as f32
}

/// The labels.
fn classes(file: &str, y: &Array) -> Result<Vec<i64>, DataError> {
    let bytes = &y.bytes;
    let large = |row: usize, value: u64| DataError::Number {
        file: file.to_owned(),
        place: "row",
        at: row as u64 + 1,
        value: value.to_string(),
        want: "a class",
    };
    Ok(match y.kind.as_str() {
        "i1" => bytes.iter().map(|byte| i64::from(byte.cast_signed())).collect(),
        "u1" => bytes.iter().map(|byte| i64::from(*byte)).collect(),
        "i2" => bytes.as_chunks().0.iter().map(|v| i64::from(i16::from_le_bytes(*v))).collect(),
        "u2" => bytes.as_chunks().0.iter().map(|v| i64::from(u16::from_le_bytes(*v))).collect(),
        "i4" => bytes.as_chunks().0.iter().map(|v| i64::from(i32::from_le_bytes(*v))).collect(),
        "u4" => bytes.as_chunks().0.iter().map(|v| i64::from(u32::from_le_bytes(*v))).collect(),
        "i8" => bytes.as_chunks().0.iter().map(|v| i64::from_le_bytes(*v)).collect(),
        _ => (bytes.as_chunks().0.iter().enumerate())
            .map(|(row, value)| {
                let value = u64::from_le_bytes(*value);
                i64::try_from(value).map_err(|_| large(row, value))
            })
            .collect::<Result<_, _>>()?,
    })
}

/// Puts the inputs of a later file behind those of the earlier ones.
fn append(before: &mut Values, more: Values, file: &str, kind: String) -> Result<(), DataError> {
    match (before, more) {
        (Values::Bytes(before), Values::Bytes(more)) => before.extend(more),
        (Values::Floats(before), Values::Floats(more)) => before.extend(more),
        _ => {
            return Err(DataError::ArrayType {
                file: file.to_owned(),
                name: "x",
                got: kind,
                rule: "all files of one part must hold bytes, or all floating-point numbers",
            });
        }
    }
    Ok(())
}

fn header(file: &str, reason: String) -> DataError {
    DataError::Header { file: file.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_refused, fill, open_files, softmax, spec};
    use ndarray::{Array1, Array2, Array4, ArrayD, array};
    use ndarray_npy::{NpzWriter, WriteNpyExt};
    use slackline_common::job::DataFormat;
    use slackline_common::model::ModelSpec;
    use std::io::{Cursor, Write};

    const FORMAT: DataFormat = DataFormat::Npz;

    /// An archive that another program wrote.
    fn npz(x: &impl WriteNpyExt, y: &impl WriteNpyExt, compressed: bool) -> Vec<u8> {
        let file = Cursor::new(Vec::new());
        let mut writer =
            if compressed { NpzWriter::new_compressed(file) } else { NpzWriter::new(file) };
        writer.add_array("x", x).unwrap();
        writer.add_array("y", y).unwrap();
        writer.finish().unwrap().into_inner()
    }

    /// An archive of raw members.
    fn raw(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in members {
            zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    /// An array with this header text.
    fn npy(text: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn every_type_and_both_compressions_give_the_same_samples() {
        let x8 = array![[1u8, 2], [3, 4], [5, 255]];
        let (x, x64) = (x8.mapv(f32::from), x8.mapv(f64::from));
        let y = array![2u8, 0, 1];
        let check = |file: Vec<u8>| {
            let data = open_files(&spec(FORMAT), &softmax(2, 3), &[("a.npz", &file)]).unwrap();
            assert_eq!(fill(&*data, &[2, 0]), (vec![5.0, 255.0, 1.0, 2.0], vec![1, 2]));
        };
        for compressed in [false, true] {
            check(npz(&x, &y, compressed));
            check(npz(&x64, &y, compressed));
            check(npz(&x8, &y, compressed));
            check(npz(&x, &array![2i8, 0, 1], compressed));
            check(npz(&x, &y.mapv(i64::from), compressed));
            check(npz(&x, &y.mapv(i16::from), compressed));
            check(npz(&x, &y.mapv(u16::from), compressed));
            check(npz(&x, &y.mapv(i32::from), compressed));
            check(npz(&x, &y.mapv(u32::from), compressed));
            check(npz(&x, &y.mapv(u64::from), compressed));
        }
    }

    #[test]
    fn files_follow_each_other() {
        let a = npz(&array![[1u8], [2]], &array![0u8, 1], false);
        let b = npz(&array![[3u8]], &array![1u8], true);
        let files: [(&str, &[u8]); 2] = [("a", &a), ("b", &b)];
        let data = open_files(&spec(FORMAT), &softmax(1, 2), &files).unwrap();
        assert_eq!(fill(&*data, &[0, 1, 2]), (vec![1.0, 2.0, 3.0], vec![0, 1, 1]));
        let c = npz(&array![[3f32]], &array![1u8], true);
        let mixed: [(&str, &[u8]); 2] = [("a", &a), ("c", &c)];
        check_refused(FORMAT, &softmax(1, 2), &mixed, &["type f4", "all files of one part"]);
        let d = npz(&array![[3u8, 4]], &array![1u8], true);
        let mixed: [(&str, &[u8]); 2] = [("a", &a), ("d", &d)];
        check_refused(FORMAT, &ModelSpec::External, &mixed, &["shape [2]"]);
    }

    #[test]
    fn channels_last_images_are_not_taken_for_channels_first() {
        let model = ModelSpec::Resnet20 { input: [3, 8, 8], width: 4, classes: 2 };
        let y = Array1::<u8>::zeros(1);
        let last = npz(&Array4::<u8>::zeros((1, 8, 8, 3)), &y, false);
        check_refused(FORMAT, &model, &[("a", &last)], &["shape [8, 8, 3]", "takes [3, 8, 8]"]);
        let first = npz(&Array4::<u8>::zeros((1, 3, 8, 8)), &y, false);
        open_files(&spec(FORMAT), &model, &[("a", &first)]).unwrap();
        let flat = npz(&Array2::<u8>::zeros((1, 192)), &y, false);
        open_files(&spec(FORMAT), &model, &[("a", &flat)]).unwrap();
    }

    #[test]
    fn arrays_that_do_not_fit_are_refused() {
        let (x, y) = (array![[1.0f32, 2.0], [3.0, 4.0]], array![0i64, 1]);
        let check = |file: Vec<u8>, pieces: &[&str]| {
            check_refused(FORMAT, &softmax(2, 2), &[("a", &file)], pieces);
        };
        check(npz(&x, &array![0i64], false), &["2 samples in array \"x\"", "1 labels in array"]);
        check(npz(&x, &array![0i64, 2], false), &["row 2 of", "label 2", "classes 0 to 1"]);
        check(npz(&x, &array![-1i8, 0], false), &["row 1 of", "label -1"]);
        check(npz(&x, &array![0, u64::MAX], false), &["row 2", "18446744073709551615"]);
        check(npz(&x, &array![[0i64], [1]], false), &["shape [2, 1]; it needs [n]"]);
        check(npz(&x, &array![0.0f32, 1.0], false), &["\"y\"", "type <f4", "whole numbers"]);
        check(npz(&array![[1i32, 2], [3, 4]], &y, false), &["\"x\"", "type <i4"]);
        check(npz(&array![[1.0, f32::NAN], [0.0, 0.0]], &y, false), &["row 1", "\"NaN\""]);
        check(npz(&array![[0.0, 0.0], [1e300, 0.0]], &y, false), &["row 2", "\"inf\""]);
        check(npz(&array![[1.0f32], [2.0]], &y, false), &["shape [1]", "takes [2]"]);
        check(npz(&Array2::<f32>::zeros((0, 2)), &Array1::<u8>::zeros(0), true), &["no samples"]);
        check(npz(&ArrayD::<f32>::zeros(vec![]), &y, true), &["a single number"]);
        check(npz(&x.t(), &y, false), &["column order", "numpy.ascontiguousarray(x)"]);
        check(raw(&[("y.npy", b"")]), &["no array \"x\"", "numpy.savez"]);
        check(b"no zip file".to_vec(), &["read data file"]);
        check(b"".to_vec(), &["read data file"]);
    }

    #[test]
    fn headers_are_not_believed() {
        let check = |x: Vec<u8>, pieces: &[&str]| {
            let file = raw(&[("x.npy", &x), ("y.npy", &x)]);
            check_refused(FORMAT, &softmax(2, 2), &[("a", &file)], pieces);
        };
        let head =
            |shape: &str| format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
        check(npy(&head("(1, 2)"), &[0; 7]), &["by its header", "x.npy"]);
        check(npy(&head("(1, 2)"), &[0; 9]), &["by its header"]);
        check(npy(&head("(4000000000, 2)"), &[0; 8]), &["should have 32000000", "it has"]);
        check(npy(&head("(18446744073709551615, 2)"), &[0; 8]), &["too large"]);
        check(npy(&head("(99999999999999999999999,)"), &[]), &["has \"{'descr'"]);
        check(npy(&head("(-1,)"), &[]), &["header that cannot be used"]);
        check(npy(&head("(1,1,1,1,1,1,1,1,1)"), &[0; 4]), &["too large"]);
        check(npy(&"(".repeat(60_000), &[]), &["header that cannot be used"]);
        check(
            npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", &[]),
            &["type"],
        );
        check(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (1,)}", &[]), &["type >f4"]);
        check(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{".to_vec(), &["claims 4294967295 bytes"]);
        check(b"\x93NUMPY\x01\x00\xff\x00{".to_vec(), &["ends within it"]);
        check(b"\x93NUM".to_vec(), &["ends within it"]);
        check(b"12345678".to_vec(), &["starts with 313233343536"]);
    }

    #[test]
    fn damage_and_bombs_are_refused() {
        let whole = npz(&Array2::<f32>::zeros((4, 2)), &Array1::<u8>::zeros(4), true);
        let model = softmax(2, 2);
        for cut in 0..whole.len() {
            check_refused(FORMAT, &model, &[("a", &whole[..cut])], &["a"]);
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            // Some bytes (dates, flags) do not matter: it must not panic.
            drop(open_files(&spec(FORMAT), &model, &[("a", &damaged)]));
        }
        let bomb = npz(&Array2::<f64>::zeros((1 << 17, 2)), &Array1::<u8>::zeros(1 << 17), true);
        assert!(bomb.len() < 1 << 14);
        check_refused(FORMAT, &model, &[("a", &bomb)], &["more than 1048576 bytes when unpacked"]);
    }
}
