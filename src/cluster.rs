//! The fleet: several servers that know each other.
//!
//! Each server tells all others a beat every two seconds ([`beat`]), and knows those that live by
//! theirs ([`roster`]). An [`engine`] carries the beats. It also carries messages, with which
//! servers count the holders of limited tokens together ([`counts`]), and name each other peers
//! that serve ([`sharers`]).
//!
//! One task tells and hears, [`Cluster::run`]. It waits for no other part, and no other part waits
//! for it. Without its engine a server serves as before, knows the others until their beats are
//! missing, and `/readyz` says `degraded`.

pub mod beat;
pub mod counts;
pub mod engine;
pub mod entries;
pub mod members;
pub mod nats;
pub mod roster;
pub mod sharers;

mod metrics;
#[cfg(test)]
mod network;
mod pace;
mod rendezvous;
mod table;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ncs_serve::admission::Admission;
use ncs_serve::directory::Directory;
use ncs_serve::fleet::Fleet;
use ncs_serve::front::Links;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, sleep_until};

use beat::{Address, Beat, ConfigHash, Name, Pages, SealingKey, State, StreamMarks, StreamsHash};
use counts::Counts;
use engine::{Engine, Heard, Kind, Message, Topic};
use roster::{Change, INTERVAL, Roster};
use sharers::Sharers;

use crate::telemetry::quiet::{RateLimited, suppressed};
use crate::telemetry::{Readiness, now_ms};
use crate::tls::ServerIdentity;
pub use metrics::Metrics;
pub use table::{Error as StatusError, status};

/// The place of a server in its fleet, and the engine of its beats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What carries beats.
    pub engine: Kind,
    /// The server's name, unique in the fleet. An engine needs it.
    pub name: Option<Name>,
    /// The part of the network that the server is in.
    pub zone: Name,
    /// Where peers reach the server. An engine needs one at least. Peers of other servers are told
    /// of the first.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub advertise: Vec<Address>,
    /// Whether newcomers are sent to the server that should serve them, by their stream, their
    /// network and the load of all.
    pub steer: bool,
    /// Whether the origin is asked once for all servers: the others fetch an object from the one
    /// that has asked.
    pub ask_origin_once: bool,
    /// A file with the token that this server shows the others when it fetches from them, if they
    /// admit viewers by token.
    pub token_file: Option<PathBuf>,
    /// How NATS is reached.
    pub nats: nats::Config,
    /// Where the servers are listed.
    #[serde(rename = "static")]
    pub members: members::Config,
    /// The configuration that the servers share.
    pub config: Shared,
}

/// Whether and how a server takes the configuration that the servers of its fleet share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shared {
    /// Whether it does. The engine must be NATS.
    pub enabled: bool,
    /// How often it is read again without a word that it has changed.
    #[serde(with = "crate::units::duration")]
    pub refresh: Duration,
    /// How many nodes of NATS keep it, when the first one is applied.
    pub replicas: u8,
    /// Where the last good one is kept, and the key to which secrets are sealed for this server.
    pub directory: Option<PathBuf>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            enabled: false,
            refresh: Duration::from_secs(60),
            replicas: 1,
            directory: None,
        }
    }
}

impl Shared {
    /// Makes the path absolute, or chooses one.
    pub fn resolve<'a>(&mut self, variable: impl Fn(&str) -> Option<&'a str>) {
        let path = self.directory.take();
        let path = path.unwrap_or_else(|| crate::units::state_directory("fleet", variable));
        self.directory = Some(crate::units::absolute(&path));
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: Kind::None,
            name: None,
            zone: "default".parse().expect("it is a name"),
            advertise: Vec::new(),
            steer: true,
            ask_origin_once: true,
            token_file: None,
            nats: nats::Config::default(),
            members: members::Config::default(),
            config: Shared::default(),
        }
    }
}

impl Config {
    /// Whether other servers are asked for objects before the origin.
    pub fn asks_members(&self) -> bool {
        self.engine != Kind::None && self.ask_origin_once
    }
}

