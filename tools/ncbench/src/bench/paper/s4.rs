//! Vicente, "RaptorQ decoder using heterogeneous computing on a mobile multi-core platform" (2015),
//! row by row.
//!
//! Its board has four cores of a Snapdragon 800 and an Adreno 330. Here stand its schemes as it
//! writes them (`thesis-1`, `thesis-2`), by one thread and by all, and ours beside them: the same
//! two schemes, and inactivation, which it does not have. What it calls sequential C is the base of
//! every speed-up. On a GPU stand its kernels (`tools/kernels/thesis.cu`), both schemes as we have
//! them (`kernels/wide.cu`), and plans of inactivation decoding replayed (`kernels/replay.cu`).

use super::catalogue::{Amount, Axis, Bar, Crew, Group, Row, SWEEP, Sweep};
use super::measure::Measure;

pub(super) const ROWS: &[Row] = &[
    elsewhere(
        "S4-1",
        "Arithmetic by logarithms and powers; GF(5) and GF(2^3) worked out (Tables 2.1, 2.2)",
        "answered by the tests of `tools/ncbench/src/bench/paper/thesis.rs`, which also have what \
         is slipped there",
    ),
    elsewhere(
        "S4-2",
        "Raptor10 (RFC 5053)",
        "background in the thesis, which measures nothing of it; `cargo bench --bench raptor10` \
         measures ours",
    ),
    Row {
        id: "S4-3",
        group: Group::S4,
        title: "The encoder: intermediate symbols, then 10 % repair symbols (Fig. 2.6)",
        bars: &[Bar {
            what: "K=511, T=1024",
            paper: "no figure",
            mark: None,
            panel: "T=1024",
            x: Some(511.0),
        }],
        axis: Axis::Symbols,
        base: "matrix",
        sweeps: &[Sweep {
            measure: Measure::CpuSymbols,
            kernels: &["matrix", "plan"],
            k: &[1024],
            rows: &[Amount::Percent(10)],
            panel: "T=1024",
            ..ENCODE
        }],
        note: "matrix is C = A^-1 D, as in the thesis, with our kernels; plan is what we do. \
               Symbols are those of another implementation \
               (`crates/ncs-codec/src/raptorq/tests.rs`), beside which `cargo bench --bench \
               raptorq` measures",
    },
    Row {
        id: "S4-4",
        group: Group::S4,
        title: "The first scheme: the precode matrix with the rows of what came is inverted (Figs. \
                2.8, 2.9)",
        bars: &[Bar {
            what: "K=60, 80 % received",
            paper: "inverts 73 x 73 (it is 83 x 83)",
            mark: None,
            panel: "20 % lost",
            x: Some(60.0),
        }],
        axis: Axis::Symbols,
        base: "thesis-1, 1 thread",
        sweeps: &[Sweep {
            kernels: &["thesis-1", "scheme-1"],
            ..EXAMPLE
        }],
        note: "tests ask all decoders for the same bytes of the same symbols, and for more symbols \
               at the same time (`methods_agree`)",
    },
    Row {
        id: "S4-5",
        group: Group::S4,
        title: "The second scheme: matrix-dimensionality reduction (Fig. 2.10, equations 2.6 to \
                2.9)",
        bars: &[Bar {
            what: "K=60, 80 % received",
            paper: "inverts 12 x 12",
            mark: None,
            panel: "20 % lost",
            x: Some(60.0),
        }],
        axis: Axis::Symbols,
        base: "thesis-1, 1 thread",
        sweeps: &[Sweep {
            kernels: &["thesis-1", "thesis-2", "scheme-2", "inactivation"],
            ..EXAMPLE
        }],
        note: "",
    },
    Row {
        id: "S4-6",
        group: Group::S4,
        title: "Multiplication of matrices, one thread an element (Algorithms 1 to 3): R = 10 % of \
                K rows times K symbols",
        bars: &[
            Bar {
                what: "K=101, T=512",
                paper: "no figure",
                mark: None,
                panel: "T=512",
                x: Some(101.0),
            },
            Bar {
                what: "K=511, T=512",
                paper: "no figure",
                mark: None,
                panel: "T=512",
                x: Some(511.0),
            },
        ],
        axis: Axis::Symbols,
        base: "thesis, 1 thread",
        sweeps: &[
            Sweep {
                measure: Measure::CpuProduct,
                kernels: &["thesis", "simd"],
                rows: &[Amount::Percent(10)],
                threads: ONE_AND_ALL,
                panel: "T=512",
                k: &[512],
                ..OF_TABLES
            },
            Sweep {
                measure: Measure::Product,
                ..CARD_PRODUCT
            },
            Sweep {
                measure: Measure::ProductThrough,
                ..CARD_PRODUCT
            },
        ],
        note: "on the CPU elements are cut into as many runs as there are threads. Of work-groups \
               one shape is fixed, and one is the fastest of six at each size: the peaks of the \
               thesis' figures come from the first",
    },
    Row {
        id: "S4-7",
        group: Group::S4,
        title: "Gauss-Jordan as three kernels, with pivot and a copy by the host each step \
                (Algorithms 4 to 10), then on the card alone",
        bars: &[Bar {
            what: "N=400",
            paper: "slower than several threads",
            mark: None,
            panel: "",
            x: Some(400.0),
        }],
        axis: Axis::Order,
        base: "thesis 16x16, GPU",
        sweeps: &[CARD_GAUSS_JORDAN, CARD_INVERT],
        note: "thesis is its three kernels; invert-steps-global the same elimination by one thread \
               block, without the host; invert is ours",
    },
    Row {
        id: "S4-8",
        group: Group::S4,
        title: "Gauss-Jordan by several threads (Algorithms 11 to 13, OpenMP)",
        bars: &[
            Bar {
                what: "N=100",
                paper: "faster than one thread and OpenCL from here on",
                mark: None,
                panel: "",
                x: Some(100.0),
            },
            Bar {
                what: "N=400",
                paper: "in the figure alone",
                mark: None,
                panel: "",
                x: Some(400.0),
            },
        ],
        axis: Axis::Order,
        base: "thesis, 1 thread",
        sweeps: &[Sweep {
            measure: Measure::CpuGaussJordan,
            kernels: &["thesis"],
            threads: ONE_AND_ALL,
            ..INVERT
        }],
        note: "threads meet behind every loop, as at the end of a parallel region",
    },
    Row {
        id: "S4-9",
        group: Group::S4,
        title: "Decoding time of both schemes, one symbol missing (Figs. 5.1 to 5.9)",
        bars: &[
            Bar {
                what: "T=4, K=511",
                paper: "second scheme faster everywhere",
                mark: None,
                panel: "1 lost, T=4",
                x: Some(511.0),
            },
            Bar {
                what: "T=64, K=511",
                paper: "second scheme faster everywhere",
                mark: None,
                panel: "1 lost, T=64",
                x: Some(511.0),
            },
            Bar {
                what: "T=1024, K=511",
                paper: "second scheme faster everywhere",
                mark: None,
                panel: "1 lost, T=1024",
                x: Some(511.0),
            },
            Bar {
                what: "T=1024, K=2005",
                paper: "second scheme faster everywhere",
                mark: None,
                panel: "1 lost, T=1024",
                x: Some(2005.0),
            },
        ],
        axis: Axis::Symbols,
        base: "scheme-1, 1 thread",
        sweeps: &[
            Sweep {
                kernels: &["thesis-1"],
                full_k: &[4, 512, 1024],
                ..ONE_LOST
            },
            Sweep {
                kernels: &["thesis-2", "scheme-1", "scheme-2", "inactivation"],
                ..ONE_LOST
            },
        ],
        note: "the first scheme's time hardly depends on T: it inverts",
    },
    Row {
        id: "S4-10",
        group: Group::S4,
        title: "Decoding time of the second scheme, 1, 10 and 20 % lost, T = 512 and 1024 (Figs. \
                5.10, 5.11)",
        bars: &[
            Bar {
                what: "20 % lost, T=512, K=101",
                paper: "in the figure alone",
                mark: None,
                panel: "20 % lost, T=512",
                x: Some(101.0),
            },
            Bar {
                what: "20 % lost, T=1024, K=101",
                paper: "in the figure alone",
                mark: None,
                panel: "20 % lost, T=1024",
                x: Some(101.0),
            },
        ],
        axis: Axis::Symbols,
        base: "thesis-2, 1 thread",
        sweeps: &[
            Sweep {
                rows: LOST_1,
                panel: "1 % lost",
                ..LOSSES
            },
            Sweep {
                rows: LOST_10,
                panel: "10 % lost",
                ..LOSSES
            },
            Sweep {
                rows: LOST_20,
                panel: "20 % lost",
                ..LOSSES
            },
        ],
        note: "of 10 symbols one is lost where the thesis has none",
    },
    speed_up(
        "S4-11",
        "Speed-up over sequential C, T = 512, of one block (Table 5.2: OpenCL at K = 10, 101, 511, \
         802, 1002, 1502, 1979) and of 256 in flight; here K = 511",
        &[
            at(
                "one block, 1 % lost",
                "K=511: 5.9x; all seven: -, 5.3x, 5.9x, 5.6x, 6.1x, 7.3x, 7.3x",
                511.0,
            ),
            at(
                "one block, 10 % lost",
                "K=511: 5.8x; all seven: 14.2x, 11.4x, 5.8x, 7.7x, 8.3x, 8.0x, 8.9x",
                511.0,
            ),
            at(
                "one block, 20 % lost",
                "K=511: 7.0x; all seven: 32.3x, 14.6x, 7.0x, 8.0x, 8.2x, 8.1x, 8.6x",
                511.0,
            ),
            at(
                "256 blocks, 1 % lost",
                "no figure: one block at a time",
                511.0,
            ),
            at(
                "256 blocks, 10 % lost",
                "no figure: one block at a time",
                511.0,
            ),
            at(
                "256 blocks, 20 % lost",
                "no figure: one block at a time",
                511.0,
            ),
        ],
        &SPEED_UP_512,
    ),
    speed_up(
        "S4-12",
        "Speed-up over sequential C, T = 1024, of one block (Table 5.3: OpenCL at the same K) and \
         of 256 in flight; here K = 511",
        &[
            at(
                "one block, 1 % lost",
                "K=511: 11.9x; all seven: -, 10.0x, 11.9x, 10.0x, 9.1x, 9.5x, 9.5x",
                511.0,
            ),
            at(
                "one block, 10 % lost",
                "K=511: 12.3x; all seven: 24.1x, 22.8x, 12.3x, 14.4x, 12.8x, 11.4x, 11.4x",
                511.0,
            ),
            at(
                "one block, 20 % lost",
                "K=511: 17.2x; all seven: 51.8x, 34.0x, 17.2x, 15.4x, 13.3x, 12.1x, 11.8x",
                511.0,
            ),
            at(
                "256 blocks, 1 % lost",
                "no figure: one block at a time",
                511.0,
            ),
            at(
                "256 blocks, 10 % lost",
                "no figure: one block at a time",
                511.0,
            ),
            at(
                "256 blocks, 20 % lost",
                "no figure: one block at a time",
                511.0,
            ),
        ],
        &SPEED_UP_1024,
    ),
    Row {
        id: "S4-13",
        group: Group::S4,
        title: "Power and energy of decoding, T = 1024 (Tables 5.4, 5.5)",
        bars: &[
            Bar {
                what: "most power at once, 20 % lost, K=511",
                paper: "1.5 W in C, 1.4 W in OpenCL",
                mark: None,
                panel: "power, 20 % lost",
                x: Some(511.0),
            },
            Bar {
                what: "energy of a block, 20 % lost, K=511",
                paper: "less in OpenCL, no figure",
                mark: None,
                panel: "energy, 20 % lost",
                x: Some(511.0),
            },
            at(
                "energy of a block, 256 blocks, 20 % lost",
                "no figure: one block at a time",
                511.0,
            ),
        ],
        axis: Axis::Symbols,
        base: "",
        sweeps: &[
            Sweep {
                measure: Measure::CpuPower,
                rows: LOST_1,
                panel: "power, 1 % lost",
                ..ENERGY
            },
            Sweep {
                measure: Measure::CpuPower,
                rows: LOST_10,
                panel: "power, 10 % lost",
                ..ENERGY
            },
            Sweep {
                measure: Measure::CpuPower,
                rows: LOST_20,
                panel: "power, 20 % lost",
                ..ENERGY
            },
            Sweep {
                measure: Measure::CpuEnergy,
                rows: LOST_1,
                panel: "energy, 1 % lost",
                ..ENERGY
            },
            Sweep {
                measure: Measure::CpuEnergy,
                rows: LOST_10,
                panel: "energy, 10 % lost",
                ..ENERGY
            },
            Sweep {
                measure: Measure::CpuEnergy,
                rows: LOST_20,
                panel: "energy, 20 % lost",
                ..ENERGY
            },
            Sweep {
                measure: Measure::CpuPower,
                rows: LOST_1,
                panel: "power, 256 blocks, 1 % lost",
                ..ENERGY_MANY
            },
            Sweep {
                measure: Measure::CpuPower,
                rows: LOST_10,
                panel: "power, 256 blocks, 10 % lost",
                ..ENERGY_MANY
            },
            Sweep {
                measure: Measure::CpuPower,
                rows: LOST_20,
                panel: "power, 256 blocks, 20 % lost",
                ..ENERGY_MANY
            },
            Sweep {
                measure: Measure::CpuEnergy,
                rows: LOST_1,
                panel: "energy of a block, 256 blocks, 1 % lost",
                ..ENERGY_MANY
            },
            Sweep {
                measure: Measure::CpuEnergy,
                rows: LOST_10,
                panel: "energy of a block, 256 blocks, 10 % lost",
                ..ENERGY_MANY
            },
            Sweep {
                measure: Measure::CpuEnergy,
                rows: LOST_20,
                panel: "energy of a block, 256 blocks, 20 % lost",
                ..ENERGY_MANY
            },
            Sweep {
                measure: Measure::ReplayPower,
                rows: LOST_1,
                panel: "power, 256 blocks, 1 % lost",
                ..ENERGY_CARD
            },
            Sweep {
                measure: Measure::ReplayPower,
                rows: LOST_10,
                panel: "power, 256 blocks, 10 % lost",
                ..ENERGY_CARD
            },
            Sweep {
                measure: Measure::ReplayPower,
                rows: LOST_20,
                panel: "power, 256 blocks, 20 % lost",
                ..ENERGY_CARD
            },
            Sweep {
                measure: Measure::ReplayEnergy,
                rows: LOST_1,
                panel: "energy of a block, 256 blocks, 1 % lost",
                ..ENERGY_CARD
            },
            Sweep {
                measure: Measure::ReplayEnergy,
                rows: LOST_10,
                panel: "energy of a block, 256 blocks, 10 % lost",
                ..ENERGY_CARD
            },
            Sweep {
                measure: Measure::ReplayEnergy,
                rows: LOST_20,
                panel: "energy of a block, 256 blocks, 20 % lost",
                ..ENERGY_CARD
            },
        ],
        note: "the packages are all of the processor, the card is all of it: each with what it \
               takes when nothing runs",
    },
    Row {
        id: "S4-14",
        group: Group::S4,
        title: "Inversion time over N (Fig. 5.12), and from which N on several threads are worth \
                it",
        bars: &[
            Bar {
                what: "N=50",
                paper: "in the figure alone",
                mark: None,
                panel: "",
                x: Some(50.0),
            },
            Bar {
                what: "N=100",
                paper: "OpenMP fastest from here on",
                mark: None,
                panel: "",
                x: Some(100.0),
            },
            Bar {
                what: "N=400",
                paper: "OpenMP fastest",
                mark: None,
                panel: "",
                x: Some(400.0),
            },
        ],
        axis: Axis::Order,
        base: "thesis, 1 thread",
        sweeps: &[
            Sweep {
                measure: Measure::CpuGaussJordan,
                kernels: &["thesis"],
                threads: ONE_AND_ALL,
                ..INVERT
            },
            Sweep {
                measure: Measure::CpuInvert,
                threads: ONE_AND_ALL,
                ..INVERT
            },
            CARD_GAUSS_JORDAN,
            CARD_INVERT,
            Sweep {
                measure: Measure::InvertWide,
                threads: SWEEP.threads,
                ..INVERT
            },
        ],
        note: "thesis is its Gauss-Jordan over [A|I], byte by byte; CPU is ours, in place. Four \
               threads, which S1-10 has, are not measured here. figure-crossover has larger N, and \
               from which on a GPU is worth it",
    },
    Row {
        id: "S4-15",
        group: Group::S4,
        title: "Construction of the precode matrix (Fig. 5.13)",
        bars: &[
            Bar {
                what: "K=511",
                paper: "OpenCL faster than C",
                mark: None,
                panel: "",
                x: Some(511.0),
            },
            Bar {
                what: "K=2005",
                paper: "OpenCL faster than C",
                mark: None,
                panel: "",
                x: Some(2005.0),
            },
        ],
        axis: Axis::Symbols,
        base: "thesis, 1 thread",
        sweeps: &[
            Sweep {
                measure: Measure::CpuPrecode,
                kernels: &["thesis"],
                threads: ONE_AND_ALL,
                ..PRECODE
            },
            Sweep {
                measure: Measure::CpuPrecode,
                kernels: &["columns", "plan", "inverse"],
                ..PRECODE
            },
        ],
        note: "made once for a K': a server keeps the plan, who decodes by the second scheme the \
               inverse",
    },
    elsewhere(
        "S4-16",
        "The claim: decoding 5.3 to 51.8 times as fast",
        "answered by S4-11 and S4-12",
    ),
];

