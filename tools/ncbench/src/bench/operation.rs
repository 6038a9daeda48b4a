//! The table of measured operations, each with its contenders.
//!
//! A new operation is an entry, and a function that checks and measures it in [`one`] or [`all`]. A
//! new instruction set takes part in every entry that covers all of them; another contender is a
//! line in an entry.

use std::sync::Arc;

use ncs_gf::Kernels;
use ncserverd::bench::clock::Lap;
use ncserverd::bench::engine::Load;
use ncserverd::bench::work::Work;
use ncserverd::device::Threads;

use super::Error;
use super::engine::Engine;
use super::rounds::Runner;

mod all;
mod one;

/// What is measured.
pub(super) struct Operation {
    /// With which names of cases begin.
    pub(super) word: &'static str,
    pub(super) unit: Unit,
    /// What is done, and what of it is inside the timer.
    pub(super) describe: &'static str,
    /// Whether it depends on k. Names of cases have n alone if not.
    has_k: bool,
    /// Whether `ncbench cpu` has it.
    pub(super) is_core: bool,
    /// Who does it, where there are these instruction sets.
    pub(super) contenders: fn(&[Kernels]) -> Vec<Contender>,
}

/// Who does it.
pub(super) struct Contender {
    name: String,
    /// Checks what it makes, and returns what measures it; none if it is wrong.
    pub(super) prepare: Prepare,
}

type Prepare = Box<dyn FnOnce(&Arc<Work>, Threads) -> Result<Option<Checked>, Error>>;

/// A contender that is right.
pub(super) struct Checked {
    pub(super) runner: Runner,
    /// Output of one repetition: bytes where a result is in MB/s, otherwise the number of counted
    /// things.
    pub(super) made: usize,
}

impl Checked {
    /// None if it is not.
    pub(super) fn new(
        is_right: bool,
        made: usize,
        run: impl FnMut(u32) -> Lap + 'static,
    ) -> Option<Self> {
        is_right.then(|| Self {
            runner: Box::new(run),
            made,
        })
    }
}

/// What a result is told in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// 10^6 bytes of payload a second.
    Megabytes,
    /// Microseconds for one.
    Microseconds,
    /// 10^6 rows a second.
    Rows,
}

impl Operation {
    /// `operation/contender/NxK`.
    pub(super) fn name(&self, contender: &Contender, (n, k): (u16, u32)) -> String {
        let (word, who) = (self.word, &contender.name);
        if self.has_k {
            format!("{word}/{who}/{n}x{k}")
        } else {
            format!("{word}/{who}/{n}")
        }
    }
}

pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        word: "rows",
        unit: Unit::Rows,
        describe: "drawing coefficient rows from seeds, one thread; million rows a second",
        has_k: false,
        is_core: false,
        contenders: |_| vec![common("philox", one::draw)],
    },
    Operation {
        word: "pack",
        unit: Unit::Megabytes,
        describe: "bringing a generation into the packed form that the kernels read, one thread; \
                   MB/s of source\ninside: allocating the panel, packing",
        has_k: true,
        is_core: false,
        contenders: |_| vec![common("panel", one::pack)],
    },
    Operation {
        word: "encode",
        unit: Unit::Megabytes,
        describe: "n coded blocks of a packed generation in one call, one thread; MB/s of payload \
                   made\n\
                   inside: drawing rows, multiplying; outside: packing, memory for the payloads",
        has_k: true,
        is_core: true,
        contenders: |kernels| by_one(kernels, one::encode),
    },
    Operation {
        word: "encode-all",
        unit: Unit::Megabytes,
        describe: "the same by all threads, each with a generation of its own; MB/s of payload \
                   made by all together, by the wall\n\
                   clock, and by the processor time of all threads",
        has_k: true,
        is_core: true,
        contenders: |kernels| by_all(kernels, "", all::encode),
    },
    Operation {
        word: "encode-single",
        unit: Unit::Megabytes,
        describe: "one coded block of a packed generation a call, one thread; MB/s of payload \
                   made\n\
                   inside: drawing rows, multiplying; outside: packing, memory for the payload",
        has_k: true,
        is_core: false,
        contenders: |kernels| by_one(kernels, one::encode_single),
    },
    Operation {
        word: "decode",
        unit: Unit::Megabytes,
        describe: "n coded blocks to the source, one thread, coefficients first and payloads at \
                   the end; MB/s of source\n\
                   inside: allocating the decoder, drawing rows, copying payloads in, elimination, \
                   multiplying",
        has_k: true,
        is_core: true,
        contenders: |kernels| by_one(kernels, one::decode),
    },
    Operation {
        word: "decode-all",
        unit: Unit::Megabytes,
        describe: "the same by all threads, each with a generation of its own; MB/s of source by \
                   all together, by the wall clock,\nand by the processor time of all threads",
        has_k: true,
        is_core: true,
        contenders: |kernels| by_all(kernels, "", all::decode),
    },
    Operation {
        word: "decode-last",
        unit: Unit::Microseconds,
        describe: "the last of n coded blocks, in that decoder; microseconds until the source is \
                   there\n\
                   inside: drawing the row, elimination of it, multiplying all payloads; outside: \
                   the n - 1 blocks before it",
        has_k: true,
        is_core: false,
        contenders: |kernels| by_one(kernels, one::decode_last),
    },
    Operation {
        word: "solve-all",
        unit: Unit::Megabytes,
        describe: "n coded blocks of one generation to the source, by all threads together, as the \
                   device decodes where generations\n\
                   are few; MB/s of source by the wall clock, and by the processor time of all \
                   threads\n\
                   inside: starting threads, inversion, packing payloads, multiplying; outside: \
                   drawing rows, memory for the source",
        has_k: true,
        is_core: true,
        contenders: |kernels| by_all(kernels, "", all::solve),
    },
    Operation {
        word: "progressive",
        unit: Unit::Megabytes,
        describe: "n coded blocks to the source, one thread, payloads dragged along; MB/s of \
                   source\n\
                   inside: allocating the decoder, drawing rows, copying payloads in and the \
                   source out, elimination",
        has_k: true,
        is_core: false,
        contenders: |kernels| by_one(kernels, one::progressive),
    },
    Operation {
        word: "progressive-last",
        unit: Unit::Microseconds,
        describe: "the last of n coded blocks, in that decoder; microseconds until every source \
                   block can be read\n\
                   inside: drawing the row, elimination of it and its payload; outside: the n - 1 \
                   blocks before it",
        has_k: true,
        is_core: false,
        contenders: |kernels| by_one(kernels, one::progressive_last),
    },
    Operation {
        word: "useless",
        unit: Unit::Microseconds,
        describe: "a block that brings nothing, to the decoder that multiplies at the end and \
                   lacks one block; microseconds\ninside: drawing the row, elimination of it",
        has_k: true,
        is_core: false,
        contenders: |kernels| by_one(kernels, one::useless),
    },
    Operation {
        word: "progressive-useless",
        unit: Unit::Microseconds,
        describe: "the same to the decoder that drags payloads along",
        has_k: true,
        is_core: false,
        contenders: |kernels| by_one(kernels, one::progressive_useless),
    },
    Operation {
        word: "recode",
        unit: Unit::Megabytes,
        describe: "n new blocks with explicit vectors from n coded blocks held, one thread; MB/s \
                   of payload made\n\
                   inside: drawing weights, vectors, packing and multiplying payloads; outside: \
                   memory for the new blocks",
        has_k: true,
        is_core: true,
        contenders: |kernels| by_one(kernels, one::recode),
    },
    Operation {
        word: "recode-all",
        unit: Unit::Megabytes,
        describe: "the same by all threads, each with a generation of its own; MB/s of payload \
                   made by all together, by the wall\n\
                   clock, and by the processor time of all threads",
        has_k: true,
        is_core: true,
        contenders: |kernels| by_all(kernels, "", all::recode),
    },
    Operation {
        word: "invert",
        unit: Unit::Microseconds,
        describe: "the inverse of an n x n matrix of coefficients, one thread; microseconds\n\
                   inside: allocating, copying the matrix in, elimination, bringing rows into \
                   their order",
        has_k: false,
        is_core: true,
        contenders: |kernels| by_one(kernels, one::invert),
    },
    Operation {
        word: "invert-all",
        unit: Unit::Microseconds,
        describe: "the same by all threads: a matrix each (side-by-side), or one matrix at a time \
                   by all of them (one-matrix);\n\
                   microseconds of the wall clock for each inverse, and of the processor time of \
                   all threads\ninside, for one matrix: starting the threads, too",
        has_k: false,
        is_core: true,
        contenders: |kernels| {
            let side_by_side = by_all(kernels, "-side-by-side", all::invert);
            side_by_side
                .into_iter()
                .chain(by_all(kernels, "-one-matrix", all::invert_together))
                .collect()
        },
    },
    Operation {
        word: "device",
        unit: Unit::Megabytes,
        describe: "n coded blocks of each of up to 4 resident generations in one batch, through \
                   the device's queue and pool of threads;\n\
                   MB/s of payload made by the wall clock, and by the processor time of all \
                   threads together\n\
                   inside: the way to the device's thread and back, drawing rows, multiplying into \
                   the slots; outside: load, slots",
        has_k: true,
        is_core: false,
        contenders: |kernels| by_device(kernels, Load::Generations),
    },
    Operation {
        word: "device-few",
        unit: Unit::Megabytes,
        describe: "8 coded blocks of one resident generation in a batch, the same way: what one \
                   peer alone asks for",
        has_k: true,
        is_core: false,
        contenders: |kernels| by_device(kernels, Load::FewBlocks),
    },
];

/// What is the same on every instruction set.
fn common(name: &str, check: fn(&Arc<Work>) -> Option<Checked>) -> Contender {
    Contender {
        name: name.to_owned(),
        prepare: Box::new(move |work, _| Ok(check(work))),
    }
}

/// One thread on each instruction set.
fn by_one(
    kernels: &[Kernels],
    check: fn(&Arc<Work>, Kernels) -> Option<Checked>,
) -> Vec<Contender> {
    let contender = |&kernels: &Kernels| Contender {
        name: kernels.isa().to_string(),
        prepare: Box::new(move |work, _| Ok(check(work, kernels))),
    };
    kernels.iter().map(contender).collect()
}

/// All threads on each instruction set.
fn by_all(
    kernels: &[Kernels],
    way: &str,
    check: fn(&Arc<Work>, Kernels, usize) -> Option<Checked>,
) -> Vec<Contender> {
    let contender = |&kernels: &Kernels| Contender {
        name: format!("{}{way}", kernels.isa()),
        prepare: Box::new(move |work, threads| Ok(check(work, kernels, threads.count()))),
    };
    kernels.iter().map(contender).collect()
}

/// The device with each of its kernels.
fn by_device(kernels: &[Kernels], load: Load) -> Vec<Contender> {
    let simd = kernels.iter().map(|kernels| Engine::Simd(kernels.isa()));
    let contender = |engine: Engine| Contender {
        name: engine.name().to_owned(),
        prepare: Box::new(move |work, threads| engine.check(work, load, threads)),
    };
    simd.chain([Engine::Table]).map(contender).collect()
}
