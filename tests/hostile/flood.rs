//! A flood of first handshake packets with spoofed source addresses.
//!
//! Two network namespaces, one for the server and one for all others. The server reaches every
//! address through the other namespace, which has none of them and drops the packets. A second run
//! of this program in there, as an otherwise ignored test, sends the packets and is an honest
//! viewer, too. QUIC has made the packets before; they differ in connection ids, keys and
//! addresses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use ncserverd::peer;
use ncserverd::tls::{self, Fingerprint, Trust};
use nctest::program::status;
use nctest::skip::skip;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use socket2::{Domain, Protocol, Socket, Type};

use crate::ground::{
    FILE_BYTES, FILES, Program, Seen, Viewer, bytes, connect, file, make_media, metric, read, turn,
};
use crate::program::program;

/// The maximum growth of the server's memory.
const GROWTH_MAX: ByteSize = ByteSize::mib(64);

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
const OTHERS: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 4443);
const METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 9443);

/// The variable with instructions for the second run of this program.
const ENVIRONMENT: &str = "NCTEST_FLOOD";

/// The rate and the duration.
#[derive(Debug, Clone, Copy)]
struct Plan {
    packets_per_second: u32,
    time: Duration,
    /// Packets that differ in more than their addresses.
    kinds: usize,
    /// The time between two files of the viewer.
    pace: Duration,
}

/// A rate that two shared cores can sustain next to a server and a viewer.
#[test]
fn spoofed_handshakes_harm_nobody() {
    let plan = Plan {
        packets_per_second: 8_000,
        time: Duration::from_secs(3),
        kinds: 2048,
        pace: crate::ground::PACE,
    };
    flood(plan);
}

/// The figure in docs/benchmarks/network.md: `make bench-handshakes`.
#[test]
#[ignore = "half a minute, and a machine with nothing else to do"]
fn twenty_thousand_spoofed_handshakes_a_second_harm_nobody() {
    let plan = Plan {
        packets_per_second: 20_000,
        time: Duration::from_secs(30),
        kinds: 16_384,
        pace: Duration::ZERO,
    };
    flood(plan);
}

/// The part in the other namespace, started by one of the tests above.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "is started by the others"]
async fn everybody_but_the_server() {
    let Ok(orders) = std::env::var(ENVIRONMENT) else {
        return;
    };
    let words: Vec<&str> = orders.split(' ').collect();
    let [process, fingerprint, rate, seconds, kinds, pace] = words[..] else {
        panic!("{orders}")
    };
    let plan = Plan {
        packets_per_second: rate.parse().unwrap(),
        time: Duration::from_secs(seconds.parse().unwrap()),
        kinds: kinds.parse().unwrap(),
        pace: Duration::from_millis(pace.parse().unwrap()),
    };
    take_part(plan, process.parse().unwrap(), fingerprint.parse().unwrap()).await;
}

