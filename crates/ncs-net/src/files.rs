//! Opens only regular files: a pipe, a device or a socket is an error, and never blocks.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

/// Opens a regular file for reading. Does not wait for a writer of a pipe; follows links.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    // The first check keeps devices from being opened, which may have side effects; the second one
    // checks what was opened.
    check(std::fs::metadata(path)?.is_file())?;
    opened(rustix::fs::open(path, READ, Mode::empty())?)
}

/// The same below a directory, where no component of the path may be a link. Each component is
/// opened relative to the one before, so that replacing one by a link meanwhile cannot lead out of
/// the directory.
pub fn open_below(directory: &Path, path: &Path) -> io::Result<(File, Metadata)> {
    let (Some(parents), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(no_file());
    };
    let mut parent = rustix::fs::open(directory, SEARCH, Mode::empty())?;
    for component in parents.components() {
        let Component::Normal(name) = component else {
            return Err(no_file());
        };
        parent = rustix::fs::openat(&parent, name, SEARCH | OFlags::NOFOLLOW, Mode::empty())?;
    }
    let look = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    check(FileType::from_raw_mode(look.st_mode).is_file())?;
    opened(rustix::fs::openat(
        &parent,
        name,
        READ | OFlags::NOFOLLOW,
        Mode::empty(),
    )?)
}

fn opened(file: OwnedFd) -> io::Result<(File, Metadata)> {
    let file = File::from(file);
    let metadata = file.metadata()?;
    check(metadata.is_file())?;
    Ok((file, metadata))
}

fn check(is_file: bool) -> io::Result<()> {
    if is_file { Ok(()) } else { Err(no_file()) }
}

fn no_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a file")
}

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);
/// Linux opens a directory for traversal without the permission to read it.
#[cfg(target_os = "linux")]
const SEARCH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(target_os = "linux"))]
const SEARCH: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Reads a regular file of at most `max` bytes.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open(path)?;
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("more than {max} bytes"),
        ));
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
        assert!(
            std::process::Command::new("mkfifo")
                .arg(at("pipe"))
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(read(&at("link"), 3).unwrap(), b"abc");
        assert!(read(&at("file"), 2).is_err());
        for name in ["pipe", "none", "."] {
            assert!(open(&at(name)).is_err(), "{name}");
        }
        assert!(open(Path::new("/dev/zero")).is_err());
    }
    #[test]
    fn no_link_leads_out_of_a_directory() {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = place.path();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        for file in [
            root.join("file"),
            root.join("a/b/file"),
            outside.path().join("file"),
        ] {
            std::fs::write(file, "abc").unwrap();
        }
        std::os::unix::fs::symlink("file", root.join("link")).unwrap();
        let found = |path: &str| open_below(root, Path::new(path)).is_ok();
        assert!(found("file") && found("a/b/file"));
        for path in [
            "link",
            "none",
            "a",
            "a/none",
            "file/file",
            "",
            "..",
            "../file",
            "/etc/passwd",
        ] {
            assert!(!found(path), "{path}");
        }
        // As if replaced between a check of the path and its use.
        for (folder, file) in [("a/b", "a/b/file"), ("a", "a/file")] {
            std::fs::remove_dir_all(root.join(folder)).unwrap();
            std::os::unix::fs::symlink(outside.path(), root.join(folder)).unwrap();
            assert!(root.join(file).exists() && !found(file), "{file}");
            std::fs::remove_file(root.join(folder)).unwrap();
            std::fs::create_dir_all(root.join("a/b")).unwrap();
        }
    }
}
