//! The state of the peer's side, which the files beside this one work on.

use super::config::Config;
use super::effects::Effects;
use super::fetches::Fetches;
use super::gets::Gets;
use super::ids::SourceId;
use super::keyring::Keyring;
use super::link::Source;
use super::offer::Offer;
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;

/// The peer's side of conversations with any number of sources.
#[derive(Debug)]
pub struct Proto {
    pub(super) config: Config,
    pub(super) sources: SortedMap<SourceId, Source>,
    pub(super) gets: Gets,
    pub(super) fetches: Fetches,
    pub(super) subscriptions: SortedMap<u64, Subscription>,
    pub(super) effects: Effects,
    /// Sources that servers have named.
    pub(super) neighbours: SortedSet<SourceId>,
    /// What this side offers to others.
    pub(super) offer: Option<Offer>,
    pub(super) keyring: Keyring,
    /// SHA-256 of the certificates that sources have shown.
    pub(super) identities: SortedMap<SourceId, [u8; 32]>,
    pub(super) polluters: SortedSet<SourceId>,
    /// The last thing that has gone wrong, and at which source.
    pub(super) trouble: Option<(Instant, SourceId, String)>,
    /// When the last good answer came.
    pub(super) answered_at: Option<Instant>,
    /// Sources whose connections are silent.
    pub(super) silent: SortedSet<SourceId>,
}

/// A subscribed stream. The subscription is made at every source, because one may fall silent.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) stream: String,
    pub(super) refused: SortedSet<SourceId>,
}

impl Proto {
    /// A peer without a connection. Without the feature `gfq` its HELLO offers no code over the
    /// prime field.
    pub fn new(mut config: Config) -> Self {
        config.hello.codecs.gfq &= cfg!(feature = "gfq");
        Self {
            gets: Gets::new(config.hello.segment_bytes_max),
            fetches: Fetches::new(config.clone()),
            keyring: Keyring::new(config.keys.clone()),
            config,
            sources: SortedMap::new(),
            subscriptions: SortedMap::new(),
            effects: Effects::default(),
            neighbours: SortedSet::new(),
            offer: None,
            identities: SortedMap::new(),
            polluters: SortedSet::new(),
            trouble: None,
            answered_at: None,
            silent: SortedSet::new(),
        }
    }

    /// The connected servers: sources that are not neighbours.
    pub(super) fn servers(&self) -> Vec<SourceId> {
        self.sources
            .keys()
            .copied()
            .filter(|source| !self.neighbours.contains(source))
            .collect()
    }

    /// Those of them that take requests.
    pub(super) fn open_servers(&self) -> SortedSet<SourceId> {
        self.servers()
            .into_iter()
            .filter(|id| {
                self.sources
                    .get(id)
                    .is_some_and(|source| source.link.server().is_some())
            })
            .collect()
    }
}
