//! Random linear network coding over GF(2^8) with dense rows, and the decoders of every code whose
//! blocks are linear combinations.
//!
//! The blocks of Reed-Solomon and of RaptorQ are also rows, given by a number instead of a seed.
//! All statements about rows here hold for them, except that they are never recoded.
//!
//! There are two decoders over the same elimination. [`Decoder`] eliminates coefficients alone and
//! keeps the transform. It detects a redundant block before it touches the payload. It multiplies
//! payloads once, at the end, in one blocked multiplication for the blocks that are not source
//! blocks. It is the faster one overall, keeps the received blocks for recoding, and is the
//! default. If another processor multiplies, it can work without the transform and hand over the
//! system to be solved ([`System`]). [`Progressive`] processes payloads during elimination, so that
//! little work remains after the last block.

use std::num::NonZeroUsize;

use bytes::Bytes;
use rand::Rng;

use super::elimination::{Elimination, Tail};
use super::{Error, Outcome, block_bytes, check, check_vector, length, write_number};
use crate::block::{Block, Vector};
use crate::shape::{Generation, Shape};
use ncs_gf::{Kernels, Panel, RowKey, RowPart};

/// Makes coded blocks of a complete generation.
#[derive(Debug)]
pub struct Encoder {
    panel: Panel,
    key: RowKey,
    kernels: Kernels,
}

impl Encoder {
    /// An encoder for the bytes of `generation`, without the padding of its last block.
    pub fn new(
        generation: &Generation,
        bytes: &[u8],
        key: RowKey,
        kernels: Kernels,
    ) -> Result<Self, Error> {
        if bytes.len() != length(generation) {
            return Err(Error::Payload {
                length: bytes.len(),
                expected: length(generation),
            });
        }
        Ok(Self {
            panel: Panel::of(bytes, usize::from(generation.n), block_bytes(generation)),
            key,
            kernels,
        })
    }

    /// Bytes of a coded block.
    pub fn block_bytes(&self) -> usize {
        self.panel.block_bytes()
    }

    /// Writes a source block, with its padding.
    ///
    /// # Panics
    /// If there is no such block, or `out` is not a block long.
    pub fn source(&self, index: u16, out: &mut [u8]) {
        self.panel.copy_to(index.into(), out);
    }

    /// Approximate bytes of memory in use.
    pub fn memory_bytes(&self) -> usize {
        self.panel.memory_bytes()
    }

    /// Writes the payloads of numbered blocks, source blocks with their padding.
    ///
    /// # Panics
    /// If there is no such block, or an out is not a block long.
    pub fn numbered(&self, vectors: &[Vector], outs: &mut [&mut [u8]]) {
        let n = self.panel.n();
        let (mut rows, mut combined) = (Vec::new(), Vec::new());
        for (vector, out) in vectors.iter().zip(outs) {
            match vector {
                Vector::Source(index) => self.source(*index, out),
                vector => {
                    rows.resize(rows.len() + n, 0);
                    let start = rows.len() - n;
                    write_number(vector, &mut rows[start..]);
                    combined.push(&mut **out);
                }
            }
        }
        self.kernels.combine(
            &rows.chunks_exact(n).collect::<Vec<_>>(),
            &self.panel,
            &mut combined,
        );
    }

    /// Writes the payload of the block of `seed`.
    ///
    /// # Panics
    /// If `out` is not a block long.
    pub fn block(&self, seed: u32, out: &mut [u8]) {
        let mut row = [0; Shape::N_LIMIT as usize];
        let row = &mut row[..self.panel.n()];
        self.key.fill(seed, row);
        self.kernels.combine(&[row], &self.panel, &mut [out]);
    }

    /// Writes the payloads of the blocks of consecutive seeds, modulo 2^32. Four or more at a time
    /// are faster than one by one.
    ///
    /// # Panics
    /// If an out is not a block long.
    pub fn blocks(&self, first_seed: u32, outs: &mut [&mut [u8]]) {
        let n = self.panel.n();
        let mut rows = vec![0; n * outs.len()];
        let mut seed = first_seed;
        for row in rows.chunks_exact_mut(n) {
            self.key.fill(seed, row);
            seed = seed.wrapping_add(1);
        }
        let rows: Vec<&[u8]> = rows.chunks_exact(n).collect();
        self.kernels.combine(&rows, &self.panel, outs);
    }
}

