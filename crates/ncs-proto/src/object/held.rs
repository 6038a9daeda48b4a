//! Held segments, and how their stream wants them sent.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ncs_codec::shape::Shape;
use serde::{Deserialize, Serialize};

use super::id::SegmentKey;
use super::lease::Lease;
use super::tree::Tree;
use crate::time::Instant;

/// Which blocks a server sends first when a request leaves it the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FirstPass {
    /// Coded blocks throughout: each block is useful, whichever source it comes from.
    #[default]
    Coded,
    /// The source blocks once, then coded ones: cheaper for a viewer with one server.
    Systematic,
}

/// A held segment, and how its stream wants it sent.
#[derive(Debug, Clone)]
pub struct Held {
    /// Keeps it held.
    pub lease: Lease,
    /// The blocks that are sent first.
    pub first_pass: FirstPass,
    /// Non-zero coefficients in a row of its coded blocks, where rows are sparse.
    pub row_weight: Option<NonZeroU16>,
    /// Whether the holder may not have all of it yet, and recodes its rows for each peer.
    pub is_recoded: bool,
    /// When a live segment was complete at its source; `None` for segments that were fetched on
    /// demand.
    pub birth: Option<Arc<Birth>>,
    /// Its path, which begins with the stream's name. Of several paths with the same bytes, the
    /// one that was fetched last.
    pub path: Option<Arc<str>>,
    /// BLAKE3 of the hashes of its source blocks, where these are kept.
    pub blocks_digest: Option<[u8; 32]>,
    /// The tree that proves each part alone, unless the segment is short.
    pub tree: Option<Tree>,
}

/// When a live segment was complete, and whether any of it has been sent.
#[derive(Debug)]
pub struct Birth {
    at: Instant,
    sent: AtomicBool,
}

impl Birth {
    /// A segment that was complete at its source at `at`: its file closed, or its last byte read.
    pub fn new(at: Instant) -> Arc<Self> {
        Arc::new(Self {
            at,
            sent: AtomicBool::new(false),
        })
    }

    /// When it was complete at its source.
    pub fn at(&self) -> Instant {
        self.at
    }

    /// Whether it is sent for the first time: true on the first call.
    pub fn is_first_sent(&self) -> bool {
        !self.sent.load(Ordering::Relaxed) && !self.sent.swap(true, Ordering::Relaxed)
    }
}

/// A live segment that has arrived: the newest of its stream.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// The stream.
    pub stream: Arc<str>,
    /// The segment in this process.
    pub segment: SegmentKey,
    /// How it is cut.
    pub shape: Shape,
    /// As [`Held::row_weight`].
    pub row_weight: Option<NonZeroU16>,
}
