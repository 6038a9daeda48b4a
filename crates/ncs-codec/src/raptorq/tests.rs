use std::collections::BTreeSet;
use std::sync::Arc;

use ::raptorq as peer;
use proptest::prelude::*;
use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::tables::{DEGREES, SYSTEMATIC};
use super::*;
use crate::raptor::RANDOM;
use crate::raptor::testing::{self, bytes, failures, random_esis, rng, symbol};
use crate::raptor10;
use ncs_gf::dense::{Algebra, Cores, Failed, System};
use ncs_gf::{Kernels, gf256};

fn is_prime(n: u32) -> bool {
    n > 1
        && (2..)
            .take_while(|divisor| divisor * divisor <= n)
            .all(|divisor| !n.is_multiple_of(divisor))
}

/// A block's encoder.
fn encoder(source: &[u8], symbol_bytes: usize) -> Encoder {
    testing::encoder(source, symbol_bytes)
}

/// A decoder without dense matrices.
fn inactivating(k: u32, symbol_bytes: usize, kernels: Kernels) -> Result<Decoder, Error> {
    Decoder::new(k, symbol_bytes, Method::Inactivation, kernels)
}

/// The same block in the other implementation.
struct Peer {
    oti: peer::ObjectTransmissionInformation,
    encoder: peer::SourceBlockEncoder,
}

impl Peer {
    fn new(source: &[u8], symbol_bytes: u16) -> Self {
        let oti =
            peer::ObjectTransmissionInformation::new(source.len() as u64, symbol_bytes, 1, 1, 1);
        Self {
            oti,
            encoder: peer::SourceBlockEncoder::new(0, &oti, source),
        }
    }

    fn repair(&self, k: u32, esi: u32) -> Vec<u8> {
        self.encoder
            .repair_packets(esi - k, 1)
            .remove(0)
            .data()
            .to_vec()
    }

    fn decode(
        &self,
        length: usize,
        symbols: impl Iterator<Item = (u32, Vec<u8>)>,
    ) -> Option<Vec<u8>> {
        let packets: Vec<_> = symbols
            .map(|(esi, symbol)| peer::EncodingPacket::new(peer::PayloadId::new(0, esi), symbol))
            .collect();
        peer::SourceBlockDecoder::new(0, &self.oti, length as u64).decode(packets)
    }
}

/// Both directions for a block of `k` symbols: the same repair symbols, next to the source and far
/// from it, and each decodes what the other has encoded, a fifth of the source being lost.
fn compare(k: u32, symbol_bytes: u16, rng: &mut SmallRng) {
    let source = bytes(k as usize * usize::from(symbol_bytes), rng);
    let (ours, theirs) = (
        encoder(&source, symbol_bytes.into()),
        Peer::new(&source, symbol_bytes),
    );
    // The other one adds K' to an id without looking whether it is still one.
    let far = random_esis(8, ESI_END - Parameters::K_MAX, rng)
        .into_iter()
        .filter(|esi| *esi >= k);
    for esi in (k..k + 8).chain(far).chain([ESI_END - 1]) {
        assert!(
            symbol(&ours, esi) == theirs.repair(k, esi),
            "K = {k}, repair symbol {esi}"
        );
    }
    let mut kept: Vec<u32> = (0..k).filter(|_| rng.random_ratio(4, 5)).collect();
    kept.truncate(k as usize - 1);
    let lost = k - u32::try_from(kept.len()).unwrap();
    kept.extend(k..k + lost + 2);
    kept.shuffle(rng);
    let decoded = theirs.decode(
        source.len(),
        kept.iter().map(|&esi| (esi, symbol(&ours, esi))),
    );
    assert!(
        decoded.as_ref() == Some(&source),
        "K = {k}: theirs from ours"
    );
    let mut decoder = Decoder::new(
        k,
        symbol_bytes.into(),
        Method::Inactivation,
        Kernels::detect(),
    )
    .unwrap();
    for esi in kept {
        let data = if esi < k {
            source[esi as usize * usize::from(symbol_bytes)..][..symbol_bytes.into()].to_vec()
        } else {
            theirs.repair(k, esi)
        };
        assert_eq!(decoder.push(esi, &data), Ok(Arrival::Kept));
    }
    assert!(
        decoder.decode().as_ref() == Ok(&source),
        "K = {k}: ours from theirs"
    );
}

