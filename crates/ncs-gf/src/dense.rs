//! Dense linear systems over the byte field, and their solvers: CPU cores, a GPU card, or the
//! faster of the two.
//!
//! A decoder with dense matrices uses the trait [`Algebra`] and does not know the processor behind
//! it. [`Cores`] is the CPU; a GPU's implementation is in the crate that drives GPUs. The cost of
//! an inversion grows with the cube of the order, the cost of the transfer to a card with its
//! square. A card therefore pays from some order on, the *crossover*. [`Chooser`] selects by it, as
//! Vicente (2015, section 5.3) proposes for threads.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::sync::OnceLock;
use std::thread;

use super::{Kernels, Panel, matrix, threads};

/// A square matrix, and the products of its inverse with symbols that are wanted.
#[derive(Debug, Clone, Copy)]
pub struct System<'a> {
    /// Rows and columns.
    pub order: usize,
    /// The rows, one after the other.
    pub matrix: &'a [u8],
    /// For each wanted symbol, the rows of the inverse whose sum makes it.
    pub sums: &'a [Vec<u32>],
    /// The symbol of each row of the matrix, all of one length; `None` is a symbol of zeros.
    pub symbols: &'a [Option<&'a [u8]>],
}

impl System<'_> {
    /// Checks that the parts fit each other and the outputs.
    ///
    /// # Panics
    /// If they do not.
    pub fn check(&self, outs: &[&mut [u8]]) {
        let Self {
            order,
            matrix,
            sums,
            symbols,
        } = *self;
        assert!(
            order > 0 && matrix.len() == order * order && symbols.len() == order,
            "a system of {order} rows"
        );
        assert!(
            sums.iter().flatten().all(|&row| (row as usize) < order),
            "sums of {order} rows"
        );
        assert_eq!(sums.len(), outs.len(), "as many symbols as are wanted");
        check_lengths(symbols, outs);
    }
}

/// # Panics
/// If not all have the same length, other than zero.
fn check_lengths(symbols: &[Option<&[u8]>], outs: &[&mut [u8]]) {
    let Some(length) = outs.first().map(|out| out.len()) else {
        return;
    };
    let lengths = symbols
        .iter()
        .flatten()
        .map(|symbol| symbol.len())
        .chain(outs.iter().map(|out| out.len()));
    assert!(
        length > 0 && lengths.into_iter().all(|each| each == length),
        "symbols of {length} bytes"
    );
}

/// A processor that solves systems and multiplies matrices.
pub trait Algebra: Debug + Send + Sync {
    /// Writes the wanted symbols to `outs`. Returns false if the matrix has no inverse; the
    /// contents of `outs` are undefined then.
    ///
    /// # Panics
    /// If [`System::check`] does.
    fn solve(&self, system: &System<'_>, outs: &mut [&mut [u8]]) -> Result<bool, Failed>;

    /// Multiplies each row, of as many elements as there are symbols, by the symbols; `None` is a
    /// symbol of zeros.
    ///
    /// # Panics
    /// If there are not as many rows as outs, a row has another length, or symbols differ in
    /// theirs.
    fn multiply(
        &self,
        rows: &[&[u8]],
        symbols: &[Option<&[u8]>],
        outs: &mut [&mut [u8]],
    ) -> Result<(), Failed>;
}

/// The failure of a processor, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failed(pub String);

/// The CPU, which does not fail. It has a number of threads, of which a call starts as many as its
/// work justifies.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    kernels: Kernels,
    threads: NonZeroUsize,
}

impl Cores {
    /// The CPU with at most `threads` threads.
    pub fn new(kernels: Kernels, threads: NonZeroUsize) -> Self {
        Self { kernels, threads }
    }

    /// The CPU with as many threads as the process may use.
    pub fn all(kernels: Kernels) -> Self {
        Self::new(
            kernels,
            thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        )
    }

    /// The maximum number of threads.
    pub fn threads(&self) -> NonZeroUsize {
        self.threads
    }

