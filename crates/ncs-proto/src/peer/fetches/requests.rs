//! Open requests: their credit, their probes, and their end.
//!
//! A request is opened while the credit in flight at a source is below the window that its path
//! needs, and at least two are, so that the last round trip of one overlaps the next. The first
//! request of a fetch that somebody waits for may exceed the window, because other fetches fill it.
//! Decoders exist for generations with requests alone, and for interrupted ones.

use std::time::Duration;

use ncs_codec::numbers::Numbers;

use super::credit::{Plan, View};
use super::fetch::{Fetch, WorkTurn, find};
use super::schedule::Beginning;
use super::state::Fetches;
use crate::peer::effects::Effects;
use crate::peer::event::{Event, Failure};
use crate::peer::flight::Flight;
use crate::peer::ids::{FetchId, SourceId, WorkId};
use crate::peer::order::Urgency;
use crate::peer::pace;
use crate::peer::path::Trust;
use crate::peer::rebuilder::Rebuilder;
use crate::peer::work::{Asked, Work};
use crate::time::Instant;
use crate::wire::message::{Accept, Meant, Message, RANGES_MAX, Request, StopReason};

impl Fetches {
    /// Ends requests whose deadline has passed, and gives up lost blocks.
    pub(super) fn tidy(&mut self, now: Instant, effects: &mut Effects) {
        let Self {
            sources, fetches, ..
        } = self;
        for work in fetches
            .values_mut()
            .flat_map(|fetch| fetch.works.values_mut())
        {
            work.paused.retain(|_, until| *until > now);
            let Work { asked, lost, .. } = &mut **work;
            asked.retain(|source, asked| {
                let Some(path) = sources.get_mut(*source) else {
                    return false;
                };
                let given_up = asked.flight.give_up(now, path.pace.patience());
                *lost += given_up;
                path.note_lost(given_up);
                // Its blocks are requested again.
                let has_expired = asked.deadline <= now;
                if has_expired {
                    sources.stop(*source, asked.alias, StopReason::Deadline, effects);
                }
                !has_expired
            });
        }
    }

    /// Begins a generation: from now on blocks are requested for it.
    pub(super) fn begin(&mut self, now: Instant, beginning: Beginning) {
        let Beginning {
            id,
            generation,
            due,
            is_pressed,
        } = beginning;
        let Some(fetch) = self.fetches.get_mut(&id.fetch) else {
            return;
        };
        if fetch.works.is_empty() {
            fetch.touched = now;
        }
        let decoder =
            Rebuilder::for_generation(&self.config, &fetch.order.segment, generation, is_pressed);
        let paused = fetch
            .rests
            .iter()
            .map(|(source, rest)| (*source, rest.until))
            .collect();
        fetch.works.insert(
            id.index,
            Box::new(Work {
                paused,
                ..Work::new(decoder, due)
            }),
        );
        (fetch.next, fetch.last_due) = (id.index + 1, Some(due));
    }

    /// Gives a generation the credit that it should have now.
    pub(super) fn tend(&mut self, now: Instant, id: WorkId, effects: &mut Effects) {
        let Some(fetch) = self.fetches.get_mut(&id.fetch) else {
            return;
        };
        let shuns = self.sources.shuns(fetch);
        let Some(work) = fetch.works.get_mut(&id.index) else {
            return;
        };
        let left = fetch
            .order
            .deadline
            .map(|deadline| deadline.saturating_duration_since(now));
        work.near = left
            .filter(|left| *left <= pace::near(self.sources.rtt()))
            .map(|_| work.near.unwrap_or(now));
        self.sources.add_ahead(work);
        self.end_exhausted(now, id, effects);
        let Some(fetch) = self.fetches.get(&id.fetch) else {
            return;
        };
        let Some(work) = fetch.works.get(&id.index) else {
            return;
        };
        let view = View {
            now,
            config: &self.config,
            sources: &self.sources,
            fetch,
            work,
            shuns,
        };
        let plan = view.plan();
        self.carry_out(now, id, plan, effects);
        self.sound_out(now, id, effects);
    }

