//! One task per connection, between [`Proto`], the ring and QUIC.
//!
//! Each turn of the loop carries everything that is ready in every direction, then waits for any
//! of: bytes of the control stream, an answer, an announcement, room on a stream or for datagrams,
//! a slot or a block of the ring, a deadline, the drain. Blocks are claimed for a stream only when
//! QUIC has taken its last write and few bytes of all streams wait; for datagrams, only when the
//! last batch has left. QUIC holds little more than the path takes, so the order of deadlines is
//! decided late. Where all sessions share a slow line, a few blocks of a session wait at a time
//! until it is free, and are dropped if their request ends.
//!
//! There is a turn for every few blocks, so a turn avoids contended locks: those of the timers, of
//! channels that all sessions listen to, and of the connection, which QUIC's driver holds while it
//! encrypts and sends. Only the connection's congestion window is read, about once a round trip.
//! Rare events are polled only when they have something to report ([`Signal`]), and the timer is
//! not reset when a deadline merely moves later.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use ncs_net::endpoint::{self, Departure, Uplink};
use ncs_net::web::{self, Binding, Origins};
use ncs_proto::admission::intake;
use ncs_proto::object::{AskedBy, Coding, GRACE, Held, Refusal, RefusalCode, Resolved, SegmentId};
use ncs_proto::wire::block::StreamHead;
use ncs_proto::wire::message::{Alternate, Checks, Credential, Message, Token, is_token};
use ncs_proto::wire::{CloseCode, Violation, frame};
use prometheus::IntGauge;
use quinn::{Connection, ConnectionError, RecvStream, SendDatagramError, SendStream, WriteError};
use rustls::pki_types::CertificateDer;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tracing::Instrument as _;

use super::audience::Viewing;
use super::end::End;
use super::metrics::{Reason, Sent};
use super::opening::{self, Opening};
use super::proto::{Claim, Ended, Event, Proto, Route, Want};
use super::{Ask, Blame, Config, Metrics};
use crate::accept::Place;
use crate::admission::{Access, Admission, Ending, Now, Share, Visitor};
use crate::directory::{self, Asker, Directory};
use crate::fleet::{self, Advice, Fleet};
use crate::headroom::Entry;
use crate::ring::{Claimed, LineKey, LineKind, Quota, Ring, SessionId, Waiter};

/// The maximum number of blocks per write.
const WRITE_BLOCKS_MAX: u32 = 64;

/// Bytes of blocks that may wait for QUIC to take them (at least; a quarter of the congestion
/// window if that is more), and bytes that QUIC may hold beyond twice that window. Blocks with an
/// earlier deadline cannot overtake these bytes; on a path of 1 Mbit/s, 16 KiB take 130 ms.
const WAITING_BYTES: usize = 8 << 10;
const UNSENT_BYTES: u64 = 16 << 10;

/// The interval between looks at the congestion window: a round trip, within these limits.
const WINDOW_LOOK: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_millis(100);

/// Bytes of an object handed to QUIC in one piece.
const PIECE_BYTES: usize = 4 << 10;

/// How long a write without progress holds up others.
const WAITING_FOR: Duration = Duration::from_secs(1);

/// The resolution of deadlines in stream priorities; it covers the first 248 days of a session.
const PRIORITY_STEP: Duration = Duration::from_millis(10);

/// Control bytes read from QUIC at once.
const CONTROL_READ_MAX: usize = 16 * 1024;

/// Limits above which control frames of a peer are no longer read: its unanswered questions,
/// answers that it has not read, and whole objects that it has not taken. An honest peer stays far
/// below.
const UNANSWERED_MAX: usize = 128;
const UNREAD_MAX: usize = 64;
const UNDELIVERED_MAX: usize = 16;

/// The parts of the server that a session uses.
#[derive(Debug, Clone)]
pub struct Context {
    /// The source of blocks.
    pub ring: Ring,
    /// The queue for questions.
    pub asks: mpsc::Sender<Ask>,
    /// Checks the rights of peers.
    pub admission: Admission,
    /// The peers that serve others.
    pub directory: Directory,
    /// The other servers of the fleet.
    pub fleet: Fleet,
    /// The origins whose pages may connect.
    pub origins: Arc<Origins>,
    /// Limits.
    pub config: Config,
    /// Counters of all sessions.
    pub metrics: Metrics,
    /// The line over which all sessions send, if it may be slower than their peers ask.
    pub uplink: Option<Uplink>,
    /// Set once, when the server shuts down: the time that open requests may still take.
    pub drain: watch::Receiver<Option<Departure>>,
}

/// Runs a session until its connection ends or the server has drained, within a span of its own.
/// Until then it holds its place.
pub async fn run(connection: Connection, session: SessionId, place: Place, context: Context) {
    let span = tracing::debug_span!(
        "connection",
        session = session.0,
        peer = %connection.remote_address(),
    );
    converse(connection, session, place, context)
        .instrument(span)
        .await;
}

async fn converse(connection: Connection, session: SessionId, place: Place, context: Context) {
    let metrics = context.metrics.clone();
    metrics.opened.inc();
    let open = Open::new(&metrics.sessions);
    let Place { address, entry } = place;
    let visitor = context
        .admission
        .visitor(address, certificates(&connection));
    let begun = Instant::now();
    let opened = opening::open(
        &connection,
        &context.origins,
        &context.config,
        &context.metrics,
    );
    let (end, page) = match opened.await {
        Ok((opening, page)) => {
            let serving = Session::serve(
                connection.clone(),
                opening,
                begun,
                session,
                visitor,
                entry,
                context,
            );
            (serving.await, page)
        }
        Err(end) => (end, None),
    };
    drop(open);
    if let End::Violation(violation) = end {
        let counter = if violation == Violation::Unauthorised {
            &metrics.unadmitted
        } else {
            &metrics.violations
        };
        counter.inc();
        tracing::debug!(%violation, "session closed");
    }
    let (code, reason) = end.close();
    match page {
        Some(page) => page.close(code, &reason).await,
        None if Binding::of(&connection) == Binding::Web => web::close_early(&connection, &reason),
        None => endpoint::close(&connection, code, &reason),
    }
}

/// Counts a session as open until dropped, even by a panic.
struct Open(IntGauge);

