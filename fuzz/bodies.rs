//! The bodies of the fuzz targets. `tests/fuzz_corpus.rs` runs them over `seeds/` and mutations of
//! them.

use bytes::{Bytes, BytesMut};
use ncs_codec::Outcome;
use ncs_codec::block::{Block, Vector};
use ncs_codec::rlnc::Decoder;
use ncs_gf::Kernels;
use ncs_proto::object::row_key;
use ncs_proto::object::{Codec, Generation, HashGroup, SegmentId, Shape};
use ncs_proto::wire::block::{self, Records, StreamHead};
use ncs_proto::wire::frame::{BODY_MAX, Reader};

/// A control stream, cut in two: every parsed message has one encoding, and parsing does not depend
/// on the cut.
pub(crate) fn wire_control(data: &[u8]) {
    let Some((cut, stream)) = data.split_first() else {
        return;
    };
    let (first, second) = stream.split_at(usize::from(*cut).min(stream.len()));
    let (mut whole, mut pieces) = (Reader::new(), Reader::new());
    whole.push(stream);
    pieces.push(first);
    let mut from_pieces = Vec::new();
    let mut fault = None;
    for piece in [&[][..], second] {
        pieces.push(piece);
        while fault.is_none() {
            match pieces.next() {
                Ok(Some(message)) => from_pieces.push(message),
                Ok(None) => break,
                Err(violation) => fault = Some(violation),
            }
        }
    }
    for expected in from_pieces {
        let message = whole
            .next()
            .expect("parsed in pieces")
            .expect("parsed in pieces");
        assert_eq!(message, expected);
        let frame = message.to_frame();
        assert!(frame.len() <= BODY_MAX + 16);
        let mut again = Reader::new();
        again.push(&frame);
        assert_eq!(again.next(), Ok(Some(message)));
    }
    assert_eq!(whole.next().err(), fault);
}

/// A datagram and a block stream of a generation chosen by the first bytes: parsed blocks are
/// written back unchanged.
pub(crate) fn wire_block(data: &[u8]) {
    let Some((generation, rest)) = generation(data) else {
        return;
    };
    let mut payload = Bytes::copy_from_slice(rest);
    if let Some(head) = block::parse_datagram(&mut payload)
        && let Some(Block { vector, payload }) = block::parse_block(head.kind, &generation, payload)
    {
        let mut out = vec![0; block::datagram_header_len(&vector)];
        block::write_datagram_header(&mut out, &vector, head.alias, head.seq, head.last);
        // Flag bits without a meaning are skipped.
        out[1] = rest[1];
        out.extend_from_slice(&payload);
        assert_eq!(out, rest);
    }
    if let Ok(Some((head, length))) = StreamHead::parse(rest) {
        let mut out = Vec::new();
        head.encode(&mut out);
        assert_eq!(out, rest[..length]);
        let mut records = Records::new(generation);
        records.push(&rest[length..]);
        let mut written = BytesMut::new();
        while let Ok(Some(Block { vector, payload })) = records.next() {
            let mut header = vec![0; block::record_header_len(&vector)];
            block::write_record_header(&mut header, &vector);
            written.extend_from_slice(&header);
            written.extend_from_slice(&payload);
        }
        assert!(rest[length..].starts_with(&written));
    }
}

/// Blocks of any kind and length for a decoder: its rank never falls, and it is complete exactly
/// when it says so.
pub(crate) fn decoder(data: &[u8]) {
    let Some((generation, mut rest)) = generation(data) else {
        return;
    };
    let key = row_key(&SegmentId::from_bytes([7; 32]), &generation);
    let mut decoder = Decoder::new(generation, key, Kernels::detect());
    while let Some((&[kind, a, b, length], more)) = rest.split_first_chunk::<4>() {
        let vector_len = if kind % 6 == 2 {
            usize::from(generation.n)
        } else {
            usize::from(a)
        };
        let vector = match kind % 6 {
            0 => Vector::Source(u16::from(a)),
            1 => Vector::Seed(u32::from_be_bytes([0, 0, a, b])),
            4 => Vector::Shard(u16::from_be_bytes([a & 1, b])),
            5 => Vector::Symbol(u32::from_be_bytes([a >> 7, a, b, b])),
            _ => Vector::Explicit(
                more.iter()
                    .copied()
                    .cycle()
                    .take(if more.is_empty() { 0 } else { vector_len })
                    .collect(),
            ),
        };
        let right = block::payload_len(&vector, &generation).unwrap_or(0);
        let payload = vec![
            b;
            if length == 0 {
                right
            } else {
                usize::from(length) * 8
            }
        ];
        let before = decoder.rank();
        match decoder.absorb(&vector, &payload) {
            Ok(Outcome::Redundant) | Err(_) => assert_eq!(decoder.rank(), before),
            Ok(Outcome::Innovative) => {
                assert!(decoder.rank() == before + 1 && !decoder.is_complete())
            }
            Ok(Outcome::Complete) => {
                assert!(decoder.rank() == generation.n && decoder.is_complete())
            }
        }
        rest = more;
    }
    let complete = decoder.is_complete();
    let bytes = decoder.into_bytes();
    assert_eq!(bytes.is_ok(), complete);
    assert!(bytes.is_err() || bytes.is_ok_and(|bytes| bytes.len() as u64 == generation.length));
}

/// A small generation chosen by the first four bytes.
fn generation(data: &[u8]) -> Option<(Generation, &[u8])> {
    let (&[high, low, step, n_max], rest) = data.split_first_chunk::<4>()?;
    let length = u64::from(u16::from_be_bytes([high, low]));
    let shape = Shape::new(length, u32::from(step % 16 + 4) * 16, u16::from(n_max)).ok()?;
    let codec = match step >> 5 {
        5 => Codec::ReedSolomon {
            parity: u16::from(high) + 1,
        },
        6 => Codec::RaptorQ,
        7 => Codec::RlncQ {
            group: HashGroup::P1024,
        },
        _ => Codec::Rlnc,
    };
    Some((shape.coded_with(codec).ok()?.generation(0)?, rest))
}
