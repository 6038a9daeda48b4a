//! Names of sources, of fetches, and of generations under way.

/// Names a source: its index among those that the program has named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// Names a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(pub(super) u64);

/// Names a generation of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkId {
    pub(super) fetch: FetchId,
    /// The index of the generation in its segment.
    pub(super) index: u32,
}
