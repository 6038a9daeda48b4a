//! Where log lines go and which ones: standard error, for people on a terminal and as JSON elsewhere.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use super::{Config, Error, LogFormat};

/// Changes the filter of a running process.
#[derive(Debug, Clone)]
pub struct Logs {
    filter: reload::Handle<EnvFilter, Registry>,
}

/// Starts logging. Once in a process.
pub fn init(config: &Config) -> Result<Logs, Error> {
    let (filter, handle) = reload::Layer::new(parse(&config.log_filter)?);
    let lines = if is_pretty(config.log_format) {
        fmt::layer().with_target(false).with_ansi(io::stderr().is_terminal()).with_writer(io::stderr).boxed()
    } else {
        fmt::layer().json().flatten_event(true).with_writer(io::stderr).boxed()
    };
    tracing_subscriber::registry().with(filter).with(lines).try_init().map_err(|_| Error::Twice)?;
    Ok(Logs { filter: handle })
}

impl Logs {
    /// Replaces the filter; a faulty one changes nothing.
    pub fn set_filter(&self, filter: &str) -> Result<(), Error> {
        let refused = |error: reload::Error| Error::Filter { filter: filter.into(), reason: error.to_string() };
        self.filter.reload(parse(filter)?).map_err(refused)
    }
}

/// What is wrong with a filter, before anything depends on it.
pub(crate) fn check_filter(filter: &str) -> Result<(), Error> {
    parse(filter).map(drop)
}

fn is_pretty(format: LogFormat) -> bool {
    match format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    }
}

/// The libraries below log every packet at debug and every connection at info: they are heard from `warn` on, unless the filter
/// names them.
fn parse(filter: &str) -> Result<EnvFilter, Error> {
    let quiet = QUIET.into_iter().filter(|target| !filter.contains(target));
    let all = quiet.map(|target| format!("{target}=warn")).chain([filter.to_owned()]).collect::<Vec<_>>().join(",");
    EnvFilter::builder().parse(all).map_err(|error| Error::Filter { filter: filter.into(), reason: error.to_string() })
}

const QUIET: [&str; 7] = ["quinn", "rustls", "hyper", "reqwest", "h2", "axum", "notify"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_quiet_unless_named() {
        assert!(parse("info").unwrap().to_string().contains("quinn=warn"));
        assert!(!parse("info,quinn=debug").unwrap().to_string().contains("quinn=warn"));
        let error = parse("ncserverd=loud").unwrap_err().to_string();
        assert!(error.starts_with("\"ncserverd=loud\" is no log filter: "), "{error}");
    }
}
