use std::net::{SocketAddr, SocketAddrV6};

use proptest::prelude::*;

use super::meta::delivery;
use super::*;
use crate::object::{Codec, Coding, HashGroup, SegmentId, Shape};
use crate::wire::message::{
    ALTERNATES_MAX, Accept, Alternate, COLUMNS_MAX, Checks, Codecs, Credential, Delivery, Get,
    GetChecks, HOLDINGS_MAX, Holding, HoldingState, Introduction, Meant, Meta, PEERS_MAX,
    PageIntroduction, RANGES_MAX, REASON_MAX, Request, RequestCode, RequestError,
    SERVER_ADDRESS_MAX, SIGNAL_MAX, Signature, StopReason, Subscribe, TICKET_MAX, TOKEN_MAX,
    Ticket, Token, Tree, VisitId, is_server_address,
};
use crate::wire::text::plain;

fn path() -> impl Strategy<Value = String> {
    "/[!-~]{0,60}"
}

fn any_varint() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..200, 0..=varint::MAX]
}

fn hello() -> impl Strategy<Value = Message> {
    let limits = (
        any::<u16>(),
        any::<u32>(),
        any_varint(),
        any::<u16>(),
        any::<u32>(),
    );
    (
        0u64..9,
        0u64..9,
        any::<[bool; 3]>(),
        limits,
        ("[ -~]{0,64}", any::<Option<[u8; 16]>>(), any::<bool>()),
    )
        .prop_map(
            |(low, more, [reed_solomon, raptorq, gfq], limits, (agent, visit, is_sent))| {
                let (n_max, block_bytes_max, segment_bytes_max, requests_max, credit_max) = limits;
                let minor = (low, low + more);
                let codecs = Codecs {
                    reed_solomon,
                    raptorq,
                    gfq,
                };
                let visit = visit.map(VisitId);
                Message::Hello(Hello {
                    minor,
                    codecs,
                    n_max,
                    block_bytes_max,
                    segment_bytes_max,
                    requests_max,
                    credit_max,
                    agent,
                    visit,
                    is_sent,
                })
            },
        )
}

fn delivery() -> impl Strategy<Value = (u64, Delivery)> {
    let codec = prop_oneof![
        Just(Codec::Rlnc),
        (1u16..=256).prop_map(|parity| Codec::ReedSolomon { parity }),
        Just(Codec::RaptorQ),
        prop::sample::select(&HashGroup::ALL[..]).prop_map(|group| Codec::RlncQ { group }),
    ];
    let shape = (1u64..10_000_000, 4u32..=4096, 1u16..=1024, codec).prop_map(
        |(length, step, n_max, codec)| {
            let shape = Shape::new(length, step * 16, n_max).unwrap();
            (
                length,
                Delivery::Coded(shape.coded_with(codec).unwrap_or(shape)),
            )
        },
    );
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..400)
            .prop_map(|bytes| (bytes.len() as u64, Delivery::Inline(bytes.into()))),
        shape,
        (0u64..1 << 40).prop_map(|length| (length, Delivery::Stream)),
    ]
}

fn meta() -> impl Strategy<Value = Message> {
    let texts = (
        path(),
        "[ -~]{0,40}",
        prop::option::of(any::<([u8; 32], u64, [u8; 32], [[u8; 32]; 2])>()),
    );
    let numbers = (
        any_varint(),
        0u64..1 << 50,
        prop::option::of(0u64..1 << 50),
        any::<u64>(),
        any_varint(),
    );
    (texts, numbers, any::<[u8; 32]>(), delivery(), any::<bool>()).prop_map(
        |(texts, numbers, id, (length, delivery), has_tree)| {
            let (path, content_type, signature) = texts;
            // Bytes of this length, as far as trees are made here.
            let bytes = vec![
                id[0];
                if has_tree {
                    usize::try_from(length.min(1 << 17)).unwrap()
                } else {
                    0
                }
            ];
            let (id, tree) = match bytes.len() as u64 == length {
                true => Tree::of(&bytes, delivery.codec()),
                false => (SegmentId::from_bytes(id), None),
            };
            let (request, offset, more, version, max_age_ms) = numbers;
            Message::Meta(Meta {
                request,
                path,
                id,
                offset,
                length,
                object_length: more.map(|more| offset + length + more),
                version,
                max_age_ms,
                content_type,
                delivery,
                signature: signature.map(|(key, issued_ms, blocks, halves)| Signature {
                    key,
                    issued_ms,
                    blocks,
                    bytes: halves.concat().try_into().unwrap(),
                }),
                tree,
            })
        },
    )
}

