//! The binary rows of the system: S of LDPC, then one for each available symbol.

use super::system::System;

/// Binary rows as lists of columns.
#[derive(Debug)]
pub(super) struct Rows {
    columns: Vec<u32>,
    /// Where each row begins, and where its permanently inactive columns do; the end of the last
    /// row is behind them.
    bounds: Vec<(u32, u32)>,
}

impl Rows {
    /// The LDPC rows, and those of the internal symbols `isis` in their order.
    pub(super) fn new(system: &impl System, isis: impl ExactSizeIterator<Item = u32>) -> Self {
        let s = system.size().s;
        let count = s as usize + isis.len();
        // Eight columns a symbol in the mean, with its share of LDPC.
        let mut rows = Self {
            columns: Vec::with_capacity(12 * count),
            bounds: Vec::with_capacity(count + 1),
        };
        for row in 0..s {
            rows.push(|columns| system.ldpc_columns(row, columns));
        }
        rows.with_symbols(system, isis)
    }

    /// Those of some internal symbols alone.
    pub(super) fn of_symbols(
        system: &impl System,
        isis: impl ExactSizeIterator<Item = u32>,
    ) -> Self {
        let rows = Self {
            columns: Vec::with_capacity(8 * isis.len()),
            bounds: Vec::with_capacity(isis.len() + 1),
        };
        rows.with_symbols(system, isis)
    }

    /// The same with these symbols behind, and the end.
    fn with_symbols(mut self, system: &impl System, isis: impl Iterator<Item = u32>) -> Self {
        for isi in isis {
            self.push(|columns| system.columns(isi, columns));
        }
        self.bounds
            .push((index(self.columns.len()), index(self.columns.len())));
        self
    }

    fn push(&mut self, write: impl FnOnce(&mut Vec<u32>) -> usize) {
        let start = self.columns.len();
        let of_lt = write(&mut self.columns);
        self.bounds.push((index(start), index(start + of_lt)));
    }

    pub(super) fn len(&self) -> usize {
        self.bounds.len() - 1
    }

    /// All columns of a row.
    pub(super) fn row(&self, row: u32) -> &[u32] {
        &self.columns
            [self.bounds[row as usize].0 as usize..self.bounds[row as usize + 1].0 as usize]
    }

    /// Those below W.
    pub(super) fn lt(&self, row: u32) -> &[u32] {
        let (start, split) = self.bounds[row as usize];
        &self.columns[start as usize..split as usize]
    }
}

/// A number of rows, columns or symbols as it is kept in lists.
pub(super) fn index(number: usize) -> u32 {
    u32::try_from(number).expect("fewer than 2^32 of anything")
}
