//! Which segments are held, and which goes first. A plain value: `now` and what is in use are arguments.
//!
//! What has expired goes first, the longest expired at the head; then what was used least recently. What is in use never goes,
//! and neither call nor entry changes that: whether a segment is in use is asked anew each time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use crate::object::{SegmentId, SegmentKey};

/// The held segments.
#[derive(Debug, Default)]
pub struct Index {
    entries: HashMap<SegmentKey, Entry>,
    by_id: HashMap<SegmentId, SegmentKey>,
    by_use: BTreeMap<u64, SegmentKey>,
    by_expiry: BTreeSet<(Instant, SegmentKey)>,
    bytes: u64,
    uses: u64,
    keys: u64,
}

/// What the index knows of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The segment.
    pub id: SegmentId,
    /// What it costs.
    pub bytes: u64,
    /// When it may go before all others.
    pub expires: Option<Instant>,
    used: u64,
}

/// Why a segment goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Its time was over.
    Expired,
    /// Room was needed, and it was used least recently.
    Room,
}

impl Index {
    /// Segments held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is held.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a segment in, as the one most recently used, under a key never given before; `None` if it is held already.
    pub fn insert(&mut self, id: SegmentId, bytes: u64, expires: Option<Instant>) -> Option<SegmentKey> {
        if self.by_id.contains_key(&id) {
            return None;
        }
        self.keys += 1;
        self.uses += 1;
        let key = SegmentKey(self.keys);
        self.entries.insert(key, Entry { id, bytes, expires, used: self.uses });
        self.by_id.insert(id, key);
        self.by_use.insert(self.uses, key);
        self.by_expiry.extend(expires.map(|expires| (expires, key)));
        self.bytes += bytes;
        Some(key)
    }

    /// The key of a held segment.
    pub fn find(&self, id: &SegmentId) -> Option<SegmentKey> {
        self.by_id.get(id).copied()
    }

    /// What is known of a held segment.
    pub fn entry(&self, key: SegmentKey) -> Option<&Entry> {
        self.entries.get(&key)
    }

    /// Notes that a segment was used just now.
    pub fn touch(&mut self, key: SegmentKey) {
        if let Some(entry) = self.entries.get_mut(&key) {
            self.uses += 1;
            self.by_use.remove(&entry.used);
            self.by_use.insert(self.uses, key);
            entry.used = self.uses;
        }
    }

    /// Sets when a segment expires.
    pub fn set_expiry(&mut self, key: SegmentKey, expires: Option<Instant>) {
        if let Some(entry) = self.entries.get_mut(&key) {
            if let Some(before) = entry.expires {
                self.by_expiry.remove(&(before, key));
            }
            self.by_expiry.extend(expires.map(|expires| (expires, key)));
            entry.expires = expires;
        }
    }

    /// Removes a segment.
    pub fn remove(&mut self, key: SegmentKey) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.by_id.remove(&entry.id);
        self.by_use.remove(&entry.used);
        if let Some(expires) = entry.expires {
            self.by_expiry.remove(&(expires, key));
        }
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// The segment that goes first if room is needed; `None` if all are in use.
    pub fn victim(&self, now: Instant, in_use: impl Fn(SegmentKey) -> bool) -> Option<(SegmentKey, Cause)> {
        let expired = self.expired(now, &in_use).map(|key| (key, Cause::Expired));
        expired.or_else(|| self.by_use.values().copied().find(|key| !in_use(*key)).map(|key| (key, Cause::Room)))
    }

