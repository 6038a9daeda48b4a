//! Files coded portion by portion: by the CPU, by a GPU, or by both.
//!
//! A *portion* is a part of a file that is coded by itself: a stripe of Reed-Solomon, the source
//! blocks of a segment. A [`Crew`] takes portions in the order of the file and gives them back in
//! this order. In between they wait in one queue, and whoever is free takes what is at its front:
//! each thread of the CPU one portion, the GPU's thread a *bite* of as many as it is worth to
//! launch at once. So nobody has to know beforehand how fast the others are. Portions bring their
//! memory, a caller has a fixed number of them ([`Crew::portions`]), and nothing is allocated for
//! each.
//!
//! The first portion of a run that a GPU makes is compared with what the CPU makes of it. A GPU
//! that is wrong there, or fails at any time, is given up: what it had in hand goes back to the
//! front of the queue, and the CPU does that and the rest.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

use ncs_device::portions::{Coder, Demand, LANES, Memory, Opener, Pinner, Portion, Spat};
use ncs_device::{self as device, BackendChoice, Error};
use ncs_gf::Kernels;

#[cfg(test)]
pub(crate) mod tests;

/// Who codes a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// `Auto` means the GPU if it can be used, otherwise the CPU; `Cuda` the GPU or an error;
    /// `Hybrid` both, or an error.
    pub backend: BackendChoice,
    /// Which GPU, as the driver counts them.
    pub gpu: u16,
}

impl Choice {
    /// The CPU alone.
    pub const CPU: Self = Self {
        backend: BackendChoice::Cpu,
        gpu: 0,
    };
}

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
pub struct Crew {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
    pinner: Option<Pinner>,
    portions: usize,
    has_gpu: bool,
}

impl Crew {
    /// Has a GPU opened, if one is to take part, and starts threads.
    pub fn open(choice: Choice, demand: &Demand) -> Result<Self, Error> {
        let (gpu, demand_of_gpu) = (choice.gpu, *demand);
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let opener: Opener = Box::new(move || device::open_coder(gpu, &demand_of_gpu));
        match choice.backend {
            BackendChoice::Cpu => Self::with(choice.backend, None, demand, cores),
            BackendChoice::Cuda | BackendChoice::Hybrid => {
                Self::with(choice.backend, Some(opener), demand, cores)
            }
            BackendChoice::Auto => Self::with(BackendChoice::Cuda, Some(opener), demand, cores)
                .or_else(|error| {
                    tracing::info!("the CPU codes files: {error}");
                    Self::with(BackendChoice::Cpu, None, demand, cores)
                }),
        }
    }

