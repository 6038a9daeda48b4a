//! The destination and filter of log lines: standard error, readable on a terminal and JSON
//! elsewhere. Beside it, whatever the filter, stands the memory of events ([`Events`]).

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use super::{Config, Error, Events, LogFormat};

/// Changes the filter at run time.
#[derive(Debug, Clone)]
pub struct Logs {
    filter: reload::Handle<EnvFilter, Registry>,
    events: Events,
}

/// Starts logging. Call it once per process.
pub fn init(config: &Config) -> Result<Logs, Error> {
    let (filter, handle) = reload::Layer::new(parse(&config.log_filter)?);
    let lines = if is_pretty(config.log_format) {
        fmt::layer()
            .with_target(false)
            .with_ansi(io::stderr().is_terminal())
            .with_writer(io::stderr)
            .boxed()
    } else {
        fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(io::stderr)
            .boxed()
    };
    let events = Events::default();
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(events.layer())
        .try_init()
        .map_err(|_| Error::Twice)?;
    Ok(Logs {
        filter: handle,
        events,
    })
}

impl Logs {
    /// The events of the last hour.
    pub const fn events(&self) -> &Events {
        &self.events
    }

    /// Replaces the filter; an invalid one changes nothing.
    pub fn set_filter(&self, filter: &str) -> Result<(), Error> {
        let refused = |error: reload::Error| Error::Filter {
            filter: filter.into(),
            reason: error.to_string(),
        };
        self.filter.reload(parse(filter)?).map_err(refused)
    }
}

/// Checks a filter before it is used.
pub fn check_filter(filter: &str) -> Result<(), Error> {
    parse(filter).map(drop)
}

fn is_pretty(format: LogFormat) -> bool {
    match format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    }
}

/// Libraries log every packet at debug and every connection at info, so they are limited to `warn`
/// unless the filter names them.
fn parse(filter: &str) -> Result<EnvFilter, Error> {
    let refused = |reason: String| Error::Filter {
        filter: filter.into(),
        reason,
    };
    if let Some(word) = mistyped(filter) {
        let reason = format!(
            "`{word}` is none of {LEVELS}; set the level of one module as in ncserverd=debug"
        );
        return Err(refused(reason));
    }
    let quiet = QUIET.into_iter().filter(|target| !filter.contains(target));
    let quiet = quiet.map(|target| format!("{target}=warn"));
    let all = quiet
        .chain(filter.split(',').flat_map(in_packages))
        .collect::<Vec<_>>()
        .join(",");
    EnvFilter::builder()
        .parse(all)
        .map_err(|error| refused(error.to_string()))
}

/// A single word that is not a level. It would count as the name of a module, and nothing else
/// would be logged.
fn mistyped(filter: &str) -> Option<&str> {
    let is_word = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    filter
        .split(',')
        .map(str::trim)
        .find(|part| is_word(part) && part.parse::<LevelFilter>().is_err())
}

/// A directive of the filter, with the module names of log lines in place of the program's and its
/// modules' names: operators know these from the documents, and need not know the packages.
fn in_packages(directive: &str) -> Vec<String> {
    let as_given = || vec![directive.to_owned()];
    let Some(rest) = directive.trim().strip_prefix(PROGRAM) else {
        return as_given();
    };
    // The filter was split at the commas within braces, too.
    if rest.matches('{').count() != rest.matches('}').count() {
        return as_given();
    }
    if let Some(path) = rest.strip_prefix("::") {
        let end = path
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(path.len());
        let (module, rest) = path.split_at(end);
        let moved = MOVED.iter().find(|(name, _)| *name == module);
        return moved.map_or_else(as_given, |(_, places)| {
            places
                .iter()
                .map(|place| format!("{place}{rest}"))
                .collect()
        });
    }
    if !rest.starts_with(['=', '[']) {
        return as_given();
    }
    [PROGRAM]
        .into_iter()
        .chain(PACKAGES)
        .map(|package| format!("{package}{rest}"))
        .collect()
}

/// The root package, and the others that log for the program.
const PROGRAM: &str = "ncserverd";
const PACKAGES: [&str; 4] = ["ncpeer", "ncs_device", "ncs_net", "ncs_serve"];
/// The program's modules in other packages, and their names there.
const MOVED: [(&str, &[&str]); 12] = [
    ("admin", &["ncs_net::admin"]),
    ("admission", &["ncs_serve::admission"]),
    ("device", &["ncs_device"]),
    ("directory", &["ncs_serve::directory"]),
    (
        "endpoint",
        &[
            "ncs_net::endpoint",
            "ncs_serve::accept",
            "ncs_serve::headroom",
        ],
    ),
    ("peer", &["ncpeer"]),
    ("relay", &["ncpeer::relay"]),
    ("ring", &["ncs_serve::ring"]),
    ("session", &["ncs_serve::session"]),
    ("supervise", &["ncs_net::supervise"]),
    ("telemetry", &["ncs_net::telemetry"]),
    ("tls", &["ncs_net::tls"]),
];

const LEVELS: &str = "off, error, warn, info, debug, trace";

const QUIET: [&str; 8] = [
    "async_nats",
    "quinn",
    "rustls",
    "hyper",
    "reqwest",
    "h2",
    "axum",
    "notify",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_means_all_of_its_packages() {
        let all = |filter: &str| {
            filter
                .split(',')
                .flat_map(in_packages)
                .collect::<Vec<_>>()
                .join(",")
        };
        assert_eq!(
            all("info,ncserverd=debug"),
            "info,ncserverd=debug,ncpeer=debug,ncs_device=debug,ncs_net=debug,ncs_serve=debug"
        );
        assert_eq!(all("ncserverd::tls::pin=trace"), "ncs_net::tls::pin=trace");
        assert_eq!(all("ncserverd::device=debug"), "ncs_device=debug");
        for other in [
            "ncserverd::store=debug",
            "ncserverd[a{b=1,c}]=debug",
            "ncserverdx=debug",
            "quinn=info",
            "",
        ] {
            assert_eq!(all(other), other);
        }
        assert!(
            parse("info,ncserverd=debug")
                .unwrap()
                .to_string()
                .contains("ncs_net=debug")
        );
    }

    #[test]
    fn libraries_are_quiet_unless_named() {
        assert!(parse("info").unwrap().to_string().contains("quinn=warn"));
        assert!(
            !parse("info,quinn=debug")
                .unwrap()
                .to_string()
                .contains("quinn=warn")
        );
        for filter in ["infoo", "info,ncserverd", "verbose, quinn=debug"] {
            let error = parse(filter).unwrap_err().to_string();
            assert!(
                error.contains("is none of off, error, warn, info, debug, trace"),
                "{error}"
            );
        }
        for filter in [
            "INFO",
            "off",
            "3",
            "warn,ncserverd=debug",
            "ncserverd::peer=trace",
            "[session{peer}]=debug",
            "",
        ] {
            assert!(parse(filter).is_ok(), "{filter}");
        }
        let error = parse("ncserverd=loud").unwrap_err().to_string();
        assert!(
            error.starts_with("\"ncserverd=loud\" is not a log filter: "),
            "{error}"
        );
    }
}