/// Forty rows of Table 2, small ones closer, and numbers between the rows, which are padded.
#[test]
fn symbols_are_those_of_another_implementation() {
    let mut rng = rng(1);
    for place in 0..40_usize {
        let k = SYSTEMATIC[place * place * 236 / 1521].0;
        compare(k, 8, &mut rng);
    }
    for k in [1, 2, 9, 11, 59, 61, 100, 102, 247, 255, 511, 1001, 1999] {
        compare(k, 8, &mut rng);
    }
    for symbol_bytes in [1, 63, 64, 65, 255, 256, 257, 1000, 1280] {
        compare(40, symbol_bytes, &mut rng);
    }
}

/// What CI has no time for: every row of Table 2, and a number between it and the row before.
#[test]
#[ignore = "minutes: cargo test --release --lib every_row -- --ignored --nocapture"]
fn every_row_is_that_of_another_implementation() {
    let (mut rng, mut before) = (rng(2), 0);
    for (row, k_prime) in Parameters::table().enumerate() {
        let k = rng.random_range(before + 1..=k_prime);
        compare(k_prime, 8, &mut rng);
        compare(k, 8, &mut rng);
        println!(
            "row {}: K' = {k_prime}, K = {k}: both directions agree",
            row + 1
        );
        before = k_prime;
    }
}

/// Section 5.6 says that S and W are primes. The systematic index is one that makes the system
/// regular: that there is a plan for a row shows that its five numbers belong together.
#[test]
fn tables_are_those_of_the_rfc() {
    let mut hasher = blake3::Hasher::new();
    for (k, j, s, h, w) in SYSTEMATIC {
        [k, j, s, h, w]
            .iter()
            .for_each(|number| _ = hasher.update(&number.to_be_bytes()));
        assert!(is_prime(s) && is_prime(w) && h <= 16, "K' = {k}");
    }
    DEGREES
        .iter()
        .chain(RANDOM.iter().flatten())
        .for_each(|number| _ = hasher.update(&number.to_be_bytes()));
    assert_eq!(
        hasher.finalize().to_hex()[..32],
        *"2f8b44aec97a30cec1ad3db354e21198"
    );
    assert!(SYSTEMATIC.is_sorted_by_key(|row| row.0) && DEGREES.is_sorted());
    for k_prime in Parameters::table().filter(|k| *k < 6000) {
        let parameters = Parameters::new(k_prime).unwrap();
        assert!(is_prime(parameters.p1) && (parameters.p..parameters.p1).all(|n| !is_prime(n)));
        assert!(
            parameters.l == k_prime + parameters.s + parameters.h
                && parameters.l == parameters.w + parameters.p
        );
        assert!(
            parameters.w == parameters.b + parameters.s
                && parameters.p == parameters.u + parameters.h
        );
        let esis: Vec<u32> = (0..k_prime).collect();
        assert_eq!(deficit(k_prime, &esis), Ok(0), "K' = {k_prime}");
    }
}

/// At K' = 10, by a script that follows the RFC's text step by step.
#[test]
fn known_tuples() {
    let parameters = Parameters::new(10).unwrap();
    let Parameters {
        j,
        s,
        h,
        w,
        l,
        p,
        p1,
        u,
        b,
        ..
    } = parameters;
    assert_eq!(
        [j, s, h, w, l, p, p1, u, b],
        [254, 7, 10, 17, 27, 10, 11, 0, 10]
    );
    let tuples: Vec<Tuple> = [0, 1, 9, 10, 1000, ESI_END]
        .into_iter()
        .map(|x| parameters.tuple(x))
        .collect();
    assert_eq!(
        tuples
            .iter()
            .map(|t| [t.d, t.a, t.b, t.d1, t.a1, t.b1])
            .collect::<Vec<_>>(),
        [
            [2, 4, 9, 2, 5, 1],
            [7, 6, 12, 2, 1, 3],
            [6, 3, 16, 2, 6, 4],
            [2, 15, 15, 2, 10, 7],
            [4, 11, 3, 2, 6, 7],
            [7, 15, 4, 2, 8, 9]
        ]
    );
}

