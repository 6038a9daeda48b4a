//! In which order fetches and their generations are served, and when each generation is due.
//!
//! Fetches are served in the order of their urgency and deadline. Those without a deadline share
//! the path equally, as far as they are among the oldest ([`SHARING_MAX`]), and the generations of
//! each are served in order. So a short segment that is wanted beside a long one comes as soon as
//! by a connection of its own. Each generation has a time at which it is due, after those of its
//! fetch that are under way (start-time fair queueing, Goyal, Vin and Cheng 1996, with service
//! times estimated from the rate of the path). Requests carry it as their deadline, by which
//! senders order their blocks.
//!
//! Everything here only looks at the state.

use std::time::Duration;

use super::fetch::{Fetch, WorkTurn};
use super::sources::{SUSPECT_AFTER, Sources};
use crate::object::Generation;
use crate::peer::config::Config;
use crate::peer::ids::{FetchId, SourceId, WorkId};
use crate::peer::order::{Order, Urgency};
use crate::peer::pace::{self, RATE_ASSUMED};
use crate::peer::path::Trust;
use crate::sorted::SortedMap;
use crate::time::Instant;

/// Fetches without a deadline that share the path; later ones wait.
const SHARING_MAX: usize = 8;
/// Generations of a fetch are due at least this far apart, which servers tell apart.
const DUE_STEP: Duration = Duration::from_millis(10);
/// A generation is due after the patience with its segment. It may be due earlier by one part in
/// this many of the patience (a fetch that is late by that much has no claim to more), and later by
/// one part in [`DUE_LATER`] (more than a window takes).
const DUE_EARLIER: u32 = 6;
const DUE_LATER: u32 = 3;

/// A view of the fetches and their sources.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule<'a> {
    pub(super) config: &'a Config,
    pub(super) sources: &'a Sources,
    pub(super) fetches: &'a SortedMap<FetchId, Fetch>,
}

/// The generation to begin next.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) id: WorkId,
    pub(super) generation: Generation,
    pub(super) due: Instant,
    /// Whether the deadline leaves too little time to multiply the payloads after the last block.
    pub(super) is_pressed: bool,
}

