//! Names of segments and generations: on the wire, and in this process.

use std::fmt;
use std::str::FromStr;

use ncs_codec::shape::{Codec, Generation, HashGroup};
use ncs_gf::RowKey;

use crate::hex;

/// Content address of a segment: a BLAKE3 hash of its bytes.
///
/// Two servers behind the same origin give the same segment the same id, whatever its path is
/// there, so their coded blocks combine. Segments whose blocks prove themselves have ids of their
/// own, one for each group of hashes: two streams may have the same bytes, and a peer that asks for
/// a segment by its id means one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId([u8; 32]);

impl SegmentId {
    /// The id of bytes that are sent unchanged, or in blocks that are combinations of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The id of a segment with these bytes whose blocks are made by this code.
    pub fn of_coded(bytes: &[u8], codec: Codec) -> Self {
        match codec {
            Codec::RlncQ { group } => Self(blake3::derive_key(context(group), bytes)),
            Codec::Rlnc | Codec::ReedSolomon { .. } | Codec::RaptorQ => Self::of(bytes),
        }
    }

    /// An id that was received.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key that coefficient rows of this segment are drawn with: the first eight bytes as a
    /// little-endian integer.
    pub fn coefficient_key(&self) -> u64 {
        let mut low = [0; 8];
        low.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(low)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for SegmentId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        hex::bytes(text).map(Self).ok_or(ParseIdError)
    }
}

/// The context of BLAKE3 in its mode of deriving keys, for ids of segments with such hashes.
pub(super) const fn context(group: HashGroup) -> &'static str {
    match group {
        HashGroup::P1024 => "ncserverd 2026-11-23 segment id, codec 4, group 1",
        HashGroup::P2048 => "ncserverd 2026-11-23 segment id, codec 4, group 2",
    }
}

/// The key that the rows of `generation` in the segment `id` are drawn with.
pub fn row_key(id: &SegmentId, generation: &Generation) -> RowKey {
    RowKey {
        key: id.coefficient_key(),
        generation: u64::from(generation.index),
    }
}

/// A text that is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a segment id must be 64 hexadecimal digits")]
pub struct ParseIdError;

/// A segment while this process holds it. Keys are never reused in one run, and never sent: the
/// wire uses [`SegmentId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentKey(pub u64);

/// A generation of a held segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationKey {
    /// The segment.
    pub segment: SegmentKey,
    /// Index of the generation in it.
    pub index: u32,
}

/// The asker of something, so that the queries of one do not hold up those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AskedBy {
    /// The account that it is counted with: the holder of a token, or an address.
    pub account: u128,
    /// The session.
    pub session: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_and_parse() {
        let id = SegmentId::of(b"abc");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("".parse::<SegmentId>().is_err());
        assert!("zz".repeat(32).parse::<SegmentId>().is_err());
    }
}