    /// Ends requests that can bring nothing more, because all blocks that they name have come or
    /// are lost. Missing blocks need new requests. A source that is silent again when asked anew is
    /// suspect where others can be asked.
    fn end_exhausted(&mut self, now: Instant, id: WorkId, effects: &mut Effects) {
        let Self {
            sources, fetches, ..
        } = self;
        let Some(work) = find(fetches, id) else {
            return;
        };
        let (is_several, block_bytes) = (sources.is_several(), work.block_bytes());
        let Work {
            asked, silences, ..
        } = work;
        asked.retain(|source, asked| {
            let Some(path) = sources.get_mut(*source).filter(|_| asked.is_exhausted()) else {
                return true;
            };
            let heard = path.load.heard_ahead.unwrap_or_else(|| asked.heard());
            let is_silent = asked
                .silent_at(heard, block_bytes, path)
                .is_some_and(|at| at <= now);
            if asked.in_flight() > 0 && !is_silent {
                return true;
            }
            if is_silent {
                let before = silences.get_or_default(*source);
                if *before > 0 && is_several {
                    path.trust = Trust::Suspect;
                }
                *before += 1;
            }
            sources.stop(*source, asked.alias, StopReason::Cancelled, effects);
            false
        });
    }

    /// Gives the credit of a plan.
    fn carry_out(&mut self, now: Instant, id: WorkId, plan: Plan, effects: &mut Effects) {
        let Plan {
            shares,
            spared,
            lacking,
            withholds,
            needed,
            ahead,
            reassigned,
            probes,
        } = plan;
        let Some(work) = find(&mut self.fetches, id) else {
            return;
        };
        (work.spared, work.lacking, work.withholds) = (spared, lacking, withholds);
        work.needed += needed;
        work.ahead += ahead;
        self.counts.ahead += u64::from(ahead);
        self.counts.reassigned += u64::from(reassigned);
        for (source, blocks) in shares {
            self.give(now, id, source, blocks, effects);
        }
        if probes {
            self.probe(now, id, effects);
        }
    }

    /// Gives a source credit for a generation: in its open request, or in a new one.
    fn give(
        &mut self,
        now: Instant,
        id: WorkId,
        source: SourceId,
        blocks: u32,
        effects: &mut Effects,
    ) {
        let sources = self.sources.open().count();
        let is_shared = self.sources.open().any(|(_, path)| path.is_neighbour);
        let Some(fetch) = self.fetches.get_mut(&id.fetch) else {
            return;
        };
        let Some(work) = fetch.works.get_mut(&id.index) else {
            return;
        };
        let Some(path) = self.sources.get_mut(source) else {
            return;
        };
        let order = &fetch.order;
        let bytes = u64::from(blocks) * u64::from(work.block_bytes());
        let was_busy = path.load.all.1 > 0;
        path.load.ahead += bytes;
        path.credited += u64::from(blocks);
        if let Some(asked) = work.asked.get_mut(&source) {
            path.load.add(order.urgency, 0, bytes);
            asked.flight.credit(now, blocks, was_busy);
            self.counts.credits += 1;
            effects.send(
                source,
                Message::Credit {
                    alias: asked.alias,
                    blocks,
                },
            );
            return;
        }
        path.load.add(order.urgency, 1, bytes);
        let all = Numbers::of(work.decoder.generation());
        let numbers = all.map(|all| work.allot(&all, blocks, sources).in_ranges(RANGES_MAX));
        let ranges = match numbers {
            Some(numbers) if Some(numbers) == all => Some(Vec::new()),
            Some(numbers) => Some(numbers.ranges(RANGES_MAX)),
            // Neighbours are asked for what this side will have; source blocks would be the same
            // everywhere.
            None if is_shared => None,
            None => work.source_blocks(blocks, sources <= 1),
        };
        let blocks = numbers.map_or(blocks, |numbers| blocks.min(numbers.len()));
        // Blocks of some codes travel on streams alone.
        let is_on_stream = order.shape.codec().is_gfq();
        let datagrams = self.config.datagrams && !is_on_stream;
        let accept = Accept {
            coded: true,
            systematic: ranges.is_some(),
            datagrams,
            recoded: true,
        };
        let deadline = order
            .deadline
            .unwrap_or_else(|| work.due.max(now + self.config.stall_timeout / 2));
        let alias = path.take_alias(id);
        let request = Request {
            alias,
            segment: order.segment,
            generation: id.index,
            deadline_ms: millis(deadline.saturating_duration_since(now)).max(1),
            credit: blocks,
            accept,
            ranges: ranges.unwrap_or_default(),
            meant: Meant::Coded(order.shape.coding()),
        };
        effects.send(source, Message::Request(request));
        let flight = Flight::new(now, blocks, was_busy)
            .after(work.silences.get(&source).copied().unwrap_or_default());
        let flight = if is_on_stream {
            flight.on_stream()
        } else {
            flight
        };
        work.asked.insert(
            source,
            Asked {
                numbers,
                ..Asked::new(now, alias, deadline, flight)
            },
        );
    }

