//! How fast a peer may send control bytes, queries, and whatever else costs the server work.

use std::time::Duration;

use super::config::Config;
use super::ledgers::Ledgers;
use crate::time::Instant;

/// The cost of a GET or SUBSCRIBE, where the lookup of a segment costs 1: paths are parsed, and
/// signed answers made.
pub(super) const GET_COST: u32 = 4;
/// Queries that are taken from a session in a second though others of its address or token have
/// sent more than their share.
const ASSURED_PER_SECOND: u64 = 100;
/// The burst that the budget of a second allows.
const BUDGET_DEPTH: Duration = Duration::from_secs(1);

/// Tokens and tickets that may come at once, and the interval of further ones.
pub(super) const TOKENS_MAX: u32 = 8;
pub(super) const TOKEN_EVERY: Duration = Duration::from_secs(5);
/// Queries for checksums that may come at once, and the interval of further ones: each costs a pass
/// over a generation.
pub(super) const CHECKS_MAX: u32 = 16;
pub(super) const CHECKS_EVERY: Duration = Duration::from_millis(250);
/// Reports of wrong blocks that are taken at once, and the interval of further ones.
pub(super) const BLAMES_MAX: u32 = 8;
pub(super) const BLAMES_EVERY: Duration = Duration::from_secs(10);
/// OFFERs and HAVEs that may come at once, as after a new connection, and the interval of further
/// ones.
const OFFERS_MAX: u32 = 32;
const OFFERS_EVERY: Duration = Duration::from_millis(200);
/// SIGNALs that are passed on at once, and the interval of further ones. Two pages connect with one
/// in each direction.
pub(super) const SIGNALS_MAX: u32 = 32;
pub(super) const SIGNALS_EVERY: Duration = Duration::from_millis(500);

/// The limits of one session.
#[derive(Debug)]
pub(super) struct Limits {
    control: Budget,
    /// All queries of this session.
    questions: Budget,
    /// Those that are taken whatever others of its address or token send.
    assured: Budget,
    pub(super) tokens: Rate,
    pub(super) checks: Rate,
    pub(super) blames: Rate,
    pub(super) offers: Rate,
    pub(super) signals: Rate,
}

impl Limits {
    pub(super) fn new(config: &Config, now: Instant) -> Self {
        Self {
            control: Budget::new(config.control_bytes_per_second, now),
            questions: Budget::new(config.questions_per_second.into(), now),
            assured: Budget::new(ASSURED_PER_SECOND, now),
            tokens: Rate::new(TOKENS_MAX, TOKEN_EVERY, now),
            checks: Rate::new(CHECKS_MAX, CHECKS_EVERY, now),
            blames: Rate::new(BLAMES_MAX, BLAMES_EVERY, now),
            offers: Rate::new(OFFERS_MAX, OFFERS_EVERY, now),
            signals: Rate::new(SIGNALS_MAX, SIGNALS_EVERY, now),
        }
    }

    /// Counts bytes of the control stream.
    pub(super) fn count_bytes(&mut self, now: Instant, bytes: usize) {
        self.control.spend(now, bytes as u64);
    }

    /// Counts a query that costs the server as much as this many lookups of a segment.
    pub(super) fn count_question(&mut self, now: Instant, lookups: u32, ledgers: &Ledgers) {
        self.questions.spend(now, lookups.into());
        self.assured.spend(now, lookups.into());
        ledgers.ask(now, lookups);
    }

    /// When the control stream may be read again, if not now.
    pub(super) fn resumes(&self, now: Instant, ledgers: &Ledgers) -> Option<Instant> {
        // A session with few queries takes no lock that it shares with its neighbours.
        let shared = self.assured.resumes(now).and_then(|_| ledgers.resumes(now));
        self.control
            .resumes(now)
            .max(self.questions.resumes(now))
            .max(shared)
    }
}

/// A burst, and then one in each interval.
#[derive(Debug)]
pub(super) struct Rate {
    burst: u32,
    every: Duration,
    /// When as many as have come would have come at the regular interval.
    at: Instant,
}

impl Rate {
    fn new(burst: u32, every: Duration, now: Instant) -> Self {
        Self {
            burst,
            every,
            at: now,
        }
    }

    /// Counts one, or returns when the next one may come.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let at = self.at.max(now) + self.every;
        let full = self.burst * self.every;
        if at > now + full {
            return Err(at.checked_sub(full).unwrap_or(now));
        }
        self.at = at;
        Ok(())
    }
}

/// A token bucket for control bytes, or for queries, with a depth of one second. The last read may
/// overdraw it.
#[derive(Debug)]
struct Budget {
    rate: u64,
    /// When the bucket is full again.
    full_at: Instant,
}

impl Budget {
    fn new(rate: u64, now: Instant) -> Self {
        Self {
            rate: rate.max(1),
            full_at: now,
        }
    }

    fn spend(&mut self, now: Instant, bytes: u64) {
        let micros = bytes.saturating_mul(1_000_000) / self.rate;
        self.full_at = self.full_at.max(now) + Duration::from_micros(micros);
    }

    /// When the bucket is not empty any more, if it is empty.
    fn resumes(&self, now: Instant) -> Option<Instant> {
        let empty_at = self.full_at.checked_sub(BUDGET_DEPTH)?;
        (empty_at > now).then_some(empty_at)
    }
}