impl Open {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// An answer to a question of the session.
#[expect(
    clippy::large_enum_variant,
    reason = "one for each answer, taken apart at once"
)]
enum Answer {
    Resolved(u64, Result<Resolved, Refusal>),
    Found(u64, Option<Held>),
    Hashes(u64, Result<Bytes, Refusal>),
    Checks(u64, Result<Checks, Refusal>),
    Subscribed(u64, Result<broadcast::Receiver<Arc<Resolved>>, Refusal>),
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Pending<T> = FuturesUnordered<BoxFuture<T>>;
/// A subscription: its request, and the source of its announcements.
type Announcements = (u64, broadcast::Receiver<Arc<Resolved>>);
/// One announcement of a subscription; `None` at its end.
type News = (Announcements, Option<Arc<Resolved>>);

struct Session {
    id: SessionId,
    connection: Connection,
    binding: Binding,
    /// The token in a page's address, until HELLO has come.
    token: Option<String>,
    context: Context,
    proto: Proto,
    visitor: Visitor,
    entry: Entry,
    /// When blocks may be sent again after the visitor has used up its bytes.
    resumes: Option<Instant>,
    quota: Arc<Quota>,
    waiter: Waiter,
    begun: Instant,
    progress: Progress,
    frames: frame::Reader,
    control: Option<SendStream>,
    answers: Pending<Answer>,
    announcements: Pending<Result<News, Aborted>>,
    /// Cancels waiting for announcements of a subscription.
    listening: HashMap<u64, AbortHandle>,
    writes: Pending<Written>,
    window: Window,
    deliveries: Pending<Delivered>,
    streams: HashMap<u16, RequestStream>,
    datagrams: Option<BoxFuture<Result<(), SendDatagramError>>>,
    queued: Option<Queued>,
    draining: Option<Draining>,
    /// What decides which server should serve the peer, once its stream is known.
    placed: Option<fleet::Key>,
    /// When the peer is told to leave, while the server drains.
    leaves: Option<Leaving>,
    viewing: Viewing,
    /// What other pages say to this one, if it serves them.
    pages: Option<mpsc::Receiver<directory::Signal>>,
}

/// The number of blocks acknowledged, and the time of the last acknowledgement.
struct Progress {
    released: usize,
    since: Instant,
}

/// The limits on bytes between the ring and the path.
struct Window {
    /// Bytes that QUIC may hold.
    bytes: u64,
    /// Bytes of blocks that may wait until QUIC takes them.
    waiting_max: usize,
    look_at: Instant,
}

/// Blocks that leave when the line is free for them ([`Uplink`]).
struct Queued {
    claim: Claim,
    blocks: Vec<Claimed>,
    free: BoxFuture<()>,
}

/// The time at which a peer is told that the server goes away, and the drain of its session.
struct Leaving {
    at: Instant,
    then: Draining,
}

/// The end of a drain.
#[derive(Clone, Copy)]
struct Draining {
    until: Instant,
    /// Whether another process serves at the address of this one.
    is_replaced: bool,
}

/// The stream of one request.
struct RequestStream {
    /// The deadline of the request.
    deadline: Instant,
    /// The priority of the stream in QUIC.
    priority: i32,
    state: StreamState,
}

enum StreamState {
    Idle(SendStream),
    /// A write is in progress.
    Busy(Writing),
}

impl RequestStream {
    fn is_busy(&self) -> bool {
        matches!(self.state, StreamState::Busy(_))
    }
}

/// A write in progress.
struct Writing {
    /// Dropping or using it cancels the write.
    _cancel: oneshot::Sender<()>,
    /// Whether QUIC has taken some bytes since the last look.
    is_taken: Arc<AtomicBool>,
    /// The size of the write.
    bytes: usize,
    /// When the write began, or QUIC last took some bytes.
    since: Instant,
}

/// What was delivered on a stream of its own, or could not be.
enum Delivered {
    Object,
    Hashes,
}

/// How long a delivery waits for the peer to read.
struct Patience {
    shares: Vec<Share>,
    stall_timeout: Duration,
    /// When the peer last read some bytes.
    since: Instant,
}

impl Patience {
    /// Returns when waiting ends: the peer has read nothing for the stall timeout, or while others
    /// needed the memory.
    async fn ends(&mut self, is_taken: &AtomicBool) {
        loop {
            tokio::time::sleep(GRACE.min(self.stall_timeout)).await;
            let now = Instant::now();
            if is_taken.swap(false, Ordering::Relaxed) {
                self.since = now;
                self.shares
                    .iter_mut()
                    .for_each(|share| share.note_read(now));
            } else {
                self.shares.iter_mut().for_each(Share::note_stalled);
            }
            if self.since + self.stall_timeout <= now || self.shares.iter().any(Share::is_revoked) {
                return;
            }
        }
    }
}

/// What another page says next; pending where no page can.
async fn next_signal(pages: &mut Option<mpsc::Receiver<directory::Signal>>) -> directory::Signal {
    if let Some(signals) = pages
        && let Some(signal) = signals.recv().await
    {
        return signal;
    }
    std::future::pending().await
}

/// A chunk of the control stream, and the stream for more.
type Heard = (RecvStream, Result<Option<quinn::Chunk>, quinn::ReadError>);

/// Rare events.
enum Signal {
    /// The server shuts down; `None` if it is gone.
    Drain(Option<watch::Receiver<Option<Departure>>>),
    /// The rights of the visitor have to be checked again.
    Review(watch::Receiver<()>),
    /// There may be other servers to tell of.
    Fleet(watch::Receiver<()>),
    Closed(ConnectionError),
    /// The page has ended its session.
    Left,
    /// The peer has opened a stream beside its control stream.
    Stray,
    /// Another connection of the same visit has replaced this one, or its holder has too many.
    Ended(Ending),
}

/// A finished write.
enum Written {
    Control(Result<SendStream, WriteError>),
    Blocks(u16, Option<SendStream>),
    Stopped(u16),
}

impl Session {
    async fn serve(
        connection: Connection,
        opening: Opening,
        begun: Instant,
        id: SessionId,
        visitor: Visitor,
        entry: Entry,
        context: Context,
    ) -> End {
        let Opening {
            binding,
            send,
            receive,
            token,
            ending,
        } = opening;
        // Control goes before blocks, whatever their deadline.
        let _ = send.set_priority(i32::MAX);
        let quota = Quota::new(context.config.unacknowledged_blocks_max as usize);
        let mut proto = Proto::new(id, context.config, begun);
        if entry.is_bound() {
            proto.await_admission();
        }
        let viewing = Viewing::new(context.metrics.audience.clone());
        let mut session = Self {
            id,
            connection,
            binding,
            token,
            context,
            proto,
            visitor,
            entry,
            resumes: None,
            quota,
            waiter: Waiter::default(),
            begun,
            progress: Progress {
                released: 0,
                since: begun,
            },
            frames: frame::Reader::new(),
            control: Some(send),
            answers: Pending::new(),
            announcements: Pending::new(),
            listening: HashMap::new(),
            writes: Pending::new(),
            window: Window {
                bytes: endpoint::SEND_WINDOW,
                waiting_max: WAITING_BYTES,
                look_at: begun,
            },
            deliveries: Pending::new(),
            streams: HashMap::new(),
            datagrams: None,
            queued: None,
            draining: None,
            placed: None,
            leaves: None,
            viewing,
            pages: None,
        };
        match session.converse(receive, ending).await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn converse(
        &mut self,
        receive: RecvStream,
        ending: Option<web::Ending>,
    ) -> Result<std::convert::Infallible, End> {
        let access = self.visitor.enter(Now::read())?;
        self.admit(access);
        let mut signals: Pending<Signal> = Pending::new();
        signals.push(Box::pin(drained(self.context.drain.clone())));
        signals.push(Box::pin(reviewed(self.visitor.reviews())));
        signals.push(Box::pin(fleet_changed(self.context.fleet.changes())));
        signals.push(Box::pin(closed(self.connection.clone())));
        signals.push(Box::pin(self.visitor.ended().map(Signal::Ended)));
        match ending {
            Some(ending) => signals.push(Box::pin(ending.ended().map(|()| Signal::Left))),
            // Where pages may connect, QUIC's limits leave room for their streams.
            None if !self.context.origins.is_empty() => {
                signals.push(Box::pin(stray(self.connection.clone())));
            }
            None => {}
        }
        let mut reading: Pending<Heard> = Pending::new();
        reading.push(Box::pin(read(receive)));
        let mut timer = pin!(tokio::time::sleep(self.context.config.hello_timeout));
        // It has not been seen to elapse. One that elapses in the middle of a turn is seen below.
        let mut is_armed = true;
        loop {
            if self.entry.takes_leave() {
                self.proto.await_admission();
            }
            self.note_progress(Instant::now())?;
            self.proto.handle_timeout(Instant::now())?;
            self.waiter.look();
            // Before the turn, in which the peer is told.
            self.leave_now(Instant::now());
            self.turn();
            if let Some(Draining { until, is_replaced }) = self.draining
                // A peer that connects again keeps this connection until then.
                && (Instant::now() >= until || (self.is_idle() && !is_replaced))
            {
                return Err(End::Drained(self.others()));
            }
            let stalls = (self.quota.held() > 0)
                .then(|| self.progress.since + self.context.config.stall_timeout);
            let resumes = self.control_resumes(Instant::now());
            // Until then, a write without progress holds up others.
            let (_, stuck) = self.waiting(Instant::now());
            // Objects leave without further turns.
            let look = (!self.deliveries.is_empty()).then_some(self.window.look_at);
            let due = [
                self.proto.poll_timeout(),
                self.draining.map(|draining| draining.until),
                self.leaves.as_ref().map(|leaving| leaving.at),
                resumes,
                self.resumes,
                stuck,
                stalls,
                look,
            ];
            let timeout = due.into_iter().flatten().min();
            // A turn too early is harmless, so a timer that is early enough stays as it is.
            if let Some(due) = timeout.map(tokio::time::Instant::from)
                && (!is_armed || due < timer.deadline())
            {
                timer.as_mut().reset(due);
                is_armed = true;
            }
            let reads = resumes.is_none() && !self.is_left_behind();
            // What a page does not read waits in its short queue.
            let listens = !self.is_left_behind();
            tokio::select! {
                Some((receive, chunk)) = reading.next(), if reads => {
                    self.control_bytes(chunk.map(|chunk| chunk.map(|chunk| chunk.bytes)))?;
                    reading.push(Box::pin(read(receive)));
                }
                Some(answer) = self.answers.next() => self.answered(answer)?,
                Some(news) = self.announcements.next() => if let Ok((announcements, news)) = news {
                    self.announced(announcements, news);
                },
                Some(written) = self.writes.next() => self.written(written)?,
                Some(delivered) = self.deliveries.next() => match delivered {
                    Delivered::Hashes => self.proto.hashes_left(),
                    Delivered::Object => {}
                },
                result = leaving(&mut self.datagrams) => self.datagrams_left(result)?,
                () = line_is_free(&mut self.queued) => self.send_queued(),
                Some(signal) = signals.next() => match signal {
                    Signal::Drain(Some(mut drain)) => {
                        if let Some(departure) = *drain.borrow_and_update() {
                            self.leave_later(Instant::now(), departure);
                        }
                        signals.push(Box::pin(drained(drain)));
                    }
                    Signal::Drain(None) => return Err(End::Internal),
                    Signal::Review(reviews) => {
                        let access = self.visitor.review(Now::read())?;
                        self.admit(access);
                        signals.push(Box::pin(reviewed(reviews)));
                    }
                    Signal::Fleet(changes) => {
                        self.tell_of_others(false);
                        signals.push(Box::pin(fleet_changed(changes)));
                    }
                    Signal::Closed(error) => return Err(error.into()),
                    Signal::Left => return Err(End::Connection),
                    Signal::Stray => return Err(Violation::Unexpected("stream").into()),
                    Signal::Ended(ending) => return Err(ending.into()),
                },
                (page, bytes) = next_signal(&mut self.pages), if listens => {
                    self.proto.signal(page, bytes);
                }
                () = timer.as_mut(), if is_armed => is_armed = false,
                () = self.waiter.woken() => {}
            }
        }
    }

    /// Whether nothing is owed to the peer, and nothing is on its way to QUIC.
    fn is_idle(&self) -> bool {
        self.proto.is_idle()
            && self.writes.is_empty()
            && self.datagrams.is_none()
            && self.queued.is_none()
    }

    /// Applies the visitor's rights from now on.
    fn admit(&mut self, access: Access) {
        self.proto.set_access(access);
        self.count_leases();
    }

    /// Charges leases to the accounts of the visitor's address and token.
    fn count_leases(&mut self) {
        let (address, token) = self.visitor.ledgers();
        self.proto.set_ledgers(address, token);
    }

    /// Carries everything that is ready.
    fn turn(&mut self) {
        while let Some(event) = self.proto.poll_event() {
            self.act(event);
        }
        if self.proto.takes_datagrams() {
            self.proto
                .set_datagram_max(self.binding.datagram_max(&self.connection));
        }
        let share = self.share();
        while let Some((want, deadline)) = self.proto.poll_want(share) {
            match want {
                Want::Coded(line, blocks) => self
                    .context
                    .ring
                    .want_coded(self.id, line, blocks, deadline),
                Want::Source(generation, blocks) => self
                    .context
                    .ring
                    .want_source(self.id, generation, blocks, deadline),
            }
        }
        self.adapt_window(Instant::now());
        self.push(share);
        self.flush_control();
        self.context.metrics.add(self.proto.take_tally());
        while let Some((stream, tally)) = self.proto.poll_stream_tally() {
            self.context.metrics.audience.add(&stream, tally);
        }
        self.viewing.heed();
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::AskAdmission => {
                let answer = self.entry.ask(Instant::now());
                // Whoever only has to wait for a moment keeps the place in the queue.
                if answer != intake::Answer::Admitted && self.entry.is_short() {
                    self.send_elsewhere(Reason::Full);
                }
                self.proto.asked_admission(answer);
            }
            Event::Resolve(get) => {
                let request = get.request;
                let by = AskedBy {
                    account: self.visitor.account(),
                    session: self.id.0,
                };
                let ledgers = self.proto.ledgers().clone();
                self.ask(
                    |reply| Ask::Resolve {
                        get,
                        by,
                        ledgers,
                        reply,
                    },
                    move |answer| {
                        Answer::Resolved(request, answer.unwrap_or_else(|| Err(stopped())))
                    },
                );
            }
            Event::Find {
                ticket,
                id,
                coding,
                told,
            } => {
                let ledgers = self.proto.ledgers().clone();
                self.ask(
                    |reply| Ask::Find {
                        id,
                        coding,
                        told,
                        ledgers,
                        reply,
                    },
                    move |answer| Answer::Found(ticket, answer.flatten()),
                );
            }
            Event::Subscribe(subscribe) => {
                let request = subscribe.request;
                self.ask(
                    |reply| Ask::Subscribe {
                        stream: subscribe.stream,
                        reply,
                    },
                    move |answer| {
                        Answer::Subscribed(request, answer.unwrap_or_else(|| Err(stopped())))
                    },
                );
            }
            Event::Unsubscribed { request } => {
                if let Some(listening) = self.listening.remove(&request) {
                    listening.abort();
                }
            }
            Event::Offer { port, identity } => match port {
                0 => {
                    self.pages = None;
                    self.context.directory.withdraw(self.id);
                }
                port => {
                    let address = SocketAddr::new(self.visitor.ip(), port);
                    self.pages = None;
                    self.context.directory.offer(self.id, address, identity);
                }
            },
            Event::OfferPage { serves } => self.offer_page(serves),
            Event::Signal { page, bytes } => {
                self.context
                    .directory
                    .signal(Instant::now(), self.id, page, bytes);
            }
            Event::Have(holdings) => self.context.directory.have(self.id, &holdings),
            Event::Introduce {
                segment,
                coding,
                stream,
            } => self.introduce((segment, coding), &stream),
            Event::Hashes { ticket, held } => {
                let ledgers = self.proto.ledgers().clone();
                self.ask(
                    |reply| Ask::Hashes {
                        held,
                        ledgers,
                        reply,
                    },
                    move |answer| Answer::Hashes(ticket, answer.unwrap_or_else(|| Err(stopped()))),
                );
            }
            Event::Checks {
                ticket,
                held,
                asked,
            } => self.ask(
                |reply| Ask::Checks { held, asked, reply },
                move |answer| Answer::Checks(ticket, answer.unwrap_or_else(|| Err(stopped()))),
            ),
            Event::Deliver {
                request,
                bytes,
                shares,
            } => {
                self.context.metrics.objects.inc();
                self.deliver(
                    StreamHead::Object { request },
                    bytes,
                    shares,
                    Delivered::Object,
                );
            }
            Event::DeliverHashes {
                request,
                bytes,
                shares,
            } => {
                self.deliver(
                    StreamHead::Hashes { request },
                    bytes,
                    shares,
                    Delivered::Hashes,
                );
            }
            Event::Blame {
                segment,
                generation,
                blocks,
                identity,
            } => {
                let reporter =
                    SocketAddr::new(self.visitor.ip(), self.connection.remote_address().port());
                // Reports are dropped rather than delay a question.
                let blame = Blame {
                    reporter,
                    holder: self.visitor.holder(),
                    segment,
                    generation,
                    blocks,
                    identity,
                };
                let _ = self.context.asks.try_send(Ask::Blame(blame));
            }
            Event::Lost { line, blocks } => self.context.ring.note_lost(line, blocks),
            Event::Rescheduled {
                alias,
                lines,
                deadline,
            } => {
                if let Some(stream) = self.streams.get_mut(&alias) {
                    stream.deadline = deadline;
                }
                self.context
                    .ring
                    .reschedule(self.id, lines.into_iter().flatten(), deadline);
            }
            Event::Ended(ended) => self.ended(ended),
            Event::Watches { stream, is_watched } => self.viewing.set(stream, is_watched),
        }
    }

