//! What can be measured, by name, and what of it is inside the timer.

use nccodec::ChunkPlan;
use ncs_codec::gfq;
use ncs_gf::panel;
use ncs_gf::simd::{Kernels, Line};

/// One way to do one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Measure {
    Multiply,
    InTurn,
    Fresh,
    ToHost,
    Store,
    Copy,
    RowRate,
    RowShare,
    AnswerCopy,
    AnswerStore,
    AnswerDevice,
    AnswerTurnaround,
    Recode,
    Invert,
    Decode,
    DecodeRaw,
    DecodeToHost,
    InvertShare,
    Progressive,
    SplitDecode,
    SplitInverse,
    SplitMultiply,
    SplitOverhead,
    Together,
    CpuEncode,
    CpuWhole,
    CpuParted,
    CpuPartedAtOnce,
    CpuGather,
    CpuInvert,
    CpuDecode,
    CpuDecodeMany,
    CpuProgressive,
    CpuDependent,
    CpuRecode,
    Extra,
    /// RaptorQ blocks, decoded.
    CpuBlocks,
    /// The same, told in energy.
    CpuEnergy,
    CpuPower,
    /// RaptorQ blocks, encoded.
    CpuSymbols,
    CpuProduct,
    CpuGaussJordan,
    CpuPrecode,
    /// Code chunks of native ones.
    CpuChunks,
    /// Native chunks of others.
    CpuRebuild,
    Stored,
    /// The same on a card, in its memory.
    Chunks,
    Rebuild,
    ChunksCopy,
    /// From the host's memory through the card and back, on as many streams as the case has
    /// generations.
    ChunksThrough,
    RebuildThrough,
    ChunksThroughCopy,
    /// Code chunks as files are coded: by all cores; by a GPU, or by it and them.
    CpuWorkItems,
    WorkItems,
    /// Plans of RaptorQ, replayed on a card.
    Replay,
    ReplayThrough,
    ReplayWhole,
    /// From the host's memory and back, told in energy.
    ReplayEnergy,
    ReplayPower,
    /// The thesis' kernels.
    Product,
    ProductThrough,
    GaussJordan,
    /// RaptorQ blocks by dense systems on a card, by the thesis' schemes.
    Systems,
    SystemsThrough,
    SystemsWhole,
    /// A matrix by all of a card.
    InvertWide,
    /// From which order on a card solves dense systems sooner.
    Crossover,
    /// Blocks over GF(q) and their hashes.
    CpuGfqEncode,
    CpuGfqCombine,
    CpuGfqInvert,
    CpuGfqDecode,
    CpuGfqHash,
    CpuGfqCheck,
    GfqEncode,
    GfqCombine,
    GfqInvert,
    /// As the paper does it.
    GfqSteps,
    GfqDecode,
    /// Likewise, in as many thread blocks as the case has generations.
    GfqPowers,
    GfqHash,
    GfqCheck,
    GfqLadder,
    /// From the host's memory through the card and back.
    GfqEncodeThrough,
    GfqDecodeThrough,
    GfqHashThrough,
    GfqCheckThrough,
    /// As a server does it.
    GfqEncodeServed,
}

/// What a measure's n, k, rows and generations are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Generations of n blocks of k bytes, and coded blocks.
    Generations,
    /// Blocks of n source symbols of k bytes of which `rows` are lost.
    Symbols,
    /// n native chunks of k bytes, and `rows` code chunks.
    Chunks,
    /// Square matrices of n rows.
    Matrices,
    /// Generations of n blocks of k bytes over GF(q), and `rows` blocks that are coded, hashed or
    /// checked.
    Gfq,
}

/// What a value is told in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// 10^9 bytes of payload a second.
    Gigabytes,
    /// Microseconds for one.
    Microseconds,
    /// 10^9 coefficients a second.
    Coefficients,
    Percent,
    /// Blocks of a generation.
    Blocks,
    /// For a block.
    Millijoules,
    Watts,
    /// That are stored for a byte of the file.
    Bytes,
    /// Of a square matrix.
    Rows,
}

impl Unit {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Gigabytes => "GB/s",
            Self::Microseconds => "us",
            Self::Coefficients => "10^9 coefficients/s",
            Self::Percent => "%",
            Self::Blocks => "blocks",
            Self::Millijoules => "mJ",
            Self::Watts => "W",
            Self::Bytes => "bytes stored for a byte",
            Self::Rows => "rows",
        }
    }
}

