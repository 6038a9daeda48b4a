//! Against another implementation of large numbers.

use std::num::NonZeroUsize;

use num_bigint::BigUint;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::dots::{Dots, Factors, Row, RowMut};
use super::*;

fn modulus() -> BigUint {
    BigUint::from_bytes_be(&Q_BYTES)
}

fn big(element: &Element) -> BigUint {
    BigUint::from_bytes_be(&element.to_bytes())
}

fn element(number: &BigUint) -> Element {
    let bytes = number.to_bytes_be();
    let mut all = [0; BYTES];
    all[BYTES - bytes.len()..].copy_from_slice(&bytes);
    Element::from_bytes(&all).expect("below q")
}

/// The ends of the field and of its limbs, and many of the rest.
fn samples(count: usize) -> Vec<Element> {
    let mut rng = SmallRng::seed_from_u64(1);
    let (one, q) = (BigUint::from(1_u8), modulus());
    let mut numbers: Vec<BigUint> = (0..=256)
        .step_by(16)
        .flat_map(|bit| [&one << bit, (&one << bit) - 1_u8])
        .collect();
    numbers.extend([
        &q - 1_u8,
        &q - 2_u8,
        &q >> 1_usize,
        (&q >> 1_usize) + 1_u8,
        (&one << 256_usize) + 1_u8,
    ]);
    numbers.extend([52_usize, 104, 156, 208].map(|bit| (&one << bit) - 1_u8));
    let mut elements: Vec<Element> = numbers.iter().map(element).collect();
    elements.extend((0..count).map(|_| Element::random(&mut rng)));
    elements
}

#[test]
fn does_what_large_numbers_do() {
    let (q, all) = (modulus(), samples(60));
    for a in &all {
        assert_eq!(element(&big(a)), *a);
        assert_eq!(Element::from_limbs_32(&a.limbs_32()), Some(*a));
        assert_eq!(Element::from_limbs(*a.limbs()), Some(*a));
        assert_eq!(
            Element::from_word_and_bit(&a.low_word(), a.is_wide()),
            Some(*a)
        );
        assert_eq!(a.factor().element(), *a);
        assert_eq!(a.add(&a.neg()), Element::ZERO);
        match a.inverse() {
            Some(inverse) => assert_eq!(big(a) * big(&inverse) % &q, BigUint::from(1_u8), "{a:?}"),
            None => assert_eq!(*a, Element::ZERO),
        }
        for b in &all {
            assert_eq!(big(&a.add(b)), (big(a) + big(b)) % &q, "{a:?} + {b:?}");
            assert_eq!(big(&a.sub(b)), (big(a) + &q - big(b)) % &q, "{a:?} - {b:?}");
            assert_eq!(big(&a.mul(b)), big(a) * big(b) % &q, "{a:?} {b:?}");
        }
    }
}

#[test]
fn numbers_from_q_on_are_refused() {
    let q = modulus();
    for above in [0_u32, 1, 77] {
        let bytes: [u8; BYTES] = (&q + above).to_bytes_be().try_into().expect("33 bytes");
        assert_eq!(Element::from_bytes(&bytes), None);
        assert_eq!(
            Element::from_word_and_bit(bytes[1..].try_into().expect("a word"), bytes[0] == 1),
            None
        );
    }
    assert_eq!(Element::from_bytes(&[0xff; BYTES]), None);
    assert_eq!(Element::from_limbs(Q), None);
    assert_eq!(Element::from_limbs_32(&[u32::MAX; LIMBS_32]), None);
    assert!(
        Element::from_bytes(&(&q - 1_u8).to_bytes_be().try_into().expect("33 bytes")).is_some()
    );
}

#[test]
fn sums_have_room_for_the_largest_terms() {
    let (q, top) = (modulus(), Element::ZERO.sub(&Element::ONE));
    // A factor is largest in its own form: q - 1 there.
    let factor = Factor(top);
    let (mut sum, mut narrow, mut weighted) =
        (Sum::default(), NarrowSum::default(), WeightedSum::default());
    let (word, weight) = (Element::from_word(&[0xff; WORD_BYTES]), (1_u128 << 104) - 1);
    for _ in 0..TERMS_MAX {
        sum.add(&factor, &top);
        narrow.add(u32::MAX, &word);
        weighted.add(weight, &top);
    }
    assert_eq!(
        big(&sum.reduce()),
        big(&factor.element()) * big(&top) * TERMS_MAX % &q
    );
    assert_eq!(
        big(&narrow.reduce()),
        big(&word) * u32::MAX * TERMS_MAX % &q
    );
    assert_eq!(big(&weighted.reduce()), big(&top) * weight * TERMS_MAX % &q);
}

