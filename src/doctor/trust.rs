//! Checks of certificates, keys and admission.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use prometheus::Registry;

use super::Check;
use crate::admin;
use crate::admission::{self, Admission};
use crate::telemetry;
use crate::tls::{self, Origin, ServerIdentity, Standing, Validity};

/// The certificate, which is read but not generated.
pub(super) fn certificate(config: &tls::Config) -> Check {
    let is_made = config.cert.is_some() || config.key.is_some() || config.kept().exists();
    if !is_made {
        return place_of_new(
            config
                .directory
                .as_deref()
                .unwrap_or_else(|| Path::new(".")),
        );
    }
    match ServerIdentity::inspect(config) {
        Ok(identity) => {
            let place = match identity.origin() {
                Origin::Kept(path) | Origin::Generated(path) => {
                    format!("stored in {}", path.display())
                }
                Origin::Files | Origin::Ephemeral => "from `tls.cert` and `tls.key`".to_owned(),
            };
            judged(
                &format!("{place}, fingerprint {}", identity.fingerprint()),
                identity.validity(),
                tls::now(),
            )
        }
        Err(error) => {
            let change = "set `tls.cert` and `tls.key` to a chain and its key in PEM, readable by \
                          the service's user";
            Check::fail(CERTIFICATE, error.to_string(), change)
        }
    }
}

/// Judges a usable pair by its dates.
fn judged(found: &str, validity: Option<Validity>, now: i64) -> Check {
    let renew = "renew it, then run `systemctl reload ncserverd`";
    let Some(validity) = validity else {
        let change =
            "use another certificate: peers that trust an authority cannot read these dates either";
        return Check::warn(
            CERTIFICATE,
            format!("{found}; its dates cannot be read, so its expiry will not be noticed"),
            change,
        );
    };
    match (validity.standing(now), validity.complaint(now)) {
        (Standing::Expired, Some(complaint)) => {
            Check::fail(CERTIFICATE, format!("{found}, {complaint}"), renew)
        }
        (Standing::Early, Some(complaint)) => Check::fail(
            CERTIFICATE,
            format!("{found}, {complaint}"),
            "check this machine's clock, or use another certificate",
        ),
        (_, Some(complaint)) => Check::warn(CERTIFICATE, format!("{found}, {complaint}"), renew),
        (_, None) => Check::ok(
            CERTIFICATE,
            format!("{found}, valid until {}", tls::date(validity.until)),
        ),
    }
}

/// Checks whether the first start can store a generated pair.
fn place_of_new(directory: &Path) -> Check {
    let place = directory.display();
    let existing = directory
        .ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(directory);
    match write_and_remove(existing) {
        Ok(()) => Check::ok(
            CERTIFICATE,
            format!("none yet; the first start creates one and stores it in {place}"),
        ),
        Err(error) => {
            let found = format!(
                "none yet, and none can be stored in {place}: {}: {error}",
                existing.display()
            );
            Check::fail(
                CERTIFICATE,
                found,
                "set `tls.directory` to a directory that the service's user may write to, or set \
                 `tls.cert` and `tls.key`",
            )
        }
    }
}

