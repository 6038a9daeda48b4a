//! Metrics of all sessions together: no label names a peer. [`Audience`] has the metrics of each
//! stream.

use ncs_codec::block::Vector;
use ncs_net::telemetry::register;
use ncs_net::web;
use prometheus::{Error, Histogram, IntCounter, IntCounterVec, IntGauge, Registry};

use super::Audience;
use super::proto::{Route, Tally};

/// Counters of all sessions.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Open sessions.
    pub sessions: IntGauge,
    /// Sessions opened.
    pub opened: IntCounter,
    /// Those of web pages.
    pub pages: IntCounter,
    refused_pages: IntCounterVec,
    /// Sessions closed because the peer violated the protocol or a limit.
    pub violations: IntCounter,
    sent: SentCounters,
    sent_bytes: SentCounters,
    /// Mutable objects sent whole.
    pub objects: IntCounter,
    /// Objects and hashes given up because the peer read nothing of them.
    pub unread: IntCounter,
    /// Blocks claimed for a REQUEST that had ended before they were sent.
    pub discarded: IntCounter,
    requests: IntCounter,
    refused: IntCounter,
    useless: IntCounter,
    lost: IntCounter,
    late: IntCounter,
    moved: IntCounter,
    idle: IntCounter,
    evicted: IntCounter,
    unleased: IntCounter,
    lapsed: IntCounter,
    hashes: Answered,
    checks: Answered,
    blames: Answered,
    signals: Answered,
    sent_on: IntCounterVec,
    /// Sessions of peers that other servers have sent here.
    pub sent_here: IntCounter,
    /// Sessions closed because the peer had no valid token or certificate.
    pub unadmitted: IntCounter,
    /// Server time to the first block of a live segment that a peer waited for.
    pub first_block_seconds: Histogram,
    /// The metrics of each stream.
    pub audience: Audience,
}

/// Each reason is there from the start.
fn refused_pages(registry: &Registry) -> Result<IntCounterVec, Error> {
    let refused = register::counters(
        registry,
        "ncserverd_web_refused_total",
        "Connections of web pages that have begun no session, by reason.",
        &["reason"],
    )?;
    for reason in web::Error::NAMES {
        refused.with_label_values(&[reason]);
    }
    Ok(refused)
}

/// Why a peer is sent to another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The other one should serve it, by its stream and network.
    Placement,
    /// This one has no room.
    Full,
    /// This one goes away.
    Drain,
    /// Another process serves at the same addresses.
    Replaced,
}

impl Reason {
    const ALL: [Self; 4] = [Self::Placement, Self::Full, Self::Drain, Self::Replaced];

    fn name(self) -> &'static str {
        match self {
            Self::Placement => "placement",
            Self::Full => "full",
            Self::Drain => "drain",
            Self::Replaced => "replaced",
        }
    }
}

/// Each reason is there from the start.
fn sent_on(registry: &Registry) -> Result<IntCounterVec, Error> {
    let sent = register::counters(
        registry,
        "ncserverd_session_sent_on_total",
        "Peers told to go to another server of the fleet, or to the next process, by reason.",
        &["reason"],
    )?;
    for reason in Reason::ALL {
        sent.with_label_values(&[reason.name()]);
    }
    Ok(sent)
}

/// Counters of the requests served, and of those refused or ignored.
#[derive(Debug, Clone)]
struct Answered {
    yes: IntCounter,
    no: IntCounter,
}

/// Blocks sent in one go, and bytes of their payloads. They are counted together, because all
/// sessions share the counters.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) coded: (u64, u64),
    pub(super) source: (u64, u64),
}

/// One counter for each kind of block and route.
#[derive(Debug, Clone)]
struct SentCounters {
    coded_datagram: IntCounter,
    coded_stream: IntCounter,
    source_datagram: IntCounter,
    source_stream: IntCounter,
}

