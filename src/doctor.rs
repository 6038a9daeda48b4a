//! `ncserverd doctor`: what this machine offers a server with this configuration, and what to
//! change if it is not enough.
//!
//! Each check asks the system for what the server would ask, and releases it: sockets are bound and
//! closed, packet segments are sent over loopback, the device is opened. Nothing is left behind,
//! and no running server is disturbed; but resources that a running server uses, above all its
//! addresses, cannot be acquired twice.
//!
//! Functions without I/O judge the results, so that tests can simulate other machines.

use std::fmt;

use serde::Serialize;

use crate::config::{Config, Loaded};

mod compute;
mod fleet;
mod limits;
mod sockets;
mod sources;
mod trust;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Good.
    Ok,
    /// The server runs, but with less or worse service than possible.
    Warn,
    /// The server does not start, or does not serve.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The subject.
    pub name: &'static str,
    /// The result.
    pub verdict: Verdict,
    /// The finding.
    pub found: String,
    /// What to change, if necessary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            found: found.into(),
            change: None,
        }
    }

    fn warn(name: &'static str, found: impl Into<String>, change: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Warn,
            found: found.into(),
            change: Some(change.into()),
        }
    }

    fn fail(name: &'static str, found: impl Into<String>, change: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Fail,
            found: found.into(),
            change: Some(change.into()),
        }
    }
}

/// As one line.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<5}{}: {}", self.verdict, self.name, self.found)?;
        self.change
            .iter()
            .try_for_each(|change| write!(f, " => {change}"))
    }
}

/// All checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The worst verdict.
    pub verdict: Verdict,
    /// In printing order.
    pub checks: Vec<Check>,
}

impl Report {
    /// Runs all checks. Takes as long as opening the device.
    pub fn examine(loaded: &Loaded) -> Self {
        let config = &loaded.config;
        let mut checks = vec![configuration(loaded)];
        checks.extend(sockets::listening(config));
        checks.push(sockets::telemetry(config));
        checks.extend(sockets::handover(config.server.handover.as_deref()));
        checks.extend(sockets::buffers(&config.endpoint));
        checks.push(sockets::sharing(&config.endpoint));
        checks.push(sockets::gso(&config.endpoint));
        checks.push(limits::files(config));
        checks.push(limits::memory(config));
        checks.push(limits::clock(config));
        checks.push(compute::processor(&config.device));
        checks.extend(compute::device(config));
        checks.extend(named(config));
        Self::of(checks)
    }

    /// Checks only what the configuration names, on whatever machine: directories, origins, keys
    /// and certificates.
    pub fn of_named(loaded: &Loaded) -> Self {
        Self::of(named(&loaded.config))
    }

    fn of(checks: Vec<Check>) -> Self {
        let verdict = checks
            .iter()
            .map(|check| check.verdict)
            .max()
            .unwrap_or(Verdict::Ok);
        Self { verdict, checks }
    }

    /// Whether the server would not start or not serve.
    pub fn is_failed(&self) -> bool {
        self.verdict == Verdict::Fail
    }

    /// The report as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is texts") + "\n"
    }
}

/// One line per check.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.checks
            .iter()
            .try_for_each(|check| writeln!(f, "{check}"))
    }
}

/// Checks of files and servers named in the configuration.
fn named(config: &Config) -> Vec<Check> {
    let mut checks = sources::streams(config);
    checks.push(trust::certificate(&config.tls));
    checks.extend(trust::admission(&config.admission));
    checks.extend(trust::operators(&config.telemetry));
    checks.extend(fleet::engine(&config.cluster));
    checks.extend(fleet::document(config));
    checks
}

/// Invalid configurations are refused earlier.
fn configuration(loaded: &Loaded) -> Check {
    let name = "configuration";
    if !loaded.findings.is_empty() {
        let findings: Vec<String> = loaded.findings.iter().map(ToString::to_string).collect();
        return Check::warn(
            name,
            findings.join("; "),
            "run `ncserverd config check` to see where each key was set",
        );
    }
    match loaded.config.stream.len() {
        0 => Check::warn(
            name,
            "no stream: there is nothing to serve",
            "add a [stream.NAME] table with `origin` or `directory`",
        ),
        streams => Check::ok(name, format!("valid; streams: {streams}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Sources;

    fn loaded(overrides: &[(&str, &str)]) -> Loaded {
        let overrides = overrides
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Sources {
            overrides,
            ..Sources::default()
        }
        .load()
        .unwrap()
    }

    #[test]
    fn a_check_is_one_line_and_says_what_to_change() {
        let check = Check::warn("clock", "unknown", "start chronyd");
        assert_eq!(check.to_string(), "warn clock: unknown => start chronyd");
        assert_eq!(Check::ok("clock", "right").to_string(), "ok   clock: right");
    }

    #[test]
    fn remarks_on_the_configuration_are_passed_on() {
        assert!(configuration(&loaded(&[])).found.contains("no stream"));
        let remark = configuration(&loaded(&[
            ("stream.a.origin", "http://o/"),
            ("telemetry.listen", "0.0.0.0:9443"),
        ]));
        assert_eq!(remark.verdict, Verdict::Warn);
        assert!(remark.found.contains("telemetry.listen"), "{remark}");
        assert_eq!(
            configuration(&loaded(&[("stream.a.origin", "http://o/")])).verdict,
            Verdict::Ok
        );
    }

    #[test]
    fn the_worst_check_is_the_verdict() {
        assert!(Verdict::Ok < Verdict::Warn && Verdict::Warn < Verdict::Fail);
        let report = Report {
            verdict: Verdict::Fail,
            checks: vec![Check::fail("a", "b", "c"), Check::ok("d", "e")],
        };
        let value: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(value["verdict"], "fail");
        assert_eq!(value["checks"][0]["change"], "c");
        assert!(value["checks"][1].get("change").is_none());
    }
}
