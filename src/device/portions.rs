//! Files coded portion by portion: by the CPU, by a GPU, or by both.
//!
//! A *portion* is a part of a file that is coded by itself: a stripe of Reed-Solomon, the source blocks of a segment. A [`Crew`] takes
//! portions in the order of the file and gives them back in this order. In between they wait in one queue, and whoever is free takes
//! what is at its front: each thread of the CPU one portion, the GPU's thread a *bite* of as many as it is worth to launch at once. So
//! nobody has to know beforehand how fast the others are. Portions bring their memory, a caller has a fixed number of them
//! ([`Crew::portions`]), and nothing is allocated for each.
//!
//! The first portion of a run that a GPU makes is compared with what the CPU makes of it. A GPU that is wrong there, or fails at any
//! time, is given up: what it had in hand goes back to the front of the queue, and the CPU does that and the rest.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use super::{BackendChoice, Error, cuda};
use crate::codec::raptorq::Plan;
use crate::gf::Kernels;

#[cfg(test)]
pub(crate) mod tests;

/// Who codes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// `Auto` means the GPU if it can be used, otherwise the CPU; `Cuda` the GPU or an error; `Hybrid` both, or an error.
    pub backend: BackendChoice,
    /// Which GPU, as the driver counts them.
    pub gpu: u16,
}

impl Choice {
    /// The CPU alone.
    pub const CPU: Self = Self { backend: BackendChoice::Cpu, gpu: 0 };
}

/// What portions of a file are like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    /// Bytes that one of them reads at most.
    pub(crate) input_bytes: usize,
    /// Bytes that one of them makes at most.
    pub(crate) output_bytes: usize,
    /// Bytes that a GPU should have at a time, so that a launch is worth it.
    pub(crate) bite_bytes: usize,
}

/// A part of a file, and what is to be made of it.
#[derive(Debug)]
pub(crate) struct Portion {
    pub(crate) work: Work,
    /// What it is made of; as many bytes as `work` says are read.
    pub(crate) input: Memory,
    /// What is made; as many bytes as `work` says are written.
    pub(crate) output: Memory,
}

/// What is done with a portion.
#[derive(Debug, Clone)]
pub(crate) enum Work {
    /// Nothing: it only keeps its place.
    Nothing,
    /// Rows over n sources of `bytes` bytes, one behind the other: as many results, one behind the other.
    Product {
        /// n coefficients a row.
        rows: Arc<[u8]>,
        n: usize,
        bytes: usize,
    },
    /// Plans over source blocks, one behind the other: of each block there is room for `inputs` symbols, and behind the other for
    /// `outputs`. A plan may have fewer of either.
    Replay { plans: Vec<Arc<Plan>>, symbol_bytes: usize, inputs: usize, outputs: usize },
}

