//! Blocks on the wire: one in each datagram, or as records of a unidirectional stream.
//!
//! Senders write the header into the headroom before a payload, so that a block leaves as one piece
//! of memory. Receivers first read the head of a datagram alone: it names the request, and a block
//! of a request that is not open costs nothing more. Neither form carries the length of the
//! payload; that follows from the generation.

use bytes::{Buf, Bytes, BytesMut};
use ncs_codec::block::{Block, ELEMENT_BYTES, ESI_END, Vector, are_coded_words, are_elements};

use super::{Violation, varint};
use crate::object::{Codec, Generation};

/// Bytes of a datagram before the vector: kind, flags, alias, sequence number.
const DATAGRAM_HEAD: usize = 6;
/// Bytes of a record before the vector: the kind.
const RECORD_HEAD: usize = 1;
/// The sender has no unspent credit for the request after this block.
const FLAG_LAST: u8 = 1;

const SYSTEMATIC: u8 = 0x40;
const SEEDED: u8 = 0x41;
const EXPLICIT: u8 = 0x42;
const UNVERIFIED: u8 = 0x43;
const SHARD: u8 = 0x44;
const SYMBOL: u8 = 0x45;
/// Over the prime field; a byte of flags follows. Not in datagrams.
const PRIME: u8 = 0x46;

/// Flags behind [`PRIME`]: coefficients of 33 bytes, or of four.
const PRIME_WIDE: u8 = 0;
const PRIME_NARROW: u8 = 1;

/// First byte of a unidirectional stream of blocks.
const STREAM_BLOCKS: u8 = 0x50;
/// First byte of a unidirectional stream with a whole object.
const STREAM_OBJECT: u8 = 0x51;
/// First byte of a unidirectional stream with the hashes of a segment's blocks.
const STREAM_HASHES: u8 = 0x52;

/// The form of vector that a block carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A source block, by its index.
    Systematic,
    /// A dense row, by its seed.
    Seeded,
    /// All n coefficients.
    Explicit,
    /// All n coefficients, of rows that the sender has not checked.
    Unverified,
    /// A parity block of Reed-Solomon, by its number.
    Shard,
    /// A repair symbol of RaptorQ, by its encoding symbol id.
    Symbol,
    /// All n coefficients over the prime field, of 32 bits.
    Narrow,
    /// The same, of 257 bits.
    Wide,
}

impl Kind {
    /// The kind of a record that begins with `input`, once enough of it has come.
    fn of_record(input: &[u8]) -> Result<Option<Self>, Violation> {
        match input {
            [] | [PRIME] => Ok(None),
            [PRIME, PRIME_WIDE, ..] => Ok(Some(Self::Wide)),
            [PRIME, PRIME_NARROW, ..] => Ok(Some(Self::Narrow)),
            [first, ..] => Self::from_byte(*first).map(Some).ok_or(MALFORMED),
        }
    }

    /// The kind of a datagram.
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            SYSTEMATIC => Some(Self::Systematic),
            SEEDED => Some(Self::Seeded),
            EXPLICIT => Some(Self::Explicit),
            UNVERIFIED => Some(Self::Unverified),
            SHARD => Some(Self::Shard),
            SYMBOL => Some(Self::Symbol),
            _ => None,
        }
    }

    /// Bytes of a vector of this kind where the generation has `n` blocks.
    pub const fn vector_len(self, n: u16) -> usize {
        match self {
            Self::Systematic | Self::Shard => 2,
            Self::Seeded | Self::Symbol => 4,
            Self::Explicit | Self::Unverified => n as usize,
            Self::Narrow => 1 + 4 * n as usize,
            Self::Wide => 1 + ELEMENT_BYTES * n as usize,
        }
    }

    /// Bytes before the payload of a datagram with such a vector.
    pub const fn datagram_header_len(self, n: u16) -> usize {
        DATAGRAM_HEAD + self.vector_len(n)
    }
}

