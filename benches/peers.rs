//! Compares encoding by this crate and by other libraries, in turn: coded bytes made by one thread.
//!
//!     cargo bench --bench peers --features bench-peers               every shape
//!     cargo bench --bench peers --features bench-peers -- 128x4096   these shapes only
//!
//! ISA-L is linked (Debian: libisal-dev; `tools/isal.sh` gets a later version, which
//! `LD_LIBRARY_PATH` selects), the crates `rlnc` and `rlnc-simdx` are built, and libmoepgf is
//! loaded if the variable MOEPGF names its shared library. A shape n x k means n coded blocks of n
//! source blocks of k bytes, with dense rows.
//!
//! Each contender first shows that its blocks are right, in its own field: ours and ISA-L's use
//! 0x11D, the others 0x11B. Then all run in turn, round after round, so that a slow phase of the
//! machine slows all of them. The clock is the thread's processor time. Rows are drawn before the
//! timer for ours, ISA-L and moepgf, and inside it by the two crates, whose interface leaves no
//! choice. ISA-L's tables are ready in `isa-l` and made in `isa-l with tables`.
//!
//! A round is quiet if a loop of 512-bit byte shuffles ran at 2.6 G/s or more in it, and copies of
//! 8 KiB at 85 GB/s or more.
#![allow(unsafe_code)]

#[path = "support/isal.rs"]
mod isal;

use std::ffi::c_uint;
use std::hint::black_box;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use criterion::measurement::Measurement;
use isal::{ec_encode_data, ec_init_tables, int};
use ncserverd::gf::{Isa, Kernels, Panel, gf256};
use nctest::cpu_time::CpuTime;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const SHAPES: [(usize, usize); 6] = [
    (32, 4096),
    (128, 1024),
    (128, 4096),
    (128, 16_384),
    (256, 4096),
    (512, 4096),
];
const ROUNDS: usize = 21;
/// A contender's turn in a round, about.
const TURN: Duration = Duration::from_millis(25);
const QUIET_SHUFFLES: f64 = 2.6;
const QUIET_COPIES: f64 = 85.0;

/// Zeros where every library wants them: from a multiple of 64 on.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Self {
        let bytes = vec![0; length + 64];
        Self {
            start: bytes.as_ptr().align_offset(64),
            bytes,
            length,
        }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.length]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.length]
    }
}

/// What is to be encoded.
struct Case {
    n: usize,
    k: usize,
    source: Aligned,
    rows: Vec<u8>,
}

impl Case {
    fn new(n: usize, k: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(11);
        let (mut source, mut rows) = (Aligned::new(n * k), vec![0; n * n]);
        rng.fill_bytes(&mut source);
        rng.fill_bytes(&mut rows);
        // What the crate `rlnc` ends its data with.
        source[n * k - 1] = 0x81;
        Self { n, k, source, rows }
    }

    fn row(&self, index: usize) -> &[u8] {
        &self.rows[index * self.n..][..self.n]
    }

    /// A row times the source, by the definition of the field.
    fn block(&self, field: Field, row: &[u8]) -> Vec<u8> {
        let mut sum = vec![0; self.k];
        for (&c, block) in row.iter().zip(self.source.chunks(self.k)) {
            let products: Vec<u8> = (0..=255).map(|byte| field.product(c, byte)).collect();
            sum.iter_mut()
                .zip(block)
                .for_each(|(sum, &byte)| *sum ^= products[usize::from(byte)]);
        }
        sum
    }
}

#[derive(Clone, Copy)]
enum Field {
    /// 0x11D.
    Ours,
    /// 0x11B.
    Rijndael,
}

impl Field {
    fn product(self, a: u8, b: u8) -> u8 {
        let Self::Rijndael = self else {
            return gf256::mul(a, b);
        };
        let (mut product, mut a) = (0_u16, u16::from(a));
        for bit in 0..8 {
            product ^= if b >> bit & 1 == 1 { a } else { 0 };
            a = a << 1 ^ if a & 0x80 == 0 { 0 } else { 0x11B };
        }
        product.to_le_bytes()[0]
    }
}