/// Collects blocks of one generation until n of them are independent, then rebuilds the source.
///
/// Payloads are stored where they are needed later: a source block in its own place, a coded one in
/// the place of a source block that has not come (it moves if that block comes after all). Memory
/// is therefore n blocks and the two n × n matrices, whatever arrives. Pages are first written by
/// arriving blocks, if these come in order.
#[derive(Debug)]
pub struct Decoder {
    generation: Generation,
    key: RowKey,
    kernels: Kernels,
    elimination: Elimination<Kernels>,
    blocks: Vec<u8>,
    /// The place of each row's payload, in the order of arrival.
    places: Vec<u16>,
    /// The row whose payload is in each place, and whether it is the source block of this place.
    tenants: Vec<Option<Tenant>>,
    sources: u16,
    /// Vectors of the rows in the order of arrival, if there is no transform.
    vectors: Option<Vec<Vector>>,
}

#[derive(Debug, Clone, Copy)]
struct Tenant {
    row: u16,
    is_source: bool,
}

impl Decoder {
    /// An empty decoder for `generation`, whose seeded rows are drawn with `key`.
    pub fn new(generation: Generation, key: RowKey, kernels: Kernels) -> Self {
        Self::with(generation, key, kernels, Tail::Transform)
    }

    /// A decoder that only detects innovative blocks and leaves the solution to another processor:
    /// [`into_system`](Self::into_system). It does half of the work on coefficients.
    pub fn gathering(generation: Generation, key: RowKey, kernels: Kernels) -> Self {
        let vectors = Some(Vec::with_capacity(generation.n.into()));
        Self {
            vectors,
            ..Self::with(generation, key, kernels, Tail::None)
        }
    }

    fn with(generation: Generation, key: RowKey, kernels: Kernels, tail: Tail) -> Self {
        let n = usize::from(generation.n);
        Self {
            generation,
            key,
            kernels,
            elimination: Elimination::new(kernels, n, tail),
            blocks: Vec::with_capacity(n * block_bytes(&generation)),
            places: Vec::with_capacity(n),
            tenants: vec![None; n],
            sources: 0,
            vectors: None,
        }
    }

    /// Takes a received block. [`Vector::Source`] payloads come without padding, all others are
    /// whole blocks.
    pub fn absorb(&mut self, vector: &Vector, payload: &[u8]) -> Result<Outcome, Error> {
        check(&self.generation, vector, payload)?;
        let (row, key) = (self.rank(), self.key);
        if !self
            .elimination
            .absorb(|place| write_row(vector, key, place), |_| ())
        {
            return Ok(Outcome::Redundant);
        }
        if let Some(vectors) = &mut self.vectors {
            vectors.push(vector.clone());
        }
        let place = match vector {
            Vector::Source(index) => {
                self.sources += 1;
                self.vacate(*index);
                *index
            }
            _ => self.free_place(),
        };
        self.settle(
            Tenant {
                row,
                is_source: matches!(vector, Vector::Source(_)),
            },
            place,
        );
        self.put(place, payload);
        Ok(if self.is_complete() {
            Outcome::Complete
        } else {
            Outcome::Innovative
        })
    }

    /// The generation to decode.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Blocks in the generation.
    pub fn n(&self) -> u16 {
        self.generation.n
    }

    /// The number of independent blocks received.
    pub fn rank(&self) -> u16 {
        u16::try_from(self.elimination.rank()).expect("no more rows than n")
    }

    /// The number of independent blocks still needed.
    pub fn missing(&self) -> u16 {
        self.n() - self.rank()
    }

    /// Whether [`finish`](Self::finish) will succeed.
    pub fn is_complete(&self) -> bool {
        self.missing() == 0
    }

    /// Whether another processor must solve it: the decoder only gathers, and not all received
    /// blocks are source blocks.
    pub fn is_to_be_solved(&self) -> bool {
        self.vectors.is_some() && self.sources < self.n()
    }