impl Work {
    /// Bytes that it reads.
    pub(crate) fn input_bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Product { n, bytes, .. } => n * bytes,
            Self::Replay { plans, symbol_bytes, inputs, .. } => plans.len() * inputs * symbol_bytes,
        }
    }

    /// Bytes that it makes.
    pub(crate) fn output_bytes(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Product { rows, n, bytes } => rows.len() / n * bytes,
            Self::Replay { plans, symbol_bytes, outputs, .. } => plans.len() * outputs * symbol_bytes,
        }
    }

    fn is_nothing(&self) -> bool {
        self.output_bytes() == 0
    }

    /// Whether a GPU may do both at once: with the same rows, or plans over source blocks that lie alike.
    fn goes_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Product { rows, n, .. }, Self::Product { rows: others, n: of_others, .. }) => {
                Arc::ptr_eq(rows, others) && n == of_others
            }
            (
                Self::Replay { symbol_bytes, inputs, outputs, .. },
                Self::Replay { symbol_bytes: bytes, inputs: ins, outputs: outs, .. },
            ) => (symbol_bytes, inputs, outputs) == (bytes, ins, outs),
            _ => false,
        }
    }

    /// On the CPU, with at most so many threads.
    fn run(&self, kernels: Kernels, threads: NonZeroUsize, input: &[u8], output: &mut [u8]) {
        match self {
            Self::Nothing => {}
            Self::Product { rows, n, bytes } => {
                let rows: Vec<&[u8]> = rows.chunks_exact(*n).collect();
                let sources: Vec<&[u8]> = input.chunks_exact(*bytes).take(*n).collect();
                let mut outs: Vec<&mut [u8]> = output.chunks_exact_mut(*bytes).take(rows.len()).collect();
                kernels.combine_threaded(&rows, &sources, &mut outs, threads);
            }
            Self::Replay { plans, symbol_bytes, inputs, outputs } => {
                let (input_bytes, output_bytes) = (inputs * symbol_bytes, outputs * symbol_bytes);
                let run = |plans: &[Arc<Plan>], input: &[u8], output: &mut [u8]| {
                    let blocks = input.chunks(input_bytes).zip(output.chunks_mut(output_bytes));
                    for (plan, (input, output)) in plans.iter().zip(blocks) {
                        let mut outs: Vec<&mut [u8]> = output.chunks_exact_mut(*symbol_bytes).take(plan.outputs()).collect();
                        plan.apply(kernels, &input[..plan.inputs() * symbol_bytes], &mut outs);
                    }
                };
                let each = plans.len().div_ceil(threads.get()).max(1);
                let bytes = input.chunks(each * input_bytes).zip(output.chunks_mut(each * output_bytes));
                let (run, count) = (&run, plans.len());
                thread::scope(|scope| {
                    for (index, (plans, (input, output))) in plans.chunks(each).zip(bytes).enumerate() {
                        if (index + 1) * each >= count {
                            run(plans, input, output)
                        } else {
                            drop(scope.spawn(move || run(plans, input, output)))
                        }
                    }
                });
            }
        }
    }

    /// Whether what it made is the same in both, where it means anything.
    fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        match self {
            Self::Nothing => true,
            Self::Product { .. } => one[..self.output_bytes()] == other[..self.output_bytes()],
            Self::Replay { plans, symbol_bytes, outputs, .. } => {
                let blocks = one.chunks(outputs * symbol_bytes).zip(other.chunks(outputs * symbol_bytes));
                plans.iter().zip(blocks).all(|(plan, (one, other))| {
                    let bytes = plan.outputs() * symbol_bytes;
                    one[..bytes] == other[..bytes]
                })
            }
        }
    }
}

/// Bytes that are allocated once; for a GPU where it reads and writes them fastest.
pub(crate) enum Memory {
    Plain(Vec<u8>),
    Pinned(Box<dyn DerefMut<Target = [u8]> + Send>),
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Pinned(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Plain(bytes) => bytes,
            Self::Pinned(bytes) => bytes,
        }
    }
}

/// Without the bytes.
impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("bytes", &self.len()).field("is_pinned", &matches!(self, Self::Pinned(_))).finish()
    }
}

/// A GPU that codes portions. It belongs to the thread that opens it.
pub(crate) trait Coder {
    /// How many bites may be under way at once.
    fn depth(&self) -> usize;
    /// Begins a bite: portions that go with each other, one at least.
    fn begin(&mut self, bite: Vec<Portion>) -> Result<(), Spat>;
    /// Waits for the bite begun first, of which there has to be one.
    fn end(&mut self) -> (Vec<Portion>, Result<(), Error>);
    /// What allocates memory that it reads and writes fast, if there is a difference; `None` of it if there is no room.
    fn pinner(&self) -> Option<Pinner>;
}

/// A bite that could not be begun.
pub(crate) struct Spat {
    pub(crate) bite: Vec<Portion>,
    pub(crate) error: Error,
}

pub(crate) type Pinner = Box<dyn Fn(usize) -> Option<Memory> + Send + Sync>;
/// Opens a GPU on the thread that it is going to belong to.
pub(crate) type Opener = Box<dyn FnOnce() -> Result<Box<dyn Coder>, Error> + Send>;

