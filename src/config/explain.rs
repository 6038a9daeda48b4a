//! `ncserverd config check` in sentences.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Config, Loaded, Location, schema};
use crate::object::Codec;
use crate::stream;

pub(super) fn explain(loaded: &Loaded) -> String {
    let mut text = String::new();
    sources(loaded, &mut text);
    settings(loaded, &mut text);
    streams(&loaded.config, &mut text);
    if loaded.config.cluster.config.enabled {
        text.push_str(
            "The fleet's configuration comes over this: `ncserverd cluster config` shows it.\n",
        );
    }
    for finding in &loaded.findings {
        text.push_str(&format!("warning: {finding}\n"));
    }
    text.push_str(if loaded.findings.is_empty() {
        "The configuration is valid.\n"
    } else {
        "The configuration is valid, with warnings.\n"
    });
    text
}

fn sources(loaded: &Loaded, text: &mut String) {
    let mut counts: BTreeMap<(u8, String), usize> = BTreeMap::new();
    for place in loaded.places.values() {
        let source = match place {
            Location::File { path, .. } => (0, format!("file {}", path.display())),
            Location::Revision(revision) => (1, format!("revision {revision} of the fleet")),
            Location::Environment(_) => (2, "environment".into()),
            Location::Flag(_) => (3, "flags".into()),
        };
        *counts.entry(source).or_default() += 1;
    }
    text.push_str("Sources, later ones override earlier ones:\n  defaults\n");
    for ((_, source), count) in counts {
        let keys = if count == 1 { "key" } else { "keys" };
        line(text, format_args!("  {source}: {count} {keys}"));
    }
}

fn settings(loaded: &Loaded, text: &mut String) {
    let (values, defaults) = (
        schema::flatten(&loaded.config),
        schema::flatten(&Config::default()),
    );
    let set = loaded
        .places
        .iter()
        .filter_map(|(key, place)| Some((key, values.get(key)?, place)));
    let mut title = "Set:\n";
    for (key, value, place) in set {
        text.push_str(std::mem::take(&mut title));
        match defaults.get(key) {
            Some(default) if default == value => line(
                text,
                format_args!("  {key} = {value}, same as the default ({place})"),
            ),
            Some(default) if !default.is_null() => line(
                text,
                format_args!("  {key} = {value}, default {default} ({place})"),
            ),
            _ => line(text, format_args!("  {key} = {value} ({place})")),
        }
    }
}

fn streams(config: &Config, text: &mut String) {
    if config.stream.is_empty() {
        text.push_str(
            "No stream is configured: the server starts, but /readyz reports it as not ready.\n",
        );
        return;
    }
    text.push_str("Streams:\n");
    for (name, stream) in &config.stream {
        line(
            text,
            format_args!(
                "  /{name}/ from {}, {}{}",
                source(stream),
                shape(stream),
                signed(stream)
            ),
        );
    }
}

fn source(stream: &stream::Config) -> String {
    match (&stream.origin, &stream.directory) {
        (Some(origin), _) => origin.to_string(),
        (None, Some(root)) => format!("directory {}", root.display()),
        (None, None) => "nowhere".into(),
    }
}

fn shape(stream: &stream::Config) -> String {
    let (n, k) = (u64::from(stream.n_max), u64::from(stream.block_bytes));
    let sparse = stream.row_weight.map_or_else(String::new, |weight| {
        format!(", {weight} nonzero coefficients per vector")
    });
    let codec = match stream.codec() {
        Ok(Codec::ReedSolomon { parity }) => format!(", Reed-Solomon with {parity} parity blocks"),
        Ok(Codec::RaptorQ) => ", RaptorQ".to_owned(),
        Ok(Codec::RlncQ { group }) => format!(
            ", a prime field, homomorphic hashes of {} bits",
            group.bits()
        ),
        Ok(Codec::Rlnc) | Err(_) => String::new(),
    };
    format!(
        "generations of up to {n} blocks of {k} bytes ({} KiB){sparse}{codec}",
        (n * k).div_ceil(1024)
    )
}

fn signed(stream: &stream::Config) -> String {
    match stream
        .signing_key
        .as_deref()
        .map(|path| (path, stream::Signer::look(path)))
    {
        None => String::new(),
        Some((_, Ok(Some(key)))) => format!(", signed by {key}"),
        Some((path, _)) => format!(
            ", signed by a key that the server will create as {}",
            path.display()
        ),
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("writing to a string");
}