    /// Whether this source block has arrived uncoded.
    pub fn is_source_held(&self, index: u16) -> bool {
        self.tenants
            .get(usize::from(index))
            .is_some_and(|tenant| tenant.is_some_and(|tenant| tenant.is_source))
    }

    /// A source block that has arrived uncoded, without padding.
    pub fn source(&self, index: u16) -> Option<&[u8]> {
        self.is_source_held(index).then(|| {
            let start = usize::from(index) * block_bytes(&self.generation);
            &self.blocks[start..start + self.generation.block_length(index)]
        })
    }

    /// Approximate bytes of memory in use.
    pub fn memory_bytes(&self) -> usize {
        let n = usize::from(self.n());
        n * block_bytes(&self.generation) + n * (2 * n).next_multiple_of(64)
    }

    /// Writes the source: `generation.length` bytes.
    pub fn finish(self, out: &mut [u8]) -> Result<(), Error> {
        let expected = length(&self.generation);
        if out.len() != expected {
            return Err(Error::Payload {
                length: out.len(),
                expected,
            });
        }
        out.copy_from_slice(&self.into_bytes()?);
        Ok(())
    }

    /// The source, without copying blocks that are already in place.
    pub fn into_bytes(mut self) -> Result<Vec<u8>, Error> {
        if !self.is_complete() {
            return Err(Error::Incomplete {
                missing: self.missing(),
            });
        }
        if self.is_to_be_solved() {
            return self.into_system()?.solve();
        }
        let missing: Vec<u16> = (0..self.n())
            .filter(|&index| !self.is_source_held(index))
            .collect();
        let rows: Vec<&[u8]> = missing
            .iter()
            .map(|&index| transform(&self.elimination, index))
            .collect();
        self.kernels.combine_within(
            &rows,
            &mut self.blocks,
            block_bytes(&self.generation),
            &self.places,
            &missing,
        );
        self.blocks.truncate(length(&self.generation));
        Ok(self.blocks)
    }

    /// The system to be solved, of a decoder that gathers. The payloads are not moved.
    pub fn into_system(self) -> Result<System, Error> {
        let Some(vectors) = self
            .vectors
            .as_ref()
            .filter(|_| self.elimination.rank() == usize::from(self.generation.n))
        else {
            return Err(Error::Incomplete {
                missing: self.missing(),
            });
        };
        let n = usize::from(self.n());
        let mut coefficients = vec![0; n * n];
        for (vector, &place) in vectors.iter().zip(&self.places) {
            write_row(
                vector,
                self.key,
                &mut coefficients[usize::from(place) * n..][..n],
            );
        }
        Ok(System {
            generation: self.generation,
            kernels: self.kernels,
            coefficients,
            payloads: self.blocks,
        })
    }

    /// `count` new blocks: random combinations of all received rows, with explicit vectors. Empty
    /// while no block has been received.
    pub fn recode(&self, count: usize, rng: &mut impl Rng) -> Vec<Block> {
        if self.rank() == 0 || count == 0 {
            return Vec::new();
        }
        let (n, k) = (usize::from(self.n()), block_bytes(&self.generation));
        let (mut vectors, mut payloads) = (vec![0; count * n], vec![0; count * k]);
        let (mut vector_places, mut places): (Vec<_>, Vec<_>) = vectors
            .chunks_exact_mut(n)
            .zip(payloads.chunks_exact_mut(k))
            .unzip();
        self.recode_into(rng, &mut vector_places, &mut places);
        let (vectors, payloads) = (Bytes::from(vectors), Bytes::from(payloads));
        let block = |i| Block {
            vector: Vector::Explicit(vectors.slice(i * n..(i + 1) * n)),
            payload: payloads.slice(i * k..(i + 1) * k),
        };
        (0..count).map(block).collect()
    }

