//! One segment under way: its generations, its patience, and which sources may be asked for it.

use std::time::Duration;

use crate::peer::gets::OUTAGE_MAX;
use crate::peer::ids::{FetchId, SourceId, WorkId};
use crate::peer::keyring::FIRST;
use crate::peer::order::{Order, Place, Urgency};
use crate::peer::refusal::RETRY_MIN;
use crate::peer::work::Work;
use crate::sorted::SortedMap;
use crate::time::Instant;

/// A source that has rejected a request rests for [`RETRY_MIN`], and for twice as long each further
/// time, up to this.
const RETRY_MAX: Duration = Duration::from_secs(3);

/// Losses are made up ahead when no more than this part of a generation is missing of a fetch.
const CLOSING_PART: u16 = 4;

/// A segment under way.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) order: Order,
    /// Generations under way, by index.
    pub(super) works: SortedMap<u32, Box<Work>>,
    /// The first generation that was never requested.
    pub(super) next: u32,
    /// When the one before it is due.
    pub(super) last_due: Option<Instant>,
    /// When it last progressed, or was first requested.
    pub(super) touched: Instant,
    /// Whether bytes have come since then that do not complete a block yet.
    pub(super) trickles: bool,
    /// Whether the end of all connections has moved `touched`, and nothing has come since.
    pub(super) is_put_off: bool,
    /// How much more time without a server is excused before something comes.
    pub(super) outage_left: Duration,
    /// Sources that have rejected requests and have sent nothing since.
    pub(super) rests: SortedMap<SourceId, Rest>,
    /// Until when neighbours are waited for, and whether that has passed.
    pub(super) patient_until: Instant,
    pub(super) is_impatient: bool,
    /// Until when neighbours that follow the stream may come to know the segment, so that it is
    /// open how much they can send; and whether that time still runs.
    pub(super) expect_until: Instant,
    pub(super) is_early: bool,
    /// The time for which neighbours are taken to have more new blocks after one has sent a new
    /// block, and the end of it.
    pub(super) lull: Duration,
    pub(super) fresh_until: Option<Instant>,
    /// The path that leads to it.
    pub(super) place: Option<Place>,
    /// Sources that did not know it.
    pub(super) strangers: SortedMap<SourceId, Stranger>,
    /// Whether the trusted source alone is asked.
    pub(super) is_alone: bool,
}

/// A source that is not asked for a while, because it has rejected requests.
#[derive(Debug)]
pub(super) struct Rest {
    /// How often in a row.
    times: u32,
    pub(super) until: Instant,
}

/// How a source that did not know a segment stands to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stranger {
    /// It is being asked for the path that leads there.
    AskedForPath,
    /// It has named the segment, and knows it from now on.
    Introduced,
    /// A neighbour that has had other segments of the stream: it may have this one.
    Expected,
    /// It does not have the segment.
    Refused,
    /// It is left out: its blocks were wrong, and the trusted source sends the whole segment.
    Excluded,
}

/// The place of a fetch in the order in which fetches are served.
pub(super) type Turn = (Urgency, bool, Option<Instant>, FetchId);

/// The place of a generation in the order in which generations are served.
pub(super) type WorkTurn = (Urgency, bool, Instant, WorkId);

impl Fetch {
    pub(super) fn new(now: Instant, order: Order, place: Option<Place>) -> Self {
        let (works, strangers) = (SortedMap::new(), SortedMap::new());
        Self {
            order,
            works,
            next: 0,
            last_due: None,
            touched: now,
            trickles: false,
            is_put_off: false,
            outage_left: OUTAGE_MAX,
            rests: SortedMap::new(),
            patient_until: now,
            is_impatient: false,
            expect_until: now,
            is_early: true,
            lull: Duration::ZERO,
            fresh_until: None,
            place,
            strangers,
            is_alone: false,
        }
    }

    /// Its place among all fetches.
    pub(super) fn turn(&self, id: FetchId) -> Turn {
        (
            self.order.urgency,
            self.order.deadline.is_none(),
            self.order.deadline,
            id,
        )
    }

