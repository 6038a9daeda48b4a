//! The division of a segment into blocks and generations, and their code.

use std::ops::Range;

/// The code of a segment's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Codec {
    /// Random linear combinations, without limit; a node with some of them can recode.
    #[default]
    Rlnc,
    /// Reed-Solomon: a fixed number of parity blocks follow the n source blocks of a generation.
    /// Any n of them all suffice.
    ReedSolomon {
        /// Parity blocks of a generation.
        parity: u16,
    },
    /// RaptorQ (RFC 6330): any number of repair symbols follow the n source blocks.
    RaptorQ,
    /// Random linear combinations over GF(q), a prime field of 257 bits, without limit. A party
    /// with the homomorphic hashes of the source blocks can tell right blocks from wrong ones, and
    /// therefore recode from right ones alone.
    RlncQ {
        /// The group of the hashes.
        group: HashGroup,
    },
}

/// The group that homomorphic hashes of blocks are elements of: a subgroup of prime order q of the
/// integers modulo a prime p, where q is the order of the blocks' field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HashGroup {
    /// p has 1024 bits, as in Chu, Zhao and Wang's paper of 2009. Discrete logarithms in it cost
    /// about 2^80 steps: a legacy strength.
    P1024,
    /// p has 2048 bits, about 2^112 steps. It takes four times the work or more.
    P2048,
}

impl HashGroup {
    /// Both groups.
    pub const ALL: [Self; 2] = [Self::P1024, Self::P2048];

    /// The number in META and in the configuration.
    pub const fn number(self) -> u8 {
        match self {
            Self::P1024 => 1,
            Self::P2048 => 2,
        }
    }

    /// The group with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|group| u64::from(group.number()) == number)
    }

    /// Bits of p.
    pub const fn bits(self) -> u32 {
        match self {
            Self::P1024 => 1024,
            Self::P2048 => 2048,
        }
    }

    /// Bytes of a hash.
    pub const fn hash_bytes(self) -> usize {
        self.bits() as usize / 8
    }
}

impl Codec {
    /// Maximum number of blocks of a generation with Reed-Solomon, including parity blocks, because
    /// the field has 256 elements.
    pub const SHARDS_MAX: u16 = 256;
    /// Maximum number of blocks of a generation over GF(q): coefficients of recoded
    /// blocks have 33 bytes each, and travel with them.
    pub const WIDE_N_MAX: u16 = 256;
    /// Bytes of a word. Blocks over GF(q) are whole multiples of it.
    pub const WORD_BYTES: u32 = 32;
    /// Maximum bytes of the homomorphic hashes of a segment.
    pub const HASHES_MAX: u64 = 16 << 20;

    /// Whether nodes that have not decoded can combine its blocks into new ones.
    pub const fn is_recodable(self) -> bool {
        matches!(self, Self::Rlnc | Self::RlncQ { .. })
    }

    /// Whether it computes over GF(q): homomorphic hashes test each of its blocks before any use.
    pub const fn is_gfq(self) -> bool {
        matches!(self, Self::RlncQ { .. })
    }

    /// Payload bytes of a coded block, if source blocks have `block_bytes`. Over GF(q), a
    /// coded word may be one bit longer than a source word; the bits follow the words.
    pub const fn coded_bytes(self, block_bytes: u32) -> u32 {
        match self {
            Self::RlncQ { .. } => block_bytes + (block_bytes / Self::WORD_BYTES).div_ceil(8),
            Self::Rlnc | Self::ReedSolomon { .. } | Self::RaptorQ => block_bytes,
        }
    }

    /// Whether there is always another block; otherwise every block has a number
    /// ([`Generation::numbered`]).
    pub const fn is_endless(self) -> bool {
        !matches!(self, Self::ReedSolomon { .. })
    }

    /// The name shown to people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rlnc => "a random linear code",
            Self::ReedSolomon { .. } => "Reed-Solomon",
            Self::RaptorQ => "RaptorQ",
            Self::RlncQ { .. } => "a random linear code over a prime field",
        }
    }
}

/// How a stream codes its segments. The same bytes may be in streams with different codings: an id
/// and a coding together name the source of blocks, and blocks of two codings never mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Coding {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Maximum number of blocks of a generation.
    pub n_max: u16,
    /// The code of the blocks.
    pub codec: Codec,
}

