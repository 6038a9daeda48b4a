//! What a server keeps of the fleet's configuration, in a folder of its own: the key that secrets
//! are sealed to, the last good revision as it was in the store, and the files that are in force.
//!
//! Files are for their owner alone, and appear as a whole or not at all.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::entry::ENTRY_BYTES_MAX;
use super::sealing::{KEY_BYTES, PrivateKey};
use super::store::Stored;
use crate::telemetry::now_ms;
use ncs_net::files;

/// The folder.
#[derive(Debug)]
pub(super) struct Kept {
    folder: PathBuf,
    key: PrivateKey,
}

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct Error {
    path: PathBuf,
    reason: String,
}

impl Kept {
    /// Opens the folder, and makes what is missing.
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let files = folder.join(FILES);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&files)
            .map_err(|error| fail(&files, error))?;
        let path = folder.join(KEY);
        let new = rand::random::<[u8; KEY_BYTES]>();
        match files::create_private(&draft(&path), &path, &new) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(fail(&path, error));
            }
            _ => {}
        }
        let bytes = files::read(&path, KEY_BYTES as u64).map_err(|error| fail(&path, error))?;
        let key = <[u8; KEY_BYTES]>::try_from(bytes);
        let key = key.map_err(|_| fail(&path, format!("not a key of {KEY_BYTES} bytes")))?;
        Ok(Self {
            folder: folder.to_owned(),
            key: PrivateKey::of(key),
        })
    }

    /// The key to which secrets are sealed for this server.
    pub(super) fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// Where the files of a document are.
    pub(super) fn files(&self) -> PathBuf {
        self.folder.join(FILES)
    }

    /// Writes the files of a document that are missing.
    pub(super) fn write_files(&self, files: &[(String, Vec<u8>)]) -> Result<(), Error> {
        for (name, bytes) in files {
            let path = self.files().join(name);
            if fs::read(&path).is_ok_and(|there| there == *bytes) {
                continue;
            }
            put(&path, bytes).map_err(|error| fail(&path, error))?;
        }
        Ok(())
    }

    /// Removes all files of documents but these, and nothing that somebody else has put there.
    pub(super) fn keep_files(&self, names: &BTreeSet<String>) {
        let Ok(entries) = fs::read_dir(self.files()) else {
            return;
        };
        let is_old = |name: &std::ffi::OsStr| {
            name.to_str()
                .is_some_and(|name| is_own(name) && !names.contains(name))
        };
        for entry in entries.flatten().filter(|entry| is_old(&entry.file_name())) {
            if let Err(error) = fs::remove_file(entry.path()) {
                let file = entry.path();
                tracing::warn!(file = %file.display(), %error, "cannot remove an old key");
            }
        }
    }

    /// The last good revision; `None` if there never was one.
    pub(super) fn last(&self) -> Result<Option<Stored>, Error> {
        let path = self.folder.join(LAST);
        if !path.exists() {
            return Ok(None);
        }
        let bytes = files::read(&path, (ENTRY_BYTES_MAX + HEAD_BYTES_MAX) as u64)
            .map_err(|error| fail(&path, error))?;
        let damaged = || fail(&path, "it is damaged");
        parse(&bytes).map(Some).ok_or_else(damaged)
    }

    /// Keeps a revision as the last good one.
    pub(super) fn keep(&self, stored: &Stored) -> Result<(), Error> {
        let path = self.folder.join(LAST);
        put(&path, &written(stored)).map_err(|error| fail(&path, error))
    }
}

/// A line with the revision, when it was written and the hash of the rest, and the rest.
fn written(stored: &Stored) -> Vec<u8> {
    let Stored {
        revision,
        written_ms,
        bytes,
    } = stored;
    let hash = blake3::hash(bytes).to_hex();
    let head = format!("{MAGIC} {revision} {written_ms} {hash}\n");
    [head.as_bytes(), bytes].concat()
}

