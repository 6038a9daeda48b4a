//! Viewers that serve each other: named by the server, admitted by its tickets, never needed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ncserverd::config;
use ncserverd::directory::Policy;
use ncserverd::lab::origin::Origin;
use ncserverd::object::RefusalCode;
use ncserverd::peer::{self, Client, Error};
use ncserverd::relay::{self, Relay};
use ncserverd::server::Server;
use ncserverd::stream::{self, CodecName};
use ncserverd::telemetry::Readiness;
use ncserverd::tls::{ServerIdentity, Trust};
use nctest::script::bytes;
use prometheus::Registry;

const PATIENCE: Duration = Duration::from_secs(60);
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A server with one stream, `live`, whose viewers may be told of each other.
struct Place {
    origin: Origin,
    _server: Server,
    at: peer::Server,
    registry: Registry,
}

impl Place {
    async fn open(policy: Policy, directory: &Path) -> Self {
        Self::coded_with(
            stream::Config {
                peers: policy,
                ..stream::Config::default()
            },
            directory,
        )
        .await
    }

    async fn coded_with(stream: stream::Config, directory: &Path) -> Self {
        let origin = Origin::in_memory().await.unwrap();
        let mut settings = config::Config::default();
        settings.endpoint.listen = vec![LOOPBACK];
        let signing_key = Some(directory.join("live.pem"));
        let url = Some(format!("{}vod/", origin.url()).into());
        let stream = stream::Config {
            origin: url,
            signing_key,
            ..stream
        };
        settings.stream.insert("live".into(), stream);
        let (identity, registry) = (ServerIdentity::ephemeral().unwrap(), Registry::new());
        let server = Server::start(settings, identity.clone(), &registry, Readiness::new())
            .await
            .unwrap();
        let at = at(server.addresses()[0], &identity);
        Self {
            origin,
            _server: server,
            at,
            registry,
        }
    }

    fn viewer(&self) -> peer::Config {
        peer::Config {
            neighbours_max: 8,
            private_neighbours: true,
            ..peer::Config::new(self.at.clone(), Trust::System)
        }
    }

    /// A viewer that serves what it reads to others.
    async fn sharing(&self) -> (Relay, peer::Server) {
        let identity = ServerIdentity::ephemeral().unwrap();
        let config = relay::Config {
            offers: true,
            own_only: true,
            ..relay::Config::listening(vec![LOOPBACK])
        };
        let relay = Relay::start(
            config,
            self.viewer(),
            identity.clone(),
            &Registry::new(),
            &Readiness::new(),
        )
        .await
        .unwrap();
        let at = at(relay.addresses()[0], &identity);
        (relay, at)
    }

    /// Waits until this many peers have been offered.
    async fn until_offered(&self, count: f64) {
        for _ in 0..600 {
            if self.read("ncserverd_directory_peers") >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("nobody offers");
    }

    fn read(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap_or_else(|| panic!("no series {name}"));
        let metric = &family.get_metric()[0];
        metric.get_counter().get_value() + metric.get_gauge().get_value()
    }
}

fn at(address: SocketAddr, identity: &ServerIdentity) -> peer::Server {
    peer::Server {
        host: address.ip().to_string(),
        port: address.port(),
        fingerprint: Some(identity.fingerprint()),
    }
}

async fn read(client: &Client, path: &str) -> Result<Vec<u8>, Error> {
    tokio::time::timeout(PATIENCE, async {
        client.open(path, None).await?.read_to_end().await
    })
    .await
    .unwrap()
}

/// The bytes of received blocks, and how many of them came from other viewers.
fn shares(client: &Client) -> (u64, u64) {
    let stats = client.stats().borrow().clone();
    (stats.payload_bytes, stats.neighbour_bytes)
}

/// Long enough for a viewer to announce what it holds, and for the next question to be answered
/// with it.
const TOLD: Duration = Duration::from_millis(700);

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_has_most_from_one_that_was_there_before() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::open(Policy::All, directory.path()).await;
    let all: Vec<_> = (1..=4).map(|number| bytes(number, 1_500_001)).collect();
    for (number, all) in all.iter().enumerate() {
        place
            .origin
            .put(&format!("/vod/{number}.ts"), Bytes::from(all.clone()));
    }
    let (first, first_at) = place.sharing().await;
    for (number, all) in all.iter().enumerate() {
        assert!(
            read(first.client(), &format!("/live/{number}.ts"))
                .await
                .unwrap()
                == *all
        );
    }
    place.until_offered(1.0).await;
    tokio::time::sleep(TOLD).await;
    let second = Client::connect(place.viewer()).await.unwrap();
    for (number, all) in all.iter().enumerate() {
        assert!(read(&second, &format!("/live/{number}.ts")).await.unwrap() == *all);
    }
    let (came, from_first) = shares(&second);
    assert!(from_first > came / 4, "{from_first} of {came} bytes");
    assert!(place.read("ncserverd_directory_introductions_total") > 0.0);

    // A viewer that opted out is served by the server alone.
    let alone = Client::connect(peer::Config {
        neighbours_max: 0,
        ..place.viewer()
    })
    .await
    .unwrap();
    assert!(read(&alone, "/live/0.ts").await.unwrap() == all[0]);
    assert_eq!(shares(&alone).1, 0);

