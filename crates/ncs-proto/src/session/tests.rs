use std::num::NonZeroU16;
use std::sync::Arc;

use bytes::Bytes;
use ncs_codec::block::Vector;

use super::limits::{
    BLAMES_EVERY, BLAMES_MAX, CHECKS_EVERY, CHECKS_MAX, GET_COST, TOKEN_EVERY, TOKENS_MAX,
};
use super::objects::{NO_STREAM, NOWHERE};
use super::refusals::not_there;
use super::requests::RECODED_RETRY;
use super::streams::STREAMS_TALLIED_MAX;
use super::*;
use crate::admission::intake::Answer;
use crate::admission::{Kept, Scope, Share};
use crate::object::{
    Birth, Body, Codec, Coding, FirstPass, GenerationKey, Held, Lease, Loan, Refusal, Resolved,
    SegmentId, SegmentKey, Shape, Standing,
};
use crate::ring::{LineKey, LineKind, SessionId};
use crate::wire::block;
use crate::wire::message::{
    Accept, Checks, Codecs, Credential, Delivery, GRANT_FOREVER, Get, GetChecks, Hello, Holding,
    HoldingState, Introduction, Meant, Meta, Request, RequestCode, RequestError, StopReason,
    Subscribe, Ticket, Token,
};

const SESSION: SessionId = SessionId(7);
const SECOND: Duration = Duration::from_secs(1);

fn held(first_pass: FirstPass) -> Held {
    let shape = Shape::new(64 * 1088, 1088, 64).unwrap();
    Held {
        lease: Lease::new(
            SegmentKey(1),
            SegmentId::of(b"segment"),
            shape,
            Loan::new(Instant::now()),
        ),
        first_pass,
        row_weight: None,
        is_recoded: false,
        birth: None,
        path: Some("/live/1.m4s".into()),
        blocks_digest: None,
        tree: None,
    }
}

fn coded(generation: GenerationKey) -> LineKey {
    LineKey {
        generation,
        kind: LineKind::Coded,
    }
}

fn resolved(held: Held) -> Resolved {
    Resolved {
        path: "/live/1.m4s".into(),
        id: held.lease.id,
        offset: 0,
        length: held.lease.shape.length(),
        object_length: None,
        version: 1,
        max_age: SECOND,
        content_type: String::new(),
        body: Body::Coded(held),
        signature: None,
    }
}

fn request(alias: u16, credit: u32) -> Request {
    Request {
        alias,
        segment: SegmentId::of(b"segment"),
        generation: 0,
        deadline_ms: 1000,
        credit,
        accept: Accept {
            coded: true,
            systematic: true,
            datagrams: true,
            recoded: false,
        },
        ranges: Vec::new(),
        meant: Meant::LastNamed,
    }
}

/// A conversation past its HELLO.
fn greeted() -> (Proto, Instant) {
    let now = Instant::now();
    let mut proto = Proto::new(SESSION, Config::default(), now);
    proto
        .handle_message(now, Message::Hello(Hello::defaults()))
        .unwrap();
    (proto, now)
}

/// A conversation past its HELLO, where the peer knows the segment.
fn conversation(first_pass: FirstPass) -> (Proto, Instant) {
    let (mut proto, now) = greeted();
    let get = Get {
        request: 1,
        path: "/live/1.m4s".into(),
        offset: 0,
        length: None,
        held_only: false,
    };
    proto.handle_message(now, Message::Get(get)).unwrap();
    assert!(matches!(proto.poll_event(), Some(Event::Resolve(_))));
    proto.resolved(now, 1, Ok(resolved(held(first_pass))));
    proto.set_datagram_max(Some(1162));
    while proto.poll_message().is_some() || proto.poll_event().is_some() {}
    (proto, now)
}

/// Takes a REQUEST for the segment, and answers [`Event::Find`].
fn ask(
    proto: &mut Proto,
    now: Instant,
    request: Request,
    first_pass: FirstPass,
) -> Result<(), Violation> {
    proto.handle_message(now, Message::Request(request))?;
    let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
        panic!("a segment is looked for")
    };
    proto.found(now, ticket, Some(held(first_pass)))
}

/// Answers [`Event::Find`] with the segment.
fn find(proto: &mut Proto, now: Instant) -> Result<(), Violation> {
    let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
        panic!("a segment is looked for")
    };
    proto.found(now, ticket, Some(held(FirstPass::Coded)))
}

fn wants(proto: &mut Proto) -> Vec<Want> {
    std::iter::from_fn(|| proto.poll_want(u32::MAX))
        .map(|(want, _)| want)
        .collect()
}

#[test]
fn credit_is_registered_a_window_at_a_time_and_runs_down() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    ask(&mut proto, now, request(3, 100), FirstPass::Coded).unwrap();
    let key = GenerationKey {
        segment: SegmentKey(1),
        index: 0,
    };
    assert_eq!(wants(&mut proto), [Want::Coded(coded(key), 64)]);
    let claims = proto.claims();
    assert_eq!(
        (claims[0].alias, claims[0].blocks, claims[0].route),
        (3, 64, Route::Datagram)
    );
    for seed in 0..99 {
        let stamp = proto
            .stamp(3, &Vector::Seed(seed), Route::Datagram)
            .unwrap();
        assert_eq!(
            (stamp.header().len(), stamp.payload, stamp.header()[1]),
            (10, 1088, 0)
        );
        wants(&mut proto);
    }
    let last = proto.stamp(3, &Vector::Seed(99), Route::Datagram).unwrap();
    assert_eq!(last.header()[1], 1, "the last block of the credit says so");
    assert_eq!(last.header()[4..6], [0, 99]);
    assert_eq!(wants(&mut proto), []);
    proto
        .handle_message(
            now,
            Message::Credit {
                alias: 3,
                blocks: 2,
            },
        )
        .unwrap();
    assert_eq!(wants(&mut proto), [Want::Coded(coded(key), 2)]);
}

#[test]
fn a_request_that_becomes_more_urgent_goes_before_others() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let shape = Shape::new(3 * 64 * 1088, 1088, 64).unwrap();
    let lease = || {
        Lease::new(
            SegmentKey(1),
            SegmentId::of(b"segment"),
            shape,
            Loan::new(Instant::now()),
        )
    };
    let found = |proto: &mut Proto, now| {
        let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
            panic!("a segment is looked for")
        };
        proto
            .found(
                now,
                ticket,
                Some(Held {
                    lease: lease(),
                    ..held(FirstPass::Coded)
                }),
            )
            .unwrap();
    };
    let of = |alias, generation, deadline_ms| Request {
        generation,
        deadline_ms,
        ..request(alias, 4)
    };
    for request in [of(3, 0, 2_000), of(4, 1, 4_000)] {
        proto
            .handle_message(now, Message::Request(request))
            .unwrap();
        found(&mut proto, now);
    }
    wants(&mut proto);
    let order = |proto: &mut Proto| {
        proto
            .claims()
            .iter()
            .map(|claim| claim.alias)
            .collect::<Vec<_>>()
    };
    assert_eq!(order(&mut proto), [3, 4]);
    let later = now + Duration::from_millis(500);
    proto
        .handle_message(
            later,
            Message::Reschedule {
                alias: 4,
                deadline_ms: 1_000,
            },
        )
        .unwrap();
    let key = GenerationKey {
        segment: SegmentKey(1),
        index: 1,
    };
    proto
        .handle_message(
            later,
            Message::Reschedule {
                alias: 4,
                deadline_ms: 1_200,
            },
        )
        .unwrap();
    let Some(Event::Rescheduled {
        alias: 4,
        lines,
        deadline,
    }) = proto.poll_event()
    else {
        panic!("the ring is told")
    };
    assert_eq!(
        (lines, deadline),
        (
            [None, Some(coded(key))],
            later + Duration::from_millis(1_200)
        )
    );
    assert!(
        proto.poll_event().is_none(),
        "once, however often it was moved"
    );
    assert_eq!(order(&mut proto), [4, 3]);

    // A request whose segment is still looked for, and one that is not open.
    proto
        .handle_message(later, Message::Request(of(5, 2, 9_000)))
        .unwrap();
    proto
        .handle_message(
            later,
            Message::Reschedule {
                alias: 5,
                deadline_ms: 0,
            },
        )
        .unwrap();
    proto
        .handle_message(
            later,
            Message::Reschedule {
                alias: 77,
                deadline_ms: 1,
            },
        )
        .unwrap();
    found(&mut proto, later);
    proto.handle_timeout(later).unwrap();
    let rejected = std::iter::from_fn(|| proto.poll_message()).find_map(|message| match message {
        Message::Reject { alias, code, .. } => Some((alias, code)),
        _ => None,
    });
    assert_eq!(rejected, Some((5, RequestCode::Deadline)));
    // Its end has moved, too.
    proto.handle_timeout(deadline).unwrap();
    assert_eq!(order(&mut proto), [3]);
}

#[test]
fn a_systematic_stream_sends_its_source_blocks_once_and_then_coded_ones() {
    let (mut proto, now) = conversation(FirstPass::Systematic);
    ask(&mut proto, now, request(3, 64), FirstPass::Systematic).unwrap();
    let key = GenerationKey {
        segment: SegmentKey(1),
        index: 0,
    };
    assert_eq!(wants(&mut proto), [Want::Source(key, 0..64)]);
    for index in 0..64 {
        proto
            .stamp(3, &Vector::Source(index), Route::Datagram)
            .unwrap();
    }
    proto
        .handle_message(
            now,
            Message::Credit {
                alias: 3,
                blocks: 5,
            },
        )
        .unwrap();
    assert_eq!(wants(&mut proto), [Want::Coded(coded(key), 5)]);
}

#[test]
fn only_source_blocks_of_the_ranges_come() {
    let key = GenerationKey {
        segment: SegmentKey(1),
        index: 0,
    };
    let ranges = [Want::Source(key, 2..5), Want::Source(key, 60..64)];
    let wanted = |first_pass, coded| {
        let (mut proto, now) = conversation(first_pass);
        let mut request = request(3, 10);
        request.ranges = vec![(2, 3), (60, 4)];
        request.accept.coded = coded;
        ask(&mut proto, now, request, first_pass).unwrap();
        wants(&mut proto)
    };
    let [first, second] = ranges.clone();
    assert_eq!(
        wanted(FirstPass::Systematic, true),
        [first, second, Want::Coded(coded(key), 3)]
    );
    // The stream decides whether source blocks come, unless the peer takes nothing else.
    assert_eq!(
        wanted(FirstPass::Coded, true),
        [Want::Coded(coded(key), 10)]
    );
    assert_eq!(wanted(FirstPass::Coded, false), ranges);
}

#[test]
fn who_takes_source_blocks_alone_gets_each_once() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let mut request = request(3, 100);
    request.accept.coded = false;
    ask(&mut proto, now, request, FirstPass::Coded).unwrap();
    assert_eq!(
        wants(&mut proto),
        [Want::Source(
            GenerationKey {
                segment: SegmentKey(1),
                index: 0
            },
            0..64
        )]
    );
}

#[test]
fn a_range_beyond_the_generation_ends_the_connection() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    for range in [(60, 5), (65_535, 1), (1, 65_535)] {
        let mut request = request(3, 10);
        request.ranges = vec![range];
        assert_eq!(
            ask(&mut proto, now, request, FirstPass::Coded),
            Err(Violation::Malformed("range of blocks"))
        );
    }
}

#[test]
fn blocks_that_fit_no_datagram_move_to_the_stream_and_stay_there() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    ask(&mut proto, now, request(3, 10), FirstPass::Coded).unwrap();
    wants(&mut proto);
    proto.stamp(3, &Vector::Seed(0), Route::Datagram).unwrap();
    proto.set_datagram_max(Some(1000));
    assert_eq!(proto.claims()[0].route, Route::Stream);
    proto.set_datagram_max(Some(1162));
    assert_eq!(proto.claims()[0].route, Route::Stream);
    assert_eq!(proto.take_tally().moved, 1);
}

