//! A source, and the connection to it: established, used, ended, and re-established.
//!
//! A server, or the path to it, may vanish silently. After two seconds without packets, QUIC sends
//! a PING ([`transport`]), which a live server answers within a round trip. Without an answer,
//! attempts to connect begin beside the connection ([`Attempts`]); the first connection that
//! receives something is kept.

use std::future::{Future, pending};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{BoxFuture, select_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use ncs_net::endpoint::{self, Congestion, INITIAL_RTT};
use ncs_net::tls::{Fingerprint, NotPinned, Rejection};
use ncs_proto::wire::message::{Alternate, Credential, REASON_MAX, Ticket, VisitId};
use ncs_proto::wire::text::plain;
use ncs_proto::wire::{CloseCode, Violation, elsewhere, frame};
use quinn::{
    Connection, ConnectionError, Endpoint, ReadError, RecvStream, SendStream, VarInt, WriteError,
};
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Protocol, Socket, Type};
use tracing::Span;

use super::attempts::{Answered, Attempts};
use crate::neighbours::is_private;
use crate::proto::silence::{Look, Silence};
use crate::proto::{SourceId, StreamEnd};
use crate::token::Current;
use crate::{Config, Server};

/// Receive and send buffer of the socket: bursts of blocks must fit while this machine is busy.
const SOCKET_BUFFER: usize = 4 << 20;
/// Datagrams, in bytes, that QUIC keeps until they are read.
const DATAGRAM_BUFFER: usize = 4 << 20;
/// Control bytes read from QUIC at once.
const CONTROL_READ_MAX: usize = 64 * 1024;
/// Chunks of a block stream read at once.
const CHUNKS: usize = 32;
/// A connection that lasted this long was a good one.
const GOOD_CONNECTION: Duration = Duration::from_secs(10);
/// The maximum time to close a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum time of an attempt to connect to a named peer or server.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause between attempts at other servers while no round trip is known.
const PAUSE_UNKNOWN: Duration = Duration::from_secs(1);
/// QUIC error codes that carry a TLS alert (RFC 9001, section 4.8).
const CRYPTO_ERRORS: std::ops::Range<u64> = 0x100..0x200;
/// Those of a rejected certificate (RFC 8446, section 6.2): bad, unsupported, revoked, expired,
/// unknown, or of an unknown authority; and a failed handshake, for other verdicts of a verifier.
const CERTIFICATE_ERRORS: [u64; 7] = [0x12a, 0x12b, 0x12c, 0x12d, 0x12e, 0x130, 0x128];
/// How long a connection may be silent before the client sends a PING.
const PING_AFTER: Duration = Duration::from_secs(2);
/// The minimum time for its answer; two round trips if that is more.
const PONG_WITHIN: Duration = Duration::from_millis(300);
/// The interval of looks at received packets, for a PING that is not answered.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The settings of connections to a source, and why its certificate was rejected.
pub(super) type Quic = (quinn::ClientConfig, Arc<Rejection>);

/// A source and its connection.
pub(super) struct Link {
    pub(super) id: SourceId,
    pub(super) server: Server,
    /// The credential for the source.
    pub(super) shown: Shown,
    /// SHA-256 of the source's certificate.
    pub(super) identity: Option<Fingerprint>,
    /// Identifies this side's connections to the source, so that one that replaces another counts
    /// once. Different for each source.
    pub(super) visit: VisitId,
    /// Whether another source has named it.
    pub(super) is_sent: bool,
    /// Whether it may be at a private address. Those that the user has named may.
    takes_private: bool,
    /// Where it was reached last.
    pub(super) address: Option<SocketAddr>,
    /// Whether its last connection, or the last attempt, has failed.
    has_failed: bool,
    /// The span of its log lines.
    pub(super) span: Span,
    quic: Quic,
    connect_timeout: Duration,
    attempts: Attempts<Wires, Fault>,
    state: State,
    /// UDP bytes of earlier connections.
    wire_bytes_before: u64,
}