    /// Requests a few blocks more from sources that have been silent for so long that the end of
    /// the flight may be lost.
    fn probe(&mut self, now: Instant, id: WorkId, effects: &mut Effects) {
        let Some(fetch) = self.fetches.get_mut(&id.fetch) else {
            return;
        };
        let is_pressing = fetch.order.deadline.is_some();
        let Some(work) = fetch.works.get_mut(&id.index) else {
            return;
        };
        let (missing, block_bytes) = (u32::from(work.decoder.missing()), work.block_bytes());
        for (source, asked) in &mut work.asked {
            let Some(path) = self.sources.get_mut(*source) else {
                continue;
            };
            // Where nothing was in flight before, a request that was made just now is not silent.
            let own = u64::from(asked.in_flight()) * u64::from(block_bytes);
            let heard = asked.heard();
            let heard = match path.load.heard_ahead {
                Some(at) if path.load.ahead > own => at,
                at => at.map_or(heard, |at| at.max(heard)),
            };
            if asked
                .silent_at(heard, block_bytes, path)
                .is_none_or(|at| at > now)
            {
                continue;
            }
            // Two at first where time is short: one of them may be lost too.
            let one = pace::covering(1, path.pace.loss());
            let probe = if work.near.is_some() {
                missing
            } else {
                one.max(1 + u32::from(is_pressing)) << asked.flight.silences().min(10)
            };
            let probe = probe.min(missing).max(one);
            let probe = probe.min(asked.room(path.credit_max));
            if probe > 0 {
                asked.flight.probe(now, probe);
                work.needed += probe;
                path.credited += u64::from(probe);
                self.counts.credits += 1;
                effects.send(
                    *source,
                    Message::Credit {
                        alias: asked.alias,
                        blocks: probe,
                    },
                );
            }
        }
    }

    /// Requests one block from each suspect with nothing in flight, to see whether it is there
    /// again, even if all sources are suspect: blocks may be awaited of one alone that is gone.
    fn sound_out(&mut self, now: Instant, id: WorkId, effects: &mut Effects) {
        let Some(fetch) = self.fetches.get(&id.fetch) else {
            return;
        };
        let Some(work) = fetch.works.get(&id.index) else {
            return;
        };
        let idle = self.sources.open().filter(|(source, path)| {
            let has_room = match work.asked.get(source) {
                Some(asked) => asked.room(path.credit_max) > 0,
                None => path.aliases.len() < path.requests_max,
            };
            path.trust == Trust::Suspect
                && path.load.all.1 == 0
                && has_room
                && fetch.may_ask(source)
                && !work.paused.contains_key(source)
        });
        for source in idle.map(|(source, _)| source).collect::<Vec<_>>() {
            self.give(now, id, source, 1, effects);
        }
    }

