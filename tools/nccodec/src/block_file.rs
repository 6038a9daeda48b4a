//! The layout of a block file: one coded block that describes itself.
//!
//! ```text
//!   0   8  magic 89 4e 43 42 0d 0a 1a 0a, like PNG's: shows text conversion and loss of bit 7
//!   8   1  version 1
//!   9   1  codec: 1 = random linear, GF(2^8)/0x11D, rows from Philox4x32-10;
//!          2 = RaptorQ; 7 = Raptor10
//!  10   1  vector: 40 source block, 41 seed, 42 coefficients (hexadecimal; the wire's numbers);
//!          44 FEC payload id
//!  11   1  zero
//!  12   4  bytes of a block, or of a symbol, k
//!  16   2  most blocks of a generation, or source symbols of a source block, n_max
//!  18   2  bytes of the vector, v
//!  20   4  generation, or source block: its index in the segment
//!  24   4  segment: its index in the file
//!  28   4  bytes of a segment; the last one may be shorter
//!  32   8  bytes of the file
//!  40  32  BLAKE3 of the file
//!  72  32  BLAKE3 of the segment
//! 104   4  bytes of the payload, p
//! 108   v  vector: u16 index, u32 seed, n coefficients, or the four bytes of a FEC payload id
//!      16  head check: BLAKE3 of all bytes before it, the first 16
//!       p  payload
//!      16  block check: BLAKE3 of all bytes before it, the first 16
//! ```
//!
//! Integers are big-endian, as on the wire. The head has a check of its own so that a directory can
//! be looked through without reading payloads.
//!
//! With RaptorQ a segment is an object of RFC 6330, and a generation is one of its source blocks: a
//! segment is cut into generations as section 4.4.1.2 cuts an object into source blocks. With
//! Raptor10 it is the same with RFC 5053.

use std::io::{self, Read};

use bytes::Bytes;
use ncs_codec::block::Vector;
use ncs_proto::object::{Generation, SegmentId, Shape, ShapeError};

use crate::fountain::Fountain;

/// The codes of block files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Random linear network coding over GF(2^8), dense rows.
    Rlnc,
    /// A code of encoding symbols.
    Fountain(Fountain),
}

impl Code {
    const ALL: [Self; 3] = [
        Self::Rlnc,
        Self::Fountain(Fountain::RaptorQ),
        Self::Fountain(Fountain::Raptor10),
    ];

    /// Whether the blocks are encoding symbols.
    pub(super) const fn is_of_symbols(self) -> bool {
        matches!(self, Self::Fountain(_))
    }

    /// How a segment of `length` bytes is cut.
    pub(super) fn shape(
        self,
        length: u64,
        block_bytes: u32,
        n_max: u16,
    ) -> Result<Shape, ShapeError> {
        match self {
            Self::Rlnc => Shape::new(length, block_bytes, n_max),
            Self::Fountain(fountain) => fountain.shape(length, block_bytes, n_max),
        }
    }

    /// Of RaptorQ the protocol's number, of Raptor10 one that it has no use for.
    const fn number(self) -> u8 {
        match self {
            Self::Rlnc => 1,
            Self::Fountain(Fountain::RaptorQ) => 2,
            Self::Fountain(Fountain::Raptor10) => 7,
        }
    }
}

/// Which block of its generation a file has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Label {
    /// A combination of source blocks.
    Vector(Vector),
    /// The encoding symbol with this id.
    Symbol(Fountain, u32),
}

/// A block, and which one it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Labelled {
    pub(super) label: Label,
    pub(super) payload: Bytes,
}

/// What all block files of one coded file have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) code: Code,
    /// BLAKE3 of the whole file.
    pub(super) file: SegmentId,
    pub(super) file_bytes: u64,
    pub(super) segment_bytes: u32,
    pub(super) block_bytes: u32,
    pub(super) n_max: u16,
}

impl Set {
    pub(super) fn segments(&self) -> u64 {
        self.file_bytes
            .div_ceil(u64::from(self.segment_bytes.max(1)))
    }

    /// How the first and the last segment are cut: no other is larger, or of another shape.
    pub(super) fn shapes(&self) -> impl Iterator<Item = Shape> + use<> {
        let last = u32::try_from(self.segments().saturating_sub(1)).unwrap_or(u32::MAX);
        [self.shape(0), self.shape(last)].into_iter().flatten()
    }

