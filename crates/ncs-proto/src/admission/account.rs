//! Accounts: the connections, and the bytes a second, of one holder of tokens or of one address.
//!
//! An account lives while a place in it is taken, and after that until its bytes are paid for: a
//! peer that leaves and comes back does not begin anew. When the last place is given back, this is
//! judged by the latest time that the account was told of. Accounts without debts are swept when
//! the book has doubled, so it is never larger than twice the accounts in use at the last sweep.
//! Time is an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Ledger;
use crate::time::Instant;

/// The burst that a rate allows.
const DEPTH: Duration = Duration::from_secs(1);

/// Accounts in a book before it is swept for the first time.
const SWEEP_FROM: usize = 1024;

/// Accounts, by what their owners have in common.
#[derive(Debug)]
pub struct Book<K: Eq + Hash + Clone> {
    pages: Arc<Mutex<Pages<K>>>,
    /// Places of all accounts together.
    most: Option<u32>,
}

impl<K: Eq + Hash + Clone> Clone for Book<K> {
    fn clone(&self) -> Self {
        Self {
            pages: Arc::clone(&self.pages),
            most: self.most,
        }
    }
}

#[derive(Debug)]
struct Pages<K> {
    accounts: HashMap<K, Account>,
    sweep_at: usize,
}

#[derive(Debug)]
struct Account {
    places: u32,
    purse: Arc<Mutex<Purse>>,
    ledger: Arc<Ledger>,
}

impl Account {
    /// Whether bytes are not paid for, or queries exceed the rate.
    fn owes(&self, now: Instant) -> bool {
        lock(&self.purse).owes(now) || self.ledger.owes(now)
    }

    /// The latest time that it was told of.
    fn told(&self) -> Instant {
        lock(&self.purse).told
    }
}

impl<K: Eq + Hash + Clone> Default for Book<K> {
    fn default() -> Self {
        Self::new()
    }
}

/// One counted connection; dropping it frees its place.
#[derive(Debug)]
pub struct Place<K: Eq + Hash + Clone> {
    book: Book<K>,
    key: K,
    purse: Arc<Mutex<Purse>>,
    ledger: Arc<Ledger>,
}

/// The limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl<K: Eq + Hash + Clone> Book<K> {
    /// An empty book.
    pub fn new() -> Self {
        Self::with_room_for(None)
    }

    /// A book with this many places in all.
    pub fn with_room_for(most: Option<u32>) -> Self {
        Self {
            pages: Arc::new(Mutex::new(Pages {
                accounts: HashMap::new(),
                sweep_at: SWEEP_FROM,
            })),
            most,
        }
    }

    /// Takes a place, if fewer than `most` of this account are taken, and one is free.
    pub fn enter(&self, now: Instant, key: K, most: Option<u32>) -> Result<Place<K>, Full> {
        let mut pages = self.lock();
        if pages.accounts.len() >= pages.sweep_at {
            pages
                .accounts
                .retain(|_, account| account.places > 0 || account.owes(now));
            pages.sweep_at = SWEEP_FROM.max(2 * pages.accounts.len());
        }
        if self.most.is_some_and(|most| {
            pages
                .accounts
                .values()
                .map(|account| account.places)
                .sum::<u32>()
                >= most
        }) {
            return Err(Full);
        }
        let account = pages
            .accounts
            .entry(key.clone())
            .or_insert_with(|| Account {
                places: 0,
                purse: Arc::new(Mutex::new(Purse::new(now))),
                ledger: Arc::default(),
            });
        if most.is_some_and(|most| account.places >= most) {
            return Err(Full);
        }
        account.places += 1;
        lock(&account.purse).tell(now);
        let (purse, ledger) = (Arc::clone(&account.purse), Arc::clone(&account.ledger));
        Ok(Place {
            book: self.clone(),
            key,
            purse,
            ledger,
        })
    }

    /// The number of places taken.
    pub fn places(&self, key: &K) -> u32 {
        self.lock()
            .accounts
            .get(key)
            .map_or(0, |account| account.places)
    }

    fn leave(&self, key: &K) {
        let mut pages = self.lock();
        let Some(account) = pages.accounts.get_mut(key) else {
            return;
        };
        account.places = account.places.saturating_sub(1);
        if account.places == 0 && !account.owes(account.told()) {
            pages.accounts.remove(key);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pages<K>> {
        lock(&self.pages)
    }
}

impl<K: Eq + Hash + Clone> Place<K> {
    /// Sets the bytes a second that the account may spend from now on. The latest call counts for
    /// all of its places.
    pub fn set_rate(&self, rate: Option<u64>) {
        lock(&self.purse).rate = rate;
    }

    /// Bytes that may be spent now, or when any may be.
    pub fn allowance(&self, now: Instant) -> Result<u64, Instant> {
        lock(&self.purse).allowance(now)
    }

    /// Spends bytes, also beyond the allowance: the debt has to be waited for.
    pub fn spend(&self, now: Instant, bytes: u64) {
        lock(&self.purse).spend(now, bytes);
    }

    /// Bytes that all places of the account have spent while it had a rate.
    pub fn spent(&self) -> u64 {
        lock(&self.purse).spent
    }

    /// What its owners have in common.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The memory that the account keeps.
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.ledger)
    }

    /// Whether this place belongs to that account.
    pub fn is_of(&self, key: &K) -> bool {
        self.key == *key
    }
}

