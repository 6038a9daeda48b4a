//! Blocks from one end to the other, and the traps of homomorphic hashing, each by its name.

use std::sync::Arc;

use num_bigint::BigUint;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::block::pack;
use super::hash::{Batch, Finding, Group, Hashes, WEIGHT_BITS, shake_256, sort_out};
use super::*;
use crate::Outcome;
use ncs_gf::gfq::{self, Element, WORD_BYTES};

fn shape(n: u16, words: u16) -> Shape {
    Shape::new(n, words).expect("a shape")
}

fn source(shape: Shape, rng: &mut impl Rng) -> Vec<u8> {
    let mut source = vec![0; shape.source_bytes()];
    rng.fill_bytes(&mut source);
    source
}

fn encode(
    arithmetic: &dyn Arithmetic,
    shape: Shape,
    source: &[u8],
    count: usize,
    rng: &mut impl Rng,
) -> Vec<Coded> {
    let rows = draw_rows(shape, count, rng);
    let mut out = vec![0xee; count * shape.payload_bytes()];
    arithmetic
        .encode(shape, &mut [Encode::new(shape, source, &rows, &mut out)])
        .expect("done");
    let payloads = out.chunks_exact(shape.payload_bytes());
    let block = |(row, payload): (&[u32], &[u8])| Coded {
        vector: Vector::Source(row.into()),
        payload: parse(shape, payload),
    };
    rows.chunks_exact(shape.n())
        .zip(payloads)
        .map(block)
        .collect()
}

fn recode(
    arithmetic: &dyn Arithmetic,
    shape: Shape,
    held: &[Coded],
    count: usize,
    rng: &mut impl Rng,
) -> Vec<Coded> {
    let held: Vec<&Coded> = held.iter().collect();
    let rows = draw_factors(held.len(), count, rng);
    let (mut vectors, mut payloads) = (
        vec![0; count * shape.recoded_vector_bytes()],
        vec![0; count * shape.payload_bytes()],
    );
    let task = Recode {
        held: &held,
        rows: &rows,
        vectors: &mut vectors,
        payloads: &mut payloads,
    };
    arithmetic.recode(shape, &mut [task]).expect("done");
    let block = |(vector, payload): (&[u8], &[u8])| Coded {
        vector: Vector::parse_recoded(shape, vector).expect("coefficients below q"),
        payload: parse(shape, payload),
    };
    vectors
        .chunks_exact(shape.recoded_vector_bytes())
        .zip(payloads.chunks_exact(shape.payload_bytes()))
        .map(block)
        .collect()
}

fn parse(shape: Shape, payload: &[u8]) -> Payload {
    Payload::parse(shape, payload.to_vec().into()).expect("words below q")
}

fn hashes(group: Group, shape: Shape, source: &[u8]) -> Hashes {
    let blocks: Vec<&[u8]> = source.chunks(shape.block_bytes()).collect();
    Hashes::signed(
        group,
        shape,
        &Cores::all()
            .hash(group, shape.words(), &blocks)
            .expect("done"),
    )
    .expect("hashes")
}

/// Which of these are found to be wrong, each by a sender of its own.
fn bad_of(hashes: &Hashes, blocks: &[Coded], rng: &mut impl Rng) -> Vec<usize> {
    let findings = sort_out(
        &Cores::all(),
        hashes,
        &blocks.iter().enumerate().collect::<Vec<_>>(),
        rng,
    )
    .expect("done")
    .findings;
    findings
        .into_iter()
        .enumerate()
        .filter_map(|(place, finding)| (finding == Finding::Wrong).then_some(place))
        .collect()
}

fn decode(arithmetic: &dyn Arithmetic, shape: Shape, blocks: Vec<Coded>) -> Result<Vec<u8>, Error> {
    let mut decoder = Decoder::new(shape);
    for block in blocks {
        decoder.absorb(block)?;
    }
    decoder.into_bytes(arithmetic)
}

