//! The servers of a fleet, as sessions need them: who should serve a newcomer, and to whom viewers
//! turn when this server cannot.
//!
//! No word passes between servers for that. *Rendezvous hashing* (Thaler and Ravishankar, "Using
//! name-based mappings to increase hit rates", 1998): each server has a weight for each key, the
//! hash of both, so that servers that know the same members agree. When a server goes, only its
//! keys move; when one comes, only those that it takes. The key is the stream and the viewer's
//! network: viewers who can help each other meet at few servers.
//!
//! A newcomer goes to the first server in that order whose load is at most [`LOAD_MAX`] times the
//! mean (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", SODA 2018).
//! Servers that have the stream go before others, and then those of the own zone.
//!
//! Deciding takes no lock: [`Fleet::set`] replaces a table that sessions read.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ncs_net::web::Binding;
use ncs_proto::wire::message::{ALTERNATES_MAX, Alternate};
use tokio::sync::watch;

/// How far a server's load may exceed the mean, as a factor.
pub const LOAD_MAX: f64 = 1.25;
/// The part of its places up to which no server has too much: the first few viewers need not
/// spread.
pub const LOAD_LITTLE: f64 = 0.05;
/// Servers that a viewer is told of, at most. If there is one in another zone, it is among them:
/// what cuts a zone off leaves that one.
pub const TOLD: usize = ALTERNATES_MAX;
/// Viewers that a server which goes away sends to each of the others in a second: an eighth of the
/// handshakes that one takes.
pub const MOVES_PER_SECOND: u32 = 500;

/// Copies of an object that a server sends to others of the fleet, and servers that one asks before
/// the origin.
const FAN_OUT: usize = 3;
const ASKED: usize = 3;
/// Tells the keys of objects from those of viewers.
const OBJECT: u64 = u64::MAX - 1;
/// The same for the marks of streams.
const STREAM: u64 = u64::MAX - 2;

/// A server of the fleet.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its name, unique in the fleet.
    pub name: String,
    /// The part of the network that it is in.
    pub zone: String,
    /// Names the set of its streams; nothing if that is not known.
    pub streams: Option<String>,
    /// The marks of its streams ([`mark`]) in rising order; nothing if they are not known.
    pub marks: Option<Vec<u32>>,
    /// Where programs reach it.
    pub server: Alternate,
    /// The same for web pages, which see another certificate; nothing if it serves none.
    pub page_server: Option<Alternate>,
    /// Viewers that it serves.
    pub viewers: u32,
    /// Viewers that it has room for.
    pub viewers_max: u32,
    /// Whether it takes newcomers.
    pub is_open: bool,
    /// Whether it is going to end.
    pub is_leaving: bool,
    /// Names its last beat.
    pub beat: (u64, u64),
    /// When that came, and the time with which the server issued answers then, in milliseconds
    /// since 1970; nothing if it had issued none.
    pub time: Option<(Instant, u64)>,
}

/// What a session does about other servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Advice {
    /// Whether the peer is to go to the first of them now.
    pub moves: bool,
    /// At most [`TOLD`], best first.
    pub servers: Vec<Alternate>,
}

/// How a server gets an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The servers that it asks before it asks the origin, in their order; none if it is the
    /// object's home. They are nearer to the home than this server: where all know the same
    /// members, the way from server to server ends at the home, and the home sends [`FAN_OUT`]
    /// copies at most.
    pub through: Vec<Alternate>,
    /// The servers that come next in the object's order. As long as the members were others, one of
    /// them may have been its home.
    pub after: Vec<Alternate>,
    /// Names the members among which objects have their homes.
    pub among: u64,
}

/// Names the viewers of one stream and network: a hash of both, and the mark of a known stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64, Option<u32>);

impl Key {
    /// The key of a client of which nothing is known but its address.
    pub fn of_address(address: IpAddr) -> Self {
        Self(Self::new("", address).0, None)
    }

    /// The key of a viewer of this stream at this address. A network is a /24 of IPv4 or a /48 of
    /// IPv6.
    pub fn new(stream: &str, address: IpAddr) -> Self {
        let network = match address.to_canonical() {
            IpAddr::V4(address) => u64::from(address.to_bits() >> 8),
            // The first 48 bits, where no IPv4 network is.
            IpAddr::V6(address) => (address.to_bits() >> 80) as u64 | 1 << 63,
        };
        Self(hash(stream.as_bytes(), network), Some(mark(stream)))
    }
}

