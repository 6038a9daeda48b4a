//! Tables of powers: their size, how they are made, and how products by them are shared among a
//! card's threads.

use ncs_codec::hash::Group;

use super::super::card::number;
use super::layout::group_of;
use super::step::{HASH_THREADS, Step};
use crate::abi;

/// The size and the digits of a table of powers of some bases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tables {
    pub group: Group,
    /// Number of bases.
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

    /// A task for products over `rows` rows of exponents, `exponents_pitch` apart, shared among all
    /// of a card. Its addresses are yet to be set.
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

    /// The steps that make tables for `sets` sets of bases: a warp per base, or a thread per base
    /// if there are many.
    pub fn make(&self, hash: abi::Hash, sets: u32, sms: u32) -> [Step; 2] {
        let is_by_lanes = number(self.words) * sets <= LANES_BASES_A_SM * sms;
        [
            Step::ladder(self.group, hash, sets, is_by_lanes),
            Step::table(self.group, hash, sets),
        ]
    }
}

/// Wanted threads per multiprocessor for a product of powers: as many as its registers allow.
const THREADS_A_SM: u32 = 512;
/// Up to this many bases per multiprocessor a warp takes each. With more there are threads enough.
const LANES_BASES_A_SM: u32 = 16;
/// Minimum multiplications of a thread, before its thread block multiplies the threads' results.
const SHARE_MIN: u32 = 4;
/// How often all resident threads are replaced before a thread takes more items.
const WAVES: u32 = 4;
const ITEMS_MAX: u32 = 8;
