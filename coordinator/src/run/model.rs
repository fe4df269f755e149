//! The model as one safetensors file, made chunk by chunk: header, then values in layout order.

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use slackline_common::ids::{Fingerprint, TensorId};
use slackline_common::layout::Layout;
use std::collections::HashMap;
use std::io;

/// Bytes of one chunk: also the largest part an operator is sent at once.
pub const CHUNK_BYTES: usize = 1 << 20;
/// The format aligns the values to this.
const ALIGNMENT: usize = 8;

/// A model file that is not written yet.
#[derive(Debug)]
pub struct ModelFile<'a> {
    head: Vec<u8>,
    values: &'a [f32],
}

impl<'a> ModelFile<'a> {
    /// The file of `values`, the flat parameter vector of `layout`. Names and shapes are the
    /// layout's, all tensors `F32`; `job_hash` and `step` go into the metadata.
    ///
    /// # Errors
    /// When the values are not the layout's, or the header cannot be made.
    pub fn new(
        layout: &Layout,
        values: &'a [f32],
        job_hash: &Fingerprint,
        step: u64,
    ) -> io::Result<Self> {
        if values.len() != layout.elements() {
            return Err(io::Error::other(format!(
                "the model has {} values, its layout {}",
                values.len(),
                layout.elements()
            )));
        }
        let tensors = layout.tensors().iter().zip(0u32..).map(|(tensor, id)| {
            let range = layout.range(TensorId(id));
            let shape =
                tensor.shape.iter().map(|size| usize::try_from(*size).unwrap_or(usize::MAX));
            let data_offsets = (range.start * 4, range.end * 4);
            let info = TensorInfo { dtype: Dtype::F32, shape: shape.collect(), data_offsets };
            (tensor.name.clone(), info)
        });
        let about = HashMap::from([
            ("format".to_owned(), "pt".to_owned()),
            ("job_hash".to_owned(), job_hash.to_string()),
            ("step".to_owned(), step.to_string()),
        ]);
        let metadata = Metadata::new(Some(about), tensors.collect()).map_err(io::Error::other)?;
        let mut json = serde_json::to_vec(&metadata)?;
        json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
        let mut head = (json.len() as u64).to_le_bytes().to_vec();
        head.append(&mut json);
        Ok(Self { head, values })
    }

    /// The file's bytes in parts of at most [`CHUNK_BYTES`].
    pub fn chunks(&self) -> impl Iterator<Item = Vec<u8>> {
        self.head
            .chunks(CHUNK_BYTES)
            .map(<[u8]>::to_vec)
            .chain(self.values.chunks(CHUNK_BYTES / 4).map(little_endian))
    }

    /// The blake3 hash of the values as little-endian `f32` in layout order.
    pub fn values_hash(&self) -> Fingerprint {
        let mut hash = blake3::Hasher::new();
        for values in self.values.chunks(CHUNK_BYTES / 4) {
            hash.update(&little_endian(values));
        }
        Fingerprint(*hash.finalize().as_bytes())
    }
}

fn little_endian(values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * 4);
    values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    bytes
}