    /// How segment `index` is cut, if the file has it and it can be.
    pub(super) fn shape(&self, index: u32) -> Option<Shape> {
        let segment_bytes =
            Some(u64::from(self.segment_bytes)).filter(|&bytes| bytes <= Shape::LENGTH_MAX)?;
        let start = u64::from(index).checked_mul(segment_bytes)?;
        let length = self.file_bytes.checked_sub(start)?.min(segment_bytes);
        self.code.shape(length, self.block_bytes, self.n_max).ok()
    }
}

/// Everything of a block file but the payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) set: Set,
    pub(super) segment: u32,
    pub(super) segment_id: SegmentId,
    pub(super) generation: Generation,
    pub(super) label: Label,
}

impl Head {
    /// The whole block file. `payload` has the length that the vector asks for.
    pub(super) fn write(&self, payload: &[u8]) -> Vec<u8> {
        let mut out =
            Vec::with_capacity(FIXED + usize::from(Shape::N_LIMIT) + 2 * CHECK + payload.len());
        let (kind, vector) = match &self.label {
            Label::Vector(Vector::Source(index)) => {
                (SOURCE, Bytes::copy_from_slice(&index.to_be_bytes()))
            }
            Label::Vector(Vector::Seed(seed)) => {
                (SEED, Bytes::copy_from_slice(&seed.to_be_bytes()))
            }
            Label::Vector(Vector::Explicit(coefficients) | Vector::Unverified(coefficients)) => {
                (EXPLICIT, coefficients.clone())
            }
            Label::Vector(
                Vector::Shard(_) | Vector::Symbol(_) | Vector::Narrow(_) | Vector::Wide(_),
            ) => {
                unreachable!("these vectors are of random linear codes over bytes")
            }
            Label::Symbol(fountain, esi) => (
                SYMBOL,
                Bytes::copy_from_slice(&fountain.payload_id(&self.generation, *esi)),
            ),
        };
        out.extend(MAGIC);
        out.extend([VERSION, self.set.code.number(), kind, 0]);
        out.extend(self.set.block_bytes.to_be_bytes());
        out.extend(self.set.n_max.to_be_bytes());
        out.extend(
            u16::try_from(vector.len())
                .expect("at most 1024 coefficients")
                .to_be_bytes(),
        );
        out.extend(self.generation.index.to_be_bytes());
        out.extend(self.segment.to_be_bytes());
        out.extend(self.set.segment_bytes.to_be_bytes());
        out.extend(self.set.file_bytes.to_be_bytes());
        out.extend(self.set.file.as_bytes());
        out.extend(self.segment_id.as_bytes());
        out.extend(
            u32::try_from(payload.len())
                .expect("at most 64 KiB")
                .to_be_bytes(),
        );
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
        match self.label {
            Label::Vector(Vector::Source(index)) => self.generation.block_length(index),
            Label::Vector(_) | Label::Symbol(..) => {
                usize::try_from(self.set.block_bytes).expect("a block fits in memory")
            }
        }
    }
}

/// Reads a whole block file and checks all of it.
pub(super) fn read(source: &mut impl Read) -> Result<(Head, Labelled), Fault> {
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
        return Err(Fault::Damaged("its block checksum is wrong"));
    }
    let block = Labelled {
        label: head.label.clone(),
        payload: payload.into(),
    };
    Ok((head, block))
}

