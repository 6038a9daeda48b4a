//! Generations over the prime field: each innovative block is tested by the homomorphic hashes of
//! the source blocks before it is used.
//!
//! A test takes milliseconds, and a test of many blocks hardly longer than one of a few. So blocks
//! are collected ([`GfqGeneration`]) until they are enough, or the first of them has waited for a
//! moment. Then they are given away together with the decoder, as a [`Trial`], to be eliminated and
//! tested where that blocks no other work. Further blocks are collected meanwhile. A collected
//! block counts as held until it is known to be wrong: nothing is requested twice.

use std::time::Duration;

use bytes::Bytes;
use ncs_codec::block::Vector;
use ncs_codec::gfq::{self, Arithmetic, Coded, Cores, Decoder, Payload};
use ncs_codec::hash::{Batch, Finding, Group, Hashes, Sorted, sort_out};
use ncs_codec::{Error, Outcome};
use rand::Rng;

use super::evidence::Row;
use super::ids::{FetchId, SourceId};
use crate::object::{Codec, Generation, SegmentId};
use crate::time::Instant;

/// How long the first block waits for others to be tested with.
const GATHER_FOR: Duration = Duration::from_millis(20);
/// This many blocks are worth a test at once.
const GATHER_MAX: usize = 64;

/// A generation under way.
#[derive(Debug)]
pub struct GfqGeneration {
    generation: Generation,
    group: Group,
    shape: gfq::Shape,
    /// Absent while some of its blocks are tested.
    decoder: Option<Decoder>,
    rank: u16,
    gathered: Vec<Row>,
    /// When the first of them came.
    since: Option<Instant>,
    /// The number of the trial under way, and of its blocks.
    trial: Option<(u64, usize)>,
}

/// Blocks of a generation to be tested, and the decoder that absorbs the right ones.
#[derive(Debug)]
pub struct Trial {
    fetch: FetchId,
    segment: SegmentId,
    index: u32,
    number: u64,
    group: Group,
    shape: gfq::Shape,
    hashes: Bytes,
    decoder: Decoder,
    rows: Vec<Row>,
}

/// The result of a trial.
#[derive(Debug)]
pub struct Tested {
    pub(super) fetch: FetchId,
    pub(super) segment: SegmentId,
    pub(super) index: u32,
    number: u64,
    decoder: Decoder,
    /// The blocks in the order in which they came.
    pub(super) rows: Vec<(Row, Verdict)>,
    /// How many of them were tested, and in how many batches.
    pub(super) tested: (u64, u64),
    /// Whether no block can have these hashes: their signer has made them so.
    pub(super) is_hopeless: bool,
}

/// The verdict on a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is right, with this outcome; or it is redundant in any case, and then it may not have
    /// been tested.
    Right(Outcome),
    /// It is wrong.
    Wrong,
    /// It came from a sender behind a wrong block.
    Untested,
}

impl GfqGeneration {
    /// A generation with a code over the prime field, without blocks. `None` for other codes.
    pub fn new(generation: Generation) -> Option<Self> {
        let Codec::RlncQ { group } = generation.codec else {
            return None;
        };
        let words = u16::try_from(generation.block_bytes / Codec::WORD_BYTES).ok()?;
        let shape = gfq::Shape::new(generation.n, words)?;
        let decoder = Some(Decoder::new(shape));
        Some(Self {
            generation,
            group,
            shape,
            decoder,
            rank: 0,
            gathered: Vec::new(),
            since: None,
            trial: None,
        })
    }

    pub(super) fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Independent blocks that were found to be right.
    pub(super) fn rank(&self) -> u16 {
        self.rank
    }

    /// Blocks that are still needed if all untested ones are right.
    pub(super) fn missing(&self) -> u16 {
        let untested = self.gathered.len() + self.trial.map_or(0, |(_, blocks)| blocks);
        (self.generation.n - self.rank).saturating_sub(u16::try_from(untested).unwrap_or(u16::MAX))
    }

    /// Keeps a block until it is tested.
    pub(super) fn gather(
        &mut self,
        now: Instant,
        source: SourceId,
        block: ncs_codec::block::Block,
    ) {
        self.since.get_or_insert(now);
        self.gathered.push(Row {
            source,
            block,
            is_right: false,
        });
    }

