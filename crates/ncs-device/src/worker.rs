//! The thread that owns a back end. It takes batches, loads and generations to decode from their
//! queues, and keeps several under way.
//!
//! An idle thread waits on an executor of its own without I/O or timers, where nothing else runs.
//! With work under way it polls the back end: at first without a pause, since most batches take
//! microseconds, and later with pauses. It does not spin when there is no work.

use std::collections::VecDeque;
use std::future::Future;
use std::hint;
use std::num::NonZeroU16;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncs_codec::shape::Shape;
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};

use super::backend::{Backend, Counts, Ended, Loading, Memory, ResidentId, Share, Work};
use super::decode::{Decode, Solved};
use super::{Error, Event, Recorder, Tally};

/// A batch in the queue.
#[derive(Debug)]
pub(super) struct Combine {
    pub(super) batch: Vec<Work>,
    pub(super) reply: oneshot::Sender<Ended>,
}

/// Generations to decode, in the queue.
#[derive(Debug)]
pub(super) struct Solve {
    pub(super) jobs: Vec<Decode>,
    pub(super) reply: oneshot::Sender<Solved>,
}

/// A segment in the queue.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) bytes: Bytes,
    pub(super) shape: Shape,
    pub(super) share: Share,
    pub(super) reply: oneshot::Sender<Result<ResidentPart, Error>>,
}

/// A handle on the thread. Clones are cheap. Dropping the last one ends the thread.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) backend: &'static str,
    pub(super) kernel: &'static str,
    /// The device's memory when it was opened.
    pub(super) memory: Option<Memory>,
    batches: mpsc::Sender<Combine>,
    loads: mpsc::Sender<Load>,
    solves: mpsc::Sender<Solve>,
    /// Number of batches, loads and calls to decode that have ended.
    pulse: Arc<AtomicU64>,
    is_hung: Arc<AtomicBool>,
}

/// A device's part of a segment. Dropping it releases the part.
#[derive(Debug)]
pub(super) struct ResidentPart {
    pub(super) id: ResidentId,
    pub(super) bytes: u64,
    release: mpsc::UnboundedSender<(ResidentId, u64)>,
}

impl ResidentPart {
    /// Whether the thread that holds it is running.
    pub(super) fn is_held(&self) -> bool {
        !self.release.is_closed()
    }
}

impl Drop for ResidentPart {
    fn drop(&mut self) {
        // If the thread has ended, its memory is freed already.
        let _ = self.release.send((self.id, self.bytes));
    }
}

/// Owns the thread. Dropping it waits for the batches under way and ends the thread; batches still
/// in the queue come back with [`Error::Closed`].
#[derive(Debug)]
pub(super) struct Owner {
    stop: Option<oneshot::Sender<()>>,
    join: Option<JoinHandle<()>>,
    is_hung: Arc<AtomicBool>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Does not wait for a thread that hangs in a driver. Its memory stays allocated.
        if let Some(join) = self
            .join
            .take()
            .filter(|_| !self.is_hung.load(Ordering::Acquire))
            && join.join().is_err()
        {
            tracing::error!("the device's thread died");
        }
    }
}

