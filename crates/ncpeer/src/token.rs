//! The token of a peer for its servers, and the source of newer ones.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ncs_proto::wire::message::{Token, is_token};

/// The interval of looks at the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The source of a token.
#[derive(Debug, Clone)]
pub enum TokenSource {
    /// A constant token.
    Fixed(Token),
    /// The content of a file, without surrounding white space. Replace the file's content to renew
    /// the token.
    File(PathBuf),
}

impl TokenSource {
    /// A constant token.
    pub fn fixed(text: &str) -> Result<Self, String> {
        if is_token(text) {
            Ok(Self::Fixed(Token(text.to_owned())))
        } else {
            Err(NO_TOKEN.to_owned())
        }
    }

    /// From the command line: `--token`, or else `--token-file`. A file without a valid token is an
    /// error.
    pub fn of_options(token: Option<&str>, file: Option<&Path>) -> Result<Option<Self>, String> {
        let source = match (token, file) {
            (Some(token), _) => Self::fixed(token).map_err(|error| format!("--token: {error}"))?,
            (None, Some(file)) => Self::File(file.to_owned()),
            (None, None) => return Ok(None),
        };
        source
            .read()
            .map_err(|error| format!("--token-file {error}"))?;
        Ok(Some(source))
    }

    /// Reads the present token.
    pub fn read(&self) -> Result<Token, String> {
        match self {
            Self::Fixed(token) => Ok(token.clone()),
            Self::File(path) => {
                let fail = |reason: &str| format!("{}: {reason}", path.display());
                let text =
                    std::fs::read_to_string(path).map_err(|error| fail(&error.to_string()))?;
                let text = text.trim();
                if is_token(text) {
                    Ok(Token(text.to_owned()))
                } else {
                    Err(fail(NO_TOKEN))
                }
            }
        }
    }
}

const NO_TOKEN: &str = "not a token: expected 1 to 4096 visible ASCII characters";

/// The token in use, re-read from its file from time to time.
#[derive(Debug)]
pub(super) struct Current {
    source: Option<TokenSource>,
    sent: Option<Token>,
    look_at: Instant,
}

impl Current {
    pub(super) fn new(source: Option<TokenSource>) -> Self {
        Self {
            source,
            sent: None,
            look_at: Instant::now(),
        }
    }

    /// The token for a new connection.
    pub(super) fn first(&mut self, now: Instant) -> Option<Token> {
        self.sent = None;
        self.look_at = now;
        self.newer(now)
    }

    /// A token that was not yet sent on this connection, if it is time to look and there is one.
    pub(super) fn newer(&mut self, now: Instant) -> Option<Token> {
        let source = self.source.as_ref().filter(|_| self.look_at <= now)?;
        self.look_at = now + LOOK_EVERY;
        match source.read() {
            Ok(token) if self.sent.as_ref() != Some(&token) => {
                self.sent = Some(token.clone());
                Some(token)
            }
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(error, "cannot read the token");
                None
            }
        }
    }

    /// The server rejects the token, or requires one: look for a newer one at once.
    pub(super) fn refused(&mut self, now: Instant, has_certificate: bool) {
        self.look_at = now;
        match (&self.source, has_certificate) {
            (Some(_), _) => {
                tracing::warn!(
                    "the server rejects the token: it expired, has an unknown key or is for \
                     another server"
                );
            }
            (None, true) => tracing::warn!(
                "the server rejects the client certificate and requires a token: use --token"
            ),
            (None, false) => tracing::warn!(
                "the server requires a token (--token, --token-file) or a certificate (--cert)"
            ),
        }
    }

    /// When to look again; a constant token needs no second look.
    pub(super) fn due(&self) -> Option<Instant> {
        matches!(self.source, Some(TokenSource::File(_))).then_some(self.look_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_and_sent_when_it_has_changed() {
        let directory = tempfile::TempDir::new().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "one\n").unwrap();
        let token = |text: &str| Some(Token(text.to_owned()));
        let (mut current, now) = (
            Current::new(Some(TokenSource::File(file.clone()))),
            Instant::now(),
        );
        assert_eq!(current.first(now), token("one"));
        std::fs::write(&file, "two").unwrap();
        assert_eq!(current.newer(now), None, "not yet");
        assert_eq!(current.due(), Some(now + LOOK_EVERY));
        assert_eq!(current.newer(now + LOOK_EVERY), token("two"));
        assert_eq!(current.newer(now + 2 * LOOK_EVERY), None, "nothing new");
        std::fs::write(&file, "three").unwrap();
        current.refused(now + 2 * LOOK_EVERY, false);
        assert_eq!(
            current.newer(now + 2 * LOOK_EVERY),
            token("three"),
            "at once"
        );
        std::fs::write(&file, "no token").unwrap();
        assert_eq!(current.newer(now + 4 * LOOK_EVERY), None);
        assert_eq!(current.first(now), None);
        std::fs::write(&file, "three").unwrap();
        assert_eq!(
            current.first(now),
            token("three"),
            "another connection gets it, too"
        );
    }

    #[test]
    fn a_token_that_stays_is_sent_once_a_connection() {
        let (mut current, now) = (
            Current::new(Some(TokenSource::fixed("one").unwrap())),
            Instant::now(),
        );
        assert!(
            current.first(now).is_some()
                && current.newer(now + LOOK_EVERY).is_none()
                && current.due().is_none()
        );
        assert!(current.first(now).is_some());
        assert!(Current::new(None).first(now).is_none());
        assert!(TokenSource::fixed("a b").is_err() && TokenSource::fixed("").is_err());
    }
}
