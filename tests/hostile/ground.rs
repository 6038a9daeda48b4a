//! The programs under attack, their content, and an honest viewer.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use ncserverd::peer::{self, Client, TokenSource};
use ncserverd::tls::Trust;
use ncserverd::web::Binding;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::BINDING;
use crate::attacker::ORIGIN;
use crate::program::program;
pub(crate) use nctest::program::{PATIENCE, Program, metric};

/// The longest acceptable wait of an honest viewer for a file during an attack; stalls are at least
/// 10 s.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The number of files in the stream `live`, and their size.
pub(crate) const FILES: u8 = 24;
pub(crate) const FILE_BYTES: usize = 512 << 10;

/// A mutable object that is sent whole, and one that fits in its META.
pub(crate) const PLAYLIST: &str = "/live/list.m3u8";
pub(crate) const SMALL: &str = "/live/small.bin";

/// 40 Mbit/s: more than any video, less than a server's maximum.
pub(crate) const PACE: Duration = Duration::from_millis(100);

/// One attack at a time.
static TURN: Mutex<()> = Mutex::new(());

/// No other attack runs while this is held.
pub(crate) struct Turn {
    _guard: MutexGuard<'static, ()>,
}

/// Waits for the turn.
pub(crate) fn turn() -> Turn {
    Turn {
        _guard: TURN.lock().unwrap_or_else(PoisonError::into_inner),
    }
}

/// The attacked server, with a directory as its origin.
pub(crate) struct Ground {
    pub(crate) program: Program,
    pub(crate) address: SocketAddr,
    pub(crate) trust: Trust,
    metrics: SocketAddr,
    /// The token of honest viewers.
    token: Option<String>,
    /// Peak memory before the attack.
    before: ByteSize,
    _media: TempDir,
    _state: TempDir,
    _turn: Turn,
}

