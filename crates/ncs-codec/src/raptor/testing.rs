//! What tests of both codes have in common: the tests themselves, for either code.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::{Arrival, Code, Decoder, DecodingPlan, Encoder, EncodingPlan, Refusal, deficit};
use ncs_gf::Kernels;

pub(crate) fn rng(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}

pub(crate) fn bytes(length: usize, rng: &mut SmallRng) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// So many ids, none twice.
pub(crate) fn random_esis(count: usize, end: u32, rng: &mut SmallRng) -> Vec<u32> {
    let mut esis = BTreeSet::new();
    std::iter::repeat_with(|| rng.random_range(0..end))
        .filter(|esi| esis.insert(*esi))
        .take(count)
        .collect()
}

/// A block's encoder.
pub(crate) fn encoder<C: Code>(source: &[u8], symbol_bytes: usize) -> Encoder<C> {
    let k = u32::try_from(source.len() / symbol_bytes).unwrap();
    Encoder::new(
        source.to_vec(),
        symbol_bytes,
        &EncodingPlan::new(k).unwrap(),
        Kernels::detect(),
    )
    .unwrap()
}

pub(crate) fn symbol<C: Code>(encoder: &Encoder<C>, esi: u32) -> Vec<u8> {
    let mut symbol = vec![0; encoder.symbol_bytes()];
    encoder.symbol(esi, &mut symbol).unwrap();
    symbol
}

/// Makes a decoder for K symbols of so many bytes, by inactivation.
pub(crate) type MakeDecoder<C> = fn(u32, usize, Kernels) -> Result<Decoder<C>, <C as Code>::Error>;

/// Repair symbols alone, `more` than K, with ids below K + `end`.
pub(crate) fn repair_symbols_alone_suffice<C: Code>(
    decoder: MakeDecoder<C>,
    shapes: &[(u32, usize)],
    more: usize,
    end: impl Fn(u32) -> u32,
) {
    let mut rng = rng(5);
    for &(k, symbol_bytes) in shapes {
        let source = bytes(k as usize * symbol_bytes, &mut rng);
        let encoder = encoder::<C>(&source, symbol_bytes);
        let mut decoder = decoder(k, symbol_bytes, Kernels::detect()).unwrap();
        for esi in random_esis(k as usize + more, end(k), &mut rng) {
            decoder.push(k + esi, &symbol(&encoder, k + esi)).unwrap();
        }
        assert!(decoder.decode().as_ref() == Ok(&source), "K = {k}");
    }
}

pub(crate) fn every_instruction_set_makes_the_same<C: Code>(decoder: MakeDecoder<C>) {
    let (mut rng, k, symbol_bytes) = (rng(6), 130_u32, 410);
    let source = bytes(k as usize * symbol_bytes, &mut rng);
    let plan = EncodingPlan::<C>::new(k).unwrap();
    let esis: Vec<u32> = (k / 3..2 * k).collect();
    let expected: Vec<Vec<u8>> = esis
        .iter()
        .map(|&esi| symbol(&encoder::<C>(&source, symbol_bytes), esi))
        .collect();
    for kernels in Kernels::available() {
        let encoder = Encoder::new(source.clone(), symbol_bytes, &plan, kernels).unwrap();
        assert!(
            esis.iter()
                .zip(&expected)
                .all(|(&esi, expected)| symbol(&encoder, esi) == *expected),
            "{kernels:?}"
        );
        let mut decoder = decoder(k, symbol_bytes, kernels).unwrap();
        esis.iter()
            .zip(&expected)
            .for_each(|(&esi, symbol)| _ = decoder.push(esi, symbol).unwrap());
        assert!(decoder.decode().as_ref() == Ok(&source), "{kernels:?}");
    }
}

/// Symbols with the same ids in the same order are decoded by the plan that others were decoded by.
pub(crate) fn a_plan_serves_every_block<C: Code>(decoder: MakeDecoder<C>, more: u32) {
    let (mut rng, k) = (rng(7), 77);
    let esis: Vec<u32> = (5..k + 5 + more).rev().collect();
    let plan = DecodingPlan::<C>::new(k, &esis).unwrap();
    assert_eq!(plan.missing(), [0, 1, 2, 3, 4]);
    assert_eq!(
        (plan.plan().inputs(), plan.plan().outputs()),
        (esis.len(), 5)
    );
    for _ in 0..3 {
        let source = bytes(k as usize * 32, &mut rng);
        let encoder = encoder::<C>(&source, 32);
        let mut decoder = decoder(k, 32, Kernels::detect()).unwrap();
        for &esi in &esis {
            assert_eq!(decoder.decode_by(&plan), Err(Refusal::Mismatch.into()));
            decoder.push(esi, &symbol(&encoder, esi)).unwrap();
        }
        assert!(
            decoder.decode_by(&plan).as_ref() == Ok(&source)
                && decoder.decode().as_ref() == Ok(&source)
        );
    }
}