    /// The place of one of its generations, which is due at this time.
    pub(super) fn work_turn(&self, due: Instant, id: WorkId) -> WorkTurn {
        (self.order.urgency, self.order.deadline.is_none(), due, id)
    }

    /// The places of all its generations under way.
    pub(super) fn work_turns(&self, id: FetchId) -> impl Iterator<Item = WorkTurn> {
        self.works.iter().map(move |(index, work)| {
            self.work_turn(
                work.due,
                WorkId {
                    fetch: id,
                    index: *index,
                },
            )
        })
    }

    /// Whether a generation of so many blocks is better completed now than with as few blocks as
    /// possible: somebody waits, and nothing else of the segment fills the path meanwhile.
    pub(super) fn closes(&self, n: u16) -> bool {
        let mut left = n / CLOSING_PART;
        let is_within = |work: &Work| {
            let rest = left.checked_sub(work.decoder.missing());
            left = rest.unwrap_or_default();
            rest.is_some()
        };
        self.order.urgency == Urgency::Now
            && self.next >= self.order.shape.generations()
            && self.works.values().map(Box::as_ref).all(is_within)
    }

    /// Bytes of the generation that was requested last, and of all after it.
    pub(super) fn left(&self) -> u64 {
        let shape = self.order.shape;
        let last = shape.generation(self.next.saturating_sub(1));
        last.map_or(0, |last| shape.length().saturating_sub(last.offset))
    }

    /// Excuses the time between these two, when there was no server, up to the limit.
    pub(super) fn excuse(&mut self, since: Instant, until: Instant) {
        let outage = until
            .saturating_duration_since(self.touched.max(since))
            .min(self.outage_left);
        self.touched += outage;
        self.outage_left -= outage;
    }

    /// Lets a source rest that has rejected a request. Whatever retry time it names, it is not
    /// asked in a loop.
    pub(super) fn rest(&mut self, now: Instant, source: SourceId) {
        let rest = self.rests.get_or_insert(
            source,
            Rest {
                times: 0,
                until: now,
            },
        );
        // A request that is rejected during a rest was sent before it.
        if rest.until <= now {
            rest.until = now + (RETRY_MIN * (1 << rest.times.min(10))).min(RETRY_MAX);
            rest.times += 1;
        }
        for work in self.works.values_mut() {
            let until = work.paused.get_or_insert(source, rest.until);
            *until = rest.until.max(*until);
        }
    }

    /// Whether a source rests at present.
    pub(super) fn rests(&self, now: Instant, source: &SourceId) -> bool {
        self.rests.get(source).is_some_and(|rest| now < rest.until)
    }

    /// When more is requested from servers, or the wait for neighbours ends, unless both have
    /// passed.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        let ends = if self.is_early {
            self.expect_until
        } else {
            self.patient_until
        };
        Some(ends).filter(|_| !self.is_impatient)
    }

    /// Leaves all other sources out where the trusted source is to send the whole segment.
    pub(super) fn exclude_others<'a>(&mut self, sources: impl Iterator<Item = &'a SourceId>) {
        if self.is_alone {
            self.strangers.extend(
                sources
                    .filter(|source| **source != FIRST)
                    .map(|source| (*source, Stranger::Excluded)),
            );
        }
    }

    /// Whether somebody waits for it while nothing of it is requested.
    pub(super) fn is_waiting(&self) -> bool {
        self.order.urgency == Urgency::Now && self.works.values().all(|work| work.asked.is_empty())
    }

    /// Whether a source may be asked for it.
    pub(super) fn may_ask(&self, source: &SourceId) -> bool {
        matches!(
            self.strangers.get(source),
            None | Some(Stranger::Introduced | Stranger::Expected)
        )
    }
}

/// A generation under way.
pub(super) fn find(fetches: &mut SortedMap<FetchId, Fetch>, id: WorkId) -> Option<&mut Work> {
    let work = fetches.get_mut(&id.fetch)?.works.get_mut(&id.index);
    work.map(Box::as_mut)
}
