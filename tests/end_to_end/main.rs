//! The whole path with real programs: ffmpeg makes a stream, nginx or a directory holds it,
//! `ncserverd` publishes it, `ncpeer gateway` fetches it over a lossy path, and ffmpeg plays it.
//! What is played must equal what was made, frame by frame.
//!
//! Each test but one has two network namespaces of its own, joined by a veth pair; nftables drops
//! random packets in both directions. Without root, `ip`, `nft`, `ffmpeg` or `nginx` a test prints
//! what it lacks and passes, or fails with `NCTEST_REQUIRE_ALL=1`. The exception is for hosts
//! without these tools, such as one with a GPU that got these tests as an archive.

mod lab;
mod media;
#[path = "../program/mod.rs"]
mod program;

use std::time::{Duration, Instant};

use lab::{Lab, Route, missing, missing_on_loopback};
use media::{Container, Frames};

/// Programs that every test here needs.
const TOOLS: [&str; 4] = ["ip", "nft", "ffmpeg", "nginx"];

/// How long a live test plays.
const LIVE_SECONDS: u64 = 60;

fn vod(container: Container, loss_percent: u32, route: Route) {
    if missing(&TOOLS) {
        return;
    }
    let mut lab = Lab::new(loss_percent);
    media::make_vod(lab.media(), container);
    lab.start_nginx();
    lab.start_server(route, &lab.origin_stream());
    lab.start_gateway();
    let source = lab.frames_at_origin(None);
    let played = lab.frames_at_gateway(None);
    assert!(
        source.len() > 200,
        "the clip has its frames: {}",
        source.len()
    );
    source.assert_equal(&played);
    lab.assert_repaired(route, loss_percent);
}

#[test]
fn vod_ts_over_streams_without_loss() {
    vod(Container::Ts, 0, Route::Streams);
}

#[test]
fn vod_ts_over_streams_with_5_percent_loss() {
    vod(Container::Ts, 5, Route::Streams);
}

#[test]
fn vod_ts_over_streams_with_20_percent_loss() {
    vod(Container::Ts, 20, Route::Streams);
}

#[test]
fn vod_fmp4_over_streams_with_20_percent_loss() {
    vod(Container::Fmp4, 20, Route::Streams);
}

#[test]
fn vod_ts_over_datagrams_with_20_percent_loss() {
    vod(Container::Ts, 20, Route::Datagrams);
}

#[test]
fn vod_fmp4_over_datagrams_without_loss() {
    vod(Container::Fmp4, 0, Route::Datagrams);
}

#[test]
fn vod_fmp4_over_datagrams_with_5_percent_loss() {
    vod(Container::Fmp4, 5, Route::Datagrams);
}

#[test]
fn vod_fmp4_over_datagrams_with_20_percent_loss() {
    vod(Container::Fmp4, 20, Route::Datagrams);
}

/// Plays a live stream for a minute; after the first common frame, every source frame must have
/// been played, in order.
fn live(container: Container, loss_percent: u32, route: Route) -> (Frames, Frames) {
    let mut lab = Lab::new(loss_percent);
    let mut encoder = media::start_live(lab.media(), container, LIVE_SECONDS + 25);
    lab.start_nginx();
    media::await_segments(lab.media(), 4);
    lab.start_server(route, &lab.origin_stream());
    lab.start_gateway();
    let played = lab.frames_at_gateway(Some(LIVE_SECONDS));
    // The archive is complete when the encoder has ended.
    encoder.wait(Duration::from_secs(60));
    let source = lab.frames_of_archive();
    (source, played)
}

#[test]
fn live_streams_are_played_whole() {
    if missing(&TOOLS) {
        return;
    }
    let cases = [
        (Container::Ts, 0, Route::Streams),
        (Container::Fmp4, 5, Route::Streams),
        (Container::Fmp4, 0, Route::Datagrams),
        (Container::Ts, 5, Route::Datagrams),
        (Container::Fmp4, 20, Route::Datagrams),
    ];
    // In parallel, because each test mostly waits.
    std::thread::scope(|scope| {
        let running: Vec<_> = cases
            .into_iter()
            .map(|case| (case, scope.spawn(move || live(case.0, case.1, case.2))))
            .collect();
        for (case, thread) in running {
            let (source, played) = thread.join().expect("the live run ends");
            let contiguous = source.contiguous(&played);
            println!("live {case:?}: {contiguous:?}");
            // However high the loss, the player must make progress.
            let frames = played.video_frames();
            assert!(
                frames >= u64::from(media::LIVE_RATE) * LIVE_SECONDS / 4,
                "{case:?}: {frames} frames are played"
            );
            if case.1 <= 5 {
                let contiguous =
                    contiguous.expect("frames in common, and none missing after the first");
                let seconds = contiguous.video_frames / u64::from(media::LIVE_RATE);
                assert!(
                    seconds + 2 >= LIVE_SECONDS,
                    "{case:?}: a minute is played, not {seconds} s"
                );
            }
        }
    });
}

