//! Servers of a fleet in virtual time, over a network that loses, repeats and delays.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use rand::{RngExt as _, SeedableRng as _};

use super::asked::{ASK_AGAIN, PAUSE_MAX, WANTED_FOR};
use super::owned::LASTS;
use super::wire::FOUND_MAX;
use super::*;
use crate::cluster::counts::ROUND;
use crate::cluster::network::{Network, name};
use crate::cluster::roster::{DEAD_AFTER, INTERVAL};

/// A server, as its viewers know it.
struct Server {
    sharers: Sharers,
    started_ms: u64,
    lives: bool,
    died_at: Instant,
    /// The part of the network that it is in.
    part: usize,
    /// When it last heard a beat of each other server, and of which start.
    heard: BTreeMap<Name, (Instant, u64)>,
    /// Its own peers, and those of others that it names.
    peers: BTreeMap<Circle, BTreeSet<u32>>,
    named: BTreeMap<Circle, Vec<Sharer>>,
}

struct Fleet {
    begun: Instant,
    now: Instant,
    servers: Vec<Server>,
    network: Network,
    messages: usize,
}

/// A peer of a server. Its address says to which process of the server it is connected.
fn sharer(server: usize, started_ms: u64, peer: u32) -> Sharer {
    let [server, start] = [server as u64, started_ms].map(|number| u8::try_from(number).unwrap());
    let mut identity = [0; 32];
    identity[..6].copy_from_slice(&[&[server, start][..], &peer.to_be_bytes()].concat());
    let address = SocketAddr::from(([10, server, start, 1], 4444));
    Sharer { address, identity }
}

fn server_of(sharer: &Sharer) -> (usize, u64) {
    (sharer.identity[0].into(), sharer.identity[1].into())
}

impl Fleet {
    fn new(count: usize, seed: u64) -> Self {
        let now = Instant::now();
        let server = |number| Server {
            sharers: machine(number, 1),
            started_ms: 1,
            lives: true,
            died_at: now,
            part: 0,
            heard: BTreeMap::new(),
            peers: BTreeMap::new(),
            named: BTreeMap::new(),
        };
        let mut fleet = Self {
            begun: now,
            now,
            servers: (0..count).map(server).collect(),
            network: Network::new(seed),
            messages: 0,
        };
        fleet.run(INTERVAL);
        fleet
    }

    fn come(&mut self, server: usize, circle: Circle, peer: u32) {
        self.servers[server]
            .peers
            .entry(circle)
            .or_default()
            .insert(peer);
        self.note(server, circle);
    }

    fn leave(&mut self, server: usize, circle: Circle, peer: u32) {
        self.servers[server]
            .peers
            .entry(circle)
            .or_default()
            .remove(&peer);
        self.note(server, circle);
    }

    fn note(&mut self, number: usize, circle: Circle) {
        let server = &mut self.servers[number];
        let peers = server.peers.get(&circle).into_iter().flatten();
        let all = peers.map(|peer| sharer(number, server.started_ms, *peer));
        server.sharers.note(circle, all.take(SHARERS_MAX).collect());
    }

    fn kill(&mut self, server: usize) {
        self.servers[server].lives = false;
        self.servers[server].died_at = self.now;
    }

    /// A server starts, perhaps after it was killed.
    fn start(&mut self, number: usize) {
        let server = &mut self.servers[number];
        server.started_ms += 1;
        server.sharers = machine(number, server.started_ms);
        server.lives = true;
        server.heard.clear();
        server.peers.clear();
        server.named.clear();
    }

    fn reach(&self, one: usize, other: usize) -> bool {
        let [one, other] = [&self.servers[one], &self.servers[other]];
        one.lives && other.lives && one.part == other.part
    }

    /// Peers of other servers that a server names.
    fn named(&self, server: usize, circle: Circle) -> Vec<Sharer> {
        let named = self.servers[server].named.get(&circle);
        named.cloned().unwrap_or_default()
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// The same while viewers of these servers want more peers of a circle.
    fn want(&mut self, servers: &[usize], circle: Circle, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            for server in servers {
                self.servers[*server].sharers.want(self.now, circle);
            }
            self.step();
        }
    }

