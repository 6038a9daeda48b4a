//! One viewer: a connection, its control stream, and the blocks of one generation at a time.
//!
//! It speaks the protocol as a peer does, but is made to be many: it keeps no payloads, unless it
//! is one of those that decode, and asks for exactly the blocks that are missing.

mod fault;
mod fetch;
mod incoming;
mod playing;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncs_codec::numbers::Numbers;
use ncs_gf::Kernels;
use ncserverd::endpoint;
use ncserverd::object::{RefusalCode, SegmentId};
use ncserverd::wire::CloseCode;
use ncserverd::wire::frame::Reader;
use ncserverd::wire::message::{Delivery, Message, Meta, StopReason};
use quinn::{Connection, ConnectionError, Endpoint, SendStream};
use tokio::sync::watch;

use super::clock::{Item, Playout, Whims};
use super::person::Person;
use super::playback::Player;
use super::totals::Totals;
use super::{Against, Plan, Program, plain};
pub(super) use fault::reason;
use fault::{Fault, is_closed, is_leaving, is_refusal, is_refused_handshake};
use fetch::{Check, Fetch};
use incoming::{Incoming, read};

/// What all viewers of a thread share.
pub(super) struct Shard {
    pub(super) plan: Arc<Plan>,
    pub(super) totals: Arc<Totals>,
    pub(super) present: Arc<AtomicU64>,
}

/// Why a connection ended.
pub(super) enum End {
    /// The run is over.
    Over,
    /// The viewer has had enough.
    Left,
    /// The server has no room, and has closed the connection or refused it. It may have told when
    /// to come again.
    Refused(Option<Duration>),
    /// The server leaves.
    Gone,
    /// Anything else.
    Failed(String),
}

/// Views from its turn until the run is over, connecting again whenever it has to.
pub(super) async fn view(
    shard: &Shard,
    endpoint: &Endpoint,
    number: u64,
    mut over: watch::Receiver<bool>,
) {
    let Plan {
        begin,
        join_rate,
        seed,
        stay,
        seek,
        verify,
        ..
    } = *shard.plan;
    let mut whims = Whims::new(seed, number, stay, seek);
    let decodes = whims.is_among(verify);
    let turn = begin + Duration::from_secs_f64(number as f64 / join_rate);
    tokio::select! {
        () = tokio::time::sleep_until(turn.into()) => {}
        _ = over.wait_for(|over| *over) => return,
    }
    let mut person = Person::default();
    let mut refused_pause = REFUSED_PAUSE;
    loop {
        let viewer = (&mut whims, &mut person, decodes);
        let pause = match life(shard, endpoint, viewer, &mut over).await {
            End::Over => break,
            End::Left => {
                shard.totals.left.add(1);
                person.leave(&shard.totals);
                refused_pause = REFUSED_PAUSE;
                Duration::ZERO
            }
            End::Refused(Some(told)) => {
                person.refuse(&shard.totals);
                told.clamp(RETURN_MIN, TOLD_MAX)
            }
            End::Refused(None) => {
                person.refuse(&shard.totals);
                let pause = whims.part_of(refused_pause);
                refused_pause = REFUSED_PAUSE_MAX.min(refused_pause * 2);
                pause
            }
            End::Gone => {
                person.refuse(&shard.totals);
                GONE_PAUSE
            }
            End::Failed(reason) => {
                refused_pause = REFUSED_PAUSE;
                tracing::debug!(number, reason, "a viewer's connection failed");
                shard.totals.fail(reason);
                person.leave(&shard.totals);
                FAILED_PAUSE
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = over.wait_for(|over| *over) => break,
        }
    }
    person.end(Instant::now(), &shard.totals);
}

/// From connecting to the end of the connection.
async fn life(
    shard: &Shard,
    endpoint: &Endpoint,
    (whims, person, decodes): (&mut Whims, &mut Person, bool),
    over: &mut watch::Receiver<bool>,
) -> End {
    let begun = Instant::now();
    person.ask(begun, &shard.totals);
    let connecting = tokio::select! {
        connecting = connect(shard, endpoint) => connecting,
        _ = over.wait_for(|over| *over) => return End::Over,
    };
    let connection = match connecting {
        Ok(connection) => connection,
        Err(end) => return end,
    };
    shard.present.fetch_add(1, Ordering::Relaxed);
    let end = match shard.plan.against {
        Against::Coded => {
            let mut viewer = Viewer::new(shard, begun, decodes, whims, person);
            let end = tokio::select! {
                end = viewer.run(&connection, whims) => end,
                _ = over.wait_for(|over| *over) => End::Over,
            };
            viewer.abandon(Instant::now());
            end
        }
        Against::Plain => tokio::select! {
            end = plain::play(shard, &connection, person, begun, whims.stays()) => end,
            _ = over.wait_for(|over| *over) => End::Over,
        },
    };
    shard.present.fetch_sub(1, Ordering::Relaxed);
    if let (End::Failed(_), Some(error)) = (&end, connection.close_reason())
        && is_closed(&error)
    {
        person.put_out(&shard.totals);
    }
    shard.totals.wire_bytes.add(connection.stats().udp_rx.bytes);
    connection.close(CloseCode::Done.quic().into(), b"");
    end
}

async fn connect(shard: &Shard, endpoint: &Endpoint) -> Result<Connection, End> {
    let Plan {
        quic,
        address,
        host,
        ..
    } = &*shard.plan;
    let connecting = endpoint.connect_with(quic.clone(), *address, host);
    let connecting = connecting.map_err(|error| End::Failed(error.to_string()))?;
    match tokio::time::timeout(CONNECT_MAX, connecting).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) if is_refused_handshake(&error) => {
            Err(End::Refused(endpoint::retry_after(&error)))
        }
        Ok(Err(error)) => Err(End::Failed(reason(&error))),
        Err(_) => Err(End::Failed("no connection in time".to_owned())),
    }
}

