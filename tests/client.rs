//! The client over real sockets against a server written from `docs/protocol.md` for the purpose: one that misbehaves on request.

#[path = "client/script.rs"]
mod script;

use std::time::Duration;

use ncserverd::object::RefusalCode;
use ncserverd::peer::fetch::{self, Target};
use ncserverd::peer::{Client, Config, Error};
use script::{Fault, Script, bytes};

const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(server: &Script) -> Client {
    Client::connect(server.config()).await.unwrap()
}

async fn read(client: &Client, path: &str) -> Result<Vec<u8>, Error> {
    tokio::time::timeout(PATIENCE, async { client.open(path, None).await?.read_to_end().await }).await.unwrap()
}

#[tokio::test]
async fn a_large_object_comes_part_after_part() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(1, 200_001);
    server.publish("/a/large", &all, 30_000);
    let client = connect(&server).await;
    assert!(read(&client, "/a/large").await.unwrap() == all);
    for range in [0..1, 29_999..30_001, 25_000..95_000, 30_000..60_000, 200_000..200_001, 150_000..900_000] {
        let object = client.open("/a/large", Some(range.clone())).await.unwrap();
        let end = range.end.min(200_001);
        assert_eq!((object.length, object.range.clone()), (Some(200_001), range.start..end));
        let part = object.read_to_end().await.unwrap();
        assert!(part == all[usize::try_from(range.start).unwrap()..usize::try_from(end).unwrap()], "{range:?}");
    }
    assert_eq!(client.open("/a/large", Some(200_001..200_002)).await.unwrap_err(), Error::Range(200_001));
    // Everything was there from the first time on.
    assert_eq!(server.seen().requests, 7 * 2);
}

#[tokio::test]
async fn a_pipe_is_written_as_it_comes_and_stays_a_pipe() {
    use std::os::unix::fs::FileTypeExt;

    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(1, 200_001);
    server.publish("/a/large", &all, 30_000);
    let client = connect(&server).await;
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = tokio::task::spawn_blocking({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    fetch::fetch(&client, "/a/large", Target::File(pipe.clone())).await.unwrap();
    assert!(tokio::time::timeout(PATIENCE, reader).await.unwrap().unwrap() == all);
    assert!(pipe.metadata().unwrap().file_type().is_fifo());
    assert_eq!(directory.path().read_dir().unwrap().count(), 1);
}

#[tokio::test]
async fn many_readers_share_one_fetch() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(2, 50_000);
    server.publish("/a/b", &all, 50_000);
    let client = connect(&server).await;
    for read in futures_util::future::join_all((0..20).map(|_| read(&client, "/a/b"))).await {
        assert!(read.unwrap() == all);
    }
    let seen = server.seen();
    assert_eq!((seen.gets, seen.requests), (1, 4));
    assert_eq!(client.stats().borrow().segments_verified, 1);
}

#[tokio::test]
async fn a_corrupt_segment_is_fetched_again_once_and_never_handed_out() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(3, 10_000);
    server.publish("/a/once", &all, 10_000);
    server.publish("/a/always", &bytes(4, 10_000), 10_000);
    let client = connect(&server).await;
    server.spoil(Fault::Corrupt, 1);
    assert!(read(&client, "/a/once").await.unwrap() == all);
    server.spoil(Fault::Corrupt, 100);
    assert_eq!(read(&client, "/a/always").await, Err(Error::Corrupt));
    let mut stats = client.stats();
    let stats = stats.wait_for(|stats| stats.segments_corrupt == 3).await.unwrap();
    assert_eq!(stats.segments_verified, 1);
}

#[tokio::test]
async fn a_corrupt_whole_object_is_never_handed_out() {
    let server = Script::start("127.0.0.1:0").await;
    for (path, length) in [("/a/inline", 100), ("/a/stream", 100_000)] {
        let all = bytes(5, length);
        server.publish_whole(path, &all);
        let client = connect(&server).await;
        server.spoil(Fault::Corrupt, 1);
        assert!(read(&client, path).await.unwrap() == all);
        assert!(client.stat(path, 0, None).await.unwrap().mutable);
    }
    let client = connect(&server).await;
    server.spoil(Fault::Corrupt, 100);
    assert_eq!(read(&client, "/a/inline").await, Err(Error::Corrupt));
}

