//! Dips and their evidence: the path's own losses, other flows that fill the queue, and a path that
//! has become longer.

use std::time::{Duration, Instant};

use quinn::congestion::Controller;

use super::{
    Delay, FOREIGN_QUEUE, Growth, LOSS_MAX, MIN_RTT, MODEL_GAINS, MODEL_LASTS, Mode, Model,
    NO_RESIDUE, RAMP_GROWTH, Ramp, Tally, new_cubic, reduced_cubic,
};

/// A dip in progress, and its samples.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dip {
    start: Instant,
    pub(super) window: f64,
    /// Since when the bytes in flight fit the window.
    drained: Option<Instant>,
    shortest: Duration,
    /// The queue that this flow alone would leave, where even the smallest window exceeds what the
    /// path holds.
    own_queue: Duration,
    /// Whether other flows of this controller dip at the same time.
    on_beat: bool,
}

impl Delay {
    /// Lowers the window for two round trips. The first empties the queue, if it is this flow's
    /// own.
    pub(super) fn begin_dip(&mut self, now: Instant, standing: Duration, on_beat: bool) {
        let Some(floor) = self.floor.get() else {
            return;
        };
        if matches!(self.mode, Mode::Steady) {
            self.heed_losses();
        } else if self.losses.share() > DEAF_LOSS {
            self.lossy += 1;
            if self.lossy >= DEAF_DIPS && self.model.is_none() {
                self.notice_deaf_flows(now);
            }
        } else {
            self.lossy = 0;
        }
        self.losses = Tally::default();
        self.quiet_losses.fade();
        let fill = (self.full_window() / standing.max(MIN_RTT).as_secs_f64()).min(self.rates.max())
            * floor.as_secs_f64();
        let gain = match self.mode {
            Mode::Contended(_) => CONTENDED_DIP_GAIN,
            _ if self.dips == 0 => FIRST_DIP_GAIN,
            _ => DIP_GAIN,
        };
        let window = (gain * fill).max(self.window_min());
        let own = Duration::try_from_secs_f64(window / self.rates.max().max(1.0))
            .unwrap_or(Duration::MAX);
        // If the window hardly fell, this cannot be told.
        let fell = self.full_window() >= DIP_FALL_MIN * window;
        let own_queue = if fell {
            own.saturating_sub(floor)
        } else {
            Duration::ZERO
        };
        self.dip = Some(Dip {
            start: now,
            window,
            drained: None,
            shortest: Duration::MAX,
            own_queue,
            on_beat,
        });
    }

    /// Shrinks the window by the losses since the last dip that exceed the path's own.
    fn heed_losses(&mut self) {
        let (share, path) = (self.losses.share(), self.quiet_losses.share().min(LOSS_MAX));
        let excess = share - path;
        let doubt = DOUBT * (self.losses.variance() + self.quiet_losses.variance()).sqrt();
        if excess > EXCESS + doubt {
            self.window = (self.window * (1.0 - excess.min(0.3))).max(self.window_min());
            self.ceiling = Some((self.window, 0));
            self.growth = Growth::NONE;
        } else if let Some((ceiling, cycles)) = &mut self.ceiling {
            *ceiling *= CEILING_GROWTH;
            *cycles += 1;
            if *cycles == CEILING_CYCLES {
                self.ceiling = None;
            }
        }
    }

