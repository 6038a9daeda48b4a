//! Relays on real sockets: what they pass on, also before they have all of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use bytesize::ByteSize;
use futures_util::future::join_all;
use ncserverd::config;
use ncserverd::endpoint;
use ncserverd::lab::lossy::{self, Direction, Link};
use ncserverd::lab::origin::Origin;
use ncserverd::object::{Codec, HashGroup, RefusalCode};
use ncserverd::peer::{self, Client, Error};
use ncserverd::relay::{self, Relay};
use ncserverd::server::Server;
use ncserverd::stream::{self, CodecName};
use ncserverd::telemetry::{Readiness, Reason};
use ncserverd::tls::{ServerIdentity, Trust};
use nctest::script::{Fault, Script, bytes};
use prometheus::Registry;
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(60);
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A relay, its address, and its metrics.
struct Station {
    relay: Relay,
    server: peer::Server,
    registry: Registry,
    readiness: Readiness,
}

impl Station {
    async fn start(sources: peer::Config) -> Self {
        Self::with(sources, relay::Config::default()).await
    }

    async fn with(sources: peer::Config, config: relay::Config) -> Self {
        let identity = ServerIdentity::ephemeral().unwrap();
        let endpoint = endpoint::Config {
            listen: vec![LOOPBACK],
            ..endpoint::Config::default()
        };
        let (registry, readiness) = (Registry::new(), Readiness::new());
        readiness.ready("server");
        let config = relay::Config { endpoint, ..config };
        let relay = Relay::start(config, sources, identity.clone(), &registry, &readiness)
            .await
            .unwrap();
        let server = server(relay.addresses()[0], &identity);
        Self {
            relay,
            server,
            registry,
            readiness,
        }
    }

