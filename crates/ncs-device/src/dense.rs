//! Dense matrices on a GPU where it is faster: the [`Algebra`] of RaptorQ's decoders with dense
//! matrices.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use ncs_gf::dense::{Algebra, Chooser, Cores, System};
use ncs_gf::{RowKey, matrix};

use super::{Error, cuda};

/// Opens a GPU by its number, for systems of any size. Calls fail if the card fails or has too
/// little memory.
pub fn card(gpu: u16) -> Result<Box<dyn Algebra>, Error> {
    cuda::open_calculator(gpu)
}

/// A GPU for large systems and the CPU's cores for small ones. The [`crossover`] between them is
/// measured now, which takes as long as some inversions of up to 1,024 rows.
pub fn fastest(gpu: u16, cores: Cores) -> Result<Chooser, Error> {
    let card = card(gpu)?;
    let crossover = crossover(&cores, card.as_ref());
    tracing::info!("GPU {gpu} solves dense systems from {crossover} rows on, the CPU smaller ones");
    Ok(Chooser::new(cores, card, crossover))
}

/// The order from which on `card` solves a system faster than `cores`, copies included. It tries
/// some orders from 32 to 1,024, each three times, and compares the best times. The result is the
/// smallest order from which on the card was always faster, or one more than the largest if there
/// is none, because the card's advantage grows with the order.
pub fn crossover(cores: &Cores, card: &dyn Algebra) -> usize {
    crossover_among(&ORDERS, cores, card)
}

fn crossover_among(orders: &[usize], cores: &Cores, card: &dyn Algebra) -> usize {
    let is_sooner = |&order: &usize| {
        let matrix = regular(order);
        let times = [cores as &dyn Algebra, card].map(|algebra| time(algebra, order, &matrix));
        (order, times[1].is_some_and(|card| Some(card) < times[0]))
    };
    first_of_the_rest(&orders.iter().map(is_sooner).collect::<Vec<_>>())
}

/// The first order from which on the card was always faster.
fn first_of_the_rest(sooner: &[(usize, bool)]) -> usize {
    let last = sooner.last().map_or(1, |(order, _)| order + 1);
    sooner
        .iter()
        .rev()
        .take_while(|(_, is_sooner)| *is_sooner)
        .last()
        .map_or(last, |(order, _)| *order)
}

/// A random matrix that has an inverse.
fn regular(order: usize) -> Vec<u8> {
    let mut matrix = vec![0; order * order];
    for seed in 0.. {
        RowKey {
            key: 17,
            generation: order as u64,
        }
        .fill(seed, &mut matrix);
        if matrix::invert(ncs_gf::Kernels::detect(), order, &matrix, NonZeroUsize::MIN).is_some() {
            break;
        }
    }
    matrix
}

/// The best of three times, after a first run that loads kernels and allocates memory. `None` if a
/// run fails or finds no inverse.
fn time(algebra: &dyn Algebra, order: usize, matrix: &[u8]) -> Option<Duration> {
    let (sums, symbol) = ([vec![0]], [1; 16]);
    let symbols = vec![Some(symbol.as_slice()); order];
    let system = System {
        order,
        matrix,
        sums: &sums,
        symbols: &symbols,
    };
    let solve = |_| {
        let mut out = [0; 16];
        let start = Instant::now();
        let is_regular = algebra.solve(&system, &mut [&mut out]).ok()?;
        black_box(out);
        is_regular.then(|| start.elapsed())
    };
    let times: Option<Vec<Duration>> = (0..4).map(solve).collect();
    times?.into_iter().skip(1).min()
}

const ORDERS: [usize; 6] = [32, 64, 128, 256, 512, 1024];

#[cfg(test)]
mod tests {
    use super::*;
    use ncs_gf::Kernels;
    use ncs_gf::dense::Failed;

    #[test]
    fn the_crossover_is_where_the_card_begins_to_stay_ahead() {
        let of = |sooner: &[bool]| {
            first_of_the_rest(
                &ORDERS
                    .into_iter()
                    .zip(sooner.iter().copied())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(&[false, false, true, true, true, true]), 128);
        assert_eq!(
            of(&[true, false, true, false, true, true]),
            512,
            "what is left behind again does not count"
        );
        assert_eq!(of(&[true; 6]), 32);
        assert_eq!(of(&[true, true, true, true, true, false]), 1025);
    }

    /// A card that fails is never faster.
    #[derive(Debug)]
    struct Broken;

    impl Algebra for Broken {
        fn solve(&self, _: &System<'_>, _: &mut [&mut [u8]]) -> Result<bool, Failed> {
            Err(Failed("broken".into()))
        }

        fn multiply(
            &self,
            _: &[&[u8]],
            _: &[Option<&[u8]>],
            _: &mut [&mut [u8]],
        ) -> Result<(), Failed> {
            Err(Failed("broken".into()))
        }
    }

    #[test]
    fn a_broken_card_is_asked_last() {
        assert_eq!(
            crossover_among(
                &ORDERS[..2],
                &Cores::new(Kernels::detect(), NonZeroUsize::MIN),
                &Broken
            ),
            65
        );
    }
}
