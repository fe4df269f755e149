//! The inner loop of every convolution: a small matrix product whose sums stay in registers.
//!
//! A tile is six rows by eight or sixteen columns of `sum[i][j] = Σ a[row i, step] × b[step, j]`. Six
//! by sixteen is what AVX2 holds: twelve registers of sums, two of `b`, one of `a`. A row of `a` is
//! a start in a buffer and two strides ([`Walk`]), not a copied matrix, so the pixels under a
//! convolution's kernel are read where they lie:
//!
//! * forwards and for the gradient of the input, a row is a pixel and the steps go through the
//!   kernel's rows (`runs`), each one stretch of neighbouring pixels' channels;
//! * for the gradient of the weights, a row is a kernel element and the steps go through the pixels.
//!
//! The fast body fuses multiply and add, the portable one does not, so results differ in the last
//! bits between processors with and without FMA; on one processor they repeat.

use multiversion::multiversion;
use multiversion::target::match_target;

/// Rows of a tile.
pub(super) const ROWS: usize = 6;
/// Columns of the wide tile.
pub(super) const WIDE: usize = 16;
/// Columns of the narrow tile.
pub(super) const NARROW: usize = 8;

/// The steps of a sum: `runs` runs of `count` steps, and how far each moves in `a` and `b`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Walk {
    pub(super) runs: usize,
    pub(super) count: usize,
    pub(super) a_step: usize,
    pub(super) a_run: usize,
    pub(super) b_step: usize,
    pub(super) b_run: usize,
}

impl Walk {
    /// Elements of a row of `a` that one run touches, gaps included.
    #[inline(always)]
    fn a_span(&self) -> usize {
        (self.count - 1) * self.a_step + 1
    }

    /// Elements of `b` that one run touches, gaps included.
    #[inline(always)]
    fn b_span(&self, columns: usize) -> usize {
        (self.count - 1) * self.b_step + columns
    }
}

/// Sums of sixteen columns. Row `i` of `a` starts at `rows[i]`; `b` starts at its first step.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(super) fn wide(a: &[f32], rows: &[usize; ROWS], b: &[f32], walk: Walk) -> [[f32; WIDE]; ROWS] {
    match_target! {
        "x86_64+avx2+fma" => avx2::tile::<2, WIDE>(a, rows, b, walk),
        _ => portable(a, rows, b, walk),
    }
}

/// Sums of eight columns; otherwise as [`wide`].
#[multiversion(targets("x86_64+avx2+fma"))]
pub(super) fn narrow(
    a: &[f32],
    rows: &[usize; ROWS],
    b: &[f32],
    walk: Walk,
) -> [[f32; NARROW]; ROWS] {
    match_target! {
        "x86_64+avx2+fma" => avx2::tile::<1, NARROW>(a, rows, b, walk),
        _ => portable(a, rows, b, walk),
    }
}