    /// Writes random combinations of all received rows: n coefficients of each to `vectors`, its
    /// payload to `payloads`. Four or more at a time are faster than one by one.
    ///
    /// # Panics
    /// If no block has been received, there are not as many vectors as payloads, or one of them has
    /// another length.
    pub fn recode_into(
        &self,
        rng: &mut impl Rng,
        vectors: &mut [&mut [u8]],
        payloads: &mut [&mut [u8]],
    ) {
        let (n, held, k) = (
            usize::from(self.n()),
            usize::from(self.rank()),
            block_bytes(&self.generation),
        );
        assert!(
            held > 0 && vectors.len() == payloads.len(),
            "{} vectors of {held} rows",
            vectors.len()
        );
        assert!(
            vectors.iter().all(|vector| vector.len() == n)
                && payloads.iter().all(|payload| payload.len() == k),
            "{n} by {k}"
        );
        let mut weights = vec![0; vectors.len() * held];
        weights
            .chunks_exact_mut(held)
            .for_each(|weights| draw_weights(weights, rng));
        let weights: Vec<&[u8]> = weights.chunks_exact(held).collect();
        if let Some(known) = &self.vectors {
            self.combine_known(&weights, known, vectors);
            return self.combine_payloads(&weights, payloads);
        }
        let (sums, width) = self.combine_rows(&weights, vectors);
        let transforms = sums.chunks_exact(width).map(|sum| &sum[width - held..]);
        self.combine_payloads(&transforms.collect::<Vec<_>>(), payloads);
    }

    /// Without a transform, combines the received rows.
    fn combine_known(&self, weights: &[&[u8]], known: &[Vector], vectors: &mut [&mut [u8]]) {
        let n = usize::from(self.n());
        let mut rows = vec![0; known.len() * n];
        known
            .iter()
            .zip(rows.chunks_exact_mut(n))
            .for_each(|(vector, row)| write_row(vector, self.key, row));
        self.kernels
            .combine_scattered(weights, &rows.chunks_exact(n).collect::<Vec<_>>(), vectors);
    }

    /// Combines the stored rows into `vectors`. Returns sums, one after the other, and their
    /// length; each ends with the combination of received rows that makes its row. At full rank a
    /// row's coefficients are a unit vector, which needs no multiplication.
    fn combine_rows(&self, weights: &[&[u8]], vectors: &mut [&mut [u8]]) -> (Vec<u8>, usize) {
        let (n, held) = (usize::from(self.n()), usize::from(self.rank()));
        let first = if held == n { n } else { 0 };
        let (strip, start) = self
            .elimination
            .matrix()
            .strip(RowPart::Coefficients, held, first);
        // The strip begins on a cache line.
        let width = n + held - start;
        let mut sums = vec![0; weights.len() * width];
        self.kernels.combine_strip(
            strip,
            weights,
            &mut sums.chunks_exact_mut(width).collect::<Vec<_>>(),
            0,
            false,
        );
        for ((vector, sum), weights) in vectors
            .iter_mut()
            .zip(sums.chunks_exact(width))
            .zip(weights)
        {
            match first {
                0 => vector.copy_from_slice(&sum[..n]),
                _ => vector.iter_mut().enumerate().for_each(|(column, place)| {
                    *place = weights[self
                        .elimination
                        .row_of(column)
                        .expect("at full rank every column has a pivot")];
                }),
            }
        }
        (sums, width)
    }

    fn combine_payloads(&self, rows: &[&[u8]], payloads: &mut [&mut [u8]]) {
        let k = block_bytes(&self.generation);
        let sources = self
            .places
            .iter()
            .map(|&place| &self.blocks[usize::from(place) * k..][..k]);
        self.kernels
            .combine_scattered(rows, &sources.collect::<Vec<_>>(), payloads);
    }

    /// The last free place, because source blocks tend to come from the front; before the first
    /// source block, the first place.
    fn free_place(&self) -> u16 {
        let last = || {
            self.tenants
                .iter()
                .rposition(Option::is_none)
                .expect("a row was accepted, so a place is free")
        };
        let place = if self.sources == 0 {
            self.places.len()
        } else {
            last()
        };
        u16::try_from(place).expect("as many places as n")
    }

