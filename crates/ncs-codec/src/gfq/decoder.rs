//! Collection of blocks until a generation has enough independent ones.

use super::arithmetic::{Arithmetic, Decode, Rebuilt};
use super::block::{Coded, Vector};
use super::cores::Cores;
use super::error::Error;
use super::shape::Shape;
use crate::Outcome;
use ncs_gf::gfq::{Element, Factor, Sum};

/// Collects blocks of one generation until n of them are independent, then rebuilds the source.
///
/// It eliminates on the coefficients alone, as blocks arrive, so it detects a redundant block
/// before any work on the payload. It stores blocks unchanged. At the end the given [`Arithmetic`]
/// inverts the vectors and multiplies the payloads.
#[derive(Debug)]
pub struct Decoder {
    shape: Shape,
    blocks: Vec<Coded>,
    /// The pivot column of each block, in their order.
    pivots: Vec<usize>,
    /// For each column, the row whose first non-zero coefficient is there, and is one; from this
    /// column on.
    rows: Vec<Option<Box<[Factor]>>>,
}

impl Decoder {
    /// An empty decoder.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            blocks: Vec::new(),
            pivots: Vec::new(),
            rows: vec![None; shape.n()],
        }
    }

    /// Stores a block, unless it is a combination of stored ones.
    pub fn absorb(&mut self, block: Coded) -> Result<Outcome, Error> {
        block.fits(self.shape)?;
        let n = self.shape.n();
        let Some((pivot, mut rest)) = (if self.is_complete() {
            None
        } else {
            self.reduce(&block.vector)
        }) else {
            return Ok(Outcome::Redundant);
        };
        let inverse = rest[0]
            .inverse()
            .expect("what is first is not zero")
            .factor();
        rest.iter_mut()
            .for_each(|element| *element = inverse.times(element));
        debug_assert_eq!(rest.len(), n - pivot, "the rest of a row");
        self.rows[pivot] = Some(rest.iter().map(Element::factor).collect());
        self.pivots.push(pivot);
        self.blocks.push(block);
        Ok(if self.is_complete() {
            Outcome::Complete
        } else {
            Outcome::Innovative
        })
    }

    /// Whether a block with this vector, of this shape, would be redundant: a combination of stored
    /// blocks.
    pub fn is_redundant(&self, vector: &Vector) -> bool {
        self.is_complete() || self.reduce(vector).is_none()
    }

    /// Forgets all blocks except the first `rank`, as if the others had never come.
    pub fn truncate(&mut self, rank: usize) {
        self.blocks.truncate(rank);
        // No row is changed by those that come after it.
        self.pivots
            .drain(rank.min(self.pivots.len())..)
            .for_each(|pivot| self.rows[pivot] = None);
    }

    /// The generations' shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The number of independent blocks received.
    pub fn rank(&self) -> usize {
        self.blocks.len()
    }

    /// The number of independent blocks still needed.
    pub fn missing(&self) -> usize {
        self.shape.n() - self.rank()
    }

    /// Whether there are enough blocks.
    pub fn is_complete(&self) -> bool {
        self.missing() == 0
    }

    /// The stored blocks, in the order of arrival.
    pub fn blocks(&self) -> &[Coded] {
        &self.blocks
    }

    /// Approximate bytes of memory when complete.
    pub fn memory_bytes(&self) -> usize {
        let n = self.shape.n();
        n * self.shape.payload_bytes() + (n * n + n * (n + 1) / 2) * size_of::<Element>()
    }

    /// The source, with its padding. If `arithmetic` finds no solution, the cores try again.
    pub fn into_bytes(self, arithmetic: &dyn Arithmetic) -> Result<Vec<u8>, Error> {
        if !self.is_complete() {
            return Err(Error::Incomplete(self.missing()));
        }
        let mut out = vec![0; self.shape.source_bytes()];
        let blocks: Vec<&Coded> = self.blocks.iter().collect();
        if arithmetic.decode(
            self.shape,
            &mut [Decode {
                blocks: &blocks,
                out: &mut out,
            }],
        )? == [Rebuilt::Whole]
        {
            return Ok(out);
        }
        // That is said of blocks that nobody may have sent wrong, and a card may be.
        match Cores::all()
            .decode(
                self.shape,
                &mut [Decode {
                    blocks: &blocks,
                    out: &mut out,
                }],
            )?
            .as_slice()
        {
            [Rebuilt::Whole] => Ok(out),
            [Rebuilt::Overflow] => Err(Error::Overflow),
            _ => unreachable!("independent rows have an inverse"),
        }
    }

    /// Coefficients less what the held rows explain of them, from the first on that they do not;
    /// nothing if they explain all.
    fn reduce(&self, vector: &Vector) -> Option<(usize, Vec<Element>)> {
        let mut used: Vec<(usize, &[Factor], Element)> = Vec::with_capacity(self.rank());
        let mut found: Option<(usize, Vec<Element>)> = None;
        for (column, coefficient) in vector.elements().enumerate() {
            // Each column is one sum of products: what stands in it, less what the rows before have
            // there.
            let mut sum = Sum::default();
            used.iter()
                .for_each(|(first, row, factor)| sum.add(&row[column - first], factor));
            let left = coefficient.add(&sum.reduce());
            match (&mut found, &self.rows[column]) {
                (_, Some(row)) if left != Element::ZERO => {
                    used.push((column, row, left.neg()));
                    if let Some((_, rest)) = &mut found {
                        rest.push(Element::ZERO);
                    }
                }
                (Some((_, rest)), _) => rest.push(left),
                (None, None) if left != Element::ZERO => found = Some((column, vec![left])),
                (None, _) => {}
            }
        }
        found
    }
}
