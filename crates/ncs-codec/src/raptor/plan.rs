//! A solution as a list of operations on symbols, independent of the structure.
//!
//! A plan depends only on which symbols arrived. It therefore serves every source block with the
//! same pattern; an encoder's plan serves every block of the same K'.
//!
//! Working memory is cut into *slots*, a symbol each. In a first pass, every pivot's slot becomes
//! the sum E of arrived symbols (`solution`), and the rows that are not pivot rows are made from
//! those. A dense product gives the inactive symbols; a walk over the columns ([`Walk`]) makes the
//! dense rows' part: three operations a column instead of up to H. Then, if all symbols are wanted,
//! a second pass makes every pivot's symbol anew from arrived symbols and from earlier pivots. If
//! few are missing, it is cheaper to make each as a sum of E and of inactive symbols.
//!
//! Products with dense binary matrices use tables of all sums of a few neighbours each.
//!
//! Symbols are processed in strips of up to 256 bytes, so that the slots of a strip stay in the
//! cache.

use super::rows::{Rows, index};
use super::solution::Solution;
use super::system::{Size, System, Walk, WalkEnd};
use ncs_gf::simd::{Kernels, Line, Strip};
use ncs_gf::sums::{Fold, Step, Sums};

/// The operations on symbols that solve a system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    inputs: usize,
    slots: usize,
    /// The inputs, and the slots that they are loaded into.
    loads: Vec<Load>,
    /// The operations before the inactive symbols, except for the part of the dense rows.
    forward: Sums,
    dense: Option<Dense>,
    /// The number of `loads` repeated before `backward`.
    reloads: usize,
    backward: Sums,
    outputs: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    slot: u32,
    input: u32,
}

/// The computation of free symbols. The first slots are those of bound symbols, then of free ones,
/// then of H rows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Dense {
    walk: Program,
    h: usize,
    bound: usize,
    free: usize,
    /// H rows of coefficients of bound symbols.
    rows: Vec<u8>,
    /// H coefficients for each free symbol.
    inverse: Vec<u8>,
}

/// The products of dense rows with pivots, in the form of the system.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Program {
    Fold(Fold),
    Sums(Sums),
}

impl Program {
    fn additions(&self) -> usize {
        match self {
            Self::Fold(fold) => 3 * fold.steps.len(),
            Self::Sums(sums) => sums.len().1,
        }
    }
}

/// The output of a plan.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// Every intermediate symbol, in order.
    Intermediate,
    /// These internal symbols.
    Symbols(&'a [u32]),
}

impl Plan {
    /// The plan of a solution. `inputs` has, for each row after the LDPC rows, the input that the
    /// row sums to, if it is not zero.
    pub(super) fn new(
        system: &impl System,
        rows: &Rows,
        solution: &Solution,
        inputs: &[Option<u32>],
        wanted: Wanted<'_>,
    ) -> Self {
        Builder::new(system, rows, solution, inputs, wanted).plan()
    }

    /// The number of input symbols.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// The number of output symbols.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// The number of symbols in its working memory, which is as many strips of 256 bytes.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Approximate number of additions of one symbol to another: the plan's cost.
    pub fn additions(&self) -> usize {
        let (forward, backward) = (self.forward.len().1, self.backward.len().1);
        forward
            + backward
            + self.loads.len()
            + self.reloads
            + self
                .dense
                .as_ref()
                .map_or(0, |dense| dense.walk.additions())
    }

    /// The plan as words for other processors: `nc_plan` of `nc_abi.h` in ncs-device,
    /// followed by the data that its numbers refer to.
    pub fn words(&self) -> Vec<u32> {
        let mut words = Words {
            head: Vec::with_capacity(HEAD_WORDS),
            behind: Vec::new(),
        };
        words.number(self.inputs);
        words.number(self.slots);
        words.place(self.loads.iter().flat_map(|load| [load.slot, load.input]));
        words.number(self.loads.len());
        words.number(self.reloads);
        words.sums(&self.forward);
        words.sums(&self.backward);
        let (no_sums, no_fold) = (
            Sums::default(),
            Fold {
                last: Fold::NOTHING,
                ..Fold::default()
            },
        );
        let (walk, fold) = match self.dense.as_ref().map(|dense| &dense.walk) {
            Some(Program::Fold(fold)) => (&no_sums, fold),
            Some(Program::Sums(sums)) => (sums, &no_fold),
            None => (&no_sums, &no_fold),
        };
        words.sums(walk);
        words.place(
            fold.steps
                .iter()
                .flat_map(|step| [step.source, step.targets[0], step.targets[1]]),
        );
        words.number(fold.steps.len());
        words.head.push(fold.last);
        words.place_counted(fold.powers.iter().copied());
        let [h, bound, free] = self
            .dense
            .as_ref()
            .map_or([0; 3], |dense| [dense.h, dense.bound, dense.free]);
        [h, bound, free]
            .into_iter()
            .for_each(|number| words.number(number));
        for bytes in self
            .dense
            .as_ref()
            .map_or([&[][..]; 2], |dense| [&dense.rows, &dense.inverse])
        {
            let word = |bytes: &[u8]| {
                bytes
                    .iter()
                    .rev()
                    .fold(0, |word, &byte| word << 8 | u32::from(byte))
            };
            words.place(bytes.chunks(4).map(word));
        }
        words.place_counted(self.outputs.iter().copied());
        words.whole()
    }

