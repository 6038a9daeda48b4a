//! One task a client, between [`Proto`], QUIC and the blocking pool.
//!
//! The loop of a connection waits for any of: bytes of the control stream, of a block stream, a datagram, a command of the program, a
//! finished multiplication, an answer of the device, a deadline. Whatever it was, it then takes everything else that is there, and carries out what
//! [`Proto`] says. Commands and deadlines are served while there is no connection as well.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, pending};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::BackoffBuilder;
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use quinn::{Connection, Endpoint, ReadError, RecvStream, SendStream, VarInt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::bulk::{self, Bulk};
use super::proto::{self, Answer, Event, FetchId, Order, Proto, Rebuilder, StreamEnd};
use super::{Config, Error, Server, Stats};
use crate::codec::rlnc::System;
use crate::endpoint::INITIAL_RTT;
use crate::gf::Kernels;
use crate::object::{SegmentId, Shape};
use crate::tls;
use crate::wire::message::{Hello, Meta};
use crate::wire::{CloseCode, Violation, frame};

/// Receive and send buffer of the socket: a burst of blocks must not overflow it while this machine is busy.
const SOCKET_BUFFER: usize = 4 << 20;
/// Datagrams that QUIC keeps until they are read.
const DATAGRAM_BUFFER: usize = 4 << 20;
/// Datagrams taken in one turn before anything else has its turn.
const DATAGRAMS_A_TURN: usize = 512;
/// Control bytes taken from QUIC at once.
const CONTROL_READ_MAX: usize = 64 * 1024;
/// Chunks of a block stream taken at once.
const CHUNKS: usize = 32;
/// How often the statistics are published at most.
const STATS_EVERY: Duration = Duration::from_millis(50);
/// A connection that held for so long was a good one.
const GOOD_CONNECTION: Duration = Duration::from_secs(10);
/// How long the end of a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The first pause before connecting again.
const RECONNECT_MIN: Duration = Duration::from_millis(100);

/// What the program wants.
pub(super) enum Command {
    /// What is this path?
    Get { path: String, offset: u64, length: Option<u64>, reply: oneshot::Sender<Result<Answer, Error>> },
    /// The bytes of this segment, please.
    Fetch { order: Order, reply: oneshot::Sender<Result<Bytes, Error>> },
    /// Somebody waits for this segment now.
    Hurry(SegmentId),
    /// Tell of new segments.
    Subscribe { stream: String, news: mpsc::Sender<Meta> },
}

/// Keeps a connection until all handles of the client are gone. `ready` is told how the first one went.
pub(super) async fn run(
    config: Config,
    commands: mpsc::Receiver<Command>,
    stats: watch::Sender<Stats>,
    ready: oneshot::Sender<Result<(), Error>>,
) {
    let tls = match tls::client_config(&config.trust) {
        Ok(tls) => Arc::new(tls),
        Err(error) => {
            let _ = ready.send(Err(Error::Setup(error.to_string())));
            return;
        }
    };
    let mut driver = Driver::new(&config, commands, stats);
    driver.ready = Some(ready);
    let mut pauses = pauses(&config);
    for (attempt, server) in config.servers.iter().cycle().enumerate() {
        let started = Instant::now();
        let connecting = tokio::time::timeout(config.connect_timeout, connect(server, tls.clone()));
        let fault = match driver.meanwhile(connecting).await {
            None => return,
            Some(Ok(Ok((endpoint, connection)))) => {
                let end = driver.converse(&connection).await;
                let closed = matches!(end, End::Closed);
                let fault = driver.disconnected(&connection, end);
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, endpoint.wait_idle()).await;
                if closed {
                    return;
                }
                fault
            }
            Some(Ok(Err(error))) => error,
            Some(Err(_)) => format!("{server} does not answer"),
        };
        if started.elapsed() >= GOOD_CONNECTION {
            pauses = self::pauses(&config);
        }
        if let Some(ready) = driver.ready.take_if(|_| attempt + 1 >= config.servers.len()) {
            let _ = ready.send(Err(Error::Connection(fault)));
            return;
        }
        tracing::debug!(%server, fault, "no connection");
        let pause = pauses.next().unwrap_or(config.reconnect_max);
        if driver.meanwhile(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
    if let Some(ready) = driver.ready.take() {
        let _ = ready.send(Err(Error::Setup("no server is named".to_owned())));
    }
}

fn pauses(config: &Config) -> backon::ExponentialBackoff {
    let builder = backon::ExponentialBuilder::new().with_min_delay(RECONNECT_MIN).with_max_delay(config.reconnect_max);
    builder.with_jitter().without_max_times().build()
}

/// How a connection ended.
enum End {
    /// The program has no handle any more.
    Closed,
    /// The server leaves, and everything asked of it has come.
    Left,
    /// The server broke the rules.
    Violation(Violation),
    /// QUIC says so.
    Lost(String),
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

struct Driver {
    proto: Proto,
    commands: mpsc::Receiver<Command>,
    gets: HashMap<u64, oneshot::Sender<Result<Answer, Error>>>,
    fetches: HashMap<FetchId, Rebuild>,
    subscriptions: HashMap<u64, mpsc::Sender<Meta>>,
    jobs: Jobs,
    bulk: Bulk,
    ready: Option<oneshot::Sender<Result<(), Error>>>,
    publish: watch::Sender<Stats>,
    published: Instant,
    stats: Stats,
    /// UDP bytes of connections that have ended.
    wire_bytes_before: u64,
}

/// A segment that comes generation by generation.
struct Rebuild {
    order: Order,
    generations: Vec<Option<Vec<u8>>>,
    left: usize,
    retried: bool,
    reply: oneshot::Sender<Result<Bytes, Error>>,
}

/// What the blocking pool has done.
enum Done {
    Gathered { fetch: FetchId, index: usize, system: Option<System> },
    Multiplied { fetch: FetchId, index: usize, bytes: Option<Vec<u8>> },
    Verified { fetch: FetchId, bytes: Option<Bytes> },
}

/// What an open connection consists of.
struct Wires {
    control: RecvStream,
    frames: frame::Reader,
    out: Option<SendStream>,
    writing: Option<Writing>,
    reading: FuturesUnordered<Reading>,
}

type Writing = Pin<Box<dyn Future<Output = Option<SendStream>> + Send>>;
type Reading = Pin<Box<dyn Future<Output = Read> + Send>>;

/// What a stream brought.
struct Read {
    stream: RecvStream,
    chunks: Vec<Bytes>,
    end: Option<StreamEnd>,
}

impl Driver {
    fn new(config: &Config, commands: mpsc::Receiver<Command>, publish: watch::Sender<Stats>) -> Self {
        let hello = Hello {
            n_max: Shape::N_LIMIT,
            block_bytes_max: Shape::BLOCK_BYTES_MAX,
            segment_bytes_max: Shape::LENGTH_MAX,
            // This side serves nothing.
            requests_max: 0,
            credit_max: 0,
            agent: concat!("ncpeer/", env!("CARGO_PKG_VERSION")).to_owned(),
            ..Hello::defaults()
        };
        let proto = Proto::new(proto::Config {
            hello,
            datagrams: config.datagrams,
            requests_max: usize::from(config.requests_max),
            window_min: config.window.0.as_u64(),
            window_max: config.window.1.as_u64(),
            hello_timeout: config.connect_timeout,
            answer_timeout: config.answer_timeout,
            stall_timeout: config.stall_timeout,
            kernels: Kernels::detect(),
            gathers: config.device.is_some(),
        });
        Self {
            proto,
            commands,
            gets: HashMap::new(),
            fetches: HashMap::new(),
            subscriptions: HashMap::new(),
            jobs: Jobs::new(),
            bulk: Bulk::new(config.device.clone()),
            ready: None,
            publish,
            published: Instant::now(),
            stats: Stats::default(),
            wire_bytes_before: 0,
        }
    }

    /// Serves the program while something else is awaited. `None` if the program has gone.
    async fn meanwhile<F: Future>(&mut self, awaited: F) -> Option<F::Output> {
        let mut awaited = pin!(awaited);
        loop {
            let _ = self.proto.handle_timeout(Instant::now());
            self.take_events();
            self.bulk.start(Instant::now(), true);
            self.publish(None);
            let due = self.due();
            tokio::select! {
                output = &mut awaited => return Some(output),
                command = self.commands.recv() => self.command(command?),
                done = self.jobs.next() => self.done(done),
                outcomes = self.bulk.next() => self.decoded(outcomes),
                () = until(due) => {}
            }
        }
    }

    async fn converse(&mut self, connection: &Connection) -> End {
        match self.carry(connection).await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn carry(&mut self, connection: &Connection) -> Result<std::convert::Infallible, End> {
        let (out, control) = connection.open_bi().await.map_err(lost)?;
        let mut wires =
            Wires { control, frames: frame::Reader::new(), out: Some(out), writing: None, reading: FuturesUnordered::new() };
        self.proto.handle_connected(Instant::now());
        loop {
            self.turn(connection, &mut wires)?;
            let due = self.due();
            tokio::select! {
                chunk = wires.control.read_chunk(CONTROL_READ_MAX, true) => {
                    let chunk = chunk.map_err(stream_lost)?.ok_or(Violation::Unexpected("end of the control stream"))?;
                    self.control(&mut wires.frames, &chunk.bytes)?;
                }
                datagram = connection.read_datagram() => self.datagrams(connection, datagram.map_err(lost)?)?,
                stream = connection.accept_uni() => wires.reading.push(read(stream.map_err(lost)?)),
                Some(read) = wires.reading.next() => self.stream(&mut wires.reading, read)?,
                out = written(&mut wires.writing) => {
                    wires.writing = None;
                    wires.out = Some(out.ok_or_else(|| End::Lost("the control stream was refused".to_owned()))?);
                }
                command = self.commands.recv() => self.command(command.ok_or(End::Closed)?),
                done = self.jobs.next() => self.done(done),
                outcomes = self.bulk.next() => self.decoded(outcomes),
                () = until(due) => {}
            }
        }
    }

    /// Carries out what the protocol has decided.
    fn turn(&mut self, connection: &Connection, wires: &mut Wires) -> Result<(), End> {
        while let Ok(command) = self.commands.try_recv() {
            self.command(command);
        }
        self.drop_abandoned();
        let now = Instant::now();
        self.proto.set_rtt(connection.rtt());
        if self.proto.poll_timeout().is_some_and(|due| due <= now) {
            self.proto.handle_timeout(now)?;
        }
        if wires.writing.is_none()
            && let Some(mut stream) = wires.out.take()
        {
            let mut out = Vec::new();
            while let Some(message) = self.proto.poll_message(now) {
                message.encode(&mut out);
            }
            if out.is_empty() {
                wires.out = Some(stream);
            } else {
                wires.writing = Some(Box::pin(async move { stream.write_chunk(out.into()).await.ok().map(|()| stream) }));
            }
        }
        let leaving = self.take_events();
        self.bulk.start(now, self.proto.is_quiet() && self.jobs.is_empty());
        self.publish(Some(connection));
        if leaving && self.proto.is_quiet() && wires.writing.is_none() { Err(End::Left) } else { Ok(()) }
    }

    fn control(&mut self, frames: &mut frame::Reader, bytes: &[u8]) -> Result<(), End> {
        let now = Instant::now();
        frames.push(bytes);
        while let Some(message) = frames.next()? {
            self.proto.handle_message(now, message)?;
        }
        Ok(())
    }

    fn datagrams(&mut self, connection: &Connection, first: Bytes) -> Result<(), End> {
        let now = Instant::now();
        self.proto.handle_datagram(now, first)?;
        for _ in 1..DATAGRAMS_A_TURN {
            match connection.read_datagram().now_or_never() {
                Some(datagram) => self.proto.handle_datagram(now, datagram.map_err(lost)?)?,
                None => break,
            }
        }
        Ok(())
    }

    fn stream(&mut self, reading: &mut FuturesUnordered<Reading>, read: Read) -> Result<(), End> {
        let now = Instant::now();
        let Read { mut stream, chunks, end } = read;
        let id = VarInt::from(stream.id()).into_inner();
        for chunk in chunks {
            self.proto.handle_stream(now, id, &chunk)?;
        }
        match end {
            Some(end) => self.proto.handle_stream_end(id, end)?,
            None if self.refused(id) => {
                // The sender may have ended it already; then there is nothing to stop.
                let _ = stream.stop(VarInt::from_u32(CloseCode::Done.quic()));
                self.proto.handle_stream_end(id, StreamEnd::Reset(u64::from(CloseCode::Done.quic())))?;
            }
            None => reading.push(self::read(stream)),
        }
        Ok(())
    }

    /// Whether the protocol wants nothing more of a stream. Only what just brought bytes can be refused.
    fn refused(&mut self, stream: u64) -> bool {
        let mut refused = false;
        while let Some(stopped) = self.proto.poll_stop() {
            refused |= stopped == stream;
        }
        refused
    }

    fn command(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Get { path, offset, length, reply } => {
                let request = self.proto.get(now, &path, offset, length);
                self.gets.insert(request, reply);
            }
            Command::Fetch { order, reply } => self.fetch(order, reply, false),
            Command::Hurry(segment) => {
                let wanted = self.fetches.iter_mut().filter(|(_, rebuild)| rebuild.order.segment == segment);
                wanted.for_each(|(fetch, rebuild)| {
                    rebuild.order.urgency = proto::Urgency::Now;
                    self.proto.hurry(*fetch);
                });
            }
            Command::Subscribe { stream, news } => {
                let request = self.proto.subscribe(&stream);
                self.subscriptions.insert(request, news);
            }
        }
    }

    fn fetch(&mut self, order: Order, reply: oneshot::Sender<Result<Bytes, Error>>, retried: bool) {
        let fetch = self.proto.fetch(Instant::now(), order);
        let left = order.shape.generations() as usize;
        let generations = (0..left).map(|_| None).collect();
        self.fetches.insert(fetch, Rebuild { order, generations, left, retried, reply });
    }

    /// Ends what nobody waits for any more.
    fn drop_abandoned(&mut self) {
        self.gets.retain(|request, reply| {
            let wanted = !reply.is_closed();
            if !wanted {
                self.proto.cancel_get(*request);
            }
            wanted
        });
        self.fetches.retain(|fetch, rebuild| {
            let wanted = !rebuild.reply.is_closed();
            if !wanted {
                self.proto.cancel_fetch(*fetch);
            }
            wanted
        });
        self.subscriptions.retain(|request, news| {
            let wanted = !news.is_closed();
            if !wanted {
                self.proto.unsubscribe(*request);
            }
            wanted
        });
    }

    /// Passes on what has come. True if the server is leaving.
    fn take_events(&mut self) -> bool {
        while let Some(event) = self.proto.poll_event() {
            match event {
                Event::Ready => {
                    self.stats.connected = true;
                    self.stats.server = self.proto.server().cloned();
                    self.publish.send_replace(self.stats.clone());
                    if let Some(ready) = self.ready.take() {
                        let _ = ready.send(Ok(()));
                    }
                }
                Event::Answered { request, answer } => {
                    if let Some(reply) = self.gets.remove(&request) {
                        let _ = reply.send(answer.map_err(Error::from));
                    }
                }
                Event::Announced { request, meta } => {
                    // A program that does not listen misses news and nothing else.
                    if let Some(news) = self.subscriptions.get(&request) {
                        let _ = news.try_send(meta);
                    }
                }
                Event::Unsubscribed { request, refusal } => {
                    tracing::debug!(reason = refusal.reason, "subscription ended");
                    self.subscriptions.remove(&request);
                }
                Event::Decoded { fetch, decoder } if decoder.is_to_be_solved() => self.jobs.add(move || gather(fetch, *decoder)),
                Event::Decoded { fetch, decoder } => self.jobs.add(move || multiply(fetch, *decoder)),
                Event::Failed { fetch, failure } => {
                    if let Some(rebuild) = self.fetches.remove(&fetch) {
                        let _ = rebuild.reply.send(Err(failure.into()));
                    }
                }
                Event::GoingAway => tracing::debug!("the server goes away"),
            }
        }
        self.proto.is_leaving()
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Gathered { fetch, index, system: None } => self.multiplied(fetch, index, None),
            Done::Gathered { fetch, system: Some(system), .. } => {
                if let Some(system) = self.bulk.add(Instant::now(), fetch, system) {
                    self.jobs.add(move || solve(fetch, system));
                }
            }
            Done::Multiplied { fetch, index, bytes } => self.multiplied(fetch, index, bytes),
            Done::Verified { fetch, bytes } => {
                let Some(rebuild) = self.fetches.remove(&fetch) else { return };
                self.verified(rebuild, bytes);
            }
        }
    }

    /// A generation has its bytes, if they could be had.
    fn multiplied(&mut self, fetch: FetchId, index: usize, bytes: Option<Vec<u8>>) {
        let Some(rebuild) = self.fetches.get_mut(&fetch) else { return };
        rebuild.left -= 1;
        if let Some(place) = rebuild.generations.get_mut(index) {
            *place = bytes;
        }
        if rebuild.left == 0 {
            let (id, generations) = (rebuild.order.segment, std::mem::take(&mut rebuild.generations));
            self.jobs.add(move || Done::Verified { fetch, bytes: join(generations).filter(|all| SegmentId::of(all) == id) });
        }
    }

    /// What the device has made of some generations.
    fn decoded(&mut self, outcomes: Vec<bulk::Outcome>) {
        for outcome in outcomes {
            match outcome {
                bulk::Outcome::Decoded { fetch, index, bytes, maker } => {
                    self.stats.generations_on_device += 1;
                    self.stats.device = Some(maker);
                    self.multiplied(fetch, index, Some(bytes));
                }
                bulk::Outcome::Back { fetch, system } => self.jobs.add(move || solve(fetch, system)),
            }
        }
    }

    fn verified(&mut self, rebuild: Rebuild, bytes: Option<Bytes>) {
        match bytes {
            Some(bytes) => {
                self.stats.segments_verified += 1;
                self.stats.bytes += bytes.len() as u64;
                let counts = self.proto.counts();
                self.stats.generations = counts.generations;
                self.stats.generations_progressive = counts.generations_progressive;
                // Whoever has the bytes finds them counted.
                self.publish.send_replace(self.stats.clone());
                let _ = rebuild.reply.send(Ok(bytes));
            }
            None => {
                self.stats.segments_corrupt += 1;
                tracing::warn!(segment = ?rebuild.order.segment, "the bytes that came are not those of the segment");
                if rebuild.retried {
                    let _ = rebuild.reply.send(Err(Error::Corrupt));
                } else {
                    self.fetch(rebuild.order, rebuild.reply, true);
                }
            }
        }
    }

    /// Says goodbye and keeps what the next connection needs. Returns what was wrong.
    fn disconnected(&mut self, connection: &Connection, end: End) -> String {
        let (code, fault) = match end {
            End::Closed | End::Left => (CloseCode::Done, "closed".to_owned()),
            End::Violation(violation) => {
                tracing::warn!(peer = %connection.remote_address(), %violation, "the server breaks the rules");
                (violation.close_code(), violation.to_string())
            }
            End::Lost(fault) => (CloseCode::Done, fault),
        };
        connection.close(VarInt::from_u32(code.quic()), fault.as_bytes());
        self.wire_bytes_before += connection.stats().udp_rx.bytes;
        self.proto.handle_disconnected(Instant::now());
        self.stats.reconnects += u64::from(std::mem::take(&mut self.stats.connected));
        fault
    }

    fn due(&self) -> Option<Instant> {
        let stats = (!self.proto.is_idle()).then(|| self.published + STATS_EVERY);
        [self.proto.poll_timeout(), self.bulk.due(), stats].into_iter().flatten().min()
    }

    fn publish(&mut self, connection: Option<&Connection>) {
        let now = Instant::now();
        if now < self.published + STATS_EVERY && !self.proto.is_idle() {
            return;
        }
        self.published = now;
        let counts = self.proto.counts();
        let (loss, rate) = self.proto.path();
        let stats = Stats {
            address: connection.map(Connection::remote_address).or(self.stats.address),
            server: self.proto.server().cloned().or_else(|| self.stats.server.take()),
            blocks_received: counts.blocks,
            blocks_innovative: counts.innovative,
            blocks_useless: counts.useless,
            blocks_late: counts.late,
            blocks_systematic: counts.systematic,
            datagrams_lost: counts.lost,
            blocks_repaired: counts.repaired,
            generations: counts.generations,
            generations_progressive: counts.generations_progressive,
            wire_bytes: self.wire_bytes_before + connection.map_or(0, |connection| connection.stats().udp_rx.bytes),
            rtt: connection.map_or(self.stats.rtt, Connection::rtt),
            loss,
            rate,
            progress: self.proto.progress(),
            ..self.stats.clone()
        };
        self.stats = stats.clone();
        self.publish.send_replace(stats);
    }
}

/// Work for the blocking pool, as much at a time as there are cores.
struct Jobs {
    running: FuturesUnordered<JoinHandle<Done>>,
    waiting: VecDeque<Box<dyn FnOnce() -> Done + Send>>,
    most: usize,
}

impl Jobs {
    fn new() -> Self {
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        Self { running: FuturesUnordered::new(), waiting: VecDeque::new(), most }
    }

    fn add(&mut self, job: impl FnOnce() -> Done + Send + 'static) {
        self.waiting.push_back(Box::new(job));
        self.start();
    }

    fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    fn start(&mut self) {
        while self.running.len() < self.most
            && let Some(job) = self.waiting.pop_front()
        {
            self.running.push(tokio::task::spawn_blocking(job));
        }
    }

    /// The next job that is done; without any, never.
    async fn next(&mut self) -> Done {
        loop {
            match self.running.next().await {
                Some(done) => {
                    self.start();
                    return done.expect("no job panics");
                }
                None => pending().await,
            }
        }
    }
}

fn multiply(fetch: FetchId, decoder: Rebuilder) -> Done {
    let index = decoder.generation().index as usize;
    Done::Multiplied { fetch, index, bytes: decoder.into_bytes().ok() }
}

fn gather(fetch: FetchId, decoder: Rebuilder) -> Done {
    let index = decoder.generation().index as usize;
    Done::Gathered { fetch, index, system: decoder.into_system() }
}

fn solve(fetch: FetchId, system: System) -> Done {
    let index = system.generation.index as usize;
    Done::Multiplied { fetch, index, bytes: system.solve().ok() }
}

/// All generations in a row; `None` if one is missing.
fn join(generations: Vec<Option<Vec<u8>>>) -> Option<Bytes> {
    let generations = generations.into_iter().collect::<Option<Vec<_>>>()?;
    match <[Vec<u8>; 1]>::try_from(generations) {
        Ok([only]) => Some(only.into()),
        Err(several) => Some(several.concat().into()),
    }
}

/// Waits for what a stream brings next.
fn read(mut stream: RecvStream) -> Reading {
    Box::pin(async move {
        let mut chunks = vec![Bytes::new(); CHUNKS];
        let (count, end) = match stream.read_chunks(&mut chunks).await {
            Ok(Some(count)) => (count, None),
            Ok(None) => (0, Some(StreamEnd::Finished)),
            Err(ReadError::Reset(code)) => (0, Some(StreamEnd::Reset(code.into_inner()))),
            // The loop hears of a lost connection elsewhere.
            Err(_) => (0, Some(StreamEnd::Reset(0))),
        };
        chunks.truncate(count);
        Read { stream, chunks, end }
    })
}

async fn written(writing: &mut Option<Writing>) -> Option<SendStream> {
    match writing {
        Some(writing) => writing.await,
        None => pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => pending().await,
    }
}

fn lost(error: quinn::ConnectionError) -> End {
    End::Lost(error.to_string())
}

fn stream_lost(error: ReadError) -> End {
    End::Lost(error.to_string())
}

/// Connects to the first of a server's addresses that answers.
async fn connect(server: &Server, tls: Arc<quinn::crypto::rustls::QuicClientConfig>) -> Result<(Endpoint, Connection), String> {
    let addresses = tokio::net::lookup_host((server.host.as_str(), server.port)).await.map_err(|error| error.to_string())?;
    let mut fault = format!("{} has no address", server.host);
    for address in addresses {
        match connect_to(address, &server.host, tls.clone()).await {
            Ok(connected) => return Ok(connected),
            Err(error) => fault = format!("{address}: {error}"),
        }
    }
    Err(fault)
}

async fn connect_to(
    address: SocketAddr,
    name: &str,
    tls: Arc<quinn::crypto::rustls::QuicClientConfig>,
) -> Result<(Endpoint, Connection), String> {
    let socket = socket(address).map_err(|error| error.to_string())?;
    let endpoint = Endpoint::new(quinn::EndpointConfig::default(), None, socket, Arc::new(quinn::TokioRuntime))
        .map_err(|error| error.to_string())?;
    let mut config = quinn::ClientConfig::new(tls);
    config.transport_config(Arc::new(transport()));
    let connecting = endpoint.connect_with(config, address, name).map_err(|error| error.to_string())?;
    let connection = connecting.await.map_err(|error| error.to_string())?;
    Ok((endpoint, connection))
}

/// A socket of the address's family on any free port.
fn socket(address: SocketAddr) -> std::io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // The kernel caps these silently; smaller buffers mean more loss and nothing else.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.bind(&any.into())?;
    Ok(socket.into())
}

/// Windows for a consumer of media: wide for what comes, narrow for what it says.
fn transport() -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    transport.max_idle_timeout(Some(VarInt::from_u32(15_000).into()));
    transport.initial_rtt(INITIAL_RTT);
    transport.keep_alive_interval(Some(Duration::from_secs(4)));
    transport.datagram_receive_buffer_size(Some(DATAGRAM_BUFFER));
    transport.stream_receive_window(VarInt::from_u32(4 << 20));
    transport.receive_window(VarInt::from_u32(32 << 20));
    transport.send_window(256 * 1024);
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
    transport.max_concurrent_uni_streams(VarInt::from_u32(512));
    transport
}
