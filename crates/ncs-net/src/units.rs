//! Shared by all sections of the configuration: durations, sizes, lists and paths as operators
//! write them.
//!
//! A leaf: it knows no section.

use std::path::{Path, PathBuf};

pub mod duration;
mod list;
pub mod size;

pub use list::one_or_many;

/// Where a program keeps a part of its state: in the state directory of the service, which systemd
/// names in a variable, or in that of the user.
pub fn state_directory<'a>(part: &str, variable: impl Fn(&str) -> Option<&'a str>) -> PathBuf {
    let state = |name: &str| {
        variable(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let service = || state("STATE_DIRECTORY").map(|path| path.join(part));
    let user = || state("XDG_STATE_HOME").map(|path| path.join("ncserverd").join(part));
    let home = || state("HOME").map(|path| path.join(".local/state/ncserverd").join(part));
    service()
        .or_else(user)
        .or_else(home)
        .unwrap_or_else(|| PathBuf::from("ncserverd-state").join(part))
}

/// Makes `path` absolute, relative to the directory in which the process was started.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
