//! The simulated network: packets between viewers and servers, in the order of their arrival.
//!
//! A packet takes the delay of its path, jitters, and may be lost. Blocks also pass the line of
//! their viewer, and no server sends to a line that is busy for longer than [`QUEUE`], as
//! delay-based congestion control would have it. Control streams are reliable as those of QUIC are:
//! the receiver acknowledges each piece, and the sender repeats it until then, sooner if a later
//! one is acknowledged. Where links are cut, packets vanish, and what was written waits.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::cluster::beat::Beat;
use ncserverd::peer::proto::SourceId;
use ncserverd::wire::CloseCode;
use ncserverd::wire::message::Alternate;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// What may wait at the line of a viewer.
const QUEUE: Duration = Duration::from_millis(5);
/// Bytes of headers, and of a packet that only acknowledges.
const HEADERS: usize = 60;
/// The most by which packets are late at random. Blocks closer to each other change places.
const JITTER: Duration = Duration::from_millis(4);
/// A receiver may put off an acknowledgement for so long, which its sender knows.
const ACK_DELAY: Duration = Duration::from_millis(25);
/// For how long the round trip of a connection is little known.
const YOUNG: Duration = Duration::from_secs(3);

/// A connection, or an attempt to make one.
pub(crate) type WireId = usize;

/// Where a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the server.
    Up,
    /// To the viewer.
    Down,
}

#[derive(Debug)]
pub(crate) enum Packet {
    /// The first of a handshake, and the server's answers.
    Initial,
    Accept,
    Refuse,
    /// A piece of the control stream. An empty one is a PING.
    Piece(u64, Bytes),
    Ack(u64),
    Block(Bytes),
    Close(CloseCode, String),
    /// The answer of a process to a packet of a connection that an earlier one had.
    Reset,
}

#[derive(Debug)]
pub(crate) enum What {
    Packet(WireId, Way, Packet),
    /// A piece may have to be sent again.
    Again(WireId, Way, u64),
    /// A viewer, a session or a server has something due.
    Viewer(usize),
    Session(WireId),
    Server(usize),
    Beat(usize, usize, Arc<Beat>),
}

#[derive(Debug)]
struct Event {
    at: Instant,
    number: u64,
    what: What,
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

/// Where a viewer is.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) delay: Duration,
    pub(crate) loss: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) half: Half,
    free_at: Instant,
}

/// Where a server is.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) address: String,
    pub(crate) delay: Duration,
    pub(crate) half: Half,
    pub(crate) is_alive: bool,
}

/// Where somebody is when the network is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Left,
    Right,
}

#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) viewer: usize,
    pub(crate) server: usize,
    /// What the server is to the viewer.
    pub(crate) source: SourceId,
    begun: Instant,
    rtt: Duration,
    loss: f64,
    up: Flow,
    down: Flow,
}

/// One direction of a control stream.
#[derive(Debug, Default)]
struct Flow {
    next: u64,
    unacknowledged: BTreeMap<u64, Sent>,
    expected: u64,
    early: BTreeMap<u64, Bytes>,
    /// Whether its sender has closed the connection.
    is_over: bool,
}

#[derive(Debug)]
struct Sent {
    bytes: Bytes,
    attempt: u32,
    at: Instant,
}