impl Coding {
    /// A coding that no segment has, less than all others.
    pub const LEAST: Self = Self {
        block_bytes: 0,
        n_max: 0,
        codec: Codec::Rlnc,
    };
}

/// The division of a segment into blocks and generations, and their code.
///
/// N = ceil(length / block_bytes) blocks in G = ceil(N / n_max) generations in byte order. The
/// first N mod G generations are one block longer than the others, so no segment is padded by more
/// than one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    length: u64,
    block_bytes: u32,
    n_max: u16,
    codec: Codec,
}

impl Shape {
    /// Maximum number of blocks in a generation, on the wire and in memory.
    pub const N_LIMIT: u16 = 1024;
    /// Minimum bytes of a block.
    pub const BLOCK_BYTES_MIN: u32 = 64;
    /// Maximum bytes of a block.
    pub const BLOCK_BYTES_MAX: u32 = 65_536;
    /// Blocks are whole multiples of this, so that every SIMD path and the GPU read whole words.
    pub const BLOCK_BYTES_STEP: u32 = 16;
    /// Minimum bytes of a generation that [`in_parts`](Self::in_parts) makes: as many as a group of
    /// the segment's tree.
    pub const GENERATION_MIN: u64 = 16 << 10;
    /// Maximum bytes of a segment: no number from the network leads to a larger allocation.
    pub const LENGTH_MAX: u64 = 64 << 20;

    /// A shape of these numbers, after a check. The code is a random linear one.
    pub fn new(length: u64, block_bytes: u32, n_max: u16) -> Result<Self, ShapeError> {
        if block_bytes < Self::BLOCK_BYTES_MIN {
            return Err(ShapeError::BlockBytes(block_bytes));
        }
        Self::local(length, block_bytes, n_max)
    }

    /// Like [`new`](Self::new), with blocks of 16 bytes or more, for local coding without a
    /// network.
    pub fn local(length: u64, block_bytes: u32, n_max: u16) -> Result<Self, ShapeError> {
        if length == 0 || length > Self::LENGTH_MAX {
            return Err(ShapeError::Length(length));
        }
        if !(Self::BLOCK_BYTES_STEP..=Self::BLOCK_BYTES_MAX).contains(&block_bytes)
            || !block_bytes.is_multiple_of(Self::BLOCK_BYTES_STEP)
        {
            return Err(ShapeError::BlockBytes(block_bytes));
        }
        if n_max == 0 || n_max > Self::N_LIMIT {
            return Err(ShapeError::NMax(n_max));
        }
        Ok(Self {
            length,
            block_bytes,
            n_max,
            codec: Codec::Rlnc,
        })
    }

    /// The same shape with another code.
    pub fn coded_with(self, codec: Codec) -> Result<Self, ShapeError> {
        if let Codec::ReedSolomon { parity } = codec
            && (parity == 0 || parity > Codec::SHARDS_MAX.saturating_sub(self.n_max))
        {
            return Err(ShapeError::Parity {
                parity,
                n_max: self.n_max,
            });
        }
        if let Codec::RlncQ { group } = codec {
            if !self.block_bytes.is_multiple_of(Codec::WORD_BYTES) {
                return Err(ShapeError::Words(self.block_bytes));
            }
            if self.n_max > Codec::WIDE_N_MAX {
                return Err(ShapeError::WideNMax(self.n_max));
            }
            let bytes = self.blocks() * group.hash_bytes() as u64;
            if bytes > Codec::HASHES_MAX {
                return Err(ShapeError::Hashes {
                    bytes,
                    blocks: self.blocks(),
                });
            }
        }
        Ok(Self { codec, ..self })
    }

    /// The same shape in at least about `generations` generations, or in fewer that are not shorter
    /// than [`GENERATION_MIN`](Self::GENERATION_MIN). A receiver then has the first bytes long
    /// before the last.
    pub fn in_parts(self, generations: u16) -> Self {
        let parts = u64::from(generations)
            .min(self.length / Self::GENERATION_MIN)
            .max(1);
        let blocks = u16::try_from(self.blocks().div_ceil(parts)).unwrap_or(u16::MAX);
        Self {
            n_max: self.n_max.min(blocks),
            ..self
        }
    }