enum State {
    /// No connection; attempts are made.
    Down,
    /// A new connection replaces one that has just ended.
    Next(Box<Wires>),
    Up(Box<Wires>, Watch),
    /// No connection is wanted any more.
    Over,
}

/// When a connection last received packets.
struct Watch {
    begun: Instant,
    /// UDP datagrams received by then.
    heard: u64,
    heard_at: Instant,
    /// Whether attempts are made beside it.
    is_silent: bool,
    /// A connection that answered while this one was silent.
    successor: Option<Box<Wires>>,
    silence: Silence,
}

impl Watch {
    fn new(now: Instant) -> Self {
        Self {
            begun: now,
            heard: 0,
            heard_at: now,
            is_silent: false,
            successor: None,
            silence: Silence::new(now),
        }
    }

    /// Looks at the number of received datagrams. Returns whether the connection has just become
    /// silent, or active again.
    fn look(&mut self, now: Instant, heard: u64, rtt: Duration) -> Option<Change> {
        if self.heard != heard {
            (self.heard, self.heard_at) = (heard, now);
            return std::mem::replace(&mut self.is_silent, false).then_some(Change::Speaks);
        }
        let is_silent =
            now.saturating_duration_since(self.heard_at) >= PING_AFTER + PONG_WITHIN.max(2 * rtt);
        (is_silent && !std::mem::replace(&mut self.is_silent, true)).then_some(Change::Silent)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    Silent,
    Speaks,
}

/// The parts of an open connection.
pub(super) struct Wires {
    endpoint: Endpoint,
    pub(super) connection: Connection,
    pub(super) frames: frame::Reader,
    out: Option<SendStream>,
    /// Everything that is waited for. Each wait lasts until its end: the driver looks at all links
    /// whenever one of them has something, and beginning every wait anew would take locks of QUIC
    /// and of timers each time.
    waits: FuturesUnordered<Wait>,
}

type Wait = Pin<Box<dyn Future<Output = Came> + Send>>;

/// The end of a wait.
enum Came {
    /// A chunk of the control stream, and the stream for more.
    Control(RecvStream, Result<Option<quinn::Chunk>, ReadError>),
    Datagram(Result<Bytes, ConnectionError>),
    /// The source has opened a stream.
    Opened(Result<RecvStream, ConnectionError>),
    Stream(Read),
    Written(Result<SendStream, WriteError>),
    /// It is time to look at the received packets.
    Look,
}

/// Data read from a stream.
pub(super) struct Read {
    pub(super) stream: RecvStream,
    pub(super) chunks: Vec<Bytes>,
    pub(super) end: Option<StreamEnd>,
}

/// The credential for a source.
pub(super) enum Shown {
    /// A token, if there is one.
    Token(Current),
    /// A ticket, and whether it was sent on this connection.
    Ticket(Ticket, bool),
}

impl Shown {
    /// The credential for a new connection.
    pub(super) fn first(&mut self, now: Instant) -> Option<Credential> {
        match self {
            Self::Token(current) => current.first(now).map(Credential::Token),
            Self::Ticket(ticket, seen) => {
                *seen = true;
                Some(Credential::Ticket(ticket.clone()))
            }
        }
    }

    /// A credential not yet sent on this connection, if there is one.
    pub(super) fn newer(&mut self, now: Instant) -> Option<Credential> {
        match self {
            Self::Token(current) => current.newer(now).map(Credential::Token),
            Self::Ticket(_, true) => None,
            Self::Ticket(..) => self.first(now),
        }
    }

    /// The source rejects the credential, or requires one.
    pub(super) fn refused(&mut self, now: Instant, has_certificate: bool) {
        if let Self::Token(current) = self {
            current.refused(now, has_certificate);
        }
    }

    /// When to look for a newer one.
    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::Token(current) => current.due(),
            Self::Ticket(..) => None,
        }
    }
}

