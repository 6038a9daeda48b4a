mod proving;

use bytes::Bytes;
use ncs_codec::block::{Block, Vector};
use ncs_codec::gfq::Cores;
use ncs_codec::rlnc::Encoder;
use ncs_gf::Kernels;

use super::*;
use crate::integrity::hashes::BlockHashes;
use crate::object::{Codec, Generation, RefusalCode, Shape, row_key};
use crate::wire::block::{self, StreamHead};
use crate::wire::message::{self, Delivery, Hello, Meta, Request, RequestError, StopReason};

const SECOND: Duration = Duration::from_secs(1);
const HERE: SourceId = SourceId(0);

fn config() -> Config {
    Config {
        hello: Hello::defaults(),
        datagrams: true,
        requests_max: 8,
        window_min: 1 << 20,
        window_max: 1 << 20,
        answer_timeout: 5 * SECOND,
        hello_timeout: 5 * SECOND,
        stall_timeout: 10 * SECOND,
        rate_min: 10,
        kernels: Kernels::detect(),
        gathers: false,
        tells: false,
        keys: Keys::default(),
        tests_max: 2,
        rows_max: 1 << 20,
        secret: Secret::new([1; 32]),
    }
}

/// A peer that has exchanged HELLO with a server.
fn open() -> (Proto, Instant) {
    open_with(config())
}

fn open_with(config: Config) -> (Proto, Instant) {
    let now = Instant::now();
    let mut proto = Proto::new(config);
    proto.handle_connected(now, HERE, None);
    assert!(matches!(
        proto.poll_message(now, HERE),
        Some(Message::Hello(_))
    ));
    proto
        .handle_message(now, HERE, Message::Hello(Hello::defaults()))
        .unwrap();
    assert!(matches!(proto.poll_event(), Some(Event::Ready(HERE))));
    (proto, now)
}

fn source() -> Vec<u8> {
    (0..1000u32)
        .map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1])
        .collect()
}

/// 1000 bytes in 16 blocks of 64: two generations of 8.
fn order() -> Order {
    let shape = Shape::new(1000, 64, 8).unwrap();
    Order {
        segment: SegmentId::of(&source()),
        shape,
        proof: None,
        deadline: None,
        urgency: Urgency::Now,
    }
}

fn meta(request: u64, delivery: Delivery, bytes: &[u8]) -> Meta {
    Meta {
        request,
        path: "/a/b".to_owned(),
        id: SegmentId::of(bytes),
        offset: 0,
        length: bytes.len() as u64,
        object_length: Some(bytes.len() as u64),
        version: 1,
        max_age_ms: 0,
        content_type: String::new(),
        delivery,
        signature: None,
        tree: None,
    }
}

fn messages(proto: &mut Proto, now: Instant) -> Vec<Message> {
    std::iter::from_fn(|| proto.poll_message(now, HERE)).collect()
}

fn requests(messages: &[Message]) -> Vec<Request> {
    let requests = messages.iter().filter_map(|message| match message {
        Message::Request(request) => Some(request.clone()),
        _ => None,
    });
    requests.collect()
}

fn answer(proto: &mut Proto) -> Option<(u64, Result<Answer, Failure>)> {
    match proto.poll_event()? {
        Event::Answered { request, answer } => Some((request, answer)),
        event => panic!("{event:?}"),
    }
}

fn encoder(generation: &Generation) -> Encoder {
    let bytes = source();
    let start = usize::try_from(generation.offset).unwrap();
    let part = &bytes[start..start + usize::try_from(generation.length).unwrap()];
    Encoder::new(
        generation,
        part,
        row_key(&order().segment, generation),
        Kernels::detect(),
    )
    .unwrap()
}

fn datagram(request: &Request, seq: u16, seed: u32, last: bool) -> Bytes {
    let generation = order().shape.generation(request.generation).unwrap();
    let mut out = vec![0; 10 + 64];
    block::write_datagram_header(
        &mut out[..10],
        &Vector::Seed(seed),
        request.alias,
        seq,
        last,
    );
    encoder(&generation).block(seed, &mut out[10..]);
    out.into()
}

#[test]
fn a_segment_is_asked_for_exactly_and_stopped_when_complete() {
    let (mut proto, now) = open();
    proto.fetch(now, order(), None);
    let requests = requests(&messages(&mut proto, now));
    assert_eq!(
        requests
            .iter()
            .map(|request| (request.generation, request.credit))
            .collect::<Vec<_>>(),
        [(0, 8), (1, 8)]
    );
    let mut decoded = Vec::new();
    for request in &requests {
        for seq in 0..8 {
            proto
                .handle_datagram(
                    now,
                    HERE,
                    datagram(request, seq, 40 + u32::from(seq), seq == 7),
                )
                .unwrap();
        }
        let said = messages(&mut proto, now);
        let (alias, reason) = (request.alias, StopReason::Complete);
        assert_eq!(
            said.last(),
            Some(&Message::Stop { alias, reason }),
            "{said:?}"
        );
        let Some(Event::Decoded { decoder, .. }) = proto.poll_event() else {
            panic!()
        };
        decoded.extend(decoder.into_bytes(&Cores::all()).unwrap());
    }
    assert_eq!(decoded, source());
    assert!(proto.is_idle());
    // One more than was asked for.
    proto
        .handle_datagram(now, HERE, datagram(&requests[0], 8, 99, true))
        .unwrap();
    let counts = proto.counts();
    assert_eq!((counts.late, counts.stray, counts.useless), (0, 1, 0));
}

/// Sends all that these requests ask for, and takes what is decoded.
fn serve(proto: &mut Proto, now: Instant, requests: &[Request]) -> Vec<u32> {
    for request in requests {
        for seq in 0..8 {
            proto
                .handle_datagram(
                    now,
                    HERE,
                    datagram(request, seq, 40 + u32::from(seq), seq == 7),
                )
                .unwrap();
        }
    }
    let events = std::iter::from_fn(|| proto.poll_event());
    let index = |event| {
        if let Event::Decoded { decoder, .. } = event {
            decoder.generation().index
        } else {
            panic!("{event:?}")
        }
    };
    events.map(index).collect()
}

#[test]
fn a_generation_that_was_wrong_is_asked_for_again_while_others_come() {
    let (mut proto, now) = open();
    let fetch = proto.fetch(now, order(), None);
    let asked = requests(&messages(&mut proto, now));
    assert!(
        asked[0].deadline_ms + 10 <= asked[1].deadline_ms,
        "the beginning is to come first"
    );
    assert_eq!(serve(&mut proto, now, &asked[..1]), [0]);
    assert!(proto.refute(now, fetch, &[0].into()), "once more");
    let again = requests(&messages(&mut proto, now));
    assert_eq!(
        again
            .iter()
            .map(|request| (request.generation, request.credit))
            .collect::<Vec<_>>(),
        [(0, 8)]
    );
    assert_eq!(serve(&mut proto, now, &asked[1..]), [1]);
    proto.settle(fetch, 1);
    assert_eq!(serve(&mut proto, now, &again), [0]);
    assert!(!proto.confirm(now, fetch, true));
    messages(&mut proto, now);
    assert!(proto.is_idle());
}

#[test]
fn a_generation_that_is_wrong_twice_ends_the_fetch() {
    let (mut proto, now) = open();
    let fetch = proto.fetch(now, order(), None);
    let asked = requests(&messages(&mut proto, now));
    assert_eq!(serve(&mut proto, now, &asked[..1]), [0]);
    assert!(proto.refute(now, fetch, &[0].into()));
    let again = requests(&messages(&mut proto, now));
    assert_eq!(serve(&mut proto, now, &again), [0]);
    // From the first wrong one on blocks are kept, and the server may tell which are wrong. It does
    // not.
    assert!(proto.refute(now, fetch, &[0].into()));
    let question = messages(&mut proto, now)
        .iter()
        .find_map(|message| match message {
            Message::GetChecks(asked) => Some(asked.request),
            _ => None,
        });
    let (request, code, reason) = (question.unwrap(), RefusalCode::Unknown, String::new());
    let error = RequestError {
        request,
        code,
        retry_after_ms: 0,
        reason,
    };
    proto
        .handle_message(now, HERE, Message::Error(error))
        .unwrap();
    // Nothing more is wanted of the other generation.
    let (alias, reason) = (asked[1].alias, StopReason::Cancelled);
    assert!(messages(&mut proto, now).contains(&Message::Stop { alias, reason }));
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Failed {
            failure: Failure::Corrupt,
            ..
        })
    ));
    assert!(proto.is_idle() && proto.poll_event().is_none());
}

#[test]
fn a_block_that_was_under_way_when_its_request_ended_is_late() {
    let (mut proto, now) = open();
    let fetch = proto.fetch(now, order(), None);
    let requests = requests(&messages(&mut proto, now));
    proto.cancel_fetch(fetch);
    proto
        .handle_datagram(now, HERE, datagram(&requests[0], 0, 40, false))
        .unwrap();
    assert_eq!((proto.counts().late, proto.counts().stray), (1, 0));
}

/// A second source is asked for a playlist soon, and at once where the first is silent.
#[test]
fn polls_go_to_another_source_when_one_is_silent() {
    let (mut proto, now) = open();
    let other = SourceId(1);
    proto.handle_connected(now, other, None);
    assert!(matches!(
        proto.poll_message(now, other),
        Some(Message::Hello(_))
    ));
    proto
        .handle_message(now, other, Message::Hello(Hello::defaults()))
        .unwrap();
    let asked = |proto: &mut Proto, now, source| match proto.poll_message(now, source) {
        Some(Message::Get(get)) => Some(get.request),
        None => None,
        other => panic!("{other:?}"),
    };
    let poll = proto.get(now, "/live/a.m3u8?x", 0, None);
    assert_eq!(
        (asked(&mut proto, now, HERE), asked(&mut proto, now, other)),
        (Some(poll), None)
    );
    let soon = now + Duration::from_millis(200);
    proto.handle_timeout(soon).unwrap();
    assert_eq!(asked(&mut proto, soon, other), Some(poll));
    // A segment waits longer, until the source is known to be silent.
    let segment = proto.get(soon, "/live/1.ts", 0, None);
    assert_eq!(asked(&mut proto, soon, HERE), Some(segment));
    proto
        .handle_timeout(soon + Duration::from_millis(200))
        .unwrap();
    assert_eq!(asked(&mut proto, soon, other), None);
    proto.set_silent(HERE, true);
    assert_eq!(asked(&mut proto, soon, other), Some(segment));
    let next = proto.get(soon, "/live/a.m3u8", 0, None);
    assert_eq!(
        (
            asked(&mut proto, soon, HERE),
            asked(&mut proto, soon, other)
        ),
        (None, Some(next))
    );
    proto.set_silent(other, true);
    let both = proto.get(soon, "/live/b.m3u8", 0, None);
    let here = [asked(&mut proto, soon, HERE), asked(&mut proto, soon, HERE)];
    assert_eq!(
        here,
        [Some(next), Some(both)],
        "where all are silent, all are asked"
    );
}

