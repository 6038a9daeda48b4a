//! The rules of admission: the rate of newcomers, the waiting room, and the viewers that leave an
//! overloaded server.
//!
//! A connection passes through up to four states. It *knocks* before its handshake, and is refused
//! there, without state, when the handshakes are at their limit; [`Returns`] say when it may come
//! again. Its first request *asks* for admission. An admitted connection is a *viewer* until it
//! ends. The others *wait*, in the order in which they have knocked; each is told when to ask
//! again. When its turn comes, its place is kept until it does.
//!
//! **The rate.** Newcomers get the time that viewers leave of `load_max`. The rate is corrected
//! until the work that is requested takes this time: the load, and the growth of the wait, since
//! the load ends at one. So the cost of a newcomer need not be known (`intake/cost.rs`). As the
//! server fills, the rate falls to zero by itself, and no queue has to build up first.
//!
//! **The brake.** Another resource than the measured one may be the limit. Then blocks wait. From
//! `wait_target` on, a standing wait lowers the rate, to zero at twice that. The load at which this
//! happened is the limit from then on, and recovers slowly.
//!
//! **Leaving.** Nobody leaves because others come. If the server becomes slower than its viewers
//! need, their wait grows, while nobody is let in. After [`LEAVE_AFTER`] above `wait_max`, the
//! youngest are asked to leave, as many as the growth of the wait tells. They wait in front of
//! everybody else.
//!
//! Time and measurements are arguments. Call [`Intake::look`] every 20 to 100 ms, then
//! [`Intake::poll_leave`] until it returns `None`; calls in between are harmless.

mod cost;
mod returns;
mod spread;
mod waits;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::time::Instant;
use cost::{Cost, Sample};
pub use returns::Returns;
use spread::spread;
use waits::Waits;

/// The time in which the rate follows the measurement, and in which it doubles at most: the cost of
/// a newcomer shows a little later than its admission.
const FOLLOW: Duration = Duration::from_millis(500);
const DOUBLES: Duration = Duration::from_millis(250);
/// The time for which unused admissions accumulate.
const BURST: Duration = Duration::from_millis(100);
/// Handshakes per admission while the waiting room is full, and how many more while it is empty:
/// some peers give up, and it has to fill.
const HANDSHAKES: f64 = 1.0;
const HANDSHAKES_MORE: f64 = 0.5;
/// Handshakes per second of a server that admits nobody, so that its waiting room stays filled.
const HANDSHAKES_LEAST: f64 = 1.0;
/// Admissions per second of a server whose time is taken by few viewers.
const FEW_RATE: f64 = 10.0;
/// The waiting room holds what is admitted in this time, and at least this many. While a server
/// fills, handshakes of clients that come in much later take the time of those that could now.
const ROOM: Duration = Duration::from_secs(10);
const ROOM_LEAST: usize = 32;
/// The shortest and longest time after which a waiting peer asks again. A place is kept until its
/// peer asks. If that takes as long as a segment, the load of a crowd that came together has risen
/// again by then.
const AGAIN_LEAST: Duration = Duration::from_millis(100);
const AGAIN_MOST: Duration = Duration::from_secs(3);
/// The part of the longest time over which those are spread that are told to come after it, so that
/// a crowd that has asked at once does not ask again at once.
const AGAIN_SPREAD: f64 = 0.2;
/// The time for which a place is kept beyond the one that its peer was told.
const KEPT: Duration = Duration::from_secs(2);
/// The time for which the wait must exceed `wait_max` before viewers are asked to leave, the least
/// time until more are, and the time in which the queue is to empty then.
pub const LEAVE_AFTER: Duration = Duration::from_secs(2);
const LEAVE_AGAIN: Duration = Duration::from_secs(12);
const DRAIN: Duration = Duration::from_secs(120);
/// The part of the measured excess that leaves at once: if it was less than measured, nobody leaves
/// in vain.
const LEAVE_OF: f64 = 0.8;
/// The share of the viewers that are asked to leave at once, at most.
const LEAVE_MOST: f64 = 1.0 / 3.0;
/// Newcomers and handshakes per second, as a share of the viewers, that explain a wait.
const COMERS: f64 = 0.02;
/// A wait that falls at this share of the speed at which it is to fall needs no leaving.
const FALLS: f64 = 0.5;

