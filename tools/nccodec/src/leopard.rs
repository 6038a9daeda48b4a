//! Chunks by a fast Fourier transform: with many of them a product with a matrix takes n - k
//! multiplications for each byte of the file, and this the logarithm of n.
//!
//! Reed-Solomon over GF(2^16), polynomial 0x1002D, in the basis and with the additive transform of
//! Lin, Chung and Han ("Novel Polynomial Basis and Its Application to Reed-Solomon Erasure Codes",
//! FOCS 2014), as the library Leopard has it. The arithmetic is that of the crate
//! `reed-solomon-simd`, whose bytes these are.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ncs_device::portions::CpuWork;
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

/// A code of k native chunks and n in all.
pub(super) struct Leopard {
    k: usize,
    n: usize,
    /// Their memory is used again.
    encoders: Spare<ReedSolomonEncoder>,
    decoders: Spare<ReedSolomonDecoder>,
}

impl Leopard {
    /// 1 <= k < n <= 256.
    pub(super) fn new(k: usize, n: usize) -> Self {
        assert!(1 <= k && k < n && n <= 256, "the code has a shape");
        Self {
            k,
            n,
            encoders: Spare::default(),
            decoders: Spare::default(),
        }
    }

    /// Bytes of a piece that are worked on at once, where all pieces are to take so many. Where a
    /// piece is cut changes no byte: each 64 bytes of it are coded by themselves.
    fn slice(&self, all: usize) -> usize {
        all / (2 * self.n.next_power_of_two()) / 64 * 64
    }
}

impl fmt::Debug for Leopard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { k, n, .. } = self;
        f.debug_struct("Leopard")
            .field("k", k)
            .field("n", n)
            .finish_non_exhaustive()
    }
}

/// What nobody uses now.
struct Spare<T>(Mutex<Vec<T>>);

impl<T> Default for Spare<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Spare<T> {
    fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put_back(&self, value: T) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(value);
    }
}

/// Makes the code pieces of a stripe of its native ones.
#[derive(Debug)]
pub(super) struct Encoding {
    pub(super) code: Arc<Leopard>,
    /// Bytes of a piece, an even number.
    pub(super) bytes: usize,
}

impl CpuWork for Encoding {
    fn input_bytes(&self) -> usize {
        self.code.k * self.bytes
    }

    fn output_bytes(&self) -> usize {
        (self.code.n - self.code.k) * self.bytes
    }

    fn run(&self, input: &[u8], output: &mut [u8]) {
        let Self { code, bytes } = self;
        let (k, m) = (code.k, code.n - code.k);
        let slice = code.slice(ENCODED_BYTES).min(*bytes);
        let new = || ReedSolomonEncoder::new(k, m, slice).expect("the code has a shape");
        let mut encoder = code.encoders.take().unwrap_or_else(new);
        for from in (0..*bytes).step_by(slice) {
            let length = slice.min(bytes - from);
            encoder.reset(k, m, length).expect("the code has a shape");
            for native in input.chunks_exact(*bytes).take(k) {
                let added = encoder.add_original_shard(&native[from..][..length]);
                added.expect("one of k pieces of this length");
            }
            let made = encoder.encode().expect("k pieces were given");
            for (piece, made) in output.chunks_exact_mut(*bytes).zip(made.recovery_iter()) {
                piece[from..][..length].copy_from_slice(made);
            }
        }
        code.encoders.put_back(encoder);
    }
}

/// Makes the native pieces that are not there of k others.
#[derive(Debug)]
pub(super) struct Rebuilding {
    pub(super) code: Arc<Leopard>,
    /// Which chunks the pieces are of: k different ones.
    pub(super) held: Vec<usize>,
    /// Bytes of a piece, an even number.
    pub(super) bytes: usize,
}

impl Rebuilding {
    fn wanted(&self) -> usize {
        let native = self.held.iter().filter(|&&index| index < self.code.k);
        self.code.k - native.count()
    }
}

impl CpuWork for Rebuilding {
    fn input_bytes(&self) -> usize {
        self.code.k * self.bytes
    }

    fn output_bytes(&self) -> usize {
        self.wanted() * self.bytes
    }