    // A client without a ticket is told that one is required, and nothing of what exists.
    let stranger = Client::connect(peer::Config::new(first_at, Trust::System))
        .await
        .unwrap();
    let refused = read(&stranger, "/live/0.ts").await;
    assert!(
        matches!(refused, Err(Error::Refused(refusal)) if refusal.code == RefusalCode::Forbidden)
    );
    first.drain(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_leaves_in_the_middle_is_not_missed() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::open(Policy::All, directory.path()).await;
    // Six parts, of which three are fetched ahead of the reader.
    let all = bytes(1, 45_000_001);
    place.origin.put("/vod/a.ts", Bytes::from(all.clone()));
    let (first, _) = place.sharing().await;
    assert!(read(first.client(), "/live/a.ts").await.unwrap() == all);
    place.until_offered(1.0).await;
    tokio::time::sleep(TOLD).await;
    let second = Client::connect(place.viewer()).await.unwrap();
    let mut object = second.open("/live/a.ts", None).await.unwrap();
    let mut got = Vec::new();
    while shares(&second).1 == 0 {
        let piece = tokio::time::timeout(PATIENCE, object.next()).await.unwrap();
        let piece = piece.expect("the first one is drawn on before the end");
        got.extend_from_slice(&piece.unwrap());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(got.len() < all.len(), "it has all of it by then");
    first.drain(Duration::ZERO).await;
    let rest = tokio::time::timeout(PATIENCE, object.read_to_end())
        .await
        .unwrap()
        .unwrap();
    got.extend_from_slice(&rest);
    assert!(got == all);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_named_where_the_stream_does_not_allow_it() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::open(Policy::Off, directory.path()).await;
    let all = bytes(1, 1_000_001);
    place.origin.put("/vod/a.ts", Bytes::from(all.clone()));
    let (first, _) = place.sharing().await;
    assert!(read(first.client(), "/live/a.ts").await.unwrap() == all);
    tokio::time::sleep(TOLD).await;
    let second = Client::connect(place.viewer()).await.unwrap();
    assert!(read(&second, "/live/a.ts").await.unwrap() == all);
    assert_eq!(shares(&second).1, 0);
    assert_eq!(place.read("ncserverd_directory_introductions_total"), 0.0);
    first.drain(Duration::ZERO).await;
}

/// Viewers that start at the same time get blocks from each other before one has all of them.
#[tokio::test(flavor = "multi_thread")]
async fn viewers_that_come_together_help_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::open(Policy::All, directory.path()).await;
    let all: Vec<_> = (1..=6).map(|number| bytes(number, 600_001)).collect();
    for (number, all) in all.iter().enumerate() {
        place
            .origin
            .put(&format!("/vod/{number}.ts"), Bytes::from(all.clone()));
    }
    let mut viewers = Vec::new();
    for _ in 0..5 {
        viewers.push(place.sharing().await.0);
    }
    place.until_offered(5.0).await;
    let watch = |client: Client| {
        let all = all.clone();
        tokio::spawn(async move {
            for (number, all) in all.iter().enumerate() {
                assert!(read(&client, &format!("/live/{number}.ts")).await.unwrap() == *all);
                tokio::time::sleep(TOLD).await;
            }
        })
    };
    let watching: Vec<_> = viewers
        .iter()
        .map(|viewer| watch(viewer.client().clone()))
        .collect();
    for viewer in watching {
        viewer.await.unwrap();
    }
    let latecomer = Client::connect(place.viewer()).await.unwrap();
    for (number, all) in all.iter().enumerate() {
        assert!(
            read(&latecomer, &format!("/live/{number}.ts"))
                .await
                .unwrap()
                == *all
        );
    }
    let (came, from_others) = shares(&latecomer);
    assert!(from_others > came / 4, "{from_others} of {came} bytes");
    for viewer in viewers {
        viewer.drain(Duration::ZERO).await;
    }
}

/// Blocks of the other codes are not recoded: a viewer serves a segment only when it is complete,
/// and rejects requests before.
#[tokio::test(flavor = "multi_thread")]
async fn viewers_pass_on_whole_segments_of_what_is_not_recoded() {
    for (codec, parity) in [(CodecName::Rs, Some(16)), (CodecName::RaptorQ, None)] {
        let directory = tempfile::tempdir().unwrap();
        let stream = stream::Config {
            peers: Policy::All,
            codec,
            parity,
            ..stream::Config::default()
        };
        let place = Place::coded_with(stream, directory.path()).await;
        let all: Vec<_> = (1..=4).map(|number| bytes(number, 1_500_001)).collect();
        for (number, all) in all.iter().enumerate() {
            place
                .origin
                .put(&format!("/vod/{number}.ts"), Bytes::from(all.clone()));
        }
        let (first, _) = place.sharing().await;
        let (other, _) = place.sharing().await;
        place.until_offered(2.0).await;
        // Two that start together get the same blocks from the server, and neither waits for the
        // other.
        let together = [first.client().clone(), other.client().clone()].map(|client| {
            let all = all.clone();
            tokio::spawn(async move {
                for (number, all) in all.iter().enumerate() {
                    assert!(read(&client, &format!("/live/{number}.ts")).await.unwrap() == *all);
                }
            })
        });
        for reading in together {
            reading.await.unwrap();
        }
        tokio::time::sleep(TOLD).await;
        let late = Client::connect(place.viewer()).await.unwrap();
        for (number, all) in all.iter().enumerate() {
            assert!(
                read(&late, &format!("/live/{number}.ts")).await.unwrap() == *all,
                "{codec:?}"
            );
        }
        let (came, from_others) = shares(&late);
        assert!(
            from_others > came / 4,
            "{codec:?}: {from_others} of {came} bytes"
        );
        assert!(
            late.stats().borrow().blocks_useless * 20 <= late.stats().borrow().blocks_received,
            "{codec:?}"
        );
        first.drain(Duration::ZERO).await;
        other.drain(Duration::ZERO).await;
    }
}
