//! The operations that are measured, one by one.

use std::hint::black_box;
use std::rc::Rc;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::clock::Lap;
use super::engine::{self, Engine};
use super::rounds::Runner;
use super::work::Work;
use super::{Error, oracle};
use crate::block::{Block, Vector};
use crate::codec::rlnc::{Decoder, Encoder, Progressive};
use crate::device::Threads;
use crate::gf::{Isa, Kernels, Panel, rows};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Rows,
    Pack,
    Encode,
    EncodeSingle,
    Decode,
    DecodeLast,
    Progressive,
    ProgressiveLast,
    Recode,
    Device,
}

/// Who does it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Contender {
    /// One thread, one instruction set.
    Kernels(Kernels),
    /// A device with its pool.
    Engine(Engine),
    /// What is the same on every instruction set.
    Common(&'static str),
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
    pub(super) const ALL: [Self; 10] = [
        Self::Rows,
        Self::Pack,
        Self::Encode,
        Self::EncodeSingle,
        Self::Decode,
        Self::DecodeLast,
        Self::Progressive,
        Self::ProgressiveLast,
        Self::Recode,
        Self::Device,
    ];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Pack => "pack",
            Self::Encode => "encode",
            Self::EncodeSingle => "encode-single",
            Self::Decode => "decode",
            Self::DecodeLast => "decode-last",
            Self::Progressive => "progressive",
            Self::ProgressiveLast => "progressive-last",
            Self::Recode => "recode",
            Self::Device => "device",
        }
    }

    pub(super) const fn unit(self) -> Unit {
        match self {
            Self::Rows => Unit::Rows,
            Self::DecodeLast | Self::ProgressiveLast => Unit::Microseconds,
            _ => Unit::Megabytes,
        }
    }

    /// What is done, and what of it is inside the timer.
    pub(super) const fn describe(self) -> &'static str {
        match self {
            Self::Rows => "drawing coefficient rows from seeds, one thread; million rows a second",
            Self::Pack => {
                "bringing a generation into the packed form that the kernels read, one thread; MB/s of source\n\
                 inside: allocating the panel, packing"
            }
            Self::Encode => {
                "n coded blocks of a packed generation in one call, one thread; MB/s of payload made\n\
                 inside: drawing rows, multiplying; outside: packing, memory for the payloads"
            }
            Self::EncodeSingle => {
                "the same, one coded block a call\n\
                 inside: drawing rows, multiplying; outside: packing, memory for the payload"
            }
            Self::Decode => {
                "n coded blocks to the source, one thread, coefficients first and payloads at the end; MB/s of source\n\
                 inside: allocating the decoder, drawing rows, copying payloads in, elimination, multiplying"
            }
            Self::DecodeLast => {
                "the last of n coded blocks, in that decoder; microseconds until the source is there\n\
                 inside: drawing the row, elimination of it, multiplying all payloads; outside: the n - 1 blocks before it"
            }
            Self::Progressive => {
                "n coded blocks to the source, one thread, payloads dragged along; MB/s of source\n\
                 inside: allocating the decoder, drawing rows, copying payloads in and the source out, elimination"
            }
            Self::ProgressiveLast => {
                "the last of n coded blocks, in that decoder; microseconds until every source block can be read\n\
                 inside: drawing the row, elimination of it and its payload; outside: the n - 1 blocks before it"
            }
            Self::Recode => {
                "n new blocks with explicit vectors from n coded blocks held, one thread; MB/s of payload made\n\
                 inside: drawing weights, vectors, packing and multiplying payloads, memory for the new blocks"
            }
            Self::Device => {
                "n coded blocks of each of up to 4 resident generations in one batch, through the device's queue and pool of threads;\n\
                 MB/s of payload made by the wall clock, and by the processor time of all threads together\n\
                 inside: the way to the device's thread and back, drawing rows, multiplying into the slots; outside: load, slots"
            }
        }
    }

    pub(super) fn contenders(self, kernels: &[Kernels]) -> Vec<Contender> {
        match self {
            Self::Rows => vec![Contender::Common("philox")],
            Self::Pack => vec![Contender::Common("panel")],
            Self::Device => {
                let simd = kernels.iter().map(|kernels| Engine::Simd(kernels.isa()));
                simd.chain([Engine::Table]).map(Contender::Engine).collect()
            }
            _ => kernels.iter().copied().map(Contender::Kernels).collect(),
        }
    }

    /// `operation/contender/NxK`; rows do not depend on k.
    pub(super) fn name(self, contender: &Contender, (n, k): (u16, u32)) -> String {
        let who = match contender {
            Contender::Kernels(kernels) => kernels.isa().name(),
            Contender::Engine(engine) => engine.name(),
            Contender::Common(name) => name,
        };
        match self {
            Self::Rows => format!("{}/{who}/{n}", self.word()),
            _ => format!("{}/{who}/{n}x{k}", self.word()),
        }
    }

    /// Bytes that one repetition makes.
    pub(super) fn bytes(self, work: &Work) -> usize {
        match self {
            Self::Rows => work.n(),
            Self::EncodeSingle | Self::DecodeLast | Self::ProgressiveLast => work.block_bytes(),
            Self::Device => work.source.len() * engine::generations(work),
            _ => work.source.len(),
        }
    }

    /// Checks the contender, and makes what measures it; none if it is wrong.
    pub(super) fn runner(self, contender: &Contender, work: &Rc<Work>, threads: Threads) -> Result<Option<Runner>, Error> {
        let work = Rc::clone(work);
        let kernels = match contender {
            Contender::Engine(engine) => return engine.runner(&work, threads),
            Contender::Kernels(kernels) => *kernels,
            Contender::Common(_) => Kernels::detect(),
        };
        Ok(match self {
            Self::Rows => draw(&work),
            Self::Pack => pack(&work),
            Self::Encode => encode(&work, kernels),
            Self::EncodeSingle => encode_single(&work, kernels),
            Self::Decode => decode(work, kernels),
            Self::DecodeLast => decode_last(work, kernels),
            Self::Progressive => progressive(work, kernels),
            Self::ProgressiveLast => progressive_last(work, kernels),
            Self::Recode => recode(&work, kernels),
            Self::Device => None,
        })
    }
}

