//! Objects in a file of memory (`memfd`), as one process leaves them to the next.
//!
//! A parcel is a sequence of pieces. Each is the length of its description (4 bytes, little
//! endian), the description as JSON, and then the bytes of the piece, of which the description
//! tells the number. The file is sealed: it changes no more.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};

use crate::stream::{About, Piece};

/// A parcel is full with this many bytes; the last piece may exceed it.
pub(super) const FULL: u64 = 32 << 20;
/// The longest description of a piece: a path, validators and a media type.
const DESCRIPTION_MAX: u32 = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Description {
    bytes: u64,
    about: About,
}

/// Packs pieces one after the other.
#[derive(Debug)]
pub(super) struct Packing {
    file: File,
    length: u64,
}

impl Packing {
    pub(super) fn begin() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("ncserverd objects", flags)?;
        Ok(Self {
            file: file.into(),
            length: 0,
        })
    }

    pub(super) fn add(&mut self, piece: &Piece) -> io::Result<()> {
        let description = Description {
            bytes: piece.bytes.len() as u64,
            about: piece.about.clone(),
        };
        let description = serde_json::to_vec(&description)?;
        let length = u32::try_from(description.len()).map_err(io::Error::other)?;
        if length > DESCRIPTION_MAX {
            return Err(io::Error::other("a description is too long"));
        }
        for part in [&length.to_le_bytes()[..], &description, &piece.bytes] {
            self.file.write_all(part)?;
            self.length += part.len() as u64;
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.length >= FULL
    }

    /// The file, which nobody can change.
    pub(super) fn seal(self) -> io::Result<OwnedFd> {
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.file, seals)?;
        Ok(self.file.into())
    }
}

/// Unpacks a parcel from its beginning on, whatever was read of the file before.
#[derive(Debug)]
pub(super) struct Unpacking {
    file: File,
    at: u64,
    length: u64,
}

impl Unpacking {
    pub(super) fn begin(file: OwnedFd) -> io::Result<Self> {
        let file = File::from(file);
        let length = file.metadata()?.len();
        Ok(Self {
            file,
            at: 0,
            length,
        })
    }

    /// The next piece; none at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Piece>> {
        if self.at == self.length {
            return Ok(None);
        }
        let mut length = [0; 4];
        self.fill(&mut length)?;
        let length = u32::from_le_bytes(length);
        if length > DESCRIPTION_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let description = self.take(length.into())?;
        let Description { bytes, about } = serde_json::from_slice(&description)?;
        let bytes = Bytes::from(self.take(bytes)?);
        Ok(Some(Piece { about, bytes }))
    }

    /// The next bytes of the file. It has them: no more is allocated than it holds.
    fn take(&mut self, length: u64) -> io::Result<Vec<u8>> {
        if length > self.length - self.at {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}
