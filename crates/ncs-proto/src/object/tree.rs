//! One level of a segment's hash tree, which proves each part of a segment alone, before the others
//! have come.
//!
//! BLAKE3 is a tree of chunks of 1 KiB. A segment is cut into *groups* of 2^g bytes, each a whole
//! subtree, and the [`Tree`] is the list of their chaining values. They hash to the segment's id,
//! so a peer that knows the id needs no signature to believe them; and a group is right if it has
//! its chaining value. (bao and iroh call this an outboard.) Hashing a segment group by group is
//! the same work as hashing it at once.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt as _, Mode, hash_derive_key_context, merge_subtrees_non_root,
    merge_subtrees_root,
};
use bytes::Bytes;
use ncs_codec::shape::Codec;

use super::id::{SegmentId, context};

/// The chaining values of a segment's groups, which hash to its id.
#[derive(Clone, PartialEq, Eq)]
pub struct Tree(Arc<Level>);

/// Shared by all clones of the tree.
#[derive(PartialEq, Eq)]
struct Level {
    length: u64,
    codec: Codec,
    group_log: u8,
    values: Bytes,
}

impl Tree {
    /// Most groups: META, which carries the tree, is bounded.
    pub const GROUPS_MAX: usize = 1024;
    /// Smallest group, as a power of two: a chunk of BLAKE3.
    pub const GROUP_LOG_MIN: u8 = 10;
    /// Largest group, as a power of two.
    pub const GROUP_LOG_MAX: u8 = 26;
    /// Bytes of a chaining value.
    pub const VALUE_LEN: usize = 32;
    /// The group size that this side chooses where it suffices, as a power of two: small enough
    /// that little waits for the end of its group, and large enough that the tree is 0.2 % of the
    /// segment.
    const GROUP_LOG: u8 = 14;

    /// The id of a segment with these bytes and this code, and its tree; no tree if it is one
    /// group.
    pub fn of(bytes: &[u8], codec: Codec) -> (SegmentId, Option<Self>) {
        let mut group_log = Self::GROUP_LOG;
        while bytes.len().div_ceil(1 << group_log) > Self::GROUPS_MAX {
            group_log += 1;
        }
        Self::with_groups(bytes, codec, group_log)
    }

    /// The same in groups of 2^`group_log` bytes.
    ///
    /// # Panics
    /// If these are smaller than a chunk of BLAKE3.
    pub fn with_groups(bytes: &[u8], codec: Codec, group_log: u8) -> (SegmentId, Option<Self>) {
        assert!(
            group_log >= Self::GROUP_LOG_MIN,
            "groups of 2^{group_log} bytes"
        );
        if bytes.len() <= 1 << group_log {
            return (SegmentId::of_coded(bytes, codec), None);
        }
        let hashing = Hashing::of(codec);
        let groups = (0u64..).zip(bytes.chunks(1 << group_log));
        let values: Vec<_> = groups
            .map(|(index, group)| hashing.value(index << group_log, group))
            .collect();
        let id = SegmentId::from_bytes(hashing.root(&values));
        let level = Level {
            length: bytes.len() as u64,
            codec,
            group_log,
            values: values.concat().into(),
        };
        (id, Some(Self(Arc::new(level))))
    }

    /// The received tree of a segment of `length` bytes, if it is valid and hashes to the segment's
    /// id.
    pub fn checked(
        id: &SegmentId,
        length: u64,
        codec: Codec,
        group_log: u8,
        values: Bytes,
    ) -> Option<Self> {
        if !(Self::GROUP_LOG_MIN..=Self::GROUP_LOG_MAX).contains(&group_log) {
            return None;
        }
        let groups = usize::try_from(length.div_ceil(1 << group_log)).ok()?;
        let fits =
            (2..=Self::GROUPS_MAX).contains(&groups) && values.len() == groups * Self::VALUE_LEN;
        let list: Vec<ChainingValue> = values
            .as_chunks()
            .0
            .iter()
            .copied()
            .take(Self::GROUPS_MAX)
            .collect();
        let is_right = fits && Hashing::of(codec).root(&list) == *id.as_bytes();
        is_right.then(|| {
            Self(Arc::new(Level {
                length,
                codec,
                group_log,
                values,
            }))
        })
    }

    /// Number of groups in the segment: at least two.
    pub fn groups(&self) -> usize {
        self.0.values.len() / Self::VALUE_LEN
    }

    /// The range of a group in the segment. Empty behind the last.
    pub fn group(&self, index: usize) -> Range<u64> {
        let at = |index: u64| {
            index
                .saturating_mul(1 << self.0.group_log)
                .min(self.0.length)
        };
        let index = index as u64;
        at(index)..at(index.saturating_add(1))
    }

    /// The group that contains a byte.
    pub fn group_at(&self, offset: u64) -> usize {
        usize::try_from(offset >> self.0.group_log).unwrap_or(usize::MAX)
    }

    /// Bytes of the segment.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// Whether these are the bytes of a group.
    pub fn proves(&self, index: usize, bytes: &[u8]) -> bool {
        let range = self.group(index);
        if range.is_empty() || bytes.len() as u64 != range.end - range.start {
            return false;
        }
        let value = Hashing::of(self.0.codec).value(range.start, bytes);
        self.0.values.chunks(Self::VALUE_LEN).nth(index) == Some(&value)
    }

    /// Bytes of a group as a power of two.
    pub fn group_log(&self) -> u8 {
        self.0.group_log
    }

    /// The chaining values, one behind the other.
    pub fn values(&self) -> &Bytes {
        &self.0.values
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tree({} groups of {} bytes)",
            self.groups(),
            1u64 << self.0.group_log
        )
    }
}

