//! The one setting of OpenBLAS: a single thread per worker. Its threads wait in a spinning barrier,
//! and on a machine that does anything else two of them are slower than one by a factor of ten.
#![allow(unsafe_code)]

// Names the crate so that the linker is told about OpenBLAS; `ndarray` calls it.
use blas_src as _;
use std::ffi::c_int;

// SAFETY: the signature is that of OpenBLAS's cblas.h; the function takes a lock of its own and may
// be called at any time from any thread.
unsafe extern "C" {
    safe fn openblas_set_num_threads(threads: c_int);
}

/// Makes every product run on the thread that asks for it.
pub(super) fn use_one_thread() {
    use_threads(1);
}

/// Lets every product use so many threads.
pub(super) fn use_threads(threads: u16) {
    openblas_set_num_threads(threads.into());
}
