//! The wire format is defined by `docs/protocol.md`: the crate reads and writes exactly its
//! examples and known answers.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ncserverd::block::{Block, Q, Vector};
use ncserverd::codec::gfq::{Arithmetic as _, Cores};
use ncserverd::codec::write_number;
use ncserverd::gf::Kernels;
use ncserverd::integrity::checks::project;
use ncserverd::integrity::hashes::BlockHashes;
use ncserverd::integrity::signing::SigningKey;
use ncserverd::object::{
    Codec, FirstPass, Generation, HashGroup, Held, Lease, Loan, SegmentId, SegmentKey, Shape, Tree,
};
use ncserverd::peer::proto::{self as client, Failure, SourceId};
use ncserverd::ring::SessionId;
use ncserverd::session::{self, proto as server};
use ncserverd::web::{self, Binding};
use ncserverd::wire::block::{self, Records, StreamHead};
use ncserverd::wire::frame::Reader;
use ncserverd::wire::message::{
    Accept, Alternate, Checks, Codecs, Credential, Delivery, Get, GetChecks, Hello, Holding,
    HoldingState, Introduction, Meant, Message, Meta, PageIntroduction, Request, RequestCode,
    RequestError, StopReason, Subscribe, Ticket, Token, VisitId,
};
use ncserverd::wire::{CloseCode, Violation, refusal};
use nctest::page;

const DOCUMENT: &str = include_str!("../docs/protocol.md");

/// `{"alg":"HS256","kid":"1"}`, `{"exp":1800000000,"ncs":{"paths":["/live/*"]}}`, and the HMAC of
/// both with 32 bytes 0x07.
const TOKEN: &str = concat!(
    "eyJhbGciOiJIUzI1NiIsImtpZCI6IjEifQ.",
    "eyJleHAiOjE4MDAwMDAwMDAsIm5jcyI6eyJwYXRocyI6WyIvbGl2ZS8qIl19fQ.",
    "6ka8QRcwEI1QYX_FQbvEFchNMqzUDdFTbM2Gi-MHOHg"
);

/// The object of all examples: the bytes 0, 1, … 149 in blocks of 64.
fn object() -> Vec<u8> {
    (0..150).collect()
}

fn shape() -> Shape {
    Shape::new(150, 64, 4).unwrap()
}

fn generation() -> Generation {
    shape().generation(0).unwrap()
}

