//! One run of one player over one path, in namespaces of its own.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ncserverd::lab::path::Shape;
use serde::{Deserialize, Serialize};

use crate::media;
use crate::net::{Box, Namespaces, address};
use crate::watch::{Player, Report, WATCH};
use nctest::netns::within;
use nctest::program::beside as program;

/// The first words of this program's own processes.
pub(crate) const RUN: &str = "run-cell";
pub(crate) const INSIDE: &str = "inside-cell";

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) player: Player,
    pub(crate) rate: Rate,
    /// In percent.
    pub(crate) loss: f64,
    pub(crate) way: Way,
    /// Whether it plays a live stream instead of the film.
    pub(crate) is_live: bool,
    pub(crate) run: u64,
    pub(crate) seconds: u64,
}

impl Cell {
    pub(crate) fn is(&self, player: Player, rate: Rate, loss: f64, way: Way) -> bool {
        (self.player, self.rate, self.loss, self.way) == (player, rate, loss, way)
    }
}

/// How media reach the player.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Way {
    /// From nginx over TCP.
    Direct,
    /// From `ncserverd` by `ncpeer gateway`.
    Gateway,
    /// From `ncserverd` by the peer in the page.
    Page,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "plain HTTP",
            Self::Gateway => "gateway",
            Self::Page => "page",
        })
    }
}

/// What the path carries, in Mbit/s.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Rate {
    Fixed(f64),
    /// The first third of the time [`FULL`], then half of it, then all of it.
    Varies,
}

const FULL: f64 = 1.4;

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "varies" {
            return Ok(Self::Varies);
        }
        let rate = text
            .parse()
            .ok()
            .filter(|rate| (0.05..=1000.0).contains(rate));
        rate.map(Self::Fixed)
            .ok_or_else(|| format!("`{text}` is neither `varies` nor a rate from 0.05 to 1000"))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(rate) => rate.fmt(f),
            Self::Varies => f.write_str("varies"),
        }
    }
}

impl Rate {
    /// Bits a second at the start, and what they become at which share of the time.
    fn course(self) -> (f64, &'static [(f64, f64)]) {
        match self {
            Self::Fixed(rate) => (rate * 1e6, &[]),
            Self::Varies => (
                FULL * 1e6,
                &[(1.0 / 3.0, FULL / 2.0 * 1e6), (2.0 / 3.0, FULL * 1e6)],
            ),
        }
    }
}

/// Makes the namespaces, has the cell run inside and passes on its report.
pub(crate) fn run(cell: &Cell, media: &Path, players: &Path) {
    let namespaces =
        Namespaces::new().unwrap_or_else(|reason| panic!("no network namespaces: {reason}"));
    let own = std::env::current_exe().expect("this program has a path");
    let mut inside = within(&namespaces.middle);
    inside
        .arg(own)
        .arg(INSIDE)
        .args([&namespaces.ends[0], &namespaces.ends[1]]);
    inside
        .arg(serde_json::to_string(cell).expect("plain values"))
        .arg(media)
        .arg(players);
    let status = inside.status().expect("ip runs");
    assert!(status.success(), "the cell ended with {status}");
}

