//! Peers named by servers: which of them are used, and for how long.
//!
//! A few are used at a time. One that does not answer, violates the protocol or has sent nothing
//! useful for a while makes room for another; a violator is not used again.
//!
//! A server may name any address. So only addresses on the public internet are used, unless the
//! user allows others, and a host that does not answer gets only a few packets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use ncs_proto::wire::message::Introduction;

use crate::proto::SourceId;

/// Consecutive failed attempts to connect before a peer is dropped.
const FAILURES_MAX: u32 = 2;
/// A peer that has sent nothing for this long makes room when another is named.
const IDLE_MAX: Duration = Duration::from_secs(20);
/// The maximum number of banned identities; beyond it, all are forgotten.
const BANNED_MAX: usize = 4096;
/// Consecutive unanswered attempts at one host, under any identities and ports.
const UNANSWERED_MAX: u32 = 2;
/// The pause for such a host.
const REST: Duration = Duration::from_secs(600);
/// Hosts remembered; while there are as many, no other is tried.
const HOSTS_MAX: usize = 1024;
/// The maximum burst of attempts, and the interval after which one more is allowed.
const ATTEMPTS_MAX: u32 = 16;
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);

/// The peers in use.
#[derive(Debug)]
pub struct Neighbours {
    most: usize,
    /// This side's own identity, if it serves.
    own: Option<[u8; 32]>,
    by_identity: BTreeMap<[u8; 32], Neighbour>,
    banned: HashSet<[u8; 32]>,
    next: u32,
    /// Whether private addresses, and those of this machine, are allowed.
    takes_private: bool,
    /// Hosts that have not answered.
    silent: HashMap<IpAddr, Silent>,
    /// Attempts left as of the given time.
    attempts: (u32, Option<Instant>),
}

/// A host that has not answered.
#[derive(Debug)]
struct Silent {
    attempts: u32,
    last: Instant,
}

#[derive(Debug)]
struct Neighbour {
    source: SourceId,
    host: IpAddr,
    /// Whether it has ever answered.
    answers: bool,
    failures: u32,
    /// Bytes it has sent, and when that number last grew.
    brought: (u64, Instant),
}

/// How to handle a named peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Advice {
    /// Connect to it, under this id.
    Take(SourceId),
    /// It is already in use.
    Known(SourceId),
    /// Connect to it under the first id, in place of the second.
    Exchange(SourceId, SourceId),
    /// Ignore it: the address is not allowed.
    Forbidden,
    /// Ignore it.
    Leave,
}

impl Neighbours {
    /// No peers, and at most `most`; `first` is the first free id. `takes_private` allows private
    /// addresses and those of this machine.
    pub fn new(most: usize, first: u32, takes_private: bool) -> Self {
        Self {
            most,
            own: None,
            by_identity: BTreeMap::new(),
            banned: HashSet::new(),
            next: first,
            takes_private,
            silent: HashMap::new(),
            attempts: (ATTEMPTS_MAX, None),
        }
    }

    /// Sets this side's own identity.
    pub fn set_own(&mut self, identity: [u8; 32]) {
        self.own = Some(identity);
    }

    /// Handles a peer that a server has named.
    pub fn named(&mut self, now: Instant, peer: &Introduction) -> Advice {
        if let Some(known) = self.by_identity.get(&peer.identity) {
            return Advice::Known(known.source);
        }
        if self.most == 0 || self.own == Some(peer.identity) || self.banned.contains(&peer.identity)
        {
            return Advice::Leave;
        }
        let is_allowed = match reach(peer.address) {
            Reach::Public => true,
            Reach::Private => self.takes_private,
            Reach::Nobody => false,
        };
        if !is_allowed {
            return Advice::Forbidden;
        }
        let host = host(peer.address.ip());
        if !self.may_try(now, host) {
            return Advice::Leave;
        }
        let left = if self.by_identity.len() < self.most {
            None
        } else {
            let idle = self.by_identity.iter().filter(|(_, neighbour)| {
                now.saturating_duration_since(neighbour.brought.1) >= IDLE_MAX
            });
            match idle
                .min_by_key(|(_, neighbour)| neighbour.brought.1)
                .map(|(identity, _)| *identity)
            {
                Some(identity) => self
                    .by_identity
                    .remove(&identity)
                    .map(|neighbour| neighbour.source),
                None => return Advice::Leave,
            }
        };
        let source = SourceId(self.next);
        self.next += 1;
        self.attempts.0 -= 1;
        let silent = self.silent.entry(host).or_insert(Silent {
            attempts: 0,
            last: now,
        });
        (silent.attempts, silent.last) = (silent.attempts + 1, now);
        let neighbour = Neighbour {
            source,
            host,
            answers: false,
            failures: 0,
            brought: (0, now),
        };
        self.by_identity.insert(peer.identity, neighbour);
        left.map_or(Advice::Take(source), |left| Advice::Exchange(source, left))
    }