/// The fenced blocks with this first word: the rest of that line, and the lines.
fn fenced(word: &str) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut found = Vec::new();
    let mut lines = DOCUMENT.lines();
    while let Some(line) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            continue;
        };
        let body = lines.by_ref().take_while(|line| *line != "```").collect();
        if let Some(rest) = info.strip_prefix(word) {
            found.push((rest.trim(), body));
        }
    }
    found
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn hex_of(bytes: &[u8]) -> String {
    let lines: Vec<_> = bytes
        .chunks(32)
        .map(|line| {
            line.iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    lines.join("\n")
}

/// Compares an example of the document with the crate's output.
fn assert_example(name: &str, written: &[u8]) {
    let examples = fenced("example ");
    let Some((_, lines)) = examples.iter().find(|(found, _)| *found == name) else {
        panic!(
            "docs/protocol.md has no example {name}; it would be\n{}",
            hex_of(written)
        );
    };
    let hex: String = lines
        .iter()
        .map(|line| line.split('#').next().unwrap())
        .collect();
    assert_eq!(
        bytes_of(&hex),
        written,
        "example {name}; the crate writes\n{}",
        hex_of(written)
    );
}

/// The key of RFC 8032, section 7.1, test 1.
fn signing_key() -> SigningKey {
    SigningKey::from_pem(
        b"-----BEGIN PRIVATE KEY-----\n\
          MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
          -----END PRIVATE KEY-----\n",
    )
    .unwrap()
}

fn block_hashes() -> BlockHashes {
    BlockHashes::of(&object(), &Shape::new(150, 64, 4).unwrap())
}

/// Hashes of the same object over the prime field.
fn prime_hashes() -> BlockHashes {
    let shape = Shape::new(150, 64, 4)
        .unwrap()
        .coded_with(Codec::RlncQ {
            group: HashGroup::P1024,
        })
        .unwrap();
    let object = object();
    let blocks: Vec<&[u8]> = object.chunks(64).collect();
    BlockHashes::made(
        Cores::all()
            .hash(HashGroup::P1024, 2, &blocks)
            .unwrap()
            .into(),
        &shape,
    )
}

const IDENTITY: [u8; 32] = [0x0d; 32];

fn ticket() -> Ticket {
    signing_key().ticket("live", 1_800_000_300_000, IDENTITY, [0x0e; 8])
}

/// An object of several groups, described like the others.
fn with_tree() -> Meta {
    let bytes: Vec<u8> = (0..3000u32)
        .map(|at| u8::try_from(at % 251).unwrap())
        .collect();
    let (id, tree) = Tree::with_groups(&bytes, Codec::Rlnc, 10);
    Meta {
        request: 1,
        path: "/live/v0/seg_00001.m4s".to_string(),
        id,
        offset: 0,
        length: 3000,
        object_length: Some(3000),
        version: 0x0123_4567_89ab_cdef,
        max_age_ms: 3_600_000,
        content_type: "video/iso.segment".to_string(),
        delivery: Delivery::Coded(Shape::new(3000, 64, 4).unwrap()),
        signature: None,
        tree,
    }
}

fn messages() -> Vec<(&'static str, Message)> {
    let id = SegmentId::of(&object());
    let path = "/live/v0/seg_00001.m4s".to_string();
    let meta = Meta {
        request: 1,
        path: path.clone(),
        id,
        offset: 0,
        length: 150,
        object_length: Some(150),
        version: 0x0123_4567_89ab_cdef,
        max_age_ms: 3_600_000,
        content_type: "video/iso.segment".to_string(),
        delivery: Delivery::Coded(Shape::new(150, 64, 4).unwrap()),
        signature: None,
        tree: None,
    };
    let playlist = b"#EXTM3U\n";
    let inline = Meta {
        request: 2,
        path: "/live/index.m3u8?a=b".to_string(),
        id: SegmentId::of(playlist),
        length: 8,
        object_length: Some(8),
        max_age_ms: 500,
        content_type: "application/vnd.apple.mpegurl".to_string(),
        delivery: Delivery::Inline(Bytes::from_static(playlist)),
        ..meta.clone()
    };
    let stream = Meta {
        request: 3,
        delivery: Delivery::Stream,
        content_type: String::new(),
        ..meta.clone()
    };
    let hello = Hello {
        agent: "example/1".to_string(),
        ..Hello::defaults()
    };
    let visits = Hello {
        visit: Some(VisitId([0x0e; 16])),
        ..hello.clone()
    };
    let sent = Hello {
        is_sent: true,
        ..hello.clone()
    };
    let speaks_all = Hello {
        codecs: Codecs::ALL,
        ..hello.clone()
    };
    let unbounded = Meta {
        object_length: None,
        ..meta.clone()
    };
    let coded_with = |codec| Meta {
        delivery: Delivery::Coded(shape().coded_with(codec).unwrap()),
        ..meta.clone()
    };
    let mut prime = coded_with(Codec::RlncQ {
        group: HashGroup::P1024,
    });
    prime.id = SegmentId::of_coded(
        &object(),
        Codec::RlncQ {
            group: HashGroup::P1024,
        },
    );
    signing_key().sign_meta(&mut prime, 1_800_000_000_000, Some(prime_hashes().digest()));
    let (rs, raptorq) = (
        coded_with(Codec::ReedSolomon { parity: 2 }),
        coded_with(Codec::RaptorQ),
    );
    let accept = Accept {
        coded: true,
        systematic: true,
        datagrams: true,
        recoded: false,
    };
    let request = Request {
        alias: 7,
        segment: id,
        generation: 0,
        deadline_ms: 10_000,
        credit: 3,
        accept,
        ranges: Vec::new(),
        meant: Meant::LastNamed,
    };
    let coding = |codec| Meant::Coded(shape().coded_with(codec).unwrap().coding());
    let request_coding = Request {
        meant: coding(Codec::ReedSolomon { parity: 2 }),
        ..request.clone()
    };
    let parity = Request {
        alias: 9,
        credit: 2,
        ranges: vec![(1, 1), (3, 2)],
        ..request.clone()
    };
    let ranges = Request {
        alias: 8,
        credit: 2,
        ranges: vec![(0, 1), (2, 1)],
        ..request.clone()
    };
    let error = RequestError {
        request: 4,
        code: RequestCode::Origin,
        retry_after_ms: 1000,
        reason: "origin answered 503".to_string(),
    };
    let fault = RequestError {
        code: RequestCode::Internal,
        retry_after_ms: 0,
        reason: String::new(),
        ..error.clone()
    };
    let mut signed = meta.clone();
    signing_key().sign_meta(
        &mut signed,
        1_800_000_000_000,
        Some(block_hashes().digest()),
    );
    let asked = GetChecks {
        request: 7,
        segment: id,
        generation: 0,
        nonce: [0x0b; 32],
        meant: Meant::LastNamed,
    };
    let projections = project(
        Kernels::detect(),
        &[0x0c; 32],
        &id,
        &generation(),
        2,
        &object(),
    )
    .into();
    let mut checks = Checks {
        request: 7,
        seed: [0x0c; 32],
        columns: 2,
        projections,
        signature: None,
    };
    signing_key().sign_checks(&asked, &mut checks);
    let holding = Holding {
        segment: id,
        meant: Meant::LastNamed,
        state: HoldingState::Partial,
    };
    let as_coded = Holding {
        meant: coding(Codec::Rlnc),
        state: HoldingState::Complete,
        ..holding
    };
    let introduction = Introduction {
        address: "192.0.2.1:4443".parse().unwrap(),
        identity: IDENTITY,
        lasts_ms: 300_000,
        ticket: ticket(),
    };
    let named = Alternate {
        address: "media-2.example:4443".to_owned(),
        identity: None,
    };
    let pinned = Alternate {
        identity: Some(IDENTITY),
        ..named.clone()
    };
    vec![
        ("HELLO", Message::Hello(hello)),
        ("HELLO codecs", Message::Hello(speaks_all)),
        ("HELLO visit", Message::Hello(visits)),
        ("HELLO sent", Message::Hello(sent)),
        (
            "AUTH",
            Message::Auth(Credential::Token(Token(TOKEN.to_string()))),
        ),
        ("GRANT", Message::Grant { lasts_ms: 300_000 }),
        ("GRANT refused", Message::Grant { lasts_ms: 0 }),
        (
            "GET",
            Message::Get(Get {
                request: 1,
                path: path.clone(),
                offset: 0,
                length: None,
                held_only: false,
            }),
        ),
        (
            "GET range",
            Message::Get(Get {
                request: 1,
                path: path.clone(),
                offset: 100_000,
                length: Some(50_000),
                held_only: false,
            }),
        ),
        (
            "GET held only",
            Message::Get(Get {
                request: 1,
                path,
                offset: 0,
                length: None,
                held_only: true,
            }),
        ),
        ("META coded", Message::Meta(meta)),
        (
            "META of an object whose length is not known",
            Message::Meta(unbounded),
        ),
        ("META tree", Message::Meta(with_tree())),
        ("META Reed-Solomon", Message::Meta(rs)),
        ("META RaptorQ", Message::Meta(raptorq)),
        ("META prime field", Message::Meta(prime)),
        ("META inline", Message::Meta(inline)),
        ("META stream", Message::Meta(stream)),
        ("ERROR", Message::Error(error)),
        ("ERROR INTERNAL", Message::Error(fault)),
        (
            "SUBSCRIBE",
            Message::Subscribe(Subscribe {
                request: 5,
                stream: "live".to_string(),
            }),
        ),
        ("SUBSCRIBE_OK", Message::SubscribeOk { request: 5 }),
        ("UNSUBSCRIBE", Message::Unsubscribe { request: 5 }),
        ("REQUEST", Message::Request(request)),
        ("REQUEST ranges", Message::Request(ranges)),
        ("REQUEST parity", Message::Request(parity)),
        ("REQUEST coding", Message::Request(request_coding)),
        (
            "CREDIT",
            Message::Credit {
                alias: 7,
                blocks: 100,
            },
        ),
        (
            "RESCHEDULE",
            Message::Reschedule {
                alias: 7,
                deadline_ms: 2_500,
            },
        ),
        (
            "STOP",
            Message::Stop {
                alias: 7,
                reason: StopReason::Complete,
            },
        ),
        (
            "STOP cancelled",
            Message::Stop {
                alias: 7,
                reason: StopReason::Cancelled,
            },
        ),
        (
            "REJECT",
            Message::Reject {
                alias: 7,
                code: RequestCode::Overload,
                retry_after_ms: 250,
            },
        ),
        (
            "REJECT INTERNAL",
            Message::Reject {
                alias: 7,
                code: RequestCode::Internal,
                retry_after_ms: 0,
            },
        ),
        (
            "RANK",
            Message::Rank {
                alias: 7,
                rank: 2,
                useless: 0,
                lost: 1,
            },
        ),
        ("GOAWAY", Message::GoAway { drain_ms: 5000 }),
        (
            "ALTERNATES",
            Message::Alternates {
                moves: false,
                servers: vec![
                    pinned,
                    Alternate {
                        address: "[2001:db8::1]:4443".to_owned(),
                        identity: None,
                    },
                ],
            },
        ),
        (
            "ALTERNATES now",
            Message::Alternates {
                moves: true,
                servers: vec![named],
            },
        ),
        (
            "ALTERNATES again",
            Message::Alternates {
                moves: true,
                servers: Vec::new(),
            },
        ),
        ("AUTH ticket", Message::Auth(Credential::Ticket(ticket()))),
        ("META signed", Message::Meta(signed)),
        (
            "GET_HASHES",
            Message::GetHashes {
                request: 6,
                segment: id,
                meant: Meant::LastNamed,
            },
        ),
        (
            "GET_HASHES coding",
            Message::GetHashes {
                request: 6,
                segment: id,
                meant: coding(Codec::RaptorQ),
            },
        ),
        (
            "GET_CHECKS coding",
            Message::GetChecks(GetChecks {
                meant: coding(Codec::Rlnc),
                ..asked.clone()
            }),
        ),
        ("GET_CHECKS", Message::GetChecks(asked)),
        ("CHECKS", Message::Checks(checks)),
        (
            "BLAME",
            Message::Blame {
                segment: id,
                generation: 0,
                blocks: 2,
                identity: IDENTITY,
            },
        ),
        (
            "OFFER",
            Message::Offer {
                port: 4443,
                identity: IDENTITY,
            },
        ),
        ("HAVE", Message::Have(vec![holding])),
        ("HAVE codings", Message::Have(vec![as_coded, holding])),
        (
            "PEERS",
            Message::Peers {
                segment: id,
                peers: vec![introduction],
            },
        ),
        ("OFFER_PAGE", Message::OfferPage { serves: true }),
        ("PAGE", Message::Page { identity: IDENTITY }),
        (
            "PAGES",
            Message::Pages {
                segment: id,
                pages: vec![PageIntroduction {
                    identity: IDENTITY,
                    lasts_ms: 300_000,
                    ticket: ticket(),
                }],
            },
        ),
        (
            "SIGNAL",
            Message::Signal {
                page: IDENTITY,
                bytes: Bytes::from_static(b"v=0"),
            },
        ),
    ]
}

/// The product in GF(2^8), written from section 5 of the document alone.
fn product(a: u8, b: u8) -> u8 {
    (0..8).rev().fold(0u8, |sum, bit| {
        let doubled = (sum << 1) ^ if sum & 0x80 == 0 { 0 } else { 0x1d };
        if b >> bit & 1 == 1 {
            doubled ^ a
        } else {
            doubled
        }
    })
}

/// The payload of the combination of the object's padded blocks with these coefficients.
fn combined(row: &[u8]) -> Vec<u8> {
    let mut padded = object();
    padded.resize(3 * 64, 0);
    (0..64)
        .map(|column| {
            row.iter()
                .zip(padded.chunks(64))
                .fold(0, |sum, (c, block)| sum ^ product(*c, block[column]))
        })
        .collect()
}

/// The row of a seed, written from section 5 of the document alone.
fn row(key: u64, generation: u64, seed: u32, n: usize) -> Vec<u8> {
    let low = |wide: u64| u32::try_from(wide & 0xffff_ffff).unwrap();
    let high = |wide: u64| u32::try_from(wide >> 32).unwrap();
    let philox = |mut c: [u32; 4]| {
        let mut k = [low(key), high(key)];
        for _ in 0..10 {
            let (p0, p1) = (u64::from(c[0]) * 0xD251_1F53, u64::from(c[2]) * 0xCD9E_8D57);
            c = [
                high(p1) ^ c[1] ^ k[0],
                low(p1),
                high(p0) ^ c[3] ^ k[1],
                low(p0),
            ];
            k = [
                k[0].wrapping_add(0x9E37_79B9),
                k[1].wrapping_add(0xBB67_AE85),
            ];
        }
        c
    };
    let groups = (0..).flat_map(|q| philox([q, seed, low(generation), high(generation)]));
    groups.flat_map(u32::to_le_bytes).take(n).collect()
}

#[test]
fn every_message_is_written_and_read_as_documented() {
    for (name, message) in messages() {
        let mut out = Vec::new();
        message.encode(&mut out);
        assert_example(name, &out);
        let mut reader = Reader::new();
        reader.push(&out);
        assert_eq!(reader.next(), Ok(Some(message)));
    }
}

#[test]
fn every_kind_of_block_is_written_and_read_as_documented() {
    let key = SegmentId::of(&object()).coefficient_key();
    let seeded = row(key, 0, 9, 3);
    let explicit = [1, 0, 0x80];
    let blocks = [
        ("systematic", Vector::Source(0), object()[..64].to_vec()),
        (
            "systematic last",
            Vector::Source(2),
            object()[128..].to_vec(),
        ),
        ("seeded", Vector::Seed(9), combined(&seeded)),
        (
            "explicit",
            Vector::Explicit(Bytes::copy_from_slice(&explicit)),
            combined(&explicit),
        ),
        (
            "unverified",
            Vector::Unverified(Bytes::copy_from_slice(&explicit)),
            combined(&explicit),
        ),
    ];
    let mut stream = Vec::new();
    StreamHead::Blocks { alias: 7 }.encode(&mut stream);
    for (seq, (name, vector, payload)) in (0u16..).zip(blocks) {
        let mut datagram = vec![0; block::datagram_header_len(&vector)];
        block::write_datagram_header(&mut datagram, &vector, 7, seq, seq == 4);
        datagram.extend_from_slice(&payload);
        assert_example(&format!("datagram {name}"), &datagram);

        let mut rest = Bytes::from(datagram);
        let head = block::parse_datagram(&mut rest).unwrap();
        assert_eq!((head.alias, head.seq, head.last), (7, seq, seq == 4));
        let parsed = block::parse_block(head.kind, &generation(), rest);
        assert_eq!(
            parsed,
            Some(Block {
                vector: vector.clone(),
                payload: payload.clone().into()
            })
        );

        if name.starts_with("systematic") {
            let mut header = vec![0; block::record_header_len(&vector)];
            block::write_record_header(&mut header, &vector);
            stream.extend(header);
            stream.extend(payload);
        }
    }
    assert_example("stream of blocks", &stream);
}

/// The inverse in GF(2^8), by trial.
fn inverse(a: u8) -> u8 {
    (1..=255).find(|b| product(a, *b) == 1).unwrap()
}

#[test]
fn blocks_with_numbers_are_written_and_read_as_documented() {
    let parity: Vec<u8> = (0..3).map(|j| inverse(4 ^ j)).collect();
    let mut symbol = [0; 3];
    write_number(&Vector::Symbol(70_000), &mut symbol);
    for (name, codec, vector, row) in [
        (
            "shard",
            Codec::ReedSolomon { parity: 2 },
            Vector::Shard(4),
            &parity[..],
        ),
        (
            "symbol",
            Codec::RaptorQ,
            Vector::Symbol(70_000),
            &symbol[..],
        ),
    ] {
        let mut datagram = vec![0; block::datagram_header_len(&vector)];
        block::write_datagram_header(&mut datagram, &vector, 9, 1, false);
        datagram.extend(combined(row));
        assert_example(&format!("datagram {name}"), &datagram);
        let mut rest = Bytes::from(datagram);
        let head = block::parse_datagram(&mut rest).unwrap();
        let generation = shape().coded_with(codec).unwrap().generation(0).unwrap();
        let parsed = block::parse_block(head.kind, &generation, rest);
        assert_eq!(
            parsed,
            Some(Block {
                vector,
                payload: combined(row).into()
            })
        );
    }
}

/// The sum of two elements of the prime field, big-endian, written from section 5 of the document
/// alone.
fn sum(a: [u8; 33], b: [u8; 33]) -> [u8; 33] {
    let mut wide = [0u16; 33];
    for place in (0..33).rev() {
        let carry = if place < 32 { wide[place + 1] >> 8 } else { 0 };
        wide[place] = u16::from(a[place]) + u16::from(b[place]) + carry;
    }
    let sum = wide.map(|digit| u8::try_from(digit & 0xff).unwrap());
    if sum < Q {
        return sum;
    }
    let mut borrow = false;
    let mut out = [0; 33];
    for place in (0..33).rev() {
        let (low, first) = sum[place].overflowing_sub(Q[place]);
        let (low, second) = low.overflowing_sub(u8::from(borrow));
        (out[place], borrow) = (low, first || second);
    }
    out
}

/// The product, by doubling.
fn product_in_prime_field(a: [u8; 33], b: [u8; 33]) -> [u8; 33] {
    let bits = b
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1));
    bits.fold([0; 33], |so_far, bit| {
        let doubled = sum(so_far, so_far);
        if bit { sum(doubled, a) } else { doubled }
    })
}

