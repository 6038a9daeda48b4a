//! Sources that reject a request, or do not know a segment: who is asked for the path that leads
//! there, and when no source is left.

use std::time::Duration;

use super::fetch::Stranger;
use super::state::Fetches;
use crate::object::{Refusal, RefusalCode, SegmentId, Shape};
use crate::peer::effects::Effects;
use crate::peer::event::Failure;
use crate::peer::gets::Introduction;
use crate::peer::ids::{FetchId, SourceId};
use crate::peer::keyring::FIRST;
use crate::peer::order::Place;
use crate::time::Instant;
use crate::wire::message::{StopReason, stream_of};

/// The pause after GOING_AWAY, in which the connection ends.
const LEAVING_PAUSE: Duration = Duration::from_secs(1);
/// A neighbour that may come to know a segment is asked again after this time, for half of the time
/// that neighbours have for it: viewers of one stream hear of a segment when they read the playlist
/// again.
const EXPECT_AGAIN: Duration = Duration::from_millis(100);

impl Fetches {
    /// A source has rejected a request. Returns the introduction to ask for, if it does not know
    /// the segment.
    pub(in crate::peer) fn rejected(
        &mut self,
        now: Instant,
        source: SourceId,
        alias: u16,
        refusal: Refusal,
        effects: &mut Effects,
    ) -> Option<(Introduction, Place)> {
        // Without an entry, this side has stopped the request meanwhile.
        let id = self
            .sources
            .get_mut(source)
            .and_then(|path| path.aliases.remove(&alias))?;
        let (is_several, is_neighbour) =
            (self.sources.is_several(), self.sources.is_neighbour(source));
        let fetch = self.fetches.get_mut(&id.fetch)?;
        let work = fetch.works.get_mut(&id.index)?;
        work.asked.remove(&source);
        self.stirred = true;
        match (refusal.code, refusal.retry_after) {
            (RefusalCode::Deadline, _) => fetch.rest(now, source),
            (RefusalCode::GoingAway, _) => drop(work.paused.insert(source, now + LEAVING_PAUSE)),
            (_, Some(after)) => {
                work.paused.insert(source, now + after);
                fetch.rest(now, source);
            }
            (code, None) => match (fetch.strangers.get(&source), &fetch.place) {
                (Some(Stranger::Introduced | Stranger::Expected), _)
                    if is_neighbour && now < fetch.expect_until =>
                {
                    fetch.strangers.insert(source, Stranger::Expected);
                    work.paused.insert(source, now + EXPECT_AGAIN);
                }
                (Some(Stranger::Introduced | Stranger::Expected), place) if is_neighbour => {
                    let segment = fetch.order.segment;
                    if let Some(path) = self.sources.get_mut(source) {
                        path.holds.retain(|held| *held != segment);
                        if let Some(place) = place {
                            path.missed(stream_of(&place.path));
                        }
                    }
                    self.refuse(id.fetch, source, refusal, effects);
                }
                (Some(Stranger::AskedForPath), _) => fetch.rest(now, source),
                (None, Some(place))
                    if is_several && !is_neighbour && code == RefusalCode::Unknown =>
                {
                    let introduction = (
                        Introduction {
                            fetch: id.fetch,
                            source,
                        },
                        place.clone(),
                    );
                    fetch.strangers.insert(source, Stranger::AskedForPath);
                    return Some(introduction);
                }
                _ => self.refuse(id.fetch, source, refusal, effects),
            },
        }
        None
    }

    /// A source that did not know a segment was asked for the path that leads to it, and has named
    /// this one. A source that has the same bytes in another shape sends blocks of its own: it is
    /// left out without blame.
    pub(in crate::peer) fn introduced(
        &mut self,
        introduction: Introduction,
        named: Option<(SegmentId, Shape)>,
        effects: &mut Effects,
    ) {
        let Introduction { fetch: id, source } = introduction;
        self.naming.remove(&introduction);
        if let Some((pollution, shape)) = self.accused.remove(&(id, source))
            && named == Some((pollution.segment, shape))
        {
            // It names the segment that was requested, and has sent something else. If the segment
            // is over, it is right: otherwise nobody would be accused any more.
            if source == FIRST || self.evidence.order(id).is_none() {
                self.polluters.push_back(pollution);
            } else {
                self.charge(id, pollution);
            }
            self.stirred = true;
            return;
        }
        let Some(fetch) = self.fetches.get_mut(&id) else {
            return;
        };
        fetch.strangers.insert(source, Stranger::Introduced);
        self.stirred = true;
        let reason = match named {
            Some(named) if named == (fetch.order.segment, fetch.order.shape) => {
                return self.evidence.note_named(id, source);
            }
            Some((segment, _)) if segment == fetch.order.segment => {
                "the source codes the same segment with other parameters"
            }
            Some(_) => "the source has a different segment at this position",
            None => "the source does not know the segment",
        };
        let refusal = Refusal {
            code: RefusalCode::Unknown,
            retry_after: None,
            reason: reason.to_owned(),
        };
        self.refuse(id, source, refusal, effects);
    }

    /// A source does not have a segment. The fetch fails if no source is left that may have it.
    fn refuse(&mut self, id: FetchId, source: SourceId, refusal: Refusal, effects: &mut Effects) {
        let Some(fetch) = self.fetches.get_mut(&id) else {
            return;
        };
        fetch.strangers.insert(source, Stranger::Refused);
        let cannot = |source: &SourceId| {
            matches!(
                fetch.strangers.get(source),
                Some(Stranger::Refused | Stranger::Excluded)
            )
        };
        if self.sources.open().all(|(source, _)| cannot(&source)) {
            self.fail(
                id,
                Failure::Refused(refusal),
                StopReason::Cancelled,
                effects,
            );
        }
    }

    /// Has a source name a segment before it is asked for it.
    pub(super) fn ask_to_name(&mut self, id: FetchId, source: SourceId, place: Place) {
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.strangers.insert(source, Stranger::AskedForPath);
        }
        let introduction = Introduction { fetch: id, source };
        if self.naming.insert(introduction) {
            self.unnamed.push_back((introduction, place));
        }
        self.stirred = true;
    }

    /// Has all doubted servers name a segment before they are asked for it.
    pub(super) fn ask_doubted(&mut self, id: FetchId, place: Option<&Place>) {
        let Some(place) = place else { return };
        let doubted = self
            .sources
            .open()
            .filter(|(_, path)| path.is_doubted && !path.is_neighbour);
        for source in doubted.map(|(source, _)| source).collect::<Vec<_>>() {
            if !self.evidence.is_named_by(id, source) {
                self.ask_to_name(id, source, place.clone());
            }
        }
    }

    /// The next introduction to ask for. Requests for the segment are stopped at this source: its
    /// blocks are useless until it has named the segment.
    pub(in crate::peer) fn next_unnamed(
        &mut self,
        effects: &mut Effects,
    ) -> Option<(Introduction, Place)> {
        let (introduction, place) = self.unnamed.pop_front()?;
        self.stop_at(introduction.source, introduction.fetch, effects);
        Some((introduction, place))
    }
}
