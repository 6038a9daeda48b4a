//! The limit of resident bytes. A plain value.

/// A limit in bytes, and the bytes reserved of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    limit: u64,
    used: u64,
}

impl Budget {
    /// A budget of `limit` bytes, none of them used.
    pub const fn new(limit: u64) -> Self {
        Self { limit, used: 0 }
    }

    /// The limit.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Reserved bytes.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Reserves `bytes` if they are free.
    #[must_use]
    pub fn reserve(&mut self, bytes: u64) -> bool {
        let is_free = self
            .used
            .checked_add(bytes)
            .is_some_and(|used| used <= self.limit);
        if is_free {
            self.used += bytes;
        }
        is_free
    }

    /// The same for copies, within `ceiling`, which may be less than the budget. A copy larger than
    /// that is accepted alone, because otherwise it would never be.
    #[must_use]
    pub fn reserve_copy(&mut self, bytes: u64, ceiling: u64) -> bool {
        let ceiling = ceiling.min(self.limit);
        let is_free = self.used == 0
            || self
                .used
                .checked_add(bytes)
                .is_some_and(|used| used <= ceiling);
        if is_free {
            self.used = self.used.saturating_add(bytes);
        }
        is_free
    }

    /// Changes the limit. The next evictions make up for any excess.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Returns `bytes`.
    pub fn release(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.used, "more is given back than was taken");
        self.used = self.used.saturating_sub(bytes);
    }

    /// Replaces an estimate by the actual size. It cannot fail, because the bytes exist already:
    /// they may exceed the budget, and the next eviction makes up for that.
    pub fn correct(&mut self, estimate: u64, actual: u64) {
        self.release(estimate);
        self.used = self.used.saturating_add(actual);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_is_given() {
        let mut budget = Budget::new(10);
        assert!(budget.reserve(7));
        assert!(!budget.reserve(4));
        assert!(budget.reserve(3));
        budget.release(5);
        assert_eq!(budget.used(), 5);
        assert!(!budget.reserve(u64::MAX));
        budget.correct(5, 12);
        assert_eq!(budget.used(), 12);
        assert!(!budget.reserve(0), "above the limit nothing is free");
    }

    #[test]
    fn a_copy_that_is_too_large_goes_alone() {
        let mut budget = Budget::new(10);
        assert!(budget.reserve_copy(4, u64::MAX));
        assert!(
            !budget.reserve_copy(7, u64::MAX) && !budget.reserve_copy(6, 9),
            "neither limit is passed"
        );
        assert!(!budget.reserve_copy(11, u64::MAX));
        budget.release(4);
        assert!(budget.reserve_copy(11, 9));
        assert!(!budget.reserve_copy(1, u64::MAX));
        budget.set_limit(20);
        assert!(budget.reserve_copy(9, u64::MAX));
    }
}
