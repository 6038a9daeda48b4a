//! Compares adaptive players in a real browser on slow paths: plain HTTP beside the gateway.
//!
//! `cargo bench --bench abr -- [--players P,…] [--rates R,…] [--loss L,…] [--runs N] [--seconds N]
//! [--parallel N] [--json FILE]`, `-- --live` for a live stream, or `-- --smoke` for one cell per
//! player. Needs root, `ip`, ffmpeg, nginx, Chromium and npm, which fetches the players.
//!
//! hls.js, dash.js and Shaka play the same files with their defaults, each in headless Chromium:
//! directly from nginx over the kernel's TCP, and from `ncpeer gateway`, which fetches from
//! `ncserverd serve`. One cell is a player on a path. Both ways run one after the other, so that
//! neither takes the processor from the other, and a cell's figures are medians of its runs. The
//! path is that of `benches/paths`: network namespaces with this program between them, which
//! forwards, delays and drops IP packets.
//!
//! It prints a table in Markdown. It compares the mean bitrate that was played (by the height of
//! the picture), the time that playback stalled after its start, and the time to the first moving
//! picture.
//!
//! A live stream comes from an encoder that runs with the cell, in segments of two seconds. hls.js
//! plays it in three ways. The third is the peer in the page itself, which reads from `ncserverd`
//! by WebTransport (the package of `web/` as `make embed-web` has built it). The table has the time
//! to the first moving picture, and how long after its recording a picture is shown.

mod cell;
mod media;
#[path = "../paths/net.rs"]
mod net;
mod watch;

use std::collections::VecDeque;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;

use cell::{Cell, Rate, Way};
use clap::{Parser, ValueEnum};
use watch::{Player, Report};

#[derive(Debug, Parser)]
struct Arguments {
    /// Players to try
    #[arg(
        long,
        value_name = "P,...",
        value_delimiter = ',',
        default_values_t = [Player::Hls, Player::Dash, Player::Shaka],
    )]
    players: Vec<Player>,
    /// Rates of the path in Mbit/s; `varies` begins at 1.4, halves after a third of the time, and
    /// doubles again after two thirds
    #[arg(
        long,
        value_name = "R,...",
        value_delimiter = ',',
        default_values_t = ["0.45", "0.7", "1", "2", "5", "varies"].map(rate),
    )]
    rates: Vec<Rate>,
    /// Packet loss rates of the path, in percent
    #[arg(long, value_name = "L,...", value_delimiter = ',', default_values_t = [0.0, 5.0])]
    loss: Vec<f64>,
    /// Number of runs of each cell
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u64).range(1..=100),
    )]
    runs: u64,
    /// Playing time of each run
    #[arg(
        long,
        value_name = "N",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(5..=600),
    )]
    seconds: u64,
    /// Cells to run at a time; each needs processors of its own
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=64),
    )]
    parallel: u64,
    /// File for the runs' reports, one line of JSON each
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run one cell of 60 seconds per player, at 1 Mbit/s, two at a time; fail if the gateway is
    /// clearly worse than plain HTTP
    #[arg(long, conflicts_with_all = ["rates", "loss", "runs", "seconds", "parallel"])]
    smoke: bool,
    /// Play a live stream with hls.js, by plain HTTP, the gateway and the peer in the page
    #[arg(long, conflicts_with_all = ["smoke", "players"])]
    live: bool,
    /// Ignored: cargo passes it
    #[arg(long, hide = true)]
    bench: bool,
}

fn rate(text: &str) -> Rate {
    text.parse().expect("a rate of this file")
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [cell::RUN, cell, media, players] => {
            cell::run(&parse(cell), Path::new(media), Path::new(players))
        }
        [cell::INSIDE, near, far, cell, media, players] => {
            cell::inside(
                near,
                far,
                &parse(cell),
                Path::new(media),
                Path::new(players),
            );
        }
        [watch::WATCH, player, url, seconds, playlist, players] => {
            let player = Player::from_str(player, false).expect("a player");
            watch::watch(
                player,
                url,
                seconds.parse().expect("a number"),
                playlist,
                Path::new(players),
            );
        }
        _ => return all(&Arguments::parse()),
    }
    ExitCode::SUCCESS
}

fn parse(cell: &str) -> Cell {
    serde_json::from_str(cell).expect("a cell that this program wrote")
}

