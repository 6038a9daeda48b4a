//! Generations that are decoded on a device, many at a time.
//!
//! What is ready is collected for a few milliseconds, or until it is enough for a call, or until nothing more is on its way. Two calls
//! are under way at most; what becomes ready meanwhile waits and makes the next one larger. What a device cannot do comes back, to
//! be solved by the peer itself, and a device that has failed is not asked again.

use std::future::pending;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use ncs_codec::rlnc::System;
use ncs_device::{Decode, Device, Error, Undecoded};
use ncs_proto::object::Generation;

use super::proto::FetchId;

/// The device, what waits for it, and what it does.
pub(super) struct Bulk {
    device: Option<Device>,
    ready: Vec<(FetchId, System)>,
    /// When the first of them became ready.
    since: Instant,
    calls: FuturesUnordered<BoxFuture<'static, Call>>,
}

/// A call that has ended.
struct Call {
    systems: Vec<(FetchId, System)>,
    result: Result<Vec<Decoded>, Error>,
}

/// A generation that the device has looked at.
struct Decoded {
    bytes: Option<Vec<u8>>,
    maker: Maker,
}

/// Back end and kernel.
pub(super) type Maker = (&'static str, &'static str);

/// What has become of a generation.
pub(super) enum Outcome {
    /// Its source.
    Decoded { fetch: FetchId, generation: Generation, bytes: Vec<u8>, maker: Maker },
    /// To be solved here.
    Back { fetch: FetchId, system: System },
}

impl Bulk {
    pub(super) fn new(device: Option<Device>) -> Self {
        Self { device, ready: Vec::new(), since: Instant::now(), calls: FuturesUnordered::new() }
    }

    /// Hands a generation in. It is given back if there is no device.
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

    /// When [`Bulk::start`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.ready.is_empty() && self.calls.len() < CALLS_MAX).then(|| self.since + GATHER)
    }

    /// Begins the calls that are due; `is_last` if nothing more is on its way. Calling it early is harmless.
    pub(super) fn start(&mut self, now: Instant, is_last: bool) {
        while let Some(due) = self.due() {
            let Some(device) = &self.device else { return };
            if due > now && self.ready.len() < GENERATIONS_MAX && !is_last {
                return;
            }
            let some = self.ready.drain(..self.ready.len().min(GENERATIONS_MAX)).collect();
            self.calls.push(Box::pin(call(device.clone(), some)));
        }
    }

    /// What the next call that ends has brought; without any, never.
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
                let outcome = |((fetch, system), Decoded { bytes, maker }): ((FetchId, System), Decoded)| match bytes {
                    Some(bytes) => Outcome::Decoded { fetch, generation: system.generation, bytes, maker },
                    None => back((fetch, system)),
                };
                systems.into_iter().zip(decoded).map(outcome).collect()
            }
            Err(Error::Memory { bytes }) => {
                tracing::debug!(bytes, "no room on the device: decoding these generations here");
                systems.into_iter().map(back).collect()
            }
            Err(error) => {
                if self.device.take().is_some() {
                    tracing::warn!(%error, "the device failed: decoding continues on the CPU");
                }
                systems.into_iter().chain(self.ready.drain(..)).map(back).collect()
            }
        }
    }
}

/// Has the device decode. The systems come back as they went, but for those it has solved, which have lost their bytes.
async fn call(device: Device, mut systems: Vec<(FetchId, System)>) -> Call {
    let jobs = systems.iter_mut().map(|(_, System { generation, coefficients, payloads, .. })| {
        let out = vec![0; payloads.len()];
        Decode { n: generation.n, coefficients: std::mem::take(coefficients), payloads: std::mem::take(payloads), out }
    });
    let restore = |system: &mut System, job: Decode| {
        (system.coefficients, system.payloads) = (job.coefficients, job.payloads);
        job.out
    };
    let result = match device.decode(jobs.collect()).await {
        Ok(decoded) => Ok(systems
            .iter_mut()
            .zip(decoded)
            .map(|((_, system), decoded)| {
                let (is_solved, maker) = (decoded.solution.is_ok(), (decoded.backend, decoded.kernel));
                let mut source = restore(system, decoded.job);
                source.truncate(usize::try_from(system.generation.length).expect("a generation fits in memory"));
                Decoded { bytes: is_solved.then_some(source), maker }
            })
            .collect()),
        Err(Undecoded { jobs, error }) => {
            systems.iter_mut().zip(jobs).for_each(|((_, system), job)| drop(restore(system, job)));
            Err(error)
        }
    };
    Call { systems, result }
}

/// Generations of a call.
const GENERATIONS_MAX: usize = 32;
/// Calls at a time: one goes to the device while the other comes back.
const CALLS_MAX: usize = 2;
/// How long the first generation waits for others.
const GATHER: Duration = Duration::from_millis(3);
