//! Attacks on an origin's streams by demand: many names of one playlist, and many segments at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::peer::{self, Client};
use ncserverd::tls::Trust;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::attacker::{Attacker, OPEN, get};
use crate::ground::{PATIENCE, Program, Turn, bytes, connect, read, serve, turn};
use nctest::origin::{Fault, Origin};

/// The longest acceptable wait of an honest viewer; stalls are at least 10 s.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Segments of the sliding playlist.
const WINDOW: usize = 3000;
pub(crate) const SEGMENT_BYTES: usize = 60_000;
const ATTACK: Duration = Duration::from_secs(5);

/// A server of an origin's stream `live`.
pub(crate) struct Stage {
    _program: Program,
    address: SocketAddr,
    trust: Trust,
    _state: TempDir,
    _turn: Turn,
}

impl Stage {
    pub(crate) fn new(origin: &Origin) -> Self {
        let turn = turn();
        let state = TempDir::new().unwrap();
        let mut command = serve(state.path());
        command.args([
            "--origin",
            &format!("live={}", origin.url("/base")),
            "--set",
            "device.cpu_threads=2",
        ]);
        let program = Program::start(&mut command);
        let [address, fingerprint] = program.says(["ncpeer gateway ncs://", "--fingerprint "]);
        let (address, trust) = (
            address.parse().unwrap(),
            Trust::Fingerprint(fingerprint.parse().unwrap()),
        );
        Self {
            _program: program,
            address,
            trust,
            _state: state,
            _turn: turn,
        }
    }

    pub(crate) async fn client(&self) -> Client {
        let Trust::Fingerprint(fingerprint) = self.trust else {
            unreachable!("it is pinned")
        };
        let (host, port) = (self.address.ip().to_string(), self.address.port());
        connect(peer::Config::new(
            peer::Server {
                host,
                port,
                fingerprint: Some(fingerprint),
            },
            self.trust,
        ))
        .await
    }

    pub(crate) async fn attacker(&self) -> Attacker {
        Attacker::greeted_with(self.address, &self.trust, OPEN).await
    }
}

/// Waiting times for answers.
#[derive(Debug, Default)]
struct Waits {
    answered: Vec<Duration>,
    refused: usize,
}

impl Waits {
    async fn read(&mut self, client: &Client, path: &str) -> Option<Vec<u8>> {
        let begun = Instant::now();
        let got = read(client, path).await;
        match &got {
            Ok(_) => self.answered.push(begun.elapsed()),
            Err(error) => {
                println!("{path}: {error}");
                self.refused += 1;
            }
        }
        got.ok()
    }

    /// Prints the results, and checks them.
    fn judge(mut self, what: &str) {
        self.answered.sort();
        let (middle, longest) = (
            self.answered[self.answered.len() / 2],
            self.answered[self.answered.len() - 1],
        );
        println!(
            "{what}: {} answered, {} refused, median {middle:?}, longest {longest:?}",
            self.answered.len(),
            self.refused
        );
        assert!(
            self.refused == 0 && longest < WAIT_MAX,
            "{what}: {} refused, longest {longest:?}",
            self.refused
        );
    }
}

fn playlist(first: usize) -> String {
    let mut text = format!("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:{first}\n");
    (first..first + WINDOW).for_each(|number| text += &format!("#EXTINF:1.0,\nseg{number}.ts\n"));
    text
}

