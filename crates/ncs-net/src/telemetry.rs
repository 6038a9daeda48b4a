//! Logs, metrics, and whether this process is ready. `admin` shows the latter two over HTTP.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use prometheus::process_collector::ProcessCollector;
use prometheus::{IntGauge, Opts, Registry};
use serde::{Deserialize, Serialize};

mod logs;
pub mod quiet;
pub mod rate;
mod readiness;
pub mod register;

pub use logs::check_filter;
pub use logs::{Logs, init};
pub use readiness::{Readiness, Reason, Status};

/// What is shown, where and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    pub listen: SocketAddr,
    /// Which events are logged, as `tracing` directives.
    pub log_filter: String,
    /// How they look.
    pub log_format: LogFormat,
    /// How often a line says how much was encoded.
    #[serde(with = "crate::units::duration")]
    pub rate_interval: Duration,
    /// Whether `/readyz` answers 200 while a part is degraded.
    pub ready_when_degraded: bool,
}

/// How log lines look.
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
            log_filter: "info".into(),
            log_format: LogFormat::Auto,
            rate_interval: Duration::from_secs(60),
            ready_when_degraded: true,
        }
    }
}

/// The registry of this process, with the series that no module owns: the process itself and which build it is.
pub fn registry() -> Result<Registry, prometheus::Error> {
    let registry = Registry::new();
    registry.register(Box::new(ProcessCollector::for_self()))?;
    let help = "Always 1. The label gives the running version.";
    let build = IntGauge::with_opts(Opts::new("ncserverd_build_info", help).const_label("version", env!("CARGO_PKG_VERSION")))?;
    build.set(1);
    registry.register(Box::new(build))?;
    Ok(registry)
}

/// Why logs or the listener cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The filter is no `tracing` directive.
    #[error("\"{filter}\" is not a log filter: {reason}")]
    Filter {
        /// As configured.
        filter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Logs go somewhere already.
    #[error("logging is already set up")]
    Twice,
    /// The address cannot be listened on.
    #[error("cannot listen on {address} for metrics: {source}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A series cannot be registered.
    #[error("cannot register a metric: {0}")]
    Register(#[from] prometheus::Error),
    /// The system gives no thread or no timer for the listener.
    #[error("cannot start the metrics thread: {0}")]
    Thread(#[source] std::io::Error),
}
