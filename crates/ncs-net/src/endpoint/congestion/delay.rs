//! A congestion controller based on delay and delivery rate: losses while the queue is short are
//! not attributed to congestion.
//!
//! quinn takes a window from a controller and paces by window and round trip alone, so the window
//! expresses everything here. All decisions depend only on quinn's inputs, including time.
//!
//! **Steady.** Once a round trip, the shortest sample of the round (Copa's standing round trip;
//! Arun and Balakrishnan, NSDI 2018, section 2.1) is compared with the shortest of the last
//! seconds, the *floor*. The difference is the queueing delay. Below a target the window grows, by
//! a step that doubles while the direction stays the same (Copa's velocity, same section). Above it
//! the window shrinks to the size that would have met the target (the window equation of FAST TCP;
//! Wei, Jin, Low and Hegde, 2006). The target is [`TARGET`] plus the time of two packets at the
//! flow's own rate, so that of two flows the slower one has the longer target, and both converge to
//! the same rate (as in Copa, and in the scaling of Swift's target, SIGCOMM 2020). Those two lack
//! the constant part, which covers the jitter of timers and drivers on any host: without it a fast
//! flow takes every hiccup for a queue.
//!
//! **Dip.** Every [`BEAT`], at times fixed by the wall clock, the window falls for about two round
//! trips below what fills the path. This empties a queue that the flow itself has built. The floor
//! stays correct (BBR's ProbeRTT, draft-ietf-ccwg-bbr, section 5.3.4; LEDBAT++'s periodic slowdown,
//! draft-irtf-iccrg-ledbat-plus-plus, section 4.4), and losses in a dip are the path's own, not
//! those of a full queue. If losses outside of dips exceed those in dips, the window shrinks by the
//! excess, and then grows slowly whatever the delay. So the flow reacts to a policer, and to a
//! buffer shorter than the target; a fixed bound on the loss rate (2 % in BBR) cannot tell these
//! from a path that loses a tenth of its packets by nature. Flows of this controller on hosts with
//! synchronised clocks dip together, and so find their shared queue empty.
//!
//! **Contended.** If dips leave a queue that this flow cannot have built, other flows fill it, and
//! yielding would starve this one (Copa's mode switching, section 2.2). Then CUBIC (quinn's, RFC
//! 9438) controls the window until dips find the queue empty; losses count while the queue is long.
//! If that lasts, it claims a part by slow start, as a new flow of CUBIC does. BBR's first version
//! does not heed losses, and gives nothing up for CUBIC. Where lulls ([`lull`]) or many losses show
//! such flows, the window is at least what BBR's would be: the rate that the path has carried,
//! losses or not (docs/decisions/0020-beside-others.md).
//!
//! Every dip gives up a share to the other flows, so after enough dips that found them, dips are
//! only on every other beat. A route that has become longer looks the same at first, but leaves the
//! same "queue" dip after dip, and is then accepted as the new floor.
//!
//! **Startup** doubles the window every round trip until the delay rises (HyStart++, RFC 9406,
//! section 4.2), or the delivery rate has not grown by a quarter for three rounds (BBR, section
//! 5.3.1.2).

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig};
use quinn_proto::RttEstimator;

use super::filter::{Floor, Peak, Tally};
use dip::{CLAIM_DIPS, Dip};
use lull::Lulls;

mod dip;
mod lull;

/// Makes a [`Delay`] for each path.
#[derive(Debug, Clone, Copy)]
pub(super) struct DelayConfig {
    /// A moment, and its time on the scale of beats.
    anchor: (Instant, Duration),
}

impl DelayConfig {
    /// Its controllers dip on the beats of the wall clock.
    pub(super) fn new() -> Self {
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self::anchored(Instant::now(), since)
    }

    /// At `now`, `beat` has passed since beat zero.
    pub(super) const fn anchored(now: Instant, beat: Duration) -> Self {
        Self {
            anchor: (now, beat),
        }
    }