/// Encodes the case into a buffer of n (k + 1) bytes.
type Encode = Box<dyn FnMut(&Case, &mut [u8])>;

/// A library that encodes. `encode` writes the coded blocks, or, if it draws its own rows, the last
/// row and its block after it.
struct Contender {
    name: String,
    is_ours: bool,
    field: Field,
    draws: bool,
    encode: Encode,
}

impl Contender {
    fn peer(name: &str, field: Field, encode: impl FnMut(&Case, &mut [u8]) + 'static) -> Self {
        Self {
            name: name.to_owned(),
            is_ours: false,
            field,
            draws: false,
            encode: Box::new(encode),
        }
    }

    /// Panics unless it makes the right blocks.
    fn check(&mut self, case: &Case, out: &mut [u8]) {
        let (n, k) = (case.n, case.k);
        out.fill(0xEE);
        (self.encode)(case, out);
        let is_right = match self.draws {
            true => out[n..n + k] == case.block(self.field, &out[..n]),
            false => [0, n / 3, n - 1]
                .iter()
                .all(|&row| out[row * k..][..k] == case.block(self.field, case.row(row))),
        };
        assert!(is_right, "{} is wrong at {n} x {k}", self.name);
    }

    /// Bytes of coded blocks a second, over about so long.
    fn rate(&mut self, case: &Case, out: &mut [u8]) -> f64 {
        let bytes = (case.n * case.k) as f64;
        per_second(|| (self.encode)(case, out)) * bytes
    }
}

/// How often a second, by the processor time of the thread.
fn per_second(mut run: impl FnMut()) -> f64 {
    let (start, mut count) = (CpuTime.start(), 0_u32);
    loop {
        run();
        count += 1;
        let spent = CpuTime.end(start);
        if spent >= TURN {
            return f64::from(count) / spent.as_secs_f64();
        }
    }
}

fn ours(kernels: Kernels, case: &Case) -> Contender {
    let panel = Panel::of(&case.source, case.n, case.k);
    let encode = move |case: &Case, out: &mut [u8]| {
        let rows: Vec<&[u8]> = case.rows.chunks(case.n).collect();
        let mut outs: Vec<&mut [u8]> = out.chunks_mut(case.k).take(case.n).collect();
        kernels.combine(black_box(&rows), &panel, &mut outs);
    };
    Contender {
        is_ours: true,
        ..Contender::peer(&format!("ncserverd {}", kernels.isa()), Field::Ours, encode)
    }
}

fn isal(are_tables_ready: bool) -> Contender {
    let mut tables = Vec::new();
    let encode = move |case: &Case, out: &mut [u8]| {
        let (n, k) = (int(case.n), int(case.k));
        if tables.is_empty() || !are_tables_ready {
            tables.resize(32 * case.n * case.n, 0);
            // SAFETY: n rows of n coefficients, and 32 bytes for each.
            unsafe { ec_init_tables(n, n, black_box(case.rows.as_ptr()), tables.as_mut_ptr()) };
        }
        let data: Vec<*const u8> = case.source.chunks(case.k).map(<[u8]>::as_ptr).collect();
        let coded: Vec<*mut u8> = out
            .chunks_mut(case.k)
            .take(case.n)
            .map(<[u8]>::as_mut_ptr)
            .collect();
        // SAFETY: n sources and n outs of k bytes that do not overlap, and tables for as many.
        unsafe { ec_encode_data(k, n, n, tables.as_ptr(), data.as_ptr(), coded.as_ptr()) };
    };
    Contender::peer(
        if are_tables_ready {
            "isa-l"
        } else {
            "isa-l with tables"
        },
        Field::Ours,
        encode,
    )
}

/// Adds `factor` times the second region to the first.
type AddProduct = unsafe extern "C" fn(*mut u8, *const u8, u8, usize);

/// An entry of the library's list.
#[repr(C)]
struct Algorithm {
    add_product: Option<AddProduct>,
    scale: Option<unsafe extern "C" fn(*mut u8, u8, usize)>,
    needs: c_uint,
    kind: c_uint,
    field: c_uint,
}

