//! The layers of a configuration, and where each key was set.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::Error;
use crate::secret::Secret;

/// Where a key was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In the file, at this line.
    File {
        /// The file as named.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// In this revision of the fleet's configuration.
    Revision(u64),
    /// By this environment variable.
    Environment(String),
    /// By this flag, without its value.
    Flag(String),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}, line {line}", path.display()),
            Self::Revision(revision) => write!(f, "revision {revision} of the fleet"),
            Self::Environment(variable) => write!(f, "environment variable {variable}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// The keys of a layer with their places.
pub(super) type Places = BTreeMap<String, Location>;

/// The document that the servers of a fleet share. It may set everything: what it should not set is
/// to be refused before.
#[derive(Debug, Clone)]
pub struct Document(FileLayer);

impl Document {
    /// One in a file.
    pub fn of_file(path: &Path, text: String) -> Result<Self, Error> {
        FileLayer::parse(path, text).map(Self)
    }

    /// One of this revision, with the secrets in it. Its lines are not those of any file.
    pub fn of_revision(revision: u64, text: String) -> Result<Self, Error> {
        let mut layer = FileLayer::parse(Path::new("the fleet's configuration"), text)?;
        let places = layer.places.values_mut();
        places.for_each(|place| *place = Location::Revision(revision));
        Ok(Self(layer))
    }

    pub(super) fn layer(&self) -> &FileLayer {
        &self.0
    }
}

/// A configuration file that was read.
#[derive(Debug, Clone)]
pub(super) struct FileLayer {
    path: PathBuf,
    pub(super) text: Secret<String>,
    pub(super) places: Places,
}

impl FileLayer {
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            reason: source.to_string(),
        })?;
        Self::parse(path, text)
    }

    pub(super) fn parse(path: &Path, text: String) -> Result<Self, Error> {
        let mut places = Places::new();
        let table = DeTable::parse(&text).map_err(|error| syntax(path, &text, &error))?;
        locate(path, &text, "", table.get_ref(), &mut places);
        drop(table);
        let text = Secret::new(text);
        Ok(Self {
            path: path.to_owned(),
            text,
            places,
        })
    }

    /// The names of its streams.
    pub(super) fn streams(&self) -> Result<BTreeSet<String>, Error> {
        let table = self.table()?;
        let streams = table.get("stream").and_then(toml::Value::as_table);
        Ok(streams.map_or_else(BTreeSet::new, |all| all.keys().cloned().collect()))
    }

    fn table(&self) -> Result<toml::Table, Error> {
        toml::from_str(self.text.expose()).map_err(|error| Error::Syntax {
            path: self.path.clone(),
            reason: error.message().to_owned(),
        })
    }

    /// Without these streams.
    pub(super) fn without_streams(&self, others: &BTreeSet<String>) -> Result<Self, Error> {
        if others.is_empty() {
            return Ok(self.clone());
        }
        let mut own = self.table()?;
        if let Some(toml::Value::Table(streams)) = own.get_mut("stream") {
            streams.retain(|name, _| !others.contains(name));
        }
        let mut places = self.places.clone();
        places.retain(|key, _| stream_of(key).is_none_or(|name| !others.contains(name)));
        Ok(Self {
            path: self.path.clone(),
            text: Secret::new(own.to_string()),
            places,
        })
    }
}

/// The stream that a key is of.
pub(super) fn stream_of(key: &str) -> Option<&str> {
    key.strip_prefix("stream.")?.split('.').next()
}

/// Without quoting the line, which may contain a secret.
fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> Error {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    let before = &text.as_bytes()[..at];
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
    let column = 1 + before
        .iter()
        .rev()
        .take_while(|&&byte| byte != b'\n')
        .count();
    Error::Syntax {
        path: path.to_owned(),
        reason: format!("line {line}, column {column}: {}", error.message()),
    }
}

fn locate(path: &Path, text: &str, prefix: &str, table: &DeTable<'_>, places: &mut Places) {
    for (name, value) in table {
        let key = if prefix.is_empty() {
            name.get_ref().to_string()
        } else {
            format!("{prefix}.{}", name.get_ref())
        };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => locate(path, text, &key, inner, places),
            _ => {
                let line = 1 + text
                    .bytes()
                    .take(name.span().start)
                    .filter(|&byte| byte == b'\n')
                    .count();
                places.insert(
                    key,
                    Location::File {
                        path: path.to_owned(),
                        line,
                    },
                );
            }
        }
    }
}

/// Variables that set keys: those with the prefix, except those that the command line reads itself.
pub(super) fn environment(variables: &[(String, String)]) -> BTreeMap<String, String> {
    let ours = variables
        .iter()
        .filter(|(name, _)| name.starts_with(PREFIX) && !RESERVED.contains(&name.as_str()));
    ours.cloned().collect()
}

/// The key that an environment variable sets.
pub(super) fn key_of(variable: &str) -> String {
    variable[PREFIX.len()..].to_lowercase().replace("__", ".")
}

/// The places of environment variables, by their keys.
pub(super) fn environment_places(variables: &BTreeMap<String, String>) -> Places {
    variables
        .keys()
        .map(|name| (key_of(name), Location::Environment(name.clone())))
        .collect()
}

/// The prefix of variables that set keys.
pub(super) const PREFIX: &str = "NCSERVERD_";

/// Variables with the prefix that stand for flags.
const RESERVED: [&str; 1] = ["NCSERVERD_CONFIG"];