struct Viewer<'a> {
    shard: &'a Shard,
    person: &'a mut Person,
    program: Arc<[Item]>,
    begun: Instant,
    greeted: bool,
    decodes: bool,
    playout: Option<Playout>,
    player: Player,
    /// The object that is being fetched for the segment that is played next, from this byte on.
    doing: Doing,
    offset: u64,
    /// Whether the playlist has been read on this connection, and when it was asked for last.
    is_listed: bool,
    listed_at: Option<Instant>,
    next_request: u64,
    next_alias: u16,
    out: Vec<u8>,
    leaves_at: Option<Instant>,
    seeks_at: Option<Instant>,
}

enum Doing {
    /// Nothing until the time comes.
    Waiting,
    /// Waiting for the answer to a GET, for a segment or the playlist.
    Asking {
        request: u64,
        list: bool,
    },
    /// Asks again then: the server had a reason to refuse.
    Pausing {
        until: Instant,
        list: bool,
    },
    /// Requests the rest again then: the server has no room for it.
    Outside {
        until: Instant,
        fetch: Box<Fetch>,
    },
    Fetching(Box<Fetch>),
}

impl<'a> Viewer<'a> {
    fn new(
        shard: &'a Shard,
        begun: Instant,
        decodes: bool,
        whims: &mut Whims,
        person: &'a mut Person,
    ) -> Self {
        let program = match &shard.plan.program {
            Program::Fixed(items) | Program::Live { items, .. } => Arc::clone(items),
        };
        let [leaves_at, seeks_at] =
            [whims.stays(), whims.plays()].map(|wait| wait.map(|wait| begun + wait));
        Self {
            shard,
            person,
            program,
            begun,
            greeted: false,
            decodes,
            playout: None,
            player: Player::new(&shard.totals, shard.plan.begin),
            doing: Doing::Waiting,
            offset: 0,
            is_listed: false,
            listed_at: None,
            next_request: 0,
            next_alias: 0,
            out: Vec::new(),
            leaves_at,
            seeks_at,
        }
    }

    async fn run(&mut self, connection: &Connection, whims: &mut Whims) -> End {
        match self.talk(connection, whims).await {
            Ok(end) => end,
            Err(Fault::Connection(error)) => self.lost(&error),
            Err(Fault::Violation(violation)) => End::Failed(violation.to_string()),
            Err(Fault::Stream(reason)) => match connection.close_reason() {
                Some(error) => self.lost(&error),
                None => End::Failed(reason),
            },
        }
    }