    /// Whether one more attempt is allowed now, at this host.
    fn may_try(&mut self, now: Instant, host: IpAddr) -> bool {
        let (left, since) = &mut self.attempts;
        let begun = *since.get_or_insert(now);
        let more = now.saturating_duration_since(begun).as_secs() / ATTEMPT_EVERY.as_secs();
        if more > 0 {
            *left = u32::try_from(more)
                .unwrap_or(u32::MAX)
                .saturating_add(*left)
                .min(ATTEMPTS_MAX);
            *since = Some(now);
        }
        if *left == 0 {
            return false;
        }
        self.silent
            .retain(|_, silent| now.saturating_duration_since(silent.last) < REST);
        match self.silent.get(&host) {
            Some(silent) => silent.attempts < UNANSWERED_MAX,
            None => self.silent.len() < HOSTS_MAX,
        }
    }

    /// Notes that a peer has answered.
    pub fn answered(&mut self, source: SourceId) {
        if let Some(neighbour) = self
            .by_identity
            .values_mut()
            .find(|neighbour| neighbour.source == source)
        {
            neighbour.answers = true;
            self.silent.remove(&neighbour.host);
        }
    }

    /// Notes the bytes that a peer has sent so far.
    pub fn brought(&mut self, now: Instant, source: SourceId, bytes: u64) {
        if let Some(neighbour) = self
            .by_identity
            .values_mut()
            .find(|neighbour| neighbour.source == source)
            && neighbour.brought.0 != bytes
        {
            neighbour.brought = (bytes, now);
            neighbour.failures = 0;
        }
    }

    /// Notes that a connection has ended or could not be made. True if the peer is dropped.
    pub fn failed(&mut self, source: SourceId, broke_the_rules: bool) -> bool {
        let Some((identity, neighbour)) = self
            .by_identity
            .iter_mut()
            .find(|(_, neighbour)| neighbour.source == source)
        else {
            return false;
        };
        neighbour.failures += 1;
        if !broke_the_rules && neighbour.answers && neighbour.failures < FAILURES_MAX {
            return false;
        }
        let identity = *identity;
        self.by_identity.remove(&identity);
        if broke_the_rules {
            self.ban(identity);
        }
        true
    }

    /// Bans an identity.
    pub fn ban(&mut self, identity: [u8; 32]) {
        if self.banned.len() >= BANNED_MAX {
            self.banned.clear();
        }
        self.banned.insert(identity);
    }

    /// Removes a peer that could not be used.
    pub fn remove(&mut self, source: SourceId) {
        self.by_identity
            .retain(|_, neighbour| neighbour.source != source);
    }

    /// Whether this is the id of a peer in use.
    pub fn is_one(&self, source: SourceId) -> bool {
        self.by_identity
            .values()
            .any(|neighbour| neighbour.source == source)
    }
}

/// Whether an address is not one of the public internet.
pub(crate) fn is_private(address: SocketAddr) -> bool {
    reach(address) != Reach::Public
}

/// The kind of host at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// A host on the public internet.
    Public,
    /// One on a private network or a link, or this machine.
    Private,
    /// Several hosts, none, or one that depends on translation in between.
    Nobody,
}

fn reach(address: SocketAddr) -> Reach {
    match address.ip() {
        _ if address.port() == 0 => Reach::Nobody,
        IpAddr::V4(ip) => reach_v4(ip),
        IpAddr::V6(ip) => reach_v6(ip),
    }
}

