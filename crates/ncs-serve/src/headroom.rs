//! Detects whether the server has time for new clients, by the time until requested blocks can be
//! sent.
//!
//! A server that sends at full speed is busy, but has room for more clients, which share with the
//! others. There is no room when clients request more than the server makes and sends, whatever
//! limits it: then the rest waits ever longer, and every new client delays all others. Existing
//! viewers are kept. Newcomers are let in at the rate that an [`Intake`] finds from the load and
//! the wait; others are told when to come again. The load is the busy share of the sessions'
//! threads, or the share of all processors that the process uses, if that is higher, less the part
//! that downloads take.
//!
//! The wait has two parts: the time to make the requested blocks, at the present rate, and the
//! scheduling latency of the sessions that send them. The latency is measured by a task that does
//! nothing. It is made runnable again and again, as blocks and acknowledgements make sessions
//! runnable. A short queue is harmless, and each new segment of a live stream causes one. So what
//! counts is a standing queue: the shortest wait of a second (as in RFC 8289, CoDel, section 3.2).

mod entry;
mod shares;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ncs_net::machine::{Machine, cpu_time};
use ncs_net::telemetry::{MILESTONE, Readiness, register};
use ncs_proto::admission::intake::{self, Intake};
use prometheus::{Gauge, IntCounter, IntGauge, Registry};
use tokio::runtime::{Handle, RuntimeMetrics};

use crate::ring::Ring;
use crate::turn::Turn;
pub use entry::{Closed, Entry, Proof};
use entry::{Door, Outside};
use shares::{Reports, Shares};

/// The interval between looks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The same where only a few peers are served.
pub(crate) const LOOK_SELDOM: Duration = Duration::from_millis(200);
/// The time over which values are averaged, and for which the wait has to be too long.
const MEMORY: Duration = Duration::from_secs(1);
/// There is room again when the wait falls to this part of the maximum.
const RELIEF: f64 = 0.25;
/// The time without room after which `/readyz` reports it: load balancers are slow to come back.
const SAID_AFTER: Duration = Duration::from_secs(5);
/// The maximum reported wait.
const WAIT_MOST: f64 = 10.0;

/// Per thread: admissions and handshakes per second of a server without load, and handshakes at a
/// time. A handshake with a first segment takes 0.5 to 2 ms of a thread's time.
const FIRST_RATE: f64 = 500.0;
const HANDSHAKES_RATE: f64 = 2000.0;
const HANDSHAKES_MAX: usize = 512;
/// The share of the processors' time that viewers and newcomers may take. On a virtual machine
/// whose other processors were busy, queues grew slowly from 0.9 on, and a quarter of the viewers
/// had to leave after a minute.
const LOAD_MAX: f64 = 0.85;
/// Per thread: so few viewers need less than its time. If they take it, they are downloads, which
/// share with newcomers: a fiftieth of a thread sends 50 Mbit/s and more.
const FEW: usize = 50;

/// Whether there is room for new clients. Clones share the answer.
#[derive(Debug, Clone)]
pub struct Headroom {
    is_short: Arc<AtomicBool>,
    /// `None` until [`Headroom::watch`] measures: then everybody is admitted.
    door: Arc<Mutex<Option<Door>>>,
    outside: Arc<Outside>,
    reports: Arc<Reports>,
    metrics: Metrics,
}

#[derive(Debug, Clone)]
struct Metrics {
    busy: Gauge,
    wait: Gauge,
    rate: Gauge,
    viewers: IntGauge,
    waiting: IntGauge,
    admitted: IntCounter,
    refused: IntCounter,
    told: IntCounter,
    left: IntCounter,
}

/// The state of the load, each value a mean over [`MEMORY`].
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    /// The busy share of the threads' time.
    busy: f64,
    /// Blocks made per second.
    rate: f64,
    /// Seconds until requested blocks can be sent.
    wait: f64,
    /// Seconds for which the wait has been too long without a break.
    too_long: f64,
    is_short: bool,
    /// Seconds without room.
    short_for: f64,
}

/// The part of a server that is in use, at the last measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// The busy share of the threads' time, 0 to 1.
    pub busy: f64,
    /// Seconds that requested blocks wait.
    pub wait_s: f64,
    /// Whether requested blocks wait for too long, so that nobody is admitted.
    pub is_short: bool,
}

/// The values at one look, and since the last.
#[derive(Debug, Clone, Copy)]
struct Look {
    passed: Duration,
    /// The busy share of the threads' time.
    busy: f64,
    /// The scheduling latency.
    turn: Duration,
    /// Blocks made, and blocks to be made.
    made: u64,
    to_make: u64,
}

