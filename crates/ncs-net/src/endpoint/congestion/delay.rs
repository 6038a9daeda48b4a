//! A congestion controller that judges by delay and delivery rate: what is lost while the queue is short was not lost to congestion.
//!
//! quinn takes a window from a controller and paces by window and round trip alone, so everything here is said with the window. All
//! of it is decided from what quinn hands in, time included.
//!
//! **Steady.** Once a round trip the shortest sample of the round (Copa's standing round trip; Arun and Balakrishnan, NSDI 2018,
//! section 2.1) is compared with the shortest of the last seconds, the *floor*; the difference is what stands in the queue. Below a
//! target the window grows, by a step that doubles while the direction stays (Copa's velocity, same section); above it the window
//! shrinks to what would have met it (the window equation of FAST TCP; Wei, Jin, Low and Hegde, 2006). The target is [`TARGET`] and
//! the time of two packets at the flow's own rate, so that of two flows the smaller one wants the longer queue and both end at the
//! same rate (as in Copa, and in the scaling of Swift's target, SIGCOMM 2020). The first part, which those have not, is what timers
//! and drivers make of a round trip on any host: without it a fast flow takes every hiccup for a queue.
//!
//! **Dip.** On a beat of the wall clock, every [`BEAT`], the window falls for about two round trips below what fills the path. A queue
//! that is this flow's empties: the floor stays honest (BBR's ProbeRTT, draft-ietf-ccwg-bbr, section 5.3.4; LEDBAT++'s periodic
//! slowdown, draft-irtf-iccrg-ledbat-plus-plus, section 4.4), and what is lost then is lost by the path and not by a full queue. A
//! window whose losses exceed those of its dips goes back by the excess and grows slowly afterwards, whatever the delay: so a policer
//! and a buffer shorter than the target are heard, which a bound on the rate of loss alone (2 % in BBR) cannot tell from a path that
//! loses a tenth by nature. Flows of this controller on hosts whose clocks agree dip together, and so find the queue empty that they
//! share.
//!
//! **Contended.** If dips leave a queue that this flow cannot have made, somebody fills it, and giving way would be giving up (Copa's
//! mode switching, section 2.2). Then CUBIC (quinn's, RFC 9438) keeps the window until dips find the queue empty; losses count while
//! the queue is long. Every dip gives up a share to the others, so that those who have found them often enough dip on every other beat.
//! A route that has become longer looks alike, but leaves the same "queue" dip after dip, and is then believed.
//!
//! **Startup** doubles the window every round trip until the delay rises (HyStart++, RFC 9406, section 4.2) or the delivery rate has not
//! grown by a quarter for three rounds (BBR, section 5.3.1.2).

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, Cubic};
use quinn_proto::RttEstimator;

use super::filter::{Floor, Peak, Tally};
use dip::{Dip, FOREIGN_DIPS};

mod dip;

/// Makes a [`Delay`] for each path.
#[derive(Debug, Clone, Copy)]
pub(super) struct DelayConfig {
    /// A moment, and how long the beat had lasted then.
    anchor: (Instant, Duration),
}

impl DelayConfig {
    /// Its controllers dip on the beats of the wall clock.
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::anchored(Instant::now(), since)
    }

    /// With beats that fall so long before `now`.
    pub(super) const fn anchored(now: Instant, beat: Duration) -> Self {
        Self { anchor: (now, beat) }
    }

    fn next_beat(&self, now: Instant) -> Beat {
        let (at, beat) = self.anchor;
        let since = (now.saturating_duration_since(at) + beat).as_nanos();
        let lasted = Duration::from_nanos((since % BEAT.as_nanos()).try_into().expect("less than a beat"));
        Beat { at: now + BEAT - lasted, is_down: (since / BEAT.as_nanos()) % 2 == 1 }
    }
}

impl ControllerFactory for DelayConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Delay::new(now, current_mtu, self.next_beat(now)))
    }
}

