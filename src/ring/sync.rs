//! The lock and the counters of the ring. `tests/ring_loom.rs` puts loom's in their place and compiles the same files.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex};
