//! Measures paths with a bottleneck, delay and loss through real kernels: HTTP over TCP from nginx,
//! plain quinn, and this server with each congestion controller.
//!
//! `cargo bench --bench paths -- [loss] [queue] [fair] [odd] [chain] [--seconds N] [--only TEXT]`,
//! or `-- shares [--cells CELL,…] [--own CONTROLLER] [--seconds N]`.
//! Needs root, `ip` and nginx. The sender, the receiver and the nodes between them have network
//! namespaces in a chain. In one more namespace this program emulates the path on every hop: the
//! kernel wraps the packets of a hop in VXLAN, so that whole IP packets reach this program in UDP
//! datagrams without a driver of ours, and `ncserverd::lab::path` decides what happens to each. All
//! tables but `chain` use the first hop only. It prints tables in Markdown: what the receiver's
//! program wrote in the measured time (a dash where it wrote fewer than two parts of an object),
//! and what the bottleneck sent and queued.
//!
//! Everything ends with the program, and nothing leaves the namespaces.

mod flow;
mod net;
mod shares;

use std::env;
use std::path::Path;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use flow::{Contender, Running, Way};
use ncserverd::endpoint::Congestion;
use ncserverd::lab::path::Shape;
use nctest::netns::within;
use net::{Box, HOPS, Namespaces};

fn main() {
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["inside", ref rest @ ..] => inside(rest),
        ["http-serve", address, congestion, media, files] => {
            flow::http_serve(address, congestion, media, files)
        }
        ["http-fetch", address] => flow::http_fetch(address),
        ["quic-serve", address, congestion] => flow::quic_serve(address, congestion),
        ["quic-fetch", address, fingerprint] => flow::quic_fetch(address, fingerprint),
        _ => {
            let namespaces = match Namespaces::new() {
                Ok(namespaces) => namespaces,
                Err(reason) => {
                    println!("SKIPPED: no network namespaces: {reason}");
                    return;
                }
            };
            let program = env::current_exe().expect("this program has a path");
            let mut inside = within(&namespaces.middle);
            inside.arg(program).arg("inside");
            let status = inside
                .args(&namespaces.ends)
                .args(words)
                .status()
                .expect("ip runs");
            assert!(status.success(), "the measurements ended with {status}");
        }
    }
}

/// What the middle namespace runs.
fn inside(words: &[&str]) {
    let (ends, rest) = words
        .split_at_checked(usize::from(HOPS) + 1)
        .expect("the names of the namespaces");
    let ends: Vec<String> = ends.iter().map(|end| (*end).to_owned()).collect();
    let mut seconds = 10;
    let (mut chosen, mut only, mut cells, mut shares) = (Vec::new(), "", "", false);
    let mut own = None;
    let mut rest = rest.iter();
    while let Some(word) = rest.next() {
        match *word {
            "--seconds" => {
                seconds = rest
                    .next()
                    .and_then(|text| text.parse().ok())
                    .expect("--seconds takes a number")
            }
            "--only" => only = rest.next().expect("--only takes a part of a sender's name"),
            name if TABLES.iter().any(|(known, _)| *known == name) => chosen.push(name),
            "--cells" => cells = rest.next().expect("--cells takes the beginnings of names"),
            "--own" => {
                own = match rest.next() {
                    Some(&"cubic") => Some("cubic"),
                    Some(&"bbr") => Some("bbr"),
                    _ => panic!("--own takes cubic or bbr"),
                }
            }
            "shares" => shares = true,
            other => {
                panic!("`{other}` is no table; there are loss, queue, fair, odd, chain and shares")
            }
        }
    }
    let media = tempfile::tempdir().expect("a temporary directory");
    flow::make_media(media.path(), if shares { LARGE_FILE } else { FILE });
    let bench = Bench {
        ends: &ends,
        seconds,
        only,
        media: media.path(),
    };
    if shares {
        shares::table(&bench, cells, own);
        return;
    }
    for (name, table) in TABLES {
        if chosen.is_empty() || chosen.contains(&name) {
            table(&bench);
        }
    }
}

/// More than 20 Mbit/s bring in forty seconds, or 10 in eighty.
const FILE: ByteSize = ByteSize::mib(96);
/// The same of 100 Mbit/s in fifty seconds.
const LARGE_FILE: ByteSize = ByteSize::mib(640);

