//! Certificates for web pages, each for a few days.
//!
//! A page knows a server without an authority by the hash of its certificate. Browsers allow that
//! for certificates of at most 14 days with a key on P-256 (`serverCertificateHashes` of
//! WebTransport). So time is cut into *terms*, each with a certificate of its own. Those of the
//! present and of the next term exist: a page that knows both hashes can connect for more than a
//! term. A certificate is valid for a day before its term, and for as long as another term after
//! it, so that neither a wrong clock nor a late change matters.
//!
//! The numbers of terms are the same everywhere, and each pair is a file with its number in its
//! name. So a server and its successor, which share a directory during an upgrade, have the same
//! ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::sign::CertifiedKey;
use time::OffsetDateTime;

use super::pair::{self, Pair};
use super::{Config, Error, Fingerprint};

/// Seconds for which a certificate is shown.
const TERM: i64 = 6 * DAY;
/// Seconds of validity before and after its term: 13 days with it, of the 14 that browsers allow.
const BEFORE: i64 = DAY;
const AFTER: i64 = TERM;
const DAY: i64 = 24 * 60 * 60;

/// The beginning and the end of the file names.
const PREFIX: &str = "ncserverd-web-";
const SUFFIX: &str = ".pem";

/// The certificates of the present and of the next term.
#[derive(Debug)]
pub struct Rotated {
    /// Without one, they end with this process.
    directory: Option<PathBuf>,
    names: Vec<String>,
    pairs: ArcSwap<Pairs>,
}

#[derive(Debug)]
struct Pairs {
    term: i64,
    present: Arc<Pair>,
    next: Arc<Pair>,
}

impl Rotated {
    /// Reads or generates the pairs, at this time in seconds since 1970.
    pub fn open(config: &Config, now: i64) -> Result<Self, Error> {
        Self::new(config.directory.clone(), config.names.clone(), now)
    }

    /// Generates pairs for this process only.
    pub fn ephemeral(now: i64) -> Result<Self, Error> {
        Self::new(None, Vec::new(), now)
    }

    fn new(directory: Option<PathBuf>, names: Vec<String>, now: i64) -> Result<Self, Error> {
        let term = now.div_euclid(TERM);
        let pair = |term| pair_of(directory.as_deref(), &names, term).map(Arc::new);
        let pairs = Pairs {
            term,
            present: pair(term)?,
            next: pair(term + 1)?,
        };
        Ok(Self {
            directory,
            names,
            pairs: ArcSwap::from_pointee(pairs),
        })
    }

    /// Takes the pairs of this time. Returns whether they have changed. If the next one cannot be
    /// read or kept, it is one for this process only, and the error is returned.
    pub fn turn(&self, now: i64) -> Result<bool, Error> {
        let (term, before) = (now.div_euclid(TERM), self.pairs.load());
        if term == before.term {
            return Ok(false);
        }
        let pair = |term| match term - before.term {
            0 => Ok(Arc::clone(&before.present)),
            1 => Ok(Arc::clone(&before.next)),
            _ => pair_of(self.directory.as_deref(), &self.names, term).map(Arc::new),
        };
        let present = pair(term)?;
        let (next, error) = match pair(term + 1) {
            Ok(next) => (next, None),
            Err(error) => (Arc::new(pair_of(None, &self.names, term + 1)?), Some(error)),
        };
        self.pairs.store(Arc::new(Pairs {
            term,
            present,
            next,
        }));
        if let Some(directory) = &self.directory {
            forget_expired(directory, term);
        }
        error.map_or(Ok(true), Err)
    }

    /// SHA-256 of the certificates of the present and of the next term: a page should know both.
    pub fn fingerprints(&self) -> [Fingerprint; 2] {
        let pairs = self.pairs.load();
        [pairs.present.fingerprint, pairs.next.fingerprint]
    }

    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.pairs.load().present.certified)
    }
}

