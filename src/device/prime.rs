//! Who does arithmetic over the prime field: a card where the device has one that can, and the cores of the CPU.
//!
//! What a card fails at the cores do again: whoever asks does not notice but by the time that it takes, and the log says so.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Config, Error, gfq};
use crate::codec::hash::{Batch, Group};
use crate::codec::rlnc_q::{Arithmetic, Cores, Decode, Encode, Failed, Rebuilt, Recode, Shape};

/// Found when somebody asks for it: most servers have no stream that needs it.
#[derive(Debug, Default)]
pub(super) struct Prime {
    config: Config,
    found: Mutex<Option<Arc<dyn Arithmetic>>>,
}

impl Prime {
    pub(super) fn new(config: &Config) -> Self {
        Self { config: config.clone(), found: Mutex::default() }
    }

    /// Opens what the configuration asks for, if that was not done before. What is asked for by name and cannot be had is an error.
    pub(super) fn open(&self) -> Result<Arc<dyn Arithmetic>, Error> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = &*found {
            return Ok(Arc::clone(found));
        }
        let cores = self.cores();
        let opened: Arc<dyn Arithmetic> = Arc::new(Steady::new(gfq::open(&self.config, cores)?, cores));
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
mod tests {
    use super::*;
    use crate::device::BackendChoice;

    /// One that does nothing right.
    #[derive(Debug)]
    struct Broken;

    impl Arithmetic for Broken {
        fn encode(&self, _: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed> {
            tasks.iter_mut().for_each(|task| task.out.fill(0xff));
            Err(Failed("broken".to_owned()))
        }

        fn recode(&self, _: Shape, _: &mut [Recode<'_>]) -> Result<(), Failed> {
            Err(Failed("broken".to_owned()))
        }

        fn decode(&self, _: Shape, _: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed> {
            Err(Failed("broken".to_owned()))
        }

        fn hash(&self, _: Group, _: usize, _: &[&[u8]]) -> Result<Vec<u8>, Failed> {
            Err(Failed("broken".to_owned()))
        }

        fn holds(&self, _: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
            Err(Failed("broken".to_owned()))
        }
    }

    #[test]
    fn what_fails_is_done_by_the_cores() {
        let cores = Cores::new(NonZeroUsize::MIN);
        let steady = Steady::new(Box::new(Broken), cores);
        let (shape, source) = (Shape::new(2, 1).unwrap(), [7; 64]);
        let encoded = |arithmetic: &dyn Arithmetic| {
            let mut out = vec![0; 33];
            arithmetic.encode(shape, &mut [Encode { source: &source, rows: &[3, 4], out: &mut out }]).unwrap();
            out
        };
        assert_eq!(encoded(&steady), encoded(&cores));
        let blocks = [&source[..32], &source[32..]];
        let hashed = |arithmetic: &dyn Arithmetic| arithmetic.hash(Group::P1024, 1, &blocks).unwrap();
        assert_eq!(hashed(&steady), hashed(&cores));
        assert_eq!(steady.holds(&[]), cores.holds(&[]));
        assert!(steady.has_failed.load(Ordering::Relaxed));
    }

    #[test]
    fn it_is_opened_once_and_the_cpu_is_there_where_nothing_else_is() {
        let config = |backend| Config { backend, gpus: crate::device::Gpus::List(vec![u16::MAX]), ..Config::default() };
        for backend in [BackendChoice::Cpu, BackendChoice::Auto] {
            let prime = Prime::new(&config(backend));
            assert!(Arc::ptr_eq(&prime.open().unwrap(), &prime.get()));
        }
        // A number that no host has.
        let prime = Prime::new(&config(BackendChoice::Cuda));
        assert!(prime.open().is_err());
        assert!(Arc::ptr_eq(&prime.get(), &prime.get()));
    }
}