    fn config(&self) -> peer::Config {
        peer::Config::new(self.server.clone(), Trust::System)
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

fn server(address: SocketAddr, identity: &ServerIdentity) -> peer::Server {
    peer::Server {
        host: address.ip().to_string(),
        port: address.port(),
        fingerprint: Some(identity.fingerprint()),
    }
}

/// A server with one stream, `live`, and its origin.
async fn publish() -> (Origin, Server, peer::Server) {
    publish_with(stream::Config::default()).await
}

/// The same with a stream that is cut and coded like this.
async fn publish_with(stream: stream::Config) -> (Origin, Server, peer::Server) {
    let origin = Origin::in_memory().await.unwrap();
    let mut settings = config::Config::default();
    settings.endpoint.listen = vec![LOOPBACK];
    let stream = stream::Config {
        origin: Some(format!("{}vod/", origin.url()).into()),
        ..stream
    };
    settings.stream.insert("live".into(), stream);
    let identity = ServerIdentity::ephemeral().unwrap();
    let running = Server::start(
        settings,
        identity.clone(),
        &Registry::new(),
        Readiness::new(),
    )
    .await
    .unwrap();
    let at = server(running.addresses()[0], &identity);
    (origin, running, at)
}

async fn read(client: &Client, path: &str) -> Result<Vec<u8>, Error> {
    tokio::time::timeout(PATIENCE, async {
        client.open(path, None).await?.read_to_end().await
    })
    .await
    .unwrap()
}

async fn client(config: peer::Config) -> Client {
    Client::connect(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_relays_passes_everything_on() {
    let (origin, running, at) = publish().await;
    let all = bytes(1, 3_000_001);
    origin.put("/vod/a.ts", Bytes::from(all.clone()));
    origin.put(
        "/vod/list.m3u8",
        Bytes::from_static(b"#EXTM3U\n#EXT-X-ENDLIST\n"),
    );
    let first = Station::start(peer::Config::new(at, Trust::System)).await;
    let second = Station::start(first.config()).await;
    let third = Station::start(second.config()).await;
    let viewer = client(third.config()).await;
    assert!(read(&viewer, "/live/a.ts").await.unwrap() == all);
    assert_eq!(
        read(&viewer, "/live/list.m3u8").await.unwrap(),
        b"#EXTM3U\n#EXT-X-ENDLIST\n"
    );
    assert!(matches!(
        read(&viewer, "/live/none").await,
        Err(Error::Refused(refusal)) if refusal.code == RefusalCode::Unknown
    ));
    assert!(matches!(
        read(&viewer, "/none/a").await,
        Err(Error::Refused(refusal)) if refusal.code == RefusalCode::Unknown
    ));
    // What the relay holds is not fetched again, and source blocks come first.
    let asked = origin.count("/vod/a.ts");
    let other = client(first.config()).await;
    assert!(read(&other, "/live/a.ts").await.unwrap() == all);
    assert_eq!(origin.count("/vod/a.ts"), asked);
    let stats = other.stats().borrow().clone();
    assert!(
        stats.blocks_systematic > stats.blocks_received / 2,
        "{stats:?}"
    );
    for station in [third, second, first] {
        station.relay.drain(Duration::from_secs(1)).await;
    }
    running.drain(Duration::from_secs(1)).await;
}

/// In a chain the next segment must be requested before the last blocks of this one have arrived.
#[tokio::test(flavor = "multi_thread")]
async fn a_segment_is_fetched_as_soon_as_its_path_is_asked_for() {
    let (origin, _running, at) = publish().await;
    origin.put("/vod/a.ts", Bytes::from(bytes(1, 300_000)));
    let first = Station::start(peer::Config::new(at, Trust::System)).await;
    let second = Station::start(first.config()).await;
    let viewer = client(second.config()).await;
    assert_eq!(
        viewer.stat("/live/a.ts", 0, None).await.unwrap().length,
        300_000
    );
    let are_complete = async {
        while [&first, &second]
            .iter()
            .any(|station| station.read("ncserverd_relay_segments_completed_total") < 1.0)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, are_complete)
        .await
        .expect("both relays fetch it");
    assert_eq!(viewer.stats().borrow().blocks_received, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_answers_what_it_holds_without_its_sources() {
    let (origin, _running, at) = publish().await;
    origin.put("/vod/a.ts", Bytes::from(bytes(1, 300_000)));
    let station = Station::start(peer::Config::new(at, Trust::System)).await;
    let viewer = client(station.config()).await;
    let refused = viewer.look_up_at_first("/live/a.ts", 0, None, true).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert!(origin.counts().is_empty());
    read(&viewer, "/live/a.ts").await.unwrap();
    // Another viewer, who has not been told yet.
    let other = client(station.config()).await;
    let (meta, _, _) = other
        .look_up_at_first("/live/a.ts", 0, None, true)
        .await
        .unwrap();
    assert_eq!(meta.length, 300_000);
}

/// A server sends each connection ten blocks of sixteen, then nothing: two relays together have
/// enough, one has not.
#[tokio::test(flavor = "multi_thread")]
async fn relays_recode_what_they_have_before_it_is_complete() {
    let script = Script::start("127.0.0.1:0").await;
    let all = bytes(1, 16 * 1024);
    script.publish("/a/b", &all, all.len());
    script.ration(10);
    let (one, other) = (
        Station::start(script.config()).await,
        Station::start(script.config()).await,
    );

    // One alone has ten blocks to send.
    let alone = client(peer::Config {
        stall_timeout: Duration::from_secs(2),
        ..one.config()
    })
    .await;
    assert!(matches!(read(&alone, "/a/b").await, Err(Error::Stalled(_))));
    let stats = alone.stats().borrow().clone();
    assert_eq!(
        (stats.blocks_received, stats.blocks_useless),
        (10, 0),
        "{stats:?}"
    );

    let both = peer::Config {
        servers: vec![one.server.clone(), other.server.clone()],
        ..one.config()
    };
    let viewer = client(both).await;
    assert!(read(&viewer, "/a/b").await.unwrap() == all);
    let stats = viewer.stats().borrow().clone();
    assert!(
        stats
            .sources
            .iter()
            .all(|source| source.counts.innovative > 0),
        "{stats:?}"
    );
    assert!(one.read("ncserverd_relay_recoded_blocks_total") >= 10.0);
    assert_eq!(one.read("ncserverd_relay_segments_completed_total"), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn datagrams_are_lost_on_every_hop() {
    // Blocks that fit in datagrams.
    let (origin, running, at) = publish_with(stream::Config {
        block_bytes: 1088,
        n_max: 64,
        ..stream::Config::default()
    })
    .await;
    let all = bytes(1, 600_000);
    origin.put("/vod/a.ts", Bytes::from(all.clone()));
    let direction = Direction {
        loss: 0.05,
        delay: Duration::from_millis(5),
        ..Direction::default()
    };
    let lossy = |at: &peer::Server, seed| {
        let server = SocketAddr::new(at.host.parse().unwrap(), at.port);
        let link = Link::start(lossy::Config {
            server,
            seed,
            to_server: direction,
            to_client: direction,
        })
        .unwrap();
        let place = peer::Server {
            port: link.address().port(),
            ..at.clone()
        };
        (link, peer::Config::new(place, Trust::System))
    };
    let (to_first, sources) = lossy(&at, 1);
    let first = Station::start(sources).await;
    let (to_second, sources) = lossy(&first.server, 2);
    let second = Station::start(sources).await;
    let (to_viewer, sources) = lossy(&second.server, 3);
    let viewer = client(sources).await;
    assert!(read(&viewer, "/live/a.ts").await.unwrap() == all);
    for link in [&to_first, &to_second, &to_viewer] {
        assert!(link.to_client().dropped > 0, "{link:?}");
    }
    let stats = viewer.stats().borrow().clone();
    assert!(stats.datagrams_lost > 0, "{stats:?}");
    running.drain(Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_keeps_to_its_budget() {
    let script = Script::start("127.0.0.1:0").await;
    let station = Station::with(
        script.config(),
        relay::Config {
            bytes: ByteSize::kib(250),
            ..relay::Config::default()
        },
    )
    .await;
    // A new peer for each, because a peer keeps what it has.
    for seed in 0..5 {
        let all = bytes(seed, 100_000);
        script.publish(&format!("/a/{seed}"), &all, all.len());
        let viewer = client(station.config()).await;
        assert!(read(&viewer, &format!("/a/{seed}")).await.unwrap() == all);
    }
    assert!(station.read("ncserverd_relay_held_bytes") <= 250.0 * 1024.0);
    assert_eq!(station.read("ncserverd_relay_held_segments"), 2.0);
    // A segment larger than the whole store is not started, and nothing is evicted for it.
    let large = bytes(9, 300_000);
    script.publish("/a/large", &large, large.len());
    let viewer = client(peer::Config {
        stall_timeout: Duration::from_secs(1),
        ..station.config()
    })
    .await;
    assert!(matches!(
        read(&viewer, "/a/large").await,
        Err(Error::Stalled(_))
    ));
    assert_eq!(station.read("ncserverd_relay_held_segments"), 2.0);
}

/// Waits until something has happened.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < end, "{what} in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A source that answers no REQUEST for `/a/0` and `/a/1`, and a relay that has room for just these
/// two. Returns when the relay fetches them for `reader`.
async fn fill(reader: impl AsyncFn(&Station, String)) -> (Script, Station) {
    let script = Script::start("127.0.0.1:0").await;
    (0..3)
        .for_each(|seed| script.publish(&format!("/a/{seed}"), &bytes(seed, 16 * 1024), 16 * 1024));
    let sources = peer::Config {
        stall_timeout: PATIENCE,
        ..script.config()
    };
    let station = Station::with(
        sources,
        relay::Config {
            bytes: ByteSize::kib(40),
            ..relay::Config::default()
        },
    )
    .await;
    script.spoil(Fault::Silent, u32::MAX);
    for number in 0..2 {
        reader(&station, format!("/a/{number}")).await;
        until("a fetch", || script.seen().requests > number).await;
    }
    script.spoil(Fault::Silent, 0);
    (script, station)
}

/// GETs alone take no memory from readers.
#[tokio::test(flavor = "multi_thread")]
async fn paths_that_are_only_asked_for_leave_room_for_what_is_read() {
    let (_script, station) = fill(async |station, path| {
        client(station.config())
            .await
            .stat(&path, 0, None)
            .await
            .unwrap();
    })
    .await;
    let viewer = client(peer::Config {
        stall_timeout: Duration::from_secs(3),
        ..station.config()
    })
    .await;
    assert!(read(&viewer, "/a/2").await.unwrap() == bytes(2, 16 * 1024));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_without_room_says_so_at_readyz_until_it_has_some() {
    let readers = std::sync::Mutex::new(Vec::new());
    let (_script, station) = fill(async |station, path| {
        let reader = client(peer::Config {
            stall_timeout: PATIENCE,
            ..station.config()
        })
        .await;
        let reading =
            tokio::spawn(async move { reader.open(&path, None).await?.read_to_end().await });
        readers.lock().unwrap().push(reading);
    })
    .await;
    let reason = "no room for a segment of 16384 bytes: every held segment is in use".to_owned();
    let full = Reason {
        part: "relay",
        reason,
    };
    let is_full = || station.readiness.status().1.contains(&full);
    assert!(!is_full());
    let viewer = client(peer::Config {
        stall_timeout: PATIENCE,
        ..station.config()
    })
    .await;
    let read = tokio::spawn(async move { read(&viewer, "/a/2").await });
    until("the relay's word", is_full).await;
    readers.lock().unwrap().iter().for_each(JoinHandle::abort);
    assert!(read.await.unwrap().unwrap() == bytes(2, 16 * 1024));
    until("room", || !is_full()).await;
}

/// Eight connections ask for 32 paths each, for which the relay must ask its distant source.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_questions_holds_up_nobody_who_asks_for_little() {
    let script = Script::start("127.0.0.1:0").await;
    script.publish("/a/b", &bytes(1, 16 * 1024), 16 * 1024);
    let direction = Direction {
        delay: Duration::from_millis(50),
        ..Direction::default()
    };
    let at = script.server();
    let server = SocketAddr::new(at.host.parse().unwrap(), at.port);
    let link = Link::start(lossy::Config {
        server,
        seed: 1,
        to_server: direction,
        to_client: direction,
    })
    .unwrap();
    let near = peer::Server {
        port: link.address().port(),
        ..at
    };
    let station = Station::start(peer::Config::new(near, Trust::System)).await;
    let viewer = client(station.config()).await;
    let askers = join_all((0..8).map(|_| client(station.config()))).await;
    let ask = |(asker, client): (usize, Client)| {
        tokio::spawn(async move {
            let paths: Vec<String> = (0..32)
                .map(|number| format!("/none/{asker}/{number}"))
                .collect();
            join_all(paths.iter().map(|path| client.stat(path, 0, None))).await
        })
    };
    let crowd: Vec<_> = askers.into_iter().enumerate().map(ask).collect();
    until("the crowd's questions", || script.seen().gets > 0).await;
    viewer.stat("/a/b", 0, None).await.unwrap();
    let asked = script.seen().gets;
    assert!(asked < 128, "{asked} of 256 questions came first");
    // A client that leaves wants nothing more.
    crowd.iter().for_each(JoinHandle::abort);
    join_all(crowd).await;
    let connections = || station.read("ncserverd_session_open_sessions");
    until("the crowd's end", || connections() == 1.0).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = script.seen().gets;
    assert!(asked < 200, "{asked} of 256 questions were asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_source_spoils_is_not_handed_on_as_complete() {
    let script = Script::start("127.0.0.1:0").await;
    let all = bytes(1, 50_000);
    script.publish("/a/b", &all, all.len());
    script.spoil(Fault::Corrupt, 1);
    let station = Station::start(script.config()).await;
    let viewer = client(station.config()).await;
    // The relay detects it and fetches it again, and so does the viewer if it got the bad block.
    let got = read(&viewer, "/a/b").await;
    assert!(got.is_err() || got.unwrap() == all);
    assert!(read(&client(station.config()).await, "/a/b").await.unwrap() == all);
    let mut stats = station.relay.client().stats();
    tokio::time::timeout(PATIENCE, stats.wait_for(|stats| stats.segments_corrupt > 0))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn news_of_a_stream_is_passed_on() {
    let script = Script::start("127.0.0.1:0").await;
    script.publish("/live/1", &bytes(1, 20_000), 20_000);
    let station = Station::start(script.config()).await;
    let (one, other) = (
        client(station.config()).await,
        client(station.config()).await,
    );
    for viewer in [&one, &other] {
        let mut news = viewer.subscribe("live").await.unwrap();
        let told = tokio::time::timeout(Duration::from_secs(10), news.recv());
        // The script announces once, so the second client hears nothing: it is subscribed anyway.
        match told.await {
            Ok(Some((path, meta))) => assert_eq!((path.as_str(), meta.length), ("/live/1", 20_000)),
            Ok(None) => panic!("the subscription has ended"),
            Err(_) => assert!(std::ptr::eq(viewer, &other)),
        }
    }
}

/// A polluter feeds a relay, which also uses a server: the relay finds it, and the viewer has
/// nobody to blame.
#[tokio::test(flavor = "multi_thread")]
async fn a_liar_behind_a_relay_is_found_by_the_relay() {
    let (honest, liar, key) = (
        Script::start("127.0.0.1:0").await,
        Script::start("127.0.0.1:0").await,
        Script::key(),
    );
    let all = bytes(1, 400_000);
    for server in [&honest, &liar] {
        server.sign(&key, 1000);
        server.publish("/a/b", &all, all.len());
    }
    liar.spoil(Fault::Corrupt, u32::MAX);
    let sources = peer::Config {
        servers: vec![honest.server(), liar.server()],
        ..honest.config()
    };
    let station = Station::start(sources).await;
    let mut stats = station.relay.client().stats();
    tokio::time::timeout(
        PATIENCE,
        stats.wait_for(|stats| stats.sources.iter().all(|source| source.hello.is_some())),
    )
    .await
    .unwrap()
    .unwrap();
    let viewer = client(station.config()).await;
    assert!(read(&viewer, "/a/b").await.unwrap() == all);
    tokio::time::timeout(PATIENCE, stats.wait_for(|stats| stats.polluters == 1))
        .await
        .unwrap()
        .unwrap();
    assert!(
        stats.borrow().sources[1].counts.is_polluter
            && honest.seen().blamed == Some(liar.identity())
    );
    assert_eq!(viewer.stats().borrow().polluters, 0);
    // Later clients get the right bytes, also when they use the server as well.
    let both = peer::Config {
        servers: vec![honest.server(), station.server.clone()],
        ..station.config()
    };
    let later = client(both).await;
    assert!(read(&later, "/a/b").await.unwrap() == all);
    assert_eq!(
        (
            later.stats().borrow().polluters,
            later.stats().borrow().blocks_wrong
        ),
        (0, 0)
    );
    // The counters follow the statistics a moment later.
    until("the counters", || {
        station.read("ncserverd_peer_polluters_total") == 1.0
            && station.read("ncserverd_peer_wrong_blocks_total") > 0.0
    })
    .await;
}

/// A relay that gets no checksums marks its mixed blocks as unverified: wrong ones are dropped, and
/// the relay stays in use.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_relay_could_not_test_it_says_so() {
    let script = Script::start("127.0.0.1:0").await;
    let all = bytes(1, 16 * 1024);
    script.publish("/a/b", &all, all.len());
    script.ration(10);
    for gives_checks in [false, true] {
        script.give_checks(gives_checks);
        let station = Station::start(script.config()).await;
        let viewer = client(peer::Config {
            stall_timeout: Duration::from_secs(1),
            ..station.config()
        })
        .await;
        assert!(matches!(
            read(&viewer, "/a/b").await,
            Err(Error::Stalled(_))
        ));
        let counts = || {
            [
                "ncserverd_relay_recoded_blocks_total",
                "ncserverd_relay_unverified_blocks_total",
            ]
            .map(|name| station.read(name))
        };
        let [recoded, unverified] = counts();
        assert!(
            recoded >= 10.0 && (gives_checks || unverified == recoded),
            "{unverified} of {recoded}"
        );
        // By now everything received has been tested, if it can be.
        let later = client(peer::Config {
            stall_timeout: Duration::from_secs(1),
            ..station.config()
        })
        .await;
        assert!(matches!(read(&later, "/a/b").await, Err(Error::Stalled(_))));
        let [more, unverified_now] = counts();
        assert!(more >= recoded + 10.0, "{more} after {recoded}");
        assert_eq!(
            unverified_now - unverified,
            if gives_checks { 0.0 } else { more - recoded }
        );
    }
}

/// A stream over the prime field, signed with a key in this folder.
fn over_gfq(folder: &Path) -> stream::Config {
    let signing_key = Some(folder.join("key.pem"));
    stream::Config {
        codec: CodecName::RlncQ,
        signing_key,
        n_max: 16,
        block_bytes: 1024,
        ..stream::Config::default()
    }
}

/// Blocks over the prime field cross relays, recoded before they are complete; complete relays send
/// source blocks.
#[tokio::test(flavor = "multi_thread")]
async fn relays_recode_over_the_prime_field() {
    let folder = tempfile::tempdir().unwrap();
    let (origin, running, at) = publish_with(over_gfq(folder.path())).await;
    let all = bytes(1, 200_001);
    origin.put("/vod/a.ts", Bytes::from(all.clone()));
    // Slow enough for the relays' requests to arrive long before the first relay is complete.
    let slow = Direction {
        rate: NonZeroU32::new(200_000),
        ..Direction::default()
    };
    let server = SocketAddr::new(at.host.parse().unwrap(), at.port);
    let link = Link::start(lossy::Config {
        server,
        seed: 1,
        to_server: Direction::default(),
        to_client: slow,
    })
    .unwrap();
    let near = peer::Server {
        port: link.address().port(),
        ..at
    };
    let first = Station::start(peer::Config::new(near, Trust::System)).await;
    let second = Station::start(first.config()).await;
    let viewer = client(second.config()).await;
    assert!(read(&viewer, "/live/a.ts").await.unwrap() == all);
    let stats = viewer.stats().borrow().clone();
    assert_eq!(
        (stats.blocks_wrong, stats.polluters, stats.segments_corrupt),
        (0, 0, 0),
        "{stats:?}"
    );
    let recoded =
        [&first, &second].map(|station| station.read("ncserverd_relay_recoded_blocks_total"));
    assert!(recoded.iter().sum::<f64>() > 0.0, "{recoded:?}");
    // Nothing untested is mixed, so nothing is marked.
    for station in [&first, &second] {
        assert_eq!(station.read("ncserverd_relay_unverified_blocks_total"), 0.0);
    }
    tokio::time::timeout(PATIENCE, async {
        while first.read("ncserverd_relay_segments_completed_total") < 1.0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    let later = client(first.config()).await;
    assert!(read(&later, "/live/a.ts").await.unwrap() == all);
    let stats = later.stats().borrow().clone();
    assert!(
        stats.blocks_systematic > stats.blocks_received / 2,
        "{stats:?}"
    );
    running.drain(Duration::from_secs(1)).await;
}

/// A server sends each connection ten blocks of sixteen: two relays together have enough, in
/// combinations of their own.
#[tokio::test(flavor = "multi_thread")]
async fn recoded_blocks_over_the_prime_field_prove_themselves() {
    let (script, key) = (Script::start("127.0.0.1:0").await, Script::key());
    script.code_with(Codec::RlncQ {
        group: HashGroup::P1024,
    });
    script.sign(&key, 1000);
    let all = bytes(1, 16 * 1024);
    script.publish("/a/b", &all, all.len());
    script.ration(10);
    let (one, other) = (
        Station::start(script.config()).await,
        Station::start(script.config()).await,
    );
    let both = peer::Config {
        servers: vec![one.server.clone(), other.server.clone()],
        ..one.config()
    };
    let viewer = client(both).await;
    // The first server names the key. While it is not there, blocks have nothing to be proved by.
    until("the first relay", || {
        viewer.stats().borrow().sources[0].hello.is_some()
    })
    .await;
    assert!(read(&viewer, "/a/b").await.unwrap() == all);
    let stats = viewer.stats().borrow().clone();
    assert!(
        stats
            .sources
            .iter()
            .all(|source| source.counts.innovative > 0),
        "{stats:?}"
    );
    assert_eq!(
        (stats.blocks_wrong, stats.blocks_useless, stats.polluters),
        (0, 0, 0),
        "{stats:?}"
    );
    for station in [&one, &other] {
        assert!(station.read("ncserverd_relay_recoded_blocks_total") > 0.0);
        assert_eq!(station.read("ncserverd_relay_unverified_blocks_total"), 0.0);
        assert_eq!(
            station.read("ncserverd_relay_segments_completed_total"),
            0.0
        );
    }
}

/// Streams whose blocks are not recoded, in datagrams and on QUIC streams.
fn fixed() -> impl Iterator<Item = stream::Config> {
    let codecs = [(CodecName::Rs, Some(16)), (CodecName::RaptorQ, None)];
    let cuts = [(1088, 64), (4096, 128)];
    codecs.into_iter().flat_map(move |(codec, parity)| {
        cuts.map(|(block_bytes, n_max)| stream::Config {
            codec,
            parity,
            block_bytes,
            n_max,
            ..stream::Config::default()
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_pass_on_what_is_not_recoded_once_they_have_all_of_it() {
    for stream in fixed() {
        let name = format!("{:?} k = {}", stream.codec, stream.block_bytes);
        let (origin, running, at) = publish_with(stream).await;
        let all = bytes(1, 1_000_001);
        origin.put("/vod/a.ts", Bytes::from(all.clone()));
        let first = Station::start(peer::Config::new(at, Trust::System)).await;
        let second = Station::start(first.config()).await;
        let viewer = client(second.config()).await;
        assert!(read(&viewer, "/live/a.ts").await.unwrap() == all, "{name}");
        for station in [&first, &second] {
            assert_eq!(
                station.read("ncserverd_relay_recoded_blocks_total"),
                0.0,
                "{name}"
            );
            assert_eq!(
                station.read("ncserverd_relay_segments_completed_total"),
                1.0,
                "{name}"
            );
        }
        running.drain(Duration::from_secs(1)).await;
    }
}

/// A viewer uses a server and a relay at the same time, on lossy paths: nobody recodes, and the
/// result is right.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_and_a_relay_send_other_blocks_of_what_is_not_recoded() {
    for stream in fixed() {
        let name = format!("{:?} k = {}", stream.codec, stream.block_bytes);
        let (origin, running, at) = publish_with(stream).await;
        let all = bytes(1, 1_000_001);
        origin.put("/vod/a.ts", Bytes::from(all.clone()));
        let station = Station::start(peer::Config::new(at.clone(), Trust::System)).await;
        // By now the relay is complete.
        assert!(
            read(&client(station.config()).await, "/live/a.ts")
                .await
                .unwrap()
                == all,
            "{name}"
        );
        let mut servers = Vec::new();
        let mut links = Vec::new();
        for (seed, there) in [(1, &at), (2, &station.server)] {
            let losing = Direction::losing(0.05);
            let server = format!("{}:{}", there.host, there.port).parse().unwrap();
            let link = Link::start(lossy::Config {
                server,
                seed,
                to_server: losing,
                to_client: losing,
            })
            .unwrap();
            let address = link.address();
            servers.push(peer::Server {
                host: address.ip().to_string(),
                port: address.port(),
                ..there.clone()
            });
            links.push(link);
        }
        let viewer = client(peer::Config {
            servers,
            ..station.config()
        })
        .await;
        let mut stats = viewer.stats();
        let both =
            stats.wait_for(|stats| stats.sources.iter().all(|source| source.hello.is_some()));
        tokio::time::timeout(PATIENCE, both).await.unwrap().unwrap();
        assert!(read(&viewer, "/live/a.ts").await.unwrap() == all, "{name}");
        for link in &links {
            assert!(link.to_client().dropped > 0, "{name}: {link:?}");
        }
        let stats = viewer.stats().borrow().clone();
        assert!(
            stats
                .sources
                .iter()
                .all(|source| source.counts.innovative > 0),
            "{name}: {stats:?}"
        );
        assert!(
            stats.blocks_useless * 50 <= stats.blocks_received,
            "{name}: {stats:?}"
        );
        running.drain(Duration::from_secs(1)).await;
    }
}