/// The part in the middle namespace: the path, a server at its near end and the player at its far
/// end.
pub(crate) fn inside(near: &str, far: &str, cell: &Cell, media: &Path, players: &Path) {
    let files = tempfile::tempdir().expect("a temporary directory");
    let (bits_per_second, course) = cell.rate.course();
    let loss = cell.loss / 100.0;
    let down = Shape {
        bits_per_second,
        buffer: BUFFER,
        delay: DELAY,
        loss,
        ..Shape::default()
    };
    let path = Box::start(
        0,
        [
            down,
            Shape {
                delay: DELAY,
                loss,
                ..Shape::default()
            },
        ],
        cell.run,
    );
    let mut running = Running(Vec::new());
    let live = files.path().join("live");
    let media = if cell.is_live {
        running.start(&mut media::live(&live));
        let (playlist, until) = (live.join(media::LIVE), Instant::now() + PATIENCE);
        let segments =
            || fs::read_to_string(&playlist).map_or(0, |text| text.matches("#EXTINF").count());
        while segments() < media::LIVE_BEHIND {
            assert!(Instant::now() < until, "the encoder makes no segments");
            std::thread::sleep(Duration::from_millis(100));
        }
        &live
    } else {
        media
    };
    let url = match cell.way {
        Way::Direct => running.nginx(near, media, files.path()),
        Way::Gateway => running.gateway(near, far, media, files.path()),
        Way::Page => running.server_of_pages(near, media, files.path()),
    };
    let mut watch = within(far);
    watch
        .arg(std::env::current_exe().expect("this program has a path"))
        .arg(WATCH);
    watch
        .args([&cell.player.to_string(), &url, &cell.seconds.to_string()])
        .arg(if cell.is_live {
            media::LIVE
        } else {
            "master.m3u8"
        })
        .arg(players);
    let watcher = running.start(watch.stdout(Stdio::piped()));
    let began = Instant::now();
    let length = Duration::from_secs(cell.seconds);
    let mut course = course.iter().peekable();
    while running.0[watcher]
        .try_wait()
        .expect("a process of ours can be waited for")
        .is_none()
    {
        if let Some((_, bits)) =
            course.next_if(|(share, _)| began.elapsed() >= length.mul_f64(*share))
        {
            path.there
                .lock()
                .expect("nobody panics with it")
                .change(*bits, DELAY);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let sent = path.counts().bytes as f64 * 8e-3 / began.elapsed().as_secs_f64();
    let output = running
        .0
        .remove(watcher)
        .wait_with_output()
        .expect("it has ended");
    let mut report: Report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{}: {error}", output.status));
    report.sent = sent;
    println!("{}", serde_json::to_string(&report).expect("plain values"));
    drop(running);
    drop(path);
}

/// 25 ms each way, and a queue that holds a quarter of a second.
const DELAY: Duration = Duration::from_millis(25);
const BUFFER: Duration = Duration::from_millis(250);

/// Processes that end with the cell.
struct Running(Vec<Child>);

impl Running {
    fn start(&mut self, command: &mut Command) -> usize {
        self.0.push(
            command
                .spawn()
                .unwrap_or_else(|error| panic!("{command:?} does not start: {error}")),
        );
        self.0.len() - 1
    }

    /// Starts a program that prints its address on standard error, and returns what it prints after
    /// `mark`.
    fn start_and_hear(&mut self, mut command: Command, mark: &str) -> String {
        let number = self.start(command.stdout(Stdio::null()).stderr(Stdio::piped()));
        let errors = self.0[number].stderr.take().expect("as asked for");
        let (said, lines) = channel();
        // To the end, so that the program never waits for a reader.
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                let _ = said.send(line);
            }
        });
        let until = Instant::now() + PATIENCE;
        let mut heard = Vec::new();
        loop {
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(word) = line
                        .split_once(mark)
                        .and_then(|(_, after)| after.split_whitespace().next())
                    {
                        return word.to_owned();
                    }
                    heard.push(line);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{command:?} does not say `{mark}`; it said {heard:#?}")
                }
            }
        }
    }

    /// nginx with the film; returns where it is.
    fn nginx(&mut self, near: &str, media: &Path, files: &Path) -> String {
        let address = format!("{}:8080", address(0, false));
        let (files, media) = (files.display(), media.display());
        let configuration = format!(
            "daemon off; master_process off; pid {files}/nginx.pid; error_log {files}/error.log; \
             user root;\nevents {{}}\nhttp {{\n\
             access_log off; client_body_temp_path {files}/body; proxy_temp_path {files}/proxy; \
             fastcgi_temp_path {files}/fastcgi;\n\
             uwsgi_temp_path {files}/uwsgi; scgi_temp_path {files}/scgi; sendfile on; tcp_nodelay \
             on;\n\
             types {{ application/vnd.apple.mpegurl m3u8; application/dash+xml mpd; video/mp4 mp4 \
             m4s; }}\n\
             server {{ listen {address}; root {media}; add_header Access-Control-Allow-Origin *; \
             }} }}\n"
        );
        let file = format!("{files}/nginx.conf");
        fs::write(&file, configuration).expect("a configuration");
        self.start(
            within(near)
                .args(["nginx", "-p", &files.to_string(), "-c", &file])
                .stderr(Stdio::null()),
        );
        // It writes this when it listens.
        let (pid, until) = (format!("{files}/nginx.pid"), Instant::now() + PATIENCE);
        while !Path::new(&pid).exists() {
            assert!(Instant::now() < until, "nginx does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        format!("http://{address}/")
    }

    /// A server with the film and its defaults, for pages too; returns what it says after `mark`.
    fn server(&mut self, near: &str, media: &Path, files: &Path, mark: &str) -> String {
        let configuration = format!(
            "[endpoint]\nlisten = [\"{}\"]\n[admission]\ninsecure = true\n[tls]\n\
             directory = \"{}\"\n[web]\norigins = [\"*\"]\n[stream.film]\ndirectory = \"{}\"\n",
            server_address(),
            files.join("tls").display(),
            media.display(),
        );
        let path = files.join("ncserverd.toml");
        fs::write(&path, configuration).expect("a configuration");
        let mut serve = within(near);
        serve.arg(program("ncserverd")).arg("--config").arg(path);
        self.start_and_hear(serve, mark)
    }

    /// A server and a gateway to it, both with their defaults; returns the gateway's address.
    fn gateway(&mut self, near: &str, far: &str, media: &Path, files: &Path) -> String {
        let fingerprint = self.server(near, media, files, "--fingerprint ");
        let mut gateway = within(far);
        gateway.arg(program("ncpeer")).args([
            "gateway",
            &format!("ncs://{}#{fingerprint}", server_address()),
        ]);
        gateway.args(["--listen", "127.0.0.1:8090"]);
        format!("{}film/", self.start_and_hear(gateway, " is served at "))
    }

    /// A server with its defaults; returns its address and the hash of the certificate that it
    /// shows to pages.
    fn server_of_pages(&mut self, near: &str, media: &Path, files: &Path) -> String {
        // The log is JSON where no terminal reads it.
        let said = self.server(near, media, files, "\"present\":\"");
        let hash = said.split('"').next().unwrap_or_default();
        format!("ncs://{}/film/#{hash}", server_address())
    }
}

/// Where a server listens.
fn server_address() -> String {
    format!("{}:4443", address(0, false))
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in self.0.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How long a program may take until it can be used.
const PATIENCE: Duration = Duration::from_secs(30);
