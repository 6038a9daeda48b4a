//! What is counted: over all sources, and for each of them.

use std::time::Duration;

use crate::object::SegmentId;

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks of open requests.
    pub blocks: u64,
    /// Innovative ones.
    pub innovative: u64,
    /// Redundant ones.
    pub useless: u64,
    /// Source blocks.
    pub systematic: u64,
    /// Datagrams of open requests that never came.
    pub lost: u64,
    /// Those of them whose generation was completed without them.
    pub repaired: u64,
    /// Blocks of requests that had ended.
    pub late: u64,
    /// Blocks that the network delivered twice.
    pub duplicate: u64,
    /// Datagrams that belong to no request, or contain no block.
    pub stray: u64,
    /// Bytes of payload in blocks of open requests.
    pub payload_bytes: u64,
    /// Those of them that came from neighbours.
    pub neighbour_bytes: u64,
    /// Generations completed.
    pub generations: u64,
    /// Those of them whose payloads were processed as they came, because their deadline was near.
    pub generations_progressive: u64,
    /// Blocks requested ahead of need: the deadline left no time to request lost ones again.
    pub ahead: u64,
    /// Those of them, at least, that replaced blocks which were lost or redundant and were not
    /// requested again.
    pub ahead_used: u64,
    /// Generations that these completed without another round trip.
    pub generations_spared: u64,
    /// CREDITs sent: top-ups and probes.
    pub credits: u64,
    /// Blocks requested from another source because the first one was silent, or far slower than
    /// before.
    pub reassigned: u64,
    /// Blocks over the prime field that were tested.
    pub tested: u64,
    /// The number of batches that these were tested in.
    pub tests: u64,
    /// Blocks that were proved wrong, and dropped.
    pub wrong: u64,
    /// Sources that are no longer used, because they sent such blocks or forged answers.
    pub polluters: u64,
    /// Wrong segments that were repaired by dropping such blocks.
    pub mended: u64,
    /// Bytes of blocks kept until their segments are verified.
    pub kept_bytes: u64,
}

/// Counts of one source since the start, and the present state of the path to it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SourceCounts {
    /// Blocks of open requests.
    pub blocks: u64,
    /// Innovative ones.
    pub innovative: u64,
    /// Redundant ones.
    pub useless: u64,
    /// Source blocks.
    pub systematic: u64,
    /// Datagrams of open requests that never came.
    pub lost: u64,
    /// Bytes of payload in blocks of open requests.
    pub payload_bytes: u64,
    /// Blocks that were proved wrong.
    pub wrong: u64,
    /// Whether it is no longer used, because it made wrong blocks or forged answers.
    pub is_polluter: bool,
    /// Share of the datagrams that are lost at present.
    pub loss: f64,
    /// Bytes of payload a second at present.
    pub rate: f64,
    /// The round trip, once it is measured.
    pub rtt: Option<Duration>,
}

/// The progress of one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The segment.
    pub segment: SegmentId,
    /// Index of the generation.
    pub generation: u32,
    /// Independent blocks held.
    pub rank: u16,
    /// Blocks needed.
    pub n: u16,
}