/// The payload of the combination of the object's padded blocks over the prime field.
fn combined_in_prime_field(row: &[[u8; 33]]) -> Vec<u8> {
    let mut padded = object();
    padded.resize(3 * 64, 0);
    let word = |block: &[u8], word: usize| -> [u8; 33] {
        [&[0], &block[word * 32..][..32]]
            .concat()
            .try_into()
            .expect("33 bytes")
    };
    let words = (0..2).map(|index| {
        let products = row
            .iter()
            .zip(padded.chunks(64))
            .map(|(c, block)| product_in_prime_field(*c, word(block, index)));
        products.fold([0; 33], sum)
    });
    let words: Vec<_> = words.collect();
    let mut payload: Vec<u8> = words.iter().flat_map(|word| word[1..].to_vec()).collect();
    payload.push(words[0][0] | words[1][0] << 1);
    payload
}

#[test]
fn blocks_over_the_prime_field_are_written_and_read_as_documented() {
    let [(_, field)] = &fenced("field")[..] else {
        panic!("one field")
    };
    assert_eq!(bytes_of(field[0].strip_prefix("q ").unwrap()), Q);
    let codec = Codec::RlncQ {
        group: HashGroup::P1024,
    };
    let generation = shape().coded_with(codec).unwrap().generation(0).unwrap();
    let small = |value: u32| -> [u8; 33] {
        [&[0; 29][..], &value.to_be_bytes()]
            .concat()
            .try_into()
            .unwrap()
    };
    let mut largest = Q;
    largest[32] -= 1;
    let narrow = [1u32, 0x612e_7696, u32::MAX];
    // - B_0 + 2^255 B_1 + 14 B_2, the first of them mod q.
    let mut high = [0; 33];
    high[1] = 0x80;
    let wide = [largest, high, small(14)];
    let mut stream = Vec::new();
    StreamHead::Blocks { alias: 10 }.encode(&mut stream);
    let head = stream.len();
    let mut expected = Vec::new();
    for (vector, row) in [
        (
            Vector::Narrow(narrow.iter().flat_map(|c| c.to_be_bytes()).collect()),
            narrow.map(small),
        ),
        (Vector::Wide(wide.concat().into()), wide),
    ] {
        let payload = combined_in_prime_field(&row);
        let mut header = vec![0; block::record_header_len(&vector)];
        block::write_record_header(&mut header, &vector);
        stream.extend(header);
        stream.extend(&payload);
        expected.push(Block {
            vector,
            payload: payload.into(),
        });
    }
    assert_example("stream of blocks over the prime field", &stream);
    let mut records = Records::new(generation);
    records.push(&stream[head..]);
    let read: Vec<_> = std::iter::from_fn(|| records.next().unwrap()).collect();
    assert_eq!(read, expected);
}

