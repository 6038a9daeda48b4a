//! What an owner knows of its circles: the peers of each server.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use ncs_serve::directory::{Circle, Sharer};
use rand::Rng;
use rand::seq::index;

use super::wire::{FOUND_MAX, Found, ServerId};

/// What is not told again for so long ends.
pub(super) const LASTS: Duration = Duration::from_secs(75);
/// Peers of one server, and of all. Further ones are ignored.
pub(super) const SERVER_MAX: usize = 1 << 14;
pub(super) const TOTAL_MAX: usize = 1 << 16;
/// Servers with peers in one circle. Further ones are ignored.
pub(super) const PARTS_MAX: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Owned {
    circles: HashMap<Circle, BTreeMap<ServerId, Part>>,
    /// The number of peers of each server, and of all.
    by_server: BTreeMap<ServerId, usize>,
    total: usize,
}

/// The peers of one server in a circle, at least one.
#[derive(Debug)]
struct Part {
    sharers: Vec<Sharer>,
    told_at: Instant,
}

impl Owned {
    /// A server has these peers in a circle, and no others.
    pub(super) fn take(
        &mut self,
        now: Instant,
        server: ServerId,
        circle: Circle,
        sharers: Vec<Sharer>,
    ) {
        let parts = self.circles.entry(circle).or_default();
        let before = parts.remove(&server).map_or(0, |part| part.sharers.len());
        let of_server = self.by_server.entry(server).or_default();
        *of_server -= before;
        self.total -= before;
        let count = sharers.len();
        let has_room = *of_server + count <= SERVER_MAX
            && self.total + count <= TOTAL_MAX
            && parts.len() < PARTS_MAX;
        if count > 0 && has_room {
            *of_server += count;
            self.total += count;
            let told_at = now;
            parts.insert(server, Part { sharers, told_at });
        }
        if parts.is_empty() {
            self.circles.remove(&circle);
        }
        if self.by_server.get(&server) == Some(&0) {
            self.by_server.remove(&server);
        }
    }

    /// Forgets the servers that do not live.
    pub(super) fn retain(&mut self, lives: impl Fn(ServerId) -> bool) {
        if !self.by_server.keys().all(|server| lives(*server)) {
            self.retain_parts(|server, _| lives(server));
        }
    }

    /// Forgets what was not told for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        self.retain_parts(|_, part| part.told_at + LASTS > now);
    }

    fn retain_parts(&mut self, stays: impl Fn(ServerId, &Part) -> bool) {
        let Self {
            circles, by_server, ..
        } = self;
        by_server.clear();
        circles.retain(|_, parts| {
            parts.retain(|server, part| {
                let stays = stays(*server, part);
                if stays {
                    *by_server.entry(*server).or_default() += part.sharers.len();
                }
                stays
            });
            !parts.is_empty()
        });
        self.total = self.by_server.values().sum();
    }

    /// Some peers of a circle, drawn at random, of other servers than this one.
    pub(super) fn draw(
        &self,
        random: &mut impl Rng,
        circle: Circle,
        not_of: ServerId,
    ) -> Vec<Found> {
        let parts = self.circles.get(&circle).into_iter().flatten();
        let parts = parts.filter(|(server, _)| **server != not_of);
        let all = parts.flat_map(|(server, part)| part.sharers.iter().map(|one| (*server, *one)));
        let all: Vec<Found> = all.collect();
        let drawn = index::sample(random, all.len(), all.len().min(FOUND_MAX));
        drawn.into_iter().map(|at| all[at]).collect()
    }

    /// The number of peers that are known.
    pub(super) fn len(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    fn sharers(count: usize) -> Vec<Sharer> {
        let sharer = |number: usize| Sharer {
            address: SocketAddr::from(([192, 0, 2, 1], 4444)),
            identity: [u8::try_from(number).unwrap(); 32],
        };
        (0..count).map(sharer).collect()
    }

    #[test]
    fn a_server_replaces_what_it_has_told() {
        let (now, mut random) = (Instant::now(), StdRng::seed_from_u64(7));
        let (mut owned, [one, other]) = (Owned::default(), [1, 2].map(ServerId));
        owned.take(now, one, Circle(1), sharers(3));
        owned.take(now, one, Circle(1), sharers(2));
        owned.take(now, other, Circle(1), sharers(1));
        owned.take(now, other, Circle(2), sharers(1));
        assert_eq!(owned.len(), 4);
        assert_eq!(owned.draw(&mut random, Circle(1), ServerId(9)).len(), 3);
        assert_eq!(
            owned.draw(&mut random, Circle(1), one),
            [(other, sharers(1)[0])]
        );
        owned.take(now, other, Circle(1), Vec::new());
        assert!(owned.draw(&mut random, Circle(1), one).is_empty());
        owned.retain(|server| server != one);
        assert_eq!(owned.len(), 1);
        owned.expire(now + LASTS);
        assert!(owned.len() == 0 && owned.circles.is_empty() && owned.by_server.is_empty());
    }

    #[test]
    fn what_servers_tell_is_bounded() {
        let (now, mut owned) = (Instant::now(), Owned::default());
        for number in 0..SERVER_MAX as u128 + 10 {
            owned.take(now, ServerId(1), Circle(number), sharers(1));
        }
        assert_eq!(owned.len(), SERVER_MAX);
        for server in 2..10 {
            for number in 0..SERVER_MAX as u128 / 16 {
                owned.take(now, ServerId(server), Circle(number), sharers(16));
            }
        }
        assert_eq!(owned.len(), TOTAL_MAX);
        // It still may say less, and then something else.
        owned.take(now, ServerId(2), Circle(0), sharers(1));
        assert_eq!(owned.len(), TOTAL_MAX - 15);
        let mut owned = Owned::default();
        for server in 0..PARTS_MAX as u64 + 10 {
            owned.take(now, ServerId(server), Circle(1), sharers(1));
        }
        assert_eq!(owned.len(), PARTS_MAX);
    }
}