fn all(arguments: &Arguments) -> ExitCode {
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("abr");
    let media = media::make(&work);
    let players = media::players(&work);
    let (rates, loss, runs, seconds, parallel) = match arguments.smoke {
        // Shaka chooses a rendition every eight seconds, so a short run would measure one decision.
        true => (vec![rate("1")], vec![0.0], 1, 60, 3),
        false => (
            arguments.rates.clone(),
            arguments.loss.clone(),
            arguments.runs,
            arguments.seconds,
            arguments.parallel,
        ),
    };
    let (players_tried, ways): (&[_], &[_]) = match arguments.live {
        true => (&[Player::Hls], &[Way::Direct, Way::Gateway, Way::Page]),
        false => (&arguments.players, &[Way::Direct, Way::Gateway]),
    };
    let mut cells = VecDeque::new();
    for &rate in &rates {
        for &loss in &loss {
            for &player in players_tried {
                for run in 0..runs {
                    let cell = |way: &Way| Cell {
                        player,
                        rate,
                        loss,
                        way: *way,
                        is_live: arguments.live,
                        run,
                        seconds,
                    };
                    cells.push_back(ways.iter().map(cell).collect::<Vec<_>>());
                }
            }
        }
    }
    let mut log = arguments
        .json
        .as_ref()
        .map(|path| std::fs::File::create(path).expect("the file of reports"));
    let (cells, reports) = (Mutex::new(cells), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..parallel {
            scope.spawn(|| {
                // Not in the head of the loop, which would hold the lock while the cell runs.
                while let Some(cells) = { cells.lock().expect("nobody panics with it").pop_front() }
                {
                    for cell in cells {
                        let report = start(&cell, &media, &players);
                        eprintln!(
                            "{}",
                            serde_json::to_string(&(&cell, &report)).expect("plain values")
                        );
                        reports
                            .lock()
                            .expect("nobody panics with it")
                            .push((cell, report));
                    }
                }
            });
        }
    });
    let reports = reports.into_inner().expect("nobody panicked with it");
    if let Some(log) = &mut log {
        for report in &reports {
            writeln!(
                log,
                "{}",
                serde_json::to_string(report).expect("plain values")
            )
            .expect("room for reports");
        }
    }
    if arguments.live {
        live_table(&rates, &loss, ways, &reports);
        return ExitCode::SUCCESS;
    }
    table(&rates, &loss, &arguments.players, &reports);
    match arguments.smoke
        && !arguments
            .players
            .iter()
            .all(|player| holds(*player, &reports))
    {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// Runs one cell in a process of its own, whose namespaces bear its number.
fn start(cell: &Cell, media: &Path, players: &Path) -> Report {
    let own = std::env::current_exe().expect("this program has a path");
    let cell = serde_json::to_string(cell).expect("plain values");
    let mut command = Command::new(own);
    command
        .arg(cell::RUN)
        .arg(cell)
        .arg(media)
        .arg(players)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command.output().expect("this program starts");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| Report::failed(format!("{}: {error}", output.status)))
}

fn table(rates: &[Rate], loss: &[f64], players: &[Player], reports: &[(Cell, Report)]) {
    println!(
        "| Mbit/s | lost | player | played, kbit/s: direct | gateway | ratio | stood still, s: \
         direct | gateway | stalls: direct | gateway | start, s: direct | gateway | estimate, \
         kbit/s: direct | gateway | on the path, kbit/s: direct | gateway |\n|{}",
        "---|".repeat(16)
    );
    for &rate in rates {
        for &loss in loss {
            for &player in players {
                let of = |way: Way, figure: fn(&Report) -> f64| {
                    median(
                        reports
                            .iter()
                            .filter(|(cell, _)| cell.is(player, rate, loss, way))
                            .map(|(_, report)| figure(report)),
                    )
                };
                let both = |figure: fn(&Report) -> f64| {
                    [Way::Direct, Way::Gateway].map(|way| of(way, figure))
                };
                let [direct, gateway] = both(Report::bitrate);
                let cells = [
                    both(|report| report.stalled),
                    both(|report| report.stalls),
                    both(Report::start),
                    both(Report::estimate),
                    both(|report| report.sent),
                ];
                let cells = cells
                    .map(|[direct, gateway]| format!("{direct:.1} | {gateway:.1}"))
                    .join(" | ");
                println!(
                    "| {rate} | {loss} % | {player} | {direct:.0} | {gateway:.0} | {:.2} | {cells} \
                     |",
                    gateway / direct
                );
            }
        }
    }
}

/// Prints the table of the live stream: medians of the runs, and the worst start.
fn live_table(rates: &[Rate], loss: &[f64], ways: &[Way], reports: &[(Cell, Report)]) {
    println!(
        "| Mbit/s | lost | way | start, s | worst start, s | behind the recording, s | stalls | \
         stood still, s | on the path, kbit/s | runs without a picture |\n|{}",
        "---|".repeat(10)
    );
    for &rate in rates {
        for &loss in loss {
            for &way in ways {
                let reports: Vec<&Report> = reports
                    .iter()
                    .filter(|(cell, _)| cell.is(Player::Hls, rate, loss, way))
                    .map(|(_, report)| report)
                    .collect();
                let of = |figure: fn(&Report) -> f64| median(reports.iter().map(|of| figure(of)));
                println!(
                    "| {rate} | {loss} % | {way} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} | {:.0} | \
                     {} |",
                    of(Report::start),
                    reports.iter().map(|of| of.start()).fold(f64::NAN, f64::max),
                    of(Report::behind),
                    of(|report| report.stalls),
                    of(|report| report.stalled),
                    of(|report| report.sent),
                    reports.iter().filter(|of| of.startup.is_none()).count(),
                );
            }
        }
    }
}

/// Whether the gateway is not much worse than plain HTTP for a player. One run of each shows no
/// small difference, so only a large one fails.
fn holds(player: Player, reports: &[(Cell, Report)]) -> bool {
    let find = |way| {
        reports
            .iter()
            .find(|(cell, _)| cell.player == player && cell.way == way)
            .map(|(_, report)| report)
    };
    let (Some(direct), Some(gateway)) = (find(Way::Direct), find(Way::Gateway)) else {
        return false;
    };
    for (name, report) in [("direct", direct), ("gateway", gateway)] {
        if !report.errors.is_empty() || report.startup.is_none() {
            println!("{player}, {name}: {:?}", report.errors);
            return false;
        }
    }
    let holds =
        gateway.bitrate() >= 0.7 * direct.bitrate() && gateway.stalled <= direct.stalled + 1.0;
    if !holds {
        println!("{player} is worse off through the gateway: {gateway:?}; direct: {direct:?}");
    }
    holds
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[odd / 2],
        even => f64::midpoint(values[even / 2 - 1], values[even / 2]),
    }
}
