//! How the missing blocks of one generation are shared out among its sources.
//!
//! Each source is asked for the part of a generation that it can send while the others send theirs
//! ([`split`]), and for other source blocks than they are. Lost blocks are requested from whichever
//! source can send them first. The part of a source that is silent, or far slower than the others
//! could be, is requested from them as well. A source that was silent is *suspect*: it gets single
//! blocks, beyond what is needed, until it delivers one.
//!
//! Everything here only looks at the state, and returns a [`Plan`].

use super::fetch::{Fetch, Stranger};
use super::sources::{SUSPECT_AFTER, Sources};
use crate::peer::config::Config;
use crate::peer::ids::SourceId;
use crate::peer::pace::{self, RATE_ASSUMED};
use crate::peer::path::{Path, Trust};
use crate::peer::shares::{Candidate, split};
use crate::peer::work::Work;
use crate::sorted::SortedSet;
use crate::time::Instant;

/// Blocks of a generation that a source may be asked for before it has sent any, while there are
/// others that have.
const NEW_MAX: u32 = 8;
/// From this many neighbours on, they are taken for a part of a larger swarm, where each of them
/// has further sources.
const CROWD: u32 = 6;
/// Blocks of a generation that a neighbour is asked for at once, at least.
const AT_ONCE_MIN: u32 = 2;
/// A source is not waited for if the others could send its part in a time that is shorter by this
/// factor.
const OUTRUN: u32 = 2;

/// A view of one generation and its sources.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) now: Instant,
    pub(super) config: &'a Config,
    pub(super) sources: &'a Sources,
    pub(super) fetch: &'a Fetch,
    pub(super) work: &'a Work,
    /// Whether suspects are left out.
    pub(super) shuns: bool,
}

/// The credit that a generation gets now.
#[derive(Debug)]
pub(super) struct Plan {
    /// Blocks for each source.
    pub(super) shares: Vec<(SourceId, u32)>,
    /// Sources that are asked for nothing more while others send their parts.
    pub(super) spared: SortedSet<SourceId>,
    /// Missing blocks that no source is asked for.
    pub(super) lacking: u32,
    /// Whether neighbours could be asked for some of them, and have enough to do.
    pub(super) withholds: bool,
    /// Of the shares: blocks that are missing, and blocks beyond them, ahead of need.
    pub(super) needed: u32,
    pub(super) ahead: u32,
    /// Of the shares: blocks that another source has to send, and is not waited for.
    pub(super) reassigned: u32,
    /// Whether silent sources are to be probed.
    pub(super) probes: bool,
}