    /// Tells the peer of other servers, and sends a newcomer to the one that should serve it.
    fn tell_of_others(&mut self, is_new: bool) {
        let is_leaving = self.leaves.is_some() || self.draining.is_some();
        let Some(key) = self.placed.filter(|_| !is_leaving) else {
            return;
        };
        let may_send = is_new && !self.proto.is_sent();
        if is_new && self.proto.is_sent() {
            self.context.metrics.sent_here.inc();
        }
        let Advice { moves, servers } = self.context.fleet.advise((key, self.binding), may_send);
        self.name(moves, servers, Reason::Placement);
    }

    /// Names other servers, and counts a peer that is sent to one of them.
    fn name(&mut self, moves: bool, servers: Vec<Alternate>, reason: Reason) {
        if self.proto.name_alternates(moves, servers.clone()) && moves {
            self.context.metrics.send_on(reason);
            self.context.fleet.count_sent(&servers);
        }
    }

    /// Sends the peer to servers that have room, if there are any.
    fn send_elsewhere(&mut self, reason: Reason) {
        let Some(key) = self.placed else { return };
        let Advice { moves, servers } = self.context.fleet.elsewhere((key, self.binding));
        if moves {
            self.name(moves, servers, reason);
        }
    }

    /// The servers that the reason of a close names.
    fn others(&self) -> Vec<Alternate> {
        let others = |key| self.context.fleet.elsewhere((key, self.binding)).servers;
        self.placed.map(others).unwrap_or_default()
    }

