//! What a cell has shown: as a line of JSON, as a row of a table, and over time.

use std::fs::{self, OpenOptions};
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
         | from the granted attempt, s: half, 99 %, all | refused, let in later, never | their \
         wait, s: half, 99 %, all | server's cores | viewers' cores |\n|---:|---:|---:|---:|---:|\
         ---:|---:|---:|---:|---:|---:|---:|";

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
            startup,
            waiting,
            cpu_seconds,
            elapsed_seconds,
            ..
        } = &self.swarm;
        format!(
            "| {} x {} | {} | {:.0}, {:.0}; {:.0} | {} of {} | {} | {} | {} | {} | {}, {}, {} | \
             {} | {:.2} | {:.2} |",
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
            first_segment.seconds(),
            startup.seconds(),
            totals.refused_viewers,
            waiting.count,
            totals.never_in,
            waiting.seconds(),
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

    /// Adds a line to the record in this directory.
    pub(crate) fn append(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let mut text = serde_json::to_string(self).expect("numbers and texts");
        text.push('\n');
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(directory.join(RECORD))?
            .write_all(text.as_bytes())
    }
}

/// The last record of each cell in this directory, in the order in which the cells were run first.
pub(crate) fn read(directory: &Path) -> io::Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    for line in fs::read_to_string(directory.join(RECORD))?.lines() {
        let record: Record = serde_json::from_str(line)?;
        let same = |other: &&mut Record| other.cell == record.cell;
        match records.iter_mut().find(same) {
            Some(older) => *older = record,
            None => records.push(record),
        }
    }
    Ok(records)
}

/// Draws the last record of each cell in this directory.
pub(crate) fn draw(directory: &Path) -> io::Result<()> {
    let figure = figure(&read(directory)?);
    fs::write(directory.join(FIGURE), figure.svg())
}

/// All cells over time: what was delivered, who was let in, who was refused and put out.
fn figure(records: &[Record]) -> Figure {
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
                    .chunks(POINT)
                    .map(|lines| {
                        let mean = |read: &dyn Fn(&Second) -> f64| {
                            lines.iter().map(read).sum::<f64>() / lines.len() as f64
                        };
                        (mean(&|line| line.second), mean(&read))
                    })
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
            panel("Viewers admitted", "viewers", |line| line.inside as f64),
            panel("Admitted", "a second", |line| line.admitted as f64),
            panel("Refused", "attempts a second", |line| line.refused as f64),
            panel("Put out", "a second", |line| line.put_out as f64),
            panel("Viewers' side", "processors", |line| line.cores),
        ],
    }
}

/// From the last to ask to where the mean begins, where a cell is long enough.
const SETTLE: f64 = 5.0;
const GOODPUT_MIN: f64 = 0.9;
/// Lines of a record that are one point of the figure, which would otherwise have 400 kB.
const POINT: usize = 3;
const RECORD: &str = "overload.jsonl";
const FIGURE: &str = "overload.svg";
