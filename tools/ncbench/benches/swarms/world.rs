//! The simulated network: messages and blocks between nodes, in the order of their arrival.
//!
//! A block waits for its sender's line, travels, and passes its receiver's line. No node sends to a
//! line that is busy for longer than [`QUEUE`], as delay-based congestion control would have it.
//! Requests beyond the rate of a peer's line therefore wait at that peer, and those who asked see a
//! slow source and not a long round trip. A message takes the path's delay, and one more round trip
//! if it is lost; messages arrive in order, and are too small to fill a line.

mod happening;

use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::directory::{self, Directory, Policy};
use ncserverd::integrity::signing::SigningKey;
use ncserverd::object::SegmentId;
use ncserverd::peer::proto::SourceId;
use ncserverd::wire::block;
use ncserverd::wire::message::Message;
use prometheus::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::figures::{Ledger, Outcome};
use crate::sender::{Line, Serving, spoil};
use crate::setup::{Layout, NOMINAL, OVERHEAD, PAYLOAD, Setup, bitrate};
use crate::stream::Segment;
use crate::viewer::{Consumer, Source, encoded};

/// The server's place.
pub(crate) const SERVER: usize = 0;
/// How long what was sent may wait at a receiver's line.
const QUEUE: Duration = Duration::from_millis(5);
/// Viewers come within this time before the first segment.
const ARRIVALS: Duration = Duration::from_secs(1);
/// Announcements reach viewers' programs within this time.
const SPREAD: f64 = 0.02;

/// A simulated swarm.
pub(crate) struct World {
    setup: Setup,
    now: Instant,
    start: Instant,
    rng: StdRng,
    nodes: Vec<Node>,
    stream: Vec<Segment>,
    index: HashMap<SegmentId, usize>,
    directory: Directory,
    /// When each asker was last told who else has which segment.
    introduced: HashMap<(usize, usize), Instant>,
    queue: BinaryHeap<Event>,
    next: u64,
    ledger: Ledger,
}

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Server,
    Relay,
    Viewer,
    /// A viewer that sends wrong blocks.
    Polluter,
    /// A viewer that offers to serve and sends nothing.
    Mute,
}

struct Node {
    role: Role,
    /// Where its blocks come from, before anybody else is named.
    parent: usize,
    /// From it to the middle of the network.
    delay: Duration,
    address: SocketAddr,
    identity: [u8; 32],
    up: Line,
    down: Line,
    consumer: Option<Consumer>,
    serving: Serving,
    /// Who is connected to it, and what it is to them.
    clients: BTreeSet<(usize, SourceId)>,
    is_gone: bool,
    joined_at: Instant,
    /// Bytes of blocks sent since what counts began.
    uploaded: u64,
}

