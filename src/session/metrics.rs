//! What the sessions count, all together: no label names a peer. What they count of each stream is the [`Audience`]'s.

use prometheus::{Error, Histogram, IntCounter, IntGauge, Registry};

use super::Audience;
use super::proto::{Route, Tally};
use crate::block::Vector;
use crate::telemetry::register;

/// Counters of all sessions.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Open sessions.
    pub sessions: IntGauge,
    /// Sessions begun.
    pub opened: IntCounter,
    /// Sessions closed because the peer broke the protocol or a limit.
    pub violations: IntCounter,
    sent: SentCounters,
    sent_bytes: SentCounters,
    /// Objects sent whole.
    pub objects: IntCounter,
    /// Objects and hashes given up because the peer read none of them.
    pub unread: IntCounter,
    /// Blocks claimed for a request that had ended when they were to leave.
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
    /// Sessions closed because the peer had no token that counts, or certificate.
    pub unadmitted: IntCounter,
    /// How long the server took for the first block of a live segment that somebody waited for.
    pub first_block_seconds: Histogram,
    /// The figures of each stream.
    pub audience: Audience,
}

/// What was done, and what was not.
#[derive(Debug, Clone)]
struct Answered {
    yes: IntCounter,
    no: IntCounter,
}

/// Blocks that leave in one go, and bytes of their payloads. They are counted together: the counters are every session's.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) coded: (u64, u64),
    pub(super) source: (u64, u64),
}

/// One counter for each kind of block and way to travel.
#[derive(Debug, Clone)]
struct SentCounters {
    coded_datagram: IntCounter,
    coded_stream: IntCounter,
    source_datagram: IntCounter,
    source_stream: IntCounter,
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> Result<Self, Error> {
        let counter = |name: &str, help: &str| register::counter(registry, name, help);
        Ok(Self {
            sessions: register::gauge(registry, "ncserverd_session_open_sessions", "Open sessions.")?,
            opened: counter("ncserverd_session_opened_total", "Sessions begun.")?,
            violations: counter(
                "ncserverd_session_violations_total",
                "Sessions closed because the peer broke the protocol or a limit.",
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
            objects: counter("ncserverd_session_objects_total", "Mutable objects sent whole.")?,
            unread: counter(
                "ncserverd_session_unread_total",
                "Objects and hashes given up because their peer read none of them for session.stall_timeout, or while others needed the room.",
            )?,
            discarded: counter(
                "ncserverd_session_discarded_blocks_total",
                "Blocks claimed for a request that had ended when they were to leave.",
            )?,
            requests: counter("ncserverd_session_requests_total", "Requests for blocks of a generation.")?,
            refused: counter("ncserverd_session_refused_total", "GETs, SUBSCRIBEs and REQUESTs refused.")?,
            useless: counter("ncserverd_session_useless_blocks_total", "Blocks that brought nothing, as peers report them.")?,
            lost: counter("ncserverd_session_lost_datagrams_total", "Datagrams that never came, as peers report them.")?,
            late: counter("ncserverd_session_late_requests_total", "Requests that met their deadline before their end.")?,
            moved: counter(
                "ncserverd_session_moved_requests_total",
                "Requests that went on as a stream because their blocks no longer fitted a datagram.",
            )?,
            idle: counter(
                "ncserverd_session_idle_requests_total",
                "Requests ended because no credit came for them for session.stall_timeout.",
            )?,
            evicted: counter("ncserverd_session_evicted_requests_total", "Requests ended because their segment was evicted.")?,
            unleased: counter(
                "ncserverd_session_unleased_requests_total",
                "Requests rejected because their session, address or token had as much of the store in use as it may have.",
            )?,
            lapsed: counter(
                "ncserverd_session_lapsed_total",
                "Times that a session's token or certificate stopped counting while it stood.",
            )?,
            hashes: Answered::new(
                registry,
                "ncserverd_session_hashes_total",
                "Questions for the hashes of a segment's blocks, by what became of them.",
                ["answered", "refused"],
            )?,
            checks: Answered::new(
                registry,
                "ncserverd_session_checks_total",
                "Questions for secret checksums of a generation, by what became of them.",
                ["answered", "refused"],
            )?,
            blames: Answered::new(
                registry,
                "ncserverd_session_blames_total",
                "Reports of peers that others have sent them wrong blocks: heard, or ignored because a peer had too many or is not admitted.",
                ["heard", "ignored"],
            )?,
            unadmitted: counter(
                "ncserverd_session_unadmitted_total",
                "Sessions closed because the peer had no token that counts, or none any more.",
            )?,
            first_block_seconds: register::histogram(
                registry,
                "ncserverd_session_first_block_seconds",
                "Time that the server took for the first block of a live segment that a peer waited for.",
                &[0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0],
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

    /// Adds what a session's state machine counted.
    pub fn add(&self, tally: Tally) {
        if tally == Tally::default() {
            return;
        }
        let Tally { requests, useless, lost, late, moved, refused, idle, evicted, unleased, lapsed, hashes, checks, blames } =
            tally;
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
    }
}

impl Sent {
    /// One more block, of which so many bytes leave.
    pub(super) fn add(&mut self, vector: &Vector, payload: usize) {
        let (blocks, bytes) = if matches!(vector, Vector::Source(_)) { &mut self.source } else { &mut self.coded };
        *blocks += 1;
        *bytes += payload as u64;
    }
}

impl Answered {
    fn new(registry: &Registry, name: &str, help: &str, [yes, no]: [&str; 2]) -> Result<Self, Error> {
        let all = register::counters(registry, name, help, &["result"])?;
        Ok(Self { yes: all.with_label_values(&[yes]), no: all.with_label_values(&[no]) })
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