pub(super) fn write_and_remove(directory: &Path) -> io::Result<()> {
    let draft = directory.join(format!(".ncserverd-doctor.{}", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&draft)?;
    fs::remove_file(draft)
}

/// Keys and authorities, if configured.
pub(super) fn admission(config: &admission::Config) -> Option<Check> {
    let name = "admission";
    let places = [
        config.keys.as_ref().map(|keys| format!("keys from {keys}")),
        config
            .clients_ca
            .as_ref()
            .map(|file| format!("authorities from {}", file.display())),
    ];
    let places: Vec<String> = places.into_iter().flatten().collect();
    if places.is_empty() {
        return None;
    }
    let metrics = admission::Metrics::new(&Registry::new()).expect("a new registry takes them");
    Some(match Admission::open(config, metrics) {
        Ok(_) if config.keys.is_some() && config.keys_file().is_none() => Check::ok(
            name,
            format!(
                "{}; the server fetches the URL when it starts (see `/readyz`)",
                places.join(", ")
            ),
        ),
        Ok(_) => Check::ok(name, format!("{} are valid", places.join(", "))),
        Err(error) => Check::fail(
            name,
            error.to_string(),
            "fix `admission.keys`, `admission.clients_ca`: docs/operating.md, \"Admission\"",
        ),
    })
}

/// The files of the page for operators, if there are any.
pub(super) fn operators(config: &telemetry::Config) -> Option<Check> {
    let files = [&config.certificate, &config.key, &config.credential];
    let files: Vec<String> = files
        .into_iter()
        .flatten()
        .map(|file| file.display().to_string())
        .collect();
    if files.is_empty() {
        return None;
    }
    let name = "page for operators";
    Some(match admin::check(config) {
        Ok(()) => Check::ok(name, format!("{} are valid", files.join(", "))),
        Err(error) => Check::fail(
            name,
            error.to_string(),
            "fix `telemetry.certificate`, `telemetry.key`, `telemetry.credential`: \
             docs/operating.md, \"The page for operators\"",
        ),
    })
}

const CERTIFICATE: &str = "certificate";

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_certificate_is_looked_for_and_not_made() {
        let place = TempDir::new().unwrap();
        let config = tls::Config {
            directory: Some(place.path().join("a/tls")),
            ..tls::Config::default()
        };
        assert!(
            certificate(&config)
                .found
                .contains("the first start creates one")
        );
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        ServerIdentity::open(&config).unwrap();
        assert!(certificate(&config).found.contains("stored in"));
        let gone = tls::Config {
            cert: Some("/nonexistent".into()),
            key: Some("/nonexistent".into()),
            ..config
        };
        assert_eq!(certificate(&gone).verdict, Verdict::Fail);
        let nowhere = tls::Config {
            directory: Some("/proc/tls".into()),
            ..tls::Config::default()
        };
        assert_eq!(certificate(&nowhere).verdict, Verdict::Fail);
    }

    #[test]
    fn a_certificate_is_judged_by_its_dates() {
        let day = 86_400;
        let year = Validity {
            from: 0,
            until: 365 * day,
        };
        let verdict = |now| judged("kept", Some(year), now).verdict;
        assert_eq!(
            [-day, 100 * day, 360 * day, 366 * day].map(verdict),
            [Verdict::Fail, Verdict::Ok, Verdict::Warn, Verdict::Fail]
        );
        assert_eq!(judged("kept", None, 0).verdict, Verdict::Warn);
        assert!(
            judged("kept", Some(year), 366 * day)
                .found
                .contains("expired at 1971-01-01T00:00:00Z")
        );
    }

    #[test]
    fn unusable_files_of_the_page_are_a_fault() {
        assert!(operators(&telemetry::Config::default()).is_none());
        let place = TempDir::new().unwrap();
        let file = place.path().join("credential");
        let config = telemetry::Config {
            credential: Some(file.clone()),
            ..telemetry::Config::default()
        };
        for (text, verdict) in [("me:pw\n", Verdict::Ok), ("hunter2\n", Verdict::Fail)] {
            fs::write(&file, text).unwrap();
            let check = operators(&config).unwrap();
            assert_eq!(check.verdict, verdict, "{check}");
            assert!(check.found.contains("credential") && !check.found.contains("hunter2"));
        }
    }

    #[test]
    fn keys_that_cannot_be_read_are_a_fault() {
        assert!(admission(&admission::Config::default()).is_none());
        let config = admission::Config {
            keys: Some("/nonexistent/jwks.json".into()),
            ..admission::Config::default()
        };
        let check = admission(&config).unwrap();
        assert_eq!(check.verdict, Verdict::Fail);
        assert!(check.found.contains("/nonexistent/jwks.json"), "{check}");
    }
}