/// An event of a link.
pub(super) enum Happening {
    /// The connection is established.
    Connected,
    /// An attempt failed, and why; another one follows.
    NotConnected(Fault),
    /// Bytes of the control stream.
    Control(Bytes),
    /// The first of several datagrams.
    Datagram(Bytes),
    /// Bytes, or the end, of a stream.
    Stream(Read),
    /// The control stream is writable again.
    Written,
    /// The connection has become silent, or active again; meanwhile attempts are made.
    Silence(bool),
    /// The connection must not be used any more.
    Ended(End),
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// A message.
    pub(super) reason: String,
    /// Whether the server has answered.
    is_answer: bool,
    /// When it wants to be asked again.
    retry_after: Option<Duration>,
    /// One side rejects the other's certificate: waiting does not help.
    pub(super) is_refusal: bool,
    /// It is this side that rejects.
    pub(super) is_untrusted: bool,
}

impl Fault {
    fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            is_answer: false,
            retry_after: None,
            is_refusal: false,
            is_untrusted: false,
        }
    }

    /// The fault of a failed handshake with this address.
    fn of(address: SocketAddr, error: &ConnectionError, rejection: Option<NotPinned>) -> Self {
        let (own, theirs) = match error {
            ConnectionError::TransportError(failed) => (u64::from(failed.code), 0),
            ConnectionError::ConnectionClosed(close) => (0, u64::from(close.error_code)),
            _ => (0, 0),
        };
        let is_untrusted = CERTIFICATE_ERRORS.contains(&own);
        let is_refusal = CRYPTO_ERRORS.contains(&own) || CRYPTO_ERRORS.contains(&theirs);
        let reason = match (rejection.filter(|_| is_untrusted), error) {
            (Some(not_pinned), _) => not_pinned.to_string(),
            // The verifier's reason, without QUIC's wrapping.
            (None, ConnectionError::TransportError(failed)) if is_refusal => {
                plain(&failed.reason, REASON_MAX)
            }
            (None, error) => fault(error),
        };
        Self {
            reason: format!("{address}: {reason}"),
            is_answer: !is_silence(error),
            retry_after: endpoint::retry_after(error),
            is_refusal,
            is_untrusted,
        }
    }
}

impl Answered for Fault {
    fn is_answered(&self) -> bool {
        self.is_answer
    }

    fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }
}

/// Whether a connection ended without a message of the server. A stateless reset comes from its
/// restarted successor.
fn is_silence(error: &ConnectionError) -> bool {
    matches!(
        error,
        ConnectionError::TimedOut | ConnectionError::Reset | ConnectionError::LocallyClosed
    )
}

/// When to try the next connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// At once: the source did not end the last one on purpose.
    AtOnce,
    /// After a pause that grows with the number of connections that it has ended.
    Soon,
    /// When there are requests for the source, and rarely before: it does not admit this side.
    WhenWanted,
}

/// How a connection ended.
pub(super) enum End {
    /// The source shuts down, or another one serves in its place, and all requested data has
    /// arrived.
    Left,
    /// The source refuses or leaves, and names others: why, and where.
    SentOn(String, Vec<Alternate>),
    /// The source violated the protocol.
    Violation(Violation),
    /// The source does not admit this side.
    TurnedAway(String),
    /// The source, or QUIC, has closed it.
    Lost(String),
    /// The source was silent for too long, or has forgotten the connection.
    Silent(String),
    /// The source has sent blocks that are proved wrong.
    Polluted,
}

