//! Flows of quinn's protocol core on one simulated bottleneck: its own pacing, loss detection and
//! acknowledgements drive the controllers, on a virtual clock.
//!
//! The return path has no queue, and the same loss. Only the bytes of certificates differ from run
//! to run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::congestion::ControllerFactory;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event, ServerConfig, StreamEvent, StreamId, TransportConfig, VarInt,
};

use crate::path::{PathDirection, Shape};
use crate::tls::{ServerIdentity, Trust, client_config};

pub(super) mod bbr;

/// The bottleneck and its surroundings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Path {
    pub(super) bits_per_second: f64,
    /// The maximum queue.
    pub(super) buffer: Duration,
    /// One way.
    pub(super) delay: Duration,
    /// Each way.
    pub(super) loss: f64,
    /// A new rate and delay from some time on.
    pub(super) change: Option<(Duration, f64, Duration)>,
    pub(super) seed: u64,
    /// The start of the run, for controllers that need it.
    pub(super) start: Instant,
}

/// A sender that always has data, for a while, or sends at a constant rate.
#[derive(Clone)]
pub(super) struct Flow {
    pub(super) controllers: Arc<dyn ControllerFactory + Send + Sync>,
    pub(super) from: Duration,
    pub(super) until: Duration,
    pub(super) bits_per_second: f64,
}

/// The results between two moments.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Bits per second of each flow's stream that arrived, in any order.
    pub(super) goodputs: Vec<f64>,
    /// In milliseconds, weighted by time.
    pub(super) queue_mean: f64,
    pub(super) queue_95th: f64,
    /// The share of packets that found the queue full.
    pub(super) overflow: f64,
    /// Packets that each sender declared lost, as a share of those sent.
    pub(super) lost: Vec<f64>,
}

/// Runs until `until`, and counts from `from` on.
pub(super) fn run(path: Path, flows: &[Flow], from: Duration, until: Duration) -> Outcome {
    let mut network = Network::new(path);
    let identity = ServerIdentity::ephemeral().expect("a certificate");
    let mut pairs: Vec<Pair> = flows
        .iter()
        .map(|flow| Pair::new(flow.clone(), &identity))
        .collect();
    let end = path.start + until;
    let mut counted = false;
    let mut before: Vec<u64> = vec![0; flows.len()];
    loop {
        for (number, pair) in pairs.iter_mut().enumerate() {
            pair.work(number, &mut network);
        }
        let now = network.now;
        let timers = pairs
            .iter_mut()
            .filter_map(|pair| pair.next(path.start, now))
            .min();
        let Some(next) = timers
            .into_iter()
            .chain(network.next())
            .min()
            .filter(|next| *next < end)
        else {
            break;
        };
        network.advance(next);
        if !counted && next >= path.start + from {
            counted = true;
            network.directions[0].counts(next);
            before = pairs.iter().map(|pair| pair.received).collect();
        }
        while let Some(packet) = network.arrived() {
            pairs[packet.flow].take(packet, network.now);
        }
    }
    let seconds = (until - from).as_secs_f64();
    let goodputs = pairs
        .iter()
        .zip(before)
        .map(|(pair, before)| (pair.received - before) as f64 * 8.0 / seconds)
        .collect();
    let lost = pairs.iter().map(Pair::lost).collect();
    let counts = network.directions[0].counts(end);
    let (queue_mean, queue_95th) = counts.queue();
    let overflow = counts.overflowed as f64 / counts.offered.max(1) as f64;
    Outcome {
        goodputs,
        queue_mean,
        queue_95th,
        overflow,
        lost,
    }
}

#[derive(Clone)]
struct Packet {
    flow: usize,
    to_receiver: bool,
    bytes: BytesMut,
}

struct Network {
    path: Path,
    now: Instant,
    /// Towards the receiver, and back.
    directions: [PathDirection; 2],
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    packets: HashMap<u64, Packet>,
    number: u64,
}