/// Its algorithms for 512 bits, if the library is there and the processor has what they need.
fn moepgf() -> Vec<Contender> {
    const FIELD_256: c_uint = 3;
    const NAMES: [(usize, &str); 3] = [
        (21, "moepgf shuffle avx2"),
        (22, "moepgf shuffle avx512"),
        (26, "moepgf gfni512"),
    ];
    let Some(path) = std::env::var_os("MOEPGF") else {
        return Vec::new();
    };
    // SAFETY: the user names the library; its functions have these signatures (moepgf.h), and it is
    // never unloaded.
    let (algorithms, available) = unsafe {
        let library: &'static libloading::Library = Box::leak(Box::new(
            libloading::Library::new(path).expect("MOEPGF is loaded"),
        ));
        let list: libloading::Symbol<'_, unsafe extern "C" fn(c_uint) -> *const *const Algorithm> =
            library.get(b"moepgf_get_algs").expect("it is libmoepgf");
        let available: libloading::Symbol<'_, unsafe extern "C" fn() -> u32> = library
            .get(b"moepgf_check_available_simd_extensions")
            .expect("it is libmoepgf");
        (std::slice::from_raw_parts(list(FIELD_256), 27), available())
    };
    let usable = NAMES.iter().filter_map(|&(index, name)| {
        // SAFETY: an entry is null or leads to what the library has allocated and nobody frees.
        let algorithm = unsafe { algorithms[index].as_ref() }?;
        let add_product = algorithm
            .add_product
            .filter(|_| available >> algorithm.needs & 1 == 1)?;
        Some(Contender::peer(name, Field::Rijndael, move |case, out| {
            for (row, out) in case.rows.chunks(case.n).zip(out.chunks_mut(case.k)) {
                out.fill(0);
                for (&c, block) in row.iter().zip(case.source.chunks(case.k)) {
                    // SAFETY: both are k bytes, a multiple of 64, and do not overlap.
                    unsafe { add_product(out.as_mut_ptr(), block.as_ptr(), c, case.k) };
                }
            }
        }))
    });
    usable.collect()
}

fn rlnc_crate(case: &Case) -> Contender {
    // It puts a byte of its own behind the data, which fills the last block here.
    let encoder = rlnc::full::Encoder::new(case.source[..case.n * case.k - 1].to_vec(), case.n)
        .expect("a good shape");
    let mut rng = <rand_of_rlnc::rngs::SmallRng as rand_of_rlnc::SeedableRng>::seed_from_u64(7);
    let encode = move |case: &Case, out: &mut [u8]| {
        for _ in 0..case.n {
            encoder
                .code_with_buf(&mut rng, &mut out[..case.n + case.k])
                .expect("room for a piece");
        }
    };
    Contender {
        draws: true,
        ..Contender::peer("rlnc", Field::Rijndael, encode)
    }
}

fn rlnc_simdx() -> Contender {
    let mut rng = rlnc_simdx::SimpleRng::new(7);
    let encode = move |case: &Case, out: &mut [u8]| {
        let encoder = rlnc_simdx::Encoder::new(case.n, case.k).expect("a good shape");
        let sources: Vec<&[u8]> = case.source.chunks(case.k).collect();
        let mut packet = None;
        for _ in 0..case.n {
            packet = Some(
                encoder
                    .encode_random(&sources, &mut rng)
                    .expect("good sources"),
            );
        }
        let packet = packet.expect("n is not zero");
        out[..case.n].copy_from_slice(packet.coefficients_slice());
        out[case.n..case.n + case.k].copy_from_slice(packet.payload_slice());
    };
    Contender {
        draws: true,
        ..Contender::peer("rlnc-simdx", Field::Rijndael, encode)
    }
}

/// Measures how fast the machine is now: 512-bit byte shuffles (10^9 per second; `None` without
/// AVX-512) and copies of 8 KiB (10^9 bytes per second).
fn probe() -> (Option<f64>, f64) {
    const SHUFFLES: u32 = 100_000;
    let shuffles = Kernels::new(Isa::Avx512).is_some().then(|| {
        // SAFETY: the processor has AVX-512 BW, as was just asked.
        per_second(|| unsafe { shuffle(black_box(SHUFFLES)) }) * f64::from(SHUFFLES) * 8.0 / 1e9
    });
    let (from, mut to) = (vec![1_u8; 8192], vec![0_u8; 8192]);
    let copies =
        per_second(|| (0..1000).for_each(|_| to.copy_from_slice(black_box(&from)))) * 8.192e6 / 1e9;
    black_box(to);
    (shuffles, copies)
}