impl<K: Eq + Hash + Clone> Drop for Place<K> {
    fn drop(&mut self) {
        self.book.leave(&self.key);
    }
}

/// A token bucket of bytes.
#[derive(Debug)]
struct Purse {
    rate: Option<u64>,
    /// When it is full again.
    full_at: Instant,
    /// The latest time that a caller has named.
    told: Instant,
    /// Bytes spent at a rate.
    spent: u64,
}

impl Purse {
    const fn new(now: Instant) -> Self {
        Self {
            rate: None,
            full_at: now,
            told: now,
            spent: 0,
        }
    }

    fn tell(&mut self, now: Instant) {
        self.told = self.told.max(now);
    }

    fn owes(&self, now: Instant) -> bool {
        self.full_at > now
    }

    fn allowance(&mut self, now: Instant) -> Result<u64, Instant> {
        self.tell(now);
        let Some(rate) = self.rate else {
            return Ok(u64::MAX);
        };
        let missing = self.full_at.saturating_duration_since(now);
        let left = DEPTH.saturating_sub(missing);
        if left.is_zero() {
            return Err(self.full_at - DEPTH);
        }
        let bytes = u128::from(rate) * left.as_micros() / 1_000_000;
        Ok(u64::try_from(bytes).unwrap_or(u64::MAX).max(1))
    }

    fn spend(&mut self, now: Instant, bytes: u64) {
        self.tell(now);
        let Some(rate) = self.rate else { return };
        self.spent = self.spent.saturating_add(bytes);
        let micros = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
        self.full_at = self.full_at.max(now)
            + Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).min(DEBT_MAX);
    }
}

