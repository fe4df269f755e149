//! Why data cannot be trained on: the file, the place in it, the value seen and the rule.

use slackline_common::blame::Blame;
use slackline_common::job::DataFormat;
use std::io;

/// Longest piece of a file that an error message repeats.
const QUOTED_CHARS_MAX: usize = 40;

/// Why a data set was refused. Each message names the file and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// No such embedded data set.
    #[error(
        "no embedded data set is called {name:?}; there are \"digits-train\" and \"digits-test\""
    )]
    Embedded {
        /// The name in the job.
        name: String,
    },
    /// The embedded files have one format and the job names another.
    #[error("the embedded data set {name:?} is in format csv, the job says {}", word(*.format))]
    EmbeddedFormat {
        /// The name in the job.
        name: String,
        /// The format in the job.
        format: DataFormat,
    },
    /// The wrong number of files for the format.
    #[error("the job lists {got} data files for format {}; {rule}", word(*.format))]
    FileCount {
        /// The format in the job.
        format: DataFormat,
        /// How many files it lists.
        got: usize,
        /// How many are right.
        rule: &'static str,
    },
    /// The file is absent, is no regular file, or its disk or archive failed.
    #[error("read data file {file}: {source}")]
    Read {
        /// Path of the file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// More bytes than the limit, on disk or after decompression.
    #[error("data file {file} has more than {limit_bytes} bytes when unpacked, which is the limit")]
    TooLarge {
        /// Path of the file.
        file: String,
        /// The limit.
        limit_bytes: u64,
    },
    /// No samples.
    #[error("data file {file} holds no samples; at least one is needed")]
    Empty {
        /// Path of the file.
        file: String,
    },
    /// The file does not start as its format must.
    #[error("data file {file} starts with {got}, {rule}")]
    Magic {
        /// Path of the file.
        file: String,
        /// First bytes, as hexadecimal digits.
        got: String,
        /// What the format wants.
        rule: &'static str,
    },
    /// A header that cannot be meant.
    #[error("data file {file} has a header that cannot be used: {reason}")]
    Header {
        /// Path of the file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// More or fewer bytes than the header or the record length promises.
    #[error("data file {file} should have {expected} bytes by its {promise}; it has {found}")]
    Length {
        /// Path of the file.
        file: String,
        /// What makes the promise.
        promise: &'static str,
        /// Bytes promised.
        expected: u64,
        /// Bytes found; "more than …" when reading stopped there.
        found: String,
    },
    /// Two arrays that belong together differ in length.
    #[error("{samples} samples in {inputs_in} but {labels} labels in {labels_in}; one label each")]
    Pairs {
        /// Where the inputs are.
        inputs_in: String,
        /// Number of inputs.
        samples: u64,
        /// Where the labels are.
        labels_in: String,
        /// Number of labels.
        labels: u64,
    },
    /// Samples of another size than the model's input.
    #[error("samples in {file} have shape {got:?}; the model takes {want:?}")]
    Shape {
        /// Path of the file.
        file: String,
        /// Shape of one sample.
        got: Vec<u64>,
        /// The model's input.
        want: Vec<u64>,
    },
    /// A line with another number of fields than the first one.
    #[error(
        "line {line} of {file} has {got} fields; {want} are needed, as in the first line and at least 2"
    )]
    Fields {
        /// Path of the file.
        file: String,
        /// Line, counted from 1.
        line: u64,
        /// Fields seen.
        got: u64,
        /// Fields of the first line.
        want: u64,
    },
    /// A label that is not one of the model's classes.
    #[error("row {row} of {file} has label {label}; the model has classes 0 to {largest}")]
    Label {
        /// Path of the file.
        file: String,
        /// Sample in that file, counted from 1.
        row: u64,
        /// The label seen.
        label: i64,
        /// The largest allowed.
        largest: u32,
    },
    /// Something that is not a number where one must be.
    #[error("{place} {at} of {file}: {value:?} is not {want}")]
    Number {
        /// Path of the file.
        file: String,
        /// `line` or `row`.
        place: &'static str,
        /// Which one, counted from 1.
        at: u64,
        /// What stands there, shortened.
        value: String,
        /// What must stand there.
        want: &'static str,
    },
    /// A LIBSVM index that is out of range or out of order.
    #[error(
        "line {line} of {file}: index {index} follows {previous}; indices must rise from 1 to {largest}"
    )]
    Index {
        /// Path of the file.
        file: String,
        /// Line, counted from 1.
        line: u64,
        /// The index seen.
        index: u64,
        /// The index before it; 0 for the first.
        previous: u64,
        /// Length of the model's input.
        largest: u64,
    },
    /// A NumPy archive without the array.
    #[error(
        "data file {file} has no array {name:?}; `numpy.savez(path, x=inputs, y=labels)` makes one"
    )]
    Array {
        /// Path of the file.
        file: String,
        /// The array.
        name: &'static str,
    },
    /// A NumPy array of a type that is not read.
    #[error("array {name:?} in {file} has type {got}; {rule}")]
    ArrayType {
        /// Path of the file.
        file: String,
        /// The array.
        name: &'static str,
        /// The type in its header.
        got: String,
        /// What is read.
        rule: &'static str,
    },
    /// A format that does not suit the model.
    #[error("data of format {} cannot train this model: {rule}", word(*.format))]
    Model {
        /// The format in the job.
        format: DataFormat,
        /// What goes together.
        rule: &'static str,
    },
    /// Not enough text for one sample.
    #[error("{file} has {bytes} bytes; one sample takes {want} (context and the byte after it)")]
    Text {
        /// Path of the first file.
        file: String,
        /// Bytes of all files together.
        bytes: u64,
        /// Bytes of a sample.
        want: u64,
    },
}

impl DataError {
    /// Whose move it is: always the person's who wrote the job or prepared the files.
    pub const fn blame(&self) -> Blame {
        Blame::Config
    }
}

/// A piece of a file, short enough for a message, with unreadable bytes replaced.
pub(super) fn quote(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * QUOTED_CHARS_MAX)]);
    let mut short = text.chars().take(QUOTED_CHARS_MAX).collect::<String>();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        short.push('…');
    }
    short
}

/// The format's word in the job file.
pub(super) const fn word(format: DataFormat) -> &'static str {
    match format {
        DataFormat::Idx => "idx",
        DataFormat::Cifar => "cifar",
        DataFormat::Csv => "csv",
        DataFormat::Libsvm => "libsvm",
        DataFormat::Npz => "npz",
        DataFormat::Text => "text",
    }
}