/// Coefficients of numbered blocks in the document; those of parity blocks follow from its text
/// alone.
#[test]
fn rows_of_numbers_are_those_of_the_document() {
    let lines = |word: &str| fenced(word).remove(0).1;
    let split = |line: &'static str| {
        line.split_once(' ')
            .map(|(number, row)| (number.to_owned(), bytes_of(row)))
            .unwrap()
    };
    for (number, row) in lines("parity").into_iter().map(split) {
        let number: u8 = number.parse().unwrap();
        assert_eq!(row, (0..3).map(|j| inverse(number ^ j)).collect::<Vec<_>>());
        let mut written = [0; 3];
        write_number(&Vector::Shard(number.into()), &mut written);
        assert_eq!(row, written);
    }
    let symbols = lines("symbols");
    let written = symbols.iter().map(|line| {
        let (esi, _) = line.split_once(' ').unwrap();
        let mut row = [0; 10];
        write_number(&Vector::Symbol(esi.parse().unwrap()), &mut row);
        format!("{esi} {}", hex_of(&row))
    });
    assert_eq!(symbols, written.collect::<Vec<_>>());
}

#[test]
fn an_object_stream_is_written_as_documented() {
    let mut stream = Vec::new();
    StreamHead::Object { request: 3 }.encode(&mut stream);
    stream.extend(object());
    assert_example("stream of an object", &stream);
}

