//! Arithmetic over the prime field: on a card if the device has one that can do it, otherwise on
//! the CPU's cores.
//!
//! If a card fails at a call, the cores repeat it. A card that completes no call for
//! [`Config::hang_timeout`] is given up for the rest of the run. Nobody waits for its calls any
//! more, and these keep the memory that they were given, because the card may still write there.
//! Callers notice only the time that this takes. The first of these events is reported as
//! [`Health::Degraded`](super::Health::Degraded).

use std::any::Any;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ncs_codec::gfq::{
    Arithmetic, Cores, Decode, Encode, Failed, Kept, NotKept, Rebuilt, Recode, Shape,
};
use ncs_codec::hash::{Batch, Group};

use super::losses::Losses;
use super::{Config, Error, cuda, gfq};

/// Opened at first use: most servers have no stream that needs it.
#[derive(Debug)]
pub(super) struct GfqProvider {
    config: Config,
    host: cuda::HostMemory,
    found: Mutex<Option<Arc<dyn Arithmetic>>>,
    watch: Arc<Watch>,
}

impl GfqProvider {
    /// The card writes blocks for memory of `host` there itself.
    pub(super) fn new(config: &Config, host: cuda::HostMemory, losses: Losses) -> Self {
        let watch = Arc::new(Watch {
            losses,
            calls: Mutex::default(),
        });
        Self {
            config: config.clone(),
            host,
            found: Mutex::default(),
            watch,
        }
    }

    /// Uses this arithmetic in place of opening one.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn of(card: Box<dyn Arithmetic>, config: &Config, losses: Losses) -> Self {
        let provider = Self::new(config, cuda::HostMemory::default(), losses);
        let steady: Arc<dyn Arithmetic> = Arc::new(provider.steady(card));
        Self {
            found: Mutex::new(Some(steady)),
            ..provider
        }
    }

    /// Opens the configured arithmetic at the first call. A GPU that is configured by name and
    /// cannot be opened is an error.
    pub(super) fn open(&self) -> Result<Arc<dyn Arithmetic>, Error> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = &*found {
            return Ok(Arc::clone(found));
        }
        let opened: Arc<dyn Arithmetic> = match gfq::open(&self.config, &self.host)? {
            Some(card) => Arc::new(self.steady(card)),
            None => Arc::new(self.cores()),
        };
        Ok(Arc::clone(found.insert(opened)))
    }

    /// The same, with the cores in place of an error.
    pub(super) fn get(&self) -> Arc<dyn Arithmetic> {
        self.open().unwrap_or_else(|error| {
            tracing::warn!(%error, "no GPU for arithmetic over the prime field: using the CPU");
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(found.get_or_insert_with(|| Arc::new(self.cores())))
        })
    }

    /// Runs a job where it blocks nobody. Returns [`Error::Lost`] if the card hangs: the job is
    /// then abandoned with everything in it, and the cores do a repeated one.
    pub(super) async fn run<T: Send + 'static>(
        self: Arc<Self>,
        job: impl FnOnce(&dyn Arithmetic) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (watch, limit) = (Arc::clone(&self.watch), self.config.hang_timeout);
        let is_given_up = watch.calls().is_given_up;
        let mut done = tokio::task::spawn_blocking(move || job(&*self.get()));
        if is_given_up {
            return done.await.map_err(|_| Error::Closed);
        }
        loop {
            let patience = watch.patience(Instant::now(), limit);
            match tokio::time::timeout(patience, &mut done).await {
                Ok(done) => return done.map_err(|_| Error::Closed),
                Err(_) => watch.judge(Instant::now(), limit).map_err(Error::Lost)?,
            }
        }
    }

    fn steady(&self, card: Box<dyn Arithmetic>) -> Steady {
        Steady {
            card,
            cores: self.cores(),
            watch: Arc::clone(&self.watch),
        }
    }

    fn cores(&self) -> Cores {
        Cores::new(NonZeroUsize::new(self.config.cpu_threads.count()).unwrap_or(NonZeroUsize::MIN))
    }
}

/// A card that may fail or hang, with the cores as a fallback.
#[derive(Debug)]
struct Steady {
    card: Box<dyn Arithmetic>,
    cores: Cores,
    watch: Arc<Watch>,
}

impl Steady {
    /// The card's answer. `None` if it fails or has been given up.
    fn ask<T>(&self, call: impl FnOnce(&dyn Arithmetic) -> Result<T, Failed>) -> Option<T> {
        let _call = self.watch.begin(Instant::now())?;
        call(&*self.card)
            .inspect_err(|failed| self.watch.fail(failed))
            .ok()
    }
}

impl Arithmetic for Steady {
    /// A card that fails to keep a source keeps nothing. Callers then pass its bytes with each
    /// call.
    fn keep(&self, source: &[u8], padded: usize) -> Result<Option<Arc<dyn Kept>>, NotKept> {
        let Some(_call) = self.watch.begin(Instant::now()) else {
            return Ok(None);
        };
        match self.card.keep(source, padded) {
            Ok(kept) => Ok(kept.map(|kept| OnCard::wrap(kept, &self.watch))),
            Err(NotKept::Failed(failed)) => {
                self.watch.fail(&failed);
                Ok(None)
            }
            Err(full) => Err(full),
        }
    }

