//! The client over real sockets, against a small server written from `docs/protocol.md` that
//! misbehaves on request.

use std::time::Duration;

use ncserverd::object::{Codec, HashGroup, RefusalCode};
use ncserverd::peer::fetch::{self, Target};
use ncserverd::peer::proto::Keys;
use ncserverd::peer::{Client, Config, Error, Object};
use ncserverd::wire::CloseCode;
use nctest::script::{self, Fault, Script, bytes};
use nctest::skip::skip;

const PATIENCE: Duration = Duration::from_secs(60);

async fn connect(server: &Script) -> Client {
    Client::connect(server.config()).await.unwrap()
}

async fn read(client: &Client, path: &str) -> Result<Vec<u8>, Error> {
    tokio::time::timeout(PATIENCE, async {
        client.open(path, None).await?.read_to_end().await
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_large_object_comes_part_after_part() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(1, 200_001);
    server.publish("/a/large", &all, 30_000);
    let client = connect(&server).await;
    assert!(read(&client, "/a/large").await.unwrap() == all);
    for range in [
        0..1,
        29_999..30_001,
        25_000..95_000,
        30_000..60_000,
        200_000..200_001,
        150_000..900_000,
    ] {
        let object = client.open("/a/large", Some(range.clone())).await.unwrap();
        let end = range.end.min(200_001);
        assert_eq!(
            (object.length, object.range.clone()),
            (Some(200_001), range.start..end)
        );
        let part = object.read_to_end().await.unwrap();
        assert!(
            part == all[usize::try_from(range.start).unwrap()..usize::try_from(end).unwrap()],
            "{range:?}"
        );
    }
    assert_eq!(
        client
            .open("/a/large", Some(200_001..200_002))
            .await
            .unwrap_err(),
        Error::Range(200_001)
    );
    // The first time everything was there already.
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
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let reader = tokio::task::spawn_blocking({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    fetch::fetch(&client, "/a/large", Target::File(pipe.clone()), None)
        .await
        .unwrap();
    assert!(
        tokio::time::timeout(PATIENCE, reader)
            .await
            .unwrap()
            .unwrap()
            == all
    );
    assert!(pipe.metadata().unwrap().file_type().is_fifo());
    assert_eq!(directory.path().read_dir().unwrap().count(), 1);
}

/// Segments of 8 generations, each of which is a group of the segment's tree.
const FLOWING: usize = 8 * 16 * 1024;

async fn next(object: &mut Object) -> Option<Result<bytes::Bytes, Error>> {
    tokio::time::timeout(PATIENCE, object.next())
        .await
        .expect("something comes")
}

/// Reads until at least this many bytes have arrived.
async fn read_some(object: &mut Object, length: usize) -> Vec<u8> {
    let mut read = Vec::new();
    while read.len() < length {
        read.extend_from_slice(&next(object).await.unwrap().unwrap());
    }
    read
}

#[tokio::test]
async fn the_beginning_of_a_segment_is_read_before_the_rest_has_come() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(7, FLOWING);
    server.publish("/a/b", &all, FLOWING);
    server.give_trees();
    server.hold_from(Some(3));
    let client = connect(&server).await;
    let mut object = client.open("/a/b", None).await.unwrap();
    let mut part = client.open("/a/b", Some(20_000..100_000)).await.unwrap();
    assert!(read_some(&mut object, 3 * 16_384).await == all[..3 * 16_384]);
    assert!(
        read_some(&mut part, 3 * 16_384 - 20_000).await == all[20_000..3 * 16_384],
        "a range flows as well"
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(100), object.next())
            .await
            .is_err(),
        "nothing that is not there"
    );
    server.hold_from(None);
    assert!(object.read_to_end().await.unwrap() == all[3 * 16_384..]);
    assert!(part.read_to_end().await.unwrap() == all[3 * 16_384..100_000]);
    assert_eq!(
        (
            server.seen().requests,
            client.stats().borrow().segments_verified
        ),
        (8, 1)
    );
}

#[tokio::test]
async fn a_wrong_generation_comes_again_and_the_answer_goes_on() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(8, FLOWING);
    server.publish("/a/b", &all, FLOWING);
    server.give_trees();
    server.spoil_generation(5, 1);
    // It is detected while others arrive.
    server.rest(Duration::from_millis(2));
    let client = connect(&server).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    let stats = client.stats().borrow().clone();
    assert_eq!(
        (
            server.seen().requests,
            stats.segments_corrupt,
            stats.segments_verified
        ),
        (9, 1, 1)
    );
}

#[tokio::test]
async fn what_cannot_be_had_right_is_cut_behind_what_is_proven() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(9, FLOWING);
    server.publish("/a/b", &all, FLOWING);
    server.give_trees();
    server.spoil_generation(5, u32::MAX);
    let client = connect(&server).await;
    let mut object = client.open("/a/b", None).await.unwrap();
    assert!(read_some(&mut object, 5 * 16_384).await == all[..5 * 16_384]);
    assert_eq!(next(&mut object).await, Some(Err(Error::Corrupt)));
    assert_eq!(next(&mut object).await, None);
    assert_eq!(
        (
            server.seen().requests,
            client.stats().borrow().segments_verified
        ),
        (9, 0)
    );
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
    let stats = stats
        .wait_for(|stats| stats.segments_corrupt == 3)
        .await
        .unwrap();
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

/// The META says that a segment already received has more bytes, in an object of unknown length.
#[tokio::test]
async fn bytes_that_are_fewer_than_a_segment_has_do_not_end_an_object() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(3, 1000);
    server.publish_whole("/a/inline", &all);
    server.publish("/a/b", &all, 1000);
    let client = connect(&server).await;
    assert!(read(&client, "/a/inline").await.unwrap() == all);
    server.spoil(Fault::Stretch, 1);
    assert_eq!(read(&client, "/a/b").await, Err(Error::Corrupt));
    let directory = tempfile::tempdir().unwrap();
    let fetched = fetch::fetch(
        &client,
        "/a/b",
        Target::File(directory.path().join("b")),
        None,
    )
    .await;
    assert!(
        matches!(fetched, Err(fetch::Error::Peer(Error::Corrupt))),
        "{fetched:?}"
    );
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

/// No META gives the object's length, and only a part has arrived: an incomplete object, not a
/// missing one.
#[tokio::test]
async fn an_object_whose_end_nobody_names_is_not_one_that_is_not_there() {
    let server = Script::start("127.0.0.1:0").await;
    server.publish("/a/b", &bytes(5, 5000), 2000);
    server.spoil(Fault::Lengthless, u32::MAX);
    let error = read(&connect(&server).await, "/a/b").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the object is incomplete: the server has nothing from byte 5000 on"
    );
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
    let all = bytes(8, 15_000);
    server.publish("/a/b", &all, 15_000);
    let client = connect(&server).await;
    server.spoil(Fault::RejectUnknown, 3);
    assert!(read(&client, "/a/b").await.unwrap() == all);
    assert_eq!(server.seen().gets, 4);
}

