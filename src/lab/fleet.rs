//! A fleet in virtual time: the rosters and tables of its servers as they are shipped, and viewers
//! that join, stay, move and leave.
//!
//! What is a model: beats take a few milliseconds to each server, and some are lost; a viewer is a
//! place in a server until it goes, and one that moves is there at once. Sessions, media and
//! sockets are left out. A segment of a stream comes up every few seconds, and each server with a
//! viewer of the stream fetches it as its route says: through the others, to the origin. No clock
//! is read, and the same seed gives the same run.
//!
//! Left out are also: what a handshake costs those to whom viewers move; that viewers of a dead
//! server go by the last list that they were told, and not by what it knew at the end; beats that
//! are lost together, and an engine that is away, during which each server asks the origin itself;
//! and how long servers that ask each other in a circle wait before one asks the origin.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ncs_net::web::Binding;
use ncs_proto::wire::message::Alternate;
use ncs_serve::fleet::{Fleet, Key};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::cluster::CHANGE_EVERY;
use crate::cluster::beat::{Beat, Load};
use crate::cluster::roster::{Change, INTERVAL, Roster};

/// The step of time. Joins, moves and beats within one are in the order of the servers.
const STEP: Duration = Duration::from_millis(100);
/// How long a beat takes to another server, in milliseconds.
const BEAT_TAKES_MS: Range<u64> = 1..50;
/// How long viewers of a dead server take to notice, in steps, at most.
const NOTICED_WITHIN: u64 = 10;
/// Networks from which viewers come.
const NETWORKS: u32 = 5000;

/// A fleet and its viewers.
#[derive(Debug, Clone)]
pub struct Config {
    /// Servers at the beginning.
    pub servers: usize,
    /// Viewers for each of them, on average.
    pub viewers_each: u32,
    /// Viewers that a server takes.
    pub places: u32,
    /// How long a viewer stays, on average.
    pub stay: Duration,
    /// Streams; the one at place n has viewers in proportion to 1 / n.
    pub streams: u32,
    /// Renditions of a stream, each with a segment every [`Config::segment`]. Viewers of a server
    /// watch all of them.
    pub renditions: u32,
    /// The duration of a segment.
    pub segment: Duration,
    /// Share of beats that are lost.
    pub loses: f64,
    /// Seed of all random choices.
    pub seed: u64,
    /// How long the fleet takes to fill, before anything is counted.
    pub fills: Duration,
    /// How long it is watched then.
    pub lasts: Duration,
    /// What happens meanwhile, by the time since it was filled.
    pub happens: Vec<(Duration, Happening)>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            servers: 100,
            viewers_each: 10_000,
            places: 35_000,
            stay: Duration::from_secs(600),
            streams: 100,
            renditions: 3,
            segment: Duration::from_secs(4),
            loses: 0.001,
            seed: 1,
            fills: Duration::from_secs(120),
            lasts: Duration::from_secs(300),
            happens: Vec::new(),
        }
    }
}

/// What happens to a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
    /// So many servers are killed at once.
    Die(usize),
    /// So many servers drain and end.
    Drain(usize),
    /// So many servers come.
    Come(usize),
}

/// What is counted in a second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Second {
    /// Servers that are open to newcomers, and those that run.
    pub servers: usize,
    /// See [`Second::servers`].
    pub running: usize,
    /// Viewers of all.
    pub viewers: u64,
    /// Viewers of the servers with most and least, as parts of the mean over open servers.
    pub most: f64,
    /// See [`Second::most`].
    pub least: f64,
    /// The most viewers of a server that a newcomer has entered, as a part of the mean.
    pub entered: f64,
    /// Newcomers, and those of them that another server got than they came to.
    pub joined: u64,
    /// See [`Second::joined`].
    pub sent_on: u64,
    /// Viewers whose server died or drained, and who went to another.
    pub moved: u64,
    /// Viewers that found no server.
    pub lost: u64,
    /// Segments that came up, and requests to the origin for them.
    pub segments: u64,
    /// See [`Second::segments`].
    pub requests: u64,
    /// Most requests for one of them.
    pub requests_most: u64,
    /// Most copies of a segment that one server sent to others.
    pub copies_most: u64,
    /// Segments that some servers asked each other for in a circle, until one lost patience and
    /// asked the origin.
    pub circles: u64,
    /// Beats, and their bytes, that all servers received together.
    pub beats: u64,
    /// See [`Second::beats`].
    pub beat_bytes: u64,
}

