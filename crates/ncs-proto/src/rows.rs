//! Rows of an incomplete generation, kept apart as long as they must not be mixed.
//!
//! Tested rows form one heap and are mixed freely. Until they are tested, the rows of each source
//! are a heap of their own, and blocks made of them are marked as unverified: a wrong row spoils
//! only blocks derived from its sender, and no peer blames this relay for it.
//!
//! Rows over the prime field are tested by their hashes before they arrive here, and form one heap.

mod news;
#[cfg(feature = "gfq")]
mod proven;
#[cfg(not(feature = "gfq"))]
#[path = "rows/without_gfq.rs"]
mod proven;

use std::collections::BTreeMap;

use bytes::BytesMut;
use ncs_codec::block::{Block, Vector};
use ncs_codec::rlnc::Decoder;
use ncs_gf::{Kernels, RowKey};
use rand::Rng;

use crate::object::Generation;
pub use news::{Heap, News};
use proven::Proven;

/// The number of blocks to make of each heap.
pub type Plan = Vec<(Heap, u32)>;

/// The rows of a generation.
#[derive(Debug)]
pub struct Rows {
    generation: Generation,
    key: RowKey,
    heaps: BTreeMap<Heap, Decoder>,
    /// Over the prime field: the tested rows. Those of one fetch are independent; those of several,
    /// after a failure, may not be.
    proven: Option<Proven>,
}

impl Rows {
    /// No rows yet.
    pub fn new(generation: Generation, key: RowKey) -> Self {
        let proven = Proven::new(&generation);
        Self {
            generation,
            key,
            heaps: BTreeMap::new(),
            proven,
        }
    }

    /// Bytes that all rows of a generation over the prime field take, with their vectors; `None`
    /// for other codes.
    pub fn proven_bytes(generation: &Generation) -> Option<usize> {
        Some(Proven::new(generation)?.memory_bytes())
    }

    /// Absorbs new rows. Untested rows are ignored once there are tested ones.
    pub fn take(&mut self, news: News) {
        if let Some(proven) = &mut self.proven {
            return proven.absorb(news);
        }
        match news {
            News::Row {
                source,
                block,
                is_checked,
            } => {
                let heap = if is_checked {
                    Heap::Checked
                } else {
                    Heap::Of(source)
                };
                if is_checked || !self.is_checked() {
                    self.put(heap, &block);
                }
            }
            News::Checked(rows) => {
                self.heaps.retain(|heap, _| *heap == Heap::Checked);
                self.heap(Heap::Checked);
                rows.iter().for_each(|block| self.put(Heap::Checked, block));
            }
        }
    }

    /// The rank of each heap.
    pub fn ranks(&self) -> BTreeMap<Heap, u32> {
        if let Some(proven) = &self.proven {
            return BTreeMap::from([(Heap::Checked, proven.rank())]);
        }
        self.heaps
            .iter()
            .map(|(heap, decoder)| (*heap, decoder.rank().into()))
            .collect()
    }

    /// Fills `payloads` with combinations of the rows of a heap, or of the tested ones once there
    /// are any. Empty without rows.
    pub fn recode(
        &self,
        heap: Heap,
        random: &mut impl Rng,
        payloads: &mut [&mut [u8]],
    ) -> Vec<Vector> {
        if let Some(proven) = &self.proven {
            return proven.recode(random, payloads);
        }
        let heap = if self.is_checked() {
            Heap::Checked
        } else {
            heap
        };
        let Some(decoder) = self
            .heaps
            .get(&heap)
            .filter(|decoder| decoder.rank() > 0 && !payloads.is_empty())
        else {
            return Vec::new();
        };
        let n = usize::from(decoder.n());
        let mut vectors = BytesMut::zeroed(n * payloads.len());
        decoder.recode_into(
            random,
            &mut vectors.chunks_exact_mut(n).collect::<Vec<_>>(),
            payloads,
        );
        let vectors = vectors.freeze();
        let vector = |index: usize| vectors.slice(index * n..(index + 1) * n);
        let vector = |index| match heap {
            Heap::Checked => Vector::Explicit(vector(index)),
            Heap::Of(_) => Vector::Unverified(vector(index)),
        };
        (0..payloads.len()).map(vector).collect()
    }

