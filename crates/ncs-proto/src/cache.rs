//! A map of bounded weight that forgets the least recently used values.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Keeps values up to a total weight.
#[derive(Debug)]
pub struct Cache<K, V> {
    budget: u64,
    weight: u64,
    clock: u64,
    entries: HashMap<K, Entry<V>>,
    ages: BTreeMap<u64, K>,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    weight: u64,
    used: u64,
}

impl<K: Clone + Eq + Hash, V> Cache<K, V> {
    /// An empty map, for values of this weight in all.
    pub fn new(budget: u64) -> Self {
        Self {
            budget,
            weight: 0,
            clock: 0,
            entries: HashMap::new(),
            ages: BTreeMap::new(),
        }
    }

    /// Keeps a value, and forgets others until the budget holds. A value heavier than the budget is
    /// not kept.
    pub fn insert(&mut self, key: K, value: V, weight: u64) {
        self.remove(&key);
        if weight > self.budget {
            return;
        }
        while self.weight + weight > self.budget {
            let Some((_, oldest)) = self.ages.pop_first() else {
                break;
            };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.weight -= entry.weight;
            }
        }
        self.clock += 1;
        self.weight += weight;
        self.ages.insert(self.clock, key.clone());
        self.entries.insert(
            key,
            Entry {
                value,
                weight,
                used: self.clock,
            },
        );
    }

    /// The value, which counts as used now.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let entry = self.entries.get_mut(key)?;
        self.clock += 1;
        self.ages.remove(&entry.used);
        self.ages.insert(self.clock, key.clone());
        entry.used = self.clock;
        Some(&mut entry.value)
    }

    /// Removes a value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.ages.remove(&entry.used);
        self.weight -= entry.weight;
        Some(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_goes_first() {
        let mut cache = Cache::new(10);
        cache.insert('a', 1, 4);
        cache.insert('b', 2, 4);
        assert_eq!(cache.get(&'a'), Some(&mut 1));
        cache.insert('c', 3, 4);
        assert!(
            cache.entries.contains_key(&'a')
                && !cache.entries.contains_key(&'b')
                && cache.entries.contains_key(&'c')
        );
        cache.insert('d', 4, 11);
        assert!(!cache.entries.contains_key(&'d') && cache.entries.contains_key(&'c'));
        cache.insert('e', 5, 10);
        assert!(
            cache.entries.contains_key(&'e')
                && !cache.entries.contains_key(&'a')
                && !cache.entries.contains_key(&'c')
        );
    }

    #[test]
    fn a_new_value_replaces_the_old_one() {
        let mut cache = Cache::new(10);
        cache.insert('a', 1, 9);
        cache.insert('a', 2, 5);
        cache.insert('b', 3, 5);
        assert_eq!(cache.get(&'a'), Some(&mut 2));
        assert_eq!(cache.remove(&'a'), Some(2));
        assert_eq!(
            (cache.weight, cache.ages.len(), cache.entries.len()),
            (5, 1, 1)
        );
    }
}