impl Metrics {
    /// Counts a page that has begun no session.
    pub(super) fn refuse_page(&self, error: &web::Error) {
        self.refused_pages.with_label_values(&[error.name()]).inc();
    }

    /// Counts a peer that is sent to another server.
    pub(super) fn send_on(&self, reason: Reason) {
        self.sent_on.with_label_values(&[reason.name()]).inc();
    }

    /// Registers all metrics of sessions.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let counter = |name: &str, help: &str| register::counter(registry, name, help);
        Ok(Self {
            sessions: register::gauge(
                registry,
                "ncserverd_session_open_sessions",
                "Open sessions.",
            )?,
            opened: counter("ncserverd_session_opened_total", "Sessions opened.")?,
            pages: counter(
                "ncserverd_web_sessions_total",
                "Sessions opened by web pages (WebTransport).",
            )?,
            refused_pages: refused_pages(registry)?,
            sent_on: sent_on(registry)?,
            sent_here: counter(
                "ncserverd_session_sent_here_total",
                "Sessions of peers that another server of the fleet has sent here.",
            )?,
            violations: counter(
                "ncserverd_session_violations_total",
                "Sessions closed because the peer violated the protocol or a limit.",
            )?,
            sent: SentCounters::new(
                registry,
                "ncserverd_session_sent_blocks_total",
                "Blocks handed to QUIC, by kind and route.",
            )?,
            sent_bytes: SentCounters::new(
                registry,
                "ncserverd_session_sent_bytes_total",
                "Payload bytes of blocks handed to QUIC, by kind and route.",
            )?,
            objects: counter(
                "ncserverd_session_objects_total",
                "Mutable objects sent whole.",
            )?,
            unread: counter(
                "ncserverd_session_unread_total",
                "Objects and hashes given up because their peer read nothing of them for \
                 session.stall_timeout, or while others needed the room.",
            )?,
            discarded: counter(
                "ncserverd_session_discarded_blocks_total",
                "Blocks claimed for a REQUEST that had ended before they were sent.",
            )?,
            requests: counter(
                "ncserverd_session_requests_total",
                "REQUESTs for blocks of a generation.",
            )?,
            refused: counter(
                "ncserverd_session_refused_total",
                "GETs, SUBSCRIBEs and REQUESTs refused.",
            )?,
            useless: counter(
                "ncserverd_session_useless_blocks_total",
                "Redundant blocks, as peers report them.",
            )?,
            lost: counter(
                "ncserverd_session_lost_datagrams_total",
                "Datagrams lost, as peers report them.",
            )?,
            late: counter(
                "ncserverd_session_late_requests_total",
                "REQUESTs whose deadline passed before completion.",
            )?,
            moved: counter(
                "ncserverd_session_moved_requests_total",
                "REQUESTs that moved to a stream because their blocks no longer fitted a datagram.",
            )?,
            idle: counter(
                "ncserverd_session_idle_requests_total",
                "REQUESTs ended because they received no credit for session.stall_timeout.",
            )?,
            evicted: counter(
                "ncserverd_session_evicted_requests_total",
                "REQUESTs ended because their segment was evicted.",
            )?,
            unleased: counter(
                "ncserverd_session_unleased_requests_total",
                "REQUESTs rejected because their session, address or token already had its maximum \
                 of the store in use.",
            )?,
            lapsed: counter(
                "ncserverd_session_lapsed_total",
                "Tokens or certificates that became invalid during a session.",
            )?,
            hashes: Answered::new(
                registry,
                "ncserverd_session_hashes_total",
                "Requests for block hashes of a segment (GET_HASHES), by result.",
                ["answered", "refused"],
            )?,
            checks: Answered::new(
                registry,
                "ncserverd_session_checks_total",
                "Requests for secret checksums of a generation (GET_CHECKS), by result.",
                ["answered", "refused"],
            )?,
            blames: Answered::new(
                registry,
                "ncserverd_session_blames_total",
                "Reports by peers that others sent wrong blocks: heard, or ignored because the \
                 peer sent too many or is not admitted.",
                ["heard", "ignored"],
            )?,
            signals: Answered::new(
                registry,
                "ncserverd_session_signals_total",
                "Messages of web pages to other pages (SIGNAL): heard, or ignored because the page \
                 sent too many or does not serve others.",
                ["heard", "ignored"],
            )?,
            unadmitted: counter(
                "ncserverd_session_unadmitted_total",
                "Sessions closed because the peer had no valid token, or no longer had one.",
            )?,
            first_block_seconds: register::histogram(
                registry,
                "ncserverd_session_first_block_seconds",
                "Server time to the first block of a live segment that a peer waited for.",
                &[
                    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
                ],
            )?,
            audience: Audience::new(registry)?,
        })
    }

    /// Counts blocks handed to QUIC.
    pub(super) fn count_sent(&self, sent: &Sent, route: Route) {
        for (is_source, (blocks, bytes)) in [(false, sent.coded), (true, sent.source)] {
            if blocks > 0 {
                self.sent.of(is_source, route).inc_by(blocks);
                self.sent_bytes.of(is_source, route).inc_by(bytes);
            }
        }
    }

    /// Adds the counts of a session's state machine.
    pub fn add(&self, tally: Tally) {
        if tally == Tally::default() {
            return;
        }
        let Tally {
            requests,
            useless,
            lost,
            late,
            moved,
            refused,
            idle,
            evicted,
            unleased,
            lapsed,
            hashes,
            checks,
            blames,
            signals,
        } = tally;
        self.requests.inc_by(requests);
        self.useless.inc_by(useless);
        self.lost.inc_by(lost);
        self.late.inc_by(late);
        self.moved.inc_by(moved);
        self.refused.inc_by(refused);
        self.idle.inc_by(idle);
        self.evicted.inc_by(evicted);
        self.unleased.inc_by(unleased);
        self.lapsed.inc_by(lapsed);
        self.hashes.add(hashes);
        self.checks.add(checks);
        self.blames.add(blames);
        self.signals.add(signals);
    }
}