/// The part of a datagram that names its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramHead {
    /// Form of the vector.
    pub kind: Kind,
    /// The sender has spent all credit of the request with this block.
    pub last: bool,
    /// The request.
    pub alias: u16,
    /// Counts the datagrams of the request from 0, wrapping: a gap is a lost or late datagram.
    pub seq: u16,
}

/// Bytes before the payload of a datagram with this vector.
pub fn datagram_header_len(vector: &Vector) -> usize {
    DATAGRAM_HEAD + vector_len(vector)
}

/// Bytes before the payload of a record with this vector.
pub fn record_header_len(vector: &Vector) -> usize {
    RECORD_HEAD + vector_len(vector)
}

/// Fills `out` with the header of a datagram.
///
/// # Panics
///
/// If `out` is not [`datagram_header_len`] long, or the vector is over the prime field: such blocks
/// travel in records alone.
pub fn write_datagram_header(out: &mut [u8], vector: &Vector, alias: u16, seq: u16, last: bool) {
    assert_eq!(
        out.len(),
        datagram_header_len(vector),
        "room for the header of a datagram"
    );
    assert!(
        !is_over_gfq(vector),
        "blocks over the prime field do not travel in datagrams"
    );
    out[0] = kind_byte(vector);
    out[1] = if last { FLAG_LAST } else { 0 };
    out[2..4].copy_from_slice(&alias.to_be_bytes());
    out[4..6].copy_from_slice(&seq.to_be_bytes());
    write_vector(&mut out[DATAGRAM_HEAD..], vector);
}

/// Fills `out` with the header of a record.
///
/// # Panics
/// If `out` is not [`record_header_len`] long.
pub fn write_record_header(out: &mut [u8], vector: &Vector) {
    assert_eq!(
        out.len(),
        record_header_len(vector),
        "room for the header of a record"
    );
    out[0] = kind_byte(vector);
    write_vector(&mut out[RECORD_HEAD..], vector);
}

/// Takes the head off a datagram; the rest is for [`parse_block`]. `None` for a block of an unknown
/// kind.
pub fn parse_datagram(datagram: &mut Bytes) -> Option<DatagramHead> {
    let head = datagram.get(..DATAGRAM_HEAD)?;
    let head = DatagramHead {
        kind: Kind::from_byte(head[0])?,
        last: head[1] & FLAG_LAST != 0,
        alias: u16::from_be_bytes([head[2], head[3]]),
        seq: u16::from_be_bytes([head[4], head[5]]),
    };
    datagram.advance(DATAGRAM_HEAD);
    Some(head)
}

/// The vector and payload behind the head of a datagram for this generation. `None` unless every
/// byte fits: the generation's code makes blocks of this kind and with this number, and the payload
/// has the length of its block.
pub fn parse_block(kind: Kind, generation: &Generation, mut rest: Bytes) -> Option<Block> {
    let vector = read_vector(kind, generation, &mut rest)?;
    let expected = payload_len(&vector, generation)?;
    (rest.len() == expected).then_some(Block {
        vector,
        payload: rest,
    })
}

/// Bytes of the payload of a block with this vector; `None` for a block that the generation does
/// not have, or not in its code.
pub fn payload_len(vector: &Vector, generation: &Generation) -> Option<usize> {
    let block_bytes = usize::try_from(generation.block_bytes).ok();
    match (vector, generation.codec) {
        (Vector::Source(index), _) => {
            (*index < generation.n).then(|| generation.block_length(*index))
        }
        (Vector::Seed(_) | Vector::Explicit(_) | Vector::Unverified(_), Codec::Rlnc) => block_bytes,
        (Vector::Shard(number), Codec::ReedSolomon { .. }) => {
            block_bytes.filter(|_| (generation.n..generation.numbered()).contains(number))
        }
        (Vector::Symbol(esi), Codec::RaptorQ) => {
            block_bytes.filter(|_| (u32::from(generation.n)..ESI_END).contains(esi))
        }
        (Vector::Narrow(_) | Vector::Wide(_), Codec::RlncQ { .. }) => {
            usize::try_from(generation.coded_bytes()).ok()
        }
        _ => None,
    }
}

