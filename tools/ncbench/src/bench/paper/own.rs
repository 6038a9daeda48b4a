//! The papers' common claim on today's hardware, and the figures that this program sets itself.

use super::catalogue::{Amount, Axis, Bar, Cards, Crew, Group, Kind, Row, SWEEP, Sweep};
use super::measure::Measure;

pub(super) const CLAIM: &[Row] = &[
    Row {
        id: "claim-encode",
        group: Group::Claim,
        title: "Encoding over n and k: the GPU's kernels, the GPU to the host, and all cores of \
                that host",
        bars: &[
            Bar {
                what: "GTX 280 : 8-core Mac Pro",
                paper: "4.3",
                mark: None,
                panel: "n=128",
                x: Some(4096.0),
            },
            Bar {
                what: "n=1024",
                paper: "\"in all practical test cases\"",
                mark: None,
                panel: "n=1024",
                x: Some(4096.0),
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                kernels: OURS,
                ..OVER_ALL
            },
            Sweep {
                measure: Measure::ToHost,
                kernels: OURS,
                ..OVER_ALL
            },
            Sweep {
                measure: Measure::CpuEncode,
                generations: &[Amount::Count(4)],
                ..OVER_ALL
            },
        ],
        note: "n coded blocks of each of 64 generations, and of each of 4 on the CPU",
    },
    Row {
        id: "claim-decode",
        group: Group::Claim,
        title: "Decoding over n and k: many generations on the GPU, and a generation a thread on \
                its host",
        bars: &[
            Bar {
                what: "GTX 280 : 8-core Mac Pro",
                paper: "1.3 to 4.2",
                mark: None,
                panel: "n=128",
                x: Some(4096.0),
            },
            Bar {
                what: "n=512",
                paper: "1.3 to 5.3 with 30 segments",
                mark: None,
                panel: "n=512",
                x: Some(4096.0),
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Decode,
                kernels: OURS,
                generations: &[Amount::PerSm(2)],
                ..OVER_ALL
            },
            Sweep {
                measure: Measure::DecodeRaw,
                kernels: OURS,
                generations: &[Amount::PerSm(2)],
                ..OVER_ALL
            },
            Sweep {
                measure: Measure::DecodeToHost,
                kernels: OURS,
                generations: &[Amount::PerSm(2)],
                ..OVER_ALL
            },
            Sweep {
                measure: Measure::Decode,
                kernels: OURS,
                generations: &[Amount::Count(1)],
                panel: "one generation",
                ..OVER_ALL
            },
            Sweep {
                measure: Measure::CpuDecodeMany,
                generations: &[Amount::PerThread(1)],
                ..OVER_ALL
            },
            Sweep {
                measure: Measure::CpuDecode,
                generations: &[Amount::Count(1)],
                panel: "one generation",
                ..OVER_ALL
            },
        ],
        note: "two generations a multiprocessor, and one a thread of the CPU: where each thread \
               works on, the cores make twice as much on another host of this kind (decode, all, \
               above)",
    },
];