#[test]
fn whatever_is_coded_and_recoded_is_rebuilt_and_proves_itself() {
    let mut rng = SmallRng::seed_from_u64(1);
    for (n, words) in [(1, 1), (3, 9), (16, 40), (40, 8)] {
        let shape = shape(n, words);
        let source = source(shape, &mut rng);
        for cores in Cores::available().into_iter().chain([Cores::all()]) {
            let coded = encode(&cores, shape, &source, shape.n(), &mut rng);
            let recoded = recode(&cores, shape, &coded, shape.n(), &mut rng);
            for group in Group::ALL {
                let all = [&coded[..], &recoded].concat();
                assert!(
                    bad_of(&hashes(group, shape, &source), &all, &mut rng).is_empty(),
                    "{shape:?} {cores:?}"
                );
            }
            assert_eq!(
                decode(&cores, shape, coded).as_ref(),
                Ok(&source),
                "{shape:?} {cores:?}"
            );
            assert_eq!(
                decode(&cores, shape, recoded).as_ref(),
                Ok(&source),
                "{shape:?} {cores:?}"
            );
        }
    }
}

#[test]
fn many_tasks_at_a_time_are_the_same_as_one_by_one() {
    let (shape, mut rng) = (shape(9, 11), SmallRng::seed_from_u64(2));
    let cores = Cores::new(std::num::NonZeroUsize::new(3).expect("three"));
    let sources: Vec<Vec<u8>> = (0..5).map(|_| source(shape, &mut rng)).collect();
    let rows: Vec<Vec<u32>> = (0..5)
        .map(|task| draw_rows(shape, 3 + 20 * task, &mut rng))
        .collect();
    let mut outs: Vec<Vec<u8>> = rows
        .iter()
        .map(|rows| vec![0; rows.len() / shape.n() * shape.payload_bytes()])
        .collect();
    let tasks = sources.iter().zip(&rows).zip(&mut outs);
    let mut tasks: Vec<Encode<'_>> = tasks
        .map(|((source, rows), out)| Encode::new(shape, source, rows, out))
        .collect();
    cores.encode(shape, &mut tasks).expect("done");
    for ((source, rows), out) in sources.iter().zip(&rows).zip(&outs) {
        let mut alone = vec![0; out.len()];
        Cores::available()[0]
            .encode(shape, &mut [Encode::new(shape, source, rows, &mut alone)])
            .expect("done");
        assert!(alone == *out);
    }
    let coded: Vec<Vec<Coded>> = sources
        .iter()
        .map(|source| encode(&cores, shape, source, shape.n(), &mut rng))
        .collect();
    let mut blocks: Vec<Vec<&Coded>> = coded.iter().map(|coded| coded.iter().collect()).collect();
    blocks[2][4] = blocks[2][3];
    let mut outs = vec![vec![0; shape.source_bytes()]; 5];
    let mut tasks: Vec<Decode<'_>> = blocks
        .iter()
        .zip(&mut outs)
        .map(|(blocks, out)| Decode { blocks, out })
        .collect();
    use Rebuilt::{Singular, Whole};
    assert_eq!(
        cores.decode(shape, &mut tasks),
        Ok(vec![Whole, Whole, Singular, Whole, Whole])
    );
    [0, 1, 3, 4]
        .into_iter()
        .for_each(|task| assert!(outs[task] == sources[task]));
}

