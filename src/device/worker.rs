//! The thread that owns a back end: takes batches and loads from their queues, one at a time.
//!
//! The thread waits on an executor of its own without I/O or timers; nothing else runs there, so a back end may take it for as
//! long as a batch lasts.

use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;
use prometheus::Registry;
use tokio::runtime;
use tokio::sync::{mpsc, oneshot};

use super::metrics::Metrics;
use super::{BATCHES_IN_A_ROW, Backend, Batch, Device, Done, Error, Failed, Resident, ResidentId};
use crate::object::Shape;

/// A batch on its way.
#[derive(Debug)]
pub(super) struct Combine {
    pub(super) batch: Batch,
    pub(super) reply: oneshot::Sender<Result<Done, Failed>>,
}

/// A segment on its way.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) bytes: Bytes,
    pub(super) shape: Shape,
    pub(super) reply: oneshot::Sender<Result<Resident, Error>>,
}

/// The device's thread. Closing or dropping it ends the thread after the batch in hand and waits for it; batches still in the
/// queue come back with [`Error::Closed`].
#[derive(Debug)]
pub struct Thread {
    stop: Option<oneshot::Sender<()>>,
    join: Option<JoinHandle<()>>,
}

impl Thread {
    /// Ends the thread and waits for it: as long as one batch or load takes.
    pub fn close(self) {}
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(join) = self.join.take()
            && join.join().is_err()
        {
            tracing::error!("the device's thread had died");
        }
    }
}

pub(super) fn spawn(
    backend: Box<dyn Backend>,
    queue: std::num::NonZeroU16,
    registry: &Registry,
) -> Result<(Device, Thread), Error> {
    let (name, kernel) = (backend.name(), backend.kernel());
    let metrics = Metrics::new(registry, name, kernel).map_err(|error| Error::Metrics(error.to_string()))?;
    let runtime = runtime::Builder::new_current_thread().build().map_err(|error| Error::Thread(error.to_string()))?;
    let (batches_in, batches) = mpsc::channel(usize::from(queue.get()));
    let (loads_in, loads) = mpsc::channel(usize::from(queue.get()));
    let (release, releases) = mpsc::unbounded_channel();
    let (stop_in, stop) = oneshot::channel();
    let worker = Worker { backend, metrics, batches, loads, release, releases, stop, next_id: 0 };
    let thread = std::thread::Builder::new().name("device".to_owned());
    let join = thread.spawn(move || runtime.block_on(worker.run())).map_err(|error| Error::Thread(error.to_string()))?;
    let device = Device { backend: name, kernel, batches: batches_in, loads: loads_in };
    Ok((device, Thread { stop: Some(stop_in), join: Some(join) }))
}

struct Worker {
    backend: Box<dyn Backend>,
    metrics: Metrics,
    batches: mpsc::Receiver<Combine>,
    loads: mpsc::Receiver<Load>,
    /// Handed to every resident. One message each in its life, so residents bound the queue.
    release: mpsc::UnboundedSender<(ResidentId, u64)>,
    releases: mpsc::UnboundedReceiver<(ResidentId, u64)>,
    stop: oneshot::Receiver<()>,
    next_id: u64,
}

impl Worker {
    async fn run(mut self) {
        let mut batches_in_a_row = 0;
        loop {
            if batches_in_a_row >= BATCHES_IN_A_ROW
                && let Ok(load) = self.loads.try_recv()
            {
                self.load(load);
                batches_in_a_row = 0;
            }
            tokio::select! {
                biased;
                _ = &mut self.stop => break,
                Some((id, bytes)) = self.releases.recv() => self.release(id, bytes),
                batch = self.batches.recv() => match batch {
                    Some(batch) => self.combine(batch),
                    None => break,
                },
                Some(load) = self.loads.recv() => {
                    self.load(load);
                    batches_in_a_row = 0;
                    continue;
                }
            }
            batches_in_a_row += 1;
        }
        self.refuse_the_rest();
    }

    fn combine(&mut self, Combine { mut batch, reply }: Combine) {
        let start = Instant::now();
        let result = self.backend.combine(&mut batch);
        let elapsed = start.elapsed();
        let answer = match result {
            Ok(()) => {
                self.metrics.combine_seconds.observe(elapsed.as_secs_f64());
                Ok(Done { batch, elapsed })
            }
            Err(error) => {
                self.metrics.failures.inc();
                Err(Failed { batch, error })
            }
        };
        // Whoever asked may have given up.
        let _ = reply.send(answer);
    }

    fn load(&mut self, Load { bytes, shape, reply }: Load) {
        if reply.is_closed() {
            return;
        }
        let id = ResidentId(self.next_id);
        self.next_id += 1;
        let start = Instant::now();
        let result = self.backend.load(id, &bytes, &shape);
        match result {
            Ok(bytes) => {
                self.metrics.load_seconds.observe(start.elapsed().as_secs_f64());
                self.metrics.resident_bytes.add(gauge(bytes));
                self.metrics.resident_segments.inc();
                // If whoever asked has given up, the resident is dropped here, which releases it.
                let _ = reply.send(Ok(Resident { id, shape, bytes, release: self.release.clone() }));
            }
            Err(error) => {
                self.metrics.failures.inc();
                let _ = reply.send(Err(error));
            }
        }
    }

    fn release(&mut self, id: ResidentId, bytes: u64) {
        self.backend.release(id);
        self.metrics.resident_bytes.sub(gauge(bytes));
        self.metrics.resident_segments.dec();
    }

    fn refuse_the_rest(&mut self) {
        self.batches.close();
        self.loads.close();
        while let Ok(Combine { batch, reply }) = self.batches.try_recv() {
            let _ = reply.send(Err(Failed { batch, error: Error::Closed }));
        }
        while let Ok(Load { reply, .. }) = self.loads.try_recv() {
            let _ = reply.send(Err(Error::Closed));
        }
    }
}

fn gauge(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