    /// [`Self::words`] in the memory layout of a little-endian processor.
    pub fn bytes(&self) -> Vec<u8> {
        let words = self.words();
        let mut bytes = vec![0; 4 * words.len()];
        bytes
            .chunks_exact_mut(4)
            .zip(words)
            .for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Makes the outputs from `symbols`, which are the inputs, one after the other, each as long as
    /// an output. Missing inputs at the end are zero.
    ///
    /// # Panics
    /// If there are more symbols, or not as many outputs, or they differ in length.
    pub fn apply(&self, kernels: Kernels, symbols: &[u8], outputs: &mut [&mut [u8]]) {
        let Some(length) = outputs.first().map(|output| output.len()) else {
            return;
        };
        let is_even = outputs.iter().all(|output| output.len() == length);
        assert!(
            outputs.len() == self.outputs.len() && is_even,
            "{} outputs of {length} bytes",
            self.outputs.len()
        );
        let is_whole = symbols.len().is_multiple_of(length.max(1));
        assert!(
            is_whole && symbols.len() <= self.inputs * length,
            "{} symbols of {length} bytes",
            self.inputs
        );
        let mut work = vec![Line::ZERO; self.slots * STRIP_LINES.min(length.div_ceil(Line::BYTES))];
        for start in (0..length).step_by(STRIP_LINES * Line::BYTES) {
            let bytes = start..length.min(start + STRIP_LINES * Line::BYTES);
            let width = bytes.len().div_ceil(Line::BYTES);
            let load = |work: &mut [Line], loads: &[Load]| {
                for &Load { slot, input } in loads {
                    let place = Line::bytes_mut(&mut work[slot as usize * width..][..width]);
                    match symbols.get(input as usize * length..) {
                        Some(from) if !from.is_empty() => {
                            place[..bytes.len()].copy_from_slice(&from[bytes.clone()])
                        }
                        _ => place.fill(0),
                    }
                }
            };
            load(&mut work, &self.loads);
            kernels.sum(&self.forward, &mut work, width);
            if let Some(dense) = &self.dense {
                dense.apply(kernels, &mut work, width);
            }
            load(&mut work, &self.loads[..self.reloads]);
            kernels.sum(&self.backward, &mut work, width);
            for (output, &slot) in outputs.iter_mut().zip(&self.outputs) {
                let made = &Line::bytes(&work[slot as usize * width..][..width])[..bytes.len()];
                output[bytes.clone()].copy_from_slice(made);
            }
        }
    }
}

impl Dense {
    fn apply(&self, kernels: Kernels, work: &mut [Line], width: usize) {
        let h = self.h;
        work[(self.bound + self.free) * width..][..h * width].fill(Line::ZERO);
        match &self.walk {
            Program::Fold(fold) => kernels.fold(fold, work, width),
            Program::Sums(sums) => kernels.sum(sums, work, width),
        }
        let (bound, behind) = work.split_at_mut(self.bound * width);
        let (free, behind) = behind.split_at_mut(self.free * width);
        let sides = &mut behind[..h * width];
        if self.bound > 0 {
            multiply(kernels, (bound, self.bound), &self.rows, sides, width, true);
        }
        multiply(kernels, (sides, h), &self.inverse, free, width, false);
    }
}

/// Rows of as many coefficients as there are sources times these, into targets.
fn multiply(
    kernels: Kernels,
    (sources, count): (&[Line], usize),
    rows: &[u8],
    targets: &mut [Line],
    width: usize,
    accumulate: bool,
) {
    let rows: Vec<&[u8]> = rows.chunks_exact(count).collect();
    let mut targets: Vec<&mut [u8]> = targets
        .chunks_exact_mut(width)
        .map(Line::bytes_mut)
        .collect();
    kernels.combine_strip(
        Strip::new(sources, count, width, 0, width),
        &rows,
        &mut targets,
        0,
        accumulate,
    );
}

/// A plan as words, while it is written.
struct Words {
    head: Vec<u32>,
    behind: Vec<u32>,
}

impl Words {
    fn number(&mut self, number: usize) {
        self.head.push(index(number));
    }