#[test]
fn a_block_that_others_explain_is_redundant() {
    let (shape, mut rng) = (shape(6, 2), SmallRng::seed_from_u64(3));
    let (cores, source) = (Cores::all(), source(shape, &mut rng));
    let coded = encode(&cores, shape, &source, 4, &mut rng);
    let mut decoder = Decoder::new(shape);
    use crate::Outcome::{Complete, Innovative, Redundant};
    coded
        .iter()
        .for_each(|block| assert_eq!(decoder.absorb(block.clone()), Ok(Innovative)));
    let recoded = recode(&cores, shape, &coded, 3, &mut rng);
    recoded
        .into_iter()
        .for_each(|block| assert_eq!(decoder.absorb(block), Ok(Redundant)));
    let zero = Coded {
        vector: Vector::Source([0; 6].into()),
        payload: Payload::of_source(shape, &[]).expect("a block"),
    };
    assert_eq!(decoder.absorb(zero), Ok(Redundant));
    assert_eq!((decoder.rank(), decoder.missing()), (4, 2));
    let block = |index: usize| {
        Coded::source(
            shape,
            index,
            &source[index * shape.block_bytes()..][..shape.block_bytes()],
        )
        .expect("a source block")
    };
    assert_eq!(decoder.absorb(block(5)), Ok(Innovative));
    assert_eq!(decoder.absorb(block(5)), Ok(Redundant));
    assert_eq!(decoder.absorb(block(0)), Ok(Complete));
    assert_eq!(decoder.absorb(block(1)), Ok(Redundant));
    assert_eq!(decoder.into_bytes(&cores), Ok(source));
    assert_eq!(
        Decoder::new(shape).into_bytes(&cores),
        Err(Error::Incomplete(6))
    );
    let other = Coded::source(Shape::new(6, 3).expect("a shape"), 0, &[]).expect("a block");
    assert!(Decoder::new(shape).absorb(other).is_err());
}

/// What two implementations in other languages give for the same data: 20 of 512 words are 2^256 or
/// more.
#[test]
fn coded_words_of_more_than_256_bits_are_kept_whole() {
    let (shape, mut rng) = (shape(8, 512), SmallRng::seed_from_u64(4));
    let block = |index: u32| {
        shake_256(
            &[b"ncserverd HHF test data|", &index.to_be_bytes()[..]].concat(),
            16_384,
        )
    };
    let source: Vec<u8> = (0..8).flat_map(block).collect();
    let rows: Vec<u32> = shake_256(b"ncserverd HHF test coefficients", 32)
        .as_chunks()
        .0
        .iter()
        .map(|bytes| u32::from_be_bytes(*bytes))
        .collect();
    let mut out = vec![0; shape.payload_bytes()];
    for cores in Cores::available() {
        cores
            .encode(shape, &mut [Encode::new(shape, &source, &rows, &mut out)])
            .expect("done");
        let (_, bits) = out.split_at(shape.block_bytes());
        assert_eq!(bits.iter().map(|byte| byte.count_ones()).sum::<u32>(), 20);
        assert_eq!(
            sha256(&out),
            "5fb81834700d8b8b248df660bcdc14d8be100802f957089c66329dec1853c3a3",
            "{cores:?}"
        );
    }
    for (group, first, second) in [
        (
            Group::P1024,
            "80007e0dcb18fdfb1d1abd7fd930fcfc",
            "712ecf254b1bf6393f1c60f57abc9dde",
        ),
        (
            Group::P2048,
            "1caca6dc4cf80f7719d0fc233a213972",
            "1fbf5c846c1f3e0659cb8e92e78cfb71",
        ),
    ] {
        let blocks: Vec<&[u8]> = source.chunks(shape.block_bytes()).collect();
        let bytes = Cores::all().hash(group, 512, &blocks).expect("done");
        let start = |index: usize| hex(&bytes[index * group.hash_bytes()..][..16]);
        assert_eq!((start(0).as_str(), start(1).as_str()), (first, second));

        // The trap: the block proves itself, and without its top bits it does not.
        let hashes = Hashes::signed(group, shape, &bytes).expect("hashes");
        let whole = Coded {
            vector: Vector::Source(rows.clone().into()),
            payload: parse(shape, &out),
        };
        let cut = [&out[..shape.block_bytes()], &[0; 64]].concat();
        let cut = Coded {
            vector: whole.vector.clone(),
            payload: parse(shape, &cut),
        };
        assert_eq!(bad_of(&hashes, &[whole, cut], &mut rng), [1]);
    }
}

/// SHA-256, by what the product has of it.
fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn decoded_words_of_more_than_256_bits_are_an_error() {
    let (shape, mut rng) = (shape(3, 5), SmallRng::seed_from_u64(5));
    // Words that no source has, in blocks that are right otherwise.
    let mut wide = vec![0; shape.payload_bytes()];
    wide[shape.block_bytes()] = 1 << 4;
    let block = |index: usize| Coded {
        vector: Vector::unit(shape, index).expect("a block"),
        payload: parse(shape, &wide),
    };
    for cores in Cores::available() {
        let blocks = recode(&cores, shape, &[block(0), block(1), block(2)], 3, &mut rng);
        assert_eq!(
            decode(&cores, shape, blocks),
            Err(Error::Overflow),
            "{cores:?}"
        );
    }
}