/// Whether the engine of a configuration is reached within [`REACHED_WITHIN`], and otherwise why
/// not.
pub async fn reach(config: &Config) -> Result<(), String> {
    let engine = Engine::listen(config, "ncserverd doctor").await;
    let mut engine = engine.map_err(|error| error.to_string())?;
    let reached = async {
        while engine.reached().is_err() {
            engine.hear().await;
        }
    };
    let _ = tokio::time::timeout(REACHED_WITHIN, reached).await;
    engine.reached()
}

/// The server itself.
#[derive(Debug, Clone)]
pub struct Own {
    config: Config,
    name: Name,
    identity: ServerIdentity,
    /// What the servers that connect to this one are told.
    publisher: members::Publisher,
}

impl Own {
    /// A server with this configuration and identity. One that is alone needs no name.
    pub fn new(config: &Config, identity: &ServerIdentity) -> Self {
        let nameless = || "alone".parse().expect("it is a name");
        Self {
            config: config.clone(),
            name: config.name.clone().unwrap_or_else(nameless),
            identity: identity.clone(),
            publisher: members::Publisher::default(),
        }
    }

    /// Serves the other servers of the fleet that connect to this one, if its engine has them do
    /// so.
    pub fn links(&self) -> Links {
        match self.config.engine {
            Kind::Static => self.publisher.links(),
            Kind::None | Kind::Nats => Links::default(),
        }
    }
}

/// What a server knows of its fleet. Clones share it.
#[derive(Clone)]
pub struct Cluster {
    own: Arc<Own>,
    state: Arc<dyn Fn() -> State + Send + Sync>,
    roster: Arc<Mutex<Roster>>,
    counts: Arc<Mutex<Counts>>,
    sharers: Arc<Mutex<Sharers>>,
    /// Knows who uses what of limits, and holds them to the server's share.
    admission: Admission,
    /// Knows the peers that serve others, and names those of other servers.
    directory: Directory,
    /// What sessions know of the servers.
    fleet: Fleet,
    /// When the process began, in milliseconds since 1970, and how many beats it has told.
    started_ms: u64,
    told: Arc<AtomicU64>,
    stage: Arc<watch::Sender<Stage>>,
    /// What beats tell of the fleet's configuration.
    configured: Arc<Mutex<Configured>>,
    /// The client of NATS, once its engine is open.
    client: Arc<watch::Sender<Option<async_nats::Client>>>,
    /// Lines that others can cause.
    lines: Arc<RateLimited<(&'static str, Option<Name>)>>,
    /// Whether servers have come or gone of which sessions are not told yet.
    is_stale: Arc<AtomicBool>,
    /// Whether a server has come that is to know this one soon: until it knows the others, it takes
    /// itself for the home of all objects.
    greets: Arc<AtomicBool>,
    metrics: Metrics,
    readiness: Readiness,
}

/// What a server tells the others of the fleet's configuration, if it takes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configured {
    /// The revision in force, 0 for none.
    pub revision: Option<u64>,
    /// Its hash.
    pub hash: Option<ConfigHash>,
    /// The key to which secrets are sealed for this server.
    pub sealing_key: Option<SealingKey>,
}

/// Where a server is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serves,
    Drains,
    /// It is to tell its last beat.
    Leaves,
    /// It has told it, or another process tells beats in its place.
    Gone,
}

impl Cluster {
    /// A server that knows itself and has told nothing yet. `state` is asked for every beat.
    pub fn new(
        own: Own,
        state: impl Fn() -> State + Send + Sync + 'static,
        admission: Admission,
        directory: Directory,
        fleet: Fleet,
        metrics: Metrics,
        readiness: Readiness,
    ) -> Self {
        if own.config.engine == Kind::None {
            fleet.set_greeted(Instant::now());
        } else {
            metrics.engine_up.set(0);
            readiness.degraded(PART, "the engine is not reached yet");
        }
        let started_ms = now_ms();
        let random = StdRng::from_rng(&mut rand::rng());
        let sharers = Sharers::new(own.name.clone(), started_ms, random);
        let cluster = Self {
            counts: Arc::new(Mutex::new(Counts::new(own.name.clone(), started_ms))),
            sharers: Arc::new(Mutex::new(sharers)),
            own: Arc::new(own),
            state: Arc::new(state),
            roster: Arc::default(),
            admission,
            directory,
            fleet,
            started_ms,
            told: Arc::default(),
            stage: Arc::new(watch::Sender::new(Stage::Serves)),
            configured: Arc::default(),
            client: Arc::default(),
            lines: Arc::new(RateLimited::new(LINE_EVERY)),
            is_stale: Arc::default(),
            greets: Arc::default(),
            metrics,
            readiness,
        };
        // It knows itself before the first scrape.
        cluster.know_itself(Stage::Serves);
        cluster
    }