    /// A round of all servers.
    fn step(&mut self) {
        self.now += ROUND;
        let now = self.now;
        let count = self.servers.len();
        let elapsed = now.duration_since(self.begun).as_millis();
        for from in 0..count {
            // Beats of different servers come at different times.
            if !(elapsed + 500 * from as u128).is_multiple_of(INTERVAL.as_millis()) {
                continue;
            }
            for to in 0..count {
                if from != to && self.reach(from, to) {
                    let beat = (now, self.servers[from].started_ms);
                    self.servers[to].heard.insert(name(from), beat);
                }
            }
        }
        for number in 0..count {
            if self.servers[number].lives {
                self.round(number);
            }
        }
        for letter in self.network.arrived(now) {
            if self.reach(letter.from, letter.to) {
                let server = &mut self.servers[letter.to];
                let from = name(letter.from);
                server.sharers.take(now, &from, &letter.bytes).unwrap();
                self.apply(letter.to);
            }
        }
    }

    fn round(&mut self, number: usize) {
        let now = self.now;
        let server = &mut self.servers[number];
        server.heard.retain(|_, (at, _)| *at + DEAD_AFTER > now);
        let members = server.heard.iter();
        let members = members.map(|(name, (_, started_ms))| (name.clone(), *started_ms));
        server.sharers.set_members(now, members);
        for circle in server.sharers.due(now) {
            self.note(number, circle);
        }
        self.servers[number].sharers.round(now);
        self.apply(number);
        while let Some((to, bytes)) = self.servers[number].sharers.poll_message() {
            self.messages += 1;
            self.network.send(now, number, &to, &bytes);
        }
    }

    fn apply(&mut self, number: usize) {
        let server = &mut self.servers[number];
        while let Some((circle, found)) = server.sharers.poll_found() {
            server.named.insert(circle, found);
        }
    }

    /// Nobody names its own peers, nor those of a server that is dead or has started anew for
    /// longer than it takes to notice.
    fn check(&self) {
        for (number, server) in self.servers.iter().enumerate() {
            for sharer in server.named.values().flatten().filter(|_| server.lives) {
                let (of, started_ms) = server_of(sharer);
                assert_ne!(of, number);
                let other = &self.servers[of];
                let is_current = other.lives && other.started_ms == started_ms;
                let died_at = other.died_at;
                assert!(
                    is_current || self.now < died_at + DEAD_AFTER + INTERVAL + 2 * ROUND,
                    "{number} names a peer of {of}, {:?} after its end",
                    self.now - died_at
                );
            }
            let tally = server.sharers.tally();
            assert!(tally.owned <= owned::TOTAL_MAX && tally.found <= asked::FOUND_TOTAL_MAX);
        }
    }
}

fn machine(number: usize, started_ms: u64) -> Sharers {
    let random = StdRng::seed_from_u64(number as u64);
    Sharers::new(name(number), started_ms, random)
}

const LIVE: Circle = Circle(0x1234_5678_9abc_def0_0123_4567_89ab_cdef);

/// The time in which servers without losses know each other's peers: beats, telling, a question,
/// its answer.
const FOUND_WITHIN: Duration = Duration::from_secs(4);

#[test]
fn peers_of_other_servers_are_found_and_forgotten() {
    for count in [2, 3, 8] {
        let mut fleet = Fleet::new(count, 7);
        fleet.come(0, LIVE, 1);
        fleet.come(0, LIVE, 2);
        fleet.come(1, LIVE, 1);
        fleet.want(&[0, 1], LIVE, FOUND_WITHIN);
        assert_eq!(fleet.named(0, LIVE), [sharer(1, 1, 1)]);
        let mut named = fleet.named(1, LIVE);
        named.sort_by_key(|sharer| sharer.identity);
        assert_eq!(named, [sharer(0, 1, 1), sharer(0, 1, 2)]);
        // One that leaves is told at once, and missed at the next question.
        fleet.leave(0, LIVE, 1);
        fleet.want(&[0, 1], LIVE, ASK_AGAIN + 4 * ROUND);
        assert_eq!(fleet.named(1, LIVE), [sharer(0, 1, 2)]);
        // The policy is `off` from now on, or nobody follows the stream.
        fleet.leave(0, LIVE, 2);
        fleet.want(&[0, 1], LIVE, ASK_AGAIN + 4 * ROUND);
        assert!(fleet.named(1, LIVE).is_empty());
        assert_eq!(fleet.named(0, LIVE).len(), 1);
        // Who wants nothing any more knows nothing, after a while.
        fleet.run(WANTED_FOR + EXPIRE_EVERY);
        assert!(fleet.named(0, LIVE).is_empty());
        fleet.leave(1, LIVE, 1);
        fleet.run(2 * ROUND);
        let nothing = Tally::default();
        assert!(
            fleet
                .servers
                .iter()
                .all(|server| server.sharers.tally() == nothing)
        );
    }
}

