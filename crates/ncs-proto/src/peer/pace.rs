//! Measurements of the path to one source (round trip, loss, rate), and what follows for credit.

use std::time::Duration;

use crate::object::Generation;
use crate::time::Instant;

/// The round trip before the first measurement.
const RTT_START: Duration = Duration::from_millis(100);
/// Below this a timer tells more about this machine than about the path.
const RTT_FLOOR: Duration = Duration::from_millis(1);
/// Silence may last 1.5 round trips and this long: the sender encodes in batches and serves others.
const SERVICE_TIME: Duration = Duration::from_millis(30);
/// Number of silences after which they stop growing: the longest is eight times the first.
pub(super) const SILENCES_MAX: u32 = 3;
/// Losses above this are taken as this when credit is given ahead of them.
const LOSS_MAX: f64 = 0.25;
/// A queue exists where round trips exceed the shortest one by this, and by this share of it: more
/// than congestion control by delay leaves, and more than timers and drivers add.
const QUEUE: Duration = Duration::from_millis(10);
const QUEUE_SHARE: u32 = 8;
/// The shortest round trip is forgotten over this long: a queue that lasts for seconds is still a
/// queue.
const RTT_MEMORY: f64 = 60.0;
/// Blocks over which the loss rate is smoothed.
const LOSS_MEMORY: f64 = 100.0;
/// Bytes that a processor multiplies and adds in a second, at least, with byte shuffles of 128
/// bits.
const PRODUCTS: f64 = 2e10;
/// How many multiplications have to fit into the time that is left after the last block. One takes
/// longer when the machine has other work.
const SLACK: f64 = 4.0;
/// The cost of processing payloads as they come, in multiplications of all of them at once: up to
/// four were measured.
const DRAGGING: f64 = 5.0;
/// How likely it is that enough blocks come of those that [`covering`] requests.
const COVERED: f64 = 15.0 / 16.0;
/// Silences in a row that losses alone cause with at least this probability say nothing about the
/// sender.
const SILENCES_LOST: f64 = 0.01;
/// Weight of one round trip that is longer than the smoothed one.
const RTT_WEIGHT: u32 = 8;
/// No estimate of a time exceeds this, in seconds.
const TIME_MAX: f64 = 3600.0;
/// Credit in flight, in multiples of what the path holds. At 20 % of loss a generation takes four
/// or five round trips, and much of its credit is for lost blocks that are not known to be lost, or
/// for blocks on a stream behind lost packets. Unused credit costs nothing: the sender's congestion
/// control fills the path.
const WINDOW_PATHS: f64 = 8.0;
/// The rate of a path, in bytes a second, as long as no path has been measured.
pub(super) const RATE_ASSUMED: f64 = 1e6;
/// The rate is measured over at least this long.
const RATE_SPAN: Duration = Duration::from_millis(20);

/// Round trip, loss and rate of one path.
#[derive(Debug)]
pub(super) struct Pace {
    rtt: Duration,
    rtt_from: RttFrom,
    /// The shortest one that was measured, slowly forgotten.
    rtt_min: Option<Duration>,
    loss: f64,
    /// The part of it that occurred while a queue existed.
    queue_loss: f64,
    rate: f64,
    span_from: Option<Instant>,
    span_bytes: u64,
}