/// The controller of one path.
#[derive(Debug, Clone)]
pub(super) struct Delay {
    mtu: u64,
    /// Outside of dips and contention, in bytes.
    window: f64,
    mode: Mode,
    floor: Floor,
    /// Delivery rates of the last rounds, bytes a second.
    rates: Peak,
    round: Round,
    /// The newest packet of the acknowledgements that are being handed in: when it was sent, and its round trip.
    newest: Option<(Instant, Duration)>,
    /// Bytes that they acknowledge.
    batch: u64,
    /// The last sample's part above the floor, and the longest since the last dip.
    queue: Duration,
    queue_max: Duration,
    growth: Growth,
    dip: Option<Dip>,
    dips: u32,
    rounds_since_dip: u32,
    /// When the next dip is due, if enough rounds have passed.
    beat: Beat,
    /// The shortest and the longest queue that the last dips of a contention left, and how many.
    residue: (Duration, Duration, u32),
    /// Rounds in a row whose queue was too long for flows that go by delay.
    crowded: u32,
    /// Dips in a row that left a queue.
    foreign: u32,
    /// Dips in a row that left none.
    clean: u32,
    /// The window that the last contention ended with, and when that was.
    contended: Option<(f64, Instant)>,
    /// The window of the last round that was not crowded.
    calm_window: f64,
    /// When packets were sent in the last dip that emptied the queue, and what became of all sent in such dips.
    quiet: Option<(Instant, Instant)>,
    quiet_losses: Tally,
    /// What became of the others since the last dip.
    losses: Tally,
    /// Above this window more was lost than on the path, and how many cycles have kept to it.
    ceiling: Option<(f64, u32)>,
}

/// A moment at which flows on all hosts dip.
#[derive(Debug, Clone, Copy)]
struct Beat {
    at: Instant,
    /// Every other one.
    is_down: bool,
}

#[derive(Debug, Clone)]
enum Mode {
    /// With the best rate so far and the rounds since that was last beaten by a quarter.
    Startup {
        best: f64,
        flat_rounds: u32,
    },
    Steady,
    /// Kept by this one.
    Contended(Cubic),
}

/// Packets that are acknowledged between two moments a round trip apart.
#[derive(Debug, Clone, Copy)]
struct Round {
    start: Instant,
    acked: u64,
    samples: u32,
    shortest: Duration,
    smoothed: Duration,
    /// Whether the window was in the way: nothing is learned about one that was not.
    filled: bool,
    over: bool,
}

impl Round {
    const fn new(start: Instant) -> Self {
        let (shortest, smoothed) = (Duration::MAX, Duration::MAX);
        Self { start, acked: 0, samples: 0, shortest, smoothed, filled: false, over: false }
    }

    /// The round trip that every packet of the round had at least. The smoothed one has the peer's delay of acknowledgements taken
    /// off, which a lone packet's own still has.
    fn standing(&self) -> Duration {
        self.shortest.min(self.smoothed)
    }
}

/// How the window has grown lately.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// Packets a round.
    step: f64,
    rounds: u32,
    /// A shrunk window shows a round later.
    hold: bool,
}

impl Growth {
    const NONE: Self = Self { step: 1.0, rounds: 0, hold: false };
}

impl Delay {
    fn new(now: Instant, mtu: u16, beat: Beat) -> Self {
        Self {
            mtu: u64::from(mtu),
            window: INITIAL_WINDOW,
            mode: Mode::STARTUP,
            floor: Floor::default(),
            rates: Peak::default(),
            round: Round::new(now),
            newest: None,
            batch: 0,
            queue: Duration::ZERO,
            queue_max: Duration::ZERO,
            growth: Growth::NONE,
            dip: None,
            dips: 0,
            rounds_since_dip: 0,
            beat,
            residue: NO_RESIDUE,
            crowded: 0,
            foreign: 0,
            clean: 0,
            contended: None,
            calm_window: 0.0,
            quiet: None,
            quiet_losses: Tally::default(),
            losses: Tally::default(),
            ceiling: None,
        }
    }

    fn packet(&self) -> f64 {
        self.mtu as f64
    }

    fn window_min(&self) -> f64 {
        WINDOW_MIN_PACKETS * self.packet()
    }

    /// The window that the mode wants.
    fn full_window(&self) -> f64 {
        match &self.mode {
            Mode::Startup { .. } | Mode::Steady => self.window,
            Mode::Contended(cubic) => cubic.window() as f64,
        }
    }

    /// How long the queue is to be while packets take `rtt`.
    fn target(&self, rtt: Duration) -> Duration {
        TARGET + rtt.mul_f64(TARGET_PACKETS * self.packet() / self.window.max(self.window_min()))
    }

    fn tally(&mut self, sent: Instant) -> &mut Tally {
        let quiet = self.quiet.is_some_and(|(from, until)| (from..until).contains(&sent));
        if quiet { &mut self.quiet_losses } else { &mut self.losses }
    }

