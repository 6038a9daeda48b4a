//! One line for all connections of an endpoint: an estimate of its rate, and turns to send.
//!
//! A viewer that serves others sends to ten of them at once, often over a line of a megabit a
//! second. The congestion controller of each connection keeps at least three packets in flight. All
//! together, these are more than such a line holds: its queue is always full, and what the viewer
//! sends for itself, its requests and acknowledgements, waits and is lost there, too. So the
//! connections of such an endpoint take turns, at the rate of the line.
//!
//! **The estimate.** The queueing delay of a connection is its shortest round trip of a span of
//! time, less its shortest one of the last seconds ([`Floor`]). That of the line is the median over
//! the connections, by the bytes of each: a peer may have a slow line itself. Until it exceeds
//! [`TARGET`] for several spans, nothing is limited. From then on, a span with a queue in which
//! most turns had to wait tells what the line carries: as much as was acknowledged. Where the queue
//! is short although somebody waited, the line carries more. Sending is a little slower than that
//! while the queue exceeds the target, so that it empties. What other programs send over the line
//! counts as queue, too, so they go first, as with LEDBAT (RFC 6817), whose target is also a
//! constant delay. If the queue was never short for [`EMPTIED_EVERY`], sending pauses until it is
//! empty: otherwise it would become the shortest round trip (as in LEDBAT++,
//! draft-irtf-iccrg-ledbat-plus-plus, section 4.4).
//!
//! **Turns.** Who asks first sends first, a [`portion`](Uplink::portion) at a time: what the line
//! carries in [`TURN`], but at least a block. So the packets of a connection leave together, and
//! the queue stays short.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::congestion::Floor;

#[cfg(test)]
mod tests;

/// The line that all connections of an endpoint share.
#[derive(Debug, Clone, Default)]
pub struct Uplink(Arc<Line>);

#[derive(Debug, Default)]
struct Line {
    estimate: Mutex<Estimate>,
    /// When everything sent so far will have left. Its lock is the queue: who has it is next.
    free_at: tokio::sync::Mutex<Option<Instant>>,
}

impl Uplink {
    /// A line whose rate is unknown.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that leave in one turn; `None` as long as nothing is limited.
    pub fn portion(&self) -> Option<u64> {
        let rate = self.0.estimate().rate?;
        Some(bytes(rate * TURN.as_secs_f64()))
    }

    /// Waits until this many bytes may leave, after those of all who asked before. Dropping the
    /// future gives up the place in the queue.
    pub async fn free(&self, bytes: u64) {
        let mut free_at = self.0.free_at.lock().await;
        let now = Instant::now();
        let begins = free_at.map_or(now, |at| at.max(now));
        let waits = begins.saturating_duration_since(now + EARLY);
        if !waits.is_zero() {
            tokio::time::sleep(waits).await;
        }
        let mut estimate = self.0.estimate();
        estimate.turns += 1;
        estimate.waited += u32::from(begins > now);
        let takes = estimate.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(bytes as f64 / rate)
        });
        let takes = takes + std::mem::take(&mut estimate.pause);
        // A turn that a timer has made late does not leave the line idle.
        *free_at = Some(begins.max(Instant::now() - EARLY) + takes);
    }

    /// A new connection over the line.
    pub(super) fn member(&self) -> Member {
        let mut estimate = self.0.estimate();
        estimate.members += 1;
        Member {
            line: Arc::clone(&self.0),
            number: estimate.members,
            floor: Floor::default(),
        }
    }
}

impl Line {
    fn estimate(&self) -> MutexGuard<'_, Estimate> {
        self.estimate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection over the line, and its shortest round trips.
#[derive(Debug, Clone)]
pub(super) struct Member {
    line: Arc<Line>,
    number: u64,
    floor: Floor,
}

impl Member {
    /// A packet of this many bytes, sent at `sent`, was acknowledged.
    pub(super) fn acked(&mut self, now: Instant, sent: Instant, bytes: u64) {
        let round_trip = now.saturating_duration_since(sent);
        self.floor.add(now, round_trip);
        let queue = round_trip.saturating_sub(self.floor.get().unwrap_or_default());
        self.line.estimate().acked(now, self.number, bytes, queue);
    }
}

/// What is known of the line. Rates are in bytes a second.
#[derive(Debug, Default)]
struct Estimate {
    /// The rate at which turns follow each other.
    rate: Option<f64>,
    /// What the line carries.
    carries: Option<f64>,
    /// As long as that is unknown: the spans in a row with a queue, and the most that one carried.
    queued: (u32, f64),
    /// By what part it was raised in the last span.
    growth: f64,
    /// How long the next turn is to wait in addition, so that the queue empties.
    pause: Duration,
    /// When the queue was last short, or emptied.
    emptied: Option<Instant>,
    /// Whether the present span contains a pause.
    has_pause: bool,
    /// The connections so far.
    members: u64,
    /// The present span: its beginning, and the bytes and packets acknowledged.
    since: Option<Instant>,
    acked: u64,
    packets: u32,
    /// Of each connection in it: the shortest queueing delay, and the bytes.
    queues: BTreeMap<u64, (Duration, u64)>,
    /// The turns in it, and those that had to wait.
    turns: u32,
    waited: u32,
}

impl Estimate {
    fn acked(&mut self, now: Instant, member: u64, bytes: u64, queue: Duration) {
        let mut span = now.saturating_duration_since(*self.since.get_or_insert(now));
        if span > SPAN_MAX {
            // Nothing was sent for long.
            self.emptied = Some(now);
            self.begin(now);
            span = Duration::ZERO;
        }
        self.acked += bytes;
        self.packets += 1;
        let (shortest, of_member) = self.queues.entry(member).or_insert((queue, 0));
        *shortest = queue.min(*shortest);
        *of_member += bytes;
        if span >= SPAN && self.packets >= PACKETS_MIN {
            if !std::mem::take(&mut self.has_pause) {
                self.judge(now, span);
            }
            self.begin(now);
        }
    }

