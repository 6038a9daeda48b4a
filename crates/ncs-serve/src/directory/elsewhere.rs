//! Peers that serve others and are connected to other servers of the fleet.
//!
//! What they hold is not known: they follow the stream, as far as their server says. They are named
//! after the peers of this server, and only where these are too few.

use std::collections::HashMap;
use std::net::SocketAddr;

use rand::Rng;
use rand::seq::SliceRandom as _;

use super::circle::Circle;
use super::tickets::Tickets;

/// What a server tells the others of a peer that serves: how it is reached. Nothing says which
/// segments it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sharer {
    /// Its address, as its connection to the server shows it, with the port of its offer.
    pub address: SocketAddr,
    /// SHA-256 of its certificate.
    pub identity: [u8; 32],
}

/// Peers at other servers, by circle.
#[derive(Debug, Default)]
pub(super) struct Elsewhere(HashMap<Circle, Vec<Remote>>);

#[derive(Debug)]
pub(super) struct Remote {
    pub(super) sharer: Sharer,
    pub(super) tickets: Tickets,
    /// How often it was named here.
    pub(super) named: u64,
}

impl Elsewhere {
    /// These are known of a circle from now on.
    pub(super) fn set(&mut self, circle: Circle, sharers: Vec<Sharer>) {
        let mut before = self.0.remove(&circle).unwrap_or_default();
        let remote = |sharer: Sharer| {
            let known = before.iter().position(|known| known.sharer == sharer);
            known.map_or_else(
                || Remote {
                    sharer,
                    tickets: Tickets::default(),
                    named: 0,
                },
                |known| before.swap_remove(known),
            )
        };
        let remotes: Vec<Remote> = sharers.into_iter().map(remote).collect();
        if !remotes.is_empty() {
            self.0.insert(circle, remotes);
        }
    }

    /// Those of a circle, in the order in which it is their turn to be named.
    pub(super) fn in_turn(&mut self, circle: Circle, random: &mut impl Rng) -> &mut [Remote] {
        let remotes = self
            .0
            .get_mut(&circle)
            .map_or(&mut [][..], Vec::as_mut_slice);
        remotes.shuffle(random);
        remotes.sort_by_key(|remote| remote.named);
        remotes
    }

    pub(super) fn knows(&self, identity: &[u8; 32]) -> bool {
        let mut remotes = self.0.values().flatten();
        remotes.any(|remote| remote.sharer.identity == *identity)
    }
}
