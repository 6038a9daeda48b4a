//! What the solver needs to know of a code: its rows.

/// The rows that tie the intermediate symbols of a source block, and those of its encoding symbols.
pub trait System {
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
pub struct Size {
    /// K, the source symbols.
    pub k: u32,
    /// K', the source symbols with padding.
    pub k_prime: u32,
    /// S, the LDPC rows.
    pub s: u32,
    /// H, the dense rows, 16 at most.
    pub h: u32,
    /// W: intermediate symbols from here on are inactive from the start. Those of the dense rows,
    /// the last H, must be.
    pub w: u32,
    /// L = K' + S + H, the intermediate symbols.
    pub l: u32,
}

/// The multiplication of H dense rows with symbols: a value grows by the symbol of each column, and
/// is added to two rows after it.
#[derive(Debug)]
pub struct Walk {
    /// For each column but the last, these two rows.
    pub pairs: Vec<[u32; 2]>,
    /// The step after the last column.
    pub end: WalkEnd,
}

/// The use of the value at the end, and its change on the way.
#[derive(Debug)]
pub enum WalkEnd {
    /// It goes to all rows, times 1, 2, 4 and so on, and is doubled before every column.
    Powers,
    /// It goes to these rows, and is never doubled.
    Rows(Vec<u32>),
}

/// The intermediate symbols that add up to encoding symbol `esi`.
pub(crate) fn columns(system: &impl System, esi: u32) -> Vec<u32> {
    let mut columns = Vec::with_capacity(48);
    system.columns(system.isi(esi), &mut columns);
    columns
}
