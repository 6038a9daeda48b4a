//! Work for the blocking pool: multiplications, tests, and joining of segments.

use std::collections::VecDeque;
use std::future::pending;
use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use ncs_codec::gfq::{Arithmetic, Cores};
use ncs_codec::rlnc::System;
use ncs_device::Device;
use ncs_proto::object::{Generation, Tree};
use tokio::task::JoinHandle;

use crate::proto::assembly::{Examined, examine};
use crate::proto::{FetchId, Rebuilder, Tested};

/// A finished job of the blocking pool.
pub(super) enum Done {
    Gathered {
        fetch: FetchId,
        generation: Generation,
        system: Option<System>,
    },
    Examined {
        fetch: FetchId,
        examined: Examined,
    },
    Tested(Tested),
    /// All bytes joined, if they match the segment's id.
    Joined {
        fetch: FetchId,
        bytes: Option<Bytes>,
    },
}

/// Jobs for the blocking pool, at most one per core at a time.
pub(super) struct PoolJobs {
    running: FuturesUnordered<JoinHandle<Done>>,
    waiting: VecDeque<Box<dyn FnOnce() -> Done + Send>>,
    /// The number of jobs at a time.
    pub(super) most: usize,
}

impl PoolJobs {
    pub(super) fn new() -> Self {
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            running: FuturesUnordered::new(),
            waiting: VecDeque::new(),
            most,
        }
    }

    pub(super) fn add(&mut self, job: impl FnOnce() -> Done + Send + 'static) {
        self.waiting.push_back(Box::new(job));
        self.start();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    fn start(&mut self) {
        while self.running.len() < self.most
            && let Some(job) = self.waiting.pop_front()
        {
            self.running.push(tokio::task::spawn_blocking(job));
        }
    }

    /// The next finished job; waits forever without one.
    pub(super) async fn next(&mut self) -> Done {
        loop {
            match self.running.next().await {
                Some(done) => {
                    self.start();
                    return done.expect("no job panics");
                }
                None => pending().await,
            }
        }
    }
}

/// The arithmetic over the prime field. Opened only when needed, because most streams do not need
/// it and opening a card takes time.
pub(super) fn gfq(device: Option<Device>) -> Arc<dyn Arithmetic> {
    device.map_or_else(|| Arc::new(Cores::all()) as _, |device| device.gfq())
}

pub(super) fn multiply(
    fetch: FetchId,
    decoder: Rebuilder,
    device: Option<Device>,
    tree: Option<&Tree>,
) -> Done {
    let generation = *decoder.generation();
    let bytes = match generation.codec.is_gfq() {
        true => decoder.into_bytes(&*gfq(device)),
        // Other codes do not use it.
        false => decoder.into_bytes(&Cores::new(NonZeroUsize::MIN)),
    };
    Done::Examined {
        fetch,
        examined: examine(&generation, bytes.ok().map(Bytes::from), tree),
    }
}

pub(super) fn gather(fetch: FetchId, decoder: Rebuilder) -> Done {
    let generation = *decoder.generation();
    Done::Gathered {
        fetch,
        generation,
        system: decoder.into_system(),
    }
}
