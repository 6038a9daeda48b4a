//! The layout of a block file: one coded block that says itself what it is.
//!
//! ```text
//!   0   8  magic 89 4e 43 42 0d 0a 1a 0a      like PNG's: shows text conversion and truncation to 7 bits
//!   8   1  version 1
//!   9   1  codec: 1 = random linear, GF(2^8)/0x11D, rows from Philox4x32-10
//!  10   1  vector: 40 source block, 41 seed, 42 coefficients (hexadecimal; the wire's numbers)
//!  11   1  zero
//!  12   4  bytes of a block, k
//!  16   2  most blocks of a generation, n_max
//!  18   2  bytes of the vector, v
//!  20   4  generation: its index in the segment
//!  24   4  segment: its index in the file
//!  28   4  bytes of a segment; the last one may be shorter
//!  32   8  bytes of the file
//!  40  32  BLAKE3 of the file
//!  72  32  BLAKE3 of the segment
//! 104   4  bytes of the payload, p
//! 108   v  vector: u16 index, u32 seed, or n coefficients
//!      16  head check: BLAKE3 of all bytes before it, the first 16
//!       p  payload
//!      16  block check: BLAKE3 of all bytes before it, the first 16
//! ```
//!
//! Integers are big-endian, as on the wire. The head has a check of its own so that a directory can be looked through without
//! reading payloads.

use std::io::{self, Read};

use bytes::Bytes;

use crate::block::{Block, Vector};
use crate::codec::Scheme;
use crate::object::{Generation, SegmentId, Shape};

/// What all block files of one coded file have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) scheme: Scheme,
    /// BLAKE3 of the whole file.
    pub(super) file: SegmentId,
    pub(super) file_bytes: u64,
    pub(super) segment_bytes: u32,
    pub(super) block_bytes: u32,
    pub(super) n_max: u16,
}

impl Set {
    pub(super) fn segments(&self) -> u64 {
        self.file_bytes.div_ceil(u64::from(self.segment_bytes.max(1)))
    }

    /// How segment `index` is cut, if the file has it and it can be.
    pub(super) fn shape(&self, index: u32) -> Option<Shape> {
        let segment_bytes = Some(u64::from(self.segment_bytes)).filter(|&bytes| bytes <= Shape::LENGTH_MAX)?;
        let start = u64::from(index).checked_mul(segment_bytes)?;
        let length = self.file_bytes.checked_sub(start)?.min(segment_bytes);
        Shape::new(length, self.block_bytes, self.n_max).ok()
    }
}

/// Everything of a block file but the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) set: Set,
    pub(super) segment: u32,
    pub(super) segment_id: SegmentId,
    pub(super) generation: Generation,
    pub(super) vector: Vector,
}

impl Head {
    /// The whole block file. `payload` has the length that the vector asks for.
    pub(super) fn write(&self, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED + usize::from(Shape::N_LIMIT) + 2 * CHECK + payload.len());
        let (kind, vector) = match &self.vector {
            Vector::Source(index) => (SOURCE, Bytes::copy_from_slice(&index.to_be_bytes())),
            Vector::Seed(seed) => (SEED, Bytes::copy_from_slice(&seed.to_be_bytes())),
            Vector::Explicit(coefficients) | Vector::Unverified(coefficients) => (EXPLICIT, coefficients.clone()),
        };
        out.extend(MAGIC);
        out.extend([VERSION, codec(self.set.scheme), kind, 0]);
        out.extend(self.set.block_bytes.to_be_bytes());
        out.extend(self.set.n_max.to_be_bytes());
        out.extend(u16::try_from(vector.len()).expect("at most 1024 coefficients").to_be_bytes());
        out.extend(self.generation.index.to_be_bytes());
        out.extend(self.segment.to_be_bytes());
        out.extend(self.set.segment_bytes.to_be_bytes());
        out.extend(self.set.file_bytes.to_be_bytes());
        out.extend(self.set.file.as_bytes());
        out.extend(self.segment_id.as_bytes());
        out.extend(u32::try_from(payload.len()).expect("at most 64 KiB").to_be_bytes());
        out.extend(&vector);
        out.extend(check(&out));
        out.extend(payload);
        out.extend(check(&out));
        out
    }

    /// Reads as far as the head check.
    pub(super) fn read(source: &mut impl Read) -> Result<Self, Fault> {
        Ok(read_head(source)?.0)
    }

    /// The payload's length, which the shape fixes.
    fn payload_bytes(&self) -> usize {
        match self.vector {
            Vector::Source(index) => self.generation.block_length(index),
            Vector::Seed(_) | Vector::Explicit(_) | Vector::Unverified(_) => {
                usize::try_from(self.set.block_bytes).expect("a block fits in memory")
            }
        }
    }
}

