//! The data path over real sockets without an origin: store, device, ring, encoder and session on
//! one side, a client on the other.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ncs_proto::admission::intake;
use ncserverd::admission::{self, Admission};
use ncserverd::fleet::Fleet;
use ncserverd::lab::lossy::{self, Link};
use ncserverd::object::{Arrival, Body, Codec, FirstPass, Refusal, RefusalCode, Resolved, Shape};
use ncserverd::ring::{Ring, SessionId};
use ncserverd::session::{self, Ask, driver};
use ncserverd::store::{Placement, Store};
use ncserverd::tls::{self, ServerIdentity, Trust};
use ncserverd::wire::frame::Reader;
use ncserverd::wire::message::{Get, Message};
use ncserverd::{device, directory, encoder, endpoint, peer, ring, store};
use prometheus::Registry;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::{broadcast, mpsc, watch};

struct Server {
    address: SocketAddr,
    fingerprint: tls::Fingerprint,
    registry: Registry,
    ring: Ring,
    headroom: endpoint::Headroom,
    _directory: tempfile::TempDir,
    _settings: watch::Sender<encoder::Config>,
    _arrivals: broadcast::Sender<Arrival>,
    _drain: watch::Sender<Option<endpoint::Departure>>,
    _device: device::Thread,
}

/// A server of these objects, cut like this.
async fn serve(
    objects: &[(&str, Vec<u8>)],
    block_bytes: u32,
    n_max: u16,
    first_pass: FirstPass,
    ring: ring::Config,
) -> Server {
    serve_at(
        endpoint::Config::default(),
        objects,
        block_bytes,
        n_max,
        first_pass,
        ring,
    )
    .await
}

/// The same with other connection settings.
async fn serve_at(
    endpoint: endpoint::Config,
    objects: &[(&str, Vec<u8>)],
    block_bytes: u32,
    n_max: u16,
    first_pass: FirstPass,
    ring: ring::Config,
) -> Server {
    let placement = Placement {
        first_pass,
        ..Placement::default()
    };
    serve_placed(endpoint, objects, block_bytes, n_max, placement, ring).await
}

/// The same with this placement. Listens on a port that the system chooses.
async fn serve_placed(
    endpoint: endpoint::Config,
    objects: &[(&str, Vec<u8>)],
    block_bytes: u32,
    n_max: u16,
    placement: Placement,
    ring: ring::Config,
) -> Server {
    serve_coded(
        endpoint,
        objects,
        (block_bytes, n_max, Codec::Rlnc),
        placement,
        ring,
    )
    .await
}