fn ranges() -> impl Strategy<Value = Vec<(u16, u16)>> {
    prop::collection::vec((0u16..8, 1u16..8), 0..=RANGES_MAX).prop_map(|gaps| {
        let mut end = 0;
        gaps.into_iter()
            .map(|(gap, count)| {
                let first = end + gap;
                end = first + count;
                (first, count)
            })
            .collect()
    })
}

fn meant() -> impl Strategy<Value = Meant> {
    let code = prop_oneof![
        Just(Codec::Rlnc),
        Just(Codec::RaptorQ),
        any::<u16>().prop_map(|parity| Codec::ReedSolomon { parity }),
        prop::sample::select(HashGroup::ALL.to_vec()).prop_map(|group| Codec::RlncQ { group }),
    ];
    let coded = (any::<u32>(), any::<u16>(), code);
    prop_oneof![
        Just(Meant::LastNamed),
        Just(Meant::Foreign),
        coded.prop_map(|(block_bytes, n_max, codec)| Meant::Coded(Coding {
            block_bytes,
            n_max,
            codec
        })),
    ]
}

/// A newer version may have codings that this one does not know. No such segment exists here, which
/// is no reason to close.
#[test]
fn a_coding_that_is_not_known_is_nobodys() {
    let question = |meant| Message::GetHashes {
        request: 1,
        segment: SegmentId::of(b"x"),
        meant,
    };
    let bare = question(Meant::LastNamed).to_frame();
    let with = |field: &[u8]| {
        let body = [&bare[2..], field].concat();
        let mut reader = Reader::new();
        reader.push(&[&[0x26, u8::try_from(body.len()).unwrap()], &body[..]].concat());
        reader.next()
    };
    let coded = Meant::Coded(Coding {
        block_bytes: 1,
        n_max: 2,
        codec: Codec::RaptorQ,
    });
    for (field, meant) in [
        (&[0][..], Meant::LastNamed),
        (&[3, 1, 2, 2], coded),
        (&[3, 1, 2, 2, 9, 9], coded),
        (&[3, 1, 2, 9], Meant::Foreign),
        (&[4, 1, 2, 2, 0], Meant::Foreign),
        (&[4, 1, 2, 4, 9], Meant::Foreign),
        (&[1, 0], Meant::Foreign),
    ] {
        assert_eq!(with(field), Ok(Some(question(meant))), "{field:?}");
    }
    for cut in [&[3, 1, 2][..], &[0x40, 0x41]] {
        assert_eq!(
            with(cut),
            Err(Violation::Malformed("GET_HASHES")),
            "{cut:?}"
        );
    }
}

/// The message as an older version sends it, without codings, trees and flags of a GET, and how
/// many of these fields it may have.
fn older(mut message: Message) -> (Message, usize) {
    let fields = match &mut message {
        Message::Request(Request { meant, .. })
        | Message::GetHashes { meant, .. }
        | Message::GetChecks(GetChecks { meant, .. }) => {
            *meant = Meant::LastNamed;
            1
        }
        Message::Have(holdings) => {
            holdings
                .iter_mut()
                .for_each(|holding| holding.meant = Meant::LastNamed);
            holdings.len()
        }
        Message::Meta(meta) => {
            meta.tree = None;
            1
        }
        Message::Get(get) => {
            get.held_only = false;
            1
        }
        _ => 0,
    };
    (message, fields)
}

fn request() -> impl Strategy<Value = Message> {
    let numbers = (any::<u16>(), any::<u32>(), any_varint(), any::<u32>());
    (
        numbers,
        any::<[u8; 32]>(),
        any::<[bool; 4]>(),
        ranges(),
        meant(),
    )
        .prop_map(|(numbers, id, flags, ranges, meant)| {
            let (alias, generation, deadline_ms, credit) = numbers;
            let [coded, systematic, datagrams, recoded] = flags;
            let accept = Accept {
                coded: coded || !systematic,
                systematic,
                datagrams,
                recoded,
            };
            let segment = SegmentId::from_bytes(id);
            Message::Request(Request {
                alias,
                segment,
                generation,
                deadline_ms,
                credit,
                accept,
                ranges,
                meant,
            })
        })
}

fn request_code() -> impl Strategy<Value = RequestCode> {
    use RequestCode::{Changed, Deadline, GoingAway, Internal, Limit, Origin, Overload, Unknown};
    prop::sample::select(vec![
        Unknown, Deadline, Overload, Limit, Origin, Changed, GoingAway, Internal,
    ])
}

