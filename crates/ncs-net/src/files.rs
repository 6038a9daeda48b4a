//! Opens only regular files: a pipe, a device or a socket is an error, and never blocks. Writes
//! private files as a whole.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
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

/// Creates a file that only its owner may read, as a whole or not at all, by way of `draft` on the
/// same file system, which is gone afterwards. A file that is there stays, and the error is
/// [`io::ErrorKind::AlreadyExists`].
pub fn create_private(draft: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    by_draft(draft, bytes, || std::fs::hard_link(draft, path))
}

/// The same in place of a file that is there. When it returns, a power cut loses nothing.
pub fn replace_private(draft: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    by_draft(draft, bytes, || {
        std::fs::rename(draft, path)?;
        path.parent()
            .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    })
}

fn by_draft(
    draft: &Path,
    bytes: &[u8],
    publish: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(draft)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()?;
            publish()
        });
    match std::fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => written.and(Err(error)),
        _ => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_file_is_created_once_and_replaced_as_a_whole() {
        use std::os::unix::fs::PermissionsExt as _;

        let place = tempfile::tempdir().unwrap();
        let [path, draft] = ["key", ".draft"].map(|name| place.path().join(name));
        create_private(&draft, &path, b"one").unwrap();
        let again = create_private(&draft, &path, b"two").unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path, 3).unwrap(), b"one");
        replace_private(&draft, &path, b"two").unwrap();
        assert_eq!(read(&path, 3).unwrap(), b"two");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // What cannot be put there leaves nothing.
        let nowhere = place.path().join("none/key");
        assert!(replace_private(&draft, &nowhere, b"two").is_err());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

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