/// The number by which servers tell each other that they have a stream of this name. Of two names
/// in four billion it is the same.
pub fn mark(stream: &str) -> u32 {
    // Half of the bits are enough, and are few in a beat.
    let [a, b, c, d, ..] = hash(stream.as_bytes(), STREAM).to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The first 8 bytes of the SHA-256 of both, which all servers compute alike.
fn hash(text: &[u8], number: u64) -> u64 {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    context.update(b"ncserverd 2026 rendezvous");
    context.update(&number.to_le_bytes());
    context.update(text);
    let digest = context.finish();
    let first = digest.as_ref().first_chunk();
    u64::from_le_bytes(*first.expect("a digest has 32 bytes"))
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014): it spreads two random numbers that were combined by exclusive or.
const fn spread(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The servers of a fleet. Clones share it.
#[derive(Debug, Clone)]
pub struct Fleet {
    table: Arc<ArcSwap<Table>>,
    changes: watch::Sender<()>,
    greeted: watch::Sender<Option<Instant>>,
    /// Whether newcomers are sent to the servers that should serve them.
    steers: bool,
}

#[derive(Debug, Default)]
struct Table {
    members: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    member: Member,
    /// Whether it is this server, and whether it is in the zone of this server.
    is_own: bool,
    is_near: bool,
    hash: u64,
    /// Viewers that this server has sent to it since its last beat, which does not count them.
    sent: AtomicU32,
}

impl Entry {
    /// The rank of a server for a viewer, lowest first: servers with the stream, then those of the
    /// zone.
    fn standing(&self, key: Key) -> (bool, bool) {
        (!self.has(key), !self.is_near)
    }

    /// Tells whether the server has the stream. A server with unknown streams has it.
    fn has(&self, key: Key) -> bool {
        match (&self.member.marks, key.1) {
            (Some(marks), Some(mark)) => marks.binary_search(&mark).is_ok(),
            _ => true,
        }
    }

    fn weight(&self, key: Key) -> u64 {
        spread(self.hash ^ key.0)
    }

    fn viewers(&self) -> u32 {
        let sent = self.sent.load(Ordering::Relaxed);
        self.member.viewers.saturating_add(sent)
    }

    /// Where viewers of this binding reach it, if it serves any.
    fn server(&self, binding: Binding) -> Option<&Alternate> {
        match binding {
            Binding::Quic => Some(&self.member.server),
            Binding::Web => self.member.page_server.as_ref(),
        }
    }

    fn takes_newcomers(&self) -> bool {
        self.member.is_open && self.viewers() < self.member.viewers_max
    }

    /// The part of its places that is taken once another viewer has come. One viewer is always
    /// within the bound, because the only place of a small server would be a large part.
    fn with_newcomer(&self) -> f64 {
        match self.viewers() {
            0 => 0.0,
            viewers => f64::from(viewers + 1) / f64::from(self.member.viewers_max.max(1)),
        }
    }
}

impl Fleet {
    /// A fleet without servers. `steers`: newcomers are sent to the servers that should serve them.
    pub fn new(steers: bool) -> Self {
        Self {
            table: Arc::default(),
            changes: watch::Sender::new(()),
            greeted: watch::Sender::new(None),
            steers,
        }
    }

    /// For servers that are alone.
    pub fn alone() -> Self {
        let alone = Self::new(false);
        alone.set_greeted(Instant::now());
        alone
    }

    /// These are the servers now, with `own` among them.
    pub fn set(&self, own: &str, members: impl IntoIterator<Item = Member>) {
        let before = self.table.load_full();
        let members: Vec<Member> = members.into_iter().collect();
        let zone = members.iter().find(|member| member.name == own);
        let zone = zone.map(|own| own.zone.clone());
        let entry = |member: Member| {
            let mut known = before.members.iter();
            let known = known.find(|known| known.member.name == member.name);
            let known = known.filter(|known| known.member.beat == member.beat);
            Entry {
                is_own: member.name == own,
                is_near: zone.as_ref() == Some(&member.zone),
                hash: hash(member.name.as_bytes(), u64::MAX),
                member,
                // The next beat counts them.
                sent: AtomicU32::new(known.map_or(0, |known| known.sent.load(Ordering::Relaxed))),
            }
        };
        let members = members.into_iter().map(entry).collect();
        let after = Table { members };
        let is_news = !after.offers().eq(before.offers());
        self.table.store(Arc::new(after));
        if is_news {
            self.changes.send_replace(());
        }
    }

    /// Told whenever a viewer may have to be told of other servers than before.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Whether another server takes newcomers.
    pub fn has_room_elsewhere(&self) -> bool {
        let table = self.table.load();
        let mut members = table.members.iter();
        members.any(|entry| !entry.is_own && entry.takes_newcomers())
    }

    /// What a newcomer is told, or a viewer after a change. `may_send`: it may be sent to the
    /// server that should serve it, because no other server has sent it here.
    pub fn advise(&self, (key, binding): (Key, Binding), may_send: bool) -> Advice {
        let table = self.table.load();
        let placed = table.placed(key, binding);
        let own = placed.iter().position(|entry| entry.is_own);
        let others = || placed.iter().filter(|entry| !entry.is_own);
        let moves = self.steers && may_send && own != Some(0) && others().next().is_some();
        table.advice(moves, others().copied(), (key, binding))
    }

    /// What a viewer is told for whom this server has no room any more.
    pub fn elsewhere(&self, (key, binding): (Key, Binding)) -> Advice {
        let table = self.table.load();
        let others: Vec<&Entry> = table.others(key, binding).collect();
        table.advice(!others.is_empty(), others.into_iter(), (key, binding))
    }

    /// A client was told to go to the first of these servers: it counts there, although the
    /// server's next beat has not come.
    pub fn count_sent(&self, servers: &[Alternate]) {
        let table = self.table.load();
        let first = servers.first();
        let entry = first.and_then(|first| {
            let mut entries = table.members.iter();
            let is_at = |entry: &Entry, binding| entry.server(binding) == Some(first);
            entries.find(|entry| is_at(entry, Binding::Quic) || is_at(entry, Binding::Web))
        });
        if let Some(entry) = entry {
            entry.sent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How this server gets an object.
    pub fn route(&self, object: &str) -> Route {
        let table = self.table.load();
        let key = Key(hash(object.as_bytes(), OBJECT), None);
        let able = table
            .members
            .iter()
            .filter(|entry| !entry.member.is_leaving);
        let mut ranked: Vec<&Entry> = able.collect();
        ranked.sort_by_cached_key(|entry| Reverse(entry.weight(key)));
        let own = ranked.iter().position(|entry| entry.is_own);
        // Without a place, it is about to end, or alone.
        let rank = own.unwrap_or(ranked.len());
        let parent = rank.checked_sub(1).map(|before| before / FAN_OUT);
        let others = (0..rank).filter(|other| Some(*other) != parent);
        let through = parent.into_iter().chain(others).take(ASKED);
        let after = ranked.iter().skip(rank + 1).take(FAN_OUT);
        let server = |entry: &&Entry| entry.member.server.clone();
        Route {
            through: through.map(|rank| server(&ranked[rank])).collect(),
            after: after.map(server).collect(),
            among: ranked.iter().fold(0, |among, entry| among ^ entry.hash),
        }
    }

    /// The times with which the other servers issue answers now, in milliseconds since 1970, of
    /// those that have issued one. None before they have greeted this server: the first that is
    /// heard is not to decide.
    pub fn times(&self, now: Instant) -> Vec<u64> {
        let is_greeted = self.greeted.borrow().is_some_and(|at| at <= now);
        if !is_greeted {
            return Vec::new();
        }
        let table = self.table.load();
        let others = table.members.iter().filter(|entry| !entry.is_own);
        let times = others.filter_map(|entry| entry.member.time);
        let at_present = times.map(|(heard_at, time_ms)| {
            let since = now.saturating_duration_since(heard_at).as_millis();
            time_ms.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
        });
        at_present.collect()
    }

    /// The others have greeted this server at `at`. Only the first call counts.
    pub fn set_greeted(&self, at: Instant) {
        self.greeted.send_if_modified(|greeted| {
            let is_first = greeted.is_none();
            greeted.get_or_insert(at);
            is_first
        });
    }

    /// The moment from which this server knows the others; nothing before its first beat. It
    /// fetches nothing before that moment.
    pub fn greeted(&self) -> watch::Receiver<Option<Instant>> {
        self.greeted.subscribe()
    }

    /// The number of servers with another set of streams than this one. Unknown sets do not count.
    pub fn unlike(&self) -> usize {
        let table = self.table.load();
        let own = table.members.iter().find(|entry| entry.is_own);
        let Some(own) = own.and_then(|own| own.member.streams.as_ref()) else {
            return 0;
        };
        let sets = table
            .members
            .iter()
            .filter_map(|entry| entry.member.streams.as_ref());
        sets.filter(|set| *set != own).count()
    }

    /// How long a server of so many viewers takes to send them to the others, at a rate that these
    /// can take. Nothing if there is no other server.
    pub fn time_to_leave(&self, viewers: u32) -> Duration {
        let table = self.table.load();
        let others = || table.others(Key(0, None), Binding::Quic);
        let others = match others().filter(|entry| entry.is_near).count() {
            0 => others().count(),
            near => near,
        };
        time_to_move(viewers, u32::try_from(others).unwrap_or(u32::MAX))
    }
}

/// How long so many viewers take to go to so many servers, at a rate that these can take.
pub fn time_to_move(viewers: u32, servers: u32) -> Duration {
    match MOVES_PER_SECOND.saturating_mul(servers) {
        0 => Duration::ZERO,
        rate => Duration::from_secs_f64(f64::from(viewers) / f64::from(rate)),
    }
}

/// The facts of a server by which viewers are told of it: its name, its addresses for programs and
/// for pages, whether it takes newcomers, and the marks of its streams.
type Offer<'a> = (&'a str, [Option<&'a Alternate>; 2], bool, Option<&'a [u32]>);

impl Table {
    /// What of the others a viewer is told, if it is told of them.
    fn offers(&self) -> impl Iterator<Item = Offer<'_>> {
        let others = self.members.iter().filter(|entry| !entry.is_own);
        others.map(|entry| {
            let servers = [Binding::Quic, Binding::Web].map(|binding| entry.server(binding));
            let Member {
                name,
                is_open,
                marks,
                ..
            } = &entry.member;
            (name.as_str(), servers, *is_open, marks.as_deref())
        })
    }

    /// Servers that take a newcomer of this key and binding, best first.
    fn placed(&self, key: Key, binding: Binding) -> Vec<&Entry> {
        let is_able = |entry: &&Entry| entry.takes_newcomers() && entry.server(binding).is_some();
        let able = || self.members.iter().filter(is_able);
        let first = able().map(|entry| entry.standing(key)).min();
        let group = || able().filter(|entry| Some(entry.standing(key)) == first);
        let sum = |of: fn(&Entry) -> u32| group().map(of).map(u64::from).sum::<u64>();
        // With the newcomer.
        let viewers = sum(Entry::viewers) + 1;
        let places = sum(|entry| entry.member.viewers_max).max(1);
        let bound = (LOAD_MAX * viewers as f64 / places as f64).max(LOAD_LITTLE);
        let mut placed: Vec<&Entry> = able().collect();
        placed.sort_by_cached_key(|entry| {
            let is_over = entry.with_newcomer() > bound;
            (entry.standing(key), is_over, Reverse(entry.weight(key)))
        });
        placed
    }

    /// The others that take newcomers, best first.
    fn others(&self, key: Key, binding: Binding) -> impl Iterator<Item = &Entry> {
        let placed = self.placed(key, binding).into_iter();
        placed.filter(|entry| !entry.is_own)
    }

    fn advice<'a>(
        &self,
        moves: bool,
        others: impl Iterator<Item = &'a Entry>,
        (key, binding): (Key, Binding),
    ) -> Advice {
        let is_far = |entry: &Entry| !entry.is_near && entry.has(key);
        let servers = others.filter_map(|entry| Some((is_far(entry), entry.server(binding)?)));
        let servers: Vec<(bool, &Alternate)> = servers.collect();
        let mut told: Vec<&Alternate> = servers.iter().map(|(_, server)| *server).collect();
        told.truncate(TOLD);
        let far = servers.iter().position(|(is_far, _)| *is_far);
        if let (Some(far), Some(last)) = (far.filter(|far| *far >= TOLD), told.last_mut()) {
            *last = servers[far].1;
        }
        Advice {
            moves,
            servers: told.into_iter().cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn member(name: &str) -> Member {
        Member {
            name: name.to_owned(),
            zone: "east".to_owned(),
            streams: None,
            marks: None,
            server: Alternate {
                address: format!("{name}:4443"),
                identity: None,
            },
            page_server: None,
            viewers: 0,
            viewers_max: 1000,
            is_open: true,
            is_leaving: false,
            beat: (0, 0),
            time: None,
        }
    }

    fn members(count: u32) -> Vec<Member> {
        (0..count).map(|n| member(&format!("s{n}"))).collect()
    }

    fn fleet(own: &str, members: &[Member]) -> Fleet {
        let fleet = Fleet::new(true);
        fleet.set(own, members.to_vec());
        fleet
    }

    fn key(number: u32) -> Key {
        Key::new("live", IpAddr::from(number.to_be_bytes()))
    }

    fn program(number: u32) -> (Key, Binding) {
        (key(number), Binding::Quic)
    }

    fn names(advice: &Advice) -> Vec<&str> {
        let names = advice.servers.iter().map(|server| &server.address[..]);
        names.map(|name| name.trim_end_matches(":4443")).collect()
    }

    /// Where a newcomer that came to this server ends.
    fn home(members: &[Member], came_to: &str, key: Key) -> String {
        let advice = fleet(came_to, members).advise((key, Binding::Quic), true);
        match advice.moves {
            true => names(&advice)[0].to_owned(),
            false => came_to.to_owned(),
        }
    }

    #[test]
    fn servers_agree_on_who_serves_a_newcomer() {
        let members = members(9);
        let mut homes = BTreeSet::new();
        for number in 0..200u32 {
            let key = key(number << 8);
            let first = home(&members, "s0", key);
            for own in 1..9 {
                assert_eq!(home(&members, &format!("s{own}"), key), first);
            }
            homes.insert(first);
        }
        assert_eq!(homes.len(), 9);
    }

    /// Servers of other versions must agree with this one.
    #[test]
    fn weights_are_what_they_were() {
        let entry = |name: &str| Entry {
            is_own: false,
            is_near: false,
            hash: hash(name.as_bytes(), u64::MAX),
            member: member(name),
            sent: AtomicU32::new(0),
        };
        let key = Key::new("live", "192.0.2.77".parse().unwrap());
        assert_eq!(key, Key::new("live", "192.0.2.1".parse().unwrap()));
        assert_eq!(entry("a-1").weight(key), WEIGHT);
        assert_ne!(entry("a-2").weight(key), WEIGHT);
    }

    const WEIGHT: u64 = 11_903_325_710_412_076_366;

    /// Others cannot serve them, or show them another certificate.
    #[test]
    fn pages_are_told_of_servers_for_pages() {
        let mut members = members(4);
        let page_server = |name: &str| Alternate {
            address: format!("{name}:4443"),
            identity: Some([7; 32]),
        };
        for number in [0, 2] {
            members[number].page_server = Some(page_server(&format!("s{number}")));
        }
        let fleet = fleet("s0", &members);
        for number in 0..50 {
            let page = (key(number << 8), Binding::Web);
            assert_eq!(fleet.advise(page, false).servers, [page_server("s2")]);
            assert_eq!(fleet.elsewhere(page).servers, [page_server("s2")]);
        }
        assert_eq!(fleet.elsewhere(program(0)).servers.len(), 3);
        // One that is sent there counts.
        fleet.count_sent(&[page_server("s2")]);
        let table = fleet.table.load();
        assert_eq!(table.members[2].viewers(), 1);
    }

    /// It is replaced every few days.
    #[test]
    fn another_certificate_for_pages_is_news() {
        let mut members = members(2);
        let fleet = fleet("s0", &members);
        let changes = fleet.changes();
        fleet.set("s0", members.clone());
        assert!(!changes.has_changed().unwrap());
        members[1].page_server = Some(members[1].server.clone());
        fleet.set("s0", members.clone());
        assert!(changes.has_changed().unwrap());
    }

    #[test]
    fn networks_are_told_apart() {
        let key = |address: &str| Key::new("live", address.parse().unwrap());
        assert_eq!(key("2001:db8:1::1"), key("2001:db8:1:ffff::2"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.9"));
        let different = ["192.0.2.1", "192.0.3.1", "2001:db8:1::", "2001:db8:2::"];
        let all: BTreeSet<u64> = different.iter().map(|address| key(address).0).collect();
        assert_eq!(all.len(), different.len());
    }

    #[test]
    fn only_keys_of_a_server_that_goes_move() {
        let all = members(20);
        let left: Vec<Member> = all.iter().filter(|m| m.name != "s7").cloned().collect();
        let mut moved = 0;
        for number in 0..10_000u32 {
            let key = key(number << 8);
            let (before, after) = (home(&all, "s0", key), home(&left, "s0", key));
            if before == "s7" {
                moved += 1;
            } else {
                assert_eq!(before, after, "{number}");
            }
        }
        // 500 on average, with a deviation of 22.
        assert!((390..610).contains(&moved), "{moved}");
    }

    /// A crowd of one stream and network spreads, and no server exceeds its part.
    #[test]
    fn no_server_takes_more_than_its_part() {
        let mut members = members(10);
        // One is five times as large as the others.
        members[3].viewers_max = 5000;
        for viewer in 0..10_000u32 {
            // Most of them are one crowd.
            let key = key(if viewer % 4 == 0 { viewer << 8 } else { 0 });
            let best = home(&members, "s0", key);
            let taken = members.iter_mut().find(|m| m.name == best).unwrap();
            taken.viewers += 1;
        }
        let mean = 10_000.0 / 14_000.0;
        for member in &members {
            let part = f64::from(member.viewers) / f64::from(member.viewers_max);
            assert!(part <= mean * LOAD_MAX + 0.001, "{}: {part}", member.name);
        }
    }

    /// Between two beats the load that the others tell stays the same.
    #[test]
    fn those_who_were_sent_count_before_the_next_beat() {
        let members = members(4);
        let fleet = fleet("s0", &members);
        let mut sent: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..400 {
            let advice = fleet.advise(program(0), true);
            // Others come and go meanwhile.
            fleet.set("s0", members.to_vec());
            if advice.moves {
                fleet.count_sent(&advice.servers);
                *sent.entry(names(&advice)[0].to_owned()).or_default() += 1;
            }
        }
        let most = sent.values().max().copied().unwrap();
        assert!(most <= 200, "{sent:?}");
    }

    #[test]
    fn viewers_of_one_network_meet_at_few_servers() {
        let mut members = members(10);
        let mut at: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
        for viewer in 0..5000u32 {
            let network = viewer % 200;
            let best = home(&members, "s0", key((network << 8) | (viewer / 200)));
            members.iter_mut().find(|m| m.name == best).unwrap().viewers += 1;
            at.entry(network).or_default().insert(best);
        }
        let servers: usize = at.values().map(BTreeSet::len).sum();
        assert!(servers < 2 * at.len(), "{servers} servers for {}", at.len());
    }

    #[test]
    fn who_is_closed_or_full_takes_nobody() {
        let mut members = members(4);
        members[0].is_open = false;
        members[1].viewers = members[1].viewers_max;
        for number in 0..50u32 {
            assert!(fleet("s0", &members).has_room_elsewhere());
            let advice = fleet("s0", &members).elsewhere(program(number << 8));
            let mut named = names(&advice);
            named.sort_unstable();
            assert_eq!((advice.moves, named), (true, vec!["s2", "s3"]));
        }
        let alone = fleet("s0", &members[..2]);
        assert_eq!(alone.advise(program(0), true), Advice::default());
        assert_eq!(alone.elsewhere(program(0)), Advice::default());
        assert!(!alone.has_room_elsewhere());
        assert_eq!(alone.time_to_leave(1000), Duration::ZERO);
    }

    #[test]
    fn servers_of_the_own_zone_go_first() {
        let mut members = members(6);
        for member in &mut members[3..] {
            member.zone = "west".to_owned();
        }
        for number in 0..50u32 {
            let key = key(number << 8);
            let best = home(&members, "s1", key);
            assert!(["s0", "s1", "s2"].contains(&&best[..]), "{best}");
            let best = home(&members, "s4", key);
            assert!(["s3", "s4", "s5"].contains(&&best[..]), "{best}");
        }
        for member in &mut members[..3] {
            member.is_open = false;
        }
        assert!(fleet("s1", &members).advise(program(0), true).moves);
    }

    /// As while a stream is added to one server after the other.
    #[test]
    fn servers_that_have_the_stream_go_first() {
        let mut members = members(12);
        let (live, other) = (mark("live"), mark("other"));
        for (number, member) in members.iter_mut().enumerate() {
            member.zone = if number < 6 { "east" } else { "west" }.to_owned();
            member.streams = Some(if number % 3 == 0 { "one" } else { "two" }.to_owned());
            member.marks = match number % 3 {
                0 => Some(vec![other]),
                1 => Some(vec![live, other]),
                // An older version does not say.
                _ => None,
            };
        }
        let lacks = |name: &str| name[1..].parse::<usize>().unwrap() % 3 == 0;
        for number in 0..50u32 {
            let key = key(number << 8);
            for came_to in ["s0", "s1", "s2"] {
                let home = home(&members, came_to, key);
                assert!(
                    !lacks(&home) && home[1..].parse::<usize>().unwrap() < 6,
                    "{home}"
                );
                let advice = fleet(came_to, &members).elsewhere((key, Binding::Quic));
                let told = names(&advice);
                // Servers with the stream fill the list, first those of the zone.
                assert_eq!(told.len(), TOLD);
                assert!(!told.iter().any(|name| lacks(name)), "{told:?}");
            }
            // All have this one.
            let other = Key::new("other", IpAddr::from((number << 8).to_be_bytes()));
            let anywhere = home(&members, "s1", other);
            assert!(anywhere[1..].parse::<usize>().unwrap() < 6, "{anywhere}");
        }
        assert_eq!(fleet("s1", &members).unlike(), 4);
        // Whoever goes away has viewers of all streams, and all of its zone take some.
        let leave = |members: &[Member]| fleet("s1", members).time_to_leave(1000);
        assert_eq!(leave(&members), time_to_move(1000, 5));
        // Where none that has it takes newcomers, the others are told all the same.
        for (number, member) in members.iter_mut().enumerate() {
            member.is_open = number % 3 == 0;
        }
        assert_eq!(names(&fleet("s1", &members).elsewhere(program(0))).len(), 4);
    }

    /// The one of another zone has the stream, or is not told before those of the zone that do.
    #[test]
    fn no_server_of_another_zone_is_told_that_lacks_the_stream() {
        let mut members = members(8);
        for (number, member) in members.iter_mut().enumerate() {
            member.zone = if number < 6 { "east" } else { "west" }.to_owned();
            member.marks = Some(if number < 6 {
                vec![mark("live")]
            } else {
                Vec::new()
            });
        }
        let told = |members: &[Member]| {
            let advice = fleet("s1", members).advise(program(0), true);
            names(&advice)
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert!(
            !told(&members)
                .iter()
                .any(|name| name == "s6" || name == "s7")
        );
        members[7].marks = Some(vec![mark("live")]);
        assert_eq!(told(&members)[TOLD - 1], "s7");
    }

    /// A server is another one to viewers once it has their stream.
    #[test]
    fn other_streams_are_news() {
        let mut members = members(2);
        let fleet = fleet("s0", &members);
        let mut changes = fleet.changes();
        for marks in [Some(vec![1]), Some(vec![1, 2]), None] {
            members[1].marks = marks;
            fleet.set("s0", members.clone());
            assert!(changes.has_changed().unwrap());
            changes.mark_unchanged();
            fleet.set("s0", members.clone());
            assert!(!changes.has_changed().unwrap());
        }
    }

    /// Viewers whose zone is cut off from those of the server find a way.
    #[test]
    fn viewers_are_told_of_one_server_in_another_zone() {
        let mut members = members(12);
        for member in &mut members[6..] {
            member.zone = "west".to_owned();
        }
        let is_west = |name: &&&str| name[1..].parse::<usize>().unwrap() >= 6;
        for number in 0..50u32 {
            let to = program(number << 8);
            for advice in [
                fleet("s1", &members).advise(to, true),
                fleet("s1", &members).elsewhere(to),
            ] {
                let told = names(&advice);
                assert_eq!((told.len(), told.iter().filter(is_west).count()), (TOLD, 1));
                assert!(is_west(&told.last().unwrap()));
            }
        }
        // As long as that one takes newcomers.
        members[6..]
            .iter_mut()
            .for_each(|member| member.is_open = false);
        let advice = fleet("s1", &members).elsewhere(program(0));
        assert_eq!(names(&advice).iter().filter(is_west).count(), 0);
        assert_eq!(names(&advice).len(), TOLD);
    }

    #[test]
    fn who_was_sent_is_not_sent_on_and_still_told_of_others() {
        let members = members(8);
        for number in 0..50u32 {
            let advice = fleet("s0", &members).advise(program(number << 8), false);
            assert_eq!((advice.moves, advice.servers.len()), (false, TOLD));
            assert!(!names(&advice).contains(&"s0"));
        }
    }

    #[test]
    fn sessions_hear_of_changes_that_concern_viewers_alone() {
        let mut members = members(3);
        let fleet = fleet("s0", &members);
        let mut changes = fleet.changes();
        changes.mark_unchanged();
        let mut is_told = |members: &[Member]| {
            fleet.set("s0", members.to_vec());
            let is_told = changes.has_changed().unwrap();
            changes.mark_unchanged();
            is_told
        };
        members[1].viewers = 500;
        members[0].is_open = false;
        assert!(!is_told(&members));
        members[2].is_open = false;
        assert!(is_told(&members));
        members[1].server.identity = Some([1; 32]);
        assert!(is_told(&members));
        members.pop();
        assert!(is_told(&members));
        assert!(!is_told(&members));
    }

    /// Each server asks servers nearer to the home, so the way ends there.
    #[test]
    fn every_way_to_an_object_ends_at_its_home() {
        let members = members(40);
        let by_server: BTreeMap<String, Fleet> = members
            .iter()
            .map(|member| (member.server.address.clone(), fleet(&member.name, &members)))
            .collect();
        let mut homes: BTreeMap<String, u32> = BTreeMap::new();
        for number in 0..400 {
            let object = format!("/live/{number}.ts");
            let mut copies: BTreeMap<String, usize> = BTreeMap::new();
            let mut ends = BTreeSet::new();
            for (server, fleet) in &by_server {
                let (mut at, mut steps) = (server.clone(), 0);
                let mut route = fleet.route(&object).through;
                if let Some(first) = route.first() {
                    *copies.entry(first.address.clone()).or_default() += 1;
                }
                while let Some(next) = route.into_iter().next() {
                    at = next.address;
                    route = by_server[&at].route(&object).through;
                    steps += 1;
                    assert!(steps < 10, "{object} from {server}");
                }
                ends.insert(at);
            }
            assert_eq!(ends.len(), 1, "{object}: {ends:?}");
            assert!(copies.values().all(|copies| *copies <= FAN_OUT));
            *homes.entry(ends.pop_first().unwrap()).or_default() += 1;
        }
        assert!(homes.len() > 30, "{homes:?}");
    }

    #[test]
    fn a_server_asks_another_than_the_one_that_is_dead() {
        let members = members(5);
        let fleets = members.iter().map(|member| fleet(&member.name, &members));
        let routes = fleets.map(|fleet| fleet.route("/live/0.ts").through);
        let lengths: Vec<usize> = routes.map(|through| through.len()).collect();
        // The home asks nobody, the second server only the home, and each of the next one more.
        assert_eq!(lengths.iter().filter(|length| **length == 0).count(), 1);
        assert_eq!(lengths.iter().filter(|length| **length == 1).count(), 1);
        assert_eq!(lengths.iter().filter(|length| **length == 2).count(), 1);
        assert_eq!(lengths.iter().filter(|length| **length == 3).count(), 2);
        assert_eq!(Fleet::alone().route("/live/0.ts").through, []);
    }

    /// Who was home while a server was away comes next when it is back.
    #[test]
    fn a_home_knows_who_may_have_been_home_before() {
        let members = members(6);
        for number in 0..50 {
            let object = format!("/live/{number}.ts");
            let home_among = |members: &[Member]| {
                let mut names = members.iter().map(|member| member.name.clone());
                let is_home = |own: &String| {
                    let route = fleet(own, members).route(&object);
                    route.through.is_empty()
                };
                names.find(is_home).unwrap()
            };
            let home = home_among(&members);
            let (others, own): (Vec<Member>, Vec<Member>) = members
                .iter()
                .cloned()
                .partition(|member| member.name != home);
            let before = home_among(&others);
            let route = fleet(&home, &members).route(&object);
            assert_eq!(route.after[0].address, format!("{before}:4443"));
            assert_eq!(route.after.len(), FAN_OUT);
            // Both know that the members have changed.
            assert_ne!(fleet(&home, &own).route(&object).among, route.among);
            assert_ne!(fleet(&before, &others).route(&object).among, route.among);
            assert_eq!(fleet(&before, &members).route("/other").among, route.among);
        }
    }

    #[test]
    fn the_times_of_the_others_go_on_between_their_beats() {
        let now = Instant::now();
        let mut members = members(4);
        for (member, time_ms) in members
            .iter_mut()
            .zip([Some(77), None, Some(5), Some(u64::MAX)])
        {
            member.time = time_ms.map(|time_ms| (now, time_ms));
        }
        let fleet = fleet("s0", &members);
        assert!(fleet.times(now).is_empty(), "they have not greeted it");
        fleet.set_greeted(now);
        assert!(fleet.times(now - Duration::from_millis(1)).is_empty());
        assert_eq!(fleet.times(now), [5, u64::MAX], "one has issued nothing");
        assert_eq!(fleet.times(now + Duration::from_millis(3)), [8, u64::MAX]);
        assert!(Fleet::alone().times(now).is_empty());
    }

    #[test]
    fn a_server_is_greeted_once() {
        let fleet = Fleet::new(true);
        let (greeted, now) = (fleet.greeted(), Instant::now());
        assert_eq!(*greeted.borrow(), None);
        fleet.set_greeted(now);
        fleet.set_greeted(now + Duration::from_secs(1));
        assert_eq!(*greeted.borrow(), Some(now));
    }

    /// It still fetches what its viewers ask for, and nobody fetches from it.
    #[test]
    fn a_server_that_ends_is_nobodys_home() {
        let mut members = members(3);
        members[1].is_leaving = true;
        members[1].is_open = false;
        for number in 0..50 {
            let object = format!("/live/{number}.ts");
            for own in ["s0", "s1", "s2"] {
                let route = fleet(own, &members).route(&object).through;
                assert!(route.iter().all(|server| server.address != "s1:4443"));
                assert!(own != "s1" || !route.is_empty());
            }
        }
    }

    #[test]
    fn viewers_leave_at_a_rate_that_the_others_can_take() {
        let fleet = fleet("s0", &members(3));
        assert_eq!(fleet.time_to_leave(10_000), Duration::from_secs(10));
    }
}
