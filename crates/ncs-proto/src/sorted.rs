//! A map and a set in one sorted vector each, for what a peer keeps by name: sources, fetches,
//! questions, generations under way.
//!
//! They hold tens or hundreds of entries, and new names are mostly the greatest: then an insertion
//! is a push. Look-ups take O(log n) comparisons. Insertions and removals elsewhere move the
//! entries behind, O(n): what can have thousands of entries must have small ones, and where values
//! are large they are boxed. Iteration is in the order of the keys, as simulations with a seed
//! demand.
//!
//! Why not `BTreeMap`: a web page has to load its code, 9 kB for each type of entry. These come to
//! a few hundred bytes.

use std::borrow::Borrow;
use std::ops::Index;
use std::slice;

/// A map, in the order of its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortedMap<K, V> {
    entries: Vec<(K, V)>,
}

impl<K, V> SortedMap<K, V> {
    /// An empty map, without memory of its own.
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    /// The number of entries.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter {
            entries: self.entries.iter(),
        }
    }

    /// All entries, with values to change.
    pub fn iter_mut(&mut self) -> IterMut<'_, K, V> {
        IterMut {
            entries: self.entries.iter_mut(),
        }
    }

    /// The keys.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> + ExactSizeIterator {
        self.entries.iter().map(|entry| &entry.0)
    }

    /// The values, in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + ExactSizeIterator {
        self.entries.iter().map(|entry| &entry.1)
    }

    /// The values, to change.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> + ExactSizeIterator {
        self.entries.iter_mut().map(|entry| &mut entry.1)
    }

    /// The values alone.
    pub fn into_values(self) -> impl DoubleEndedIterator<Item = V> + ExactSizeIterator {
        self.entries.into_iter().map(|entry| entry.1)
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Keeps the entries for which this holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.entries.retain_mut(|(key, value)| keep(key, value));
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Where the key is, or would be.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        // New keys are mostly the greatest.
        match self.entries.last() {
            Some(last) if last.0.borrow() < key => Err(self.entries.len()),
            _ => self
                .entries
                .binary_search_by(|entry| entry.0.borrow().cmp(key)),
        }
    }

    /// Whether there is an entry with this key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(&self.entries[at].1)
    }

    /// The value of a key, to change.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(&mut self.entries[at].1)
    }

    /// Sets the value of a key, and returns the one before.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    /// Removes an entry, and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.find(key).ok()?;
        Some(self.entries.remove(at).1)
    }

    /// The value of a key; one that is made now if there was none.
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let at = self.find(&key).unwrap_or_else(|at| {
            self.entries.insert(at, (key, make()));
            at
        });
        &mut self.entries[at].1
    }

    /// The value of a key; this one if there was none.
    pub fn get_or_insert(&mut self, key: K, value: V) -> &mut V {
        self.get_or_insert_with(key, || value)
    }

    /// The value of a key; the default one if there was none.
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.get_or_insert_with(key, V::default)
    }

    /// The values of all keys below this one, to change.
    pub fn values_below_mut(&mut self, key: &K) -> impl Iterator<Item = &mut V> {
        let end = self.find(key).unwrap_or_else(|at| at);
        self.entries[..end].iter_mut().map(|entry| &mut entry.1)
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord, V> Extend<(K, V)> for SortedMap<K, V> {
    fn extend<T: IntoIterator<Item = (K, V)>>(&mut self, entries: T) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(entries: T) -> Self {
        let mut map = Self::new();
        map.extend(entries);
        map
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SortedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for SortedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("an entry with this key")
    }
}

impl<'a, K, V> IntoIterator for &'a SortedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<'a, K, V> IntoIterator for &'a mut SortedMap<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = IterMut<'a, K, V>;

    fn into_iter(self) -> IterMut<'a, K, V> {
        self.iter_mut()
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

/// The entries of a [`SortedMap`].
#[derive(Debug)]
pub struct Iter<'a, K, V> {
    entries: slice::Iter<'a, (K, V)>,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.entries.next().map(|(key, value)| (key, value))
    }
}

/// The entries of a [`SortedMap`], with values to change.
#[derive(Debug)]
pub struct IterMut<'a, K, V> {
    entries: slice::IterMut<'a, (K, V)>,
}

impl<'a, K, V> Iterator for IterMut<'a, K, V> {
    type Item = (&'a K, &'a mut V);

    fn next(&mut self) -> Option<Self::Item> {
        self.entries.next().map(|(key, value)| (&*key, value))
    }
}

/// A set, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortedSet<T> {
    items: Vec<T>,
}

impl<T> SortedSet<T> {
    /// An empty set, without memory of its own.
    pub const fn new() -> Self {
        Self { items: Vec::new() }
    }