/// Nobody else may answer it.
#[test]
fn a_question_for_one_source_fails_as_soon_as_that_one_answers_nothing() {
    type Happening = fn(&mut Proto, Instant);
    let happenings: [Happening; 3] = [
        |proto, _| proto.set_silent(HERE, true),
        |proto, now| proto.handle_disconnected(now, HERE, true),
        |proto, now| {
            let leaves = Message::GoAway { drain_ms: 1000 };
            proto.handle_message(now, HERE, leaves).unwrap();
        },
    ];
    for happening in happenings {
        let (mut proto, now) = open();
        let others = proto.get(now, "/a/c", 0, None);
        let before = proto.get_of(now, (HERE, false), "/a/b", 0, None);
        messages(&mut proto, now);
        happening(&mut proto, now);
        let after = proto.get_of(now, (HERE, false), "/a/b", 0, None);
        messages(&mut proto, now);
        let mut failed = Vec::new();
        while let Some(event) = proto.poll_event() {
            if let Event::Answered { request, answer } = event {
                assert_eq!(answer.unwrap_err(), Failure::Gone);
                failed.push(request);
            }
        }
        assert_eq!(failed, [before, after], "and not {others}");
    }
}

/// A server that restarts takes its time; what waits for it goes on with the next connection.
#[test]
fn time_without_a_server_does_not_count() {
    let (mut proto, now) = open();
    proto.fetch(now, order(), None);
    let get = proto.get(now, "/a/b", 0, None);
    assert_eq!(requests(&messages(&mut proto, now)).len(), 2);
    proto.handle_disconnected(now + SECOND, HERE, true);
    let later = now + 120 * SECOND;
    proto.handle_timeout(later).unwrap();
    assert!(proto.poll_event().is_none(), "both wait");
    proto.handle_connected(later, HERE, None);
    let mut said = messages(&mut proto, later);
    proto
        .handle_message(later, HERE, Message::Hello(Hello::defaults()))
        .unwrap();
    said.extend(messages(&mut proto, later));
    assert_eq!(requests(&said).len(), 2, "{said:?}");
    assert!(
        said.iter()
            .any(|message| matches!(message, Message::Get(asked) if asked.request == get)),
        "{said:?}"
    );
    assert!(matches!(proto.poll_event(), Some(Event::Ready(HERE))));
    // From here on the usual times hold, and an outage has an end.
    proto.handle_timeout(later + 5 * SECOND).unwrap();
    assert!(matches!(answer(&mut proto), Some((late, Err(Failure::Stalled))) if late == get));
    proto.handle_disconnected(later + 6 * SECOND, HERE, true);
    proto
        .handle_timeout(later + 6 * SECOND + gets::OUTAGE_MAX + 10 * SECOND)
        .unwrap();
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Failed {
            failure: Failure::Stalled,
            ..
        })
    ));
}

/// The decoder is chosen when a generation is asked for: by its deadline and what is known of the
/// path.
#[test]
fn a_near_deadline_is_decoded_block_by_block() {
    let (mut proto, start) = open();
    proto.set_rtt(HERE, Duration::from_millis(40));
    let mut fetch = |deadline: Option<Duration>, from: Instant| {
        proto.fetch(
            from,
            Order {
                deadline: deadline.map(|left| from + left),
                ..order()
            },
            None,
        );
        let requests = requests(&messages(&mut proto, from));
        let mut decoded = Vec::new();
        for (index, request) in (0..).zip(&requests) {
            for seq in 0..8 {
                let at = from + Duration::from_millis(index + 2 * u64::from(seq));
                proto
                    .handle_datagram(at, HERE, datagram(request, seq, u32::from(seq), seq == 7))
                    .unwrap();
            }
            let Some(Event::Decoded { decoder, .. }) = proto.poll_event() else {
                panic!()
            };
            let is_progressive = decoder.is_progressive();
            decoded.push((is_progressive, decoder.into_bytes(&Cores::all()).unwrap()));
        }
        assert_eq!(
            decoded
                .iter()
                .flat_map(|(_, bytes)| bytes)
                .copied()
                .collect::<Vec<u8>>(),
            source()
        );
        (
            decoded.iter().all(|(is_progressive, _)| *is_progressive),
            proto.counts().generations_progressive,
        )
    };
    // Nothing is known of the path yet, then there is time, then there is none.
    assert_eq!(fetch(Some(Duration::from_millis(30)), start), (false, 0));
    assert_eq!(fetch(Some(10 * SECOND), start + SECOND), (false, 0));
    assert_eq!(fetch(None, start + 2 * SECOND), (false, 0));
    assert_eq!(
        fetch(Some(Duration::from_millis(30)), start + 3 * SECOND),
        (true, 2)
    );
}

#[test]
fn only_what_is_known_to_be_lost_is_asked_for_again_once_a_round_trip() {
    let (mut proto, now) = open();
    proto.set_rtt(HERE, Duration::from_millis(40));
    proto.fetch(now, order(), None);
    let request = &requests(&messages(&mut proto, now))[0];
    for seq in [0, 1, 3, 4] {
        proto
            .handle_datagram(now, HERE, datagram(request, seq, u32::from(seq), false))
            .unwrap();
    }
    let later = now + Duration::from_millis(50);
    assert_eq!(messages(&mut proto, later), []);
    proto
        .handle_datagram(later, HERE, datagram(request, 5, 5, false))
        .unwrap();
    assert_eq!(
        messages(&mut proto, later),
        [Message::Credit {
            alias: request.alias,
            blocks: 1
        }]
    );
    // The next loss is known ten milliseconds later and waits for its round trip.
    for seq in [7, 8] {
        proto
            .handle_datagram(
                later,
                HERE,
                datagram(request, seq, u32::from(seq), seq == 8),
            )
            .unwrap();
    }
    let known = later + Duration::from_millis(10);
    proto.handle_timeout(known).unwrap();
    assert_eq!(messages(&mut proto, known), []);
    let due = later + Duration::from_millis(40);
    assert_eq!(proto.poll_timeout(), Some(due));
    proto.handle_timeout(due).unwrap();
    assert_eq!(
        messages(&mut proto, due),
        [Message::Credit {
            alias: request.alias,
            blocks: 1
        }]
    );
}

/// Loses one datagram of five, so far.
fn lose_a_fifth(proto: &mut Proto, now: Instant) {
    let pace = proto.fetches.pace(HERE);
    for at in 0..1000 {
        pace.lost(1);
        let at = now.checked_sub(SECOND).unwrap() + Duration::from_millis(at);
        (0..4).for_each(|_| pace.arrived(at, 64));
    }
}

/// Nothing else fills the path while the end of a fetch waits for one block after the other.
#[test]
fn the_end_of_a_fetch_is_asked_for_with_what_will_be_lost_of_it() {
    for (losses, blocks) in [(false, 2), (true, 4)] {
        let (mut proto, now) = open();
        proto.set_rtt(HERE, Duration::from_millis(40));
        if losses {
            lose_a_fifth(&mut proto, now);
        }
        proto.fetch(now, order(), None);
        let [first, request] = &requests(&messages(&mut proto, now))[..] else {
            panic!("there are two generations")
        };
        assert_eq!(request.credit, 8, "at first as many as there are");
        let later = now + Duration::from_millis(50);
        for seq in 0..8 {
            let block = datagram(first, seq, u32::from(seq), seq == 7);
            proto.handle_datagram(later, HERE, block).unwrap();
        }
        messages(&mut proto, later);
        for seq in [0, 2, 3, 4, 5, 7] {
            let block = datagram(request, seq, u32::from(seq), seq == 7);
            proto.handle_datagram(later, HERE, block).unwrap();
        }
        let known = later + Duration::from_millis(10);
        proto.handle_timeout(known).unwrap();
        let alias = request.alias;
        assert_eq!(
            messages(&mut proto, known),
            [Message::Credit { alias, blocks }]
        );
    }
}

/// A probe is likely to bring something, and is repeated soon where losses explain the silence.
#[test]
fn probes_of_a_path_that_loses_are_larger_and_more_frequent() {
    for (losses, blocks, waits) in [
        (false, [1, 2, 4], [90, 180, 360]),
        (true, [2, 4, 8], [90; 3]),
    ] {
        let (mut proto, now) = open();
        proto.set_rtt(HERE, Duration::from_millis(40));
        if losses {
            lose_a_fifth(&mut proto, now);
        }
        proto.fetch(now, order(), None);
        let alias = requests(&messages(&mut proto, now))[0].alias;
        let mut last = now;
        for (blocks, wait) in blocks.into_iter().zip(waits) {
            let at = loop {
                let at = proto.poll_timeout().expect("a silence");
                proto.handle_timeout(at).unwrap();
                let sent = messages(&mut proto, at);
                if sent.contains(&Message::Credit { alias, blocks }) {
                    break at;
                }
                assert!(at < now + SECOND, "{sent:?}");
            };
            let waited = (at - last).as_millis();
            assert!((wait..wait + 5).contains(&waited), "{waited} {wait}");
            last = at;
        }
    }
}

/// The time of the first probe for a request of which nothing comes.
fn first_probe(proto: &mut Proto, mut now: Instant, alias: u16) -> Instant {
    loop {
        now = proto
            .poll_timeout()
            .expect("a silence")
            .max(now + Duration::from_micros(100));
        proto.handle_timeout(now).unwrap();
        if messages(proto, now)
            .iter()
            .any(|message| matches!(message, Message::Credit { alias: of, .. } if *of == alias))
        {
            return now;
        }
    }
}

/// Each block that is requested for nothing costs the path its size: a stream that waits for a
/// repeated packet has lost no block.
#[test]
fn blocks_that_have_come_on_streams_are_waited_for_longer() {
    let (mut proto, now) = open();
    proto.set_rtt(HERE, Duration::from_millis(40));
    let fetch = |proto: &mut Proto, name: &[u8]| {
        proto.fetch(
            now,
            Order {
                segment: SegmentId::of(name),
                shape: Shape::new(512, 64, 8).unwrap(),
                ..order()
            },
            None,
        );
        requests(&messages(proto, now)).remove(0)
    };
    let first = fetch(&mut proto, b"first");
    let soon = first_probe(&mut proto, now, first.alias).duration_since(now);
    assert!(
        (90..=100).contains(&soon.as_millis()),
        "1.5 round trips and 30 ms: {soon:?}"
    );

    let mut stream = Vec::new();
    StreamHead::Blocks { alias: first.alias }.encode(&mut stream);
    let header = block::record_header_len(&Vector::Seed(40));
    stream.resize(stream.len() + header, 0);
    let at = stream.len() - header;
    block::write_record_header(&mut stream[at..], &Vector::Seed(40));
    stream.extend([1; 64]);
    proto.handle_stream(now + soon, HERE, 3, &stream).unwrap();
    proto.cancel_fetch(FetchId(0));
    let on_stream = fetch(&mut proto, b"second");
    let late = first_probe(&mut proto, now, on_stream.alias).duration_since(now);
    assert!(late >= soon * 7, "{late:?} after {soon:?}");

    // Blocks of this size fit into datagrams again.
    let mut block = vec![1; 10 + 64];
    block::write_datagram_header(
        &mut block[..10],
        &Vector::Seed(41),
        on_stream.alias,
        0,
        false,
    );
    proto
        .handle_datagram(now + late, HERE, block.into())
        .unwrap();
    proto.cancel_fetch(FetchId(1));
    let again = fetch(&mut proto, b"third");
    let probed = first_probe(&mut proto, now + late, again.alias).duration_since(now + late);
    assert!(probed <= soon * 2, "{probed:?}");
}

