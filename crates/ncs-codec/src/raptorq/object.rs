//! Whole objects: transmission information, source blocks and sub-blocks (RFC 6330, sections 3.3
//! and 4.4).

use std::ops::Range;

use super::decoder::{Decoder, Method};
use super::encoder::{Encoder, EncodingPlan};
use super::error::Error;
use super::parameters::Parameters;
use crate::block::ESI_END;
use crate::raptor::{Arrival, Refusal};
use ncs_gf::Kernels;

/// `Partition[I, J]` (section 4.4.1.2): I items in J parts whose sizes differ by at most one, the
/// longer ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    /// IL, the items of a long part.
    pub long: u64,
    /// IS, the items of a short part.
    pub short: u64,
    /// JL, the long parts.
    pub longs: u64,
    /// JS, the short parts.
    pub shorts: u64,
}

impl Partition {
    /// The partition of `items` into `parts`.
    ///
    /// # Panics
    /// If there are no parts.
    pub fn new(items: u64, parts: u64) -> Self {
        let (short, longs) = (items / parts, items % parts);
        Self {
            long: items.div_ceil(parts),
            short,
            longs,
            shorts: parts - longs,
        }
    }

    /// The items of part `part`.
    pub fn items(&self, part: u64) -> Range<u64> {
        let start = |part: u64| {
            part.min(self.longs) * self.long + part.saturating_sub(self.longs) * self.short
        };
        start(part)..start(part + 1)
    }
}

/// The symbol that a packet carries (section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PayloadId {
    /// SBN, the source block.
    pub block: u8,
    esi: u32,
}

impl PayloadId {
    /// The id of symbol `esi` of source block `block`.
    pub fn new(block: u8, esi: u32) -> Result<Self, Error> {
        if esi >= ESI_END {
            Err(Refusal::Esi { esi }.into())
        } else {
            Ok(Self { block, esi })
        }
    }

    /// The encoding symbol id, below 2^24.
    pub fn esi(&self) -> u32 {
        self.esi
    }

    /// The encoding in front of a symbol.
    pub fn to_bytes(self) -> [u8; 4] {
        let [_, high, middle, low] = self.esi.to_be_bytes();
        [self.block, high, middle, low]
    }

    /// Decodes an id; every four bytes are one.
    pub fn from_bytes([block, high, middle, low]: [u8; 4]) -> Self {
        Self {
            block,
            esi: u32::from_be_bytes([0, high, middle, low]),
        }
    }
}

/// FEC object transmission information (section 3.3): the facts about an object that a receiver
/// needs before the first symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Oti {
    length: u64,
    symbol_bytes: u16,
    blocks: u8,
    sub_blocks: u16,
    alignment: u8,
}

impl Oti {
    /// Maximum of F: 255 blocks of the largest K in symbols of 65,535 bytes.
    pub const LENGTH_MAX: u64 = 255 * 56_403 * 65_535;

    /// The information for an object of `length` bytes (F, one to [`LENGTH_MAX`](Self::LENGTH_MAX))
    /// in `blocks` source blocks (Z), each in `sub_blocks` (N), with symbols of `symbol_bytes` (T),
    /// of which each part is a multiple of `alignment` (Al).
    ///
    /// No block is empty, none has more than [`Parameters::K_MAX`] symbols, and no sub-block is
    /// narrower than `alignment`.
    pub fn new(
        length: u64,
        symbol_bytes: u16,
        blocks: u8,
        sub_blocks: u16,
        alignment: u8,
    ) -> Result<Self, Error> {
        let refused = |field, value| Err(Error::Oti { field, value });
        if length == 0 || length > Self::LENGTH_MAX {
            return refused("the transfer length", length);
        }
        if alignment == 0 {
            return refused("the alignment", 0);
        }
        if symbol_bytes == 0 || !symbol_bytes.is_multiple_of(alignment.into()) {
            return refused("the symbol size", symbol_bytes.into());
        }
        if sub_blocks == 0 || sub_blocks > symbol_bytes / u16::from(alignment) {
            return refused("the number of sub-blocks", sub_blocks.into());
        }
        let symbols = length.div_ceil(symbol_bytes.into());
        if blocks == 0
            || u64::from(blocks) > symbols
            || symbols.div_ceil(blocks.into()) > Parameters::K_MAX.into()
        {
            return refused("the number of source blocks", blocks.into());
        }
        Ok(Self {
            length,
            symbol_bytes,
            blocks,
            sub_blocks,
            alignment,
        })
    }

