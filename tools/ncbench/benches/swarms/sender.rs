//! The serving side of a node: open requests, and the next block for each.
//!
//! Requests of one peer are served in the order of their deadlines, and peers in turn, as
//! connections share a line. For an incomplete generation a peer gets at most as many blocks as
//! there are rows ([`plan`]); for a complete segment it gets source blocks if it accepts them, and
//! otherwise coded blocks with seeds.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::block::{Block, Vector};
use ncserverd::object::Generation;
use ncserverd::peer::proto::SourceId;
use ncserverd::relay::{Heap, News, Rows, plan};
use ncserverd::wire::message::Request;
use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use crate::setup::PAYLOAD;
use crate::stream::Segment;

/// A line that carries so many bytes a second, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    pub(crate) rate: f64,
    pub(crate) free_at: Instant,
}

impl Line {
    /// When the last of so many bytes has passed that come at this time.
    pub(crate) fn transmit(&mut self, at: Instant, bytes: usize) -> Instant {
        self.free_at = self.free_at.max(at) + Duration::from_secs_f64(bytes as f64 / self.rate);
        self.free_at
    }
}

/// What a node has of a segment.
#[derive(Debug)]
pub(crate) struct Holding {
    parts: Vec<HeldGeneration>,
    pub(crate) is_whole: bool,
    pub(crate) is_told: bool,
}

#[derive(Debug, Default)]
struct HeldGeneration {
    rows: Option<Rows>,
    held: u32,
    is_checked: bool,
    is_tainted: bool,
}

impl Holding {
    /// Nothing yet.
    pub(crate) fn new(segment: &Segment) -> Self {
        let parts = segment
            .shape
            .iter()
            .map(|_| HeldGeneration::default())
            .collect();
        Self {
            parts,
            is_whole: false,
            is_told: false,
        }
    }

    /// A row has come.
    pub(crate) fn brought(
        &mut self,
        segment: &Segment,
        index: u32,
        source: SourceId,
        block: Block,
        is_checked: bool,
    ) {
        let part = &mut self.parts[index as usize];
        let is_checked = is_checked && part.is_checked;
        part.held += 1;
        part.rows(segment, index).take(News::Row {
            source,
            block,
            is_checked,
        });
    }

    /// Those that have come are tested.
    pub(crate) fn checked(&mut self, segment: &Segment, index: u32, rows: Vec<Block>) {
        let part = &mut self.parts[index as usize];
        let right = u32::try_from(rows.len()).expect("at most n");
        part.is_tainted |= right < part.held;
        (part.is_checked, part.held) = (true, right);
        part.rows(segment, index).take(News::Checked(rows));
    }

    /// All of it has come.
    pub(crate) fn complete(&mut self) {
        self.is_whole = true;
        self.parts = Vec::new();
    }
}

impl HeldGeneration {
    fn rows(&mut self, segment: &Segment, index: u32) -> &mut Rows {
        self.rows.get_or_insert_with(|| {
            let generation = segment.generation(index);
            Rows::new(
                generation,
                ncserverd::object::row_key(&segment.id, &generation),
            )
        })
    }
}

/// An open request.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) source: SourceId,
    pub(crate) alias: u16,
    pub(crate) segment: usize,
    pub(crate) generation: Generation,
    pub(crate) credit: u32,
    pub(crate) seq: u16,
    deadline: Instant,
    seed: u32,
    sources: Vec<u16>,
    made: BTreeMap<Heap, u32>,
    lost: u32,
}

/// The requests of one asker.
#[derive(Debug, Default)]
pub(crate) struct AskerRequests {
    pub(crate) requests: Vec<Sending>,
    /// Whether it is to be looked at again at some time.
    pub(crate) is_scheduled: bool,
}

/// All open requests of a node.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    pub(crate) askers: BTreeMap<usize, AskerRequests>,
    /// In this order they have their turn.
    pub(crate) turns: VecDeque<usize>,
    pub(crate) is_scheduled: bool,
}