impl View<'_> {
    /// Shares out what is missing and not in flight.
    pub(super) fn plan(&self) -> Plan {
        let missing = self.work.decoder.missing();
        let (near, loss) = (self.work.near.is_some(), self.sources.path_loss());
        // A neighbour serves others, too, and has little time for blocks beyond need.
        let mut asked = self.work.asked.keys();
        let has_neighbour = asked.any(|source| self.sources.is_neighbour(*source));
        let target = if !near && !has_neighbour && self.fetch.closes(self.work.decoder.n()) {
            pace::covering(missing.into(), loss)
        } else {
            pace::target(missing, near, loss)
        };
        let dry = self.dry();
        let (mut awaited, mut left_behind) = (0, 0);
        for (source, asked) in &self.work.asked {
            let is_left = dry.contains(source)
                || self.shuns && self.is_left_behind(*source, asked.in_flight());
            *if is_left {
                &mut left_behind
            } else {
                &mut awaited
            } += asked.in_flight();
        }
        let lacking = target.saturating_sub(awaited);
        let (mut shares, mut spared, mut withholds) = (Vec::new(), SortedSet::new(), false);
        if lacking > 0 {
            let mut candidates = self.candidates(&dry);
            if self.is_patient() {
                (spared, withholds) = self.spare_servers(lacking, &mut candidates);
            }
            shares = split(lacking, candidates);
            spared.extend(dry);
        }
        let given: u32 = shares.iter().map(|(_, share)| share).sum();
        let needed = given.min(u32::from(missing).saturating_sub(awaited));
        Plan {
            shares,
            spared,
            lacking: lacking - given,
            needed,
            ahead: given - needed,
            reassigned: given.min(left_behind),
            withholds,
            probes: lacking == 0 || left_behind > 0 || withholds,
        }
    }

    /// Whether there is time to wait for neighbours.
    fn is_patient(&self) -> bool {
        self.now < self.fetch.patient_until && self.work.near.is_none()
    }

    /// Whether a source with so many blocks to send is not waited for: it is suspect, or the others
    /// could send them in far less time. While there is time, a neighbour is compared with other
    /// neighbours alone.
    fn is_left_behind(&self, source: SourceId, blocks: u32) -> bool {
        let block_bytes = self.work.block_bytes();
        let Some(path) = self.sources.get(source) else {
            return false;
        };
        if path.trust == Trust::Suspect {
            return true;
        }
        if path.pace.rate() == 0.0 || blocks == 0 {
            return false;
        }
        let bytes = u64::from(blocks) * u64::from(block_bytes);
        let spares_servers = self.is_patient() && path.is_neighbour;
        let others = self.sources.open().filter(|(other, path)| {
            *other != source
                && path.trust == Trust::Proven
                && path.pace.rate() > 0.0
                && self.fetch.may_ask(other)
                && (path.is_neighbour || !spares_servers)
        });
        let silence = if spares_servers {
            path.silence(block_bytes, 0)
        } else {
            path.pace.silence(block_bytes, 0)
        };
        let time = path.pace.time(path.load.ahead, 0, RATE_ASSUMED);
        let mut others =
            others.map(|(_, other)| other.pace.time(other.load.ahead, bytes, RATE_ASSUMED));
        others.any(|other| time > other * OUTRUN + silence * SUSPECT_AFTER)
    }

    /// Neighbours that send nothing more, or nothing new, of the generation: they may wait for the
    /// very rows that this side lacks. Servers are then asked for their blocks, if there are any,
    /// unless the fetch is early, or there is time to wait, and rows still come to the neighbours
    /// from others: then one of them has just sent something new.
    fn dry(&self) -> SortedSet<SourceId> {
        let mut open = self.sources.open();
        let has_server =
            open.any(|(source, path)| !path.is_neighbour && self.fetch.may_ask(&source));
        let is_fresh = self.is_patient() && self.fetch.fresh_until.is_some();
        if self.fetch.is_early || is_fresh || !has_server {
            return SortedSet::new();
        }
        let is_dry = |source: &SourceId, path: &Path| {
            let silence = path.silence(self.work.block_bytes(), 0);
            let heard = path.load.heard;
            let asked = self.work.asked.get(source);
            heard.is_some_and(|heard| heard + silence <= self.now)
                || asked.is_some_and(|asked| asked.is_dry)
        };
        let neighbours = self.sources.paths.iter();
        neighbours
            .filter(|(source, path)| path.is_neighbour && is_dry(source, path))
            .map(|(source, _)| *source)
            .collect()
    }

    /// Sources that could send more of the generation now.
    fn candidates(&self, dry: &SortedSet<SourceId>) -> Vec<Candidate> {
        let (fetch, work, urgency) = (self.fetch, self.work, self.fetch.order.urgency);
        let is_first = fetch.is_waiting();
        let has_proven = self
            .sources
            .open()
            .any(|(source, path)| path.trust == Trust::Proven && fetch.may_ask(&source));
        let rates = self.sources.open().map(|(_, path)| path.pace.rate());
        let assumed = rates
            .filter(|rate| *rate > 0.0)
            .fold(f64::INFINITY, f64::min);
        let assumed = if assumed.is_finite() {
            assumed
        } else {
            RATE_ASSUMED
        };
        let candidate = |(source, path): (&SourceId, &Path)| {
            let is_shunned = self.shuns && path.trust == Trust::Suspect || dry.contains(source);
            if !fetch.may_ask(source) || work.paused.contains_key(source) || is_shunned {
                return None;
            }
            let room = match work.asked.get(source) {
                // The result of a credit is unknown before a round trip has passed. When that
                // becomes too late, nothing waits.
                Some(asked)
                    if asked.flight.credited_at() + path.pace.rtt() > self.now
                        && work.near != Some(self.now) =>
                {
                    0
                }
                Some(asked) => asked.room(path.credit_max),
                None if !path.has_room_for_request(urgency, is_first, self.config) => 0,
                None if path.trust == Trust::New && has_proven => NEW_MAX.min(path.credit_max),
                None => path.credit_max,
            };
            let room = if path.is_doubtful() {
                room.min(NEW_MAX.saturating_sub(work.in_flight_at(source)))
            } else {
                room
            };
            let rate = if path.pace.rate() > 0.0 {
                path.pace.rate()
            } else {
                assumed
            };
            let bytes = path.load.of(urgency).1;
            let backlog = path.pace.time(bytes, 0, assumed).as_secs_f64();
            Some(Candidate {
                source: *source,
                backlog,
                rate: rate / f64::from(work.block_bytes()),
                room,
            })
        };
        self.sources.paths.iter().filter_map(candidate).collect()
    }

    /// Limits the room of servers where neighbours have something of the segment, and that of
    /// neighbours. Returns the sources that get nothing more because of that, and whether
    /// neighbours are among them that have enough to do.
    ///
    /// Each server is asked for its part if all sent the same, or two thirds of that in a crowd.
    /// Everything else is left to the neighbours, lost blocks too. Each of them is asked for a few
    /// blocks at a time, and for more when it has sent half of these: so one whose line is busy
    /// with other viewers gets less to do, and blocks that nobody needs any more are few. Once the
    /// fetch is not early any more, servers are also asked for what the neighbours cannot send in
    /// the remaining time. Before, the rates of neighbours say little, because they reflect what
    /// was requested. While some neighbours are expected to have the segment soon, their parts are
    /// not requested from others.
    fn spare_servers(
        &self,
        lacking: u32,
        candidates: &mut [Candidate],
    ) -> (SortedSet<SourceId>, bool) {
        let (fetch, work) = (self.fetch, self.work);
        let left = fetch.patient_until.saturating_duration_since(self.now);
        let is_neighbour = |source: &SourceId| self.sources.is_neighbour(*source);
        // A silent one does not count, or everybody would wait for it in every segment.
        let is_heard = |source: &SourceId| {
            let path = self.sources.get(*source);
            path.is_some_and(|path| path.is_neighbour && path.trust != Trust::Suspect)
        };
        let is_asked = |source: &&SourceId| is_heard(source) && fetch.may_ask(source);
        let is_expected =
            |source: &&SourceId| fetch.strangers.get(source) == Some(&Stranger::Expected);
        let expected: SortedSet<SourceId> =
            work.paused.keys().filter(is_expected).copied().collect();
        let able = candidates
            .iter()
            .filter(|candidate| is_neighbour(&candidate.source) && candidate.room > 0);
        let sharing = able
            .map(|candidate| candidate.source)
            .chain(work.asked.keys().filter(is_asked).copied());
        let sharing = sharing
            .chain(expected.iter().copied())
            .collect::<SortedSet<_>>()
            .len();
        if sharing == 0 {
            return (SortedSet::new(), false);
        }
        let sharing = u32::try_from(sharing).unwrap_or(u32::MAX);
        let n = u32::from(work.decoder.n());
        let part = n.div_ceil(sharing.saturating_add(1));
        let servers_part = servers_part(n, sharing);
        let at_once = (part * 3).div_ceil(4).max(AT_ONCE_MIN);
        let given = |source: &SourceId| {
            work.asked
                .get(source)
                .map_or(0, |asked| asked.flight.kept())
        };
        // What the neighbours can send in time, of what they are asked for now or in a round trip.
        let mut theirs = part.saturating_mul(u32::try_from(expected.len()).unwrap_or(u32::MAX));
        let (mut spared, mut withholds) = (SortedSet::new(), false);
        for candidate in candidates
            .iter_mut()
            .filter(|candidate| is_neighbour(&candidate.source))
        {
            let Some(path) = self.sources.get(candidate.source) else {
                continue;
            };
            let most = if expected.is_empty() {
                u32::MAX
            } else {
                part.saturating_sub(given(&candidate.source))
            };
            let in_time = if path.pace.rate() > 0.0 {
                candidate.within(left)
            } else {
                most
            };
            let (able, in_flight) = (candidate.room, work.in_flight_at(&candidate.source));
            let more = if in_flight > at_once / 2 {
                0
            } else {
                able.min(at_once - in_flight)
            };
            // At least one block: only blocks tell how fast it is.
            let in_time = in_time
                .max(u32::from(given(&candidate.source) == 0))
                .min(most);
            let later = if able == 0 && path.is_open && !path.is_doubtful() {
                path.credit_max
            } else {
                0
            };
            theirs = theirs.saturating_add(able.max(later).min(in_time));
            withholds |= more < able;
            if more < able || able > 0 && in_time == 0 {
                spared.insert(candidate.source);
            }
            candidate.room = more.min(in_time);
        }
        let unmet = if fetch.is_early {
            0
        } else {
            lacking.saturating_sub(theirs)
        };
        for candidate in candidates
            .iter_mut()
            .filter(|candidate| !is_neighbour(&candidate.source) && candidate.room > 0)
        {
            candidate.room = candidate.room.min(
                servers_part
                    .saturating_sub(given(&candidate.source))
                    .max(unmet),
            );
            if candidate.room == 0 {
                spared.insert(candidate.source);
            }
        }
        (spared, withholds)
    }
}

/// What each server is asked for of a generation of `n` blocks, beside so many neighbours, before
/// it is known what they lack.
fn servers_part(n: u32, sharing: u32) -> u32 {
    if sharing < CROWD {
        return n.div_ceil(sharing + 1);
    }
    // Two thirds of it, rounded to the nearest. Without any block of its own, everybody would wait
    // for the others.
    ((4 * n + 3 * sharing) / (6 * sharing)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_sends_its_part_and_in_a_crowd_less_but_something() {
        let parts = |n: u32| [1, 5, 6, 8, 50].map(|sharing| servers_part(n, sharing));
        assert_eq!(parts(64), [32, 11, 7, 5, 1]);
        assert_eq!(parts(4), [2, 1, 1, 1, 1]);
        assert_eq!(parts(1), [1, 1, 1, 1, 1]);
    }
}
