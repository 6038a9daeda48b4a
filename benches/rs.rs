//! Compares Reed-Solomon by this crate, ISA-L and Jerasure, in turn: source bytes coded or rebuilt
//! per second.
//!
//!     cargo bench --bench rs --features bench-peers                      every shape
//!     cargo bench --bench rs --features bench-peers -- 10,14             these shapes only
//!     cargo bench --bench rs --features bench-peers -- 4,6 400000000     chunks of so many bytes
//!
//! ISA-L is linked (Debian: libisal-dev); `tools/isal.sh` gets a later version, which
//! `LD_LIBRARY_PATH` selects. Jerasure takes part where it is installed (libjerasure2).
//! A shape k,n means k data chunks and n - k parity chunks, matrix `cauchy`. `encode` makes all
//! parity chunks; `rebuild` makes min(k, n - k) lost data chunks from the others and the first
//! parity chunks. Rows and tables are ready in both: the timer covers the multiplication. Each
//! chunk begins on a page of its own, as a file's does.
//!
//! On one thread the clock is its processor time, and each of ours runs beside ISA-L on the same
//! chunks, round after round, so that a slow phase of the machine slows both. `all` uses all
//! processors and wall time: the other libraries have no threads of their own, and run on as many
//! threads as there are processors, each with its part of the bytes. Every result is compared with
//! ISA-L's before it is timed.
#![allow(unsafe_code)]

#[path = "support/isal.rs"]
mod isal;
#[path = "support/jerasure.rs"]
mod jerasure;

use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use criterion::measurement::Measurement;
use isal::{ec_encode_data, ec_init_tables, int};
use jerasure::Jerasure;
use ncserverd::codec::rs::{Code, Matrix};
use ncserverd::gf::{Isa, Kernels};
use nctest::cpu_time::CpuTime;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const SHAPES: [(usize, usize); 4] = [(4, 6), (10, 14), (20, 24), (4, 200)];
const LENGTHS: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 10 << 20];
/// A shape's chunks take no more memory than this, unless their length is given.
const BYTES_MAX: usize = 1 << 30;
const ROUNDS: usize = 15;
/// Of more source data than this there are fewer.
const LARGE: usize = 256 << 20;
const LARGE_ROUNDS: usize = 5;
/// A contender's turn in a round, about.
const TURN: Duration = Duration::from_millis(20);
const PAGE: usize = 4096;

/// Chunks one behind the other from a page on.
struct Chunks {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
    count: usize,
}

impl Chunks {
    fn new(count: usize, length: usize) -> Self {
        let bytes = vec![0; count * length + PAGE];
        Self {
            start: bytes.as_ptr().align_offset(PAGE),
            bytes,
            length,
            count,
        }
    }

    fn random(count: usize, length: usize) -> Self {
        let mut chunks = Self::new(count, length);
        SmallRng::seed_from_u64(5).fill_bytes(&mut chunks.bytes);
        chunks
    }

    fn all(&self) -> Vec<&[u8]> {
        self.bytes[self.start..]
            .chunks_exact(self.length)
            .take(self.count)
            .collect()
    }

    fn all_mut(&mut self) -> Vec<&mut [u8]> {
        self.bytes[self.start..]
            .chunks_exact_mut(self.length)
            .take(self.count)
            .collect()
    }
}

/// Rows for ISA-L.
struct Tables {
    rows: usize,
    sources: usize,
    bytes: Vec<u8>,
}

impl Tables {
    fn new(rows: &[&[u8]]) -> Self {
        let (coefficients, count, sources) = (rows.concat(), rows.len(), rows[0].len());
        let mut bytes = vec![0; 32 * coefficients.len()];
        // SAFETY: as many rows of as many coefficients, and 32 bytes for each.
        unsafe {
            ec_init_tables(
                int(sources),
                int(count),
                coefficients.as_ptr(),
                bytes.as_mut_ptr(),
            )
        };
        Self {
            rows: count,
            sources,
            bytes,
        }
    }