    /// Writes a payload, padded with zeros.
    fn put(&mut self, place: u16, payload: &[u8]) {
        let k = block_bytes(&self.generation);
        let start = usize::from(place) * k;
        if start < self.blocks.len() {
            self.blocks[start..start + payload.len()].copy_from_slice(payload);
            self.blocks[start + payload.len()..start + k].fill(0);
        } else {
            self.blocks.resize(start, 0);
            self.blocks.extend_from_slice(payload);
            self.blocks.resize(start + k, 0);
        }
    }

    /// Moves the coded payload out of a source block's place.
    fn vacate(&mut self, place: u16) {
        let Some(tenant) = self.tenants[usize::from(place)] else {
            return;
        };
        let (to, k) = (self.free_place(), block_bytes(&self.generation));
        let (from, end) = (usize::from(place) * k, usize::from(to) * k + k);
        self.blocks.resize(self.blocks.len().max(end), 0);
        self.blocks.copy_within(from..from + k, end - k);
        self.settle(tenant, to);
    }

    fn settle(&mut self, tenant: Tenant, place: u16) {
        self.tenants[usize::from(place)] = Some(tenant);
        match self.places.get_mut(usize::from(tenant.row)) {
            Some(known) => *known = place,
            None => self.places.push(place),
        }
    }
}

/// n independent rows of a generation and their payloads, which determine its source blocks.
#[derive(Debug)]
pub struct System {
    /// The generation.
    pub generation: Generation,
    /// The rows, one after the other: n × n bytes.
    pub coefficients: Vec<u8>,
    /// The payloads in the same order, whole blocks.
    pub payloads: Vec<u8>,
    kernels: Kernels,
}

impl System {
    /// Solves the system on this processor and returns the source.
    pub fn solve(self) -> Result<Vec<u8>, Error> {
        let (mut source, n) = (vec![0; self.payloads.len()], usize::from(self.generation.n));
        if !self.kernels.solve(
            n,
            &self.coefficients,
            &self.payloads,
            &mut source,
            NonZeroUsize::MIN,
        ) {
            return Err(Error::Incomplete { missing: 1 });
        }
        source.truncate(length(&self.generation));
        Ok(source)
    }
}

/// The rank of received blocks, by vectors alone: the result that a [`Decoder`] would have, for
/// receivers that keep no payloads.
#[derive(Debug)]
pub struct Rank {
    generation: Generation,
    key: RowKey,
    elimination: Elimination<Kernels>,
}

impl Rank {
    /// The rank of no blocks yet.
    pub fn new(generation: Generation, key: RowKey, kernels: Kernels) -> Self {
        Self {
            generation,
            key,
            elimination: Elimination::new(kernels, generation.n.into(), Tail::None),
        }
    }

    /// Takes the vector of a received block. Fails if it does not fit this generation.
    pub fn absorb(&mut self, vector: &Vector) -> Result<Outcome, Error> {
        check_vector(&self.generation, vector)?;
        let key = self.key;
        if !self
            .elimination
            .absorb(|place| write_row(vector, key, place), |_| ())
        {
            return Ok(Outcome::Redundant);
        }
        Ok(if self.missing() == 0 {
            Outcome::Complete
        } else {
            Outcome::Innovative
        })
    }

    /// The number of independent blocks still needed.
    pub fn missing(&self) -> u16 {
        self.generation.n - u16::try_from(self.elimination.rank()).expect("no more rows than n")
    }
}

/// Decodes while blocks arrive: every payload is reduced at once, and a source block can be read as
/// soon as it is determined.
#[derive(Debug)]
pub struct Progressive {
    generation: Generation,
    key: RowKey,
    elimination: Elimination<Kernels>,
}

impl Progressive {
    /// An empty decoder for `generation`, whose seeded rows are drawn with `key`.
    pub fn new(generation: Generation, key: RowKey, kernels: Kernels) -> Self {
        let elimination = Elimination::new(
            kernels,
            usize::from(generation.n),
            Tail::Payload(block_bytes(&generation)),
        );
        Self {
            generation,
            key,
            elimination,
        }
    }