    /// Bytes of the segment.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of a block (the papers' k).
    pub const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Words of a block over GF(q).
    pub const fn words(&self) -> usize {
        (self.block_bytes / Codec::WORD_BYTES) as usize
    }

    /// Payload bytes of a coded block.
    pub const fn coded_bytes(&self) -> u32 {
        self.codec.coded_bytes(self.block_bytes)
    }

    /// Maximum number of blocks of a generation of this segment.
    pub const fn n_max(&self) -> u16 {
        self.n_max
    }

    /// The code of its blocks.
    pub const fn codec(&self) -> Codec {
        self.codec
    }

    /// The coding: all but the length, which is common to the segments of a stream.
    pub const fn coding(&self) -> Coding {
        Coding {
            block_bytes: self.block_bytes,
            n_max: self.n_max,
            codec: self.codec,
        }
    }

    /// Blocks of the whole segment.
    pub const fn blocks(&self) -> u64 {
        self.length.div_ceil(self.block_bytes as u64)
    }

    /// Generations of the segment.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most LENGTH_MAX / BLOCK_BYTES_STEP = 2^22"
    )]
    pub const fn generations(&self) -> u32 {
        self.blocks().div_ceil(self.n_max as u64) as u32
    }

    /// The generation with this index, if the segment has it.
    pub fn generation(&self, index: u32) -> Option<Generation> {
        let count = u64::from(self.generations());
        let index_wide = u64::from(index);
        if index_wide >= count {
            return None;
        }
        let (even, longer) = (self.blocks() / count, self.blocks() % count);
        let first_block = index_wide * even + index_wide.min(longer);
        let n = even + u64::from(index_wide < longer);
        let offset = first_block * u64::from(self.block_bytes);
        Some(Generation {
            index,
            n: u16::try_from(n).expect("a generation has at most n_max blocks"),
            block_bytes: self.block_bytes,
            offset,
            length: (n * u64::from(self.block_bytes)).min(self.length - offset),
            codec: self.codec,
        })
    }

    /// The index of the generation that contains a byte; for bytes after the end, the last one's.
    pub fn generation_at(&self, offset: u64) -> u32 {
        let count = u64::from(self.generations());
        let (even, longer) = (self.blocks() / count, self.blocks() % count);
        let block = offset / u64::from(self.block_bytes);
        let in_longer = longer * (even + 1);
        let index = if block < in_longer {
            block / (even + 1)
        } else {
            longer + (block - in_longer) / even
        };
        u32::try_from(index.min(count - 1)).expect("there are no more generations")
    }

    /// Like [`new`](Self::new), with any number of blocks a generation, for codes that solve large
    /// ones and decoders without [`N_LIMIT`](Self::N_LIMIT).
    pub fn wide(length: u64, block_bytes: u32, n_max: u16) -> Result<Self, ShapeError> {
        let shape = Self::new(length, block_bytes, 1)?;
        if n_max == 0 {
            Err(ShapeError::NMax(n_max))
        } else {
            Ok(Self { n_max, ..shape })
        }
    }

    /// Every generation in byte order.
    pub fn iter(&self) -> impl Iterator<Item = Generation> + '_ {
        (0..self.generations()).filter_map(|index| self.generation(index))
    }
}

