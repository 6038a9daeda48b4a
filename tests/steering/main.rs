//! Viewers of a fleet go to the server that should serve them, and on to another when theirs goes,
//! with a real NATS between the servers.
//!
//! They need `nats-server`: in `PATH`, or named by `NATS_SERVER`.

mod origin;
#[path = "../program/mod.rs"]
mod program;

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use futures_util::StreamExt;
use ncserverd::lab::lossy::{self, Link};
use ncserverd::peer::{self, Client};
use ncserverd::tls::Trust;
use nctest::exposition::Exposition;
use nctest::fleet::{free_address, free_ports, nats_server, node};
use nctest::http::get;
use nctest::live;
use nctest::program::{PATIENCE, Program, metric, serve};
use program::program;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

const SEGMENTS: u32 = 60;
const SEGMENT_BYTES: usize = 200_000;
/// For viewers of whom there are many.
const SMALL_BYTES: usize = 20_000;
/// The time between two segments of a viewer.
const EVERY: Duration = Duration::from_millis(100);
/// How long a segment may take at most while its viewer moves: what a player holds ready.
const LATE: Duration = Duration::from_secs(3);

fn segment(number: u32) -> Vec<u8> {
    live::segment(number.into(), SEGMENT_BYTES)
}

/// NATS for the servers of one test at a time: each has several, and looks at the clock.
struct Engine {
    port: u16,
    node: Program,
    _turn: MutexGuard<'static, ()>,
}

impl Engine {
    /// `None`, and a line that says so, if there is no NATS.
    async fn start() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::const_new(());
        let nats = nats_server()?;
        let (turn, [port]) = (TURN.lock().await, free_ports());
        Some(Self {
            port,
            node: node(&nats, port, &[]),
            _turn: turn,
        })
    }
}

/// A server of the fleet that viewers can reach.
struct Server {
    program: Program,
    metrics: SocketAddr,
    server: peer::Server,
    command: Command,
    _state: TempDir,
}

/// Where a server has its segments from.
enum Source {
    /// A folder of its own.
    Folder,
    /// The origin at this URL.
    Origin(String),
}

impl Server {
    fn start(name: &str, engine: &Engine, source: &Source, further: &[&str]) -> Self {
        let address = free_address();
        Self::start_at((address, address), name, engine, source, further)
    }

    /// One that listens at the first address, and that viewers reach at the second.
    fn start_at(
        (listens, address): (SocketAddr, SocketAddr),
        name: &str,
        engine: &Engine,
        source: &Source,
        further: &[&str],
    ) -> Self {
        let state = TempDir::new().unwrap();
        let mut command = serve(&program("ncserverd"), &listens.to_string(), state.path());
        match source {
            Source::Folder => {
                let media = state.path().join("media");
                std::fs::create_dir(&media).unwrap();
                for number in 0..SEGMENTS {
                    let bytes = segment(number);
                    std::fs::write(media.join(format!("{number}.ts")), &bytes).unwrap();
                    let small = media.join(format!("small-{number}.ts"));
                    std::fs::write(small, &bytes[..SMALL_BYTES]).unwrap();
                }
                command.args(["--directory", &format!("live={}", media.display())]);
            }
            Source::Origin(url) => {
                command.args(["--origin", &format!("live={url}")]);
            }
        }
        let settings = [
            "cluster.engine=nats".to_owned(),
            format!("cluster.name={name}"),
            format!("cluster.advertise={address}"),
            format!("cluster.nats.urls=nats://127.0.0.1:{}", engine.port),
        ];
        let settings = settings
            .iter()
            .map(String::as_str)
            .chain(further.iter().copied());
        command.args(settings.flat_map(|setting| ["--set", setting]));
        let (program, metrics, fingerprint) = run(&mut command);
        let server = format!("ncs://{address}#{fingerprint}").parse().unwrap();
        Self {
            program,
            metrics,
            server,
            command,
            _state: state,
        }
    }

    /// Starts it again, with the same state and addresses.
    fn start_again(&mut self) {
        (self.program, self.metrics, _) = run(&mut self.command);
    }

    fn number(&self, name: &str) -> f64 {
        metric(self.metrics, name).unwrap_or(0.0)
    }

    /// One series, with its labels.
    fn labelled(&self, series: &str) -> f64 {
        let page = String::from_utf8(get(self.metrics, "/metrics").unwrap()).unwrap();
        let shown = Exposition::parse(&page).unwrap().series;
        shown.get(series).copied().unwrap_or(0.0)
    }