pub(super) const FIGURES: &[Row] = &[
    Row {
        id: "figure-kernels",
        group: Group::Figures,
        title: "Every kernel on 128 x 4096: one generation x 8,192 and 16,384 blocks",
        bars: &[Bar {
            what: "table / best without tensor cores / tensor",
            paper: "reach 55 (mark 60) / 100 / 700 GB/s",
            mark: None,
            panel: "n=128",
            x: None,
        }],
        axis: Axis::Rows,
        base: "",
        sweeps: &[
            Sweep {
                kernels: FAST,
                rows: &[Amount::Count(8192), Amount::Count(16_384)],
                ..SWEEP
            },
            Sweep {
                measure: Measure::InTurn,
                kernels: BOTH,
                rows: &[Amount::Count(8192), Amount::Count(16_384)],
                ..SWEEP
            },
            Sweep {
                measure: Measure::CpuEncode,
                rows: &[Amount::Count(8192)],
                ..SWEEP
            },
        ],
        note: "",
    },
    Row {
        id: "figure-ladder",
        group: Group::Figures,
        title: "The papers' ladder and ours on the same work: 128 x 4096, one generation x 8,192 \
                blocks",
        bars: &[Bar {
            what: "loop / table-based-0 to 5",
            paper: "0.133 / 0.098 to 0.294 GB/s on a GTX 280",
            mark: None,
            panel: "",
            x: None,
        }],
        axis: Axis::N,
        base: "",
        sweeps: &[
            Sweep {
                kernels: LADDER,
                rows: &[Amount::Count(8192)],
                ..SWEEP
            },
            Sweep {
                measure: Measure::CpuEncode,
                ..SWEEP
            },
        ],
        note: "",
    },
    Row {
        id: "figure-generations",
        group: Group::Figures,
        title: "n coded blocks of each of many generations in one launch",
        bars: &[Bar {
            what: "64 generations, tensor",
            paper: "reach 650 GB/s",
            mark: None,
            panel: "n=128",
            x: Some(64.0),
        }],
        axis: Axis::Generations,
        base: "",
        sweeps: &[
            Sweep {
                kernels: FAST,
                rows: &[Amount::N],
                generations: MANY,
                ..SWEEP
            },
            Sweep {
                measure: Measure::CpuEncode,
                rows: &[Amount::N],
                generations: &[Amount::Count(1), Amount::Count(16)],
                ..SWEEP
            },
        ],
        note: "",
    },
    Row {
        id: "figure-n",
        group: Group::Figures,
        title: "64 generations x 128 blocks of 4096 over n",
        bars: &[
            Bar {
                what: "n=32, tensor",
                paper: "reach 850 GB/s",
                mark: None,
                panel: "",
                x: Some(32.0),
            },
            Bar {
                what: "n=64, tensor",
                paper: "reach 750 GB/s",
                mark: None,
                panel: "",
                x: Some(64.0),
            },
            Bar {
                what: "n=128, tensor",
                paper: "reach 650 GB/s",
                mark: None,
                panel: "",
                x: Some(128.0),
            },
            Bar {
                what: "n=256, tensor",
                paper: "reach 380 GB/s",
                mark: None,
                panel: "",
                x: Some(256.0),
            },
            Bar {
                what: "n=512, tensor",
                paper: "reach 190 GB/s",
                mark: None,
                panel: "",
                x: Some(512.0),
            },
            Bar {
                what: "n=1024, tensor",
                paper: "reach 100 GB/s",
                mark: None,
                panel: "",
                x: Some(1024.0),
            },
        ],
        axis: Axis::N,
        base: "",
        sweeps: &[
            Sweep {
                kernels: FAST,
                n: ALL_N,
                ..BATCH
            },
            Sweep {
                measure: Measure::InTurn,
                kernels: BOTH,
                n: ALL_N,
                ..BATCH
            },
            Sweep {
                measure: Measure::CpuEncode,
                rows: &[Amount::Count(128)],
                generations: &[Amount::Count(4)],
                n: ALL_N,
                ..SWEEP
            },
        ],
        note: "",
    },
    Row {
        id: "figure-few",
        group: Group::Figures,
        title: "512 generations x few blocks",
        bars: &[Bar {
            what: "8 blocks a generation, tensor",
            paper: "reach 350 GB/s",
            mark: None,
            panel: "n=128",
            x: Some(8.0),
        }],
        axis: Axis::Rows,
        base: "",
        sweeps: &[
            Sweep {
                kernels: BOTH,
                rows: FEW,
                generations: &[Amount::Count(512)],
                ..SWEEP
            },
            Sweep {
                measure: Measure::InTurn,
                kernels: BOTH,
                rows: FEW,
                generations: &[Amount::Count(512)],
                ..SWEEP
            },
        ],
        note: "",
    },
    Row {
        id: "figure-to-host",
        group: Group::Figures,
        title: "Encoding and copying to pinned memory beside the copy alone, 64 generations x 128 \
                blocks",
        bars: &[Bar {
            what: "n=128, k=4096",
            paper: "reach 99.5 % of the copy (tensor), 95 % of copy or kernel (table)",
            mark: None,
            panel: "n=128",
            x: Some(4096.0),
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Copy,
                kernels: &["table"],
                ..HOST
            },
            Sweep {
                measure: Measure::ToHost,
                kernels: FAST,
                ..HOST
            },
            Sweep {
                measure: Measure::Store,
                kernels: BOTH,
                ..HOST
            },
            Sweep {
                measure: Measure::CpuEncode,
                generations: &[Amount::Count(4)],
                ..HOST
            },
        ],
        note: "",
    },
    Row {
        id: "figure-answer",
        group: Group::Figures,
        title: "One request: blocks of one generation of 128 x 4096, launch to bytes on the host, \
                1,000 times",
        bars: &[Bar {
            what: "128 blocks",
            paper: "reach 25 us median, 35 us p99",
            mark: Some(25.0),
            panel: "n=128",
            x: Some(128.0),
        }],
        axis: Axis::Rows,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::AnswerCopy,
                kernels: BOTH,
                ..ANSWER
            },
            Sweep {
                measure: Measure::AnswerStore,
                kernels: BOTH,
                ..ANSWER
            },
            Sweep {
                measure: Measure::AnswerDevice,
                kernels: BOTH,
                ..ANSWER
            },
            Sweep {
                measure: Measure::AnswerTurnaround,
                kernels: BOTH,
                ..ANSWER
            },
        ],
        note: "",
    },
    Row {
        id: "figure-decode-264",
        group: Group::Figures,
        title: "Decoding with 264 generations in flight",
        bars: &[
            Bar {
                what: "k=4096, resident payloads",
                paper: "reach 350 GB/s",
                mark: None,
                panel: "n=128",
                x: Some(4096.0),
            },
            Bar {
                what: "k=16384, resident payloads",
                paper: "reach 480 GB/s",
                mark: None,
                panel: "n=128",
                x: Some(16_384.0),
            },
        ],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Decode,
                kernels: &["tensor", "table"],
                ..DECODE_264
            },
            Sweep {
                measure: Measure::DecodeRaw,
                kernels: &["tensor", "table"],
                ..DECODE_264
            },
        ],
        note: "",
    },
    Row {
        id: "figure-invert",
        group: Group::Figures,
        title: "One inversion on the GPU",
        bars: &[
            Bar {
                what: "n=128",
                paper: "reach 60 us",
                mark: None,
                panel: "",
                x: Some(128.0),
            },
            Bar {
                what: "n=256",
                paper: "reach 250 us",
                mark: None,
                panel: "",
                x: Some(256.0),
            },
            Bar {
                what: "n=512",
                paper: "reach 1,500 us",
                mark: None,
                panel: "",
                x: Some(512.0),
            },
        ],
        axis: Axis::N,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Invert,
                kernels: &["invert", "invert-shared", "invert-cluster", "invert-global"],
                n: &[32, 64, 128, 256, 512, 1024],
                ..SWEEP
            },
            Sweep {
                measure: Measure::CpuInvert,
                n: &[32, 64, 128, 256, 512, 1024],
                ..SWEEP
            },
        ],
        note: "The CPU's 16 threads are not its best: one inverts sooner at n = 128, four at n = \
               256 (S1-10); S1-15 has all three",
    },
    Row {
        id: "figure-crossover",
        group: Group::Figures,
        title: "Inversion of large matrices by one core, all cores and the GPU, and from which N \
                on the GPU is worth it",
        bars: &[Bar {
            what: "crossover",
            paper: "no figure",
            mark: None,
            panel: "crossover",
            x: None,
        }],
        axis: Axis::Order,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::CpuInvert,
                threads: &[Crew::Count(1), Crew::All],
                ..LARGE
            },
            Sweep {
                measure: Measure::InvertWide,
                ..LARGE
            },
            Sweep {
                measure: Measure::Crossover,
                n: &[1024],
                full_n: &[],
                panel: "crossover",
                ..LARGE
            },
        ],
        note: "Of 1, 4 and 16 threads, the best differs with N (S1-10); four are not measured \
               here. What S4-14 asks, at the orders of RaptorQ's dense matrices; the crossover is \
               of whole systems, copies included",
    },
    Row {
        id: "figure-chunks",
        group: Group::Figures,
        title: "Reed-Solomon over whole chunks in the GPU's memory; bytes of the native chunks \
                count",
        bars: &[
            Bar {
                what: "k=4, n=200, chunks of 10 MiB",
                paper: "reach 20.4 GB/s: 1 TB/s of code chunks",
                mark: Some(20.4),
                panel: "k=4, n=200",
                x: Some(10_485_760.0),
            },
            Bar {
                what: "k=128, n=192",
                paper: "the most by tensor cores",
                mark: None,
                panel: "k=128, n=192",
                x: None,
            },
        ],
        axis: Axis::Chunk,
        base: "",
        sweeps: &[
            FOUR_CHUNKS,
            Sweep {
                measure: Measure::ChunksCopy,
                kernels: &["stripes"],
                ..FOUR_CHUNKS
            },
            MANY_CHUNKS,
            Sweep {
                measure: Measure::ChunksCopy,
                kernels: &["stripes"],
                ..MANY_CHUNKS
            },
            Sweep {
                measure: Measure::CpuChunks,
                kernels: &["simd"],
                ..MANY_CHUNKS
            },
        ],
        note: "all cores of the host beside the larger code; S5-11 and S5-12 have them beside the \
               smaller",
    },
    Row {
        id: "figure-prime",
        group: Group::Figures,
        title: "Encoding over GF(q) as a server does it, beside all cores of its host",
        bars: &[
            Bar {
                what: "64 blocks",
                paper: "no figure",
                mark: None,
                panel: "n=128",
                x: Some(64.0),
            },
            Bar {
                what: "1,024 blocks",
                paper: "more than the cores",
                mark: None,
                panel: "n=128",
                x: Some(1024.0),
            },
            Bar {
                what: "8,192 blocks",
                paper: "what the link carries",
                mark: None,
                panel: "n=128",
                x: Some(8192.0),
            },
            Bar {
                what: "8 blocks of each of 100 generations",
                paper: "more than the cores",
                mark: None,
                panel: "100 generations",
                x: Some(8.0),
            },
        ],
        axis: Axis::Rows,
        base: "CPU, 1 thread",
        sweeps: &[
            Sweep {
                measure: Measure::GfqEncodeServed,
                ..WORDS
            },
            Sweep {
                measure: Measure::GfqEncodeThrough,
                ..WORDS
            },
            Sweep {
                measure: Measure::CpuGfqEncode,
                threads: &[Crew::Count(1), Crew::All],
                ..WORDS
            },
            Sweep {
                measure: Measure::GfqEncodeServed,
                ..FEW_WORDS
            },
            Sweep {
                measure: Measure::GfqEncodeThrough,
                ..FEW_WORDS
            },
            Sweep {
                measure: Measure::CpuGfqEncode,
                threads: &[Crew::Count(1), Crew::All],
                ..FEW_WORDS
            },
        ],
        note: "16 KiB a block. A thread makes 32 blocks at a time: of 64 blocks of a generation \
               two threads of the CPU have work. Through the GPU: sources that are not kept and \
               blocks that go to memory that is not pinned, for comparison",
    },
    Row {
        id: "figure-gpus",
        group: Group::Figures,
        title: "Encoding and copying on several GPUs at once beside their copies alone",
        bars: &[Bar {
            what: "two / four GPUs",
            paper: "reach 99 % of the bare copies",
            mark: None,
            panel: "n=128",
            x: Some(4096.0),
        }],
        axis: Axis::K,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::Copy,
                gpus: Cards::Count(2),
                kernels: &["tensor"],
                ..HOST
            },
            Sweep {
                measure: Measure::ToHost,
                gpus: Cards::Count(2),
                kernels: &["tensor"],
                ..HOST
            },
            Sweep {
                measure: Measure::Copy,
                gpus: Cards::Count(4),
                kernels: &["tensor"],
                ..HOST
            },
            Sweep {
                measure: Measure::ToHost,
                gpus: Cards::Count(4),
                kernels: &["tensor"],
                ..HOST
            },
        ],
        note: "",
    },
];

