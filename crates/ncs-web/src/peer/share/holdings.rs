//! The segments that a page holds for others: rows of those that it fetches, and whole ones.
//!
//! A segment is *coming* from the first of its blocks on, and *whole* once all of its bytes are
//! verified. Of a coming segment others get combinations of the rows that have come so far; of a
//! whole one what a server sends. All segments together take a bounded number of bytes: beyond it,
//! the one used longest ago is forgotten.

use std::sync::Arc;

use bytes::Bytes;
use ncs_codec::block::{Block, Vector};
use ncs_codec::rlnc::Encoder;
use ncs_gf::Kernels;
use ncs_proto::object::{
    Codec, Coding, FirstPass, GenerationKey, Held, Released, SegmentId, SegmentKey, Shape, row_key,
};
use ncs_proto::peer::{Cut, SourceId};
use ncs_proto::rows::{Heap, News, Rows};
use ncs_proto::sorted::SortedMap;
use ncs_proto::time::Instant;
use ncs_proto::wire::message::{Holding, HoldingState, Meant};

/// Segments that are held, at most.
const SEGMENTS_MAX: usize = 64;
/// Bytes of a message of a data channel: larger blocks are not shared.
pub(super) const MESSAGE_MAX: usize = 16 << 10;
/// Bytes in front of a block's coefficients.
const HEAD: usize = 10;

/// What a page holds.
#[derive(Debug)]
pub(super) struct Holdings {
    /// In the order in which they came.
    segments: Vec<Segment>,
    bytes_max: u64,
    next: u64,
    clock: u64,
    /// Changes that the server was not told of.
    untold: SortedMap<(SegmentId, Coding), HoldingState>,
}

#[derive(Debug)]
struct Segment {
    cut: Cut,
    path: Arc<str>,
    lease: Released,
    used_at: u64,
    is_told: bool,
    /// Verified bytes from the beginning on, until it is whole.
    proved: Vec<Bytes>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Coming(Vec<Part>),
    Whole(Vec<Encoder>),
}

/// The rows of an incomplete generation.
#[derive(Debug)]
pub(super) struct Part {
    rows: Rows,
    /// Rows that were not looked at: they cost nothing until somebody wants blocks.
    pending: Vec<News>,
    is_checked: bool,
    pub(super) is_tainted: bool,
}