    /// The server goes away. Where there are others, its peers leave one after the other, so that
    /// those can take them.
    fn leave_later(&mut self, now: Instant, departure: Departure) {
        let Departure { bound, is_replaced } = departure;
        let viewers = u32::try_from(self.context.metrics.sessions.get()).unwrap_or(0);
        let time = match is_replaced {
            true => fleet::time_to_move(viewers, 1),
            false => self.context.fleet.time_to_leave(viewers),
        };
        self.leaves = Some(Leaving {
            at: now + time.min(bound / 2).mul_f64(rand::random_range(0.0..1.0)),
            then: Draining {
                until: now + bound,
                is_replaced,
            },
        });
    }

    /// Tells the peer to leave when it is its turn.
    fn leave_now(&mut self, now: Instant) {
        let Some(leaving) = self.leaves.take_if(|leaving| leaving.at <= now) else {
            return;
        };
        let draining = leaving.then;
        match draining.is_replaced {
            // Nobody else: it is to connect again.
            true => self.name(true, Vec::new(), Reason::Replaced),
            false => self.send_elsewhere(Reason::Drain),
        }
        self.proto
            .go_away(draining.until.saturating_duration_since(now));
        self.draining = Some(draining);
    }

    /// Names other peers that hold a segment.
    fn introduce(&mut self, (segment, coding): (SegmentId, Coding), stream: &str) {
        let asker = Asker {
            session: self.id,
            address: self.visitor.ip(),
        };
        let (now, directory) = (Now::read(), &self.context.directory);
        if self.pages.is_some() {
            let pages = directory.introduce_pages(now, asker, stream, (segment, coding));
            if !pages.is_empty() {
                self.proto.introduce_pages(segment, pages);
            }
            return;
        }
        let peers = directory.introduce(now, asker, stream, (segment, coding));
        if !peers.is_empty() {
            self.proto.introduce(segment, peers);
        }
    }

