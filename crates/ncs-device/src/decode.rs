//! What is decoded on a device: whole generations of which n independent blocks are at hand.

use std::fmt;
use std::time::Duration;

use ncs_codec::shape::Shape;

use super::Error;

/// A generation of n blocks of k bytes of which n blocks are at hand, coded or not.
#[derive(Clone, PartialEq, Eq)]
pub struct Decode {
    /// Blocks in it.
    pub n: u16,
    /// The rows of the blocks at hand, one behind the other: n × n bytes.
    pub coefficients: Vec<u8>,
    /// The blocks at hand in the same order: n × k bytes, k a multiple of 16.
    pub payloads: Vec<u8>,
    /// Where the source blocks go: n × k bytes.
    pub out: Vec<u8>,
}

/// Without its bytes.
impl fmt::Debug for Decode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decode").field("n", &self.n).field("bytes", &self.payloads.len()).finish_non_exhaustive()
    }
}

impl Decode {
    pub(super) fn n(&self) -> usize {
        self.n.into()
    }

    /// Bytes of a block.
    pub(super) fn block_bytes(&self) -> usize {
        self.payloads.len() / self.n()
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        let n = self.n();
        if n == 0 || self.n > Shape::N_LIMIT {
            return Err("a generation has 1 to 1024 blocks");
        }
        if self.coefficients.len() != n * n {
            return Err("there are not n × n coefficients");
        }
        if self.payloads.len() != self.out.len() {
            return Err("as many bytes come out as go in");
        }
        let k = self.block_bytes();
        let is_block = k > 0 && k <= Shape::BLOCK_BYTES_MAX as usize && k.is_multiple_of(Shape::BLOCK_BYTES_STEP as usize);
        if is_block && self.payloads.len() == n * k {
            Ok(())
        } else {
            Err("the payloads are not n blocks of a multiple of 16 bytes")
        }
    }
}

/// A generation that has been worked on.
#[derive(Debug)]
pub struct Decoded {
    /// As it was handed in, with the source blocks in `out`, unless there is no solution; then
    /// `out` is undefined.
    pub job: Decode,
    /// Whether there is one.
    pub solution: Result<(), Singular>,
    /// `cpu` or `cuda`.
    pub backend: &'static str,
    /// Its kernel.
    pub kernel: &'static str,
}

/// The rows depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the rows are linearly dependent")]
pub struct Singular;

/// Generations that could not be worked on.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Undecoded {
    /// As they were handed in; what is in `out` is undefined. Empty only if the thread died over
    /// them.
    pub jobs: Vec<Decode>,
    /// What was wrong. After [`Error::Lost`] it may be tried again: another back end has taken the
    /// lost one's place.
    pub error: Error,
}

/// What a back end has done. If it failed, the contents of `out` are undefined.
#[derive(Debug)]
pub(super) struct Solved {
    pub(super) jobs: Vec<Decode>,
    /// Which of the jobs have a solution.
    pub(super) result: Result<Vec<bool>, Error>,
    pub(super) elapsed: Duration,
}

impl Solved {
    pub(super) fn failed(jobs: Vec<Decode>, error: Error) -> Self {
        Self { jobs, result: Err(error), elapsed: Duration::ZERO }
    }

    /// Bytes of generations that were solved.
    pub(super) fn bytes(&self) -> u64 {
        let solved = self.result.as_deref().unwrap_or_default();
        self.jobs.iter().zip(solved).filter(|(_, is_solved)| **is_solved).map(|(job, _)| job.out.len() as u64).sum()
    }
}