    fn next_beat(&self, now: Instant) -> Beat {
        let (at, beat) = self.anchor;
        let since = (now.saturating_duration_since(at) + beat).as_nanos();
        let lasted = Duration::from_nanos(
            (since % BEAT.as_nanos())
                .try_into()
                .expect("less than a beat"),
        );
        Beat {
            at: now + BEAT - lasted,
            is_down: (since / BEAT.as_nanos()) % 2 == 1,
        }
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
    /// The window outside of dips and contention, in bytes.
    window: f64,
    mode: Mode,
    floor: Floor,
    /// Delivery rates of the last rounds, in bytes per second.
    rates: Peak,
    round: Round,
    /// Of the acknowledgements being processed, the packet sent last: when it was sent, and its
    /// round trip.
    newest: Option<(Instant, Duration)>,
    /// Bytes that they acknowledge.
    batch: u64,
    smoothed: Duration,
    /// The queueing delay of the last sample, and the longest since the last dip.
    queue: Duration,
    queue_max: Duration,
    growth: Growth,
    dip: Option<Dip>,
    dips: u32,
    rounds_since_dip: u32,
    /// When the next dip is due, provided that enough rounds have passed.
    beat: Beat,
    /// The shortest and the longest queue that dips of this contention left, and their number.
    residue: (Duration, Duration, u32),
    /// Consecutive rounds with a queue too long for delay-based flows.
    crowded: u32,
    /// Consecutive dips that left a queue.
    foreign: u32,
    /// Consecutive dips that left none.
    clean: u32,
    /// The window at the end of the last contention, and the time of it.
    contended: Option<(f64, Instant)>,
    /// The window of the last round with a short queue.
    calm_window: f64,
    /// When packets of the last dip with an empty queue were sent, and the losses among all packets
    /// of such dips.
    quiet: Option<(Instant, Instant)>,
    quiet_losses: Tally,
    /// Losses among other packets since the last dip.
    losses: Tally,
    /// The window above which losses exceeded the path's, and the number of cycles that have kept
    /// to it.
    ceiling: Option<(f64, u32)>,
    lulls: Lulls,
    model: Option<Model>,
    /// Whether the window of a contention doubles until the first loss.
    claiming: bool,
    /// Consecutive dips of a contention since each of which many packets were lost.
    lossy: u32,
    /// The shortest queue since the last dip.
    queue_min: Duration,
}

/// A time at which flows on all hosts dip.
#[derive(Debug, Clone, Copy)]
struct Beat {
    at: Instant,
    /// True for every other beat.
    is_down: bool,
}

#[derive(Debug, Clone)]
enum Mode {
    /// The best rate so far, and the rounds since it last grew by a quarter.
    Startup {
        best: f64,
        flat_rounds: u32,
    },
    Steady,
    /// CUBIC controls the window, or the model if it allows more.
    Contended(Cubic),
}

/// Beside flows that do not heed losses, what the path has carried of this flow is its claim, as it
/// is BBR's.
#[derive(Debug, Clone, Copy)]
struct Model {
    /// The position in the cycle of gains, and since when.
    phase: usize,
    since: Instant,
    ramp: Option<Ramp>,
    /// When such flows were last noticed.
    noticed: Instant,
}

/// A trial of a claim: the window doubles as long as the rate nearly does.
#[derive(Debug, Clone, Copy)]
struct Ramp {
    window: f64,
    /// The rate, and the rates before it, before the last doubling.
    before: Option<(f64, Peak)>,
    /// Rounds since then, and the sum of their rates but the first's, which it does not show in.
    rounds: u32,
    sum: f64,
}

/// Packets acknowledged within one round trip.
#[derive(Debug, Clone, Copy)]
struct Round {
    start: Instant,
    acked: u64,
    /// When the first bytes were acknowledged, and how many at once.
    first: Option<(Instant, u64)>,
    samples: u32,
    shortest: Duration,
    smoothed: Duration,
    /// The shortest without the peer's acknowledgement delay.
    precise: Duration,
    /// Whether the window limited sending: otherwise nothing is learned about it.
    filled: bool,
    over: bool,
}

impl Round {
    const fn new(start: Instant) -> Self {
        let (shortest, smoothed) = (Duration::MAX, Duration::MAX);
        Self {
            start,
            acked: 0,
            first: None,
            samples: 0,
            shortest,
            smoothed,
            precise: Duration::MAX,
            filled: false,
            over: false,
        }
    }

