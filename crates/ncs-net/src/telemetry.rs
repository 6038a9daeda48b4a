//! Logs, metrics, and the readiness of this process. `admin` serves the latter two over HTTP.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use prometheus::process_collector::ProcessCollector;
use prometheus::{IntGauge, Opts, Registry};
use serde::{Deserialize, Serialize};

mod events;
mod logs;
pub mod quiet;
pub mod rate;
mod readiness;
pub mod register;

pub use events::{Event, Events, MILESTONE, now_ms};
pub use logs::check_filter;
pub use logs::{Logs, init};
pub use readiness::{Readiness, Reason, Status};

/// The configuration of logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address of the page for operators, `/metrics`, `/healthz` and `/readyz`.
    pub listen: SocketAddr,
    /// Host names by which browsers may reach the page, in addition to addresses and `localhost`.
    #[serde(deserialize_with = "crate::units::one_or_many")]
    pub hosts: Vec<String>,
    /// Certificate chain of the listener in PEM, its own first; with it the listener speaks TLS.
    pub certificate: Option<PathBuf>,
    /// Private key of the first certificate, in PEM.
    pub key: Option<PathBuf>,
    /// File with the page's user and password, as `user:password`.
    pub credential: Option<PathBuf>,
    /// Which events are logged, as `tracing` directives.
    pub log_filter: String,
    /// The format of log lines.
    pub log_format: LogFormat,
    /// The interval of log lines about the encoder's rate.
    #[serde(with = "crate::units::duration")]
    pub rate_interval: Duration,
    /// Whether `/readyz` answers 200 while a part is degraded.
    pub ready_when_degraded: bool,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// `pretty` on a terminal, `json` otherwise.
    Auto,
    /// For people.
    Pretty,
    /// One JSON object a line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9443)),
            hosts: Vec::new(),
            certificate: None,
            key: None,
            credential: None,
            log_filter: "info".into(),
            log_format: LogFormat::Auto,
            rate_interval: Duration::from_secs(60),
            ready_when_degraded: true,
        }
    }
}

impl Config {
    /// Makes the paths absolute.
    pub fn resolve(&mut self) {
        let paths = [&mut self.certificate, &mut self.key, &mut self.credential];
        for path in paths.into_iter().flatten() {
            *path = crate::units::absolute(path);
        }
    }
}

/// The registry of this process, with metrics of the process itself and of the build.
pub fn registry() -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    registry.register(Box::new(ProcessCollector::for_self()))?;
    let help = "Always 1. The label gives the running version.";
    let build = IntGauge::with_opts(
        Opts::new("ncserverd_build_info", help).const_label("version", env!("CARGO_PKG_VERSION")),
    )?;
    build.set(1);
    registry.register(Box::new(build))?;
    Ok(registry)
}

/// Why logs or the listener cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The filter is not a `tracing` directive.
    #[error("\"{filter}\" is not a log filter: {reason}")]
    Filter {
        /// The configured filter.
        filter: String,
        /// The reason.
        reason: String,
    },
    /// Logging was set up before.
    #[error("logging is already set up")]
    Twice,
    /// The address cannot be bound.
    #[error("cannot listen on {address} for metrics: {source}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The listener's certificate or key cannot be used.
    #[error("the certificate of the metrics listener: {0}")]
    Certificate(String),
    /// The credential of the page cannot be used.
    #[error("telemetry.credential: {0}")]
    Credential(String),
    /// A host name that no request could have.
    #[error("telemetry.hosts: {0}")]
    Host(String),
    /// A metric cannot be registered.
    #[error("cannot register a metric: {0}")]
    Register(#[from] prometheus::Error),
    /// The listener's thread cannot be started.
    #[error("cannot start the metrics thread: {0}")]
    Thread(#[source] std::io::Error),
}
