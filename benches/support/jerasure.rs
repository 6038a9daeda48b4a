//! Jerasure, where it is installed (Debian: libjerasure2).

use std::ffi::{c_char, c_int};

use libloading::Library;

type MatrixEncode = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    *mut c_int,
    *const *const c_char,
    *const *mut c_char,
    c_int,
);

/// The library, as far as it is used.
pub(crate) struct Jerasure {
    encode: MatrixEncode,
    /// What `encode` is of.
    _library: Library,
}

impl Jerasure {
    /// `None` where it is not installed.
    pub(crate) fn open() -> Option<Self> {
        // SAFETY: plain C; loading it runs nothing but the selection of functions for this
        // processor.
        let library = unsafe { Library::new("libJerasure.so.2") }.ok()?;
        // SAFETY: this is the signature in jerasure.h.
        let encode = unsafe { *library.get::<MatrixEncode>("jerasure_matrix_encode").ok()? };
        Some(Self {
            encode,
            _library: library,
        })
    }

    /// Rows for it.
    pub(crate) fn matrix(&self, rows: &[&[u8]]) -> Matrix<'_> {
        let matrix = Matrix {
            library: self,
            rows: rows.len(),
            sources: rows[0].len(),
            coefficients: rows
                .iter()
                .flat_map(|row| row.iter().copied())
                .map(c_int::from)
                .collect(),
        };
        // It makes its field at the first product, which threads must not do side by side.
        let (source, mut outs) = (Word([0; 16]), vec![Word([0; 16]); matrix.rows]);
        let mut outs: Vec<&mut [u8]> = outs.iter_mut().map(|out| &mut out.0[..]).collect();
        matrix.run(&vec![&source.0[..]; matrix.sources], &mut outs);
        matrix
    }
}

/// As it wants chunks to begin.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Word([u8; 16]);

/// Rows over GF(2^8) with 0x11D, which is its field of 8 bits.
pub(crate) struct Matrix<'a> {
    library: &'a Jerasure,
    rows: usize,
    sources: usize,
    coefficients: Vec<c_int>,
}

impl Matrix<'_> {
    /// Chunks of a multiple of 8 bytes, all as far from a multiple of 16.
    pub(crate) fn run(&self, sources: &[&[u8]], outs: &mut [&mut [u8]]) {
        const BITS: c_int = 8;
        let length = outs[0].len();
        assert!(
            sources.len() == self.sources && outs.len() == self.rows && length.is_multiple_of(8)
        );
        assert!(
            sources.iter().all(|source| source.len() == length)
                && outs.iter().all(|out| out.len() == length)
        );
        let int = |number: usize| c_int::try_from(number).expect("a small shape");
        let sources: Vec<*const c_char> = sources
            .iter()
            .map(|source| source.as_ptr().cast())
            .collect();
        let outs: Vec<*mut c_char> = outs.iter_mut().map(|out| out.as_mut_ptr().cast()).collect();
        let matrix = self.coefficients.as_ptr().cast_mut();
        // SAFETY: as many rows of as many coefficients, which it only reads, and sources and outs
        // of this length that do not overlap.
        unsafe {
            (self.library.encode)(
                int(self.sources),
                int(self.rows),
                BITS,
                matrix,
                sources.as_ptr(),
                outs.as_ptr(),
                int(length),
            );
        }
    }
}
