//! The gateway as a player sees it: playlists from ffmpeg, and HTTP, against a server with its own
//! origin.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ncserverd::lab::origin::Origin;
use ncserverd::peer::gateway::{self, Gateway};
use ncserverd::peer::playlist::{Media, is_playlist, rewrite, uris};
use ncserverd::peer::{self, Client, TokenSource};
use ncserverd::server::Server;
use ncserverd::stream;
use ncserverd::telemetry::Readiness;
use ncserverd::tls::{ServerIdentity, Trust};
use nctest::script;
use prometheus::Registry;
use reqwest::{Method, Response, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Written by ffmpeg 5.1 with `-hls_base_url`, `-hls_key_info_file`, `-hls_flags single_file` and
/// `-var_stream_map`.
const ABSOLUTE: &str = include_str!("playlists/absolute.m3u8");
const ENCRYPTED: &str = include_str!("playlists/encrypted.m3u8");
const RANGES: &str = include_str!("playlists/ranges.m3u8");
const MASTER: &str = include_str!("playlists/master.m3u8");

fn turned(text: &str) -> String {
    rewrite(text, |uri| {
        let path = uri.strip_prefix("http://origin.example").unwrap_or(uri);
        path.strip_prefix("/vod/bunny/")
            .map(|file| format!("/live/{file}"))
    })
}

#[test]
fn only_absolute_uris_of_ffmpegs_playlists_change() {
    assert_eq!(
        turned(ABSOLUTE),
        ABSOLUTE.replace("http://origin.example/vod/bunny/", "/live/")
    );
    assert_eq!(
        turned(ENCRYPTED),
        ENCRYPTED.replace("http://origin.example/vod/bunny/", "/live/")
    );
    assert_eq!(turned(RANGES), RANGES.replace("/vod/bunny/", "/live/"));
    assert_eq!(turned(MASTER), MASTER);
    assert_eq!(uris(MASTER).collect::<Vec<_>>(), ["v0.m3u8", "v1.m3u8"]);
    assert_eq!(
        uris(ENCRYPTED).next(),
        Some("http://origin.example/vod/bunny/k.key")
    );
}

#[test]
fn ffmpegs_media_playlists_are_understood() {
    for (text, segments, maps) in [(ABSOLUTE, 3, 0), (ENCRYPTED, 3, 0), (RANGES, 3, 1)] {
        assert!(is_playlist(text.as_bytes()));
        let media = Media::parse(text.as_bytes()).expect("a media playlist");
        assert_eq!(
            (media.segments.len(), media.maps.len(), media.ended),
            (segments, maps, true),
            "{text}"
        );
    }
    let ranges = Media::parse(RANGES.as_bytes()).unwrap();
    assert_eq!(ranges.segments.last().unwrap().range, Some(84_835..128_954));
    assert_eq!(Media::parse(MASTER.as_bytes()), None);
}

/// A server with one stream, `live`, from an origin's folder `/vod/`, and a gateway in front of it.
struct Path {
    origin: Origin,
    client: Client,
    gateway: Gateway,
    server: Server,
    http: reqwest::Client,
}

impl Path {
    async fn open() -> Self {
        Self::with(gateway::Config::default()).await
    }

    async fn with(config: gateway::Config) -> Self {
        Self::as_user(config, None).await
    }

    async fn as_user(config: gateway::Config, token: Option<TokenSource>) -> Self {
        let origin = Origin::in_memory().await.unwrap();
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut settings = ncserverd::config::Config::default();
        settings.endpoint.listen = vec![loopback];
        let stream = stream::Config {
            origin: Some(format!("{}vod/", origin.url()).into()),
            ..stream::Config::default()
        };
        settings.stream.insert("live".into(), stream);
        let gone = stream::Config {
            origin: Some("http://127.0.0.1:9/".into()),
            ..stream::Config::default()
        };
        settings.stream.insert("gone".into(), gone);
        let identity = ServerIdentity::ephemeral().unwrap();
        let trust = Trust::Fingerprint(identity.fingerprint());
        let server = Server::start(settings, identity, &Registry::new(), Readiness::new())
            .await
            .unwrap();
        let at = server.addresses()[0];
        let at = peer::Server {
            host: at.ip().to_string(),
            port: at.port(),
            fingerprint: None,
        };
        let client = Client::connect(peer::Config {
            token,
            ..peer::Config::new(at, trust)
        })
        .await
        .unwrap();
        let gateway = Gateway::start(
            gateway::Config {
                listen: loopback,
                ..config
            },
            client.clone(),
        )
        .await
        .unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            origin,
            client,
            gateway,
            server,
            http: reqwest::Client::new(),
        }
    }

    fn put(&self, name: &str, bytes: impl Into<Bytes>) {
        self.origin.put(&format!("/vod/{name}"), bytes.into());
    }

    fn ask(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, self.gateway.url(path))
    }

    async fn get(&self, path: &str) -> Response {
        self.ask(Method::GET, path).send().await.unwrap()
    }

    async fn range(&self, path: &str, range: &str) -> Response {
        self.ask(Method::GET, path)
            .header("range", range)
            .send()
            .await
            .unwrap()
    }

    async fn close(self) {
        self.gateway.stop(Duration::from_secs(1)).await;
        self.server.drain(Duration::from_secs(1)).await;
    }
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response
        .headers()
        .get(name)
        .map_or("", |value| value.to_str().unwrap())
}