/// The content of a unidirectional stream, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamHead {
    /// Records of blocks of one request.
    Blocks {
        /// The request.
        alias: u16,
    },
    /// The bytes of a META whose delivery is [`Stream`](super::message::Delivery::Stream).
    Object {
        /// The GET.
        request: u64,
    },
    /// The hashes of the source blocks of a segment,
    /// [`BLOCK_HASH_LEN`](super::message::BLOCK_HASH_LEN) bytes each.
    Hashes {
        /// The GET_HASHES.
        request: u64,
    },
}

impl StreamHead {
    /// Appends the head.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Blocks { alias } => {
                out.push(STREAM_BLOCKS);
                out.extend_from_slice(&alias.to_be_bytes());
            }
            Self::Object { request } => {
                out.push(STREAM_OBJECT);
                varint::write(*request, out);
            }
            Self::Hashes { request } => {
                out.push(STREAM_HASHES);
                varint::write(*request, out);
            }
        }
    }

    /// The head at the start of `input` and its length; `None` until more of it has come.
    pub fn parse(input: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        let Some((kind, rest)) = input.split_first() else {
            return Ok(None);
        };
        match *kind {
            STREAM_BLOCKS => {
                let Some(alias) = rest.first_chunk::<2>() else {
                    return Ok(None);
                };
                Ok(Some((
                    Self::Blocks {
                        alias: u16::from_be_bytes(*alias),
                    },
                    3,
                )))
            }
            STREAM_OBJECT => {
                let request =
                    varint::read(rest).map_err(|_| Violation::Malformed("object stream"))?;
                Ok(request.map(|(request, length)| (Self::Object { request }, 1 + length)))
            }
            STREAM_HASHES => {
                let request =
                    varint::read(rest).map_err(|_| Violation::Malformed("hashes stream"))?;
                Ok(request.map(|(request, length)| (Self::Hashes { request }, 1 + length)))
            }
            _ => Err(Violation::Malformed("stream type")),
        }
    }
}

/// Cuts a stream of blocks, behind its head, into blocks.
///
/// Holds less than one record besides the last push if it is drained after every push.
#[derive(Debug)]
pub struct Records {
    generation: Generation,
    buffer: BytesMut,
}