fn stop() -> impl Strategy<Value = StopReason> {
    prop::sample::select(vec![
        StopReason::Complete,
        StopReason::Deadline,
        StopReason::Cancelled,
    ])
}

fn ticket() -> impl Strategy<Value = Ticket> {
    prop::collection::vec(any::<u8>(), 1..=TICKET_MAX).prop_map(|bytes| Ticket(bytes.into()))
}

fn segment() -> impl Strategy<Value = SegmentId> {
    any::<[u8; 32]>().prop_map(SegmentId::from_bytes)
}

fn checks() -> impl Strategy<Value = Message> {
    let sizes = (1u8..=COLUMNS_MAX, 1usize..=1024);
    (
        any_varint(),
        sizes,
        any::<[u8; 32]>(),
        any::<u8>(),
        prop::option::of(any::<u8>()),
    )
        .prop_map(|(request, (columns, n), seed, fill, signature)| {
            let projections = vec![fill; n * usize::from(columns)].into();
            Message::Checks(Checks {
                request,
                seed,
                columns,
                projections,
                signature: signature.map(|fill| [fill; 64]),
            })
        })
}

fn about_blocks() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any_varint(), segment(), meant()).prop_map(|(request, segment, meant)| {
            Message::GetHashes {
                request,
                segment,
                meant,
            }
        }),
        (
            any_varint(),
            segment(),
            any::<u32>(),
            any::<[u8; 32]>(),
            meant()
        )
            .prop_map(|(request, segment, generation, nonce, meant)| {
                Message::GetChecks(GetChecks {
                    request,
                    segment,
                    generation,
                    nonce,
                    meant,
                })
            }),
        checks(),
        (segment(), any::<u32>(), any::<u32>(), any::<[u8; 32]>()).prop_map(
            |(segment, generation, blocks, identity)| {
                Message::Blame {
                    segment,
                    generation,
                    blocks,
                    identity,
                }
            }
        ),
    ]
}

fn about_peers() -> impl Strategy<Value = Message> {
    let state = prop::sample::select(vec![
        HoldingState::Gone,
        HoldingState::Partial,
        HoldingState::Complete,
    ]);
    let holding = (segment(), meant(), state).prop_map(|(segment, meant, state)| Holding {
        segment,
        meant,
        state,
    });
    let introduction = (
        any::<SocketAddr>(),
        any::<[u8; 32]>(),
        any_varint(),
        ticket(),
    )
        .prop_map(|(address, identity, lasts_ms, ticket)| {
            // Only the written part of an address comes back: no flow label, no zone.
            let address = address
                .to_string()
                .parse()
                .unwrap_or_else(|_| (address.ip(), address.port()).into());
            Introduction {
                address,
                identity,
                lasts_ms,
                ticket,
            }
        });
    prop_oneof![
        prop::collection::vec(holding, 0..=HOLDINGS_MAX).prop_map(Message::Have),
        (any::<u16>(), any::<[u8; 32]>())
            .prop_map(|(port, identity)| Message::Offer { port, identity }),
        (
            segment(),
            prop::collection::vec(introduction, 0..=PEERS_MAX)
        )
            .prop_map(|(segment, peers)| Message::Peers { segment, peers }),
        pages(),
    ]
}

fn pages() -> impl Strategy<Value = Message> {
    let introduction =
        (any::<[u8; 32]>(), any_varint(), ticket()).prop_map(|(identity, lasts_ms, ticket)| {
            PageIntroduction {
                identity,
                lasts_ms,
                ticket,
            }
        });
    let signal = prop::collection::vec(any::<u8>(), 1..=SIGNAL_MAX);
    prop_oneof![
        any::<bool>().prop_map(|serves| Message::OfferPage { serves }),
        any::<[u8; 32]>().prop_map(|identity| Message::Page { identity }),
        (
            segment(),
            prop::collection::vec(introduction, 0..=PEERS_MAX)
        )
            .prop_map(|(segment, pages)| Message::Pages { segment, pages }),
        (any::<[u8; 32]>(), signal).prop_map(|(page, bytes)| Message::Signal {
            page,
            bytes: bytes.into()
        }),
    ]
}

