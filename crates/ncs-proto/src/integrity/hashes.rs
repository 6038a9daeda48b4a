//! Hashes of a segment's source blocks, which tell a wrong one as it comes, from any sender.

use bytes::Bytes;

use crate::object::{Codec, Generation, Shape};
use crate::wire::message::BLOCK_HASH_LEN;

/// The hashes of all source blocks of a segment, in byte order: BLAKE3 of each padded block, cut to
/// [`BLOCK_HASH_LEN`] bytes; homomorphic hashes for segments that are coded over the prime field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockHashes(Bytes);

impl BlockHashes {
    /// The hashes of the segment with these bytes; `bytes` has the shape's length. Homomorphic
    /// hashes are [made](Self::made) elsewhere, with more processing power.
    pub fn of(bytes: &[u8], shape: &Shape) -> Self {
        debug_assert!(
            !shape.codec().is_gfq(),
            "homomorphic hashes are made elsewhere"
        );
        debug_assert_eq!(
            bytes.len() as u64,
            shape.length(),
            "the bytes of another segment"
        );
        let block_bytes = shape.block_bytes() as usize;
        let hashes = bytes
            .chunks(block_bytes)
            .flat_map(|block| hash(block, block_bytes))
            .collect::<Vec<_>>();
        Self(hashes.into())
    }

    /// Homomorphic hashes, one behind the other.
    ///
    /// # Panics
    /// If they are not as long as the shape's are.
    pub fn made(hashes: Bytes, shape: &Shape) -> Self {
        assert_eq!(
            hashes.len() as u64,
            Self::bytes(shape),
            "a hash for each block"
        );
        Self(hashes)
    }

    /// Takes received hashes for a segment of `shape`, if they have this digest.
    pub fn checked(sent: Bytes, shape: &Shape, digest: &[u8; 32]) -> Option<Self> {
        let hashes = Self(sent);
        (hashes.0.len() as u64 == Self::bytes(shape) && hashes.digest() == *digest)
            .then_some(hashes)
    }

    /// Bytes of all hashes of a segment of `shape`.
    pub const fn bytes(shape: &Shape) -> u64 {
        shape.blocks() * Self::each(shape.codec()) as u64
    }

    /// Bytes of one hash.
    const fn each(codec: Codec) -> usize {
        match codec {
            Codec::RlncQ { group } => group.hash_bytes(),
            Codec::Rlnc | Codec::ReedSolomon { .. } | Codec::RaptorQ => BLOCK_HASH_LEN,
        }
    }

    /// The hashes of a generation's blocks, one behind the other. Empty for a generation of another
    /// segment.
    pub fn of_generation(&self, generation: &Generation) -> Bytes {
        let each = Self::each(generation.codec);
        let first = usize::try_from(generation.offset / u64::from(generation.block_bytes))
            .unwrap_or(usize::MAX)
            .saturating_mul(each);
        let end = first.saturating_add(usize::from(generation.n) * each);
        if end > self.0.len() {
            Bytes::new()
        } else {
            self.0.slice(first..end)
        }
    }

    /// BLAKE3 of all hashes, which a stream's key signs.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.0).as_bytes()
    }

    /// The hashes as they are sent.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// Whether source block `index` of the segment (not of the generation) is this one. The last
    /// block may lack its padding.
    pub fn fit(&self, index: u64, block: &[u8], block_bytes: u32) -> bool {
        let Some(start) = usize::try_from(index)
            .ok()
            .and_then(|index| index.checked_mul(BLOCK_HASH_LEN))
        else {
            return false;
        };
        let expected = self
            .0
            .get(start..)
            .and_then(|rest| rest.get(..BLOCK_HASH_LEN));
        expected.is_some_and(|expected| hash(block, block_bytes as usize) == expected)
    }
}

fn hash(block: &[u8], block_bytes: usize) -> [u8; BLOCK_HASH_LEN] {
    const ZEROS: [u8; 1024] = [0; 1024];
    let mut hasher = blake3::Hasher::new();
    hasher.update(block);
    let mut padding = block_bytes.saturating_sub(block.len());
    while padding > 0 {
        let some = padding.min(ZEROS.len());
        hasher.update(&ZEROS[..some]);
        padding -= some;
    }
    let mut cut = [0; BLOCK_HASH_LEN];
    cut.copy_from_slice(&hasher.finalize().as_bytes()[..BLOCK_HASH_LEN]);
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_fits_its_own_place_alone() {
        let bytes: Vec<u8> = (0..150).collect();
        let shape = Shape::new(150, 64, 2).unwrap();
        let hashes = BlockHashes::of(&bytes, &shape);
        assert_eq!(hashes.as_bytes().len() as u64, BlockHashes::bytes(&shape));
        let blocks: Vec<_> = bytes.chunks(64).collect();
        for (index, block) in blocks.iter().enumerate() {
            for place in 0..4 {
                assert_eq!(hashes.fit(place, block, 64), place == index as u64);
            }
        }
        let padded = [blocks[2], &[0; 42]].concat();
        assert!(hashes.fit(2, &padded, 64));
        assert!(!hashes.fit(u64::MAX, blocks[0], 64));
        assert_eq!(
            hashes.as_bytes()[..16],
            blake3::hash(blocks[0]).as_bytes()[..16]
        );
    }

    #[test]
    fn hashes_from_elsewhere_count_where_the_digest_says_so() {
        let shape = Shape::new(150, 64, 2).unwrap();
        let hashes = BlockHashes::of(&[7; 150], &shape);
        assert_eq!(
            BlockHashes::checked(hashes.as_bytes().clone(), &shape, &hashes.digest()),
            Some(hashes.clone())
        );
        let other = BlockHashes::of(&[8; 150], &shape);
        assert_eq!(
            BlockHashes::checked(other.as_bytes().clone(), &shape, &hashes.digest()),
            None
        );
        let longer = Shape::new(250, 64, 2).unwrap();
        assert_eq!(
            BlockHashes::checked(hashes.as_bytes().clone(), &longer, &hashes.digest()),
            None
        );
    }
}
