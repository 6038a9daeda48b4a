//! The hashes of source blocks, as they come from the maker of the source.

use std::sync::Arc;

use super::group;
use crate::gfq::shape::Shape;
use crate::shape::HashGroup as Group;
use ncs_gf::montgomery::is_below;

/// Why bytes are not hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The length is not that of n hashes.
    #[error("got {length} bytes of hashes, expected {expected}")]
    Length {
        /// Length of the given bytes.
        length: usize,
        /// Required length.
        expected: usize,
    },
    /// A hash that is zero, or not below p.
    #[error("hash {0} is not between 0 and p")]
    Number(usize),
}

/// The hashes of a generation's source blocks.
#[derive(Debug, Clone)]
pub struct Hashes {
    group: Group,
    shape: Shape,
    numbers: Arc<[Box<[u64]>]>,
}

impl Hashes {
    /// The hashes of the blocks of one generation, one after the other. **The caller must have
    /// checked that the maker of the source signed these bytes**: against any others, a check
    /// proves nothing.
    pub fn signed(group: Group, shape: Shape, bytes: &[u8]) -> Result<Self, Error> {
        let expected = shape.n() * group.hash_bytes();
        if bytes.len() != expected {
            return Err(Error::Length {
                length: bytes.len(),
                expected,
            });
        }
        let number = |(index, bytes): (usize, &[u8])| {
            let limbs = group::limbs(bytes);
            let is_number =
                limbs.iter().any(|&limb| limb != 0) && is_below(&limbs, group.modulus());
            if is_number {
                Ok(limbs)
            } else {
                Err(Error::Number(index))
            }
        };
        let numbers = bytes
            .chunks_exact(group.hash_bytes())
            .enumerate()
            .map(number)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            group,
            shape,
            numbers,
        })
    }

    /// The group of the hashes.
    pub fn group(&self) -> Group {
        self.group
    }

    /// The shape of the generation.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The numbers, each in as many limbs as the group's modulus, the least significant first.
    pub fn numbers(&self) -> &[Box<[u64]>] {
        &self.numbers
    }

    /// Approximate bytes of memory in use.
    pub fn memory_bytes(&self) -> usize {
        self.numbers.len() * (self.group.hash_bytes() + size_of::<Box<[u64]>>())
    }
}
