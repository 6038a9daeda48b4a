//! Counts of a fleet: the connections and the bytes a second of a token's holder, at all servers.
//!
//! Each holder has an *owner* among the servers that live, by its number: the one with the highest
//! weight. Servers tell the owner what its holders use at them ([`local`]), if these have a limit.
//! The owner adds it up, and tells the servers of a holder its shares where it is at several
//! ([`books`]). No viewer waits for this: a server admits by what it knows, and closes the newest
//! connections when it learns of too many.
//!
//! No I/O and no clock here. Messages ([`wire`]) may be lost, and come twice or late. Each has the
//! number of the one before it, so that its receiver notices what it has missed: it asks for
//! everything anew, and counts nothing of that server against others until it comes. What is told
//! is told again from time to time, and what nobody tells any more ends by itself.
//!
//! In a partition each part has owners of its own, which count what they reach. So each part admits
//! up to the limit, and when the parts see each other again, the newest connections go.

mod books;
mod local;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use ncs_serve::admission::rolls::{Share, Use};

use super::beat::Name;
use super::entries::Unfit;
use super::rendezvous::{hash, weight};
use books::Books;
use local::{Local, REPEAT};
use wire::{Head, Message, SHARES_MAX, Told};

/// The time between two rounds.
pub const ROUND: Duration = Duration::from_millis(500);
/// A server whose last beat is older is not counted against others.
pub const LATE_AFTER: Duration = Duration::from_secs(3);

/// What a server tells and knows of holders with limits.
#[derive(Debug)]
pub struct Counts {
    own: Name,
    started_ms: u64,
    /// The servers that count, this one among them.
    peers: BTreeMap<Name, Peer>,
    /// Messages written so far.
    written: u64,
    local: Local,
    books: Books,
    expired_at: Option<Instant>,
    messages: VecDeque<(Name, Vec<u8>)>,
    shares: VecDeque<(u128, Share)>,
}

/// A server that counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: Name,
    /// When its process started, by its beats.
    pub started_ms: u64,
    /// Whether its last beat is older than [`LATE_AFTER`].
    pub is_late: bool,
}

#[derive(Debug)]
struct Peer {
    hash: u64,
    started_ms: u64,
    is_late: bool,
    /// The number of the last message to it, and when that was written.
    written: u64,
    written_at: Option<Instant>,
    /// When it was last told of a use.
    told_at: Option<Instant>,
    /// Whether the next telling has all uses, whether it was asked for, and when the last was.
    needs_all: bool,
    is_asked: bool,
    told_all_at: Option<Instant>,
    /// The number of the last message from it.
    heard: u64,
    /// Whether one is missing, and when it was asked for all.
    has_gap: bool,
    asked_at: Option<Instant>,
}

impl Peer {
    fn new(name: &Name, started_ms: u64) -> Self {
        Self {
            hash: hash(name),
            started_ms,
            is_late: false,
            written: 0,
            written_at: None,
            told_at: None,
            needs_all: true,
            is_asked: false,
            told_all_at: None,
            heard: 0,
            has_gap: false,
            asked_at: None,
        }
    }
}

/// Numbers of what is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Holders with a limit that use this server, or have a share of it.
    pub here: usize,
    /// Holders that this server counts for the fleet.
    pub owned: usize,
    /// Those of them that are at several servers.
    pub shared: usize,
}

impl Counts {
    /// A server that knows nobody but itself.
    pub fn new(own: Name, started_ms: u64) -> Self {
        let peers = BTreeMap::from([(own.clone(), Peer::new(&own, started_ms))]);
        Self {
            own,
            started_ms,
            peers,
            written: 0,
            local: Local::default(),
            books: Books::default(),
            expired_at: None,
            messages: VecDeque::new(),
            shares: VecDeque::new(),
        }
    }

