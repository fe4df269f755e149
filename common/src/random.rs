//! Randomness that is a function of a position, not of history: any machine can make any part of a
//! stream of numbers, in any order, and gets the same bits.

/// Added per step by SplitMix64: 2⁶⁴ divided by the golden ratio, made odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Stirs 64 bits so that each one of the input moves about half of the output (the finaliser of
/// SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014,
/// with Stafford's constants "Mix13"). A bijection; `mix(0)` is 0.
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The `index`-th 64 random bits of a stream.
pub const fn hash(seed: u64, stream: u64, index: u64) -> u64 {
    let seed = mix(seed.wrapping_add(GOLDEN));
    let key = mix(seed ^ stream.wrapping_add(1).wrapping_mul(GOLDEN));
    mix(key.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)))
}

/// A number in `-1.0..1.0` on a grid of 2⁻²³, from the upper bits of [`hash`]. Exact, so it has the
/// same bits everywhere.
pub const fn symmetric_unit(seed: u64, stream: u64, index: u64) -> f32 {
    // 24 bits fit an f32 exactly, and so does every difference from 2²³.
    let bits = (hash(seed, stream, index) >> 40) as i32 - (1 << 23);
    bits as f32 / (1 << 23) as f32
}

/// A seeded order of `0..len` that answers "which sample is at position `i`?" without a table.
///
/// A Feistel network permutes the next power of four; positions that land outside are sent round
/// again until they fall inside (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite
/// Domains", CT-RSA 2002). The domain is less than four times `len`, so fewer than four rounds are
/// expected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; Self::ROUNDS],
}

impl Permutation {
    /// Four rounds make a Feistel network a good permutation (Luby and Rackoff, 1988); two more cost
    /// little and help the very small domains.
    const ROUNDS: usize = 6;

    /// A permutation of `0..len`; `len` is at most 2⁶². Another seed gives another order.
    pub const fn new(len: u64, seed: u64) -> Self {
        assert!(len <= 1 << 62, "the halves of the Feistel network are at most 31 bits");
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let half_bits = if bits < 2 { 1 } else { bits.div_ceil(2) };
        let mut keys = [0; Self::ROUNDS];
        let mut round = 0;
        while round < Self::ROUNDS {
            keys[round] = hash(seed, 0x7065_726d_7574_6521, round as u64);
            round += 1;
        }
        Self { len, half_bits, keys }
    }

    /// Number of positions.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to order.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What lies at `position`.
    ///
    /// # Panics
    /// When `position` is not below `len`: it would walk for ever.
    pub const fn get(&self, position: u64) -> u64 {
        assert!(position < self.len, "a position is below the length of the permutation");
        let mut value = self.feistel(position);
        while value >= self.len {
            value = self.feistel(value);
        }
        value
    }

    const fn feistel(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        let mut round = 0;
        while round < Self::ROUNDS {
            (left, right) = (right, left ^ (mix(self.keys[round] ^ right) & mask));
            round += 1;
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden values: if this fails, every seed means another run than before.
    #[test]
    fn the_bits_of_a_seed_are_pinned() {
        // SplitMix64 started at 0 gives these first (its authors' reference program).
        assert_eq!(mix(GOLDEN), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(GOLDEN.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
        let order = Permutation::new(10, 7);
        let all: Vec<u64> = (0..10).map(|i| order.get(i)).collect();
        // Computed by a second program in another language.
        assert_eq!(hash(1, 2, 3), 0xeef6e0a7c20a45ee);
        assert_eq!(symmetric_unit(1, 2, 3).to_bits(), 0x3f5dedc0);
        assert_eq!(all, [0, 1, 4, 7, 8, 9, 6, 3, 2, 5]);
    }

    #[test]
    fn every_sample_comes_exactly_once() {
        for len in (0..70).chain([255, 256, 257, 1023, 60_000]) {
            for seed in 0..3 {
                let order = Permutation::new(len, seed);
                let mut seen: Vec<u64> = (0..len).map(|i| order.get(i)).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..len), "{len} samples, seed {seed}");
            }
        }
    }

    fn index(position: u64) -> usize {
        usize::try_from(position).unwrap()
    }

    #[test]
    fn each_place_is_equally_likely() {
        // 20,000 seeds over 7 places: 2,857 expected, standard deviation 49.
        let mut counts = [[0u32; 7]; 7];
        for seed in 0..20_000 {
            let order = Permutation::new(7, seed);
            (0..7).for_each(|i| counts[index(i)][index(order.get(i))] += 1);
        }
        assert!(counts.iter().flatten().all(|n| n.abs_diff(2857) < 250), "{counts:?}");
    }

    #[test]
    fn neighbours_in_the_file_are_torn_apart() {
        let order = Permutation::new(60_000, 1);
        let together =
            (1..60_000).filter(|i| order.get(*i).abs_diff(order.get(i - 1)) == 1).count();
        assert!(together < 20, "{together} of 60,000 pairs are still neighbours (2 expected)");
    }

    #[test]
    fn the_units_have_the_moments_of_a_uniform() {
        let n = 1 << 16;
        let values: Vec<f64> = (0..n).map(|i| f64::from(symmetric_unit(5, 0, i))).collect();
        let mean = values.iter().sum::<f64>() / n as f64;
        let square = values.iter().map(|v| v * v).sum::<f64>() / n as f64;
        assert!(mean.abs() < 0.01 && (square - 1.0 / 3.0).abs() < 0.01, "{mean} {square}");
        assert!(values.iter().all(|v| (-1.0..1.0).contains(v)));
    }
}
