//! What one thread does.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;

use ncs_codec::block::Vector;
use ncs_codec::rlnc::{Decoder, Encoder, Progressive};
use ncs_codec::{self as codec, Outcome};
use ncs_gf::{Kernels, Panel, matrix, rows};
use ncserverd::bench::clock::Lap;
use ncserverd::bench::oracle;
use ncserverd::bench::work::Work;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::Checked;

pub(super) fn draw(work: &Arc<Work>) -> Option<Checked> {
    let (key, mut seed, mut row) = (work.key, work.first_seed, vec![0; work.n()]);
    key.fill(seed, &mut row);
    let halves = |word: u64| [(word & 0xFFFF_FFFF) as u32, (word >> 32) as u32];
    let words = (0..).flat_map(|q| rows::philox4x32_10([q, seed, 0, 0], halves(key.key)));
    let expected = words.flat_map(u32::to_le_bytes);
    let is_right = row.iter().copied().eq(expected.take(row.len()));
    Checked::new(is_right, 1, move |repeats: u32| {
        Lap::thread(|| {
            for _ in 0..repeats {
                seed = seed.wrapping_add(1);
                key.fill(seed, black_box(&mut row));
            }
        })
    })
}

pub(super) fn pack(work: &Arc<Work>) -> Option<Checked> {
    let (n, k) = (work.n(), work.block_bytes());
    let panel = Panel::of(&work.source, n, k);
    let mut block = vec![0; k];
    let is_right = work.source.chunks(k).enumerate().all(|(index, expected)| {
        panel.copy_to(index, &mut block);
        block == expected
    });
    let (made, work) = (work.source.len(), Arc::clone(work));
    let run = move |repeats: u32| {
        Lap::thread(|| (0..repeats).for_each(|_| drop(black_box(Panel::of(&work.source, n, k)))))
    };
    Checked::new(is_right, made, run)
}

pub(super) fn encoder(work: &Work, kernels: Kernels) -> Encoder {
    Encoder::new(&work.generation, &work.source, work.key, kernels)
        .expect("the generation's own bytes")
}

pub(super) fn encode(work: &Arc<Work>, kernels: Kernels) -> Option<Checked> {
    let (encoder, first_seed, k) = (encoder(work, kernels), work.first_seed, work.block_bytes());
    let mut payloads = vec![0; work.coded.len()];
    encoder.blocks(
        first_seed,
        &mut payloads.chunks_exact_mut(k).collect::<Vec<_>>(),
    );
    let is_right = payloads == work.coded;
    let run = move |repeats: u32| {
        let mut outs: Vec<&mut [u8]> = payloads.chunks_exact_mut(k).collect();
        Lap::thread(|| (0..repeats).for_each(|_| encoder.blocks(first_seed, black_box(&mut outs))))
    };
    Checked::new(is_right, work.source.len(), run)
}

pub(super) fn encode_single(work: &Arc<Work>, kernels: Kernels) -> Option<Checked> {
    let (encoder, first_seed) = (encoder(work, kernels), work.first_seed);
    let mut payload = vec![0; work.block_bytes()];
    let is_right = work
        .coded
        .chunks_exact(payload.len())
        .zip(0..)
        .all(|(expected, offset)| {
            encoder.block(first_seed.wrapping_add(offset), &mut payload);
            payload == expected
        });
    let run = move |repeats: u32| {
        Lap::thread(|| (0..repeats).for_each(|seed| encoder.block(seed, black_box(&mut payload))))
    };
    Checked::new(is_right, work.block_bytes(), run)
}

pub(super) fn decoder(work: &Work, kernels: Kernels, blocks: &[(Vector, &[u8])]) -> Decoder {
    let mut decoder = Decoder::new(work.generation, work.key, kernels);
    for (vector, payload) in blocks {
        decoder
            .absorb(vector, payload)
            .expect("blocks of this generation");
    }
    decoder
}

pub(super) fn decode(work: &Arc<Work>, kernels: Kernels) -> Option<Checked> {
    let is_right = decoder(work, kernels, &work.blocks()).into_bytes().as_ref() == Ok(&work.source);
    let (made, work) = (work.source.len(), Arc::clone(work));
    let run = move |repeats: u32| {
        let blocks = work.blocks();
        Lap::thread(|| {
            (0..repeats)
                .for_each(|_| drop(black_box(decoder(&work, kernels, &blocks).into_bytes())))
        })
    };
    Checked::new(is_right, made, run)
}

pub(super) fn decode_last(work: &Arc<Work>, kernels: Kernels) -> Option<Checked> {
    let run = move |work: &Work, repeats: u32| {
        let (mut total, mut bytes) = (Lap::default(), Vec::new());
        let blocks = work.blocks();
        let ((vector, payload), before) = blocks.split_last().expect("n is not zero");
        for _ in 0..repeats {
            let mut decoder = decoder(work, kernels, before);
            total += Lap::thread(|| {
                decoder
                    .absorb(vector, payload)
                    .expect("a block of this generation");
                bytes = decoder.into_bytes().unwrap_or_default();
            });
        }
        (total, bytes)
    };
    let (is_right, work) = (run(work, 1).1 == work.source, Arc::clone(work));
    Checked::new(is_right, 1, move |repeats| run(&work, repeats).0)
}

fn drag(work: &Work, kernels: Kernels, blocks: &[(Vector, &[u8])]) -> Progressive {
    let mut decoder = Progressive::new(work.generation, work.key, kernels);
    for (vector, payload) in blocks {
        decoder
            .absorb(vector, payload)
            .expect("blocks of this generation");
    }
    decoder
}