/// The same with this code.
async fn serve_coded(
    endpoint: endpoint::Config,
    objects: &[(&str, Vec<u8>)],
    (block_bytes, n_max, codec): (u32, u16, Codec),
    placement: Placement,
    ring: ring::Config,
) -> Server {
    let registry = Registry::new();
    let device = device::Config {
        cpu_threads: "2".parse().unwrap(),
        ..device::Config::default()
    };
    let (device, thread) =
        device::Device::open(&device, device::Metrics::new(&registry).unwrap()).unwrap();
    let store = Store::new(
        &store::Config::default(),
        device.clone(),
        store::Metrics::new(&registry).unwrap(),
    );
    let mut answers = HashMap::new();
    for (path, bytes) in objects {
        let shape = Shape::new(bytes.len() as u64, block_bytes, n_max)
            .unwrap()
            .coded_with(codec)
            .unwrap();
        let held = store
            .insert(bytes.clone().into(), shape, placement.clone())
            .await
            .unwrap();
        let resolved = Resolved {
            path: (*path).to_owned(),
            id: held.lease.id,
            offset: 0,
            length: bytes.len() as u64,
            object_length: Some(bytes.len() as u64),
            version: 1,
            max_age: Duration::from_secs(60),
            content_type: "video/mp4".into(),
            body: Body::Coded(held),
            signature: None,
        };
        answers.insert((*path).to_owned(), resolved);
    }
    let ring = Ring::new(&ring, ring::Metrics::new(&registry).unwrap());
    let (settings, watch_settings) = watch::channel(encoder::Config::default());
    let (arrivals, heard) = broadcast::channel(1);
    let metrics = encoder::Metrics::new(&registry, device.backend(), device.kernel()).unwrap();
    let segments = store.clone();
    let encoder = encoder::Encoder::new(
        encoder::Config::default(),
        ring.clone(),
        store,
        device,
        metrics,
        StdRng::seed_from_u64(1),
    );
    tokio::spawn(encoder.run(heard, watch_settings));

    let (asks, mut questions) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Some(ask) = questions.recv().await {
            match ask {
                Ask::Resolve { get, reply, .. } => {
                    let unknown = || Refusal {
                        code: RefusalCode::Unknown,
                        retry_after: None,
                        reason: "no such object".into(),
                    };
                    let _ = reply.send(answers.get(&get.path).cloned().ok_or_else(unknown));
                }
                Ask::Find {
                    id, coding, reply, ..
                } => drop(reply.send(segments.lookup(&id, coding))),
                Ask::Subscribe { .. } | Ask::Hashes { .. } | Ask::Checks { .. } | Ask::Blame(_) => {
                }
            }
        }
    });
    let (drain, drained) = watch::channel(None);
    let session = session::Config::default();
    let admission = Admission::open(
        &admission::Config::default(),
        admission::Metrics::new(&registry).unwrap(),
    )
    .unwrap();
    let directory = directory::Directory::new(directory::Metrics::new(&registry).unwrap());
    let headroom = endpoint::Headroom::new(&registry).unwrap();
    let context = driver::Context {
        origins: Arc::default(),
        directory,
        fleet: Fleet::alone(),
        ring: ring.clone(),
        asks,
        admission: admission.clone(),
        config: session,
        metrics: session::Metrics::new(&registry).unwrap(),
        uplink: None,
        drain: drained,
    };
    let directory = tempfile::tempdir().unwrap();
    let identity = ServerIdentity::open(&tls::Config {
        directory: Some(directory.path().to_owned()),
        ..tls::Config::default()
    })
    .unwrap();
    let listen = endpoint
        .listen
        .iter()
        .map(|address| SocketAddr::new(address.ip(), 0))
        .collect();
    let config = endpoint::Config { listen, ..endpoint };
    let listener = endpoint::open(&config, session.idle_timeout, &identity)
        .unwrap()
        .remove(0);
    let address = listener.address;
    let metrics = endpoint::Metrics::new(&registry).unwrap();
    let next = Arc::new(AtomicU64::new(0));
    let serve = move |connection, place| {
        driver::run(
            connection,
            SessionId(next.fetch_add(1, Ordering::Relaxed)),
            place,
            context.clone(),
        )
    };
    for endpoint in listener.endpoints {
        tokio::spawn(endpoint::accept(
            endpoint,
            config.clone(),
            admission.clone(),
            headroom.clone(),
            endpoint::Elsewhere {
                fleet: Fleet::alone(),
                origins: Arc::default(),
            },
            metrics.clone(),
            serve.clone(),
        ));
    }
    let fingerprint = identity.fingerprint();
    Server {
        address,
        fingerprint,
        registry,
        ring,
        headroom,
        _directory: directory,
        _settings: settings,
        _arrivals: arrivals,
        _drain: drain,
        _device: thread,
    }
}

async fn connect(server: &Server) -> peer::Client {
    connect_at(server, server.address, None).await
}

/// By this address, with this device for decoding.
async fn connect_at(
    server: &Server,
    address: SocketAddr,
    device: Option<device::Device>,
) -> peer::Client {
    let config = peer::Config::new(
        address.to_string().parse().unwrap(),
        Trust::Fingerprint(server.fingerprint),
    );
    peer::Client::connect(peer::Config { device, ..config })
        .await
        .unwrap()
}

