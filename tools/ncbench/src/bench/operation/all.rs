//! Operations by all threads at once: each with its own generation, as in a server and a peer, or
//! all with one.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ncs_codec::block::Vector;
use ncs_gf::{Kernels, matrix};
use ncserverd::bench::clock::Lap;
use ncserverd::bench::work::Work;

use super::one::Recoder;
use super::{Checked, one};
use crate::bench::team;

pub(super) fn encode(work: &Arc<Work>, kernels: Kernels, threads: usize) -> Option<Checked> {
    let (first_seed, k) = (work.first_seed, work.block_bytes());
    let states = || (one::encoder(work, kernels), vec![0; work.coded.len()]);
    let mut crew = Crew::new(threads, states, move |(encoder, payloads)| {
        encoder.blocks(
            first_seed,
            &mut payloads.chunks_exact_mut(k).collect::<Vec<_>>(),
        );
    });
    crew.run(1);
    let is_right = crew
        .states
        .iter()
        .all(|(_, payloads)| *payloads == work.coded);
    Checked::new(is_right, threads * work.source.len(), move |repeats| {
        crew.run(repeats)
    })
}

pub(super) fn decode(work: &Arc<Work>, kernels: Kernels, threads: usize) -> Option<Checked> {
    let states = || (work.coded.clone(), Vec::new());
    let mut crew = Crew::new(threads, states, {
        let work = Arc::clone(work);
        move |(coded, bytes)| {
            let vectors = work.blocks().into_iter().map(|(vector, _)| vector);
            let blocks: Vec<(Vector, &[u8])> = vectors
                .zip(coded.chunks_exact(work.block_bytes()))
                .collect();
            *bytes = one::decoder(&work, kernels, &blocks)
                .into_bytes()
                .unwrap_or_default();
        }
    });
    crew.run(1);
    let is_right = crew.states.iter().all(|(_, bytes)| *bytes == work.source);
    Checked::new(is_right, threads * work.source.len(), move |repeats| {
        crew.run(repeats)
    })
}

/// All draw the same weights, so that all have to make the same blocks.
pub(super) fn recode(work: &Arc<Work>, kernels: Kernels, threads: usize) -> Option<Checked> {
    let mut crew = Crew::new(threads, || Recoder::new(work, kernels), Recoder::run);
    crew.run(1);
    let first = crew.states.first()?;
    let is_same =
        |other: &Recoder| other.vectors == first.vectors && other.payloads == first.payloads;
    let is_right = first.is_right(work) && crew.states.iter().all(is_same);
    Checked::new(is_right, threads * work.source.len(), move |repeats| {
        crew.run(repeats)
    })
}

pub(super) fn invert(work: &Arc<Work>, kernels: Kernels, threads: usize) -> Option<Checked> {
    let n = work.n();
    let states = || (work.rows(), None);
    let mut crew = Crew::new(threads, states, move |(rows, inverse)| {
        *inverse = matrix::invert(kernels, n, rows, NonZeroUsize::MIN);
    });
    crew.run(1);
    let expected = work.inverse()?;
    let is_right = crew
        .states
        .iter()
        .all(|(_, inverse)| inverse.as_deref() == Some(expected));
    Checked::new(is_right, threads, move |repeats| crew.run(repeats))
}

/// As `gf` does it: threads are started for it.
pub(super) fn invert_together(
    work: &Arc<Work>,
    kernels: Kernels,
    threads: usize,
) -> Option<Checked> {
    let (n, rows, threads) = (work.n(), work.rows(), NonZeroUsize::new(threads)?);
    let is_right = matrix::invert(kernels, n, &rows, threads)? == work.inverse()?;
    let run = move |repeats: u32| {
        Lap::process(|| {
            (0..repeats).for_each(|_| drop(black_box(matrix::invert(kernels, n, &rows, threads))))
        })
    };
    Checked::new(is_right, 1, run)
}

pub(super) fn solve(work: &Arc<Work>, kernels: Kernels, threads: usize) -> Option<Checked> {
    let (n, rows, threads) = (work.n(), work.rows(), NonZeroUsize::new(threads)?);
    let mut source = vec![0; work.source.len()];
    let is_solved = kernels.solve(n, &rows, &work.coded, &mut source, threads);
    let (is_right, made, work) = (
        is_solved && source == work.source,
        source.len(),
        Arc::clone(work),
    );
    let run = move |repeats: u32| {
        let solve = |_| {
            _ = black_box(kernels.solve(n, &rows, &work.coded, black_box(&mut source), threads))
        };
        Lap::process(|| (0..repeats).for_each(solve))
    };
    Checked::new(is_right, made, run)
}

/// Threads that start together and do the same work over and over, each on a state of its own.
struct Crew<S, W> {
    states: Vec<S>,
    work: W,
}

impl<S: Send, W: Fn(&mut S) + Sync> Crew<S, W> {
    fn new(threads: usize, state: impl Fn() -> S, work: W) -> Self {
        Self {
            states: (0..threads).map(|_| state()).collect(),
            work,
        }
    }

    /// Time from when all are ready until the last has done so many repetitions. The processor time
    /// is that of all threads.
    fn run(&mut self, repeats: u32) -> Lap {
        let (threads, mut wall) = (self.states.len(), Duration::ZERO);
        let waiting = Mutex::new(std::mem::take(&mut self.states));
        let take = |_| {
            waiting
                .lock()
                .expect("nobody panics with it")
                .pop()
                .expect("one for each thread")
        };
        let lap = Lap::process(|| {
            let work = |state: &mut S, _: &team::Member<'_>, _| {
                (0..repeats).for_each(|_| (self.work)(state))
            };
            (wall, self.states) = team::time(threads, 1, take, work);
        });
        Lap { wall, ..lap }
    }
}
