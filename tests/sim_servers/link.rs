//! A viewer's connection to one server, as `ncpeer/driver/link.rs` and `attempts.rs` make it, watch
//! it and end it. The rules and constants are theirs.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::peer::proto::SourceId;
use ncserverd::peer::proto::silence::{Look, Silence};
use ncserverd::wire::frame;
use ncserverd::wire::message::VisitId;
use rand::RngExt as _;

use crate::net::{Net, Packet, Way, WireId};

const PING_AFTER: Duration = Duration::from_secs(2);
const PONG_WITHIN: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(250);
const IDLE: Duration = Duration::from_secs(15);
const GOOD_CONNECTION: Duration = Duration::from_secs(10);
const ATTEMPTS_MAX: usize = 4;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_UNKNOWN: Duration = Duration::from_secs(1);
const RECONNECT_MAX: Duration = Duration::from_secs(8);
const REFUSED_MIN: Duration = Duration::from_millis(500);
const REFUSED_MAX: Duration = Duration::from_secs(30);
/// How long an attempt may take: by default, and where another server has named the address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const NAMED_TIMEOUT: Duration = Duration::from_secs(3);
/// When QUIC repeats the first packet of a handshake: after three initial round trips, then at
/// doubling intervals.
const FIRST_AGAIN: Duration = Duration::from_millis(300);

pub(crate) struct Link {
    pub(crate) id: SourceId,
    pub(crate) server: usize,
    pub(crate) visit: VisitId,
    /// Whether another server has named it.
    pub(crate) is_sent: bool,
    has_failed: bool,
    attempts: Attempts,
    pub(crate) state: State,
}

pub(crate) enum State {
    Down,
    Up(Box<Up>),
    Over,
}

pub(crate) struct Up {
    pub(crate) wire: WireId,
    pub(crate) frames: frame::Reader,
    begun: Instant,
    /// Packets received, and when the last one came.
    heard: u64,
    heard_at: Instant,
    has_pinged: bool,
    look_at: Instant,
    pub(crate) is_silent: bool,
    silence: Silence,
}

struct Attempts {
    running: Vec<Attempt>,
    since: Instant,
    next_at: Instant,
    refusals: u32,
    rtt: Option<Duration>,
    pub(crate) begun: u64,
}

struct Attempt {
    wire: WireId,
    until: Instant,
    again: (Instant, Duration),
}

/// What has come of the time that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// The connection is silent from now on, or not any more.
    Silence(bool),
    /// QUIC has given up the connection.
    Idle,
    /// An attempt has failed.
    NotConnected,
}

impl Link {
    pub(crate) fn new(
        id: SourceId,
        server: usize,
        named_at: Option<Option<Duration>>,
        net: &mut Net,
    ) -> Self {
        Self {
            id,
            server,
            visit: VisitId(net.random.random()),
            is_sent: named_at.is_some(),
            has_failed: false,
            attempts: Attempts {
                running: Vec::new(),
                since: net.now,
                next_at: net.now,
                refusals: 0,
                rtt: named_at.flatten(),
                begun: 0,
            },
            state: State::Down,
        }
    }

    pub(crate) fn up(&self) -> Option<&Up> {
        match &self.state {
            State::Up(up) => Some(up),
            _ => None,
        }
    }

    pub(crate) fn up_mut(&mut self) -> Option<&mut Up> {
        match &mut self.state {
            State::Up(up) => Some(up),
            _ => None,
        }
    }

    pub(crate) fn wire(&self) -> Option<WireId> {
        self.up().map(|up| up.wire)
    }

    /// Attempts begun.
    pub(crate) fn begun(&self) -> u64 {
        self.attempts.begun
    }

    pub(crate) fn is_down(&self) -> bool {
        matches!(self.state, State::Over) || (matches!(self.state, State::Down) && self.has_failed)
    }

    /// Whether this is its connection, or an attempt of it.
    pub(crate) fn knows(&self, wire: WireId) -> bool {
        let mut running = self.attempts.running.iter();
        self.wire() == Some(wire) || running.any(|attempt| attempt.wire == wire)
    }