/// Why a file is not a block or chunk that can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("cannot be read: {0}")]
    Read(io::Error),
    #[error("not a {0} file")]
    Foreign(&'static str),
    #[error("version {0} of the format; this program supports version 1")]
    Version(u8),
    #[error("codec {0}, which this program does not support in such files")]
    Codec(u8),
    #[error("damaged: {0}")]
    Damaged(&'static str),
    #[error("invalid: {0}")]
    Impossible(&'static str),
}

/// The head with the bytes that it was read from.
fn read_head(source: &mut impl Read) -> Result<(Head, Vec<u8>), Fault> {
    let mut bytes = vec![0; FIXED];
    read_magic(source, &mut bytes[..MAGIC.len()], MAGIC, "block")?;
    read_exact(source, &mut bytes[MAGIC.len()..])?;
    let fixed: [u8; FIXED] = bytes
        .as_slice()
        .try_into()
        .expect("as long as the fixed part");
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
        return Err(Fault::Damaged("its head checksum is wrong"));
    }
    let code = Code::ALL
        .into_iter()
        .find(|code| code.number() == codec)
        .ok_or(Fault::Codec(codec))?;
    let generation = u32::from_be_bytes(take(&mut rest));
    let segment = u32::from_be_bytes(take(&mut rest));
    let segment_bytes = u32::from_be_bytes(take(&mut rest));
    let file_bytes = u64::from_be_bytes(take(&mut rest));
    let file = SegmentId::from_bytes(take(&mut rest));
    let segment_id = SegmentId::from_bytes(take(&mut rest));
    let payload_bytes = u32::from_be_bytes(take(&mut rest));
    let set = Set {
        code,
        file,
        file_bytes,
        segment_bytes,
        block_bytes,
        n_max,
    };
    let shape = set
        .shape(segment)
        .filter(|_| zero == 0)
        .ok_or(Fault::Impossible("no file has such a segment"))?;
    let generation = shape
        .generation(generation)
        .ok_or(Fault::Impossible("the segment has no such generation"))?;
    let label = label(
        code,
        kind,
        &bytes[FIXED..FIXED + usize::from(vector_bytes)],
        &generation,
    )?;
    let head = Head {
        set,
        segment,
        segment_id,
        generation,
        label,
    };
    if u64::from(payload_bytes) != head.payload_bytes() as u64 {
        return Err(Fault::Impossible("a payload of another length"));
    }
    Ok((head, bytes))
}

fn label(code: Code, kind: u8, bytes: &[u8], generation: &Generation) -> Result<Label, Fault> {
    let label = match (code, kind) {
        (Code::Rlnc, _) => vector(kind, bytes, generation.n).map(Label::Vector),
        (Code::Fountain(fountain), SYMBOL) => {
            let esi = bytes
                .try_into()
                .ok()
                .and_then(|id| fountain.esi(generation, id));
            esi.map(|esi| Label::Symbol(fountain, esi))
        }
        (Code::Fountain(_), _) => None,
    };
    label.ok_or(Fault::Impossible("the vector does not fit the generation"))
}

fn vector(kind: u8, bytes: &[u8], n: u16) -> Option<Vector> {
    match kind {
        SOURCE => bytes
            .try_into()
            .ok()
            .map(u16::from_be_bytes)
            .filter(|&index| index < n)
            .map(Vector::Source),
        SEED => bytes
            .try_into()
            .ok()
            .map(u32::from_be_bytes)
            .map(Vector::Seed),
        EXPLICIT => {
            (bytes.len() == usize::from(n)).then(|| Vector::Explicit(Bytes::copy_from_slice(bytes)))
        }
        _ => None,
    }
}

pub(super) fn check(bytes: &[u8]) -> [u8; CHECK] {
    *blake3::hash(bytes)
        .as_bytes()
        .first_chunk()
        .expect("a hash is longer than a check")
}

/// The next bytes of the fixed part.
pub(super) fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, behind) = rest
        .split_first_chunk()
        .expect("the fixed part has room for all its fields");
    *rest = behind;
    *first
}

/// Reads what a file of this kind begins with. What is too short to be one of our files is somebody
/// else's.
pub(super) fn read_magic(
    source: &mut impl Read,
    magic: &mut [u8],
    expected: [u8; 8],
    kind: &'static str,
) -> Result<(), Fault> {
    match source.read_exact(magic) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Fault::Foreign(kind)),
        Err(error) => Err(Fault::Read(error)),
        Ok(()) if magic != expected => Err(Fault::Foreign(kind)),
        Ok(()) => Ok(()),
    }
}

pub(super) fn read_exact(source: &mut impl Read, bytes: &mut [u8]) -> Result<(), Fault> {
    source
        .read_exact(bytes)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Damaged("it ends early"),
            _ => Fault::Read(error),
        })
}