impl Measure {
    pub(super) const fn unit(self) -> Unit {
        match self {
            Self::RowRate => Unit::Coefficients,
            Self::RowShare | Self::InvertShare => Unit::Percent,
            Self::AnswerCopy
            | Self::AnswerStore
            | Self::AnswerDevice
            | Self::AnswerTurnaround
            | Self::Invert
            | Self::CpuInvert
            | Self::CpuDependent => Unit::Microseconds,
            Self::SplitInverse | Self::SplitMultiply | Self::SplitOverhead => Unit::Microseconds,
            Self::CpuBlocks | Self::CpuProduct | Self::CpuGaussJordan | Self::CpuPrecode => {
                Unit::Microseconds
            }
            Self::Replay | Self::ReplayThrough | Self::ReplayWhole => Unit::Microseconds,
            Self::Product | Self::ProductThrough | Self::GaussJordan => Unit::Microseconds,
            Self::Systems | Self::SystemsThrough | Self::SystemsWhole | Self::InvertWide => {
                Unit::Microseconds
            }
            Self::CpuGfqInvert | Self::GfqInvert | Self::GfqSteps | Self::GfqLadder => {
                Unit::Microseconds
            }
            Self::Crossover => Unit::Rows,
            Self::CpuEnergy | Self::ReplayEnergy => Unit::Millijoules,
            Self::CpuPower | Self::ReplayPower => Unit::Watts,
            Self::Stored => Unit::Bytes,
            Self::Extra => Unit::Blocks,
            _ => Unit::Gigabytes,
        }
    }

    pub(super) const fn family(self) -> Family {
        match self {
            Self::CpuBlocks
            | Self::CpuEnergy
            | Self::CpuPower
            | Self::CpuSymbols
            | Self::CpuPrecode => Family::Symbols,
            Self::Replay
            | Self::ReplayThrough
            | Self::ReplayWhole
            | Self::ReplayEnergy
            | Self::ReplayPower => Family::Symbols,
            Self::Systems | Self::SystemsThrough | Self::SystemsWhole => Family::Symbols,
            Self::CpuChunks | Self::CpuRebuild | Self::Stored => Family::Chunks,
            Self::Chunks | Self::ChunksCopy | Self::ChunksThrough | Self::ChunksThroughCopy => {
                Family::Chunks
            }
            Self::Rebuild | Self::RebuildThrough | Self::CpuWorkItems | Self::WorkItems => {
                Family::Chunks
            }
            Self::CpuInvert | Self::CpuGaussJordan | Self::CpuProduct => Family::Matrices,
            Self::Product
            | Self::ProductThrough
            | Self::GaussJordan
            | Self::InvertWide
            | Self::Crossover => Family::Matrices,
            Self::CpuGfqEncode | Self::CpuGfqCombine | Self::CpuGfqInvert | Self::CpuGfqDecode => {
                Family::Gfq
            }
            Self::CpuGfqHash | Self::CpuGfqCheck | Self::GfqEncode | Self::GfqCombine => {
                Family::Gfq
            }
            Self::GfqInvert | Self::GfqSteps | Self::GfqDecode | Self::GfqPowers => Family::Gfq,
            Self::GfqHash | Self::GfqCheck | Self::GfqLadder => Family::Gfq,
            measure if measure.is_gfq_through() => Family::Gfq,
            _ => Family::Generations,
        }
    }

    /// Whether a rate counts bytes of the source, and not bytes of the output.
    pub(super) const fn is_of_source(self) -> bool {
        matches!(self, Self::CpuSymbols) || matches!(self.family(), Family::Chunks)
    }

    /// Whether words go through a card.
    pub(super) const fn is_gfq_through(self) -> bool {
        matches!(
            self,
            Self::GfqEncodeThrough
                | Self::GfqDecodeThrough
                | Self::GfqHashThrough
                | Self::GfqCheckThrough
        ) || matches!(self, Self::GfqEncodeServed)
    }

    /// Whether a case's generations are thread blocks.
    pub(super) const fn has_grids(self) -> bool {
        matches!(self, Self::GfqPowers)
    }

    /// Whether it is one of a GPU for the rows of S3, S4 and S5.
    pub(super) const fn is_of_codes(self) -> bool {
        !self.is_cpu() && !matches!(self.family(), Family::Generations)
    }