/// The next owner takes over, and whoever comes is told what it owns.
#[test]
fn owners_may_come_and_go() {
    for count in [3, 4, 8] {
        for dead in 0..count {
            let mut fleet = Fleet::new(count, 7);
            for number in 0..60 {
                let peer = u32::try_from(number).unwrap();
                fleet.come(number % count, Circle((number / 4) as u128), peer);
            }
            fleet.run(FOUND_WITHIN);
            fleet.kill(dead);
            fleet.run(DEAD_AFTER + INTERVAL);
            let asker = (dead + 1) % count;
            let found = |fleet: &mut Fleet| {
                for circle in 0..15 {
                    fleet.servers[asker].sharers.want(fleet.now, Circle(circle));
                }
                fleet.run(FOUND_WITHIN);
                fleet.check();
                let all = (0..15).flat_map(|circle| fleet.named(asker, Circle(circle)));
                all.count()
            };
            let of = |server: usize| (0..60).filter(|n| n % count == server).count();
            assert_eq!(found(&mut fleet), 60 - of(dead) - of(asker));
            fleet.start(dead);
            fleet.come(dead, Circle(3), 9);
            fleet.run(INTERVAL + SETTLED_AFTER + ASK_AGAIN);
            assert_eq!(found(&mut fleet), 61 - of(dead) - of(asker));
        }
    }
}

#[test]
fn each_side_of_a_partition_knows_its_own() {
    let mut fleet = Fleet::new(6, 7);
    for server in 0..6 {
        fleet.come(server, LIVE, 1);
    }
    let all: Vec<usize> = (0..6).collect();
    fleet.want(&all, LIVE, FOUND_WITHIN + ASK_AGAIN);
    let known = |fleet: &Fleet| -> Vec<usize> {
        (0..6)
            .map(|server| fleet.named(server, LIVE).len())
            .collect()
    };
    assert_eq!(known(&fleet), [5; 6]);
    (0..6).for_each(|server| fleet.servers[server].part = server % 2);
    fleet.want(&all, LIVE, DEAD_AFTER + ROUND);
    for server in 0..6 {
        let named = fleet.named(server, LIVE);
        assert!(
            named
                .iter()
                .all(|sharer| server_of(sharer).0 % 2 == server % 2)
        );
    }
    fleet.want(&all, LIVE, PAUSE_MAX);
    assert_eq!(known(&fleet), [2; 6]);
    fleet.servers.iter_mut().for_each(|server| server.part = 0);
    fleet.want(
        &all,
        LIVE,
        INTERVAL + SETTLED_AFTER + ASK_AGAIN + FOUND_WITHIN,
    );
    assert_eq!(known(&fleet), [5; 6]);
}