/// Writes three segments and the playlist every second.
pub(crate) fn encode(origin: Arc<Origin>) -> JoinHandle<()> {
    tokio::spawn(async move {
        for first in 0.. {
            for number in first + WINDOW - 3..first + WINDOW {
                let bytes = [&number.to_le_bytes()[..], &bytes(1, SEGMENT_BYTES)].concat();
                origin.put(&format!("/base/seg{number}.ts"), bytes);
            }
            origin.put_whatever_the_query("/base/live.m3u8", playlist(first), Fault::None);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
}

/// The newest segment of the playlist, which is read each time.
pub(crate) async fn newest(client: &Client) -> Option<String> {
    let text = String::from_utf8(read(client, "/live/live.m3u8").await.ok()?).ok()?;
    Some(format!("/live/{}", text.lines().next_back()?))
}

/// One address requests a playlist under more and more names, for all of which the origin has the
/// same content.
#[tokio::test(flavor = "multi_thread")]
async fn many_names_of_a_playlist_hold_up_nobody() {
    let origin = Arc::new(Origin::start().await);
    let encoder = encode(Arc::clone(&origin));
    let stage = Stage::new(&origin);
    let client = stage.client().await;
    read(&client, "/live/live.m3u8").await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut attackers = Vec::new();
    for part in 0..3 {
        let (mut attacker, is_over) = (stage.attacker().await, Arc::clone(&is_over));
        let connection = attacker.connection.clone();
        tokio::spawn(async move { while connection.accept_uni().await.is_ok() {} });
        attackers.push(tokio::spawn(async move {
            for name in (60 * part..60 * (part + 1)).cycle() {
                let _ = attacker.get(&format!("/live/live.m3u8?{name}")).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        }));
    }
    // Until each name is known: the last of each attacker's follows its others.
    let begun = Instant::now();
    while [59, 119, 179]
        .iter()
        .any(|name| origin.asked(&format!("/base/live.m3u8?{name}")).is_empty())
    {
        assert!(
            begun.elapsed() < PATIENCE,
            "the origin is asked for each name"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (mut playlists, mut segments) = (Waits::default(), Waits::default());
    let begun = Instant::now();
    while begun.elapsed() < ATTACK {
        let text = playlists
            .read(&client, "/live/live.m3u8")
            .await
            .map(|text| String::from_utf8(text).unwrap());
        if let Some(last) = text.as_deref().and_then(|text| text.lines().next_back()) {
            segments.read(&client, &format!("/live/{last}")).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    is_over.store(true, Ordering::Relaxed);
    println!("{} requests at the origin", origin.asked_in_all());
    playlists.judge("playlists");
    segments.judge("newest segments");
    for attacker in attackers {
        tokio::time::timeout(PATIENCE, attacker)
            .await
            .expect("it is answered")
            .unwrap();
    }
    encoder.abort();
}

/// Forty connections of one address request one segment under more and more names, from a slow
/// origin.
#[tokio::test(flavor = "multi_thread")]
async fn many_fetches_hold_up_nobody() {
    let origin = Origin::start().await;
    let slow = || Fault::Slow(Duration::from_millis(100));
    origin.put_whatever_the_query("/base/seg0.ts", bytes(0, SEGMENT_BYTES), slow());
    let own: Vec<Bytes> = (1..50)
        .map(|number| bytes(number, SEGMENT_BYTES).into())
        .collect();
    for (number, bytes) in own.iter().enumerate() {
        origin.put_fault(&format!("/base/own{number}.ts"), bytes.clone(), slow());
    }
    let stage = Stage::new(&origin);
    let client = stage.client().await;
    read(&client, "/live/own0.ts").await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut attackers = Vec::new();
    for attacker in 0..40 {
        let (mut connection, is_over) = (stage.attacker().await, Arc::clone(&is_over));
        attackers.push(tokio::spawn(async move {
            let ask = |number: u64| get(number, &format!("/live/seg0.ts?{attacker}.{number}"));
            for number in 0..30 {
                connection.say(&ask(number)).await;
            }
            for number in 30.. {
                // One more for each answer.
                if connection.hear().await.is_err() || is_over.load(Ordering::Relaxed) {
                    return;
                }
                connection.say(&ask(number)).await;
            }
        }));
    }
    // Until the queue has reached its full length.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut segments = Waits::default();
    let begun = Instant::now();
    for (number, bytes) in own.iter().enumerate().skip(1) {
        if let Some(got) = segments
            .read(&client, &format!("/live/own{number}.ts"))
            .await
        {
            assert!(got == *bytes, "the viewer got something else");
        }
        if begun.elapsed() > ATTACK {
            break;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    println!("{} requests at the origin", origin.asked_in_all());
    let is_there = |attacker: u32| {
        !origin
            .asked(&format!("/base/seg0.ts?{attacker}.0"))
            .is_empty()
    };
    assert!(
        (0..40).any(is_there),
        "no name of an attacker has come as far as the origin"
    );
    segments.judge("segments");
    for attacker in attackers {
        tokio::time::timeout(PATIENCE, attacker)
            .await
            .expect("it is answered")
            .unwrap();
    }
}
