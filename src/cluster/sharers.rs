//! Peers that serve others, across the servers of a fleet.
//!
//! A *circle* is a stream, in one network if its policy requires that. It belongs to one of
//! [`SHARDS`] shards, and a shard to the two servers with the highest weights for it: its *owner*
//! and the next one, which takes over when the owner is gone. A server tells both some of its own
//! peers in the circle, and asks the owner for those of others where it has too few ([`asked`]).
//! Owners keep what they are told in memory ([`owned`]). Viewers do not wait for an answer: they
//! are told what is known.
//!
//! No I/O and no clock here. A message ([`wire`]) has all that its sender has in a circle, so one
//! that is lost, late or repeated is made good by the next, and everything is told again from time
//! to time. Peers of a server are forgotten when it is dead, or started anew: they live as long as
//! its beats come. In a partition each side has owners of its own, which know the peers of that
//! side.

mod asked;
mod owned;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ncs_serve::directory::{Circle, SHARERS_MAX, Sharer};
use rand::rngs::StdRng;

use super::beat::Name;
use super::entries::Unfit;
use super::rendezvous::{hash, weight};
use asked::Asked;
use owned::{Owned, SERVER_MAX};
use wire::{ASKED_MAX, Found, Message, ServerId, batches, found_bytes, told_bytes};

/// Parts into which circles are divided among servers.
pub const SHARDS: u32 = 1024;
/// The time after which a circle is told again although it is the same.
const REPEAT: Duration = Duration::from_secs(30);
/// The time after which a server that has come is told again what it owns: at first it may not have
/// heard a beat of the one that tells, and takes nothing from it.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
/// Circles and peers that are told in one round: more wait for the next, because queues between
/// servers are short.
const TOLD_PER_ROUND: usize = 1000;
/// Messages that wait for the next round. Further answers are dropped.
const MESSAGES_MAX: usize = 4096;
const EXPIRE_EVERY: Duration = Duration::from_secs(5);

/// What a server tells and knows of peers that serve.
#[derive(Debug)]
pub struct Sharers {
    own: ServerId,
    own_name: Name,
    random: StdRng,
    /// The servers that take part, this one among them.
    names: HashMap<ServerId, Name>,
    /// The owners of each shard.
    shards: Vec<Owners>,
    told: HashMap<Circle, Told>,
    /// The number of this server's peers in all circles.
    here: usize,
    /// Servers that have come, and when.
    come: VecDeque<(Instant, ServerId)>,
    /// Circles to be told of.
    pending: VecDeque<Circle>,
    /// When circles were told of, the earliest first.
    repeats: VecDeque<(Instant, Circle)>,
    owned: Owned,
    asked: Asked,
    expired_at: Option<Instant>,
    messages: VecDeque<(Name, Vec<u8>)>,
    found: VecDeque<(Circle, Vec<Sharer>)>,
}

/// The owner of a shard, and the next one.
type Owners = [Option<ServerId>; 2];

/// This server's peers in a circle.
#[derive(Debug, Default)]
struct Told {
    sharers: Vec<Sharer>,
    is_pending: bool,
    told_at: Option<Instant>,
}

/// Numbers of peers that serve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Those of this server of which others are told. A peer counts once in each circle.
    pub here: usize,
    /// Those that this server keeps for the fleet, of all servers.
    pub owned: usize,
    /// Those of other servers that are named here.
    pub found: usize,
}

impl Sharers {
    /// A server that knows nobody but itself. Choices are drawn from `random`.
    pub fn new(own: Name, started_ms: u64, random: StdRng) -> Self {
        let id = server_id(&own, started_ms);
        let names = HashMap::from([(id, own.clone())]);
        Self {
            own: id,
            own_name: own,
            random,
            shards: shards(&names),
            names,
            told: HashMap::new(),
            here: 0,
            come: VecDeque::new(),
            pending: VecDeque::new(),
            repeats: VecDeque::new(),
            owned: Owned::default(),
            asked: Asked::default(),
            expired_at: None,
            messages: VecDeque::new(),
            found: VecDeque::new(),
        }
    }

