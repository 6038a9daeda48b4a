//! The flows that are measured: a sender, a receiver and the relays between them, each a process in
//! its namespace. Every receiver writes what it receives to its standard output.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use clap::ValueEnum;
use ncserverd::endpoint::{Congestion, INITIAL_RTT, udp_socket};
use ncserverd::tls::{self, Fingerprint, ServerIdentity, Trust};
use quinn::{
    ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt,
};

use crate::net::{HOPS, address, route};
use nctest::netns::{ip, within};
use nctest::program::beside as program;

/// Who sends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Contender {
    /// A file from nginx over the kernel's TCP with this controller.
    Http(&'static str),
    /// One stream of quinn.
    Quic(Congestion),
    /// `ncserverd serve` and `ncpeer fetch`, blocks of 4 KiB on streams.
    Streams(Congestion),
    /// The same with blocks in datagrams.
    Datagrams(Congestion),
}

impl Contender {
    /// By which rows are sorted.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Http(_) => 0,
            Self::Quic(_) => 1,
            Self::Streams(_) => 2,
            Self::Datagrams(_) => 3,
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(with) => write!(f, "nginx, TCP {with}"),
            Self::Quic(with) => write!(f, "quinn, one stream, {with}"),
            Self::Streams(with) => write!(f, "ncserverd, streams, {with}"),
            Self::Datagrams(with) => write!(f, "ncserverd, datagrams, {with}"),
        }
    }
}

/// From whom to whom.
#[derive(Debug)]
pub(crate) struct Way<'a> {
    sender: &'a str,
    /// Namespaces of relays, and where each is reached from further down.
    relays: Vec<(&'a str, String)>,
    receiver: &'a str,
}

impl<'a> Way<'a> {
    /// Over so many hops of the chain, with nothing but routers between the ends.
    pub(crate) fn across(ends: &'a [String], hops: u8) -> Self {
        Self {
            sender: &ends[0],
            relays: Vec::new(),
            receiver: &ends[usize::from(hops)],
        }
    }

    /// Over so many hops of the chain, with a relay between any two of them.
    pub(crate) fn relayed(ends: &'a [String], hops: u8) -> Self {
        let relays = (1..hops)
            .map(|hop| (ends[usize::from(hop)].as_str(), address(hop, false)))
            .collect();
        Self {
            relays,
            ..Self::across(ends, hops)
        }
    }
}

/// Whether the kernel has that controller.
pub(crate) fn tcp_has(congestion: &str) -> bool {
    let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default();
    available.split_whitespace().any(|name| name == congestion)
}

/// A flow, until it is dropped.
pub(crate) struct Running {
    children: Vec<Child>,
    received: Arc<Mutex<Vec<(Instant, u64)>>>,
    _files: tempfile::TempDir,
}

/// A file for servers to serve, with no two parts alike, or they would be fetched once.
pub(crate) fn make_media(directory: &Path, size: ByteSize) {
    let mut file =
        std::io::BufWriter::new(std::fs::File::create(directory.join(FILE)).expect("a file"));
    let mut word = 1_u64;
    for _ in 0..size.as_u64() / 8 {
        word = word
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        file.write_all(&word.to_be_bytes())
            .expect("room for a file");
    }
}

