//! What a peer accepts, and how patient it is.

use std::fmt;
use std::time::Duration;

use ncs_gf::Kernels;

use super::keyring::Keys;
use crate::wire::message::Hello;

/// What a peer accepts, and how patient it is.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the server is told.
    pub hello: Hello,
    /// Whether blocks may come in datagrams.
    pub datagrams: bool,
    /// Most requests open at a time, at one source.
    pub requests_max: usize,
    /// Bytes of credit in flight, at least.
    pub window_min: u64,
    /// Bytes of credit in flight, at most. First requests may exceed it, up to twice.
    pub window_max: u64,
    /// A server that sends no HELLO for this long has failed.
    pub hello_timeout: Duration,
    /// A GET without an answer for this long has failed.
    pub answer_timeout: Duration,
    /// A segment without progress for this long has failed.
    pub stall_timeout: Duration,
    /// The least rate, in bytes a second, of the segment that is served first, averaged over
    /// `stall_timeout`. 0 accepts any rate.
    pub rate_min: u64,
    /// The arithmetic of this machine.
    pub kernels: Kernels,
    /// Whether generations are decoded elsewhere. Then this side only collects blocks, and tests
    /// whether they are innovative.
    pub gathers: bool,
    /// Whether each innovative block is reported ([`Event::Brought`](super::Event::Brought)), for a
    /// program that passes blocks on. Then all blocks are tested as soon as the trusted source
    /// gives checksums.
    pub tells: bool,
    /// Keys of streams. The first source names the others.
    pub keys: Keys,
    /// Most tests of blocks over the prime field at a time ([`Event::Test`](super::Event::Test)). A
    /// larger number than the program runs at once gains nothing: waiting blocks are tested
    /// together.
    pub tests_max: usize,
    /// Bytes of rows kept until their segments are verified, at most. Without room for its rows, a
    /// wrong segment is fetched anew.
    pub rows_max: u64,
    /// Makes the nonces of queries for checksums unpredictable.
    pub secret: Secret,
}

/// Random bytes that no other party knows.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Takes bytes that were drawn for this peer alone.
    pub const fn new(random: [u8; 32]) -> Self {
        Self(random)
    }

    /// An unpredictable value, a different one for each number.
    pub(super) fn nonce(&self, number: u64) -> [u8; 32] {
        *blake3::keyed_hash(&self.0, &number.to_be_bytes()).as_bytes()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