    /// A packet has come.
    pub(crate) fn heard(&mut self, wire: WireId, now: Instant) {
        if let Some(up) = self.up_mut().filter(|up| up.wire == wire) {
            up.heard += 1;
            up.heard_at = now;
            up.has_pinged = false;
            if !up.is_silent {
                up.look_at = up.silent_at();
            }
        }
    }

    /// A handshake is complete. Whether the connection is made: one that is silent is to be ended
    /// before.
    pub(crate) fn accepted(&mut self, wire: WireId, net: &mut Net) {
        let running = &mut self.attempts.running;
        running.retain(|attempt| attempt.wire != wire);
        self.attempts.cancel(net);
        let mut up = Up {
            wire,
            frames: frame::Reader::new(),
            begun: net.now,
            heard: 1,
            heard_at: net.now,
            has_pinged: false,
            look_at: net.now,
            is_silent: false,
            silence: Silence::new(net.now),
        };
        up.look_at = up.silent_at();
        self.state = State::Up(Box::new(up));
        self.has_failed = false;
    }

    /// The server refuses a handshake.
    pub(crate) fn refused(&mut self, wire: WireId, net: &mut Net) {
        let attempts = &mut self.attempts;
        attempts.running.retain(|attempt| attempt.wire != wire);
        net.forget(wire, Way::Up);
        let bound = (REFUSED_MIN * (1 << attempts.refusals.min(16))).min(REFUSED_MAX);
        attempts.refusals += 1;
        let pause = bound.mul_f64(net.random.random()).max(PAUSE_MIN);
        attempts.next_at = attempts.next_at.max(net.now + pause);
        self.has_failed |= matches!(self.state, State::Down);
    }

    /// Ends the connection. `soon`: the server has ended it on purpose. `is_replaced`: there is
    /// another one in its place.
    pub(crate) fn end(&mut self, soon: bool, is_replaced: bool, net: &mut Net) {
        let State::Up(up) = std::mem::replace(&mut self.state, State::Down) else {
            return;
        };
        let (now, attempts) = (net.now, &mut self.attempts);
        if now.saturating_duration_since(up.begun) >= GOOD_CONNECTION {
            attempts.refusals = 0;
        }
        if !up.is_silent {
            attempts.silent(now, net.rtt(up.wire), net);
        }
        if soon {
            attempts.refusals += 1;
            let shift = (attempts.refusals - 1).min(16);
            let pause = spread((PAUSE_MIN * (1 << shift)).min(RECONNECT_MAX), net);
            attempts.next_at = attempts.next_at.max(now + pause);
        }
        self.has_failed = !is_replaced;
    }

    pub(crate) fn give_up(&mut self, net: &mut Net) {
        self.attempts.cancel(net);
        self.state = State::Over;
    }

    pub(crate) fn resume(&mut self, now: Instant) {
        if matches!(self.state, State::Over) {
            (self.attempts.since, self.attempts.next_at) = (now, now);
            self.attempts.refusals = 0;
            self.state = State::Down;
        }
    }

    /// Whether the server owes something and says nothing.
    pub(crate) fn is_mute(&mut self, owes: bool, net: &mut Net) -> bool {
        let State::Up(up) = &mut self.state else {
            return false;
        };
        let (heard, rtt) = (up.heard, net.rtt(up.wire));
        let Look { is_mute, knocks } = up.silence.look(net.now, owes, rtt, true, || heard);
        if knocks {
            let mut out = Vec::new();
            frame::encode_knock(net.random.random(), &mut out);
            net.write(up.wire, Way::Up, out.into());
        }
        is_mute
    }

    pub(crate) fn listens_at(&self) -> Option<Instant> {
        self.up()?.silence.due()
    }

