//! What a cell has shown: as a line of JSON, as a row of a table, and over time.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use ncbench::plot::{Figure, Panel, Series};
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::run::{Load, Outcome, Second, Server, Swarm};
use crate::{Arguments, Cell};

/// A cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    date: String,
    host: Host,
    asked: Arguments,
    cell: Cell,
    capacity: u64,
    viewers: u64,
    swarm: Swarm,
    server: Server,
    /// Megabits a second of segments in time, after all viewers have asked, and what is possible:
    /// the smaller of what is offered and the capacity.
    goodput: f64,
    possible: f64,
    seconds: Vec<Second>,
}

impl Record {
    pub(crate) const HEAD: &str = "| offered | joins a second | goodput, Mbit/s: after all have \
         asked, possible; % | served of asked | put out | late | first segment, s: half, 99 %, all \
         | refused, let in later, never | their wait, s: half, 99 %, all | server's cores | \
         viewers' cores |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|";

    pub(crate) fn new(
        arguments: &Arguments,
        host: &Host,
        cell: Cell,
        capacity: u64,
        load: Load,
        outcome: Outcome,
    ) -> Self {
        let Outcome {
            swarm,
            server,
            seconds,
        } = outcome;
        let asking = load.viewers as f64 / load.rate as f64;
        let from = asking + SETTLE.min(load.time as f64 / 4.0);
        let inside: Vec<f64> = seconds
            .iter()
            .filter(|line| line.second > from)
            .map(|line| line.goodput)
            .collect();
        let carried = load.viewers.min(capacity);
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            host: host.clone(),
            asked: arguments.clone(),
            cell,
            capacity,
            viewers: load.viewers,
            swarm,
            server,
            goodput: inside.iter().sum::<f64>() / inside.len().max(1) as f64,
            possible: carried as f64 * load.bitrate as f64 * 1e-6,
            seconds,
        }
    }

    /// The part of what is possible.
    fn share(&self) -> f64 {
        self.goodput / self.possible.max(1e-9)
    }

    pub(crate) fn row(&self) -> String {
        let Swarm {
            totals,
            first_segment,
            waiting,
            cpu_seconds,
            elapsed_seconds,
            ..
        } = &self.swarm;
        format!(
            "| {} x {} | {} | {:.0}, {:.0}; {:.0} | {} of {} | {} | {} | {:.2}, {:.2}, {:.2} | \
             {}, {}, {} | {:.1}, {:.1}, {:.1} | {:.2} | {:.2} |",
            self.cell.factor,
            self.capacity,
            self.cell.rate,
            self.goodput,
            self.possible,
            self.share() * 100.0,
            totals.served,
            totals.asked,
            totals.put_out,
            totals.late,
            first_segment.p50_ms / 1e3,
            first_segment.p99_ms / 1e3,
            first_segment.max_ms / 1e3,
            totals.refused_viewers,
            waiting.count,
            totals.never_in,
            waiting.p50_ms / 1e3,
            waiting.p99_ms / 1e3,
            waiting.max_ms / 1e3,
            self.server.cores,
            cpu_seconds / elapsed_seconds.max(1e-3),
        )
    }

    /// What is not as it has to be.
    pub(crate) fn shortfall(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.share() < GOODPUT_MIN {
            reasons.push(format!(
                "goodput is {:.0} % of what is possible, at least {:.0} are asked for",
                self.share() * 100.0,
                GOODPUT_MIN * 100.0
            ));
        }
        if self.swarm.totals.put_out > 0 {
            reasons.push(format!(
                "{} viewers were put out after they had been served",
                self.swarm.totals.put_out
            ));
        }
        reasons
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
}

/// All cells over time: what was delivered, who was let in, who was refused and put out.
pub(crate) fn figure(records: &[Record]) -> Figure {
    let panel = |title: &str, y: &str, read: fn(&Second) -> f64| Panel {
        title: title.to_owned(),
        x: "s".to_owned(),
        y: y.to_owned(),
        series: records
            .iter()
            .map(|record| Series {
                name: format!("{} x, {} a second", record.cell.factor, record.cell.rate),
                points: record
                    .seconds
                    .iter()
                    .map(|line| (line.second, read(line)))
                    .collect(),
            })
            .collect(),
        marks: Vec::new(),
    };
    Figure {
        title: format!(
            "Offered loads, and a capacity of {} viewers",
            records.first().map_or(0, |record| record.capacity)
        ),
        panels: vec![
            panel("Segments in time", "Mbit/s", |line| line.goodput),
            panel("Viewers connected", "viewers", |line| line.viewers as f64),
            panel("Admitted", "a second", |line| line.joined as f64),
            panel("Refused", "attempts a second", |line| line.refused as f64),
            panel("Put out", "a second", |line| line.put_out as f64),
            panel("Viewers' side", "processors", |line| line.cores),
        ],
    }
}

/// From the last to ask to where the mean begins, where a cell is long enough.
const SETTLE: f64 = 5.0;
const GOODPUT_MIN: f64 = 0.9;