/// The limits of an intake.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// The share of the server's time that viewers and newcomers may take, 0 to 1.
    pub load_max: f64,
    /// Admissions per second of a server without load.
    pub first_rate: f64,
    /// Handshakes per second of a server without load, falling to those that the admissions need at
    /// half load.
    pub handshakes_rate: f64,
    /// So many viewers cannot need all of the server's time. If they take it, they take what is
    /// left to them, and share with newcomers; none of them is asked to leave.
    pub few: usize,
    /// The standing wait above which fewer are let in; nobody at twice that.
    pub wait_target: Duration,
    /// The standing wait above which viewers are asked to leave.
    pub wait_max: Duration,
    /// Most connections that wait for admission.
    pub waiting_max: usize,
    /// Most handshakes at a time.
    pub handshakes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            load_max: 0.9,
            first_rate: 200.0,
            handshakes_rate: 4000.0,
            few: 0,
            wait_target: Duration::from_millis(100),
            wait_max: Duration::from_secs(1),
            waiting_max: 4096,
            handshakes_max: 1024,
        }
    }
}

/// The measurements since the last look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// The share of its time that the server has worked, 0 to 1.
    pub load: f64,
    /// The present wait of work that is ready.
    pub wait: Duration,
}

/// A connection, by the order in which it has knocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entrant(u64);

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is a viewer now.
    Admitted,
    /// It waits, and may ask again after this time.
    Wait(Duration),
}

/// The state of an intake, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Status {
    /// Connections that are admitted.
    pub viewers: usize,
    /// Connections that wait, those whose place is kept included.
    pub waiting: usize,
    /// Handshakes in progress.
    pub handshakes: usize,
    /// Admissions per second.
    pub rate: f64,
    /// The load that is given out.
    pub load_max: f64,
    /// The standing wait, in seconds.
    pub wait: f64,
    /// All that were admitted.
    pub admitted: u64,
    /// Handshakes that were refused.
    pub refused: u64,
    /// Answers that told a peer to wait.
    pub told: u64,
    /// Viewers that were asked to leave.
    pub left: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Its handshake is not over.
    Handshake,
    /// It has not asked, or has not come when it was its turn.
    Connected,
    Waiting {
        /// When it asks again.
        told: Instant,
    },
    /// It is its turn; its place is kept until then.
    Kept {
        until: Instant,
    },
    Viewer {
        turn: u64,
    },
}

#[derive(Debug)]
struct Member {
    state: State,
    /// Whether it was a viewer, and was asked to leave.
    has_left: bool,
}

/// The order of the waiting: those that were asked to leave come first.
type Rank = (bool, Entrant);

impl Member {
    fn rank(&self, entrant: Entrant) -> Rank {
        (!self.has_left, entrant)
    }
}

/// Decides who is let in.
#[derive(Debug)]
pub struct Intake {
    config: Config,
    members: HashMap<Entrant, Member>,
    next: u64,
    handshakes: usize,
    waiting: BTreeSet<Rank>,
    kept: BTreeSet<(Instant, Entrant)>,
    /// By the turn of their admission: the youngest is the last.
    viewers: BTreeMap<u64, Entrant>,
    turns: u64,
    looked_at: Instant,
    cost: Cost,
    waits: Waits,
    /// The load that is given out: `load_max`, or less since the brake.
    limit: f64,
    /// Admissions per second, and those that can be given out now.
    rate: f64,
    tokens: f64,
    handshake_tokens: f64,
    /// Newcomers admitted since the last look.
    newcomers: u32,
    /// Handshakes that are over since the last look, those begun, and these and newcomers per
    /// second.
    handshaken: u32,
    knocks: u32,
    comers: f64,
    /// Viewers that are to leave now, and when more may be.
    to_leave: usize,
    leave_again_at: Instant,
    counts: Status,
}