    fn run(&self, input: &[u8], output: &mut [u8]) {
        let Self { code, held, bytes } = self;
        let (k, m) = (code.k, code.n - code.k);
        let slice = code.slice(REBUILT_BYTES).min(*bytes);
        let new = || ReedSolomonDecoder::new(k, m, slice).expect("the code has a shape");
        let mut decoder = code.decoders.take().unwrap_or_else(new);
        for from in (0..*bytes).step_by(slice) {
            let length = slice.min(bytes - from);
            decoder.reset(k, m, length).expect("the code has a shape");
            for (&index, piece) in held.iter().zip(input.chunks_exact(*bytes)) {
                let piece = &piece[from..][..length];
                let added = match index.checked_sub(k) {
                    None => decoder.add_original_shard(index, piece),
                    Some(index) => decoder.add_recovery_shard(index, piece),
                };
                added.expect("pieces of different chunks, of this length");
            }
            let made = decoder.decode().expect("k pieces were given");
            let pieces = output.chunks_exact_mut(*bytes);
            for (piece, (_, made)) in pieces.zip(made.restored_original_iter()) {
                piece[from..][..length].copy_from_slice(made);
            }
        }
        code.decoders.put_back(decoder);
    }
}

/// The transform goes over all bytes many times, so they are to stay in a core's cache.
const ENCODED_BYTES: usize = 1 << 20;
/// To rebuild begins with a transform of 65,536 elements, however short the pieces are.
const REBUILT_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom as _;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    /// The pieces of a stripe, native ones and code.
    fn pieces(code: &Arc<Leopard>, bytes: usize) -> Vec<Vec<u8>> {
        let mut native = vec![0; code.k * bytes];
        SmallRng::seed_from_u64(bytes as u64).fill_bytes(&mut native);
        let encoding = Encoding {
            code: Arc::clone(code),
            bytes,
        };
        assert_eq!(encoding.input_bytes(), native.len());
        // There may be more room than is needed.
        let mut made = vec![0; encoding.output_bytes() + 100];
        encoding.run(&native, &mut made);
        assert_eq!(made.split_off(encoding.output_bytes()), [0; 100]);
        let pieces = native.chunks(bytes).chain(made.chunks(bytes));
        pieces.map(<[u8]>::to_vec).collect()
    }

    const SHAPES: [(usize, usize); 9] = [
        (1, 2),
        (4, 6),
        (3, 200),
        (10, 14),
        (128, 192),
        (128, 256),
        (100, 228),
        (255, 256),
        (1, 256),
    ];

    #[test]
    fn bytes_are_those_of_the_library() {
        for (k, n) in SHAPES {
            let code = Arc::new(Leopard::new(k, n));
            for bytes in [
                2,
                62,
                64,
                66,
                1000,
                code.slice(ENCODED_BYTES),
                3 * code.slice(ENCODED_BYTES) + 130,
            ] {
                let pieces = pieces(&code, bytes);
                let (native, made) = pieces.split_at(k);
                let expected = reed_solomon_simd::encode(k, n - k, native).unwrap();
                assert!(made == expected, "{k} of {n}, {bytes} bytes");
            }
        }
    }

    #[test]
    fn any_k_pieces_rebuild_the_others() {
        let mut rng = SmallRng::seed_from_u64(1);
        for (k, n) in SHAPES {
            let code = Arc::new(Leopard::new(k, n));
            for bytes in [2, 64, 1000, 2 * code.slice(ENCODED_BYTES) + 66] {
                let pieces = pieces(&code, bytes);
                for _ in 0..3 {
                    let mut held: Vec<usize> = (0..n).collect();
                    held.shuffle(&mut rng);
                    held.truncate(k);
                    let input: Vec<&[u8]> = held.iter().map(|&index| &pieces[index][..]).collect();
                    let input = input.concat();
                    let rebuilding = Rebuilding {
                        code: Arc::clone(&code),
                        held,
                        bytes,
                    };
                    let mut made = vec![0; rebuilding.output_bytes()];
                    rebuilding.run(&input, &mut made);
                    let missing = (0..k).filter(|index| !rebuilding.held.contains(index));
                    let missing: Vec<&[u8]> = missing.map(|index| &pieces[index][..]).collect();
                    assert!(made == missing.concat(), "{k} of {n}, {bytes} bytes");
                }
            }
        }
    }

    /// Files that were written stay readable, whatever version of the library comes.
    #[test]
    fn the_code_is_the_one_of_the_format() {
        let mut hasher = blake3::Hasher::new();
        for (k, n) in SHAPES {
            let native: Vec<u8> = (0..=250).cycle().take(k * 130).collect();
            let encoding = Encoding {
                code: Arc::new(Leopard::new(k, n)),
                bytes: 130,
            };
            let mut made = vec![0; encoding.output_bytes()];
            encoding.run(&native, &mut made);
            hasher.update(&made);
        }
        let hash = hasher.finalize();
        assert_eq!(hash.to_hex()[..32], *"d9b307769d4982b6047cbda9e2d2ccba");
    }
}