/// A segment with sparse rows of other bytes than [`held`].
fn sparse(n: u16) -> Held {
    let shape = Shape::new(u64::from(n) * 1088, 1088, n).unwrap();
    let lease = Lease::new(
        SegmentKey(2),
        SegmentId::of(b"sparse"),
        shape,
        Loan::new(Instant::now()),
    );
    Held {
        lease,
        first_pass: FirstPass::Coded,
        row_weight: NonZeroU16::new(13),
        is_recoded: false,
        birth: None,
        path: None,
        blocks_digest: None,
        tree: None,
    }
}

/// Opens a request for a generation of `n` blocks with sparse rows.
fn ask_for_sparse(n: u16, takes_vectors: bool) -> Proto {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let mut request = request(3, 10);
    request.segment = SegmentId::of(b"sparse");
    request.accept.recoded = takes_vectors;
    proto
        .handle_message(now, Message::Request(request))
        .unwrap();
    let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
        panic!("an unknown segment is looked for")
    };
    proto.found(now, ticket, Some(sparse(n))).unwrap();
    proto
}

/// A relay may know the same bytes in two cuts: the one that this peer was told of counts.
#[test]
fn a_segment_is_looked_for_as_the_peer_was_told_of_it() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let other = Request {
        alias: 4,
        segment: SegmentId::of(b"other"),
        ..request(4, 1)
    };
    for (request, expected) in [(request(3, 1), Some(SegmentKey(1))), (other, None)] {
        proto
            .handle_message(now, Message::Request(request))
            .unwrap();
        assert!(
            matches!(proto.poll_event(), Some(Event::Find { told, .. }) if told == expected),
            "{expected:?}"
        );
    }
    proto
        .handle_message(now, get_hashes(9, b"segment"))
        .unwrap();
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Find {
            told: Some(SegmentKey(1)),
            ..
        })
    ));
}

/// The same bytes may lie in two streams that code them in different ways.
#[test]
fn a_segment_is_looked_for_with_the_coding_that_is_meant() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let first = held(FirstPass::Coded).lease.shape;
    let second = first.coded_with(RS).unwrap();
    let lease = Lease::new(
        SegmentKey(2),
        SegmentId::of(b"segment"),
        second,
        Loan::new(Instant::now()),
    );
    let get = Get {
        request: 2,
        path: "/other/1.m4s".into(),
        offset: 0,
        length: None,
        held_only: false,
    };
    proto.handle_message(now, Message::Get(get)).unwrap();
    let other = Resolved {
        path: "/other/1.m4s".into(),
        ..resolved(Held {
            lease,
            ..held(FirstPass::Coded)
        })
    };
    // This peer speaks no other code: it was not told of it.
    proto.resolved(now, 2, Ok(other.clone()));
    assert!(
        std::iter::from_fn(|| proto.poll_message())
            .any(|message| matches!(message, Message::Error(_)))
    );
    proto.peer = Some(Hello {
        codecs: Codecs::ALL,
        ..Hello::defaults()
    });
    proto.resolved(now, 2, Ok(other));
    while proto.poll_event().is_some() || proto.poll_message().is_some() {}
    let third = Coding {
        block_bytes: 64,
        n_max: 1,
        codec: Codec::Rlnc,
    };
    for (alias, (meant, expected)) in (3..).zip([
        (Meant::LastNamed, (second.coding(), Some(SegmentKey(2)))),
        (
            Meant::Coded(first.coding()),
            (first.coding(), Some(SegmentKey(1))),
        ),
        (
            Meant::Coded(second.coding()),
            (second.coding(), Some(SegmentKey(2))),
        ),
        (Meant::Coded(third), (third, None)),
    ]) {
        proto
            .handle_message(
                now,
                Message::Request(Request {
                    meant,
                    ..request(alias, 1)
                }),
            )
            .unwrap();
        let Some(Event::Find {
            coding: Some(coding),
            told,
            ..
        }) = proto.poll_event()
        else {
            panic!("it is looked for")
        };
        assert_eq!((coding, told), expected, "{meant:?}");
    }
    // A coding that this version does not know belongs to no segment here.
    proto
        .handle_message(
            now,
            Message::Request(Request {
                meant: Meant::Foreign,
                ..request(9, 1)
            }),
        )
        .unwrap();
    let refused = Message::Reject {
        alias: 9,
        code: RequestCode::Unknown,
        retry_after_ms: 0,
    };
    assert_eq!(
        (proto.poll_message(), proto.poll_event().is_none()),
        (Some(refused), true)
    );
    let question = Message::GetHashes {
        request: 9,
        segment: SegmentId::of(b"segment"),
        meant: Meant::Foreign,
    };
    proto.handle_message(now, question).unwrap();
    assert!(matches!(
        proto.poll_message(),
        Some(Message::Error(error)) if error.code == RequestCode::Unknown
    ));
    assert!(proto.poll_event().is_none());
}

#[test]
fn sparse_rows_go_to_who_takes_vectors_and_others_get_dense_ones() {
    let key = GenerationKey {
        segment: SegmentKey(2),
        index: 0,
    };
    let line = LineKey {
        generation: key,
        kind: LineKind::Sparse(NonZeroU16::new(13).unwrap()),
    };
    let mut proto = ask_for_sparse(64, true);
    assert_eq!(wants(&mut proto), [Want::Coded(line, 10)]);
    assert_eq!(
        (proto.claims()[0].line, proto.lines().collect::<Vec<_>>()),
        (line, vec![line])
    );
    proto
        .handle_message(
            Instant::now(),
            Message::Stop {
                alias: 3,
                reason: StopReason::Complete,
            },
        )
        .unwrap();
    assert_eq!(
        proto
            .poll_event()
            .map(|event| matches!(event, Event::Ended(ended) if ended.line == line)),
        Some(true)
    );
    for (n, takes_vectors) in [(64, false), (13, true)] {
        let mut proto = ask_for_sparse(n, takes_vectors);
        assert_eq!(wants(&mut proto), [Want::Coded(coded(key), 10)], "n = {n}");
    }
}

/// 1,088 bytes with 64 coefficients fit the first packets of a connection, with 128 they do not.
#[test]
fn the_header_of_a_sparse_block_has_all_coefficients() {
    for (n, route, head) in [(64, Route::Datagram, 6), (128, Route::Stream, 1)] {
        let mut proto = ask_for_sparse(n, true);
        wants(&mut proto);
        assert_eq!(proto.claims()[0].route, route, "n = {n}");
        let row: Vec<u8> = (0..n).map(|i| u8::from(i < 13)).collect();
        let stamp = proto
            .stamp(3, &Vector::Explicit(row.clone().into()), route)
            .unwrap();
        assert_eq!(
            (stamp.header()[0], &stamp.header()[head..], stamp.payload),
            (0x42, &row[..], 1088)
        );
    }
    let longest = block::Kind::Explicit.datagram_header_len(Shape::N_LIMIT);
    assert!(
        longest <= crate::ring::headroom(Shape::N_LIMIT.into()),
        "slots have room for it"
    );
}

/// A segment of ten blocks with a code that cannot be recoded.
fn fixed(codec: Codec) -> Held {
    let shape = Shape::new(10 * 1088, 1088, 64)
        .unwrap()
        .coded_with(codec)
        .unwrap();
    let lease = Lease::new(
        SegmentKey(3),
        SegmentId::of(b"fixed"),
        shape,
        Loan::new(Instant::now()),
    );
    Held {
        lease,
        path: None,
        ..held(FirstPass::Coded)
    }
}

/// A conversation in which such a segment was requested.
fn ask_for_fixed(
    held: Held,
    codecs: Codecs,
    change: impl FnOnce(&mut Request),
) -> Result<(Proto, Instant), Violation> {
    let now = Instant::now();
    let mut proto = Proto::new(SESSION, Config::default(), now);
    proto
        .handle_message(
            now,
            Message::Hello(Hello {
                codecs,
                ..Hello::defaults()
            }),
        )
        .unwrap();
    proto.set_datagram_max(Some(1162));
    while proto.poll_message().is_some() {}
    let mut request = Request {
        segment: held.lease.id,
        ..request(3, 8)
    };
    change(&mut request);
    proto
        .handle_message(now, Message::Request(request))
        .unwrap();
    let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
        panic!("a segment is looked for")
    };
    proto.found(now, ticket, Some(held)).map(|()| (proto, now))
}

const RS: Codec = Codec::ReedSolomon { parity: 4 };

#[test]
fn blocks_with_numbers_come_once_each_and_then_no_others() {
    let key = GenerationKey {
        segment: SegmentKey(3),
        index: 0,
    };
    let (mut proto, now) = ask_for_fixed(fixed(RS), Codecs::ALL, |_| {}).unwrap();
    assert_eq!(wants(&mut proto), [Want::Source(key, 0..8)]);
    assert_eq!(
        proto.claims()[0].line,
        LineKey {
            generation: key,
            kind: LineKind::Source(SESSION)
        }
    );
    for number in 0..8 {
        proto
            .stamp(3, &Vector::Source(number), Route::Datagram)
            .unwrap();
    }
    proto
        .handle_message(
            now,
            Message::Credit {
                alias: 3,
                blocks: 100,
            },
        )
        .unwrap();
    assert_eq!(wants(&mut proto), [Want::Source(key, 8..14)]);
    for number in 8..14 {
        let stamp = proto
            .stamp(3, &Vector::numbered(number, 10), Route::Datagram)
            .unwrap();
        let kind = if number < 10 { 0x40 } else { 0x44 };
        assert_eq!(
            (stamp.header()[0], &stamp.header()[6..]),
            (kind, &number.to_be_bytes()[..])
        );
    }
    assert_eq!(
        (wants(&mut proto), proto.claims()),
        (vec![], vec![]),
        "what is left of the credit is void"
    );
    assert!(
        proto
            .stamp(3, &Vector::Shard(14), Route::Datagram)
            .is_none(),
        "there is no such block"
    );
    assert!(
        proto.stamp(3, &Vector::Seed(1), Route::Datagram).is_none(),
        "nor one of another code"
    );
}

#[test]
fn of_blocks_with_numbers_those_come_that_are_named_and_taken() {
    let key = GenerationKey {
        segment: SegmentKey(3),
        index: 0,
    };
    let wanted = |coded, systematic, ranges: &[(u16, u16)]| {
        let change = |request: &mut Request| {
            (
                request.accept.coded,
                request.accept.systematic,
                request.credit,
            ) = (coded, systematic, 64);
            request.ranges = ranges.to_vec();
        };
        wants(&mut ask_for_fixed(fixed(RS), Codecs::ALL, change).unwrap().0)
    };
    assert_eq!(
        wanted(true, true, &[(3, 2), (9, 3)]),
        [Want::Source(key, 3..5), Want::Source(key, 9..12)]
    );
    assert_eq!(
        wanted(true, false, &[(3, 2), (9, 3)]),
        [Want::Source(key, 10..12)]
    );
    assert_eq!(
        wanted(false, true, &[(3, 2), (9, 3)]),
        [Want::Source(key, 3..5), Want::Source(key, 9..10)]
    );
    assert_eq!(wanted(true, false, &[]), [Want::Source(key, 10..14)]);
    assert_eq!(wanted(false, true, &[]), [Want::Source(key, 0..10)]);
    for ranges in [(10, 5), (14, 1)] {
        let beyond = ask_for_fixed(fixed(RS), Codecs::ALL, |request| {
            request.ranges = vec![ranges]
        });
        assert!(matches!(beyond, Err(Violation::Malformed(_))), "{ranges:?}");
    }
    let beyond = ask_for_fixed(fixed(Codec::RaptorQ), Codecs::ALL, |request| {
        request.ranges = vec![(9, 2)]
    });
    assert!(beyond.is_err(), "repair symbols are not named");
}