#[derive(Debug)]
struct Server {
    name: String,
    server: Alternate,
    is_alive: bool,
    is_draining: bool,
    started_ms: u64,
    sequence: u64,
    beats_at: Instant,
    told_at: Instant,
    roster: Roster,
    fleet: Fleet,
    published_at: Instant,
    is_stale: bool,
    viewers: u32,
    /// Viewers of each stream.
    by_stream: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Viewer {
    server: usize,
    stream: u32,
    network: u32,
    /// When it goes, by which an older entry of the heap is told.
    leaves: u64,
}

/// A fleet that runs.
#[derive(Debug)]
pub struct World {
    config: Config,
    random: SmallRng,
    start: Instant,
    now: Instant,
    servers: Vec<Server>,
    by_address: BTreeMap<String, usize>,
    viewers: Vec<Viewer>,
    free: Vec<usize>,
    leaving: BinaryHeap<Reverse<(u64, usize)>>,
    /// Beats under way, by when they arrive and a number: at whom, and what they are.
    beats: BTreeMap<(Instant, u64), (usize, Arc<Beat>)>,
    next_beat: u64,
    /// Viewers that go to another server, by the step in which they do.
    moving: BTreeMap<u64, Vec<usize>>,
    /// Streams by how many viewers they have: the sum of their shares up to each.
    shares: Vec<f64>,
    next_segment: u64,
    owed: f64,
    second: Second,
}

impl World {
    /// A fleet whose servers have just started, without viewers.
    pub fn new(config: Config) -> Self {
        let start = Instant::now();
        let mut sum = 0.0;
        let share = |stream: u32| {
            sum += 1.0 / f64::from(stream + 1);
            sum
        };
        let shares: Vec<f64> = (0..config.streams).map(share).collect();
        let mut world = Self {
            random: SmallRng::seed_from_u64(config.seed),
            start,
            now: start,
            servers: Vec::new(),
            by_address: BTreeMap::new(),
            viewers: Vec::new(),
            free: Vec::new(),
            leaving: BinaryHeap::new(),
            beats: BTreeMap::new(),
            next_beat: 0,
            moving: BTreeMap::new(),
            shares,
            next_segment: 0,
            owed: 0.0,
            second: Second::default(),
            config,
        };
        for _ in 0..world.config.servers {
            world.come();
        }
        world
    }

    /// Fills the fleet and runs it. What is counted in each second since it was filled.
    pub fn run(mut self) -> Vec<Second> {
        let steps = |time: Duration| time.as_millis() / STEP.as_millis();
        let (fills, lasts) = (steps(self.config.fills), steps(self.config.lasts));
        let a_second = steps(Duration::from_secs(1));
        let mean = self.mean();
        let rate = mean / self.config.stay.as_secs_f64();
        // Those who leave while it is filled are replaced, too.
        let filling = mean / self.config.fills.as_secs_f64() + rate / 2.0;
        for _ in 0..fills {
            self.step(filling);
        }
        self.second = Second::default();
        let mut happens = std::mem::take(&mut self.config.happens);
        let mut seconds = Vec::new();
        for step in 0..lasts {
            let at = STEP * u32::try_from(step).expect("a run has few steps");
            for (_, happening) in happens.extract_if(.., |(time, _)| *time <= at) {
                self.happen(happening);
            }
            self.step(rate);
            if (step + 1) % a_second == 0 {
                seconds.push(self.count());
            }
        }
        seconds
    }

    fn mean(&self) -> f64 {
        f64::from(self.config.viewers_each) * self.config.servers as f64
    }

    fn at(&self) -> u64 {
        let since = self.now - self.start;
        u64::try_from(since.as_millis() / STEP.as_millis()).expect("a run has few steps")
    }

    fn happen(&mut self, happening: Happening) {
        let alive: Vec<usize> = (0..self.servers.len())
            .filter(|server| self.servers[*server].is_alive && !self.servers[*server].is_draining)
            .collect();
        let first = |count: usize| alive.iter().copied().take(count).collect::<Vec<usize>>();
        match happening {
            Happening::Come(count) => (0..count).for_each(|_| self.come()),
            Happening::Die(count) => {
                for server in first(count) {
                    self.servers[server].is_alive = false;
                    let at = self.at();
                    self.send_away(server, at..at + NOTICED_WITHIN);
                }
            }
            Happening::Drain(count) => {
                for server in first(count) {
                    let ending = &mut self.servers[server];
                    ending.is_draining = true;
                    // It tells at once.
                    ending.beats_at = self.now;
                    let time = ending.fleet.time_to_leave(ending.viewers);
                    let steps = u64::try_from(time.as_millis() / STEP.as_millis()).unwrap_or(0);
                    let at = self.at() + 1;
                    self.send_away(server, at..at + steps.max(1));
                }
            }
        }
    }

