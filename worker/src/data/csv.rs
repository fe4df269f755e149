//! Numbers separated by commas, one sample per line, the class in the last column. The first line of
//! a file is a header, and skipped, when none of its fields is a number.

use super::error::{DataError, quote};
use super::source::DataFile;
use super::table::{Expect, Table, Values};
use ::csv::{ByteRecord, ErrorKind, ReaderBuilder, Trim};
use slackline_common::job::DataSpec;

/// Reads all files in order.
pub(super) fn read(
    files: Vec<DataFile>,
    expect: &Expect,
    spec: &DataSpec,
) -> Result<Table, DataError> {
    let (mut values, mut labels) = (Vec::new(), Vec::new());
    let mut fields = None;
    for mut file in files {
        let before = labels.len();
        read_file(&mut file, expect, &mut fields, &mut values, &mut labels)?;
        if labels.len() == before {
            return Err(DataError::Empty { file: file.name });
        }
    }
    let inputs = values.len() / labels.len().max(1);
    Ok(Table::new(Values::Floats(values), labels, inputs, spec))
}

/// Appends one file. `fields` is the number of fields of the first line of all.
fn read_file(
    file: &mut DataFile,
    expect: &Expect,
    fields: &mut Option<u64>,
    values: &mut Vec<f32>,
    labels: &mut Vec<u32>,
) -> Result<(), DataError> {
    let name = file.name.clone();
    let mut reader = ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(Trim::All)
        .from_reader(file.reader());
    let mut record = ByteRecord::new();
    let (mut first, mut row) = (true, 0);
    loop {
        match reader.read_byte_record(&mut record) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(fault) => return Err(broken(file, fault)),
        }
        let line = record.position().map_or(0, ::csv::Position::line);
        if std::mem::take(&mut first) && record.iter().all(|field| number(field).is_none()) {
            continue;
        }
        let got = record.len() as u64;
        let want = match *fields {
            Some(want) => want,
            None => {
                let inputs = got.saturating_sub(1);
                // A line with only a class has no input: the model's own length says so best.
                expect.check_shape(&name, &[inputs])?;
                *fields = Some(got.max(2));
                got.max(2)
            }
        };
        if got != want {
            return Err(DataError::Fields { file: name, line, got, want });
        }
        let bad = |field: &[u8], want| DataError::Number {
            file: name.clone(),
            place: "line",
            at: line,
            value: quote(field),
            want,
        };
        let (class, numbers) = (&record[record.len() - 1], record.iter().take(record.len() - 1));
        for field in numbers {
            values.push(number(field).ok_or_else(|| bad(field, "a finite number"))?);
        }
        row += 1;
        let label = class_number(class).ok_or_else(|| bad(class, "a whole number"))?;
        labels.push(expect.label(&name, row, label)?);
    }
}

/// A finite number.
pub(super) fn number(field: &[u8]) -> Option<f32> {
    let text = std::str::from_utf8(field).ok()?;
    text.parse::<f32>().ok().filter(|value| value.is_finite())
}

/// A class, also written as a number with a fraction of 0 (`3.0`, `3e0`), as NumPy writes it.
pub(super) fn class_number(field: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(field).ok()?;
    text.parse().ok().or_else(|| {
        let value = text.parse::<f64>().ok()?;
        let whole = value.fract() == 0.0 && value.abs() < 9e15;
        #[expect(clippy::cast_possible_truncation, reason = "whole and below 2^53")]
        whole.then_some(value as i64)
    })
}

/// What the parser said: only reading can fail, since lines of any number of fields are let through.
fn broken(file: &DataFile, fault: ::csv::Error) -> DataError {
    match fault.into_kind() {
        ErrorKind::Io(source) => file.error(source),
        other => file.error(std::io::Error::other(format!("{other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_refused, fill, gzip, open_files, softmax, spec};
    use slackline_common::job::DataFormat;
    use slackline_common::model::ModelSpec;

    const FORMAT: DataFormat = DataFormat::Csv;

    #[test]
    fn a_header_is_optional_and_the_class_comes_last() {
        let expected = (vec![1.0, -2.5, 3e2, 0.0], vec![0, 2]);
        let check = |text: &[u8]| {
            let data = open_files(&spec(FORMAT), &softmax(2, 3), &[("a", text)]).unwrap();
            assert_eq!(fill(&*data, &[0, 1]), expected, "{}", String::from_utf8_lossy(text));
        };
        check(b"1,-2.5,0\n3e2,0,2\n");
        check(b"width,height,class\n1,-2.5,0\n3e2,0,2");
        check(b"1 , -2.5, 0\r\n\r\n300, 0, 2\r\n");
        check(b"\"1\",\"-2.5\",\"0\"\n300,0,2.000e+00\n");
        check(&gzip(b"1,-2.5,0\n3e2,0,2\n"));
    }

    #[test]
    fn files_follow_each_other_each_with_its_own_header() {
        let files: [(&str, &[u8]); 2] = [("a", b"x,c\n1,0\n"), ("b", b"x,c\n2,1\n3,0\n")];
        let data = open_files(&spec(FORMAT), &ModelSpec::External, &files).unwrap();
        assert_eq!(fill(&*data, &[0, 1, 2]), (vec![1.0, 2.0, 3.0], vec![0, 1, 0]));
    }

    #[test]
    fn what_is_no_number_is_refused_with_its_line() {
        let check = |text: &str, pieces: &[&str]| {
            check_refused(FORMAT, &softmax(2, 3), &[("a", text.as_bytes())], pieces);
        };
        check("a,b,c\n1,2,0\n1,x2,0\n", &["line 3 of", "\"x2\" is not a finite number"]);
        check("x,2,0\n", &["line 1 of", "\"x\""]);
        check("1,2,0\n1,,0\n", &["line 2 of", "\"\" is not"]);
        check("1,2,0\n1,inf,0\n", &["\"inf\" is not a finite number"]);
        check("1,2,0.5\n", &["\"0.5\" is not a whole number"]);
        check("1,2,nan\n", &["\"nan\" is not a whole number"]);
        check("1,2,0\n\n1,2,3\n", &["row 2 of", "label 3", "classes 0 to 2"]);
        check("1,2,-1\n", &["label -1"]);
        check("1,2,0\n1,0\n", &["line 2 of", "has 2 fields", "3 are needed"]);
        check("1,2,3,0\n", &["shape [3]", "takes [2]"]);
        check("0\n", &["shape [0]"]);
        check("", &["no samples"]);
        check("a,b,c\n", &["no samples"]);
        check_refused(FORMAT, &ModelSpec::External, &[("a", b"7\n")], &["has 1 fields"]);
        check_refused(FORMAT, &softmax(2, 3), &[("a", b"1,\xff,0\n")], &["line 1 of"]);
    }
}