#[test]
fn raptorq_begins_with_source_blocks_and_has_no_end() {
    let key = GenerationKey {
        segment: SegmentKey(3),
        index: 0,
    };
    let (mut proto, _) = ask_for_fixed(fixed(Codec::RaptorQ), Codecs::ALL, |request| {
        request.credit = 30
    })
    .unwrap();
    assert_eq!(
        wants(&mut proto),
        [Want::Source(key, 0..10), Want::Coded(coded(key), 20)]
    );
    let stamp = proto
        .stamp(3, &Vector::Symbol(70_000), Route::Stream)
        .unwrap();
    assert_eq!(
        (stamp.header(), stamp.payload),
        (&[0x45, 0, 1, 0x11, 0x70][..], 1088)
    );
    let (mut proto, _) = ask_for_fixed(fixed(Codec::RaptorQ), Codecs::ALL, |request| {
        request.accept.systematic = false
    })
    .unwrap();
    assert_eq!(wants(&mut proto), [Want::Coded(coded(key), 8)]);
}

#[test]
fn who_does_not_speak_a_code_is_told_so() {
    let older = |codec| {
        let (mut proto, now) = greeted();
        while proto.poll_message().is_some() {}
        let get = Get {
            request: 1,
            path: "/live/1.m4s".into(),
            offset: 0,
            length: None,
            held_only: false,
        };
        proto.handle_message(now, Message::Get(get)).unwrap();
        proto.resolved(now, 1, Ok(resolved(fixed(codec))));
        proto.poll_message()
    };
    for (codec, name) in [(RS, "Reed-Solomon"), (Codec::RaptorQ, "RaptorQ")] {
        let Some(Message::Error(error)) = older(codec) else {
            panic!("an answer")
        };
        assert_eq!((error.code, error.retry_after_ms), (RequestCode::Limit, 0));
        assert!(
            error.reason.contains(name) && error.reason.contains("does not support"),
            "{}",
            error.reason
        );
        // A peer that has heard of the segment elsewhere gets no block that it could not read.
        let (mut proto, _) = ask_for_fixed(fixed(codec), Codecs::default(), |_| {}).unwrap();
        let refused = Message::Reject {
            alias: 3,
            code: RequestCode::Limit,
            retry_after_ms: 0,
        };
        assert_eq!(
            (proto.poll_message(), wants(&mut proto)),
            (Some(refused), vec![])
        );
    }
}

#[test]
fn who_does_not_have_all_of_a_segment_makes_no_block_that_is_not_recoded() {
    for (codec, recoded) in [(RS, true), (Codec::RaptorQ, true), (Codec::Rlnc, false)] {
        let change = |request: &mut Request| request.accept.recoded = recoded;
        let (mut proto, _) = ask_for_fixed(
            Held {
                is_recoded: true,
                ..fixed(codec)
            },
            Codecs::ALL,
            change,
        )
        .unwrap();
        let later = Message::Reject {
            alias: 3,
            code: RequestCode::Overload,
            retry_after_ms: millis(RECODED_RETRY),
        };
        assert_eq!(
            (proto.poll_message(), wants(&mut proto)),
            (Some(later), vec![])
        );
    }
}

#[test]
fn the_earliest_deadline_goes_first() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let mut first = held(FirstPass::Coded);
    first.lease = Lease::new(
        SegmentKey(2),
        SegmentId::of(b"other"),
        first.lease.shape,
        Loan::new(Instant::now()),
    );
    let mut urgent = request(9, 4);
    urgent.segment = SegmentId::of(b"other");
    urgent.deadline_ms = 10;
    ask(&mut proto, now, request(3, 4), FirstPass::Coded).unwrap();
    proto.handle_message(now, Message::Request(urgent)).unwrap();
    let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
        panic!("an unknown segment is looked for")
    };
    proto.found(now, ticket, Some(first)).unwrap();
    wants(&mut proto);
    assert_eq!(
        proto
            .claims()
            .iter()
            .map(|claim| claim.alias)
            .collect::<Vec<_>>(),
        [9, 3]
    );
}

#[test]
fn a_deadline_ends_a_request_and_says_so() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    ask(&mut proto, now, request(3, 4), FirstPass::Coded).unwrap();
    assert_eq!(proto.poll_timeout(), Some(now + SECOND));
    proto.handle_timeout(now + SECOND).unwrap();
    assert_eq!(
        proto.poll_message(),
        Some(Message::Reject {
            alias: 3,
            code: RequestCode::Deadline,
            retry_after_ms: 0
        })
    );
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Ended(Ended {
            alias: 3,
            abandon: true,
            ..
        }))
    ));
    assert!(proto.stamp(3, &Vector::Seed(0), Route::Stream).is_none());
}

#[test]
fn limits_are_kept() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let limit = Config::default();
    assert_eq!(
        proto.handle_message(now, Message::Request(request(0, limit.credit_max + 1))),
        Err(Violation::Limit("credit"))
    );
    ask(
        &mut proto,
        now,
        request(0, limit.credit_max),
        FirstPass::Coded,
    )
    .unwrap();
    assert_eq!(
        proto.handle_message(
            now,
            Message::Credit {
                alias: 0,
                blocks: u32::MAX
            }
        ),
        Err(Violation::Limit("credit"))
    );
    let unknown = |alias| {
        let mut request = request(alias, 1);
        request.segment = SegmentId::of(b"never heard of");
        Message::Request(request)
    };
    for alias in 1..limit.requests_max {
        proto.handle_message(now, unknown(alias)).unwrap();
    }
    assert_eq!(
        proto.handle_message(now, unknown(999)),
        Err(Violation::Limit("open requests"))
    );
    let (mut proto, now) = conversation(FirstPass::Coded);
    let get = |request| {
        Message::Get(Get {
            request,
            path: "/x/y".into(),
            offset: 0,
            length: None,
            held_only: false,
        })
    };
    for request in 0..u64::from(limit.requests_max) {
        proto.handle_message(now, get(request)).unwrap();
    }
    assert_eq!(
        proto.handle_message(now, get(999)),
        Err(Violation::Limit("unanswered GETs"))
    );
    // A peer has sent as many queries as the default allows before it knows the limit.
    let mut proto = Proto::new(
        SESSION,
        Config {
            requests_max: 1,
            ..Config::default()
        },
        now,
    );
    proto
        .handle_message(now, Message::Hello(Hello::defaults()))
        .unwrap();
    for request in 0..u64::from(Hello::defaults().requests_max) {
        proto.handle_message(now, get(request)).unwrap();
    }
    assert_eq!(
        proto.handle_message(now, get(999)),
        Err(Violation::Limit("unanswered GETs"))
    );
}

#[test]
fn nothing_but_hello_comes_first_and_not_late() {
    let now = Instant::now();
    let mut proto = Proto::new(SESSION, Config::default(), now);
    let early = Message::Credit {
        alias: 0,
        blocks: 1,
    };
    assert!(matches!(
        proto.handle_message(now, early),
        Err(Violation::Unexpected(_))
    ));
    assert_eq!(proto.handle_timeout(now + 2 * SECOND), Ok(()));
    assert_eq!(
        proto.handle_timeout(now + Config::default().hello_timeout),
        Err(Violation::Timeout("HELLO"))
    );
}

#[test]
fn answers_to_a_side_that_asks_nothing_end_the_connection() {
    let meta = Meta {
        request: 1,
        path: "/live/1.m4s".into(),
        id: SegmentId::of(b"segment"),
        offset: 0,
        length: 0,
        object_length: None,
        version: 1,
        max_age_ms: 0,
        content_type: String::new(),
        delivery: Delivery::Inline(Bytes::new()),
        signature: None,
        tree: None,
    };
    for (name, message) in [
        ("META", Message::Meta(meta)),
        ("ERROR", unknown(1).unwrap()),
        ("GRANT", Message::Grant { lasts_ms: 0 }),
        ("SUBSCRIBE_OK", Message::SubscribeOk { request: 1 }),
        (
            "REJECT",
            Message::Reject {
                alias: 1,
                code: RequestCode::Unknown,
                retry_after_ms: 0,
            },
        ),
        ("CHECKS", Message::Checks(checks())),
    ] {
        let (mut proto, now) = conversation(FirstPass::Coded);
        assert_eq!(
            proto.handle_message(now, message),
            Err(Violation::Unexpected(name))
        );
    }
}

#[test]
fn messages_that_are_not_read_end_the_connection() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    // The message about it waits, too.
    proto.go_away(SECOND);
    for request in 1..OUTBOX_MAX as u64 {
        proto
            .handle_message(now, get(request, "/live/1.m4s"))
            .unwrap();
    }
    assert_eq!(
        (proto.backlog(), proto.handle_timeout(now)),
        (OUTBOX_MAX, Ok(()))
    );
    proto.handle_message(now, get(1, "/live/1.m4s")).unwrap();
    assert_eq!(
        proto.handle_timeout(now),
        Err(Violation::Timeout("reading of the control stream"))
    );
}

#[test]
fn control_bytes_are_rationed() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let second = usize::try_from(Config::default().control_bytes_per_second).unwrap();
    proto.handle_control_bytes(now, second);
    assert_eq!(proto.control_resumes(now), None, "a second's worth at once");
    proto.handle_control_bytes(now, second / 2);
    assert_eq!(proto.control_resumes(now), Some(now + SECOND / 2));
    assert_eq!(proto.control_resumes(now + SECOND / 2), None);
    for step in 2..100 {
        proto.handle_control_bytes(now + step * SECOND, second);
        assert_eq!(proto.control_resumes(now + step * SECOND), None);
    }
}

#[test]
fn questions_are_rationed_by_their_number() {
    let (mut proto, now) = greeted();
    let most = u64::from(Config::default().questions_per_second / GET_COST);
    for request in 0..most {
        assert_eq!(
            proto.control_resumes(now),
            None,
            "{request}: a second's worth at once"
        );
        proto
            .handle_message(now, get(request, "/live/none"))
            .unwrap();
        proto.resolved(now, request, Err(not_there()));
    }
    proto.handle_message(now, get(most, "/live/none")).unwrap();
    proto.resolved(now, most, Err(not_there()));
    assert_eq!(
        proto.control_resumes(now),
        Some(now + SECOND * GET_COST / Config::default().questions_per_second)
    );
    assert_eq!(proto.control_resumes(now + SECOND / 100), None);
}

/// Of two sessions of one address or token, one sends many queries and the other few.
#[test]
fn questions_of_an_address_and_a_token_are_rationed_together() {
    let (few, now) = (200, Instant::now());
    let of_address = Config {
        address_questions_per_second: few,
        ..Config::default()
    };
    let of_token = Config {
        token_questions_per_second: few,
        ..Config::default()
    };
    for (config, is_token) in [(of_address, false), (of_token, true)] {
        let shared = Arc::new(Ledger::default());
        let mut sessions = [1, 2, 3].map(|number| {
            let mut proto = Proto::new(SessionId(number), config, now);
            proto
                .handle_message(now, Message::Hello(Hello::defaults()))
                .unwrap();
            let (address, token) = if is_token {
                (Arc::default(), Arc::clone(&shared))
            } else {
                (Arc::clone(&shared), Arc::default())
            };
            proto.set_ledgers(address, Some(token));
            proto
        });
        let ask = |proto: &mut Proto, questions: u16| {
            for alias in 0..questions {
                proto
                    .handle_message(now, Message::Request(request(alias, 1)))
                    .unwrap();
                proto
                    .handle_message(
                        now,
                        Message::Stop {
                            alias,
                            reason: StopReason::Complete,
                        },
                    )
                    .unwrap();
            }
            proto.control_resumes(now)
        };
        assert_eq!(ask(&mut sessions[0], 150), None);
        assert_eq!(
            ask(&mut sessions[1], 150),
            Some(now + SECOND / 2),
            "together they have asked for 100 too many"
        );
        assert!(sessions[0].control_resumes(now).is_some());
        assert_eq!(
            ask(&mut sessions[2], 50),
            None,
            "who asks for little is not held up"
        );
        sessions[2]
            .handle_message(now, get_hashes(1, b"segment"))
            .unwrap();
        let subscribe = Subscribe {
            request: 2,
            stream: "live".into(),
        };
        sessions[2]
            .handle_message(now, Message::Subscribe(subscribe))
            .unwrap();
        assert_eq!(
            shared.resumes(now),
            Some(now + SECOND * 155 / 200),
            "each question counts"
        );
    }
}

