//! Segments under way: which generations are requested, from which sources, and with how much
//! credit.
//!
//! One file owns each part of that:
//!
//! - `schedule`: in which order fetches and generations are served;
//! - `credit`: how the missing blocks of a generation are shared out among sources;
//! - `requests`: open requests, from the first credit to the end;
//! - `receive`: blocks as they come;
//! - `gfq`: blocks over the prime field, which are tested first;
//! - `trial`, `queries`, `blame`: wrong segments, the queries that find their wrong rows, and the
//!   senders of these;
//! - `naming`: sources that do not know a segment;
//! - `connections`, `sources`: sources as they come and go, and all of them together;
//! - `patience`, `drip`: when a fetch fails.
//!
//! `schedule` and `credit` only look at the state and return a plan. The other files act on
//! [`Fetches`], and put messages and events into [`Effects`].

mod blame;
mod connections;
mod credit;
mod drip;
mod fetch;
mod gfq;
mod naming;
mod patience;
mod queries;
mod receive;
mod requests;
mod schedule;
mod sources;
mod state;
mod trial;

use std::time::Duration;

use super::counts::{Counts, Progress, SourceCounts};
use super::effects::Effects;
use super::ids::{FetchId, SourceId};
use super::keyring::Proof;
use super::order::{Order, Place};
#[cfg(test)]
use super::pace::Pace;
use super::path::Trust;
use crate::object::Generation;
use crate::time::Instant;
use crate::wire::message::{StopReason, stream_of};

use fetch::Fetch;
pub(super) use state::Fetches;

impl Fetches {
    /// Begins a fetch. `proof` is the order's, unless another key of its stream is known.
    pub(super) fn add(
        &mut self,
        now: Instant,
        order: Order,
        place: Option<Place>,
        proof: Option<Proof>,
    ) -> FetchId {
        let id = FetchId(self.next_fetch);
        self.next_fetch += 1;
        if let Some(place) = &place {
            let paths = self.sources.paths.values_mut();
            let holders =
                paths.filter(|path| path.is_neighbour && path.holds.contains(&order.segment));
            holders.for_each(|path| path.follow(stream_of(&place.path)));
        }
        let strangers = self.sources.strangers(&order.segment, place.as_ref());
        let patience = self.sources.patience_with_neighbours(now, place.as_ref());
        // It is early for three quarters of the interval, and a lull takes a sixth of it.
        let (patient_until, expect_until) = (now + patience, now + patience * 4 / 5);
        let lull = patience / 6;
        self.evidence.open(id, order, place.clone(), proof);
        if order.shape.codec().is_gfq() {
            self.evidence.want_hashes(id);
        }
        let fetch = Fetch::new(now, order, place.clone());
        self.fetches.insert(
            id,
            Fetch {
                strangers,
                patient_until,
                expect_until,
                lull,
                ..fetch
            },
        );
        self.ask_doubted(id, place.as_ref());
        self.stirred = true;
        id
    }

    /// Ends a fetch that is not wanted any more.
    pub(super) fn cancel(&mut self, id: FetchId, effects: &mut Effects) {
        self.drop_case(id);
        self.remove(id, StopReason::Cancelled, effects);
    }

    pub(super) fn set_rtt(&mut self, source: SourceId, rtt: Duration) {
        self.sources.entry(source).pace.set_rtt(rtt);
    }

    /// A source is silent: others are asked for its blocks, and for new ones.
    pub(super) fn suspect(&mut self, source: SourceId) {
        self.sources.entry(source).trust = Trust::Suspect;
        self.stirred = true;
    }

    #[cfg(test)]
    pub(super) fn pace(&mut self, source: SourceId) -> &mut Pace {
        &mut self.sources.entry(source).pace
    }

    /// A source has answered its first message so long after it.
    pub(super) fn answered(&mut self, source: SourceId, after: Duration) {
        self.sources.entry(source).pace.answered(after, false);
    }