    /// Changes the urgency of a fetch. When somebody begins to wait for it, its open requests
    /// become due earlier. When nobody waits any more, they are stopped and made anew, because
    /// blocks that a sender has handed to QUIC already would go before those of others.
    pub(in crate::peer) fn set_urgency(
        &mut self,
        now: Instant,
        id: FetchId,
        urgency: Urgency,
        effects: &mut Effects,
    ) {
        // Due times depend on the other fetches.
        let Some(mut fetch) = self.fetches.remove(&id) else {
            return;
        };
        if fetch.order.urgency != urgency {
            fetch.order.urgency = urgency;
            (fetch.last_due, self.stirred) = (None, true);
            self.evidence.set_urgency(id, urgency);
            for index in fetch.works.keys().copied().collect::<Vec<_>>() {
                let due = self.schedule().due_of(now, &fetch, index);
                fetch.last_due = Some(due);
                let Some(work) = fetch.works.get_mut(&index) else {
                    continue;
                };
                work.due = due;
                if urgency == Urgency::Now {
                    let deadline_ms = millis(due.saturating_duration_since(now)).max(1);
                    for (source, asked) in &mut work.asked {
                        asked.deadline = due;
                        effects.send(
                            *source,
                            Message::Reschedule {
                                alias: asked.alias,
                                deadline_ms,
                            },
                        );
                    }
                    continue;
                }
                for (source, asked) in std::mem::take(&mut work.asked) {
                    self.sources
                        .stop(source, asked.alias, StopReason::Cancelled, effects);
                }
            }
        }
        self.fetches.insert(id, fetch);
    }

    /// Ends a generation that is complete, and its requests.
    pub(super) fn finish(&mut self, id: WorkId, effects: &mut Effects) {
        let Some(fetch) = self.fetches.get_mut(&id.fetch) else {
            return;
        };
        let Some(work) = fetch.works.remove(&id.index) else {
            return;
        };
        let turn = fetch.work_turn(work.due, id);
        let used = work.used_ahead();
        self.counts.ahead_used += u64::from(used);
        self.counts.generations_spared += u64::from(used > 0);
        for (source, asked) in work.asked {
            self.release(source, turn, asked.flight.came_at());
            effects.send(source, asked.rank(work.decoder.rank()));
            self.sources
                .stop(source, asked.alias, StopReason::Complete, effects);
        }
        self.counts.repaired += work.lost;
        self.counts.generations += 1;
        self.counts.generations_progressive += u64::from(work.decoder.is_progressive());
        let is_over =
            |fetch: &Fetch| fetch.works.is_empty() && fetch.next >= fetch.order.shape.generations();
        if self.fetches.get(&id.fetch).is_some_and(is_over) {
            self.fetches.remove(&id.fetch);
        }
        effects.report(Event::Decoded {
            fetch: id.fetch,
            decoder: work.decoder,
        });
    }

    /// Ends a fetch that has failed.
    pub(super) fn fail(
        &mut self,
        id: FetchId,
        failure: Failure,
        reason: StopReason,
        effects: &mut Effects,
    ) {
        self.drop_case(id);
        self.remove(id, reason, effects);
        effects.report(Event::Failed { fetch: id, failure });
    }

    /// Stops the requests of a fetch at one source.
    pub(super) fn stop_at(&mut self, source: SourceId, id: FetchId, effects: &mut Effects) {
        let works = self
            .fetches
            .get_mut(&id)
            .into_iter()
            .flat_map(|fetch| fetch.works.values_mut());
        for asked in works.filter_map(|work| work.asked.remove(&source)) {
            self.sources
                .stop(source, asked.alias, StopReason::Cancelled, effects);
        }
    }

    /// Ends a fetch and its requests.
    pub(super) fn remove(&mut self, id: FetchId, reason: StopReason, effects: &mut Effects) {
        let Some(fetch) = self.fetches.remove(&id) else {
            return;
        };
        let turns: Vec<_> = fetch.work_turns(id).collect();
        for (turn, work) in turns.into_iter().zip(fetch.works.into_values()) {
            for (source, asked) in work.asked {
                self.release(source, turn, asked.flight.came_at());
                self.sources.stop(source, asked.alias, reason, effects);
            }
        }
        self.stirred = true;
    }

    /// A request is over. The source could not serve requests behind it before its last block came,
    /// so their silence begins there. The silence of those before it goes on.
    fn release(&mut self, source: SourceId, ended: WorkTurn, came_at: Option<Instant>) {
        for (id, fetch) in &mut self.fetches {
            let turns: Vec<_> = fetch.work_turns(*id).collect();
            let behind = fetch
                .works
                .values_mut()
                .zip(turns)
                .filter(|(_, turn)| *turn > ended);
            for asked in behind.filter_map(|(work, _)| work.asked.get_mut(&source)) {
                asked.served_before = asked.served_before.max(came_at);
            }
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