    /// A page serves others, or ends that. Programs offer an address instead.
    fn offer_page(&mut self, serves: bool) {
        self.pages = None;
        if !serves {
            return self.context.directory.withdraw(self.id);
        }
        if self.binding == Binding::Web
            && let Some(page) = self.context.directory.offer_page(self.id)
        {
            self.proto.name_page(page.identity);
            self.pages = Some(page.signals);
        }
    }

    /// How many blocks the session may have requested from the ring, and how many it may hold in
    /// addition. Room that other sessions free is noticed when the next block comes or goes: there
    /// always is one, because every session has a minimum.
    fn share(&self) -> u32 {
        self.proto
            .block_bytes_max()
            .map_or(u32::MAX, |block_bytes| self.context.ring.share(block_bytes))
    }

    /// Notes whether blocks have been acknowledged, and fails if none was for too long: such a peer
    /// keeps memory from others. Call it before more are sent: those sent last have had no time
    /// yet.
    fn note_progress(&mut self, now: Instant) -> Result<(), Violation> {
        for (alias, stream) in &mut self.streams {
            if let StreamState::Busy(Writing {
                is_taken, since, ..
            }) = &mut stream.state
                && is_taken.swap(false, Ordering::Relaxed)
            {
                *since = now;
                self.proto.note_taken(now, *alias);
            }
        }
        let released = self.quota.released();
        let is_read = self.quota.held() == 0;
        if released != self.progress.released {
            self.proto.note_progress(now);
        }
        // What waits for the line says nothing about the peer.
        if is_read || self.queued.is_some() || released != self.progress.released {
            self.progress = Progress {
                released,
                since: now,
            };
        }
        if !is_read {
            self.proto.note_unacknowledged(now);
        }
        let is_late =
            now.saturating_duration_since(self.progress.since) >= self.context.config.stall_timeout;
        if is_late {
            Err(Violation::Timeout("progress"))
        } else {
            Ok(())
        }
    }

    /// Whether the peer asks without reading the answers.
    fn is_left_behind(&self) -> bool {
        self.answers.len() >= UNANSWERED_MAX
            || self.proto.backlog() >= UNREAD_MAX
            || self.deliveries.len() >= UNDELIVERED_MAX
    }

    /// Sends a question to the server, and registers its answer.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Ask,
        into: impl FnOnce(Option<T>) -> Answer + Send + 'static,
    ) {
        let (reply, answer) = oneshot::channel();
        let (asks, question) = (self.context.asks.clone(), question(reply));
        self.answers.push(Box::pin(async move {
            // A closed channel means that the server stops; the answer below is then `None`.
            let _ = asks.send(question).await;
            into(answer.await.ok())
        }));
    }

    fn answered(&mut self, answer: Answer) -> Result<(), End> {
        let now = Instant::now();
        match answer {
            Answer::Resolved(request, resolved) => self.proto.resolved(now, request, resolved),
            Answer::Found(ticket, held) => self.proto.found(now, ticket, held)?,
            Answer::Hashes(ticket, hashes) => self.proto.hashes(now, ticket, hashes),
            Answer::Checks(ticket, checks) => self.proto.checks(now, ticket, checks),
            Answer::Subscribed(request, Ok(receiver)) => {
                if self.proto.subscribed(request, Ok(())) {
                    self.listen((request, receiver));
                }
            }
            Answer::Subscribed(request, Err(refusal)) => {
                let _ = self.proto.subscribed(request, Err(refusal));
            }
        }
        Ok(())
    }

    fn listen(&mut self, (request, mut receiver): Announcements) {
        let (handle, registration) = AbortHandle::new_pair();
        if let Some(before) = self.listening.insert(request, handle) {
            before.abort();
        }
        let news = async move {
            loop {
                match receiver.recv().await {
                    Ok(news) => return ((request, receiver), Some(news)),
                    // The peer was slow; it gets the newest segments.
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return ((request, receiver), None),
                }
            }
        };
        self.announcements
            .push(Box::pin(Abortable::new(news, registration)));
    }

    fn announced(&mut self, announcements: Announcements, news: Option<Arc<Resolved>>) {
        let Some(news) = news else {
            return self.proto.subscription_ended(announcements.0);
        };
        if self
            .proto
            .announced(Instant::now(), announcements.0, Arc::unwrap_or_clone(news))
        {
            self.listen(announcements);
        }
    }

    fn control_bytes(&mut self, chunk: Result<Option<Bytes>, quinn::ReadError>) -> Result<(), End> {
        let bytes = match chunk {
            Ok(Some(bytes)) => bytes,
            Err(quinn::ReadError::ConnectionLost(error)) => return Err(error.into()),
            Ok(None) | Err(_) => {
                return Err(Violation::Unexpected("end of the control stream").into());
            }
        };
        let now = Instant::now();
        self.proto.handle_control_bytes(now, bytes.len());
        self.frames.push(&bytes);
        while let Some(message) = self.frames.next()? {
            self.proto.handle_message(now, message)?;
            if let Some(token) = self.token.take() {
                if !is_token(&token) {
                    return Err(Violation::Malformed("token").into());
                }
                let credential = Credential::Token(Token(token));
                self.proto.handle_message(now, Message::Auth(credential))?;
            }
            if let Some(stream) = self.proto.poll_place() {
                self.placed = Some(fleet::Key::new(&stream, self.visitor.ip()));
                self.tell_of_others(true);
            }
            if let Some(visit) = self.proto.poll_visit() {
                self.visitor.resume(visit);
            }
            if let Some(credential) = self.proto.poll_credential() {
                let now = Now::read();
                let (counts, access) = match credential {
                    Credential::Token(token) => self.visitor.present(now, token.0)?,
                    Credential::Ticket(ticket) => self.visitor.present_ticket(now, ticket)?,
                };
                self.proto.judged(now.instant, counts, access);
                self.count_leases();
            }
        }
        Ok(())
    }