    /// Takes a received block, as [`Decoder::absorb`] does.
    pub fn absorb(&mut self, vector: &Vector, payload: &[u8]) -> Result<Outcome, Error> {
        check(&self.generation, vector, payload)?;
        let key = self.key;
        let write = |place: &mut [u8]| place[..payload.len()].copy_from_slice(payload);
        Ok(
            match self
                .elimination
                .absorb(|place| write_row(vector, key, place), write)
            {
                false => Outcome::Redundant,
                true if self.rank() == self.generation.n => Outcome::Complete,
                true => Outcome::Innovative,
            },
        )
    }

    /// The generation to decode.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// The number of independent blocks received.
    pub fn rank(&self) -> u16 {
        u16::try_from(self.elimination.rank()).expect("no more rows than n")
    }

    /// The number of independent blocks still needed.
    pub fn missing(&self) -> u16 {
        self.generation.n - self.rank()
    }

    /// A source block without padding, if the received blocks determine it.
    pub fn source(&self, index: u16) -> Option<&[u8]> {
        let column = usize::from(index);
        if index >= self.generation.n || !self.elimination.is_unit(column) {
            return None;
        }
        let row = self.elimination.row_of(column)?;
        Some(&self.elimination.payload(row)[..self.generation.block_length(index)])
    }

    /// Writes the source: `generation.length` bytes.
    pub fn finish(&self, out: &mut [u8]) -> Result<(), Error> {
        let expected = length(&self.generation);
        if out.len() != expected {
            return Err(Error::Payload {
                length: out.len(),
                expected,
            });
        }
        for (index, block) in
            (0..self.generation.n).zip(out.chunks_mut(block_bytes(&self.generation)))
        {
            block.copy_from_slice(self.source(index).ok_or_else(|| Error::Incomplete {
                missing: self.missing(),
            })?);
        }
        Ok(())
    }

    /// The source.
    pub fn into_bytes(self) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length(&self.generation)];
        self.finish(&mut bytes)?;
        Ok(bytes)
    }
}

/// The combination of stored payloads that makes source block `index`, in the order of arrival.
fn transform(elimination: &Elimination<Kernels>, index: u16) -> &[u8] {
    let row = elimination
        .row_of(usize::from(index))
        .expect("at full rank every column has a pivot");
    elimination.transform(row)
}

/// Writes the coefficients of a checked vector over zeros.
pub fn write_row(vector: &Vector, key: RowKey, row: &mut [u8]) {
    match vector {
        Vector::Seed(seed) => key.fill(*seed, row),
        Vector::Explicit(coefficients) | Vector::Unverified(coefficients) => {
            row.copy_from_slice(coefficients)
        }
        Vector::Source(_)
        | Vector::Shard(_)
        | Vector::Symbol(_)
        | Vector::Narrow(_)
        | Vector::Wide(_) => write_number(vector, row),
    }
}

