//! Swarms of viewers against a running server: what they count is what was served.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use bytesize::ByteSize;
use clap::Parser;
use ncbench::swarm::{self, Options, PlainConfig, Report};
use ncserverd::config;
use ncserverd::endpoint::{Congestion, Connections};
use ncserverd::lab::origin::Origin;
use ncserverd::peer;
use ncserverd::server::Server;
use ncserverd::stream::{self, CodecName};
use ncserverd::telemetry::Readiness;
use ncserverd::tls::{ServerIdentity, Trust};
use prometheus::Registry;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

mod program;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const SEGMENTS: usize = 6;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn options(line: &str) -> Options {
    Line::parse_from(std::iter::once("swarm").chain(line.split_whitespace())).options
}

struct Place {
    origin: Origin,
    server: Server,
    at: peer::Server,
    registry: Registry,
}

impl Place {
    async fn open(connections_max: u32) -> Self {
        Self::with(connections_max, stream::Config::default()).await
    }

    /// The same with a stream that is coded so.
    async fn with(connections_max: u32, stream: stream::Config) -> Self {
        let origin = Origin::in_memory().await.unwrap();
        let mut settings = config::Config::default();
        settings.endpoint.listen = vec![LOOPBACK];
        settings.endpoint.connections_max = Connections::at_most(connections_max);
        settings.ingest.segment_max_bytes = ByteSize::kib(64);
        // Viewers of a swarm take one generation after the other, and wait a quarter of a second
        // for each one's losses.
        let block = stream::Config {
            block_bytes: 1024,
            n_max: 32,
            generations_min: 1,
            ..stream
        };
        let url = Some(format!("{}vod/", origin.url()).into());
        settings.stream.insert(
            "live".into(),
            stream::Config {
                origin: url,
                ..block
            },
        );
        let (identity, registry) = (ServerIdentity::ephemeral().unwrap(), Registry::new());
        let server = Server::start(settings, identity.clone(), &registry, Readiness::new())
            .await
            .unwrap();
        let at = at(server.addresses()[0], &identity);
        Self {
            origin,
            server,
            at,
            registry,
        }
    }

    /// One file of several segments, two generations each.
    fn put_file(&self) {
        let bytes = noise(0, SEGMENTS << 16);
        self.origin.put("/vod/movie.bin", Bytes::from(bytes));
    }

    fn put_list(&self, segments: usize, ended: bool) {
        let mut list = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-MEDIA-SEQUENCE:0\n".to_owned();
        for number in 0..segments {
            // More than a segment of the server's may have: two parts.
            let bytes = noise(number, 100_000);
            self.origin
                .put(&format!("/vod/{number}.ts"), Bytes::from(bytes));
            list += &format!("#EXTINF:0.5,\n{number}.ts\n");
        }
        list += if ended { "#EXT-X-ENDLIST\n" } else { "" };
        self.origin.put("/vod/list.m3u8", Bytes::from(list));
    }

    async fn watch(&self, line: &str, path: &str) -> Report {
        let source = peer::Config::new(self.at.clone(), Trust::System);
        let report = swarm::run(&options(line), source, Some(path), std::future::pending())
            .await
            .unwrap();
        assert_consistent(&report);
        report
    }

    fn read(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let family = families
            .iter()
            .find(|family| family.name() == name)
            .unwrap_or_else(|| panic!("no series {name}"));
        family
            .get_metric()
            .iter()
            .map(|metric| metric.get_counter().get_value())
            .sum()
    }
}

/// Each viewer that asked has one fate, and each second's figures are a part of the totals.
fn assert_consistent(report: &Report) {
    let totals = report.totals;
    assert_eq!(
        totals.asked,
        totals.served + totals.never_in + totals.unserved,
        "{report}"
    );
    assert!(
        totals.put_out <= totals.served && totals.put_out <= totals.put_out_times,
        "{report}"
    );
    assert_eq!(totals.admitted, totals.gone, "{totals:?}");
    assert_eq!(
        [report.first_segment.count, report.startup.count],
        [totals.served; 2],
        "{report}"
    );
    assert!(
        report.startup.p99_ms <= report.first_segment.p99_ms,
        "{report}"
    );
    let sum = |read: fn(&swarm::Line) -> u64| report.seconds.iter().map(read).sum::<u64>();
    assert!(sum(|line| line.admitted) <= totals.admitted);
    assert!(sum(|line| line.refused) <= totals.refused);
    assert!(sum(|line| line.put_out) <= totals.put_out_times);
    let goodput: f64 = report.seconds.iter().map(|line| line.goodput).sum();
    assert!(
        goodput <= totals.goodput_bytes() as f64 * 8e-6 + 1e-3,
        "{goodput} Mbit: {report}"
    );
    let inside = report.seconds.iter().map(|line| line.inside).max();
    assert!(
        inside.is_none_or(|inside| inside <= report.asked.viewers),
        "{report}"
    );
}

