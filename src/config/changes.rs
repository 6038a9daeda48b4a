//! The changes of a reload, and which of them a running server can apply.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use super::{Config, schema};

/// A key whose value differs between two configurations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Its old value in displayable form, `None` if it was not set. Secrets always look the same.
    pub from: Option<String>,
    /// Its new value in displayable form, `None` if it is no longer set.
    pub to: Option<String>,
    /// When it takes effect.
    pub effect: Effect,
}

/// When a change takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// At once.
    Live,
    /// For new segments: held ones keep their shape.
    NewSegments,
    /// After the next start.
    Restart,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Live => "takes effect now",
            Self::NewSegments => "takes effect for new segments",
            Self::Restart => "needs a restart",
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".into());
        if self.from == self.to {
            return write!(
                f,
                "`{}` changed (the value is secret): {}",
                self.key, self.effect
            );
        }
        write!(
            f,
            "`{}` from {} to {}: {}",
            self.key,
            text(&self.from),
            text(&self.to),
            self.effect
        )
    }
}

/// Every key that differs, in the order of the keys. For added and removed streams, only the keys
/// that they set.
pub fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let (old_secrets, new_secrets) = (schema::secrets(old), schema::secrets(new));
    let (old, new, defaults) = (set(old), set(new), schema::defaults());
    let keys: BTreeSet<_> = old
        .keys()
        .chain(new.keys())
        .chain(old_secrets.keys())
        .chain(new_secrets.keys())
        .collect();
    let is_other = |key: &str| {
        let both_have = old_secrets.get(key).zip(new_secrets.get(key));
        match (old.get(key), new.get(key)) {
            (Some(value), None) | (None, Some(value)) => {
                defaults.get(&schema::generic(key)) != Some(value)
            }
            (old, new) => old != new || both_have.is_some_and(|(old, new)| old != new),
        }
    };
    keys.into_iter()
        .filter(|key| is_other(key))
        .map(|key| {
            let text = |keys: &Map<String, Value>| keys.get(key).map(Value::to_string);
            Change {
                key: key.clone(),
                from: text(&old),
                to: text(&new),
                effect: effect(key),
            }
        })
        .collect()
}

/// Every key with a value.
fn set(config: &Config) -> Map<String, Value> {
    let is_nothing =
        |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
    schema::flatten(config)
        .into_iter()
        .filter(|(_, value)| !is_nothing(value))
        .collect()
}

fn effect(key: &str) -> Effect {
    let name = key.rsplit('.').next().unwrap_or(key);
    match key {
        _ if key.starts_with("stream.") && SHAPE.contains(&name) => Effect::NewSegments,
        _ if key == "stream"
            || LIVE_SECTIONS.iter().any(|section| key.starts_with(section))
            || LIVE.contains(&key) =>
        {
            Effect::Live
        }
        _ => Effect::Restart,
    }
}

/// Keys that determine the shape of a stream's segments, or are stored with them.
const SHAPE: [&str; 7] = [
    "codec",
    "parity",
    "hash_bits",
    "n_max",
    "generations_min",
    "block_bytes",
    "row_weight",
];

/// Sections that a running server applies as a whole.
const LIVE_SECTIONS: [&str; 3] = ["admission.", "encoder.", "stream."];

/// Other keys that it applies.
const LIVE: [&str; 4] = [
    "server.drain_timeout",
    "telemetry.log_filter",
    "tls.cert",
    "tls.key",
];