/// What blocks of a generation are made of.
#[derive(Debug)]
pub(super) enum Supply<'a> {
    Rows(&'a mut Part),
    Whole(&'a Encoder),
}

impl Part {
    /// The rows, with all that have come.
    pub(super) fn rows(&mut self) -> &Rows {
        self.pending.drain(..).for_each(|news| self.rows.take(news));
        &self.rows
    }
}

impl Holdings {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            segments: Vec::new(),
            bytes_max,
            next: 0,
            clock: 0,
            untold: SortedMap::new(),
        }
    }

    /// A segment is about to be fetched. Nothing is kept of one that is held already, that is too
    /// large, or whose blocks are.
    pub(super) fn begin(&mut self, now: Instant, cut: Cut, path: &str) {
        if let Some(segment) = self.of(&cut) {
            // Its bytes come from the beginning again.
            segment.proved.clear();
            return;
        }
        let shape = &cut.shape;
        let message = HEAD + usize::from(shape.n_max()) + shape.block_bytes() as usize;
        let is_large = message > MESSAGE_MAX || shape.length() > self.bytes_max / 2;
        if is_large || shape.codec().is_gfq() {
            return;
        }
        self.make_room(shape.length());
        let key = SegmentKey(self.next);
        self.next += 1;
        let part = |generation| Part {
            rows: Rows::new(generation, row_key(&cut.segment, &generation)),
            pending: Vec::new(),
            is_checked: false,
            is_tainted: false,
        };
        self.segments.push(Segment {
            cut,
            path: path.into(),
            lease: Released::new(key, cut.segment, *shape, now),
            used_at: self.clock,
            is_told: false,
            proved: Vec::new(),
            body: Body::Coming(shape.iter().map(part).collect()),
        });
    }

    /// A block has come, and may be passed on.
    pub(super) fn brought(
        &mut self,
        cut: &Cut,
        generation: u32,
        source: SourceId,
        block: Block,
        is_checked: bool,
    ) {
        if let Some(part) = self.part(cut, generation) {
            // A block that was tested by its hash alone is no reason to drop untested rows.
            let is_checked = is_checked && part.is_checked;
            part.pending.push(News::Row {
                source,
                block,
                is_checked,
            });
            self.tell_part(cut);
        }
    }

    /// All rows of a generation so far were tested; these are right.
    pub(super) fn checked(&mut self, cut: &Cut, generation: u32, rows: Vec<Block>) {
        if let Some(part) = self.part(cut, generation) {
            let before: u32 = part.rows().ranks().values().sum();
            part.is_tainted |= u32::try_from(rows.len()).unwrap_or(u32::MAX) < before;
            part.is_checked = true;
            part.pending.push(News::Checked(rows));
            self.tell_part(cut);
        }
    }

    /// The next bytes of a segment are verified.
    pub(super) fn proved(&mut self, cut: &Cut, pieces: &[Bytes]) {
        if let Some(segment) = self.of(cut)
            && let Body::Coming(_) = segment.body
        {
            segment.proved.extend_from_slice(pieces);
        }
    }

    /// All bytes of a segment are verified.
    pub(super) fn complete(&mut self, cut: &Cut) {
        let Some(segment) = self.of(cut) else { return };
        let proved = std::mem::take(&mut segment.proved);
        if let Body::Whole(_) = segment.body {
            return;
        }
        if let Some(encoders) = encoders(cut, &proved.concat()) {
            segment.body = Body::Whole(encoders);
            segment.is_told = true;
            let name = (cut.segment, cut.shape.coding());
            self.untold.insert(name, HoldingState::Complete);
        }
    }

    /// The segment that a page means. `coding`: as it is coded, if that is said.
    pub(super) fn find(&self, id: SegmentId, coding: Option<Coding>) -> Option<Held> {
        let is_meant = |segment: &&Segment| {
            segment.cut.segment == id
                && coding.is_none_or(|coding| segment.cut.shape.coding() == coding)
        };
        let segment = self.segments.iter().rfind(is_meant)?;
        Some(Held {
            lease: segment.lease.renew()?,
            first_pass: FirstPass::Coded,
            row_weight: None,
            is_recoded: matches!(segment.body, Body::Coming(_)),
            birth: None,
            path: Some(Arc::clone(&segment.path)),
            blocks_digest: None,
            tree: None,
        })
    }

    /// What blocks of a generation are made of, and its shape.
    pub(super) fn supply(&mut self, key: GenerationKey) -> Option<(Shape, Supply<'_>)> {
        self.clock += 1;
        let clock = self.clock;
        let is_it = |segment: &&mut Segment| segment.lease.key == key.segment;
        let segment = self.segments.iter_mut().find(is_it)?;
        segment.used_at = clock;
        let index = usize::try_from(key.index).ok()?;
        let supply = match &mut segment.body {
            Body::Coming(parts) => Supply::Rows(parts.get_mut(index)?),
            Body::Whole(encoders) => Supply::Whole(encoders.get(index)?),
        };
        Some((segment.cut.shape, supply))
    }

    /// Whether the server is to be told of changes.
    pub(super) fn has_news(&self) -> bool {
        self.untold.values().len() > 0
    }

    /// The changes since the last call.
    pub(super) fn take_news(&mut self) -> Vec<Holding> {
        let news = std::mem::take(&mut self.untold);
        let holding = |((segment, coding), state): (&(SegmentId, Coding), &HoldingState)| Holding {
            segment: *segment,
            meant: Meant::Coded(*coding),
            state: *state,
        };
        news.iter().map(holding).collect()
    }

    fn tell_part(&mut self, cut: &Cut) {
        // Blocks with numbers are not recoded: the whole segment has to come first.
        if cut.shape.codec() != Codec::Rlnc {
            return;
        }
        if let Some(segment) = self.of(cut)
            && !std::mem::replace(&mut segment.is_told, true)
        {
            let name = (cut.segment, cut.shape.coding());
            self.untold.insert(name, HoldingState::Partial);
        }
    }

    fn of(&mut self, cut: &Cut) -> Option<&mut Segment> {
        self.segments.iter_mut().find(|segment| segment.cut == *cut)
    }

    fn part(&mut self, cut: &Cut, generation: u32) -> Option<&mut Part> {
        if cut.shape.codec() != Codec::Rlnc {
            return None;
        }
        match &mut self.of(cut)?.body {
            Body::Coming(parts) => parts.get_mut(usize::try_from(generation).ok()?),
            Body::Whole(_) => None,
        }
    }

    /// Forgets segments until there is room for one of this length.
    fn make_room(&mut self, length: u64) {
        let used = |segments: &[Segment]| -> u64 {
            let lengths = segments.iter().map(|segment| segment.cut.shape.length());
            lengths.sum()
        };
        while self.segments.len() >= SEGMENTS_MAX || used(&self.segments) + length > self.bytes_max
        {
            let oldest = self.segments.iter().enumerate();
            let oldest = oldest.min_by_key(|(_, segment)| segment.used_at);
            let Some(index) = oldest.map(|(index, _)| index) else {
                return;
            };
            let gone = self.segments.remove(index);
            gone.lease.loan().end();
            if gone.is_told {
                let name = (gone.cut.segment, gone.cut.shape.coding());
                self.untold.insert(name, HoldingState::Gone);
            }
        }
    }
}

/// An encoder for each generation of a segment with these bytes. `None` if they are not all.
fn encoders(cut: &Cut, bytes: &[u8]) -> Option<Vec<Encoder>> {
    let encoder = |generation: ncs_proto::object::Generation| {
        let place = |at: u64| usize::try_from(at).ok();
        let end = generation.offset.checked_add(generation.length)?;
        let own = bytes.get(place(generation.offset)?..place(end)?)?;
        let key = row_key(&cut.segment, &generation);
        Encoder::new(&generation, own, key, Kernels::detect()).ok()
    };
    cut.shape.iter().map(encoder).collect()
}

/// As many combinations of a heap of rows.
pub(super) fn recoded(
    rows: &Rows,
    heap: Heap,
    count: usize,
    block_bytes: usize,
    random: &mut impl rand::Rng,
) -> Vec<(Vector, Vec<u8>)> {
    let mut payloads = vec![vec![0; block_bytes]; count];
    let mut outs: Vec<&mut [u8]> = payloads.iter_mut().map(|out| &mut out[..]).collect();
    let vectors = rows.recode(heap, random, &mut outs);
    vectors.into_iter().zip(payloads).collect()
}
