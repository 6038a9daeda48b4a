//! The constants for a number of source symbols, and the rows that tie the intermediate symbols
//! together (RFC 5053, sections 5.4.2 and 5.4.4).

use super::error::Error;
use super::tables::SYSTEMATIC;
use crate::raptor::{self, RANDOM, Size, System, Walk, WalkEnd, next_prime};

/// Encoding symbol ids are below this. From 65,521 on they repeat the first ones, because ids count
/// modulo 65,521 (section 5.4.4.4).
pub const ESI_END: u32 = 1 << 16;

/// The constants of a source block, named as in the RFC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// K, the source symbols.
    pub k: u32,
    /// J(K), the systematic index.
    pub j: u32,
    /// S, the LDPC symbols. A prime.
    pub s: u32,
    /// H, the Half symbols, 16 at most.
    pub h: u32,
    /// L = K + S + H, the intermediate symbols.
    pub l: u32,
    /// L', the smallest prime that is not less than L.
    pub l_prime: u32,
}

impl Parameters {
    /// Minimum number of source symbols of a block.
    pub const K_MIN: u32 = 4;
    /// Maximum number of source symbols of a block.
    pub const K_MAX: u32 = 8192;

    /// The constants of a block of `k` source symbols, from [`K_MIN`](Self::K_MIN) to
    /// [`K_MAX`](Self::K_MAX) (section 5.4.2.3).
    pub fn new(k: u32) -> Result<Self, Error> {
        if !(Self::K_MIN..=Self::K_MAX).contains(&k) {
            return Err(Error::Symbols { k });
        }
        let x = (1..)
            .find(|x| x * (x - 1) >= 2 * k)
            .expect("there is a larger square");
        let s = next_prime(k.div_ceil(100) + x);
        let h = (1..)
            .find(|&h: &u32| choose(h, h.div_ceil(2)) >= k + s)
            .expect("binomials grow");
        let l = k + s + h;
        let j = SYSTEMATIC[(k - Self::K_MIN) as usize].into();
        Ok(Self {
            k,
            j,
            s,
            h,
            l,
            l_prime: next_prime(l),
        })
    }

    /// `Trip[K, X]`, the triple of encoding symbol `x` (section 5.4.4.4).
    pub fn triple(&self, x: u32) -> Triple {
        let a = (53_591 + self.j * 997) % Q;
        let b = (10_267 * (self.j + 1)) % Q;
        let y = u64::from(b) + u64::from(x) * u64::from(a);
        let y = u32::try_from(y % u64::from(Q)).expect("a remainder of a number of 16 bits");
        let d = degree(random(y, 0, 1 << 20));
        Triple {
            d,
            a: 1 + random(y, 1, self.l_prime - 1),
            b: random(y, 2, self.l_prime),
        }
    }

    /// The intermediate symbols that add up to encoding symbol `esi`.
    pub fn columns_of(&self, esi: u32) -> Vec<u32> {
        raptor::columns(self, esi)
    }

    /// m[j, H'] for every j below K + S: the numbers with so many ones in the order of the Gray
    /// sequence (section 5.4.2.3). Bit h is whether Half row h has symbol j.
    fn gray(&self) -> Vec<u32> {
        let ones = self.h.div_ceil(2);
        let gray = (0_u32..)
            .map(|i| i ^ (i >> 1))
            .filter(|g| g.count_ones() == ones);
        gray.take((self.k + self.s) as usize).collect()
    }
}

impl System for Parameters {
    /// The Half symbols, which the dense rows are for, are inactive from the start.
    fn size(&self) -> Size {
        let Self { k, s, h, l, .. } = *self;
        Size {
            k,
            k_prime: k,
            s,
            h,
            w: k + s,
            l,
        }
    }

    fn isi(&self, esi: u32) -> u32 {
        esi
    }

