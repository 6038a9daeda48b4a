//! Blocks on their way out: the demand for them, the claims on them, and their headers.

use std::ops::Range;

use crate::object::GenerationKey;
use crate::ring::{HEADROOM, LineKey};
use crate::time::Instant;

/// Demand to register at the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// A number of blocks of a line of coded ones.
    Coded(LineKey, u32),
    /// Blocks by their numbers: source blocks, and parity blocks behind them.
    Source(GenerationKey, Range<u16>),
}

/// A request that may claim blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The request.
    pub alias: u16,
    /// The line of its blocks.
    pub line: LineKey,
    /// Most blocks that it may take.
    pub blocks: u32,
    /// How they travel.
    pub route: Route,
    /// When they become useless.
    pub deadline: Instant,
}

/// How blocks travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// One datagram each.
    Datagram,
    /// As records of the request's stream.
    Stream,
}

/// The header of a block that leaves.
#[derive(Debug, Clone)]
pub struct Stamp {
    pub(super) header: Header,
    /// Bytes of the payload that are sent.
    pub payload: usize,
}

impl Stamp {
    /// The header.
    pub fn header(&self) -> &[u8] {
        match &self.header {
            Header::Short { bytes, length } => &bytes[..*length],
            Header::Long(bytes) => bytes,
        }
    }
}

/// The bytes of a header: in place, unless they are many coefficients.
#[derive(Debug, Clone)]
pub(super) enum Header {
    Short {
        bytes: [u8; HEADROOM],
        length: usize,
    },
    Long(Vec<u8>),
}

impl Header {
    pub(super) fn write(length: usize, write: impl FnOnce(&mut [u8])) -> Self {
        if length > HEADROOM {
            let mut bytes = vec![0; length];
            write(&mut bytes);
            return Self::Long(bytes);
        }
        let mut bytes = [0; HEADROOM];
        write(&mut bytes[..length]);
        Self::Short { bytes, length }
    }
}
