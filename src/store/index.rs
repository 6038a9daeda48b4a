//! The segments held, on which tiers, and which is evicted first. A plain value: `now` and the
//! segments in use are arguments.
//!
//! The same bytes coded in two ways are two segments: blocks of one are useless for requests of the
//! other.
//!
//! Every known segment is on the host's tier; on the device's tier it may have a copy. Each tier
//! has its own order of use, because the segments named most often are not those encoded most.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

pub use super::order::Cause;
use super::order::Order;
use crate::object::{Coding, SegmentId, SegmentKey};

/// The place of a segment or of its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Memory of this process; also the device's, if that has none of its own.
    Host,
    /// Memory of the device.
    Device,
}

impl Tier {
    /// All tiers, from the largest to the fastest.
    pub const ALL: [Self; 2] = [Self::Host, Self::Device];

    /// The tier's label in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Device => "device",
        }
    }
}

/// The identity of a segment: its bytes and its coding.
pub type Name = (SegmentId, Coding);

/// The held segments.
#[derive(Debug, Default)]
pub struct Index {
    names: HashMap<SegmentKey, Name>,
    by_name: BTreeMap<Name, SegmentKey>,
    host: Order,
    device: Order,
    keys: u64,
}

impl Index {
    /// The number of segments on a tier.
    pub fn len(&self, tier: Tier) -> usize {
        self.order(tier).len()
    }

    /// The bytes of all segments on a tier.
    pub fn bytes(&self, tier: Tier) -> u64 {
        self.order(tier).bytes()
    }

    /// Inserts a segment, as the most recently used, under a new key; `None` if it is already held.
    pub fn insert(
        &mut self,
        name: Name,
        bytes: u64,
        expires: Option<Instant>,
    ) -> Option<SegmentKey> {
        if self.by_name.contains_key(&name) {
            return None;
        }
        self.keys += 1;
        let key = SegmentKey(self.keys);
        self.names.insert(key, name);
        self.by_name.insert(name, key);
        self.host.insert(key, bytes, expires);
        Some(key)
    }

    /// Notes that a held segment has a copy on the device, used just now.
    pub fn add_copy(&mut self, key: SegmentKey, bytes: u64) {
        if self.names.contains_key(&key) {
            self.device.insert(key, bytes, self.host.expires(key));
        }
    }

    /// Notes that a segment has lost its copy; returns the copy's size.
    pub fn remove_copy(&mut self, key: SegmentKey) -> Option<u64> {
        self.device.remove(key)
    }

    /// Adds to a held segment's size on the host.
    pub fn grow(&mut self, key: SegmentKey, bytes: u64) {
        self.host.grow(key, bytes);
    }

    /// The key of a held segment.
    pub fn find(&self, name: &Name) -> Option<SegmentKey> {
        self.by_name.get(name).copied()
    }

    /// The key of the segment with this id that was inserted last, however it is coded.
    pub fn newest(&self, id: &SegmentId) -> Option<SegmentKey> {
        self.by_name
            .range((*id, Coding::LEAST)..)
            .take_while(|((other, _), _)| other == id)
            .map(|(_, key)| *key)
            .max()
    }

    /// The size of a segment on a tier, if it is there.
    pub fn cost(&self, tier: Tier, key: SegmentKey) -> Option<u64> {
        self.order(tier).cost(key)
    }

    /// When a segment may be evicted before all others.
    pub fn expires(&self, key: SegmentKey) -> Option<Instant> {
        self.host.expires(key)
    }

    /// Notes that a segment was used on a tier just now.
    pub fn touch(&mut self, tier: Tier, key: SegmentKey) {
        match tier {
            Tier::Host => self.host.touch(key),
            Tier::Device => self.device.touch(key),
        }
    }

    /// Sets when a segment expires.
    pub fn set_expiry(&mut self, key: SegmentKey, expires: Option<Instant>) {
        self.host.set_expiry(key, expires);
        self.device.set_expiry(key, expires);
    }

    /// Removes a segment from both tiers.
    pub fn remove(&mut self, key: SegmentKey) -> Option<Removed> {
        let name = self.names.remove(&key)?;
        self.by_name.remove(&name);
        let host = self.host.remove(key).unwrap_or_default();
        Some(Removed {
            name,
            host,
            device: self.device.remove(key).unwrap_or_default(),
        })
    }

