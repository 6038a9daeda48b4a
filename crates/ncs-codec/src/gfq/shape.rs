//! The sizes of generations, and of what travels for them.

use ncs_gf::gfq::{self, WORD_BYTES};

/// The size of a code's generations: n blocks of a number of words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    n: u16,
    words: u16,
}

impl Shape {
    /// Maximum number of blocks of a generation.
    pub const N_MAX: u16 = 1024;
    /// Maximum number of words of a block: 64 KiB.
    pub const WORDS_MAX: u16 = 2048;

    /// The shape of `n` blocks of `words` words, at least one of each.
    pub const fn new(n: u16, words: u16) -> Option<Self> {
        let is_known = n > 0 && n <= Self::N_MAX && words > 0 && words <= Self::WORDS_MAX;
        if is_known {
            Some(Self { n, words })
        } else {
            None
        }
    }

    /// Blocks of a generation.
    pub const fn n(&self) -> usize {
        self.n as usize
    }

    /// Words of a block.
    pub const fn words(&self) -> usize {
        self.words as usize
    }

    /// Bytes of a source block.
    pub const fn block_bytes(&self) -> usize {
        self.words() * WORD_BYTES
    }

    /// Bytes of a generation's source.
    pub const fn source_bytes(&self) -> usize {
        self.n() * self.block_bytes()
    }

    /// Bytes of a coded block's payload.
    pub const fn payload_bytes(&self) -> usize {
        self.block_bytes() + self.words().div_ceil(8)
    }

    /// Bytes of the vector of a block coded at the source.
    pub const fn source_vector_bytes(&self) -> usize {
        self.n() * size_of::<u32>()
    }

    /// Bytes of the vector of a recoded block.
    pub const fn recoded_vector_bytes(&self) -> usize {
        self.n() * gfq::BYTES
    }
}