/// Generations of the requests that a fetch of 32 of them makes at once, 512 bytes each.
fn first_requests(proto: &mut Proto, now: Instant, name: &[u8], urgency: Urgency) -> Vec<u32> {
    let order = Order {
        segment: SegmentId::of(name),
        shape: Shape::new(32 * 512, 64, 8).unwrap(),
        urgency,
        ..order()
    };
    proto.fetch(now, order, None);
    requests(&messages(proto, now))
        .iter()
        .map(|request| request.generation)
        .collect()
}

/// A long segment fills the window. What a player begins to wait for must not wait for it.
#[test]
fn the_first_request_of_a_fetch_may_exceed_the_window_up_to_twice() {
    let config = Config {
        window_min: 1024,
        window_max: 1024,
        ..config()
    };
    let (mut proto, now) = open_with(config.clone());
    let mut fetch = |name: &[u8], urgency| first_requests(&mut proto, now, name, urgency);
    assert_eq!(
        fetch(b"long", Urgency::Now),
        [0, 1],
        "which fill the window"
    );
    assert_eq!(fetch(b"ahead", Urgency::Ahead), [], "nobody waits for it");
    assert_eq!(fetch(b"second", Urgency::Now), [0]);
    assert_eq!(fetch(b"third", Urgency::Now), [0], "which fills it twice");
    assert_eq!(fetch(b"fourth", Urgency::Now), []);
    // The path carries so little that a fetch of which something is requested would stall.
    let (mut proto, now) = open_with(config.clone());
    proto.set_rtt(HERE, 4 * SECOND);
    let mut fetch = |name: &[u8], urgency| first_requests(&mut proto, now, name, urgency);
    assert_eq!(fetch(b"long", Urgency::Now), [0, 1]);
    assert_eq!(fetch(b"second", Urgency::Now), []);
}

#[test]
fn a_rejected_request_is_made_again_when_it_makes_sense() {
    let (mut proto, now) = open();
    let fetch = proto.fetch(now, order(), None);
    let first = requests(&messages(&mut proto, now));
    let reject = |code, retry_after_ms| Message::Reject {
        alias: first[0].alias,
        code,
        retry_after_ms,
    };
    proto
        .handle_message(now, HERE, reject(RefusalCode::Overload, 500))
        .unwrap();
    assert_eq!(messages(&mut proto, now), []);
    let later = now + SECOND / 2;
    assert!(proto.poll_timeout().unwrap() <= later);
    proto.handle_timeout(later).unwrap();
    let again = requests(&messages(&mut proto, later));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].generation, 0);
    assert_ne!(again[0].alias, first[0].alias);
    proto
        .handle_message(
            later,
            HERE,
            Message::Reject {
                alias: again[0].alias,
                code: RefusalCode::Unknown,
                retry_after_ms: 0,
            },
        )
        .unwrap();
    let stop = Message::Stop {
        alias: first[1].alias,
        reason: StopReason::Cancelled,
    };
    assert_eq!(messages(&mut proto, later), [stop]);
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Failed { fetch: failed, failure: Failure::Refused(_) }) if failed == fetch
    ));
}

/// Whatever reason and time it gives: in half a minute it is asked a few dozen times and not a
/// hundred thousand times.
#[test]
fn who_always_rejects_is_asked_less_and_less_often() {
    for (code, retry_after_ms) in [
        (RefusalCode::Deadline, 0),
        (RefusalCode::Deadline, 1),
        (RefusalCode::Overload, 1),
    ] {
        let (mut proto, start) = open();
        let shape = Shape::new(64 * 8 * 500, 64, 8).unwrap();
        proto.fetch(
            start,
            Order {
                shape,
                deadline: Some(start + 30 * SECOND),
                ..order()
            },
            None,
        );
        let (mut now, mut asked) = (start, Vec::new());
        loop {
            for request in requests(&messages(&mut proto, now)) {
                asked.push(now);
                let reject = Message::Reject {
                    alias: request.alias,
                    code,
                    retry_after_ms,
                };
                proto.handle_message(now, HERE, reject).unwrap();
            }
            if matches!(proto.poll_event(), Some(Event::Failed { .. })) {
                break;
            }
            // At once where it asks at once.
            now = proto
                .poll_timeout()
                .unwrap()
                .max(now + Duration::from_micros(100));
            proto.handle_timeout(now).unwrap();
        }
        assert!(now <= start + 30 * SECOND + Duration::from_millis(1));
        assert!(
            (10..200).contains(&asked.len()),
            "{code:?}: {} requests",
            asked.len()
        );
        let rounds: Vec<Instant> = asked
            .chunk_by(|one, next| one == next)
            .map(|round| round[0])
            .collect();
        let gaps: Vec<Duration> = rounds.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(
            gaps.iter().all(|gap| *gap >= Duration::from_millis(50)),
            "{gaps:?}"
        );
        assert!(gaps.is_sorted(), "{gaps:?}");
    }
}

/// It may name a time that is none.
#[test]
fn what_is_refused_for_a_moment_is_not_asked_for_again_at_once() {
    let (mut proto, now) = open();
    let get = proto.get(now, "/a/b", 0, None);
    assert_eq!(messages(&mut proto, now).len(), 1);
    let busy = |request| RequestError {
        request,
        code: RefusalCode::Overload,
        retry_after_ms: 1,
        reason: String::new(),
    };
    proto
        .handle_message(now, HERE, Message::Error(busy(get)))
        .unwrap();
    let Some((_, Err(Failure::Refused(refusal)))) = answer(&mut proto) else {
        panic!()
    };
    assert_eq!(refusal.retry_after, Some(Duration::from_millis(50)));
    // Hashes of a segment's blocks, too.
    let mut bench = proving::Bench::new(1);
    let asked = bench.refuse_hashes(1);
    assert!((10..=25).contains(&asked), "{asked} questions in a second");
}

/// A block for each so many seconds, from whoever it is.
fn drip(every: Duration, disconnects: bool) -> Option<(Failure, Duration)> {
    let (mut proto, start) = open();
    let shape = Shape::new(64 * 1024, 64, 1024).unwrap();
    proto.fetch(start, Order { shape, ..order() }, None);
    let mut request = requests(&messages(&mut proto, start)).remove(0);
    let (mut now, mut next) = (start, start + every);
    for seq in 0.. {
        while now < next {
            now = proto
                .poll_timeout()
                .unwrap()
                .clamp(now + Duration::from_millis(1), next);
            proto.handle_timeout(now).unwrap();
            if let Some(again) = requests(&messages(&mut proto, now)).pop() {
                request = again;
            }
            while let Some(event) = proto.poll_event() {
                if let Event::Failed { failure, .. } = event {
                    return Some((failure, now - start));
                }
            }
        }
        if now > start + 100 * SECOND {
            return None;
        }
        next = now + every;
        if disconnects {
            proto.handle_disconnected(now, HERE, true);
            proto.handle_connected(now, HERE, None);
            proto
                .handle_message(now, HERE, Message::Hello(Hello::defaults()))
                .unwrap();
            while proto.poll_event().is_some() {}
        } else {
            let mut out = vec![0; 10 + 64];
            block::write_datagram_header(
                &mut out[..10],
                &Vector::Seed(seq),
                request.alias,
                u16::try_from(seq).unwrap(),
                false,
            );
            proto.handle_datagram(now, HERE, out.into()).unwrap();
        }
        if let Some(again) = requests(&messages(&mut proto, now)).pop() {
            request = again;
        }
    }
    unreachable!("it ends")
}

/// Ten bytes a second are asked for here, over ten seconds.
#[test]
fn a_drip_is_given_up() {
    assert_eq!(drip(9 * SECOND, false), Some((Failure::Slow, 10 * SECOND)));
    assert_eq!(
        drip(20 * SECOND, false),
        Some((Failure::Stalled, 10 * SECOND))
    );
    assert_eq!(drip(4 * SECOND, false), None, "enough of it goes on");
}

/// What came before an outage is no drip, and one that begins then is noticed later by the time of
/// the outage. The reader's time is told of it.
#[test]
fn an_outage_is_no_drip() {
    let (mut proto, now) = open();
    let fetch = proto.fetch(now, order(), None);
    let asked = requests(&messages(&mut proto, now));
    let before = now + SECOND / 2;
    proto
        .handle_datagram(before, HERE, datagram(&asked[0], 0, 40, false))
        .unwrap();
    messages(&mut proto, before);
    proto.handle_disconnected(now + SECOND, HERE, true);
    let later = now + 121 * SECOND;
    for at in [now + 11 * SECOND, later] {
        proto.handle_timeout(at).unwrap();
        messages(&mut proto, at);
        assert!(proto.poll_event().is_none(), "it waits");
        assert!(
            proto.poll_timeout().is_none_or(|due| due > at),
            "and nothing is due"
        );
    }
    assert_eq!(proto.outages(), Duration::ZERO);
    proto.handle_connected(later, HERE, None);
    proto
        .handle_message(later, HERE, Message::Hello(Hello::defaults()))
        .unwrap();
    assert!(matches!(proto.poll_event(), Some(Event::Ready(HERE))));
    assert_eq!(proto.outages(), 120 * SECOND);
    assert_eq!(requests(&messages(&mut proto, later)).len(), 2);
    let end = now + 130 * SECOND;
    proto
        .handle_timeout(end - Duration::from_millis(1))
        .unwrap();
    assert!(proto.poll_event().is_none());
    proto.handle_timeout(end).unwrap();
    messages(&mut proto, end);
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Failed { fetch: slow, failure: Failure::Slow }) if slow == fetch
    ));
}

/// Whoever hears that nothing came looks for the fault in the wrong place.
#[test]
fn bytes_that_come_too_slowly_are_not_nothing() {
    let (mut proto, now) = open();
    let get = proto.get(now, "/a/b", 0, None);
    proto.fetch(now, order(), None);
    let asked = requests(&messages(&mut proto, now));
    proto
        .handle_message(
            now,
            HERE,
            Message::Meta(meta(get, Delivery::Stream, &source())),
        )
        .unwrap();
    let (mut object, mut blocks) = (Vec::new(), Vec::new());
    StreamHead::Object { request: get }.encode(&mut object);
    StreamHead::Blocks {
        alias: asked[0].alias,
    }
    .encode(&mut blocks);
    for (stream, head, bytes) in [(3, object, &source()[..5]), (7, blocks, &[0x41, 0, 0])] {
        proto.handle_stream(now, HERE, stream, &head).unwrap();
        proto
            .handle_stream(now + SECOND, HERE, stream, bytes)
            .unwrap();
    }
    proto.handle_timeout(now + 5 * SECOND).unwrap();
    assert!(matches!(answer(&mut proto), Some((late, Err(Failure::Slow))) if late == get));
    proto.handle_timeout(now + 10 * SECOND).unwrap();
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Failed {
            failure: Failure::Slow,
            ..
        })
    ));
}

#[test]
fn connections_that_come_and_go_put_a_stall_off_once() {
    assert_eq!(
        drip(4 * SECOND, true),
        Some((Failure::Stalled, 14 * SECOND))
    );
}

