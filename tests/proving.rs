//! A stream over the prime field through real programs: a server, a polluting relay, an honest
//! relay of both, and a viewer.

mod program;

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use ncserverd::integrity::signing::SigningKey;
use ncserverd::object::{Codec, HashGroup};
use ncserverd::wire::CloseCode;
use nctest::program::{PATIENCE, Program, metric, serve};
use nctest::script::{Fault, Script, bytes};
use program::program;
use tempfile::TempDir;

const SETTINGS: [&str; 9] = [
    "stream.live.codec=rlnc-q",
    "stream.live.n_max=16",
    "stream.live.block_bytes=1024",
    "telemetry.log_format=json",
    "ring.bytes=16MiB",
    "encoder.batch_blocks_max=256",
    "device.cpu_threads=2",
    "ingest.settle=20ms",
    "ingest.rescan=50ms",
];

/// Waits until a series has the right value.
async fn until(at: SocketAddr, name: &str, is_right: impl Fn(f64) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !metric(at, name).is_some_and(&is_right) {
        assert!(Instant::now() < end, "{name} is {:?}", metric(at, name));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn metrics_of(program: &Program) -> SocketAddr {
    let [metrics] = program.says(["metrics on http://"]);
    metrics_at(&metrics)
}

/// The address in a URL of metrics without its scheme.
fn metrics_at(url: &str) -> SocketAddr {
    url.strip_suffix("/metrics")
        .expect("a URL")
        .parse()
        .unwrap()
}

/// The word that follows a text of the log.
fn follows<'a>(log: &'a str, text: &str) -> &'a str {
    let (_, rest) = log
        .split_once(text)
        .unwrap_or_else(|| panic!("no `{text}` in {log}"));
    rest.split_whitespace().next().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_polluting_relay_is_caught_at_the_first_honest_hop() {
    let (media, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let all = bytes(1, 150_001);
    std::fs::write(media.path().join("a.ts"), &all).unwrap();
    let key = state.path().join("key.pem");
    let mut command = serve(&program("ncserverd"), "127.0.0.1:0", state.path());
    command.args(["--directory", &format!("live={}", media.path().display())]);
    command.args([
        "--set",
        &format!("stream.live.signing_key={}", key.display()),
    ]);
    for setting in SETTINGS {
        command.args(["--set", setting]);
    }
    let server = Program::start(&mut command);
    let server_metrics = metrics_of(&server);
    let [address, fingerprint] = server.says(["ncpeer gateway ncs://", "--fingerprint "]);
    let server_url = format!("ncs://{address}#{fingerprint}");

    // It passes on what the stream's key has signed, including hashes, and sends wrong blocks.
    let signing = std::sync::Arc::new(SigningKey::from_pem(&std::fs::read(&key).unwrap()).unwrap());
    let liar = Script::start("127.0.0.1:0").await;
    liar.code_with(Codec::RlncQ {
        group: HashGroup::P1024,
    });
    liar.sign(&signing, 1);
    liar.publish("/live/a.ts", &all, all.len());
    liar.spoil(Fault::Corrupt, u32::MAX);
    let at = liar.server();
    let liar_url = format!("ncs://{}:{}#{}", at.host, at.port, at.fingerprint.unwrap());

    let mut command = Command::new(program("ncpeer"));
    command.env_clear().args([
        "-v",
        "relay",
        &server_url,
        "--source",
        &liar_url,
        "--key",
        &signing.public().to_string(),
    ]);
    command.args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    let relay = Program::start(&mut command);

    // Both are used from the first block on.
    let liar_address = format!("{}:{}", at.host, at.port);
    let (mut log, end) = (String::new(), Instant::now() + PATIENCE);
    let is_connected = |log: &str, to: &str| {
        log.lines()
            .any(|line| line.contains("connected") && line.contains(to))
    };
    while !(log.contains("relays at ")
        && is_connected(&log, &address)
        && is_connected(&log, &liar_address))
    {
        assert!(Instant::now() < end, "the relay connects to both:\n{log}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        log = log + &relay.said() + "\n";
    }
    let relay_url = follows(&log, "relays at ");
    let relay_metrics = metrics_at(follows(&log, "metrics on http://"));

    // Behind the relay there is nothing left to find.
    let out = state.path().join("out.ts");
    let mut command = Command::new(program("ncpeer"));
    command.env_clear().args([
        "fetch",
        relay_url,
        "/live/a.ts",
        "--key",
        &signing.public().to_string(),
    ]);
    let fetched = command.arg("-o").arg(&out).output().unwrap();
    let said = String::from_utf8_lossy(&fetched.stderr).into_owned();
    assert!(fetched.status.success(), "{said}");
    assert!(std::fs::read(&out).unwrap() == all, "the segment is right");
    assert!(!said.contains("wrong"), "{said}");

    until(
        relay_metrics,
        "ncserverd_peer_polluters_total",
        |polluters| polluters == 1.0,
    )
    .await;
    assert!(metric(relay_metrics, "ncserverd_peer_wrong_blocks_total") > Some(0.0));
    assert_eq!(
        metric(relay_metrics, "ncserverd_relay_unverified_blocks_total"),
        Some(0.0)
    );
    until(server_metrics, "ncserverd_session_blames_total", |blames| {
        blames >= 1.0
    })
    .await;
    let end = Instant::now() + PATIENCE;
    while liar.seen().closed != Some(CloseCode::Pollution.quic().into()) {
        assert!(Instant::now() < end, "{:?}", liar.seen());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(liar.seen().blamed.is_none() && liar.seen().connections == 1);
    // The server has hashed each block of the segment once.
    assert_eq!(
        metric(server_metrics, "ncserverd_store_homomorphic_hashes_total"),
        Some(147.0)
    );
}
