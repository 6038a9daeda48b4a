//! A segment that arrives generation by generation: which bytes are proved, and which can be handed
//! on. No I/O.
//!
//! Generations arrive in any order. A group of the segment's tree is proved when all generations
//! that it overlaps are there: most groups where the generation was decoded ([`examine`]), the
//! others in [`Assembly::take`]. The contiguous proved beginning is released, once. If a group is
//! wrong, all generations that it overlaps must arrive again, unless other groups prove them.
//! Without a tree, everything is proved together at the end.

use std::ops::Range;

use bytes::Bytes;

use crate::object::{Generation, SegmentId, Shape, Tree};
use crate::sorted::SortedSet;

/// The bytes of a generation, and the wrong groups within it.
#[derive(Debug)]
pub struct Examined {
    index: u32,
    bytes: Option<Bytes>,
    wrong: Vec<usize>,
}

/// Tests the groups within a generation. Hashes all of it: not for an async task.
pub fn examine(generation: &Generation, bytes: Option<Bytes>, tree: Option<&Tree>) -> Examined {
    let mut wrong = Vec::new();
    let bytes = bytes.filter(|bytes| bytes.len() as u64 == generation.length);
    if let (Some(bytes), Some(tree)) = (&bytes, tree) {
        let end = generation.offset + generation.length;
        let within =
            groups(tree, &(generation.offset..end)).map(|group| (group, tree.group(group)));
        for (group, range) in
            within.filter(|(_, range)| range.start >= generation.offset && range.end <= end)
        {
            let (start, end) = (
                range.start - generation.offset,
                range.end - generation.offset,
            );
            if !tree.proves(group, &bytes[place(start)..place(end)]) {
                wrong.push(group);
            }
        }
    }
    Examined {
        index: generation.index,
        bytes,
        wrong,
    }
}

/// Joins consecutive pieces. Copies them unless there is only one.
pub fn join(pieces: &[Bytes]) -> Bytes {
    match pieces {
        [only] => only.clone(),
        several => several.concat().into(),
    }
}

/// An incomplete segment.
#[derive(Debug)]
pub struct Assembly {
    id: SegmentId,
    shape: Shape,
    tree: Option<Tree>,
    generations: Vec<Option<Bytes>>,
    left: usize,
    /// Whether each group is proved.
    proven: Vec<bool>,
    /// The contiguous proved beginning, in pieces.
    pieces: Vec<Bytes>,
    released: u64,
}

/// The effects of a generation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Generations that are wrong, at least in part: they must arrive again.
    pub refuted: SortedSet<u32>,
    /// Generations that are proved completely.
    pub settled: Vec<u32>,
    /// The newly released pieces, and the offset of the first.
    pub released: (u64, Vec<Bytes>),
}

impl Assembly {
    /// An empty segment. A tree of another length is ignored.
    pub fn new(id: SegmentId, shape: Shape, tree: Option<Tree>) -> Self {
        let tree = tree.filter(|tree| tree.length() == shape.length());
        let left = shape.generations() as usize;
        Self {
            id,
            shape,
            generations: (0..left).map(|_| None).collect(),
            left,
            proven: vec![false; tree.as_ref().map_or(0, Tree::groups)],
            tree,
            pieces: Vec::new(),
            released: 0,
        }
    }

    /// The tree of the segment's groups.
    pub fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// Whether all bytes are proved: [`parts`](Self::parts) returns them.
    pub fn is_proven(&self) -> bool {
        self.released == self.shape.length()
    }

    /// All bytes once they are there, in pieces to be [joined](join): proved ones, or, without a
    /// tree, those to be compared with the id.
    pub fn parts(&self) -> Option<Vec<Bytes>> {
        if self.is_proven() {
            return Some(self.pieces.clone());
        }
        if self.tree.is_some() || self.left > 0 {
            return None;
        }
        self.generations.iter().cloned().collect()
    }

    /// Whether all generations have arrived without a tree: [`parts`](Self::parts) must be compared
    /// with the id.
    pub fn awaits_proof(&self) -> bool {
        self.left == 0 && self.tree.is_none() && !self.is_proven()
    }

