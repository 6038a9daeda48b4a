//! What sections of the configuration have in common: durations, sizes, lists and paths as an operator writes them.
//!
//! A leaf: it knows no section, and every section may use it.

use std::path::{Path, PathBuf};

pub mod duration;
mod list;
pub mod size;

pub use list::one_or_many;

/// `path` as it is, or relative to the directory the process was started in.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
