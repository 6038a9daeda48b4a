//! Compares the constructions of chunks by how many chunks there are: the product with a Cauchy
//! matrix by each instruction set, and the Fourier transform (`leopard`) by the best that its
//! library has. One thread, its processor time.
//!
//!     cargo bench --package nccodec --bench many               every shape
//!     cargo bench --package nccodec --bench many -- 128,256    these shapes only
//!
//! `encode` makes the n - k code pieces of a stripe, `rebuild` as many lost native ones as there
//! are code pieces, k at most. Rows are ready in both, and the transform's memory is. The
//! constructions take turns, round after round, so that a slow phase of the machine slows both.
//! What was made is compared with the lost pieces before it is timed.

use std::num::NonZeroUsize;
use std::time::Duration;

use criterion::measurement::Measurement as _;
use nccodec::{ChunkCode, Construction, Rebuilder};
use ncs_codec::rs::Matrix;
use ncs_device::portions::Work;
use ncs_gf::{Isa, Kernels};
use nctest::cpu_time::CpuTime;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

const SHAPES: [(u16, u16); 11] = [
    (4, 6),
    (10, 14),
    (4, 8),
    (8, 16),
    (16, 32),
    (32, 64),
    (64, 128),
    (128, 256),
    (128, 192),
    (200, 220),
    (4, 200),
];
/// Bytes of a piece: what others publish, and what files have.
const LENGTHS: [usize; 2] = [8 << 10, 256 << 10];
const CAUCHY: Construction = Construction::Matrix(Matrix::Cauchy);
const ROUNDS: usize = 15;
/// A turn in a round, about.
const TURN: Duration = Duration::from_millis(20);

/// Work on memory of its own.
struct Job {
    work: Work,
    kernels: Kernels,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Job {
    fn run(&mut self) {
        let (kernels, alone) = (self.kernels, NonZeroUsize::MIN);
        self.work.run(kernels, alone, &self.input, &mut self.output);
    }

    /// How often a second of the thread's processor time.
    fn per_second(&mut self) -> f64 {
        let (start, mut count) = (CpuTime.start(), 0_u32);
        loop {
            self.run();
            count += 1;
            let spent = CpuTime.end(start);
            if spent >= TURN {
                return f64::from(count) / spent.as_secs_f64();
            }
        }
    }
}

/// Encoding a stripe, and rebuilding it, both checked.
fn jobs(construction: Construction, kernels: Kernels, k: u16, n: u16, length: usize) -> [Job; 2] {
    let code = ChunkCode::new(construction, k, n).expect("a code");
    let (k, n) = (usize::from(k), usize::from(n));
    let mut native = vec![0; k * length];
    SmallRng::seed_from_u64(5).fill_bytes(&mut native);
    let mut encode = Job {
        work: code.encoding(length),
        kernels,
        input: native.clone(),
        output: vec![0; (n - k) * length],
    };
    encode.run();
    let lost = k.min(n - k);
    let held: Vec<usize> = (lost..k + lost).collect();
    let left = [&native[lost * length..], &encode.output[..lost * length]].concat();
    let mut rebuild = Job {
        work: Rebuilder::new(code).rebuilding(&held, length),
        kernels,
        input: left,
        output: vec![0; lost * length],
    };
    rebuild.run();
    assert!(
        rebuild.output == native[..lost * length],
        "{construction} is wrong with {k} of {n}"
    );
    [encode, rebuild]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn shape(k: u16, n: u16, length: usize) {
    let kernels = Kernels::available().filter(|kernels| kernels.isa() >= Isa::Avx2);
    let mut contenders: Vec<(String, [Job; 2])> = kernels
        .map(|kernels| {
            let jobs = jobs(CAUCHY, kernels, k, n, length);
            (format!("cauchy by {}", kernels.isa()), jobs)
        })
        .collect();
    let leopard = jobs(Construction::Leopard, Kernels::detect(), k, n, length);
    contenders.push(("leopard".to_owned(), leopard));
    let count = contenders.len();
    for (index, name) in ["encode", "rebuild"].into_iter().enumerate() {
        let mut rates = vec![Vec::new(); count];
        for round in 0..ROUNDS {
            for turn in 0..count {
                let which = (round + turn) % count;
                let bytes = (usize::from(k) * length) as f64;
                let (_, jobs) = &mut contenders[which];
                rates[which].push(jobs[index].per_second() * bytes / 1e9);
            }
        }
        print!("{name:<8} {k:>4} of {n:<4} {length:>7}");
        let leopard = rates[count - 1].clone();
        for ((contender, _), rates) in contenders.iter().zip(rates) {
            let pairs = leopard.iter().zip(&rates);
            let ratio = median(pairs.map(|(leopard, own)| leopard / own).collect());
            print!("  {contender} {:.3} ({ratio:.2}x)", median(rates));
        }
        println!();
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
        "{}; one thread, {ROUNDS} rounds; GB/s of the file (leopard's rate in the same round, as a \
         multiple)",
        processor.trim_start_matches([' ', '\t', ':']),
    );
    for length in LENGTHS {
        for (k, n) in SHAPES {
            if wanted.is_empty() || wanted.contains(&format!("{k},{n}")) {
                shape(k, n, length);
            }
        }
    }
}