pub(super) const MAGIC: [u8; 8] = *b"\x89NCB\r\n\x1a\n";
const VERSION: u8 = 1;
const SOURCE: u8 = 0x40;
const SEED: u8 = 0x41;
const EXPLICIT: u8 = 0x42;
const SYMBOL: u8 = 0x45;
/// Bytes before the vector.
const FIXED: usize = 108;
/// Bytes of a check.
pub(super) const CHECK: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const Q: Fountain = Fountain::RaptorQ;
    const TEN: Fountain = Fountain::Raptor10;

    /// Three generations of 2, 2 and 1 blocks; the last block is short.
    fn head(generation: u32, label: Label) -> Head {
        let (code, n_max) = match label {
            Label::Vector(_) => (Code::Rlnc, 2),
            Label::Symbol(Fountain::RaptorQ, _) => (Code::Fountain(Fountain::RaptorQ), 2),
            Label::Symbol(Fountain::Raptor10, _) => (Code::Fountain(Fountain::Raptor10), 4),
        };
        let file = SegmentId::of(b"file");
        let set = Set {
            code,
            file,
            file_bytes: 300,
            segment_bytes: 512,
            block_bytes: 64,
            n_max,
        };
        let generation = set.shape(0).unwrap().generation(generation).unwrap();
        Head {
            set,
            segment: 0,
            segment_id: SegmentId::of(b"segment"),
            generation,
            label,
        }
    }

    fn files() -> Vec<(Head, Vec<u8>, Vec<u8>)> {
        let explicit = Vector::Explicit(Bytes::from_static(&[3, 4]));
        let vectors = [
            (0, Vector::Source(1), 64),
            (2, Vector::Source(0), 44),
            (1, Vector::Seed(u32::MAX), 64),
            (0, explicit, 64),
        ];
        // With Raptor10 a source block of three symbols and one of two, which are filled up to
        // four.
        let symbols = [
            (0, Q, 0),
            (2, Q, 0xFF_FFFF),
            (0, TEN, 2),
            (1, TEN, 1),
            (1, TEN, 4),
            (1, TEN, 0xFFFF),
        ];
        let symbols = symbols
            .map(|(generation, fountain, esi)| (generation, Label::Symbol(fountain, esi), 64));
        let cases = vectors
            .map(|(generation, vector, length)| (generation, Label::Vector(vector), length))
            .into_iter()
            .chain(symbols);
        let file = |(generation, label, length)| {
            let payload: Vec<u8> = (0..length).collect();
            let head = head(generation, label);
            let bytes = head.write(&payload);
            (head, payload, bytes)
        };
        cases.map(file).collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for (head, payload, bytes) in files() {
            let (read_head, block) = read(&mut bytes.as_slice()).unwrap();
            assert_eq!(
                (read_head, block.payload.as_ref()),
                (head.clone(), payload.as_slice())
            );
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
            assert!(matches!(
                read(&mut longer.as_slice()),
                Err(Fault::Damaged(_))
            ));
        }
    }

    #[test]
    fn checks_that_hold_do_not_make_nonsense_true() {
        let bytes = head(0, Label::Vector(Vector::Seed(1))).write(&[0; 64]);
        refuse(
            &bytes,
            &[
                (9, 9),     // codec
                (9, 2),     // a seed with RaptorQ
                (9, 7),     // a seed with Raptor10
                (10, 0x40), // a source block with four bytes of index
                (11, 1),    // the zero
                (15, 65),   // block size
                (17, 0),    // no blocks a generation
                (23, 3),    // generation out of range
                (27, 1),    // segment out of range
                (28, 0xFF), // segments too large
                (107, 63),  // payload of another length
            ],
        );
        let bytes = head(1, Label::Symbol(Q, 1)).write(&[0; 64]);
        refuse(
            &bytes,
            &[
                (9, 1),     // a symbol without a code of symbols
                (10, 0x41), // a seed with RaptorQ
                (13, 1),    // symbols of 65,600 bytes
                (17, 0),    // no symbols a source block
                (16, 0xDD), // 56,576 and more
                (108, 0),   // another source block
                (19, 3),    // an id of three bytes
            ],
        );
        let bytes = head(1, Label::Symbol(TEN, 1)).write(&[0; 64]);
        refuse(
            &bytes,
            &[
                (9, 2),     // another code, and another cut
                (17, 3),    // fewer symbols a source block than there can be
                (16, 0x20), // more
                (109, 0),   // another source block
                (111, 2),   // a symbol of padding
                (111, 3),   // the other one
            ],
        );
        // 512 source blocks: an id has room for 255.
        let set = Set {
            file_bytes: 512 * 128,
            segment_bytes: 1 << 20,
            ..head(0, Label::Symbol(Q, 0)).set
        };
        assert_eq!(
            (
                set.shape(0),
                Set { n_max: 5, ..set }
                    .shape(0)
                    .map(|shape| shape.generations())
            ),
            (None, Some(205))
        );
        let set = Set {
            code: Code::Fountain(TEN),
            n_max: 4,
            ..set
        };
        assert_eq!(set.shape(0).map(|shape| shape.generations()), Some(256));
    }

    /// Changes a byte at a time, with a check that holds.
    fn refuse(bytes: &[u8], changes: &[(usize, u8)]) {
        for &(at, value) in changes {
            let mut forged = bytes.to_vec();
            forged[at] = value;
            let end = FIXED + usize::from(forged[19]);
            let held = check(&forged[..end]);
            forged[end..end + CHECK].copy_from_slice(&held);
            let fault = Head::read(&mut forged.as_slice()).unwrap_err();
            assert!(
                matches!(fault, Fault::Impossible(_) | Fault::Codec(9)),
                "byte {at}: {fault}"
            );
        }
    }

    /// The block file that is the `index`-th example in the documentation.
    fn example(index: usize) -> Vec<u8> {
        let text = include_str!("../../../docs/block-files.md");
        let dump = text
            .split("```hex\n")
            .nth(index)
            .unwrap()
            .split("```")
            .next()
            .unwrap();
        let digits = dump
            .lines()
            .flat_map(|line| line.split('#').next().unwrap().split_whitespace());
        digits
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect()
    }

    const SOURCE_BYTES: &[u8; 77] =
        b"any n independent coded blocks rebuild the n source blocks, whoever sent them";

    /// The examples in the documentation are block files of this program.
    #[test]
    fn the_documented_example_is_true() {
        let bytes = example(1);
        let (head, block) = read(&mut bytes.as_slice()).unwrap();
        let id = SegmentId::of(SOURCE_BYTES);
        assert_eq!(
            (
                head.set.file,
                head.segment_id,
                head.set.file_bytes,
                head.generation.n
            ),
            (id, id, 77, 2)
        );
        assert_eq!(head.label, Label::Vector(Vector::Seed(7)));
        assert_eq!(head.write(&block.payload), bytes);
        let key = ncs_proto::object::row_key(&head.segment_id, &head.generation);
        let kernels = ncs_gf::Kernels::detect();
        let encoder =
            ncs_codec::rlnc::Encoder::new(&head.generation, SOURCE_BYTES, key, kernels).unwrap();
        let mut payload = [0; 64];
        encoder.block(7, &mut payload);
        assert_eq!(block.payload, payload.as_slice());
    }

    /// Those of RaptorQ and Raptor10 have the symbols that other implementations make.
    #[test]
    fn the_documented_symbols_are_true() {
        let bytes = example(2);
        let (head, block) = read(&mut bytes.as_slice()).unwrap();
        let id = SegmentId::of(SOURCE_BYTES);
        assert_eq!(
            (
                head.set.file,
                head.segment_id,
                head.set.file_bytes,
                head.generation.n
            ),
            (id, id, 77, 2)
        );
        assert_eq!(
            (head.set.code, &head.label),
            (Code::Fountain(Q), &Label::Symbol(Q, 7))
        );
        assert_eq!(head.write(&block.payload), bytes);
        let mut symbols = SOURCE_BYTES.to_vec();
        symbols.resize(128, 0);
        let oti = ::raptorq::ObjectTransmissionInformation::new(128, 64, 1, 1, 16);
        let theirs = ::raptorq::SourceBlockEncoder::new(0, &oti, &symbols)
            .repair_packets(5, 1)
            .remove(0);
        assert_eq!(
            (block.payload.as_ref(), &bytes[108..112]),
            (theirs.data(), &theirs.payload_id().serialize()[..])
        );
        let bytes = example(3);
        let (head, block) = read(&mut bytes.as_slice()).unwrap();
        assert_eq!(
            (
                head.set.file,
                head.segment_id,
                head.set.file_bytes,
                head.generation.n
            ),
            (id, id, 77, 2)
        );
        assert_eq!(
            (head.set.code, &head.label),
            (Code::Fountain(TEN), &Label::Symbol(TEN, 7))
        );
        assert_eq!(head.write(&block.payload), bytes);
        symbols.resize(256, 0);
        let theirs = raptor_code::SourceBlockEncoder::new(&symbols, 4)
            .unwrap()
            .fountain(7);
        assert_eq!(block.payload, theirs);
    }
}
