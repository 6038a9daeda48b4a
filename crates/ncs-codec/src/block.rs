//! Blocks of a generation in transit: the coding vector and the payload.

use bytes::Bytes;

pub use ncs_gf::gfq::{BYTES as ELEMENT_BYTES, Q_BYTES as Q};

/// The combination of a generation's n source blocks that a block is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Vector {
    /// Source block `index` itself (a *systematic* block): the unit vector. Its payload travels
    /// without padding.
    Source(u16),
    /// The dense row that every side draws from this seed, the segment id and the generation.
    Seed(u32),
    /// The n coefficients, one byte each: the only form that a recoder can send before it has
    /// decoded.
    Explicit(Bytes),
    /// The same, from a recoder that has not checked its inputs: a receiver that finds it wrong
    /// cannot blame the sender.
    Unverified(Bytes),
    /// The Reed-Solomon parity block with this number; the first is n, after the source blocks.
    Shard(u16),
    /// The RaptorQ repair symbol with this encoding symbol id; the first is n.
    Symbol(u32),
    /// n coefficients over GF(q), of 32 bits each, big-endian: a block coded from the
    /// source itself.
    Narrow(Bytes),
    /// n coefficients over GF(q), of [`ELEMENT_BYTES`] each, big-endian: a recoded block.
    Wide(Bytes),
}

impl Vector {
    /// The block with this number in a generation of `n` blocks: a source block, or a parity block
    /// after them.
    pub const fn numbered(number: u16, n: u16) -> Self {
        if number < n {
            Self::Source(number)
        } else {
            Self::Shard(number)
        }
    }

    /// The RaptorQ repair symbol for a counter, in a generation of `n` blocks. Consecutive counters
    /// give consecutive symbols.
    pub const fn repair(counter: u32, n: u16) -> Self {
        Self::Symbol(n as u32 + counter % (ESI_END - n as u32))
    }
}

/// Whether these bytes are elements of GF(q), each below q, so that every element has one
/// encoding.
pub fn are_elements(bytes: &[u8]) -> bool {
    let (elements, rest) = bytes.as_chunks::<ELEMENT_BYTES>();
    rest.is_empty() && elements.iter().all(|element| *element < Q)
}

/// Whether a coded payload consists of words below q: 32 bytes each, big-endian, followed by one
/// bit for each word, its 257th, the first in the lowest bit of the first byte. Bits without a word
/// are 0.
pub fn are_coded_words(payload: &[u8]) -> bool {
    // m words take 32 m bytes, and their bits as many bytes as make 8 of them each.
    let words = payload.len() * 8 / 257;
    let Some((low, top)) = payload.split_at_checked(words * 32) else {
        return false;
    };
    if top.len() != words.div_ceil(8) {
        return false;
    }
    let is_set = |index: usize| top[index / 8] >> (index % 8) & 1 == 1;
    // A word without its 257th bit is below q, as q has it.
    let (low, _) = low.as_chunks::<32>();
    low.iter()
        .enumerate()
        .all(|(index, word)| !is_set(index) || word[..] < Q[1..])
        && (words..top.len() * 8).all(|bit| !is_set(bit))
}

/// Encoding symbol ids of RaptorQ are below this: they have 24 bits on the wire (RFC 6330, section
/// 3.2).
pub const ESI_END: u32 = 1 << 24;

/// A coded or source block: its vector and its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The combination of source blocks.
    pub vector: Vector,
    /// `block_bytes` bytes. For [`Vector::Source`], the last block of a generation comes without
    /// padding.
    pub payload: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(words: &[(bool, [u8; 32])]) -> Vec<u8> {
        let mut out: Vec<u8> = words.iter().flat_map(|(_, low)| *low).collect();
        let mut top = vec![0; words.len().div_ceil(8)];
        words
            .iter()
            .enumerate()
            .for_each(|(index, (bit, _))| top[index / 8] |= u8::from(*bit) << (index % 8));
        out.extend(top);
        out
    }

    /// q - 1 + `more`, without its 257th bit.
    fn below_q(more: u8) -> [u8; 32] {
        let mut low: [u8; 32] = Q[1..].try_into().unwrap();
        low[31] = low[31] - 1 + more;
        low
    }

    #[test]
    fn elements_are_below_q() {
        let mut element = Q;
        assert!(!are_elements(&element) && !are_elements(&[0xff; 33]));
        element[32] -= 1;
        assert!(are_elements(&element) && are_elements(&[0; 66]) && are_elements(&[]));
        assert!(!are_elements(&element[1..]) && !are_elements(&[&element[..], &Q].concat()));
    }

    #[test]
    fn words_of_a_payload_are_below_q_and_have_no_bits_to_spare() {
        let zero = (false, [0; 32]);
        for words in 1..=33 {
            let mut many = vec![zero; words];
            assert!(are_coded_words(&payload(&many)), "{words}");
            // The largest without the bit is below q, and so is q - 1.
            many[words - 1] = (false, [0xff; 32]);
            assert!(are_coded_words(&payload(&many)), "{words}");
            many[words - 1] = (true, below_q(0));
            assert!(are_coded_words(&payload(&many)), "{words}");
            many[words - 1] = (true, below_q(1));
            assert!(!are_coded_words(&payload(&many)), "{words}: q itself");
            for unused in words % 8..8 {
                let mut bytes = payload(&vec![zero; words]);
                if words % 8 > 0 {
                    *bytes.last_mut().unwrap() |= 1 << unused;
                    assert!(!are_coded_words(&bytes), "{words}: bit {unused}");
                }
            }
            let bytes = payload(&vec![zero; words]);
            assert!(
                !are_coded_words(&bytes[1..]) && !are_coded_words(&[&bytes[..], &[0]].concat()),
                "{words}"
            );
        }
    }
}
