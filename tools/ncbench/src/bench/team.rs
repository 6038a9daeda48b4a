//! Threads that start together, so that what is measured is their work and not their start.

use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// One of a team, while it works.
pub(super) struct Member<'a> {
    pub(super) index: usize,
    pub(super) threads: usize,
    barrier: Option<&'a Barrier>,
}

impl Member<'_> {
    /// A team of one, which waits for nobody.
    pub(super) const ALONE: Self = Self {
        index: 0,
        threads: 1,
        barrier: None,
    };

    /// Waits until every member has come this far.
    pub(super) fn wait(&self) {
        if let Some(barrier) = self.barrier {
            barrier.wait();
        }
    }
}

/// Lets `threads` members do `work` so many times, in step, each on what it has prepared. Returns
/// the time from when all are ready until all are done, and what they have prepared.
pub(super) fn time<S: Send>(
    threads: usize,
    repeats: u32,
    prepare: impl Fn(usize) -> S + Sync,
    work: impl Fn(&mut S, &Member<'_>, u32) + Sync,
) -> (Duration, Vec<S>) {
    let barrier = Barrier::new(threads);
    let elapsed = Mutex::new(Duration::ZERO);
    let member = |index: usize| {
        let mut state = prepare(index);
        let member = Member {
            index,
            threads,
            barrier: Some(&barrier),
        };
        member.wait();
        let start = Instant::now();
        for repeat in 0..repeats {
            work(&mut state, &member, repeat);
            member.wait();
        }
        if index == 0 {
            *elapsed.lock().expect("nobody panics with it") = start.elapsed();
        }
        state
    };
    let states = thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|index| scope.spawn(move || member(index)))
            .collect();
        let first = member(0);
        let others = others
            .into_iter()
            .map(|thread| thread.join().expect("work does not panic"));
        [first].into_iter().chain(others).collect()
    });
    let elapsed = *elapsed.lock().expect("nobody panics with it");
    (elapsed, states)
}

/// Members that wait for each other by spinning, which costs less than a microsecond if each has a
/// core.
struct Barrier {
    threads: usize,
    waiting: AtomicUsize,
    turn: AtomicUsize,
}

impl Barrier {
    fn new(threads: usize) -> Self {
        Self {
            threads,
            waiting: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
        }
    }

    fn wait(&self) {
        let turn = self.turn.load(Ordering::Acquire);
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.waiting.store(0, Ordering::Relaxed);
            self.turn.store(turn.wrapping_add(1), Ordering::Release);
            return;
        }
        for look in 0_u32.. {
            if self.turn.load(Ordering::Acquire) != turn {
                return;
            }
            if look < SPINS {
                spin_loop()
            } else {
                thread::yield_now()
            }
        }
    }
}

const SPINS: u32 = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_work_in_step() {
        let done = AtomicUsize::new(0);
        let (elapsed, states) = time(
            3,
            50,
            |index| (index, 0),
            |state, member, repeat| {
                assert_eq!((state.0, member.threads), (member.index, 3));
                done.fetch_add(1, Ordering::Relaxed);
                member.wait();
                assert_eq!(done.load(Ordering::Relaxed), 3 * (repeat as usize + 1));
                state.1 += 1;
                member.wait();
            },
        );
        assert_eq!(states, [(0, 50), (1, 50), (2, 50)]);
        assert!(elapsed > Duration::ZERO);
    }
}
