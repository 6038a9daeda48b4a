//! Which part of the sent bytes goes to sessions that take much more than most.
//!
//! A download takes what the server has left, and a few of them occupy all threads. That is no
//! reason to let a viewer wait: a download shares with whoever comes. So what a session takes
//! beyond [`MOST`] times the mean does not count as load. The mean is that of sessions while they
//! receive, and takes no session for more than this maximum, so that one download does not raise
//! it.
//!
//! Sessions report their own rates, about every two seconds while they receive. Nothing here walks
//! over sessions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The multiple of the mean rate up to which a session's bytes count. The best quality of a video
/// takes 5 to 20 times the rate of its worst, and only few watch the worst.
const MOST: f64 = 16.0;
/// The shortest time over which a session reports its rate: players fetch a segment in a burst, and
/// segments take 2 s and more.
const REPORT_AFTER: Duration = Duration::from_secs(2);
/// The time over which reports are averaged.
const MEMORY: Duration = Duration::from_secs(4);

/// What sessions have reported.
#[derive(Debug)]
pub(super) struct Reports {
    /// The rate up to which bytes count, in bytes per second.
    most: AtomicU64,
    /// Since the last [`Shares::note`]: bytes sent, those of them that count, and the sessions'
    /// time in microseconds.
    sent: AtomicU64,
    counted: AtomicU64,
    micros: AtomicU64,
}

impl Default for Reports {
    fn default() -> Self {
        Self {
            most: AtomicU64::new(u64::MAX),
            sent: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            micros: AtomicU64::new(0),
        }
    }
}

/// The bytes of one session that it has not reported yet.
#[derive(Debug, Default)]
pub(super) struct Unreported {
    since: Option<Instant>,
    bytes: u64,
}

impl Unreported {
    /// Adds bytes that are sent now.
    pub(super) fn add(&mut self, now: Instant, bytes: u64, reports: &Reports) {
        let since = *self.since.get_or_insert(now);
        let passed = now.saturating_duration_since(since);
        if passed >= REPORT_AFTER {
            let most = reports.most.load(Ordering::Relaxed) as f64 * passed.as_secs_f64();
            let counted = whole((self.bytes as f64).min(most));
            reports.sent.fetch_add(self.bytes, Ordering::Relaxed);
            reports.counted.fetch_add(counted, Ordering::Relaxed);
            let micros = whole(passed.as_secs_f64() * 1e6);
            reports.micros.fetch_add(micros, Ordering::Relaxed);
            *self = Self {
                since: Some(now),
                bytes: 0,
            };
        }
        self.bytes += bytes;
    }
}

/// Means of reports.
#[derive(Debug, Default)]
pub(super) struct Shares {
    sent: f64,
    counted: f64,
    seconds: f64,
}

impl Shares {
    /// Takes the reports of this time. Returns the share of the sent bytes that counts as load, 0
    /// to 1; one if nothing was reported.
    pub(super) fn note(&mut self, passed: Duration, reports: &Reports) -> f64 {
        let weight = 1.0 - (-passed.as_secs_f64() / MEMORY.as_secs_f64()).exp();
        let take = |mean: &mut f64, total: &AtomicU64| {
            *mean += (total.swap(0, Ordering::Relaxed) as f64 - *mean) * weight;
        };
        take(&mut self.sent, &reports.sent);
        take(&mut self.counted, &reports.counted);
        take(&mut self.seconds, &reports.micros);
        if self.sent < 1.0 || self.seconds < 1.0 {
            return 1.0;
        }
        let mean = self.counted / (self.seconds / 1e6);
        // A mean that has become zero would never rise again.
        let most = whole((MOST * mean).max(1.0));
        reports.most.store(most, Ordering::Relaxed);
        (self.counted / self.sent).clamp(0.0, 1.0)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(20);

    /// The counted share after 30 s in which sessions send at these rates, in bytes a second, each
    /// in a burst every two seconds.
    fn share(rates: &[u64]) -> f64 {
        let (reports, mut shares) = (Reports::default(), Shares::default());
        let mut sessions: Vec<_> = rates.iter().map(|_| Unreported::default()).collect();
        let begun = Instant::now();
        let mut share = 1.0;
        for look in 0..1500 {
            let now = begun + look * LOOK;
            if look % 100 == 0 {
                for (session, rate) in sessions.iter_mut().zip(rates) {
                    session.add(now, 2 * rate, &reports);
                }
            }
            share = shares.note(LOOK, &reports);
        }
        share
    }

    #[test]
    fn what_one_takes_beyond_the_others_does_not_count() {
        let with_download = |viewers, download| {
            let mut rates = vec![100_000; viewers];
            rates.push(download);
            share(&rates)
        };
        let of = with_download(1000, 400_000_000);
        assert!((0.18..0.22).contains(&of), "a fifth is for viewers: {of}");
        assert!(with_download(1000, 1_000_000) > 0.99);
        assert!(with_download(10, 400_000_000) > 0.99, "too few to tell");
    }

    #[test]
    fn sessions_at_one_rate_count_in_full_and_so_do_qualities_of_one_video() {
        assert!(share(&[100_000; 50]) > 0.99);
        assert!(share(&[400_000_000; 3]) > 0.99);
        let mut rates = vec![90_000; 90];
        rates.extend([1_000_000; 10]);
        assert!(share(&rates) > 0.99);
        assert!((share(&[]) - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn a_mean_that_was_low_follows_rates_that_rise() {
        let (reports, mut shares) = (Reports::default(), Shares::default());
        let mut sessions: Vec<_> = (0..50).map(|_| Unreported::default()).collect();
        let begun = Instant::now();
        let mut share = 1.0;
        for look in 0..3000u32 {
            let rate = if look < 1000 { 10 } else { 1_000_000 };
            if look % 100 == 0 {
                for session in &mut sessions {
                    session.add(begun + look * LOOK, 2 * rate, &reports);
                }
            }
            share = shares.note(LOOK, &reports);
        }
        assert!(share > 0.95, "{share}");
    }
}
