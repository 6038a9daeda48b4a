//! Sums of products over whole rows of words: eight words at a time with AVX-512 IFMA, otherwise
//! one by one.

use super::{Element, Factor, NarrowSum, Sum, WORD_BYTES, WeightedSum};
use crate::montgomery::Multiplier;
#[cfg(target_arch = "x86_64")]
use crate::simd::ifma::{self, Elements, Ifma};

/// An implementation of these sums.
#[derive(Debug, Clone, Copy)]
pub enum Dots {
    /// Eight words at a time.
    #[cfg(target_arch = "x86_64")]
    Eight(Ifma),
    /// In plain Rust.
    Plain,
}

/// Words of 32 bytes each, big-endian, and their top bits: one bit for each word, worth 2^256, the
/// first word's in the least significant bit of its byte. Missing bytes at the end of either are
/// zeros.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The words.
    pub low: &'a [u8],
    /// Their top bits.
    pub bits: &'a [u8],
}

impl<'a> Row<'a> {
    /// A row of `words` words, followed by their top bits.
    pub fn packed(bytes: &'a [u8], words: usize) -> Self {
        let (low, bits) = bytes.split_at(words * WORD_BYTES);
        Self { low, bits }
    }

    /// A row of words without top bits.
    pub fn plain(low: &'a [u8]) -> Self {
        Self { low, bits: &[] }
    }

    fn element(&self, index: usize) -> Element {
        let mut word = [0; WORD_BYTES];
        copy(self.low, index * WORD_BYTES, &mut word);
        let bits = self.bits.get(index / 8).copied().unwrap_or(0);
        Element::from_word_and_bit(&word, bits >> (index % 8) & 1 == 1)
            .expect("words that were checked")
    }
}

/// A row to be written: its words, and their top bits if it has room for them.
#[derive(Debug)]
pub struct RowMut<'a> {
    low: &'a mut [u8],
    bits: Option<&'a mut [u8]>,
    /// Whether a word had a top bit in a row without room for it.
    is_wide: bool,
}

impl<'a> RowMut<'a> {
    /// A row of `words` words, to be written with their top bits after them.
    pub fn packed(bytes: &'a mut [u8], words: usize) -> Self {
        let (low, bits) = bytes.split_at_mut(words * WORD_BYTES);
        bits.fill(0);
        Self {
            low,
            bits: Some(bits),
            is_wide: false,
        }
    }

    /// A row of words without top bits.
    pub fn plain(low: &'a mut [u8]) -> Self {
        Self {
            low,
            bits: None,
            is_wide: false,
        }
    }

    /// Whether a word did not fit 256 bits.
    pub fn is_wide(&self) -> bool {
        self.is_wide
    }

    fn words(&self) -> usize {
        self.low.len() / WORD_BYTES
    }

    fn put(&mut self, index: usize, word: &Element) {
        self.low[index * WORD_BYTES..][..WORD_BYTES].copy_from_slice(&word.low_word());
        self.put_bits(index / 8, u8::from(word.is_wide()) << (index % 8));
    }

    fn put_bits(&mut self, byte: usize, bits: u8) {
        match &mut self.bits {
            Some(all) => all[byte] |= bits,
            None => self.is_wide |= bits != 0,
        }
    }
}

/// Copies a row's bytes from `start` on; zeros after the row's end.
fn copy(from: &[u8], start: usize, to: &mut [u8]) {
    let there = from.get(start..).unwrap_or(&[]);
    let length = there.len().min(to.len());
    to[..length].copy_from_slice(&there[..length]);
}

impl From<Multiplier> for Dots {
    fn from(multiplier: Multiplier) -> Self {
        match multiplier {
            #[cfg(target_arch = "x86_64")]
            Multiplier::Ifma(ifma) => Self::Eight(ifma),
            _ => Self::Plain,
        }
    }
}

impl Dots {
    /// The fastest implementation on this processor.
    pub fn detect() -> Self {
        Multiplier::available()[0].into()
    }