    /// Divides `outs` among threads; `work` gets each part with the index of its first out.
    fn share(
        &self,
        inner: usize,
        outs: &mut [&mut [u8]],
        work: impl Fn(usize, &mut [&mut [u8]]) + Sync,
    ) {
        let products = outs.len() * inner * outs.first().map_or(0, |out| out.len());
        let threads = (products / PRODUCTS_A_THREAD)
            .clamp(1, self.threads.get())
            .min(outs.len().max(1));
        let each = outs.len().div_ceil(threads).max(1);
        let parts = outs.chunks_mut(each).enumerate();
        threads::share(parts, |(index, part)| work(index * each, part));
    }
}

impl Algebra for Cores {
    fn solve(&self, system: &System<'_>, outs: &mut [&mut [u8]]) -> Result<bool, Failed> {
        system.check(outs);
        let order = system.order;
        let threads = matrix::inverters(order, self.threads);
        let Some(inverse) = matrix::invert(self.kernels, order, system.matrix, threads) else {
            return Ok(false);
        };
        let Some(panel) = panel(system.symbols, outs) else {
            return Ok(true);
        };
        self.share(order, outs, |first, outs| {
            let mut rows = vec![0; outs.len() * order];
            for (row, sum) in rows.chunks_exact_mut(order).zip(&system.sums[first..]) {
                sum.iter().for_each(|&term| {
                    self.kernels
                        .add(row, &inverse[term as usize * order..][..order])
                });
            }
            self.kernels
                .combine(&rows.chunks_exact(order).collect::<Vec<_>>(), &panel, outs);
        });
        Ok(true)
    }

    fn multiply(
        &self,
        rows: &[&[u8]],
        symbols: &[Option<&[u8]>],
        outs: &mut [&mut [u8]],
    ) -> Result<(), Failed> {
        check_rows(rows, symbols, outs);
        let Some(panel) = panel(symbols, outs) else {
            return Ok(());
        };
        self.share(symbols.len(), outs, |first, outs| {
            self.kernels
                .combine(&rows[first..][..outs.len()], &panel, outs)
        });
        Ok(())
    }
}

/// # Panics
/// As [`Algebra::multiply`].
pub fn check_rows(rows: &[&[u8]], symbols: &[Option<&[u8]>], outs: &[&mut [u8]]) {
    assert!(
        rows.len() == outs.len() && rows.iter().all(|row| row.len() == symbols.len()),
        "rows of {} elements",
        symbols.len()
    );
    check_lengths(symbols, outs);
}

/// A panel of the symbols; `None` if there are no outs.
fn panel(symbols: &[Option<&[u8]>], outs: &[&mut [u8]]) -> Option<Panel> {
    let mut panel = Panel::new(symbols.len(), outs.first()?.len());
    let there = symbols
        .iter()
        .enumerate()
        .filter_map(|(index, symbol)| Some((index, (*symbol)?)));
    there.for_each(|(index, symbol)| panel.put(index, symbol));
    Some(panel)
}

/// The CPU for small systems, a card for large ones, and the CPU for all of them after the card has
/// failed.
#[derive(Debug)]
pub struct Chooser {
    cores: Cores,
    card: Box<dyn Algebra>,
    crossover: usize,
    fault: OnceLock<Failed>,
}

impl Chooser {
    /// A chooser with the order from which the card solves faster than these cores.
    pub fn new(cores: Cores, card: Box<dyn Algebra>, crossover: usize) -> Self {
        Self {
            cores,
            card,
            crossover,
            fault: OnceLock::new(),
        }
    }

    /// The order from which the card is used.
    pub fn crossover(&self) -> usize {
        self.crossover
    }

    /// The failure of the card, if it has failed and is no longer used.
    pub fn fault(&self) -> Option<&Failed> {
        self.fault.get()
    }

    /// Uses the card, if it has not failed before, and otherwise the CPU.
    fn ask<T>(
        &self,
        is_large: bool,
        outs: &mut [&mut [u8]],
        ask: impl Fn(&dyn Algebra, &mut [&mut [u8]]) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        if is_large && self.fault.get().is_none() {
            match ask(self.card.as_ref(), outs) {
                Ok(done) => return Ok(done),
                Err(fault) => drop(self.fault.set(fault)),
            }
        }
        ask(&self.cores, outs)
    }
}