    /// When [`Link::pass`] has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        let up = self.up().map(|up| {
            let ping = (!up.has_pinged).then(|| up.heard_at + PING_AFTER);
            up.look_at.min(ping.unwrap_or(up.heard_at + IDLE))
        });
        let attempts = self.tries().then(|| self.attempts.due());
        [up, attempts].into_iter().flatten().min()
    }

    fn tries(&self) -> bool {
        match &self.state {
            State::Down => true,
            State::Up(up) => up.is_silent,
            State::Over => false,
        }
    }

    /// Does what is due.
    pub(crate) fn pass(&mut self, viewer: usize, net: &mut Net) -> Option<Passed> {
        let now = net.now;
        let mut passed = None;
        if let State::Up(up) = &mut self.state {
            if up.heard_at + IDLE <= now {
                return Some(Passed::Idle);
            }
            if !up.has_pinged && up.heard_at + PING_AFTER <= now {
                up.has_pinged = true;
                net.write(up.wire, Way::Up, Bytes::new());
            }
            if up.look_at <= now {
                let is_silent = up.silent_at() <= now;
                if is_silent && !up.is_silent {
                    let rtt = net.rtt(up.wire);
                    self.attempts.silent(now, rtt, net);
                    self.attempts.since = up.heard_at;
                    passed = Some(Passed::Silence(true));
                } else if !is_silent && up.is_silent {
                    self.attempts.cancel(net);
                    passed = Some(Passed::Silence(false));
                }
                up.is_silent = is_silent;
                up.look_at = match is_silent {
                    true => now + LOOK_EVERY,
                    false => up.silent_at(),
                };
            }
        }
        if self.tries() {
            let timeout = match self.is_sent {
                true => NAMED_TIMEOUT,
                false => CONNECT_TIMEOUT,
            };
            let has_failed = self
                .attempts
                .pass((viewer, self.server, self.id), timeout, net);
            if has_failed && matches!(self.state, State::Down) {
                self.has_failed = true;
                passed = Some(Passed::NotConnected);
            }
        }
        passed
    }
}

impl Up {
    /// When the looks at received packets find that the connection is silent.
    fn silent_at(&self) -> Instant {
        let look_after = |at: Instant| {
            let since = at.saturating_duration_since(self.begun).as_micros();
            let looks = since.div_ceil(LOOK_EVERY.as_micros()).max(1);
            self.begun + LOOK_EVERY * u32::try_from(looks).expect("a short run")
        };
        look_after(look_after(self.heard_at) + PING_AFTER + PONG_WITHIN)
    }
}

impl Attempts {
    fn silent(&mut self, now: Instant, rtt: Duration, net: &mut Net) {
        let pause = PAUSE_MIN.mul_f64(net.random.random_range(0.0..0.5));
        (self.since, self.next_at, self.rtt) = (now, now + pause, Some(rtt));
    }

    fn cancel(&mut self, net: &mut Net) {
        for attempt in self.running.drain(..) {
            net.forget(attempt.wire, Way::Up);
        }
    }

    fn due(&self) -> Instant {
        let running = self.running.iter();
        let running = running.map(|attempt| attempt.until.min(attempt.again.0));
        running.chain([self.next_at]).min().expect("there is one")
    }

    /// Whether an attempt has failed.
    fn pass(
        &mut self,
        (viewer, server, source): (usize, usize, SourceId),
        timeout: Duration,
        net: &mut Net,
    ) -> bool {
        let now = net.now;
        let before = self.running.len();
        self.running.retain(|attempt| attempt.until > now);
        let has_failed = self.running.len() < before;
        for attempt in &mut self.running {
            let (at, pause) = &mut attempt.again;
            if *at <= now {
                *pause *= 2;
                *at = now + *pause;
                net.send(attempt.wire, Way::Up, Packet::Initial);
            }
        }
        if self.next_at <= now {
            if self.running.len() >= ATTEMPTS_MAX {
                self.running.remove(1);
            }
            let wire = net.open(viewer, server, source);
            net.send(wire, Way::Up, Packet::Initial);
            self.running.push(Attempt {
                wire,
                until: now + timeout,
                again: (now + FIRST_AGAIN, FIRST_AGAIN),
            });
            self.begun += 1;
            let outage = now.saturating_duration_since(self.since);
            let least = self
                .rtt
                .map_or(PAUSE_UNKNOWN, |rtt| (rtt * 3).max(PAUSE_MIN));
            let pause = (outage / 8).max(least).min(RECONNECT_MAX);
            self.next_at = now + spread(pause, net);
        }
        has_failed
    }
}

fn spread(pause: Duration, net: &mut Net) -> Duration {
    pause.mul_f64(net.random.random_range(0.9..1.1))
}
