//! What was seen of the server as time went by, by quarters of the time, and whether it grew.

use std::time::Duration;

use crate::watched::Usage;

/// A look at the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// Since the beginning.
    pub(crate) at: Duration,
    pub(crate) usage: Usage,
    pub(crate) sessions: f64,
    /// Bytes of segments held, and of blocks in the ring.
    pub(crate) held: f64,
    pub(crate) ring_used: f64,
}

/// What memory may grow by from the second quarter to the last.
const GROWTH_MAX: f64 = 0.1;
const GROWTH_MAX_MIB: f64 = 8.0;
/// What descriptors may: connections to the origin come and go.
const DESCRIPTORS_MAX: f64 = 4.0;

type Read = fn(&Sample) -> f64;
const RESIDENT: Read = |sample| mib(sample.usage.resident);
const DESCRIPTORS: Read =
    |sample| f64::from(u32::try_from(sample.usage.descriptors).unwrap_or(u32::MAX));

impl Sample {
    pub(crate) const HEAD: &str = "| second | resident, MiB | descriptors | threads | sessions | \
                                   segments held, MiB | ring, MiB |";

    pub(crate) fn row(&self) -> String {
        format!(
            "| {:.0} | {:.1} | {} | {} | {} | {:.1} | {:.2} |",
            self.at.as_secs_f64(),
            RESIDENT(self),
            self.usage.descriptors,
            self.usage.threads,
            self.sessions,
            self.held / MIB,
            self.ring_used / MIB,
        )
    }
}

/// A table of medians, in Markdown.
pub(crate) fn table(samples: &[Sample], time: Duration) -> String {
    let rows: [(&str, Read); 6] = [
        ("resident, MiB", RESIDENT),
        ("descriptors", DESCRIPTORS),
        ("threads", |sample| {
            f64::from(u32::try_from(sample.usage.threads).unwrap_or(u32::MAX))
        }),
        ("sessions", |sample| sample.sessions),
        ("segments held, MiB", |sample| sample.held / MIB),
        ("ring, MiB", |sample| sample.ring_used / MIB),
    ];
    let mut text =
        "| median | first quarter | second | third | last |\n|---|---:|---:|---:|---:|\n"
            .to_owned();
    for (name, read) in rows {
        let cells = [0, 1, 2, 3].map(|number| median(quarter(samples, time, number), read));
        let cells =
            cells.map(|cell| cell.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}")));
        text += &format!("| {name} | {} |\n", cells.join(" | "));
    }
    text
}

/// What grew from the second quarter to the last.
pub(crate) fn growth(samples: &[Sample], time: Duration) -> Vec<String> {
    let medians = |read| {
        (
            median(quarter(samples, time, 1), read),
            median(quarter(samples, time, 3), read),
        )
    };
    let mut faults = Vec::new();
    match medians(RESIDENT) {
        (Some(before), Some(after)) if after <= before * (1.0 + GROWTH_MAX) + GROWTH_MAX_MIB => {}
        grown => faults.push(format!(
            "resident MiB in the second quarter and in the last: {grown:?}"
        )),
    }
    match medians(DESCRIPTORS) {
        (Some(before), Some(after)) if after <= before + DESCRIPTORS_MAX => {}
        grown => faults.push(format!(
            "descriptors in the second quarter and in the last: {grown:?}"
        )),
    }
    faults
}

/// The samples of one of the quarters, 0 to 3.
fn quarter(samples: &[Sample], time: Duration, number: u32) -> impl Iterator<Item = &Sample> {
    let part = time / 4;
    samples
        .iter()
        .filter(move |sample| (part * number..part * (number + 1)).contains(&sample.at))
}

fn median<'a>(samples: impl Iterator<Item = &'a Sample>, read: Read) -> Option<f64> {
    let mut values: Vec<f64> = samples.map(read).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB
}

const MIB: f64 = 1048576.0;