    /// All implementations that this processor supports.
    #[cfg(test)]
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::Plain];
        if !matches!(Self::detect(), Self::Plain) {
            all.push(Self::detect());
        }
        all
    }

    /// Multiplies `factors`, as many a row as there are sources, by the sources, which are words of
    /// data.
    pub fn encode(self, factors: &[u32], sources: &[Row<'_>], outs: &mut [RowMut<'_>]) {
        let rows = factors.chunks_exact(sources.len());
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Eight(ifma) => {
                let factors: Vec<Vec<[u64; ROWS]>> = factors
                    .chunks(ROWS * sources.len())
                    .map(|rows| {
                        let factor = |row: usize, source: usize| {
                            rows.get(row * sources.len() + source).copied().unwrap_or(0)
                        };
                        (0..sources.len())
                            .map(|source| std::array::from_fn(|row| factor(row, source).into()))
                            .collect()
                    })
                    .collect();
                each_octet(ifma, sources, words(outs), |octet, sources| {
                    for (factors, outs) in factors.iter().zip(outs.chunks_mut(ROWS)) {
                        let sums = ifma.narrow(factors, sources);
                        outs.iter_mut()
                            .zip(sums)
                            .for_each(|(out, sum)| put(ifma, out, octet, &sum));
                    }
                });
            }
            Self::Plain => each_word(sources, words(outs), |index, sources| {
                for (row, out) in rows.clone().zip(outs.iter_mut()) {
                    let mut sum = NarrowSum::default();
                    row.iter()
                        .zip(sources)
                        .for_each(|(&factor, source)| sum.add(factor, source));
                    out.put(index, &sum.reduce());
                }
            }),
        }
    }

    /// Multiplies each row of factors by the sources, which may be any words.
    pub fn combine(self, factors: &Factors, sources: &[Row<'_>], outs: &mut [RowMut<'_>]) {
        match (self, factors) {
            #[cfg(target_arch = "x86_64")]
            (Self::Eight(ifma), Factors::Eight(factors)) => {
                each_octet(ifma, sources, words(outs), |octet, sources| {
                    for (factors, out) in factors.chunks_exact(sources.len()).zip(outs.iter_mut()) {
                        put(
                            ifma,
                            out,
                            octet,
                            &ifma.dot(&Elements::default(), factors, sources),
                        );
                    }
                });
            }
            (_, Factors::Plain(factors)) => each_word(sources, words(outs), |index, sources| {
                for (factors, out) in factors.chunks_exact(sources.len()).zip(outs.iter_mut()) {
                    out.put(index, &sum(factors, sources));
                }
            }),
            #[cfg(target_arch = "x86_64")]
            (Self::Plain, Factors::Eight(_)) => unreachable!("factors that were made for others"),
        }
    }

    /// Sums the sources' words, each times its source's weight of at most 104 bits.
    pub fn fold(self, weights: &[u128], sources: &[Row<'_>], words: usize) -> Vec<Element> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Eight(ifma) => {
                let mut all = vec![Element::ZERO; words];
                for (weights, sources) in
                    weights.chunks(SOURCES_MAX).zip(sources.chunks(SOURCES_MAX))
                {
                    // Row after row, as they lie in memory.
                    let mut sums = vec![ifma::Weighed::default(); words.div_ceil(8)];
                    for (&weight, source) in weights.iter().zip(sources) {
                        add_weighed(ifma, weight, source, words, &mut sums);
                    }
                    for (all, sum) in all.chunks_mut(8).zip(&sums) {
                        let sum = ifma.settle(sum);
                        all.iter_mut()
                            .enumerate()
                            .for_each(|(lane, all)| *all = all.add(&lane_of(&sum, lane)));
                    }
                }
                all.iter().map(|sum| RADIX.times(sum)).collect()
            }
            Self::Plain => {
                // Likewise row after row.
                let mut sums = vec![WeightedSum::default(); words];
                for (&weight, source) in weights.iter().zip(sources) {
                    sums.iter_mut()
                        .enumerate()
                        .for_each(|(index, sum)| sum.add(weight, &source.element(index)));
                }
                sums.into_iter().map(WeightedSum::reduce).collect()
            }
        }
    }
}

/// Factors in the form of the implementation that multiplies by them.
#[derive(Debug)]
pub enum Factors {
    /// Limbs of 52 bits, times 2^260.
    #[cfg(target_arch = "x86_64")]
    Eight(Vec<[u64; ifma::LIMBS]>),
    /// The form of the portable code.
    Plain(Vec<Factor>),
}

impl Factors {
    /// Converts elements to the form of `dots`.
    pub fn new(dots: Dots, elements: &[Element]) -> Self {
        match dots {
            #[cfg(target_arch = "x86_64")]
            Dots::Eight(_) => Self::Eight(
                elements
                    .iter()
                    .map(|element| ifma::limbs(RADIX.times(element).limbs()))
                    .collect(),
            ),
            Dots::Plain => Self::Plain(elements.iter().map(Element::factor).collect()),
        }
    }

