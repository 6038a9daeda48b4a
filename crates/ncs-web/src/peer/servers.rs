//! Servers that other servers have named, as a page turns to them.

use ncs_proto::peer::SourceId;
use ncs_proto::peer::alternates::{Alternates, Health, Reach, Step};
use ncs_proto::sorted::SortedSet;
use ncs_proto::time::Instant;
use ncs_proto::wire::message::{Alternate, is_server_address};
use ncs_proto::wire::{CloseCode, elsewhere};

use super::{Event, Peer};

/// The servers of a page, and what it is about to do with them.
#[derive(Debug)]
pub(super) struct Servers {
    alternates: Alternates,
    /// All that are in use: those of the page, and alternates.
    ids: Vec<SourceId>,
    /// Alternates without a connection, whose last attempt has failed.
    failed: SortedSet<SourceId>,
    /// Servers that are left, and closed when they owe nothing.
    left: SortedSet<SourceId>,
    /// Servers of the page that have lied: they are not connected again.
    lying: SortedSet<SourceId>,
    /// How all were at the last look.
    seen: Vec<(SourceId, Health)>,
}

impl Servers {
    pub(super) fn new() -> Self {
        Self {
            alternates: Alternates::new([]),
            ids: Vec::new(),
            failed: SortedSet::new(),
            left: SortedSet::new(),
            lying: SortedSet::new(),
            seen: Vec::new(),
        }
    }

    /// Whether another server has named this one.
    pub(super) fn is_alternate(&self, source: SourceId) -> bool {
        self.alternates.is_one(source)
    }

    /// Whether silence is worth noticing, because there are others.
    pub(super) fn are_known(&self) -> bool {
        self.alternates.are_known()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.alternates.due()
    }

    pub(super) fn connected(&mut self, source: SourceId) {
        self.failed.remove(&source);
    }

    /// Returns whether it was left, and is not to be connected again.
    pub(super) fn disconnected(&mut self, source: SourceId) -> bool {
        if self.is_alternate(source) {
            self.failed.insert(source);
        }
        self.left.remove(&source)
    }

    /// A server has lied: it is not tried again, and nobody whom it has named.
    pub(super) fn ban(&mut self, now: Instant, source: SourceId) {
        if self.is_alternate(source) {
            self.alternates.ban(source);
        } else {
            self.lying.insert(source);
        }
        self.told(now, source, false, Vec::new());
    }

    pub(super) fn told(&mut self, now: Instant, by: SourceId, moves: bool, named: Vec<Alternate>) {
        self.alternates.told(now, by, moves, named);
        self.seen.clear();
    }
}

impl Peer {
    /// The servers of the page, `host:port` each. False, and nothing is changed, if one is none.
    /// Without this call, no other server is turned to.
    pub fn set_servers(&mut self, addresses: &[&str]) -> bool {
        if !addresses.iter().all(|address| is_server_address(address)) {
            return false;
        }
        let server = |address: &&str| Alternate {
            address: (*address).to_owned(),
            identity: None,
        };
        self.servers.alternates = Alternates::new(addresses.iter().map(server));
        self.servers.ids = (0..).map(SourceId).take(addresses.len()).collect();
        true
    }

    /// A server has closed the connection with this code of section 9, and may have named others.
    pub fn closed(&mut self, now: Instant, source: SourceId, code: u64, reason: &str) {
        let code = CloseCode::from_quic(code);
        if let Some(CloseCode::Overload | CloseCode::GoingAway) = code {
            let named = elsewhere::read(reason);
            if !named.is_empty() {
                self.servers.told(now, source, true, named);
            }
        }
    }

    /// Looks how the servers are, and turns to others where that is needed.
    pub(super) fn look(&mut self, now: Instant) {
        self.close_left();
        let servers = &self.servers;
        if !servers.alternates.are_known() && !servers.alternates.are_used() {
            return;
        }
        let ids = servers.ids.iter().copied();
        let used = ids.filter(|source| !servers.alternates.rests(*source));
        let health = used.map(|source| (source, self.health(source)));
        let health: Vec<(SourceId, Health)> = health.collect();
        let is_due = servers.due().is_some_and(|due| due <= now);
        if health == servers.seen && !is_due {
            return;
        }
        let steps = self.servers.alternates.look(now, &health);
        self.servers.seen = health;
        for step in steps {
            self.carry_out(step);
        }
    }

    fn health(&self, source: SourceId) -> Health {
        let servers = &self.servers;
        let comes = || servers.is_alternate(source) && !servers.failed.contains(&source);
        let reach = match self.sources.contains_key(&source) {
            true => Reach::Connected {
                is_mute: self.proto.is_silent(source),
            },
            false if comes() => Reach::Coming,
            false => Reach::Down,
        };
        self.proto.health(source, reach)
    }

    fn carry_out(&mut self, step: Step) {
        // The state of the others has changed with it.
        self.servers.seen.clear();
        match step {
            Step::Open { source, server, by } => {
                self.servers.ids.push(source);
                self.events.push_back(Event::Open { source, server, by });
            }
            Step::Leave(source) => {
                self.proto.leave_source(source);
                self.servers.left.insert(source);
                self.close_left();
            }
            Step::Rest(source) | Step::Resume(source) if self.servers.lying.contains(&source) => {}
            Step::Rest(source) => self.events.push_back(Event::Rest(source)),
            Step::Resume(source) => self.events.push_back(Event::Resume(source)),
            Step::Forget(source) => {
                self.servers.failed.remove(&source);
                self.servers.ids.retain(|other| *other != source);
                self.events.push_back(Event::Forget(source));
            }
        }
    }

    /// Closes servers that were left and owe nothing more, or say nothing more.
    fn close_left(&mut self) {
        let is_over = |source: &&SourceId| {
            let is_connected = self.sources.contains_key(source);
            let is_asked = self.proto.is_leaving(**source) && !self.proto.is_quiet_at(**source);
            !is_connected || !is_asked || self.proto.is_silent(**source)
        };
        let over: Vec<SourceId> = self.servers.left.iter().filter(is_over).copied().collect();
        for source in over {
            self.servers.left.remove(&source);
            self.events.push_back(Event::Rest(source));
        }
    }
}
