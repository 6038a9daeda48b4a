//! Programs that survive each other: a gateway before its server starts, servers that are killed
//! and restarted.

mod program;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ncserverd::tls::{Trust, client_config};
use nctest::program::{PATIENCE, Program, serve};
use program::program;
use quinn::{ConnectionError, Endpoint, VarInt};
use tempfile::TempDir;

const FILE_BYTES: usize = 3_000_000;

/// What remains of a server that is killed: its state directory, its port, and what it publishes as
/// stream `media`.
struct Place {
    directory: TempDir,
    url: String,
    fingerprint: String,
}

impl Place {
    /// Lets a server make its certificate and choose a port, then ends it.
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("media")).unwrap();
        fs::write(directory.path().join("media/file.bin"), Self::bytes()).unwrap();
        let mut place = Self {
            directory,
            url: "127.0.0.1:0".to_owned(),
            fingerprint: String::new(),
        };
        let server = place.server(&[]);
        let [url, fingerprint] = server.says(["gateway ", "--fingerprint "]);
        (place.url, place.fingerprint) = (url, fingerprint);
        place
    }

    fn bytes() -> Vec<u8> {
        let mut bytes = vec![0; FILE_BYTES];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    /// Starts the server with these further arguments.
    fn server(&self, arguments: &[&str]) -> Program {
        let here = self.directory.path();
        let media = format!("media={}", here.join("media").display());
        let listen = self.url.trim_start_matches("ncs://");
        let mut command = serve(&program("ncserverd"), listen, here);
        Program::start(command.args(["--directory", &media]).args(arguments))
    }

    /// `ncpeer` with this command, this server and its fingerprint.
    fn peer(&self, command: &str, arguments: &[&str]) -> Command {
        let mut peer = Command::new(program("ncpeer"));
        peer.args([command, &self.url])
            .args(arguments)
            .args(["--fingerprint", &self.fingerprint])
            .env_clear();
        peer
    }
}

/// Status and body of an answer; a connection that ends early gives status 0.
fn get(place: &str, path: &str) -> (u16, Vec<u8>) {
    let address = place.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return (0, Vec::new());
    };
    let status = String::from_utf8_lossy(&answer[..end])
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0);
    (status, answer.split_off(end + 4))
}

/// Waits until something has happened.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what} in time");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_gateway_waits_for_its_server_and_says_so() {
    let place = Place::new();
    let gateway = Program::start(&mut place.peer("gateway", &["--listen", "127.0.0.1:0"]));
    let [at] = gateway.says(["is served at "]);
    gateway.says(["waiting for ncs://"]);
    let player = thread::spawn({
        let at = at.clone();
        move || get(&at, "/media/file.bin")
    });
    // The request is pending before there is a server.
    thread::sleep(Duration::from_millis(500));
    let _server = place.server(&[]);
    gateway.says(["answers"]);
    let (status, body) = player.join().unwrap();
    assert_eq!(status, 200);
    assert!(body == Place::bytes());
}

#[test]
fn a_gateway_that_shares_waits_for_its_server_and_says_so() {
    let place = Place::new();
    let arguments = [
        "--listen",
        "127.0.0.1:0",
        "--share",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
    ];
    let gateway = Program::start(&mut place.peer("gateway", &arguments));
    let [metrics] = gateway.says(["metrics on http://"]);
    let [at] = gateway.says(["is served at "]);
    gateway.says(["waiting for ncs://"]);
    let metrics = metrics.trim_end_matches("/metrics");
    assert_eq!(get(metrics, "/readyz").0, 503);
    let _server = place.server(&[]);
    gateway.says(["answers"]);
    let (status, body) = get(&at, "/media/file.bin");
    assert_eq!(status, 200);
    assert!(body == Place::bytes());
    until("readiness", || get(metrics, "/readyz").0 == 200);
}

#[test]
fn a_relay_is_ready_while_it_has_a_server() {
    let place = Place::new();
    let server = place.server(&[]);
    server.says(["gateway "]);
    let relay = Program::start(&mut place.peer(
        "relay",
        &["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"],
    ));
    let [metrics] = relay.says(["metrics on http://"]);
    let metrics = metrics.trim_end_matches("/metrics");
    relay.says(["relays at "]);
    until("readiness", || get(metrics, "/readyz").0 == 200);
    drop(server);
    until("its end", || get(metrics, "/readyz").0 == 503);
}

#[test]
fn a_wrong_fingerprint_is_told_beside_the_one_that_was_shown() {
    let place = Place::new();
    let _server = place.server(&[]);
    let other = "ab".repeat(32);
    for command in [
        &["fetch", "/media/file.bin", "-o", "-"][..],
        &["gateway", "--listen", "127.0.0.1:0"],
    ] {
        let mut peer = Command::new(program("ncpeer"));
        peer.args([command[0], &place.url])
            .args(&command[1..])
            .args(["--fingerprint", &other])
            .env_clear();
        let output = peer.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(
            said.contains(&format!("pinned {other}, got {}", place.fingerprint)),
            "{said}"
        );
    }
}