    /// Words behind the head, and where they are.
    fn place(&mut self, words: impl Iterator<Item = u32>) {
        self.number(HEAD_WORDS + self.behind.len());
        self.behind.extend(words);
    }

    /// The same, and how many they are.
    fn place_counted(&mut self, words: impl Iterator<Item = u32>) {
        let before = self.behind.len();
        self.place(words);
        self.number(self.behind.len() - before);
    }

    /// Terms, each sum's target in front of its sources, and how many they are.
    fn sums(&mut self, sums: &Sums) {
        let terms = sums.each().flat_map(|(target, accumulate, sources)| {
            let head = TERM_HEAD | if accumulate { TERM_OWN } else { 0 } | target;
            std::iter::once(head).chain(sources.iter().copied())
        });
        self.place_counted(terms);
    }

    fn whole(self) -> Vec<u32> {
        assert_eq!(self.head.len(), HEAD_WORDS, "as many as nc_plan has");
        [self.head, self.behind].concat()
    }
}

struct Builder<'a, S> {
    system: &'a S,
    size: Size,
    rows: &'a Rows,
    solution: &'a Solution,
    inputs: &'a [Option<u32>],
    wanted: Wanted<'a>,
    /// The slot of each column. Those of inactive columns are in front of those of pivots.
    slots: Vec<u32>,
    /// Where slots begin: inactive symbols and dense rows, pivots, other rows, what is wanted,
    /// tables; and where those end.
    pivots: u32,
    others: u32,
    targets: u32,
    tables: u32,
    end: u32,
}

impl<'a, S: System> Builder<'a, S> {
    fn new(
        system: &'a S,
        rows: &'a Rows,
        solution: &'a Solution,
        inputs: &'a [Option<u32>],
        wanted: Wanted<'a>,
    ) -> Self {
        let size = system.size();
        let dense = if solution.dense.is_some() { size.h } else { 0 };
        let pivots = index(solution.inactive()) + dense;
        let others = pivots + index(solution.peeled.pivots.len());
        let targets = others + index(solution.rows.len());
        let tables = match wanted {
            Wanted::Intermediate => targets,
            Wanted::Symbols(isis) => targets + index(isis.len()),
        };
        let mut slots = vec![0; size.l as usize];
        for (slot, &(_, column)) in (pivots..).zip(&solution.peeled.pivots) {
            slots[column as usize] = slot;
        }
        for (slot, &place) in (0..).zip(solution.bound.iter().chain(&solution.free)) {
            slots[solution.peeled.inactive[place as usize] as usize] = slot;
        }
        Self {
            system,
            size,
            rows,
            solution,
            inputs,
            wanted,
            slots,
            pivots,
            others,
            targets,
            tables,
            end: tables,
        }
    }

    fn plan(mut self) -> Plan {
        let mut loads = Vec::with_capacity(self.inputs.len());
        let forward = self.forward(&mut loads);
        let of_pivots = loads
            .iter()
            .take_while(|load| load.slot < self.others)
            .count();
        let mut backward = Sums::with_capacity(self.rows.len(), forward.len().1);
        self.bind(&mut backward);
        let (is_full, outputs) = match self.wanted {
            Wanted::Intermediate => {
                self.all_pivots(&mut backward);
                (true, self.slots.clone())
            }
            Wanted::Symbols(isis) => (
                self.symbols(isis, &mut backward),
                (self.targets..self.tables).collect(),
            ),
        };
        let (inputs, dense) = (self.inputs.iter().flatten().count(), self.dense());
        let reloads = if is_full { of_pivots } else { 0 };
        Plan {
            inputs,
            slots: self.end as usize,
            loads,
            forward,
            dense,
            reloads,
            backward,
            outputs,
        }
    }

    /// The slots of a row's columns.
    fn slots_of(&self, row: u32) -> impl Iterator<Item = u32> {
        self.rows
            .row(row)
            .iter()
            .map(|&column| self.slots[column as usize])
    }

    /// The input of a row that is not zero on its other side.
    fn input(&self, row: u32) -> Option<u32> {
        row.checked_sub(self.size.s)
            .and_then(|row| self.inputs[row as usize])
    }