impl From<ConnectionError> for End {
    fn from(error: ConnectionError) -> Self {
        let code = match &error {
            ConnectionError::ApplicationClosed(close) => {
                CloseCode::from_quic(close.error_code.into_inner())
            }
            _ => None,
        };
        let others = others(&error);
        match &error {
            error if !others.is_empty() => Self::SentOn(fault(error), others),
            _ if code == Some(CloseCode::GoingAway) => Self::Left,
            error if code == Some(CloseCode::Auth) => Self::TurnedAway(fault(error)),
            error if is_silence(error) => Self::Silent(fault(error)),
            error => Self::Lost(fault(error)),
        }
    }
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// The next event of any link, and its index. Links take turns, beginning with `first`.
pub(super) async fn next(links: &mut [Link], first: usize) -> (usize, Happening) {
    let (before, behind) = links.split_at_mut(first);
    let nexts = behind
        .iter_mut()
        .enumerate()
        .map(|(index, link)| (first + index, link));
    let nexts = nexts.chain(before.iter_mut().enumerate());
    let nexts = nexts.map(|(index, link)| Box::pin(async move { (index, link.next().await) }));
    select_all(nexts).await.0
}

/// Closes all connections, and waits briefly until the sources are told.
pub(super) async fn close(links: Vec<Link>) {
    let wires = links.into_iter().filter_map(|link| match link.state {
        State::Up(wires, _) | State::Next(wires) => Some(wires),
        _ => None,
    });
    let endings: Vec<_> = wires
        .map(|wires| wires.close(CloseCode::Done, "closed"))
        .collect();
    futures_util::future::join_all(endings).await;
}

impl Link {
    /// A link that connects.
    pub(super) fn new(
        id: SourceId,
        server: Server,
        quic: Quic,
        shown: Shown,
        config: &Config,
    ) -> Self {
        // A named peer may not know of this: it gets few packets, in one attempt at a time.
        let is_named = matches!(shown, Shown::Ticket(..));
        let connect_timeout = config.connect_timeout.min(if is_named {
            NEIGHBOUR_TIMEOUT
        } else {
            Duration::MAX
        });
        let pause_unknown = if is_named {
            NEIGHBOUR_TIMEOUT
        } else {
            PAUSE_UNKNOWN
        };
        let (attempts, state) = (
            Attempts::new(Instant::now(), pause_unknown, config.reconnect_max),
            State::Down,
        );
        let visit = VisitId(rand::random());
        let span = tracing::debug_span!("connection", source = id.0, %server);
        Self {
            id,
            server,
            shown,
            identity: None,
            visit,
            is_sent: false,
            takes_private: true,
            address: None,
            has_failed: false,
            span,
            quic,
            connect_timeout,
            attempts,
            state,
            wire_bytes_before: 0,
        }
    }

    /// Another source has named it, to which there is such a round trip. It may not exist, so
    /// attempts are short.
    pub(super) fn note_sent(&mut self, rtt: Option<Duration>, takes_private: bool) {
        (self.is_sent, self.takes_private) = (true, takes_private);
        self.attempts.set_rtt(rtt);
        self.connect_timeout = self.connect_timeout.min(NEIGHBOUR_TIMEOUT);
    }

    /// The connection, while there is one.
    pub(super) fn wires(&mut self) -> Option<&mut Wires> {
        match &mut self.state {
            State::Up(wires, _) => Some(wires),
            _ => None,
        }
    }

    /// The connection, while there is one.
    pub(super) fn connection(&self) -> Option<&Connection> {
        match &self.state {
            State::Up(wires, _) => Some(&wires.connection),
            _ => None,
        }
    }

    /// Notes where the source was reached.
    pub(super) fn note_address(&mut self) {
        let address = self.connection().map(Connection::remote_address);
        self.address = address.or(self.address);
    }

    /// SHA-256 of the certificate on this connection.
    pub(super) fn identify(&mut self) -> Option<Fingerprint> {
        let shown = self
            .connection()?
            .peer_identity()?
            .downcast::<Vec<CertificateDer<'static>>>()
            .ok()?;
        self.identity = shown.first().map(Fingerprint::of);
        self.identity
    }

    /// UDP bytes received over all connections.
    pub(super) fn wire_bytes(&self) -> u64 {
        self.wire_bytes_before
            + self
                .connection()
                .map_or(0, |connection| connection.stats().udp_rx.bytes)
    }

