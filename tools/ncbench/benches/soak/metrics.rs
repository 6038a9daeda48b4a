//! What may not happen to metrics: counters that go backwards, gauges below zero, numbers that have run over.

use crate::exposition::Exposition;

/// Whole numbers up to here are exact; nothing that is counted comes near.
const LARGEST: f64 = 9.0e15;

impl Exposition {
    /// The sum of the series of this name, whatever their labels.
    pub(crate) fn sum(&self, name: &str) -> Option<f64> {
        let is_of = |series: &str| series.split('{').next() == Some(name);
        let values: Vec<f64> = self.series.iter().filter(|(series, _)| is_of(series)).map(|(_, value)| *value).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// Observations of a histogram above one of its bounds.
    pub(crate) fn above(&self, histogram: &str, bound: u32) -> Option<f64> {
        let below = self.series.get(&format!("{histogram}_bucket{{le=\"{bound}\"}}"))?;
        Some(self.sum(&format!("{histogram}_count"))? - below)
    }

    /// What is wrong with them, those of an earlier look given.
    pub(crate) fn faults(&self, earlier: &Self) -> Vec<String> {
        let mut faults = Vec::new();
        for (name, value) in &self.series {
            if !(0.0..LARGEST).contains(value) && name.starts_with("ncserverd_") {
                faults.push(format!("{name} is {value}"));
            }
        }
        for name in &earlier.counters {
            let before = earlier.series[name];
            match self.series.get(name) {
                Some(now) if *now >= before => {}
                Some(now) => faults.push(format!("{name} went from {before} to {now}")),
                None => faults.push(format!("{name} has gone")),
            }
        }
        let ring = ["ncserverd_ring_used_bytes", "ncserverd_ring_capacity_bytes"].map(|name| self.sum(name));
        if !matches!(ring, [Some(used), Some(capacity)] if used <= capacity) {
            faults.push(format!("bytes of the ring used, and its capacity: {ring:?}"));
        }
        faults
    }
}
