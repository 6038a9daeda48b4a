//! The allocator of the programs that serve.
//!
//! Packets, blocks and their bookkeeping are allocated by one thread and freed by another. Beyond
//! what a cache of each thread holds, glibc takes the lock of an arena for that, [`mimalloc`] does
//! not. But mimalloc keeps large memory for
//! later, and a server whose segments come and go would grow by hundreds of megabytes. So large
//! memory is the system's: `docs/decisions/0019-allocator.md`.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use mimalloc::MiMalloc;

/// From this size on, memory comes from the system.
const LARGE: usize = 32 << 10;

/// mimalloc for small memory, and the system's allocator for large.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allocator;

fn is_large(size: usize) -> bool {
    size >= LARGE
}

// SAFETY: each piece of memory is allocated, changed and freed by the same of the two allocators,
// which follows from its size; `layout` has the size that was asked for last.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that both ask for.
        unsafe {
            match is_large(layout.size()) {
                true => System.alloc(layout),
                false => MiMalloc.alloc(layout),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            match is_large(layout.size()) {
                true => System.alloc_zeroed(layout),
                false => MiMalloc.alloc_zeroed(layout),
            }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above, and it is from this allocator, because the size is the same.
        unsafe {
            match is_large(layout.size()) {
                true => System.dealloc(memory, layout),
                false => MiMalloc.dealloc(memory, layout),
            }
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above. Between the two, the memory is copied as far as both pieces reach, and
        // they do not overlap; `size` with this alignment is a layout by the caller's promise.
        unsafe {
            match (is_large(layout.size()), is_large(size)) {
                (true, true) => System.realloc(memory, layout, size),
                (false, false) => MiMalloc.realloc(memory, layout, size),
                _ => {
                    let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                    if !moved.is_null() {
                        ptr::copy_nonoverlapping(memory, moved, size.min(layout.size()));
                        self.dealloc(memory, layout);
                    }
                    moved
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte of memory of this size: other sizes have others, and none repeats after a page.
    fn content(size: usize, at: usize) -> u8 {
        u8::try_from((size * 31 + at * 7 + at / 251) % 251).unwrap()
    }

    #[test]
    fn memory_keeps_its_content_as_it_grows_and_shrinks_over_the_limit() {
        let sizes = [
            1,
            100,
            LARGE - 1,
            LARGE,
            3 * LARGE,
            LARGE,
            LARGE - 1,
            7,
            LARGE + 1,
        ];
        for align in [1, 8, 64, 4096] {
            let layout = |size| Layout::from_size_align(size, align).unwrap();
            // SAFETY: sizes are not zero, each piece is used within its size, and freed once.
            unsafe {
                let mut memory = Allocator.alloc_zeroed(layout(sizes[0]));
                memory.write(content(sizes[0], 0));
                for (before, size) in sizes.into_iter().zip(sizes.into_iter().skip(1)) {
                    memory = Allocator.realloc(memory, layout(before), size);
                    assert!(!memory.is_null() && memory.addr().is_multiple_of(align));
                    let kept = std::slice::from_raw_parts(memory, size.min(before));
                    let is_kept = |(at, byte): (usize, &u8)| *byte == content(before, at);
                    assert!(kept.iter().enumerate().all(is_kept), "{before} to {size}");
                    (0..size).for_each(|at| memory.add(at).write(content(size, at)));
                }
                Allocator.dealloc(memory, layout(sizes[sizes.len() - 1]));
                let zeroed = Allocator.alloc_zeroed(layout(LARGE));
                let bytes = std::slice::from_raw_parts(zeroed, LARGE);
                assert!(bytes.iter().all(|byte| *byte == 0));
                Allocator.dealloc(zeroed, layout(LARGE));
            }
        }
    }
}