/// Who has measured the round trip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RttFrom {
    Nobody,
    Blocks,
    Quic,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            rtt: RTT_START,
            rtt_from: RttFrom::Nobody,
            rtt_min: None,
            loss: 0.0,
            queue_loss: 0.0,
            rate: 0.0,
            span_from: None,
            span_bytes: 0,
        }
    }

    /// The smoothed round trip, as QUIC measures it.
    pub(super) fn set_rtt(&mut self, rtt: Duration) {
        if self.rtt_from != RttFrom::Quic {
            (self.rtt_from, self.rtt_min) = (RttFrom::Quic, None);
        }
        self.take_rtt(rtt);
    }

    /// An answer has come so long after its question: the round trip is not longer. It counts where
    /// QUIC does not tell its own, as in a browser. A shorter one is taken at once. A longer one is
    /// smoothed, and left out if the sender `was_busy` with other things.
    pub(super) fn answered(&mut self, after: Duration, was_busy: bool) {
        let rtt = match self.rtt_from {
            RttFrom::Quic => return,
            RttFrom::Nobody => after,
            RttFrom::Blocks if after <= self.rtt => after,
            RttFrom::Blocks if was_busy => return,
            RttFrom::Blocks => self.rtt + (after - self.rtt) / RTT_WEIGHT,
        };
        self.rtt_from = RttFrom::Blocks;
        self.take_rtt(rtt);
    }

    fn take_rtt(&mut self, rtt: Duration) {
        self.rtt = rtt.max(RTT_FLOOR);
        self.rtt_min = Some(self.rtt_min().min(self.rtt));
    }

    /// The smoothed round trip.
    pub(super) fn rtt(&self) -> Duration {
        self.rtt
    }

    /// The round trip, if it was measured.
    pub(super) fn measured_rtt(&self) -> Option<Duration> {
        (self.rtt_from != RttFrom::Nobody).then_some(self.rtt)
    }

    /// The shortest round trip: a queue that this side's own requests fill must not enlarge its
    /// window.
    fn rtt_min(&self) -> Duration {
        self.rtt_min.unwrap_or(self.rtt)
    }

    /// Share of the datagrams that are lost.
    pub(super) fn loss(&self) -> f64 {
        self.loss
    }

    /// The part of the loss that the path itself causes. Losses to a full queue are left out: more
    /// blocks would be lost there too, or would displace others.
    pub(super) fn path_loss(&self) -> f64 {
        (self.loss - self.queue_loss).max(0.0)
    }

    /// Bytes a second that arrive.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// A block has come.
    pub(super) fn arrived(&mut self, now: Instant, bytes: usize) {
        self.loss -= self.loss / LOSS_MEMORY;
        self.queue_loss -= self.queue_loss / LOSS_MEMORY;
        let from = *self.span_from.get_or_insert(now);
        self.span_bytes += bytes as u64;
        let span = now.saturating_duration_since(from);
        if span >= RATE_SPAN.max(self.rtt_min()) {
            self.close_span(now, span);
        }
    }

    /// Datagrams were given up.
    pub(super) fn lost(&mut self, datagrams: u64) {
        let to_queue = f64::from(u8::from(self.is_queued()));
        for _ in 0..datagrams {
            self.loss += (1.0 - self.loss) / LOSS_MEMORY;
            self.queue_loss += (to_queue - self.queue_loss) / LOSS_MEMORY;
        }
    }

    /// Whether packets wait on the way, so that a queue may be full.
    fn is_queued(&self) -> bool {
        let shortest = self.rtt_min();
        self.rtt > shortest + QUEUE.max(shortest / QUEUE_SHARE)
    }

    /// Nothing is requested: the coming pause tells nothing about the path. The bytes that came in
    /// succession so far give a lower bound of its rate: a server that sends a part beside others
    /// never sends for long, and a fast path is never busy for long.
    pub(super) fn idle(&mut self) {
        let at_least = self.span_bytes as f64 / RATE_SPAN.max(self.rtt_min()).as_secs_f64();
        if at_least > self.rate {
            self.note_rate(at_least);
        }
        self.span_from = None;
        self.span_bytes = 0;
    }

    /// Bytes of credit that keep the path full.
    pub(super) fn window(&self, floor: u64, ceiling: u64) -> u64 {
        let holds = self.rtt_min().as_secs_f64().min(10.0) * self.rate;
        bytes(WINDOW_PATHS * holds).clamp(floor.min(ceiling), ceiling)
    }

    /// How long a datagram may be late once the sender is silent.
    pub(super) fn patience(&self) -> Duration {
        self.rtt / 4
    }

    /// How long a silence may last before the end of a flight counts as lost.
    pub(super) fn silence(&self, block_bytes: u32, silences: u32) -> Duration {
        let block = if self.rate > 0.0 {
            f64::from(block_bytes) / self.rate
        } else {
            0.0
        };
        let once = self.rtt * 3 / 2 + SERVICE_TIME + Duration::from_secs_f64(block.min(1.0));
        once.saturating_mul(1 << silences.min(SILENCES_MAX))
    }

    /// How many silences in a row losses alone may have caused.
    pub(super) fn lost_silences(&self) -> u32 {
        let loss = self.loss.min(LOSS_MAX);
        let (mut silences, mut probability) = (0, loss);
        while probability >= SILENCES_LOST {
            silences += 1;
            probability *= loss;
        }
        silences
    }

    /// How long `bytes` more take, behind `before` that are under way. An unmeasured path is
    /// assumed to have the rate `assumed`, in bytes a second.
    pub(super) fn time(&self, before: u64, bytes: u64, assumed: f64) -> Duration {
        let rate = if self.rate > 0.0 { self.rate } else { assumed };
        self.rtt + Duration::from_secs_f64(((before + bytes) as f64 / rate.max(1.0)).min(TIME_MAX))
    }

    fn close_span(&mut self, now: Instant, span: Duration) {
        let rate = self.span_bytes as f64 / span.as_secs_f64();
        self.note_rate(rate);
        let longer = self.rtt.saturating_sub(self.rtt_min());
        self.rtt_min = self
            .rtt_min
            .map(|shortest| shortest + longer.mul_f64((span.as_secs_f64() / RTT_MEMORY).min(1.0)));
        self.span_from = Some(now);
        self.span_bytes = 0;
    }

    fn note_rate(&mut self, rate: f64) {
        self.rate = if self.rate == 0.0 {
            rate
        } else {
            self.rate + (rate - self.rate) / 4.0
        };
    }
}

