//! Every code on every instruction set, by name: known answers, round trips, recoding by relays,
//! malformed input.

use bytes::Bytes;
use ncserverd::block::Vector;
use ncserverd::codec::raptorq::{self, EncodingPlan};
use ncserverd::codec::rlnc::{Decoder, Encoder, Progressive, Rank};
use ncserverd::codec::rs::{Code, Matrix};
use ncserverd::codec::{Error, Outcome};
use ncserverd::gf::rows::philox4x32_10;
use ncserverd::gf::rows::sparse::weight_min;
use ncserverd::gf::{Isa, Kernels, RowKey};
use ncserverd::object::row_key;
use ncserverd::object::{Codec, Generation, HashGroup, SegmentId, Shape};
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use serde::Deserialize;

use nctest::shake256::shake256;

#[derive(Deserialize)]
struct Answers {
    philox4x32_10: Vec<PhiloxAnswer>,
    rows: Vec<RowAnswer>,
    sparse_rows: Vec<SparseRowAnswer>,
    small: Vec<SmallAnswer>,
    large: LargeAnswer,
}

#[derive(Deserialize)]
struct PhiloxAnswer {
    counter: [u32; 4],
    key: [u32; 2],
    output: [u32; 4],
}

#[derive(Deserialize)]
struct RowAnswer {
    key: String,
    generation: u64,
    seed: u32,
    n: usize,
    row: String,
}

#[derive(Deserialize)]
struct SparseRowAnswer {
    weight: u16,
    #[serde(flatten)]
    answer: RowAnswer,
}

#[derive(Deserialize)]
struct SmallAnswer {
    n: u16,
    k: u32,
    key: String,
    generation: u32,
    data: String,
    blocks: Vec<SmallBlock>,
}

#[derive(Deserialize)]
struct SmallBlock {
    seed: u32,
    payload: String,
}

#[derive(Deserialize)]
struct LargeAnswer {
    n: u16,
    k: u32,
    key: String,
    generation: u32,
    data_prefix: String,
    data_digest: String,
    rows_digest: String,
    blocks_digest: String,
    blocks: Vec<LargeBlock>,
}

#[derive(Deserialize)]
struct LargeBlock {
    seed: u32,
    prefix: String,
    digest: String,
}

fn answers() -> Answers {
    serde_json::from_str(include_str!("vectors/rlnc.json")).expect("the vectors are well-formed")
}