    /// The number of members.
    pub const fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The members.
    pub fn iter(&self) -> slice::Iter<'_, T> {
        self.items.iter()
    }

    /// The least member.
    pub fn first(&self) -> Option<&T> {
        self.items.first()
    }

    /// Removes all members.
    pub fn clear(&mut self) {
        self.items.clear();
    }

    /// Keeps the members for which this holds.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.items.retain(keep);
    }
}

impl<T: Ord> SortedSet<T> {
    /// Where it is, or would be.
    fn find(&self, item: &T) -> Result<usize, usize> {
        match self.items.last() {
            Some(last) if last < item => Err(self.items.len()),
            _ => self.items.binary_search(item),
        }
    }

    /// Whether this is a member.
    pub fn contains(&self, item: &T) -> bool {
        self.find(item).is_ok()
    }

    /// Whether no member is one of the other's.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        !self.items.iter().any(|item| other.contains(item))
    }

    /// Whether all members are the other's, too.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.items.iter().all(|item| other.contains(item))
    }

    /// Adds a member. False if it was one.
    pub fn insert(&mut self, item: T) -> bool {
        let at = self.find(&item);
        if let Err(at) = at {
            self.items.insert(at, item);
        }
        at.is_err()
    }

    /// Removes a member. False if it was none.
    pub fn remove(&mut self, item: &T) -> bool {
        let at = self.find(item);
        if let Ok(at) = at {
            self.items.remove(at);
        }
        at.is_ok()
    }
}

impl<T> Default for SortedSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Ord> Extend<T> for SortedSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        for item in items {
            self.insert(item);
        }
    }
}

impl<T: Ord> FromIterator<T> for SortedSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut set = Self::new();
        set.extend(items);
        set
    }
}

impl<T: Ord, const N: usize> From<[T; N]> for SortedSet<T> {
    fn from(items: [T; N]) -> Self {
        items.into_iter().collect()
    }
}

impl<'a, T> IntoIterator for &'a SortedSet<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> slice::Iter<'a, T> {
        self.items.iter()
    }
}

impl<T> IntoIterator for SortedSet<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    /// Random operations on few keys, so that most of them meet an entry, beside the map of the
    /// standard library.
    #[test]
    fn a_map_does_what_btreemap_does() {
        let mut random = StdRng::seed_from_u64(1);
        let (mut map, mut other) = (SortedMap::new(), BTreeMap::new());
        for step in 0..20_000_u32 {
            let key = random.random_range(0..40_u32);
            match random.random_range(0..9) {
                0 | 1 => assert_eq!(map.insert(key, step), other.insert(key, step)),
                2 => assert_eq!(map.remove(&key), other.remove(&key)),
                3 => assert_eq!(map.get(&key), other.get(&key)),
                4 => assert_eq!(map.get_mut(&key), other.get_mut(&key)),
                5 => assert_eq!(
                    map.get_or_insert_with(key, || step),
                    other.entry(key).or_insert_with(|| step)
                ),
                6 => assert_eq!(map.contains_key(&key), other.contains_key(&key)),
                7 => {
                    let below = map.values_below_mut(&key).map(|value| *value);
                    let others = other.range(..key).map(|(_, value)| *value);
                    assert!(below.eq(others));
                }
                _ if step % 50 == 0 => {
                    map.retain(|at, value| (*at + *value + key) % 3 > 0);
                    other.retain(|at, value| (*at + *value + key) % 3 > 0);
                }
                _ => {
                    let more = [(key, step), (key + 1, step)];
                    map.extend(more);
                    other.extend(more);
                }
            }
            assert!(map.iter().eq(other.iter()) && map.len() == other.len());
        }
        assert!(map.keys().eq(other.keys()) && map.values().eq(other.values()));
        assert!(map.into_values().eq(other.into_values()));
    }

    #[test]
    fn a_set_does_what_btreeset_does() {
        let mut random = StdRng::seed_from_u64(2);
        let (mut set, mut other) = (SortedSet::new(), BTreeSet::new());
        for step in 0..20_000_u32 {
            let item = random.random_range(0..40_u32);
            match random.random_range(0..4) {
                0 | 1 => assert_eq!(set.insert(item), other.insert(item)),
                2 => assert_eq!(set.remove(&item), other.remove(&item)),
                _ => assert_eq!(set.contains(&item), other.contains(&item)),
            }
            if step % 100 == 0 {
                set.retain(|at| (at + item) % 3 > 0);
                other.retain(|at| (at + item) % 3 > 0);
            }
            assert!(set.iter().eq(other.iter()) && set.first() == other.first());
            let few = [item, (item * 7 + 3) % 40];
            let (some, others) = (SortedSet::from(few), BTreeSet::from(few));
            assert_eq!(set.is_disjoint(&some), other.is_disjoint(&others));
            assert_eq!(some.is_subset(&set), others.is_subset(&other));
        }
    }
}
