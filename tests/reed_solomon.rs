//! Reed-Solomon compared with existing libraries: the same parity rows, the same parity bytes, and
//! each rebuilds chunks of the other.
//!
//! ISA-L and Jerasure are used if installed (Debian: libisal2, libjerasure2); otherwise a test
//! prints what it lacks and passes, or fails with `NCTEST_REQUIRE_ALL=1`. The crate
//! `reed-solomon-erasure` is built with the tests.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};
use std::num::NonZeroUsize;

use libloading::{Library, Symbol};
use ncserverd::codec::rs::{Code, Matrix};
use ncserverd::gf::Kernels;
use nctest::skip::skip;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};
use reed_solomon_erasure::galois_8::ReedSolomon;

/// Small ones, those of storage systems, and the largest.
const SHAPES: [(usize, usize); 14] = [
    (1, 2),
    (1, 256),
    (2, 200),
    (3, 5),
    (4, 6),
    (4, 200),
    (6, 9),
    (8, 16),
    (10, 14),
    (17, 20),
    (21, 25),
    (64, 96),
    (128, 256),
    (255, 256),
];
/// Bytes of a chunk: few words, and no multiple of a vector. Jerasure needs whole words of eight.
const LENGTHS: [usize; 3] = [8, 1000, 4096 + 24];

/// k data chunks of random bytes.
fn data(k: usize, length: usize) -> Vec<Vec<u8>> {
    let mut rng = SmallRng::seed_from_u64((k * length) as u64);
    let mut chunks = vec![vec![0; length]; k];
    chunks.iter_mut().for_each(|chunk| rng.fill_bytes(chunk));
    chunks
}

fn parity(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![0xEE; data[0].len()]; code.n() - code.k()];
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut outs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(Kernels::detect(), &data, &mut outs, NonZeroUsize::MIN)
        .unwrap();
    parity
}

/// Compares our rows and parity chunks with a library's, for every shape that the matrix supports.
fn compare(
    matrix: Matrix,
    mut rows: impl FnMut(usize, usize) -> Vec<u8>,
    mut encode: impl FnMut(&[Vec<u8>], usize) -> Vec<Vec<u8>>,
) {
    let mut count = 0;
    for (k, n) in SHAPES {
        let Ok(code) = Code::new(matrix, k, n) else {
            continue;
        };
        assert!(
            code.parity_rows().eq(rows(k, n).chunks_exact(k)),
            "rows of {matrix} ({k}, {n})"
        );
        for length in LENGTHS {
            let data = data(k, length);
            assert!(
                parity(&code, &data) == encode(&data, n),
                "{matrix} ({k}, {n}), {length} bytes"
            );
        }
        count += 1;
    }
    assert!(count >= 9, "{matrix}: {count} shapes");
}

/// Opens an installed library. Prints its name if it is missing.
fn library(name: &str) -> Option<Library> {
    // SAFETY: both libraries are plain C; on loading they only choose functions for this processor.
    let library = unsafe { Library::new(name) };
    if let Err(error) = &library {
        skip(&format!("there is no {name}: {error}"));
    }
    library.ok()
}

fn int(number: usize) -> c_int {
    c_int::try_from(number).unwrap()
}

type FillMatrix = unsafe extern "C" fn(*mut u8, c_int, c_int);
type InitTables = unsafe extern "C" fn(c_int, c_int, *const u8, *mut u8);
type EncodeData =
    unsafe extern "C" fn(c_int, c_int, c_int, *const u8, *const *const u8, *const *mut u8);

#[test]
fn isal_makes_the_same_bytes() {
    let Some(library) = library("libisal.so.2") else {
        return;
    };
    for (matrix, function) in [
        (Matrix::Cauchy, "gf_gen_cauchy1_matrix"),
        (Matrix::IsalRs, "gf_gen_rs_matrix"),
    ] {
        // SAFETY: these are the signatures in erasure_code.h.
        let (fill, init, encode): (
            Symbol<'_, FillMatrix>,
            Symbol<'_, InitTables>,
            Symbol<'_, EncodeData>,
        ) = unsafe {
            (
                library.get(function).unwrap(),
                library.get("ec_init_tables").unwrap(),
                library.get("ec_encode_data").unwrap(),
            )
        };
        let rows = |k: usize, n: usize| {
            let mut rows = vec![0; n * k];
            // SAFETY: there is room for n rows of k coefficients.
            unsafe { fill(rows.as_mut_ptr(), int(n), int(k)) };
            rows.split_off(k * k)
        };
        compare(matrix, rows, |data, n| {
            let (k, length) = (data.len(), data[0].len());
            let (rows, mut tables) = (rows(k, n), vec![0; 32 * k * (n - k)]);
            let mut parity = vec![vec![0xEE; length]; n - k];
            let sources: Vec<*const u8> = data
                .iter()
                .map(Vec::as_ptr)
                .map(<*const u8>::cast)
                .collect();
            let outs: Vec<*mut u8> = parity.iter_mut().map(|chunk| chunk.as_mut_ptr()).collect();
            // SAFETY: n - k rows of k coefficients with 32 bytes for each, k sources and n - k
            // outputs of `length` bytes.
            unsafe {
                init(int(k), int(n - k), rows.as_ptr(), tables.as_mut_ptr());
                encode(
                    int(length),
                    int(k),
                    int(n - k),
                    tables.as_ptr(),
                    sources.as_ptr(),
                    outs.as_ptr(),
                );
            }
            parity
        });
    }
}