/// Whatever the network and the servers do, dead peers vanish in time; and when all is well again,
/// those that live are known.
#[test]
fn a_bad_network_delays_what_is_known_and_no_more() {
    for seed in 0..20 {
        let mut fleet = Fleet::new(6, seed);
        let mut random = StdRng::seed_from_u64(seed);
        (
            fleet.network.losses,
            fleet.network.repeats,
            fleet.network.delays,
        ) = (0.3, 0.2, 0.2);
        for _ in 0..400 {
            let (server, circle) = (random.random_range(0..6), Circle(random.random_range(0..5)));
            let lives = fleet.servers[server].lives;
            match random.random_range(0..20) {
                0..8 if lives => fleet.come(server, circle, random.random_range(0..30)),
                8..16 if lives => fleet.leave(server, circle, random.random_range(0..30)),
                16 if lives => fleet.kill(server),
                17 | 18 if !lives => fleet.start(server),
                19 => fleet.servers[server].part = random.random_range(0..2),
                _ => {}
            }
            for server in 0..6 {
                fleet.servers[server].sharers.want(fleet.now, circle);
            }
            fleet.step();
            fleet.check();
        }
        (
            fleet.network.losses,
            fleet.network.repeats,
            fleet.network.delays,
        ) = (0.0, 0.0, 0.0);
        fleet.servers.iter_mut().for_each(|server| server.part = 0);
        for server in 0..6 {
            if !fleet.servers[server].lives {
                fleet.start(server);
            }
        }
        let all: Vec<usize> = (0..6).collect();
        for circle in (0..5).map(Circle) {
            fleet.want(&all, circle, LASTS);
            fleet.check();
            for server in 0..6 {
                let others = (0..6).filter(|other| *other != server);
                let there = others.map(|other| {
                    let peers = fleet.servers[other].peers.get(&circle);
                    peers.map_or(0, |peers| peers.len().min(SHARERS_MAX))
                });
                let there: usize = there.sum();
                let named = fleet.named(server, circle);
                assert_eq!(named.len(), there.min(FOUND_MAX), "seed {seed}");
                for sharer in named {
                    let (of, _) = server_of(&sharer);
                    let peer = u32::from_be_bytes(*sharer.identity[2..].first_chunk().unwrap());
                    assert!(fleet.servers[of].peers[&circle].contains(&peer));
                }
            }
        }
    }
}

/// A message counts if the process that beats has sent it, and an answer if it was asked for.
#[test]
fn strangers_are_not_believed() {
    let now = Instant::now();
    let mut server = machine(0, 1);
    server.set_members(now, [(name(1), 1), (name(2), 1)]);
    let told = vec![(LIVE, vec![sharer(1, 1, 1)])];
    let told = |id| Message::Told(told.clone()).write(id);
    let id = |number, started_ms| server_id(&name(number), started_ms);
    for (from, id) in [(1, id(1, 2)), (1, id(2, 1)), (3, id(3, 1)), (0, id(0, 1))] {
        server.take(now, &name(from), &told(id)).unwrap();
        assert_eq!(server.tally().owned, 0);
    }
    server.take(now, &name(1), &told(id(1, 1))).unwrap();
    assert_eq!(server.tally().owned, 1);
    // Peers of servers that nobody knows, or of this one, are not named; nor others unasked.
    let found = [(id(3, 1), 3), (id(0, 1), 0), (id(2, 1), 2)];
    let found = found
        .map(|(id, number)| (id, sharer(number, 1, 1)))
        .to_vec();
    // A circle that this server does not own.
    let circle = (0..)
        .map(Circle)
        .find(|circle| !server.owners(*circle).contains(&Some(server.own)));
    let circle = circle.unwrap();
    let answer = Message::Found(vec![(circle, found)]).write(id(1, 1));
    server.take(now, &name(1), &answer).unwrap();
    assert_eq!(server.poll_found(), None);
    server.want(now, circle);
    server.take(now, &name(1), &answer).unwrap();
    assert_eq!(server.poll_found(), Some((circle, vec![sharer(2, 1, 1)])));
    assert!(server.take(now, &name(1), b"\x09").is_err());
}

#[test]
fn what_a_server_tells_is_bounded() {
    let now = Instant::now();
    let mut server = machine(0, 1);
    server.set_members(now, [(name(1), 1)]);
    let all: Vec<Sharer> = (0..30).map(|peer| sharer(0, 1, peer)).collect();
    for number in 0..2000 {
        server.note(Circle(number), all.clone());
    }
    assert_eq!(server.tally().here, SERVER_MAX);
    // Queues between servers have 64 places.
    for round in 0..20 {
        server.round(now + ROUND * round);
        let sent = std::iter::from_fn(|| server.poll_message());
        assert!(sent.count() <= 16);
    }
    assert_eq!(server.tally().owned, SERVER_MAX);
    for number in 0..2000 {
        server.note(Circle(number), Vec::new());
    }
    (20..30).for_each(|round| server.round(now + ROUND * round));
    assert_eq!(server.tally(), Tally::default());
    assert!(server.told.is_empty());
}