    /// A range of the factors.
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Eight(factors) => Self::Eight(factors[range].to_vec()),
            Self::Plain(factors) => Self::Plain(factors[range].to_vec()),
        }
    }
}

fn sum(factors: &[Factor], sources: &[Element]) -> Element {
    let mut sum = Sum::default();
    factors
        .iter()
        .zip(sources)
        .for_each(|(factor, source)| sum.add(factor, source));
    sum.reduce()
}

fn words(outs: &[RowMut<'_>]) -> usize {
    outs.first().map_or(0, RowMut::words)
}

/// Calls `work` for each word of all sources.
fn each_word(sources: &[Row<'_>], words: usize, mut work: impl FnMut(usize, &[Element])) {
    let mut column = vec![Element::ZERO; sources.len()];
    for index in 0..words {
        column
            .iter_mut()
            .zip(sources)
            .for_each(|(word, source)| *word = source.element(index));
        work(index, &column);
    }
}

/// Calls `work` for each eight words of all sources.
#[cfg(target_arch = "x86_64")]
fn each_octet(
    ifma: Ifma,
    sources: &[Row<'_>],
    words: usize,
    mut work: impl FnMut(usize, &[Elements]),
) {
    let mut column = vec![Elements::default(); sources.len()];
    for octet in 0..words.div_ceil(8) {
        for (into, source) in column.iter_mut().zip(sources) {
            let bits = source.bits.get(octet).copied().unwrap_or(0);
            let whole = source
                .low
                .get(octet * ifma::WORDS_BYTES..)
                .and_then(|rest| rest.first_chunk());
            *into = match whole {
                Some(words) => ifma.unpack(words, bits),
                None => {
                    let mut words = [0; ifma::WORDS_BYTES];
                    copy(source.low, octet * ifma::WORDS_BYTES, &mut words);
                    ifma.unpack(&words, bits)
                }
            };
        }
        work(octet, &column);
    }
}

/// Adds a row's words, times its weight, to sums of eight each.
#[cfg(target_arch = "x86_64")]
fn add_weighed(
    ifma: Ifma,
    weight: u128,
    source: &Row<'_>,
    words: usize,
    sums: &mut [ifma::Weighed],
) {
    let weight = ifma::narrow_weight(weight);
    let (whole, _) = source.low.as_chunks::<{ ifma::WORDS_BYTES }>();
    let whole = &whole[..(words / 8).min(whole.len()).min(source.bits.len())];
    let (sums, rest) = sums.split_at_mut(whole.len());
    ifma.weigh(weight, whole, &source.bits[..whole.len()], sums);
    for (octet, sum) in (whole.len()..).zip(rest) {
        let mut words = [0; ifma::WORDS_BYTES];
        copy(source.low, octet * ifma::WORDS_BYTES, &mut words);
        let bits = source.bits.get(octet).copied().unwrap_or(0);
        ifma.weigh(weight, &[words], &[bits], std::slice::from_mut(sum));
    }
}

/// Writes eight words, or the rest of a row.
#[cfg(target_arch = "x86_64")]
fn put(ifma: Ifma, out: &mut RowMut<'_>, octet: usize, sums: &Elements) {
    let rest = &mut out.low[octet * ifma::WORDS_BYTES..];
    let bits = match rest.first_chunk_mut() {
        Some(words) => ifma.pack(sums, words),
        None => {
            let mut words = [0; ifma::WORDS_BYTES];
            let bits = ifma.pack(sums, &mut words);
            rest.copy_from_slice(&words[..rest.len()]);
            bits
        }
    };
    out.put_bits(octet, bits);
}

/// The element in a lane.
#[cfg(target_arch = "x86_64")]
pub(super) fn lane_of(elements: &Elements, lane: usize) -> Element {
    Element(ifma::whole(&std::array::from_fn(|limb| {
        elements[limb].0[lane]
    })))
}

/// 2^260, which is part of a factor of eight and missing from a sum of products with plain numbers.
#[cfg(target_arch = "x86_64")]
pub(super) const RADIX: Factor = Factor(Element(super::power_of_two(320 + ifma::RADIX_BITS)));
/// Sums that stay in registers at the same time.
#[cfg(target_arch = "x86_64")]
const ROWS: usize = 4;
/// Sources processed at a time.
#[cfg(target_arch = "x86_64")]
const SOURCES_MAX: usize = 1 << 10;