/// Reads a whole block file and checks all of it.
pub(super) fn read(source: &mut impl Read) -> Result<(Head, Block), Fault> {
    let (head, bytes) = read_head(source)?;
    let mut payload = vec![0; head.payload_bytes()];
    read_exact(source, &mut payload)?;
    let mut expected = [0; CHECK];
    read_exact(source, &mut expected)?;
    if source.read(&mut [0]).map_err(Fault::Read)? != 0 {
        return Err(Fault::Damaged("bytes behind its end"));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes).update(&payload);
    if hasher.finalize().as_bytes()[..CHECK] != expected {
        return Err(Fault::Damaged("its block check does not hold"));
    }
    let block = Block { vector: head.vector.clone(), payload: payload.into() };
    Ok((head, block))
}

/// Why a file is not a block or chunk that can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("cannot be read: {0}")]
    Read(io::Error),
    #[error("not a {0} file")]
    Foreign(&'static str),
    #[error("version {0} of the format; this program knows version 1")]
    Version(u8),
    #[error("codec {0}, which this program does not know in such files")]
    Codec(u8),
    #[error("damaged: {0}")]
    Damaged(&'static str),
    #[error("cannot be: {0}")]
    Impossible(&'static str),
}

/// The head with the bytes that it was read from.
fn read_head(source: &mut impl Read) -> Result<(Head, Vec<u8>), Fault> {
    let mut bytes = vec![0; FIXED];
    read_magic(source, &mut bytes[..MAGIC.len()], MAGIC, "block")?;
    read_exact(source, &mut bytes[MAGIC.len()..])?;
    let fixed: [u8; FIXED] = bytes.as_slice().try_into().expect("as long as the fixed part");
    let mut rest = &fixed[MAGIC.len()..];
    let [version, codec, kind, zero] = take(&mut rest);
    if version != VERSION {
        return Err(Fault::Version(version));
    }
    let block_bytes = u32::from_be_bytes(take(&mut rest));
    let n_max = u16::from_be_bytes(take(&mut rest));
    let vector_bytes = u16::from_be_bytes(take(&mut rest));
    if vector_bytes > Shape::N_LIMIT {
        return Err(Fault::Damaged("a vector of more than 1024 bytes"));
    }
    bytes.resize(FIXED + usize::from(vector_bytes) + CHECK, 0);
    read_exact(source, &mut bytes[FIXED..])?;
    let (checked, found) = bytes.split_at(bytes.len() - CHECK);
    if check(checked) != found {
        return Err(Fault::Damaged("its head check does not hold"));
    }
    let scheme = scheme(codec).ok_or(Fault::Codec(codec))?;
    let generation = u32::from_be_bytes(take(&mut rest));
    let segment = u32::from_be_bytes(take(&mut rest));
    let segment_bytes = u32::from_be_bytes(take(&mut rest));
    let file_bytes = u64::from_be_bytes(take(&mut rest));
    let file = SegmentId::from_bytes(take(&mut rest));
    let segment_id = SegmentId::from_bytes(take(&mut rest));
    let payload_bytes = u32::from_be_bytes(take(&mut rest));
    let set = Set { scheme, file, file_bytes, segment_bytes, block_bytes, n_max };
    let shape = set.shape(segment).filter(|_| zero == 0).ok_or(Fault::Impossible("no file has such a segment"))?;
    let generation = shape.generation(generation).ok_or(Fault::Impossible("the segment has no such generation"))?;
    let vector = vector(kind, &bytes[FIXED..FIXED + usize::from(vector_bytes)], &generation)?;
    let head = Head { set, segment, segment_id, generation, vector };
    if u64::from(payload_bytes) != head.payload_bytes() as u64 {
        return Err(Fault::Impossible("a payload of another length"));
    }
    Ok((head, bytes))
}

fn vector(kind: u8, bytes: &[u8], generation: &Generation) -> Result<Vector, Fault> {
    let n = generation.n;
    let vector = match kind {
        SOURCE => bytes.try_into().ok().map(u16::from_be_bytes).filter(|&index| index < n).map(Vector::Source),
        SEED => bytes.try_into().ok().map(u32::from_be_bytes).map(Vector::Seed),
        EXPLICIT => (bytes.len() == usize::from(n)).then(|| Vector::Explicit(Bytes::copy_from_slice(bytes))),
        _ => None,
    };
    vector.ok_or(Fault::Impossible("the vector does not fit the generation"))
}

pub(super) fn check(bytes: &[u8]) -> [u8; CHECK] {
    *blake3::hash(bytes).as_bytes().first_chunk().expect("a hash is longer than a check")
}

/// The next bytes of the fixed part.
pub(super) fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, behind) = rest.split_first_chunk().expect("the fixed part has room for all its fields");
    *rest = behind;
    *first
}

/// Reads what a file of this kind begins with. What is too short to be one of our files is somebody else's.
pub(super) fn read_magic(source: &mut impl Read, magic: &mut [u8], expected: [u8; 8], kind: &'static str) -> Result<(), Fault> {
    match source.read_exact(magic) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Fault::Foreign(kind)),
        Err(error) => Err(Fault::Read(error)),
        Ok(()) if magic != expected => Err(Fault::Foreign(kind)),
        Ok(()) => Ok(()),
    }
}