/// When so many symbols are held that no more are taken, and they do not suffice, those that depend
/// on others make room.
pub(crate) fn a_full_decoder_makes_room<C: Code>(decoder: MakeDecoder<C>) {
    let (mut rng, k) = (rng(8), 10);
    let source = bytes(k as usize * 8, &mut rng);
    let encoder = encoder::<C>(&source, 8);
    // Repair symbols that have a rank of nine at most, one after the other.
    let (mut low, mut next) = (Vec::new(), k);
    while low.len() < k as usize + Decoder::<C>::SPARE {
        low.push(next);
        let is_low = low.len() < k as usize || deficit::<C>(k, &low).unwrap() > 0;
        if !is_low {
            low.pop();
        }
        next += 1;
    }
    let mut decoder = decoder(k, 8, Kernels::detect()).unwrap();
    for &esi in &low {
        assert_eq!(decoder.push(esi, &symbol(&encoder, esi)), Ok(Arrival::Kept));
        assert_eq!(
            decoder.push(esi, &symbol(&encoder, esi)),
            Ok(Arrival::Duplicate)
        );
    }
    assert_eq!(
        decoder.push(next, &symbol(&encoder, next)),
        Ok(Arrival::Full)
    );
    assert_eq!(
        decoder.decode(),
        Err(Refusal::Incomplete { missing: 1 }.into())
    );
    assert!(decoder.received().len() < k as usize + Decoder::<C>::SPARE);
    for esi in 0..k {
        assert_eq!(decoder.push(esi, &symbol(&encoder, esi)), Ok(Arrival::Kept));
    }
    assert!(decoder.decode().as_ref() == Ok(&source));
}

/// Failures of so many trials to solve K' + `more` symbols with random ids below `end`, on rank
/// alone.
pub(crate) fn failures<C: Code>(
    k: u32,
    more: usize,
    end: u32,
    trials: usize,
    rng: &mut SmallRng,
) -> usize {
    (0..trials)
        .filter(|_| deficit::<C>(k, &random_esis(k as usize + more, end, rng)).unwrap() > 0)
        .count()
}

pub(crate) fn what_does_not_fit_is_refused<C: Code>(decoder: MakeDecoder<C>) {
    let (kernels, end) = (Kernels::detect(), C::ESI_END);
    let wrong_esi = |esi| -> C::Error { Refusal::Esi { esi }.into() };
    let wrong_length =
        |length, expected| -> C::Error { Refusal::Length { length, expected }.into() };
    let mut ten = decoder(10, 8, kernels).unwrap();
    assert_eq!(ten.push(end, &[0; 8]), Err(wrong_esi(end)));
    assert_eq!(ten.push(0, &[0; 7]), Err(wrong_length(7, 8)));
    assert_eq!(
        ten.decode(),
        Err(Refusal::Incomplete { missing: 10 }.into())
    );
    assert!(decoder(10, 0, kernels).is_err());
    let plan = EncodingPlan::<C>::new(10).unwrap();
    assert_eq!(
        Encoder::new(vec![0; 81], 8, &plan, kernels).unwrap_err(),
        wrong_length(81, 80)
    );
    assert_eq!(
        Encoder::new(vec![0; 88], 8, &plan, kernels).unwrap_err(),
        C::Error::from(Refusal::Mismatch)
    );
    assert!(Encoder::new(vec![0; 80], 0, &plan, kernels).is_err());
    let encoder = Encoder::new(vec![0; 80], 8, &plan, kernels).unwrap();
    assert_eq!(encoder.symbol(end, &mut [0; 8]), Err(wrong_esi(end)));
    assert_eq!(DecodingPlan::<C>::new(10, &[1, 2, 1]), Err(wrong_esi(1)));
    assert_eq!(deficit::<C>(10, &[end]), Err(wrong_esi(end)));
}

/// The largest block: a quarter of it lost, `more` symbols beyond as many.
pub(crate) fn the_largest_block_is_decoded<C: Code>(
    decoder: MakeDecoder<C>,
    k: u32,
    symbol_bytes: usize,
    more: u32,
) {
    let mut rng = rng(11);
    let source = bytes(k as usize * symbol_bytes, &mut rng);
    let encoder = encoder::<C>(&source, symbol_bytes);
    let mut decoder = decoder(k, symbol_bytes, Kernels::detect()).unwrap();
    for esi in (0..k)
        .filter(|esi| esi % 4 != 0)
        .chain(k + 1000..k + 1000 + k.div_ceil(4) + more)
    {
        decoder.push(esi, &symbol(&encoder, esi)).unwrap();
    }
    assert!(decoder.decode().as_ref() == Ok(&source));
}

/// Symbols that may arrive: of any length, with any id.
pub(crate) fn arrivals() -> impl Strategy<Value = Vec<(u32, usize, u8)>> {
    proptest::collection::vec((any::<u32>(), 0..20_usize, any::<u8>()), 0..200)
}

/// Whatever comes is taken or refused. Most symbols with `small` ids fit.
pub(crate) fn nothing_that_arrives_panics<C: Code>(
    decoder: MakeDecoder<C>,
    is_incomplete: fn(&C::Error) -> bool,
    k: u32,
    symbol_bytes: usize,
    symbols: Vec<(u32, usize, u8)>,
    small: bool,
) -> Result<(), TestCaseError> {
    let Ok(mut decoder) = decoder(k, symbol_bytes, Kernels::detect()) else {
        return Ok(());
    };
    let mut taken = BTreeSet::new();
    for (esi, length, byte) in symbols {
        let (esi, length) = if small {
            (esi % 300, symbol_bytes)
        } else {
            (esi, length)
        };
        if decoder.push(esi, &vec![byte; length]) == Ok(Arrival::Kept) {
            prop_assert!(taken.insert(esi));
            if decoder.is_ready() {
                match decoder.decode() {
                    Ok(block) => prop_assert_eq!(block.len(), k as usize * symbol_bytes),
                    Err(error) => prop_assert!(is_incomplete(&error), "{error:?}"),
                }
            }
        }
        prop_assert!(decoder.received().len() <= k as usize + Decoder::<C>::SPARE);
    }
    Ok(())
}