    /// Ends a dip once it has shown enough.
    pub(super) fn watch_dip(
        &mut self,
        now: Instant,
        in_flight: u64,
        sent: Instant,
        sample: Duration,
    ) {
        let (Some(dip), Some(floor)) = (&mut self.dip, self.floor.get()) else {
            return;
        };
        dip.shortest = dip.shortest.min(sample);
        if dip.drained.is_none() && in_flight as f64 <= dip.window {
            dip.drained = Some(now);
        }
        let Dip {
            start,
            drained,
            shortest,
            own_queue,
            on_beat,
            ..
        } = *dip;
        let overdue =
            now.saturating_duration_since(start) > DIP_ROUND_TRIPS_MAX * (floor + self.queue_max);
        let seen = drained.is_some_and(|drained| sent >= drained);
        if !seen && !overdue {
            return;
        }
        self.dip = None;
        self.dips += 1;
        self.rounds_since_dip = 0;
        self.queue_max = Duration::ZERO;
        let queue_min = std::mem::replace(&mut self.queue_min, Duration::MAX);
        self.growth.hold = true;
        let left = shortest.saturating_sub(floor);
        let most = match self.mode {
            Mode::Contended(_) => CONTENDED_QUEUE,
            _ if on_beat => FOREIGN_QUEUE,
            _ => self.foreign_queue(floor),
        };
        let foreign = left > own_queue + most;
        if foreign {
            (self.foreign, self.clean) = (self.foreign + 1, 0);
        } else {
            (self.foreign, self.clean) = (0, self.clean + 1);
            // The first dip does not count: its losses may come from the queue that startup has
            // built.
            self.quiet = drained
                .filter(|_| self.dips > 1)
                .map(|drained| (drained, now));
        }
        self.begin_ramp();
        match &self.mode {
            Mode::Steady if self.foreign >= FOREIGN_DIPS => self.enter_contention(now),
            Mode::Steady
                if self.foreign > 0
                    && self.contended.is_some_and(|(_, left)| now < left + RELAPSE) =>
            {
                self.enter_contention(now);
            }
            Mode::Contended(_) if self.clean >= self.clean_dips() => self.leave_contention(now),
            Mode::Contended(cubic) if self.foreign == CLAIM_DIPS => {
                let window = cubic.window() as f64;
                self.mode = Mode::Contended(new_cubic(now, window, self.mtu));
                self.claiming = true;
            }
            Mode::Contended(_) if foreign => self.doubt_floor(now, queue_min),
            _ => {}
        }
    }

    /// The number of dips without a queue that end a contention. BBR leaves none in some dips where
    /// the buffer is short.
    const fn clean_dips(&self) -> u32 {
        if self.model.is_some() {
            CLEAN_DIPS_MODEL
        } else {
            CLEAN_DIPS
        }
    }

    /// Queues filled by other flows vary; if dip after dip leaves the same one, the path has become
    /// longer.
    fn doubt_floor(&mut self, now: Instant, left: Duration) {
        let (shortest, longest, dips) = self.residue;
        self.residue = (shortest.min(left), longest.max(left), dips + 1);
        if dips + 1 == RESIDUE_DIPS {
            if self.residue.1 - self.residue.0 < RESIDUE_RANGE {
                self.floor.raise(now, self.residue.0);
                self.leave_contention(now);
                self.contended = None;
            }
            self.residue = NO_RESIDUE;
        }
    }

    /// Hands the window to CUBIC.
    fn enter_contention(&mut self, now: Instant) {
        let before = self
            .contended
            .filter(|(_, left)| now < *left + RELAPSE)
            .map_or(self.calm_window, |(window, _)| window);
        let claim = self.window.max(before);
        let cubic = reduced_cubic(now, claim, self.mtu);
        self.claiming = false;
        self.mode = Mode::Contended(cubic);
        self.floor.keep(true);
        self.residue = NO_RESIDUE;
        self.ceiling = None;
        (self.crowded, self.clean, self.lossy) = (0, 0, 0);
    }

    /// Holds a part of the path beside flows that do not heed losses.
    pub(super) fn notice_deaf_flows(&mut self, now: Instant) {
        if !matches!(self.mode, Mode::Contended(_)) {
            self.enter_contention(now);
        }
        self.lossy = 0;
        let begun = Model {
            phase: 0,
            since: now,
            ramp: None,
            noticed: now,
        };
        self.model.get_or_insert(begun).noticed = now;
    }

    /// Tries whether the claim can grow.
    fn begin_ramp(&mut self) {
        let window = self.full_window();
        if let Some(model) = &mut self.model {
            model.ramp = Some(Ramp {
                window,
                before: None,
                rounds: 0,
                sum: 0.0,
            });
        }
    }