impl Headroom {
    /// There is room until [`Headroom::watch`] finds otherwise.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            is_short: Arc::default(),
            door: Arc::default(),
            outside: Arc::default(),
            reports: Arc::default(),
            metrics: Metrics::new(registry)?,
        })
    }

    /// Whether requested blocks wait too long.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// The part that is in use.
    pub fn usage(&self) -> Usage {
        Usage {
            busy: self.metrics.busy.get(),
            wait_s: self.metrics.wait.get(),
            is_short: self.is_short(),
        }
    }

    /// From now on, newcomers are admitted by the rules of an [`Intake`]. The watch calls it when
    /// it begins; later calls have no effect.
    pub fn begin(&self, config: intake::Config, now: Instant) {
        let mut door = self.door();
        let door = door.get_or_insert_with(|| Door {
            intake: Intake::new(config, now),
            leaves: HashMap::new(),
            counted: intake::Status::default(),
        });
        let rate = door.intake.status().rate;
        self.outside.returns().set_rate(now, rate);
    }

    fn door(&self) -> MutexGuard<'_, Option<Door>> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acts on the rules, and notes whether the server is full then. `None` while nothing is
    /// measured.
    fn with_door<T>(&self, act: impl FnOnce(&mut Door) -> T) -> Option<T> {
        let mut door = self.door();
        let door = door.as_mut()?;
        let result = act(door);
        let is_full = door.intake.is_full();
        self.outside.is_full.store(is_full, Ordering::Relaxed);
        Some(result)
    }

    /// Gives the rules a measurement, and tells viewers to leave where they say so.
    pub fn look(&self, now: Instant, look: intake::Look) {
        let looked = self.with_door(|door| {
            door.intake.look(now, look);
            while let Some((entrant, again)) = door.intake.poll_leave(now) {
                if let Some(leaves) = door.leaves.get(&entrant) {
                    leaves.store(true, Ordering::Relaxed);
                    tracing::debug!(?entrant, ?again, "a viewer is asked to leave");
                }
            }
            let status = door.intake.status();
            (status, std::mem::replace(&mut door.counted, status))
        });
        let Some((status, counted)) = looked else {
            return;
        };
        self.outside.returns().set_rate(now, status.rate);
        self.metrics.note(&status, &counted);
        if status.left > counted.left {
            tracing::warn!(
                left = status.left - counted.left,
                viewers = status.viewers,
                wait_s = status.wait,
                "overloaded: the youngest viewers are asked to leave"
            );
        }
        match (status.waiting > 0, counted.waiting > 0) {
            (true, false) => tracing::debug!(
                viewers = status.viewers,
                rate = status.rate,
                load_max = status.load_max,
                "newcomers wait for admission"
            ),
            (false, true) => tracing::debug!(viewers = status.viewers, "no newcomers wait"),
            _ => {}
        }
    }

    /// Watches the ring and the runtime of its sessions until that ends, at this interval. There is
    /// no room while requested blocks wait longer than `wait_max`; `/readyz` reports it.
    pub async fn watch(
        self,
        ring: Ring,
        sessions: Handle,
        wait_max: Duration,
        readiness: Readiness,
        every: Duration,
    ) {
        let metrics = sessions.metrics();
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let cores = Machine::here().cores;
        let mut load = Load::default();
        let mut before = Counts::now(&metrics, &ring);
        let (mut probe, mut shares) = (Probe::new(&sessions), Shares::default());
        let threads = metrics.num_workers().max(1);
        let config = intake::Config {
            load_max: LOAD_MAX,
            first_rate: FIRST_RATE * threads as f64,
            handshakes_rate: HANDSHAKES_RATE * threads as f64,
            handshakes_max: HANDSHAKES_MAX * threads,
            few: FEW * threads,
            wait_max,
            ..intake::Config::default()
        };
        // A watch that begins again keeps the viewers, and knows of no overload.
        self.begin(config, Instant::now());
        self.is_short.store(false, Ordering::Relaxed);
        readiness.ready("headroom");
        loop {
            tick.tick().await;
            let Some(turn) = probe.turn(&sessions).await else {
                return;
            };
            let now = Counts::now(&metrics, &ring);
            let passed = now.at.saturating_duration_since(before.at);
            let share = |time: Duration, of: usize| {
                (time.as_secs_f64() / (passed.as_secs_f64() * of as f64).max(1e-9)).min(1.0)
            };
            let busy = share(now.busy.saturating_sub(before.busy), threads);
            let used = share(now.cpu.saturating_sub(before.cpu), cores);
            let made = now.made.saturating_sub(before.made);
            before = now;
            let (was_short, was_said) = (load.is_short, load.is_said());
            let wait = load.note(
                Look {
                    passed,
                    busy,
                    turn,
                    made,
                    to_make: ring.to_make(),
                },
                wait_max,
            );
            let look = intake::Look {
                load: busy.max(used) * shares.note(passed, &self.reports),
                wait: Duration::from_secs_f64(wait),
            };
            self.look(now.at, look);
            self.metrics.busy.set(load.busy);
            self.metrics.wait.set(load.wait);
            if load.is_short != was_short {
                self.is_short.store(load.is_short, Ordering::Relaxed);
                if load.is_short {
                    tracing::debug!(wait_s = load.wait, "overloaded: blocks wait too long");
                } else {
                    tracing::debug!("blocks do not wait any longer");
                }
            }
            if load.is_said() != was_said {
                if was_said {
                    tracing::info!(name: MILESTONE, "admitting viewers again");
                    readiness.ready("headroom");
                } else {
                    tracing::warn!(wait_s = load.wait, "overloaded: admitting no viewers");
                    readiness.not_ready(
                        "headroom",
                        "overloaded: peers request more than the server can send",
                    );
                }
            }
        }
    }
}