const fn at(panel: &'static str, paper: &'static str, x: f64) -> Bar {
    Bar {
        what: panel,
        paper,
        mark: None,
        panel,
        x: Some(x),
    }
}

const fn elsewhere(id: &'static str, title: &'static str, note: &'static str) -> Row {
    Row {
        id,
        group: Group::S4,
        title,
        bars: &[],
        axis: Axis::Symbols,
        base: "",
        sweeps: &[],
        note,
    }
}

const fn speed_up(
    id: &'static str,
    title: &'static str,
    bars: &'static [Bar],
    sweeps: &'static [Sweep],
) -> Row {
    let note = "of 10 symbols one is lost where the thesis has none. Scalar, vector instructions, \
                all cores and the GPU are ours; the thesis' OpenCL decoder as a whole is not \
                built. `replayed` has the plans of the losses before the timer begins, and \
                scheme-1 and scheme-2 on the GPU or through it have their matrices, so they are \
                compared with nobody that makes them inside";
    Row {
        id,
        group: Group::S4,
        title,
        bars,
        axis: Axis::Symbols,
        base: "thesis-2, 1 thread",
        sweeps,
        note,
    }
}

const BLOCKS: Sweep = Sweep {
    measure: Measure::CpuBlocks,
    rows: &[Amount::Count(1)],
    threads: &[Crew::Count(1)],
    full_n: K_FULL,
    ..SWEEP
};
const EXAMPLE: Sweep = Sweep {
    n: &[60],
    full_n: &[60],
    k: &[512],
    rows: LOST_20,
    panel: "20 % lost",
    ..BLOCKS
};
const ENCODE: Sweep = Sweep {
    n: &[10, 101, 511, 2005],
    ..BLOCKS
};
/// The sizes of the thesis' tables.
const OF_TABLES: Sweep = Sweep {
    n: &[10, 101, 511],
    full_n: &[10, 101, 511, 802, 1002, 1502, 1979],
    ..BLOCKS
};
const ONE_LOST: Sweep = Sweep {
    n: &[10, 101, 511, 2005],
    k: &[4, 64, 1024],
    full_k: &[4, 8, 16, 32, 64, 128, 256, 512, 1024],
    panel: "1 lost",
    ..BLOCKS
};
const LOSSES: Sweep = Sweep {
    kernels: &["thesis-2", "scheme-2", "inactivation"],
    n: &[10, 101],
    k: &[512, 1024],
    threads: ONE_AND_ALL,
    ..BLOCKS
};
const ENERGY: Sweep = Sweep {
    kernels: &["thesis-2", "scheme-2", "inactivation"],
    k: &[1024],
    threads: ONE_AND_ALL,
    ..OF_TABLES
};
const ENERGY_MANY: Sweep = Sweep {
    kernels: &["scheme-2", "inactivation"],
    generations: MANY,
    threads: &[Crew::All],
    ..ENERGY
};
const ENERGY_CARD: Sweep = Sweep {
    kernels: &[],
    threads: SWEEP.threads,
    ..ENERGY_MANY
};
const INVERT: Sweep = Sweep {
    n: &[10, 50, 100, 200, 400],
    full_n: &[
        10, 25, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1000, 1500, 2000,
    ],
    threads: ONE_AND_ALL,
    ..SWEEP
};
/// On a GPU.
const CARD_PRODUCT: Sweep = Sweep {
    kernels: &["thesis 16x16", "thesis"],
    rows: LOST_10,
    panel: "T=512",
    k: &[512],
    ..OF_TABLES
};
const CARD_GAUSS_JORDAN: Sweep = Sweep {
    measure: Measure::GaussJordan,
    kernels: &["thesis 16x16", "thesis"],
    threads: SWEEP.threads,
    ..INVERT
};
const CARD_INVERT: Sweep = Sweep {
    measure: Measure::Invert,
    kernels: &["invert-steps-global", "invert"],
    n: &[10, 50, 100, 200, 400],
    full_n: &[10, 25, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1000],
    ..SWEEP
};
const PRECODE: Sweep = Sweep {
    n: &[10, 101, 511, 2005],
    ..BLOCKS
};

