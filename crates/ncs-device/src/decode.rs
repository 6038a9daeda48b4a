//! Decoding on a device: whole generations, from n independent blocks of each.

use std::fmt;
use std::time::Duration;

use ncs_codec::shape::Shape;

use super::Error;

/// A generation of n blocks of k bytes, and n received blocks of it, coded or not.
#[derive(Clone, PartialEq, Eq)]
pub struct Decode {
    /// Blocks of the generation.
    pub n: u16,
    /// The rows of the received blocks, contiguous: n × n bytes.
    pub coefficients: Vec<u8>,
    /// The received blocks in the same order: n × k bytes, k a multiple of 16.
    pub payloads: Vec<u8>,
    /// Where the source blocks go: n × k bytes.
    pub out: Vec<u8>,
}

/// Leaves out the bytes.
impl fmt::Debug for Decode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decode")
            .field("n", &self.n)
            .field("bytes", &self.payloads.len())
            .finish_non_exhaustive()
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
        let is_block = k > 0
            && k <= Shape::BLOCK_BYTES_MAX as usize
            && k.is_multiple_of(Shape::BLOCK_BYTES_STEP as usize);
        if is_block && self.payloads.len() == n * k {
            Ok(())
        } else {
            Err("the payloads are not n blocks of a multiple of 16 bytes")
        }
    }
}

/// A generation after decoding.
#[derive(Debug)]
pub struct Decoded {
    /// The job as it was handed in, with the source blocks in `out`. Without a solution `out` is
    /// undefined.
    pub job: Decode,
    /// Whether a solution exists.
    pub solution: Result<(), Singular>,
    /// `cpu` or `cuda`.
    pub backend: &'static str,
    /// Its kernel.
    pub kernel: &'static str,
}

/// The rows are linearly dependent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the rows are linearly dependent")]
pub struct Singular;

/// Generations that could not be decoded.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Undecoded {
    /// The jobs as they were handed in; the contents of `out` are undefined. Empty only if the
    /// thread died during the call.
    pub jobs: Vec<Decode>,
    /// The reason. After [`Error::Lost`] the call can be repeated: another back end has replaced
    /// the lost one.
    pub error: Error,
}

/// The results of a back end's call to decode. After a failure the contents of `out` are undefined.
#[derive(Debug)]
pub(super) struct Solved {
    pub(super) jobs: Vec<Decode>,
    /// Which of the jobs have a solution.
    pub(super) result: Result<Vec<bool>, Error>,
    pub(super) elapsed: Duration,
}

impl Solved {
    pub(super) fn failed(jobs: Vec<Decode>, error: Error) -> Self {
        Self {
            jobs,
            result: Err(error),
            elapsed: Duration::ZERO,
        }
    }

    /// Bytes of the generations that were solved.
    pub(super) fn bytes(&self) -> u64 {
        let solved = self.result.as_deref().unwrap_or_default();
        self.jobs
            .iter()
            .zip(solved)
            .filter(|(_, is_solved)| **is_solved)
            .map(|(job, _)| job.out.len() as u64)
            .sum()
    }
}
