//! Where results go: standard output, or a file that appears whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Stdout, Write};
use std::path::Path;

use crate::disk::{Target, Writers};
use crate::partial::Partial;
use crate::{Error, is_standard};

/// A result while it is written.
#[derive(Debug)]
pub(super) enum Output {
    Standard(BufWriter<Stdout>),
    /// A device or pipe, which cannot be renamed over.
    Special(BufWriter<File>),
    Partial(Target, Writers),
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
        let partial = Partial::create(path)?;
        let writers = Writers::start(1).map_err(Error::write(path))?;
        Ok(Self::Partial(Target::new(partial, &writers), writers))
    }

    /// Completes the result; dropped without, a file never appears.
    pub(super) fn finish(self) -> io::Result<()> {
        match self {
            Self::Standard(mut stdout) => stdout.flush(),
            Self::Special(mut file) => file.flush(),
            Self::Partial(target, writers) => {
                let partial = writers.finish().and_then(|()| target.finish());
                let partial = partial.map_err(|(_, error)| error)?;
                partial.file().sync_all()?;
                partial.publish()
            }
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Standard(stdout) => stdout.write(bytes),
            Self::Special(file) => file.write(bytes),
            Self::Partial(target, writers) => match target.write(bytes, writers) {
                Ok(()) => Ok(bytes.len()),
                Err((_, error)) => Err(error),
            },
        }
    }

    /// A file is flushed when it is finished.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Standard(stdout) => stdout.flush(),
            Self::Special(file) => file.flush(),
            Self::Partial(..) => Ok(()),
        }
    }
}
