//! Servers of a fleet: with a real NATS between them, and with a list of members.
//!
//! What both engines do is tested once, on each. NATS needs `nats-server`: in `PATH`, or named by
//! `NATS_SERVER`.

#[path = "fleet/configured.rs"]
mod configured;
#[path = "fleet/counted.rs"]
mod counted;
#[path = "fleet/listed.rs"]
mod listed;
mod program;
#[path = "fleet/sharers.rs"]
mod sharers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use listed::Listed;
use nctest::fleet::{free_ports, nats_server, node};
use nctest::http::get;
use nctest::mint::Authority;
use nctest::program::{PATIENCE, Program, cpu_seconds, metric, serve};
use program::program;
use tempfile::TempDir;

/// Beats come every two seconds, and a server without any lives for eight.
const DEAD_WITHIN: Duration = Duration::from_secs(12);
/// A server that says goodbye is gone long before that.
const LEFT_WITHIN: Duration = Duration::from_secs(4);

/// What carries the beats of a fleet.
enum Carrier {
    Nats {
        program: PathBuf,
        port: u16,
        node: Option<Program>,
        publisher: Option<Publisher>,
    },
    List(Box<Listed>),
}

impl Carrier {
    /// Each kind that can be had. None of them runs yet.
    fn all() -> Vec<Self> {
        let [port] = free_ports();
        let nats = nats_server().map(|program| Self::Nats {
            program,
            port,
            node: None,
            publisher: None,
        });
        let list = Self::List(Box::new(Listed::new()));
        nats.into_iter().chain([list]).collect()
    }

    /// Runs a test with each kind, all at once: such tests mostly wait for beats.
    fn each(test: impl Fn(Self) + Sync) {
        let test = &test;
        std::thread::scope(|scope| {
            let run = |carrier: Self| {
                let name = carrier.name().to_owned();
                let thread = std::thread::Builder::new().name(name);
                thread.spawn_scoped(scope, move || test(carrier)).unwrap();
            };
            Self::all().into_iter().for_each(run);
        });
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Nats { .. } => "nats",
            Self::List(_) => "static",
        }
    }

    /// The settings of a server of this name.
    fn settings(&self, name: &str) -> Vec<String> {
        match self {
            Self::Nats { port, .. } => nats_settings(name, &[*port]),
            Self::List(listed) => listed.settings(name),
        }
    }

    /// Starts a server.
    fn start(&mut self, name: &str) -> Server {
        self.start_with(name, &[])
    }

    /// The same, with further settings.
    fn start_with(&mut self, name: &str, further: &[String]) -> Server {
        let settings = [self.settings(name), further.to_vec()].concat();
        let server = Server::start(&settings);
        if let Self::List(listed) = self {
            listed.enter(name, server.address, &server.fingerprint);
        }
        server
    }

    /// The carrier runs from now on: a list is there, and follows what starts.
    fn run(&mut self) {
        match self {
            Self::Nats {
                program,
                port,
                node: running,
                ..
            } => *running = Some(node(program, *port, &[])),
            Self::List(listed) => listed.run(),
        }
    }

    /// The carrier is gone.
    fn stop(&mut self) {
        match self {
            Self::Nats { node, .. } => drop(node.take()),
            Self::List(listed) => listed.stop(),
        }
    }

    /// Sends this to all servers, as the server of this name.
    fn publish(&mut self, name: &str, payload: &[u8]) {
        match self {
            Self::Nats {
                port, publisher, ..
            } => publisher
                .get_or_insert_with(|| Publisher::connect(*port))
                .publish(&format!("ncserverd.beat.{name}"), payload),
            Self::List(listed) => listed.publish(name, payload),
        }
    }
}

/// A server of the fleet.
struct Server {
    program: Program,
    metrics: SocketAddr,
    /// Where peers and other servers connect, and the certificate that it shows.
    address: SocketAddr,
    fingerprint: String,
    _state: Option<TempDir>,
}

