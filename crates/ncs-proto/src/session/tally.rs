//! Counts since the driver last read them: of a session, and of each stream.

/// Counts since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests opened.
    pub requests: u64,
    /// Blocks that the peer reported as redundant.
    pub useless: u64,
    /// Datagrams that the peer reported as lost.
    pub lost: u64,
    /// Requests that met their deadline.
    pub late: u64,
    /// Requests that went from datagrams to a stream because their blocks no longer fit.
    pub moved: u64,
    /// GETs, SUBSCRIBEs and REQUESTs refused.
    pub refused: u64,
    /// Requests ended for lack of credit.
    pub idle: u64,
    /// Requests ended because their segment had been evicted.
    pub evicted: u64,
    /// Requests rejected because they would keep too much in memory.
    pub unleased: u64,
    /// Grants that have ended.
    pub lapsed: u64,
    /// GET_HASHES answered, and refused.
    pub hashes: (u64, u64),
    /// GET_CHECKS answered, and refused.
    pub checks: (u64, u64),
    /// Reports of wrong blocks taken, and ignored.
    pub blames: (u64, u64),
    /// SIGNALs taken, and dropped.
    pub signals: (u64, u64),
}

/// Counts of one stream since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamTally {
    /// Payload bytes of blocks that left.
    pub sent_bytes: u64,
    /// Coded blocks that left.
    pub coded: u64,
    /// Blocks that left beyond the n of their request's generation.
    pub repair: u64,
    /// Requests that met their deadline.
    pub late: u64,
    /// GETs, SUBSCRIBEs and REQUESTs refused for other reasons.
    pub refused: u64,
}