#[test]
fn a_drained_conversation_refuses_what_is_new_and_finishes_what_is_open() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    ask(&mut proto, now, request(3, 4), FirstPass::Coded).unwrap();
    proto.go_away(SECOND);
    assert_eq!(
        proto.poll_message(),
        Some(Message::GoAway { drain_ms: 1000 })
    );
    proto
        .handle_message(now, Message::Request(request(4, 4)))
        .unwrap();
    assert!(matches!(
        proto.poll_message(),
        Some(Message::Reject {
            alias: 4,
            code: RequestCode::GoingAway,
            ..
        })
    ));
    assert!(!proto.is_idle());
    proto
        .handle_message(
            now,
            Message::Stop {
                alias: 3,
                reason: StopReason::Complete,
            },
        )
        .unwrap();
    assert!(proto.is_idle());
}

#[test]
fn a_subscription_ends_with_its_stream() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let subscribe = Subscribe {
        request: 5,
        stream: "live".into(),
    };
    proto
        .handle_message(now, Message::Subscribe(subscribe))
        .unwrap();
    proto.subscribed(5, Ok(()));
    assert_eq!(
        proto.poll_message(),
        Some(Message::SubscribeOk { request: 5 })
    );
    assert!(proto.announced(now, 5, resolved(held(FirstPass::Coded))));
    assert!(matches!(proto.poll_message(), Some(Message::Meta(meta)) if meta.request == 5));
    proto.subscription_ended(5);
    assert!(matches!(
        proto.poll_message(),
        Some(Message::Error(error)) if error.request == 5 && error.code == RequestCode::Unknown
    ));
    assert!(!proto.announced(now, 5, resolved(held(FirstPass::Coded))));
}

#[test]
fn a_number_that_is_in_use_ends_the_connection() {
    let subscribe = Message::Subscribe(Subscribe {
        request: 9,
        stream: "live".into(),
    });
    let checks = Message::GetChecks(get_checks(9, 0));
    let askers = [
        get(9, "/live/2.m4s"),
        subscribe.clone(),
        get_hashes(9, b"segment"),
        checks,
    ];
    for first in &askers {
        for second in &askers {
            let (mut proto, now) = conversation(FirstPass::Coded);
            proto.handle_message(now, first.clone()).unwrap();
            let in_use = Err(Violation::Unexpected("number of a request that is in use"));
            assert_eq!(
                proto.handle_message(now, second.clone()),
                in_use,
                "{first:?}, {second:?}"
            );
        }
    }
    // A subscription has its number until it ends, others until they are answered.
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto.handle_message(now, get(9, "/live/2.m4s")).unwrap();
    proto.resolved(now, 9, Err(not_there()));
    proto.handle_message(now, subscribe).unwrap();
    assert!(proto.subscribed(9, Ok(())));
    assert!(proto.handle_message(now, get(9, "/live/2.m4s")).is_err());
    proto.subscription_ended(9);
    proto.handle_message(now, get(9, "/live/2.m4s")).unwrap();
}

#[test]
fn a_subscription_whose_segments_the_peer_does_not_take_ends() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto
        .handle_message(
            now,
            Message::Subscribe(Subscribe {
                request: 5,
                stream: "live".into(),
            }),
        )
        .unwrap();
    assert!(proto.subscribed(5, Ok(())));
    proto.poll_message();
    let mut segment = held(FirstPass::Coded);
    segment.lease.shape = segment.lease.shape.coded_with(Codec::RaptorQ).unwrap();
    assert!(
        !proto.announced(now, 5, resolved(segment)),
        "the ERROR ends the subscription"
    );
    assert!(matches!(
        proto.poll_message(),
        Some(Message::Error(error)) if error.code == RequestCode::Limit
    ));
    assert!(
        !proto.announced(now, 5, resolved(held(FirstPass::Coded)))
            && proto.poll_message().is_none()
    );
}

#[test]
fn subscriptions_beyond_a_number_are_refused() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let most = u64::from(Config::default().subscriptions_max);
    let subscribe = |request| {
        Message::Subscribe(Subscribe {
            request,
            stream: "live".into(),
        })
    };
    for request in 0..=most {
        proto.handle_message(now, subscribe(request)).unwrap();
    }
    assert!(matches!(
        proto.poll_message(),
        Some(Message::Error(error))
            if error.request == most && error.code == RequestCode::Limit
    ));
    proto
        .handle_message(now, Message::Unsubscribe { request: 0 })
        .unwrap();
    proto.handle_message(now, subscribe(most)).unwrap();
    assert!(proto.poll_message().is_none());
}

#[test]
fn a_subscription_that_is_given_up_before_its_answer_is_not_begun() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto
        .handle_message(
            now,
            Message::Subscribe(Subscribe {
                request: 5,
                stream: "live".into(),
            }),
        )
        .unwrap();
    proto
        .handle_message(now, Message::Unsubscribe { request: 5 })
        .unwrap();
    assert!(matches!(proto.poll_event(), Some(Event::Subscribe(_))));
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Unsubscribed { request: 5 })
    ));
    assert!(!proto.subscribed(5, Ok(())) && proto.poll_message().is_none());
}

#[test]
fn who_knows_of_a_segment_keeps_nothing_of_it() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let (loan, mut other) = (Loan::new(now), held(FirstPass::Coded));
    other.lease = Lease::new(
        SegmentKey(2),
        SegmentId::of(b"other"),
        other.lease.shape,
        Arc::clone(&loan),
    );
    proto.handle_message(now, get(2, "/live/1.m4s")).unwrap();
    proto.resolved(now, 2, Ok(resolved(other)));
    assert_eq!(loan.leases(), 0);
}

/// Leases of a segment that another session holds, and the segment as it is found there.
fn lent(now: Instant, held: Held) -> (Arc<Loan>, Held) {
    let loan = Loan::new(now);
    let lease = Lease::new(
        held.lease.key,
        held.lease.id,
        held.lease.shape,
        Arc::clone(&loan),
    );
    (loan, Held { lease, ..held })
}

/// Opens a request for a segment, and drops what was found.
fn open_lent(proto: &mut Proto, now: Instant, request: Request, held: Held) -> Arc<Loan> {
    let (loan, held) = lent(now, held);
    proto
        .handle_message(now, Message::Request(request))
        .unwrap();
    let ticket = std::iter::from_fn(|| proto.poll_event()).find_map(|event| match event {
        Event::Find { ticket, .. } => Some(ticket),
        _ => None,
    });
    proto
        .found(now, ticket.expect("a segment is looked for"), Some(held))
        .unwrap();
    loan
}

/// Sends this many coded blocks of request 3.
fn send_coded(proto: &mut Proto, now: Instant, blocks: u32) {
    for seed in 0..blocks {
        wants(proto);
        proto.stamp(3, &Vector::Seed(seed), Route::Stream).unwrap();
    }
    proto.note_sent(
        now,
        3,
        blocks.into(),
        blocks.into(),
        u64::from(blocks) * 1088,
    );
}

#[test]
fn a_request_keeps_its_segment_while_it_has_blocks_to_send() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let long = Request {
        deadline_ms: 3_600_000,
        ..request(3, 0)
    };
    let loan = open_lent(&mut proto, now, long, held(FirstPass::Coded));
    assert_eq!(loan.leases(), 0, "without credit");
    for round in 1..4 {
        let now = now + round * SECOND;
        proto
            .handle_message(
                now,
                Message::Credit {
                    alias: 3,
                    blocks: 2,
                },
            )
            .unwrap();
        assert_eq!(loan.leases(), 1, "with credit");
        send_coded(&mut proto, now, 1);
        assert_eq!((loan.leases(), loan.used_at()), (1, Some(now)));
        send_coded(&mut proto, now, 1);
        assert_eq!(loan.leases(), 0, "all of it is spent");
        proto.handle_timeout(now).unwrap();
        assert!(
            proto
                .poll_timeout()
                .is_some_and(|due| due <= now + LEASE_LOOK_EVERY),
            "nothing may happen on the connection"
        );
    }
    assert_eq!(proto.take_tally().evicted, 0);
    // The segment goes: the peer is told within a second, and its blocks stay useful.
    loan.end();
    let now = now + 4 * SECOND;
    proto.handle_timeout(now).unwrap();
    assert_eq!(
        proto.poll_message(),
        Some(Message::Reject {
            alias: 3,
            code: RequestCode::Unknown,
            retry_after_ms: 0
        })
    );
    let ended =
        std::iter::from_fn(|| proto.poll_event()).find(|event| matches!(event, Event::Ended(_)));
    assert!(matches!(
        ended,
        Some(Event::Ended(Ended {
            alias: 3,
            abandon: false,
            ..
        }))
    ));
    assert_eq!((proto.take_tally().evicted, loan.leases()), (1, 0));
}

#[test]
fn credit_that_no_block_is_left_for_keeps_nothing() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let sources = Request {
        accept: Accept {
            coded: false,
            ..request(3, 0).accept
        },
        ranges: vec![(2, 1)],
        ..request(3, 100)
    };
    let loan = open_lent(&mut proto, now, sources, held(FirstPass::Coded));
    assert_eq!((wants(&mut proto).len(), loan.leases()), (1, 1));
    proto.stamp(3, &Vector::Source(2), Route::Stream).unwrap();
    proto.note_sent(now, 3, 1, 0, 1088);
    assert_eq!(loan.leases(), 0);
    proto
        .handle_message(
            now,
            Message::Credit {
                alias: 3,
                blocks: 100,
            },
        )
        .unwrap();
    assert_eq!((wants(&mut proto).len(), loan.leases()), (0, 0));
}

#[test]
fn a_segment_that_goes_ends_the_request_that_has_blocks_to_send() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let long = Request {
        deadline_ms: 3_600_000,
        ..request(3, 10)
    };
    let loan = open_lent(&mut proto, now, long, held(FirstPass::Coded));
    send_coded(&mut proto, now, 3);
    proto.handle_timeout(now).unwrap();
    assert_eq!((proto.poll_message(), loan.leases()), (None, 1));
    // A path may take long for the blocks that have left.
    proto.note_taken(now + SECOND, 3);
    assert_eq!(loan.used_at(), Some(now + SECOND));
    loan.end();
    // Nothing on the connection may show it.
    assert!(
        proto
            .poll_timeout()
            .is_some_and(|due| due <= now + LEASE_LOOK_EVERY)
    );
    proto.handle_timeout(now).unwrap();
    assert_eq!(
        proto.poll_message(),
        Some(Message::Reject {
            alias: 3,
            code: RequestCode::Unknown,
            retry_after_ms: 0
        })
    );
    assert_eq!((loan.leases(), proto.take_tally().evicted), (0, 1));
    assert!(proto.claims().is_empty());
}

/// Two sessions of one address, or of one token at two addresses: the bytes that they keep are
/// bounded for each, and for both together.
#[test]
fn what_requests_keep_is_bounded_for_a_session_an_address_and_a_token() {
    // Of segments of 68 KiB each.
    let (two, three, many) = (140 << 10, 210 << 10, 1 << 20);
    let config = Config {
        leased_bytes_max: two,
        ..Config::default()
    };
    let shared = || Arc::new(Ledger::default());
    let address = shared();
    let of_address = Config {
        address_leased_bytes_max: three,
        token_leased_bytes_max: many,
        ..config
    };
    what_two_sessions_keep(of_address, &address, || {
        (Arc::clone(&address), Some(shared()))
    });
    let token = shared();
    let of_token = Config {
        address_leased_bytes_max: many,
        token_leased_bytes_max: three,
        ..config
    };
    what_two_sessions_keep(of_token, &token, || (shared(), Some(Arc::clone(&token))));
}