/// Portions by who has made them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Makers {
    /// The GPU.
    pub cuda: u64,
    /// The CPU.
    pub cpu: u64,
}

impl fmt::Display for Makers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by the GPU: {}, by the CPU: {}", self.cuda, self.cpu)
    }
}

/// Who codes portions of one file, on threads of their own.
pub(crate) struct Crew {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
    pinner: Option<Pinner>,
    portions: usize,
    has_gpu: bool,
}

impl Crew {
    /// Has a GPU opened, if one is to take part, and starts threads.
    pub(crate) fn open(choice: Choice, demand: &Demand) -> Result<Self, Error> {
        let (gpu, demand_of_gpu) = (choice.gpu, *demand);
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let opener: Opener = Box::new(move || cuda::open_coder(gpu, &demand_of_gpu));
        match choice.backend {
            BackendChoice::Cpu => Self::with(choice.backend, None, demand, cores),
            BackendChoice::Cuda | BackendChoice::Hybrid => Self::with(choice.backend, Some(opener), demand, cores),
            BackendChoice::Auto => Self::with(BackendChoice::Cuda, Some(opener), demand, cores).or_else(|error| {
                tracing::info!("the CPU codes files: {error}");
                Self::with(BackendChoice::Cpu, None, demand, cores)
            }),
        }
    }

    /// With this GPU, if any, and so many threads of the CPU. Unless it is a hybrid, these only work without a GPU.
    pub(crate) fn with(backend: BackendChoice, opener: Option<Opener>, demand: &Demand, cores: usize) -> Result<Self, Error> {
        let each = (demand.input_bytes + demand.output_bytes).max(1);
        let (has_gpu, is_hybrid) = (opener.is_some(), backend == BackendChoice::Hybrid);
        let bites = if has_gpu { LANES * (demand.bite_bytes / demand.input_bytes.max(1)).max(1) } else { 0 };
        let by_cpu = if has_gpu && !is_hybrid { 0 } else { cores };
        // One is read, one is written.
        let portions = (by_cpu + bites + 2).min((MEMORY_BYTES / each).max(2));
        let is_parked = has_gpu && !is_hybrid;
        let desk = Arc::new(Desk { state: Mutex::new(State { is_parked, ..State::default() }), changed: Condvar::new() });
        let mut crew = Self { desk, threads: Vec::new(), pinner: None, portions, has_gpu };
        if let Some(opener) = opener {
            crew.start_gpu(opener, demand.bite_bytes)?;
        }
        let workers = cores.min(portions - 1);
        let threads = NonZeroUsize::new(cores / workers).unwrap_or(NonZeroUsize::MIN);
        for index in 0..workers {
            let desk = Arc::clone(&crew.desk);
            // Not deep, and many of them should not take much of the address space.
            let builder = thread::Builder::new().name(format!("files-cpu-{index}")).stack_size(STACK_BYTES);
            crew.start(builder, move || desk.work(threads))?;
        }
        Ok(crew)
    }

    fn start_gpu(&mut self, opener: Opener, bite_bytes: usize) -> Result<(), Error> {
        let (opened_in, opened) = mpsc::channel();
        let desk = Arc::clone(&self.desk);
        let builder = thread::Builder::new().name("files-gpu".to_owned());
        self.start(builder, move || match opener() {
            Ok(coder) => {
                let _ = opened_in.send(Ok(coder.pinner()));
                Gpu { desk: &desk, coder, bite_bytes, under_way: VecDeque::new(), is_checked: false }.work();
            }
            Err(error) => drop(opened_in.send(Err(error))),
        })?;
        let died = |_| Err(Error::Thread("the thread died while it opened the GPU".to_owned()));
        self.pinner = opened.recv().unwrap_or_else(died)?;
        Ok(())
    }

    fn start(&mut self, builder: thread::Builder, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let desk = Arc::clone(&self.desk);
        let work = move || {
            let mut guard = Guard { desk: &desk, is_done: false };
            work();
            guard.is_done = true;
        };
        let thread = builder.spawn(work);
        self.threads.push(thread.map_err(|error| Error::Thread(error.to_string()))?);
        Ok(())
    }

