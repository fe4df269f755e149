//! A string of bits: the first bit is the lowest of the first byte; the last byte is filled with zeros.

/// Appends bits to bytes.
#[derive(Debug)]
pub(super) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    /// Bits that do not fill a byte yet, the first at the bottom.
    open: u64,
    count: u32,
}

impl<'a> BitWriter<'a> {
    pub(super) const fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, open: 0, count: 0 }
    }

    /// The lowest `count` bits of `bits`, at most 32; the others must be zero.
    pub(super) fn put(&mut self, bits: u64, count: u32) {
        self.open |= bits << self.count;
        self.count += count;
        if self.count >= 32 {
            self.out.extend_from_slice(&self.open.to_le_bytes()[..4]);
            self.open >>= 32;
            self.count -= 32;
        }
    }

    /// So many ones and a zero.
    pub(super) fn put_unary(&mut self, mut ones: u64) {
        while ones >= 31 {
            self.put((1 << 31) - 1, 31);
            ones -= 31;
        }
        self.put((1 << ones) - 1, u32::try_from(ones).expect("below 31") + 1);
    }

    pub(super) fn finish(self) {
        let bytes = self.count.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.open.to_le_bytes()[..bytes]);
    }
}

/// Reads bits from bytes. Beyond the end are zeros; [`BitReader::position`] tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> BitReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Bits read so far.
    pub(super) const fn position(&self) -> usize {
        self.position
    }

    /// At least 57 bits from the present position, without moving.
    fn peek(&self) -> u64 {
        let byte = self.position / 8;
        let word = match self.bytes.get(byte..byte + 8) {
            Some(bytes) => u64::from_le_bytes(bytes.try_into().expect("8 bytes")),
            None => {
                let mut last = [0; 8];
                let rest = self.bytes.get(byte..).unwrap_or_default();
                last[..rest.len()].copy_from_slice(rest);
                u64::from_le_bytes(last)
            }
        };
        word >> (self.position % 8)
    }

    /// The next `count` bits, at most 32.
    pub(super) fn take(&mut self, count: u32) -> u64 {
        let bits = self.peek() & ((1 << count) - 1);
        self.position += count as usize;
        bits
    }

    /// The number of ones before the next zero, which is read too; `None` above `most`.
    pub(super) fn take_unary(&mut self, most: usize) -> Option<usize> {
        let mut ones = 0;
        loop {
            let run = self.peek().trailing_ones().min(56) as usize;
            ones += run;
            if ones > most {
                return None;
            }
            if run < 56 {
                self.position += run + 1;
                return Some(ones);
            }
            self.position += run;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_in_order(
            words in proptest::collection::vec((any::<u32>(), 0u32..=32, 0u64..200), 0..60)
        ) {
            let mut out = vec![0xee];
            let mut writer = BitWriter::new(&mut out);
            for (bits, count, ones) in &words {
                writer.put(u64::from(*bits) & ((1 << count) - 1), *count);
                writer.put_unary(*ones);
            }
            writer.finish();
            let mut reader = BitReader::new(&out[1..]);
            for (bits, count, ones) in &words {
                prop_assert_eq!(reader.take(*count), u64::from(*bits) & ((1 << count) - 1));
                prop_assert_eq!(reader.take_unary(500), Some(usize::try_from(*ones).unwrap()));
            }
            prop_assert_eq!(reader.position().div_ceil(8), out.len() - 1);
        }
    }

    #[test]
    fn a_run_that_is_too_long_ends_and_beyond_the_end_are_zeros() {
        let mut reader = BitReader::new(&[0xff; 40]);
        assert_eq!(reader.take_unary(100), None);
        assert_eq!(BitReader::new(&[0xff; 40]).take_unary(320), Some(320));
        assert_eq!(BitReader::new(&[]).take_unary(1000), Some(0));
    }
}
