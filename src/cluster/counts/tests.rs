//! Servers of a fleet in virtual time, over a network that loses, repeats and delays.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::cluster::counts::books::{PATIENCE, STRICT_FOR};
use crate::cluster::network::{Network, name};
use crate::cluster::roster::DEAD_AFTER;

/// Beats come every two seconds.
const BEAT: Duration = Duration::from_secs(2);
/// The time in which a fleet without losses agrees on a limit.
const CORRECTED_WITHIN: Duration = Duration::from_secs(7);

/// A connection of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Connection {
    number: u32,
    came_at: Instant,
}

/// A server, as its viewers know it.
struct Server {
    counts: Counts,
    connections: BTreeMap<u128, Vec<Connection>>,
    shares: BTreeMap<u128, Share>,
    spent: BTreeMap<u128, u64>,
    lives: bool,
    /// The part of the network that it is in.
    part: usize,
    /// When it last heard a beat of each other server.
    heard: BTreeMap<Name, Instant>,
}

struct Fleet {
    begun: Instant,
    now: Instant,
    servers: Vec<Server>,
    network: Network,
    limit: Option<u32>,
    rate: Option<u64>,
    /// Bytes a second that the holder would spend at each server.
    hunger: u64,
    opened: u32,
    closed: Vec<u32>,
    refused: u32,
}

impl Fleet {
    fn new(count: usize, limit: u32) -> Self {
        let now = Instant::now();
        let server = |number| Server {
            counts: Counts::new(name(number), 1000),
            connections: BTreeMap::new(),
            shares: BTreeMap::new(),
            spent: BTreeMap::new(),
            lives: true,
            part: 0,
            heard: BTreeMap::new(),
        };
        let mut fleet = Self {
            begun: now,
            now,
            servers: (0..count).map(server).collect(),
            network: Network::new(7),
            limit: Some(limit),
            rate: None,
            hunger: 0,
            opened: 0,
            closed: Vec::new(),
            refused: 0,
        };
        fleet.run(BEAT);
        fleet
    }

    /// Opens a connection where the server admits it.
    fn open(&mut self, server: usize, holder: u128) -> Option<u32> {
        let connection = Connection {
            number: self.opened,
            came_at: self.now,
        };
        let Server {
            connections,
            shares,
            ..
        } = &mut self.servers[server];
        let here = connections.entry(holder).or_default();
        let share = shares.get(&holder).copied().unwrap_or_default();
        let most = [self.limit, share.keep.filter(|_| share.is_strict)];
        if most
            .into_iter()
            .flatten()
            .any(|most| here.len() >= most as usize)
        {
            self.refused += 1;
            return None;
        }
        here.push(connection);
        self.opened += 1;
        self.note(server, holder);
        Some(connection.number)
    }

    fn close(&mut self, server: usize, holder: u128, number: u32) {
        let here = self.servers[server].connections.entry(holder).or_default();
        here.retain(|connection| connection.number != number);
        self.note(server, holder);
    }

    fn note(&mut self, server: usize, holder: u128) {
        let used = self.used(server, holder);
        self.servers[server].counts.note(self.now, used);
    }

    fn used(&self, server: usize, holder: u128) -> Use {
        let server = &self.servers[server];
        let here = server
            .connections
            .get(&holder)
            .map_or(&[][..], Vec::as_slice);
        let count = here.len();
        let marks = count.min(16);
        Use {
            holder,
            connections: u32::try_from(count).unwrap(),
            marks: (0..marks)
                .map(|mark| here[mark * count / marks].came_at)
                .collect(),
            limit: self.limit.filter(|_| count > 0),
            rate: self.rate.filter(|_| count > 0),
            spent: server.spent.get(&holder).copied().unwrap_or(0),
        }
    }

    fn at(&self, server: usize, holder: u128) -> Vec<u32> {
        let here = self.servers[server].connections.get(&holder);
        here.into_iter()
            .flatten()
            .map(|connection| connection.number)
            .collect()
    }

