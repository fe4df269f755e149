//! TensorBoard event files, written by hand: scalars need no more than a framing and five fields.
//!
//! ```text
//! record: length u64 | masked crc32c(length) u32 | data | masked crc32c(data) u32
//! data:   Event { 1: wall_time f64, 2: step varint, 3: file_version string,
//!                 5: Summary { 1: Value { 1: tag string, 2: simple_value f32 } … } }
//! ```
//! (`tensorflow/core/lib/io/record_writer.cc`, `tensorflow/core/util/event.proto`; little-endian)

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Added to a rotated checksum, so that checksums of data with checksums in it stay strong.
const MASK_DELTA: u32 = 0xa282_ead8;

/// An open event file.
#[derive(Debug)]
pub struct EventFile {
    file: File,
    path: PathBuf,
}

impl EventFile {
    /// Makes the folder and a file in it that starts with the version event.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(folder: &Path, unix_millis: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let name = format!("events.out.tfevents.{}.slackline", unix_millis / 1000);
        let path = folder.join(name);
        let mut file = File::create(&path)?;
        let mut event = wall_time(unix_millis);
        put_bytes(&mut event, 3, b"brain.Event:2");
        file.write_all(&record(&event))?;
        Ok(Self { file, path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends one event with these scalars.
    ///
    /// # Errors
    /// What the file system says; the file may then end inside a record.
    pub fn scalars(
        &mut self,
        unix_millis: u64,
        step: u64,
        scalars: &[(&str, f64)],
    ) -> io::Result<()> {
        self.file.write_all(&record(&event(unix_millis, step, scalars)))
    }
}

fn event(unix_millis: u64, step: u64, scalars: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, number) in scalars {
        let mut value = Vec::new();
        put_bytes(&mut value, 1, tag.as_bytes());
        value.push((2 << 3) | 5); // fixed 32 bits
        #[allow(clippy::cast_possible_truncation)] // the format has no wider scalar
        value.extend_from_slice(&(*number as f32).to_le_bytes());
        put_bytes(&mut summary, 1, &value);
    }
    let mut event = wall_time(unix_millis);
    event.push(2 << 3); // varint
    put_varint(&mut event, step);
    put_bytes(&mut event, 5, &summary);
    event
}

fn wall_time(unix_millis: u64) -> Vec<u8> {
    let mut event = vec![(1 << 3) | 1]; // fixed 64 bits
    event.extend_from_slice(&(unix_millis as f64 / 1000.0).to_le_bytes());
    event
}

fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push((field << 3) | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(data.len() + 16);
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked(&length).to_le_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(&masked(data).to_le_bytes());
    out
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK_DELTA)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Right: what TensorBoard's own writer (`tensorboard.summary.writer.record_writer`, 2.21, with
    /// its own protobuf classes) makes of the same events.
    #[test]
    fn records_are_the_bytes_that_tensorboard_writes_itself() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = EventFile::create(folder.path(), 1_796_040_184_500).unwrap();
        let scalars = [("train/loss", 0.25), ("test/accuracy", 0.96875)];
        file.scalars(1_796_040_184_750, 300, &scalars).unwrap();
        let version = "1800000000000000a37f4b22090000207e59c3da411a0d627261696e2e4576656e743a32\
                       f7f18578";
        let event = "3700000000000000e7e8ca59090000307e59c3da4110ac022a290a110a0a747261696e2f6c\
                     6f7373150000803e0a140a0d746573742f6163637572616379150000783fd000ae17";
        assert_eq!(hex(&fs::read(file.path()).unwrap()), [version, event].concat());
        assert!(file.path().ends_with("events.out.tfevents.1796040184.slackline"));
    }
}