    /// When the control stream may be read again, after its peer has exceeded its rate, or while it
    /// owes over a second's worth of bytes sent to it, for example in short objects within answers.
    fn control_resumes(&self, now: Instant) -> Option<Instant> {
        let owed = self
            .visitor
            .allowance(now)
            .err()
            .filter(|paid| *paid > now + Duration::from_secs(1));
        self.proto.control_resumes(now).max(owed)
    }

    fn flush_control(&mut self) {
        let Some(mut stream) = self.control.take() else {
            return;
        };
        let mut out = Vec::new();
        while let Some(message) = self.proto.poll_message() {
            match message {
                Message::Hello(hello) => frame::encode_greeting(&hello, rand::random(), &mut out),
                other => other.encode(&mut out),
            }
        }
        if out.is_empty() {
            self.control = Some(stream);
            return;
        }
        self.visitor.spend(Instant::now(), out.len());
        self.writes.push(Box::pin(async move {
            Written::Control(stream.write_chunk(out.into()).await.map(|()| stream))
        }));
    }

    fn written(&mut self, written: Written) -> Result<(), End> {
        match written {
            Written::Control(Ok(stream)) => self.control = Some(stream),
            Written::Control(Err(WriteError::Stopped(_))) => {
                return Err(Violation::Unexpected("STOP_SENDING of the control stream").into());
            }
            Written::Control(Err(_)) => return Err(End::Connection),
            Written::Blocks(alias, Some(stream)) => match self.streams.get_mut(&alias) {
                Some(known) => known.state = StreamState::Idle(stream),
                None => abandon(stream, self.binding),
            },
            Written::Blocks(alias, None) | Written::Stopped(alias) => {
                self.streams.remove(&alias);
                self.proto.stream_stopped(alias);
            }
        }
        Ok(())
    }

    /// Lets QUIC hold as much as the path can take, and little more: bytes in QUIC leave in the
    /// order in which they were handed over, and are wasted if their request stops. The limit is
    /// twice the congestion window, because QUIC counts bytes acknowledged behind a loss as held.
    fn adapt_window(&mut self, now: Instant) {
        if now < self.window.look_at || (self.streams.is_empty() && self.deliveries.is_empty()) {
            return;
        }
        let path = self.connection.stats().path;
        self.window.look_at = now + path.rtt.clamp(*WINDOW_LOOK.start(), *WINDOW_LOOK.end());
        let bytes = path
            .cwnd
            .saturating_mul(2)
            .saturating_add(UNSENT_BYTES)
            .min(endpoint::SEND_WINDOW);
        self.window.waiting_max =
            WAITING_BYTES.max(usize::try_from(path.cwnd / 4).unwrap_or(usize::MAX));
        // Each change wakes the connection.
        if bytes.abs_diff(self.window.bytes) > self.window.bytes / 8 {
            self.window.bytes = bytes;
            self.connection.set_send_window(bytes);
        }
    }

    /// Bytes of blocks that wait for QUIC, and when the first of them stops counting. A write
    /// without progress for [`WAITING_FOR`] waits for its own stream's flow control, or for a
    /// stream, and holds up no others.
    fn waiting(&self, now: Instant) -> (usize, Option<Instant>) {
        let writes = self
            .streams
            .values()
            .filter_map(|stream| match &stream.state {
                StreamState::Busy(Writing { bytes, since, .. }) => {
                    Some((*bytes, *since + WAITING_FOR))
                }
                StreamState::Idle(_) => None,
            });
        let counted = writes.filter(|(_, until)| *until > now);
        counted.fold((0, None), |(sum, first), (bytes, until)| {
            (sum + bytes, first.into_iter().chain([until]).min())
        })
    }

    /// Claims blocks for requests, earliest deadline first, and hands them to QUIC; on a line that
    /// is not free, it queues the first of them.
    fn push(&mut self, share: u32) {
        self.resumes = None;
        if self.queued.is_some() {
            return;
        }
        let portion = self.context.uplink.as_ref().and_then(Uplink::portion);
        let (mut waiting, _) = self.waiting(Instant::now());
        let was_full = waiting >= self.window.waiting_max;
        let claims = self.proto.claims();
        for (index, claim) in claims.iter().enumerate() {
            let allowance = match self.visitor.allowance(Instant::now()) {
                Ok(bytes) => bytes,
                Err(paid) => {
                    self.resumes = Some(paid);
                    claims[index..]
                        .iter()
                        .for_each(|claim| self.proto.note_held_back(claim.alias));
                    return;
                }
            };
            let busy = match claim.route {
                Route::Datagram => self.datagrams.is_some(),
                Route::Stream => self
                    .streams
                    .get(&claim.alias)
                    .is_some_and(RequestStream::is_busy),
            };
            let room = self
                .quota
                .room(share as usize, self.waiter.waker())
                .min(WRITE_BLOCKS_MAX as usize);
            let room = u32::try_from(room).unwrap_or(u32::MAX).min(claim.blocks);
            let left = match claim.route {
                Route::Datagram => u64::MAX,
                Route::Stream => self.window.waiting_max.saturating_sub(waiting) as u64,
            };
            let most = allowance.min(left).min(portion.unwrap_or(u64::MAX));
            let room = room.min(self.affordable(claim.alias, most));
            if busy || room == 0 || left == 0 {
                // Without a share, the server lacks the memory; otherwise the peer has not taken
                // its blocks. Writes begun in this turn may be taken at once, so they do not count.
                if busy || (share > 0 && (left > 0 || was_full)) {
                    self.proto.note_held_back(claim.alias);
                }
                continue;
            }
            let blocks = self.context.ring.claim(
                self.id,
                claim.line,
                room,
                &self.quota,
                self.waiter.waker(),
            );
            if blocks.is_empty() {
                continue;
            }
            if let Some(uplink) = self.context.uplink.clone()
                && portion.is_some()
            {
                let bytes = blocks.iter().map(Claimed::datagram_bytes).sum();
                self.queued = Some(Queued {
                    claim: *claim,
                    blocks,
                    free: Box::pin(async move { uplink.free(bytes).await }),
                });
                claims[index..]
                    .iter()
                    .for_each(|claim| self.proto.note_held_back(claim.alias));
                return;
            }
            waiting += self.send(claim, blocks);
        }
    }

    /// Returns the number of bytes that it has begun to write.
    fn send(&mut self, claim: &Claim, blocks: Vec<Claimed>) -> usize {
        self.observe_birth(claim.alias);
        match claim.route {
            Route::Datagram => {
                self.send_datagrams(claim, blocks);
                0
            }
            Route::Stream => self.send_records(claim, blocks),
        }
    }

    fn send_queued(&mut self) {
        if let Some(Queued { claim, blocks, .. }) = self.queued.take() {
            self.send(&claim, blocks);
        }
    }

