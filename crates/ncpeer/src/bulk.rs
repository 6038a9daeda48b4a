//! Decodes generations on a device, many at a time.
//!
//! Complete generations are gathered for a few milliseconds, until they fill a call, or until no
//! more are expected. At most two calls are in progress; generations that become ready meanwhile
//! make the next call larger. Generations that the device cannot decode are returned, to be solved
//! on the CPU. A device that has failed is not used again.

use std::future::pending;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use ncs_codec::rlnc::System;
use ncs_device::{Decode, Device, Error, Undecoded};
use ncs_proto::object::Generation;

use super::proto::FetchId;

/// The device, the waiting generations, and the calls.
pub(super) struct Bulk {
    device: Option<Device>,
    ready: Vec<(FetchId, System)>,
    /// When the first waiting generation became ready.
    since: Instant,
    calls: FuturesUnordered<BoxFuture<'static, Call>>,
}

/// A finished call.
struct Call {
    systems: Vec<(FetchId, System)>,
    result: Result<Vec<Decoded>, Error>,
}

/// A generation processed by the device.
struct Decoded {
    bytes: Option<Vec<u8>>,
    maker: Maker,
}

/// Back end and kernel.
pub(super) type Maker = (&'static str, &'static str);

/// The result for a generation.
pub(super) enum Outcome {
    /// Its source bytes.
    Decoded {
        fetch: FetchId,
        generation: Generation,
        bytes: Vec<u8>,
        maker: Maker,
    },
    /// Must be solved on the CPU.
    Back { fetch: FetchId, system: System },
}

impl Bulk {
    pub(super) fn new(device: Option<Device>) -> Self {
        Self {
            device,
            ready: Vec::new(),
            since: Instant::now(),
            calls: FuturesUnordered::new(),
        }
    }

    /// Adds a generation. Returns it if there is no device.
    pub(super) fn add(&mut self, now: Instant, fetch: FetchId, system: System) -> Option<System> {
        if self.device.is_none() {
            return Some(system);
        }
        if self.ready.is_empty() {
            self.since = now;
        }
        self.ready.push((fetch, system));
        None
    }

    /// When [`Bulk::start`] has to be called.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.ready.is_empty() && self.calls.len() < CALLS_MAX).then(|| self.since + GATHER)
    }

    /// Starts the calls that are due; `is_last` if no more generations are expected. An early call
    /// is harmless.
    pub(super) fn start(&mut self, now: Instant, is_last: bool) {
        while let Some(due) = self.due() {
            let Some(device) = &self.device else { return };
            if due > now && self.ready.len() < GENERATIONS_MAX && !is_last {
                return;
            }
            let some = self
                .ready
                .drain(..self.ready.len().min(GENERATIONS_MAX))
                .collect();
            self.calls.push(Box::pin(call(device.clone(), some)));
        }
    }

    /// The results of the next finished call; waits forever without one.
    pub(super) async fn next(&mut self) -> Vec<Outcome> {
        match self.calls.next().await {
            Some(call) => self.end(call),
            None => pending().await,
        }
    }

    fn end(&mut self, Call { systems, result }: Call) -> Vec<Outcome> {
        let back = |(fetch, system)| Outcome::Back { fetch, system };
        match result {
            Ok(decoded) => {
                let outcome =
                    |((fetch, system), Decoded { bytes, maker }): ((FetchId, System), Decoded)| {
                        match bytes {
                            Some(bytes) => Outcome::Decoded {
                                fetch,
                                generation: system.generation,
                                bytes,
                                maker,
                            },
                            None => back((fetch, system)),
                        }
                    };
                systems.into_iter().zip(decoded).map(outcome).collect()
            }
            Err(Error::Memory { bytes }) => {
                tracing::debug!(
                    bytes,
                    "no room on the device: decoding these generations here"
                );
                systems.into_iter().map(back).collect()
            }
            Err(error) => {
                if self.device.take().is_some() {
                    tracing::warn!(%error, "the device failed: decoding continues on the CPU");
                }
                systems
                    .into_iter()
                    .chain(self.ready.drain(..))
                    .map(back)
                    .collect()
            }
        }
    }
}

/// Has the device decode. Unsolved systems return unchanged; solved ones have lost their bytes.
async fn call(device: Device, mut systems: Vec<(FetchId, System)>) -> Call {
    let jobs = systems.iter_mut().map(
        |(
            _,
            System {
                generation,
                coefficients,
                payloads,
                ..
            },
        )| {
            let out = vec![0; payloads.len()];
            Decode {
                n: generation.n,
                coefficients: std::mem::take(coefficients),
                payloads: std::mem::take(payloads),
                out,
            }
        },
    );
    let restore = |system: &mut System, job: Decode| {
        (system.coefficients, system.payloads) = (job.coefficients, job.payloads);
        job.out
    };
    let result = match device.decode(jobs.collect()).await {
        Ok(decoded) => Ok(systems
            .iter_mut()
            .zip(decoded)
            .map(|((_, system), decoded)| {
                let (is_solved, maker) =
                    (decoded.solution.is_ok(), (decoded.backend, decoded.kernel));
                let mut source = restore(system, decoded.job);
                source.truncate(
                    usize::try_from(system.generation.length).expect("a generation fits in memory"),
                );
                Decoded {
                    bytes: is_solved.then_some(source),
                    maker,
                }
            })
            .collect()),
        Err(Undecoded { jobs, error }) => {
            systems
                .iter_mut()
                .zip(jobs)
                .for_each(|((_, system), job)| drop(restore(system, job)));
            Err(error)
        }
    };
    Call { systems, result }
}

/// Generations per call.
const GENERATIONS_MAX: usize = 32;
/// Calls at a time: one on its way to the device, one on its way back.
const CALLS_MAX: usize = 2;
/// How long the first generation waits for others.
const GATHER: Duration = Duration::from_millis(3);