fn draw(work: &Work) -> Option<Runner> {
    let (key, mut seed, mut row) = (work.key, work.first_seed, vec![0; work.n()]);
    key.fill(seed, &mut row);
    let halves = |word: u64| [(word & 0xFFFF_FFFF) as u32, (word >> 32) as u32];
    let words = (0..).flat_map(|q| rows::philox4x32_10([q, seed, 0, 0], halves(key.key)));
    let expected = words.flat_map(u32::to_le_bytes);
    if !row.iter().copied().eq(expected.take(row.len())) {
        return None;
    }
    Some(Box::new(move |repeats: u32| {
        Lap::thread(|| {
            for _ in 0..repeats {
                seed = seed.wrapping_add(1);
                key.fill(seed, black_box(&mut row));
            }
        })
    }))
}

fn pack(work: &Rc<Work>) -> Option<Runner> {
    let (n, k) = (work.n(), work.block_bytes());
    let panel = Panel::of(&work.source, n, k);
    let mut block = vec![0; k];
    let is_right = work.source.chunks(k).enumerate().all(|(index, expected)| {
        panel.copy_to(index, &mut block);
        block == expected
    });
    let work = Rc::clone(work);
    let run = move |repeats: u32| Lap::thread(|| (0..repeats).for_each(|_| drop(black_box(Panel::of(&work.source, n, k)))));
    is_right.then(|| Box::new(run) as Runner)
}

fn encoder(work: &Work, kernels: Kernels) -> Encoder {
    Encoder::new(&work.generation, &work.source, work.key, kernels).expect("the generation's own bytes")
}

fn encode(work: &Work, kernels: Kernels) -> Option<Runner> {
    let (encoder, first_seed, k) = (encoder(work, kernels), work.first_seed, work.block_bytes());
    let mut payloads = vec![0; work.coded.len()];
    encoder.blocks(first_seed, &mut payloads.chunks_exact_mut(k).collect::<Vec<_>>());
    let is_right = payloads == work.coded;
    let run = move |repeats: u32| {
        let mut outs: Vec<&mut [u8]> = payloads.chunks_exact_mut(k).collect();
        Lap::thread(|| (0..repeats).for_each(|_| encoder.blocks(first_seed, black_box(&mut outs))))
    };
    is_right.then(|| Box::new(run) as Runner)
}

fn encode_single(work: &Work, kernels: Kernels) -> Option<Runner> {
    let (encoder, first_seed) = (encoder(work, kernels), work.first_seed);
    let mut payload = vec![0; work.block_bytes()];
    let is_right = work.coded.chunks_exact(payload.len()).zip(0..).all(|(expected, offset)| {
        encoder.block(first_seed.wrapping_add(offset), &mut payload);
        payload == expected
    });
    let run = move |repeats: u32| Lap::thread(|| (0..repeats).for_each(|seed| encoder.block(seed, black_box(&mut payload))));
    is_right.then(|| Box::new(run) as Runner)
}

