//! Raw bytes for byte-level language models. Sample `i` is the window
//! `[i × context, i × context + context + 1)`: its first `context` bytes are the inputs, its last
//! `context` bytes the targets, so that every byte but the first is predicted once. Several files are
//! read as one, end to end; a tail shorter than a window is left out.

use super::error::DataError;
use super::source::DataFile;
use super::table::position;
use super::{Dataset, Sample};
use crate::train::{Batch, Inputs};
use std::fmt;

/// Bytes cut into windows.
pub(super) struct Text {
    bytes: Vec<u8>,
    context: usize,
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text")
            .field("bytes", &self.bytes.len())
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// Reads all files in order. `context` is at least 1.
pub(super) fn read(files: Vec<DataFile>, context: u32) -> Result<Text, DataError> {
    let first = files.first().map(|file| file.name.clone()).unwrap_or_default();
    let mut bytes = Vec::new();
    for mut file in files {
        file.append_to(&mut bytes)?;
    }
    let want = u64::from(context) + 1;
    if (bytes.len() as u64) < want {
        return Err(DataError::Text { file: first, bytes: bytes.len() as u64, want });
    }
    Ok(Text { bytes, context: context as usize })
}

impl Dataset for Text {
    fn len(&self) -> u64 {
        ((self.bytes.len() - 1) / self.context) as u64
    }

    fn sample(&self) -> Sample {
        Sample::Tokens { context: self.context }
    }

    fn labels_max(&self) -> u32 {
        self.bytes.iter().copied().max().map_or(0, u32::from)
    }

    fn fill(&self, indices: &[u64], batch: &mut Batch) {
        batch.samples = indices.len();
        batch.targets.clear();
        if !matches!(batch.inputs, Inputs::Tokens(_)) {
            batch.inputs = Inputs::Tokens(Vec::new());
        }
        let Inputs::Tokens(inputs) = &mut batch.inputs else { return };
        inputs.clear();
        for index in indices {
            let start = position(*index) * self.context;
            let window = &self.bytes[start..=start + self.context];
            inputs.extend(window[..self.context].iter().map(|byte| u32::from(*byte)));
            batch.targets.extend(window[1..].iter().map(|byte| u32::from(*byte)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_refused, fill, open_files, softmax, spec};
    use slackline_common::job::DataFormat;
    use slackline_common::model::ModelSpec;

    const fn model(context: u32) -> ModelSpec {
        ModelSpec::Transformer { context, width: 8, heads: 1, layers: 1 }
    }

    #[test]
    fn windows_do_not_overlap_and_every_byte_but_the_first_is_a_target_once() {
        let text: Vec<u8> = (100..120).collect();
        for (context, samples) in [(1, 19), (3, 6), (4, 4), (19, 1)] {
            let spec = spec(DataFormat::Text);
            let files: [(&str, &[u8]); 2] = [("a", &text[..7]), ("b", &text[7..])];
            let data = open_files(&spec, &model(context), &files).unwrap();
            assert_eq!(data.len(), samples, "context {context}");
            let all: Vec<u64> = (0..samples).collect();
            let (inputs, targets) = fill(&*data, &all);
            let n = samples * u64::from(context);
            assert!(targets.into_iter().map(u64::from).eq(101..101 + n));
            assert!(inputs.into_iter().eq((100..100 + n).map(|byte| byte as f32)));
        }
    }

    #[test]
    fn a_text_shorter_than_a_window_and_other_models_are_refused() {
        let format = DataFormat::Text;
        let pieces = ["has 4 bytes", "one sample takes 5"];
        check_refused(format, &model(4), &[("a", b"abcd")], &pieces);
        check_refused(format, &model(4), &[("a", b"")], &["has 0 bytes"]);
        let pieces = ["format text", "goes with a transformer"];
        check_refused(format, &softmax(4, 2), &[("a", b"abcdef")], &pieces);
        check_refused(format, &model(0), &[("a", b"abcdef")], &["context of at least 1"]);
        let pieces = ["format csv", "a transformer reads data of format text"];
        check_refused(DataFormat::Csv, &model(4), &[("a", b"1,0\n")], &pieces);
    }
}