    /// Takes the rate of a round outside of dips.
    pub(super) fn ramp_up(&mut self, rate: f64) {
        let Some(model) = &mut self.model else { return };
        let Some(ramp) = &mut model.ramp else { return };
        ramp.rounds += 1;
        if ramp.rounds == 1 {
            return;
        }
        ramp.sum += rate;
        if ramp.rounds <= RAMP_ROUNDS {
            return;
        }
        let rate = ramp.sum / f64::from(RAMP_ROUNDS);
        match ramp.before {
            Some((before, rates)) if rate < RAMP_GROWTH * before => {
                self.rates = rates;
                model.ramp = None;
            }
            _ => {
                *ramp = Ramp {
                    window: 2.0 * ramp.window,
                    before: Some((rate, self.rates)),
                    rounds: 0,
                    sum: 0.0,
                }
            }
        }
    }

    /// Goes on in the cycle of gains, and ends it where no such flow was noticed for long.
    pub(super) fn turn_model(&mut self, now: Instant, floor: Duration) {
        let Some(model) = &mut self.model else {
            return;
        };
        if now.saturating_duration_since(model.noticed) > MODEL_LASTS {
            self.model = None;
        } else if now.saturating_duration_since(model.since) > floor {
            (model.phase, model.since) = ((model.phase + 1) % MODEL_GAINS.len(), now);
        }
    }

    /// Takes the window back, as far as it fills the path.
    fn leave_contention(&mut self, now: Instant) {
        self.contended = Some((self.full_window(), now));
        let fill = self.rates.max() * self.floor.get().unwrap_or_default().as_secs_f64();
        self.window = fill.min(self.full_window()).max(self.window_min());
        self.mode = Mode::Steady;
        self.model = None;
        self.floor.keep(false);
        self.growth = Growth::NONE;
        (self.crowded, self.foreign, self.clean) = (0, 0, 0);
    }
}

/// Flows that heed losses do not cause as many.
const DEAF_LOSS: f64 = 0.1;
const DEAF_DIPS: u32 = 2;
/// The number of rounds whose rates are compared with those before.
const RAMP_ROUNDS: u32 = 2;
/// Tolerated excess of losses outside of dips, plus this many standard deviations.
const EXCESS: f64 = 0.01;
const DOUBT: f64 = 2.0;
/// The growth of the ceiling after excess losses, per cycle, and the number of cycles.
const CEILING_GROWTH: f64 = 1.02;
const CEILING_CYCLES: u32 = 8;
/// The part of a filled path that remains in a dip.
const DIP_GAIN: f64 = 0.75;
const CONTENDED_DIP_GAIN: f64 = 0.95;
/// The same of the dip in which the first startup ends. The floor is new, and the losses in this
/// dip are not taken for the path's own, so it has only to empty the queue that startup has built,
/// while somebody waits for the first bytes.
const FIRST_DIP_GAIN: f64 = 0.95;
/// A dip that lowers the window by less tells nothing about this flow's share of the queue.
const DIP_FALL_MIN: f64 = 1.5;
/// A longer dip has no more packets to watch.
const DIP_ROUND_TRIPS_MAX: u32 = 4;
/// A longer queue after a dip in contention comes from other flows.
const CONTENDED_QUEUE: Duration = Duration::from_millis(4);
/// Consecutive dips needed to detect other flows, or their absence.
const FOREIGN_DIPS: u32 = 3;
const CLEAN_DIPS: u32 = 2;
const CLEAN_DIPS_MODEL: u32 = 6;
/// After so many dips that found other flows, CUBIC claims a part as a new flow of CUBIC does, in
/// slow start: others have had time to take the path.
pub(super) const CLAIM_DIPS: u32 = 5;
/// So soon after a contention one dip is enough, and CUBIC resumes from the old window.
const RELAPSE: Duration = Duration::from_secs(15);
/// The number of dips of a contention that are compared, and the minimum range of queues that other
/// flows leave.
const RESIDUE_DIPS: u32 = 5;
const RESIDUE_RANGE: Duration = Duration::from_millis(5);