/// Traps 3 and 8: a number and the number plus q are the same exponent, and not modulo p or p - 1.
#[test]
fn coefficients_and_words_count_modulo_q() {
    let (shape, mut rng) = (shape(4, 3), SmallRng::seed_from_u64(6));
    let q = BigUint::from_bytes_be(&gfq::Q_BYTES);
    let source = source(shape, &mut rng);
    let held = encode(&Cores::all(), shape, &source, 4, &mut rng);
    for hop in recode(&Cores::all(), shape, &held, 6, &mut rng) {
        // What the definition says, in numbers without bounds, reduced at the end alone.
        let word = |block: usize, word: usize| {
            BigUint::from_bytes_be(
                &source[block * shape.block_bytes() + word * WORD_BYTES..][..WORD_BYTES],
            )
        };
        for (index, element) in hop.payload.elements().enumerate() {
            let sum: BigUint = hop
                .vector
                .elements()
                .enumerate()
                .map(|(at, c)| BigUint::from_bytes_be(&c.to_bytes()) * word(at, index))
                .sum();
            assert_eq!(BigUint::from_bytes_be(&element.to_bytes()), sum % &q);
        }
    }
}

#[test]
fn coefficients_do_not_grow_from_hop_to_hop() {
    let (shape, mut rng) = (shape(5, 2), SmallRng::seed_from_u64(7));
    let source = source(shape, &mut rng);
    let hashes = hashes(Group::P1024, shape, &source);
    for cores in Cores::available() {
        let mut held = encode(&cores, shape, &source, 5, &mut rng);
        for _ in 0..40 {
            // Each vector that is parsed is below q, and of one length.
            held = recode(&cores, shape, &held, 5, &mut rng);
            held.iter().for_each(|block| {
                assert_eq!(block.vector.to_bytes().len(), shape.recoded_vector_bytes())
            });
        }
        assert!(bad_of(&hashes, &held, &mut rng).is_empty());
        assert_eq!(decode(&cores, shape, held).as_ref(), Ok(&source));
    }
}

#[test]
fn a_block_has_one_form_alone() {
    let shape = shape(3, 9);
    let q = gfq::Q_BYTES;
    let mut vector = vec![0; shape.recoded_vector_bytes()];
    vector[gfq::BYTES..2 * gfq::BYTES].copy_from_slice(&q);
    assert_eq!(
        Vector::parse_recoded(shape, &vector),
        Err(Error::Coefficient(1))
    );
    vector[2 * gfq::BYTES - 1] -= 1;
    assert!(Vector::parse_recoded(shape, &vector).is_ok_and(|parsed| parsed.to_bytes() == vector));
    assert!(Vector::parse_recoded(shape, &vector[1..]).is_err());
    assert!(Vector::parse_source(shape, &[0; 13]).is_err());
    assert!(Vector::parse_source(shape, &[7; 12]).is_ok_and(|parsed| parsed.to_bytes() == [7; 12]));

    let parse =
        |bytes: &[u8]| Payload::parse(shape, bytes.to_vec().into()).map(|payload| payload.words());
    let mut payload = vec![0; shape.payload_bytes()];
    payload[8 * WORD_BYTES..9 * WORD_BYTES].copy_from_slice(&q[1..]);
    assert_eq!(parse(&payload), Ok(9));
    // The last word's bit is the first of the second byte.
    payload[9 * WORD_BYTES + 1] = 1;
    assert_eq!(parse(&payload), Err(Error::Word(8)));
    payload[9 * WORD_BYTES - 1] -= 1;
    assert_eq!(parse(&payload), Ok(9));
    for bit in 1..8 {
        payload[9 * WORD_BYTES + 1] = 1 << bit;
        assert_eq!(parse(&payload), Err(Error::UnusedBits));
    }
    assert!(parse(&payload[1..]).is_err());
    assert!(Payload::of_source(shape, &[0; 9 * WORD_BYTES + 1]).is_err());
    assert_eq!(Vector::unit(shape, 3), Err(Error::Index { index: 3, n: 3 }));
    for (n, words) in [(0, 1), (1, 0), (1025, 1), (1, 2049)] {
        assert_eq!(Shape::new(n, words), None);
    }
}