impl Server {
    /// Starts it with these settings, and a state of its own.
    fn start(settings: &[String]) -> Self {
        let state = TempDir::new().unwrap();
        let mut server = Self::start_in(state.path(), "127.0.0.1:0", settings, None);
        server._state = Some(state);
        server
    }

    /// Starts it with this state, perhaps of an earlier one, at this address, and with a variable
    /// of the environment.
    fn start_in(
        state: &Path,
        listen: &str,
        settings: &[String],
        variable: Option<(&str, &str)>,
    ) -> Self {
        let media = state.join("media");
        std::fs::create_dir_all(&media).unwrap();
        std::fs::write(media.join("a.bin"), vec![7; 100_000]).unwrap();
        let mut command = serve(&program("ncserverd"), listen, state);
        command.envs(variable);
        command.args(["--directory", &format!("live={}", media.display())]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        let program = Program::start(&mut command);
        let [metrics] = program.says(["metrics on http://"]);
        let metrics = metrics.trim_end_matches("/metrics").parse().unwrap();
        let [address, fingerprint] = program.says(["ncpeer gateway ncs://", "--fingerprint "]);
        Self {
            program,
            metrics,
            address: address.parse().unwrap(),
            fingerprint,
            _state: None,
        }
    }

    fn members(&self) -> f64 {
        metric(self.metrics, "ncserverd_cluster_members").unwrap_or(0.0)
    }

    fn await_members(&self, count: f64, within: Duration) {
        let end = Instant::now() + within;
        while self.members() != count {
            let log = || self.program.said();
            assert!(Instant::now() < end, "{}: {}", self.members(), log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// For this long it knows as many servers.
    fn stays(&self, count: f64, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            assert_eq!(self.members(), count, "{}", self.program.said());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until `/readyz` answers with 200 and, or and not, with a complaint of the cluster.
    fn await_ready(&self, complains: bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let page = get(self.metrics, "/readyz").map(|page| String::from_utf8(page).unwrap());
            if page
                .as_ref()
                .is_ok_and(|page| page.contains("\"cluster\"") == complains)
            {
                return;
            }
            assert!(Instant::now() < end, "{page:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The settings of a server of this name whose engine has nodes at these ports.
fn nats_settings(name: &str, ports: &[u16]) -> Vec<String> {
    let urls: Vec<_> = ports
        .iter()
        .map(|port| format!("nats://127.0.0.1:{port}"))
        .collect();
    vec![
        "cluster.engine=nats".to_owned(),
        format!("cluster.name={name}"),
        format!("cluster.advertise={name}.example:4443"),
        format!("cluster.nats.urls={}", urls.join(",")),
    ]
}

#[test]
fn servers_know_each_other_and_notice_who_goes() {
    Carrier::each(|mut carrier| {
        carrier.run();
        let [one, mut two, mut three] = ["one", "two", "three"].map(|name| carrier.start(name));
        for server in [&one, &two, &three] {
            server.await_members(3.0, PATIENCE);
            server.await_ready(false);
        }
        let page = String::from_utf8(get(one.metrics, "/metrics").unwrap()).unwrap();
        for name in ["one", "two", "three"] {
            let row = format!("ncserverd_cluster_member_max_viewers{{server=\"{name}\"}}");
            assert!(page.contains(&row), "{page}");
        }

        // An operator sees the same: with the settings of a server, or with others.
        for name in ["onlooker", "one"] {
            let mut status = Command::new(program("ncserverd"));
            status.env_clear().args(["cluster", "status", "--once"]);
            let settings = carrier.settings(name);
            status.args(settings.iter().flat_map(|setting| ["--set", setting]));
            let output = status.output().unwrap();
            let table = String::from_utf8(output.stdout.clone()).unwrap();
            assert!(output.status.success(), "{output:?}");
            let names: Vec<_> = table
                .lines()
                .skip(1)
                .map(|line| line.split(' ').next().unwrap())
                .collect();
            assert_eq!(names, ["one", "three", "two", "3"], "{table}");
        }

        two.program.signal("TERM");
        one.await_members(2.0, LEFT_WITHIN);
        // It waits for viewers, and there are none.
        let end = Instant::now() + LEFT_WITHIN;
        while two.program.has_ended().is_none() {
            assert!(Instant::now() < end, "{}", two.program.said());
            std::thread::sleep(Duration::from_millis(50));
        }
        three.program.signal("KILL");
        one.await_members(1.0, DEAD_WITHIN);
        assert!(three.program.has_ended().is_some());
        let page = String::from_utf8(get(one.metrics, "/metrics").unwrap()).unwrap();
        for change in ["left", "lost"] {
            let row = format!("ncserverd_cluster_changes_total{{change=\"{change}\"}} 1");
            assert!(page.contains(&row), "{page}");
        }
        assert!(!page.contains("server=\"three\""), "{page}");

        // It comes back under its name.
        let again = carrier.start("three");
        again.await_members(2.0, PATIENCE);
        one.await_members(2.0, PATIENCE);
    });
}

/// Without NATS servers forget each other. Without the list they go by the last one.
#[test]
fn without_its_engine_a_server_serves_and_says_so() {
    Carrier::each(|mut carrier| {
        let one = carrier.start("one");
        one.await_ready(true);
        one.await_members(1.0, PATIENCE);
        carrier.run();
        let two = carrier.start("two");
        one.await_ready(false);
        one.await_members(2.0, PATIENCE);
        two.await_members(2.0, PATIENCE);
        carrier.stop();
        one.await_ready(true);
        match carrier {
            Carrier::Nats { .. } => one.await_members(1.0, DEAD_WITHIN),
            Carrier::List(_) => one.stays(2.0, DEAD_WITHIN),
        }
        carrier.run();
        one.await_members(2.0, PATIENCE);
        two.await_members(2.0, PATIENCE);
        one.await_ready(false);
    });
}

#[test]
fn nobody_is_missed_when_two_nodes_of_the_engine_go() {
    let Some(nats) = nats_server() else { return };
    let ports: [u16; 6] = free_ports();
    let (clients, routes) = ports.split_at(3);
    let mut nodes: Vec<_> = (0..3)
        .map(|own| {
            let mut routes = routes.to_vec();
            routes.rotate_left(own);
            Some(node(&nats, clients[own], &routes))
        })
        .collect();
    let servers = ["one", "two"].map(|name| Server::start(&nats_settings(name, clients)));
    for server in &servers {
        server.await_members(2.0, PATIENCE);
    }
    let nobody_is_missed = || {
        let end = Instant::now() + DEAD_WITHIN;
        while Instant::now() < end {
            let brief = Duration::from_millis(100);
            servers.iter().for_each(|server| server.stays(2.0, brief));
        }
    };
    // One is killed, and one stops without a word.
    drop(nodes[0].take());
    nobody_is_missed();
    nodes[1].as_ref().unwrap().signal("STOP");
    nobody_is_missed();
}

/// A client of NATS that only publishes.
struct Publisher(TcpStream);

impl Publisher {
    fn connect(port: u16) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut info = [0; 4096];
        assert!(stream.read(&mut info).unwrap() > 0, "NATS speaks first");
        stream
            .write_all(b"CONNECT {\"verbose\":false}\r\n")
            .unwrap();
        Self(stream)
    }

    /// Returns when it was taken.
    fn publish(&mut self, subject: &str, payload: &[u8]) {
        let head = format!("PUB {subject} {}\r\n", payload.len());
        let message = [head.as_bytes(), payload, b"\r\nPING\r\n"].concat();
        self.0.write_all(&message).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"PONG\r\n") {
            let mut bytes = [0; 64];
            let count = self.0.read(&mut bytes).unwrap();
            assert!(count > 0, "{}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&bytes[..count]);
        }
        // NATS asks, too.
        if answer.starts_with(b"PING") {
            self.0.write_all(b"PONG\r\n").unwrap();
        }
    }
}

/// A server that sends beats and messages as fast as it can costs the others no beat of the rest.
#[test]
fn a_server_that_floods_nats_drowns_no_other() {
    const FLOOD: Duration = Duration::from_secs(15);
    let Some(program) = nats_server() else { return };
    let [port] = free_ports();
    let _node = node(&program, port, &[]);
    let start = |name| Server::start(&nats_settings(name, &[port]));
    let (one, two) = (start("one"), start("two"));
    one.await_members(2.0, PATIENCE);
    two.await_members(2.0, PATIENCE);
    Publisher::connect(port).publish("ncserverd.beat.three", beat("three", 1, 0).as_bytes());
    one.await_members(3.0, PATIENCE);
    let used = cpu_seconds(one.program.id());
    let flood = std::thread::spawn(move || {
        let (mut publisher, end) = (Publisher::connect(port), Instant::now() + FLOOD);
        let mut sent = 0_u64;
        while Instant::now() < end {
            let mut messages = Vec::new();
            for sequence in sent..sent + 1000 {
                let beat = beat("three", 2, sequence);
                for subject in ["beat.three", "tell.three.one"] {
                    let head = format!("PUB ncserverd.{subject} {}\r\n", beat.len());
                    messages.extend([head.as_bytes(), beat.as_bytes(), b"\r\n"].concat());
                }
            }
            publisher.0.write_all(&messages).unwrap();
            sent += 1000;
        }
        sent
    });
    one.stays(3.0, FLOOD);
    let used = cpu_seconds(one.program.id()) - used;
    let sent = flood.join().unwrap();
    println!("{sent} beats and as many messages in {FLOOD:?} took {used:.1} s of a core");
    for server in [&one, &two] {
        let said = server.program.said();
        assert!(!said.contains("has fallen silent"), "{said}");
        assert!(
            said.contains("too many messages come as `ncserverd."),
            "{said}"
        );
    }
}

/// A beat of an idle server, as JSON.
fn beat(server: &str, started_ms: u64, sequence: u64) -> String {
    format!(
        "{{\"server\":\"{server}\",\"started_ms\":{started_ms},\"sequence\":{sequence},\
         \"addresses\":[\"{server}.example:4443\"],\"fingerprint\":\"{}\",\"zone\":\"z\",\
         \"version\":\"9\",\"load\":{{\"viewers\":0,\"viewers_max\":1,\"busy\":0.0,\
         \"wait_s\":0.0,\"is_full\":false}}}}",
        "0".repeat(64)
    )
}

/// What others publish ends nothing and is not believed, unless it is a beat.
#[test]
fn what_is_no_beat_is_counted_and_changes_nothing() {
    Carrier::each(|mut carrier| {
        carrier.run();
        let one = carrier.start("one");
        one.await_ready(false);
        carrier.publish("two", beat("two", 1, 0).as_bytes());
        one.await_members(2.0, PATIENCE);
        for payload in [
            beat("four", 1, 0),
            String::new(),
            "{}".to_owned(),
            "[".repeat(4000),
            "x".repeat(100_000),
            beat("a\\u001b[2J", 1, 0),
        ] {
            carrier.publish("three", payload.as_bytes());
        }
        let unfit = || {
            let page = String::from_utf8(get(one.metrics, "/metrics").unwrap()).unwrap();
            page.contains("ncserverd_cluster_beats_total{kind=\"unfit\"} 6")
        };
        let end = Instant::now() + PATIENCE;
        while !unfit() {
            assert!(Instant::now() < end, "{}", one.program.said());
            std::thread::sleep(Duration::from_millis(50));
        }
        // The one that told a beat and no other is forgotten like a server.
        one.await_members(1.0, DEAD_WITHIN);
    });
}

/// Off loopback NATS needs TLS; here it has it on loopback, with a password, and both sides show
/// certificates.
#[test]
fn the_engine_is_reached_by_tls_with_a_password_and_a_certificate() {
    let Some(nats) = nats_server() else { return };
    let (folder, stranger) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let authority = Authority::new("engine");
    let file = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(file("ca.pem"), authority.pem()).unwrap();
    std::fs::write(file("password"), "hidden\n").unwrap();
    std::fs::write(file("wrong"), "guessed").unwrap();
    authority.server(folder.path());
    authority.client(folder.path());
    Authority::new("other").client(stranger.path());
    let [port] = free_ports();
    let mut command = Command::new(&nats);
    command.args(["-a", "127.0.0.1", "-p", &port.to_string()]);
    command.args(["--user", "media", "--pass", "hidden", "--tlsverify"]);
    command.args([
        "--tlscert",
        &file("server.crt"),
        "--tlskey",
        &file("server.key"),
    ]);
    command.args(["--tlscacert", &file("ca.pem")]);
    let node = Program::start(&mut command);
    node.says(["Server is ready"]);

    let of = |folder: &TempDir, password: &str| {
        let client = |name: &str| folder.path().join(name).display().to_string();
        [
            format!("cluster.nats.urls=tls://localhost:{port}"),
            "cluster.nats.user=media".to_owned(),
            format!("cluster.nats.password_file={}", file(password)),
            format!("cluster.nats.ca={}", file("ca.pem")),
            format!("cluster.nats.cert={}", client("client.crt")),
            format!("cluster.nats.key={}", client("client.key")),
        ]
    };
    let settings =
        |name: &str, further: &[String]| [&nats_settings(name, &[])[..3], further].concat();
    let right = of(&folder, "password");
    let (one, two) = (
        Server::start(&settings("one", &right)),
        Server::start(&settings("two", &right)),
    );
    one.await_members(2.0, PATIENCE);
    two.await_members(2.0, PATIENCE);
    one.await_ready(false);
    // Who shows a wrong password or certificate serves alone.
    for wrong in [of(&folder, "wrong"), of(&stranger, "password")] {
        let other = Server::start(&settings("three", &wrong));
        other.await_ready(true);
        std::thread::sleep(DEAD_WITHIN / 4);
        other.await_ready(true);
        assert_eq!((one.members(), other.members()), (2.0, 1.0));
    }
}

/// Prints what a hundred other servers cost one, beside a server without a fleet: `cargo test
/// --release --test fleet -- --ignored --nocapture`.
#[test]
#[ignore = "it measures for two minutes"]
fn what_a_hundred_servers_cost() {
    const OTHERS: u32 = 100;
    const BEATS: u64 = 60;
    for mut carrier in Carrier::all() {
        carrier.run();
        let fleet = carrier.start("one");
        let mut settings = carrier.settings("one");
        settings.push("cluster.engine=none".to_owned());
        let alone = Server::start(&settings);
        fleet.await_ready(false);
        let round = |carrier: &mut Carrier, sequence: u64| {
            let begun = Instant::now();
            for number in 0..OTHERS {
                let name = format!("media-{number}");
                carrier.publish(&name, beat(&name, 1, sequence).as_bytes());
            }
            std::thread::sleep(Duration::from_secs(2).saturating_sub(begun.elapsed()));
        };
        round(&mut carrier, 0);
        fleet.await_members(f64::from(OTHERS) + 1.0, PATIENCE);
        if let Carrier::List(listed) = &carrier {
            listed.hear(&fleet, OTHERS);
        }
        let used = |server: &Server| {
            let memory = metric(server.metrics, "process_resident_memory_bytes").unwrap();
            (cpu_seconds(server.program.id()), memory)
        };
        let before = [&fleet, &alone].map(used);
        (1..=BEATS).for_each(|sequence| round(&mut carrier, sequence));
        let after = [&fleet, &alone].map(used);
        assert_eq!(fleet.members(), f64::from(OTHERS) + 1.0);
        for (name, (before, after)) in ["fleet", "alone"].iter().zip(before.iter().zip(after)) {
            let seconds = BEATS as f64 * 2.0;
            println!(
                "{}, {name}: {:.2} ms of processor time a second, {:.1} MB",
                carrier.name(),
                (after.0 - before.0) / seconds * 1e3,
                after.1 / 1e6
            );
        }
    }
}
