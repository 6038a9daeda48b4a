use proptest::prelude::*;
use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::tables::SYSTEMATIC;
use super::*;
use crate::raptor::testing::{self, bytes, failures, random_esis, rng, symbol};
use ncs_gf::Kernels;

/// A block's encoder.
fn encoder(source: &[u8], symbol_bytes: usize) -> Encoder {
    testing::encoder(source, symbol_bytes)
}

/// Both directions for a block of `k` symbols: the same repair symbols, next to the source and up
/// to the last id, and each decodes what the other has encoded, a fifth of the source being lost.
/// Both need as many symbols for it.
///
/// The other one cuts a block into symbols of unequal length unless they divide it: here they do.
/// Its ids have 32 bits.
fn compare(k: u32, symbol_bytes: usize, rng: &mut SmallRng) {
    let source = bytes(k as usize * symbol_bytes, rng);
    let ours = encoder(&source, symbol_bytes);
    let mut theirs = raptor_code::SourceBlockEncoder::new(&source, k as usize).unwrap();
    assert_eq!(theirs.nb_source_symbols(), k);
    let far = random_esis(24, ESI_END, rng);
    for esi in (0..2)
        .chain(k - 1..k + 24)
        .chain(far)
        .chain(65_518..ESI_END)
    {
        assert!(
            symbol(&ours, esi) == theirs.fountain(esi),
            "K = {k}, symbol {esi}"
        );
    }
    let mut kept: Vec<u32> = (0..k).filter(|_| rng.random_ratio(4, 5)).collect();
    kept.truncate(k as usize - 1);
    kept.shuffle(rng);
    let mut decoder = Decoder::new(k, symbol_bytes, Kernels::detect()).unwrap();
    let mut their_decoder = raptor_code::SourceBlockDecoder::new(k as usize);
    for esi in kept.into_iter().chain(k..ESI_END) {
        assert_eq!(decoder.push(esi, &theirs.fountain(esi)), Ok(Arrival::Kept));
        their_decoder.push_encoding_symbol(&symbol(&ours, esi), esi);
        let decoded = decoder.decode();
        assert_eq!(
            decoded.is_ok(),
            their_decoder.fully_specified(),
            "K = {k}: {} symbols",
            decoder.received().len()
        );
        if let Ok(decoded) = decoded {
            assert!(decoded == source, "K = {k}: ours from theirs");
            break;
        }
    }
    assert!(
        their_decoder.decode(source.len()).as_ref() == Some(&source),
        "K = {k}: theirs from ours"
    );
}

#[test]
fn symbols_are_those_of_another_implementation() {
    let mut rng = rng(1);
    for k in (4..40).chain([
        63, 64, 65, 101, 127, 200, 255, 256, 500, 511, 777, 1002, 1500, 2048,
    ]) {
        compare(k, 8, &mut rng);
    }
    for symbol_bytes in [1, 63, 64, 65, 255, 256, 257, 1000, 1280] {
        compare(40, symbol_bytes, &mut rng);
    }
}

/// What CI has no time for: every K up to 1024, then every 61st, and the largest.
#[test]
#[ignore = "a minute: cargo test --release --lib raptor10::tests::a_wide_sweep -- --ignored \
            --nocapture"]
fn a_wide_sweep_of_another_implementation() {
    let mut rng = rng(2);
    let mut count = 0;
    for k in (4..=1024)
        .chain((1025..8192).step_by(61))
        .chain([8191, 8192])
    {
        compare(k, 4, &mut rng);
        count += 1;
        if k % 64 == 0 || k > 1024 {
            println!("K = {k}: both directions agree, as for {count} numbers so far");
        }
    }
}

/// The other implementation has the same table, so that it is right is a matter of its hash, and of
/// what it is for: with each index the source symbols make a regular system.
#[test]
fn tables_are_those_of_the_rfc() {
    let mut hasher = blake3::Hasher::new();
    SYSTEMATIC
        .iter()
        .for_each(|j| _ = hasher.update(&j.to_be_bytes()));
    assert_eq!(
        hasher.finalize().to_hex()[..32],
        *"f1753ea2bf50b45958a74dda697c7158"
    );
    for k in (4..400).chain([1002, 2003, 8192]) {
        assert_eq!(deficit(k, &(0..k).collect::<Vec<_>>()), Ok(0), "K = {k}");
    }
}

#[test]
#[ignore = "a minute: cargo test --release --lib every_index -- --ignored"]
fn every_index_makes_a_regular_system() {
    for k in Parameters::K_MIN..=Parameters::K_MAX {
        assert_eq!(deficit(k, &(0..k).collect::<Vec<_>>()), Ok(0), "K = {k}");
    }
}

/// Numbers and triples as a third implementation, in Go, has them in its tests.
#[test]
fn known_parameters_and_triples() {
    for (k, l, s, h) in [
        (10, 23, 7, 6),
        (14, 28, 7, 7),
        (500, 553, 41, 12),
        (5000, 5166, 151, 15),
    ] {
        let parameters = Parameters::new(k).unwrap();
        assert_eq!((parameters.l, parameters.s, parameters.h), (l, s, h));
    }
    for (k, x, triple) in [
        (4, 0, [10, 13, 1]),
        (4, 4, [4, 6, 2]),
        (500, 514, [2, 107, 279]),
        (1000, 52_918, [3, 1070, 121]),
    ] {
        let Triple { d, a, b } = Parameters::new(k).unwrap().triple(x);
        assert_eq!([d, a, b], triple);
    }
    assert!((4..=8192).all(|k| Parameters::new(k).unwrap().h <= 16));
}