#[test]
fn all_are_inverted_at_once_or_none() {
    let all: Vec<Element> = samples(40)
        .into_iter()
        .filter(|element| *element != Element::ZERO)
        .collect();
    let mut inverses = all.clone();
    assert!(invert_all(&mut inverses));
    all.iter()
        .zip(&inverses)
        .for_each(|(element, inverse)| assert_eq!(element.inverse(), Some(*inverse)));
    let with_zero = [Element::ONE, Element::ZERO];
    let mut same = with_zero;
    assert!(!invert_all(&mut same) && same == with_zero);
}

/// So many words as bytes, with their bits behind them.
fn packed(words: &[Element]) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(Element::low_word).collect();
    let bits = words.chunks(8).map(|words| {
        words
            .iter()
            .rev()
            .fold(0, |bits, word| bits << 1 | u8::from(word.is_wide()))
    });
    bytes.extend(bits);
    bytes
}

#[test]
fn rows_are_combined_as_by_the_definition_on_every_instruction_set() {
    let q = modulus();
    let (top, mut rng) = (Element::ZERO.sub(&Element::ONE), SmallRng::seed_from_u64(2));
    for (sources, words, is_top) in [
        (1, 1, false),
        (3, 7, false),
        (5, 8, true),
        (9, 17, false),
        (300, 3, true),
        (1024, 9, true),
    ] {
        let mut draw = || {
            if is_top {
                top
            } else {
                Element::random(&mut rng)
            }
        };
        let all: Vec<Vec<Element>> = (0..sources)
            .map(|_| (0..words).map(|_| draw()).collect())
            .collect();
        let factors: Vec<Element> = (0..5 * sources).map(|_| draw()).collect();
        let bytes: Vec<Vec<u8>> = all.iter().map(|words| packed(words)).collect();
        let rows: Vec<Row<'_>> = bytes
            .iter()
            .map(|bytes| Row::packed(bytes, words))
            .collect();
        let expected =
            |factors: &[BigUint], source: &dyn Fn(usize, usize) -> BigUint| -> Vec<Element> {
                let sum = |word| {
                    (0..sources)
                        .map(|index| &factors[index] * source(index, word))
                        .sum::<BigUint>()
                        % &q
                };
                (0..words).map(|word| element(&sum(word))).collect()
            };
        let whole = |index: usize, word: usize| big(&all[index][word]);
        for dots in Dots::available() {
            let mut outs = vec![vec![0xee; words * WORD_BYTES + words.div_ceil(8)]; 5];
            let mut places: Vec<RowMut<'_>> = outs
                .iter_mut()
                .map(|out| RowMut::packed(out, words))
                .collect();
            dots.combine(&Factors::new(dots, &factors), &rows, &mut places);
            for (factors, out) in factors.chunks(sources).zip(&outs) {
                let factors: Vec<BigUint> = factors.iter().map(big).collect();
                assert!(
                    *out == packed(&expected(&factors, &whole)),
                    "{sources} rows of {words} words, {dots:?}"
                );
            }

            let numbers: Vec<u32> = (0..5 * sources)
                .map(|_| if is_top { u32::MAX } else { rng.next_u32() })
                .collect();
            let plain: Vec<Row<'_>> = bytes
                .iter()
                .map(|bytes| Row::plain(&bytes[..words * WORD_BYTES]))
                .collect();
            let mut places: Vec<RowMut<'_>> = outs
                .iter_mut()
                .map(|out| RowMut::packed(out, words))
                .collect();
            dots.encode(&numbers, &plain, &mut places);
            let low =
                |index: usize, word: usize| BigUint::from_bytes_be(&all[index][word].low_word());
            for (numbers, out) in numbers.chunks(sources).zip(&outs) {
                let factors: Vec<BigUint> = numbers.iter().map(|&number| number.into()).collect();
                assert!(
                    *out == packed(&expected(&factors, &low)),
                    "{sources} blocks of {words} words, {dots:?}"
                );
            }

            let weights: Vec<u128> = (0..sources)
                .map(|_| {
                    if is_top {
                        (1 << 104) - 1
                    } else {
                        u128::from(rng.next_u64()) << 40 | u128::from(rng.next_u64() >> 24)
                    }
                })
                .collect();
            let factors: Vec<BigUint> = weights.iter().map(|&weight| weight.into()).collect();
            assert!(
                dots.fold(&weights, &rows, words) == expected(&factors, &whole),
                "{sources} weights, {dots:?}"
            );
        }
    }
}