    /// These servers live and take part, with the starts of their processes. This one always does.
    pub fn set_members(&mut self, now: Instant, members: impl IntoIterator<Item = (Name, u64)>) {
        let others = members.into_iter();
        let others = others.filter(|(name, _)| *name != self.own_name);
        let names: HashMap<ServerId, Name> = others
            .map(|(name, started_ms)| (server_id(&name, started_ms), name))
            .chain([(self.own, self.own_name.clone())])
            .collect();
        if names == self.names {
            return;
        }
        let come = names.keys().filter(|id| !self.names.contains_key(id));
        self.come.extend(come.map(|id| (now, *id)));
        self.names = names;
        let before = std::mem::replace(&mut self.shards, shards(&self.names));
        let pairs = before.iter().zip(&self.shards);
        let moved: Vec<bool> = pairs.map(|(before, after)| before != after).collect();
        self.retell(&moved);
        let names = &self.names;
        self.owned.retain(|server| names.contains_key(&server));
        let changed = self.asked.retain(|server| names.contains_key(&server));
        self.show(changed);
    }

    /// This server's peers in a circle are these now, at most [`SHARERS_MAX`]. To be said of
    /// circles that change, and of those that are [due](Self::due).
    pub fn note(&mut self, circle: Circle, mut sharers: Vec<Sharer>) {
        let before = self.told.get(&circle);
        let before = before.map_or(0, |told| told.sharers.len());
        let others = self.here - before;
        sharers.truncate(SHARERS_MAX.min(SERVER_MAX - others));
        if before == 0 && sharers.is_empty() {
            return;
        }
        self.here = others + sharers.len();
        sharers.sort_unstable_by_key(|sharer| (sharer.identity, sharer.address));
        let told = self.told.entry(circle).or_default();
        if told.sharers != sharers {
            told.sharers = sharers;
            self.queue(circle);
        }
    }

    /// Circles that are to be told again.
    pub fn due(&mut self, now: Instant) -> Vec<Circle> {
        let mut due = Vec::new();
        while let Some((told_at, circle)) = self.repeats.front().copied()
            && told_at + REPEAT <= now
        {
            self.repeats.pop_front();
            let told = self.told.get(&circle);
            if told.is_some_and(|told| told.told_at == Some(told_at)) {
                self.queue(circle);
                due.push(circle);
            }
        }
        due
    }

    /// Viewers of this server would be told of more peers of a circle.
    pub fn want(&mut self, now: Instant, circle: Circle) {
        self.asked.want(now, circle);
    }

    /// Tells and asks. To be called in each round; then ask for messages and for what was found.
    pub fn round(&mut self, now: Instant) {
        if self.expired_at.is_none_or(|at| at + EXPIRE_EVERY <= now) {
            self.expired_at = Some(now);
            self.owned.expire(now);
            let changed = self.asked.expire(now);
            self.show(changed);
        }
        self.settle(now);
        self.tell(now);
        self.ask(now);
    }

    /// Takes a message from a server. It counts if the server lives, and is the process that beats.
    pub fn take(&mut self, now: Instant, from: &Name, bytes: &[u8]) -> Result<(), Unfit> {
        let (sender, message) = Message::read(bytes)?;
        if sender == self.own || self.names.get(&sender) != Some(from) {
            return Ok(());
        }
        match message {
            Message::Told(told) => {
                for (circle, sharers) in told {
                    self.owned.take(now, sender, circle, sharers);
                }
            }
            Message::Asked(circles) => {
                let mut draw = |circle| (circle, self.owned.draw(&mut self.random, circle, sender));
                let found = circles.into_iter().map(&mut draw).collect();
                for found in batches(found, found_bytes) {
                    self.write(sender, &Message::Found(found));
                }
            }
            Message::Found(all) => {
                for (circle, found) in all {
                    if self.owners(circle).contains(&Some(sender)) {
                        self.answer(now, circle, found);
                    }
                }
            }
        }
        Ok(())
    }

    /// The next message, and the server that it is for.
    pub fn poll_message(&mut self) -> Option<(Name, Vec<u8>)> {
        self.messages.pop_front()
    }

    /// The next circle in which other servers have other peers than before, and these.
    pub fn poll_found(&mut self) -> Option<(Circle, Vec<Sharer>)> {
        self.found.pop_front()
    }

    /// What is known now.
    pub fn tally(&self) -> Tally {
        Tally {
            here: self.here,
            owned: self.owned.len(),
            found: self.asked.len(),
        }
    }

    /// The circle is told of in one of the next rounds.
    fn queue(&mut self, circle: Circle) {
        if let Some(told) = self.told.get_mut(&circle)
            && !std::mem::replace(&mut told.is_pending, true)
        {
            self.pending.push_back(circle);
        }
    }

    /// Tells servers that have come again what they own.
    fn settle(&mut self, now: Instant) {
        let is_due = |(at, _): &&(Instant, ServerId)| *at + SETTLED_AFTER <= now;
        let due = self.come.iter().take_while(is_due).count();
        let come = self.come.drain(..due).map(|(_, id)| Some(id));
        let come: HashSet<Option<ServerId>> = come.collect();
        if !come.is_empty() {
            let has_come = |owners: &Owners| owners.iter().any(|owner| come.contains(owner));
            let meant: Vec<bool> = self.shards.iter().map(has_come).collect();
            self.retell(&meant);
        }
    }

