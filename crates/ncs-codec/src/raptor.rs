//! The common part of Raptor10 (RFC 5053) and RaptorQ (RFC 6330).
//!
//! The encoding symbols of a block are sums of a few of its L *intermediate symbols*. S sparse rows
//! (LDPC) and H dense rows tie these together. With the rows of enough encoding symbols, they form
//! a system with one solution, and every other symbol follows from it. The two codes differ in
//! these rows; a [`System`] describes them. The solution is found on the structure alone: `rows`
//! has the sparse system, `peel` and `solution` solve it, and a [`Plan`] has the resulting
//! operations on symbols. These operations never depend on the symbols' bytes, so a plan can be
//! kept.

mod block;
mod held;
mod peel;
mod plan;
mod rows;
mod solution;
#[cfg(test)]
pub(super) mod testing;

pub(super) use block::{Block, count};
pub use held::Arrival;
pub(super) use held::{Held, missing};
pub use plan::Plan;

use plan::Wanted;
use rows::{Rows, index};
use solution::{Deficit, Solution};

/// The rows that tie the intermediate symbols of a source block, and those of its encoding symbols.
pub(super) trait System {
    /// How large it is.
    fn size(&self) -> Size;

    /// The internal symbol of an encoding symbol: padding may lie between source and repair
    /// symbols.
    fn isi(&self, esi: u32) -> u32;

    /// Appends the intermediate symbols that add up to internal symbol `isi`, none twice: those
    /// below W, then the others. Returns the number of those below W.
    fn columns(&self, isi: u32, columns: &mut Vec<u32>) -> usize;

    /// Appends the intermediate symbols whose sum is zero by LDPC row `row`, of S, in the same way.
    fn ldpc_columns(&self, row: u32, columns: &mut Vec<u32>) -> usize;

    /// The dense rows by columns, of which there are L: each byte of the number is the coefficient
    /// of one of the H rows in the column, the first row in the lowest byte. From K' + S on it is
    /// the identity.
    fn dense_columns(&self) -> Vec<u128>;

    /// The same in the first K' + S columns, in few operations.
    fn walk(&self) -> Walk;
}

/// The numbers of a system, as RFC 6330 names them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// K, the source symbols.
    pub(super) k: u32,
    /// K', the source symbols with padding.
    pub(super) k_prime: u32,
    /// S, the LDPC rows.
    pub(super) s: u32,
    /// H, the dense rows, 16 at most.
    pub(super) h: u32,
    /// W: intermediate symbols from here on are inactive from the start. Those of the dense rows,
    /// the last H, must be.
    pub(super) w: u32,
    /// L = K' + S + H, the intermediate symbols.
    pub(super) l: u32,
}

/// The multiplication of H dense rows with symbols: a value grows by the symbol of each column, and
/// is added to two rows after it.
#[derive(Debug)]
pub(super) struct Walk {
    /// For each column but the last, these two rows.
    pub(super) pairs: Vec<[u32; 2]>,
    /// The step after the last column.
    pub(super) end: WalkEnd,
}

/// The use of the value at the end, and its change on the way.
#[derive(Debug)]
pub(super) enum WalkEnd {
    /// It goes to all rows, times 1, 2, 4 and so on, and is doubled before every column.
    Powers,
    /// It goes to these rows, and is never doubled.
    Rows(Vec<u32>),
}

/// The intermediate symbols that add up to encoding symbol `esi`.
pub(super) fn columns(system: &impl System, esi: u32) -> Vec<u32> {
    let mut columns = Vec::with_capacity(48);
    system.columns(system.isi(esi), &mut columns);
    columns
}

/// Makes all intermediate symbols from the K' source symbols, which must give a regular system.
pub(super) fn encoding_plan(system: &impl System) -> Plan {
    let k_prime = system.size().k_prime;
    let rows = Rows::new(system, 0..k_prime);
    let solution = Solution::new(system, &rows).expect("the systematic index makes the system regular");
    let inputs: Vec<Option<u32>> = (0..k_prime).map(Some).collect();
    Plan::new(system, &rows, &solution, &inputs, Wanted::Intermediate)
}

/// Makes the source symbols `missing` from encoding symbols with these ids, none twice.
pub(super) fn decoding_plan(system: &impl System, esis: &[u32], missing: &[u32]) -> Result<Plan, Deficit> {
    let (rows, padding) = rows(system, esis);
    let solution = Solution::new(system, &rows)?;
    let mut inputs: Vec<Option<u32>> = (0..index(esis.len())).map(Some).collect();
    inputs.resize(esis.len() + padding, None);
    Ok(Plan::new(system, &rows, &solution, &inputs, Wanted::Symbols(missing)))
}

/// Lower bound of the rank deficit of encoding symbols with these ids, none twice.
pub(super) fn deficit(system: &impl System, esis: &[u32]) -> usize {
    solvable(system, esis).map_or_else(|deficit| deficit.missing, |()| 0)
}

/// Whether encoding symbols with these ids, none twice, determine the block.
fn solvable(system: &impl System, esis: &[u32]) -> Result<(), Deficit> {
    Solution::new(system, &rows(system, esis).0).map(drop)
}

/// The rows of these symbols, followed by those of padding, and the number of the latter.
fn rows(system: &impl System, esis: &[u32]) -> (Rows, usize) {
    let Size { k, k_prime, .. } = system.size();
    let isis: Vec<u32> = esis.iter().map(|&esi| system.isi(esi)).chain(k..k_prime).collect();
    (Rows::new(system, isis.iter().copied()), isis.len() - esis.len())
}