impl Sent {
    /// Adds a block that is sent with `payload` bytes.
    pub(super) fn add(&mut self, vector: &Vector, payload: usize) {
        let (blocks, bytes) = if matches!(vector, Vector::Source(_)) {
            &mut self.source
        } else {
            &mut self.coded
        };
        *blocks += 1;
        *bytes += payload as u64;
    }
}

impl Answered {
    fn new(
        registry: &Registry,
        name: &str,
        help: &str,
        [yes, no]: [&str; 2],
    ) -> Result<Self, Error> {
        let all = register::counters(registry, name, help, &["result"])?;
        Ok(Self {
            yes: all.with_label_values(&[yes]),
            no: all.with_label_values(&[no]),
        })
    }

    fn add(&self, (yes, no): (u64, u64)) {
        self.yes.inc_by(yes);
        self.no.inc_by(no);
    }
}

impl SentCounters {
    fn new(registry: &Registry, name: &str, help: &str) -> Result<Self, Error> {
        let all = register::counters(registry, name, help, &["kind", "route"])?;
        Ok(Self {
            coded_datagram: all.with_label_values(&["coded", "datagram"]),
            coded_stream: all.with_label_values(&["coded", "stream"]),
            source_datagram: all.with_label_values(&["source", "datagram"]),
            source_stream: all.with_label_values(&["source", "stream"]),
        })
    }

    fn of(&self, is_source: bool, route: Route) -> &IntCounter {
        match (is_source, route) {
            (true, Route::Datagram) => &self.source_datagram,
            (true, Route::Stream) => &self.source_stream,
            (false, Route::Datagram) => &self.coded_datagram,
            (false, Route::Stream) => &self.coded_stream,
        }
    }
}
