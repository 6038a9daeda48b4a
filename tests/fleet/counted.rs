//! Limits of a token that is used at several servers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use ncserverd::peer::{self, Client};
use ncserverd::tls::{self, Trust};
use ncserverd::wire::message::{Credential, Hello, Message, Token};
use ncserverd::wire::{CODE_BASE, CloseCode};
use nctest::http::get;
use nctest::mint;
use nctest::program::{PATIENCE, metric};
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::{Carrier, DEAD_WITHIN, Server};

/// A holder with too many connections loses the newest in this time.
const CORRECTED_WITHIN: Duration = Duration::from_secs(9);

/// A fleet of servers that admit holders of tokens.
struct Fleet {
    carrier: Carrier,
    servers: Vec<Server>,
    keys: TempDir,
    runtime: Runtime,
}

impl Fleet {
    /// This many servers that know each other.
    fn start(mut carrier: Carrier, count: usize) -> Self {
        let keys = TempDir::new().unwrap();
        std::fs::write(keys.path().join("keys.json"), mint::keys().to_string()).unwrap();
        carrier.run();
        let mut fleet = Self {
            carrier,
            servers: Vec::new(),
            keys,
            runtime: Runtime::new().unwrap(),
        };
        for number in 0..count {
            fleet.add(&format!("s{number}"));
        }
        let known = count as f64;
        let servers = fleet.servers.iter();
        servers.for_each(|server| server.await_members(known, PATIENCE));
        fleet
    }

    fn add(&mut self, name: &str) {
        let keys = self.keys.path().join("keys.json");
        let further = [
            "cluster.steer=false".to_owned(),
            format!("admission.keys={}", keys.display()),
        ];
        let server = self.carrier.start_with(name, &further);
        self.servers.push(server);
    }

    fn connect(&self, server: usize, token: &str) -> Viewer {
        self.runtime
            .block_on(Viewer::connect(&self.servers[server], token))
    }