    /// A segment whose time is over and that is not in use.
    pub fn expired(&self, now: Instant, in_use: impl Fn(SegmentKey) -> bool) -> Option<SegmentKey> {
        let over = self.by_expiry.iter().take_while(|(expires, _)| *expires <= now);
        over.map(|(_, key)| *key).find(|key| !in_use(*key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    /// The same, as a list in order of use.
    #[derive(Debug, Default)]
    struct Model(Vec<(SegmentKey, SegmentId, u64, Option<Instant>)>);

    impl Model {
        fn at(&self, id: &SegmentId) -> Option<usize> {
            self.0.iter().position(|entry| entry.1 == *id)
        }

        fn victim(&self, now: Instant, pinned: &[SegmentKey]) -> Option<(SegmentKey, Cause)> {
            let free = || self.0.iter().filter(|entry| !pinned.contains(&entry.0));
            let expired =
                free().filter(|entry| entry.3.is_some_and(|expires| expires <= now)).min_by_key(|entry| (entry.3, entry.0));
            match expired {
                Some(entry) => Some((entry.0, Cause::Expired)),
                None => free().next().map(|entry| (entry.0, Cause::Room)),
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert { id: u8, bytes: u64, expires: Option<u64> },
        Touch { id: u8 },
        Expire { id: u8, at: Option<u64> },
        Remove { id: u8 },
        Evict { now: u64, pinned: Vec<u8> },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let id = 0..12_u8;
        let time = || prop::option::of(0..20_u64);
        let step = prop_oneof![
            (id.clone(), 0..100_u64, time()).prop_map(|(id, bytes, expires)| Step::Insert { id, bytes, expires }),
            id.clone().prop_map(|id| Step::Touch { id }),
            (id.clone(), time()).prop_map(|(id, at)| Step::Expire { id, at }),
            id.clone().prop_map(|id| Step::Remove { id }),
            (0..20_u64, prop::collection::vec(id, 0..8)).prop_map(|(now, pinned)| Step::Evict { now, pinned }),
        ];
        prop::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn it_does_what_a_list_does(steps in steps()) {
            let begin = Instant::now();
            let at = |seconds: u64| begin + Duration::from_secs(seconds);
            let segment = |id: u8| SegmentId::of(&[id]);
            let (mut index, mut model) = (Index::default(), Model::default());
            for step in steps {
                match step {
                    Step::Insert { id, bytes, expires } => {
                        let (id, expires) = (segment(id), expires.map(at));
                        let key = index.insert(id, bytes, expires);
                        prop_assert_eq!(key.is_none(), model.at(&id).is_some());
                        model.0.extend(key.map(|key| (key, id, bytes, expires)));
                    }
                    Step::Touch { id } => {
                        if let Some(place) = model.at(&segment(id)) {
                            let entry = model.0.remove(place);
                            index.touch(entry.0);
                            model.0.push(entry);
                        }
                    }
                    Step::Expire { id, at: when } => {
                        if let Some(place) = model.at(&segment(id)) {
                            model.0[place].3 = when.map(at);
                            index.set_expiry(model.0[place].0, when.map(at));
                        }
                    }
                    Step::Remove { id } => {
                        if let Some(place) = model.at(&segment(id)) {
                            let entry = model.0.remove(place);
                            prop_assert_eq!(index.remove(entry.0).map(|found| found.id), Some(entry.1));
                            prop_assert!(index.remove(entry.0).is_none());
                        }
                    }
                    Step::Evict { now, pinned } => {
                        let pinned: Vec<_> = pinned.iter().filter_map(|id| index.find(&segment(*id))).collect();
                        let victim = index.victim(at(now), |key| pinned.contains(&key));
                        prop_assert_eq!(victim, model.victim(at(now), &pinned));
                        if let Some((key, _)) = victim {
                            index.remove(key);
                            model.0.retain(|entry| entry.0 != key);
                        }
                    }
                }
                prop_assert_eq!(index.len(), model.0.len());
                prop_assert_eq!(index.bytes(), model.0.iter().map(|entry| entry.2).sum::<u64>());
                prop_assert_eq!(index.by_use.values().copied().collect::<Vec<_>>(), model.0.iter().map(|entry| entry.0).collect::<Vec<_>>());
                prop_assert_eq!(index.by_expiry.len(), model.0.iter().filter(|entry| entry.3.is_some()).count());
                for (key, id, bytes, expires) in &model.0 {
                    prop_assert_eq!(index.find(id), Some(*key));
                    prop_assert_eq!(index.entry(*key).map(|entry| (entry.bytes, entry.expires)), Some((*bytes, *expires)));
                }
            }
        }
    }
}