fn decoder(work: &Work, kernels: Kernels, blocks: &[(Vector, &[u8])]) -> Decoder {
    let mut decoder = Decoder::new(work.generation, work.key, kernels);
    for (vector, payload) in blocks {
        decoder.absorb(vector, payload).expect("blocks of this generation");
    }
    decoder
}

fn decode(work: Rc<Work>, kernels: Kernels) -> Option<Runner> {
    let is_right = decoder(&work, kernels, &work.blocks()).into_bytes().as_ref() == Ok(&work.source);
    let run = move |repeats: u32| {
        let blocks = work.blocks();
        Lap::thread(|| (0..repeats).for_each(|_| drop(black_box(decoder(&work, kernels, &blocks).into_bytes()))))
    };
    is_right.then(|| Box::new(run) as Runner)
}

fn decode_last(work: Rc<Work>, kernels: Kernels) -> Option<Runner> {
    let run = move |work: &Work, repeats: u32| {
        let (mut total, mut bytes) = (Lap::default(), Vec::new());
        let blocks = work.blocks();
        let ((vector, payload), before) = blocks.split_last().expect("n is not zero");
        for _ in 0..repeats {
            let mut decoder = decoder(work, kernels, before);
            total += Lap::thread(|| {
                decoder.absorb(vector, payload).expect("a block of this generation");
                bytes = decoder.into_bytes().unwrap_or_default();
            });
        }
        (total, bytes)
    };
    let is_right = run(&work, 1).1 == work.source;
    is_right.then(|| Box::new(move |repeats| run(&work, repeats).0) as Runner)
}

fn drag(work: &Work, kernels: Kernels, blocks: &[(Vector, &[u8])]) -> Progressive {
    let mut decoder = Progressive::new(work.generation, work.key, kernels);
    for (vector, payload) in blocks {
        decoder.absorb(vector, payload).expect("blocks of this generation");
    }
    decoder
}

fn progressive(work: Rc<Work>, kernels: Kernels) -> Option<Runner> {
    let run = move |work: &Work, repeats: u32| {
        let mut bytes = vec![0; work.source.len()];
        let blocks = work.blocks();
        let lap = Lap::thread(|| {
            for _ in 0..repeats {
                drag(work, kernels, &blocks).finish(black_box(&mut bytes)).expect("n independent blocks");
            }
        });
        (lap, bytes)
    };
    let is_right = run(&work, 1).1 == work.source;
    is_right.then(|| Box::new(move |repeats| run(&work, repeats).0) as Runner)
}

fn progressive_last(work: Rc<Work>, kernels: Kernels) -> Option<Runner> {
    let run = move |work: &Work, repeats: u32| {
        let (mut total, mut bytes) = (Lap::default(), vec![0; work.source.len()]);
        let blocks = work.blocks();
        let ((vector, payload), before) = blocks.split_last().expect("n is not zero");
        for _ in 0..repeats {
            let mut decoder = drag(work, kernels, before);
            total += Lap::thread(|| {
                decoder.absorb(vector, payload).expect("a block of this generation");
            });
            decoder.finish(&mut bytes).expect("n independent blocks");
        }
        (total, bytes)
    };
    let is_right = run(&work, 1).1 == work.source;
    is_right.then(|| Box::new(move |repeats| run(&work, repeats).0) as Runner)
}

/// Checks the first blocks alone: their rows are not those of the work, so that each costs the oracle a multiplication.
fn recode(work: &Work, kernels: Kernels) -> Option<Runner> {
    let (decoder, count) = (decoder(work, kernels, &work.blocks()), work.n());
    let mut rng = SmallRng::seed_from_u64(1);
    let is_sum = |block: &Block| match &block.vector {
        Vector::Explicit(row) => block.payload == oracle::combine(row, &work.source, work.block_bytes()),
        Vector::Source(_) | Vector::Seed(_) => false,
    };
    let blocks = decoder.recode(count, &mut rng);
    let is_right = blocks.len() == count && blocks.iter().take(RECODED_CHECKED).all(is_sum);
    let run = move |repeats: u32| Lap::thread(|| (0..repeats).for_each(|_| drop(black_box(decoder.recode(count, &mut rng)))));
    is_right.then(|| Box::new(run) as Runner)
}

/// Names of the device's contenders, which have to be static.
pub(super) const fn simd_name(isa: Isa) -> &'static str {
    match isa {
        Isa::Scalar => "simd-scalar",
        Isa::Ssse3 => "simd-ssse3",
        Isa::Avx2 => "simd-avx2",
        Isa::Avx512 => "simd-avx512",
        Isa::Gfni => "simd-gfni",
    }
}

const RECODED_CHECKED: usize = 32;