    fn encode(&self, shape: Shape, tasks: &mut [Encode<'_>]) -> Result<(), Failed> {
        for place in tasks.iter_mut().filter_map(|task| task.kept.as_mut()) {
            let kept: &dyn Any = place.kept;
            place.kept = kept
                .downcast_ref::<OnCard>()
                .map_or(place.kept, |on_card| &*on_card.kept);
        }
        self.ask(|card| card.encode(shape, tasks))
            .map_or_else(|| self.cores.encode(shape, tasks), Ok)
    }

    fn recode(&self, shape: Shape, tasks: &mut [Recode<'_>]) -> Result<(), Failed> {
        self.ask(|card| card.recode(shape, tasks))
            .map_or_else(|| self.cores.recode(shape, tasks), Ok)
    }

    fn decode(&self, shape: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed> {
        self.ask(|card| card.decode(shape, tasks))
            .map_or_else(|| self.cores.decode(shape, tasks), Ok)
    }

    fn hash(&self, group: Group, words: usize, blocks: &[&[u8]]) -> Result<Vec<u8>, Failed> {
        self.ask(|card| card.hash(group, words, blocks))
            .map_or_else(|| self.cores.hash(group, words, blocks), Ok)
    }

    fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
        self.ask(|card| card.holds(batches))
            .map_or_else(|| self.cores.holds(batches), Ok)
    }
}

/// Memory of cards that were given up. It is never freed; this list keeps it reachable for leak
/// checkers.
static ABANDONED: Mutex<Vec<Arc<dyn Kept>>> = Mutex::new(Vec::new());

/// A source that a card keeps. If the card was given up, the source is never freed, because freeing
/// may hang as well.
#[derive(Debug)]
struct OnCard {
    kept: Arc<dyn Kept>,
    watch: Arc<Watch>,
}

impl OnCard {
    fn wrap(kept: Arc<dyn Kept>, watch: &Arc<Watch>) -> Arc<dyn Kept> {
        Arc::new(Self {
            kept,
            watch: Arc::clone(watch),
        })
    }

    fn is_given_up(&self) -> bool {
        self.watch.calls().is_given_up
    }
}

impl Kept for OnCard {
    fn bytes(&self) -> u64 {
        self.kept.bytes()
    }

    fn is_alive(&self) -> bool {
        !self.is_given_up() && self.kept.is_alive()
    }
}

impl Drop for OnCard {
    fn drop(&mut self) {
        if self.is_given_up() {
            ABANDONED
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Arc::clone(&self.kept));
        }
    }
}

/// Watches the calls of a card.
#[derive(Debug)]
struct Watch {
    losses: Losses,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    under_way: usize,
    /// When the last call ended, or when one began with no other under way.
    moved: Option<Instant>,
    has_failed: bool,
    is_given_up: bool,
}

impl Calls {
    /// By when the card must complete one of the calls under way.
    fn due(&self, limit: Duration) -> Option<Instant> {
        self.moved
            .filter(|_| self.under_way > 0)?
            .checked_add(limit)
    }
}

impl Watch {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call. `None` if the card was given up.
    fn begin(&self, now: Instant) -> Option<Call<'_>> {
        let mut calls = self.calls();
        if calls.is_given_up {
            return None;
        }
        if calls.under_way == 0 {
            calls.moved = Some(now);
        }
        calls.under_way += 1;
        Some(Call(self))
    }

    /// How long to wait before calling [`judge`](Self::judge) again.
    fn patience(&self, now: Instant, limit: Duration) -> Duration {
        self.calls()
            .due(limit)
            .map_or(limit, |due| due.saturating_duration_since(now))
    }

    /// Gives up a card that has completed nothing for `limit`.
    fn judge(&self, now: Instant, limit: Duration) -> Result<(), String> {
        let mut calls = self.calls();
        if calls.due(limit).is_none_or(|due| now < due) {
            return Ok(());
        }
        let reason = format!(
            "it has finished no work over the prime field for {}",
            humantime::format_duration(limit)
        );
        if !calls.is_given_up {
            calls.is_given_up = true;
            tracing::error!(
                "the GPU hangs, so the CPU takes over arithmetic over the prime field: {reason}"
            );
        }
        self.tell(&mut calls, &reason);
        Err(reason)
    }

    /// Reports a failure once.
    fn fail(&self, failed: &Failed) {
        let mut calls = self.calls();
        if !calls.has_failed {
            tracing::warn!(
                %failed,
                "arithmetic over the prime field failed on the GPU: the CPU redoes failed calls",
            );
        }
        self.tell(
            &mut calls,
            &format!("arithmetic over the prime field failed: {failed}"),
        );
    }

    fn tell(&self, calls: &mut Calls, reason: &str) {
        if !std::mem::replace(&mut calls.has_failed, true) {
            self.losses.degraded(reason);
        }
    }
}

/// A call under way. Dropping it ends the call.
struct Call<'a>(&'a Watch);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut calls = self.0.calls();
        calls.under_way -= 1;
        calls.moved = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests;