impl Network {
    fn new(path: Path) -> Self {
        let Path {
            bits_per_second,
            buffer,
            delay,
            loss,
            seed,
            start,
            ..
        } = path;
        let there = Shape {
            bits_per_second,
            buffer,
            delay,
            loss,
            ..Shape::default()
        };
        let back = Shape {
            delay,
            loss,
            ..Shape::default()
        };
        let directions = [(there, 0), (back, 1)].map(|(shape, number)| {
            PathDirection::new(shape, 2 * seed + number, start).expect("a shape that can be")
        });
        Self {
            path,
            now: start,
            directions,
            due: BinaryHeap::new(),
            packets: HashMap::new(),
            number: 0,
        }
    }

    fn next(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    fn advance(&mut self, to: Instant) {
        self.now = self.now.max(to);
        if let Some((at, rate, delay)) = self.path.change
            && self.now >= self.path.start + at
        {
            self.directions[0].change(rate, delay);
            self.directions[1].change(f64::INFINITY, delay);
            self.path.change = None;
        }
    }

    fn send(&mut self, packet: Packet) {
        let direction = &mut self.directions[usize::from(!packet.to_receiver)];
        for due in direction.take(self.now, packet.bytes.len() + UDP_IP_HEADERS) {
            self.number += 1;
            self.due.push(Reverse((due, self.number)));
            self.packets.insert(self.number, packet.clone());
        }
    }

    fn arrived(&mut self) -> Option<Packet> {
        let Reverse((at, number)) = *self.due.peek()?;
        if at > self.now {
            return None;
        }
        self.due.pop();
        self.packets.remove(&number)
    }
}

/// One end of a connection.
struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
}

impl End {
    fn new(server: Option<Arc<ServerConfig>>, seed: u8) -> Self {
        let endpoint = Endpoint::new(
            Arc::new(EndpointConfig::default()),
            server,
            true,
            Some([seed; 32]),
        );
        Self {
            endpoint,
            connection: None,
        }
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut().map(|(_, connection)| connection)
    }

    /// Handles one packet, which may be the first of a connection.
    fn take(&mut self, now: Instant, bytes: BytesMut) {
        let mut answer = Vec::new();
        match self
            .endpoint
            .handle(now, REMOTE, None, None, bytes, &mut answer)
        {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                self.connection().expect("the only one").handle_event(event);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut answer, None);
                self.connection =
                    Some(accepted.unwrap_or_else(|error| panic!("accepted: {}", error.cause)));
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    /// Handles timeouts, and sends packets.
    fn work(&mut self, now: Instant, mut send: impl FnMut(BytesMut)) {
        let Some((handle, connection)) = &mut self.connection else {
            return;
        };
        if connection.poll_timeout().is_some_and(|due| due <= now) {
            connection.handle_timeout(now);
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        let mut batch = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, SEGMENTS, &mut batch) {
            let segment = transmit.segment_size.unwrap_or(transmit.size);
            batch[..transmit.size]
                .chunks(segment)
                .for_each(|bytes| send(BytesMut::from(bytes)));
            batch.clear();
        }
    }
}

/// A sender and its receiver.
struct Pair {
    flow: Flow,
    client: ClientConfig,
    sender: End,
    receiver: End,
    stream: Option<StreamId>,
    written: u64,
    received: u64,
}

impl Pair {
    fn new(flow: Flow, identity: &ServerIdentity) -> Self {
        let windows = || {
            let mut transport = TransportConfig::default();
            transport.initial_rtt(crate::endpoint::INITIAL_RTT);
            transport
                .stream_receive_window(VarInt::from_u32(64 << 20))
                .receive_window(VarInt::from_u32(64 << 20));
            transport.send_window(64 << 20);
            transport
        };
        let mut transport = windows();
        let mut server =
            ServerConfig::with_crypto(Arc::new(identity.quic().expect("a TLS configuration")));
        server.transport_config(Arc::new(windows()));
        transport.congestion_controller_factory(flow.controllers.clone());
        let trust = Trust::Fingerprint(identity.fingerprint());
        let mut client = ClientConfig::new(Arc::new(
            client_config(&trust, None).expect("a TLS configuration"),
        ));
        client.transport_config(Arc::new(transport));
        let (sender, receiver) = (End::new(None, 1), End::new(Some(Arc::new(server)), 2));
        Self {
            flow,
            client,
            sender,
            receiver,
            stream: None,
            written: 0,
            received: 0,
        }
    }