impl Schedule<'_> {
    /// Fetches in the order in which they are served.
    pub(super) fn order(&self) -> Vec<FetchId> {
        let mut order: Vec<_> = self
            .fetches
            .iter()
            .map(|(id, fetch)| fetch.turn(*id))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(.., id)| id).collect()
    }

    /// Generations under way in the order in which they are served.
    pub(super) fn work_order(&self) -> Vec<WorkId> {
        let of = |(id, fetch): (&FetchId, &Fetch)| fetch.work_turns(*id).collect::<Vec<_>>();
        let mut turns: Vec<WorkTurn> = self.fetches.iter().flat_map(of).collect();
        turns.sort_unstable();
        turns.into_iter().map(|(.., id)| id).collect()
    }

    /// The generation that is due next of those that were never requested, if a source can take a
    /// request for it. `order` is [`Schedule::order`].
    pub(super) fn next(&self, now: Instant, order: &[FetchId]) -> Option<Beginning> {
        let fetches = order
            .iter()
            .filter_map(|id| Some((*id, self.fetches.get(id)?)));
        let unasked = fetches.filter(|(_, fetch)| fetch.next < fetch.order.shape.generations());
        let able = unasked
            .filter(|(_, fetch)| self.can_begin(now, fetch))
            .take(SHARING_MAX);
        let turn = |(fetch, of): (FetchId, &Fetch)| {
            of.work_turn(
                self.due_of(now, of, of.next),
                WorkId {
                    fetch,
                    index: of.next,
                },
            )
        };
        let (.., due, id) = able.map(turn).min()?;
        let order = &self.fetches.get(&id.fetch)?.order;
        let generation = order.shape.generation(id.index)?;
        let left = order
            .deadline
            .map(|deadline| deadline.saturating_duration_since(now));
        let is_pressed = left.is_some_and(|left| {
            pace::is_pressed(self.sources.rate(), self.sources.rtt(), left, &generation)
        });
        Some(Beginning {
            id,
            generation,
            due,
            is_pressed,
        })
    }

    /// Whether a source can take a request for one more generation.
    fn can_begin(&self, now: Instant, fetch: &Fetch) -> bool {
        let (shuns, is_first) = (self.sources.shuns(fetch), fetch.is_waiting());
        let mut sources = self
            .sources
            .paths
            .iter()
            .filter(|(source, _)| fetch.may_ask(source));
        sources.any(|(source, path)| {
            let is_shunned = (shuns && path.trust == Trust::Suspect) || fetch.rests(now, source);
            path.has_room_for_request(fetch.order.urgency, is_first, self.config) && !is_shunned
        })
    }

    /// When a generation of a fetch is due, after that of [`Fetch::last_due`]: one service time
    /// after the one before it. The service time is how long the path takes for a generation,
    /// beside those of other fetches. An urgent fetch begins with what is served now, so that such
    /// fetches share the path. One ahead begins when those before it end, by their remaining bytes
    /// and the present rate: the first of them is wanted first.
    pub(super) fn due_of(&self, now: Instant, fetch: &Fetch, index: u32) -> Instant {
        if let Some(deadline) = fetch.order.deadline {
            return deadline;
        }
        let patience = match fetch.order.urgency {
            Urgency::Now => self.config.stall_timeout,
            Urgency::Ahead => self.config.stall_timeout * 2,
        };
        let usual = now + patience;
        let (earliest, latest) = (usual - patience / DUE_EARLIER, usual + patience / DUE_LATER);
        let measured = self.sources.rate();
        let rate = if measured > 0.0 {
            measured
        } else {
            RATE_ASSUMED
        };
        let takes = |bytes: u64| {
            Duration::from_secs_f64((bytes as f64 / rate.max(1.0)).min(patience.as_secs_f64()))
        };
        let alike = |other: &&Fetch| {
            other.order.urgency == fetch.order.urgency && other.order.deadline.is_none()
        };
        let under_way = || {
            self.fetches
                .values()
                .filter(alike)
                .filter(|other| !other.works.is_empty())
        };
        let served = || {
            under_way()
                .flat_map(|other| other.works.values())
                .map(|work| work.due)
                .min()
        };
        let ends = || {
            under_way()
                .filter_map(|other| Some(other.last_due? + takes(other.left()).max(DUE_STEP)))
                .max()
        };
        let (begins, earliest, sharing) = match fetch.order.urgency {
            Urgency::Now => {
                let begins = served().unwrap_or(usual).clamp(earliest, usual);
                (begins, begins, under_way().count().clamp(1, SHARING_MAX))
            }
            Urgency::Ahead => (ends().unwrap_or(usual).clamp(earliest, latest), earliest, 1),
        };
        let Some(last) = fetch.last_due else {
            return begins;
        };
        let bytes = fetch
            .order
            .shape
            .generation(index)
            .map_or(0, |generation| generation.length);
        let step = takes(bytes)
            .mul_f64(sharing as f64)
            .min(patience)
            .max(DUE_STEP);
        (last + step).clamp(earliest, latest)
    }

    /// When a generation is due that is requested before all others of its fetch.
    pub(super) fn first_due(&self, now: Instant, order: Order) -> Instant {
        self.due_of(now, &Fetch::new(now, order, None), 0)
    }

    /// When something is due at an open request, or a source may be asked again.
    pub(super) fn requests_due(&self) -> Option<Instant> {
        // When each source was last heard, in the order in which it serves its requests.
        let mut heard: SortedMap<SourceId, Instant> = SortedMap::new();
        let mut due: Option<Instant> = None;
        let mut at = |instant: Option<Instant>| due = due.into_iter().chain(instant).min();
        for id in self.work_order() {
            let Some(fetch) = self.fetches.get(&id.fetch) else {
                continue;
            };
            let Some(work) = fetch.works.get(&id.index) else {
                continue;
            };
            let shuns = self.sources.shuns(fetch);
            at(work.paused.values().copied().min());
            let near_at = |deadline: Instant| deadline.checked_sub(pace::near(self.sources.rtt()));
            at(fetch
                .order
                .deadline
                .filter(|_| work.near.is_none())
                .and_then(near_at));
            for (source, asked) in &work.asked {
                let Some(path) = self.sources.get(*source) else {
                    continue;
                };
                let heard = heard.get_or_insert_with(*source, || asked.heard());
                *heard = asked.heard().max(*heard);
                let is_shunned = !fetch.may_ask(source) || (shuns && path.trust == Trust::Suspect);
                at(Some(asked.deadline));
                at(asked.flight.give_up_at(path.pace.patience()));
                if asked.room(path.credit_max) > 0 {
                    at(match work.lacking > 0 && !is_shunned {
                        true if !work.spared.contains(source) => {
                            Some(asked.flight.credited_at() + path.pace.rtt())
                        }
                        // The others have their own times.
                        true if !work.withholds => None,
                        _ => asked.silent_at(*heard, work.block_bytes(), path),
                    });
                } else if asked.is_exhausted() {
                    at(asked.silent_at(*heard, work.block_bytes(), path));
                }
                if path.trust != Trust::Suspect
                    && asked.in_flight() > 0
                    && self.sources.is_several()
                {
                    at(path
                        .load
                        .heard
                        .map(|heard| heard + path.load.silence * SUSPECT_AFTER));
                }
            }
        }
        due
    }
}
