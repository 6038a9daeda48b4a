//! The text exposition of Prometheus, parsed.

use std::collections::{BTreeMap, BTreeSet};

/// The series of one scrape.
#[derive(Debug, Clone, Default)]
pub struct Exposition {
    /// Values by the name and labels of the series.
    pub series: BTreeMap<String, f64>,
    /// Series that only grow.
    pub counters: BTreeSet<String>,
}

impl Exposition {
    /// Parses a scrape.
    ///
    /// # Errors
    /// A line that is neither a comment nor a series, or a series without a type.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut exposition = Self::default();
        let (mut family, mut grows) = (String::new(), false);
        for line in text.lines() {
            if let Some((name, kind)) = line
                .strip_prefix("# TYPE ")
                .and_then(|rest| rest.split_once(' '))
            {
                (family, grows) = (name.to_owned(), kind != "gauge");
            } else if !line.starts_with('#') && !line.is_empty() {
                let (name, value) = line
                    .rsplit_once(' ')
                    .ok_or_else(|| format!("no series: {line}"))?;
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

    /// The sum of the series of this name, whatever their labels.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let is_of = |series: &str| series.split('{').next() == Some(name);
        let values: Vec<f64> = self
            .series
            .iter()
            .filter(|(series, _)| is_of(series))
            .map(|(_, value)| *value)
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// Observations of a histogram above one of its bounds.
    pub fn above(&self, histogram: &str, bound: u32) -> Option<f64> {
        let below = self
            .series
            .get(&format!("{histogram}_bucket{{le=\"{bound}\"}}"))?;
        Some(self.sum(&format!("{histogram}_count"))? - below)
    }
}