/// The bytes that two sessions keep which share a ledger, where each may keep two segments, and
/// both together three.
fn what_two_sessions_keep(
    config: Config,
    shared: &Ledger,
    ledgers: impl Fn() -> (Arc<Ledger>, Option<Arc<Ledger>>),
) {
    let now = Instant::now();
    let mut sessions: Vec<Proto> = (0..2)
        .map(|number| {
            let mut proto = Proto::new(SessionId(number), config, now);
            proto
                .handle_message(now, Message::Hello(Hello::defaults()))
                .unwrap();
            while proto.poll_message().is_some() {}
            let (address, token) = ledgers();
            proto.set_ledgers(address, token);
            proto
        })
        .collect();
    let open = |proto: &mut Proto, now, number: u16| {
        let id = SegmentId::of(&number.to_le_bytes());
        let segment = held(FirstPass::Coded);
        let lease = Lease::new(
            SegmentKey(number.into()),
            id,
            segment.lease.shape,
            Loan::new(now),
        );
        let request = Request {
            segment: id,
            deadline_ms: 3_600_000,
            ..request(number, 10)
        };
        open_lent(proto, now, request, Held { lease, ..segment });
        proto.poll_message().map(|message| match message {
            Message::Reject {
                alias,
                code: RequestCode::Overload,
                retry_after_ms: 200,
            } => alias,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(
        [1, 2, 3].map(|number| open(&mut sessions[0], now, number)),
        [None, None, Some(3)]
    );
    assert_eq!(
        [4, 5].map(|number| open(&mut sessions[1], now, number)),
        [None, Some(5)],
        "both have three"
    );
    assert_eq!(
        open(&mut sessions[1], now, 1),
        None,
        "a segment counts once"
    );
    sessions[0]
        .handle_message(
            now,
            Message::Stop {
                alias: 2,
                reason: StopReason::Complete,
            },
        )
        .unwrap();
    assert_eq!(open(&mut sessions[0], now, 6), None);
    assert_eq!(
        sessions[0].take_tally().unleased + sessions[1].take_tally().unleased,
        2
    );
    // Blocks that are not read make room for the other session, and their requests end.
    let later = now + 2 * SECOND;
    assert_eq!(open(&mut sessions[1], later, 7), None);
    sessions
        .iter_mut()
        .for_each(|proto| proto.handle_timeout(later).unwrap());
    let rejected: Vec<_> = sessions
        .iter_mut()
        .flat_map(|proto| std::iter::from_fn(|| proto.poll_message()))
        .collect();
    assert!(
        matches!(
            rejected[..],
            [
                Message::Reject {
                    code: RequestCode::Overload,
                    ..
                },
                ..
            ]
        ),
        "{rejected:?}"
    );
    drop(sessions);
    assert_eq!(shared.bytes(), 0);
}

/// Two requests of one session for one segment: the first is not read, and the second is read
/// slowly.
#[test]
fn a_request_that_is_not_read_keeps_nothing_by_what_others_of_its_session_read() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let shape = Shape::new(2 * 64 * 1088, 1088, 64).unwrap();
    let (loan, segment) = (Loan::new(now), held(FirstPass::Coded));
    let open = |proto: &mut Proto, generation, alias, credit| {
        let lease = Lease::new(
            segment.lease.key,
            segment.lease.id,
            shape,
            Arc::clone(&loan),
        );
        let accept = Accept {
            datagrams: false,
            ..request(alias, 0).accept
        };
        let request = Request {
            deadline_ms: 3_600_000,
            generation,
            accept,
            ..request(alias, credit)
        };
        proto
            .handle_message(now, Message::Request(request))
            .unwrap();
        let ticket = std::iter::from_fn(|| proto.poll_event()).find_map(|event| match event {
            Event::Find { ticket, .. } => Some(ticket),
            _ => None,
        });
        proto
            .found(
                now,
                ticket.expect("a segment is looked for"),
                Some(Held {
                    lease,
                    ..segment.clone()
                }),
            )
            .unwrap();
    };
    open(&mut proto, 0, 2, 10);
    open(&mut proto, 1, 3, 0);
    assert_eq!((loan.leases(), loan.standing(now)), (1, Standing::InUse));
    let mut now = now;
    for _ in 0..5 {
        now += Duration::from_millis(900);
        proto
            .handle_message(
                now,
                Message::Credit {
                    alias: 3,
                    blocks: 1,
                },
            )
            .unwrap();
        send_coded(&mut proto, now, 1);
        proto.note_progress(now);
        proto.handle_timeout(now).unwrap();
    }
    assert_eq!((loan.leases(), loan.standing(now)), (1, Standing::Recent));
    assert_eq!(loan.standing(now + SECOND), Standing::Stalled);
    proto.note_taken(now, 2);
    assert_eq!(loan.standing(now), Standing::InUse);
}

#[test]
fn a_request_without_credit_ends_before_its_deadline() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let stall = Config::default().stall_timeout;
    let long = Request {
        deadline_ms: 3_600_000,
        ..request(3, 0)
    };
    open_lent(&mut proto, now, long, held(FirstPass::Coded));
    // The peer may be waiting for the blocks on their way.
    proto.note_unacknowledged(now + SECOND);
    let due = now + SECOND + stall;
    proto.handle_timeout(now + stall).unwrap();
    assert_eq!(proto.poll_message(), None);
    proto
        .handle_message(
            now + stall,
            Message::Credit {
                alias: 3,
                blocks: 1,
            },
        )
        .unwrap();
    proto.handle_timeout(due).unwrap();
    assert_eq!(proto.poll_message(), None, "it has blocks to send");
    send_coded(&mut proto, due, 1);
    assert!(proto.poll_timeout().is_some_and(|next| next <= due + stall));
    proto.handle_timeout(due + stall).unwrap();
    assert_eq!(
        proto.poll_message(),
        Some(Message::Reject {
            alias: 3,
            code: RequestCode::Deadline,
            retry_after_ms: 0
        })
    );
    let ended =
        std::iter::from_fn(|| proto.poll_event()).find(|event| matches!(event, Event::Ended(_)));
    assert!(
        matches!(
            ended,
            Some(Event::Ended(Ended {
                alias: 3,
                abandon: false,
                ..
            }))
        ),
        "what has left may still be read"
    );
    let tally = proto.take_tally();
    assert_eq!((tally.idle, tally.late), (1, 0));
}

/// The same bytes may also lie at a path that this peer may not have.
#[test]
fn of_several_paths_the_one_that_was_asked_for_counts() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto.set_access(granted("/live/*", None));
    let elsewhere = Held {
        path: Some("/files/1.m4s".into()),
        ..held(FirstPass::Coded)
    };
    proto
        .handle_message(now, Message::Request(request(3, 10)))
        .unwrap();
    let ticket = std::iter::from_fn(|| proto.poll_event()).find_map(|event| match event {
        Event::Find { ticket, .. } => Some(ticket),
        _ => None,
    });
    proto
        .found(
            now,
            ticket.expect("a segment is looked for"),
            Some(elsewhere),
        )
        .unwrap();
    assert_eq!(wants(&mut proto).len(), 1);
}

#[test]
fn a_session_asks_for_no_more_than_its_share_of_the_ring() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    ask(&mut proto, now, request(3, 100), FirstPass::Coded).unwrap();
    let key = GenerationKey {
        segment: SegmentKey(1),
        index: 0,
    };
    let want = |proto: &mut Proto, share| proto.poll_want(share).map(|(want, _)| want);
    assert_eq!(want(&mut proto, 10), Some(Want::Coded(coded(key), 10)));
    assert_eq!(want(&mut proto, 10), None);
    assert_eq!(want(&mut proto, 12), Some(Want::Coded(coded(key), 2)));
    proto.stamp(3, &Vector::Seed(0), Route::Datagram).unwrap();
    assert_eq!(want(&mut proto, 12), Some(Want::Coded(coded(key), 1)));
}

#[test]
fn useless_blocks_are_counted_once() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    ask(&mut proto, now, request(3, 4), FirstPass::Coded).unwrap();
    proto.note_sent(now, 3, 4, 4, 0);
    for (useless, lost) in [(1, 0), (1, 2), (0, 1), (3, 2)] {
        proto
            .handle_message(
                now,
                Message::Rank {
                    alias: 3,
                    rank: 1,
                    useless,
                    lost,
                },
            )
            .unwrap();
    }
    let tally = proto.take_tally();
    assert_eq!((tally.useless, tally.lost), (3, 2));
}

/// A relay makes other blocks in the place of lost ones. A peer that reports more and more of them
/// gets no more than its credit, and costs no more events than it has had blocks.
#[test]
fn no_more_blocks_are_lost_than_were_sent() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let mut wish = request(3, 10);
    (wish.segment, wish.accept.recoded) = (SegmentId::of(b"relayed"), true);
    proto.handle_message(now, Message::Request(wish)).unwrap();
    let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
        panic!("an unknown segment is looked for")
    };
    let mut relayed = Held {
        is_recoded: true,
        ..held(FirstPass::Coded)
    };
    relayed.lease = Lease::new(
        SegmentKey(3),
        SegmentId::of(b"relayed"),
        relayed.lease.shape,
        Loan::new(Instant::now()),
    );
    proto.found(now, ticket, Some(relayed)).unwrap();
    while proto.poll_event().is_some() || proto.poll_want(100).is_some() {}
    proto.note_sent(now, 3, 3, 3, 0);
    for lost in (1..1000).chain([u32::MAX]) {
        proto
            .handle_message(
                now,
                Message::Rank {
                    alias: 3,
                    rank: 1,
                    useless: lost,
                    lost,
                },
            )
            .unwrap();
    }
    let lost = std::iter::from_fn(|| proto.poll_event()).map(|event| match event {
        Event::Lost { blocks, .. } => blocks,
        other => panic!("{other:?}"),
    });
    assert_eq!(lost.collect::<Vec<_>>(), [1, 1, 1]);
    let tally = proto.take_tally();
    assert_eq!((tally.useless, tally.lost), (3, 3));
}

fn granted(pattern: &str, until: Option<Instant>) -> Access {
    Access::Granted {
        scope: Scope::parse(&[pattern]).unwrap(),
        until,
        grace: Some(SECOND),
    }
}

fn get(request: u64, path: &str) -> Message {
    Message::Get(Get {
        request,
        path: path.into(),
        offset: 0,
        length: None,
        held_only: false,
    })
}

/// The answer to a GET for a path that does not exist, and the path that was passed on.
fn asked(proto: &mut Proto, now: Instant, path: &str, reason: &str) -> (String, Message) {
    proto.handle_message(now, get(9, path)).unwrap();
    let Some(Event::Resolve(inside)) = proto.poll_event() else {
        panic!("a question for {path}")
    };
    let refusal = Refusal {
        code: RequestCode::Unknown,
        retry_after: Some(SECOND),
        reason: reason.into(),
    };
    proto.resolved(now, 9, Err(refusal));
    (inside.path, proto.poll_message().unwrap())
}

#[test]
fn what_may_not_be_asked_for_and_what_is_not_there_look_alike() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let (path, told) = asked(
        &mut proto,
        now,
        "/live/none",
        "the origin has no such object",
    );
    assert_eq!(path, "/live/none");
    assert!(
        matches!(
            told,
            Message::Error(RequestError {
                retry_after_ms: 1000,
                ..
            })
        ),
        "{told:?}"
    );
    proto.set_access(granted("/live/*", None));
    let (there, missing) = asked(
        &mut proto,
        now,
        "/live/none",
        "the origin has no such object",
    );
    let (nowhere, forbidden) = asked(&mut proto, now, "/files/secret", "no such stream");
    assert_eq!((there.as_str(), nowhere.as_str()), ("/live/none", NOWHERE));
    assert_eq!(missing, forbidden);
    let subscribe = |stream: &str| {
        Message::Subscribe(Subscribe {
            request: 20,
            stream: stream.into(),
        })
    };
    for (stream, inside) in [("live", "live"), ("files", NO_STREAM)] {
        proto.handle_message(now, subscribe(stream)).unwrap();
        assert!(
            matches!(proto.poll_event(), Some(Event::Subscribe(asked)) if asked.stream == inside),
            "{stream}"
        );
        proto.subscribed(20, Err(not_there()));
    }
}

