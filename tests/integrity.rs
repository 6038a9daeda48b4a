//! What a server proves about its streams to a plain connection: signatures of metadata, hashes of
//! blocks, checksums of rows; and what a relay passes on of these.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ncserverd::block::Block;
use ncserverd::gf::Kernels;
use ncserverd::integrity::checks::RowChecks;
use ncserverd::integrity::hashes::BlockHashes;
use ncserverd::integrity::signing::{SigningKey, StreamKey};
use ncserverd::lab::origin::Origin;
use ncserverd::object::row_key;
use ncserverd::object::{Codec, RefusalCode, SegmentId, Shape};
use ncserverd::relay::{self, Relay};
use ncserverd::server::Server;
use ncserverd::stream::CodecName;
use ncserverd::telemetry::Readiness;
use ncserverd::tls::{self, ServerIdentity, Trust};
use ncserverd::wire::block::{Records, StreamHead};
use ncserverd::wire::frame::Reader;
use ncserverd::wire::message::{
    Accept, Checks, Delivery, Get, GetChecks, Hello, Meant, Message, Meta, Request, RequestError,
    Subscribe,
};
use ncserverd::{config, endpoint, peer, stream};
use nctest::skip::skip;
use prometheus::Registry;
use quinn::{Connection, Endpoint, RecvStream, SendStream};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const PLAYLIST: &str = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n\
                        #EXT-X-MEDIA-SEQUENCE:1\n#EXTINF:1.0,\na.ts\n";

/// Bytes that differ with the seed.
fn bytes(seed: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new_keyed(&[seed; 32])
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// A server of one origin with a signed stream `live` and an unsigned one, `plain`.
struct Place {
    server: Server,
    config: config::Config,
    identity: ServerIdentity,
    registry: Registry,
}

impl Place {
    async fn start(origin: &Origin, key: &Path) -> Self {
        let mut config = config::Config::default();
        config.endpoint.listen = vec![LOOPBACK];
        config.device.cpu_threads = "2".parse().unwrap();
        for (name, signing_key) in [("live", Some(key.to_owned())), ("plain", None)] {
            let origin = Some(format!("{}{name}/", origin.url()).into());
            let settings = stream::Config {
                origin,
                signing_key,
                n_max: 32,
                block_bytes: 1088,
                ..stream::Config::default()
            };
            config.stream.insert(name.into(), settings);
        }
        let identity = ServerIdentity::ephemeral().unwrap();
        let registry = Registry::new();
        let server = Server::start(
            config.clone(),
            identity.clone(),
            &registry,
            Readiness::new(),
        )
        .await
        .unwrap();
        Self {
            server,
            config,
            identity,
            registry,
        }
    }

    async fn visitor(&self) -> Visitor {
        Visitor::connect(self.server.addresses()[0], &self.identity).await
    }

    fn value(&self, name: &str, label: &str) -> f64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .expect("the series is there");
        let is_meant = |metric: &&prometheus::proto::Metric| {
            metric.get_label().iter().any(|pair| pair.value() == label)
        };
        family
            .get_metric()
            .iter()
            .filter(is_meant)
            .map(|metric| metric.get_counter().get_value())
            .sum()
    }
}

async fn origin() -> Origin {
    let origin = Origin::in_memory().await.unwrap();
    for name in ["live", "plain"] {
        origin.put(&format!("/{name}/a.ts"), bytes(1, 100_001).into());
        origin.put(&format!("/{name}/short.vtt"), bytes(2, 100).into());
        origin.put(
            &format!("/{name}/index.m3u8"),
            Bytes::from_static(PLAYLIST.as_bytes()),
        );
    }
    origin
}

/// A connection that has exchanged HELLOs.
struct Visitor {
    connection: Connection,
    _endpoint: Endpoint,
    send: SendStream,
    receive: RecvStream,
    reader: Reader,
    next: u64,
}