    fn run(&self, sources: &[&[u8]], outs: &mut [&mut [u8]]) {
        let length = outs[0].len();
        assert!(sources.len() == self.sources && outs.len() == self.rows);
        assert!(
            sources.iter().all(|source| source.len() == length)
                && outs.iter().all(|out| out.len() == length)
        );
        let sources: Vec<*const u8> = sources.iter().map(|source| source.as_ptr()).collect();
        let outs: Vec<*mut u8> = outs.iter_mut().map(|out| out.as_mut_ptr()).collect();
        // SAFETY: sources and outs of this length that do not overlap, and tables for as many.
        unsafe {
            ec_encode_data(
                int(length),
                int(self.sources),
                int(self.rows),
                self.bytes.as_ptr(),
                sources.as_ptr(),
                outs.as_ptr(),
            );
        }
    }
}

/// Has as many threads each make their part of all outs.
fn spread(
    threads: NonZeroUsize,
    sources: &[&[u8]],
    outs: &mut [&mut [u8]],
    work: &(impl Fn(&[&[u8]], &mut [&mut [u8]]) + Sync),
) {
    let part = outs[0].len().div_ceil(threads.get()).next_multiple_of(PAGE);
    let mut rests: Vec<&mut [u8]> = outs.iter_mut().map(|out| &mut **out).collect();
    let mut start = 0;
    thread::scope(|scope| {
        while !rests[0].is_empty() {
            let length = part.min(rests[0].len());
            let (mut parts, behind): (Vec<_>, Vec<_>) = rests
                .into_iter()
                .map(|rest| rest.split_at_mut(length))
                .unzip();
            let sources: Vec<&[u8]> = sources
                .iter()
                .map(|source| &source[start..start + length])
                .collect();
            scope.spawn(move || work(&sources, &mut parts));
            rests = behind;
            start += length;
        }
    });
}