    /// Drops the untested blocks of a source.
    pub(super) fn forget(&mut self, source: SourceId) {
        self.gathered.retain(|row| row.source != source);
        self.since.take_if(|_| self.gathered.is_empty());
    }

    /// When collected blocks are to be tested, if no test is under way.
    pub(super) fn due(&self) -> Option<Instant> {
        let since = self.since.filter(|_| self.decoder.is_some())?;
        let is_enough = self.missing() == 0 || self.gathered.len() >= GATHER_MAX;
        Some(if is_enough { since } else { since + GATHER_FOR })
    }

    /// Begins a test, if it is time for one; `hashes` are those of the generation, as they are
    /// sent.
    pub(super) fn begin_trial(
        &mut self,
        now: Instant,
        (fetch, segment): (FetchId, SegmentId),
        number: u64,
        hashes: Bytes,
    ) -> Option<Trial> {
        self.due().filter(|due| *due <= now)?;
        let decoder = self.decoder.take()?;
        let rows = std::mem::take(&mut self.gathered);
        self.since = None;
        self.trial = Some((number, rows.len()));
        let Self {
            group,
            shape,
            generation: Generation { index, .. },
            ..
        } = *self;
        Some(Trial {
            fetch,
            segment,
            index,
            number,
            group,
            shape,
            hashes,
            decoder,
            rows,
        })
    }

    /// Takes back what was given away. False if it is not the trial under way.
    pub(super) fn end_trial(&mut self, tested: Tested) -> bool {
        if self
            .trial
            .take_if(|(number, _)| *number == tested.number)
            .is_none()
        {
            return false;
        }
        self.rank = u16::try_from(tested.decoder.rank()).unwrap_or(u16::MAX);
        self.decoder = Some(tested.decoder);
        true
    }

    /// The bytes of the generation.
    pub(super) fn into_bytes(self, arithmetic: &dyn Arithmetic) -> Result<Vec<u8>, Error> {
        let n = self.generation.n;
        let decoder = self
            .decoder
            .filter(|_| self.rank == n)
            .ok_or(Error::Incomplete {
                missing: n - self.rank,
            })?;
        // Right blocks that do not decode to a source belong to hashes that no source has.
        let bytes = decoder.into_bytes(arithmetic);
        let mut bytes = bytes.map_err(|_| Error::Foreign {
            codec: self.generation.codec,
            n,
        })?;
        bytes.truncate(usize::try_from(self.generation.length).unwrap_or(usize::MAX));
        Ok(bytes)
    }
}

impl Trial {
    /// Eliminates the blocks, and tests the innovative ones: all at once where all are right.
    /// Blocks that were eliminated with wrong ones are eliminated again. It takes milliseconds, and
    /// seconds for many blocks: not for a task that others wait for. `random` draws the weights of
    /// the test, which no sender may foresee.
    pub fn run(self, arithmetic: &dyn Arithmetic, random: &mut impl Rng) -> Tested {
        let Self {
            fetch,
            segment,
            index,
            number,
            group,
            shape,
            hashes,
            mut decoder,
            rows,
        } = self;
        let Ok(hashes) = Hashes::signed(group, shape, &hashes) else {
            return Tested {
                fetch,
                segment,
                index,
                number,
                decoder,
                rows: Vec::new(),
                tested: (0, 0),
                is_hopeless: true,
            };
        };
        let rank = decoder.rank();
        let outcomes: Vec<Verdict> = rows
            .iter()
            .map(|row| absorb(&mut decoder, parse(row, shape)))
            .collect();
        let new: Vec<&Coded> = decoder.blocks()[rank..].iter().collect();
        let count = new.len() as u64;
        let holds = new.is_empty() || holds(arithmetic, &hashes, new, random);
        let (verdicts, tested) = if holds {
            (outcomes, (count, u64::from(count > 0)))
        } else {
            decoder.truncate(rank);
            let (verdicts, (blocks, batches)) =
                sort(&mut decoder, arithmetic, &hashes, &rows, random);
            (verdicts, (blocks, batches + 1))
        };
        Tested {
            fetch,
            segment,
            index,
            number,
            decoder,
            rows: rows.into_iter().zip(verdicts).collect(),
            tested,
            is_hopeless: false,
        }
    }
}

