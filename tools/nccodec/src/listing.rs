//! Lines about what is missing: the first ones, and how many more there are.

use std::fmt;

/// Such lines, each below the one before and indented.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Listing {
    lines: Vec<String>,
    unlisted: u64,
}

impl Listing {
    pub(super) fn add(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line);
        } else {
            self.unlisted += 1;
        }
    }

    /// Those of another behind these.
    pub(super) fn append(&mut self, other: Self) {
        other.lines.into_iter().for_each(|line| self.add(line));
        self.unlisted += other.unlisted;
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines
            .iter()
            .try_for_each(|line| write!(f, "\n  {line}"))?;
        if self.unlisted > 0 {
            write!(f, "\n  and {} more like these", self.unlisted)
        } else {
            Ok(())
        }
    }
}

const LINES_MAX: usize = 32;