const OVER_ALL: Sweep = Sweep {
    n: ALL_N,
    k: &[1024, 4096, 16_384],
    rows: &[Amount::N],
    generations: &[Amount::Count(64)],
    coefficients: Kind::Dense,
    ..SWEEP
};
/// Blocks of 512 words.
const WORDS: Sweep = Sweep {
    k: &[16_384],
    rows: &[Amount::Count(64), Amount::Count(1024), Amount::Count(8192)],
    ..SWEEP
};
const FEW_WORDS: Sweep = Sweep {
    rows: &[Amount::Count(8)],
    generations: &[Amount::Count(100)],
    panel: "100 generations",
    ..WORDS
};
/// As large as the precode matrix of the largest K that dense matrices serve.
const LARGE: Sweep = Sweep {
    n: &[32, 64, 128, 256, 512, 1024, 2048],
    full_n: &[32, 64, 128, 256, 512, 1024, 1500, 2048, 3000, 4300],
    ..SWEEP
};
const BATCH: Sweep = Sweep {
    rows: &[Amount::Count(128)],
    generations: &[Amount::Count(64)],
    ..SWEEP
};
const HOST: Sweep = Sweep {
    k: &[4096, 16_384],
    ..BATCH
};
const ANSWER: Sweep = Sweep {
    rows: &[Amount::Count(8), Amount::Count(32), Amount::Count(128)],
    ..SWEEP
};
const DECODE_264: Sweep = Sweep {
    k: &[1024, 4096, 16_384],
    rows: &[Amount::N],
    generations: &[Amount::Count(264)],
    ..SWEEP
};