/// The longest wait for one payment. With a rate of a byte a second, too, times stay within the
/// range of a clock.
const DEBT_MAX: Duration = Duration::from_secs(24 * 3600);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The addresses that count as one: an IPv4 address alone, also where it came as IPv6; of IPv6 the
/// first 64 bits, because a host can choose the others at will.
pub fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX))),
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_account_and_given_back() {
        let (book, now) = (Book::new(), Instant::now());
        let one = book.enter(now, "a", Some(2)).unwrap();
        let _other = book.enter(now, "a", Some(2)).unwrap();
        assert_eq!(book.enter(now, "a", Some(2)).unwrap_err(), Full);
        assert!(book.enter(now, "b", Some(2)).is_ok() && book.enter(now, "a", None).is_ok());
        assert_eq!((book.places(&"a"), book.places(&"b")), (2, 0));
        drop(one);
        assert!(book.enter(now, "a", Some(2)).is_ok());
    }

    #[test]
    fn bytes_flow_at_the_rate_and_a_second_of_it_at_once() {
        let (book, now) = (Book::new(), Instant::now());
        let (one, other) = (
            book.enter(now, "a", None).unwrap(),
            book.enter(now, "a", None).unwrap(),
        );
        assert_eq!(one.allowance(now), Ok(u64::MAX));
        one.set_rate(Some(1000));
        assert_eq!(other.allowance(now), Ok(1000), "both spend from one purse");
        other.spend(now, 600);
        assert_eq!(one.allowance(now), Ok(400));
        one.spend(now, 2400);
        assert_eq!(
            one.allowance(now),
            Err(now + 2 * DEPTH),
            "overdrawn by 2,000"
        );
        assert_eq!(other.spent(), 3000);
        assert_eq!(
            one.allowance(now + 2 * DEPTH + Duration::from_millis(100)),
            Ok(100)
        );
        // With queries as soon as they are allowed, the rate holds over time.
        let (mut at, mut spent) = (now + 3 * DEPTH, 0);
        one.spend(at, 1000);
        let from = at;
        while at < from + 20 * DEPTH {
            match one.allowance(at) {
                Ok(bytes) => {
                    one.spend(at, bytes + 300);
                    spent += bytes + 300;
                }
                Err(later) => at = later + Duration::from_millis(1),
            }
        }
        assert!(
            (19_000..=21_500).contains(&spent),
            "{spent} bytes in 20 seconds at 1,000"
        );
    }

    #[test]
    fn leaving_does_not_pay_what_is_owed() {
        let (book, now) = (Book::new(), Instant::now());
        let place = book.enter(now, "a", None).unwrap();
        place.set_rate(Some(10));
        place.spend(now, 1000);
        drop(place);
        let back = book.enter(now, "a", None).unwrap();
        assert!(back.allowance(now).is_err());
        let far = now + DEBT_MAX;
        back.spend(now, u64::MAX);
        assert!(
            back.allowance(far).is_err(),
            "the largest debt is a time that can be told"
        );
        assert_eq!(book.lock().accounts.len(), 1);
    }

    #[test]
    fn a_book_does_not_keep_those_who_are_gone() {
        let (book, now) = (Book::new(), Instant::now());
        for number in 0..10 * SWEEP_FROM {
            let place = book.enter(now, number, None).unwrap();
            place.set_rate(Some(1 << 30));
            place.spend(Instant::now(), 1 << 40);
        }
        assert_eq!(book.lock().accounts.len(), 10 * SWEEP_FROM, "all owe");
        drop(book.enter(now + DEBT_MAX, 0, None));
        let later = |number| {
            book.enter(now + DEBT_MAX, 20 * SWEEP_FROM + number, None)
                .unwrap()
        };
        let newcomers: Vec<_> = (0..10 * SWEEP_FROM).map(later).collect();
        assert_eq!(
            book.lock().accounts.len(),
            newcomers.len(),
            "those who have gone have paid since"
        );
        drop(newcomers);
        assert!(
            book.lock().accounts.len() <= SWEEP_FROM,
            "{}",
            book.lock().accounts.len()
        );
    }

    #[test]
    fn leaving_earns_no_questions() {
        let (book, now) = (Book::new(), Instant::now());
        let place = book.enter(now, "a", None).unwrap();
        place.ledger().ask(now, 1000, 1);
        drop(place);
        assert!(
            book.enter(now, "a", None)
                .unwrap()
                .ledger()
                .resumes(now)
                .is_some()
        );
    }

    #[test]
    fn neighbours_share_an_account() {
        let at = |text: &str| neighbourhood(text.parse().unwrap());
        assert_eq!(at("2001:db8:1:2:3:4:5:6"), at("2001:db8:1:2::"));
        assert_ne!(at("2001:db8:1:2::1"), at("2001:db8:1:3::1"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
    }
}
