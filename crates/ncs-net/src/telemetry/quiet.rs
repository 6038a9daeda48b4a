//! Limits the rate of log lines that others can cause, and counts the suppressed ones.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Allows one line of each kind per interval, and counts the others.
#[derive(Debug)]
pub struct RateLimited<K> {
    every: Duration,
    kinds: Mutex<HashMap<K, Kind>>,
}

#[derive(Debug, Clone, Copy)]
struct Kind {
    said: Instant,
    unsaid: u64,
}

impl<K: Eq + Hash> RateLimited<K> {
    /// Allows one line of a kind per `every`.
    pub fn new(every: Duration) -> Self {
        Self {
            every,
            kinds: Mutex::default(),
        }
    }

    /// Whether a line of this kind may be written now; if so, how many were suppressed since the
    /// last one.
    pub fn admit(&self, kind: K, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kinds.get_mut(&kind) {
            if now.saturating_duration_since(known.said) < self.every {
                known.unsaid = known.unsaid.saturating_add(1);
                return None;
            }
            let unsaid = known.unsaid;
            *known = Kind {
                said: now,
                unsaid: 0,
            };
            return Some(unsaid);
        }
        if kinds.len() >= KINDS_MAX {
            kinds.retain(|_, known| now.saturating_duration_since(known.said) < self.every);
        }
        // With too many kinds at once, further ones are suppressed.
        if kinds.len() >= KINDS_MAX {
            return None;
        }
        kinds.insert(
            kind,
            Kind {
                said: now,
                unsaid: 0,
            },
        );
        Some(0)
    }
}

/// The field `suppressed` of a line, with the number of lines that it stands for; none without
/// such lines.
pub fn suppressed(unsaid: u64) -> Option<u64> {
    (unsaid > 0).then_some(unsaid)
}

/// The number of kinds tracked at once.
const KINDS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_kind_are_far_apart_and_counted() {
        let (lines, begin) = (RateLimited::new(Duration::from_secs(10)), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(lines.admit(1, at(0)), Some(0));
        assert_eq!(lines.admit(2, at(0)), Some(0), "another kind");
        for second in 1..10 {
            assert_eq!(lines.admit(1, at(second)), None);
        }
        assert_eq!(lines.admit(1, at(10)), Some(9));
        assert_eq!(lines.admit(1, at(20)), Some(0));
    }

    #[test]
    fn the_number_of_kinds_is_bounded() {
        let (lines, begin) = (RateLimited::new(Duration::from_secs(10)), Instant::now());
        let said = (0..1000)
            .filter(|kind| lines.admit(*kind, begin).is_some())
            .count();
        assert_eq!(said, KINDS_MAX);
        assert_eq!(
            lines.admit(1000, begin + Duration::from_secs(10)),
            Some(0),
            "the old ones go"
        );
    }
}
