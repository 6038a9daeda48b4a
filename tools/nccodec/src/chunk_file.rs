//! The layout of a chunk file: one of the n files that a file becomes with Reed-Solomon, k of which
//! rebuild it.
//!
//! ```text
//!  0   8  magic 89 4e 43 43 0d 0a 1a 0a      as that of block files
//!  8   1  version 1
//!  9   1  codec: 3 = Reed-Solomon
//! 10   1  matrix, over GF(2^8)/0x11D: 1 cauchy, 2 vand-bb, 3 vand-jerasure, 4 isal-rs; 5 leopard,
//!         over GF(2^16)/0x1002D
//! 11   1  zero
//! 12   2  k
//! 14   2  n
//! 16   2  index of this chunk; those from k on are code
//! 18   2  zero
//! 20   4  bytes of a piece, p
//! 24   8  bytes of the file
//! 32  16  set: drawn at random for each encoding
//! 48  32  BLAKE3 of the file
//! 80  16  head check: BLAKE3 of all bytes before it, the first 16
//! then for each stripe
//!      p  piece; in the last stripe a k-th of what is left of the file, rounded up, by leopard to
//!         an even number
//!     16  piece check: BLAKE3 of set, index, number of the stripe (8 bytes) and piece,
//!         the first 16
//! ```
//!
//! Integers are big-endian. The head is written last, when length and hash are known: so the file
//! is read once, and may come from a pipe. A piece's check binds it to its place, so that what a
//! disk has put somewhere else is found as damage. It does not need the head, and a chunk whose end
//! is gone is good as far as it goes.

use std::io::Read;

use ncs_codec::rs::Matrix;
use ncs_proto::object::SegmentId;

use crate::block_file::{CHECK, Fault, check, read_exact, read_magic, take};
use crate::construction::{ChunkCode, Construction};

/// What all chunks of one encoding have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) id: [u8; 16],
    pub(super) matrix: Construction,
    pub(super) k: u16,
    pub(super) n: u16,
    pub(super) piece_bytes: u32,
    pub(super) file_bytes: u64,
    /// BLAKE3 of the whole file.
    pub(super) file: SegmentId,
}

impl Set {
    /// The code, if there is one like this.
    pub(super) fn code(&self) -> Result<ChunkCode, ncs_codec::rs::Error> {
        ChunkCode::new(self.matrix, self.k, self.n)
    }

    pub(super) fn stripes(&self) -> u64 {
        self.file_bytes.div_ceil(self.stripe_bytes())
    }

    /// Bytes of the file that a stripe stands for; the last one may be shorter.
    pub(super) fn stripe_bytes(&self) -> u64 {
        u64::from(self.k) * u64::from(self.piece_bytes)
    }

    /// The file's bytes in this stripe.
    pub(super) fn native_bytes(&self, stripe: u64) -> usize {
        let left = self.file_bytes - stripe * self.stripe_bytes();
        usize::try_from(left.min(self.stripe_bytes())).expect("a stripe fits in memory")
    }

    /// Bytes of each chunk's piece in this stripe.
    pub(super) fn piece(&self, stripe: u64) -> usize {
        self.matrix.piece_of(self.native_bytes(stripe), self.k)
    }

    /// Where this stripe's piece begins in a chunk file.
    pub(super) fn offset(stripe: u64, piece_bytes: u32) -> u64 {
        HEAD as u64 + stripe * (u64::from(piece_bytes) + CHECK as u64)
    }

    /// Bytes of a whole chunk file.
    pub(super) fn chunk_bytes(&self) -> u64 {
        let Some(last) = self.stripes().checked_sub(1) else {
            return HEAD as u64;
        };
        Self::offset(last, self.piece_bytes) + self.piece(last) as u64 + CHECK as u64
    }

    /// Stripes of which a chunk file of so many bytes has the piece and its check.
    pub(super) fn reach(&self, bytes: u64) -> u64 {
        if bytes >= self.chunk_bytes() {
            return self.stripes();
        }
        let whole =
            bytes.saturating_sub(HEAD as u64) / (u64::from(self.piece_bytes) + CHECK as u64);
        whole.min(self.stripes().saturating_sub(1))
    }
}

/// What a chunk file begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) set: Set,
    pub(super) index: u16,
}

impl Head {
    pub(super) fn write(&self) -> Vec<u8> {
        let Self { set, index } = self;
        let mut out = Vec::with_capacity(HEAD);
        out.extend(MAGIC);
        out.extend([VERSION, CODEC, matrix_code(set.matrix), 0]);
        out.extend(set.k.to_be_bytes());
        out.extend(set.n.to_be_bytes());
        out.extend(index.to_be_bytes());
        out.extend([0, 0]);
        out.extend(set.piece_bytes.to_be_bytes());
        out.extend(set.file_bytes.to_be_bytes());
        out.extend(set.id);
        out.extend(set.file.as_bytes());
        out.extend(check(&out));
        out
    }

