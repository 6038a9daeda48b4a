//! Chu, Zhao and Wang, "Practical Random Linear Network Coding on GPUs" (NETWORKING 2009), row by
//! row.
//!
//! The paper has a GeForce GTX 280 and one core of a Core2 at 1.6 GHz with GMP 4.2.3; its blocks
//! have 512 words, which are 16 KiB here: words of 32 bytes, each below a q of 257 bits. `paper`
//! are kernels as the paper has them, the others are ours (`kernels/gfq.cu`, `kernels/hash.cu`).
//! Its rates are in bits.

use super::catalogue::{Amount, Axis, Bar, Crew, Group, Row, SWEEP, Sweep};
use super::measure::Measure;

pub(super) const ROWS: &[Row] = &[
    elsewhere(
        "S3-1",
        "A library of arithmetic on long numbers: nine functions",
        "`long_numbers_are_computed_as_by_a_library` compares each of `kernels/nc_mp.cuh` with \
         num-bigint, on 9, 32 and 64 limbs",
    ),
    Row {
        id: "S3-2",
        group: Group::S3,
        title: "Encoding one block, a thread a codeword",
        bars: &[Bar {
            what: "CPU, n=128",
            paper: "10.3 Mbit/s",
            mark: Some(0.001_287_5),
            panel: "all n",
            x: Some(128.0),
        }],
        axis: Axis::N,
        base: "CPU, 1 thread",
        sweeps: &[
            Sweep {
                kernels: &["paper-64", "ours"],
                n: ORDERS,
                rows: ONE,
                ..ENCODE
            },
            Sweep {
                measure: Measure::CpuGfqEncode,
                n: ORDERS,
                rows: ONE,
                threads: ALONE,
                ..ENCODE
            },
        ],
        note: "Of the CPU one thread alone is measured. 512 threads are little for a card; a \
               server encodes many blocks at once, as in S3-3",
    },
    Row {
        id: "S3-3",
        group: Group::S3,
        title: "Encoding K blocks at once, mK threads (Fig. 4)",
        bars: &[
            Bar {
                what: "K=32",
                paper: "about 800 Mbit/s",
                mark: Some(0.1),
                panel: "n=128",
                x: Some(32.0),
            },
            Bar {
                what: "K=128",
                paper: "95x, the best; above 66x for every K > 32",
                mark: Some(0.122),
                panel: "n=128",
                x: Some(128.0),
            },
            Bar {
                what: "our figure to reach",
                paper: "400 Gbit/s",
                mark: Some(50.0),
                panel: "n=128",
                x: None,
            },
        ],
        axis: Axis::Rows,
        base: "CPU, 1 thread",
        sweeps: &[
            Sweep {
                kernels: &[
                    "paper-64",
                    "paper-256",
                    "ours",
                    "ours-1",
                    "ours-2",
                    "ours-4",
                    "ours-8",
                ],
                rows: BATCHES,
                ..ENCODE
            },
            Sweep {
                measure: Measure::GfqEncodeThrough,
                rows: BATCHES,
                ..ENCODE
            },
            Sweep {
                measure: Measure::CpuGfqEncode,
                rows: BATCHES,
                threads: CREWS,
                ..ENCODE
            },
            Sweep {
                kernels: &["paper-64", "ours"],
                n: &[64, 256],
                rows: &[Amount::Count(128), Amount::Count(1024)],
                ..ENCODE
            },
            Sweep {
                measure: Measure::CpuGfqEncode,
                n: &[64, 256],
                rows: &[Amount::Count(128), Amount::Count(1024)],
                threads: CREWS,
                ..ENCODE
            },
        ],
        note: "Of the CPU's 16 threads one has work at K = 32, and four at K = 128. Coefficients \
               of 32 bits, blocks in and out in device memory",
    },
    Row {
        id: "S3-4",
        group: Group::S3,
        title: "Inverting a matrix: elements by the CPU and rows by the GPU, or all of it on the \
                card (Fig. 5)",
        bars: &[
            Bar {
                what: "n=128",
                paper: "17x",
                mark: None,
                panel: "all n",
                x: Some(128.0),
            },
            Bar {
                what: "n=256",
                paper: "24x",
                mark: None,
                panel: "all n",
                x: Some(256.0),
            },
        ],
        axis: Axis::N,
        base: "CPU, 1 thread",
        sweeps: &[
            Sweep {
                measure: Measure::GfqSteps,
                kernels: &["paper"],
                ..INVERT
            },
            Sweep {
                measure: Measure::GfqInvert,
                generations: &[Amount::Count(1), Amount::PerSm(1)],
                ..INVERT
            },
            Sweep {
                measure: Measure::CpuGfqInvert,
                threads: CREWS,
                ..INVERT
            },
        ],
        note: "microseconds for a matrix; of many at once, their time divided by their number. Of \
               the CPU's 16 threads one has work at n = 128, and seven at n = 256",
    },
    Row {
        id: "S3-5",
        group: Group::S3,
        title: "Multiplying with coefficients of all bits, in tiles (Fig. 2 and 6)",
        bars: &[Bar {
            what: "n=128",
            paper: "243 Mbit/s, 64x to 75x",
            mark: Some(0.030_4),
            panel: "all n",
            x: Some(128.0),
        }],
        axis: Axis::N,
        base: "CPU, 1 thread",
        sweeps: &[
            Sweep {
                measure: Measure::GfqCombine,
                kernels: &["paper", "ours"],
                n: ORDERS,
                rows: &[Amount::N],
                generations: FEW,
                ..ENCODE
            },
            Sweep {
                measure: Measure::CpuGfqCombine,
                n: ORDERS,
                rows: &[Amount::N],
                threads: CREWS,
                ..ENCODE
            },
        ],
        note: "as many blocks as the generation has; on the card of one generation, and of eight \
               at once",
    },
    Row {
        id: "S3-6",
        group: Group::S3,
        title: "Decoding: inversion and multiplication (Fig. 7)",
        bars: &[
            Bar {
                what: "n=128",
                paper: "58 Mbit/s, 15x to 33x",
                mark: Some(0.007_25),
                panel: "all n",
                x: Some(128.0),
            },
            Bar {
                what: "our figure to reach",
                paper: "20 Gbit/s",
                mark: Some(2.5),
                panel: "all n",
                x: Some(128.0),
            },
        ],
        axis: Axis::N,
        base: "CPU, 1 thread",
        sweeps: &[
            Sweep {
                measure: Measure::GfqDecode,
                n: ORDERS,
                rows: &[Amount::N],
                generations: &[Amount::Count(1), Amount::PerSm(1), Amount::PerSm(2)],
                ..ENCODE
            },
            Sweep {
                measure: Measure::GfqDecodeThrough,
                n: ORDERS,
                rows: &[Amount::N],
                generations: &[Amount::Count(1), Amount::Count(32)],
                ..ENCODE
            },
            Sweep {
                measure: Measure::CpuGfqDecode,
                n: ORDERS,
                rows: &[Amount::N],
                threads: CREWS,
                ..ENCODE
            },
        ],
        note: "No decode with the paper's own two kernels is measured. blocks with recoded \
               vectors; vectors, payloads and source in device memory; a CPU's threads share one \
               generation, which is work for four of them at n = 128",
    },
    Row {
        id: "S3-7",
        group: Group::S3,
        title: "Hashes of source blocks",
        bars: &[
            Bar {
                what: "CPU",
                paper: "130 kbit/s",
                mark: Some(0.000_016),
                panel: "n=128",
                x: None,
            },
            Bar {
                what: "our figure to reach",
                paper: "8 Gbit/s",
                mark: Some(1.0),
                panel: "n=128",
                x: None,
            },
        ],
        axis: Axis::Rows,
        base: "CPU p1024, 1 thread",
        sweeps: &[
            Sweep {
                measure: Measure::GfqHash,
                kernels: &["window-4", "window-8", "window-4 p2048"],
                rows: &[Amount::Count(32), Amount::Count(128), Amount::Count(1024)],
                ..ENCODE
            },
            Sweep {
                measure: Measure::GfqHashThrough,
                kernels: &["p1024"],
                rows: &[Amount::Count(32), Amount::Count(128), Amount::Count(1024)],
                ..ENCODE
            },
            Sweep {
                measure: Measure::CpuGfqHash,
                kernels: &["p1024", "p2048"],
                rows: &[Amount::Count(32), Amount::Count(128), Amount::Count(1024)],
                threads: CREWS,
                ..ENCODE
            },
        ],
        note: "By tables, not by the paper's powers (S3-9). so many blocks at once; tables of the \
               generators' powers are made before, once for a group",
    },
    elsewhere(
        "S3-8",
        "Montgomery exponentiation (Algorithm 2)",
        "what S3-9 measures; `blocks_are_hashed_in_every_way` compares products of its powers with \
         the CPU's",
    ),
    Row {
        id: "S3-9",
        group: Group::S3,
        title: "Hashing over TB threads a thread block and NB thread blocks (Fig. 8)",
        bars: &[
            Bar {
                what: "TB=128, NB=90",
                paper: "1.9 Mbit/s, 15x",
                mark: Some(0.000_237_5),
                panel: "n=128",
                x: Some(90.0),
            },
            Bar {
                what: "our figure to reach",
                paper: "1 Gbit/s",
                mark: Some(0.125),
                panel: "n=128",
                x: None,
            },
        ],
        axis: Axis::Grid,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::GfqPowers,
                kernels: &["TB=32", "TB=64", "TB=128", "TB=256", "TB=512"],
                rows: &[Amount::Count(128)],
                generations: &[
                    Amount::Count(90),
                    Amount::PerSm(1),
                    Amount::PerSm(2),
                    Amount::PerSm(3),
                    Amount::PerSm(4),
                    Amount::PerSm(8),
                    Amount::PerSm(16),
                ],
                ..ENCODE
            },
            Sweep {
                measure: Measure::GfqLadder,
                kernels: &["lanes", "threads"],
                rows: ONE,
                generations: &[Amount::Count(1), Amount::Count(16), Amount::Count(128)],
                panel: "squarings of so many times 128 hashes",
                ..ENCODE
            },
        ],
        note: "No CPU stands beside it, so that the paper's 15x is not compared. 128 blocks of 16 \
               KiB at once; its rules are a TB of whole warps, an NB that is a multiple of the \
               multiprocessors, TB NB > 6144. Squarings: what a check of coded blocks begins with, \
               a warp a hash or a thread a hash",
    },
    Row {
        id: "S3-10",
        group: Group::S3,
        title: "Verifying coded blocks against the hashes of source blocks, in batches of B (Fig. \
                3)",
        bars: &[
            Bar {
                what: "as hashing, in the paper",
                paper: "1.9 Mbit/s",
                mark: Some(0.000_237_5),
                panel: "n=128",
                x: None,
            },
            Bar {
                what: "our figure to reach, B=256",
                paper: "20 Gbit/s",
                mark: Some(2.5),
                panel: "n=128",
                x: Some(256.0),
            },
        ],
        axis: Axis::Rows,
        base: "CPU p1024, 1 thread",
        sweeps: &[
            Sweep {
                measure: Measure::GfqCheck,
                kernels: &["p1024", "p2048"],
                rows: CHECKED,
                generations: &[Amount::Count(1), Amount::Count(16)],
                ..ENCODE
            },
            Sweep {
                measure: Measure::GfqCheckThrough,
                kernels: &["p1024"],
                rows: CHECKED,
                generations: &[Amount::Count(1), Amount::Count(16)],
                ..ENCODE
            },
            Sweep {
                measure: Measure::CpuGfqCheck,
                kernels: &["p1024", "p2048"],
                rows: CHECKED,
                threads: CREWS,
                ..ENCODE
            },
        ],
        note: "The blocks are coded at the source: vectors of 32 bits, as recoded blocks do not \
               have. A batch of one, as in the paper, is not measured. One thread of the CPU \
               checks a batch. One batch alone, and sixteen of as many generations at once. That a \
               polluting relay is caught at the first hop is a test with real processes",
    },
    Row {
        id: "S3-11",
        group: Group::S3,
        title: "Recoding with coefficients of all bits",
        bars: &[Bar {
            what: "as S3-5",
            paper: "243 Mbit/s",
            mark: Some(0.030_4),
            panel: "n=128",
            x: None,
        }],
        axis: Axis::Rows,
        base: "CPU, 1 thread",
        sweeps: &[
            Sweep {
                measure: Measure::GfqCombine,
                kernels: &["paper", "ours"],
                rows: RECODED,
                ..ENCODE
            },
            Sweep {
                measure: Measure::CpuGfqCombine,
                rows: RECODED,
                threads: CREWS,
                ..ENCODE
            },
        ],
        note: "so many blocks of the n that are held; payloads alone: vectors of n words beside m \
               = 512 are a quarter more at n = 128",
    },
];