    /// The server takes no newcomers from now on.
    pub fn drain(&self) {
        self.advance(Stage::Drains);
    }

    /// The server ends. Returns when its last beat was sent, or after [`LEAVE_TIMEOUT`].
    pub async fn leave(&self) {
        self.advance(Stage::Leaves);
        let mut stage = self.stage.subscribe();
        let gone = stage.wait_for(|stage| *stage == Stage::Gone);
        let _ = tokio::time::timeout(LEAVE_TIMEOUT, gone).await;
    }

    /// Another process is this server from now on: this one tells nothing more.
    pub fn hand_over(&self) {
        self.advance(Stage::Gone);
    }

    /// Tells the others of the fleet's configuration from now on, and at once.
    pub fn configured(&self, configured: Configured) {
        let before = std::mem::replace(&mut *self.told_of(), configured.clone());
        if before != configured {
            self.stage.send_modify(|_| {});
        }
    }

    /// The server has other streams from now on. Its viewers are not sent to servers that lack one,
    /// and the others are told at once.
    pub fn streams_changed(&self) {
        let stage = *self.stage.borrow();
        self.know_itself(stage);
        self.stage.send_modify(|_| {});
    }

    /// The client of NATS, once its engine is open, and another one when it is opened again.
    pub fn clients(&self) -> watch::Receiver<Option<async_nats::Client>> {
        self.client.subscribe()
    }

    /// The name of this server.
    pub fn name(&self) -> &Name {
        &self.own.name
    }

