//! The configuration: every module owns its part; this one composes, loads, checks and explains
//! them.
//!
//! There are five layers, of which later ones win: defaults, the file, the document that the
//! servers of a fleet share, environment variables (`NCSERVERD_RING__BYTES`), flags (`--set
//! ring.bytes=1GiB`). A stream of the document counts as a whole: what other layers set of a stream
//! of that name does not count. The `config` crate merges them.
//! Unknown keys are found here, layer by layer before merging, because a merged key has lost its
//! line.
//!
//! [`Sources::load`] resolves everything once, so that no text is left to interpret. A reload is a
//! second load, and [`changes()`] compares the two.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    admission, cluster, device, encoder, endpoint, ingest, ring, session, store, stream, telemetry,
    tls, web,
};

mod changes;
mod check;
mod explain;
mod layers;
mod process;
mod published;
mod schema;
mod sizes;

pub use changes::{Change, Effect, changes};
pub use check::Finding;
pub(crate) use check::{DATAGRAM_AFTER_DISCOVERY, slot_bytes};
pub use layers::{Document, Location};
pub use process::Process;

/// All settings of one server, final once loaded.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The process as a whole.
    pub server: Process,
    /// Sockets and connections.
    pub endpoint: endpoint::Config,
    /// The certificate.
    pub tls: tls::Config,
    /// Web pages that may connect.
    pub web: web::Config,
    /// Rights of peers.
    pub admission: admission::Config,
    /// Limits of one peer.
    pub session: session::Config,
    /// Fetching from origins.
    pub ingest: ingest::Config,
    /// Resident segments.
    pub store: store::Config,
    /// How batches are made.
    pub encoder: encoder::Config,
    /// Memory for coded blocks in flight.
    pub ring: ring::Config,
    /// The device that codes.
    pub device: device::Config,
    /// The fleet that the server is one of.
    pub cluster: cluster::Config,
    /// Logs and metrics.
    pub telemetry: telemetry::Config,
    /// The publishing points by name: `[stream.NAME]`.
    pub stream: BTreeMap<String, stream::Config>,
}

impl Config {
    /// The configuration as TOML, which loads to the same configuration.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("a configuration is texts, numbers and tables")
    }
}

/// The sources of a configuration, kept for reloads: a reload reads the file again, with the
/// environment and flags of the start.
#[derive(Clone, Default)]
pub struct Sources {
    /// The file; if named, it must exist.
    pub file: Option<PathBuf>,
    /// The document of the fleet, if there is one.
    pub document: Option<Document>,
    /// Environment variables; without the prefix `NCSERVERD_`, only those that name state
    /// directories, or are named in the configuration, matter.
    pub environment: Vec<(String, String)>,
    /// Flags as (key, value); of duplicates, the last wins.
    pub overrides: Vec<(String, String)>,
}

/// Shows only names, because any value may be a secret.
impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |pairs: &[(String, String)]| {
            pairs
                .iter()
                .map(|(name, _)| name.clone())
                .collect::<Vec<_>>()
        };
        f.debug_struct("Sources")
            .field("file", &self.file)
            .field("document", &self.document)
            .field("environment", &names(&self.environment))
            .field("overrides", &names(&self.overrides))
            .finish()
    }
}

impl Sources {
    /// Reads, merges, checks and resolves. A faulty configuration is refused as a whole.
    pub fn load(&self) -> Result<Loaded, Error> {
        let file = self
            .file
            .as_deref()
            .map(layers::FileLayer::read)
            .transpose()?;
        self.merge(file)
    }

    /// The same with the file as it was when `present` was loaded.
    pub fn load_over(&self, present: &Loaded) -> Result<Loaded, Error> {
        self.merge(present.file.clone())
    }