    /// Connections of a holder at servers that live.
    fn count(&self, holder: u128) -> usize {
        let living = (0..self.servers.len()).filter(|server| self.servers[*server].lives);
        living.map(|server| self.at(server, holder).len()).sum()
    }

    fn reach(&self, one: usize, other: usize) -> bool {
        let [one, other] = [&self.servers[one], &self.servers[other]];
        one.lives && other.lives && one.part == other.part
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
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
            if !(elapsed + 500 * from as u128).is_multiple_of(BEAT.as_millis()) {
                continue;
            }
            for to in 0..count {
                if from != to && self.reach(from, to) {
                    self.servers[to].heard.insert(name(from), now);
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
                server
                    .counts
                    .take(now, &name(letter.from), &letter.bytes)
                    .unwrap();
                self.apply(letter.to);
            }
        }
    }

    fn round(&mut self, number: usize) {
        let now = self.now;
        let server = &mut self.servers[number];
        server
            .heard
            .retain(|_, heard_at| *heard_at + DEAD_AFTER > now);
        let members = server.heard.iter().map(|(name, heard_at)| Member {
            name: name.clone(),
            started_ms: 1000,
            is_late: *heard_at + LATE_AFTER < now,
        });
        let members: Vec<Member> = members.collect();
        server.counts.set_members(now, members);
        if let Some(rate) = self.rate {
            for (holder, _) in server
                .connections
                .iter()
                .filter(|(_, here)| !here.is_empty())
            {
                let share = server.shares.get(holder).and_then(|share| share.rate);
                let bytes = self.hunger.min(share.unwrap_or(rate)) / 2;
                *server.spent.entry(*holder).or_default() += bytes;
            }
        }
        let flowing: Vec<u128> = server.counts.flowing().collect();
        flowing
            .into_iter()
            .for_each(|holder| self.note(number, holder));
        self.servers[number].counts.round(now);
        self.apply(number);
        while let Some((to, bytes)) = self.servers[number].counts.poll_message() {
            self.network.send(now, number, &to, &bytes);
        }
    }

    fn apply(&mut self, number: usize) {
        while let Some((holder, share)) = self.servers[number].counts.poll_share() {
            let server = &mut self.servers[number];
            server.shares.insert(holder, share);
            let here = server.connections.entry(holder).or_default();
            let keep = share.keep.map_or(usize::MAX, |keep| keep as usize);
            if here.len() > keep {
                let closed = here.split_off(keep);
                self.closed
                    .extend(closed.iter().map(|connection| connection.number));
                self.note(number, holder);
            }
        }
    }

    fn shared_rates(&self, holder: u128) -> Vec<u64> {
        let rate = self.rate.unwrap();
        let shares = self
            .servers
            .iter()
            .filter(|server| server.connections.contains_key(&holder));
        let shares = shares.map(|server| server.shares.get(&holder).and_then(|share| share.rate));
        shares.map(|share| share.unwrap_or(rate)).collect()
    }
}

const ANN: u128 = 0x1234_5678_9abc_def0_0123_4567_89ab_cdef;