    /// Derives the information by the rules of section 4.3, for packets with `payload_bytes` (P')
    /// for a symbol: the fewest blocks, and sub-blocks that each fit into `memory_bytes` (WS), with
    /// parts of symbols of `part_min` (SS) times `alignment` or more.
    pub fn derive(
        length: u64,
        payload_bytes: u16,
        alignment: u8,
        part_min: u16,
        memory_bytes: u64,
    ) -> Result<Self, Error> {
        let refused = |field, value| Err(Error::Oti { field, value });
        if alignment == 0 || part_min == 0 {
            return refused("the alignment", alignment.into());
        }
        let symbol_bytes = payload_bytes - payload_bytes % u16::from(alignment);
        let parts = u64::from(symbol_bytes) / (u64::from(part_min) * u64::from(alignment));
        if parts == 0 {
            return refused("the symbol size", symbol_bytes.into());
        }
        let symbols = length.div_ceil(symbol_bytes.into());
        // KL(n): the largest K' whose sub-blocks fit if there are n of them.
        let largest = |parts: u64| {
            let part_bytes = u64::from(alignment)
                * u64::from(symbol_bytes).div_ceil(u64::from(alignment) * parts);
            Parameters::table()
                .map(u64::from)
                .take_while(|k| k * part_bytes <= memory_bytes)
                .last()
        };
        let Some(most) = largest(parts) else {
            return refused("the memory for a sub-block", memory_bytes);
        };
        let blocks = symbols.div_ceil(most);
        let sub_blocks = (1..=parts)
            .find(|&parts| largest(parts).is_some_and(|k| symbols.div_ceil(blocks.max(1)) <= k));
        let Ok(count) = u8::try_from(blocks) else {
            return refused("the number of source blocks", blocks);
        };
        let sub_blocks = sub_blocks
            .and_then(|parts| u16::try_from(parts).ok())
            .unwrap_or(1);
        Self::new(length, symbol_bytes, count, sub_blocks, alignment)
    }

    /// F, the bytes of the object.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// T, the bytes of a symbol.
    pub fn symbol_bytes(&self) -> usize {
        self.symbol_bytes.into()
    }

    /// Z, the source blocks.
    pub fn blocks(&self) -> u8 {
        self.blocks
    }

    /// N, the sub-blocks of each.
    pub fn sub_blocks(&self) -> u16 {
        self.sub_blocks
    }

    /// Al, a divisor of the size of each part of a symbol.
    pub fn alignment(&self) -> u8 {
        self.alignment
    }

    /// K, the source symbols of a block; `None` if the object does not have the block.
    pub fn symbols(&self, block: u8) -> Option<u32> {
        let symbols = self.of_blocks().items(block.into());
        (block < self.blocks).then(|| {
            u32::try_from(symbols.end - symbols.start).expect("no block has more than K_MAX")
        })
    }

    /// The twelve bytes of the common and the scheme-specific part.
    pub fn to_bytes(&self) -> [u8; 12] {
        let [.., f0, f1, f2, f3, f4] = self.length.to_be_bytes();
        let ([t0, t1], [n0, n1]) = (
            self.symbol_bytes.to_be_bytes(),
            self.sub_blocks.to_be_bytes(),
        );
        [
            f0,
            f1,
            f2,
            f3,
            f4,
            0,
            t0,
            t1,
            self.blocks,
            n0,
            n1,
            self.alignment,
        ]
    }