const SPEED_UP_512: [Sweep; 36] = speed_ups(&[512]);
const SPEED_UP_1024: [Sweep; 36] = speed_ups(&[1024]);

/// For each loss: sequential C, our scalar code, with vector instructions, and all cores; of one
/// block, then of many.
const fn speed_ups(k: &'static [u32]) -> [Sweep; 36] {
    let one = Sweep {
        kernels: SOLO,
        k,
        ..OF_TABLES
    };
    let all = Sweep {
        kernels: TOGETHER,
        threads: &[Crew::All],
        ..one
    };
    let many_one = Sweep {
        kernels: TEAM,
        generations: MANY,
        ..one
    };
    let many_all = Sweep {
        kernels: TOGETHER,
        generations: MANY,
        threads: &[Crew::All],
        ..one
    };
    let card = Sweep {
        measure: Measure::Replay,
        kernels: &[],
        ..one
    };
    let through = Sweep {
        measure: Measure::ReplayThrough,
        ..card
    };
    let (many_card, many_through) = (
        Sweep {
            generations: MANY,
            ..card
        },
        Sweep {
            generations: MANY,
            ..through
        },
    );
    let many_whole = Sweep {
        measure: Measure::ReplayWhole,
        threads: &[Crew::All],
        ..many_card
    };
    let dense = Sweep {
        measure: Measure::Systems,
        kernels: DENSE,
        ..one
    };
    let dense_whole = Sweep {
        measure: Measure::SystemsWhole,
        ..dense
    };
    let many_dense = Sweep {
        generations: MANY,
        ..dense
    };
    let many_dense_through = Sweep {
        measure: Measure::SystemsThrough,
        ..many_dense
    };
    [
        Sweep {
            rows: LOST_1,
            panel: "one block, 1 % lost",
            ..card
        },
        Sweep {
            rows: LOST_10,
            panel: "one block, 10 % lost",
            ..card
        },
        Sweep {
            rows: LOST_20,
            panel: "one block, 20 % lost",
            ..card
        },
        Sweep {
            rows: LOST_1,
            panel: "256 blocks, 1 % lost",
            ..many_card
        },
        Sweep {
            rows: LOST_10,
            panel: "256 blocks, 10 % lost",
            ..many_card
        },
        Sweep {
            rows: LOST_20,
            panel: "256 blocks, 20 % lost",
            ..many_card
        },
        Sweep {
            rows: LOST_1,
            panel: "256 blocks, 1 % lost",
            ..many_through
        },
        Sweep {
            rows: LOST_10,
            panel: "256 blocks, 10 % lost",
            ..many_through
        },
        Sweep {
            rows: LOST_20,
            panel: "256 blocks, 20 % lost",
            ..many_through
        },
        Sweep {
            rows: LOST_1,
            panel: "256 blocks, 1 % lost",
            ..many_whole
        },
        Sweep {
            rows: LOST_10,
            panel: "256 blocks, 10 % lost",
            ..many_whole
        },
        Sweep {
            rows: LOST_20,
            panel: "256 blocks, 20 % lost",
            ..many_whole
        },
        Sweep {
            rows: LOST_1,
            panel: "one block, 1 % lost",
            ..dense
        },
        Sweep {
            rows: LOST_10,
            panel: "one block, 10 % lost",
            ..dense
        },
        Sweep {
            rows: LOST_20,
            panel: "one block, 20 % lost",
            ..dense
        },
        Sweep {
            rows: LOST_1,
            panel: "one block, 1 % lost",
            ..dense_whole
        },
        Sweep {
            rows: LOST_10,
            panel: "one block, 10 % lost",
            ..dense_whole
        },
        Sweep {
            rows: LOST_20,
            panel: "one block, 20 % lost",
            ..dense_whole
        },
        Sweep {
            rows: LOST_1,
            panel: "256 blocks, 1 % lost",
            ..many_dense
        },
        Sweep {
            rows: LOST_10,
            panel: "256 blocks, 10 % lost",
            ..many_dense
        },
        Sweep {
            rows: LOST_20,
            panel: "256 blocks, 20 % lost",
            ..many_dense
        },
        Sweep {
            rows: LOST_1,
            panel: "256 blocks, 1 % lost",
            ..many_dense_through
        },
        Sweep {
            rows: LOST_10,
            panel: "256 blocks, 10 % lost",
            ..many_dense_through
        },
        Sweep {
            rows: LOST_20,
            panel: "256 blocks, 20 % lost",
            ..many_dense_through
        },
        Sweep {
            rows: LOST_1,
            panel: "one block, 1 % lost",
            ..one
        },
        Sweep {
            rows: LOST_1,
            panel: "one block, 1 % lost",
            ..all
        },
        Sweep {
            rows: LOST_10,
            panel: "one block, 10 % lost",
            ..one
        },
        Sweep {
            rows: LOST_10,
            panel: "one block, 10 % lost",
            ..all
        },
        Sweep {
            rows: LOST_20,
            panel: "one block, 20 % lost",
            ..one
        },
        Sweep {
            rows: LOST_20,
            panel: "one block, 20 % lost",
            ..all
        },
        Sweep {
            rows: LOST_1,
            panel: "256 blocks, 1 % lost",
            ..many_one
        },
        Sweep {
            rows: LOST_1,
            panel: "256 blocks, 1 % lost",
            ..many_all
        },
        Sweep {
            rows: LOST_10,
            panel: "256 blocks, 10 % lost",
            ..many_one
        },
        Sweep {
            rows: LOST_10,
            panel: "256 blocks, 10 % lost",
            ..many_all
        },
        Sweep {
            rows: LOST_20,
            panel: "256 blocks, 20 % lost",
            ..many_one
        },
        Sweep {
            rows: LOST_20,
            panel: "256 blocks, 20 % lost",
            ..many_all
        },
    ]
}

const SOLO: &[&str] = &[
    "thesis-2",
    "scheme-1",
    "scheme-2-scalar",
    "scheme-2",
    "inactivation-scalar",
    "inactivation",
];
const TOGETHER: &[&str] = &["thesis-2", "scheme-1", "scheme-2", "inactivation"];
const DENSE: &[&str] = &["scheme-1", "scheme-2"];
const TEAM: &[&str] = &["thesis-2", "scheme-2", "inactivation"];
const MANY: &[Amount] = &[Amount::Count(256)];
const LOST_1: &[Amount] = &[Amount::Percent(1)];
const LOST_10: &[Amount] = &[Amount::Percent(10)];
const LOST_20: &[Amount] = &[Amount::Percent(20)];
const ONE_AND_ALL: &[Crew] = &[Crew::Count(1), Crew::All];
const K_FULL: &[u16] = &[10, 55, 101, 248, 511, 802, 1002, 1502, 1979, 2005];
