//! The known keys, derived from the defaults, so that no second list can become stale.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Config;
use crate::stream;

/// A configuration as keys and values: `ring.bytes` and `"64MiB"`. Unset options are `null`.
pub(super) fn flatten(config: &Config) -> Map<String, Value> {
    let mut keys = Map::new();
    collect("", tree(config), &mut keys);
    keys
}

/// Every key with its default; the name of a stream is `*`.
pub(super) fn defaults() -> Map<String, Value> {
    let mut config = Config::default();
    config.stream.insert(ANY.into(), stream::Config::default());
    flatten(&config)
}

/// Whether `key` can be set.
pub(super) fn is_known(defaults: &Map<String, Value>, key: &str) -> bool {
    let generic = generic(key);
    // An empty table counts as absent.
    let is_table = || generic == "stream" || defaults.keys().any(|known| inside(known, &generic));
    let is_in_map = || {
        defaults
            .iter()
            .any(|(known, value)| value.is_object() && inside(&generic, known))
    };
    defaults.contains_key(&generic) || is_in_map() || is_table()
}

/// The known key most similar to `key`, if one is similar enough.
pub(super) fn nearest(defaults: &Map<String, Value>, key: &str) -> Option<String> {
    let stream = key
        .strip_prefix("stream.")
        .and_then(|rest| rest.split('.').next())
        .unwrap_or("NAME");
    let wanted = generic(key);
    let (score, known) = defaults
        .keys()
        .map(|known| (similarity(&wanted, known), known))
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    (score >= SIMILAR_ENOUGH).then(|| known.replacen(ANY, stream, 1))
}

/// The similarity of two keys, from 0 to 1. The right name in the wrong section is very similar.
fn similarity(wanted: &str, known: &str) -> f64 {
    let alike = strsim::normalized_damerau_levenshtein;
    let whole = alike(
        &wanted.replace(['.', '_'], ""),
        &known.replace(['.', '_'], ""),
    );
    let ((section, name), (known_section, known_name)) = (split(wanted), split(known));
    whole.max(0.7 * alike(name, known_name) + 0.3 * alike(section, known_section))
}

fn split(key: &str) -> (&str, &str) {
    key.rsplit_once('.').unwrap_or(("", key))
}

pub(super) fn generic(key: &str) -> String {
    let mut parts: Vec<&str> = key.split('.').collect();
    if let ["stream", name, ..] = parts.as_mut_slice() {
        *name = ANY;
    }
    parts.join(".")
}

/// Whether the value of a key, or a part of it, is secret.
pub(super) fn is_secret(key: &str) -> bool {
    let generic = generic(key);
    SECRET
        .iter()
        .any(|secret| generic == *secret || inside(&generic, secret))
}

/// The secrets of a configuration by their keys, for comparison only.
pub(super) fn secrets(config: &Config) -> BTreeMap<String, &str> {
    let keys = config
        .admission
        .keys
        .iter()
        .map(|keys| ("admission.keys".to_owned(), keys.expose()));
    let members = config.cluster.members.members.iter();
    let members = members.map(|place| ("cluster.static.members".to_owned(), place.expose()));
    let streams = config.stream.iter().flat_map(|(name, stream)| {
        let origin = stream
            .origin
            .iter()
            .map(move |origin| (format!("stream.{name}.origin"), origin.expose()));
        let headers = stream.headers.iter();
        let headers = headers.map(move |(key, text)| {
            (
                format!("stream.{name}.headers.{key}"),
                text.value().expose().as_str(),
            )
        });
        origin.chain(headers)
    });
    keys.chain(members).chain(streams).collect()
}

fn inside(key: &str, table: &str) -> bool {
    key.strip_prefix(table)
        .is_some_and(|rest| rest.starts_with('.'))
}

fn tree(config: &Config) -> Value {
    serde_json::to_value(config).expect("a configuration is texts, numbers and tables")
}

fn collect(prefix: &str, value: Value, keys: &mut Map<String, Value>) {
    match value {
        Value::Object(table) if !table.is_empty() => {
            for (name, inner) in table {
                let key = if prefix.is_empty() {
                    name
                } else {
                    format!("{prefix}.{name}")
                };
                collect(&key, inner, keys);
            }
        }
        leaf => {
            keys.insert(prefix.to_owned(), leaf);
        }
    }
}

/// Stands for the name of any stream.
pub(super) const ANY: &str = "*";

const SECRET: [&str; 4] = [
    "admission.keys",
    "cluster.static.members",
    "stream.*.origin",
    "stream.*.headers",
];

const SIMILAR_ENOUGH: f64 = 0.6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_defaults_is_known() {
        let defaults = defaults();
        assert!(defaults.keys().all(|key| is_known(&defaults, key)));
        assert!(is_known(&defaults, "stream.live.n_max"));
        assert!(
            is_known(&defaults, "stream.live"),
            "a stream with nothing set"
        );
        assert!(!is_known(&defaults, "stream.live.n_maxx"));
        assert!(!is_known(&defaults, "ring.bytes.more"));
    }

    #[test]
    fn the_nearest_key_is_found() {
        let defaults = defaults();
        for (given, meant) in [
            ("ring.byte", "ring.bytes"),
            ("rings.bytes", "ring.bytes"),
            ("ring.batch_wait", "encoder.batch_wait"),
            ("encoder.batch_block_max", "encoder.batch_blocks_max"),
            ("stream.live.nmax", "stream.live.n_max"),
            ("stream.live.block-bytes", "stream.live.block_bytes"),
            ("telemetry_listen", "telemetry.listen"),
        ] {
            assert_eq!(nearest(&defaults, given).as_deref(), Some(meant), "{given}");
        }
        assert_eq!(nearest(&defaults, "zzzzzzzz.qqqqqqq"), None);
    }
}