    /// The circles of these shards are told of in the next rounds.
    fn retell(&mut self, shards: &[bool]) {
        let circles = self.told.keys().copied();
        let circles: Vec<Circle> = circles.filter(|circle| shards[shard(*circle)]).collect();
        circles.into_iter().for_each(|circle| self.queue(circle));
    }

    fn tell(&mut self, now: Instant) {
        let mut all: BTreeMap<ServerId, Vec<(Circle, Vec<Sharer>)>> = BTreeMap::new();
        let mut left = TOLD_PER_ROUND;
        while left > 0
            && let Some(circle) = self.pending.pop_front()
        {
            let Some(told) = self.told.get_mut(&circle) else {
                continue;
            };
            (told.is_pending, told.told_at) = (false, Some(now));
            let sharers = told.sharers.clone();
            left = left.saturating_sub(1 + sharers.len());
            match sharers.is_empty() {
                true => drop(self.told.remove(&circle)),
                false => self.repeats.push_back((now, circle)),
            }
            for owner in self.owners(circle).into_iter().flatten() {
                if owner == self.own {
                    self.owned.take(now, owner, circle, sharers.clone());
                } else {
                    let told = all.entry(owner).or_default();
                    told.push((circle, sharers.clone()));
                }
            }
        }
        for (owner, told) in all {
            for told in batches(told, told_bytes) {
                self.write(owner, &Message::Told(told));
            }
        }
    }

    /// Asks owners. One that has just become it may know less than the next one, so both are asked
    /// in turn.
    fn ask(&mut self, now: Instant) {
        let mut all: BTreeMap<ServerId, Vec<Circle>> = BTreeMap::new();
        for (circle, asked) in self.asked.ask(now) {
            let owners = self.owners(circle);
            if owners.contains(&Some(self.own)) {
                let found = self.owned.draw(&mut self.random, circle, self.own);
                self.answer(now, circle, found);
            } else if let Some(owner) = owners[asked % owners.len()].or(owners[0]) {
                all.entry(owner).or_default().push(circle);
            }
        }
        for (owner, circles) in all {
            for circles in circles.chunks(ASKED_MAX) {
                self.write(owner, &Message::Asked(circles.to_vec()));
            }
        }
    }

    /// An owner has named these peers of a circle.
    fn answer(&mut self, now: Instant, circle: Circle, mut found: Vec<Found>) {
        found.retain(|(server, _)| *server != self.own && self.names.contains_key(server));
        if self.asked.answer(now, circle, found) {
            self.show([circle]);
        }
    }

    fn show(&mut self, changed: impl IntoIterator<Item = Circle>) {
        for circle in changed {
            self.found.push_back((circle, self.asked.sharers(circle)));
        }
    }

    fn write(&mut self, to: ServerId, message: &Message) {
        if let Some(name) = self.names.get(&to)
            && self.messages.len() < MESSAGES_MAX
        {
            self.messages
                .push_back((name.clone(), message.write(self.own)));
        }
    }

    fn owners(&self, circle: Circle) -> Owners {
        self.shards[shard(circle)]
    }
}

/// The process of a server. All servers have to agree on it.
fn server_id(name: &Name, started_ms: u64) -> ServerId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&started_ms.to_be_bytes());
    hasher.update(name.as_str().as_bytes());
    let hash = hasher.finalize();
    let first = hash.as_bytes().first_chunk();
    ServerId(u64::from_be_bytes(*first.expect("it has 32 bytes")))
}

/// The shard of a circle.
fn shard(circle: Circle) -> usize {
    let shard = circle.0 % u128::from(SHARDS);
    usize::try_from(shard).expect("it is below")
}

/// The owners of all shards. All servers have to agree on them.
fn shards(names: &HashMap<ServerId, Name>) -> Vec<Owners> {
    let servers = names.iter().map(|(id, name)| (hash(name), *id));
    let servers: Vec<(u64, ServerId)> = servers.collect();
    let owners = |shard: u32| {
        let mut best = [None, None];
        for (hash, id) in &servers {
            let this = Some((weight(*hash, shard.into()), *id));
            if this > best[0] {
                best = [this, best[0]];
            } else if this > best[1] {
                best[1] = this;
            }
        }
        best.map(|best| best.map(|(_, id)| id))
    };
    (0..SHARDS).map(owners).collect()
}