    /// E of every pivot, the rows that are no pivot rows, and the bound symbols as far as they are
    /// made of these.
    fn forward(&mut self, loads: &mut Vec<Load>) -> Sums {
        let solution = self.solution;
        let mut sums = Sums::with_capacity(2 * self.rows.len(), 12 * self.rows.len());
        let own = (self.pivots..).zip(solution.peeled.pivots.iter().map(|pivot| pivot.0));
        let others = (self.others..).zip(solution.rows.iter().copied());
        for (target, row) in own.chain(others) {
            let input = self.input(row);
            loads.extend(input.map(|input| Load {
                slot: target,
                input,
            }));
            // A pivot's own column is its target.
            sums.push(
                target,
                input.is_some(),
                self.slots_of(row)
                    .filter(|slot| *slot >= self.pivots && *slot != target),
            );
        }
        let sources: Vec<u32> = (self.others..).take(solution.rows.len()).collect();
        let rows = (0..solution.bound.len()).map(|row| Product {
            sources: &[],
            bits: solution.transform.row(row),
        });
        self.multiply(&mut sums, &sources, 0, false, &rows.collect::<Vec<_>>());
        sums
    }

    fn dense(&mut self) -> Option<Dense> {
        let solution = self.solution;
        let dense = solution.dense.as_ref()?;
        let first = index(solution.inactive());
        let Walk { pairs, end } = self.system.walk();
        let source = |column: usize| Some(self.slots[column]).filter(|slot| *slot >= first);
        let walk = match end {
            WalkEnd::Powers => {
                let step = |(column, pair): (usize, [u32; 2])| Step {
                    source: source(column).unwrap_or(Fold::NOTHING),
                    targets: pair.map(|row| first + row),
                };
                let last = source(pairs.len()).unwrap_or(Fold::NOTHING);
                let powers = (first..first + self.size.h).collect();
                Program::Fold(Fold {
                    steps: pairs.into_iter().enumerate().map(step).collect(),
                    last,
                    powers,
                })
            }
            WalkEnd::Rows(rows) => {
                // Nothing else needs this place now.
                let value = self.tables;
                let mut sums = Sums::with_capacity(3 * pairs.len(), 3 * pairs.len());
                let mut is_zero = true;
                for (column, rows) in pairs
                    .iter()
                    .map(<[u32; 2]>::as_slice)
                    .chain([rows.as_slice()])
                    .enumerate()
                {
                    if let Some(slot) = source(column) {
                        sums.push(value, !is_zero, [slot]);
                        is_zero = false;
                    }
                    if !is_zero {
                        rows.iter()
                            .for_each(|row| sums.push(first + row, true, [value]));
                    }
                }
                self.end = self.end.max(value + 1);
                Program::Sums(sums)
            }
        };
        let (bound, free) = (solution.bound.len(), solution.free.len());
        Some(Dense {
            walk,
            h: self.size.h as usize,
            bound,
            free,
            rows: dense.rows.clone(),
            inverse: dense.inverse.clone(),
        })
    }

    /// Adds the free symbols to the bound ones.
    fn bind(&mut self, sums: &mut Sums) {
        let solution = self.solution;
        if !solution.free.is_empty() {
            let (bound, inactive) = (index(solution.bound.len()), index(solution.inactive()));
            let rows = (0..solution.bound.len()).map(|row| Product {
                sources: &[],
                bits: solution.free_bits.row(row),
            });
            self.multiply(
                sums,
                &(bound..inactive).collect::<Vec<_>>(),
                0,
                true,
                &rows.collect::<Vec<_>>(),
            );
        }
    }

    /// Every pivot's symbol, from what arrived.
    fn all_pivots(&self, sums: &mut Sums) {
        for (target, &(row, _)) in (self.pivots..).zip(&self.solution.peeled.pivots) {
            sums.push(
                target,
                self.input(row).is_some(),
                self.slots_of(row).filter(|slot| *slot != target),
            );
        }
    }