/// By the registry of special addresses (RFC 6890 and its successors).
fn reach_v4(ip: Ipv4Addr) -> Reach {
    match ip.octets() {
        // This network; protocols; documentation; 6to4 relays; multicast, reserved and broadcast.
        [0, ..]
        | [192, 0, 0 | 2, _]
        | [198, 51, 100, _]
        | [203, 0, 113, _]
        | [192, 88, 99, _]
        | [224..=255, ..] => Reach::Nobody,
        // Benchmarks; shared addresses of a carrier's customers.
        [198, 18 | 19, ..] | [100, 64..=127, ..] => Reach::Private,
        _ if ip.is_loopback() || ip.is_private() || ip.is_link_local() => Reach::Private,
        _ => Reach::Public,
    }
}

fn reach_v6(ip: Ipv6Addr) -> Reach {
    let last = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        reach_v4(Ipv4Addr::new(a, b, c, d))
    };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Reach::Private,
        // Embedded IPv4 addresses: mapped, NAT64, 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => last(high, low),
        // Teredo, ORCHID and other protocols; documentation.
        [0x2001, 0..0x200, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..0x1000, ..] => Reach::Nobody,
        // Unique local, link-local, site-local.
        [0xfc00..=0xfdff, ..] | [0xfe80..=0xfeff, ..] => Reach::Private,
        [0x2000..=0x3fff, ..] => Reach::Public,
        _ => Reach::Nobody,
    }
}

