//! Which kernel inverts matrices of a given number and size, and how it is launched, with the
//! numbers that `kernels/invert.cu` states.

use super::HOPPER;
use super::card::Card;
use super::driver::{Address, Fault, Stream};
use super::image::Image;
use super::launch::{self, Grid};
use crate::abi::define;

/// A kernel that inverts matrices, and its launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inverter {
    pub image: Image,
    pub entry: &'static str,
    pub threads: u32,
    pub shared_bytes: u32,
    /// Thread blocks that share a matrix.
    pub cluster: u32,
}

impl Inverter {
    /// Chooses several thread blocks per matrix if the matrices are large and few. Otherwise one
    /// block per matrix, in shared memory if it fits.
    pub fn fastest(n: u32, count: u32, card: &Card) -> Self {
        let clustered = Self::clustered(n);
        // Code for other cards, which the driver can be told to take, has no clusters.
        let is_there = || {
            card.function(clustered.image, clustered.entry, clustered.shared_bytes)
                .is_ok()
        };
        if card.capability == HOPPER && n >= CLUSTER_MIN && count <= CLUSTERED_MAX && is_there() {
            return clustered;
        }
        Self::a_block_each(n, card)
    }

    /// One block per matrix in shared memory, if a matrix of n rows fits there.
    pub fn shared(n: u32, card: &Card) -> Option<Self> {
        let found = Self::new("nc_invert_shared", in_shared(n));
        (found.shared_bytes <= card.shared_bytes).then_some(found)
    }

    /// One block per matrix of up to n rows, in shared memory if the largest fits.
    pub fn a_block_each(n: u32, card: &Card) -> Self {
        Self::shared(n, card).unwrap_or_else(Self::in_global)
    }

    /// Whether both are the same kernel, so that one launch can serve both.
    pub fn is_kernel_of(&self, other: &Self) -> bool {
        self.entry == other.entry
    }

    /// A kernel that uses this many bytes of a thread block's shared memory.
    pub const fn new(entry: &'static str, shared_bytes: u32) -> Self {
        Self {
            image: Image::Invert,
            entry,
            threads: define("NC_INVERT_THREADS"),
            shared_bytes,
            cluster: 1,
        }
    }

    /// The kernel that works in global memory.
    pub const fn in_global() -> Self {
        Self {
            threads: define("NC_INVERT_GLOBAL_THREADS"),
            ..Self::new("nc_invert_global", GLOBAL_BYTES)
        }
    }

    /// The kernel with several blocks per matrix: more for larger matrices, and at most the 16 that
    /// a card may allow.
    pub fn clustered(n: u32) -> Self {
        let cluster = match n {
            0..=192 => 4,
            193..=416 => 8,
            _ => 16,
        };
        let rows = (n.div_ceil(32) * 2).div_ceil(cluster) * 16;
        let matrix = n.div_ceil(32) * 32 * 32 + rows * pitch(n);
        let shared_bytes =
            define("NC_INVERT_CLUSTER_FIXED_BYTES") + matrix.max(1024 * define("NC_INVERT_STRIPE"));
        Self {
            cluster,
            ..Self::new("nc_invert_cluster", shared_bytes)
        }
    }

    /// Begins to invert `count` matrices.
    ///
    /// # Safety
    /// The conditions of `launch::invert`.
    pub unsafe fn launch(
        &self,
        card: &Card,
        tasks: Address,
        count: u32,
        stream: &Stream,
    ) -> Result<(), Fault> {
        let function = card.function(self.image, self.entry, self.shared_bytes)?;
        let grid = Grid::line(count * self.cluster, self.threads, self.shared_bytes);
        // SAFETY: the grid is one of this kernel; the rest is the caller's promise.
        unsafe {
            launch::invert(
                function,
                grid,
                self.cluster,
                (tasks, count),
                card.tables(),
                stream,
            )
        }
    }
}

/// Bytes of a row in shared memory.
const fn pitch(n: u32) -> u32 {
    (n.div_ceil(32) | 1) * 32
}

const fn in_shared(n: u32) -> u32 {
    FIXED_BYTES + n.div_ceil(32) * 32 * (pitch(n) + 32)
}

const FIXED_BYTES: u32 = define("NC_INVERT_FIXED_BYTES");
const GLOBAL_BYTES: u32 = FIXED_BYTES + 1024 * define("NC_INVERT_STRIPE");
const CLUSTER_MIN: u32 = define("NC_INVERT_CLUSTER_MIN");
/// Maximum matrices for which several blocks each are faster. With more, every multiprocessor has a
/// matrix of its own.
const CLUSTERED_MAX: u32 = 8;