/// How long before a deadline it is near: a block that is requested later comes too late to be
/// requested again.
pub(super) fn near(rtt: Duration) -> Duration {
    rtt * 3 / 2
}

/// How many blocks to have in flight for `missing` independent ones, where this share of them will
/// be lost.
pub(super) fn target(missing: u16, near: bool, loss: f64) -> u32 {
    let missing = u32::from(missing);
    if !near {
        return missing;
    }
    let expected = f64::from(missing) * loss.min(LOSS_MAX);
    missing + count(expected + expected.sqrt())
}

/// Whether a generation that is about to be requested, with its deadline this far away, is better
/// decoded block by block. That is so if the time after its last block may be too short to multiply
/// all payloads, and the paths together, at `rate` bytes a second, are slow enough to process
/// payloads as they come. Unmeasured paths are not pressed.
pub(super) fn is_pressed(
    rate: f64,
    rtt: Duration,
    left: Duration,
    generation: &Generation,
) -> bool {
    if rate == 0.0 {
        return false;
    }
    let (n, k) = (f64::from(generation.n), f64::from(generation.block_bytes));
    let arriving = rtt.as_secs_f64() + n * k / rate;
    let multiplying = n * n * k / PRODUCTS;
    left.as_secs_f64() < arriving + SLACK * multiplying && DRAGGING * multiplying < arriving
}

