//! The engine `static`: a list of members, members that the test plays, and strangers.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ncserverd::endpoint::INITIAL_RTT;
use ncserverd::tls::{ServerIdentity, fleet_client_config};
use nctest::fleet::free_address;
use nctest::http::get;
use nctest::mint::Authority;
use nctest::origin::{File, Origin};
use nctest::program::{PATIENCE, metric};
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, RecvStream, ServerConfig};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, mpsc};

use super::{DEAD_WITHIN, LEFT_WITHIN, Server, beat};
use crate::program::program;

/// The secret of all fleets here.
const SECRET: &str = "a secret that all members have";

/// A list of members in a file, the secret in another, and the members that the test plays.
pub(super) struct Listed {
    folder: TempDir,
    entries: BTreeMap<String, String>,
    /// Whether the list is there.
    is_there: bool,
    played: BTreeMap<String, Played>,
    runtime: Runtime,
}

impl Listed {
    /// The list is there as soon as it has a member.
    fn running() -> Self {
        Self {
            is_there: true,
            ..Self::new()
        }
    }

    /// There is no list yet.
    pub(super) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("secret"), SECRET).unwrap();
        Self {
            folder,
            entries: BTreeMap::new(),
            is_there: false,
            played: BTreeMap::new(),
            runtime: Runtime::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn settings(&self, name: &str) -> Vec<String> {
        vec![
            "cluster.engine=static".to_owned(),
            format!("cluster.name={name}"),
            format!("cluster.advertise={name}.example:4443"),
            format!("cluster.static.members={}", self.path("list").display()),
            format!(
                "cluster.static.secret_file={}",
                self.path("secret").display()
            ),
        ]
    }

    /// Starts a server, and lists it.
    pub(super) fn start(&mut self, name: &str) -> Server {
        let server = Server::start(&self.settings(name));
        self.enter(name, server.address, &server.fingerprint);
        server
    }

    pub(super) fn enter(&mut self, name: &str, address: SocketAddr, fingerprint: &str) {
        let entry = format!(
            "[[member]]\nname = \"{name}\"\naddress = \"{address}\"\n\
             fingerprint = \"{fingerprint}\"\n"
        );
        self.entries.insert(name.to_owned(), entry);
        self.write();
    }

    /// The list is there from now on.
    pub(super) fn run(&mut self) {
        self.is_there = true;
        self.write();
    }

    /// The list is gone.
    pub(super) fn stop(&mut self) {
        self.is_there = false;
        std::fs::remove_file(self.path("list")).unwrap();
    }

    fn write(&self) {
        if !self.is_there || self.entries.is_empty() {
            return;
        }
        let text: String = self.entries.values().map(String::as_str).collect();
        self.write_text(&text);
    }

    fn write_text(&self, text: &str) {
        std::fs::write(self.path("draft"), text).unwrap();
        std::fs::rename(self.path("draft"), self.path("list")).unwrap();
    }

    /// So many other servers hear the beats of this one until the fleet ends.
    pub(super) fn hear(&self, server: &Server, count: u32) {
        for _ in 0..count {
            let (connection, mut stream) = self.runtime.block_on(async {
                let caller = Caller::new();
                caller.say(server, SECRET.as_bytes()).await
            });
            self.runtime.spawn(async move {
                let _connection = connection;
                let mut bytes = [0; 4096];
                while let Ok(Some(_)) = stream.read(&mut bytes).await {}
            });
        }
    }

    /// A member that the test plays sends this.
    pub(super) fn publish(&mut self, name: &str, payload: &[u8]) {
        if !self.played.contains_key(name) {
            let played = Played::new(&self.runtime);
            self.enter(name, played.address, &played.fingerprint);
            self.played.insert(name.to_owned(), played);
        }
        self.played[name].payloads.send(payload.to_vec()).unwrap();
    }
}

/// A member that the test plays.
struct Played {
    address: SocketAddr,
    fingerprint: String,
    payloads: mpsc::UnboundedSender<Vec<u8>>,
    /// How many have shown the secret.
    greeted: Arc<AtomicUsize>,
}

impl Played {
    fn new(runtime: &Runtime) -> Self {
        let identity = ServerIdentity::ephemeral().unwrap().with_fleet();
        let crypto = Arc::new(identity.quic().unwrap());
        let config = ServerConfig::with_crypto(crypto);
        let _inside = runtime.enter();
        let endpoint = Endpoint::server(config, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = endpoint.local_addr().unwrap();
        let (payloads, queue) = mpsc::unbounded_channel();
        let (queue, greeted) = (Arc::new(Mutex::new(queue)), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&greeted);
        runtime.spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let (queue, count) = (Arc::clone(&queue), Arc::clone(&count));
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        play(&connection, &queue, &count).await;
                    }
                });
            }
        });
        Self {
            address,
            fingerprint: identity.fingerprint().to_string(),
            payloads,
            greeted,
        }
    }
}

