//! The codes of encoding symbols, as block files have them: limits, shapes and ids.
//!
//! Raptor10 knows no source block of fewer than four symbols, but files end as they do. Such a
//! block is filled up with symbols of zeros. Both sides know these, so they are never written.

use std::fmt;
use std::ops::Range;

use ncs_codec::{raptor10, raptorq};
use ncs_proto::object::{Generation, Shape, ShapeError};

/// The codes of which block files have encoding symbols. The first ones of a source block are its
/// source symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fountain {
    /// RaptorQ (RFC 6330).
    RaptorQ,
    /// Raptor10 (RFC 5053).
    Raptor10,
}

impl Fountain {
    /// How many source symbols a source block may be allowed to have, at least and at most.
    pub(super) const fn n_max(self) -> (u32, u32) {
        match self {
            Self::RaptorQ => (1, raptorq::Parameters::K_MAX),
            Self::Raptor10 => (raptor10::Parameters::K_MIN, raptor10::Parameters::K_MAX),
        }
    }

    /// Source symbols of a source block at most.
    pub fn n_limit(self) -> u16 {
        u16::try_from(self.n_max().1).expect("source symbols of a block are counted in 16 bits")
    }

    /// Source blocks of a segment at most: their numbers have to fit into a FEC payload id.
    pub(super) const fn blocks_max(self) -> u32 {
        match self {
            Self::RaptorQ => 255,
            Self::Raptor10 => 65_535,
        }
    }

    /// What the ids are below that are written. With Raptor10 they repeat from 65,521 on; up to
    /// three of them may be padding.
    pub(super) const fn esi_end(self) -> u32 {
        match self {
            Self::RaptorQ => raptorq::ESI_END,
            Self::Raptor10 => 65_518,
        }
    }

    /// How a segment of `length` bytes is cut: into source blocks as `Partition` cuts objects.
    pub(super) fn shape(
        self,
        length: u64,
        symbol_bytes: u32,
        n_max: u16,
    ) -> Result<Shape, ShapeError> {
        let (least, most) = self.n_max();
        if !(least..=most).contains(&n_max.into()) {
            return Err(ShapeError::NMax(n_max));
        }
        let shape = Shape::wide(length, symbol_bytes, n_max)?;
        if symbol_bytes > u16::MAX.into() {
            return Err(ShapeError::BlockBytes(symbol_bytes));
        }
        // Too many source blocks for so few symbols in each.
        if shape.generations() > self.blocks_max() {
            Err(ShapeError::NMax(n_max))
        } else {
            Ok(shape)
        }
    }

    /// The symbols with which a source block is filled up.
    pub(super) fn padding(self, generation: &Generation) -> Range<u32> {
        let n = u32::from(generation.n);
        n..n.max(self.n_max().0)
    }

    /// Symbols that a plan for intermediate symbols is given, of k source symbols.
    pub(super) fn inputs(self, k: u32) -> u32 {
        match self {
            Self::RaptorQ => raptorq::Parameters::new(k).map_or(k, |parameters| parameters.k_prime),
            Self::Raptor10 => k,
        }
    }

    /// Intermediate symbols of k source symbols.
    fn intermediate(self, k: u32) -> u32 {
        match self {
            Self::RaptorQ => raptorq::Parameters::new(k).map_or(0, |parameters| parameters.l),
            Self::Raptor10 => raptor10::Parameters::new(k).map_or(0, |parameters| parameters.l),
        }
    }

    /// The room that source blocks of such shapes need.
    pub(super) fn room<'a>(self, shapes: impl Iterator<Item = &'a Shape>) -> Room {
        let (mut room, mut k_max) = (Room::default(), 1);
        for shape in shapes {
            room.blocks = room.blocks.max(shape.generations() as usize);
            // The first one is one of the largest.
            let Some(first) = shape.generation(0) else {
                continue;
            };
            (room.symbol_bytes, k_max) =
                (symbol_bytes(&first), k_max.max(self.padding(&first).end));
        }
        let count = |number: u32| number as usize;
        room.source = count(k_max);
        (room.inputs, room.intermediate) =
            (count(self.inputs(k_max)), count(self.intermediate(k_max)));
        room.received = room.source
            + count(if self == Self::RaptorQ {
                SPARE_RAPTORQ
            } else {
                SPARE_RAPTOR10
            });
        room
    }

    /// The ids of its symbols that are written, so many from `first` on.
    pub(super) fn esis(
        self,
        generation: &Generation,
        first: u32,
        count: u32,
    ) -> impl Iterator<Item = u32> + use<> {
        let padding = self.padding(generation);
        (first..)
            .filter(move |esi| !padding.contains(esi))
            .take(count as usize)
    }

    /// The FEC payload id of a symbol: the number of its source block, and its own.
    ///
    /// # Panics
    /// If one of them does not fit.
    pub(super) fn payload_id(self, generation: &Generation, esi: u32) -> [u8; 4] {
        match self {
            Self::RaptorQ => {
                let block = u8::try_from(generation.index)
                    .expect("a segment has 255 source blocks at most");
                raptorq::PayloadId::new(block, esi)
                    .expect("ids are below 2^24")
                    .to_bytes()
            }
            Self::Raptor10 => {
                let block = u16::try_from(generation.index)
                    .expect("a segment has 65535 source blocks at most");
                let ([b0, b1], [e0, e1]) = (
                    block.to_be_bytes(),
                    u16::try_from(esi)
                        .expect("ids are below 2^16")
                        .to_be_bytes(),
                );
                [b0, b1, e0, e1]
            }
        }
    }

    /// The symbol that a FEC payload id names, if it is one of this source block, and not of its
    /// padding.
    pub(super) fn esi(self, generation: &Generation, id: [u8; 4]) -> Option<u32> {
        let (block, esi): (u32, u32) = match self {
            Self::RaptorQ => {
                let id = raptorq::PayloadId::from_bytes(id);
                (id.block.into(), id.esi())
            }
            Self::Raptor10 => {
                let [b0, b1, e0, e1] = id;
                (
                    u16::from_be_bytes([b0, b1]).into(),
                    u16::from_be_bytes([e0, e1]).into(),
                )
            }
        };
        (generation.index == block && !self.padding(generation).contains(&esi)).then_some(esi)
    }
}

/// For the source blocks of a segment at most: how many they are, and of each the symbols that are
/// read to encode it, the intermediate ones, those that are read to decode it, and its own.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    pub(super) blocks: usize,
    pub(super) symbol_bytes: usize,
    pub(super) inputs: usize,
    pub(super) intermediate: usize,
    pub(super) received: usize,
    pub(super) source: usize,
}

impl fmt::Display for Fountain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RaptorQ => "raptorq",
            Self::Raptor10 => "raptor10",
        })
    }
}

pub(super) fn symbol_bytes(generation: &Generation) -> usize {
    usize::try_from(generation.block_bytes).expect("a symbol fits in memory")
}

/// Symbols beyond K for which there is room where a block is decoded. One in a million blocks of
/// RaptorQ needs more, and one in some hundreds of Raptor10.
const SPARE_RAPTORQ: u32 = 2;
const SPARE_RAPTOR10: u32 = 8;
