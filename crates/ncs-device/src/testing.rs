//! A stand-in for a card, for tests of this crate and of others (feature `testing`).

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use ncs_codec::gfq::{
    Arithmetic, Cores, Decode, Encode, Failed, Kept, NotKept, Place, Rebuilt, Recode, Shape,
};
use ncs_codec::hash::{Batch, Group};

/// Arithmetic over the prime field that keeps sources as a card does, but computes on the cores.
/// Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Hoard(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Bytes kept, and the limit on them.
    used: AtomicU64,
    room: AtomicU64,
    is_lost: AtomicBool,
    /// Number of tasks whose sources were kept, and of tasks that brought theirs.
    kept: AtomicUsize,
    brought: AtomicUsize,
    /// Number of calls begun, and whether calls have to wait.
    gate: Mutex<(usize, bool)>,
    moved: Condvar,
}

#[derive(Debug)]
struct Treasure {
    source: Vec<u8>,
    shared: Arc<Shared>,
}

impl Kept for Treasure {
    fn bytes(&self) -> u64 {
        self.source.len() as u64
    }

    fn is_alive(&self) -> bool {
        !self.shared.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Treasure {
    fn drop(&mut self) {
        self.shared.used.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

impl Hoard {
    /// Keeps at most `room` bytes.
    pub fn new(room: u64) -> Self {
        let hoard = Self::default();
        hoard.0.room.store(room, Ordering::Relaxed);
        hoard
    }

    /// Bytes kept.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Number of tasks whose sources were kept, and of tasks that brought theirs.
    pub fn tasks(&self) -> (usize, usize) {
        (
            self.0.kept.load(Ordering::Relaxed),
            self.0.brought.load(Ordering::Relaxed),
        )
    }

    /// Simulates a loss: from now on every call fails, and nothing is kept.
    pub fn lose(&self) {
        self.0.is_lost.store(true, Ordering::Relaxed);
    }

    /// Sets whether calls wait before they begin.
    pub fn hold(&self, is_held: bool) {
        self.gate().1 = is_held;
        self.0.moved.notify_all();
    }

    /// Number of calls begun.
    pub fn calls(&self) -> usize {
        self.gate().0
    }

    fn pass(&self) {
        let mut gate = self.gate();
        gate.0 += 1;
        drop(
            self.0
                .moved
                .wait_while(gate, |(_, is_held)| *is_held)
                .expect("no call panics"),
        );
    }

    fn gate(&self) -> MutexGuard<'_, (usize, bool)> {
        self.0.gate.lock().expect("no call panics")
    }
}

impl Arithmetic for Hoard {
    fn keep(&self, source: &[u8], padded: usize) -> Result<Option<Arc<dyn Kept>>, NotKept> {
        if self.0.is_lost.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (bytes, room) = (padded as u64, self.0.room.load(Ordering::Relaxed));
        let grown = |used| Some(used + bytes).filter(|used| *used <= room);
        if self
            .0
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown)
            .is_err()
        {
            return Err(NotKept::Memory(bytes));
        }
        let mut source = source.to_vec();
        source.resize(padded, 0);
        Ok(Some(Arc::new(Treasure {
            source,
            shared: Arc::clone(&self.0),
        })))
    }

    fn encode(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed> {
        self.pass();
        if self.0.is_lost.load(Ordering::Relaxed) {
            tasks
                .iter_mut()
                .flat_map(|task| &mut task.out)
                .for_each(|out| out.fill(0xff));
            return Err(Failed("lost".to_owned()));
        }
        for Encode {
            source,
            kept,
            rows,
            out,
        } in tasks
        {
            let own = kept.map(|Place { kept, offset }| {
                let kept: &dyn Any = kept;
                &kept
                    .downcast_ref::<Treasure>()
                    .expect("it has kept this")
                    .source[offset..offset + shape.source_bytes()]
            });
            let count = if own.is_some() {
                &self.0.kept
            } else {
                &self.0.brought
            };
            count.fetch_add(1, Ordering::Relaxed);
            let out = out.iter_mut().map(|out| &mut **out).collect();
            let task = Encode {
                source: own.unwrap_or(source),
                kept: None,
                rows,
                out,
            };
            Cores::all().encode(shape, &mut [task])?;
        }
        Ok(())
    }

    fn recode(&self, shape: Shape, tasks: &mut [Recode<'_>]) -> Result<(), Failed> {
        Cores::all().recode(shape, tasks)
    }

    fn decode(&self, shape: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed> {
        Cores::all().decode(shape, tasks)
    }

    fn hash(&self, group: Group, words: usize, blocks: &[&[u8]]) -> Result<Vec<u8>, Failed> {
        self.pass();
        Cores::all().hash(group, words, blocks)
    }

    fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
        Cores::all().holds(batches)
    }
}