    /// Some internal symbols, in the cheaper way, and whether this goes over all pivots.
    fn symbols(&mut self, isis: &[u32], sums: &mut Sums) -> bool {
        let (solution, inactive) = (self.solution, self.solution.inactive());
        let wanted = Rows::of_symbols(self.system, isis.iter().copied());
        let of_all: usize = solution
            .peeled
            .pivots
            .iter()
            .map(|&(row, _)| self.rows.row(row).len())
            .sum();
        let (_, of_product) = group(inactive, isis.len());
        let slots = |row| {
            wanted
                .row(row)
                .iter()
                .map(|&column| self.slots[column as usize])
        };
        let rows = 0..index(isis.len());
        if of_all < of_product {
            self.all_pivots(sums);
            rows.zip(self.targets..)
                .for_each(|(row, target)| sums.push(target, false, slots(row)));
            return true;
        }
        let words = inactive.div_ceil(64);
        let (mut bits, mut sources, mut ends) = (vec![0; words * isis.len()], Vec::new(), vec![0]);
        for (row, bits) in rows.zip(bits.chunks_exact_mut(words)) {
            solution.sum_of(wanted.row(row), bits);
            sources.extend(slots(row).filter(|slot| *slot >= self.pivots));
            ends.push(sources.len());
        }
        let sources = ends.windows(2).map(|ends| &sources[ends[0]..ends[1]]);
        let products: Vec<Product<'_>> = sources
            .zip(bits.chunks_exact(words))
            .map(|(sources, bits)| Product { sources, bits })
            .collect();
        let of_inactive: Vec<u32> = solution
            .peeled
            .inactive
            .iter()
            .map(|&column| self.slots[column as usize])
            .collect();
        self.multiply(sums, &of_inactive, self.targets, false, &products);
        false
    }

    /// Products of binary rows with `sources`, into targets from `target` on: sums of a few
    /// neighbours each are made first, as far as they are used.
    fn multiply(
        &mut self,
        sums: &mut Sums,
        sources: &[u32],
        target: u32,
        accumulate: bool,
        products: &[Product<'_>],
    ) {
        let (bits, _) = group(sources.len(), products.len());
        let groups = sources.len().div_ceil(bits);
        let mut is_used = vec![false; groups << bits];
        for product in products {
            for group in 0..groups {
                let mut sum = product.group(group, bits);
                while sum & sum.wrapping_sub(1) != 0
                    && !std::mem::replace(&mut is_used[group << bits | sum], true)
                {
                    sum &= sum - 1;
                }
            }
        }
        let mut slots = vec![0; groups << bits];
        let mut next = self.tables;
        for group in 0..groups {
            let table = &mut slots[group << bits..][..1 << bits];
            for sum in 1..1_usize << bits {
                let lowest = group * bits + sum.trailing_zeros() as usize;
                let rest = sum & (sum - 1);
                if rest == 0 {
                    table[sum] = sources.get(lowest).copied().unwrap_or_default();
                } else if is_used[group << bits | sum] {
                    sums.push(next, false, [table[rest], sources[lowest]]);
                    table[sum] = next;
                    next += 1;
                }
            }
        }
        self.end = self.end.max(next);
        for (target, product) in (target..).zip(products) {
            let groups = (0..groups)
                .map(|group| (group, product.group(group, bits)))
                .filter(|(_, sum)| *sum != 0);
            let of_groups = groups.map(|(group, sum)| slots[group << bits | sum]);
            sums.push(
                target,
                accumulate,
                product.sources.iter().copied().chain(of_groups),
            );
        }
    }
}

/// A product with a binary row: some slots, and those sources of the product whose bits are set.
struct Product<'a> {
    sources: &'a [u32],
    bits: &'a [u64],
}

impl Product<'_> {
    /// The `index`-th group of so many bits.
    #[expect(clippy::cast_possible_truncation, reason = "a few bits")]
    fn group(&self, index: usize, bits: usize) -> usize {
        let (first, mask) = (index * bits, (1 << bits) - 1);
        let low = self.bits[first / 64] >> (first % 64);
        let high = self
            .bits
            .get(first / 64 + 1)
            .map_or(0, |word| word << 1 << (63 - first % 64));
        ((low | high) & mask) as usize
    }
}

/// How many neighbours a table is best made of, where so many products of so many sources are
/// wanted, and the additions that takes.
fn group(sources: usize, products: usize) -> (usize, usize) {
    let cost = |bits: usize| {
        let groups = sources.div_ceil(bits);
        let sums = (1_usize << bits) - 1 - bits;
        groups * sums.min(products) + products * (groups - (groups >> bits))
    };
    (1..=8)
        .map(|bits| (bits, cost(bits)))
        .min_by_key(|(_, cost)| *cost)
        .expect("there are eight")
}

/// Words of a plan's head, and what marks a term: see `nc_plan`.
const HEAD_WORDS: usize = 23;
const TERM_HEAD: u32 = 1 << 31;
const TERM_OWN: u32 = 1 << 30;

/// Lines of a strip at most.
const STRIP_LINES: usize = 4;