#[test]
fn a_hashes_stream_is_written_as_documented() {
    let mut stream = Vec::new();
    StreamHead::Hashes { request: 6 }.encode(&mut stream);
    stream.extend_from_slice(block_hashes().as_bytes());
    assert_example("stream of hashes", &stream);
}

#[test]
fn homomorphic_hashes_are_written_as_documented() {
    let mut stream = Vec::new();
    StreamHead::Hashes { request: 11 }.encode(&mut stream);
    stream.extend_from_slice(prime_hashes().as_bytes());
    assert_example("stream of hashes over the prime field", &stream);
}

#[test]
fn the_documents_rows_follow_from_its_definition() {
    let rows = fenced("rows");
    let lines: Vec<_> = rows.iter().flat_map(|(_, lines)| lines.chunks(2)).collect();
    assert!(lines.len() >= 4);
    for pair in lines {
        let words: Vec<_> = pair[0].split_whitespace().collect();
        let ["key", key, "generation", generation, "seed", seed, "n", n] = words[..] else {
            panic!("{}", pair[0])
        };
        let key = u64::from_str_radix(key, 16).unwrap();
        let found = row(
            key,
            generation.parse().unwrap(),
            seed.parse().unwrap(),
            n.parse().unwrap(),
        );
        assert_eq!(found, bytes_of(pair[1]), "{}", pair[0]);
    }
    assert_eq!(product(20, 38), 194);
    assert_eq!(product(0x80, 2), 0x1d);
}

