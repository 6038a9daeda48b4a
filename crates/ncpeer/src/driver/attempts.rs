//! Attempts to connect to one server: their schedule, and those in progress.
//!
//! A silent server may return at any moment. So another attempt begins, beside those in progress,
//! after an eighth of the time that it has been silent: recovery is late by at most an eighth of
//! the outage, and a long outage costs few packets. A server that answers and refuses gets longer
//! and longer pauses. After a refused handshake they are those that the server tells; where it
//! tells no time, they are random, so that a crowd does not return together.

use std::future::pending;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, select_all};

/// Attempts at a time. The oldest may take the full time, for slow paths. The others make way for
/// newer ones, so that one is always young: QUIC repeats its first packet at doubling intervals.
const ATTEMPTS_MAX: usize = 4;
/// Consecutive connections with violations before a server gets a pause, and the length of it.
const BREACHES_MAX: u32 = 2;
const REST: Duration = Duration::from_secs(60);
/// The minimum pause between attempts.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The bound of the random pause after a refused handshake: the first, which doubles, and the last.
const REFUSED_MIN: Duration = Duration::from_millis(500);
const REFUSED_MAX: Duration = Duration::from_secs(30);
/// The longest pause that a server may tell.
const TOLD_MAX: Duration = Duration::from_secs(60);
/// The pause between attempts at a server that requires a missing token, while there are no
/// requests: first and maximum.
const AWAY_MIN: Duration = Duration::from_secs(10);
const AWAY_MAX: Duration = Duration::from_secs(60);

/// An error of an attempt.
pub(super) trait Answered {
    /// Whether the server has answered, and refused.
    fn is_answered(&self) -> bool;

    /// When to come again, if the server has told.
    fn retry_after(&self) -> Option<Duration>;
}

/// The attempts at one server.
pub(super) struct Attempts<T, E> {
    running: Vec<BoxFuture<'static, Result<T, E>>>,
    /// Since when the server has been silent.
    since: Instant,
    next_at: Instant,
    /// The number of attempts so far.
    begun: usize,
    /// Consecutive refusals.
    refusals: u32,
    /// Consecutive violations, and whether the server is paused for them.
    breaches: u32,
    rests: bool,
    /// Consecutive rejections of this side, and when the next attempt begins if there are requests.
    away: u32,
    wanted_at: Option<Instant>,
    rtt: Option<Duration>,
    /// The pause while no round trip is known.
    pause_unknown: Duration,
    pause_max: Duration,
}

impl<T, E: Answered> Attempts<T, E> {
    /// The first attempt begins at once.
    pub(super) fn new(now: Instant, pause_unknown: Duration, pause_max: Duration) -> Self {
        Self {
            running: Vec::new(),
            since: now,
            next_at: now,
            begun: 0,
            refusals: 0,
            breaches: 0,
            rests: false,
            away: 0,
            wanted_at: None,
            rtt: None,
            pause_unknown,
            pause_max,
        }
    }

    /// The round trip to the server may be like this.
    pub(super) fn set_rtt(&mut self, rtt: Option<Duration>) {
        self.rtt = rtt;
    }

    /// After a time without attempts, the first one begins at once.
    pub(super) fn begin_anew(&mut self, now: Instant) {
        (self.since, self.next_at, self.refusals) = (now, now, 0);
    }

    /// The server has been silent since `since`; an attempt is due.
    pub(super) fn silent(&mut self, now: Instant, since: Instant, rtt: Duration) {
        (self.since, self.next_at, self.rtt) = (
            since,
            now + PAUSE_MIN.mul_f64(rand::random_range(0.0..0.5)),
            Some(rtt),
        );
    }

    /// The server has refused a handshake, and may have told when to come again. Other attempts go
    /// on: one of them may have been let in.
    fn turned_back(&mut self, now: Instant, retry_after: Option<Duration>) {
        if let Some(pause) = retry_after {
            self.refusals += 1;
            self.next_at = self.next_at.max(now + pause.clamp(PAUSE_MIN, TOLD_MAX));
            return;
        }
        let bound = (REFUSED_MIN * (1 << self.refusals.min(16))).min(REFUSED_MAX);
        self.refusals += 1;
        let pause = bound.mul_f64(rand::random_range(0.0..1.0)).max(PAUSE_MIN);
        self.next_at = self.next_at.max(now + pause);
    }

