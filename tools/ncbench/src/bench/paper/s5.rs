//! The talk on Reed-Solomon codes on two Tesla K20X, row by row.
//!
//! Its ways to multiply run here byte by byte on the CPU, as on its slides, and our kernels beside
//! them, on one core and on all. Its steps on the card are the kernels of `kernels/rs.cu`, with
//! ours (`stripes`, `tensor`) beside them. Rates count bytes of the file. Its MB are 10^6 bytes
//! here. The talk's figure for a CPU comes from Jerasure; ISA-L runs beside ours in `make
//! bench-rs`.

use super::catalogue::{Amount, Axis, Bar, Cards, Crew, Group, Row, SWEEP, Sweep};
use super::measure::Measure;

pub(super) const ROWS: &[Row] = &[
    Row {
        id: "S5-1",
        group: Group::S5,
        title: "(n, k) codes over a file: any k of n chunks rebuild all; bytes stored beside three \
                copies",
        bars: &[
            Bar {
                what: "n=4, k=2",
                paper: "\"save 50 % space!\"",
                mark: None,
                panel: "k=2",
                x: Some(4.0),
            },
            Bar {
                what: "RS(6, 3)",
                paper: "named",
                mark: None,
                panel: "k=6",
                x: Some(9.0),
            },
            Bar {
                what: "RS(10, 4)",
                paper: "named",
                mark: None,
                panel: "k=10",
                x: Some(14.0),
            },
        ],
        axis: Axis::Chunks,
        base: "",
        sweeps: &[
            Sweep {
                n: &[2],
                rows: &[Amount::Count(2)],
                ..STORED
            },
            Sweep {
                n: &[6],
                rows: &[Amount::Count(3)],
                ..STORED
            },
            Sweep {
                n: &[10],
                rows: &[Amount::Count(4)],
                ..STORED
            },
        ],
        note: "2 bytes in place of 3 are a third less; 50 % is saved of what is added to the file",
    },
    ways(
        "S5-2",
        "Multiplying in a loop against tables over the size of chunks",
        &[
            Bar {
                what: "small chunks, 1 KiB",
                paper: "the loop is at its best already",
                mark: None,
                panel: SMALL,
                x: Some(1024.0),
            },
            Bar {
                what: "large chunks, 4 MiB: the file stays in the card's L2",
                paper: "tables exceed the loop",
                mark: None,
                panel: SMALL,
                x: Some(4_194_304.0),
            },
        ],
        &[
            Sweep {
                kernels: &["loop", "mod", "zero", "simd"],
                ..OVER_CHUNKS
            },
            Sweep {
                kernels: &["rs-loop 1x256", "rs-mod 1x256", "rs-zero 1x256", "stripes"],
                ..CARD_OVER_CHUNKS
            },
        ],
        "loop, 1 thread",
        "on a CPU a chunk's size says in which cache it is, and not how many threads it keeps busy",
    ),
    ways(
        "S5-3",
        "Full table of 64 KiB, left and right tables of 8 KiB, logarithms of 512 bytes",
        &[Bar {
            what: "k=4, n=6",
            paper: "1 / 2 / 3 lookups for a product; logarithms chosen",
            mark: None,
            panel: SMALL,
            x: Some(262_144.0),
        }],
        &[
            Sweep {
                kernels: &["full", "left-right", "mod", "simd"],
                ..OVER_CHUNKS
            },
            Sweep {
                kernels: &["rs-full 1x256", "rs-left-right 1x256", "rs-mod 1x256"],
                ..CARD_OVER_CHUNKS
            },
        ],
        "mod, 1 thread",
        "",
    ),
    ways(
        "S5-4",
        "Logarithms as the talk begins with them: a remainder, two tests for zero",
        &[at_largest("no figure")],
        &[
            Sweep {
                kernels: &["mod", "simd"],
                ..LARGE
            },
            Sweep {
                kernels: &["rs-mod 1x256"],
                ..CARD_LARGE
            },
        ],
        "mod, 1 thread",
        "",
    ),
    ways(
        "S5-5",
        "Improvement 1: (s & 255) + (s >> 8) in place of the remainder",
        &[at_largest("in the figure alone")],
        &[
            Sweep {
                kernels: &["mod", "fold"],
                ..LARGE
            },
            Sweep {
                kernels: &["rs-mod 1x256", "rs-fold 1x256"],
                ..CARD_LARGE
            },
        ],
        "mod, 1 thread",
        "the slide lacks the brackets: as C reads it, it is another sum",
    ),
    ways(
        "S5-6",
        "Improvement 2: exp twice as long, no remainder",
        &[at_largest("in the figure alone")],
        &[
            Sweep {
                kernels: &["mod", "fold", "double"],
                ..LARGE
            },
            Sweep {
                kernels: &["rs-mod 1x256", "rs-fold 1x256", "rs-double 1x256"],
                ..CARD_LARGE
            },
        ],
        "mod, 1 thread",
        "",
    ),
    ways(
        "S5-7",
        "Improvement 3: the logarithm of zero points into zeros, no branches",
        &[at_largest("fastest of the three")],
        &[
            Sweep {
                kernels: &["mod", "fold", "double", "zero", "simd"],
                ..LARGE
            },
            Sweep {
                kernels: &[
                    "rs-mod 1x256",
                    "rs-fold 1x256",
                    "rs-double 1x256",
                    "rs-zero 1x256",
                    "stripes",
                ],
                ..CARD_LARGE
            },
            Sweep {
                measure: Measure::ChunksCopy,
                kernels: &["stripes"],
                ..CARD_LARGE
            },
        ],
        "mod, 1 thread",
        "",
    ),
    on_card(
        "S5-8",
        "Tables in constant memory, in shared memory made by one thread, or loaded by all",
        &[at_largest("constant memory slowest")],
        &[
            Sweep {
                kernels: PLACES,
                ..CARD_LARGE
            },
            Sweep {
                kernels: PLACES,
                rows: &[Amount::Count(196)],
                k: &[1 << 20],
                full_k: &[1 << 20],
                ..CARD_LARGE
            },
        ],
        "rs-mod 1x256",
    ),
    on_card(
        "S5-9",
        "A product of matrices with a thread an element",
        &[at_largest("no figure")],
        &[Sweep {
            kernels: &["rs-naive", "rs-mod 1x256"],
            ..CARD_LARGE
        }],
        "rs-naive",
    ),
    on_card(
        "S5-10",
        "Square tiles",
        &[at_largest("no figure")],
        &[
            Sweep {
                kernels: TILES,
                ..CARD_LARGE
            },
            Sweep {
                kernels: TILES,
                rows: &[Amount::Count(196)],
                k: &[1 << 20],
                full_k: &[1 << 20],
                ..CARD_LARGE
            },
        ],
        "rs-naive",
    ),
    Row {
        id: "S5-11",
        group: Group::S5,
        title: "Tiles as deep as k, with few or many rows, on eight shapes: what all cores of a \
                host make of these",
        bars: &[
            Bar {
                what: "k=4, n=200, 1 MB",
                paper: "few rows best over all; no figures",
                mark: None,
                panel: "k=4, n=200",
                x: Some(1e6),
            },
            Bar {
                what: "k=4, n=6",
                paper: "few rows best over all; no figures",
                mark: None,
                panel: "k=4, n=6",
                x: None,
            },
            Bar {
                what: "k=8, n=16",
                paper: "few rows best over all; no figures",
                mark: None,
                panel: "k=8, n=16",
                x: None,
            },
            Bar {
                what: "k=128, n=192",
                paper: "not among its shapes",
                mark: None,
                panel: "k=128, n=192",
                x: None,
            },
        ],
        axis: Axis::Chunk,
        base: "",
        sweeps: &[
            Sweep {
                n: &[2],
                rows: &[Amount::Count(198)],
                ..SHAPES
            },
            Sweep {
                n: &[4],
                rows: &[Amount::Count(146)],
                ..SHAPES
            },
            Sweep {
                n: &[4],
                rows: &[Amount::Count(196)],
                ..SHAPES
            },
            Sweep {
                n: &[4],
                rows: &[Amount::Count(2)],
                k: &[10_000_000],
                full_k: &[256_000_000],
                ..SHAPES
            },
            Sweep {
                n: &[8],
                rows: &[Amount::Count(8)],
                k: &[10_000_000],
                full_k: &[128_000_000],
                ..SHAPES
            },
            Sweep {
                n: &[128],
                rows: &[Amount::Count(64)],
                ..SHAPES
            },
            Sweep {
                n: &[2],
                rows: &[Amount::Count(198)],
                ..CARD_SHAPES
            },
            Sweep {
                n: &[4],
                rows: &[Amount::Count(146)],
                ..CARD_SHAPES
            },
            Sweep {
                n: &[4],
                rows: &[Amount::Count(196)],
                ..CARD_SHAPES
            },
            Sweep {
                n: &[4],
                rows: &[Amount::Count(2)],
                k: &[10_000_000],
                full_k: &[256_000_000],
                ..CARD_SHAPES
            },
            Sweep {
                n: &[8],
                rows: &[Amount::Count(8)],
                k: &[10_000_000],
                full_k: &[128_000_000],
                ..CARD_SHAPES
            },
            Sweep {
                n: &[128],
                rows: &[Amount::Count(64)],
                ..CARD_SHAPES
            },
        ],
        note: "Cases 4 to 6 of its eight (10 MB) are not measured, 7 and 8 with 10 MB in place of \
               256 and 128; few rows win none of them here. a tile's 256 threads are rows x \
               columns of it",
    },
    Row {
        id: "S5-12",
        group: Group::S5,
        title: "Four bytes at a time in place of one, k = 4, n = 200: what the ways to multiply \
                make of it on a CPU",
        bars: &[Bar {
            what: "k=4, n=200: chunks of 200 MB there, of 1 MiB here",
            paper: "1119 to 1591 MB/s (+42 %)",
            mark: Some(1.591),
            panel: "k=4, n=200",
            x: Some(1_048_576.0),
        }],
        axis: Axis::Chunk,
        base: "rs-mod 1x256, GPU",
        sweeps: &[
            Sweep {
                kernels: &["mod", "zero", "full", "simd"],
                rows: &[Amount::Count(196)],
                k: &[65_536, 1_048_576],
                full_k: &[65_536, 1_048_576, 4_194_304],
                ..LARGE
            },
            Sweep {
                kernels: &[
                    "rs-mod 1x256",
                    "rs-mod-words 1x256",
                    "rs-zero 1x256",
                    "rs-zero-words 1x256",
                    "stripes",
                    "tensor",
                ],
                rows: &[Amount::Count(196)],
                k: &[65_536, 1_048_576, 10 << 20],
                full_k: &[65_536, 1_048_576, 4_194_304, 10 << 20, 64 << 20],
                ..CARD_LARGE
            },
        ],
        note: "The talk's ALU, transaction and branch counters are not measured. what bytes the \
               talk's MB/s count it does not say; chunks are smaller here, for 200 of 200 MB are \
               40 GB",
    },
    on_card(
        "S5-13",
        "Copies beside kernels on several streams",
        &[Bar {
            what: "best number; one file of 268 MB here",
            paper: "more than 29 % over one stream",
            mark: None,
            panel: SMALL,
            x: None,
        }],
        &[Sweep {
            kernels: &["stripes", "rs-zero 1x256"],
            generations: &[Amount::Count(1), Amount::Count(3)],
            ..THROUGH
        }],
        "stripes through the GPU, 1 stream",
    ),
    on_card(
        "S5-14",
        "The number of streams",
        &[Bar {
            what: "2000 MB there, 268 here; kernels alone are not measured",
            paper: "take longer the more streams there are",
            mark: None,
            panel: SMALL,
            x: None,
        }],
        &[
            Sweep {
                kernels: &["stripes"],
                generations: STREAMS,
                ..THROUGH
            },
            Sweep {
                measure: Measure::ChunksThroughCopy,
                kernels: &["stripes"],
                generations: STREAMS,
                ..THROUGH
            },
        ],
        "stripes through the GPU, 1 stream",
    ),
    on_card(
        "S5-15",
        "The ladder, from chunks on the host to chunks there: tiles, logarithms, streams",
        &[Bar {
            what: "1600 MB, two K20X; one card here",
            paper: "tiles 1.469x, logarithms 1.502x, 7.145x in all: 5.46 GB/s",
            mark: Some(5.461),
            panel: SMALL,
            x: None,
        }],
        &[
            Sweep {
                kernels: &[
                    "rs-naive",
                    "rs-square",
                    "rs-mod 1x256",
                    "rs-zero 1x256",
                    "rs-zero-words 1x256",
                ],
                ..THROUGH
            },
            Sweep {
                kernels: &["rs-zero-words 1x256", "stripes"],
                generations: &[Amount::Count(3)],
                ..THROUGH
            },
            Sweep {
                kernels: &["rs-zero-words 1x256", "stripes"],
                generations: &[Amount::Count(3)],
                ..THROUGH_ALL
            },
        ],
        "rs-naive through the GPU",
    ),
    Row {
        id: "S5-16",
        group: Group::S5,
        title: "GPU beside CPU, k = 4, n = 6, and two lost chunks rebuilt",
        bars: &[
            Bar {
                what: "1600 MB, Jerasure / two K20X with copies",
                paper: "4309 / 293 ms (14.7x): 0.371 / 5.46 GB/s",
                mark: Some(5.461),
                panel: "encode, k=4, n=6",
                x: None,
            },
            Bar {
                what: "two native chunks lost",
                paper: "\"similar\", no figure",
                mark: None,
                panel: "rebuild, k=4, n=6",
                x: None,
            },
            Bar {
                what: "the same, n=200",
                paper: "no figure",
                mark: None,
                panel: "rebuild, k=4, n=200",
                x: None,
            },
        ],
        axis: Axis::Chunk,
        base: "mod, 1 thread",
        sweeps: &[
            Sweep {
                panel: "encode",
                k: MEGABYTES,
                full_k: &[400_000_000],
                ..BESIDE
            },
            Sweep {
                panel: "rebuild",
                measure: Measure::CpuRebuild,
                k: MEGABYTES,
                full_k: &[400_000_000],
                ..BESIDE
            },
            Sweep {
                panel: "encode",
                rows: &[Amount::Count(196)],
                k: &[1_000_000],
                ..BESIDE
            },
            Sweep {
                panel: "rebuild",
                measure: Measure::CpuRebuild,
                rows: &[Amount::Count(196)],
                k: &[1_000_000],
                ..BESIDE
            },
            Sweep {
                panel: "encode",
                ..CARD_BESIDE
            },
            Sweep {
                panel: "encode",
                measure: Measure::ChunksThroughCopy,
                ..CARD_BESIDE
            },
            Sweep {
                panel: "rebuild",
                measure: Measure::RebuildThrough,
                ..CARD_BESIDE
            },
            Sweep {
                panel: "encode",
                ..CARDS_BESIDE
            },
            Sweep {
                panel: "encode",
                measure: Measure::ChunksThroughCopy,
                ..CARDS_BESIDE
            },
            Sweep {
                panel: "rebuild",
                measure: Measure::RebuildThrough,
                ..CARDS_BESIDE
            },
            Sweep {
                panel: "rebuild",
                measure: Measure::Rebuild,
                generations: SWEEP.generations,
                ..CARD_BESIDE
            },
            Sweep {
                panel: "encode",
                kernels: &["stripes", "tensor"],
                rows: &[Amount::Count(196)],
                k: &[1_000_000],
                full_k: &[],
                ..CARD_BESIDE
            },
            Sweep {
                panel: "rebuild",
                measure: Measure::RebuildThrough,
                rows: &[Amount::Count(196)],
                k: &[1_000_000],
                full_k: &[],
                ..CARD_BESIDE
            },
        ],
        note: "1600 MB are four chunks of 400 MB: --full. ISA-L and Jerasure stand beside ours in \
               `make bench-rs`",
    },
    Row {
        id: "S5-17",
        group: Group::S5,
        title: "Left for later: CPU and GPU together, a rule for the number of streams",
        bars: &[
            Bar {
                what: "k=4, n=6",
                paper: "left for later",
                mark: None,
                panel: SMALL,
                x: None,
            },
            Bar {
                what: "k=4, n=200",
                paper: "left for later",
                mark: None,
                panel: "k=4, n=200",
                x: None,
            },
        ],
        axis: Axis::Chunk,
        base: "chunks by the CPU",
        sweeps: &[
            BY_CPU,
            BY_GPU,
            Sweep {
                rows: &[Amount::Count(196)],
                k: &[4 << 20],
                full_k: &[8 << 20],
                ..BY_CPU
            },
            Sweep {
                rows: &[Amount::Count(196)],
                k: &[4 << 20],
                full_k: &[8 << 20],
                ..BY_GPU
            },
        ],
        note: "The differences at k=4, n=6 are within the spread of the rounds (55.8 to 94.4 \
               GB/s). stripes go to whoever is free; the number of streams is measured in S5-14, \
               and three are used",
    },
];