#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) random: SmallRng,
    pub(crate) homes: Vec<Home>,
    pub(crate) sites: Vec<Site>,
    pub(crate) wires: Vec<Wire>,
    /// Whether the halves do not reach each other.
    pub(crate) is_divided: bool,
    queue: BinaryHeap<Event>,
    next: u64,
    pub(crate) events: u64,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: Instant::now(),
            random: SmallRng::seed_from_u64(seed),
            homes: Vec::new(),
            sites: Vec::new(),
            wires: Vec::new(),
            is_divided: false,
            queue: BinaryHeap::new(),
            next: 0,
            events: 0,
        }
    }

    /// A viewer somewhere: up to 90 ms from a server and back, and up to 3 % of packets lost.
    pub(crate) fn add_home(&mut self) -> usize {
        let number = self.homes.len();
        self.homes.push(Home {
            delay: Duration::from_micros(self.random.random_range(4_000..40_000)),
            loss: self.random.random_range(0..4) as f64 * 0.01,
            bytes_per_second: self.random.random_range(20_000.0..100_000.0),
            half: [Half::Left, Half::Right][number % 2],
            free_at: self.now,
        });
        number
    }

    /// The server at an address.
    pub(crate) fn site(&self, server: &Alternate) -> usize {
        let mut sites = self.sites.iter();
        let site = sites.position(|site| site.address == server.address);
        site.expect("servers name servers")
    }

    /// The time between two moments, at random.
    pub(crate) fn between(&mut self, least_ms: u64, most_ms: u64) -> Duration {
        Duration::from_micros(self.random.random_range(least_ms * 1000..most_ms * 1000))
    }

    pub(crate) fn post(&mut self, at: Instant, what: What) {
        self.queue.push(Event {
            at: at.max(self.now),
            number: self.next,
            what,
        });
        self.next += 1;
    }

    /// Goes on to the next event, if there is one until then.
    pub(crate) fn next(&mut self, until: Instant) -> Option<What> {
        if self.queue.peek().is_none_or(|event| event.at > until) {
            self.now = until;
            return None;
        }
        let event = self.queue.pop()?;
        self.events += 1;
        self.now = event.at;
        Some(event.what)
    }

    /// Whether packets of one half reach the other.
    pub(crate) fn reaches(&self, one: Half, other: Half) -> bool {
        !self.is_divided || one == other
    }

    fn passes(&self, wire: WireId) -> bool {
        let Wire { viewer, server, .. } = self.wires[wire];
        self.reaches(self.homes[viewer].half, self.sites[server].half)
    }

    /// A viewer begins to connect.
    pub(crate) fn open(&mut self, viewer: usize, server: usize, source: SourceId) -> WireId {
        let home = &self.homes[viewer];
        self.wires.push(Wire {
            viewer,
            server,
            source,
            begun: self.now,
            rtt: (home.delay + self.sites[server].delay) * 2 + JITTER,
            loss: home.loss,
            up: Flow::default(),
            down: Flow::default(),
        });
        self.wires.len() - 1
    }

    /// The round trip as both sides measure it.
    pub(crate) fn rtt(&self, wire: WireId) -> Duration {
        self.wires[wire].rtt
    }

    /// When the line of a viewer has room for a block.
    pub(crate) fn room_at(&self, wire: WireId) -> Instant {
        self.homes[self.wires[wire].viewer].free_at - QUEUE
    }

    pub(crate) fn send(&mut self, wire: WireId, way: Way, packet: Packet) {
        // What does not arrive takes no room of the line.
        let passes = self.passes(wire);
        let Wire {
            viewer, rtt, loss, ..
        } = self.wires[wire];
        let bytes = match &packet {
            Packet::Piece(_, bytes) | Packet::Block(bytes) => bytes.len(),
            _ => 0,
        };
        let mut leaves = self.now;
        if way == Way::Down && passes {
            let home = &mut self.homes[viewer];
            let takes = (bytes + HEADERS) as f64 / home.bytes_per_second;
            home.free_at = home.free_at.max(self.now) + Duration::from_secs_f64(takes);
            leaves = home.free_at;
        }
        let is_lost = self.random.random_bool(loss);
        let late = JITTER.mul_f64(self.random.random());
        if passes && !is_lost {
            let at = leaves + (rtt - JITTER) / 2 + late;
            self.post(at, What::Packet(wire, way, packet));
        }
    }

    /// Whether a packet that was on its way arrives.
    pub(crate) fn arrives(&self, wire: WireId, way: Way) -> bool {
        let lives = way == Way::Down || self.sites[self.wires[wire].server].is_alive;
        lives && self.passes(wire)
    }

    /// Writes to a control stream.
    pub(crate) fn write(&mut self, wire: WireId, way: Way, bytes: Bytes) {
        let flow = self.flow(wire, way);
        let number = flow.next;
        flow.next += 1;
        self.send_piece(wire, way, number, bytes, 0);
    }

    fn send_piece(&mut self, wire: WireId, way: Way, number: u64, bytes: Bytes, attempt: u32) {
        let now = self.now;
        let sent = Sent {
            bytes: bytes.clone(),
            attempt,
            at: now,
        };
        self.flow(wire, way).unacknowledged.insert(number, sent);
        self.send(wire, way, Packet::Piece(number, bytes));
        let Wire { begun, rtt, .. } = self.wires[wire];
        let known = match now < begun + YOUNG {
            true => rtt * 3,
            false => rtt * 5 / 4,
        };
        let at = now + (known + ACK_DELAY) * (1 << attempt.min(8));
        self.post(at, What::Again(wire, way, number));
    }

    /// A piece was not acknowledged for some time.
    pub(crate) fn again(&mut self, wire: WireId, way: Way, number: u64) {
        let is_dead = way == Way::Down && !self.sites[self.wires[wire].server].is_alive;
        let flow = self.flow(wire, way);
        if flow.is_over || is_dead {
            return;
        }
        if let Some(Sent { bytes, attempt, .. }) = flow.unacknowledged.remove(&number) {
            self.send_piece(wire, way, number, bytes, attempt + 1);
        }
    }

    /// A piece was acknowledged. Those sent well before it are lost.
    pub(crate) fn acknowledged(&mut self, wire: WireId, way: Way, number: u64) {
        let (now, reordering) = (self.now, JITTER);
        let flow = self.flow(wire, way);
        let Some(acknowledged) = flow.unacknowledged.remove(&number) else {
            return;
        };
        let is_lost = |sent: &Sent| sent.at + reordering < acknowledged.at;
        let lost: Vec<(u64, Bytes)> = flow
            .unacknowledged
            .iter()
            .filter(|(_, sent)| is_lost(sent) && sent.at < now)
            .map(|(number, sent)| (*number, sent.bytes.clone()))
            .collect();
        for (number, bytes) in lost {
            self.send_piece(wire, way, number, bytes, 0);
        }
    }

    /// Acknowledges a piece. Returns what can be read now.
    pub(crate) fn take(&mut self, wire: WireId, way: Way, number: u64, bytes: Bytes) -> Vec<Bytes> {
        let back = match way {
            Way::Up => Way::Down,
            Way::Down => Way::Up,
        };
        self.send(wire, back, Packet::Ack(number));
        let flow = self.flow(wire, way);
        if number >= flow.expected {
            flow.early.insert(number, bytes);
        }
        let mut pieces = Vec::new();
        while let Some(bytes) = flow.early.remove(&flow.expected) {
            flow.expected += 1;
            pieces.push(bytes);
        }
        pieces
    }

    /// A side closes a connection, and tells the other one.
    pub(crate) fn close(&mut self, wire: WireId, way: Way, code: CloseCode, reason: String) {
        let flow = self.flow(wire, way);
        flow.is_over = true;
        flow.unacknowledged.clear();
        self.send(wire, way, Packet::Close(code, reason));
    }

    /// A side has forgotten a connection.
    pub(crate) fn forget(&mut self, wire: WireId, way: Way) {
        let flow = self.flow(wire, way);
        flow.is_over = true;
        flow.unacknowledged.clear();
    }

    fn flow(&mut self, wire: WireId, way: Way) -> &mut Flow {
        let wire = &mut self.wires[wire];
        match way {
            Way::Up => &mut wire.up,
            Way::Down => &mut wire.down,
        }
    }
}
