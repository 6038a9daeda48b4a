//! Where log lines go and which ones: standard error, for people on a terminal and as JSON elsewhere.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::{EnvFilter, LevelFilter};
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
    let refused = |reason: String| Error::Filter { filter: filter.into(), reason };
    if let Some(word) = mistyped(filter) {
        let reason = format!("`{word}` is none of {LEVELS}; set the level of one module as in ncserverd=debug");
        return Err(refused(reason));
    }
    let quiet = QUIET.into_iter().filter(|target| !filter.contains(target));
    let all = quiet.map(|target| format!("{target}=warn")).chain([filter.to_owned()]).collect::<Vec<_>>().join(",");
    EnvFilter::builder().parse(all).map_err(|error| refused(error.to_string()))
}

/// A word that stands alone and is no level. It would be taken for the name of a part of the program, and nothing of the others be logged.
fn mistyped(filter: &str) -> Option<&str> {
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    filter.split(',').map(str::trim).find(|part| is_word(part) && part.parse::<LevelFilter>().is_err())
}

const LEVELS: &str = "off, error, warn, info, debug, trace";

const QUIET: [&str; 7] = ["quinn", "rustls", "hyper", "reqwest", "h2", "axum", "notify"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_quiet_unless_named() {
        assert!(parse("info").unwrap().to_string().contains("quinn=warn"));
        assert!(!parse("info,quinn=debug").unwrap().to_string().contains("quinn=warn"));
        for filter in ["infoo", "info,ncserverd", "verbose, quinn=debug"] {
            let error = parse(filter).unwrap_err().to_string();
            assert!(error.contains("is none of off, error, warn, info, debug, trace"), "{error}");
        }
        for filter in ["INFO", "off", "3", "warn,ncserverd=debug", "ncserverd::peer=trace", "[session{peer}]=debug", ""] {
            assert!(parse(filter).is_ok(), "{filter}");
        }
        let error = parse("ncserverd=loud").unwrap_err().to_string();
        assert!(error.starts_with("\"ncserverd=loud\" is not a log filter: "), "{error}");
    }
}