/// The unit that counts as one host: in IPv6 a /64 network, in which a client can use any address.
fn host(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => v4.into(),
            None => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ncs_proto::wire::message::Ticket;

    fn peer(number: u8) -> Introduction {
        let (address, ticket) = (([1, 0, 0, number], 1).into(), Ticket(vec![number].into()));
        Introduction {
            address,
            identity: [number; 32],
            lasts_ms: 1000,
            ticket,
        }
    }

    fn peer_at(number: u8, address: &str) -> Introduction {
        Introduction {
            address: address.parse().unwrap(),
            ..peer(number)
        }
    }

    #[test]
    fn a_server_leads_to_hosts_of_the_internet_and_to_no_others() {
        let is_taken = |address: &str, takes_private: bool| {
            let advice =
                Neighbours::new(1, 1, takes_private).named(Instant::now(), &peer_at(1, address));
            assert!(
                matches!(advice, Advice::Take(_) | Advice::Forbidden),
                "{address}: {advice:?}"
            );
            advice != Advice::Forbidden
        };
        for address in [
            "1.1.1.1:4443",
            "172.32.0.1:1",
            "100.128.0.1:1",
            "[2606:4700::1]:1",
            "[2002:101:101::1]:1",
            "[64:ff9b::1.1.1.1]:1",
        ] {
            assert!(
                is_taken(address, false) && is_taken(address, true),
                "{address}"
            );
        }
        for address in [
            "127.0.0.1:1",
            "127.8.8.8:1",
            "10.1.2.3:1",
            "172.16.0.1:1",
            "192.168.1.1:1",
            "169.254.169.254:1",
            "100.64.0.1:1",
            "198.18.0.1:1",
            "[::1]:1",
            "[fe80::1]:1",
            "[fd00::1]:1",
            "[::ffff:127.0.0.1]:1",
            "[::ffff:192.168.0.1]:1",
            "[64:ff9b::10.0.0.1]:1",
            "[2002:a00:1::1]:1",
        ] {
            assert!(
                !is_taken(address, false) && is_taken(address, true),
                "{address}"
            );
        }
        for address in [
            "0.0.0.0:1",
            "224.0.0.1:1",
            "239.255.255.250:1900",
            "255.255.255.255:1",
            "240.0.0.1:1",
            "192.0.2.1:1",
            "198.51.100.1:1",
            "203.0.113.1:1",
            "192.0.0.1:1",
            "1.1.1.1:0",
            "[::]:1",
            "[ff02::1]:1",
            "[2001:db8::1]:1",
            "[2001::1]:1",
            "[3fff::1]:1",
            "[::ffff:224.0.0.1]:1",
            "[64:ff9b:1::1]:1",
            "[100::1]:1",
            "[::1.1.1.1]:1",
            "[4000::1]:1",
        ] {
            assert!(
                !is_taken(address, false) && !is_taken(address, true),
                "{address}"
            );
        }
    }

    /// A host is named under a thousand identities and ports, and never answers.
    #[test]
    fn who_does_not_answer_gets_a_few_packets() {
        let (mut neighbours, start) = (Neighbours::new(4, 1, false), Instant::now());
        let mut attempts = Vec::new();
        for number in 0..1000_u64 {
            let now = start + Duration::from_millis(number * 500);
            let mut peer = peer_at(0, &format!("1.1.1.1:{}", 1 + number));
            peer.identity[..8].copy_from_slice(&number.to_be_bytes());
            if let Advice::Take(source) = neighbours.named(now, &peer) {
                attempts.push(number);
                assert!(
                    neighbours.failed(source, false),
                    "it is not tried again under the same name"
                );
            }
        }
        assert_eq!(attempts, [0, 1]);
        let later = start + Duration::from_millis(500) + REST;
        assert!(matches!(
            neighbours.named(later, &peer_at(1, "1.1.1.1:1")),
            Advice::Take(_)
        ));
    }

    #[test]
    fn attempts_are_bounded_however_many_are_named() {
        let (mut neighbours, start) = (Neighbours::new(4, 1, false), Instant::now());
        let mut attempts = 0;
        for number in 0..6000_u32 {
            let [.., a, b] = number.to_be_bytes();
            let mut peer = peer_at(0, &format!("1.2.{a}.{b}:1"));
            peer.identity[..4].copy_from_slice(&number.to_be_bytes());
            if let Advice::Take(source) =
                neighbours.named(start + Duration::from_millis(10) * number, &peer)
            {
                attempts += 1;
                assert!(neighbours.failed(source, false));
            }
        }
        assert!(
            (ATTEMPTS_MAX..ATTEMPTS_MAX + 61).contains(&attempts),
            "{attempts} in a minute"
        );
    }

    #[test]
    fn who_has_answered_is_no_stranger() {
        let (mut neighbours, now) = (Neighbours::new(4, 1, false), Instant::now());
        // Several viewers behind one address.
        for number in 0..4 {
            let Advice::Take(source) = neighbours.named(now, &peer_at(number, "1.1.1.1:1")) else {
                panic!("{number}")
            };
            neighbours.answered(source);
        }
    }

    #[test]
    fn a_few_are_taken_and_those_that_bring_nothing_make_room() {
        let (mut neighbours, start) = (Neighbours::new(2, 5, false), Instant::now());
        neighbours.set_own([9; 32]);
        assert_eq!(neighbours.named(start, &peer(1)), Advice::Take(SourceId(5)));
        assert_eq!(neighbours.named(start, &peer(2)), Advice::Take(SourceId(6)));
        assert_eq!(
            neighbours.named(start, &peer(1)),
            Advice::Known(SourceId(5))
        );
        assert_eq!(neighbours.named(start, &peer(3)), Advice::Leave);
        assert_eq!(
            neighbours.named(start, &peer(9)),
            Advice::Leave,
            "this side itself"
        );
        let later = start + IDLE_MAX;
        neighbours.brought(later, SourceId(5), 10);
        assert_eq!(
            neighbours.named(later, &peer(3)),
            Advice::Exchange(SourceId(7), SourceId(6))
        );
        assert!(neighbours.is_one(SourceId(7)) && !neighbours.is_one(SourceId(6)));
        assert_eq!(neighbours.named(later, &peer(4)), Advice::Leave);
        assert_eq!(
            Neighbours::new(0, 1, false).named(start, &peer(1)),
            Advice::Leave
        );
    }

    #[test]
    fn those_that_fail_are_let_go_and_those_that_break_the_rules_for_good() {
        let (mut neighbours, now) = (Neighbours::new(2, 1, false), Instant::now());
        neighbours.named(now, &peer(1));
        neighbours.answered(SourceId(1));
        assert!(!neighbours.failed(SourceId(1), false));
        neighbours.brought(now, SourceId(1), 10);
        assert!(!neighbours.failed(SourceId(1), false) && neighbours.failed(SourceId(1), false));
        assert!(
            !neighbours.failed(SourceId(1), false),
            "it is none any more"
        );
        assert_eq!(neighbours.named(now, &peer(1)), Advice::Take(SourceId(2)));
        assert!(neighbours.failed(SourceId(2), true));
        assert_eq!(neighbours.named(now, &peer(1)), Advice::Leave);
    }
}
