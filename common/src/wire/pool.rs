//! Reused buffers for frame bodies: fresh pages cost as much as the copy into them.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// A bounded stock of buffers. Clones share it; a buffer comes home when its last [`Bytes`] is
/// dropped, on whichever thread that is.
#[derive(Clone, Debug)]
pub struct BufferPool {
    stock: Arc<Mutex<Vec<Vec<u8>>>>,
    kept_max: usize,
}

impl BufferPool {
    /// A pool that keeps at most `kept_max` idle buffers.
    pub fn new(kept_max: usize) -> Self {
        Self { stock: Arc::new(Mutex::new(Vec::new())), kept_max }
    }

    /// An empty buffer with room for at least `capacity` bytes.
    pub fn take(&self, capacity: usize) -> PooledBuffer {
        let mut bytes =
            self.stock.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        bytes.clear();
        bytes.reserve(capacity);
        PooledBuffer { bytes, home: self.clone() }
    }

    fn give_back(&self, bytes: Vec<u8>) {
        let mut stock = self.stock.lock().unwrap_or_else(PoisonError::into_inner);
        if stock.len() < self.kept_max {
            stock.push(bytes);
        }
    }
}

/// A buffer on loan. Fill it, then [`PooledBuffer::freeze`] it.
#[derive(Debug)]
pub struct PooledBuffer {
    /// What it holds.
    pub bytes: Vec<u8>,
    home: BufferPool,
}

impl PooledBuffer {
    /// Makes it immutable and shareable; it returns to its pool when the last copy is gone.
    pub fn freeze(self) -> Bytes {
        if self.bytes.is_empty() { Bytes::new() } else { Bytes::from_owner(self) }
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.home.give_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_home_when_its_last_copy_is_gone() {
        let pool = BufferPool::new(1);
        let mut buffer = pool.take(100);
        buffer.bytes.extend_from_slice(b"abc");
        let address = buffer.bytes.as_ptr();
        let bytes = buffer.freeze();
        let slice = bytes.slice(1..);
        drop(bytes);
        assert_eq!(&slice[..], b"bc");
        assert_ne!(pool.take(100).bytes.as_ptr(), address);
        drop(slice);
        let again = pool.take(50);
        assert!(again.bytes.is_empty() && again.bytes.capacity() >= 100);
    }
}
