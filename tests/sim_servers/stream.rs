//! The live stream: a segment every two seconds, each of a few small blocks, the same at every
//! server.

use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::codec::rlnc::Encoder;
use ncserverd::gf::Kernels;
use ncserverd::integrity::checks::{self, COLUMNS};
use ncserverd::object::{
    Body, FirstPass, Generation, GenerationKey, Held, Lease, Loan, Refusal, RefusalCode, Resolved,
    SegmentId, SegmentKey, Shape, row_key,
};
use ncserverd::wire::message::{Checks, GetChecks};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// The time between two segments.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
/// How long after its publication a segment is shown: three segments, as players of HLS hold.
pub(crate) const HOLDS: Duration = Duration::from_secs(6);
/// Segments in the playlist.
pub(crate) const WINDOW: u64 = 10;
/// Two generations of seven or eight blocks.
const SEGMENT_BYTES: usize = 7000;
const BLOCK_BYTES: u32 = 480;
const N_MAX: u16 = 8;
pub(crate) const PLAYLIST: &str = "/live/live.m3u8";

pub(crate) struct Segment {
    path: String,
    pub(crate) bytes: Bytes,
    id: SegmentId,
    held: Held,
    encoders: Vec<Encoder>,
}

/// All segments that are published until the end.
pub(crate) struct Stream {
    start: Instant,
    pub(crate) segments: Vec<Segment>,
}

impl Stream {
    /// The first playlist is full at `start`.
    pub(crate) fn new(start: Instant, lasts: Duration, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let count = WINDOW + lasts.as_secs() / EVERY.as_secs() + 1;
        let segments = (0..count)
            .map(|number| Segment::new(number, start, &mut random))
            .collect();
        Self { start, segments }
    }

    /// When a segment is published.
    pub(crate) fn published(&self, number: u64) -> Instant {
        let after = u32::try_from(number).expect("a short stream") * EVERY;
        self.start + after - u32::try_from(WINDOW - 1).expect("it is small") * EVERY
    }

    /// When it has to be there.
    pub(crate) fn due(&self, number: u64) -> Instant {
        self.published(number) + HOLDS
    }

    /// The newest segment.
    pub(crate) fn newest(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.start).as_secs() / EVERY.as_secs();
        since + WINDOW - 1
    }

    /// The answer for the playlist.
    pub(crate) fn playlist(&self, now: Instant) -> Resolved {
        let newest = self.newest(now);
        let lines = (newest + 1 - WINDOW..=newest).map(|number| format!("{number}.ts\n"));
        let bytes = Bytes::from(lines.collect::<String>());
        Resolved {
            path: PLAYLIST.to_owned(),
            id: SegmentId::of(&bytes),
            offset: 0,
            length: bytes.len() as u64,
            object_length: Some(bytes.len() as u64),
            version: newest,
            max_age: Duration::from_secs(1),
            content_type: String::new(),
            body: Body::Inline(bytes),
            signature: None,
        }
    }

    /// The segment at a path, if it is published.
    pub(crate) fn at(&self, now: Instant, path: &str) -> Option<u64> {
        let number: u64 = path
            .strip_prefix("/live/")?
            .strip_suffix(".ts")?
            .parse()
            .ok()?;
        (number <= self.newest(now)).then_some(number)
    }

    pub(crate) fn segment(&self, number: u64) -> &Segment {
        &self.segments[usize::try_from(number).expect("a short stream")]
    }

    /// The segment with this id.
    pub(crate) fn find(&self, id: SegmentId) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.id == id)
    }

    /// Checksums of a generation, by which rows are tested before they are complete.
    pub(crate) fn checks(&self, asked: &GetChecks, seed: [u8; 32]) -> Result<Checks, Refusal> {
        let segment = self.find(asked.segment).ok_or_else(unknown)?;
        let shape = segment.held.lease.shape;
        let generation = shape.generation(asked.generation).ok_or_else(unknown)?;
        let bytes = &segment.bytes[range(&generation)];
        let kernels = Kernels::detect();
        let sums = checks::project(kernels, &seed, &segment.id, &generation, COLUMNS, bytes);
        Ok(Checks {
            request: asked.request,
            seed,
            columns: COLUMNS,
            projections: sums.into(),
            signature: None,
        })
    }

    /// A coded block.
    pub(crate) fn block(&self, key: GenerationKey, seed: u32) -> Vec<u8> {
        let encoder = &self.segment(key.segment.0).encoders[key.index as usize];
        let mut out = vec![0; encoder.block_bytes()];
        encoder.block(seed, &mut out);
        out
    }
}

impl Segment {
    fn new(number: u64, now: Instant, random: &mut SmallRng) -> Self {
        let mut bytes = vec![0; SEGMENT_BYTES];
        random.fill(&mut bytes[..]);
        let bytes = Bytes::from(bytes);
        let shape = Shape::new(SEGMENT_BYTES as u64, BLOCK_BYTES, N_MAX).expect("a good shape");
        let id = SegmentId::of_coded(&bytes, shape.codec());
        let path = path(number);
        let held = Held {
            lease: Lease::new(SegmentKey(number), id, shape, Loan::new(now)),
            first_pass: FirstPass::Coded,
            row_weight: None,
            is_recoded: false,
            birth: None,
            path: Some(path.as_str().into()),
            blocks_digest: None,
            tree: None,
        };
        let encoder = |index| {
            let generation = shape.generation(index).expect("it is one of them");
            let (part, key) = (&bytes[range(&generation)], row_key(&id, &generation));
            Encoder::new(&generation, part, key, Kernels::detect()).expect("it fits")
        };
        Self {
            encoders: (0..shape.generations()).map(encoder).collect(),
            path,
            bytes,
            id,
            held,
        }
    }

    pub(crate) fn held(&self) -> Held {
        self.held.clone()
    }

    pub(crate) fn resolved(&self) -> Resolved {
        Resolved {
            path: self.path.clone(),
            id: self.id,
            offset: 0,
            length: self.bytes.len() as u64,
            object_length: Some(self.bytes.len() as u64),
            version: 1,
            max_age: Duration::from_secs(60),
            content_type: String::new(),
            body: Body::Coded(self.held()),
            signature: None,
        }
    }
}

fn range(generation: &Generation) -> Range<usize> {
    let from = usize::try_from(generation.offset).expect("it is short");
    from..from + usize::try_from(generation.length).expect("it is short")
}

/// Where a segment is.
pub(crate) fn path(number: u64) -> String {
    format!("/live/{number}.ts")
}

/// Nothing is there.
pub(crate) fn unknown() -> Refusal {
    Refusal {
        code: RefusalCode::Unknown,
        retry_after: None,
        reason: String::new(),
    }
}