    /// Gives credit, opens requests, and ends what is too late. To be called when something has
    /// come and when something is due.
    pub(super) fn advance(&mut self, now: Instant, effects: &mut Effects) {
        self.stirred = false;
        self.try_rows(now, effects);
        let order = self.schedule().order();
        self.watch(now, &order);
        for &id in &order {
            if let Some(failure) = self.failure(id, now) {
                self.fail(id, failure, StopReason::Deadline, effects);
            }
        }
        self.tidy(now, effects);
        self.sources.weigh(now, &self.fetches);
        self.exclude_charged();
        for fetch in self.fetches.values_mut() {
            fetch.exclude_others(self.sources.paths.keys());
            fetch.is_impatient = fetch.patient_until <= now;
            fetch.is_early = now < fetch.expect_until;
            fetch.fresh_until = fetch.fresh_until.filter(|until| now < *until);
        }
        for id in self.schedule().work_order() {
            self.tend(now, id, effects);
        }
        while let Some(beginning) = self.schedule().next(now, &order) {
            let id = beginning.id;
            self.begin(now, beginning);
            self.tend(now, id, effects);
        }
        self.watch(now, &order);
        for path in self
            .sources
            .paths
            .values_mut()
            .filter(|path| path.load.all.1 == 0)
        {
            path.pace.idle();
        }
    }

    /// Whether [`Fetches::advance`] has something to do besides what is due.
    pub(super) fn is_stirred(&self) -> bool {
        self.stirred
    }

    /// When [`Fetches::advance`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let of_fetch = |fetch: &Fetch| {
            [
                Some(self.stalls_at(fetch)),
                fetch.order.deadline,
                fetch.patience_ends(),
                fetch.fresh_until,
            ]
        };
        let of_fetches = self.fetches.values().flat_map(of_fetch);
        let broken = self.broken.front().map(|(at, ..)| *at);
        let others = [
            self.evidence.due(),
            broken,
            self.drip.due(),
            self.tests_due(),
            self.schedule().requests_due(),
        ];
        others.into_iter().chain(of_fetches).flatten().min()
    }

    /// When any fetch last progressed.
    pub(super) fn progress_at(&self) -> Option<Instant> {
        self.progress_at
    }

    /// Whether no request is open.
    pub(super) fn is_quiet(&self) -> bool {
        self.sources.is_quiet()
    }

    /// Whether blocks of a source are in flight.
    pub(super) fn awaits(&self, source: SourceId) -> bool {
        let mut works = self.fetches.values().flat_map(|fetch| fetch.works.values());
        works.any(|work| work.in_flight_at(&source) > 0)
    }

    /// Whether no request is open at a source.
    pub(super) fn is_quiet_at(&self, source: SourceId) -> bool {
        self.sources.is_quiet_at(source)
    }

    /// Whether there is no fetch, and no trial.
    pub(super) fn is_empty(&self) -> bool {
        self.fetches.is_empty() && !self.evidence.is_trying()
    }

    /// Whether generations of a segment are still to come, or under trial.
    pub(super) fn is_under_way(&self, id: FetchId) -> bool {
        self.fetches.contains_key(&id) || self.evidence.is_tried(id)
    }

    /// The counts of all sources, and those that belong to no source.
    pub(super) fn counts(&self) -> Counts {
        Counts {
            kept_bytes: self.evidence.bytes(),
            ..self.sources.counts(self.counts)
        }
    }

    pub(super) fn source_counts(&self, source: SourceId) -> SourceCounts {
        self.sources.source_counts(source)
    }

    /// Loss and rate of all open paths together.
    pub(super) fn path(&self) -> (f64, f64) {
        self.sources.loss_and_rate()
    }

    /// The progress of all generations under way.
    pub(super) fn progress(&self) -> Vec<Progress> {
        let works = self
            .fetches
            .values()
            .flat_map(|fetch| fetch.works.iter().map(|work| (fetch.order.segment, work)));
        works
            .map(|(segment, (index, work))| Progress {
                segment,
                generation: *index,
                rank: work.decoder.rank(),
                n: work.decoder.n(),
            })
            .collect()
    }

    /// The generation of an open request.
    pub(super) fn generation(&self, source: SourceId, alias: u16) -> Option<Generation> {
        let id = self.sources.get(source)?.aliases.get(&alias)?;
        self.fetches
            .get(&id.fetch)?
            .order
            .shape
            .generation(id.index)
    }
}
