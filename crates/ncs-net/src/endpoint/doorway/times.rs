//! Times that belong to connection ids.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time takes so many of an entry's 64 bits, in milliseconds, which is enough for 34 years. A
/// part of the id's hash takes the others.
const TIME_BITS: u32 = 40;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// A table from connection ids to times, of a fixed size and without a lock. An id may lose its
/// entry to another one that needs the same place. The hash is keyed, so nobody can choose ids that
/// do. An id that has lost its entry is taken for the other one once in 16 million times.
pub(super) struct Times {
    hasher: RandomState,
    start: Instant,
    entries: Box<[AtomicU64]>,
}

impl Times {
    /// An empty table with so many entries, for times from `start` on.
    pub(super) fn new(entries: usize, start: Instant) -> Self {
        Self {
            hasher: RandomState::new(),
            start,
            entries: (0..entries).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The time of an id, if it has one still.
    pub(super) fn get(&self, id: &[u8]) -> Option<Instant> {
        let (entry, tag) = self.find(id);
        let value = entry.load(Ordering::Relaxed);
        let ms = value & TIME_MASK;
        (ms != 0 && value & !TIME_MASK == tag).then(|| self.start + Duration::from_millis(ms))
    }

    /// Gives an id a time, in place of an earlier one. It is rounded down to milliseconds.
    pub(super) fn set(&self, id: &[u8], time: Instant) {
        let (entry, tag) = self.find(id);
        let ms = time.saturating_duration_since(self.start).as_millis();
        // Zero means no time.
        let ms = u64::try_from(ms).unwrap_or(TIME_MASK).clamp(1, TIME_MASK);
        entry.store(tag | ms, Ordering::Relaxed);
    }

    /// The entry of an id, and the part of its hash that the entry keeps.
    fn find(&self, id: &[u8]) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(id);
        // The lower bits choose the entry, the upper ones remain in it.
        let at = (hash & TIME_MASK) % self.entries.len() as u64;
        (&self.entries[at as usize], hash & !TIME_MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn each_id_has_its_own_time_while_there_is_space() {
        let now = Instant::now();
        let times = Times::new(1 << 12, now);
        assert_eq!(times.get(&[1; 8]), None);
        times.set(&[1; 8], now + SECOND);
        times.set(&[1; 8], now + 2 * SECOND);
        let is_apart = |id: &[u8; 9]| !std::ptr::eq(times.find(id).0, times.find(&[1; 8]).0);
        let other = (0..9).map(|octet| [octet; 9]).find(is_apart).unwrap();
        times.set(&other, now + 3 * SECOND);
        assert_eq!(times.get(&[1; 8]), Some(now + 2 * SECOND));
        assert_eq!(times.get(&other), Some(now + 3 * SECOND));
        assert_eq!(times.get(&[]), None);
        // The beginning, and what was before, is not taken for no time.
        times.set(&[2; 8], now);
        assert!(times.get(&[2; 8]).is_some_and(|time| time <= now + SECOND));
    }

    #[test]
    fn many_ids_take_each_others_place_and_not_their_time() {
        let now = Instant::now();
        let times = Times::new(1 << 8, now);
        let at = |number: u32| now + (number + 1) * SECOND;
        for number in 0..1_u32 << 12 {
            times.set(&number.to_be_bytes(), at(number));
            assert_eq!(times.get(&number.to_be_bytes()), Some(at(number)));
        }
        let found = |number: &u32| times.get(&number.to_be_bytes()).map(|time| (*number, time));
        let (own, others): (Vec<_>, Vec<_>) = (0..1_u32 << 12)
            .collect::<Vec<_>>()
            .iter()
            .filter_map(found)
            .partition(|(number, time)| *time == at(*number));
        assert!((1 << 7..=1 << 8).contains(&own.len()));
        // Of 4,000 that have lost their entry, one in 16 million is taken for the other.
        assert!(others.len() <= 2, "{others:?}");
    }
}