impl Intake {
    /// An intake of a server without viewers.
    pub fn new(config: Config, now: Instant) -> Self {
        let mut intake = Self {
            config,
            members: HashMap::new(),
            next: 0,
            handshakes: 0,
            waiting: BTreeSet::new(),
            kept: BTreeSet::new(),
            viewers: BTreeMap::new(),
            turns: 0,
            looked_at: now,
            cost: Cost::default(),
            waits: Waits::default(),
            limit: config.load_max,
            rate: 0.0,
            tokens: 0.0,
            handshake_tokens: 0.0,
            newcomers: 0,
            handshaken: 0,
            knocks: 0,
            comers: 0.0,
            to_leave: 0,
            leave_again_at: now,
            counts: Status::default(),
        };
        intake.rate = config.first_rate;
        intake.fill(BURST);
        intake
    }

    /// Whether the next handshake would be refused.
    pub fn is_full(&self) -> bool {
        self.handshakes >= self.config.handshakes_max
            || self.waiting.len() + self.handshakes >= self.room()
            || self.handshake_tokens < 1.0
    }

    /// Whether a client has to prove its address before its handshake. Addresses that may be
    /// spoofed get half of the places, and never the last handshake of a server that is short.
    pub fn wants_proof(&self) -> bool {
        2 * self.handshakes >= self.config.handshakes_max
            || 2 * (self.waiting.len() + self.handshakes) >= self.room()
            || self.handshake_tokens < 2.0
    }

    /// A client wants to begin a handshake. `None`: refuse it.
    pub fn knock(&mut self) -> Option<Entrant> {
        if self.is_full() {
            self.counts.refused += 1;
            return None;
        }
        self.handshake_tokens -= 1.0;
        self.handshakes += 1;
        self.knocks += 1;
        let entrant = Entrant(self.next);
        self.next += 1;
        let member = Member {
            state: State::Handshake,
            has_left: false,
        };
        self.members.insert(entrant, member);
        Some(entrant)
    }

    /// Its handshake is over.
    pub fn connected(&mut self, entrant: Entrant) {
        if let Some(member) = self.members.get_mut(&entrant)
            && matches!(member.state, State::Handshake)
        {
            self.handshakes -= 1;
            self.handshaken += 1;
            member.state = State::Connected;
        }
    }

    /// It requests blocks. Harmless for a viewer.
    pub fn ask(&mut self, now: Instant, entrant: Entrant) -> Answer {
        self.connected(entrant);
        let Some(member) = self.members.get(&entrant) else {
            return Answer::Wait(AGAIN_MOST);
        };
        let rank = member.rank(entrant);
        match member.state {
            State::Viewer { .. } => return Answer::Admitted,
            State::Kept { until } => {
                self.kept.remove(&(until, entrant));
                return self.admit(entrant);
            }
            State::Handshake | State::Connected | State::Waiting { .. } => {}
        }
        let is_first = self.waiting.first().is_none_or(|first| rank <= *first);
        if is_first && self.tokens >= 1.0 {
            self.tokens -= 1.0;
            self.waiting.remove(&rank);
            return self.admit(entrant);
        }
        self.counts.told += 1;
        // Connections that have asked for nothing since their handshake may all ask at once.
        if self.waiting.len() >= self.config.waiting_max && !self.waiting.contains(&rank) {
            return Answer::Wait(AGAIN_MOST);
        }
        self.waiting.insert(rank);
        let again = self.again(rank);
        self.set(entrant, State::Waiting { told: now + again });
        Answer::Wait(again)
    }

    /// Its connection, or its handshake, has ended.
    pub fn leave(&mut self, entrant: Entrant) {
        let Some(member) = self.members.remove(&entrant) else {
            return;
        };
        match member.state {
            State::Handshake => self.handshakes -= 1,
            State::Connected => {}
            State::Waiting { .. } => drop(self.waiting.remove(&member.rank(entrant))),
            State::Kept { until } => {
                self.kept.remove(&(until, entrant));
                self.tokens += 1.0;
            }
            State::Viewer { turn } => drop(self.viewers.remove(&turn)),
        }
    }

