//! Viewers of different servers that serve each other.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use ncserverd::peer::{self, Client};
use ncserverd::relay::{self, Relay};
use ncserverd::telemetry::Readiness;
use ncserverd::tls::{ServerIdentity, Trust};
use nctest::http::get;
use nctest::program::{PATIENCE, metric};
use nctest::script::bytes;
use prometheus::Registry;
use tempfile::TempDir;

use super::{Carrier, DEAD_WITHIN, Server};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Long enough for a viewer to say what it holds, and for servers to tell each other of it.
const TOLD: Duration = Duration::from_millis(1500);

/// The settings of a server with a stream whose viewers serve each other, from this folder.
fn settings(folder: &Path) -> [String; 4] {
    [
        "cluster.steer=false".to_owned(),
        format!("stream.shared.directory={}", folder.join("media").display()),
        format!(
            "stream.shared.signing_key={}",
            folder.join("key.pem").display()
        ),
        "stream.shared.peers=all".to_owned(),
    ]
}

fn viewer(server: &Server) -> peer::Config {
    let at = peer::Server {
        host: server.address.ip().to_string(),
        port: server.address.port(),
        fingerprint: None,
    };
    peer::Config {
        neighbours_max: 8,
        private_neighbours: true,
        ..peer::Config::new(at, Trust::Fingerprint(server.fingerprint.parse().unwrap()))
    }
}

/// A viewer that serves what it reads to others.
async fn sharing(server: &Server) -> Relay {
    let config = relay::Config {
        offers: true,
        own_only: true,
        ..relay::Config::listening(vec![LOOPBACK])
    };
    let identity = ServerIdentity::ephemeral().unwrap();
    let (registry, readiness) = (Registry::new(), Readiness::new());
    Relay::start(config, viewer(server), identity, &registry, &readiness)
        .await
        .unwrap()
}

async fn read(client: &Client, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let path = format!("/shared/{number}.bin");
        let reading = async { client.open(&path, None).await?.read_to_end().await };
        let all = tokio::time::timeout(PATIENCE, reading)
            .await
            .unwrap()
            .unwrap();
        assert!(all == object(number), "{path}");
    }
}

fn object(number: usize) -> Vec<u8> {
    bytes(u8::try_from(number).unwrap(), 1_000_001)
}

/// Bytes of blocks from other viewers.
fn from_others(client: &Client) -> u64 {
    client.stats().borrow().neighbour_bytes
}

/// Peers of other servers that were named here so far.
fn named(server: &Server) -> f64 {
    metric(
        server.metrics,
        "ncserverd_directory_fleet_introductions_total",
    )
    .unwrap()
}

/// Waits until this server knows as many peers of others.
async fn until_found(server: &Server, count: f64) {
    let end = Instant::now() + PATIENCE;
    let found = || {
        let page = String::from_utf8(get(server.metrics, "/metrics").unwrap()).unwrap();
        let row = "ncserverd_cluster_sharers{kind=\"found\"} ";
        let (_, rest) = page.split_once(row).unwrap();
        rest.lines().next().unwrap().parse::<f64>().unwrap()
    };
    while found() != count {
        assert!(
            Instant::now() < end,
            "{:?}: {}",
            found(),
            server.program.said()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn viewers_of_two_servers_serve_each_other(carrier: &mut Carrier) {
    let folder = TempDir::new().unwrap();
    std::fs::create_dir(folder.path().join("media")).unwrap();
    for number in 0..10 {
        let path = folder.path().join(format!("media/{number}.bin"));
        std::fs::write(path, object(number)).unwrap();
    }
    carrier.run();
    let [first, second] =
        ["s0", "s1"].map(|name| carrier.start_with(name, &settings(folder.path())));
    for server in [&first, &second] {
        server.await_members(2.0, PATIENCE);
    }

    let ann = sharing(&first).await;
    read(ann.client(), 0..4).await;
    let bob = sharing(&second).await;
    // The first answer names nobody, and makes the server ask.
    read(bob.client(), 0..1).await;
    until_found(&second, 1.0).await;
    read(bob.client(), 1..4).await;
    assert!(named(&second) > 0.0);
    assert!(from_others(bob.client()) > 0, "{}", second.program.said());
    read(bob.client(), 4..8).await;
    tokio::time::sleep(TOLD).await;
    until_found(&first, 1.0).await;
    read(ann.client(), 4..8).await;
    assert!(named(&first) > 0.0);
    assert!(from_others(ann.client()) > 0, "{}", first.program.said());

    // A server is killed. Its viewer still serves, and nobody hears of it any more.
    first.program.signal("KILL");
    second.await_members(1.0, DEAD_WITHIN);
    until_found(&second, 0.0).await;
    let before = named(&second);
    let eve = Client::connect(viewer(&second)).await.unwrap();
    read(&eve, 0..8).await;
    assert_eq!(named(&second), before);
    for relay in [ann, bob] {
        relay.drain(Duration::ZERO).await;
    }
}

#[test]
fn viewers_of_servers_with_nats_serve_each_other() {
    run("nats");
}

#[test]
fn viewers_of_servers_with_a_list_serve_each_other() {
    run("static");
}

fn run(engine: &str) {
    let carriers = Carrier::all().into_iter();
    for mut carrier in carriers.filter(|carrier| carrier.name() == engine) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(viewers_of_two_servers_serve_each_other(&mut carrier));
    }
}