#[test]
fn the_documents_generations_follow_from_the_shape() {
    let rows = DOCUMENT
        .lines()
        .skip_while(|line| !line.starts_with("| L | k | n_max"))
        .skip(2);
    let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 6);
    for line in rows {
        let cells: Vec<_> = line
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().to_string())
            .collect();
        let number = |cell: usize| cells[cell].replace(',', "").parse::<u64>().unwrap();
        let shape = Shape::new(
            number(0),
            u32::try_from(number(1)).unwrap(),
            u16::try_from(number(2)).unwrap(),
        )
        .unwrap();
        assert_eq!(
            (shape.blocks(), u64::from(shape.generations())),
            (number(3), number(4)),
            "{line}"
        );
        let sizes: Vec<_> = shape
            .iter()
            .map(|generation| generation.n.to_string())
            .collect();
        assert_eq!(cells[5].split(", ").collect::<Vec<_>>(), sizes, "{line}");
    }
}

/// What a reader makes of bytes: the messages, and the violation after them.
fn read(bytes: &[u8]) -> (Vec<Message>, Option<Violation>) {
    let mut reader = Reader::new();
    reader.push(bytes);
    let mut messages = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, None),
            Err(violation) => return (messages, Some(violation)),
        }
    }
}

/// The bytes of a fenced block.
fn bytes_in(lines: &[&str]) -> Vec<u8> {
    bytes_of(
        &lines
            .iter()
            .map(|line| line.split('#').next().unwrap())
            .collect::<String>(),
    )
}

#[test]
fn what_newer_versions_may_add_is_skipped_as_documented() {
    let skipped = fenced("skipped");
    assert!(skipped.len() >= 3);
    for (name, lines) in skipped {
        let bytes = bytes_in(&lines);
        assert_eq!(read(&bytes), (Vec::new(), None), "{name}");
        // What follows is still read.
        let message = Message::GoAway { drain_ms: 5 };
        assert_eq!(
            read(&[&bytes[..], &message.to_frame()].concat()),
            (vec![message], None),
            "{name}"
        );
    }
    let extended = fenced("read as");
    assert!(extended.len() >= 3);
    let (datagrams, extended): (Vec<_>, Vec<_>) = extended
        .into_iter()
        .partition(|(name, _)| name.starts_with("datagram "));
    for (name, lines) in datagrams {
        let parse = |bytes: Vec<u8>| {
            let mut rest = Bytes::from(bytes);
            let head = block::parse_datagram(&mut rest).unwrap();
            (
                head,
                block::parse_block(head.kind, &generation(), rest).unwrap(),
            )
        };
        let (_, example) = fenced("example ")
            .into_iter()
            .find(|(known, _)| *known == name)
            .expect(name);
        assert_ne!(
            bytes_in(&lines),
            bytes_in(&example),
            "{name} has nothing that is newer"
        );
        assert_eq!(parse(bytes_in(&lines)), parse(bytes_in(&example)), "{name}");
    }
    for (name, lines) in extended {
        let (_, message) = messages()
            .into_iter()
            .find(|(known, _)| *known == name)
            .expect(name);
        let bytes = bytes_in(&lines);
        assert_ne!(
            bytes,
            message.to_frame(),
            "{name} has nothing that is newer"
        );
        assert_eq!(read(&bytes), (vec![message], None), "{name}");
    }
}