    /// The viewers of a server go to others, each at some time in this range.
    fn send_away(&mut self, server: usize, within: Range<u64>) {
        for (viewer, known) in self.viewers.iter().enumerate() {
            if known.server == server && known.leaves > 0 {
                let step = self.random.random_range(within.clone());
                self.moving.entry(step).or_default().push(viewer);
            }
        }
    }

    /// A server starts.
    fn come(&mut self) {
        let number = self.servers.len();
        let name = format!("s{number}");
        let address = format!("{name}.example:4443");
        self.by_address.insert(address.clone(), number);
        let offset = self.random.random_range(0..INTERVAL.as_millis());
        let offset = Duration::from_millis(u64::try_from(offset).expect("it is short"));
        self.servers.push(Server {
            server: Alternate {
                address,
                identity: Some([0; 32]),
            },
            name,
            is_alive: true,
            is_draining: false,
            started_ms: 1,
            sequence: 0,
            beats_at: self.now + offset,
            told_at: self.now,
            roster: Roster::new(),
            fleet: Fleet::new(true),
            published_at: self.now,
            is_stale: false,
            viewers: 0,
            by_stream: vec![0; self.config.streams as usize],
        });
        self.tell(number);
    }

    fn step(&mut self, rate: f64) {
        self.now += STEP;
        self.carry_beats();
        let at = self.at();
        for viewer in self.moving.remove(&at).unwrap_or_default() {
            self.go(viewer);
        }
        while let Some(Reverse((leaves, viewer))) = self.leaving.peek().copied() {
            if leaves > at {
                break;
            }
            self.leaving.pop();
            if self.viewers[viewer].leaves == leaves {
                self.leave(viewer);
            }
        }
        self.owed += rate * STEP.as_secs_f64();
        while self.owed >= 1.0 {
            self.owed -= 1.0;
            self.join();
        }
        self.bring_segments();
    }

    /// Servers tell beats, and hear those that have arrived.
    fn carry_beats(&mut self) {
        for server in 0..self.servers.len() {
            if self.servers[server].is_alive && self.servers[server].beats_at <= self.now {
                self.servers[server].beats_at = self.now + INTERVAL;
                self.tell(server);
            }
        }
        let later = self.beats.split_off(&(self.now, u64::MAX));
        for (to, beat) in std::mem::replace(&mut self.beats, later).into_values() {
            let server = &mut self.servers[to];
            if !server.is_alive {
                continue;
            }
            self.second.beats += 1;
            let heard = server.roster.hear(self.now, Beat::clone(&beat));
            server.is_stale |= heard.is_some();
            if let Some(Change::Joined(_) | Change::Restarted(_)) = heard {
                // Who is new is to know the others soon.
                let greets_at = server.told_at + CHANGE_EVERY;
                server.beats_at = server.beats_at.min(greets_at.max(self.now));
            }
        }
        for server in &mut self.servers {
            if !server.is_alive {
                continue;
            }
            server.is_stale |= !server.roster.expire(self.now).is_empty();
            if server.is_stale && server.published_at + CHANGE_EVERY <= self.now {
                server.publish(self.now);
            }
        }
    }

    /// A server tells its beat to itself, and sends it to the others.
    fn tell(&mut self, from: usize) {
        let places = self.config.places;
        let server = &mut self.servers[from];
        let beat = server.beat(places);
        server.sequence += 1;
        server.told_at = self.now;
        server.roster.hear(self.now, beat.clone());
        server.publish(self.now);
        self.send(from, beat);
    }

    /// A beat leaves for all other servers.
    fn send(&mut self, from: usize, beat: Beat) {
        let (beat, bytes) = (Arc::new(beat.clone()), beat.to_bytes().len() as u64);
        for to in 0..self.servers.len() {
            if to == from || self.random.random_bool(self.config.loses) {
                continue;
            }
            let takes = Duration::from_millis(self.random.random_range(BEAT_TAKES_MS));
            self.second.beat_bytes += bytes;
            let at = (self.now + takes, self.next_beat);
            self.next_beat += 1;
            self.beats.insert(at, (to, Arc::clone(&beat)));
        }
    }