/// Absorbs a block, if it is one.
fn absorb(decoder: &mut Decoder, block: Option<Coded>) -> Verdict {
    let outcome = block.and_then(|block| decoder.absorb(block).ok());
    outcome.map_or(Verdict::Wrong, Verdict::Right)
}

/// Whether all of these blocks are right.
fn holds(
    arithmetic: &dyn Arithmetic,
    hashes: &Hashes,
    blocks: Vec<&Coded>,
    random: &mut impl Rng,
) -> bool {
    let batch = [Batch::new(hashes, blocks, random)];
    let holds = arithmetic
        .holds(&batch)
        .or_else(|_| Cores::all().holds(&batch));
    holds.expect("the CPU does not fail")[0]
}

/// Tells right blocks from wrong ones among those that are innovative, and absorbs the right ones.
/// Returns how many were tested, and in how many batches.
fn sort(
    decoder: &mut Decoder,
    arithmetic: &dyn Arithmetic,
    hashes: &Hashes,
    rows: &[Row],
    random: &mut impl Rng,
) -> (Vec<Verdict>, (u64, u64)) {
    let parse = |row: &Row| {
        let block = parse(row, hashes.shape())?;
        let brings = !decoder.is_redundant(&block.vector);
        Some((block, brings))
    };
    let blocks: Vec<Option<(Coded, bool)>> = rows.iter().map(parse).collect();
    let some = rows.iter().zip(&blocks).filter_map(|(row, block)| {
        Some((row.source, block.as_ref().filter(|(_, brings)| *brings)?))
    });
    let some: Vec<(SourceId, &Coded)> = some.map(|(source, (block, _))| (source, block)).collect();
    let Sorted { findings, batches } = sort_surely(arithmetic, hashes, &some, random);
    let tested = findings
        .iter()
        .filter(|finding| **finding != Finding::Untested)
        .count() as u64;
    let mut findings = findings.into_iter();
    let verdict = |block: Option<(Coded, bool)>| match block {
        None => Verdict::Wrong,
        Some((_, false)) => Verdict::Right(Outcome::Redundant),
        Some((block, true)) => match findings.next().expect("one for each") {
            Finding::Right => absorb(decoder, Some(block)),
            Finding::Wrong => Verdict::Wrong,
            Finding::Untested => Verdict::Untested,
        },
    };
    (blocks.into_iter().map(verdict).collect(), (tested, batches))
}

/// Sorts blocks into right and wrong. A polluter is not used again, and a card may be wrong: so
/// each wrong block is tested once more, alone and by the CPU, which sorts all of them if one is
/// right.
fn sort_surely(
    arithmetic: &dyn Arithmetic,
    hashes: &Hashes,
    blocks: &[(SourceId, &Coded)],
    random: &mut impl Rng,
) -> Sorted {
    let cores = Cores::all();
    let sorted = sort_out(arithmetic, hashes, blocks, random);
    let mut sorted = sorted
        .or_else(|_| sort_out(&cores, hashes, blocks, random))
        .expect("the CPU does not fail");
    let accused = sorted
        .findings
        .iter()
        .zip(blocks)
        .filter(|(finding, _)| **finding == Finding::Wrong);
    let alone: Vec<Batch<'_>> = accused
        .map(|(_, (_, block))| Batch::new(hashes, vec![block], random))
        .collect();
    let mut batches = sorted.batches + alone.len() as u64;
    if cores
        .holds(&alone)
        .expect("the CPU does not fail")
        .contains(&true)
    {
        sorted = sort_out(&cores, hashes, blocks, random).expect("the CPU does not fail");
        batches += sorted.batches;
    }
    Sorted { batches, ..sorted }
}

/// A row in the form of the arithmetic. The wire accepts no others; anything else is wrong.
fn parse(row: &Row, shape: gfq::Shape) -> Option<Coded> {
    parsed(shape, &row.block.vector, &row.block.payload)
}

