//! RaptorQ's rows, in the form that the solver needs.

use super::parameters::Parameters;
use crate::raptor::{Size, System, Walk, WalkEnd};

impl System for Parameters {
    fn size(&self) -> Size {
        let Self {
            k,
            k_prime,
            s,
            h,
            w,
            l,
            ..
        } = *self;
        Size {
            k,
            k_prime,
            s,
            h,
            w,
            l,
        }
    }

    fn isi(&self, esi: u32) -> u32 {
        Self::isi(self, esi)
    }

    fn columns(&self, isi: u32, columns: &mut Vec<u32>) -> usize {
        Self::columns(self, isi, columns)
    }

    fn ldpc_columns(&self, row: u32, columns: &mut Vec<u32>) -> usize {
        Self::ldpc_columns(self, row, columns)
    }

    /// HDPC.
    fn dense_columns(&self) -> Vec<u128> {
        self.hdpc_columns()
    }

    /// MT column by column, and GAMMA by Horner's rule.
    fn walk(&self) -> Walk {
        let last = self.k_prime + self.s - 1;
        Walk {
            pairs: (0..last).map(|column| self.hdpc_pair(column)).collect(),
            end: WalkEnd::Powers,
        }
    }
}