/// What two pages say to each other has a size, and is not nothing.
#[test]
fn a_signal_is_neither_empty_nor_long() {
    let with = |length: usize, carried: usize| {
        let mut body = vec![7; 32];
        varint::write(length as u64, &mut body);
        body.resize(body.len() + carried, 1);
        let mut frame = vec![0x31];
        varint::write(body.len() as u64, &mut frame);
        frame.append(&mut body);
        let mut reader = Reader::new();
        reader.push(&frame);
        reader.next().map(|message| message.is_some())
    };
    assert_eq!(
        (with(1, 1), with(SIGNAL_MAX, SIGNAL_MAX)),
        (Ok(true), Ok(true))
    );
    let malformed = Err(Violation::Malformed("SIGNAL"));
    for (length, carried) in [(0, 0), (SIGNAL_MAX + 1, SIGNAL_MAX + 1), (2, 1), (9000, 1)] {
        assert_eq!(with(length, carried), malformed, "{length}, {carried}");
    }
}

fn alternates() -> impl Strategy<Value = Message> {
    let address = prop_oneof![
        "[0-9a-z.-]{1,255}:[1-9][0-9]{0,3}",
        any::<SocketAddrV6>().prop_map(|address| format!("[{}]:1", address.ip())),
    ];
    let server = (address, any::<Option<[u8; 32]>>())
        .prop_map(|(address, identity)| Alternate { address, identity });
    let servers = prop::collection::vec(server, 0..=ALTERNATES_MAX);
    (any::<bool>(), servers).prop_map(|(moves, servers)| Message::Alternates { moves, servers })
}

/// They become names to look up, and words of logs.
#[test]
fn an_address_of_a_server_is_host_and_port() {
    for address in [
        "a:1",
        "media-2.example:65535",
        "192.0.2.1:4443",
        "[2001:db8::1]:443",
    ] {
        assert!(is_server_address(address), "{address}");
    }
    let long = format!("{}:4443", "a".repeat(SERVER_ADDRESS_MAX));
    for address in [
        "",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:+1",
        "a:01",
        "a:65536",
        "a b:1",
        "user@a:1",
        "a/b:1",
        "2001:db8::1:443",
        "[2001:db8::1]",
        "[g]:1",
        "[]:1",
        "a\u{1b}:1",
        "\u{e4}:1",
        &long,
    ] {
        assert!(!is_server_address(address), "{address}");
    }
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        hello(),
        meta(),
        request(),
        (
            any_varint(),
            path(),
            any_varint(),
            prop::option::of(1..=varint::MAX),
            any::<bool>(),
        )
            .prop_map(
                |(request, path, offset, length, held_only)| Message::Get(Get {
                    request,
                    path,
                    offset,
                    length,
                    held_only,
                })
            ),
        (any_varint(), request_code(), any_varint(), "\\PC{0,60}").prop_map(
            |(request, code, retry_after_ms, reason)| {
                Message::Error(RequestError {
                    request,
                    code,
                    retry_after_ms,
                    reason: plain(&reason, REASON_MAX),
                })
            }
        ),
        (any_varint(), "[0-9A-Za-z_.-]{1,128}")
            .prop_map(|(request, stream)| Message::Subscribe(Subscribe { request, stream })),
        any_varint().prop_map(|request| Message::SubscribeOk { request }),
        any_varint().prop_map(|request| Message::Unsubscribe { request }),
        any_varint().prop_map(|drain_ms| Message::GoAway { drain_ms }),
        alternates(),
        "[!-~]{1,400}".prop_map(|token| Message::Auth(Credential::Token(Token(token)))),
        any_varint().prop_map(|lasts_ms| Message::Grant { lasts_ms }),
        ticket().prop_map(|ticket| Message::Auth(Credential::Ticket(ticket))),
        about_blocks(),
        about_peers(),
        (any::<u16>(), 1..=u32::MAX).prop_map(|(alias, blocks)| Message::Credit { alias, blocks }),
        (any::<u16>(), any_varint())
            .prop_map(|(alias, deadline_ms)| Message::Reschedule { alias, deadline_ms }),
        (any::<u16>(), stop()).prop_map(|(alias, reason)| Message::Stop { alias, reason }),
        (any::<u16>(), request_code(), any_varint()).prop_map(|(alias, code, retry_after_ms)| {
            Message::Reject {
                alias,
                code,
                retry_after_ms,
            }
        }),
        (any::<u16>(), any::<u32>(), any::<u32>(), any::<u32>()).prop_map(
            |(alias, rank, useless, lost)| Message::Rank {
                alias,
                rank,
                useless,
                lost
            }
        ),
    ]
}

fn read_all(reader: &mut Reader) -> Result<Vec<Message>, Violation> {
    std::iter::from_fn(|| reader.next().transpose()).collect()
}