#[tokio::test]
async fn a_segment_that_goes_each_time_is_given_up() {
    let server = Script::start("127.0.0.1:0").await;
    server.publish("/a/b", &bytes(8, 15_000), 15_000);
    let client = connect(&server).await;
    server.spoil(Fault::RejectUnknown, u32::MAX);
    let failed = read(&client, "/a/b").await.unwrap_err();
    assert!(matches!(failed, Error::Refused(refusal) if refusal.code == RefusalCode::Unknown));
    assert_eq!(server.seen().gets, 9);
}

#[tokio::test]
async fn a_server_that_is_busy_is_asked_again() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(9, 30_000);
    server.publish("/a/b", &all, 30_000);
    let client = connect(&server).await;
    server.spoil(Fault::Busy, 2);
    assert!(read(&client, "/a/b").await.unwrap() == all);
    assert_eq!(server.seen().gets, 3);
    let Err(Error::Refused(refusal)) = read(&client, "/a/none").await else {
        panic!()
    };
    assert_eq!(refusal.code, RefusalCode::Unknown);
    assert!(matches!(
        read(&client, "no path").await,
        Err(Error::Path(_))
    ));
    assert_eq!(server.seen().gets, 4, "what is not there is asked for once");
}

#[tokio::test]
async fn what_was_fetched_ahead_is_there() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(10, 30_000);
    server.publish("/a/b", &all, 30_000);
    let client = connect(&server).await;
    client.prefetch("/a/b", None);
    let mut stats = client.stats();
    tokio::time::timeout(
        PATIENCE,
        stats.wait_for(|stats| stats.segments_verified == 1),
    )
    .await
    .unwrap()
    .unwrap();
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
    saw(&server, |seen| seen.requests > 0).await;
    drop(object);
    saw(&server, |seen| seen.stops >= seen.requests).await;
}