    fn begin(&mut self, now: Instant) {
        (self.since, self.acked, self.packets) = (Some(now), 0, 0);
        (self.turns, self.waited) = (0, 0);
        self.queues.clear();
    }

    /// The queueing delay of the line.
    fn queue(&self) -> Duration {
        let mut queues: Vec<(Duration, u64)> = self.queues.values().copied().collect();
        queues.sort_unstable();
        let mut left = self.acked / 2;
        let median = queues.iter().find(|(_, bytes)| {
            let is_median = left <= *bytes;
            left = left.saturating_sub(*bytes);
            is_median
        });
        median.map_or(Duration::ZERO, |(queue, _)| *queue)
    }

    /// Learns from a span.
    fn judge(&mut self, now: Instant, span: Duration) {
        let queue = self.queue();
        let carried = (self.acked as f64 / span.as_secs_f64()).max(RATE_MIN);
        let Some(carries) = self.carries else {
            self.queued = match self.queued {
                _ if queue <= TARGET => (0, 0.0),
                (spans, most) => (spans + 1, carried.max(most)),
            };
            if self.queued.0 == SPANS_FIRST {
                self.carries = Some(self.queued.1);
                self.rate = Some(self.queued.1 * (1.0 - SLOWER_FIRST));
            }
            return;
        };
        let is_queued = queue > TARGET / 2;
        let is_full = self.waited * 4 > self.turns * 3;
        let carries = match (is_queued, is_full) {
            (true, true) => carries + (carried - carries) * WEIGHT,
            (true, false) => carries.max(carried),
            (false, _) if self.waited > 0 => {
                self.growth = (self.growth + GROWTH).min(GROWTH_MAX);
                carries * (1.0 + self.growth)
            }
            (false, _) => carries,
        };
        if is_queued {
            self.growth = 0.0;
        }
        let slower = (queue.as_secs_f64() - TARGET.as_secs_f64()) / EMPTIES.as_secs_f64();
        let slower = slower.clamp(-FASTER_MAX, SLOWER_MAX);
        (self.carries, self.rate) = (
            Some(carries),
            Some((carries * (1.0 - slower)).max(RATE_MIN)),
        );
        let emptied = *self.emptied.get_or_insert(now);
        if !is_queued {
            self.emptied = Some(now);
        } else if emptied + EMPTIED_EVERY <= now {
            self.emptied = Some(now);
            (self.pause, self.has_pause) = (queue + TARGET, true);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positive, and far below 2^53"
)]
const fn bytes(count: f64) -> u64 {
    count as u64
}

/// What the line carries in this time leaves in one turn: at a megabit a second, four packets.
const TURN: Duration = Duration::from_millis(40);
/// A turn begins this long before the one before it has left: timers are late.
const EARLY: Duration = Duration::from_millis(10);
/// The queueing delay that is aimed at. It contains what the peer's line adds to its
/// acknowledgements, and the 25 ms for which it may delay them.
const TARGET: Duration = Duration::from_millis(50);
/// A queue beyond the target empties in this time, if neither of these is exceeded.
const EMPTIES: Duration = Duration::from_millis(500);
const SLOWER_MAX: f64 = 0.2;
const FASTER_MAX: f64 = 0.02;
/// A queue limits sending for the first time after so many spans, and how much slower it becomes.
const SPANS_FIRST: u32 = 3;
const SLOWER_FIRST: f64 = 0.1;
/// At least this often the queue is short. [`Floor`] remembers twice as long.
const EMPTIED_EVERY: Duration = Duration::from_secs(5);
/// A span lasts this long at least, and has so many packets. A longer one had nothing to send.
const SPAN: Duration = Duration::from_millis(100);
const SPAN_MAX: Duration = Duration::from_secs(1);
const PACKETS_MIN: u32 = 8;
/// The weight of a span in what the line carries.
const WEIGHT: f64 = 1.0 / 8.0;
/// The growth in a span with a short queue, more in each that follows.
const GROWTH: f64 = 0.01;
const GROWTH_MAX: f64 = 0.3;
/// The rate is never less, in bytes a second.
const RATE_MIN: f64 = 16e3;
