//! Peers that try to keep segments in the server's memory.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use ncserverd::peer::{Client, Error};
use ncserverd::wire::message::{Message, Meta, RequestCode, StopReason};

use crate::BINDING;
use crate::attacker::{Attacker, Window, request};
use crate::ground::{FILE_BYTES, FILES, Ground, PATIENCE, PLAYLIST, bytes, file, read};

/// Room for a third of the test files.
const SMALL: &[&str] = &["ingest.segment_max_bytes=1MiB", "store.bytes=4MiB"];

/// Opens a request for one file after the other, each with this credit; returns their number.
async fn open_requests(attacker: &mut Attacker, credit: u32) -> u16 {
    let mut opened = 0;
    for number in 0..FILES {
        // GETs succeed while the store has room.
        let Ok(meta) = attacker.get(&file(number)).await else {
            continue;
        };
        attacker
            .say(&Message::Request(request(opened, meta.id, 0, credit)))
            .await;
        opened += 1;
    }
    opened
}

/// Reads a file, retrying while the store is full.
async fn read_in_time(client: &Client, number: u8) {
    let end = Instant::now() + PATIENCE;
    let got = loop {
        match read(client, &file(number)).await {
            Err(Error::Refused(refusal))
                if refusal.code == RequestCode::Overload && Instant::now() < end => {}
            got => break got,
        }
    };
    assert!(got.unwrap() == bytes(number, FILE_BYTES), "{number}");
}