    /// These servers live and count now. This one always does.
    pub fn set_members(&mut self, now: Instant, members: impl IntoIterator<Item = Member>) {
        let own = Member {
            name: self.own.clone(),
            started_ms: self.started_ms,
            is_late: false,
        };
        let members = members.into_iter().chain([own]);
        let members: BTreeMap<Name, Member> = members
            .map(|member| (member.name.clone(), member))
            .collect();
        let is_same = |name: &Name, peer: &Peer| {
            let member = members.get(name);
            member.is_some_and(|member| member.started_ms == peer.started_ms)
        };
        let gone = self
            .peers
            .iter()
            .filter(|(name, peer)| !is_same(name, peer));
        let gone: Vec<Name> = gone.map(|(name, _)| name.clone()).collect();
        for name in &gone {
            self.peers.remove(name);
            self.books.drop_server(name);
        }
        let mut come = BTreeSet::new();
        for (name, member) in members {
            if let Some(peer) = self.peers.get_mut(&name) {
                if peer.is_late != member.is_late {
                    peer.is_late = member.is_late;
                    self.books.look_at(&name);
                }
            } else {
                let mut peer = Peer::new(&name, member.started_ms);
                peer.is_late = member.is_late;
                self.peers.insert(name.clone(), peer);
                come.insert(name);
            }
        }
        if gone.is_empty() && come.is_empty() {
            return;
        }
        let peers = &self.peers;
        let mut left: BTreeMap<Name, Vec<Told>> = BTreeMap::new();
        for (owner, told) in self.local.assign(|holder| owner(peers, holder)) {
            left.entry(owner).or_default().push(told);
        }
        // A process that has taken over a name knows nothing.
        self.local.retell(|owner| come.contains(owner));
        for (owner, told) in left {
            self.tell(now, &owner, told);
        }
    }

    /// This is what a holder uses now at this server. To be said of holders that change, and at
    /// each round of those in [`Counts::flowing`].
    pub fn note(&mut self, now: Instant, used: Use) {
        self.local.note(now, used);
    }

    /// Holders whose bytes this server shares with others.
    pub fn flowing(&self) -> impl Iterator<Item = u128> {
        self.local.flowing()
    }