    /// The server has ended a connection.
    pub(super) fn refused(&mut self, now: Instant) {
        self.refusals += 1;
        let shift = (self.refusals - 1).min(16);
        let pause = (PAUSE_MIN * (1 << shift)).min(self.pause_max);
        self.next_at = self.next_at.max(now + spread(pause));
    }

    /// The server has violated the protocol. A repetition is likely, and costs both sides a
    /// handshake.
    pub(super) fn breached(&mut self, now: Instant) {
        self.breaches += 1;
        if self.breaches >= BREACHES_MAX {
            self.cancel();
            (self.rests, self.next_at) = (true, now + REST);
        }
    }

    /// Whether the server is paused for violations.
    pub(super) fn is_resting(&self) -> bool {
        self.rests
    }

    /// The server has closed a connection because this side is not authorised: try rarely until
    /// there are requests.
    pub(super) fn turned_away(&mut self, now: Instant) {
        self.wanted_at = Some(now + spread(PAUSE_MIN));
        self.next_at = now + spread((AWAY_MIN * (1 << self.away.min(8))).min(AWAY_MAX));
        self.away += 1;
    }

    /// There are requests for the server.
    pub(super) fn wanted(&mut self) {
        if let Some(at) = self.wanted_at.take() {
            self.next_at = self.next_at.min(at);
        }
    }

    /// The server accepts connections and keeps them.
    pub(super) fn welcome(&mut self) {
        (self.refusals, self.breaches, self.away) = (0, 0, 0);
    }

    /// Cancels all attempts.
    pub(super) fn cancel(&mut self) {
        self.running.clear();
        self.wanted_at = None;
    }

    /// The result of the next finished attempt; `begin` starts one, given its number. Success ends
    /// the others. Cancel-safe.
    pub(super) async fn next(
        &mut self,
        begin: impl Fn(usize) -> BoxFuture<'static, Result<T, E>>,
    ) -> Result<T, E> {
        loop {
            tokio::select! {
                outcome = any(&mut self.running) => {
                    match &outcome {
                        Ok(_) => self.cancel(),
                        Err(error) if error.is_answered() => {
                            self.turned_back(Instant::now(), error.retry_after());
                        }
                        Err(_) => {}
                    }
                    return outcome;
                }
                () = tokio::time::sleep_until(self.next_at.into()) => {
                    if self.running.len() >= ATTEMPTS_MAX {
                        drop(self.running.remove(1));
                    }
                    self.rests = false;
                    self.running.push(begin(self.begun));
                    self.begun = self.begun.wrapping_add(1);
                    let now = Instant::now();
                    let least = least(self.rtt, self.pause_unknown);
                    self.next_at = now
                        + spread(pause(
                            now.saturating_duration_since(self.since),
                            least,
                            self.pause_max,
                        ));
                }
            }
        }
    }
}

/// The pause between attempts while a server is silent.
fn pause(outage: Duration, least: Duration, most: Duration) -> Duration {
    (outage / 8).max(least).min(most.max(PAUSE_MIN))
}

/// The earlier attempt may still succeed within a few round trips.
fn least(rtt: Option<Duration>, unknown: Duration) -> Duration {
    rtt.map_or(unknown, |rtt| (rtt * 3).max(PAUSE_MIN))
}

/// Varies a pause by a tenth, so that a server's clients do not all return at once.
fn spread(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.9..1.1))
}

