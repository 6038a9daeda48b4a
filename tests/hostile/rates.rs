//! The rate of an honest viewer during each attack. Nothing is checked here: `make bench-attacks`
//! prints a table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ncserverd::peer::Client;
use ncserverd::wire::message::Message;
use tokio::task::JoinHandle;

use crate::attacker::{Attacker, Window, get, request};
use crate::crowd::{SEGMENT_BYTES, Stage, encode, newest};
use crate::ground::{FILES, Ground, bytes, file};
use nctest::origin::{Fault, Origin};

/// How long the viewer is measured, without the attack and during it.
const WATCHED: Duration = Duration::from_secs(20);
/// After this time an object counts as failed.
const GIVEN_UP: Duration = Duration::from_secs(10);

/// What a viewer got in [`WATCHED`].
#[derive(Default)]
struct Got {
    objects: u32,
    bytes: usize,
    failed: u32,
    longest: Duration,
}

impl Got {
    /// Reads one object after the other, with the paths for their numbers.
    async fn of(client: &Client, paths: impl AsyncFn(u32) -> Option<String>) -> Self {
        let (mut got, begun) = (Self::default(), Instant::now());
        for number in 0.. {
            let asked = Instant::now();
            if asked - begun >= WATCHED {
                break;
            }
            let read = async {
                let path = paths(number).await?;
                client
                    .open(&path, None)
                    .await
                    .ok()?
                    .read_to_end()
                    .await
                    .ok()
            };
            match tokio::time::timeout(GIVEN_UP, read).await {
                Ok(Some(bytes)) => {
                    (got.objects, got.bytes) = (got.objects + 1, got.bytes + bytes.len())
                }
                _ => got.failed += 1,
            }
            got.longest = got.longest.max(asked.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        got
    }

    fn print(&self, attack: &str, when: &str) {
        let rate = self.bytes as f64 * 8e-6 / WATCHED.as_secs_f64();
        let (objects, failed, longest) = (self.objects, self.failed, self.longest.as_secs_f64());
        println!("| {attack} | {when} | {rate:.2} | {objects} | {failed} | {longest:.2} |");
    }
}

/// Whether a task is to continue.
#[derive(Clone, Default)]
struct Running(Arc<AtomicBool>);

impl Running {
    fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    async fn end(self, tasks: Vec<JoinHandle<()>>) {
        self.0.store(true, Ordering::Relaxed);
        for task in tasks {
            task.abort();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures, and takes three minutes"]
async fn rates_beside_attacks() {
    println!("| attack | | Mbit/s | objects | failed | longest, s |\n|---|---|---|---|---|---|");
    leases().await;
    names().await;
    fetches().await;
    sizes().await;
}

/// The path of a file; numbers repeat the files in turn.
fn any_file(number: u32) -> String {
    file(u8::try_from(number % u32::from(FILES)).expect("a byte"))
}

/// Two connections request every file without credit, with room for a third of the files.
async fn leases() {
    let ground = Ground::with(&["ingest.segment_max_bytes=1MiB", "store.bytes=4MiB"]).await;
    let client = ground.client().await;
    let of_files = async |number: u32| Some(any_file(number));
    Got::of(&client, of_files).await.print("leases", "alone");
    let mut attackers = [
        Attacker::greeted(&ground).await,
        Attacker::greeted(&ground).await,
    ];
    for attacker in &mut attackers {
        for number in 0..FILES {
            if let Ok(meta) = attacker.get(&file(number)).await {
                attacker
                    .say(&Message::Request(request(number.into(), meta.id, 0, 0)))
                    .await;
            }
        }
    }
    Got::of(&client, of_files).await.print("leases", "attacked");
}

/// One address requests a playlist under more and more names.
async fn names() {
    let origin = Arc::new(Origin::start().await);
    let encoder = encode(Arc::clone(&origin));
    let stage = Stage::new(&origin);
    let client = stage.client().await;
    let of_live = async |_| newest(&client).await;
    Got::of(&client, of_live)
        .await
        .print("names of a playlist", "alone");
    let running = Running::default();
    let mut tasks = vec![encoder];
    for part in 0..3 {
        let (mut attacker, running) = (stage.attacker().await, running.clone());
        let connection = attacker.connection.clone();
        tasks.push(tokio::spawn(async move {
            while connection.accept_uni().await.is_ok() {}
        }));
        tasks.push(tokio::spawn(async move {
            for name in (60 * part..60 * (part + 1)).cycle() {
                let _ = attacker.get(&format!("/live/live.m3u8?{name}")).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
                if running.is_over() {
                    return;
                }
            }
        }));
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    Got::of(&client, of_live)
        .await
        .print("names of a playlist", "attacked");
    running.end(tasks).await;
}

/// Forty connections request one segment under more and more names, from an origin that takes 100
/// ms.
async fn fetches() {
    let origin = Origin::start().await;
    let slow = || Fault::Slow(Duration::from_millis(100));
    origin.put_whatever_the_query("/base/seg0.ts", bytes(0, SEGMENT_BYTES), slow());
    for number in 0..1000_u32 {
        let own = [&number.to_le_bytes()[..], &bytes(1, SEGMENT_BYTES)].concat();
        origin.put_fault(&format!("/base/own{number}.ts"), own, slow());
    }
    let stage = Stage::new(&origin);
    let client = stage.client().await;
    Got::of(&client, async |number: u32| {
        Some(format!("/live/own{number}.ts"))
    })
    .await
    .print("fetches", "alone");
    let running = Running::default();
    let mut tasks = Vec::new();
    for attacker in 0..40 {
        let (mut connection, running) = (stage.attacker().await, running.clone());
        tasks.push(tokio::spawn(async move {
            let ask = |number: u64| get(number, &format!("/live/seg0.ts?{attacker}.{number}"));
            for number in 0..30 {
                connection.say(&ask(number)).await;
            }
            for number in 30.. {
                if connection.hear().await.is_err() || running.is_over() {
                    return;
                }
                connection.say(&ask(number)).await;
            }
        }));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    Got::of(&client, async |number: u32| {
        Some(format!("/live/own{}.ts", 500 + number))
    })
    .await
    .print("fetches", "attacked");
    running.end(tasks).await;
}

/// 180 peers request everything of a stream with blocks of 1,088 bytes and read nothing, next to a
/// viewer of blocks of 4,096.
async fn sizes() {
    let ground =
        Ground::with(&["stream.small.block_bytes=1088", "session.stall_timeout=50s"]).await;
    let client = ground.client().await;
    let of_files = async |number: u32| Some(any_file(number));
    Got::of(&client, of_files)
        .await
        .print("sizes of blocks", "alone");
    let mut attackers = Vec::new();
    for number in 0..180_u8 {
        let window = Window {
            stream: 1 << 10,
            streams: 512,
        };
        let mut attacker = Attacker::greeted_with(ground.address, &ground.trust, window).await;
        for alias in 0..4 {
            let path = file((number + alias) % FILES).replace("/live/", "/small/");
            let meta = attacker.get(&path).await.unwrap();
            attacker
                .say(&Message::Request(request(alias.into(), meta.id, 0, 2048)))
                .await;
        }
        attackers.push(attacker);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    Got::of(&client, of_files)
        .await
        .print("sizes of blocks", "attacked");
}