impl Metrics {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let float = |name: &str, help: &str| register::float_gauge(registry, name, help);
        let gauge = |name: &str, help: &str| register::gauge(registry, name, help);
        let counter = |name: &str, help: &str| register::counter(registry, name, help);
        Ok(Self {
            busy: float(
                "ncserverd_endpoint_busy_ratio",
                "Busy share of the worker threads' time, averaged over the last second.",
            )?,
            wait: float(
                "ncserverd_endpoint_wait_seconds",
                "Time until requested blocks can be sent, averaged over the last second.",
            )?,
            rate: float(
                "ncserverd_intake_admissions_per_second",
                "Viewers that are admitted per second at most, now.",
            )?,
            viewers: gauge("ncserverd_intake_viewers", "Viewers that are admitted.")?,
            waiting: gauge(
                "ncserverd_intake_waiting_peers",
                "Peers that wait for admission.",
            )?,
            admitted: counter("ncserverd_intake_admitted_total", "Viewers admitted.")?,
            refused: counter(
                "ncserverd_intake_refused_total",
                "Handshakes refused because the server admits too few viewers.",
            )?,
            told: counter(
                "ncserverd_intake_told_to_wait_total",
                "Requests answered by a time at which to ask again.",
            )?,
            left: counter(
                "ncserverd_intake_asked_to_leave_total",
                "Viewers asked to leave an overloaded server.",
            )?,
        })
    }

    fn note(&self, status: &intake::Status, counted: &intake::Status) {
        self.rate.set(status.rate);
        self.viewers.set(status.viewers as i64);
        self.waiting.set(status.waiting as i64);
        self.admitted.inc_by(status.admitted - counted.admitted);
        self.refused.inc_by(status.refused - counted.refused);
        self.told.inc_by(status.told - counted.told);
        self.left.inc_by(status.left - counted.left);
    }
}

/// Measures the scheduling latency.
struct Probe {
    turn: Turn,
    /// The result of the last probe.
    before: Duration,
}

impl Probe {
    fn new(sessions: &Handle) -> Self {
        Self {
            turn: Turn::of(sessions, Instant::now()),
            before: Duration::ZERO,
        }
    }

    /// The latency; a probe that still waits counts with its age. `None` when the runtime has
    /// ended.
    async fn turn(&mut self, sessions: &Handle) -> Option<Duration> {
        if self.turn.is_over() {
            let before = self.turn.wait().await?;
            *self = Self {
                before,
                ..Self::new(sessions)
            };
        }
        Some(self.before.max(self.turn.age(Instant::now())))
    }
}

/// What has been counted up to now.
#[derive(Debug, Clone, Copy)]
struct Counts {
    at: Instant,
    /// The time in which the sessions' threads were busy. It includes that in which they waited for
    /// a processor.
    busy: Duration,
    /// The processor time of the whole process, that of encoding included.
    cpu: Duration,
    /// Blocks made.
    made: u64,
}

impl Counts {
    fn now(sessions: &RuntimeMetrics, ring: &Ring) -> Self {
        Self {
            at: Instant::now(),
            busy: busy_time(sessions),
            cpu: cpu_time(),
            made: ring.made(),
        }
    }
}

fn busy_time(runtime: &RuntimeMetrics) -> Duration {
    (0..runtime.num_workers())
        .map(|worker| runtime.worker_total_busy_duration(worker))
        .sum()
}

impl Load {
    /// Returns the wait at this look.
    fn note(&mut self, look: Look, wait_max: Duration) -> f64 {
        let (passed, wait_max) = (look.passed.as_secs_f64().max(1e-9), wait_max.as_secs_f64());
        let weight = (passed / MEMORY.as_secs_f64()).min(1.0);
        self.busy += (look.busy.min(1.0) - self.busy) * weight;
        self.rate += (look.made as f64 / passed - self.rate) * weight;
        let queue = if look.to_make == 0 {
            0.0
        } else {
            look.to_make as f64 / self.rate.max(1e-9)
        };
        let wait = (look.turn.as_secs_f64() + queue).min(WAIT_MOST);
        self.wait += (wait - self.wait) * weight;
        self.too_long = if wait > wait_max {
            self.too_long + passed.min(MEMORY.as_secs_f64() / 4.0)
        } else {
            0.0
        };
        self.is_short = if self.is_short {
            self.wait > wait_max * RELIEF
        } else {
            self.too_long > MEMORY.as_secs_f64()
        };
        self.short_for = if self.is_short {
            self.short_for + passed
        } else {
            0.0
        };
        wait
    }