    /// What it means that the connection is over.
    fn lost(&self, error: &ConnectionError) -> End {
        if is_leaving(error) {
            End::Gone
        } else if is_refusal(error, self.greeted) {
            End::Refused(None)
        } else {
            End::Failed(reason(error))
        }
    }

    async fn talk(&mut self, connection: &Connection, whims: &mut Whims) -> Result<End, Fault> {
        let (mut send, mut control) = connection.open_bi().await?;
        let mut reader = Reader::new();
        let mut incoming: Option<Incoming> = None;
        let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
        send.write_all(&self.shard.plan.greeting)
            .await
            .map_err(Fault::written)?;
        let timer = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(timer);
        let datagrams = self.shard.plan.accept.datagrams;
        loop {
            let now = Instant::now();
            if self.leaves_at.is_some_and(|at| at <= now) {
                return Ok(End::Left);
            }
            self.act(now, whims);
            self.say(&mut send).await?;
            let wake = tokio::time::Instant::from_std(self.wake_at(now));
            if timer.deadline() != wake {
                timer.as_mut().reset(wake);
            }
            let reading = incoming.is_some();
            tokio::select! {
                chunk = control.read_chunk(CONTROL_READ_MAX, true) => {
                    let chunk = chunk.map_err(Fault::read)?;
                    let Some(chunk) = chunk else { return Err(Fault::Stream("the control stream \
                     has ended".to_owned())) };
                    reader.push(&chunk.bytes);
                    while let Some(message) = reader.next()? {
                        if let Some(end) = self.hear(Instant::now(), message) {
                            return Ok(end);
                        }
                    }
                }
                stream = connection.accept_uni(), if !reading => {
                    incoming = Some(Incoming {
                        stream: stream?,
                        head: Vec::new(),
                        alias: None,
                        records: None,
                        object: None,
                    });
                }
                count = read(&mut incoming, &mut chunks), if reading => {
                    let Some(stream) = &mut incoming else { continue };
                    match count {
                        Some(count) => {
                            for chunk in &mut chunks[..count] {
                                self.take_stream(stream, std::mem::take(chunk))?;
                            }
                            if stream.is_useless() {
                                // Nobody waits for it any more.
                                incoming = None;
                            }
                        }
                        None => {
                            let ended = incoming.take();
                            if let Some(Incoming { object: Some((request, bytes)), .. }) = ended {
                                self.take_object(Instant::now(), request, &bytes);
                            }
                        }
                    }
                }
                datagram = connection.read_datagram(), if datagrams => {
                    self.take_datagram(datagram?)?;
                }
                () = &mut timer => {}
            }
        }
    }

    /// Does what the time has come for.
    fn act(&mut self, now: Instant, whims: &mut Whims) {
        if !self.greeted {
            return;
        }
        if let Doing::Outside { until, .. } = self.doing {
            if now < until {
                return;
            }
            self.come_again(now, whims);
        }
        if self.playout.is_none() {
            self.begin(now, whims);
        }
        if self.seeks_at.is_some_and(|at| at <= now) {
            self.abandon(now);
            self.shard.totals.sought.add(1);
            self.seeks_at = whims.plays().map(|wait| now + wait);
            self.begin(now, whims);
        }
        match &mut self.doing {
            Doing::Waiting
                if self
                    .playout
                    .as_ref()
                    .is_some_and(|playout| playout.ask_at() <= now) =>
            {
                self.ask(now)
            }
            Doing::Pausing { until, list } if *until <= now => match *list {
                true => self.ask_list(now),
                false => self.ask(now),
            },
            // Datagrams may be lost, and what is lost is not sent again by itself.
            Doing::Fetching(fetch)
                if self.shard.plan.accept.datagrams && now >= fetch.heard_at + SILENCE_MAX =>
            {
                fetch.heard_at = now;
                fetch.credit(
                    now,
                    self.shard.plan.accept,
                    &mut self.next_alias,
                    &mut self.out,
                );
            }
            _ => {}
        }
    }

