//! What `/metrics` shows.

use std::collections::{BTreeMap, BTreeSet};

/// One look at it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exposition {
    pub(crate) series: BTreeMap<String, f64>,
    /// Those that only grow.
    pub(crate) counters: BTreeSet<String>,
}

impl Exposition {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut exposition = Self::default();
        let (mut family, mut grows) = (String::new(), false);
        for line in text.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                (family, grows) = (name.to_owned(), kind != "gauge");
            } else if !line.starts_with('#') && !line.is_empty() {
                let (name, value) = line.rsplit_once(' ').ok_or_else(|| format!("no series: {line}"))?;
                let value: f64 = value.parse().map_err(|_| format!("no number: {line}"))?;
                if !name.starts_with(&family) {
                    return Err(format!("{name} has no type"));
                }
                exposition.series.insert(name.to_owned(), value);
                if grows {
                    exposition.counters.insert(name.to_owned());
                }
            }
        }
        Ok(exposition)
    }
}