const FOUR_CHUNKS: Sweep = Sweep {
    measure: Measure::Chunks,
    kernels: &["stripes", "tensor"],
    n: &[4],
    rows: &[Amount::Count(196)],
    k: &[1 << 20, 10 << 20],
    ..SWEEP
};
const MANY_CHUNKS: Sweep = Sweep {
    n: &[128],
    rows: &[Amount::Count(64)],
    k: &[1 << 20],
    full_k: &[1 << 20, 10 << 20],
    ..FOUR_CHUNKS
};

const ALL_N: &[u16] = &[32, 64, 128, 256, 512, 1024];
const MANY: &[Amount] = &[
    Amount::Count(1),
    Amount::Count(4),
    Amount::Count(16),
    Amount::Count(64),
    Amount::Count(256),
];
const FEW: &[Amount] = &[
    Amount::Count(1),
    Amount::Count(4),
    Amount::Count(8),
    Amount::Count(16),
    Amount::Count(32),
    Amount::Count(64),
];
const OURS: &[&str] = &["table", "product", "bitsliced", "tensor"];
const BOTH: &[&str] = &["table", "tensor"];
const LADDER: &[&str] = &[
    "product-global",
    "product-ldg",
    "product-texture",
    "logexp-ldg",
    "logexp-texture",
    "single",
    "tiled",
    "loop",
    "table0-global",
    "table0",
    "table1",
    "table2",
    "table3",
    "table4",
    "table4-texture",
    "table5",
    "table5-32",
    "table",
    "product",
    "prmt",
    "bitsliced",
    "tensor",
];
const FAST: &[&str] = &["table", "product", "prmt", "bitsliced", "tensor"];