fn parse(bytes: &[u8]) -> Option<Stored> {
    let end = bytes
        .iter()
        .take(HEAD_BYTES_MAX)
        .position(|byte| *byte == b'\n')?;
    let (head, rest) = (std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]);
    let mut words = head.strip_prefix(MAGIC)?.split_whitespace();
    let (revision, written_ms) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let is_whole = words.next()? == blake3::hash(rest).to_hex().as_str();
    is_whole.then(|| Stored {
        revision,
        written_ms,
        bytes: Bytes::copy_from_slice(rest),
    })
}

/// Whether a file has a name that files of documents have, or their drafts.
fn is_own(name: &str) -> bool {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let Some((hash, end)) = name.split_once('.') else {
        return false;
    };
    let is_draft = || {
        end.split_once('-')
            .is_some_and(|(process, time)| are_digits(process) && are_digits(time))
    };
    hash.len() == 32 && hash.bytes().all(is_hex) && (matches!(end, "json" | "pem") || is_draft())
}

fn fail(path: &Path, reason: impl ToString) -> Error {
    Error {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// Writes a file under another name, and then renames it.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    files::replace_private(&draft(path), path, bytes)
}

fn draft(path: &Path) -> PathBuf {
    path.with_extension(format!("{}-{}", std::process::id(), now_ms()))
}

const KEY: &str = "sealing.key";
const LAST: &str = "last";
const FILES: &str = "files";
const MAGIC: &str = "ncserverd-fleet-1";
/// The first line is far shorter.
const HEAD_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_revision_is_read_as_it_was_kept() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::open(folder.path()).unwrap();
        assert_eq!(kept.last().unwrap(), None);
        let stored = Stored {
            revision: 7,
            written_ms: 1_800_000_000_000,
            bytes: Bytes::from_static(b"{\n}"),
        };
        kept.keep(&stored).unwrap();
        kept.keep(&stored).unwrap();
        assert_eq!(kept.last().unwrap(), Some(stored));
        let path = folder.path().join(LAST);
        let whole = fs::read(&path).unwrap();
        for end in [0, 5, whole.len() - 1] {
            fs::write(&path, &whole[..end]).unwrap();
            assert!(kept.last().is_err(), "{end}");
        }
        let mut bent = whole.clone();
        *bent.last_mut().unwrap() ^= 1;
        fs::write(&path, bent).unwrap();
        let error = kept.last().unwrap_err().to_string();
        assert!(error.ends_with("last: it is damaged"), "{error}");
        // What is left is a whole.
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_key_is_made_once_and_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("fleet");
        let key = Kept::open(&inner).unwrap().key().public();
        assert_eq!(Kept::open(&inner).unwrap().key().public(), key);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&inner.join(KEY)), mode(&inner)), (0o600, 0o700));
        fs::write(inner.join(KEY), "short").unwrap();
        assert!(Kept::open(&inner).is_err());
        assert_eq!(
            fs::read(inner.join(KEY)).unwrap(),
            b"short",
            "it is left alone"
        );
    }

    #[test]
    fn files_that_are_not_in_force_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::open(folder.path()).unwrap();
        let file = |name: &str| (name.to_owned(), name.as_bytes().to_vec());
        let [a, b, c] = ["a.pem", "b.pem", "c.json"].map(|end| format!("{}{end}", "0".repeat(31)));
        kept.write_files(&[file(&a), file(&b), file(&c)]).unwrap();
        kept.write_files(&[file(&b)]).unwrap();
        let draft = format!("{}.12-1800000000000", "f".repeat(32));
        let others = ["notes.pem", "live.json", "a-1", "x.12-1"];
        for name in others.iter().chain([&draft.as_str()]) {
            fs::write(kept.files().join(name), "").unwrap();
        }
        kept.keep_files(&BTreeSet::from([b.clone()]));
        for name in [&a, &c, &draft] {
            assert!(!kept.files().join(name).exists(), "{name}");
        }
        assert_eq!(fs::read(kept.files().join(&b)).unwrap(), b.as_bytes());
        for name in others {
            assert!(kept.files().join(name).exists(), "{name}");
        }
    }
}