#[test]
fn the_newest_connections_of_a_holder_go() {
    let mut fleet = Fleet::new(3, 3);
    let old = [0, 1, 0].map(|server| {
        fleet.run(BEAT);
        fleet.open(server, ANN).unwrap()
    });
    fleet.run(CORRECTED_WITHIN);
    let new = [2, 1].map(|server| fleet.open(server, ANN).unwrap());
    fleet.run(PATIENCE);
    assert!(
        fleet.closed.is_empty(),
        "a viewer that moves is at two servers"
    );
    fleet.run(CORRECTED_WITHIN - PATIENCE);
    fleet.closed.sort_unstable();
    assert_eq!(fleet.closed, new);
    assert_eq!(
        (fleet.at(0, ANN), fleet.at(1, ANN)),
        (vec![old[0], old[2]], vec![old[1]])
    );
    // Those who come back at once are refused, until a place is free.
    for server in [1, 2] {
        assert_eq!(fleet.open(server, ANN), None);
    }
    fleet.close(0, ANN, old[0]);
    fleet.run(3 * ROUND);
    assert!(fleet.open(2, ANN).is_some());
    // At other servers they do not last.
    fleet.closed.clear();
    fleet.open(0, ANN);
    fleet.run(3 * ROUND + Duration::from_secs(1));
    assert_eq!((fleet.count(ANN), fleet.closed.len()), (3, 1));
    // In time all is as before.
    let (at_1, at_2) = (fleet.at(1, ANN), fleet.at(2, ANN));
    at_1.into_iter()
        .for_each(|number| fleet.close(1, ANN, number));
    at_2.into_iter()
        .for_each(|number| fleet.close(2, ANN, number));
    fleet.run(STRICT_FOR + CORRECTED_WITHIN);
    assert!(fleet.servers.iter().all(|server| {
        server
            .shares
            .values()
            .all(|share| *share == Share::default())
    }));
    let tallies: Vec<_> = fleet
        .servers
        .iter()
        .map(|server| server.counts.tally())
        .collect();
    assert_eq!(
        tallies
            .iter()
            .map(|tally| (tally.here, tally.owned, tally.shared))
            .fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2)),
        (1, 1, 0)
    );
}

/// Their viewers are at other servers at once, and the dead one still counts.
#[test]
fn viewers_of_a_dead_server_keep_their_places() {
    for (dies_of_owner, servers) in [(true, 2), (false, 2), (true, 5), (false, 5)] {
        let mut fleet = Fleet::new(servers, 2);
        for holder in 0..40 {
            let home = usize::try_from(holder).unwrap() % servers;
            fleet.open(home, holder);
            fleet.open((home + 1) % servers, holder);
        }
        fleet.run(CORRECTED_WITHIN);
        let dead = usize::from(!dies_of_owner);
        fleet.servers[dead].lives = false;
        fleet.step();
        for holder in 0..40 {
            for _ in fleet.at(dead, holder) {
                let other = (dead + 1 + usize::try_from(holder).unwrap() % (servers - 1)) % servers;
                assert!(fleet.open(other, holder).is_some());
            }
        }
        fleet.run(3 * CORRECTED_WITHIN);
        assert!(fleet.closed.is_empty(), "{:?}", fleet.closed);
        // Its places are free again, and no more than these.
        let alive = (0..servers).find(|server| *server != dead).unwrap();
        for holder in 0..40 {
            fleet.open(alive, holder);
        }
        fleet.run(CORRECTED_WITHIN);
        assert!((0..40).all(|holder| fleet.count(holder) <= 2));
    }
}

/// Each part of the network admits up to the limit, and later the newest go.
#[test]
fn a_partition_into_parts_admits_the_limit_in_each_and_heals() {
    const LIMIT: u32 = 5;
    for parts in 1..=4 {
        let mut fleet = Fleet::new(8, LIMIT);
        for server in 0..8 {
            fleet.servers[server].part = server % parts;
        }
        fleet.run(DEAD_AFTER + BEAT);
        let most = LIMIT as usize * parts;
        for _ in 0..20 {
            for server in 0..8 {
                fleet.open(server, ANN);
            }
            fleet.step();
        }
        fleet.run(CORRECTED_WITHIN);
        assert!(fleet.count(ANN) <= most, "{} in {parts}", fleet.count(ANN));
        assert!(fleet.count(ANN) >= LIMIT as usize);
        fleet.servers.iter_mut().for_each(|server| server.part = 0);
        fleet.run(BEAT + CORRECTED_WITHIN);
        assert_eq!(fleet.count(ANN), LIMIT as usize, "{parts} parts");
    }
}

