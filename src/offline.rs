//! `ncserverd codec`: rows, blocks and files without a network.
//!
//! Two forms of coded blocks. *Raw* ones are payloads alone, one behind the other: whoever reads them knows key, generation and
//! seeds; they are what another implementation compares itself with. *Block files* say themselves what they are, so that a
//! directory of them rebuilds a file and proves it (`docs/block-files.md` has the layout).
//!
//! Memory is bounded whatever is coded: one segment and one generation in its coded form, and for decoding the names of the
//! block files. Nothing is allocated from a number in a block file before its check has held and its shape is a possible one.
//! Files are written beside their target and renamed when they are whole.

use std::io;
use std::path::{Path, PathBuf};

use crate::gf::RowKey;
use crate::object::ShapeError;

mod block_file;
mod decode;
mod encode;
mod output;
mod progress;

pub use decode::{Missing, Rebuilt, decode};
pub use encode::{Amount, Coded, Plan, Raw, encode, encode_raw};

/// A coefficient row as hexadecimal digits.
pub fn row(key: RowKey, seed: u32, n: u16) -> String {
    let mut row = vec![0; usize::from(n)];
    key.fill(seed, &mut row);
    row.iter().map(|coefficient| format!("{coefficient:02x}")).collect()
}

/// Why nothing came out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is to be coded or decoded cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The result cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is nothing to code.
    #[error("{} is empty: there is nothing to code", .0.display())]
    Empty(PathBuf),
    /// More bytes than a generation of this shape has room for.
    #[error("{} has more than the {room} bytes of a generation of {n} blocks of {block_bytes}", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Bytes that would fit.
        room: u64,
        /// Blocks.
        n: u16,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// A shape that cannot be.
    #[error("{0}")]
    Shape(#[from] ShapeError),
    /// The file did not stay as it was while it was read.
    #[error("{} changed while it was coded: the blocks written are of no use", .0.display())]
    Changed(PathBuf),
    /// The directory has no block file.
    #[error("{} has no block files", .0.display())]
    NoBlocks(PathBuf),
    /// It cannot be told which file is wanted.
    #[error("the directory has equally many blocks of {first} and of {second}: give each file a directory of its own")]
    Ambiguous {
        /// One of them.
        first: String,
        /// Another one.
        second: String,
    },
    /// Blocks are missing.
    #[error("{0}")]
    Missing(Missing),
    /// What was decoded is not what was coded: a block lies about its contents.
    #[error("segment {segment} decodes to other bytes than its blocks promise: at least one of them was forged")]
    Forged {
        /// Index of the segment, or how many there are if only the whole file is wrong.
        segment: u64,
    },
}

impl Error {
    /// Whether the input was readable but does not make up the file.
    pub fn is_incomplete(&self) -> bool {
        matches!(self, Self::NoBlocks(_) | Self::Ambiguous { .. } | Self::Missing(_) | Self::Forged { .. })
    }

    fn read(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Read { path: path.into(), source }
    }

    fn write(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Write { path: path.into(), source }
    }
}

/// Whether the path means standard input or output.
fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}
