//! Where results go: standard output, or a file that appears whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Stdout, Write};
use std::path::{Path, PathBuf};

use crate::{Error, is_standard};

/// A result while it is written.
#[derive(Debug)]
pub(super) enum Output {
    Standard(BufWriter<Stdout>),
    /// A device or pipe, which cannot be renamed over.
    Special(BufWriter<File>),
    Partial(Partial),
}

impl Output {
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        if is_standard(path) {
            return Ok(Self::Standard(BufWriter::new(io::stdout())));
        }
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let file = File::options()
                .write(true)
                .open(path)
                .map_err(Error::write(path))?;
            return Ok(Self::Special(BufWriter::new(file)));
        }
        Ok(Self::Partial(Partial::create(path)?))
    }

    /// Completes the result; dropped without, a file never appears.
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Self::Standard(mut stdout) => stdout.flush(),
            Self::Special(mut file) => file.flush(),
            Self::Partial(partial) => partial.finish(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Standard(stdout) => stdout.write(bytes),
            Self::Special(file) => file.write(bytes),
            Self::Partial(partial) => partial.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Standard(stdout) => stdout.flush(),
            Self::Special(file) => file.flush(),
            Self::Partial(partial) => partial.file.flush(),
        }
    }
}

/// A file beside its target, removed when dropped.
#[derive(Debug)]
pub(super) struct Partial {
    file: BufWriter<File>,
    path: PathBuf,
    target: PathBuf,
}

impl Partial {
    /// The target is replaced in the end, not before; if it is a link, what it points to is.
    pub(super) fn create(target: &Path) -> Result<Self, Error> {
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.into());
        let mut name = std::ffi::OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".{}.part", std::process::id()));
        let path = target.with_file_name(name);
        // Reading too: what is spooled is read back.
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(Error::write(&path))?;
        Ok(Self {
            file: BufWriter::new(file),
            path,
            target,
        })
    }

    pub(super) fn writer(&mut self) -> &mut BufWriter<File> {
        &mut self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn finish(mut self) -> io::Result<()> {
        self.sync()?;
        self.publish()
    }

    /// Brings everything to the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()
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
