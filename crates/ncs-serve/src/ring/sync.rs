//! The lock and the counters of the ring, and the number of shelves for returned slots.
//! `tests/ring_loom.rs` replaces them by loom's and compiles the same files.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex};

/// The number of lists of returned slots.
pub(crate) const SHELVES: usize = 16;