/// The RFC's text step by step, on the intermediate symbols that the encoder has: LDPC and Half
/// symbols as section 5.4.2.3 makes them of the first K, and encoding symbols as section 5.4.4.3
/// makes them.
#[test]
fn intermediate_symbols_are_those_of_the_rfc() {
    for k in [4, 10, 57, 101, 1002, 8192_usize] {
        let source = bytes(k, &mut rng(3));
        let encoder = encoder(&source, 1);
        let Parameters {
            s, h, l, l_prime, ..
        } = *encoder.parameters();
        let (s, h, l, l_prime) = (s as usize, h as usize, l as usize, l_prime as usize);
        let c: Vec<u8> = (0..u32::try_from(l).unwrap())
            .map(|column| {
                let mut symbol = [0];
                encoder.sum(&[column], &mut symbol);
                symbol[0]
            })
            .collect();
        let mut ldpc = vec![0; s];
        for (i, symbol) in c[..k].iter().enumerate() {
            let a = 1 + (i / s) % (s - 1);
            let mut b = i % s;
            ldpc[b] ^= symbol;
            b = (b + a) % s;
            ldpc[b] ^= symbol;
            b = (b + a) % s;
            ldpc[b] ^= symbol;
        }
        assert!(ldpc == c[k..k + s], "K = {k}");
        let gray: Vec<usize> = (0..1 << h)
            .map(|i| i ^ (i / 2))
            .filter(|g: &usize| g.count_ones() as usize == h.div_ceil(2))
            .collect();
        for (row, symbol) in c[k + s..].iter().enumerate() {
            let sum = (0..k + s)
                .filter(|&j| gray[j] >> row & 1 == 1)
                .fold(0, |sum, j| sum ^ c[j]);
            assert_eq!(sum, *symbol, "K = {k}, Half symbol {row}");
        }
        for esi in (0..k).chain([k, k + 1, 40_000, 65_535]) {
            let Triple { d, a, b } = encoder.parameters().triple(u32::try_from(esi).unwrap());
            let (a, mut b) = (a as usize, b as usize);
            while b >= l {
                b = (b + a) % l_prime;
            }
            let mut result = c[b];
            for _ in 1..=(d as usize - 1).min(l - 1) {
                b = (b + a) % l_prime;
                while b >= l {
                    b = (b + a) % l_prime;
                }
                result ^= c[b];
            }
            let expected = source
                .get(esi)
                .copied()
                .unwrap_or_else(|| symbol(&encoder, u32::try_from(esi).unwrap())[0]);
            assert_eq!(result, expected, "K = {k}, symbol {esi}");
        }
    }
}

#[test]
fn repair_symbols_alone_suffice() {
    testing::repair_symbols_alone_suffice(
        Decoder::new,
        &[(4, 40), (10, 8), (64, 300), (1000, 16)],
        40,
        |_| 60_000,
    );
}

#[test]
fn every_instruction_set_makes_the_same() {
    testing::every_instruction_set_makes_the_same(Decoder::new);
}

/// Symbols with the same ids in the same order are decoded by the plan that others were decoded by.
#[test]
fn a_plan_serves_every_block() {
    testing::a_plan_serves_every_block(Decoder::new, 20);
}

/// When so many symbols are held that no more are taken, and they do not suffice, those that depend
/// on others make room.
#[test]
fn a_full_decoder_makes_room() {
    testing::a_full_decoder_makes_room(Decoder::new);
}

/// 0.85 x 0.567^m for m symbols more than K is what is known of the code. It is for K of a few
/// hundred and more.
#[test]
fn failures_are_as_rare_as_is_known() {
    let mut rng = rng(9);
    for (k, trials) in [(250, 600), (1002, 100)] {
        for (more, expected) in [(0, 0.85), (2, 0.273), (5, 0.05), (10, 0.003)] {
            let count = failures::<Parameters>(k, more, 65_521, trials, &mut rng) as f64;
            println!("K = {k}, {more} more: {count} of {trials}");
            let mean = expected * trials as f64;
            assert!(
                (count - mean).abs() <= 5.0 * mean.sqrt() + 2.0,
                "K = {k}, {more} more: {count} failures of {trials}"
            );
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    testing::what_does_not_fit_is_refused(Decoder::new);
    let kernels = Kernels::detect();
    for k in [0, 3, 8193, u32::MAX] {
        assert_eq!(Parameters::new(k), Err(Error::Symbols { k }));
        assert_eq!(
            Decoder::new(k, 8, kernels).unwrap_err(),
            Error::Symbols { k }
        );
        assert_eq!(EncodingPlan::new(k), Err(Error::Symbols { k }));
        assert_eq!(deficit(k, &[]), Err(Error::Symbols { k }));
    }
    let plan = EncodingPlan::new(10).unwrap();
    assert_eq!(
        Encoder::new(vec![0; 24], 8, &plan, kernels).unwrap_err(),
        Error::Symbols { k: 3 }
    );
}

/// The largest block: a quarter of it lost.
#[test]
fn the_largest_block_is_decoded() {
    testing::the_largest_block_is_decoded(Decoder::new, Parameters::K_MAX, 3, 30);
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
            Decoder::new,
            is_incomplete,
            k,
            symbol_bytes,
            symbols,
            small,
        )?;
    }
}