    /// Whether `/readyz` reports a lack of room.
    fn is_said(&self) -> bool {
        self.short_for > SAID_AFTER.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{self, LineKey, LineKind, SessionId};
    use ncs_proto::object::{GenerationKey, SegmentKey};

    const MAX: Duration = Duration::from_millis(100);

    /// The result after this many equal looks.
    fn run(load: &mut Load, looks: u32, made_per_second: u64, to_make: u64) -> bool {
        let look = Look {
            passed: LOOK_EVERY,
            busy: 1.0,
            turn: Duration::from_millis(1),
            made: made_per_second / 50,
            to_make,
        };
        for _ in 0..looks {
            load.note(look, MAX);
        }
        load.is_short
    }

    #[test]
    fn who_has_much_to_do_has_room_and_who_is_behind_has_none_for_a_while() {
        let mut load = Load::default();
        assert!(!run(&mut load, 1, 0, 1000), "the first blocks");
        assert!(
            !run(&mut load, 500, 100_000, 3_000),
            "there is a queue, and it goes on"
        );
        for _ in 0..20 {
            assert!(!run(&mut load, 45, 100_000, 1_000_000), "many come at once");
            assert!(!run(&mut load, 5, 100_000, 0));
        }
        assert!(!run(&mut load, 500, 100_000, 0));
        assert!(run(&mut load, 55, 100_000, 12_000));
        assert!(!load.is_said());
        assert!(run(&mut load, 20, 100_000, 2_000), "not at once");
        assert!(!run(&mut load, 200, 100_000, 2_000));
        assert!(run(&mut load, 700, 0, 64), "nothing is made at all");
        assert!(load.is_said());
        assert!(!run(&mut load, 500, 0, 0));
        let wait = Look {
            passed: 3 * MAX,
            busy: 1.0,
            turn: 3 * MAX,
            made: 0,
            to_make: 0,
        };
        load.note(wait, MAX);
        assert!(!load.is_short, "a hiccup");
        for _ in 0..4 {
            load.note(wait, MAX);
        }
        assert!(load.is_short, "threads are behind");
    }

    #[tokio::test]
    async fn a_turn_that_does_not_come_is_seen_before_it_has_come() {
        let sessions = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let (release, released) = std::sync::mpsc::channel::<()>();
        sessions.spawn(async move { released.recv() });
        let mut probe = Probe::new(sessions.handle());
        tokio::time::sleep(2 * MAX).await;
        assert!(probe.turn(sessions.handle()).await.unwrap() >= 2 * MAX);
        assert!(!probe.turn.is_over(), "its turn has not come");
        release.send(()).unwrap();
        while !probe.turn.is_over() {
            tokio::task::yield_now().await;
        }
        assert!(
            probe.turn(sessions.handle()).await.unwrap() >= 2 * MAX,
            "what the last has waited"
        );
        while probe.turn(sessions.handle()).await.unwrap() >= 2 * MAX {
            tokio::task::yield_now().await;
        }
        sessions.shutdown_background();
    }

    #[tokio::test]
    async fn a_server_that_makes_nothing_is_short_until_nobody_waits() {
        let sessions = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let registry = Registry::new();
        let ring = Ring::new(
            &ring::Config::default(),
            ring::Metrics::new(&registry).unwrap(),
        );
        let (headroom, readiness) = (Headroom::new(&registry).unwrap(), Readiness::new());
        readiness.ready("server");
        tokio::spawn(headroom.clone().watch(
            ring.clone(),
            sessions.handle().clone(),
            MAX,
            readiness.clone(),
            LOOK_EVERY,
        ));
        let line = LineKey {
            generation: GenerationKey {
                segment: SegmentKey(1),
                index: 0,
            },
            kind: LineKind::Coded,
        };
        ring.want_coded(SessionId(1), line, 8, Instant::now() + MAX);
        let begun = Instant::now();
        let within = |what: &str| {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{what}: {headroom:?}"
            )
        };
        while !headroom.is_short() {
            within("short");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        while readiness.status().1.is_empty() {
            within("said so");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        ring.leave(SessionId(1), line);
        while headroom.is_short() || !readiness.status().1.is_empty() {
            within("not any more");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        sessions.shutdown_background();
    }
}