/// Bytes that no other number has.
fn noise(number: usize, length: usize) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(number as u64);
    let mut bytes = vec![0; length];
    random.fill(&mut bytes[..]);
    bytes
}

fn at(address: SocketAddr, identity: &ServerIdentity) -> peer::Server {
    peer::Server {
        host: address.ip().to_string(),
        port: address.port(),
        fingerprint: Some(identity.fingerprint()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_has_everything_in_time() {
    let place = Place::open(1000).await;
    place.put_file();
    // 64 KiB at this rate are half a second.
    let line = "--viewers 40 --join-rate 40 --time 2s --bitrate 1048576 --verify 0.5 --threads 2";
    let report = place.watch(line, "/live/movie.bin").await;
    assert!(report.is_clean(), "{report}");
    let totals = report.totals;
    assert_eq!((totals.joined, totals.left), (40, 0), "{report}");
    // The first second is half empty, and the last is not over.
    let goodput = report.seconds.iter().map(|line| line.goodput);
    assert!(
        goodput.sum::<f64>() >= 0.4 * totals.goodput_bytes() as f64 * 8e-6,
        "{report}"
    );
    assert!(report.played_share > 0.7, "{report}");
    // Each asks for its first at once, and for the next every half second.
    assert!((40 * 4..=40 * 7).contains(&totals.on_time), "{report}");
    assert!(
        totals.verified >= totals.on_time / 5 && totals.verified <= totals.on_time * 4 / 5,
        "{report}"
    );
    assert!(
        totals.generations >= 2 * totals.on_time && totals.blocks >= 64 * totals.on_time,
        "{report}"
    );
    assert!(totals.useless * 20 < totals.blocks, "{report}");
    assert_eq!(totals.bytes, totals.blocks * 1024);
    assert!(totals.wire_bytes > totals.bytes);
    assert!(place.read("ncserverd_session_sent_blocks_total") >= totals.blocks as f64);
    assert_eq!(report.seconds.len(), 3);
    assert_eq!(report.first_block.count, totals.generations);
}

#[tokio::test(flavor = "multi_thread")]
async fn playlists_are_played_with_datagrams_seeks_and_leaves() {
    let place = Place::open(1000).await;
    place.put_list(SEGMENTS, true);
    let line = "--viewers 20 --join-rate 40 --time 3s --verify 1 --threads 1 --stay 1s --seek \
                500ms --datagrams --systematic";
    let report = place.watch(line, "/live/list.m3u8").await;
    let totals = report.totals;
    assert_eq!(
        (totals.late, totals.corrupt, totals.refused, totals.failed),
        (0, 0, 0, 0),
        "{report}"
    );
    assert!(
        totals.joined > 30 && totals.left > 10 && totals.sought > 20,
        "{report} {totals:?}"
    );
    // Two parts a segment.
    assert!(
        totals.on_time > 50 && totals.verified >= 2 * totals.on_time,
        "{report} {totals:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_on_the_way_is_made_up_for() {
    let place = Place::open(1000).await;
    place.put_file();
    let line = "--viewers 20 --join-rate 40 --time 3s --bitrate 524288 --verify 1 --threads 1 \
                --datagrams --systematic --loss 0.05";
    let report = place.watch(line, "/live/movie.bin").await;
    let totals = report.totals;
    assert_eq!(
        (totals.late, totals.corrupt, totals.refused, totals.failed),
        (0, 0, 0, 0),
        "{report}"
    );
    assert!(totals.verified > 40, "{report}");
    // What viewers have at the end and what arrived of unfinished segments is less than was sent,
    // by the losses.
    let (sent, came) = (
        place.read("ncserverd_session_sent_blocks_total"),
        totals.blocks as f64,
    );
    assert!(
        came < 0.98 * sent && came > 0.85 * sent,
        "{came} of {sent}: {report}"
    );
}

/// Viewers of streams that are not recoded, without loss and with more loss than the parity blocks
/// cover.
#[tokio::test(flavor = "multi_thread")]
async fn every_code_is_played_and_verified() {
    for (codec, parity) in [
        (CodecName::Rs, Some(8)),
        (CodecName::Rs, Some(1)),
        (CodecName::RaptorQ, None),
    ] {
        let stream = stream::Config {
            codec,
            parity,
            ..stream::Config::default()
        };
        let place = Place::with(1000, stream).await;
        place.put_file();
        for line in [
            "--viewers 20 --join-rate 40 --time 2s --bitrate 524288 --verify 0.5 --threads 1",
            "--viewers 20 --join-rate 40 --time 3s --bitrate 524288 --verify 1 --threads 1 \
             --datagrams --systematic --loss 0.1",
        ] {
            let report = place.watch(line, "/live/movie.bin").await;
            let totals = report.totals;
            // Beside other tests the server may be short for a moment, and tell a newcomer to wait.
            assert_eq!(
                (totals.served, totals.late, totals.corrupt, totals.failed),
                (20, 0, 0, 0),
                "{codec:?} {report}"
            );
            assert!(totals.verified > 10, "{codec:?} {report}");
            assert!(totals.useless * 20 < totals.blocks, "{codec:?} {report}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_playlist_is_followed() {
    let place = Place::open(1000).await;
    place.put_list(SEGMENTS, false);
    let report = place
        .watch(
            "--viewers 5 --join-rate 50 --time 3s --verify 1 --threads 1",
            "/live/list.m3u8",
        )
        .await;
    // The last three segments, and then nothing more: only the awaited segment is late, if its time
    // is up.
    assert_eq!(
        (
            report.totals.on_time,
            report.totals.corrupt,
            report.totals.failed
        ),
        (15, 0, 0),
        "{report}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_late_is_fetched_all_the_same() {
    let place = Place::open(1000).await;
    place.put_list(SEGMENTS, false);
    let watched = place.watch(
        "--viewers 5 --join-rate 50 --time 7s --verify 1 --threads 1",
        "/live/list.m3u8",
    );
    let (report, ()) = tokio::join!(watched, async {
        // The next segment is due two and a half seconds after a viewer has begun, and the last of
        // these three a second later.
        tokio::time::sleep(Duration::from_secs(4)).await;
        place.put_list(SEGMENTS + 3, false);
    });
    // And after those the one that is waited for when time is up.
    let totals = report.totals;
    assert_eq!((totals.on_time, totals.late), (15, 20), "{report}");
    // Two parts a segment. Nothing is asked for with so little time that it must be refused.
    assert_eq!((totals.verified, totals.rejected), (60, 0), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_room_refuses_and_the_others_stay() {
    let place = Place::open(10).await;
    place.put_file();
    let report = place
        .watch(
            "--viewers 20 --join-rate 100 --time 1s --bitrate 1048576 --threads 1",
            "/live/movie.bin",
        )
        .await;
    let totals = report.totals;
    // One place is taken by whoever looked at what there is to play.
    assert!(
        (9..=10).contains(&totals.joined) && totals.refused >= 10,
        "{report}"
    );
    assert_eq!((totals.late, totals.failed), (0, 0), "{report}");
    assert!(totals.on_time >= 2 * totals.joined, "{report}");
    // Each counts once, however often it tries. Who is in stays in, and the others never get in.
    assert_eq!((totals.asked, totals.put_out), (20, 0), "{report}");
    assert!((9..=totals.joined).contains(&totals.served), "{report}");
    assert!((10..=11).contains(&totals.refused_viewers), "{report}");
    assert_eq!(
        totals.refused_viewers,
        totals.never_in + report.waiting.count,
        "{report}"
    );
    assert_eq!(report.first_segment.count, totals.served, "{report}");
    assert!((0.3..0.6).contains(&report.played_share), "{report}");
    assert!(
        !report.is_clean() && report.shortfall(0.9).is_some(),
        "{report}"
    );
    place.server.drain(Duration::ZERO).await;
}

/// Places that become free go to viewers who were refused, and the time that they have waited
/// counts.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_comes_again_and_its_wait_counts() {
    let place = Place::open(6).await;
    place.put_file();
    let watch = |line| place.watch(line, "/live/movie.bin");
    let early = watch("--viewers 5 --join-rate 1000 --time 2s --bitrate 1048576 --threads 1");
    let (early, report) = tokio::join!(early, async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        watch("--viewers 4 --join-rate 1000 --time 8s --bitrate 1048576 --threads 1").await
    });
    assert!(early.is_clean(), "{early}");
    let (totals, waited) = (report.totals, report.waiting);
    assert_eq!(
        (totals.asked, totals.served, totals.put_out),
        (4, 4, 0),
        "{report}"
    );
    assert!((3..=4).contains(&totals.refused_viewers), "{report}");
    assert_eq!(
        (waited.count, totals.never_in),
        (totals.refused_viewers, 0),
        "{report}"
    );
    assert!(waited.max_ms >= 1000.0, "{report}");
    assert_eq!(report.first_segment.count, 4, "{report}");
    place.server.drain(Duration::ZERO).await;
}

/// A server that closes connections which it has served puts their viewers out.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_closed_after_a_segment_is_put_out() {
    let Place {
        origin, server, at, ..
    } = Place::open(1000).await;
    origin.put("/vod/movie.bin", Bytes::from(noise(0, SEGMENTS << 16)));
    let options = options("--viewers 8 --join-rate 100 --time 4s --bitrate 1048576 --threads 1");
    let source = peer::Config::new(at, Trust::System);
    let watched = swarm::run(
        &options,
        source,
        Some("/live/movie.bin"),
        std::future::pending(),
    );
    let (report, ()) = tokio::join!(watched, async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.drain(Duration::ZERO).await;
    });
    let report = report.unwrap();
    let totals = report.totals;
    assert_eq!(
        (totals.asked, totals.served, totals.put_out),
        (8, 8, 8),
        "{report}"
    );
    assert_eq!((totals.put_out_times, totals.never_in), (8, 0), "{report}");
    assert!(report.shortfall(0.9).is_some(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_streams_carry_the_same_bytes() {
    let identity = ServerIdentity::ephemeral().unwrap();
    let listen = std::net::UdpSocket::bind(LOOPBACK)
        .unwrap()
        .local_addr()
        .unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let config = PlainConfig {
        listen,
        congestion: Congestion::default(),
    };
    let serving = {
        let identity = identity.clone();
        tokio::spawn(async move {
            swarm::serve_plain(config, &identity, async { drop(stopped.await) }).await
        })
    };
    let source = peer::Config::new(at(listen, &identity), Trust::System);
    let line = "--against plain --plain-segment 64KiB --viewers 10 --join-rate 50 --time 1s \
                --bitrate 1048576 --threads 1 --sockets 3";
    let report = swarm::run(&options(line), source, None, std::future::pending())
        .await
        .unwrap();
    assert_consistent(&report);
    assert!(report.is_clean() && report.totals.joined == 10, "{report}");
    assert!(
        report.totals.on_time >= 20 && report.totals.bytes >= report.totals.on_time << 16,
        "{report}"
    );
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_over_waits_for_no_handshake() {
    let identity = ServerIdentity::ephemeral().unwrap();
    let silent = std::net::UdpSocket::bind(LOOPBACK).unwrap();
    let source = peer::Config::new(at(silent.local_addr().unwrap(), &identity), Trust::System);
    let line =
        "--against plain --viewers 3 --join-rate 100 --time 1s --bitrate 1048576 --threads 1";
    let report = swarm::run(&options(line), source, None, std::future::pending())
        .await
        .unwrap();
    assert_eq!(
        (report.totals.joined, report.totals.failed),
        (0, 0),
        "{report}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_played_is_said() {
    let place = Place::open(1000).await;
    place.put_file();
    place.origin.put(
        "/vod/master.m3u8",
        Bytes::from_static(b"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\nlist.m3u8\n"),
    );
    let source = || peer::Config::new(place.at.clone(), Trust::System);
    for (line, path, says) in [
        ("", Some("/live/movie.bin"), "--bitrate"),
        ("", Some("/live/master.m3u8"), "rendition"),
        ("", Some("/live/none"), "refused"),
        ("", None, "PATH"),
        ("--against plain", None, "--bitrate"),
    ] {
        let said = swarm::run(&options(line), source(), path, std::future::pending())
            .await
            .unwrap_err()
            .to_string();
        assert!(said.contains(says), "{said}");
    }
}

/// Whoever reads the lines of each second may stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_pipe_ends_a_swarm_quietly() {
    let place = Place::open(1000).await;
    place.put_file();
    let url = place.at.to_string();
    let arguments = [
        "swarm",
        &url,
        "/live/movie.bin",
        "--viewers",
        "1",
        "--bitrate",
        "8e6",
    ];
    let ended = program::into_a_closed_pipe(&arguments).await;
    assert_eq!(ended, (Some(program::CLOSED_PIPE), String::new()));
}