impl Running {
    /// Starts both ends. Flows of one run have different numbers.
    pub(crate) fn start(contender: Contender, way: &Way<'_>, media: &Path, number: u16) -> Self {
        let files = tempfile::tempdir().expect("a temporary directory");
        let port = 4400 + number;
        let address = format!("{}:{port}", address(0, false));
        let own = std::env::current_exe().expect("this program has a path");
        let mut serve = within(way.sender);
        let mut fetch = within(way.receiver);
        match contender {
            Contender::Http(with) => serve
                .arg(&own)
                .args(["http-serve", &address, with])
                .arg(media)
                .arg(files.path()),
            Contender::Quic(with) => {
                serve
                    .arg(&own)
                    .args(["quic-serve", &address, &with.to_string()])
            }
            Contender::Streams(with) => coded(
                &mut serve,
                files.path(),
                media,
                &address,
                with,
                "block_bytes = 4096\nn_max = 128\ngenerations_min = 1",
            ),
            Contender::Datagrams(with) => coded(
                &mut serve,
                files.path(),
                media,
                &address,
                with,
                "block_bytes = 1088\nn_max = 64\ngenerations_min = 1",
            ),
        };
        let received = Arc::new(Mutex::new(Vec::new()));
        // Dropping it ends what has begun.
        let mut flow = Self {
            children: Vec::new(),
            received: Arc::clone(&received),
            _files: files,
        };
        let said = flow.start_and_hear(serve, FINGERPRINT);
        match contender {
            Contender::Http(_) => fetch.arg(&own).args(["http-fetch", &address]),
            Contender::Quic(_) => fetch.arg(&own).args(["quic-fetch", &address, &said]),
            Contender::Streams(_) | Contender::Datagrams(_) => {
                let mut url = format!("ncs://{address}#{said}");
                for (namespace, address) in &way.relays {
                    let mut relay = within(namespace);
                    let listen = format!("{address}:{port}");
                    relay.arg(program("ncpeer")).args([
                        "relay",
                        &url,
                        "--listen",
                        &listen,
                        "--insecure",
                    ]);
                    url = flow.start_and_hear(relay, RELAYS_AT);
                }
                fetch.arg(program("ncpeer")).args([
                    "fetch",
                    &url,
                    &format!("/live/{FILE}"),
                    "-o",
                    "-",
                ])
            }
        };
        let mut client = fetch
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("ip runs");
        let (mut output, log) = (client.stdout.take().expect("as asked for"), received);
        flow.children.push(client);
        if matches!(contender, Contender::Http(_)) {
            // Until it has connected: the route of another flow is to change nothing for this one.
            std::thread::sleep(Duration::from_millis(500));
        }
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            let mut total = 0;
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                total += length as u64;
                let (now, mut log): (Instant, MutexGuard<'_, Vec<(Instant, u64)>>) =
                    (Instant::now(), log.lock().expect("nobody panics with it"));
                match log.last_mut() {
                    Some((began, sum)) if now.saturating_duration_since(*began) < BURST => {
                        *sum = total
                    }
                    _ => log.push((now, total)),
                }
            }
        });
        flow
    }

    /// Runs what others connect to, and waits for what it says behind `mark`: how it is known.
    fn start_and_hear(&mut self, mut command: Command, mark: &str) -> String {
        let mut server = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ip runs");
        let mut lines = BufReader::new(server.stderr.take().expect("as asked for"))
            .lines()
            .map_while(Result::ok);
        self.children.push(server);
        let mut heard = Vec::new();
        let said = lines.find_map(|line| {
            let said = line
                .split_once(mark)
                .and_then(|(_, after)| after.split_whitespace().next().map(str::to_owned));
            heard.push(line);
            said
        });
        // Somebody must read on, or the server waits for it.
        std::thread::spawn(move || lines.for_each(drop));
        said.unwrap_or_else(|| panic!("the server is ready; it said {heard:#?}"))
    }

    /// Megabits per second that the receiver has written since then, from one burst to another;
    /// `None` without two bursts.
    pub(crate) fn megabits_since(&self, from: Instant) -> Option<f64> {
        let log = self.received.lock().expect("nobody panics with it");
        let (first, before) = *log.iter().find(|(began, _)| *began >= from)?;
        let (last, after) = *log.last()?;
        let seconds = (last - first).as_secs_f64();
        (seconds > 0.0).then(|| (after - before) as f64 * 8e-6 / seconds)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What is written within this time of a first byte is one burst.
const BURST: Duration = Duration::from_millis(200);

/// Before a server's fingerprint, and before a relay's URL.
const FINGERPRINT: &str = "--fingerprint ";
const RELAYS_AT: &str = "relays at ";

/// A server of that file.
fn coded<'a>(
    command: &'a mut Command,
    files: &Path,
    media: &Path,
    address: &str,
    with: Congestion,
    shape: &str,
) -> &'a mut Command {
    // The receiver writes a part when it is complete, so large parts would be too coarse to count.
    let configuration = format!(
        "[endpoint]\nlisten = [\"{address}\"]\ncongestion = \"{with}\"\n[admission]\n\
         insecure = true\n[telemetry]\nlisten = \"127.0.0.1:{}\"\n\
         [store]\nbytes = \"1GiB\"\n\
         [ingest]\nsegment_max_bytes = \"2MiB\"\nsettle = \"50ms\"\nrescan = \"100ms\"\n\
         [tls]\ndirectory = \"{}\"\n[stream.live]\ndirectory = \"{}\"\n{shape}\n",
        address.rsplit_once(':').map_or("9443", |(_, port)| port),
        files.join("tls").display(),
        media.display(),
    );
    let path = files.join("ncserverd.toml");
    std::fs::write(&path, configuration).expect("a configuration");
    command.arg(program("ncserverd")).arg("--config").arg(path)
}