/// Trap 7: words are big-endian and in order; what a last block lacks is zeros; and a length that
/// differs makes another hash or none.
#[test]
fn words_have_one_order_and_what_is_missing_is_zeros() {
    let (cores, group) = (Cores::all(), Group::P1024);
    let generators = group.generators(2);
    let number = |limbs: &[u64]| {
        BigUint::from_slice(
            &limbs
                .iter()
                .flat_map(|&limb| halves(limb))
                .collect::<Vec<_>>(),
        )
    };
    let p = number(group.modulus());
    // 3 · 2^8 in the first word, 2^248 in the second.
    let mut block = [0; 64];
    (block[30], block[32]) = (3, 1);
    let expected = number(&generators[0]).modpow(&768_u32.into(), &p)
        * number(&generators[1]).modpow(&(BigUint::from(1_u8) << 248_usize), &p)
        % &p;
    let hash = |words: usize, block: &[u8]| cores.hash(group, words, &[block]).expect("done");
    assert_eq!(BigUint::from_bytes_be(&hash(2, &block)), expected);
    assert_eq!(hash(2, &block[..33]), hash(2, &block));
    assert_ne!(hash(2, &block[..32]), hash(2, &block));
    assert_eq!(hash(1, &block[..31]), hash(2, &block[..31]));
    let mut turned = block;
    turned.reverse();
    assert_ne!(hash(2, &turned), hash(2, &block));
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are meant")]
fn halves(limb: u64) -> [u32; 2] {
    [limb as u32, (limb >> 32) as u32]
}

/// A source of bits that begins with zeros.
struct Reluctant(u32);

impl rand::TryRng for Reluctant {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        self.0 += 1;
        Ok(self.0.saturating_sub(7))
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        unreachable!("coefficients are drawn in words of 32 bits")
    }

    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Self::Error> {
        unreachable!("coefficients are drawn in words of 32 bits")
    }
}

#[test]
fn no_row_is_all_zeros() {
    assert_eq!(draw_rows(shape(1, 1), 2, &mut Reluctant(6)), [2, 1]);
    assert_eq!(
        draw_rows(shape(3, 1), 2, &mut Reluctant(0)),
        [0, 1, 2, 3, 4, 5]
    );
}

/// A card that rebuilds nothing, and says so by this.
#[derive(Debug)]
struct Mistaken(Rebuilt);

impl Arithmetic for Mistaken {
    fn keep(&self, _: &[u8], _: usize) -> Result<Option<Arc<dyn Kept>>, NotKept> {
        Ok(None)
    }