    /// The minimum round trip of the round. In the smoothed one, the peer's acknowledgement delay
    /// is subtracted; a lone packet's own sample still contains it.
    fn standing(&self) -> Duration {
        self.shortest.min(self.smoothed)
    }
}

/// The recent growth of the window.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// Packets per round.
    step: f64,
    rounds: u32,
    /// Skip one round: a change of the window takes a round trip to show.
    hold: bool,
}

impl Growth {
    const NONE: Self = Self {
        step: 1.0,
        rounds: 0,
        hold: false,
    };
}

impl Delay {
    fn new(now: Instant, mtu: u16, beat: Beat) -> Self {
        Self {
            mtu: u64::from(mtu),
            window: initial_window(mtu.into()),
            mode: Mode::STARTUP,
            floor: Floor::default(),
            rates: Peak::default(),
            round: Round::new(now),
            newest: None,
            batch: 0,
            smoothed: Duration::ZERO,
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
            lulls: Lulls::default(),
            model: None,
            claiming: false,
            lossy: 0,
            queue_min: Duration::MAX,
        }
    }

    fn packet(&self) -> f64 {
        self.mtu as f64
    }

    fn window_min(&self) -> f64 {
        WINDOW_MIN_PACKETS * self.packet()
    }

    /// The window of the current mode.
    fn full_window(&self) -> f64 {
        match &self.mode {
            Mode::Startup { .. } | Mode::Steady => self.window,
            Mode::Contended(cubic) => {
                let model = self.model.map_or(0.0, |model| self.model_window(model));
                model.max(cubic.window() as f64)
            }
        }
    }

    fn model_window(&self, model: Model) -> f64 {
        if let Some(ramp) = model.ramp {
            return ramp.window;
        }
        let kept = 1.0 - self.losses.share().min(MODEL_LOSS_MAX);
        let rate = self.rates.max() / kept;
        let content = rate * self.floor.get().unwrap_or_default().as_secs_f64();
        let paced = MODEL_GAINS[model.phase] * rate * self.smoothed.as_secs_f64();
        paced.min(MODEL_WINDOW * content) + MODEL_EXTRA_PACKETS * self.packet()
    }

    /// The target queueing delay when packets take `rtt`.
    fn target(&self, rtt: Duration) -> Duration {
        TARGET + rtt.mul_f64(TARGET_PACKETS * self.packet() / self.window.max(self.window_min()))
    }

    fn tally(&mut self, sent: Instant) -> &mut Tally {
        let quiet = self
            .quiet
            .is_some_and(|(from, until)| (from..until).contains(&sent));
        if quiet {
            &mut self.quiet_losses
        } else {
            &mut self.losses
        }
    }

