//! Origins, directories, the store and publishing points together: the answers for paths, and the
//! results of an origin's faults.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use bytesize::ByteSize;
use ncserverd::device::{self, Device};
use ncserverd::fleet::{self, Fleet};
use ncserverd::ingest::members::Members;
use ncserverd::integrity::signing::StreamKey;
use ncserverd::object::{AskedBy, Body, Refusal, RefusalCode, Resolved, SegmentId};
use ncserverd::store::{self, Store};
use ncserverd::stream::{self, Library};
use ncserverd::supervise::Supervisor;
use ncserverd::telemetry::Readiness;
use ncserverd::wire::message::{Alternate, Delivery, Meta};
use ncserverd::{ingest, stream::Streams};
use nctest::origin::{self, Fault, File, Origin};
use prometheus::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PART: usize = 64 << 10;

/// A library with its store and metrics.
struct Server {
    library: Library,
    store: Store,
    registry: Registry,
    _thread: device::Thread,
}

/// Settings that tests change.
struct Options {
    store: ByteSize,
    fleet: Fleet,
    ingest: ingest::Config,
}

impl Default for Options {
    fn default() -> Self {
        let ingest = ingest::Config {
            segment_max_bytes: ByteSize::b(PART as u64),
            retry_delay: Duration::from_millis(10),
            negative_age: Duration::from_millis(200),
            rescan: Duration::from_millis(300),
            settle: Duration::from_millis(500),
            ..ingest::Config::default()
        };
        Self {
            store: ByteSize::mib(64),
            fleet: Fleet::alone(),
            ingest,
        }
    }
}

impl Server {
    async fn start(stream: stream::Config) -> Self {
        Self::start_with(stream, Options::default()).await
    }

    async fn start_with(stream: stream::Config, options: Options) -> Self {
        let registry = Registry::new();
        let config = device::Config {
            backend: device::BackendChoice::Cpu,
            ..device::Config::default()
        };
        let (device, thread) =
            Device::open(&config, device::Metrics::new(&registry).unwrap()).unwrap();
        let store_config = store::Config {
            bytes: options.store,
            ..store::Config::default()
        };
        let store = Store::new(
            &store_config,
            device,
            store::Metrics::new(&registry).unwrap(),
        );
        let (ingest, metrics) = (
            ingest::Metrics::new(&registry).unwrap(),
            stream::Metrics::new(&registry).unwrap(),
        );
        let streams = Streams::from([("live".to_owned(), stream)]);
        let supervisor = Supervisor::new(&registry, Readiness::new()).unwrap();
        let library = Library::open(
            &options.ingest,
            &streams,
            store.clone(),
            ingest,
            metrics,
            Members::new(options.fleet, None, false, &registry).unwrap(),
            &supervisor,
        )
        .await
        .unwrap();
        Self {
            library,
            store,
            registry,
            _thread: thread,
        }
    }

    async fn resolve(&self, path: &str, offset: u64) -> Result<Resolved, Refusal> {
        tokio::time::timeout(
            PATIENCE,
            self.library.resolve(path, offset, AskedBy::default()),
        )
        .await
        .expect("an answer in time")
    }

    /// The sum of a counter or gauge over the series with this label value, or over all.
    fn metric(&self, name: &str, value: Option<&str>) -> u64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap_or_else(|| panic!("no metric {name}"));
        let is_meant = |metric: &&prometheus::proto::Metric| {
            value.is_none_or(|value| {
                metric
                    .get_label()
                    .iter()
                    .any(|label| label.value() == value)
            })
        };
        let sum = |metric: &prometheus::proto::Metric| {
            metric.get_counter().get_value() + metric.get_gauge().get_value()
        };
        format!(
            "{:.0}",
            family
                .get_metric()
                .iter()
                .filter(is_meant)
                .map(sum)
                .sum::<f64>()
        )
        .parse()
        .unwrap()
    }
}

fn http(origin: &Origin) -> stream::Config {
    stream::Config {
        origin: Some(origin.url("/base").into()),
        timeout: Duration::from_secs(20),
        ..stream::Config::default()
    }
}

fn directory(root: &Path) -> stream::Config {
    stream::Config {
        directory: Some(root.to_owned()),
        timeout: Duration::from_secs(20),
        ..stream::Config::default()
    }
}