/// Bytes that differ with the number.
pub(crate) fn bytes(number: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new_keyed(&[number; 32])
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

pub(crate) fn file(number: u8) -> String {
    format!("/live/{number}.ts")
}

/// The command of a server on loopback with this directory for its state. Its allocator gives freed
/// memory back at once: what it would keep is not what peers have made the server keep.
pub(crate) fn serve(state: &Path) -> Command {
    let mut command = nctest::program::serve(&program("ncserverd"), "127.0.0.1:0", state);
    command.env("MIMALLOC_PURGE_DELAY", "0");
    if BINDING == Binding::Web {
        command.args(["--set", &format!("web.origins={ORIGIN}")]);
    }
    command
}

/// Writes what peers of the stream `live` may request.
pub(crate) fn make_media(directory: &Path) {
    for number in 0..FILES {
        std::fs::write(
            directory.join(format!("{number}.ts")),
            bytes(number, FILE_BYTES),
        )
        .expect("room for a file");
    }
    let padding = "#".repeat(100_000);
    std::fs::write(
        directory.join("list.m3u8"),
        format!("#EXTM3U\n{padding}\n#EXT-X-ENDLIST\n"),
    )
    .expect("room for a file");
    std::fs::write(directory.join("small.bin"), bytes(100, SMALL_BYTES)).expect("room for a file");
    std::fs::write(directory.join("large.ts"), bytes(LARGE_SEED, LARGE_BYTES))
        .expect("room for a file");
}

/// Several generations in one part.
pub(crate) const LARGE_BYTES: usize = 6 << 20;
pub(crate) const LARGE_SEED: u8 = 101;
pub(crate) const LARGE: &str = "/live/large.ts";

/// Small enough to fit in a META.
pub(crate) const SMALL_BYTES: usize = 4000;

impl Ground {
    pub(crate) async fn new() -> Self {
        Self::with(&[]).await
    }

    /// A server with these settings, `section.key=value`. A stream `small` with the same files is
    /// added if a setting refers to it.
    pub(crate) async fn with(settings: &[&str]) -> Self {
        Self::admitting(settings, None).await
    }

    /// The same, with a token for honest viewers. One of them reads everything before the attack.
    pub(crate) async fn admitting(settings: &[&str], token: Option<String>) -> Self {
        let turn = turn();
        let (media, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        make_media(media.path());
        let mut command = serve(state.path());
        command.args(["--directory", &format!("live={}", media.path().display())]);
        if settings
            .iter()
            .any(|setting| setting.starts_with("stream.small."))
        {
            command.args(["--directory", &format!("small={}", media.path().display())]);
        }
        // A ring that an attack can fill, no more threads than needed, and files that are available
        // at once.
        let usual = [
            "telemetry.log_format=json",
            "ring.bytes=16MiB",
            "device.cpu_threads=2",
            "ingest.settle=20ms",
            "ingest.rescan=50ms",
            // Attackers know how segments are cut.
            "stream.live.generations_min=1",
        ];
        for setting in usual.iter().chain(settings) {
            command.args(["--set", setting]);
        }
        let program = Program::start(&mut command);
        let [metrics] = program.says(["metrics on http://"]);
        let metrics = metrics
            .strip_suffix("/metrics")
            .expect("a URL")
            .parse()
            .unwrap();
        let [address, fingerprint] = program.says(["ncpeer gateway ncs://", "--fingerprint "]);
        let (address, trust) = (
            address.parse().unwrap(),
            Trust::Fingerprint(fingerprint.parse().unwrap()),
        );
        let mut ground = Self {
            program,
            address,
            trust,
            metrics,
            token,
            before: ByteSize(0),
            _media: media,
            _state: state,
            _turn: turn,
        };
        ground.warm_up().await;
        ground
    }

    /// Honest use, so that its memory is allocated before the attack.
    async fn warm_up(&mut self) {
        let client = self.client().await;
        for number in 0..FILES {
            assert!(read(&client, &file(number)).await.unwrap() == bytes(number, FILE_BYTES));
        }
        read(&client, PLAYLIST).await.unwrap();
        read(&client, SMALL).await.unwrap();
        self.before = self.program.peak().expect("the server runs");
    }

    pub(crate) fn source(&self) -> peer::Server {
        let Trust::Fingerprint(fingerprint) = self.trust else {
            unreachable!("it is pinned")
        };
        peer::Server {
            host: self.address.ip().to_string(),
            port: self.address.port(),
            fingerprint: Some(fingerprint),
        }
    }

    /// A client of this server.
    pub(crate) async fn client(&self) -> Client {
        let token = self
            .token
            .as_deref()
            .map(|token| TokenSource::fixed(token).unwrap());
        connect(peer::Config {
            token,
            ..peer::Config::new(self.source(), self.trust)
        })
        .await
    }

    /// Starts an honest viewer.
    pub(crate) async fn viewer(&self) -> Viewer {
        Viewer::start(self.client().await, PACE)
    }

    /// The growth of peak memory since the attack began.
    pub(crate) fn growth(&self) -> ByteSize {
        let now = self.program.peak().expect("the server runs");
        ByteSize(now.as_u64().saturating_sub(self.before.as_u64()))
    }

    pub(crate) fn assert_grown_less_than(&self, most: ByteSize) {
        let growth = self.growth();
        assert!(
            growth < most,
            "the server has grown by {growth}, and {most} was the most"
        );
    }

    /// The sum of a series over its labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        metric(self.metrics, name).unwrap_or_else(|| panic!("no series {name}"))
    }
}

/// A client without a cache, so that everything is fetched.
pub(crate) async fn connect(config: peer::Config) -> Client {
    Client::connect(peer::Config {
        cache: ByteSize(0),
        ..config
    })
    .await
    .unwrap()
}

pub(crate) async fn read(client: &Client, path: &str) -> Result<Vec<u8>, peer::Error> {
    tokio::time::timeout(PATIENCE, async {
        client.open(path, None).await?.read_to_end().await
    })
    .await
    .unwrap()
}

/// Reads one file after the other like a player, and checks them.
pub(crate) struct Viewer {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Seen>,
}

/// The results of a viewer.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) files: u32,
    pub(crate) longest: Duration,
}

impl Viewer {
    /// Starts reading; files begin at least `pace` apart.
    pub(crate) fn start(client: Client, pace: Duration) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut seen = Seen::default();
            loop {
                for number in 0..FILES {
                    let begun = Instant::now();
                    let got = read(&client, &file(number))
                        .await
                        .expect("the viewer gets its file");
                    assert!(
                        got == bytes(number, FILE_BYTES),
                        "the viewer got something else"
                    );
                    seen.files += 1;
                    seen.longest = seen.longest.max(begun.elapsed());
                    let rest = pace.saturating_sub(begun.elapsed());
                    if tokio::time::timeout(rest, &mut stopped).await.is_ok() {
                        return seen;
                    }
                }
            }
        });
        Self { stop, task }
    }

    /// Stops the viewer. It must have got all its files, each soon enough.
    pub(crate) async fn went_on(self) -> Seen {
        // It ends after its current file, so a viewer that hangs is detected.
        let _ = self.stop.send(());
        let seen = tokio::time::timeout(PATIENCE, self.task)
            .await
            .expect("the viewer does not hang")
            .expect("the viewer is content");
        assert!(
            seen.files > 0 && seen.longest < WAIT_MAX,
            "the viewer was harmed: {seen:?}"
        );
        seen
    }
}