impl Visitor {
    async fn connect(server: SocketAddr, identity: &ServerIdentity) -> Self {
        let trust = Trust::Fingerprint(identity.fingerprint());
        let endpoint = Endpoint::client(LOOPBACK).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(tls::client_config(&trust, None).unwrap()));
        let connection = endpoint
            .connect_with(config, server, "localhost")
            .unwrap()
            .await
            .unwrap();
        let (mut send, receive) = connection.open_bi().await.unwrap();
        send.write_all(&Message::Hello(Hello::defaults()).to_frame())
            .await
            .unwrap();
        let mut visitor = Self {
            connection,
            _endpoint: endpoint,
            send,
            receive,
            reader: Reader::new(),
            next: 0,
        };
        assert!(matches!(visitor.hear().await, Message::Hello(_)));
        visitor
    }

    async fn send(&mut self, message: Message) {
        self.send.write_all(&message.to_frame()).await.unwrap();
    }

    async fn hear(&mut self) -> Message {
        loop {
            if let Some(message) = self.reader.next().unwrap() {
                return message;
            }
            let chunk = tokio::time::timeout(PATIENCE, self.receive.read_chunk(65_536, true))
                .await
                .expect("an answer in time");
            self.reader.push(&chunk.unwrap().unwrap().bytes);
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    async fn get(&mut self, path: &str) -> Meta {
        let request = self.number();
        self.send(Message::Get(Get {
            request,
            path: path.to_owned(),
            offset: 0,
            length: None,
            held_only: false,
        }))
        .await;
        match self.hear().await {
            Message::Meta(meta) if meta.request == request => meta,
            other => panic!("{other:?} in place of META"),
        }
    }

    /// The head and the content of the next stream.
    async fn stream(&mut self) -> (StreamHead, Bytes) {
        let mut stream = tokio::time::timeout(PATIENCE, self.connection.accept_uni())
            .await
            .expect("a stream in time")
            .unwrap();
        let all = tokio::time::timeout(PATIENCE, stream.read_to_end(1 << 20))
            .await
            .expect("its end in time")
            .unwrap();
        let (head, length) = StreamHead::parse(&all).unwrap().unwrap();
        (head, Bytes::from(all).slice(length..))
    }

    async fn hashes(&mut self, segment: SegmentId) -> Bytes {
        let request = self.number();
        self.send(Message::GetHashes {
            request,
            segment,
            meant: Meant::LastNamed,
        })
        .await;
        let (head, hashes) = self.stream().await;
        assert_eq!(head, StreamHead::Hashes { request });
        hashes
    }

    async fn no_hashes(&mut self, segment: SegmentId) -> RequestError {
        let request = self.number();
        self.send(Message::GetHashes {
            request,
            segment,
            meant: Meant::LastNamed,
        })
        .await;
        match self.hear().await {
            Message::Error(error) if error.request == request => error,
            other => panic!("{other:?} in place of ERROR"),
        }
    }

    async fn checks(
        &mut self,
        segment: SegmentId,
        generation: u32,
        nonce: u8,
    ) -> (GetChecks, Result<Checks, RequestError>) {
        let asked = GetChecks {
            request: self.number(),
            segment,
            generation,
            nonce: [nonce; 32],
            meant: Meant::LastNamed,
        };
        self.send(Message::GetChecks(asked.clone())).await;
        let answer = match self.hear().await {
            Message::Checks(checks) if checks.request == asked.request => Ok(checks),
            Message::Error(error) if error.request == asked.request => Err(error),
            other => panic!("{other:?} in place of an answer"),
        };
        (asked, answer)
    }

    /// Coded blocks of a generation.
    async fn blocks(&mut self, meta: &Meta, generation: u32, count: u32) -> Vec<Block> {
        let alias = u16::try_from(self.number()).unwrap();
        let accept = Accept {
            coded: true,
            systematic: false,
            datagrams: false,
            recoded: true,
        };
        let request = Request {
            alias,
            segment: meta.id,
            generation,
            deadline_ms: 60_000,
            credit: count,
            accept,
            ranges: Vec::new(),
            meant: Meant::LastNamed,
        };
        self.send(Message::Request(request)).await;
        let mut stream = tokio::time::timeout(PATIENCE, self.connection.accept_uni())
            .await
            .expect("a stream in time")
            .unwrap();
        let mut head = [0; 3];
        stream.read_exact(&mut head).await.unwrap();
        let mut records = Records::new(shape(meta).generation(generation).unwrap());
        let mut blocks = Vec::new();
        while blocks.len() < count as usize {
            let chunk = tokio::time::timeout(PATIENCE, stream.read_chunk(65_536, true))
                .await
                .expect("blocks in time");
            records.push(&chunk.unwrap().unwrap().bytes);
            while let Some(block) = records.next().unwrap() {
                blocks.push(block);
            }
        }
        blocks
    }
}

fn shape(meta: &Meta) -> Shape {
    let Delivery::Coded(shape) = meta.delivery else {
        panic!("{meta:?}")
    };
    shape
}

fn issued(meta: &Meta) -> u64 {
    meta.signature.expect("it is signed").issued_ms
}

fn new_key() -> (TempDir, std::path::PathBuf, StreamKey) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("live.pem");
    let pem = SigningKey::generate(&mut rand::rng());
    std::fs::write(&path, &pem).unwrap();
    (
        directory,
        path,
        SigningKey::from_pem(pem.as_bytes()).unwrap().public(),
    )
}