/// A block in the form of the arithmetic; `None` for what the wire does not accept.
pub fn parsed(shape: gfq::Shape, vector: &Vector, payload: &Bytes) -> Option<Coded> {
    let vector = match vector {
        Vector::Source(index) => return Coded::source(shape, usize::from(*index), payload).ok(),
        Vector::Narrow(bytes) => gfq::Vector::parse_source(shape, bytes),
        Vector::Wide(bytes) => gfq::Vector::parse_recoded(shape, bytes),
        _ => return None,
    };
    Some(Coded {
        vector: vector.ok()?,
        payload: Payload::parse(shape, payload.clone()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ncs_codec::block::{Block, Q};
    use ncs_codec::gfq::{Encode, Failed, draw_rows};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::object::Shape;

    const FETCH: (FetchId, SegmentId) = (FetchId(1), SegmentId::from_bytes([1; 32]));

    /// The verdicts of a trial, if it is the one under way.
    fn end(held: &mut GfqGeneration, mut tested: Tested) -> Option<Vec<(Row, Verdict)>> {
        let rows = std::mem::take(&mut tested.rows);
        held.end_trial(tested).then_some(rows)
    }

    /// A generation of five blocks of two words, its bytes and hashes.
    fn generation() -> (Generation, Vec<u8>, Bytes) {
        generation_of(5)
    }

    /// The same with this many blocks.
    fn generation_of(n: u16) -> (Generation, Vec<u8>, Bytes) {
        let source: Vec<u8> = (0..n * 64 - 20)
            .map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1] ^ 0x5a)
            .collect();
        let group = Group::P1024;
        let shape = Shape::new(source.len() as u64, 64, n)
            .unwrap()
            .coded_with(Codec::RlncQ { group })
            .unwrap();
        let blocks: Vec<&[u8]> = source.chunks(64).collect();
        let hashes = Cores::all().hash(group, 2, &blocks).unwrap().into();
        (shape.generation(0).unwrap(), source, hashes)
    }

    fn blocks(count: usize, random: &mut StdRng) -> Vec<Block> {
        blocks_of(5, count, random)
    }

    fn blocks_of(n: u16, count: usize, random: &mut StdRng) -> Vec<Block> {
        let (_, source, _) = generation_of(n);
        let shape = gfq::Shape::new(n, 2).unwrap();
        let rows = draw_rows(shape, count, random);
        let mut out = vec![0; count * 65];
        Cores::all()
            .encode(shape, &mut [Encode::new(shape, &source, &rows, &mut out)])
            .unwrap();
        let row = |row: &[u32]| {
            row.iter()
                .flat_map(|coefficient| coefficient.to_be_bytes())
                .collect()
        };
        let made = rows.chunks(shape.n()).zip(out.chunks(65));
        made.map(|(coefficients, payload)| Block {
            vector: Vector::Narrow(row(coefficients)),
            payload: Bytes::copy_from_slice(payload),
        })
        .collect()
    }

    /// The result of a trial of these, each from a sender of its own.
    fn try_out(
        held: &mut GfqGeneration,
        blocks: Vec<Block>,
        now: Instant,
        number: u64,
    ) -> Vec<Verdict> {
        try_out_of(held, (0..).map(SourceId).zip(blocks), now, number)
    }

    fn try_out_of(
        held: &mut GfqGeneration,
        blocks: impl IntoIterator<Item = (SourceId, Block)>,
        now: Instant,
        number: u64,
    ) -> Vec<Verdict> {
        blocks
            .into_iter()
            .for_each(|(source, block)| held.gather(now, source, block));
        let hashes = generation_of(held.generation().n).2;
        let trial = held
            .begin_trial(now + GATHER_FOR, FETCH, number, hashes)
            .unwrap();
        let tested = trial.run(&Cores::all(), &mut StdRng::seed_from_u64(number));
        end(held, tested)
            .unwrap()
            .into_iter()
            .map(|(_, verdict)| verdict)
            .collect()
    }

    #[test]
    fn wrong_blocks_are_found_among_right_ones_and_the_rest_makes_the_source() {
        let (generation, source, _) = generation();
        let (mut held, now) = (GfqGeneration::new(generation).unwrap(), Instant::now());
        let mut some = blocks(6, &mut StdRng::seed_from_u64(1));
        let last = Block {
            vector: Vector::Source(4),
            payload: Bytes::copy_from_slice(&source[256..]),
        };
        // A bit of a word, a top bit, a coefficient, and a source block that is another one.
        let change = |block: &Block, byte: usize, bit: u8| {
            let mut payload = block.payload.to_vec();
            payload[byte] ^= bit;
            Block {
                payload: payload.into(),
                ..block.clone()
            }
        };
        let mut row = some[2].clone();
        let Vector::Narrow(coefficients) = &row.vector else {
            unreachable!()
        };
        let mut coefficients = coefficients.to_vec();
        coefficients[7] ^= 1;
        row.vector = Vector::Narrow(coefficients.into());
        let wrong = [
            change(&some[0], 31, 1),
            change(&some[1], 0, 0x80),
            row,
            change(&last, 3, 4),
        ];
        let mut all: Vec<Block> = some.drain(..3).collect();
        all.splice(1..1, wrong);
        all.push(last);
        assert_eq!(held.missing(), 5);
        let outcomes = try_out(&mut held, all, now, 1);
        let right = Verdict::Right(Outcome::Innovative);
        assert_eq!(outcomes[..5], [&[right][..], &[Verdict::Wrong; 4]].concat());
        assert_eq!(outcomes[5..], [right; 3]);
        assert_eq!((held.rank(), held.missing()), (4, 1));
        let twice = vec![some[0].clone(), some[0].clone()];
        assert_eq!(
            try_out(&mut held, twice, now, 2),
            [Outcome::Complete, Outcome::Redundant].map(Verdict::Right)
        );
        assert_eq!(held.into_bytes(&Cores::all()).unwrap(), source);
    }

    /// A polluter costs few tests, however many wrong blocks it sends, and other senders lose no
    /// block by it.
    #[test]
    fn behind_a_senders_first_wrong_block_nothing_of_it_is_tested() {
        let (generation, ..) = generation_of(40);
        let (honest, liar, other) = (SourceId(1), SourceId(2), SourceId(3));
        for first in 0..20 {
            let (mut held, now) = (GfqGeneration::new(generation).unwrap(), Instant::now());
            let all = blocks_of(40, 40, &mut StdRng::seed_from_u64(first));
            // Every other block is the polluter's, whose blocks from this one on are wrong; one of
            // another sender, too.
            let blocks = all.into_iter().enumerate().map(|(place, block)| {
                let number = place as u64 / 2;
                let source = if place % 2 == 0 {
                    honest
                } else if place == 39 {
                    other
                } else {
                    liar
                };
                let is_wrong = source == other || (source == liar && number >= first);
                let payload = block
                    .payload
                    .iter()
                    .enumerate()
                    .map(|(at, byte)| byte ^ u8::from(is_wrong && at == 31))
                    .collect();
                (source, Block { payload, ..block })
            });
            let found = try_out_of(&mut held, blocks, now, 1);
            for (place, verdict) in found.iter().enumerate() {
                let expected = match (place % 2, place as u64 / 2) {
                    (0, _) => None,
                    _ if place == 39 => Some(Verdict::Wrong),
                    (_, number) if number < first => None,
                    (_, number) if number == first => Some(Verdict::Wrong),
                    _ => Some(Verdict::Untested),
                };
                match expected {
                    Some(expected) => assert_eq!(*verdict, expected, "{first}: block {place}"),
                    None => assert!(
                        matches!(verdict, Verdict::Right(_)),
                        "{first}: block {place} is {verdict:?}"
                    ),
                }
            }
        }
    }

    /// A redundant block is known by its coefficients: it is not tested, whatever its payload is,
    /// and says nothing against its sender. A block that was eliminated with a wrong one is not
    /// lost.
    #[test]
    fn what_brings_nothing_costs_no_test() {
        let (generation, _, hashes) = generation();
        let (mut held, now) = (GfqGeneration::new(generation).unwrap(), Instant::now());
        let some = blocks(3, &mut StdRng::seed_from_u64(7));
        let wrong = |block: &Block| {
            let payload = block
                .payload
                .iter()
                .enumerate()
                .map(|(at, byte)| byte ^ u8::from(at == 31))
                .collect();
            Block {
                payload,
                ..block.clone()
            }
        };
        let mut run = |number: u64, blocks: Vec<Block>| {
            (0..)
                .map(SourceId)
                .zip(blocks)
                .for_each(|(source, block)| held.gather(now, source, block));
            let trial = held
                .begin_trial(now + GATHER_FOR, FETCH, number, hashes.clone())
                .unwrap();
            let tested = trial.run(&Cores::all(), &mut StdRng::seed_from_u64(number));
            let took = tested.tested;
            let verdicts: Vec<Verdict> = end(&mut held, tested)
                .unwrap()
                .into_iter()
                .map(|(_, verdict)| verdict)
                .collect();
            (verdicts, took, held.rank())
        };
        let [innovative, redundant] = [Outcome::Innovative, Outcome::Redundant].map(Verdict::Right);
        let first = run(1, vec![some[0].clone(), some[0].clone(), wrong(&some[0])]);
        assert_eq!(first, (vec![innovative, redundant, redundant], (1, 1), 1));
        assert_eq!(
            run(2, vec![some[0].clone(), wrong(&some[0])]),
            (vec![redundant, redundant], (0, 0), 1)
        );
        // The wrong one comes first, and would make the right one redundant.
        let third = run(
            3,
            vec![
                wrong(&some[1]),
                some[1].clone(),
                some[0].clone(),
                some[2].clone(),
            ],
        );
        // All new blocks, the same once more together with redundant ones, each from three senders,
        // and the wrong one alone.
        assert_eq!(
            third,
            (
                vec![Verdict::Wrong, innovative, redundant, innovative],
                (3, 6),
                3
            )
        );
    }

    /// A card that calls some right batches wrong, and judges others correctly.
    #[derive(Debug)]
    struct Slanderous(fn(&Batch<'_>) -> bool);

    impl Arithmetic for Slanderous {
        fn keep(&self, _: &[u8], _: usize) -> Result<Option<Arc<dyn gfq::Kept>>, gfq::NotKept> {
            Ok(None)
        }

        fn encode(&self, _: gfq::Shape, _: &mut [Encode<'_>]) -> Result<(), Failed> {
            unreachable!("it tests")
        }

        fn recode(&self, _: gfq::Shape, _: &mut [gfq::Recode<'_>]) -> Result<(), Failed> {
            unreachable!("it tests")
        }

        fn decode(
            &self,
            _: gfq::Shape,
            _: &mut [gfq::Decode<'_>],
        ) -> Result<Vec<gfq::Rebuilt>, Failed> {
            unreachable!("it tests")
        }

        fn hash(&self, _: Group, _: usize, _: &[&[u8]]) -> Result<Vec<u8>, Failed> {
            unreachable!("it tests")
        }

        fn holds(&self, batches: &[Batch<'_>]) -> Result<Vec<bool>, Failed> {
            let right = Cores::all().holds(batches)?;
            Ok(batches
                .iter()
                .zip(right)
                .map(|(batch, holds)| holds && !(self.0)(batch))
                .collect())
        }
    }

    #[test]
    fn nobody_is_accused_by_the_word_of_a_card() {
        let (generation, _, hashes) = generation();
        let slanders: [fn(&Batch<'_>) -> bool; 3] = [
            |_| true,
            |batch| batch.blocks().len() > 1,
            |batch| batch.blocks().len() == 1,
        ];
        for (slander, is_wrong) in slanders
            .into_iter()
            .flat_map(|slander| [(slander, false), (slander, true)])
        {
            let (mut held, now) = (GfqGeneration::new(generation).unwrap(), Instant::now());
            let mut some = blocks(4, &mut StdRng::seed_from_u64(8));
            if is_wrong {
                some[1].payload = some[1]
                    .payload
                    .iter()
                    .enumerate()
                    .map(|(at, byte)| byte ^ u8::from(at == 31))
                    .collect();
            }
            // The first two are from one sender, the others from another.
            some.into_iter()
                .enumerate()
                .for_each(|(place, block)| held.gather(now, SourceId(u32::from(place > 1)), block));
            let trial = held
                .begin_trial(now + GATHER_FOR, FETCH, 1, hashes.clone())
                .unwrap();
            let tested = trial.run(&Slanderous(slander), &mut StdRng::seed_from_u64(9));
            let verdicts: Vec<Verdict> = end(&mut held, tested)
                .unwrap()
                .into_iter()
                .map(|(_, verdict)| verdict)
                .collect();
            let mut expected = [Verdict::Right(Outcome::Innovative); 4];
            if is_wrong {
                expected[1] = Verdict::Wrong;
            }
            assert_eq!(verdicts, expected);
        }
    }

    #[test]
    fn what_has_gathered_counts_until_it_is_known_to_be_wrong() {
        let (generation, _, hashes) = generation();
        let (mut held, now) = (GfqGeneration::new(generation).unwrap(), Instant::now());
        assert_eq!(held.due(), None);
        let mut some = blocks(9, &mut StdRng::seed_from_u64(2));
        held.gather(now, SourceId(1), some.remove(0));
        assert_eq!((held.missing(), held.due()), (4, Some(now + GATHER_FOR)));
        assert!(
            held.begin_trial(now, FETCH, 1, hashes.clone()).is_none(),
            "there is time"
        );
        for block in some.drain(..4) {
            held.gather(now + GATHER_FOR / 2, SourceId(1), block);
        }
        // They would be enough: no more are waited for.
        assert_eq!((held.missing(), held.due()), (0, Some(now)));
        let trial = held.begin_trial(now, FETCH, 7, hashes.clone()).unwrap();
        assert_eq!((held.missing(), held.due()), (0, None));
        held.gather(now, SourceId(1), some.remove(0));
        assert_eq!(held.due(), None, "a trial is under way");
        let bytes = GfqGeneration::new(generation).unwrap();
        assert!(matches!(
            bytes.into_bytes(&Cores::all()),
            Err(Error::Incomplete { missing: 5 })
        ));
        // The result of another trial does not belong to this one.
        let mut other = GfqGeneration::new(generation).unwrap();
        other.gather(now, SourceId(1), some.remove(0));
        let foreign = other
            .begin_trial(now + GATHER_FOR, FETCH, 8, hashes)
            .unwrap();
        assert!(
            end(
                &mut held,
                foreign.run(&Cores::all(), &mut StdRng::seed_from_u64(3))
            )
            .is_none()
        );
        let tested = trial.run(&Cores::all(), &mut StdRng::seed_from_u64(4));
        assert_eq!(end(&mut held, tested).unwrap().len(), 5);
        assert_eq!((held.rank(), held.missing()), (5, 0));
    }

    #[test]
    fn hashes_that_no_block_has_and_blocks_that_are_none_are_no_panic() {
        let (generation, _, hashes) = generation();
        let (mut held, now) = (GfqGeneration::new(generation).unwrap(), Instant::now());
        for hashes in [
            Bytes::new(),
            vec![0; 640].into(),
            vec![0xff; 640].into(),
            hashes.slice(1..),
        ] {
            held.gather(
                now,
                SourceId(1),
                blocks(1, &mut StdRng::seed_from_u64(5)).remove(0),
            );
            let trial = held
                .begin_trial(now + GATHER_FOR, FETCH, 1, hashes)
                .unwrap();
            let tested = trial.run(&Cores::all(), &mut StdRng::seed_from_u64(6));
            assert!(tested.is_hopeless && end(&mut held, tested).unwrap().is_empty());
        }
        let payload = |length| Bytes::from(vec![0; length]);
        let row = Bytes::from(vec![0; 20]);
        for (vector, payload) in [
            (Vector::Seed(1), payload(64)),
            (Vector::Source(5), payload(64)),
            (Vector::Source(0), payload(65)),
            (Vector::Narrow(row.slice(1..)), payload(65)),
            (Vector::Narrow(row.clone()), payload(64)),
            (Vector::Wide(row), payload(65)),
            (Vector::Wide(Q.repeat(5).into()), payload(65)),
        ] {
            assert_eq!(
                try_out(&mut held, vec![Block { vector, payload }], now, 2),
                [Verdict::Wrong]
            );
        }
        assert_eq!(held.missing(), 5);
    }

    #[test]
    fn the_field_is_the_one_of_the_wire() {
        assert_eq!(Q, ncs_gf::gfq::Q_BYTES);
    }
}