    /// Decodes the information; refuses bytes that [`to_bytes`](Self::to_bytes) does not make.
    pub fn from_bytes(
        [
            f0,
            f1,
            f2,
            f3,
            f4,
            reserved,
            t0,
            t1,
            blocks,
            n0,
            n1,
            alignment,
        ]: [u8; 12],
    ) -> Result<Self, Error> {
        if reserved != 0 {
            return Err(Error::Oti {
                field: "the reserved byte",
                value: reserved.into(),
            });
        }
        let length = u64::from_be_bytes([0, 0, 0, f0, f1, f2, f3, f4]);
        Self::new(
            length,
            u16::from_be_bytes([t0, t1]),
            blocks,
            u16::from_be_bytes([n0, n1]),
            alignment,
        )
    }

    /// The symbols in source blocks.
    fn of_blocks(&self) -> Partition {
        Partition::new(
            self.length.div_ceil(self.symbol_bytes.into()),
            self.blocks.into(),
        )
    }

    /// Where in the object a block begins and ends, the last one with its padding.
    fn bytes_of(&self, block: u8) -> Range<u64> {
        let (symbols, bytes) = (
            self.of_blocks().items(block.into()),
            u64::from(self.symbol_bytes),
        );
        symbols.start * bytes..symbols.end * bytes
    }

    /// For each sub-block, which bytes of a symbol are its.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let alignment = u64::from(self.alignment);
        let partition = Partition::new(
            u64::from(self.symbol_bytes) / alignment,
            self.sub_blocks.into(),
        );
        let at =
            move |units: u64| usize::try_from(units * alignment).expect("a symbol fits in memory");
        (0..u64::from(self.sub_blocks)).map(move |part| {
            let units = partition.items(part);
            at(units.start)..at(units.end)
        })
    }

    /// For each part of each symbol of a block of `k`: where it is in the block as it is in the
    /// object, and in its symbols one behind the other.
    fn pieces(&self, k: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + use<> {
        let symbol_bytes = self.symbol_bytes();
        self.parts().flat_map(move |part| {
            (0..k).map(move |symbol| {
                let (of_object, of_symbols) = (
                    part.start * k + part.len() * symbol,
                    symbol * symbol_bytes + part.start,
                );
                (
                    of_object..of_object + part.len(),
                    of_symbols..of_symbols + part.len(),
                )
            })
        })
    }
}

/// Makes the encoding symbols of a whole object, and stores all its blocks.
#[derive(Debug)]
pub struct ObjectEncoder {
    oti: Oti,
    blocks: Vec<Encoder>,
}

impl ObjectEncoder {
    /// An encoder for the object, whose length must be that of `oti`.
    pub fn new(object: &[u8], oti: Oti, kernels: Kernels) -> Result<Self, Error> {
        if u64::try_from(object.len()).ok() != Some(oti.length) {
            let expected = usize::try_from(oti.length).unwrap_or(usize::MAX);
            return Err(Refusal::Length {
                length: object.len(),
                expected,
            }
            .into());
        }
        let mut plan: Option<EncodingPlan> = None;
        let mut blocks = Vec::with_capacity(oti.blocks.into());
        for block in 0..oti.blocks {
            let (k, bytes) = (
                oti.symbols(block).expect("the object has it"),
                oti.bytes_of(block),
            );
            let at = |offset: u64| {
                usize::try_from(offset).map_or(object.len(), |offset| offset.min(object.len()))
            };
            let symbols = source_symbols(&oti, k as usize, &object[at(bytes.start)..at(bytes.end)]);
            // Blocks differ by one symbol at most: their K' seldom do.
            let plan = match &mut plan {
                Some(plan) if plan.k_prime() == Parameters::new(k)?.k_prime => plan,
                place => place.insert(EncodingPlan::new(k)?),
            };
            blocks.push(Encoder::new(symbols, oti.symbol_bytes(), plan, kernels)?);
        }
        Ok(Self { oti, blocks })
    }

    /// The information that receivers need.
    pub fn oti(&self) -> &Oti {
        &self.oti
    }