/// SIGKILL: no peer is told. The bound is generous, for busy machines; `make bench-recovery`
/// measures.
#[test]
fn a_gateway_is_back_soon_after_its_server_was_killed() {
    let place = Place::new();
    let server = place.server(&[]);
    server.says(["gateway "]);
    let gateway = Program::start(&mut place.peer("gateway", &["--listen", "127.0.0.1:0", "-v"]));
    let [at] = gateway.says(["is served at "]);
    assert_eq!(get(&at, "/media/file.bin").0, 200);
    // A name that is in no cache.
    fs::write(
        place.directory.path().join("media/other.bin"),
        Place::bytes(),
    )
    .unwrap();
    drop(server);
    thread::sleep(Duration::from_secs(3));
    let server = place.server(&[]);
    server.says(["gateway "]);
    let back = Instant::now();
    assert_eq!(get(&at, "/media/other.bin").0, 200);
    assert!(
        back.elapsed() < Duration::from_secs(5),
        "{:?}: {}",
        back.elapsed(),
        gateway.said()
    );
}

/// Times from a server's return to the first byte through a gateway, for ten kills: `make
/// bench-recovery`.
#[test]
#[ignore = "measures, and takes two minutes"]
fn times_to_recovery() {
    let place = Place::new();
    let mut server = place.server(&[]);
    server.says(["gateway "]);
    let gateway = Program::start(&mut place.peer("gateway", &["--listen", "127.0.0.1:0"]));
    let [at] = gateway.says(["is served at "]);
    println!("| kill | server back after | first byte after that |\n|---|---|---|");
    for kill in 1..=10 {
        // Names that are in no cache, requested before the kill and while the server is gone.
        let names = [format!("before{kill}.bin"), format!("after{kill}.bin")];
        names.iter().for_each(|name| {
            fs::write(
                place.directory.path().join("media").join(name),
                Place::bytes(),
            )
            .unwrap()
        });
        assert_eq!(get(&at, &format!("/media/{}", names[0])).0, 200);
        let gone = Instant::now();
        drop(server);
        let player = thread::spawn({
            let (at, path) = (at.clone(), format!("/media/{}", names[1]));
            move || {
                thread::sleep(Duration::from_secs(1));
                first_byte(&at, &path)
            }
        });
        thread::sleep(Duration::from_secs(3));
        server = place.server(&[]);
        server.says(["gateway "]);
        let back = Instant::now();
        let after = player.join().unwrap().saturating_duration_since(back);
        println!(
            "| {kill} | {:.2} s | {} ms |",
            (back - gone).as_secs_f64(),
            after.as_millis()
        );
        // A server that has run for less than ten seconds is not considered reliable.
        thread::sleep(Duration::from_secs(8));
    }
}

/// When the first byte of an object arrives.
fn first_byte(place: &str, path: &str) -> Instant {
    let address = place.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut start = [0; 15];
    stream.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    Instant::now()
}

/// A peer of a killed server learns from the new one that its connection is gone, as soon as it
/// sends something.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_resets_the_connections_of_before() {
    let place = Place::new();
    let server = place.server(&[]);
    server.says(["gateway "]);
    let pin = Trust::Fingerprint(place.fingerprint.parse().unwrap());
    let mut config = quinn::ClientConfig::new(Arc::new(client_config(&pin, None).unwrap()));
    let mut transport = quinn::TransportConfig::default();
    transport
        .keep_alive_interval(Some(Duration::from_millis(500)))
        .max_idle_timeout(Some(VarInt::from_u32(120_000).into()));
    config.transport_config(Arc::new(transport));
    let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = place.url.trim_start_matches("ncs://").parse().unwrap();
    let connection = endpoint
        .connect_with(config, address, "localhost")
        .unwrap()
        .await
        .unwrap();
    // The server waits 10 s for its first stream.
    drop(server);
    let _server = place.server(&[]);
    // The idle timeout that both sides agreed on is 15 s.
    let end = tokio::time::timeout(PATIENCE, connection.closed())
        .await
        .expect("an end");
    assert_eq!(end, ConnectionError::Reset);
    let key = place.directory.path().join("tls/ncserverd-reset.key");
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_fetch_goes_on_when_its_server_is_killed_and_started_again() {
    let place = Place::new();
    // Slow enough to be killed in the middle.
    let slow = ["--set", "admission.address_bytes_per_second=1MB"];
    let server = place.server(&slow);
    server.says(["gateway "]);
    let to = place.directory.path().join("copy.bin");
    let mut fetch = Program::start(&mut place.peer(
        "fetch",
        &["/media/file.bin", "-v", "-o", to.to_str().unwrap()],
    ));
    fetch.says(["connected"]);
    thread::sleep(Duration::from_millis(700));
    // SIGKILL: no peer is told.
    drop(server);
    thread::sleep(Duration::from_secs(1));
    assert!(fetch.has_ended().is_none(), "{}", fetch.said());
    let _server = place.server(&[]);
    fetch.says(["connected again"]);
    until("the fetch", || fetch.has_ended().is_some());
    assert_eq!(
        fetch.has_ended().unwrap().code(),
        Some(0),
        "{}",
        fetch.said()
    );
    assert!(fs::read(to).unwrap() == Place::bytes());
}