    /// The number of blocks of a request that fit in these bytes, at least one.
    fn affordable(&self, alias: u16, bytes: u64) -> u32 {
        let block = self.proto.block_bytes(alias).map_or(1, u64::from);
        u32::try_from(bytes / block).unwrap_or(u32::MAX).max(1)
    }

    fn observe_birth(&mut self, alias: u16) {
        if let Some(age) = self.proto.first_sent(Instant::now(), alias) {
            self.context
                .metrics
                .first_block_seconds
                .observe(age.as_secs_f64());
        }
    }

    fn send_datagrams(&mut self, claim: &Claim, blocks: Vec<Claimed>) {
        let mut sent = Sent::default();
        let datagrams: Vec<Bytes> = blocks
            .into_iter()
            .filter_map(|block| self.datagram(claim, block, &mut sent))
            .collect();
        self.count_sent(claim, &sent);
        self.visitor
            .spend(Instant::now(), datagrams.iter().map(Bytes::len).sum());
        let connection = self.connection.clone();
        self.datagrams = Some(Box::pin(async move {
            for datagram in datagrams {
                connection.send_datagram_wait(datagram).await?;
            }
            Ok(())
        }));
    }

    fn count_sent(&mut self, claim: &Claim, sent: &Sent) {
        self.context.metrics.count_sent(sent, claim.route);
        let ((coded, coded_bytes), (source, source_bytes)) = (sent.coded, sent.source);
        let now = Instant::now();
        self.entry.sends(now, coded_bytes + source_bytes);
        self.proto.note_sent(
            now,
            claim.alias,
            coded + source,
            coded,
            coded_bytes + source_bytes,
        );
    }

    fn datagram(&mut self, claim: &Claim, block: Claimed, sent: &mut Sent) -> Option<Bytes> {
        let Some(stamp) = self.proto.stamp(claim.alias, &block.vector, claim.route) else {
            self.context.metrics.discarded.inc();
            return None;
        };
        sent.add(&block.vector, stamp.payload);
        let headed;
        let header = match self.binding.datagram_head() {
            [] => stamp.header(),
            head => {
                headed = [head, stamp.header()].concat();
                &headed
            }
        };
        let (bytes, copied) = block.into_datagram(header, stamp.payload);
        self.context.ring.count_copied(copied);
        Some(bytes)
    }

    fn datagrams_left(&mut self, result: Result<(), SendDatagramError>) -> Result<(), End> {
        self.datagrams = None;
        match result {
            // The path's limit fell between look and send: those blocks count as lost, and the next
            // go by stream.
            Ok(()) | Err(SendDatagramError::TooLarge) => Ok(()),
            Err(SendDatagramError::ConnectionLost(error)) => Err(error.into()),
            Err(SendDatagramError::UnsupportedByPeer | SendDatagramError::Disabled) => Ok(()),
        }
    }

    /// Returns the number of bytes that it has begun to write.
    fn send_records(&mut self, claim: &Claim, blocks: Vec<Claimed>) -> usize {
        let mut sent = Sent::default();
        let mut chunks = Vec::with_capacity(blocks.len() + 1);
        let others = self
            .streams
            .iter()
            .filter(|(alias, _)| **alias != claim.alias);
        let mut priority = priority(
            self.begun,
            claim.deadline,
            others.map(|(_, other)| (other.deadline, other.priority)),
        );
        let idle = match self.streams.remove(&claim.alias) {
            Some(RequestStream {
                state: StreamState::Idle(stream),
                priority: before,
                ..
            }) => {
                // A stream's priority is never raised: QUIC would send the bytes it holds in their
                // old place.
                priority = priority.min(before);
                if priority != before {
                    let _ = stream.set_priority(priority);
                }
                Some(stream)
            }
            _ => {
                let mut head = self.binding.stream_head().to_vec();
                StreamHead::Blocks { alias: claim.alias }.encode(&mut head);
                chunks.push(head.into());
                None
            }
        };
        for block in blocks {
            let Some(stamp) = self.proto.stamp(claim.alias, &block.vector, claim.route) else {
                self.context.metrics.discarded.inc();
                continue;
            };
            sent.add(&block.vector, stamp.payload);
            let (first, rest) = block.into_chunks(stamp.header(), stamp.payload);
            chunks.push(first);
            chunks.extend(rest);
        }
        self.count_sent(claim, &sent);
        let (now, bytes) = (Instant::now(), chunks.iter().map(Bytes::len).sum());
        self.visitor.spend(now, bytes);
        let (cancel, cancelled) = oneshot::channel();
        let is_taken = Arc::new(AtomicBool::new(false));
        let writing = Writing {
            _cancel: cancel,
            is_taken: Arc::clone(&is_taken),
            bytes,
            since: now,
        };
        let state = StreamState::Busy(writing);
        self.streams.insert(
            claim.alias,
            RequestStream {
                deadline: claim.deadline,
                priority,
                state,
            },
        );
        let (connection, binding, alias) = (self.connection.clone(), self.binding, claim.alias);
        self.writes.push(Box::pin(async move {
            let mut cancelled = cancelled;
            let mut stream = match idle {
                Some(stream) => stream,
                None => tokio::select! {
                    opened = connection.open_uni() => match opened {
                        Ok(stream) => {
                            let _ = stream.set_priority(priority);
                            stream
                        }
                        Err(_) => return Written::Blocks(alias, None),
                    },
                    // The peer allows no more streams, and the request has ended meanwhile.
                    _ = &mut cancelled => return Written::Stopped(alias),
                },
            };
            let result = tokio::select! {
                result = write(&mut stream, &mut chunks, &is_taken) => Some(result),
                _ = &mut cancelled => None,
            };
            match result {
                Some(Ok(())) => Written::Blocks(alias, Some(stream)),
                Some(Err(WriteError::Stopped(_))) => Written::Stopped(alias),
                Some(Err(_)) => Written::Blocks(alias, None),
                None => {
                    abandon(stream, binding);
                    Written::Stopped(alias)
                }
            }
        }));
        bytes
    }

