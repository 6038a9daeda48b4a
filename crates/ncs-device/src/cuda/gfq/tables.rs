//! Tables of powers: their size, how they are made, and how products by them are shared among a
//! card's threads.

use ncs_codec::hash::Group;

use super::layout::{group_of, number};
use super::step::{HASH_THREADS, Step};
use crate::abi;

/// How powers of so many bases are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    pub group: Group,
    /// Bases.
    pub words: usize,
    /// Bits of a digit.
    pub window: u32,
}

impl Tables {
    /// Digits of an exponent of 257 bits.
    pub const fn windows(&self) -> u32 {
        256 / self.window + 1
    }

    pub const fn bytes(&self) -> usize {
        (self.words * self.windows() as usize * self.group.hash_bytes()) << self.window
    }

    /// Products over so many rows of exponents, `exponents_pitch` apart, shared among all of a
    /// card. Addresses are yet to be given.
    pub fn hash(&self, rows: usize, exponents_pitch: usize, has_tops: bool, sms: u32) -> abi::Hash {
        let (rows, words, whole) = (number(rows), number(self.words), 256 / self.window);
        let threads = THREADS_A_SM * sms;
        let mut share = whole;
        while share > SHARE_MIN && rows * words * (whole / share) < threads {
            share /= 2;
        }
        let (all, mut items) = (words * (whole / share), 1);
        while items < ITEMS_MAX && rows * all / (2 * items) >= WAVES * threads {
            items *= 2;
        }
        abi::Hash {
            bases: 0,
            table: 0,
            exponents: 0,
            parts: 0,
            out: 0,
            bases_step: 0,
            table_step: 0,
            exponents_pitch: number(exponents_pitch),
            rows,
            words,
            tops: has_tops.into(),
            window: self.window,
            windows: self.windows(),
            share,
            items,
            count: all.div_ceil(HASH_THREADS * items),
            enters: 0,
            group: group_of(self.group),
        }
    }

    /// Makes tables for so many sets of bases, by a warp a base unless bases are many.
    pub fn make(&self, hash: abi::Hash, sets: u32, sms: u32) -> [Step; 2] {
        let is_by_lanes = number(self.words) * sets <= LANES_BASES_A_SM * sms;
        [Step::ladder(self.group, hash, sets, is_by_lanes), Step::table(self.group, hash, sets)]
    }
}

/// Threads that a multiprocessor should have of a product of powers, which is as many as its
/// registers allow.
const THREADS_A_SM: u32 = 512;
/// Bases to a multiprocessor up to which a warp takes each of them: beyond, there are threads
/// enough.
const LANES_BASES_A_SM: u32 = 16;
/// Multiplications that a thread should have at least before its thread block multiplies what its
/// threads have.
const SHARE_MIN: u32 = 4;
/// How often all threads that there is room for come round before a thread takes more.
const WAVES: u32 = 4;
const ITEMS_MAX: u32 = 8;