/// How often a second, by the thread's processor time, or by the clock on the wall.
fn per_second(is_wall: bool, mut run: impl FnMut()) -> f64 {
    let (cpu, wall, mut count) = (CpuTime.start(), Instant::now(), 0_u32);
    loop {
        run();
        count += 1;
        let spent = if is_wall {
            wall.elapsed()
        } else {
            CpuTime.end(cpu)
        };
        if spent >= TURN {
            return f64::from(count) / spent.as_secs_f64();
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Does the work into the outs.
type Work<'a> = Box<dyn FnMut(&mut [&mut [u8]]) + 'a>;

/// Ours, into the outs.
type Ours<'a> = &'a dyn Fn(Kernels, NonZeroUsize, &mut [&mut [u8]]);

/// `ours` on each instruction set and on all processors, beside the others.
fn compare(
    name: &str,
    rows: &[&[u8]],
    sources: &[&[u8]],
    jerasure: Option<&Jerasure>,
    ours: Ours<'_>,
) {
    let length = sources[0].len();
    let (tables, mut theirs, mut out) = (
        Tables::new(rows),
        Chunks::new(rows.len(), length),
        Chunks::new(rows.len(), length),
    );
    tables.run(sources, &mut theirs.all_mut());
    let jerasure = jerasure.map(|library| library.matrix(rows));
    let processors = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let kernels: Vec<Kernels> = Kernels::available()
        .filter(|kernels| kernels.isa() >= Isa::Avx2)
        .collect();
    let mut contenders: Vec<(String, bool, Work<'_>)> = vec![(
        "isa-l".into(),
        false,
        Box::new(|outs| tables.run(sources, outs)),
    )];
    for kernels in kernels {
        contenders.push((
            kernels.isa().to_string(),
            false,
            Box::new(move |outs| ours(kernels, NonZeroUsize::MIN, outs)),
        ));
    }
    if let Some(matrix) = &jerasure {
        contenders.push((
            "jerasure".into(),
            false,
            Box::new(move |outs| matrix.run(sources, outs)),
        ));
        let run = |sources: &[&[u8]], outs: &mut [&mut [u8]]| matrix.run(sources, outs);
        contenders.push((
            format!("jerasure all {processors}"),
            true,
            Box::new(move |outs| spread(processors, sources, outs, &run)),
        ));
    }
    let run = |sources: &[&[u8]], outs: &mut [&mut [u8]]| tables.run(sources, outs);
    contenders.push((
        format!("isa-l all {processors}"),
        true,
        Box::new(move |outs| spread(processors, sources, outs, &run)),
    ));
    contenders.push((
        format!("all {processors}"),
        true,
        Box::new(move |outs| ours(Kernels::detect(), processors, outs)),
    ));
    for (contender, _, work) in &mut contenders {
        out.bytes.fill(0xEE);
        work(&mut out.all_mut());
        assert!(out.all() == theirs.all(), "{contender} is wrong at {name}");
    }
    let mut rates = vec![Vec::new(); contenders.len()];
    let count = contenders.len();
    for round in 0..if sources.len() * length > LARGE {
        LARGE_ROUNDS
    } else {
        ROUNDS
    } {
        for turn in 0..count {
            let index = (round + turn) % count;
            let (_, is_wall, work) = &mut contenders[index];
            let mut outs = out.all_mut();
            rates[index].push(
                per_second(*is_wall, || work(&mut outs)) * (sources.len() * length) as f64 / 1e9,
            );
        }
    }
    print!("{name:<24}");
    for ((contender, ..), of_contender) in contenders.iter().zip(&rates) {
        // Round by round, so that what a round was like falls out.
        let ratio = median(
            of_contender
                .iter()
                .zip(&rates[0])
                .map(|(rate, isal)| rate / isal)
                .collect(),
        );
        print!(
            "  {contender} {:.2} ({ratio:.2}x)",
            median(of_contender.clone())
        );
    }
    println!();
}

fn shape(k: usize, n: usize, length: usize, jerasure: Option<&Jerasure>) {
    let code = Code::new(Matrix::Cauchy, k, n).expect("a code");
    let (data, mut parity) = (Chunks::random(k, length), Chunks::new(n - k, length));
    let name = |work: &str| format!("{work} {k},{n} {length}");
    let rows: Vec<&[u8]> = code.parity_rows().collect();
    compare(
        &name("encode"),
        &rows,
        &data.all(),
        jerasure,
        &|kernels, threads, outs| {
            code.encode(kernels, &data.all(), outs, threads)
                .expect("chunks of the code");
        },
    );

    code.encode(
        Kernels::detect(),
        &data.all(),
        &mut parity.all_mut(),
        NonZeroUsize::MIN,
    )
    .expect("chunks of the code");
    let lost: Vec<usize> = (0..k.min(n - k)).collect();
    let present: Vec<usize> = (lost.len()..n).collect();
    let repair = code
        .repair(Kernels::detect(), &present, &lost)
        .expect("enough chunks");
    let chunks = [data.all(), parity.all()].concat();
    let sources: Vec<&[u8]> = repair
        .sources()
        .iter()
        .map(|&index| chunks[index])
        .collect();
    compare(
        &name("rebuild"),
        &repair.rows().collect::<Vec<_>>(),
        &sources,
        jerasure,
        &|kernels, threads, outs| {
            repair
                .run(kernels, &sources, outs, threads)
                .expect("chunks of the code");
        },
    );
}

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let (lengths, shapes): (Vec<&String>, Vec<&String>) =
        wanted.iter().partition(|argument| !argument.contains(','));
    let lengths: Vec<usize> = lengths
        .iter()
        .map(|length| length.parse().expect("bytes of a chunk"))
        .collect();
    assert!(
        lengths
            .iter()
            .all(|length| *length > 0 && length.is_multiple_of(16)),
        "Jerasure takes words of sixteen bytes"
    );
    let jerasure = Jerasure::open();
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or_default();
    println!(
        "{} {ROUNDS} rounds, {LARGE_ROUNDS} of more than {} MiB; GB/s of source data (of ISA-L's \
         in the same round); {}, {} Jerasure",
        processor.trim_start_matches([' ', '\t', ':']),
        LARGE >> 20,
        isal::file(),
        if jerasure.is_some() {
            "with"
        } else {
            "without"
        }
    );
    for (k, n) in SHAPES {
        if shapes.is_empty() || shapes.contains(&&format!("{k},{n}")) {
            let fits = LENGTHS
                .into_iter()
                .filter(|length| 3 * n * length <= BYTES_MAX);
            let lengths = if lengths.is_empty() {
                fits.collect()
            } else {
                lengths.clone()
            };
            lengths
                .into_iter()
                .for_each(|length| shape(k, n, length, jerasure.as_ref()));
        }
    }
}