    /// Whether a case's generations are streams.
    pub(super) const fn has_streams(self) -> bool {
        matches!(
            self,
            Self::ChunksThrough | Self::RebuildThrough | Self::ChunksThroughCopy
        )
    }

    /// Whether it is told in energy or power.
    pub(super) const fn is_of_energy(self) -> bool {
        matches!(self.unit(), Unit::Millijoules | Unit::Watts)
    }

    /// Whether native chunks are made, and not code chunks.
    pub(super) const fn is_rebuild(self) -> bool {
        matches!(
            self,
            Self::CpuRebuild | Self::Rebuild | Self::RebuildThrough
        )
    }

    /// Whether it needs no GPU.
    pub(super) const fn is_cpu(self) -> bool {
        matches!(
            self,
            Self::CpuEncode
                | Self::CpuWhole
                | Self::CpuParted
                | Self::CpuPartedAtOnce
                | Self::CpuGather
                | Self::CpuInvert
                | Self::CpuDecode
                | Self::CpuDecodeMany
                | Self::CpuProgressive
                | Self::CpuDependent
                | Self::CpuRecode
                | Self::Extra
                | Self::CpuBlocks
                | Self::CpuEnergy
                | Self::CpuPower
                | Self::CpuSymbols
                | Self::CpuProduct
                | Self::CpuGaussJordan
                | Self::CpuPrecode
                | Self::CpuChunks
                | Self::CpuRebuild
                | Self::CpuWorkItems
                | Self::Stored
                | Self::CpuGfqEncode
                | Self::CpuGfqCombine
                | Self::CpuGfqInvert
                | Self::CpuGfqDecode
                | Self::CpuGfqHash
                | Self::CpuGfqCheck
        )
    }

    /// Whether it is a number that depends on nothing but the rows.
    pub(super) const fn is_count(self) -> bool {
        matches!(self, Self::Extra | Self::Stored)
    }

    /// Whether a measure of the GPU uses threads of the CPU beside it.
    pub(super) const fn has_threads(self) -> bool {
        matches!(
            self,
            Self::SplitDecode
                | Self::SplitInverse
                | Self::Together
                | Self::ReplayWhole
                | Self::Crossover
                | Self::WorkItems
        )
    }

    /// Whether it has to do with dense systems on a GPU.
    pub(super) const fn is_of_systems(self) -> bool {
        matches!(
            self,
            Self::Systems
                | Self::SystemsThrough
                | Self::SystemsWhole
                | Self::InvertWide
                | Self::Crossover
        )
    }