    /// How many portions should be on the way at once, those that are read and written among them: two at least.
    pub(crate) fn portions(&self) -> usize {
        self.portions
    }

    /// Zeros.
    pub(crate) fn memory(&self, bytes: usize) -> Memory {
        let pinned = self.pinner.as_ref().and_then(|pinner| pinner(bytes));
        pinned.unwrap_or_else(|| Memory::Plain(vec![0; bytes]))
    }

    /// Takes the next portion of the file. Whoever calls bounds how many there are.
    pub(crate) fn begin(&self, portion: Portion) {
        assert!(portion.work.input_bytes() <= portion.input.len() && portion.work.output_bytes() <= portion.output.len());
        let mut state = self.desk.lock();
        let index = state.begun;
        state.begun += 1;
        if portion.work.is_nothing() {
            state.done.insert(index, portion);
        } else {
            state.waiting.push_back((index, portion));
        }
        drop(state);
        self.desk.changed.notify_all();
    }

    /// No more portions come.
    pub(crate) fn close(&self) {
        self.desk.lock().is_closed = true;
        self.desk.changed.notify_all();
    }

    /// Waits for the portion that was begun first of those not yet given back. None if there is none and no more come.
    pub(crate) fn next(&self) -> Option<Portion> {
        let mut state = self.desk.lock();
        loop {
            let index = state.given;
            if let Some(portion) = state.done.remove(&index) {
                state.given += 1;
                return Some(portion);
            }
            if state.is_closed && state.given == state.begun {
                return None;
            }
            assert!(!state.is_broken, "a coding thread died");
            state = self.desk.wait(state);
        }
    }

    /// Why the GPU has been given up, if it has.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.desk.lock().lost.clone()
    }

    /// Who has made how many, if there was a GPU.
    pub(crate) fn makers(&self) -> Option<Makers> {
        self.has_gpu.then(|| self.desk.lock().makers)
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("threads", &self.threads.len()).field("portions", &self.portions).finish_non_exhaustive()
    }
}

/// What is waiting goes, and threads end after what they have in hand.
impl Drop for Crew {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.waiting.clear();
        state.is_ended = true;
        drop(state);
        self.desk.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a coding thread died");
            }
        }
    }
}

/// Says so if a thread dies.
struct Guard<'a> {
    desk: &'a Desk,
    is_done: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.desk.lock().is_broken = true;
            self.desk.changed.notify_all();
        }
    }
}

/// Where portions wait.
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// In the order of the file, but for those that a GPU could not make.
    waiting: VecDeque<(u64, Portion)>,
    done: BTreeMap<u64, Portion>,
    begun: u64,
    given: u64,
    /// No more are begun.
    is_closed: bool,
    /// Threads are to end.
    is_ended: bool,
    is_broken: bool,
    /// Whether the CPU leaves everything to the GPU.
    is_parked: bool,
    makers: Makers,
    /// Why the GPU has been given up.
    lost: Option<Error>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread of the CPU: one portion after the other.
    fn work(&self, threads: NonZeroUsize) {
        let kernels = Kernels::detect();
        let mut state = self.lock();
        loop {
            let next = if state.is_parked { None } else { state.waiting.pop_front() };
            if let Some((index, mut portion)) = next {
                drop(state);
                portion.work.run(kernels, threads, &portion.input, &mut portion.output);
                state = self.lock();
                state.makers.cpu += 1;
                state.done.insert(index, portion);
                self.changed.notify_all();
            } else if state.is_ended {
                return;
            } else {
                state = self.wait(state);
            }
        }
    }
}

/// The thread of a GPU.
struct Gpu<'a> {
    desk: &'a Desk,
    coder: Box<dyn Coder>,
    bite_bytes: usize,
    /// The places in the file of what is under way, the bite begun first in front.
    under_way: VecDeque<Vec<u64>>,
    is_checked: bool,
}