/// Draws weights that are not all zero: at low rank, all-zero weights would occur often enough to
/// waste blocks.
fn draw_weights(weights: &mut [u8], rng: &mut impl Rng) {
    rng.fill_bytes(weights);
    if weights.iter().all(|&weight| weight == 0) {
        weights[0] = 1;
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::shape::Shape;

    const KEY: RowKey = RowKey {
        key: 0x0123_4567_89ab_cdef,
        generation: 0,
    };

    fn generation(n: u16, block_bytes: u32, padding: u64) -> Generation {
        let length = u64::from(n) * u64::from(block_bytes) - padding;
        Shape::new(length, block_bytes, n)
            .unwrap()
            .generation(0)
            .unwrap()
    }

    fn bytes(generation: &Generation, rng: &mut SmallRng) -> Vec<u8> {
        let mut bytes = vec![0; length(generation)];
        rng.fill_bytes(&mut bytes);
        bytes
    }

    fn finish(decoder: Decoder) -> Vec<u8> {
        let mut out = vec![0; length(decoder.generation())];
        decoder.finish(&mut out).unwrap();
        out
    }

    /// Source and coded blocks in random order, the last one padded.
    #[test]
    fn any_mixture_decodes() {
        let mut rng = SmallRng::seed_from_u64(1);
        for (n, block_bytes, padding) in [
            (1, 64, 0),
            (1, 64, 63),
            (2, 80, 1),
            (7, 1088, 100),
            (33, 64, 17),
            (64, 1088, 0),
        ] {
            let generation = generation(n, block_bytes, padding);
            let source = bytes(&generation, &mut rng);
            let kernels = Kernels::detect();
            let encoder = Encoder::new(&generation, &source, KEY, kernels).unwrap();
            for share in [0.0, 0.3, 0.9, 1.0] {
                let mut decoder = Decoder::new(generation, KEY, kernels);
                let mut progressive = Progressive::new(generation, KEY, kernels);
                let mut rank = Rank::new(generation, KEY, kernels);
                let mut payload = vec![0; encoder.block_bytes()];
                while !decoder.is_complete() {
                    let outcomes = if rng.random_bool(share) {
                        let index = rng.random_range(0..n);
                        let start = usize::from(index) * encoder.block_bytes();
                        let block = &source[start..start + generation.block_length(index)];
                        let vector = Vector::Source(index);
                        [
                            decoder.absorb(&vector, block),
                            progressive.absorb(&vector, block),
                            rank.absorb(&vector),
                        ]
                    } else {
                        let seed = rng.random();
                        encoder.block(seed, &mut payload);
                        let vector = Vector::Seed(seed);
                        [
                            decoder.absorb(&vector, &payload),
                            progressive.absorb(&vector, &payload),
                            rank.absorb(&vector),
                        ]
                    };
                    assert!(outcomes[0] == outcomes[1] && outcomes[0] == outcomes[2]);
                    assert_eq!(outcomes[0] == Ok(Outcome::Complete), decoder.is_complete());
                    assert_eq!(
                        (decoder.rank(), decoder.missing()),
                        (progressive.rank(), rank.missing())
                    );
                }
                for index in 0..n {
                    let range = usize::from(index) * encoder.block_bytes()..;
                    let expected = &source[range][..generation.block_length(index)];
                    assert_eq!(progressive.source(index), Some(expected));
                    assert!(decoder.source(index).is_none_or(|block| block == expected));
                }
                assert_eq!(
                    decoder.absorb(&Vector::Seed(9), &payload),
                    Ok(Outcome::Redundant)
                );
                let mut out = vec![0; source.len()];
                progressive.finish(&mut out).unwrap();
                assert_eq!(out, source);
                assert_eq!(finish(decoder), source);
            }
        }
    }

    /// Who gathers takes the same blocks as who decodes, and what it gathers has the same solution.
    #[test]
    fn what_was_gathered_is_solved_elsewhere() {
        let mut rng = SmallRng::seed_from_u64(3);
        let kernels = Kernels::detect();
        for (n, share) in [(1, 0.0), (5, 1.0), (31, 0.4), (128, 0.0), (64, 0.9)] {
            let generation = generation(n, 96, 7);
            let source = bytes(&generation, &mut rng);
            let encoder = Encoder::new(&generation, &source, KEY, kernels).unwrap();
            let (mut decoder, mut gathering) = (
                Decoder::new(generation, KEY, kernels),
                Decoder::gathering(generation, KEY, kernels),
            );
            let (mut relayed, mut sink) = (false, Decoder::gathering(generation, KEY, kernels));
            while !decoder.is_complete() {
                let index = rng.random_range(0..n);
                let seed = rng.random_range(0..3 * u32::from(n));
                let (vector, payload) = match rng.random_bool(share) {
                    true => {
                        let start = usize::from(index) * 96;
                        (
                            Vector::Source(index),
                            source[start..start + generation.block_length(index)].to_vec(),
                        )
                    }
                    false => {
                        let mut payload = vec![0; 96];
                        encoder.block(seed, &mut payload);
                        (Vector::Seed(seed), payload)
                    }
                };
                assert_eq!(
                    decoder.absorb(&vector, &payload),
                    gathering.absorb(&vector, &payload)
                );
                if gathering.rank() >= n.div_ceil(2) && !std::mem::replace(&mut relayed, true) {
                    for block in gathering.recode(usize::from(n), &mut rng) {
                        sink.absorb(&block.vector, &block.payload).unwrap();
                    }
                }
            }
            while !sink.is_complete() {
                for block in gathering.recode(2, &mut rng) {
                    sink.absorb(&block.vector, &block.payload).unwrap();
                }
            }
            assert!(!decoder.is_to_be_solved() && gathering.is_to_be_solved() == (share < 1.0));
            assert!(decoder.into_system().is_err());
            let system = sink.into_system().unwrap();
            assert_eq!(
                (system.coefficients.len(), system.payloads.len()),
                (usize::from(n) * usize::from(n), usize::from(n) * 96)
            );
            assert_eq!(system.solve().unwrap(), source);
            assert_eq!(finish(gathering), source);
        }
    }

    /// server -> relay at partial rank -> relay at partial rank -> sink.
    #[test]
    fn recoded_blocks_decode_and_carry_no_more_than_was_held() {
        let mut rng = SmallRng::seed_from_u64(2);
        let generation = generation(24, 96, 5);
        let source = bytes(&generation, &mut rng);
        let kernels = Kernels::detect();
        let encoder = Encoder::new(&generation, &source, KEY, kernels).unwrap();
        let mut relay = Decoder::new(generation, KEY, kernels);
        assert!(relay.recode(1, &mut rng).is_empty());
        let mut payload = vec![0; encoder.block_bytes()];
        for seed in 0..10 {
            encoder.block(seed, &mut payload);
            relay.absorb(&Vector::Seed(seed), &payload).unwrap();
        }
        relay
            .absorb(&Vector::Source(23), &source[23 * 96..])
            .unwrap();
        let mut sink = Decoder::new(generation, KEY, kernels);
        for block in relay.recode(40, &mut rng) {
            sink.absorb(&block.vector, &block.payload).unwrap();
        }
        assert_eq!(sink.rank(), relay.rank());
        let mut seed = 100;
        while !relay.is_complete() {
            encoder.block(seed, &mut payload);
            relay.absorb(&Vector::Seed(seed), &payload).unwrap();
            seed += 1;
        }
        while !sink.is_complete() {
            for block in relay.recode(3, &mut rng) {
                sink.absorb(&block.vector, &block.payload).unwrap();
            }
        }
        assert_eq!(finish(sink), source);
    }

    #[test]
    fn malformed_blocks_are_errors_and_change_nothing() {
        let generation = generation(4, 64, 10);
        let kernels = Kernels::detect();
        let mut decoder = Decoder::new(generation, KEY, kernels);
        let explicit = |n| Vector::Explicit(vec![1; n].into());
        for (vector, length, error) in [
            (Vector::Source(4), 64, Error::Index { index: 4, n: 4 }),
            (
                Vector::Source(u16::MAX),
                64,
                Error::Index {
                    index: u16::MAX,
                    n: 4,
                },
            ),
            (
                Vector::Source(3),
                64,
                Error::Payload {
                    length: 64,
                    expected: 54,
                },
            ),
            (
                Vector::Source(0),
                54,
                Error::Payload {
                    length: 54,
                    expected: 64,
                },
            ),
            (
                Vector::Seed(1),
                63,
                Error::Payload {
                    length: 63,
                    expected: 64,
                },
            ),
            (
                Vector::Seed(1),
                65,
                Error::Payload {
                    length: 65,
                    expected: 64,
                },
            ),
            (
                Vector::Seed(1),
                0,
                Error::Payload {
                    length: 0,
                    expected: 64,
                },
            ),
            (explicit(3), 64, Error::Vector { length: 3, n: 4 }),
            (explicit(5), 64, Error::Vector { length: 5, n: 4 }),
            (explicit(0), 64, Error::Vector { length: 0, n: 4 }),
        ] {
            assert_eq!(decoder.absorb(&vector, &vec![0; length]), Err(error));
        }
        let zeros = Vector::Explicit(vec![0; 4].into());
        assert_eq!(decoder.absorb(&zeros, &[7; 64]), Ok(Outcome::Redundant));
        assert_eq!((decoder.rank(), decoder.missing()), (0, 4));
        assert_eq!(decoder.into_bytes(), Err(Error::Incomplete { missing: 4 }));
    }
}