    /// The reason why this is not the whole work: something is made before its timer begins, or the
    /// work is another.
    pub(super) fn apart(self, kernel: &str) -> Option<&'static str> {
        match self {
            Self::Multiply | Self::InTurn | Self::ToHost | Self::Store | Self::Recode => {
                Some("rows and forms are made before")
            }
            Self::CpuWhole | Self::CpuParted | Self::CpuPartedAtOnce | Self::CpuGather => {
                Some("rows and forms are made before")
            }
            Self::Decode => Some("payloads have their form before"),
            Self::Replay | Self::ReplayThrough => Some("plans are made before"),
            Self::Systems | Self::SystemsThrough => Some("matrices are put together before"),
            Self::CpuBlocks if kernel.starts_with("thesis-") => {
                Some("G_LT and A' are put together before")
            }
            Self::CpuPrecode if matches!(kernel, "plan" | "inverse") => Some("it makes no matrix"),
            _ if kernel.ends_with("p2048") => Some("hashes have 2,048 bits"),
            _ => None,
        }
    }

    /// Parts of the CPU's work at most: of more threads, some have nothing to do.
    pub(super) fn parts(self, kernel: &str, n: u16, k: u32, rows: u32, generations: u32) -> u64 {
        let (n, [k, rows, generations]) = (u64::from(n), [k, rows, generations].map(u64::from));
        match self {
            Self::CpuEncode | Self::CpuWhole | Self::CpuGather => {
                generations * rows.div_ceil(BLOCKS_A_UNIT)
            }
            Self::CpuParted | Self::CpuPartedAtOnce | Self::CpuDecode => k.div_ceil(LINE_BYTES),
            Self::CpuInvert | Self::CpuGaussJordan | Self::CpuPrecode => n,
            Self::CpuDecodeMany | Self::CpuGfqCheck => generations,
            Self::CpuBlocks if generations == 1 && kernel.starts_with("thesis-") => rows * k,
            Self::CpuBlocks if generations == 1 => k.div_ceil(LINE_BYTES),
            Self::CpuBlocks => generations,
            Self::CpuProduct if kernel == "thesis" => rows * k,
            Self::CpuProduct | Self::CpuGfqCombine | Self::CpuGfqHash => rows,
            Self::CpuChunks | Self::CpuRebuild => k.div_ceil(PAGE_BYTES),
            Self::CpuWorkItems => k.div_ceil(PIECE_BYTES),
            Self::CpuGfqEncode => generations * rows.div_ceil(WORD_BLOCKS_A_PART),
            Self::CpuGfqDecode if generations == 1 => n.div_ceil(WORD_BLOCKS_A_PART),
            Self::CpuGfqDecode => generations,
            Self::CpuGfqInvert => n * n / WORD_PRODUCTS_A_THREAD,
            // Each thread has a generation of its own.
            Self::CpuRecode => u64::MAX,
            _ => 1,
        }
    }

    /// Whether its series are compared between GPU and CPU, because the other does the same whole
    /// work.
    pub(super) const fn is_comparable(self) -> bool {
        !matches!(
            self,
            Self::Copy
                | Self::Together
                | Self::Extra
                | Self::CpuEnergy
                | Self::CpuPower
                | Self::Stored
        ) && !matches!(
            self,
            Self::ChunksCopy | Self::ChunksThroughCopy | Self::Crossover | Self::WorkItems
        ) && !matches!(
            self,
            Self::ReplayEnergy | Self::ReplayPower | Self::GfqLadder
        )
    }

    /// The series that it makes with this kernel.
    pub(super) fn series(self, kernel: &str) -> String {
        let what = match self {
            Self::Multiply => return kernel.to_owned(),
            Self::InTurn => "two launches in turn",
            Self::Fresh => "with forms and rows",
            Self::ToHost => "to the host",
            Self::Store => "stored to the host",
            Self::Copy => return "copy alone".to_owned(),
            Self::RowRate => return "rows".to_owned(),
            Self::RowShare => "share of rows",
            Self::AnswerCopy => "answer by copy",
            Self::AnswerStore => "answer by stores",
            Self::AnswerDevice => "answer of the device",
            Self::AnswerTurnaround => "answer through the queue",
            Self::Recode => "recode",
            Self::Invert => return kernel.to_owned(),
            Self::Decode => "decode",
            Self::DecodeRaw => "decode, raw payloads",
            Self::DecodeToHost => "decode to the host",
            Self::InvertShare => "share of inversion",
            Self::Progressive => return kernel.to_owned(),
            Self::SplitDecode => "CPU inverts, GPU multiplies",
            Self::SplitInverse => return "t_inverse".to_owned(),
            Self::SplitMultiply => return "t_mul".to_owned(),
            Self::SplitOverhead => return "t_o".to_owned(),
            Self::Together => "with the CPU, to the host",
            Self::CpuEncode | Self::CpuDecode => return cpu(kernel, "CPU"),
            Self::CpuWhole => return "CPU, whole blocks".to_owned(),
            Self::CpuParted => return "CPU, partitioned blocks".to_owned(),
            Self::CpuPartedAtOnce => return "CPU, partitioned blocks, all at once".to_owned(),
            Self::CpuGather => return "CPU, non-zero coefficients alone".to_owned(),
            Self::CpuInvert => return "CPU".to_owned(),
            Self::CpuDecodeMany => return "CPU, a generation a thread".to_owned(),
            Self::CpuProgressive => return "CPU, progressive".to_owned(),
            Self::CpuDependent => return "CPU, a dependent block".to_owned(),
            Self::CpuRecode => return "CPU, recode".to_owned(),
            Self::Extra => return "blocks beyond n".to_owned(),
            Self::CpuBlocks
            | Self::CpuEnergy
            | Self::CpuPower
            | Self::CpuSymbols
            | Self::CpuProduct
            | Self::CpuGaussJordan
            | Self::CpuPrecode
            | Self::CpuChunks
            | Self::CpuRebuild => return kernel.to_owned(),
            Self::Stored => return "code".to_owned(),
            Self::Chunks | Self::Rebuild | Self::Product | Self::GaussJordan | Self::Systems => {
                return format!("{kernel}, GPU");
            }
            Self::ChunksCopy => return "copy on the GPU".to_owned(),
            Self::ChunksThrough | Self::RebuildThrough => "through the GPU",
            Self::ChunksThroughCopy => return "copies alone".to_owned(),
            Self::CpuWorkItems => return "chunks by the CPU".to_owned(),
            Self::WorkItems if kernel == "hybrid" => {
                return "chunks by CPU and GPU together".to_owned();
            }
            Self::WorkItems => return "chunks by the GPU".to_owned(),
            Self::Replay => return "replayed, GPU".to_owned(),
            Self::ReplayThrough | Self::ReplayEnergy | Self::ReplayPower => {
                return "replayed, through the GPU".to_owned();
            }
            Self::ReplayWhole => return "plans and replayed, through the GPU".to_owned(),
            Self::ProductThrough | Self::SystemsThrough => "through the GPU",
            Self::SystemsWhole => "by the decoder with the GPU",
            Self::InvertWide => return "for dense systems, GPU".to_owned(),
            Self::Crossover => return "crossover".to_owned(),
            Self::CpuGfqEncode | Self::CpuGfqCombine | Self::CpuGfqInvert | Self::CpuGfqDecode => {
                return "CPU".to_owned();
            }
            Self::CpuGfqHash | Self::CpuGfqCheck => return format!("CPU {kernel}"),
            Self::GfqInvert | Self::GfqDecode => return "ours, GPU".to_owned(),
            Self::GfqEncode | Self::GfqCombine | Self::GfqSteps | Self::GfqPowers => {
                return format!("{kernel}, GPU");
            }
            Self::GfqHash | Self::GfqCheck | Self::GfqLadder => return format!("{kernel}, GPU"),
            Self::GfqEncodeThrough
            | Self::GfqDecodeThrough
            | Self::GfqHashThrough
            | Self::GfqCheckThrough => "through the GPU",
            Self::GfqEncodeServed => return "served by the GPU".to_owned(),
        };
        if kernel.is_empty() {
            what.to_owned()
        } else {
            format!("{kernel} {what}")
        }
    }

    /// What is done, and what of it is inside the timer.
    pub(super) const fn timer(self) -> &'static str {
        match self {
            Self::Multiply => {
                "kernel: from event to event around one launch after the other, forms and rows \
                 made before, blocks into device memory that rotates through more than the L2 holds"
            }
            Self::InTurn => {
                "two launches in turn: the same on two streams, so that one launch begins where \
                 the other leaves multiprocessors idle, as the batches of a server do"
            }
            Self::Fresh => {
                "with forms and rows: the same, with the kernels that make resident form and rows \
                 in front of each launch"
            }
            Self::ToHost => {
                "to the host: the host's clock from the first launch until the last block lies in \
                 pinned memory; batches of 16 MiB on two streams, one copied while the next is \
                 made; forms and rows made before"
            }
            Self::Store => {
                "stored to the host: from event to event; the kernel writes pinned memory itself"
            }
            Self::Copy => "copy alone: the same batches, copied without being made",
            Self::RowRate => {
                "rows: from event to event around the kernel that makes coefficient rows from \
                 seeds in the row form"
            }
            Self::RowShare => {
                "share of rows: that kernel's time in the time of it and the encode kernel behind \
                 it"
            }
            Self::AnswerCopy => {
                "answer by copy: the host's clock from the launch until a copy of all blocks has \
                 arrived; rows included"
            }
            Self::AnswerStore => {
                "answer by stores: the same, the kernel writing pinned memory itself"
            }
            Self::AnswerDevice => {
                "answer of the device: in the loop of the device's thread as the daemon has it, \
                 from the launch until the thread has seen the bytes in pinned memory"
            }
            Self::AnswerTurnaround => {
                "answer through the queue: from handing a batch to the device's queue until it \
                 comes back with the blocks, two threads woken inside"
            }
            Self::Recode => {
                "recode: one launch over received rows [C|x], coefficients and payload in one \
                 pass; payload bytes count, resident form made before"
            }
            Self::Invert => {
                "inversion on the GPU: from event to event, matrices and inverses in device memory"
            }
            Self::Decode => {
                "decode: from event to event around inversion, inverses into the row form, \
                 multiplication; coefficients on the device, payloads in the resident layout"
            }
            Self::DecodeRaw => {
                "decode, raw payloads: the same with the kernel that brings payloads into that \
                 layout"
            }
            Self::DecodeToHost => {
                "decode to the host: raw payloads into the layout, inversion and inverses into the \
                 row form from event to event, and the host's clock for multiplications in batches \
                 of 16 MiB, each copied to pinned memory while the next runs, added up"
            }
            Self::InvertShare => {
                "share of inversion: its time in the time of inversion and multiplication"
            }
            Self::Progressive => {
                "progressive decoding on the GPU: from event to event around all blocks, taken one \
                 after the other; blocks and result in device memory"
            }
            Self::SplitDecode => {
                "CPU inverts, GPU multiplies: t_inverse + t_mul + t_o, one after the other; \
                 coefficients and payloads start in host memory, the source ends there"
            }
            Self::SplitInverse => "t_inverse: the inversion on the CPU, the host's clock",
            Self::SplitMultiply => {
                "t_mul: payloads into the resident form and the multiplication, from event to event"
            }
            Self::SplitOverhead => {
                "t_o: copies of payloads and inverse to the GPU, rows into their form, copy of the \
                 source back"
            }
            Self::Together => {
                "with the CPU: both at once, each for half a second and more, what either made by \
                 the host's clock added up; GPU to the host, CPU into memory"
            }
            Self::CpuEncode => {
                "CPU: the host's clock from handing a batch to the CPU device's queue until it \
                 comes back; drawing rows and multiplying on its pool of threads inside, packing \
                 outside; whole blocks, or parts where there are few"
            }
            Self::CpuWhole => {
                "CPU, whole blocks: threads take whole coded blocks; rows drawn and sources packed \
                 before"
            }
            Self::CpuParted => {
                "CPU, partitioned blocks: threads make one coded block together, each its part of \
                 the bytes, and wait for each other after each; rows drawn and sources packed \
                 before"
            }
            Self::CpuPartedAtOnce => {
                "CPU, partitioned blocks, all at once: the same, each thread its part of the bytes \
                 of all coded blocks in one call"
            }
            Self::CpuGather => {
                "CPU, non-zero coefficients alone: threads take whole blocks; what a row takes of \
                 each column is packed, then multiplied; rows drawn and sources packed before"
            }
            Self::CpuInvert => {
                "inversion on the CPU: threads running, matrix copied in, elimination, inverse in \
                 order"
            }
            Self::CpuDecode => {
                "CPU decode of one generation by all threads: inversion, packing payloads, \
                 multiplying, each thread its part of the bytes"
            }
            Self::CpuDecodeMany => {
                "CPU decode, a generation a thread: allocating the decoder, copying payloads in, \
                 elimination, multiplying"
            }
            Self::CpuProgressive => {
                "CPU, progressive: one thread, elimination with payloads dragged along"
            }
            Self::CpuDependent => {
                "CPU, a dependent block: one thread, until it is known to bring nothing, at rank n \
                 - 1"
            }
            Self::CpuRecode => {
                "CPU, recode: each thread from the n coded blocks of a generation it holds; \
                 weights, vectors and payloads of n new blocks"
            }
            Self::Extra => {
                "blocks beyond n: no time, but how many more rows than n a decoder takes until n \
                 are independent, over 20,000 generations; elimination on the coefficients alone"
            }
            Self::CpuBlocks => {
                "decoding: the host's clock for a block, from symbols in memory to the missing \
                 ones; inverses and matrices that a K' has in common are there. thesis-1 and \
                 thesis-2 are its schemes as it writes them, byte by byte, with G_LT and A' put \
                 together before; scheme-1, scheme-2 and inactivation are ours, which copy what \
                 came and put the block together, too; -scalar is ours without vector \
                 instructions. One block by several threads: these divide every step of the \
                 thesis' code among them, of scheme-1 and scheme-2 inversions and products, \
                 starting for them, and of inactivation all but the plan. Many blocks: each thread \
                 takes every T-th; of the thesis' code and of scheme-1 only as many as take a \
                 second"
            }
            Self::CpuEnergy => {
                "energy of the processor's packages for a block (RAPL), over loops of at least 2 \
                 s; everything on the machine is in it"
            }
            Self::CpuPower => {
                "the most power of these packages over 50 ms in such a loop, and the mean"
            }
            Self::CpuSymbols => {
                "encoding, one thread: all intermediate symbols and the repair symbols; plan and \
                 stored inverse made before. Bytes of source symbols count"
            }
            Self::CpuProduct => {
                "multiplication: R rows of K elements times K symbols of T bytes, all in memory; \
                 thesis is its Algorithms 1 to 3, an element after the other by logarithms"
            }
            Self::CpuGaussJordan => {
                "Gauss-Jordan of the thesis (Algorithms 4, 6, 8; 11 to 13 by several threads) over \
                 [A|I], matrix copied in before"
            }
            Self::CpuPrecode => {
                "precode: thesis multiplies MT and GAMMA out; columns is ours, from right to left; \
                 both with LDPC and LT rows, L x L bytes. plan and inverse are what is kept for a \
                 K' in place of it: the operations that solve it, and A^-1"
            }
            Self::CpuChunks => {
                "coding chunks: threads running, rows there, each its part of the bytes; bytes of \
                 the file count, not what is made of them. simd is ours; the others multiply byte \
                 by byte in the talk's ways"
            }
            Self::CpuRebuild => {
                "rebuilding: the same for two native chunks that are lost, of the others and of \
                 code chunks"
            }
            Self::Chunks | Self::Rebuild => {
                "on the GPU: from event to event around one launch after the other, native and \
                 code chunks in its memory; bytes of the file count. A name's end is its tile, \
                 rows x columns"
            }
            Self::ChunksCopy => {
                "copy on the GPU: from event to event, as many bytes read and written as coding \
                 these chunks reads and writes; bytes of the file count, so that the two compare"
            }
            Self::ChunksThrough | Self::RebuildThrough => {
                "through the GPU: the host's clock from chunks in pinned memory to what is made of \
                 them there, in pieces of 8 MiB a chunk, or of as many as there are streams, on \
                 the streams of all GPUs in turn; memory is pinned once"
            }
            Self::ChunksThroughCopy => "copies alone: the same copies, with nothing made between",
            Self::CpuWorkItems | Self::WorkItems => {
                "chunks by the CPU, by the GPU, by both: as `nccodec encode` codes a file, the \
                 host's clock from the first stripe of 256 KiB a chunk that is handed in until the \
                 last one has come back, all of them in memory (for a GPU, pinned); files are \
                 neither read nor written"
            }
            Self::Replay => {
                "replayed, GPU: the card's time for a block, from event to event, symbols and \
                 plans in its memory. Plans are made on the CPU before"
            }
            Self::ReplayThrough => {
                "replayed, through the GPU: the host's clock for a block, from symbols in pinned \
                 memory to the missing ones there; plans on the card before"
            }
            Self::ReplayWhole => {
                "plans and replayed: the same with a plan for every block, made by all threads \
                 while the card replays those that are made, and copied to it"
            }
            Self::ReplayEnergy => {
                "energy of the card for a block (NVML), over loops of at least 2 s that take \
                 symbols from pinned memory through the card and back; plans are there, and what \
                 the host takes meanwhile is not in it"
            }
            Self::ReplayPower => {
                "the most power of the card in such a loop, sampled every 20 ms, and the mean"
            }
            Self::Product => {
                "the thesis' kernel: from event to event, a thread an element; the name's end is \
                 the work-group, columns x rows, without one the fastest of six"
            }
            Self::ProductThrough => {
                "through the GPU: the host's clock, with copies of all three matrices there and of \
                 the product back"
            }
            Self::GaussJordan => {
                "the thesis' three kernels: the host's clock from matrix to inverse in its memory, \
                 the whole extended matrix read back at every step"
            }
            Self::Systems => {
                "on the GPU: the card's time for a block, from event to event, matrices and \
                 symbols in its memory: scheme-1 inverts, adds rows of the inverse up and \
                 multiplies; scheme-2 takes what is known from the repair symbols before that. \
                 Matrices are put together on the CPU before. Of many blocks as many at once as \
                 have matrices of 1 GiB"
            }
            Self::SystemsThrough => {
                "through the GPU: the host's clock for a block, from matrices and symbols in \
                 pinned memory to the missing symbols there; of many blocks as many at once as \
                 have matrices of 256 MiB"
            }
            Self::SystemsWhole => {
                "by the decoder with the GPU: the host's clock for a block, from symbols in memory \
                 to the block: our decoder, which puts matrices together and has the card invert \
                 and multiply them, copies of memory that is not pinned included"
            }
            Self::InvertWide => {
                "inversion for dense systems: from event to event, matrix and inverse in device \
                 memory; by one thread block up to 416 rows, by all of the card above"
            }
            Self::Crossover => {
                "crossover: no time, but the order from which on the card solves a dense system \
                 sooner than so many threads, copies included: of 32, 64 and so on to 1,024; one \
                 more than these if it does not"
            }
            Self::CpuGfqEncode | Self::CpuGfqCombine | Self::CpuGfqDecode => {
                "CPU over GF(q): the host's clock from blocks in memory to blocks in memory, \
                 threads started inside; of combining payloads alone, factors in their form before"
            }
            Self::CpuGfqInvert => {
                "inverting over GF(q) on the CPU: the host's clock, matrix and inverse in memory"
            }
            Self::CpuGfqHash => {
                "hashing on the CPU: the host's clock for all blocks; what is kept of the \
                 generators is there. Bytes of blocks count"
            }
            Self::CpuGfqCheck => {
                "checking on the CPU: the host's clock for a batch, weights drawn inside. Bytes of \
                 blocks' source count"
            }
            Self::GfqEncode | Self::GfqCombine => {
                "over GF(q) on the GPU: from event to event around one launch, blocks in and out \
                 in device memory. Bytes of source blocks count, without top bits"
            }
            Self::GfqInvert => {
                "inversion over GF(q) on the GPU: from event to event, matrices and inverses in \
                 device memory"
            }
            Self::GfqSteps => {
                "the paper's inversion: the host's clock from matrix to inverse in its memory; a \
                 column is read back and an element inverted by the CPU at every step"
            }
            Self::GfqDecode => {
                "decoding over GF(q) on the GPU: from event to event around inversion and \
                 multiplication, all in device memory"
            }
            Self::GfqPowers => {
                "hashing as in the paper: from event to event around a kernel that raises each \
                 generator, a thread each at a time, and one that multiplies; blocks and hashes in \
                 device memory"
            }
            Self::GfqHash => {
                "hashing by tables: from event to event around a multiplication for each digit and \
                 the product of all; tables, blocks and hashes in device memory"
            }
            Self::GfqCheck => {
                "checking on the GPU: from event to event around all: weighted sums of payloads \
                 and vectors, tables of the hashes' powers, both products; generators' tables, \
                 blocks, vectors and hashes in device memory. Bytes of blocks' source count"
            }
            Self::GfqEncodeThrough
            | Self::GfqDecodeThrough
            | Self::GfqHashThrough
            | Self::GfqCheckThrough => {
                "through the GPU: the host's clock for one call as coders make it, from blocks in \
                 memory that is not pinned until what is made of them is there; tables of \
                 generators are on the card before, of checks those of hashes are not"
            }
            Self::GfqEncodeServed => {
                "served by the GPU: the host's clock for one call as the encoder makes it, from \
                 segments of four generations that are kept on the card and rows in the host's \
                 memory until the blocks are in slots of a ring that is pinned; rows are drawn \
                 before"
            }
            Self::GfqLadder => {
                "squarings: from event to event, 260 of each of n hashes a set, by a warp a hash \
                 or by a thread a hash; what begins its table of powers"
            }
            Self::Stored => {
                "stored: no time, but bytes of all chunks for a byte of the file, all patterns of \
                 losses rebuilt"
            }
        }
    }
}

fn cpu(kernel: &str, name: &str) -> String {
    if kernel.is_empty() || kernel == "simd" {
        name.to_owned()
    } else {
        format!("{name} {kernel}")
    }
}

/// Coded blocks that a thread makes at a time: sources are loaded once for so many.
const BLOCKS_A_UNIT: u64 = Kernels::ROWS as u64;
/// The least part of a block.
const LINE_BYTES: u64 = Line::BYTES as u64;
/// The least part of a Reed-Solomon chunk that is in memory, and of one in a file.
const PAGE_BYTES: u64 = panel::PART as u64;
const PIECE_BYTES: u64 = ChunkPlan::PIECE_BYTES as u64;
/// Blocks over GF(q) that a thread makes at a time: enough to pay for converting the sources.
const WORD_BLOCKS_A_PART: u64 = gfq::ROWS_A_PART as u64;
/// Products over GF(q) that are worth a thread, where a matrix is inverted.
const WORD_PRODUCTS_A_THREAD: u64 = 1 << 13;
