//! Signs for a stream, with the key in its file.
//!
//! All servers of a stream share the same file. The first one creates it if it is missing: it is
//! written under a temporary name and then linked to its final name, so that it appears as a whole
//! or not at all, and an existing one stays. An answer equal to an earlier one is not signed again;
//! a limited number of signatures is kept, the newest.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ncs_net::files;
use prometheus::IntCounter;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;

use crate::integrity::signing::{SigningKey, StreamKey};
use crate::object::{Body, Resolved, Signature};
use crate::wire::message::{Delivery, Meta};

/// The signer of a stream. Two are equal if their keys are.
#[derive(Debug)]
pub struct Signer {
    path: PathBuf,
    key: Arc<SigningKey>,
    made: Mutex<Made>,
}

/// Signatures by the BLAKE3 hash of their content, and the order in which they were made.
#[derive(Debug, Default)]
struct Made {
    signatures: HashMap<[u8; 32], Signature>,
    order: VecDeque<[u8; 32]>,
}

/// Why a key file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use {} as a signing key: {reason}", path.display())]
pub struct KeyFileError {
    path: PathBuf,
    reason: String,
}

impl Signer {
    /// Reads the key from this file, and creates a missing one, unless the present signer has read
    /// it before: then the key was lost.
    pub fn open(path: &Path, present: Option<&Self>) -> Result<Self, KeyFileError> {
        if let Some(key) = read(path)? {
            return Ok(Self::new(path, key));
        }
        let fail = |reason: String| KeyFileError {
            path: path.to_owned(),
            reason,
        };
        if present.is_some_and(|present| present.path == path) {
            return Err(fail(
                "the file disappeared, and the server makes no new key in its place: restore it"
                    .to_owned(),
            ));
        }
        let is_new = write(path, &SigningKey::generate(&mut UnwrapErr(SysRng)))
            .map_err(|error| fail(format!("it is missing and cannot be created: {error}")))?;
        let key = read(path)?.ok_or_else(|| fail("the file disappeared".to_owned()))?;
        if is_new {
            let (file, public_key) = (path.display(), key.public());
            tracing::warn!(
                %file,
                %public_key,
                "created a signing key: keep a backup, and copy it to the stream's other servers",
            );
        }
        Ok(Self::new(path, key))
    }

    /// The public half of the key in this file; `None` if [`Signer::open`] would create it.
    pub fn look(path: &Path) -> Result<Option<StreamKey>, KeyFileError> {
        Ok(read(path)?.map(|key| key.public()))
    }

    fn new(path: &Path, key: SigningKey) -> Self {
        Self {
            path: path.to_owned(),
            key: Arc::new(key),
            made: Mutex::default(),
        }
    }

    /// The signing key.
    pub fn key(&self) -> &Arc<SigningKey> {
        &self.key
    }

    /// Signs an origin's answer that arrived at `issued_ms`, in milliseconds since 1970, and counts
    /// new signatures. Coded bytes stay unsigned until their blocks are hashed.
    pub(super) fn sign(&self, resolved: &mut Resolved, issued_ms: u64, counter: &IntCounter) {
        resolved.signature = self.signature(resolved, issued_ms, counter);
    }

    fn signature(
        &self,
        resolved: &Resolved,
        issued_ms: u64,
        counter: &IntCounter,
    ) -> Option<Signature> {
        let (delivery, blocks) = match &resolved.body {
            Body::Coded(held) => (Delivery::Coded(held.lease.shape), Some(held.blocks_digest?)),
            Body::Inline(bytes) => (Delivery::Inline(bytes.clone()), None),
            Body::Whole(_) => (Delivery::Stream, None),
        };
        let mut meta = Meta {
            request: 0,
            path: resolved.path.clone(),
            id: resolved.id,
            offset: resolved.offset,
            length: resolved.length,
            object_length: resolved.object_length,
            version: resolved.version,
            max_age_ms: 0,
            content_type: resolved.content_type.clone(),
            delivery,
            signature: None,
            tree: None,
        };
        let name =
            *blake3::hash(&meta.signed_part(issued_ms, &blocks.unwrap_or_default())).as_bytes();
        if let Some(signature) = self.made().signatures.get(&name) {
            return Some(*signature);
        }
        self.key.sign_meta(&mut meta, issued_ms, blocks);
        counter.inc();
        let signature = meta.signature?;
        let mut made = self.made();
        if made.signatures.insert(name, signature).is_none() {
            made.order.push_back(name);
        }
        if made.order.len() > MADE_MAX
            && let Some(oldest) = made.order.pop_front()
        {
            made.signatures.remove(&oldest);
        }
        Some(signature)
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for Signer {
    fn eq(&self, other: &Self) -> bool {
        self.key.public() == other.key.public()
    }
}

impl Eq for Signer {}

/// The time since 1970.
pub(super) fn wall_clock() -> Duration {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO)
}

fn read(path: &Path) -> Result<Option<SigningKey>, KeyFileError> {
    let fail = |reason: String| KeyFileError {
        path: path.to_owned(),
        reason,
    };
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error.to_string())),
    };
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(fail(format!(
            "not a file of at most {FILE_BYTES_MAX} bytes"
        )));
    }
    let pem = fs::read(path).map_err(|error| fail(error.to_string()))?;
    SigningKey::from_pem(&pem)
        .map(Some)
        .map_err(|error| fail(error.to_string()))
}