const FILE: &str = "noise.bin";

static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Becomes an nginx that serves `media`, with this congestion controller for the TCP of its
/// namespace.
pub(crate) fn http_serve(address: &str, congestion: &str, media: &str, files: &str) {
    for hop in 0..HOPS {
        let words = format!("route replace {} congctl {congestion}", route(0, hop));
        ip(&words)
            .unwrap_or_else(|reason| panic!("the kernel takes {congestion} for a route: {reason}"));
    }
    let configuration = format!(
        "daemon off; master_process off; pid {files}/nginx.pid; error_log {files}/error.log;\n\
         events {{}}\nhttp {{\n\
         access_log off; client_body_temp_path {files}/body; proxy_temp_path {files}/proxy; \
         fastcgi_temp_path {files}/fastcgi;\n\
         uwsgi_temp_path {files}/uwsgi; scgi_temp_path {files}/scgi;\n\
         server {{ listen {address} reuseport; root {media}; }} }}\n"
    );
    let file = format!("{files}/nginx.conf");
    std::fs::write(&file, configuration).expect("a configuration");
    eprintln!("{FINGERPRINT}none");
    let error = Command::new("nginx")
        .args(["-p", files, "-c", &file])
        .exec();
    panic!("nginx does not start: {error}");
}

/// One file by HTTP, as it comes.
pub(crate) fn http_fetch(address: &str) {
    let mut patience = 100;
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            // nginx may not listen yet.
            Err(_) if patience > 0 => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => panic!("nobody at {address}: {error}"),
        }
        patience -= 1;
    };
    write!(
        stream,
        "GET /{FILE} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .expect("a few bytes are taken");
    std::io::copy(&mut stream, &mut std::io::stdout()).expect("until it is killed");
}

/// Windows that are in nobody's way.
fn transport(congestion: Congestion) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.initial_rtt(INITIAL_RTT).max_idle_timeout(Some(
        Duration::from_secs(60).try_into().expect("representable"),
    ));
    transport
        .stream_receive_window(VarInt::from_u32(16 << 20))
        .receive_window(VarInt::from_u32(16 << 20))
        .send_window(16 << 20);
    transport.congestion_controller_factory(congestion.factory());
    Arc::new(transport)
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn quic_serve(address: &str, congestion: &str) {
    let congestion = Congestion::from_str(congestion, false).expect("a controller");
    let identity = ServerIdentity::ephemeral().expect("a certificate");
    let mut server =
        ServerConfig::with_crypto(Arc::new(identity.quic().expect("a TLS configuration")));
    server.transport_config(transport(congestion));
    let buffer = ByteSize::mib(4);
    let socket = udp_socket(address.parse().expect("an address"), buffer, buffer)
        .expect("the address is free");
    let endpoint = Endpoint::new(
        EndpointConfig::default(),
        Some(server),
        socket,
        Arc::new(TokioRuntime),
    )
    .expect("an endpoint");
    eprintln!("{FINGERPRINT}{}", identity.fingerprint());
    let connection = endpoint
        .accept()
        .await
        .expect("it is open")
        .await
        .expect("a connection");
    let mut stream = connection.open_uni().await.expect("one stream is allowed");
    while stream.write_all(&ZEROS).await.is_ok() {}
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn quic_fetch(address: &str, fingerprint: &str) {
    let fingerprint: Fingerprint = fingerprint.parse().expect("a fingerprint");
    let mut client = ClientConfig::new(Arc::new(
        tls::client_config(&Trust::Fingerprint(fingerprint), None).expect("a TLS configuration"),
    ));
    client.transport_config(transport(Congestion::default()));
    let buffer = ByteSize::mib(4);
    let socket = udp_socket(([0, 0, 0, 0], 0).into(), buffer, buffer).expect("a socket");
    let endpoint = Endpoint::new(
        EndpointConfig::default(),
        None,
        socket,
        Arc::new(TokioRuntime),
    )
    .expect("an endpoint");
    let connecting = endpoint
        .connect_with(client, address.parse().expect("an address"), "localhost")
        .expect("it connects");
    let connection = connecting.await.expect("a connection");
    let mut stream = connection.accept_uni().await.expect("the server opens one");
    let mut output = std::io::stdout();
    while let Ok(Some(chunk)) = stream.read_chunk(1 << 16, true).await {
        output.write_all(&chunk.bytes).expect("until it is killed");
    }
}
