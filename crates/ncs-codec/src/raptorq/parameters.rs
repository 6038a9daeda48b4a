//! The constants for a number of source symbols, K' and Table 2, and the rows that tie the
//! intermediate symbols together (RFC 6330, sections 5.3.3.3, 5.3.5 and 5.6).

use super::error::Error;
use super::tables::{DEGREES, SYSTEMATIC};
use crate::raptor::{self, RANDOM, next_prime};
use ncs_gf::gf256;

/// The constants of a source block, named as in the RFC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// K, the source symbols.
    pub k: u32,
    /// K', the source symbols with those of padding: the next of Table 2.
    pub k_prime: u32,
    /// J(K'), the systematic index.
    pub j: u32,
    /// S, the LDPC symbols.
    pub s: u32,
    /// H, the HDPC symbols, 16 at most.
    pub h: u32,
    /// W, the LT symbols, among them those of LDPC. A prime.
    pub w: u32,
    /// L = K' + S + H, the intermediate symbols.
    pub l: u32,
    /// P = L - W, the permanently inactive symbols.
    pub p: u32,
    /// P1, the smallest prime that is not less than P.
    pub p1: u32,
    /// U = P - H, the permanently inactive symbols that are not of HDPC.
    pub u: u32,
    /// B = W - S, the LT symbols that are not of LDPC.
    pub b: u32,
}

impl Parameters {
    /// Maximum number of source symbols of a block.
    pub const K_MAX: u32 = 56_403;

    /// The constants of a block of `k` source symbols, from 1 to [`K_MAX`](Self::K_MAX).
    pub fn new(k: u32) -> Result<Self, Error> {
        if k == 0 || k > Self::K_MAX {
            return Err(Error::Symbols { k });
        }
        let (k_prime, j, s, h, w) = SYSTEMATIC[SYSTEMATIC.partition_point(|row| row.0 < k)];
        let l = k_prime + s + h;
        let p = l - w;
        Ok(Self {
            k,
            k_prime,
            j,
            s,
            h,
            w,
            l,
            p,
            p1: next_prime(p),
            u: p - h,
            b: w - s,
        })
    }

    /// Every K' of Table 2, ascending.
    pub fn table() -> impl ExactSizeIterator<Item = u32> {
        SYSTEMATIC.iter().map(|row| row.0)
    }

    /// X, the internal symbol id, of the encoding symbol `esi`: padding lies between source and
    /// repair symbols.
    pub fn isi(&self, esi: u32) -> u32 {
        if esi < self.k {
            esi
        } else {
            esi + (self.k_prime - self.k)
        }
    }

    /// The tuple of internal symbol `x` (section 5.3.5.4).
    pub fn tuple(&self, x: u32) -> Tuple {
        let a = (53_591 + self.j * 997) | 1;
        let y = (10_267 * (self.j + 1)).wrapping_add(x.wrapping_mul(a));
        let d = degree(random(y, 0, 1 << 20)).min(self.w - 2);
        // The last three of `x`, not of y.
        Tuple {
            d,
            a: 1 + random(y, 1, self.w - 1),
            b: random(y, 2, self.w),
            d1: if d < 4 { 2 + random(x, 3, 2) } else { 2 },
            a1: 1 + random(x, 4, self.p1 - 1),
            b1: random(x, 5, self.p1),
        }
    }

    /// Appends the intermediate symbols that add up to internal symbol `x` (section 5.3.5.3): LT
    /// ones, then permanently inactive ones, none twice. Returns the number of LT ones.
    pub fn columns(&self, x: u32, columns: &mut Vec<u32>) -> usize {
        let Tuple {
            d,
            a,
            mut b,
            d1,
            a1,
            mut b1,
        } = self.tuple(x);
        for _ in 0..d {
            columns.push(b);
            b += a;
            b -= if b >= self.w { self.w } else { 0 };
        }
        for _ in 0..d1 {
            while b1 >= self.p {
                b1 = self.next_inactive(b1, a1);
            }
            columns.push(self.w + b1);
            b1 = self.next_inactive(b1, a1);
        }
        d as usize
    }

    fn next_inactive(&self, b1: u32, a1: u32) -> u32 {
        let next = b1 + a1;
        next - if next >= self.p1 { self.p1 } else { 0 }
    }