pub(super) fn progressive(work: &Arc<Work>, kernels: Kernels) -> Option<Checked> {
    let run = move |work: &Work, repeats: u32| {
        let mut bytes = vec![0; work.source.len()];
        let blocks = work.blocks();
        let lap = Lap::thread(|| {
            for _ in 0..repeats {
                drag(work, kernels, &blocks)
                    .finish(black_box(&mut bytes))
                    .expect("n independent blocks");
            }
        });
        (lap, bytes)
    };
    let (is_right, made, work) = (
        run(work, 1).1 == work.source,
        work.source.len(),
        Arc::clone(work),
    );
    Checked::new(is_right, made, move |repeats| run(&work, repeats).0)
}

pub(super) fn progressive_last(work: &Arc<Work>, kernels: Kernels) -> Option<Checked> {
    let run = move |work: &Work, repeats: u32| {
        let (mut total, mut bytes) = (Lap::default(), vec![0; work.source.len()]);
        let blocks = work.blocks();
        let ((vector, payload), before) = blocks.split_last().expect("n is not zero");
        for _ in 0..repeats {
            let mut decoder = drag(work, kernels, before);
            total += Lap::thread(|| {
                decoder
                    .absorb(vector, payload)
                    .expect("a block of this generation");
            });
            decoder.finish(&mut bytes).expect("n independent blocks");
        }
        (total, bytes)
    };
    let (is_right, work) = (run(work, 1).1 == work.source, Arc::clone(work));
    Checked::new(is_right, 1, move |repeats| run(&work, repeats).0)
}

/// A block of a seed that came before; the decoder lacks the last one.
pub(super) fn useless(work: &Arc<Work>, kernels: Kernels) -> Option<Checked> {
    let blocks = work.blocks();
    let mut decoder = decoder(work, kernels, &blocks[..blocks.len() - 1]);
    refuse(work, move |vector, payload| decoder.absorb(vector, payload))
}

pub(super) fn progressive_useless(work: &Arc<Work>, kernels: Kernels) -> Option<Checked> {
    let blocks = work.blocks();
    let mut decoder = drag(work, kernels, &blocks[..blocks.len() - 1]);
    refuse(work, move |vector, payload| decoder.absorb(vector, payload))
}

/// What a decoder that has the first block does with it.
fn refuse(
    work: &Arc<Work>,
    mut absorb: impl FnMut(&Vector, &[u8]) -> Result<Outcome, codec::Error> + 'static,
) -> Option<Checked> {
    let (vector, payload) = (
        Vector::Seed(work.first_seed),
        work.coded[..work.block_bytes()].to_vec(),
    );
    let mut offer = move || absorb(&vector, &payload);
    // With n = 1 it is the last block, the first time.
    let is_right = offer().is_ok() && offer() == Ok(Outcome::Redundant);
    Checked::new(is_right, 1, move |repeats| {
        Lap::thread(|| (0..repeats).for_each(|_| _ = black_box(offer())))
    })
}

pub(super) fn recode(work: &Arc<Work>, kernels: Kernels) -> Option<Checked> {
    let mut recoder = Recoder::new(work, kernels);
    recoder.run();
    let is_right = recoder.is_right(work);
    Checked::new(is_right, work.source.len(), move |repeats| {
        Lap::thread(|| (0..repeats).for_each(|_| recoder.run()))
    })
}

/// A full decoder, and memory for as many new blocks as it holds.
pub(super) struct Recoder {
    decoder: Decoder,
    rng: SmallRng,
    pub(super) vectors: Vec<u8>,
    pub(super) payloads: Vec<u8>,
}

impl Recoder {
    pub(super) fn new(work: &Work, kernels: Kernels) -> Self {
        let decoder = decoder(work, kernels, &work.blocks());
        let (vectors, payloads) = (vec![0; work.n() * work.n()], vec![0; work.source.len()]);
        Self {
            decoder,
            rng: SmallRng::seed_from_u64(1),
            vectors,
            payloads,
        }
    }

    pub(super) fn run(&mut self) {
        let n = usize::from(self.decoder.n());
        let k = self.payloads.len() / n;
        let mut vectors: Vec<&mut [u8]> = self.vectors.chunks_exact_mut(n).collect();
        let mut payloads: Vec<&mut [u8]> = self.payloads.chunks_exact_mut(k).collect();
        self.decoder
            .recode_into(&mut self.rng, &mut vectors, &mut payloads);
    }

    /// Whether blocks match their vectors. Checks the first ones only: their rows differ from those
    /// of the work, so the oracle multiplies once for each.
    pub(super) fn is_right(&self, work: &Work) -> bool {
        let (n, k) = (work.n(), work.block_bytes());
        let mut blocks = self
            .vectors
            .chunks_exact(n)
            .zip(self.payloads.chunks_exact(k))
            .take(RECODED_CHECKED);
        blocks.all(|(row, payload)| {
            row.iter().any(|&c| c != 0) && payload == oracle::combine(row, &work.source, k)
        })
    }
}

pub(super) fn invert(work: &Arc<Work>, kernels: Kernels) -> Option<Checked> {
    let (n, rows) = (work.n(), work.rows());
    let is_right = matrix::invert(kernels, n, &rows, NonZeroUsize::MIN)? == work.inverse()?;
    let run = move |repeats: u32| {
        Lap::thread(|| {
            (0..repeats).for_each(|_| {
                drop(black_box(matrix::invert(
                    kernels,
                    n,
                    &rows,
                    NonZeroUsize::MIN,
                )))
            })
        })
    };
    Checked::new(is_right, 1, run)
}

const RECODED_CHECKED: usize = 32;