impl Member {
    /// Starts the thread. `open` runs on it, because some back ends belong to the thread that opens
    /// them.
    pub(super) fn start(
        device: &str,
        queue: NonZeroU16,
        recorder: &Arc<dyn Recorder>,
        open: impl FnOnce() -> Result<Box<dyn Backend>, Error> + Send + 'static,
    ) -> Result<(Self, Owner), Error> {
        let (batches_in, batches) = mpsc::channel(usize::from(queue.get()));
        let (loads_in, loads) = mpsc::channel(usize::from(queue.get()));
        let (solves_in, solves) = mpsc::channel(usize::from(queue.get()));
        let (release, releases) = mpsc::unbounded_channel();
        let (stop_in, stop) = oneshot::channel();
        let (opened_in, opened) = std::sync::mpsc::channel();
        let (recorder, label) = (Arc::clone(recorder), device.to_owned());
        let (pulse, is_hung) = (Arc::default(), Arc::default());
        let beat = Arc::clone(&pulse);
        let run = move || {
            let backend = match open() {
                Ok(backend) => backend,
                Err(error) => return drop(opened_in.send(Err(error))),
            };
            let (name, kernel, memory) = (backend.name(), backend.kernel(), backend.memory());
            let tally = recorder.opened(name, kernel, &label);
            let runtime = match runtime::Builder::new_current_thread().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(opened_in.send(Err(Error::Thread(error.to_string())))),
            };
            if opened_in.send(Ok((name, kernel, memory))).is_ok() {
                let queues = Queues {
                    batches,
                    loads,
                    solves,
                    release,
                    releases,
                    stop,
                };
                let (waiting, solving) = (VecDeque::new(), VecDeque::new());
                let (memory_reported, memory_changed) = (Instant::now(), true);
                let worker = Worker {
                    backend,
                    tally,
                    queues,
                    waiting,
                    solving,
                    loading: None,
                    beat,
                    next_id: 0,
                    memory_reported,
                    memory_changed,
                };
                runtime.block_on(worker.run());
            }
        };
        let thread = std::thread::Builder::new().name(format!("device-{device}"));
        let join = thread
            .spawn(run)
            .map_err(|error| Error::Thread(error.to_string()))?;
        let owner = Owner {
            stop: Some(stop_in),
            join: Some(join),
            is_hung: Arc::clone(&is_hung),
        };
        let died = |_| {
            Err(Error::Thread(
                "the thread died while it opened the device".to_owned(),
            ))
        };
        let (backend, kernel, memory) = opened.recv().unwrap_or_else(died)?;
        let (batches, loads, solves) = (batches_in, loads_in, solves_in);
        Ok((
            Self {
                backend,
                kernel,
                memory,
                batches,
                loads,
                solves,
                pulse,
                is_hung,
            },
            owner,
        ))
    }

    /// Awaits the thread's answer. Returns `None`, and does not wait for the thread any more, if it
    /// completes nothing for `limit`.
    pub(super) async fn unless_hung<T>(
        &self,
        limit: Option<Duration>,
        answer: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(limit) = limit else {
            return Some(answer.await);
        };
        let mut answer = pin!(answer);
        loop {
            let before = self.pulse.load(Ordering::Acquire);
            if let Ok(answer) = tokio::time::timeout(limit, &mut answer).await {
                return Some(answer);
            }
            if self.pulse.load(Ordering::Acquire) == before {
                self.is_hung.store(true, Ordering::Release);
                return None;
            }
        }
    }

    /// Waits until the thread ends.
    pub(super) async fn ended(&self) {
        self.batches.closed().await;
    }

    /// Loads some generations of a segment onto the device. Waits while the queue is full.
    pub(super) async fn load(
        &self,
        bytes: Bytes,
        shape: Shape,
        share: Share,
    ) -> Result<ResidentPart, Error> {
        let (reply, answer) = oneshot::channel();
        self.loads
            .send(Load {
                bytes,
                shape,
                share,
                reply,
            })
            .await
            .map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }

    /// Does a batch. Waits while the queue is full. `None` if the thread died during it.
    pub(super) async fn combine(&self, batch: Vec<Work>) -> Option<Ended> {
        let (reply, answer) = oneshot::channel();
        match self.batches.send(Combine { batch, reply }).await {
            Ok(()) => answer.await.ok(),
            Err(mpsc::error::SendError(job)) => Some(closed(job.batch)),
        }
    }

    /// Decodes. Waits while the queue is full. `None` if the thread died during it.
    pub(super) async fn decode(&self, jobs: Vec<Decode>) -> Option<Solved> {
        let (reply, answer) = oneshot::channel();
        match self.solves.send(Solve { jobs, reply }).await {
            Ok(()) => answer.await.ok(),
            Err(mpsc::error::SendError(job)) => Some(Solved::failed(job.jobs, Error::Closed)),
        }
    }
}

struct Queues {
    batches: mpsc::Receiver<Combine>,
    loads: mpsc::Receiver<Load>,
    solves: mpsc::Receiver<Solve>,
    /// Given to every part. A part sends one message in its life, so the number of parts bounds the
    /// queue.
    release: mpsc::UnboundedSender<(ResidentId, u64)>,
    releases: mpsc::UnboundedReceiver<(ResidentId, u64)>,
    stop: oneshot::Receiver<()>,
}

struct Worker {
    backend: Box<dyn Backend>,
    tally: Box<dyn Tally>,
    queues: Queues,
    /// Callers that wait for the batches under way, oldest first.
    waiting: VecDeque<oneshot::Sender<Ended>>,
    /// Callers that wait for generations that are being decoded, oldest first.
    solving: VecDeque<oneshot::Sender<Solved>>,
    loading: Option<UnderWay>,
    /// Number of all these that have ended.
    beat: Arc<AtomicU64>,
    next_id: u64,
    /// When the device's memory was last reported to the metrics, and whether it has changed since.
    memory_reported: Instant,
    memory_changed: bool,
}