#[tokio::test]
async fn parts_of_different_versions_are_not_put_together() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(6, 100_000);
    server.publish("/a/b", &all, 30_000);
    let client = connect(&server).await;
    server.spoil(Fault::OtherVersion, 1);
    assert_eq!(read(&client, "/a/b").await, Err(Error::Changed));
}

#[tokio::test]
async fn a_broken_connection_is_made_again() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(7, 500_000);
    server.publish("/a/b", &all, 500_000);
    let client = connect(&server).await;
    server.spoil(Fault::Disconnect, 3);
    assert!(read(&client, "/a/b").await.unwrap() == all);
    assert!(client.stats().borrow().reconnects >= 1);
}

#[tokio::test]
async fn a_segment_that_the_server_has_forgotten_is_named_anew() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(8, 30_000);
    server.publish("/a/b", &all, 30_000);
    let client = connect(&server).await;
    server.spoil(Fault::RejectUnknown, 1);
    assert!(read(&client, "/a/b").await.unwrap() == all);
    assert_eq!(server.seen().gets, 2);
}

#[tokio::test]
async fn a_server_that_is_busy_is_asked_again() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(9, 30_000);
    server.publish("/a/b", &all, 30_000);
    let client = connect(&server).await;
    server.spoil(Fault::Busy, 2);
    assert!(read(&client, "/a/b").await.unwrap() == all);
    let Err(Error::Refused(refusal)) = read(&client, "/a/none").await else { panic!() };
    assert_eq!(refusal.code, RefusalCode::Unknown);
    assert!(matches!(read(&client, "no path").await, Err(Error::Path(_))));
}

#[tokio::test]
async fn what_was_fetched_ahead_is_there() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(10, 30_000);
    server.publish("/a/b", &all, 30_000);
    let client = connect(&server).await;
    client.prefetch("/a/b", None);
    let mut stats = client.stats();
    tokio::time::timeout(PATIENCE, stats.wait_for(|stats| stats.segments_verified == 1)).await.unwrap().unwrap();
    assert!(read(&client, "/a/b").await.unwrap() == all);
    assert_eq!((server.seen().gets, server.seen().requests), (1, 2));
}

#[tokio::test]
async fn a_reader_that_leaves_ends_its_requests() {
    let server = Script::start("127.0.0.1:0").await;
    server.publish("/a/b", &bytes(11, 500_000), 500_000);
    let client = connect(&server).await;
    server.spoil(Fault::Silent, u32::MAX);
    let object = client.open("/a/b", None).await.unwrap();
    for _ in 0..600 {
        if server.seen().requests > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(object);
    for _ in 0..600 {
        if server.seen().stops >= server.seen().requests {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{:?}", server.seen());
}

#[tokio::test]
async fn subscribers_hear_of_new_segments() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(12, 1000);
    server.publish("/live/1", &all, 1000);
    let client = connect(&server).await;
    let mut news = client.subscribe("live").await.unwrap();
    let (path, meta) = tokio::time::timeout(PATIENCE, news.recv()).await.unwrap().unwrap();
    assert_eq!((path.as_str(), meta.length), ("/live/1", 1000));
    // The news spared the question.
    assert!(read(&client, "/live/1").await.unwrap() == all);
    assert_eq!(server.seen().gets, 0);
}

#[tokio::test]
async fn servers_are_reached_over_ipv6() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return;
    }
    let server = Script::start("[::1]:0").await;
    let all = bytes(13, 10_000);
    server.publish("/a/b", &all, 10_000);
    assert!(read(&connect(&server).await, "/a/b").await.unwrap() == all);
}

#[tokio::test]
async fn no_server_is_an_error_and_one_of_several_is_enough() {
    let server = Script::start("127.0.0.1:0").await;
    let dead = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = dead.local_addr().unwrap().to_string().parse().unwrap();
    let config = Config { servers: vec![nobody], connect_timeout: Duration::from_millis(300), ..server.config() };
    assert!(matches!(Client::connect(config.clone()).await, Err(Error::Connection(_))));
    let both = [config.servers.clone(), server.config().servers].concat();
    let client = Client::connect(Config { servers: both, ..config }).await.unwrap();
    server.publish("/a/b", b"some bytes", 10);
    assert_eq!(read(&client, "/a/b").await.unwrap(), b"some bytes");
}

