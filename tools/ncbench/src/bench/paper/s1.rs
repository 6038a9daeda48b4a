//! Chu, Zhao and Wang, "Accelerating Network Coding on Many-core GPUs and Multi-core CPUs" (2009),
//! row by row.
//!
//! Their m is our k; their k, the side of a tile, has no name here. Their three cards are one card
//! with its grid limited to a quarter, a half and all of its multiprocessors.

use super::catalogue::{Amount, Axis, Bar, CardShare, Crew, Group, Kind, Row, SWEEP, Sweep};
use super::measure::Measure;

pub(super) const ROWS: &[Row] = &[
    Row {
        id: "S1-1",
        group: Group::S1,
        title: "One table of 64 KiB with all products, in global memory (Algorithm 1, Fig. 9a)",
        bars: &[bar("n=128, GTX 280", "30 MB/s", 0.030, "", Some(128.0))],
        axis: Axis::N,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["product-global"],
                ..BEST
            },
            Sweep {
                measure: Measure::CpuEncode,
                ..BEST
            },
        ],
        note: "",
    },
    Row {
        id: "S1-2",
        group: Group::S1,
        title: "The same table behind a cache (texture memory, Fig. 9b)",
        bars: &[bar("n=128, GTX 280", "250 MB/s", 0.250, "", Some(128.0))],
        axis: Axis::N,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["product-ldg", "product-texture"],
                ..BEST
            },
            Sweep {
                measure: Measure::CpuEncode,
                ..BEST
            },
        ],
        note: "texture objects and read-only loads go through one cache today",
    },
    Row {
        id: "S1-3",
        group: Group::S1,
        title: "Logarithm and exponential tables with a test for zero (Algorithm 2)",
        bars: &[bar("n=128, GTX 280", "325 MB/s", 0.325, "", Some(128.0))],
        axis: Axis::N,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["logexp-ldg", "logexp-texture"],
                ..BEST
            },
            Sweep {
                measure: Measure::CpuEncode,
                ..BEST
            },
        ],
        note: "By textures, which is the paper's memory, the order of S1-2 and S1-3 reverses",
    },
    Row {
        id: "S1-4",
        group: Group::S1,
        title: "One coded block at a time from tiles in shared memory (Algorithm 3)",
        bars: &[Bar {
            what: "n=128",
            paper: "no figure; low at small m",
            mark: None,
            panel: "n=128",
            x: Some(16_384.0),
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["single", "tiled", "table"],
                rows: ONE,
                ..OVER_BLOCKS
            },
            Sweep {
                measure: Measure::CpuParted,
                rows: ONE,
                ..OVER_BLOCKS
            },
        ],
        note: "",
    },
    Row {
        id: "S1-5",
        group: Group::S1,
        title: "Batches as a tiled matrix product (Algorithm 4), from one block up",
        bars: &[bar(
            "best, GTX 280, n=128",
            "325 MB/s",
            0.325,
            "n=128",
            None,
        )],
        axis: Axis::Rows,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["tiled"],
                n: &[128],
                rows: FROM_ONE,
                ..OVER_BATCHES
            },
            Sweep {
                measure: Measure::CpuEncode,
                n: &[128],
                rows: FROM_ONE,
                ..OVER_BATCHES
            },
        ],
        note: "",
    },
    Row {
        id: "S1-6",
        group: Group::S1,
        title: "Encoding over batch size, m = 16384, three sizes of card (Fig. 10)",
        bars: &[
            bar("best, GTX 280, n=128", "325 MB/s", 0.325, "n=128", None),
            Bar {
                what: "n=256",
                paper: "shape: large gain with p",
                mark: None,
                panel: "n=256",
                x: None,
            },
            Bar {
                what: "n=512",
                paper: "shape: large gain with p",
                mark: None,
                panel: "n=512",
                x: None,
            },
        ],
        axis: Axis::Rows,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["tiled", "table"],
                part: CARDS,
                ..OVER_BATCHES
            },
            Sweep {
                measure: Measure::CpuEncode,
                ..OVER_BATCHES
            },
        ],
        note: "where the smaller card loses at small p and by how much less it does at large p is \
               the question of the figure",
    },
    Row {
        id: "S1-7",
        group: Group::S1,
        title: "Encoding over block size, p = 512 and 2048, three sizes of card (Fig. 11)",
        bars: &[
            Bar {
                what: "n=128, p=512",
                paper: "shape: larger cards saturate later",
                mark: None,
                panel: "n=128, p=512",
                x: None,
            },
            Bar {
                what: "n=512, p=2048",
                paper: "shape: larger cards saturate later",
                mark: None,
                panel: "n=512, p=2048",
                x: None,
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["tiled", "table"],
                rows: TWO_BATCHES,
                part: CARDS,
                ..OVER_BLOCKS
            },
            Sweep {
                measure: Measure::CpuEncode,
                rows: TWO_BATCHES,
                ..OVER_BLOCKS
            },
        ],
        note: "",
    },
    Row {
        id: "S1-8",
        group: Group::S1,
        title: "Coefficients made on the GPU: how fast, and their share of a batch",
        bars: &[
            Bar {
                what: "rate",
                paper: "tens of millions/s",
                mark: None,
                panel: "rate",
                x: None,
            },
            Bar {
                what: "share",
                paper: "negligible",
                mark: None,
                panel: "share",
                x: None,
            },
        ],
        axis: Axis::Rows,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::RowRate,
                panel: "rate",
                kernels: &["table"],
                rows: FROM_SIXTEEN,
                ..SWEEP
            },
            Sweep {
                measure: Measure::RowShare,
                panel: "share",
                kernels: &["table", "tensor"],
                rows: FROM_SIXTEEN,
                ..SWEEP
            },
        ],
        note: "",
    },
    Row {
        id: "S1-9",
        group: Group::S1,
        title: "Decoding split: inversion on all CPU threads, multiplication on the GPU; t = \
                t_inverse + t_mul + t_o",
        bars: &[bar(
            "best decode, n=128, GTX 280 and 4 threads",
            "212 MB/s",
            0.212,
            "rate, n=128",
            None,
        )],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::SplitInverse,
                panel: "time",
                kernels: TABLE,
                ..DECODE
            },
            Sweep {
                measure: Measure::SplitMultiply,
                panel: "time",
                kernels: TABLE,
                ..DECODE
            },
            Sweep {
                measure: Measure::SplitOverhead,
                panel: "time",
                kernels: TABLE,
                ..DECODE
            },
            Sweep {
                measure: Measure::SplitDecode,
                panel: "rate",
                kernels: TABLE,
                ..DECODE
            },
            Sweep {
                measure: Measure::CpuDecode,
                panel: "rate",
                ..DECODE
            },
        ],
        note: "The multiplication is ours (`table`) in the place of Algorithm 4",
    },
    Row {
        id: "S1-10",
        group: Group::S1,
        title: "Inversion of one matrix on the CPU by 1, 4 and all threads (Table II)",
        bars: &[
            bar(
                "n=128, single / four",
                "8.32 ms / 2.86 ms",
                8320.0,
                "",
                Some(128.0),
            ),
            bar(
                "n=256, single / four",
                "67.20 ms / 18.93 ms",
                67_200.0,
                "",
                Some(256.0),
            ),
            bar(
                "n=512, single / four",
                "522.00 ms / 139.08 ms",
                522_000.0,
                "",
                Some(512.0),
            ),
        ],
        axis: Axis::N,
        base: "",
        sweeps: &[Sweep {
            measure: Measure::CpuInvert,
            n: &[128, 256, 512, 1024],
            threads: CREWS,
            ..SWEEP
        }],
        note: "Gauss-Jordan in place; columns are searched for the pivot in place of rows, so that \
               threads need not meet at every step",
    },
    Row {
        id: "S1-11",
        group: Group::S1,
        title: "Decoding over block size, inversion by one CPU thread (Fig. 12)",
        bars: &[bar(
            "best, n=512, GTX 280",
            "22.9 MB/s",
            0.0229,
            "n=512",
            None,
        )],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::SplitDecode,
                kernels: TABLE,
                threads: &[Crew::Count(1)],
                part: CARDS,
                ..DECODE
            },
            Sweep {
                measure: Measure::CpuDecode,
                threads: &[Crew::Count(1)],
                ..DECODE
            },
        ],
        note: "The multiplication is ours (`table`) in the place of Algorithm 4",
    },
    Row {
        id: "S1-12",
        group: Group::S1,
        title: "Decoding over block size, inversion by 4 and by all CPU threads (Fig. 13)",
        bars: &[
            bar("n=128, m=16384", "181 MB/s", 0.181, "n=128", Some(16_384.0)),
            bar("n=256, m=16384", "87 MB/s", 0.087, "n=256", Some(16_384.0)),
            bar("n=512, m=16384", "34 MB/s", 0.034, "n=512", Some(16_384.0)),
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::SplitDecode,
                kernels: TABLE,
                threads: &[Crew::Count(4), Crew::All],
                ..DECODE
            },
            Sweep {
                measure: Measure::CpuDecode,
                threads: &[Crew::Count(4), Crew::All],
                ..DECODE
            },
        ],
        note: "The multiplication is ours (`table`) in the place of Algorithm 4; the figure's \
               other cards are missing. The CPU inverts by as many threads as multiply, where \
               fewer invert sooner (S1-10)",
    },
    Row {
        id: "S1-13",
        group: Group::S1,
        title: "The loop-based baseline they compare with (Nuclei)",
        bars: &[
            bar(
                "encode, n=128",
                "66.9 MB/s (124 scaled to a GTX 280)",
                0.0669,
                "encode",
                Some(128.0),
            ),
            bar(
                "decode, n=128, m=16384",
                "47 MB/s",
                0.047,
                "decode",
                Some(128.0),
            ),
            bar(
                "decode, n=256, m=16384",
                "26 MB/s",
                0.026,
                "decode",
                Some(256.0),
            ),
            bar(
                "decode, n=512, m=16384",
                "10 MB/s",
                0.010,
                "decode",
                Some(512.0),
            ),
        ],
        axis: Axis::N,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["loop"],
                panel: "encode",
                ..BEST
            },
            Sweep {
                measure: Measure::CpuEncode,
                panel: "encode",
                ..BEST
            },
            Sweep {
                measure: Measure::SplitDecode,
                panel: "decode",
                kernels: &["loop", "table"],
                k: &[16_384],
                ..DECODE
            },
        ],
        note: "Nuclei decodes progressively on the GPU: here its loop stands in S1's split decode, \
               which is another algorithm",
    },
    Row {
        id: "S1-14",
        group: Group::S1,
        title: "Their optimisations one by one: blocks and threads, cached tables, coalescing, \
                unrolling",
        bars: &[Bar {
            what: "n=128",
            paper: "no figures",
            mark: None,
            panel: "n=128",
            x: None,
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["tiled"],
                part: &[CardShare::Quarter, CardShare::Whole],
                k: &[16_384],
                ..SWEEP
            },
            Sweep {
                kernels: &[
                    "tiled-bytes",
                    "tiled-small",
                    "tiled-rolled",
                    "tiled-strided",
                    "tiled-global",
                    "tiled-logs",
                    "tiled",
                ],
                k: &[16_384],
                ..SWEEP
            },
        ],
        note: "tiled with one of them left out: words (bytes), many threads (small), unrolling \
               (rolled), coalescing (strided), the cache (global); tiled-logs has both sides in \
               the log domain beside it, and a quarter of the card stands for few blocks",
    },
    Row {
        id: "S1-15",
        group: Group::S1,
        title: "Inversion on the GPU, which they left for later",
        bars: &[bar(
            "n=512, 4 CPU threads",
            "139 ms",
            139_080.0,
            "",
            Some(512.0),
        )],
        axis: Axis::N,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Invert,
                kernels: &["invert", "invert-shared", "invert-cluster", "invert-global"],
                n: &[128, 256, 512, 1024],
                ..SWEEP
            },
            Sweep {
                measure: Measure::CpuInvert,
                n: &[128, 256, 512, 1024],
                threads: CREWS,
                ..SWEEP
            },
        ],
        note: "one matrix at a time; many at once are in S2-15 and S2-16",
    },
];