    /// Ends a round trip, and adjusts the window by its samples.
    fn end_round(&mut self, now: Instant) {
        let round = std::mem::replace(&mut self.round, Round::new(now));
        let elapsed = now.saturating_duration_since(round.start).as_secs_f64();
        let (Some(floor), true) = (self.floor.get(), elapsed > 0.0) else {
            return;
        };
        let rate = round.acked as f64 / elapsed;
        self.rates.push(rate, !round.filled);
        if self.dip.is_some() {
            self.lulls.skip();
            return;
        }
        self.ramp_up(rate);
        let standing = round.standing();
        let queue = standing.saturating_sub(floor);
        let precise = round.precise.min(standing).saturating_sub(floor);
        if self.lulls.take(round.start, precise) {
            self.notice_deaf_flows(now);
        }
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
                let suspicious =
                    self.crowded >= CROWDED_ROUNDS && self.rounds_since_dip >= SUSPICION_ROUNDS;
                if beat || suspicious && round.filled {
                    self.begin_dip(now, standing, beat);
                }
            }
            // After enough dips that found other flows, dips are less frequent: each gives up a
            // share.
            Mode::Contended(_) if beat && (self.foreign < CLAIM_DIPS || fallen == Some(true)) => {
                self.begin_dip(now, standing, true);
            }
            Mode::Contended(_) => {}
        }
    }

    /// Whether beats have passed since the last call, and if so, whether one of them was down.
    fn take_beat(&mut self, now: Instant) -> Option<bool> {
        let mut fallen = None;
        while self.beat.at <= now {
            fallen = Some(self.beat.is_down || fallen == Some(true));
            self.beat = Beat {
                at: self.beat.at + BEAT,
                is_down: !self.beat.is_down,
            };
        }
        fallen
    }

    /// The longest queue that delay-based flows build.
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

    /// Moves the window towards the target queue.
    fn steer(&mut self, queue: Duration, standing: Duration, floor: Duration, filled: bool) {
        if std::mem::take(&mut self.growth.hold) {
            return;
        }
        let target = self.target(standing);
        let wanted = (floor + target).as_secs_f64() / standing.max(MIN_RTT).as_secs_f64();
        if queue >= target {
            self.window = (self.window * wanted.max(0.5)).max(self.window_min());
            self.growth = Growth {
                hold: true,
                ..Growth::NONE
            };
            return;
        }
        if !filled {
            return;
        }
        self.growth.rounds += 1;
        if self.growth.rounds > STEADY_ROUNDS {
            self.growth.step *= 2.0;
        }
        // Take at most the step that fills the target. If much growth has not built a queue, take a
        // step that would be visible.
        let reach = (wanted - 1.0)
            .max(REACH.min(f64::from(self.growth.rounds) / 100.0))
            .min(1.0);
        let step = (self.growth.step * self.packet())
            .min(self.window * reach)
            .max(self.packet());
        let bound = self.window_bound(floor + target);
        if self.window + step > bound {
            self.growth = Growth::NONE;
        }
        self.window = self.window.max((self.window + step).min(bound));
    }

    /// The limit of the window's growth: a tenth more than is delivered, or lost by the path, in a
    /// round trip.
    fn window_bound(&self, rtt: Duration) -> f64 {
        let kept = 1.0 - self.quiet_losses.share().min(LOSS_MAX);
        let model = MODEL_GAIN * self.rates.max() * rtt.as_secs_f64() / kept;
        self.ceiling
            .map_or(model, |(ceiling, _)| ceiling.min(model))
    }

    fn end_startup(&mut self, now: Instant) {
        let Some(floor) = self.floor.get() else {
            return;
        };
        self.heed_unfinished_round(now, floor);
        self.window = (self.rates.max() * (floor + TARGET).as_secs_f64())
            .min(self.window)
            .max(self.window_min());
        self.mode = Mode::Steady;
        self.growth = Growth::NONE;
        self.calm_window = self.window;
        self.begin_dip(now, floor, false);
    }

    /// Counts the rate of a round that is not over. While the window doubles, the rounds before it
    /// had half its rate or less. All its samples show a queue, so acknowledgements have come at
    /// the rate of the bottleneck since the first of them: what came with that one left earlier.
    fn heed_unfinished_round(&mut self, now: Instant, floor: Duration) {
        let Some((first, together)) = self.round.first else {
            return;
        };
        let elapsed = now.saturating_duration_since(first);
        if self.shows_queue(floor) && elapsed >= floor / 4 && !elapsed.is_zero() {
            let acked = self.round.acked - together;
            self.rates.push(acked as f64 / elapsed.as_secs_f64(), true);
        }
    }

    /// Whether round trips have become longer in this round (HyStart++, RFC 9406, section 4.2).
    fn shows_queue(&self, floor: Duration) -> bool {
        let rise = (floor / 8).clamp(STARTUP_RISE_MIN, STARTUP_RISE_MAX);
        self.round.samples >= STARTUP_SAMPLES && self.round.standing() > floor + rise
    }

    /// Whether a loss now is due to a full queue.
    fn queue_is_long(&self) -> bool {
        self.queue >= self.queue_max / 2 && self.queue > FOREIGN_QUEUE / 2
    }
}