/// A client of several servers, each with a certificate of its own.
async fn connect_to(servers: &[&Script]) -> Client {
    let config = Config { servers: servers.iter().map(|server| server.server()).collect(), ..servers[0].config() };
    let client = Client::connect(config).await.unwrap();
    let mut stats = client.stats();
    let all = stats.wait_for(|stats| stats.sources.iter().all(|source| source.hello.is_some()));
    tokio::time::timeout(PATIENCE, all).await.unwrap().unwrap();
    client
}

#[tokio::test]
async fn several_servers_send_parts_of_the_same_segment() {
    let servers = [Script::start("127.0.0.1:0").await, Script::start("127.0.0.1:0").await, Script::start("127.0.0.1:0").await];
    let all = bytes(1, 500_000);
    servers.iter().for_each(|server| server.publish("/a/b", &all, 500_000));
    let client = connect_to(&servers.each_ref()).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    let stats = client.stats().borrow().clone();
    let blocks: Vec<u64> = stats.sources.iter().map(|source| source.counts.blocks).collect();
    assert!(blocks.iter().all(|blocks| *blocks > 0), "{blocks:?}");
    assert_eq!(blocks.iter().sum::<u64>(), stats.blocks_received);
    assert_eq!(servers.iter().map(|server| server.seen().gets).sum::<usize>(), 1, "one is asked what the path is");
}

#[tokio::test]
async fn two_servers_that_stop_early_have_enough_together() {
    let servers = [Script::start("127.0.0.1:0").await, Script::start("127.0.0.1:0").await];
    let all = bytes(1, 16 * 1024);
    servers.iter().for_each(|server| {
        server.publish("/a/b", &all, all.len());
        server.ration(10);
    });
    let client = connect_to(&servers.each_ref()).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
}

#[tokio::test]
async fn a_server_that_does_not_deliver_is_not_waited_for() {
    let servers = [Script::start("127.0.0.1:0").await, Script::start("127.0.0.1:0").await];
    let all = bytes(1, 300_000);
    servers.iter().for_each(|server| server.publish("/a/b", &all, 300_000));
    servers[1].spoil(Fault::Silent, u32::MAX);
    let client = connect_to(&servers.each_ref()).await;
    let begun = std::time::Instant::now();
    assert!(read(&client, "/a/b").await.unwrap() == all);
    // Far from the 30 s after which a fetch is given up.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(client.stats().borrow().blocks_reassigned > 0 && servers[1].seen().requests > 0);
}

#[tokio::test]
async fn what_one_server_does_not_have_the_others_send() {
    let servers = [Script::start("127.0.0.1:0").await, Script::start("127.0.0.1:0").await, Script::start("127.0.0.1:0").await];
    let all = bytes(1, 100_000);
    servers[1].publish("/a/b", &all, 100_000);
    servers[2].publish("/a/b", &all, 100_000);
    servers[2].spoil(Fault::RejectUnknown, u32::MAX);
    let client = connect_to(&servers.each_ref()).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    // Nobody has it: then it is refused.
    assert!(matches!(read(&client, "/a/none").await, Err(Error::Refused(refusal)) if refusal.code == RefusalCode::Unknown));
    assert!(servers.iter().all(|server| server.seen().gets >= 1));
}

#[tokio::test]
async fn a_server_that_breaks_the_rules_is_left_and_the_others_go_on() {
    let servers = [Script::start("127.0.0.1:0").await, Script::start("127.0.0.1:0").await];
    let all = bytes(1, 300_000);
    servers.iter().for_each(|server| server.publish("/a/b", &all, 300_000));
    servers[1].spoil(Fault::Repeat, u32::MAX);
    let client = connect_to(&servers.each_ref()).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    let stats = client.stats().borrow().clone();
    assert!(stats.reconnects > 0, "{stats:?}");
    assert!(stats.sources[1].counts.useless > 0 && stats.sources[0].counts.useless < 10, "{stats:?}");
}
