//! Checks of batches of coded blocks against the homomorphic hashes of their generations.

use ncs_codec::gfq::Shape;
use ncs_codec::hash::{Batch, Group, Hashes};
use ncs_gf::gfq::Element;

use super::super::card::number;
use super::super::dense::{download, upload};
use super::super::driver::{Address, Fault};
use super::layout::{number_bytes, row_pitch, rows_of, spaced, weight_bytes};
use super::step::{Step, product};
use super::tables::Tables;
use super::{Inner, rows_at_once};
use crate::abi;

impl Inner {
    pub(super) fn holds(&mut self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Fault> {
        let key = |batch: &Batch<'_>| (batch.hashes().group(), batch.hashes().shape());
        let mut holds = Vec::with_capacity(batches.len());
        for batches in batches.chunk_by(|a, b| key(a) == key(b)) {
            let (group, shape) = key(&batches[0]);
            // Tables of hashes take most of the memory.
            let each = Tables {
                group,
                words: shape.n(),
                window: HASHES_WINDOW,
            }
            .bytes();
            let most = (self.work_bytes / 2 / each).clamp(1, BATCHES_MAX);
            for batches in batches.chunks(most) {
                holds.extend(self.holds_alike(group, shape, batches)?);
            }
        }
        Ok(holds)
    }

    /// Checks a few batches of one group and shape.
    fn holds_alike(
        &mut self,
        group: Group,
        shape: Shape,
        batches: &[Batch<'_>],
    ) -> Result<Vec<bool>, Fault> {
        let (n, words, bytes, sms, rows) = (
            shape.n(),
            shape.words(),
            group.hash_bytes(),
            self.card.sms,
            batches.len(),
        );
        let (tables, generators) = self.generators(group, words)?;
        let tables = Tables { words, ..tables };
        let own = Tables {
            group,
            words: n,
            window: HASHES_WINDOW,
        };
        // Batches of one generation share one table, as when a batch is halved.
        let hashes: Vec<&Hashes> = batches.iter().map(Batch::hashes).collect();
        let sets = if hashes.iter().all(|other| std::ptr::eq(*other, hashes[0])) {
            1
        } else {
            rows
        };
        let (pitch, vector_pitch) = (row_pitch(words), row_pitch(n));
        let largest = batches
            .iter()
            .map(|batch| batch.blocks().len())
            .max()
            .unwrap_or(0)
            .max(1);
        let chunk =
            rows_at_once(self.work_bytes / 4, 0, pitch + vector_pitch + WEIGHT_BYTES).min(largest);
        let partial = largest.div_ceil(chunk);
        let (left, right) = (
            tables.hash(rows, pitch, true, sms),
            own.hash(rows, vector_pitch, true, sms),
        );
        let places = self.lay(|places| BatchPlaces {
            payloads: places.take(chunk.max(partial) * pitch),
            vectors: places.take(chunk.max(partial) * vector_pitch),
            weights: places.take(chunk.max(partial) * WEIGHT_BYTES),
            partial_words: places.take(partial * pitch),
            partial_coefficients: places.take(partial * vector_pitch),
            words: places.take(rows * pitch),
            coefficients: places.take(rows * vector_pitch),
            bases: places.take(sets * n * bytes),
            table: places.take(sets * own.bytes()),
            parts: [left, right].map(|hash| places.take(rows * hash.count as usize * bytes)),
            out: [(); 2].map(|()| places.take(rows * bytes)),
        })?;
        for (index, batch) in (0_u64..).zip(batches) {
            let to = [
                places.words + index * pitch as u64,
                places.coefficients + index * vector_pitch as u64,
            ];
            self.fold(shape, batch, chunk, &places, to)?;
        }
        let step = if sets == 1 { 0 } else { 1 };
        let left = abi::Hash {
            table: generators,
            exponents: places.words,
            parts: places.parts[0],
            out: places.out[0],
            ..left
        };
        let right = abi::Hash {
            bases: places.bases,
            table: places.table,
            exponents: places.coefficients,
            parts: places.parts[1],
            out: places.out[1],
            bases_step: step * (n * bytes) as u64,
            table_step: step * own.bytes() as u64,
            ..right
        };
        let mut steps = own.make(right, number(sets), sms).to_vec();
        steps.extend(
            [left, right]
                .into_iter()
                .flat_map(|hash| [Step::fixed(group, hash), Step::join(group, hash)]),
        );
        let bases: Vec<u8> = hashes[..sets]
            .iter()
            .flat_map(|hashes| number_bytes(hashes.numbers()))
            .collect();
        let mut made = [vec![0; rows * bytes], vec![0; rows * bytes]];
        // SAFETY: places are as large as the tasks say, and every call waits for its work.
        unsafe {
            upload(places.bases, &bases)?;
            self.run(&steps)?;
            download(&mut made[0], places.out[0])?;
            download(&mut made[1], places.out[1])?;
        }
        Ok(made[0]
            .chunks_exact(bytes)
            .zip(made[1].chunks_exact(bytes))
            .map(|(left, right)| left == right)
            .collect())
    }

    /// Computes the weighted sums of a batch's words and of its coefficients. It takes `chunk`
    /// blocks at a time, and sums the results.
    fn fold(
        &self,
        shape: Shape,
        batch: &Batch<'_>,
        chunk: usize,
        places: &BatchPlaces,
        to: [Address; 2],
    ) -> Result<(), Fault> {
        let (n, words) = (shape.n(), shape.words());
        let (pitch, vector_pitch) = (row_pitch(words), row_pitch(n));
        let fold = |count: usize, sources: [Address; 2], to: [Address; 2]| {
            let product = |words, source, to| {
                product((1, count, words), [source, places.weights, to], self.field)
            };
            [
                Step::fold(product(words, sources[0], to[0]), 1),
                Step::fold(product(n, sources[1], to[1]), 1),
            ]
        };
        let partial = |index: usize| {
            let at = [
                (places.partial_words, pitch),
                (places.partial_coefficients, vector_pitch),
            ];
            at.map(|(start, pitch)| start + (index * pitch) as u64)
        };
        let count = batch.blocks().len().div_ceil(chunk);
        // SAFETY: places are as large as the tasks say, and every call waits for its work.
        unsafe {
            for (index, (blocks, weights)) in batch
                .blocks()
                .chunks(chunk)
                .zip(batch.weights().chunks(chunk))
                .enumerate()
            {
                let vectors: Vec<Element> = blocks
                    .iter()
                    .flat_map(|block| block.vector.elements())
                    .collect();
                upload(
                    places.payloads,
                    &spaced(
                        blocks.iter().map(|block| &**block.payload.as_bytes()),
                        pitch,
                    ),
                )?;
                upload(places.vectors, &rows_of(&vectors, n))?;
                upload(places.weights, &weight_bytes(weights))?;
                let to = if count == 1 { to } else { partial(index) };
                self.run(&fold(blocks.len(), [places.payloads, places.vectors], to))?;
            }
            if count != 1 {
                upload(places.weights, &weight_bytes(&vec![1; count]))?;
                self.run(&fold(count, partial(0), to))?;
            }
        }
        Ok(())
    }
}

/// Addresses for checking batches.
struct BatchPlaces {
    payloads: Address,
    vectors: Address,
    weights: Address,
    partial_words: Address,
    partial_coefficients: Address,
    words: Address,
    coefficients: Address,
    bases: Address,
    table: Address,
    parts: [Address; 2],
    out: [Address; 2],
}

/// Bits of a digit in the tables of hashes, which are used once.
const HASHES_WINDOW: u32 = 4;
const WEIGHT_BYTES: usize = 16;
const BATCHES_MAX: usize = 256;
