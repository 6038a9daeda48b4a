//! Files that appear whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;

/// A file beside its target, removed when dropped.
#[derive(Debug)]
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    target: PathBuf,
}

impl Partial {
    /// The target is replaced in the end, not before; if it is a link, what it points to is.
    pub(super) fn create(target: &Path) -> Result<Self, Error> {
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.into());
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        // Not by the process alone: in a container each has the same number, and may have left one.
        name.push(format!(".{:08x}.part", rand::random::<u32>()));
        let path = target.with_file_name(name);
        // Reading too: what is spooled is read back.
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(Error::write(&path))?;
        Ok(Self { file, path, target })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name. It has been synchronized.
    pub(super) fn publish(self) -> io::Result<()> {
        fs::rename(&self.path, &self.target)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename there is nothing under this name.
        let _ = fs::remove_file(&self.path);
    }
}
