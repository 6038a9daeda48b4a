//! Rows, blocks and files coded without a network: the library behind `nccodec`.
//!
//! Two forms of coded blocks. *Raw* ones are payloads alone, one behind the other: whoever reads
//! them knows key, generation and seeds; they are what another implementation compares itself with.
//! *Block files* say themselves what they are, so that a directory of them rebuilds a file and
//! proves it. So do *chunk files*, the n files that a file becomes with Reed-Solomon, any k of
//! which rebuild it (`docs/block-files.md` has both layouts). Blocks are random linear
//! combinations, or symbols of RaptorQ or Raptor10.
//!
//! Memory is bounded whatever is coded: one segment and one generation in its coded form, or two
//! stripes, and for decoding the names of the files. Nothing is allocated from a number in a file
//! before its check has held and its shape is a possible one. Files are written beside their target
//! and renamed when they are whole.

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ncs_codec::rs;
use ncs_device as device;
use ncs_gf::RowKey;
use ncs_proto::object::ShapeError;
use ncs_proto::wire::text::plain;

mod block_file;
mod chunk_file;
mod construction;
pub mod crew;
mod decode;
mod disk;
mod encode;
mod flow;
mod fountain;
mod join;
mod leopard;
mod listing;
mod output;
mod partial;
mod progress;
mod split;
mod symbols;
#[cfg(test)]
mod tests;

pub use block_file::Code;
pub use construction::{ChunkCode, Construction, Rebuilder, Unknown};
pub use crew::{BITE_BYTES, Choice, Makers};
pub use decode::{Missing, Rebuilt};
pub use encode::{Amount, Coded, Plan, Raw, encode, encode_raw};
pub use fountain::Fountain;
pub use join::{Joined, Short};
pub use split::{ChunkPlan, Stored, encode_chunks};

/// A coefficient row as hexadecimal digits.
pub fn row(key: RowKey, seed: u32, n: u16) -> String {
    let mut row = vec![0; usize::from(n)];
    key.fill(seed, &mut row);
    row.iter()
        .map(|coefficient| format!("{coefficient:02x}"))
        .collect()
}

/// What a directory was rebuilt from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// Block files.
    Blocks(Rebuilt),
    /// Chunk files.
    Chunks(Joined),
}

impl fmt::Display for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocks(rebuilt) => rebuilt.fmt(f),
            Self::Chunks(joined) => joined.fmt(f),
        }
    }
}

/// Rebuilds the file that `directory` has block files or chunk files of, and verifies it before it
/// appears as `output`.
///
/// On standard output each segment or stripe appears when it has been verified.
pub fn decode(directory: &Path, output: &Path, choice: Choice) -> Result<Decoded, Error> {
    let (mut has_blocks, mut has_chunks) = (false, false);
    for item in fs::read_dir(directory).map_err(Error::read(directory))? {
        // What cannot be read is named later.
        let magic = magic(&item.map_err(Error::read(directory))?.path()).unwrap_or_default();
        has_blocks |= magic == block_file::MAGIC;
        has_chunks |= magic == chunk_file::MAGIC;
    }
    match (has_blocks, has_chunks) {
        (true, true) => Err(Error::Mixed(directory.into())),
        (false, true) => join::decode(directory, output, choice).map(Decoded::Chunks),
        _ => decode::decode(directory, output, choice).map(Decoded::Blocks),
    }
}

/// A path as it is shown: whoever made the files of a directory has chosen their names.
fn shown(path: &Path) -> String {
    plain(&path.to_string_lossy(), usize::MAX)
}

/// What a file begins with.
fn magic(path: &Path) -> io::Result<[u8; 8]> {
    let mut magic = [0; 8];
    if fs::metadata(path)?.is_file() {
        File::open(path)?.read_exact(&mut magic)?;
    }
    Ok(magic)
}

