//! The one door to data files: plain, gzip or embedded, never more bytes than the limit.

use super::error::DataError;
use flate2::bufread::MultiGzDecoder;
use slackline_common::job::{DataFormat, DataSource};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// First bytes of a gzip file (RFC 1952, section 2.3.1).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Most output that one byte of deflate can stand for: 258 bytes from two bits (zlib's manual gives
/// 1032:1). A promise beyond it is refused before anything is unpacked.
const DEFLATE_RATIO_MAX: u64 = 1032;

/// One open data file, read from front to back.
pub(super) struct DataFile {
    /// Path as people know it.
    pub(super) name: String,
    reader: Box<dyn BufRead>,
    size: Size,
    taken: u64,
    limit_bytes: u64,
}

/// What is known of the unpacked size before reading.
#[derive(Clone, Copy)]
enum Size {
    Exactly(u64),
    AtMost(u64),
}

impl fmt::Debug for DataFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataFile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The files of one part of the data, by path; empty for an embedded one.
///
/// # Errors
/// A number of files that the format does not have.
pub(super) fn paths(source: &DataSource, format: DataFormat) -> Result<&[String], DataError> {
    let DataSource::Files(paths) = source else { return Ok(&[]) };
    let (fits, rule) = match format {
        DataFormat::Idx => (paths.len() == 2, "idx takes two: images, then labels"),
        _ => (!paths.is_empty(), "name at least one"),
    };
    let got = paths.len();
    if fits { Ok(paths) } else { Err(DataError::FileCount { format, got, rule }) }
}

impl DataFile {
    /// Opens `data_dir/path`; a gzip file is known by its first bytes and unpacked on the way.
    ///
    /// # Errors
    /// It is absent, is no regular file, or has more than `limit_bytes`.
    pub(super) fn open(data_dir: &Path, path: &str, limit_bytes: u64) -> Result<Self, DataError> {
        let (file, name, bytes) = open_plain(data_dir, path, limit_bytes)?;
        let mut reader = BufReader::with_capacity(64 << 10, file);
        let start = reader.fill_buf().map_err(|source| read_error(&name, limit_bytes, source))?;
        let packed = start.starts_with(&GZIP_MAGIC);
        let (reader, size): (Box<dyn BufRead>, _) = if packed {
            let unpacked = Bounded { inner: MultiGzDecoder::new(reader), left: limit_bytes };
            let most = bytes.saturating_mul(DEFLATE_RATIO_MAX).min(limit_bytes);
            (Box::new(BufReader::with_capacity(64 << 10, unpacked)), Size::AtMost(most))
        } else {
            // The file may grow while it is read.
            let bounded = Bounded { inner: reader, left: limit_bytes };
            (Box::new(BufReader::with_capacity(64 << 10, bounded)), Size::Exactly(bytes))
        };
        Ok(Self { name, reader, size, taken: 0, limit_bytes })
    }

    /// A file built into the program.
    pub(super) fn embedded(name: &str, text: &'static str) -> Self {
        let bytes = text.len() as u64;
        Self {
            name: format!("embedded {name}"),
            reader: Box::new(text.as_bytes()),
            size: Size::Exactly(bytes),
            taken: 0,
            limit_bytes: bytes,
        }
    }

    /// The text line by line, for parsers that stop at the end.
    pub(super) fn reader(&mut self) -> &mut dyn BufRead {
        &mut *self.reader
    }

    /// Turns what reading said into an error that names the file.
    pub(super) fn error(&self, source: io::Error) -> DataError {
        read_error(&self.name, self.limit_bytes, source)
    }

    /// The next `N` bytes, or fewer where the file ends.
    pub(super) fn start<const N: usize>(&mut self) -> Result<([u8; N], usize), DataError> {
        let (mut bytes, mut filled) = ([0; N], 0);
        while filled < N {
            match self.reader.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(fault) if fault.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(fault) => return Err(self.error(fault)),
            }
        }
        self.taken += filled as u64;
        Ok((bytes, filled))
    }

    /// The rest of the file, which must be exactly `expected` bytes. A promise that cannot be kept is
    /// refused before memory is taken for it; what is taken grows with what was really read.
    pub(super) fn rest(
        &mut self,
        expected: u64,
        promise: &'static str,
    ) -> Result<Vec<u8>, DataError> {
        let total = self.taken.saturating_add(expected);
        let refuse = |file: &Self, found: String| {
            Err(DataError::Length { file: file.name.clone(), promise, expected: total, found })
        };
        match self.size {
            Size::Exactly(bytes) if bytes != total => return refuse(self, bytes.to_string()),
            Size::AtMost(bytes) if bytes < total => {
                return refuse(self, format!("at most {bytes} when unpacked"));
            }
            Size::Exactly(_) | Size::AtMost(_) => {}
        }
        let mut bytes = Vec::new();
        // One byte more than promised shows a file that goes on.
        let outcome = self.reader.by_ref().take(expected.saturating_add(1)).read_to_end(&mut bytes);
        self.taken += bytes.len() as u64;
        match outcome {
            Ok(_) => {}
            Err(fault) if fault.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(fault) => return Err(self.error(fault)),
        }
        let found = bytes.len() as u64;
        if found == expected {
            Ok(bytes)
        } else if found > expected {
            refuse(self, format!("more than {total}"))
        } else {
            refuse(self, self.taken.to_string())
        }
    }

    /// All that is left, appended to `bytes`.
    pub(super) fn append_to(&mut self, bytes: &mut Vec<u8>) -> Result<(), DataError> {
        self.reader.read_to_end(bytes).map(drop).map_err(|source| self.error(source))
    }
}

