//! Who does arithmetic over the prime field: a card where the device has one that can, and the cores of the CPU.
//!
//! What a card fails at the cores do again: whoever asks does not notice but by the time that it takes, and the log says so.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Config, Error, cuda, gfq};
use crate::codec::hash::{Batch, Group};
use crate::codec::rlnc_q::{Arithmetic, Cores, Decode, Encode, Failed, Kept, NotKept, Rebuilt, Recode, Shape};

/// Found when somebody asks for it: most servers have no stream that needs it.
#[derive(Debug, Default)]
pub(super) struct Prime {
    config: Config,
    host: cuda::HostMemory,
    found: Mutex<Option<Arc<dyn Arithmetic>>>,
}

impl Prime {
    /// Blocks that are to go into memory of `host` are written there by the card itself.
    pub(super) fn new(config: &Config, host: cuda::HostMemory) -> Self {
        Self { config: config.clone(), host, found: Mutex::default() }
    }

    /// One that is found already.
    #[cfg(test)]
    pub(super) fn of(found: Box<dyn Arithmetic>) -> Self {
        let steady: Arc<dyn Arithmetic> = Arc::new(Steady::new(found, Cores::all()));
        Self { found: Mutex::new(Some(steady)), ..Self::default() }
    }

    /// Opens what the configuration asks for, if that was not done before. What is asked for by name and cannot be had is an error.
    pub(super) fn open(&self) -> Result<Arc<dyn Arithmetic>, Error> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = &*found {
            return Ok(Arc::clone(found));
        }
        let cores = self.cores();
        let opened: Arc<dyn Arithmetic> = Arc::new(Steady::new(gfq::open(&self.config, &self.host, cores)?, cores));
        Ok(Arc::clone(found.insert(opened)))
    }

    /// The same, or the cores.
    pub(super) fn get(&self) -> Arc<dyn Arithmetic> {
        self.open().unwrap_or_else(|error| {
            tracing::warn!(%error, "no GPU for arithmetic over the prime field: the CPU does it");
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(found.get_or_insert_with(|| Arc::new(self.cores())))
        })
    }

    fn cores(&self) -> Cores {
        Cores::new(NonZeroUsize::new(self.config.cpu_threads.count()).unwrap_or(NonZeroUsize::MIN))
    }
}

/// What may fail, and the cores behind it.
#[derive(Debug)]
struct Steady {
    first: Box<dyn Arithmetic>,
    cores: Cores,
    has_failed: AtomicBool,
}

impl Steady {
    fn new(first: Box<dyn Arithmetic>, cores: Cores) -> Self {
        Self { first, cores, has_failed: AtomicBool::new(false) }
    }

    /// Says so once.
    fn note(&self, failed: &Failed) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(%failed, "arithmetic over the prime field has failed on the GPU: the CPU does it where that happens");
        }
    }
}

impl Arithmetic for Steady {
    /// What fails to keep a source keeps nothing, and whoever has it for what it is does without.
    fn keep(&self, source: &[u8], padded: usize) -> Result<Option<Arc<dyn Kept>>, NotKept> {
        match self.first.keep(source, padded) {
            Err(NotKept::Failed(failed)) => {
                self.note(&failed);
                Ok(None)
            }
            kept => kept,
        }
    }

    fn encode(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed> {
        let outcome = self.first.encode(shape, tasks);
        outcome.or_else(|failed| {
            self.note(&failed);
            self.cores.encode(shape, tasks)
        })
    }

    fn recode(&self, shape: Shape, tasks: &mut [Recode<'_>]) -> Result<(), Failed> {
        let outcome = self.first.recode(shape, tasks);
        outcome.or_else(|failed| {
            self.note(&failed);
            self.cores.recode(shape, tasks)
        })
    }

    fn decode(&self, shape: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed> {
        let outcome = self.first.decode(shape, tasks);
        outcome.or_else(|failed| {
            self.note(&failed);
            self.cores.decode(shape, tasks)
        })
    }

    fn hash(&self, group: Group, words: usize, blocks: &[&[u8]]) -> Result<Vec<u8>, Failed> {
        let outcome = self.first.hash(group, words, blocks);
        outcome.or_else(|failed| {
            self.note(&failed);
            self.cores.hash(group, words, blocks)
        })
    }

    fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
        let outcome = self.first.holds(batches);
        outcome.or_else(|failed| {
            self.note(&failed);
            self.cores.holds(batches)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