#[test]
fn a_segment_is_for_those_who_may_have_its_path() {
    for (pattern, may) in [("/live/*", true), ("/files/*", false)] {
        let now = Instant::now();
        let mut proto = Proto::new(SESSION, Config::default(), now);
        proto.set_access(granted(pattern, None));
        proto
            .handle_message(now, Message::Hello(Hello::defaults()))
            .unwrap();
        proto.poll_message();
        proto
            .handle_message(now, Message::Request(request(3, 10)))
            .unwrap();
        let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
            panic!("a question for the segment")
        };
        proto
            .found(now, ticket, Some(held(FirstPass::Coded)))
            .unwrap();
        assert_eq!(!wants(&mut proto).is_empty(), may, "{pattern}");
        let rejected = Message::Reject {
            alias: 3,
            code: RequestCode::Unknown,
            retry_after_ms: 0,
        };
        assert_eq!(
            proto.poll_message(),
            (!may).then_some(rejected),
            "as if it was not there"
        );
    }
}

#[test]
fn a_grant_that_ends_takes_open_requests_along_and_later_the_connection() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto.set_access(granted("/live/*", Some(now + SECOND)));
    let mut long = request(3, 10);
    long.deadline_ms = 60_000;
    ask(&mut proto, now, long, FirstPass::Coded).unwrap();
    proto.handle_message(now, get(4, "/live/2.m4s")).unwrap();
    proto.poll_event();
    assert!(!wants(&mut proto).is_empty() && proto.poll_timeout() == Some(now + SECOND));
    proto.handle_timeout(now + SECOND).unwrap();
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Ended(Ended {
            alias: 3,
            abandon: true,
            ..
        }))
    ));
    proto.resolved(now, 4, Ok(resolved(held(FirstPass::Coded))));
    let told: Vec<_> = std::iter::from_fn(|| proto.poll_message()).collect();
    assert_eq!(told[0], Message::Grant { lasts_ms: 0 });
    assert!(
        matches!(
            told[1],
            Message::Reject {
                alias: 3,
                code: RequestCode::Unknown,
                ..
            }
        ),
        "{told:?}"
    );
    assert!(
        matches!(
            &told[2],
            Message::Error(error) if error.request == 4 && error.code == RequestCode::Unknown
        ),
        "{told:?}"
    );
    assert!(
        proto.claims().is_empty() && proto.stamp(3, &Vector::Seed(1), Route::Stream).is_none(),
        "no block leaves"
    );
    assert_eq!(proto.take_tally().lapsed, 1);
    // Keys that change meanwhile do not extend it.
    proto.set_access(Access::Refused {
        until: now + 100 * SECOND,
    });
    assert_eq!(proto.poll_timeout(), Some(now + 2 * SECOND));
    assert_eq!(
        proto.handle_timeout(now + 2 * SECOND),
        Err(Violation::Unauthorised)
    );
    assert_eq!(
        Violation::Unauthorised.close_code(),
        crate::wire::CloseCode::Auth
    );
}

#[test]
fn a_renewal_in_time_changes_nothing_and_a_narrower_token_ends_what_it_does_not_cover() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto.set_access(granted("/live/*", Some(now + SECOND)));
    let mut long = request(3, 10);
    long.deadline_ms = 60_000;
    ask(&mut proto, now, long, FirstPass::Coded).unwrap();
    proto
        .handle_message(now, Message::Auth(Credential::Token(Token("newer".into()))))
        .unwrap();
    assert_eq!(
        proto.poll_credential(),
        Some(Credential::Token(Token("newer".into())))
    );
    assert_eq!(proto.poll_credential(), None);
    proto.judged(now, true, granted("/live/*", Some(now + 5 * SECOND)));
    assert_eq!(
        proto.poll_message(),
        Some(Message::Grant { lasts_ms: 5000 })
    );
    proto.handle_timeout(now + 2 * SECOND).unwrap();
    assert!(proto.poll_message().is_none() && !wants(&mut proto).is_empty());
    proto.judged(now, false, granted("/live/*", Some(now + 5 * SECOND)));
    assert_eq!(proto.poll_message(), Some(Message::Grant { lasts_ms: 0 }));
    assert!(
        !proto.claims().is_empty(),
        "a refused token leaves the one before"
    );
    proto.judged(now, true, granted("/files/*", None));
    assert!(matches!(
        proto.poll_message(),
        Some(Message::Reject {
            alias: 3,
            code: RequestCode::Unknown,
            ..
        })
    ));
    assert_eq!(
        proto.poll_message(),
        Some(Message::Grant {
            lasts_ms: GRANT_FOREVER
        })
    );
    assert!(proto.claims().is_empty());
}

#[test]
fn tokens_come_at_a_modest_rate() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let auth = || Message::Auth(Credential::Token(Token("t".into())));
    for _ in 0..TOKENS_MAX {
        proto.handle_message(now, auth()).unwrap();
    }
    assert_eq!(
        proto.handle_message(now + TOKEN_EVERY / 2, auth()),
        Err(Violation::Limit("tokens"))
    );
    let (mut proto, now) = conversation(FirstPass::Coded);
    for count in 0..5 * TOKENS_MAX {
        proto
            .handle_message(now + count * TOKEN_EVERY, auth())
            .unwrap();
    }
}

#[test]
fn announcements_are_for_those_who_may_have_them() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto
        .handle_message(
            now,
            Message::Subscribe(Subscribe {
                request: 20,
                stream: "live".into(),
            }),
        )
        .unwrap();
    proto.subscribed(20, Ok(()));
    proto.poll_message();
    proto.set_access(granted("/live/1.m4s", None));
    assert!(
        proto.announced(now, 20, resolved(held(FirstPass::Coded)))
            && proto.poll_message().is_some()
    );
    let other = Resolved {
        path: "/live/2.m4s".into(),
        ..resolved(held(FirstPass::Coded))
    };
    assert!(proto.announced(now, 20, other) && proto.poll_message().is_none());
}

#[test]
fn those_who_ask_for_a_segment_are_told_who_else_has_it_once_in_a_while() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let introductions = |proto: &mut Proto| {
        std::iter::from_fn(|| proto.poll_event())
            .filter(|event| matches!(event, Event::Introduce { .. }))
            .count()
    };
    ask(&mut proto, now, request(3, 10), FirstPass::Coded).unwrap();
    assert_eq!(introductions(&mut proto), 0, "it was told behind META");
    let (segment, again, later) = (
        SegmentId::of(b"segment"),
        now + INTRODUCE_EVERY,
        now + 2 * INTRODUCE_EVERY,
    );
    proto.resolved(again, 1, Ok(resolved(held(FirstPass::Coded))));
    assert_eq!(introductions(&mut proto), 1);
    proto
        .handle_message(
            later,
            Message::Stop {
                alias: 3,
                reason: StopReason::Cancelled,
            },
        )
        .unwrap();
    while proto.poll_event().is_some() {}
    ask(&mut proto, later, request(4, 10), FirstPass::Coded).unwrap();
    assert_eq!(introductions(&mut proto), 1);
    let (address, ticket) = (
        "192.0.2.1:4443".parse().unwrap(),
        Ticket(Bytes::from_static(b"t")),
    );
    let peers = vec![Introduction {
        address,
        identity: [1; 32],
        lasts_ms: 1,
        ticket,
    }];
    while proto.poll_message().is_some() {}
    proto.introduce(segment, peers.clone());
    assert_eq!(
        proto.poll_message(),
        Some(Message::Peers { segment, peers })
    );
}

#[test]
fn offers_and_tickets_go_to_those_who_keep_them() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    while proto.poll_event().is_some() {}
    proto
        .handle_message(
            now,
            Message::Offer {
                port: 7,
                identity: [1; 32],
            },
        )
        .unwrap();
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Offer { port: 7, .. })
    ));
    let holding = Holding {
        segment: SegmentId::of(b"x"),
        meant: Meant::LastNamed,
        state: HoldingState::Partial,
    };
    proto
        .handle_message(now, Message::Have(vec![holding]))
        .unwrap();
    assert!(matches!(proto.poll_event(), Some(Event::Have(holdings)) if holdings == [holding]));
    let ticket = Credential::Ticket(Ticket(Bytes::from_static(b"t")));
    proto
        .handle_message(now, Message::Auth(ticket.clone()))
        .unwrap();
    assert_eq!(proto.poll_credential(), Some(ticket));
}

#[test]
fn what_a_page_says_to_others_is_passed_on_at_a_modest_rate() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let signal = || Message::Signal {
        page: [2; 32],
        bytes: Bytes::from_static(b"s"),
    };
    let passed = |proto: &mut Proto| {
        std::iter::from_fn(|| proto.poll_event())
            .filter(|event| matches!(event, Event::Signal { .. }))
            .count()
    };
    // Not before it serves others itself.
    proto.handle_message(now, signal()).unwrap();
    assert_eq!(passed(&mut proto), 0);
    let offer = |serves| Message::OfferPage { serves };
    proto.handle_message(now, offer(true)).unwrap();
    assert!(matches!(
        proto.poll_event(),
        Some(Event::OfferPage { serves: true })
    ));
    for _ in 0..100 {
        proto.handle_message(now, signal()).unwrap();
    }
    assert_eq!(passed(&mut proto), limits::SIGNALS_MAX as usize);
    assert_eq!(proto.take_tally().signals, (32, 69));
    proto
        .handle_message(now + limits::SIGNALS_EVERY, signal())
        .unwrap();
    assert_eq!(passed(&mut proto), 1);
    // A page without rights is named to nobody, and says nothing.
    proto.set_access(Access::Granted {
        scope: Scope::parse(&["/live/*"]).unwrap(),
        until: None,
        grace: None,
    });
    proto.set_access(Access::Refused {
        until: now + Duration::from_secs(60),
    });
    assert!(matches!(
        std::iter::from_fn(|| proto.poll_event()).last(),
        Some(Event::Offer { port: 0, .. })
    ));
    let later = now + Duration::from_secs(20);
    proto.handle_message(later, offer(true)).unwrap();
    proto.handle_message(later, signal()).unwrap();
    assert!(proto.poll_event().is_none());
}

fn get_hashes(request: u64, segment: &[u8]) -> Message {
    Message::GetHashes {
        request,
        segment: SegmentId::of(segment),
        meant: Meant::LastNamed,
    }
}

fn get_checks(request: u64, generation: u32) -> GetChecks {
    GetChecks {
        request,
        segment: SegmentId::of(b"segment"),
        generation,
        nonce: [1; 32],
        meant: Meant::LastNamed,
    }
}

fn checks() -> Checks {
    Checks {
        request: 0,
        seed: [2; 32],
        columns: 1,
        projections: vec![0; 64].into(),
        signature: Some([3; 64]),
    }
}

fn unknown(request: u64) -> Option<Message> {
    let Refusal { code, reason, .. } = not_there();
    Some(Message::Error(RequestError {
        request,
        code,
        retry_after_ms: 0,
        reason,
    }))
}

