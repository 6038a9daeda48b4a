//! Pages in Chromium: peers of a running server, and the pages of server and gateway. Without
//! Chromium the tests say so and pass, or fail with `NCTEST_REQUIRE_ALL=1`.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Html;
use axum::routing::{get, post};
use bytes::Bytes;
use nctest::chromium;
use nctest::process::Process;
use nctest::program::Program;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

mod operator;
mod player;
#[path = "../program/mod.rs"]
mod program;
use program::program;

/// Far longer than a page takes, also while Chromium starts on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a page reports: the path that it posts to, and the body.
type Reports = mpsc::Receiver<(String, Bytes)>;

/// The server of the page itself.
struct Site {
    address: SocketAddr,
    reports: Reports,
}

impl Site {
    async fn open() -> Self {
        let (report, reports) = mpsc::channel(16);
        let take = |Path(what): Path<String>,
                    State(report): State<mpsc::Sender<_>>,
                    body: Bytes| async move {
            let _ = report.send((what, body)).await;
        };
        let routes = Router::new()
            .route("/", get(|| async { Html(include_str!("page.html")) }))
            .route("/{what}", post(take))
            .with_state(report);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { address, reports }
    }

    async fn next(&mut self) -> (String, Bytes) {
        tokio::time::timeout(PATIENCE, self.reports.recv())
            .await
            .expect("the page reports in time")
            .expect("the site runs")
    }
}

/// A server for pages of this site.
struct Served {
    _program: Program,
    address: SocketAddr,
    hashes: String,
    _directories: (TempDir, TempDir),
}

fn serve(site: SocketAddr, film: &[u8], small: &[u8], list: &[u8]) -> Served {
    let (media, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for (name, bytes) in [("film.ts", film), ("small.bin", small), ("list.m3u8", list)] {
        std::fs::write(media.path().join(name), bytes).unwrap();
    }
    let mut command = nctest::program::serve(&program("ncserverd"), "127.0.0.1:0", state.path());
    command.args(["--directory", &format!("live={}", media.path().display())]);
    for setting in [
        &format!("web.origins=http://{site}")[..],
        "telemetry.log_format=json",
        "stream.live.block_bytes=1088",
        "stream.live.generations_min=1",
        "ring.bytes=16MiB",
        "device.cpu_threads=1",
    ] {
        command.args(["--set", setting]);
    }
    let program = Program::start(&mut command);
    let [present, next] = program.says(["\"present\":\"", "\"next\":\""]);
    let [address] = program.says(["ncpeer gateway ncs://"]);
    let hash = |text: String| {
        text.trim_end_matches(['"', ',', '}'])
            .replace("sha256:", "")
    };
    Served {
        _program: program,
        address: address.parse().unwrap(),
        hashes: format!("{},{}", hash(present), hash(next)),
        _directories: (media, state),
    }
}

/// A browser with this page. `None` if there is no Chromium.
fn browse(url: &str) -> Option<(Process, TempDir)> {
    if !chromium::is_there() {
        return None;
    }
    let profile = TempDir::new().unwrap();
    let mut chromium = Command::new("chromium");
    chromium
        .args(chromium::OPTIONS)
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Some((Process::start(&mut chromium), profile))
}

fn bytes(number: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new_keyed(&[number; 32])
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_a_peer() {
    let mut site = Site::open().await;
    let (film, small) = (bytes(1, 100_000), bytes(2, 4000));
    let list = format!("#EXTM3U\n{}\n#EXT-X-ENDLIST\n", "#".repeat(50_000));
    let served = serve(site.address, &film, &small, list.as_bytes());
    let url = |host: &str| {
        format!(
            "http://{host}:{}/?server=https://{}/ncs&hashes={}",
            site.address.port(),
            served.address,
            served.hashes
        )
    };
    let (own, other) = (url("127.0.0.1"), url("localhost"));
    let Some(_browser) = browse(&own) else { return };
    for (name, expected) in [
        ("small", &small[..]),
        ("list", list.as_bytes()),
        ("film", &film),
    ] {
        let (what, got) = site.next().await;
        assert!(
            what == name && got == expected,
            "{what} in place of {name}: {}",
            String::from_utf8_lossy(&got[..got.len().min(200)])
        );
    }
    let (what, said) = site.next().await;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert_eq!(
        (&what[..], &said[..]),
        ("end", "4e4301 control frame of unknown type 0x28")
    );

    let _other = browse(&other).expect("it was there before");
    let (what, said) = site.next().await;
    assert_eq!(what, "failed", "{}", String::from_utf8_lossy(&said));
}