/// Prints what it measures.
type Table = fn(&Bench<'_>);

const TABLES: [(&str, Table); 5] = [
    ("loss", loss),
    ("queue", queue),
    ("fair", fair),
    ("odd", odd),
    ("chain", chain),
];

struct Bench<'a> {
    /// Namespaces of the chain.
    ends: &'a [String],
    seconds: u64,
    only: &'a str,
    media: &'a Path,
}

const ALL: [Congestion; 3] = [Congestion::Cubic, Congestion::Bbr, Congestion::Delay];

/// Everybody who is asked for.
fn contenders(bench: &Bench<'_>) -> Vec<Contender> {
    let tcp = ["cubic", "bbr"]
        .into_iter()
        .filter(|name| flow::tcp_has(name))
        .map(Contender::Http);
    let rest = ALL.into_iter().flat_map(|with| {
        [
            Contender::Quic(with),
            Contender::Streams(with),
            Contender::Datagrams(with),
        ]
    });
    let mut all: Vec<Contender> = tcp.chain(rest).collect();
    all.retain(|contender| contender.to_string().contains(bench.only));
    all.sort_by_key(Contender::kind);
    all
}

/// 25 ms each way.
fn path(megabits: f64, buffer: u64, loss: f64) -> [Shape; 2] {
    let (delay, buffer) = (Duration::from_millis(25), Duration::from_millis(buffer));
    let there = Shape {
        bits_per_second: megabits * 1e6,
        buffer,
        delay,
        loss,
        ..Shape::default()
    };
    [
        there,
        Shape {
            delay,
            loss,
            ..Shape::default()
        },
    ]
}

impl Bench<'_> {
    /// Runs these at the same time over this path, and prints a row.
    fn row(&self, what: &str, path: [Shape; 2], contenders: &[Contender], warm_up: u64) {
        let relay = Box::start(0, path, 1);
        let way = Way::across(self.ends, 1);
        let running: Vec<Running> = contenders
            .iter()
            .zip(0..)
            .map(|(contender, number)| Running::start(*contender, &way, self.media, number))
            .collect();
        std::thread::sleep(Duration::from_secs(warm_up));
        relay.counts();
        let from = Instant::now();
        std::thread::sleep(Duration::from_secs(self.seconds));
        let counts = relay.counts();
        let rates: Vec<Option<f64>> = running
            .iter()
            .map(|running| running.megabits_since(from))
            .collect();
        drop(running);
        // The path lasts until the kernels have told each other that it is over.
        std::thread::sleep(Duration::from_millis(300));
        let percent = |part: u64| 100.0 * part as f64 / counts.offered.max(1) as f64;
        let (mean, most) = counts.queue();
        let rates = rates
            .iter()
            .map(|rate| rate.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.2}")))
            .collect::<Vec<_>>()
            .join(" \\| ");
        let (lost, overflowed) = (percent(counts.lost), percent(counts.overflowed));
        let sent = counts.bytes as f64 * 8e-6 / self.seconds as f64;
        println!(
            "| {what} | {rates} | {sent:.2} | {mean:.1} | {most:.1} | {overflowed:.2} | {lost:.1} |"
        );
    }

    fn head(title: &str, first: &str, rate: &str) {
        println!(
            "\n{title}\n\n\
             | {first} | {rate} | bottleneck, Mbit/s | queue, mean ms | 95th ms | queue full, % | \
             lost at random, % |"
        );
        println!("|---|---:|---:|---:|---:|---:|---:|");
    }
}

fn loss(bench: &Bench<'_>) {
    for percent in [0, 1, 5, 10, 20] {
        let title = format!("20 Mbit/s, 50 ms, 100 ms of buffer, {percent} % lost each way");
        Bench::head(&title, "sender", "goodput, Mbit/s");
        for contender in contenders(bench) {
            bench.row(
                &contender.to_string(),
                path(20.0, 100, f64::from(percent) / 100.0),
                &[contender],
                3,
            );
        }
    }
}

fn queue(bench: &Bench<'_>) {
    for buffer in [50, 100] {
        Bench::head(
            &format!("10 Mbit/s, 50 ms, {buffer} ms of buffer, alone"),
            "sender",
            "goodput, Mbit/s",
        );
        for contender in contenders(bench) {
            bench.row(
                &contender.to_string(),
                path(10.0, buffer, 0.0),
                &[contender],
                5,
            );
        }
    }
}