/// The first finished one; waits forever without any.
async fn any<T>(running: &mut Vec<BoxFuture<'static, T>>) -> T {
    if running.is_empty() {
        return pending().await;
    }
    let (outcome, index, _) = select_all(running.iter_mut()).await;
    drop(running.remove(index));
    outcome
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[derive(Debug)]
    struct No(bool);

    impl Answered for No {
        fn is_answered(&self) -> bool {
            self.0
        }

        fn retry_after(&self) -> Option<Duration> {
            None
        }
    }

    #[test]
    fn a_refused_client_comes_again_when_it_was_told() {
        let now = Instant::now();
        for (told, pause) in [(12_345, 12_345), (0, 100), (3_600_000, 60_000)] {
            let mut attempts = Attempts::<(), No>::new(now, 1000 * MS, 8000 * MS);
            attempts.running.push(pending().boxed());
            attempts.turned_back(now, Some(told * MS));
            assert_eq!(attempts.next_at, now + pause * MS);
            assert_eq!(attempts.running.len(), 1);
        }
    }

    #[test]
    fn pauses_grow_with_the_outage() {
        let least = |rtt: Option<u32>| least(rtt.map(|rtt| rtt * MS), 1000 * MS);
        let pause = |outage: u32, rtt: Option<u32>| pause(outage * MS, least(rtt), 8000 * MS);
        assert_eq!(pause(0, Some(1)), 100 * MS);
        assert_eq!(pause(4000, Some(1)), 500 * MS);
        assert_eq!(pause(600_000, Some(1)), 8000 * MS);
        assert_eq!(pause(0, Some(200)), 600 * MS, "a path that is slow");
        assert_eq!(pause(0, None), 1000 * MS);
    }

    #[test]
    fn a_server_that_breaks_the_rules_twice_in_a_row_is_left_alone() {
        let now = Instant::now();
        let mut attempts: Attempts<(), No> = Attempts::new(now, 1000 * MS, 8000 * MS);
        attempts.breached(now);
        attempts.welcome();
        attempts.breached(now);
        assert!(
            !attempts.is_resting(),
            "there was a good connection between them"
        );
        attempts.breached(now);
        assert!(attempts.is_resting() && attempts.next_at == now + REST);
    }

    /// Runs attempts on a virtual clock; returns when each began.
    async fn begun(attempts: &mut Attempts<(), No>, answered: bool, for_ms: u32) -> Vec<u128> {
        let (start, begun) = (
            tokio::time::Instant::now(),
            std::cell::RefCell::new(Vec::new()),
        );
        let begin = |_| {
            begun.borrow_mut().push(start.elapsed().as_millis());
            async move {
                if !answered {
                    pending::<()>().await;
                }
                Err(No(true))
            }
            .boxed()
        };
        let all = async {
            loop {
                drop(attempts.next(begin).await);
            }
        };
        let _: Result<std::convert::Infallible, _> = tokio::time::timeout(for_ms * MS, all).await;
        begun.into_inner()
    }

    #[test]
    fn a_server_that_turns_away_is_tried_seldom_until_something_is_wanted() {
        let now = Instant::now();
        let mut attempts = Attempts::<(), No>::new(now, 1000 * MS, 8000 * MS);
        for seconds in [10, 20, 40, 60, 60] {
            attempts.turned_away(now);
            let (least, most) = (now + seconds * 900 * MS, now + seconds * 1100 * MS);
            assert!((least..=most).contains(&attempts.next_at), "{seconds} s");
        }
        attempts.wanted();
        assert!(attempts.next_at <= now + 110 * MS);
        attempts.next_at = now + 5000 * MS;
        attempts.wanted();
        assert_eq!(attempts.next_at, now + 5000 * MS, "once");
        attempts.welcome();
        attempts.turned_away(now);
        assert!(attempts.next_at <= now + 11_000 * MS);
    }

    #[test]
    fn pauses_after_refused_handshakes_are_random_below_a_bound_that_doubles() {
        let now = Instant::now();
        let mut longest = [Duration::ZERO; 8];
        for _ in 0..200 {
            let mut attempts = Attempts::<(), No>::new(now, 1000 * MS, 8000 * MS);
            for longest in &mut longest {
                attempts.next_at = now;
                attempts.turned_back(now, None);
                let pause = attempts.next_at - now;
                assert!(pause >= PAUSE_MIN);
                *longest = pause.max(*longest);
            }
        }
        for (longest, bound) in longest
            .into_iter()
            .zip([500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000])
        {
            let bound = bound * MS;
            assert!(
                (bound / 2..bound).contains(&longest),
                "{longest:?} of {bound:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_silent_server_is_tried_often_and_one_that_refuses_seldom() {
        let now = Instant::now();
        let mut attempts = Attempts::new(now, 1000 * MS, 8000 * MS);
        attempts.silent(now, now, MS);
        let silent = begun(&mut attempts, false, 1000).await;
        assert!(
            silent.len() >= 2 && attempts.running.len() <= ATTEMPTS_MAX,
            "{silent:?}"
        );
        attempts.cancel();
        attempts.silent(now, now, MS);
        let refused = begun(&mut attempts, true, 1000).await;
        assert!(refused.len() <= 5, "{refused:?}");
        assert!(attempts.refusals > 0);
        attempts.welcome();
        assert_eq!(attempts.refusals, 0);
    }
}
