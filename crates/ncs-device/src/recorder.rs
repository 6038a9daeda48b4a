//! Events of a device's work, for a program that counts them.
//!
//! This module depends on no metrics library. A program that exports metrics of a device implements
//! [`Recorder`]; others pass [`Unrecorded`].

use std::fmt;
use std::time::Duration;

use super::backend::Memory;

/// Receives the events of a device's back ends. The device calls it from several threads, a few
/// times for each batch, so its methods must not block.
pub trait Recorder: fmt::Debug + Send + Sync {
    /// A back end has been opened. Gets its kind (`cpu` or `cuda`), its kernel, and its device
    /// (`cpu`, or the number of a GPU). Returns the receiver of its events.
    fn opened(&self, backend: &str, kernel: &str, device: &str) -> Box<dyn Tally>;
    /// A back end was lost, and the CPU has taken over its work.
    fn fell_back(&self);
}

/// Receives the events of one back end.
pub trait Tally: fmt::Debug + Send {
    /// Records an event.
    fn note(&self, event: Event);
}

/// An event of a back end. Times do not include the wait in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A batch was begun.
    BatchBegun,
    /// A batch has ended, with or without success.
    BatchEnded,
    /// A batch was combined.
    Combined {
        /// How long it took.
        elapsed: Duration,
        /// Payload bytes of its coded blocks.
        coded_bytes: u64,
    },
    /// The generations of one call were decoded.
    Decoded {
        /// How long it took.
        elapsed: Duration,
        /// Bytes of the generations.
        bytes: u64,
    },
    /// A segment was brought into its resident form.
    Loaded {
        /// How long it took.
        elapsed: Duration,
        /// Memory that it takes.
        resident_bytes: u64,
    },
    /// A resident segment was released.
    Released {
        /// Memory that it took.
        resident_bytes: u64,
    },
    /// A batch, a load or a call to decode has failed.
    Failed,
    /// Kernels and copies of a GPU have ended since the last event of this kind.
    Worked {
        /// Time that kernels took.
        kernel: Duration,
        /// Time that copies to the host took, with the wait for earlier copies.
        copy: Duration,
        /// Bytes of these copies.
        copied_bytes: u64,
        /// Bytes that kernels wrote directly into host memory.
        stored_bytes: u64,
    },
    /// The device's memory was queried.
    Memory(Memory),
}

/// Records nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unrecorded;

impl Recorder for Unrecorded {
    fn opened(&self, _: &str, _: &str, _: &str) -> Box<dyn Tally> {
        Box::new(Self)
    }

    fn fell_back(&self) {}
}

impl Tally for Unrecorded {
    fn note(&self, _: Event) {}
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Sums over all back ends of a device, for tests. Clones are the same.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Sums(Arc<Numbers>);

    #[derive(Debug, Default)]
    struct Numbers {
        fallbacks: AtomicU64,
        decoded_bytes: AtomicU64,
        resident_bytes: AtomicU64,
        resident_segments: AtomicU64,
    }

    impl Sums {
        /// Back ends lost.
        pub(crate) fn fallbacks(&self) -> u64 {
            self.0.fallbacks.load(Ordering::Relaxed)
        }

        /// Bytes of generations decoded.
        pub(crate) fn decoded_bytes(&self) -> u64 {
            self.0.decoded_bytes.load(Ordering::Relaxed)
        }

        /// Resident segments, and their bytes.
        pub(crate) fn resident(&self) -> (u64, u64) {
            (
                self.0.resident_segments.load(Ordering::Relaxed),
                self.0.resident_bytes.load(Ordering::Relaxed),
            )
        }
    }

    impl Recorder for Sums {
        fn opened(&self, _: &str, _: &str, _: &str) -> Box<dyn Tally> {
            Box::new(self.clone())
        }

        fn fell_back(&self) {
            self.0.fallbacks.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Tally for Sums {
        fn note(&self, event: Event) {
            let Numbers {
                decoded_bytes,
                resident_bytes,
                resident_segments,
                ..
            } = &*self.0;
            match event {
                Event::Decoded { bytes, .. } => {
                    decoded_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                Event::Loaded {
                    resident_bytes: bytes,
                    ..
                } => {
                    resident_bytes.fetch_add(bytes, Ordering::Relaxed);
                    resident_segments.fetch_add(1, Ordering::Relaxed);
                }
                Event::Released {
                    resident_bytes: bytes,
                } => {
                    resident_bytes.fetch_sub(bytes, Ordering::Relaxed);
                    resident_segments.fetch_sub(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
    }
}