#[derive(Debug)]
struct Event {
    at: Instant,
    number: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    /// A viewer comes, and goes.
    Join(usize),
    Leave(usize),
    /// A connection stands, or could not be made.
    Connected {
        node: usize,
        source: SourceId,
    },
    /// A consumer learns that a source's connection has ended.
    Lost {
        node: usize,
        source: SourceId,
    },
    /// A sender learns that an asker has gone.
    Gone {
        node: usize,
        asker: usize,
    },
    /// A segment is there, and is announced to a viewer.
    Publish(usize),
    Announce {
        node: usize,
        segment: usize,
    },
    /// What counts begins.
    Begin,
    /// A message from a consumer to a source, and back.
    Up {
        from: usize,
        source: SourceId,
        to: usize,
        message: Box<Message>,
    },
    Down {
        to: usize,
        source: SourceId,
        message: Box<Message>,
    },
    Datagram {
        to: usize,
        source: SourceId,
        bytes: Bytes,
    },
    /// A consumer has something due.
    Timer(usize),
    /// A line has room again.
    Send {
        node: usize,
        to: Option<usize>,
    },
    /// A viewer tells what it holds.
    Tell(usize),
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The next is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl World {
    /// Everybody at their places.
    pub(crate) fn new(setup: Setup) -> Self {
        let mut rng = StdRng::seed_from_u64(setup.seed);
        let start = Instant::now();
        let stream: Vec<Segment> = (0..setup.segments)
            .map(|index| Segment::new(index, &mut rng))
            .collect();
        let index = stream
            .iter()
            .enumerate()
            .map(|(index, segment)| (segment.id, index))
            .collect();
        let metrics = directory::Metrics::new(&Registry::new()).expect("an empty registry");
        let directory = Directory::with_random(metrics, StdRng::seed_from_u64(setup.seed));
        let key = Arc::new(
            SigningKey::from_pem(SigningKey::generate(&mut rand::rng()).as_bytes())
                .expect("it was made so"),
        );
        let policy = match setup.layout {
            Layout::Swarm => Policy::All,
            Layout::Lans(_) => Policy::Lan,
            Layout::Star | Layout::Tree { .. } | Layout::Forwarded { .. } => Policy::Off,
        };
        directory.set_streams([("live".to_owned(), directory::Stream { policy, key })].into());
        let mut world = Self {
            setup,
            now: start,
            start,
            rng,
            nodes: Vec::new(),
            stream,
            index,
            directory,
            introduced: HashMap::new(),
            queue: BinaryHeap::new(),
            next: 0,
            ledger: Ledger::default(),
        };
        world.populate();
        world
    }

    /// Runs until nothing that counts can happen any more.
    pub(crate) fn run(mut self) -> Outcome {
        let Setup {
            segments,
            interval,
            latency,
            ..
        } = self.setup;
        let patience = if interval.is_zero() {
            latency * 100
        } else {
            latency
        };
        let end = self.published_at(segments - 1) + patience + Duration::from_secs(1);
        while let Some(Event { at, what, .. }) = self.queue.pop() {
            if at > end || (interval.is_zero() && self.is_done()) {
                break;
            }
            self.now = at;
            self.happened(what);
        }
        self.outcome()
    }

    fn is_done(&self) -> bool {
        self.ledger.delays.len() >= self.setup.viewers * self.setup.segments
    }

    fn outcome(self) -> Outcome {
        let mut uploads = Vec::new();
        let lasted = self
            .now
            .saturating_duration_since(self.published_at(self.setup.warm_up));
        let mut outcome = Outcome::new(&self.setup, self.ledger, lasted);
        for node in self.nodes {
            if let Some(consumer) = node.consumer.filter(|_| node.role == Role::Viewer) {
                outcome.add(consumer.proto.counts(), consumer.before, consumer.completed);
                if node.joined_at < self.start + ARRIVALS && !node.is_gone {
                    uploads.push(node.uploaded);
                }
            }
        }
        outcome.finish(&self.setup, uploads)
    }

    fn populate(&mut self) {
        let server = self.node(Role::Server, SERVER);
        debug_assert_eq!(server, SERVER);
        let mut tier = vec![SERVER];
        if let Layout::Tree { hops, fan_out } = self.setup.layout {
            for _ in 1..hops {
                tier = tier
                    .into_iter()
                    .flat_map(|parent| vec![parent; fan_out])
                    .map(|parent| self.node(Role::Relay, parent))
                    .collect();
            }
        }
        for relay in 1..self.nodes.len() {
            self.post(self.start, What::Join(relay));
        }
        for index in 0..self.setup.viewers {
            let parent = tier[index % tier.len()];
            self.add_viewer(
                parent,
                self.start + ARRIVALS.mul_f64(index as f64 / self.setup.viewers as f64),
            );
        }
        for segment in 0..self.setup.segments {
            self.post(self.published_at(segment), What::Publish(segment));
        }
        self.post(self.published_at(self.setup.warm_up), What::Begin);
    }

    fn published_at(&self, segment: usize) -> Instant {
        self.start + ARRIVALS * 2 + self.setup.interval * u32::try_from(segment).expect("a few")
    }

    fn add_viewer(&mut self, parent: usize, at: Instant) {
        let draw: f64 = self.rng.random();
        let role = match () {
            () if draw < self.setup.polluters => Role::Polluter,
            () if draw < self.setup.polluters + self.setup.mute => Role::Mute,
            () => Role::Viewer,
        };
        let node = self.node(role, parent);
        self.nodes[node].joined_at = at;
        self.post(at, What::Join(node));
        if self.setup.churn > 0.0 {
            let minutes = -(1.0 - self.rng.random::<f64>()).ln() / self.setup.churn;
            self.post(
                at + Duration::from_secs_f64(minutes * 60.0),
                What::Leave(node),
            );
        }
    }

    fn node(&mut self, role: Role, parent: usize) -> usize {
        let index = self.nodes.len();
        let mut identity = [0; 32];
        identity[..8].copy_from_slice(&(index as u64).to_be_bytes());
        // Round trips of 20 to 80 ms between viewers.
        let delay = Duration::from_secs_f64(self.rng.random_range(0.005..0.02));
        let hops = if let Layout::Forwarded { hops } = self.setup.layout {
            u32::try_from(hops).expect("a few")
        } else {
            1
        };
        let size = if let Layout::Lans(size) = self.setup.layout {
            size.min(250)
        } else {
            1
        };
        let number =
            u32::try_from((index / size) * 256 + index % size + 1).expect("at most 2^16 networks");
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(0x0A00_0000 + number)), 4444);
        let scaled = |bitrates: f64| Line {
            rate: bitrate() * bitrates,
            free_at: self.now,
        };
        let upload = match role {
            Role::Server | Role::Relay => f64::INFINITY,
            Role::Viewer | Role::Polluter | Role::Mute => self.setup.upload,
        };
        let shares = !matches!(
            self.setup.layout,
            Layout::Star | Layout::Forwarded { .. } | Layout::Tree { .. }
        );
        let consumer = match role {
            Role::Server => None,
            Role::Relay => Some(Consumer::new(true, identity)),
            _ => Some(Consumer::new(shares, identity)),
        };
        self.nodes.push(Node {
            role,
            parent,
            delay: delay * hops,
            address,
            identity,
            up: scaled(upload),
            down: scaled(self.setup.download),
            consumer,
            serving: Serving::default(),
            clients: BTreeSet::new(),
            is_gone: false,
            joined_at: self.start,
            uploaded: 0,
        });
        index
    }

    fn post(&mut self, at: Instant, what: What) {
        self.queue.push(Event {
            at,
            number: self.next,
            what,
        });
        self.next += 1;
    }

    fn delay(&self, one: usize, other: usize) -> Duration {
        self.nodes[one].delay + self.nodes[other].delay
    }

    fn is_lost(&mut self) -> bool {
        let kept = 1.0 - self.setup.loss;
        let kept = if let Layout::Forwarded { hops } = self.setup.layout {
            kept.powi(i32::try_from(hops).expect("a few"))
        } else {
            kept
        };
        self.rng.random_bool(1.0 - kept)
    }

    /// When a message arrives that is sent now.
    fn message_delay(&mut self, one: usize, other: usize) -> Duration {
        let once = self.delay(one, other);
        let mut delay = once;
        while self.is_lost() {
            delay += once * 2;
        }
        delay
    }

    /// A sender says something to a consumer, to which it is `source`.
    fn say(
        &mut self,
        from: usize,
        to: usize,
        source: SourceId,
        message: Message,
        segment: Option<usize>,
    ) {
        if from == SERVER {
            let bytes = encoded(&message) + OVERHEAD;
            self.ledger.control(self.counts(segment), bytes);
        }
        let at = self.now + self.message_delay(from, to);
        let Some(place) = self.source(to, source) else {
            return;
        };
        place.down_at = place.down_at.max(at);
        let at = place.down_at;
        self.post(
            at,
            What::Down {
                to,
                source,
                message: Box::new(message),
            },
        );
    }

    fn source(&mut self, node: usize, source: SourceId) -> Option<&mut Source> {
        self.nodes[node].consumer.as_mut()?.sources.get_mut(&source)
    }

    /// Whether what is done for a segment counts, or what is done now.
    fn counts(&self, segment: Option<usize>) -> bool {
        match segment {
            Some(segment) => segment >= self.setup.warm_up,
            None => self.now >= self.published_at(self.setup.warm_up),
        }
    }

    /// A node sends what it can to those whose turn it is; `to`: to this one.
    fn send(&mut self, node: usize, to: Option<usize>) {
        match to {
            Some(asker) => while self.send_to(node, asker) {},
            None => while self.send_one(node) {},
        }
    }

    /// Sends the next block of a node whose line they share. False if there is nothing to send now.
    fn send_one(&mut self, node: usize) -> bool {
        let free_at = self.nodes[node].up.free_at;
        let turns = self.nodes[node].serving.turns.len();
        if free_at > self.now {
            self.schedule(node, free_at);
            return false;
        }
        let mut again: Option<Instant> = None;
        for _ in 0..turns {
            let Some(asker) = self.nodes[node].serving.turns.pop_front() else {
                break;
            };
            self.nodes[node].serving.turns.push_back(asker);
            let room_at = self.room_at(asker);
            if room_at > self.now {
                again = again.into_iter().chain([room_at]).min();
            } else if self.send_next(node, asker) {
                return true;
            }
        }
        if let Some(at) = again {
            self.schedule(node, at);
        }
        false
    }

    /// Sends the next block to one asker, whose line alone is in the way.
    fn send_to(&mut self, node: usize, asker: usize) -> bool {
        let room_at = self.room_at(asker);
        let Some(open) = self.nodes[node].serving.askers.get_mut(&asker) else {
            return false;
        };
        if open.requests.iter().all(|sending| sending.credit == 0) {
            return false;
        }
        if room_at > self.now {
            if !std::mem::replace(&mut open.is_scheduled, true) {
                self.post(
                    room_at,
                    What::Send {
                        node,
                        to: Some(asker),
                    },
                );
            }
            return false;
        }
        self.send_next(node, asker)
    }

    fn schedule(&mut self, node: usize, at: Instant) {
        if !std::mem::replace(&mut self.nodes[node].serving.is_scheduled, true) {
            self.post(at, What::Send { node, to: None });
        }
    }

    /// When what is sent to this asker would not have to wait.
    fn room_at(&self, asker: usize) -> Instant {
        self.nodes[asker]
            .down
            .free_at
            .checked_sub(QUEUE)
            .unwrap_or(self.start)
    }

    /// Sends the next block for the first request of an asker that there is one for.
    fn send_next(&mut self, node: usize, asker: usize) -> bool {
        let Node {
            serving,
            consumer,
            role,
            ..
        } = &mut self.nodes[node];
        let Some(open) = serving.askers.get_mut(&asker) else {
            return false;
        };
        let holdings = consumer.as_ref().map(|consumer| &consumer.holdings);
        for sending in &mut open.requests {
            let segment = &self.stream[sending.segment];
            let holding = match holdings {
                None => None,
                Some(holdings) => match holdings.get(&sending.segment) {
                    None => continue,
                    held => held,
                },
            };
            let Some(block) = sending.next(segment, holding, &mut self.rng) else {
                continue;
            };
            let block = if *role == Role::Polluter {
                spoil(block, &mut self.rng)
            } else {
                block
            };
            sending.credit -= 1;
            let length = block::datagram_header_len(&block.vector);
            let mut out = vec![0; length];
            block::write_datagram_header(
                &mut out,
                &block.vector,
                sending.alias,
                sending.seq,
                sending.credit == 0,
            );
            out.extend_from_slice(&block.payload);
            sending.seq = sending.seq.wrapping_add(1);
            let (source, counted) = (sending.source, sending.segment);
            let wire = length + NOMINAL as usize + OVERHEAD;
            debug_assert_eq!(block.payload.len(), PAYLOAD as usize);
            self.deliver(node, asker, source, counted, wire, out.into());
            return true;
        }
        false
    }

    fn deliver(
        &mut self,
        node: usize,
        asker: usize,
        source: SourceId,
        segment: usize,
        wire: usize,
        bytes: Bytes,
    ) {
        let left = if self.nodes[node].up.rate.is_finite() {
            self.nodes[node].up.transmit(self.now, wire)
        } else {
            self.now
        };
        // A slow sender's blocks do not occupy the receiver's line: the time of sending counts.
        let passed = self.nodes[asker].down.transmit(self.now, wire);
        let arrives = left.max(passed) + self.delay(node, asker);
        if self.counts(Some(segment)) {
            self.nodes[node].uploaded += wire as u64;
            if node == SERVER {
                self.ledger.server_blocks += wire as u64;
            }
        }
        if !self.is_lost() {
            self.post(
                arrives,
                What::Datagram {
                    to: asker,
                    source,
                    bytes,
                },
            );
        }
    }
}