/// What one of a hundred servers says at the rates of the data model: half of 35,000 viewers serve
/// others, and stay for ten minutes.
#[test]
fn sharing_costs_little_at_a_hundred_servers() {
    const SERVERS: usize = 100;
    const PEERS: u32 = 16_000;
    const SECONDS: u32 = 90;
    // One stream in many networks, each with one viewer here; and a hundred streams in all.
    for (what, circles) in [("networks", PEERS), ("streams", 100)] {
        let now = Instant::now();
        let mut servers: Vec<Sharers> = (0..SERVERS).map(|number| machine(number, 1)).collect();
        for server in &mut servers {
            server.set_members(now, (0..SERVERS).map(|number| (name(number), 1)));
        }
        let circle = |peer: u32| {
            Circle(
                u128::from(peer % circles).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
            )
        };
        let peers = |turn: u32, peer: u32| -> Vec<Sharer> {
            let first = turn + (peer % circles + circles - turn % circles) % circles;
            let all = (first..turn + PEERS).step_by(circles as usize);
            let all = all.take(SHARERS_MAX);
            all.map(|peer| sharer(0, 1, peer)).collect()
        };
        let (mut told, mut asked, mut got) = ((0, 0), (0, 0), (0, 0));
        let mut busy = Duration::ZERO;
        let come = PEERS / 600 / 2;
        let rounds = SECONDS * 2;
        let first = 60;
        for round in 0..rounds + first {
            let now = now + ROUND * round;
            let turn = round * come;
            let counts = round >= first;
            let begun = Instant::now();
            let changed = match round {
                0 => 0..circles,
                _ => turn - come..turn,
            };
            // Those that leave, and in the same circles others that come.
            for peer in changed {
                servers[0].note(circle(peer), peers(turn, peer));
            }
            for circle in servers[0].due(now) {
                let known = servers[0].told[&circle].sharers.clone();
                servers[0].note(circle, known);
            }
            for peer in 0..circles {
                servers[0].want(now, circle(peer));
            }
            servers[0].round(now);
            busy += if counts {
                begun.elapsed()
            } else {
                Duration::ZERO
            };
            for number in 0..SERVERS {
                if number > 0 {
                    servers[number].round(now);
                }
                let letters: Vec<_> =
                    std::iter::from_fn(|| servers[number].poll_message()).collect();
                for (to, bytes) in letters {
                    let to: usize = to.as_str()[1..].parse().unwrap();
                    let sum = match (number, bytes[0]) {
                        (0, 1) => &mut told,
                        (0, _) => &mut asked,
                        _ => &mut got,
                    };
                    if counts {
                        *sum = (sum.0 + 1, sum.1 + bytes.len());
                    }
                    let begun = Instant::now();
                    servers[to].take(now, &name(number), &bytes).unwrap();
                    // What server 0 tells stands for what it is told.
                    busy += if counts {
                        begun.elapsed()
                    } else {
                        Duration::ZERO
                    };
                }
            }
        }
        let per_second = |(count, bytes): (usize, usize)| {
            let second = |sum: usize| sum as f64 / f64::from(SECONDS);
            format!(
                "{:.0} messages and {:.1} kB",
                second(count),
                second(bytes) / 1e3
            )
        };
        println!(
            "{circles} {what}: a second, a server tells {} and asks {}, is answered {}; all of it \
             takes {:.2} ms; it tells of {} peers",
            per_second(told),
            per_second(asked),
            per_second(got),
            busy.as_secs_f64() * 1e3 / f64::from(SECONDS),
            servers[0].tally().here,
        );
        assert!(told.1 + asked.1 + got.1 < 200_000 * SECONDS as usize);
        let owned: usize = servers.iter().map(|server| server.tally().owned).sum();
        let here = servers[0].tally().here;
        assert!(
            owned >= 2 * here - 200 && owned <= 2 * here + 200,
            "{owned} of {here}"
        );
    }
}

/// Servers of other versions must agree on owners.
#[test]
fn owners_are_what_they_were() {
    let id = |number| server_id(&name(number), 1);
    assert_eq!(id(1), ServerId(4_631_808_426_558_342_302));
    let names = (0..10).map(|number| (id(number), name(number))).collect();
    let shards = shards(&names);
    let mut owned = BTreeMap::<_, u32>::new();
    for [owner, next] in &shards {
        assert!(next.is_some() && owner != next);
        *owned.entry(owner.unwrap()).or_default() += 1;
    }
    assert!(
        owned.values().all(|count| (60..150).contains(count)),
        "{owned:?}"
    );
    let owners = [0, 1, 1023].map(|shard: usize| shards[shard][0].unwrap());
    assert_eq!(owners, [id(3), id(9), id(0)]);
}
