//! Plans on a card, and how they are replayed: the part that measurements and the coding of files have in common.

use super::card::Card;
use super::driver::{Address, Fault, Stream};
use super::launch::{self, Grid};
use crate::codec::raptorq::Plan;
use crate::device::abi::{self, define};

/// Where the slots are, and how it is launched at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReplayShape {
    entry: &'static str,
    blocks: u32,
    warps: u32,
    shared_bytes: u32,
    slots: u32,
}

impl ReplayShape {
    /// For plans of at most so many slots, on so many strips at once at most.
    pub(super) fn new(card: &Card, slots: u32, strips: u32) -> Self {
        Self::on(card.sms, card.shared_bytes, slots, strips)
    }

    fn on(sms: u32, shared_bytes: u32, slots: u32, strips: u32) -> Self {
        let a_warp = slots.saturating_mul(define("NC_REPLAY_SLOT_BYTES"));
        match shared_bytes / a_warp.max(1) {
            0 => {
                // No more warps than strips, for each takes memory.
                let blocks = (GLOBAL_BLOCKS * sms).min(strips).max(1);
                let warps = strips.div_ceil(blocks).clamp(1, GLOBAL_WARPS);
                Self { entry: "nc_replay_global", blocks, warps, shared_bytes: 0, slots }
            }
            fit => {
                let warps = fit.min(define("NC_REPLAY_WARPS_MAX"));
                let blocks = (fit / warps).clamp(1, BLOCKS_MAX) * sms;
                Self { entry: "nc_replay_shared", blocks, warps, shared_bytes: warps * a_warp, slots }
            }
        }
    }

    /// Bytes that the slots of all warps take in device memory.
    pub(super) fn work_bytes(self) -> usize {
        let warps = if self.shared_bytes == 0 { self.blocks * self.warps } else { 0 };
        warps as usize * self.slots as usize * define("NC_REPLAY_SLOT_BYTES") as usize
    }

    fn grid(self, strips: u32) -> Grid {
        Grid { blocks: (self.blocks.min(strips).max(1), 1, 1), threads: 32 * self.warps, shared_bytes: self.shared_bytes }
    }

    /// Replays the plans, whose addresses are at `plans`, on so many source blocks.
    ///
    /// # Safety
    /// `symbols` and `outputs` have as many symbols of each source block as its plan speaks of, `work` what
    /// [`work_bytes`](Self::work_bytes) says, and all of it is nobody else's until the stream is done. No plan has more slots than the
    /// shape.
    pub(super) unsafe fn replay(self, card: &Card, blocks: &Blocks, stream: &Stream) -> Result<(), Fault> {
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
pub(super) struct Blocks {
    /// An address for each.
    pub(super) plans: Address,
    pub(super) symbols: Address,
    pub(super) outputs: Address,
    /// Bytes from one to the next.
    pub(super) symbols_pitch: usize,
    pub(super) outputs_pitch: usize,
    /// The slots of `nc_replay_global`, which has them in device memory.
    pub(super) work: Address,
    pub(super) count: usize,
    /// A multiple of 4.
    pub(super) symbol_bytes: usize,
}

/// Strips of a source block.
pub(super) fn strips_of(symbol_bytes: usize) -> usize {
    symbol_bytes.div_ceil(define("NC_REPLAY_SLOT_BYTES") as usize)
}

/// A plan as a card reads it.
pub(super) fn bytes_of_plan(plan: &Plan) -> Vec<u8> {
    plan.words().into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Of a multiprocessor.
const BLOCKS_MAX: u32 = 4;
const GLOBAL_BLOCKS: u32 = 4;
const GLOBAL_WARPS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_in_shared_memory_as_long_as_they_fit() {
        let shape = |slots, strips| ReplayShape::on(132, 232_448, slots, strips);
        let small = shape(20, 100_000);
        assert_eq!((small.entry, small.blocks, small.warps), ("nc_replay_shared", 4 * 132, 16));
        let large = shape(1816, 100_000);
        assert_eq!((large.entry, large.blocks, large.warps, large.work_bytes()), ("nc_replay_shared", 132, 1, 0));
        assert!(large.shared_bytes <= 232_448);
        let larger = shape(1817, 100_000);
        assert_eq!((larger.entry, larger.shared_bytes), ("nc_replay_global", 0));
        assert_eq!(larger.work_bytes(), 132 * 4 * 8 * 1817 * 128);
        assert_eq!(larger.grid(5).blocks.0, 5);
    }

    #[test]
    fn few_strips_take_little_memory() {
        for (strips, warps) in [(1, 1), (32, 32), (528, 528), (600, 1056), (1056, 1056), (5000, 4224)] {
            let shape = ReplayShape::on(132, 232_448, 6000, strips);
            assert_eq!(shape.work_bytes(), warps * 6000 * 128, "{strips}");
            assert!(shape.grid(strips).blocks.0 * shape.warps >= strips.min(4224), "{strips}");
        }
    }
}
