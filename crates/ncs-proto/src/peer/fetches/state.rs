//! The state of all fetches, which the files beside this one work on.

use std::collections::VecDeque;
use std::time::Duration;

use super::drip::Drip;
use super::fetch::Fetch;
use super::schedule::Schedule;
use super::sources::Sources;
use crate::object::Shape;
use crate::peer::config::Config;
use crate::peer::counts::Counts;
use crate::peer::evidence::{Evidence, Pollution};
use crate::peer::gets::Introduction;
use crate::peer::ids::{FetchId, SourceId};
use crate::peer::order::Place;
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;
use crate::wire::Violation;

/// All segments under way.
#[derive(Debug)]
pub(crate) struct Fetches {
    pub(super) config: Config,
    pub(super) sources: Sources,
    pub(super) fetches: SortedMap<FetchId, Fetch>,
    pub(super) next_fetch: u64,
    /// Everything that is not counted by source.
    pub(super) counts: Counts,
    /// When any fetch last progressed.
    pub(super) progress_at: Option<Instant>,
    /// Whether [`Fetches::advance`] has something to do besides what is due.
    pub(super) stirred: bool,
    pub(super) drip: Drip,
    pub(super) evidence: Evidence,
    /// Names trials of blocks over the prime field.
    pub(super) next_trial: u64,
    /// The number of trials under way, those of ended fetches included.
    pub(super) testing: usize,
    /// Fetches that are over while some of their generations are still requested.
    pub(super) given_up: Vec<FetchId>,
    /// Sources that were proved to send wrong blocks, and still have connections.
    pub(super) polluters: VecDeque<Pollution>,
    /// Sources that have sent wrong blocks of a segment that they have not named themselves. It is
    /// pollution if they name this segment with this shape.
    pub(super) accused: SortedMap<(FetchId, SourceId), (Pollution, Shape)>,
    /// Introductions to ask for.
    pub(super) unnamed: VecDeque<(Introduction, Place)>,
    /// All introductions without an answer, those to ask for included.
    pub(super) naming: SortedSet<Introduction>,
    /// Sources that have broken the rules with blocks that were tested later than they came.
    pub(super) broken: VecDeque<(Instant, SourceId, Violation)>,
    /// Since when there is no connection to any server.
    pub(super) dark_since: Option<Instant>,
    /// How long that was so before, in all.
    pub(super) outages: Duration,
}

impl Fetches {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            evidence: Evidence::new(config.kernels, config.rows_max, config.secret.clone()),
            drip: Drip::new(config.rate_min, config.stall_timeout),
            config,
            sources: Sources::default(),
            fetches: SortedMap::new(),
            next_fetch: 0,
            counts: Counts::default(),
            progress_at: None,
            stirred: false,
            next_trial: 0,
            testing: 0,
            given_up: Vec::new(),
            polluters: VecDeque::new(),
            accused: SortedMap::new(),
            unnamed: VecDeque::new(),
            naming: SortedSet::new(),
            broken: VecDeque::new(),
            dark_since: None,
            outages: Duration::ZERO,
        }
    }

    /// The order in which fetches are served.
    pub(super) fn schedule(&self) -> Schedule<'_> {
        Schedule {
            config: &self.config,
            sources: &self.sources,
            fetches: &self.fetches,
        }
    }
}