    /// The segment's id.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Forgets all generations, because at least one is wrong.
    pub fn forget(&mut self) {
        self.generations
            .iter_mut()
            .for_each(|generation| *generation = None);
        self.left = self.generations.len();
    }

    /// Takes a generation. One that is there already changes nothing. Without a tree, one that
    /// could not be decoded counts as arrived.
    pub fn take(&mut self, examined: Examined) -> Taken {
        let Examined {
            index,
            bytes,
            wrong,
        } = examined;
        let Some(generation) = self.shape.generation(index) else {
            return Taken::default();
        };
        let Some(tree) = self.tree.clone() else {
            let slot = &mut self.generations[index as usize];
            if slot.is_none() {
                // An empty generation makes the final comparison fail.
                *slot = Some(bytes.unwrap_or_default());
                self.left -= 1;
            }
            return Taken::default();
        };
        if self.generations[index as usize].is_some() || self.is_settled(&tree, &generation) {
            return Taken::default();
        }
        let Some(bytes) = bytes else {
            return Taken {
                refuted: [index].into(),
                ..Taken::default()
            };
        };
        self.generations[index as usize] = Some(bytes);
        self.left -= 1;
        let touched = groups(
            &tree,
            &(generation.offset..generation.offset + generation.length),
        );
        let mut failed = Vec::new();
        for group in touched.clone() {
            if self.proven[group] {
                continue;
            }
            let range = tree.group(group);
            let is_within = range.start >= generation.offset
                && range.end <= generation.offset + generation.length;
            let is_right = match is_within {
                true => !wrong.contains(&group),
                // It needs a neighbouring generation.
                false => match self.bytes(&range) {
                    Some(bytes) => tree.proves(group, &bytes),
                    None => continue,
                },
            };
            if is_right {
                self.proven[group] = true
            } else {
                failed.push(group)
            }
        }
        let mut taken = Taken::default();
        for group in failed {
            for index in self.of_range(&tree.group(group)) {
                let generation = self.shape.generation(index).expect("the segment has it");
                if !self.is_settled(&tree, &generation) {
                    taken.refuted.insert(index);
                }
            }
        }
        let around = tree.group(touched.start).start..tree.group(touched.end.saturating_sub(1)).end;
        for index in self
            .of_range(&around)
            .filter(|index| !taken.refuted.contains(index))
        {
            let generation = self.shape.generation(index).expect("the segment has it");
            if self.generations[index as usize].is_some() && self.is_settled(&tree, &generation) {
                taken.settled.push(index);
            }
        }
        taken.released = self.release(&tree);
        taken
            .refuted
            .iter()
            .for_each(|index| self.discard(&tree, *index));
        taken
    }

    /// Whether all bytes of a generation are proved.
    fn is_settled(&self, tree: &Tree, generation: &Generation) -> bool {
        let end = generation.offset + generation.length;
        groups(tree, &(generation.offset..end)).all(|group| self.proven[group])
    }

    /// The proved bytes after those released before, up to the first gap.
    fn release(&mut self, tree: &Tree) -> (u64, Vec<Bytes>) {
        let begin = self.released;
        let first = groups(tree, &(begin..self.shape.length())).start;
        let proven = self
            .proven
            .iter()
            .skip(first)
            .take_while(|is_proven| **is_proven)
            .count();
        let end = if proven == 0 {
            begin
        } else {
            tree.group(first + proven - 1).end
        };
        let pieces = self.slices(&(begin..end)).unwrap_or_default();
        self.released = end;
        self.pieces.extend(pieces.iter().cloned());
        // Completely released generations are not needed any more.
        for index in self.of_range(&(begin..end)) {
            let generation = self.shape.generation(index).expect("the segment has it");
            if generation.offset + generation.length <= end {
                self.generations[index as usize] = Some(Bytes::new());
            }
        }
        (begin, pieces)
    }

