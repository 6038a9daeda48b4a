//! Sets of numbered blocks: those that have arrived, and those that are allowed.

use std::fmt;

use crate::block::Vector;
use crate::shape::{Codec, Generation};

/// A set of numbers of source blocks and parity blocks, all below [`Codec::SHARDS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    words: [u64; Codec::SHARDS_MAX as usize / 64],
}

impl Numbers {
    /// The numbers of all blocks of a generation; `None` if it has blocks without numbers.
    pub fn of(generation: &Generation) -> Option<Self> {
        (!generation.codec.is_endless()).then(|| (0..generation.numbered()).collect())
    }

    /// The number of a block, if it has one that fits a set.
    pub fn number(vector: &Vector) -> Option<u16> {
        match vector {
            Vector::Source(number) | Vector::Shard(number) if *number < Codec::SHARDS_MAX => {
                Some(*number)
            }
            _ => None,
        }
    }

    /// Inserts a number; returns false if it was already there.
    ///
    /// # Panics
    /// If it is 256 or more.
    pub fn insert(&mut self, number: u16) -> bool {
        let (word, bit) = (
            &mut self.words[usize::from(number / 64)],
            1 << (number % 64),
        );
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Whether the set contains a number.
    pub fn contains(&self, number: u16) -> bool {
        self.words
            .get(usize::from(number / 64))
            .is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// The size of the set.
    pub fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The union of both sets.
    #[must_use]
    pub fn with(self, other: &Self) -> Self {
        Self {
            words: std::array::from_fn(|word| self.words[word] | other.words[word]),
        }
    }

    /// The numbers of this set that are not in the other.
    #[must_use]
    pub fn without(self, other: &Self) -> Self {
        Self {
            words: std::array::from_fn(|word| self.words[word] & !other.words[word]),
        }
    }

    /// The numbers, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u16> + '_ {
        (0..Codec::SHARDS_MAX).filter(|number| self.contains(*number))
    }

    /// The first runs of (first, count), at most `most` of them.
    pub fn ranges(&self, most: usize) -> Vec<(u16, u16)> {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for number in self.iter() {
            let runs = ranges.len();
            match ranges.last_mut() {
                Some((first, count)) if *first + *count == number => *count += 1,
                _ if runs == most => break,
                _ => ranges.push((number, 1)),
            }
        }
        ranges
    }

    /// The numbers in the first `most` runs.
    #[must_use]
    pub fn in_ranges(self, most: usize) -> Self {
        self.ranges(most)
            .into_iter()
            .flat_map(|(first, count)| first..first + count)
            .collect()
    }
}

impl FromIterator<u16> for Numbers {
    fn from_iter<I: IntoIterator<Item = u16>>(numbers: I) -> Self {
        let mut set = Self::default();
        numbers.into_iter().for_each(|number| {
            set.insert(number);
        });
        set
    }
}

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ranges(usize::MAX)).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(
            one in prop::collection::btree_set(0u16..256, 0..200),
            two in prop::collection::btree_set(0u16..256, 0..200),
        ) {
            let [a, b] = [&one, &two].map(|set| set.iter().copied().collect::<Numbers>());
            prop_assert_eq!(a.iter().collect::<Vec<_>>(), one.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!((a.len() as usize, a.is_empty()), (one.len(), one.is_empty()));
            prop_assert_eq!(a.with(&b), one.union(&two).copied().collect());
            prop_assert_eq!(a.without(&b), one.difference(&two).copied().collect());
            let ranges = a.ranges(usize::MAX);
            prop_assert_eq!(
                ranges
                    .iter()
                    .flat_map(|(first, count)| *first..first + count)
                    .collect::<Numbers>(),
                a
            );
            prop_assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0));
            prop_assert_eq!(
                a.in_ranges(3).ranges(usize::MAX),
                ranges[..ranges.len().min(3)].to_vec()
            );
        }
    }

    #[test]
    fn numbers_beyond_the_field_are_in_no_set() {
        let mut set: Numbers = (0..256).collect();
        assert!(!set.insert(255) && !set.contains(256) && !set.contains(u16::MAX));
        assert_eq!(Numbers::number(&Vector::Source(256)), None);
        assert_eq!(Numbers::number(&Vector::Seed(1)), None);
    }
}