    /// Tells what there is to tell, and decides. Call it every [`ROUND`]; then ask for messages and
    /// shares.
    pub fn round(&mut self, now: Instant) {
        for holder in self.local.expire(now) {
            self.shares.push_back((holder, Share::default()));
        }
        if self.expired_at.is_none_or(|at| at + EXPIRE_EVERY <= now) {
            self.expired_at = Some(now);
            self.books.expire(now);
        }
        let peers = &self.peers;
        let mut told = self.local.tell(now, |holder| owner(peers, holder));
        for (name, peer) in &self.peers {
            if *name != self.own && peer.is_owed(now) {
                told.entry(name.clone()).or_default();
            }
        }
        for (to, told) in told {
            self.tell(now, &to, told);
        }
        let lacking = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_to_be_asked(now));
        let lacking: Vec<Name> = lacking.map(|(name, _)| name.clone()).collect();
        for name in lacking {
            self.write(now, &name, &Message::Again);
            if let Some(peer) = self.peers.get_mut(&name) {
                peer.asked_at = Some(now);
            }
        }
        let counts = |name: &Name| {
            let peer = self.peers.get(name);
            peer.is_some_and(|peer| !peer.is_late && !peer.has_gap)
        };
        for (to, shares) in self.books.decide(now, counts) {
            if to == self.own {
                self.give(now, &to, shares);
                continue;
            }
            for shares in shares.chunks(SHARES_MAX) {
                self.write(now, &to, &Message::Shares(shares.to_vec()));
            }
        }
    }

    /// Takes a message from a server. It counts if the server lives, and is the process that beats.
    pub fn take(&mut self, now: Instant, from: &Name, bytes: &[u8]) -> Result<(), Unfit> {
        let (head, message) = Message::read(bytes)?;
        let peer = self.peers.get_mut(from).filter(|_| *from != self.own);
        let Some(peer) = peer.filter(|peer| peer.started_ms == head.started_ms) else {
            return Ok(());
        };
        if head.number <= peer.heard {
            // Twice, or late.
            return Ok(());
        }
        peer.has_gap |= head.previous != peer.heard;
        peer.heard = head.number;
        match message {
            Message::Uses { is_anew, told } => {
                if is_anew {
                    peer.has_gap = false;
                    self.books.drop_server(from);
                }
                told.into_iter()
                    .for_each(|told| self.books.take(now, from, told));
            }
            Message::Shares(shares) => self.give(now, from, shares),
            Message::Again => {
                let is_recent = |at: Instant| at + ASK_EVERY > now;
                if !peer.told_all_at.is_some_and(is_recent) {
                    (peer.needs_all, peer.is_asked) = (true, true);
                    self.local.retell(|owner| owner == from);
                }
            }
        }
        Ok(())
    }

    /// The next message, and the server that it is for.
    pub fn poll_message(&mut self) -> Option<(Name, Vec<u8>)> {
        self.messages.pop_front()
    }

    /// The next change of a share of this server. [`Share::default`]: all of the holder's limits.
    pub fn poll_share(&mut self) -> Option<(u128, Share)> {
        self.shares.pop_front()
    }

    /// What is counted now.
    pub fn tally(&self) -> Tally {
        let (owned, shared) = self.books.len();
        Tally {
            here: self.local.len(),
            owned,
            shared,
        }
    }

    /// Tells an owner of uses, which may be none.
    fn tell(&mut self, now: Instant, to: &Name, mut told: Vec<Told>) {
        if *to == self.own {
            told.into_iter()
                .for_each(|told| self.books.take(now, to, told));
            return;
        }
        let Some(peer) = self.peers.get_mut(to) else {
            return;
        };
        if !told.is_empty() {
            peer.told_at = Some(now);
        }
        let mut is_anew = std::mem::take(&mut peer.needs_all);
        peer.is_asked = false;
        if is_anew {
            peer.told_all_at = Some(now);
        }
        loop {
            let rest = told.split_off(Message::fit(&told));
            self.write(now, to, &Message::Uses { is_anew, told });
            (told, is_anew) = (rest, false);
            if told.is_empty() {
                return;
            }
        }
    }

    fn write(&mut self, now: Instant, to: &Name, message: &Message) {
        let Some(peer) = self.peers.get_mut(to) else {
            return;
        };
        self.written += 1;
        let head = Head {
            started_ms: self.started_ms,
            number: self.written,
            previous: std::mem::replace(&mut peer.written, self.written),
        };
        peer.written_at = Some(now);
        self.messages.push_back((to.clone(), message.write(head)));
    }

    /// Takes shares that an owner has decided.
    fn give(&mut self, now: Instant, from: &Name, shares: Vec<(u128, Share)>) {
        for (holder, share) in shares {
            if self.local.take(now, from, holder, share) {
                self.shares.push_back((holder, share));
            }
        }
    }
}

impl Peer {
    /// Whether it has to be sent something: it has asked, or would not notice that the last message
    /// was lost.
    fn is_owed(&self, now: Instant) -> bool {
        let is_recent = |at: Instant| at + REPEAT + HEARTBEAT > now;
        let is_quiet = self.written_at.is_none_or(|at| at + HEARTBEAT <= now);
        self.is_asked || (is_quiet && self.told_at.is_some_and(is_recent))
    }

    /// Whether it has to tell everything anew.
    fn is_to_be_asked(&self, now: Instant) -> bool {
        self.has_gap && self.asked_at.is_none_or(|at| at + ASK_EVERY <= now)
    }
}

/// The server that counts a holder.
fn owner(peers: &BTreeMap<Name, Peer>, holder: u128) -> Option<Name> {
    let best = peers
        .iter()
        .max_by_key(|(_, peer)| weight(peer.hash, holder));
    best.map(|(name, _)| name.clone())
}

/// The longest silence towards a server that was told of a use.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// The least time between two requests to tell everything anew.
const ASK_EVERY: Duration = Duration::from_secs(2);
const EXPIRE_EVERY: Duration = Duration::from_secs(5);