    /// Forgets a wrong generation, and its unreleased groups.
    fn discard(&mut self, tree: &Tree, index: u32) {
        let Some(generation) = self.shape.generation(index) else {
            return;
        };
        if self.generations[index as usize].take().is_some() {
            self.left += 1;
        }
        for group in groups(
            tree,
            &(generation.offset..generation.offset + generation.length),
        ) {
            if tree.group(group).end > self.released {
                self.proven[group] = false;
            }
        }
    }

    /// The bytes of a range, if all are there.
    fn bytes(&self, range: &Range<u64>) -> Option<Bytes> {
        self.slices(range).map(|slices| join(&slices))
    }

    /// The same in pieces.
    fn slices(&self, range: &Range<u64>) -> Option<Vec<Bytes>> {
        let slice = |index: u32| {
            let generation = self.shape.generation(index)?;
            let start = range.start.max(generation.offset) - generation.offset;
            let end = range.end.min(generation.offset + generation.length) - generation.offset;
            let bytes = self.generations[index as usize].as_ref()?;
            (place(end) <= bytes.len()).then(|| bytes.slice(place(start)..place(end)))
        };
        self.of_range(range).map(slice).collect()
    }

    /// The generations that a range overlaps.
    fn of_range(&self, range: &Range<u64>) -> Range<u32> {
        if range.is_empty() {
            return 0..0;
        }
        self.shape.generation_at(range.start)..self.shape.generation_at(range.end - 1) + 1
    }
}

/// The groups that a range overlaps.
fn groups(tree: &Tree, range: &Range<u64>) -> Range<usize> {
    if range.is_empty() {
        return 0..0;
    }
    tree.group_at(range.start)..tree.group_at(range.end - 1) + 1
}