    /// One round trip is over: what it showed moves the window.
    fn end_round(&mut self, now: Instant) {
        let round = std::mem::replace(&mut self.round, Round::new(now));
        let elapsed = now.saturating_duration_since(round.start).as_secs_f64();
        let (Some(floor), true) = (self.floor.get(), elapsed > 0.0) else { return };
        let rate = round.acked as f64 / elapsed;
        self.rates.push(rate, !round.filled);
        if self.dip.is_some() {
            return;
        }
        let standing = round.standing();
        let queue = standing.saturating_sub(floor);
        self.rounds_since_dip += 1;
        let fallen = self.take_beat(now);
        let beat = fallen.is_some() && self.rounds_since_dip >= DIP_ROUNDS_MIN && round.filled;
        self.watch_for_others(queue, standing);
        match &mut self.mode {
            Mode::Startup { best, flat_rounds } => {
                if !round.filled {
                    return;
                }
                if rate > *best * STARTUP_GROWTH {
                    (*best, *flat_rounds) = (rate, 0);
                } else {
                    *flat_rounds += 1;
                }
                if *flat_rounds >= STARTUP_FLAT_ROUNDS {
                    self.end_startup(now);
                }
            }
            Mode::Steady => {
                self.steer(queue, standing, floor, round.filled);
                let suspicious = self.crowded >= CROWDED_ROUNDS && self.rounds_since_dip >= SUSPICION_ROUNDS;
                if beat || suspicious && round.filled {
                    self.begin_dip(now, standing, beat);
                }
            }
            // What has been found often enough is looked for less often: a dip costs the share that it gives up.
            Mode::Contended(_) if beat && (self.foreign < FOREIGN_DIPS || fallen == Some(true)) => {
                self.begin_dip(now, standing, true);
            }
            Mode::Contended(_) => {}
        }
    }

    /// Whether a beat has fallen since the last question, and then whether one was down.
    fn take_beat(&mut self, now: Instant) -> Option<bool> {
        let mut fallen = None;
        while self.beat.at <= now {
            fallen = Some(self.beat.is_down || fallen == Some(true));
            self.beat = Beat { at: self.beat.at + BEAT, is_down: !self.beat.is_down };
        }
        fallen
    }

    /// The queue that flows which go by delay do not exceed.
    fn foreign_queue(&self, rtt: Duration) -> Duration {
        FOREIGN_QUEUE.max(self.target(rtt).mul_f64(1.5))
    }

    fn watch_for_others(&mut self, queue: Duration, standing: Duration) {
        if queue > self.foreign_queue(standing) {
            self.crowded += 1;
        } else {
            self.crowded = 0;
            self.calm_window = self.window;
        }
    }

    /// Moves the window towards the one that makes the queue as long as it is to be.
    fn steer(&mut self, queue: Duration, standing: Duration, floor: Duration, filled: bool) {
        if std::mem::take(&mut self.growth.hold) {
            return;
        }
        let target = self.target(standing);
        let wanted = (floor + target).as_secs_f64() / standing.max(MIN_RTT).as_secs_f64();
        if queue >= target {
            self.window = (self.window * wanted.max(0.5)).max(self.window_min());
            self.growth = Growth { hold: true, ..Growth::NONE };
            return;
        }
        if !filled {
            return;
        }
        self.growth.rounds += 1;
        if self.growth.rounds > STEADY_ROUNDS {
            self.growth.step *= 2.0;
        }
        // No more than fills the target, or, if much growth has not brought the queue about, so much that it would show.
        let reach = (wanted - 1.0).max(REACH.min(f64::from(self.growth.rounds) / 100.0)).min(1.0);
        let step = (self.growth.step * self.packet()).min(self.window * reach).max(self.packet());
        let bound = self.window_bound(floor + target);
        if self.window + step > bound {
            self.growth = Growth::NONE;
        }
        self.window = self.window.max((self.window + step).min(bound));
    }

    /// What a window is not to grow beyond: a tenth more than what is delivered, and lost by the path, in a round trip.
    fn window_bound(&self, rtt: Duration) -> f64 {
        let kept = 1.0 - self.quiet_losses.share().min(LOSS_MAX);
        let model = MODEL_GAIN * self.rates.max() * rtt.as_secs_f64() / kept;
        self.ceiling.map_or(model, |(ceiling, _)| ceiling.min(model))
    }