/// How the id of a segment is made: plainly, or with a key derived from a context.
struct Hashing {
    key: Option<[u8; 32]>,
}

impl Hashing {
    fn of(codec: Codec) -> Self {
        let key = match codec {
            Codec::RlncQ { group } => Some(hash_derive_key_context(context(group))),
            Codec::Rlnc | Codec::ReedSolomon { .. } | Codec::RaptorQ => None,
        };
        Self { key }
    }

    /// The chaining value of a group that begins at `offset`.
    fn value(&self, offset: u64, group: &[u8]) -> ChainingValue {
        let mut hasher = self
            .key
            .as_ref()
            .map_or_else(Hasher::new, Hasher::new_from_context_key);
        hasher
            .set_input_offset(offset)
            .update(group)
            .finalize_non_root()
    }

    /// The hash of a segment whose groups have these values; there are at least two.
    fn root(&self, values: &[ChainingValue]) -> [u8; 32] {
        let (left, right) = self.children(values);
        *merge_subtrees_root(&left, &right, self.mode()).as_bytes()
    }

    /// The value of a subtree with these groups.
    fn subtree(&self, values: &[ChainingValue]) -> ChainingValue {
        if let [only] = values {
            return *only;
        }
        let (left, right) = self.children(values);
        merge_subtrees_non_root(&left, &right, self.mode())
    }

    /// The left one is the largest whole subtree that leaves something for the right one.
    fn children(&self, values: &[ChainingValue]) -> (ChainingValue, ChainingValue) {
        let (left, right) = values.split_at(values.len().div_ceil(2).next_power_of_two());
        (self.subtree(left), self.subtree(right))
    }

    fn mode(&self) -> Mode<'_> {
        self.key
            .as_ref()
            .map_or(Mode::Hash, Mode::DeriveKeyMaterial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::HashGroup;

    fn bytes(length: usize) -> Vec<u8> {
        (0..length)
            .map(|at| u8::try_from(at % 251).unwrap())
            .collect()
    }

    #[test]
    fn the_id_is_the_hash_of_all_bytes() {
        for codec in [
            Codec::Rlnc,
            Codec::RaptorQ,
            Codec::RlncQ {
                group: HashGroup::P1024,
            },
        ] {
            for length in [
                1,
                1023,
                1024,
                1025,
                2048,
                2049,
                3000,
                5 * 1024,
                8 * 1024,
                9 * 1024 + 1,
                16_384,
                31_000,
            ] {
                let bytes = bytes(length);
                let (id, tree) = Tree::with_groups(&bytes, codec, 10);
                assert_eq!(id, SegmentId::of_coded(&bytes, codec), "{length} bytes");
                assert_eq!(
                    tree.map_or(1, |tree| tree.groups()),
                    length.div_ceil(1024),
                    "{length} bytes"
                );
            }
        }
        let long = bytes(100_000);
        let (id, tree) = Tree::of(&long, Codec::Rlnc);
        let tree = tree.unwrap();
        assert_eq!(
            (id, tree.groups(), tree.group(6)),
            (SegmentId::of(&long), 7, 98_304..100_000)
        );
    }

    #[test]
    fn each_group_is_proven_alone() {
        for codec in [
            Codec::Rlnc,
            Codec::RlncQ {
                group: HashGroup::P2048,
            },
        ] {
            let bytes = bytes(3000);
            let tree = Tree::with_groups(&bytes, codec, 10).1.unwrap();
            for (index, group) in bytes.chunks(1024).enumerate() {
                assert!(tree.proves(index, group));
                assert!(!tree.proves((index + 1) % 3, group), "in another's place");
                let mut wrong = group.to_vec();
                wrong[0] ^= 1;
                assert!(!tree.proves(index, &wrong) && !tree.proves(index, &group[1..]));
            }
            assert!(!tree.proves(3, &[]) && !tree.proves(usize::MAX, &[]));
        }
    }

    #[test]
    fn a_tree_counts_if_it_hashes_to_the_id_and_has_a_value_for_each_group() {
        let bytes = bytes(3000);
        let (id, tree) = Tree::with_groups(&bytes, Codec::Rlnc, 10);
        let (tree, values) = (tree.clone().unwrap(), tree.unwrap().values().clone());
        let checked = |id: &SegmentId, length, codec, log, values: Bytes| {
            Tree::checked(id, length, codec, log, values)
        };
        assert_eq!(
            checked(&id, 3000, Codec::Rlnc, 10, values.clone()),
            Some(tree)
        );
        assert_eq!(
            checked(
                &SegmentId::of(b"another"),
                3000,
                Codec::Rlnc,
                10,
                values.clone()
            ),
            None
        );
        assert_eq!(
            checked(
                &id,
                3000,
                Codec::RlncQ {
                    group: HashGroup::P1024
                },
                10,
                values.clone()
            ),
            None
        );
        for (length, log) in [
            (0, 10),
            (1024, 10),
            (2048, 10),
            (3073, 10),
            (3000, 9),
            (3000, 11),
            (3000, 27),
            (u64::MAX, 26),
        ] {
            assert_eq!(
                checked(&id, length, Codec::Rlnc, log, values.clone()),
                None,
                "{length} bytes in groups of 2^{log}"
            );
        }
        for wrong in [
            values.slice(32..),
            values.slice(1..),
            Bytes::new(),
            [&values[..], &values[..32]].concat().into(),
        ] {
            assert_eq!(checked(&id, 3000, Codec::Rlnc, 10, wrong), None);
        }
    }

    #[test]
    fn a_tree_of_the_largest_segment_fits_into_meta() {
        let (_, tree) = Tree::of(&vec![7; 64 << 20], Codec::Rlnc);
        assert_eq!(tree.unwrap().groups(), Tree::GROUPS_MAX);
    }
}