/// Bytes of which no two parts are equal.
fn bytes(length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_come_whole_in_parts_and_not_at_all() {
    let path = Path::open().await;
    let segment = bytes(300_001);
    path.put("a/1.ts", segment.clone());

    let whole = path.get("/live/a/1.ts").await;
    assert_eq!(
        (whole.status(), header(&whole, "content-type")),
        (StatusCode::OK, "video/mp2t")
    );
    assert_eq!(
        (
            header(&whole, "content-length"),
            header(&whole, "accept-ranges")
        ),
        ("300001", "bytes")
    );
    let tag = header(&whole, "etag").to_owned();
    assert_eq!(whole.bytes().await.unwrap(), segment);

    for (range, start, end) in [
        ("bytes=0-0", 0, 1),
        ("bytes=1000-", 1000, 300_001),
        ("bytes=-7", 299_994, 300_001),
    ] {
        let part = path.range("/live/a/1.ts", range).await;
        assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT, "{range}");
        assert_eq!(
            header(&part, "content-range"),
            format!("bytes {start}-{}/300001", end - 1)
        );
        assert_eq!(header(&part, "content-length"), (end - start).to_string());
        assert_eq!(
            part.bytes().await.unwrap(),
            segment.slice(start..end),
            "{range}"
        );
    }
    let beyond = path.range("/live/a/1.ts", "bytes=300001-").await;
    assert_eq!(beyond.status(), StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(header(&beyond, "content-range"), "bytes */300001");

    let ask = |name, value: &str| {
        path.ask(Method::GET, "/live/a/1.ts")
            .header("range", "bytes=5-9")
            .header(name, value.to_owned())
    };
    assert_eq!(
        ask("if-range", &tag).send().await.unwrap().status(),
        StatusCode::PARTIAL_CONTENT
    );
    assert_eq!(
        ask("if-range", "\"another\"")
            .send()
            .await
            .unwrap()
            .status(),
        StatusCode::OK
    );
    assert_eq!(
        ask("if-none-match", &tag).send().await.unwrap().status(),
        StatusCode::NOT_MODIFIED
    );

    let head = path.ask(Method::HEAD, "/live/a/1.ts").send().await.unwrap();
    assert_eq!(
        (head.status(), header(&head, "content-length")),
        (StatusCode::OK, "300001")
    );
    assert!(head.bytes().await.unwrap().is_empty());

    for missing in ["/live/a/2.ts", "/nowhere/a/1.ts", "/favicon.ico"] {
        let response = path.get(missing).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{missing}");
        assert!(response.text().await.unwrap().len() < 200);
    }
    assert_eq!(path.origin.count("/vod/a/1.ts").sent, 1);
    path.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_credential_any_page_may_read_and_nobody_may_write() {
    let path = Path::open().await;
    path.put("1.ts", bytes(10));
    let preflight = path
        .ask(Method::OPTIONS, "/live/1.ts")
        .header("origin", "https://player.example")
        .send()
        .await
        .unwrap();
    assert_eq!(preflight.status(), StatusCode::NO_CONTENT);
    assert_eq!(
        header(&preflight, "access-control-allow-methods"),
        "GET, HEAD, OPTIONS"
    );
    assert_eq!(header(&preflight, "access-control-allow-origin"), "*");
    for asked in ["/live/1.ts", "/live/none.ts", "/"] {
        let response = path.get(asked).await;
        assert_eq!(
            header(&response, "access-control-allow-origin"),
            "*",
            "{asked}"
        );
        assert!(
            header(&response, "access-control-expose-headers").contains("Content-Range"),
            "{asked}"
        );
    }
    let post = path.ask(Method::POST, "/live/1.ts").send().await.unwrap();
    assert_eq!(
        (post.status(), header(&post, "allow")),
        (StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD, OPTIONS")
    );
    path.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_token_other_pages_get_nothing_unless_their_origin_is_allowed() {
    let origins = vec!["https://player.example".to_owned()];
    for (origins, is_allowed) in [(Vec::new(), false), (origins, true)] {
        let config = gateway::Config {
            origins,
            ..gateway::Config::default()
        };
        let path = Path::as_user(config, Some(TokenSource::fixed("secret").unwrap())).await;
        path.put("1.ts", bytes(10));
        let own = path.get("/live/1.ts").await;
        assert_eq!(
            (own.status(), header(&own, "access-control-allow-origin")),
            (StatusCode::OK, "")
        );
        for (method, status) in [
            (Method::GET, StatusCode::OK),
            (Method::OPTIONS, StatusCode::NO_CONTENT),
        ] {
            let page = |origin: &str| {
                path.ask(method.clone(), "/live/1.ts")
                    .header("origin", origin.to_owned())
                    .send()
            };
            let foreign = page("https://evil.example").await.unwrap();
            assert_eq!(
                (
                    foreign.status(),
                    header(&foreign, "access-control-allow-origin")
                ),
                (StatusCode::FORBIDDEN, "")
            );
            let player = page("https://player.example").await.unwrap();
            let seen = (
                player.status(),
                header(&player, "access-control-allow-origin"),
            );
            let expected = if is_allowed {
                (status, "https://player.example")
            } else {
                (StatusCode::FORBIDDEN, "")
            };
            assert_eq!(seen, expected, "{method}");
            let itself = page(path.gateway.url("").trim_end_matches('/'))
                .await
                .unwrap();
            assert_eq!(itself.status(), status, "{method}");
        }
        path.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_names_of_the_gateway_are_answered() {
    let path = Path::with(gateway::Config {
        hosts: vec!["tv.example".to_owned()],
        ..gateway::Config::default()
    })
    .await;
    path.put("1.ts", bytes(10));
    let named = |host: &str| {
        path.ask(Method::GET, "/live/1.ts")
            .header("host", host.to_owned())
            .send()
    };
    for host in ["localhost", "127.0.0.1:9", "TV.example:8080"] {
        assert_eq!(
            named(host).await.unwrap().status(),
            StatusCode::OK,
            "{host}"
        );
    }
    for host in ["evil.example", "127.0.0.1.evil.example:8080", "192.0.2.1"] {
        let refused = named(host).await.unwrap();
        assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST, "{host}");
        assert_eq!(
            header(&refused, "access-control-allow-origin"),
            "",
            "{host}"
        );
    }
    path.close().await;
}

/// An origin that answers everything with this status, and the number of its answers.
async fn failing(status: u16) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (url, asked) = (
        format!("http://{}/", listener.local_addr().unwrap()),
        Arc::new(AtomicUsize::new(0)),
    );
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n")
                && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0)
            {}
            count.fetch_add(1, Ordering::Relaxed);
            let answer =
                format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (url, asked)
}

/// The server retries at the origin; a client that acts for a player does not multiply these
/// attempts.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_origin_is_asked_a_few_times_for_one_request() {
    let path = Path::open().await;
    for (status, told) in [
        (500, StatusCode::BAD_GATEWAY),
        (503, StatusCode::BAD_GATEWAY),
        (429, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let (url, asked) = failing(status).await;
        let mut settings = ncserverd::config::Config::default();
        let stream = stream::Config {
            origin: Some(url.into()),
            ..stream::Config::default()
        };
        settings.stream.insert(format!("s{status}"), stream);
        path.server.apply(&settings).await.unwrap();
        assert_eq!(path.get(&format!("/s{status}/1.ts")).await.status(), told);
        let asked = asked.load(Ordering::Relaxed);
        assert!((1..=4).contains(&asked), "{status}: asked {asked} times");
    }
    path.close().await;
}

/// Half-sent requests on all places and more: each is given up for a newer connection.
#[tokio::test(flavor = "multi_thread")]
async fn half_sent_requests_keep_no_player_out() {
    let head_timeout = Duration::from_secs(3600);
    let path = Path::with(gateway::Config {
        connections_max: 8,
        head_timeout,
        ..gateway::Config::default()
    })
    .await;
    path.put("1.ts", bytes(10));
    let mut halves = Vec::new();
    for _ in 0..20 {
        let mut half = TcpStream::connect(path.gateway.address()).await.unwrap();
        half.write_all(b"GET /live/1.ts HTTP/1.1\r\nHost: local")
            .await
            .unwrap();
        halves.push(half);
    }
    let answered = tokio::time::timeout(Duration::from_secs(20), path.get("/live/1.ts")).await;
    assert_eq!(
        answered.expect("a player is answered").status(),
        StatusCode::OK
    );
    // The connection ends or is reset.
    let ended = tokio::time::timeout(
        Duration::from_secs(20),
        halves[0].read_to_end(&mut Vec::new()),
    )
    .await;
    assert!(ended.is_ok(), "the oldest is not given up");
    path.close().await;
}

/// A connection whose answer is being read is not idle: it is not given up for others.
#[tokio::test(flavor = "multi_thread")]
async fn half_sent_requests_cut_no_answer_off() {
    let path = Path::with(gateway::Config {
        connections_max: 2,
        ..gateway::Config::default()
    })
    .await;
    path.put("big.bin", bytes(30_000_000));
    let mut big = path.get("/live/big.bin").await;
    let mut length = big.chunk().await.unwrap().unwrap().len();
    for _ in 0..6 {
        let mut half = TcpStream::connect(path.gateway.address()).await.unwrap();
        half.write_all(b"GET /").await.unwrap();
    }
    while let Some(chunk) = big.chunk().await.unwrap() {
        length += chunk.len();
    }
    assert_eq!(length, 30_000_000);
    path.close().await;
}

/// Complete requests whose answers nobody reads, on all places: the oldest are given up for later
/// players.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_keep_no_player_out() {
    let stall_timeout = Duration::from_millis(500);
    for (connections_max, requests_max) in [(64, 4), (4, 64)] {
        let limits = gateway::Config {
            connections_max,
            requests_max,
            stall_timeout,
            ..gateway::Config::default()
        };
        let path = Path::with(limits).await;
        path.put("big.bin", bytes(40_000_000));
        path.put("1.ts", bytes(10));
        let mut unread = Vec::new();
        for _ in 0..4 {
            let mut player = TcpStream::connect(path.gateway.address()).await.unwrap();
            player
                .write_all(b"GET /live/big.bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .await
                .unwrap();
            // Its answer has begun.
            player.readable().await.unwrap();
            unread.push(player);
        }
        let played = async {
            while path.get("/live/1.ts").await.status() == StatusCode::SERVICE_UNAVAILABLE {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            path.get("/live/1.ts").await.status()
        };
        let status = tokio::time::timeout(Duration::from_secs(60), played).await;
        assert_eq!(
            status.expect("a player gets a place"),
            StatusCode::OK,
            "{connections_max} connections, {requests_max} requests"
        );
        // One of the others was cut for it, and gets only what was on its way.
        let ends = unread.into_iter().map(|mut player| {
            Box::pin(async move {
                let mut read = Vec::new();
                let _ = player.read_to_end(&mut read).await;
                read.len()
            })
        });
        let first = tokio::time::timeout(
            Duration::from_secs(60),
            futures_util::future::select_all(ends),
        )
        .await;
        let (length, ..) = first.expect("an answer ends");
        assert!(length < 40_000_000, "no answer was cut");
        path.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_come_ends_the_connection() {
    let path = Path::with(gateway::Config {
        head_timeout: Duration::from_millis(200),
        ..gateway::Config::default()
    })
    .await;
    let mut half = TcpStream::connect(path.gateway.address()).await.unwrap();
    half.write_all(b"GET /").await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), half.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the gateway waits without end");
    path.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn playlists_lead_to_the_gateway_and_segments_come_ahead() {
    let path = Path::open().await;
    let playlist = |base: &str| {
        let mut text = String::from(
            "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:2\n#EXT-X-UNKNOWN:X=\"y\"\n",
        );
        for number in 0..6 {
            text += &format!("#EXTINF:2,\n{base}s{number}.ts?t={number}\n");
        }
        text + "#EXT-X-ENDLIST\n"
    };
    let host = path.origin.url();
    path.put("v.m3u8", playlist(&format!("{host}vod/bunny/")));
    path.put("elsewhere.m3u8", playlist("https://cdn.invalid/x/"));
    for number in 0..6 {
        path.put(&format!("bunny/s{number}.ts"), bytes(20_000 + number));
    }

    let response = path.get("/live/v.m3u8?session=1").await;
    assert_eq!(
        header(&response, "content-type"),
        "application/vnd.apple.mpegurl"
    );
    assert_eq!(header(&response, "cache-control"), "no-cache");
    assert_eq!(response.text().await.unwrap(), playlist("/live/bunny/"));
    assert_eq!(
        path.get("/live/elsewhere.m3u8").await.text().await.unwrap(),
        playlist("https://cdn.invalid/x/")
    );

    // The gateway requests the first one by itself, then the one after the player's, then more of
    // them.
    until(|| path.origin.count("/vod/bunny/s0.ts").sent == 1).await;
    assert_eq!(
        path.get("/live/bunny/s2.ts?t=2")
            .await
            .bytes()
            .await
            .unwrap(),
        bytes(20_002)
    );
    until(|| (3..6).all(|number| path.origin.count(&format!("/vod/bunny/s{number}.ts")).sent == 1))
        .await;
    assert_eq!(
        path.origin.count("/vod/bunny/s1.ts").sent,
        0,
        "no player asked for what is before it"
    );

    let head = path.ask(Method::HEAD, "/live/v.m3u8").send().await.unwrap();
    assert_eq!(
        header(&head, "content-length"),
        playlist("/live/bunny/").len().to_string()
    );
    let part = path.range("/live/v.m3u8", "bytes=0-6").await;
    assert_eq!(
        (part.status(), part.text().await.unwrap().as_str()),
        (StatusCode::PARTIAL_CONTENT, "#EXTM3U")
    );
    path.close().await;
}

/// One is requested, and also fetched if fetching ahead is enabled.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_numbered_segment_of_a_recording_comes_ahead() {
    for (ahead_segments, fetched) in [(1, 2), (0, 1)] {
        let path = Path::with(gateway::Config {
            ahead_segments,
            ..gateway::Config::default()
        })
        .await;
        path.put(
            "film/manifest.mpd",
            "<?xml version=\"1.0\"?><MPD type=\"static\"><Period/></MPD>",
        );
        for number in 7..10_usize {
            path.put(&format!("film/v-{number:05}.m4s"), bytes(100_000 + number));
        }
        path.get("/live/film/manifest.mpd")
            .await
            .text()
            .await
            .unwrap();
        let mut stats = path.client.stats();
        let fetched = stats.borrow().segments_verified + fetched;
        assert_eq!(
            path.get("/live/film/v-00007.m4s")
                .await
                .bytes()
                .await
                .unwrap(),
            bytes(100_007)
        );
        until(|| path.origin.count("/vod/film/v-00008.m4s").sent == 1).await;
        let _ = tokio::time::timeout(
            Duration::from_secs(30),
            stats.wait_for(|stats| stats.segments_verified == fetched),
        )
        .await;
        // Longer than a gateway waits until it considers the path free.
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(
            stats.borrow().segments_verified,
            fetched,
            "{ahead_segments} ahead"
        );
        assert_eq!(
            path.origin.count("/vod/film/v-00009.m4s").sent,
            0,
            "one ahead, and no more"
        );
        path.close().await;
    }
}

/// Only the player knows which rendition it will play, so video is resolved but not fetched. Audio
/// has only one rendition, and is fetched.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_recording_begins_with_is_asked_for_with_its_manifest() {
    let path = Path::open().await;
    let representation = |id: &str| {
        let attributes = "initialization=\"i-$RepresentationID$.m4s\" \
                          media=\"$RepresentationID$-$Number%05d$.m4s\" startNumber=\"7\"";
        format!("<Representation id=\"{id}\"><SegmentTemplate {attributes}/></Representation>")
    };
    let set = |kind: &str, of: &[&str]| {
        let all: String = of.iter().map(|id| representation(id)).collect();
        format!("<AdaptationSet contentType=\"{kind}\">{all}</AdaptationSet>")
    };
    let sets = set("video", &["low", "high", "gone"]) + &set("audio", &["sound"]);
    let manifest =
        format!("<?xml version=\"1.0\"?><MPD type=\"static\"><Period>{sets}</Period></MPD>");
    path.put("film/manifest.mpd", manifest.clone());
    for (place, id) in ["low", "high", "sound"].into_iter().enumerate() {
        path.put(&format!("film/i-{id}.m4s"), bytes(70_000 + place));
        path.put(&format!("film/{id}-00007.m4s"), bytes(100_000 + place));
        path.put(&format!("film/{id}-00008.m4s"), bytes(110_000 + place));
    }
    let response = path.get("/live/film/manifest.mpd").await;
    let tag = header(&response, "etag").to_owned();
    assert_eq!(response.text().await.unwrap(), manifest);
    let asked = |name: &str| path.origin.count(&format!("/vod/film/{name}.m4s")).sent;
    until(|| {
        [
            "i-low",
            "i-high",
            "i-sound",
            "low-00007",
            "high-00007",
            "sound-00007",
        ]
        .iter()
        .all(|name| asked(name) == 1)
    })
    .await;
    // Three initialization segments and the audio.
    let mut stats = path.client.stats();
    tokio::time::timeout(
        Duration::from_secs(30),
        stats.wait_for(|stats| stats.segments_verified >= 4),
    )
    .await
    .unwrap()
    .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(stats.borrow().segments_verified, 4);
    let known = path
        .ask(Method::GET, "/live/film/manifest.mpd")
        .header("if-none-match", tag)
        .send()
        .await
        .unwrap();
    assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(
        path.get("/live/film/high-00007.m4s")
            .await
            .bytes()
            .await
            .unwrap(),
        bytes(100_001)
    );
    // A missing segment does not tell what comes next.
    until(|| asked("high-00008") == 1).await;
    assert_eq!((asked("high-00007"), asked("low-00008")), (1, 0));
    path.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_than_there_are_places_are_told_to_come_again() {
    let path = Path::with(gateway::Config {
        requests_max: 0,
        ..gateway::Config::default()
    })
    .await;
    let response = path.get("/live/1.ts").await;
    assert_eq!(
        (response.status(), header(&response, "retry-after")),
        (StatusCode::SERVICE_UNAVAILABLE, "1")
    );
    assert_eq!(path.get("/").await.status(), StatusCode::OK);
    path.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_player_that_leaves_gives_its_place_back() {
    let path = Path::with(gateway::Config {
        requests_max: 1,
        ..gateway::Config::default()
    })
    .await;
    path.put("big.bin", bytes(40_000_000));
    let big = path.get("/live/big.bin").await;
    assert_eq!(big.status(), StatusCode::OK);
    assert_eq!(
        path.get("/live/big.bin").await.status(),
        StatusCode::SERVICE_UNAVAILABLE
    );
    drop(big);
    let mut status = StatusCode::SERVICE_UNAVAILABLE;
    for _ in 0..600 {
        status = path.range("/live/big.bin", "bytes=0-9").await.status();
        if status != StatusCode::SERVICE_UNAVAILABLE {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(status, StatusCode::PARTIAL_CONTENT);
    path.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_gone_is_a_bad_gateway() {
    let path = Path::open().await;
    let response = path.get("/gone/1.ts").await;
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(
        header(&response, "content-type"),
        "text/plain; charset=utf-8"
    );
    path.close().await;
}

/// A segment of 8 generations of 16 KiB from the scripted server, and a gateway in front of it.
async fn flowing() -> (script::Script, Bytes, Gateway, reqwest::Client) {
    let server = script::Script::start("127.0.0.1:0").await;
    let all = bytes(8 * 16_384);
    server.publish("/live/1.mp4", &all, all.len());
    server.give_trees();
    let client = Client::connect(server.config()).await.unwrap();
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let gateway = Gateway::start(
        gateway::Config {
            listen,
            ..gateway::Config::default()
        },
        client,
    )
    .await
    .unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    (server, all, gateway, reqwest::Client::new())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_player_gets_the_head_and_the_beginning_before_the_rest_has_come() {
    let (server, all, gateway, http) = flowing().await;
    server.hold_from(Some(0));
    let mut response = http.get(gateway.url("/live/1.mp4")).send().await.unwrap();
    assert_eq!(
        (response.status(), header(&response, "content-length")),
        (StatusCode::OK, "131072")
    );
    server.hold_from(Some(4));
    let mut read = Vec::new();
    while read.len() < 4 * 16_384 {
        let some = tokio::time::timeout(Duration::from_secs(30), response.chunk())
            .await
            .expect("the beginning comes");
        read.extend_from_slice(&some.unwrap().unwrap());
    }
    assert!(read == all[..4 * 16_384]);
    let part = http
        .get(gateway.url("/live/1.mp4"))
        .header("range", "bytes=10-70000")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (part.status(), header(&part, "content-range")),
        (StatusCode::PARTIAL_CONTENT, "bytes 10-70000/131072")
    );
    server.hold_from(None);
    assert!(part.bytes().await.unwrap() == all.slice(10..70_001));
    assert!(response.bytes().await.unwrap() == all.slice(4 * 16_384..));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_a_wrong_end_is_cut_and_never_complete() {
    let (server, all, gateway, http) = flowing().await;
    server.spoil_generation(6, u32::MAX);
    let mut response = http.get(gateway.url("/live/1.mp4")).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let mut read = Vec::new();
    let end = loop {
        match response.chunk().await {
            Ok(Some(some)) => read.extend_from_slice(&some),
            end => break end,
        }
    };
    // What the connection still had to send may be lost with it.
    assert!(
        end.is_err() && read.len() <= 6 * 16_384 && read == all[..read.len()],
        "{} bytes",
        read.len()
    );
    // A wrong end that is right when requested again does no harm.
    server.spoil_generation(7, 1);
    assert!(
        http.get(gateway.url("/live/1.mp4"))
            .send()
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap()
            == all
    );
}

/// Segments of 64 KiB over a path that delivers 1 KiB in 10 ms.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_fetched_ahead_comes_at_the_pace_of_the_path() {
    let server = script::Script::start("127.0.0.1:0").await;
    let segments: Vec<Bytes> = (0..2).map(|number| bytes(65_536 + number)).collect();
    for (number, segment) in segments.iter().enumerate() {
        server.publish(&format!("/live/{number}.mp4"), segment, segment.len());
    }
    server.publish_whole(
        "/live/v.m3u8",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\n0.mp4\n#EXTINF:4,\n1.mp4\n#EXT-X-ENDLIST\n",
    );
    server.give_trees();
    server.rest(Duration::from_millis(10));
    let client = Client::connect(server.config()).await.unwrap();
    let mut stats = client.stats();
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let gateway = Gateway::start(
        gateway::Config {
            listen,
            ..gateway::Config::default()
        },
        client,
    )
    .await
    .unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::new();
    http.get(gateway.url("/live/v.m3u8")).send().await.unwrap();
    // One is requested, and the other is there before the player asks.
    let response = http.get(gateway.url("/live/0.mp4")).send().await.unwrap();
    assert!(response.bytes().await.unwrap() == segments[0]);
    stats
        .wait_for(|stats| stats.segments_verified >= 2)
        .await
        .unwrap();
    let asked = std::time::Instant::now();
    let response = http.get(gateway.url("/live/1.mp4")).send().await.unwrap();
    assert!(response.bytes().await.unwrap() == segments[1]);
    // It took over 640 ms to arrive; without pacing it would be sent in one.
    assert!(
        asked.elapsed() > Duration::from_millis(250),
        "{:?}",
        asked.elapsed()
    );
}

async fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..600 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it did not happen within 30 s");
}