    fn merge(&self, read: Option<layers::FileLayer>) -> Result<Loaded, Error> {
        let document = self.document.as_ref().map(Document::layer);
        let shared = document.map(layers::FileLayer::streams).transpose()?;
        let shared = shared.unwrap_or_default();
        let file = read.as_ref().map(|file| file.without_streams(&shared));
        let file = file.transpose()?;
        let mut variables = layers::environment(&self.environment);
        let mut overrides = self.overrides.clone();
        let mut unused = Vec::new();
        if document.is_some() || is_shared(file.as_ref(), &variables, &overrides) {
            let own = file.as_ref().map(layers::FileLayer::streams).transpose()?;
            let own = own.unwrap_or_default();
            let wholes = wholes(&variables, &overrides);
            let mut is_used = |key: &str, place: Location| {
                let Some(reason) = layers::stream_of(key).and_then(|stream| {
                    let is_known = own.contains(stream) || wholes.contains(stream);
                    match (shared.contains(stream), is_known) {
                        (true, _) => Some("the fleet's configuration has this stream as a whole"),
                        (false, true) => None,
                        (false, false) => Some("there is no such stream without the fleet's"),
                    }
                }) else {
                    return true;
                };
                unused.push(Finding {
                    key: key.to_owned(),
                    text: format!("{place} is not used: {reason}"),
                });
                false
            };
            variables.retain(|name, _| {
                let place = Location::Environment(name.clone());
                is_used(&layers::key_of(name), place)
            });
            overrides.retain(|(key, _)| is_used(key, flag(key)));
        }
        let environment_places = layers::environment_places(&variables);
        let override_places = override_places(&overrides);
        let given = file
            .iter()
            .map(|file| &file.places)
            .chain(document.map(|layer| &layer.places))
            .chain([&environment_places, &override_places]);
        refuse_unknown(given.clone())?;
        let places: layers::Places = given
            .flatten()
            .map(|(key, place)| (key.clone(), place.clone()))
            .collect();

        let files = file.iter().chain(document);
        let merged = merged(files, &variables, &overrides)
            .map_err(|error| Error::of_value(error, &places))?;
        let mut config: Config = merged
            .try_deserialize()
            .map_err(|error| Error::of_value(error, &places))?;
        config.tls.resolve(|name| self.variable(name));
        config.cluster.config.resolve(|name| self.variable(name));
        config.admission.resolve();
        config.telemetry.resolve();
        config.server.resolve();
        for (name, stream) in &mut config.stream {
            stream
                .resolve(|name| self.variable(name))
                .map_err(|(key, reason)| {
                    let key = format!("stream.{name}.{key}");
                    let location = places
                        .iter()
                        .find(|(place, _)| place.starts_with(&key))
                        .map(|(_, location)| location.clone());
                    Error::Value {
                        key,
                        location,
                        reason,
                    }
                })?;
        }
        let mut findings = check::check(&config, self.file.as_deref())?;
        findings.extend(unused);
        Ok(Loaded {
            config,
            places,
            findings,
            file: read,
        })
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.environment
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// The streams that variables and flags define without any other layer.
fn wholes(
    variables: &BTreeMap<String, String>,
    overrides: &[(String, String)],
) -> BTreeSet<String> {
    let variables = variables.keys().map(|name| layers::key_of(name));
    let keys = variables.chain(overrides.iter().map(|(key, _)| key.clone()));
    let stream = |key: String| {
        let stream = layers::stream_of(&key)?;
        let is_place = ["origin", "directory"]
            .iter()
            .any(|place| key[..] == format!("stream.{stream}.{place}"));
        is_place.then(|| stream.to_owned())
    };
    keys.filter_map(stream).collect()
}

/// Whether the server is to take the fleet's configuration, if that can be told.
fn is_shared(
    file: Option<&layers::FileLayer>,
    variables: &BTreeMap<String, String>,
    overrides: &[(String, String)],
) -> bool {
    let merged = merged(file.into_iter(), variables, overrides);
    merged.is_ok_and(|merged| merged.get_bool(SHARED).unwrap_or(false))
}

/// The values of layers, of which later ones win.
fn merged<'a>(
    files: impl Iterator<Item = &'a layers::FileLayer>,
    variables: &BTreeMap<String, String>,
    overrides: &[(String, String)],
) -> Result<config::Config, config::ConfigError> {
    let mut builder = config::Config::builder();
    for layer in files {
        let text = layer.text.expose();
        builder = builder.add_source(config::File::from_str(text, config::FileFormat::Toml));
    }
    let variables = variables.iter();
    let variables = variables.map(|(name, text)| (name.clone(), text.clone()));
    let environment = config::Environment::with_prefix(layers::PREFIX.trim_end_matches('_'))
        .prefix_separator("_")
        .separator("__")
        .source(Some(variables.collect()));
    builder = builder.add_source(environment);
    for (key, text) in overrides {
        builder = builder.set_override(key, text.as_str())?;
    }
    builder.build()
}

fn flag(key: &str) -> Location {
    Location::Flag(format!("--set {key}"))
}

fn override_places(overrides: &[(String, String)]) -> layers::Places {
    overrides
        .iter()
        .map(|(key, _)| (key.clone(), flag(key)))
        .collect()
}

/// The key that has a server take the fleet's configuration.
const SHARED: &str = "cluster.config.enabled";

/// A configuration and its sources.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The final values.
    pub config: Config,
    /// Where each key was set, except those left at their defaults.
    pub places: BTreeMap<String, Location>,
    /// Settings that work but are probably mistakes.
    pub findings: Vec<Finding>,
    /// The file as it was read.
    file: Option<layers::FileLayer>,
}