#[test]
fn reasons_are_made_plain_as_documented() {
    let shown = fenced("shown as ");
    assert!(!shown.is_empty());
    for (expected, lines) in shown {
        let (messages, violation) = read(&bytes_in(&lines));
        let [Message::Error(error)] = &messages[..] else {
            panic!("{messages:?}, {violation:?}")
        };
        assert_eq!(error.reason, expected);
        // And so it may be passed on.
        assert_eq!(read(&messages[0].to_frame()), (messages.clone(), None));
    }
}

#[test]
fn what_ends_a_connection_has_the_code_of_the_document() {
    let refused = fenced("refused");
    assert!(refused.len() >= 12);
    for (name, lines) in refused {
        let code = name.split_whitespace().next().unwrap();
        if code == "stream" {
            assert_eq!(
                records(&bytes_in(&lines)),
                Err(CloseCode::Protocol),
                "{name}"
            );
            continue;
        }
        let (messages, violation) = read(&bytes_in(&lines));
        assert!(violation.is_none() || messages.is_empty(), "{name}");
        let violation = violation.or_else(|| match &messages[..] {
            [Message::Hello(_) | Message::Meta(_), ..] => heard_by_client(&messages).1,
            _ => heard_by_server(&messages).1,
        });
        let close = violation
            .unwrap_or_else(|| panic!("{name} is taken"))
            .close_code();
        assert_eq!(close.name(), code, "{name}");
    }
}

/// Reads a whole stream of blocks of the examples' generation.
fn records(bytes: &[u8]) -> Result<(), CloseCode> {
    let refused = |violation: Violation| violation.close_code();
    let (_, head) = StreamHead::parse(bytes).map_err(refused)?.expect("a head");
    let is_prime = bytes[head] == 0x46;
    let codec = if is_prime {
        Codec::RlncQ {
            group: HashGroup::P1024,
        }
    } else {
        Codec::Rlnc
    };
    let mut records = Records::new(shape().coded_with(codec).unwrap().generation(0).unwrap());
    records.push(&bytes[head..]);
    while records.next().map_err(refused)?.is_some() {}
    if records.is_between_records() {
        Ok(())
    } else {
        Err(CloseCode::Protocol)
    }
}

/// The events of messages at a client that has sent a HELLO without parameters and the examples'
/// GET with number 1.
fn heard_by_client(messages: &[Message]) -> (Vec<client::Event>, Option<Violation>) {
    let (now, source) = (Instant::now(), SourceId(0));
    let time = Duration::from_secs(10);
    let mut proto = client::Proto::new(client::Config {
        hello: Hello::defaults(),
        datagrams: false,
        requests_max: 8,
        window_min: 1 << 20,
        window_max: 1 << 20,
        answer_timeout: time,
        hello_timeout: time,
        stall_timeout: time,
        rate_min: 0,
        kernels: Kernels::detect(),
        gathers: false,
        tells: false,
        keys: client::Keys::default(),
        tests_max: 1,
        rows_max: 0,
        secret: client::Secret::new([1; 32]),
    });
    proto.handle_connected(now, source, None);
    assert_eq!(proto.get(now, "/live/v0/seg_00001.m4s", 0, None), 1);
    while proto.poll_message(now, source).is_some() {}
    let greeting = Some(Message::Hello(Hello::defaults()))
        .filter(|_| !matches!(messages, [Message::Hello(_), ..]));
    let heard = greeting
        .iter()
        .chain(messages)
        .find_map(|message| proto.handle_message(now, source, message.clone()).err());
    (std::iter::from_fn(|| proto.poll_event()).collect(), heard)
}

/// The replies to messages by a server that holds the examples' segment.
fn heard_by_server(messages: &[Message]) -> (Vec<Message>, Option<Violation>) {
    let now = Instant::now();
    let mut proto = server::Proto::new(SessionId(1), session::Config::default(), now);
    proto
        .handle_message(now, Message::Hello(Hello::defaults()))
        .unwrap();
    let held = || Held {
        lease: Lease::new(
            SegmentKey(1),
            SegmentId::of(&object()),
            shape(),
            Loan::new(now),
        ),
        first_pass: FirstPass::Coded,
        row_weight: None,
        is_recoded: false,
        birth: None,
        path: Some("/live/v0/seg_00001.m4s".into()),
        blocks_digest: None,
        tree: None,
    };
    let mut hear = |message: &Message| -> Result<(), Violation> {
        proto.handle_message(now, message.clone())?;
        while let Some(event) = proto.poll_event() {
            if let server::Event::Find { ticket, coding, .. } = event {
                let is_here = coding.is_none_or(|coding| coding == shape().coding());
                proto.found(now, ticket, is_here.then(held))?;
            }
        }
        Ok(())
    };
    let violation = messages.iter().find_map(|message| hear(message).err());
    (
        std::iter::from_fn(|| proto.poll_message()).collect(),
        violation,
    )
}