    /// Closes the connection. Other attempts follow.
    pub(super) fn end(&mut self, code: CloseCode, reason: &str, next: Next) {
        self.wire_bytes_before = self.wire_bytes();
        let State::Up(wires, watch) = std::mem::replace(&mut self.state, State::Down) else {
            return;
        };
        let now = Instant::now();
        if now.saturating_duration_since(watch.begun) >= GOOD_CONNECTION && next != Next::WhenWanted
        {
            self.attempts.welcome();
        }
        if !watch.is_silent {
            self.attempts.silent(now, now, wires.connection.rtt());
        }
        match next {
            Next::AtOnce => {}
            Next::Soon => self.attempts.refused(now),
            Next::WhenWanted => self.attempts.turned_away(now),
        }
        self.has_failed = watch.successor.is_none();
        if let Some(successor) = watch.successor {
            self.state = State::Next(successor);
        }
        tokio::spawn(wires.close(code, reason));
    }

    /// Notes a violation on the connection that has ended. Returns whether the source is paused.
    pub(super) fn note_breach(&mut self) -> bool {
        self.attempts.breached(Instant::now());
        if self.attempts.is_resting() {
            // Another connection to the same source is no better.
            self.state = State::Down;
        }
        self.is_left_alone()
    }

    /// Whether no connection is to be expected soon.
    pub(super) fn is_left_alone(&self) -> bool {
        match self.state {
            State::Over => true,
            State::Down => self.attempts.is_resting(),
            State::Next(_) | State::Up(..) => false,
        }
    }

    /// There are requests for the source.
    pub(super) fn wanted(&mut self) {
        self.attempts.wanted();
    }

    /// Ends all attempts.
    pub(super) fn give_up(&mut self) {
        self.attempts.cancel();
        self.state = State::Over;
    }

    /// Attempts to connect begin again.
    pub(super) fn resume(&mut self, now: Instant) {
        if matches!(self.state, State::Over) {
            self.attempts.begin_anew(now);
            self.state = State::Down;
        }
    }

    /// Whether it has no connection, and the last attempt to make one has failed.
    pub(super) fn is_down(&self) -> bool {
        matches!(self.state, State::Over) || (matches!(self.state, State::Down) && self.has_failed)
    }

    /// Whether the source has owed something and said nothing for too long, and nothing since;
    /// `owes` tells whether it owes something now. It is sent something that it has to acknowledge
    /// where that is due ([`Silence`]).
    pub(super) fn is_mute(&mut self, now: Instant, owes: bool) -> bool {
        let State::Up(wires, watch) = &mut self.state else {
            return false;
        };
        let (connection, can_write) = (&wires.connection, wires.is_writable());
        let heard = || connection.stats().udp_rx.datagrams;
        let silence = &mut watch.silence;
        let Look { is_mute, knocks } = silence.look(now, owes, connection.rtt(), can_write, heard);
        if knocks {
            let mut out = Vec::new();
            frame::encode_knock(rand::random(), &mut out);
            wires.write(out);
        }
        is_mute
    }

    /// When to listen again, while the source owes something.
    pub(super) fn listens_at(&self) -> Option<Instant> {
        match &self.state {
            State::Up(_, watch) => watch.silence.due(),
            _ => None,
        }
    }