#[test]
fn source_symbols_follow_from_the_intermediate_ones() {
    let (k, kernels) = (45, Kernels::detect());
    let source = bytes(k * 8, &mut rng(3));
    let encoder = encoder(&source, 8);
    let parameters = encoder.parameters();
    for isi in 0..parameters.k_prime {
        let (mut columns, mut sum) = (Vec::new(), vec![0; 8]);
        parameters.columns(isi, &mut columns);
        encoder.sum(&columns, &mut sum);
        let expected = source
            .get(isi as usize * 8..)
            .filter(|rest| !rest.is_empty())
            .map_or(&[0; 8][..], |rest| &rest[..8]);
        assert_eq!(sum, expected);
    }
    for row in 0..parameters.s {
        let (mut columns, mut sum) = (Vec::new(), vec![0; 8]);
        parameters.ldpc_columns(row, &mut columns);
        encoder.sum(&columns, &mut sum);
        assert_eq!(sum, [0; 8], "LDPC row {row}");
    }
    let hdpc = parameters.hdpc_columns();
    for row in 0..parameters.h as usize {
        let mut sum = vec![0; 8];
        for (column, elements) in (0..).zip(&hdpc) {
            let mut symbol = vec![0; 8];
            encoder.sum(&[column], &mut symbol);
            kernels.mul_add(&mut sum, &symbol, elements.to_le_bytes()[row]);
        }
        assert_eq!(sum, [0; 8], "HDPC row {row}");
    }
}

/// MT times GAMMA as section 5.3.3.3 writes it, every product by the definition of the field.
#[test]
fn hdpc_columns_are_the_product_of_the_rfc() {
    for k in [10, 101, 300] {
        let parameters = Parameters::new(k).unwrap();
        let (h, coded) = (
            parameters.h as usize,
            (parameters.k_prime + parameters.s) as usize,
        );
        let mut mt = vec![vec![0; coded]; h];
        for (j, j1) in (0..coded - 1).zip(1..) {
            let first = parameters::random(j1, 6, parameters.h);
            let second = (first + parameters::random(j1, 7, parameters.h - 1) + 1) % parameters.h;
            mt[first as usize][j] = 1;
            mt[second as usize][j] = 1;
        }
        let power = |n: usize| (0..n % 255).fold(1, |power, _| gf256::mul(power, 2));
        mt.iter_mut()
            .enumerate()
            .for_each(|(i, row)| row[coded - 1] = power(i));
        for (j, column) in parameters.hdpc_columns()[..coded].iter().enumerate() {
            for (row, element) in mt.iter().zip(column.to_le_bytes()) {
                let sum = (j..coded).fold(0, |sum, i| sum ^ gf256::mul(row[i], power(i - j)));
                assert_eq!(element, sum, "column {j} of K = {k}");
            }
        }
    }
}

/// The stored inverse is made by a plan; inversion of the whole matrix gives the same.
#[test]
fn the_stored_inverse_is_the_inverse() {
    for k in [5, 60, 101] {
        let kernels = Kernels::detect();
        let inverse = Inverse::new(k, kernels).unwrap();
        let parameters = Parameters::new(inverse.k_prime()).unwrap();
        let isis: Vec<u32> = (0..parameters.k_prime).collect();
        assert_eq!(
            inverse.rows(),
            dense::source_inverse(&parameters, &isis, kernels).unwrap()
        );
    }
}

/// What a method makes of these symbols.
fn decode(
    method: Method,
    k: u32,
    symbol_bytes: usize,
    symbols: &[(u32, Vec<u8>)],
) -> Result<Vec<u8>, Error> {
    decode_with(
        Arc::new(Cores::new(Kernels::detect(), 1.try_into().unwrap())),
        method,
        k,
        symbol_bytes,
        symbols,
    )
}

fn decode_with(
    algebra: Arc<dyn Algebra>,
    method: Method,
    k: u32,
    symbol_bytes: usize,
    symbols: &[(u32, Vec<u8>)],
) -> Result<Vec<u8>, Error> {
    let mut decoder =
        Decoder::new(k, symbol_bytes, method, Kernels::detect())?.with_algebra(algebra);
    for (esi, symbol) in symbols {
        assert_eq!(decoder.push(*esi, symbol), Ok(Arrival::Kept));
    }
    decoder.decode()
}