    fn deliver(&self, head: StreamHead, bytes: Bytes, shares: Vec<Share>, delivered: Delivered) {
        let (connection, binding) = (self.connection.clone(), self.binding);
        let (stall_timeout, unread) = (
            self.context.config.stall_timeout,
            self.context.metrics.unread.clone(),
        );
        // Objects of one visitor follow each other at its rate.
        let now = Instant::now();
        let paid = self.visitor.allowance(now).err();
        self.visitor.spend(now, bytes.len());
        self.deliveries.push(Box::pin(async move {
            if let Some(paid) = paid {
                until(Some(paid)).await;
            }
            let mut begin = binding.stream_head().to_vec();
            head.encode(&mut begin);
            let (is_taken, mut patience) = (
                AtomicBool::new(false),
                Patience {
                    shares,
                    stall_timeout,
                    since: Instant::now(),
                },
            );
            let opened = tokio::select! {
                opened = connection.open_uni() => opened,
                () = patience.ends(&is_taken) => {
                    unread.inc();
                    return delivered;
                }
            };
            let Ok(mut stream) = opened else {
                return delivered;
            };
            let _ = stream.set_priority(i32::MAX - 1);
            // In pieces: QUIC holds each until its last byte is acknowledged.
            let pieces = (0..bytes.len())
                .step_by(PIECE_BYTES)
                .map(|at| bytes.slice(at..bytes.len().min(at + PIECE_BYTES)));
            let mut chunks: Vec<Bytes> = std::iter::once(begin.into()).chain(pieces).collect();
            let written = tokio::select! {
                written = write(&mut stream, &mut chunks, &is_taken) => written,
                () = patience.ends(&is_taken) => {
                    unread.inc();
                    abandon(stream, binding);
                    return delivered;
                }
            };
            // If the peer stops reading or leaves, the rest is not needed.
            if written.is_ok() {
                let _ = stream.finish();
            }
            delivered
        }));
    }

    fn ended(&mut self, ended: Ended) {
        self.leave(ended);
        self.queued
            .take_if(|queued| queued.claim.alias == ended.alias);
        match self.streams.remove(&ended.alias).map(|stream| stream.state) {
            Some(StreamState::Idle(stream)) if ended.abandon => abandon(stream, self.binding),
            Some(StreamState::Idle(mut stream)) => drop(stream.finish()),
            // This cancels the write, which resets the stream.
            Some(StreamState::Busy(writing)) => drop(writing),
            None => {}
        }
    }

    fn leave(&self, ended: Ended) {
        for kind in [ended.line.kind, LineKind::Source(self.id)] {
            self.context
                .ring
                .leave(self.id, LineKey { kind, ..ended.line });
        }
    }

    /// Ends all demand at the ring.
    fn leave_all(&mut self) {
        for line in self.proto.lines() {
            self.leave(Ended {
                alias: 0,
                line,
                abandon: true,
            });
        }
    }
}

/// The ring and the directory forget the session, however it ends.
impl Drop for Session {
    fn drop(&mut self) {
        self.leave_all();
        self.context.directory.withdraw(self.id);
    }
}

/// The client's certificate chain from the handshake, its own certificate first.
fn certificates(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let identity = connection
        .peer_identity()
        .and_then(|identity| identity.downcast().ok());
    identity.map_or_else(Vec::new, |chain| *chain)
}

/// Resets a stream, and drops the bytes it still holds.
fn abandon(mut stream: SendStream, binding: Binding) {
    // An error means that the stream is closed already.
    let _ = stream.reset(binding.stream_code(CloseCode::Done));
}

fn stopped() -> Refusal {
    Refusal {
        code: RefusalCode::Internal,
        retry_after: None,
        reason: "the server is stopping".to_owned(),
    }
}

/// The priority for the stream of a request due at `deadline`, beside streams with the deadlines
/// and priorities in `others`: later deadlines get lower priorities. A request whose deadline was
/// moved forward keeps its stream's first priority, because QUIC sends the bytes that it holds of a
/// stream in their old place. Requests due after it must not overtake it, so their streams go
/// behind that one.
fn priority(
    begun: Instant,
    deadline: Instant,
    others: impl Iterator<Item = (Instant, i32)>,
) -> i32 {
    let after = deadline.saturating_duration_since(begun).as_nanos() / PRIORITY_STEP.as_nanos();
    let priority = i32::try_from(after).map_or(i32::MIN, |after| -after);
    let earlier = others
        .filter(|(other, _)| *other < deadline)
        .map(|(_, priority)| priority);
    let last = earlier.filter(|earlier| *earlier < priority).min();
    last.map_or(priority, |last| last.saturating_sub(1))
}

/// Writes all chunks, and notes whenever QUIC has taken some bytes.
async fn write(
    stream: &mut SendStream,
    mut chunks: &mut [Bytes],
    is_taken: &AtomicBool,
) -> Result<(), WriteError> {
    while !chunks.is_empty() {
        let written = stream.write_chunks(chunks).await?;
        chunks = &mut chunks[written.chunks..];
        is_taken.store(true, Ordering::Relaxed);
    }
    Ok(())
}

async fn read(mut receive: RecvStream) -> Heard {
    let chunk = receive.read_chunk(CONTROL_READ_MAX, true).await;
    (receive, chunk)
}

async fn drained(mut drain: watch::Receiver<Option<Departure>>) -> Signal {
    let is_there = drain.changed().await.is_ok();
    Signal::Drain(is_there.then_some(drain))
}

async fn reviewed(mut reviews: watch::Receiver<()>) -> Signal {
    match reviews.changed().await {
        Ok(()) => Signal::Review(reviews),
        // The sender lives as long as the admission, which the session holds.
        Err(_) => std::future::pending().await,
    }
}

async fn fleet_changed(mut changes: watch::Receiver<()>) -> Signal {
    match changes.changed().await {
        Ok(()) => Signal::Fleet(changes),
        // The sender lives as long as the fleet, which the session holds.
        Err(_) => std::future::pending().await,
    }
}

async fn stray(connection: Connection) -> Signal {
    let is_opened = tokio::select! {
        opened = connection.accept_bi() => opened.is_ok(),
        opened = connection.accept_uni() => opened.is_ok(),
    };
    match is_opened {
        true => Signal::Stray,
        // The end of the connection is a signal of its own.
        false => std::future::pending().await,
    }
}

async fn closed(connection: Connection) -> Signal {
    Signal::Closed(connection.closed().await)
}

async fn leaving(
    datagrams: &mut Option<BoxFuture<Result<(), SendDatagramError>>>,
) -> Result<(), SendDatagramError> {
    match datagrams {
        Some(sending) => sending.await,
        None => std::future::pending().await,
    }
}

async fn line_is_free(queued: &mut Option<Queued>) {
    match queued {
        Some(queued) => queued.free.as_mut().await,
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_later_requests_go_behind_those_that_were_due_later_once() {
        let begun = Instant::now();
        let due = |seconds| begun + Duration::from_secs(seconds);
        let alone = |seconds| priority(begun, due(seconds), std::iter::empty());
        assert!(alone(1) > alone(2));
        // Its stream began with a deadline after 20 s, and is now due after 5 s.
        let rescheduled = (due(5), alone(20));
        let beside = |seconds| {
            priority(
                begun,
                due(seconds),
                [rescheduled, (due(3), alone(3))].into_iter(),
            )
        };
        assert_eq!(
            beside(4),
            alone(4),
            "what is due before it does not wait for it"
        );
        assert!(
            beside(6) < alone(20) && beside(6) > alone(21),
            "what is due after it does"
        );
        assert_eq!(beside(21), alone(21));
    }
}