    async fn next(&mut self) -> Happening {
        let (server, quic, timeout) = (&self.server, &self.quic, self.connect_timeout);
        let private = self.takes_private;
        let begin = |turn| connecting((server.clone(), private), quic.clone(), timeout, turn);
        loop {
            match &mut self.state {
                State::Up(wires, watch) => {
                    tokio::select! {
                        happening = wires.next() => {
                            if let Some(happening) = happening {
                                return happening;
                            }
                            let (now, stats) = (Instant::now(), wires.connection.stats());
                            match watch.look(now, stats.udp_rx.datagrams, stats.path.rtt) {
                                Some(Change::Silent) => {
                                    self.attempts.silent(now, watch.heard_at, stats.path.rtt);
                                    return Happening::Silence(true);
                                }
                                Some(Change::Speaks) => {
                                    self.attempts.cancel();
                                    return Happening::Silence(false);
                                }
                                None => {}
                            }
                        }
                        outcome = self.attempts.next(begin), if watch.is_silent => {
                            if let Ok(wires) = outcome {
                                watch.successor = Some(Box::new(wires));
                                return Happening::Ended(End::Silent(
                                    "another connection was answered first".to_owned(),
                                ));
                            }
                        }
                    }
                }
                State::Down => match self.attempts.next(begin).await {
                    Ok(wires) => self.state = State::Next(Box::new(wires)),
                    Err(fault) => {
                        self.has_failed = true;
                        return Happening::NotConnected(fault);
                    }
                },
                State::Next(_) => {
                    if let State::Next(wires) = std::mem::replace(&mut self.state, State::Down) {
                        // Neighbours can be replaced by others, so their silence is not watched.
                        if matches!(self.shown, Shown::Token(_)) {
                            wires.look_later();
                        }
                        self.state = State::Up(wires, Watch::new(Instant::now()));
                        self.has_failed = false;
                    }
                    return Happening::Connected;
                }
                State::Over => pending().await,
            }
        }
    }
}

impl Wires {
    /// Whether the control stream is writable.
    pub(super) fn is_writable(&self) -> bool {
        self.out.is_some()
    }

    /// Writes to the control stream; see [`Wires::is_writable`].
    pub(super) fn write(&mut self, bytes: Vec<u8>) {
        let Some(mut stream) = self.out.take() else {
            return;
        };
        let mut write = Box::pin(async move {
            let written = stream.write_chunk(bytes.into()).await;
            written.map(|()| stream)
        });
        // QUIC mostly takes the few bytes at once.
        match write.as_mut().now_or_never() {
            Some(Ok(stream)) => self.out = Some(stream),
            Some(Err(error)) => self
                .waits
                .push(Box::pin(async move { Came::Written(Err(error)) })),
            None => self
                .waits
                .push(Box::pin(async move { Came::Written(write.await) })),
        }
    }

    /// Continues to read a stream.
    pub(super) fn read_on(&self, stream: RecvStream) {
        self.waits.push(Box::pin(read(stream)));
    }

    fn await_control(&self, mut stream: RecvStream) {
        self.waits.push(Box::pin(async move {
            let chunk = stream.read_chunk(CONTROL_READ_MAX, true).await;
            Came::Control(stream, chunk)
        }));
    }

    fn await_datagram(&self) {
        let connection = self.connection.clone();
        self.waits.push(Box::pin(async move {
            Came::Datagram(connection.read_datagram().await)
        }));
    }

    fn await_stream(&self) {
        let connection = self.connection.clone();
        self.waits.push(Box::pin(async move {
            Came::Opened(connection.accept_uni().await)
        }));
    }

    fn look_later(&self) {
        self.waits.push(Box::pin(async move {
            tokio::time::sleep(LOOK_EVERY).await;
            Came::Look
        }));
    }

    /// The next event; `None` when it is time to look at the received packets.
    async fn next(&mut self) -> Option<Happening> {
        let lost = |error: ConnectionError| Happening::Ended(error.into());
        loop {
            // Datagrams and streams are waited for until the connection ends.
            let Some(came) = self.waits.next().await else {
                return pending().await;
            };
            return Some(match came {
                Came::Control(stream, chunk) => match chunk {
                    Ok(Some(chunk)) => {
                        self.await_control(stream);
                        Happening::Control(chunk.bytes)
                    }
                    Ok(None) => {
                        Happening::Ended(Violation::Unexpected("end of the control stream").into())
                    }
                    Err(ReadError::Reset(_)) => Happening::Ended(
                        Violation::Unexpected("reset of the control stream").into(),
                    ),
                    Err(ReadError::ConnectionLost(error)) => lost(error),
                    Err(error) => Happening::Ended(End::Lost(error.to_string())),
                },
                Came::Datagram(Ok(datagram)) => {
                    self.await_datagram();
                    Happening::Datagram(datagram)
                }
                Came::Opened(Ok(stream)) => {
                    self.read_on(stream);
                    self.await_stream();
                    continue;
                }
                Came::Datagram(Err(error)) | Came::Opened(Err(error)) => lost(error),
                Came::Stream(read) => Happening::Stream(read),
                Came::Written(Ok(stream)) => {
                    self.out = Some(stream);
                    Happening::Written
                }
                Came::Written(Err(WriteError::Stopped(_))) => Happening::Ended(
                    Violation::Unexpected("STOP_SENDING of the control stream").into(),
                ),
                Came::Written(Err(WriteError::ConnectionLost(error))) => lost(error),
                Came::Written(Err(error)) => Happening::Ended(End::Lost(error.to_string())),
                Came::Look => {
                    self.look_later();
                    return None;
                }
            });
        }
    }

