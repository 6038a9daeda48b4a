//! Simulates fleets that do not fit on a machine, in virtual time and without sockets: how viewers
//! spread over servers, and what the origin and the beats cost.
//!
//! `cargo bench --bench fleets -- [--servers N] [--viewers N] [--seed N] [--plots DIRECTORY]`.
//! Needs no privileges and one core; the same seed gives the same figures. Servers run their
//! rosters and tables as they are shipped; the rest is a model (`ncserverd::lab::fleet`).
//!
//! Prints a table in Markdown, and plots the run if a directory is given.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use ncbench::plot::{Figure, Panel, Series};
use ncserverd::lab::fleet::{Config, Happening, Second, World};

/// Options of the run.
#[derive(Debug, Parser)]
struct Arguments {
    /// Servers
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(20..=1000),
    )]
    servers: u32,
    /// Viewers for each of them, on average
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(100..=35_000),
    )]
    viewers: u32,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory for plots
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
    /// Ignored: cargo passes it
    #[arg(long, hide = true)]
    bench: bool,
}

/// When something happens, in seconds, and what is said of the time after it.
const HAPPENS: [(u64, &str, Option<Happening>); 6] = [
    (0, "steady", None),
    (60, "1 dies", Some(Happening::Die(1))),
    (120, "3 die", Some(Happening::Die(3))),
    (180, "4 come", Some(Happening::Come(4))),
    (240, "10 drain", Some(Happening::Drain(10))),
    (300, "10 come", Some(Happening::Come(10))),
];
const LASTS: u64 = 360;

fn main() {
    let Arguments {
        servers,
        viewers,
        seed,
        plots,
        ..
    } = Arguments::parse();
    let happens = HAPPENS.iter().filter_map(|(at, _, happening)| {
        happening.map(|happening| (Duration::from_secs(*at), happening))
    });
    let config = Config {
        servers: servers as usize,
        viewers_each: viewers,
        seed,
        lasts: Duration::from_secs(LASTS),
        happens: happens.collect(),
        ..Config::default()
    };
    let begun = Instant::now();
    let seconds = World::new(config).run();
    println!("## {servers} servers, {viewers} viewers each, seed {seed}\n");
    println!(
        "| what happens | servers | viewers of a server, in means: most, least, most that a \
         newcomer made | newcomers sent on | moved | without a server | requests for a segment: \
         mean, most | copies of a segment by a server, most | circles | beats and bytes that a \
         server hears a second |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (index, (from, what, _)) in HAPPENS.iter().enumerate() {
        let until = HAPPENS.get(index + 1).map_or(LASTS, |next| next.0);
        row(what, &seconds, *from..until);
    }
    println!("\nsimulated in {:.0} s", begun.elapsed().as_secs_f64());
    if let Some(directory) = plots {
        let file = directory.join("fleet.svg");
        std::fs::write(&file, figure(&seconds).svg()).expect("the directory is writable");
    }
}

fn row(what: &str, seconds: &[Second], within: Range<u64>) {
    let index = |second: u64| usize::try_from(second).expect("a run has few seconds");
    let part = &seconds[index(within.start)..index(within.end)];
    let sum = |of: fn(&Second) -> u64| part.iter().map(of).sum::<u64>();
    let most = |of: fn(&Second) -> f64| part.iter().map(of).fold(0.0, f64::max);
    let least = part
        .iter()
        .map(|second| second.least)
        .fold(f64::MAX, f64::min);
    let [requests, segments] = [sum(|second| second.requests), sum(|second| second.segments)];
    let heard = |of: fn(&Second) -> u64| {
        let each = part
            .iter()
            .map(|second| of(second) as f64 / second.servers as f64);
        each.sum::<f64>() / part.len() as f64
    };
    println!(
        "| {what} | {} | {:.3}, {least:.3}, {:.3} | {:.1} % | {} | {} | {:.4}, {} | {} | {} | \
         {:.1}, {:.0} |",
        part.last().map_or(0, |second| second.servers),
        most(|second| second.most),
        most(|second| second.entered),
        100.0 * sum(|second| second.sent_on) as f64 / sum(|second| second.joined) as f64,
        sum(|second| second.moved),
        sum(|second| second.lost),
        requests as f64 / segments as f64,
        most(|second| second.requests_most as f64),
        most(|second| second.copies_most as f64),
        sum(|second| second.circles),
        heard(|second| second.beats),
        heard(|second| second.beat_bytes),
    );
}

fn figure(seconds: &[Second]) -> Figure {
    let series = |name: &str, of: &dyn Fn(&Second) -> f64| Series {
        name: name.to_owned(),
        points: (1u32..)
            .map(f64::from)
            .zip(seconds.iter().map(of))
            .collect(),
    };
    let panel = |title: &str, y: &str, series: Vec<Series>, marks: Vec<(String, f64)>| Panel {
        title: title.to_owned(),
        x: "seconds".to_owned(),
        y: y.to_owned(),
        series,
        marks,
    };
    Figure {
        title: "A fleet: 1 server dies at 60 s, 3 at 120 s, 4 come at 180 s, 10 drain at 240 s, \
             10 come at 300 s"
            .to_owned(),
        panels: vec![
            panel(
                "Viewers of a server",
                "over the mean",
                vec![
                    series("most", &|second| second.most),
                    series("least", &|second| second.least),
                ],
                vec![("1.25".to_owned(), 1.25)],
            ),
            panel(
                "Requests to the origin",
                "for a segment",
                vec![
                    series("mean", &|second| {
                        second.requests as f64 / second.segments.max(1) as f64
                    }),
                    series("most", &|second| second.requests_most as f64),
                ],
                vec![],
            ),
            panel(
                "Viewers that move",
                "a second",
                vec![series("move", &|second| second.moved as f64)],
                vec![],
            ),
        ],
    }
}