fn unhex(text: &str) -> Vec<u8> {
    let digit =
        |byte: u8| u8::try_from(char::from(byte).to_digit(16).expect("a digit")).expect("below 16");
    text.as_bytes()
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn key(text: &str, generation: u64) -> RowKey {
    RowKey {
        key: u64::from_str_radix(text, 16).expect("a key"),
        generation,
    }
}

fn generation(index: u32, n: u16, block_bytes: u32, length: usize) -> Generation {
    Generation {
        index,
        n,
        block_bytes,
        offset: 0,
        length: length as u64,
        codec: Codec::Rlnc,
    }
}

fn random(length: usize, rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill_bytes(&mut bytes);
    bytes
}

fn finish(decoder: Decoder) -> Vec<u8> {
    let mut out = vec![0; usize::try_from(decoder.generation().length).unwrap()];
    decoder.finish(&mut out).expect("full rank");
    out
}

#[test]
fn the_generator_gives_its_published_answers() {
    for answer in answers().philox4x32_10 {
        assert_eq!(philox4x32_10(answer.counter, answer.key), answer.output);
    }
}

#[test]
fn rows_are_the_known_ones() {
    for answer in answers().rows {
        let mut row = vec![0; answer.n];
        key(&answer.key, answer.generation).fill(answer.seed, &mut row);
        assert_eq!(hex(&row), answer.row);
    }
}

#[test]
fn sparse_rows_are_the_known_ones() {
    for SparseRowAnswer { weight, answer } in answers().sparse_rows {
        let mut row = vec![0; answer.n];
        key(&answer.key, answer.generation).fill_sparse(answer.seed, weight, &mut row);
        assert_eq!(hex(&row), answer.row);
    }
}

#[test]
fn small_blocks_are_the_known_ones() {
    for answer in answers().small {
        let data = unhex(&answer.data);
        let generation = generation(answer.generation, answer.n, answer.k, data.len());
        let key = key(&answer.key, u64::from(answer.generation));
        for kernels in Kernels::available() {
            let encoder = Encoder::new(&generation, &data, key, kernels).unwrap();
            let mut decoder = Decoder::new(generation, key, kernels);
            for block in &answer.blocks {
                let mut payload = vec![0; encoder.block_bytes()];
                encoder.block(block.seed, &mut payload);
                assert_eq!(hex(&payload), block.payload, "{}", kernels.isa());
                decoder.absorb(&Vector::Seed(block.seed), &payload).unwrap();
            }
            assert_eq!(finish(decoder), data, "{}", kernels.isa());
        }
    }
}

#[test]
fn large_blocks_are_the_known_ones() {
    let answer = answers().large;
    let (n, k) = (usize::from(answer.n), usize::try_from(answer.k).unwrap());
    let data = shake256(b"ncserverd rlnc kat v1", n * k);
    assert_eq!(hex(&data[..16]), answer.data_prefix);
    assert_eq!(hex(&shake256(&data, 16)), answer.data_digest);
    let generation = generation(answer.generation, answer.n, answer.k, data.len());
    let key = key(&answer.key, u64::from(answer.generation));
    let mut rows = vec![0; n * n];
    rows.chunks_mut(n)
        .zip(0..)
        .for_each(|(row, seed)| key.fill(seed, row));
    assert_eq!(hex(&shake256(&rows, 16)), answer.rows_digest);
    for kernels in Kernels::available() {
        let encoder = Encoder::new(&generation, &data, key, kernels).unwrap();
        let mut out = vec![0; n * k];
        let mut blocks: Vec<&mut [u8]> = out.chunks_mut(k).collect();
        encoder.blocks(0, &mut blocks);
        for (block, expected) in out.chunks(k).zip(&answer.blocks) {
            assert_eq!(
                hex(&block[..16]),
                expected.prefix,
                "{} {}",
                kernels.isa(),
                expected.seed
            );
            assert_eq!(
                hex(&shake256(block, 16)),
                expected.digest,
                "{} {}",
                kernels.isa(),
                expected.seed
            );
        }
        assert_eq!(
            hex(&shake256(&out, 16)),
            answer.blocks_digest,
            "{}",
            kernels.isa()
        );
    }
}

/// Draws source blocks with probability `share`, otherwise coded ones, until both decoders are
/// complete.
fn round_trip(
    kernels: Kernels,
    n: u16,
    block_bytes: u32,
    padding: usize,
    share: f64,
    rng: &mut SmallRng,
) {
    let name = format!(
        "{} n={n} k={block_bytes} padding={padding} share={share}",
        kernels.isa()
    );
    let k = usize::try_from(block_bytes).unwrap();
    let source = random(usize::from(n) * k - padding, rng);
    let shape = Shape::new(source.len() as u64, block_bytes, n).unwrap();
    let generation = shape.generation(0).unwrap();
    let key = row_key(&SegmentId::of(&source), &generation);
    let encoder = Encoder::new(&generation, &source, key, kernels).unwrap();
    let mut decoder = Decoder::new(generation, key, kernels);
    let mut progressive = Progressive::new(generation, key, kernels);
    let (mut payload, mut redundant, mut seed) = (vec![0; k], 0, rng.random());
    while !decoder.is_complete() {
        let index = rng.random_range(0..n);
        let (vector, payload) = if rng.random_bool(share) {
            (
                Vector::Source(index),
                &source[usize::from(index) * k..][..generation.block_length(index)],
            )
        } else {
            seed = u32::wrapping_add(seed, 1);
            encoder.block(seed, &mut payload);
            (Vector::Seed(seed), &payload[..])
        };
        let outcome = decoder.absorb(&vector, payload).unwrap();
        assert_eq!(progressive.absorb(&vector, payload), Ok(outcome), "{name}");
        redundant +=
            usize::from(outcome == Outcome::Redundant && matches!(vector, Vector::Seed(_)));
    }
    assert!(
        redundant <= 3,
        "{name}: {redundant} coded blocks were redundant"
    );
    let mut out = vec![0; source.len()];
    progressive.finish(&mut out).unwrap();
    assert!(out == source, "{name}");
    assert!(finish(decoder) == source, "{name}");
}

#[test]
fn round_trips_on_every_instruction_set() {
    let absent: Vec<Isa> = Isa::ALL
        .into_iter()
        .filter(|&isa| Kernels::new(isa).is_none())
        .collect();
    println!("not on this processor: {absent:?}");
    let mut rng = SmallRng::seed_from_u64(4);
    for kernels in Kernels::available() {
        for n in (1..=40).chain([63, 64, 65, 100, 127, 128, 129, 200]) {
            let block_bytes = 64 + 16 * u32::from(n % 21);
            let padding = rng.random_range(0..64);
            round_trip(
                kernels,
                n,
                block_bytes,
                padding,
                f64::from(n % 4) * 0.3,
                &mut rng,
            );
        }
    }
}

#[test]
fn round_trips_up_to_the_largest_generation() {
    let mut rng = SmallRng::seed_from_u64(5);
    let sizes = (1..=80)
        .chain((81..1024).step_by(37))
        .chain([255, 256, 257, 511, 512, 513, 1023, 1024]);
    for n in sizes {
        let padding = rng.random_range(0..64);
        round_trip(
            Kernels::detect(),
            n,
            64 + 16 * u32::from(n % 9),
            padding,
            0.0,
            &mut rng,
        );
    }
    round_trip(Kernels::detect(), 1024, 1088, 1, 0.5, &mut rng);
}

/// The blocks of a generation after its source blocks, from the code's own encoder.
fn behind(
    generation: &Generation,
    source: &[u8],
    count: u16,
    kernels: Kernels,
) -> Vec<(Vector, Vec<u8>)> {
    let (n, k) = (generation.n, generation.block_bytes as usize);
    let mut padded = source.to_vec();
    padded.resize(usize::from(n) * k, 0);
    match generation.codec {
        Codec::Rlnc | Codec::RlncQ { .. } => Vec::new(),
        Codec::ReedSolomon { parity } => {
            let code = Code::new(Matrix::Cauchy, n.into(), (n + parity).into()).unwrap();
            let mut chunks = vec![vec![0; k]; parity.into()];
            let mut outs: Vec<&mut [u8]> = chunks.iter_mut().map(Vec::as_mut_slice).collect();
            code.encode(
                kernels,
                &padded.chunks(k).collect::<Vec<_>>(),
                &mut outs,
                std::num::NonZeroUsize::MIN,
            )
            .unwrap();
            (n..)
                .map(Vector::Shard)
                .zip(chunks)
                .take(count.into())
                .collect()
        }
        Codec::RaptorQ => {
            let plan = EncodingPlan::new(n.into()).unwrap();
            let encoder = raptorq::Encoder::new(padded, k, &plan, kernels).unwrap();
            let symbol = |esi| {
                let mut out = vec![0; k];
                encoder.symbol(esi, &mut out).unwrap();
                (Vector::Symbol(esi), out)
            };
            (u32::from(n)..)
                .step_by(7)
                .map(symbol)
                .take(count.into())
                .collect()
        }
    }
}

/// Any n source and numbered blocks, in any order, rebuild the source; RaptorQ needs one or two
/// more now and then. Rows agree with the code's own encoder.
#[test]
fn blocks_with_numbers_rebuild_the_source_in_any_order() {
    let mut rng = SmallRng::seed_from_u64(8);
    for kernels in Kernels::available() {
        for n in [1_u16, 2, 3, 10, 31, 64, 101, 128] {
            for codec in [
                Codec::ReedSolomon { parity: n.min(128) },
                Codec::ReedSolomon { parity: 1 },
                Codec::RaptorQ,
            ] {
                let name = format!("{} n={n} {codec:?}", kernels.isa());
                let source = random(usize::from(n) * 96 - usize::from(n % 3), &mut rng);
                let shape = Shape::new(source.len() as u64, 96, n)
                    .unwrap()
                    .coded_with(codec)
                    .unwrap();
                let generation = shape.generation(0).unwrap();
                let key = row_key(&SegmentId::of(&source), &generation);
                let range = |index: u16| {
                    usize::from(index) * 96
                        ..usize::from(index) * 96 + generation.block_length(index)
                };
                let mut blocks: Vec<_> = (0..n)
                    .map(|index| (Vector::Source(index), source[range(index)].to_vec()))
                    .collect();
                blocks.extend(behind(&generation, &source, n + 3, kernels));
                for at in (1..blocks.len()).rev() {
                    blocks.swap(at, rng.random_range(0..=at));
                }
                let mut decoder = Decoder::new(generation, key, kernels);
                let mut gathering = Decoder::gathering(generation, key, kernels);
                let mut progressive = Progressive::new(generation, key, kernels);
                let mut rank = Rank::new(generation, key, kernels);
                let mut used = 0;
                for (vector, payload) in blocks {
                    used += 1;
                    let outcome = decoder.absorb(&vector, &payload).unwrap();
                    assert_eq!(gathering.absorb(&vector, &payload), Ok(outcome), "{name}");
                    assert_eq!(progressive.absorb(&vector, &payload), Ok(outcome), "{name}");
                    assert_eq!(rank.absorb(&vector), Ok(outcome), "{name}");
                    assert_eq!(
                        decoder.absorb(&vector, &payload),
                        Ok(Outcome::Redundant),
                        "{name}: {vector:?} twice"
                    );
                    if decoder.is_complete() {
                        break;
                    }
                }
                assert!(
                    used == n || (codec == Codec::RaptorQ && used <= n + 3),
                    "{name}: {used}"
                );
                let mut out = vec![0; source.len()];
                progressive.finish(&mut out).unwrap();
                assert!(
                    out == source
                        && gathering.into_bytes().unwrap() == source
                        && finish(decoder) == source,
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn blocks_of_another_code_are_refused() {
    let shape = Shape::new(300, 64, 5).unwrap();
    let row = Bytes::from_static(&[1, 2, 3, 4, 5]);
    let vectors = [
        Vector::Seed(1),
        Vector::Explicit(row.clone()),
        Vector::Unverified(row),
        Vector::Shard(4),
        Vector::Shard(5),
        Vector::Shard(7),
        Vector::Shard(8),
        Vector::Shard(u16::MAX),
        Vector::Symbol(4),
        Vector::Symbol(5),
        Vector::Symbol((1 << 24) - 1),
        Vector::Symbol(1 << 24),
        Vector::Narrow(vec![1; 20].into()),
        Vector::Wide(vec![0; 165].into()),
    ];
    for (codec, fit) in [
        (Codec::Rlnc, &[0, 1, 2][..]),
        (Codec::ReedSolomon { parity: 3 }, &[4, 5][..]),
        (Codec::RaptorQ, &[9, 10][..]),
        // It has its own decoder.
        (
            Codec::RlncQ {
                group: HashGroup::P1024,
            },
            &[][..],
        ),
    ] {
        let generation = shape.coded_with(codec).unwrap().generation(0).unwrap();
        for (at, vector) in vectors.iter().enumerate() {
            let key = RowKey {
                key: 1,
                generation: 0,
            };
            let outcome = Decoder::new(generation, key, Kernels::detect()).absorb(vector, &[0; 64]);
            let expected = if fit.contains(&at) {
                Ok(Outcome::Innovative)
            } else {
                Err(Error::Foreign { codec, n: 5 })
            };
            assert_eq!(outcome, expected, "{vector:?} with {codec:?}");
            assert_eq!(
                Rank::new(generation, key, Kernels::detect()).absorb(vector),
                expected,
                "{vector:?} with {codec:?}"
            );
            assert!(
                Decoder::new(generation, key, Kernels::detect())
                    .absorb(vector, &[0; 63])
                    .is_err()
            );
        }
    }
}

/// server ─▶ relay ─▶ relay ─▶ sink: one block per tick, one in ten lost on each hop; relays recode
/// what they have.
#[test]
fn recoding_through_relays() {
    for kernels in Kernels::available() {
        let mut rng = SmallRng::seed_from_u64(6);
        let (n, k) = (48, 96);
        let source = random(n * k - 7, &mut rng);
        let generation = generation(0, 48, 96, source.len());
        let key = RowKey {
            key: 1,
            generation: 0,
        };
        let encoder = Encoder::new(&generation, &source, key, kernels).unwrap();
        let mut nodes = [0; 3].map(|_| Decoder::new(generation, key, kernels));
        let mut ticks = 0;
        while !nodes[2].is_complete() {
            let mut payload = vec![0; k];
            encoder.block(ticks, &mut payload);
            let first = (Vector::Seed(ticks), Bytes::from(payload));
            let recoded = nodes[..2].iter().map(|node| {
                node.recode(1, &mut rng)
                    .pop()
                    .map(|block| (block.vector, block.payload))
            });
            let sent: Vec<_> = [Some(first)].into_iter().chain(recoded).collect();
            for (node, block) in nodes.iter_mut().zip(sent) {
                if let Some((vector, payload)) = block
                    && rng.random_bool(0.9)
                {
                    node.absorb(&vector, &payload).unwrap();
                }
            }
            ticks += 1;
            assert!(
                ticks < 100,
                "{}: the cut-set bound is about 55 ticks",
                kernels.isa()
            );
        }
        let [_, _, sink] = nodes;
        assert_eq!(finish(sink), source, "{}", kernels.isa());
    }
}

/// The mean number of blocks beyond n, for dense rows of n = 32: 1/(q - 1) + 1/(q^2 - 1) + … =
/// 0.0039369 for q = 256. A broken generator or elimination shows here first. Run with `cargo test
/// --release --test codecs -- --ignored --nocapture extra`.
#[test]
#[ignore = "takes half a minute"]
fn extra_blocks_are_as_many_as_theory_says() {
    const TRIALS: u32 = 400_000;
    let generation = generation(0, 32, 64, 32 * 64);
    let (mut extra, mut some, mut several) = (0, 0, 0);
    for trial in 0..TRIALS {
        let key = RowKey {
            key: 0x6E63_7365_7276_6572,
            generation: u64::from(trial),
        };
        let mut decoder = Decoder::new(generation, key, Kernels::detect());
        let seeds = (0..).take_while(|&seed| {
            decoder
                .absorb(&Vector::Seed(seed), &[0; 64])
                .expect("a whole block");
            !decoder.is_complete()
        });
        let beyond = seeds.count() + 1 - 32;
        extra += beyond;
        some += usize::from(beyond >= 1);
        several += usize::from(beyond >= 2);
    }
    let mean = |count: usize| count as f64 / f64::from(TRIALS);
    let (mean_extra, some, several) = (mean(extra), mean(some), mean(several));
    println!(
        "n = 32, {TRIALS} trials: {mean_extra:.6} extra blocks on average, P(>= 1) = {some:.6}, \
         P(>= 2) = {several:.2e}"
    );
    assert!((mean_extra - 0.0039).abs() <= 0.0003, "{mean_extra}");
}

/// Rows with ln n + 8 nonzero coefficients are as good as dense ones; with half as many, some
/// source blocks are in no row.
#[test]
fn sparse_rows_of_the_least_weight_are_as_good_as_dense_ones() {
    const TRIALS: u16 = 300;
    let (n, generation) = (64, generation(0, 64, 1, 64));
    let mean_extra = |weight| {
        let beyond = (0..TRIALS).map(|trial| {
            let key = RowKey {
                key: 0x6E63_7365_7276_6572,
                generation: u64::from(trial),
            };
            let mut decoder = Decoder::gathering(generation, key, Kernels::detect());
            let mut row = vec![0; n];
            let rows = (0..).take_while(|&seed| {
                key.fill_sparse(seed, weight, &mut row);
                decoder
                    .absorb(&Vector::Explicit(Bytes::copy_from_slice(&row)), &[0])
                    .expect("a whole block");
                !decoder.is_complete()
            });
            rows.count() + 1 - n
        });
        beyond.sum::<usize>() as f64 / f64::from(TRIALS)
    };
    assert_eq!(weight_min(64), 13);
    let (sparse, sparser) = (mean_extra(13), mean_extra(6));
    assert!(
        sparse < 0.05 && sparser > 0.3,
        "{sparse} at weight 13, {sparser} at weight 6"
    );
}

fn any_vector() -> impl Strategy<Value = Vector> {
    prop_oneof![
        any::<u16>().prop_map(Vector::Source),
        (0_u16..8).prop_map(Vector::Source),
        any::<u32>().prop_map(Vector::Seed),
        proptest::collection::vec(0_u8..3, 0..9).prop_map(|row| Vector::Explicit(row.into())),
    ]
}

proptest! {
    /// For any input, the rank never exceeds n, errors change nothing, and both decoders agree.
    #[test]
    fn no_block_breaks_a_decoder(
        blocks in proptest::collection::vec((any_vector(), 0_usize..4, any::<u8>()), 0..40),
    ) {
        let generation = generation(0, 6, 64, 6 * 64 - 10);
        let key = RowKey { key: 1, generation: 0 };
        let mut decoder = Decoder::new(generation, key, Kernels::detect());
        let mut progressive = Progressive::new(generation, key, Kernels::detect());
        for (vector, kind, byte) in blocks {
            let payload = vec![byte; [64, 54, 0, 65][kind]];
            let before = decoder.rank();
            let outcome = decoder.absorb(&vector, &payload);
            prop_assert_eq!(outcome, progressive.absorb(&vector, &payload));
            let innovative = matches!(outcome, Ok(Outcome::Innovative | Outcome::Complete));
            prop_assert_eq!(decoder.rank(), before + u16::from(innovative));
            prop_assert!(decoder.rank() <= 6);
        }
        let mut rng = SmallRng::seed_from_u64(7);
        prop_assert_eq!(decoder.recode(2, &mut rng).len(), if decoder.rank() == 0 { 0 } else { 2 });
        let missing = decoder.missing();
        let result = decoder.finish(&mut [0; 6 * 64 - 10]);
        prop_assert_eq!(
            result,
            if missing == 0 {
                Ok(())
            } else {
                Err(Error::Incomplete { missing })
            }
        );
    }
}