impl Serving {
    pub(crate) fn add(&mut self, asker: usize, sending: Sending) {
        if !self.askers.contains_key(&asker) {
            self.turns.push_back(asker);
        }
        let requests = &mut self.askers.entry(asker).or_default().requests;
        let place = requests.partition_point(|other| other.deadline <= sending.deadline);
        requests.insert(place, sending);
    }

    pub(crate) fn find(&mut self, asker: usize, alias: u16) -> Option<&mut Sending> {
        self.askers
            .get_mut(&asker)?
            .requests
            .iter_mut()
            .find(|sending| sending.alias == alias)
    }

    pub(crate) fn stop(&mut self, asker: usize, alias: u16) {
        if let Some(open) = self.askers.get_mut(&asker) {
            open.requests.retain(|sending| sending.alias != alias);
        }
    }

    pub(crate) fn forget(&mut self, asker: usize) {
        self.askers.remove(&asker);
        self.turns.retain(|other| *other != asker);
    }
}

impl Sending {
    /// A request that has come now. `has_sources`: whether source blocks may go out for it.
    pub(crate) fn new(
        now: Instant,
        source: SourceId,
        segment: (usize, &Segment),
        request: &Request,
        has_sources: bool,
        rng: &mut StdRng,
    ) -> Self {
        let generation = segment.1.generation(request.generation);
        let all = [(0, generation.n)];
        let ranges = if request.ranges.is_empty() {
            &all[..]
        } else {
            &request.ranges
        };
        let sources = ranges
            .iter()
            .flat_map(|(first, count)| *first..first + count);
        let mut sources: Vec<u16> = sources
            .filter(|_| has_sources && request.accept.systematic)
            .collect();
        sources.reverse();
        Self {
            source,
            alias: request.alias,
            segment: segment.0,
            generation,
            credit: request.credit,
            seq: 0,
            deadline: now + Duration::from_millis(request.deadline_ms),
            seed: rng.next_u32(),
            sources,
            made: BTreeMap::new(),
            lost: 0,
        }
    }

    /// The asker has missed so many in all: as many more may go out of each heap.
    pub(crate) fn note_lost(&mut self, lost: u32) {
        let more = lost.saturating_sub(self.lost);
        self.lost += more;
        self.made
            .values_mut()
            .for_each(|made| *made = made.saturating_sub(more));
    }

    /// The next block, if there are rows for one. `holding` lists the rows held; without it, the
    /// node holds all.
    pub(crate) fn next(
        &mut self,
        segment: &Segment,
        holding: Option<&Holding>,
        rng: &mut StdRng,
    ) -> Option<Block> {
        if self.credit == 0 {
            return None;
        }
        let mut payload = vec![0; PAYLOAD as usize];
        let vector = match holding {
            Some(holding) if !holding.is_whole => {
                let part = &holding.parts[self.generation.index as usize];
                let rows = part.rows.as_ref()?;
                let (heap, _) = plan(1, &rows.ranks(), &mut self.made, part.is_tainted).pop()?;
                rows.recode(heap, rng, &mut [&mut payload]).pop()?
            }
            _ => {
                let encoder = &segment.encoders[self.generation.index as usize];
                match self.sources.pop() {
                    Some(index) => {
                        encoder.source(index, &mut payload);
                        Vector::Source(index)
                    }
                    None => {
                        self.seed = self.seed.wrapping_add(1);
                        encoder.block(self.seed, &mut payload);
                        Vector::Seed(self.seed)
                    }
                }
            }
        };
        Some(Block {
            vector,
            payload: payload.into(),
        })
    }
}

/// Another payload than the right one.
pub(crate) fn spoil(block: Block, rng: &mut StdRng) -> Block {
    let mut payload = block.payload.to_vec();
    let at = rng.random_range(0..payload.len());
    payload[at] ^= rng.random_range(1..=255u8);
    Block {
        payload: Bytes::from(payload),
        ..block
    }
}