    /// What `LTEnc` adds up (section 5.4.4.3).
    fn columns(&self, isi: u32, columns: &mut Vec<u32>) -> usize {
        let Triple { d, a, mut b } = self.triple(isi);
        let (before, w) = (columns.len(), self.k + self.s);
        let mut of_half = [0; DEGREE_MAX as usize];
        let mut halves = 0;
        for _ in 0..d.min(self.l) {
            while b >= self.l {
                b = self.next(b, a);
            }
            if b < w {
                columns.push(b);
            } else {
                of_half[halves] = b;
                halves += 1;
            }
            b = self.next(b, a);
        }
        let of_lt = columns.len() - before;
        columns.extend(&of_half[..halves]);
        of_lt
    }

    /// Column i of the first K is in three rows: i mod S, and twice so many further as tells which
    /// S columns it is among.
    fn ldpc_columns(&self, row: u32, columns: &mut Vec<u32>) -> usize {
        let (before, s) = (columns.len(), self.s);
        for (first, group) in (0..self.k).step_by(s as usize).zip(0..) {
            let a = 1 + group % (s - 1);
            for steps in 0..3 {
                let column = first + (row + 3 * s - steps * a) % s;
                if column < self.k {
                    columns.push(column);
                }
            }
        }
        columns.push(self.k + row);
        columns.len() - before
    }

    fn dense_columns(&self) -> Vec<u128> {
        let bytes = |bits: u32| {
            (0..self.h).fold(0, |bytes, row| {
                bytes | u128::from(bits >> row & 1) << (8 * row)
            })
        };
        self.gray()
            .into_iter()
            .map(bytes)
            .chain((0..self.h).map(|row| 1 << (8 * row)))
            .collect()
    }

    /// What is summed up to a column is in a row as long as the row has ones: neighbours differ in
    /// two rows.
    fn walk(&self) -> Walk {
        let gray = self.gray();
        let rows = |mut bits: u32| {
            std::iter::from_fn(move || {
                let row = bits.trailing_zeros();
                bits &= bits.wrapping_sub(1);
                (row < 32).then_some(row)
            })
        };
        let pair = |both: &[u32]| {
            let mut changed = rows(both[0] ^ both[1]);
            [changed.next(), changed.next()].map(|row| {
                row.expect("of as many ones, neighbours in a Gray sequence differ in two bits")
            })
        };
        Walk {
            pairs: gray.windows(2).map(pair).collect(),
            end: WalkEnd::Rows(gray.last().copied().into_iter().flat_map(rows).collect()),
        }
    }
}

impl Parameters {
    fn next(&self, b: u32, a: u32) -> u32 {
        let next = b + a;
        next - if next >= self.l_prime {
            self.l_prime
        } else {
            0
        }
    }
}

/// A symbol's triple (section 5.4.4.4): degree, step and start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Triple {
    /// Degree.
    pub d: u32,
    /// Step, from 1 to L' - 1.
    pub a: u32,
    /// Start, below L'.
    pub b: u32,
}

/// `Rand[X, i, m]` (section 5.4.4.1): below `m`. V0 and V1 are those of RaptorQ.
fn random(x: u32, i: u8, m: u32) -> u32 {
    let [b0, b1, ..] = x
        .to_le_bytes()
        .map(|byte| usize::from(byte.wrapping_add(i)));
    (RANDOM[0][b0] ^ RANDOM[1][b1]) % m
}

/// `Deg[v]` (section 5.4.4.2) for `v` below 2^20.
fn degree(v: u32) -> u32 {
    const DEGREES: [(u32, u32); 7] = [
        (10_241, 1),
        (491_582, 2),
        (712_794, 3),
        (831_695, 4),
        (948_446, 10),
        (1_032_189, 11),
        (1_048_576, DEGREE_MAX),
    ];
    DEGREES
        .iter()
        .find(|(end, _)| v < *end)
        .map_or(DEGREES[6].1, |(_, degree)| *degree)
}

/// Of `n` things `k`, as long as that is below 2^32.
fn choose(n: u32, k: u32) -> u32 {
    (1..=k).fold(1, |product, i| product * (n - k + i) / i)
}

/// The largest prime below 2^16.
const Q: u32 = 65_521;
/// The largest degree.
const DEGREE_MAX: u32 = 40;