#[test]
fn what_counts_as_an_error_does_so_as_documented() {
    let taken = fenced("taken as ERROR");
    assert!(!taken.is_empty());
    for (name, lines) in taken {
        let (messages, _) = read(&bytes_in(&lines));
        let (events, violation) = heard_by_client(&messages);
        assert_eq!(violation, None, "{name}");
        let refusal = events.iter().find_map(|event| match event {
            client::Event::Answered {
                request: 1,
                answer: Err(Failure::Refused(refusal)),
            } => Some(refusal.code),
            _ => None,
        });
        assert_eq!(refusal, Some(RequestCode::Origin), "{name}: {events:?}");
    }
}

#[test]
fn requests_are_rejected_as_documented() {
    let rejected = fenced("rejected");
    assert!(rejected.len() >= 2);
    for (name, lines) in rejected {
        let code = name.split_whitespace().next().unwrap();
        let (messages, _) = read(&bytes_in(&lines));
        let (answers, violation) = heard_by_server(&messages);
        assert_eq!(violation, None, "{name}");
        let rejection = answers.iter().find_map(|answer| match answer {
            Message::Reject {
                alias: 7,
                code,
                retry_after_ms: 0,
            } => Some(code.name()),
            _ => None,
        });
        assert_eq!(rejection, Some(code), "{name}: {answers:?}");
    }
}

#[test]
fn datagrams_are_dropped_as_documented() {
    let dropped = fenced("dropped datagram");
    assert!(dropped.len() >= 4);
    for (name, lines) in dropped {
        let mut rest = Bytes::from(bytes_in(&lines));
        let block = block::parse_datagram(&mut rest)
            .and_then(|head| block::parse_block(head.kind, &generation(), rest));
        assert_eq!(block, None, "{name}");
    }
}

#[test]
fn a_refused_client_reads_the_time_as_documented() {
    let refusals = fenced("refusal for ");
    assert_eq!(refusals.len(), 1);
    let (chosen, lines) = &refusals[0];
    let mut packet = bytes_in(lines);
    let suite = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let suite = suite.tls13().and_then(|suite| suite.quic_suite()).unwrap();
    let version = rustls::quic::Version::V1;
    let keys = suite.keys(&bytes_of(chosen), rustls::Side::Client, version);
    let number_at = packet.len() - 41;
    let (header, body) = packet.split_at_mut(number_at);
    let (number, body) = body.split_at_mut(1);
    let sample = body[3..19].to_vec();
    let unmask = &keys.remote.header;
    unmask
        .decrypt_in_place(&sample, &mut header[0], number)
        .unwrap();
    assert_eq!((header[0], &number[..]), (0xc0, &[0][..]));
    let header = [&header[..], number].concat();
    let frame = keys.remote.packet.decrypt_in_place(0, &header, body);
    let (head, reason) = frame.unwrap().split_at(4);
    assert_eq!(head, [0x1c, 0x02, 0x00, 20]);
    let told = refusal::retry_after(reason);
    assert_eq!(told, Some(Duration::from_millis(12_000)));
    assert_eq!(refusal::reason(told.unwrap()).as_bytes(), reason);
}

#[test]
fn a_session_with_a_page_is_written_as_documented() {
    let mut response = Vec::new();
    page::proto::ConnectResponse::OK
        .encode(&mut response)
        .unwrap();
    assert_example("response to a page", &response);

    let mut stream = Binding::Web.stream_head().to_vec();
    StreamHead::Object { request: 5 }.encode(&mut stream);
    stream.extend(&object()[..10]);
    assert_example("stream of an object for a page", &stream);

    let vector = Vector::Seed(9);
    let mut header = vec![0; block::datagram_header_len(&vector)];
    block::write_datagram_header(&mut header, &vector, 3, 0, true);
    let datagram = [Binding::Web.datagram_head(), &header].concat();
    assert_example("datagram for a page", &datagram);

    let violation = Violation::Malformed("GET");
    let end = web::end_of_session(violation.close_code(), &violation.to_string());
    assert_example("end of a session with a page", &end);

    let code = Binding::Web.stream_code(CloseCode::Done).into_inner();
    assert!(DOCUMENT.contains(&format!("DONE has the code {code:#x}")));
}

#[test]
fn no_example_is_left_unchecked() {
    let mut names: Vec<_> = messages()
        .iter()
        .map(|(name, _)| (*name).to_string())
        .collect();
    let kinds = [
        "systematic",
        "systematic last",
        "seeded",
        "explicit",
        "unverified",
        "shard",
        "symbol",
    ];
    names.extend(kinds.map(|name| format!("datagram {name}")));
    names.extend(
        [
            "blocks",
            "an object",
            "hashes",
            "blocks over the prime field",
            "hashes over the prime field",
        ]
        .map(|what| format!("stream of {what}")),
    );
    names.extend(
        [
            "response to a page",
            "stream of an object for a page",
            "datagram for a page",
            "end of a session with a page",
        ]
        .map(str::to_owned),
    );
    for (name, _) in fenced("example ") {
        assert!(
            names.iter().any(|known| known == name),
            "example {name} of docs/protocol.md is not checked"
        );
    }
}
