//! The state of the server's side, which the files beside this one work on.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::config::Config;
use super::event::Event;
use super::known::Known;
use super::ledgers::Ledgers;
use super::limits::Limits;
use super::open::Open;
use super::streams::Streams;
use super::tally::Tally;
use crate::admission::Access;
use crate::ring::SessionId;
use crate::time::Instant;
use crate::wire::message::{Alternate, Credential, GetChecks, Hello, Message, Request, VisitId};

/// The server's side of one conversation.
#[derive(Debug)]
pub struct Proto {
    pub(super) session: SessionId,
    pub(super) config: Config,
    pub(super) access: Access,
    /// A credential to be judged.
    pub(super) credential: Option<Credential>,
    pub(super) limits: Limits,
    /// Whether the peer has offered to serve others.
    pub(super) has_offered: bool,
    /// Whether the peer has shown a credential, or was told that it needs one.
    pub(super) knows_credentials: bool,
    /// The visit that HELLO has named, until the driver takes it.
    pub(super) visit: Option<VisitId>,
    pub(super) hello_due: Option<Instant>,
    pub(super) peer: Option<Hello>,
    pub(super) draining: bool,
    /// Whether REQUESTs are carried out without asking for admission.
    pub(super) is_admitted: bool,
    /// The searches of REQUESTs that wait for admission, by ticket.
    pub(super) at_door: Vec<(u64, Event)>,
    pub(super) outbox: VecDeque<Message>,
    pub(super) events: VecDeque<Event>,
    /// GETs and queries whose answer has not left in full.
    pub(super) unanswered: usize,
    pub(super) subscriptions: Vec<u64>,
    /// Whether the peer has named a stream that it may have, and the first one until the driver
    /// takes it.
    pub(super) is_placed: bool,
    pub(super) placed: Option<String>,
    /// What the peer was told of other servers, and whether it is to go to one of them.
    pub(super) alternates: (bool, Vec<Alternate>),
    pub(super) known: Known,
    /// REQUESTs whose segment is looked for, by ticket.
    pub(super) finding: HashMap<u64, Request>,
    /// Queries about segments that wait for the segment, or for the answer, by ticket.
    pub(super) asked: HashMap<u64, Asked>,
    pub(super) next_ticket: u64,
    /// Open requests, by alias.
    pub(super) requests: BTreeMap<u16, Open>,
    /// Requests whose new deadline the ring does not know yet.
    pub(super) rescheduled: BTreeSet<u16>,
    pub(super) ledgers: Ledgers,
    /// When leases were last checked.
    pub(super) looked_at: Instant,
    /// When blocks were last on their way to the peer without its acknowledgement.
    pub(super) unacknowledged_at: Instant,
    pub(super) datagram_max: Option<usize>,
    pub(super) tally: Tally,
    pub(super) streams: Streams,
}

/// A query about a segment.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: u64,
    pub(super) about: About,
    /// The path of the segment, once that is found.
    pub(super) path: Option<Arc<str>>,
}

/// The subject of a query.
#[derive(Debug)]
pub(super) enum About {
    Hashes,
    Checks(GetChecks),
}

impl Proto {
    /// A conversation on a connection that was made at `now`.
    pub fn new(session: SessionId, config: impl Into<Config>, now: Instant) -> Self {
        let config = config.into();
        let mut proto = Self {
            session,
            config,
            access: Access::Free,
            credential: None,
            limits: Limits::new(&config, now),
            has_offered: false,
            knows_credentials: false,
            visit: None,
            hello_due: Some(now + config.hello_timeout),
            peer: None,
            draining: false,
            is_admitted: true,
            at_door: Vec::new(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            unanswered: 0,
            subscriptions: Vec::new(),
            is_placed: false,
            placed: None,
            alternates: (false, Vec::new()),
            known: Known::default(),
            finding: HashMap::new(),
            asked: HashMap::new(),
            next_ticket: 0,
            requests: BTreeMap::new(),
            rescheduled: BTreeSet::new(),
            ledgers: Ledgers::new(session, &config),
            looked_at: now,
            unacknowledged_at: now,
            datagram_max: None,
            tally: Tally::default(),
            streams: Streams::default(),
        };
        proto.send(Message::Hello(config.hello()));
        proto
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: Message) {
        self.outbox.push_back(message);
    }

    /// Counts a query that costs the server as much as this many lookups of a segment.
    pub(super) fn count_question(&mut self, now: Instant, lookups: u32) {
        self.limits.count_question(now, lookups, &self.ledgers);
    }
}