impl Mode {
    const STARTUP: Self = Self::Startup {
        best: 0.0,
        flat_rounds: 0,
    };
}

impl Controller for Delay {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let sample = now.saturating_duration_since(sent);
        if self.newest.is_none_or(|(newest, _)| newest <= sent) {
            self.newest = Some((sent, sample));
        }
        self.tally(sent).acked += bytes as f64;
        self.round.acked += bytes;
        let (at, together) = self.round.first.get_or_insert((now, 0));
        if *at == now {
            *together += bytes;
        }
        self.batch += bytes;
        self.round.smoothed = rtt.get();
        if rtt.get() != self.smoothed {
            // The sample that has changed the average (RFC 9002, section 5.3).
            let sample = (8 * rtt.get()).saturating_sub(7 * self.smoothed);
            self.round.precise = self.round.precise.min(sample);
            self.smoothed = rtt.get();
        }
        self.round.over |= sent >= self.round.start;
        match &mut self.mode {
            Mode::Startup { .. } if !app_limited && self.dip.is_none() => {
                self.window += bytes as f64
            }
            Mode::Contended(cubic) => {
                cubic.on_ack(now, sent, bytes, app_limited || self.dip.is_some(), rtt)
            }
            _ => {}
        }
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        _app_limited: bool,
        _largest: Option<u64>,
    ) {
        let was_in_flight = in_flight + std::mem::take(&mut self.batch);
        // quinn reports "limited by the application" for moments, whenever a writer waits to be
        // woken.
        self.round.filled |= (was_in_flight + 2 * self.mtu) as f64 >= FILLED * self.window() as f64;
        let Some((sent, sample)) = self.newest.take() else {
            return;
        };
        self.floor.add(now, sample);
        let floor = self.floor.get().unwrap_or(sample);
        self.round.samples += 1;
        self.round.shortest = self.round.shortest.min(sample);
        self.queue = sample.saturating_sub(floor);
        self.queue_max = self.queue_max.max(self.queue);
        self.queue_min = self.queue_min.min(self.queue);
        self.watch_dip(now, in_flight, sent, sample);
        self.turn_model(now, floor);
        if matches!(self.mode, Mode::Startup { .. })
            && self.shows_queue(floor)
            && self.rates.max() > 0.0
        {
            self.end_startup(now);
        }
        if self.round.over {
            self.end_round(now);
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.tally(sent).lost += lost_bytes as f64;
        let marked = lost_bytes == 0;
        if is_persistent_congestion {
            self.window = self.window_min();
            self.mode = Mode::STARTUP;
            self.dip = None;
            self.floor.keep(false);
            // What was measured holds no longer.
            (self.rates, self.round) = (Peak::default(), Round::new(now));
            self.dips = self.dips.max(1);
            return;
        }
        let long = marked || self.queue_is_long() || self.losses.share() > LOSS_MAX;
        match &mut self.mode {
            Mode::Contended(cubic) if long => {
                if std::mem::take(&mut self.claiming) {
                    // The window has doubled since the packet left that was lost.
                    let window = cubic.window() as f64 / 2.0;
                    *cubic = reduced_cubic(now, window, self.mtu);
                } else {
                    cubic.on_congestion_event(now, sent, false, lost_bytes);
                }
            }
            Mode::Startup { .. } if marked => self.end_startup(now),
            Mode::Steady if marked && !self.growth.hold => {
                self.window = (self.window * CUBIC_BETA).max(self.window_min());
                self.growth = Growth {
                    hold: true,
                    ..Growth::NONE
                };
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
        bytes(
            self.dip
                .map_or(f64::INFINITY, |dip| dip.window)
                .min(self.full_window())
                .max(self.window_min()),
        )
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
        bytes(initial_window(self.mtu))
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// CUBIC as it is after a loss has reduced its window to this.
fn reduced_cubic(now: Instant, window: f64, mtu: u64) -> Cubic {
    let mut cubic = new_cubic(now, window / CUBIC_BETA, mtu);
    cubic.on_congestion_event(now, now, false, mtu);
    cubic
}

/// CUBIC that begins with this window, and doubles it until the first loss.
fn new_cubic(now: Instant, window: f64, mtu: u64) -> Cubic {
    let mut config = CubicConfig::default();
    config.initial_window(bytes(window));
    let mtu = mtu.try_into().unwrap_or(u16::MAX);
    Cubic::new(Arc::new(config), now, mtu)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "windows are positive and far below 2^53"
)]
const fn bytes(window: f64) -> u64 {
    window as u64
}

/// RFC 9002, section 7.2.
const INITIAL_WINDOW_PACKETS: u64 = 10;
const INITIAL_WINDOW: u64 = 14_720;

fn initial_window(mtu: u64) -> f64 {
    (INITIAL_WINDOW_PACKETS * mtu).min(INITIAL_WINDOW.max(2 * mtu)) as f64
}

/// quinn keeps one packet less than the window in flight. Receivers acknowledge every second
/// packet.
const WINDOW_MIN_PACKETS: f64 = 4.0;
/// The target queueing delay: this, plus the time of so many packets at the flow's rate.
const TARGET: Duration = Duration::from_millis(3);
const TARGET_PACKETS: f64 = 2.0;
/// A lower bound of round trips, so that quotients stay meaningful.
const MIN_RTT: Duration = Duration::from_micros(10);
/// Rounds of growth by one packet before the step doubles.
const STEADY_ROUNDS: u32 = 3;
/// The share of the window that must be in flight for it to count as filled, give or take two
/// packets that may not fit or not be due.
const FILLED: f64 = 0.9;
/// The maximum step, as a share of the window, that may exceed the target queue.
const REACH: f64 = 0.1;
/// How far a window may exceed what is delivered.
const MODEL_GAIN: f64 = 1.1;
/// The maximum loss attributed to the path; more counts as congestion.
const LOSS_MAX: f64 = 0.25;
/// Dips happen at multiples of this on the wall clock, so that flows of this controller that share
/// a queue dip at the same time and find it empty. Their hosts' clocks have to agree to a fraction
/// of a round trip; otherwise each flow's dips prove less.
const BEAT: Duration = Duration::from_secs(2);
/// The minimum number of rounds between dips, so that a path with a long round trip does not dip
/// all the time.
const DIP_ROUNDS_MIN: u32 = 10;
/// A queue longer than this, and than flows of this controller build, comes from other flows.
const FOREIGN_QUEUE: Duration = Duration::from_millis(10);
/// Consecutive rounds with such a queue that bring a dip forward, and the minimum number of rounds
/// since the last dip.
const CROWDED_ROUNDS: u32 = 2;
const SUSPICION_ROUNDS: u32 = 4;
const NO_RESIDUE: (Duration, Duration, u32) = (Duration::MAX, Duration::ZERO, 0);
/// BBR's cycle of gains, each for a round trip of the empty path, and its bound of what is in
/// flight, in contents of the path (draft-cardwell-iccrg-bbr-00, sections 4.3.4 and 4.2.3.2).
const MODEL_GAINS: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const MODEL_WINDOW: f64 = 2.0;
/// Small windows are whole packets, and quinn keeps one less in flight.
const MODEL_EXTRA_PACKETS: f64 = 2.0;
/// A doubling of the window that does not raise the rate by this is undone: a claim below a sixth
/// of what all send grows, and one above does not.
const RAMP_GROWTH: f64 = 1.7;
/// More losses are not made up for.
const MODEL_LOSS_MAX: f64 = 0.05;
/// After so long without a lull, others may heed losses.
const MODEL_LASTS: Duration = Duration::from_secs(35);
/// RFC 9438, section 4.6.
const CUBIC_BETA: f64 = 0.7;
/// Startup ends after this many rounds in which the rate grew by less than this.
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
        let mut delay = Delay::new(
            now,
            MTU,
            Beat {
                at: now + BEAT,
                is_down: false,
            },
        );
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