    /// Takes a measurement, and moves the queue.
    pub fn look(&mut self, now: Instant, look: Look) {
        let passed = now.saturating_duration_since(self.looked_at);
        if passed.is_zero() {
            return;
        }
        self.looked_at = now;
        let seconds = passed.as_secs_f64();
        let per_second = |count: &mut u32| f64::from(std::mem::take(count)) / seconds;
        let newcomers = per_second(&mut self.newcomers);
        let handshakes = per_second(&mut self.handshaken);
        let knocks = per_second(&mut self.knocks);
        let share = (seconds / LEAVE_AFTER.as_secs_f64()).min(1.0);
        self.comers += (newcomers + knocks - self.comers) * share;
        let standing = self.waits.standing(GROWTH_WINDOW);
        let sample = Sample {
            load: look.load,
            wait: look.wait.as_secs_f64().min(standing),
            viewers: self.viewers.len() as f64,
            admissions: newcomers,
            handshakes,
        };
        self.cost.note(passed, sample);
        self.waits.note(passed, look.load, look.wait);
        self.move_limit(passed);
        let aim = self.aim();
        let step = (aim - self.rate) * (seconds / FOLLOW.as_secs_f64()).min(1.0);
        let doubled =
            self.rate.max(self.config.first_rate / 4.0) * (seconds / DOUBLES.as_secs_f64());
        self.rate += step.min(doubled);
        self.fill(passed);
        self.forget_absent(now);
        self.call(now);
        self.judge_overload(now);
    }

    /// A viewer that is to leave. It waits now, and may ask again after this time.
    pub fn poll_leave(&mut self, now: Instant) -> Option<(Entrant, Duration)> {
        self.to_leave = self.to_leave.checked_sub(1)?;
        let (_, entrant) = self.viewers.pop_last()?;
        let member = self.members.get_mut(&entrant)?;
        member.has_left = true;
        let rank = member.rank(entrant);
        self.waiting.insert(rank);
        let again = self.again(rank);
        self.set(entrant, State::Waiting { told: now + again });
        self.counts.left += 1;
        Some((entrant, again))
    }

    /// Whether somebody has to wait.
    pub fn is_short(&self) -> bool {
        !self.waiting.is_empty() || self.rate < 1.0
    }

    /// Counts and sizes.
    pub fn status(&self) -> Status {
        Status {
            viewers: self.viewers.len(),
            waiting: self.waiting.len() + self.kept.len(),
            handshakes: self.handshakes,
            rate: self.rate,
            load_max: self.limit,
            wait: self.waits.standing(BRAKE_WINDOW),
            ..self.counts
        }
    }

    fn set(&mut self, entrant: Entrant, state: State) {
        if let Some(member) = self.members.get_mut(&entrant) {
            member.state = state;
        }
    }

    fn admit(&mut self, entrant: Entrant) -> Answer {
        let turn = self.turns;
        self.turns += 1;
        self.newcomers += 1;
        self.counts.admitted += 1;
        self.viewers.insert(turn, entrant);
        self.set(entrant, State::Viewer { turn });
        Answer::Admitted
    }

    /// The admissions per second that are aimed at.
    fn aim(&self) -> f64 {
        let wait_max = self.config.wait_max.as_secs_f64();
        let least = if self.are_few() && self.waits.standing(BRAKE_WINDOW) <= wait_max {
            FEW_RATE
        } else {
            0.0
        };
        (self.room_rate() * self.brake()).max(least)
    }

    fn are_few(&self) -> bool {
        self.viewers.len() < self.config.few
    }

    /// The admissions per second that the measured work leaves time for.
    fn room_rate(&self) -> f64 {
        let viewers = (self.viewers.len() + self.kept.len()) as f64;
        self.cost
            .means()
            .map(|mean| {
                let idle = self.config.first_rate * (1.0 - 4.0 * mean.demand());
                mean.rate(self.limit, viewers).max(idle)
            })
            .fold(f64::MAX, f64::min)
    }

    /// The share of the aimed rate that the standing wait allows.
    fn brake(&self) -> f64 {
        let target = self.config.wait_target.as_secs_f64();
        (2.0 - self.waits.standing(BRAKE_WINDOW) / target).clamp(0.0, 1.0)
    }

    /// Lowers the load that is given out where blocks wait although the load is lower, and raises
    /// it slowly again.
    fn move_limit(&mut self, passed: Duration) {
        let target = self.config.wait_target.as_secs_f64();
        let load = self.waits.load(LIMIT_WINDOW);
        let is_braked = self.waits.standing(LIMIT_WINDOW) >= 2.0 * target;
        if is_braked && !self.are_few() && load < self.limit * BRAKED {
            self.limit = (load * BRAKED).max(LIMIT_LEAST);
        } else if self.waits.standing(BRAKE_WINDOW) <= target {
            let rise = RECOVERS * passed.as_secs_f64();
            self.limit = (self.limit + rise).min(self.config.load_max);
        }
    }