fn read_one(frame: &[u8]) -> Result<Option<Message>, Violation> {
    let mut reader = Reader::new();
    reader.push(frame);
    reader.next()
}

/// A frame of any type and body, also those that `encode` never makes.
fn raw(kind: u64, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint::write(kind, &mut out);
    varint::write(body.len() as u64, &mut out);
    out.extend_from_slice(body);
    out
}

/// The type and body of a message's frame.
fn taken_apart(message: &Message) -> (u64, Vec<u8>) {
    let mut body = Vec::new();
    let kind = message.write_body(&mut body);
    (kind, body)
}

proptest! {
    #[test]
    fn messages_round_trip_however_they_are_cut(
        messages in prop::collection::vec(message(), 1..5),
        step in 1usize..50,
    ) {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut bytes));
        let mut reader = Reader::new();
        let mut found = Vec::new();
        for piece in bytes.chunks(step) {
            reader.push(piece);
            found.extend(read_all(&mut reader).unwrap());
        }
        prop_assert_eq!(found, messages);
        prop_assert!(reader.is_between_frames());
    }

    #[test]
    fn a_frame_cut_anywhere_waits_for_the_rest(message in message()) {
        let frame = message.to_frame();
        for cut in 0..frame.len() {
            prop_assert_eq!(read_one(&frame[..cut]), Ok(None));
        }
    }

    #[test]
    fn a_body_cut_short_is_malformed_and_fields_behind_it_are_skipped(
        message in message(),
        newer in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let (kind, mut body) = taken_apart(&message);
        let (older, fields) = older(message.clone());
        let older = taken_apart(&older).1.len();
        for cut in (0..body.len()).filter(|cut| *cut != older) {
            prop_assert!(read_one(&raw(kind, &body[..cut])).is_err(), "cut at {}", cut);
        }
        if older == body.len() {
            // These fields come first behind it.
            body.resize(older + fields, 0);
        }
        body.extend(newer);
        prop_assert_eq!(read_one(&raw(kind, &body)), Ok(Some(message)));
    }

    #[test]
    fn a_greeting_is_the_hello_with_what_is_to_be_skipped(random in any::<u32>()) {
        let hello = Hello { agent: "example/1".to_owned(), ..Hello::defaults() };
        let mut bytes = Vec::new();
        encode_greeting(&hello, random, &mut bytes);
        let mut reader = Reader::new();
        reader.push(&bytes);
        prop_assert_eq!(read_all(&mut reader), Ok(vec![Message::Hello(hello.clone())]));
        prop_assert!(reader.is_between_frames());
        prop_assert!(bytes.len() > Message::Hello(hello).to_frame().len());
        prop_assert!(kind::may_be_skipped(grease(random)) && !kind::is_known(grease(random)));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read_one(&bytes);
    }

    #[test]
    fn no_body_makes_it_panic_and_what_is_taken_has_one_encoding(
        kind in prop::sample::select(
            (0u64..0x30).filter(|kind| kind::is_known(*kind)).collect::<Vec<_>>(),
        ),
        body in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..120),
    ) {
        if let Ok(Some(message)) = read_one(&raw(kind, &body)) {
            prop_assert_eq!(read_one(&message.to_frame()), Ok(Some(message)));
        }
    }
}

#[test]
fn ignorable_frames_are_skipped_even_in_pieces() {
    let mut bytes = raw(0x21, &[9; 3000]);
    Message::GoAway { drain_ms: 5 }.encode(&mut bytes);
    bytes.extend(raw(0x35, &[]));
    for step in [1, 7, 4096] {
        let mut reader = Reader::new();
        let mut found = Vec::new();
        for piece in bytes.chunks(step) {
            reader.push(piece);
            found.extend(read_all(&mut reader).unwrap());
            assert!(reader.buffer.len() < 16, "the skipped body is not kept");
        }
        assert_eq!(found, [Message::GoAway { drain_ms: 5 }]);
        assert!(reader.is_between_frames());
    }
}

#[test]
fn unknown_even_types_and_long_frames_are_seen_from_their_head() {
    assert_eq!(read_one(&[0x28]), Err(Violation::UnknownFrame(0x28)));
    assert_eq!(read_one(&[0x1e]), Err(Violation::UnknownFrame(0x1e)));
    assert_eq!(
        read_one(&[0x21, 0x80, 1, 0, 0]),
        Err(Violation::FrameTooLong(65_536))
    );
    assert_eq!(
        read_one(&[0x24, 0x80, 1, 0, 0]),
        Err(Violation::FrameTooLong(65_536))
    );
    assert_eq!(
        read_one(&[0x40, 0x24]),
        Err(Violation::Malformed("frame type"))
    );
}

