//! Decoding as a page does it, generation by generation, for `bench.mjs`, which measures the same
//! code as WebAssembly and natively. WebAssembly has no clock: the caller measures.

use bytes::Bytes;
use ncs_codec::block::Vector;
use ncs_codec::rlnc::{Decoder, Encoder};
use ncs_gf::{Kernels, RowKey};
use ncs_proto::object::{Codec, Shape};

/// Blocks of a generation, and bytes of one: what fits a datagram.
const N: u16 = 64;
const BLOCK_BYTES: u32 = 1088;
/// 4.25 MiB of source: more than the caches next to a core hold.
const GENERATIONS: u32 = 64;

/// The codes, by name, in the order in which [`Work::new`] knows them.
pub const CODES: [&str; 3] = ["rlnc", "rs", "raptorq"];

/// A segment's blocks as they come, and its bytes.
#[derive(Debug)]
pub struct Work {
    shape: Shape,
    blocks: Vec<Vec<(Vector, Bytes)>>,
    source: Vec<u8>,
    kernels: Kernels,
}

impl Work {
    /// Blocks of one of [`CODES`]: of `rlnc` coded ones alone; of the others, which a server sends
    /// after source blocks, every other block is a source block.
    ///
    /// # Panics
    /// If there is no such code.
    pub fn new(code: usize) -> Self {
        let codec = match CODES[code] {
            "rlnc" => Codec::Rlnc,
            "rs" => Codec::ReedSolomon { parity: N / 2 },
            _ => Codec::RaptorQ,
        };
        let kernels = Kernels::detect();
        let length = u64::from(GENERATIONS) * u64::from(N) * u64::from(BLOCK_BYTES);
        let shape = Shape::new(length, BLOCK_BYTES, N).and_then(|shape| shape.coded_with(codec));
        let shape = shape.expect("a shape");
        let mut state = 1_u64;
        let source: Vec<u8> = (0..length)
            .map(|_| {
                // Knuth's MMIX.
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                state.to_be_bytes()[0]
            })
            .collect();
        let blocks = (0..GENERATIONS).map(|index| {
            let generation = shape.generation(index).expect("a generation");
            let start = usize::try_from(generation.offset).expect("it is in memory");
            let bytes = &source[start..start + usize::from(N) * BLOCK_BYTES as usize];
            let encoder = Encoder::new(&generation, bytes, key(index), kernels).expect("its bytes");
            let block = |vector| {
                let mut out = vec![0; BLOCK_BYTES as usize];
                match vector {
                    Vector::Source(index) => encoder.source(index, &mut out),
                    Vector::Seed(seed) => encoder.block(seed, &mut out),
                    _ => encoder.numbered(std::slice::from_ref(&vector), &mut [&mut out]),
                }
                (vector, Bytes::from(out))
            };
            (0..N).map(|number| block(vector(codec, number))).collect()
        });
        let blocks = blocks.collect();
        Self {
            shape,
            blocks,
            source,
            kernels,
        }
    }

    /// Decodes all generations, one after the other; returns the bytes. `is_checked`: compares them
    /// with the source.
    ///
    /// # Panics
    /// If they are wrong.
    pub fn decode(&self, is_checked: bool) -> usize {
        let mut length = 0;
        for (index, blocks) in (0..).zip(&self.blocks) {
            let generation = self.shape.generation(index).expect("a generation");
            let mut decoder = Decoder::new(generation, key(index), self.kernels);
            for (vector, payload) in blocks {
                decoder.absorb(vector, payload).expect("its block");
            }
            // Of 64 dense rows one is redundant once in 255 times: the first blocks stand in.
            for index in 0..N {
                if decoder.is_complete() {
                    break;
                }
                let start = usize::from(index) * BLOCK_BYTES as usize;
                let source = &self.source[length + start..][..BLOCK_BYTES as usize];
                let taken = decoder.absorb(&Vector::Source(index), source);
                taken.expect("its block");
            }
            let bytes = decoder.into_bytes().expect("all blocks");
            assert!(!is_checked || bytes == self.source[length..length + bytes.len()]);
            length += bytes.len();
        }
        length
    }
}

fn vector(codec: Codec, number: u16) -> Vector {
    match codec {
        Codec::Rlnc | Codec::RlncQ { .. } => Vector::Seed(u32::from(number) + 1),
        _ if number.is_multiple_of(2) => Vector::Source(number),
        Codec::ReedSolomon { .. } => Vector::numbered(N + number / 2, N),
        Codec::RaptorQ => Vector::repair(u32::from(number), N),
    }
}

fn key(generation: u32) -> RowKey {
    RowKey {
        key: 7,
        generation: generation.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_decoded() {
        for (code, name) in CODES.iter().enumerate() {
            let work = Work::new(code);
            assert_eq!(work.decode(true), work.source.len(), "{name}");
        }
    }
}