/// Vectors of zeros, and others that bring nothing, in datagrams.
#[test]
fn useless_vectors_end_the_connection_whoever_made_them() {
    for (row, is_verified, most) in [
        ([0; 8], true, 8),
        ([0; 8], false, 8),
        ([3; 8], true, 17),
        ([3; 8], false, 17),
    ] {
        let (mut proto, now) = open();
        proto.set_rtt(HERE, Duration::from_millis(40));
        let shape = Shape::new(64 * 8, 64, 8).unwrap();
        proto.fetch(now, Order { shape, ..order() }, None);
        let request = requests(&messages(&mut proto, now)).remove(0);
        let row = Bytes::copy_from_slice(&row);
        let vector = if is_verified {
            Vector::Explicit(row)
        } else {
            Vector::Unverified(row)
        };
        let mut later = now;
        let ends = (0..100_u16).find_map(|seq| {
            let mut out = vec![0; block::datagram_header_len(&vector) + 64];
            let head = out.len() - 64;
            block::write_datagram_header(&mut out[..head], &vector, request.alias, seq, false);
            let violation = proto.handle_datagram(later, HERE, out.into()).err();
            // Credit for what is still missing.
            later += SECOND / 5;
            proto.handle_timeout(later).unwrap();
            while proto.poll_message(later, HERE).is_some() {}
            violation.map(|violation| (seq, violation))
        });
        assert_eq!(
            ends,
            Some((most, Violation::Flood("useless blocks"))),
            "{vector:?}"
        );
    }
}

#[test]
fn news_of_another_stream_end_the_connection() {
    let (mut proto, now) = open();
    let request = proto.subscribe("a");
    let news = |path: &str| {
        Message::Meta(Meta {
            path: path.to_owned(),
            ..meta(request, Delivery::Inline(Bytes::new()), b"")
        })
    };
    assert_eq!(proto.handle_message(now, HERE, news("/a/c")), Ok(()));
    assert!(matches!(proto.poll_event(), Some(Event::Announced { .. })));
    assert_eq!(
        proto.handle_message(now, HERE, news("/b/c")),
        Err(Violation::Unexpected("news of another stream"))
    );
}

#[test]
fn urgent_segments_go_before_others() {
    let (mut proto, now) = open();
    let ahead = proto.fetch(
        now,
        Order {
            urgency: Urgency::Ahead,
            ..order()
        },
        None,
    );
    proto.fetch(
        now,
        Order {
            segment: SegmentId::of(b"urgent"),
            ..order()
        },
        None,
    );
    proto.set_urgency(now, ahead, Urgency::Now);
    let asked = requests(&messages(&mut proto, now));
    assert_eq!(
        asked[0].segment,
        order().segment,
        "the older of two urgent ones"
    );
    proto.fetch(
        now,
        Order {
            urgency: Urgency::Ahead,
            segment: SegmentId::of(b"ahead"),
            ..order()
        },
        None,
    );
    let later = requests(&messages(&mut proto, now));
    assert!(
        later
            .iter()
            .all(|request| request.deadline_ms > asked[0].deadline_ms)
    );
}

#[test]
fn a_short_segment_is_served_beside_a_long_one() {
    let (mut proto, now) = open();
    let of = |name: &[u8], generations: u64| {
        let shape = Shape::new(512 * generations, 64, 8).unwrap();
        Order {
            segment: SegmentId::of(name),
            shape,
            ..order()
        }
    };
    // Six of the eight requests that may be open.
    proto.fetch(now, of(b"long", 6), None);
    let long = requests(&messages(&mut proto, now));
    assert_eq!(
        long.iter()
            .map(|request| request.generation)
            .collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5]
    );
    let deadlines: Vec<u64> = long.iter().map(|request| request.deadline_ms).collect();
    assert!(
        deadlines.is_sorted_by(|one, next| one < next),
        "{deadlines:?}"
    );
    let now = now + SECOND / 10;
    proto.fetch(now, of(b"short", 2), None);
    let short = requests(&messages(&mut proto, now));
    let due: Vec<u64> = short
        .iter()
        .map(|request| request.deadline_ms + 100)
        .collect();
    assert_eq!(
        due,
        deadlines[..2],
        "in turn with what is under way, not behind it"
    );
}

#[test]
fn what_waits_for_room_has_it_in_turn() {
    let (mut proto, now) = open();
    let shape = Shape::new(512 * 30, 64, 8).unwrap();
    proto.fetch(
        now,
        Order {
            segment: SegmentId::of(b"long"),
            shape,
            ..order()
        },
        None,
    );
    let long = requests(&messages(&mut proto, now));
    assert_eq!(long.len(), 8);
    proto.fetch(now, order(), None);
    assert_eq!(requests(&messages(&mut proto, now)), [], "no room");
    let mut next = Vec::new();
    for request in &long[..4] {
        for seq in 0..8 {
            let mut block = vec![0; 10 + 64];
            block::write_datagram_header(
                &mut block[..10],
                &Vector::Seed(40 + u32::from(seq)),
                request.alias,
                seq,
                seq == 7,
            );
            proto.handle_datagram(now, HERE, block.into()).unwrap();
        }
        next.extend(requests(&messages(&mut proto, now)));
    }
    let next: Vec<_> = next
        .iter()
        .map(|request| (request.segment == order().segment, request.generation))
        .collect();
    assert_eq!(
        next,
        [(true, 0), (true, 1), (false, 8), (false, 9)],
        "the short one is not behind thirty generations"
    );
}