    /// The metrics of the fleet.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn advance(&self, to: Stage) {
        self.stage.send_if_modified(|stage| {
            let is_later = *stage < to;
            *stage = to.max(*stage);
            is_later
        });
    }

    /// Tells and hears until the server has left.
    pub async fn run(self) {
        let mut engine = self.open().await;
        self.client.send_replace(engine.client());
        let mut tie = Tie::new(Instant::now());
        let (alone_at, mut is_young) = (tie.opened_at + ALONE_AFTER, true);
        let mut stage = self.stage.subscribe();
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut round = tokio::time::interval(counts::ROUND);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let has_others = self.own.config.engine != Kind::None;
        let (mut published_at, mut told_at) = (Instant::now(), Instant::now());
        loop {
            let due = self.roster().due();
            let is_stale = self.is_stale.load(Ordering::Relaxed);
            // Whoever may publish can make servers come and go without end, and sessions look at
            // each change.
            let publish_at = published_at + CHANGE_EVERY;
            let (greets, greet_at) = (self.greets.load(Ordering::Relaxed), told_at + CHANGE_EVERY);
            let tells = tokio::select! {
                _ = tick.tick() => true,
                () = sleep_until(greet_at.into()), if greets => true,
                _ = stage.changed() => true,
                heard = engine.hear() => {
                    self.take(heard, &mut tie);
                    false
                }
                _ = round.tick(), if has_others => {
                    self.count(&engine);
                    self.share(&engine);
                    false
                }
                () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {
                    let lost = self.roster().expire(Instant::now());
                    lost.iter().for_each(|change| self.note(change));
                    false
                }
                () = sleep_until(alone_at.into()), if is_young => {
                    is_young = false;
                    self.fleet.set_greeted(Instant::now());
                    false
                }
                () = sleep_until(publish_at.into()), if is_stale => {
                    self.publish();
                    published_at = Instant::now();
                    false
                }
            };
            let is_gone = || *self.stage.borrow() == Stage::Gone;
            // Who is back is to be known at once.
            let is_back = self.look(&engine, &mut tie);
            if (tells || is_back) && !is_gone() {
                self.tell(&engine).await;
                told_at = Instant::now();
            }
            if is_gone() {
                engine.hang_up();
                drop(engine);
                return std::future::pending().await;
            }
        }
    }

    /// Opens the engine. Wrong options do not heal, but a file may come.
    async fn open(&self) -> Engine {
        loop {
            match Engine::open(&self.own).await {
                Ok(engine) => return engine,
                Err(error) => {
                    tracing::error!(%error, "the engine of the cluster cannot be opened");
                    self.metrics.engine_up.set(0);
                    self.readiness.degraded(PART, error.to_string());
                    self.fleet.set_greeted(Instant::now());
                    tokio::time::sleep(REOPEN_AFTER).await;
                }
            }
        }
    }

    /// Looks whether the engine is reached, and says so where that has changed. Whether it is
    /// reached again.
    fn look(&self, engine: &Engine, tie: &mut Tie) -> bool {
        let now = Instant::now();
        let reached = engine.reached();
        self.metrics.engine_up.set(i64::from(reached.is_ok()));
        let complaint = tie.complaint(now);
        match (&reached, complaint) {
            (Err(reason), _) => {
                let reason = format!("the engine is not reached ({reason}), nor the other servers");
                self.readiness.degraded(PART, reason);
            }
            (Ok(()), Some(complaint)) => {
                self.readiness
                    .degraded(PART, format!("the engine complains: {complaint}"));
            }
            (Ok(()), None) => self.readiness.ready(PART),
        }
        match (reached, tie.is_up) {
            (Ok(()), Some(true)) => return false,
            (Ok(()), _) if self.own.config.engine == Kind::None => {}
            (Ok(()), _) => tracing::info!("the engine of the cluster is reached"),
            (Err(_), Some(false)) => return false,
            (Err(_), None) if now < tie.opened_at + REACHED_WITHIN => return false,
            (Err(reason), _) => {
                tracing::warn!(
                    reason,
                    "the engine of the cluster is not reached: trying again"
                );
                tie.is_up = Some(false);
                return false;
            }
        }
        tie.is_up = Some(true);
        true
    }

    /// Tells the next beat.
    async fn tell(&self, engine: &Engine) {
        self.greets.store(false, Ordering::Relaxed);
        let stage = *self.stage.borrow();
        let beat = self.know_itself(stage);
        match engine.tell(&beat).await {
            Some(true) => {
                self.metrics.sent.inc();
                self.fleet.set_greeted(Instant::now() + GREETED_WITHIN);
            }
            Some(false) => self.metrics.unsent.inc(),
            None => {}
        }
        if stage >= Stage::Leaves {
            self.advance(Stage::Gone);
        }
    }

    fn beat(&self, stage: Stage) -> Beat {
        let Own {
            config,
            name,
            identity,
            ..
        } = &*self.own;
        let configured = self.told_of().clone();
        let state = (self.state)();
        Beat {
            server: name.clone(),
            started_ms: self.started_ms,
            sequence: self.told.fetch_add(1, Ordering::Relaxed),
            addresses: config.advertise.clone(),
            fingerprint: identity.fingerprint(),
            pages: identity.speaks_web().then(|| Pages {
                fingerprint: identity.rotated().map(|rotated| rotated.fingerprints()[0]),
            }),
            zone: config.zone.clone(),
            streams: Some(StreamsHash::of(&state.streams)),
            stream_marks: StreamMarks::of(&state.streams),
            version: VERSION.parse().expect("a version of cargo is one"),
            load: state.load,
            time_ms: state.told_time_ms(),
            is_draining: stage >= Stage::Drains,
            is_last: stage >= Stage::Leaves,
            config: configured.revision,
            config_hash: configured.hash,
            sealing_key: configured.sealing_key,
            takes_messages: config.engine != Kind::None,
        }
    }

    /// A round of counting. What cannot be sent now is lost, and is told later.
    fn count(&self, engine: &Engine) {
        let now = Instant::now();
        let mut counts = self.counts();
        let mut holders = self.admission.changed_holders();
        holders.extend(counts.flowing());
        for holder in holders {
            counts.note(now, self.admission.use_of(holder));
        }
        let roster = self.roster();
        let members = roster.members().filter(|known| known.beat.takes_messages);
        let members = members.map(|known| counts::Member {
            name: known.beat.server.clone(),
            started_ms: known.beat.started_ms,
            is_late: known.heard_at() + counts::LATE_AFTER < now,
        });
        counts.set_members(now, members);
        drop(roster);
        counts.round(now);
        while let Some((to, bytes)) = counts.poll_message() {
            self.send(engine, &to, Topic::Counts, &bytes);
        }
        self.metrics.set_holders(counts.tally());
        self.restrict(&mut counts);
    }

    /// A round of the directory. What cannot be sent now is lost, and is told later.
    fn share(&self, engine: &Engine) {
        let now = Instant::now();
        let mut sharers = self.sharers();
        let news = self.directory.news();
        for circle in news.wanted {
            sharers.want(now, circle);
        }
        for circle in news.changed.into_iter().chain(sharers.due(now)) {
            sharers.note(circle, self.directory.sharers(now, circle));
        }
        let roster = self.roster();
        let members = roster.members().filter(|known| known.beat.takes_messages);
        let members = members.map(|known| (known.beat.server.clone(), known.beat.started_ms));
        sharers.set_members(now, members);
        drop(roster);
        sharers.round(now);
        while let Some((to, bytes)) = sharers.poll_message() {
            self.send(engine, &to, Topic::Sharers, &bytes);
        }
        self.name_found(&mut sharers);
    }

    fn send(&self, engine: &Engine, to: &Name, topic: Topic, bytes: &[u8]) {
        match engine.send(to, topic, bytes) {
            Some(true) => self.metrics.messages_sent.inc(),
            Some(false) => self.metrics.messages_unsent.inc(),
            None => {}
        }
    }

    /// Tells the directory of peers at other servers.
    fn name_found(&self, sharers: &mut Sharers) {
        while let Some((circle, found)) = sharers.poll_found() {
            self.directory.found(circle, found);
        }
        self.metrics.set_sharers(sharers.tally());
    }

    /// Holds viewers to the shares that have changed.
    fn restrict(&self, counts: &mut Counts) {
        while let Some((holder, share)) = counts.poll_share() {
            self.admission.restrict(holder, share);
        }
    }

    /// Takes a message of another server. Whether it can be read.
    fn take_message(&self, Message { from, content }: Message) -> bool {
        let Some((topic, bytes)) = content else {
            return false;
        };
        let now = Instant::now();
        match Topic::of(topic) {
            Some(Topic::Counts) => {
                let mut counts = self.counts();
                let taken = counts.take(now, &from, &bytes);
                self.restrict(&mut counts);
                taken.is_ok()
            }
            Some(Topic::Sharers) => {
                let mut sharers = self.sharers();
                let taken = sharers.take(now, &from, &bytes);
                self.name_found(&mut sharers);
                taken.is_ok()
            }
            None => false,
        }
    }

    fn take(&self, heard: Heard, tie: &mut Tie) {
        let now = Instant::now();
        match heard {
            // What this server is, it knows better.
            Heard::Beat(beat) if beat.server == self.own.name => {
                self.metrics.received.inc();
                if beat.started_ms != self.started_ms {
                    let change = self.roster().note_twin(now, beat.server);
                    change.iter().for_each(|change| self.note(change));
                }
            }
            Heard::Beat(beat) => {
                self.metrics.received.inc();
                self.hear(*beat);
            }
            Heard::Unfit(unfit) => {
                self.metrics.unfit.inc();
                tracing::debug!(%unfit, "a message is not a valid beat");
            }
            Heard::Message(message) => {
                self.metrics.messages_received.inc();
                let from = message.from.clone();
                if !self.take_message(message) {
                    self.metrics.messages_unfit.inc();
                    tracing::debug!(server = %from, "a message cannot be read");
                }
            }
            Heard::News => {}
            Heard::Complaint(complaint) => {
                let is_said = |(_, said): &(Instant, String)| *said == complaint;
                if !tie.complaint.as_ref().is_some_and(is_said)
                    && let Some(unsaid) = self.lines.admit(("complaint", None), now)
                {
                    let suppressed = suppressed(unsaid);
                    tracing::warn!(complaint, suppressed, "the engine of the cluster complains");
                }
                tie.complaint = Some((now, complaint));
            }
        }
    }

    /// Takes the next beat of this server, without an engine, and tells sessions of it.
    fn know_itself(&self, stage: Stage) -> Beat {
        let beat = self.beat(stage);
        self.hear(beat.clone());
        self.publish();
        beat
    }

    /// Takes a beat, of this server or another.
    fn hear(&self, beat: Beat) {
        let server = beat.server.clone();
        let mut roster = self.roster();
        let change = roster.hear(Instant::now(), beat);
        roster
            .beat(&server)
            .iter()
            .for_each(|beat| self.metrics.show(beat));
        drop(roster);
        change.iter().for_each(|change| self.note(change));
    }

    /// Tells sessions of the servers. With each beat of this server and soon after one comes or
    /// goes: a hundred servers beat too often.
    fn publish(&self) {
        self.is_stale.store(false, Ordering::Relaxed);
        let roster = self.roster();
        let members = roster.members();
        let members = members.filter_map(|known| known.beat.member(known.heard_at()));
        self.fleet.set(self.own.name.as_str(), members);
        let lost = roster.lost(Instant::now());
        self.metrics.set_members(roster.len(), lost);
        self.metrics.set_unlike(self.fleet.unlike());
    }

    /// Says what has changed.
    fn note(&self, change: &Change) {
        self.is_stale.store(true, Ordering::Relaxed);
        let is_own = *change.server() == self.own.name;
        if !is_own && matches!(change, Change::Joined(_) | Change::Restarted(_)) {
            self.greets.store(true, Ordering::Relaxed);
        }
        if is_own && !matches!(change, Change::Twins(_)) {
            return;
        }
        self.metrics.note(change);
        // Whoever may publish can invent servers.
        let line = (change.kind(), Some(change.server().clone()));
        let Some(unsaid) = self.lines.admit(line, Instant::now()) else {
            return;
        };
        let suppressed = suppressed(unsaid);
        match change {
            Change::Joined(server) => tracing::info!(%server, suppressed, "a server has joined"),
            Change::Restarted(server) => {
                tracing::info!(%server, suppressed, "a server has started anew");
            }
            Change::Drains(server) => tracing::info!(%server, suppressed, "a server drains"),
            Change::Left(server) => tracing::info!(%server, suppressed, "a server has left"),
            Change::Lost(server) => {
                tracing::warn!(%server, suppressed, "a server has fallen silent");
            }
            Change::Twins(server) => tracing::error!(
                %server,
                suppressed,
                "two processes beat under one name: give each server a `cluster.name` of its own",
            ),
            Change::Refused(server) => tracing::error!(
                %server,
                suppressed,
                max = roster::MEMBERS_MAX,
                "there are too many servers: this one is not taken in",
            ),
        }
    }

    fn told_of(&self) -> MutexGuard<'_, Configured> {
        self.configured
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sharers(&self) -> MutexGuard<'_, Sharers> {
        self.sharers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of the engine.
