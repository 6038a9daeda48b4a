//! Memory of this process that GPUs may write to: the ring's slabs.

use std::any::Any;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use cudarc::driver::sys;

use super::driver::Context;

/// The pinned memory of this process, shared by all GPUs and by the code that pins. Clones are the
/// same.
#[derive(Debug, Clone, Default)]
pub struct HostMemory(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The context of any GPU: memory pinned for one is pinned for all.
    context: OnceLock<Arc<Context>>,
    /// Lengths by start address.
    ranges: RwLock<BTreeMap<usize, usize>>,
}

/// Unpins its range when dropped.
struct Pin {
    shared: Arc<Shared>,
    start: usize,
}

impl HostMemory {
    /// Enables pinning.
    pub fn set_context(&self, context: &Arc<Context>) {
        // The first GPU's context serves all.
        let _ = self.0.context.set(Arc::clone(context));
    }

    /// Pins memory. `None` without a GPU, or if the system refuses.
    pub fn pin(&self, memory: &mut [u8]) -> Option<Box<dyn Any + Send + Sync>> {
        let context = self.0.context.get()?;
        let (start, len) = (memory.as_mut_ptr() as usize, memory.len());
        let registered = context
            .bind()
            .map_err(|fault| fault.to_string())
            .and_then(|()| {
                // SAFETY: the range belongs to the caller, who keeps it until the pin is dropped.
                let result = unsafe {
                    sys::cuMemHostRegister_v2(
                        memory.as_mut_ptr().cast(),
                        len,
                        sys::CU_MEMHOSTREGISTER_PORTABLE,
                    )
                };
                result.result().map_err(|error| error.to_string())
            });
        if let Err(reason) = registered {
            tracing::warn!(
                "cannot pin {len} bytes of the ring, so every block takes an extra copy: {reason}"
            );
            return None;
        }
        self.0
            .ranges
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(start, len);
        Some(Box::new(Pin {
            shared: Arc::clone(&self.0),
            start,
        }))
    }

    /// A view for a series of look-ups.
    pub fn view(&self) -> View<'_> {
        View {
            ranges: self.0.ranges.read().unwrap_or_else(PoisonError::into_inner),
            last: (0, 0),
        }
    }
}

/// The pinned ranges, locked while this lives.
pub struct View<'a> {
    ranges: RwLockReadGuard<'a, BTreeMap<usize, usize>>,
    /// The last range found: neighbours are looked up in turn.
    last: (usize, usize),
}

impl View<'_> {
    /// Start of the pinned range that contains these bytes; `None` if none does.
    pub fn range(&mut self, start: usize, len: usize) -> Option<usize> {
        let is_in =
            |(first, length): (usize, usize)| start >= first && start + len <= first + length;
        if is_in(self.last) {
            return Some(self.last.0);
        }
        let found = self
            .ranges
            .range(..=start)
            .next_back()
            .map(|(&first, &length)| (first, length));
        self.last = found.unwrap_or(self.last);
        found.filter(|range| is_in(*range)).map(|(first, _)| first)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.shared
            .ranges
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.start);
        if self
            .shared
            .context
            .get()
            .is_some_and(|context| context.bind().is_ok())
        {
            // SAFETY: it was registered with this start, and nobody who looks at `ranges` uses it
            // any more.
            let _ = unsafe { sys::cuMemHostUnregister(self.start as *mut c_void) };
        }
    }
}