#[test]
fn what_is_waited_for_is_due_earlier_in_its_own_order() {
    let (mut proto, now) = open();
    let shape = Shape::new(512 * 4, 64, 8).unwrap();
    let fetch = proto.fetch(
        now,
        Order {
            urgency: Urgency::Ahead,
            shape,
            ..order()
        },
        None,
    );
    let ahead = requests(&messages(&mut proto, now));
    assert_eq!(ahead.len(), 4);
    // Nothing stops, and nothing is asked for again: a round trip would pass with nothing new on
    // the way.
    proto.set_urgency(now, fetch, Urgency::Now);
    let hurried: Vec<(u16, u64)> = messages(&mut proto, now)
        .iter()
        .map(|message| match message {
            Message::Reschedule { alias, deadline_ms } => (*alias, *deadline_ms),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(
        hurried
            .iter()
            .map(|(alias, _)| alias)
            .eq(ahead.iter().map(|request| &request.alias)),
        "{hurried:?}"
    );
    assert!(
        hurried.is_sorted_by(|one, next| one.1 < next.1),
        "{hurried:?}"
    );
    assert!(
        hurried
            .iter()
            .all(|(_, deadline)| *deadline < ahead[0].deadline_ms),
        "{hurried:?}"
    );
    proto.set_urgency(now, fetch, Urgency::Now);
    assert_eq!(messages(&mut proto, now), [], "said again");
    // What nobody waits for any more stops, and goes where it was.
    proto.set_urgency(now, fetch, Urgency::Ahead);
    let said = messages(&mut proto, now);
    let stopped = said.iter().filter(|message| {
        matches!(
            message,
            Message::Stop {
                reason: StopReason::Cancelled,
                ..
            }
        )
    });
    assert_eq!(stopped.count(), 4);
    let left = requests(&said);
    assert!(
        left.iter()
            .all(|request| request.deadline_ms >= ahead[0].deadline_ms),
        "{left:?}"
    );
}

#[test]
fn what_is_fetched_ahead_comes_one_after_the_other() {
    let (mut proto, now) = open();
    let ahead = |name: &[u8], generations: u64| {
        let shape = Shape::new(512 * generations, 64, 8).unwrap();
        Order {
            urgency: Urgency::Ahead,
            segment: SegmentId::of(name),
            shape,
            ..order()
        }
    };
    // All of it is asked for, part of it is, and nothing yet.
    for order in [ahead(b"short", 1), ahead(b"long", 3), ahead(b"last", 2)] {
        proto.fetch(now, order, None);
    }
    let asked = requests(&messages(&mut proto, now));
    let in_turn: Vec<_> = asked
        .iter()
        .map(|request| (request.segment, request.generation))
        .collect();
    let of = |name: &[u8], generations: std::ops::Range<u32>| {
        generations
            .map(|index| (SegmentId::of(name), index))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        in_turn,
        [of(b"short", 0..1), of(b"long", 0..3), of(b"last", 0..2)].concat()
    );
    assert!(
        asked.is_sorted_by(|one, next| one.deadline_ms < next.deadline_ms),
        "{asked:?}"
    );
}

#[test]
fn blocks_without_credit_end_the_connection() {
    let (mut proto, now) = open();
    proto.fetch(now, order(), None);
    let request = &requests(&messages(&mut proto, now))[0];
    for seq in 8..16 {
        proto
            .handle_datagram(now, HERE, datagram(request, seq, 1, false))
            .unwrap();
    }
    assert_eq!(
        proto.handle_datagram(now, HERE, datagram(request, 16, 1, false)),
        Err(Violation::Flood("blocks without credit"))
    );
    assert_eq!(proto.counts().blocks, 0);
}

/// Of requests that are over, and of one that is open: the same block again and again.
#[test]
fn blocks_that_nobody_waits_for_end_the_connection_if_there_are_many() {
    for is_over in [true, false] {
        let (mut proto, now) = open();
        proto.fetch(now, order(), None);
        let mut request = requests(&messages(&mut proto, now)).remove(0);
        request.alias = request.alias.wrapping_sub(u16::from(is_over));
        let ends = (0..2000).find_map(|_| {
            proto
                .handle_datagram(now, HERE, datagram(&request, 0, 1, false))
                .err()
        });
        assert_eq!(
            ends,
            Some(Violation::Flood("blocks that nobody asked for")),
            "{is_over}"
        );
    }
}

#[test]
fn a_sender_of_useless_blocks_ends_the_connection() {
    for rejects in [false, true] {
        let (mut proto, now) = open();
        let shape = Shape::new(64 * 64, 64, 64).unwrap();
        proto.fetch(now, Order { shape, ..order() }, None);
        let mut request = requests(&messages(&mut proto, now)).remove(0);
        let mut send = |proto: &mut Proto, seq: u16| {
            if rejects && seq == 5 {
                // Another request for the generation follows.
                let reject = Message::Reject {
                    alias: request.alias,
                    code: RefusalCode::Overload,
                    retry_after_ms: 50,
                };
                proto.handle_message(now, HERE, reject).unwrap();
                proto.handle_timeout(now + SECOND / 10).unwrap();
                request = requests(&messages(proto, now + SECOND / 10)).remove(0);
            }
            let mut out = vec![7; 10 + 64];
            block::write_datagram_header(
                &mut out[..10],
                &Vector::Seed(1),
                request.alias,
                seq,
                false,
            );
            proto.handle_datagram(now, HERE, out.into())
        };
        for seq in 0..9 {
            send(&mut proto, seq).unwrap();
        }
        assert_eq!(
            send(&mut proto, 9),
            Err(Violation::Flood("useless blocks")),
            "{rejects}"
        );
    }
}

/// Two generations of 8 blocks with 3 parity blocks each, or of RaptorQ.
fn order_with(codec: Codec) -> Order {
    Order {
        shape: order().shape.coded_with(codec).unwrap(),
        ..order()
    }
}

/// A block of an order's first generation, right but for its number.
fn numbered(request: &Request, codec: Codec, seq: u16, vector: &Vector, last: bool) -> Bytes {
    let generation = order_with(codec).shape.generation(0).unwrap();
    let mut payload = vec![0; 64];
    if block::payload_len(vector, &generation).is_some() {
        encoder(&generation).numbered(std::slice::from_ref(vector), &mut [&mut payload[..]]);
    }
    let mut out = vec![0; block::datagram_header_len(vector)];
    block::write_datagram_header(&mut out, vector, request.alias, seq, last);
    out.extend_from_slice(&payload);
    out.into()
}

const RS: Codec = Codec::ReedSolomon { parity: 3 };

#[test]
fn blocks_that_a_code_does_not_have_are_dropped_and_harm_nothing() {
    for codec in [RS, Codec::RaptorQ] {
        let (mut proto, now) = open();
        proto.fetch(now, order_with(codec), None);
        let request = requests(&messages(&mut proto, now)).remove(0);
        let wrong = [
            Vector::Source(8),
            Vector::Seed(7),
            Vector::Explicit(Bytes::from_static(&[1; 8])),
            Vector::Shard(7),
            Vector::Shard(11),
            Vector::Symbol(7),
            Vector::Symbol(1 << 24),
        ];
        for (seq, vector) in (0..).zip(&wrong) {
            proto
                .handle_datagram(now, HERE, numbered(&request, codec, seq, vector, false))
                .unwrap();
        }
        let mut short = numbered(&request, codec, 7, &Vector::Source(0), false);
        short.truncate(40);
        proto.handle_datagram(now, HERE, short).unwrap();
        assert_eq!(
            (proto.counts().stray, proto.counts().blocks),
            (8, 0),
            "{codec:?}"
        );
        // They have used up the credit that they came for, and are asked for anew.
        let more = messages(&mut proto, now + SECOND);
        let asks =
            |message: &Message| matches!(message, Message::Credit { .. } | Message::Request(_));
        assert!(more.iter().any(asks), "{codec:?} {more:?}");
    }
}

#[test]
fn a_numbered_block_twice_belongs_to_nothing() {
    let (mut proto, now) = open();
    proto.fetch(now, order_with(RS), None);
    let request = requests(&messages(&mut proto, now)).remove(0);
    for seq in 0..8 {
        proto
            .handle_datagram(
                now,
                HERE,
                numbered(&request, RS, seq, &Vector::Source(3), false),
            )
            .unwrap();
    }
    assert_eq!(
        (
            proto.counts().stray,
            proto.counts().blocks,
            proto.counts().innovative
        ),
        (7, 1, 1)
    );
}

/// Seven source blocks and two parity blocks are lost; the third parity block comes, and then what
/// is missing by its numbers.
#[test]
fn when_parity_blocks_are_spent_the_missing_blocks_are_named() {
    let (mut proto, now) = open();
    let order = order_with(RS);
    proto.fetch(now, order, None);
    let said = messages(&mut proto, now);
    let request = requests(&said).remove(0);
    assert_eq!(
        (
            request.credit,
            &request.ranges[..],
            request.accept.systematic
        ),
        (8, &[][..], true)
    );
    proto
        .handle_datagram(
            now,
            HERE,
            numbered(&request, RS, 7, &Vector::Source(7), true),
        )
        .unwrap();
    // A quarter of a round trip later the others are lost. There are three more to ask for.
    let later = now + SECOND;
    proto.handle_timeout(later).unwrap();
    assert!(messages(&mut proto, later).contains(&Message::Credit {
        alias: request.alias,
        blocks: 3
    }));
    proto
        .handle_datagram(
            later,
            HERE,
            numbered(&request, RS, 10, &Vector::Shard(10), true),
        )
        .unwrap();
    let end = later + SECOND;
    proto.handle_timeout(end).unwrap();
    let said = messages(&mut proto, end);
    assert!(
        said.contains(&Message::Stop {
            alias: request.alias,
            reason: StopReason::Cancelled
        }),
        "{said:?}"
    );
    let again = requests(&said)
        .into_iter()
        .find(|again| again.generation == 0)
        .unwrap();
    assert_eq!(
        (again.credit, &again.ranges[..]),
        (6, &[(0, 7), (8, 2)][..])
    );
    for (seq, number) in (0..).zip([1, 2, 4, 5, 8, 9]) {
        proto
            .handle_datagram(
                end,
                HERE,
                numbered(&again, RS, seq, &Vector::numbered(number, 8), false),
            )
            .unwrap();
    }
    let Some(Event::Decoded { decoder, .. }) = proto.poll_event() else {
        panic!("eight of eleven are there")
    };
    assert_eq!(decoder.into_bytes(&Cores::all()).unwrap(), source()[..512]);
}

#[test]
fn datagrams_that_belong_to_nothing_are_put_up_with_for_a_while() {
    let (mut proto, now) = open();
    for _ in 0..1000 {
        proto
            .handle_datagram(now, HERE, Bytes::from_static(&[0x41; 20]))
            .unwrap();
    }
    assert!(
        proto
            .handle_datagram(now, HERE, Bytes::from_static(&[0; 3]))
            .is_err()
    );
    assert_eq!(proto.counts().stray, 1001);
}

#[test]
fn questions_are_answered_in_any_order() {
    let (mut proto, now) = open();
    let first = proto.get(now, "/a/b", 0, None);
    let second = proto.get(now, "/a/c", 0, None);
    assert_eq!(messages(&mut proto, now).len(), 2);
    let inline = meta(second, Delivery::Inline(Bytes::from_static(b"xyz")), b"xyz");
    proto
        .handle_message(
            now,
            HERE,
            Message::Meta(Meta {
                path: "/a/c".to_owned(),
                ..inline
            }),
        )
        .unwrap();
    assert_eq!(
        answer(&mut proto).unwrap().1.unwrap().bytes,
        Some(Bytes::from_static(b"xyz"))
    );
    let (code, reason) = (RefusalCode::Origin, String::new());
    proto
        .handle_message(
            now,
            HERE,
            Message::Error(RequestError {
                request: first,
                code,
                retry_after_ms: 90,
                reason,
            }),
        )
        .unwrap();
    let (request, refused) = answer(&mut proto).unwrap();
    assert_eq!(request, first);
    assert!(matches!(
        refused,
        Err(Failure::Refused(refusal))
            if refusal.retry_after == Some(Duration::from_millis(90))
    ));
    // Answers to what was never asked break the rules.
    let unasked = meta(second + 1, Delivery::Inline(Bytes::new()), b"");
    assert!(
        proto
            .handle_message(now, HERE, Message::Meta(unasked))
            .is_err()
    );
}

#[test]
fn an_answer_that_does_not_cover_the_offset_breaks_the_rules() {
    let (mut proto, now) = open();
    let request = proto.get(now, "/a/b", 5, None);
    messages(&mut proto, now);
    let short = meta(
        request,
        Delivery::Inline(Bytes::from_static(b"12345")),
        b"12345",
    );
    assert_eq!(
        proto.handle_message(now, HERE, Message::Meta(short)),
        Err(Violation::Unexpected("META"))
    );
}

#[test]
fn an_object_may_come_before_its_metadata() {
    let (mut proto, now) = open();
    let request = proto.get(now, "/a/b", 0, None);
    messages(&mut proto, now);
    let mut stream = Vec::new();
    StreamHead::Object { request }.encode(&mut stream);
    stream.extend_from_slice(b"hello");
    for byte in &stream {
        proto.handle_stream(now, HERE, 3, &[*byte]).unwrap();
    }
    proto
        .handle_stream_end(HERE, 3, StreamEnd::Finished)
        .unwrap();
    assert!(proto.poll_event().is_none());
    proto
        .handle_message(
            now,
            HERE,
            Message::Meta(meta(request, Delivery::Stream, b"hello")),
        )
        .unwrap();
    assert_eq!(
        answer(&mut proto).unwrap().1.unwrap().bytes,
        Some(Bytes::from_static(b"hello"))
    );
}

#[test]
fn an_object_of_another_length_breaks_the_rules() {
    for (came, end) in [(&b"hell"[..], true), (b"hello!", false)] {
        let (mut proto, now) = open();
        let request = proto.get(now, "/a/b", 0, None);
        messages(&mut proto, now);
        proto
            .handle_message(
                now,
                HERE,
                Message::Meta(meta(request, Delivery::Stream, b"hello")),
            )
            .unwrap();
        let mut stream = Vec::new();
        StreamHead::Object { request }.encode(&mut stream);
        stream.extend_from_slice(came);
        let taken = proto.handle_stream(now, HERE, 3, &stream);
        let ended = if end {
            taken.and_then(|()| proto.handle_stream_end(HERE, 3, StreamEnd::Finished))
        } else {
            taken
        };
        assert_eq!(ended, Err(Violation::Malformed("object stream")));
    }
}

#[test]
fn a_reset_object_fails_with_its_code() {
    let (mut proto, now) = open();
    let request = proto.get(now, "/a/b", 0, None);
    messages(&mut proto, now);
    let mut stream = Vec::new();
    StreamHead::Object { request }.encode(&mut stream);
    proto.handle_stream(now, HERE, 3, &stream).unwrap();
    proto
        .handle_stream_end(
            HERE,
            3,
            StreamEnd::Reset(u64::from(RefusalCode::Origin.quic())),
        )
        .unwrap();
    assert!(matches!(
        answer(&mut proto).unwrap().1,
        Err(Failure::Refused(refusal)) if refusal.code == RefusalCode::Origin
    ));
}

#[test]
fn what_nobody_answers_fails_in_time() {
    let (mut proto, now) = open();
    proto.get(now, "/a/b", 0, None);
    proto.fetch(now, order(), None);
    messages(&mut proto, now);
    proto.handle_timeout(now + 5 * SECOND).unwrap();
    assert_eq!(answer(&mut proto).unwrap().1.unwrap_err(), Failure::Stalled);
    proto.handle_timeout(now + 10 * SECOND).unwrap();
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Failed {
            failure: Failure::Stalled,
            ..
        })
    ));
    messages(&mut proto, now + 11 * SECOND);
    assert!(proto.is_quiet());
}

#[test]
fn a_stream_of_a_request_that_is_over_is_refused_once() {
    let (mut proto, now) = open();
    let mut stream = Vec::new();
    StreamHead::Blocks { alias: 700 }.encode(&mut stream);
    proto.handle_stream(now, HERE, 3, &stream).unwrap();
    proto.handle_stream(now, HERE, 3, &[0; 100]).unwrap();
    assert_eq!(
        (proto.poll_stop(HERE), proto.poll_stop(HERE)),
        (Some(3), None)
    );
    proto
        .handle_stream_end(HERE, 3, StreamEnd::Finished)
        .unwrap();
}

#[test]
fn questions_and_subscriptions_outlive_a_connection() {
    let (mut proto, now) = open();
    let request = proto.get(now, "/a/b", 0, None);
    let news = proto.subscribe("a");
    assert_eq!(messages(&mut proto, now).len(), 2);
    proto.handle_disconnected(now, HERE, true);
    assert_eq!(messages(&mut proto, now), []);
    proto.handle_connected(now, HERE, None);
    let said = messages(&mut proto, now);
    assert!(matches!(&said[0], Message::Hello(_)));
    assert!(
        said.iter()
            .any(|message| matches!(message, Message::Subscribe(again) if again.request == news))
    );
    assert!(
        said.iter()
            .any(|message| matches!(message, Message::Get(again) if again.request == request))
    );
    proto
        .handle_message(now, HERE, Message::Hello(Hello::defaults()))
        .unwrap();
    let announced = meta(news, Delivery::Inline(Bytes::from_static(b"x")), b"x");
    proto
        .handle_message(now, HERE, Message::Meta(announced))
        .unwrap();
    assert!(matches!(proto.poll_event(), Some(Event::Ready(HERE))));
    assert!(
        matches!(proto.poll_event(), Some(Event::Announced { request, .. }) if request == news)
    );
}