impl Records {
    /// A reader of the records of this generation.
    pub fn new(generation: Generation) -> Self {
        Self {
            generation,
            buffer: BytesMut::new(),
        }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next block, or `None` until more is pushed.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator that ends and goes on would surprise"
    )]
    pub fn next(&mut self) -> Result<Option<Block>, Violation> {
        let Some(kind) = Kind::of_record(&self.buffer)? else {
            return Ok(None);
        };
        let head = RECORD_HEAD + kind.vector_len(self.generation.n);
        if self.buffer.len() < head {
            return Ok(None);
        }
        let mut vector_bytes = Bytes::copy_from_slice(&self.buffer[RECORD_HEAD..head]);
        let vector = read_vector(kind, &self.generation, &mut vector_bytes).ok_or(MALFORMED)?;
        let payload = payload_len(&vector, &self.generation).ok_or(MALFORMED)?;
        if self.buffer.len() < head + payload {
            self.buffer.reserve(head + payload - self.buffer.len());
            return Ok(None);
        }
        if is_over_gfq(&vector) && !are_coded_words(&self.buffer[head..head + payload]) {
            return Err(MALFORMED);
        }
        self.buffer.advance(head);
        Ok(Some(Block {
            vector,
            payload: self.buffer.split_to(payload).freeze(),
        }))
    }

    /// Whether the stream may end here: no record is received in part.
    pub fn is_between_records(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// Cuts a stream of blocks, behind its head, into vectors, and drops the payloads: for programs
/// that count blocks and keep none.
#[derive(Debug)]
pub struct Vectors {
    generation: Generation,
    input: Bytes,
    /// The bytes of a record's header so far.
    head: BytesMut,
    /// The block that is passing, and its bytes that are still to come.
    passing: Option<(Vector, usize)>,
}

impl Vectors {
    /// A reader of the records of this generation.
    pub fn new(generation: Generation) -> Self {
        Self {
            generation,
            input: Bytes::new(),
            head: BytesMut::new(),
            passing: None,
        }
    }

    /// Takes the next bytes of the stream, once [`next`](Self::next) has taken all of those before.
    ///
    /// # Panics
    /// If it has not.
    pub fn push(&mut self, bytes: Bytes) {
        assert!(self.input.is_empty(), "what was pushed before is taken");
        self.input = bytes;
    }

    /// The vector of the next block that has come in full, or `None` until more is pushed.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator that ends and goes on would surprise"
    )]
    pub fn next(&mut self) -> Result<Option<Vector>, Violation> {
        let (vector, rest) = match self.passing.take() {
            Some(passing) => passing,
            None => {
                // A byte of the head may have come before the others.
                let begin: Vec<u8> = self
                    .head
                    .iter()
                    .chain(&self.input)
                    .take(2)
                    .copied()
                    .collect();
                let Some(kind) = Kind::of_record(&begin)? else {
                    let all = std::mem::take(&mut self.input);
                    self.head.extend_from_slice(&all);
                    return Ok(None);
                };
                let length = RECORD_HEAD + kind.vector_len(self.generation.n);
                let taken = self
                    .input
                    .split_to(self.input.len().min(length - self.head.len()));
                self.head.extend_from_slice(&taken);
                if self.head.len() < length {
                    return Ok(None);
                }
                let mut bytes = Bytes::copy_from_slice(&self.head[RECORD_HEAD..]);
                self.head.clear();
                let vector = read_vector(kind, &self.generation, &mut bytes).ok_or(MALFORMED)?;
                let payload = payload_len(&vector, &self.generation).ok_or(MALFORMED)?;
                (vector, payload)
            }
        };
        let passed = rest.min(self.input.len());
        self.input.advance(passed);
        if passed < rest {
            self.passing = Some((vector, rest - passed));
            return Ok(None);
        }
        Ok(Some(vector))
    }
}

const MALFORMED: Violation = Violation::Malformed("block record");

fn is_over_gfq(vector: &Vector) -> bool {
    matches!(vector, Vector::Narrow(_) | Vector::Wide(_))
}

fn vector_len(vector: &Vector) -> usize {
    match vector {
        Vector::Source(_) | Vector::Shard(_) => 2,
        Vector::Seed(_) | Vector::Symbol(_) => 4,
        Vector::Explicit(coefficients) | Vector::Unverified(coefficients) => coefficients.len(),
        Vector::Narrow(coefficients) | Vector::Wide(coefficients) => 1 + coefficients.len(),
    }
}

const fn kind_byte(vector: &Vector) -> u8 {
    match vector {
        Vector::Source(_) => SYSTEMATIC,
        Vector::Seed(_) => SEEDED,
        Vector::Explicit(_) => EXPLICIT,
        Vector::Unverified(_) => UNVERIFIED,
        Vector::Shard(_) => SHARD,
        Vector::Symbol(_) => SYMBOL,
        Vector::Narrow(_) | Vector::Wide(_) => PRIME,
    }
}

fn write_vector(out: &mut [u8], vector: &Vector) {
    match vector {
        Vector::Source(index) | Vector::Shard(index) => out.copy_from_slice(&index.to_be_bytes()),
        Vector::Seed(seed) | Vector::Symbol(seed) => out.copy_from_slice(&seed.to_be_bytes()),
        Vector::Explicit(coefficients) | Vector::Unverified(coefficients) => {
            out.copy_from_slice(coefficients)
        }
        Vector::Narrow(coefficients) | Vector::Wide(coefficients) => {
            out[0] = if matches!(vector, Vector::Narrow(_)) {
                PRIME_NARROW
            } else {
                PRIME_WIDE
            };
            out[1..].copy_from_slice(coefficients);
        }
    }
}

