//! The side of a node that asks: the protocol, the neighbours that it draws on, and what has come.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use ncserverd::gf::Kernels;
use ncserverd::peer::neighbours::Neighbours;
use ncserverd::peer::proto::{Config, Counts, FetchId, Keys, Proto, Secret, SourceId};
use ncserverd::wire::message::{self, Hello, HoldingState};

use crate::sender::Holding;
use crate::setup::{NOMINAL, PAYLOAD};

/// Neighbours that `ncpeer` draws on.
const NEIGHBOURS_MAX: usize = 8;

/// The side of a node that asks.
pub(crate) struct Consumer {
    pub(crate) proto: Proto,
    pub(crate) neighbours: Neighbours,
    pub(crate) sources: BTreeMap<SourceId, Source>,
    pub(crate) fetches: HashMap<FetchId, Coming>,
    pub(crate) holdings: HashMap<usize, Holding>,
    pub(crate) untold: BTreeMap<usize, HoldingState>,
    pub(crate) is_telling: bool,
    /// When it is to be woken.
    pub(crate) timer: Option<Instant>,
    /// What was counted when what counts began.
    pub(crate) before: Counts,
    pub(crate) completed: u64,
}

/// Where a source is, and until when its connection is busy with what was sent in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub(crate) node: usize,
    pub(crate) up_at: Instant,
    pub(crate) down_at: Instant,
}

/// A segment under way.
pub(crate) struct Coming {
    pub(crate) segment: usize,
    pub(crate) left: u32,
    pub(crate) is_right: bool,
}

impl Consumer {
    /// `shares`: whether it passes on what comes.
    pub(crate) fn new(shares: bool, identity: [u8; 32]) -> Self {
        // What `ncpeer` takes, in blocks as small as those here.
        let scaled = |bytes: u64| bytes * u64::from(PAYLOAD) / u64::from(NOMINAL);
        let proto = Proto::new(Config {
            hello: Hello::defaults(),
            datagrams: true,
            requests_max: 64,
            window_min: scaled(256 << 10),
            window_max: scaled(16 << 20),
            answer_timeout: Duration::from_secs(30),
            hello_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            rate_min: 1024,
            kernels: Kernels::detect(),
            gathers: false,
            tells: shares,
            keys: Keys::default(),
            tests_max: 2,
            rows_max: 128 << 20,
            secret: Secret::new([1; 32]),
        });
        let mut neighbours = Neighbours::new(if shares { NEIGHBOURS_MAX } else { 0 }, 1, true);
        neighbours.set_own(identity);
        Self {
            proto,
            neighbours,
            sources: BTreeMap::new(),
            fetches: HashMap::new(),
            holdings: HashMap::new(),
            untold: BTreeMap::new(),
            is_telling: false,
            timer: None,
            before: Counts::default(),
            completed: 0,
        }
    }

    pub(crate) fn note(&mut self, segment: usize, state: HoldingState) {
        self.untold.insert(segment, state);
    }

    /// Has it note what its neighbours have brought, as the driver does in every turn.
    pub(crate) fn weigh_neighbours(&mut self, now: Instant) {
        for source in self.sources.keys() {
            if self.neighbours.is_one(*source) {
                self.neighbours.brought(
                    now,
                    *source,
                    self.proto.source_counts(*source).payload_bytes,
                );
            }
        }
    }
}

/// Bytes of a message on the wire.
pub(crate) fn encoded(message: &message::Message) -> usize {
    let mut out = Vec::new();
    message.encode(&mut out);
    out.len()
}