type CodingMatrix = unsafe extern "C" fn(c_int, c_int, c_int) -> *mut c_int;
type MatrixEncode = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    *mut c_int,
    *const *const c_char,
    *const *mut c_char,
    c_int,
);

#[test]
fn jerasure_makes_the_same_bytes() {
    let Some(library) = library("libJerasure.so.2") else {
        return;
    };
    // SAFETY: these are the signatures in reed_sol.h and jerasure.h.
    let (coding, encode): (Symbol<'_, CodingMatrix>, Symbol<'_, MatrixEncode>) = unsafe {
        (
            library.get("reed_sol_vandermonde_coding_matrix").unwrap(),
            library.get("jerasure_matrix_encode").unwrap(),
        )
    };
    const BITS: c_int = 8;
    // It allocates the matrix; the few of this test are never freed. SAFETY: it takes any k and n -
    // k of up to 256 together.
    let coding = |k: usize, n: usize| unsafe { coding(int(k), int(n - k), BITS) };
    let rows = |k: usize, n: usize| {
        let matrix = coding(k, n);
        assert!(!matrix.is_null());
        // SAFETY: n - k rows of k numbers.
        let elements = unsafe { std::slice::from_raw_parts(matrix, (n - k) * k) };
        elements
            .iter()
            .map(|&element| u8::try_from(element).unwrap())
            .collect()
    };
    compare(Matrix::VandJerasure, rows, |data, n| {
        let (k, length) = (data.len(), data[0].len());
        let mut parity = vec![vec![0xEE_u8; length]; n - k];
        let sources: Vec<*const c_char> = data.iter().map(|chunk| chunk.as_ptr().cast()).collect();
        let outs: Vec<*mut c_char> = parity
            .iter_mut()
            .map(|chunk| chunk.as_mut_ptr().cast())
            .collect();
        // SAFETY: its own matrix, k sources and n - k outputs of `length` bytes, a multiple of a
        // long.
        unsafe {
            encode(
                int(k),
                int(n - k),
                BITS,
                coding(k, n),
                sources.as_ptr(),
                outs.as_ptr(),
                int(length),
            )
        };
        parity
    });
}

#[test]
fn reed_solomon_erasure_makes_the_same_bytes() {
    let theirs = |k: usize, n: usize| ReedSolomon::new(k, n - k).unwrap();
    let encode = |data: &[Vec<u8>], n: usize| {
        let mut chunks = data.to_vec();
        chunks.resize(n, vec![0; data[0].len()]);
        theirs(data.len(), n).encode(&mut chunks).unwrap();
        chunks.split_off(data.len())
    };
    // It does not expose its matrix, but encoding unit vectors gives its columns.
    let rows = |k: usize, n: usize| {
        let units: Vec<Vec<u8>> = (0..k)
            .map(|i| (0..k).map(|j| u8::from(i == j)).collect())
            .collect();
        encode(&units, n).concat()
    };
    compare(Matrix::VandBb, rows, encode);
}

/// Each rebuilds chunks that the other has encoded.
#[test]
fn reed_solomon_erasure_and_ours_rebuild_each_others_chunks() {
    let mut rng = SmallRng::seed_from_u64(9);
    for _ in 0..200 {
        let k = rng.random_range(1..30);
        let n = rng.random_range(k + 1..60);
        let (code, theirs) = (
            Code::new(Matrix::VandBb, k, n).unwrap(),
            ReedSolomon::new(k, n - k).unwrap(),
        );
        let data = data(k, 64);
        let chunks: Vec<Vec<u8>> = [data.as_slice(), &parity(&code, &data)].concat();
        let mut order: Vec<usize> = (0..n).collect();
        order.shuffle(&mut rng);
        let (present, lost) = order.split_at(k);

        let mut some: Vec<Option<Vec<u8>>> = chunks.iter().cloned().map(Some).collect();
        lost.iter().for_each(|&index| some[index] = None);
        theirs.reconstruct(&mut some).unwrap();
        assert!(
            some.into_iter()
                .map(Option::unwrap)
                .eq(chunks.iter().cloned()),
            "theirs, ({k}, {n}) from {present:?}"
        );

        let repair = code.repair(Kernels::detect(), present, lost).unwrap();
        let sources: Vec<&[u8]> = repair
            .sources()
            .iter()
            .map(|&index| chunks[index].as_slice())
            .collect();
        let mut outs = vec![vec![0; 64]; lost.len()];
        let mut places: Vec<&mut [u8]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
        repair
            .run(Kernels::detect(), &sources, &mut places, NonZeroUsize::MIN)
            .unwrap();
        assert!(
            lost.iter()
                .zip(&outs)
                .all(|(&index, out)| chunks[index] == *out),
            "ours, ({k}, {n}) from {present:?}"
        );
    }
}
