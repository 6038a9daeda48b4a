//! What a run has shown: as a line of JSON, and as a row of a table.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Arguments;
use crate::host::Host;

/// A run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) date: String,
    pub(crate) host: Host,
    pub(crate) asked: Arguments,
    pub(crate) viewers: u64,
    pub(crate) swarm: Swarm,
    pub(crate) server: Server,
    pub(crate) seconds: Vec<Second>,
}

/// What viewers report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Swarm {
    pub(crate) totals: Totals,
    pub(crate) first_block: Times,
    pub(crate) lateness: Times,
    pub(crate) joining: Times,
    /// From a viewer's first attempt to its first whole segment; older records lack these.
    #[serde(default)]
    pub(crate) first_segment: Option<Times>,
    #[serde(default)]
    pub(crate) waiting: Option<Times>,
    /// Bits of segments in time, a second of the run, and as a share of what viewers would play.
    #[serde(default)]
    pub(crate) goodput_bits: Option<f64>,
    #[serde(default)]
    pub(crate) played_share: Option<f64>,
}

/// What a record keeps of what the swarm counts.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// Viewers, each once: who asked, who got a segment, who was put out after that, and who was
    /// refused at first, and never let in. Older records lack these.
    #[serde(default)]
    pub(crate) asked: u64,
    #[serde(default)]
    pub(crate) served: u64,
    #[serde(default)]
    pub(crate) put_out: u64,
    #[serde(default)]
    pub(crate) refused_viewers: u64,
    #[serde(default)]
    pub(crate) never_in: u64,
    pub(crate) joined: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) on_time: u64,
    pub(crate) late: u64,
    pub(crate) verified: u64,
    pub(crate) corrupt: u64,
    pub(crate) generations: u64,
    pub(crate) blocks: u64,
    pub(crate) useless: u64,
    pub(crate) bytes: u64,
    pub(crate) wire_bytes: u64,
}

/// Times that half and nearly all lie below, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

/// What the server took and made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Server {
    /// Processors by the names of threads, and seconds over which that is the mean.
    pub(crate) cores: BTreeMap<String, f64>,
    pub(crate) window: f64,
    /// The viewers' in the same seconds.
    pub(crate) viewer_cores: f64,
    /// Viewers in them, and megabits of blocks a second.
    pub(crate) viewers: f64,
    pub(crate) megabits: f64,
    /// Percent, in the same seconds.
    pub(crate) gpu_busy: Option<f64>,
    /// Bytes of memory before the first viewer, and at most.
    pub(crate) resident: (u64, u64),
    /// Counters at the end that are not zero: blocks, batches, seconds of the device.
    pub(crate) counters: BTreeMap<String, f64>,
}

/// A second, from the beginning on.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Second {
    pub(crate) second: f64,
    pub(crate) viewers: u64,
    pub(crate) on_time: u64,
    pub(crate) late: u64,
    pub(crate) lost: u64,
    pub(crate) megabits: f64,
    /// Of the viewers, and of the server.
    pub(crate) cores: f64,
    #[serde(default)]
    pub(crate) server_cores: f64,
}

impl Record {
    pub(crate) const HEAD: &str = "| viewers | kbit/s | joins a second | what | seconds after the \
     last join | segments in time | late | verified, wrong | \
         refused, failed | first block, ms: half, 99 % | server's cores: sessions, receiving, \
         encoder, device; all | viewers' cores | GPU busy, % | \
         server's memory, MiB: before, at most | coded blocks a generation and viewer | bytes of \
         UDP a byte of blocks |\n\
         |---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|";

    pub(crate) fn row(&self) -> String {
        let Self {
            asked,
            swarm:
                Swarm {
                    totals,
                    first_block,
                    ..
                },
            server,
            ..
        } = self;
        let cores = |names: &[&str]| {
            sum(server
                .cores
                .iter()
                .filter(|(name, _)| names.contains(&name.as_str())))
        };
        let sent = ["coded", "source"].map(|kind| {
            self.counter(
                "ncserverd_session_sent_blocks_total",
                &format!("kind=\"{kind}\""),
            )
        });
        let per_generation = |blocks: f64| blocks / totals.generations.max(1) as f64;
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        format!(
            "| {} | {} | {} | {} | {:.0} | {} | {} | {}, {} | {}, {} | {:.1}, {:.1} | {:.2}, \
             {:.2}, {:.2}, {:.2}; {:.2} | {:.2} | {} | {:.0}, {:.0} | {} | {:.3} |",
            self.viewers,
            asked.bitrate / 1000,
            asked.join_rate,
            self.what(),
            asked.time,
            totals.on_time,
            totals.late,
            totals.verified,
            totals.corrupt,
            totals.refused,
            totals.failed,
            first_block.p50_ms,
            first_block.p99_ms,
            cores(&["tokio-rt-worker"]),
            cores(&["quic-receive"]),
            cores(&["encode"]),
            cores(&["device", "device-cpu", "combine"]),
            self.server_cores(),
            server.viewer_cores,
            server
                .gpu_busy
                .map_or_else(|| "–".to_owned(), |busy| format!("{busy:.0}")),
            mib(server.resident.0),
            mib(server.resident.1),
            if asked.plain {
                "–".to_owned()
            } else {
                format!(
                    "{:.3}, and {:.3} source",
                    per_generation(sent[0]),
                    per_generation(sent[1])
                )
            },
            totals.wire_bytes as f64 / totals.bytes.max(1) as f64,
        )
    }

    /// What sets the run apart.
    pub(crate) fn what(&self) -> String {
        let Arguments {
            backend,
            kernel,
            max_reuse,
            systematic,
            datagrams,
            loss,
            plain,
            ..
        } = &self.asked;
        if *plain {
            return "plain QUIC streams".to_owned();
        }
        let kernel = kernel
            .as_ref()
            .map_or_else(String::new, |kernel| format!(", {kernel}"));
        let mut what = format!("{}{kernel}", backend.name());
        if *max_reuse > 1 {
            what += &format!(", each block to {max_reuse}");
        }
        if *systematic {
            what += ", source first";
        }
        if *datagrams {
            what += ", datagrams";
        }
        if *loss > 0.0 {
            what += &format!(", {} % lost", loss * 100.0);
        }
        what
    }

    pub(crate) fn server_cores(&self) -> f64 {
        sum(&self.server.cores)
    }

    /// The sum of the counters of this name with this label.
    fn counter(&self, name: &str, label: &str) -> f64 {
        let is_of = |series: &str| series.starts_with(name) && series.contains(label);
        sum(self
            .server
            .counters
            .iter()
            .filter(|(series, _)| is_of(series)))
    }

    pub(crate) fn append(&self, file: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string(self).expect("numbers and texts");
        text.push('\n');
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)?
            .write_all(text.as_bytes())
    }

    pub(crate) fn read(file: &Path) -> io::Result<Vec<Self>> {
        fs::read_to_string(file)?
            .lines()
            .map(|line| Ok(serde_json::from_str(line)?))
            .collect()
    }
}

/// Of nothing it is 0.
fn sum<'a>(values: impl IntoIterator<Item = (&'a String, &'a f64)>) -> f64 {
    values.into_iter().fold(0.0, |sum, (_, value)| sum + value)
}