#[test]
fn the_first_message_is_hello_and_comes_in_time() {
    let now = Instant::now();
    let mut proto = Proto::new(config());
    proto.handle_connected(now, HERE, None);
    assert!(
        proto
            .handle_message(now, HERE, Message::GoAway { drain_ms: 1 })
            .is_err()
    );
    assert_eq!(
        proto.handle_timeout(now + config().hello_timeout),
        Err((HERE, Violation::Timeout("HELLO")))
    );
}

#[test]
fn what_a_leaving_server_refuses_is_asked_of_the_next() {
    let (mut proto, now) = open();
    let request = proto.get(now, "/a/b", 0, None);
    let news = proto.subscribe("a");
    proto.fetch(now, order(), None);
    let asked = requests(&messages(&mut proto, now));
    let (code, reason) = (RefusalCode::GoingAway, String::new());
    for request in [request, news] {
        let error = RequestError {
            request,
            code,
            retry_after_ms: 0,
            reason: reason.clone(),
        };
        proto
            .handle_message(now, HERE, Message::Error(error))
            .unwrap();
    }
    for request in &asked {
        proto
            .handle_message(
                now,
                HERE,
                Message::Reject {
                    alias: request.alias,
                    code,
                    retry_after_ms: 0,
                },
            )
            .unwrap();
    }
    assert!(matches!(proto.poll_event(), Some(Event::GoingAway(HERE))));
    assert!(proto.poll_event().is_none() && proto.is_leaving(HERE) && proto.is_quiet());
    assert_eq!(messages(&mut proto, now), []);
    proto.handle_disconnected(now, HERE, true);
    proto.handle_connected(now, HERE, None);
    let said = messages(&mut proto, now);
    proto
        .handle_message(now, HERE, Message::Hello(Hello::defaults()))
        .unwrap();
    let said = [said, messages(&mut proto, now)].concat();
    assert!(
        said.iter()
            .any(|message| matches!(message, Message::Get(again) if again.request == request))
    );
    assert!(
        said.iter()
            .any(|message| matches!(message, Message::Subscribe(again) if again.request == news))
    );
    assert_eq!(requests(&said).len(), asked.len());
}

const THERE: SourceId = SourceId(7);

/// A peer that has exchanged HELLO with two servers.
fn open_both() -> (Proto, Instant) {
    let (mut proto, now) = open();
    proto.handle_connected(now, THERE, None);
    proto
        .handle_message(now, THERE, Message::Hello(Hello::defaults()))
        .unwrap();
    assert!(matches!(proto.poll_event(), Some(Event::Ready(THERE))));
    assert!(matches!(
        proto.poll_message(now, THERE),
        Some(Message::Hello(_))
    ));
    (proto, now)
}

fn requests_to(proto: &mut Proto, now: Instant, source: SourceId) -> Vec<Request> {
    requests(&std::iter::from_fn(|| proto.poll_message(now, source)).collect::<Vec<_>>())
}

/// A path that is closed carries nothing.
#[test]
fn the_rate_is_that_of_open_paths() {
    let (mut proto, now) = open();
    proto.fetch(now, order(), None);
    let asked = requests(&messages(&mut proto, now));
    assert_eq!(serve(&mut proto, now, &asked), [0, 1]);
    messages(&mut proto, now);
    let rate = proto.source_counts(HERE).rate;
    assert!(rate > 0.0 && proto.path().1.total_cmp(&rate).is_eq());
    proto.handle_disconnected(now + SECOND, HERE, true);
    assert!(proto.path().1.total_cmp(&0.0).is_eq());
}