/// Why nothing came out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    #[error("{} is empty: there is nothing to encode", .0.display())]
    Empty(PathBuf),
    /// More bytes than a generation of this shape has room for.
    #[error(
        "{} has more than the {room} bytes of a generation of {n} blocks of {block_bytes} bytes",
        path.display(),
    )]
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
    /// Encoding symbols that have no id.
    #[error(
        "{count} symbols from id {first} on are too many: encoding symbol ids must be below {end}"
    )]
    Symbols {
        /// The first one that is asked for.
        first: u32,
        /// How many are.
        count: u32,
        /// What ids are below.
        end: u32,
    },
    /// Source blocks that cannot be.
    #[error(
        "{n_max} symbols per source block: {fountain} allows {} to {}, and at most {} source \
         blocks per segment",
        fountain.n_max().0, fountain.n_max().1, fountain.blocks_max()
    )]
    SourceBlock {
        /// The code.
        fountain: Fountain,
        /// Symbols that were asked for.
        n_max: u16,
    },
    /// A code that cannot be.
    #[error("{0}")]
    Code(#[from] rs::Error),
    /// Pieces of chunks that cannot be.
    #[error("pieces of {0} bytes: a piece must have 64 to 1048576 bytes")]
    Piece(u32),
    /// Pieces whose length is odd, where elements of the field have two bytes.
    #[error("pieces of {0} bytes: with leopard a piece must have an even number of bytes")]
    OddPiece(u32),
    /// A GPU is to code what no GPU does.
    #[error("--backend {0}: only the CPU codes chunks of leopard")]
    CpuAlone(&'static str),
    /// Who is to code cannot be had.
    #[error("--backend {backend}: {error}")]
    Device {
        /// Who.
        backend: &'static str,
        /// Why.
        error: device::Error,
    },
    /// A shape that cannot be.
    #[error("{0}")]
    Shape(#[from] ShapeError),
    /// The file did not stay as it was while it was read.
    #[error("{} changed during encoding: delete the files written and try again", .0.display())]
    Changed(PathBuf),
    /// The directory has no block file and no chunk file.
    #[error("{} contains no block files and no chunk files", .0.display())]
    NoBlocks(PathBuf),
    /// The directory has block files and chunk files.
    #[error(
        "{} contains both block files and chunk files: put them into separate directories",
        .0.display(),
    )]
    Mixed(PathBuf),
    /// It cannot be told which file is wanted.
    #[error(
        "the directory has as much of {first} as of {second}: put them into separate directories"
    )]
    Ambiguous {
        /// One of them.
        first: String,
        /// Another one.
        second: String,
    },
    /// Blocks are missing.
    #[error("{0}")]
    Missing(Missing),
    /// Chunks are missing, or pieces of them.
    #[error("{0}")]
    Short(Short),
    /// What the chunks rebuild is not what was coded.
    #[error(
        "chunks {0} decode to bytes that do not match their hash: at least one chunk was forged; \
         try without one of them"
    )]
    ForgedChunks(String),
    /// What was decoded is not what was coded: a block lies about its contents.
    #[error(
        "segment {segment} decodes to bytes that do not match its hash: at least one of its blocks \
         was forged"
    )]
    Forged {
        /// Index of the segment, or how many there are if only the whole file is wrong.
        segment: u64,
    },
}

impl Error {
    /// Whether the input was readable but does not make up the file.
    pub fn is_incomplete(&self) -> bool {
        matches!(
            self,
            Self::NoBlocks(_)
                | Self::Mixed(_)
                | Self::Ambiguous { .. }
                | Self::Missing(_)
                | Self::Short(_)
                | Self::Forged { .. }
                | Self::ForgedChunks(_)
        )
    }

    /// Why a segment cannot be cut in this way.
    fn of_shape(code: Code, error: ShapeError) -> Self {
        match (code, error) {
            (Code::Fountain(fountain), ShapeError::NMax(n_max)) => {
                Self::SourceBlock { fountain, n_max }
            }
            _ => Self::Shape(error),
        }
    }

    fn read(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Read {
            path: path.into(),
            source,
        }
    }

    fn write(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Write {
            path: path.into(),
            source,
        }
    }
}

/// Whether the path means standard input or output.
fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}