fn read_vector(kind: Kind, generation: &Generation, input: &mut Bytes) -> Option<Vector> {
    let length = kind.vector_len(generation.n);
    if input.len() < length {
        return None;
    }
    let bytes = input.split_to(length);
    match kind {
        Kind::Systematic => Some(Vector::Source(u16::from_be_bytes(*bytes.first_chunk()?))),
        Kind::Seeded => Some(Vector::Seed(u32::from_be_bytes(*bytes.first_chunk()?))),
        Kind::Explicit => Some(Vector::Explicit(bytes)),
        Kind::Unverified => Some(Vector::Unverified(bytes)),
        Kind::Shard => Some(Vector::Shard(u16::from_be_bytes(*bytes.first_chunk()?))),
        Kind::Symbol => Some(Vector::Symbol(u32::from_be_bytes(*bytes.first_chunk()?))),
        // The flags have decided this kind. All-zero vectors are rejected.
        Kind::Narrow | Kind::Wide if bytes[1..].iter().all(|byte| *byte == 0) => None,
        Kind::Narrow => Some(Vector::Narrow(bytes.slice(1..))),
        Kind::Wide => Some(Vector::Wide(bytes.slice(1..))).filter(|_| are_elements(&bytes[1..])),
    }
}

#[cfg(test)]
mod tests {
    use ncs_codec::block::Q;
    use proptest::prelude::*;

    use super::*;
    use crate::object::{HashGroup, Shape};

    const RLNC_Q: Codec = Codec::RlncQ {
        group: HashGroup::P1024,
    };

    fn generation(length: u64, block_bytes: u32, n_max: u16) -> Generation {
        Shape::new(length, block_bytes, n_max)
            .unwrap()
            .generation(0)
            .unwrap()
    }

    fn datagram(vector: &Vector, payload: &[u8], alias: u16, seq: u16, last: bool) -> Bytes {
        let mut out = vec![0; datagram_header_len(vector)];
        write_datagram_header(&mut out, vector, alias, seq, last);
        out.extend_from_slice(payload);
        out.into()
    }