    /// Closes the connection; the returned future waits briefly until the source is told.
    fn close(self, code: CloseCode, reason: &str) -> impl Future<Output = ()> + use<> {
        endpoint::close(&self.connection, code, reason);
        async move {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.endpoint.wait_idle()).await;
        }
    }
}

/// An attempt to connect.
fn connecting(
    (server, takes_private): (Server, bool),
    quic: Quic,
    timeout: Duration,
    turn: usize,
) -> BoxFuture<'static, Result<Wires, Fault>> {
    Box::pin(async move {
        match tokio::time::timeout(timeout, connect((&server, takes_private), &quic, turn)).await {
            Ok(connected) => connected,
            Err(_) => Err(Fault::new(format!("{server} does not answer"))),
        }
    })
}

/// Waits for the next data of a stream.
async fn read(mut stream: RecvStream) -> Came {
    let mut chunks = vec![Bytes::new(); CHUNKS];
    let (count, end) = match stream.read_chunks(&mut chunks).await {
        Ok(Some(count)) => (count, None),
        Ok(None) => (0, Some(StreamEnd::Finished)),
        Err(ReadError::Reset(code)) => (0, Some(StreamEnd::Reset(code.into_inner()))),
        // A lost connection is reported elsewhere.
        Err(_) => (0, Some(StreamEnd::Reset(0))),
    };
    chunks.truncate(count);
    Came::Stream(Read {
        stream,
        chunks,
        end,
    })
}

/// Connects to the first of a server's addresses that answers. Each attempt begins with another
/// one.
async fn connect(
    (server, takes_private): (&Server, bool),
    quic: &Quic,
    turn: usize,
) -> Result<Wires, Fault> {
    let unknown = |error: std::io::Error| Fault::new(format!("{}: {error}", server.host));
    let addresses = tokio::net::lookup_host((server.host.as_str(), server.port))
        .await
        .map_err(unknown)?;
    let mut fault = Fault::new(format!("{} has no address", server.host));
    let is_allowed = |address: &SocketAddr| takes_private || !is_private(*address);
    let mut addresses: Vec<SocketAddr> = addresses.filter(is_allowed).collect();
    let first = turn.checked_rem(addresses.len()).unwrap_or(0);
    addresses.rotate_left(first);
    for address in addresses {
        match connect_to(address, &server.host, quic.clone()).await {
            Ok(connected) => return Ok(connected),
            Err(error) => fault = error,
        }
    }
    Err(fault)
}

async fn connect_to(
    address: SocketAddr,
    name: &str,
    (quic, rejection): Quic,
) -> Result<Wires, Fault> {
    let local = |error: String| Fault::new(format!("{address}: {error}"));
    let socket = socket(address).map_err(|error| local(error.to_string()))?;
    let endpoint = Endpoint::new(
        quinn::EndpointConfig::default(),
        None,
        socket,
        Arc::new(quinn::TokioRuntime),
    )
    .map_err(|error| local(error.to_string()))?;
    let connecting = endpoint
        .connect_with(quic, address, name)
        .map_err(|error| local(error.to_string()))?;
    let failed = |error: ConnectionError| Fault::of(address, &error, rejection.last());
    let connection = connecting.await.map_err(failed)?;
    let (out, control) = connection.open_bi().await.map_err(failed)?;
    let wires = Wires {
        endpoint,
        connection,
        frames: frame::Reader::new(),
        out: Some(out),
        waits: FuturesUnordered::new(),
    };
    wires.await_control(control);
    wires.await_datagram();
    wires.await_stream();
    Ok(wires)
}