/// Whatever the network does: who keeps to the limit loses nothing, and who does not is held to it
/// in the end.
#[test]
fn a_bad_network_closes_no_connection_within_the_limit() {
    for seed in 0..20 {
        let mut fleet = Fleet::new(5, 3);
        fleet.network.random = StdRng::seed_from_u64(seed);
        let mut random = StdRng::seed_from_u64(seed);
        (
            fleet.network.losses,
            fleet.network.repeats,
            fleet.network.delays,
        ) = (0.2, 0.2, 0.2);
        for round in 0..600 {
            let (server, holder) = (random.random_range(0..5), random.random_range(0..30));
            // Even holders keep to the limit, odd ones do not.
            let fits = fleet.count(holder) < 3 || holder % 2 == 1;
            if random.random_bool(0.5) && fits && fleet.servers[server].lives {
                fleet.open(server, holder);
            }
            let (server, holder) = (random.random_range(0..5), random.random_range(0..30));
            if let Some(number) = fleet.at(server, holder).first().copied() {
                fleet.close(server, holder, number);
            }
            // Now and then a server is cut off, and returns.
            if round % 60 == 30 {
                fleet.servers[random.random_range(0..5)].part = 1;
            }
            if round % 60 == 55 {
                fleet.servers.iter_mut().for_each(|server| server.part = 0);
            }
            let before = fleet.closed.len();
            let counts: Vec<usize> = (0..30).map(|holder| fleet.count(holder)).collect();
            fleet.step();
            if fleet.closed.len() > before {
                for holder in (0..30).step_by(2) {
                    let (was, is) = (counts[holder as usize], fleet.count(holder));
                    assert_eq!(was, is, "seed {seed}, round {round}, holder {holder}");
                }
            }
        }
        (
            fleet.network.losses,
            fleet.network.repeats,
            fleet.network.delays,
        ) = (0.0, 0.0, 0.0);
        fleet.servers.iter_mut().for_each(|server| server.part = 0);
        fleet.run(DEAD_AFTER + 2 * CORRECTED_WITHIN);
        for holder in 0..30 {
            assert!(
                fleet.count(holder) <= 3,
                "seed {seed}: {}",
                fleet.count(holder)
            );
        }
        // What owners know is the truth.
        for holder in 0..30 {
            let known: u32 = fleet
                .servers
                .iter()
                .map(|server| server.counts.books.connections(holder))
                .sum();
            assert_eq!(
                known as usize,
                fleet.count(holder),
                "seed {seed}, holder {holder}"
            );
        }
    }
}

#[test]
fn servers_share_a_rate_and_each_part_of_a_partition_has_all_of_it() {
    const RATE: u64 = 1_000_000;
    let mut fleet = Fleet::new(4, 100);
    (fleet.rate, fleet.hunger) = (Some(RATE), 2 * RATE);
    fleet.open(0, ANN);
    fleet.run(2 * BEAT);
    assert_eq!(fleet.shared_rates(ANN), [RATE], "one server has all of it");
    fleet.open(1, ANN);
    fleet.run(2 * BEAT);
    assert_eq!(fleet.shared_rates(ANN), [RATE / 2, RATE / 2]);
    fleet.open(2, ANN);
    fleet.open(3, ANN);
    fleet.run(2 * BEAT);
    assert_eq!(fleet.shared_rates(ANN), [RATE / 4; 4]);

    for server in [2, 3] {
        fleet.servers[server].part = 1;
    }
    fleet.run(DEAD_AFTER + 2 * BEAT);
    assert_eq!(fleet.shared_rates(ANN), [RATE / 2; 4]);
    fleet.servers.iter_mut().for_each(|server| server.part = 0);
    fleet.run(3 * BEAT);
    assert_eq!(fleet.shared_rates(ANN), [RATE / 4; 4]);

    // A server alone has its share for a while, and then all.
    fleet.servers[3].part = 1;
    fleet.run(DEAD_AFTER - BEAT);
    assert_eq!(fleet.shared_rates(ANN)[3], RATE / 4);
    fleet.run(3 * BEAT);
    assert_eq!(fleet.shared_rates(ANN)[3], RATE);
}