/// Why numbers are not a segment's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// Empty, or above [`Shape::LENGTH_MAX`].
    #[error("a segment of {0} bytes: it must have 1 to {max} bytes", max = Shape::LENGTH_MAX)]
    Length(u64),
    /// Out of range, or not a multiple of [`Shape::BLOCK_BYTES_STEP`].
    #[error("blocks of {0} bytes: the size must be a multiple of 16 from 64 to 65536")]
    BlockBytes(u32),
    /// Zero, or above [`Shape::N_LIMIT`].
    #[error("{0} blocks per generation: the number must be from 1 to 1024")]
    NMax(u16),
    /// No parity blocks, or more than the field has elements for.
    #[error(
        "{parity} parity blocks with {n_max} blocks per generation: at least 1 parity block and at \
         most 256 blocks in all"
    )]
    Parity {
        /// Parity blocks.
        parity: u16,
        /// Blocks of a generation.
        n_max: u16,
    },
    /// A block size that is not a whole number of words of GF(q).
    #[error("blocks of {0} bytes: over the prime field the size must be a multiple of 32 bytes")]
    Words(u32),
    /// So many blocks of a generation that their coefficients would be larger than a block.
    #[error(
        "{0} blocks per generation: over the prime field the number must be from 1 to {max}",
        max = Codec::WIDE_N_MAX,
    )]
    WideNMax(u16),
    /// More than [`Codec::HASHES_MAX`] bytes of homomorphic hashes.
    #[error(
        "{bytes} bytes of homomorphic hashes for the {blocks} blocks of a segment: at most {max} \
         are allowed, so use larger blocks",
        max = Codec::HASHES_MAX,
    )]
    Hashes {
        /// Bytes of all of them.
        bytes: u64,
        /// Blocks of the segment.
        blocks: u64,
    },
}

/// One generation of a segment: `n` blocks that are coded together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation {
    /// Its index in the segment, from 0.
    pub index: u32,
    /// The number of blocks.
    pub n: u16,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// The offset in the segment, in bytes.
    pub offset: u64,
    /// Its bytes without the zero padding of the last block.
    pub length: u64,
    /// The code of its blocks.
    pub codec: Codec,
}

impl Generation {
    /// The number of blocks that a session can send by number: the source blocks, followed by the
    /// parity blocks if the code has some.
    pub fn numbered(&self) -> u16 {
        match self.codec {
            Codec::ReedSolomon { parity } => self.n + parity,
            Codec::Rlnc | Codec::RaptorQ | Codec::RlncQ { .. } => self.n,
        }
    }

    /// Payload bytes of a coded block.
    pub const fn coded_bytes(&self) -> u32 {
        self.codec.coded_bytes(self.block_bytes)
    }

    /// Bytes including the padding of the last block: n × block_bytes.
    pub fn padded_length(&self) -> u64 {
        u64::from(self.n) * u64::from(self.block_bytes)
    }

    /// The range of source block `index` in the segment, without padding: the last one may be
    /// shorter.
    ///
    /// # Panics
    /// If `index` is not below `n`.
    pub fn block_range(&self, index: u16) -> Range<u64> {
        assert!(
            index < self.n,
            "block {index} of a generation of {}",
            self.n
        );
        let start = u64::from(index) * u64::from(self.block_bytes);
        let end = (start + u64::from(self.block_bytes)).min(self.length);
        self.offset + start..self.offset + end
    }

