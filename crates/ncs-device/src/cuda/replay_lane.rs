//! Replaying plans on a card. Measurements and file coding share this.

use super::card::Card;
use super::driver::{Address, Fault, Stream};
use super::launch::{self, Grid};
use crate::abi::{self, define};

/// Where the slots are, and the launch's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayShape {
    entry: &'static str,
    blocks: u32,
    warps: u32,
    shared_bytes: u32,
    slots: u32,
}

impl ReplayShape {
    /// For plans of up to `slots` slots, launches of up to `strips` strips, and `launches` launches
    /// at once.
    pub fn new(card: &Card, slots: u32, strips: u32, launches: u32) -> Self {
        Self::on(card.sms, card.shared_bytes, slots, strips, launches)
    }

    fn on(sms: u32, shared_bytes: u32, slots: u32, strips: u32, launches: u32) -> Self {
        let a_warp = slots.saturating_mul(define("NC_REPLAY_SLOT_BYTES"));
        let fit = shared_bytes / a_warp.max(1);
        let is_shared =
            fit >= SHARED_WARPS_MIN || fit.saturating_mul(sms) >= strips.saturating_mul(launches);
        // No more warps than strips: each takes memory that another launch can use.
        if is_shared {
            let warps = strips
                .div_ceil(sms)
                .clamp(1, fit.min(define("NC_REPLAY_WARPS_MAX")));
            let blocks = (fit / warps).clamp(1, BLOCKS_MAX) * sms;
            Self {
                entry: "nc_replay_shared",
                blocks,
                warps,
                shared_bytes: warps * a_warp,
                slots,
            }
        } else {
            let blocks = (GLOBAL_BLOCKS * sms).min(strips).max(1);
            let warps = strips.div_ceil(blocks).clamp(1, GLOBAL_WARPS);
            Self {
                entry: "nc_replay_global",
                blocks,
                warps,
                shared_bytes: 0,
                slots,
            }
        }
    }

    /// Device memory for the slots of all warps.
    pub fn work_bytes(self) -> usize {
        let warps = if self.shared_bytes == 0 {
            self.blocks * self.warps
        } else {
            0
        };
        warps as usize * self.slots as usize * define("NC_REPLAY_SLOT_BYTES") as usize
    }

    fn grid(self, strips: u32) -> Grid {
        Grid {
            blocks: (self.blocks.min(strips).max(1), 1, 1),
            threads: 32 * self.warps,
            shared_bytes: self.shared_bytes,
        }
    }

    /// Replays the plans, whose addresses are listed at `plans`, on the source blocks.
    ///
    /// # Safety
    /// `symbols` and `outputs` have as many symbols of each source block as its plan states, and
    /// `work` has the size that [`work_bytes`](Self::work_bytes) returns. Nothing else uses this
    /// memory until the stream is done. No plan has more slots than the shape.
    pub unsafe fn replay(self, card: &Card, blocks: &Blocks, stream: &Stream) -> Result<(), Fault> {
        let count = |number: usize| u32::try_from(number).expect("fewer than 2^32");
        let task = abi::Replay {
            plans: blocks.plans,
            symbols: blocks.symbols,
            outputs: blocks.outputs,
            symbols_pitch: blocks.symbols_pitch as u64,
            outputs_pitch: blocks.outputs_pitch as u64,
            work: blocks.work,
            blocks: count(blocks.count),
            symbol_bytes: count(blocks.symbol_bytes),
            slots: self.slots,
            reserved: 0,
        };
        let grid = self.grid(count(blocks.count * strips_of(blocks.symbol_bytes)));
        // SAFETY: the caller's promise.
        unsafe { launch::replay(card, self.entry, grid, &task, stream) }
    }
}

/// Source blocks on the card.
#[derive(Debug, Clone, Copy)]
pub struct Blocks {
    /// Addresses of the plans, one per source block.
    pub plans: Address,
    pub symbols: Address,
    pub outputs: Address,
    /// Bytes from one source block to the next.
    pub symbols_pitch: usize,
    pub outputs_pitch: usize,
    /// Slots in device memory, for `nc_replay_global`.
    pub work: Address,
    pub count: usize,
    /// A multiple of 4.
    pub symbol_bytes: usize,
}

/// Number of strips of a source block.
pub fn strips_of(symbol_bytes: usize) -> usize {
    symbol_bytes.div_ceil(define("NC_REPLAY_SLOT_BYTES") as usize)
}

/// With fewer warps per multiprocessor, slots are kept in device memory. It has room for 32 warps,
/// each of which waits for its own sums, and caches hold a part of the slots. (Two warps fit for K
/// = 511. Many such blocks took three times as long as blocks of K = 1,002, of which none fits.)
const SHARED_WARPS_MIN: u32 = 8;
/// Maximum thread blocks per multiprocessor.
const BLOCKS_MAX: u32 = 4;
const GLOBAL_BLOCKS: u32 = 4;
const GLOBAL_WARPS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_in_shared_memory_where_enough_warps_have_room() {
        let shape =
            |slots, strips, launches| ReplayShape::on(132, 232_448, slots, strips, launches);
        let small = shape(20, 100_000, 1);
        assert_eq!(
            (small.entry, small.blocks, small.warps),
            ("nc_replay_shared", 4 * 132, 16)
        );
        let medium = shape(130, 2048, 1);
        assert_eq!(
            (medium.entry, medium.blocks, medium.warps),
            ("nc_replay_shared", 132, 13)
        );
        let piece = shape(130, 128, 8);
        assert_eq!(
            (piece.blocks, piece.warps, piece.shared_bytes),
            (4 * 132, 1, 130 * 128)
        );
        for (strips, launches, entry) in [
            (8, 1, "nc_replay_shared"),
            (132, 1, "nc_replay_shared"),
            (128, 2, "nc_replay_global"),
            (133, 1, "nc_replay_global"),
        ] {
            let large = shape(1816, strips, launches);
            assert_eq!(large.entry, entry, "{launches} launches of {strips} strips");
            assert!(
                large.shared_bytes <= 232_448
                    && (large.work_bytes() == 0) == (large.shared_bytes > 0)
            );
        }
        let larger = shape(1817, 100_000, 1);
        assert_eq!((larger.entry, larger.shared_bytes), ("nc_replay_global", 0));
        assert_eq!(larger.work_bytes(), 132 * 4 * 8 * 1817 * 128);
        assert_eq!(
            (larger.grid(5).blocks.0, shape(1817, 1, 1).entry),
            (5, "nc_replay_global")
        );
    }

    #[test]
    fn few_strips_take_little_memory() {
        for (strips, warps) in [
            (1, 1),
            (32, 32),
            (528, 528),
            (600, 1056),
            (1056, 1056),
            (5000, 4224),
        ] {
            let shape = ReplayShape::on(132, 232_448, 6000, strips, 1);
            assert_eq!(shape.work_bytes(), warps * 6000 * 128, "{strips}");
            assert!(
                shape.grid(strips).blocks.0 * shape.warps >= strips.min(4224),
                "{strips}"
            );
        }
    }
}