const fn elsewhere(id: &'static str, title: &'static str, note: &'static str) -> Row {
    Row {
        id,
        group: Group::S3,
        title,
        bars: &[],
        axis: Axis::N,
        base: "",
        sweeps: &[],
        note,
    }
}

/// A generation of 128 blocks of 512 words.
const ENCODE: Sweep = Sweep {
    measure: Measure::GfqEncode,
    k: &[16_384],
    ..SWEEP
};
const INVERT: Sweep = Sweep {
    n: ORDERS,
    rows: ONE,
    ..ENCODE
};
const ORDERS: &[u16] = &[64, 128, 256];
const ONE: &[Amount] = &[Amount::Count(1)];
const FEW: &[Amount] = &[Amount::Count(1), Amount::Count(8)];
const ALONE: &[Crew] = &[Crew::Count(1)];
const CREWS: &[Crew] = &[Crew::Count(1), Crew::All];
const BATCHES: &[Amount] = &[
    Amount::Count(32),
    Amount::Count(64),
    Amount::Count(128),
    Amount::Count(256),
    Amount::Count(512),
    Amount::Count(1024),
    Amount::Count(2048),
];
const CHECKED: &[Amount] = &[Amount::Count(32), Amount::Count(256)];
const RECODED: &[Amount] = &[Amount::Count(1), Amount::Count(32), Amount::Count(128)];