async fn play(
    connection: &Connection,
    queue: &Mutex<mpsc::UnboundedReceiver<Vec<u8>>>,
    greeted: &AtomicUsize,
) {
    let Ok((mut send, mut receive)) = connection.accept_bi().await else {
        return;
    };
    let Ok(secret) = receive.read_to_end(1000).await else {
        return;
    };
    let (secret, name) = secret.split_at(SECRET.len());
    assert_eq!(secret, SECRET.as_bytes());
    assert!(name.starts_with(b"\n"), "a member says its name");
    greeted.fetch_add(1, Ordering::Relaxed);
    loop {
        let next = async { queue.lock().await.recv().await };
        let payload = tokio::select! {
            _ = connection.closed() => return,
            payload = next => payload,
        };
        let Some(payload) = payload else { return };
        let bytes = payload.get(..usize::from(u16::MAX)).unwrap_or(&payload);
        let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
        let _ = send.write_all(&[&length, bytes].concat()).await;
        if bytes.len() > 4096 {
            // Nothing comes after that.
            connection.closed().await;
            return;
        }
    }
}

/// Who connects to a server with its protocol for fleets.
struct Caller(Endpoint);

impl Caller {
    fn new() -> Self {
        Self(Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap())
    }

    async fn connect(&self, server: &Server) -> Result<Connection, ConnectionError> {
        let pins = vec![server.fingerprint.parse().unwrap()];
        let mut config = ClientConfig::new(Arc::new(fleet_client_config(pins).unwrap()));
        let mut transport = quinn::TransportConfig::default();
        transport.initial_rtt(INITIAL_RTT);
        transport.keep_alive_interval(Some(Duration::from_secs(1)));
        config.transport_config(Arc::new(transport));
        let connecting = self.0.connect_with(config, server.address, "localhost");
        connecting.unwrap().await
    }

    /// Connects and says this. What comes back, and the connection.
    async fn say(&self, server: &Server, greeting: &[u8]) -> (Connection, RecvStream) {
        let connection = self.connect(server).await.unwrap();
        let (mut send, receive) = connection.open_bi().await.unwrap();
        send.write_all(greeting).await.unwrap();
        send.finish().unwrap();
        (connection, receive)
    }
}

/// The code with which the server has closed a connection, within this time.
async fn closed(connection: &Connection, within: Duration) -> u64 {
    let closed = tokio::time::timeout(within, connection.closed()).await;
    match closed.expect("it is closed") {
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        other => panic!("{other}"),
    }
}

#[test]
fn strangers_hear_no_beats_and_take_no_place_of_servers() {
    const IN_TIME: Duration = Duration::from_secs(4);
    let mut fleet = Listed::running();
    let one = fleet.start("one");
    one.await_ready(false);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let caller = Caller::new();
        let (connection, mut stream) = caller.say(&one, SECRET.as_bytes()).await;
        let mut length = [0; 2];
        stream.read_exact(&mut length).await.unwrap();
        assert!(u16::from_be_bytes(length) > 100, "a member hears a beat");
        drop((connection, stream));

        let long = vec![b's'; 100_000];
        for (greeting, code) in [
            (b"not the secret of the fleet".as_slice(), 1),
            (&SECRET.as_bytes()[1..], 1),
            (b"", 1),
            (&long[..257], 2),
        ] {
            let (connection, mut stream) = caller.say(&one, greeting).await;
            assert!(stream.read_to_end(1).await.is_err(), "no byte comes");
            assert_eq!(closed(&connection, IN_TIME).await, code);
        }
        // Who says nothing is asked to leave in time. Others wait elsewhere meanwhile.
        let mut silent = Vec::new();
        for _ in 0..300 {
            silent.push(caller.connect(&one).await.unwrap());
        }
        let (mut full, mut late) = (0, 0);
        for connection in &silent {
            match closed(connection, Duration::from_secs(8)).await {
                2 => late += 1,
                3 => full += 1,
                code => panic!("{code}"),
            }
        }
        assert!(late >= 256 && late + full == 300, "{late} and {full}");
        // A stream that never ends is one of them.
        let connection = caller.connect(&one).await.unwrap();
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        send.write_all(SECRET.as_bytes()).await.unwrap();
        assert_eq!(closed(&connection, Duration::from_secs(8)).await, 2);
    });
    let page = String::from_utf8(get(one.metrics, "/metrics").unwrap()).unwrap();
    assert!(
        page.contains("ncserverd_cluster_member_viewers{server=\"one\"} 0"),
        "{page}"
    );
    let sessions = metric(one.metrics, "ncserverd_session_opened_total");
    assert!(
        sessions.is_none_or(|sessions| sessions == 0.0),
        "{sessions:?}"
    );
    // None of it keeps a server out.
    let two = fleet.start("two");
    two.await_members(2.0, PATIENCE);
    one.await_members(2.0, PATIENCE);
}

