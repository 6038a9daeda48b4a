//! Phase 1 of inactivation decoding (RFC 6330, section 5.4.2.2; RFC 5053, section 5.5.2.2), on the
//! structure alone.
//!
//! A row with one active column is that column's pivot row, and the column leaves: it is *peeled*.
//! If there is no such row, a column becomes *inactive*: it leaves, too, and is solved for at the
//! end, with the P permanently inactive columns. All but one column of a pivot row have left before
//! it, so elimination never adds an active column to a row: rows only count theirs. A row with two
//! active columns is an edge of a graph. Removing one column of a connected component peels all its
//! other columns, so the best column is one of the largest component.

use super::rows::{Rows, index};

/// The order in which columns can be solved, and their rows.
#[derive(Debug)]
pub(super) struct Peeled {
    /// Rows and their pivot columns: every other column of a row is inactive, or an earlier pivot.
    pub(super) pivots: Vec<(u32, u32)>,
    /// The inactive columns, permanent ones first.
    pub(super) inactive: Vec<u32>,
    /// The rows that are not pivot rows.
    pub(super) rest: Vec<u32>,
}

impl Peeled {
    /// Peels rows over `l` columns, which are permanently inactive from `w` on.
    pub(super) fn new(rows: &Rows, w: u32, l: u32) -> Self {
        let mut state = State::new(rows, w, l);
        loop {
            state.peel();
            let Some(column) = state.choose() else { break };
            state.inactive.push(column);
            state.remove(column);
        }
        let rest = (0..index(rows.len()))
            .filter(|&row| !state.is_pivot[row as usize])
            .collect();
        Self {
            pivots: state.pivots,
            inactive: state.inactive,
            rest,
        }
    }
}

struct State<'a> {
    rows: &'a Rows,
    /// Rows of each column below W, and where those of a column begin.
    of_column: Vec<u32>,
    starts: Vec<u32>,
    /// Active columns of each row: how many, and their sum, which is the column if it is the only
    /// one.
    active: Vec<Active>,
    is_pivot: Vec<bool>,
    /// Columns that have not left.
    is_active: Vec<bool>,
    remaining: usize,
    /// Rows that had one active column when they came here.
    ripple: Vec<u32>,
    /// Rows that had two, and are not in the graph yet.
    edges: Vec<u32>,
    graph: Components,
    pivots: Vec<(u32, u32)>,
    inactive: Vec<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Active {
    count: u32,
    sum: u32,
}

impl<'a> State<'a> {
    fn new(rows: &'a Rows, w: u32, l: u32) -> Self {
        let (width, height) = (w as usize, rows.len());
        let mut starts = vec![0; width + 1];
        let mut active = Vec::with_capacity(height);
        let (mut ripple, mut edges) = (Vec::new(), Vec::with_capacity(height));
        for row in 0..index(height) {
            let columns = rows.lt(row);
            columns
                .iter()
                .for_each(|&column| starts[column as usize] += 1);
            active.push(Active {
                count: index(columns.len()),
                sum: columns.iter().fold(0, |sum, column| sum ^ column),
            });
            match columns.len() {
                1 => ripple.push(row),
                2 => edges.push(row),
                _ => (),
            }
        }
        let mut total = 0;
        for start in &mut starts {
            total += *start;
            *start = total;
        }
        // Filled from the end, so that each start has come down to its place when all are written.
        let mut of_column = vec![0; total as usize];
        for row in 0..index(height) {
            for &column in rows.lt(row) {
                let start = &mut starts[column as usize];
                *start -= 1;
                of_column[*start as usize] = row;
            }
        }
        Self {
            rows,
            of_column,
            starts,
            active,
            is_pivot: vec![false; height],
            is_active: vec![true; width],
            remaining: width,
            ripple,
            edges,
            graph: Components::new(width),
            pivots: Vec::with_capacity(width),
            inactive: (w..l).collect(),
        }
    }

    /// Takes columns away as long as there are rows with one.
    fn peel(&mut self) {
        while let Some(row) = self.ripple.pop() {
            let Active { count, sum } = self.active[row as usize];
            if count == 1 {
                self.is_pivot[row as usize] = true;
                self.pivots.push((row, sum));
                self.remove(sum);
            }
        }
    }

    /// Takes a column out of its rows.
    fn remove(&mut self, column: u32) {
        self.is_active[column as usize] = false;
        self.remaining -= 1;
        for &row in &self.of_column
            [self.starts[column as usize] as usize..self.starts[column as usize + 1] as usize]
        {
            let active = &mut self.active[row as usize];
            active.count -= 1;
            active.sum ^= column;
            match active.count {
                1 => self.ripple.push(row),
                2 => self.edges.push(row),
                _ => (),
            }
        }
    }

    /// The column to make inactive, unless none is left: of the largest component, or else of a row
    /// with the fewest.
    fn choose(&mut self) -> Option<u32> {
        if self.remaining == 0 {
            return None;
        }
        while let Some(row) = self.edges.pop() {
            let Active { count, sum } = self.active[row as usize];
            if count == 2 {
                let column = self.any_of(row);
                self.graph.join(column, sum ^ column);
            }
        }
        self.graph
            .largest(|column| self.is_active[column as usize])
            .or_else(|| {
                let rows =
                    (0..index(self.rows.len())).filter(|&row| self.active[row as usize].count > 0);
                // If no row has any, nothing but the dense rows ties those that are left.
                match rows.min_by_key(|&row| self.active[row as usize].count) {
                    Some(row) => Some(self.any_of(row)),
                    None => self
                        .is_active
                        .iter()
                        .position(|is_active| *is_active)
                        .map(index),
                }
            })
    }

    /// An active column of a row that has one.
    fn any_of(&self, row: u32) -> u32 {
        let mut columns = self.rows.lt(row).iter().copied();
        columns
            .find(|&column| self.is_active[column as usize])
            .expect("the row has an active column")
    }
}

/// Connected components of a graph of columns. They only grow, until all their columns leave at
/// once.
struct Components {
    parents: Vec<u32>,
    sizes: Vec<u32>,
    /// Roots by the size that they had when they came here.
    by_size: Vec<Vec<u32>>,
}

impl Components {
    fn new(columns: usize) -> Self {
        Self {
            parents: (0..index(columns)).collect(),
            sizes: vec![1; columns],
            by_size: Vec::new(),
        }
    }

    fn root(&mut self, mut column: u32) -> u32 {
        while self.parents[column as usize] != column {
            let grandparent = self.parents[self.parents[column as usize] as usize];
            self.parents[column as usize] = grandparent;
            column = grandparent;
        }
        column
    }

    fn join(&mut self, one: u32, other: u32) {
        let (one, other) = (self.root(one), self.root(other));
        if one == other {
            return;
        }
        let (large, small) = if self.sizes[one as usize] < self.sizes[other as usize] {
            (other, one)
        } else {
            (one, other)
        };
        self.parents[small as usize] = large;
        self.sizes[large as usize] += self.sizes[small as usize];
        let size = self.sizes[large as usize] as usize;
        if self.by_size.len() <= size {
            self.by_size.resize_with(size + 1, Vec::new);
        }
        self.by_size[size].push(large);
    }

    /// A column of the largest component.
    fn largest(&mut self, is_active: impl Fn(u32) -> bool) -> Option<u32> {
        while let Some(size) = self.by_size.len().checked_sub(1) {
            let Some(root) = self.by_size[size].pop() else {
                self.by_size.pop();
                continue;
            };
            let is_root =
                self.parents[root as usize] == root && self.sizes[root as usize] as usize == size;
            if is_root && is_active(root) {
                return Some(root);
            }
        }
        None
    }
}