    pub(super) fn read(source: &mut impl Read) -> Result<Self, Fault> {
        let mut bytes = [0; HEAD];
        read_magic(source, &mut bytes[..MAGIC.len()], MAGIC, "chunk")?;
        read_exact(source, &mut bytes[MAGIC.len()..])?;
        let mut rest = &bytes[MAGIC.len()..];
        let [version, codec, matrix, zero] = take(&mut rest);
        if version != VERSION {
            return Err(Fault::Version(version));
        }
        let (checked, found) = bytes.split_at(HEAD - CHECK);
        if check(checked) != found {
            return Err(Fault::Damaged("its head checksum is wrong"));
        }
        if codec != CODEC {
            return Err(Fault::Codec(codec));
        }
        let matrix = Construction::ALL
            .into_iter()
            .find(|&known| matrix_code(known) == matrix);
        let matrix = matrix.ok_or(Fault::Impossible(
            "a matrix that this program does not know",
        ))?;
        let k = u16::from_be_bytes(take(&mut rest));
        let n = u16::from_be_bytes(take(&mut rest));
        let index = u16::from_be_bytes(take(&mut rest));
        let zeros = take(&mut rest);
        let piece_bytes = u32::from_be_bytes(take(&mut rest));
        let file_bytes = u64::from_be_bytes(take(&mut rest));
        let id = take(&mut rest);
        let file = SegmentId::from_bytes(take(&mut rest));
        let set = Set {
            id,
            matrix,
            k,
            n,
            piece_bytes,
            file_bytes,
            file,
        };
        if (zero, zeros) != (0, [0, 0]) {
            return Err(Fault::Impossible("bytes are set that mean nothing"));
        }
        set.code()
            .map_err(|_| Fault::Impossible("there is no such code"))?;
        if index >= n {
            return Err(Fault::Impossible("the code has no such chunk"));
        }
        let has_piece = PIECE_BYTES.contains(&piece_bytes) && matrix.takes(piece_bytes);
        if !has_piece || file_bytes > FILE_BYTES_MAX {
            return Err(Fault::Impossible("a length out of range"));
        }
        Ok(Self { set, index })
    }
}

/// The check of a piece at its place.
pub(super) fn piece_check(set: &[u8; 16], index: u16, stripe: u64, piece: &[u8]) -> [u8; CHECK] {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update(set)
        .update(&index.to_be_bytes())
        .update(&stripe.to_be_bytes())
        .update(piece);
    *hasher
        .finalize()
        .as_bytes()
        .first_chunk()
        .expect("a hash is longer than a check")
}

const fn matrix_code(matrix: Construction) -> u8 {
    match matrix {
        Construction::Matrix(Matrix::Cauchy) => 1,
        Construction::Matrix(Matrix::VandBb) => 2,
        Construction::Matrix(Matrix::VandJerasure) => 3,
        Construction::Matrix(Matrix::IsalRs) => 4,
        Construction::Leopard => 5,
    }
}