    /// Waits until this is so.
    fn wait(&self, what: &str, within: Duration, is_so: impl Fn() -> bool) {
        let end = Instant::now() + within;
        while !is_so() {
            let logs: Vec<_> = self
                .servers
                .iter()
                .map(|server| server.program.said())
                .collect();
            assert!(Instant::now() < end, "{what}: {logs:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn page(&self, server: usize) -> String {
        String::from_utf8(get(self.servers[server].metrics, "/metrics").unwrap()).unwrap()
    }
}

/// A token of a subject of its own, with these limits.
fn token(subject: &str, limits: serde_json::Value) -> String {
    let mut claims = mint::claims(&["/live/*"], 600);
    claims["sub"] = json!(subject);
    for (limit, value) in limits.as_object().unwrap() {
        claims["ncs"][limit] = value.clone();
    }
    mint::hs256("h", &mint::SECRET, &claims)
}

/// A connection that has shown a token.
struct Viewer {
    connection: Connection,
    _endpoint: Endpoint,
    _control: (SendStream, RecvStream),
}

impl Viewer {
    async fn connect(server: &Server, token: &str) -> Self {
        let trust = Trust::Fingerprint(server.fingerprint.parse().unwrap());
        let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let mut endpoint = Endpoint::client(here).unwrap();
        let tls = tls::client_config(&trust, None).unwrap();
        let mut config = quinn::ClientConfig::new(Arc::new(tls));
        let mut transport = quinn::TransportConfig::default();
        transport.keep_alive_interval(Some(Duration::from_secs(1)));
        config.transport_config(Arc::new(transport));
        endpoint.set_default_client_config(config);
        let connecting = endpoint.connect(server.address, "localhost").unwrap();
        let connection = connecting.await.unwrap();
        let (mut send, receive) = connection.open_bi().await.unwrap();
        let hello = Hello {
            agent: "viewer".to_owned(),
            ..Hello::defaults()
        };
        let auth = Message::Auth(Credential::Token(Token(token.to_owned())));
        let said = [Message::Hello(hello).to_frame(), auth.to_frame()].concat();
        let _ = send.write_all(&said).await;
        Self {
            connection,
            _endpoint: endpoint,
            _control: (send, receive),
        }
    }

    fn is_open(&self) -> bool {
        match self.connection.close_reason() {
            None => true,
            Some(ConnectionError::ApplicationClosed(close)) => {
                let code = u64::from(close.error_code);
                assert_eq!(
                    code,
                    u64::from(CODE_BASE + CloseCode::Limit as u32),
                    "{close}"
                );
                false
            }
            Some(other) => panic!("{other}"),
        }
    }
}

fn open(viewers: &[Viewer]) -> usize {
    viewers.iter().filter(|viewer| viewer.is_open()).count()
}

#[test]
fn connections_of_a_holder_are_counted_at_all_servers() {
    Carrier::each(|carrier| {
        let fleet = Fleet::start(carrier, 3);
        let limited = token("ann", json!({ "connections": 3 }));
        let old = [0, 1, 0].map(|server| fleet.connect(server, &limited));
        std::thread::sleep(Duration::from_secs(1));
        let other = fleet.connect(1, &token("bob", json!({ "connections": 1 })));
        let begun = Instant::now();
        // Nobody waits for the count.
        let new = [1, 2, 1].map(|server| fleet.connect(server, &limited));
        fleet.wait("the newest go", CORRECTED_WITHIN, || open(&new) == 0);
        println!("corrected after {:?}", begun.elapsed());
        assert_eq!(open(&old), 3);
        let closed = (0..3).map(|server| {
            let page = fleet.page(server);
            let row = "ncserverd_admission_limited_total{by=\"fleet\"} ";
            let (_, rest) = page.split_once(row).unwrap();
            rest.lines().next().unwrap().parse::<f64>().unwrap()
        });
        assert_eq!(closed.sum::<f64>(), 3.0);
        // Who comes again is refused at once.
        let again = fleet.connect(1, &limited);
        fleet.wait("refused", Duration::from_secs(2), || !again.is_open());

        // A server is killed, and its connections count until it is missed.
        fleet.servers[0].program.signal("KILL");
        fleet.servers[1].await_members(2.0, DEAD_WITHIN);
        std::thread::sleep(Duration::from_secs(2));
        let next = [2, 2, 2].map(|server| fleet.connect(server, &limited));
        fleet.wait("two places", CORRECTED_WITHIN, || open(&next) == 2);
        std::thread::sleep(CORRECTED_WITHIN);
        assert_eq!((open(&next), open(&old[1..2])), (2, 1));
        assert!(other.is_open());
        assert_eq!(
            metric(fleet.servers[1].metrics, "ncserverd_cluster_lost_members"),
            Some(1.0)
        );
    });
}

/// With the list gone servers still reach each other; without NATS each counts what it knows.
#[test]
fn without_the_engine_viewers_are_admitted_at_once_and_counted_when_it_is_back() {
    Carrier::each(|carrier| {
        let mut fleet = Fleet::start(carrier, 2);
        let limited = token("ann", json!({ "connections": 2 }));
        let old = [0, 1].map(|server| fleet.connect(server, &limited));
        std::thread::sleep(Duration::from_secs(2));
        fleet.carrier.stop();
        let begun = Instant::now();
        let new = [0, 1].map(|server| fleet.connect(server, &limited));
        assert!(
            begun.elapsed() < Duration::from_secs(1),
            "{:?}",
            begun.elapsed()
        );
        match fleet.carrier {
            Carrier::Nats { .. } => {
                fleet.servers[0].await_members(1.0, DEAD_WITHIN);
                fleet.servers[1].await_members(1.0, DEAD_WITHIN);
                std::thread::sleep(CORRECTED_WITHIN);
                // Each part has the whole limit: two of them.
                assert_eq!((open(&old), open(&new)), (2, 2));
                let lost = metric(fleet.servers[0].metrics, "ncserverd_cluster_lost_members");
                assert_eq!(lost, Some(1.0));
            }
            Carrier::List(_) => fleet.wait("the newest go", CORRECTED_WITHIN, || open(&new) == 0),
        }
        fleet.carrier.run();
        let known = |server: &Server| server.await_members(2.0, PATIENCE);
        fleet.servers.iter().for_each(known);
        fleet.wait("the newest go", CORRECTED_WITHIN, || open(&new) == 0);
        assert_eq!(open(&old), 2);
    });
}

/// Two servers that do not count together would send twice as much.
#[test]
fn bytes_of_a_holder_are_counted_at_all_servers() {
    const RATE: u64 = 400_000;
    const MEASURED: Duration = Duration::from_secs(10);
    Carrier::each(|carrier| {
        let fleet = Fleet::start(carrier, 2);
        let limited = token("ann", json!({ "rate": RATE }));
        let (bytes, ends) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let watch = async |server: SocketAddr, trust: Trust| {
            let config = peer::Config::new(
                peer::Server {
                    host: server.ip().to_string(),
                    port: server.port(),
                    fingerprint: None,
                },
                trust,
            );
            let token = Some(peer::TokenSource::fixed(&limited).unwrap());
            let client = Client::connect(peer::Config {
                token,
                // What comes again has to be fetched again.
                cache: ByteSize(0),
                ..config
            })
            .await
            .unwrap();
            while !ends.load(Ordering::Relaxed) {
                let object = client.open("/live/a.bin", None).await.unwrap();
                let read = object.read_to_end().await.unwrap();
                bytes.fetch_add(read.len(), Ordering::Relaxed);
            }
        };
        let viewers = fleet.servers.iter().map(|server| {
            let trust = Trust::Fingerprint(server.fingerprint.parse().unwrap());
            watch(server.address, trust)
        });
        let viewers: Vec<_> = viewers.collect();
        let measure = async {
            // Until they agree, both have all of it.
            tokio::time::sleep(Duration::from_secs(6)).await;
            let before = bytes.load(Ordering::Relaxed);
            tokio::time::sleep(MEASURED).await;
            let sum = bytes.load(Ordering::Relaxed) - before;
            ends.store(true, Ordering::Relaxed);
            sum
        };
        let viewers = futures_util::future::join_all(viewers);
        let (sum, _) = fleet
            .runtime
            .block_on(async { tokio::join!(measure, viewers) });
        let rate = sum as f64 / MEASURED.as_secs_f64() / RATE as f64;
        println!("{rate:.2} times the rate");
        assert!((0.6..=1.4).contains(&rate), "{rate}");
    });
}