    /// Bytes of source block `index` without its padding.
    pub fn block_length(&self, index: u16) -> usize {
        let range = self.block_range(index);
        usize::try_from(range.end - range.start).expect("a block fits in memory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_tile_the_segment() {
        for (length, block_bytes, n_max) in [
            (1, 64, 1),
            (64, 64, 1),
            (65, 64, 1),
            (524_288, 4096, 128),
            (524_289, 4096, 128),
            (300_001, 1088, 64),
            (999_999, 80, 7),
        ] {
            let shape = Shape::new(length, block_bytes, n_max).unwrap();
            let mut offset = 0;
            let mut blocks = 0;
            for generation in shape.iter() {
                assert_eq!(generation.offset, offset);
                assert!(generation.n >= 1 && generation.n <= n_max);
                assert!(generation.padded_length() - generation.length < u64::from(block_bytes));
                for byte in [
                    offset,
                    offset + generation.length / 2,
                    offset + generation.length - 1,
                ] {
                    assert_eq!(shape.generation_at(byte), generation.index);
                }
                offset += generation.length;
                blocks += u64::from(generation.n);
            }
            assert_eq!(offset, length);
            assert_eq!(blocks, shape.blocks());
        }
    }

    #[test]
    fn the_longer_generations_come_first() {
        let shape = Shape::new(10 * 64, 64, 4).unwrap();
        assert_eq!(
            shape
                .iter()
                .map(|generation| generation.n)
                .collect::<Vec<_>>(),
            [4, 3, 3]
        );
    }

    #[test]
    fn short_segments_are_cut_into_short_generations() {
        let cut = |length, block_bytes, n_max| {
            let shape = Shape::new(length, block_bytes, n_max).unwrap().in_parts(16);
            (shape.n_max(), shape.generations())
        };
        // Four seconds of 264 kbit/s, 1,264 kbit/s and 8 Mbit/s, and the largest part of a file.
        assert_eq!(cut(132_000, 4096, 128), (5, 7));
        assert_eq!(cut(132_000, 1088, 64), (16, 8));
        assert_eq!(cut(632_000, 4096, 128), (10, 16));
        assert_eq!(cut(4_000_000, 4096, 128), (62, 16));
        // Sound: none of its generations is shorter than the parts by which it is proven.
        assert_eq!(cut(33_000, 4096, 128), (5, 2));
        assert_eq!(cut(8 << 20, 4096, 128), (128, 16));
        // What is bounded stays so, and a block is never cut.
        assert_eq!(cut(8 << 20, 1088, 64), (64, 121));
        assert_eq!(cut(10_000, 4096, 128), (3, 1));
        assert_eq!(cut(20_000, 65_536, 128), (1, 1));
        assert_eq!(
            Shape::new(8 << 20, 4096, 128).unwrap().in_parts(1),
            Shape::new(8 << 20, 4096, 128).unwrap()
        );
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert_eq!(Shape::new(0, 64, 1), Err(ShapeError::Length(0)));
        assert_eq!(Shape::new(1, 63, 1), Err(ShapeError::BlockBytes(63)));
        assert_eq!(Shape::new(1, 72, 1), Err(ShapeError::BlockBytes(72)));
        assert_eq!(Shape::new(1, 64, 1025), Err(ShapeError::NMax(1025)));
        assert!(Shape::new(u64::MAX, u32::MAX, u16::MAX).is_err());
    }

    #[test]
    fn parity_blocks_end_where_the_field_does() {
        let shape = Shape::new(10 * 64, 64, 200).unwrap();
        let with = |parity| shape.coded_with(Codec::ReedSolomon { parity });
        assert_eq!(
            with(0),
            Err(ShapeError::Parity {
                parity: 0,
                n_max: 200
            })
        );
        assert_eq!(
            with(57),
            Err(ShapeError::Parity {
                parity: 57,
                n_max: 200
            })
        );
        let generation = with(56).unwrap().generation(0).unwrap();
        assert_eq!((generation.n, generation.numbered()), (10, 66));
        let widest = Shape::new(1, 64, 256).unwrap();
        assert!(
            widest.coded_with(Codec::ReedSolomon { parity: 1 }).is_err()
                && widest.coded_with(Codec::RaptorQ).is_ok()
        );
    }

    #[test]
    fn blocks_over_the_prime_field_are_words_and_few() {
        let with = |length, k, n_max, group| {
            Shape::new(length, k, n_max)
                .unwrap()
                .coded_with(Codec::RlncQ { group })
        };
        let (small, large) = (HashGroup::P1024, HashGroup::P2048);
        assert_eq!(
            with(1 << 20, 4112, 128, small),
            Err(ShapeError::Words(4112))
        );
        assert_eq!(
            with(1 << 20, 4096, 257, small),
            Err(ShapeError::WideNMax(257))
        );
        // 2^17 blocks, each with a hash of 128 or 256 bytes.
        assert!(with(8 << 20, 64, 128, small).is_ok());
        assert_eq!(
            with(8 << 20, 64, 128, large),
            Err(ShapeError::Hashes {
                bytes: 32 << 20,
                blocks: 1 << 17
            })
        );
        let shape = with(64 << 20, 16_384, 128, large).unwrap();
        // 512 words, and one bit of each.
        assert_eq!(
            (
                shape.coded_bytes(),
                shape.generation(0).unwrap().coded_bytes()
            ),
            (16_448, 16_448)
        );
        assert_eq!(with(96, 96, 1, small).unwrap().coded_bytes(), 97);
        assert_eq!(Shape::new(96, 96, 1).unwrap().coded_bytes(), 96);
        assert_eq!(
            [0, 1, 2, 3].map(HashGroup::from_number),
            [None, Some(small), Some(large), None]
        );
    }
}
