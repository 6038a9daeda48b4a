//! The origin is asked once for the whole fleet: a real nginx, whose log counts.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nctest::fleet::free_ports;
use nctest::nginx;
use nctest::process::Process;
use nctest::program::PATIENCE;
use nctest::skip::skip;
use tempfile::TempDir;

use super::{Engine, SEGMENTS, Server, Source, Viewer, segment};

/// An nginx that has the segments.
struct Nginx {
    directory: TempDir,
    address: SocketAddr,
    _process: Process,
}

impl Nginx {
    /// `None`, and a line that says so, if there is no nginx.
    fn start() -> Option<Self> {
        if Command::new("nginx").arg("-v").output().is_err() {
            skip("there is no nginx");
            return None;
        }
        let directory = TempDir::new().unwrap();
        let media = directory.path().join("media");
        fs::create_dir(&media).unwrap();
        for number in 0..SEGMENTS {
            fs::write(media.join(format!("{number}.ts")), segment(number)).unwrap();
        }
        let [port] = free_ports();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let file = nginx::configure(directory.path(), address);
        let mut command = Command::new("nginx");
        command.arg("-p").arg(directory.path()).arg("-c").arg(file);
        let process = Process::start(&mut command);
        let end = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(address).is_err() {
            assert!(Instant::now() < end, "nginx does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Self {
            directory,
            address,
            _process: process,
        })
    }

    fn source(&self) -> Source {
        Source::Origin(format!("http://{}/", self.address))
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("access.log")
    }

    /// How often each of these segments was requested.
    fn requests(&self, segments: std::ops::Range<u32>) -> Vec<usize> {
        let log = fs::read_to_string(self.log()).unwrap();
        let count = |number: u32| {
            let request = format!("GET /{number}.ts ");
            log.lines().filter(|line| line.contains(&request)).count()
        };
        segments.map(count).collect()
    }
}

fn fleet(engine: &Engine, count: usize, nginx: &Nginx) -> Vec<Server> {
    super::fleet(engine, count, &nginx.source(), &["cluster.steer=false"])
}

/// Viewers of all servers fetch these segments at the same time.
async fn watch(servers: &[Server], segments: std::ops::Range<u32>) {
    let mut viewers = Vec::new();
    for server in servers {
        viewers.push(Viewer::at(server).await);
    }
    let fetch = async |viewer: &Viewer| {
        for number in segments.clone() {
            viewer.fetch(number).await;
        }
    };
    futures_util::future::join_all(viewers.iter().map(fetch)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_segment_is_requested_once_from_the_origin() {
    let (Some(engine), Some(nginx)) = (Engine::start().await, Nginx::start()) else {
        return;
    };
    let servers = fleet(&engine, 5, &nginx);
    watch(&servers, 0..40).await;
    let requests = nginx.requests(0..40);
    // A busy machine may be late once or twice.
    assert!(
        requests.iter().all(|count| (1..=2).contains(count)),
        "{requests:?}"
    );
    assert!(requests.iter().sum::<usize>() <= 42, "{requests:?}");
    // The homes are spread.
    let by = |by: &str| format!("ncserverd_cluster_fetches_total{{by=\"{by}\"}}");
    let count = |what: &str| {
        let counts = servers.iter().map(|server| server.labelled(&by(what)));
        counts.collect::<Vec<f64>>()
    };
    let (home, member, hedge) = (count("home"), count("member"), count("hedge"));
    assert!(home.iter().all(|count| *count > 0.0), "{home:?}");
    assert_eq!(home.iter().sum::<f64>(), 40.0);
    let (member, hedge): (f64, f64) = (member.iter().sum(), hedge.iter().sum());
    assert!(member + hedge == 160.0 && hedge <= 2.0, "{member}, {hedge}");
}

/// Its objects are requested from the origin at most twice, and viewers wait for none of them.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_home_is_dead_the_origin_is_asked_at_most_twice() {
    let (Some(engine), Some(nginx)) = (Engine::start().await, Nginx::start()) else {
        return;
    };
    let mut servers = fleet(&engine, 5, &nginx);
    watch(&servers, 0..20).await;
    let dead = servers.pop().unwrap();
    dead.program.signal("KILL");
    let begun = Instant::now();
    watch(&servers, 20..40).await;
    println!("20 segments took {:?} beside a dead home", begun.elapsed());
    let requests = nginx.requests(20..40);
    let is_few = |count: &usize| (1..=2).contains(count);
    assert!(requests.iter().all(is_few), "{requests:?}");
    // Nobody else becomes impatient while the next server waits for the dead one.
    assert!(requests.iter().sum::<usize>() <= 22, "{requests:?}");
    // When it is forgotten, each is requested once again.
    for server in &servers {
        server.await_number("ncserverd_cluster_members", 4.0);
    }
    watch(&servers, 40..SEGMENTS).await;
    let requests = nginx.requests(40..SEGMENTS);
    assert!(requests.iter().sum::<usize>() <= 22, "{requests:?}");
}

/// It has lost all that it had, and does not know yet that there are others. It has all of it from
/// them, also what it is the home of.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_anew_asks_the_others() {
    let (Some(engine), Some(nginx)) = (Engine::start().await, Nginx::start()) else {
        return;
    };
    let mut servers = fleet(&engine, 3, &nginx);
    watch(&servers, 0..40).await;
    let home = |server: &Server| server.labelled("ncserverd_cluster_fetches_total{by=\"home\"}");
    let before = home(&servers[0]);
    assert!(before > 0.0 && before < 40.0, "others are homes, too");
    servers[0].program.signal("KILL");
    while servers[0].program.has_ended().is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    servers[0].start_again();
    // Its viewers are there at once.
    watch(&servers[..1], 0..40).await;
    assert_eq!(home(&servers[0]), 0.0);
    let requests = nginx.requests(0..40);
    assert!(requests.iter().sum::<usize>() <= 42, "{requests:?}");
}

/// Answers of other servers are judged by the key that signs the stream now.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_signing_key_costs_the_origin_nothing() {
    let (Some(engine), Some(nginx)) = (Engine::start().await, Nginx::start()) else {
        return;
    };
    let key = nginx.directory.path().join("live.pem");
    let signing = format!("stream.live.signing_key={}", key.display());
    let settings = ["cluster.steer=false", &signing];
    let servers = super::fleet(&engine, 3, &nginx.source(), &settings);
    watch(&servers, 0..20).await;
    assert_eq!(nginx.requests(0..20), [1; 20]);
    let next = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    fs::write(&key, next.serialize_pem()).unwrap();
    for server in &servers {
        // What it has said until now is read.
        server.program.said();
        server.program.signal("HUP");
        server.program.says(["the stream is signed"]);
    }
    watch(&servers, 20..SEGMENTS).await;
    let requests = nginx.requests(20..SEGMENTS);
    assert!(requests.iter().sum::<usize>() <= 42, "{requests:?}");
}

/// Each asks for itself, as long as it knows of nobody.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_engine_every_server_asks_the_origin() {
    let (Some(engine), Some(nginx)) = (Engine::start().await, Nginx::start()) else {
        return;
    };
    let servers = fleet(&engine, 2, &nginx);
    let Engine { node, _turn, .. } = engine;
    drop(node);
    for server in &servers {
        server.await_number("ncserverd_cluster_members", 1.0);
    }
    watch(&servers, 0..10).await;
    let requests = nginx.requests(0..10);
    assert!(requests.iter().all(|count| *count == 2), "{requests:?}");
}