/// Creates a file. False if it exists already.
fn write(path: &Path, pem: &str) -> io::Result<bool> {
    let name = path
        .file_name()
        .ok_or(io::ErrorKind::InvalidFilename)?
        .to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    // Left over from an earlier process with this number.
    let _ = fs::remove_file(&draft);
    match files::create_private(&draft, path, pem.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// About a megabyte of signatures.
const MADE_MAX: usize = 4096;
/// Far above any key, and still harmless.
const FILE_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::object::SegmentId;

    fn playlist(bytes: &'static [u8]) -> Resolved {
        Resolved {
            path: "/live/index.m3u8".into(),
            id: SegmentId::of(bytes),
            offset: 0,
            length: bytes.len() as u64,
            object_length: Some(bytes.len() as u64),
            version: 1,
            max_age: Duration::from_secs(1),
            content_type: String::new(),
            body: Body::Whole(bytes.into()),
            signature: None,
        }
    }

    #[test]
    fn a_key_is_made_once_and_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("live.pem");
        assert_eq!(Signer::look(&path), Ok(None));
        assert!(!path.exists(), "looking makes nothing");
        let signer = Signer::open(&path, None).unwrap();
        let key = signer.key.public();
        assert_eq!(Signer::look(&path), Ok(Some(key)));
        assert_eq!(
            Signer::open(&path, Some(&signer)).unwrap().key.public(),
            key
        );
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            fs::read_dir(directory.path()).unwrap().count(),
            1,
            "no draft is left"
        );
        let before = fs::read(&path).unwrap();
        assert!(!write(&path, "another").unwrap());
        assert_eq!(fs::read(&path).unwrap(), before, "what is there stays");
        fs::remove_file(&path).unwrap();
        assert!(
            Signer::open(&path, Some(&signer))
                .unwrap_err()
                .to_string()
                .contains("the file disappeared")
        );
        assert!(!path.exists(), "a key that was lost is not replaced");
        assert!(Signer::open(&directory.path().join("other.pem"), Some(&signer)).is_ok());
    }

    #[test]
    fn what_is_no_key_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("live.pem");
        fs::write(&path, "-----BEGIN NOTHING-----").unwrap();
        let error = Signer::open(&path, None).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!(
                "cannot use {} as a signing key: not an Ed25519",
                path.display()
            )),
            "{error}"
        );
        assert_eq!(Signer::look(&path).unwrap_err().to_string(), error);
        assert_eq!(fs::read(&path).unwrap(), b"-----BEGIN NOTHING-----");
        for wrong in [
            directory.path().to_owned(),
            directory.path().join("none/live.pem"),
            path.join("x"),
        ] {
            assert!(Signer::open(&wrong, None).is_err(), "{}", wrong.display());
        }
    }

    #[test]
    fn an_answer_is_signed_again_when_it_says_something_else() {
        let directory = tempfile::tempdir().unwrap();
        let signer = Signer::open(&directory.path().join("live.pem"), None).unwrap();
        let counter = IntCounter::new("made", "made").unwrap();
        let mut one = playlist(b"#EXTM3U\n");
        signer.sign(&mut one, 5, &counter);
        let mut again = playlist(b"#EXTM3U\n");
        again.max_age = Duration::ZERO;
        signer.sign(&mut again, 5, &counter);
        assert_eq!((one.signature, counter.get()), (again.signature, 1));
        let mut confirmed = playlist(b"#EXTM3U\n");
        signer.sign(&mut confirmed, 6, &counter);
        assert_eq!(
            (confirmed.signature.unwrap().issued_ms, counter.get()),
            (6, 2)
        );
        let mut inline = playlist(b"#EXTM3U\n");
        inline.body = Body::Inline(bytes::Bytes::from_static(b"#EXTM3U\n"));
        signer.sign(&mut inline, 6, &counter);
        assert_ne!(
            inline.signature, confirmed.signature,
            "the way that the bytes take is signed"
        );
        for issued_ms in 0..2 * MADE_MAX as u64 {
            signer.sign(&mut one, issued_ms, &counter);
        }
        let made = signer.made();
        assert!(made.signatures.len() == MADE_MAX && made.order.len() == MADE_MAX);
    }
}
