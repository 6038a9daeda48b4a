//! The viewer: Chromium with a page of ours, and what the page reports.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path as PathOf, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::media::{RENDITIONS, SOUND};

/// The first word of this program's own process at the far end of the path.
pub(crate) const WATCH: &str = "watch";

/// What plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Player {
    #[value(name = "hls.js")]
    Hls,
    #[value(name = "dash.js")]
    Dash,
    Shaka,
}

impl std::fmt::Display for Player {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value()
            .expect("all can be named")
            .get_name()
            .fmt(f)
    }
}

/// What the viewer saw; page.js says what each is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) startup: Option<f64>,
    pub(crate) stalls: f64,
    pub(crate) stalled: f64,
    pub(crate) heights: BTreeMap<u32, f64>,
    pub(crate) switches: u32,
    pub(crate) estimates: Vec<f64>,
    pub(crate) behind: Vec<f64>,
    pub(crate) errors: Vec<String>,
    /// What the path sent to the viewer in kbit/s, in the mean; the cell fills it in.
    #[serde(default)]
    pub(crate) sent: f64,
}

impl Report {
    /// Of a run without one.
    pub(crate) fn failed(error: String) -> Self {
        Self {
            startup: None,
            stalls: f64::NAN,
            stalled: f64::NAN,
            heights: BTreeMap::new(),
            switches: 0,
            estimates: Vec::new(),
            behind: Vec::new(),
            errors: vec![error],
            sent: f64::NAN,
        }
    }

    /// Mean of what was played in kbit/s, sound included; 0 where nothing was.
    pub(crate) fn bitrate(&self) -> f64 {
        let of = |height: u32| {
            RENDITIONS
                .iter()
                .find(|(_, _, of)| *of == height)
                .map_or(0, |(bits, ..)| bits + SOUND)
        };
        let played: f64 = self.heights.values().sum();
        let bits: f64 = self
            .heights
            .iter()
            .map(|(height, seconds)| f64::from(of(*height)) * seconds)
            .sum();
        if played > 0.0 {
            bits / played / 1e3
        } else {
            0.0
        }
    }

    /// Seconds from when a picture was recorded until it was shown, in the median of all seconds
    /// of the second half, when play has settled.
    pub(crate) fn behind(&self) -> f64 {
        let settled = &self.behind[self.behind.len() / 2..];
        crate::median(settled.iter().copied())
    }

    /// Seconds until the picture moved.
    pub(crate) fn start(&self) -> f64 {
        self.startup.unwrap_or(f64::INFINITY)
    }

    /// What the player took the path for, at the most, in kbit/s.
    pub(crate) fn estimate(&self) -> f64 {
        self.estimates.iter().copied().fold(f64::NAN, f64::max)
    }
}

/// Has a browser play for so long, and prints the report.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn watch(player: Player, url: &str, seconds: u64, playlist: &str, players: &Path) {
    let (report, mut reports) = mpsc::channel(1);
    let page = Router::new()
        .route(
            "/page.html",
            get(|| async { text("text/html", include_str!("page.html")) }),
        )
        .route(
            "/page.js",
            get(|| async { text("text/javascript", include_str!("page.js")) }),
        )
        .route(
            "/players/{*path}",
            get(script).with_state(players.to_owned()),
        )
        .route("/peer/{path}", get(peer))
        .route(
            "/result",
            post(
                |body: Bytes| async move { report.send(body).await.map_err(|_| StatusCode::GONE) },
            ),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let own = listener.local_addr().expect("it is bound");
    tokio::spawn(async move { axum::serve(listener, page).await });
    let profile = tempfile::tempdir().expect("a temporary directory");
    let mut chromium = Command::new("chromium");
    chromium.args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--mute-audio",
        "--no-first-run",
    ]);
    chromium.args([
        "--autoplay-policy=no-user-gesture-required",
        "--disable-background-networking",
        "--disable-component-update",
    ]);
    chromium.arg(format!("--user-data-dir={}", profile.path().display()));
    chromium.arg(format!(
        "http://{own}/page.html?player={player}&url={}&playlist={playlist}&seconds={seconds}",
        url.replace('#', "%23"),
    ));
    let mut chromium = chromium
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("Chromium is installed");
    let ended = tokio::time::timeout(Duration::from_secs(seconds) + PATIENCE, reports.recv()).await;
    let _ = chromium.kill();
    let _ = chromium.wait();
    match ended {
        Ok(Some(report)) => println!("{}", String::from_utf8_lossy(&report)),
        _ => panic!("the page reports nothing"),
    }
}

/// How much longer than it plays the page may take: a browser that starts on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn text(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// A file of a player's package.
async fn script(
    State(players): State<std::path::PathBuf>,
    PathOf(path): PathOf<String>,
) -> Response {
    match tokio::fs::read(players.join(path)).await {
        Ok(script) => ([(header::CONTENT_TYPE, "text/javascript")], script).into_response(),
        Err(_) => StatusCode::NOT_FOUND.into_response(),
    }
}

/// A file of the npm package of the peer, as `make embed-web` has built it.
async fn peer(PathOf(name): PathOf<String>) -> Response {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/web");
    let kind = match name.ends_with(".wasm") {
        true => "application/wasm",
        false => "text/javascript",
    };
    match tokio::fs::read(built.join(format!("peer-{name}.gz"))).await {
        Ok(file) => {
            let headers = [
                (header::CONTENT_TYPE, kind),
                (header::CONTENT_ENCODING, "gzip"),
            ];
            (headers, file).into_response()
        }
        Err(_) => StatusCode::NOT_FOUND.into_response(),
    }
}