    /// The encoder of a block, if the object has it.
    pub fn block(&self, block: u8) -> Option<&Encoder> {
        self.blocks.get(usize::from(block))
    }

    /// Writes a symbol of [`Oti::symbol_bytes`].
    ///
    /// # Panics
    /// If `out` is not as long as a symbol.
    pub fn symbol(&self, id: PayloadId, out: &mut [u8]) -> Result<(), Error> {
        let encoder = self.block(id.block).ok_or(Error::Block {
            block: id.block,
            blocks: self.oti.blocks,
        })?;
        encoder.symbol(id.esi, out)
    }
}

/// A block's source symbols, with zeros behind the end of the object.
fn source_symbols(oti: &Oti, k: usize, bytes: &[u8]) -> Vec<u8> {
    let mut symbols = bytes.to_vec();
    symbols.resize(k * oti.symbol_bytes(), 0);
    if oti.sub_blocks == 1 {
        return symbols;
    }
    let block = std::mem::replace(&mut symbols, vec![0; k * oti.symbol_bytes()]);
    oti.pieces(k)
        .for_each(|(of_object, of_symbols)| symbols[of_symbols].copy_from_slice(&block[of_object]));
    symbols
}

/// Collects the symbols of an object until all of its blocks can be decoded.
///
/// A block takes memory when its first symbol arrives.
#[derive(Debug)]
pub struct ObjectDecoder {
    oti: Oti,
    kernels: Kernels,
    blocks: Vec<State>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Empty,
    Collecting(Box<Decoder>),
    /// As it is in the object, padding included.
    Done(Vec<u8>),
}

impl ObjectDecoder {
    /// An empty decoder, with inactivation decoding.
    pub fn new(oti: Oti, kernels: Kernels) -> Self {
        Self {
            oti,
            kernels,
            blocks: (0..oti.blocks).map(|_| State::Empty).collect(),
        }
    }

    /// Stores a symbol, and decodes its block if there are enough. Symbols of a decoded block are
    /// duplicates.
    pub fn push(&mut self, id: PayloadId, symbol: &[u8]) -> Result<Arrival, Error> {
        let (oti, kernels) = (self.oti, self.kernels);
        let k = oti.symbols(id.block).ok_or(Error::Block {
            block: id.block,
            blocks: oti.blocks,
        })?;
        let state = &mut self.blocks[usize::from(id.block)];
        if let State::Empty = state {
            let decoder = Decoder::new(k, oti.symbol_bytes(), Method::Inactivation, kernels)?;
            *state = State::Collecting(Box::new(decoder));
        }
        let State::Collecting(decoder) = state else {
            return Ok(Arrival::Duplicate);
        };
        let arrival = decoder.push(id.esi, symbol)?;
        if arrival == Arrival::Kept
            && decoder.is_ready()
            && let Ok(symbols) = decoder.decode()
        {
            *state = State::Done(of_symbols(&oti, k as usize, symbols));
        }
        Ok(arrival)
    }

    /// The bytes of a block, without padding, if it has been decoded.
    pub fn block(&self, block: u8) -> Option<&[u8]> {
        let State::Done(bytes) = self.blocks.get(usize::from(block))? else {
            return None;
        };
        let place = self.oti.bytes_of(block);
        let length = place.end.min(self.oti.length) - place.start;
        usize::try_from(length).ok().map(|length| &bytes[..length])
    }

    /// The object, if all of its blocks have been decoded.
    pub fn object(&self) -> Option<Vec<u8>> {
        let blocks: Option<Vec<&[u8]>> = (0..self.oti.blocks)
            .map(|block| self.block(block))
            .collect();
        Some(blocks?.concat())
    }
}

/// A block as it is in the object.
fn of_symbols(oti: &Oti, k: usize, symbols: Vec<u8>) -> Vec<u8> {
    if oti.sub_blocks == 1 {
        return symbols;
    }
    let mut block = vec![0; symbols.len()];
    oti.pieces(k)
        .for_each(|(of_object, of_symbols)| block[of_object].copy_from_slice(&symbols[of_symbols]));
    block
}