    fn encode(&self, _: Shape, _: &mut [Encode<'_>]) -> Result<(), Failed> {
        unreachable!("it decodes")
    }

    fn recode(&self, _: Shape, _: &mut [Recode<'_>]) -> Result<(), Failed> {
        unreachable!("it decodes")
    }

    fn decode(&self, _: Shape, tasks: &mut [Decode<'_>]) -> Result<Vec<Rebuilt>, Failed> {
        tasks.iter_mut().for_each(|task| task.out.fill(0xee));
        Ok(vec![self.0; tasks.len()])
    }

    fn hash(&self, _: Group, _: usize, _: &[&[u8]]) -> Result<Vec<u8>, Failed> {
        unreachable!("it decodes")
    }

    fn holds(&self, _: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
        unreachable!("it decodes")
    }
}

#[test]
fn what_a_card_cannot_rebuild_the_cores_try() {
    let (shape, mut rng) = (shape(4, 3), SmallRng::seed_from_u64(14));
    let source = source(shape, &mut rng);
    let coded = encode(&Cores::all(), shape, &source, 4, &mut rng);
    for wrong in [Rebuilt::Singular, Rebuilt::Overflow] {
        assert_eq!(
            decode(&Mistaken(wrong), shape, coded.clone()).as_ref(),
            Ok(&source),
            "{wrong:?}"
        );
    }
}

#[test]
fn a_decoder_forgets_what_came_last() {
    let (shape, mut rng) = (shape(6, 2), SmallRng::seed_from_u64(13));
    let source = source(shape, &mut rng);
    let coded = encode(&Cores::all(), shape, &source, 6, &mut rng);
    let units = (0..6)
        .map(|index| Coded::source(shape, index, &source[64 * index..][..64]).expect("a block"));
    let mut decoder = Decoder::new(shape);
    coded[..2]
        .iter()
        .for_each(|block| assert_eq!(decoder.absorb(block.clone()), Ok(Outcome::Innovative)));
    for block in units {
        assert!(decoder.is_redundant(&coded[1].vector) && !decoder.is_redundant(&coded[2].vector));
        decoder.absorb(block).expect("of this shape");
        decoder.absorb(coded[3].clone()).expect("of this shape");
        assert!(decoder.rank() > 2 && decoder.is_redundant(&coded[3].vector));
        decoder.truncate(2);
        assert_eq!(decoder.blocks(), &coded[..2]);
    }
    decoder.truncate(5);
    for block in &coded[2..] {
        assert_ne!(decoder.absorb(block.clone()), Ok(Outcome::Redundant));
    }
    assert!(decoder.is_redundant(&Vector::unit(shape, 0).expect("a vector")));
    assert_eq!(decoder.into_bytes(&Cores::all()).as_ref(), Ok(&source));
}

/// A source of bits that gives the same words again.
struct Known(u64);

impl rand::TryRng for Known {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        unreachable!("weights are drawn in words of 64 bits")
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(self.0)
    }

    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Self::Error> {
        unreachable!("weights are drawn in words of 64 bits")
    }
}

/// Trap 9: who knows the weights makes wrong blocks that pass.
#[test]
fn wrong_blocks_cancel_where_weights_are_known_and_not_where_they_are_fresh() {
    let (shape, mut rng) = (shape(4, 6), SmallRng::seed_from_u64(8));
    let source = source(shape, &mut rng);
    let hashes = hashes(Group::P1024, shape, &source);
    let mut blocks = recode(
        &Cores::all(),
        shape,
        &encode(&Cores::all(), shape, &source, 4, &mut rng),
        2,
        &mut rng,
    );
    // One more in the one, one less in the other.
    for (block, change) in blocks.iter_mut().zip([Element::ONE, Element::ONE.neg()]) {
        let words: Vec<Element> = block
            .payload
            .elements()
            .enumerate()
            .map(|(at, word)| if at == 3 { word.add(&change) } else { word })
            .collect();
        let mut bytes = vec![0; shape.payload_bytes()];
        pack(words, &mut bytes);
        block.payload = parse(shape, &bytes);
    }
    let both: Vec<&Coded> = blocks.iter().collect();
    for cores in Cores::available() {
        let known = Batch::new(&hashes, both.clone(), &mut Known(0x1234_5678_9abc_def1));
        assert_eq!(known.weights()[0], known.weights()[1]);
        assert_eq!(cores.holds(&[known]), Ok(vec![true]));
        assert_eq!(
            cores.holds(&[Batch::new(&hashes, both.clone(), &mut rng)]),
            Ok(vec![false])
        );
    }
    assert_eq!(bad_of(&hashes, &blocks, &mut rng), [0, 1]);
    let weights = Batch::new(&hashes, vec![both[0]; 1000], &mut rng)
        .weights()
        .to_vec();
    assert!(
        weights
            .iter()
            .all(|&weight| weight > 0 && weight >> WEIGHT_BITS == 0)
    );
    assert!(
        weights
            .iter()
            .filter(|&weight| weight >> (WEIGHT_BITS - 1) == 1)
            .count()
            > 400
    );
}

/// Trap 10: a hash outside of the group of order q, here times -1, passes whenever its exponent is
/// even. Only what is signed may be used.
#[test]
fn hashes_from_outside_of_the_group_may_cancel() {
    let (shape, mut rng) = (shape(2, 2), SmallRng::seed_from_u64(9));
    let (group, source) = (Group::P1024, source(shape, &mut rng));
    let blocks: Vec<&[u8]> = source.chunks(shape.block_bytes()).collect();
    let mut bytes = Cores::all().hash(group, 2, &blocks).expect("done");
    let p: Vec<u8> = group
        .modulus()
        .iter()
        .rev()
        .flat_map(|limb| limb.to_be_bytes())
        .collect();
    let other = (BigUint::from_bytes_be(&p) - BigUint::from_bytes_be(&bytes[..128])).to_bytes_be();
    bytes[..128].fill(0);
    bytes[128 - other.len()..128].copy_from_slice(&other);
    let forged = Hashes::signed(group, shape, &bytes).expect("numbers");
    // Its coefficient is one, so that the exponent of the hash is the weight.
    let first = Coded::source(shape, 0, blocks[0]).expect("a block");
    let holds = |rng: &mut SmallRng| {
        Cores::all()
            .holds(&[Batch::new(&forged, vec![&first], rng)])
            .expect("done")[0]
    };
    let passes = (0..40).filter(|_| holds(&mut rng)).count();
    assert!(
        (1..40).contains(&passes),
        "half of the weights are even: {passes}"
    );
}

/// Changes one bit of a block, or of the hashes; nothing if what comes of it is refused where it is
/// parsed.
fn changed(shape: Shape, block: &Coded, at: usize) -> Option<Coded> {
    let (mut vector, mut payload) = (block.vector.to_bytes(), block.payload.as_bytes().to_vec());
    let bits = 8 * vector.len();
    match at.checked_sub(bits) {
        None => vector[at / 8] ^= 1 << (at % 8),
        Some(at) => payload[at / 8] ^= 1 << (at % 8),
    }
    let vector = match block.vector {
        Vector::Source(_) => Vector::parse_source(shape, &vector),
        Vector::Recoded(_) => Vector::parse_recoded(shape, &vector),
    };
    Some(Coded {
        vector: vector.ok()?,
        payload: Payload::parse(shape, payload.into()).ok()?,
    })
}

/// So many blocks with one bit changed each, in the coefficients, the words and their top bits, and
/// hashes with one bit changed: none passes.
fn one_bit_is_found(group: Group, shape: Shape, count: usize) {
    let (cores, mut rng) = (Cores::all(), SmallRng::seed_from_u64(10));
    let source = source(shape, &mut rng);
    let hashes = hashes(group, shape, &source);
    let mut held = encode(&cores, shape, &source, shape.n(), &mut rng);
    held.extend(recode(&cores, shape, &held, shape.n(), &mut rng));
    let (mut refused, mut tried) = (0, 0);
    while refused + tried < count {
        let blocks: Vec<Coded> = (0..256.min(count))
            .filter_map(|_| {
                let block = &held[rng.random_range(0..held.len())];
                let vector = 8 * block.vector.to_bytes().len();
                let at = match rng.random_range(0..3) {
                    0 => rng.random_range(0..vector),
                    1 => vector + rng.random_range(0..8 * shape.block_bytes()),
                    _ => {
                        vector
                            + 8 * shape.block_bytes()
                            + rng.random_range(0..shape.words().next_multiple_of(8))
                    }
                };
                changed(shape, block, at)
            })
            .collect();
        refused += 256.min(count) - blocks.len();
        tried += blocks.len();
        let batches: Vec<Batch<'_>> = blocks
            .iter()
            .map(|block| Batch::new(&hashes, vec![block], &mut rng))
            .collect();
        let passed = cores
            .holds(&batches)
            .expect("done")
            .into_iter()
            .filter(|&holds| holds)
            .count();
        assert_eq!(passed, 0, "{shape:?} {group:?}");
    }
    assert!(
        tried > count / 2,
        "{refused} of {count} are refused as they are parsed"
    );

    let bytes: Vec<u8> = hashes
        .numbers()
        .iter()
        .flat_map(|number| number.iter().rev().flat_map(|limb| limb.to_be_bytes()))
        .collect();
    for _ in 0..count / 20 {
        let mut bytes = bytes.clone();
        let at = rng.random_range(0..8 * bytes.len());
        bytes[at / 8] ^= 1 << (at % 8);
        let Ok(changed) = Hashes::signed(group, shape, &bytes) else {
            continue;
        };
        let block = vec![&held[0], &held[held.len() - 1]];
        assert_eq!(
            cores.holds(&[Batch::new(&changed, block, &mut rng)]),
            Ok(vec![false])
        );
    }
}

#[test]
fn a_thousand_changes_of_one_bit_are_found() {
    Group::ALL
        .into_iter()
        .for_each(|group| one_bit_is_found(group, shape(6, 9), 500));
}

#[test]
#[ignore = "half a minute: make proofs"]
fn ten_thousand_changes_of_one_bit_are_found() {
    one_bit_is_found(Group::P1024, shape(128, 512), 10_000);
    one_bit_is_found(Group::P2048, shape(16, 32), 10_000);
}

/// So many blocks from the source and recoded ones: none is found wrong.
fn right_ones_pass(group: Group, shape: Shape, count: usize) {
    let (cores, mut rng) = (Cores::all(), SmallRng::seed_from_u64(11));
    let mut done = 0;
    while done < count {
        let source = source(shape, &mut rng);
        let hashes = hashes(group, shape, &source);
        for _ in 0..16 {
            let coded = encode(&cores, shape, &source, 128, &mut rng);
            let recoded = recode(&cores, shape, &coded[..8], 128, &mut rng);
            let blocks: Vec<&Coded> = coded.iter().chain(&recoded).collect();
            let batches: Vec<Batch<'_>> = blocks
                .chunks(32)
                .map(|blocks| Batch::new(&hashes, blocks.to_vec(), &mut rng))
                .collect();
            assert!(
                cores
                    .holds(&batches)
                    .expect("done")
                    .into_iter()
                    .all(|holds| holds),
                "{shape:?} {group:?}"
            );
            done += blocks.len();
        }
    }
}

#[test]
fn right_blocks_pass() {
    Group::ALL
        .into_iter()
        .for_each(|group| right_ones_pass(group, shape(8, 17), 4000));
}

#[test]
#[ignore = "half a minute: make proofs"]
fn a_hundred_thousand_right_blocks_pass() {
    right_ones_pass(Group::P1024, shape(32, 64), 100_000);
}

#[test]
fn the_wrong_blocks_alone_are_named() {
    let (shape, mut rng) = (shape(5, 7), SmallRng::seed_from_u64(12));
    let source = source(shape, &mut rng);
    let hashes = hashes(Group::P1024, shape, &source);
    let right = encode(&Cores::all(), shape, &source, 19, &mut rng);
    for wrong in [vec![], vec![0], vec![18], vec![3, 4, 17], (0..19).collect()] {
        let mut blocks = right.clone();
        for &index in &wrong {
            blocks[index] = changed(shape, &blocks[index], 8 * 4 * 5 + 9).expect("a word below q");
        }
        assert_eq!(bad_of(&hashes, &blocks, &mut rng), wrong);
        // All of one sender: its first wrong one is found by halves, and nothing is said of what is
        // behind it.
        let of_one: Vec<((), &Coded)> = blocks.iter().map(|block| ((), block)).collect();
        let sorted = sort_out(&Cores::all(), &hashes, &of_one, &mut rng).expect("done");
        let first = wrong.first().copied().unwrap_or(19);
        for (place, finding) in sorted.findings.into_iter().enumerate() {
            let expected = match place.cmp(&first) {
                std::cmp::Ordering::Less => Finding::Right,
                std::cmp::Ordering::Equal => Finding::Wrong,
                std::cmp::Ordering::Greater => Finding::Untested,
            };
            assert_eq!(finding, expected, "{place}, {wrong:?}");
        }
        assert!(
            if wrong.is_empty() {
                sorted.batches == 1
            } else {
                (5..=6).contains(&sorted.batches)
            },
            "{}",
            sorted.batches
        );
    }
    assert!(bad_of(&hashes, &[], &mut rng).is_empty());
}