/// The three methods find the same from the same symbols, or all three find that the same number is
/// missing. Ids from a small range so that source symbols are among them; K' symbols at first, and
/// then more until it is enough.
#[test]
fn methods_agree() {
    let mut rng = rng(4);
    let (mut failures, mut solved) = (0, 0);
    for k in [1, 4, 10, 26, 45, 60, 101, 230] {
        let source = bytes(k as usize * 24, &mut rng);
        let encoder = encoder(&source, 24);
        let inverse = Arc::new(Inverse::new(k, Kernels::detect()).unwrap());
        for _ in 0..if k < 50 { 250 } else { 8 } {
            let esis = random_esis(k as usize + 3, 2 * k + 8, &mut rng);
            let symbols: Vec<(u32, Vec<u8>)> = esis
                .iter()
                .map(|&esi| (esi, symbol(&encoder, esi)))
                .collect();
            for count in k as usize..=symbols.len() {
                let results = [
                    Method::Inactivation,
                    Method::Inversion,
                    Method::Reduction(inverse.clone()),
                ]
                .map(|method| decode(method, k, 24, &symbols[..count]));
                assert!(
                    results[0] == results[1] && results[0] == results[2],
                    "K = {k}, {:?}",
                    &esis[..count]
                );
                match &results[0] {
                    Ok(block) => assert!(*block == source),
                    Err(error) => {
                        assert!(matches!(error, Error::Refused(Refusal::Incomplete { .. })))
                    }
                }
                assert_eq!(deficit(k, &esis[..count]) == Ok(0), results[0].is_ok());
                failures += usize::from(results[0].is_err());
                solved += usize::from(results[0].is_ok());
            }
        }
    }
    assert!(
        failures > 0 && solved > 1000,
        "{failures} failures and {solved} blocks"
    );
}

/// The same for one pattern of a larger block: a tenth is lost, and three repair symbols are there
/// beyond what is needed.
fn methods_agree_at(k: u32) {
    let mut rng = rng(u64::from(k));
    let source = bytes(k as usize * 64, &mut rng);
    let encoder = encoder(&source, 64);
    let esis = (0..k)
        .filter(|esi| esi % 10 != 7)
        .chain(k..k + k.div_ceil(10) + 3);
    let symbols: Vec<(u32, Vec<u8>)> = esis.map(|esi| (esi, symbol(&encoder, esi))).collect();
    let inverse = Arc::new(Inverse::new(k, Kernels::detect()).unwrap());
    for method in [
        Method::Inactivation,
        Method::Inversion,
        Method::Reduction(inverse),
    ] {
        assert!(
            decode(method.clone(), k, 64, &symbols).as_ref() == Ok(&source),
            "K = {k}"
        );
        let threads = Arc::new(Cores::new(Kernels::detect(), 3.try_into().unwrap()));
        assert!(
            decode_with(threads, method, k, 64, &symbols).as_ref() == Ok(&source),
            "K = {k}, three threads"
        );
    }
}

/// A processor that fails, or finds no inverse of anything.
#[derive(Debug)]
struct Useless {
    is_lost: bool,
}

impl Algebra for Useless {
    fn solve(&self, _: &System<'_>, _: &mut [&mut [u8]]) -> Result<bool, Failed> {
        if self.is_lost {
            Err(Failed("gone".into()))
        } else {
            Ok(false)
        }
    }

    fn multiply(
        &self,
        _: &[&[u8]],
        _: &[Option<&[u8]>],
        _: &mut [&mut [u8]],
    ) -> Result<(), Failed> {
        Ok(())
    }
}

#[test]
fn who_multiplies_may_fail_and_may_not_lie() {
    let source = bytes(20 * 8, &mut rng(9));
    let encoder = encoder(&source, 8);
    let symbols: Vec<(u32, Vec<u8>)> = (4..26).map(|esi| (esi, symbol(&encoder, esi))).collect();
    let inverse = Arc::new(Inverse::new(20, Kernels::detect()).unwrap());
    for method in [Method::Inversion, Method::Reduction(inverse)] {
        for is_lost in [false, true] {
            let result = decode_with(
                Arc::new(Useless { is_lost }),
                method.clone(),
                20,
                8,
                &symbols,
            );
            assert_eq!(result, Err(Error::Algebra));
        }
        assert_eq!(decode(method, 20, 8, &symbols).as_ref(), Ok(&source));
    }
    let useless = Arc::new(Useless { is_lost: true });
    assert_eq!(
        decode_with(useless, Method::Inactivation, 20, 8, &symbols),
        Ok(source),
        "which has no use for it"
    );
}

#[test]
fn methods_agree_on_a_larger_block() {
    methods_agree_at(500);
}

#[test]
#[ignore = "seconds: cargo test --release --lib largest_dense -- --ignored"]
fn methods_agree_on_the_largest_dense_block() {
    methods_agree_at(DENSE_K_MAX);
}

