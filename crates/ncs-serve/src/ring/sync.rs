//! The lock and the counters of the ring, and how many locks slots come home by. `tests/ring_loom.rs` puts loom's in their place and compiles the same files.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex};

/// Lists of slots that have come home.
pub(crate) const SHELVES: usize = 16;