/// Opens a regular file of at most `limit_bytes`: the file, its name for people, its size.
pub(super) fn open_plain(
    data_dir: &Path,
    path: &str,
    limit_bytes: u64,
) -> Result<(File, String, u64), DataError> {
    let path = data_dir.join(path);
    let file = path.display().to_string();
    let read = |source| DataError::Read { file: file.clone(), source };
    // Asked before it is opened: opening a named pipe would wait for a writer.
    let about = fs::metadata(&path).map_err(read)?;
    if !about.is_file() {
        return Err(read(io::Error::other("it is not a regular file")));
    }
    if about.len() > limit_bytes {
        return Err(DataError::TooLarge { file, limit_bytes });
    }
    Ok((File::open(&path).map_err(read)?, file, about.len()))
}

/// Names the file in what reading it said.
fn read_error(file: &str, limit_bytes: u64, source: io::Error) -> DataError {
    let file = file.to_owned();
    if source.get_ref().is_some_and(|inner| inner.is::<OverLimit>()) {
        DataError::TooLarge { file, limit_bytes }
    } else {
        DataError::Read { file, source }
    }
}

/// Marks the one error that [`Bounded`] makes by itself.
#[derive(Debug, thiserror::Error)]
#[error("more bytes than the limit")]
struct OverLimit;

/// Fails, rather than ends, when there is more than `left`.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            return match self.inner.read(&mut [0])? {
                0 => Ok(0),
                _ => Err(io::Error::other(OverLimit)),
            };
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.inner.read(&mut buffer[..most])?;
        self.left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{LIMIT_BYTES, check_refused, gzip, open_files, softmax, spec};
    use super::super::{open, open_within};
    use slackline_common::job::{DataFormat, DataSource};
    use slackline_common::model::ModelSpec;
    use std::path::Path;

    const TEXT: ModelSpec = ModelSpec::Transformer { context: 4, width: 8, heads: 1, layers: 1 };

    #[test]
    fn absent_files_and_folders_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let check = |path: &str, piece: &str| {
            let spec = spec(DataFormat::Csv);
            let source = DataSource::Files(vec![path.to_owned()]);
            let error = open(&spec, &source, &softmax(1, 2), folder.path()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(path) && text.contains(piece), "{text}");
        };
        check("absent.csv", "No such file");
        check(".", "not a regular file");
        check_refused(DataFormat::Csv, &softmax(1, 2), &[], &["0 data files", "at least one"]);
    }

    #[test]
    fn the_limit_holds_on_disk_and_for_what_gzip_unpacks_to() {
        let limit = usize::try_from(LIMIT_BYTES).unwrap();
        let (fits, over) = (vec![b'1'; limit], vec![b'1'; limit + 1]);
        let text = spec(DataFormat::Text);
        let len = |bytes: &[u8]| open_files(&text, &TEXT, &[("a", bytes)]).unwrap().len();
        assert_eq!(len(&fits), (LIMIT_BYTES - 1) / 4);
        assert_eq!(len(&gzip(&fits)), (LIMIT_BYTES - 1) / 4);
        let bomb = gzip(&over);
        assert!(bomb.len() < 1 << 11);
        let pieces = ["more than 1048576 bytes when unpacked"];
        check_refused(DataFormat::Text, &TEXT, &[("a", &over)], &pieces);
        check_refused(DataFormat::Text, &TEXT, &[("a", &bomb)], &pieces);
        for format in [DataFormat::Csv, DataFormat::Libsvm] {
            check_refused(format, &softmax(1, 2), &[("a", &bomb)], &pieces);
        }
        check_refused(DataFormat::Cifar, &softmax(3072, 2), &[("a", &bomb)], &pieces);
    }

    #[test]
    fn damaged_gzip_is_refused_and_several_members_are_one_file() {
        let two = [gzip(b"01234"), gzip(b"56789")].concat();
        let text = spec(DataFormat::Text);
        assert_eq!(open_files(&text, &TEXT, &[("a", &two)]).unwrap().len(), 2);
        let mut damaged = gzip(b"0123456789");
        let checksum = damaged.len() - 8;
        damaged[checksum] ^= 1;
        check_refused(DataFormat::Text, &TEXT, &[("a", &damaged)], &["read data file"]);
    }

    #[test]
    fn the_embedded_digits_are_whole() {
        let spec = spec(DataFormat::Csv);
        let source = |name: &str| DataSource::Embedded(name.to_owned());
        let model = softmax(64, 10);
        let open = |name| open_within(LIMIT_BYTES, &spec, &source(name), &model, Path::new("/"));
        let (train, test) = (open("digits-train").unwrap(), open("digits-test").unwrap());
        assert_eq!((train.len(), test.len()), (1437, 360));
        assert_eq!((train.labels_max(), test.labels_max()), (9, 9));
        let text = open("digits").unwrap_err().to_string();
        assert!(text.contains("\"digits\"") && text.contains("\"digits-train\""), "{text}");
        let mut idx = spec.clone();
        idx.format = DataFormat::Idx;
        let error = open_within(LIMIT_BYTES, &idx, &source("digits-test"), &model, Path::new("/"));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("is in format csv, the job says idx"), "{text}");
    }
}
