//! Finds secrets that a stream would publish: files below its folder.

use std::path::{Path, PathBuf};

use super::{Config, Finding};
use crate::units;

/// A fault for every file with a secret below the folder of a stream, even through links.
pub(super) fn secrets(config: &Config, file: Option<&Path>) -> Vec<Finding> {
    let roots: Vec<_> = config
        .stream
        .iter()
        .filter_map(|(name, stream)| Some((name, real(stream.directory.as_deref()?))))
        .collect();
    if roots.is_empty() {
        return Vec::new();
    }
    let mut faults: Vec<_> = files(config, file)
        .into_iter()
        .filter_map(|(key, path)| {
            // A link below the folder is found by its own name.
            let places = [real(&path), real_parent(&path)];
            let (name, _) = roots
                .iter()
                .find(|(_, root)| places.iter().any(|place| place.starts_with(root)))?;
            let text = format!(
                "{} lies below `stream.{name}.directory`, so every viewer could fetch it: move it \
                 elsewhere",
                path.display()
            );
            Some(Finding { key, text })
        })
        .collect();
    // A folder and its files count as one fault.
    faults.dedup_by(|next, first| next.key == first.key);
    faults
}

/// Every secret file of the configuration, with its key.
fn files(config: &Config, file: Option<&Path>) -> Vec<(String, PathBuf)> {
    let mut files: Vec<(String, PathBuf)> = Vec::new();
    let mut add =
        |key: String, path: Option<&Path>| files.extend(path.map(|path| (key, path.to_owned())));
    add("--config".into(), file);
    add("tls.key".into(), config.tls.key.as_deref());
    for path in config.tls.made() {
        add("tls.directory".into(), Some(&path));
    }
    add(
        "admission.keys".into(),
        config.admission.keys_file().as_deref(),
    );
    let (nats, members) = (&config.cluster.nats, &config.cluster.members);
    add(
        "cluster.nats.password_file".into(),
        nats.password_file.as_deref(),
    );
    add("cluster.nats.key".into(), nats.key.as_deref());
    add(
        "cluster.token_file".into(),
        config.cluster.token_file.as_deref(),
    );
    let shared = &config.cluster.config;
    let kept = shared.directory.as_deref().filter(|_| shared.enabled);
    add("cluster.config.directory".into(), kept);
    add(
        "cluster.static.secret_file".into(),
        members.secret_file.as_deref(),
    );
    let telemetry = &config.telemetry;
    add("telemetry.key".into(), telemetry.key.as_deref());
    add(
        "telemetry.credential".into(),
        telemetry.credential.as_deref(),
    );
    for (name, stream) in &config.stream {
        add(
            format!("stream.{name}.signing_key"),
            stream.signing_key.as_deref(),
        );
        for (header, value) in &stream.headers {
            add(format!("stream.{name}.headers.{header}.file"), value.file());
        }
    }
    files
}

/// The path without links; its end need not exist.
fn real(path: &Path) -> PathBuf {
    let path = units::absolute(path);
    let Some((real, rest)) = path.ancestors().find_map(|ancestor| {
        Some((
            ancestor.canonicalize().ok()?,
            path.strip_prefix(ancestor).ok()?,
        ))
    }) else {
        return path;
    };
    real.join(rest)
}

/// The place of the name itself, even if it is a link.
fn real_parent(path: &Path) -> PathBuf {
    let path = units::absolute(path);
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path,
    }
}