#[test]
fn more_blocks_than_fit_a_sum_are_folded() {
    let top = Element::ZERO.sub(&Element::ONE);
    let bytes = packed(&[top; 9]);
    let (rows, weights) = (
        vec![Row::packed(&bytes, 9); 2500],
        vec![(1_u128 << 96) - 1; 2500],
    );
    let expected = element(&(big(&top) * weights[0] * 2500_u32 % modulus()));
    for dots in Dots::available() {
        assert_eq!(dots.fold(&weights, &rows, 9), [expected; 9], "{dots:?}");
    }
}

#[test]
fn what_is_missing_of_a_row_is_zeros_and_words_that_do_not_fit_are_told() {
    for dots in Dots::available() {
        let short = [0xff; WORD_BYTES * 9 + 5];
        let mut out = vec![0xee; 12 * WORD_BYTES];
        let mut outs = [RowMut::plain(&mut out)];
        dots.encode(&[1], &[Row::plain(&short)], &mut outs);
        assert!(!outs[0].is_wide());
        assert!(
            out[..short.len()] == short && out[short.len()..].iter().all(|&byte| byte == 0),
            "{dots:?}"
        );
        // 2^256 - 1 and one more.
        let mut one = [0; WORD_BYTES];
        one[WORD_BYTES - 1] = 1;
        let mut out = [0; WORD_BYTES];
        let mut outs = [RowMut::plain(&mut out)];
        dots.encode(
            &[1, 1],
            &[Row::plain(&[0xff; WORD_BYTES]), Row::plain(&one)],
            &mut outs,
        );
        assert!(outs[0].is_wide(), "{dots:?}");
    }
}

#[test]
fn a_matrix_times_its_inverse_is_the_unit_matrix() {
    let mut rng = SmallRng::seed_from_u64(3);
    let threads = |count| NonZeroUsize::new(count).expect("some");
    for order in [1, 2, 7, 8, 9, 16, 33, 70] {
        let mut matrix: Vec<Element> = (0..order * order)
            .map(|_| Element::random(&mut rng))
            .collect();
        // Zeros where pivots are looked for, in the first block of columns and in a later one.
        let is_zero = |row: usize, column: usize| {
            order > 1 && (row == column || (5 * row + 3 * column).is_multiple_of(7))
        };
        let places = (0..order).flat_map(|row| (0..order).map(move |column| (row, column)));
        places
            .filter(|&(row, column)| is_zero(row, column))
            .for_each(|(row, column)| matrix[row * order + column] = Element::ZERO);
        let bytes: Vec<Vec<u8>> = matrix.chunks(order).map(packed).collect();
        let rows: Vec<Row<'_>> = bytes
            .iter()
            .map(|bytes| Row::packed(bytes, order))
            .collect();
        for (dots, count) in Dots::available()
            .into_iter()
            .flat_map(|dots| [(dots, 1), (dots, 3)])
        {
            let Some(inverse) = matrix::invert(dots, order, &matrix, threads(count)) else {
                panic!("{order} is regular, {dots:?}")
            };
            let mut outs = vec![vec![0; order * WORD_BYTES + order.div_ceil(8)]; order];
            let mut places: Vec<RowMut<'_>> = outs
                .iter_mut()
                .map(|out| RowMut::packed(out, order))
                .collect();
            dots.combine(&inverse, &rows, &mut places);
            for (index, out) in outs.iter().enumerate() {
                let unit: Vec<Element> = (0..order)
                    .map(|column| u64::from(column == index).into())
                    .collect();
                assert!(*out == packed(&unit), "row {index} of {order}, {dots:?}");
            }
        }
        // A row that others make up, and a column of zeros.
        let mut singular = matrix.clone();
        for column in 0..order {
            singular[(order - 1) * order + column] = (0..order - 1)
                .fold(Element::ZERO, |sum, row| {
                    sum.add(&singular[row * order + column])
                });
        }
        let mut empty = matrix.clone();
        empty
            .chunks_mut(order)
            .for_each(|row| row[order / 2] = Element::ZERO);
        for dots in Dots::available() {
            assert!(
                matrix::invert(dots, order, &singular, threads(1)).is_none(),
                "{order}, {dots:?}"
            );
            assert!(
                matrix::invert(dots, order, &empty, threads(1)).is_none(),
                "{order}, {dots:?}"
            );
        }
    }
}
