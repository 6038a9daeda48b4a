//! Measures a live stream and its viewers, with and without each other's help: the server's
//! traffic, and the segments played in time.
//!
//! `cargo bench --bench sharing -- [--viewers N] [--seconds N] [--bitrate MEGABITS] [--upload
//! TIMES]`. Needs root and iproute2. `ncserverd serve` and each viewer have a network namespace,
//! around a bridge. A viewer is `ncpeer gateway --share` and a player that requests the playlist
//! and the segments in time and compares every byte. The traffic that leaves a viewer's namespace,
//! headers and acknowledgements included, is limited to the bitrate times `--upload`, plus a fifth
//! for these; the server is not limited. There is no delay, and no loss but that of a full queue at
//! a viewer's limit. The viewers begin one after the other, and counting starts after a while.
//!
//! Everything ends with the program, and nothing leaves the namespaces.

mod net;
mod player;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nctest::http::get;
use nctest::live::{Feeder, SEGMENT, segment_bytes};
use nctest::netns::within;
use nctest::process::Process;
use nctest::program::{beside as program, cpu_seconds};
use net::{DEVICE, Network, SERVER, address};
use player::{GATEWAY, METRICS, Said, metric};

/// Upload of a viewer per byte of payload: a coefficient vector of 64 bytes with each block of
/// 1088, headers from QUIC down to Ethernet, acknowledgements and requests.
const OVERHEAD: f64 = 1.2;
/// Between the begin of one viewer and of the next.
const STAGGER: Duration = Duration::from_millis(60);
/// After the last has begun.
const WARM_UP: Duration = Duration::from_secs(15);
const SERVER_METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9443);
/// Segments that the playlist names.
const WINDOW: u64 = 6;

