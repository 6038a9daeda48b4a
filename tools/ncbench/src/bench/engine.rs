//! The device as a contender: queue, thread and pool included.

use std::num::NonZeroU16;

use ncs_gf::Isa;
use ncserverd::bench::engine::{Bed, Load};
use ncserverd::bench::work::Work;
use ncserverd::device::{BackendChoice, Config, IsaChoice, Kernel, KernelChoice, Threads};

use super::Error;
use super::operation::Checked;

/// A kernel of the CPU back end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Engine {
    Simd(Isa),
    Table,
}

impl Engine {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Simd(Isa::Scalar) => "simd-scalar",
            Self::Simd(Isa::Ssse3) => "simd-ssse3",
            Self::Simd(Isa::Avx2) => "simd-avx2",
            Self::Simd(Isa::Avx512) => "simd-avx512",
            Self::Simd(Isa::Gfni) => "simd-gfni",
            Self::Table => "table",
        }
    }

    /// Loads the work's generation several times over and combines all copies in a batch. Their
    /// rows are the same, so that one expectation holds for all.
    pub(super) fn check(
        self,
        work: &Work,
        load: Load,
        threads: Threads,
    ) -> Result<Option<Checked>, Error> {
        let mut bed = Bed::open(&self.config(threads), work, load)?;
        bed.combine(1)?;
        let (is_right, made) = (
            bed.is_right(work),
            bed.batch().blocks() * work.block_bytes(),
        );
        Ok(Checked::new(is_right, made, move |repeats| {
            bed.combine(repeats).expect("it has done the same before")
        }))
    }

    fn config(self, threads: Threads) -> Config {
        let (kernel, cpu_isa) = match self {
            Self::Table => (KernelChoice::Named(Kernel::Table), IsaChoice::Auto),
            Self::Simd(Isa::Scalar) => (KernelChoice::Named(Kernel::Simd), IsaChoice::Scalar),
            Self::Simd(Isa::Ssse3) => (KernelChoice::Named(Kernel::Simd), IsaChoice::Ssse3),
            Self::Simd(Isa::Avx2) => (KernelChoice::Named(Kernel::Simd), IsaChoice::Avx2),
            Self::Simd(Isa::Avx512) => (KernelChoice::Named(Kernel::Simd), IsaChoice::Avx512),
            Self::Simd(Isa::Gfni) => (KernelChoice::Named(Kernel::Simd), IsaChoice::Gfni),
        };
        let queue_batches = NonZeroU16::MIN;
        Config {
            backend: BackendChoice::Cpu,
            kernel,
            cpu_isa,
            cpu_threads: threads,
            queue_batches,
            ..Config::default()
        }
    }
}
