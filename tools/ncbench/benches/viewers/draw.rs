//! Figures of what was measured.

use std::fs;
use std::io;
use std::path::Path;

use ncbench::plot::{Figure, Panel, Series};

use crate::record::{Record, Second};

/// A value of a run.
type Read = fn(&Record) -> f64;

/// `viewers-cores.svg`: what numbers of viewers take, and `viewers-minutes.svg`: the longest run as
/// time goes by.
pub(crate) fn all(records: &[Record], directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let write = |name: &str, title: &str, panels| {
        fs::write(
            directory.join(name),
            Figure {
                title: title.to_owned(),
                panels,
            }
            .svg(),
        )
    };
    let kept: Vec<&Record> = records
        .iter()
        .filter(|record| {
            let totals = &record.swarm.totals;
            totals.late == 0 && totals.refused == 0 && totals.put_out == 0
        })
        .collect();
    let panels = vec![
        over_viewers(&kept, "Server", "processors", Record::server_cores),
        over_viewers(
            &kept,
            "Server, a thousand viewers",
            "processors",
            |record| record.server_cores() * 1000.0 / record.viewers as f64,
        ),
        over_viewers(
            &kept,
            "From a request to its first block, 99 %",
            "ms",
            |record| record.swarm.first_block.p99_ms,
        ),
    ];
    write(
        "viewers-cores.svg",
        "Viewers at 768 kbit/s without a late segment",
        panels,
    )?;
    let Some(longest) = records.iter().max_by_key(|record| record.seconds.len()) else {
        return Ok(());
    };
    let panels = vec![
        over_time(longest, "Viewers", "thousands", |line| {
            line.viewers as f64 / 1000.0
        }),
        over_time(longest, "Blocks to viewers", "Gbit/s", |line| {
            line.megabits / 1000.0
        }),
        over_time(longest, "Server", "processors", |line| line.server_cores),
        over_time(longest, "Viewers' side", "processors", |line| line.cores),
        over_time(longest, "Segments in time", "thousands a second", |line| {
            line.on_time as f64 / 1000.0
        }),
        over_time(longest, "Segments late", "a second", |line| {
            line.late as f64
        }),
    ];
    write(
        "viewers-minutes.svg",
        &format!("{} viewers, {}", longest.viewers, longest.what()),
        panels,
    )
}

fn over_viewers(records: &[&Record], title: &str, y: &str, read: Read) -> Panel {
    let mut series: Vec<Series> = Vec::new();
    for record in records
        .iter()
        .filter(|record| record.asked.bitrate == USUAL_BITRATE)
    {
        let (name, point) = (record.what(), (record.viewers as f64, read(record)));
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => series.push(Series {
                name,
                points: vec![point],
            }),
        }
    }
    for series in &mut series {
        series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    Panel {
        title: title.to_owned(),
        x: "viewers".to_owned(),
        y: y.to_owned(),
        series,
        marks: Vec::new(),
    }
}

fn over_time(record: &Record, title: &str, y: &str, read: fn(&Second) -> f64) -> Panel {
    // Means of so many seconds, for a figure of this width.
    let step = record.seconds.len().div_ceil(POINTS_MAX).max(1);
    let mean = |lines: &[Second], of: fn(&Second) -> f64| {
        lines.iter().map(of).sum::<f64>() / lines.len() as f64
    };
    let points = record
        .seconds
        .chunks(step)
        .map(|lines| (mean(lines, |line| line.second), mean(lines, read)));
    // Nobody is there when it begins.
    let points = std::iter::once((0.0, 0.0)).chain(points).collect();
    let series = vec![Series {
        name: record.what(),
        points,
    }];
    Panel {
        title: title.to_owned(),
        x: "s".to_owned(),
        y: y.to_owned(),
        series,
        marks: Vec::new(),
    }
}

const USUAL_BITRATE: u64 = 768_000;
const POINTS_MAX: usize = 70;
