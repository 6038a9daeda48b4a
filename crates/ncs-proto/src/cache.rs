//! A map of bounded weight that forgets the least recently used values.

use std::collections::VecDeque;

use crate::sorted::SortedMap;

/// Keeps values up to a total weight. For thousands of them: an insertion moves those with greater
/// keys.
#[derive(Debug)]
pub struct Cache<K, V> {
    budget: u64,
    weight: u64,
    clock: u64,
    entries: SortedMap<K, Entry<V>>,
    /// When values were used, and which. Of several uses of a value the last counts. No more than
    /// twice as many as there are values, and [`USES_SPARED`].
    uses: VecDeque<(u64, K)>,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    weight: u64,
    used: u64,
}

/// Uses that are not worth tidying.
const USES_SPARED: usize = 64;

impl<K: Clone + Ord, V> Cache<K, V> {
    /// An empty map, for values of this weight in all.
    pub fn new(budget: u64) -> Self {
        Self {
            budget,
            weight: 0,
            clock: 0,
            entries: SortedMap::new(),
            uses: VecDeque::new(),
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
            let Some((used, oldest)) = self.uses.pop_front() else {
                break;
            };
            if self.is_last_use(used, &oldest) {
                self.remove(&oldest);
            }
        }
        self.weight += weight;
        let used = self.note_use(&key);
        self.entries.insert(
            key,
            Entry {
                value,
                weight,
                used,
            },
        );
    }

    /// The value, which counts as used now.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        if !self.entries.contains_key(key) {
            return None;
        }
        let used = self.note_use(key);
        let entry = self.entries.get_mut(key)?;
        entry.used = used;
        Some(&mut entry.value)
    }

    /// Removes a value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.weight -= entry.weight;
        Some(entry.value)
    }

    /// Notes a use, and returns its time.
    fn note_use(&mut self, key: &K) -> u64 {
        if self.uses.len() > 2 * self.entries.len() + USES_SPARED {
            let mut uses = std::mem::take(&mut self.uses);
            uses.retain(|(used, key)| self.is_last_use(*used, key));
            self.uses = uses;
        }
        self.clock += 1;
        self.uses.push_back((self.clock, key.clone()));
        self.clock
    }

    fn is_last_use(&self, used: u64, key: &K) -> bool {
        self.entries
            .get(key)
            .is_some_and(|entry| entry.used == used)
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
        assert_eq!((cache.weight, cache.entries.len()), (5, 1));
    }

    #[test]
    fn uses_take_no_more_memory_than_values() {
        let mut cache = Cache::new(10);
        for turn in 0..10_000_u32 {
            cache.insert(turn % 13, turn, 1);
            cache.get(&(turn % 7));
            assert!(cache.entries.len() <= 10 && cache.weight <= 10);
            assert!(cache.uses.len() <= 2 * cache.entries.len() + USES_SPARED + 1);
        }
    }
}