#[test]
fn a_signature_goes_with_what_it_is_for() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let signature = Some(crate::object::Signature {
        key: [1; 32],
        issued_ms: 5,
        blocks: [2; 32],
        bytes: [3; 64],
    });
    let (_, tree) = crate::object::Tree::of(&[7; 64 * 1088], Codec::Rlnc);
    let with_tree = Held {
        tree: tree.clone(),
        ..held(FirstPass::Coded)
    };
    let signed = || Resolved {
        signature,
        ..resolved(with_tree.clone())
    };
    proto.handle_message(now, get(2, "/live/1.m4s")).unwrap();
    proto.resolved(now, 2, Ok(signed()));
    assert!(matches!(
        proto.poll_message(),
        Some(Message::Meta(meta)) if meta.signature == signature && meta.tree == tree
    ));
    proto
        .handle_message(
            now,
            Message::Subscribe(Subscribe {
                request: 20,
                stream: "live".into(),
            }),
        )
        .unwrap();
    proto.subscribed(20, Ok(()));
    proto.poll_message();
    proto.announced(now, 20, signed());
    assert!(matches!(
        proto.poll_message(),
        Some(Message::Meta(meta)) if meta.signature == signature && meta.tree == tree
    ));
}

#[test]
fn questions_about_a_segment_are_for_those_who_may_have_its_path() {
    for (pattern, may) in [("/live/*", true), ("/files/*", false)] {
        for question in [
            get_hashes(9, b"segment"),
            Message::GetChecks(get_checks(9, 0)),
        ] {
            let now = Instant::now();
            let mut proto = Proto::new(SESSION, Config::default(), now);
            proto.set_access(granted(pattern, None));
            proto
                .handle_message(now, Message::Hello(Hello::defaults()))
                .unwrap();
            proto.poll_message();
            proto.handle_message(now, question).unwrap();
            let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
                panic!("a question for the segment")
            };
            proto
                .found(now, ticket, Some(held(FirstPass::Coded)))
                .unwrap();
            let is_asked = matches!(
                proto.poll_event(),
                Some(Event::Hashes { .. } | Event::Checks { .. })
            );
            assert_eq!(
                (is_asked, proto.poll_message()),
                (may, if may { None } else { unknown(9) }),
                "{pattern}: as if it was not there"
            );
        }
    }
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto.set_access(granted("/live/*", None));
    proto
        .handle_message(now, get_hashes(9, b"segment"))
        .unwrap();
    find(&mut proto, now).unwrap();
    let Some(Event::Hashes { ticket, .. }) = proto.poll_event() else {
        panic!("a question for hashes")
    };
    // The right to it ends before the answer comes.
    proto.set_access(granted("/files/*", None));
    proto.hashes(now, ticket, Ok(Bytes::from_static(&[0; 16])));
    assert_eq!(proto.poll_message(), unknown(9));
    assert!(proto.poll_event().is_none() && proto.is_idle());
    assert_eq!(proto.take_tally().hashes, (0, 1));
}

#[test]
fn nothing_is_named_that_is_longer_than_the_peer_takes() {
    for (length, code) in [(1000, None), (1001, Some(RequestCode::Limit))] {
        let bytes = Bytes::from(vec![0; length]);
        let shape = Shape::new(bytes.len() as u64, 64, 16).unwrap();
        let lease = Lease::new(
            SegmentKey(2),
            SegmentId::of(&bytes),
            shape,
            Loan::new(Instant::now()),
        );
        let coded = Body::Coded(Held {
            lease,
            ..held(FirstPass::Coded)
        });
        for body in [
            coded,
            Body::Inline(bytes.clone()),
            Body::Whole(bytes.clone()),
        ] {
            let (mut proto, now) = conversation(FirstPass::Coded);
            proto.peer = Some(Hello {
                segment_bytes_max: 1000,
                ..Hello::defaults()
            });
            proto.handle_message(now, get(2, "/live/1.m4s")).unwrap();
            proto.resolved(
                now,
                2,
                Ok(Resolved {
                    length: shape.length(),
                    body,
                    ..resolved(held(FirstPass::Coded))
                }),
            );
            let refused = match proto.poll_message() {
                Some(Message::Meta(_)) => None,
                Some(Message::Error(error)) => Some(error.code),
                other => panic!("{other:?}"),
            };
            assert_eq!(refused, code);
            let is_delivered = std::iter::from_fn(|| proto.poll_event())
                .any(|event| matches!(event, Event::Deliver { .. }));
            assert!(!is_delivered || code.is_none());
        }
    }
}

/// Objects on their way count together with the segments that requests keep.
#[test]
fn what_is_delivered_is_bounded_in_bytes() {
    let now = Instant::now();
    let config = Config {
        leased_bytes_max: 100 << 10,
        ..Config::default()
    };
    let mut proto = Proto::new(SESSION, config, now);
    proto
        .handle_message(
            now,
            Message::Hello(Hello {
                codecs: Codecs::ALL,
                ..Hello::defaults()
            }),
        )
        .unwrap();
    let address = Arc::new(Ledger::default());
    proto.set_ledgers(Arc::clone(&address), None);
    let resolve = |proto: &mut Proto, request| {
        proto
            .handle_message(now, get(request, "/live/a.m3u8"))
            .unwrap();
        let whole = Resolved {
            body: Body::Whole(vec![0; 40 << 10].into()),
            ..resolved(held(FirstPass::Coded))
        };
        proto.resolved(now, request, Ok(whole));
        std::iter::from_fn(|| proto.poll_message()).last()
    };
    for request in 0..2 {
        assert!(matches!(
            resolve(&mut proto, request),
            Some(Message::Meta(_))
        ));
    }
    let is_overload = |message: Option<Message>, number: u64| match message {
        Some(Message::Error(RequestError {
            request,
            code: RequestCode::Overload,
            retry_after_ms: 200,
            ..
        })) => request == number,
        _ => false,
    };
    assert!(is_overload(resolve(&mut proto, 2), 2));
    let mut shares: Vec<Vec<Share>> = std::iter::from_fn(|| proto.poll_event())
        .filter_map(|event| match event {
            Event::Deliver { shares, .. } => Some(shares),
            _ => None,
        })
        .collect();
    assert_eq!((shares.len(), address.bytes()), (2, 80 << 10));
    let ask = |proto: &mut Proto, bytes: usize| {
        proto
            .handle_message(now, get_hashes(9, b"segment"))
            .unwrap();
        find(proto, now).unwrap();
        let Some(Event::Hashes { ticket, .. }) = proto.poll_event() else {
            panic!("a question for hashes")
        };
        proto.hashes(now, ticket, Ok(vec![0; bytes].into()));
        proto.poll_message()
    };
    assert!(is_overload(ask(&mut proto, 30 << 10), 9), "hashes, too");
    shares.pop();
    assert_eq!(ask(&mut proto, 30 << 10), None, "one has left");
    let Some(Event::DeliverHashes { shares: hashes, .. }) = proto.poll_event() else {
        panic!("hashes")
    };
    assert_eq!(
        (proto.take_tally().hashes, address.bytes()),
        ((1, 1), 70 << 10)
    );
    // An object that the peer does not take makes room for others.
    let other = Kept::Segment(SegmentKey(1));
    assert!(
        address
            .take(now + SECOND, (other, 70 << 10), 1, 100 << 10)
            .is_some()
    );
    assert!(shares[0].iter().chain(&hashes).any(Share::is_revoked));
}

#[test]
fn hashes_are_unanswered_until_they_have_left() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let most = u64::from(Config::default().requests_max);
    for request in 0..most {
        proto
            .handle_message(now, get_hashes(request, b"segment"))
            .unwrap();
        find(&mut proto, now).unwrap();
        let Some(Event::Hashes { ticket, .. }) = proto.poll_event() else {
            panic!("a question for hashes")
        };
        proto.hashes(now, ticket, Ok(Bytes::from_static(&[0; 16])));
        assert!(matches!(
            proto.poll_event(),
            Some(Event::DeliverHashes { request: delivered, .. }) if delivered == request
        ));
    }
    assert!(!proto.is_idle());
    proto.hashes_left();
    proto
        .handle_message(now, get_hashes(most, b"other"))
        .unwrap();
    let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
        panic!("a question for the segment")
    };
    let full = Err(Violation::Limit("unanswered GETs"));
    assert_eq!(
        proto.handle_message(now, get_hashes(most + 1, b"segment")),
        full
    );
    assert_eq!(
        proto.handle_message(now, Message::GetChecks(get_checks(most + 1, 0))),
        full
    );
    assert_eq!(
        proto.handle_message(now, get(most + 1, "/live/2.m4s")),
        full,
        "they are counted together"
    );
    proto.found(now, ticket, None).unwrap();
    assert_eq!(proto.poll_message(), unknown(most));
    proto
        .handle_message(now, get(most + 1, "/live/2.m4s"))
        .unwrap();
    assert_eq!(proto.take_tally().hashes, (most, 1));
}

#[test]
fn checksums_come_at_a_modest_rate() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let ask = |proto: &mut Proto, now, request| {
        proto
            .handle_message(now, Message::GetChecks(get_checks(request, 0)))
            .unwrap();
        match proto.poll_event() {
            Some(Event::Find { ticket, .. }) => {
                proto
                    .found(now, ticket, Some(held(FirstPass::Coded)))
                    .unwrap();
                let Some(Event::Checks { ticket, asked, .. }) = proto.poll_event() else {
                    panic!("a question for checksums")
                };
                assert_eq!(asked, get_checks(request, 0));
                proto.checks(now, ticket, Ok(checks()));
            }
            None => {}
            other => panic!("{other:?}"),
        }
        proto.poll_message().unwrap()
    };
    for request in 0..u64::from(CHECKS_MAX) {
        assert_eq!(
            ask(&mut proto, now, request),
            Message::Checks(Checks {
                request,
                ..checks()
            })
        );
    }
    let half = CHECKS_EVERY / 2;
    assert!(matches!(
        ask(&mut proto, now + half, 100),
        Message::Error(RequestError {
            request: 100,
            code: RequestCode::Overload,
            retry_after_ms: 125,
            ..
        })
    ));
    assert!(matches!(
        ask(&mut proto, now + 2 * half, 101),
        Message::Checks(_)
    ));
    assert!(
        matches!(ask(&mut proto, now + 2 * half, 102), Message::Error(_)),
        "one more, and not two"
    );
    assert_eq!(proto.take_tally().checks, (u64::from(CHECKS_MAX) + 1, 2));
    assert!(proto.is_idle());
}

#[test]
fn checksums_of_a_generation_that_there_is_not_end_the_connection() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto
        .handle_message(now, Message::GetChecks(get_checks(9, 1)))
        .unwrap();
    assert_eq!(
        find(&mut proto, now),
        Err(Violation::Malformed("index of the generation"))
    );
}

#[test]
fn a_peer_is_heard_a_few_times_when_it_blames_others() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let blame = || Message::Blame {
        segment: SegmentId::of(b"segment"),
        generation: 2,
        blocks: 3,
        identity: [4; 32],
    };
    for _ in 0..100 {
        proto.handle_message(now, blame()).unwrap();
    }
    let heard = std::iter::from_fn(|| proto.poll_event());
    let is_told = |event: &Event| {
        matches!(
            event,
            Event::Blame {
                generation: 2,
                blocks: 3,
                identity: [4, ..],
                ..
            }
        )
    };
    assert_eq!(heard.filter(is_told).count(), BLAMES_MAX as usize);
    assert_eq!(
        proto.take_tally().blames,
        (u64::from(BLAMES_MAX), 100 - u64::from(BLAMES_MAX))
    );
    proto.handle_message(now + BLAMES_EVERY, blame()).unwrap();
    assert!(proto.poll_event().is_some_and(|event| is_told(&event)));
    proto.set_access(Access::Refused {
        until: now + 100 * BLAMES_EVERY,
    });
    proto
        .handle_message(now + 2 * BLAMES_EVERY, blame())
        .unwrap();
    assert!(
        proto.poll_event().is_none(),
        "whoever may have nothing is not heard"
    );
}

#[test]
fn nothing_is_asked_about_segments_while_the_server_leaves() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto.go_away(SECOND);
    proto.poll_message();
    proto
        .handle_message(now, get_hashes(9, b"segment"))
        .unwrap();
    assert!(matches!(
        proto.poll_message(),
        Some(Message::Error(error)) if error.code == RequestCode::GoingAway
    ));
    assert!(proto.poll_event().is_none() && proto.is_idle());
}

