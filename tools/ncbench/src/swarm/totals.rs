//! What a swarm counts. Every thread has counters of its own, so that they do not wait for each
//! other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::playback::Seconds;

/// Counters of one thread, or the sum of all.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Viewers, however often each has tried.
    pub(super) asked: Counter,
    pub(super) served: Counter,
    pub(super) refused_viewers: Counter,
    pub(super) never_in: Counter,
    pub(super) unserved: Counter,
    pub(super) put_out: Counter,
    pub(super) put_out_times: Counter,
    /// How often viewers were let in, and how often it ended.
    pub(super) admitted: Counter,
    pub(super) gone: Counter,
    /// Time since viewers asked first, time of the segments that came in time, and the part of it
    /// that was still to be played when the viewer stopped; in microseconds.
    pub(super) wanted: Counter,
    pub(super) played: Counter,
    pub(super) unplayed: Counter,
    pub(super) played_bytes: Counter,
    pub(super) unplayed_bytes: Counter,
    /// Bytes of segments that came in time, by the second in which they are played.
    seconds: Mutex<Seconds>,
    pub(super) joined: Counter,
    pub(super) left: Counter,
    pub(super) refused: Counter,
    pub(super) failed: Counter,
    pub(super) sought: Counter,
    pub(super) on_time: Counter,
    pub(super) late: Counter,
    pub(super) verified: Counter,
    pub(super) corrupt: Counter,
    pub(super) rejected: Counter,
    pub(super) generations: Counter,
    pub(super) blocks: Counter,
    pub(super) useless: Counter,
    pub(super) bytes: Counter,
    pub(super) wire_bytes: Counter,
    /// How late the late ones were.
    pub(super) lateness: Spread,
    /// From a REQUEST to the first byte of its blocks.
    pub(super) first_block: Spread,
    /// From the first packet to the HELLO of the server.
    pub(super) joining: Spread,
    /// From a viewer's first attempt to its first whole segment.
    pub(super) first_segment: Spread,
    /// The same from the attempt on that was granted.
    pub(super) startup: Spread,
    /// From the first attempt to the first block, of viewers that were refused meanwhile.
    pub(super) waiting: Spread,
    /// Why connections failed, and how many for each reason.
    failures: Mutex<BTreeMap<String, u64>>,
}

/// What is counted, at a moment.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Snapshot {
    /// Viewers that have asked to be served, each once, however often it tried.
    pub asked: u64,
    /// Viewers that got at least one whole segment.
    pub served: u64,
    /// Viewers that were refused before they got anything.
    pub refused_viewers: u64,
    /// Those of them that never got anything.
    pub never_in: u64,
    /// Viewers that were not refused, or got something, but no whole segment. With those served and
    /// those never let in, these are all that asked.
    pub unserved: u64,
    /// Viewers that the server put out after it had served them a segment.
    pub put_out: u64,
    /// How often it did so.
    pub put_out_times: u64,
    /// How often viewers were let in: from a first block until they leave, fail or are put out.
    pub admitted: u64,
    /// How often that ended.
    pub gone: u64,
    /// Time from the first attempt to the end, of all viewers together, in microseconds.
    pub wanted_us: u64,
    /// Playing time of segments that came in time, in microseconds.
    pub played_us: u64,
    /// The part of it that lay ahead when viewers stopped.
    pub unplayed_us: u64,
    /// Bytes of segments that came in time.
    pub played_bytes: u64,
    /// The part of them that lay ahead when viewers stopped.
    pub unplayed_bytes: u64,
    /// Viewers that have joined, again after leaving included.
    pub joined: u64,
    /// Viewers that have left of their own accord.
    pub left: u64,
    /// Attempts that the server refused; of viewers that it had not served a segment since they
    /// were let in.
    pub refused: u64,
    /// Connections that failed or broke otherwise.
    pub failed: u64,
    /// Times that somebody went to another place of the stream.
    pub sought: u64,
    /// Segments that could be decoded in time.
    pub on_time: u64,
    /// Segments that could not.
    pub late: u64,
    /// Segments that were decoded, and were right.
    pub verified: u64,
    /// Segments that were decoded, and were wrong.
    pub corrupt: u64,
    /// Questions and requests that the server refused.
    pub rejected: u64,
    /// Generations of full rank.
    pub generations: u64,
    /// Blocks that came.
    pub blocks: u64,
    /// Blocks of no use, which depended on those held.
    pub useless: u64,
    /// Bytes of blocks.
    pub bytes: u64,
    /// Bytes of UDP that came, of connections that have ended.
    pub wire_bytes: u64,
}