#[test]
fn openssl_reads_the_key_that_a_server_makes_by_the_command_of_the_manual() {
    let (directory, _, key) = new_key();
    let manual =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operating.md")).unwrap();
    let command = manual
        .lines()
        .find(|line| line.starts_with("openssl pkey -in live.pem"))
        .expect("the command");
    if let Err(error) = std::process::Command::new("openssl")
        .arg("version")
        .output()
    {
        return skip(&format!("there is no openssl: {error}"));
    }
    let run = |command: &str| {
        let run = std::process::Command::new("sh")
            .args(["-c", command])
            .current_dir(directory.path())
            .output()
            .unwrap();
        (
            String::from_utf8_lossy(&run.stdout).into_owned(),
            String::from_utf8_lossy(&run.stderr).into_owned(),
        )
    };
    let (printed, said) = run(command);
    assert_eq!(printed, key.to_string(), "{said}");
    // The key of RFC 8032, section 7.1, test 1, with its public half, as older servers wrote it.
    let older = "-----BEGIN PRIVATE KEY-----\n\
                 MFMCAQEwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
                 oSMDIQDXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==\n-----END PRIVATE KEY-----\n";
    std::fs::write(directory.path().join("live.pem"), older).unwrap();
    let conversion = manual
        .lines()
        .find(|line| line.contains("-out live-new.pem"))
        .expect("the conversion");
    let (_, failed) = run(conversion);
    let (printed, said) = run(&command.replace("live.pem", "live-new.pem"));
    assert_eq!(
        printed,
        SigningKey::from_pem(older.as_bytes())
            .unwrap()
            .public()
            .to_string(),
        "{failed}{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_replicas_say_is_signed_by_the_key_of_the_stream() {
    let (_directory, path, key) = new_key();
    let origin = origin().await;
    let (one, other) = (
        Place::start(&origin, &path).await,
        Place::start(&origin, &path).await,
    );
    let (mut at_one, mut at_other) = (one.visitor().await, other.visitor().await);
    for path in [
        "/live/a.ts",
        "/live/short.vtt",
        "/live/index.m3u8",
        "/live/a.ts?x=1",
    ] {
        let first = at_one.get(path).await;
        let second = at_other.get(path).await;
        assert_eq!(
            (StreamKey::of(&first), StreamKey::of(&second)),
            (Some(key), Some(key)),
            "{path}"
        );
        assert_eq!(
            (first.id, &first.path, first.version),
            (second.id, &second.path, second.version),
            "{path}"
        );
        assert!(
            issued(&first) <= issued(&second),
            "{path}: asked for one after the other"
        );
        let forged = Meta {
            id: SegmentId::of(b"another"),
            ..first.clone()
        };
        assert_eq!(StreamKey::of(&forged), None);
        match first.delivery {
            Delivery::Stream => assert_eq!(at_one.stream().await.1, PLAYLIST),
            Delivery::Inline(_) => assert!(path.contains("short")),
            Delivery::Coded(_) => assert!(path.contains("a.ts")),
        }
        let plain = at_one.get(&path.replace("live", "plain")).await;
        assert_eq!(plain.signature, None);
        if matches!(plain.delivery, Delivery::Stream) {
            at_one.stream().await;
        }
    }
    // Another GET for a held segment needs no new signature.
    let before = one.value("ncserverd_stream_signatures_total", "metadata");
    assert_eq!(
        at_one.get("/live/a.ts").await.signature,
        at_one.get("/live/a.ts").await.signature
    );
    assert_eq!(
        one.value("ncserverd_stream_signatures_total", "metadata"),
        before
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_playlist_is_issued_later_and_news_is_signed() {
    let (_directory, path, key) = new_key();
    let origin = origin().await;
    let place = Place::start(&origin, &path).await;
    let mut visitor = place.visitor().await;
    let first = visitor.get("/live/index.m3u8").await;
    visitor.stream().await;
    visitor
        .send(Message::Subscribe(Subscribe {
            request: 1000,
            stream: "live".into(),
        }))
        .await;
    assert_eq!(visitor.hear().await, Message::SubscribeOk { request: 1000 });
    let newer = format!("{PLAYLIST}#EXTINF:1.0,\nb.ts\n");
    origin.put("/live/b.ts", bytes(3, 50_000).into());
    origin.put("/live/index.m3u8", newer.clone().into());
    // The first segment may have been announced before the subscription.
    let news = loop {
        match visitor.hear().await {
            Message::Meta(meta) if meta.path == "/live/b.ts" => break meta,
            Message::Meta(meta) => assert_eq!(meta.path, "/live/a.ts"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((news.request, StreamKey::of(&news)), (1000, Some(key)));
    let second = visitor.get("/live/index.m3u8").await;
    assert_eq!(visitor.stream().await.1, newer);
    assert_eq!(StreamKey::of(&second), Some(key));
    assert!(issued(&second) > issued(&first));
}

#[tokio::test(flavor = "multi_thread")]
async fn hashes_prove_each_source_block() {
    let (_directory, path, key) = new_key();
    let origin = origin().await;
    let place = Place::start(&origin, &path).await;
    let mut visitor = place.visitor().await;
    let meta = visitor.get("/live/a.ts").await;
    assert_eq!(StreamKey::of(&meta), Some(key));
    let digest = meta.signature.unwrap().blocks;
    let hashes = visitor.hashes(meta.id).await;
    let hashes =
        BlockHashes::checked(hashes, &shape(&meta), &digest).expect("what the key has signed");
    let all = bytes(1, 100_001);
    for (index, block) in (0..).zip(all.chunks(1088)) {
        assert!(hashes.fit(index, block, 1088));
        let mut wrong = block.to_vec();
        wrong[0] ^= 1;
        assert!(!hashes.fit(index, &wrong, 1088), "block {index}");
    }
    // Unsigned and unknown segments have no hashes.
    let plain = visitor.get("/plain/short.vtt").await;
    for segment in [plain.id, SegmentId::of(b"nothing")] {
        assert_eq!(visitor.no_hashes(segment).await.code, RefusalCode::Unknown);
    }
    assert_eq!(
        place.value("ncserverd_session_hashes_total", "answered"),
        1.0
    );
    assert_eq!(
        place.value("ncserverd_session_hashes_total", "refused"),
        2.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn checksums_tell_right_rows_from_wrong_ones() {
    let (_directory, path, key) = new_key();
    let origin = origin().await;
    let place = Place::start(&origin, &path).await;
    let mut visitor = place.visitor().await;
    let meta = visitor.get("/live/a.ts").await;
    let shape = shape(&meta);
    assert!(shape.generations() > 1);
    let mut seeds = BTreeSet::new();
    for generation in shape.iter() {
        let (asked, answer) = visitor.checks(meta.id, generation.index, 7).await;
        let answer = answer.unwrap();
        assert!(key.vouches_for(&asked, &answer));
        assert!(
            !key.vouches_for(
                &GetChecks {
                    nonce: [8; 32],
                    ..asked
                },
                &answer
            ),
            "for this question alone"
        );
        assert!(seeds.insert(answer.seed), "each has secrets of its own");
        let checks = RowChecks::new(
            Kernels::detect(),
            &meta.id,
            row_key(&meta.id, &generation),
            generation,
            &answer,
        )
        .unwrap();
        let blocks = visitor.blocks(&meta, generation.index, 4).await;
        let rows: Vec<_> = blocks
            .iter()
            .map(|block| (&block.vector, &block.payload[..]))
            .collect();
        assert_eq!(checks.are_right(&rows), [true; 4]);
        let mut wrong = blocks[1].payload.to_vec();
        wrong[500] ^= 0x40;
        let rows = [
            (&blocks[0].vector, &blocks[0].payload[..]),
            (&blocks[1].vector, &wrong[..]),
        ];
        assert_eq!(checks.are_right(&rows), [true, false]);
        let exchanged = [(&blocks[2].vector, &blocks[3].payload[..])];
        assert_eq!(checks.are_right(&exchanged), [false]);
    }
    assert_eq!(
        place.value("ncserverd_session_checks_total", "answered"),
        f64::from(shape.generations())
    );
    assert_eq!(
        place.value("ncserverd_stream_signatures_total", "checks"),
        f64::from(shape.generations())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn checksums_of_a_stream_without_a_key_are_not_signed_and_all_are_rationed() {
    let (_directory, path, _) = new_key();
    let origin = origin().await;
    origin.put("/plain/c.ts", bytes(4, 20_000).into());
    let place = Place::start(&origin, &path).await;
    let mut visitor = place.visitor().await;
    let meta = visitor.get("/plain/c.ts").await;
    assert_eq!(visitor.no_hashes(meta.id).await.code, RefusalCode::Unknown);
    let (_, answer) = visitor.checks(meta.id, 0, 1).await;
    let answer = answer.unwrap();
    assert_eq!(answer.signature, None);
    let generation = shape(&meta).generation(0).unwrap();
    let checks = RowChecks::new(
        Kernels::detect(),
        &meta.id,
        row_key(&meta.id, &generation),
        generation,
        &answer,
    )
    .unwrap();
    let blocks = visitor.blocks(&meta, 0, 2).await;
    assert_eq!(
        checks.are_right(&[(&blocks[0].vector, &blocks[0].payload[..])]),
        [true]
    );
    assert_eq!(
        visitor
            .checks(SegmentId::of(b"nothing"), 0, 1)
            .await
            .1
            .unwrap_err()
            .code,
        RefusalCode::Unknown
    );
    for _ in 0..64 {
        if let Err(error) = visitor.checks(meta.id, 0, 1).await.1 {
            assert_eq!(error.code, RefusalCode::Overload);
            assert!((1..=250).contains(&error.retry_after_ms), "{error:?}");
            return;
        }
    }
    panic!("64 in no time");
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_of_wrong_blocks_are_counted() {
    let (_directory, path, _) = new_key();
    let origin = origin().await;
    let place = Place::start(&origin, &path).await;
    let mut visitor = place.visitor().await;
    for _ in 0..20 {
        let segment = SegmentId::of(b"x");
        visitor
            .send(Message::Blame {
                segment,
                generation: 0,
                blocks: 2,
                identity: [9; 32],
            })
            .await;
    }
    visitor.get("/plain/short.vtt").await;
    let count = |label| place.value("ncserverd_session_blames_total", label);
    assert_eq!((count("heard"), count("ignored")), (8.0, 12.0));
}

/// A server of one origin with unsigned streams of these names, each cut and coded differently.
async fn serve(origin: &Origin, streams: &[(&str, u16, CodecName)]) -> (Server, peer::Server) {
    let mut config = config::Config::default();
    config.endpoint.listen = vec![LOOPBACK];
    config.device.cpu_threads = "2".parse().unwrap();
    for (name, n_max, codec) in streams {
        let (n_max, codec) = (*n_max, *codec);
        let origin = Some(format!("{}live/", origin.url()).into());
        let parity = (codec == CodecName::Rs).then_some(8);
        let (block_bytes, generations_min) = (1088, 1);
        let settings = stream::Config {
            origin,
            n_max,
            codec,
            parity,
            block_bytes,
            generations_min,
            ..stream::Config::default()
        };
        config.stream.insert((*name).into(), settings);
    }
    let identity = ServerIdentity::ephemeral().unwrap();
    let server = Server::start(config, identity.clone(), &Registry::new(), Readiness::new())
        .await
        .unwrap();
    let at = server.addresses()[0];
    let named = peer::Server {
        host: at.ip().to_string(),
        port: at.port(),
        fingerprint: Some(identity.fingerprint()),
    };
    (server, named)
}

async fn read(client: &peer::Client, path: &str) -> Vec<u8> {
    tokio::time::timeout(
        PATIENCE,
        client.open(path, None).await.unwrap().read_to_end(),
    )
    .await
    .expect("it comes in time")
    .unwrap()
}

/// A segment id depends on the bytes only, so requests also name the coding.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_bytes_in_two_streams_are_served_as_each_codes_them() {
    let origin = origin().await;
    let streams = [
        ("one", 32, CodecName::Rlnc),
        ("two", 16, CodecName::Rlnc),
        ("three", 32, CodecName::Rs),
    ];
    let (_server, at) = serve(&origin, &streams).await;
    let client = peer::Client::connect(peer::Config::new(at.clone(), Trust::System))
        .await
        .unwrap();
    let mut shapes = BTreeSet::new();
    for (name, n_max, codec) in streams {
        let path = format!("/{name}/a.ts");
        let shape = client.stat(&path, 0, None).await.unwrap().shape.unwrap();
        assert_eq!(
            (shape.n_max(), shape.codec() == Codec::Rlnc),
            (n_max, codec == CodecName::Rlnc),
            "{name}"
        );
        shapes.insert(shape.coding());
    }
    assert_eq!(shapes.len(), 3);
    for (name, ..) in streams {
        // Each with a new client.
        let client = peer::Client::connect(peer::Config::new(at.clone(), Trust::System))
            .await
            .unwrap();
        assert!(
            read(&client, &format!("/{name}/a.ts")).await == bytes(1, 100_001),
            "{name}"
        );
        let stats = client.stats().borrow().clone();
        assert_eq!(
            (stats.segments_corrupt, stats.blocks_wrong, stats.reconnects),
            (0, 0, 0),
            "{name}"
        );
    }
}

/// Two honest servers may hold the same bytes in different shapes. Neither is blamed for blocks
/// that are right in its own shape.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_codes_the_same_bytes_in_another_way_is_not_blamed() {
    let origin = origin().await;
    for (n_max, codec) in [(16, CodecName::Rlnc), (32, CodecName::Rs)] {
        let (_one, one) = serve(&origin, &[("live", 32, CodecName::Rlnc)]).await;
        let (_other, other) = serve(&origin, &[("live", n_max, codec)]).await;
        // So that the other already holds the segment when it is requested.
        let alone = peer::Client::connect(peer::Config::new(other.clone(), Trust::System))
            .await
            .unwrap();
        assert!(read(&alone, "/live/a.ts").await == bytes(1, 100_001));
        let config = peer::Config {
            servers: vec![one.clone(), other],
            ..peer::Config::new(one, Trust::System)
        };
        let client = peer::Client::connect(config).await.unwrap();
        let mut stats = client.stats();
        let both =
            stats.wait_for(|stats| stats.sources.iter().all(|source| source.hello.is_some()));
        tokio::time::timeout(PATIENCE, both)
            .await
            .expect("both answer in time")
            .unwrap();
        assert!(read(&client, "/live/a.ts").await == bytes(1, 100_001));
        let stats = client.stats().borrow().clone();
        assert_eq!(
            (stats.polluters, stats.blocks_wrong, stats.segments_corrupt),
            (0, 0, 0),
            "{codec:?} {stats:?}"
        );
        assert_eq!(stats.reconnects, 0, "{codec:?} {stats:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_comes_and_changes_while_the_server_runs() {
    let (directory, path, old) = new_key();
    let origin = origin().await;
    let mut place = Place::start(&origin, &path).await;
    let mut visitor = place.visitor().await;
    let before = visitor.get("/plain/a.ts").await;
    let pem = SigningKey::generate(&mut rand::rng());
    std::fs::write(&path, &pem).unwrap();
    let new = SigningKey::from_pem(pem.as_bytes()).unwrap().public();
    let made = directory.path().join("made.pem");
    place.config.stream.get_mut("plain").unwrap().signing_key = Some(made.clone());
    assert_eq!(StreamKey::of(&visitor.get("/live/a.ts").await), Some(old));
    place.server.apply(&place.config).await.unwrap();
    assert_eq!(StreamKey::of(&visitor.get("/live/a.ts").await), Some(new));
    // Segments that were held without hashes have some now.
    let after = visitor.get("/plain/a.ts").await;
    let key = SigningKey::from_pem(&std::fs::read(&made).unwrap())
        .unwrap()
        .public();
    assert_eq!((after.id, StreamKey::of(&after)), (before.id, Some(key)));
    let hashes = visitor.hashes(after.id).await;
    assert!(
        BlockHashes::checked(hashes, &shape(&after), &after.signature.unwrap().blocks).is_some()
    );
    // A file without a key changes nothing.
    std::fs::write(&path, "nothing").unwrap();
    let error = place
        .server
        .apply(&place.config)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("stream `live`: signing_key: cannot use"),
        "{error}"
    );
    assert_eq!(StreamKey::of(&visitor.get("/live/a.ts").await), Some(new));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_passes_on_what_is_signed_and_no_more_of_its_age_than_is_left() {
    let (_directory, path, key) = new_key();
    let origin = origin().await;
    let place = Place::start(&origin, &path).await;
    let at = place.server.addresses()[0];
    let source = peer::Server {
        host: at.ip().to_string(),
        port: at.port(),
        fingerprint: Some(place.identity.fingerprint()),
    };
    let identity = ServerIdentity::ephemeral().unwrap();
    let endpoint = endpoint::Config {
        listen: vec![LOOPBACK],
        ..endpoint::Config::default()
    };
    let sources = peer::Config::new(source, Trust::System);
    let config = relay::Config {
        endpoint,
        ..relay::Config::default()
    };
    let relay = Relay::start(
        config,
        sources,
        identity.clone(),
        &Registry::new(),
        &Readiness::new(),
    )
    .await
    .unwrap();

    let (mut server, mut visitor) = (
        place.visitor().await,
        Visitor::connect(relay.addresses()[0], &identity).await,
    );
    let said = server.get("/live/a.ts").await;
    let meta = visitor.get("/live/a.ts").await;
    assert_eq!(
        (StreamKey::of(&meta), meta.signature),
        (Some(key), said.signature)
    );
    tokio::time::sleep(Duration::from_millis(300)).await;
    let later = visitor.get("/live/a.ts").await;
    assert_eq!(later.signature, meta.signature);
    assert!(
        later.max_age_ms + 300 <= meta.max_age_ms,
        "{} after {}",
        later.max_age_ms,
        meta.max_age_ms
    );

    let none = SegmentId::of(b"nobody has this");
    assert_eq!(visitor.no_hashes(none).await.code, RefusalCode::Unknown);
    visitor.blocks(&meta, 0, 2).await;
    let (_, answer) = visitor.checks(meta.id, 0, 1).await;
    assert_eq!(answer.unwrap_err().code, RefusalCode::Unknown);
    let end = tokio::time::Instant::now() + PATIENCE;
    let connection = visitor.connection.clone();
    let hashes = loop {
        let request = visitor.number();
        visitor
            .send(Message::GetHashes {
                request,
                segment: meta.id,
                meant: Meant::LastNamed,
            })
            .await;
        tokio::select! {
            message = visitor.hear() => {
                assert!(matches!(message, Message::Error(error) if error.request == request));
            }
            stream = connection.accept_uni() => {
                break stream.unwrap().read_to_end(1 << 20).await.unwrap();
            }
        }
        assert!(
            tokio::time::Instant::now() < end,
            "the relay has all of it in time"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let (StreamHead::Hashes { .. }, length) = StreamHead::parse(&hashes).unwrap().unwrap() else {
        panic!("hashes")
    };
    let digest = meta.signature.unwrap().blocks;
    assert!(
        BlockHashes::checked(Bytes::from(hashes).slice(length..), &shape(&meta), &digest).is_some()
    );
}