impl Loaded {
    /// Sources, changed keys, streams and findings in sentences, for `ncserverd config check`.
    pub fn explain(&self) -> String {
        explain::explain(self)
    }
}

/// Why a configuration is refused, as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is missing or unreadable.
    #[error("cannot read {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The file is not TOML.
    #[error("{}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The reason, with line and column.
        reason: String,
    },
    /// There are unknown keys.
    #[error("{}", lines(.0))]
    Unknown(Vec<Unknown>),
    /// A value is invalid for its key.
    #[error("{}: {reason}", place(key, .location.as_ref()))]
    Value {
        /// The key, empty if unknown.
        key: String,
        /// Where it was set.
        location: Option<Location>,
        /// The reason.
        reason: String,
    },
    /// Values contradict each other.
    #[error("{}", lines(.0))]
    Contradiction(Vec<Finding>),
}

impl Error {
    fn of_value(error: config::ConfigError, places: &layers::Places) -> Self {
        let (key, reason) = innermost(error);
        let reason = choices(&key, &reason).unwrap_or(reason);
        let location = places.get(&key).cloned();
        Self::Value {
            key,
            location,
            reason,
        }
    }
}

/// An unknown key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{location}: unknown key `{key}`{}",
    nearest.as_ref().map_or_else(String::new, |known| format!("; did you mean `{known}`?")),
)]
pub struct Unknown {
    /// The key as given.
    pub key: String,
    /// Where it was given.
    pub location: Location,
    /// A similar known key.
    pub nearest: Option<String>,
}

fn refuse_unknown<'a>(layers: impl Iterator<Item = &'a layers::Places>) -> Result<(), Error> {
    let defaults = schema::defaults();
    let unknown: Vec<_> = layers
        .flatten()
        .filter(|(key, _)| !schema::is_known(&defaults, key))
        .map(|(key, location)| Unknown {
            key: key.clone(),
            location: location.clone(),
            nearest: schema::nearest(&defaults, key),
        })
        .collect();
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(Error::Unknown(unknown))
    }
}

/// The key and the reason of an error of the `config` crate, which nests errors.
fn innermost(error: config::ConfigError) -> (String, String) {
    use config::ConfigError;
    match error {
        ConfigError::At {
            error,
            key: Some(key),
            ..
        } if schema::is_secret(&key) => {
            // The given value may be the secret.
            let reason = match *error {
                ConfigError::Type { expected, .. } => format!("this is not {expected}"),
                // A `Message` has no parts either. serde quotes the given value before the
                // expected ones.
                other => {
                    let reason = innermost(other).1;
                    let expected = reason
                        .rsplit_once(", expected ")
                        .map(|(_, expected)| format!("this is not {expected}"));
                    expected.unwrap_or(reason)
                }
            };
            (key, reason)
        }
        ConfigError::At { error, key, .. } => {
            let (inner, reason) = innermost(*error);
            (key.unwrap_or(inner), reason)
        }
        ConfigError::Type {
            key: Some(key),
            expected,
            ..
        } if schema::is_secret(&key) => (key, format!("this is not {expected}")),
        ConfigError::Type {
            key: Some(key),
            unexpected,
            expected,
            ..
        } => (key, format!("{unexpected} is not {expected}")),
        other => (String::new(), other.to_string()),
    }
}

/// The choices of a key, for an error about another value: `serde_json` lists them, the `config`
/// crate does not.
///
/// Both errors are recognised by their text, because neither has a type that would do. The
/// `config` crate has no variant for a word that an enum lacks: it makes a `Message`, as of every
/// error in the words of a type's own code. Errors of `serde_json` have only a category. A test
/// compares the results, so a change of these texts does not go unnoticed.
fn choices(key: &str, reason: &str) -> Option<String> {
    let (_, word) = reason
        .strip_prefix("enum ")?
        .split_once(" does not have variant constructor ")?;
    let alone = key.rsplit('.').fold(word.into(), |value, part| {
        serde_json::Map::from_iter([(part.to_owned(), value)]).into()
    });
    let error = serde_json::from_value::<Config>(alone).err()?.to_string();
    let (_, expected) = error.split_once(", expected ")?;
    Some(format!("`{word}` is not valid: expected {expected}"))
}

fn place(key: &str, location: Option<&Location>) -> String {
    let at = location.map_or_else(String::new, |location| format!("{location}: "));
    if key.is_empty() {
        format!("{at}invalid value")
    } else {
        format!("{at}`{key}`")
    }
}

fn lines<T: ToString>(items: &[T]) -> String {
    items
        .iter()
        .map(T::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Parses `key=value` of `--set`.
pub fn parse_override(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if key.contains('.') => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected section.key=value, such as ring.bytes=1GiB".into()),
    }
}

#[cfg(test)]
mod tests;