    fn record(vector: &Vector, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0; record_header_len(vector)];
        write_record_header(&mut out, vector);
        out.extend_from_slice(payload);
        out
    }

    fn parse(mut bytes: Bytes, generation: &Generation) -> Option<(DatagramHead, Block)> {
        let head = parse_datagram(&mut bytes)?;
        Some((head, parse_block(head.kind, generation, bytes)?))
    }

    fn any_generation() -> impl Strategy<Value = Generation> {
        let codec = prop_oneof![
            Just(Codec::Rlnc),
            (1u16..=192).prop_map(|parity| Codec::ReedSolomon { parity }),
            Just(Codec::RaptorQ),
            Just(RLNC_Q)
        ];
        let shape = (
            1u64..20_000,
            (4u32..70).prop_map(|step| step * 16),
            1u16..=64,
            codec,
        );
        shape.prop_map(|(length, block_bytes, n_max, codec)| {
            let block_bytes = if codec == RLNC_Q {
                block_bytes.next_multiple_of(32)
            } else {
                block_bytes
            };
            let shape = Shape::new(length, block_bytes, n_max)
                .unwrap()
                .coded_with(codec)
                .unwrap();
            shape.generation(0).unwrap()
        })
    }

    /// Coefficients of either length, each below q: those that begin with 1 have their own bytes or
    /// zeros from there on.
    fn over_gfq(n: u16) -> impl Strategy<Value = Vector> {
        let narrow = prop::collection::vec(any::<[u8; 4]>(), usize::from(n));
        let wide = prop::collection::vec((any::<[u8; 32]>(), 0u8..3), usize::from(n));
        let element = |(low, kind): ([u8; 32], u8)| match kind {
            0 => [&[0][..], &low].concat(),
            1 => [&[1][..], &[0; 32]].concat(),
            _ => [&Q[..32], &[Q[32] - 1]].concat(),
        };
        prop_oneof![
            narrow.prop_map(|row| Vector::Narrow(row.concat().into())),
            wide.prop_map(move |row| Vector::Wide(row.into_iter().flat_map(element).collect())),
        ]
    }

    fn any_case() -> impl Strategy<Value = (Generation, Vector)> {
        any_generation().prop_flat_map(|generation| {
            let n = generation.n;
            let source = (0..n).prop_map(Vector::Source);
            let vector = match generation.codec {
                Codec::Rlnc => prop_oneof![
                    source,
                    any::<u32>().prop_map(Vector::Seed),
                    prop::collection::vec(any::<u8>(), usize::from(n))
                        .prop_map(|row| Vector::Explicit(row.into())),
                    prop::collection::vec(any::<u8>(), usize::from(n))
                        .prop_map(|row| Vector::Unverified(row.into())),
                ]
                .boxed(),
                Codec::ReedSolomon { .. } => {
                    prop_oneof![source, (n..generation.numbered()).prop_map(Vector::Shard)].boxed()
                }
                Codec::RaptorQ => {
                    prop_oneof![source, (u32::from(n)..ESI_END).prop_map(Vector::Symbol)].boxed()
                }
                Codec::RlncQ { .. } => prop_oneof![source, over_gfq(n)].boxed(),
            };
            (Just(generation), vector)
        })
    }

    proptest! {
        #[test]
        fn datagrams_round_trip_and_no_cut_one_is_taken(
            (generation, vector) in any_case(), alias: u16, seq: u16, last: bool, fill: u8,
        ) {
            prop_assume!(!is_over_gfq(&vector));
            let payload = vec![fill; payload_len(&vector, &generation).unwrap()];
            let bytes = datagram(&vector, &payload, alias, seq, last);
            let (head, block) = parse(bytes.clone(), &generation).unwrap();
            prop_assert_eq!((head.alias, head.seq, head.last), (alias, seq, last));
            prop_assert_eq!(&block, &Block { vector, payload: payload.into() });
            for cut in 0..bytes.len() {
                prop_assert_eq!(parse(bytes.slice(..cut), &generation), None);
            }
            let longer = [&bytes[..], &[0]].concat();
            prop_assert_eq!(parse(longer.into(), &generation), None);
        }

        #[test]
        fn records_round_trip_however_they_are_cut(
            (generation, vector) in any_case(),
            step in 1usize..40,
        ) {
            let payload = match is_over_gfq(&vector) {
                // Its last byte has bits that belong to no word.
                true => vec![0; payload_len(&vector, &generation).unwrap()],
                false => vec![7; payload_len(&vector, &generation).unwrap()],
            };
            let bytes = [record(&vector, &payload), record(&vector, &payload)].concat();
            let mut records = Records::new(generation);
            let mut blocks = Vec::new();
            for piece in bytes.chunks(step) {
                records.push(piece);
                while let Some(block) = records.next().unwrap() {
                    blocks.push(block);
                }
            }
            let mut passing = Vectors::new(generation);
            let mut vectors = Vec::new();
            for piece in bytes.chunks(step) {
                passing.push(Bytes::copy_from_slice(piece));
                while let Some(vector) = passing.next().unwrap() {
                    vectors.push(vector);
                }
            }
            prop_assert_eq!(vectors, [vector.clone(), vector.clone()]);
            let block = Block { vector, payload: payload.into() };
            prop_assert_eq!(blocks, [block.clone(), block]);
            prop_assert!(records.is_between_records());
        }
    }

    #[test]
    fn header_sizes_are_those_of_the_packet_budget() {
        assert_eq!(datagram_header_len(&Vector::Source(0)), 8);
        assert_eq!(datagram_header_len(&Vector::Seed(0)), 10);
        assert_eq!(
            datagram_header_len(&Vector::Explicit(vec![0; 64].into())),
            70
        );
        assert_eq!(
            [Kind::Systematic, Kind::Seeded, Kind::Explicit]
                .map(|kind| kind.datagram_header_len(64)),
            [8, 10, 70]
        );
        assert_eq!(
            [Kind::Shard, Kind::Symbol].map(|kind| kind.datagram_header_len(64)),
            [8, 10]
        );
        assert_eq!(record_header_len(&Vector::Source(0)), 3);
        assert_eq!(record_header_len(&Vector::Seed(0)), 5);
        assert_eq!(record_header_len(&Vector::Explicit(vec![0; 64].into())), 65);
    }

    #[test]
    fn a_source_block_outside_the_generation_is_no_block() {
        let generation = generation(100, 64, 4);
        assert_eq!(
            parse(
                datagram(&Vector::Source(2), &[0; 64], 1, 1, false),
                &generation
            ),
            None
        );
        let mut records = Records::new(generation);
        records.push(&record(&Vector::Source(2), &[0; 64]));
        assert_eq!(records.next(), Err(Violation::Malformed("block record")));
        let mut vectors = Vectors::new(generation);
        vectors.push(record(&Vector::Source(2), &[0; 64]).into());
        assert_eq!(vectors.next(), Err(Violation::Malformed("block record")));
    }

    #[test]
    fn a_code_has_its_own_blocks_and_no_others() {
        let shape = Shape::new(100, 64, 4).unwrap();
        let of = |codec| shape.coded_with(codec).unwrap().generation(0).unwrap();
        let row = || Bytes::from_static(&[1, 2]);
        let vectors = [
            (Vector::Seed(1), [true, false, false]),
            (Vector::Explicit(row()), [true, false, false]),
            (Vector::Unverified(row()), [true, false, false]),
            // Numbers begin behind those of the source blocks, and end with the last parity block
            // or the largest id.
            (Vector::Shard(1), [false; 3]),
            (Vector::Shard(2), [false, true, false]),
            (Vector::Shard(4), [false, true, false]),
            (Vector::Shard(5), [false; 3]),
            (Vector::Symbol(1), [false; 3]),
            (Vector::Symbol(2), [false, false, true]),
            (Vector::Symbol(ESI_END - 1), [false, false, true]),
            (Vector::Symbol(ESI_END), [false; 3]),
            (Vector::Symbol(u32::MAX), [false; 3]),
        ];
        let codecs = [
            Codec::Rlnc,
            Codec::ReedSolomon { parity: 3 },
            Codec::RaptorQ,
        ];
        for (vector, expected) in vectors {
            for (codec, expected) in codecs.into_iter().zip(expected) {
                let generation = of(codec);
                let found = parse(datagram(&vector, &[0; 64], 1, 1, false), &generation);
                assert_eq!(found.is_some(), expected, "{vector:?} with {codec:?}");
                let mut records = Records::new(generation);
                records.push(&record(&vector, &[0; 64]));
                assert_eq!(
                    records.next().is_ok(),
                    expected,
                    "{vector:?} with {codec:?}"
                );
                let mut passing = Vectors::new(generation);
                passing.push(record(&vector, &[0; 64]).into());
                assert_eq!(
                    passing.next().is_ok(),
                    expected,
                    "{vector:?} with {codec:?}"
                );
                // Of another length, none is accepted.
                assert_eq!(
                    parse(datagram(&vector, &[0; 63], 1, 1, false), &generation),
                    None
                );
            }
        }
    }

    #[test]
    fn over_the_prime_field_every_block_is_written_in_one_way() {
        let shape = Shape::new(160, 96, 4).unwrap().coded_with(RLNC_Q).unwrap();
        let generation = shape.generation(0).unwrap();
        let next = |bytes: &[u8]| {
            let mut records = Records::new(generation);
            records.push(bytes);
            records.next()
        };
        // Two coefficients; three words and their bits.
        let narrow = record(&Vector::Narrow(vec![0xff; 8].into()), &[0; 97]);
        let largest = [&Q[..32], &[Q[32] - 1]].concat();
        let wide = record(
            &Vector::Wide([&largest[..], &largest].concat().into()),
            &[0; 97],
        );
        assert_eq!(
            [&narrow, &wide].map(|record| record[..2].to_vec()),
            [[0x46, 1], [0x46, 0]]
        );
        for right in [&narrow, &wide] {
            assert!(next(right).unwrap().is_some());
        }
        // Unknown flags; a coefficient that is q; a word that is q; a bit of a fourth word.
        let (mut flags, mut coefficient) = (narrow.clone(), wide.clone());
        flags[1] = 2;
        assert_eq!(next(&flags), Err(MALFORMED));
        for coefficients in [2, 35] {
            coefficient[coefficients + 32] += 1;
            assert_eq!(next(&coefficient), Err(MALFORMED));
            coefficient[coefficients + 32] -= 1;
        }
        // No block combines nothing.
        for vector in [
            Vector::Narrow(vec![0; 8].into()),
            Vector::Wide(vec![0; 66].into()),
        ] {
            assert_eq!(next(&record(&vector, &[0; 97])), Err(MALFORMED));
        }
        for mut record in [narrow, wide] {
            let payload = record.len() - 97;
            record[payload + 32..payload + 64].copy_from_slice(&Q[1..]);
            assert!(next(&record).unwrap().is_some(), "below 2^256 it is no q");
            record[payload + 96] = 0b010;
            assert_eq!(next(&record), Err(MALFORMED));
            record[payload + 63] -= 1;
            assert!(next(&record).unwrap().is_some());
            for bit in 3..8 {
                record[payload + 96] = 1 << bit;
                assert_eq!(next(&record), Err(MALFORMED), "bit {bit}");
            }
        }
        // No block has coefficients of another kind.
        let mut smallest = vec![0x46, 0];
        smallest.resize(2 + 66 + 97, 0);
        smallest[2 + 65] = 1;
        assert!(next(&smallest).unwrap().is_some());
        let explicit = Vector::Explicit(vec![1; 2].into());
        assert_eq!(next(&record(&explicit, &[0; 96])), Err(MALFORMED));
        assert_eq!(next(&record(&Vector::Seed(1), &[0; 96])), Err(MALFORMED));
    }

    #[test]
    fn blocks_over_the_prime_field_are_in_no_datagram() {
        let datagram = [PRIME, 0, 0, 1, 0, 1];
        assert_eq!(
            parse_datagram(&mut Bytes::copy_from_slice(
                &[&datagram[..], &[0; 200]].concat()
            )),
            None
        );
    }

    #[test]
    fn the_last_source_block_comes_without_padding() {
        let generation = generation(100, 64, 4);
        assert!(
            parse(
                datagram(&Vector::Source(1), &[0; 36], 1, 1, false),
                &generation
            )
            .is_some()
        );
        assert!(
            parse(
                datagram(&Vector::Source(1), &[0; 64], 1, 1, false),
                &generation
            )
            .is_none()
        );
    }

    #[test]
    fn unknown_kinds_are_no_blocks() {
        for kind in (0..=u8::MAX).filter(|kind| !(SYSTEMATIC..=SYMBOL).contains(kind)) {
            assert_eq!(
                parse_datagram(&mut Bytes::copy_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0])),
                None
            );
        }
    }

    #[test]
    fn stream_heads_round_trip_from_every_cut() {
        for head in [
            StreamHead::Blocks { alias: 0xbeef },
            StreamHead::Object { request: 70_000 },
            StreamHead::Hashes { request: 70_000 },
        ] {
            let mut bytes = Vec::new();
            head.encode(&mut bytes);
            assert_eq!(StreamHead::parse(&bytes), Ok(Some((head, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(StreamHead::parse(&bytes[..cut]), Ok(None));
            }
        }
        assert!(StreamHead::parse(&[0x40]).is_err());
    }
}
