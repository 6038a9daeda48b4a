//! Faults of metrics: counters that decrease, gauges below zero, numbers that have overflowed.

use nctest::exposition::Exposition;

/// Whole numbers up to here are exact; nothing that is counted comes near.
const LARGEST: f64 = 9.0e15;

/// The faults of the metrics now, given the metrics at an earlier time.
pub(crate) fn faults(now: &Exposition, earlier: &Exposition) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, value) in &now.series {
        if !(0.0..LARGEST).contains(value) && name.starts_with("ncserverd_") {
            faults.push(format!("{name} is {value}"));
        }
    }
    for name in &earlier.counters {
        let before = earlier.series[name];
        match now.series.get(name) {
            Some(later) if *later >= before => {}
            Some(later) => faults.push(format!("{name} went from {before} to {later}")),
            None => faults.push(format!("{name} has gone")),
        }
    }
    let ring =
        ["ncserverd_ring_used_bytes", "ncserverd_ring_capacity_bytes"].map(|name| now.sum(name));
    if !matches!(ring, [Some(used), Some(capacity)] if used <= capacity) {
        faults.push(format!(
            "bytes of the ring used, and its capacity: {ring:?}"
        ));
    }
    faults
}