/// The load under way.
struct UnderWay {
    id: ResidentId,
    begun: Instant,
    reply: oneshot::Sender<Result<ResidentPart, Error>>,
}

impl Worker {
    async fn run(mut self) {
        loop {
            self.report_memory();
            let is_open = match self.is_idle() {
                true => self.wait().await,
                false => self.take_what_waits(),
            };
            if !is_open {
                break;
            }
            self.drive();
        }
        self.finish();
    }

    /// Whether nothing is under way.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.solving.is_empty() && self.loading.is_none()
    }

    /// Waits for work. Returns false when the device is to be closed.
    async fn wait(&mut self) -> bool {
        tokio::select! {
            biased;
            _ = &mut self.queues.stop => return false,
            Some((id, bytes)) = self.queues.releases.recv() => self.release(id, bytes),
            batch = self.queues.batches.recv() => match batch {
                Some(batch) => self.start(batch),
                None => return false,
            },
            Some(load) = self.queues.loads.recv() => self.load(load),
            Some(solve) = self.queues.solves.recv() => self.solve(solve),
        }
        true
    }

    /// Takes work from the queues as far as there is room. Returns false when the device is to be
    /// closed.
    fn take_what_waits(&mut self) -> bool {
        while let Ok((id, bytes)) = self.queues.releases.try_recv() {
            self.release(id, bytes);
        }
        if self.loading.is_none()
            && let Ok(load) = self.queues.loads.try_recv()
        {
            self.load(load);
        }
        while self.solving.len() < self.backend.depth()
            && let Ok(solve) = self.queues.solves.try_recv()
        {
            self.solve(solve);
        }
        while self.waiting.len() < self.backend.depth() {
            match self.queues.batches.try_recv() {
                Ok(batch) => self.start(batch),
                Err(mpsc::error::TryRecvError::Empty) => break,
                Err(mpsc::error::TryRecvError::Disconnected) => return false,
            }
        }
        !matches!(
            self.queues.stop.try_recv(),
            Err(oneshot::error::TryRecvError::Closed)
        )
    }

    /// Polls the back end until some work has ended or new work can begin.
    fn drive(&mut self) {
        let begun = Instant::now();
        loop {
            let mut is_news = false;
            if let Some(result) = self
                .loading
                .is_some()
                .then(|| self.backend.loaded())
                .flatten()
            {
                self.end_load(result);
                is_news = true;
            }
            if let Some(ended) = (!self.waiting.is_empty())
                .then(|| self.backend.ended())
                .flatten()
            {
                self.end_batch(ended);
                is_news = true;
            }
            if let Some(solved) = (!self.solving.is_empty())
                .then(|| self.backend.decoded())
                .flatten()
            {
                self.end_solve(solved);
                is_news = true;
            }
            let depth = self.backend.depth();
            let has_room = (self.waiting.len() < depth && !self.queues.batches.is_empty())
                || (self.solving.len() < depth && !self.queues.solves.is_empty());
            if is_news || has_room || (self.loading.is_none() && !self.queues.loads.is_empty()) {
                return;
            }
            if self.is_idle() {
                return;
            }
            let waited = begun.elapsed();
            if waited < SPIN {
                hint::spin_loop();
            } else if waited < YIELD {
                std::thread::yield_now();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn start(&mut self, Combine { batch, reply }: Combine) {
        self.waiting.push_back(reply);
        self.tally.note(Event::BatchBegun);
        self.backend.start(batch);
    }

    fn end_batch(&mut self, ended: Ended) {
        self.tally.note(Event::BatchEnded);
        self.beat.fetch_add(1, Ordering::AcqRel);
        match &ended.result {
            Ok(()) => {
                let coded_bytes = ended.batch.iter().map(|work| work.coded_bytes()).sum();
                self.tally.note(Event::Combined {
                    elapsed: ended.elapsed,
                    coded_bytes,
                });
            }
            Err(_) => self.tally.note(Event::Failed),
        }
        self.note_counts();
        let reply = self
            .waiting
            .pop_front()
            .expect("a batch that ends was begun");
        // The caller may have given up.
        let _ = reply.send(ended);
    }

    fn solve(&mut self, Solve { jobs, reply }: Solve) {
        self.solving.push_back(reply);
        self.backend.decode(jobs);
    }

    fn end_solve(&mut self, solved: Solved) {
        self.beat.fetch_add(1, Ordering::AcqRel);
        match &solved.result {
            Ok(_) => self.tally.note(Event::Decoded {
                elapsed: solved.elapsed,
                bytes: solved.bytes(),
            }),
            Err(_) => self.tally.note(Event::Failed),
        }
        self.note_counts();
        let reply = self.solving.pop_front().expect("what ends was begun");
        // The caller may have given up.
        let _ = reply.send(solved);
    }

    fn load(
        &mut self,
        Load {
            bytes,
            shape,
            share,
            reply,
        }: Load,
    ) {
        if reply.is_closed() {
            return;
        }
        let id = ResidentId(self.next_id);
        self.next_id += 1;
        self.loading = Some(UnderWay {
            id,
            begun: Instant::now(),
            reply,
        });
        self.backend.load(Loading {
            id,
            bytes,
            shape,
            share,
        });
    }

    fn end_load(&mut self, result: Result<u64, Error>) {
        self.beat.fetch_add(1, Ordering::AcqRel);
        let UnderWay { id, begun, reply } =
            self.loading.take().expect("a load that ends was begun");
        match result {
            Ok(bytes) => {
                self.tally.note(Event::Loaded {
                    elapsed: begun.elapsed(),
                    resident_bytes: bytes,
                });
                // If the caller has given up, the part is dropped here, which releases it.
                let _ = reply.send(Ok(ResidentPart {
                    id,
                    bytes,
                    release: self.queues.release.clone(),
                }));
            }
            Err(error) => {
                // Full memory is the store's concern, and no failure.
                if !matches!(error, Error::Memory { .. }) {
                    self.tally.note(Event::Failed);
                }
                let _ = reply.send(Err(error));
            }
        }
        self.memory_changed = true;
    }

    fn release(&mut self, id: ResidentId, bytes: u64) {
        self.backend.release(id);
        self.tally.note(Event::Released {
            resident_bytes: bytes,
        });
        self.memory_changed = true;
    }

    /// Reports the device's memory: always when no work waits for this thread, otherwise now and
    /// then.
    fn report_memory(&mut self) {
        if !self.memory_changed
            || (!self.is_idle() && self.memory_reported.elapsed() < MEMORY_PERIOD)
        {
            return;
        }
        (self.memory_reported, self.memory_changed) = (Instant::now(), false);
        if let Some(memory) = self.backend.memory() {
            self.tally.note(Event::Memory(memory));
        }
    }

    fn note_counts(&mut self) {
        let Counts {
            kernel,
            copy,
            copied_bytes,
            stored_bytes,
        } = self.backend.take_counts();
        self.tally.note(Event::Worked {
            kernel,
            copy,
            copied_bytes,
            stored_bytes,
        });
    }

    /// Ends the work under way and refuses the rest.
    fn finish(&mut self) {
        while !self.is_idle() {
            self.drive_to_the_end();
        }
        self.queues.batches.close();
        self.queues.loads.close();
        self.queues.solves.close();
        while let Ok(Combine { batch, reply }) = self.queues.batches.try_recv() {
            let _ = reply.send(closed(batch));
        }
        while let Ok(Load { reply, .. }) = self.queues.loads.try_recv() {
            let _ = reply.send(Err(Error::Closed));
        }
        while let Ok(Solve { jobs, reply }) = self.queues.solves.try_recv() {
            let _ = reply.send(Solved::failed(jobs, Error::Closed));
        }
    }

    fn drive_to_the_end(&mut self) {
        if let Some(result) = self
            .loading
            .is_some()
            .then(|| self.backend.loaded())
            .flatten()
        {
            self.end_load(result);
        }
        if let Some(ended) = (!self.waiting.is_empty())
            .then(|| self.backend.ended())
            .flatten()
        {
            self.end_batch(ended);
        }
        if let Some(solved) = (!self.solving.is_empty())
            .then(|| self.backend.decoded())
            .flatten()
        {
            self.end_solve(solved);
        }
    }
}

fn closed(batch: Vec<Work>) -> Ended {
    Ended {
        batch,
        result: Err(Error::Closed),
        elapsed: Duration::ZERO,
    }
}

/// Polls without a pause for this long: longer than a small batch takes.
const SPIN: Duration = Duration::from_micros(150);
/// Yields to other threads between polls for this long.
const YIELD: Duration = Duration::from_millis(1);
/// Pause between polls after that.
const PAUSE: Duration = Duration::from_micros(20);
/// How often the device's memory is reported to the metrics while there is work.
const MEMORY_PERIOD: Duration = Duration::from_secs(1);