impl Algebra for Chooser {
    fn solve(&self, system: &System<'_>, outs: &mut [&mut [u8]]) -> Result<bool, Failed> {
        self.ask(system.order >= self.crossover, outs, |algebra, outs| {
            algebra.solve(system, outs)
        })
    }

    fn multiply(
        &self,
        rows: &[&[u8]],
        symbols: &[Option<&[u8]>],
        outs: &mut [&mut [u8]],
    ) -> Result<(), Failed> {
        // As many products as an inversion that is worth it.
        let products = [
            rows.len(),
            symbols.len(),
            outs.first().map_or(0, |out| out.len()),
        ]
        .into_iter()
        .fold(1, usize::saturating_mul);
        let is_large = products >= self.crossover.saturating_pow(3);
        self.ask(is_large, outs, |algebra, outs| {
            algebra.multiply(rows, symbols, outs)
        })
    }
}

/// Products that justify a thread. Starting a thread takes some 50 us (row S4-12 of the bench:
/// sixteen for one block); in that time a core with GFNI makes half as many.
const PRODUCTS_A_THREAD: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{RowKey, at_most, gf256};

    fn random(length: usize, seed: u32) -> Vec<u8> {
        let mut bytes = vec![0; length];
        RowKey {
            key: 11,
            generation: 0,
        }
        .fill(seed, &mut bytes);
        bytes
    }

    /// Rows times symbols, by the definition.
    fn product(rows: &[&[u8]], symbols: &[Option<&[u8]>], length: usize) -> Vec<Vec<u8>> {
        let of_row = |row: &&[u8]| {
            let mut sum = vec![0; length];
            for (&factor, symbol) in row
                .iter()
                .zip(symbols)
                .filter_map(|(factor, symbol)| Some((factor, (*symbol)?)))
            {
                sum.iter_mut()
                    .zip(symbol)
                    .for_each(|(sum, &byte)| *sum ^= gf256::mul(factor, byte));
            }
            sum
        };
        rows.iter().map(of_row).collect()
    }

    /// Symbols of which some are zeros, and what a regular matrix makes of them: with these as
    /// sides, they are the solution.
    fn solve(algebra: &dyn Algebra, order: usize, length: usize) {
        let bytes = random(order * length, 1);
        let wanted: Vec<Option<&[u8]>> = bytes.chunks_exact(length).map(Some).collect();
        let matrix = (2..).map(|seed| random(order * order, seed));
        let matrix = matrix.into_iter().find(|matrix| {
            matrix::invert(Kernels::detect(), order, matrix, NonZeroUsize::MIN).is_some()
        });
        let matrix = matrix.expect("one of the first is regular");
        let sides = product(
            &matrix.chunks_exact(order).collect::<Vec<_>>(),
            &wanted,
            length,
        );
        let symbols: Vec<Option<&[u8]>> = sides.iter().map(|side| Some(side.as_slice())).collect();
        let last = u32::try_from(order).unwrap() - 1;
        let sums = [vec![0], vec![last], vec![0, last, last / 2], vec![]];
        let mut outs = vec![vec![9; length]; sums.len()];
        let system = System {
            order,
            matrix: &matrix,
            sums: &sums,
            symbols: &symbols,
        };
        let mut places: Vec<&mut [u8]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
        assert!(algebra.solve(&system, &mut places).unwrap(), "{order}");
        for (sum, out) in sums.iter().zip(&outs) {
            let mut expected = vec![0; length];
            sum.iter().for_each(|&row| {
                Kernels::detect().add(&mut expected, &bytes[row as usize * length..][..length])
            });
            assert!(
                *out == expected,
                "the sum of {sum:?} at order {order}, {algebra:?}"
            );
        }
        let zeros = vec![0; order * order];
        let mut places: Vec<&mut [u8]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
        assert!(
            !algebra
                .solve(
                    &System {
                        matrix: &zeros,
                        ..system
                    },
                    &mut places
                )
                .unwrap()
        );
    }

    fn multiply(algebra: &dyn Algebra, count: usize, inner: usize, length: usize) {
        let (factors, bytes) = (random(count * inner, 5), random(inner * length, 6));
        let rows: Vec<&[u8]> = factors.chunks_exact(inner).collect();
        let symbols: Vec<Option<&[u8]>> = bytes
            .chunks_exact(length)
            .enumerate()
            .map(|(index, symbol)| (index % 3 != 1).then_some(symbol))
            .collect();
        let mut outs = vec![vec![9; length]; count];
        let mut places: Vec<&mut [u8]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
        algebra.multiply(&rows, &symbols, &mut places).unwrap();
        assert_eq!(
            outs,
            product(&rows, &symbols, length),
            "{count} x {inner} times {length}, {algebra:?}"
        );
    }

    #[test]
    fn any_number_of_threads_makes_the_same() {
        for threads in [1, 2, 3, 8] {
            let cores = Cores::new(Kernels::detect(), at_most(threads));
            for (order, length) in [(1, 1), (2, 7), (63, 64), (130, 33), (260, 100)] {
                solve(&cores, order, length);
            }
            let large = (60, 260, 1700);
            assert!(
                large.0 * large.1 * large.2 >= 3 * PRODUCTS_A_THREAD,
                "for three threads"
            );
            for (count, inner, length) in [
                (1, 1, 1),
                (3, 70, 10),
                (17, 200, 700),
                (5, 260, 2000),
                large,
            ] {
                multiply(&cores, count, inner, length);
            }
            cores.multiply(&[], &[], &mut []).unwrap();
        }
    }

    /// A card that counts what it is asked, and fails from some call on.
    #[derive(Debug)]
    struct Fake {
        asked: std::sync::Arc<AtomicUsize>,
        good: usize,
    }

    impl Fake {
        fn ask(&self) -> Result<Cores, Failed> {
            let asked = self.asked.fetch_add(1, Ordering::Relaxed);
            if asked < self.good {
                Ok(Cores::new(Kernels::detect(), NonZeroUsize::MIN))
            } else {
                Err(Failed("gone".into()))
            }
        }
    }

    impl Algebra for Fake {
        fn solve(&self, system: &System<'_>, outs: &mut [&mut [u8]]) -> Result<bool, Failed> {
            self.ask()?.solve(system, outs)
        }

        fn multiply(
            &self,
            rows: &[&[u8]],
            symbols: &[Option<&[u8]>],
            outs: &mut [&mut [u8]],
        ) -> Result<(), Failed> {
            self.ask()?.multiply(rows, symbols, outs)
        }
    }

    fn chooser(good: usize) -> (Chooser, std::sync::Arc<AtomicUsize>) {
        let asked = std::sync::Arc::new(AtomicUsize::new(0));
        let card = Fake {
            asked: std::sync::Arc::clone(&asked),
            good,
        };
        (
            Chooser::new(
                Cores::new(Kernels::detect(), NonZeroUsize::MIN),
                Box::new(card),
                50,
            ),
            asked,
        )
    }

    #[test]
    fn the_card_is_asked_from_the_crossover_on() {
        let (chooser, asked) = chooser(usize::MAX);
        solve(&chooser, 49, 8);
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        solve(&chooser, 50, 8);
        assert_eq!(
            asked.load(Ordering::Relaxed),
            2,
            "a regular matrix, and one that is not"
        );
        multiply(&chooser, 50, 50, 49);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        multiply(&chooser, 50, 50, 50);
        assert_eq!((asked.load(Ordering::Relaxed), chooser.fault()), (3, None));
    }

    #[test]
    fn the_cpu_goes_on_where_the_card_fails() {
        let (chooser, asked) = chooser(1);
        solve(&chooser, 60, 16);
        assert_eq!(asked.load(Ordering::Relaxed), 2, "the second time it fails");
        assert_eq!(chooser.fault(), Some(&Failed("gone".into())));
        solve(&chooser, 60, 16);
        multiply(&chooser, 60, 60, 60);
        assert_eq!(asked.load(Ordering::Relaxed), 2, "it is not asked again");
    }
}