    /// Segments with a copy on the device, the least recently used copy first.
    pub fn copies(&self) -> impl Iterator<Item = SegmentKey> + '_ {
        self.device.by_use()
    }

    /// The segment to evict first if a tier needs room; `None` if all are in use.
    pub fn victim(
        &self,
        tier: Tier,
        now: Instant,
        in_use: impl Fn(SegmentKey) -> bool,
    ) -> Option<(SegmentKey, Cause)> {
        self.order(tier).victim(now, in_use)
    }

    /// An expired segment that is not in use.
    pub fn expired(&self, now: Instant, in_use: impl Fn(SegmentKey) -> bool) -> Option<SegmentKey> {
        self.host.expired(now, in_use)
    }

    fn order(&self, tier: Tier) -> &Order {
        match tier {
            Tier::Host => &self.host,
            Tier::Device => &self.device,
        }
    }
}

/// A removed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The segment.
    pub name: Name,
    /// Its size on the host.
    pub host: u64,
    /// The size of its copy on the device; 0 without one.
    pub device: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Codec;
    use proptest::prelude::*;
    use std::time::Duration;

    /// A model: a list in order of use, and a list of copies.
    #[derive(Debug, Default)]
    struct Model {
        held: Vec<(SegmentKey, Name, u64, Option<Instant>)>,
        copies: Vec<(SegmentKey, u64)>,
    }

    impl Model {
        fn at(&self, name: &Name) -> Option<usize> {
            self.held.iter().position(|entry| entry.1 == *name)
        }

        fn key(&self, name: &Name) -> Option<SegmentKey> {
            self.at(name).map(|place| self.held[place].0)
        }

        fn forget(&mut self, key: SegmentKey) {
            self.held.retain(|entry| entry.0 != key);
            self.copies.retain(|copy| copy.0 != key);
        }

        fn order(&self, tier: Tier) -> Vec<SegmentKey> {
            match tier {
                Tier::Host => self.held.iter().map(|entry| entry.0).collect(),
                Tier::Device => self.copies.iter().map(|copy| copy.0).collect(),
            }
        }

        fn victim(
            &self,
            tier: Tier,
            now: Instant,
            pinned: &[SegmentKey],
        ) -> Option<(SegmentKey, Cause)> {
            let order = self.order(tier);
            let free = || order.iter().copied().filter(|key| !pinned.contains(key));
            let expires = |key: SegmentKey| {
                self.held
                    .iter()
                    .find(|entry| entry.0 == key)
                    .and_then(|entry| entry.3)
            };
            let over = free().filter_map(|key| {
                expires(key)
                    .filter(|expires| *expires <= now)
                    .map(|expires| (expires, key))
            });
            match over.min() {
                Some((_, key)) => Some((key, Cause::Expired)),
                None => free().next().map(|key| (key, Cause::Room)),
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert {
            id: u8,
            bytes: u64,
            expires: Option<u64>,
        },
        Load {
            id: u8,
            bytes: u64,
        },
        Unload {
            id: u8,
        },
        Grow {
            id: u8,
            bytes: u64,
        },
        Touch {
            tier: Tier,
            id: u8,
        },
        Expire {
            id: u8,
            at: Option<u64>,
        },
        Remove {
            id: u8,
        },
        Evict {
            tier: Tier,
            now: u64,
            pinned: Vec<u8>,
        },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let id = 0..12_u8;
        let time = || prop::option::of(0..20_u64);
        let tier = || prop_oneof![Just(Tier::Host), Just(Tier::Device)];
        let step = prop_oneof![
            (id.clone(), 0..100_u64, time()).prop_map(|(id, bytes, expires)| Step::Insert {
                id,
                bytes,
                expires
            }),
            (id.clone(), 0..100_u64).prop_map(|(id, bytes)| Step::Load { id, bytes }),
            id.clone().prop_map(|id| Step::Unload { id }),
            (id.clone(), 0..100_u64).prop_map(|(id, bytes)| Step::Grow { id, bytes }),
            (tier(), id.clone()).prop_map(|(tier, id)| Step::Touch { tier, id }),
            (id.clone(), time()).prop_map(|(id, at)| Step::Expire { id, at }),
            id.clone().prop_map(|id| Step::Remove { id }),
            (tier(), 0..20_u64, prop::collection::vec(id, 0..8))
                .prop_map(|(tier, now, pinned)| Step::Evict { tier, now, pinned }),
        ];
        prop::collection::vec(step, 0..80)
    }

    proptest! {
        #[test]
        fn it_does_what_lists_do(steps in steps()) {
            let begin = Instant::now();
            let at = |seconds: u64| begin + Duration::from_secs(seconds);
            // Two ids share the same bytes, in two codings.
            let segment = |id: u8| {
                let n_max = 1 + u16::from(id % 2);
                (SegmentId::of(&[id / 2]), Coding { block_bytes: 64, n_max, codec: Codec::Rlnc })
            };
            let (mut index, mut model) = (Index::default(), Model::default());
            for step in steps {
                match step {
                    Step::Insert { id, bytes, expires } => {
                        let (name, expires) = (segment(id), expires.map(at));
                        let key = index.insert(name, bytes, expires);
                        prop_assert_eq!(key.is_none(), model.at(&name).is_some());
                        model.held.extend(key.map(|key| (key, name, bytes, expires)));
                    }
                    Step::Load { id, bytes } => {
                        // An unknown key is ignored.
                        let key = model.key(&segment(id)).unwrap_or(SegmentKey(0));
                        index.add_copy(key, bytes);
                        model.copies.retain(|copy| copy.0 != key);
                        model.copies.extend((key != SegmentKey(0)).then_some((key, bytes)));
                    }
                    Step::Unload { id } => {
                        if let Some(key) = model.key(&segment(id)) {
                            let bytes = model
                                .copies
                                .iter()
                                .find(|copy| copy.0 == key)
                                .map(|copy| copy.1);
                            prop_assert_eq!(index.remove_copy(key), bytes);
                            model.copies.retain(|copy| copy.0 != key);
                        }
                    }
                    Step::Grow { id, bytes } => {
                        if let Some(place) = model.at(&segment(id)) {
                            model.held[place].2 += bytes;
                            index.grow(model.held[place].0, bytes);
                        }
                    }
                    Step::Touch { tier, id } => {
                        let Some(key) = model.key(&segment(id)) else { continue };
                        index.touch(tier, key);
                        match tier {
                            Tier::Host => model.held.sort_by_key(|entry| entry.0 == key),
                            Tier::Device => model.copies.sort_by_key(|copy| copy.0 == key),
                        }
                    }
                    Step::Expire { id, at: when } => {
                        if let Some(place) = model.at(&segment(id)) {
                            model.held[place].3 = when.map(at);
                            index.set_expiry(model.held[place].0, when.map(at));
                        }
                    }
                    Step::Remove { id } => {
                        if let Some(place) = model.at(&segment(id)) {
                            let (key, name, host, _) = model.held[place];
                            let device = model
                                .copies
                                .iter()
                                .find(|copy| copy.0 == key)
                                .map_or(0, |copy| copy.1);
                            prop_assert_eq!(
                                index.remove(key),
                                Some(Removed { name, host, device })
                            );
                            prop_assert!(index.remove(key).is_none());
                            model.forget(key);
                        }
                    }
                    Step::Evict { tier, now, pinned } => {
                        let pinned: Vec<_> = pinned
                            .iter()
                            .filter_map(|id| index.find(&segment(*id)))
                            .collect();
                        let victim = index.victim(tier, at(now), |key| pinned.contains(&key));
                        prop_assert_eq!(victim, model.victim(tier, at(now), &pinned));
                        match (tier, victim) {
                            (Tier::Host, Some((key, _))) => {
                                index.remove(key);
                                model.forget(key);
                            }
                            (Tier::Device, Some((key, _))) => {
                                index.remove_copy(key);
                                model.copies.retain(|copy| copy.0 != key);
                            }
                            (_, None) => {}
                        }
                    }
                }
                prop_assert_eq!(
                    (index.len(Tier::Host), index.len(Tier::Device)),
                    (model.held.len(), model.copies.len())
                );
                prop_assert_eq!(
                    index.bytes(Tier::Host),
                    model.held.iter().map(|entry| entry.2).sum::<u64>()
                );
                prop_assert_eq!(
                    index.bytes(Tier::Device),
                    model.copies.iter().map(|copy| copy.1).sum::<u64>()
                );
                prop_assert_eq!(index.host.by_use().collect::<Vec<_>>(), model.order(Tier::Host));
                prop_assert_eq!(index.copies().collect::<Vec<_>>(), model.order(Tier::Device));
                prop_assert!(index.host.is_consistent() && index.device.is_consistent());
                prop_assert_eq!(
                    (index.names.len(), index.by_name.len()),
                    (model.held.len(), model.held.len())
                );
                for (key, name, bytes, expires) in &model.held {
                    prop_assert_eq!(index.find(name), Some(*key));
                    let of_this_id = model.held.iter().filter(|entry| entry.1.0 == name.0);
                    prop_assert_eq!(index.newest(&name.0), of_this_id.map(|entry| entry.0).max());
                    prop_assert_eq!(
                        (index.cost(Tier::Host, *key), index.expires(*key)),
                        (Some(*bytes), *expires)
                    );
                    let copy = model.copies.iter().find(|copy| copy.0 == *key);
                    prop_assert_eq!(index.cost(Tier::Device, *key), copy.map(|copy| copy.1));
                    prop_assert_eq!(
                        index.device.expires(*key),
                        copy.and(*expires),
                        "a copy expires with its segment"
                    );
                }
            }
        }
    }
}
