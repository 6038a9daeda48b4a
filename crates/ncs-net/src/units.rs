//! Shared by all sections of the configuration: durations, sizes, lists and paths as operators
//! write them.
//!
//! A leaf: it knows no section.

use std::path::{Path, PathBuf};

pub mod duration;
mod list;
pub mod size;

pub use list::one_or_many;

/// Makes `path` absolute, relative to the directory in which the process was started.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