#[tokio::test]
async fn subscribers_hear_of_new_segments() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(12, 1000);
    server.publish("/live/1", &all, 1000);
    let client = connect(&server).await;
    let mut news = client.subscribe("live").await.unwrap();
    let (path, meta) = tokio::time::timeout(PATIENCE, news.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((path.as_str(), meta.length), ("/live/1", 1000));
    // The announcement made a GET unnecessary.
    assert!(read(&client, "/live/1").await.unwrap() == all);
    assert_eq!(server.seen().gets, 0);
}

#[tokio::test]
async fn servers_are_reached_over_ipv6() {
    if let Err(error) = std::net::UdpSocket::bind("[::1]:0") {
        return skip(&format!("there is no IPv6: {error}"));
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
    let config = Config {
        servers: vec![nobody],
        connect_timeout: Duration::from_millis(300),
        ..server.config()
    };
    assert!(matches!(
        Client::connect(config.clone()).await,
        Err(Error::Connection(_))
    ));
    let both = [config.servers.clone(), server.config().servers].concat();
    let client = Client::connect(Config {
        servers: both,
        ..config
    })
    .await
    .unwrap();
    server.publish("/a/b", b"some bytes", 10);
    assert_eq!(read(&client, "/a/b").await.unwrap(), b"some bytes");
}

/// A client of several servers, each with its own certificate.
async fn connect_to(servers: &[&Script]) -> Client {
    connect_with(servers, Keys::default()).await
}

/// The same with known stream keys.
async fn connect_with(servers: &[&Script], keys: Keys) -> Client {
    let config = Config {
        servers: servers.iter().map(|server| server.server()).collect(),
        keys,
        ..servers[0].config()
    };
    let client = Client::connect(config).await.unwrap();
    let mut stats = client.stats();
    let all = stats.wait_for(|stats| stats.sources.iter().all(|source| source.hello.is_some()));
    tokio::time::timeout(PATIENCE, all).await.unwrap().unwrap();
    client
}

#[tokio::test]
async fn several_servers_send_parts_of_the_same_segment() {
    let servers = [
        Script::start("127.0.0.1:0").await,
        Script::start("127.0.0.1:0").await,
        Script::start("127.0.0.1:0").await,
    ];
    let all = bytes(1, 500_000);
    servers
        .iter()
        .for_each(|server| server.publish("/a/b", &all, 500_000));
    let client = connect_to(&servers.each_ref()).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    let stats = client.stats().borrow().clone();
    let blocks: Vec<u64> = stats
        .sources
        .iter()
        .map(|source| source.counts.blocks)
        .collect();
    assert!(blocks.iter().all(|blocks| *blocks > 0), "{blocks:?}");
    assert_eq!(blocks.iter().sum::<u64>(), stats.blocks_received);
    assert_eq!(
        servers
            .iter()
            .map(|server| server.seen().gets)
            .sum::<usize>(),
        1,
        "one is asked what the path is"
    );
}

#[tokio::test]
async fn two_servers_that_stop_early_have_enough_together() {
    let servers = [
        Script::start("127.0.0.1:0").await,
        Script::start("127.0.0.1:0").await,
    ];
    let all = bytes(1, 16 * 1024);
    servers.iter().for_each(|server| {
        server.publish("/a/b", &all, all.len());
        server.ration(10);
    });
    let client = connect_to(&servers.each_ref()).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
}

/// An origin may keep its tag while its bytes change: then servers behind it announce different
/// parts under the same version.
#[tokio::test]
async fn parts_of_two_servers_are_put_together_if_they_agree_on_one() {
    for agree in [true, false] {
        let servers = [
            Script::start("127.0.0.1:0").await,
            Script::start("127.0.0.1:0").await,
        ];
        let (all, other) = (bytes(1, 200_000), bytes(if agree { 1 } else { 2 }, 200_000));
        servers[0].publish("/a/b", &all, 20_000);
        servers[1].publish("/a/b", &other, 20_000);
        let client = connect_to(&servers.each_ref()).await;
        let mut object = client.open("/a/b", None).await.unwrap();
        let first = object.next().await.unwrap().unwrap();
        let from_first = if agree {
            servers[1].seen().gets == 0
        } else {
            all.starts_with(&first)
        };
        // From now on the other server names the parts.
        let named = usize::from(from_first);
        servers[1 - named].spoil(Fault::Busy, u32::MAX);
        let mut got = first.to_vec();
        let mut end = Ok(());
        while let Some(part) = object.next().await {
            match part {
                Ok(part) => got.extend_from_slice(&part),
                Err(error) => end = Err(error),
            }
        }
        let begun = if from_first { &all } else { &other };
        assert!(begun.starts_with(&got), "no byte of another object");
        assert!(servers[named].seen().gets > 0);
        assert_eq!(end, if agree { Ok(()) } else { Err(Error::Changed) });
        assert_eq!(got.len() == all.len(), agree);
    }
}

#[tokio::test]
async fn a_server_that_does_not_deliver_is_not_waited_for() {
    let servers = [
        Script::start("127.0.0.1:0").await,
        Script::start("127.0.0.1:0").await,
    ];
    let all = bytes(1, 300_000);
    servers
        .iter()
        .for_each(|server| server.publish("/a/b", &all, 300_000));
    servers[1].spoil(Fault::Silent, u32::MAX);
    let client = connect_to(&servers.each_ref()).await;
    let begun = std::time::Instant::now();
    assert!(read(&client, "/a/b").await.unwrap() == all);
    // Much earlier than 30 s, after which a fetch is given up.
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    assert!(client.stats().borrow().blocks_reassigned > 0 && servers[1].seen().requests > 0);
}

#[tokio::test]
async fn what_one_server_does_not_have_the_others_send() {
    let servers = [
        Script::start("127.0.0.1:0").await,
        Script::start("127.0.0.1:0").await,
        Script::start("127.0.0.1:0").await,
    ];
    let all = bytes(1, 100_000);
    servers[1].publish("/a/b", &all, 100_000);
    servers[2].publish("/a/b", &all, 100_000);
    servers[2].spoil(Fault::RejectUnknown, u32::MAX);
    let client = connect_to(&servers.each_ref()).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    // No server has it, so it is refused.
    assert!(matches!(
        read(&client, "/a/none").await,
        Err(Error::Refused(refusal)) if refusal.code == RefusalCode::Unknown
    ));
    assert!(servers.iter().all(|server| server.seen().gets >= 1));
}

#[tokio::test]
async fn a_server_that_breaks_the_rules_is_left_and_the_others_go_on() {
    let servers = [
        Script::start("127.0.0.1:0").await,
        Script::start("127.0.0.1:0").await,
    ];
    let all = bytes(1, 300_000);
    servers
        .iter()
        .for_each(|server| server.publish("/a/b", &all, 300_000));
    servers[1].spoil(Fault::Repeat, u32::MAX);
    let client = connect_to(&servers.each_ref()).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    let stats = client.stats().borrow().clone();
    assert!(stats.reconnects > 0, "{stats:?}");
    assert!(
        stats.sources[1].counts.useless > 0 && stats.sources[0].counts.useless < 10,
        "{stats:?}"
    );
}

/// A reader for whom it is the only server is told the reason, and need not wait for the stall
/// timeout.
#[tokio::test]
async fn a_server_that_breaks_the_rules_again_is_left_alone() {
    let server = Script::start("127.0.0.1:0").await;
    let all = bytes(2, 30_000);
    server.code_with(FIXED[0]);
    server.publish("/a/b", &all, 30_000);
    server.spoil(Fault::Foreign, u32::MAX);
    let (client, begun) = (connect(&server).await, std::time::Instant::now());
    let error = read(&client, "/a/b").await.unwrap_err().to_string();
    assert!(error.contains("malformed block record"), "{error}");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.seen().connections, 2);
    assert!(read(&client, "/a/b").await.is_err());
    assert_eq!(server.seen().connections, 2);
}

