//! What becomes known of the rows of a generation.

use ncs_codec::block::Block;

use crate::peer::SourceId;

/// Rows that may be mixed with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Heap {
    /// Tested rows.
    Checked,
    /// Rows of one source.
    Of(SourceId),
}

/// New rows of a generation.
#[derive(Debug, Clone)]
pub enum News {
    /// A row.
    Row {
        /// Its sender.
        source: SourceId,
        /// The row.
        block: Block,
        /// Whether it was tested.
        is_checked: bool,
    },
    /// All rows so far were tested; these are right.
    Checked(Vec<Block>),
}

impl News {
    /// The number of rows of a heap in it.
    pub fn count(&self, heap: Heap) -> usize {
        match self {
            Self::Row {
                is_checked: true, ..
            } => usize::from(heap == Heap::Checked),
            Self::Row { source, .. } => usize::from(heap == Heap::Of(*source)),
            Self::Checked(rows) => {
                if heap == Heap::Checked {
                    rows.len()
                } else {
                    0
                }
            }
        }
    }
}