/// Bytes that differ for each name.
fn noise(name: &str, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(name.as_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes.into()
}

fn playlist(first: u64, count: u64) -> String {
    let mut text = format!(
        "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:{first}\n"
    );
    for number in first..first + count {
        text += &format!("#EXTINF:1.0,\nseg{number}.ts\n");
    }
    text
}

#[track_caller]
fn assert_coded(resolved: &Resolved, bytes: &[u8]) {
    assert!(matches!(resolved.body, Body::Coded(_)), "{resolved:?}");
    assert_eq!(
        (resolved.id, resolved.length),
        (SegmentId::of(bytes), bytes.len() as u64)
    );
}

/// Waits for the work of another task.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_path_is_fetched_once_however_many_ask() {
    let origin = Origin::start().await;
    let bytes = noise("a", 50_000);
    origin.put_fault(
        "/base/seg.ts?token=1",
        bytes.clone(),
        Fault::Slow(Duration::from_millis(300)),
    );
    let server = Server::start(http(&origin)).await;
    let asks = (0..50).map(|_| {
        let library = server.library.clone();
        tokio::spawn(async move {
            library
                .resolve("/live/seg.ts?token=1", 0, AskedBy::default())
                .await
        })
    });
    for answer in futures_util::future::join_all(asks.collect::<Vec<_>>()).await {
        let resolved = answer.unwrap().unwrap();
        assert_coded(&resolved, &bytes);
        assert_eq!(
            (resolved.path.as_str(), resolved.object_length),
            ("/live/seg.ts?token=1", Some(50_000))
        );
        assert_eq!(resolved.content_type, "video/mp2t");
    }
    assert_coded(
        &server
            .resolve("/live/seg%2ets?token=1", 40_000)
            .await
            .unwrap(),
        &bytes,
    );
    assert_eq!(origin.asked("/base/seg.ts?token=1").len(), 1);
    assert_eq!(server.metric("ncserverd_ingest_requests_total", None), 1);
    assert!(server.metric("ncserverd_stream_coalesced_total", None) >= 40);
    assert_eq!(server.store.usage(store::index::Tier::Host).1, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_the_origin_has_an_answer_and_a_metric() {
    let origin = Origin::start().await;
    let bytes = noise("f", 30_000);
    let mut config = http(&origin);
    config.timeout = Duration::from_secs(2);
    config.playlist_max_bytes = ByteSize::b(1000);
    let server = Server::start(config).await;
    let elsewhere = Origin::start().await;
    elsewhere.put("/base/seg.ts", bytes.clone());
    let looping = origin.url("/base/loop.ts");
    for (path, fault, code, kind) in [
        (
            "401.ts",
            Fault::Status(401),
            RefusalCode::Forbidden,
            "forbidden",
        ),
        (
            "403.ts",
            Fault::Status(403),
            RefusalCode::Forbidden,
            "forbidden",
        ),
        ("418.ts", Fault::Status(418), RefusalCode::Origin, "refused"),
        ("429.ts", Fault::Status(429), RefusalCode::Overload, "busy"),
        (
            "503.ts",
            Fault::Status(503),
            RefusalCode::Origin,
            "unavailable",
        ),
        (
            "410.ts",
            Fault::Status(410),
            RefusalCode::Unknown,
            "not_found",
        ),
        (
            "500.ts",
            Fault::Status(500),
            RefusalCode::Origin,
            "unavailable",
        ),
        (
            "204.ts",
            Fault::Status(204),
            RefusalCode::Origin,
            "protocol",
        ),
        (
            "slow.ts",
            Fault::Slow(Duration::from_secs(30)),
            RefusalCode::Origin,
            "timeout",
        ),
        ("cut.ts", Fault::Truncated, RefusalCode::Origin, "truncated"),
        (
            "cut-chunks.ts",
            Fault::TruncatedChunks,
            RefusalCode::Origin,
            "truncated",
        ),
        (
            "gzip.ts",
            Fault::Compressed,
            RefusalCode::Origin,
            "protocol",
        ),
        (
            "away.ts",
            Fault::Redirect(elsewhere.url("/base/seg.ts")),
            RefusalCode::Origin,
            "redirect",
        ),
        (
            "loop.ts",
            Fault::Redirect(looping),
            RefusalCode::Origin,
            "redirect",
        ),
        (
            "local.ts",
            Fault::Redirect("file:///etc/passwd".into()),
            RefusalCode::Origin,
            "redirect",
        ),
        ("long.m3u8", Fault::Chunks, RefusalCode::Limit, "too_large"),
        ("longer.m3u8", Fault::None, RefusalCode::Limit, "too_large"),
    ] {
        origin.put_fault(&format!("/base/{path}"), bytes.clone(), fault);
        let before = server.metric("ncserverd_ingest_errors_total", Some(kind));
        let refusal = server
            .resolve(&format!("/live/{path}"), 0)
            .await
            .unwrap_err();
        assert_eq!(refusal.code, code, "{path}: {refusal:?}");
        let leads_there = ["://", "/base/"]
            .iter()
            .any(|part| refusal.reason.contains(part));
        assert!(
            !refusal.reason.is_empty() && !leads_there,
            "{path}: {refusal:?}"
        );
        assert_eq!(
            server.metric("ncserverd_ingest_errors_total", Some(kind)),
            before + 1,
            "{path}"
        );
        if kind == "busy" {
            assert_eq!(
                origin.asked(&format!("/base/{path}")).len(),
                1,
                "whoever has too much to do is not asked again at once"
            );
        }
        assert!(
            kind != "unavailable" || refusal.retry_after.is_none(),
            "{path}: it was asked several times"
        );
    }
    assert_eq!(elsewhere.asked_in_all(), 0);
    assert_eq!(
        server.store.usage(store::index::Tier::Host).1,
        0,
        "nothing wrong is held"
    );

    let refusal = server.resolve("/live/absent.ts", 0).await.unwrap_err();
    assert_eq!(
        (refusal.code, refusal.retry_after.is_some()),
        (RefusalCode::Unknown, true)
    );
    assert_eq!(
        server.metric("ncserverd_ingest_errors_total", Some("not_found")),
        2
    );
    assert!(server.metric("ncserverd_stream_refusals_total", Some("origin")) >= 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_alone_is_answered_without_the_origin() {
    let origin = Origin::start().await;
    let bytes = noise("held", 50_000);
    origin.put("/base/seg.ts", bytes.clone());
    origin.put("/base/small.vtt", noise("small", 100));
    let server = Server::start(http(&origin)).await;
    let held = |path: &str| server.library.resolve_held(path, 0, AskedBy::default());
    for path in [
        "/live/seg.ts",
        "/live/small.vtt",
        "/live/absent.ts",
        "/other/seg.ts",
    ] {
        assert_eq!(held(path).unwrap_err().code, RefusalCode::Unknown, "{path}");
    }
    assert_eq!(origin.asked_in_all(), 0);
    for path in ["/live/seg.ts", "/live/small.vtt"] {
        server.resolve(path, 0).await.unwrap();
        held(path).unwrap();
    }
    assert_coded(&held("/live/seg.ts").unwrap(), &bytes);
    // A refusal that is remembered counts, too.
    let refused = server.resolve("/live/absent.ts", 0).await.unwrap_err();
    assert_eq!(held("/live/absent.ts").unwrap_err().code, refused.code);
    let asked = origin.asked_in_all();
    assert_eq!(held("/live/seg.ts").unwrap().length, 50_000);
    assert_eq!(origin.asked_in_all(), asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_remembered_for_a_moment() {
    let origin = Origin::start().await;
    let server = Server::start(http(&origin)).await;
    for _ in 0..20 {
        assert!(server.resolve("/live/seg.ts", 0).await.is_err());
    }
    assert!(origin.asked("/base/seg.ts").len() < 20);
    origin.put("/base/seg.ts", noise("x", 10_000));
    let begun = Instant::now();
    while server.resolve("/live/seg.ts", 0).await.is_err() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_passes_is_tried_again() {
    let origin = Origin::start().await;
    let bytes = noise("r", 9000);
    origin.put_fault("/base/seg.ts", bytes.clone(), Fault::StatusAtFirst(2));
    let server = Server::start(http(&origin)).await;
    assert_coded(&server.resolve("/live/seg.ts", 0).await.unwrap(), &bytes);
    assert_eq!(origin.asked("/base/seg.ts").len(), 3);
    assert_eq!(
        server.metric("ncserverd_ingest_retries_total", Some("http")),
        2
    );
    assert_eq!(server.metric("ncserverd_ingest_errors_total", None), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_an_end_is_refused() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket
                .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf of the byt")
                .await;
        }
    });
    let server = Server::start(stream::Config {
        origin: Some(format!("http://{address}/").into()),
        ..stream::Config::default()
    })
    .await;
    let refusal = server.resolve("/live/seg.ts", 0).await.unwrap_err();
    assert_eq!(refusal.code, RefusalCode::Origin);
    assert_eq!(
        server.metric("ncserverd_ingest_errors_total", Some("length")),
        1
    );
    task.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_gone_shows_in_the_status() {
    let origin = Origin::start().await;
    let config = stream::Config {
        timeout: Duration::from_secs(2),
        ..http(&origin)
    };
    drop(origin);
    let server = Server::start(config).await;
    assert_eq!(server.library.status()[0].fault, None);
    assert_eq!(
        server.resolve("/live/seg.ts", 0).await.unwrap_err().code,
        RefusalCode::Origin
    );
    assert!(server.library.status()[0].fault.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_lead_where_they_are_allowed() {
    let (origin, cdn) = (Origin::start().await, Origin::start().await);
    let bytes = noise("c", 8000);
    cdn.put("/x/seg.ts", bytes.clone());
    origin.put_fault("/base/seg.ts", "", Fault::Redirect(cdn.url("/x/seg.ts")));
    origin.put_fault("/base/here.ts", "", Fault::Redirect("/other/seg.ts".into()));
    origin.put("/other/seg.ts", bytes.clone());
    let config = stream::Config {
        redirect_hosts: vec![cdn.address.to_string()],
        headers: BTreeMap::from([("X-Key".to_owned(), "secret".into())]),
        host: Some("media.test".into()),
        ..http(&origin)
    };
    let server = Server::start(config).await;
    assert_coded(&server.resolve("/live/seg.ts", 0).await.unwrap(), &bytes);
    assert_coded(&server.resolve("/live/here.ts", 0).await.unwrap(), &bytes);
    let headers = |asked: Vec<origin::Asked>| asked[0].headers.clone();
    let at_origin = headers(origin.asked("/base/seg.ts"));
    assert_eq!(
        (&at_origin["x-key"], &at_origin["host"]),
        (&"secret".parse().unwrap(), &"media.test".parse().unwrap())
    );
    let at_cdn = headers(cdn.asked("/x/seg.ts"));
    assert_eq!(
        (at_cdn.get("x-key"), &at_cdn["host"]),
        (None, &cdn.address.to_string().parse().unwrap())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_out_of_the_stream_never_reach_the_origin() {
    let origin = Origin::start().await;
    let server = Server::start(http(&origin)).await;
    for path in [
        "",
        "/",
        "/live",
        "live/seg.ts",
        "/other/seg.ts",
        "/live/",
        "/live//seg.ts",
        "/live/../seg.ts",
        "/live/%2e%2e/x",
    ]
    .into_iter()
    .chain([
        "/live/a%2f..%2fb",
        "/live/a\\b",
        "/live/a%00",
        "/live/a\r\nX: y",
        "/live/%252e%252e/x",
        "/live/..;/x",
        "/live/a%",
    ]) {
        let refusal = server.resolve(path, 0).await.unwrap_err();
        assert_eq!(
            (refusal.code, refusal.retry_after),
            (RefusalCode::Unknown, None),
            "{path}"
        );
    }
    assert_eq!(origin.asked_in_all(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn small_objects_travel_with_their_metadata() {
    let origin = Origin::start().await;
    let bytes = noise("s", 4095);
    origin.put("/base/init.mp4", bytes.clone());
    origin.put("/base/empty.vtt", "");
    let server = Server::start(http(&origin)).await;
    for _ in 0..2 {
        let resolved = server.resolve("/live/init.mp4", 0).await.unwrap();
        assert!(
            matches!(&resolved.body, Body::Inline(inline) if *inline == bytes),
            "{resolved:?}"
        );
        let resolved = server.resolve("/live/empty.vtt", 0).await.unwrap();
        assert!(
            matches!(&resolved.body, Body::Inline(inline) if inline.is_empty()),
            "{resolved:?}"
        );
    }
    assert_eq!(origin.asked_in_all(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_objects_come_in_parts_of_one_version() {
    let origin = Origin::start().await;
    let bytes = noise("large", 2 * PART + 30_000);
    origin.put("/base/film.mp4", bytes.clone());
    let server = Server::start(http(&origin)).await;
    let mut offset = 0;
    let mut version = None;
    let mut ids = Vec::new();
    while offset < bytes.len() {
        let resolved = server
            .resolve("/live/film.mp4", offset as u64)
            .await
            .unwrap();
        let end = (offset + PART).min(bytes.len());
        assert_coded(&resolved, &bytes[offset..end]);
        assert_eq!(
            (resolved.offset, resolved.object_length),
            (offset as u64, Some(bytes.len() as u64))
        );
        assert_eq!(*version.get_or_insert(resolved.version), resolved.version);
        ids.push(resolved.id);
        offset = end;
    }
    assert_eq!(origin.asked("/base/film.mp4").len(), 3);
    assert_eq!(
        server.resolve("/live/film.mp4", 10).await.unwrap().offset,
        0
    );
    let refusal = server
        .resolve("/live/film.mp4", bytes.len() as u64)
        .await
        .unwrap_err();
    assert_eq!(
        (refusal.code, origin.asked("/base/film.mp4").len()),
        (RefusalCode::Unknown, 3)
    );

    // The object changes, which shows at the part that is fetched again.
    let other = noise("other", 2 * PART + 30_000);
    origin.put("/base/film.mp4", other.clone());
    let coding = server
        .library
        .find(&ids[1], None)
        .unwrap()
        .lease
        .shape
        .coding();
    let held = server.library.find(&ids[2], None).unwrap();
    server.store.expire(&ids[1], coding, Instant::now());
    server.store.sweep(Instant::now());
    let refusal = server
        .resolve("/live/film.mp4", PART as u64)
        .await
        .unwrap_err();
    assert_eq!(
        (refusal.code, refusal.retry_after.is_some()),
        (RefusalCode::Changed, true)
    );
    assert_eq!(
        server.metric("ncserverd_stream_changed_objects_total", None),
        1
    );
    drop(held);
    for offset in [0, PART, 2 * PART] {
        let resolved = server
            .resolve("/live/film.mp4", offset as u64)
            .await
            .unwrap();
        assert_coded(&resolved, &other[offset..(offset + PART).min(other.len())]);
        assert_ne!(Some(resolved.version), version);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_wrong_length_are_refused() {
    let origin = Origin::start().await;
    let bytes = noise("p", 2 * PART);
    origin.put_fault("/base/short.mp4", bytes.clone(), Fault::ShortRange);
    origin.put_fault("/base/none.mp4", bytes.clone(), Fault::NoRanges);
    origin.put_fault("/base/chunks.mp4", bytes.clone(), Fault::Chunks);
    let server = Server::start(http(&origin)).await;
    for (path, kind) in [
        ("/live/short.mp4", "length"),
        ("/live/none.mp4", "no_ranges"),
    ] {
        assert_coded(&server.resolve(path, 0).await.unwrap(), &bytes[..PART]);
        assert_eq!(
            server.resolve(path, PART as u64).await.unwrap_err().code,
            RefusalCode::Origin,
            "{path}"
        );
        assert_eq!(
            server.metric("ncserverd_ingest_errors_total", Some(kind)),
            1,
            "{path}"
        );
    }
    let first = server.resolve("/live/chunks.mp4", 0).await.unwrap();
    assert_coded(&first, &bytes[..PART]);
    assert_eq!(first.object_length, None);
    let second = server
        .resolve("/live/chunks.mp4", PART as u64)
        .await
        .unwrap();
    assert_eq!(
        (second.version, second.object_length),
        (first.version, Some(2 * PART as u64))
    );
    assert_eq!(
        server
            .resolve("/live/absent.mp4", PART as u64)
            .await
            .unwrap_err()
            .code,
        RefusalCode::Unknown
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn playlists_say_where_large_objects_are_cut() {
    let origin = Origin::start().await;
    let bytes = noise("ranges", 100_000);
    let text = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXT-X-PLAYLIST-TYPE:VOD\n\
                #EXT-X-MAP:URI=\"all.mp4\",BYTERANGE=\"5000@0\"\n\
                #EXTINF:2,\n#EXT-X-BYTERANGE:45000@10000\nall.mp4\n#EXTINF:2,\n\
                #EXT-X-BYTERANGE:45000\nall.mp4\n#EXT-X-ENDLIST\n";
    origin.put("/base/all.mp4", bytes.clone());
    origin.put("/base/vod.m3u8", text);
    let server = Server::start(http(&origin)).await;
    let list = server.resolve("/live/vod.m3u8", 0).await.unwrap();
    assert!(
        matches!(&list.body, Body::Whole(whole) if whole == text),
        "{list:?}"
    );
    assert_eq!(
        (list.content_type.as_str(), list.id),
        (
            "application/vnd.apple.mpegurl",
            SegmentId::of(text.as_bytes())
        )
    );
    for (offset, range) in [
        (0, 0..5000),
        (5000, 5000..10_000),
        (12_345, 10_000..55_000),
        (99_999, 55_000..100_000),
    ] {
        let resolved = server.resolve("/live/all.mp4", offset).await.unwrap();
        assert_coded(&resolved, &bytes[range.clone()]);
        assert_eq!(
            (resolved.offset, resolved.object_length),
            (range.start as u64, Some(100_000))
        );
    }
    let ranges: Vec<_> = origin
        .asked("/base/all.mp4")
        .iter()
        .map(|asked| asked.headers.get("range").cloned())
        .collect();
    assert_eq!(ranges.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn playlists_are_revalidated_by_age() {
    let origin = Origin::start().await;
    let text = playlist(0, 3) + "#EXT-X-ENDLIST\n";
    origin.put("/base/vod.m3u8", text.clone());
    let server = Server::start(stream::Config {
        playlist_age: Duration::from_millis(200),
        ..http(&origin)
    })
    .await;
    let first = server.resolve("/live/vod.m3u8", 0).await.unwrap();
    assert!(first.max_age <= Duration::from_millis(200));
    tokio::time::sleep(Duration::from_millis(250)).await;
    let second = server.resolve("/live/vod.m3u8", 0).await.unwrap();
    assert_eq!(second.version, first.version);
    assert_eq!(
        server.metric("ncserverd_ingest_not_modified_total", Some("http")),
        1
    );
    assert!(
        origin.asked("/base/vod.m3u8")[1]
            .headers
            .contains_key("if-none-match")
    );
    let other = playlist(0, 4) + "#EXT-X-ENDLIST\n";
    origin.put("/base/vod.m3u8", other.clone());
    tokio::time::sleep(Duration::from_millis(250)).await;
    let third = server.resolve("/live/vod.m3u8", 0).await.unwrap();
    assert!(matches!(&third.body, Body::Whole(whole) if *whole == other));
    assert_ne!(third.version, first.version);
    origin.remove("/base/vod.m3u8");
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(
        server.resolve("/live/vod.m3u8", 0).await.unwrap_err().code,
        RefusalCode::Unknown
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_playlist_outlives_a_short_fault_of_the_origin() {
    let origin = Origin::start().await;
    origin.put("/base/a.m3u8", playlist(0, 3));
    let config = stream::Config {
        playlist_age: Duration::from_millis(50),
        playlist_grace: Duration::from_secs(2),
        prefetch: 0,
        ..http(&origin)
    };
    let server = Server::start(config).await;
    server.resolve("/live/a.m3u8", 0).await.unwrap();
    origin.put_fault("/base/a.m3u8", "", Fault::Status(502));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(server.resolve("/live/a.m3u8", 0).await.is_ok());
    let begun = Instant::now();
    let refusal = loop {
        match server.resolve("/live/a.m3u8", 0).await {
            Err(refusal) => break refusal,
            Ok(_) => assert!(begun.elapsed() < PATIENCE),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(refusal.code, RefusalCode::Origin);
}

/// A fault that a viewer triggers is logged once, with its source.
#[tokio::test]
async fn a_playlist_that_stands_still_is_in_the_log() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(lines.clone())
        .with_max_level(tracing::Level::INFO);
    let _log = tracing::subscriber::set_default(subscriber.finish());
    let origin = Origin::start().await;
    origin.put("/base/a.m3u8", playlist(5, 3));
    let stale = Duration::from_millis(100);
    let config = stream::Config {
        playlist_age: stale,
        playlist_stale_after: stale,
        prefetch: 0,
        ..http(&origin)
    };
    let server = Server::start(config).await;
    let begun = Instant::now();
    while server.resolve("/live/a.m3u8", 0).await.is_ok() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(stale).await;
    }
    assert!(server.resolve("/live/a.m3u8", 0).await.is_err());
    let (written, url) = (lines.text(), origin.url("/base/a.m3u8"));
    let told: Vec<&str> = written
        .lines()
        .filter(|line| line.contains("a live playlist does not change"))
        .collect();
    assert!(
        told.len() == 1 && told[0].contains("WARN") && told[0].contains(&format!("\"GET {url}\"")),
        "{written}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_and_lagging_playlists_are_found_out() {
    let origin = Origin::start().await;
    origin.put("/base/a.m3u8", playlist(5, 3));
    let config = stream::Config {
        playlist_age: Duration::from_millis(50),
        playlist_stale_after: Duration::from_millis(100),
        prefetch: 0,
        ..http(&origin)
    };
    let server = Server::start(config).await;
    let newest = server.resolve("/live/a.m3u8", 0).await.unwrap();
    origin.put("/base/a.m3u8", playlist(4, 3));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        server.resolve("/live/a.m3u8", 0).await.unwrap().id,
        newest.id,
        "an older one is passed over"
    );
    assert!(server.metric("ncserverd_stream_stale_playlists_total", Some("lagging")) >= 1);

    let begun = Instant::now();
    let refusal = loop {
        match server.resolve("/live/a.m3u8", 0).await {
            Err(refusal) => break refusal,
            Ok(_) => assert!(begun.elapsed() < PATIENCE),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(
        begun.elapsed() > Duration::from_secs(1),
        "three target durations at least"
    );
    assert_eq!(
        (refusal.code, refusal.retry_after),
        (RefusalCode::Origin, Some(Duration::from_secs(1)))
    );
    assert!(server.metric("ncserverd_stream_stale_playlists_total", Some("standing")) >= 1);
    let newer = playlist(6, 3);
    origin.put("/base/a.m3u8", newer.clone());
    let (begun, id) = (Instant::now(), SegmentId::of(newer.as_bytes()));
    while !server
        .resolve("/live/a.m3u8", 0)
        .await
        .is_ok_and(|resolved| resolved.id == id)
    {
        assert!(begun.elapsed() < PATIENCE, "the playlist goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_playlist_is_not_passed_on() {
    let origin = Origin::start().await;
    origin.put("/base/a.m3u8", "<html>Welcome</html>");
    let server = Server::start(http(&origin)).await;
    assert_eq!(
        server.resolve("/live/a.m3u8", 0).await.unwrap_err().code,
        RefusalCode::Origin
    );
    assert_eq!(
        server.metric("ncserverd_ingest_playlist_errors_total", None),
        1
    );
    let text = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n#EXT-X-BYTERANGE:0@0\nx.ts\n";
    origin.put("/base/b.m3u8", text);
    let resolved = server.resolve("/live/b.m3u8", 0).await.unwrap();
    assert!(
        matches!(&resolved.body, Body::Whole(whole) if whole == text),
        "passed on as it is"
    );
    assert_eq!(
        server.metric("ncserverd_ingest_playlist_errors_total", None),
        2
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_known_by_their_type_too() {
    let origin = Origin::start().await;
    let text = playlist(0, 2);
    let content_type = Some("application/x-mpegURL");
    origin.put_file(
        "/base/stream?id=7",
        File {
            bytes: text.clone().into(),
            content_type,
            ..File::default()
        },
    );
    origin.put("/base/a.mpd", "<MPD/>");
    let server = Server::start(stream::Config {
        prefetch: 0,
        ..http(&origin)
    })
    .await;
    for _ in 0..2 {
        assert!(matches!(
            server.resolve("/live/stream?id=7", 0).await.unwrap().body,
            Body::Whole(whole) if whole == text
        ));
        let manifest = server.resolve("/live/a.mpd", 0).await.unwrap();
        assert!(matches!(manifest.body, Body::Whole(whole) if whole == "<MPD/>"));
        assert_eq!(manifest.content_type, "application/dash+xml");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn absolute_uris_lead_to_the_stream() {
    let origin = Origin::start().await;
    let text = format!(
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n",
        origin.url("/base/v/x.ts?a=1")
    );
    origin.put("/base/v/a.m3u8", text.clone());
    let server = Server::start(http(&origin)).await;
    let Body::Whole(whole) = server.resolve("/live/v/a.m3u8", 0).await.unwrap().body else {
        panic!("a playlist")
    };
    assert_eq!(whole, text.replace(&origin.url("/base/"), "/live/"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_live_edge_is_fetched_announced_and_let_go() {
    let origin = Origin::start().await;
    for number in 0..8 {
        origin.put(
            &format!("/base/v/seg{number}.ts"),
            noise(&format!("seg{number}"), 10_000),
        );
    }
    origin.put(
        "/base/master.m3u8",
        "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nv/live.m3u8\n",
    );
    origin.put("/base/v/live.m3u8", playlist(0, 4));
    let config = stream::Config {
        playlists: vec!["master.m3u8".into()],
        prefetch: 2,
        retention: Duration::from_millis(100),
        ..http(&origin)
    };
    let server = Server::start(config).await;
    assert!(server.library.subscribe("other").is_none());
    let mut announced = server.library.subscribe("live").unwrap();
    let mut arrivals = server.library.arrivals();
    let id = |number: u64| SegmentId::of(&noise(&format!("seg{number}"), 10_000));
    for number in 2..8 {
        if number > 3 {
            origin.put("/base/v/live.m3u8", playlist(number - 3, 4));
        }
        let resolved = tokio::time::timeout(PATIENCE, announced.recv())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(
            (resolved.path.as_str(), resolved.id),
            (format!("/live/v/seg{number}.ts").as_str(), id(number))
        );
        let arrival = tokio::time::timeout(PATIENCE, arrivals.recv())
            .await
            .unwrap()
            .unwrap();
        let held = server.library.find(&id(number), None).unwrap();
        assert_eq!(
            (arrival.segment, &*arrival.stream, held.birth.is_some()),
            (held.lease.key, "live", true)
        );
    }
    assert!(origin.asked("/base/v/seg0.ts").is_empty());
    assert_eq!(origin.asked("/base/v/seg5.ts").len(), 1);
    until("what left the window goes", || {
        server.library.find(&id(2), None).is_none()
    })
    .await;
    assert!(server.library.find(&id(7), None).is_some());
    assert_coded(
        &server.resolve("/live/v/seg7.ts", 0).await.unwrap(),
        &noise("seg7", 10_000),
    );
    assert_eq!(origin.asked("/base/v/seg7.ts").len(), 1);
    assert!(server.metric("ncserverd_store_evictions_total", Some("expired")) >= 1);
}

/// An origin that ignores queries, and a peer that uses many.
#[tokio::test(flavor = "multi_thread")]
async fn one_playlist_of_a_path_is_followed_whatever_a_peer_asks_for() {
    let origin = Origin::start().await;
    origin.put_whatever_the_query("/base/live.m3u8", playlist(0, 3), Fault::None);
    let server = Server::start(stream::Config {
        prefetch: 0,
        ..http(&origin)
    })
    .await;
    server.resolve("/live/live.m3u8", 0).await.unwrap();
    for number in 0..50 {
        server
            .resolve(&format!("/live/live.m3u8?{number}"), 0)
            .await
            .unwrap();
    }
    let followed = || origin.asked("/base/live.m3u8").len();
    let begun = followed();
    until("the playlist is looked at again", || followed() > begun + 2).await;
    let others: usize = (0..50)
        .map(|number| origin.asked(&format!("/base/live.m3u8?{number}")).len())
        .sum();
    assert_eq!(others, 50, "no other name of it is looked at");
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_that_do_not_count_are_not_asked_for() {
    let origin = Origin::start().await;
    origin.put(
        "/base/live.m3u8?v=1",
        playlist(0, 3).replace(".ts", ".ts?n=5&v=1"),
    );
    (0..3).for_each(|number| {
        origin.put(&format!("/base/seg{number}.ts?v=1"), noise("segment", 9000))
    });
    let server = Server::start(stream::Config {
        query: vec!["v".into()],
        ..http(&origin)
    })
    .await;
    for text in ["?v=1", "?x=1&v=1", "?v=1&v=2&7"] {
        let resolved = server
            .resolve(&format!("/live/live.m3u8{text}"), 0)
            .await
            .unwrap();
        assert_eq!(
            resolved.path,
            format!("/live/live.m3u8{text}"),
            "the name that was asked for"
        );
    }
    until("the live edge is fetched ahead", || {
        server.metric("ncserverd_stream_announced_total", None) == 3
    })
    .await;
    assert_coded(
        &server.resolve("/live/seg2.ts?n=5&v=1", 0).await.unwrap(),
        &noise("segment", 9000),
    );
    assert_eq!(origin.asked("/base/seg2.ts?v=1").len(), 1);
    assert!(origin.asked("/base/seg2.ts?n=5&v=1").is_empty());
    assert_eq!(
        server
            .resolve("/live/live.m3u8?x", 0)
            .await
            .unwrap_err()
            .code,
        RefusalCode::Unknown
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoder_that_starts_over_replaces_its_segments() {
    let origin = Origin::start().await;
    origin.put("/base/seg0.ts", noise("old", 10_000));
    origin.put("/base/a.m3u8", playlist(0, 1));
    let server = Server::start(stream::Config {
        playlist_age: Duration::from_millis(50),
        ..http(&origin)
    })
    .await;
    server.resolve("/live/a.m3u8", 0).await.unwrap();
    assert_coded(
        &server.resolve("/live/seg0.ts", 0).await.unwrap(),
        &noise("old", 10_000),
    );
    origin.put("/base/a.m3u8", playlist(7, 1));
    origin.put("/base/seg7.ts", noise("seven", 10_000));
    until("it goes on", || {
        server
            .library
            .find(&SegmentId::of(&noise("seven", 10_000)), None)
            .is_some()
    })
    .await;
    origin.put("/base/seg0.ts", noise("new", 10_000));
    origin.put("/base/a.m3u8", playlist(0, 1));
    until("it has started over", || {
        server
            .library
            .find(&SegmentId::of(&noise("new", 10_000)), None)
            .is_some()
    })
    .await;
    assert_coded(
        &server.resolve("/live/seg0.ts", 0).await.unwrap(),
        &noise("new", 10_000),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_peers_hold_is_never_evicted() {
    let origin = Origin::start().await;
    for name in ["a", "b", "c"] {
        origin.put(&format!("/base/{name}.ts"), noise(name, 60_000));
    }
    // The three quarters for held segments have room for two, the whole store not for three.
    let server = Server::start_with(
        http(&origin),
        Options {
            store: ByteSize::kib(165),
            ..Options::default()
        },
    )
    .await;
    let a = server.resolve("/live/a.ts", 0).await.unwrap();
    let b = server.resolve("/live/b.ts", 0).await.unwrap();
    let refusal = server.resolve("/live/c.ts", 0).await.unwrap_err();
    assert_eq!(
        (refusal.code, refusal.retry_after.is_some()),
        (RefusalCode::Overload, true),
        "{refusal:?}"
    );
    drop(a);
    let (b_id, mut evictions) = (b.id, server.store.evictions());
    let c = server.resolve("/live/c.ts", 0).await.unwrap();
    assert_coded(&c, &noise("c", 60_000));
    assert!(server.library.find(&b_id, None).is_some());
    assert!(evictions.try_recv().is_ok());
    drop(b);
    assert_coded(
        &server.resolve("/live/a.ts", 0).await.unwrap(),
        &noise("a", 60_000),
    );
    assert_eq!(origin.asked("/base/a.ts").len(), 2);
    assert_eq!(server.metric("ncserverd_store_refused_total", None), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_configuration_is_taken_whole_or_not_at_all() {
    let origin = Origin::start().await;
    origin.put("/base/a.ts", noise("a", 60_000));
    origin.put("/base/b.ts", noise("b", 60_000));
    let server = Server::start(http(&origin)).await;
    let mut announced = server.library.subscribe("live").unwrap();
    let Body::Coded(a) = server.resolve("/live/a.ts", 0).await.unwrap().body else {
        panic!("a segment")
    };

    let mut streams = Streams::from([
        ("live".to_owned(), http(&origin)),
        ("more".to_owned(), http(&origin)),
    ]);
    streams.get_mut("more").unwrap().block_bytes = 7;
    assert!(server.library.apply(&streams).await.is_err());
    assert_eq!(server.library.names(), ["live"]);

    streams.get_mut("more").unwrap().block_bytes = 1024;
    streams.get_mut("live").unwrap().n_max = 2;
    let applied = server.library.apply(&streams).await.unwrap();
    assert_eq!(
        (applied.added, applied.changed),
        (vec!["more".to_owned()], vec!["live".to_owned()])
    );
    let Body::Coded(b) = server.resolve("/live/b.ts", 0).await.unwrap().body else {
        panic!("a segment")
    };
    // A segment of 60,000 bytes has three generations of at least 16 KiB.
    assert_eq!((a.lease.shape.n_max(), b.lease.shape.n_max()), (5, 2));
    assert_eq!(origin.asked("/base/a.ts").len(), 1);
    server.resolve("/live/a.ts", 0).await.unwrap();
    assert_eq!(origin.asked("/base/a.ts").len(), 1, "what is held stays");

    streams.remove("live");
    assert_eq!(
        server.library.apply(&streams).await.unwrap().removed,
        ["live"]
    );
    assert_eq!(
        server.resolve("/live/a.ts", 0).await.unwrap_err().code,
        RefusalCode::Unknown
    );
    for held in [&a, &b] {
        assert!(
            server.library.find(&held.lease.id, None).is_none(),
            "nor by its id, though somebody uses it"
        );
    }
    // The same bytes in a stream that exists.
    assert_coded(
        &server.resolve("/more/a.ts", 0).await.unwrap(),
        &noise("a", 60_000),
    );
    assert!(
        server.library.find(&a.lease.id, None).is_some()
            && server.library.find(&b.lease.id, None).is_none()
    );
    drop((a, b));
    let end = tokio::time::timeout(PATIENCE, announced.recv())
        .await
        .unwrap();
    assert!(matches!(
        end,
        Err(tokio::sync::broadcast::error::RecvError::Closed)
    ));
}

/// A segment that is being fetched while its stream is removed.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_in_for_a_stream_that_has_gone_is_nobodys() {
    let origin = Origin::start().await;
    origin.put_fault(
        "/base/slow.ts",
        noise("slow", 60_000),
        Fault::Slow(Duration::from_millis(500)),
    );
    let server = Server::start(http(&origin)).await;
    let library = server.library.clone();
    let asked = tokio::spawn(async move {
        library
            .resolve("/live/slow.ts", 0, AskedBy::default())
            .await
    });
    until("the origin is asked", || {
        !origin.asked("/base/slow.ts").is_empty()
    })
    .await;
    server
        .library
        .apply(&Streams::from([("other".to_owned(), http(&origin))]))
        .await
        .unwrap();
    assert_eq!(asked.await.unwrap().unwrap_err().code, RefusalCode::Unknown);
    assert!(
        server
            .library
            .find(&SegmentId::of(&noise("slow", 60_000)), None)
            .is_none()
    );
}

/// On the test's own thread, so that it captures only its own log.
#[tokio::test]
async fn what_peers_ask_for_does_not_flood_the_log() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(lines.clone())
        .with_max_level(tracing::Level::INFO)
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let origin = Origin::start().await;
    for number in 0..40 {
        origin.put_fault(&format!("/base/bad{number}.ts"), "", Fault::Status(503));
        origin.put(&format!("/base/good{number}.ts"), "here");
        origin.put(
            &format!("/base/odd{number}.m3u8"),
            "#EXTM3U\n#EXTINF:2,\n#EXT-X-BYTERANGE:0@1\na.ts",
        );
    }
    let ingest = ingest::Config {
        retries: 0,
        ..Options::default().ingest
    };
    let server = Server::start_with(
        http(&origin),
        Options {
            ingest,
            ..Options::default()
        },
    )
    .await;
    for number in 0..40 {
        for name in [
            format!("bad{number}.ts"),
            format!("good{number}.ts"),
            format!("odd{number}.m3u8"),
            format!("no{number}.ts"),
        ] {
            let _ = server.resolve(&format!("/live/{name}"), 0).await;
        }
    }
    let written = lines.text();
    assert!(
        written.contains("answers again") && written.contains("not fetching its segments ahead"),
        "{written}"
    );
    assert!(
        written.lines().count() < 20,
        "{} lines",
        written.lines().count()
    );
}

/// The captured log.
#[derive(Clone, Default)]
struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_moved_into_place_are_announced_whole() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("v")).unwrap();
    std::fs::write(root.path().join("v/before.ts"), noise("before", 20_000)).unwrap();
    let server = Server::start(directory(root.path())).await;
    let mut announced = server.library.subscribe("live").unwrap();
    assert_coded(
        &server.resolve("/live/v/before.ts", 0).await.unwrap(),
        &noise("before", 20_000),
    );
    for number in 0..5 {
        let name = format!("seg{number}.ts");
        let temporary = root.path().join(format!("v/{name}.tmp"));
        std::fs::write(&temporary, noise(&name, 20_000)).unwrap();
        std::fs::rename(&temporary, root.path().join(format!("v/{name}"))).unwrap();
        loop {
            let resolved = tokio::time::timeout(PATIENCE, announced.recv())
                .await
                .unwrap()
                .unwrap();
            if resolved.path == "/live/v/before.ts" {
                continue;
            }
            assert_eq!(resolved.path, format!("/live/v/{name}"));
            assert_coded(&resolved, &noise(&name, 20_000));
            break;
        }
    }
    let Body::Coded(held) = server
        .resolve("/live/v/seg4.ts?ignored=1", 0)
        .await
        .unwrap()
        .body
    else {
        panic!("a segment")
    };
    assert!(held.birth.is_some());
    assert!(server.resolve("/live/v/seg4.ts.tmp", 0).await.is_err());
    assert_eq!(
        server.resolve("/live/v", 0).await.unwrap_err().code,
        RefusalCode::Unknown
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_announced_when_its_slow_writer_has_closed_it() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::start(directory(root.path())).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut announced = server.library.subscribe("live").unwrap();
    let bytes = noise("slow", 40_000);
    let name = root.path().join("slow.ts");
    let mut file = std::fs::File::create(&name).unwrap();
    let early = tokio::spawn({
        let library = server.library.clone();
        async move {
            library
                .resolve("/live/slow.ts", 0, AskedBy::default())
                .await
        }
    });
    for part in bytes.chunks(10_000) {
        file.write_all(part).unwrap();
        file.flush().unwrap();
        // Longer than a file that nobody has open takes to settle.
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert!(announced.try_recv().is_err(), "it is still open");
    }
    drop(file);
    let resolved = tokio::time::timeout(PATIENCE, announced.recv())
        .await
        .unwrap()
        .unwrap();
    assert_coded(&resolved, &bytes);
    // A request during the write got all of it, or was told to retry.
    match early.await.unwrap() {
        Ok(resolved) => assert_coded(&resolved, &bytes),
        Err(refusal) => assert!(refusal.retry_after.is_some(), "{refusal:?}"),
    }

    // The same name with other bytes.
    let other = noise("again", 30_000);
    std::fs::write(&name, &other).unwrap();
    let resolved = tokio::time::timeout(PATIENCE, announced.recv())
        .await
        .unwrap()
        .unwrap();
    assert_coded(&resolved, &other);
    assert_coded(&server.resolve("/live/slow.ts", 0).await.unwrap(), &other);
}

/// The kernel reports the creation of a link, and nothing after that.
#[tokio::test(flavor = "multi_thread")]
async fn links_that_are_made_while_a_directory_is_watched_are_served() {
    let root = tempfile::tempdir().unwrap();
    let (clip, slow) = (root.path().join("clip.ts"), root.path().join("slow.ts"));
    std::fs::write(&clip, noise("clip", 20_000)).unwrap();
    let server = Server::start(directory(root.path())).await;
    assert_coded(
        &server.resolve("/live/clip.ts", 0).await.unwrap(),
        &noise("clip", 20_000),
    );
    let mut file = std::fs::File::create(&slow).unwrap();
    file.write_all(&noise("slow", 20_000)).unwrap();
    std::os::unix::fs::symlink("clip.ts", root.path().join("soft.ts")).unwrap();
    std::fs::hard_link(&clip, root.path().join("hard.ts")).unwrap();
    std::fs::hard_link(&slow, root.path().join("open.ts")).unwrap();
    for path in ["/live/soft.ts", "/live/hard.ts"] {
        let begun = Instant::now();
        assert_coded(
            &server.resolve(path, 0).await.unwrap(),
            &noise("clip", 20_000),
        );
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{path}: {:?}",
            begun.elapsed()
        );
    }
    drop(file);
    assert_coded(
        &server.resolve("/live/open.ts", 0).await.unwrap(),
        &noise("slow", 20_000),
    );
}

/// The stream's timeout does not repeat over and over: the client is answered in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_held_open_is_refused_as_what_it_is() {
    let root = tempfile::tempdir().unwrap();
    let config = stream::Config {
        timeout: Duration::from_secs(1),
        ..directory(root.path())
    };
    let server = Server::start(config).await;
    let mut file = std::fs::File::create(root.path().join("log.ts")).unwrap();
    file.write_all(b"some").unwrap();
    let begun = Instant::now();
    let refusal = server.resolve("/live/log.ts", 0).await.unwrap_err();
    assert_eq!(
        (refusal.code, refusal.reason.as_str()),
        (RefusalCode::Origin, "the file is still being written")
    );
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_playlist_in_a_directory_governs_its_segments() {
    let root = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| {
        let temporary = root.path().join(format!("{name}.tmp"));
        std::fs::write(&temporary, bytes).unwrap();
        std::fs::rename(&temporary, root.path().join(name)).unwrap();
    };
    for number in 0..3 {
        put(
            &format!("seg{number}.ts"),
            &noise(&format!("d{number}"), 9000),
        );
    }
    put("live.m3u8", playlist(0, 3).as_bytes());
    let config = stream::Config {
        retention: Duration::from_millis(100),
        prefetch: 2,
        ..directory(root.path())
    };
    let server = Server::start(config).await;
    let mut announced = server.library.subscribe("live").unwrap();
    let mut next = async || {
        tokio::time::timeout(PATIENCE, announced.recv())
            .await
            .unwrap()
            .unwrap()
            .path
            .clone()
    };
    let mut seen = vec![next().await];
    while !seen.contains(&"/live/seg2.ts".to_owned()) {
        seen.push(next().await);
    }
    put("seg3.ts", &noise("d3", 9000));
    put("live.m3u8", playlist(1, 3).as_bytes());
    while next().await != "/live/seg3.ts" {}
    std::fs::remove_file(root.path().join("seg0.ts")).unwrap();
    put("live.m3u8", playlist(2, 3).as_bytes());
    // A playlist may name files before they exist.
    tokio::time::sleep(Duration::from_millis(100)).await;
    put("seg4.ts", &noise("d4", 9000));
    while next().await != "/live/seg4.ts" {}
    let gone = SegmentId::of(&noise("d1", 9000));
    until("what left the window goes", || {
        server.library.find(&gone, None).is_none()
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let deleted = server.resolve("/live/seg0.ts", 0).await;
    assert_eq!(deleted.unwrap_err().code, RefusalCode::Unknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn links_do_not_lead_out_of_a_directory() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(outside.path().join("secret.ts"), noise("secret", 9000)).unwrap();
    std::os::unix::fs::symlink(outside.path(), root.path().join("way")).unwrap();
    std::os::unix::fs::symlink(
        outside.path().join("secret.ts"),
        root.path().join("secret.ts"),
    )
    .unwrap();
    let server = Server::start(directory(root.path())).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    for path in ["/live/secret.ts", "/live/way/secret.ts"] {
        assert_eq!(
            server.resolve(path, 0).await.unwrap_err().code,
            RefusalCode::Unknown,
            "{path}"
        );
    }
    assert_eq!(server.store.usage(store::index::Tier::Host).1, 0);
    // A link to a file inside the directory is served like a file.
    let inside = noise("inside", 9000);
    std::fs::write(root.path().join("inside.ts"), &inside).unwrap();
    std::os::unix::fs::symlink("inside.ts", root.path().join("link.ts")).unwrap();
    for path in ["/live/inside.ts", "/live/link.ts"] {
        assert_coded(&server.resolve(path, 0).await.unwrap(), &inside);
    }
    assert!(
        server
            .library
            .find(&SegmentId::of(&noise("secret", 9000)), None)
            .is_none()
    );
}

fn signed(config: stream::Config, key: &Path) -> stream::Config {
    stream::Config {
        signing_key: Some(key.to_owned()),
        ..config
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_issued_anew_when_the_origin_confirms_it_and_signed_once() {
    let origin = Origin::start().await;
    origin.put("/base/index.mpd", noise("m", 500));
    origin.put("/base/seg.ts", noise("s", 50_000));
    let directory = tempfile::tempdir().unwrap();
    let age = Duration::from_millis(200);
    let config = stream::Config {
        playlist_age: age,
        segment_age: age,
        ..http(&origin)
    };
    let server = Server::start(signed(config, &directory.path().join("key.pem"))).await;
    for path in ["/live/index.mpd", "/live/seg.ts"] {
        let made = server.metric("ncserverd_stream_signatures_total", Some("metadata"));
        let first = server.resolve(path, 0).await.unwrap();
        assert_eq!(
            server.resolve(path, 0).await.unwrap().signature,
            first.signature,
            "{path}"
        );
        tokio::time::sleep(2 * age).await;
        let confirmed = server.resolve(path, 0).await.unwrap();
        let issued = |resolved: &Resolved| resolved.signature.unwrap().issued_ms;
        assert!(
            confirmed.id == first.id && issued(&confirmed) > issued(&first),
            "{path}"
        );
        assert_eq!(
            server.metric("ncserverd_stream_signatures_total", Some("metadata")),
            made + 2,
            "{path}"
        );
    }
    assert_eq!(
        server.metric("ncserverd_ingest_not_modified_total", Some("http")),
        2
    );
}

/// Wherever a stream has its bytes from, and whether the server has issued answers before it heard
/// of the others.
#[tokio::test(flavor = "multi_thread")]
async fn answers_go_by_the_time_of_the_fleet() {
    const AHEAD_MS: u64 = 3_600_000;
    let wall_ms = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(since.as_millis()).unwrap()
    };
    let member = |name: &str| fleet::Member {
        name: name.to_owned(),
        zone: "east".to_owned(),
        streams: None,
        marks: None,
        server: Alternate {
            address: format!("{name}.example:4443"),
            identity: None,
        },
        page_server: None,
        viewers: 0,
        viewers_max: 1000,
        is_open: true,
        is_leaving: false,
        beat: (0, 0),
        time: (name != "own").then(|| (Instant::now(), wall_ms() + AHEAD_MS)),
    };
    let origin = Origin::start().await;
    let root = tempfile::tempdir().unwrap();
    let keys = tempfile::tempdir().unwrap();
    for name in ["a.m3u8", "b.m3u8"] {
        origin.put(&format!("/base/{name}"), playlist(0, 1).into_bytes());
        std::fs::write(root.path().join(name), playlist(0, 1)).unwrap();
    }
    for source in [http(&origin), directory(root.path())] {
        for is_late in [false, true] {
            let options = Options {
                fleet: Fleet::new(false),
                ..Options::default()
            };
            let fleet = options.fleet.clone();
            fleet.set_greeted(Instant::now());
            let meet = || fleet.set("own", ["own", "b", "c"].map(member));
            let source = signed(source.clone(), &keys.path().join("key.pem"));
            let server = Server::start_with(source, options).await;
            assert_eq!(server.library.time(), None);
            if is_late {
                let first = server.resolve("/live/a.m3u8", 0).await.unwrap();
                let issued_ms = first.signature.unwrap().issued_ms;
                assert!(issued_ms < wall_ms() + AHEAD_MS / 2, "{issued_ms}");
            }
            meet();
            let second = server.resolve("/live/b.m3u8", 0).await.unwrap();
            let issued_ms = second.signature.unwrap().issued_ms;
            let apart_ms = issued_ms.abs_diff(wall_ms() + AHEAD_MS);
            assert!(apart_ms < 60_000, "{issued_ms}");
            assert!(server.library.time().unwrap() >= issued_ms);
        }
    }
}

/// One file that is requested under many names.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_signed_bears_the_name_that_was_asked_for() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.ts"), noise("a", 20_000)).unwrap();
    let keys = tempfile::tempdir().unwrap();
    let server = Server::start(signed(directory(root.path()), &keys.path().join("key.pem"))).await;
    let mut signatures = Vec::new();
    for path in ["/live/a.ts", "/live/a.ts?x=1", "/live/%61.ts"] {
        let resolved = server.resolve(path, 0).await.unwrap();
        assert_eq!(resolved.path, path);
        let Body::Coded(held) = &resolved.body else {
            panic!("{resolved:?}")
        };
        let signature = resolved.signature.unwrap();
        assert_eq!(Some(signature.blocks), held.blocks_digest);
        let meta = Meta {
            request: 1,
            path: path.to_owned(),
            id: resolved.id,
            offset: resolved.offset,
            length: resolved.length,
            object_length: resolved.object_length,
            version: resolved.version,
            max_age_ms: 1,
            content_type: resolved.content_type.clone(),
            delivery: Delivery::Coded(held.lease.shape),
            signature: Some(signature),
            tree: held.tree.clone(),
        };
        assert_eq!(
            StreamKey::of(&meta),
            server.library.status()[0].key,
            "{path}"
        );
        signatures.push(signature);
    }
    assert!(signatures[0] != signatures[1] && signatures[1] != signatures[2]);
    assert!(
        signatures
            .iter()
            .all(|signature| signature.issued_ms == signatures[0].issued_ms)
    );
}

/// Hidden and temporary files in a directory are answered as missing.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_for_the_public_is_not_there() {
    let root = tempfile::tempdir().unwrap();
    let put = |name: &str| {
        let file = root.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, noise(name, 9000)).unwrap();
    };
    let private = [
        ".env",
        ".git/config",
        ".htpasswd",
        "a/.b/c.ts",
        "seg.ts.part",
        "SEG.TS.PART",
        "seg.ts.tmp",
        "seg.ts~",
        "#seg.ts#",
        ".seg.ts.Xa1b2C",
        "upload.partial/seg.ts",
        ".hidden.m3u8",
        ".well-known/.secret",
    ];
    let public = [
        "seg.ts",
        "a/b.ts",
        ".well-known/x.ts",
        "a.b.c.ts",
        "part",
        "x.parts",
    ];
    for name in private.iter().chain(&public) {
        put(name);
    }
    std::os::unix::fs::symlink(".env", root.path().join("link.ts")).unwrap();
    std::os::unix::fs::symlink(".git", root.path().join("link")).unwrap();
    let config = stream::Config {
        allow: vec![".well-known".into()],
        ..directory(root.path())
    };
    let server = Server::start(config).await;
    let mut announced = server.library.subscribe("live").unwrap();
    tokio::time::sleep(Duration::from_millis(900)).await;
    let absent = |refusal: &Refusal| (refusal.code, refusal.retry_after, refusal.reason.clone());
    let nothing = server.resolve("/live/nothing.ts", 0).await.unwrap_err();
    for name in private.iter().chain(&["link.ts", "link/config"]) {
        let path = format!("/live/{}", name.replace('#', "%23"));
        let refusal = server.resolve(&path, 0).await.expect_err(name);
        assert_eq!(absent(&refusal), absent(&nothing), "{path}");
    }
    for name in public {
        assert_coded(
            &server.resolve(&format!("/live/{name}"), 0).await.unwrap(),
            &noise(name, 9000),
        );
    }
    // Nor are they announced when they change, or are written while the server watches.
    for name in private {
        put(name);
        std::fs::write(root.path().join(name), noise("again", 9500)).unwrap();
    }
    put("last.ts");
    loop {
        let resolved = tokio::time::timeout(PATIENCE, announced.recv())
            .await
            .unwrap()
            .unwrap();
        let name = resolved.path.trim_start_matches("/live/").to_owned();
        assert!(
            public.contains(&name.as_str()) || name == "last.ts",
            "{name} is announced"
        );
        if name == "last.ts" {
            break;
        }
    }
    let held = server
        .store
        .lookup(&SegmentId::of(&noise("again", 9500)), None);
    assert!(held.is_none(), "fetched ahead");
}

/// A pipe without a writer delays nobody, nor does a socket.
#[tokio::test(flavor = "multi_thread")]
async fn only_regular_files_are_objects() {
    let root = tempfile::tempdir().unwrap();
    let pipe = root.path().join("pipe.ts");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket.ts")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", root.path().join("zero.ts")).unwrap();
    std::os::unix::fs::symlink("pipe.ts", root.path().join("link.ts")).unwrap();
    std::fs::create_dir(root.path().join("directory.ts")).unwrap();
    std::fs::write(root.path().join("seg.ts"), noise("seg", 9000)).unwrap();
    let server = Server::start(directory(root.path())).await;
    tokio::time::sleep(Duration::from_millis(900)).await;
    let ask = async |name: &str| {
        let path = format!("/live/{name}");
        tokio::time::timeout(
            Duration::from_secs(5),
            server.library.resolve(&path, 0, AskedBy::default()),
        )
        .await
    };
    let answers = [
        ask("pipe.ts").await,
        ask("socket.ts").await,
        ask("zero.ts").await,
        ask("link.ts").await,
        ask("directory.ts").await,
    ];
    let seg = ask("seg.ts").await;
    // Lets the test end even if a thread waits for a writer.
    if let Ok(writer) = rustix::fs::open(
        &pipe,
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK,
        rustix::fs::Mode::empty(),
    ) {
        drop(writer);
    }
    for answer in answers {
        let refusal = answer.expect("an answer in time").unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Unknown, "{refusal:?}");
    }
    assert_coded(&seg.unwrap().unwrap(), &noise("seg", 9000));
}

/// Sends these bytes as the answer on every connection.
async fn raw_origin(answer: &'static [u8]) -> (std::net::SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket.write_all(answer).await;
        }
    });
    (address, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_framed_twice_is_refused() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n\
           5\r\nhello\r\n0\r\n\r\n"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n\
          3\r\nhel\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nConnection: close\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ] {
        let (address, task) = raw_origin(answer).await;
        let config = stream::Config {
            origin: Some(format!("http://{address}/").into()),
            ..stream::Config::default()
        };
        let server = Server::start(config).await;
        for path in ["/live/seg.ts", "/live/live.mpd"] {
            let refusal = server
                .resolve(path, 0)
                .await
                .expect_err(&String::from_utf8_lossy(answer));
            assert_eq!(
                refusal.code,
                RefusalCode::Origin,
                "{}: {refusal:?}",
                String::from_utf8_lossy(answer)
            );
        }
        // Each time because of the header alone.
        let refused = |kind| server.metric("ncserverd_ingest_errors_total", kind);
        let (all, by_length) = (refused(None), refused(Some("length")));
        assert!(
            all >= 2 && by_length >= all,
            "{by_length} of {all}: {}",
            String::from_utf8_lossy(answer)
        );
        task.abort();
    }
}

/// What peers would refuse never gets into a META.
#[tokio::test(flavor = "multi_thread")]
async fn a_media_type_is_made_fit_to_travel() {
    let long = format!("video/{}", "x".repeat(300));
    for (given, expected) in [
        (
            "video/mp2t;\tcodecs=\"avc1\"",
            "video/mp2t; codecs=\"avc1\"",
        ),
        ("video/caf\u{e9}", "video/mp2t"),
        (&long, "video/mp2t"),
        ("", "video/mp2t"),
    ] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {given}\r\nContent-Length: 5\r\nConnection: close\r\n\
             \r\nhello"
        );
        let (address, task) = raw_origin(answer.leak().as_bytes()).await;
        let config = stream::Config {
            origin: Some(format!("http://{address}/").into()),
            ..stream::Config::default()
        };
        let server = Server::start(config).await;
        assert_eq!(
            server
                .resolve("/live/seg.ts", 0)
                .await
                .unwrap()
                .content_type,
            expected,
            "{given}"
        );
        task.abort();
    }
}

/// The origin reports no change, but sends other bytes.
#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_under_the_same_tag_are_not_put_together() {
    let origin = Origin::start().await;
    let put = |name: &str| {
        let file = File {
            bytes: noise(name, 3 * PART),
            etag: Some("\"same\"".into()),
            ..File::default()
        };
        origin.put_file("/base/big.ts", file);
    };
    put("one");
    origin.put("/base/other.ts", noise("other", PART));
    origin.put("/base/another.ts", noise("another", PART));
    // Each part also needs room for its tree.
    let store = ByteSize::b(2 * PART as u64 + 1024);
    let server = Server::start_with(
        http(&origin),
        Options {
            store,
            ..Options::default()
        },
    )
    .await;
    let first = server.resolve("/live/big.ts", 0).await.unwrap();
    let second = server.resolve("/live/big.ts", PART as u64).await.unwrap();
    assert_eq!(second.version, first.version);
    assert_eq!(
        origin.asked("/base/big.ts")[1].headers["if-range"],
        "\"same\""
    );
    let (version, id) = (first.version, first.id);
    drop((first, second));
    // Both parts are evicted, and the bytes differ when the first is fetched again.
    for path in ["/live/other.ts", "/live/another.ts"] {
        drop(server.resolve(path, 0).await.unwrap());
    }
    until("the part is evicted", || {
        server.library.find(&id, None).is_none()
    })
    .await;
    put("two");
    let again = server.resolve("/live/big.ts", 0).await.unwrap();
    assert_eq!(again.id, SegmentId::of(&noise("two", 3 * PART)[..PART]));
    assert_ne!(
        again.version, version,
        "nobody takes it for a part of what came before"
    );
    assert_eq!(
        server.metric("ncserverd_stream_changed_objects_total", None),
        1
    );
}

/// An origin's Retry-After is passed on to the viewer, and respected.
#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_busy_says_when_to_come_again() {
    let answer = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 0\r\n\
                   Connection: close\r\n\r\n";
    let (address, task) = raw_origin(answer).await;
    let config = stream::Config {
        origin: Some(format!("http://{address}/").into()),
        ..stream::Config::default()
    };
    let server = Server::start(config).await;
    let refusal = server.resolve("/live/seg.ts", 0).await.unwrap_err();
    assert_eq!(
        (refusal.code, refusal.retry_after),
        (RefusalCode::Overload, Some(Duration::from_secs(7))),
        "{refusal:?}"
    );
    assert_eq!(
        server.metric("ncserverd_ingest_responses_total", Some("429")),
        1,
        "it is not asked again before"
    );
    task.abort();
}