pub(super) fn read_exact(source: &mut impl Read, bytes: &mut [u8]) -> Result<(), Fault> {
    source.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Fault::Damaged("it ends early"),
        _ => Fault::Read(error),
    })
}

const fn codec(scheme: Scheme) -> u8 {
    match scheme {
        Scheme::Rlnc => 1,
    }
}

fn scheme(code: u8) -> Option<Scheme> {
    Scheme::ALL.into_iter().find(|&scheme| codec(scheme) == code)
}

pub(super) const MAGIC: [u8; 8] = *b"\x89NCB\r\n\x1a\n";
const VERSION: u8 = 1;
const SOURCE: u8 = 0x40;
const SEED: u8 = 0x41;
const EXPLICIT: u8 = 0x42;
/// Bytes before the vector.
const FIXED: usize = 108;
/// Bytes of a check.
pub(super) const CHECK: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Three generations of 2, 2 and 1 blocks; the last block is short.
    fn head(generation: u32, vector: Vector) -> Head {
        let file = SegmentId::of(b"file");
        let set = Set { scheme: Scheme::Rlnc, file, file_bytes: 300, segment_bytes: 512, block_bytes: 64, n_max: 2 };
        let generation = set.shape(0).unwrap().generation(generation).unwrap();
        Head { set, segment: 0, segment_id: SegmentId::of(b"segment"), generation, vector }
    }

    fn files() -> Vec<(Head, Vec<u8>, Vec<u8>)> {
        let explicit = Vector::Explicit(Bytes::from_static(&[3, 4]));
        let cases = [(0, Vector::Source(1), 64), (2, Vector::Source(0), 44), (1, Vector::Seed(u32::MAX), 64), (0, explicit, 64)];
        let file = |(generation, vector, length)| {
            let payload: Vec<u8> = (0..length).collect();
            let head = head(generation, vector);
            let bytes = head.write(&payload);
            (head, payload, bytes)
        };
        cases.into_iter().map(file).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for (head, payload, bytes) in files() {
            let (read_head, block) = read(&mut bytes.as_slice()).unwrap();
            assert_eq!((read_head, block.payload.as_ref()), (head.clone(), payload.as_slice()));
            assert_eq!(Head::read(&mut bytes.as_slice()).unwrap(), head);
        }
    }

    #[test]
    fn no_change_goes_unnoticed() {
        for (_, _, bytes) in files() {
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                assert!(read(&mut damaged.as_slice()).is_err(), "byte {at}");
                assert!(read(&mut &bytes[..at]).is_err(), "cut at {at}");
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(matches!(read(&mut longer.as_slice()), Err(Fault::Damaged(_))));
        }
    }

    #[test]
    fn checks_that_hold_do_not_make_nonsense_true() {
        let bytes = head(0, Vector::Seed(1)).write(&[0; 64]);
        for (at, value) in [
            (9, 2),     // codec
            (10, 0x40), // a source block with four bytes of index
            (11, 1),    // the zero
            (15, 65),   // block size
            (17, 0),    // no blocks a generation
            (23, 3),    // generation out of range
            (27, 1),    // segment out of range
            (28, 0xFF), // segments too large
            (107, 63),  // payload of another length
        ] {
            let mut forged = bytes.clone();
            forged[at] = value;
            let end = FIXED + 4;
            let held = check(&forged[..end]);
            forged[end..end + CHECK].copy_from_slice(&held);
            let fault = Head::read(&mut forged.as_slice()).unwrap_err();
            assert!(matches!(fault, Fault::Impossible(_) | Fault::Codec(2)), "byte {at}: {fault}");
        }
    }

    /// The example in the documentation is a block file of this program.
    #[test]
    fn the_documented_example_is_true() {
        let text = include_str!("../../docs/block-files.md");
        let dump = text.split("```hex\n").nth(1).unwrap().split("```").next().unwrap();
        let digits = dump.lines().flat_map(|line| line.split('#').next().unwrap().split_whitespace());
        let bytes: Vec<u8> = digits.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let (head, block) = read(&mut bytes.as_slice()).unwrap();
        let source = b"any n independent coded blocks rebuild the n source blocks, whoever sent them";
        assert_eq!((head.set.file, head.segment_id), (SegmentId::of(source), SegmentId::of(source)));
        assert_eq!((head.set.file_bytes, head.generation.n, &head.vector), (source.len() as u64, 2, &Vector::Seed(7)));
        assert_eq!(head.write(&block.payload), bytes);
        let key = crate::codec::rlnc::row_key(&head.segment_id, &head.generation);
        let kernels = crate::gf::Kernels::detect();
        let encoder = crate::codec::rlnc::Encoder::new(&head.generation, source, key, kernels).unwrap();
        let mut payload = [0; 64];
        encoder.block(7, &mut payload);
        assert_eq!(block.payload, payload.as_slice());
    }
}