/// Bytes that a piece may have: a stripe of n pieces is held in memory.
pub(super) const PIECE_BYTES: std::ops::RangeInclusive<u32> = 64..=1 << 20;
/// Bytes of the head.
pub(super) const HEAD: usize = 96;
/// No file is longer; with it no offset overflows.
const FILE_BYTES_MAX: u64 = 1 << 60;
pub(super) const MAGIC: [u8; 8] = *b"\x89NCC\r\n\x1a\n";
const VERSION: u8 = 1;
/// The number of the codec in the protocol.
const CODEC: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn set(file_bytes: u64) -> Set {
        let file = SegmentId::of(b"file");
        Set {
            id: [7; 16],
            matrix: Construction::Matrix(Matrix::VandJerasure),
            k: 4,
            n: 6,
            piece_bytes: 100,
            file_bytes,
            file,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for matrix in Construction::ALL {
            let head = Head {
                set: Set { matrix, ..set(123) },
                index: 5,
            };
            let bytes = head.write();
            assert_eq!(bytes.len(), HEAD);
            assert_eq!(Head::read(&mut bytes.as_slice()).unwrap(), head);
        }
    }

    #[test]
    fn no_change_goes_unnoticed() {
        let bytes = Head {
            set: set(123),
            index: 5,
        }
        .write();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert!(Head::read(&mut damaged.as_slice()).is_err(), "byte {at}");
            assert!(Head::read(&mut &bytes[..at]).is_err(), "cut at {at}");
        }
        let piece = [1; 100];
        let check =
            |set, index, stripe, piece: &[u8]| piece_check(&[set; 16], index, stripe, piece);
        let others = [
            check(8, 5, 2, &piece),
            check(7, 4, 2, &piece),
            check(7, 5, 3, &piece),
            check(7, 5, 2, &[2; 100]),
        ];
        assert!(!others.contains(&check(7, 5, 2, &piece)));
    }

    #[test]
    fn checks_that_hold_do_not_make_nonsense_true() {
        let bytes = Head {
            set: set(123),
            index: 5,
        }
        .write();
        for (at, value) in [
            (9, 1),     // codec
            (10, 0),    // matrix
            (10, 6),    // matrix
            (11, 1),    // the zero
            (13, 0),    // k = 0
            (13, 6),    // k = n
            (14, 2),    // n too large
            (17, 6),    // no such chunk
            (18, 1),    // the other zeros
            (20, 1),    // a piece too large
            (23, 63),   // a piece too small
            (24, 0x20), // a file too long
        ] {
            let mut forged = bytes.clone();
            forged[at] = value;
            let held = check(&forged[..HEAD - CHECK]);
            forged[HEAD - CHECK..].copy_from_slice(&held);
            let fault = Head::read(&mut forged.as_slice()).unwrap_err();
            assert!(
                matches!(fault, Fault::Impossible(_) | Fault::Codec(1)),
                "byte {at}: {fault}"
            );
        }
        let odd = Head {
            set: Set {
                matrix: Construction::Leopard,
                piece_bytes: 101,
                ..set(1)
            },
            index: 0,
        }
        .write();
        assert!(matches!(
            Head::read(&mut odd.as_slice()),
            Err(Fault::Impossible("a length out of range"))
        ));
        // (20, 30) with isal-rs is no MDS code.
        let refused = Head {
            set: Set {
                matrix: Construction::Matrix(Matrix::IsalRs),
                k: 20,
                n: 30,
                ..set(1)
            },
            index: 0,
        }
        .write();
        assert!(matches!(
            Head::read(&mut refused.as_slice()),
            Err(Fault::Impossible("there is no such code"))
        ));
    }

    /// The example in the documentation is a chunk file of this program.
    #[test]
    fn the_documented_example_is_true() {
        let text = include_str!("../../../docs/block-files.md");
        let dump = text
            .split("```hex\n")
            .nth(4)
            .unwrap()
            .split("```")
            .next()
            .unwrap();
        let digits = dump
            .lines()
            .flat_map(|line| line.split('#').next().unwrap().split_whitespace());
        let bytes: Vec<u8> = digits
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect();
        let Head { set, index } = Head::read(&mut bytes.as_slice()).unwrap();
        let source =
            b"any n independent coded blocks rebuild the n source blocks, whoever sent them";
        assert_eq!(
            (set.file, set.file_bytes, index),
            (SegmentId::of(source), source.len() as u64, 4)
        );
        assert_eq!(
            (set.stripes(), set.piece(0), set.chunk_bytes()),
            (1, 20, bytes.len() as u64)
        );
        assert_eq!(Head { set, index }.write(), bytes[..HEAD]);
        let mut native = source.to_vec();
        native.resize(4 * 20, 0);
        let (mut code, threads) = ([0; 40], std::num::NonZeroUsize::MIN);
        let encoding = set.code().unwrap().encoding(20);
        encoding.run(ncs_gf::Kernels::detect(), threads, &native, &mut code);
        assert_eq!(code[..20], bytes[HEAD..HEAD + 20]);
        assert_eq!(piece_check(&set.id, 4, 0, &code[..20]), bytes[HEAD + 20..]);
    }

    #[test]
    fn pieces_tile_chunks_and_the_file() {
        for file_bytes in (0..1300).chain([4000, 4001, 4399, FILE_BYTES_MAX]) {
            let set = set(file_bytes);
            let stripes = set.stripes();
            if stripes < 100 {
                assert_eq!(
                    (0..stripes)
                        .map(|stripe| set.native_bytes(stripe) as u64)
                        .sum::<u64>(),
                    file_bytes
                );
                let pieces = (0..stripes).map(|stripe| (set.piece(stripe) + CHECK) as u64);
                assert_eq!(pieces.sum::<u64>() + HEAD as u64, set.chunk_bytes());
            }
            assert_eq!(set.reach(set.chunk_bytes()), stripes);
            assert_eq!(set.reach(set.chunk_bytes() - 1), stripes.saturating_sub(1));
            assert_eq!(set.reach(0), 0);
        }
        let whole = set(800);
        let reaches = [95, 96, 211, 212, 327, 328].map(|bytes| whole.reach(bytes));
        assert_eq!(reaches, [0, 0, 0, 1, 1, 2]);
    }
}
