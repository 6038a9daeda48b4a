//! Attacks on a server by its clients.

use std::time::{Duration, Instant};

use bytes::Bytes;
use bytesize::ByteSize;
use ncserverd::object::SegmentId;
use ncserverd::wire::CloseCode;
use ncserverd::wire::message::{
    Credential, Delivery, Message, RequestCode, StopReason, Subscribe, Token,
};

use crate::attacker::{Attacker, Gag, HUGE, OPEN, Window, dial, frame, get, request, varint};
use crate::ground::{FILE_BYTES, FILES, Ground, PACE, PLAYLIST, SMALL, bytes, file};
use nctest::mint::{self, token};

/// The maximum growth of a server by peers that it closes at once. Its allocator takes memory in
/// pages of 64 KiB, for each thread and size.
const LITTLE: ByteSize = ByteSize::mib(16);
/// The maximum growth by peers that stay, next to an honest viewer: the ring may fill, and honest
/// use came before.
const SOME: ByteSize = ByteSize::mib(24);

/// The same while segments constantly come and go, several at once.
const CHURN: ByteSize = ByteSize::mib(64);

const ATTACK: Duration = Duration::from_millis(1500);

const HELLO: u64 = 0x00;
const GET: u64 = 0x24;
const REQUEST: u64 = 0x10;
const CREDIT: u64 = 0x12;
const RANK: u64 = 0x17;

/// The segment at a path, after a GET for it.
async fn segment(attacker: &mut Attacker, path: &str) -> SegmentId {
    let meta = attacker.get(path).await.unwrap();
    assert!(matches!(meta.delivery, Delivery::Coded(_)), "{meta:?}");
    meta.id
}