    fn wake_at(&self, now: Instant) -> Instant {
        let work = match &self.doing {
            Doing::Waiting => self.playout.as_ref().map(Playout::ask_at),
            Doing::Pausing { until, .. } | Doing::Outside { until, .. } => Some(*until),
            Doing::Fetching(fetch) if self.shard.plan.accept.datagrams => {
                Some(fetch.heard_at + SILENCE_MAX)
            }
            _ => None,
        };
        let work = work.filter(|_| self.greeted);
        let is_outside = matches!(self.doing, Doing::Outside { .. });
        let seeks_at = self.seeks_at.filter(|_| !is_outside);
        work.into_iter()
            .chain(self.leaves_at)
            .chain(seeks_at)
            .min()
            .unwrap_or(now + IDLE)
    }

    async fn say(&mut self, send: &mut SendStream) -> Result<(), Fault> {
        if !self.out.is_empty() {
            send.write_all(&self.out).await.map_err(Fault::written)?;
            self.out.clear();
        }
        Ok(())
    }

    /// Takes a message of the server; why the connection is to end, if it is.
    fn hear(&mut self, now: Instant, message: Message) -> Option<End> {
        match message {
            Message::Hello(_) => {
                self.greeted = true;
                self.shard.totals.joined.add(1);
                self.shard
                    .totals
                    .joining
                    .add(now.saturating_duration_since(self.begun));
            }
            Message::Meta(meta) => {
                let Doing::Asking { request, list } = self.doing else {
                    return None;
                };
                if meta.request != request {
                    return None;
                }
                if let (true, Delivery::Inline(bytes)) = (list, &meta.delivery) {
                    self.take_object(now, request, bytes);
                } else if !list {
                    self.fetch(now, meta);
                }
            }
            Message::Error(error) => {
                let Doing::Asking { request, list } = self.doing else {
                    return None;
                };
                if error.request == request {
                    self.shard.totals.rejected.add(1);
                    let wait = Duration::from_millis(error.retry_after_ms)
                        .clamp(REJECTED_PAUSE, REJECTED_PAUSE_MAX);
                    self.doing = Doing::Pausing {
                        until: now + wait,
                        list,
                    };
                }
            }
            Message::Reject {
                alias,
                code,
                retry_after_ms,
            } => {
                if matches!(&self.doing, Doing::Fetching(fetch) if fetch.alias == alias) {
                    self.shard.totals.rejected.add(1);
                    if code == RefusalCode::Overload && !PASSING_MS.contains(&retry_after_ms) {
                        self.wait_outside(now, retry_after_ms);
                        return None;
                    }
                    let wait = Duration::from_millis(retry_after_ms)
                        .clamp(REJECTED_PAUSE, REJECTED_PAUSE_MAX);
                    self.doing = Doing::Pausing {
                        until: now + wait,
                        list: false,
                    };
                }
            }
            Message::GoAway { .. } => return Some(End::Gone),
            _ => {}
        }
        None
    }

    /// The server has no time for it. It requests the same again when it is told to; its place in
    /// the queue is the connection. What it has in its buffer plays on.
    fn wait_outside(&mut self, now: Instant, retry_after_ms: u64) {
        let Doing::Fetching(fetch) = std::mem::replace(&mut self.doing, Doing::Waiting) else {
            return;
        };
        self.person.refuse(&self.shard.totals);
        let wait = match retry_after_ms {
            0 => RETURN_UNTOLD,
            told => Duration::from_millis(told).clamp(RETURN_MIN, RETURN_MAX),
        };
        let until = now + wait;
        self.doing = Doing::Outside { until, fetch };
    }