async fn read(client: &peer::Client, path: &str) -> Vec<u8> {
    let mut object = client.open(path, None).await.unwrap();
    let mut bytes = Vec::new();
    while let Some(part) = object.next().await {
        bytes.extend_from_slice(&part.unwrap());
    }
    bytes
}

fn clip(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

fn value(registry: &Registry, name: &str) -> f64 {
    let families = registry.gather();
    let family = families
        .iter()
        .find(|family| family.name() == name)
        .expect("the series is there");
    family
        .get_metric()
        .iter()
        .map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value())
        .sum()
}

/// The sum of all series with this label.
fn labelled(registry: &Registry, name: &str, label: &str) -> f64 {
    let families = registry.gather();
    let family = families
        .iter()
        .find(|family| family.name() == name)
        .expect("the series is there");
    let has = |metric: &&prometheus::proto::Metric| {
        metric.get_label().iter().any(|pair| pair.value() == label)
    };
    family
        .get_metric()
        .iter()
        .filter(has)
        .map(|metric| metric.get_counter().get_value())
        .sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn coded_blocks_arrive_over_streams_and_datagrams() {
    for (block_bytes, n_max) in [(4096, 128), (1088, 64), (64, 1), (16_384, 8)] {
        let bytes = clip(1_000_003);
        let server = serve(
            &[("/a/b.mp4", bytes.clone())],
            block_bytes,
            n_max,
            FirstPass::Coded,
            ring::Config::default(),
        )
        .await;
        let client = connect(&server).await;
        assert!(
            read(&client, "/a/b.mp4").await == bytes,
            "k = {block_bytes}, n = {n_max}"
        );
        assert_eq!(
            value(&server.registry, "ncserverd_ring_copied_bytes_total"),
            0.0
        );
        let sent = |route| {
            labelled(
                &server.registry,
                "ncserverd_session_sent_blocks_total",
                route,
            ) > 0.0
        };
        let expected = match block_bytes {
            4096.. => Some([false, true]),
            1088 => Some([true, false]),
            _ => None,
        };
        let routes = [sent("datagram"), sent("stream")];
        assert!(
            expected.is_none_or(|expected| expected == routes),
            "k = {block_bytes}, n = {n_max}: {routes:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn source_blocks_arrive_where_the_stream_wants_them_first() {
    for (block_bytes, n_max) in [(4096, 128), (1088, 64)] {
        let bytes = clip(700_001);
        let server = serve(
            &[("/a/b", bytes.clone())],
            block_bytes,
            n_max,
            FirstPass::Systematic,
            ring::Config::default(),
        )
        .await;
        let client = connect(&server).await;
        assert!(read(&client, "/a/b").await == bytes);
        let stats = client.stats().borrow().clone();
        assert!(
            stats.blocks_systematic > stats.blocks_received / 2,
            "k = {block_bytes}: {stats:?}"
        );
    }
}

/// Over streams (4,096 bytes, and 1,088 with 128 coefficients at first) and datagrams, each block
/// for one or two sessions, with source blocks first, and with generations shorter than the weight.
#[tokio::test(flavor = "multi_thread")]
async fn sparse_rows_arrive_over_streams_and_datagrams() {
    for (block_bytes, n_max, first_pass, max_reuse) in [
        (4096, 128, FirstPass::Coded, 1),
        (1088, 64, FirstPass::Coded, 1),
        (1088, 64, FirstPass::Systematic, 1),
        (1088, 128, FirstPass::Coded, 2),
        (1088, 64, FirstPass::Coded, 2),
        (64, 1024, FirstPass::Coded, 1),
        (1088, 12, FirstPass::Coded, 1),
    ] {
        let bytes = clip(700_001);
        let placement = Placement {
            first_pass,
            row_weight: NonZeroU16::new(15),
            ..Placement::default()
        };
        let ring = ring::Config {
            max_reuse,
            ..ring::Config::default()
        };
        let server = serve_placed(
            endpoint::Config::default(),
            &[("/a/b", bytes.clone())],
            block_bytes,
            n_max,
            placement,
            ring,
        )
        .await;
        let (one, other) = (connect(&server).await, connect(&server).await);
        let (one, other) = tokio::join!(read(&one, "/a/b"), read(&other, "/a/b"));
        assert!(
            one == bytes && other == bytes,
            "k = {block_bytes}, n = {n_max}"
        );
        let made = |kind| labelled(&server.registry, "ncserverd_encoder_blocks_total", kind);
        assert_eq!(
            made("coded") > 0.0,
            n_max < 15,
            "k = {block_bytes}, n = {n_max}"
        );
        assert!(
            first_pass == FirstPass::Systematic || (made("sparse") > 0.0) == (n_max > 15),
            "k = {block_bytes}, n = {n_max}"
        );
        let sent = |route| {
            labelled(
                &server.registry,
                "ncserverd_session_sent_blocks_total",
                route,
            ) > 0.0
        };
        // Otherwise both routes are possible, depending on path MTU discovery.
        let expected = [
            (4096, 128, [false, true]),
            (1088, 64, [true, false]),
            (64, 1024, [true, false]),
        ];
        let expected = expected
            .into_iter()
            .find(|known| (known.0, known.1) == (block_bytes, n_max));
        assert!(
            expected.is_none_or(|known| known.2 == [sent("datagram"), sent("stream")]),
            "k = {block_bytes}, n = {n_max}"
        );
        assert!(
            max_reuse > 1 || value(&server.registry, "ncserverd_ring_copied_bytes_total") == 0.0
        );
    }
}

/// Each code over streams and datagrams, on a lossy path, for two peers of a small ring whose
/// blocks serve one session or more: one peer decodes by itself, the other has a device.
#[tokio::test(flavor = "multi_thread")]
async fn codes_that_are_not_recoded_arrive_over_streams_and_datagrams() {
    let bytes = clip(700_001);
    for (codec, block_bytes, n_max, max_reuse) in [
        (Codec::ReedSolomon { parity: 16 }, 1088, 64, 1),
        (Codec::ReedSolomon { parity: 1 }, 1088, 64, 1),
        (Codec::ReedSolomon { parity: 128 }, 4096, 128, 4),
        (Codec::ReedSolomon { parity: 255 }, 1088, 1, 1),
        (Codec::RaptorQ, 1088, 64, 1),
        (Codec::RaptorQ, 1088, 64, 4),
        (Codec::RaptorQ, 4096, 128, 1),
        (Codec::RaptorQ, 64, 1024, 1),
        (Codec::RaptorQ, 1088, 1, 1),
    ] {
        let name = format!("{codec:?}, k = {block_bytes}, n = {n_max}");
        let ring = ring::Config {
            bytes: ring::Capacity::Bytes(bytesize::ByteSize::mib(2)),
            max_reuse,
        };
        let (objects, cut) = ([("/a/b", bytes.clone())], (block_bytes, n_max, codec));
        let server = serve_coded(
            endpoint::Config::default(),
            &objects,
            cut,
            Placement::default(),
            ring,
        )
        .await;
        let direction = lossy::Direction::losing(0.05);
        let path = lossy::Config {
            server: server.address,
            seed: 7,
            to_server: direction,
            to_client: direction,
        };
        let link = Link::start(path).unwrap();
        let config = device::Config {
            backend: device::BackendChoice::Cpu,
            ..device::Config::default()
        };
        let (device, thread) = device::Device::open(&config, device::Unrecorded).unwrap();
        let with = connect_at(&server, link.address(), Some(device)).await;
        let without = connect_at(&server, link.address(), None).await;
        let (one, other) = tokio::join!(read(&with, "/a/b"), read(&without, "/a/b"));
        assert!(one == bytes && other == bytes, "{name}");
        assert!(link.to_client().dropped > 0, "{name}");
        let made = |kind| labelled(&server.registry, "ncserverd_encoder_blocks_total", kind);
        assert!(
            made("source") >= 2.0 * (700_001.0 / f64::from(block_bytes)),
            "{name}"
        );
        assert_eq!((made("coded"), made("sparse")), (0.0, 0.0), "{name}");
        // On streams nothing is lost, and only source blocks are sent.
        let repair = if codec == Codec::RaptorQ {
            "repair"
        } else {
            "parity"
        };
        assert_eq!(made(repair) > 0.0, block_bytes < 4096, "{name}");
        for stats in [
            with.stats().borrow().clone(),
            without.stats().borrow().clone(),
        ] {
            assert!(
                stats.blocks_systematic > stats.blocks_received / 2 && stats.segments_corrupt == 0,
                "{name}: {stats:?}"
            );
        }
        thread.close();
    }
}

/// An old peer that knows no other codes, and sends an empty HELLO, is told the name of the missing
/// code, and its connection stays.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_peer_is_told_which_code_it_does_not_speak() {
    for (codec, name) in [
        (Codec::ReedSolomon { parity: 4 }, "Reed-Solomon"),
        (Codec::RaptorQ, "RaptorQ"),
    ] {
        let objects = [("/a/b", clip(50_000))];
        let (cut, ring) = ((1088, 64, codec), ring::Config::default());
        let server = serve_coded(
            endpoint::Config::default(),
            &objects,
            cut,
            Placement::default(),
            ring,
        )
        .await;
        let older = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let crypto = tls::client_config(&Trust::Fingerprint(server.fingerprint), None).unwrap();
        let connecting = older.connect_with(
            quinn::ClientConfig::new(Arc::new(crypto)),
            server.address,
            "localhost",
        );
        let connection = connecting.unwrap().await.unwrap();
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let get = |request| {
            Message::Get(Get {
                request,
                path: "/a/b".into(),
                offset: 0,
                length: None,
                held_only: false,
            })
            .to_frame()
        };
        send.write_all(&[&[0, 1, 0][..], &get(1), &get(2)].concat())
            .await
            .unwrap();
        let (mut reader, mut refused) = (Reader::new(), Vec::new());
        while refused.len() < 2 {
            let chunk =
                tokio::time::timeout(Duration::from_secs(20), receive.read_chunk(4096, true))
                    .await
                    .unwrap();
            reader.push(&chunk.unwrap().expect("the connection goes on").bytes);
            while let Some(message) = reader.next().unwrap() {
                match message {
                    Message::Error(error) => refused.push(error),
                    message => assert!(
                        matches!(message, Message::Hello(_) | Message::Grant { .. }),
                        "{message:?}"
                    ),
                }
            }
        }
        for error in refused {
            assert_eq!((error.code, error.retry_after_ms), (RefusalCode::Limit, 0));
            assert!(error.reason.contains(name), "{}", error.reason);
        }
    }
}

/// With and without source blocks, on a lossy path: the bytes are the same as without a device, and
/// without source blocks the device decodes every generation.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_decodes_what_a_peer_gathers() {
    let bytes = clip(3_000_001);
    for (n_max, first_pass) in [
        (64, FirstPass::Coded),
        (64, FirstPass::Systematic),
        (1, FirstPass::Coded),
    ] {
        let server = serve(
            &[("/a/b", bytes.clone())],
            1088,
            n_max,
            first_pass,
            ring::Config::default(),
        )
        .await;
        let direction = lossy::Direction::losing(0.05);
        let path = lossy::Config {
            server: server.address,
            seed: 7,
            to_server: direction,
            to_client: direction,
        };
        let link = Link::start(path).unwrap();
        let config = device::Config {
            backend: device::BackendChoice::Cpu,
            ..device::Config::default()
        };
        let registry = Registry::new();
        let (device, thread) =
            device::Device::open(&config, device::Metrics::new(&registry).unwrap()).unwrap();
        let with = connect_at(&server, link.address(), Some(device)).await;
        let without = connect_at(&server, link.address(), None).await;
        let (one, other) = tokio::join!(read(&with, "/a/b"), read(&without, "/a/b"));
        assert!(
            one == bytes && other == bytes,
            "n = {n_max}, {first_pass:?}"
        );
        assert!(link.to_client().dropped > 0);
        let (with, without) = (
            with.stats().borrow().clone(),
            without.stats().borrow().clone(),
        );
        let decoded = value(&registry, "ncserverd_device_decoded_bytes_total");
        assert!(with.generations_on_device > 0 && with.device.is_some() && decoded > 0.0);
        let all = with.generations_on_device == with.generations;
        assert!(all || first_pass == FirstPass::Systematic, "{with:?}");
        assert!(without.generations_on_device == 0 && without.device.is_none());
        thread.close();
    }
}

/// A device that ends while the peer uses it costs no bytes.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_device_leaves_undone_is_decoded_by_the_peer() {
    let bytes = clip(2_000_001);
    let server = serve(
        &[("/a/b", bytes.clone()), ("/a/c", clip(1_000_000))],
        1088,
        64,
        FirstPass::Coded,
        ring::Config::default(),
    )
    .await;
    let config = device::Config {
        backend: device::BackendChoice::Cpu,
        ..device::Config::default()
    };
    let (device, thread) = device::Device::open(&config, device::Unrecorded).unwrap();
    let client = connect_at(&server, server.address, Some(device)).await;
    assert!(read(&client, "/a/c").await == clip(1_000_000));
    let before = client.stats().borrow().generations_on_device;
    assert!(before > 0);
    thread.close();
    assert!(read(&client, "/a/b").await == bytes);
    let stats = client.stats().borrow().clone();
    assert!(
        stats.generations_on_device == before
            && stats.generations > before
            && stats.segments_corrupt == 0,
        "{stats:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_share_a_small_ring() {
    let bytes = clip(2_000_000);
    for max_reuse in [1, 4] {
        let small = ring::Config {
            bytes: ring::Capacity::Bytes(bytesize::ByteSize::mib(1)),
            max_reuse,
        };
        let server = serve(
            &[("/a/b", bytes.clone())],
            4096,
            64,
            FirstPass::Coded,
            small,
        )
        .await;
        let clients = futures_util::future::join_all((0..12).map(|_| connect(&server))).await;
        for read in
            futures_util::future::join_all(clients.iter().map(|client| read(client, "/a/b"))).await
        {
            assert!(read == bytes);
        }
        drop(clients);
        for _ in 0..100 {
            server.ring.publish_metrics();
            if value(&server.registry, "ncserverd_session_open_sessions") == 0.0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(
            value(&server.registry, "ncserverd_session_open_sessions"),
            0.0
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_refused() {
    let server = serve(&[], 4096, 64, FirstPass::Coded, ring::Config::default()).await;
    let client = connect(&server).await;
    let error = client.open("/a/b", None).await.unwrap_err();
    assert!(
        matches!(&error, peer::Error::Refused(refusal) if refusal.code == RefusalCode::Unknown),
        "{error:?}"
    );
    let wrong = Trust::Fingerprint("00".repeat(32).parse().unwrap());
    let place = server.address.to_string();
    assert!(
        peer::Client::connect(peer::Config::new(place.parse().unwrap(), wrong))
            .await
            .is_err(),
        "another certificate is not trusted"
    );
}

/// A server of one small object, with other connection settings.
async fn serve_small(endpoint: endpoint::Config) -> Server {
    serve_at(
        endpoint,
        &[("/a/b", clip(50_000))],
        1088,
        64,
        FirstPass::Coded,
        ring::Config::default(),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn newcomers_prove_their_address_when_many_are_half_open() {
    let server = serve_small(endpoint::Config {
        retry_above: 0,
        ..endpoint::Config::default()
    })
    .await;
    let client = connect(&server).await;
    assert!(read(&client, "/a/b").await == clip(50_000));
    assert!(
        value(
            &server.registry,
            "ncserverd_endpoint_handshakes_retried_total"
        ) >= 1.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn newcomers_beyond_the_limit_are_refused_and_the_others_go_on() {
    let server = serve_small(endpoint::Config {
        connections_max: endpoint::Connections::at_most(1),
        ..endpoint::Config::default()
    })
    .await;
    let client = connect(&server).await;
    let place = server.address.to_string().parse().unwrap();
    let config = peer::Config {
        connect_timeout: Duration::from_secs(2),
        ..peer::Config::new(place, Trust::Fingerprint(server.fingerprint))
    };
    assert!(peer::Client::connect(config).await.is_err());
    assert!(
        value(
            &server.registry,
            "ncserverd_endpoint_handshakes_refused_total"
        ) >= 1.0
    );
    assert!(read(&client, "/a/b").await == clip(50_000));
}

/// A viewer takes a hundredth of this server's time, as it is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_comes_in_one_after_the_other_and_nobody_is_put_out() {
    const CROWD: usize = 40;
    let bytes = clip(50_000);
    let server = serve_small(endpoint::Config::default()).await;
    let count = |name: &str| value(&server.registry, &format!("ncserverd_intake_{name}"));
    let config = intake::Config {
        first_rate: 20.0,
        ..intake::Config::default()
    };
    server.headroom.begin(config, Instant::now());
    let (headroom, registry) = (server.headroom.clone(), server.registry.clone());
    let looks = tokio::spawn(async move {
        loop {
            let load = value(&registry, "ncserverd_intake_viewers") / 100.0;
            let wait = Duration::ZERO;
            headroom.look(Instant::now(), intake::Look { load, wait });
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let clients = futures_util::future::join_all((0..CROWD).map(|_| connect(&server))).await;
    let reads =
        || futures_util::future::join_all(clients.iter().map(|client| read(client, "/a/b")));
    assert!(reads().await.iter().all(|read| *read == bytes));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let told = count("told_to_wait_total");
    assert!(told > 0.0, "some had to wait");
    assert_eq!(count("admitted_total"), CROWD as f64);
    // Who has been served gets more without a question.
    assert!(reads().await.iter().all(|read| *read == bytes));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(count("told_to_wait_total"), told);
    assert_eq!(count("asked_to_leave_total"), 0.0);
    assert_eq!(count("viewers"), CROWD as f64);
    drop(clients);
    let end = Instant::now() + Duration::from_secs(20);
    while count("viewers") + count("waiting_peers") > 0.0 {
        assert!(Instant::now() < end, "places of ended connections are free");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    looks.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_for_all_sockets_of_an_address_together() {
    const ADMITTED: u32 = 4;
    let server = serve_small(endpoint::Config {
        sockets: "8".parse().unwrap(),
        connections_max: endpoint::Connections::at_most(ADMITTED),
        ..endpoint::Config::default()
    })
    .await;
    let mut clients = Vec::new();
    for _ in 0..ADMITTED {
        clients.push(connect(&server).await);
    }
    let place: String = server.address.to_string();
    let config = peer::Config {
        connect_timeout: Duration::from_secs(2),
        ..peer::Config::new(
            place.parse().unwrap(),
            Trust::Fingerprint(server.fingerprint),
        )
    };
    let further = (0..12).map(|_| peer::Client::connect(config.clone()));
    for outcome in futures_util::future::join_all(further).await {
        assert!(outcome.is_err());
    }
    for (name, expected) in [("connections", f64::from(ADMITTED)), ("handshakes", 0.0)] {
        let name = format!("ncserverd_endpoint_open_{name}");
        assert_eq!(value(&server.registry, &name), expected, "{name}");
    }
    for client in &clients {
        assert!(read(client, "/a/b").await == clip(50_000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_connect_over_ipv6() {
    let server = serve_small(endpoint::Config {
        listen: vec!["[::1]:0".parse().unwrap()],
        ..endpoint::Config::default()
    })
    .await;
    assert!(server.address.is_ipv6());
    let client = connect(&server).await;
    assert!(read(&client, "/a/b").await == clip(50_000));
}