#[test]
fn a_server_of_another_engine_does_not_speak_to_members() {
    let alone = Server::start(&["cluster.engine=none".to_owned()]);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        match Caller::new().connect(&alone).await.unwrap_err() {
            ConnectionError::ConnectionClosed(close) => {
                // TLS alert 120: no application protocol in common.
                assert_eq!(u64::from(close.error_code), 0x100 + 120, "{close}");
            }
            other => panic!("{other}"),
        }
    });
}

#[test]
fn the_secret_is_told_to_no_server_with_another_certificate() {
    let mut fleet = Listed::running();
    let one = fleet.start("one");
    let real = Played::new(&fleet.runtime);
    let imposter = Played::new(&fleet.runtime);
    fleet.enter("two", imposter.address, &real.fingerprint);
    one.program.says(["a member of the list is not reached"]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(imposter.greeted.load(Ordering::Relaxed), 0);
    assert_eq!(one.members(), 1.0);
    // The present certificate and the next: each is accepted.
    let both = format!("{},{}", real.fingerprint, imposter.fingerprint);
    fleet.enter("two", imposter.address, &both);
    imposter.payloads.send(beat("two", 1, 0).into()).unwrap();
    one.await_members(2.0, PATIENCE);
    assert_eq!(imposter.greeted.load(Ordering::Relaxed), 1);
}

#[test]
fn the_list_and_the_secret_change_at_run_time() {
    let mut fleet = Listed::running();
    let (one, two) = (fleet.start("one"), fleet.start("two"));
    for server in [&one, &two] {
        server.await_members(2.0, PATIENCE);
        server.await_ready(false);
    }
    // A bad list changes nothing, and is complained of.
    for text in ["[[member]]\nname =", "", "[[member]]\nname = \"a\"\n"] {
        fleet.write_text(text);
        one.await_ready(true);
        one.stays(2.0, DEAD_WITHIN / 4);
        fleet.write();
        one.await_ready(false);
    }
    // Who is not listed is not heard any more.
    let entry = fleet.entries.remove("two").unwrap();
    fleet.write();
    one.await_members(1.0, DEAD_WITHIN);
    assert_eq!(two.members(), 2.0, "it connects itself");
    fleet.entries.insert("two".to_owned(), entry);
    fleet.write();
    one.await_members(2.0, PATIENCE);

    // The secret is replaced in three steps, and nobody is missed.
    let next = "the secret that comes after it";
    for text in [
        format!("{SECRET}\n{next}\n"),
        format!("{next}\n{SECRET}\n"),
        next.to_owned(),
    ] {
        std::fs::write(fleet.path("secret"), text).unwrap();
        for server in [&one, &two] {
            server.stays(2.0, Duration::from_secs(5));
        }
    }
    // Who has the old one is out.
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let (connection, _stream) = Caller::new().say(&one, SECRET.as_bytes()).await;
        assert_eq!(closed(&connection, LEFT_WITHIN).await, 1);
    });
    std::fs::write(fleet.path("secret"), "too short").unwrap();
    one.await_ready(true);
    one.stays(2.0, DEAD_WITHIN / 4);
}

