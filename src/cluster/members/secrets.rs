//! The secret by which the servers of a fleet know each other.
//!
//! A file of one line, or of several while the secret is replaced: the first is shown to others,
//! and each is accepted from them. Secrets are compared by their hashes, in constant time.

use std::path::Path;

use ncs_net::files;

use crate::secret::Secret;

/// The length of a secret, in bytes.
const BYTES: std::ops::RangeInclusive<usize> = 16..=BYTES_MAX;
/// The longest secret, in bytes.
pub(super) const BYTES_MAX: usize = 256;
/// Most secrets at a time.
const SECRETS_MAX: usize = 4;
/// The longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// The secrets of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Secrets {
    shown: Secret<String>,
    accepted: Vec<blake3::Hash>,
}

impl Secrets {
    /// Reads the secrets of a file. The error quotes nothing of it.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let fail = |reason: String| format!("{}: {reason}", path.display());
        let bytes = files::read(path, FILE_BYTES_MAX).map_err(|error| fail(error.to_string()))?;
        Self::parse(&bytes).map_err(fail)
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = str::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
        let lines = text.lines().map(str::trim);
        let all: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        let Some(first) = all.first() else {
            return Err("it has no secret".to_owned());
        };
        if all.len() > SECRETS_MAX {
            return Err(format!("more than {SECRETS_MAX} secrets, one a line"));
        }
        if !all.iter().all(|secret| BYTES.contains(&secret.len())) {
            let (least, most) = (BYTES.start(), BYTES.end());
            return Err(format!("a secret is a line of {least} to {most} bytes"));
        }
        Ok(Self {
            shown: Secret::new((*first).to_owned()),
            accepted: all.iter().map(|secret| hash(secret.as_bytes())).collect(),
        })
    }

    /// The secret that this server shows.
    pub(super) fn shown(&self) -> &[u8] {
        self.shown.expose().as_bytes()
    }

    /// Whether a server that has shown the secret of this hash is one of the fleet.
    pub(super) fn accept(&self, shown: &blake3::Hash) -> bool {
        // All are compared, so that the time tells nothing.
        self.accepted
            .iter()
            .fold(false, |is_known, one| (one == shown) | is_known)
    }
}

/// The hash by which a secret is known.
pub(super) fn hash(secret: &[u8]) -> blake3::Hash {
    blake3::hash(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_secret_is_shown_and_each_is_accepted() {
        let text = "  the-first-secret-of-two\n\nthe second one of two\r\n";
        let secrets = Secrets::parse(text.as_bytes()).unwrap();
        assert_eq!(secrets.shown(), b"the-first-secret-of-two");
        for (secret, is_known) in [
            ("the-first-secret-of-two", true),
            ("the second one of two", true),
            ("the-first-secret-of-two\n", false),
            ("the-first-secret-of-tw", false),
            ("", false),
        ] {
            let accepted = secrets.accept(&hash(secret.as_bytes()));
            assert_eq!(accepted, is_known, "{secret}");
        }
        assert!(!format!("{secrets:?}").contains("first"), "{secrets:?}");
    }

    #[test]
    fn secrets_have_bounds_and_errors_quote_none() {
        let of = |length: usize| "s".repeat(length);
        for text in [of(16), of(256), vec![of(16); 4].join("\n")] {
            assert!(Secrets::parse(text.as_bytes()).is_ok(), "{text}");
        }
        for text in [
            String::new(),
            " \n \n".to_owned(),
            of(15),
            of(257),
            of(16) + "\n" + &of(15),
            vec![of(16); 5].join("\n"),
        ] {
            let error = Secrets::parse(text.as_bytes()).unwrap_err();
            assert!(!error.contains("ssss"), "{error}");
        }
        assert!(Secrets::parse(&[0xff; 20]).is_err());
        let missing = Secrets::read(Path::new("/nowhere/secret")).unwrap_err();
        assert!(missing.contains("/nowhere/secret"), "{missing}");
    }
}