    /// With this GPU, if any, and so many threads of the CPU. Unless it is a hybrid, these only
    /// work without a GPU.
    pub fn with(
        backend: BackendChoice,
        opener: Option<Opener>,
        demand: &Demand,
        cores: usize,
    ) -> Result<Self, Error> {
        let each = (demand.input_bytes + demand.output_bytes).max(1);
        let (has_gpu, is_hybrid) = (opener.is_some(), backend == BackendChoice::Hybrid);
        let bites = if has_gpu {
            LANES * (demand.bite_bytes / demand.input_bytes.max(1)).max(1)
        } else {
            0
        };
        let by_cpu = if has_gpu && !is_hybrid { 0 } else { cores };
        // One is read, one is written.
        let portions = (by_cpu + bites + 2).min((MEMORY_BYTES / each).max(2));
        let is_parked = has_gpu && !is_hybrid;
        let desk = Arc::new(Desk {
            state: Mutex::new(State {
                is_parked,
                ..State::default()
            }),
            changed: Condvar::new(),
        });
        let mut crew = Self {
            desk,
            threads: Vec::new(),
            pinner: None,
            portions,
            has_gpu,
        };
        if let Some(opener) = opener {
            crew.start_gpu(opener, demand.bite_bytes)?;
        }
        let workers = cores.min(portions - 1);
        let threads = NonZeroUsize::new(cores / workers).unwrap_or(NonZeroUsize::MIN);
        for index in 0..workers {
            let desk = Arc::clone(&crew.desk);
            // Not deep, and many of them should not take much of the address space.
            let builder = thread::Builder::new()
                .name(format!("files-cpu-{index}"))
                .stack_size(STACK_BYTES);
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
                Gpu {
                    desk: &desk,
                    coder,
                    bite_bytes,
                    under_way: VecDeque::new(),
                    is_checked: false,
                }
                .work();
            }
            Err(error) => drop(opened_in.send(Err(error))),
        })?;
        let died = |_| {
            Err(Error::Thread(
                "the thread died while it opened the GPU".to_owned(),
            ))
        };
        self.pinner = opened.recv().unwrap_or_else(died)?;
        Ok(())
    }

    fn start(
        &mut self,
        builder: thread::Builder,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), Error> {
        let desk = Arc::clone(&self.desk);
        let work = move || {
            let mut guard = Guard {
                desk: &desk,
                is_done: false,
            };
            work();
            guard.is_done = true;
        };
        let thread = builder.spawn(work);
        self.threads
            .push(thread.map_err(|error| Error::Thread(error.to_string()))?);
        Ok(())
    }

    /// How many portions should be on the way at once, those that are read and written among them:
    /// two at least.
    pub fn portions(&self) -> usize {
        self.portions
    }

    /// Zeros.
    pub fn memory(&self, bytes: usize) -> Memory {
        let pinned = self.pinner.as_ref().and_then(|pinner| pinner(bytes));
        pinned.unwrap_or_else(|| Memory::Plain(vec![0; bytes]))
    }

    /// Takes the next portion of the file. Whoever calls bounds how many there are.
    pub fn begin(&self, portion: Portion) {
        assert!(
            portion.work.input_bytes() <= portion.input.len()
                && portion.work.output_bytes() <= portion.output.len()
        );
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
    pub fn close(&self) {
        self.desk.lock().is_closed = true;
        self.desk.changed.notify_all();
    }

    /// Waits for the portion that was begun first of those not yet given back. None if there is
    /// none and no more come.
    pub fn next(&self) -> Option<Portion> {
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
    pub fn lost(&self) -> Option<Error> {
        self.desk.lock().lost.clone()
    }

    /// Who has made how many, if there was a GPU.
    pub fn makers(&self) -> Option<Makers> {
        self.has_gpu.then(|| self.desk.lock().makers)
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew")
            .field("threads", &self.threads.len())
            .field("portions", &self.portions)
            .finish_non_exhaustive()
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
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread of the CPU: one portion after the other.
    fn work(&self, threads: NonZeroUsize) {
        let kernels = Kernels::detect();
        let mut state = self.lock();
        loop {
            let next = if state.is_parked {
                None
            } else {
                state.waiting.pop_front()
            };
            if let Some((index, mut portion)) = next {
                drop(state);
                portion
                    .work
                    .run(kernels, threads, &portion.input, &mut portion.output);
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

    /// A bite, if the GPU has room for one more. Waits for it if nothing is under way; none then
    /// means that no more come.
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
            if bite
                .first()
                .is_some_and(|first| is_too_much || !first.work.goes_with(&portion.work))
            {
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
        let Some(Portion {
            work,
            input,
            output,
        }) = bite.first().filter(|_| !self.is_checked)
        else {
            return Ok(());
        };
        self.is_checked = true;
        let mut expected = vec![0; work.output_bytes()];
        work.run(Kernels::detect(), NonZeroUsize::MIN, input, &mut expected);
        if work.is_same(output, &expected) {
            return Ok(());
        }
        Err(Error::Lost(
            "its results differ from those of the CPU".to_owned(),
        ))
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
        state
            .waiting
            .make_contiguous()
            .sort_unstable_by_key(|(index, _)| *index);
    }
}

/// What a GPU is given at a time: stripes of the usual shape are a megabyte, which is on the bus
/// for some 20 us, about four times what a launch takes.
pub const BITE_BYTES: usize = 8 << 20;
/// Portions have so many bytes in all, or there are two of them.
const MEMORY_BYTES: usize = 256 << 20;
/// Of a thread that codes on the CPU.
const STACK_BYTES: usize = 512 << 10;