/// The meaning of a tile, for any number of columns.
#[inline(always)]
pub(super) fn portable<const COLUMNS: usize>(
    a: &[f32],
    rows: &[usize; ROWS],
    b: &[f32],
    walk: Walk,
) -> [[f32; COLUMNS]; ROWS] {
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for run in 0..walk.runs {
        let b = &b[run * walk.b_run..][..walk.b_span(COLUMNS)];
        for (sums, row) in sums.iter_mut().zip(rows) {
            let a = &a[row + run * walk.a_run..][..walk.a_span()];
            for step in 0..walk.count {
                let factor = a[step * walk.a_step];
                for (sum, b) in sums.iter_mut().zip(&b[step * walk.b_step..]) {
                    *sum += factor * b;
                }
            }
        }
    }
    sums
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{ROWS, Walk};
    use std::arch::x86_64::{__m256, _mm256_fmadd_ps, _mm256_set1_ps, _mm256_setzero_ps};

    /// Sums of `8 × VECTORS = COLUMNS` columns.
    ///
    /// Compilers do not find this by themselves: the plain loop becomes scalar code, 17 times
    /// slower. Every slice is cut to the length of the run first, so the checks inside stay cheap.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn tile<const VECTORS: usize, const COLUMNS: usize>(
        a: &[f32],
        rows: &[usize; ROWS],
        b: &[f32],
        walk: Walk,
    ) -> [[f32; COLUMNS]; ROWS] {
        const { assert!(8 * VECTORS == COLUMNS) };
        let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
        for run in 0..walk.runs {
            let row = |i: usize| &a[rows[i] + run * walk.a_run..][..walk.a_span()];
            let rows: [&[f32]; ROWS] = [row(0), row(1), row(2), row(3), row(4), row(5)];
            let b = &b[run * walk.b_run..][..walk.b_span(COLUMNS)];
            let (mut a_at, mut b_at) = (0, 0);
            for _ in 0..walk.count {
                let factors = rows.map(|row| row[a_at]);
                let columns = &b[b_at..b_at + COLUMNS];
                let mut b = [_mm256_setzero_ps(); VECTORS];
                for (j, b) in b.iter_mut().enumerate() {
                    let eight: [f32; 8] = columns[8 * j..8 * j + 8].try_into().expect("eight");
                    *b = bytemuck::cast(eight);
                }
                for i in 0..ROWS {
                    let factor = _mm256_set1_ps(factors[i]);
                    for j in 0..VECTORS {
                        sums[i][j] = _mm256_fmadd_ps(factor, b[j], sums[i][j]);
                    }
                }
                a_at += walk.a_step;
                b_at += walk.b_step;
            }
        }
        let mut out = [[0.0; COLUMNS]; ROWS];
        for (out, sums) in out.iter_mut().zip(sums) {
            for (out, sum) in out.chunks_exact_mut(8).zip(sums) {
                out.copy_from_slice(&bytemuck::cast::<__m256, [f32; 8]>(sum));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::differences::numbers;
    use super::*;

    /// Against the sum written out in `f64`.
    fn check<const COLUMNS: usize>(
        walk: Walk,
        tile: impl Fn(&[f32], &[usize; ROWS], &[f32], Walk) -> [[f32; COLUMNS]; ROWS],
    ) {
        let rows = [7, 0, 19, 3, 3, 11];
        let last = (walk.runs - 1, walk.count - 1);
        // Not one element more than the walk needs.
        let a = numbers(1, 19 + last.0 * walk.a_run + last.1 * walk.a_step + 1);
        let b = numbers(2, last.0 * walk.b_run + last.1 * walk.b_step + COLUMNS);
        let got = tile(&a, &rows, &b, walk);
        for (i, row) in rows.iter().enumerate() {
            for j in 0..COLUMNS {
                let mut sum = 0.0;
                for run in 0..walk.runs {
                    for step in 0..walk.count {
                        let a = a[row + run * walk.a_run + step * walk.a_step];
                        let b = b[run * walk.b_run + step * walk.b_step + j];
                        sum += f64::from(a) * f64::from(b);
                    }
                }
                let error = (f64::from(got[i][j]) - sum).abs();
                assert!(error < 1e-5, "row {i}, column {j}: {} for {sum}, {walk:?}", got[i][j]);
            }
        }
    }

    #[test]
    fn every_body_computes_the_same_sums() {
        for (runs, count, a_step, b_step) in
            [(1, 1, 1, 16), (3, 9, 1, 16), (5, 7, 4, 21), (2, 33, 3, 40)]
        {
            let walk = Walk { runs, count, a_step, a_run: 150, b_step, b_run: 1500 };
            check::<WIDE>(walk, wide);
            check::<NARROW>(walk, narrow);
            check::<WIDE>(walk, portable);
            check::<1>(walk, portable);
        }
    }

    /// Asks what the doors ask. On the machines that test this, the fast body must run.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_fast_body_runs_where_the_processor_has_it() {
        #[multiversion(targets("x86_64+avx2+fma"))]
        fn fast() -> bool {
            match_target! { "x86_64+avx2+fma" => true, _ => false }
        }
        assert_eq!(fast(), is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"));
    }
}