/// What one of a hundred servers says at the rates of the data model, where every viewer has a
/// token with a limit, and one of a hundred is at two servers.
#[test]
fn counting_costs_little_at_a_hundred_servers() {
    const SERVERS: usize = 100;
    const VIEWERS: u128 = 35_000;
    const SECONDS: u32 = 90;
    /// Viewers stay for ten minutes.
    const CHANGES_PER_ROUND: u128 = VIEWERS / 600 / 2;
    let now = Instant::now();
    let members = |now: Instant| {
        let _ = now;
        (0..SERVERS).map(|number| Member {
            name: name(number),
            started_ms: 1000,
            is_late: false,
        })
    };
    let mut servers: Vec<Counts> = (0..SERVERS)
        .map(|number| Counts::new(name(number), 1000))
        .collect();
    servers
        .iter_mut()
        .for_each(|server| server.set_members(now, members(now)));
    let used = |now: Instant, viewer: u128, connections: u32| Use {
        holder: viewer.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835),
        connections,
        marks: (0..connections).map(|_| now).collect(),
        limit: (connections > 0).then_some(2),
        rate: (connections > 0).then_some(1_000_000),
        spent: 0,
    };
    let (mut told, mut answered) = ((0, 0), (0, 0));
    let (mut telling, mut taking) = (Duration::ZERO, Duration::ZERO);
    let rounds = SECONDS * 2;
    for round in 0..rounds + 2 {
        let now = now + ROUND * round;
        let turn = u128::from(round) * CHANGES_PER_ROUND;
        let (first, last) = (turn, turn + VIEWERS);
        let come = if round == 0 {
            first..last
        } else {
            last - CHANGES_PER_ROUND..last
        };
        for viewer in come {
            servers[0].note(now, used(now, viewer, 1));
            if viewer % 100 == 0 {
                servers[1].note(now, used(now, viewer, 1));
            }
        }
        for viewer in turn.saturating_sub(CHANGES_PER_ROUND)..turn {
            servers[0].note(now, used(now, viewer, 0));
            servers[1].note(now, used(now, viewer, 0));
        }
        let counts = round > 1;
        for number in 0..SERVERS {
            let begun = Instant::now();
            servers[number].round(now);
            if number == 0 && counts {
                telling += begun.elapsed();
            }
            let mut letters = Vec::new();
            while let Some(letter) = servers[number].poll_message() {
                letters.push(letter);
            }
            for (to, bytes) in letters {
                let to: usize = to.as_str()[1..].parse().unwrap();
                let sum = match (number, to) {
                    (0, _) => &mut told,
                    (_, 0) => &mut answered,
                    _ => &mut (0, 0),
                };
                if counts {
                    *sum = (sum.0 + 1, sum.1 + bytes.len());
                }
                let begun = Instant::now();
                servers[to].take(now, &name(number), &bytes).unwrap();
                if number == 0 && counts {
                    taking += begun.elapsed();
                }
            }
        }
    }
    let per_second = |count: usize| count as f64 / f64::from(SECONDS);
    println!(
        "a server tells {:.0} messages and {:.1} kB a second, and is told {:.0} and {:.1} kB of \
         its shares; telling takes {:.2} ms of a second, and being told as much {:.2} ms",
        per_second(told.0),
        per_second(told.1) / 1e3,
        per_second(answered.0),
        per_second(answered.1) / 1e3,
        telling.as_secs_f64() * 1e3 / f64::from(SECONDS),
        taking.as_secs_f64() * 1e3 / f64::from(SECONDS),
    );
    assert!(
        per_second(told.0) < 200.0 && per_second(told.1) < 150e3,
        "{told:?}"
    );
    let owned: usize = servers.iter().map(|server| server.tally().owned).sum();
    assert_eq!(owned, servers[0].tally().here);
}

/// Servers of other versions must agree on owners.
#[test]
fn weights_are_what_they_were() {
    assert_eq!(weight(hash(&name(1)), ANN), 7_315_334_349_521_576_974);
    let peers: BTreeMap<_, _> = (0..10).map(|n| (name(n), Peer::new(&name(n), 0))).collect();
    let mut owned = BTreeMap::new();
    for holder in 0..10_000_u128 {
        *owned
            .entry(owner(&peers, holder * 0x9e37_79b9_7f4a_7c15))
            .or_insert(0) += 1;
    }
    assert!(
        owned.len() == 10 && owned.values().all(|count| (850..1150).contains(count)),
        "{owned:?}"
    );
}