fn fair(bench: &Bench<'_>) {
    for buffer in [50, 100] {
        let title =
            format!("10 Mbit/s, 50 ms, {buffer} ms of buffer, beside one flow of TCP with cubic");
        Bench::head(&title, "sender", "cubic's goodput, and its own, Mbit/s");
        for contender in contenders(bench) {
            let bench = Bench {
                seconds: 3 * bench.seconds,
                ..*bench
            };
            bench.row(
                &contender.to_string(),
                path(10.0, buffer, 0.0),
                &[Contender::Http("cubic"), contender],
                10,
            );
        }
    }
}

/// What order and repetition do.
fn odd(bench: &Bench<'_>) {
    let title = "20 Mbit/s, 50 ms, 100 ms of buffer; 1 % lost, 2 % 10 ms late, 1 % twice";
    Bench::head(title, "sender", "goodput, Mbit/s");
    for contender in contenders(bench) {
        let [there, back] = path(20.0, 100, 0.01);
        let there = Shape {
            reorder: 0.02,
            reorder_by: Duration::from_millis(10),
            duplicate: 0.01,
            ..there
        };
        bench.row(&contender.to_string(), [there, back], &[contender], 3);
    }
}

/// Goodput over three hops as a share of one hop's: with one connection through all three, and with
/// relays that recode between them.
fn chain(bench: &Bench<'_>) {
    println!("\n{HOPS} hops, each 20 Mbit/s, 50 ms, 100 ms of buffer, 5 % lost each way\n");
    println!("| sender | way | goodput, Mbit/s | of its single hop, % | bottlenecks, Mbit/s |");
    println!("|---|---|---:|---:|---:|");
    let tcp = ["cubic", "bbr"]
        .into_iter()
        .filter(|name| flow::tcp_has(name))
        .map(Contender::Http);
    let with = Congestion::default();
    let plain = tcp
        .chain([Contender::Quic(with)])
        .map(|contender| (contender, false));
    let coded =
        [Contender::Streams(with), Contender::Datagrams(with)].map(|contender| (contender, true));
    for (contender, relays) in plain
        .chain(coded)
        .filter(|(contender, _)| contender.to_string().contains(bench.only))
    {
        let single = bench.chained(contender, "a single hop", &Way::across(bench.ends, 1), None);
        bench.chained(
            contender,
            "three hops, packets forwarded",
            &Way::across(bench.ends, HOPS),
            single,
        );
        if relays {
            bench.chained(
                contender,
                "three hops, two relays",
                &Way::relayed(bench.ends, HOPS),
                single,
            );
        }
    }
}

impl Bench<'_> {
    /// Runs one over the chain, prints a row, and answers its goodput.
    fn chained(
        &self,
        contender: Contender,
        what: &str,
        way: &Way<'_>,
        single: Option<f64>,
    ) -> Option<f64> {
        let boxes: Vec<Box> = (0..HOPS)
            .map(|hop| Box::start(hop, path(20.0, 100, 0.05), 1 + u64::from(hop)))
            .collect();
        let running = Running::start(contender, way, self.media, 0);
        std::thread::sleep(Duration::from_secs(5));
        boxes.iter().for_each(|hop| drop(hop.counts()));
        let (from, seconds) = (Instant::now(), 2 * self.seconds);
        std::thread::sleep(Duration::from_secs(seconds));
        let sent: Vec<f64> = boxes
            .iter()
            .map(|hop| hop.counts().bytes as f64 * 8e-6 / seconds as f64)
            .collect();
        let goodput = running.megabits_since(from);
        drop(running);
        std::thread::sleep(Duration::from_millis(300));
        let text = |number: Option<f64>, digits: usize| {
            number.map_or_else(|| "–".to_owned(), |number| format!("{number:.digits$}"))
        };
        let share = goodput
            .zip(single)
            .map(|(goodput, single)| 100.0 * goodput / single);
        let sent: Vec<String> = sent.iter().map(|sent| format!("{sent:.2}")).collect();
        println!(
            "| {contender} | {what} | {} | {} | {} |",
            text(goodput, 2),
            text(share, 0),
            sent.join(", ")
        );
        goodput
    }
}