fn flood(plan: Plan) {
    let _turn = turn();
    let namespaces = match Namespaces::new() {
        Ok(namespaces) => namespaces,
        Err(reason) => {
            return skip(&format!("there are no network namespaces: {reason}"));
        }
    };
    let (media, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make_media(media.path());
    let mut command = within(&namespaces.server);
    command.arg(program("ncserverd")).args([
        "serve",
        "--listen",
        &LISTEN.to_string(),
        "--metrics",
        &METRICS.to_string(),
    ]);
    command.args([
        "--directory",
        &format!("live={}", media.path().display()),
        "--set",
        "admission.insecure=true",
    ]);
    command
        .args(["--set", "telemetry.log_format=json"])
        .env("STATE_DIRECTORY", state.path());
    let server = Program::start(&mut command);
    let [fingerprint] = server.says(["--fingerprint "]);

    let Plan {
        packets_per_second,
        time,
        kinds,
        pace,
    } = plan;
    let (process, seconds, pace) = (server.id(), time.as_secs(), pace.as_millis());
    let orders = format!("{process} {fingerprint} {packets_per_second} {seconds} {kinds} {pace}");
    let mut others = within(&namespaces.others);
    others.arg(std::env::current_exe().unwrap()).args([
        "--ignored",
        "--exact",
        "flood::everybody_but_the_server",
        "--nocapture",
    ]);
    let output = others
        .env(ENVIRONMENT, orders)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", output.status);
    assert!(
        ["1 passed", "spoofed first packets: "]
            .iter()
            .all(|text| said.contains(text)),
        "the others did nothing"
    );
}

/// Sends the flood; an honest viewer runs before and during it.
async fn take_part(plan: Plan, process: u32, fingerprint: Fingerprint) {
    let server = peer::Server {
        host: SERVER.to_string(),
        port: LISTEN.port(),
        fingerprint: Some(fingerprint),
    };
    let config = peer::Config::new(server, Trust::System);
    let client = connect(config.clone()).await;
    for number in 0..FILES {
        assert!(read(&client, &file(number)).await.unwrap() == bytes(number, FILE_BYTES));
    }
    let packets = packets(&config, plan.kinds);
    let watched = |time: Duration| {
        let viewer = Viewer::start(client.clone(), plan.pace);
        async move {
            tokio::time::sleep(time).await;
            viewer.went_on().await
        }
    };
    let quiet = watched(plan.time / 4).await;
    let counters = [
        "handshakes_total",
        "handshakes_retried_total",
        "handshakes_refused_total",
        "handshakes_failed_total",
    ]
    .map(|name| format!("ncserverd_endpoint_{name}"));
    let count = || {
        counters
            .each_ref()
            .map(|name| metric(METRICS, name).unwrap_or_else(|| panic!("no series {name}")))
    };
    let (before, resident) = (
        count(),
        status(process, "VmRSS").map(ByteSize::kib).unwrap(),
    );
    let peak = status(process, "VmHWM").map(ByteSize::kib).unwrap();

    let begun = Instant::now();
    let sender = std::thread::spawn(move || send(&packets, plan));
    let newcomers = tokio::spawn(newcomers(config, begun + plan.time));
    let flooded = watched(plan.time).await;
    let (newcomers, slowest) = newcomers.await.unwrap();
    let sent = sender.join().unwrap();

    let [handshakes, retried, refused, failed] = {
        let after = count();
        std::array::from_fn(|i| after[i] - before[i])
    };
    let (peak_after, resident_after) = (
        status(process, "VmHWM").map(ByteSize::kib).unwrap(),
        status(process, "VmRSS").map(ByteSize::kib).unwrap(),
    );
    let megabits = |seen: &Seen, time: Duration| {
        f64::from(seen.files) * FILE_BYTES as f64 * 8e-6 / time.as_secs_f64()
    };
    let rate = f64::from(sent) / plan.time.as_secs_f64();
    println!(
        "spoofed first packets: {sent}, {rate:.0} a second for {} s",
        plan.time.as_secs()
    );
    println!(
        "the server: {handshakes} handshakes begun, {retried} answered with Retry, {refused} \
         refused, {failed} failed"
    );
    println!(
        "its memory: {resident} before, {resident_after} after; at most {peak} before, \
         {peak_after} after"
    );
    println!(
        "the viewer: {:.0} Mbit/s before, {:.0} during; the longest wait for a file of {} KiB {:?} \
         before, {:?} during",
        megabits(&quiet, plan.time / 4),
        megabits(&flooded, plan.time),
        FILE_BYTES >> 10,
        quiet.longest,
        flooded.longest
    );
    println!(
        "newcomers during it: {newcomers}, each connected and with a file after {slowest:?} at most"
    );
    assert!(
        rate > 0.8 * f64::from(plan.packets_per_second),
        "there was no such flood"
    );
    assert!(
        retried > 0.5 * f64::from(sent),
        "the server does not ask for a proof"
    );
    assert!(newcomers > 0);
    let growth = ByteSize(peak_after.as_u64() - peak.as_u64());
    assert!(growth < GROWTH_MAX, "the server has grown by {growth}");
}

/// Connects new clients one after the other until `end`; returns their number, and the longest time
/// until one had a file.
async fn newcomers(config: peer::Config, end: Instant) -> (u32, Duration) {
    let (mut count, mut slowest) = (0, Duration::ZERO);
    while Instant::now() < end {
        let begun = Instant::now();
        let client = connect(config.clone()).await;
        assert!(read(&client, &file(0)).await.unwrap() == bytes(0, FILE_BYTES));
        count += 1;
        slowest = slowest.max(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(
        slowest < Duration::from_secs(10),
        "a newcomer waited for {slowest:?}"
    );
    (count, slowest)
}

/// First packets of different connections, with room for the headers of IP and UDP.
fn packets(config: &peer::Config, kinds: usize) -> Vec<Vec<u8>> {
    let trust = Trust::Fingerprint(config.servers[0].fingerprint.unwrap());
    let quic = quinn::ClientConfig::new(Arc::new(tls::client_config(&trust, None).unwrap()));
    let mut endpoint = quinn_proto::Endpoint::new(
        Arc::new(quinn_proto::EndpointConfig::default()),
        None,
        false,
        None,
    );
    let make = |_| {
        let now = Instant::now();
        let (_, mut connection) = endpoint
            .connect(now, quic.clone(), LISTEN, "localhost")
            .unwrap();
        let mut first = Vec::new();
        let transmit = connection
            .poll_transmit(now, 1, &mut first)
            .expect("a client speaks first");
        let mut packet = vec![0; HEADERS];
        packet.extend_from_slice(&first[..transmit.size]);
        packet
    };
    (0..kinds).map(make).collect()
}

/// Sends them in turn from random addresses, and returns their number.
fn send(packets: &[Vec<u8>], plan: Plan) -> u32 {
    // With protocol 255 the packet has its own IP header; the kernel fills in its checksum and
    // length.
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(255))).unwrap();
    let to = SocketAddr::from((SERVER, 0)).into();
    let (mut random, begun, mut sent) =
        (Xoshiro256PlusPlus::seed_from_u64(1), Instant::now(), 0_u32);
    let mut packet = Vec::new();
    while begun.elapsed() < plan.time {
        let due = begun.elapsed().as_secs_f64() * f64::from(plan.packets_per_second);
        while f64::from(sent) < due && begun.elapsed() < plan.time {
            packet.clone_from(&packets[sent as usize % packets.len()]);
            let [a, b, c]: [u8; 3] = random.random();
            let (address, port) = (
                Ipv4Addr::new(11, a, b, c),
                random.random_range(1024..=u16::MAX),
            );
            write_headers(&mut packet, address, port);
            // A full interface queue drops packets, as on any host.
            let _ = socket.send_to(&packet, &to);
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    sent
}

/// Of IP and UDP.
const HEADERS: usize = 20 + 8;

fn write_headers(packet: &mut [u8], address: Ipv4Addr, port: u16) {
    let udp = u16::try_from(packet.len() - 20).expect("it fits the path");
    packet[..10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17]);
    packet[12..16].copy_from_slice(&address.octets());
    packet[16..20].copy_from_slice(&SERVER.octets());
    packet[20..22].copy_from_slice(&port.to_be_bytes());
    packet[22..24].copy_from_slice(&LISTEN.port().to_be_bytes());
    packet[24..26].copy_from_slice(&udp.to_be_bytes());
    // No checksum, which is optional for UDP over IPv4.
    packet[26..28].copy_from_slice(&[0, 0]);
}

/// Two network namespaces, removed when dropped.
struct Namespaces {
    server: String,
    others: String,
}

impl Namespaces {
    fn new() -> Result<Self, String> {
        let name = |end: &str| format!("nch{}{end}", std::process::id());
        let made = Self {
            server: name("s"),
            others: name("o"),
        };
        for namespace in [&made.server, &made.others] {
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        ip(&format!(
            "link add veth0 netns {} type veth peer name veth0 netns {}",
            made.server, made.others
        ))?;
        for (namespace, address) in [(&made.server, SERVER), (&made.others, OTHERS)] {
            ip(&format!("-n {namespace} addr add {address}/24 dev veth0"))?;
            ip(&format!("-n {namespace} link set veth0 up"))?;
        }
        ip(&format!(
            "-n {} route add default via {OTHERS}",
            made.server
        ))?;
        Ok(made)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.others] {
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}

fn within(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]);
    command
}

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(words.split(' '))
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!(
            "ip {words}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}
