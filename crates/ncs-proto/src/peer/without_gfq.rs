//! In place of `gfq`: a peer without the prime field. None of these values can exist, so what is
//! done with them is left out of the program. HELLO offers no such code
//! ([`Proto::new`](super::Proto::new)), and a META that names one breaks the rules.

use std::convert::Infallible;

use bytes::Bytes;
use ncs_codec::Outcome;
use ncs_codec::block::Block;

use super::evidence::Row;
use super::ids::{FetchId, SourceId};
use crate::object::{Generation, SegmentId};
use crate::time::Instant;

/// No generation over the prime field.
#[derive(Debug)]
pub struct GfqGeneration(Infallible);

/// No blocks to be tested.
#[derive(Debug)]
pub struct Trial(Infallible);

/// No result of a trial.
#[derive(Debug)]
pub struct Tested {
    pub(super) fetch: FetchId,
    pub(super) segment: SegmentId,
    pub(super) index: u32,
    pub(super) rows: Vec<(Row, Verdict)>,
    pub(super) tested: (u64, u64),
    pub(super) is_hopeless: bool,
    never: Infallible,
}

/// The verdict on a block that was tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(dead_code, reason = "none is reached")]
pub(super) enum Verdict {
    Right(Outcome),
    Wrong,
    Untested,
}

impl GfqGeneration {
    /// None, whatever the code.
    pub fn new(_: Generation) -> Option<Self> {
        None
    }

    pub(super) fn generation(&self) -> &Generation {
        match self.0 {}
    }

    pub(super) fn rank(&self) -> u16 {
        match self.0 {}
    }

    pub(super) fn missing(&self) -> u16 {
        match self.0 {}
    }

    pub(super) fn gather(&mut self, _: Instant, _: SourceId, _: Block) {
        match self.0 {}
    }

    pub(super) fn forget(&mut self, _: SourceId) {
        match self.0 {}
    }

    pub(super) fn due(&self) -> Option<Instant> {
        match self.0 {}
    }

    pub(super) fn begin_trial(
        &mut self,
        _: Instant,
        _: (FetchId, SegmentId),
        _: u64,
        _: Bytes,
    ) -> Option<Trial> {
        match self.0 {}
    }

    pub(super) fn end_trial(&mut self, tested: Tested) -> bool {
        match tested.never {}
    }
}
