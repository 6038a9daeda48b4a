//! Tested rows over the prime field.

use bytes::BytesMut;
use ncs_codec::block::Vector;
use ncs_codec::gfq::{self, Arithmetic as _, Coded, Cores, Recode, draw_factors};
use rand::Rng;

use super::news::News;
use crate::object::{Codec, Generation};
use crate::peer::parsed;

/// The rows of one generation.
#[derive(Debug)]
pub(super) struct Proven(gfq::Decoder);

impl Proven {
    /// No rows yet; `None` for other codes.
    pub(super) fn new(generation: &Generation) -> Option<Self> {
        let words = u16::try_from(generation.block_bytes / Codec::WORD_BYTES).ok()?;
        let shape = gfq::Shape::new(generation.n, words).filter(|_| generation.codec.is_gfq());
        shape.map(|shape| Self(gfq::Decoder::new(shape)))
    }

    /// Bytes of all rows of the generation.
    pub(super) fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }

    /// The number of independent rows.
    pub(super) fn rank(&self) -> u32 {
        u32::try_from(self.0.rank()).unwrap_or(u32::MAX)
    }

    /// Takes what was tested.
    pub(super) fn absorb(&mut self, news: News) {
        let blocks = match news {
            News::Row {
                block,
                is_checked: true,
                ..
            } => vec![block],
            News::Checked(blocks) => blocks,
            // A wrong row would spoil all blocks made from then on.
            News::Row {
                is_checked: false, ..
            } => return,
        };
        let shape = self.0.shape();
        for coded in blocks
            .iter()
            .filter_map(|block| parsed(shape, &block.vector, &block.payload))
        {
            // Blocks received again after a restart are redundant.
            let _ = self.0.absorb(coded);
        }
    }

    /// Fills `payloads` with combinations of the rows. Empty without rows.
    pub(super) fn recode(&self, random: &mut impl Rng, payloads: &mut [&mut [u8]]) -> Vec<Vector> {
        if self.0.rank() == 0 || payloads.is_empty() {
            return Vec::new();
        }
        let (shape, count) = (self.0.shape(), payloads.len());
        let held: Vec<&Coded> = self.0.blocks().iter().collect();
        let rows = draw_factors(held.len(), count, random);
        let mut vectors = BytesMut::zeroed(count * shape.recoded_vector_bytes());
        let mut made = vec![0; count * shape.payload_bytes()];
        let mut task = [Recode {
            held: &held,
            rows: &rows,
            vectors: &mut vectors,
            payloads: &mut made,
        }];
        Cores::all()
            .recode(shape, &mut task)
            .expect("the CPU does not fail");
        payloads
            .iter_mut()
            .zip(made.chunks_exact(shape.payload_bytes()))
            .for_each(|(out, payload)| out.copy_from_slice(payload));
        let vectors = vectors.freeze();
        let each = shape.recoded_vector_bytes();
        (0..count)
            .map(|index| Vector::Wide(vectors.slice(index * each..(index + 1) * each)))
            .collect()
    }
}