#[test]
fn dense_methods_end_at_their_limit() {
    let kernels = Kernels::detect();
    let inverse = Arc::new(Inverse::new(10, kernels).unwrap());
    assert_eq!(
        Inverse::new(DENSE_K_MAX + 1, kernels).unwrap_err(),
        Error::Dense { k: 4097 }
    );
    for method in [Method::Inversion, Method::Reduction(inverse.clone())] {
        assert_eq!(
            Decoder::new(DENSE_K_MAX + 1, 8, method, kernels).unwrap_err(),
            Error::Dense { k: 4097 }
        );
    }
    assert!(Decoder::new(DENSE_K_MAX, 8, Method::Inversion, kernels).is_ok());
    assert_eq!(
        Decoder::new(11, 8, Method::Reduction(inverse), kernels).unwrap_err(),
        Error::from(Refusal::Mismatch)
    );
    assert!(Decoder::new(Parameters::K_MAX, 8, Method::Inactivation, kernels).is_ok());
    assert_eq!(
        Decoder::new(Parameters::K_MAX + 1, 8, Method::Inactivation, kernels).unwrap_err(),
        Error::Symbols { k: 56_404 }
    );
    assert_eq!(
        Decoder::new(0, 8, Method::Inactivation, kernels).unwrap_err(),
        Error::Symbols { k: 0 }
    );
}

#[test]
fn repair_symbols_alone_suffice() {
    testing::repair_symbols_alone_suffice(
        inactivating,
        &[(1, 40), (10, 8), (64, 300), (1000, 16)],
        4,
        |k| ESI_END - k,
    );
}

#[test]
fn every_instruction_set_makes_the_same() {
    testing::every_instruction_set_makes_the_same(inactivating);
}

/// Symbols with the same ids in the same order are decoded by the plan that others were decoded by.
#[test]
fn a_plan_serves_every_block() {
    testing::a_plan_serves_every_block(inactivating, 4);
}

/// When so many symbols are held that no more are taken, and they do not suffice, those that depend
/// on others make room.
#[test]
fn a_full_decoder_makes_room() {
    testing::a_full_decoder_makes_room(inactivating);
}

/// A sender can choose symbols that are sums of many others. Elimination of all of them would take
/// minutes and much memory.
#[test]
fn symbols_chosen_to_be_dense_are_not_worked_on() {
    let k = 8000;
    let parameters = Parameters::new(k).unwrap();
    let is_dense = |esi: &u32| parameters.tuple(parameters.isi(*esi)).d >= 29;
    let esis: Vec<u32> = (k..ESI_END)
        .filter(is_dense)
        .take(k as usize + Decoder::SPARE)
        .collect();
    assert_eq!(deficit(k, &esis), Ok(1));
    let mut decoder = Decoder::new(k, 1, Method::Inactivation, Kernels::detect()).unwrap();
    esis.iter()
        .for_each(|&esi| assert_eq!(decoder.push(esi, &[0]), Ok(Arrival::Kept)));
    assert_eq!(
        decoder.decode(),
        Err(Refusal::Incomplete { missing: 1 }.into())
    );
}

/// Section 5.8 allows one failure in a hundred, ten thousand and a million. Rank cannot do better
/// than one in 256 at K'.
#[test]
fn failures_are_as_rare_as_the_rfc_demands() {
    let mut rng = rng(9);
    let at_k = failures::<Parameters>(10, 0, ESI_END, 20_000, &mut rng);
    assert!(
        (40..=200).contains(&at_k),
        "{at_k} failures of 20,000 at K'"
    );
    assert!(failures::<Parameters>(10, 1, ESI_END, 20_000, &mut rng) <= 6);
    assert_eq!(failures::<Parameters>(101, 2, ESI_END, 2000, &mut rng), 0);
}