    /// A viewer comes to any server that runs, and goes on to the one that it is sent to.
    fn join(&mut self) {
        let most = self.shares.last().copied().unwrap_or(0.0);
        let drawn = self.random.random_range(0.0..most);
        let stream = self.shares.partition_point(|share| *share <= drawn);
        let stream = u32::try_from(stream).expect("there are few streams");
        let network = self.random.random_range(0..NETWORKS);
        let open: Vec<usize> = (0..self.servers.len())
            .filter(|server| self.servers[*server].is_alive)
            .collect();
        let first = open[self.random.random_range(0..open.len())];
        let stays = -self.config.stay.as_secs_f64() * (1.0 - self.random.random::<f64>()).ln();
        let stays = Duration::from_secs_f64(stays).as_millis() / STEP.as_millis();
        let leaves = self.at() + 1 + u64::try_from(stays).unwrap_or(u64::MAX / 2);
        self.second.joined += 1;
        let fleet = self.servers[first].fleet.clone();
        let advice = fleet.advise((key(stream, network), Binding::Quic), true);
        let mut server = first;
        if advice.moves {
            fleet.count_sent(&advice.servers);
            server = self.reached(&advice.servers).unwrap_or(first);
            self.second.sent_on += u64::from(server != first);
        }
        if self.servers[server].viewers >= self.config.places {
            self.second.lost += 1;
            return;
        }
        let viewer = Viewer {
            server,
            stream,
            network,
            leaves,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.viewers[id] = viewer;
                id
            }
            None => {
                self.viewers.push(viewer);
                self.viewers.len() - 1
            }
        };
        self.leaving.push(Reverse((leaves, id)));
        self.servers[server].enter(stream);
        self.go_on_soon(id);
        let part = f64::from(self.servers[server].viewers) / self.mean_of_open();
        self.second.entered = self.second.entered.max(part);
    }

    /// Viewers of a server that is open to newcomers, on average.
    fn mean_of_open(&self) -> f64 {
        let is_open = |server: &&Server| server.is_alive && !server.is_draining;
        let open = || self.servers.iter().filter(is_open);
        let sum: u64 = open().map(|server| u64::from(server.viewers)).sum();
        sum as f64 / open().count().max(1) as f64
    }

    /// The first of these servers that answers.
    fn reached(&self, servers: &[Alternate]) -> Option<usize> {
        let known = servers.iter().filter_map(|server| {
            let at = self.by_address.get(&server.address)?;
            let server = &self.servers[*at];
            (server.is_alive && server.viewers < self.config.places).then_some(*at)
        });
        known.into_iter().next()
    }

    /// A viewer whose server is dead, or drains, goes to another one that it was told of.
    fn go(&mut self, id: usize) {
        let viewer = self.viewers[id];
        let from = &self.servers[viewer.server];
        if viewer.leaves == 0 || (from.is_alive && !from.is_draining) {
            return;
        }
        let key = (key(viewer.stream, viewer.network), Binding::Quic);
        let advice = from.fleet.elsewhere(key);
        if from.is_alive {
            from.fleet.count_sent(&advice.servers);
        }
        let Some(to) = self.reached(&advice.servers) else {
            self.second.lost += 1;
            self.leave(id);
            return;
        };
        self.servers[viewer.server].exit(viewer.stream);
        self.servers[to].enter(viewer.stream);
        self.viewers[id].server = to;
        self.second.moved += 1;
        self.go_on_soon(id);
        self.end_if_empty(viewer.server);
    }

    /// Who was sent to a server that drains, by one that did not know, is told to go on.
    fn go_on_soon(&mut self, id: usize) {
        let server = &self.servers[self.viewers[id].server];
        if server.is_draining {
            let next = self.at() + 1;
            self.moving.entry(next).or_default().push(id);
        }
    }

    /// A server that drains ends when its last viewer has gone. The others miss it as soon as it
    /// says so.
    fn end_if_empty(&mut self, server: usize) {
        let from = &mut self.servers[server];
        if !from.is_alive || !from.is_draining || from.viewers > 0 {
            return;
        }
        from.is_alive = false;
        let last = Beat {
            is_last: true,
            ..from.beat(self.config.places)
        };
        self.send(server, last);
    }

    fn leave(&mut self, id: usize) {
        let viewer = &mut self.viewers[id];
        viewer.leaves = 0;
        let server = viewer.server;
        self.servers[server].exit(viewer.stream);
        self.free.push(id);
        self.end_if_empty(server);
    }