    fn end_startup(&mut self, now: Instant) {
        let Some(floor) = self.floor.get() else { return };
        self.heed_unfinished_round(now, floor);
        self.window = (self.rates.max() * (floor + TARGET).as_secs_f64()).min(self.window).max(self.window_min());
        self.mode = Mode::Steady;
        self.growth = Growth::NONE;
        self.calm_window = self.window;
        self.begin_dip(now, floor, false);
    }

    /// Counts the rate of a round that is not over. While the window doubles, the rounds before it
    /// had half its rate or less. All its samples show a queue, so acknowledgements have come at the
    /// rate of the bottleneck.
    fn heed_unfinished_round(&mut self, now: Instant, floor: Duration) {
        let elapsed = now.saturating_duration_since(self.round.start);
        let has_queue = self.round.samples >= STARTUP_SAMPLES && self.round.standing() > floor;
        if has_queue && elapsed >= floor / 4 {
            self.rates.push(self.round.acked as f64 / elapsed.as_secs_f64(), true);
        }
    }

    /// Whether what is lost now is lost because the queue is full.
    fn queue_is_long(&self) -> bool {
        self.queue >= self.queue_max / 2 && self.queue > FOREIGN_QUEUE / 2
    }
}

impl Mode {
    const STARTUP: Self = Self::Startup { best: 0.0, flat_rounds: 0 };
}