#[test]
#[ignore = "minutes: cargo test --release --lib failures_of_millions -- --ignored --nocapture"]
fn failures_of_millions() {
    for k in [10, 101] {
        let mut rng = rng(u64::from(k));
        let counts = [(0, 100_000), (1, 1_000_000), (2, 1_000_000)].map(|(more, trials)| {
            let count = failures::<Parameters>(k, more, ESI_END, trials, &mut rng);
            println!("K = K' = {k}: {count} failures of {trials} with K' + {more} symbols");
            count
        });
        assert!(
            counts[0] <= 1000 && counts[1] <= 100 && counts[2] <= 5,
            "{counts:?}"
        );
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    testing::what_does_not_fit_is_refused(inactivating);
    let plan = EncodingPlan::new(10).unwrap();
    assert_eq!(
        Encoder::new(Vec::new(), 8, &plan, Kernels::detect()).unwrap_err(),
        Error::Symbols { k: 0 }
    );
    assert_eq!(deficit(0, &[]), Err(Error::Symbols { k: 0 }));
}

#[test]
fn transmission_information_is_that_of_another_implementation() {
    for (length, packet, memory) in [
        (1, 1280, 10 << 20),
        (1_000_000, 1024, 10 << 20),
        (1_234_567, 1400, 1 << 14),
        (77, 64, 1 << 20),
    ] {
        let mut builder = peer::EncoderBuilder::new();
        builder.set_max_packet_size(packet);
        builder.set_decoder_memory_requirement(memory);
        let theirs = builder.build(&vec![0; length]).get_config();
        let ours = Oti::derive(length as u64, packet, 8, 8, memory).unwrap();
        assert_eq!(ours.to_bytes(), theirs.serialize(), "{length} bytes");
        assert_eq!(Oti::from_bytes(ours.to_bytes()), Ok(ours));
    }
    let id = PayloadId::new(7, 0x0012_3456).unwrap();
    assert_eq!(
        id.to_bytes(),
        peer::PayloadId::new(7, 0x0012_3456).serialize()
    );
    assert_eq!(PayloadId::from_bytes(id.to_bytes()), id);
    assert_eq!(
        PayloadId::new(0, ESI_END),
        Err(Refusal::Esi { esi: ESI_END }.into())
    );
    for (items, parts) in [(10, 3), (9, 3), (1, 5), (56_403, 255)] {
        let Partition {
            long,
            short,
            longs,
            shorts,
        } = Partition::new(items, parts);
        let theirs = peer::partition(u32::try_from(items).unwrap(), u32::try_from(parts).unwrap());
        assert_eq!(
            [long, short, longs, shorts],
            [theirs.0, theirs.1, theirs.2, theirs.3].map(u64::from)
        );
    }
}

#[test]
fn transmission_information_is_refused_if_it_is_not_canonical() {
    let good = Oti::new(1000, 16, 3, 2, 4).unwrap().to_bytes();
    let field = |place: usize, value: u8| {
        let mut bytes = good;
        bytes[place] = value;
        match Oti::from_bytes(bytes) {
            Err(Error::Oti { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(field(5, 1), "the reserved byte");
    assert_eq!(field(7, 0), "the symbol size");
    assert_eq!(field(7, 17), "the symbol size");
    assert_eq!(field(8, 0), "the number of source blocks");
    assert_eq!(field(8, 64), "the number of source blocks");
    assert_eq!(field(10, 0), "the number of sub-blocks");
    assert_eq!(field(10, 5), "the number of sub-blocks");
    assert_eq!(field(11, 0), "the alignment");
    assert!(
        Oti::new(0, 16, 1, 1, 4).is_err()
            && Oti::new(Oti::LENGTH_MAX + 1, u16::MAX, 255, 1, 1).is_err()
    );
    assert!(Oti::new(Oti::LENGTH_MAX, u16::MAX, 255, 1, 1).is_ok());
    assert!(Oti::new(56_404 * 8, 8, 1, 1, 1).is_err() && Oti::new(56_404 * 8, 8, 2, 1, 1).is_ok());
    assert!(
        Oti::derive(1000, 0, 8, 8, 1 << 20).is_err()
            && Oti::derive(1000, 1000, 0, 8, 1 << 20).is_err()
    );
    assert!(
        Oti::derive(1000, 1000, 8, 8, 10).is_err()
            && Oti::derive(u64::MAX, 1000, 8, 8, 1 << 20).is_err()
    );
}

/// Objects of several blocks, of which the last is shorter, each in several sub-blocks of unequal
/// width.
#[test]
fn objects_are_those_of_another_implementation() {
    let mut rng = rng(10);
    for (length, symbol_bytes, blocks, sub_blocks, alignment) in [
        (5003, 64, 5, 3, 8),
        (9999, 36, 7, 5, 4),
        (800, 8, 1, 1, 8),
        (1, 1, 1, 1, 1),
        (4097, 16, 3, 16, 1),
    ] {
        let object = bytes(length, &mut rng);
        let oti = Oti::new(length as u64, symbol_bytes, blocks, sub_blocks, alignment).unwrap();
        let theirs_oti = peer::ObjectTransmissionInformation::new(
            length as u64,
            symbol_bytes,
            blocks,
            sub_blocks,
            alignment,
        );
        let (ours, theirs) = (
            ObjectEncoder::new(&object, oti, Kernels::detect()).unwrap(),
            peer::Encoder::new(&object, theirs_oti),
        );
        assert_eq!(ours.oti(), &oti);
        let mut packets = theirs.get_encoded_packets(12);
        let mut out = vec![0; oti.symbol_bytes()];
        for packet in &packets {
            let id = PayloadId::from_bytes(packet.payload_id().serialize());
            ours.symbol(id, &mut out).unwrap();
            assert!(out == packet.data(), "{id:?}");
        }
        packets.shuffle(&mut rng);
        let mut decoder = ObjectDecoder::new(oti, Kernels::detect());
        for packet in &packets {
            // One in five is lost, but for the last ones.
            let id = PayloadId::from_bytes(packet.payload_id().serialize());
            if !id.esi().is_multiple_of(5) || id.esi() > 40 {
                decoder.push(id, packet.data()).unwrap();
            }
        }
        packets.iter().for_each(|packet| {
            _ = decoder
                .push(
                    PayloadId::from_bytes(packet.payload_id().serialize()),
                    packet.data(),
                )
                .unwrap()
        });
        assert!(decoder.object().as_ref() == Some(&object), "{length} bytes");
        let id = PayloadId::new(blocks, 0).unwrap();
        assert_eq!(
            decoder.push(id, &out),
            Err(Error::Block {
                block: blocks,
                blocks
            })
        );
        assert_eq!(
            ours.symbol(id, &mut out),
            Err(Error::Block {
                block: blocks,
                blocks
            })
        );
        assert_eq!(decoder.block(blocks), None);
    }
}

/// The largest block, once, with symbols of a byte.
#[test]
fn the_largest_block_is_decoded() {
    testing::the_largest_block_is_decoded(inactivating, Parameters::K_MAX, 1, 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever comes is taken or refused: symbols of any length with any id.
    #[test]
    fn nothing_that_arrives_panics(
        k in 0..80_u32,
        symbol_bytes in 0..20_usize,
        symbols in testing::arrivals(),
        small in any::<bool>(),
    ) {
        let is_incomplete =
            |error: &Error| matches!(error, Error::Refused(Refusal::Incomplete { .. }));
        testing::nothing_that_arrives_panics(
            inactivating,
            is_incomplete,
            k,
            symbol_bytes,
            symbols,
            small,
        )?;
    }

    #[test]
    fn information_that_is_read_is_written_as_it_was(
        bytes in any::<[u8; 12]>(),
        low in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if low {
            // Small objects, of which more are possible ones.
            bytes[..7].fill(0);
            bytes[9] = 0;
            bytes[3] = 1;
        }
        if let Ok(oti) = Oti::from_bytes(bytes) {
            prop_assert_eq!(oti.to_bytes(), bytes);
            let is_sized =
                |block| oti.symbols(block).is_some_and(|k| Parameters::new(k).is_ok());
            prop_assert!((0..oti.blocks()).all(is_sized));
        }
    }
}

/// What a plan's words say, done as `kernels/replay.cu` does it: all slots of a symbol's byte, one
/// byte after the other.
fn replay(words: &[u32], symbols: &[u8], symbol_bytes: usize) -> Vec<Vec<u8>> {
    const NOTHING: u32 = u32::MAX;
    let [inputs, slots, loads, load_count, reload_count, rest @ ..] = words else {
        panic!("no plan")
    };
    let [
        forward,
        forward_count,
        backward,
        backward_count,
        walk,
        walk_count,
        rest @ ..,
    ] = rest
    else {
        panic!("no plan")
    };
    let [steps, step_count, last, powers, power_count, rest @ ..] = rest else {
        panic!("no plan")
    };
    let [sides, bound, free, rows, inverse, outputs, output_count, ..] = rest else {
        panic!("no plan")
    };
    let list = |at: &u32, count: u32| &words[*at as usize..][..count as usize];
    let byte =
        |at: &u32, index: u32| words[(at + index / 4) as usize].to_le_bytes()[index as usize % 4];
    assert_eq!(symbols.len(), *inputs as usize * symbol_bytes);
    let mut made = vec![vec![0; symbol_bytes]; *output_count as usize];
    for at in 0..symbol_bytes {
        let mut work = vec![0xA5_u8; *slots as usize];
        let load = |work: &mut [u8], count: u32| {
            let pairs = list(loads, 2 * count).chunks_exact(2);
            pairs.for_each(|pair| {
                work[pair[0] as usize] = symbols[pair[1] as usize * symbol_bytes + at]
            });
        };
        let add_up = |work: &mut [u8], terms: &[u32]| {
            let mut target = None;
            let mut sum = 0;
            for term in terms {
                let slot = (term & 0x3FFF_FFFF) as usize;
                if term >> 31 == 0 {
                    sum ^= work[slot];
                    continue;
                }
                if let Some(target) = target.replace(slot) {
                    work[target] = sum;
                }
                sum = if term >> 30 & 1 == 1 { work[slot] } else { 0 };
            }
            if let Some(target) = target {
                work[target] = sum;
            }
        };
        load(&mut work, *load_count);
        add_up(&mut work, list(forward, *forward_count));
        if *sides > 0 {
            let first = (bound + free) as usize;
            work[first..][..*sides as usize].fill(0);
            let mut running = 0;
            for step in list(steps, 3 * step_count).chunks_exact(3) {
                running = gf256::mul(2, running)
                    ^ if step[0] == NOTHING {
                        0
                    } else {
                        work[step[0] as usize]
                    };
                step[1..]
                    .iter()
                    .for_each(|target| work[*target as usize] ^= running);
            }
            running = gf256::mul(2, running)
                ^ if *last == NOTHING {
                    0
                } else {
                    work[*last as usize]
                };
            for target in list(powers, *power_count) {
                work[*target as usize] ^= running;
                running = gf256::mul(2, running);
            }
            add_up(&mut work, list(walk, *walk_count));
            for side in 0..*sides {
                let product = (0..*bound).fold(0, |sum, j| {
                    sum ^ gf256::mul(byte(rows, side * bound + j), work[j as usize])
                });
                work[first + side as usize] ^= product;
            }
            for one in 0..*free {
                let side = |side| {
                    gf256::mul(
                        byte(inverse, one * sides + side),
                        work[first + side as usize],
                    )
                };
                work[(bound + one) as usize] = (0..*sides).fold(0, |sum, index| sum ^ side(index));
            }
        }
        load(&mut work, *reload_count);
        add_up(&mut work, list(backward, *backward_count));
        made.iter_mut()
            .zip(list(outputs, *output_count))
            .for_each(|(out, slot)| out[at] = work[*slot as usize]);
    }
    made
}

#[test]
fn a_plan_as_words_makes_what_the_plan_makes() {
    const BYTES: usize = 3;
    let check = |plan: &Plan, symbols: &[u8], what: &str| {
        let mut expected = vec![vec![0; BYTES]; plan.outputs()];
        plan.apply(
            Kernels::detect(),
            symbols,
            &mut expected
                .iter_mut()
                .map(Vec::as_mut_slice)
                .collect::<Vec<_>>(),
        );
        let words = plan.words();
        assert!(replay(&words, symbols, BYTES) == expected, "{what}");
    };
    for (k, lost) in [(1, 1), (10, 3), (101, 1), (101, 10), (101, 101), (301, 240)] {
        let rng = &mut rng(u64::from(k + lost));
        let plan = EncodingPlan::new(k).unwrap();
        check(
            plan.plan(),
            &bytes(plan.plan().inputs() * BYTES, rng),
            &format!("encoding {k}"),
        );
        let lost_esis: BTreeSet<u32> = random_esis(lost as usize, k, rng).into_iter().collect();
        let esis: Vec<u32> = (0..k + lost + 2)
            .filter(|esi| !lost_esis.contains(esi))
            .collect();
        let plan = DecodingPlan::new(k, &esis).unwrap();
        check(
            plan.plan(),
            &bytes(plan.plan().inputs() * BYTES, rng),
            &format!("decoding {k} without {lost}"),
        );
        if k >= 10 {
            let plan = raptor10::EncodingPlan::new(k).unwrap();
            check(
                plan.plan(),
                &bytes(plan.plan().inputs() * BYTES, rng),
                &format!("encoding {k} with Raptor10"),
            );
            let esis: Vec<u32> = (0..k + lost + 20)
                .filter(|esi| !lost_esis.contains(esi))
                .collect();
            let plan = raptor10::DecodingPlan::new(k, &esis).unwrap();
            check(
                plan.plan(),
                &bytes(plan.plan().inputs() * BYTES, rng),
                &format!("decoding {k} with Raptor10 without {lost}"),
            );
        }
    }
}