impl Totals {
    /// A segment could be decoded now, or is given up. Whether it was in time.
    pub(super) fn count(&self, now: Instant, due: Instant) -> bool {
        let late = now.saturating_duration_since(due);
        if late.is_zero() {
            self.on_time.add(1);
        } else {
            self.late.add(1);
            self.lateness.add(late);
        }
        late.is_zero()
    }

    /// A segment of this length is played in this time, since the beginning of the run.
    pub(super) fn play(&self, bytes: u64, from: Duration, to: Duration) {
        self.played_bytes.add(bytes);
        self.played.add_time(to - from);
        self.seconds().add(bytes as f64, from, to);
    }

    /// These bytes of it are not played after all, in this time.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of the bytes of a segment"
    )]
    pub(super) fn drop_ahead(&self, bytes: f64, from: Duration, to: Duration) {
        self.unplayed_bytes.add(bytes.round() as u64);
        self.unplayed.add_time(to - from);
        self.seconds().add(-bytes, from, to);
    }

    /// Bytes that were played before this second of the run, and were not taken yet.
    pub(super) fn take_played(&self, before: u64) -> f64 {
        self.seconds().take(before)
    }

    fn seconds(&self) -> MutexGuard<'_, Seconds> {
        self.seconds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection has failed or broken, for this reason.
    pub(super) fn fail(&self, reason: String) {
        self.failed.add(1);
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let is_kept = failures.len() < REASONS_MAX || failures.contains_key(&reason);
        *failures
            .entry(if is_kept { reason } else { "others".to_owned() })
            .or_default() += 1;
    }

    /// Reasons for failures over all threads, and how often each came.
    pub(super) fn failures<'a>(all: impl IntoIterator<Item = &'a Self>) -> BTreeMap<String, u64> {
        let mut sum = BTreeMap::new();
        for each in all {
            for (reason, count) in each
                .failures
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
            {
                *sum.entry(reason.clone()).or_default() += count;
            }
        }
        sum
    }

    /// The sums over all threads.
    pub(super) fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Snapshot {
        let mut sum = Snapshot::default();
        for each in all {
            for (to, from) in [
                (&mut sum.asked, &each.asked),
                (&mut sum.served, &each.served),
                (&mut sum.refused_viewers, &each.refused_viewers),
                (&mut sum.never_in, &each.never_in),
                (&mut sum.unserved, &each.unserved),
                (&mut sum.put_out, &each.put_out),
                (&mut sum.put_out_times, &each.put_out_times),
                (&mut sum.admitted, &each.admitted),
                (&mut sum.gone, &each.gone),
                (&mut sum.wanted_us, &each.wanted),
                (&mut sum.played_us, &each.played),
                (&mut sum.unplayed_us, &each.unplayed),
                (&mut sum.played_bytes, &each.played_bytes),
                (&mut sum.unplayed_bytes, &each.unplayed_bytes),
                (&mut sum.joined, &each.joined),
                (&mut sum.left, &each.left),
                (&mut sum.refused, &each.refused),
                (&mut sum.failed, &each.failed),
                (&mut sum.sought, &each.sought),
                (&mut sum.on_time, &each.on_time),
                (&mut sum.late, &each.late),
                (&mut sum.verified, &each.verified),
                (&mut sum.corrupt, &each.corrupt),
                (&mut sum.rejected, &each.rejected),
                (&mut sum.generations, &each.generations),
                (&mut sum.blocks, &each.blocks),
                (&mut sum.useless, &each.useless),
                (&mut sum.bytes, &each.bytes),
                (&mut sum.wire_bytes, &each.wire_bytes),
            ] {
                *to += from.get();
            }
        }
        sum
    }
}

impl Snapshot {
    /// Viewers served over viewers that asked.
    pub fn served_share(&self) -> f64 {
        self.served as f64 / self.asked.max(1) as f64
    }

    /// What was played in time, as a share of what the viewers that asked would play from their
    /// first attempt on.
    pub fn played_share(&self) -> f64 {
        self.played_us.saturating_sub(self.unplayed_us) as f64 / self.wanted_us.max(1) as f64
    }

    /// Bytes of what was played in time.
    pub fn goodput_bytes(&self) -> u64 {
        self.played_bytes.saturating_sub(self.unplayed_bytes)
    }

    /// Viewers that are let in now.
    pub fn inside(&self) -> u64 {
        self.admitted.saturating_sub(self.gone)
    }
}

