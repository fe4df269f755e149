//! Loops over numbers, compiled twice: once for the baseline of the architecture and once for
//! AVX2, chosen at the first call by asking the CPU.
//!
//! Each loop has one portable body, which is its meaning, and one safe door made by the
//! macro `dispatch`.
//! The fast body is the same source compiled with more instructions allowed, so it adds in the same
//! order and rounds at the same places: both give the same bits. Two things would break that and are
//! not done here: `mul_add`, which rounds once instead of twice, and sums in an order that depends
//! on the vector width.
//!
//! AVX-512 is left out on purpose: rustc 1.95 miscompiles a select for it, and its mask code is
//! several times slower than AVX2.

mod portable;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use portable::{FINITE_STRIDE, is_special};

/// Makes a function that runs `body` compiled for the best target this CPU has. The only place that
/// names the targets.
macro_rules! dispatch {
    (
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $body:path
    ) => {
        $(#[$meta])*
        #[multiversion::multiversion(targets("x86_64+avx+avx2+fma+f16c"))]
        $vis fn $name($($argument: $type),*) $(-> $result)? {
            $body($($argument),*)
        }
    };
}
pub(crate) use dispatch;

/// Whether the doors of this module lead to the AVX2 bodies on this CPU.
#[multiversion::multiversion(targets("x86_64+avx+avx2+fma+f16c"))]
pub fn fast_body() -> bool {
    multiversion::target::match_target! {
        "x86_64+avx+avx2+fma+f16c" => true,
        _ => false,
    }
}

dispatch! {
    /// `sum[i] += scale × values[i]`, rounded after the product and after the sum.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn scale_add(sum: &mut [f32], scale: f32, values: &[f32]) = portable::scale_add
}

dispatch! {
    /// Whether no value is NaN or infinite. Reads all of `values` only when the answer is yes.
    pub fn is_finite(values: &[f32]) -> bool = portable::is_finite
}

dispatch! {
    /// The sum of the squares of `values` in `f64`, where each square is exact.
    ///
    /// The order of the additions is part of the meaning: element `i` goes to partial sum `i mod 16`,
    /// in order; then partial sum `j` takes `j + 8`, `j + 4`, `j + 2`, `j + 1` in turn.
    pub fn sum_of_squares(values: &[f32]) -> f64 = portable::sum_of_squares
}

dispatch! {
    /// The sum of the magnitudes of `values` in `f64`, added in the order of [`sum_of_squares`].
    pub fn sum_of_magnitudes(values: &[f32]) -> f64 = portable::sum_of_magnitudes
}
