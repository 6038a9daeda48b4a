//! Who does arithmetic over the prime field: the cores of the CPU.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use super::{Config, Threads};
use crate::codec::rlnc_q::{Arithmetic, Cores};

/// Found when somebody asks for it: most servers have no stream that needs it.
#[derive(Debug, Default)]
pub(super) struct Prime {
    threads: Threads,
    found: OnceLock<Arc<dyn Arithmetic>>,
}

impl Prime {
    pub(super) fn new(config: &Config) -> Self {
        Self { threads: config.cpu_threads, found: OnceLock::new() }
    }

    pub(super) fn get(&self) -> Arc<dyn Arithmetic> {
        let threads = NonZeroUsize::new(self.threads.count()).unwrap_or(NonZeroUsize::MIN);
        Arc::clone(self.found.get_or_init(|| Arc::new(Cores::new(threads))))
    }
}