async fn three() -> [Script; 3] {
    [
        Script::start("127.0.0.1:0").await,
        Script::start("127.0.0.1:0").await,
        Script::start("127.0.0.1:0").await,
    ]
}

/// Waits until a server has seen something.
async fn saw(server: &Script, what: impl Fn(script::Seen) -> bool) {
    for _ in 0..600 {
        if what(server.seen()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?}", server.seen());
}

const POLLUTION: Option<u64> = Some(CloseCode::Pollution.quic() as u64);

#[tokio::test]
async fn a_forged_answer_ends_the_connection_for_good() {
    let (servers, key) = (three().await, Script::key());
    let all = bytes(1, 20_000);
    servers.iter().for_each(|server| server.sign(&key, 1000));
    servers[0].publish("/a/known", &all, all.len());
    servers[1].publish("/a/b", &all, all.len());
    servers[1].spoil(Fault::Forge, u32::MAX);
    let keys = Keys {
        any: Some(key.public()),
        ..Keys::default()
    };
    let client = connect_with(&servers.each_ref(), keys).await;
    let Err(Error::Refused(refusal)) = read(&client, "/a/b").await else {
        panic!("it was taken")
    };
    assert!(
        matches!(refusal.code, RefusalCode::Origin | RefusalCode::Unknown),
        "{refusal:?}"
    );
    saw(&servers[1], |seen| seen.closed == POLLUTION).await;
    let mut stats = client.stats();
    stats
        .wait_for(|stats| stats.polluters == 1 && stats.sources[1].counts.is_polluter)
        .await
        .unwrap();
    // The others continue, and no new connection to that server is made.
    assert!(read(&client, "/a/known").await.unwrap() == all);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(servers[1].seen().connections, 1);
}

#[tokio::test]
async fn of_a_signed_stream_only_what_is_signed_is_taken() {
    let (servers, key, other) = (three().await, Script::key(), Script::key());
    let (right, wrong) = (bytes(1, 20_000), bytes(2, 20_000));
    servers[0].sign(&key, 1000);
    servers[1].sign(&other, 2000);
    servers[0].publish("/a/known", &right, right.len());
    servers[1].publish("/a/b", &wrong, wrong.len());
    servers[2].publish("/a/b", &wrong, wrong.len());
    let client = connect_to(&servers.each_ref()).await;
    // The first server names the key.
    assert!(read(&client, "/a/known").await.unwrap() == right);
    assert!(matches!(
        read(&client, "/a/b").await,
        Err(Error::Refused(_))
    ));
    assert!(servers[1].seen().gets > 0 && servers[2].seen().gets > 0);
    assert_eq!(
        (
            servers[1].seen().closed,
            servers[2].seen().closed,
            client.stats().borrow().polluters
        ),
        (None, None, 0)
    );
    servers[2].sign(&key, 1000);
    servers[2].publish("/a/c", &right, right.len());
    assert!(read(&client, "/a/c").await.unwrap() == right);
    // The first server itself must follow it.
    servers[0].publish("/a/d", &right, right.len());
    servers[0].spoil(Fault::Unsigned, 1);
    assert!(matches!(
        read(&client, "/a/d").await,
        Err(Error::Refused(_))
    ));
    assert!(read(&client, "/a/d").await.unwrap() == right);
    // A stream of another name has no key, and is read as usual.
    servers[2].spoil(Fault::Unsigned, u32::MAX);
    servers[2].publish("/b/b", &wrong, wrong.len());
    assert!(read(&client, "/b/b").await.unwrap() == wrong);
}

#[tokio::test]
async fn an_old_version_is_not_passed_off_as_the_present_one() {
    let (servers, key) = (three().await, Script::key());
    for (server, bytes, issued_ms) in [
        (&servers[0], b"new", 2000),
        (&servers[1], b"old", 1000),
        (&servers[2], b"nxt", 3000),
    ] {
        server.sign(&key, issued_ms);
        server.age(0);
        server.publish_whole("/a/list", bytes);
    }
    let client = connect_to(&[&servers[0], &servers[1]]).await;
    assert_eq!(read(&client, "/a/list").await.unwrap(), b"new");
    servers[0].withdraw("/a/list");
    assert!(matches!(
        read(&client, "/a/list").await,
        Err(Error::Refused(_))
    ));
    assert!(servers[1].seen().gets > 0 && servers[1].seen().closed.is_none());
    servers[0].sign(&key, 3000);
    servers[0].publish_whole("/a/list", b"nxt");
    assert_eq!(read(&client, "/a/list").await.unwrap(), b"nxt");
}

/// Three servers of a segment with this code. The third sends wrong blocks: it is found by the
/// hashes that the others sign, or else by their checksums, and the segment is still right.
async fn find_polluter(codec: Codec, is_signed: bool) -> ([Script; 3], Client) {
    let (servers, key) = (three().await, Script::key());
    let all = bytes(1, 300_000);
    for server in &servers {
        server.code_with(codec);
        server.publish("/a/b", &all, all.len());
        match is_signed {
            true => {
                server.sign(&key, 1000);
                server.give_trees();
            }
            false => server.give_checks(true),
        }
    }
    servers[2].spoil(Fault::Corrupt, u32::MAX);
    let client = connect_to(&servers.each_ref()).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    saw(&servers[2], |seen| seen.closed == POLLUTION).await;
    saw(&servers[0], |seen| {
        seen.blamed == Some(servers[2].identity())
    })
    .await;
    let stats = client.stats().borrow().clone();
    assert!(
        stats.blocks_wrong > 0 && stats.polluters == 1 && stats.sources[2].counts.is_polluter,
        "{codec:?} {stats:?}"
    );
    (servers, client)
}

#[tokio::test]
async fn a_polluter_among_three_is_named_and_the_segment_mended() {
    for is_signed in [true, false] {
        let (servers, client) = find_polluter(Codec::Rlnc, is_signed).await;
        let stats = client.stats().borrow().clone();
        assert!(
            fetch::pollution(&stats)
                .unwrap()
                .contains(&servers[2].server().to_string())
        );
        let more = bytes(2, 300_000);
        servers
            .iter()
            .for_each(|server| server.publish("/a/c", &more, more.len()));
        assert!(read(&client, "/a/c").await.unwrap() == more);
        assert_eq!(
            (
                servers[2].seen().connections,
                servers[1].seen().closed,
                servers[1].seen().blamed
            ),
            (1, None, None)
        );
    }
}

#[tokio::test]
async fn wrong_source_blocks_are_known_as_they_come() {
    let (servers, key) = (three().await, Script::key());
    let all = bytes(1, 2_000_000);
    for server in &servers[..2] {
        server.sign(&key, 1000);
        server.send_sources();
        // Checksums would detect them, too.
        server.give_checks(false);
        server.publish("/a/b", &all, all.len());
    }
    servers[1].spoil(Fault::Corrupt, u32::MAX);
    let client = connect_to(&[&servers[0], &servers[1]]).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    saw(&servers[1], |seen| seen.closed == POLLUTION).await;
    assert!(servers[0].seen().hashes + servers[1].seen().hashes > 0);
    assert_eq!(client.stats().borrow().polluters, 1);
}

#[tokio::test]
async fn where_nobody_gives_checksums_the_first_server_sends_all_of_it() {
    let (servers, key) = (three().await, Script::key());
    let all = bytes(1, 100_000);
    for server in &servers[..2] {
        server.sign(&key, 1000);
        server.give_checks(false);
        server.publish("/a/b", &all, all.len());
    }
    servers[1].spoil(Fault::Corrupt, u32::MAX);
    let client = connect_to(&[&servers[0], &servers[1]]).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    let stats = client.stats().borrow().clone();
    assert!(
        stats.segments_corrupt > 0 && stats.polluters == 0,
        "{stats:?}"
    );
    assert!(servers[0].seen().checks > 0);
}

/// Over a prime field.
const PRIME: Codec = Codec::RlncQ {
    group: HashGroup::P1024,
};

/// Servers of a segment over the prime field, whose METAs are signed.
async fn prime_servers(path: &str, all: &[u8]) -> [Script; 3] {
    let (servers, key) = (three().await, Script::key());
    for server in &servers {
        server.code_with(PRIME);
        server.sign(&key, 1000);
        server.publish(path, all, all.len());
    }
    servers
}

/// Coded and source blocks of a segment with a short last block, from one server and from three.
#[tokio::test]
async fn blocks_over_the_prime_field_are_tested_and_make_the_segment() {
    let all = bytes(1, 50_001);
    let servers = prime_servers("/a/b", &all).await;
    for some in [&[&servers[0]][..], &servers.each_ref()] {
        let client = connect_to(some).await;
        assert!(read(&client, "/a/b").await.unwrap() == all);
        let stats = client.stats().borrow().clone();
        assert_eq!(
            (stats.blocks_wrong, stats.polluters, stats.blocks_useless),
            (0, 0, 0),
            "{stats:?}"
        );
        assert!(
            stats.sources.iter().all(|source| source.counts.blocks > 0),
            "{stats:?}"
        );
        assert_eq!(stats.rows_bytes, 0, "nothing is kept for later tests");
    }
    servers[0].send_sources();
    let client = connect_to(&[&servers[0]]).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    let stats = client.stats().borrow().clone();
    assert_eq!(
        (stats.blocks_systematic, stats.blocks_wrong),
        (49, 0),
        "{stats:?}"
    );
    // Each client requested the hashes once, from one server, and no checksums.
    assert_eq!(
        servers
            .iter()
            .map(|server| (server.seen().hashes, server.seen().checks))
            .fold((0, 0), add),
        (3, 0)
    );
}

fn add(one: (usize, usize), other: (usize, usize)) -> (usize, usize) {
    (one.0 + other.0, one.1 + other.1)
}

/// The sender of a wrong block is found by that block, and no segment is decoded from it, even if
/// the sender is the first server.
#[tokio::test]
async fn a_polluter_over_the_prime_field_is_known_by_its_blocks() {
    for liar in 0..3 {
        let all = bytes(1, 100_000);
        let servers = prime_servers("/a/b", &all).await;
        if liar == 1 {
            // Wrong source blocks are detected as well.
            servers[1].send_sources();
        }
        servers[liar].spoil(Fault::Corrupt, u32::MAX);
        let client = connect_to(&servers.each_ref()).await;
        assert!(read(&client, "/a/b").await.unwrap() == all);
        saw(&servers[liar], |seen| seen.closed == POLLUTION).await;
        let stats = client.stats().borrow().clone();
        assert!(
            stats.blocks_wrong > 0
                && stats.polluters == 1
                && stats.sources[liar].counts.is_polluter,
            "{liar}: {stats:?}"
        );
        // No wrong segment was decoded on the way.
        assert_eq!(
            (stats.segments_corrupt, stats.segments_mended),
            (0, 0),
            "{liar}: {stats:?}"
        );
        if liar > 0 {
            saw(&servers[0], |seen| {
                seen.blamed == Some(servers[liar].identity())
            })
            .await;
        }
        for honest in (0..3).filter(|honest| *honest != liar) {
            assert_eq!(servers[honest].seen().closed, None);
        }
    }
}

/// One wrong block among many is found, and nothing else is dropped.
#[tokio::test]
async fn one_wrong_block_over_the_prime_field_is_the_only_one_dropped() {
    let all = bytes(1, 100_000);
    let servers = prime_servers("/a/b", &all).await;
    servers[1].spoil(Fault::Corrupt, 1);
    let client = connect_to(&[&servers[0], &servers[1]]).await;
    assert!(read(&client, "/a/b").await.unwrap() == all);
    saw(&servers[1], |seen| seen.closed == POLLUTION).await;
    assert_eq!(client.stats().borrow().blocks_wrong, 1);
}

/// Without a signature nothing shows that the hashes are right.
#[tokio::test]
async fn a_segment_over_the_prime_field_that_is_not_signed_is_not_taken() {
    let server = Script::start("127.0.0.1:0").await;
    server.code_with(PRIME);
    server.publish("/a/b", &bytes(1, 20_000), 20_000);
    let client = connect(&server).await;
    let Err(Error::Refused(refusal)) = read(&client, "/a/b").await else {
        panic!("it was taken")
    };
    assert!(refusal.reason.contains("not signed"), "{refusal:?}");
    assert_eq!(server.seen().requests, 0);
}

/// Codes whose blocks are not recoded.
const FIXED: [Codec; 2] = [Codec::ReedSolomon { parity: 8 }, Codec::RaptorQ];

#[tokio::test]
async fn several_servers_send_parts_of_a_segment_that_is_not_recoded() {
    for codec in FIXED {
        let servers = three().await;
        let all = bytes(1, 500_000);
        for server in &servers {
            server.code_with(codec);
            server.publish("/a/b", &all, all.len());
        }
        let client = connect_to(&servers.each_ref()).await;
        assert!(read(&client, "/a/b").await.unwrap() == all);
        let stats = client.stats().borrow().clone();
        assert!(
            stats.sources.iter().all(|source| source.counts.blocks > 0),
            "{codec:?} {stats:?}"
        );
        // A repair symbol is useless now and then.
        assert!(
            stats.blocks_useless <= if codec == Codec::RaptorQ { 4 } else { 0 },
            "{codec:?} {stats:?}"
        );
    }
}

/// Wrong parity blocks and repair symbols are detected like wrong rows of a random code, whoever
/// sends them.
#[tokio::test]
async fn a_polluter_among_three_is_named_whatever_the_code() {
    for (codec, is_signed) in FIXED
        .into_iter()
        .flat_map(|codec| [(codec, true), (codec, false)])
    {
        find_polluter(codec, is_signed).await;
    }
}

/// With one server that sends a wrong block, the segment can only be fetched again; if it is wrong
/// twice, that is an error.
#[tokio::test]
async fn a_wrong_parity_block_is_never_handed_out() {
    for codec in FIXED {
        let server = Script::start("127.0.0.1:0").await;
        server.code_with(codec);
        let all = bytes(1, 50_000);
        server.publish("/a/b", &all, all.len());
        server.spoil(Fault::Corrupt, 1);
        let client = connect(&server).await;
        assert!(read(&client, "/a/b").await.unwrap() == all);
        assert!(client.stats().borrow().segments_corrupt > 0);
        server.publish("/a/c", &bytes(2, 50_000), 50_000);
        server.spoil(Fault::Corrupt, u32::MAX);
        assert!(matches!(read(&client, "/a/c").await, Err(Error::Corrupt)));
    }
}

#[tokio::test]
async fn blocks_of_another_code_or_beyond_the_last_end_the_connection_and_the_others_go_on() {
    for (codec, fault) in FIXED
        .into_iter()
        .flat_map(|codec| [(codec, Fault::Foreign), (codec, Fault::Beyond)])
    {
        let servers = three().await;
        let all = bytes(1, 300_000);
        for server in &servers {
            server.code_with(codec);
            server.publish("/a/b", &all, all.len());
        }
        servers[1].spoil(fault, u32::MAX);
        let client = connect_to(&servers.each_ref()).await;
        assert!(
            read(&client, "/a/b").await.unwrap() == all,
            "{codec:?} {fault:?}"
        );
        saw(&servers[1], |seen| {
            seen.closed == Some(CloseCode::Protocol.quic().into())
        })
        .await;
    }
}