const fn ways(
    id: &'static str,
    title: &'static str,
    bars: &'static [Bar],
    sweeps: &'static [Sweep],
    base: &'static str,
    note: &'static str,
) -> Row {
    Row {
        id,
        group: Group::S5,
        title,
        bars,
        axis: Axis::Chunk,
        base,
        sweeps,
        note,
    }
}

const fn on_card(
    id: &'static str,
    title: &'static str,
    bars: &'static [Bar],
    sweeps: &'static [Sweep],
    base: &'static str,
) -> Row {
    Row {
        id,
        group: Group::S5,
        title,
        bars,
        axis: Axis::Chunk,
        base,
        sweeps,
        note: "",
    }
}

const fn at_largest(paper: &'static str) -> Bar {
    Bar {
        what: "k=4, n=6, chunks of 4 MiB: the file stays in the card's L2",
        paper,
        mark: None,
        panel: SMALL,
        x: Some(4_194_304.0),
    }
}

/// k = 4, n = 6, chunks of 4 MiB.
const LARGE: Sweep = Sweep {
    measure: Measure::CpuChunks,
    n: &[4],
    rows: &[Amount::Count(2)],
    k: &[4 << 20],
    full_k: &[4 << 20, 64 << 20, 256 << 20],
    threads: &[Crew::Count(1), Crew::All],
    ..SWEEP
};
const OVER_CHUNKS: Sweep = Sweep {
    k: &[1 << 10, 16 << 10, 256 << 10, 4 << 20],
    full_k: &[
        1 << 10,
        4 << 10,
        16 << 10,
        64 << 10,
        256 << 10,
        1 << 20,
        4 << 20,
        16 << 20,
        64 << 20,
    ],
    ..LARGE
};
const SHAPES: Sweep = Sweep {
    kernels: &["simd"],
    k: &[1_000_000],
    full_k: &[1_000_000, 10_000_000],
    threads: &[Crew::All],
    ..LARGE
};
const BESIDE: Sweep = Sweep {
    kernels: &["mod", "zero", "simd"],
    full_k: &[],
    ..LARGE
};
const CARD_LARGE: Sweep = Sweep {
    measure: Measure::Chunks,
    threads: SWEEP.threads,
    ..LARGE
};
const CARD_OVER_CHUNKS: Sweep = Sweep {
    k: OVER_CHUNKS.k,
    full_k: OVER_CHUNKS.full_k,
    ..CARD_LARGE
};
const CARD_SHAPES: Sweep = Sweep {
    kernels: &[
        "rs-zero 1x256",
        "rs-zero 2x128",
        "rs-zero 16x16",
        "rs-zero 256x1",
        "stripes",
        "tensor",
    ],
    k: SHAPES.k,
    full_k: SHAPES.full_k,
    ..CARD_LARGE
};
/// Chunks of 1600 MB in all where all sizes are asked for.
const THROUGH: Sweep = Sweep {
    measure: Measure::ChunksThrough,
    k: &[64 << 20],
    full_k: &[400_000_000],
    ..CARD_LARGE
};
/// The talk has two cards.
const THROUGH_ALL: Sweep = Sweep {
    gpus: Cards::All,
    ..THROUGH
};
const CARDS_BESIDE: Sweep = Sweep {
    gpus: Cards::All,
    ..CARD_BESIDE
};
const CARD_BESIDE: Sweep = Sweep {
    kernels: &["stripes"],
    generations: &[Amount::Count(3)],
    k: MEGABYTES,
    full_k: &[400_000_000],
    ..THROUGH
};
/// Stripes as files have them.
const BY_CPU: Sweep = Sweep {
    measure: Measure::CpuWorkItems,
    kernels: &["cpu"],
    k: &[64 << 20],
    full_k: &[400_000_000],
    threads: &[Crew::All],
    ..LARGE
};
const BY_GPU: Sweep = Sweep {
    measure: Measure::WorkItems,
    kernels: &["cuda", "hybrid"],
    ..BY_CPU
};
const PLACES: &[&str] = &[
    "rs-mod 1x256",
    "rs-mod-serial 1x256",
    "rs-mod-constant 1x256",
    "rs-zero 1x256",
    "rs-zero-serial 1x256",
    "rs-zero-constant 1x256",
];
const TILES: &[&str] = &["rs-naive", "rs-square", "rs-mod 16x16", "rs-mod 1x256"];
const STREAMS: &[Amount] = &[
    Amount::Count(1),
    Amount::Count(2),
    Amount::Count(3),
    Amount::Count(4),
    Amount::Count(8),
    Amount::Count(16),
];
const STORED: Sweep = Sweep {
    measure: Measure::Stored,
    k: &[64],
    ..SWEEP
};

const SMALL: &str = "k=4, n=6";
const MEGABYTES: &[u32] = &[4_000_000];
