//! The key of stateless resets (RFC 9000, section 10.3) and of address tokens (section 8.1), kept
//! beside the certificate.
//!
//! After a crash, the restarted server gets packets of unknown connections. With the same key it
//! answers them with a reset that the peers accept, and they reconnect at once; otherwise they wait
//! for their own timeouts. Each address has a key of its own, derived from the kept one, because a
//! reset from one address must not end a connection to another (RFC 9000, section 21.11). For the
//! same reason, two servers must not share a directory on the same address.
//!
//! Tokens say that a client has received packets at its address, which is true for every address of
//! the server and after a restart. So their key, derived from the same one, is the same for all.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use ring::{hkdf, hmac};

use super::pair;

/// The kept key, or one for this process only. Clones share it.
#[derive(Clone)]
pub(super) struct ResetKey(Arc<[u8; KEY_BYTES]>);

impl ResetKey {
    /// A key that ends with this process.
    pub(super) fn ephemeral() -> Self {
        Self(Arc::new(rand::random()))
    }

    /// The key in this directory, generated if it is missing. If it cannot be kept, the server uses
    /// a temporary one.
    pub(super) fn kept_in(directory: &Path) -> Self {
        match kept_or_new(directory) {
            Ok(key) => Self(Arc::new(key)),
            Err(reason) => {
                tracing::warn!(
                    reason,
                    "cannot store the key for stateless resets: peers notice a crash late"
                );
                Self::ephemeral()
            }
        }
    }

    /// The key for an address.
    pub(super) fn of(&self, address: SocketAddr) -> hmac::Key {
        let mut material = self.0.to_vec();
        material.extend_from_slice(address.to_string().as_bytes());
        hmac::Key::new(hmac::HMAC_SHA256, &blake3::derive_key(CONTEXT, &material))
    }

    /// The key of address tokens.
    pub(super) fn of_tokens(&self) -> hkdf::Prk {
        let key = blake3::derive_key(TOKEN_CONTEXT, self.0.as_slice());
        hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&key)
    }
}

impl fmt::Debug for ResetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetKey([hidden])")
    }
}

fn kept_or_new(directory: &Path) -> Result<[u8; KEY_BYTES], String> {
    let path = directory.join(FILE_NAME);
    if !path.exists() {
        match pair::write(directory, &path, &rand::random::<[u8; KEY_BYTES]>()) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(format!("{}: {error}", path.display()));
            }
            // Another server may have created it meanwhile.
            _ => {}
        }
    }
    let bytes = pair::read(&path).map_err(|error| error.to_string())?;
    bytes.try_into().map_err(|_| {
        format!(
            "{} is not a key of {KEY_BYTES} bytes: remove the file",
            path.display()
        )
    })
}

pub(super) const FILE_NAME: &str = "ncserverd-reset.key";
const KEY_BYTES: usize = 32;
const CONTEXT: &str = "ncserverd 2026 stateless resets of one address";
const TOKEN_CONTEXT: &str = "ncserverd 2026 address tokens";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A tag made with a key.
    fn tag(key: &ResetKey, address: &str) -> Vec<u8> {
        hmac::sign(&key.of(address.parse().unwrap()), b"id")
            .as_ref()
            .to_vec()
    }

    #[test]
    fn a_key_is_kept_private_and_differs_by_address() {
        let place = tempfile::TempDir::new().unwrap();
        let directory = place.path().join("a/tls");
        let first = ResetKey::kept_in(&directory);
        assert_eq!(
            directory
                .join(FILE_NAME)
                .metadata()
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o600
        );
        assert_eq!(
            std::fs::read_dir(&directory).unwrap().count(),
            1,
            "no draft stays"
        );
        let second = ResetKey::kept_in(&directory);
        assert_eq!(tag(&first, "[::]:4443"), tag(&second, "[::]:4443"));
        assert_ne!(tag(&first, "[::]:4443"), tag(&first, "[::]:4444"));
        assert_ne!(
            tag(&first, "[::]:4443"),
            tag(&ResetKey::ephemeral(), "[::]:4443")
        );
        assert!(
            !format!("{first:?}").contains(char::is_numeric),
            "{first:?}"
        );
    }

    #[test]
    fn a_file_that_is_no_key_is_left_alone() {
        let place = tempfile::TempDir::new().unwrap();
        std::fs::write(place.path().join(FILE_NAME), "short").unwrap();
        assert!(
            kept_or_new(place.path())
                .unwrap_err()
                .contains("remove the file")
        );
        let (one, other) = (
            ResetKey::kept_in(place.path()),
            ResetKey::kept_in(place.path()),
        );
        assert_ne!(tag(&one, "[::]:1"), tag(&other, "[::]:1"));
        assert_eq!(
            std::fs::read(place.path().join(FILE_NAME)).unwrap(),
            b"short"
        );
    }
}
