//! LIBSVM's sparse text (<https://www.csie.ntu.edu.tw/~cjlin/libsvm/>): `label index:value …` per line,
//! indices from 1 and rising, everything not named is 0. A `#` starts a comment. Samples stay sparse in
//! memory and become dense inputs of the model's length in a batch.
//!
//! For a model with two classes the label -1 is class 0, as in the binary sets of LIBSVM's collection.

use super::csv::{class_number, number};
use super::error::{DataError, quote};
use super::source::DataFile;
use super::table::{Expect, Table, Values};
use slackline_common::job::DataSpec;

/// Largest index: one past the largest position that [`Values::Sparse`] keeps.
const INDEX_MAX: u64 = 1 << 32;

/// Entries of all samples so far.
#[derive(Default)]
struct Entries {
    ends: Vec<usize>,
    positions: Vec<u32>,
    values: Vec<f32>,
    labels: Vec<u32>,
}

/// Reads all files in order.
pub(super) fn read(
    files: Vec<DataFile>,
    expect: &Expect,
    spec: &DataSpec,
) -> Result<Table, DataError> {
    let mut entries = Entries::default();
    for mut file in files {
        let before = entries.labels.len();
        read_file(&mut file, expect, &mut entries)?;
        if entries.labels.len() == before {
            return Err(DataError::Empty { file: file.name });
        }
    }
    let Entries { ends, positions, values, labels } = entries;
    let seen = positions.iter().max().map_or(1, |position| u64::from(*position) + 1);
    let inputs = usize::try_from(expect.inputs().unwrap_or(seen)).unwrap_or(usize::MAX).max(1);
    Ok(Table::new(Values::Sparse { ends, positions, values }, labels, inputs, spec))
}

fn read_file(file: &mut DataFile, expect: &Expect, entries: &mut Entries) -> Result<(), DataError> {
    let (mut text, mut row) = (Vec::new(), 0);
    for line in 1.. {
        text.clear();
        let read = file.reader().read_until(b'\n', &mut text);
        if read.map_err(|source| file.error(source))? == 0 {
            break;
        }
        let written = text.split(|byte| *byte == b'#').next().unwrap_or_default();
        let mut words = written.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let Some(class) = words.next() else { continue };
        row += 1;
        read_line(&file.name, (line, row), class, words, expect, entries)?;
    }
    Ok(())
}

/// Appends one sample. `at` is its line and its row.
fn read_line<'a>(
    file: &str,
    at: (u64, u64),
    class: &[u8],
    pairs: impl Iterator<Item = &'a [u8]>,
    expect: &Expect,
    entries: &mut Entries,
) -> Result<(), DataError> {
    let (line, row) = at;
    let bad = |word: &[u8], want| DataError::Number {
        file: file.to_owned(),
        place: "line",
        at: line,
        value: quote(word),
        want,
    };
    let label = match class_number(class).ok_or_else(|| bad(class, "a whole number"))? {
        -1 if expect.classes == Some(2) => 0,
        label => label,
    };
    entries.labels.push(expect.label(file, row, label)?);
    let largest = expect.inputs().unwrap_or(INDEX_MAX).min(INDEX_MAX);
    let mut previous = 0;
    for pair in pairs {
        let mut halves = pair.splitn(2, |byte| *byte == b':');
        let index =
            halves.next().and_then(|index| std::str::from_utf8(index).ok()?.parse::<u64>().ok());
        let value = halves.next().and_then(number);
        let (Some(index), Some(value)) = (index, value) else {
            return Err(bad(pair, "index:value with a whole index and a finite value"));
        };
        let position = u32::try_from(index - index.min(1)).ok();
        let Some(position) = position.filter(|_| previous < index && index <= largest) else {
            return Err(DataError::Index { file: file.to_owned(), line, index, previous, largest });
        };
        entries.positions.push(position);
        entries.values.push(value);
        previous = index;
    }
    entries.ends.push(entries.positions.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_refused, fill, open_files, softmax, spec};
    use slackline_common::job::DataFormat;

    const FORMAT: DataFormat = DataFormat::Libsvm;

    #[test]
    fn entries_land_at_their_index_and_the_rest_is_zero() {
        let text = b"# made by hand\n2 1:0.5 4:-3\n\n0\n+1 2:1e1 # note\n";
        let model = softmax(4, 3);
        let data = open_files(&spec(FORMAT), &model, &[("a", text)]).unwrap();
        let expected = vec![0.0, 10.0, 0.0, 0.0, 0.5, 0.0, 0.0, -3.0, 0.0, 0.0, 0.0, 0.0];
        assert_eq!(fill(&*data, &[2, 0, 1]), (expected, vec![1, 2, 0]));
    }

    #[test]
    fn zeros_are_transformed_too() {
        let mut spec = spec(FORMAT);
        (spec.scale, spec.mean, spec.deviation) = (0.5, 1.0, 2.0);
        let data = open_files(&spec, &softmax(2, 2), &[("a", b"1 2:6")]).unwrap();
        assert_eq!(fill(&*data, &[0]).0, [-0.5, 1.0]);
    }

    #[test]
    fn minus_one_is_class_zero_of_two() {
        let data = open_files(&spec(FORMAT), &softmax(1, 2), &[("a", b"-1 1:1\n+1 1:2\n")]);
        assert_eq!(fill(&*data.unwrap(), &[0, 1]).1, [0, 1]);
        let pieces = ["row 1 of", "label -1", "classes 0 to 2"];
        check_refused(FORMAT, &softmax(1, 3), &[("a", b"-1 1:1\n")], &pieces);
    }

    #[test]
    fn what_the_format_forbids_is_refused_with_its_line() {
        let check = |text: &str, pieces: &[&str]| {
            check_refused(FORMAT, &softmax(3, 2), &[("a", text.as_bytes())], pieces);
        };
        check("0 1:1\n1 4:1\n", &["line 2 of", "index 4", "from 1 to 3"]);
        check("0 0:1\n", &["line 1 of", "index 0"]);
        check("0 2:1 2:1\n", &["index 2 follows 2"]);
        check("0 18446744073709551615:1\n", &["index 18446744073709551615"]);
        check("0 1:x\n", &["line 1 of", "\"1:x\" is not index:value"]);
        check("0 1:nan\n", &["\"1:nan\""]);
        check("0 1\n", &["\"1\" is not"]);
        check("0.5 1:1\n", &["\"0.5\" is not a whole number"]);
        check("\n0 1:1\n\n2 1:1\n", &["row 2 of", "label 2"]);
        check("", &["no samples"]);
        check("# nothing\n\n", &["no samples"]);
    }
}