impl Controller for Delay {
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        let sample = now.saturating_duration_since(sent);
        if self.newest.is_none_or(|(newest, _)| newest <= sent) {
            self.newest = Some((sent, sample));
        }
        self.tally(sent).acked += bytes as f64;
        self.round.acked += bytes;
        self.batch += bytes;
        self.round.smoothed = rtt.get();
        self.round.over |= sent >= self.round.start;
        match &mut self.mode {
            Mode::Startup { .. } if !app_limited && self.dip.is_none() => self.window += bytes as f64,
            Mode::Contended(cubic) => cubic.on_ack(now, sent, bytes, app_limited || self.dip.is_some(), rtt),
            _ => {}
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _app_limited: bool, _largest: Option<u64>) {
        let was_in_flight = in_flight + std::mem::take(&mut self.batch);
        // What quinn calls limited by the application is so for moments, whenever a writer waits to be woken.
        self.round.filled |= (was_in_flight + 2 * self.mtu) as f64 >= FILLED * self.window() as f64;
        let Some((sent, sample)) = self.newest.take() else { return };
        self.floor.add(now, sample);
        let floor = self.floor.get().unwrap_or(sample);
        self.round.samples += 1;
        self.round.shortest = self.round.shortest.min(sample);
        self.queue = sample.saturating_sub(floor);
        self.queue_max = self.queue_max.max(self.queue);
        self.watch_dip(now, in_flight, sent, sample);
        let rise = (floor / 8).clamp(STARTUP_RISE_MIN, STARTUP_RISE_MAX);
        let standing = self.round.standing();
        if matches!(self.mode, Mode::Startup { .. })
            && self.round.samples >= STARTUP_SAMPLES
            && standing > floor + rise
            && self.rates.max() > 0.0
        {
            self.end_startup(now);
        }
        if self.round.over {
            self.end_round(now);
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.tally(sent).lost += lost_bytes as f64;
        let marked = lost_bytes == 0;
        if is_persistent_congestion {
            self.window = self.window_min();
            self.mode = Mode::STARTUP;
            self.dip = None;
            self.floor.keep(false);
            return;
        }
        let long = marked || self.queue_is_long() || self.losses.share() > LOSS_MAX;
        match &mut self.mode {
            Mode::Contended(cubic) if long => cubic.on_congestion_event(now, sent, false, lost_bytes),
            Mode::Startup { .. } if marked => self.end_startup(now),
            Mode::Steady if marked && !self.growth.hold => {
                self.window = (self.window * CUBIC_BETA).max(self.window_min());
                self.growth = Growth { hold: true, ..Growth::NONE };
            }
            _ => {}
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = u64::from(new_mtu);
        self.window = self.window.max(self.window_min());
        if let Mode::Contended(cubic) = &mut self.mode {
            cubic.on_mtu_update(new_mtu);
        }
    }

    fn window(&self) -> u64 {
        bytes(self.dip.map_or(f64::INFINITY, |dip| dip.window).min(self.full_window()).max(self.window_min()))
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        bytes(INITIAL_WINDOW)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "windows are positive and far below 2^53")]
const fn bytes(window: f64) -> u64 {
    window as u64
}

/// RFC 9002, section 7.2.
const INITIAL_WINDOW: f64 = 14_720.0;
/// quinn sends while less than the window is on its way, one packet less than this. Two of them are acknowledged at once.
const WINDOW_MIN_PACKETS: f64 = 4.0;
/// The queue that a flow wants, besides the time of so many packets at its rate.
const TARGET: Duration = Duration::from_millis(3);
const TARGET_PACKETS: f64 = 2.0;
/// A round trip is at least so long, or quotients mean nothing.
const MIN_RTT: Duration = Duration::from_micros(10);
/// Rounds of growth by one packet before the step doubles.
const STEADY_ROUNDS: u32 = 3;
/// The share of the window that must be on its way for it to count as filled, but for two packets that may not fit or not be due.
const FILLED: f64 = 0.9;
/// A step, as a share of the window, that is taken although it may make the queue longer than it is to be.
const REACH: f64 = 0.1;
/// How far a window may be ahead of what is delivered.
const MODEL_GAIN: f64 = 1.1;
/// What a path may lose by nature; more is taken for congestion.
const LOSS_MAX: f64 = 0.25;
/// Dips fall on the beats of the wall clock, so that flows of this controller which share a queue dip at the same time and find it
/// empty. Their hosts' clocks have to agree to a part of a round trip; where they do not, the dips of each prove less.
const BEAT: Duration = Duration::from_secs(2);
/// Fewer rounds than this between them, and a path with a long round trip would do nothing else.
const DIP_ROUNDS_MIN: u32 = 10;
/// A queue that is longer than this, and than flows of this controller make, is somebody else's.
const FOREIGN_QUEUE: Duration = Duration::from_millis(10);
/// Rounds with such a queue that bring a dip forward, and the least number of rounds since the last.
const CROWDED_ROUNDS: u32 = 2;
const SUSPICION_ROUNDS: u32 = 4;
const NO_RESIDUE: (Duration, Duration, u32) = (Duration::MAX, Duration::ZERO, 0);
/// RFC 9438, section 4.6.
const CUBIC_BETA: f64 = 0.7;
/// A rate that grows by less for so many rounds is the path's.
const STARTUP_GROWTH: f64 = 1.25;
const STARTUP_FLAT_ROUNDS: u32 = 3;
/// RFC 9406, section 4.3.
const STARTUP_SAMPLES: u32 = 8;
const STARTUP_RISE_MIN: Duration = Duration::from_millis(4);
const STARTUP_RISE_MAX: Duration = Duration::from_millis(16);

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u16 = 1250;

    fn steady(now: Instant) -> Delay {
        let mut delay = Delay::new(now, MTU, Beat { at: now + BEAT, is_down: false });
        (delay.mode, delay.window) = (Mode::Steady, 100_000.0);
        delay
    }

    #[test]
    fn beats_fall_at_the_same_time_for_all() {
        let now = Instant::now();
        let config = DelayConfig::anchored(now, Duration::from_millis(500));
        let next = |after| {
            let Beat { at, is_down } = config.next_beat(now + Duration::from_millis(after));
            ((at - now).as_millis(), is_down)
        };
        assert_eq!(next(0), (1500, false));
        assert_eq!(next(1400), (1500, false));
        assert_eq!(next(1600), (3500, true));
        assert_eq!(next(7000), (7500, true));
    }

    #[test]
    fn a_mark_is_heeded_once_a_round_and_a_lost_packet_alone_is_not() {
        let now = Instant::now();
        let mut delay = steady(now);
        delay.on_congestion_event(now, now, false, 1250);
        assert_eq!(delay.window(), 100_000);
        delay.on_congestion_event(now, now, false, 0);
        delay.on_congestion_event(now, now, false, 0);
        assert_eq!(delay.window(), 70_000);
    }

    #[test]
    fn a_path_that_carries_nothing_any_more_is_found_out_anew() {
        let now = Instant::now();
        let mut delay = steady(now);
        delay.on_congestion_event(now, now, true, 100_000);
        delay.on_congestion_event(now, now, false, 0);
        assert_eq!(delay.window(), 4 * u64::from(MTU));
        assert!(matches!(delay.mode, Mode::Startup { .. }));
    }
}