    /// Asks for the blocks of the part that the server has described.
    fn fetch(&mut self, now: Instant, meta: Meta) {
        let Delivery::Coded(shape) = meta.delivery else {
            // Objects that are sent whole are not what is played.
            self.shard.totals.rejected.add(1);
            self.doing = Doing::Pausing {
                until: now + REJECTED_PAUSE_MAX,
                list: false,
            };
            return;
        };
        let Some(generation) = shape.generation(0) else {
            return;
        };
        let time = self.patience(now);
        self.next_alias = self.next_alias.wrapping_add(1);
        let plan = &self.shard.plan;
        let rank = Check::new(&meta.id, generation, plan.kernels, self.decodes);
        let mut fetch = Fetch {
            meta,
            shape,
            generation,
            alias: self.next_alias,
            rank,
            credited: 0,
            received: 0,
            held: Numbers::default(),
            left: 0,
            asked_at: now,
            heard_at: now,
            deadline: now,
            bytes: Vec::new(),
        };
        fetch.request(now + time, now, plan.accept, &mut self.out);
        self.doing = Doing::Fetching(Box::new(fetch));
    }

    /// A generation has full rank.
    fn complete(&mut self, now: Instant) {
        let Doing::Fetching(mut fetch) = std::mem::replace(&mut self.doing, Doing::Waiting) else {
            return;
        };
        self.shard.totals.generations.add(1);
        Message::Stop {
            alias: fetch.alias,
            reason: StopReason::Complete,
        }
        .encode(&mut self.out);
        let generation = std::mem::replace(
            &mut fetch.rank,
            Check::new(&fetch.meta.id, fetch.generation, self.kernels(), false),
        );
        if let Check::Decoder(decoder) = generation
            && let Ok(bytes) = decoder.into_bytes()
        {
            fetch.bytes.extend_from_slice(&bytes);
        }
        if let Some(next) = fetch.shape.generation(fetch.generation.index + 1) {
            let time = self.patience(now);
            self.next_alias = self.next_alias.wrapping_add(1);
            (fetch.alias, fetch.generation) = (self.next_alias, next);
            fetch.rank = Check::new(&fetch.meta.id, next, self.kernels(), self.decodes);
            (fetch.asked_at, fetch.heard_at) = (now, now);
            fetch.held = Numbers::default();
            fetch.request(now + time, now, self.shard.plan.accept, &mut self.out);
            self.doing = Doing::Fetching(fetch);
            return;
        }
        if self.decodes {
            let right = SegmentId::of_coded(&fetch.bytes, fetch.shape.codec()) == fetch.meta.id;
            let counter = if right {
                &self.shard.totals.verified
            } else {
                &self.shard.totals.corrupt
            };
            counter.add(1);
        }
        self.go_on(now, &fetch.meta);
    }

    fn kernels(&self) -> Kernels {
        self.shard.plan.kernels
    }
}

/// The address to connect to, of those that a name has.
pub(super) async fn resolve(host: &str, port: u16) -> Result<SocketAddr, String> {
    let mut addresses = tokio::net::lookup_host((host, port))
        .await
        .map_err(|error| error.to_string())?;
    addresses
        .next()
        .ok_or_else(|| format!("{host} has no address"))
}

const CONNECT_MAX: Duration = Duration::from_secs(20);
/// Who is refused without a time comes again after a random part of this, and of twice that if
/// refused again.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(30);
/// The longest time that is waited where a refusal of a handshake tells one.
const TOLD_MAX: Duration = Duration::from_secs(60);
/// A server that leaves may come again.
const GONE_PAUSE: Duration = Duration::from_secs(5);
/// The least time to wait by the protocol, and a bound for what a server may say.
const RETURN_MIN: Duration = Duration::from_millis(50);
const RETURN_MAX: Duration = Duration::from_secs(600);
/// Where a server says none.
const RETURN_UNTOLD: Duration = Duration::from_secs(2);
/// Retry times of REJECT OVERLOAD that concern the request and not the viewer: it has too much in
/// leases, or the peer is a relay that has a part of the segment so far. The viewer stays in.
const PASSING_MS: [u64; 2] = [200, 500];
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// How soon a question is asked again at the earliest and at the latest.
const REJECTED_PAUSE: Duration = Duration::from_millis(200);
const REJECTED_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Datagrams that have not come for so long do not come any more.
const SILENCE_MAX: Duration = Duration::from_millis(250);
const IDLE: Duration = Duration::from_secs(3600);
const CHUNKS: usize = 16;
const CONTROL_READ_MAX: usize = 16 * 1024;