    fn take(&mut self, packet: Packet, now: Instant) {
        let end = if packet.to_receiver {
            &mut self.receiver
        } else {
            &mut self.sender
        };
        end.take(now, packet.bytes);
    }

    fn work(&mut self, flow: usize, network: &mut Network) {
        let (now, age) = (network.now, network.now - network.path.start);
        if self.sender.connection.is_none() && age >= self.flow.from {
            let connected =
                self.sender
                    .endpoint
                    .connect(now, self.client.clone(), REMOTE, "localhost");
            self.sender.connection = Some(connected.expect("the configuration is complete"));
        }
        self.write(age);
        self.sender.work(now, |bytes| {
            network.send(Packet {
                flow,
                to_receiver: true,
                bytes,
            })
        });
        self.read();
        self.receiver.work(now, |bytes| {
            network.send(Packet {
                flow,
                to_receiver: false,
                bytes,
            })
        });
    }

    /// Writes data, as far as the connection accepts it.
    fn write(&mut self, age: Duration) {
        let Some(connection) = self.sender.connection() else {
            return;
        };
        while let Some(event) = connection.poll() {
            match event {
                Event::Connected => self.stream = connection.streams().open(Dir::Uni),
                Event::ConnectionLost { reason } if age < self.flow.until => {
                    panic!("the sender lost its connection: {reason}")
                }
                _ => {}
            }
        }
        let Some(stream) = self.stream else { return };
        if age >= self.flow.until {
            // This discards data that was written but not sent. Later calls find no stream.
            let _ = connection.send_stream(stream).reset(VarInt::from_u32(0));
            return;
        }
        let allowed = (age - self.flow.from).as_secs_f64() * self.flow.bits_per_second / 8.0;
        while (self.written as f64) < allowed {
            match connection.send_stream(stream).write(&ZEROS) {
                Ok(written) => self.written += written as u64,
                Err(_) => break,
            }
        }
    }

    fn read(&mut self) {
        let Some((_, connection)) = &mut self.receiver.connection else {
            return;
        };
        while let Some(event) = connection.poll() {
            let stream = match event {
                Event::Stream(StreamEvent::Opened { dir }) => connection.streams().accept(dir),
                Event::Stream(StreamEvent::Readable { id }) => Some(id),
                _ => None,
            };
            let Some(stream) = stream else { continue };
            let mut incoming = connection.recv_stream(stream);
            let Ok(mut chunks) = incoming.read(false) else {
                continue;
            };
            while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
                self.received += chunk.bytes.len() as u64;
            }
            let _ = chunks.finalize();
        }
    }

    /// When to act next without a packet.
    fn next(&mut self, start: Instant, now: Instant) -> Option<Instant> {
        if self.sender.connection.is_none() {
            return Some(start + self.flow.from);
        }
        // A sender with a constant rate writes every few milliseconds.
        let writes = (self.flow.bits_per_second.is_finite() && now - start < self.flow.until)
            .then_some(now + WRITE_INTERVAL);
        let ends = [&mut self.sender, &mut self.receiver];
        ends.into_iter()
            .filter_map(|end| end.connection()?.poll_timeout())
            .chain(writes)
            .min()
    }

    fn lost(&self) -> f64 {
        let Some((_, connection)) = &self.sender.connection else {
            return 0.0;
        };
        let path = connection.stats().path;
        path.lost_packets as f64 / path.sent_packets.max(1) as f64
    }
}

const REMOTE: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 4433);
/// The value that quinn uses.
const SEGMENTS: usize = 10;
const UDP_IP_HEADERS: usize = 28;
const WRITE_INTERVAL: Duration = Duration::from_millis(5);
static ZEROS: [u8; 4096] = [0; 4096];