impl Gpu<'_> {
    /// Bite after bite, as many at once as the GPU takes, until nothing comes any more or it fails.
    fn work(&mut self) {
        loop {
            let result = match self.take() {
                Some((indices, bite)) => self.begin(indices, bite),
                None if self.under_way.is_empty() => return,
                None => self.end(),
            };
            if let Err(error) = result {
                return self.give_up(&error);
            }
        }
    }

    /// A bite, if the GPU has room for one more. Waits for it if nothing is under way; none then means that no more come.
    fn take(&self) -> Option<(Vec<u64>, Vec<Portion>)> {
        if self.under_way.len() == self.coder.depth() {
            return None;
        }
        let mut state = self.desk.lock();
        while state.waiting.is_empty() && self.under_way.is_empty() && !state.is_ended {
            state = self.desk.wait(state);
        }
        let (mut indices, mut bite) = (Vec::new(), Vec::<Portion>::new());
        let (mut input, mut output) = (0, 0);
        while let Some((_, portion)) = state.waiting.front() {
            input += portion.work.input_bytes();
            output += portion.work.output_bytes();
            let is_too_much = input.max(output) > self.bite_bytes;
            if bite.first().is_some_and(|first| is_too_much || !first.work.goes_with(&portion.work)) {
                break;
            }
            let (index, portion) = state.waiting.pop_front().expect("it has a front");
            indices.push(index);
            bite.push(portion);
        }
        (!bite.is_empty()).then_some((indices, bite))
    }

    fn begin(&mut self, indices: Vec<u64>, bite: Vec<Portion>) -> Result<(), Error> {
        if let Err(Spat { bite, error }) = self.coder.begin(bite) {
            self.put_back(indices, bite);
            return Err(error);
        }
        self.under_way.push_back(indices);
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        let indices = self.under_way.pop_front().expect("something is under way");
        let (bite, result) = self.coder.end();
        if let Err(error) = result.and_then(|()| self.check(&bite)) {
            self.put_back(indices, bite);
            return Err(error);
        }
        let mut state = self.desk.lock();
        state.makers.cuda += bite.len() as u64;
        state.done.extend(indices.into_iter().zip(bite));
        drop(state);
        self.desk.changed.notify_all();
        Ok(())
    }

    /// Compares the first portion of a run with the CPU's.
    fn check(&mut self, bite: &[Portion]) -> Result<(), Error> {
        let Some(Portion { work, input, output }) = bite.first().filter(|_| !self.is_checked) else { return Ok(()) };
        self.is_checked = true;
        let mut expected = vec![0; work.output_bytes()];
        work.run(Kernels::detect(), NonZeroUsize::MIN, input, &mut expected);
        if work.is_same(output, &expected) {
            return Ok(());
        }
        Err(Error::Lost("its results differ from those of the CPU".to_owned()))
    }

    /// The CPU does the rest.
    fn give_up(&mut self, error: &Error) {
        while let Some(indices) = self.under_way.pop_front() {
            let (bite, _) = self.coder.end();
            self.put_back(indices, bite);
        }
        tracing::error!("the GPU failed, the CPU codes the rest of the file: {error}");
        let mut state = self.desk.lock();
        state.is_parked = false;
        state.lost = Some(error.clone());
        drop(state);
        self.desk.changed.notify_all();
    }

    fn put_back(&self, indices: Vec<u64>, bite: Vec<Portion>) {
        let mut state = self.desk.lock();
        state.waiting.extend(indices.into_iter().zip(bite));
        state.waiting.make_contiguous().sort_unstable_by_key(|(index, _)| *index);
    }
}

/// Bites of a GPU that are under way at once: one on its way up, one that is worked on, one on its way back.
pub(super) const LANES: usize = 3;
/// Portions have so many bytes in all, or there are two of them.
const MEMORY_BYTES: usize = 256 << 20;
/// Of a thread that codes on the CPU.
const STACK_BYTES: usize = 512 << 10;