const fn bar(
    what: &'static str,
    paper: &'static str,
    mark: f64,
    panel: &'static str,
    x: Option<f64>,
) -> Bar {
    Bar {
        what,
        paper,
        mark: Some(mark),
        panel,
        x,
    }
}

/// Their best: a batch large enough for every kernel.
const BEST: Sweep = Sweep {
    n: N,
    k: &[16_384],
    rows: &[Amount::Count(2048)],
    coefficients: Kind::Dense,
    ..SWEEP
};
const OVER_BATCHES: Sweep = Sweep {
    n: N,
    k: &[16_384],
    rows: FROM_SIXTEEN,
    ..SWEEP
};
const OVER_BLOCKS: Sweep = Sweep {
    n: N,
    k: K,
    ..SWEEP
};
const DECODE: Sweep = Sweep {
    n: N,
    k: K,
    rows: &[Amount::N],
    ..SWEEP
};

const N: &[u16] = &[128, 256, 512];
const K: &[u32] = &[1024, 2048, 4096, 8192, 16_384, 32_768];
const ONE: &[Amount] = &[Amount::Count(1)];
const TWO_BATCHES: &[Amount] = &[Amount::Count(512), Amount::Count(2048)];
const FROM_SIXTEEN: &[Amount] = &[
    Amount::Count(16),
    Amount::Count(32),
    Amount::Count(64),
    Amount::Count(128),
    Amount::Count(256),
    Amount::Count(512),
    Amount::Count(1024),
    Amount::Count(2048),
];
const FROM_ONE: &[Amount] = &[
    Amount::Count(1),
    Amount::Count(4),
    Amount::Count(16),
    Amount::Count(64),
    Amount::Count(256),
    Amount::Count(1024),
    Amount::Count(2048),
];
const CARDS: &[CardShare] = &[CardShare::Quarter, CardShare::Half, CardShare::Whole];
const CREWS: &[Crew] = &[Crew::Count(1), Crew::Count(4), Crew::All];
const TABLE: &[&str] = &["table"];
