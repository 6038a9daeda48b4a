//! The layout of elements, rows, numbers and the field itself in a card's memory, as the kernels
//! read them.

use ncs_codec::hash::Group;
use ncs_gf::gfq::{self, Element, WORD_BYTES};
use ncs_gf::montgomery;

use super::super::dense;
use super::super::driver::Address;
use crate::abi;

/// Bytes from one row of elements to the next: words, their top bits, padded to a multiple of 16.
pub const fn row_pitch(words: usize) -> usize {
    (words * WORD_BYTES + words.div_ceil(8)).next_multiple_of(16)
}

/// Writes elements as a row: words, then their top bits.
pub fn write_row(elements: impl ExactSizeIterator<Item = Element>, row: &mut [u8]) {
    let (words, tops) = row.split_at_mut(elements.len() * WORD_BYTES);
    tops.fill(0);
    for (index, (element, word)) in elements
        .zip(words.as_chunks_mut::<WORD_BYTES>().0)
        .enumerate()
    {
        *word = element.low_word();
        tops[index / 8] |= u8::from(element.is_wide()) << (index % 8);
    }
}

/// Rows of `each` elements, [`row_pitch`] apart.
pub fn rows_of(elements: &[Element], each: usize) -> Vec<u8> {
    let pitch = row_pitch(each);
    let mut bytes = vec![0; elements.len() / each * pitch];
    for (row, elements) in bytes
        .chunks_exact_mut(pitch)
        .zip(elements.chunks_exact(each))
    {
        write_row(elements.iter().copied(), row);
    }
    bytes
}

/// The wire form of an element of a row of `words` elements.
pub(super) fn element_bytes(row: &[u8], words: usize, index: usize) -> [u8; gfq::BYTES] {
    let mut bytes = [0; gfq::BYTES];
    bytes[0] = row[words * WORD_BYTES + index / 8] >> (index % 8) & 1;
    bytes[1..].copy_from_slice(&row[index * WORD_BYTES..][..WORD_BYTES]);
    bytes
}

/// The field's constants as the kernels read them.
pub fn field() -> abi::GfqField {
    let doubled = |element: Element, times: usize| {
        (0..times).fold(element, |element, _| element.add(&element))
    };
    let one = doubled(Element::ONE, 32 * gfq::LIMBS_32);
    // Long division of 2^320 by q: 2^256 is below q. Each of the 64 further steps doubles, and
    // subtracts q if it fits.
    let (mut rest, mut ratio) = (doubled(Element::ONE, 256), 0_u64);
    for _ in 0..64 {
        let is_there = !montgomery::is_below(rest.limbs(), rest.neg().limbs());
        ratio = ratio << 1 | u64::from(is_there);
        rest = rest.add(&rest);
    }
    let [ratio_low, ratio_high] = halves(ratio);
    abi::GfqField {
        q: std::array::from_fn(|index| halves(gfq::Q[index / 2])[index % 2]),
        negated: halves(montgomery::negative_inverse(gfq::Q[0]))[0],
        one: one.limbs_32(),
        square: doubled(one, 32 * gfq::LIMBS_32).limbs_32(),
        ratio_low,
        ratio_high,
    }
}

/// A group's constants as the kernels read them.
pub fn group_of(group: Group) -> abi::Group {
    let p = group.modulus();
    let padded = |limbs: &[u64]| {
        std::array::from_fn(|index| {
            limbs
                .get(index / 2)
                .map_or(0, |&limb| halves(limb)[index % 2])
        })
    };
    abi::Group {
        p: padded(p),
        one: padded(&montgomery::power_of_two(64 * p.len(), p)),
        square: padded(&montgomery::power_of_two(128 * p.len(), p)),
        negated: halves(montgomery::negative_inverse(p[0]))[0],
        reserved: 0,
    }
}

/// Splits a limb, lower half first.
#[expect(clippy::cast_possible_truncation, reason = "halves are meant")]
pub(super) const fn halves(limb: u64) -> [u32; 2] {
    [limb as u32, (limb >> 32) as u32]
}

/// Numbers as kernels read them.
pub fn number_bytes(numbers: &[Box<[u64]>]) -> Vec<u8> {
    numbers
        .iter()
        .flatten()
        .flat_map(|limb| limb.to_le_bytes())
        .collect()
}

/// Allocates consecutive places in a card's memory.
pub(super) struct Places {
    start: Address,
    pub(super) bytes: usize,
}

impl Places {
    pub(super) fn at(start: Address) -> Self {
        Self { start, bytes: 0 }
    }

    pub(super) fn take(&mut self, bytes: usize) -> Address {
        let at = self.start + self.bytes as u64;
        self.bytes += bytes.next_multiple_of(PLACE_ALIGN);
        at
    }
}

/// Copies the first bytes of each row.
pub(super) fn copy_rows(from: &[u8], pitch: usize, to: &mut [u8], bytes: usize) {
    from.chunks_exact(pitch)
        .zip(to.chunks_exact_mut(bytes))
        .for_each(|(from, to)| to.copy_from_slice(&from[..bytes]));
}

/// Copies rows to places `pitch` bytes apart, with zeros behind each.
pub fn spaced<'a>(rows: impl ExactSizeIterator<Item = &'a [u8]>, pitch: usize) -> Vec<u8> {
    dense::spaced(rows.map(Some), pitch)
}

/// Weights as kernels read them: four limbs each, of which three are used.
pub fn weight_bytes(weights: &[u128]) -> Vec<u8> {
    weights
        .iter()
        .flat_map(|weight| weight.to_le_bytes())
        .collect()
}

pub(super) const PLACE_ALIGN: usize = 256;