    /// Adds the admissions and handshakes of this time.
    fn fill(&mut self, passed: Duration) {
        let idle = (1.0 - 2.0 * self.cost.load()).max(0.0);
        let vacant = 1.0 - (self.waiting.len() as f64 / self.room() as f64).min(1.0);
        let handshakes = (HANDSHAKES + HANDSHAKES_MORE * vacant) * self.rate
            + HANDSHAKES_LEAST
            + self.config.handshakes_rate * idle;
        let add = |tokens: f64, rate: f64| {
            let most = (rate * BURST.as_secs_f64()).max(1.0);
            (tokens + rate * passed.as_secs_f64()).min(most)
        };
        self.tokens = add(self.tokens, self.rate);
        self.handshake_tokens = add(self.handshake_tokens, handshakes);
    }

    /// The places of the waiting room.
    fn room(&self) -> usize {
        let room = whole(self.rate * ROOM.as_secs_f64());
        room.max(ROOM_LEAST).min(self.config.waiting_max)
    }

    /// The time until it is about the turn of this rank.
    fn again(&self, rank: Rank) -> Duration {
        let first = self.waiting.first().map_or(0, |(_, first)| first.0);
        let before = (rank.1.0.saturating_sub(first) as f64).min(self.waiting.len() as f64);
        let wait = (before + 1.0) / self.rate.max(1e-3);
        let most = AGAIN_MOST.as_secs_f64() * (1.0 - AGAIN_SPREAD * spread(rank.1.0));
        Duration::from_secs_f64(wait.min(most)).max(AGAIN_LEAST)
    }

    /// Frees the places of those that have not come.
    fn forget_absent(&mut self, now: Instant) {
        while let Some((until, entrant)) = self.kept.first().copied()
            && until < now
        {
            self.kept.pop_first();
            self.set(entrant, State::Connected);
            self.tokens += 1.0;
        }
    }

    /// Keeps places for those whose turn it is.
    fn call(&mut self, now: Instant) {
        while self.tokens >= 1.0
            && let Some((_, entrant)) = self.waiting.pop_first()
        {
            self.tokens -= 1.0;
            let told = match self.members.get(&entrant).map(|member| member.state) {
                Some(State::Waiting { told }) => told,
                _ => now,
            };
            let until = told.max(now) + KEPT;
            self.kept.insert((until, entrant));
            self.set(entrant, State::Kept { until });
        }
    }

    /// Decides whether viewers have to leave.
    fn judge_overload(&mut self, now: Instant) {
        let (wait_max, wait) = (
            self.config.wait_max.as_secs_f64(),
            self.waits.standing(LEAVE_AFTER),
        );
        let growth = self.waits.growth();
        let drains = (self.waits.now() - self.config.wait_target.as_secs_f64()).max(0.0)
            / DRAIN.as_secs_f64();
        // The work of newcomers is soon over.
        let are_coming = self.comers > COMERS * self.viewers.len() as f64;
        let falls = growth < -FALLS * drains;
        let are_enough = wait <= wait_max || falls || are_coming || now < self.leave_again_at;
        if are_enough || self.are_few() {
            return;
        }
        let growth = growth.max(0.0);
        let share = (LEAVE_OF * growth / (1.0 + growth) + drains).min(LEAVE_MOST);
        self.to_leave = whole((self.viewers.len() as f64 * share).ceil());
        self.leave_again_at = now + LEAVE_AGAIN;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates"
)]
fn whole(number: f64) -> usize {
    number as usize
}

/// The time over which a wait must stand for its growth to count, and for the brake.
const GROWTH_WINDOW: Duration = Duration::from_millis(250);
const BRAKE_WINDOW: Duration = Duration::from_millis(500);
/// The time over which a wait must stand until it shows another limit than the load, and not only a
/// stall.
const LIMIT_WINDOW: Duration = Duration::from_secs(2);
/// The limit after the brake, as a share of the load then; its least; its recovery per second.
const BRAKED: f64 = 0.97;
const LIMIT_LEAST: f64 = 0.2;
const RECOVERS: f64 = 0.005;

#[cfg(test)]
mod tests;