#[test]
fn who_has_lost_its_right_is_not_named_any_more() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    proto.set_access(granted("/live/*", None));
    proto
        .handle_message(
            now,
            Message::Offer {
                port: 7,
                identity: [1; 32],
            },
        )
        .unwrap();
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Offer { port: 7, .. })
    ));
    proto.set_access(Access::Refused {
        until: now + SECOND,
    });
    assert!(matches!(
        proto.poll_event(),
        Some(Event::Offer { port: 0, .. })
    ));
    proto
        .handle_message(
            now,
            Message::Offer {
                port: 8,
                identity: [1; 32],
            },
        )
        .unwrap();
    assert!(proto.poll_event().is_none(), "nor heard");
    // A ticket is valid for a whole stream: a peer that may have a part of it gets none.
    let (mut proto, now) = conversation(FirstPass::Coded);
    for (pattern, is_told) in [("/live/1*", false), ("/live/*", true)] {
        proto.set_access(granted(pattern, None));
        proto.resolved(
            now + INTRODUCE_EVERY,
            1,
            Ok(resolved(held(FirstPass::Coded))),
        );
        let told = std::iter::from_fn(|| proto.poll_event())
            .any(|event| matches!(event, Event::Introduce { .. }));
        assert_eq!(told, is_told, "{pattern}");
    }
}

/// Before the answer, so that a peer that goes elsewhere has cost nothing yet.
#[test]
fn a_peer_is_told_of_other_servers_when_its_stream_is_known_and_when_they_change() {
    let (mut proto, now) = greeted();
    while proto.poll_message().is_some() {}
    assert_eq!((proto.poll_place(), proto.is_sent()), (None, false));
    let get = |request| {
        Message::Get(Get {
            request,
            path: "/live/0.ts".to_owned(),
            offset: 0,
            length: None,
            held_only: false,
        })
    };
    proto.handle_message(now, get(1)).unwrap();
    assert_eq!(proto.poll_place().as_deref(), Some("live"));
    proto.handle_message(now, get(2)).unwrap();
    assert_eq!(proto.poll_place(), None, "once");
    let servers = vec![Alternate {
        address: "b.example:4443".to_owned(),
        identity: None,
    }];
    proto.name_alternates(false, Vec::new());
    assert_eq!(proto.poll_message(), None, "there were none before");
    for (moves, servers) in [
        (false, servers.clone()),
        (true, servers),
        (false, Vec::new()),
    ] {
        for _ in 0..2 {
            proto.name_alternates(moves, servers.clone());
        }
        let told = Message::Alternates { moves, servers };
        assert_eq!(
            (proto.poll_message(), proto.poll_message()),
            (Some(told), None)
        );
    }
}

#[test]
fn newcomers_are_asked_to_come_again_and_who_plays_is_not() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    let again = Duration::from_millis(1700);
    let stop = |alias| Message::Stop {
        alias,
        reason: StopReason::Cancelled,
    };
    let rejected = |alias| Message::Reject {
        alias,
        code: RequestCode::Overload,
        retry_after_ms: millis(again),
    };
    let two = |proto: &mut Proto, now| {
        for (alias, generation) in [(3, 0), (4, 1)] {
            let mut request = request(alias, 10);
            request.generation = generation;
            let request = Message::Request(request);
            proto.handle_message(now, request).unwrap();
        }
    };
    proto.await_admission();
    two(&mut proto, now);
    assert!(matches!(proto.poll_event(), Some(Event::AskAdmission)));
    assert!(proto.poll_event().is_none(), "one question for both");
    proto.asked_admission(Answer::Wait(again));
    assert_eq!(proto.poll_message(), Some(rejected(3)));
    assert_eq!(proto.poll_message(), Some(rejected(4)));
    assert!(proto.poll_event().is_none() && wants(&mut proto).is_empty());
    // What is stopped meanwhile is not looked for.
    two(&mut proto, now);
    proto.handle_message(now, stop(4)).unwrap();
    assert!(matches!(proto.poll_event(), Some(Event::AskAdmission)));
    proto.asked_admission(Answer::Admitted);
    assert!(matches!(proto.poll_event(), Some(Event::Find { .. })));
    assert!(proto.poll_event().is_none());
    proto.handle_message(now, stop(3)).unwrap();
    // Who is admitted is not asked about again.
    ask(&mut proto, now, request(5, 10), FirstPass::Coded).unwrap();
    assert!(!wants(&mut proto).is_empty());
    // Who has to leave keeps the requests that are open.
    proto.await_admission();
    let mut next = request(6, 10);
    next.generation = 1;
    proto.handle_message(now, Message::Request(next)).unwrap();
    assert!(matches!(proto.poll_event(), Some(Event::AskAdmission)));
    proto.asked_admission(Answer::Wait(again));
    assert_eq!(proto.poll_message(), Some(rejected(6)));
    assert!(!proto.is_idle(), "5 is open");
}

/// The streams that the peer has begun to watch, and those that it has stopped to watch.
fn watches(proto: &mut Proto) -> Vec<(String, bool)> {
    let changes = std::iter::from_fn(|| proto.poll_event()).filter_map(|event| match event {
        Event::Watches { stream, is_watched } => Some((stream.to_string(), is_watched)),
        _ => None,
    });
    changes.collect()
}

#[test]
fn a_viewer_is_who_was_answered_in_the_last_half_minute_or_has_a_request_open() {
    let (mut proto, now) = greeted();
    proto.handle_message(now, get(1, "/live/1.m4s")).unwrap();
    assert_eq!(watches(&mut proto), [], "nothing is answered yet");
    proto.resolved(now, 1, Ok(resolved(held(FirstPass::Coded))));
    assert_eq!(watches(&mut proto), [("live".to_owned(), true)]);
    let later = now + 20 * SECOND;
    let request = Request {
        deadline_ms: 60_000,
        ..request(3, 10)
    };
    ask(&mut proto, later, request, FirstPass::Coded).unwrap();
    assert_eq!(watches(&mut proto), [], "once a stream");
    assert!(
        proto
            .poll_timeout()
            .is_some_and(|due| due <= later + 30 * SECOND)
    );
    proto.handle_timeout(later + 40 * SECOND).unwrap();
    assert_eq!(watches(&mut proto), [], "its request is open");
    proto
        .handle_message(
            later + 40 * SECOND,
            Message::Stop {
                alias: 3,
                reason: StopReason::Complete,
            },
        )
        .unwrap();
    proto.handle_timeout(later + 42 * SECOND).unwrap();
    assert_eq!(watches(&mut proto), [("live".to_owned(), false)]);
}

#[test]
fn who_is_refused_is_no_viewer_and_counts_with_the_stream_that_it_named() {
    let (mut proto, now) = greeted();
    // The peer does not learn that the stream exists; the operator sees that a peer was refused.
    proto.set_access(Access::Refused {
        until: now + SECOND,
    });
    proto.handle_message(now, get(1, "/live/1.m4s")).unwrap();
    assert!(matches!(proto.poll_event(), Some(Event::Resolve(get)) if get.path == NOWHERE));
    proto.resolved(now, 1, Err(not_there()));
    assert_eq!(watches(&mut proto), []);
    assert_eq!(
        proto.poll_stream_tally(),
        Some((
            "live".into(),
            StreamTally {
                refused: 1,
                ..StreamTally::default()
            }
        ))
    );
    assert_eq!(proto.poll_stream_tally(), None);
}

#[test]
fn blocks_beyond_n_late_and_refused_requests_are_counted_by_stream() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    while proto.poll_stream_tally().is_some() {}
    ask(&mut proto, now, request(3, 100), FirstPass::Coded).unwrap();
    proto.note_sent(now, 3, 60, 60, 60 * 1088);
    proto.note_sent(now, 3, 10, 10, 10 * 1088);
    proto.note_sent(now, 3, 5, 0, 5 * 1088);
    // The generation was requested already.
    ask(&mut proto, now, request(4, 1), FirstPass::Coded).unwrap();
    proto.handle_timeout(now + SECOND).unwrap();
    let live = StreamTally {
        sent_bytes: 75 * 1088,
        coded: 70,
        repair: 11,
        late: 1,
        refused: 1,
    };
    assert_eq!(proto.poll_stream_tally(), Some(("live".into(), live)));
    // A segment that the peer was never told of belongs to no known stream.
    let unknown = Request {
        segment: SegmentId::of(b"another"),
        ..request(5, 1)
    };
    proto
        .handle_message(now, Message::Request(unknown))
        .unwrap();
    while let Some(event) = proto.poll_event() {
        if let Event::Find { ticket, .. } = event {
            proto.found(now, ticket, None).unwrap();
        }
    }
    assert_eq!(
        proto.poll_stream_tally(),
        Some((
            "".into(),
            StreamTally {
                refused: 1,
                ..StreamTally::default()
            }
        ))
    );
}

#[test]
fn many_names_at_once_take_no_more_room() {
    let (mut proto, now) = conversation(FirstPass::Coded);
    while proto.poll_stream_tally().is_some() {}
    proto.go_away(SECOND);
    for index in 0..1000 {
        proto
            .handle_message(now, get(1, &format!("/made-up-{index}/1")))
            .unwrap();
    }
    let tallies: Vec<_> = std::iter::from_fn(|| proto.poll_stream_tally()).collect();
    assert!(
        tallies.len() <= STREAMS_TALLIED_MAX + 1,
        "{}",
        tallies.len()
    );
    assert_eq!(
        tallies.iter().map(|(_, tally)| tally.refused).sum::<u64>(),
        1000
    );
}

/// How long the server took for the first block of a segment that was complete at `complete`, asked
/// for at `asked` and answered after this time, where the first block leaves this long after
/// REQUEST.
fn first_block(
    complete: Instant,
    asked: Instant,
    answered_after: Duration,
    left_after: Duration,
    is_held_back: bool,
) -> Option<Duration> {
    let mut proto = Proto::new(SESSION, Config::default(), complete);
    proto
        .handle_message(complete, Message::Hello(Hello::defaults()))
        .unwrap();
    proto.handle_message(asked, get(1, "/live/1.m4s")).unwrap();
    let held = Held {
        birth: Some(Birth::new(complete)),
        ..held(FirstPass::Coded)
    };
    let answered = asked + answered_after;
    proto.resolved(answered, 1, Ok(resolved(held.clone())));
    // The peer takes its time: that does not count.
    let requested = answered + 3 * SECOND;
    while proto.poll_event().is_some() {}
    proto
        .handle_message(requested, Message::Request(request(3, 10)))
        .unwrap();
    let Some(Event::Find { ticket, .. }) = proto.poll_event() else {
        panic!("a segment is looked for")
    };
    proto.found(requested, ticket, Some(held)).unwrap();
    if is_held_back {
        proto.note_held_back(3);
    }
    let first = proto.first_sent(requested + left_after, 3);
    assert_eq!(
        proto.first_sent(requested + left_after, 3),
        None,
        "once a segment"
    );
    first
}

#[test]
fn the_first_block_is_timed_from_when_somebody_waited_for_it() {
    let (now, ms) = (Instant::now(), Duration::from_millis(1));
    // An hour without a query does not count.
    assert_eq!(
        first_block(now, now + 3600 * SECOND, 2 * ms, 5 * ms, false),
        Some(7 * ms)
    );
    // A peer that asks before the segment is complete waits from its last byte on.
    assert_eq!(
        first_block(now + SECOND, now, SECOND + 40 * ms, 5 * ms, false),
        Some(45 * ms)
    );
    // A slow server shows.
    assert_eq!(
        first_block(now, now, 600 * ms, 900 * ms, false),
        Some(1500 * ms)
    );
    // A peer that does not take its blocks tells nothing about the server.
    assert_eq!(first_block(now, now, 2 * ms, 5 * SECOND, true), None);
}