fn main() {
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["inside", ref rest @ ..] => inside(rest),
        ["play", length] => player::play(length.parse().expect("bytes of a segment")),
        _ => {
            let Options {
                viewers,
                upload,
                bitrate,
                ..
            } = Options::parse(&words);
            let network = match Network::new(viewers, bits(bitrate * upload * OVERHEAD)) {
                Ok(network) => network,
                Err(reason) => {
                    println!("SKIPPED: no network namespaces: {reason}");
                    return;
                }
            };
            let program = env::current_exe().expect("this program has a path");
            let mut inside = within(&network.server);
            inside
                .arg(program)
                .args(["inside", &network.viewers.join(",")])
                .args(words);
            let status = inside.status().expect("ip runs");
            assert!(status.success(), "the measurements ended with {status}");
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
struct Options {
    viewers: usize,
    seconds: u64,
    /// In megabits a second.
    bitrate: f64,
    /// What a viewer can send, in bitrates.
    upload: f64,
}

impl Options {
    fn parse(words: &[&str]) -> Self {
        let mut options = Self {
            viewers: 50,
            seconds: 40,
            bitrate: 0.8,
            upload: 1.0,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words
                .next()
                .unwrap_or_else(|| panic!("{word} takes a number"));
            let number: f64 = value
                .parse()
                .ok()
                .filter(|number: &f64| *number > 0.0)
                .expect("a number above zero");
            match *word {
                "--viewers" => {
                    options.viewers = value.parse().expect("--viewers takes a whole number")
                }
                "--seconds" => {
                    options.seconds = value.parse().expect("--seconds takes a whole number")
                }
                "--bitrate" => options.bitrate = number,
                "--upload" => options.upload = number,
                other => panic!(
                    "`{other}` is no option; there are --viewers, --seconds, --bitrate and --upload"
                ),
            }
        }
        options
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "some megabits, never negative"
)]
fn bits(megabits: f64) -> u64 {
    (megabits * 1e6) as u64
}

/// What the server's namespace runs.
fn inside(words: &[&str]) {
    let [viewers, rest @ ..] = words else {
        panic!("the names of the namespaces")
    };
    let (viewers, options): (Vec<&str>, Options) =
        (viewers.split(',').collect(), Options::parse(rest));
    let Options {
        seconds,
        bitrate,
        upload,
        ..
    } = options;
    let limit = bitrate * upload * OVERHEAD;
    println!(
        "{} viewers of {bitrate} Mbit/s in segments of {} s, each of which can send {limit:.2} \
         Mbit/s; {seconds} s\n",
        viewers.len(),
        SEGMENT.as_secs(),
    );
    let alone = Swarm::start(&viewers, options, "off").measure(seconds);
    let helped = Swarm::start(&viewers, options, "all").measure(seconds);
    println!("| | peers = \"off\" | peers = \"all\" |\n|---|---:|---:|");
    let row = |what: &str, value: fn(&Figures) -> String| {
        println!("| {what} | {} | {} |", value(&alone), value(&helped))
    };
    row("server sends, Mbit/s, all headers included", |figures| {
        format!("{:.2}", figures.wire)
    });
    row("of it payload of blocks, Mbit/s", |figures| {
        format!("{:.2}", figures.payload)
    });
    row(
        "viewers get from the server, Mbit/s of payload",
        |figures| format!("{:.2}", figures.from_server),
    );
    row(
        "viewers get from each other, Mbit/s of payload",
        |figures| format!("{:.2}", figures.from_peers),
    );
    row("peers named to others, a second", |figures| {
        format!("{:.1}", figures.named)
    });
    row("segments played", |figures| figures.played.to_string());
    row("of them late", |figures| figures.late.to_string());
    row("the latest, ms", |figures| {
        figures.latest.as_millis().to_string()
    });
    row("segments missed", |figures| figures.missed.to_string());
    row("segments with wrong bytes", |figures| {
        figures.wrong.to_string()
    });
    row("viewers that played", |figures| figures.viewers.to_string());
    row("processor time of the server, s", |figures| {
        format!("{:.1}", figures.server_time)
    });
    row("processor time of all gateways, s", |figures| {
        format!("{:.1}", figures.viewers_time)
    });
    let share = |part: f64, whole: f64| 100.0 * part / whole;
    println!(
        "\nthe server sends {:.1} % of what it sends to viewers that do not help each other ({:.1} \
         % of the payload)",
        share(helped.wire, alone.wire),
        share(helped.payload, alone.payload)
    );
}

/// What came out of it.
#[derive(Debug, Default)]
struct Figures {
    wire: f64,
    payload: f64,
    from_server: f64,
    from_peers: f64,
    named: f64,
    played: usize,
    late: usize,
    latest: Duration,
    missed: usize,
    wrong: usize,
    viewers: usize,
    server_time: f64,
    viewers_time: f64,
}

/// The server and its viewers, until it is dropped.
struct Swarm {
    viewers: Vec<Viewer>,
    server: Process,
    _feeder: Feeder,
    _files: tempfile::TempDir,
}

/// Counters at one time.
struct Counts {
    wire: f64,
    payload: f64,
    named: f64,
    received: Vec<(f64, f64)>,
    server_time: f64,
    viewers_time: f64,
}

impl Swarm {
    fn start(namespaces: &[&str], options: Options, policy: &str) -> Self {
        let files = tempfile::tempdir().expect("a temporary directory");
        let bitrate = bits(options.bitrate);
        let (feeder, media) = Feeder::start(files.path(), bitrate, WINDOW);
        let (server, fingerprint) = serve(files.path(), &media, policy);
        let url = format!("ncs://{SERVER}:4443#{fingerprint}");
        let mut viewers = Vec::new();
        for (number, namespace) in namespaces.iter().enumerate() {
            viewers.push(Viewer::start(
                namespace,
                number,
                &url,
                segment_bytes(bitrate),
            ));
            std::thread::sleep(STAGGER);
        }
        Self {
            viewers,
            server,
            _feeder: feeder,
            _files: files,
        }
    }

    fn measure(mut self, seconds: u64) -> Figures {
        std::thread::sleep(WARM_UP);
        let before = self.counts();
        let from = Instant::now();
        std::thread::sleep(Duration::from_secs(seconds));
        let (after, time) = (self.counts(), from.elapsed());
        let megabits = |bytes: f64| bytes * 8e-6 / time.as_secs_f64();
        let came = |of: fn(&(f64, f64)) -> f64| {
            after.received.iter().map(of).sum::<f64>() - before.received.iter().map(of).sum::<f64>()
        };
        let mut figures = Figures {
            wire: megabits(after.wire - before.wire),
            payload: megabits(after.payload - before.payload),
            from_server: megabits(came(|(server, _)| *server)),
            from_peers: megabits(came(|(_, peers)| *peers)),
            named: (after.named - before.named) / time.as_secs_f64(),
            server_time: after.server_time - before.server_time,
            viewers_time: after.viewers_time - before.viewers_time,
            ..Figures::default()
        };
        for viewer in &self.viewers {
            let said = viewer.said.lock().expect("nobody panics with it");
            let measured = said
                .iter()
                .filter(|(at, _)| (from..=from + time).contains(at))
                .map(|(_, said)| *said);
            let before = figures.played;
            for said in measured {
                match said {
                    Said::Played { late } => {
                        figures.played += 1;
                        figures.late += usize::from(late > Duration::ZERO);
                        figures.latest = figures.latest.max(late);
                    }
                    Said::Missed => figures.missed += 1,
                    Said::Wrong => figures.wrong += 1,
                    Said::Received { .. } => {}
                }
            }
            figures.viewers += usize::from(figures.played > before);
        }
        figures
    }

    fn counts(&mut self) -> Counts {
        let metrics = get(SERVER_METRICS, "/metrics").expect("the server runs");
        let sent = fs::read_to_string(format!("/sys/class/net/{DEVICE}/statistics/tx_bytes"))
            .expect("the device counts");
        Counts {
            wire: sent.trim().parse().expect("a number"),
            payload: metric(&metrics, "ncserverd_session_sent_bytes_total"),
            named: metric(&metrics, "ncserverd_directory_introductions_total"),
            server_time: cpu_seconds(self.server.0.id()),
            viewers_time: self
                .viewers
                .iter()
                .map(|viewer| cpu_seconds(viewer.gateway.0.id()))
                .sum(),
            received: self.viewers.iter_mut().map(Viewer::received).collect(),
        }
    }
}

/// A gateway and its player.
struct Viewer {
    gateway: Process,
    player: Process,
    said: Arc<Mutex<Vec<(Instant, Said)>>>,
}

impl Viewer {
    fn start(namespace: &str, number: usize, url: &str, length: usize) -> Self {
        let mut gateway = within(namespace);
        let (listen, metrics, share) = (
            GATEWAY.to_string(),
            METRICS.to_string(),
            format!("{}:4444", address(number)),
        );
        gateway
            .arg(program("ncpeer"))
            .args(["gateway", url, "--listen", &listen]);
        gateway.args([
            "--share",
            &share,
            "--share-bytes",
            "32MiB",
            "--private-peers",
            "--metrics",
            &metrics,
        ]);
        let gateway = Process::start(
            gateway
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        );
        let mut player = within(namespace);
        player
            .arg(env::current_exe().expect("this program has a path"))
            .args(["play", &length.to_string()]);
        let mut player = Process::start(player.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let said = Arc::new(Mutex::new(Vec::new()));
        let output = player
            .0
            .stdout
            .take()
            .expect("its output goes to this program");
        let log = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let said = Said::parse(&line).unwrap_or_else(|| panic!("a player says `{line}`"));
                log.lock()
                    .expect("nobody panics with it")
                    .push((Instant::now(), said));
            }
        });
        Self {
            gateway,
            player,
            said,
        }
    }

    /// What its gateway has had from the server and from peers.
    fn received(&mut self) -> (f64, f64) {
        let asked = Instant::now();
        writeln!(
            self.player.0.stdin.as_ref().expect("as asked for"),
            "how much?"
        )
        .expect("the player runs");
        loop {
            let said = self.said.lock().expect("nobody panics with it");
            let newest = said.iter().rev().take_while(|(at, _)| *at >= asked);
            let received = newest.filter_map(|(_, said)| match said {
                Said::Received { server, peers } => Some((*server, *peers)),
                _ => None,
            });
            if let Some(received) = received.last() {
                return received;
            }
            drop(said);
            assert!(
                asked.elapsed() < Duration::from_secs(30),
                "the player does not answer"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A server of the stream, and its certificate's fingerprint.
fn serve(files: &Path, media: &Path, policy: &str) -> (Process, String) {
    let place = |name: &str| files.join(name).display().to_string();
    let configuration = format!(
        "[endpoint]\nlisten = [\"{SERVER}:4443\"]\n[admission]\ninsecure = true\n[telemetry]\n\
         listen = \"{SERVER_METRICS}\"\n\
         [tls]\ndirectory = \"{}\"\n[stream.live]\ndirectory = \"{}\"\nsigning_key = \"{}\"\n\
         peers = \"{policy}\"\nblock_bytes = 1088\nn_max = 64\ngenerations_min = 1\n",
        place("tls"),
        media.display(),
        place("live.pem"),
    );
    let path = files.join("ncserverd.toml");
    fs::write(&path, configuration).expect("a configuration");
    let mut server = Command::new(program("ncserverd"));
    server
        .arg("--config")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut server = Process::start(&mut server);
    let mut lines = BufReader::new(server.errors())
        .lines()
        .map_while(Result::ok);
    let mut heard = Vec::new();
    let fingerprint = lines.find_map(|line| {
        let said = line
            .split_once("--fingerprint ")
            .and_then(|(_, after)| after.split_whitespace().next().map(str::to_owned));
        heard.push(line);
        said
    });
    // Somebody must read on, or the server waits for it.
    std::thread::spawn(move || lines.for_each(drop));
    (
        server,
        fingerprint.unwrap_or_else(|| panic!("the server is ready; it said {heard:#?}")),
    )
}