/// Waits for the answer to another question, so that earlier messages have been processed.
async fn is_heard(attacker: &mut Attacker) {
    assert!(attacker.get("/live/small.bin").await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_credit_keep_nothing_from_the_others() {
    let ground = Ground::with(SMALL).await;
    // Files that have just been written are prefetched when the server starts, all at once into a
    // store that is too small for all.
    let refused = ground.metric("ncserverd_store_refused_total");
    let mut attackers = [
        Attacker::greeted(&ground).await,
        Attacker::greeted(&ground).await,
    ];
    for attacker in &mut attackers {
        assert_eq!(
            open_requests(attacker, 0).await,
            u16::from(FILES),
            "each finds room"
        );
        is_heard(attacker).await;
    }
    let client = ground.client().await;
    for number in 0..FILES {
        assert!(read(&client, &file(number)).await.unwrap() == bytes(number, FILE_BYTES));
    }
    assert_eq!(ground.metric("ncserverd_store_refused_total"), refused);
    // Two thirds of the files cannot be held at a time: their requests have ended, although none
    // ever gets credit.
    let end = Instant::now() + PATIENCE;
    while ground.metric("ncserverd_session_evicted_requests_total") < f64::from(FILES) {
        assert!(Instant::now() < end, "requests end with their segments");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(attackers[0].is_served().await, "asking is no offence");
}

/// Names a file to the viewer. Returns a second later at the earliest, when the others have made
/// the server evict more than it has room for. On a busy machine that may take longer than a named
/// segment is protected (3 s): then the viewer asks again.
async fn told_before_the_others(viewer: &mut Attacker, ground: &Ground) -> Meta {
    let evicted = || ground.metric("ncserverd_store_evictions_total");
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let asked = Instant::now();
        let meta = viewer.get(&file(0)).await.unwrap();
        let before = evicted();
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let have_others_asked = evicted() - before > 8.0;
            let waited = asked.elapsed();
            if waited > Duration::from_secs(2) {
                break;
            }
            if waited >= Duration::from_secs(1) && have_others_asked {
                return meta;
            }
        }
    }
    panic!("the others ask for more than there is room for");
}

/// A viewer on a slow path requests blocks long after a segment was named to it, while others at
/// another address only send GETs.
#[tokio::test(flavor = "multi_thread")]
async fn questions_alone_evict_nothing_that_others_were_just_told_of() {
    let ground = Ground::with(SMALL).await;
    let mut crowd = Vec::new();
    for _ in 0..2 {
        let mut attacker = Attacker::greeted_from(Ipv4Addr::new(127, 0, 0, 2), &ground).await;
        crowd.push(tokio::spawn(async move {
            loop {
                for number in 1..FILES {
                    let _ = attacker.get(&file(number)).await;
                }
            }
        }));
    }
    let mut viewer = Attacker::greeted(&ground).await;
    let connection = viewer.connection.clone();
    for alias in 0..3 {
        let meta = told_before_the_others(&mut viewer, &ground).await;
        viewer
            .say(&Message::Request(request(alias, meta.id, 0, 16)))
            .await;
        let is_served = tokio::time::timeout(PATIENCE, async {
            tokio::select! {
                stream = connection.accept_uni() => stream.map(drop).map_err(Err),
                message = viewer.hear() => Err(message),
            }
        });
        assert_eq!(is_served.await.unwrap(), Ok(()));
        // The next request is for the same generation.
        viewer
            .say(&Message::Stop {
                alias,
                reason: StopReason::Complete,
            })
            .await;
    }
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Playlists and hashes are sent on their own streams, which the peer does not read.
#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_not_read_are_given_up() {
    let ground = Ground::with(&["session.stall_timeout=2s"]).await;
    let window = Window {
        stream: 1 << 10,
        streams: 512,
    };
    let mut attacker = Attacker::greeted_with(ground.address, &ground.trust, window).await;
    for _ in 0..12 {
        assert!(attacker.get(PLAYLIST).await.is_ok());
    }
    let end = Instant::now() + PATIENCE;
    while ground.metric("ncserverd_session_unread_total") < 12.0 {
        assert!(Instant::now() < end, "they are given up");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(attacker.is_served().await, "and the connection stands");
}

/// They have credit, and their sessions are not closed for a long time; still, segments that they
/// do not read are evicted.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_not_read_give_way() {
    let ground = Ground::with(&[SMALL, &["session.stall_timeout=10m"]].concat()).await;
    let window = Window {
        stream: 1 << 10,
        streams: 512,
    };
    let mut attackers = Vec::new();
    for _ in 0..2 {
        let mut attacker = Attacker::greeted_with(ground.address, &ground.trust, window).await;
        assert!(open_requests(&mut attacker, 2048).await >= 4);
        is_heard(&mut attacker).await;
        attackers.push(attacker);
    }
    let client = ground.client().await;
    for number in 0..FILES {
        read_in_time(&client, number).await;
    }
    let end = Instant::now() + PATIENCE;
    while ground.metric("ncserverd_session_evicted_requests_total") == 0.0 {
        assert!(Instant::now() < end, "the requests are told");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for attacker in &mut attackers {
        assert!(attacker.connection.close_reason().is_none());
    }
}

/// As by a client that reads the streams one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_not_read_holds_up_no_other() {
    let ground = Ground::with(&["session.stall_timeout=10m"]).await;
    let window = Window {
        stream: 1 << 10,
        streams: 512,
    };
    let mut attacker = Attacker::greeted_with(ground.address, &ground.trust, window).await;
    for number in 0..3 {
        let meta = attacker.get(&file(number)).await.unwrap();
        attacker
            .say(&Message::Request(request(number.into(), meta.id, 0, 4)))
            .await;
    }
    for _ in 0..3 {
        let stream = tokio::time::timeout(PATIENCE, attacker.connection.accept_uni()).await;
        // Kept open and unread.
        std::mem::forget(stream.expect("the other streams begin, too").unwrap());
    }
}

/// Each request keeps its stream open for more credit, and a client allows only a few streams.
#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_streams_that_are_allowed_hold_up_no_other() {
    let ground = Ground::new().await;
    let window = Window {
        stream: 1 << 20,
        streams: 1,
    };
    let mut attacker = Attacker::greeted_with(ground.address, &ground.trust, window).await;
    for number in 0..2 {
        let meta = attacker.get(&file(number)).await.unwrap();
        attacker
            .say(&Message::Request(request(number.into(), meta.id, 0, 1)))
            .await;
    }
    let accepted = tokio::time::timeout(PATIENCE, attacker.connection.accept_uni()).await;
    let mut stream = accepted.expect("a stream of the first request").unwrap();
    let (mut head, mut read) = (vec![0; BINDING.stream_head().len() + 3], 0);
    stream.read_exact(&mut head).await.unwrap();
    let alias = u16::from_be_bytes(*head.last_chunk().unwrap());
    // The other request waits for a stream. This one continues.
    attacker.say(&Message::Credit { alias, blocks: 8 }).await;
    while read < 9 * 4096 {
        let chunk = tokio::time::timeout(PATIENCE, stream.read_chunk(usize::MAX, true))
            .await
            .expect("its blocks come");
        read += chunk.unwrap().expect("it goes on").bytes.len();
    }
}
