//! Segments just named to a client in an answer. Until its request for their blocks arrives, they
//! are not in use. For a few seconds they are evicted after all others that are not in use, so that
//! questions of others do not push them out in between.
//!
//! Each account has a limit in bytes, but its last named segment is always protected. An account
//! that exceeds the limit loses the protection of its own older segments, never of others'. A plain
//! value: `now` is an argument. Memory is bounded by the number of answers, per account and in all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::object::SegmentKey;

#[derive(Debug)]
pub(super) struct Named {
    bytes_max: u64,
    /// The answers that named a segment to an account, by their order.
    answers: BTreeMap<u64, Answer>,
    numbers: HashMap<(SegmentKey, u128), u64>,
    by_segment: BTreeSet<(SegmentKey, u64)>,
    accounts: HashMap<u128, Account>,
    last: u64,
}

#[derive(Debug)]
struct Answer {
    key: SegmentKey,
    account: u128,
    bytes: u64,
    until: Instant,
}

#[derive(Debug, Default)]
struct Account {
    bytes: u64,
    numbers: BTreeSet<u64>,
}

impl Named {
    /// Allows each account `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
        let (answers, numbers, by_segment, accounts, last) = Default::default();
        Self {
            bytes_max,
            answers,
            numbers,
            by_segment,
            accounts,
            last,
        }
    }

    /// Notes that an account was told of a segment of this size.
    pub(super) fn note(&mut self, key: SegmentKey, account: u128, bytes: u64, now: Instant) {
        while let Some((number, _)) = self
            .answers
            .first_key_value()
            .filter(|(_, answer)| answer.until <= now)
        {
            self.remove(*number);
        }
        if let Some(number) = self.numbers.get(&(key, account)) {
            self.remove(*number);
        }
        self.last += 1;
        self.answers.insert(
            self.last,
            Answer {
                key,
                account,
                bytes,
                until: now + FOR,
            },
        );
        self.numbers.insert((key, account), self.last);
        self.by_segment.insert((key, self.last));
        let of_account = self.accounts.entry(account).or_default();
        of_account.bytes += bytes;
        of_account.numbers.insert(self.last);
        while let Some(number) = self
            .accounts
            .get(&account)
            .and_then(|account| account.surplus(self.bytes_max))
        {
            self.remove(number);
        }
        while let Some((number, _)) = self
            .answers
            .first_key_value()
            .filter(|_| self.answers.len() > ANSWERS_MAX)
        {
            self.remove(*number);
        }
    }

    /// Whether a client was just told of a segment.
    pub(super) fn has(&self, key: SegmentKey, now: Instant) -> bool {
        let last = self
            .last_of(key)
            .and_then(|number| self.answers.get(&number));
        last.is_some_and(|answer| answer.until > now)
    }

    /// Forgets an evicted segment.
    pub(super) fn forget(&mut self, key: SegmentKey) {
        while let Some(number) = self.last_of(key) {
            self.remove(number);
        }
    }

    fn last_of(&self, key: SegmentKey) -> Option<u64> {
        self.by_segment
            .range((key, 0)..=(key, u64::MAX))
            .next_back()
            .map(|(_, number)| *number)
    }

    fn remove(&mut self, number: u64) {
        let Some(Answer {
            key,
            account,
            bytes,
            ..
        }) = self.answers.remove(&number)
        else {
            return;
        };
        self.numbers.remove(&(key, account));
        self.by_segment.remove(&(key, number));
        if let Some(of_account) = self.accounts.get_mut(&account) {
            of_account.bytes -= bytes;
            of_account.numbers.remove(&number);
            if of_account.numbers.is_empty() {
                self.accounts.remove(&account);
            }
        }
    }
}

impl Account {
    /// The oldest answer, if the account exceeds its limits and has more than one.
    fn surplus(&self, bytes_max: u64) -> Option<u64> {
        let is_over = self.numbers.len() > OF_ACCOUNT_MAX
            || (self.bytes > bytes_max && self.numbers.len() > 1);
        self.numbers.first().copied().filter(|_| is_over)
    }
}

/// Longer than any usual round trip, plus the wait of a request for its first blocks.
const FOR: Duration = Duration::from_secs(3);
/// The number of answers remembered per account, and in all: some 300 bytes each.
const OF_ACCOUNT_MAX: usize = 1024;
const ANSWERS_MAX: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [SegmentKey; 4] = [SegmentKey(1), SegmentKey(2), SegmentKey(3), SegmentKey(4)];

    /// Which of these segments were just named.
    fn has(named: &Named, now: Instant) -> [bool; 4] {
        KEYS.map(|key| named.has(key, now))
    }

    #[test]
    fn a_moment_ends_and_begins_anew_with_another_answer() {
        let (mut named, now) = (Named::new(100), Instant::now());
        named.note(KEYS[0], 1, 10, now);
        named.note(KEYS[1], 1, 10, now);
        named.note(KEYS[0], 1, 10, now + FOR / 2);
        assert_eq!(has(&named, now + FOR), [true, false, false, false]);
        named.note(KEYS[2], 2, 10, now + FOR);
        assert_eq!(
            (named.answers.len(), named.accounts[&1].bytes),
            (2, 10),
            "what is over is forgotten"
        );
        named.forget(KEYS[0]);
        assert_eq!(
            (has(&named, now + FOR), named.accounts.len()),
            ([false, false, true, false], 1)
        );
    }

    #[test]
    fn an_account_takes_the_moment_from_its_own_alone() {
        let (mut named, now) = (Named::new(100), Instant::now());
        named.note(KEYS[0], 1, 60, now);
        named.note(KEYS[1], 1, 60, now);
        assert_eq!(has(&named, now), [false, true, false, false]);
        named.note(KEYS[0], 2, 60, now);
        named.note(KEYS[2], 2, 40, now);
        named.note(KEYS[1], 2, 60, now);
        assert_eq!(has(&named, now), [false, true, true, false]);
        // A segment larger than the limit is protected until the next one.
        named.note(KEYS[3], 2, 1000, now);
        assert_eq!(
            has(&named, now),
            [false, true, false, true],
            "the other account was told of the second, too"
        );
        named.note(KEYS[2], 2, 1, now);
        assert_eq!(has(&named, now), [false, true, true, false]);
    }

    #[test]
    fn so_many_answers_are_remembered() {
        let (mut named, now) = (Named::new(u64::MAX), Instant::now());
        let mut keys = (1..).map(SegmentKey);
        let first = keys.next().unwrap();
        named.note(first, 0, 1, now);
        keys.by_ref()
            .take(2 * OF_ACCOUNT_MAX)
            .for_each(|key| named.note(key, 1, 1, now));
        assert!(named.has(first, now) && named.answers.len() == 1 + OF_ACCOUNT_MAX);
        for account in 2..100 {
            keys.by_ref()
                .take(OF_ACCOUNT_MAX)
                .for_each(|key| named.note(key, account, 1, now));
        }
        let counted: usize = named
            .accounts
            .values()
            .map(|account| account.numbers.len())
            .sum();
        assert_eq!(
            [
                named.answers.len(),
                named.numbers.len(),
                named.by_segment.len(),
                counted
            ],
            [ANSWERS_MAX; 4]
        );
        named.note(first, 0, 1, now + FOR);
        assert_eq!((named.answers.len(), named.accounts.len()), (1, 1));
    }
}
