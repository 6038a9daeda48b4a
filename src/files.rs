//! Regular files and nothing else: a pipe, a device or a socket in the place of one is an error, and is not waited for.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a regular file to read. Does not wait for a writer of a pipe; follows links.
pub(crate) fn open(path: &Path) -> io::Result<(File, Metadata)> {
    open_with(path, OFlags::empty())
}

/// The same, where the name itself may be no link.
pub(crate) fn open_itself(path: &Path) -> io::Result<(File, Metadata)> {
    open_with(path, OFlags::NOFOLLOW)
}

fn open_with(path: &Path, flags: OFlags) -> io::Result<(File, Metadata)> {
    // Looking first keeps devices from being opened, which may do something; the second look is at what was opened.
    let look = if flags.contains(OFlags::NOFOLLOW) { std::fs::symlink_metadata(path) } else { std::fs::metadata(path) };
    check(&look?)?;
    let file = File::from(rustix::fs::open(path, flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    let metadata = file.metadata()?;
    check(&metadata)?;
    Ok((file, metadata))
}

fn check(metadata: &Metadata) -> io::Result<()> {
    if metadata.is_file() { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file")) }
}

/// Reads a regular file of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open(path)?;
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {max} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::write(at("file"), "abc").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        assert_eq!(read(&at("link"), 3).unwrap(), b"abc");
        assert!(read(&at("file"), 2).is_err());
        assert!(open_itself(&at("file")).is_ok() && open_itself(&at("link")).is_err());
        for name in ["pipe", "none", "."] {
            assert!(open(&at(name)).is_err(), "{name}");
        }
        assert!(open(Path::new("/dev/zero")).is_err());
    }
}
