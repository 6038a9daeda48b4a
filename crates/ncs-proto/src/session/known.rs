//! Segments that the peer was told of, and the path that it knows each of them by.
//!
//! They hold no lease: a peer that asks for nothing but names must not keep segments in the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::event::Event;
use crate::admission::Access;
use crate::object::{Coding, Held, Lease, SegmentId, SegmentKey};
use crate::time::Instant;
use crate::wire::message::{Meant, stream_of};

/// How long it is remembered by which path a peer was told of a segment.
const TOLD_FOR: Duration = Duration::from_secs(30);
/// How often peers that continue to request a segment are told anew who else has it.
pub const INTRODUCE_EVERY: Duration = Duration::from_secs(1);

/// What a segment is known by, where its bytes may be coded in several ways.
pub(super) type Name = (SegmentId, Coding);

/// All segments that the peer was told of.
#[derive(Debug, Default)]
pub(super) struct Known {
    told: BTreeMap<Name, Told>,
    /// How often the peer was told of a segment.
    names: u64,
}

/// A segment that the peer was told of.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) path: Arc<str>,
    pub(super) key: SegmentKey,
    /// Its place in the order in which the peer was told of segments.
    named: u64,
    until: Instant,
    /// How long the peer's query waited for the answer, once the segment was complete at its
    /// source.
    waited: Duration,
    /// When the peer was last told who else has it.
    introduced: Option<Instant>,
}

impl Known {
    /// The segment that the peer means by this id.
    pub(super) fn find(&self, id: SegmentId, meant: Meant) -> Option<(Coding, &Told)> {
        match meant {
            Meant::Coded(coding) => self.told.get(&(id, coding)).map(|told| (coding, told)),
            Meant::LastNamed => {
                let of_this_id = self
                    .told
                    .range((id, Coding::LEAST)..)
                    .take_while(|((other, _), _)| *other == id);
                of_this_id
                    .max_by_key(|(_, told)| told.named)
                    .map(|((_, coding), told)| (*coding, told))
            }
            Meant::Foreign => None,
        }
    }

    /// Gives a segment the path that this peer has asked for, of all paths that lead to its bytes,
    /// and remembers it for longer.
    pub(super) fn as_told(&mut self, now: Instant, held: Held) -> Held {
        let told = self.told.get_mut(&named(&held)).map(|told| {
            told.until = now + TOLD_FOR;
            Arc::clone(&told.path)
        });
        Held {
            path: told.or(held.path),
            ..held
        }
    }

    /// Remembers by which path the peer knows a segment, for the request that follows its META. Of
    /// more than `most` segments, the oldest is forgotten.
    pub(super) fn remember(
        &mut self,
        now: Instant,
        lease: &Lease,
        path: &str,
        waited: Duration,
        most: u16,
    ) {
        let name = (lease.id, lease.shape.coding());
        let introduced = self.told.remove(&name).and_then(|told| told.introduced);
        if self.told.len() >= usize::from(most)
            && let Some(oldest) = self
                .told
                .iter()
                .min_by_key(|(_, told)| told.until)
                .map(|(name, _)| *name)
        {
            self.told.remove(&oldest);
        }
        self.names += 1;
        let told = Told {
            path: path.into(),
            key: lease.key,
            named: self.names,
            until: now + TOLD_FOR,
            waited,
            introduced,
        };
        self.told.insert(name, told);
    }

    /// How long the query for a segment waited for its answer.
    pub(super) fn waited(&self, name: &Name) -> Duration {
        self.told
            .get(name)
            .map_or(Duration::ZERO, |told| told.waited)
    }

    /// Asks to name other peers that hold a segment, when the peer first requests it, and once in a
    /// while as long as it continues.
    pub(super) fn introduce(&mut self, now: Instant, name: Name, access: &Access) -> Option<Event> {
        let told = self.told.get_mut(&name)?;
        let (segment, coding) = name;
        // A ticket is valid for the whole stream: it must not grant more than the peer has.
        let stream = stream_of(&told.path);
        if !access.covers(stream)
            || told
                .introduced
                .is_some_and(|at| now.saturating_duration_since(at) < INTRODUCE_EVERY)
        {
            return None;
        }
        told.introduced = Some(now);
        Some(Event::Introduce {
            segment,
            coding,
            stream: stream.to_owned(),
        })
    }

    /// Forgets what the peer may not have any more.
    pub(super) fn retain_allowed(&mut self, access: &Access) {
        self.told.retain(|_, told| access.allows(&told.path));
    }

    /// Forgets what is old.
    pub(super) fn expire(&mut self, now: Instant) {
        self.told.retain(|_, told| told.until > now);
    }

    /// When [`Known::expire`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.told.values().map(|told| told.until).min()
    }
}

/// The name of a segment.
pub(super) fn named(held: &Held) -> Name {
    (held.lease.id, held.lease.shape.coding())
}