#[test]
fn twenty_peers_cost_the_origin_one_fetch_a_segment() {
    if missing(&TOOLS) {
        return;
    }
    let mut lab = Lab::new(0);
    media::make_vod(lab.media(), Container::Fmp4);
    lab.start_nginx();
    lab.start_server(Route::Datagrams, &lab.origin_stream());
    let segments = media::segments(lab.media());
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                segments
                    .iter()
                    .for_each(|segment| lab.fetch_and_compare(segment))
            });
        }
    });
    for segment in &segments {
        assert_eq!(
            lab.origin_fetches(segment),
            1,
            "{segment} is fetched once for 20 peers"
        );
    }
}

/// A live encoder writes to a watched directory, with and without temporary files; the player's
/// clock must not stop.
fn watched(in_place: bool) {
    let mut lab = Lab::new(0);
    lab.start_server(Route::Streams, &lab.directory_stream());
    let encoder = media::start_live_directory(lab.media(), in_place, LIVE_SECONDS + 30);
    lab.start_gateway();
    media::await_segments(lab.media(), 4);
    let clock = lab.play(LIVE_SECONDS);
    assert!(
        clock.seconds + 2.0 >= LIVE_SECONDS as f64,
        "played {:.1} s",
        clock.seconds
    );
    assert!(
        clock.longest_stop < Duration::from_secs(2),
        "the player stopped for {:?}",
        clock.longest_stop
    );
    let latency = lab.first_block_latency();
    println!(
        "watched directory, in place {in_place}: longest stop {:?}, first block {latency}",
        clock.longest_stop
    );
    assert!(
        latency.count >= 25.0,
        "every segment is in the histogram: {latency}"
    );
    assert!(
        latency.all_below(1.0),
        "no segment waited for a second: {latency}"
    );
    drop(encoder);
}

#[test]
fn a_watched_directory_plays_without_a_stop() {
    if missing(&TOOLS) {
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| watched(false));
        scope.spawn(|| watched(true));
    });
}

#[test]
fn a_server_that_is_told_to_stop_lets_its_peers_finish() {
    if missing(&TOOLS) {
        return;
    }
    let mut lab = Lab::new(0);
    media::make_vod(lab.media(), Container::Ts);
    let noise = noise(3_000_000);
    std::fs::write(lab.media().join("noise.bin"), &noise).expect("a file is written");
    lab.start_nginx();
    // Slow enough for seconds of it to remain when the server is told to stop, and all in one
    // generation, because requests for others are refused then.
    let stream = format!(
        "block_bytes = 16384\nn_max = 256\ngenerations_min = 1\n{}",
        lab.origin_stream()
    );
    lab.start_server_admitting("address_bytes_per_second = \"500KB\"\n", &stream);
    lab.start_gateway();
    lab.frames_at_gateway(None);
    let (mut fetch, copy) = lab.start_fetch("noise.bin");
    assert!(!fetch.has_ended(), "the file is under way");
    let started = Instant::now();
    let status = lab.terminate_server();
    assert!(status.success(), "exit 0 after SIGTERM: {status}");
    assert!(started.elapsed() < Duration::from_secs(20));
    let fetched = fetch.wait(Duration::from_secs(30));
    assert!(
        fetched.success(),
        "what was under way is finished: {fetched}"
    );
    assert!(
        std::fs::read(copy).expect("a copy") == noise,
        "byte for byte"
    );
}

/// Bytes without a pattern that could hide an error.
fn noise(length: u64) -> Vec<u8> {
    (0..length)
        .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8)
        .collect()
}

/// A server with default settings, on this host without namespaces: the whole stream is played, a
/// large file arrives complete, and one kernel of one back end has coded all of it; the GPU's if
/// there is one.
#[test]
fn a_server_with_defaults_codes_everything_in_one_place() {
    if missing_on_loopback(&["ffmpeg"]) {
        return;
    }
    let mut lab = Lab::on_loopback();
    media::make_vod(lab.media(), Container::Fmp4);
    // More than one generation of the largest size.
    std::fs::write(lab.media().join("noise.bin"), noise(5_000_001)).expect("a file is written");
    lab.start_server_with(&lab.directory_stream());
    lab.start_gateway();
    lab.frames_in_directory()
        .assert_equal(&lab.frames_at_gateway(None));
    lab.fetch_and_compare("noise.bin");
    let coded = lab.coded_bytes();
    println!("coded: {coded:?}");
    let [(labels, bytes)] = &coded[..] else {
        panic!("one back end codes: {coded:?}")
    };
    assert!(*bytes >= 5e6, "{bytes} bytes coded");
    let has_gpu = std::env::var_os("NCTEST_REQUIRE_GPU").is_some();
    let wanted = if has_gpu {
        ["backend=\"cuda\"", "kernel=\"table\""]
    } else {
        ["backend=", "kernel="]
    };
    assert!(
        wanted.iter().all(|label| labels.contains(label)),
        "{labels}"
    );
}