    /// Appends the intermediate symbols whose sum is zero by LDPC row `row`, of S (section
    /// 5.3.3.3): LT ones, then permanently inactive ones. Returns the number of LT ones.
    pub(super) fn ldpc_columns(&self, row: u32, columns: &mut Vec<u32>) -> usize {
        let (before, s) = (columns.len(), self.s);
        // Column i of the a-th S columns is in rows i, i + a and i + 2 a: circulant matrices side
        // by side.
        for (first, a) in (0..self.b).step_by(s as usize).zip(1..) {
            for steps in 0..3 {
                let column = first + (row + 3 * s - steps * a) % s;
                if column < self.b {
                    columns.push(column);
                }
            }
        }
        columns.push(self.b + row);
        let of_lt = columns.len() - before;
        columns.extend([self.w + row % self.p, self.w + (row + 1) % self.p]);
        of_lt
    }

    /// The intermediate symbols that add up to encoding symbol `esi`.
    pub fn columns_of(&self, esi: u32) -> Vec<u32> {
        raptor::columns(self, esi)
    }

    /// The two rows in which MT of the HDPC constraint has ones in `column`, one of the first K' +
    /// S - 1 (section 5.3.3.3).
    pub fn hdpc_pair(&self, column: u32) -> [u32; 2] {
        let first = random(column + 1, 6, self.h);
        let second = first + random(column + 1, 7, self.h - 1) + 1;
        [first, second - if second >= self.h { self.h } else { 0 }]
    }

    /// The HDPC constraint, by columns: each byte of the number is the coefficient of one of the H
    /// rows in the column, the first row in the lowest byte.
    ///
    /// MT times GAMMA is made from right to left: each column is that of MT plus alpha times the
    /// next one.
    pub(super) fn hdpc_columns(&self) -> Vec<u128> {
        let coded = self.k_prime + self.s;
        let mut columns = vec![0; self.l as usize];
        for row in 0..self.h {
            columns[(coded + row) as usize] = 1 << (8 * row);
        }
        let last = (0..self.h).fold(0, |column, row| {
            column | u128::from(gf256::EXP[row as usize]) << (8 * row)
        });
        let mut right = last;
        columns[coded as usize - 1] = last;
        for column in (0..coded - 1).rev() {
            let [first, second] = self.hdpc_pair(column);
            right = doubled(right) ^ (1 << (8 * first)) ^ (1 << (8 * second));
            columns[column as usize] = right;
        }
        columns
    }
}

/// A symbol's tuple (section 5.3.5.4): of LT symbols, degree, step and start; the same of
/// permanently inactive ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// Degree.
    pub d: u32,
    /// Step, from 1 to W - 1.
    pub a: u32,
    /// Start, below W.
    pub b: u32,
    /// Degree among permanently inactive symbols, 2 or 3.
    pub d1: u32,
    /// Step, from 1 to P1 - 1.
    pub a1: u32,
    /// Start, below P1.
    pub b1: u32,
}

/// `Rand[y, i, m]` (section 5.3.5.1): below `m`.
pub(super) fn random(y: u32, i: u8, m: u32) -> u32 {
    let [b0, b1, b2, b3] = y
        .to_le_bytes()
        .map(|byte| usize::from(byte.wrapping_add(i)));
    (RANDOM[0][b0] ^ RANDOM[1][b1] ^ RANDOM[2][b2] ^ RANDOM[3][b3]) % m
}

/// `Deg[v]` (section 5.3.5.2), before it is held below W - 1: from 1 to 30 for `v` below 2^20.
fn degree(v: u32) -> u32 {
    (1..)
        .zip(&DEGREES[1..])
        .find(|(_, threshold)| v < **threshold)
        .map_or(30, |(degree, _)| degree)
}

/// Sixteen elements, each times alpha.
fn doubled(elements: u128) -> u128 {
    const LOW: u128 = u128::from_ne_bytes([0x7F; 16]);
    const ONES: u128 = u128::from_ne_bytes([1; 16]);
    ((elements & LOW) << 1) ^ (((elements >> 7) & ONES) * 0x1D)
}