#[test]
fn hello_parameters_unknown_repeated_missing() {
    assert_eq!(
        read_one(&raw(0, &[0])),
        Ok(Some(Message::Hello(Hello::defaults())))
    );
    let grease = [1, 0x21, 3, 1, 2, 3];
    assert_eq!(
        read_one(&raw(0, &grease)),
        Ok(Some(Message::Hello(Hello::defaults())))
    );
    let repeated = [2, 6, 1, 16, 6, 1, 16];
    assert_eq!(
        read_one(&raw(0, &repeated)),
        Err(Violation::Malformed("HELLO"))
    );
    let inverted = [1, 1, 2, 3, 2];
    assert_eq!(
        read_one(&raw(0, &inverted)),
        Err(Violation::Malformed("HELLO"))
    );
    let other_field = [1, 4, 1, 0x1b];
    assert_eq!(
        read_one(&raw(0, &other_field)),
        Err(Violation::Unsupported("field"))
    );
    let both_fields = [1, 4, 2, 0x1b, 0x1d];
    assert_eq!(
        read_one(&raw(0, &both_fields)),
        Ok(Some(Message::Hello(Hello::defaults())))
    );
}

#[test]
fn versions_agree_on_the_highest_common_minor() {
    let with = |low, high| Hello {
        minor: (low, high),
        ..Hello::defaults()
    };
    assert_eq!(with(0, 3).agree(&with(1, 2)), Ok(2));
    assert_eq!(with(0, 0).agree(&with(0, 7)), Ok(0));
    assert_eq!(with(0, 0).agree(&with(1, 7)), Err(Violation::Version));
}

#[test]
fn tokens_are_bounded_and_never_shown() {
    let auth = |scheme: u8, token: &[u8]| {
        let mut body = vec![scheme];
        varint::write(token.len() as u64, &mut body);
        body.extend_from_slice(token);
        read_one(&raw(kind::AUTH, &body))
    };
    let longest = "t".repeat(TOKEN_MAX);
    assert_eq!(
        auth(1, longest.as_bytes()),
        Ok(Some(Message::Auth(Credential::Token(Token(
            longest.clone()
        )))))
    );
    assert!(!format!("{:?}", auth(1, longest.as_bytes())).contains("tt"));
    for (scheme, token) in [
        (1, &b""[..]),
        (1, "t".repeat(TOKEN_MAX + 1).as_bytes()),
        (1, b"a b"),
        (1, b"a\n"),
        (1, b"\xff"),
        (2, b""),
        (2, &[7; TICKET_MAX + 1]),
        (3, b"t"),
        (0, b"t"),
    ] {
        assert_eq!(
            auth(scheme, token),
            Err(Violation::Malformed("AUTH")),
            "{scheme} {token:?}"
        );
    }
}

#[test]
fn huge_numbers_cost_nothing() {
    let id = [0; 32];
    let mut body = vec![0, 1, b'/'];
    body.extend_from_slice(&id);
    varint::write(0, &mut body);
    varint::write(varint::MAX, &mut body);
    varint::write(0, &mut body);
    body.extend_from_slice(&[0; 8]);
    body.extend_from_slice(&[0, 0, delivery::CODED]);
    varint::write(u64::from(u32::MAX), &mut body);
    varint::write(65_535, &mut body);
    body.push(0);
    assert_eq!(
        read_one(&raw(kind::META, &body)),
        Err(Violation::Malformed("META"))
    );
}

#[test]
fn requests_with_disordered_ranges_or_nothing_accepted_are_malformed() {
    let mut head = vec![0, 1];
    head.extend_from_slice(&[0; 32]);
    head.extend_from_slice(&[0, 0, 1]);
    let with = |tail: &[u8]| read_one(&raw(kind::REQUEST, &[&head[..], tail].concat()));
    assert!(with(&[3, 0]).is_ok());
    assert!(with(&[3, 2, 0, 4, 4, 1]).is_ok());
    for tail in [
        &[0, 0][..],
        &[12, 0],
        &[3, 2, 0, 4, 3, 1],
        &[3, 1, 0, 0],
        &[3, 1, 0x40, 0x80, 0x47, 0xff],
        &[3, 0x40, 65],
    ] {
        assert_eq!(with(tail), Err(Violation::Malformed("REQUEST")), "{tail:?}");
    }
}