/// The servers that a source has named when it closed a connection. Only for one whose handshake is
/// complete: before that, quinn takes a close from anybody on the path.
fn others(error: &ConnectionError) -> Vec<Alternate> {
    let ConnectionError::ApplicationClosed(close) = error else {
        return Vec::new();
    };
    match CloseCode::from_quic(close.error_code.into_inner()) {
        Some(CloseCode::Overload | CloseCode::GoingAway) => {
            elsewhere::read(&String::from_utf8_lossy(&close.reason))
        }
        _ => Vec::new(),
    }
}

/// Describes why a connection ended. The server's text is made safe to show.
pub(super) fn fault(error: &ConnectionError) -> String {
    let ConnectionError::ApplicationClosed(close) = error else {
        return plain(&error.to_string(), REASON_MAX);
    };
    let code = close.error_code.into_inner();
    let code = CloseCode::from_quic(code)
        .map_or_else(|| format!("code {code:#x}"), |code| code.name().to_owned());
    match plain(&String::from_utf8_lossy(&close.reason), REASON_MAX).as_str() {
        "" => format!("closed by the server with {code}"),
        reason => format!("closed by the server with {code}: {reason}"),
    }
}

/// A socket of the address's family on any free port.
fn socket(address: SocketAddr) -> std::io::Result<std::net::UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // The kernel may cap these silently; smaller buffers only mean more loss.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.bind(&any.into())?;
    Ok(socket.into())
}

/// Transport settings of a receiver: large windows for receiving, small ones for sending.
pub(super) fn transport(congestion: Congestion) -> quinn::TransportConfig {
    let mut transport = quinn::TransportConfig::default();
    transport.max_idle_timeout(Some(VarInt::from_u32(15_000).into()));
    transport.initial_rtt(INITIAL_RTT);
    transport.keep_alive_interval(Some(PING_AFTER));
    transport.datagram_receive_buffer_size(Some(DATAGRAM_BUFFER));
    transport.stream_receive_window(VarInt::from_u32(4 << 20));
    transport.receive_window(VarInt::from_u32(32 << 20));
    transport.send_window(256 * 1024);
    transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
    transport.max_concurrent_uni_streams(VarInt::from_u32(512));
    transport.congestion_controller_factory(congestion.factory());
    // Larger packets are of no use to a sender of short messages. The search for them would cost
    // the server 8 % of its time for a newcomer, because quinn reads padding octet by octet.
    transport.mtu_discovery_config(None);
    transport
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_silent_when_its_ping_is_not_answered() {
        let now = Instant::now();
        let (at, rtt) = (
            |ms: u64| now + Duration::from_millis(ms),
            Duration::from_millis(10),
        );
        let mut watch = Watch::new(now);
        assert_eq!(watch.look(at(250), 5, rtt), None);
        assert_eq!(
            watch.look(at(2_250), 5, rtt),
            None,
            "the PING has just left"
        );
        assert_eq!(watch.look(at(2_600), 5, rtt), Some(Change::Silent));
        assert_eq!(watch.look(at(2_850), 5, rtt), None, "once");
        assert_eq!(watch.look(at(3_000), 6, rtt), Some(Change::Speaks));
        assert_eq!(
            watch.look(at(5_400), 6, Duration::from_secs(1)),
            None,
            "a slow path has more time"
        );
        assert_eq!(
            watch.look(at(7_000), 6, Duration::from_secs(1)),
            Some(Change::Silent)
        );
    }
}
