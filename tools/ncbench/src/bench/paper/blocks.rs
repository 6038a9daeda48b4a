//! RaptorQ blocks that have lost some source symbols: the input of every contender of the thesis'
//! rows.
//!
//! A case's n is K, its k is the bytes of a symbol T, its rows are the source symbols lost per
//! block, replaced by as many repair symbols, and its generations are blocks. Up to 16 blocks
//! differ, in bytes and in losses; a case with more uses them in turn. The case determines all of
//! it.

use ncs_codec::raptorq::{self, Encoder, EncodingPlan, Inverse, Parameters};
use ncs_gf::Kernels;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::catalogue::Case;
use super::load::SEED;
use super::thesis::{First, Grid, Second};

/// Blocks of one shape.
pub(super) struct Blocks {
    pub(super) parameters: Parameters,
    pub(super) symbol_bytes: usize,
    /// Those that differ.
    pub(super) blocks: Vec<Block>,
}

/// What came of a block, K symbols.
pub(super) struct Block {
    pub(super) source: Vec<u8>,
    /// Encoding symbol ids in the order of arrival: source symbols first.
    pub(super) esis: Vec<u32>,
    /// The symbols, one behind the other.
    pub(super) symbols: Vec<u8>,
    /// Source symbols that did not come, ascending.
    pub(super) missing: Vec<u32>,
}

impl Blocks {
    pub(super) fn new(case: &Case) -> Self {
        let parameters = Parameters::new(case.n.into()).expect("cases have K of RaptorQ");
        let symbol_bytes = usize::try_from(case.k).expect("a symbol fits in memory");
        let plan = EncodingPlan::new(parameters.k).expect("a K of RaptorQ");
        let distinct =
            (DISTINCT_BYTES / (symbol_bytes * usize::from(case.n))).clamp(1, DISTINCT_MAX);
        let distinct = distinct.min(usize::try_from(case.generations).expect("a count"));
        let block =
            |index: usize| Block::new(&parameters, symbol_bytes, case.rows, &plan, index as u64);
        Self {
            parameters,
            symbol_bytes,
            blocks: (0..distinct).map(block).collect(),
        }
    }

    /// As the thesis has a block for its first scheme.
    pub(super) fn first(&self, block: &Block) -> First {
        let (of, t) = (&self.parameters, self.symbol_bytes);
        let (l, zeros, padding) = (
            of.l as usize,
            (of.s + of.h) as usize,
            (of.k_prime - of.k) as usize,
        );
        let mut matrix = raptorq::precode(of);
        matrix.extend(generator(
            of,
            block
                .esis
                .iter()
                .map(|&esi| of.isi(esi))
                .chain(of.k..of.k_prime),
        ));
        let symbols = [
            vec![0; zeros * t],
            block.symbols.clone(),
            vec![0; padding * t],
        ]
        .concat();
        let wanted = generator(of, block.missing.iter().copied());
        First {
            matrix: Grid::of(&matrix, l),
            symbols: Grid::of(&symbols, t),
            wanted: Grid::of(&wanted, l),
        }
    }

    /// As the thesis has a block for its second scheme.
    pub(super) fn second(&self, block: &Block) -> Second {
        let (of, t) = (&self.parameters, self.symbol_bytes);
        let repair = block.repair().map(|esi| of.isi(esi));
        let mut known = block.source.clone();
        for &source in &block.missing {
            known[source as usize * t..][..t].fill(0);
        }
        known.resize(of.k_prime as usize * t, 0);
        Second {
            generator: Grid::of(&generator(of, repair), of.l as usize),
            known: Grid::of(&known, t),
            repair: Grid::of(&block.symbols[block.known() * t..], t),
            missing: block.missing.clone(),
        }
    }

    /// What the second scheme keeps for a K'.
    pub(super) fn stored(&self, kernels: Kernels) -> Grid {
        let stored = Inverse::new(self.parameters.k, kernels)
            .expect("cases of dense matrices have K for them");
        Grid::of(stored.rows(), self.parameters.k_prime as usize)
    }

    /// Whether these are the missing symbols of a block.
    pub(super) fn are_missing(&self, block: &Block, made: &[u8]) -> bool {
        let t = self.symbol_bytes;
        made.len() == block.missing.len() * t
            && block
                .missing
                .iter()
                .zip(made.chunks_exact(t))
                .all(|(&source, symbol)| *symbol == *self.source(block, source))
    }

    pub(super) fn source<'a>(&self, block: &'a Block, source: u32) -> &'a [u8] {
        &block.source[source as usize * self.symbol_bytes..][..self.symbol_bytes]
    }
}

impl Block {
    fn new(
        of: &Parameters,
        symbol_bytes: usize,
        lost: u32,
        plan: &EncodingPlan,
        index: u64,
    ) -> Self {
        let mut rng =
            SmallRng::seed_from_u64(SEED ^ index << 32 ^ u64::from(of.k) << 8 ^ u64::from(lost));
        let mut source = vec![0; of.k as usize * symbol_bytes];
        rng.fill_bytes(&mut source);
        let (missing, esis) = pattern(of.k, lost, &mut rng);
        let encoder = Encoder::new(source.clone(), symbol_bytes, plan, Kernels::detect())
            .expect("whole symbols");
        let mut symbols = vec![0; esis.len() * symbol_bytes];
        for (&esi, symbol) in esis.iter().zip(symbols.chunks_exact_mut(symbol_bytes)) {
            encoder.symbol(esi, symbol).expect("a valid id");
        }
        Self {
            source,
            esis,
            symbols,
            missing,
        }
    }

    /// Source symbols that came.
    pub(super) fn known(&self) -> usize {
        self.esis.len() - self.missing.len()
    }

    /// Ids of the repair symbols.
    pub(super) fn repair(&self) -> impl ExactSizeIterator<Item = u32> {
        self.esis[self.known()..].iter().copied()
    }
}

/// Draws lost source symbols, and K received symbols that suffice. One pattern in a hundred does
/// not suffice and is drawn again.
fn pattern(k: u32, lost: u32, rng: &mut SmallRng) -> (Vec<u32>, Vec<u32>) {
    for attempt in 0..ATTEMPTS {
        let mut all: Vec<u32> = (0..k).collect();
        all.shuffle(rng);
        let (missing, known) = all.split_at_mut(lost.min(k) as usize);
        missing.sort_unstable();
        known.sort_unstable();
        let first = k + attempt;
        let esis: Vec<u32> = known
            .iter()
            .copied()
            .chain(first..first + u32::try_from(missing.len()).expect("K at most"))
            .collect();
        if raptorq::deficit(k, &esis) == Ok(0) {
            return (missing.to_vec(), esis);
        }
    }
    unreachable!("ninety-nine of a hundred patterns suffice")
}

/// The rows of internal symbols in the precode matrix, each of L elements (G_LT).
pub(super) fn generator(of: &Parameters, isis: impl Iterator<Item = u32>) -> Vec<u8> {
    let (l, mut rows, mut columns) = (of.l as usize, Vec::new(), Vec::with_capacity(32));
    for isi in isis {
        columns.clear();
        of.columns(isi, &mut columns);
        let start = rows.len();
        rows.resize(start + l, 0);
        columns
            .iter()
            .for_each(|&column| rows[start + column as usize] = 1);
    }
    rows
}

const DISTINCT_MAX: usize = 16;
const DISTINCT_BYTES: usize = 32 << 20;
const ATTEMPTS: u32 = 1000;
