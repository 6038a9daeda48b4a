//! Shojania and Li, "Pushing the Envelope: Extreme Network Coding on the GPU" (2009), row by row.
//!
//! No coefficient is zero, as in all their measurements. MB/s are theirs, of 10^6 or of 2^20 bytes:
//! the text has both.

use super::catalogue::{Amount, Axis, Bar, Crew, Group, Kind, Row, SWEEP, Sweep};
use super::measure::Measure;

pub(super) const ROWS: &[Row] = &[
    Row {
        id: "S2-1",
        group: Group::S2,
        title: "Table-based-0: logarithm and exponential tables in GPU memory, then in shared \
                memory",
        bars: &[bar(
            "n=128, tables shared: 26 % below the loop",
            "98 MB/s (derived)",
            0.098,
            "n=128",
            Some(4096.0),
        )],
        axis: Axis::K,
        base: "",
        sweeps: &[Sweep {
            kernels: &["table0-global", "table0", "loop"],
            ..LADDER
        }],
        note: "",
    },
    Row {
        id: "S2-2",
        group: Group::S2,
        title: "Loop-based multiplication, a byte times four (Fig. 4a)",
        bars: &[
            bar(
                "n=128, GTX 280 / 8800 GT",
                "133 / 66 MB/s",
                0.133,
                "n=128",
                Some(4096.0),
            ),
            bar("n=256", "66 / 33.6 MB/s", 0.066, "n=256", Some(4096.0)),
            bar("n=512", "33.6 / 16.8 MB/s", 0.0336, "n=512", Some(4096.0)),
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["loop"],
                n: N,
                ..LADDER
            },
            Sweep {
                measure: Measure::CpuEncode,
                n: N,
                ..LADDER
            },
        ],
        note: "In the field 0x11D; the paper's loop is in 0x11B, which has no record. 4463 million \
               products of a byte and a word a second in the paper: GB/s times n / 4 is the same \
               here",
    },
    Row {
        id: "S2-3",
        group: Group::S2,
        title: "Partition into blocks of 256 threads, each of 4 bytes (Fig. 2); any number of \
                blocks",
        bars: &[Bar {
            what: "n=128",
            paper: "linear with the cards' cores",
            mark: None,
            panel: "n=128",
            x: None,
        }],
        axis: Axis::Rows,
        base: "",
        sweeps: &[Sweep {
            kernels: &["loop"],
            rows: COUNTS,
            ..LADDER_4K
        }],
        note: "Scaling with the cores of a card is not measured. 10 blocks of 4 KiB are the \
               paper's example: 10,240 threads",
    },
    Row {
        id: "S2-4",
        group: Group::S2,
        title: "Decoding one segment block by block, coefficients copied to each multiprocessor \
                (Figs. 3, 4b)",
        bars: &[
            bar(
                "peak, GTX 280 / 8-core Mac Pro",
                "93 / 57 MB/s",
                0.093,
                "n=128",
                None,
            ),
            Bar {
                what: "n=256",
                paper: "in the figure alone",
                mark: None,
                panel: "n=256",
                x: None,
            },
            Bar {
                what: "n=512",
                paper: "in the figure alone",
                mark: None,
                panel: "n=512",
                x: None,
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Progressive,
                kernels: &["progressive"],
                n: N,
                ..DECODE
            },
            Sweep {
                measure: Measure::CpuProgressive,
                n: N,
                threads: &[Crew::Count(1)],
                ..DECODE
            },
            Sweep {
                measure: Measure::CpuDecode,
                n: N,
                ..DECODE
            },
        ],
        note: "A progressive decoder of eight CPU threads (Fig. 4b) is missing: 16 threads here \
               take all blocks at once",
    },
    elsewhere(
        "S2-5",
        "A streaming server: 512 KiB segments on the GPU, 768 kbit/s a peer; 133 MB/s = 1385 peers",
    ),
    Row {
        id: "S2-6",
        group: Group::S2,
        title: "Table-based-1: segment and coefficients in the log domain, made once (Fig. 6)",
        bars: &[
            bar(
                "n=128: 30 % above the loop and more",
                "177 MB/s (derived), 1844 peers",
                0.177,
                "n=128",
                Some(4096.0),
            ),
            Bar {
                what: "n=256",
                paper: "30 % and more",
                mark: None,
                panel: "n=256",
                x: Some(4096.0),
            },
            Bar {
                what: "n=512",
                paper: "30 % and more",
                mark: None,
                panel: "n=512",
                x: Some(4096.0),
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[Sweep {
            kernels: &["table1", "loop"],
            n: N,
            ..LADDER
        }],
        note: "",
    },
    Row {
        id: "S2-7",
        group: Group::S2,
        title: "Video on demand: only n coded blocks of each of many segments",
        bars: &[
            Bar {
                what: "n=128, 16 segments",
                paper: "0.6 % slower than one segment",
                mark: None,
                panel: "n=128",
                x: Some(16.0),
            },
            Bar {
                what: "n=128, 512 segments",
                paper: "0.6 % slower than one segment",
                mark: None,
                panel: "n=128",
                x: Some(512.0),
            },
        ],
        axis: Axis::Generations,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Fresh,
                kernels: &["table1", "table5", "table"],
                ..VOD
            },
            Sweep {
                kernels: &["table1", "table5", "table"],
                ..VOD
            },
            Sweep {
                measure: Measure::CpuEncode,
                generations: VOD_CPU,
                ..VOD
            },
        ],
        note: "The comparison asked for is with one segment of as many blocks, S2-6 and S2-12: \
               there table1 makes 26.3 and table5 18.8 GB/s, so that 512 segments cost table1 14 \
               to 20 % and table5 8 to 19 %. all points but the first make the same number of \
               coded blocks or more: the first is one segment with n blocks",
    },
    Row {
        id: "S2-8",
        group: Group::S2,
        title: "The same log tables on the CPU",
        bars: &[Bar {
            what: "n=128",
            paper: "up to 43 % below loop-based SIMD",
            mark: None,
            panel: "n=128",
            x: Some(4096.0),
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[Sweep {
            measure: Measure::CpuEncode,
            kernels: &["simd", "table"],
            n: N,
            rows: &[Amount::N],
            ..LADDER
        }],
        note: "The tables are scalar code, a byte at a time; beside them stand ours with vector \
               instructions (GFNI), so that the difference is not one of tables alone",
    },
    Row {
        id: "S2-9",
        group: Group::S2,
        title: "Table-based-2: one test of the coefficient in place of four tests of bytes (Fig. \
                7)",
        bars: &[Bar {
            what: "n=128",
            paper: "in the figure alone",
            mark: None,
            panel: "n=128",
            x: Some(4096.0),
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[Sweep {
            kernels: &["table1", "table2"],
            ..LADDER
        }],
        note: "",
    },
    Row {
        id: "S2-10",
        group: Group::S2,
        title: "Table-based-3: zero has the logarithm 0, no branches (Fig. 7)",
        bars: &[bar(
            "n=128",
            "208 MB/s (derived)",
            0.208,
            "n=128",
            Some(4096.0),
        )],
        axis: Axis::K,
        base: "",
        sweeps: &[Sweep {
            kernels: &["table2", "table3"],
            ..LADDER
        }],
        note: "",
    },
    Row {
        id: "S2-11",
        group: Group::S2,
        title: "Table-based-4: the exponential table in texture memory (Fig. 7)",
        bars: &[bar(
            "n=128: 15 % more",
            "239 MB/s (derived)",
            0.239,
            "n=128",
            Some(4096.0),
        )],
        axis: Axis::K,
        base: "",
        sweeps: &[Sweep {
            kernels: &["table3", "table4", "table4-texture"],
            ..LADDER
        }],
        note: "texture objects and read-only loads go through one cache today",
    },
    Row {
        id: "S2-12",
        group: Group::S2,
        title: "Table-based-5: eight copies of the table, a word an entry; and without any bank \
                conflict (Fig. 7)",
        bars: &[
            bar(
                "n=128: 23 % more",
                "293.7 MB/s, 3050 peers",
                0.2937,
                "n=128",
                Some(4096.0),
            ),
            Bar {
                what: "conflict-free, estimated",
                paper: "330 to 340 MB/s",
                mark: Some(0.335),
                panel: "n=128",
                x: Some(4096.0),
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["table4", "table5", "table5-32", "table"],
                ..LADDER
            },
            Sweep {
                measure: Measure::CpuEncode,
                ..LADDER
            },
        ],
        note: "table5-32 answers the estimate: as many copies as make every access free of \
               conflicts; table is this program's own",
    },
    Row {
        id: "S2-13",
        group: Group::S2,
        title: "The same with made-up input in place of loads of source blocks",
        bars: &[Bar {
            what: "n=128",
            paper: "0.5 % faster",
            mark: None,
            panel: "n=128",
            x: Some(4096.0),
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[Sweep {
            kernels: &["table5", "table5-dummy"],
            ..LADDER
        }],
        note: "",
    },
    Row {
        id: "S2-14",
        group: Group::S2,
        title: "The best encoding over n and k (Fig. 8)",
        bars: &[
            bar("n=128, many k", "294 MB/s", 0.294, "n=128", None),
            Bar {
                what: "n=1024",
                paper: "a few tens of MB/s",
                mark: None,
                panel: "n=1024",
                x: None,
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["table5", "table", "tensor"],
                n: N_TO_1024,
                ..LADDER
            },
            Sweep {
                measure: Measure::CpuEncode,
                n: N_TO_1024,
                ..LADDER
            },
        ],
        note: "",
    },
    Row {
        id: "S2-15",
        group: Group::S2,
        title: "Decoding many segments at once, one a multiprocessor: inversion, then \
                multiplication (Fig. 9)",
        bars: &[
            bar("best, n=128", "254 MB/s", 0.254, "rate, n=128", None),
            bar(
                "(128, 16384): 3.6 times one segment",
                "3.6x",
                f64::NAN,
                "rate, n=128",
                Some(16_384.0),
            ),
            Bar {
                what: "inversion's share at k=1024",
                paper: "64 %",
                mark: Some(64.0),
                panel: "share, n=128",
                x: Some(1024.0),
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Decode,
                panel: "rate",
                kernels: OURS,
                n: N,
                generations: ONE_PER_SM,
                ..DECODE
            },
            Sweep {
                measure: Measure::InvertShare,
                panel: "share",
                kernels: OURS,
                n: N,
                generations: ONE_PER_SM,
                ..DECODE
            },
            Sweep {
                measure: Measure::CpuDecodeMany,
                panel: "rate",
                n: N,
                generations: PER_THREAD,
                ..DECODE
            },
        ],
        note: "one generation a multiprocessor: 132 here, 30 in the paper",
    },
    Row {
        id: "S2-16",
        group: Group::S2,
        title: "The same, two segments a multiprocessor",
        bars: &[
            Bar {
                what: "over S2-15",
                paper: "up to 1.4x",
                mark: None,
                panel: "rate, n=128",
                x: Some(1024.0),
            },
            Bar {
                what: "inversion's share at k=1024",
                paper: "48 %",
                mark: Some(48.0),
                panel: "share, n=128",
                x: Some(1024.0),
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Decode,
                panel: "rate",
                kernels: OURS,
                generations: ONE_AND_TWO_PER_SM,
                ..DECODE
            },
            Sweep {
                measure: Measure::InvertShare,
                panel: "share",
                kernels: OURS,
                generations: ONE_AND_TWO_PER_SM,
                ..DECODE
            },
            Sweep {
                measure: Measure::CpuDecodeMany,
                panel: "rate",
                generations: PER_THREAD,
                ..DECODE
            },
        ],
        note: "two generations a multiprocessor: 264 here, 60 in the paper",
    },
    Row {
        id: "S2-17",
        group: Group::S2,
        title: "Decoding many segments on the CPU, a thread each (Fig. 9)",
        bars: &[Bar {
            what: "n=128",
            paper: "8 threads lose by 1.3 to 5.3 at k > 256; drops where 8 segments leave the L2",
            mark: None,
            panel: "n=128",
            x: None,
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::CpuDecodeMany,
                n: N,
                generations: PER_THREAD,
                ..DECODE
            },
            Sweep {
                measure: Measure::CpuDecode,
                n: N,
                ..DECODE
            },
        ],
        note: "",
    },
    Row {
        id: "S2-18",
        group: Group::S2,
        title: "Encoding on the CPU: whole blocks against partitioned blocks (Fig. 10)",
        bars: &[Bar {
            what: "n=128",
            paper: "whole blocks much better at small k, equal at large",
            mark: None,
            panel: "n=128",
            x: None,
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::CpuWhole,
                n: N,
                rows: &[Amount::N],
                ..LADDER
            },
            Sweep {
                measure: Measure::CpuParted,
                n: N,
                rows: &[Amount::N],
                ..LADDER
            },
            Sweep {
                measure: Measure::CpuPartedAtOnce,
                n: N,
                rows: &[Amount::N],
                ..LADDER
            },
            Sweep {
                measure: Measure::CpuWhole,
                ..FEW_BLOCKS
            },
            Sweep {
                measure: Measure::CpuPartedAtOnce,
                ..FEW_BLOCKS
            },
            Sweep {
                measure: Measure::CpuEncode,
                kernels: &["simd", "table"],
                ..FEW_BLOCKS
            },
        ],
        note: "the kernels take four rows at a time where they can; who makes one block at a time \
               leaves that unused, at any k. Of a few blocks the CPU device makes parts, of many \
               whole ones: its series has a queue in it, the others have not",
    },
    Row {
        id: "S2-19",
        group: Group::S2,
        title: "GPU and CPU together",
        bars: &[
            Bar {
                what: "n=128, k=4096",
                paper: "about the sum; GPU = 4.3 of the 8-core CPU",
                mark: None,
                panel: "n=128",
                x: Some(4096.0),
            },
            Bar {
                what: "n=128, k=16384",
                paper: "no figure",
                mark: None,
                panel: "n=128",
                x: Some(16_384.0),
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::ToHost,
                kernels: &["table"],
                ..VOD_64
            },
            Sweep {
                measure: Measure::CpuEncode,
                generations: &[Amount::Count(16)],
                ..VOD_64
            },
            Sweep {
                measure: Measure::Together,
                kernels: &["table"],
                ..VOD_64
            },
        ],
        note: "One round of 0.7 s. At 4096, the paper's k, both together make less than the GPU \
               alone",
    },
    Row {
        id: "S2-20",
        group: Group::S2,
        title: "Progressive decoding: the search for a row's first coefficient by atomicMin",
        bars: &[
            Bar {
                what: "n=128, k=4096",
                paper: "0.6 %",
                mark: None,
                panel: "rate, n=128",
                x: Some(4096.0),
            },
            Bar {
                what: "n=128, k=32768",
                paper: "0.6 %",
                mark: None,
                panel: "rate, n=128",
                x: Some(32_768.0),
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Progressive,
                kernels: &["progressive", "progressive-search"],
                panel: "rate",
                ..DECODE
            },
            Sweep {
                measure: Measure::Invert,
                kernels: STEPS,
                panel: "one inversion",
                ..DECODE_4K
            },
        ],
        note: "With k up to 8 KiB the kernel that searches is slower by 0.15 to 0.31 %. \
               progressive-search is the same kernel without it; of inversions that take one pivot \
               a step, -min finds it so, -ballot by a warp's votes, -serial by one thread",
    },
    Row {
        id: "S2-21",
        group: Group::S2,
        title: "Progressive decoding: the whole coefficient matrix in shared memory",
        bars: &[Bar {
            what: "n=128",
            paper: "0.5 to 3.4 %",
            mark: None,
            panel: "rate, n=128",
            x: None,
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Progressive,
                kernels: &["progressive", "progressive-uncached"],
                panel: "rate",
                n: N,
                ..DECODE
            },
            Sweep {
                measure: Measure::Invert,
                kernels: CACHED,
                panel: "one inversion",
                n: N,
                ..DECODE_4K
            },
        ],
        note: "progressive-uncached is the same kernel without it; so is -global of inversions \
               that take one pivot a step",
    },
    Row {
        id: "S2-22",
        group: Group::S2,
        title: "Reduced rows need no test for dependence: what a dependent block costs",
        bars: &[Bar {
            what: "n=128",
            paper: "no figure",
            mark: None,
            panel: "n=128",
            x: None,
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[Sweep {
            measure: Measure::CpuDependent,
            n: N,
            threads: &[Crew::Count(1)],
            ..DECODE
        }],
        note: "that the left side becomes the identity and the right side the source is checked by \
               every decode of this table",
    },
    Row {
        id: "S2-23",
        group: Group::S2,
        title: "Sparser coefficients",
        bars: &[Bar {
            what: "n=128",
            paper: "\"even higher\", no figure",
            mark: None,
            panel: "n=128",
            x: None,
        }],
        axis: Axis::Weight,
        base: "",
        sweeps: &[
            Sweep {
                kernels: &["table", "table2"],
                ..SPARSE
            },
            Sweep {
                measure: Measure::CpuEncode,
                rows: &[Amount::N],
                ..SPARSE
            },
            Sweep {
                measure: Measure::CpuWhole,
                rows: &[Amount::N],
                ..SPARSE
            },
            Sweep {
                measure: Measure::CpuGather,
                rows: &[Amount::N],
                ..SPARSE
            },
            Sweep {
                measure: Measure::Extra,
                panel: "blocks beyond n",
                n: &[64, 128],
                weights: &[4, 8, 13, 32],
                ..SPARSE
            },
            Sweep {
                measure: Measure::Extra,
                panel: "blocks beyond n",
                n: &[64, 128],
                ..SWEEP
            },
        ],
        note: "13 = ln n + 8 keeps the overhead of dense rows at n=128; blocks beyond n of dense \
               rows, of 0..255, stand at n; the CPU's device takes whole blocks or non-zero \
               coefficients alone by the weight",
    },
    elsewhere(
        "S2-24",
        "Saturating two Gigabit links: 294 MB/s are more than 2 Gbit/s",
    ),
    Row {
        id: "S2-25",
        group: Group::S2,
        title: "Recoding over n received rows, coefficients and payload in one pass",
        bars: &[Bar {
            what: "n=128",
            paper: "no figure; the rate of encoding is expected",
            mark: None,
            panel: "n=128",
            x: None,
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Recode,
                kernels: OURS,
                n: N,
                ..LADDER
            },
            Sweep {
                kernels: OURS,
                n: N,
                ..LADDER
            },
            Sweep {
                measure: Measure::CpuRecode,
                n: N,
                rows: &[Amount::N],
                generations: PER_THREAD,
                ..LADDER
            },
        ],
        note: "",
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
        mark: if mark.is_nan() { None } else { Some(mark) },
        panel,
        x,
    }
}

const fn elsewhere(id: &'static str, title: &'static str) -> Row {
    let note = "answered by the load test (`ncbench swarm`), under \"Many viewers on one host\"";
    Row {
        id,
        group: Group::S2,
        title,
        bars: &[],
        axis: Axis::K,
        base: "",
        sweeps: &[],
        note,
    }
}

const LADDER: Sweep = Sweep {
    k: K,
    coefficients: Kind::NonZero,
    ..SWEEP
};
const LADDER_4K: Sweep = Sweep {
    k: &[4096],
    ..LADDER
};
const DECODE: Sweep = Sweep {
    rows: &[Amount::N],
    ..LADDER
};
const DECODE_4K: Sweep = Sweep {
    k: &[4096],
    ..DECODE
};
const STEPS: &[&str] = &[
    "invert-steps-min",
    "invert-steps-ballot",
    "invert-steps-serial",
    "invert",
];
const CACHED: &[&str] = &["invert-steps-min", "invert-steps-global-min", "invert"];
const VOD: Sweep = Sweep {
    rows: &[Amount::N],
    generations: &[
        Amount::Count(1),
        Amount::Count(16),
        Amount::Count(64),
        Amount::Count(256),
        Amount::Count(512),
    ],
    ..LADDER_4K
};
const VOD_CPU: &[Amount] = &[Amount::Count(1), Amount::Count(16), Amount::Count(64)];
const VOD_64: Sweep = Sweep {
    k: &[4096, 16_384],
    rows: &[Amount::N],
    generations: &[Amount::Count(64)],
    ..LADDER
};
const FEW_BLOCKS: Sweep = Sweep {
    panel: "few blocks",
    rows: &[Amount::Count(1), Amount::Count(8)],
    ..LADDER
};
const SPARSE: Sweep = Sweep {
    coefficients: Kind::Sparse,
    weights: &[4, 8, 13, 32, 64, 128],
    ..SWEEP
};

const N: &[u16] = &[128, 256, 512];
const N_TO_1024: &[u16] = &[128, 256, 512, 1024];
const K: &[u32] = &[128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];
const COUNTS: &[Amount] = &[
    Amount::Count(1),
    Amount::Count(3),
    Amount::Count(10),
    Amount::Count(33),
    Amount::Count(100),
    Amount::Count(1000),
    Amount::Count(8192),
];
const ONE_PER_SM: &[Amount] = &[Amount::PerSm(1)];
const ONE_AND_TWO_PER_SM: &[Amount] = &[Amount::PerSm(1), Amount::PerSm(2)];
const PER_THREAD: &[Amount] = &[Amount::PerThread(1)];
const OURS: &[&str] = &["table", "tensor"];