/// Reasons that a thread tells apart: a server may say what it likes.
const REASONS_MAX: usize = 16;

/// A number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds whole microseconds.
    pub(super) fn add_time(&self, time: Duration) {
        self.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX >> 1));
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How times spread: counted in steps of a quarter of an octave, from a microsecond on.
#[derive(Debug)]
pub(super) struct Spread([AtomicU64; STEPS]);

/// The times below which so many percent lie, in milliseconds, each at most a fifth too long.
#[derive(Debug, Default, Clone, Copy, Serialize, PartialEq)]
pub struct Percentiles {
    /// How many there were.
    pub count: u64,
    /// Half of them.
    pub p50_ms: f64,
    /// Nine of ten.
    pub p90_ms: f64,
    /// Ninety-nine of a hundred.
    pub p99_ms: f64,
    /// All of them.
    pub max_ms: f64,
}

impl Default for Spread {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; STEPS])
    }
}

impl Spread {
    pub(super) fn add(&self, time: Duration) {
        self.0[step(time)].fetch_add(1, Ordering::Relaxed);
    }

    /// Of several together.
    pub(super) fn percentiles<'a>(all: impl IntoIterator<Item = &'a Self>) -> Percentiles {
        let mut counts = [0; STEPS];
        for each in all {
            counts
                .iter_mut()
                .zip(&each.0)
                .for_each(|(count, more)| *count += more.load(Ordering::Relaxed));
        }
        let count: u64 = counts.iter().sum();
        let below = |share: f64| {
            let mut left = (count as f64 * share).ceil();
            let at = counts.iter().position(|here| {
                left -= *here as f64;
                left <= 0.0
            });
            if count == 0 {
                0.0
            } else {
                end(at.unwrap_or(STEPS - 1))
            }
        };
        Percentiles {
            count,
            p50_ms: below(0.5),
            p90_ms: below(0.9),
            p99_ms: below(0.99),
            max_ms: below(1.0),
        }
    }
}

/// Quarters of octaves of microseconds: up to half an hour.
const STEPS: usize = 124;
const PER_OCTAVE: f64 = 4.0;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small number of steps, none below zero"
)]
fn step(time: Duration) -> usize {
    let microseconds = (time.as_secs_f64() * 1e6).max(1.0);
    ((microseconds.log2() * PER_OCTAVE).floor() as usize).min(STEPS - 1)
}

/// Where a step ends, in milliseconds.
fn end(step: usize) -> f64 {
    ((step + 1) as f64 / PER_OCTAVE).exp2() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_off_by_a_fifth_at_most() {
        let (one, other) = (Spread::default(), Spread::default());
        for milliseconds in 1..=1000 {
            if milliseconds % 2 == 0 { &one } else { &other }
                .add(Duration::from_millis(milliseconds));
        }
        let found = Spread::percentiles([&one, &other]);
        assert_eq!(found.count, 1000);
        for (found, right) in [
            (found.p50_ms, 500.0),
            (found.p90_ms, 900.0),
            (found.p99_ms, 990.0),
            (found.max_ms, 1000.0),
        ] {
            assert!(
                (right..=right * 1.2).contains(&found),
                "{found} for {right}"
            );
        }
        assert_eq!(
            Spread::percentiles([&Spread::default()]),
            Percentiles::default()
        );
        one.add(Duration::MAX);
        one.add(Duration::ZERO);
    }

    #[test]
    fn goodput_is_what_is_played_in_time() {
        let sum = Snapshot {
            asked: 4,
            served: 3,
            wanted_us: 40_000_000,
            played_us: 30_000_000,
            unplayed_us: 10_000_000,
            played_bytes: 3_000_000,
            unplayed_bytes: 1_000_000,
            ..Snapshot::default()
        };
        assert_eq!((sum.served_share(), sum.played_share()), (0.75, 0.5));
        assert_eq!(sum.goodput_bytes(), 2_000_000);
        let none = Snapshot::default();
        assert_eq!((none.served_share(), none.played_share()), (0.0, 0.0));
    }

    #[test]
    fn sums_are_over_all_threads() {
        let (one, other) = (Totals::default(), Totals::default());
        one.blocks.add(3);
        other.blocks.add(4);
        other.late.add(1);
        assert_eq!(
            Totals::sum([&one, &other]),
            Snapshot {
                blocks: 7,
                late: 1,
                ..Snapshot::default()
            }
        );
    }
}