fn pair_of(directory: Option<&Path>, names: &[String], term: i64) -> Result<Pair, Error> {
    let instant = |seconds| {
        OffsetDateTime::from_unix_timestamp(seconds)
            .map_err(|error| Error::Setup(format!("the clock is wrong: {error}")))
    };
    let from = term.saturating_mul(TERM);
    let valid = (
        instant(from.saturating_sub(BEFORE))?,
        instant(from.saturating_add(TERM + AFTER))?,
    );
    match directory {
        Some(directory) => {
            let path = directory.join(format!("{PREFIX}{term}{SUFFIX}"));
            pair::kept_or_new(directory, &path, names, valid)
        }
        None => pair::ephemeral(names, valid),
    }
}

/// Removes the pairs that have expired. What cannot be removed does no harm.
fn forget_expired(directory: &Path, term: i64) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX))
            .and_then(|number| number.parse::<i64>().ok());
        if number.is_some_and(|number| number + 2 <= term) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::tls::{Origin, Validity};

    /// In the middle of a term.
    const NOW: i64 = 3000 * TERM + TERM / 2;

    fn in_directory(directory: &Path, now: i64) -> Rotated {
        let config = Config {
            directory: Some(directory.to_owned()),
            ..Config::default()
        };
        Rotated::open(&config, now).unwrap()
    }

    fn files(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_next_certificate_is_known_a_term_before_it_is_shown() {
        let place = TempDir::new().unwrap();
        let rotated = in_directory(place.path(), NOW);
        let [present, next] = rotated.fingerprints();
        assert!(!rotated.turn(NOW + TERM / 4).unwrap());
        assert_eq!(rotated.fingerprints(), [present, next]);
        assert!(rotated.turn(NOW + TERM).unwrap());
        assert_eq!(rotated.fingerprints()[0], next);
        assert_eq!(
            files(place.path()),
            [3000, 3001, 3002].map(|term| format!("ncserverd-web-{term}.pem")),
            "the first has not expired"
        );
        // Not at the next term, but after a long sleep of the machine.
        assert!(rotated.turn(NOW + 10 * TERM).unwrap());
        assert_eq!(files(place.path()).len(), 2);
    }

    #[test]
    fn servers_that_share_a_directory_show_the_same_one() {
        let place = TempDir::new().unwrap();
        let one = in_directory(place.path(), NOW);
        let other = in_directory(place.path(), NOW);
        assert_eq!(one.fingerprints(), other.fingerprints());
        other.turn(NOW + TERM).unwrap();
        one.turn(NOW + TERM).unwrap();
        assert_eq!(one.fingerprints(), other.fingerprints());
        let later = in_directory(place.path(), NOW + TERM);
        assert_eq!(one.fingerprints(), later.fingerprints());
    }

    #[test]
    fn they_are_valid_longer_than_shown_and_no_longer_than_browsers_allow() {
        for now in [NOW, NOW - TERM / 2, NOW + TERM / 2 - 1] {
            let rotated = Rotated::ephemeral(now).unwrap();
            let Validity { from, until } = Validity::of_chain(&rotated.certified().cert).unwrap();
            assert!(until - from <= 14 * DAY, "{} s", until - from);
            assert!(
                from <= now - DAY && until >= now + TERM,
                "{from} to {until}"
            );
        }
    }

    #[test]
    fn what_cannot_be_kept_is_shown_all_the_same() {
        let place = TempDir::new().unwrap();
        let rotated = in_directory(place.path(), NOW);
        let [_, next] = rotated.fingerprints();
        fs::write(place.path().join("ncserverd-web-3002.pem"), "no pair").unwrap();
        assert!(rotated.turn(NOW + TERM).is_err());
        let [present, last] = rotated.fingerprints();
        assert_eq!(present, next, "what pages know");
        assert!(rotated.turn(NOW + 2 * TERM).unwrap());
        assert_eq!(rotated.fingerprints()[0], last);
    }

    #[test]
    fn a_pair_for_this_process_only_has_no_file() {
        let rotated = Rotated::ephemeral(NOW).unwrap();
        let [present, next] = rotated.fingerprints();
        assert_ne!(present, next);
        let pair = rotated.pairs.load();
        assert_eq!(pair.present.origin, Origin::Ephemeral);
    }
}