/// The body of a REQUEST up to the generation.
fn request_head(segment: SegmentId) -> Vec<u8> {
    [&[0, 1][..], segment.as_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_malformed_or_out_of_place_ends_the_connection_and_no_other() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let id = SegmentId::of(b"a segment");
    let path = |path: &[u8]| [&varint(1)[..], &varint(path.len() as u64), path, &[0, 0]].concat();
    let tail = |tail: &[u8]| [&request_head(id)[..], tail].concat();
    let greeted: Vec<(&str, Vec<u8>)> = vec![
        ("a type that may not be skipped", frame(0x28, b"")),
        (
            "a number in a longer form than it needs",
            vec![0x40, 0x24, 0],
        ),
        (
            "a length in a longer form than it needs",
            vec![0x24, 0x40, 1, 0],
        ),
        ("a GET that is cut short", frame(GET, &[1])),
        ("a path that is no path", frame(GET, &path(b"live/0.ts"))),
        (
            "a path that is not ASCII",
            frame(GET, &path("/live/\u{e9}".as_bytes())),
        ),
        ("a path that is empty", frame(GET, &path(b""))),
        (
            "a path that is longer than its frame",
            frame(GET, &[1, 0x3f, b'/']),
        ),
        (
            "a REQUEST that is cut short",
            frame(REQUEST, &request_head(id)),
        ),
        (
            "a REQUEST that takes no blocks",
            frame(REQUEST, &tail(&[0, 0, 0, 0, 0])),
        ),
        (
            "a range of no blocks",
            frame(REQUEST, &tail(&[0, 0, 0, 3, 1, 0, 0])),
        ),
        (
            "ranges that go back",
            frame(REQUEST, &tail(&[0, 0, 0, 3, 2, 5, 1, 4, 1])),
        ),
        (
            "65 ranges",
            frame(
                REQUEST,
                &tail(&[&[0, 0, 0, 3, 0x40, 65][..], &[0; 130]].concat()),
            ),
        ),
        ("a CREDIT of nothing", frame(CREDIT, &[0, 1, 0])),
        ("an AUTH of another scheme", frame(0x02, &[3, 1, b'x'])),
        ("an AUTH with a blank", frame(0x02, &[1, 1, b' '])),
        (
            "a stream whose name is a path",
            frame(0x06, &[1, 3, b'a', b'/', b'b']),
        ),
        ("a second HELLO", frame(HELLO, &[0])),
        ("a META", frame(0x0e, &[0; 60])),
        ("a GRANT", frame(0x04, &[0])),
        ("a REJECT", frame(0x16, &[0, 1, 8, 0])),
        ("a SUBSCRIBE_OK", frame(0x08, &[0])),
    ];
    for (what, bytes) in &greeted {
        let mut attacker = Attacker::greeted(&ground).await;
        attacker.say_bytes(bytes).await;
        assert_eq!(attacker.close_code().await, CloseCode::Protocol, "{what}");
    }
    let first: Vec<(&str, Vec<u8>, CloseCode)> = vec![
        (
            "a GET before HELLO",
            frame(GET, &path(b"/live/0.ts")),
            CloseCode::Protocol,
        ),
        (
            "a HELLO with a parameter twice",
            frame(HELLO, &[2, 6, 1, 1, 6, 1, 1]),
            CloseCode::Protocol,
        ),
        (
            "a HELLO of 65 parameters",
            frame(HELLO, &[0x40, 65]),
            CloseCode::Protocol,
        ),
        (
            "a HELLO that is cut short",
            frame(HELLO, &[1, 15, 60, b'x']),
            CloseCode::Protocol,
        ),
        (
            "a HELLO of a later version",
            frame(HELLO, &[1, 1, 2, 1, 9]),
            CloseCode::Version,
        ),
        (
            "a HELLO of another codec",
            frame(HELLO, &[1, 3, 1, 9]),
            CloseCode::Unsupported,
        ),
        (
            "a HELLO of another field",
            frame(HELLO, &[1, 4, 1, 9]),
            CloseCode::Unsupported,
        ),
        (
            "a HELLO of another generator",
            frame(HELLO, &[1, 5, 1, 9]),
            CloseCode::Unsupported,
        ),
    ];
    for (what, bytes, code) in &first {
        let mut attacker = Attacker::silent(&ground).await;
        attacker.say_bytes(bytes).await;
        assert_eq!(attacker.close_code().await, *code, "{what}");
    }
    let count = u32::try_from(greeted.len() + first.len()).unwrap();
    assert_eq!(
        ground.metric("ncserverd_session_violations_total"),
        f64::from(count)
    );
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_newer_version_may_add_is_skipped() {
    let ground = Ground::new().await;
    let small = [
        &varint(7)[..],
        &varint(SMALL.len() as u64),
        SMALL.as_bytes(),
        &[0, 0],
    ]
    .concat();
    for (what, bytes) in [
        (
            "a field behind a GET's",
            frame(GET, &[&small[..], b"newer"].concat()),
        ),
        (
            "a frame of an unknown odd type",
            [frame(0x5f, b"newer"), frame(GET, &small)].concat(),
        ),
        (
            "a CREDIT, a STOP and a RANK of no request, with more fields",
            {
                let of_no_request = [
                    frame(CREDIT, &[0, 9, 1, 1]),
                    frame(0x14, &[0, 9, 0, 1]),
                    frame(RANK, &[0, 9, 0, 0, 0, 1]),
                ]
                .concat();
                [of_no_request, frame(GET, &small)].concat()
            },
        ),
    ] {
        let mut attacker = Attacker::greeted(&ground).await;
        attacker.say_bytes(&bytes).await;
        let answer = attacker.hear().await;
        assert!(
            matches!(&answer, Ok(Message::Meta(meta)) if meta.request == 7),
            "{what}: {answer:?}"
        );
    }
    let mut attacker = Attacker::silent(&ground).await;
    attacker
        .say_bytes(&frame(
            HELLO,
            &[&[2, 0x40, 0x5f, 1, 9, 1, 2, 0, 3][..], b"newer"].concat(),
        ))
        .await;
    assert!(
        attacker.is_served().await,
        "a HELLO with an unknown parameter, a later version beside ours, and more fields"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_refuses_the_control_stream_is_closed() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let mut attacker = Attacker::greeted(&ground).await;
    attacker.refuse_answers();
    attacker.say(&get(7, SMALL)).await;
    assert_eq!(
        attacker.close_code().await,
        CloseCode::Protocol,
        "STOP_SENDING"
    );
    let mut attacker = Attacker::greeted(&ground).await;
    attacker.reset();
    assert_eq!(
        attacker.close_code().await,
        CloseCode::Protocol,
        "RESET_STREAM"
    );
    viewer.went_on().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_is_too_long_is_not_waited_for() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    // Known types, one that may be skipped, one that may not.
    for kind in [HELLO, GET, REQUEST, RANK, 0x21, 0x28] {
        for length in [65_536, 1 << 30, HUGE] {
            let mut attacker = Attacker::greeted(&ground).await;
            attacker
                .say_bytes(&[varint(kind), varint(length)].concat())
                .await;
            assert_eq!(
                attacker.close_code().await,
                CloseCode::Protocol,
                "type {kind:#x}, length {length}"
            );
        }
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_numbers_take_no_memory() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let id = segment(&mut Attacker::greeted(&ground).await, &file(0)).await;
    let huge = varint(HUGE);
    let tail = |parts: &[&[u8]]| [&request_head(id)[..], &parts.concat()].concat();
    let ended: Vec<(&str, Vec<u8>, CloseCode)> = vec![
        (
            "a generation",
            frame(REQUEST, &tail(&[&huge, &[0, 0, 1, 0]])),
            CloseCode::Protocol,
        ),
        (
            "the last generation there could be",
            frame(REQUEST, &tail(&[&varint(u32::MAX.into()), &[0, 0, 1, 0]])),
            CloseCode::Protocol,
        ),
        (
            "a credit",
            frame(
                REQUEST,
                &tail(&[&[0, 0], &varint(u32::MAX.into()), &[1, 0]]),
            ),
            CloseCode::Limit,
        ),
        (
            "a credit that fits no field",
            frame(REQUEST, &tail(&[&[0, 0], &huge, &[1, 0]])),
            CloseCode::Protocol,
        ),
        (
            "a count of ranges",
            frame(REQUEST, &tail(&[&[0, 0, 0, 2], &huge])),
            CloseCode::Protocol,
        ),
        (
            "the end of a range",
            frame(REQUEST, &tail(&[&[0, 0, 0, 2, 1, 1], &huge])),
            CloseCode::Protocol,
        ),
        (
            "a range past 1024",
            frame(
                REQUEST,
                &tail(&[&[0, 0, 0, 2, 1], &varint(1000), &varint(25)]),
            ),
            CloseCode::Protocol,
        ),
        (
            "a range past the generation",
            frame(REQUEST, &tail(&[&[0, 0, 1, 2, 1], &varint(1000), &[24]])),
            CloseCode::Protocol,
        ),
        (
            "a rank",
            frame(RANK, &[&[0, 1][..], &huge, &[0, 0]].concat()),
            CloseCode::Protocol,
        ),
        (
            "the length of a path",
            frame(GET, &[&[1][..], &huge].concat()),
            CloseCode::Protocol,
        ),
        (
            "the length of a token",
            frame(0x02, &[&[1][..], &huge].concat()),
            CloseCode::Protocol,
        ),
    ];
    for (what, bytes, code) in ended {
        let mut attacker = Attacker::greeted(&ground).await;
        attacker.say_bytes(&bytes).await;
        assert_eq!(attacker.close_code().await, code, "{what}");
    }
    for (what, bytes) in [
        ("a count of parameters", frame(HELLO, &huge)),
        (
            "the length of a parameter",
            frame(HELLO, &[&[1, 7][..], &huge].concat()),
        ),
        ("n_max", frame(HELLO, &[&[1, 6, 8][..], &huge].concat())),
        (
            "block_bytes_max",
            frame(HELLO, &[&[1, 7, 8][..], &huge].concat()),
        ),
    ] {
        let mut attacker = Attacker::silent(&ground).await;
        attacker.say_bytes(&bytes).await;
        assert_eq!(attacker.close_code().await, CloseCode::Protocol, "{what}");
    }
    // These are valid, and have no effect.
    let mut attacker = Attacker::greeted(&ground).await;
    let far = [&huge[..], &varint(10), b"/live/0.ts", &huge, &huge].concat();
    attacker.say_bytes(&frame(GET, &far)).await;
    let answer = attacker.hear().await;
    assert!(
        matches!(
            &answer,
            Ok(Message::Error(error))
                if error.request == HUGE && error.code == RequestCode::Unknown
        ),
        "{answer:?}"
    );
    attacker
        .say_bytes(&frame(REQUEST, &tail(&[&[0], &huge, &[0, 1, 0]])))
        .await;
    attacker
        .say_bytes(&frame(
            RANK,
            &[
                &[0, 1][..],
                &varint(u32::MAX.into()),
                &varint(u32::MAX.into()),
                &[0],
            ]
            .concat(),
        ))
        .await;
    attacker.say_bytes(&frame(0x22, &huge)).await;
    assert!(attacker.is_served().await);
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_peer_may_have_open_ends_its_connection() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let gets: Vec<u8> = (0..200)
        .flat_map(|number| get(number, &file(0)).to_frame())
        .collect();
    let ask =
        |alias: u16| Message::Request(request(alias, SegmentId::of(b"nowhere"), alias.into(), 1));
    let requests: Vec<u8> = (0..200).flat_map(|alias| ask(alias).to_frame()).collect();
    for (what, bytes) in [("GETs", gets), ("requests", requests)] {
        let mut attacker = Attacker::greeted(&ground).await;
        attacker.say_bytes(&bytes).await;
        assert_eq!(attacker.close_code().await, CloseCode::Limit, "{what}");
    }
    // HELLO does not limit subscriptions: those beyond a number are refused.
    let mut attacker = Attacker::greeted(&ground).await;
    for request in 0..1000 {
        attacker
            .say(&Message::Subscribe(Subscribe {
                request,
                stream: "live".into(),
            }))
            .await;
    }
    for _ in 0..1000 {
        match attacker.hear().await.unwrap() {
            Message::SubscribeOk { request } => assert!(request < 8),
            Message::Error(error) => assert!(
                error.request >= 8 && error.code == RequestCode::Limit,
                "{error:?}"
            ),
            other => panic!("{other:?}"),
        }
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn credit_beyond_what_a_request_may_have_ends_the_connection() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    // Its one block is sent at once, and credit is compared with what has not been sent.
    for credits in [vec![u32::MAX], vec![1 << 31, 1 << 31], vec![2047; 40]] {
        let mut attacker = Attacker::greeted_with(
            ground.address,
            &ground.trust,
            Window {
                stream: 1 << 10,
                streams: 512,
            },
        )
        .await;
        let id = SegmentId::of(&bytes(0, FILE_BYTES));
        attacker.say(&Message::Request(request(1, id, 0, 1))).await;
        for blocks in credits {
            attacker.say(&Message::Credit { alias: 1, blocks }).await;
        }
        assert_eq!(attacker.close_code().await, CloseCode::Limit);
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(SOME);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alias_twice_ends_the_connection_and_a_generation_twice_is_rejected() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let mut attacker = Attacker::greeted(&ground).await;
    let id = segment(&mut attacker, &file(0)).await;
    attacker.say(&Message::Request(request(1, id, 0, 0))).await;
    attacker.say(&Message::Request(request(2, id, 0, 0))).await;
    assert_eq!(
        attacker.hear().await,
        Ok(Message::Reject {
            alias: 2,
            code: RequestCode::Limit,
            retry_after_ms: 0
        })
    );
    attacker.say(&Message::Request(request(1, id, 0, 0))).await;
    assert_eq!(attacker.close_code().await, CloseCode::Protocol);
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

/// Frames that a peer may send in any number: beyond a rate they are left unread, and QUIC slows
/// the sender down.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_control_frames_is_held_back() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let nothing = |alias: u16| {
        [
            Message::Rank {
                alias,
                rank: 1,
                useless: u32::MAX,
                lost: u32::MAX,
            }
            .to_frame(),
            Message::Stop {
                alias,
                reason: StopReason::Complete,
            }
            .to_frame(),
            Message::Credit {
                alias,
                blocks: u32::MAX,
            }
            .to_frame(),
            Message::Unsubscribe {
                request: alias.into(),
            }
            .to_frame(),
            Message::GoAway { drain_ms: 0 }.to_frame(),
        ]
        .concat()
    };
    let floods = [
        (0..200).flat_map(nothing).collect::<Vec<u8>>(),
        frame(0x21, &[7; 60_000]),
        frame(0x21, b"").repeat(1000),
    ];
    let mut attackers = Vec::new();
    for flood in floods {
        let mut attacker = Attacker::greeted(&ground).await;
        attackers.push(tokio::spawn(async move {
            let begun = Instant::now();
            let taken = attacker.repeat(&flood, ATTACK).await;
            (attacker, taken, begun.elapsed())
        }));
    }
    for attacker in attackers {
        let (attacker, taken, time) = attacker.await.unwrap();
        // One second's worth at once, then 1 MiB per second, and QUIC's buffers on the way.
        let most = (1.5 + time.as_secs_f64()) * f64::from(1 << 20);
        assert!(
            (taken as f64) < most,
            "{taken} bytes were taken in {time:?}"
        );
        assert!(taken > 1 << 20, "{taken} bytes are no flood");
        assert_eq!(attacker.connection.close_reason(), None);
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

/// Sends GETs until no more answers come, reading the control stream but no objects.
#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_not_taken_do_not_pile_up() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    for window in [
        Window {
            stream: 1 << 20,
            streams: 0,
        },
        Window {
            stream: 1 << 10,
            streams: 512,
        },
    ] {
        let mut attacker = Attacker::greeted_with(ground.address, &ground.trust, window).await;
        let mut answers = 0;
        for number in 0..20_000 {
            attacker.say(&get(number, PLAYLIST)).await;
            let answer = tokio::time::timeout(Duration::from_secs(1), attacker.hear()).await;
            let Ok(answer) = answer else { break };
            assert!(matches!(answer, Ok(Message::Meta(_))), "{answer:?}");
            answers += 1;
        }
        assert!(
            (1..200).contains(&answers),
            "{answers} objects wait for a peer that takes none"
        );
        assert_eq!(attacker.connection.close_reason(), None);
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

/// Requests objects that fit in answers, a few at a time, and reads no answers.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_read_do_not_pile_up() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let mut attackers = Vec::new();
    for _ in 0..8 {
        let window = Window {
            stream: 20_000,
            streams: 0,
        };
        let mut attacker = Attacker::greeted_with(ground.address, &ground.trust, window).await;
        assert!(matches!(
            attacker.get(SMALL).await.unwrap().delivery,
            Delivery::Inline(_)
        ));
        attackers.push(tokio::spawn(async move {
            let end = Instant::now() + ATTACK;
            let mut asked = 0;
            while Instant::now() < end && attacker.connection.close_reason().is_none() {
                let gets: Vec<u8> = (0..8)
                    .flat_map(|number| get(asked + number, SMALL).to_frame())
                    .collect();
                if tokio::time::timeout(ATTACK, attacker.say_bytes(&gets))
                    .await
                    .is_err()
                {
                    break;
                }
                asked += 8;
                // Far fewer than a peer may leave unanswered come in the time that a busy host
                // takes for an answer.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            attacker
        }));
    }
    let mut held = Vec::new();
    for attacker in attackers {
        held.push(attacker.await.unwrap());
    }
    let ends: Vec<_> = held
        .iter()
        .filter_map(|attacker| attacker.connection.close_reason())
        .collect();
    assert!(ends.is_empty(), "{ends:?}");
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_that_come_and_go_leave_nothing() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let pair = |request: u64| {
        let subscribe = Message::Subscribe(Subscribe {
            request,
            stream: "live".into(),
        });
        [
            subscribe.to_frame(),
            Message::Unsubscribe { request }.to_frame(),
        ]
        .concat()
    };
    let mut attackers = Vec::new();
    for _ in 0..4 {
        let mut attacker = Attacker::greeted(&ground).await;
        attackers.push(tokio::spawn(async move {
            attacker
                .repeat(&(0..1000).flat_map(pair).collect::<Vec<u8>>(), ATTACK)
                .await;
            attacker
        }));
    }
    for attacker in attackers {
        assert_eq!(attacker.await.unwrap().connection.close_reason(), None);
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

/// Sixteen peers request everything and read nothing; without fair sharing, three of them would
/// fill the ring. The viewer need not wait until they are closed.
#[tokio::test(flavor = "multi_thread")]
async fn receivers_that_do_not_read_keep_nothing_from_the_others() {
    let ground = Ground::with(&["session.stall_timeout=7s"]).await;
    let viewer = ground.viewer().await;
    let mut attackers = Vec::new();
    for number in 0..16_u8 {
        let window = Window {
            stream: 1 << 10,
            streams: 512,
        };
        let mut attacker = Attacker::greeted_with(ground.address, &ground.trust, window).await;
        for alias in 0..FILES {
            let id = segment(&mut attacker, &file((number + alias) % FILES)).await;
            attacker
                .say(&Message::Request(request(alias.into(), id, 0, 2048)))
                .await;
        }
        attackers.push((attacker, Instant::now()));
    }
    for (attacker, begun) in &attackers {
        let (code, time) = attacker.close_code_within(*begun).await;
        assert_eq!(code, CloseCode::Timeout);
        assert!(time > Duration::from_secs(6), "{time:?}");
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(SOME);
    assert_eq!(ground.metric("ncserverd_session_violations_total"), 16.0);
}

/// Its path has no room for anything more, not even for the server's last message.
#[tokio::test(flavor = "multi_thread")]
async fn who_acknowledges_nothing_hears_that_it_is_closed() {
    let ground = Ground::with(&["session.stall_timeout=2s"]).await;
    let gag = Gag::before(ground.address).await;
    let mut attacker = Attacker::greeted_with(gag.address, &ground.trust, OPEN).await;
    let id = segment(&mut attacker, &file(0)).await;
    gag.after(20_000);
    attacker
        .say(&Message::Request(request(0, id, 0, 2048)))
        .await;
    // It reads all data, so that only the missing acknowledgements delay the server.
    let connection = attacker.connection.clone();
    tokio::spawn(async move {
        while let Ok(mut stream) = connection.accept_uni().await {
            tokio::spawn(async move {
                while let Ok(Some(_)) = stream.read_chunk(65_536, true).await {}
            });
        }
    });
    assert_eq!(attacker.close_code().await, CloseCode::Timeout);
    assert!(gag.is_shut(), "the server heard it to the end");
}

/// Peers request everything of a stream with small blocks and read nothing, so each part of the
/// ring keeps a block of theirs. A viewer of a stream with larger blocks comes later, and need not
/// wait until they are closed.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_one_size_starve_no_stream_of_another() {
    let ground =
        Ground::with(&["stream.small.block_bytes=1088", "session.stall_timeout=50s"]).await;
    let mut attackers = Vec::new();
    for number in 0..180_u8 {
        let window = Window {
            stream: 1 << 10,
            streams: 512,
        };
        let mut attacker = Attacker::greeted_with(ground.address, &ground.trust, window).await;
        for alias in 0..4 {
            let path = file((number + alias) % FILES).replace("/live/", "/small/");
            let id = segment(&mut attacker, &path).await;
            attacker
                .say(&Message::Request(request(alias.into(), id, 0, 2048)))
                .await;
        }
        attackers.push(attacker);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (viewer, begun) = (ground.viewer().await, Instant::now());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let seen = viewer.went_on().await;
    let megabits = f64::from(seen.files) * FILE_BYTES as f64 * 8e-6 / begun.elapsed().as_secs_f64();
    println!(
        "the viewer has {megabits:.1} Mbit/s of {:.1}",
        FILE_BYTES as f64 * 8e-6 / PACE.as_secs_f64()
    );
    assert!(
        attackers
            .iter()
            .all(|attacker| attacker.connection.close_reason().is_none()),
        "nobody was closed for its sake"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_conversation_ends_it() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    for bytes in [&[][..], &[0x24], &frame(GET, &[0; 100])[..50]] {
        let mut attacker = Attacker::greeted(&ground).await;
        attacker.say_bytes(bytes).await;
        attacker.fall_silent();
        assert_eq!(attacker.close_code().await, CloseCode::Protocol);
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

/// Clients without a valid token where one is required, and what they can learn meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn who_brings_no_token_is_closed_and_learns_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (keys, good) = (directory.path().join("keys.json"), token(&["/live/*"], 600));
    std::fs::write(&keys, mint::keys().to_string()).unwrap();
    let keys = format!("admission.keys={}", keys.display());
    let ground = Ground::admitting(&[&keys, "admission.grace=1s"], Some(good)).await;
    let viewer = ground.viewer().await;
    let mut attackers = [
        Attacker::greeted(&ground).await,
        Attacker::greeted(&ground).await,
    ];
    let begun = Instant::now();
    for path in [file(0), file(200), "/nowhere/x".to_owned()] {
        assert_eq!(
            attackers[0].get(&path).await.unwrap_err().code,
            RequestCode::Unknown
        );
    }
    attackers[1]
        .say(&Message::Auth(Credential::Token(Token("x.y.z".into()))))
        .await;
    for attacker in &attackers {
        let (code, time) = attacker.close_code_within(begun).await;
        assert_eq!(code, CloseCode::Auth);
        assert!(time < Duration::from_secs(5), "{time:?}");
    }
    assert_eq!(ground.metric("ncserverd_session_unadmitted_total"), 2.0);
    // A client that tries many tokens.
    let mut guesser = Attacker::greeted(&ground).await;
    for _ in 0..20 {
        guesser
            .say(&Message::Auth(Credential::Token(Token("x.y.z".into()))))
            .await;
    }
    assert_eq!(guesser.close_code().await, CloseCode::Limit);
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

/// Forbidden and missing objects get the same bytes after the same time.
#[tokio::test(flavor = "multi_thread")]
async fn streams_and_segments_cannot_be_found_by_asking() {
    let directory = tempfile::tempdir().unwrap();
    let (keys, good) = (directory.path().join("keys.json"), token(&["/live/*"], 600));
    std::fs::write(&keys, mint::keys().to_string()).unwrap();
    let (keys, secret) = (
        format!("admission.keys={}", keys.display()),
        directory.path().join("secret"),
    );
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("a.ts"), bytes(77, 100_000)).unwrap();
    let secret = format!("stream.secret.directory={}", secret.display());
    let ground = Ground::admitting(&[&keys, &secret, "admission.grace=60s"], Some(good)).await;
    // The secret is in the store, because a client with the right to it has requested it.
    let mut owner = Attacker::greeted(&ground).await;
    owner
        .say(&Message::Auth(Credential::Token(Token(token(
            &["/*"],
            600,
        )))))
        .await;
    let id = segment(&mut owner, "/secret/a.ts").await;
    let viewer = ground.viewer().await;
    for token in [None, Some(token(&["/live/*"], 600))] {
        let mut attacker = Attacker::greeted(&ground).await;
        match token {
            Some(token) => {
                attacker
                    .say(&Message::Auth(Credential::Token(Token(token))))
                    .await;
                assert!(matches!(
                    attacker.hear().await,
                    Ok(Message::Grant { lasts_ms: 1.. })
                ));
            }
            // A client without a token is told once that one is required.
            None => {
                attacker.say(&get(1, "/live/none.ts")).await;
                assert!(matches!(
                    attacker.hear().await,
                    Ok(Message::Grant { lasts_ms: 0 })
                ));
                assert!(matches!(attacker.hear().await, Ok(Message::Error(_))));
            }
        }
        let paths = ["/secret/a.ts", "/secret/none.ts", "/nowhere/a.ts"].map(|path| get(1, path));
        let streams = ["secret", "nowhere"].map(|stream| {
            Message::Subscribe(Subscribe {
                request: 1,
                stream: stream.into(),
            })
        });
        let segments =
            [id, SegmentId::of(b"nowhere")].map(|id| Message::Request(request(1, id, 0, 1)));
        for questions in [&paths[..], &streams, &segments] {
            let mut times = vec![Vec::new(); questions.len()];
            let mut said = Vec::new();
            // In turn, so that other activity of this machine affects all equally.
            for _ in 0..200 {
                for (question, times) in questions.iter().zip(&mut times) {
                    let begun = Instant::now();
                    attacker.say(question).await;
                    said.push(attacker.hear().await.unwrap().to_frame());
                    times.push(begun.elapsed());
                }
            }
            let other = said.iter().find(|answer| **answer != said[0]);
            assert!(
                other.is_none(),
                "{questions:?}: {:?} and {other:?}",
                said[0]
            );
            let medians = times.iter_mut().map(|times| {
                times.sort_unstable();
                times[times.len() / 2]
            });
            let medians: Vec<Duration> = medians.collect();
            let (least, most) = (medians.iter().min().unwrap(), medians.iter().max().unwrap());
            // Looking into a store or at a file takes about as long as the round trip, so it would
            // show here.
            assert!(
                *most < 2 * *least + Duration::from_micros(200),
                "{questions:?} took {medians:?}"
            );
        }
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn datagrams_to_a_server_are_dropped() {
    let ground = Ground::new().await;
    let viewer = ground.viewer().await;
    let mut attacker = Attacker::greeted(&ground).await;
    for seed in 0..20_000_u32 {
        let block = [&[0x41, 0, 0, 1, 0, 0][..], &seed.to_be_bytes(), &[7; 1088]].concat();
        attacker
            .connection
            .send_datagram_wait(Bytes::from(block))
            .await
            .unwrap();
    }
    assert!(attacker.is_served().await);
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_gets_as_many_connections_as_it_may_have() {
    let ground = Ground::with(&["admission.address_connections_max=8"]).await;
    let viewer = ground.viewer().await;
    let mut held = Vec::new();
    let mut refused = 0_u32;
    for _ in 0..200 {
        match dial(ground.address, &ground.trust, OPEN).await {
            Ok(connection) => held.push(connection),
            Err(error) => {
                let code = quinn::TransportErrorCode::CONNECTION_REFUSED;
                let is_refused = matches!(
                    &error,
                    quinn::ConnectionError::ConnectionClosed(close) if close.error_code == code
                );
                assert!(is_refused, "{error}");
                refused += 1;
            }
        }
    }
    // One place is the viewer's.
    assert_eq!((held.len(), refused), (7, 193));
    assert_eq!(
        ground.metric("ncserverd_endpoint_handshakes_refused_total"),
        193.0
    );
    viewer.went_on().await;
    ground.assert_grown_less_than(LITTLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_of_a_server_that_goes_away_is_refused() {
    let ground = Ground::with(&["server.drain_timeout=5s"]).await;
    let mut attacker = Attacker::greeted(&ground).await;
    let id = segment(&mut attacker, &file(0)).await;
    // The server waits for an open request without credit, for longer than what follows takes.
    attacker.say(&Message::Request(request(1, id, 0, 0))).await;
    assert!(attacker.is_served().await);
    ground.program.signal("TERM");
    assert!(matches!(attacker.hear().await, Ok(Message::GoAway { .. })));
    for number in 0..1000_u16 {
        attacker.say(&get(number.into(), &file(0))).await;
        attacker
            .say(&Message::Request(request(2, id, 1, 2048)))
            .await;
        attacker
            .say(&Message::Subscribe(Subscribe {
                request: number.into(),
                stream: "live".into(),
            }))
            .await;
        for _ in 0..3 {
            let code = match attacker.hear().await.unwrap() {
                Message::Error(error) => error.code,
                Message::Reject { alias: 2, code, .. } => code,
                other => panic!("{other:?}"),
            };
            assert_eq!(code, RequestCode::GoingAway);
        }
    }
    ground.assert_grown_less_than(LITTLE);
    assert_eq!(attacker.close_code().await, CloseCode::GoingAway);
}

/// GETs for more segments than the store holds, without any REQUEST: they keep nothing in memory.
#[tokio::test(flavor = "multi_thread")]
async fn who_only_asks_for_names_does_not_fill_the_store() {
    let ground = Ground::with(&["ingest.segment_max_bytes=1MiB", "store.bytes=8MiB"]).await;
    let viewer = ground.viewer().await;
    let mut attacker = Attacker::greeted(&ground).await;
    let end = Instant::now() + ATTACK;
    while Instant::now() < end {
        for number in 0..FILES {
            let meta = attacker.get(&file(number)).await.unwrap();
            assert!(matches!(meta.delivery, Delivery::Coded(_)));
        }
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(CHURN);
}

/// Many small requests for segments that are not yet on the device, cancelled at once: encoding is
/// shared fairly.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_given_up_at_once_starve_nobody() {
    let ground = Ground::with(&["ingest.segment_max_bytes=1MiB", "store.bytes=8MiB"]).await;
    let viewer = ground.viewer().await;
    let mut attackers = Vec::new();
    for number in 0..4 {
        let mut attacker = Attacker::greeted(&ground).await;
        attackers.push(tokio::spawn(async move {
            let end = Instant::now() + ATTACK;
            for (alias, file_number) in (0..=u16::MAX).zip((0..FILES).cycle().skip(6 * number)) {
                if Instant::now() > end {
                    break;
                }
                let id = segment(&mut attacker, &file(file_number)).await;
                attacker
                    .say(&Message::Request(request(alias, id, 0, 64)))
                    .await;
                tokio::time::sleep(Duration::from_millis(2)).await;
                attacker
                    .say(&Message::Stop {
                        alias,
                        reason: StopReason::Cancelled,
                    })
                    .await;
            }
            attacker
        }));
    }
    for attacker in attackers {
        assert!(attacker.await.unwrap().is_served().await);
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(CHURN);
}

/// Long paths of missing objects, each only once.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_not_remembered_for_long() {
    // Paths of more than three times the bytes that the server may grow by, as fast as it accepts
    // them. It grows by 7 to 28 MiB, for 52 MiB of paths as for 157.
    const ROUNDS: u64 = 2700;
    const PADDING: usize = 1900;
    const MOST: ByteSize = ByteSize::mib(48);
    assert!(4 * ROUNDS * 8 * PADDING as u64 > 3 * MOST.as_u64());
    let ground = Ground::with(&[
        "session.control_bytes_per_second=64MiB",
        "session.questions_per_second=1000000",
        "session.address_questions_per_second=1000000",
    ])
    .await;
    let viewer = ground.viewer().await;
    let mut attackers = Vec::new();
    for attacker_number in 0..4 {
        let mut attacker = Attacker::greeted(&ground).await;
        attackers.push(tokio::spawn(async move {
            let padding = "x".repeat(PADDING);
            for round in 0..ROUNDS {
                for number in 8 * round..8 * (round + 1) {
                    attacker
                        .say(&get(
                            number,
                            &format!("/live/{attacker_number}/{number}/{padding}"),
                        ))
                        .await;
                }
                for _ in 0..8 {
                    let answer = attacker.hear().await;
                    assert!(
                        matches!(
                            &answer,
                            Ok(Message::Error(error)) if error.code == RequestCode::Unknown
                        ),
                        "{answer:?}"
                    );
                }
            }
        }));
    }
    for attacker in attackers {
        attacker.await.unwrap();
    }
    viewer.went_on().await;
    ground.assert_grown_less_than(MOST);
}