/// How many blocks to request so that `missing` of them are likely to come, where this share of
/// them will be lost.
pub(super) fn covering(missing: u32, loss: f64) -> u32 {
    let loss = loss.min(LOSS_MAX);
    // The losses before the last of them comes have a negative binomial distribution.
    let (mut lost, mut exactly) = (0, (0..missing).fold(1.0, |all, _| all * (1.0 - loss)));
    let mut at_most = exactly;
    while at_most < COVERED && lost < missing {
        lost += 1;
        exactly *= loss * f64::from(missing + lost - 1) / f64::from(lost);
        at_most += exactly;
    }
    missing + lost
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a few blocks, never negative"
)]
fn count(value: f64) -> u32 {
    value.ceil() as u32
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, never negative"
)]
fn bytes(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Shape;

    #[test]
    fn near_the_deadline_losses_are_asked_for_ahead() {
        let mut pace = Pace::new();
        let ahead = |pace: &Pace, near| target(100, near, pace.loss());
        assert_eq!(ahead(&pace, true), 100);
        for _ in 0..1000 {
            pace.lost(1);
            (0..19).for_each(|_| pace.arrived(Instant::now(), 1000));
        }
        assert!((0.03..0.07).contains(&pace.loss()), "{}", pace.loss());
        assert_eq!(ahead(&pace, false), 100);
        assert!(
            (106..=110).contains(&ahead(&pace, true)),
            "{}",
            ahead(&pace, true)
        );
        pace.lost(10_000);
        assert_eq!(ahead(&pace, true), 130);
        assert_eq!(target(0, true, pace.loss()), 0);
    }

    #[test]
    fn the_window_follows_rate_and_round_trip() {
        let mut pace = Pace::new();
        let start = Instant::now();
        assert_eq!(pace.window(1000, 1_000_000), 1000);
        // A megabyte a second over 100 ms is 100 kB on the way.
        for ms in 0..2000 {
            pace.arrived(start + Duration::from_millis(ms), 1000);
        }
        let window = pace.window(1000, 10_000_000);
        assert!((720_000..880_000).contains(&window), "{window}");
        assert_eq!(pace.window(1000, 50_000), 50_000);
    }

    #[test]
    fn a_queue_does_not_widen_the_window_and_a_longer_route_does_in_time() {
        let (mut pace, start, ms) = (Pace::new(), Instant::now(), Duration::from_millis);
        let mut run = |from: u64, until: u64, rtt: u64| {
            for at in from..until {
                pace.set_rtt(ms(rtt));
                pace.arrived(start + ms(at), 1000);
            }
            pace.window(0, u64::MAX)
        };
        let short = run(0, 1000, 50);
        let queued = run(1000, 3000, 150);
        assert!(queued < short + short / 5, "{short} {queued}");
        let longer = run(3000, 300_000, 150);
        assert!(longer > short * 5 / 2, "{short} {longer}");
    }

    #[test]
    fn what_a_full_queue_loses_is_not_asked_for_ahead() {
        let (mut pace, now, ms) = (Pace::new(), Instant::now(), Duration::from_millis);
        let mut lose = |rtt: Duration| {
            pace.set_rtt(rtt);
            for _ in 0..30 {
                pace.lost(1);
                (0..19).for_each(|_| pace.arrived(now, 1000));
            }
            (pace.loss(), pace.path_loss())
        };
        let (loss, of_path) = lose(ms(50));
        assert!(
            (0.03..0.07).contains(&loss) && of_path == loss,
            "{loss} {of_path}"
        );
        // Congestion control leaves a slightly longer one.
        let (loss, of_path) = lose(ms(59));
        assert_eq!(loss, of_path);
        // 600 blocks later little is left of the path's own loss.
        let (loss, of_path) = lose(ms(90));
        assert!(
            (0.03..0.07).contains(&loss) && of_path < 0.001,
            "{loss} {of_path}"
        );
        // The path itself loses again.
        let (loss, of_path) = lose(ms(52));
        assert!(of_path > loss - 0.001, "{loss} {of_path}");
    }

    #[test]
    fn a_burst_says_how_fast_a_path_is_at_least() {
        let (mut pace, start) = (Pace::new(), Instant::now());
        pace.idle();
        assert_eq!(pace.rate(), 0.0);
        pace.set_rtt(Duration::from_millis(50));
        (0..10).for_each(|at| pace.arrived(start + Duration::from_millis(at), 1000));
        assert_eq!(pace.rate(), 0.0);
        pace.idle();
        assert_eq!(pace.rate(), 200_000.0);
        // A slower one later does not count, nor does a pause; a faster one does.
        pace.arrived(start + Duration::from_secs(1), 1000);
        pace.idle();
        pace.idle();
        assert_eq!(pace.rate(), 200_000.0);
        for second in 2..20 {
            (0..10).for_each(|at| {
                pace.arrived(start + Duration::from_millis(second * 1000 + at), 100_000)
            });
            pace.idle();
        }
        assert!((19e6..=20e6).contains(&pace.rate()), "{}", pace.rate());
    }

    #[test]
    fn who_has_no_time_left_decodes_on_the_way() {
        let generation = Shape::new(128 * 4096, 4096, 128)
            .unwrap()
            .generation(0)
            .unwrap();
        let ms = Duration::from_millis;
        let mut pace = Pace::new();
        let pressed = |pace: &Pace, left| is_pressed(pace.rate(), pace.rtt(), left, &generation);
        assert!(!pressed(&pace, ms(0)), "nothing is known of the path");
        // 10 MB/s: the blocks take 52 ms and a round trip, multiplying them 3 ms.
        let start = Instant::now();
        (0..200).for_each(|at| pace.arrived(start + ms(at), 10_000));
        pace.set_rtt(ms(20));
        assert!(pressed(&pace, ms(80)));
        assert!(!pressed(&pace, ms(90)));
        // Over a faster path, the last block would have to wait for those before it to be
        // processed.
        let mut fast = Pace::new();
        (0..200).for_each(|at| fast.arrived(start + ms(at), 1_000_000));
        fast.set_rtt(ms(1));
        assert!(!pressed(&fast, ms(1)));
    }

    #[test]
    fn round_trips_are_taken_from_answers_until_quic_tells_its_own() {
        let (mut pace, ms) = (Pace::new(), Duration::from_millis);
        pace.answered(ms(80), true);
        assert_eq!(pace.rtt(), ms(80));
        pace.answered(ms(24), true);
        assert_eq!(pace.rtt(), ms(24));
        pace.answered(ms(500), true);
        assert_eq!(pace.rtt(), ms(24), "the sender was busy");
        pace.answered(ms(40), false);
        assert_eq!(pace.rtt(), ms(26));
        pace.set_rtt(ms(50));
        pace.answered(ms(10), false);
        assert_eq!(pace.rtt(), ms(50));
    }

    #[test]
    fn requests_and_patience_follow_the_loss() {
        let mut pace = Pace::new();
        assert_eq!(pace.lost_silences(), 0);
        let mut silences = |loss: f64| {
            pace.loss = loss;
            pace.lost_silences()
        };
        assert_eq!([0.001, 0.05, 0.12, 0.2].map(&mut silences), [0, 1, 2, 2]);
        assert_eq!(
            silences(0.9),
            3,
            "what loses more than a quarter may be gone"
        );
        let covering = |loss: f64| [1, 2, 4, 16].map(|missing| covering(missing, loss));
        assert_eq!(covering(0.0), [1, 2, 4, 16]);
        assert_eq!(covering(0.01), [1, 2, 4, 17]);
        assert_eq!(covering(0.05), [1, 3, 5, 18]);
        assert_eq!(covering(0.2), [2, 4, 7, 24]);
        assert_eq!(covering(1.0), [2, 4, 8, 26]);
    }

    #[test]
    fn silence_grows_with_each_probe() {
        let pace = Pace::new();
        let first = pace.silence(1024, 0);
        assert_eq!(first, Duration::from_millis(180));
        assert_eq!(pace.silence(1024, 3), first * 8);
        assert_eq!(pace.silence(1024, 60), first * 8);
    }
}
