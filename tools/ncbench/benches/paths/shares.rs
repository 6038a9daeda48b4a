//! The part of a bottleneck that a flow of the server takes beside TCP, and its queue alone.
//!
//! Shares are of packets on the wire, so that repair blocks count as what they are: sending. With
//! `--own cubic`, a flow of TCP with that controller is in the server's place; its share is its
//! goodput's, because its packets are not told from those of the others. Each
//! cell has a name, as `bbr-4-100-50`: four flows of TCP with BBR, 100 Mbit/s, 50 ms of buffer; or
//! `alone-10-20`.

use std::fmt;
use std::time::{Duration, Instant};

use ncserverd::endpoint::Congestion;

use crate::Bench;
use crate::flow::{Contender, Running, Way, tcp_has};
use crate::net::Box;

/// A bottleneck and who is there beside the server.
struct Cell {
    /// How many flows of TCP, and with which controller.
    others: u16,
    congestion: &'static str,
    megabits: u16,
    buffer_ms: u16,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.others {
            0 => f.write_str("alone"),
            others => write!(f, "{}-{others}", self.congestion),
        }?;
        write!(f, "-{}-{}", self.megabits, self.buffer_ms)
    }
}

/// All cells, in the order of the table.
fn cells() -> impl Iterator<Item = Cell> {
    let company = [
        (0, "cubic"),
        (1, "cubic"),
        (4, "cubic"),
        (1, "bbr"),
        (4, "bbr"),
    ];
    company.into_iter().flat_map(|(others, congestion)| {
        [10, 100].into_iter().flat_map(move |megabits| {
            [20, 50, 100].map(|buffer_ms| Cell {
                others,
                congestion,
                megabits,
                buffer_ms,
            })
        })
    })
}

/// Measures the cells whose names begin with one of these, or all. `tcp` is the controller of a
/// flow of TCP in the server's place.
pub(crate) fn table(bench: &Bench<'_>, chosen: &str, tcp: Option<&'static str>) {
    println!(
        "\n| cell | its own, Mbit/s | of a fair part | all others, Mbit/s | goodput, Mbit/s | \
         queue, mean ms | 95th ms | queue full, % |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for cell in cells() {
        let name = cell.to_string();
        if !chosen.split(',').any(|begin| name.starts_with(begin)) {
            continue;
        }
        if cell.others > 0 && !tcp_has(cell.congestion) {
            println!(
                "| {name} | SKIPPED: the kernel has no {} | | | | | | |",
                cell.congestion
            );
            continue;
        }
        measure(bench, &cell, tcp);
    }
}

/// Runs a cell, and prints its row.
fn measure(bench: &Bench<'_>, cell: &Cell, tcp: Option<&'static str>) {
    let path = crate::path(cell.megabits.into(), cell.buffer_ms.into(), 0.0);
    let hop = Box::start(0, path, 1);
    let way = Way::across(bench.ends, 1);
    let coded = || Contender::Streams(Congestion::default());
    let others = (0..cell.others).map(|_| Contender::Http(cell.congestion));
    let mut running: Vec<Running> = others
        .chain([tcp.map_or_else(coded, Contender::Http)])
        .zip(0..)
        .map(|(contender, number)| Running::start(contender, &way, bench.media, number))
        .collect();
    std::thread::sleep(WARM_UP);
    hop.counts();
    hop.udp_bytes();
    let from = Instant::now();
    std::thread::sleep(Duration::from_secs(bench.seconds));
    let (counts, udp) = (hop.counts(), hop.udp_bytes());
    let goodput = running.last().and_then(|own| own.megabits_since(from));
    running.clear();
    // The path lasts until the kernels have told each other that it is over.
    std::thread::sleep(Duration::from_millis(300));
    let megabits = |bytes: u64| bytes as f64 * 8e-6 / bench.seconds as f64;
    let own = match tcp {
        None => megabits(udp),
        Some(_) => goodput.unwrap_or(0.0),
    };
    let fair_part = f64::from(cell.megabits) / f64::from(cell.others + 1);
    let (mean, most) = counts.queue();
    let full = 100.0 * counts.overflowed as f64 / counts.offered.max(1) as f64;
    println!(
        "| {cell} | {own:.2} | {:.2} | {:.2} | {} | {mean:.1} | {most:.1} | {full:.2} |",
        own / fair_part,
        megabits(counts.bytes) - own,
        goodput.map_or_else(|| "–".to_owned(), |goodput| format!("{goodput:.2}")),
    );
}

/// Until the flows have found their parts.
const WARM_UP: Duration = Duration::from_secs(15);