fn place(at: u64) -> usize {
    usize::try_from(at).expect("a segment fits in memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Codec;

    /// Five generations of 1,280 and 1,216 bytes over seven groups of 1,024, without common
    /// boundaries.
    const LENGTH: u64 = 6300;

    fn segment() -> (Bytes, SegmentId, Shape, Tree) {
        let bytes: Bytes = (0..LENGTH)
            .map(|at| u8::try_from(at % 251).unwrap())
            .collect();
        let (id, tree) = Tree::with_groups(&bytes, Codec::Rlnc, 10);
        (
            bytes,
            id,
            Shape::new(LENGTH, 64, 20).unwrap(),
            tree.unwrap(),
        )
    }

    fn part(bytes: &Bytes, shape: Shape, index: u32) -> (Generation, Bytes) {
        let generation = shape.generation(index).unwrap();
        (
            generation,
            bytes.slice(place(generation.offset)..place(generation.offset + generation.length)),
        )
    }

    struct Bench {
        assembly: Assembly,
        bytes: Bytes,
        shape: Shape,
        handed: Vec<u8>,
    }

    impl Bench {
        fn new(has_tree: bool) -> Self {
            let (bytes, id, shape, tree) = segment();
            assert_eq!((shape.generations(), tree.groups()), (5, 7));
            Self {
                assembly: Assembly::new(id, shape, Some(tree).filter(|_| has_tree)),
                bytes,
                shape,
                handed: Vec::new(),
            }
        }

        fn whole(&self) -> Option<Bytes> {
            self.assembly.parts().map(|parts| join(&parts))
        }

        /// Takes a generation, with one byte changed if `wrong` names one.
        fn take(&mut self, index: u32, wrong: Option<usize>) -> Taken {
            let (generation, bytes) = part(&self.bytes, self.shape, index);
            let mut bytes = bytes.to_vec();
            wrong.inspect(|at| bytes[*at] ^= 1);
            let examined = examine(&generation, Some(bytes.into()), self.assembly.tree());
            let taken = self.assembly.take(examined);
            if !taken.released.1.is_empty() {
                assert_eq!(
                    taken.released.0,
                    self.handed.len() as u64,
                    "in order, without a gap, once"
                );
            }
            self.handed.extend(taken.released.1.concat());
            assert_eq!(
                self.handed,
                self.bytes[..self.handed.len()],
                "what is handed on is right"
            );
            taken
        }
    }

    #[test]
    fn the_proven_beginning_is_released_in_order() {
        let mut bench = Bench::new(true);
        let released: Vec<_> = [2, 0, 4, 1, 3]
            .map(|index| {
                assert_eq!(bench.take(index, None).refuted, [].into());
                bench.handed.len()
            })
            .into();
        // Generation 0 ends in the second group, generation 2 in the fourth.
        assert_eq!(released, [0, 1024, 1024, 3072, 6300]);
        assert!(bench.assembly.is_proven());
        assert_eq!(bench.whole(), Some(bench.bytes.clone()));
    }

    #[test]
    fn a_wrong_generation_comes_again_and_the_rest_goes_on() {
        for wrong in [0, 100, 700, 1100, 1215] {
            let mut bench = Bench::new(true);
            for index in [0, 1, 3, 4] {
                assert_eq!(bench.take(index, None).refuted, [].into());
            }
            assert_eq!(bench.handed.len(), 2048);
            let refuted = bench.take(2, Some(wrong)).refuted;
            assert!(
                refuted.contains(&2) && refuted.iter().all(|index| (1..=3).contains(index)),
                "{refuted:?}"
            );
            assert!(
                bench.handed.len() < 5120 && !bench.assembly.is_proven() && bench.whole().is_none()
            );
            for index in refuted {
                assert_eq!(bench.take(index, None).refuted, [].into());
            }
            assert_eq!(bench.whole(), Some(bench.bytes.clone()));
        }
    }

    #[test]
    fn all_wrong_generations_come_again_in_any_order() {
        let mut bench = Bench::new(true);
        let mut waiting: Vec<(u32, Option<usize>)> = [4, 3, 2, 1, 0]
            .map(|index| (index, Some(index as usize * 200)))
            .into();
        for _ in 0..40 {
            let Some((index, wrong)) = waiting.pop() else {
                break;
            };
            let refuted = bench.take(index, wrong).refuted;
            for index in refuted {
                waiting.insert(0, (index, None));
            }
        }
        assert_eq!(bench.whole(), Some(bench.bytes.clone()));
    }

    #[test]
    fn what_cannot_be_decoded_comes_again() {
        let mut bench = Bench::new(true);
        let (generation, _) = part(&bench.bytes, bench.shape, 1);
        let taken = bench
            .assembly
            .take(examine(&generation, None, bench.assembly.tree()));
        assert_eq!(
            taken,
            Taken {
                refuted: [1].into(),
                ..Taken::default()
            }
        );
        let short = bench.assembly.take(examine(
            &generation,
            Some(Bytes::from_static(b"x")),
            bench.assembly.tree(),
        ));
        assert_eq!(short.refuted, [1].into());
        (0..5).for_each(|index| drop(bench.take(index, None)));
        assert_eq!(bench.whole(), Some(bench.bytes.clone()));
    }

    #[test]
    fn generations_are_settled_once_all_of_their_groups_are_proven() {
        let mut bench = Bench::new(true);
        assert!(bench.take(0, None).settled.is_empty());
        assert_eq!(bench.take(1, None).settled, [0]);
        assert_eq!(bench.take(4, None).settled, [4]);
        assert_eq!(bench.take(2, None).settled, [1]);
        assert_eq!(bench.take(3, None).settled, [2, 3]);
    }

    #[test]
    fn without_a_tree_all_is_proven_together() {
        let mut bench = Bench::new(false);
        for index in [3, 1, 0, 2] {
            assert_eq!(bench.take(index, None), Taken::default());
        }
        assert!(!bench.assembly.awaits_proof() && bench.whole().is_none());
        bench.take(4, None);
        assert!(bench.assembly.awaits_proof() && !bench.assembly.is_proven());
        bench.assembly.forget();
        (0..5).for_each(|index| drop(bench.take(index, None)));
        assert!(bench.assembly.awaits_proof());
        assert_eq!(bench.whole(), Some(bench.bytes.clone()));
    }
}
