//! The state of all evidence: open cases, and the queries about them.

use bytes::BytesMut;
use ncs_gf::Kernels;

use super::case::Case;
use crate::peer::config::Secret;
use crate::peer::ids::{FetchId, SourceId};
use crate::sorted::SortedMap;
use crate::time::Instant;
use crate::wire::message::GetChecks;

/// Rows of all segments that are not verified yet, and the queries about them.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub(super) kernels: Kernels,
    pub(super) bytes_max: u64,
    pub(super) secret: Secret,
    pub(super) bytes: u64,
    pub(super) cases: SortedMap<FetchId, Case>,
    pub(super) wants: Vec<Want>,
    pub(super) questions: SortedMap<u64, Question>,
    /// Segments over the prime field whose hashes have come, and have not been reported.
    pub(super) learnt: Vec<FetchId>,
    /// Whether a wrong row has ever come. From then on rows are tested as they come.
    pub(super) is_alarmed: bool,
}

/// A query to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Want {
    pub(super) fetch: FetchId,
    /// The generation whose checksums are wanted. Without one, the hashes of all blocks are wanted.
    pub(super) generation: Option<u32>,
    /// Whether the answer is for later rows, and so useless from any but the trusted source.
    pub(super) is_early: bool,
    pub(super) not_before: Option<Instant>,
    pub(super) retries: u8,
}

#[derive(Debug)]
pub(super) struct Question {
    pub(super) source: SourceId,
    pub(super) want: Want,
    pub(super) due: Instant,
    /// The latest that it may become due.
    pub(super) until: Instant,
    pub(super) asked: Asked,
}

#[derive(Debug)]
pub(super) enum Asked {
    Hashes {
        received: BytesMut,
    },
    /// `rows`: the number of rows when the query was sent.
    Checks {
        question: GetChecks,
        rows: usize,
    },
}

impl Evidence {
    pub(crate) fn new(kernels: Kernels, bytes_max: u64, secret: Secret) -> Self {
        Self {
            kernels,
            bytes_max,
            secret,
            bytes: 0,
            cases: SortedMap::new(),
            wants: Vec::new(),
            questions: SortedMap::new(),
            learnt: Vec::new(),
            is_alarmed: false,
        }
    }
}