#[derive(Debug)]
struct Tie {
    opened_at: Instant,
    /// Whether it is reached, as was said last.
    is_up: Option<bool>,
    /// What it complained of last.
    complaint: Option<(Instant, String)>,
}

impl Tie {
    fn new(now: Instant) -> Self {
        Self {
            opened_at: now,
            is_up: None,
            complaint: None,
        }
    }

    /// What it complains of: each beat may bring it anew.
    fn complaint(&mut self, now: Instant) -> Option<&str> {
        let is_recent = |(at, _): &(Instant, String)| *at + 2 * INTERVAL > now;
        self.complaint = self.complaint.take().filter(is_recent);
        self.complaint.as_ref().map(|(_, text)| text.as_str())
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

/// Its name in `/readyz`.
const PART: &str = "cluster";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long the last beat may take.
const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);
/// The pause after an engine could not be opened.
const REOPEN_AFTER: Duration = Duration::from_secs(10);
/// How long an engine may take at the start before that is said.
pub(crate) const REACHED_WITHIN: Duration = Duration::from_secs(5);
/// The least time between two changes of which sessions are told, and between a beat and one for a
/// server that has come.
pub const CHANGE_EVERY: Duration = Duration::from_millis(500);
/// The time between two lines that say the same of a server.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// The others greet a server that has come within this time from its first beat.
const GREETED_WITHIN: Duration = Duration::from_secs(1);
/// A server that has reached nobody for this long from its start goes on alone.
const ALONE_AFTER: Duration = Duration::from_secs(3);