#[test]
fn two_servers_are_asked_for_other_source_blocks() {
    let (mut proto, now) = open_both();
    proto.fetch(now, order(), None);
    let (here, there) = (
        requests_to(&mut proto, now, HERE),
        requests_to(&mut proto, now, THERE),
    );
    let asked = |requests: &[Request]| {
        requests
            .iter()
            .map(|request| (request.generation, request.credit, request.ranges.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(asked(&here), [(0, 4, vec![(0, 4)]), (1, 4, vec![(0, 4)])]);
    assert_eq!(asked(&there), [(0, 4, vec![(4, 4)]), (1, 4, vec![(4, 4)])]);
    // Both halves make it complete, and both are told.
    for (source, request, seeds) in [(HERE, &here[0], 0..4), (THERE, &there[0], 100..104)] {
        for (seq, seed) in (0..).zip(seeds) {
            proto
                .handle_datagram(now, source, datagram(request, seq, seed, seq == 3))
                .unwrap();
        }
    }
    assert!(matches!(proto.poll_event(), Some(Event::Decoded { .. })));
    for (source, alias) in [(HERE, here[0].alias), (THERE, there[0].alias)] {
        let said: Vec<_> = std::iter::from_fn(|| proto.poll_message(now, source)).collect();
        assert!(
            said.contains(&Message::Stop {
                alias,
                reason: StopReason::Complete
            }),
            "{said:?}"
        );
    }
}

#[test]
fn two_servers_are_asked_for_other_numbers() {
    let (mut proto, now) = open_both();
    proto.fetch(now, order_with(RS), None);
    let (here, there) = (
        requests_to(&mut proto, now, HERE),
        requests_to(&mut proto, now, THERE),
    );
    assert_eq!(
        (here[0].credit, &here[0].ranges[..]),
        (4, &[(0, 4), (10, 1)][..])
    );
    assert_eq!((there[0].credit, &there[0].ranges[..]), (4, &[(4, 6)][..]));
    for (seq, number) in (0..).zip([0, 1, 2, 3]) {
        proto
            .handle_datagram(
                now,
                HERE,
                numbered(&here[0], RS, seq, &Vector::Source(number), seq == 3),
            )
            .unwrap();
        // What the other was asked for belongs to nothing here.
        proto
            .handle_datagram(
                now,
                THERE,
                numbered(&there[0], RS, seq, &Vector::Source(number), seq == 3),
            )
            .unwrap();
    }
    assert_eq!((proto.counts().blocks, proto.counts().stray), (4, 4));
}

#[test]
fn who_leaves_takes_nothing_along() {
    let (mut proto, now) = open_both();
    proto.fetch(now, order(), None);
    let here = requests_to(&mut proto, now, HERE);
    assert!(!requests_to(&mut proto, now, THERE).is_empty());
    proto.handle_disconnected(now, THERE, true);
    let later = now + SECOND;
    let more: u32 = std::iter::from_fn(|| proto.poll_message(later, HERE))
        .map(|message| match message {
            Message::Credit { blocks, .. } => blocks,
            _ => 0,
        })
        .sum();
    assert_eq!(
        here.iter().map(|request| request.credit).sum::<u32>() + more,
        16
    );
    // What it still has to say is nobody's any more.
    assert_eq!(
        proto.handle_datagram(later, THERE, datagram(&here[0], 0, 1, false)),
        Ok(())
    );
    assert_eq!(proto.counts().blocks, 0);
}

#[test]
fn a_refusal_by_one_is_none_by_all() {
    let (mut proto, now) = open_both();
    let request = proto.get(now, "/a/b", 0, None);
    assert!(matches!(
        proto.poll_message(now, HERE),
        Some(Message::Get(_))
    ));
    assert!(proto.poll_message(now, THERE).is_none());
    let refused = Message::Error(RequestError {
        request,
        code: RefusalCode::Unknown,
        retry_after_ms: 0,
        reason: String::new(),
    });
    proto.handle_message(now, HERE, refused.clone()).unwrap();
    assert!(proto.poll_event().is_none() && proto.poll_message(now, HERE).is_none());
    assert!(matches!(
        proto.poll_message(now, THERE),
        Some(Message::Get(_))
    ));
    proto.handle_message(now, THERE, refused).unwrap();
    assert!(matches!(
        answer(&mut proto),
        Some((_, Err(Failure::Refused(_))))
    ));

    let fetch = proto.fetch(now, order(), None);
    for (source, is_last) in [(HERE, false), (THERE, true)] {
        let alias = requests_to(&mut proto, now, source)[0].alias;
        proto
            .handle_message(
                now,
                source,
                Message::Reject {
                    alias,
                    code: RefusalCode::Unknown,
                    retry_after_ms: 0,
                },
            )
            .unwrap();
        let failed = matches!(
            proto.poll_event(),
            Some(Event::Failed { fetch: failed, .. }) if failed == fetch
        );
        assert_eq!(failed, is_last);
    }
}

#[test]
fn two_answers_to_one_question_are_no_fault() {
    let (mut proto, now) = open_both();
    let request = proto.get(now, "/a/b", 0, None);
    assert!(matches!(
        proto.poll_message(now, HERE),
        Some(Message::Get(_))
    ));
    let late = proto.poll_timeout().unwrap();
    proto.handle_timeout(late).unwrap();
    assert!(matches!(
        proto.poll_message(late, THERE),
        Some(Message::Get(_))
    ));
    for source in [THERE, HERE] {
        proto
            .handle_message(
                late,
                source,
                Message::Meta(meta(request, Delivery::Inline(Bytes::new()), b"")),
            )
            .unwrap();
    }
    assert!(matches!(answer(&mut proto), Some((answered, Ok(_))) if answered == request));
    assert!(answer(&mut proto).is_none());
    // An answer that nobody asked for is one.
    let other = proto.get(late, "/a/c", 0, None);
    assert!(matches!(
        proto.poll_message(late, HERE),
        Some(Message::Get(_))
    ));
    let unasked = Message::Meta(meta(other, Delivery::Inline(Bytes::new()), b""));
    assert_eq!(
        proto.handle_message(late, THERE, unasked),
        Err(Violation::Unexpected("META"))
    );
}

#[test]
fn one_source_is_asked_for_what_it_holds() {
    let (mut proto, now) = open_both();
    let asked = |proto: &mut Proto, source| match proto.poll_message(now, source) {
        Some(Message::Get(get)) => Some((get.request, get.held_only)),
        _ => None,
    };
    let request = proto.get_of(now, (HERE, true), "/a/b", 0, None);
    assert_eq!(asked(&mut proto, THERE), None);
    assert_eq!(asked(&mut proto, HERE), Some((request, true)));
    let refusal = Message::Error(RequestError {
        request,
        code: RefusalCode::Unknown,
        retry_after_ms: 0,
        reason: "not held here".to_owned(),
    });
    proto.handle_message(now, HERE, refusal).unwrap();
    assert!(matches!(answer(&mut proto), Some((over, Err(_))) if over == request));
    let ordinary = proto.get_of(now, (HERE, false), "/a/b", 0, None);
    assert_eq!(asked(&mut proto, HERE), Some((ordinary, false)));
}

#[test]
fn who_does_not_know_a_segment_is_asked_for_its_path() {
    let (mut proto, now) = open_both();
    let place = Place {
        path: "/a/b".to_owned(),
        offset: 0,
        length: Some(1000),
    };
    // The same bytes in another shape are of no use: their blocks are others.
    let coarser = Shape::new(1000, 128, 8).unwrap();
    let same = source();
    for (shape, bytes, known) in [
        (order().shape, &same[..], true),
        (order().shape, b"something else", false),
        (coarser, &same[..], false),
    ] {
        let fetch = proto.fetch(now, order(), Some(place.clone()));
        assert!(!requests_to(&mut proto, now, HERE).is_empty());
        for request in requests_to(&mut proto, now, THERE) {
            assert_eq!(request.meant, message::Meant::Coded(order().shape.coding()));
            let reject = Message::Reject {
                alias: request.alias,
                code: RefusalCode::Unknown,
                retry_after_ms: 0,
            };
            proto.handle_message(now, THERE, reject).unwrap();
        }
        let said: Vec<_> = std::iter::from_fn(|| proto.poll_message(now, THERE)).collect();
        let [Message::Get(get)] = &said[..] else {
            panic!("{said:?}")
        };
        assert_eq!(
            (get.path.as_str(), get.offset, get.length),
            ("/a/b", 0, Some(1000))
        );
        let told = Meta {
            length: 1000,
            ..meta(get.request, Delivery::Coded(shape), bytes)
        };
        proto
            .handle_message(now, THERE, Message::Meta(told))
            .unwrap();
        assert!(proto.poll_event().is_none(), "the program has not asked");
        // By now all is asked of the other; a part of it is lost there.
        proto.handle_disconnected(now, HERE, true);
        assert_eq!(
            !requests_to(&mut proto, now + SECOND, THERE).is_empty(),
            known
        );
        assert_eq!(proto.counts().polluters, 0);
        proto.cancel_fetch(fetch);
        while proto.poll_message(now, THERE).is_some() {}
        proto.handle_connected(now, HERE, None);
        proto
            .handle_message(now, HERE, Message::Hello(Hello::defaults()))
            .unwrap();
        while proto.poll_event().is_some() {}
        while proto.poll_message(now, HERE).is_some() {}
    }
}

#[test]
fn who_passes_on_wrong_rows_is_not_blamed_and_gets_little_credit() {
    use crate::integrity::checks::{COLUMNS, project};
    use crate::wire::message::Checks;

    let now = Instant::now();
    let mut proto = Proto::new(Config {
        tells: true,
        ..config()
    });
    for source in [HERE, THERE] {
        proto.handle_connected(now, source, None);
        proto
            .handle_message(now, source, Message::Hello(Hello::defaults()))
            .unwrap();
    }
    // Four generations of 50.
    let order = |bytes: &[u8]| Order {
        segment: SegmentId::of(bytes),
        shape: Shape::new(12_800, 64, 64).unwrap(),
        proof: None,
        deadline: None,
        urgency: Urgency::Now,
    };
    let bytes = [5; 12_800];
    proto.fetch(now, order(&bytes), None);
    let request = requests_to(&mut proto, now, THERE).remove(0);
    assert!(request.credit > 8, "{request:?}");
    // A source block in full, and nothing in it.
    let vector = Vector::Unverified([&[1][..], &[0; 49]].concat().into());
    let mut wrong = vec![0; block::datagram_header_len(&vector) + 64];
    let header = wrong.len() - 64;
    block::write_datagram_header(&mut wrong[..header], &vector, request.alias, 0, false);
    proto.handle_datagram(now, THERE, wrong.into()).unwrap();

    // Everything that came is tested by what the first source says.
    let said: Vec<_> = std::iter::from_fn(|| proto.poll_message(now, HERE)).collect();
    let asked = said.iter().find_map(|message| match message {
        Message::GetChecks(asked) => Some(asked.clone()),
        _ => None,
    });
    let asked = asked.unwrap_or_else(|| panic!("{said:?}"));
    let generation = order(&bytes).shape.generation(asked.generation).unwrap();
    let projections = project(
        Kernels::detect(),
        &[1; 32],
        &asked.segment,
        &generation,
        COLUMNS,
        &bytes[..3200],
    )
    .into();
    let answer = Checks {
        request: asked.request,
        seed: [1; 32],
        columns: COLUMNS,
        projections,
        signature: None,
    };
    proto
        .handle_message(now, HERE, Message::Checks(answer))
        .unwrap();
    while proto.poll_message(now, THERE).is_some() {}
    assert_eq!((proto.counts().wrong, proto.counts().polluters), (1, 0));
    assert!(
        proto.progress().iter().all(|progress| progress.rank == 0),
        "it has left the generation"
    );

    proto.fetch(now, order(&[6; 12_800]), None);
    let credits: Vec<u32> = requests_to(&mut proto, now, THERE)
        .iter()
        .map(|request| request.credit)
        .collect();
    assert!(
        !credits.is_empty() && credits.iter().all(|credit| *credit <= 8),
        "{credits:?}"
    );
}

/// A server may have the same bytes in another shape, and not know that a request can say which is
/// meant. What it sends is right there.
#[test]
fn a_server_is_held_to_what_it_has_named_and_to_nothing_else() {
    use crate::integrity::checks::{COLUMNS, project};
    use crate::wire::message::Checks;

    let bytes = [5; 12_800];
    let (ours, theirs) = (
        Shape::new(12_800, 64, 64).unwrap(),
        Shape::new(12_800, 64, 50).unwrap(),
    );
    let order = Order {
        segment: SegmentId::of(&bytes),
        shape: ours,
        proof: None,
        deadline: None,
        urgency: Urgency::Now,
    };
    let place = Place {
        path: "/a/b".to_owned(),
        offset: 0,
        length: None,
    };
    for (named, is_lie) in [(Some(ours), true), (Some(theirs), false), (None, false)] {
        let now = Instant::now();
        let mut proto = Proto::new(Config {
            tells: true,
            ..config()
        });
        for source in [HERE, THERE] {
            proto.handle_connected(now, source, None);
            proto
                .handle_message(now, source, Message::Hello(Hello::defaults()))
                .unwrap();
        }
        let fetch = proto.fetch(now, order, Some(place.clone()));
        let request = requests_to(&mut proto, now, THERE).remove(0);
        let generation = ours.generation(request.generation).unwrap();
        let mut wrong = vec![0; 10 + 64];
        block::write_datagram_header(&mut wrong[..10], &Vector::Seed(9), request.alias, 0, false);
        proto.handle_datagram(now, THERE, wrong.into()).unwrap();
        let said: Vec<_> = std::iter::from_fn(|| proto.poll_message(now, HERE)).collect();
        let asked = said.iter().find_map(|message| match message {
            Message::GetChecks(asked) if asked.generation == request.generation => {
                Some(asked.clone())
            }
            _ => None,
        });
        let asked = asked.unwrap_or_else(|| panic!("{said:?}"));
        let part = &bytes[..usize::try_from(generation.length).unwrap()];
        let projections = project(
            Kernels::detect(),
            &[1; 32],
            &asked.segment,
            &generation,
            COLUMNS,
            part,
        )
        .into();
        let answer = Checks {
            request: asked.request,
            seed: [1; 32],
            columns: COLUMNS,
            projections,
            signature: None,
        };
        proto
            .handle_message(now, HERE, Message::Checks(answer))
            .unwrap();

        // It is asked what it has there, and for nothing of it before it answers.
        let said: Vec<_> = std::iter::from_fn(|| proto.poll_message(now, THERE)).collect();
        let gets = said.iter().filter_map(|message| match message {
            Message::Get(get) => Some(get.clone()),
            _ => None,
        });
        let [get] = &gets.collect::<Vec<_>>()[..] else {
            panic!("{said:?}")
        };
        assert!(
            said.iter()
                .all(|message| !matches!(message, Message::Request(_) | Message::Credit { .. })),
            "{said:?}"
        );
        assert_eq!((proto.counts().wrong, proto.counts().polluters), (1, 0));
        let answer = match named {
            Some(shape) => Message::Meta(meta(get.request, Delivery::Coded(shape), &bytes)),
            None => {
                let (code, retry_after_ms, reason) = (RefusalCode::Unknown, 0, String::new());
                Message::Error(RequestError {
                    request: get.request,
                    code,
                    retry_after_ms,
                    reason,
                })
            }
        };
        proto.handle_message(now, THERE, answer).unwrap();
        assert!(requests_to(&mut proto, now + SECOND, THERE).is_empty());
        // The checksums may be lies, too: only when the segment is right without it is it judged.
        assert_eq!(proto.counts().polluters, 0, "{named:?}");
        if is_lie {
            // Another connection, on which it names the segment again, changes nothing.
            proto.handle_disconnected(now, THERE, true);
            proto.handle_connected(now, THERE, None);
            let hello = Message::Hello(Hello::defaults());
            proto.handle_message(now, THERE, hello).unwrap();
            let said: Vec<_> = std::iter::from_fn(|| proto.poll_message(now, THERE)).collect();
            for message in said {
                if let Message::Get(get) = message {
                    let meta = meta(get.request, Delivery::Coded(ours), &bytes);
                    proto
                        .handle_message(now, THERE, Message::Meta(meta))
                        .unwrap();
                }
            }
            assert!(requests_to(&mut proto, now + SECOND, THERE).is_empty());
        }
        assert!(!proto.confirm(now, fetch, true));
        requests_to(&mut proto, now + SECOND, THERE);
        assert_eq!(proto.counts().polluters, u64::from(is_lie), "{named:?}");
        let blames = std::iter::from_fn(|| proto.poll_message(now, HERE))
            .filter(|said| matches!(said, Message::Blame { .. }));
        assert_eq!(blames.count(), 0, "it has shown no certificate");
        if is_lie {
            continue;
        }
        // The next segment it has to name first.
        proto.fetch(
            now,
            Order {
                segment: SegmentId::of(b"next"),
                ..order
            },
            Some(place.clone()),
        );
        let said: Vec<_> = std::iter::from_fn(|| proto.poll_message(now, THERE)).collect();
        assert!(matches!(&said[..], [Message::Get(_)]), "{said:?}");
    }
}

const NEIGHBOUR: SourceId = SourceId(7);

/// A segment of a stream, unlike those with other numbers: 8 blocks of 64 bytes.
fn next(proto: &mut Proto, now: Instant, path: &str, number: u8) -> SegmentId {
    let segment = SegmentId::of(&[number]);
    let order = Order {
        segment,
        shape: Shape::new(512, 64, 8).unwrap(),
        ..order()
    };
    proto.fetch(
        now,
        order,
        Some(Place {
            path: path.to_owned(),
            offset: 0,
            length: None,
        }),
    );
    segment
}

/// What a source is asked for a segment: new requests' credit, and more of it.
fn asked(proto: &mut Proto, now: Instant, source: SourceId) -> (Vec<Request>, u32) {
    let messages: Vec<Message> = std::iter::from_fn(|| proto.poll_message(now, source)).collect();
    let more = messages.iter().map(|message| {
        if let Message::Credit { blocks, .. } = message {
            *blocks
        } else {
            0
        }
    });
    (requests(&messages), more.sum())
}

/// A peer that draws on a neighbour named for the first segment of `/live`.
fn beside_a_neighbour() -> (Proto, Instant) {
    let (mut proto, now) = open();
    let first = next(&mut proto, now, "/live/1", 1);
    proto.add_neighbour(NEIGHBOUR);
    proto.note_holding(NEIGHBOUR, first);
    proto.handle_connected(now, NEIGHBOUR, None);
    proto
        .handle_message(now, NEIGHBOUR, Message::Hello(Hello::defaults()))
        .unwrap();
    [HERE, NEIGHBOUR]
        .into_iter()
        .for_each(|source| drop(asked(&mut proto, now, source)));
    (proto, now)
}

/// What a neighbour says is not the last word.
#[test]
fn what_goes_wrong_with_a_neighbour_is_no_reason() {
    let (mut proto, now) = beside_a_neighbour();
    let (code, reason) = (RefusalCode::Internal, "buy this".to_owned());
    let error = Message::Error(RequestError {
        request: 0,
        code,
        retry_after_ms: 0,
        reason,
    });
    proto
        .handle_message(
            now,
            NEIGHBOUR,
            Message::Reject {
                alias: 0,
                code,
                retry_after_ms: 0,
            },
        )
        .unwrap();
    let _ = proto.handle_message(now, NEIGHBOUR, error.clone());
    proto.note_trouble(now, NEIGHBOUR, "closed".to_owned());
    assert_eq!(proto.trouble(), None);
    let _ = proto.handle_message(now, HERE, error);
    assert!(matches!(proto.trouble(), Some((HERE, _))));
}

#[test]
fn a_neighbour_is_asked_for_the_next_segments_of_the_stream_that_it_was_named_for() {
    let (mut proto, before) = beside_a_neighbour();
    proto.cancel_fetch(FetchId(0));
    let now = before + SECOND;
    let second = next(&mut proto, now, "/live/2", 2);
    let other = next(&mut proto, now, "/vod/1", 3);
    let (here, _) = asked(&mut proto, now, HERE);
    let (there, _) = asked(&mut proto, now, NEIGHBOUR);
    let credit = |requests: &[Request], segment| {
        requests
            .iter()
            .filter(|one| one.segment == segment)
            .map(|one| one.credit)
            .sum::<u32>()
    };
    // Half of it each, and the rest of its half when the neighbour has sent some.
    assert_eq!((credit(&here, second), credit(&there, second)), (4, 3));
    let request = there.iter().find(|one| one.segment == second).unwrap();
    let later = now + SECOND / 50;
    arrives(&mut proto, later, NEIGHBOUR, 2, request, 0);
    assert_eq!(asked(&mut proto, later, NEIGHBOUR).1, 0);
    arrives(&mut proto, later, NEIGHBOUR, 2, request, 1);
    assert_eq!(asked(&mut proto, later, NEIGHBOUR).1, 1);
    assert_eq!((credit(&here, other), credit(&there, other)), (8, 0));
}

#[test]
fn a_silent_server_is_probed_while_neighbours_have_enough_to_do() {
    let (mut proto, before) = beside_a_neighbour();
    proto.cancel_fetch(FetchId(0));
    let now = before + SECOND;
    next(&mut proto, now, "/live/2", 2);
    assert_eq!(asked(&mut proto, now, HERE).0[0].credit, 4);
    assert_eq!(asked(&mut proto, now, NEIGHBOUR).0[0].credit, 3);
    let probed = (10..500).step_by(10).find(|passed| {
        let now = now + Duration::from_millis(*passed);
        proto.handle_timeout(now).unwrap();
        asked(&mut proto, now, HERE).1 > 0
    });
    // After 1.5 round trips of a millisecond and 30 ms.
    assert_eq!(probed, Some(40));
}

#[test]
fn in_a_crowd_the_server_sends_less_than_a_part_of_its_own_and_the_rest_after_three_quarters_of_the_time()
 {
    let (mut proto, before) = beside_a_neighbour();
    let neighbours: Vec<SourceId> = (7..13).map(SourceId).collect();
    for source in neighbours.iter().skip(1) {
        proto.add_neighbour(*source);
        proto.note_holding(*source, SegmentId::of(&[1]));
        proto.handle_connected(before, *source, None);
        proto
            .handle_message(before, *source, Message::Hello(Hello::defaults()))
            .unwrap();
    }
    proto.cancel_fetch(FetchId(0));
    let start = before + 2 * SECOND;
    next(&mut proto, start, "/live/2", 2);
    let here = asked(&mut proto, start, HERE).0.remove(0);
    // Source blocks would be the same for all.
    assert_eq!((here.credit, here.accept.systematic), (1, false));
    arrives(&mut proto, start, HERE, 2, &here, 0);
    let (mut credit, mut given) = (0, None);
    for passed in (0..1800).step_by(20) {
        let now = start + Duration::from_millis(passed);
        proto.handle_timeout(now).unwrap();
        for source in &neighbours {
            for request in asked(&mut proto, now, *source).0 {
                credit += if passed == 0 { request.credit } else { 0 };
                let reject = Message::Reject {
                    alias: request.alias,
                    code: RefusalCode::Unknown,
                    retry_after_ms: 0,
                };
                proto.handle_message(now, *source, reject).unwrap();
            }
        }
        let (again, more) = asked(&mut proto, now, HERE);
        assert_eq!(again, []);
        given = given.or_else(|| (more > 0).then_some(passed));
    }
    assert_eq!((credit, given), (7, Some(1500)));
}

/// A block of segment `number` comes, as the answer to this request.
fn arrives(
    proto: &mut Proto,
    now: Instant,
    source: SourceId,
    number: u8,
    request: &Request,
    seq: u16,
) {
    let seed = u32::from(seq) + 1000 * source.0;
    arrives_as(proto, now, source, number, request, (seq, seed));
}

fn arrives_as(
    proto: &mut Proto,
    now: Instant,
    source: SourceId,
    number: u8,
    request: &Request,
    (seq, seed): (u16, u32),
) {
    let generation = request_generation();
    let key = row_key(&SegmentId::of(&[number]), &generation);
    let bytes: Vec<u8> = (0..=255).collect::<Vec<u8>>().repeat(2);
    let mut payload = vec![0; 64];
    Encoder::new(&generation, &bytes, key, Kernels::detect())
        .unwrap()
        .block(seed, &mut payload);
    let vector = Vector::Seed(seed);
    let mut datagram = vec![0; block::datagram_header_len(&vector)];
    block::write_datagram_header(
        &mut datagram,
        &vector,
        request.alias,
        seq,
        u32::from(seq) + 1 == request.credit,
    );
    datagram.extend_from_slice(&payload);
    proto.handle_datagram(now, source, datagram.into()).unwrap();
}

fn request_generation() -> Generation {
    Shape::new(512, 64, 8).unwrap().generation(0).unwrap()
}

#[test]
fn a_neighbour_that_does_not_know_a_segment_yet_is_asked_again_for_a_while() {
    let (mut proto, before) = beside_a_neighbour();
    proto.cancel_fetch(FetchId(0));
    for number in 2..=5 {
        let start = before + u32::from(number - 1) * 2 * SECOND;
        next(&mut proto, start, &format!("/live/{number}"), number);
        let (here, _) = asked(&mut proto, start, HERE);
        assert_eq!(here[0].credit, 4);
        (0..4).for_each(|seq| arrives(&mut proto, start, HERE, number, &here[0], seq));
        let (mut times, mut given) = (Vec::new(), None);
        for passed in (0..1600).step_by(10) {
            let now = start + Duration::from_millis(passed);
            proto.handle_timeout(now).unwrap();
            for request in asked(&mut proto, now, NEIGHBOUR).0 {
                times.push(passed);
                let reject = Message::Reject {
                    alias: request.alias,
                    code: RefusalCode::Unknown,
                    retry_after_ms: 0,
                };
                proto.handle_message(now, NEIGHBOUR, reject).unwrap();
            }
            let (again, more) = asked(&mut proto, now, HERE);
            assert_eq!(again, []);
            given = given.or_else(|| (more > 0).then_some((passed, more)));
        }
        // Three quarters of the two seconds that the stream takes for a segment; then nobody else
        // was left.
        assert_eq!(
            (times, given),
            ((0..=1500).step_by(100).collect(), Some((1500, 4)))
        );
        proto.cancel_fetch(FetchId(u64::from(number) - 1));
    }
    // It seems to have gone elsewhere.
    let now = before + 10 * SECOND;
    next(&mut proto, now, "/live/6", 6);
    assert_eq!(asked(&mut proto, now, NEIGHBOUR).0, []);
    assert_eq!(asked(&mut proto, now, HERE).0[0].credit, 8);
}

#[test]
fn neighbours_are_waited_for_as_long_as_they_send_and_otherwise_for_most_of_the_interval() {
    for (every, expected) in [(400, None), (1200, Some(2260))] {
        let mut sent = 0;
        let given = server_is_asked_again(|proto, now, there, passed| {
            if passed % every == 0 && sent < 4 {
                arrives(proto, now, NEIGHBOUR, 2, there, sent);
                sent += 1;
            }
        });
        assert_eq!(given, expected, "a block every {every} ms");
    }
}

/// When the server is asked for more of a segment of a stream with one every three seconds, in
/// milliseconds, where it has sent half of it at once and the neighbour `sends`.
fn server_is_asked_again(mut sends: impl FnMut(&mut Proto, Instant, &Request, u64)) -> Option<u64> {
    let (mut proto, start) = beside_a_neighbour();
    proto.cancel_fetch(FetchId(0));
    let begun = start + 3 * SECOND;
    next(&mut proto, begun, "/live/2", 2);
    let there = asked(&mut proto, begun, NEIGHBOUR).0.remove(0);
    let here = asked(&mut proto, begun, HERE).0.remove(0);
    (0..4).for_each(|seq| arrives(&mut proto, begun, HERE, 2, &here, seq));
    (20..5000).step_by(20).find(|passed| {
        let now = begun + Duration::from_millis(*passed);
        sends(&mut proto, now, &there, *passed);
        proto.handle_timeout(now).unwrap();
        asked(&mut proto, now, NEIGHBOUR);
        asked(&mut proto, now, HERE).1 > 0
    })
}

#[test]
fn neighbours_without_anything_new_are_waited_for_until_a_lull() {
    let given = server_is_asked_again(|proto, now, there, passed| match passed {
        900 => arrives(proto, now, NEIGHBOUR, 2, there, 0),
        2100 => arrives(proto, now, NEIGHBOUR, 2, there, 1),
        // The same again.
        2300 => arrives_as(proto, now, NEIGHBOUR, 2, there, (2, 1 + 1000 * NEIGHBOUR.0)),
        _ => {}
    });
    // After a sixth of the interval of three seconds.
    assert_eq!(given, Some(2580));
}

#[test]
fn a_neighbour_that_never_sends_is_not_waited_for_however_often_it_is_asked() {
    let (mut proto, start) = beside_a_neighbour();
    proto.cancel_fetch(FetchId(0));
    let begun = start + 3 * SECOND;
    let mut given = None;
    for passed in (0..2500).step_by(20) {
        let now = begun + Duration::from_millis(passed);
        if passed % 500 == 0 {
            next(
                &mut proto,
                now,
                "/live/next",
                u8::try_from(passed / 500).unwrap() + 2,
            );
        }
        proto.handle_timeout(now).unwrap();
        asked(&mut proto, now, NEIGHBOUR);
        let (new, more) = asked(&mut proto, now, HERE);
        given = given.or_else(|| (more > 0).then_some(passed));
        let number = u8::try_from(passed / 500).unwrap() + 2;
        new.iter().for_each(|request| {
            let credit = u16::try_from(request.credit).unwrap();
            (0..credit).for_each(|seq| arrives(&mut proto, now, HERE, number, request, seq));
        });
    }
    // The first was asked for at once. What it lacks is asked of the server after three quarters of
    // the interval, which was three seconds and has turned out to be half a second, when the
    // neighbour has been silent for longer than usual.
    assert_eq!(given, Some(880));
}