    /// The segments that come up in this step are fetched by all servers that have viewers of them.
    fn bring_segments(&mut self) {
        let streams = self.config.streams * self.config.renditions;
        let since = (self.now - self.start).as_secs_f64();
        let until = since * f64::from(streams) / self.config.segment.as_secs_f64();
        while (self.next_segment as f64) < until {
            let (number, rendition) = (
                self.next_segment / u64::from(streams),
                self.next_segment % u64::from(streams),
            );
            self.next_segment += 1;
            let stream = u32::try_from(rendition).expect("it is below") / self.config.renditions;
            let path = format!("/live-{stream}/{rendition}/{number}.m4s");
            let wants: Vec<usize> = (0..self.servers.len())
                .filter(|server| {
                    let server = &self.servers[*server];
                    server.is_alive && server.by_stream[stream as usize] > 0
                })
                .collect();
            if wants.is_empty() {
                continue;
            }
            let (mut requests, mut copies) = (0, BTreeMap::<usize, u64>::new());
            let (mut fetched, mut next) = (BTreeSet::new(), wants);
            let mut asks = BTreeMap::new();
            while let Some(server) = next.pop() {
                if !fetched.insert(server) {
                    continue;
                }
                let route = self.servers[server].fleet.route(&path);
                match self.reached(&route.through) {
                    // The home, or nobody on its way answers.
                    None => requests += 1,
                    Some(parent) => {
                        asks.insert(server, parent);
                        *copies.entry(parent).or_default() += 1;
                        next.push(parent);
                    }
                }
            }
            let circles = circles(&asks);
            requests += circles;
            self.second.circles += circles.min(1);
            self.second.segments += 1;
            self.second.requests += requests;
            self.second.requests_most = self.second.requests_most.max(requests);
            let most = copies.values().copied().max().unwrap_or(0);
            self.second.copies_most = self.second.copies_most.max(most);
        }
    }

    /// What was counted since the last call.
    fn count(&mut self) -> Second {
        let open: Vec<u32> = self
            .servers
            .iter()
            .filter(|server| server.is_alive && !server.is_draining)
            .map(|server| server.viewers)
            .collect();
        let mean = self.mean_of_open();
        let part = |viewers: Option<&u32>| f64::from(viewers.copied().unwrap_or(0)) / mean;
        Second {
            servers: open.len(),
            running: self.servers.iter().filter(|server| server.is_alive).count(),
            viewers: self
                .servers
                .iter()
                .map(|server| u64::from(server.viewers))
                .sum(),
            most: part(open.iter().max()),
            least: part(open.iter().min()),
            ..std::mem::take(&mut self.second)
        }
    }
}

impl Server {
    fn beat(&self, places: u32) -> Beat {
        let fit = "the names of a simulation are names";
        Beat {
            server: self.name.parse().expect(fit),
            started_ms: self.started_ms,
            sequence: self.sequence,
            addresses: vec![self.server.address.parse().expect(fit)],
            fingerprint: "00".repeat(32).parse().expect(fit),
            pages: None,
            zone: "east".parse().expect(fit),
            streams: None,
            stream_marks: None,
            version: "0.1.0".parse().expect(fit),
            load: Load {
                viewers: self.viewers,
                viewers_max: places,
                is_full: self.viewers >= places,
                ..Load::default()
            },
            time_ms: None,
            is_draining: self.is_draining,
            is_last: false,
            takes_messages: false,
            config: None,
            config_hash: None,
            sealing_key: None,
        }
    }

    fn publish(&mut self, now: Instant) {
        let members = self
            .roster
            .members()
            .filter_map(|known| known.beat.member(known.heard_at()));
        self.fleet.set(&self.name, members);
        (self.published_at, self.is_stale) = (now, false);
    }

    fn enter(&mut self, stream: u32) {
        self.viewers += 1;
        self.by_stream[stream as usize] += 1;
    }

    fn exit(&mut self, stream: u32) {
        self.viewers -= 1;
        self.by_stream[stream as usize] -= 1;
    }
}

/// How many circles there are among servers each of which asks one other.
fn circles(asks: &BTreeMap<usize, usize>) -> u64 {
    let (mut seen, mut circles) = (BTreeSet::new(), 0);
    for first in asks.keys().copied() {
        let (mut way, mut at) = (BTreeSet::new(), Some(first));
        while let Some(server) = at {
            if !way.insert(server) {
                circles += 1;
                break;
            }
            if !seen.insert(server) {
                break;
            }
            at = asks.get(&server).copied();
        }
    }
    circles
}

/// What viewers of a stream in a network have in common.
fn key(stream: u32, network: u32) -> Key {
    let address = Ipv4Addr::from_bits(network << 8);
    Key::new(&format!("live-{stream}"), IpAddr::V4(address))
}