/// Such a member needs no fingerprint in the list.
#[test]
fn a_member_may_have_the_certificate_of_an_authority() {
    let mut fleet = Listed::running();
    let (folder, state) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let authority = Authority::new("authority");
    authority.server(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(file("ca.pem"), authority.pem()).unwrap();
    let mut settings = fleet.settings("one");
    settings.push(format!("tls.cert={}", file("server.crt")));
    settings.push(format!("tls.key={}", file("server.key")));
    let one = Server::start(&settings);
    let entry = format!(
        "[[member]]\nname = \"one\"\naddress = \"localhost:{}\"\n",
        one.address.port()
    );
    fleet.entries.insert("one".to_owned(), entry);
    let trusting = Server::start_in(
        state.path(),
        "127.0.0.1:0",
        &fleet.settings("two"),
        Some(("SSL_CERT_FILE", &file("ca.pem"))),
    );
    fleet.enter("two", trusting.address, &trusting.fingerprint);
    let other = fleet.start("three");
    trusting.await_members(3.0, PATIENCE);
    one.await_members(3.0, PATIENCE);
    // It hears the one whose certificate is listed.
    other.await_members(2.0, PATIENCE);
    other.stays(2.0, DEAD_WITHIN / 2);
}

/// It has its certificate and its port from before.
#[test]
fn a_member_that_was_killed_comes_back_where_it_was() {
    let mut fleet = Listed::running();
    let one = fleet.start("one");
    let port = free_address().port();
    let state = TempDir::new().unwrap();
    let start = |fleet: &Listed| {
        let listen = format!("127.0.0.1:{port}");
        Server::start_in(state.path(), &listen, &fleet.settings("two"), None)
    };
    let mut two = start(&fleet);
    fleet.enter("two", two.address, &two.fingerprint);
    for _ in 0..2 {
        one.await_members(2.0, PATIENCE);
        two.await_members(2.0, PATIENCE);
        two.program.signal("KILL");
        let killed = Instant::now();
        one.await_members(1.0, DEAD_WITHIN);
        assert!(
            killed.elapsed() < Duration::from_secs(9),
            "{:?}",
            killed.elapsed()
        );
        two = start(&fleet);
    }
    one.await_members(2.0, DEAD_WITHIN);
    // A pause is no death.
    two.program.signal("STOP");
    std::thread::sleep(Duration::from_secs(5));
    two.program.signal("CONT");
    one.stays(2.0, DEAD_WITHIN);
}

/// A member that sends as fast as it can costs little, and holds up no other.
#[test]
fn a_member_that_floods_is_heard_no_more_often_than_ten_times_a_second() {
    let mut fleet = Listed::running();
    let (one, two) = (fleet.start("one"), fleet.start("two"));
    one.await_members(2.0, PATIENCE);
    for sequence in 0..10_000 {
        fleet.publish("three", beat("three", 1, sequence).as_bytes());
    }
    one.await_members(3.0, PATIENCE);
    let received = || {
        let page = String::from_utf8(get(one.metrics, "/metrics").unwrap()).unwrap();
        let row = "ncserverd_cluster_beats_total{kind=\"received\"} ";
        let (_, rest) = page.split_once(row).unwrap();
        rest.lines().next().unwrap().parse::<f64>().unwrap()
    };
    let (before, begun) = (received(), Instant::now());
    one.stays(3.0, Duration::from_secs(5));
    let rate = (received() - before) / begun.elapsed().as_secs_f64();
    assert!((2.0..=11.0).contains(&rate), "{rate} a second");
    drop(two);
    one.await_members(2.0, DEAD_WITHIN);
}

#[test]
fn a_list_may_be_at_a_url() {
    let mut fleet = Listed::running();
    let two = fleet.start("two");
    let origin = fleet.runtime.block_on(Origin::start());
    let list = std::fs::read(fleet.path("list")).unwrap();
    let file = File {
        bytes: list.into(),
        etag: Some("\"1\"".to_owned()),
        ..File::default()
    };
    let mut settings = fleet.settings("one");
    settings.push(format!(
        "cluster.static.members=http://{}/members.toml?token=hidden",
        origin.address
    ));
    let one = Server::start(&settings);
    one.await_ready(true);
    origin.put_file("/members.toml?token=hidden", file);
    one.await_members(2.0, PATIENCE);
    one.await_ready(false);
    assert!(!one.program.said().contains("hidden"));
    drop(two);
}

#[test]
fn doctor_reads_the_list_and_the_secret() {
    let mut fleet = Listed::running();
    let one = fleet.start("one");
    let doctor = |settings: &[String]| {
        let state = TempDir::new().unwrap();
        let media = TempDir::new().unwrap();
        let media = media.path().display().to_string();
        let mut command = Command::new(program("ncserverd"));
        command.env_clear().env("STATE_DIRECTORY", state.path());
        command.args(["doctor", "--set", "endpoint.listen=127.0.0.1:0"]);
        command.args(["--set", &format!("stream.live.directory={media}")]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let said = doctor(&fleet.settings("one"));
    assert!(said.contains("lists 1"), "{said}");
    std::fs::write(fleet.path("secret"), "short").unwrap();
    let said = doctor(&fleet.settings("one"));
    assert!(said.contains("a line of 16 to 256 bytes"), "{said}");
    drop(one);
}