    fn is_checked(&self) -> bool {
        self.heaps.contains_key(&Heap::Checked)
    }

    fn heap(&mut self, heap: Heap) -> &mut Decoder {
        let (generation, key) = (self.generation, self.key);
        self.heaps
            .entry(heap)
            .or_insert_with(|| Decoder::gathering(generation, key, Kernels::detect()))
    }

    fn put(&mut self, heap: Heap, block: &Block) {
        // Blocks accepted by the peer fit; those received again after a restart are redundant.
        let _ = self.heap(heap).absorb(&block.vector, &block.payload);
    }
}

/// Which heaps to use for `count` blocks for one receiver: of each at most as many as it has rows
/// (`held`), less those that the receiver already got (`made`, which is updated), in proportion to
/// each source's rows. `is_tainted`: some of the rows used so far were wrong.
pub fn plan(
    count: u32,
    held: &BTreeMap<Heap, u32>,
    made: &mut BTreeMap<Heap, u32>,
    is_tainted: bool,
) -> Plan {
    if held.contains_key(&Heap::Checked) && !made.contains_key(&Heap::Checked) {
        // Blocks made of rows that proved right need not be sent again.
        let had = made.values().sum();
        made.clear();
        made.insert(Heap::Checked, if is_tainted { 0 } else { had });
    }
    let mut plan: BTreeMap<Heap, u32> = BTreeMap::new();
    for _ in 0..count {
        let share = |heap: &Heap, rows: u32| {
            let left = rows.saturating_sub(made.get(heap).copied().unwrap_or_default());
            (u64::from(left) << 16) / u64::from(rows.max(1))
        };
        let shares = held.iter().map(|(heap, rows)| (share(heap, *rows), *heap));
        let Some((_, heap)) = shares.filter(|(share, _)| *share > 0).max() else {
            break;
        };
        *made.entry(heap).or_default() += 1;
        *plan.entry(heap).or_default() += 1;
    }
    plan.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;
    use crate::object::row_key;
    use crate::object::{Codec, HashGroup, SegmentId, Shape};
    use crate::peer::SourceId;
    use ncs_codec::rlnc::Encoder;

    const ONE: SourceId = SourceId(1);
    const TWO: SourceId = SourceId(2);

    fn rows() -> (Rows, impl Fn(u32) -> Block) {
        let bytes = [7; 512];
        let id = SegmentId::of(&bytes);
        let generation = Shape::new(512, 64, 8).unwrap().generation(0).unwrap();
        let key = row_key(&id, &generation);
        let encoder = Encoder::new(&generation, &bytes, key, Kernels::detect()).unwrap();
        let block = move |seed| {
            let mut payload = vec![0; 64];
            encoder.block(seed, &mut payload);
            Block {
                vector: Vector::Seed(seed),
                payload: payload.into(),
            }
        };
        (Rows::new(generation, key), block)
    }

    fn made(rows: &Rows, heap: Heap, count: usize) -> Vec<Vector> {
        let mut payloads = vec![0; 64 * count];
        rows.recode(
            heap,
            &mut SmallRng::seed_from_u64(1),
            &mut payloads.chunks_mut(64).collect::<Vec<_>>(),
        )
    }

    #[test]
    fn rows_of_two_sources_are_not_mixed_before_they_are_tested() {
        let (mut rows, block) = rows();
        for (source, seed) in [(ONE, 1), (ONE, 2), (TWO, 3)] {
            rows.take(News::Row {
                source,
                block: block(seed),
                is_checked: false,
            });
        }
        assert_eq!(
            rows.ranks(),
            BTreeMap::from([(Heap::Of(ONE), 2), (Heap::Of(TWO), 1)])
        );
        // All combinations of a single row are multiples of it: nothing else was mixed in.
        let (generation, key) = (rows.generation, rows.key);
        let mut decoder = Decoder::gathering(generation, key, Kernels::detect());
        decoder.absorb(&Vector::Seed(3), &block(3).payload).unwrap();
        for vector in made(&rows, Heap::Of(TWO), 4) {
            assert!(matches!(vector, Vector::Unverified(_)));
            assert_eq!(
                decoder.absorb(&vector, &[0; 64]),
                Ok(ncs_codec::Outcome::Redundant)
            );
        }
        assert!(
            made(&rows, Heap::Of(SourceId(3)), 1).is_empty()
                && made(&rows, Heap::Checked, 1).is_empty()
        );
    }

    #[test]
    fn what_was_tested_takes_the_place_of_all_else() {
        let (mut rows, block) = rows();
        rows.take(News::Row {
            source: ONE,
            block: block(1),
            is_checked: false,
        });
        rows.take(News::Checked(vec![]));
        assert!(made(&rows, Heap::Of(ONE), 1).is_empty(), "it was wrong");
        rows.take(News::Row {
            source: ONE,
            block: block(2),
            is_checked: false,
        });
        rows.take(News::Row {
            source: TWO,
            block: block(3),
            is_checked: true,
        });
        assert_eq!(rows.ranks(), BTreeMap::from([(Heap::Checked, 1)]));
        // Blocks planned of a heap that no longer exists are made of this one.
        assert!(matches!(
            made(&rows, Heap::Of(ONE), 1)[..],
            [Vector::Explicit(_)]
        ));
    }

    /// A generation over the prime field of three blocks of two words, and its source blocks as
    /// sent.
    fn over_gfq() -> (Rows, impl Fn(u8, bool) -> News) {
        let codec = Codec::RlncQ {
            group: HashGroup::P1024,
        };
        let generation = Shape::new(192, 64, 3)
            .unwrap()
            .coded_with(codec)
            .unwrap()
            .generation(0)
            .unwrap();
        let row = move |index: u8, is_checked: bool| {
            let payload = vec![index; generation.block_length(index.into())].into();
            News::Row {
                source: ONE,
                block: Block {
                    vector: Vector::Source(index.into()),
                    payload,
                },
                is_checked,
            }
        };
        (
            Rows::new(generation, row_key(&SegmentId::of(b""), &generation)),
            row,
        )
    }

    #[test]
    fn over_the_prime_field_nothing_is_mixed_that_was_not_tested() {
        let (mut rows, row) = over_gfq();
        rows.take(row(0, false));
        assert_eq!(rows.ranks(), BTreeMap::from([(Heap::Checked, 0)]));
        assert!(made(&rows, Heap::Checked, 1).is_empty());
        rows.take(row(0, true));
        assert_eq!(rows.ranks(), BTreeMap::from([(Heap::Checked, 1)]));
    }

    /// After a failed fetch the same rows may arrive again: a relay claims no more than it can
    /// make.
    #[test]
    fn what_came_before_a_new_beginning_counts_once() {
        let (mut rows, row) = over_gfq();
        let rank = |rows: &Rows| rows.ranks()[&Heap::Checked];
        [0, 1]
            .into_iter()
            .for_each(|index| rows.take(row(index, true)));
        [0, 1]
            .into_iter()
            .for_each(|index| rows.take(row(index, true)));
        assert_eq!(rank(&rows), 2);
        // They do not displace later rows either.
        rows.take(row(2, true));
        assert_eq!(rank(&rows), 3);
    }

    const A: Heap = Heap::Of(SourceId(1));
    const B: Heap = Heap::Of(SourceId(2));

    #[test]
    fn each_source_has_its_part_in_what_a_session_gets() {
        let mut made = BTreeMap::new();
        let held = BTreeMap::from([(A, 6), (B, 2)]);
        assert_eq!(plan(4, &held, &mut made, false), [(A, 3), (B, 1)]);
        assert_eq!(plan(3, &held, &mut made, false), [(A, 2), (B, 1)]);
        assert_eq!(
            plan(9, &held, &mut made, false),
            [(A, 1)],
            "no more than there are rows"
        );
        assert_eq!(plan(9, &held, &mut made, false), []);
    }

    #[test]
    fn what_was_right_before_it_was_tested_is_not_sent_again() {
        for (is_tainted, again) in [(false, 1), (true, 5)] {
            let mut made = BTreeMap::from([(A, 3), (B, 1)]);
            let held = BTreeMap::from([(Heap::Checked, 5)]);
            assert_eq!(
                plan(9, &held, &mut made, is_tainted),
                [(Heap::Checked, again)]
            );
        }
    }
}
