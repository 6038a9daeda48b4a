//! A network in virtual time for tests of servers: it loses, repeats and delays messages.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::beat::Name;

/// A message on its way.
pub(super) struct Letter {
    at: Instant,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) bytes: Vec<u8>,
}

/// The messages on their way, and the chance that decides over them.
pub(super) struct Network {
    letters: Vec<Letter>,
    pub(super) random: StdRng,
    /// The parts of messages that are lost, that come twice, and that take up to two seconds.
    pub(super) losses: f64,
    pub(super) repeats: f64,
    pub(super) delays: f64,
}

impl Network {
    /// One that loses nothing.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            letters: Vec::new(),
            random: StdRng::seed_from_u64(seed),
            losses: 0.0,
            repeats: 0.0,
            delays: 0.0,
        }
    }

    pub(super) fn send(&mut self, now: Instant, from: usize, to: &Name, bytes: &[u8]) {
        let to = to.as_str()[1..].parse().unwrap();
        let copies = match (
            self.random.random_bool(self.losses),
            self.random.random_bool(self.repeats),
        ) {
            (true, _) => 0,
            (false, true) => 2,
            (false, false) => 1,
        };
        for _ in 0..copies {
            let delay = match self.random.random_bool(self.delays) {
                true => Duration::from_millis(self.random.random_range(0..2000)),
                false => Duration::ZERO,
            };
            let (at, bytes) = (now + delay, bytes.to_vec());
            self.letters.push(Letter {
                at,
                from,
                to,
                bytes,
            });
        }
    }

    /// Those that arrive until now.
    pub(super) fn arrived(&mut self, now: Instant) -> Vec<Letter> {
        let letters = std::mem::take(&mut self.letters).into_iter();
        let (come, later) = letters.partition(|letter| letter.at <= now);
        self.letters = later;
        come
    }
}

/// The name of a server with this number.
pub(super) fn name(number: usize) -> Name {
    format!("s{number}").parse().unwrap()
}