    fn await_number(&self, name: &str, wanted: f64) {
        let end = Instant::now() + PATIENCE;
        while self.number(name) != wanted {
            let now = self.number(name);
            assert!(
                Instant::now() < end,
                "{name}: {now}: {}",
                self.program.said()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Starts a server: where its metrics are, and the fingerprint of its certificate.
fn run(command: &mut Command) -> (Program, SocketAddr, String) {
    let program = Program::start(command);
    let [metrics] = program.says(["metrics on http://"]);
    let metrics = metrics.trim_end_matches("/metrics").parse().unwrap();
    let [fingerprint] = program.says(["--fingerprint "]);
    (program, metrics, fingerprint)
}

/// So many servers that know each other.
fn fleet(engine: &Engine, count: usize, source: &Source, further: &[&str]) -> Vec<Server> {
    let start = |number| Server::start(&format!("s{number}"), engine, source, further);
    let servers: Vec<Server> = (0..count).map(start).collect();
    for server in &servers {
        server.await_number("ncserverd_cluster_members", count as f64);
    }
    servers
}

/// A viewer that plays the segments one after the other.
struct Viewer {
    client: Client,
    next: u32,
    /// The longest time that a segment has taken.
    longest: Duration,
}

impl Viewer {
    async fn at(server: &Server) -> Self {
        // What comes again has to be fetched again.
        let config = peer::Config {
            cache: ByteSize(0),
            ..peer::Config::new(server.server.clone(), Trust::System)
        };
        Self {
            client: Client::connect(config).await.unwrap(),
            next: 0,
            longest: Duration::ZERO,
        }
    }

    /// Fetches a segment. Its bytes are right.
    async fn fetch(&self, number: u32) {
        let number = number % SEGMENTS;
        let path = format!("/live/{number}.ts");
        self.fetch_right(&path, &segment(number)).await;
    }

    /// The same for a small segment.
    async fn fetch_small(&self, number: u32) {
        let number = number % SEGMENTS;
        let path = format!("/live/small-{number}.ts");
        self.fetch_right(&path, &segment(number)[..SMALL_BYTES])
            .await;
    }

    async fn fetch_right(&self, path: &str, right: &[u8]) {
        let read = async {
            let mut object = self.client.open(path, None).await?;
            let mut bytes = Vec::new();
            while let Some(piece) = object.next().await {
                bytes.extend_from_slice(&piece?);
            }
            Ok::<_, peer::Error>(bytes)
        };
        let bytes = tokio::time::timeout(PATIENCE, read).await;
        let bytes = bytes.unwrap_or_else(|_| panic!("{path} does not come"));
        assert!(bytes.unwrap() == right, "{path}");
    }

    /// Plays the next segment, and waits for its end.
    async fn play(&mut self) {
        let begun = Instant::now();
        self.fetch(self.next).await;
        self.next += 1;
        let took = begun.elapsed();
        self.longest = self.longest.max(took);
        tokio::time::sleep(EVERY.saturating_sub(took)).await;
    }

    async fn play_some(&mut self, count: u32) {
        for _ in 0..count {
            self.play().await;
        }
    }

    /// Plays until this server alone serves it.
    async fn play_until_at(&mut self, server: &Server) {
        let end = Instant::now() + PATIENCE;
        while !self.is_at(server) {
            assert!(Instant::now() < end, "{:?}", self.sources());
            self.play().await;
        }
    }

    /// The servers that it is connected to.
    fn sources(&self) -> Vec<peer::Server> {
        let sources = self.client.stats().borrow().sources.clone();
        let connected = sources.into_iter().filter(|source| source.hello.is_some());
        connected.map(|source| source.server).collect()
    }

    fn is_at(&self, server: &Server) -> bool {
        self.sources() == [server.server.clone()]
    }

    /// Plays until one of these servers alone serves it, and says which.
    async fn play_until_settled(&mut self, servers: &[Server]) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            self.play_some(5).await;
            if let Some(at) = servers.iter().position(|server| self.is_at(server)) {
                return at;
            }
            assert!(Instant::now() < end, "{:?}", self.sources());
        }
    }
}

/// Wherever they come first.
#[tokio::test(flavor = "multi_thread")]
async fn viewers_of_one_stream_and_network_meet_at_one_server() {
    let Some(engine) = Engine::start().await else {
        return;
    };
    let servers = fleet(&engine, 3, &Source::Folder, &[]);
    let mut viewers = Vec::new();
    for server in &servers {
        let mut viewer = Viewer::at(server).await;
        let at = viewer.play_until_settled(&servers).await;
        viewers.push((viewer, at));
    }
    let homes: Vec<usize> = viewers.iter().map(|(_, at)| *at).collect();
    // So few are no load anywhere.
    assert!(homes.iter().all(|home| *home == homes[0]), "{homes:?}");
    let sum = |name: &str| {
        servers
            .iter()
            .map(|server| server.number(name))
            .sum::<f64>()
    };
    assert!(sum("ncserverd_session_sent_on_total") >= 1.0);
    assert_eq!(
        sum("ncserverd_session_sent_on_total"),
        sum("ncserverd_session_sent_here_total")
    );
    for (viewer, _) in &viewers {
        assert!(viewer.longest < LATE, "{:?}", viewer.longest);
    }
}

/// A stream is added to one server after the other: meanwhile its viewers are not sent to a server
/// that does not have it yet, nor told of it where there are others.
#[tokio::test(flavor = "multi_thread")]
async fn viewers_are_sent_to_servers_that_have_their_stream() {
    const STREAMS: usize = 8;
    let Some(engine) = Engine::start().await else {
        return;
    };
    let media = TempDir::new().unwrap();
    std::fs::write(media.path().join("0.ts"), segment(0)).unwrap();
    let added: Vec<String> = (0..STREAMS)
        .map(|stream| {
            let folder = media.path().display();
            format!("stream.added-{stream}.directory={folder}")
        })
        .collect();
    let added: Vec<&str> = added.iter().map(String::as_str).collect();
    let start = |name, further: &[&str]| Server::start(name, &engine, &Source::Folder, further);
    // All but one have it.
    let with = [start("s0", &added), start("s1", &added)];
    let without = start("s2", &[]);
    for server in with.iter().chain([&without]) {
        server.await_number("ncserverd_cluster_members", 3.0);
    }
    // Of eight streams one belongs to the last server, or nearly always: 1 - (2/3)^8 = 96 %.
    for server in &with {
        for stream in 0..STREAMS {
            let viewer = Viewer::at(server).await;
            let path = format!("/added-{stream}/0.ts");
            viewer.fetch_right(&path, &segment(0)).await;
            assert!(!viewer.is_at(&without), "{path}");
        }
    }
    for server in &with {
        assert_eq!(server.number("ncserverd_cluster_unlike_members"), 1.0);
    }
    assert_eq!(without.number("ncserverd_cluster_unlike_members"), 2.0);
}

/// An operator who sends viewers by other means wants them to stay.
#[tokio::test(flavor = "multi_thread")]
async fn without_steering_viewers_stay_where_they_come() {
    let Some(engine) = Engine::start().await else {
        return;
    };
    let servers = fleet(&engine, 3, &Source::Folder, &["cluster.steer=false"]);
    for server in &servers {
        let mut viewer = Viewer::at(server).await;
        viewer.play_some(10).await;
        assert!(viewer.is_at(server), "{:?}", viewer.sources());
        assert_eq!(server.number("ncserverd_session_sent_on_total"), 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_of_a_server_that_ends_go_to_another_and_miss_nothing() {
    let Some(engine) = Engine::start().await else {
        return;
    };
    let mut servers = fleet(&engine, 2, &Source::Folder, &["cluster.steer=false"]);
    let mut viewers = Vec::new();
    for _ in 0..3 {
        let mut viewer = Viewer::at(&servers[0]).await;
        viewer.play_some(3).await;
        viewers.push(viewer);
    }
    servers[0].program.signal("TERM");
    for viewer in &mut viewers {
        viewer.play_until_at(&servers[1]).await;
        assert!(viewer.longest < LATE, "{:?}", viewer.longest);
    }
    let end = Instant::now() + PATIENCE;
    while servers[0].program.has_ended().is_none() {
        assert!(Instant::now() < end, "it ends when its viewers are gone");
        std::thread::sleep(Duration::from_millis(50));
    }
    for viewer in &mut viewers {
        viewer.play_some(5).await;
    }
    assert_eq!(servers[1].number("ncserverd_session_sent_here_total"), 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_of_a_server_that_is_killed_go_to_another() {
    let Some(engine) = Engine::start().await else {
        return;
    };
    let servers = fleet(&engine, 2, &Source::Folder, &["cluster.steer=false"]);
    let mut viewer = Viewer::at(&servers[0]).await;
    viewer.play_some(5).await;
    servers[0].program.signal("KILL");
    // The connection to the dead server ends by its idle timeout.
    viewer.play_until_at(&servers[1]).await;
    println!("the longest segment took {:?}", viewer.longest);
    assert!(viewer.longest < LATE, "{:?}", viewer.longest);
    // The server that lives alone has nobody to name, and keeps its viewer.
    servers[1].await_number("ncserverd_cluster_members", 1.0);
    viewer.play_some(60).await;
    assert!(viewer.is_at(&servers[1]), "{:?}", viewer.sources());
    assert!(viewer.longest < LATE, "{:?}", viewer.longest);
}

/// It says nothing for a while, for example because its host is moved, and then goes on.
#[tokio::test(flavor = "multi_thread")]
async fn viewers_of_a_server_that_pauses_miss_nothing_and_come_back() {
    let Some(engine) = Engine::start().await else {
        return;
    };
    let servers = fleet(&engine, 2, &Source::Folder, &["cluster.steer=false"]);
    let mut viewer = Viewer::at(&servers[0]).await;
    viewer.play_some(5).await;
    servers[0].program.signal("STOP");
    viewer.play_some(10).await;
    assert!(viewer.sources().contains(&servers[1].server));
    println!("the longest segment took {:?}", viewer.longest);
    assert!(viewer.longest < LATE, "{:?}", viewer.longest);
    servers[0].program.signal("CONT");
    viewer.play_until_at(&servers[0]).await;
    assert!(viewer.longest < LATE, "{:?}", viewer.longest);
}

/// Whoever comes to a server without a place is told of another one, and not only refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_that_finds_no_place_is_told_where_there_is_one() {
    let Some(engine) = Engine::start().await else {
        return;
    };
    let settings = ["cluster.steer=false", "endpoint.connections_max=2"];
    let servers = fleet(&engine, 2, &Source::Folder, &settings);
    let mut viewers = Vec::new();
    for _ in 0..2 {
        let mut viewer = Viewer::at(&servers[0]).await;
        viewer.play_some(2).await;
        viewers.push(viewer);
    }
    for _ in 0..2 {
        let mut viewer = Viewer::at(&servers[0]).await;
        viewer.play_until_at(&servers[1]).await;
        assert!(viewer.longest < LATE, "{:?}", viewer.longest);
        viewers.push(viewer);
    }
    let sent_on = "ncserverd_endpoint_handshakes_sent_on_total";
    assert!(servers[0].number(sent_on) >= 2.0);
    // Both are full now, and know it: nobody is sent to and fro.
    servers[0].await_number("ncserverd_cluster_member_viewers", 4.0);
    let config = peer::Config::new(servers[0].server.clone(), Trust::System);
    let refused = tokio::time::timeout(PATIENCE, Client::connect(config)).await;
    assert!(refused.unwrap().is_err());
}

/// A player: segments have half a second of media each, it holds at most six seconds of them, and
/// fetches several at once.
struct Player {
    viewer: Viewer,
    begun: Instant,
    /// For each segment, how long before its time it was there.
    spare: Vec<Duration>,
}

impl Player {
    const LASTS: Duration = Duration::from_millis(500);
    const HOLDS: Duration = Duration::from_secs(6);
    const AT_ONCE: usize = 4;

    async fn at(server: &Server) -> Self {
        Self {
            viewer: Viewer::at(server).await,
            begun: Instant::now(),
            spare: Vec::new(),
        }
    }

    /// Plays so many segments more. None may be late or wrong.
    async fn play(&mut self, count: usize) {
        let first = self.spare.len();
        let numbers = first..first + count;
        let fetch = async |number: usize| {
            let shown_at = self.begun + Self::HOLDS + Self::LASTS * u32::try_from(number).unwrap();
            tokio::time::sleep_until((shown_at - Self::HOLDS).into()).await;
            self.viewer.fetch(u32::try_from(number).unwrap()).await;
            let spare = shown_at.checked_duration_since(Instant::now());
            spare.unwrap_or_else(|| panic!("segment {number} is late"))
        };
        let fetches = futures_util::stream::iter(numbers.map(fetch));
        let spare: Vec<Duration> = fetches.buffered(Self::AT_ONCE).collect().await;
        self.spare.extend(spare);
    }
}

/// Either of two servers, which are 100 ms away behind a loss of a tenth, is killed 20 times, or as
/// often as `NCTEST_KILLS` says, at random moments.
#[tokio::test(flavor = "multi_thread")]
async fn either_of_two_servers_is_killed_at_any_moment_and_no_segment_is_late() {
    let kills = std::env::var("NCTEST_KILLS").map_or(20, |kills| kills.parse().unwrap());
    let Some(engine) = Engine::start().await else {
        return;
    };
    let path = lossy::Direction {
        delay: Duration::from_millis(50),
        ..lossy::Direction::losing(0.1)
    };
    let (mut links, mut servers) = (Vec::new(), Vec::new());
    for seed in 0..2 {
        let server = free_address();
        let (to_server, to_client) = (path, path);
        let link = Link::start(lossy::Config {
            server,
            seed,
            to_server,
            to_client,
        });
        let link = link.unwrap();
        let (at, name) = ((server, link.address()), format!("s{seed}"));
        let settings = ["cluster.steer=false"];
        servers.push(Server::start_at(
            at,
            &name,
            &engine,
            &Source::Folder,
            &settings,
        ));
        links.push(link);
    }
    let mut player = Player::at(&servers[0]).await;
    player.play(4).await;
    let mut least = Vec::new();
    for kill in 0..kills {
        for server in &servers {
            server.await_number("ncserverd_cluster_members", 2.0);
        }
        // The player has had no time to fetch meanwhile.
        player.begun = Instant::now() - Player::LASTS * u32::try_from(player.spare.len()).unwrap();
        let moment = Duration::from_millis(rand::random_range(0..2000));
        let victim = rand::random_range(0..2);
        let before = player.spare.len();
        let killing = async {
            tokio::time::sleep(Duration::from_secs(2) + moment).await;
            servers[victim].program.signal("KILL");
        };
        tokio::join!(player.play(12), killing);
        let spare = player.spare[before..].iter().min().copied().unwrap();
        println!("kill {kill}, of server {victim}: {spare:?} to spare");
        least.push(spare);
        servers[victim].start_again();
    }
    least.sort_unstable();
    let [first, middle] = [least[0], least[least.len() / 2]];
    println!("{kills} kills: at least {first:?} to spare, {middle:?} in the middle of the kills");
}

/// A fleet of three is upgraded one by one under 40 viewers, or as many as `NCTEST_VIEWERS` says:
/// each server is told to stop, its viewers go to the others, and it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn servers_are_restarted_one_by_one_and_no_viewer_misses_a_segment() {
    const HOLDS: Duration = Duration::from_secs(4);
    const LASTS: Duration = Duration::from_secs(2);
    let count = std::env::var("NCTEST_VIEWERS").map_or(40, |count| count.parse().unwrap());
    let Some(engine) = Engine::start().await else {
        return;
    };
    let settings = [
        "server.drain_timeout=30s",
        // All viewers have one address.
        "admission.address_connections_max=10000",
    ];
    let mut servers = fleet(&engine, 3, &Source::Folder, &settings);
    let mut viewers = Vec::new();
    for number in 0..count {
        viewers.push(Viewer::at(&servers[number % servers.len()]).await);
    }
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let begun = Instant::now();
    let playing = viewers.into_iter().enumerate().map(|(index, viewer)| {
        let stopped = stopped.clone();
        // Not all at the same instant.
        let offset = LASTS.mul_f64(index as f64 / count as f64);
        tokio::spawn(async move {
            let (mut played, mut least) = (0, HOLDS);
            while !*stopped.borrow() {
                let shown_at = begun + offset + HOLDS + LASTS * played;
                tokio::time::sleep_until((shown_at - HOLDS).into()).await;
                viewer.fetch_small(played).await;
                let spare = shown_at.checked_duration_since(Instant::now());
                least = least.min(spare.unwrap_or_else(|| panic!("segment {played} is late")));
                played += 1;
            }
            (played, least)
        })
    });
    let playing: Vec<_> = playing.collect();
    tokio::time::sleep(2 * LASTS).await;
    for number in 0..servers.len() {
        servers[number].program.signal("TERM");
        let end = Instant::now() + PATIENCE;
        while servers[number].program.has_ended().is_none() {
            assert!(Instant::now() < end, "it ends when its viewers have gone");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        servers[number].start_again();
        for server in &servers {
            server.await_number("ncserverd_cluster_members", 3.0);
        }
        tokio::time::sleep(2 * LASTS).await;
    }
    // Each is at one server in the end.
    let sessions = |server: &Server| server.number("ncserverd_session_open_sessions");
    let end = Instant::now() + PATIENCE;
    while servers.iter().map(sessions).sum::<f64>() != count as f64 {
        let at: Vec<f64> = servers.iter().map(sessions).collect();
        assert!(Instant::now() < end, "{at:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    stop.send_replace(true);
    let (mut played, mut least) = (0, HOLDS);
    for viewer in playing {
        let (segments, spare) = viewer.await.unwrap();
        (played, least) = (played + segments, least.min(spare));
    }
    println!("{count} viewers, {played} segments, none late: {least:?} of {HOLDS:?} to spare");
}