/// `count` times eight shuffles that do not wait for each other.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn shuffle(count: u32) {
    use std::arch::x86_64::{_mm512_set1_epi8, _mm512_shuffle_epi8};
    let table = _mm512_set1_epi8(black_box(3));
    let mut lanes = [_mm512_set1_epi8(5); 8];
    for _ in 0..count {
        lanes
            .iter_mut()
            .for_each(|lane| *lane = _mm512_shuffle_epi8(table, *lane));
    }
    black_box(lanes);
}

fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn compare(n: usize, k: usize) {
    let case = Case::new(n, k);
    let kernels = Kernels::available().filter(|kernels| kernels.isa() >= Isa::Avx2);
    let mut contenders: Vec<Contender> = kernels.map(|kernels| ours(kernels, &case)).collect();
    contenders.extend([isal(true), isal(false), rlnc_crate(&case), rlnc_simdx()]);
    contenders.extend(moepgf());
    let mut out = Aligned::new(n * k + n);
    contenders
        .iter_mut()
        .for_each(|contender| contender.check(&case, &mut out));

    let mut rates = vec![Vec::new(); contenders.len()];
    let mut probes = Vec::new();
    for round in 0..ROUNDS {
        probes.push(probe());
        for turn in 0..contenders.len() {
            let index = (round + turn) % contenders.len();
            rates[index].push(contenders[index].rate(&case, &mut out) / 1e6);
        }
    }
    let is_quiet = |&(shuffles, copies): &(Option<f64>, f64)| {
        shuffles.is_none_or(|shuffles| shuffles >= QUIET_SHUFFLES) && copies >= QUIET_COPIES
    };
    let quiet: Vec<bool> = probes.iter().map(is_quiet).collect();
    let shuffles = median(probes.iter().filter_map(|probe| probe.0)).unwrap_or_default();
    let copies = median(probes.iter().map(|probe| probe.1)).unwrap_or_default();
    let count = quiet.iter().filter(|quiet| **quiet).count();
    println!(
        "\n{n} x {k}: {count} of {ROUNDS} rounds quiet; medians {shuffles:.2} G shuffles/s, copies \
         {copies:.0} GB/s"
    );
    println!(
        "{:<24}{:>12}{:>14}{:>12}{:>18}",
        "MB/s", "median", "median quiet", "best", "of the best peer"
    );
    // Round by round, so that what a round was like falls out.
    let best_peer = |round: usize| {
        let peers = contenders
            .iter()
            .zip(&rates)
            .filter(|(contender, _)| !contender.is_ours);
        peers
            .map(|(_, rates)| rates[round])
            .fold(f64::MIN_POSITIVE, f64::max)
    };
    for (contender, rates) in contenders.iter().zip(&rates) {
        let all = median(rates.iter().copied()).unwrap_or_default();
        let calm = median(
            rates
                .iter()
                .zip(&quiet)
                .filter(|(_, quiet)| **quiet)
                .map(|(rate, _)| *rate),
        );
        let best = rates.iter().copied().fold(0.0, f64::max);
        let ratio = median(
            rates
                .iter()
                .enumerate()
                .map(|(round, rate)| rate / best_peer(round)),
        )
        .unwrap_or_default();
        let calm = calm.map_or_else(|| "-".to_owned(), |calm| format!("{calm:.0}"));
        println!(
            "{:<24}{all:>12.0}{calm:>14}{best:>12.0}{ratio:>17.2}x",
            contender.name
        );
    }
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or_default();
    println!(
        "{} {ROUNDS} rounds; {}; rlnc-simdx uses {}",
        processor.trim_start_matches([' ', '\t', ':']),
        isal::file(),
        rlnc_simdx::active_kernel()
    );
    for (n, k) in SHAPES {
        if wanted.is_empty() || wanted.contains(&format!("{n}x{k}")) {
            compare(n, k);
        }
    }
}
